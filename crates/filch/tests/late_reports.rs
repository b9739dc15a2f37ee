//! Reports by id that come too late: refused, but they free what the attempt still occupied.

use std::sync::{Arc, Mutex};

use filch::{Balancer, Error, Status, Task, Worker};

fn one_slot() -> Balancer<(), u32> {
    let balancer = Balancer::builder().build().expect("the default configuration");
    balancer.register_worker(Worker::new("w")).expect("the first of its name");
    balancer
}

#[test]
fn a_late_report_by_id_frees_the_slot_of_a_cancelled_task() {
    let balancer = one_slot();
    balancer.submit(Task::named("first")).unwrap();
    balancer.submit(Task::named("second")).unwrap();
    let first = balancer.next("w").unwrap().unwrap().detach();
    balancer.start_task(first).unwrap();
    balancer.cancel("first").unwrap();
    assert!(balancer.next("w").unwrap().is_none(), "whoever runs it may still be at it");
    assert_eq!(balancer.workers()[0].running, 1, "and that can be seen");
    assert!(matches!(balancer.complete_task("first", 1), Err(Error::Stale { .. })));
    assert_eq!(balancer.status("first").unwrap().status, Status::Cancelled);
    let second = balancer.next("w").unwrap().expect("the slot is free again");
    second.succeed(2).unwrap();
    assert!(matches!(balancer.complete_task("first", 1), Err(Error::NotAssigned { .. })), "only once");
}

#[test]
fn what_never_fits_is_refused_for_good_and_not_with_a_time_to_retry() {
    let mut config = filch::Config::default();
    config.limits.max_queued = 3;
    let balancer: Balancer = Balancer::builder().config(config).build().unwrap();
    assert!(matches!(balancer.submit_array(Task::new(), 4), Err(Error::Invalid(_))));
    balancer.submit_array(Task::new(), 3).unwrap();
    assert!(matches!(balancer.submit_array(Task::new(), 1), Err(Error::QueueFull { .. })));
}

#[test]
fn what_could_not_be_submitted_cannot_be_executed_either() {
    let balancer = one_slot();
    balancer.register_worker(Worker::new("gpus").resource("gpus", 2.0)).unwrap();
    assert!(balancer.can_execute("gpus", &Task::new().resource("gpus", 2.0)).unwrap());
    assert!(balancer.can_execute("gpus", &Task::new().resource("gpus", 1.5)).is_err());
}

#[test]
fn a_late_report_of_an_earlier_attempt_does_not_end_a_later_one() {
    let balancer = one_slot();
    balancer.register_worker(Worker::new("v")).unwrap();
    let task = balancer.submit(Task::named("t")).unwrap();
    let first = balancer.next("w").unwrap().unwrap().detach();
    balancer.worker_silent("w").unwrap();
    let second = balancer.next("v").unwrap().expect("it is queued again").detach();
    assert_eq!((first.attempt, second.attempt, second.task), (1, 2, task));
    // By the task alone it could be either of them.
    for report in [balancer.complete_task("t", 1), balancer.complete_task(task, 1), balancer.fail_task("t", "?")] {
        assert!(matches!(report, Err(Error::Ambiguous { earlier: 1, attempt: 2, .. })), "{report:?}");
    }
    assert!(matches!(balancer.complete_task(first, 1), Err(Error::Stale { attempt: 1, .. })));
    assert_eq!(balancer.status("t").unwrap().status, Status::Assigned, "the second goes on");
    balancer.start_task("t").unwrap();
    balancer.complete_task(second, 2).unwrap();
    assert_eq!(balancer.status("t").unwrap().status, Status::Completed);
}

#[test]
fn an_element_that_waits_for_its_key_is_withdrawn_and_an_array_nobody_can_run_says_why() {
    let balancer = one_slot();
    let told = Arc::new(Mutex::new(Vec::new()));
    let list = Arc::clone(&told);
    balancer.on_status(move |change| {
        if let Some(error) = &change.error {
            list.lock().unwrap().push(error.to_string());
        }
    });
    let job = balancer.submit_array(Task::new().key("k"), 2).unwrap();
    balancer.cancel_element(job, 0).unwrap();
    let second = balancer.next("w").unwrap().unwrap();
    assert_eq!(second.index(), 1);
    second.succeed(1).unwrap();
    let mut config = filch::Config::default();
    config.limits.max_requeue_attempts = 0;
    config.limits.requeue_interval = filch::Span::from_secs(1);
    let clock = filch::ManualClock::default();
    let balancer: Balancer<(), u32> = Balancer::builder().config(config).clock(clock.clone()).build().unwrap();
    balancer.register_worker(Worker::new("w")).unwrap();
    let list = Arc::clone(&told);
    balancer.on_status(move |change| list.lock().unwrap().extend(change.error.as_ref().map(ToString::to_string)));
    balancer.submit_array(Task::new().requires("cuda"), 2).unwrap();
    clock.advance(std::time::Duration::from_secs(2));
    balancer.tick();
    assert_eq!(*told.lock().unwrap(), ["w: it lacks `cuda`"]);
}
