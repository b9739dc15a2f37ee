//! The balancer: the machine behind a lock, with a clock and a timer thread.
//!
//! Every operation is the same: prepare outside the lock, tell the machine what happened, carry out what it wants, and
//! once the lock is free wake, call back and drop. Nothing here decides anything.

mod after;
mod control;
mod ends;
mod entries;
mod jobs;
mod left;
mod notify;
mod pull;
mod report;
mod state;
mod submit;
mod task_names;
mod timer;
mod view;
mod workers;

pub use ends::JobEnd;
pub use notify::{CallbackId, StatusChange, Subject};
pub use pull::NextAssignment;
pub use submit::Job;
pub use workers::ReturnedTask;

pub(crate) use state::{Delivery, Report, State};

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use crate::lock::Lock;
use filch_core::{ParentName, Refusal, Scheduler, Time};

use crate::builder::Builder;
use crate::calm::calmly;
use crate::clock::Timepiece;
use crate::config::Retry;
use crate::duration;
use crate::error::Error;
use crate::names::NameBook;
use after::{After, Rest};
use state::Stole;
use timer::Alarm;

/// The scheduler inside your process: thread safe, and cheap to clone (clones are the same balancer).
///
/// `T` is what a task carries, `R` what it results in; both are `()` unless said otherwise. Payloads and results are
/// shared, never copied.
///
/// Wherever a worker or a task is asked for, either its name or the id that registering or submitting gave will do; ids
/// are quicker.
///
/// # Time
/// Timers (retries, timeouts, rebalancing, aging) are fired by every operation that finds them due, and by a background
/// thread that starts with the first worker or task and never holds the lock for longer than one step. [`stop`] ends it,
/// and so does dropping the last clone.
///
/// # Memory
/// Settled tasks are remembered with their result, error and name: the latest `settled_kept` of them at the least and
/// `settled_max` at the most (settings of `limits`, 4,096 and 100,000 unless said otherwise; [`Builder::settled_max`]
/// sets the latter); so are jobs that are done, as many with their counts. Those settled longest ago are forgotten first. Whoever needs every result takes it in
/// [`on_status`](Balancer::on_status). After a burst the memory of what was forgotten is given back.
///
/// # Names
/// Names of capabilities, resources, kinds, keys, task types and affinity keys become numbers that are never given back.
/// There may be 4,096 capabilities and types, 1,024 resources and 1,048,576 of each of the others; beyond that tasks and
/// workers with new names are refused, so use no name that is unique to each task. Ids of tasks and workers are no such
/// names; there may be any number of them.
///
/// [`stop`]: Balancer::stop
pub struct Balancer<T = (), R = ()> {
    pub(crate) shared: Arc<Shared<T, R>>,
}

impl<T, R> Clone for Balancer<T, R> {
    fn clone(&self) -> Self {
        Balancer::of(Arc::clone(&self.shared))
    }
}

impl<T, R> Drop for Balancer<T, R> {
    fn drop(&mut self) {
        if self.shared.handles.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.shared.end_waits();
        }
    }
}

impl<T, R> Balancer<T, R> {
    /// One more handle.
    fn of(shared: Arc<Shared<T, R>>) -> Self {
        shared.handles.fetch_add(1, Ordering::SeqCst);
        Balancer { shared }
    }
}

impl<T, R> std::fmt::Debug for Balancer<T, R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Balancer").finish_non_exhaustive()
    }
}

/// A balancer that goes away when nobody else holds it; for callbacks that use the balancer.
pub struct WeakBalancer<T = (), R = ()> {
    shared: Weak<Shared<T, R>>,
}

impl<T, R> WeakBalancer<T, R> {
    /// The balancer, while it exists.
    #[must_use]
    pub fn upgrade(&self) -> Option<Balancer<T, R>> {
        Some(Balancer::of(self.shared.upgrade()?))
    }
}

impl<T, R> Clone for WeakBalancer<T, R> {
    fn clone(&self) -> Self {
        WeakBalancer { shared: Weak::clone(&self.shared) }
    }
}

/// What all clones share.
pub(crate) struct Shared<T, R> {
    pub(crate) state: Lock<State<T, R>>,
    pub(crate) names: Arc<NameBook>,
    clock: Arc<Timepiece>,
    retry: Retry,
    alarm: Arc<Alarm>,
    /// Whether the background thread was started, or is not to be.
    background: AtomicBool,
    /// How many balancers there are. Assignments and futures share this too, but nobody can submit with them.
    handles: AtomicUsize,
    /// The result of all tasks whose results have nothing to them.
    nothing: OnceLock<Arc<R>>,
}

impl<T, R> Drop for Shared<T, R> {
    fn drop(&mut self) {
        self.alarm.stop();
    }
}

impl<T, R> Shared<T, R> {
    /// Runs one operation under the lock, then does what must be done outside it.
    #[inline]
    pub(crate) fn with<O>(&self, operation: impl FnOnce(&mut State<T, R>, Time, &mut After<T, R>) -> O) -> O {
        let mut after = After::default();
        let now = self.clock.now();
        let output = {
            let mut state = self.state.lock();
            let output = operation(&mut state, now, &mut after);
            state.conclude(&mut after);
            output
        };
        let rest = after.take_rest().map(|rest| self.do_rest(rest, now));
        if let Some(at) = after.timer {
            self.alarm.set_timer(at);
        }
        if after.deliver {
            self.deliver();
        }
        after.drop_calmly();
        if let Some(rest) = rest {
            rest.drop_calmly();
        }
        output
    }

    /// A result as it is kept. All that have nothing to them, as `()`, are one: nobody could tell them apart, and memory for
    /// each would mostly be taken on one processor and given back on another, much later.
    #[inline]
    pub(crate) fn keep(&self, result: R) -> Arc<R> {
        if size_of::<R>() > 0 || std::mem::needs_drop::<R>() {
            return Arc::new(result);
        }
        Arc::clone(self.nothing.get_or_init(|| Arc::new(result)))
    }

    /// Does what few operations leave to be done, but for what is only to be dropped.
    #[inline(never)]
    fn do_rest(&self, mut rest: Box<Rest<T, R>>, now: Time) -> Box<Rest<T, R>> {
        let steals = rest.take_steals();
        if !steals.is_empty() {
            self.record_steals(steals, now);
        }
        for wake in rest.take_wakes() {
            // The waker is somebody else's code, and whatever it does the others still wait.
            calmly(|| wake.wake());
        }
        rest
    }

    /// Notes how steals went that were wished for at `since`. The clock may be somebody else's, so it is not asked under the
    /// lock.
    #[cold]
    fn record_steals(&self, steals: Vec<Stole>, since: Time) {
        let latency = self.clock.now().since(since);
        let mut state = self.state.lock();
        for (victim, outcome) in steals {
            // Whoever has left meanwhile has no figures of their own any more.
            let victim = victim.filter(|&victim| state.worker(victim).is_some());
            state.telemetry.record(victim, Some(latency), outcome);
        }
    }

    /// The last balancer is gone: futures that wait for a task are told, since nobody is left to submit one.
    fn end_waits(&self) {
        // This may run while another panic is under way, even one of a policy, which must not use the balancer.
        calmly(|| {
            if self.state.lock().anybody_waits() {
                self.with(|state, now, after| state.end_waits(now, after));
            }
        });
    }

    /// Says why the machine refused, in the words of the caller. `label` names the tasks of a submission.
    fn error(&self, state: &State<T, R>, now: Time, refusal: Refusal, label: impl Fn(u32) -> String) -> Error {
        let from_now = |at: Time| duration(at.since(now));
        match refusal {
            Refusal::UnknownWorker(id) => Error::UnknownWorker(state.worker_label(id)),
            Refusal::UnknownTask(id) => Error::UnknownTask(state.task_label(id)),
            Refusal::UnknownJob(id) => state.no_such_job(id),
            Refusal::UnknownElement(job, index) => state.no_such_element(job, index),
            Refusal::UnknownParent { index, parent } => {
                let parent = match parent {
                    ParentName::Task(id) => state.task_label(id),
                    ParentName::Position(at) => format!("#{at}"),
                };
                Error::UnknownParent { task: label(index), parent }
            }
            Refusal::Cycle(path) => {
                let around = path.iter().chain(path.first());
                Error::Cycle(around.map(|&at| label(at)).collect())
            }
            Refusal::QueueFull { queued, limit, retry_after } => {
                Error::QueueFull { queued, limit, retry_after: duration(retry_after) }
            }
            Refusal::Hopeless { index, deadline, earliest } => Error::HopelessDeadline {
                task: label(index),
                deadline: from_now(deadline),
                earliest: from_now(earliest),
            },
            Refusal::PinnedElsewhere { worker, lack } => {
                Error::Unsatisfiable { worker: state.worker_label(worker), lack: self.names.lack(lack) }
            }
            Refusal::Invalid(what) => Error::Invalid(what),
            Refusal::InvalidTask { index, what } => Error::Invalid(format!("task `{}` {what}", label(index))),
            Refusal::StaleAttempt(task, attempt) => Error::Stale { task: state.task_label(task), attempt },
        }
    }
}

impl<T: Send + Sync + 'static, R: Send + Sync + 'static> Balancer<T, R> {
    /// Starts building a balancer.
    ///
    /// ```
    /// use filch::{Balancer, Config};
    /// let balancer: Balancer = Balancer::builder().config(Config::default()).policy("round_robin").build()?;
    /// # Ok::<(), filch::BuildError>(())
    /// ```
    #[must_use]
    pub fn builder() -> Builder<T, R> {
        Builder::default()
    }

    pub(crate) fn new(scheduler: Scheduler, names: NameBook, clock: Arc<Timepiece>) -> Self {
        let retry = scheduler.config().retry.clone();
        let alarm = Arc::new(Alarm::new(Arc::clone(&clock)));
        let names = Arc::new(names);
        let state = Lock::new(State::new(scheduler, Arc::clone(&names)));
        let (background, handles) = (AtomicBool::new(false), AtomicUsize::new(0));
        let nothing = OnceLock::new();
        Balancer::of(Arc::new(Shared { state, names, clock, retry, alarm, background, handles, nothing }))
    }

    /// A handle that does not keep the balancer alive.
    #[must_use]
    pub fn downgrade(&self) -> WeakBalancer<T, R> {
        WeakBalancer { shared: Arc::downgrade(&self.shared) }
    }

    /// The present by the balancer's clock.
    #[must_use]
    pub fn now(&self) -> Time {
        self.shared.clock.now()
    }

    /// The instant that far away; so far that nobody lives to see it, if there is no such instant.
    fn instant_in(timeout: Duration) -> std::time::Instant {
        let now = std::time::Instant::now();
        now.checked_add(timeout).unwrap_or_else(|| now + Duration::from_secs(60 * 60 * 24 * 365))
    }
}
