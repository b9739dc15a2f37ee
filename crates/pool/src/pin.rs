//! Which processors this process may use, and tying a thread to one of them.
//!
//! Linux only; elsewhere both say that they cannot. It never widens what the process was allowed.

use std::io;

/// The processors the calling thread may run on, ascending.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn allowed() -> io::Result<Vec<usize>> {
    // The kernel refuses a mask that is too short for the machine, so try longer ones.
    for words in [16, 128, 1024] {
        let mut mask = vec![0u64; words];
        // SAFETY: the mask is as long as said and plain memory; the kernel fills it.
        let result = unsafe { libc::sched_getaffinity(0, size_of_val(&*mask), mask.as_mut_ptr().cast()) };
        if result == 0 {
            return Ok((0..words * 64).filter(|cpu| mask[cpu / 64] >> (cpu % 64) & 1 == 1).collect());
        }
    }
    Err(io::Error::last_os_error())
}

/// Ties the calling thread to one processor.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn to(cpu: usize) -> io::Result<()> {
    let mut mask = vec![0u64; (cpu / 64 + 1).max(16)];
    mask[cpu / 64] = 1 << (cpu % 64);
    // SAFETY: the mask is as long as said; the kernel only reads it.
    match unsafe { libc::sched_setaffinity(0, size_of_val(&*mask), mask.as_ptr().cast()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
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
