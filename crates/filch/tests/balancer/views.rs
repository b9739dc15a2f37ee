//! What a user is shown: by name, as text and as JSON.

use std::time::Duration;

use filch::policy::{Policy, TaskView, Terms, WorkerView};
use filch::{Balancer, Config, Status, Task, Worker};

use crate::{push_bound, status, still, take, with_workers};

#[test]
fn metrics_have_the_names_users_know_and_become_json() {
    let balancer = with_workers(&["w"]);
    balancer.submit(Task::new()).unwrap();
    let json = serde_json::to_value(balancer.metrics()).unwrap();
    let names = [
        "total_steals",
        "successful_steals",
        "failed_steals",
        "success_rate",
        "tasks_migrated",
        "rebalance_cycles",
        "avg_task_wait_time",
        "agent_count",
        "total_queued",
        "busy_agents",
        "idle_agents",
    ];
    for name in names {
        assert!(json[name].is_number(), "{name}");
    }
    assert_eq!((json["agent_count"].as_u64(), json["total_queued"].as_u64()), (Some(1), Some(1)));
    let workers = serde_json::to_value(balancer.workers()).unwrap();
    assert_eq!((&workers[0]["id"], &workers[0]["state"]), (&"w".into(), &"up".into()));
}

#[test]
fn tasks_are_listed_until_they_are_settled() {
    let balancer = with_workers(&["w"]);
    balancer.submit(Task::named("a")).unwrap();
    balancer.submit(Task::named("b").after(["a"])).unwrap();
    let held = take(&balancer, "w");
    let tasks = balancer.tasks();
    assert_eq!(tasks.len(), 2);
    assert_eq!((tasks[0].name.as_deref(), tasks[0].status, tasks[0].attempt), (Some("a"), Status::Assigned, 1));
    assert_eq!((tasks[0].worker.as_deref(), tasks[1].status), (Some("w"), Status::Blocked));
    let json = serde_json::to_value(&tasks[1]).unwrap();
    assert_eq!((&json["name"], &json["status"]), (&"b".into(), &"blocked".into()));
    held.succeed(()).unwrap();
    take(&balancer, "w").succeed(()).unwrap();
    assert!(balancer.tasks().is_empty());
}

#[test]
fn explanations_name_every_reason() {
    let (balancer, _) = still(Config::default());
    balancer.register_worker(Worker::new("gpu").resource("gpus", 1.0).slots(2)).unwrap();
    balancer.submit(Task::named("first").resource("gpus", 1.0).key("k")).unwrap();
    balancer.submit(Task::named("second").resource("gpus", 0.5)).unwrap();
    balancer.submit(Task::named("third").key("k")).unwrap();
    balancer.submit(Task::named("fourth").after(["second"])).unwrap();
    let held = take(&balancer, "gpu");
    assert_eq!(held.name().as_deref(), Some("first"));
    let text = |name: &str| balancer.explain(name).unwrap().to_string();
    assert!(text("first").contains("first is assigned\n  given to gpu, which asked"), "{}", text("first"));
    assert!(text("second").contains("gpu: it has 0 gpus free, the task needs 0.5"), "{}", text("second"));
    assert!(text("third").contains("key `k`: 1 of 1 run with it, 0 come first"), "{}", text("third"));
    assert!(text("fourth").contains("depends on second, which is queued"), "{}", text("fourth"));
    let json = serde_json::to_value(balancer.explain("second").unwrap()).unwrap();
    assert_eq!(json["reasons"][0]["reason"], "no_room", "{json}");
    assert_eq!(json["reasons"][0]["candidates"][0]["worker"], "gpu");
}

#[test]
fn explanations_show_the_terms_that_decided() {
    let (balancer, _) = still(push_bound());
    for id in ["a", "b"] {
        balancer.register_worker(Worker::new(id)).unwrap();
    }
    balancer.submit(Task::named("t")).unwrap();
    let explanation = balancer.explain("t").unwrap();
    let choice = explanation.decision.as_ref().unwrap();
    assert_eq!((choice.worker.as_str(), choice.policy.as_str(), choice.candidates.len()), ("a", "best_fit", 2));
    assert!(!choice.candidates[0].terms.is_empty());
    let text = explanation.to_string();
    assert!(text.contains("in the queue of a (up), 0 tasks before it"), "{text}");
    assert!(text.contains("given to a by best_fit:\n    a: "), "{text}");
}

#[test]
fn settled_tasks_are_remembered_within_a_bound() {
    let mut config = Config::default();
    config.limits.settled_kept = 10;
    let (balancer, _) = still(config);
    balancer.register_worker(Worker::new("w")).unwrap();
    for index in 0..50 {
        balancer.submit(Task::named(format!("t{index}"))).unwrap();
        take(&balancer, "w").succeed(()).unwrap();
    }
    assert_eq!(status(&balancer, "t49"), Status::Completed);
    let known = (0..50).filter(|index| balancer.status(format!("t{index}")).is_ok()).count();
    assert!((10..=12).contains(&known), "{known}");
}

#[test]
fn settled_tasks_have_a_maximum_and_the_oldest_are_forgotten_first() {
    let builder = Balancer::builder().clock(filch::ManualClock::default()).settled_max(10);
    let balancer: Balancer = builder.build().unwrap();
    balancer.register_worker(Worker::new("w")).unwrap();
    let job = balancer.submit_many((0..50).map(|index| Task::named(format!("t{index}")))).unwrap();
    while let Some(assignment) = balancer.next("w").unwrap() {
        assignment.succeed(()).unwrap();
    }
    for (index, task) in job.tasks.iter().enumerate() {
        let (by_name, by_id) = (balancer.status(format!("t{index}")), balancer.status(*task));
        assert_eq!((by_name.is_ok(), by_id.is_ok()), (index >= 40, index >= 40), "{index}");
        assert_eq!(balancer.explain(*task).is_ok(), index >= 40);
    }
    let error = balancer.cancel("t3").unwrap_err();
    assert_eq!(error, filch::Error::UnknownTask("t3".to_owned()));
    balancer.submit(Task::named("t3")).unwrap();
}

#[test]
fn results_of_a_burst_are_there_up_to_the_maximum() {
    let builder = Balancer::builder().clock(filch::ManualClock::default());
    let balancer: Balancer<(), u32> = builder.build().unwrap();
    balancer.register_worker(Worker::new("w")).unwrap();
    let job = balancer.submit_many((0..50_000).map(|_| Task::new())).unwrap();
    for number in 0.. {
        match balancer.next("w").unwrap() {
            Some(assignment) => assignment.succeed(number).unwrap(),
            None => break,
        }
    }
    for task in &job.tasks {
        let status = balancer.status(*task).unwrap();
        assert!(status.status == Status::Completed && status.result.is_some());
        assert!(balancer.explain(*task).is_ok());
    }
}

#[test]
fn lists_are_made_in_portions_and_others_may_go_on_between_them() {
    let balancer = with_workers(&["w"]);
    let job = balancer.submit_many((0..2000).map(|_| Task::new())).unwrap();
    let mut listed: Vec<_> = balancer.iter_tasks().take(10).map(|task| task.id).collect();
    assert_eq!(listed.len(), 10);
    let mut tasks = balancer.iter_tasks();
    listed = tasks.by_ref().take(700).map(|task| task.id).collect();
    // While the list is under way: some end, some come.
    for task in &job.tasks[500..1500] {
        balancer.cancel(*task).unwrap();
    }
    balancer.submit_many((0..3000).map(|_| Task::new())).unwrap();
    listed.extend(tasks.map(|task| task.id));
    for task in job.tasks[..500].iter().chain(&job.tasks[1500..]) {
        assert_eq!(listed.iter().filter(|id| *id == task).count(), 1, "{task} was there all the while");
    }
    let all = listed.len();
    listed.sort_unstable();
    listed.dedup();
    assert_eq!(listed.len(), all, "nothing is listed twice");
    for index in 0..200 {
        balancer.register_worker(Worker::new(format!("w{index}"))).unwrap();
    }
    let mut workers = balancer.iter_workers();
    assert_eq!(workers.next().unwrap().id, "w");
    balancer.unregister_worker("w199").unwrap();
    assert_eq!(workers.count(), 199);
}

#[test]
fn samples_and_steals_are_whole_though_they_are_read_in_portions() {
    let (balancer, clock) = still(push_bound());
    for index in 0..100 {
        balancer.register_worker(Worker::new(format!("w{index}"))).unwrap();
    }
    for _ in 0..50 {
        clock.advance(Duration::from_secs(1));
        balancer.tick();
    }
    let samples = balancer.samples();
    assert_eq!(samples.len(), 50);
    assert!(samples.windows(2).all(|pair| pair[0].at_s < pair[1].at_s));
    assert_eq!(samples[0].queue_lengths.len(), 100);
    for index in 0..100 {
        for _ in 0..8 {
            balancer.submit(Task::new().pin(format!("w{index}"))).unwrap();
        }
        let _ = balancer.steal(format!("w{}", (index + 1) % 100)).unwrap();
    }
    let report = balancer.steal_report();
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["total"]["attempts"], report.total.attempts);
    assert_eq!(json["by_victim"].as_object().unwrap().len(), report.by_victim.len());
    assert!(json["total"]["success_rate"].is_number() && json["total"]["latency_avg_s"].is_number());
}

/// Prefers the worker with the longest wait, and panics for tasks of priority 5.
struct Moody;

impl Policy for Moody {
    fn name(&self) -> &str {
        "moody"
    }
    fn score(&self, task: &TaskView<'_>, worker: &WorkerView<'_>, terms: &mut Terms) -> Option<f64> {
        assert!(task.priority < 5, "a policy panics (as this test wants)");
        Some(terms.add("number", worker.id.index() as f64))
    }
}

#[test]
fn a_custom_policy_decides_and_its_panics_are_refusals() {
    let policy: Box<dyn Policy> = Box::new(Moody);
    let clock = filch::ManualClock::default();
    let balancer: Balancer = Balancer::builder().config(push_bound()).policy(policy).clock(clock).build().unwrap();
    for id in ["a", "b"] {
        balancer.register_worker(Worker::new(id)).unwrap();
    }
    balancer.submit(Task::named("t")).unwrap();
    assert_eq!(balancer.explain("t").unwrap().decision.unwrap().worker, "b");
    balancer.submit(Task::named("hard").priority(5)).unwrap();
    assert_eq!(status(&balancer, "hard"), Status::Queued, "nobody was good enough, so it waits centrally");
    assert_eq!(take(&balancer, "a").name().as_deref(), Some("hard"));
    balancer.set_policy(None, "round_robin").unwrap();
    balancer.check().unwrap();
    let policy: Box<dyn Policy> = Box::new(Moody);
    balancer.set_policy("moods", policy).unwrap();
    balancer.submit(Task::named("late").task_type("moods")).unwrap();
    assert_eq!(balancer.explain("late").unwrap().decision.unwrap().policy, "moody");
}

/// Panics at whatever it is asked about itself.
struct Shy;

impl Policy for Shy {
    fn name(&self) -> &str {
        panic!("a policy panics (as this test wants)")
    }
    fn score(&self, _: &TaskView<'_>, _: &WorkerView<'_>, terms: &mut Terms) -> Option<f64> {
        Some(terms.add("same", 1.0))
    }
    fn order(&self) -> filch::policy::Order {
        panic!("a policy panics (as this test wants)")
    }
    fn steals_above(&self) -> Option<u32> {
        panic!("a policy panics (as this test wants)")
    }
    fn alpha(&self) -> Option<f64> {
        panic!("a policy panics (as this test wants)")
    }
}

#[test]
fn a_policy_that_panics_when_asked_its_name_is_used_all_the_same() {
    let policy = || -> Box<dyn Policy> { Box::new(Shy) };
    let clock = filch::ManualClock::default();
    let balancer: Balancer = Balancer::builder().config(push_bound()).policy(policy()).clock(clock).build().unwrap();
    balancer.register_worker(Worker::new("a")).unwrap();
    balancer.submit(Task::named("t")).unwrap();
    assert_eq!(balancer.explain("t").unwrap().decision.unwrap().policy, "custom");
    balancer.set_policy("shy", policy()).unwrap();
    balancer.submit(Task::named("late").task_type("shy")).unwrap();
    take(&balancer, "a").succeed(()).unwrap();
    take(&balancer, "a").succeed(()).unwrap();
    balancer.check().unwrap();
}

#[test]
fn a_new_policy_is_an_event_and_fires_the_timers_that_are_due() {
    let (balancer, clock) = still(Config::default());
    balancer.register_worker(Worker::new("w")).unwrap();
    balancer.submit(Task::named("t").retries(1).backoff(Duration::from_secs(1), Duration::from_secs(1))).unwrap();
    take(&balancer, "w").fail("once").unwrap();
    clock.advance(Duration::from_secs(9));
    balancer.set_policy(None, "round_robin").unwrap();
    assert_eq!(status(&balancer, "t"), Status::Queued);
}

#[test]
fn policies_per_type_come_from_the_file_and_the_builder() {
    let text = "load_balancing: {}\nscheduling: { per_type: { heavy: fifo } }";
    let config = Config::from_yaml(text, "inline").unwrap().config;
    let clock = filch::ManualClock::default();
    let builder = Balancer::builder().config(config).clock(clock).policy_for_type("light", "round_robin");
    let balancer: Balancer = builder.build().unwrap();
    for id in ["a", "b"] {
        balancer.register_worker(Worker::new(id)).unwrap();
    }
    for (task_type, policy) in [("heavy", "fifo"), ("light", "round_robin"), ("other", "best_fit")] {
        balancer.submit(Task::named(task_type).task_type(task_type)).unwrap();
        assert_eq!(balancer.explain(task_type).unwrap().decision.unwrap().policy, policy);
    }
}

#[test]
fn estimates_can_come_from_elsewhere() {
    let tracker = filch::tracker::Tracker::new(filch::Span::from_secs(7));
    let clock = filch::ManualClock::default();
    let builder = Balancer::builder().config(push_bound()).clock(clock).estimator(Box::new(tracker));
    let balancer: Balancer = builder.build().unwrap();
    balancer.register_worker(Worker::new("w").speed(2.0)).unwrap();
    balancer.submit(Task::new()).unwrap();
    balancer.submit(Task::new().estimate(Duration::from_secs(1))).unwrap();
    assert_eq!(balancer.workers()[0].backlog_s, 4.0);
}

#[test]
fn whatever_is_not_settled_is_counted_somewhere() {
    let balancer = with_workers(&["w"]);
    let sums = || {
        let figures = balancer.metrics();
        let settled = figures.completed + figures.failed + figures.cancelled + figures.skipped + figures.returned;
        let here = figures.total_queued + figures.running + figures.blocked + figures.unschedulable + figures.retrying;
        assert_eq!(figures.submitted - settled, here, "{figures:?}");
        balancer.check().unwrap();
        (figures.total_queued, figures.running, figures.blocked, figures.unschedulable, figures.retrying)
    };
    assert!(balancer.health().is_good());
    assert_eq!(balancer.health().to_string(), "nothing looks wrong");
    balancer.submit(Task::named("a").retries(3)).unwrap();
    balancer.submit(Task::named("b").after(["a"])).unwrap();
    balancer.submit(Task::named("c").requires("cuda")).unwrap();
    let array = balancer.submit_array(Task::new().requires("rocm"), 5).unwrap();
    assert_eq!(sums(), (1, 0, 1, 6, 0));
    let concern = "no registered worker can run 6 of the tasks: register one that can, or correct them";
    assert_eq!(balancer.health().to_string(), concern);
    let json = serde_json::to_value(balancer.health()).unwrap();
    assert_eq!(json["concerns"][0], serde_json::json!({ "concern": "unschedulable", "tasks": 6 }));
    let held = take(&balancer, "w");
    assert_eq!(sums(), (0, 1, 1, 6, 0));
    held.fail("broken").unwrap();
    assert_eq!(sums(), (0, 0, 1, 6, 1));
    balancer.cancel_element(array, 3).unwrap();
    assert_eq!(sums(), (0, 0, 1, 5, 1));
    balancer.register_worker(Worker::new("amd").capability("rocm")).unwrap();
    assert_eq!(sums(), (4, 0, 1, 1, 1));
    balancer.cancel("a").unwrap();
    balancer.cancel("c").unwrap();
    assert_eq!(sums(), (4, 0, 0, 0, 0));
}
