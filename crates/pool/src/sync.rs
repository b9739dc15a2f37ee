//! The one place the crate takes atomics, locks and threads from, so that loom and shuttle can replace them.
//!
//! Nothing else in the crate names `std::sync::atomic` or `std::thread` for anything that takes part in a protocol.

#[cfg(loom)]
pub(crate) use loom::{
    sync::Mutex,
    sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    thread::{Thread, park},
};

#[cfg(shuttle)]
pub(crate) use shuttle::{
    sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    sync::{Arc, Condvar, Mutex},
    thread::{self, Thread, current, park, yield_now},
};

#[cfg(not(any(loom, shuttle)))]
pub(crate) use std::{
    sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    sync::{Arc, Condvar, Mutex},
    thread::{self, Thread, current, park, yield_now},
};

#[cfg(shuttle)]
pub(crate) use shuttle::thread_local;

#[cfg(not(any(loom, shuttle)))]
pub(crate) use std::thread_local;

#[cfg(not(loom))]
pub(crate) use std::time::{Duration, Instant};

/// Parks for at most `limit`. A model checker has no clock: there it is a yield, which is a wait that ran out at once.
#[cfg(not(loom))]
#[cfg_attr(shuttle, allow(clippy::needless_pass_by_value))]
pub(crate) fn park_timeout(limit: Duration) {
    #[cfg(not(shuttle))]
    thread::park_timeout(limit);
    #[cfg(shuttle)]
    {
        let _ = limit;
        yield_now();
    }
}

/// Sleeps for all of the time, as long as it is wanted: a token that somebody left does not cut it short. Under a model checker as
/// `park_timeout`.
#[cfg(not(loom))]
pub(crate) fn nap(time: Duration, is_wanted: impl Fn() -> bool) {
    let began = Instant::now();
    let mut left = time;
    while is_wanted() && !left.is_zero() {
        park_timeout(left);
        left = if cfg!(shuttle) { Duration::ZERO } else { time.saturating_sub(began.elapsed()) };
    }
}

/// Tells the processor that this is a busy wait; under a model checker, lets the others run.
#[cfg(not(loom))]
pub(crate) fn spin(times: u32) {
    #[cfg(shuttle)]
    {
        let _ = times;
        yield_now();
    }
    #[cfg(not(shuttle))]
    for _ in 0..times {
        std::hint::spin_loop();
    }
}

/// Has the processor fetch what will be needed soon. The address need not be valid.
#[inline(always)]
pub(crate) fn prefetch<T>(address: *const T) {
    // SAFETY: a hint, which never faults.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}

/// Locks, whatever happened to an earlier holder: no lock of this crate is held while foreign code runs, except where
/// the data is a plain value that stays valid.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> impl std::ops::DerefMut<Target = T> + '_ {
    match mutex.lock() {
        Ok(guard) => guard,
        Err(poisoned) => poisoned.into_inner(),
    }
}

/// How many there are of a kind, and how many have ever come: if both are the same as before, nobody came or went.
pub(crate) struct Crowd(AtomicU64);

impl Crowd {
    /// One that came, in both counts.
    const ONE: u64 = 1 << 32 | 1;

    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    pub(crate) fn come(&self, more: usize) {
        self.0.fetch_add(Self::ONE * more as u64, Ordering::SeqCst);
    }

    pub(crate) fn go(&self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }

    #[inline]
    pub(crate) fn count(&self) -> usize {
        Self::count_of(self.0.load(Ordering::Relaxed))
    }

    /// Both counts.
    pub(crate) fn look(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    pub(crate) fn count_of(look: u64) -> usize {
        look as u32 as usize
    }
}

/// Keeps a value on cache lines of its own (two, because processors fetch neighbours in pairs).
#[repr(align(128))]
pub(crate) struct Padded<T>(pub(crate) T);

impl<T> std::ops::Deref for Padded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}
