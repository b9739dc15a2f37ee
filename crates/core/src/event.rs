//! Everything that can happen to the scheduler.

use crate::capabilities::CapabilitySet;
use crate::config::PolicySpec;
use crate::ids::{JobId, KeyId, TaskId, TypeId, WorkerId};
use crate::policy::OwnPolicy;
use crate::resources::Vector;
use crate::task::{GraphTask, TaskSpec};
use crate::time::Span;
use crate::worker::{LoadReport, WorkerSpec};

/// Something that happened. Handed to [`Scheduler::step`](crate::Scheduler::step) with the time it happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// A worker joins. Answered by `Joined` or `Refused`.
    Join(WorkerSpec),
    /// A worker's description changes; what it runs goes on.
    Change {
        /// Who.
        worker: WorkerId,
        /// What changes.
        change: WorkerChange,
    },
    /// A worker tells its load, which also shows that it lives.
    Report {
        /// Who.
        worker: WorkerId,
        /// What it says.
        load: LoadReport,
    },
    /// A worker leaves for good.
    Leave {
        /// Who.
        worker: WorkerId,
        /// What becomes of the tasks it holds.
        remaining: Remaining,
    },
    /// A worker is another one that was started anew: what is pinned to the former is its own once that has gone.
    Succeeds {
        /// Who is there now.
        worker: WorkerId,
        /// Who it was.
        former: WorkerId,
    },
    /// A worker has not been heard of for too long.
    Silent {
        /// Who.
        worker: WorkerId,
    },
    /// One task. Answered by `Accepted` or `Refused`.
    Submit(Box<TaskSpec>),
    /// Several tasks as one job: all or none. Answered by `Opened` and an `Accepted` each, or by `Refused`.
    SubmitMany(Vec<TaskSpec>),
    /// `count` tasks that differ only by their index, kept as one entry until each is handed out.
    SubmitArray {
        /// What every element is like.
        template: Box<TaskSpec>,
        /// How many.
        count: u32,
    },
    /// Tasks that depend on each other, as one job: all or none.
    SubmitGraph(Vec<GraphTask>),
    /// Opens a job that tasks are added to one by one. Answered by `Opened`.
    OpenJob {
        /// Its share against other jobs of the same level.
        weight: f64,
    },
    /// Nothing more will be added to the job.
    CloseJob {
        /// Which.
        job: JobId,
    },
    /// A worker asks for its next task.
    Pull {
        /// Who.
        worker: WorkerId,
        /// Whether the wish stands until a task is there; otherwise it lapses at once.
        wait: bool,
    },
    /// A worker no longer waits for one of the tasks it asked for.
    Withdraw {
        /// Who.
        worker: WorkerId,
    },
    /// The worker started the attempt.
    Start {
        /// Which task.
        task: TaskId,
        /// Which attempt.
        attempt: u32,
    },
    /// The attempt ended well.
    Finish {
        /// Which task.
        task: TaskId,
        /// Which attempt.
        attempt: u32,
    },
    /// The attempt ended badly.
    Fail {
        /// Which task.
        task: TaskId,
        /// Which attempt.
        attempt: u32,
        /// Whether trying again makes sense.
        retry: bool,
    },
    /// The holder gives the task back unfinished; it counts neither as a failure nor as a retry.
    GiveBack {
        /// Which task.
        task: TaskId,
        /// Which attempt.
        attempt: u32,
    },
    /// Withdraws a task at whatever stage it is.
    Cancel {
        /// Which.
        task: TaskId,
    },
    /// Withdraws an element of an array that has not been handed out, whether it has become a task of its own or not.
    CancelElement {
        /// The array.
        job: JobId,
        /// The element.
        index: u32,
    },
    /// Withdraws everything of a job.
    CancelJob {
        /// Which.
        job: JobId,
    },
    /// An idle worker wants tasks from another's queue.
    Steal {
        /// Who wants them.
        thief: WorkerId,
    },
    /// Evens out queues now.
    Rebalance,
    /// Sets how many tasks with a key may run together.
    SetKeyLimit {
        /// Which key.
        key: KeyId,
        /// At least 1.
        limit: u32,
    },
    /// Replaces a placement policy while running.
    SetPolicy {
        /// For which type of task; none for the default.
        task_type: Option<TypeId>,
        /// The new policy.
        policy: PolicySpec,
    },
    /// Replaces a placement policy with one of the caller's own while running.
    UsePolicy {
        /// For which type of task; none for the default.
        task_type: Option<TypeId>,
        /// The new policy.
        policy: OwnPolicy,
    },
    /// A worker with a queue of its own likes to have so many tasks from now on, those it has included.
    Want {
        /// Who.
        worker: WorkerId,
        /// How many.
        count: u32,
    },
    /// A worker with a queue of its own began an attempt it holds. If it got it from another, that is news too.
    Began {
        /// Who.
        worker: WorkerId,
        /// What.
        held: Held,
    },
    /// A worker with a queue of its own ended an attempt.
    Ended {
        /// Who.
        worker: WorkerId,
        /// What.
        held: Held,
        /// How long it ran.
        ran: Span,
        /// How it ended.
        end: End,
    },
    /// An attempt went from one worker's queue to another's; either of them says so.
    Moved {
        /// What, and the hop it has now.
        held: Held,
        /// Who has it now.
        to: WorkerId,
    },
    /// A worker with a queue of its own holds this from an earlier life of the scheduler.
    Reattached {
        /// Who.
        worker: WorkerId,
        /// What.
        held: Held,
    },
    /// A worker with a queue of its own does not have an attempt that it should have.
    Missing {
        /// Who.
        worker: WorkerId,
        /// What.
        held: Held,
    },
    /// Time has passed; due timers fire (as they do with every other event).
    Tick,
}

/// One attempt in somebody's hands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Held {
    /// Which task.
    pub task: TaskId,
    /// Which attempt; only the scheduler raises it.
    pub attempt: u32,
    /// How often the attempt has changed hands; whoever passes it on raises it.
    pub hop: u32,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Well.
    Done,
    /// Badly.
    Failed {
        /// Whether trying again makes sense.
        retry: bool,
    },
    /// Not at all: its holder gives it back.
    GivenBack,
    /// It ran longer than it may, and was stopped.
    TimedOut,
}

/// A change of a worker's description. What is `None` stays.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WorkerChange {
    /// New capabilities.
    pub capabilities: Option<CapabilitySet>,
    /// New resources.
    pub resources: Option<Vector>,
    /// New number of slots.
    pub slots: Option<u32>,
    /// New relative speed. Tasks that are queued at the worker or run there keep the time they were planned with.
    pub speed: Option<f64>,
    /// New cost of a second.
    pub cost_rate: Option<f64>,
    /// New share of the turns.
    pub weight: Option<f64>,
    /// Whether it gets nothing new.
    pub draining: Option<bool>,
}

/// What becomes of the tasks of a worker that leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remaining {
    /// They leave the scheduler and go back to the caller, the running ones first.
    Return,
    /// They are queued again.
    Requeue,
}
