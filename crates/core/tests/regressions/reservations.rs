//! Bugs around reservations in time; most were found by the naive model.

use filch_core::config::Bind;
use filch_core::{
    Action, Config, Demand, Event, KeyId, Priority, Reason, ResourceId, Span, Status, TaskId, TaskSpec, Time, Vector,
    WorkerId, WorkerSpec,
};

use crate::{Bench, payloads, units, wide};

/// Nothing happens by itself.
fn without_samples() -> Config {
    let mut config = Config::default();
    config.limits.sample_interval = Span::ZERO;
    config.scheduling.aging_interval = Span::ZERO;
    config
}

/// A worker with so many cores and slots.
fn with_cores(bench: &mut Bench, cores: f64, slots: u32) -> WorkerId {
    let resources = Vector::new(units(ResourceId::CPUS, cores));
    bench.register(WorkerSpec { resources, slots, ..WorkerSpec::default() })
}

fn pull(bench: &mut Bench, worker: WorkerId) {
    bench.step(Event::Pull { worker, wait: false });
}

/// A task that asks for so many cores for so many seconds.
fn cores(payload: u64, amount: f64, secs: u64) -> TaskSpec {
    wide(payload, ResourceId::CPUS, amount, secs)
}

/// The worker that is kept for a task, and from when.
fn kept_for(bench: &Bench, task: TaskId) -> Option<(WorkerId, Time)> {
    let reasons = bench.scheduler.explain(task).expect("the task is known").reasons;
    reasons.iter().find_map(|reason| match *reason {
        Reason::Reserved { worker, from } => Some((worker, from)),
        _ => None,
    })
}

#[test]
fn a_wide_task_in_a_workers_own_queue_does_not_hold_back_what_comes_before_it() {
    let mut bench = Bench::new(&Config::default());
    let worker = with_cores(&mut bench, 4.0, 4);
    bench.submit(cores(1, 1.0, 10));
    pull(&mut bench, worker);
    let pinned = bench.submit(TaskSpec { pin: Some(worker), priority: Priority::from_f64(1.0), ..cores(2, 4.0, 10) });
    bench.submit(TaskSpec { priority: Priority::from_f64(5.0), ..cores(3, 1.0, 1000) });
    pull(&mut bench, worker);
    assert_eq!(payloads(&bench), [3]);
    assert_eq!(kept_for(&bench, pinned), None, "the other one came first");
    pull(&mut bench, worker);
    assert_eq!(kept_for(&bench, pinned), Some((worker, Time::ZERO + Span::from_secs(1000))));
}

#[test]
fn what_waits_in_a_workers_own_queue_keeps_out_of_the_way_of_a_wide_task_before_it() {
    let mut bench = Bench::new(&Config::default());
    let worker = with_cores(&mut bench, 4.0, 4);
    bench.submit(cores(1, 1.0, 10));
    pull(&mut bench, worker);
    bench.submit(TaskSpec { pin: Some(worker), ..cores(2, 1.0, 1000) });
    let first = bench.submit(TaskSpec { priority: Priority::from_f64(5.0), ..cores(3, 4.0, 10) });
    pull(&mut bench, worker);
    assert_eq!(payloads(&bench), [0; 0]);
    assert_eq!(kept_for(&bench, first), Some((worker, Time::ZERO + Span::from_secs(10))));
}

#[test]
fn a_wide_task_is_not_reserved_for_before_what_comes_before_it_in_the_workers_own_queue() {
    let mut bench = Bench::new(&Config::default());
    let worker = with_cores(&mut bench, 4.0, 4);
    bench.submit(cores(1, 1.0, 10));
    pull(&mut bench, worker);
    bench.submit(TaskSpec { pin: Some(worker), ..cores(2, 1.0, 1000) });
    let later = bench.submit(cores(3, 4.0, 10));
    pull(&mut bench, worker);
    assert_eq!(payloads(&bench), [2]);
    assert_eq!(kept_for(&bench, later), None);
}

#[test]
fn what_has_run_too_long_is_not_taken_for_ended_when_others_are_let_past() {
    let mut bench = Bench::new(&Config::default());
    let worker = with_cores(&mut bench, 4.0, 4);
    bench.submit(cores(1, 1.0, 10));
    pull(&mut bench, worker);
    bench.wait(Span::from_secs(100));
    // The first should have ended long ago and may need another 100 seconds; the second ends in one.
    bench.submit(cores(2, 1.0, 1));
    pull(&mut bench, worker);
    let third = bench.submit(cores(3, 3.0, 10));
    pull(&mut bench, worker);
    assert_eq!(kept_for(&bench, third), Some((worker, bench.now + Span::from_secs(1))));
    bench.submit(cores(4, 1.0, 60));
    pull(&mut bench, worker);
    assert_eq!(payloads(&bench), [0; 0], "beside the first and this one there would be no room for three cores");
}

#[test]
fn who_waits_for_what_runs_too_long_is_not_delayed_by_what_fits_beside_it() {
    let mut bench = Bench::new(&Config::default());
    let worker = with_cores(&mut bench, 4.0, 4);
    bench.submit(cores(1, 2.0, 10));
    pull(&mut bench, worker);
    bench.wait(Span::from_secs(100));
    let second = bench.submit(cores(2, 3.0, 10));
    pull(&mut bench, worker);
    assert_eq!(kept_for(&bench, second), Some((worker, bench.now + Span::from_secs(100))));
    bench.wait(Span::from_secs(50));
    bench.submit(cores(3, 1.0, 1000));
    pull(&mut bench, worker);
    assert_eq!(payloads(&bench), [3], "one core is left beside it, whenever the first ends");
}

#[test]
fn what_is_let_past_comes_at_its_own_place_and_not_at_that_of_its_lane() {
    let mut config = Config::default();
    config.scheduling.bind = Bind::Push;
    let mut bench = Bench::new(&config);
    let worker = with_cores(&mut bench, 4.0, 4);
    bench.submit(cores(1, 1.0, 10));
    pull(&mut bench, worker);
    // These wait centrally under both bindings.
    let centrally = |spec: TaskSpec| TaskSpec { exclusive: true, ..spec };
    let first = bench.submit(centrally(cores(2, 4.0, 10)));
    bench.submit(centrally(cores(3, 1.0, 1000)));
    bench.submit(TaskSpec { pin: Some(worker), ..cores(4, 1.0, 5) });
    bench.submit(centrally(cores(5, 1.0, 5)));
    pull(&mut bench, worker);
    assert_eq!(kept_for(&bench, first).map(|kept| kept.0), Some(worker));
    assert_eq!(payloads(&bench), [4], "5 came after it, though 3, which is like 5 but too long, came before");
}

#[test]
fn the_moment_of_a_reservation_that_is_gone_does_not_put_off_another() {
    let mut bench = Bench::new(&without_samples());
    let worker = with_cores(&mut bench, 4.0, 4);
    bench.submit(cores(1, 1.0, 1000));
    pull(&mut bench, worker);
    let long_after = |secs: u64| Time::ZERO + Span::from_secs(secs);
    let first = bench.submit(cores(2, 4.0, 10));
    pull(&mut bench, worker);
    assert_eq!(kept_for(&bench, first), Some((worker, long_after(1000))));
    // A reservation made a little later for the same moment has a little less time to be late.
    bench.wait(Span::from_secs(500));
    bench.step(Event::Cancel { task: first });
    let second = bench.submit(cores(3, 4.0, 10));
    pull(&mut bench, worker);
    assert_eq!(kept_for(&bench, second), Some((worker, long_after(1000))));
    bench.step(Event::Cancel { task: second });
    bench.wait(Span::from_secs(2));
    assert_eq!(bench.scheduler.next_timer(), None, "nothing is kept for anybody");
}

#[test]
fn a_worker_that_does_not_ask_is_not_looked_after_all_the_time() {
    let mut bench = Bench::new(&without_samples());
    let worker = with_cores(&mut bench, 4.0, 4);
    let first = bench.submit(cores(1, 1.0, 10));
    pull(&mut bench, worker);
    let second = bench.submit(cores(2, 4.0, 10));
    pull(&mut bench, worker);
    bench.wait(Span::from_secs(5));
    bench.step(Event::Finish { task: first, attempt: 1 });
    let steps = bench.wait(Span::from_secs(60));
    assert!(steps <= 1, "{steps} steps in which nothing could happen");
    assert_eq!(kept_for(&bench, second).map(|kept| kept.0), Some(worker));
    pull(&mut bench, worker);
    assert_eq!(payloads(&bench), [2]);
}

#[test]
fn a_task_that_a_worker_is_kept_free_for_is_not_with_that_worker() {
    let mut bench = Bench::new(&Config::default());
    let worker = with_cores(&mut bench, 4.0, 4);
    bench.submit(cores(1, 1.0, 100));
    pull(&mut bench, worker);
    let deadline = Some(Time::ZERO + Span::from_secs(20));
    let task = bench.submit(TaskSpec { deadline, ..cores(2, 4.0, 10) });
    pull(&mut bench, worker);
    assert!(kept_for(&bench, task).is_some());
    bench.now = Time::ZERO + Span::from_secs(20);
    bench.step(Event::Tick);
    let told = |action: &Action| match *action {
        Action::Notify { task: whose, status, worker, .. } if whose == task => Some((status, worker)),
        _ => None,
    };
    assert_eq!(bench.actions.iter().find_map(told), Some((Status::Queued, None)));
}

#[test]
fn elements_follow_those_that_a_released_worker_is_given() {
    let mut bench = Bench::new(&Config::default());
    let worker = with_cores(&mut bench, 4.0, 4);
    bench.submit(cores(1, 1.0, 10));
    pull(&mut bench, worker);
    let first = bench.submit(cores(2, 4.0, 10));
    bench.step(Event::Pull { worker, wait: true });
    assert!(kept_for(&bench, first).is_some());
    let demand = Demand::new(units(ResourceId::CPUS, 1.0));
    let template = TaskSpec { key: Some(KeyId(0)), demand, ..cores(3, 1.0, 1000) };
    bench.step(Event::SubmitArray { template: Box::new(template), count: 3 });
    bench.step(Event::Cancel { task: first });
    assert_eq!(payloads(&bench), [3]);
    let elements = bench.actions.iter().filter(|action| matches!(action, Action::Element { index: 1, .. })).count();
    assert_eq!(elements, 1, "the next one waits for the key, in its place among all that want it");
}
