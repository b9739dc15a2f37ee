//! Pools that enter each other in a circle, end each other, and futures awaited on workers: nobody waits for itself.
#![cfg(not(any(loom, shuttle)))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use filch_pool::{Pool, current_worker, join};

/// Far more than anything here takes.
const LIMIT: Duration = Duration::from_secs(20);

fn pool(threads: usize) -> Arc<Pool> {
    Arc::new(Pool::builder().threads(threads).build().unwrap())
}

/// Fails if the body does not end.
fn ends<R: Send + 'static>(body: impl FnOnce() -> R + Send + 'static) -> R {
    let (send, receive) = mpsc::channel();
    let thread = std::thread::spawn(move || send.send(body()).unwrap());
    let result = receive.recv_timeout(LIMIT);
    if matches!(result, Err(mpsc::RecvTimeoutError::Timeout)) {
        panic!("it hangs");
    }
    thread.join().unwrap();
    result.unwrap()
}

fn until(mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < LIMIT, "it never comes");
        std::thread::yield_now();
    }
}

/// Every pair of sizes from 1 to 4, a few under Miri.
fn sizes() -> impl Iterator<Item = (usize, usize)> {
    let most = if cfg!(miri) { 2 } else { 4 };
    (1..=most).flat_map(move |a| (1..=most).map(move |b| (a, b)))
}

#[test]
fn a_pool_entered_again_from_another_that_it_entered() {
    for (a, b) in sizes() {
        ends(move || {
            let (a, b) = (pool(a), pool(b));
            let sum = a.install(|| b.install(|| a.install(|| b.install(|| a.install(|| join(|| 20, || 22))))));
            assert_eq!(sum, (20, 22));
        });
    }
}

/// Every worker of both pools waits for the other pool at the same time.
#[test]
fn many_circles_at_once() {
    for (a, b) in sizes() {
        ends(move || {
            let (a, b) = (pool(a), pool(b));
            let rounds = if cfg!(miri) { 3 } else { 50 };
            let ran = AtomicUsize::new(0);
            std::thread::scope(|threads| {
                for (first, second) in [(&a, &b), (&b, &a)] {
                    let ran = &ran;
                    threads.spawn(move || {
                        first.scope(|scope| {
                            for _ in 0..rounds {
                                scope.spawn(|_| {
                                    second.install(|| join(|| first.install(|| ()), || first.install(|| ())));
                                    ran.fetch_add(1, Ordering::SeqCst);
                                });
                            }
                        });
                    });
                }
            });
            assert_eq!(ran.load(Ordering::SeqCst), 2 * rounds);
        });
    }
}

#[test]
fn three_pools_in_a_circle() {
    for threads in 1..=2 {
        ends(move || {
            let [a, b, c] = [(); 3].map(|()| pool(threads));
            assert_eq!(a.install(|| b.install(|| c.install(|| a.install(|| b.install(|| 7))))), 7);
        });
    }
}

/// Somebody else of the second pool comes back: an arm, a task of a scope, a task with a handle.
#[test]
fn whoever_comes_back_need_not_be_the_one_that_was_entered() {
    for (first, second) in sizes() {
        ends(move || {
            let (a, b) = (pool(first), pool(second));
            let arms = a.install(|| b.install(|| join(|| a.install(|| 1), || a.install(|| 2))));
            assert_eq!(arms, (1, 2));
            let ran = AtomicUsize::new(0);
            a.install(|| {
                b.scope(|scope| {
                    for _ in 0..8 {
                        scope.spawn(|_| a.install(|| _ = ran.fetch_add(1, Ordering::SeqCst)));
                    }
                });
            });
            assert_eq!(ran.load(Ordering::SeqCst), 8);
            let back = Arc::clone(&a);
            assert_eq!(a.install(|| b.spawn(move || back.install(|| 3)).join()), Ok(3));
            let back = Arc::clone(&a);
            b.detach(move || back.install(|| ()));
            a.install(|| b.wait_idle());
        });
    }
}

#[test]
fn a_broadcast_reaches_workers_that_wait_for_another_pool() {
    for (a, b) in sizes() {
        ends(move || {
            let (a, b) = (pool(a), pool(b));
            let all: Vec<usize> = (0..a.threads()).collect();
            assert_eq!(a.install(|| b.install(|| a.broadcast(|index| index))), all);
            let parts = a.broadcast(|_| b.broadcast(|_| a.install(|| 1)).len());
            assert_eq!(parts, vec![b.threads(); a.threads()]);
        });
    }
}

#[test]
fn a_pool_is_dropped_by_whom_it_waits_for() {
    for (a, b) in sizes() {
        ends(move || {
            let (a, b) = (pool(a), pool(b));
            let (ended, end) = mpsc::channel::<()>();
            let (go, wait) = mpsc::channel::<()>();
            let (inner, other) = (Arc::clone(&a), Arc::clone(&b));
            a.detach(move || {
                wait.recv().unwrap();
                // The last one that holds the pool is a worker of the other, for which a worker of this one waits.
                other.install(move || drop(inner));
                drop(ended);
            });
            drop(a);
            go.send(()).unwrap();
            assert!(end.recv().is_err(), "the task came back");
            assert_eq!(b.install(|| 7), 7);
        });
    }
}

#[test]
fn a_pool_is_dropped_by_a_worker_its_tasks_still_need() {
    for threads in 1..=2 {
        ends(move || {
            let (a, b) = (pool(threads), pool(1));
            let ran = Arc::new(AtomicUsize::new(0));
            for _ in 0..20 {
                let (b, ran) = (Arc::clone(&b), Arc::clone(&ran));
                a.detach(move || b.install(|| _ = ran.fetch_add(1, Ordering::SeqCst)));
            }
            // The only worker of the other pool drops this one, whose tasks enter the other pool.
            b.install(move || drop(a));
            until(|| ran.load(Ordering::SeqCst) == 20);
        });
    }
}

#[test]
fn a_worker_that_drops_another_pool_waits_for_its_tasks() {
    for _ in 0..if cfg!(miri) { 2 } else { 100 } {
        let (outer, ran) = (pool(2), Arc::new(AtomicUsize::new(0)));
        outer.install(|| {
            let inner = pool(2);
            for _ in 0..10 {
                let ran = Arc::clone(&ran);
                inner.detach(move || {
                    join(|| join(|| (), || ()), std::thread::yield_now);
                    ran.fetch_add(1, Ordering::SeqCst);
                });
            }
            drop(inner);
            assert_eq!(ran.load(Ordering::SeqCst), 10);
        });
    }
}

struct Unpark(std::thread::Thread, AtomicBool);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.1.store(true, Ordering::SeqCst);
        self.0.unpark();
    }
}

/// As simple as they come: parks the thread until the future is woken.
fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let unpark = Arc::new(Unpark(std::thread::current(), AtomicBool::new(false)));
    let waker = Waker::from(Arc::clone(&unpark));
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        while !unpark.1.swap(false, Ordering::SeqCst) {
            std::thread::park();
        }
    }
}

#[test]
fn a_future_awaited_on_a_worker_is_run_there_if_nobody_began_it() {
    for threads in 1..=4 {
        ends(move || {
            let pool = pool(threads);
            let inner = Arc::clone(&pool);
            let chain = move || {
                let deeper = Arc::clone(&inner);
                block_on(async move {
                    let handles: Vec<_> = (0..10).map(|n| deeper.spawn(move || n)).collect();
                    let mut sum = 0;
                    for handle in handles {
                        sum += handle.await.unwrap();
                    }
                    sum
                })
            };
            assert_eq!(pool.spawn(chain).join(), Ok(45));
            pool.wait_idle();
            let stats = pool.stats();
            assert_eq!((stats.spawned, stats.executed), (11, 11));
        });
    }
}

/// One that somebody runs is left to whoever runs it, and who waits for it lets its own forks be taken.
#[test]
fn a_future_that_somebody_runs_is_waited_for_and_forks_are_not_held_back() {
    ends(|| {
        let pool = pool(2);
        let (started, running) = mpsc::channel();
        let (go, wait) = mpsc::channel();
        let task = pool.spawn(move || {
            started.send(current_worker()).unwrap();
            wait.recv().unwrap();
            // The other worker sleeps in a future: this takes what it forked before.
            7
        });
        let on = running.recv().unwrap();
        let ran_on = pool.install(|| {
            let here = current_worker();
            assert_ne!(here, on);
            join(
                || {
                    go.send(()).unwrap();
                    assert_eq!(block_on(task), Ok(7));
                    here
                },
                current_worker,
            )
        });
        assert!(ran_on.0.is_some() && ran_on.1.is_some());
    });
}

/// Whoever looks at a handle as a future first and blocks on it later is woken, not whoever looked.
#[test]
fn a_worker_blocks_on_a_handle_that_was_polled_before() {
    ends(|| {
        let (waiting, other) = (pool(1), pool(1));
        let (polled, started) = mpsc::channel();
        let (go, wait) = mpsc::channel::<()>();
        let mut task = other.spawn(move || wait.recv().is_ok());
        let sleep = || (waiting.stats().parks, waiting.stats().parked);
        std::thread::scope(|threads| {
            let body = move || {
                assert!(pin!(&mut task).poll(&mut Context::from_waker(Waker::noop())).is_pending());
                polled.send(()).unwrap();
                task.join()
            };
            let result = threads.spawn(|| waiting.install(body));
            // It sleeps until it is told.
            started.recv().unwrap();
            let mut seen = sleep();
            until(|| {
                let now = sleep();
                if now.0 != seen.0 {
                    seen = now;
                }
                now.1 > seen.1 + Duration::from_millis(20)
            });
            go.send(()).unwrap();
            assert_eq!(result.join().unwrap(), Ok(true));
        });
    });
}

/// Nobody but the pool's only worker could run the task, and that one waits for whoever waits for the task.
#[test]
fn a_task_spawned_back_into_a_pool_that_waits_is_run() {
    for (a, b) in sizes() {
        ends(move || {
            let (a, b) = (pool(a), pool(b));
            assert_eq!(a.install(|| b.install(|| a.spawn(|| 7).join())), Ok(7));
            let back = Arc::clone(&a);
            let chain = move || back.spawn(|| 8).join();
            assert_eq!(a.install(|| b.spawn(chain).join()), Ok(Ok(8)));
            let back = Arc::clone(&a);
            assert_eq!(a.install(|| b.install(|| block_on(back.spawn(|| 9)))), Ok(9), "as a future, too");
            let all = |task: usize| a.install(|| b.install(|| a.task().on(task).spawn(move || task).join()));
            assert!((0..4).all(|task| all(task) == Ok(task)));
            a.wait_idle();
            let stats = a.stats();
            assert_eq!((stats.spawned, stats.executed), (7, 7), "each once");
        });
    }
}

/// A worker of another pool entered with a task that somebody ran meanwhile, or that nobody comes to take any more.
#[test]
fn what_a_handle_entered_with_is_not_left_behind() {
    ends(|| {
        for round in 0..if cfg!(miri) { 5 } else { 300 } {
            let (a, b) = (pool(1), pool(1));
            let token = Arc::new(());
            let kept = Arc::clone(&token);
            let result = b.install(move || {
                let handle = a.spawn(move || Arc::clone(&kept));
                // The pool ends while, or before, the handle is looked at.
                let ending = std::thread::spawn(move || drop(a));
                if round % 2 == 0 {
                    ending.join().unwrap();
                }
                handle.join().unwrap()
            });
            drop(result);
            until(|| Arc::strong_count(&token) == 1);
        }
    });
}
