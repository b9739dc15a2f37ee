//! Where workers run and whom they rob: pinning, the order of victims, stacks.
#![cfg(not(any(loom, shuttle)))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::ErrorKind;
use std::sync::{Arc, Barrier, Mutex, mpsc};

use filch_pool::{Cpu, Pool, Topology};

/// The processors the calling thread may use, as the kernel writes them.
#[cfg(all(target_os = "linux", not(miri)))]
fn allowed_here() -> String {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("Cpus_allowed_list:")).unwrap();
    line.split_whitespace().nth(1).unwrap().to_owned()
}

#[cfg(all(target_os = "linux", not(miri)))]
#[test]
fn pinned_workers_stay_on_their_processor() {
    let before = allowed_here();
    let cpus = Topology::read().unwrap();
    let pool = Pool::builder().threads(3).pin(true).build().unwrap();
    let seen = pool.broadcast(|_| allowed_here());
    let expected: Vec<String> = (0..3).map(|worker| cpus.cpus()[worker % cpus.cpus().len()].id.to_string()).collect();
    assert_eq!(seen, expected);
    let free = Pool::builder().threads(2).build().unwrap();
    assert_eq!(free.broadcast(|_| allowed_here()), [before.clone(), before.clone()], "only if asked for");
    assert_eq!(allowed_here(), before, "and never the caller");
}

#[cfg(all(target_os = "linux", not(miri)))]
#[test]
fn a_topology_says_which_processors_are_used() {
    let last = *Topology::read().unwrap().cpus().last().unwrap();
    let pool = Pool::builder().threads(2).topology(Topology::new([last])).pin(true).build().unwrap();
    assert_eq!(pool.broadcast(|_| allowed_here()), [last.id.to_string(), last.id.to_string()]);
}

/// Also on systems that cannot pin at all, where asking for it is refused too.
#[test]
fn what_cannot_be_pinned_is_refused() {
    let impossible = Topology::new([Cpu::new(1_000_000)]);
    let error = Pool::builder().threads(1).topology(impossible).pin(true).build().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported), "{error}");
    #[cfg(target_os = "linux")]
    assert!(error.to_string().starts_with("worker 0 cannot be pinned to processor 1000000: it may use ["), "{error}");
    assert!(Pool::builder().threads(1).topology(Topology::new([])).pin(true).build().is_err());
}

/// Four workers, of which 0 and 2 share a cache. Worker 0 is let loose while 1, 2 and 3 are held and have full queues.
#[test]
fn an_idle_worker_robs_its_neighbour_first() {
    const EACH: usize = if cfg!(miri) { 5 } else { 100 };
    let near = Topology::new((0..4).map(|id| Cpu::new(id).cache(id % 2).node(id % 2)));
    for _ in 0..if cfg!(miri) { 1 } else { 20 } {
        let pool = Arc::new(Pool::builder().threads(4).topology(near.clone()).build().unwrap());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (ready, all_ready) = mpsc::channel();
        // Nobody fills a queue before all are held: who is still free would rob it.
        let held = Arc::new(Barrier::new(4));
        let gates: Vec<_> = (0..4)
            .map(|worker| {
                let (gate, wait) = mpsc::channel::<()>();
                let (inner, seen, ready) = (Arc::downgrade(&pool), Arc::clone(&seen), ready.clone());
                let held = Arc::clone(&held);
                pool.task().on(worker).detach(move || {
                    held.wait();
                    if let (Some(pool), true) = (inner.upgrade(), worker > 0) {
                        for _ in 0..EACH {
                            let seen = Arc::clone(&seen);
                            pool.detach(move || seen.lock().unwrap().push(worker));
                        }
                    }
                    ready.send(()).unwrap();
                    wait.recv().unwrap();
                });
                gate
            })
            .collect();
        all_ready.iter().take(4).for_each(drop);
        gates[0].send(()).unwrap();
        while seen.lock().unwrap().len() < 3 * EACH {
            std::thread::yield_now();
        }
        let order = seen.lock().unwrap().clone();
        assert_eq!(order[..EACH], [2; EACH], "its neighbour first");
        assert!(order[EACH..].iter().filter(|origin| **origin == 2).count() == 0 && order.len() == 3 * EACH);
        // It stays with the next victim too, as long as that one has something.
        assert_eq!(order[EACH..].chunk_by(|a, b| a == b).count(), 2, "{order:?}");
        gates[1..].iter().for_each(|gate| gate.send(()).unwrap());
    }
}

/// Both workers are held; one of them has 64 tasks in its queue. The other is let loose.
#[test]
fn a_thief_takes_half_of_the_spawned_tasks() {
    const TASKS: usize = 64;
    let pool = Arc::new(Pool::builder().threads(2).build().unwrap());
    let (ready, all_ready) = mpsc::channel();
    let gates: Vec<_> = (0..2)
        .map(|worker| {
            let (gate, wait) = mpsc::channel::<()>();
            let (inner, ready) = (Arc::downgrade(&pool), ready.clone());
            pool.task().on(worker).detach(move || {
                ready.send(()).unwrap();
                wait.recv().unwrap();
                if let (Some(pool), 0) = (inner.upgrade(), worker) {
                    (0..TASKS).for_each(|_| pool.detach(|| ()));
                    ready.send(()).unwrap();
                    wait.recv().unwrap();
                }
            });
            gate
        })
        .collect();
    all_ready.iter().take(2).for_each(drop);
    gates[0].send(()).unwrap();
    all_ready.recv().unwrap();
    let before = pool.stats();
    gates[1].send(()).unwrap();
    while pool.stats().executed < TASKS as u64 + 1 {
        std::thread::yield_now();
    }
    // 33 of 64, 16 of the 31 that are left, then 8, 4, 2 and 1.
    assert_eq!(pool.stats().steals_won - before.steals_won, 6);
    gates[0].send(()).unwrap();
}

#[test]
fn a_stack_is_as_large_as_asked_for() {
    /// Takes at least a kilobyte for each step down.
    fn deep(steps: usize) -> usize {
        let mut frame = [steps; 128];
        std::hint::black_box(&mut frame);
        if steps == 0 { 0 } else { 1 + deep(steps - 1) + frame[7] - steps }
    }
    let pool = Pool::builder().threads(1).stack_size(64 << 20).build().unwrap();
    let steps = if cfg!(miri) { 100 } else { 32 << 10 };
    assert_eq!(pool.install(|| deep(steps)), steps, "the usual two megabytes would not do");
}
