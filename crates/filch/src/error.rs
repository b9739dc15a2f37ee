//! Why an operation did not work. Everything is named as the caller named it.

use std::time::Duration;

use filch_core::Status;
use filch_core::config::{ConfigErrors, Problem};

/// Why the balancer refused an operation. A refused operation has changed nothing.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A worker of that id is registered already.
    #[error("a worker `{0}` is registered already")]
    DuplicateWorker(String),
    /// A task of that id is not settled yet.
    #[error("there is a task `{0}` already that is not settled")]
    DuplicateTask(String),
    /// Two tasks of one submission have the same id.
    #[error("the submission has two tasks `{task}`, at positions {first} and {second}")]
    NamedTwice {
        /// The id.
        task: String,
        /// Position of the first.
        first: usize,
        /// Position of the second.
        second: usize,
    },
    /// No worker of that id is registered.
    #[error("no worker `{0}` is registered")]
    UnknownWorker(String),
    /// There is no such task, or it was settled so long ago that nothing is known of it.
    #[error("there is no task `{0}`")]
    UnknownTask(String),
    /// The task is settled, so nothing can be done about it any more.
    #[error("task `{task}` {} {}", ended(.status), back(.ago))]
    Settled {
        /// The task.
        task: String,
        /// How it ended.
        status: Status,
        /// How long ago.
        ago: Duration,
    },
    /// There is no such job, or it was done so long ago that nothing is known of it.
    #[error("there is no job `{0}`")]
    UnknownJob(String),
    /// All of the job is settled, so nothing can be done about it any more.
    #[error("job `{0}` is done")]
    JobDone(String),
    /// The job is no array, or has no such element.
    #[error("job `{job}` has no element {index}")]
    UnknownElement {
        /// The job.
        job: String,
        /// The element.
        index: u32,
    },
    /// The element of the array is not waiting any more.
    #[error("element {index} of job `{job}` was handed out or is settled")]
    NotWaiting {
        /// The array.
        job: String,
        /// The element.
        index: u32,
    },
    /// A task depends on one that is not known.
    #[error("task `{task}` depends on `{parent}`, which is not known")]
    UnknownParent {
        /// The task.
        task: String,
        /// What it named.
        parent: String,
    },
    /// A task was to be spawned by one that is not known, or by itself.
    #[error("task `{task}` cannot be spawned by its parent `{parent}`, which {}", if .task == .parent { "is itself" } else { "is not known" })]
    UnknownSpawner {
        /// The task.
        task: String,
        /// The one that should have spawned it.
        parent: String,
    },
    /// A task depends on another of the same submission, which is no graph.
    #[error("task `{task}` depends on `{parent}` of the same submission: use `submit_graph` for tasks that do")]
    Sibling {
        /// The task.
        task: String,
        /// What it named.
        parent: String,
    },
    /// A task was to be spawned by one that is settled.
    #[error("task `{task}` cannot be spawned by `{parent}`, which {} {}", ended(.status), back(.ago))]
    SettledParent {
        /// The task.
        task: String,
        /// The one that should have spawned it.
        parent: String,
        /// How that one ended.
        status: Status,
        /// How long ago.
        ago: Duration,
    },
    /// The tasks of a graph wait for each other.
    #[error("{}", circle(.0))]
    Cycle(
        /// The tasks, each waiting for the one after it; the first stands at the end again.
        Vec<String>,
    ),
    /// Too much waits already.
    #[error("the queue is full ({queued} of {limit}); retry after {retry_after:?}")]
    QueueFull {
        /// Tasks waiting now.
        queued: u64,
        /// Most that may wait.
        limit: u64,
        /// When room may be expected.
        retry_after: Duration,
    },
    /// The deadline cannot be met even by starting at once.
    #[error("{}", hopeless(.task, *.deadline, *.earliest))]
    HopelessDeadline {
        /// The task.
        task: String,
        /// The deadline, from now; zero if it has passed.
        deadline: Duration,
        /// The earliest end, from now.
        earliest: Duration,
    },
    /// The worker a task is pinned to can never run it.
    #[error("worker `{worker}` can never run the task pinned to it: {lack}")]
    Unsatisfiable {
        /// The worker.
        worker: String,
        /// What it lacks.
        lack: String,
    },
    /// A value makes no sense; the text says which and why.
    #[error("{0}")]
    Invalid(String),
    /// The attempt no longer counts: it took too long, was cancelled, given back or taken away.
    #[error("attempt {attempt} of task `{task}` no longer counts")]
    Stale {
        /// The task.
        task: String,
        /// The attempt.
        attempt: u32,
    },
    /// A report by the task alone, while an earlier attempt that no longer counts has not been let go of.
    #[error("attempts {earlier} and {attempt} of task `{task}` are both out; report by attempt")]
    Ambiguous {
        /// The task.
        task: String,
        /// The attempt that no longer counts.
        earlier: u32,
        /// The one that does.
        attempt: u32,
    },
    /// The task is not with a worker, so nothing can be reported of it.
    #[error("task `{task}` is {}, not with a worker", .status.name())]
    NotAssigned {
        /// The task.
        task: String,
        /// Where it stands.
        status: Status,
    },
    /// More different names than the balancer is made for; see [`Balancer`](crate::Balancer#names).
    #[error("more than {limit} different {what}: is something unique to each task used as a name?")]
    TooManyNames {
        /// Names of what.
        what: &'static str,
        /// Most there may be.
        limit: u32,
    },
    /// The balancer was stopped.
    #[error("the balancer is stopped")]
    Stopped,
}

/// How a task ended, as the end of a sentence about it.
fn ended(status: &Status) -> &'static str {
    match status {
        Status::Completed => "completed",
        Status::Failed => "failed",
        Status::Cancelled => "was cancelled",
        Status::Skipped => "was skipped",
        Status::Returned => "was handed back",
        _ => "was settled",
    }
}

/// How long ago, in words.
fn back(ago: &Duration) -> String {
    if *ago < Duration::from_millis(100) { "just now".to_owned() } else { format!("{:.1} s ago", ago.as_secs_f64()) }
}

/// A deadline that cannot be met, in words.
fn hopeless(task: &str, deadline: Duration, earliest: Duration) -> String {
    if deadline.is_zero() {
        return format!("the deadline of task `{task}` has passed");
    }
    format!("task `{task}` takes until {earliest:?} from now at the least, its deadline is {deadline:?} from now")
}

/// Tasks shown at either end of a long cycle.
const SHOWN: usize = 4;

/// A cycle in words; of a long one the first and the last tasks.
fn circle(path: &[String]) -> String {
    // The first task stands at the end again.
    let tasks = path.len().saturating_sub(1);
    if let [only, _] = path {
        return format!("task `{only}` waits for itself");
    }
    if tasks <= 2 * SHOWN + 1 {
        return format!("the tasks wait for each other, each for the next: {}", path.join(" -> "));
    }
    let (head, tail) = (path[..SHOWN].join(" -> "), path[path.len() - SHOWN..].join(" -> "));
    format!("{tasks} tasks wait for each other, each for the next: {head} -> … -> {tail}")
}

/// Why no balancer could be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The configuration file could not be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// What went wrong.
        source: std::io::Error,
    },
    /// The configuration file is wrong; every mistake has its line and column.
    #[error("{0}")]
    Config(ConfigErrors),
    /// The configuration built in code is wrong.
    #[error("the configuration is wrong: {}", .0.iter().map(in_one_line).collect::<Vec<_>>().join("; "))]
    Settings(
        /// What is wrong with it.
        Vec<Problem>,
    ),
    /// A policy could not be made.
    #[error("{0}")]
    Policy(String),
}

/// A problem with its help, where there is no room for more than a line.
pub(crate) fn in_one_line(problem: &Problem) -> String {
    match &problem.help {
        Some(help) => format!("{} ({help})", problem.message),
        None => problem.message.clone(),
    }
}
