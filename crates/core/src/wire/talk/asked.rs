//! What clients ask and what they are told.

use bytes::Bytes;
use prost::{Message, Oneof};

use super::{Chunk, Ending, NamedAmount};

/// What is asked of a worker that runs a task.
#[derive(Clone, PartialEq, Message)]
pub struct Terms {
    /// History is learned per kind.
    #[prost(string, tag = "1")]
    pub kind: String,
    /// Selects the placement policy.
    #[prost(string, tag = "2")]
    pub task_type: String,
    /// 1 to 5.
    #[prost(int64, optional, tag = "3")]
    pub priority: Option<i64>,
    /// Capabilities a worker must have.
    #[prost(string, repeated, tag = "4")]
    pub requires: Vec<String>,
    /// Capabilities matched by the configured strategy.
    #[prost(string, repeated, tag = "5")]
    pub skills: Vec<String>,
    /// Resources reserved while it runs.
    #[prost(message, repeated, tag = "6")]
    pub resources: Vec<NamedAmount>,
    /// Tasks with the same key never run together beyond its limit.
    #[prost(string, optional, tag = "7")]
    pub key: Option<String>,
    /// That limit, if it is to be set.
    #[prost(uint32, optional, tag = "8")]
    pub key_limit: Option<u32>,
    /// Must never run twice at once.
    #[prost(bool, tag = "9")]
    pub exclusive: bool,
    /// May safely be run again from the start.
    #[prost(bool, tag = "10")]
    pub idempotent: bool,
    /// The duration its submitter expects.
    #[prost(uint64, optional, tag = "11")]
    pub estimate_nanos: Option<u64>,
    /// When it should have ended, counted from now.
    #[prost(uint64, optional, tag = "12")]
    pub deadline_in_nanos: Option<u64>,
    /// How long one attempt may run.
    #[prost(uint64, optional, tag = "13")]
    pub timeout_nanos: Option<u64>,
    /// Retries after failures.
    #[prost(uint32, optional, tag = "14")]
    pub retries: Option<u32>,
    /// The pause before the first.
    #[prost(uint64, optional, tag = "15")]
    pub backoff_nanos: Option<u64>,
    /// The longest pause.
    #[prost(uint64, optional, tag = "16")]
    pub backoff_max_nanos: Option<u64>,
    /// Things that save time where they are warm.
    #[prost(message, repeated, tag = "17")]
    pub affinity: Vec<Affinity>,
    /// What happens if a parent does not end well: 0 it fails, 1 it is skipped, 2 it runs.
    #[prost(uint32, tag = "18")]
    pub on_parent_failure: u32,
    /// Runs on this worker and no other.
    #[prost(string, optional, tag = "19")]
    pub pin: Option<String>,
    /// Goes to the queues of these workers first, in turn; others may take it from there.
    #[prost(string, repeated, tag = "20")]
    pub to: Vec<String>,
}

/// Something that saves time where it is warm.
#[derive(Clone, PartialEq, Message)]
pub struct Affinity {
    /// What.
    #[prost(string, tag = "1")]
    pub key: String,
    /// How much time.
    #[prost(uint64, tag = "2")]
    pub saves_nanos: u64,
}

/// What a client asks.
#[derive(Clone, PartialEq, Message)]
pub struct Request {
    /// Comes back with every reply.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// What.
    #[prost(oneof = "Ask", tags = "2, 3, 4, 5, 6, 7, 8, 9")]
    pub ask: Option<Ask>,
}

/// What a client may ask.
#[derive(Clone, PartialEq, Oneof)]
pub enum Ask {
    /// That something is done. Answered by `Submitted` or `Refused`.
    #[prost(message, tag = "2")]
    Submit(Box<Submit>),
    /// That a job or task is withdrawn. Answered by `Done` or `Refused`.
    #[prost(message, tag = "3")]
    Cancel(Name),
    /// To hear how a job goes: `Progress` now and then, `Ended` for each task if wished, and `JobDone` at the end.
    #[prost(message, tag = "4")]
    Watch(Watch),
    /// Anything about the state, as JSON. Answered by `Json`.
    #[prost(string, tag = "5")]
    Query(String),
    /// That a worker finishes what it runs and gives back the rest.
    #[prost(string, tag = "6")]
    Drain(String),
    /// To see what a task writes, what it has written included: `Output`, and `Done` at the end.
    #[prost(message, tag = "7")]
    Logs(Logs),
    /// That nothing more is said to the request with this number.
    #[prost(uint64, tag = "8")]
    Stop(u64),
    /// That what did not end well of a job that is over is done again, as a new job. Answered by `Submitted` or `Refused`.
    #[prost(message, tag = "9")]
    Retry(Retry),
}

/// What is to be done again.
#[derive(Clone, PartialEq, Message)]
pub struct Retry {
    /// The number of the job.
    #[prost(uint64, tag = "1")]
    pub job: u64,
    /// As in [`Submit`].
    #[prost(bytes = "bytes", tag = "2")]
    pub key: Bytes,
}

/// A job, a task of a job, or a single task.
#[derive(Clone, PartialEq, Message)]
pub struct Name {
    /// The number of the job; 0 for single tasks.
    #[prost(uint64, tag = "1")]
    pub job: u64,
    /// The position of the task; the whole job without.
    #[prost(uint32, optional, tag = "2")]
    pub index: Option<u32>,
    /// A single task.
    #[prost(uint64, optional, tag = "3")]
    pub task: Option<u64>,
}

/// What a client watches.
#[derive(Clone, PartialEq, Message)]
pub struct Watch {
    /// Which job.
    #[prost(uint64, tag = "1")]
    pub job: u64,
    /// Whether it wants to hear of every task that ends.
    #[prost(bool, tag = "2")]
    pub each: bool,
    /// With `each`, the positions of those whose end it knows of already, as runs: the first of one, the first after it, and
    /// so on.
    #[prost(uint32, repeated, tag = "3")]
    pub heard: Vec<u32>,
}

/// Whose output a client wants to see.
#[derive(Clone, PartialEq, Message)]
pub struct Logs {
    /// Whose.
    #[prost(message, optional, tag = "1")]
    pub name: Option<Name>,
    /// Whether it waits for what is still to come.
    #[prost(bool, tag = "2")]
    pub follow: bool,
    /// The attempt of which it has seen something already, and how many bytes of what it wrote to standard output and to
    /// standard error.
    #[prost(uint32, tag = "3")]
    pub attempt: u32,
    /// See `attempt`.
    #[prost(uint64, tag = "4")]
    pub seen_stdout: u64,
    /// See `attempt`.
    #[prost(uint64, tag = "5")]
    pub seen_stderr: u64,
    /// Only what this attempt wrote, counted from 1 as people do; the latest if nothing is said.
    #[prost(uint32, tag = "6")]
    pub only: u32,
}

/// Something to be done.
#[derive(Clone, PartialEq, Message)]
pub struct Submit {
    /// The submitter's own number of it, never used twice: what comes again gets the first answer.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    /// What the job is called.
    #[prost(string, tag = "2")]
    pub name: String,
    /// What it consists of.
    #[prost(oneof = "Parts", tags = "3, 4, 5")]
    pub parts: Option<Parts>,
    /// The running task that asks for it.
    #[prost(uint64, optional, tag = "6")]
    pub parent: Option<u64>,
    /// Whether the submitter wants to hear of the end of every task, without asking again.
    #[prost(bool, tag = "7")]
    pub watch: bool,
    /// The command in words, for people.
    #[prost(string, tag = "8")]
    pub summary: String,
    /// Its share against other jobs of the same level; 1 if nothing is said.
    #[prost(double, optional, tag = "9")]
    pub weight: Option<f64>,
    /// If it comes again with `watch`, the positions of those whose end the submitter knows of already; see
    /// [`Watch::heard`].
    #[prost(uint32, repeated, tag = "10")]
    pub heard: Vec<u32>,
}

/// What a submission consists of.
#[derive(Clone, PartialEq, Oneof)]
pub enum Parts {
    /// One task that belongs to no job.
    #[prost(message, tag = "3")]
    Single(Part),
    /// Tasks that may depend on each other, as one job.
    #[prost(message, tag = "4")]
    Graph(Graph),
    /// Many that are alike, as one job.
    #[prost(message, tag = "5")]
    Array(Array),
}

/// One task of a submission.
#[derive(Clone, PartialEq, Message)]
pub struct Part {
    /// What is asked of its worker.
    #[prost(message, optional, tag = "1")]
    pub terms: Option<Terms>,
    /// An encoded [`Work`].
    #[prost(bytes = "bytes", tag = "2")]
    pub work: Bytes,
    /// What it is called.
    #[prost(string, tag = "3")]
    pub name: String,
    /// Positions in the graph of the tasks that must end well first.
    #[prost(uint32, repeated, tag = "4")]
    pub after: Vec<u32>,
}

/// Tasks that may depend on each other.
#[derive(Clone, PartialEq, Message)]
pub struct Graph {
    /// All of them.
    #[prost(message, repeated, tag = "1")]
    pub parts: Vec<Part>,
}

/// Many tasks that are alike.
#[derive(Clone, PartialEq, Message)]
pub struct Array {
    /// What they share.
    #[prost(message, optional, tag = "1")]
    pub part: Option<Part>,
    /// How many.
    #[prost(uint32, tag = "2")]
    pub count: u32,
    /// What each of them gets; empty, or one for each.
    #[prost(bytes = "bytes", repeated, tag = "3")]
    pub inputs: Vec<Bytes>,
    /// The number of the first, as people call it.
    #[prost(sint64, tag = "4")]
    pub first: i64,
    /// From one to the next.
    #[prost(sint64, tag = "5")]
    pub step: i64,
    /// If these are some elements of a larger array, their places there, as [`place_runs`](super::place_runs) writes them; `first`
    /// is then the number of the first of that one.
    #[prost(uint32, repeated, tag = "6")]
    pub places: Vec<u32>,
}

/// What a client is told.
#[derive(Clone, PartialEq, Message)]
pub struct Reply {
    /// From the request.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// What.
    #[prost(oneof = "Said", tags = "2, 3, 4, 5, 6, 7, 8, 9")]
    pub said: Option<Said>,
}

/// What a client may be told.
#[derive(Clone, PartialEq, Oneof)]
pub enum Said {
    /// It is accepted, durably.
    #[prost(message, tag = "2")]
    Submitted(Submitted),
    /// It is not.
    #[prost(message, tag = "3")]
    Refused(Refused),
    /// How a job goes.
    #[prost(message, tag = "4")]
    Progress(Progress),
    /// A task was settled, durably.
    #[prost(message, tag = "5")]
    Ended(Box<Ended>),
    /// All tasks of a job were.
    #[prost(message, tag = "6")]
    JobDone(Progress),
    /// An answer to a query.
    #[prost(string, tag = "7")]
    Json(String),
    /// Output of a task.
    #[prost(message, tag = "8")]
    Output(Chunk),
    /// It is done; there is no more to say.
    #[prost(bool, tag = "9")]
    Done(bool),
}

/// A submission was accepted.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Submitted {
    /// The number of the job; 0 for single tasks.
    #[prost(uint64, tag = "1")]
    pub job: u64,
    /// The id of a single task.
    #[prost(uint64, tag = "2")]
    pub task: u64,
}

/// Something was refused.
#[derive(Clone, PartialEq, Message)]
pub struct Refused {
    /// Why, in words.
    #[prost(string, tag = "1")]
    pub why: String,
    /// When trying again makes sense, if it does.
    #[prost(uint64, optional, tag = "2")]
    pub retry_after_nanos: Option<u64>,
}

/// How a job goes.
#[derive(Clone, PartialEq, Message)]
pub struct Progress {
    /// Which.
    #[prost(uint64, tag = "1")]
    pub job: u64,
    /// Tasks in all.
    #[prost(uint64, tag = "2")]
    pub total: u64,
    /// Those that run.
    #[prost(uint64, tag = "3")]
    pub running: u64,
    /// Those that ended well.
    #[prost(uint64, tag = "4")]
    pub completed: u64,
    /// Those that did not.
    #[prost(uint64, tag = "5")]
    pub failed: u64,
    /// Those that were withdrawn.
    #[prost(uint64, tag = "6")]
    pub cancelled: u64,
    /// Those that were not run because another did not end well.
    #[prost(uint64, tag = "7")]
    pub skipped: u64,
    /// How often one of them was stolen.
    #[prost(uint64, tag = "8")]
    pub stolen: u64,
}

/// A task was settled.
#[derive(Clone, PartialEq, Message)]
pub struct Ended {
    /// The number of its job; 0 for single tasks.
    #[prost(uint64, tag = "1")]
    pub job: u64,
    /// Its position there.
    #[prost(uint32, tag = "2")]
    pub index: u32,
    /// Its id.
    #[prost(uint64, tag = "3")]
    pub task: u64,
    /// How: the name of a status.
    #[prost(string, tag = "4")]
    pub status: String,
    /// Why: the name of a cause; empty if there is nothing to say.
    #[prost(string, tag = "5")]
    pub cause: String,
    /// Attempts it took.
    #[prost(uint32, tag = "6")]
    pub attempts: u32,
    /// Who ran it last.
    #[prost(string, tag = "7")]
    pub worker: String,
    /// How long it waited until its last attempt began.
    #[prost(uint64, tag = "8")]
    pub waited_nanos: u64,
    /// How long its last attempt ran.
    #[prost(uint64, tag = "9")]
    pub ran_nanos: u64,
    /// What its last attempt left.
    #[prost(message, optional, boxed, tag = "10")]
    pub ending: Option<Box<Ending>>,
    /// When its last attempt began, in nanoseconds since 1970.
    #[prost(uint64, tag = "11")]
    pub began_nanos: u64,
    /// How often it was stolen.
    #[prost(uint32, tag = "12")]
    pub hops: u32,
}
