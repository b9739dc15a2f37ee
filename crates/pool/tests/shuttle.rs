//! Whole-pool scenarios under shuttle's random schedules. Compiled only with `--cfg shuttle`.
#![cfg(shuttle)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::panic::{AssertUnwindSafe, catch_unwind};

use filch_pool::{CancelToken, Ctx, Pool};
use shuttle::sync::Arc;
use shuttle::sync::atomic::{AtomicUsize, Ordering};

fn pool(threads: usize) -> Pool {
    Pool::builder().threads(threads).stack_size(256 << 10).build().unwrap()
}

/// Tries random schedules, then ones that preempt rarely and at the worst places.
fn check(body: fn()) {
    let rounds = std::env::var("SHUTTLE_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(300);
    shuttle::check_random(body, rounds);
    shuttle::check_pct(body, rounds, 3);
}

fn fib(mut ctx: Ctx<'_>, n: u32) -> u32 {
    if n < 2 {
        return n;
    }
    let (a, b) = ctx.join(move |ctx| fib(ctx, n - 1), move |ctx| fib(ctx, n - 2));
    a + b
}

#[test]
fn forks() {
    check(|| {
        let pool = pool(2);
        assert_eq!(pool.run(|ctx| fib(ctx, 5)), 5);
        assert_eq!(pool.install(|| filch_pool::join(|| 1, || filch_pool::join(|| 2, || 3))), (1, (2, 3)));
    });
}

#[test]
fn a_panicking_arm() {
    check(|| {
        let pool = pool(2);
        let result = catch_unwind(AssertUnwindSafe(|| {
            pool.run(|mut ctx| ctx.join(|ctx| fib(ctx, 3), |_| std::panic::resume_unwind(Box::new("arm"))))
        }));
        assert!(result.is_err());
        assert_eq!(pool.run(|ctx| fib(ctx, 3)), 2);
    });
}

#[test]
fn scopes() {
    check(|| {
        let pool = pool(2);
        let count = AtomicUsize::new(0);
        pool.scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|scope| {
                    count.fetch_add(1, Ordering::SeqCst);
                    scope.spawn(|_| _ = count.fetch_add(1, Ordering::SeqCst));
                });
            }
        });
        assert_eq!(count.load(Ordering::SeqCst), 4);
    });
}

#[test]
fn spawned_tasks_and_waiting_for_all_of_them() {
    check(|| {
        let pool = pool(2);
        let count = Arc::new(AtomicUsize::new(0));
        let handle = pool.spawn(|| 7);
        for _ in 0..3 {
            let count = Arc::clone(&count);
            pool.detach(move || _ = count.fetch_add(1, Ordering::SeqCst));
        }
        let skipped = CancelToken::new();
        skipped.cancel();
        assert!(pool.task().token(&skipped).on(1).spawn(|| ()).join().is_err());
        assert_eq!(handle.join(), Ok(7));
        pool.wait_idle();
        assert_eq!(count.load(Ordering::SeqCst), 3);
    });
}

#[test]
fn ending() {
    check(|| {
        let pool = pool(2);
        let count = Arc::new(AtomicUsize::new(0));
        for _ in 0..3 {
            let count = Arc::clone(&count);
            pool.detach(move || _ = count.fetch_add(1, Ordering::SeqCst));
        }
        pool.shutdown();
        assert_eq!(count.load(Ordering::SeqCst), 3);
    });
}

/// Each pool has one worker, which waits for the other pool and is needed there.
#[test]
fn pools_in_a_circle() {
    check(|| {
        let (a, b) = (pool(1), pool(1));
        assert_eq!(a.install(|| b.install(|| a.install(|| 7))), 7);
        assert_eq!(a.install(|| b.broadcast(|_| a.broadcast(|index| index))), [[0]]);
    });
}

#[test]
fn a_pool_dropped_by_whom_it_waits_for() {
    check(|| {
        let (a, b) = (Arc::new(pool(1)), Arc::new(pool(1)));
        let (last, other, count) = (Arc::clone(&a), Arc::clone(&b), Arc::new(AtomicUsize::new(0)));
        let ran = Arc::clone(&count);
        a.detach(move || {
            other.install(move || drop(last));
            ran.fetch_add(1, Ordering::SeqCst);
        });
        drop(a);
        while count.load(Ordering::SeqCst) == 0 {
            shuttle::thread::yield_now();
        }
    });
}

/// A worker waits for what another runs, and helps it: with its forks, with tasks of its scope, with a task it holds a handle of.
#[test]
fn waiting_workers_are_told() {
    check(|| {
        let pool = Arc::new(pool(2));
        pool.install(|| {
            filch_pool::join(
                || filch_pool::join(|| (), || ()),
                || filch_pool::join(|| (), || filch_pool::join(|| (), || ())),
            )
        });
        let count = AtomicUsize::new(0);
        pool.scope(|scope| {
            scope.spawn(|scope| {
                scope.spawn(|_| _ = filch_pool::join(|| (), || _ = count.fetch_add(1, Ordering::SeqCst)));
                scope.spawn(|_| _ = count.fetch_add(1, Ordering::SeqCst));
            });
        });
        assert_eq!(count.load(Ordering::SeqCst), 2);
        let task = pool.spawn(|| filch_pool::join(|| 1, || 2));
        assert_eq!(pool.install(|| task.join()), Ok((1, 2)));
    });
}
