//! What each worker is doing, and whether all is well.

#![allow(clippy::print_stdout, reason = "an example prints")]

use filch::{Balancer, Task, Worker};

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let balancer: Balancer = Balancer::builder().build()?;
    balancer.register_worker(Worker::new("steady"))?;
    balancer.register_worker(Worker::new("shaky"))?;
    balancer.submit_many((0..4).map(|_| Task::new()))?;
    for round in 0..2 {
        balancer.next("steady")?.ok_or("a task waits")?.succeed(())?;
        let assignment = balancer.next("shaky")?.ok_or("a task waits")?;
        if round == 0 { assignment.succeed(())? } else { assignment.fail("shaken")? }
    }

    for worker in balancer.workers() {
        println!("{}:", worker.id);
        println!("  Queue: {}", worker.queue_length);
        println!("  Success rate: {:.1}%", worker.success_rate * 100.0);
        println!("  Completed: {}", worker.total_completed);
    }
    assert!(balancer.health().is_good());
    assert_eq!(balancer.workers()[1].success_rate, 0.5);
    Ok(())
}
