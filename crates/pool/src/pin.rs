//! Which processors this process may use, tying a thread to one of them, and moving a thread off its processor.
//!
//! Linux only; elsewhere all say that they cannot. It never widens what the process was allowed.

use std::io;

/// The processors the calling thread may run on, ascending.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn allowed() -> io::Result<Vec<usize>> {
    let mask = mask()?;
    Ok((0..mask.len() * 64).filter(|cpu| mask[cpu / 64] >> (cpu % 64) & 1 == 1).collect())
}

/// The processors the calling thread may run on, a bit for each.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn mask() -> io::Result<Vec<u64>> {
    // The kernel refuses a mask that is too short for the machine, so try longer ones.
    for words in [16, 128, 1024] {
        let mut mask = vec![0u64; words];
        // SAFETY: the mask is as long as said and plain memory; the kernel fills it.
        if unsafe { libc::sched_getaffinity(0, size_of_val(&*mask), mask.as_mut_ptr().cast()) } == 0 {
            return Ok(mask);
        }
    }
    Err(io::Error::last_os_error())
}

/// Lets the calling thread run on these processors only.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn set_mask(mask: &[u64]) -> io::Result<()> {
    // SAFETY: the mask is as long as said; the kernel only reads it.
    match unsafe { libc::sched_setaffinity(0, size_of_val(mask), mask.as_ptr().cast()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Ties the calling thread to one processor.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn to(cpu: usize) -> io::Result<()> {
    let mut mask = vec![0u64; (cpu / 64 + 1).max(16)];
    mask[cpu / 64] = 1 << (cpu % 64);
    set_mask(&mask)
}

/// The processor the calling thread runs on right now, if that can be found out cheaply.
#[cfg(all(any(target_os = "linux", target_os = "android"), not(any(miri, shuttle))))]
#[inline]
pub(crate) fn here() -> Option<usize> {
    // SAFETY: it only reads.
    usize::try_from(unsafe { libc::sched_getcpu() }).ok()
}

#[cfg(not(all(any(target_os = "linux", target_os = "android"), not(any(miri, shuttle)))))]
pub(crate) fn here() -> Option<usize> {
    None
}

/// Moves the calling thread to another processor than this one, if it may run on any. It may come back later: what it is
/// allowed is the same afterwards.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn leave(cpu: usize) -> io::Result<()> {
    let all = mask()?;
    let mut others = all.clone();
    if let Some(word) = others.get_mut(cpu / 64) {
        *word &= !(1 << (cpu % 64));
    }
    if others.iter().all(|word| *word == 0) {
        return Ok(());
    }
    set_mask(&others)?;
    set_mask(&all)
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn leave(_: usize) -> io::Result<()> {
    Err(unsupported())
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn allowed() -> io::Result<Vec<usize>> {
    Err(unsupported())
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn to(_: usize) -> io::Result<()> {
    Err(unsupported())
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn unsupported() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "workers can be pinned to processors on Linux only")
}

#[cfg(all(test, target_os = "linux", not(any(miri, loom, shuttle))))]
mod tests {
    use super::{allowed, here, leave};

    /// The system may bring the thread back at any time, but not every time.
    #[test]
    fn a_thread_leaves_its_processor_and_may_run_where_it_could_before() {
        let before = allowed().unwrap_or_default();
        let left = (0..100).any(|_| {
            let cpu = here().unwrap_or_default();
            leave(cpu).is_ok() && here() != Some(cpu)
        });
        assert_eq!(left, before.len() > 1);
        assert_eq!(allowed().unwrap_or_default(), before);
    }
}
