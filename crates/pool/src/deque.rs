//! The split deque of forked jobs: the owner forks and joins without read-modify-write, thieves take the oldest.
//!
//! Slots `0..head` were stolen, `head..split` are public, `split..tail` belong to the owner alone. The tail is not stored
//! here: the owner carries it along. Thieves that find nothing public ask for more by changing two words the owner looks
//! at anyway. It never runs a job and never frees one; see the crate's README for the orderings.

use std::cell::{Cell, UnsafeCell};
use std::mem::MaybeUninit;
use std::ptr;

use crate::latch::Latch;
#[cfg(loom)]
use crate::sync::AtomicUsize;
use crate::sync::{AtomicPtr, AtomicU64, Ordering, Padded};

/// The most slots a deque can have: their numbers share a word.
#[cfg(not(loom))]
const MOST_SLOTS: usize = 1 << 31;

/// A place for a pointer to a forked job. Tails are carried around as pointers to slots.
pub(crate) type Slot = AtomicPtr<Header>;

/// No worker.
pub(crate) const NOBODY: u32 = u32::MAX;

/// Runs a job: the job, the worker that runs it (erased), the tail its forks start at.
pub(crate) type RunJob = unsafe fn(*const Header, *const (), *const Slot);

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
    /// Release: whoever helps sees the slots from `tail` on as empty as they are now, and takes nothing older from there.
    pub(crate) fn set_runner(&self, worker: u32, tail: u32) {
        self.runner.store(pack(worker, tail), Ordering::Release);
    }

    /// The worker that runs the job, and the first slot there that can hold a descendant of it.
    pub(crate) fn runner(&self) -> (u32, u32) {
        unpack(self.runner.load(Ordering::Acquire))
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
    limits: Padded<Limits>,
    /// `{head, split}`.
    public: Padded<AtomicU64>,
}

/// What the owner looks at with every fork and join.
struct Limits {
    /// A fork at or above it takes the slow path: the end of the slots, or null if somebody wants work.
    fork: Limit,
    /// A join below it takes the slow path: the slot `split`, or the highest address if somebody wants work.
    join: Limit,
    /// Where those who lost sight of the tail begin to search for it. Touched by the owner only.
    hint: Cell<*const Slot>,
    /// A slot that is never null, the slots, and one that is always null: the search for the tail ends at these two. From
    /// the tail on all slots are null, and below it none is.
    slots: Slots,
}

/// The slots, behind a bare pointer: others point into them, and moving a box would say that nobody does.
struct Slots(*mut [Slot]);

impl Slots {
    fn new(slots: Box<[Slot]>) -> Self {
        Self(Box::into_raw(slots))
    }

    #[inline(always)]
    fn as_ptr(&self) -> *const Slot {
        self.0.cast()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        // SAFETY: it came from a box, and the deque is gone.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

/// A word the owner compares with and a thief overwrites; it orders nothing.
#[cfg(not(loom))]
struct Limit(AtomicPtr<Slot>);
#[cfg(loom)]
struct Limit(AtomicUsize);

/// What a thief sets the limit of joins to.
const HIGHEST: *const Slot = ptr::without_provenance(usize::MAX);

impl Limit {
    #[cfg(not(loom))]
    fn new(value: *const Slot) -> Self {
        Self(AtomicPtr::new(value.cast_mut()))
    }

    #[cfg(not(loom))]
    #[inline(always)]
    fn get(&self) -> *const Slot {
        self.0.load(Ordering::Relaxed)
    }

    #[cfg(not(loom))]
    #[inline]
    fn set(&self, value: *const Slot) {
        self.0.store(value.cast_mut(), Ordering::Relaxed);
    }

    // loom 0.7 lets a relaxed load return a value that the same thread has overwritten (tokio-rs/loom#282), which no
    // memory model allows and which the pop relies on. A read-modify-write always reads the last value there. Limits are
    // compared and never followed, so an address will do.
    #[cfg(loom)]
    fn new(value: *const Slot) -> Self {
        Self(AtomicUsize::new(value.addr()))
    }

    #[cfg(loom)]
    fn get(&self) -> *const Slot {
        ptr::without_provenance(self.0.fetch_or(0, Ordering::Relaxed))
    }

    #[cfg(loom)]
    fn set(&self, value: *const Slot) {
        self.0.swap(value.addr(), Ordering::Relaxed);
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

// SAFETY: the pointers in the slots are handed to other threads only by publishing, under the rules of `push`. `hint` is
// touched by the owner only.
unsafe impl Sync for Deque {}
// SAFETY: as above; nothing is tied to the creating thread.
unsafe impl Send for Deque {}

impl Deque {
    /// A deque for about as many forks as fit on a stack of so many bytes. Slots that were never used were never
    /// touched, so the system gives memory to those only that are.
    #[cfg(not(loom))]
    pub(crate) fn for_stack(bytes: usize) -> Self {
        Self::new((bytes / 512).clamp(1 << 14, MOST_SLOTS))
    }

    /// A deque for `capacity` waiting forks; deeper ones run at once, one arm after the other.
    pub(crate) fn new(capacity: usize) -> Self {
        let slots = null_slots(capacity + 2);
        slots[0].store(ptr::dangling_mut(), Ordering::Relaxed);
        let slots = Slots::new(slots);
        let first = slots.as_ptr().wrapping_add(1);
        let limits = Limits {
            fork: Limit::new(first.wrapping_add(capacity)),
            join: Limit::new(first),
            hint: Cell::new(first),
            slots,
        };
        Self { limits: Padded(limits), public: Padded(AtomicU64::new(0)) }
    }

    /// The slot with a number. Numbers up to the capacity are slots.
    #[inline]
    pub(crate) fn slot(&self, index: u32) -> *const Slot {
        self.limits.slots.as_ptr().wrapping_add(1 + index as usize)
    }

    /// The number of a slot.
    #[inline]
    pub(crate) fn index(&self, slot: *const Slot) -> u32 {
        ((slot.addr() - self.slot(0).addr()) / size_of::<Slot>()) as u32
    }

    /// Where the usable slots end.
    fn end(&self) -> *const Slot {
        self.limits.slots.as_ptr().wrapping_add(self.limits.slots.len() - 1)
    }

    /// Whether a fork at this tail may `push` without further ado. Otherwise it takes `push_slow`.
    #[inline(always)]
    pub(crate) fn may_push(&self, tail: *const Slot) -> bool {
        tail < self.limits.fork.get()
    }

    /// Puts a job into slot `tail`.
    ///
    /// # Safety
    /// Only the owner calls it, with the true tail, after `may_push` said yes. The job stays where it is until
    /// `pop_private` or `pop_slow` returned true for this slot, or `pop_slow` returned false, its latch was set and
    /// `reset` was called.
    #[inline(always)]
    pub(crate) unsafe fn push(&self, tail: *const Slot, job: *const Header) {
        // SAFETY: a tail below the end is a slot.
        unsafe { put(tail, job) };
    }

    /// Answers a request, and puts the job into slot `tail`; false if there is no room for it. Then nobody sees the job, the
    /// tail stays where it is, and taking the job back from there always succeeds: the slot at the end is empty for ever,
    /// and never public.
    ///
    /// # Safety
    /// As for `push`, except that nothing is asked before.
    pub(crate) unsafe fn push_slow(&self, tail: *const Slot, job: *const Header) -> bool {
        let end = self.end();
        let fits = tail < end;
        // SAFETY: the caller's promise: a tail below the end is a slot, and everything below the tail is alive.
        unsafe {
            if fits {
                put(tail, job);
            }
            if self.limits.fork.get() != end {
                self.serve(self.index(tail) + u32::from(fits));
            }
        }
        fits
    }

    /// Answers a request: publishes the older half of the private jobs below `tail`, at least one if there is one.
    unsafe fn serve(&self, tail: u32) {
        let (_, split) = unpack(self.public.load(Ordering::Relaxed));
        debug_assert!(split <= tail);
        let grow = (tail - split).div_ceil(2);
        if grow > 0 {
            self.limits.fork.set(self.end());
            // SAFETY: the caller's promise; `split + grow <= tail`.
            unsafe { self.publish(split, split + grow) };
        }
        self.limits.join.set(self.slot(split + grow));
    }

    /// Makes everything below `tail` public, because its owner is about to block.
    ///
    /// # Safety
    /// Only the owner calls it, with the true tail.
    pub(crate) unsafe fn publish_all(&self, tail: *const Slot) {
        let (_, split) = unpack(self.public.load(Ordering::Relaxed));
        if split < self.index(tail) {
            // SAFETY: the caller's promise.
            unsafe { self.publish(split, self.index(tail)) };
            self.limits.join.set(tail);
        }
    }

    unsafe fn publish(&self, from: u32, to: u32) {
        for index in from..to {
            // SAFETY: below the tail, so it is a slot, and the job in it is alive. It is private: nobody else looks yet.
            unsafe {
                let job = (*self.slot(index)).load(Ordering::Relaxed);
                debug_assert!(!job.is_null());
                let shared = Shared { latch: Latch::new(), runner: AtomicU64::new(pack(NOBODY, 0)) };
                (*(*job).shared.get()).write(shared);
            }
        }
        // Release: whoever takes a job by a successful exchange on this word sees the slots and the jobs themselves.
        self.public.fetch_add(u64::from(to - from) << 32, Ordering::Release);
    }

    /// Takes the job in a slot back if no thief can see it and none asks for work. Otherwise it is up to `pop_slow`.
    ///
    /// # Safety
    /// Only the owner calls it, and the slot is the last below the true tail; or it is the end, for a job that `push_slow`
    /// refused.
    #[inline(always)]
    pub(crate) unsafe fn pop_private(&self, slot: *const Slot) -> bool {
        let private = slot >= self.limits.join.get();
        if private {
            // SAFETY: the caller's promise.
            unsafe { put(slot, ptr::null()) };
        }
        private
    }

    /// Takes the job in a slot back to run it here after `pop_private` refused; false if it was stolen.
    ///
    /// # Safety
    /// As for `pop_private`.
    pub(crate) unsafe fn pop_slow(&self, slot: *const Slot) -> bool {
        let index = self.index(slot);
        let mut word = self.public.load(Ordering::Relaxed);
        if index >= unpack(word).1 {
            // Only a request brought us here. The job itself is on its way out, the ones below can go.
            // SAFETY: the caller owns the deque; all below `index` is alive.
            unsafe {
                put(slot, ptr::null());
                self.serve(index);
            }
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
                    // SAFETY: the caller's promise.
                    unsafe { put(slot, ptr::null()) };
                    self.limits.join.set(self.slot(keep));
                    if keep == head {
                        // The last public job: have the next fork put something out again.
                        self.arm();
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
    /// Only the owner calls it, after `pop_slow` returned false for this slot and the job's latch was set.
    pub(crate) unsafe fn reset(&self, slot: *const Slot) {
        let index = self.index(slot);
        // Head and split are both index + 1 here: a thief never exchanges such a word, so a plain store is enough.
        debug_assert_eq!(unpack(self.public.load(Ordering::Relaxed)), (index + 1, index + 1));
        // SAFETY: the caller's promise.
        unsafe { put(slot, ptr::null()) };
        self.public.store(pack(index, index), Ordering::Release);
        self.limits.join.set(slot);
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
        // SAFETY: below the split, so it is a slot.
        Steal::Job(unsafe { (*self.slot(head)).load(Ordering::Relaxed) })
    }

    /// Asks the owner to publish something at its next fork or join.
    pub(crate) fn request(&self) {
        if !self.limits.fork.get().is_null() {
            self.limits.fork.set(ptr::null());
        }
        if self.limits.join.get() != HIGHEST {
            self.limits.join.set(HIGHEST);
        }
    }

    /// Has the next fork published. Only the owner calls it.
    pub(crate) fn arm(&self) {
        self.limits.fork.set(ptr::null());
    }

    /// Whether somebody asked for work. Only the owner calls it.
    #[inline]
    pub(crate) fn is_wanted(&self) -> bool {
        self.limits.fork.get().is_null()
    }

    /// Whether a thief would find something.
    pub(crate) fn has_public(&self) -> bool {
        let (head, split) = unpack(self.public.load(Ordering::Acquire));
        head < split
    }

    /// Says where the tail will be looked for. A wrong slot costs time, nothing else. Only the owner calls it.
    #[inline(always)]
    pub(crate) fn set_hint(&self, slot: *const Slot) {
        self.limits.hint.set(slot);
    }

    /// The true tail: the one slot that is null while the one below it is not. Only the owner calls it.
    #[inline(always)]
    pub(crate) fn tail(&self) -> *const Slot {
        let mut tail = self.limits.hint.get();
        // SAFETY: hints are slots. Going up ends at the last slot, which is null, going down at the first, which is not.
        unsafe {
            while !(*tail).load(Ordering::Relaxed).is_null() {
                tail = tail.wrapping_add(1);
            }
            while (*tail.wrapping_sub(1)).load(Ordering::Relaxed).is_null() {
                tail = tail.wrapping_sub(1);
            }
        }
        tail
    }
}

/// # Safety
/// The slot is one of a living deque.
#[inline(always)]
unsafe fn put(slot: *const Slot, job: *const Header) {
    // SAFETY: the caller's promise.
    unsafe { (*slot).store(job.cast_mut(), Ordering::Relaxed) };
}

/// Slots that hold null, from memory the system clears when it is first touched.
#[cfg(not(any(loom, shuttle)))]
fn null_slots(count: usize) -> Box<[Slot]> {
    // SAFETY: an atomic pointer of zeros is a null pointer.
    unsafe { Box::new_zeroed_slice(count).assume_init() }
}

#[cfg(any(loom, shuttle))]
fn null_slots(count: usize) -> Box<[Slot]> {
    (0..count).map(|_| Slot::new(ptr::null_mut())).collect()
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    unsafe fn nothing(_: *const Header, _: *const (), _: *const Slot) {}

    /// A deque with so many private forks, as if the first had not been asked for.
    fn with_private(count: u32, jobs: &[Header]) -> Deque {
        let deque = Deque::new(jobs.len());
        for (index, job) in (0..count).zip(jobs) {
            // SAFETY: this thread is the owner, and the jobs outlive the deque.
            unsafe { deque.push(deque.slot(index), job) };
        }
        deque
    }

    fn jobs() -> Vec<Header> {
        (0..32).map(|_| Header::new(nothing)).collect()
    }

    fn public(deque: &Deque) -> (u32, u32) {
        unpack(deque.public.load(Ordering::Relaxed))
    }

    #[test]
    fn a_fork_on_request_publishes_the_older_half() {
        let jobs = jobs();
        let deque = with_private(7, &jobs);
        assert!(deque.may_push(deque.slot(7)) && !deque.is_wanted() && !deque.has_public());
        deque.request();
        assert!(!deque.may_push(deque.slot(7)) && deque.is_wanted());
        // SAFETY: the tail is the true one, and the job outlives the deque.
        assert!(unsafe { deque.push_slow(deque.slot(7), &raw const jobs[7]) });
        assert_eq!(public(&deque), (0, 4), "half of eight");
        assert!(deque.may_push(deque.slot(8)), "the request was answered");
        // SAFETY: the newest fork; still private.
        assert!(unsafe { deque.pop_private(deque.slot(7)) });
    }

    #[test]
    fn a_join_on_request_publishes_the_older_half() {
        let jobs = jobs();
        let deque = with_private(9, &jobs);
        deque.request();
        // SAFETY: the newest fork.
        unsafe {
            assert!(!deque.pop_private(deque.slot(8)), "a thief that asks is heard at the next join, too");
            assert!(deque.pop_slow(deque.slot(8)));
            assert_eq!(public(&deque), (0, 4), "half of the eight that are left");
            assert!(deque.pop_private(deque.slot(7)), "the request was answered");
        }
    }

    #[test]
    fn taking_public_forks_back_leaves_the_older_half() {
        let jobs = jobs();
        let deque = with_private(8, &jobs);
        // SAFETY: the tail is the true one, then the newest fork is taken back, one after the other.
        unsafe {
            deque.publish_all(deque.slot(8));
            assert_eq!(public(&deque), (0, 8));
            assert!(!deque.pop_private(deque.slot(7)) && deque.pop_slow(deque.slot(7)));
            assert_eq!(public(&deque), (0, 4));
            assert!(deque.pop_private(deque.slot(6)));
        }
        assert!(!deque.is_wanted());
    }

    #[test]
    fn the_last_public_fork_leaves_a_request_behind() {
        let jobs = jobs();
        let deque = with_private(2, &jobs);
        // SAFETY: the tail is the true one, then the newest fork is taken back.
        unsafe {
            deque.publish_all(deque.slot(2));
            assert!(matches!(deque.steal(1), Steal::Empty), "below the floor");
            assert!(matches!(deque.steal(0), Steal::Job(job) if ptr::eq(job, &raw const jobs[0])));
            assert!(!deque.is_wanted());
            assert!(deque.pop_slow(deque.slot(1)), "taken back by its owner");
        }
        assert!(deque.is_wanted());
        let deque = with_private(2, &jobs);
        // SAFETY: as above.
        unsafe { deque.publish_all(deque.slot(1)) };
        assert!(matches!(deque.steal(0), Steal::Job(_)));
        assert!(deque.is_wanted(), "taken by a thief");
        // SAFETY: the newest fork.
        assert!(!unsafe { deque.pop_private(deque.slot(1)) }, "at the join, too");
    }
}
