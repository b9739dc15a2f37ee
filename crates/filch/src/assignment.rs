//! A task in the hands of whoever runs it.

use std::fmt;
use std::sync::Arc;

use filch_core::{Event, JobId, TaskId, WorkerId};

use crate::balancer::{Delivery, Report, Shared};
use crate::calm::calmly;
use crate::error::Error;

/// One try of one task, for reports without the [`Assignment`] at hand. A report that names it can never be mistaken for
/// one of a later try, however late it comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttemptId {
    /// The task.
    pub task: TaskId,
    /// Which try of it, from 1.
    pub attempt: u32,
}

/// A task that was handed to a worker. Report how it went; dropping it unfinished gives the task back, so that it is run
/// by somebody else (also when the code that runs it panics).
///
/// An assignment may be revoked: its attempt took too long, the task was cancelled, or its worker went silent or left.
/// Reports of it are then refused as [`Error::Stale`]. What it occupies (its slot, its resources, a token of its key)
/// stays occupied until it is reported or dropped, since the code that runs it may still be at it.
#[must_use = "dropping an assignment gives the task back"]
pub struct Assignment<T = (), R = ()> {
    shared: Arc<Shared<T, R>>,
    task: TaskId,
    attempt: u32,
    worker: WorkerId,
    job: Option<JobId>,
    index: u32,
    payload: Arc<T>,
    open: bool,
}

impl<T, R> Assignment<T, R> {
    pub(crate) fn new(shared: Arc<Shared<T, R>>, delivery: Delivery<T>) -> Self {
        let Delivery { task, attempt, worker, job, index, payload } = delivery;
        Assignment { shared, task, attempt, worker, job, index, payload, open: true }
    }

    /// The task's id.
    #[must_use]
    pub fn id(&self) -> TaskId {
        self.task
    }

    /// The name its submitter gave it.
    #[must_use]
    pub fn name(&self) -> Option<Arc<str>> {
        self.shared.state.lock().entry(self.task)?.name().cloned()
    }

    /// Which try of the task this is, from 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The worker it was handed to.
    #[must_use]
    pub fn worker(&self) -> WorkerId {
        self.worker
    }

    /// The job it belongs to.
    #[must_use]
    pub fn job(&self) -> Option<JobId> {
        self.job
    }

    /// Its position in its array, or among the tasks it was submitted with; 0 for a single task.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// What the task carries.
    #[must_use]
    pub fn payload(&self) -> &T {
        &self.payload
    }

    /// What the task carries, to keep beyond the assignment.
    #[must_use]
    pub fn shared_payload(&self) -> Arc<T> {
        Arc::clone(&self.payload)
    }

    /// The accelerators of the worker that the task was given, by position.
    #[must_use]
    pub fn devices(&self) -> Vec<usize> {
        self.shared.state.lock().scheduler.devices(self.task)
    }

    /// Says that the task runs now. Its timeout counts from the assignment, and from here anew.
    ///
    /// # Errors
    /// If the assignment was revoked.
    pub fn start(&self) -> Result<(), Error> {
        let (task, attempt) = (self.task, self.attempt);
        self.shared.report(task, None, || Event::Start { task, attempt })
    }

    /// The task ended well.
    ///
    /// # Errors
    /// If the assignment was revoked; then the result is dropped.
    pub fn succeed(self, result: R) -> Result<(), Error> {
        let (task, attempt) = (self.task, self.attempt);
        let report = Report::Result(Some(self.shared.keep(result)));
        self.finish(Some(report), || Event::Finish { task, attempt })
    }

    /// The attempt ended badly; the task is tried again if it has retries left.
    ///
    /// # Errors
    /// If the assignment was revoked.
    pub fn fail(self, error: impl fmt::Display) -> Result<(), Error> {
        let (task, attempt) = (self.task, self.attempt);
        let report = Report::Error(error.to_string().into(), None);
        self.finish(Some(report), || Event::Fail { task, attempt, retry: true })
    }

    /// The task ended badly, and trying again would not help.
    ///
    /// # Errors
    /// If the assignment was revoked.
    pub fn fail_permanently(self, error: impl fmt::Display) -> Result<(), Error> {
        let (task, attempt) = (self.task, self.attempt);
        let report = Report::Error(error.to_string().into(), None);
        self.finish(Some(report), || Event::Fail { task, attempt, retry: false })
    }

    /// Gives the task back, as dropping does, and says whether that still counted.
    ///
    /// # Errors
    /// If the assignment was revoked.
    pub fn give_back(self) -> Result<(), Error> {
        let (task, attempt) = (self.task, self.attempt);
        self.finish(None, || Event::GiveBack { task, attempt })
    }

    fn finish(mut self, report: Option<Report<R>>, event: impl FnOnce() -> Event) -> Result<(), Error> {
        self.open = false;
        self.shared.report(self.task, report, event)
    }

    /// Lets go of the assignment without giving the task back: it is reported by what this returns from now on.
    pub fn detach(mut self) -> AttemptId {
        self.open = false;
        AttemptId { task: self.task, attempt: self.attempt }
    }

    /// Whether the attempt no longer counts. Long tasks should look now and then, and stop if it is.
    #[must_use]
    pub fn is_revoked(&self) -> bool {
        self.shared.state.lock().scheduler.holder(self.task) != Some((self.worker, self.attempt))
    }
}

impl<T, R> Drop for Assignment<T, R> {
    fn drop(&mut self) {
        if self.open {
            let (task, attempt) = (self.task, self.attempt);
            // Refused if the task was reported by its id or revoked meanwhile; then there is nothing to give back. It may be
            // dropped by a panic of code that must not use the balancer, and must not panic again then.
            let _ = calmly(|| self.shared.report(task, None, || Event::GiveBack { task, attempt }));
        }
    }
}

impl<T, R> fmt::Debug for Assignment<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Assignment")
            .field("task", &self.task)
            .field("attempt", &self.attempt)
            .field("worker", &self.worker)
            .field("job", &self.job)
            .field("index", &self.index)
            .finish_non_exhaustive()
    }
}
