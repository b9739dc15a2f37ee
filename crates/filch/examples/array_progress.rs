//! Submit an array, follow it as a whole and element by element, and ask why the rest of it waits.

#![allow(clippy::print_stdout, reason = "an example prints")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use filch::{Balancer, Status, Task, Worker};

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let balancer: Balancer<&str, u32> = Balancer::builder().build()?;
    balancer.register_worker(Worker::new("renderer").slots(2).resource("memory", 16e9))?;
    let last = Arc::new(AtomicU32::new(0));
    let seen = Arc::clone(&last);
    balancer.on_status(move |change| {
        println!("{} is {}", change.label(), change.status.name());
        if let (Status::Completed, Some(index)) = (change.status, change.index) {
            seen.fetch_max(index, Ordering::Relaxed);
        }
    });

    // Frames differ only by their index; they cost next to nothing until they are handed out.
    let frames = balancer.submit_array(Task::with_payload("scene").kind("render").resource("memory", 8e9), 100)?;
    let held = [balancer.next("renderer")?, balancer.next("renderer")?];
    let status = balancer.job_status(frames)?;
    assert_eq!((status.total, status.held(), status.waiting()), (100, 2, 98));

    // Why do the others wait? By the very rule that hands them out.
    let why = balancer.explain_job(frames)?;
    println!("{why}");
    assert!(why.to_string().contains("renderer: 2 of its 2 slots are taken"));
    for frame in held.into_iter().flatten() {
        let index = frame.index();
        frame.succeed(index)?;
    }

    // One frame need not be drawn; then a worker thread draws the rest while this one follows.
    balancer.cancel_element(frames, 50)?;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while let Ok(Some(frame)) = balancer.next("renderer") {
                let index = frame.index();
                frame.succeed(index).expect("nobody has taken it away");
            }
        });
        loop {
            let status = balancer.wait_job(frames, Duration::from_millis(10))?;
            println!("{status}");
            if status.done {
                assert_eq!((status.completed, status.cancelled), (99, 1));
                return Ok::<(), filch::Error>(());
            }
        }
    })?;
    assert_eq!(last.load(Ordering::Relaxed), 99);
    Ok(())
}
