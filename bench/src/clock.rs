//! The processor time of the calling thread.
//!
//! Wall time would count every moment in which another program had the core; this does not. It still counts what such
//! a program does to the caches.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds this thread has spent on a processor.
#[must_use]
pub fn thread_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// Seconds all threads of this process have spent on processors.
#[must_use]
pub fn process_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_takes_time_and_sleep_does_not() {
        let start = thread_ns();
        let mut sum = 0u64;
        while thread_ns() - start < 2_000_000 {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(sum > 0);
        let start = thread_ns();
        std::thread::sleep(std::time::Duration::from_millis(200));
        assert!(thread_ns() - start < 100_000_000);
    }
}
