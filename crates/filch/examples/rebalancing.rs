//! The scheduler evens out queues: by itself every now and then, and when asked to.

#![allow(clippy::print_stdout, reason = "an example prints")]

use filch::{Balancer, Config, Task, Worker};

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let config = Config::from_yaml("load_balancing: { strategy: push }", "inline")?.config;
    let balancer: Balancer = Balancer::builder().config(config).build()?;
    balancer.register_worker(Worker::new("first"))?;
    balancer.submit_many((0..30).map(|_| Task::new()))?;
    balancer.register_worker(Worker::new("second"))?;
    balancer.register_worker(Worker::new("third"))?;

    let moved = balancer.rebalance();
    let lengths: Vec<u32> = balancer.workers().iter().map(|worker| worker.queue_length).collect();
    println!("moved {moved} tasks, queues are now {lengths:?}");
    assert_eq!((moved, lengths.iter().sum::<u32>()), (3, 30));
    Ok(())
}
