//! The lock of the balancer: one that expects to be held for well under a microsecond, and never waits for itself.
//!
//! Never decides what is done under it, and never lets anybody wait for more than a few milliseconds while others take it
//! again and again.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

/// A mutex that leaves a thread which takes it again and again alone for a while, because handing it over is dear: all that
/// the machine has in the cache of one processor must go to the other. If it went to and fro with every step, two threads
/// together would be slower than one alone (measured with `cargo xtask bench balancer`).
///
/// *Turns* are counted: each time somebody takes the lock is one. Turns of one thread after another are its *run*.
///
/// - Whoever finds the lock taken has *patience*: for twice as many turns of others as its own last run had, at most
///   [`LONGEST`] (times those who wait). So a thread that comes now and then for a turn or two gets it at once, even from
///   one that never stops; and two that never stop change seldom.
/// - If nobody comes for a moment, those who wait take it before that.
/// - Whoever has long to wait sleeps meanwhile: it costs neither the holder anything (each look at the lock takes its
///   line of memory away from whoever has it) nor the processor, which others may need, the holder among them.
/// - Whoever's patience is at an end *claims* the lock: others give way before their next turn, if only for so long that a
///   thread which has lost its processor meanwhile does not keep them from working.
/// - Whoever gets nothing even so sleeps until it is woken; then `parking_lot` sees to it that it is served.
///
/// It begins a line of memory of its own (two, which are fetched together): what stands around it is read without the
/// lock, and must not go to and fro with it.
///
/// A thread that holds it and asks for it again would wait for ever. That can only be code of somebody else which is run
/// under the lock; it gets a panic instead.
#[repr(C, align(128))]
pub(crate) struct Lock<T> {
    /// The thread that holds it, as the address of its [`RUN`] names it, and 0 while nobody does. Beside the mutex, so that it
    /// is in the same cache. Only ever compared with the name of the thread that asks, which is here only if that thread
    /// wrote it and has not taken it back; so it needs no order among threads. The others are for guesses alone.
    holder: AtomicUsize,
    /// The thread that took it last, and how many turns there were.
    latest: AtomicUsize,
    turns: AtomicUsize,
    /// The thread that others are to let in, if there is one.
    claim: AtomicUsize,
    /// How many wait.
    waiting: AtomicUsize,
    mutex: Mutex<T>,
}

thread_local! {
    /// The turns of this thread's run, or of its last one. Its address names the thread; no other living one has it.
    static RUN: Cell<usize> = const { Cell::new(0) };
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

/// The most turns that one of two threads is patient for: well under a millisecond of the steps of the machine.
const LONGEST: usize = 2048;
/// So many who wait are counted at the most, lest each wait for too long.
const COUNTED: usize = 4;
/// Looks, a moment apart, before anybody sleeps or gives up.
const LOOKS: u32 = 16;
/// Looks of those who have less to wait for than a sleep takes.
const MORE_LOOKS: u32 = 64;
/// Spins of a moment: about as many as a step takes.
const MOMENT: u32 = 16;
/// If nobody has come for so many moments, nobody is at it. Whoever comes more often works faster alone than beside another.
const FREE_MOMENTS: u32 = 3;
/// Spins for about a turn.
const TURN: u32 = 8;
/// Whoever has so many turns to wait sleeps, for so long, and so many times at the most for each who waits.
const MANY: usize = 128;
const SLEEP: Duration = Duration::from_micros(100);
const SLEEPS: usize = 8;
/// Looks of whoever has claimed the lock, and looks of others at whether the claim still stands.
const CLAIM: u32 = 64;
const GIVE_WAY: u32 = 256;

fn spin(count: u32) {
    for _ in 0..count {
        std::hint::spin_loop();
    }
}

impl<T> Lock<T> {
    pub(crate) fn new(value: T) -> Lock<T> {
        let none = || AtomicUsize::new(0);
        let mutex = Mutex::new(value);
        Lock { holder: none(), latest: none(), turns: none(), claim: none(), waiting: none(), mutex }
    }

    /// Takes the lock.
    ///
    /// # Panics
    /// If this very thread holds it.
    #[inline]
    pub(crate) fn lock(&self) -> Held<'_, T> {
        RUN.with(|run| {
            let here = std::ptr::from_ref(run).addr();
            let guard = match self.claim.load(Ordering::Relaxed) {
                0 => self.mutex.try_lock(),
                _ => None,
            };
            let guard = guard.unwrap_or_else(|| self.lock_slowly(here, run.get()));
            self.holder.store(here, Ordering::Relaxed);
            if self.latest.load(Ordering::Relaxed) == here {
                run.set(run.get().saturating_add(1));
            } else {
                self.latest.store(here, Ordering::Relaxed);
                run.set(1);
            }
            // Nobody else writes it now, so it need not be one operation.
            self.turns.store(self.turns.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
            Held { guard, holder: &self.holder }
        })
    }

    #[cold]
    fn lock_slowly(&self, here: usize, run: usize) -> MutexGuard<'_, T> {
        assert!(
            self.holder.load(Ordering::Relaxed) != here,
            "a custom policy or estimator called the balancer that was asking it: it runs while the balancer holds its \
             lock, so this would wait for itself for ever; it must decide by what it is given"
        );
        self.give_way();
        let waiting = self.waiting.fetch_add(1, Ordering::Relaxed) + 1;
        let guard = self.wait(run, waiting.min(COUNTED)).or_else(|| self.claim(here));
        let guard = guard.unwrap_or_else(|| self.mutex.lock());
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        guard
    }

    /// Lets in whoever has claimed the lock. If they do not come they have lost their processor, and their claim with it.
    fn give_way(&self) {
        let claim = self.claim.load(Ordering::Relaxed);
        if claim == 0 {
            return;
        }
        for _ in 0..GIVE_WAY {
            spin(1);
            if self.claim.load(Ordering::Relaxed) != claim {
                return;
            }
        }
        self.end_claim(claim);
    }

    fn end_claim(&self, claim: usize) {
        // Where that fails it is at an end already.
        let _ = self.claim.compare_exchange(claim, 0, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn is_free(&self) -> bool {
        !self.mutex.is_locked() && self.claim.load(Ordering::Relaxed) == 0
    }

    /// Waits until nobody is at the lock, and takes it; or until the patience of a thread with such a `run` is at an end.
    fn wait(&self, run: usize, waiting: usize) -> Option<MutexGuard<'_, T>> {
        let patience = run.saturating_mul(2).clamp(1, LONGEST) * waiting;
        let begin = self.turns.load(Ordering::Relaxed);
        let (mut latest, mut free_moments, mut looks, mut sleeps) = (begin, 0, 0, 0);
        loop {
            let (turns, free) = (self.turns.load(Ordering::Relaxed), self.is_free());
            free_moments = if free && turns == latest { free_moments + 1 } else { 0 };
            if free_moments > FREE_MOMENTS
                && let Some(guard) = self.mutex.try_lock()
            {
                return Some(guard);
            }
            latest = turns;
            let rest = patience.saturating_sub(turns.wrapping_sub(begin));
            if rest == 0 {
                return None;
            }
            looks += 1;
            if free || looks <= LOOKS {
                spin(MOMENT);
            } else if rest < MANY && looks <= MORE_LOOKS {
                spin(rest as u32 * TURN);
            } else if rest >= MANY && sleeps < SLEEPS * waiting {
                sleeps += 1;
                std::thread::sleep(SLEEP);
            } else {
                return None;
            }
        }
    }

    /// Takes the lock at the next turn, unless that is far away or somebody else has claimed it.
    fn claim(&self, here: usize) -> Option<MutexGuard<'_, T>> {
        let mut guard = None;
        for _ in 0..CLAIM {
            let claim = self.claim.load(Ordering::Relaxed);
            let set = || self.claim.compare_exchange(0, here, Ordering::Relaxed, Ordering::Relaxed).is_ok();
            if claim == here || claim == 0 && set() {
                guard = self.mutex.try_lock();
            }
            if guard.is_some() {
                break;
            }
            spin(TURN);
        }
        self.end_claim(here);
        guard
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

    #[test]
    fn a_thread_that_never_stops_lets_others_in() {
        let (lock, stop) = (Lock::new(0_u64), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            let others: Vec<_> = (0..3)
                .map(|_| {
                    scope.spawn(|| {
                        while stop.load(Ordering::SeqCst) == 0 {
                            *lock.lock() += 1;
                        }
                    })
                })
                .collect();
            // Each time somebody else has taken it in between, so it went to and fro.
            let mut seen = *lock.lock();
            for _ in 0..100 {
                while *lock.lock() == seen {
                    std::thread::yield_now();
                }
                seen = *lock.lock();
            }
            stop.store(1, Ordering::SeqCst);
            others.into_iter().for_each(|other| other.join().unwrap());
        });
        assert_eq!(lock.waiting.load(Ordering::SeqCst), 0);
        assert_eq!(lock.claim.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn a_claim_of_somebody_who_does_not_come_is_void() {
        let lock = Lock::new(1);
        lock.claim.store(1, Ordering::SeqCst);
        assert_eq!(*lock.lock(), 1);
        assert_eq!(lock.claim.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn runs_are_counted_from_the_turn_of_another() {
        let lock = Lock::new(());
        let run = || RUN.with(Cell::get);
        (0..5).for_each(|_| drop(lock.lock()));
        assert_eq!((run(), lock.turns.load(Ordering::SeqCst)), (5, 5));
        std::thread::scope(|scope| {
            scope.spawn(|| drop(lock.lock()));
        });
        drop(lock.lock());
        assert_eq!((run(), lock.turns.load(Ordering::SeqCst)), (1, 7));
    }
}
