//! Looking at a balancer: metrics, health, workers, tasks, explanations. Never changes anything.

use std::collections::BTreeMap;
use std::ops::Range;

use filch_core::{Health, JobId, Metrics, Status, TaskId, Violation, WorkerStatus};

use super::{Balancer, State};
use crate::error::Error;
use crate::explain::{self, Explanation, JobExplanation};
use crate::info::{Sample, StealReport, TaskInfo, TaskStatus, WorkerInfo};
use crate::names::NameBook;
use crate::task::TaskName;

/// Places looked at while the lock is held once; each takes well under a microsecond, a worker or a sample more.
const TASKS: u32 = 256;
const WORKERS: u32 = 64;
const SAMPLES: usize = 8;

impl<T, R> State<T, R> {
    fn sample(&self, sample: &filch_core::Sample) -> Sample {
        let lengths = sample.queue_lengths.iter();
        Sample {
            at_s: sample.at.as_secs_f64(),
            queued: sample.queued,
            running: sample.running,
            busy: sample.busy,
            idle: sample.idle,
            queue_lengths: lengths.map(|(id, length)| (self.worker_label(*id), *length)).collect(),
        }
    }

    /// What there is to say of a settled task that the machine has forgotten.
    fn bare_explanation(&self, task: TaskId) -> Option<filch_core::Explanation> {
        let (status, cause, _) = self.entry(task)?.outcome?;
        Some(filch_core::Explanation {
            task,
            status,
            cause,
            waiting: filch_core::Span::ZERO,
            reasons: Vec::new(),
            hopeless: None,
            failed_parents: Vec::new(),
            refusals: filch_core::Refusals::default(),
            decision: None,
            failures: Vec::new(),
        })
    }

    fn task_info(&self, id: TaskId, status: Status) -> TaskInfo {
        let (entry, holder) = (self.entry(id), self.scheduler.holder(id));
        TaskInfo {
            id,
            name: entry.and_then(|entry| entry.name()).map(ToString::to_string),
            status,
            worker: holder.map(|(worker, _)| self.worker_label(worker)),
            attempt: holder.map_or(0, |(_, attempt)| attempt),
            job: entry.and_then(|entry| entry.origin.job()),
            index: entry.and_then(|entry| entry.origin.index()),
        }
    }

    fn worker_info(&self, figures: &WorkerStatus, names: &NameBook, now: filch_core::Time) -> WorkerInfo {
        let lifetime_s = now.since(figures.since).as_secs_f64() * f64::from(figures.slots);
        let record = self.worker(figures.id);
        WorkerInfo {
            id: self.worker_label(figures.id),
            worker: figures.id,
            state: figures.state,
            capabilities: record.map(|record| record.capabilities.clone()).unwrap_or_default(),
            resources: names.amounts_by_name(&figures.capacity).into_iter().collect(),
            reserved: names.amounts_by_name(&figures.reserved).into_iter().collect(),
            slots: figures.slots,
            running: figures.running,
            queue_length: figures.queue_length,
            backlog_s: figures.backlog_s,
            success_rate: figures.success_rate,
            total_completed: figures.total_completed,
            total_failed: figures.total_failed,
            stolen: figures.stolen,
            lost: figures.lost,
            busy_s: figures.busy_s,
            wait_s: figures.wait_s,
            utilisation: if lifetime_s > 0.0 { (figures.busy_s / lifetime_s).min(1.0) } else { 0.0 },
            cpu: figures.report.cpu,
            memory: figures.report.memory,
        }
    }
}

impl<T: Send + Sync + 'static, R: Send + Sync + 'static> Balancer<T, R> {
    /// The figures of the whole.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        self.shared.state.lock().scheduler.metrics()
    }

    /// What looks wrong, if anything.
    #[must_use]
    pub fn health(&self) -> Health {
        self.shared.state.lock().scheduler.health()
    }

    /// Utilisation over time, oldest first. The lock is taken anew for every few samples, so nobody waits for long.
    #[must_use]
    pub fn samples(&self) -> Vec<Sample> {
        let (mut samples, mut last) = (Vec::new(), None);
        loop {
            let state = self.shared.state.lock();
            let before = samples.len();
            for sample in state.scheduler.samples_after(last).take(SAMPLES) {
                last = Some(sample.at);
                samples.push(state.sample(sample));
            }
            if samples.len() == before {
                return samples;
            }
        }
    }

    /// How steals went. Latencies are measured from the wish to steal to its answer.
    #[must_use]
    pub fn steal_report(&self) -> StealReport {
        let total = self.shared.state.lock().telemetry.total().clone();
        let (mut by_victim, mut last) = (BTreeMap::new(), None);
        loop {
            let state = self.shared.state.lock();
            let before = last;
            for (id, stats) in state.telemetry.peers_after(last).take(WORKERS as usize) {
                last = Some(id);
                by_victim.insert(state.worker_label(id), stats.clone());
            }
            if last == before {
                return StealReport { total, by_victim };
            }
        }
    }

    /// All registered workers, in the order of their numbers: [`iter_workers`](Balancer::iter_workers) as a list.
    #[must_use]
    pub fn workers(&self) -> Vec<WorkerInfo> {
        self.iter_workers().collect()
    }

    /// All tasks that are not settled, in no particular order; elements of arrays only once they are handed out. The
    /// same as [`iter_tasks`](Balancer::iter_tasks) as a list.
    #[must_use]
    pub fn tasks(&self) -> Vec<TaskInfo> {
        self.iter_tasks().collect()
    }

    /// All registered workers, a few at a time: the lock is taken for a few dozen and given back before the next, so
    /// neither submitters nor other workers wait, however many there are.
    ///
    /// It is no snapshot: every worker is shown as it was when its portion was looked at. One that is registered all the
    /// while is listed exactly once; one that comes or goes meanwhile may be listed or not, and never twice.
    pub fn iter_workers(&self) -> impl Iterator<Item = WorkerInfo> + use<T, R> {
        self.clone().portions(WORKERS, |balancer, places| {
            let now = balancer.now();
            let state = balancer.shared.state.lock();
            let figures = state.scheduler.workers_between(places).filter_map(|id| state.scheduler.worker(id));
            let list = figures.map(|figures| state.worker_info(&figures, &balancer.shared.names, now)).collect();
            (list, state.scheduler.worker_places())
        })
    }

    /// All tasks that are not settled, a few hundred at a time, as [`iter_workers`](Balancer::iter_workers) lists
    /// workers and just as consistent: one that is not settled all the while is listed exactly once, as it stood when its
    /// portion was looked at.
    ///
    /// ```
    /// use filch::{Balancer, Status, Task};
    /// let balancer: Balancer = Balancer::builder().build()?;
    /// balancer.submit_many((0..1000).map(|_| Task::new()))?;
    /// assert_eq!(balancer.iter_tasks().filter(|task| task.status == Status::Queued).count(), 1000);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn iter_tasks(&self) -> impl Iterator<Item = TaskInfo> + use<T, R> {
        self.clone().portions(TASKS, |balancer, places| {
            let state = balancer.shared.state.lock();
            let tasks = state.scheduler.tasks_between(places);
            (tasks.map(|(id, status)| state.task_info(id, status)).collect(), state.scheduler.task_places())
        })
    }

    /// Goes through all places, so many at a time; `look` lists one portion and says how many places there are.
    pub(super) fn portions<O, L>(self, portion: u32, look: L) -> impl Iterator<Item = O> + use<T, R, O, L>
    where
        L: Fn(&Self, Range<u32>) -> (Vec<O>, u32),
    {
        let (mut from, mut end) = (0u32, 1);
        std::iter::from_fn(move || {
            if from >= end {
                return None;
            }
            let to = from.saturating_add(portion);
            let (list, places) = look(&self, from..to);
            (from, end) = (to, places);
            Some(list)
        })
        .flatten()
    }

    /// Where a task stands, with its result or error. Settled tasks are remembered for a while; see [`Balancer`].
    ///
    /// # Errors
    /// If the task is not known, or no longer.
    pub fn status(&self, task: impl Into<TaskName>) -> Result<TaskStatus<R>, Error> {
        let task = task.into();
        let state = self.shared.state.lock();
        let id: TaskId = state.find_task(&task)?;
        let status = state.status(id).ok_or_else(|| Error::UnknownTask(task.to_string()))?;
        let entry = state.entry(id);
        Ok(TaskStatus {
            id,
            name: entry.and_then(|entry| entry.name()).map(ToString::to_string),
            job: entry.and_then(|entry| entry.origin.job()),
            index: entry.and_then(|entry| entry.origin.index()),
            status,
            cause: entry.and_then(|entry| entry.outcome).map(|outcome| outcome.1).unwrap_or_default(),
            worker: state.scheduler.holder(id).map(|(worker, _)| state.worker_label(worker)),
            error: entry.and_then(|entry| entry.error.as_deref()).map(str::to_owned),
            result: entry.and_then(|entry| entry.result.clone()),
        })
    }

    /// Why a task waits, or why it was placed where it is.
    ///
    /// # Errors
    /// If the task is not known, or no longer.
    pub fn explain(&self, task: impl Into<TaskName>) -> Result<Explanation, Error> {
        let (task, now) = (task.into(), self.now());
        let state = self.shared.state.lock();
        let id = state.find_task(&task)?;
        let known =
            state.status(id).and_then(|_| state.scheduler.explain_at(id, now).or_else(|| state.bare_explanation(id)));
        let explanation = known.ok_or_else(|| Error::UnknownTask(task.to_string()))?;
        Ok(explain::translate(&state, &self.shared.names, now, explanation))
    }

    /// Why the elements of an array wait that were never handed out. They are all alike, so what keeps one keeps them all.
    /// Tasks of other jobs, and elements that were handed out or wait by themselves, are [explained](Balancer::explain) one by
    /// one.
    ///
    /// ```
    /// use filch::{Balancer, Task, Worker};
    /// let balancer: Balancer = Balancer::builder().build()?;
    /// balancer.register_worker(Worker::new("w").capability("cpu"))?;
    /// let job = balancer.submit_array(Task::new().requires("cuda"), 500)?;
    /// let why = balancer.explain_job(job)?.to_string();
    /// assert!(why.contains("no registered worker can ever run it"), "{why}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If there is no such job, or it was done so long ago that nothing is known of it.
    pub fn explain_job(&self, job: JobId) -> Result<JobExplanation, Error> {
        let now = self.now();
        let state = self.shared.state.lock();
        let (status, explanation) = (state.job_status(job)?, state.scheduler.explain_job_at(job, now));
        Ok(explain::translate_job(&state, &self.shared.names, now, status, explanation))
    }

    /// Checks every invariant of the machine; for tests. Costs time in proportion to everything there is.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn check(&self) -> Result<(), Violation> {
        self.shared.state.lock().scheduler.check()
    }
}
