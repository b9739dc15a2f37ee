//! What a coordinator that crashed leaves behind: its records, folded into what its successor needs.
//!
//! Applies facts and never decides anything. Whoever stores records appends them in order; those of one step of the
//! machine go together or not at all. How settled tasks ended is kept for each slot that no other task has taken since.

use std::collections::{BTreeMap, BTreeSet};

use crate::action::Record;
use crate::ids::{JobId, KeyId, TaskId, WorkerId};
use crate::planted::{Mistake, makes};
use crate::task::{Cause, Status, TaskSpec};
use crate::time::Time;
use crate::worker::WorkerSpec;

/// What is stored beside a record that would be too large otherwise.
#[derive(Clone, Copy, Debug)]
pub enum Detail<'a> {
    /// Nothing.
    None,
    /// The description of a submitted task, or of the elements of an array.
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
    /// It was an element of an array.
    pub(crate) is_element: bool,
}

/// An array of which something is not settled.
#[derive(Clone, Debug)]
pub(crate) struct OpenArray {
    /// Its place in the order of submission.
    pub(crate) number: u64,
    /// What its elements are like.
    pub(crate) spec: TaskSpec,
    pub(crate) count: u32,
    /// The first element that has not become a task.
    pub(crate) next: u32,
    /// Those from there on that are settled.
    pub(crate) skipped: BTreeSet<u32>,
}

impl OpenArray {
    /// Settles those of a range that have not become tasks; how many that were.
    fn settle(&mut self, from: u32, to: u32) -> u64 {
        let (from, to) = (from.max(self.next), to.min(self.count));
        let before = self.skipped.len() as u64;
        if from == self.next && to == self.count {
            self.next = self.count;
            self.skipped.clear();
            return u64::from(to - from) - before;
        }
        self.skipped.extend(from..to);
        self.skipped.len() as u64 - before
    }
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
    pub(crate) arrays: BTreeMap<JobId, OpenArray>,
    pub(crate) key_limits: BTreeMap<KeyId, u32>,
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
                    self.enter(task, spec.clone(), None);
                }
            }
            Record::Element { task, job, index } => {
                if let Some(array) = self.arrays.get_mut(&job) {
                    array.next = index + 1;
                    array.skipped = array.skipped.split_off(&array.next);
                    let spec = array.spec.clone();
                    self.enter(task, spec, Some((job, index, u32::MAX)));
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
            Record::ArraySubmitted { job, count, .. } => {
                if let (Detail::Task(spec), Some(owner)) = (detail, self.jobs.get_mut(&job)) {
                    self.number += 1;
                    owner.open += u64::from(count);
                    let (number, spec) = (self.number, spec.clone());
                    self.arrays.insert(job, OpenArray { number, spec, count, next: 0, skipped: BTreeSet::new() });
                }
            }
            Record::ElementsSettled { job, from, to, .. } => {
                if let (Some(array), Some(owner)) = (self.arrays.get_mut(&job), self.jobs.get_mut(&job)) {
                    owner.open -= array.settle(from, to);
                }
                self.forget_done(job);
            }
            Record::KeyLimit { key, limit } => {
                self.key_limits.insert(key, limit);
            }
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

    fn enter(&mut self, task: TaskId, spec: TaskSpec, member: Option<(JobId, u32, u32)>) {
        self.number += 1;
        self.outcomes.remove(&task.index());
        let unfinished = Unfinished {
            number: self.number,
            spec,
            member,
            attempt: 0,
            holder: None,
            retries: 0,
            until: Time::ZERO,
            is_element: member.is_some(),
        };
        self.tasks.insert(task, unfinished);
    }

    fn forget_done(&mut self, job: JobId) {
        if self.jobs.get(&job).is_some_and(|known| known.closed && known.open == 0) {
            self.jobs.remove(&job);
            self.arrays.remove(&job);
        }
    }

    /// Arrays of which something is not settled: the handle of each, and how many of its elements are not tasks yet.
    pub fn arrays(&self) -> impl Iterator<Item = (JobId, u64, u32)> + '_ {
        self.arrays.iter().map(|(&job, array)| {
            let pending = array.count - array.next - array.skipped.len() as u32;
            (job, array.spec.payload, pending)
        })
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
