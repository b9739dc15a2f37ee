//! Reports of how tasks go, by assignment and by task id.

use std::fmt;

use filch_core::{Event, TaskId};

use super::{Balancer, Report, Shared};
use crate::error::Error;
use crate::task::Reported;

impl<T, R> Shared<T, R> {
    /// Tells the machine of an attempt, with what it brought.
    #[inline]
    pub(crate) fn report(
        &self,
        task: TaskId,
        report: Option<Report<R>>,
        event: impl FnOnce() -> Event,
    ) -> Result<(), Error> {
        self.with(|state, now, after| {
            if let Some(report) = report {
                state.set_report(task, report);
            }
            let result = state.step(now, event(), after);
            state.clear_report(after);
            result.map_err(|refusal| self.error(state, now, refusal, |at| format!("#{at}")))
        })
    }

    /// The same by id. If no attempt is named it is the only one that is out: with more than one the report may be that
    /// of an earlier one, and must not end a later one.
    fn report_by_id(
        &self,
        reported: &Reported,
        mut report: Option<Report<R>>,
        event: impl FnOnce(TaskId, u32) -> Event,
    ) -> Result<(), Error> {
        // The report stays out here unless it is made: it must not be dropped under the lock.
        self.with(|state, now, after| {
            let task = state.find_task(&reported.task)?;
            let label = || state.task_label(task);
            let status = state.status(task).ok_or_else(|| Error::UnknownTask(label()))?;
            // An attempt that no longer counts still occupies its worker until it is reported; that frees it, and the
            // report is refused as stale.
            let held = state.scheduler.holder(task).map(|(_, attempt)| attempt);
            let attempt = match (reported.attempt, held, state.scheduler.lingering_attempt(task)) {
                (Some(named), _, _) => named,
                (None, Some(held), Some(earlier)) => {
                    return Err(Error::Ambiguous { task: label(), earlier, attempt: held });
                }
                (None, held, earlier) => {
                    held.or(earlier).ok_or_else(|| Error::NotAssigned { task: label(), status })?
                }
            };
            if let Some(report) = report.take() {
                state.set_report(task, report);
            }
            let result = state.step(now, event(task, attempt), after);
            state.clear_report(after);
            result.map_err(|refusal| self.error(state, now, refusal, |at| format!("#{at}")))
        })
    }
}

/// Reports by id: best by the [attempt](crate::Assignment::detach), which fences late ones; by the task's id or name as long
/// as only one attempt of it is out.
impl<T: Send + Sync + 'static, R: Send + Sync + 'static> Balancer<T, R> {
    /// Says that a task runs now, as [`Assignment::start`](crate::Assignment::start) does.
    ///
    /// # Errors
    /// If the task is not known or not with a worker, or the attempt no longer counts or is not clear.
    pub fn start_task(&self, task: impl Into<Reported>) -> Result<(), Error> {
        self.shared.report_by_id(&task.into(), None, |task, attempt| Event::Start { task, attempt })
    }

    /// A task ended well.
    ///
    /// # Errors
    /// If the task is not known or not with a worker, or the attempt no longer counts or is not clear.
    pub fn complete_task(&self, task: impl Into<Reported>, result: R) -> Result<(), Error> {
        self.complete(&task.into(), Some(result))
    }

    fn complete(&self, task: &Reported, result: Option<R>) -> Result<(), Error> {
        let report = Report::Result(result.map(|result| self.shared.keep(result)));
        self.shared.report_by_id(task, Some(report), |task, attempt| Event::Finish { task, attempt })
    }

    /// An attempt of a task ended badly; it is tried again if it has retries left.
    ///
    /// # Errors
    /// If the task is not known or not with a worker, or the attempt no longer counts or is not clear.
    pub fn fail_task(&self, task: impl Into<Reported>, error: impl fmt::Display) -> Result<(), Error> {
        self.fail_with(&task.into(), error.to_string(), None)
    }

    fn fail_with(&self, task: &Reported, error: String, result: Option<R>) -> Result<(), Error> {
        let report = Report::Error(error.into(), result.map(|result| self.shared.keep(result)));
        self.shared.report_by_id(task, Some(report), |task, attempt| Event::Fail { task, attempt, retry: true })
    }

    /// Reports by the name of the new status: `running`, `completed` or `failed`, the latter two perhaps with a result.
    ///
    /// # Errors
    /// As for [`start_task`](Balancer::start_task), and if the status is none of the three.
    pub fn update_status(&self, task: impl Into<Reported>, status: &str, result: Option<R>) -> Result<(), Error> {
        let task = task.into();
        match status {
            "running" => self.start_task(task),
            "completed" => self.complete(&task, result),
            "failed" => self.fail_with(&task, "reported as failed".to_owned(), result),
            other => Err(Error::Invalid(format!("a task is reported as running, completed or failed, not as {other}"))),
        }
    }
}
