//! Panics where nobody waits: in the drop of a payload or a result nobody wants, in a waker. No scope or join ends before its
//! arms have, and no worker dies.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Wake, Waker};
use std::thread::yield_now;
use std::time::Duration;

use filch_pool::Pool;

/// Panics when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("dropped");
        }
    }
}

fn pool(threads: usize) -> Pool {
    Pool::builder().threads(threads).build().unwrap()
}

#[test]
fn a_scope_waits_for_its_tasks_whatever_the_payloads_of_others_do() {
    let pool = pool(2);
    let (began, go_on, ended) = (AtomicBool::new(false), AtomicBool::new(false), AtomicBool::new(false));
    let panics = AtomicU32::new(0);
    let result = catch_unwind(AssertUnwindSafe(|| {
        pool.scope(|scope| {
            scope.spawn(|_| {
                began.store(true, Ordering::SeqCst);
                while !go_on.load(Ordering::SeqCst) {
                    yield_now();
                }
                ended.store(true, Ordering::SeqCst);
            });
            while !began.load(Ordering::SeqCst) {
                yield_now();
            }
            for _ in 0..2 {
                scope.spawn(|_| {
                    panics.fetch_add(1, Ordering::SeqCst);
                    panic_any(Bomb);
                });
            }
            scope.spawn(|_| go_on.store(true, Ordering::SeqCst));
        });
    }));
    assert!(ended.load(Ordering::SeqCst), "the scope was left while a task ran");
    assert_eq!(panics.load(Ordering::SeqCst), 2);
    // The first payload arrives; dropping it is ours to survive.
    std::mem::forget(result.unwrap_err());
    assert_eq!(pool.install(|| 7), 7);
}

#[test]
fn a_result_nobody_wants_may_panic_when_it_is_dropped() {
    let pool = pool(1);
    let (send, receive) = mpsc::channel::<()>();
    drop(pool.spawn(move || {
        // The handle is gone by then.
        receive.recv().unwrap();
        Bomb
    }));
    send.send(()).unwrap();
    assert_eq!(pool.install(|| 7), 7, "the only worker is still there");
    pool.wait_idle();
}

#[test]
fn a_payload_nobody_handles_may_panic_when_it_is_dropped() {
    let pool = pool(1);
    pool.detach(|| panic_any(Bomb));
    pool.wait_idle();
    assert_eq!(pool.install(|| 7), 7);
    let handled = Pool::builder().threads(1).panic_handler(|_| panic_any(Bomb)).build().unwrap();
    handled.detach(|| panic!("handled by one that panics"));
    handled.wait_idle();
    assert_eq!(handled.install(|| 7), 7);
}

#[test]
fn the_end_of_all_tasks_is_noticed_while_a_worker_is_busy_with_something_else() {
    let pool = pool(1);
    let (release, released) = mpsc::channel::<()>();
    let (began, begun) = mpsc::channel::<()>();
    std::thread::scope(|threads| {
        let (gate, started) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (opened, begins) = (Arc::clone(&gate), Arc::clone(&started));
        pool.detach(move || {
            begins.store(true, Ordering::SeqCst);
            until(|| opened.load(Ordering::SeqCst));
        });
        // Otherwise the worker might begin with the other.
        until(|| started.load(Ordering::SeqCst));
        let pool = &pool;
        let inside = threads.spawn(move || {
            pool.install(move || {
                began.send(()).unwrap();
                released.recv_timeout(Duration::from_secs(20)).is_ok()
            })
        });
        gate.store(true, Ordering::SeqCst);
        begun.recv().unwrap();
        pool.wait_idle();
        release.send(()).unwrap();
        assert!(inside.join().unwrap(), "it waited for the body of an install too");
    });
}

#[test]
fn a_waker_may_panic() {
    struct Wakes(AtomicU32);
    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
            panic!("woken");
        }
    }
    let pool = pool(1);
    let (send, receive) = mpsc::channel::<()>();
    let wakes = Arc::new(Wakes(AtomicU32::new(0)));
    let waker = Waker::from(Arc::clone(&wakes));
    let mut handle = pin!(pool.spawn(move || receive.recv().unwrap()));
    assert!(handle.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    send.send(()).unwrap();
    pool.wait_idle();
    assert_eq!(wakes.0.load(Ordering::SeqCst), 1);
    assert_eq!(pool.install(|| 7), 7);
}

#[test]
fn whoever_drops_a_handle_does_not_hear_of_the_result() {
    let pool = pool(1);
    let handle = pool.spawn(|| Bomb);
    until(|| handle.is_finished());
    pool.wait_idle();
    drop(handle);
    assert_eq!(pool.install(|| 7), 7);
}

#[test]
fn whoever_helps_anyone_does_not_hear_of_their_results() {
    let pool = Pool::builder().threads(2).help_anyone(true).build().unwrap();
    for _ in 0..200 {
        let ended = AtomicBool::new(false);
        pool.install(|| {
            for _ in 0..4 {
                drop(pool.spawn(|| Bomb));
            }
            filch_pool::join(|| (), || ended.store(true, Ordering::SeqCst));
        });
        assert!(ended.load(Ordering::SeqCst));
    }
    pool.wait_idle();
}

fn until(condition: impl Fn() -> bool) {
    while !condition() {
        yield_now();
    }
}

/// One worker holds a lock and waits for a fork, which the other took while it waits for the first on top of a fork of its own
/// that wants the same lock.
#[test]
fn whoever_waits_takes_nothing_below_what_it_waits_for() {
    let (rounds, pauses) = if cfg!(miri) { (2, 30) } else { (20, 1000) };
    for _ in 0..rounds {
        let pool = pool(2);
        let sum = Arc::new(Mutex::new(0));
        let (started, taken) = (Arc::new(AtomicBool::new(false)), AtomicBool::new(false));
        let (inner, begun) = (Arc::clone(&sum), Arc::clone(&started));
        let handle = pool.spawn(move || {
            begun.store(true, Ordering::SeqCst);
            let mut guard = inner.lock().unwrap();
            filch_pool::join(
                || until(|| taken.load(Ordering::SeqCst)),
                || {
                    taken.store(true, Ordering::SeqCst);
                    // Long enough that whoever holds the lock goes looking for something to help with.
                    for _ in 0..pauses {
                        yield_now();
                    }
                },
            );
            *guard += 1;
        });
        until(|| started.load(Ordering::SeqCst));
        pool.install(|| filch_pool::join(|| handle.join().unwrap(), || *sum.lock().unwrap() += 1));
        assert_eq!(*sum.lock().unwrap(), 2);
    }
}

#[test]
fn the_owner_of_an_inner_scope_leaves_the_outer_one_alone() {
    let pool = pool(2);
    let (ran, taken, ended) = (&AtomicU32::new(0), &AtomicBool::new(false), &AtomicBool::new(false));
    let shared = &pool;
    pool.scope(|outer| {
        let own = filch_pool::current_worker().unwrap();
        filch_pool::scope(|inner| {
            inner.spawn(move |_| {
                taken.store(true, Ordering::SeqCst);
                let parks = || shared.worker_stats()[own].parks;
                let before = parks();
                until(|| parks() >= before + 5);
                assert_eq!(ran.load(Ordering::SeqCst), 0, "a task of the outer scope ran in the wait for the inner");
                ended.store(true, Ordering::SeqCst);
            });
            until(|| taken.load(Ordering::SeqCst));
            outer.spawn(move |_| {
                ran.fetch_add(1, Ordering::SeqCst);
            });
        });
        assert!(ended.load(Ordering::SeqCst));
    });
    assert_eq!(ran.load(Ordering::SeqCst), 1);
}
