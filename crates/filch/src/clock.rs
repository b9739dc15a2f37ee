//! Where the balancer's time comes from. Never waits; waiting is the business of whoever asked for it.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use filch_core::Time;

use crate::calm::calmly;

/// Tells the time. It must not go backwards; where it does, the balancer stands still until it has caught up. If it
/// panics, the time it told last is taken once more.
///
/// It is asked while no lock is held, but must not use the balancer it tells the time for: most of what a balancer does
/// begins by asking for the time. Where it does, the inner call panics and says so, which counts as a panic of the clock.
pub trait Clock: Send + Sync + 'static {
    /// The present, counted from whatever moment the clock likes.
    fn now(&self) -> Time;

    /// Whether the time of this clock passes by itself, second for second. If not, nobody can sleep until a timer is
    /// due: timers fire when any operation of the balancer finds them due, for example [`Balancer::tick`]. Asked once, when
    /// the balancer is built.
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

/// A clock as the balancer reads it: whatever that of somebody else does, there is a time.
pub(crate) enum Timepiece {
    System(SystemClock),
    Custom(Custom),
}

/// The clock of somebody else.
pub(crate) struct Custom {
    clock: Box<dyn Clock>,
    runs_by_itself: bool,
    /// What it told last.
    last: AtomicU64,
}

thread_local! {
    /// The clocks that are being asked on this thread, one from inside the other, by their addresses.
    static ASKED: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

impl Timepiece {
    pub(crate) fn custom(clock: impl Clock) -> Timepiece {
        let runs_by_itself = calmly(|| clock.runs_by_itself()).unwrap_or(true);
        Timepiece::Custom(Custom { clock: Box::new(clock), runs_by_itself, last: AtomicU64::new(0) })
    }

    /// The present; the last that is known if the clock panics.
    ///
    /// # Panics
    /// If it is the clock itself that wants to know.
    #[inline]
    pub(crate) fn now(&self) -> Time {
        match self {
            Timepiece::System(clock) => clock.now(),
            Timepiece::Custom(custom) => custom.now(),
        }
    }

    pub(crate) fn runs_by_itself(&self) -> bool {
        match self {
            Timepiece::System(clock) => clock.runs_by_itself(),
            Timepiece::Custom(custom) => custom.runs_by_itself,
        }
    }
}

impl Custom {
    fn now(&self) -> Time {
        let this = std::ptr::from_ref(self).addr();
        // A thread that is about to end has no list any more; clocks asked then are not watched.
        let nested = ASKED.try_with(|asked| {
            let mut asked = asked.borrow_mut();
            let nested = asked.contains(&this);
            if !nested {
                asked.push(this);
            }
            nested
        });
        assert!(
            nested != Ok(true),
            "a custom clock called the balancer that was asking it for the time, which needs to know the time for that: \
             a clock must not use its balancer"
        );
        let told = calmly(|| self.clock.now());
        // Those asked from inside are done, so this is the last.
        let _ = ASKED.try_with(|asked| asked.borrow_mut().pop());
        match told {
            Some(now) => {
                self.last.store(now.0, Ordering::Relaxed);
                now
            }
            None => Time(self.last.load(Ordering::Relaxed)),
        }
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
