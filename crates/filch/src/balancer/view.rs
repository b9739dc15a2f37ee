//! Looking at a balancer: metrics, health, workers, tasks, explanations. Never changes anything.

use filch_core::{Health, Metrics, TaskId, Violation, WorkerStatus};

use super::{Balancer, State};
use crate::error::Error;
use crate::explain::{self, Explanation};
use crate::info::{Sample, StealReport, TaskInfo, TaskStatus, WorkerInfo};
use crate::names::NameBook;
use crate::task::TaskName;

impl<T, R> State<T, R> {
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

    /// Utilisation over time, oldest first.
    #[must_use]
    pub fn samples(&self) -> Vec<Sample> {
        let state = self.shared.state.lock();
        let samples = state.scheduler.samples().map(|sample| Sample {
            at_s: sample.at.as_secs_f64(),
            queued: sample.queued,
            running: sample.running,
            busy: sample.busy,
            idle: sample.idle,
            queue_lengths: sample.queue_lengths.iter().map(|(id, length)| (state.worker_label(*id), *length)).collect(),
        });
        samples.collect()
    }

    /// How steals went. Latencies are measured from the wish to steal to its answer.
    #[must_use]
    pub fn steal_report(&self) -> StealReport {
        let state = self.shared.state.lock();
        let by_victim = state.telemetry.peers().map(|(id, stats)| (state.worker_label(id), stats.clone()));
        StealReport { total: state.telemetry.total().clone(), by_victim: by_victim.collect() }
    }

    /// All registered workers, in the order of their numbers.
    #[must_use]
    pub fn workers(&self) -> Vec<WorkerInfo> {
        let now = self.now();
        let state = self.shared.state.lock();
        let figures = state.scheduler.workers().filter_map(|id| state.scheduler.worker(id));
        figures.map(|figures| state.worker_info(&figures, &self.shared.names, now)).collect()
    }

    /// All tasks that are not settled; elements of arrays only once they are handed out.
    #[must_use]
    pub fn tasks(&self) -> Vec<TaskInfo> {
        let state = self.shared.state.lock();
        let info = |(id, status)| {
            let (entry, holder) = (state.entry(id), state.scheduler.holder(id));
            TaskInfo {
                id,
                name: entry.and_then(|entry| entry.name()).map(ToString::to_string),
                status,
                worker: holder.map(|(worker, _)| state.worker_label(worker)),
                attempt: holder.map_or(0, |(_, attempt)| attempt),
                index: entry.map_or(0, |entry| entry.index),
            }
        };
        state.scheduler.tasks().map(info).collect()
    }

    /// Where a task stands, with its result or error. Settled tasks are remembered for a while; see [`Balancer`].
    ///
    /// # Errors
    /// If the task is not known, or no longer.
    pub fn status(&self, task: impl Into<TaskName>) -> Result<TaskStatus<R>, Error> {
        let task = task.into();
        let state = self.shared.state.lock();
        let id: TaskId = state.find_task(&task)?;
        let status = state.scheduler.status(id).ok_or_else(|| Error::UnknownTask(task.to_string()))?;
        let entry = state.entry(id);
        Ok(TaskStatus {
            id,
            name: entry.and_then(|entry| entry.name()).map(ToString::to_string),
            status,
            cause: state.scheduler.outcome(id).map(|outcome| outcome.1).unwrap_or_default(),
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
        let explanation = state.scheduler.explain(id).ok_or_else(|| Error::UnknownTask(task.to_string()))?;
        Ok(explain::translate(&state, &self.shared.names, now, explanation))
    }

    /// Checks every invariant of the machine; for tests. Costs time in proportion to everything there is.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn check(&self) -> Result<(), Violation> {
        self.shared.state.lock().scheduler.check()
    }
}
