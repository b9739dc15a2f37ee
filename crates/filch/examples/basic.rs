//! Register workers, submit a task, run it, look at the figures.

#![allow(clippy::print_stdout, reason = "an example prints")]

use filch::{Balancer, Task, Worker};

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let balancer: Balancer = Balancer::builder().build()?;
    balancer.start();
    balancer.register_worker(Worker::new("python_worker").capabilities(["python", "testing"]))?;
    balancer.register_worker(Worker::new("data_worker").capabilities(["python", "data_analysis"]))?;

    balancer.submit(Task::named("analyze_data").skills(["data_analysis"]).priority(3))?;

    assert!(balancer.next("python_worker")?.is_none(), "it cannot analyse data");
    let assignment = balancer.next("data_worker")?.ok_or("the task waits for this worker")?;
    assignment.start()?;
    assignment.succeed(())?;

    let metrics = balancer.metrics();
    println!("completed: {}, tasks migrated: {}", metrics.completed, metrics.tasks_migrated);
    assert_eq!(metrics.completed, 1);
    balancer.stop();
    Ok(())
}
