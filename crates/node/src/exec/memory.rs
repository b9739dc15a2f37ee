//! Tells a command's peak memory from the memory of the process that started it.
//!
//! A process that is started the fast way shares the starter's memory until its program is loaded, and the system counts
//! that in. So what it reports is the command's own only where it exceeds what the starter ever had.

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};

/// The most this process was seen to have; it only grows.
static OWN: AtomicU64 = AtomicU64::new(0);

/// Whether a peak that the system reported for a command is the command's own.
pub(super) fn is_exact(peak: u64) -> bool {
    // Read again only for what exceeds it: small commands, of which there are many, cost nothing.
    peak > OWN.load(Ordering::Relaxed) && {
        OWN.fetch_max(own_peak().unwrap_or(u64::MAX), Ordering::Relaxed);
        peak > OWN.load(Ordering::Relaxed)
    }
}

/// The most memory this process had at once, in bytes.
fn own_peak() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kibibytes| kibibytes * 1024)
}
