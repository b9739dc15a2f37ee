//! loom models of the protocols, with capacities of two to four: every interleaving and every allowed reordering.
//!
//! Compiled only with `--cfg loom`. Each model fails on a data race, on a lost or doubled job, and on a lost wake-up.

use std::mem::MaybeUninit;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

use crate::deque::{Deque, Header, Slot, Steal};
use crate::latch::Latch;
use crate::listen::{Listeners, News};
use crate::live::Live;
use crate::ring::{Ring, Take};
use crate::sleep::Sleep;
use crate::tally::Tally;

fn model(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(body);
}

/// A job that counts its runs in plain memory: two unordered runs, or a run unordered with the owner's look at the
/// result, are a race that loom reports.
#[repr(C)]
struct Counting {
    header: Header,
    runs: UnsafeCell<u32>,
}

impl Counting {
    fn new() -> Self {
        Self { header: Header::new(Self::run), runs: UnsafeCell::new(0) }
    }

    fn header(&self) -> *const Header {
        std::ptr::from_ref(self).cast()
    }

    unsafe fn run(job: *const Header, _: *const (), _: *const Slot) {
        // SAFETY: the header is the first field of a live job.
        let this = unsafe { &*job.cast::<Self>() };
        // SAFETY: loom checks that nobody else is at it.
        this.runs.with_mut(|runs| unsafe { *runs += 1 });
    }

    fn runs(&self) -> u32 {
        // SAFETY: loom checks that nobody else is at it.
        self.runs.with(|runs| unsafe { *runs })
    }
}

/// Steals and runs up to `tries` times, asking for work when there is none.
fn thief(deque: &Deque, tries: usize) {
    for _ in 0..tries {
        match deque.steal(0) {
            // SAFETY: stolen, so alive and ours until the latch is set.
            Steal::Job(job) => unsafe {
                let shared = (*job).shared();
                shared.set_runner(1, 0);
                let latch = &raw const shared.latch;
                ((*job).run)(job, std::ptr::null(), std::ptr::null());
                Latch::set(latch);
            },
            Steal::Empty => deque.request(),
            Steal::Retry => {}
        }
    }
}

/// Forks as a worker does.
///
/// # Safety
/// This thread is the owner, `index` the true tail, and the job is joined before it goes away.
unsafe fn push(deque: &Deque, index: u32, job: &Counting) -> bool {
    let tail = deque.slot(index);
    // SAFETY: the caller's promise.
    unsafe {
        if deque.may_push(tail) {
            deque.push(tail, job.header());
            return true;
        }
        deque.push_slow(tail, job.header())
    }
}

/// Joins one fork as a worker does: run it if it is still there, else wait and free the slot.
///
/// # Safety
/// The job is in slot `index`, the newest.
unsafe fn join(deque: &Deque, index: u32, job: &Counting) {
    // SAFETY: the caller's promise; loom's thread is the owner.
    unsafe {
        let slot = deque.slot(index);
        if deque.pop_private(slot) || deque.pop_slow(slot) {
            Counting::run(job.header(), std::ptr::null(), slot);
        } else {
            while !(*job.header()).shared().latch.is_done() {
                thread::yield_now();
            }
            deque.reset(slot);
        }
    }
    assert_eq!(job.runs(), 1);
}

/// Two nested forks, one thief, and a third fork into the slot of the first.
#[test]
fn every_forked_job_runs_once() {
    model(3, || {
        let deque = Arc::new(Deque::new(4));
        deque.arm();
        let other = Arc::clone(&deque);
        let stealing = thread::spawn(move || thief(&other, 2));
        let (first, second, third) = (Counting::new(), Counting::new(), Counting::new());
        // SAFETY: this thread is the owner, and each job is joined before it goes away.
        unsafe {
            assert!(push(&deque, 0, &first));
            assert!(push(&deque, 1, &second));
            join(&deque, 1, &second);
            join(&deque, 0, &first);
            assert!(push(&deque, 0, &third));
            join(&deque, 0, &third);
        }
        stealing.join().unwrap();
        assert_eq!(deque.tail(), deque.slot(0));
        assert!(!deque.has_public());
    });
}

#[test]
fn two_thieves_share_three_forks() {
    model(2, || {
        let deque = Arc::new(Deque::new(4));
        let jobs = [Counting::new(), Counting::new(), Counting::new()];
        // SAFETY: this thread is the owner, and each job is joined before it goes away.
        unsafe {
            for (index, job) in (0..).zip(&jobs) {
                assert!(push(&deque, index, job));
            }
            deque.publish_all(deque.slot(3));
        }
        let thieves = [(); 2].map(|()| {
            let deque = Arc::clone(&deque);
            thread::spawn(move || thief(&deque, 2))
        });
        for (index, job) in (0..jobs.len() as u32).zip(&jobs).rev() {
            // SAFETY: as above, newest first.
            unsafe { join(&deque, index, job) };
        }
        thieves.into_iter().for_each(|thief| thief.join().unwrap());
        assert_eq!(deque.tail(), deque.slot(0));
    });
}

#[test]
fn a_full_deque_refuses_and_still_serves() {
    model(2, || {
        let deque = Arc::new(Deque::new(4));
        let jobs: [Counting; 4] = std::array::from_fn(|_| Counting::new());
        let other = Arc::clone(&deque);
        let stealing = thread::spawn(move || thief(&other, 2));
        // SAFETY: this thread is the owner, and each job is joined before it goes away.
        unsafe {
            for (index, job) in (0..).zip(&jobs) {
                assert!(push(&deque, index, job));
            }
            let refused = Counting::new();
            assert!(!push(&deque, 4, &refused));
            // Taken back from the place behind the last slot, where it never was: the owner goes one way for all forks.
            join(&deque, 4, &refused);
            for (index, job) in (0..jobs.len() as u32).zip(&jobs).rev() {
                join(&deque, index, job);
            }
        }
        stealing.join().unwrap();
    });
}

/// The one who waits sleeps only if the one who sets wakes it, and sees what was written before.
#[test]
fn a_latch_loses_no_wake_up() {
    loom::model(|| {
        let shared = Arc::new((Latch::new(), UnsafeCell::new(0)));
        let other = Arc::clone(&shared);
        let waiter = thread::current();
        let setter = thread::spawn(move || {
            // SAFETY: loom checks that nobody else is at it.
            other.1.with_mut(|value| unsafe { *value = 7 });
            // SAFETY: alive, and set once.
            if unsafe { Latch::set(&other.0) } {
                waiter.unpark();
            }
        });
        while !shared.0.is_done() {
            if shared.0.announce_sleep() {
                thread::park();
            }
        }
        // SAFETY: loom checks that nobody else is at it.
        assert_eq!(shared.1.with(|value| unsafe { *value }), 7);
        setter.join().unwrap();
    });
}

/// A scope whose owner spawns two tasks and ends one itself; a thief ends the other, which spawned a third. The owner leaves
/// when all have ended, and sees what they wrote.
#[test]
fn a_scope_ends_after_its_tasks() {
    model(3, || {
        let shared = Arc::new((Tally::new(), UnsafeCell::new(0)));
        let other = Arc::clone(&shared);
        let owner = thread::current();
        // SAFETY: this thread is the owner's.
        unsafe {
            shared.0.add(true);
            shared.0.add(true);
        }
        let thief = thread::spawn(move || {
            let (tally, value) = &*other;
            // SAFETY: not the owner's thread; each task was counted and ends once. loom checks who is at the value.
            unsafe {
                tally.add(false);
                let first = Tally::end(tally, false);
                value.with_mut(|value| *value = 7);
                if Tally::end(tally, false) || first {
                    owner.unpark();
                }
            }
        });
        // SAFETY: the owner's thread; the task was counted and ends once.
        unsafe { Tally::end(&shared.0, true) };
        while !shared.0.is_done() {
            if shared.0.announce_sleep() {
                thread::park();
            }
        }
        // SAFETY: loom checks that nobody else is at it.
        assert_eq!(shared.1.with(|value| unsafe { *value }), 7);
        thief.join().unwrap();
    });
}

/// Two thieves end a task each: the one that ends the last passes on what the other wrote.
#[test]
fn a_scope_sees_what_all_its_tasks_did() {
    model(3, || {
        let shared = Arc::new((Tally::new(), [UnsafeCell::new(0), UnsafeCell::new(0)]));
        let owner = thread::current();
        let thieves = [0, 1].map(|index| {
            // SAFETY: this thread is the owner's.
            unsafe { shared.0.add(true) };
            let (other, owner) = (Arc::clone(&shared), owner.clone());
            thread::spawn(move || {
                // SAFETY: not the owner's thread; the task was counted and ends once. loom checks who is at the value.
                unsafe {
                    other.1[index].with_mut(|value| *value = 7);
                    if Tally::end(&other.0, false) {
                        owner.unpark();
                    }
                }
            })
        });
        while shared.0.announce_sleep() {
            thread::park();
        }
        assert!(shared.0.is_done());
        // SAFETY: loom checks that nobody else is at it.
        assert!(shared.1.iter().all(|value| value.with(|value| unsafe { *value }) == 7));
        thieves.into_iter().for_each(|thief| thief.join().unwrap());
    });
}

/// A worker that sleeps by the protocol finds everything that is made visible before a notification.
#[test]
fn no_task_is_slept_over() {
    model(3, || {
        let shared = Arc::new((Sleep::new(), AtomicUsize::new(0)));
        let other = Arc::clone(&shared);
        let worker = thread::spawn(move || {
            let (sleep, queue) = &*other;
            let mut taken = 0;
            sleep.start_search();
            while taken < 2 {
                if queue.load(Ordering::Acquire) > 0 {
                    queue.fetch_sub(1, Ordering::AcqRel);
                    sleep.start_active();
                    taken += 1;
                    sleep.stop_active();
                    sleep.start_search();
                    continue;
                }
                sleep.stop_search();
                sleep.enlist(0, thread::current());
                if queue.load(Ordering::Acquire) == 0 {
                    thread::park();
                }
                sleep.delist(0);
            }
            sleep.stop_search();
        });
        let (sleep, queue) = &*shared;
        for _ in 0..2 {
            queue.fetch_add(1, Ordering::Release);
            sleep.notify();
        }
        worker.join().unwrap();
    });
}

/// A task sent to one worker is seen by it before it sleeps, or wakes it.
#[test]
fn mail_is_not_slept_over() {
    model(3, || {
        let shared = Arc::new((Sleep::new(), AtomicUsize::new(0)));
        let other = Arc::clone(&shared);
        let worker = thread::spawn(move || {
            let (sleep, mail) = &*other;
            sleep.enlist(0, thread::current());
            if mail.load(Ordering::Relaxed) == 0 {
                // loom reports a deadlock if nobody wakes it.
                thread::park();
            }
            sleep.delist(0);
            sleep.stop_search();
            assert_eq!(mail.load(Ordering::Relaxed), 1);
        });
        let (sleep, mail) = &*shared;
        mail.store(1, Ordering::Relaxed);
        sleep.wake(0);
        worker.join().unwrap();
    });
}

/// Nobody sleeps through the end of the pool.
#[test]
fn the_end_wakes_everybody() {
    model(2, || {
        let shared = Arc::new((Sleep::new(), AtomicUsize::new(0)));
        let workers = [0, 1].map(|index| {
            let other = Arc::clone(&shared);
            thread::spawn(move || {
                let (sleep, stop) = &*other;
                sleep.enlist(index, thread::current());
                if stop.load(Ordering::Relaxed) == 0 {
                    thread::park();
                }
                sleep.delist(index);
                sleep.stop_search();
                assert_eq!(stop.load(Ordering::Relaxed), 1);
            })
        });
        let (sleep, stop) = &*shared;
        stop.store(1, Ordering::Relaxed);
        sleep.wake_all();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    });
}

/// A worker that becomes active and a sentinel that goes to sleep for good: one of them notices the other.
#[test]
fn an_active_worker_is_never_left_without_a_sentinel() {
    model(3, || {
        let shared = Arc::new((Sleep::new(), AtomicUsize::new(0)));
        let other = Arc::clone(&shared);
        let sleeper = thread::spawn(move || {
            let (sleep, woken) = &*other;
            sleep.enlist(0, thread::current());
            assert!(sleep.claim_sentinel());
            sleep.release_sentinel();
            if sleep.none_active() {
                // Sleeps for good: loom reports a deadlock if nobody wakes it.
                thread::park();
            }
            sleep.delist(0);
            woken.store(1, Ordering::Release);
            sleep.stop_search();
        });
        let (sleep, _) = &*shared;
        sleep.start_search();
        sleep.start_active();
        // As at its first fork.
        sleep.wake_sentinel();
        sleeper.join().unwrap();
    });
}

/// Two workers wait: one for a fork of worker 0 and one for whoever enters. Both are told or see it before they sleep; and the
/// count of sleepers is right in the end, whoever counted them down.
#[test]
fn news_is_not_slept_over() {
    model(3, || {
        let shared = Arc::new((Listeners::new(2), [AtomicUsize::new(0), AtomicUsize::new(0)]));
        let waiters = [(0, News::ForkOf(0)), (1, News::Entries)].map(|(index, news)| {
            let other = Arc::clone(&shared);
            thread::spawn(move || {
                let (listeners, visible) = &*other;
                listeners.start(index, news);
                if visible[index].load(Ordering::Relaxed) == 0 {
                    // loom reports a deadlock if nobody wakes it.
                    thread::park();
                }
                listeners.stop(index);
                assert_eq!(visible[index].load(Ordering::Relaxed), 1);
            })
        });
        let (listeners, visible) = &*shared;
        for (place, news) in visible.iter().zip([News::ForkOf(0), News::Entries]) {
            place.store(1, Ordering::Relaxed);
            listeners.tell_all(news, |index| waiters[index].thread().unpark());
        }
        waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
        assert_eq!(listeners.count(), 0);
    });
}

/// Something only one worker can do is seen by it before it sleeps, or wakes it; and it is counted out once, by whomever.
#[test]
fn what_is_meant_for_one_is_not_slept_over() {
    model(3, || {
        let shared = Arc::new((Listeners::new(1), AtomicUsize::new(0)));
        let other = Arc::clone(&shared);
        let waiter = thread::spawn(move || {
            let (listeners, order) = &*other;
            listeners.start(0, News::Nothing);
            if order.load(Ordering::Relaxed) == 0 {
                // loom reports a deadlock if nobody wakes it.
                thread::park();
            }
            listeners.stop(0);
            assert_eq!(order.load(Ordering::Relaxed), 1);
        });
        let (listeners, order) = &*shared;
        order.store(1, Ordering::Relaxed);
        if listeners.tell(0) {
            waiter.thread().unpark();
        }
        waiter.join().unwrap();
        assert_eq!(listeners.count(), 0);
    });
}

/// One worker waits for another, which ends that and then has nothing to do: at no moment does a third thread find that all who
/// run something sleep.
#[test]
fn a_worker_on_its_way_back_is_not_stuck() {
    model(3, || {
        let shared = Arc::new((Sleep::new(), Listeners::new(2)));
        let (sleep, listeners) = &*shared;
        for _ in 0..2 {
            sleep.start_search();
            sleep.start_active();
        }
        listeners.start(0, News::Nothing);
        let other = Arc::clone(&shared);
        let runner = thread::spawn(move || {
            let (sleep, listeners) = &*other;
            // As when it is roused; then as a worker that has run out of work.
            assert!(listeners.stop(0));
            sleep.stop_active();
            sleep.start_search();
            sleep.stop_search();
        });
        assert!(!sleep.is_stuck(listeners, |_| false));
        runner.join().unwrap();
    });
}

/// A worker that begins to search takes the last task and runs it: nobody finds the pool still before it has ended.
#[test]
fn a_task_that_was_just_taken_is_not_overlooked() {
    model(3, || {
        let shared = Arc::new((Sleep::new(), AtomicUsize::new(1), AtomicUsize::new(0)));
        let other = Arc::clone(&shared);
        let worker = thread::spawn(move || {
            let (sleep, queue, ended) = &*other;
            sleep.start_search();
            assert_eq!(queue.swap(0, Ordering::AcqRel), 1);
            sleep.start_active();
            ended.store(1, Ordering::Release);
            sleep.stop_active();
        });
        let (sleep, queue, ended) = &*shared;
        if sleep.is_still(0, || queue.load(Ordering::Acquire) > 0) {
            assert_eq!(ended.load(Ordering::Acquire), 1);
        }
        worker.join().unwrap();
    });
}

/// The ring hands every task to exactly one taker, across growth and the fight for the last one.
#[test]
fn every_spawned_task_is_taken_once() {
    model(3, || {
        let ring = Arc::new(Ring::<UnsafeCell<MaybeUninit<u32>>>::new(true));
        let made = |value| Box::into_raw(Box::new(UnsafeCell::new(MaybeUninit::new(value))));
        // SAFETY: each pointer is taken exactly once, which is what the model shows.
        let read = |task: *mut UnsafeCell<MaybeUninit<u32>>| unsafe {
            let task = Box::from_raw(task);
            task.with(|value| (*value).assume_init())
        };
        let other = Arc::clone(&ring);
        let stealing = thread::spawn(move || {
            let mut sum = 0;
            for _ in 0..2 {
                if let Take::One(task) = other.steal() {
                    sum += read(task);
                }
            }
            sum
        });
        let mut sum = 0;
        // SAFETY: this thread is the owner.
        unsafe {
            ring.push(made(1));
            ring.push(made(10));
            sum += ring.pop().map_or(0, read);
            ring.push(made(100));
            ring.push(made(1000));
            while let Some(task) = ring.pop() {
                sum += read(task);
            }
        }
        sum += stealing.join().unwrap();
        // SAFETY: the thief is gone; this thread is still the owner.
        while let Some(task) = unsafe { ring.pop() } {
            sum += read(task);
        }
        assert_eq!(sum, 1111);
    });
}

#[test]
fn two_thieves_and_the_owner_fight_for_the_last_task() {
    model(3, || {
        let ring = Arc::new(Ring::<u32>::new(true));
        let (one, two) = (Box::into_raw(Box::new(1)), Box::into_raw(Box::new(2)));
        // SAFETY: this thread is the owner.
        unsafe {
            ring.push(one);
            ring.push(two);
        }
        let thieves = [(); 2].map(|()| {
            let ring = Arc::clone(&ring);
            thread::spawn(move || match ring.steal() {
                // SAFETY: taken once, which is what the model shows.
                Take::One(task) => *unsafe { Box::from_raw(task) },
                Take::Empty | Take::Retry => 0,
            })
        });
        let mut sum = 0;
        // SAFETY: as above.
        while let Some(task) = unsafe { ring.pop() } {
            // SAFETY: as above.
            sum += *unsafe { Box::from_raw(task) };
        }
        sum += thieves.into_iter().map(|thief| thief.join().unwrap()).sum::<u32>();
        assert_eq!(sum, 3);
    });
}

/// A chunk with places for three values.
struct Chunk {
    live: Live,
    places: [UnsafeCell<u32>; 3],
}

impl Chunk {
    /// Writes to a place. Two unordered writes are a race that loom reports.
    fn write(&self, place: usize) {
        // SAFETY: loom checks that nobody else is at it.
        self.places[place].with_mut(|value| unsafe { *value += 1 });
    }
}

/// Two values end on other threads, the third on the one that fills the chunk, before it closes it. Whoever gets the chunk
/// uses all of it again.
#[test]
fn a_chunk_is_used_again_by_one_after_all_others() {
    model(3, || {
        let chunk = Arc::new(Chunk { live: Live::new(), places: std::array::from_fn(|_| UnsafeCell::new(0)) });
        let use_again = |chunk: &Chunk, mine: bool| {
            if mine {
                (0..3).for_each(|place| chunk.write(place));
            }
            u32::from(mine)
        };
        let others = [0, 1].map(|place| {
            let chunk = Arc::clone(&chunk);
            thread::spawn(move || {
                chunk.write(place);
                // SAFETY: one value of the chunk, counted once.
                use_again(&chunk, unsafe { Live::end(&chunk.live, 1) })
            })
        });
        chunk.write(2);
        // SAFETY: this thread fills the chunk, and closes it once.
        let mut winners = use_again(&chunk, unsafe { Live::close(&chunk.live, 2) });
        winners += others.into_iter().map(|other| other.join().unwrap()).sum::<u32>();
        assert_eq!(winners, 1);
    });
}
