//! Why a task is where it is, or those of a whole job. Reads only: every reason is the machine's own, or what history has.

use std::sync::Arc;

use filch_core::told::{Explanation, Labels as _, RestExplanation};
use filch_core::wire::talk::Said;
use filch_core::{JobId, Status, TaskId};
use serde::Serialize;
use serde_json::Value;

use super::super::Later;
use super::super::desk::Desk;
use super::super::requests::{No, unknown_job, unknown_task};
use super::{ending, json, past_view};
use crate::view::TaskView;

/// So many tasks of a kind are named.
const NAMED: usize = 5;

impl Desk {
    pub(super) fn why_query(&mut self, connection: u64, id: u64, number: u64, index: Option<u32>) -> Result<(), No> {
        let total = self.jobs.get(number).map(|job| job.card.total);
        if let Some(index) = index.filter(|index| total.is_some_and(|total| u64::from(*index) >= total)) {
            return Err(No::Because(unknown_task(number, index)));
        }
        // Whoever asks for a job of one task means that task.
        let is_only = total == Some(1);
        let asked = index.or(is_only.then_some(0));
        let rest = self.why_rest(number);
        let told = match asked {
            Some(index) => self.why_task(number, index).or_else(|| rest.clone().filter(|_| is_only)),
            None => self.why_tasks(number),
        };
        if let Some(told) = told {
            self.reply(connection, id, Said::Json(json(&told)));
            return Ok(());
        }
        let (store, shard) = (Arc::clone(&self.store), self.shard);
        self.ask_history(connection, id, move |history| {
            let Some((card, ..)) = history.job(number)? else { return Ok(Later::Refused(unknown_job(number))) };
            let Some(index) = asked.or((card.total == 1).then_some(0)) else {
                let why = format!("nothing of job {number} waits: it is over");
                return Ok(Later::Refused(format!("{why}; `filch task list {number}` shows its tasks")));
            };
            let Some(outcome) = history.task(number, u64::from(index))? else {
                let none = "nothing is known of it any more: it has ended; `filch task show` says how";
                return Ok(rest.map_or_else(|| Later::Refused(none.to_owned()), |told| Later::Json(json(&told))));
            };
            let left = ending(&*store, shard, outcome.ending)?;
            let view = past_view((&card, &card.numbers()), &outcome, &history.workers()?, left.as_ref());
            Ok(Later::Json(json(&over(&view))))
        });
        Ok(())
    }

    /// Why a task is where it is, if it is more than an element that was never handed out.
    fn why_task(&self, number: u64, index: u32) -> Option<Value> {
        self.explained_task(self.jobs.at(number, index)?).map(|found| explained(&found))
    }

    fn explained_task(&self, task: TaskId) -> Option<Explanation> {
        let found = self.machine.scheduler().explain_at(task, self.now)?;
        Some(Explanation::told(self, self.now, found, None))
    }

    fn explained_rest(&self, number: u64) -> Option<RestExplanation> {
        let job = self.jobs.get(number)?;
        let found = self.machine.scheduler().explain_job_at(JobId::from_bits(job.card.job), self.now)?;
        Some(RestExplanation::told(self, self.now, found))
    }

    /// Where the elements stand that were never handed out.
    pub(super) fn rest_status(&self, number: u64) -> &'static str {
        self.explained_rest(number).and_then(|rest| rest.rest_status).unwrap_or(Status::Queued.name())
    }

    /// Why the elements wait that were never handed out, if there are any.
    fn why_rest(&self, number: u64) -> Option<Value> {
        self.explained_rest(number).filter(|rest| rest.rest > 0).map(|rest| explained(&rest))
    }

    /// Why the tasks of a job are where they are: the elements that were never handed out, and of the others how many stand
    /// where, with what keeps the first of each kind.
    fn why_tasks(&self, number: u64) -> Option<Value> {
        let job = self.jobs.get(number).filter(|job| job.done_at.is_none())?;
        let mut told = explained(&self.explained_rest(number)?);
        let mut text = told["text"].as_str().unwrap_or_default().to_owned();
        let scheduler = self.machine.scheduler();
        let current: Vec<(TaskId, Status)> = self
            .jobs
            .current(number)
            .into_iter()
            .filter_map(|(_, task)| Some((task, scheduler.status(task).filter(|status| !status.is_settled())?)))
            .collect();
        let (mut statuses, mut first) = (serde_json::Map::new(), Vec::new());
        for status in Status::ALL {
            let tasks: Vec<TaskId> = current.iter().filter(|entry| entry.1 == status).map(|entry| entry.0).collect();
            let Some(one) = tasks.first() else { continue };
            statuses.insert(status.name().to_owned(), tasks.len().into());
            text.push_str(&self.counted(&tasks, status));
            if !matches!(status, Status::Assigned | Status::Running)
                && let Some(found) = self.explained_task(*one)
            {
                text.push_str(&found.to_string());
                first.push(found);
            }
        }
        if text.is_empty() {
            // The last of them have ended in this very moment.
            text = format!("nothing of job {number} waits: its {} tasks are over, or about to be\n", job.card.total);
        }
        told["text"] = text.into();
        told["statuses"] = statuses.into();
        told["first"] = serde_json::to_value(first).unwrap_or_default();
        Some(told)
    }

    /// How many tasks stand there, and which, as far as anybody reads.
    fn counted(&self, tasks: &[TaskId], status: Status) -> String {
        let (count, are) =
            if tasks.len() == 1 { ("1 task".to_owned(), "is") } else { (format!("{} tasks", tasks.len()), "are") };
        let mut named: Vec<String> = tasks.iter().take(NAMED).map(|task| self.task(*task)).collect();
        if tasks.len() > NAMED {
            named.push("…".to_owned());
        }
        format!("{count} {are} {}: {}\n", status.name(), named.join(", "))
    }
}

/// How a task ended, as data and in words.
fn over(view: &TaskView) -> Value {
    let task = format!("{}.{}", view.job, view.number);
    let mut text = format!("{task}: {}", view.status);
    for more in view.cause.iter().chain(&view.error) {
        text.push_str("\n  ");
        text.push_str(&more.replace("; ", "\n    "));
    }
    serde_json::json!({ "task": task, "status": view.status, "cause": view.cause, "error": view.error, "text": text })
}

/// As data and in words.
fn explained<T: Serialize + std::fmt::Display>(told: &T) -> Value {
    let mut value = serde_json::to_value(told).unwrap_or_default();
    if let Some(fields) = value.as_object_mut() {
        fields.insert("text".to_owned(), told.to_string().into());
    }
    value
}
