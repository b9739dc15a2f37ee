//! Workers that have nothing to do take no processor time, and wake quickly.
#![cfg(all(target_os = "linux", not(any(loom, shuttle, miri))))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::sleep;
use std::time::{Duration, Instant};

use filch_pool::{Pool, current_worker, join, scope};

fn pool(threads: usize) -> Arc<Pool> {
    Arc::new(Pool::builder().threads(threads).build().unwrap())
}

/// The processor time a thread has taken so far.
fn cpu(thread: &str) -> Duration {
    let text = std::fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).unwrap();
    Duration::from_nanos(text.split_whitespace().next().unwrap().parse().unwrap())
}

fn this_thread() -> String {
    let path = std::fs::read_link("/proc/thread-self").unwrap();
    path.file_name().unwrap().to_str().unwrap().to_owned()
}

/// What the workers' threads take together while the body runs.
fn cpu_of(threads: &[String], body: impl FnOnce()) -> Duration {
    let all = || threads.iter().map(|thread| cpu(thread)).sum::<Duration>();
    let before = all();
    body();
    all() - before
}

#[test]
fn an_idle_pool_takes_no_processor_time() {
    let pool = pool(4);
    let threads = pool.broadcast(|_| this_thread());
    pool.install(|| filch_pool::for_each(0..100_000, |index| _ = std::hint::black_box(index)));
    let taken = cpu_of(&threads, || sleep(Duration::from_secs(1)));
    assert!(taken < Duration::from_millis(5), "{taken:?} in a second");
}

/// One worker runs something long that does not fork. Another one looks now and then whether it does, the rest sleep.
#[test]
fn a_pool_with_one_busy_worker_hardly_takes_more() {
    let pool = pool(4);
    let threads = pool.broadcast(|_| this_thread());
    let taken = cpu_of(&threads, || {
        pool.install(|| {
            // From then on somebody is awake to look after it.
            join(|| (), || ());
            sleep(Duration::from_secs(1));
        });
    });
    assert!(taken < Duration::from_millis(100), "{taken:?} in a second");
}

/// Calls the body on a worker while another one is free to run what the first waits for. Returns what the first took while
/// it waited for about half a second.
fn taken_by_waiting(pool: &Arc<Pool>, body: impl FnOnce() + Send) -> Duration {
    pool.install(|| cpu_of(&[this_thread()], body))
}

const REST: Duration = Duration::from_millis(500);

#[test]
fn a_worker_that_waits_takes_no_processor_time() {
    let (pool, other) = (pool(2), pool(1));
    let begun = &AtomicBool::new(false);
    let rest = || {
        begun.store(true, Ordering::SeqCst);
        sleep(REST);
    };
    let until_begun = || {
        while !begun.swap(false, Ordering::SeqCst) {
            sleep(Duration::from_millis(1));
        }
    };
    let fork = taken_by_waiting(&pool, || _ = join(until_begun, rest));
    let in_scope = taken_by_waiting(&pool, || {
        scope(|scope| {
            scope.spawn(|_| rest());
            until_begun();
        });
    });
    let handle = taken_by_waiting(&pool, || {
        let (started, wait) = mpsc::channel();
        let task = pool.spawn(move || {
            started.send(()).unwrap();
            sleep(REST);
        });
        wait.recv().unwrap();
        task.join().unwrap();
    });
    let across = taken_by_waiting(&pool, || other.install(|| sleep(REST)));
    let elsewhere = taken_by_waiting(&pool, || other.spawn(|| sleep(REST)).join().unwrap());
    let broadcast = taken_by_waiting(&pool, || {
        let here = current_worker();
        pool.broadcast(|index| {
            if Some(index) != here {
                sleep(REST);
            }
        });
    });
    for taken in [fork, in_scope, handle, across, elsewhere, broadcast] {
        assert!(taken < REST / 100, "{taken:?} in {REST:?}");
    }
}

/// The middle one of many, because the machine may be busy with something else now and then.
#[test]
fn a_parked_pool_wakes_at_once() {
    let pool = pool(2);
    let wake = |_| {
        // Long enough for everybody to be asleep for good.
        sleep(Duration::from_millis(10));
        let began = Instant::now();
        pool.install(|| ());
        began.elapsed()
    };
    let mut times: Vec<Duration> = (0..25).map(wake).collect();
    times.sort_unstable();
    assert!(times[12] < Duration::from_millis(2), "{times:?}");
}
