//! The protobuf messages, as prost derives them. A number that stands here once never means anything else; what is new
//! gets a new one. Only this crate sees them: everybody else has the plain types of the machines.

use prost::{Message, Oneof};

/// A [`Frame`](super::Frame) as columns, as it is part of other messages. Nobody but the frame looks into it.
#[derive(Clone, PartialEq, Message)]
pub struct Columns {
    #[prost(uint64, tag = "1")]
    pub(super) epoch: u64,
    #[prost(message, repeated, tag = "2")]
    pub(super) batches: Vec<Batch>,
}

/// Messages of one sort that follow each other.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Batch {
    #[prost(
        oneof = "Sort",
        tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23"
    )]
    pub(super) sort: Option<Sort>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Sort {
    #[prost(message, tag = "1")]
    Hello(Hello),
    #[prost(message, tag = "2")]
    Welcome(Welcome),
    #[prost(message, tag = "3")]
    Beat(Beat),
    #[prost(message, tag = "4")]
    Heard(Heard),
    #[prost(message, tag = "5")]
    Want(Want),
    #[prost(message, tag = "6")]
    Hand(Orders),
    #[prost(message, tag = "7")]
    Revoke(Coded),
    #[prost(message, tag = "8")]
    Began(Helds),
    #[prost(message, tag = "9")]
    Ended(Ends),
    #[prost(message, tag = "10")]
    Noted(Helds),
    #[prost(message, tag = "11")]
    Moved(Moves),
    #[prost(message, tag = "12")]
    Show(Show),
    #[prost(message, tag = "13")]
    Holds(Holds),
    #[prost(message, tag = "14")]
    Whose(Moves),
    #[prost(message, tag = "15")]
    Deny(Helds),
    #[prost(message, tag = "16")]
    Denied(Helds),
    #[prost(message, tag = "17")]
    Ruling(Coded),
    #[prost(message, tag = "18")]
    Digest(Digest),
    #[prost(message, tag = "19")]
    Ask(Ask),
    #[prost(message, tag = "20")]
    Offer(Orders),
    #[prost(message, tag = "21")]
    Refuse(Refuse),
    #[prost(message, tag = "22")]
    Accept(Helds),
    #[prost(message, tag = "23")]
    Nothing(Nothing),
}

/// Attempts in somebody's hands.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Helds {
    #[prost(sint64, repeated, tag = "1")]
    pub(super) task_steps: Vec<i64>,
    #[prost(uint32, repeated, tag = "2")]
    pub(super) attempts: Vec<u32>,
    #[prost(uint32, repeated, tag = "3")]
    pub(super) hops: Vec<u32>,
}

/// Attempts with a number each: a cause, or whether somebody has it.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Coded {
    #[prost(message, optional, tag = "1")]
    pub(super) helds: Option<Helds>,
    #[prost(uint32, repeated, tag = "2")]
    pub(super) codes: Vec<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Ends {
    #[prost(message, optional, tag = "1")]
    pub(super) helds: Option<Helds>,
    #[prost(uint64, repeated, tag = "2")]
    pub(super) ran_nanos: Vec<u64>,
    #[prost(uint32, repeated, tag = "3")]
    pub(super) ends: Vec<u32>,
}

/// Attempts with a worker each.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Moves {
    #[prost(message, optional, tag = "1")]
    pub(super) helds: Option<Helds>,
    #[prost(uint64, repeated, tag = "2")]
    pub(super) workers: Vec<u64>,
}

/// Tasks as workers get them, from the coordinator or from each other.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Orders {
    /// Of the handing-over or of the question.
    #[prost(uint64, tag = "1")]
    pub(super) number: u64,
    #[prost(message, optional, tag = "2")]
    pub(super) helds: Option<Helds>,
    #[prost(sint64, repeated, tag = "3")]
    pub(super) payload_steps: Vec<i64>,
    #[prost(sint64, repeated, tag = "4")]
    pub(super) index_steps: Vec<i64>,
    #[prost(sint64, repeated, tag = "5")]
    pub(super) sequence_steps: Vec<i64>,
    /// Which template each follows.
    #[prost(uint32, repeated, tag = "6")]
    pub(super) templates_used: Vec<u32>,
    #[prost(message, repeated, tag = "7")]
    pub(super) templates: Vec<Template>,
    /// Of an offer: what is left in the queue.
    #[prost(uint32, tag = "8")]
    pub(super) depth: u32,
    /// Of a handing-over: the receiver likes to have more, and there is nothing.
    #[prost(bool, tag = "9")]
    pub(super) nothing: bool,
}

/// What many orders have in common.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Template {
    #[prost(uint32, tag = "1")]
    pub(super) priority: u32,
    #[prost(uint32, tag = "2")]
    pub(super) level: u32,
    #[prost(uint64, optional, tag = "3")]
    pub(super) deadline_nanos: Option<u64>,
    #[prost(uint32, tag = "4")]
    pub(super) rank: u32,
    #[prost(uint32, tag = "5")]
    pub(super) kind: u32,
    #[prost(uint64, tag = "6")]
    pub(super) expected_nanos: u64,
    #[prost(uint64, optional, tag = "7")]
    pub(super) timeout_nanos: Option<u64>,
    #[prost(uint32, repeated, tag = "8")]
    pub(super) requires: Vec<u32>,
    #[prost(message, optional, tag = "9")]
    pub(super) demand: Option<Demand>,
    #[prost(bool, tag = "10")]
    pub(super) bound: bool,
    #[prost(bool, tag = "11")]
    pub(super) exclusive: bool,
    #[prost(bool, tag = "12")]
    pub(super) begins: bool,
    #[prost(bool, tag = "13")]
    pub(super) patient: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Demand {
    #[prost(uint32, repeated, tag = "1")]
    pub(super) resources: Vec<u32>,
    #[prost(uint64, repeated, tag = "2")]
    pub(super) amounts: Vec<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Worker {
    #[prost(uint64, tag = "1")]
    pub(super) tag: u64,
    #[prost(uint32, repeated, tag = "2")]
    pub(super) capabilities: Vec<u32>,
    /// In the order of their ids.
    #[prost(uint64, repeated, tag = "3")]
    pub(super) amounts: Vec<u64>,
    #[prost(uint32, tag = "4")]
    pub(super) slots: u32,
    #[prost(double, tag = "5")]
    pub(super) speed: f64,
    #[prost(double, tag = "6")]
    pub(super) cost_rate: f64,
    #[prost(double, tag = "7")]
    pub(super) weight: f64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Hello {
    #[prost(message, optional, tag = "1")]
    pub(super) worker: Option<Worker>,
    #[prost(uint64, optional, tag = "2")]
    pub(super) known: Option<u64>,
    #[prost(message, optional, tag = "3")]
    pub(super) holds: Option<Helds>,
    #[prost(uint64, tag = "4")]
    pub(super) sent_nanos: u64,
    #[prost(uint64, tag = "5")]
    pub(super) born_nanos: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Welcome {
    #[prost(uint64, tag = "1")]
    pub(super) worker: u64,
    #[prost(uint64, tag = "2")]
    pub(super) sent_nanos: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Beat {
    #[prost(double, tag = "1")]
    pub(super) cpu: f64,
    #[prost(double, tag = "2")]
    pub(super) memory: f64,
    #[prost(uint32, tag = "3")]
    pub(super) depth: u32,
    #[prost(uint64, tag = "4")]
    pub(super) backlog_nanos: u64,
    #[prost(uint32, tag = "5")]
    pub(super) wants: u32,
    #[prost(uint32, tag = "6")]
    pub(super) holds: u32,
    #[prost(fixed64, tag = "7")]
    pub(super) fingerprint: u64,
    #[prost(uint64, tag = "8")]
    pub(super) sent_nanos: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Heard {
    #[prost(uint64, tag = "1")]
    pub(super) sent_nanos: u64,
    #[prost(bool, tag = "2")]
    pub(super) nothing: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Want {
    #[prost(uint32, tag = "1")]
    pub(super) count: u32,
    #[prost(uint64, tag = "2")]
    pub(super) sent_nanos: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Nothing {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Show {
    #[prost(uint64, tag = "1")]
    pub(super) number: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Holds {
    #[prost(uint64, tag = "1")]
    pub(super) number: u64,
    #[prost(uint64, tag = "2")]
    pub(super) seen: u64,
    #[prost(message, optional, tag = "3")]
    pub(super) holds: Option<Helds>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Digest {
    #[prost(uint64, repeated, tag = "1")]
    pub(super) workers: Vec<u64>,
    #[prost(uint32, repeated, tag = "2")]
    pub(super) depths: Vec<u32>,
    #[prost(uint64, repeated, tag = "3")]
    pub(super) backlog_nanos: Vec<u64>,
    #[prost(double, repeated, tag = "4")]
    pub(super) loads: Vec<f64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Ask {
    #[prost(uint64, tag = "1")]
    pub(super) request: u64,
    #[prost(uint32, repeated, tag = "2")]
    pub(super) capabilities: Vec<u32>,
    #[prost(uint64, repeated, tag = "3")]
    pub(super) amounts: Vec<u64>,
    #[prost(double, tag = "4")]
    pub(super) speed: f64,
    #[prost(uint32, tag = "5")]
    pub(super) free: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Refuse {
    #[prost(uint64, tag = "1")]
    pub(super) request: u64,
    #[prost(uint32, tag = "2")]
    pub(super) reason: u32,
    #[prost(uint32, tag = "3")]
    pub(super) depth: u32,
}

/// The records of one commit.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Group {
    #[prost(message, repeated, tag = "1")]
    pub(super) batches: Vec<RecordBatch>,
}

/// Records of one sort that follow each other.
#[derive(Clone, PartialEq, Message)]
pub(super) struct RecordBatch {
    #[prost(oneof = "RecordSort", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14")]
    pub(super) sort: Option<RecordSort>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum RecordSort {
    #[prost(message, tag = "1")]
    Joined(Joined),
    #[prost(message, tag = "2")]
    Left(Left),
    #[prost(message, tag = "3")]
    Opened(Opened),
    #[prost(message, tag = "4")]
    Closed(Closed),
    #[prost(message, tag = "5")]
    Submitted(Submitted),
    #[prost(message, tag = "6")]
    Member(Member),
    #[prost(message, tag = "7")]
    After(After),
    #[prost(message, boxed, tag = "8")]
    ArraySubmitted(Box<ArraySubmitted>),
    #[prost(message, tag = "9")]
    Assigned(Assigned),
    #[prost(message, tag = "10")]
    Retrying(Retrying),
    #[prost(message, tag = "11")]
    Settled(Settled),
    #[prost(message, tag = "12")]
    Element(Element),
    #[prost(message, tag = "13")]
    ElementsSettled(ElementsSettled),
    #[prost(message, tag = "14")]
    KeyLimit(KeyLimit),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Joined {
    #[prost(uint64, tag = "1")]
    pub(super) worker: u64,
    #[prost(uint64, tag = "2")]
    pub(super) tag: u64,
    #[prost(message, optional, tag = "3")]
    pub(super) spec: Option<Worker>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Left {
    #[prost(uint64, tag = "1")]
    pub(super) worker: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Opened {
    #[prost(uint64, tag = "1")]
    pub(super) job: u64,
    #[prost(double, tag = "2")]
    pub(super) weight: f64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Closed {
    #[prost(uint64, tag = "1")]
    pub(super) job: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Submitted {
    #[prost(sint64, repeated, tag = "1")]
    pub(super) task_steps: Vec<i64>,
    #[prost(sint64, repeated, tag = "2")]
    pub(super) payload_steps: Vec<i64>,
    #[prost(sint64, repeated, tag = "3")]
    pub(super) at_steps: Vec<i64>,
    /// Which description each has; nothing at all if none is stored.
    #[prost(uint32, repeated, tag = "4")]
    pub(super) specs_used: Vec<u32>,
    #[prost(message, repeated, tag = "5")]
    pub(super) specs: Vec<Task>,
}

/// A task's description, its handle aside.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Task {
    #[prost(uint32, tag = "1")]
    pub(super) kind: u32,
    #[prost(uint32, tag = "2")]
    pub(super) task_type: u32,
    #[prost(uint32, tag = "3")]
    pub(super) priority: u32,
    #[prost(uint32, repeated, tag = "4")]
    pub(super) requires: Vec<u32>,
    #[prost(uint32, repeated, tag = "5")]
    pub(super) skills: Vec<u32>,
    #[prost(message, optional, tag = "6")]
    pub(super) demand: Option<Demand>,
    #[prost(uint32, optional, tag = "7")]
    pub(super) key: Option<u32>,
    #[prost(bool, tag = "8")]
    pub(super) exclusive: bool,
    #[prost(bool, tag = "9")]
    pub(super) idempotent: bool,
    #[prost(uint64, optional, tag = "10")]
    pub(super) estimate_nanos: Option<u64>,
    #[prost(uint64, optional, tag = "11")]
    pub(super) deadline_nanos: Option<u64>,
    #[prost(uint64, optional, tag = "12")]
    pub(super) timeout_nanos: Option<u64>,
    #[prost(message, optional, tag = "13")]
    pub(super) retry: Option<Retry>,
    #[prost(uint32, repeated, tag = "14")]
    pub(super) affinities: Vec<u32>,
    #[prost(uint64, repeated, tag = "15")]
    pub(super) saved_nanos: Vec<u64>,
    #[prost(uint64, optional, tag = "16")]
    pub(super) pin: Option<u64>,
    #[prost(uint64, optional, tag = "17")]
    pub(super) seeded: Option<u64>,
    #[prost(uint64, optional, tag = "18")]
    pub(super) parent: Option<u64>,
    #[prost(uint64, repeated, tag = "19")]
    pub(super) after: Vec<u64>,
    #[prost(uint32, tag = "20")]
    pub(super) on_parent_failure: u32,
    #[prost(uint64, optional, tag = "21")]
    pub(super) job: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Retry {
    #[prost(uint32, tag = "1")]
    pub(super) max_retries: u32,
    #[prost(uint64, tag = "2")]
    pub(super) backoff_nanos: u64,
    #[prost(uint64, tag = "3")]
    pub(super) backoff_max_nanos: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Member {
    #[prost(sint64, repeated, tag = "1")]
    pub(super) task_steps: Vec<i64>,
    #[prost(uint64, repeated, tag = "2")]
    pub(super) jobs: Vec<u64>,
    #[prost(sint64, repeated, tag = "3")]
    pub(super) index_steps: Vec<i64>,
    #[prost(uint32, repeated, tag = "4")]
    pub(super) ranks: Vec<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct After {
    #[prost(sint64, repeated, tag = "1")]
    pub(super) task_steps: Vec<i64>,
    #[prost(sint64, repeated, tag = "2")]
    pub(super) parent_steps: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ArraySubmitted {
    #[prost(uint64, tag = "1")]
    pub(super) job: u64,
    #[prost(uint32, tag = "2")]
    pub(super) count: u32,
    #[prost(uint64, tag = "3")]
    pub(super) payload: u64,
    #[prost(uint64, tag = "4")]
    pub(super) at_nanos: u64,
    #[prost(message, optional, tag = "5")]
    pub(super) spec: Option<Task>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Element {
    #[prost(sint64, repeated, tag = "1")]
    pub(super) task_steps: Vec<i64>,
    #[prost(uint64, repeated, tag = "2")]
    pub(super) jobs: Vec<u64>,
    #[prost(sint64, repeated, tag = "3")]
    pub(super) index_steps: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ElementsSettled {
    #[prost(uint64, tag = "1")]
    pub(super) job: u64,
    #[prost(uint32, tag = "2")]
    pub(super) from: u32,
    #[prost(uint32, tag = "3")]
    pub(super) to: u32,
    #[prost(uint32, tag = "4")]
    pub(super) status: u32,
    #[prost(uint32, tag = "5")]
    pub(super) cause: u32,
    #[prost(uint64, tag = "6")]
    pub(super) at_nanos: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct KeyLimit {
    #[prost(uint32, tag = "1")]
    pub(super) key: u32,
    #[prost(uint32, tag = "2")]
    pub(super) limit: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Assigned {
    #[prost(sint64, repeated, tag = "1")]
    pub(super) task_steps: Vec<i64>,
    #[prost(uint32, repeated, tag = "2")]
    pub(super) attempts: Vec<u32>,
    #[prost(uint64, repeated, tag = "3")]
    pub(super) workers: Vec<u64>,
    #[prost(sint64, repeated, tag = "4")]
    pub(super) at_steps: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Retrying {
    #[prost(sint64, repeated, tag = "1")]
    pub(super) task_steps: Vec<i64>,
    #[prost(uint32, repeated, tag = "2")]
    pub(super) attempts: Vec<u32>,
    #[prost(uint32, repeated, tag = "3")]
    pub(super) retries: Vec<u32>,
    #[prost(sint64, repeated, tag = "4")]
    pub(super) until_steps: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Settled {
    #[prost(sint64, repeated, tag = "1")]
    pub(super) task_steps: Vec<i64>,
    #[prost(uint32, repeated, tag = "2")]
    pub(super) attempts: Vec<u32>,
    #[prost(uint32, repeated, tag = "3")]
    pub(super) statuses: Vec<u32>,
    #[prost(uint32, repeated, tag = "4")]
    pub(super) causes: Vec<u32>,
    #[prost(sint64, repeated, tag = "5")]
    pub(super) at_steps: Vec<i64>,
}
