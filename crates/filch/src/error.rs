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
    /// A task of that id is not settled yet, or the submission has two of it.
    #[error("there is a task `{0}` already that is not settled")]
    DuplicateTask(String),
    /// No worker of that id is registered.
    #[error("no worker `{0}` is registered")]
    UnknownWorker(String),
    /// There is no such task, or it was settled so long ago that nothing is known of it.
    #[error("there is no task `{0}`")]
    UnknownTask(String),
    /// There is no such job, or all of it is settled.
    #[error("there is no job `{0}`")]
    UnknownJob(String),
    /// The array has no such element, or it was handed out already.
    #[error("element {index} of job `{job}` is not waiting")]
    UnknownElement {
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
    /// The tasks of a graph wait for each other.
    #[error("the tasks wait for each other: {}", .0.join(" -> "))]
    Cycle(
        /// The tasks along the cycle; the first stands at the end again.
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
    #[error("task `{task}` takes until {earliest:?} from now at the least, its deadline is {deadline:?} from now")]
    HopelessDeadline {
        /// The task.
        task: String,
        /// The deadline, from now.
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
    #[error("the configuration is wrong: {}", .0.iter().map(|problem| problem.message.as_str()).collect::<Vec<_>>().join("; "))]
    Settings(
        /// What is wrong with it.
        Vec<Problem>,
    ),
    /// A policy could not be made.
    #[error("{0}")]
    Policy(String),
}
