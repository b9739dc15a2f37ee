//! What a task is to the scheduler: what it asks for, what it may do, and where it stands.

use smallvec::SmallVec;

use crate::capabilities::CapabilitySet;
use crate::ids::{AffinityId, JobId, KeyId, KindId, TaskId, TypeId, WorkerId};
use crate::resources::Demand;
use crate::time::{Span, Time};

/// How important a task is: 1 (least) to 5.
///
/// Fractional priorities are accepted and rounded, for callers that rank by score.
///
/// ```
/// use filch_core::Priority;
/// assert_eq!(Priority::from_f64(3.6).get(), 4);
/// assert_eq!(Priority::from_f64(99.0), Priority::MAX);
/// assert!(Priority::new(0).is_none());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Priority(u8);

impl Priority {
    /// The least important.
    pub const MIN: Priority = Priority(1);
    /// The most important.
    pub const MAX: Priority = Priority(5);

    /// A priority from 1 to 5.
    #[must_use]
    pub const fn new(value: u8) -> Option<Priority> {
        if value >= 1 && value <= 5 { Some(Priority(value)) } else { None }
    }

    /// The nearest priority to a number; undefined counts as the least.
    #[must_use]
    pub fn from_f64(value: f64) -> Priority {
        Priority(((value + 0.5) as u8).clamp(1, 5))
    }

    /// The priority as a number.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }
}

impl Default for Priority {
    fn default() -> Self {
        Priority(3)
    }
}

/// What becomes of a task when one it depends on fails, is skipped or is cancelled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ParentFailure {
    /// It fails too.
    #[default]
    Fail,
    /// It is skipped.
    Skip,
    /// It runs all the same.
    Run,
}

/// How often and after which pauses a failed task is tried again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetryTerms {
    /// Most retries.
    pub max_retries: u32,
    /// Pause before the first; doubled each time.
    pub backoff: Span,
    /// Longest pause.
    pub backoff_max: Span,
}

/// A task as it is submitted. Names have become numbers at the edge; the payload is a handle the core never opens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TaskSpec {
    /// The driver's handle to what is to be done.
    pub payload: u64,
    /// History is learned per kind.
    pub kind: KindId,
    /// Selects the placement policy.
    pub task_type: TypeId,
    /// 1 to 5.
    pub priority: Priority,
    /// Capabilities a worker must have.
    pub requires: CapabilitySet,
    /// Capabilities matched by the configured strategy.
    pub skills: CapabilitySet,
    /// Resources reserved while it runs.
    pub demand: Demand,
    /// Tasks with the same key never run together beyond the key's limit.
    pub key: Option<KeyId>,
    /// Must never run twice at once, not even for a moment after a failure.
    pub exclusive: bool,
    /// May safely be run again from the start.
    pub idempotent: bool,
    /// The duration its submitter expects.
    pub estimate: Option<Span>,
    /// When it should have ended.
    pub deadline: Option<Time>,
    /// How long one attempt may run.
    pub timeout: Option<Span>,
    /// Overrides the configured retries.
    pub retry: Option<RetryTerms>,
    /// Things that save time where they are warm.
    pub affinity: SmallVec<[(AffinityId, Span); 1]>,
    /// Goes to this worker and no other.
    pub pin: Option<WorkerId>,
    /// Goes to this worker's queue first, if it is there and can run it; others may take it from there.
    pub seeded: Option<WorkerId>,
    /// The running task that spawned it.
    pub parent: Option<TaskId>,
    /// Tasks that must end well first.
    pub after: SmallVec<[TaskId; 2]>,
    /// What happens if one of them does not.
    pub on_parent_failure: ParentFailure,
    /// The job it belongs to; none means the common one.
    pub job: Option<JobId>,
}

/// A task of a graph: its parents are named by their position in the same submission.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GraphTask {
    /// The task.
    pub spec: TaskSpec,
    /// Positions of the tasks that must end well first.
    pub parents: SmallVec<[u32; 4]>,
}

/// Where a task stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Status {
    /// Waits for tasks it depends on.
    Blocked,
    /// Waits for a worker.
    Queued,
    /// Failed and waits for its next attempt.
    Retrying,
    /// No registered worker can ever run it; it is tried again a few times.
    Unschedulable,
    /// Handed to a worker, its resources reserved.
    Assigned,
    /// The worker said that it runs.
    Running,
    /// Ended well.
    Completed,
    /// Ended badly, and no attempt is left.
    Failed,
    /// Withdrawn.
    Cancelled,
    /// Not run because one it depends on did not end well.
    Skipped,
    /// Handed back to the caller when its worker was unregistered.
    Returned,
}

impl Status {
    /// All of them, in the order of their numbers on the wire and in the store.
    pub const ALL: [Status; 11] = [
        Status::Blocked,
        Status::Queued,
        Status::Retrying,
        Status::Unschedulable,
        Status::Assigned,
        Status::Running,
        Status::Completed,
        Status::Failed,
        Status::Cancelled,
        Status::Skipped,
        Status::Returned,
    ];

    /// Whether nothing more will happen to the task.
    #[must_use]
    pub const fn is_settled(self) -> bool {
        matches!(self, Status::Completed | Status::Failed | Status::Cancelled | Status::Skipped | Status::Returned)
    }

    /// The status in one lower-case word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Status::Blocked => "blocked",
            Status::Queued => "queued",
            Status::Retrying => "retrying",
            Status::Unschedulable => "unschedulable",
            Status::Assigned => "assigned",
            Status::Running => "running",
            Status::Completed => "completed",
            Status::Failed => "failed",
            Status::Cancelled => "cancelled",
            Status::Skipped => "skipped",
            Status::Returned => "returned",
        }
    }
}

/// Why a task came to its status, where there is more than one way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The ordinary way.
    #[default]
    None,
    /// The worker reported a failure.
    Reported,
    /// An attempt ran longer than it may.
    TimedOut,
    /// The worker holding it went silent.
    WorkerLost,
    /// The worker holding it left.
    WorkerLeft,
    /// A task it depends on did not end well.
    ParentFailed,
    /// No registered worker could ever run it.
    NoWorker,
    /// The holder gave it back unfinished.
    GivenBack,
    /// It was moved to another worker.
    Moved,
    /// It cannot meet its deadline.
    Hopeless,
    /// Its deadline has passed.
    DeadlineMissed,
    /// The caller asked for it.
    Requested,
}

impl Cause {
    /// All of them, in the order of their numbers on the wire and in the store.
    pub const ALL: [Cause; 12] = [
        Cause::None,
        Cause::Reported,
        Cause::TimedOut,
        Cause::WorkerLost,
        Cause::WorkerLeft,
        Cause::ParentFailed,
        Cause::NoWorker,
        Cause::GivenBack,
        Cause::Moved,
        Cause::Hopeless,
        Cause::DeadlineMissed,
        Cause::Requested,
    ];

    /// The cause in words; nothing if there is nothing to say.
    #[must_use]
    pub const fn words(self) -> Option<&'static str> {
        Some(match self {
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
}
