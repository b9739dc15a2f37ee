//! An idle worker takes work from the busiest one.

#![allow(clippy::print_stdout, reason = "an example prints")]

use filch::{Balancer, Config, Task, Worker};

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A file with this section gives every worker a queue of its own; there is nothing to steal without.
    let config = Config::from_yaml("load_balancing: { strategy: pull }", "inline")?.config;
    let balancer: Balancer = Balancer::builder().config(config).build()?;
    balancer.register_worker(Worker::new("busy"))?;
    for index in 0..10 {
        balancer.submit(Task::named(format!("task-{index}")))?;
    }
    balancer.register_worker(Worker::new("idle"))?;

    for task in balancer.steal("idle")? {
        println!("stole {}", balancer.status(task)?.name.unwrap_or_default());
    }
    // Asking for work steals too, when the worker's own queue is empty.
    for _ in 0..3 {
        let assignment = balancer.next("idle")?.ok_or("there is something to steal")?;
        assignment.succeed(())?;
    }
    print!("{}", balancer.steal_report());
    assert_eq!(balancer.metrics().successful_steals, 3);
    Ok(())
}
