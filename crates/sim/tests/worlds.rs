//! What whole worlds must show: the same seed is the same world, nothing is lost whatever happens, and stealing keeps workers
//! busy.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test, which may read how long it should go on")]

use filch_core::Time;
use filch_sim::fuzz::{self, Verdict};
use filch_sim::scenario::BUILTINS;
use filch_sim::{Outcome, Scenario, World};

fn play(scenario: &Scenario, seed: u64) -> Outcome {
    let (setting, workload) = scenario.make(seed);
    let mut world = World::new(setting, workload).unwrap();
    world.run(Time::NEVER).unwrap();
    Outcome::of(&world, 1.0)
}

#[test]
fn the_same_seed_is_the_same_world() {
    // Debug and release alike: a change of these is a change of decisions, or of what is drawn from a seed.
    let known = [("hot-spot", 1, "d7f14440d530c596"), ("worker-churn", 3, "f38b316d663755e2")];
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

/// Random clusters, workloads and faults. `FILCH_FUZZ` says how many seeds.
#[test]
fn nothing_is_lost_and_nothing_counts_twice_whatever_happens() {
    let seeds = std::env::var("FILCH_FUZZ").ok().and_then(|text| text.parse().ok()).unwrap_or(300u64);
    let (mut deaths, mut moved, mut reruns) = (0, 0, 0);
    for seed in 1..=seeds {
        match fuzz::try_seed(seed) {
            Verdict::Sound { counts } => {
                deaths += counts.deaths;
                moved += counts.moved;
                reruns += counts.runs.saturating_sub(counts.submitted);
            }
            Verdict::Broken { what, smallest } => panic!("seed {seed}: {what}\n{smallest}"),
        }
    }
    assert!(deaths > seeds / 2 && moved > seeds && reruns > seeds / 2, "too calm: {deaths} {moved} {reruns}");
}
