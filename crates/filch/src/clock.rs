//! Where the balancer's time comes from. Never waits; waiting is the business of whoever asked for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use filch_core::Time;

/// Tells the time. It must not go backwards; where it does, the balancer stands still until it has caught up.
pub trait Clock: Send + Sync + 'static {
    /// The present, counted from whatever moment the clock likes.
    fn now(&self) -> Time;

    /// Whether the time of this clock passes by itself, second for second. If not, nobody can sleep until a timer is
    /// due: timers fire when any operation of the balancer finds them due, for example [`Balancer::tick`].
    ///
    /// [`Balancer::tick`]: crate::Balancer::tick
    fn runs_by_itself(&self) -> bool {
        true
    }
}

/// The clock of the machine, counted from the moment it was made.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    start: Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        SystemClock { start: Instant::now() }
    }
}

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Time {
        Time(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

/// A clock that stands still until it is told to go on; its clones show the same time. For tests.
///
/// ```
/// use std::time::Duration;
/// use filch::{Clock, ManualClock};
///
/// let clock = ManualClock::default();
/// let other = clock.clone();
/// clock.advance(Duration::from_secs(2));
/// assert_eq!(other.now().as_secs_f64(), 2.0);
/// ```
#[derive(Clone, Debug, Default)]
pub struct ManualClock {
    now: Arc<AtomicU64>,
}

impl ManualClock {
    /// Goes on by `span`, up to the last moment a [`Time`] can tell; there it stands still.
    pub fn advance(&self, span: Duration) {
        let on = |now: u64| Some(now.saturating_add(crate::span(span).0));
        // Never refused: `on` always has an answer.
        let _ = self.now.fetch_update(Ordering::SeqCst, Ordering::SeqCst, on);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Time {
        Time(self.now.load(Ordering::SeqCst))
    }

    fn runs_by_itself(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_at_the_end_of_time_never_begins_again() {
        let clock = ManualClock::default();
        clock.advance(Duration::from_secs(1));
        for span in [Duration::from_nanos(u64::MAX - 5), Duration::from_nanos(1), Duration::MAX] {
            let before = clock.now();
            clock.advance(span);
            assert!(clock.now() >= before, "{:?} after {before:?}", clock.now());
        }
        assert_eq!(clock.now(), Time(u64::MAX));
    }
}
