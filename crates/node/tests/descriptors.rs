//! How many descriptors a running command takes. Every program that is started gets a copy of all that there are and closes
//! it, so with many slots each of them costs every start. Alone in its process, since it counts what that has open.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test")]

use std::sync::mpsc;
use std::time::{Duration, Instant};

use filch_node::exec::{Command, Executor, Running};

const SLOTS: usize = 8;
/// Both ends of two pipes, what tells of its end and what wakes its thread.
const EACH: usize = 6;
/// What all read that are given nothing.
const SHARED: usize = 1;

fn open() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn a_running_command_takes_six_descriptors_and_leaves_one() {
    let before = open();
    let executor = Executor::new(SLOTS);
    let (tell, told) = mpsc::channel();
    let running: Vec<Running> = (0..SLOTS)
        .map(|_| {
            let tell = tell.clone();
            let done = Box::new(move |outcome: Result<_, _>| tell.send(outcome.is_ok()).unwrap());
            executor.start(Command::argv("sleep", ["60"]), None, done)
        })
        .collect();
    // While one starts there is a moment with more.
    let began = Instant::now();
    while open() != before + SLOTS * EACH + SHARED {
        assert!(began.elapsed() < Duration::from_secs(20), "{} more than before", open() - before);
        std::thread::sleep(Duration::from_millis(5));
    }
    running.iter().for_each(Running::kill);
    for _ in 0..SLOTS {
        assert!(told.recv().unwrap());
    }
    drop(executor);
    assert_eq!(open(), before + SHARED);
}
