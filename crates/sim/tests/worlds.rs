//! What whole worlds must show: the same seed is the same world, nothing is lost whatever happens, and stealing keeps workers
//! busy.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a test, which may read how long it should go on"
)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use filch_core::{Span, Status, Time};
use filch_sim::fuzz::{self, Verdict};
use filch_sim::scenario::BUILTINS;
use filch_sim::{Counts, Outcome, Scenario, World};

fn play(scenario: &Scenario, seed: u64) -> Outcome {
    let (setting, workload) = scenario.make(seed);
    let mut world = World::new(setting, workload).unwrap();
    world.run(Time::NEVER).unwrap();
    Outcome::of(&world, 1.0)
}

#[test]
fn the_same_seed_is_the_same_world() {
    // Debug and release alike: a change of these is a change of decisions, or of what is drawn from a seed.
    let known = [("hot-spot", 1, "bfebac523d35c337"), ("worker-churn", 3, "a383bdf51ec8a53a")];
    for (name, seed, digest) in known {
        let mut scenario = Scenario::builtin(name).unwrap();
        scenario.set_workers(10);
        let (first, second) = (play(&scenario, seed), play(&scenario, seed));
        assert_eq!(first, second, "{name}");
        assert_ne!(first.digest, play(&scenario, seed + 1).digest, "{name}");
        assert_eq!(first.digest, digest, "{name}");
    }
}

#[test]
fn every_builtin_loses_nothing() {
    for builtin in BUILTINS.iter().filter(|builtin| !["granularity", "queueing"].contains(&builtin.name)) {
        let scenario = Scenario::builtin(builtin.name).unwrap();
        let outcome = play(&scenario, 1);
        assert_eq!(outcome.tasks.lost, 0, "{}", builtin.name);
        assert_eq!(outcome.tasks.failed > 0, scenario.workload.fails > 0.0, "{}", builtin.name);
        assert!(outcome.tasks.submitted > 0 && outcome.efficiency <= 1.0, "{}: {outcome:?}", builtin.name);
    }
}

#[test]
fn pushed_to_a_tenth_of_the_workers_everybody_is_busy() {
    for (workers, latency, least) in [(10, "1ms", 0.97), (50, "1ms", 0.97), (100, "1ms", 0.97), (100, "20ms", 0.95)] {
        let mut scenario = Scenario::builtin("scaling").unwrap();
        scenario.set_workers(workers);
        scenario.set("network.latency", latency).unwrap();
        let outcome = play(&scenario, 1);
        assert!(outcome.efficiency >= least, "{workers} workers, {latency}: {}", outcome.efficiency);
        // Where the way is long a thief takes much at once and is refused more often in between.
        assert!(
            latency != "1ms" || outcome.steals.successes * 2 >= outcome.steals.attempts,
            "{workers}, {latency}: {:?}",
            outcome.steals
        );
    }
}

/// Two workers read 200 bytes each for tasks of a second, over links of 100 bytes a second.
#[test]
fn transfers_have_their_links_for_themselves_or_share_them() {
    let base =
        "cluster: [{ count: 2, slots: 1 }]\nworkload: { tasks: 2, duration: constant, typical: 1s, input: 200 }\n";
    for (network, seconds) in [
        ("bandwidth: 100, coordinator_bandwidth: 150", [3.0, 3.0]),
        ("bandwidth: 100, coordinator_bandwidth: 50", [5.0, 5.0]),
        // Both get 50 of 100 bytes a second.
        ("bandwidth: 100, coordinator_bandwidth: 100, sharing: max_min", [5.0, 5.0]),
        // Neither needs more than its own link.
        ("bandwidth: 100, coordinator_bandwidth: 200, sharing: max_min", [3.0, 3.0]),
        ("bandwidth: 100, sharing: max_min", [3.0, 3.0]),
    ] {
        let scenario = Scenario::from_yaml(&format!("{base}network: {{ {network} }}\n"), "x").unwrap();
        let (setting, workload) = scenario.make(1);
        let mut world = World::new(setting, workload).unwrap();
        world.run(Time::NEVER).unwrap();
        let took = world.fates().iter().map(|fate| fate.ended.since(fate.begun).as_secs_f64());
        for (took, expected) in took.zip(seconds) {
            assert!((took - expected).abs() < 0.01, "{network}: {took} instead of {expected}");
        }
    }
    for wrong in ["network: { sharing: max_min }", "network: { latency: 1ms }", "network: { bandwidth: -1 }"] {
        assert!(Scenario::from_yaml(&format!("{base}{wrong}\n"), "x").is_err(), "{wrong}");
    }
}

/// How long random worlds are played at the most, however many were asked for. Far more than it takes on an idle machine.
const BOX: Duration = Duration::from_secs(300);

/// Random clusters, workloads and faults on two threads. `FILCH_FUZZ` says how many seeds.
#[test]
fn nothing_is_lost_and_nothing_counts_twice_whatever_happens() {
    let seeds = std::env::var("FILCH_FUZZ").ok().and_then(|text| text.parse().ok()).unwrap_or(2000u64);
    let (start, next) = (Instant::now(), AtomicU64::new(1));
    let play = || {
        let mut sum = (0, Counts::default());
        while start.elapsed() < BOX {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed > seeds {
                break;
            }
            match fuzz::try_seed(seed) {
                Verdict::Sound { counts } => sum = (sum.0 + 1, sum.1.and(counts)),
                Verdict::Broken { what, smallest } => panic!("seed {seed}: {what}\n{smallest}"),
            }
        }
        sum
    };
    let (first, second) = thread::scope(|scope| {
        let other = scope.spawn(play);
        (play(), other.join().unwrap())
    });
    let (played, Counts { deaths, moved, takeovers, runs, submitted, .. }) =
        (first.0 + second.0, first.1.and(second.1));
    eprintln!("{played} of {seeds} seeds hold, in {:.0?}", start.elapsed());
    let reruns = runs.saturating_sub(submitted);
    assert!(played >= seeds.min(300), "only {played} seeds within {BOX:?}");
    assert!(
        deaths > played / 2 && moved > played && reruns > played / 2 && takeovers > played / 2,
        "too calm: {deaths} {moved} {reruns} {takeovers}"
    );
}

fn scenario(text: &str) -> Scenario {
    Scenario::from_yaml(text, "test").unwrap()
}

#[test]
fn wide_tasks_are_not_passed_round_by_thieves_that_cannot_begin_them() {
    let wide = scenario(
        "cluster: [{ count: 4, cores: 8 }]\n\
         workload: { tasks: 400, duration: log_normal, typical: 2s, wide: 0.5, cpus: 8, pushed_to: 0.25 }\n",
    );
    for seed in 1..=5 {
        let outcome = play(&wide, seed);
        assert_eq!(outcome.tasks.completed, 400);
        assert!(outcome.steals.moved <= 600, "seed {seed}: 400 tasks changed hands {} times", outcome.steals.moved);
    }
}

#[test]
fn answers_that_take_longer_than_workers_wait_for_them_cost_time_and_no_tasks() {
    for latency in ["500ms", "1s", "1300ms", "1500ms"] {
        let mut far = scenario(
            "cluster: [{ count: 2 }]\n\
             workload: { tasks: 4, duration: constant, typical: 2s }\n\
             config: { limits: { lease: 4s } }\n",
        );
        far.set("network.latency", latency).unwrap();
        let outcome = play(&far, 1);
        assert_eq!(outcome.tasks.completed, 4, "{latency}");
        assert!(outcome.makespan_s < 30.0, "{latency}: {} s", outcome.makespan_s);
    }
    for name in ["hot-spot", "basic", "uniform", "spawning"] {
        let mut far = Scenario::builtin(name).unwrap();
        far.set("network.latency", "5s").unwrap();
        let outcome = play(&far, 1);
        assert_eq!(outcome.tasks.completed, outcome.tasks.submitted, "{name}");
    }
}

#[test]
fn thieves_that_are_often_refused_change_whom_they_ask() {
    let adaptive = Scenario::builtin("adaptive-victims").unwrap();
    let mut fixed = adaptive.clone();
    fixed.override_setting("stealing", "strategy", "power_of_two").unwrap();
    // What is asked first is the same; so somebody must have judged otherwise since.
    assert_ne!(play(&adaptive, 1).digest, play(&fixed, 1).digest);
}

#[test]
fn a_worker_that_died_spawns_nothing_and_the_next_attempt_spawns_the_rest_once() {
    let crash = scenario(
        "cluster: [{ count: 1, slots: 1 }]\n\
         workload: { tasks: 1, duration: constant, typical: 10s, children: 8, depth: 1, child_share: 0.1 }\n\
         events: [{ at: 4s, what: crash, span: 60s }]\n",
    );
    let (died, back) = (Time(4_000_000_000), Time(64_000_000_000));
    for seed in 1..=3 {
        let (setting, workload) = crash.make(seed);
        let mut world = World::new(setting, workload).unwrap();
        world.run(Time::NEVER).unwrap();
        let arrivals: Vec<Time> = world.fates()[1..].iter().map(|fate| fate.arrived).collect();
        let (before, after) = (
            arrivals.iter().filter(|at| **at <= died).count(),
            arrivals.iter().filter(|at| **at > back && **at < Time::NEVER).count(),
        );
        assert!(before > 0 && after > 0 && before + after == 8, "seed {seed}: {arrivals:?}");
        assert_eq!((world.counts().submitted, world.counts().refused), (9, 0), "seed {seed}");
        assert!(world.fates().iter().all(|fate| fate.status == Some(Status::Completed)), "seed {seed}");
    }
}

#[test]
fn an_attempt_that_is_stopped_spawns_nothing_more() {
    let short = scenario(
        "cluster: [{ count: 2 }]\n\
         workload: { tasks: 1, duration: constant, typical: 10s, children: 8, depth: 2, child_share: 0.1, timeout: 4s }\n",
    );
    let (setting, workload) = short.make(1);
    let mut world = World::new(setting, workload).unwrap();
    world.run(Time::NEVER).unwrap();
    assert!(world.is_done(), "{:?}", world.stuck());
    assert_eq!(world.fates()[0].status, Some(Status::Failed));
    let (mut spawned, mut missing) = (0, 0);
    for (index, task) in world.workload().tasks.iter().enumerate().skip(1) {
        let there = world.fates()[index].arrived < Time::NEVER;
        let expected = match task.spawned_by {
            0 => task.at < Time(4_000_000_000),
            spawner => world.fates()[spawner as usize].arrived < Time::NEVER,
        };
        assert_eq!(there, expected, "T{index}, after {}", task.at);
        spawned += u32::from(there);
        missing += u32::from(!there);
    }
    assert!(spawned > 0 && missing > 0, "{spawned} {missing}");
}

#[test]
fn a_lease_that_a_round_trip_leaves_no_time_for_is_refused_wherever_it_is_said() {
    let far = |latency: &str, lease: &str| {
        format!(
            "cluster: [{{ count: 4 }}]\nnetwork: {{ latency: {latency} }}\n\
             workload: {{ tasks: 40, duration: constant, typical: 5s, exclusive: 0.5 }}\n\
             config: {{ limits: {{ lease: {lease} }} }}\n"
        )
    };
    // A beat goes out every second, its answer comes two seconds later, and a worker stops three seconds after a beat.
    let said = Scenario::from_yaml(&far("1s", "4s"), "far.yaml").unwrap_err().to_string();
    assert!(said.contains("far.yaml:2:21") && said.contains("2s is too long for a lease of 4s"), "{said}");
    assert!(said.contains("above 4s") && said.contains("config.limits.lease"), "{said}");
    // Just below, it comes to an end.
    let outcome = play(&scenario(&far("990ms", "4s")), 1);
    assert_eq!(outcome.tasks.completed, 40);
    for (path, value) in [("network.latency", "1s"), ("config.limits.lease", "1900ms")] {
        let mut near = scenario(&far("500ms", "4s"));
        let refusal = near.set(path, value).unwrap_err();
        assert!(refusal.message.contains("is too long for a lease of"), "{path}: {refusal:?}");
        assert!(refusal.help.is_some_and(|help| help.contains("config.limits.lease")), "{path}");
        // What was refused has changed nothing.
        assert_eq!(near.network.latency, Span::from_millis(500));
        assert_eq!(near.config.limits.lease, Span::from_secs(4));
    }
    let mut takeover = Scenario::builtin("takeover").unwrap();
    assert!(takeover.set("network.latency", "1s").is_err());
}

#[test]
fn settings_of_the_machines_are_set_by_path() {
    let mut scenario = Scenario::builtin("takeover").unwrap();
    let before = scenario.config.clone();
    for (path, value) in [("config.stealing.take", "one"), ("config.limits.lease", "7s")] {
        scenario.set(path, value).unwrap();
    }
    assert_eq!(scenario.config.stealing.take, filch_core::config::Take::One);
    assert_eq!(scenario.config.limits.lease, Span::from_secs(7));
    // Nothing else has changed, and what was set stays when something else is.
    scenario.set("network.latency", "3ms").unwrap();
    let mut expected = before;
    expected.stealing.take = filch_core::config::Take::One;
    expected.limits.lease = Span::from_secs(7);
    assert_eq!(scenario.config, expected);
    for (path, value, part) in [
        ("config.stealing.tak", "one", "did you mean `config.stealing.take`?"),
        ("config.stealing.take", "most", "half"),
        ("config.limits.lease", "0s", ""),
        ("config.profile", "low_latency", "before"),
        ("config.seed", "3", "seed"),
        ("config", "3", "no single value"),
    ] {
        let refusal = scenario.set(path, value).unwrap_err();
        let said = format!("{} {}", refusal.message, refusal.help.unwrap_or_default());
        assert!(said.contains(part), "{path}={value}: {said}");
    }
    assert_eq!(scenario.config, expected);
}

#[test]
fn a_peer_that_is_dead_refuses_and_one_that_is_cut_off_is_silent() {
    let base = "cluster: [{ count: 8, slots: 1 }]\nnetwork: { latency: 1ms }\n\
         workload: { tasks: 400, duration: log_normal, typical: 500ms, pushed_to: 0.5 }\n\
         config: { stealing: { take: one } }\nevents:\n";
    let incident = |what: &str| format!("{base}  - {{ at: 5s, what: {what}, worker: 0, count: 3, span: 5s }}\n");
    let crash = play(&scenario(&incident("crash")), 1);
    assert!(crash.steals.network_errors > 0, "{:?}", crash.steals);
    for what in ["partition", "mute", "deafen"] {
        let cut = play(&scenario(&incident(what)), 1);
        assert!(cut.steals.network_errors == 0 && cut.steals.timeouts > 0, "{what}: {:?}", cut.steals);
        assert_eq!(cut.tasks.completed, 400, "{what}");
    }
}

#[test]
fn tasks_are_pinned_cancelled_and_stopped_as_the_workload_says() {
    let wishes = scenario(
        "cluster: [{ count: 4, slots: 2 }]\n\
         workload: { tasks: 200, duration: exponential, typical: 1s, pinned: 0.3, cancelled: 0.3, timeout: 2s }\n",
    );
    let (mut setting, workload) = wishes.make(1);
    setting.watch = true;
    let mut world = World::new(setting, workload).unwrap();
    world.run(Time::NEVER).unwrap();
    let of = |status: Status| world.fates().iter().filter(|fate| fate.status == Some(status)).count();
    let asked = world.workload().cancels.len();
    let (cancelled, failed, completed) = (of(Status::Cancelled), of(Status::Failed), of(Status::Completed));
    assert!(cancelled > 20 && cancelled <= asked, "{cancelled} of {asked}");
    assert!(failed > 5 && completed > 50 && cancelled + failed + completed == 200, "{failed} {completed}");
    for (index, fate) in world.fates().iter().enumerate() {
        let shape = world.workload().shape_of(index as u32);
        assert!(!shape.pinned || fate.runs == 0 || fate.node as usize == index % 4, "T{index} ran at {}", fate.node);
    }
}
