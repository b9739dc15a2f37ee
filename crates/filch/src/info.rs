//! What people are shown: workers, tasks, samples and steals, by name, ready for JSON.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use filch_core::steal::PeerStats;
use filch_core::{Cause, JobId, Status, TaskId, WorkerId, WorkerState};
use serde::{Serialize, Serializer};

/// One worker and its figures.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WorkerInfo {
    /// The id it was registered under.
    pub id: String,
    /// The number the balancer gave it.
    #[serde(skip)]
    pub worker: WorkerId,
    /// Whether it gets work.
    #[serde(serialize_with = "worker_state")]
    pub state: WorkerState,
    /// What it can do.
    pub capabilities: Vec<String>,
    /// How much it has, by resource.
    pub resources: BTreeMap<String, f64>,
    /// How much of it is reserved for what it runs.
    pub reserved: BTreeMap<String, f64>,
    /// Tasks it runs at once.
    pub slots: u32,
    /// Tasks it runs now.
    pub running: u32,
    /// Tasks in its own queue.
    pub queue_length: u32,
    /// Seconds of work queued and running, per slot.
    pub backlog_s: f64,
    /// Share of its attempts that ended well; 1 before the first.
    pub success_rate: f64,
    /// Attempts that ended well.
    pub total_completed: u64,
    /// Attempts that did not.
    pub total_failed: u64,
    /// Tasks it took from others.
    pub stolen: u64,
    /// Tasks others took from it.
    pub lost: u64,
    /// Seconds its slots were in use, added up.
    pub busy_s: f64,
    /// Seconds its tasks waited before they were handed to it, added up.
    pub wait_s: f64,
    /// Share of its slots' time that was in use since it joined.
    pub utilisation: f64,
    /// Processor use of its machine, as it said last.
    pub cpu: f64,
    /// Memory use of its machine, as it said last.
    pub memory: f64,
}

/// One task that is not settled.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TaskInfo {
    /// Its id.
    #[serde(serialize_with = "shown")]
    pub id: TaskId,
    /// The name its submitter gave it.
    pub name: Option<String>,
    /// Where it stands.
    #[serde(serialize_with = "status")]
    pub status: Status,
    /// The worker that holds it.
    pub worker: Option<String>,
    /// The attempt that is under way; 0 if none is.
    pub attempt: u32,
    /// The job it belongs to.
    #[serde(serialize_with = "shown_if_any")]
    pub job: Option<JobId>,
    /// Its position in its array, or among the tasks it was submitted with.
    pub index: Option<u32>,
}

/// Where the tasks of one job stand. Every task, and every element of an array, counts in exactly one of the eleven
/// statuses, so they add up to `total`. Displays as one line.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JobStatus {
    /// Its id.
    #[serde(serialize_with = "shown")]
    pub id: JobId,
    /// Tasks that were submitted with it or added to it, elements of an array included.
    pub total: u64,
    /// Elements of an array that were never handed out and have no id yet; they count as queued or unschedulable too.
    pub rest: u64,
    /// Wait for tasks they depend on.
    pub blocked: u64,
    /// Wait for a worker.
    pub queued: u64,
    /// Failed and wait for their next attempt.
    pub retrying: u64,
    /// No registered worker can ever run them; they are tried again a few times.
    pub unschedulable: u64,
    /// Handed to a worker.
    pub assigned: u64,
    /// Their worker said that they run.
    pub running: u64,
    /// Ended well.
    pub completed: u64,
    /// Ended badly.
    pub failed: u64,
    /// Withdrawn.
    pub cancelled: u64,
    /// Not run because one they depend on did not end well.
    pub skipped: u64,
    /// Handed back to the caller when their worker was unregistered.
    pub returned: u64,
    /// Nothing can be added to it.
    pub closed: bool,
    /// All of it is settled, and nothing can be added.
    pub done: bool,
    /// Somebody wanted all of it withdrawn.
    pub cancel_requested: bool,
    /// What each class of workers lacks, if elements failed because nobody could run them.
    pub error: Option<String>,
}

impl JobStatus {
    /// Tasks that wait for whatever reason.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        self.blocked + self.queued + self.retrying + self.unschedulable
    }

    /// Tasks that are with a worker.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.assigned + self.running
    }

    /// Tasks that nothing more will happen to.
    #[must_use]
    pub fn settled(&self) -> u64 {
        self.completed + self.failed + self.cancelled + self.skipped + self.returned
    }
}

impl fmt::Display for JobStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} of {} settled", self.id, self.settled(), self.total)?;
        let counts = [
            (self.completed, Status::Completed),
            (self.failed, Status::Failed),
            (self.cancelled, Status::Cancelled),
            (self.skipped, Status::Skipped),
            (self.returned, Status::Returned),
            (self.running, Status::Running),
            (self.assigned, Status::Assigned),
            (self.retrying, Status::Retrying),
            (self.queued, Status::Queued),
            (self.unschedulable, Status::Unschedulable),
            (self.blocked, Status::Blocked),
        ];
        let mut separator = " (";
        for (count, status) in counts.into_iter().filter(|(count, _)| *count > 0) {
            write!(f, "{separator}{count} {}", status.name())?;
            separator = ", ";
        }
        if separator == ", " { f.write_str(")") } else { Ok(()) }
    }
}

/// Where one task stands, with what came of it.
#[derive(Debug, Serialize)]
pub struct TaskStatus<R = ()> {
    /// Its id.
    #[serde(serialize_with = "shown")]
    pub id: TaskId,
    /// The name its submitter gave it.
    pub name: Option<String>,
    /// The job it belongs to.
    #[serde(serialize_with = "shown_if_any")]
    pub job: Option<JobId>,
    /// Its position in its array, or among the tasks it was submitted with.
    pub index: Option<u32>,
    /// Where it stands.
    #[serde(serialize_with = "status")]
    pub status: Status,
    /// Why it was settled as it was, where there is more than one way.
    #[serde(serialize_with = "cause")]
    pub cause: Cause,
    /// The worker that holds it.
    pub worker: Option<String>,
    /// What the last failed attempt said; if it failed because nobody can run it, what each class of workers lacks.
    pub error: Option<String>,
    /// What it resulted in.
    #[serde(skip)]
    pub result: Option<Arc<R>>,
}

/// Utilisation at one moment.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sample {
    /// When, in seconds of the balancer's clock.
    pub at_s: f64,
    /// Tasks waiting in any queue.
    pub queued: u64,
    /// Tasks handed to workers.
    pub running: u64,
    /// Busy workers.
    pub busy: u64,
    /// Idle workers.
    pub idle: u64,
    /// Queue lengths by worker; left out when there are more than 256 workers.
    pub queue_lengths: BTreeMap<String, u32>,
}

/// How steals went, in total and by the worker that was stolen from. Prints as the report people know.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StealReport {
    /// All of them.
    pub total: PeerStats,
    /// By victim, registered ones only.
    pub by_victim: BTreeMap<String, PeerStats>,
}

impl fmt::Display for StealReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.total.fmt(f)?;
        for (victim, stats) in &self.by_victim {
            writeln!(
                f,
                "  From {victim}: {} of {} succeeded ({:.1}%)",
                stats.successes,
                stats.attempts,
                stats.success_rate() * 100.0
            )?;
        }
        Ok(())
    }
}

/// A cause in words; nothing for the ordinary way.
pub(crate) fn cause_words(cause: Cause) -> Option<&'static str> {
    cause.words()
}

fn shown<S: Serializer>(value: &impl fmt::Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

fn shown_if_any<S: Serializer>(value: &Option<impl fmt::Display>, serializer: S) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => serializer.collect_str(value),
        None => serializer.serialize_none(),
    }
}

fn status<S: Serializer>(value: &Status, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(value.name())
}

fn cause<S: Serializer>(value: &Cause, serializer: S) -> Result<S::Ok, S::Error> {
    cause_words(*value).serialize(serializer)
}

fn worker_state<S: Serializer>(value: &WorkerState, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(value.name())
}
