//! What people and programs see of a cluster: the questions, and the answers as they are sent and printed.

use serde::{Deserialize, Serialize};

/// What can be asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Query {
    /// The newest jobs, newest last.
    Jobs {
        /// At most so many.
        limit: usize,
    },
    /// One job.
    Job {
        /// Its number.
        job: u64,
    },
    /// Tasks of a job.
    Tasks {
        /// Its number.
        job: u64,
        /// Only those that stand there.
        status: Option<String>,
        /// At most so many.
        limit: usize,
    },
    /// One task.
    Task {
        /// The number of its job.
        job: u64,
        /// Its position there.
        index: u32,
    },
    /// All workers.
    Workers,
    /// One worker.
    Worker {
        /// Its name.
        name: String,
    },
    /// Figures of the whole.
    Stats,
    /// Why a task waits, or why it is where it is.
    Why {
        /// The number of its job.
        job: u64,
        /// Its position there; the rest of the array without.
        index: Option<u32>,
    },
    /// Everything that a replay of a job needs.
    Trace {
        /// Its number.
        job: u64,
    },
}

/// A job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobView {
    /// Its number.
    pub job: u64,
    /// Its name.
    pub name: String,
    /// What it does, in words.
    pub command: String,
    /// `waiting`, `running`, or how it ended: `completed`, `failed`, `cancelled`.
    pub state: String,
    /// Tasks in all.
    pub tasks: u64,
    /// Those that wait.
    pub waiting: u64,
    /// Those that run.
    pub running: u64,
    /// Those that ended well.
    pub completed: u64,
    /// Those that did not.
    pub failed: u64,
    /// Those that were withdrawn.
    pub cancelled: u64,
    /// Those that were not run because another did not end well.
    pub skipped: u64,
    /// Those of them that were stolen, each counted once.
    pub stolen: u64,
    /// When it was submitted, in seconds since 1970.
    pub submitted_s: f64,
    /// When the last of its tasks ended.
    pub ended_s: Option<f64>,
    /// The number of its first task.
    pub first: i64,
    /// From one task to the next.
    pub step: i64,
    /// If its tasks are some of a larger array, their places there, as
    /// [`place_runs`](filch_core::wire::talk::place_runs) writes them; the numbers above are then of that one. Not in lists of jobs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub places: Vec<u32>,
}

/// A task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskView {
    /// The number of its job.
    pub job: u64,
    /// Its position there.
    pub index: u32,
    /// Its number as its submitter counts.
    pub number: i64,
    /// Its name, if it has one.
    pub name: Option<String>,
    /// What it runs, with everything filled in. Only whoever asks for one task hears of it, for as long as it is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Where it runs, if not where its worker does; as `command`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Where it stands.
    pub status: String,
    /// Why, where there is more than one way.
    pub cause: Option<String>,
    /// Attempts so far.
    pub attempts: u32,
    /// Who has it, or had it last.
    pub worker: Option<String>,
    /// When its latest attempt began, in seconds since 1970.
    pub began_s: Option<f64>,
    /// When it was settled.
    pub ended_s: Option<f64>,
    /// How long its latest attempt ran.
    pub ran_s: Option<f64>,
    /// Its exit code.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// What went wrong, in words.
    pub error: Option<String>,
    /// Processor time in its own code and in the system.
    pub cpu_s: Option<f64>,
    /// The most memory it had.
    pub peak_memory: Option<u64>,
    /// Whether it may have been less: what is measured of a small program includes what its worker had when it started it.
    #[serde(default)]
    pub peak_memory_is_bound: bool,
}

/// A task as whoever plays its job again needs it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TraceView {
    /// What became of it.
    #[serde(flatten)]
    pub task: TaskView,
    /// When its job was submitted, in seconds since 1970.
    #[serde(default)]
    pub submitted_s: f64,
    /// What its duration is learned by.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// Positions of the tasks that had to end well first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<u32>,
    /// How much it takes of what.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<(String, f64)>,
    /// How long its submitter expected it to take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimate_s: Option<f64>,
}

/// A worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerView {
    /// Its name.
    pub worker: String,
    /// Its id.
    pub id: String,
    /// Whether it gets work.
    pub state: String,
    /// Whether it is connected.
    pub connected: bool,
    /// Tasks it runs at once.
    pub slots: u32,
    /// Tasks it runs.
    pub running: u32,
    /// Tasks in its queue.
    pub queued: u32,
    /// Tasks it completed.
    pub completed: u64,
    /// Attempts that failed there.
    pub failed: u64,
    /// Tasks it took from others.
    pub stolen: u64,
    /// Tasks others took from it.
    pub lost: u64,
    /// Its load, 0 to 1.
    pub cpu: f64,
    /// Its memory in use, 0 to 1.
    pub memory: f64,
    /// What it can do.
    pub capabilities: Vec<String>,
    /// How much it has.
    pub resources: Vec<(String, f64)>,
    /// Where its peers reach it.
    pub address: String,
    /// How its steals went, by peer: of those it asked last.
    #[serde(default)]
    pub steals: Vec<PeerView>,
}

/// How the steals of a worker from one of its peers went.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeerView {
    /// The name of the peer.
    pub peer: String,
    /// Requests.
    pub attempts: u64,
    /// Those that brought something.
    pub successes: u64,
    /// Those without an answer in time.
    pub timeouts: u64,
    /// Those that did not reach it.
    pub network_errors: u64,
    /// Those that were refused.
    pub rejections: u64,
    /// How long an answer took, on average.
    pub latency_avg_ms: f64,
}

/// Figures of the whole.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StatsView {
    /// Which life of the coordinator this is.
    pub epoch: u64,
    /// For how long it has lived.
    pub uptime_s: f64,
    /// Workers that are connected.
    pub workers: usize,
    /// Tasks that wait for a worker.
    pub queued: u64,
    /// Tasks that are not settled.
    pub unsettled: u64,
    /// Tasks that were settled in this life.
    pub settled: u64,
    /// Tasks that were not where they should have been, and were given to others.
    pub found_missing: u64,
    /// The machine's own figures.
    pub metrics: serde_json::Value,
    /// The steals of all workers together.
    pub steals: serde_json::Value,
    /// The same in words.
    pub steal_report: String,
    /// Messages between peers that went through the coordinator because they could not reach each other.
    pub relayed: u64,
    /// Bytes that wait for the store.
    pub store_pending_bytes: u64,
}
