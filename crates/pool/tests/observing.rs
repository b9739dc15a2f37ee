//! What a pool tells about itself: hooks and statistics.
#![cfg(not(any(loom, shuttle)))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use filch_pool::{CancelToken, Pool, Stats, current_worker, join};

const TASKS: usize = if cfg!(miri) { 10 } else { 1000 };

#[test]
fn every_spawned_task_is_seen_to_start_and_stop() {
    let (starts, running) = (Arc::new(AtomicUsize::new(0)), Arc::new([const { AtomicI64::new(0) }; 2]));
    let (counted, up, down) = (Arc::clone(&starts), Arc::clone(&running), Arc::clone(&running));
    let pool = Pool::builder()
        .threads(2)
        .on_task_start(move |worker| {
            assert_eq!(Some(worker), current_worker());
            counted.fetch_add(1, Ordering::SeqCst);
            up[worker].fetch_add(1, Ordering::SeqCst);
        })
        .on_task_stop(move |worker| _ = down[worker].fetch_sub(1, Ordering::SeqCst))
        .build()
        .unwrap();
    let here = Arc::clone(&running);
    let inside = move || here[current_worker().unwrap()].load(Ordering::SeqCst);
    for _ in 0..TASKS {
        let inside = inside.clone();
        pool.detach(move || assert!(inside() >= 1));
    }
    let seen = inside.clone();
    assert!(pool.spawn(move || seen() == 1).join().unwrap());
    pool.scope(|scope| (0..TASKS).for_each(|_| scope.spawn(|_| assert!(inside() >= 1))));
    pool.install(|| join(|| (), || ()));
    let bad = pool.spawn(|| std::panic::panic_any("stops too"));
    assert!(catch_unwind(AssertUnwindSafe(|| bad.join())).is_err());
    pool.detach(|| std::panic::panic_any("stops too"));
    let token = CancelToken::new();
    token.cancel();
    assert!(pool.task().token(&token).spawn(|| ()).join().is_err());
    pool.task().token(&token).detach(|| ());
    pool.wait_idle();
    assert_eq!(starts.load(Ordering::SeqCst), 2 * TASKS + 3, "neither forks nor cancelled tasks");
    assert_eq!(running.each_ref().map(|count| count.load(Ordering::SeqCst)), [0, 0]);
    let stats = pool.stats();
    assert_eq!((stats.spawned, stats.executed), (2 * TASKS as u64 + 5, 2 * TASKS as u64 + 5));
}

#[test]
fn a_hook_that_panics_harms_nobody() {
    let (sender, seen) = mpsc::channel();
    let pool = Pool::builder()
        .threads(1)
        .panic_handler(move |payload| sender.send(payload.downcast_ref::<&str>().copied()).unwrap())
        .on_task_start(|_| std::panic::panic_any("start"))
        .on_task_stop(|_| std::panic::panic_any("stop"))
        .build()
        .unwrap();
    assert_eq!(pool.spawn(|| 7).join(), Ok(7));
    pool.scope(|scope| scope.spawn(|_| ()));
    assert_eq!(seen.iter().take(4).collect::<Vec<_>>(), ["start", "stop", "start", "stop"].map(Some));
}

fn sum(parts: &[Stats], field: impl Fn(&Stats) -> u64) -> u64 {
    parts.iter().map(field).sum()
}

#[test]
fn the_figures_are_true() {
    let pool = Arc::new(Pool::builder().threads(2).build().unwrap());
    // Two tasks from outside, one from inside; one fork that another worker must take; nothing else.
    let inner = Arc::downgrade(&pool);
    let first = pool.task().on(0).spawn(move || {
        let taken = AtomicBool::new(false);
        join(
            || {
                while !taken.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
            },
            || taken.store(true, Ordering::SeqCst),
        );
        inner.upgrade().unwrap().detach(|| ());
    });
    first.join().unwrap();
    pool.spawn(|| ()).join().unwrap();
    pool.wait_idle();
    let (total, workers) = (pool.stats(), pool.worker_stats());
    assert_eq!((total.spawned, total.executed, total.jobs_stolen), (3, 3, 1));
    assert_eq!((workers[0].spawned, workers[1].spawned), (1, 0));
    assert_eq!((workers[0].jobs_stolen, workers[1].jobs_stolen), (0, 1));
    assert_eq!(sum(&workers, |stats| stats.executed), 3);
    assert!(workers[1].steals_won >= 1);
    // An idle worker won that one, so its search was timed; who waits is not in the histogram.
    assert!(workers[1].steal_latency.iter().sum::<u64>() >= 1);
    for stats in &workers {
        assert_eq!(stats.steals_tried, stats.steals_won + stats.steals_failed());
        assert!(stats.steal_latency.iter().sum::<u64>() <= stats.steals_won, "{stats:?}");
    }
}

#[test]
#[cfg_attr(miri, ignore = "it is about time, which an interpreter has too much of")]
fn the_total_is_the_sum_and_sleep_is_counted() {
    let pool = Pool::builder().threads(2).build().unwrap();
    let parked = |pool: &Pool| pool.worker_stats().into_iter().map(|stats| stats.parked).collect::<Vec<_>>();
    pool.broadcast(|_| ());
    // Nobody wakes them: what they sleep is seen while they do.
    let (began, before) = (std::time::Instant::now(), parked(&pool));
    let slept = || parked(&pool).into_iter().zip(&before).map(|(after, before)| after - *before).collect::<Vec<_>>();
    while slept().into_iter().any(|time| time < Duration::from_millis(20)) {
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", slept());
        std::thread::sleep(Duration::from_millis(1));
    }
    let slept = slept();
    assert!(slept.iter().all(|time| *time <= began.elapsed()), "no more than there was: {slept:?}");
    pool.broadcast(|_| ());
    let mut last = parked(&pool);
    for _ in 0..1000 {
        let now = parked(&pool);
        assert!(last.iter().zip(&now).all(|(last, now)| last <= now), "it never runs back");
        last = now;
        pool.install(|| ());
    }
    let (total, workers) = (pool.stats(), pool.worker_stats());
    assert!(total.parks <= sum(&workers, |stats| stats.parks));
    assert!(total.parked <= workers.iter().map(|stats| stats.parked).sum());
    assert!(workers.iter().all(|stats| stats.parks > 0));
}
