//! The lock of the balancer: one that expects to be held for well under a microsecond, and never waits for itself.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};

/// A mutex whose waiters look again after pauses before they sleep, since sleeping and being woken costs far more than what
/// they wait for.
///
/// The first pause is about as long as a step of the machine. Whoever finds then that the same thread has taken the lock
/// again lets it go on for a while: if the lock went to and fro with every step, so would all of the machine's memory
/// between the caches of two processors, and both would be slower than one alone. So they stay away for long, and look
/// seldom, because each look takes the lock's own line of memory away from whoever has it (all measured with `cargo xtask
/// bench balancer`).
///
/// It begins a line of memory of its own (two, which are fetched together): what stands around it is read without the
/// lock, and must not go to and fro with it.
///
/// A thread that holds it and asks for it again would wait for ever. That can only be code of somebody else which is run
/// under the lock; it gets a panic instead.
#[repr(C, align(128))]
pub(crate) struct Lock<T> {
    /// The thread that holds it, as [`this_thread`] names it, and 0 while nobody does. Beside the mutex, so that it is in the
    /// same cache. Only ever compared with the name of the thread that asks, which is here only if that thread wrote it
    /// and has not taken it back; so it needs no order among threads.
    holder: AtomicUsize,
    /// The thread that took it last, and how often it was taken; only to guess whether that thread will soon do so again.
    latest: AtomicUsize,
    turns: AtomicUsize,
    mutex: Mutex<T>,
}

thread_local! {
    static HERE: u8 = const { 0 };
}

/// A number that no other living thread has; never 0.
#[inline]
fn this_thread() -> usize {
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

/// The lock is held until this is dropped.
pub(crate) struct Held<'a, T> {
    guard: MutexGuard<'a, T>,
    holder: &'a AtomicUsize,
}

impl<T> Deref for Held<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for Held<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

impl<T> Drop for Held<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // Before the lock is free, or it could name somebody who does not hold it.
        self.holder.store(0, Ordering::Relaxed);
    }
}

/// Spins until the first look at a taken lock, about as many as a step of the machine takes.
const STEP: u32 = 32;
/// Spins for which a thread that takes the lock again and again is left alone.
const RUN: u32 = 1024;
/// Looks at a taken lock before sleeping, and spins between them.
const LOOKS: u32 = 256;
const PAUSE: u32 = 64;

fn spin(count: u32) {
    for _ in 0..count {
        std::hint::spin_loop();
    }
}

impl<T> Lock<T> {
    pub(crate) fn new(value: T) -> Lock<T> {
        let none = || AtomicUsize::new(0);
        Lock { holder: none(), latest: none(), turns: none(), mutex: Mutex::new(value) }
    }

    /// Takes the lock.
    ///
    /// # Panics
    /// If this very thread holds it.
    #[inline]
    pub(crate) fn lock(&self) -> Held<'_, T> {
        let guard = match self.mutex.try_lock() {
            Some(guard) => guard,
            None => self.lock_slowly(),
        };
        let here = this_thread();
        self.holder.store(here, Ordering::Relaxed);
        self.latest.store(here, Ordering::Relaxed);
        // Nobody else writes it now, so it need not be one operation.
        self.turns.store(self.turns.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        Held { guard, holder: &self.holder }
    }

    #[cold]
    fn lock_slowly(&self) -> MutexGuard<'_, T> {
        assert!(
            self.holder.load(Ordering::Relaxed) != this_thread(),
            "a custom policy or estimator called the balancer that was asking it: it runs while the balancer holds its \
             lock, so this would wait for itself for ever; it must decide by what it is given"
        );
        let state = || (self.latest.load(Ordering::Relaxed), self.turns.load(Ordering::Relaxed));
        let before = state();
        spin(STEP);
        let after = state();
        if after.0 == before.0 && after.1 != before.1 {
            spin(RUN);
        }
        for _ in 0..LOOKS {
            if !self.mutex.is_locked()
                && let Some(guard) = self.mutex.try_lock()
            {
                return guard;
            }
            spin(PAUSE);
        }
        self.mutex.lock()
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn a_thread_that_holds_the_lock_is_told_instead_of_waiting_for_itself() {
        let lock = Lock::new(1);
        let held = lock.lock();
        let again = catch_unwind(AssertUnwindSafe(|| *lock.lock()));
        let message = *again.expect_err("it must not get the lock").downcast::<&str>().expect("a message");
        assert!(message.contains("called the balancer that was asking it"), "{message}");
        drop(held);
        assert_eq!(*lock.lock(), 1);
    }

    #[test]
    fn whoever_held_the_lock_before_waits_for_others_as_anybody() {
        let lock = Lock::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..20_000).for_each(|_| *lock.lock() += 1));
            }
        });
        assert_eq!(*lock.lock(), 80_000);
    }
}
