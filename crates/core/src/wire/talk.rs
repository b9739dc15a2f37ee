//! What drivers say to each other beside the messages of the machines: who they are, what is to be done, how it ended,
//! and what clients ask. Plain protobuf structures; nothing here decides anything.
//!
//! A number that stands here once never means anything else; what is new gets a new one.

mod asked;
mod page;
mod places;

pub use asked::*;
pub use page::*;
pub use places::{Numbers, Places, place_runs};

use bytes::Bytes;
use prost::{Message, Oneof};

use super::Columns;
use crate::steal::StealStats;
use crate::time::Span;

/// The most that one packet may weigh, whatever a coordinator allows for payloads.
pub const LARGEST_PACKET: usize = 64 << 20;

/// What travels as one frame of a connection.
#[derive(Clone, PartialEq, Message)]
pub struct Packet {
    /// The first packet of whoever connects.
    #[prost(message, optional, boxed, tag = "1")]
    pub opening: Option<Box<Opening>>,
    /// The first packet of whoever was connected to.
    #[prost(message, optional, boxed, tag = "2")]
    pub answer: Option<Box<Answer>>,
    /// Messages of the machines, if there are any.
    #[prost(message, optional, boxed, tag = "3")]
    pub frame: Option<Box<Columns>>,
    /// What orders of the frame are to do, as far as the receiver does not know it.
    #[prost(message, repeated, tag = "4")]
    pub bodies: Vec<Body>,
    /// What single elements get beside that.
    #[prost(message, repeated, tag = "5")]
    pub inputs: Vec<Input>,
    /// How attempts of the frame ended, where there is more to say than that.
    #[prost(message, repeated, tag = "6")]
    pub endings: Vec<Ending>,
    /// What a client asks.
    #[prost(message, repeated, tag = "7")]
    pub requests: Vec<Request>,
    /// What a client is told.
    #[prost(message, repeated, tag = "8")]
    pub replies: Vec<Reply>,
    /// Where peers are that the frame speaks of.
    #[prost(message, repeated, tag = "9")]
    pub peers: Vec<Peer>,
    /// Bodies that will not be needed again.
    #[prost(uint64, repeated, tag = "10")]
    pub forget: Vec<u64>,
    /// What running tasks write, for those who look on.
    #[prost(message, repeated, tag = "11")]
    pub chunks: Vec<Chunk>,
    /// Tasks whose output somebody wants to see as it comes, or no longer.
    #[prost(message, repeated, tag = "12")]
    pub looks: Vec<Look>,
    /// How a worker's steals go, now and then.
    #[prost(message, optional, boxed, tag = "13")]
    pub steals: Option<Box<Steals>>,
    /// A worker says that whoever runs it wants it to leave; or it is told that somebody wants that.
    #[prost(bool, tag = "14")]
    pub drain: bool,
    /// What goes to a peer, or comes from one, that cannot be reached directly.
    #[prost(message, repeated, tag = "15")]
    pub relays: Vec<Relay>,
}

/// A packet between workers that goes through the coordinator.
#[derive(Clone, PartialEq, Message)]
pub struct Relay {
    /// To whom, if a worker sends it; from whom, if it gets it.
    #[prost(uint64, tag = "1")]
    pub worker: u64,
    /// An encoded [`Packet`].
    #[prost(bytes = "bytes", tag = "2")]
    pub packet: Bytes,
}

/// Who connects.
#[derive(Clone, PartialEq, Message)]
pub struct Opening {
    /// [`VERSION`](super::VERSION) of the sender.
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// The secret of the access file, or that of the peer.
    #[prost(bytes = "bytes", tag = "2")]
    pub token: Bytes,
    /// What it is.
    #[prost(oneof = "Role", tags = "3, 4, 5")]
    pub role: Option<Role>,
}

/// What somebody who connects is.
#[derive(Clone, PartialEq, Oneof)]
pub enum Role {
    /// A worker.
    #[prost(message, tag = "3")]
    Worker(WorkerCard),
    /// Somebody who submits and asks.
    #[prost(message, tag = "4")]
    Client(ClientCard),
    /// Another worker; the number is its id.
    #[prost(uint64, tag = "5")]
    Peer(u64),
}

/// A worker describes itself.
#[derive(Clone, PartialEq, Message)]
pub struct WorkerCard {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// What it can do.
    #[prost(string, repeated, tag = "2")]
    pub capabilities: Vec<String>,
    /// How much it has.
    #[prost(message, repeated, tag = "3")]
    pub resources: Vec<NamedAmount>,
    /// Where peers reach it; empty if they cannot.
    #[prost(string, tag = "4")]
    pub address: String,
    /// SHA-256 of its certificate; empty without TLS.
    #[prost(bytes = "bytes", tag = "5")]
    pub pin: Bytes,
    /// What a peer must know.
    #[prost(bytes = "bytes", tag = "6")]
    pub peer_token: Bytes,
    /// Who it was the last time.
    #[prost(uint64, optional, tag = "7")]
    pub known: Option<u64>,
    /// Its process, for people.
    #[prost(uint32, tag = "8")]
    pub process: u32,
    /// Tasks it runs at once.
    #[prost(uint32, tag = "9")]
    pub slots: u32,
    /// Where peers of the same machine reach it; empty if they go over the network like the others.
    #[prost(string, tag = "10")]
    pub local: String,
}

/// A client describes itself.
#[derive(Clone, PartialEq, Message)]
pub struct ClientCard {
    /// Its name, for logs.
    #[prost(string, tag = "1")]
    pub name: String,
}

/// What whoever connects is told.
#[derive(Clone, PartialEq, Message)]
pub struct Answer {
    /// [`VERSION`](super::VERSION) of the sender.
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// Why it is refused; empty if it is not.
    #[prost(string, tag = "2")]
    pub refused: String,
    /// The life of the coordinator.
    #[prost(uint64, tag = "3")]
    pub epoch: u64,
    /// The numbers of the capabilities of its card, in order.
    #[prost(uint32, repeated, tag = "4")]
    pub capabilities: Vec<u32>,
    /// The numbers of the resources of its card, in order.
    #[prost(uint32, repeated, tag = "5")]
    pub resources: Vec<u32>,
    /// The coordinator's configuration, which workers share.
    #[prost(string, tag = "6")]
    pub config: String,
    /// The driver's handle that the worker's hello is to carry.
    #[prost(uint64, tag = "7")]
    pub tag: u64,
}

/// An amount of a resource.
#[derive(Clone, PartialEq, Message)]
pub struct NamedAmount {
    /// Of what.
    #[prost(string, tag = "1")]
    pub name: String,
    /// How much.
    #[prost(double, tag = "2")]
    pub amount: f64,
}

/// Where a peer is.
#[derive(Clone, PartialEq, Message)]
pub struct Peer {
    /// Who.
    #[prost(uint64, tag = "1")]
    pub worker: u64,
    /// Where.
    #[prost(string, tag = "2")]
    pub address: String,
    /// SHA-256 of its certificate; empty without TLS.
    #[prost(bytes = "bytes", tag = "3")]
    pub pin: Bytes,
    /// What it wants to hear.
    #[prost(bytes = "bytes", tag = "4")]
    pub token: Bytes,
    /// Where, for those of the same machine; empty if it is the same.
    #[prost(string, tag = "5")]
    pub local: String,
}

/// What is to be done for every order with a handle: a [`Work`].
#[derive(Clone, PartialEq, Message)]
pub struct Body {
    /// The handle.
    #[prost(uint64, tag = "1")]
    pub handle: u64,
    /// An encoded [`Work`].
    #[prost(bytes = "bytes", tag = "2")]
    pub work: Bytes,
    /// More orders with the same handle may come: keep it until it is to be forgotten.
    #[prost(bool, tag = "3")]
    pub shared: bool,
}

/// What one element of a job gets.
#[derive(Clone, PartialEq, Message)]
pub struct Input {
    /// The handle of its job.
    #[prost(uint64, tag = "1")]
    pub handle: u64,
    /// Which element.
    #[prost(uint32, tag = "2")]
    pub index: u32,
    /// What it gets.
    #[prost(bytes = "bytes", tag = "3")]
    pub bytes: Bytes,
    /// Its place as its submitter counts, if that is another one.
    #[prost(uint32, optional, tag = "4")]
    pub place: Option<u32>,
    /// It gets nothing; only its place is told.
    #[prost(bool, tag = "5")]
    pub bare: bool,
}

/// What is to be done.
#[derive(Clone, PartialEq, Message)]
pub struct Work {
    /// A program, or a function of the worker.
    #[prost(oneof = "Program", tags = "1, 2, 3")]
    pub program: Option<Program>,
    /// Variables of its environment.
    #[prost(message, repeated, tag = "4")]
    pub env: Vec<Variable>,
    /// Whether its environment has nothing else.
    #[prost(bool, tag = "5")]
    pub env_clear: bool,
    /// Where it runs.
    #[prost(bytes = "bytes", optional, tag = "6")]
    pub cwd: Option<Bytes>,
    /// What it reads; a function gets it as its input.
    #[prost(bytes = "bytes", tag = "7")]
    pub stdin: Bytes,
    /// Whether `{}`, `{n}` and their like stand for something in the words of the program.
    #[prost(bool, tag = "8")]
    pub placeholders: bool,
    /// The number of the first element.
    #[prost(sint64, tag = "9")]
    pub first: i64,
    /// From one element to the next.
    #[prost(sint64, tag = "10")]
    pub step: i64,
    /// Bytes of memory that each of its processes may have.
    #[prost(uint64, optional, tag = "11")]
    pub memory_limit: Option<u64>,
    /// Processor time that each of its processes may take.
    #[prost(uint64, optional, tag = "12")]
    pub cpu_limit_nanos: Option<u64>,
    /// How many bytes of each of its outputs are kept.
    #[prost(uint64, optional, tag = "13")]
    pub keep: Option<u64>,
    /// How long it has after it was asked to stop.
    #[prost(uint64, optional, tag = "14")]
    pub grace_nanos: Option<u64>,
    /// What each element's input is: nothing, a line, or JSON.
    #[prost(enumeration = "InputSort", tag = "15")]
    pub input: i32,
    /// The number of its job.
    #[prost(uint64, tag = "16")]
    pub job: u64,
    /// Its name, if it has one.
    #[prost(string, tag = "17")]
    pub name: String,
}

/// The number of an element as its submitter counts: that of the first, and a step for each that comes before. Nothing said of
/// the step means 1.
#[must_use]
pub fn number_of(first: i64, step: i64, index: u32) -> i64 {
    let step = if step == 0 { 1 } else { step };
    first.wrapping_add(step.wrapping_mul(i64::from(index)))
}

/// What the input of an element is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum InputSort {
    /// There is none, or it is a function's own matter.
    Bytes = 0,
    /// A line of text.
    Line = 1,
    /// A JSON value; its fields can be named.
    Json = 2,
}

/// What runs.
#[derive(Clone, PartialEq, Oneof)]
pub enum Program {
    /// A program and its arguments.
    #[prost(message, tag = "1")]
    Argv(Words),
    /// A script for the shell.
    #[prost(bytes = "bytes", tag = "2")]
    Shell(Bytes),
    /// A function that the worker has registered.
    #[prost(string, tag = "3")]
    Call(String),
}

/// Words of a command.
#[derive(Clone, PartialEq, Message)]
pub struct Words {
    /// The program first.
    #[prost(bytes = "bytes", repeated, tag = "1")]
    pub words: Vec<Bytes>,
}

/// A variable of an environment.
#[derive(Clone, PartialEq, Message)]
pub struct Variable {
    /// Its name.
    #[prost(bytes = "bytes", tag = "1")]
    pub name: Bytes,
    /// What it holds.
    #[prost(bytes = "bytes", tag = "2")]
    pub value: Bytes,
}

/// How an attempt ended. An attempt that ended well and has nothing to say has none.
#[derive(Clone, PartialEq, Message)]
pub struct Ending {
    /// Which task.
    #[prost(uint64, tag = "1")]
    pub task: u64,
    /// Which attempt.
    #[prost(uint32, tag = "2")]
    pub attempt: u32,
    /// Its exit code, if it ended by itself.
    #[prost(sint32, optional, tag = "3")]
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    #[prost(sint32, optional, tag = "4")]
    pub signal: Option<i32>,
    /// What went wrong, in words.
    #[prost(string, tag = "5")]
    pub error: String,
    /// What a function returned.
    #[prost(bytes = "bytes", tag = "6")]
    pub result: Bytes,
    /// What it wrote to standard output, as far as that is kept.
    #[prost(bytes = "bytes", tag = "7")]
    pub stdout: Bytes,
    /// What it wrote to standard error, likewise.
    #[prost(bytes = "bytes", tag = "8")]
    pub stderr: Bytes,
    /// Bytes of standard output that were left out.
    #[prost(uint64, tag = "9")]
    pub stdout_left_out: u64,
    /// Bytes of standard error that were left out.
    #[prost(uint64, tag = "10")]
    pub stderr_left_out: u64,
    /// How long it ran.
    #[prost(uint64, tag = "11")]
    pub wall_nanos: u64,
    /// Processor time in its own code.
    #[prost(uint64, tag = "12")]
    pub cpu_user_nanos: u64,
    /// Processor time in the system for it.
    #[prost(uint64, tag = "13")]
    pub cpu_system_nanos: u64,
    /// The most memory it had.
    #[prost(uint64, tag = "14")]
    pub peak_memory: u64,
    /// Whether that is an upper bound only.
    #[prost(bool, tag = "15")]
    pub peak_memory_bound: bool,
    /// Earlier attempts of which something is kept, the latest last. Only in what a coordinator keeps.
    #[prost(message, repeated, tag = "16")]
    pub earlier: Vec<Earlier>,
}

/// Where something is kept of an earlier attempt.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Earlier {
    /// Which attempt.
    #[prost(uint32, tag = "1")]
    pub attempt: u32,
    /// Where its ending is kept.
    #[prost(uint64, tag = "2")]
    pub ending: u64,
}

/// Output of a running task.
#[derive(Clone, PartialEq, Message)]
pub struct Chunk {
    /// Which task.
    #[prost(uint64, tag = "1")]
    pub task: u64,
    /// Whether it is standard error.
    #[prost(bool, tag = "2")]
    pub stderr: bool,
    /// What it wrote.
    #[prost(bytes = "bytes", tag = "3")]
    pub bytes: Bytes,
    /// How many bytes it had written to the same stream before.
    #[prost(uint64, tag = "4")]
    pub offset: u64,
    /// In which attempt.
    #[prost(uint32, tag = "5")]
    pub attempt: u32,
}

/// Somebody wants to see what a task writes.
#[derive(Clone, PartialEq, Message)]
pub struct Look {
    /// Which task.
    #[prost(uint64, tag = "1")]
    pub task: u64,
    /// Or no longer does.
    #[prost(bool, tag = "2")]
    pub stop: bool,
}

/// How a worker's steals went, since it began.
#[derive(Clone, PartialEq, Message)]
pub struct Steals {
    /// Requests.
    #[prost(uint64, tag = "1")]
    pub attempts: u64,
    /// Those that brought something.
    #[prost(uint64, tag = "2")]
    pub successes: u64,
    /// Those that nobody answered in time.
    #[prost(uint64, tag = "3")]
    pub timeouts: u64,
    /// Those that could not be sent.
    #[prost(uint64, tag = "4")]
    pub network_errors: u64,
    /// Those that were refused.
    #[prost(uint64, tag = "5")]
    pub rejections: u64,
    /// Those that were answered.
    #[prost(uint64, tag = "6")]
    pub timed: u64,
    /// How many of these fell into each part of the histogram.
    #[prost(uint64, repeated, tag = "7")]
    pub histogram: Vec<u64>,
    /// How long they took together.
    #[prost(uint64, tag = "8")]
    pub latency_total_nanos: u64,
    /// The shortest.
    #[prost(uint64, tag = "9")]
    pub latency_min_nanos: u64,
    /// The longest.
    #[prost(uint64, tag = "10")]
    pub latency_max_nanos: u64,
    /// Messages to peers that went through the coordinator because the peer could not be reached.
    #[prost(uint64, tag = "11")]
    pub relayed: u64,
    /// How many of those that were answered fell into each part of the fine histogram.
    #[prost(uint32, repeated, tag = "12")]
    pub fine: Vec<u32>,
    /// The same of single peers, those asked last.
    #[prost(message, repeated, tag = "13")]
    pub peers: Vec<PeerSteals>,
}

/// How a worker's steals from one peer went.
#[derive(Clone, PartialEq, Message)]
pub struct PeerSteals {
    /// The peer.
    #[prost(uint64, tag = "1")]
    pub worker: u64,
    /// How they went.
    #[prost(message, optional, boxed, tag = "2")]
    pub steals: Option<Box<Steals>>,
}

impl From<&StealStats> for Steals {
    fn from(stats: &StealStats) -> Steals {
        Steals {
            attempts: stats.attempts,
            successes: stats.successes,
            timeouts: stats.timeouts,
            network_errors: stats.network_errors,
            rejections: stats.rejections,
            timed: stats.timed,
            histogram: stats.histogram.to_vec(),
            latency_total_nanos: stats.latency_total.0,
            latency_min_nanos: stats.latency_min.0,
            latency_max_nanos: stats.latency_max.0,
            relayed: 0,
            fine: stats.fine.clone(),
            peers: Vec::new(),
        }
    }
}

impl From<&Steals> for StealStats {
    fn from(steals: &Steals) -> StealStats {
        let mut histogram = [0; 10];
        for (count, said) in histogram.iter_mut().zip(&steals.histogram) {
            *count = *said;
        }
        StealStats {
            attempts: steals.attempts,
            successes: steals.successes,
            timeouts: steals.timeouts,
            network_errors: steals.network_errors,
            rejections: steals.rejections,
            timed: steals.timed,
            latency_total: Span(steals.latency_total_nanos),
            latency_min: Span(steals.latency_min_nanos),
            latency_max: Span(steals.latency_max_nanos),
            histogram,
            // From whoever counts in longer times than there are, nothing is believed.
            fine: steals.fine.iter().copied().take(512).collect(),
        }
    }
}
