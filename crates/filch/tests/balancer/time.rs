//! What time does, with a clock that goes on when told to.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use filch::{Balancer, Cause, Config, Error, ManualClock, Status, Task, Worker};

use crate::{push_bound, status, still, take};

const SECOND: Duration = Duration::from_secs(1);

fn one_worker(config: Config) -> (Balancer, ManualClock) {
    let (balancer, clock) = still(config);
    balancer.register_worker(Worker::new("w")).unwrap();
    (balancer, clock)
}

#[test]
fn a_failed_task_is_tried_again_after_its_pause() {
    let (balancer, clock) = one_worker(Config::default());
    let task = balancer.submit(Task::named("t").retries(2).backoff(SECOND, 4 * SECOND)).unwrap();
    for attempt in 1..=2 {
        let assignment = take(&balancer, "w");
        assert_eq!(assignment.attempt(), attempt);
        assignment.fail(format!("try {attempt}")).unwrap();
        assert_eq!(status(&balancer, task), Status::Retrying);
        assert!(balancer.next("w").unwrap().is_none());
        let explanation = balancer.explain(task).unwrap();
        assert!(explanation.to_string().contains(&format!("retry {attempt} of 2 in ")), "{explanation}");
        clock.advance(8 * SECOND);
        balancer.tick();
        assert_eq!(status(&balancer, task), Status::Queued);
    }
    take(&balancer, "w").fail("try 3").unwrap();
    let failed = balancer.status(task).unwrap();
    assert_eq!((failed.status, failed.cause), (Status::Failed, Cause::Reported));
    assert_eq!(failed.error.as_deref(), Some("try 3"));
    assert_eq!(balancer.metrics().retries, 2);
}

#[test]
fn fail_permanently_does_not_try_again() {
    let (balancer, _) = one_worker(Config::default());
    let task = balancer.submit(Task::new().retries(5)).unwrap();
    take(&balancer, "w").fail_permanently("no such file").unwrap();
    assert_eq!(status(&balancer, task), Status::Failed);
}

#[test]
fn an_attempt_that_takes_too_long_is_revoked_and_its_result_dropped() {
    let (balancer, clock) = one_worker(Config::default());
    let task = balancer.submit(Task::named("slow").timeout(SECOND)).unwrap();
    let assignment = take(&balancer, "w");
    assignment.start().unwrap();
    clock.advance(2 * SECOND);
    assert!(!assignment.is_revoked(), "nobody has looked at the clock");
    balancer.tick();
    assert!(assignment.is_revoked());
    assert_eq!(assignment.succeed(()).unwrap_err(), Error::Stale { task: "slow".to_owned(), attempt: 1 });
    let failed = balancer.status(task).unwrap();
    assert_eq!((failed.status, failed.cause), (Status::Failed, Cause::TimedOut));
    assert!(failed.result.is_none());
    assert_eq!(balancer.metrics().timeouts, 1);
    assert_eq!(balancer.metrics().stale_reports, 1);
}

#[test]
fn the_scheduler_rebalances_by_itself() {
    let (balancer, clock) = still(push_bound());
    balancer.register_worker(Worker::new("busy")).unwrap();
    for _ in 0..30 {
        balancer.submit(Task::new()).unwrap();
    }
    balancer.register_worker(Worker::new("idle")).unwrap();
    balancer.tick();
    assert_eq!(balancer.metrics().rebalance_cycles, 0);
    clock.advance(31 * SECOND);
    balancer.tick();
    assert_eq!(balancer.metrics().rebalance_cycles, 1);
    assert_eq!(balancer.workers()[1].queue_length, 2, "up to the idle threshold");
}

#[test]
fn samples_are_taken_as_time_passes() {
    let (balancer, clock) = one_worker(push_bound());
    balancer.submit(Task::new()).unwrap();
    for _ in 0..3 {
        clock.advance(SECOND);
        balancer.tick();
    }
    let samples = balancer.samples();
    assert_eq!(samples.len(), 3);
    assert_eq!((samples[1].at_s, samples[1].queued, samples[1].queue_lengths["w"]), (2.0, 1, 1));
}

#[test]
fn a_task_nobody_can_run_fails_after_its_requeues_with_the_reasons() {
    let (balancer, clock) = one_worker(Config::default());
    let told = Arc::new(Mutex::new(Vec::new()));
    let errors = Arc::clone(&told);
    balancer.on_status(move |change| errors.lock().unwrap().extend(change.error.as_deref().map(str::to_owned)));
    let task = balancer.submit(Task::named("t").requires("cuda")).unwrap();
    let text = balancer.explain("t").unwrap().to_string();
    assert!(text.contains("no registered worker can ever run it; tried again 0 of 5 times"), "{text}");
    assert!(text.contains("w: it lacks `cuda`"), "{text}");
    for _ in 0..6 {
        assert_eq!(status(&balancer, task), Status::Unschedulable);
        clock.advance(SECOND);
        balancer.tick();
    }
    let failed = balancer.status(task).unwrap();
    assert_eq!((failed.status, failed.cause), (Status::Failed, Cause::NoWorker));
    assert_eq!(failed.error.as_deref(), Some("w: it lacks `cuda`"));
    assert_eq!(*told.lock().unwrap(), [failed.error.unwrap()]);
    let explanation = balancer.explain(task).unwrap();
    assert_eq!(explanation.to_string().matches("it lacks `cuda`").count(), 1, "{explanation}");
    assert_eq!(explanation.refused_by[0].why, "it lacks `cuda`");
}

#[test]
fn deadlines_count_from_the_first_submission() {
    let (balancer, clock) = still(push_bound());
    balancer.register_worker(Worker::new("w")).unwrap();
    balancer.submit(Task::named("t").deadline(10 * SECOND)).unwrap();
    clock.advance(8 * SECOND);
    let returned = balancer.unregister_worker("w").unwrap().remove(0);
    balancer.submit(returned.task).unwrap();
    clock.advance(3 * SECOND);
    balancer.tick();
    assert_eq!(balancer.metrics().missed_deadlines, 1);
}

#[test]
fn the_background_thread_fires_timers_while_everybody_waits() {
    let balancer: Balancer = Balancer::builder().build().unwrap();
    balancer.register_worker(Worker::new("w")).unwrap();
    let pause = Duration::from_millis(5);
    balancer.submit(Task::new().retries(1).backoff(pause, pause)).unwrap();
    balancer.next_blocking("w").unwrap().fail("once").unwrap();
    let again = balancer.next_timeout("w", crate::LONG).unwrap().expect("the retry comes by itself");
    assert_eq!(again.attempt(), 2);
    again.succeed(()).unwrap();
    assert!(balancer.wait_idle(Duration::ZERO));
}
