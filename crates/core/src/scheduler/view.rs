//! Read-only views for drivers and people: status, metrics, samples. Never changes anything.

use std::ops::Range;

use super::{COMMON_JOB, Scheduler};
use crate::action::{Lack, Refusal};
use crate::config::Bind;
use crate::ids::{JobId, TaskId, WorkerId};
use crate::metrics::{Health, Metrics, Sample};
use crate::task::{Cause, Status, TaskSpec};
use crate::time::Time;
use crate::worker::WorkerStatus;

/// The figures of a job that is not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobFigures {
    /// Tasks of it that are not settled, the rest of its array included.
    pub unsettled: u64,
    /// Nothing can be added to it.
    pub closed: bool,
    /// Elements of its array that were never handed out and are no tasks yet.
    pub rest: u32,
    /// Where those stand, all alike: queued, or unschedulable if no registered worker can ever run them.
    pub rest_status: Status,
}

impl Scheduler {
    /// The configuration in force.
    #[must_use]
    pub fn config(&self) -> &crate::Config {
        &self.config
    }

    /// One worker's figures.
    #[must_use]
    pub fn worker(&self, id: WorkerId) -> Option<WorkerStatus> {
        let slot = self.worker_slot(id).ok()?;
        let worker = &self.workers[slot];
        Some(WorkerStatus {
            id,
            tag: worker.tag,
            state: worker.state,
            queue_length: worker.queue.len() as u32,
            running: worker.used_slots(),
            slots: worker.slots,
            capacity: self.classes[worker.class].capacity.clone(),
            reserved: worker.reserved.clone(),
            backlog_s: worker.backlog().as_secs_f64(),
            success_rate: worker.success_rate(),
            total_completed: worker.completed,
            total_failed: worker.failed,
            stolen: worker.stolen,
            lost: worker.lost,
            busy_s: worker.busy.as_secs_f64(),
            wait_s: worker.waited.as_secs_f64(),
            since: worker.since,
            report: worker.report,
        })
    }

    /// One job's figures, until all of it is settled and nothing can be added.
    #[must_use]
    pub fn job(&self, id: JobId) -> Option<JobFigures> {
        let slot = self.job_slot(id).ok().filter(|&slot| slot != COMMON_JOB)?;
        let job = &self.jobs[slot];
        let rest = job.array.as_ref().map_or((Status::Queued, 0), |array| (array.status(), array.pending()));
        Some(JobFigures { unsettled: job.open, closed: job.closed, rest: rest.1, rest_status: rest.0 })
    }

    /// All registered workers, in the order of their slots.
    pub fn workers(&self) -> impl Iterator<Item = WorkerId> + '_ {
        self.workers.iter().map(|(slot, worker)| WorkerId { slot, generation: worker.generation })
    }

    /// All tasks that are not settled, with their status; elements of arrays only once they are handed out.
    pub fn tasks(&self) -> impl Iterator<Item = (TaskId, Status)> + '_ {
        self.tasks.slots().map(|slot| (self.tasks.id(slot), self.tasks.at(slot).status()))
    }

    /// Places that workers have or had; a registered worker keeps its own.
    #[must_use]
    pub fn worker_places(&self) -> u32 {
        self.worker_generations.len() as u32
    }

    /// The registered workers in a range of places; for drivers that list them a few at a time.
    pub fn workers_between(&self, places: Range<u32>) -> impl Iterator<Item = WorkerId> + '_ {
        let known = places.filter_map(|slot| Some((slot, self.workers.get(slot)?)));
        known.map(|(slot, worker)| WorkerId { slot, generation: worker.generation })
    }

    /// Places that tasks have or had; a task keeps its own until it is settled.
    #[must_use]
    pub fn task_places(&self) -> u32 {
        self.tasks.span()
    }

    /// The tasks in a range of places that are not settled; for drivers that list them a few at a time.
    pub fn tasks_between(&self, places: Range<u32>) -> impl Iterator<Item = (TaskId, Status)> + '_ {
        let live = places.filter(|&slot| self.tasks.is_live(slot));
        live.map(|slot| (self.tasks.id(slot), self.tasks.at(slot).status()))
    }

    /// The attempt of a task that counts, and who holds it.
    #[must_use]
    pub fn holder(&self, task: TaskId) -> Option<(WorkerId, u32)> {
        let found = self.tasks.at(self.tasks.find(task)?);
        found.state.is_held().then(|| (self.worker_id(found.worker), found.attempt))
    }

    /// The latest attempt of a task that no longer counts and that its worker has not let go of.
    #[must_use]
    pub fn lingering_attempt(&self, task: TaskId) -> Option<u32> {
        if self.tasks.find(task).is_none() && self.tasks.outcome(task).is_none() {
            return None;
        }
        let latest = self.tasks.at(task.slot).attempt;
        (latest.saturating_sub(16)..=latest).rev().find(|&attempt| self.ghosts.get(&(task, attempt)).is_some())
    }

    /// The accelerators of its worker that a held task was given, by position.
    #[must_use]
    pub fn devices(&self, task: TaskId) -> Vec<usize> {
        let held = self.tasks.find(task).filter(|&slot| self.tasks.at(slot).state.is_held());
        let given = held.and_then(|slot| self.tasks.extra(slot)).map(|extra| &extra.devices);
        given.into_iter().flatten().map(|&at| usize::from(at)).collect()
    }

    /// How a settled task ended and why, while it is remembered.
    #[must_use]
    pub fn outcome(&self, task: TaskId) -> Option<(Status, Cause)> {
        self.tasks.outcome(task)
    }

    /// Whether a worker could ever run such a task, by the rule that placement uses; one that is pinned to another worker
    /// it could not.
    ///
    /// # Errors
    /// If the worker is not known, or the demand could not be submitted.
    pub fn can_execute(&self, worker: WorkerId, spec: &TaskSpec) -> Result<Result<(), Lack>, Refusal> {
        let slot = self.worker_slot(worker)?;
        self.check_demand(spec, 0)?;
        if spec.pin.is_some_and(|home| home != worker) {
            return Ok(Err(Lack::Pinned));
        }
        Ok(self.classes[self.workers[slot].class].can_ever(&self.probe(spec)))
    }

    /// A worker that could run such a task: one with room now if a bounded look finds any, else one that could later.
    /// For a pinned task that is its own worker or nobody.
    #[must_use]
    pub fn suitable_worker(&self, spec: &TaskSpec) -> Option<WorkerId> {
        let signature = self.probe(spec);
        if let Some(home) = spec.pin {
            let slot = self.worker_slot(home).ok()?;
            return self.classes[self.workers[slot].class].can_ever(&signature).is_ok().then_some(home);
        }
        let mut later = None;
        let known = self.hosts.walk(&signature, 0).take(super::CLASS_LOOKS).map(|(_, class)| &self.classes[class]);
        let mut able = known.filter(|class| class.can_ever(&signature).is_ok()).take(64);
        let now = able.find_map(|class| {
            later = later.or(class.members.first().copied());
            let mut members = class.members.iter().take(64).copied();
            members.find(|&member| self.workers[member].has_room(class, &signature).is_ok())
        });
        now.or(later).map(|slot| self.worker_id(slot))
    }

    /// Busy and idle workers: by queue length under `bind: push`, by slots in use otherwise.
    pub(crate) fn busy_and_idle(&self) -> (u64, u64) {
        if self.config.scheduling.bind == Bind::Push {
            return (self.counters.busy, self.counters.idle);
        }
        // Without queues of their own workers are idle while they run nothing.
        (self.counters.fully_used, self.counters.unused)
    }

    /// The figures of the whole.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        let (busy, idle) = self.busy_and_idle();
        self.counters.metrics(self.workers.len() as u64, busy, idle, self.unsettled())
    }

    /// Utilisation samples, oldest first.
    pub fn samples(&self) -> impl Iterator<Item = &Sample> {
        self.samples.iter()
    }

    /// The samples taken after a moment, or all of them, oldest first.
    pub fn samples_after(&self, after: Option<Time>) -> impl Iterator<Item = &Sample> {
        let from = self.samples.partition_point(|sample| after.is_some_and(|after| sample.at <= after));
        self.samples.range(from..)
    }

    /// What looks wrong, if anything.
    #[must_use]
    pub fn health(&self) -> Health {
        let variance = self.counters.queue_variance(self.workers.len() as u64);
        Health::new(&self.metrics(), variance, self.counters.quarantined)
    }
}
