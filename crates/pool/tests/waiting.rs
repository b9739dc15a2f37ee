//! What a worker does while it waits: it helps with what it waits for, with nothing else unless told, and on bounded stack.
#![cfg(not(any(loom, shuttle)))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use filch_pool::{Pool, current_worker, join};

fn until(mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < Duration::from_secs(60), "it never comes");
        std::thread::yield_now();
    }
}

/// Until a worker that waits does not wake up by itself any more: it has been in one sleep for long.
fn until_asleep(pool: &Pool, worker: usize) {
    let sleep = || {
        let stats = &pool.worker_stats()[worker];
        (stats.parks, stats.parked)
    };
    let mut seen = sleep();
    until(|| {
        let now = sleep();
        if now.0 != seen.0 {
            seen = now;
        }
        now.1 > seen.1 + Duration::from_millis(20)
    });
}

/// Two workers. One waits for its second arm, which the other runs: `inside` is called there, with the index of the one
/// that waits.
fn while_waiting(pool: &Pool, inside: impl FnOnce(usize) + Send) {
    let taken = AtomicBool::new(false);
    pool.install(|| {
        let waiting = current_worker().unwrap();
        join(
            || until(|| taken.load(Ordering::SeqCst)),
            || {
                taken.store(true, Ordering::SeqCst);
                inside(waiting);
            },
        );
    });
}

#[test]
fn unrelated_work_is_left_alone_while_waiting() {
    let pool = Arc::new(Pool::builder().threads(2).build().unwrap());
    let ran = Arc::new(AtomicUsize::new(0));
    let (shared, count) = (Arc::clone(&pool), Arc::clone(&ran));
    while_waiting(&pool, move |waiting| {
        let handles: Vec<_> = [None, Some(waiting)]
            .into_iter()
            .map(|place| {
                let count = Arc::clone(&count);
                let task = if let Some(worker) = place { shared.task().on(worker) } else { shared.task() };
                task.spawn(move || _ = count.fetch_add(1, Ordering::SeqCst))
            })
            .collect();
        // It looked around for something to do several times, and helped with what it waits for.
        let stolen = || shared.worker_stats()[waiting].jobs_stolen;
        let before = stolen();
        until(|| {
            join(|| (), || ());
            stolen() >= before + 3
        });
        assert_eq!(count.load(Ordering::SeqCst), 0);
        drop(handles);
    });
    pool.wait_idle();
    assert_eq!(ran.load(Ordering::SeqCst), 2);
}

#[test]
fn unrelated_work_is_run_if_asked_for() {
    let pool = Arc::new(Pool::builder().threads(2).help_anyone(true).build().unwrap());
    let shared = Arc::clone(&pool);
    // The one that runs the second arm is busy: without help nobody could run these.
    while_waiting(&pool, move |waiting| {
        let on = Arc::new(AtomicUsize::new(usize::MAX));
        for task in [shared.task(), shared.task().on(waiting)] {
            let ran_on = Arc::clone(&on);
            task.detach(move || ran_on.store(current_worker().unwrap(), Ordering::SeqCst));
            until(|| on.swap(usize::MAX, Ordering::SeqCst) == waiting);
        }
    });
    // The same for one that waits for a task.
    let shared = Arc::clone(&pool);
    let (go, wait) = mpsc::channel::<()>();
    let task = pool.spawn(move || wait.recv().is_ok());
    let waiting = pool.spawn(move || {
        shared.detach(move || go.send(()).unwrap());
        task.join()
    });
    assert_eq!(waiting.join(), Ok(Ok(true)));
}

/// Every task takes the lock and waits for a fork, a scope and a task of its own while it holds it.
#[test]
fn a_lock_held_while_waiting_cannot_deadlock() {
    let rounds = if cfg!(miri) { 5 } else { 200 };
    let pool = Arc::new(Pool::builder().threads(3).build().unwrap());
    let lock = Arc::new(Mutex::new(0));
    for _ in 0..rounds {
        let (lock, inner) = (Arc::clone(&lock), Arc::downgrade(&pool));
        pool.detach(move || {
            let Some(pool) = inner.upgrade() else { return };
            let mut guard = lock.lock().unwrap();
            join(|| join(|| (), || ()), || join(|| (), || ()));
            filch_pool::scope(|scope| scope.spawn(|_| ()));
            assert_eq!(pool.spawn(|| join(|| 1, || 2)).join(), Ok((1, 2)));
            *guard += 1;
        });
    }
    pool.wait_idle();
    assert_eq!(*lock.lock().unwrap(), rounds);
}

/// The thief is held in the first arm of a fork until somebody takes the second, and only the waiting one can.
#[test]
fn a_worker_helps_the_thief_of_its_fork() {
    let pool = Pool::builder().threads(2).build().unwrap();
    while_waiting(&pool, |waiting| {
        let helper = AtomicUsize::new(usize::MAX);
        join(
            || until(|| helper.load(Ordering::SeqCst) == waiting),
            || helper.store(current_worker().unwrap(), Ordering::SeqCst),
        );
    });
    let stats = pool.stats();
    assert!(stats.jobs_stolen >= 2 && stats.steals_won >= 2, "{stats:?}");
}

#[test]
fn a_worker_helps_with_the_task_it_waits_for() {
    let pool = Arc::new(Pool::builder().threads(2).build().unwrap());
    let started = Arc::new(AtomicBool::new(false));
    let mark = Arc::clone(&started);
    let task = pool.spawn(move || {
        mark.store(true, Ordering::SeqCst);
        let helper = AtomicUsize::new(usize::MAX);
        let here = current_worker().unwrap();
        join(
            || until(|| ![usize::MAX, here].contains(&helper.load(Ordering::SeqCst))),
            || helper.store(current_worker().unwrap(), Ordering::SeqCst),
        );
    });
    until(|| started.load(Ordering::SeqCst));
    pool.install(|| task.join()).unwrap();
}

/// The task calls everybody, also the one that waits for it.
#[test]
fn a_worker_does_its_part_of_a_broadcast_while_it_waits_for_a_task() {
    let pool = Arc::new(Pool::builder().threads(2).build().unwrap());
    let (inner, (started, wait)) = (Arc::clone(&pool), mpsc::channel::<()>());
    let (waiting, other) = mpsc::channel();
    let task = pool.spawn(move || {
        started.send(()).unwrap();
        other.recv().unwrap();
        inner.broadcast(|index| index)
    });
    wait.recv().unwrap();
    let parts = pool.install(|| {
        waiting.send(()).unwrap();
        task.join()
    });
    assert_eq!(parts, Ok(vec![0, 1]));
}

const FORKS: usize = if cfg!(miri) { 100 } else { 1_000_000 };

/// Both on a stack that would not hold a thousandth of it, if anything were left on it.
#[test]
fn a_million_forks_inside_a_waiting_worker_need_no_stack() {
    let pool = Pool::builder().threads(2).stack_size(256 << 10).build().unwrap();
    // One fork after the other, which the waiting worker can take again and again.
    while_waiting(&pool, |waiting| {
        let mut done = 0;
        while done < FORKS || pool.worker_stats()[waiting].jobs_stolen == 0 {
            join(|| (), || ());
            done += 1;
        }
    });
    // A fork the waiting worker takes, and in which it forks a million times.
    while_waiting(&pool, |waiting| {
        let ended = AtomicBool::new(false);
        join(
            || until(|| ended.load(Ordering::SeqCst)),
            || {
                assert_eq!(current_worker(), Some(waiting));
                (0..FORKS).for_each(|_| _ = join(|| (), || ()));
                ended.store(true, Ordering::SeqCst);
            },
        );
    });
}

/// Many forks stolen inside of each other: the helper's own wait may be helped again, but only by what it consists of.
#[test]
fn helping_stays_as_deep_as_the_work() {
    fn tree(depth: u32) -> u64 {
        if depth == 0 {
            return 1;
        }
        let (a, b) = join(|| tree(depth - 1), || tree(depth - 1));
        a + b
    }
    let (rounds, depth) = if cfg!(miri) { (1, 5) } else { (50, 12) };
    let pool = Pool::builder().threads(4).stack_size(256 << 10).build().unwrap();
    for _ in 0..rounds {
        assert_eq!(pool.install(|| tree(depth)), 1 << depth);
    }
}

/// Three workers. One waits for its scope and finds a task of another scope, which it must leave alone. Then a task of its own
/// scope comes up in a place where only it can take it.
#[test]
fn a_scope_is_helped_after_tasks_of_another_were_found() {
    let pool = Pool::builder().threads(3).build().unwrap();
    let (held, entered, taken) = (AtomicBool::new(true), AtomicBool::new(false), AtomicBool::new(false));
    let spawned = AtomicBool::new(false);
    let (owner, ran_on) = (AtomicUsize::new(usize::MAX), AtomicUsize::new(usize::MAX));
    let won = |worker: usize| pool.worker_stats()[worker].steals_won;
    std::thread::scope(|threads| {
        threads.spawn(|| {
            pool.install(|| {
                until(|| taken.load(Ordering::SeqCst));
                let before = won(owner.load(Ordering::SeqCst));
                filch_pool::scope(|other| {
                    other.spawn(|_| ());
                    spawned.store(true, Ordering::SeqCst);
                    until(|| won(owner.load(Ordering::SeqCst)) > before);
                    entered.store(true, Ordering::SeqCst);
                    until(|| !held.load(Ordering::SeqCst));
                });
            });
        });
        pool.scope(|scope| {
            owner.store(current_worker().unwrap(), Ordering::SeqCst);
            scope.spawn(|scope| {
                taken.store(true, Ordering::SeqCst);
                until(|| entered.load(Ordering::SeqCst));
                for _ in 0..3 {
                    ran_on.store(usize::MAX, Ordering::SeqCst);
                    scope.spawn(|_| ran_on.store(current_worker().unwrap(), Ordering::SeqCst));
                    until(|| ran_on.load(Ordering::SeqCst) == owner.load(Ordering::SeqCst));
                }
                held.store(false, Ordering::SeqCst);
            });
            // Somebody else takes it. The wait begins when there is something of the other scope to be found.
            until(|| taken.load(Ordering::SeqCst) && spawned.load(Ordering::SeqCst));
        });
    });
}

/// The owner of a scope sleeps because there is nothing it could do. Then there is something, and only it can do it.
#[test]
#[cfg_attr(miri, ignore = "it is about time, which an interpreter has too much of")]
fn the_owner_of_a_scope_is_told_of_new_tasks() {
    let pool = Pool::builder().threads(2).build().unwrap();
    let (taken, ran_on) = (AtomicBool::new(false), AtomicUsize::new(usize::MAX));
    pool.scope(|scope| {
        let owner = current_worker().unwrap();
        let (pool, taken, ran_on) = (&pool, &taken, &ran_on);
        scope.spawn(move |scope| {
            taken.store(true, Ordering::SeqCst);
            until_asleep(pool, owner);
            scope.spawn(move |_| ran_on.store(current_worker().unwrap(), Ordering::SeqCst));
            until(|| ran_on.load(Ordering::SeqCst) == owner);
        });
        until(|| taken.load(Ordering::SeqCst));
    });
}

/// A worker waits for a fork and has taken all that its thief had put out. The thief has one more, which its next join puts
/// out: it forks no more, and whoever waits has to be told by then.
#[test]
#[cfg_attr(miri, ignore = "it is about time, which an interpreter has too much of")]
fn a_waiting_worker_is_told_of_a_fork_that_a_join_puts_out() {
    let pool = Pool::builder().threads(2).build().unwrap();
    let (held, helper) = (AtomicBool::new(true), AtomicUsize::new(usize::MAX));
    let (first, second) = (AtomicUsize::new(usize::MAX), AtomicBool::new(false));
    while_waiting(&pool, |waiting| {
        let innermost = || {
            held.store(false, Ordering::SeqCst);
            until(|| second.load(Ordering::SeqCst));
            until_asleep(&pool, waiting);
            assert_eq!(helper.load(Ordering::SeqCst), usize::MAX, "it was put out too early");
        };
        // This one is not taken by then, so it runs where it was forked, after its join has put the one below it out.
        let last = || until(|| helper.load(Ordering::SeqCst) == waiting);
        let private = || join(innermost, last);
        let public = || {
            // Whoever takes the first asks for more, and gets the second. While it is held, it asks no more.
            until(|| first.load(Ordering::SeqCst) == waiting);
            let more = || join(private, || helper.store(current_worker().unwrap(), Ordering::SeqCst));
            join(more, || second.store(true, Ordering::SeqCst));
        };
        join(public, || {
            first.store(current_worker().unwrap(), Ordering::SeqCst);
            until(|| !held.load(Ordering::SeqCst));
        });
    });
}

/// The pool is being dropped while a task still forks: both arms can end only if two workers run them.
#[test]
fn a_pool_that_ends_still_shares_what_its_tasks_fork() {
    let exits = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&exits);
    let pool = Pool::builder().threads(2).on_exit(move |_| _ = count.fetch_add(1, Ordering::SeqCst)).build().unwrap();
    let (started, running) = mpsc::channel();
    let (ending, end) = mpsc::channel::<()>();
    let result = pool.spawn(move || {
        started.send(()).unwrap();
        end.recv().unwrap();
        // The idle worker has been told by now; without reason to stay it would be gone soon.
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(100) && exits.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        let (here, other) = (current_worker(), AtomicBool::new(false));
        join(
            || until(|| other.load(Ordering::SeqCst)),
            || {
                other.store(true, Ordering::SeqCst);
                assert_ne!(current_worker(), here);
            },
        );
    });
    running.recv().unwrap();
    let dropping = std::thread::spawn(move || drop(pool));
    ending.send(()).unwrap();
    assert_eq!(result.join(), Ok(()));
    dropping.join().unwrap();
}

const HELD_BACK: usize = 8;

fn until_all_ran(ran: &AtomicUsize) {
    until(|| ran.load(Ordering::SeqCst) == HELD_BACK);
}

/// A worker forks while the other is held, so that hardly anything is published. Then it blocks in `block`, which ends only
/// when all the forks have been run: they must be public by then, since the worker that made them answers nobody any more.
fn forks_are_taken_while(block: impl Fn(Arc<AtomicUsize>) + Sync) {
    fn forks(left: usize, ran: &AtomicUsize, innermost: &(dyn Fn() + Sync)) {
        if left == 0 {
            innermost();
        } else {
            join(|| forks(left - 1, ran, innermost), || _ = ran.fetch_add(1, Ordering::SeqCst));
        }
    }
    let pool = Pool::builder().threads(2).build().unwrap();
    let (held, ran) = (AtomicBool::new(true), Arc::new(AtomicUsize::new(0)));
    std::thread::scope(|threads| {
        let (began, begun) = mpsc::channel();
        let (pool, held) = (&pool, &held);
        threads.spawn(move || {
            pool.install(|| {
                began.send(()).unwrap();
                until(|| !held.load(Ordering::SeqCst));
            });
        });
        begun.recv().unwrap();
        pool.install(|| {
            forks(HELD_BACK, &ran, &|| {
                held.store(false, Ordering::SeqCst);
                block(Arc::clone(&ran));
            });
        });
    });
}

#[test]
fn a_worker_that_blocks_lets_its_forks_be_taken() {
    let other = Pool::builder().threads(1).build().unwrap();
    forks_are_taken_while(|ran| other.install(|| until_all_ran(&ran)));
    forks_are_taken_while(|ran| other.spawn(move || until_all_ran(&ran)).join().unwrap());
    forks_are_taken_while(|ran| {
        other.detach(move || until_all_ran(&ran));
        other.wait_idle();
    });
    forks_are_taken_while(|ran| _ = other.broadcast(|_| until_all_ran(&ran)));
    forks_are_taken_while(|ran| {
        let another = Pool::builder().threads(1).build().unwrap();
        another.detach(move || until_all_ran(&ran));
        drop(another);
    });
    forks_are_taken_while(|ran| {
        let mut task = std::pin::pin!(other.spawn(move || until_all_ran(&ran)));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        while Future::poll(task.as_mut(), &mut context).is_pending() {
            std::thread::yield_now();
        }
    });
}

/// Nobody looks for the end of all tasks more often than every few milliseconds: the worker that ends the last one tells.
#[test]
#[cfg_attr(miri, ignore = "it is about time, which an interpreter has too much of")]
fn whoever_waits_for_the_end_of_all_tasks_is_told() {
    let pool = Pool::builder().threads(1).build().unwrap();
    let wait = |_| {
        let (ended, end) = mpsc::channel();
        pool.detach(move || {
            // Long enough for the one that waits to look away for as long as it ever does.
            std::thread::sleep(Duration::from_millis(50));
            ended.send(Instant::now()).unwrap();
        });
        pool.wait_idle();
        end.recv().unwrap().elapsed()
    };
    let mut times: Vec<Duration> = (0..16).map(wait).collect();
    times.sort_unstable();
    // Without being told it would see the end after 10 ms on average.
    assert!(times[4] < Duration::from_millis(2), "{times:?}");
}

/// A worker waits for a fork and has taken all that its thief had put out. The thief has used up its slots; a fork that finds no
/// room puts older ones out, and whoever waits has to be told of them.
#[test]
#[cfg_attr(miri, ignore = "it is about time, which an interpreter has too much of")]
#[cfg_attr(tsan, ignore = "the sanitizer cannot follow so many calls")]
fn a_waiting_worker_is_told_of_forks_that_one_without_room_puts_out() {
    /// So many come with the stack below.
    const SLOTS: usize = 1 << 15;
    struct Told<'a> {
        pool: &'a Pool,
        waiting: usize,
        first: AtomicUsize,
        second: AtomicBool,
        full: AtomicBool,
        helper: AtomicUsize,
    }
    fn fill(mut ctx: filch_pool::Ctx<'_>, index: usize, told: &Told<'_>) {
        match index {
            // Its fork is published, since it is the first of all. Held by whoever takes it until all slots are full.
            0 => ctx.join(
                |ctx| {
                    until(|| told.first.load(Ordering::SeqCst) == told.waiting);
                    fill(ctx, 1, told);
                },
                |_| {
                    told.first.store(current_worker().unwrap(), Ordering::SeqCst);
                    until(|| told.full.load(Ordering::SeqCst));
                },
            ),
            // This one answers the request of whoever took the first.
            1 => ctx.join(|ctx| fill(ctx, 2, told), |_| told.second.store(true, Ordering::SeqCst)),
            SLOTS => {
                told.full.store(true, Ordering::SeqCst);
                until(|| told.second.load(Ordering::SeqCst));
                until_asleep(told.pool, told.waiting);
                assert_eq!(told.helper.load(Ordering::SeqCst), usize::MAX, "something was put out too early");
                ctx.join(|_| until(|| told.helper.load(Ordering::SeqCst) == told.waiting), |_| ())
            }
            _ => ctx.join(
                |ctx| fill(ctx, index + 1, told),
                |_| {
                    _ = told.helper.compare_exchange(
                        usize::MAX,
                        current_worker().unwrap(),
                        Ordering::SeqCst,
                        Ordering::SeqCst,
                    );
                },
            ),
        };
    }
    let pool = Pool::builder().threads(2).stack_size(16 << 20).build().unwrap();
    while_waiting(&pool, |waiting| {
        let (first, helper) = (AtomicUsize::new(usize::MAX), AtomicUsize::new(usize::MAX));
        let (second, full) = (AtomicBool::new(false), AtomicBool::new(false));
        let told = Told { pool: &pool, waiting, first, second, full, helper };
        filch_pool::run(|ctx| fill(ctx, 0, &told));
    });
}
