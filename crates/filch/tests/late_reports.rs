//! Reports by id that come too late: refused, but they free what the attempt still occupied.

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
