//! Everything the scheduler wants done, and why it may refuse.

use std::fmt;

use crate::ids::{CapabilityId, JobId, KeyId, ResourceId, TaskId, WorkerId};
use crate::resources::Amount;
use crate::steal::StealOutcome;
use crate::task::{Cause, Status};
use crate::time::{Span, Time};

/// Something the driver is to do or to know. Small and `Copy`; the vector they are pushed to is reused.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    /// The worker has joined under this id.
    Joined {
        /// The driver's handle.
        tag: u64,
        /// Its id from now on.
        worker: WorkerId,
    },
    /// The job exists from now on.
    Opened {
        /// Its id.
        job: JobId,
    },
    /// Every task of the job is settled and none will be added.
    JobDone {
        /// Which.
        job: JobId,
    },
    /// The task is in the scheduler's care from now on.
    Accepted {
        /// Its id from now on.
        task: TaskId,
        /// The driver's handle.
        payload: u64,
    },
    /// The event was refused; [`Scheduler::take_refusal`](crate::Scheduler::take_refusal) says why.
    Refused,
    /// Hand the task to a free slot of the worker; its resources are reserved.
    Assign {
        /// To whom.
        worker: WorkerId,
        /// What.
        task: TaskId,
        /// Reports must name the attempt.
        attempt: u32,
        /// The driver's handle.
        payload: u64,
        /// Position in its array or other job; 0 for a single task.
        index: u32,
    },
    /// Put the task into the worker's own queue. Only if workers have queues of their own.
    Hand {
        /// To whom.
        worker: WorkerId,
        /// What.
        task: TaskId,
        /// Reports must name the attempt.
        attempt: u32,
        /// The driver's handle.
        payload: u64,
        /// Position in its array or other job; 0 for a single task.
        index: u32,
    },
    /// The worker should stop the attempt; whatever it still reports of it is ignored.
    Revoke {
        /// Who.
        worker: WorkerId,
        /// What.
        task: TaskId,
        /// Which attempt.
        attempt: u32,
        /// Why.
        cause: Cause,
    },
    /// A queued task went from one worker's queue to another's.
    Move {
        /// What.
        task: TaskId,
        /// Away from.
        from: WorkerId,
        /// To.
        to: WorkerId,
    },
    /// A steal was tried.
    Stole {
        /// For whom.
        thief: WorkerId,
        /// From whom; none if nobody was worth asking.
        victim: Option<WorkerId>,
        /// How it ended.
        outcome: StealOutcome,
        /// How many tasks it brought.
        tasks: u32,
    },
    /// A task's status changed.
    Notify {
        /// Which task.
        task: TaskId,
        /// Its new status.
        status: Status,
        /// Where, if it is with a worker.
        worker: Option<WorkerId>,
        /// Why.
        cause: Cause,
    },
    /// A task left the scheduler with a worker that was unregistered.
    HandedBack {
        /// Which task.
        task: TaskId,
        /// The driver's handle.
        payload: u64,
        /// Position in its array or other job.
        index: u32,
    },
    /// An element of an array has become a task of its own: it is about to be handed out, or waits by itself.
    Element {
        /// The array.
        job: JobId,
        /// The element.
        index: u32,
        /// Its id from now on.
        task: TaskId,
        /// The driver's handle to the array.
        payload: u64,
    },
    /// One of the reasons why nobody can run an array whose elements are about to be settled as failed.
    ElementsRefused {
        /// The array.
        job: JobId,
        /// A worker of one class.
        worker: WorkerId,
        /// What that class lacks.
        lack: Lack,
    },
    /// Elements of an array that were never handed out are settled, all alike.
    ElementsSettled {
        /// The array.
        job: JobId,
        /// How many.
        count: u32,
        /// How.
        status: Status,
        /// Why.
        cause: Cause,
    },
    /// Something to remember durably. Only with [`Scheduler::keep_records`](crate::Scheduler::keep_records).
    Persist(Record),
    /// The earliest timer is due then; call `step` with `Tick` if nothing else happens before.
    Timer {
        /// When.
        at: Time,
    },
}

/// A fact worth remembering: replaying the records of a run gives its outcome without deciding anything again. A
/// [`Journal`](crate::journal::Journal) does so.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Record {
    /// A worker joined. Whoever stores this stores its description beside it.
    Joined {
        /// Its id.
        worker: WorkerId,
        /// The driver's handle.
        tag: u64,
    },
    /// A worker is gone for good.
    Left {
        /// Which.
        worker: WorkerId,
    },
    /// A job was opened.
    Opened {
        /// Its id.
        job: JobId,
        /// Its share.
        weight: f64,
    },
    /// Nothing will be added to a job.
    Closed {
        /// Which.
        job: JobId,
    },
    /// A task was accepted. Whoever stores this stores its description beside it.
    Submitted {
        /// Which.
        task: TaskId,
        /// The driver's handle.
        payload: u64,
        /// When.
        at: Time,
    },
    /// The task that was accepted last belongs to a job.
    Member {
        /// Which task.
        task: TaskId,
        /// Its job.
        job: JobId,
        /// Its position there.
        index: u32,
        /// Its rank, as it is kept: the least comes first.
        rank: u32,
    },
    /// A task waits for another that it was submitted with.
    After {
        /// Which task.
        task: TaskId,
        /// The one it waits for.
        parent: TaskId,
    },
    /// An array was accepted. Whoever stores this stores the description of its elements beside it.
    ArraySubmitted {
        /// Its job.
        job: JobId,
        /// How many elements.
        count: u32,
        /// The driver's handle.
        payload: u64,
        /// When.
        at: Time,
    },
    /// The next element of an array has become a task of its own.
    Element {
        /// Which task.
        task: TaskId,
        /// Its job.
        job: JobId,
        /// Its position there; those before it were settled or have become tasks.
        index: u32,
    },
    /// Elements of an array that never became tasks were settled: those of a range that were not settled before.
    ElementsSettled {
        /// Their job.
        job: JobId,
        /// The first.
        from: u32,
        /// The one behind the last.
        to: u32,
        /// How.
        status: Status,
        /// Why.
        cause: Cause,
        /// When.
        at: Time,
    },
    /// A key got another limit.
    KeyLimit {
        /// Which.
        key: KeyId,
        /// How many tasks with it may run at once.
        limit: u32,
    },
    /// An attempt was handed to a worker.
    Assigned {
        /// Which task.
        task: TaskId,
        /// Which attempt.
        attempt: u32,
        /// To whom.
        worker: WorkerId,
        /// When.
        at: Time,
    },
    /// An attempt has failed, and the next comes after a pause. Of a task that is settled: its last attempt, which somebody was
    /// told to stop, has ended.
    Retrying {
        /// Which task.
        task: TaskId,
        /// The attempt that failed.
        attempt: u32,
        /// Retries so far, this one included.
        retries: u16,
        /// When the pause ends.
        until: Time,
    },
    /// A task was settled; there is exactly one of these for every task.
    Settled {
        /// Which task.
        task: TaskId,
        /// Its last attempt; 0 if it had none.
        attempt: u32,
        /// How.
        status: Status,
        /// Why.
        cause: Cause,
        /// When.
        at: Time,
    },
}

/// Why an event was refused. It changed nothing, but for a report of an attempt that no longer counts, which frees what
/// the attempt still occupied.
#[derive(Clone, Debug, PartialEq)]
pub enum Refusal {
    /// No such worker, or no longer.
    UnknownWorker(WorkerId),
    /// No such task, or no longer.
    UnknownTask(TaskId),
    /// No such job, or no longer.
    UnknownJob(JobId),
    /// No such element, or it was handed out already.
    UnknownElement(JobId, u32),
    /// A task names a parent that is not known.
    UnknownParent {
        /// Position in the submission.
        index: u32,
        /// What it named: an id, or a position in the graph.
        parent: ParentName,
    },
    /// Tasks of a graph wait for each other; their positions, each waiting for the one after it and the last for the first.
    Cycle(Vec<u32>),
    /// Too much is queued already.
    QueueFull {
        /// Tasks waiting now.
        queued: u64,
        /// Most that may wait.
        limit: u64,
        /// When room may be expected.
        retry_after: Span,
    },
    /// The deadline cannot be met even by starting at once.
    Hopeless {
        /// Position in the submission.
        index: u32,
        /// The deadline.
        deadline: Time,
        /// The earliest end.
        earliest: Time,
    },
    /// The pinned worker can never run the task.
    PinnedElsewhere {
        /// The worker.
        worker: WorkerId,
        /// What it lacks.
        lack: Lack,
    },
    /// The description makes no sense; the text says what.
    Invalid(String),
    /// The description of one task makes no sense.
    InvalidTask {
        /// Position in the submission.
        index: u32,
        /// What is wrong, as what the task does: "has a timeout of zero".
        what: String,
    },
    /// The attempt is not the one that counts (any more).
    StaleAttempt(TaskId, u32),
}

/// How a missing parent was named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParentName {
    /// By id.
    Task(TaskId),
    /// By position in the same submission.
    Position(u32),
}

/// What a worker or a class lacks to ever run a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// It is not the worker that the task is pinned to.
    Pinned,
    /// A required capability.
    Capability(CapabilityId),
    /// A skill, under exact or best-fit matching.
    Skill(CapabilityId),
    /// All skills, under fallback matching; others share more.
    FewerSkills {
        /// How many it shares.
        shared: u32,
        /// How many the best share.
        best: u32,
    },
    /// An amount of a resource.
    Resource {
        /// Of what.
        resource: ResourceId,
        /// How much the task needs.
        needs: Amount,
        /// How much there is.
        has: Amount,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::UnknownWorker(id) => write!(f, "worker {id} is not registered"),
            Refusal::UnknownTask(id) => write!(f, "task {id} is not known"),
            Refusal::UnknownJob(id) => write!(f, "job {id} is not known"),
            Refusal::UnknownElement(job, index) => write!(f, "element {index} of {job} is not waiting"),
            Refusal::UnknownParent { index, parent: ParentName::Task(id) } => {
                write!(f, "task #{index} depends on {id}, which is not known")
            }
            Refusal::UnknownParent { index, parent: ParentName::Position(at) } => {
                write!(f, "task #{index} depends on #{at}, which the graph does not have")
            }
            Refusal::Cycle(path) => {
                write!(f, "{} tasks wait for each other, each for the next: ", path.len())?;
                for at in path.iter().take(8) {
                    write!(f, "#{at} -> ")?;
                }
                if path.len() > 8 {
                    f.write_str("… -> ")?;
                }
                write!(f, "#{}", path.first().copied().unwrap_or_default())
            }
            Refusal::QueueFull { queued, limit, retry_after } => {
                write!(f, "the queue is full ({queued} of {limit}); retry after {retry_after}")
            }
            Refusal::Hopeless { index, deadline, earliest } => {
                write!(f, "task #{index} cannot end before {earliest}, its deadline is {deadline}")
            }
            Refusal::PinnedElsewhere { worker, .. } => write!(f, "{worker} can never run the task pinned to it"),
            Refusal::Invalid(what) => f.write_str(what),
            Refusal::InvalidTask { index, what } => write!(f, "task #{index} {what}"),
            Refusal::StaleAttempt(task, attempt) => write!(f, "attempt {attempt} of {task} no longer counts"),
        }
    }
}
