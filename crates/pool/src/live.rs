//! How many values live in a chunk of memory: whoever ends the last one gets the chunk.
//!
//! The thread that fills the chunk counts apart from the others until it closes it, so that taking a place costs no
//! read-modify-write. It never frees anything itself.

use crate::sync::{AtomicUsize, Ordering};

/// Far above any number of values: as long as it is part of the count, the chunk is open and nobody finds the end.
const OPEN: usize = 1 << (usize::BITS - 2);

/// The count, in the chunk it is about.
pub(crate) struct Live(AtomicUsize);

impl Live {
    /// The count of an open chunk.
    pub(crate) fn new() -> Self {
        Self(AtomicUsize::new(OPEN))
    }

    /// So many values of the chunk have ended. True if it belongs to the caller now: it was closed, and all have ended.
    ///
    /// # Safety
    /// The values were in the chunk and are not counted twice. Unless it returns true, the chunk may be gone afterwards.
    pub(crate) unsafe fn end(this: *const Self, values: usize) -> bool {
        // AcqRel: whoever uses the memory again comes after everybody who used it before.
        // SAFETY: our values are still counted, so it is alive.
        unsafe { (*this).0.fetch_sub(values, Ordering::AcqRel) == values }
    }

    /// Nothing is put into the chunk any more; `left` values were put there and not ended by the caller before. True as
    /// for `end`.
    ///
    /// # Safety
    /// Only the thread that fills the chunk calls it, once. Unless it returns true, the chunk may be gone afterwards.
    pub(crate) unsafe fn close(this: *const Self, left: usize) -> bool {
        // SAFETY: an open chunk is alive. The ordering is that of `end`: it is one.
        unsafe { Self::end(this, OPEN - left) }
    }
}
