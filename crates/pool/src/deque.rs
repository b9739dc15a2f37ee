//! The split deque of forked jobs: the owner forks and joins without read-modify-write, thieves take the oldest.
//!
//! Slots `0..head` were stolen, `head..split` are public, `split..tail` belong to the owner alone. The tail is not stored
//! here: the owner carries it along. Thieves that find nothing public ask for more by changing two words the owner looks
//! at anyway. It never runs a job and never frees one; see the crate's README for the orderings.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ptr;

use crate::latch::Latch;
use crate::sync::{AtomicPtr, AtomicU32, AtomicU64, Ordering, Padded};

/// How many forks of one worker can wait at once; deeper ones run at once, one arm after the other.
#[cfg(not(loom))]
pub(crate) const CAPACITY: u32 = 8192;
#[cfg(loom)]
pub(crate) const CAPACITY: u32 = 4;

/// No worker.
pub(crate) const NOBODY: u32 = u32::MAX;

/// Runs a job: the job, the worker that runs it (erased), the tail its forks start at.
pub(crate) type RunJob = unsafe fn(*const Header, *const (), u32);

/// The part of a forked job that the deque knows. It lies on the forking worker's stack.
pub(crate) struct Header {
    pub(crate) run: RunJob,
    /// Written when the job is published and only then: most never are.
    shared: UnsafeCell<MaybeUninit<Shared>>,
}

/// What owner and thief tell each other about a published job.
pub(crate) struct Shared {
    pub(crate) latch: Latch,
    /// The worker that runs it and the tail it started at, to help it there. A hint until the latch is set.
    runner: AtomicU64,
}

impl Shared {
    pub(crate) fn set_runner(&self, worker: u32, tail: u32) {
        self.runner.store(pack(worker, tail), Ordering::Relaxed);
    }

    /// The worker that runs the job, and the first slot there that can hold a descendant of it.
    pub(crate) fn runner(&self) -> (u32, u32) {
        unpack(self.runner.load(Ordering::Relaxed))
    }
}

impl Header {
    #[inline]
    pub(crate) fn new(run: RunJob) -> Self {
        Self { run, shared: UnsafeCell::new(MaybeUninit::uninit()) }
    }

    /// # Safety
    /// The job was published and neither reclaimed nor joined since, so nobody writes the shared part as a whole.
    pub(crate) unsafe fn shared(&self) -> &Shared {
        // SAFETY: `publish` initialised it before the job became visible.
        unsafe { (*self.shared.get()).assume_init_ref() }
    }
}

/// What became of an attempt to steal.
pub(crate) enum Steal {
    /// The thief must run it and set its latch.
    Job(*const Header),
    /// Nothing public.
    Empty,
    /// Somebody else was faster; there may be more.
    Retry,
}

/// One worker's forked jobs.
pub(crate) struct Deque {
    /// `{head, split}`.
    public: Padded<AtomicU64>,
    limits: Padded<Limits>,
}

struct Limits {
    /// A fork at or above it takes the slow path: `CAPACITY`, or 0 if somebody wants work.
    fork: Limit,
    /// A join below it takes the slow path: equal to `split`, or the maximum if somebody wants work.
    join: Limit,
    /// Null from the tail on, always.
    slots: Box<[AtomicPtr<Header>]>,
}

/// A word the owner compares with and a thief overwrites; it orders nothing.
struct Limit(AtomicU32);

impl Limit {
    fn new(value: u32) -> Self {
        Self(AtomicU32::new(value))
    }

    #[cfg(not(loom))]
    #[inline]
    fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    #[cfg(not(loom))]
    #[inline]
    fn set(&self, value: u32) {
        self.0.store(value, Ordering::Relaxed);
    }

    // loom 0.7 lets a relaxed load return a value that the same thread has overwritten (tokio-rs/loom#282), which no
    // memory model allows and which the pop relies on. A read-modify-write always reads the last value there.
    #[cfg(loom)]
    fn get(&self) -> u32 {
        self.0.fetch_or(0, Ordering::Relaxed)
    }

    #[cfg(loom)]
    fn set(&self, value: u32) {
        self.0.swap(value, Ordering::Relaxed);
    }
}

#[inline]
fn pack(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

#[inline]
fn unpack(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

// SAFETY: the pointers in the slots are handed to other threads only by publishing, under the rules of `push`.
unsafe impl Sync for Deque {}
// SAFETY: as above; nothing is tied to the creating thread.
unsafe impl Send for Deque {}

impl Deque {
    pub(crate) fn new() -> Self {
        // One slot more than can be used: the scan for the tail always ends at a null.
        let slots = (0..=CAPACITY).map(|_| AtomicPtr::new(ptr::null_mut())).collect();
        let limits = Limits { fork: Limit::new(CAPACITY), join: Limit::new(0), slots };
        Self { public: Padded(AtomicU64::new(0)), limits: Padded(limits) }
    }

    #[inline]
    fn slot(&self, index: u32) -> &AtomicPtr<Header> {
        debug_assert!(index <= CAPACITY);
        // SAFETY: every caller passes an index up to CAPACITY, and there are CAPACITY + 1 slots.
        unsafe { self.limits.slots.get_unchecked(index as usize) }
    }

    /// Puts a job into slot `tail`; false if there is no room, and then nothing happened.
    ///
    /// # Safety
    /// Only the owner calls it, with the true tail. The job stays where it is until `pop` returned true for this slot,
    /// or `pop` returned false, its latch was set and `reset` was called.
    #[inline]
    pub(crate) unsafe fn push(&self, tail: u32, job: *const Header) -> bool {
        if tail < self.limits.fork.get() {
            self.slot(tail).store(job.cast_mut(), Ordering::Relaxed);
            return true;
        }
        // SAFETY: the caller's promise.
        unsafe { self.push_slow(tail, job) }
    }

    #[cold]
    #[inline(never)]
    unsafe fn push_slow(&self, tail: u32, job: *const Header) -> bool {
        let fits = tail < CAPACITY;
        if fits {
            self.slot(tail).store(job.cast_mut(), Ordering::Relaxed);
        }
        if self.limits.fork.get() < CAPACITY {
            // SAFETY: the caller owns the deque and everything below `tail + 1` is alive.
            unsafe { self.serve(tail + u32::from(fits)) };
        }
        fits
    }

    /// Answers a request: publishes the older half of the private jobs below `tail`, at least one if there is one.
    unsafe fn serve(&self, tail: u32) {
        let (_, split) = unpack(self.public.load(Ordering::Relaxed));
        debug_assert!(split <= tail);
        let grow = (tail - split).div_ceil(2);
        if grow > 0 {
            self.limits.fork.set(CAPACITY);
            // SAFETY: the caller's promise; `split + grow <= tail`.
            unsafe { self.publish(split, split + grow) };
        }
        self.limits.join.set(split + grow);
    }

    /// Makes everything below `tail` public, because its owner is about to block.
    ///
    /// # Safety
    /// Only the owner calls it, with the true tail.
    pub(crate) unsafe fn publish_all(&self, tail: u32) {
        let (_, split) = unpack(self.public.load(Ordering::Relaxed));
        if split < tail {
            // SAFETY: the caller's promise.
            unsafe { self.publish(split, tail) };
            self.limits.join.set(tail);
        }
    }

    unsafe fn publish(&self, from: u32, to: u32) {
        for index in from..to {
            let job = self.slot(index).load(Ordering::Relaxed);
            debug_assert!(!job.is_null());
            let shared = Shared { latch: Latch::new(), runner: AtomicU64::new(pack(NOBODY, 0)) };
            // SAFETY: the job is alive (it is below the tail) and private, so nobody else looks at it yet.
            unsafe { (*(*job).shared.get()).write(shared) };
        }
        // Release: whoever takes a job by a successful exchange on this word sees the slots and the jobs themselves.
        self.public.fetch_add(u64::from(to - from) << 32, Ordering::Release);
    }

    /// Takes the job in slot `index` back to run it here; false if it was stolen.
    ///
    /// # Safety
    /// Only the owner calls it, and `index + 1` is the true tail.
    #[inline]
    pub(crate) unsafe fn pop(&self, index: u32) -> bool {
        if index >= self.limits.join.get() {
            self.slot(index).store(ptr::null_mut(), Ordering::Relaxed);
            return true;
        }
        // SAFETY: the caller's promise.
        unsafe { self.pop_slow(index) }
    }

    #[cold]
    #[inline(never)]
    unsafe fn pop_slow(&self, index: u32) -> bool {
        let mut word = self.public.load(Ordering::Relaxed);
        if index >= unpack(word).1 {
            // Only a request brought us here. The job itself is on its way out, the ones below can go.
            self.slot(index).store(ptr::null_mut(), Ordering::Relaxed);
            // SAFETY: the caller owns the deque; all below `index` is alive.
            unsafe { self.serve(index) };
            return true;
        }
        loop {
            let (head, split) = unpack(word);
            debug_assert_eq!(split, index + 1);
            if head > index {
                return false;
            }
            // Keep the older half public. The exchange fails if a thief moved the head meanwhile.
            let keep = head + (index - head).div_ceil(2);
            match self.public.compare_exchange_weak(word, pack(head, keep), Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => {
                    self.slot(index).store(ptr::null_mut(), Ordering::Relaxed);
                    self.limits.join.set(keep);
                    if keep == head {
                        // The last public job: have the next fork put something out again.
                        self.limits.fork.set(0);
                    }
                    return true;
                }
                Err(now) => word = now,
            }
        }
    }

    /// Frees the slot of a stolen job that is done.
    ///
    /// # Safety
    /// Only the owner calls it, after `pop(index)` returned false and the job's latch was set.
    pub(crate) unsafe fn reset(&self, index: u32) {
        // Head and split are both index + 1 here: a thief never exchanges such a word, so a plain store is enough.
        debug_assert_eq!(unpack(self.public.load(Ordering::Relaxed)), (index + 1, index + 1));
        self.slot(index).store(ptr::null_mut(), Ordering::Relaxed);
        self.public.store(pack(index, index), Ordering::Release);
        self.limits.join.set(index);
    }

    /// Takes the oldest public job if its slot is `floor` or above.
    pub(crate) fn steal(&self, floor: u32) -> Steal {
        let word = self.public.load(Ordering::Acquire);
        let (head, split) = unpack(word);
        if head >= split || head < floor {
            return Steal::Empty;
        }
        if self.public.compare_exchange(word, pack(head + 1, split), Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return Steal::Retry;
        }
        if head + 1 == split {
            self.request();
        }
        // Only now the slot may be read: before the exchange the owner could still replace what is in it.
        Steal::Job(self.slot(head).load(Ordering::Relaxed))
    }

    /// Asks the owner to publish something at its next fork or join.
    pub(crate) fn request(&self) {
        if self.limits.fork.get() != 0 {
            self.limits.fork.set(0);
        }
        if self.limits.join.get() != u32::MAX {
            self.limits.join.set(u32::MAX);
        }
    }

    /// Has the next fork published. Only the owner calls it.
    pub(crate) fn arm(&self) {
        self.limits.fork.set(0);
    }

    /// Whether somebody asked for work. Only the owner calls it.
    #[inline]
    pub(crate) fn is_wanted(&self) -> bool {
        self.limits.fork.get() == 0
    }

    /// Whether a thief would find something.
    pub(crate) fn has_public(&self) -> bool {
        let (head, split) = unpack(self.public.load(Ordering::Acquire));
        head < split
    }

    /// The true tail, given a slot known not to lie above it. Only the owner calls it.
    #[inline]
    pub(crate) fn find_tail(&self, from: u32) -> u32 {
        let mut tail = from;
        while !self.slot(tail).load(Ordering::Relaxed).is_null() {
            tail += 1;
        }
        tail
    }
}
