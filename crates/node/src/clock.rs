//! The time that machines are told: it goes on evenly, whatever is done to the clock on the wall.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use filch_core::Time;

/// Nanoseconds since 1970 when it was made, and evenly from there.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    began: Instant,
    at: u64,
}

impl Default for Clock {
    fn default() -> Clock {
        Clock::new()
    }
}

impl Clock {
    /// A clock that begins now.
    #[must_use]
    pub fn new() -> Clock {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Clock { began: Instant::now(), at: u64::try_from(wall.as_nanos()).unwrap_or(0) }
    }

    /// Now.
    #[must_use]
    pub fn now(&self) -> Time {
        Time(self.at + u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX / 2))
    }

    /// The moment a time stands for.
    #[must_use]
    pub fn instant(&self, time: Time) -> Instant {
        self.began + std::time::Duration::from_nanos(time.0.saturating_sub(self.at))
    }
}
