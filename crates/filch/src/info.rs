//! What people are shown: workers, tasks, samples and steals, by name, ready for JSON.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use filch_core::steal::PeerStats;
use filch_core::{Cause, Status, TaskId, WorkerId, WorkerState};
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
    /// Its position in its array or other job.
    pub index: u32,
}

/// Where one task stands, with what came of it.
#[derive(Debug, Serialize)]
pub struct TaskStatus<R = ()> {
    /// Its id.
    #[serde(serialize_with = "shown")]
    pub id: TaskId,
    /// The name its submitter gave it.
    pub name: Option<String>,
    /// Where it stands.
    #[serde(serialize_with = "status")]
    pub status: Status,
    /// Why it was settled as it was, where there is more than one way.
    #[serde(serialize_with = "cause")]
    pub cause: Cause,
    /// The worker that holds it.
    pub worker: Option<String>,
    /// What the last failed attempt said.
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
    Some(match cause {
        Cause::None => return None,
        Cause::Reported => "its worker reported a failure",
        Cause::TimedOut => "an attempt ran longer than it may",
        Cause::WorkerLost => "its worker went silent",
        Cause::WorkerLeft => "its worker left",
        Cause::ParentFailed => "a task it depends on did not end well",
        Cause::NoWorker => "no registered worker can run it",
        Cause::GivenBack => "its holder gave it back unfinished",
        Cause::Moved => "it was moved to another worker",
        Cause::Hopeless => "it cannot meet its deadline",
        Cause::DeadlineMissed => "its deadline has passed",
        Cause::Requested => "somebody asked for it",
    })
}

fn shown<S: Serializer>(value: &impl fmt::Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
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
