//! Why a task waits or was placed where it is, in words a stranger understands.

use std::time::Duration;

use filch::config::POLICIES;
use filch::{Balancer, Config, ManualClock, PolicySpec, Status, Task, Worker, WorkerUpdate};

use crate::{push_bound, status, still, take, with_workers};

const SECOND: Duration = Duration::from_secs(1);

fn text(balancer: &Balancer, task: &str) -> String {
    balancer.explain(task).unwrap().to_string()
}

#[track_caller]
fn says(balancer: &Balancer, task: &str, part: &str) {
    let text = text(balancer, task);
    assert!(text.contains(part), "{part} is missing:\n{text}");
}

#[test]
fn taken_slots_are_counted() {
    let (balancer, _) = still(Config::default());
    balancer.register_worker(Worker::new("w").slots(2)).unwrap();
    balancer.submit_many([Task::named("a"), Task::named("b"), Task::named("c"), Task::named("d")]).unwrap();
    let _held = (take(&balancer, "w"), take(&balancer, "w"));
    says(&balancer, "c", "w: 2 of its 2 slots are taken");
    says(&balancer, "d", "1 task comes first (level 3)");
    let other = with_workers(&["solo"]);
    other.submit_many([Task::named("a"), Task::named("b")]).unwrap();
    let _held = take(&other, "solo");
    says(&other, "b", "solo: 1 of its 1 slot is taken");
}

#[test]
fn a_worker_that_is_set_aside_is_said_to_be_and_until_when() {
    let mut config = Config::default();
    config.limits.quarantine_after = 3;
    let (balancer, clock) = still(config);
    for id in ["bad", "other"] {
        balancer.register_worker(Worker::new(id)).unwrap();
    }
    let fail_three = || {
        for _ in 0..3 {
            balancer.submit(Task::new()).unwrap();
            take(&balancer, "bad").fail("broken").unwrap();
        }
    };
    balancer.submit(Task::new()).unwrap();
    take(&balancer, "other").succeed(()).unwrap();
    fail_three();
    balancer.submit(Task::named("t").pin("bad")).unwrap();
    clock.advance(SECOND);
    balancer.tick();
    says(&balancer, "t", "bad: it is set aside for 9.0 s more, after 3 failures in a row\n");
    balancer.cancel("t").unwrap();
    clock.advance(10 * SECOND);
    balancer.tick();
    fail_three();
    balancer.submit(Task::named("t").pin("bad")).unwrap();
    says(&balancer, "t", "bad: it is set aside for 20.0 s more, after 3 failures in a row, and that 2 times");
}

#[test]
fn a_task_that_failed_with_its_parent_names_the_parent() {
    let balancer = with_workers(&["w"]);
    balancer.submit(Task::named("parent")).unwrap();
    balancer.submit(Task::named("child").after(["parent"])).unwrap();
    balancer.submit(Task::named("grandchild").after(["child"])).unwrap();
    take(&balancer, "w").fail_permanently("broken").unwrap();
    balancer.submit(Task::named("late").after(["parent"])).unwrap();
    for (task, parent) in [("child", "parent"), ("grandchild", "child"), ("late", "parent")] {
        assert_eq!(status(&balancer, task), Status::Failed);
        says(&balancer, task, &format!("depends on {parent}, which is failed"));
    }
    let json = serde_json::to_value(balancer.explain("child").unwrap()).unwrap();
    assert_eq!(json["failed_parents"][0]["task"], "parent");
}

#[test]
fn a_deadline_that_cannot_be_met_is_mentioned() {
    let (balancer, clock) = still(Config::default());
    let hurry = Task::named("hurry").estimate(10 * SECOND).deadline(3 * SECOND);
    balancer.submit(hurry).unwrap();
    balancer.submit(Task::named("calm").estimate(10 * SECOND).deadline(30 * SECOND)).unwrap();
    says(&balancer, "hurry", "cannot meet its deadline in 3.0 s: it could end in 10.0 s at the earliest");
    assert!(balancer.explain("calm").unwrap().hopeless.is_none());
    clock.advance(25 * SECOND);
    balancer.tick();
    says(&balancer, "calm", "cannot meet its deadline in 5.0 s");
}

#[test]
fn a_pause_says_what_it_is_for() {
    let (balancer, clock) = still(Config::default());
    balancer.register_worker(Worker::new("w")).unwrap();
    balancer.submit(Task::named("hot")).unwrap();
    for _ in 0..4 {
        drop(take(&balancer, "w"));
    }
    says(&balancer, "hot", "given back 4 times; handed out again in ");
    balancer.cancel("hot").unwrap();
    let once = Task::named("once").exclusive(true).timeout(SECOND).retries(2).backoff(SECOND, SECOND);
    balancer.submit(once).unwrap();
    let held = take(&balancer, "w");
    held.start().unwrap();
    clock.advance(SECOND);
    balancer.tick();
    says(&balancer, "once", "retry 1 of 2 in 15.0 s");
    says(&balancer, "once", "exclusive, and its last holder may still be at it: waits 15.0 s for it");
    drop(held);
    balancer.cancel("once").unwrap();
    balancer.submit(Task::named("quiet").exclusive(true)).unwrap();
    let _held = take(&balancer, "w");
    balancer.worker_silent("w").unwrap();
    says(&balancer, "quiet", "its last holder may still be at it: waits 15.0 s for it");
}

#[test]
fn the_terms_of_every_score_that_is_a_sum_add_up_to_it() {
    let composite = "{ type: composite, algorithms: [{type: best_fit, weight: 2}, {type: load_balancing, weight: 1}] }";
    for entry in POLICIES {
        let name = if entry.name == "composite" { composite } else { entry.name };
        let text = format!("load_balancing: {{}}\nscheduling: {{ policy: {name} }}");
        let config = Config::from_yaml(&text, "inline").unwrap().config;
        let balancer: Balancer = Balancer::builder().config(config).clock(ManualClock::default()).build().unwrap();
        for id in ["a", "b", "c"] {
            balancer.register_worker(Worker::new(id).slots(2).resource("gpus", 1.0)).unwrap();
        }
        for index in 0..4 {
            let task = Task::named(format!("t{index}")).resource("gpus", 0.25).estimate(SECOND).deadline(SECOND / 2);
            balancer.submit(task).unwrap();
        }
        let choice = balancer.explain("t1").unwrap().decision.unwrap();
        assert_eq!(choice.policy, entry.name);
        let scored = choice.candidates.iter().filter_map(|one| Some((one.score?, &one.terms)));
        for (score, terms) in scored.filter(|_| !["performance_based", "adaptive"].contains(&entry.name)) {
            let sum: f64 = terms.iter().map(|term| term.1).sum();
            assert!((sum - score).abs() < 1e-6 * score.abs().max(1.0), "{}: {score} is not {terms:?}", entry.name);
            assert!(!terms.is_empty(), "{}", entry.name);
        }
    }
}

#[test]
fn an_explanation_shows_the_equation_of_each_score() {
    let mut config = push_bound();
    config.scheduling.policy = PolicySpec::Name("best_fit".to_owned());
    let (balancer, _) = still(config);
    for id in ["a", "b"] {
        balancer.register_worker(Worker::new(id)).unwrap();
    }
    balancer.submit(Task::named("first").pin("a")).unwrap();
    balancer.submit(Task::named("t")).unwrap();
    says(&balancer, "t", "a: 1.2 = skill_match 1 - queue 0.1 + history 0.3");
    says(&balancer, "t", "b: 1.3 = skill_match 1 + queue 0 + history 0.3");
    says(&balancer, "t", "in the queue of b (up), 0 tasks before it");
}

#[test]
fn a_worker_that_has_left_is_told_by_its_name_and_never_taken_for_another() {
    let (balancer, _) = still(Config::default());
    let gone = balancer.register_worker(Worker::new("alice")).unwrap();
    // The number of the first looks like the name of the second.
    assert_eq!(gone.to_string(), "w0");
    balancer.register_worker(Worker::new("w0")).unwrap();
    balancer.submit(Task::named("t").retries(3).backoff(Duration::ZERO, Duration::ZERO)).unwrap();
    take(&balancer, "alice").fail("broken").unwrap();
    balancer.tick();
    let held = take(&balancer, "alice");
    balancer.unregister_and_requeue("alice").unwrap();
    drop(held);
    let explanation = balancer.explain("t").unwrap();
    assert!(!explanation.failures.is_empty());
    assert!(explanation.failures.iter().all(|failure| failure.worker == "alice"), "{explanation}");
    assert_eq!(explanation.decision.as_ref().unwrap().worker, "alice", "{explanation}");
    assert_eq!(balancer.next(gone).unwrap_err().to_string(), "no worker `alice` is registered");
    // A worker that nobody remembers is not called by a number that could be a name either.
    for at in 0..1100 {
        balancer.register_worker(Worker::new(format!("passing{at}"))).unwrap();
        balancer.unregister_worker(format!("passing{at}").as_str()).unwrap();
    }
    assert_eq!(balancer.explain("t").unwrap().failures[0].worker, "a worker that has left (w0)");
}

#[test]
fn a_task_without_a_name_is_not_taken_for_one_whose_name_looks_like_its_id() {
    let (balancer, _) = still(Config::default());
    let unnamed = balancer.submit(Task::new()).unwrap();
    balancer.submit(Task::named("a").after([unnamed])).unwrap();
    says(&balancer, "a", "depends on t0, which is queued");
    balancer.submit(Task::named("t0")).unwrap();
    says(&balancer, "a", "depends on t0 (by its id), which is queued");
    assert!(text(&balancer, "t0").starts_with("t0 is queued"));
}

#[test]
fn how_long_a_task_has_waited_is_told_as_of_now() {
    let (balancer, clock) = still(Config::default());
    balancer.submit(Task::named("t")).unwrap();
    clock.advance(5 * SECOND);
    assert_eq!(balancer.explain("t").unwrap().waiting_s, 5.0);
    says(&balancer, "t", "t is queued (waiting for 5.0 s)");
}

#[test]
fn what_is_named_twice_is_listed_once() {
    let (balancer, _) = still(Config::default());
    balancer.register_worker(Worker::new("w").capability("a").capabilities(["b", "a"]).capability("b")).unwrap();
    assert_eq!(balancer.workers()[0].capabilities, ["a", "b"]);
    balancer.update_worker("w", WorkerUpdate::new().capabilities(["c", "c"])).unwrap();
    assert_eq!(balancer.workers()[0].capabilities, ["c"]);
    balancer.submit(Task::named("first")).unwrap();
    balancer.submit(Task::named("second").after(["first", "first"])).unwrap();
    assert_eq!(balancer.explain("second").unwrap().reasons.len(), 1);
    balancer.submit_graph([Task::named("x"), Task::named("y").after(["x", "x"])]).unwrap();
    assert_eq!(balancer.explain("y").unwrap().reasons.len(), 1);
    balancer.check().unwrap();
    for _ in 0..4 {
        take(&balancer, "w").succeed(()).unwrap();
    }
    assert_eq!(balancer.metrics().completed, 4);
}

#[test]
fn a_count_that_ended_early_says_so() {
    let fresh = |config| {
        let (balancer, _) = still(config);
        balancer.register_worker(Worker::new("w")).unwrap();
        balancer
    };
    let balancer = fresh(Config::default());
    // One by one: those of another job share with it, and are not ahead of it.
    for _ in 0..1200 {
        balancer.submit(Task::new()).unwrap();
    }
    balancer.submit(Task::named("far")).unwrap();
    says(&balancer, "far", "  1000 or more tasks come first");

    let balancer = fresh(Config::default());
    balancer.submit_many((0..1200).map(|_| Task::new().key("k"))).unwrap();
    balancer.submit(Task::named("far").key("k")).unwrap();
    let _running = take(&balancer, "w");
    says(&balancer, "far", "key `k`: 1 of 1 run with it, 1000 or more come first");

    let balancer = fresh(push_bound());
    balancer.submit_many((0..999).map(|_| Task::new())).unwrap();
    for (task, ahead) in [("near", "999 tasks"), ("far", "1000 or more tasks"), ("farther", "1000 or more tasks")] {
        balancer.submit(Task::named(task)).unwrap();
        says(&balancer, task, &format!(", {ahead} before it"));
    }
}
