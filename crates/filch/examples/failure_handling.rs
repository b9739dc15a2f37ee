//! A worker fails with tasks in its queue; they come back and go to those who are well.

#![allow(clippy::print_stdout, reason = "an example prints")]

use filch::{Balancer, Config, Task, Worker};

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let config = Config::from_yaml("load_balancing: {}", "inline")?.config;
    let balancer: Balancer = Balancer::builder().config(config).build()?;
    balancer.register_worker(Worker::new("doomed"))?;
    for index in 0..3 {
        balancer.submit(Task::named(format!("task-{index}")))?;
    }
    let running = balancer.next("doomed")?.ok_or("a task waits")?;

    let remaining = balancer.unregister_worker("doomed")?;
    println!("{} tasks came back, the running one first", remaining.len());
    assert_eq!(remaining.first().map(|one| one.id), Some(running.id()));
    assert!(running.is_revoked());

    balancer.register_worker(Worker::new("healthy"))?;
    for one in remaining {
        balancer.submit(one.task)?;
    }
    while let Some(assignment) = balancer.next("healthy")? {
        assignment.succeed(())?;
    }
    assert_eq!(balancer.metrics().completed, 3);
    Ok(())
}
