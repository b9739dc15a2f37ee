//! Waiting for an end: that of one job, or of everything. Whoever waits is woken once the end has come and everybody has
//! been told of all that came before it.
//!
//! Never looks through those who wait, neither because of a task (a job knows who waits for it) nor because one of them
//! gives up.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use filch_core::JobId;
use filch_core::map::Map;
use smallvec::SmallVec;

use super::after::After;
use super::state::Wake;
use super::{Balancer, State};
use crate::calm::calmly;
use crate::error::Error;
use crate::info::JobStatus;

/// Somebody who waits.
struct Waiter {
    /// For the end of this job; else for that of everything.
    job: Option<JobId>,
    wake: Wake,
    /// They are calling back themselves, so they cannot wait until everybody has been told.
    calls_back: bool,
    /// How it ended, once it has.
    end: Option<End>,
    /// The timer thread says so.
    time_is_up: bool,
}

/// An end that has come.
struct End {
    /// It counts once so many status changes have been told.
    until_told: u64,
    /// How the job ended, if it is one.
    status: Result<Option<JobStatus>, Error>,
}

impl Waiter {
    fn is_done(&self, told: u64) -> bool {
        self.end.as_ref().is_some_and(|end| end.until_told <= told)
    }

    /// Their end has come. How many changes must have been told until it counts.
    fn set_end(&mut self, written: u64, status: Result<Option<JobStatus>, Error>) -> u64 {
        self.end.get_or_insert(End { until_told: if self.calls_back { 0 } else { written }, status }).until_told
    }
}

/// Everybody who waits for an end, by the key they look for news under.
#[derive(Default)]
pub(super) struct Ends {
    waiters: Map<u64, Waiter>,
    /// Those who wait for the end of everything.
    for_all: BTreeSet<u64>,
    /// Those who wait for a job that is not done.
    for_job: Map<JobId, BTreeSet<u64>>,
    /// Those whose end has come, but not everybody has been told: first of all how many changes must have been.
    coming: BTreeSet<(u64, u64)>,
}

impl Ends {
    fn add(&mut self, key: u64, waiter: Waiter) {
        match (&waiter.end, waiter.job) {
            (Some(end), _) => self.coming.insert((end.until_told, key)),
            (None, Some(job)) => self.for_job.entry(job).or_default().insert(key),
            (None, None) => self.for_all.insert(key),
        };
        self.waiters.insert(key, waiter);
    }

    fn remove(&mut self, key: u64) -> Option<Waiter> {
        let waiter = self.waiters.remove(&key)?;
        match (&waiter.end, waiter.job) {
            (Some(end), _) => {
                self.coming.remove(&(end.until_told, key));
            }
            (None, Some(job)) => {
                if let Some(keys) = self.for_job.get_mut(&job) {
                    keys.remove(&key);
                    if keys.is_empty() {
                        self.for_job.remove(&job);
                    }
                }
            }
            (None, None) => {
                self.for_all.remove(&key);
            }
        }
        Some(waiter)
    }

    fn set_end(&mut self, keys: BTreeSet<u64>, written: u64, status: &Result<Option<JobStatus>, Error>) {
        for key in keys {
            if let Some(waiter) = self.waiters.get_mut(&key) {
                let until_told = waiter.set_end(written, status.clone());
                self.coming.insert((until_told, key));
            }
        }
    }

    /// A job is done; so many status changes have been written by then.
    pub(super) fn job_done(&mut self, job: JobId, status: &JobStatus, written: u64) {
        if let Some(keys) = self.for_job.remove(&job) {
            self.set_end(keys, written, &Ok(Some(status.clone())));
        }
    }

    /// Whether there is anybody who waits, or has not looked yet.
    #[inline]
    pub(super) fn anybody_waits(&self) -> bool {
        !self.waiters.is_empty()
    }

    /// Whether somebody waits for the end of everything.
    pub(super) fn wait_for_all(&self) -> bool {
        !self.for_all.is_empty()
    }

    /// Whether somebody's end has come.
    pub(super) fn some_come(&self) -> bool {
        !self.coming.is_empty()
    }

    /// Nothing is left to do.
    pub(super) fn all_done(&mut self, written: u64) {
        let keys = std::mem::take(&mut self.for_all);
        self.set_end(keys, written, &Ok(None));
    }

    /// What is not done may never be: those who wait for it are told.
    pub(super) fn stop(&mut self) {
        let for_all = std::mem::take(&mut self.for_all);
        for keys in std::mem::take(&mut self.for_job).into_values().chain([for_all]) {
            self.set_end(keys, 0, &Err(Error::Stopped));
        }
    }

    /// Those who need not wait any longer. They look for their news by themselves.
    pub(super) fn take_told(&mut self, told: u64) -> SmallVec<[Wake; 1]> {
        let mut wakes = SmallVec::new();
        while let Some(&(until_told, key)) = self.coming.first()
            && until_told <= told
        {
            self.coming.pop_first();
            if let Some(waiter) = self.waiters.get_mut(&key) {
                wakes.push(waiter.wake.take());
            }
        }
        wakes
    }
}

/// What somebody who waits for an end finds when looking.
pub(super) enum Ended {
    /// It has not come.
    Waiting,
    /// It has; how the job stands, if it is one.
    Yes(Option<JobStatus>),
    /// The time is up; how the job stands, if it is one.
    TimedOut(Option<JobStatus>),
    /// It will not come.
    Failed(Error),
}

impl<T, R> State<T, R> {
    /// Waits for the end of everything or of one job. The answer is a key to look for news under.
    fn wait_for_end(&mut self, job: Option<JobId>, wake: &mut Option<Wake>) -> Result<u64, Error> {
        let status = job.map(|job| self.job_status(job)).transpose()?;
        let ended = status.as_ref().map_or_else(|| self.scheduler.unsettled() == 0, |status| status.done);
        if self.stopped && !ended {
            return Err(Error::Stopped);
        }
        let key = self.next_key();
        let calls_back = self.post.is_delivered_by(std::thread::current().id());
        let mut waiter =
            Waiter { job, wake: wake.take().unwrap_or(Wake::Done), calls_back, end: None, time_is_up: false };
        if ended {
            waiter.set_end(self.post.written(), Ok(status));
        }
        self.ends.add(key, waiter);
        Ok(key)
    }

    /// What there is for somebody who waits for an end. Anything but `Waiting` ends the waiting; so does `last_look`.
    fn look_for_end(&mut self, key: u64, last_look: bool, after: &mut After<T, R>) -> Ended {
        let told = self.post.told();
        let Some(waiter) = self.ends.waiters.get(&key) else { return Ended::TimedOut(None) };
        let done = waiter.is_done(told);
        if !done && !last_look && !waiter.time_is_up {
            return Ended::Waiting;
        }
        let Some(waiter) = self.ends.remove(key) else { return Ended::TimedOut(None) };
        after.retire(waiter.wake);
        match waiter.end {
            Some(End { status: Err(error), .. }) => Ended::Failed(error),
            Some(End { status: Ok(status), .. }) if done => Ended::Yes(status),
            Some(End { status: Ok(status), .. }) => Ended::TimedOut(status),
            None => Ended::TimedOut(waiter.job.and_then(|job| self.job_status(job).ok())),
        }
    }

    /// The time of somebody who waits for an end is up. They look for themselves. Whether there is such a one.
    pub(super) fn end_wait_timed_out(&mut self, key: u64, after: &mut After<T, R>) -> bool {
        let Some(waiter) = self.ends.waiters.get_mut(&key) else { return false };
        waiter.time_is_up = true;
        after.wake(waiter.wake.take());
        true
    }

    fn set_end_waker(&mut self, key: u64, waker: Waker, after: &mut After<T, R>) {
        let wake = Wake::Task(waker);
        after.retire(match self.ends.waiters.get_mut(&key) {
            Some(waiter) => std::mem::replace(&mut waiter.wake, wake),
            None => wake,
        });
    }
}

impl<T: Send + Sync + 'static, R: Send + Sync + 'static> Balancer<T, R> {
    /// Waits until every task is settled and all [callbacks](Balancer::on_status) have been told of it, up to `timeout` by
    /// the clock of the machine. Whether that is so. If the balancer is [stopped](Balancer::stop) before every task is
    /// settled, that is not so, and known at once.
    ///
    /// Inside a callback it waits for the tasks alone, since the callback would wait for itself. A callback must not wait
    /// for another thread that waits here.
    pub fn wait_idle(&self, timeout: Duration) -> bool {
        matches!(self.wait_on_thread(None, timeout), Ok(Ended::Yes(_)))
    }

    /// Waits until all of a job is settled and all [callbacks](Balancer::on_status) have been told of it, up to `timeout` by
    /// the clock of the machine; where it stands then. [`JobStatus::done`] tells whether all of it is settled; if the time
    /// is up while callbacks are still being told, that is so although they do not know all yet. A job from
    /// [`open_job`](Balancer::open_job) is done only after it was closed.
    ///
    /// Inside a callback it waits for the tasks alone, as [`wait_idle`](Balancer::wait_idle) does.
    ///
    /// # Errors
    /// If there is no such job, or it was done so long ago that nothing is known of it; or the balancer is stopped before
    /// the job is done.
    pub fn wait_job(&self, job: JobId, timeout: Duration) -> Result<JobStatus, Error> {
        match self.wait_on_thread(Some(job), timeout)? {
            Ended::Yes(Some(status)) | Ended::TimedOut(Some(status)) => Ok(status),
            Ended::Failed(error) => Err(error),
            _ => self.job_status(job),
        }
    }

    /// As [`wait_job`](Balancer::wait_job), as a future that needs no particular runtime; for as long as it takes, unless it
    /// has a [timeout](JobEnd::timeout). While it waits it keeps the balancer going.
    pub fn wait_job_async(&self, job: JobId) -> JobEnd<T, R> {
        JobEnd { balancer: self.clone(), job, timeout: None, waiting: None, until: None }
    }

    fn wait_on_thread(&self, job: Option<JobId>, timeout: Duration) -> Result<Ended, Error> {
        let until = Self::instant_in(timeout);
        let mut wake = Some(Wake::Thread(std::thread::current()));
        let key = self.shared.with(|state, _, _| state.wait_for_end(job, &mut wake))?;
        loop {
            let rest = until.saturating_duration_since(Instant::now());
            match self.shared.with(|state, _, after| state.look_for_end(key, rest.is_zero(), after)) {
                Ended::Waiting => {
                    self.shared.leave_timer_thread();
                    std::thread::park_timeout(rest);
                }
                ended => return Ok(ended),
            }
        }
    }
}

/// The future of [`Balancer::wait_job_async`].
#[must_use = "a future does nothing until it is awaited"]
pub struct JobEnd<T: Send + Sync + 'static = (), R: Send + Sync + 'static = ()> {
    balancer: Balancer<T, R>,
    job: JobId,
    timeout: Option<Duration>,
    /// The key to look for news under.
    waiting: Option<u64>,
    /// When the timer thread ends the waiting.
    until: Option<Instant>,
}

impl<T: Send + Sync + 'static, R: Send + Sync + 'static> JobEnd<T, R> {
    /// Resolves after `timeout` from the first poll by the clock of the machine at the latest, wherever the job stands then.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    fn forget(&mut self) {
        if let (Some(key), Some(until)) = (self.waiting.take(), self.until.take()) {
            self.balancer.shared.alarm.remove_wait(until, key);
        }
    }
}

impl<T: Send + Sync + 'static, R: Send + Sync + 'static> Future for JobEnd<T, R> {
    type Output = Result<JobStatus, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let shared = &this.balancer.shared;
        let key = match this.waiting {
            Some(key) => key,
            None => {
                let key = match shared.with(|state, _, _| state.wait_for_end(Some(this.job), &mut None)) {
                    Ok(key) => key,
                    Err(error) => return Poll::Ready(Err(error)),
                };
                this.waiting = Some(key);
                if let Some(timeout) = this.timeout {
                    let until = Balancer::<T, R>::instant_in(timeout);
                    this.until = Some(until);
                    shared.alarm.add_wait(until, key);
                    shared.start_thread();
                }
                key
            }
        };
        // Cloned outside the lock, and dropped there if it is not needed: it is somebody else's code.
        let mut waker = Some(context.waker().clone());
        let ended = shared.with(|state, _, after| {
            let ended = state.look_for_end(key, false, after);
            if matches!(ended, Ended::Waiting)
                && let Some(waker) = waker.take()
            {
                state.set_end_waker(key, waker, after);
            }
            ended
        });
        let output = match ended {
            Ended::Waiting => {
                shared.leave_timer_thread();
                return Poll::Pending;
            }
            Ended::Yes(Some(status)) | Ended::TimedOut(Some(status)) => Ok(status),
            Ended::Failed(error) => Err(error),
            Ended::Yes(None) | Ended::TimedOut(None) => this.balancer.job_status(this.job),
        };
        this.forget();
        Poll::Ready(output)
    }
}

impl<T: Send + Sync + 'static, R: Send + Sync + 'static> Drop for JobEnd<T, R> {
    fn drop(&mut self) {
        if let Some(key) = self.waiting {
            self.forget();
            // It may be dropped by a panic of code that must not use the balancer, and must not panic again then.
            calmly(|| self.balancer.shared.with(|state, _, after| state.look_for_end(key, true, after)));
        }
    }
}
