//! Asking for the next task: at once, blocking, or as a future; with or without a limit of time.
//!
//! Whoever waits has a wish standing in the machine. However the waiting ends (a task, the time is up, the future is
//! dropped), either the task is handed on or the wish is withdrawn, in one step under the lock; so no task is lost to
//! somebody who has gone.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use filch_core::WorkerId;

use super::state::{News, Wake};
use super::{Balancer, Delivery, Shared};
use crate::assignment::Assignment;
use crate::calm::calmly;
use crate::error::Error;
use crate::worker::WorkerName;

impl<T: Send + Sync + 'static, R: Send + Sync + 'static> Balancer<T, R> {
    /// The next task for a worker, if there is one now.
    ///
    /// # Errors
    /// If there is no such worker, or the balancer is stopped.
    #[allow(clippy::should_implement_trait, reason = "a balancer is no iterator, and this is the word users know")]
    pub fn next(&self, worker: impl Into<WorkerName>) -> Result<Option<Assignment<T, R>>, Error> {
        let worker = worker.into();
        let pulled = self.shared.with(|state, now, after| {
            let worker = state.find_worker(&worker)?;
            state.pull(now, worker, &mut None, after)
        })?;
        Ok(pulled.ok().map(|delivery| self.shared.assignment(delivery)))
    }

    /// The next task for a worker; waits for one as long as it takes.
    ///
    /// # Errors
    /// If there is no such worker (any more), or the balancer is stopped.
    pub fn next_blocking(&self, worker: impl Into<WorkerName>) -> Result<Assignment<T, R>, Error> {
        // Without a limit of time the only way out is a task or an error.
        self.wait_for_next(&worker.into(), None)?.ok_or(Error::Stopped)
    }

    /// The next task for a worker; waits for one up to `timeout`, by the clock of the machine.
    ///
    /// # Errors
    /// If there is no such worker (any more), or the balancer is stopped.
    pub fn next_timeout(
        &self,
        worker: impl Into<WorkerName>,
        timeout: Duration,
    ) -> Result<Option<Assignment<T, R>>, Error> {
        self.wait_for_next(&worker.into(), Some(Self::instant_in(timeout)))
    }

    fn wait_for_next(&self, worker: &WorkerName, until: Option<Instant>) -> Result<Option<Assignment<T, R>>, Error> {
        let shared = &self.shared;
        let mut wake = Some(Wake::Thread(std::thread::current()));
        let pulled = shared.with(|state, now, after| {
            let worker = state.find_worker(worker)?;
            state.pull(now, worker, &mut wake, after)
        })?;
        let key = match pulled {
            Ok(delivery) => return Ok(Some(shared.assignment(delivery))),
            // With a way to be woken there is always a key.
            Err(key) => key.unwrap_or_default(),
        };
        shared.leave_timer_thread();
        loop {
            let rest = until.map(|until| until.saturating_duration_since(Instant::now()));
            match rest {
                Some(rest) => std::thread::park_timeout(rest),
                None => std::thread::park(),
            }
            let time_is_up = until.is_some_and(|until| Instant::now() >= until);
            match shared.with(|state, now, after| state.look(now, key, time_is_up, after)) {
                News::Waiting => {}
                News::Ready(delivery) => return Ok(Some(shared.assignment(delivery))),
                News::Failed(error) => return Err(error),
                News::TimedOut => return Ok(None),
            }
        }
    }

    /// The next task for a worker, as a future that needs no particular runtime. Dropping it withdraws the wish.
    ///
    /// It resolves to `None` only with a [timeout](NextAssignment::timeout), and to [`Error::Stopped`] once the last balancer
    /// was dropped: it does not keep the balancer going.
    pub fn next_async(&self, worker: impl Into<WorkerName>) -> NextAssignment<T, R> {
        NextAssignment {
            shared: Arc::clone(&self.shared),
            worker: worker.into(),
            timeout: None,
            waiting: None,
            until: None,
        }
    }

    /// As [`next_async`](Balancer::next_async), resolving to `None` after `timeout`.
    pub fn next_async_timeout(&self, worker: impl Into<WorkerName>, timeout: Duration) -> NextAssignment<T, R> {
        self.next_async(worker).timeout(timeout)
    }
}

/// The future of [`Balancer::next_async`].
#[must_use = "a future does nothing until it is awaited"]
pub struct NextAssignment<T: Send + Sync + 'static = (), R: Send + Sync + 'static = ()> {
    shared: Arc<Shared<T, R>>,
    worker: WorkerName,
    timeout: Option<Duration>,
    /// The key of the standing wish.
    waiting: Option<u64>,
    /// When the timer thread ends the waiting.
    until: Option<Instant>,
}

impl<T: Send + Sync + 'static, R: Send + Sync + 'static> NextAssignment<T, R> {
    /// Resolves to `None` if there is no task within `timeout` of the first poll, by the clock of the machine.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    fn first_poll(&mut self, context: &Context<'_>) -> Poll<Result<Option<Assignment<T, R>>, Error>> {
        // Cloned outside the lock, and dropped there if it is not needed: it is somebody else's code.
        let mut wake = Some(Wake::Task(context.waker().clone()));
        let pulled = self.shared.with(|state, now, after| {
            // Looked at under the lock: whoever lets the last one go takes it afterwards, and finds our wish if we did not
            // see that.
            if self.shared.handles.load(Ordering::SeqCst) == 0 {
                return Err(Error::Stopped);
            }
            let worker: WorkerId = state.find_worker(&self.worker)?;
            state.pull(now, worker, &mut wake, after)
        });
        match pulled {
            Err(error) => Poll::Ready(Err(error)),
            Ok(Ok(delivery)) => Poll::Ready(Ok(Some(self.shared.assignment(delivery)))),
            Ok(Err(key)) => {
                self.waiting = key;
                if let (Some(timeout), Some(key)) = (self.timeout, key) {
                    let until = Balancer::<T, R>::instant_in(timeout);
                    self.until = Some(until);
                    self.shared.alarm.add_wait(until, key);
                    self.shared.start_thread();
                }
                Poll::Pending
            }
        }
    }

    fn look_again(&mut self, key: u64, context: &Context<'_>) -> Poll<Result<Option<Assignment<T, R>>, Error>> {
        // Cloned and dropped outside the lock: it is somebody else's code.
        let mut waker = Some(context.waker().clone());
        let news = self.shared.with(|state, now, after| {
            let news = state.look(now, key, false, after);
            if matches!(news, News::Waiting)
                && let Some(waker) = waker.take()
            {
                state.set_waker(key, waker, after);
            }
            news
        });
        if matches!(news, News::Waiting) {
            return Poll::Pending;
        }
        self.waiting = None;
        self.forget_timeout(key);
        Poll::Ready(match news {
            News::Ready(delivery) => Ok(Some(self.shared.assignment(delivery))),
            News::Failed(error) => Err(error),
            News::TimedOut | News::Waiting => Ok(None),
        })
    }

    fn forget_timeout(&mut self, key: u64) {
        if let Some(until) = self.until.take() {
            self.shared.alarm.remove_wait(until, key);
        }
    }
}

impl<T: Send + Sync + 'static, R: Send + Sync + 'static> Future for NextAssignment<T, R> {
    type Output = Result<Option<Assignment<T, R>>, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let polled = match this.waiting {
            None => this.first_poll(context),
            Some(key) => this.look_again(key, context),
        };
        if polled.is_pending() {
            this.shared.leave_timer_thread();
        }
        polled
    }
}

impl<T: Send + Sync + 'static, R: Send + Sync + 'static> Drop for NextAssignment<T, R> {
    fn drop(&mut self) {
        if let Some(key) = self.waiting.take() {
            self.forget_timeout(key);
            // It may be dropped by a panic of code that must not use the balancer, and must not panic again then.
            calmly(|| self.shared.with(|state, now, after| state.abandon(now, key, after)));
        }
    }
}

impl<T: Send + Sync + 'static, R: Send + Sync + 'static> Shared<T, R> {
    fn assignment(self: &Arc<Self>, delivery: Delivery<T>) -> Assignment<T, R> {
        Assignment::new(Arc::clone(self), delivery)
    }
}
