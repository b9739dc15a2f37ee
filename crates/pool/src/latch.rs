//! A one-shot latch: somebody finishes something, somebody else waits for it.
//!
//! The latch only says whether the waiter must be woken. Who that is, the setter has to know before it sets: once set,
//! the memory of the latch may be gone.

use crate::sync::{AtomicU32, Ordering};

const PENDING: u32 = 0;
const SLEEPING: u32 = 1;
const DONE: u32 = 2;

/// Set once, waited for by one thread.
pub(crate) struct Latch {
    state: AtomicU32,
}

impl Latch {
    pub(crate) fn new() -> Self {
        Self { state: AtomicU32::new(PENDING) }
    }

    /// Whether it was set. What the setter wrote before is visible then.
    #[inline]
    pub(crate) fn is_done(&self) -> bool {
        self.state.load(Ordering::Acquire) == DONE
    }

    /// Says that the waiter is about to park and wants to be woken. False if there is nothing left to wait for.
    pub(crate) fn announce_sleep(&self) -> bool {
        match self.state.compare_exchange(PENDING, SLEEPING, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => true,
            Err(state) => state == SLEEPING,
        }
    }

    /// Sets the latch; true if the waiter has to be woken.
    ///
    /// # Safety
    /// `this` is valid when the call begins, and nobody set it before. It may be gone when the call returns.
    pub(crate) unsafe fn set(this: *const Self) -> bool {
        // SAFETY: valid until the swap takes effect, and it is the last access.
        unsafe { (*this).state.swap(DONE, Ordering::AcqRel) == SLEEPING }
    }
}
