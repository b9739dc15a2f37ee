//! What a coordinator that crashed leaves behind: its records, folded into what its successor needs.
//!
//! Applies facts and never decides anything. Whoever stores records appends them in order; those of one step of the
//! machine go together or not at all. How settled tasks ended is kept for each slot that no other task has taken since.

use std::collections::BTreeMap;

use crate::action::Record;
use crate::ids::{JobId, TaskId, WorkerId};
use crate::planted::{Mistake, makes};
use crate::task::{Cause, Status, TaskSpec};
use crate::time::Time;
use crate::worker::WorkerSpec;

/// What is stored beside a record that would be too large otherwise.
#[derive(Clone, Copy, Debug)]
pub enum Detail<'a> {
    /// Nothing.
    None,
    /// The description of a submitted task.
    Task(&'a TaskSpec),
    /// The description of a worker that joined.
    Worker(&'a WorkerSpec),
}

/// A task that is not settled.
#[derive(Clone, Debug)]
pub(crate) struct Unfinished {
    /// Its place in the order of submission.
    pub(crate) number: u64,
    pub(crate) spec: TaskSpec,
    /// Its job, its position and its rank there.
    pub(crate) member: Option<(JobId, u32, u32)>,
    /// The latest attempt that is known.
    pub(crate) attempt: u32,
    /// Who was given that attempt, unless it has ended.
    pub(crate) holder: Option<WorkerId>,
    pub(crate) retries: u16,
    /// When its next attempt may begin.
    pub(crate) until: Time,
}

/// A job that may still get tasks, or has some that are not settled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenJob {
    pub(crate) weight: f64,
    pub(crate) closed: bool,
    open: u64,
}

/// All records so far, as what they come to.
#[derive(Clone, Debug, Default)]
pub struct Journal {
    pub(crate) tasks: BTreeMap<TaskId, Unfinished>,
    /// How the last settled task of each slot ended.
    pub(crate) outcomes: BTreeMap<usize, (TaskId, Status, Cause)>,
    pub(crate) workers: BTreeMap<WorkerId, WorkerSpec>,
    pub(crate) jobs: BTreeMap<JobId, OpenJob>,
    number: u64,
}

impl Journal {
    /// Applies the next record. `detail` is what was stored beside it; a task or worker without its description is not
    /// known.
    pub fn apply(&mut self, record: &Record, detail: Detail<'_>) {
        match *record {
            Record::Joined { worker, .. } => {
                if let Detail::Worker(spec) = detail {
                    self.workers.insert(worker, spec.clone());
                }
            }
            Record::Left { worker } => {
                self.workers.remove(&worker);
            }
            Record::Opened { job, weight } => {
                self.jobs.insert(job, OpenJob { weight, closed: false, open: 0 });
            }
            Record::Closed { job } => {
                if let Some(known) = self.jobs.get_mut(&job) {
                    known.closed = true;
                }
                self.forget_done(job);
            }
            Record::Submitted { task, .. } => {
                if let Detail::Task(spec) = detail {
                    self.number += 1;
                    self.outcomes.remove(&task.index());
                    let unfinished = Unfinished {
                        number: self.number,
                        spec: spec.clone(),
                        member: None,
                        attempt: 0,
                        holder: None,
                        retries: 0,
                        until: Time::ZERO,
                    };
                    self.tasks.insert(task, unfinished);
                }
            }
            Record::Member { task, job, index, rank } => {
                if let (Some(known), Some(owner)) = (self.tasks.get_mut(&task), self.jobs.get_mut(&job)) {
                    known.member = Some((job, index, rank));
                    owner.open += 1;
                }
            }
            Record::After { task, parent } => {
                if let Some(known) = self.tasks.get_mut(&task) {
                    known.spec.after.push(parent);
                }
            }
            Record::ArraySubmitted { .. } => {}
            Record::Assigned { task, attempt, worker, .. } => {
                if let Some(known) = self.tasks.get_mut(&task) {
                    (known.attempt, known.holder) = (attempt, Some(worker));
                }
            }
            Record::Retrying { task, attempt, retries, until } => {
                if let Some(known) = self.tasks.get_mut(&task) {
                    (known.attempt, known.holder) = (attempt, None);
                    (known.retries, known.until) = (retries, until);
                }
            }
            Record::Settled { .. } if makes(Mistake::ForgetOutcome) => {}
            Record::Settled { task, status, cause, .. } => {
                let Some(known) = self.tasks.remove(&task) else { return };
                self.outcomes.insert(task.index(), (task, status, cause));
                if let Some((job, ..)) = known.member {
                    if let Some(owner) = self.jobs.get_mut(&job) {
                        owner.open -= 1;
                    }
                    self.forget_done(job);
                }
            }
        }
    }

    fn forget_done(&mut self, job: JobId) {
        if self.jobs.get(&job).is_some_and(|known| known.closed && known.open == 0) {
            self.jobs.remove(&job);
        }
    }

    /// Tasks that are not settled, with the handle of each, in the order of their ids.
    pub fn unfinished(&self) -> impl Iterator<Item = (TaskId, u64)> + '_ {
        self.tasks.iter().map(|(&task, known)| (task, known.spec.payload))
    }

    /// Workers that have not left, with the handle of each.
    pub fn workers(&self) -> impl Iterator<Item = (WorkerId, u64)> + '_ {
        self.workers.iter().map(|(&worker, spec)| (worker, spec.tag))
    }

    /// How a task ended, if it has and its slot was not used again.
    #[must_use]
    pub fn outcome(&self, task: TaskId) -> Option<Status> {
        self.outcomes.get(&task.index()).filter(|known| known.0 == task).map(|known| known.1)
    }
}
