//! Tests with requirements, and a callback that is told of every change.

#![allow(clippy::print_stdout, reason = "an example prints")]

use std::time::Duration;

use filch::{Balancer, LoadReport, Task, Worker};

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let balancer: Balancer<&str, bool> = Balancer::builder().build()?;
    balancer.on_status(|change| println!("test {} is {}", change.label(), change.status.name()));
    balancer.start();

    let worker = Worker::new("worker1").capabilities(["cpu", "cuda"]).resource("gpus", 2.0).slots(16);
    balancer.register_worker(worker.resource("memory", 16e9).resource("cpus", 8.0))?;
    balancer.report_load("worker1", LoadReport { cpu: 0.1, memory: 0.2 })?;

    let test = Task::named("test1").payload("bert-base-uncased").kind("transformer").task_type("performance");
    let test = test.requires("cuda").resource("memory", 4e9).resource("gpus", 1.0);
    balancer.submit(test.estimate(Duration::from_secs(60)).priority(1))?;

    let assignment = balancer.next("worker1")?.ok_or("the test waits")?;
    balancer.update_status("test1", "running", None)?;
    let passed = assignment.payload().starts_with("bert");
    balancer.update_status(assignment.detach(), "completed", Some(passed))?;
    assert_eq!(balancer.status("test1")?.result.as_deref(), Some(&true));
    balancer.stop();
    Ok(())
}
