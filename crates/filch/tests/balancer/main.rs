//! The balancer from outside, by what a user can see of it.

#![allow(clippy::unwrap_used, reason = "clippy sees helpers of tests as no tests")]

mod callbacks;
mod errors;
mod explanations;
mod foreign;
mod jobs;
mod operations;
mod stress;
mod time;
mod troubleshooting;
mod views;
mod waiting;

use std::time::Duration;

use filch::{Assignment, Balancer, Config, ManualClock, Status, TaskName, Worker};

/// Long enough for anything that happens at all.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Queues of their own for workers, as the files with a `load_balancing` section mean it.
pub(crate) fn push_bound() -> Config {
    Config::from_yaml("load_balancing: {}", "inline").unwrap().config
}

/// A balancer whose time stands still, and its clock.
pub(crate) fn still(config: Config) -> (Balancer, ManualClock) {
    let clock = ManualClock::default();
    (Balancer::builder().config(config).clock(clock.clone()).build().unwrap(), clock)
}

pub(crate) fn with_workers(ids: &[&str]) -> Balancer {
    let (balancer, _) = still(Config::default());
    for id in ids {
        balancer.register_worker(Worker::new(*id)).unwrap();
    }
    balancer
}

pub(crate) fn take(balancer: &Balancer, worker: &str) -> Assignment {
    balancer.next(worker).unwrap().expect("there is a task")
}

pub(crate) fn status(balancer: &Balancer, task: impl Into<TaskName>) -> Status {
    balancer.status(task).unwrap().status
}
