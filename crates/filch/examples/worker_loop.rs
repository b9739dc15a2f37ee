//! Workers that ask for work, do it and report, until there is no more.

#![allow(clippy::print_stdout, reason = "an example prints")]

use std::time::Duration;

use filch::{Balancer, Error, Task, Worker};

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let balancer = Balancer::builder().build()?;
    for number in 1..=20u64 {
        balancer.submit(Task::named(format!("test-{number}")).payload(number))?;
    }
    std::thread::scope(|scope| {
        let loops: Vec<_> = (1..=2)
            .map(|index| {
                let balancer = &balancer;
                scope.spawn(move || worker_loop(balancer, &format!("worker{index}")))
            })
            .collect();
        balancer.wait_idle(Duration::from_secs(60));
        // Those who wait for more are told that there is none.
        balancer.stop();
        loops.into_iter().for_each(|one| assert_eq!(one.join().ok(), Some(Error::Stopped)));
    });
    println!("{} passed, {} failed", balancer.metrics().completed, balancer.metrics().failed);
    assert_eq!((balancer.metrics().completed, balancer.metrics().failed), (18, 2));
    Ok(())
}

fn worker_loop(balancer: &Balancer<u64, u64>, id: &str) -> Error {
    let work = || -> Result<(), Error> {
        balancer.register_worker(Worker::new(id))?;
        loop {
            let assignment = balancer.next_blocking(id)?;
            assignment.start()?;
            match execute(*assignment.payload()) {
                Ok(result) => assignment.succeed(result)?,
                Err(error) => assignment.fail(error)?,
            }
        }
    };
    work().err().unwrap_or(Error::Stopped)
}

fn execute(number: u64) -> Result<u64, String> {
    if number % 10 == 7 { Err(format!("{number} is unlucky")) } else { Ok(number * number) }
}
