//! The lock of the balancer: one that expects to be held for well under a microsecond.

use parking_lot::{Mutex, MutexGuard};

/// A mutex whose waiters look again after growing pauses, for about as long as a handful of steps of the machine take,
/// before they sleep.
///
/// Sleeping and being woken costs far more than what they wait for. And the pauses are long on purpose: if the lock went
/// to and fro with every step, so would all of the machine's memory between the caches of two processors, and both would
/// be slower than one alone (measured with `cargo xtask bench balancer`).
pub(crate) struct Lock<T>(Mutex<T>);

/// Looks at a taken lock before sleeping.
const LOOKS: u32 = 30;
/// Length of the first pause between two looks, in spins; it doubles each time.
const FIRST_PAUSE: u32 = 128;
/// Length of the longest pause.
const LONGEST_PAUSE: u32 = 512;

impl<T> Lock<T> {
    pub(crate) fn new(value: T) -> Lock<T> {
        Lock(Mutex::new(value))
    }

    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        match self.0.try_lock() {
            Some(guard) => guard,
            None => self.lock_slowly(),
        }
    }

    #[cold]
    fn lock_slowly(&self) -> MutexGuard<'_, T> {
        let mut pause = FIRST_PAUSE;
        for _ in 0..LOOKS {
            for _ in 0..pause {
                std::hint::spin_loop();
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
            if !self.0.is_locked()
                && let Some(guard) = self.0.try_lock()
            {
                return guard;
            }
        }
        self.0.lock()
    }
}
