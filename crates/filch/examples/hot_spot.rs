//! One worker has everything and the others nothing; they help themselves.

#![allow(clippy::print_stdout, reason = "an example prints")]

use std::time::Duration;

use filch::{Balancer, Config, Task, Worker};

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let config = Config::from_yaml("load_balancing: { strategy: hybrid }", "inline")?.config;
    let balancer: Balancer = Balancer::builder().config(config).build()?;
    balancer.register_worker(Worker::new("hot"))?;
    balancer.submit_many((0..200).map(|_| Task::new()))?;
    for id in ["cool", "cold"] {
        balancer.register_worker(Worker::new(id))?;
    }

    std::thread::scope(|scope| {
        for id in ["hot", "cool", "cold"] {
            let balancer = &balancer;
            scope.spawn(move || -> Result<(), filch::Error> {
                while let Some(assignment) = balancer.next_timeout(id, Duration::from_millis(20))? {
                    assignment.start()?;
                    std::thread::yield_now();
                    assignment.succeed(())?;
                }
                Ok(())
            });
        }
    });
    for worker in balancer.workers() {
        println!("{}: {} done, {} stolen, {} lost", worker.id, worker.total_completed, worker.stolen, worker.lost);
    }
    // What the thieves left, because a victim keeps a few and only the busy are stolen from, the hot one has done.
    assert_eq!(balancer.metrics().completed, 200);
    Ok(())
}
