//! Wakes the task that waits for it at a moment that anybody may change.
//!
//! Timers of tokio ring on whole milliseconds, and one that is set to an earlier moment wakes its runtime at once to tell it so.
//! Where the system has timers that can be waited for like sockets, this is one of those: it is exact, and setting it is one call,
//! which is saved where an earlier one stands.

use std::io;
use std::time::Instant;

#[cfg(target_os = "linux")]
pub(crate) use exact::{Alarm, Bell};
#[cfg(not(target_os = "linux"))]
pub(crate) use plain::{Alarm, Bell};

/// An alarm, and what rings.
///
/// # Errors
/// If the system has none left. Must be called within a runtime.
pub(crate) fn alarm() -> io::Result<(Alarm, Bell)> {
    #[cfg(target_os = "linux")]
    return exact::new();
    #[cfg(not(target_os = "linux"))]
    Ok(plain::new())
}

/// Whether an alarm that was set to one moment has yet to ring and will by another.
fn suffices(stands: Option<Instant>, at: Instant, now: Instant) -> bool {
    stands.is_some_and(|stands| now < stands && stands <= at)
}

#[cfg(target_os = "linux")]
mod exact {
    use std::os::fd::OwnedFd;
    use std::sync::Arc;
    use std::time::Duration;

    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
    };
    use tokio::io::Interest;
    use tokio::io::unix::AsyncFd;

    use super::{Instant, io, suffices};
    use crate::watched::watched;

    pub(crate) struct Alarm {
        timer: Arc<OwnedFd>,
        at: Option<Instant>,
    }

    pub(crate) struct Bell(AsyncFd<Arc<OwnedFd>>);

    pub(super) fn new() -> io::Result<(Alarm, Bell)> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = Arc::new(timerfd_create(TimerfdClockId::Monotonic, flags)?);
        Ok((Alarm { timer: Arc::clone(&timer), at: None }, Bell(watched(timer, Interest::READABLE)?)))
    }

    impl Alarm {
        /// Rings then at the latest. One that stands and rings earlier is left to that: whoever is woken looks and says anew by when,
        /// which costs less than a call whenever the moment moves.
        pub(crate) fn ring_by(&mut self, at: Option<Instant>) {
            let now = Instant::now();
            let Some(at) = at.filter(|at| !suffices(self.at, *at, now)) else { return };
            self.at = Some(at);
            // Nothing at all would mean never.
            let span = at.saturating_duration_since(now).max(Duration::from_nanos(1));
            let value = Timespec {
                tv_sec: i64::try_from(span.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(span.subsec_nanos()),
            };
            let setting = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
            // It fails only for numbers that are none, and these are.
            let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &setting);
        }
    }

    impl Bell {
        /// Waits until it rings.
        pub(crate) async fn rings(&self) {
            loop {
                let Ok(mut ready) = self.0.readable().await else { return };
                let heard = rustix::io::read(self.0.get_ref(), &mut [0; 8]);
                ready.clear_ready();
                if heard.is_ok() {
                    return;
                }
            }
        }
    }
}

#[cfg(any(test, not(target_os = "linux")))]
#[cfg_attr(target_os = "linux", allow(dead_code, reason = "only its test uses it where there is something better"))]
mod plain {
    use std::sync::{Arc, Mutex, PoisonError};

    use tokio::sync::Notify;

    use super::{Instant, suffices};

    #[derive(Default)]
    struct Shared {
        at: Mutex<Option<Instant>>,
        changed: Notify,
    }

    pub(crate) struct Alarm(Arc<Shared>);

    pub(crate) struct Bell(Arc<Shared>);

    pub(super) fn new() -> (Alarm, Bell) {
        let shared = Arc::<Shared>::default();
        (Alarm(Arc::clone(&shared)), Bell(shared))
    }

    impl Alarm {
        /// Rings then at the latest. One that stands and rings earlier is left to that.
        pub(crate) fn ring_by(&mut self, at: Option<Instant>) {
            let mut stands = self.0.at.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(at) = at.filter(|at| !suffices(*stands, *at, Instant::now())) else { return };
            *stands = Some(at);
            self.0.changed.notify_one();
        }
    }

    impl Bell {
        /// Waits until it rings.
        pub(crate) async fn rings(&self) {
            loop {
                let at = *self.0.at.lock().unwrap_or_else(PoisonError::into_inner);
                let Some(at) = at else {
                    self.0.changed.notified().await;
                    continue;
                };
                tokio::select! {
                    () = tokio::time::sleep_until(at.into()) => {
                        let mut set = self.0.at.lock().unwrap_or_else(PoisonError::into_inner);
                        if *set == Some(at) {
                            *set = None;
                            return;
                        }
                    }
                    () = self.0.changed.notified() => {}
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// The same of both kinds.
    macro_rules! rings_when_it_should {
        ($name:ident, $new:expr) => {
            #[tokio::test]
            async fn $name() {
                let (mut alarm, bell) = $new;
                let began = Instant::now();
                let after = |millis| Some(began + Duration::from_millis(millis));
                // The earliest that was said counts, once; who says nothing takes nothing back.
                for at in [after(5_000), after(10), after(10), after(3_000), None] {
                    alarm.ring_by(at);
                }
                bell.rings().await;
                let took = began.elapsed();
                assert!(took >= Duration::from_millis(10), "it rang after {took:?}");
                assert!(took < Duration::from_secs(2), "it rang only after {took:?}");
                assert!(tokio::time::timeout(Duration::from_millis(30), bell.rings()).await.is_err(), "it rang again");
                // One that has rung is no reason not to ring; what is over rings at once.
                for at in [after(10), Some(Instant::now() + Duration::from_millis(20))] {
                    alarm.ring_by(at);
                    bell.rings().await;
                    assert!(Some(Instant::now()) >= at, "too early");
                }
                assert!(began.elapsed() < Duration::from_secs(2), "it rang only after {:?}", began.elapsed());
            }
        };
    }

    rings_when_it_should!(the_alarm_rings_when_it_should, alarm().unwrap());
    rings_when_it_should!(the_plain_one_does_too, plain::new());
}
