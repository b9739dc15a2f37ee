//! Large pages of memory, which a worker that mostly waits is better off without: each of them counts whole, however
//! little of it is used.
//!
//! The system hands the wish down to every program that is started, and those are to have what they would have anyway. So
//! it is taken back for as long as one is being started.
//!
//! A program has its first large pages before it can say anything, so it says it and begins anew.

use std::os::unix::process::CommandExt as _;
use std::sync::{Mutex, PoisonError};

/// Programs that are being started while this process has no large pages; none if it never said that it wants none.
static STARTING: Mutex<Option<usize>> = Mutex::new(None);

/// This process goes without large pages from now on; those that it starts are not concerned.
pub fn without_large_pages() {
    let mut starting = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    if starting.is_none() && permit(false) {
        *starting = Some(0);
    }
}

/// Begins this program anew without large pages, with `mark` behind its arguments; to be called first of all. It returns only
/// where that cannot be done or there are none anyway. Whoever finds the mark calls [`without_large_pages`] instead.
pub fn begin_without_large_pages(mark: &str) {
    let Ok(program) = std::env::current_exe() else { return };
    if !has_large() || !permit(false) {
        return;
    }
    let mut again = std::process::Command::new(program);
    let mut arguments = std::env::args_os();
    if let Some(name) = arguments.next() {
        again.arg0(name);
    }
    // It comes back only if it failed, and then everything goes on as it was.
    let _ = again.args(arguments).arg(mark).exec();
    permit(true);
}

/// Starts a program that is to have the pages it would have without us.
pub(super) fn as_given<T>(start: impl FnOnce() -> T) -> T {
    let change = |by: fn(usize) -> usize, permitted_at: usize| {
        let mut starting = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = starting.as_mut() {
            *count = by(*count);
            if *count == permitted_at {
                permit(permitted_at > 0);
            }
        }
    };
    change(|count| count + 1, 1);
    let started = start();
    change(|count| count.saturating_sub(1), 0);
    started
}

/// Whether the system did as it was told; where it cannot, everything stays as it is.
#[cfg(target_os = "linux")]
fn permit(large: bool) -> bool {
    rustix::thread::disable_transparent_huge_pages(!large).is_ok()
}

/// Whether this process may have large pages, where that is known.
#[cfg(target_os = "linux")]
fn has_large() -> bool {
    rustix::thread::transparent_huge_pages_are_disabled().is_ok_and(|disabled| !disabled)
}

#[cfg(not(target_os = "linux"))]
fn has_large() -> bool {
    false
}

#[cfg(not(target_os = "linux"))]
fn permit(_large: bool) -> bool {
    false
}
