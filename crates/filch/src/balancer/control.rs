//! Everything else one may ask of a balancer: cancel, steal, rebalance, set policies and limits, start, stop.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use filch_core::{Event, JobId, TaskId, TaskSpec, WorkerId};

use super::{Balancer, Shared, State};
use crate::builder::PolicyChoice;
use crate::calm::calmly;
use crate::error::Error;
use crate::task::{Task, TaskName};
use crate::worker::WorkerName;

impl<T: Send + Sync + 'static, R: Send + Sync + 'static> Shared<T, R> {
    /// What a task asks for, to ask about it; all but the worker it is pinned to, which only the state knows.
    fn probe(&self, task: &Task<T>) -> Result<TaskSpec, Error> {
        task.details.as_ref().map_or(Ok(TaskSpec::default()), |details| details.spec(&self.names, &self.retry))
    }

    /// Starts the background thread with the first thing that could need it.
    #[inline]
    pub(super) fn run_in_background(self: &Arc<Self>) {
        if !self.background.load(Ordering::Relaxed) {
            self.background.store(true, Ordering::Relaxed);
            if self.clock.runs_by_itself() {
                self.start_thread();
            }
        }
    }
}

impl<T, R> State<T, R> {
    /// The worker that a task is pinned to, if it is.
    fn find_pin(&self, task: &Task<T>) -> Result<Option<WorkerId>, Error> {
        let pin = task.details.as_ref().and_then(|details| details.pin.as_ref());
        pin.map(|worker| self.find_worker(worker)).transpose()
    }
}

impl<T: Send + Sync + 'static, R: Send + Sync + 'static> Balancer<T, R> {
    /// Starts the background thread now, rather than with the first worker or task; and goes on after
    /// [`stop`](Balancer::stop).
    pub fn start(&self) {
        self.shared.state.lock().stopped = false;
        self.shared.alarm.allow();
        self.shared.background.store(true, Ordering::Relaxed);
        if self.shared.clock.runs_by_itself() {
            self.shared.start_thread();
        }
    }

    /// Ends the background thread and waits for its end. Whoever waits for a task, a job or the end of everything is told;
    /// new workers, tasks and wishes are refused with [`Error::Stopped`], reports of what is running are not.
    pub fn stop(&self) {
        self.shared.with(|state, now, after| state.stop(now, after));
        self.shared.alarm.stop();
    }

    /// Whether the background thread runs.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.shared.alarm.is_running()
    }

    /// Fires the timers that are due. Only needed with a [clock](crate::Clock) that does not run by itself.
    pub fn tick(&self) {
        // A tick is never refused.
        let _ = self.shared.tell(Event::Tick);
    }

    /// Withdraws a task at whatever stage it is; whoever runs it finds its assignment revoked.
    ///
    /// # Errors
    /// If the task is not known, or settled already; then the error says how and when.
    pub fn cancel(&self, task: impl Into<TaskName>) -> Result<(), Error> {
        let task = task.into();
        self.shared.with(|state, now, after| {
            let task = state.find_task(&task)?;
            if let Some((status, ago)) = state.settled(task, now) {
                return Err(Error::Settled { task: state.task_label(task), status, ago });
            }
            let cancelled = state.step(now, Event::Cancel { task }, after);
            cancelled.map_err(|refusal| self.shared.error(state, now, refusal, |_| String::new()))
        })
    }

    /// Withdraws everything of a job.
    ///
    /// # Errors
    /// If the job is not known, or done.
    pub fn cancel_job(&self, job: JobId) -> Result<(), Error> {
        self.shared.with(|state, now, after| {
            // Before the event, since the job is done after it.
            state.jobs.request_cancel(job);
            let cancelled = state.step(now, Event::CancelJob { job }, after);
            cancelled.map_err(|refusal| self.shared.error(state, now, refusal, |_| String::new()))
        })
    }

    /// Withdraws an element of an array that was not handed out yet, also if it waits by itself already.
    ///
    /// # Errors
    /// If there is no such job or element, or the job is done, or the element was handed out or is settled.
    pub fn cancel_element(&self, job: JobId, index: u32) -> Result<(), Error> {
        self.shared.tell(Event::CancelElement { job, index })
    }

    /// Lets an idle worker take queued tasks from another's queue into its own; the tasks it took. Only workers with
    /// queues of their own (`bind: push`) can be stolen from.
    ///
    /// # Errors
    /// If there is no such worker.
    pub fn steal(&self, worker: impl Into<WorkerName>) -> Result<Vec<TaskId>, Error> {
        let worker = worker.into();
        self.shared.with(|state, now, after| {
            let thief = state.find_worker(&worker)?;
            let stole = state.step(now, Event::Steal { thief }, after);
            stole.map_err(|refusal| self.shared.error(state, now, refusal, |_| String::new()))?;
            Ok(state.answers.moved.drain(..).filter(|(_, to)| *to == thief).map(|(task, _)| task).collect())
        })
    }

    /// Evens out queues now, if they are severely uneven; how many tasks were moved.
    pub fn rebalance(&self) -> usize {
        self.shared.with(|state, now, after| {
            // Rebalancing is never refused.
            let _ = state.step(now, Event::Rebalance, after);
            state.answers.moved.drain(..).count()
        })
    }

    /// Replaces the default placement policy, or that of one type of task. One of your [own](PolicyChoice::Custom) must not
    /// use the balancer.
    ///
    /// ```
    /// # use filch::Balancer;
    /// let balancer: Balancer = Balancer::builder().build()?;
    /// balancer.set_policy(None, "adaptive")?;
    /// balancer.set_policy("critical", "priority_based")?;
    /// assert!(balancer.set_policy("critical", "adaptiv").is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If there is no such policy, or its options make no sense.
    pub fn set_policy<'a>(
        &self,
        task_type: impl Into<Option<&'a str>>,
        policy: impl Into<PolicyChoice>,
    ) -> Result<(), Error> {
        let task_type = task_type.into().map(|name| self.shared.names.task_type(name)).transpose()?;
        let config = self.shared.state.lock().scheduler.config().clone();
        let event = policy.into().event(task_type, &config).map_err(Error::Invalid)?;
        let (told, replaced) = self.shared.with(|state, now, after| {
            let told = state.step(now, event, after);
            let told = told.map_err(|refusal| self.shared.error(state, now, refusal, |_| String::new()));
            (told, state.scheduler.take_replaced())
        });
        // Outside the lock: it may be somebody else's.
        calmly(|| drop(replaced));
        told
    }

    /// Sets how many tasks with a concurrency key may run together.
    ///
    /// # Errors
    /// If the limit is 0.
    pub fn set_key_limit(&self, key: &str, limit: u32) -> Result<(), Error> {
        let key = self.shared.names.key(key)?;
        self.shared.tell(Event::SetKeyLimit { key, limit })
    }

    /// Whether a worker could ever run such a task, by the very rule that placement uses. A task that is pinned to one
    /// worker can be run by no other.
    ///
    /// # Errors
    /// If there is no such worker, or none that the task is pinned to, or a value of the task makes no sense.
    pub fn can_execute(&self, worker: impl Into<WorkerName>, task: &Task<T>) -> Result<bool, Error> {
        let (worker, mut spec, now) = (worker.into(), self.shared.probe(task)?, self.now());
        let state = self.shared.state.lock();
        let worker = state.find_worker(&worker)?;
        spec.pin = state.find_pin(task)?;
        let answer = state.scheduler.can_execute(worker, &spec);
        let label = |_| task.id().unwrap_or("(unnamed)").to_owned();
        let answer = answer.map_err(|refusal| self.shared.error(&state, now, refusal, label))?;
        Ok(answer.is_ok())
    }

    /// The id of a worker that could run such a task: one with room for it now if a bounded look finds any, else one that
    /// could later; none if nobody ever could. For a pinned task only its own worker is looked at.
    ///
    /// # Errors
    /// If there is no worker that the task is pinned to, or a value of the task makes no sense.
    pub fn suitable_worker(&self, task: &Task<T>) -> Result<Option<String>, Error> {
        let mut spec = self.shared.probe(task)?;
        let state = self.shared.state.lock();
        spec.pin = state.find_pin(task)?;
        Ok(state.scheduler.suitable_worker(&spec).map(|worker| state.worker_label(worker)))
    }
}
