//! How many tasks of a scope have not ended: counted without read-modify-writes by the worker that waits for them.
//!
//! As long as that worker, the owner, is busy with the tasks, it counts its own spawns and ends apart from those of the
//! others; before it sleeps it adds both counts up, and from then on there is one. It never wakes anybody itself.

use std::cell::Cell;

use crate::latch::Latch;
use crate::sync::{AtomicI64, Ordering};

/// Far above any number of tasks: as long as it is part of the count, nobody but the owner can find the end.
const APART: i64 = 1 << 40;

/// The count. It lies on the owner's stack.
pub(crate) struct Tally {
    /// Spawned minus ended by the owner's thread, while it counts apart. Only that thread touches it.
    own: Cell<i64>,
    /// Whether the owner still counts apart. Only its thread touches it.
    apart: Cell<bool>,
    /// Spawned minus ended by the others, and `APART` as long as the owner counts apart.
    pending: AtomicI64,
    /// Set when `pending` comes to zero.
    latch: Latch,
}

// SAFETY: the cells are touched by the owner's thread only: everybody else says so, as the methods ask for.
unsafe impl Sync for Tally {}

impl Tally {
    pub(crate) fn new() -> Self {
        Self { own: Cell::new(0), apart: Cell::new(true), pending: AtomicI64::new(APART), latch: Latch::new() }
    }

    /// One task more.
    ///
    /// # Safety
    /// `owner` is true on the owner's thread only.
    #[inline]
    pub(crate) unsafe fn add(&self, owner: bool) {
        if owner && self.apart.get() {
            self.own.set(self.own.get() + 1);
        } else {
            self.pending.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A task ended. True if the owner sleeps and has to be woken.
    ///
    /// # Safety
    /// `this` is valid when the call begins, and the task was counted. It may be gone when the call returns. `owner` is
    /// true on the owner's thread only.
    #[inline]
    pub(crate) unsafe fn end(this: *const Self, owner: bool) -> bool {
        // SAFETY: alive, because our task is still counted.
        unsafe {
            if owner && (*this).apart.get() {
                (*this).own.set((*this).own.get() - 1);
                return false;
            }
            let latch = &raw const (*this).latch;
            // AcqRel: what every task did is visible to whoever finds the end. After it the tally may be gone, unless we
            // brought the count to zero: then the owner waits for the latch.
            (*this).pending.fetch_sub(1, Ordering::AcqRel) == 1 && Latch::set(latch)
        }
    }

    /// Whether all tasks have ended. Only the owner asks.
    #[inline]
    pub(crate) fn is_done(&self) -> bool {
        if self.apart.get() {
            // Acquire: what the tasks did is visible.
            self.own.get() + self.pending.load(Ordering::Acquire) == APART
        } else {
            self.latch.is_done()
        }
    }

    /// Says that the owner is about to park. False if there is nothing left to wait for. Only the owner calls it.
    pub(crate) fn announce_sleep(&self) -> bool {
        if self.apart.replace(false) {
            let own = self.own.get() - APART;
            // AcqRel: as when a task ends. Who brings the count to zero sets the latch; here it may be the owner itself.
            if self.pending.fetch_add(own, Ordering::AcqRel) == -own {
                // SAFETY: alive, and nobody else can set it: the count is zero.
                unsafe { Latch::set(&self.latch) };
            }
        }
        self.latch.announce_sleep()
    }
}
