//! How many tasks per second a balancer takes through their whole life from two threads.

#![allow(clippy::print_stdout, reason = "an example prints")]

use std::time::Instant;

use filch::{Balancer, Task, Worker};

/// Cycles (submit, next, start, succeed) of each thread.
const CYCLES: u32 = 1_000_000;
const THREADS: u32 = 2;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cycles = std::env::args().nth(1).map_or(Ok(CYCLES), |text| text.parse())?;
    let balancer: Balancer = Balancer::builder().build()?;
    let start = Instant::now();
    let threads: Vec<_> = (0..THREADS)
        .map(|index| {
            let balancer = balancer.clone();
            std::thread::spawn(move || run(&balancer, index, cycles))
        })
        .collect();
    for thread in threads {
        thread.join().map_err(|_| "a thread panicked")??;
    }
    let seconds = start.elapsed().as_secs_f64();
    let total = u64::from(cycles) * u64::from(THREADS);
    assert_eq!(balancer.metrics().completed, total);
    println!("{total} cycles from {THREADS} threads in {seconds:.2} s: {:.0} per second", total as f64 / seconds);
    Ok(())
}

fn run(balancer: &Balancer, index: u32, cycles: u32) -> Result<(), filch::Error> {
    let worker = balancer.register_worker(Worker::new(format!("worker-{index}")))?;
    for _ in 0..cycles {
        balancer.submit(Task::new())?;
        // Each thread has submitted as much as it has taken, so there is always one; the other may have it for a moment.
        let assignment = loop {
            if let Some(assignment) = balancer.next(worker)? {
                break assignment;
            }
        };
        assignment.start()?;
        assignment.succeed(())?;
    }
    Ok(())
}
