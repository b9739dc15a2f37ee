//! The pool as its users see it: results, panics, cancellation, priorities, waiting, ending.
#![cfg(not(any(loom, shuttle)))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use filch_pool::{CancelToken, Cancelled, Ctx, Pool, Priority, for_each, join, map, reduce, scope};

/// How often something is repeated. Under Miri, which is a thousand times slower, a few times must do.
fn times(full: usize) -> usize {
    if cfg!(miri) { full.div_ceil(50).min(10) } else { full }
}

fn pool(threads: usize) -> Pool {
    Pool::builder().threads(threads).build().unwrap()
}

fn fib(n: u32) -> u64 {
    if n < 2 {
        return u64::from(n);
    }
    let (a, b) = join(|| fib(n - 1), || fib(n - 2));
    a + b
}

fn fib_ctx(mut ctx: Ctx<'_>, n: u32) -> u64 {
    if n < 2 {
        return u64::from(n);
    }
    let (a, b) = ctx.join(move |ctx| fib_ctx(ctx, n - 1), move |ctx| fib_ctx(ctx, n - 2));
    a + b
}

#[test]
fn forks_with_and_without_context_agree() {
    let (depth, answer) = if cfg!(miri) { (7, 13) } else { (20, 6765) };
    for threads in [1, 2, 4] {
        let pool = pool(threads);
        for _ in 0..times(20) {
            assert_eq!(pool.install(|| fib(depth)), answer);
            assert_eq!(pool.run(|ctx| fib_ctx(ctx, depth)), answer);
        }
    }
    // The global pool never ends, which Miri takes for a leak.
    if !cfg!(miri) {
        assert_eq!(fib(10), 55, "in the global pool");
    }
}

/// Both ways mixed: the thread-local fork has to find the tail that the context carries.
#[test]
fn both_ways_of_forking_mix() {
    fn mixed(mut ctx: Ctx<'_>, n: u32) -> u64 {
        if n < 2 {
            return u64::from(n);
        }
        let (a, b) = ctx.join(
            move |ctx| {
                if n.is_multiple_of(3) {
                    join(|| 0, || filch_pool::run(|ctx| mixed(ctx, n - 1))).1
                } else {
                    mixed(ctx, n - 1)
                }
            },
            move |ctx| if n.is_multiple_of(2) { fib(n - 2) } else { mixed(ctx, n - 2) },
        );
        a + b
    }
    let (depth, answer) = if cfg!(miri) { (8, 21) } else { (17, 1597) };
    for threads in [1, 3] {
        let pool = pool(threads);
        for _ in 0..times(20) {
            assert_eq!(pool.run(|ctx| mixed(ctx, depth)), answer);
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "it is about time, which an interpreter has too much of")]
fn two_sleeping_arms_overlap() {
    let pool = pool(2);
    let began = Instant::now();
    pool.install(|| {
        join(|| std::thread::sleep(Duration::from_millis(50)), || std::thread::sleep(Duration::from_millis(50)))
    });
    assert!(began.elapsed() < Duration::from_millis(60), "{:?}", began.elapsed());
}

fn message(payload: &(dyn std::any::Any + Send)) -> &str {
    payload.downcast_ref::<&str>().copied().unwrap_or("?")
}

#[test]
fn a_panic_in_either_arm_arrives_and_both_arms_end() {
    struct Count<'a>(&'a AtomicUsize);
    impl Drop for Count<'_> {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    for threads in [1, 2, 4] {
        let pool = pool(threads);
        for round in 0..times(200) {
            let (began, ended) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let arm = |bad: bool, text: &'static str| {
                let (began, ended) = (&began, &ended);
                move || {
                    began.fetch_add(1, Ordering::SeqCst);
                    let _count = Count(ended);
                    fib(5);
                    if bad {
                        std::panic::panic_any(text);
                    }
                }
            };
            let (first, second) = (round % 2 == 0, round % 3 == 0);
            let result =
                catch_unwind(AssertUnwindSafe(|| pool.install(|| join(arm(first, "first"), arm(second, "second")))));
            let (began, ended) = (began.load(Ordering::SeqCst), ended.load(Ordering::SeqCst));
            match result {
                Ok(_) => assert!(!first && !second),
                Err(payload) => assert_eq!(message(&*payload), if first { "first" } else { "second" }),
            }
            assert_eq!(began, ended, "nothing runs any more");
            // If the first panics before anybody took the second, that one is not run.
            match (first, threads) {
                (false, _) => assert_eq!(ended, 2),
                (true, 1) => assert_eq!(ended, 1),
                (true, _) => assert!((1..=2).contains(&ended)),
            }
            assert_eq!(pool.install(|| fib(8)), 21, "the pool goes on");
        }
    }
}

#[test]
fn a_panic_deep_down_unwinds_through_many_forks() {
    fn deep(mut ctx: Ctx<'_>, n: u32, held: &Arc<()>) {
        if n == 0 {
            std::panic::panic_any("bottom");
        }
        let (left, right) = (Arc::clone(held), Arc::clone(held));
        ctx.join(move |ctx| deep(ctx, n - 1, &left), move |_| drop(right));
    }
    let pool = pool(2);
    let held = Arc::new(());
    for _ in 0..times(100) {
        let result = catch_unwind(AssertUnwindSafe(|| pool.run(|ctx| deep(ctx, 50, &held))));
        assert_eq!(message(&*result.unwrap_err()), "bottom");
        assert_eq!(Arc::strong_count(&held), 1, "every closure was run or dropped");
    }
}

/// What a forked closure carries is used once and dropped once, whatever its size, whoever runs it, and if nobody does.
#[test]
fn closures_of_every_size_are_run_or_dropped_once() {
    fn tree<const SIZE: usize>(mut ctx: Ctx<'_>, depth: u32, token: &Arc<()>, fail: bool) -> usize {
        if depth == 0 {
            assert!(!fail, "the first leaf");
            return 1;
        }
        let (carried, ballast) = (Arc::clone(token), [1; SIZE]);
        let second = move || ballast.iter().sum::<usize>() / SIZE * usize::from(Arc::strong_count(&carried) > 1);
        let (a, b) = if depth.is_multiple_of(2) {
            ctx.join(
                |ctx| tree::<SIZE>(ctx, depth - 1, token, fail),
                move |ctx| tree::<SIZE>(ctx, depth - 1, token, false) * second(),
            )
        } else {
            join(
                || filch_pool::run(|ctx| tree::<SIZE>(ctx, depth - 1, token, fail)),
                move || filch_pool::run(|ctx| tree::<SIZE>(ctx, depth - 1, token, false)) * second(),
            )
        };
        a + b
    }
    fn check<const SIZE: usize>(pool: &Pool) {
        let depth = if cfg!(miri) { 4 } else { 12 };
        let token = Arc::new(());
        for _ in 0..times(20) {
            assert_eq!(pool.run(|ctx| tree::<SIZE>(ctx, depth, &token, false)), 1 << depth);
            let failed = catch_unwind(AssertUnwindSafe(|| pool.run(|ctx| tree::<SIZE>(ctx, depth, &token, true))));
            assert_eq!(message(&*failed.unwrap_err()), "the first leaf");
            assert_eq!(Arc::strong_count(&token), 1);
        }
    }
    for threads in [1, 2] {
        check::<1>(&pool(threads));
        check::<2>(&pool(threads));
        check::<40>(&pool(threads));
    }
}

#[test]
fn forks_deeper_than_the_slots_run_in_order() {
    fn chain(mut ctx: Ctx<'_>, n: u32) -> u32 {
        if n == 0 {
            return 0;
        }
        let (a, b) = ctx.join(move |ctx| chain(ctx, n - 1), |_| 1);
        a + b
    }
    // Up to 8 MB of stack come with 16,384 slots, and the frames of this chain are small enough for more. The sanitizer
    // writes over what lies behind its own stack of 65,536 calls, and Miri takes an hour, so there the slots are not used up.
    let depth = if cfg!(miri) {
        500
    } else if cfg!(tsan) {
        8_000
    } else {
        17_000
    };
    let stack = 8 << 20;
    let pool = Pool::builder().threads(2).stack_size(stack).build().unwrap();
    for _ in 0..times(5) {
        assert_eq!(pool.run(|ctx| chain(ctx, depth)), depth);
    }
}

#[test]
fn a_deep_chain_of_long_leaves_is_shared() {
    fn chain(mut ctx: Ctx<'_>, n: u32, on: &[AtomicUsize]) {
        if n > 0 {
            ctx.join(
                |ctx| chain(ctx, n - 1, on),
                |_| {
                    let end = Instant::now() + Duration::from_micros(50);
                    while Instant::now() < end {}
                    on[filch_pool::current_worker().unwrap()].fetch_add(1, Ordering::Relaxed);
                },
            );
        }
    }
    let pool = pool(2);
    let on = [AtomicUsize::new(0), AtomicUsize::new(0)];
    pool.run(|ctx| chain(ctx, 400, &on));
    let [first, second] = on.map(AtomicUsize::into_inner);
    assert_eq!(first + second, 400);
    // All forks are made at once, long before the first leaf ends: thieves are heard at joins or not at all.
    if !cfg!(miri) {
        assert!(first.min(second) >= 40, "one worker did nearly all: {first} and {second}");
    }
}

/// A worker that ran another of these tasks while it waits inside one would want the lock that it holds. It waits only where
/// somebody took a fork or a task from it, hence the many rounds.
#[test]
fn a_lock_held_across_a_join_is_safe() {
    let pool = pool(3);
    let lock = Mutex::new(0);
    pool.scope(|scope| {
        for _ in 0..times(300) {
            scope.spawn(|_| {
                let mut guard = lock.lock().unwrap();
                assert_eq!(fib(10), 55);
                filch_pool::scope(|inner| inner.spawn(|_| _ = fib(5)));
                *guard += 1;
            });
        }
    });
    assert_eq!(lock.into_inner().unwrap(), times(300));
}

#[test]
fn a_scope_waits_for_tasks_of_tasks() {
    for threads in [1, 2, 4] {
        let pool = pool(threads);
        for _ in 0..times(20) {
            let count = AtomicUsize::new(0);
            pool.scope(|scope| {
                for _ in 0..10 {
                    scope.spawn(|scope| {
                        for _ in 0..10 {
                            scope.spawn(|_| _ = count.fetch_add(1, Ordering::Relaxed));
                        }
                    });
                }
            });
            assert_eq!(count.into_inner(), 100);
        }
    }
}

#[test]
fn scopes_nest_and_outer_tasks_can_be_spawned_from_inner_scopes() {
    let pool = pool(2);
    for _ in 0..times(50) {
        let count = AtomicUsize::new(0);
        pool.scope(|outer| {
            for _ in 0..4 {
                outer.spawn(|outer| {
                    scope(|inner| {
                        for _ in 0..4 {
                            inner.spawn(|_| _ = count.fetch_add(1, Ordering::Relaxed));
                            outer.spawn(|_| _ = count.fetch_add(1, Ordering::Relaxed));
                        }
                    });
                });
            }
        });
        assert_eq!(count.into_inner(), 32);
    }
}

/// All tasks come from a thread that is no worker, those of the outer scope first. The only worker waits for the inner one.
#[test]
fn tasks_of_a_scope_are_found_behind_those_of_another() {
    let (pool, tasks) = (pool(1), times(1000));
    let (outer_ran, inner_ran) = (&AtomicUsize::new(0), &AtomicUsize::new(0));
    pool.scope(|outer| {
        scope(|inner| {
            std::thread::scope(|threads| {
                threads.spawn(|| {
                    (0..tasks).for_each(|_| outer.spawn(|_| _ = outer_ran.fetch_add(1, Ordering::SeqCst)));
                    (0..tasks).for_each(|_| inner.spawn(|_| _ = inner_ran.fetch_add(1, Ordering::SeqCst)));
                });
            });
        });
        assert_eq!((outer_ran.load(Ordering::SeqCst), inner_ran.load(Ordering::SeqCst)), (0, tasks));
    });
    assert_eq!(outer_ran.load(Ordering::SeqCst), tasks);
}

#[test]
fn a_scope_passes_on_a_panic_after_everything_ended() {
    let pool = pool(2);
    for _ in 0..times(50) {
        let count = AtomicUsize::new(0);
        let result = catch_unwind(AssertUnwindSafe(|| {
            pool.scope(|scope| {
                for index in 0..20 {
                    let count = &count;
                    scope.spawn(move |_| {
                        count.fetch_add(1, Ordering::Relaxed);
                        if index == 7 {
                            std::panic::panic_any("task");
                        }
                    });
                }
            });
        }));
        assert_eq!(message(&*result.unwrap_err()), "task");
        assert_eq!(count.into_inner(), 20);
    }
    let body = catch_unwind(AssertUnwindSafe(|| pool.scope(|_| std::panic::panic_any("body"))));
    assert_eq!(message(&*body.unwrap_err()), "body");
}

#[test]
fn handles_bring_results_panics_and_wake_futures() {
    struct Flag(AtomicBool);
    impl std::task::Wake for Flag {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let pool = pool(2);
    let handles: Vec<_> = (0..times(1000)).map(|n| pool.spawn(move || n * 2)).collect();
    for (n, handle) in handles.into_iter().enumerate() {
        assert_eq!(handle.join(), Ok(n * 2));
    }
    let bad = pool.spawn(|| -> u32 { std::panic::panic_any("handle") });
    assert_eq!(message(&*catch_unwind(AssertUnwindSafe(|| bad.join())).unwrap_err()), "handle");

    let (go, wait) = mpsc::channel::<()>();
    let mut future = std::pin::pin!(pool.spawn(move || wait.recv().is_ok()));
    let flag = Arc::new(Flag(AtomicBool::new(false)));
    let waker = std::task::Waker::from(Arc::clone(&flag));
    let mut context = std::task::Context::from_waker(&waker);
    assert!(future.as_mut().poll(&mut context).is_pending());
    go.send(()).unwrap();
    while !flag.0.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
    assert_eq!(future.as_mut().poll(&mut context), std::task::Poll::Ready(Ok(true)));
}

#[test]
fn a_worker_runs_what_it_waits_for() {
    let pool = Arc::new(pool(1));
    let inner = Arc::clone(&pool);
    assert_eq!(pool.spawn(move || inner.spawn(|| 5).join()).join(), Ok(Ok(5)));
    pool.wait_idle();
    let stats = pool.stats();
    assert_eq!((stats.spawned, stats.executed), (2, 2));
}

#[test]
fn a_cancelled_task_does_not_start() {
    let pool = pool(1);
    let (go, wait) = mpsc::channel::<()>();
    pool.detach(move || _ = wait.recv());
    let token = CancelToken::new();
    let ran = Arc::new(AtomicBool::new(false));
    let mark = Arc::clone(&ran);
    let handle = pool.task().token(&token).spawn(move || mark.store(true, Ordering::SeqCst));
    let mark = Arc::clone(&ran);
    pool.task().token(&token).detach(move || mark.store(true, Ordering::SeqCst));
    token.cancel();
    go.send(()).unwrap();
    assert_eq!(handle.join(), Err(Cancelled));
    pool.wait_idle();
    assert!(!ran.load(Ordering::SeqCst));
}

#[test]
fn urgent_tasks_go_first_and_low_ones_are_not_forgotten() {
    let pool = pool(1);
    let (go, wait) = mpsc::channel::<()>();
    pool.detach(move || _ = wait.recv());
    let order = Arc::new(Mutex::new(Vec::new()));
    for (priority, count) in [(Priority::Low, 1), (Priority::Normal, 300), (Priority::High, 10)] {
        for _ in 0..count {
            let order = Arc::clone(&order);
            pool.task().priority(priority).detach(move || order.lock().unwrap().push(priority));
        }
    }
    go.send(()).unwrap();
    pool.wait_idle();
    let order = order.lock().unwrap();
    let first_normal = order.iter().position(|priority| *priority == Priority::Normal).unwrap();
    assert_eq!(first_normal, 10, "all high ones came first");
    let low = order.iter().position(|priority| *priority == Priority::Low).unwrap();
    assert!((10..150).contains(&low), "the low one came at {low} of {}", order.len());
}

#[test]
fn tasks_run_where_they_are_sent() {
    let pool = pool(3);
    for round in 0..times(100) {
        let where_it_ran = pool.spawn_on(round % 3, filch_pool::current_worker).join();
        assert_eq!(where_it_ran, Ok(Some(round % 3)));
    }
    let near = |key: &'static str| pool.spawn_near(key, filch_pool::current_worker).join().unwrap();
    let home = near("key");
    assert!((0..20).all(|_| near("key") == home));
}

#[test]
fn an_overloaded_worker_gets_help() {
    let pool = pool(2);
    let (go, wait) = mpsc::channel::<()>();
    let blocker = pool.spawn_on(0, move || wait.recv().is_ok());
    let ended = Arc::new(AtomicUsize::new(0));
    for _ in 0..1000 {
        let ended = Arc::clone(&ended);
        pool.task().on(0).detach(move || _ = ended.fetch_add(1, Ordering::SeqCst));
    }
    while ended.load(Ordering::SeqCst) < 900 {
        std::thread::yield_now();
    }
    go.send(()).unwrap();
    assert_eq!(blocker.join(), Ok(true));
    pool.wait_idle();
    assert_eq!(ended.load(Ordering::SeqCst), 1000);
}

#[test]
fn a_worker_is_overloaded_with_64_tasks_and_not_with_fewer() {
    let pool = pool(2);
    let (go, wait) = mpsc::channel::<()>();
    let (started, running) = mpsc::channel();
    let blocker = pool.spawn_on(0, move || {
        started.send(()).unwrap();
        wait.recv().is_ok()
    });
    running.recv().unwrap();
    let ended = Arc::new(AtomicUsize::new(0));
    let send = || {
        let ended = Arc::clone(&ended);
        pool.task().on(0).detach(move || _ = ended.fetch_add(1, Ordering::SeqCst));
    };
    (0..63).for_each(|_| send());
    // The other worker looks around after each of these.
    (0..times(200)).for_each(|_| pool.spawn_on(1, || ()).join().unwrap());
    assert_eq!(ended.load(Ordering::SeqCst), 0, "they wait for the worker they were sent to");
    send();
    while ended.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    go.send(()).unwrap();
    assert_eq!(blocker.join(), Ok(true));
    pool.wait_idle();
    assert_eq!(ended.load(Ordering::SeqCst), 64);
}

/// Nobody else runs anything or looks around: who sends the task that makes it too much wakes somebody.
#[test]
#[cfg_attr(miri, ignore = "it is about time, which an interpreter has too much of")]
fn an_overloaded_worker_gets_help_from_one_that_sleeps_for_good() {
    let pool = pool(2);
    let slept = || pool.worker_stats()[1].clone();
    let mut before = slept();
    // Longer than any nap, all in one sleep.
    while slept().parked < before.parked + Duration::from_millis(20) {
        if slept().parks != before.parks {
            before = slept();
        }
        std::thread::yield_now();
    }
    let (go, wait) = mpsc::channel::<()>();
    let (started, running) = mpsc::channel();
    let blocker = pool.spawn_on(0, move || {
        started.send(()).unwrap();
        wait.recv().is_ok()
    });
    running.recv().unwrap();
    let (ran, runs) = mpsc::channel();
    for _ in 0..64 {
        let ran = ran.clone();
        pool.task().on(0).detach(move || ran.send(filch_pool::current_worker()).unwrap());
    }
    let helped = runs.recv_timeout(Duration::from_secs(20));
    go.send(()).unwrap();
    assert_eq!(helped, Ok(Some(1)));
    assert_eq!(blocker.join(), Ok(true));
}

#[test]
fn broadcast_reaches_every_worker_also_from_several_at_once() {
    let pool = pool(3);
    for _ in 0..times(50) {
        assert_eq!(pool.broadcast(|index| (index, filch_pool::current_worker())), [0, 1, 2].map(|i| (i, Some(i))));
    }
    let pool = Arc::new(pool);
    let inner = Arc::clone(&pool);
    let (a, b) = pool.install(|| join(|| inner.broadcast(|index| index), || inner.broadcast(|index| index)));
    assert_eq!((a, b), (vec![0, 1, 2], vec![0, 1, 2]));
}

#[test]
fn loops_visit_everything_once() {
    for threads in [1, 2, 4] {
        let pool = pool(threads);
        for length in [0, 1, 2, 7, 1000, 100_000].into_iter().take(if cfg!(miri) { 4 } else { 6 }) {
            pool.install(|| {
                let mut numbers: Vec<usize> = (0..length).collect();
                for_each(&mut numbers, |number| *number += 1);
                assert!(numbers.iter().enumerate().all(|(index, number)| *number == index + 1));
                assert!(map(&numbers, |number| number * 2).iter().enumerate().all(|(i, n)| *n == 2 * (i + 1)));
                let order = reduce(
                    0..length,
                    Vec::new,
                    |i| vec![i],
                    |mut a, mut b| {
                        a.append(&mut b);
                        a
                    },
                );
                assert!(order.into_iter().eq(0..length), "in order");
                let count = AtomicUsize::new(0);
                for_each(0..length, |_| _ = count.fetch_add(1, Ordering::Relaxed));
                for_each(&numbers, |number| _ = count.fetch_add(*number, Ordering::Relaxed));
                assert_eq!(count.into_inner(), length + length * (length + 1) / 2);
                assert!(map(0..length, |number| number + 1) == numbers);
                assert_eq!(reduce(&numbers[..], || 0, |number| *number, usize::max), length);
                assert_eq!(reduce(&mut numbers, || 0, std::mem::take, usize::max), length);
                assert!(numbers.iter().all(|number| *number == 0));
            });
        }
    }
}

/// Every result that was there when an item panicked is dropped, and none twice.
#[test]
fn a_panic_in_a_map_drops_the_results_that_are_there() {
    struct Result<'a>(&'a AtomicUsize);
    impl Drop for Result<'_> {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let length = if cfg!(miri) { 50 } else { 5000 };
    for threads in [1, 2, 4] {
        let pool = pool(threads);
        for bad in [0, 1, length / 2, length - 1] {
            let (made, dropped) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let body = |index: usize| {
                if index == bad {
                    std::panic::panic_any("item");
                }
                made.fetch_add(1, Ordering::SeqCst);
                Result(&dropped)
            };
            let failed = catch_unwind(AssertUnwindSafe(|| pool.install(|| map(0..length, body)).len()));
            assert_eq!(message(&*failed.unwrap_err()), "item");
            assert_eq!(made.load(Ordering::SeqCst), dropped.load(Ordering::SeqCst));
        }
        let dropped = AtomicUsize::new(0);
        let results = pool.install(|| map(0..length, |_| Result(&dropped)));
        assert_eq!((results.len(), dropped.load(Ordering::SeqCst)), (length, 0));
        drop(results);
        assert_eq!(dropped.load(Ordering::SeqCst), length);
    }
}

#[test]
fn ranges_of_all_numbers_are_gone_through() {
    let pool = pool(2);
    pool.install(|| {
        assert_eq!(map(-2i64..3, |number| number), [-2, -1, 0, 1, 2]);
        assert_eq!(map(i8::MIN..i8::MAX, i32::from).into_iter().sum::<i32>(), -255);
        assert_eq!(reduce(250u8..255, || 0, u32::from, |a, b| a + b), 1260);
        assert_eq!(map(u64::MAX - 3..u64::MAX, |number| u64::MAX - number), [3, 2, 1]);
        #[expect(clippy::reversed_empty_ranges, reason = "that is the point")]
        for_each(5..2, |_: i32| panic!("there is nothing"));
        assert_eq!(map(u8::MIN..=u8::MAX, usize::from), (0..256).collect::<Vec<_>>());
        assert_eq!(map(i8::MIN..=i8::MAX, i32::from).into_iter().sum::<i32>(), -128);
        assert_eq!(map(u64::MAX - 1..=u64::MAX, |number| u64::MAX - number), [1, 0]);
        assert_eq!(map(7..=7, |number: i32| number), [7]);
        assert_eq!(reduce(1..=1000u64, || 0, |number| number, |a, b| a + b), 500_500);
        #[expect(clippy::reversed_empty_ranges, reason = "that is the point")]
        for_each(5..=2, |_: i32| panic!("there is nothing"));
        let mut exhausted = 3..=3;
        assert_eq!(exhausted.next(), Some(3));
        for_each(exhausted, |_| panic!("there is nothing left"));
        let too_long = catch_unwind(|| for_each(0..=usize::MAX, |_| ()));
        assert!(too_long.is_err(), "there is no number for so many");
    });
}

#[test]
fn wait_idle_waits_for_tasks_of_tasks() {
    let (pool, rounds) = (Arc::new(pool(2)), times(30) as u64);
    for _ in 0..rounds {
        let count = Arc::new(AtomicUsize::new(0));
        for _ in 0..20 {
            let (count, inner) = (Arc::clone(&count), Arc::downgrade(&pool));
            pool.detach(move || {
                for _ in 0..20 {
                    let count = Arc::clone(&count);
                    if let Some(pool) = inner.upgrade() {
                        pool.detach(move || _ = count.fetch_add(1, Ordering::SeqCst));
                    }
                }
            });
        }
        pool.wait_idle();
        assert_eq!(count.load(Ordering::SeqCst), 400);
    }
    let stats = pool.stats();
    assert_eq!((stats.spawned, stats.executed), (rounds * 420, rounds * 420));
    assert!(stats.steals_tried >= stats.steals_won);
    assert_eq!(pool.worker_stats().len(), 2);
}

/// Tasks sent to a worker that is held: nobody else may take them, until the pool ends.
#[test]
fn ending_drains_or_discards() {
    const SENT: usize = 50;
    for discard in [false, true] {
        let pool = pool(2);
        let (go, wait) = mpsc::channel::<()>();
        let (started, running) = mpsc::channel::<()>();
        let blocker = pool.task().on(0).spawn(move || {
            started.send(()).unwrap();
            wait.recv().is_ok()
        });
        running.recv().unwrap();
        let handles: Vec<_> = (0..SENT).map(|n| pool.spawn_on(0, move || n)).collect();
        let ender = std::thread::spawn(move || if discard { pool.shutdown_now() } else { pool.shutdown() });
        while !handles.iter().all(filch_pool::JoinHandle::is_finished) {
            std::thread::yield_now();
        }
        go.send(()).unwrap();
        ender.join().unwrap();
        assert_eq!(blocker.join(), Ok(true), "what runs is never cut off");
        let ran = handles.into_iter().filter_map(|handle| handle.join().ok()).count();
        assert_eq!(ran, if discard { 0 } else { SENT });
    }
}

#[test]
fn panics_of_detached_tasks_reach_the_handler_and_no_thread_dies() {
    let (sender, seen) = mpsc::channel();
    let sender = Mutex::new(sender);
    let pool = Pool::builder()
        .threads(2)
        .panic_handler(move |payload| {
            sender.lock().unwrap().send(message(&*payload).to_owned()).unwrap();
            panic!("handlers may panic too");
        })
        .build()
        .unwrap();
    for _ in 0..10 {
        pool.detach(|| std::panic::panic_any("detached"));
    }
    pool.wait_idle();
    assert_eq!(seen.iter().take(10).filter(|text| text == "detached").count(), 10);
    assert_eq!(pool.broadcast(|index| index), [0, 1]);
}

#[test]
fn hooks_names_and_refusals() {
    let calls = Arc::new(AtomicUsize::new(0));
    let (starts, exits) = (Arc::clone(&calls), Arc::clone(&calls));
    let pool = Pool::builder()
        .threads(3)
        .thread_names(|index| format!("mine-{index}"))
        .on_start(move |_| _ = starts.fetch_add(1, Ordering::SeqCst))
        .on_exit(move |_| _ = exits.fetch_add(100, Ordering::SeqCst))
        .build()
        .unwrap();
    let names = pool.broadcast(|_| std::thread::current().name().map(str::to_owned));
    assert_eq!(names, ["mine-0", "mine-1", "mine-2"].map(|name| Some(name.to_owned())));
    drop(pool);
    assert_eq!(calls.load(Ordering::SeqCst), 303);
    assert!(Pool::builder().threads(0).build().is_err());
    let zero = Pool::builder().threads(2).thread_names(|index| format!("a\0{index}")).build().unwrap_err();
    assert_eq!(zero.kind(), std::io::ErrorKind::InvalidInput);
    assert_eq!(zero.to_string(), "the name of worker 0 contains a zero byte: \"a\\00\"");
}

#[test]
fn pools_inside_pools() {
    let outer = pool(2);
    let inner = pool(2);
    for _ in 0..times(50) {
        let (a, b) = outer.install(|| join(|| inner.install(|| fib(10)), || inner.run(|ctx| fib_ctx(ctx, 10))));
        assert_eq!((a, b), (55, 55));
    }
    assert_eq!(outer.install(|| outer.install(|| 3)), 3);
    assert_eq!(outer.install(|| pool(1).install(|| fib(5))), 5, "made and dropped by a worker");
}

#[test]
fn thousands_of_pools_come_and_go() {
    for round in 0..times(2000) {
        let pool = pool(1 + round % 3);
        if round % 2 == 0 {
            assert_eq!(pool.install(|| join(|| 1, || 2)), (1, 2));
        }
        if round % 5 == 0 {
            pool.detach(|| ());
        }
    }
}

#[test]
fn a_pool_dropped_by_its_own_worker_ends() {
    let pool = Arc::new(pool(2));
    let (sender, receiver) = mpsc::channel();
    let own = Arc::clone(&pool);
    let (go, wait) = mpsc::channel::<()>();
    pool.detach(move || {
        wait.recv().unwrap();
        drop(own);
        sender.send(()).unwrap();
    });
    drop(pool);
    go.send(()).unwrap();
    receiver.recv().unwrap();
}

#[test]
fn storms_from_inside_and_outside_lose_nothing() {
    let pool = Arc::new(pool(2));
    let count = Arc::new(AtomicUsize::new(0));
    for _ in 0..4 {
        let (pool, count) = (Arc::clone(&pool), Arc::clone(&count));
        let inner = Arc::downgrade(&pool);
        pool.detach(move || {
            let Some(pool) = inner.upgrade() else { return };
            for _ in 0..times(20_000) {
                let count = Arc::clone(&count);
                pool.detach(move || _ = count.fetch_add(1, Ordering::Relaxed));
            }
        });
    }
    for _ in 0..times(20_000) {
        let count = Arc::clone(&count);
        pool.detach(move || _ = count.fetch_add(1, Ordering::Relaxed));
    }
    pool.wait_idle();
    assert_eq!(count.load(Ordering::Relaxed), 5 * times(20_000));
}
