//! Find a worker with enough left, reserve it, release it at the end; never more than there is.

#![allow(clippy::print_stdout, reason = "an example prints")]

use filch::{Balancer, Task, Worker, WorkerUpdate};

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let balancer: Balancer = Balancer::builder().build()?;
    balancer.register_worker(Worker::new("small").resource("gpus", 1.0).resource("gpu_memory", 8e9).slots(4))?;
    balancer.register_worker(Worker::new("large").resource("gpus", 4.0).resource("gpu_memory", 96e9).slots(4))?;

    let train = || Task::new().resource("gpus", 2.0).resource("gpu_memory", 40e9);
    println!("suitable: {:?}", balancer.suitable_worker(&train())?);
    assert_eq!(balancer.suitable_worker(&train())?.as_deref(), Some("large"));

    balancer.submit_many((0..3).map(|_| train()))?;
    let (first, second) = (balancer.next("large")?, balancer.next("large")?);
    assert!(balancer.next("large")?.is_none(), "two of three fit");
    println!("reserved: {:?}", balancer.workers()[1].reserved);
    first.ok_or("it fits")?.succeed(())?;
    let third = balancer.next("large")?.ok_or("there is room again")?;

    balancer.update_worker("small", WorkerUpdate::new().resources([("gpus", 2.0), ("gpu_memory", 80e9)]))?;
    assert!(balancer.can_execute("small", &train())?);
    second.ok_or("it fits")?.succeed(())?;
    third.succeed(())?;
    assert!(!balancer.workers()[1].reserved.contains_key("gpus"), "everything is released");
    Ok(())
}
