//! Nobody is forgotten: priorities, mail and cancellation under floods that never end by themselves.
#![cfg(not(any(loom, shuttle)))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak, mpsc};
use std::time::Duration;

use filch_pool::{CancelToken, Pool, Priority, TaskBuilder};

fn one_worker() -> Arc<Pool> {
    Arc::new(Pool::builder().threads(1).build().unwrap())
}

/// A task that follows itself until the flag is set.
fn flood(pool: &Pool, weak: Weak<Pool>, end: Arc<AtomicBool>, how: fn(TaskBuilder<'_>) -> TaskBuilder<'_>) {
    how(pool.task()).detach(move || {
        if let (Some(pool), false) = (weak.upgrade(), end.load(Ordering::SeqCst)) {
            flood(&pool, weak, end, how);
        }
    });
}

/// Two floods of one kind around one task of another kind, all queued by the worker itself. Ends only if that one runs.
fn survives(how: fn(TaskBuilder<'_>) -> TaskBuilder<'_>, waiting: fn(TaskBuilder<'_>) -> TaskBuilder<'_>) {
    let pool = one_worker();
    let (inner, ran) = (Arc::downgrade(&pool), Arc::new(AtomicBool::new(false)));
    pool.detach(move || {
        let Some(pool) = inner.upgrade() else { return };
        flood(&pool, inner.clone(), Arc::clone(&ran), how);
        let mark = Arc::clone(&ran);
        waiting(pool.task()).detach(move || mark.store(true, Ordering::SeqCst));
        flood(&pool, inner, ran, how);
    });
    pool.wait_idle();
}

#[test]
fn a_low_task_survives_a_flood_of_high_ones() {
    survives(|task| task.priority(Priority::High), |task| task.priority(Priority::Low));
}

#[test]
fn low_mail_survives_a_flood_of_high_mail() {
    survives(|task| task.on(0).priority(Priority::High), |task| task.on(0).priority(Priority::Low));
}

#[test]
fn a_task_survives_a_flood_of_mail_and_mail_a_flood_of_tasks() {
    survives(|task| task.on(0).priority(Priority::High), |task| task.priority(Priority::Low));
    survives(|task| task.priority(Priority::High), |task| task.on(0).priority(Priority::Low));
}

#[test]
fn an_old_task_survives_a_flood_of_newer_ones_of_its_kind() {
    survives(|task| task, |task| task);
    survives(|task| task.priority(Priority::Low), |task| task.priority(Priority::Low));
}

/// A worker is held after it queued a low task; the other has a flood of high ones that never ends by itself.
#[test]
fn a_low_task_of_a_worker_that_is_held_survives_a_flood_elsewhere() {
    let pool = Arc::new(Pool::builder().threads(2).build().unwrap());
    let (held, hold) = mpsc::channel();
    let (flooded, floods) = mpsc::channel();
    let (ran, done) = mpsc::channel();
    let end = Arc::new(AtomicBool::new(false));
    let (weak, ended) = (Arc::downgrade(&pool), Arc::clone(&end));
    let flooding = pool.spawn_on(1, move || {
        let Some(pool) = weak.upgrade() else { return };
        flood(&pool, weak, ended, |task| task.priority(Priority::High));
        flooded.send(()).unwrap();
    });
    floods.recv().unwrap();
    let weak = Arc::downgrade(&pool);
    let blocked = pool.spawn_on(0, move || {
        let Some(pool) = weak.upgrade() else { return };
        pool.task().priority(Priority::Low).detach(move || {
            end.store(true, Ordering::SeqCst);
            ran.send(()).unwrap();
        });
        hold.recv().unwrap();
    });
    let survived = done.recv_timeout(Duration::from_secs(20));
    held.send(()).unwrap();
    survived.unwrap();
    blocked.join().unwrap();
    flooding.join().unwrap();
}

/// Also between tasks that were sent to the worker and tasks that were not.
#[test]
fn urgent_tasks_go_first_wherever_they_wait() {
    let pool = one_worker();
    let (go, wait) = mpsc::channel::<()>();
    let (started, running) = mpsc::channel();
    pool.detach(move || {
        started.send(()).unwrap();
        wait.recv().unwrap();
    });
    running.recv().unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    let add = |task: TaskBuilder<'_>, name| {
        let order = Arc::clone(&order);
        task.detach(move || order.lock().unwrap().push(name));
    };
    add(pool.task().on(0).priority(Priority::Low), "low mail");
    add(pool.task().priority(Priority::Low), "low");
    add(pool.task().on(0), "first normal mail");
    add(pool.task(), "normal");
    add(pool.task().on(0), "second normal mail");
    add(pool.task().priority(Priority::High), "high");
    add(pool.task().on(0).priority(Priority::High), "high mail");
    go.send(()).unwrap();
    pool.wait_idle();
    let order = order.lock().unwrap();
    let expected = ["high mail", "high", "first normal mail", "second normal mail", "normal", "low mail", "low"];
    assert_eq!(*order, expected);
}

/// One of the tasks cancels the others while workers are busy with them.
#[test]
fn cancelling_in_the_middle_of_a_storm_skips_exactly_what_has_not_started() {
    let (rounds, tasks) = if cfg!(miri) { (1, 30) } else { (20, 2000) };
    for round in 0..rounds {
        let pool = Pool::builder().threads(2).build().unwrap();
        let (token, ran) = (CancelToken::new(), Arc::new(AtomicUsize::new(0)));
        let handles: Vec<_> = (0..tasks)
            .map(|_| {
                let (cancel, ran) = (token.clone(), Arc::clone(&ran));
                pool.task().token(&token).spawn(move || {
                    if ran.fetch_add(1, Ordering::SeqCst) == tasks / 10 + round {
                        cancel.cancel();
                    }
                })
            })
            .collect();
        let ended = handles.into_iter().map(filch_pool::JoinHandle::join).filter(Result::is_ok).count();
        let ran = ran.load(Ordering::SeqCst);
        assert_eq!(ended, ran, "who says that it ran did, and the other way round");
        // One more may have started on the other worker meanwhile.
        assert!((tasks / 10 + round + 1..=tasks / 10 + round + 2).contains(&ran), "{ran} of {tasks} ran");
        pool.wait_idle();
        let stats = pool.stats();
        assert_eq!((stats.spawned, stats.executed), (tasks as u64, tasks as u64), "skipped ones have ended too");
    }
}
