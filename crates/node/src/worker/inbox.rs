//! What has come for a worker and was not looked at, in the order in which it came.
//!
//! Whoever brings something may put it to the machine itself, if nobody is there just then: where that is all there is to
//! do, waking another task or thread for it takes longer than doing it. Never passes over what came before.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError, Weak};

use tokio::sync::Notify;

use super::Event;
use super::driver::Driver;

/// A place to put events. Can be copied and used from anywhere.
#[derive(Clone)]
pub(super) struct Inbox(Arc<Shared>);

/// The owner of an [`Inbox`]: when this is dropped, nobody listens any more.
pub(super) struct Listener(pub(super) Inbox);

struct Shared {
    state: Mutex<State>,
    news: Notify,
    driver: OnceLock<Weak<Mutex<Driver>>>,
}

#[derive(Default)]
struct State {
    events: Vec<Event>,
    /// Whether whoever waits is to look even if nothing has come.
    nudged: bool,
    closed: bool,
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves an event for the task of the worker; whether anybody still listens.
    pub(super) fn send(&self, event: Event) -> bool {
        let mut state = self.lock();
        if state.closed {
            return false;
        }
        state.events.push(event);
        let first = state.events.len() == 1;
        drop(state);
        if first {
            self.0.news.notify_one();
        }
        true
    }

    /// Puts an event to the machine here and now if nobody else is there, after all that came before it. Otherwise leaves it.
    /// Whether anybody still listens. Must not be called by whoever is there.
    pub(super) fn hand_over(&self, event: Event) -> bool {
        let driver = self.0.driver.get().and_then(Weak::upgrade);
        let here = driver.as_ref().and_then(|driver| match driver.try_lock() {
            Ok(here) => Some(here),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            // Whoever is there will not be long, but may have been put aside for another program.
            Err(TryLockError::WouldBlock) => None,
        });
        match here {
            Some(mut here) => {
                let listens = self.send_silently(event);
                here.turn_elsewhere();
                listens
            }
            None => self.send(event),
        }
    }

    /// Leaves an event for somebody who is there.
    fn send_silently(&self, event: Event) -> bool {
        let mut state = self.lock();
        let listens = !state.closed;
        if listens {
            state.events.push(event);
        }
        listens
    }

    /// Lets the task of the worker have a turn although nothing has come.
    pub(super) fn nudge(&self) {
        self.lock().nudged = true;
        self.0.news.notify_one();
    }

    /// Takes all that has come.
    pub(super) fn take(&self, into: &mut Vec<Event>) {
        let mut state = self.lock();
        state.nudged = false;
        if into.is_empty() {
            std::mem::swap(into, &mut state.events);
        } else {
            into.append(&mut state.events);
        }
    }

    /// Who takes it; said once.
    pub(super) fn belongs_to(&self, driver: Weak<Mutex<Driver>>) {
        // It has one owner from its beginning to its end.
        let _ = self.0.driver.set(driver);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    pub(super) fn is(&self, other: &Inbox) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Listener {
    pub(super) fn new() -> Listener {
        let shared = Shared { state: Mutex::default(), news: Notify::new(), driver: OnceLock::new() };
        Listener(Inbox(Arc::new(shared)))
    }

    /// Waits until there is something to take.
    pub(super) async fn wait(&self) {
        loop {
            {
                let state = self.0.lock();
                if state.nudged || !state.events.is_empty() {
                    return;
                }
            }
            // Whoever comes in between leaves a permit.
            self.0.0.news.notified().await;
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.closed = true;
        let left = std::mem::take(&mut state.events);
        drop(state);
        // What is in there may want to say something when it goes.
        drop(left);
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future as _;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn waits(listener: &Listener) -> bool {
        pin!(listener.wait()).poll(&mut Context::from_waker(Waker::noop())) == Poll::Pending
    }

    #[test]
    fn all_is_taken_in_its_order_and_nobody_is_woken_for_nothing() {
        let listener = Listener::new();
        let inbox = listener.0.clone();
        assert!(waits(&listener));
        assert!(inbox.send(Event::Drain));
        // Nobody is there yet, so it is left too.
        assert!(inbox.hand_over(Event::Stop));
        assert!(!waits(&listener));
        let mut taken = Vec::new();
        inbox.take(&mut taken);
        assert!(matches!(taken[..], [Event::Drain, Event::Stop]));
        assert!(waits(&listener), "what was taken is not news");
        inbox.nudge();
        assert!(!waits(&listener));
        // What is there already stays before what comes.
        assert!(inbox.send(Event::Drain));
        inbox.take(&mut taken);
        assert!(matches!(taken[..], [Event::Drain, Event::Stop, Event::Drain]));
        assert!(waits(&listener));
    }

    #[test]
    fn who_sends_learns_that_nobody_listens() {
        let listener = Listener::new();
        let inbox = listener.0.clone();
        assert!(inbox.is(&listener.0) && !inbox.is(&Listener::new().0));
        drop(listener);
        assert!(inbox.is_closed());
        assert!(!inbox.send(Event::Drain));
        assert!(!inbox.hand_over(Event::Drain));
    }
}
