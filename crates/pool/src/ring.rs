//! The ring of spawned tasks: the owner works at the bottom (newest first), thieves take from the top (oldest first).
//!
//! The algorithm is Chase and Lev's with the orderings Lê, Pop, Cohen and Nardelli proved for weak memory. Buffers grow;
//! outgrown ones are kept until the ring is dropped, because a slow thief may still read them. It never looks at what the
//! pointers point to.

use std::cell::{Cell, UnsafeCell};
use std::ptr;

#[cfg(loom)]
use crate::sync::fence;
#[cfg(not(loom))]
use crate::sync::prefetch;
use crate::sync::{AtomicI64, AtomicPtr, Ordering, Padded};

#[cfg(not(loom))]
const FIRST: usize = 256;
#[cfg(loom)]
const FIRST: usize = 2;

/// How many tasks before its turn one is fetched into the cache.
#[cfg(not(loom))]
const AHEAD: i64 = 4;

struct Buffer<T> {
    slots: Box<[AtomicPtr<T>]>,
}

impl<T> Buffer<T> {
    fn new(size: usize) -> *mut Self {
        debug_assert!(size.is_power_of_two());
        let slots = (0..size).map(|_| AtomicPtr::new(ptr::null_mut())).collect();
        Box::into_raw(Box::new(Self { slots }))
    }

    #[inline]
    fn slot(&self, index: i64) -> &AtomicPtr<T> {
        // SAFETY: the length is a power of two, so the rest of the division is below it.
        unsafe { self.slots.get_unchecked(index as usize & (self.slots.len() - 1)) }
    }
}

/// What became of an attempt to take a task from another worker's ring.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Take<T> {
    /// The thief owns it now.
    One(*mut T),
    Empty,
    Retry,
}

/// A growing ring of pointers with one owner and any number of thieves.
pub(crate) struct Ring<T> {
    top: Padded<AtomicI64>,
    bottom: Padded<AtomicI64>,
    buffer: AtomicPtr<Buffer<T>>,
    /// A value the top had. Touched by the owner only.
    seen_top: Cell<i64>,
    /// Whether there are thieves at all.
    shared: bool,
    /// Every buffer there ever was, the current one included. Touched by the owner and by `drop`.
    buffers: UnsafeCell<Vec<*mut Buffer<T>>>,
}

// SAFETY: `buffers` and `seen_top` are touched by the owner only; everything else is atomic. The pointers are handed on, not used.
unsafe impl<T> Sync for Ring<T> {}
// SAFETY: nothing is tied to the creating thread.
unsafe impl<T> Send for Ring<T> {}

impl<T> Ring<T> {
    /// An empty ring. Without thieves (not `shared`) the owner need not be careful.
    pub(crate) fn new(shared: bool) -> Self {
        let first = Buffer::new(FIRST);
        Self {
            top: Padded(AtomicI64::new(0)),
            bottom: Padded(AtomicI64::new(0)),
            buffer: AtomicPtr::new(first),
            seen_top: Cell::new(0),
            shared,
            buffers: UnsafeCell::new(vec![first]),
        }
    }

    /// How many tasks lie in it, more or less.
    pub(crate) fn len(&self) -> usize {
        let bottom = self.bottom.load(Ordering::Acquire);
        let top = self.top.load(Ordering::Acquire);
        usize::try_from(bottom - top).unwrap_or(0)
    }

    /// Puts a task at the bottom.
    ///
    /// # Safety
    /// Only the owner calls it.
    #[inline]
    pub(crate) unsafe fn push(&self, task: *mut T) {
        let bottom = self.bottom.load(Ordering::Relaxed);
        // SAFETY: the current buffer lives as long as the ring.
        let mut buffer = unsafe { &*self.buffer.load(Ordering::Relaxed) };
        // The top only grows: an old value errs on the safe side, and thieves are not disturbed by looking at it.
        if bottom - self.seen_top.get() >= buffer.slots.len() as i64 {
            let top = self.top.load(Ordering::Acquire);
            self.seen_top.set(top);
            if bottom - top >= buffer.slots.len() as i64 {
                // SAFETY: the caller is the owner.
                buffer = unsafe { self.grow(buffer, top, bottom) };
            }
        }
        buffer.slot(bottom).store(task, Ordering::Relaxed);
        self.bottom.store(bottom + 1, Ordering::Release);
    }

    #[cold]
    unsafe fn grow(&self, old: &Buffer<T>, top: i64, bottom: i64) -> &Buffer<T> {
        let bigger = Buffer::new(old.slots.len() * 2);
        // SAFETY: just made; it is freed only when the ring is dropped.
        let buffer = unsafe { &*bigger };
        for index in top..bottom {
            buffer.slot(index).store(old.slot(index).load(Ordering::Relaxed), Ordering::Relaxed);
        }
        // SAFETY: only the owner reaches `buffers`, and the caller is the owner.
        unsafe { (*self.buffers.get()).push(bigger) };
        self.buffer.store(bigger, Ordering::Release);
        buffer
    }

    /// Takes the newest task.
    ///
    /// # Safety
    /// Only the owner calls it.
    #[inline]
    pub(crate) unsafe fn pop(&self) -> Option<*mut T> {
        let bottom = self.bottom.load(Ordering::Relaxed);
        let top = self.top.load(Ordering::Relaxed);
        if top >= bottom {
            // The top never runs back and nobody but us moves the bottom: empty, without a fence.
            return None;
        }
        let bottom = bottom - 1;
        // SAFETY: the current buffer lives as long as the ring.
        let buffer = unsafe { &*self.buffer.load(Ordering::Relaxed) };
        // In a long ring the tasks themselves have left the caches: have one that comes later fetched.
        #[cfg(not(loom))]
        if bottom - top >= AHEAD {
            prefetch(buffer.slot(bottom - AHEAD).load(Ordering::Relaxed));
        }
        if !self.shared {
            self.bottom.store(bottom, Ordering::Relaxed);
            return Some(buffer.slot(bottom).load(Ordering::Relaxed));
        }
        self.take_bottom(bottom);
        let top = self.top.load(Ordering::SeqCst);
        if top > bottom {
            self.bottom.store(bottom + 1, Ordering::Release);
            return None;
        }
        let task = buffer.slot(bottom).load(Ordering::Relaxed);
        if top == bottom {
            let won = self.top.compare_exchange(top, top + 1, Ordering::SeqCst, Ordering::Relaxed).is_ok();
            self.bottom.store(bottom + 1, Ordering::Release);
            return won.then_some(task);
        }
        Some(task)
    }

    /// Takes the newest task if there are more than there were at `mark`, an earlier `bottom`.
    ///
    /// # Safety
    /// Only the owner calls it.
    #[inline]
    pub(crate) unsafe fn pop_above(&self, mark: i64) -> Option<*mut T> {
        if self.bottom() <= mark {
            return None;
        }
        // SAFETY: the caller's promise.
        unsafe { self.pop() }
    }

    /// Where the next task goes. Only the owner calls it.
    #[inline]
    pub(crate) fn bottom(&self) -> i64 {
        self.bottom.load(Ordering::Relaxed)
    }

    /// Lowers the bottom before looking at the top; thieves look at the two in the other order. One of us sees the other's
    /// move, because all four accesses are sequentially consistent. Release, like every store to the bottom: a thief may
    /// see a task for the first time by any of them.
    #[cfg(not(loom))]
    #[inline]
    fn take_bottom(&self, bottom: i64) {
        // An exchange costs half of what a store and a fence do on common processors.
        self.bottom.swap(bottom, Ordering::SeqCst);
    }

    // loom knows sequential consistency of fences only.
    #[cfg(loom)]
    fn take_bottom(&self, bottom: i64) {
        self.bottom.store(bottom, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// Takes the oldest task.
    pub(crate) fn steal(&self) -> Take<T> {
        let top = self.top.load(Ordering::SeqCst);
        #[cfg(loom)]
        fence(Ordering::SeqCst);
        let bottom = self.bottom.load(Ordering::SeqCst);
        if top >= bottom {
            return Take::Empty;
        }
        // SAFETY: every buffer lives as long as the ring, outgrown ones too.
        let buffer = unsafe { &*self.buffer.load(Ordering::Acquire) };
        let task = buffer.slot(top).load(Ordering::Relaxed);
        if self.top.compare_exchange(top, top + 1, Ordering::SeqCst, Ordering::Relaxed).is_err() {
            return Take::Retry;
        }
        Take::One(task)
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        for buffer in self.buffers.get_mut().drain(..) {
            // SAFETY: made by `Buffer::new`, freed once, and nobody else has a reference to the ring any more.
            drop(unsafe { Box::from_raw(buffer) });
        }
    }
}
