//! Many threads, many tasks, workers that come and go: nothing is lost, every task ends exactly once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use filch::{Balancer, Config, Error, Task, Worker};

const SUBMITTERS: u64 = 4;
const RUNNERS: u64 = 4;

/// How many tasks: a million, or what `FILCH_STRESS_TASKS` says.
fn tasks() -> u64 {
    std::env::var("FILCH_STRESS_TASKS").ok().and_then(|text| text.parse().ok()).unwrap_or(1_000_000)
}

/// What happened to each task, by its payload.
struct Ledger {
    runs: Vec<AtomicU32>,
    completed: AtomicU64,
    finished: AtomicBool,
}

/// Lets the runners end, also when something has failed: the failure must be seen, not waited for.
struct Finish<'a>(&'a Ledger);

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        self.0.finished.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_million_tasks_with_workers_coming_and_going() {
    let tasks = tasks();
    let mut config = Config::default();
    config.limits.max_queued = 50_000;
    config.limits.quarantine_after = 0;
    let balancer: Balancer<u64, u64> = Balancer::builder().config(config).build().unwrap();
    let ledger = Arc::new(Ledger {
        runs: (0..tasks).map(|_| AtomicU32::new(0)).collect(),
        completed: AtomicU64::new(0),
        finished: AtomicBool::new(false),
    });
    std::thread::scope(|scope| {
        let finish = Finish(&ledger);
        let runners: Vec<_> = (0..RUNNERS)
            .map(|index| {
                let (balancer, ledger) = (balancer.clone(), Arc::clone(&ledger));
                scope.spawn(move || run(&balancer, &ledger, index))
            })
            .collect();
        let submitters: Vec<_> = (0..SUBMITTERS)
            .map(|index| {
                let balancer = balancer.clone();
                scope.spawn(move || submit(&balancer, tasks, index))
            })
            .collect();
        for submitter in submitters {
            submitter.join().unwrap();
        }
        // Idle alone is not the end: the last task may just have left with its worker, to be submitted again.
        let start = Instant::now();
        while ledger.completed.load(Ordering::SeqCst) < tasks {
            assert!(!runners.iter().any(|runner| runner.is_finished()), "a runner has failed");
            assert!(start.elapsed() < Duration::from_secs(600), "{:?}", balancer.metrics());
            balancer.wait_idle(Duration::from_millis(100));
            std::thread::yield_now();
        }
        drop(finish);
        for runner in runners {
            runner.join().unwrap();
        }
    });
    assert_eq!(ledger.completed.load(Ordering::SeqCst), tasks);
    assert!(ledger.runs.iter().all(|runs| runs.load(Ordering::SeqCst) == 1), "every task ends exactly once");
    let metrics = balancer.metrics();
    assert_eq!(metrics.completed, tasks);
    assert_eq!(metrics.submitted, tasks + metrics.returned);
    assert!(metrics.returned > 0, "workers left with tasks: {metrics:?}");
    assert_eq!((metrics.total_queued, metrics.running, metrics.failed), (0, 0, 0));
    balancer.check().unwrap();
}

fn submit(balancer: &Balancer<u64, u64>, tasks: u64, index: u64) {
    for number in index * tasks / SUBMITTERS..(index + 1) * tasks / SUBMITTERS {
        let task = match number % 16 {
            0 => Task::with_payload(number).priority((number % 5 + 1) as u8).kind("odd"),
            1 => Task::with_payload(number).requires("special"),
            _ => Task::with_payload(number),
        };
        loop {
            match balancer.submit(task.clone()) {
                Ok(_) => break,
                Err(Error::QueueFull { .. }) => std::thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// Registers as a new worker again and again, and leaves in each of the possible ways.
fn run(balancer: &Balancer<u64, u64>, ledger: &Ledger, index: u64) {
    let mut life = 0;
    while !ledger.finished.load(Ordering::SeqCst) {
        life += 1;
        let id = format!("worker-{index}-{life}");
        let worker = balancer.register_worker(Worker::new(&id).slots(2).capability("special")).unwrap();
        let tasks_of_this_life = 2_000 + 100 * index;
        for round in 0..tasks_of_this_life {
            let Some(assignment) = balancer.next_timeout(worker, Duration::from_millis(2)).unwrap() else { break };
            match round % 50 {
                7 => drop(assignment),
                8 => assignment.give_back().unwrap(),
                _ => {
                    assignment.start().unwrap();
                    let payload = *assignment.payload();
                    assignment.succeed(payload * 2).unwrap();
                    ledger.runs[payload as usize].fetch_add(1, Ordering::SeqCst);
                    ledger.completed.fetch_add(1, Ordering::SeqCst);
                }
            }
        }
        leave(balancer, ledger, &id, life);
    }
}

fn leave(balancer: &Balancer<u64, u64>, ledger: &Ledger, id: &str, life: u64) {
    let held = balancer.next(id).unwrap();
    if life.is_multiple_of(2) {
        balancer.unregister_and_requeue(id).unwrap();
        if let Some(held) = held {
            let task = held.id();
            match held.succeed(0) {
                Err(Error::Stale { .. }) => {}
                // Others may have finished so many tasks meanwhile, that one among them, that the machine has forgotten it;
                // or it has left with another worker. Either way it is not open any more.
                Err(Error::UnknownTask(_)) => {
                    assert!(balancer.status(task).map_or(true, |now| now.status.is_settled()));
                }
                other => panic!("a revoked attempt counts: {other:?}"),
            }
        }
        return;
    }
    for returned in balancer.unregister_worker(id).unwrap() {
        let payload = *returned.task.payload_ref();
        assert_eq!(ledger.runs[payload as usize].load(Ordering::SeqCst), 0);
        // What was accepted once must not be refused because others came meanwhile.
        while let Err(error) = balancer.submit(returned.task.clone()) {
            assert!(matches!(error, Error::QueueFull { .. }), "{error}");
            std::thread::yield_now();
        }
    }
    if let Some(held) = held {
        assert!(held.is_revoked());
    }
}
