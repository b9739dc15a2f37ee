//! What a coordinator writes.

use bytes::Bytes;
use prost::Message;

use super::{Numbers, Places, Progress};

/// What a coordinator writes at once: the records of the machine, and what drivers must know beside them.
#[derive(Clone, PartialEq, Message)]
pub struct Page {
    /// A [`Group`](super::Group) of records, if there are any.
    #[prost(bytes = "bytes", tag = "1")]
    pub records: Bytes,
    /// Names that were given numbers, in order.
    #[prost(message, repeated, tag = "2")]
    pub names: Vec<NewName>,
    /// Jobs that were opened.
    #[prost(message, repeated, tag = "3")]
    pub jobs: Vec<JobCard>,
    /// Workers that joined.
    #[prost(message, repeated, tag = "4")]
    pub workers: Vec<WorkerNote>,
    /// Attempts that ended: what is known of them beside the record.
    #[prost(message, optional, tag = "5")]
    pub ends: Option<Ends>,
    /// Submissions that said how they are numbered by their submitter.
    #[prost(message, repeated, tag = "6")]
    pub keys: Vec<KeyNote>,
    /// No blob with this number or a higher one was put before.
    #[prost(uint64, tag = "7")]
    pub next_blob: u64,
    /// The number of the latest job. Only in snapshots.
    #[prost(uint64, tag = "8")]
    pub last_job: u64,
    /// Workers that have left, so that who joins under the name of one is known for it. Only in snapshots.
    #[prost(message, repeated, tag = "9")]
    pub past: Vec<WorkerNote>,
}

/// A name was given the next number of its sort.
#[derive(Clone, PartialEq, Message)]
pub struct NewName {
    /// Which sort, as in [`Sort::ALL`](crate::names::Sort::ALL).
    #[prost(uint32, tag = "1")]
    pub sort: u32,
    /// The name.
    #[prost(string, tag = "2")]
    pub name: String,
}

/// A job was opened.
#[derive(Clone, PartialEq, Message)]
pub struct JobCard {
    /// Its number for people.
    #[prost(uint64, tag = "1")]
    pub number: u64,
    /// Its id in the machine.
    #[prost(uint64, tag = "2")]
    pub job: u64,
    /// Its name.
    #[prost(string, tag = "3")]
    pub name: String,
    /// When it was submitted, in nanoseconds since 1970.
    #[prost(uint64, tag = "4")]
    pub at: u64,
    /// Tasks it had then.
    #[prost(uint64, tag = "5")]
    pub total: u64,
    /// The number of its first element.
    #[prost(sint64, tag = "6")]
    pub first: i64,
    /// From one element to the next.
    #[prost(sint64, tag = "7")]
    pub step: i64,
    /// The command in words.
    #[prost(string, tag = "8")]
    pub summary: String,
    /// The handle of the body that its tasks share; 0 if each has its own.
    #[prost(uint64, tag = "10")]
    pub handle: u64,
    /// Whether its tasks are elements of an array, which become tasks when they are handed out.
    #[prost(bool, tag = "11")]
    pub lazy: bool,
    /// Where its submission is kept.
    #[prost(uint64, tag = "12")]
    pub submission: u64,
    /// Whether each of its elements has an input; they are in the submission.
    #[prost(bool, tag = "15")]
    pub has_inputs: bool,
    /// How it went so far. Only in snapshots.
    #[prost(message, optional, tag = "14")]
    pub progress: Option<Progress>,
    /// Names of its tasks, where they have some.
    #[prost(string, repeated, tag = "13")]
    pub task_names: Vec<String>,
    /// As in [`Array`](super::Array).
    #[prost(uint32, repeated, tag = "16")]
    pub places: Vec<u32>,
}

impl JobCard {
    /// How its tasks are numbered.
    #[must_use]
    pub fn numbers(&self) -> Numbers {
        // What is no list of places was refused before.
        let places = if self.places.is_empty() { None } else { Places::read(&self.places) };
        Numbers::new(self.first, self.step, places)
    }
}

/// A worker joined.
#[derive(Clone, PartialEq, Message)]
pub struct WorkerNote {
    /// Its id.
    #[prost(uint64, tag = "1")]
    pub worker: u64,
    /// Its name.
    #[prost(string, tag = "2")]
    pub name: String,
}

/// Attempts that ended, in columns.
#[derive(Clone, PartialEq, Message)]
pub struct Ends {
    /// Which tasks, each as the difference from the one before.
    #[prost(sint64, repeated, tag = "1")]
    pub task_steps: Vec<i64>,
    /// Which attempts, likewise.
    #[prost(sint64, repeated, tag = "2")]
    pub attempt_steps: Vec<i64>,
    /// How long they ran.
    #[prost(uint64, repeated, tag = "3")]
    pub ran_nanos: Vec<u64>,
    /// Who ran them, each as the difference from the one before.
    #[prost(sint64, repeated, tag = "4")]
    pub worker_steps: Vec<i64>,
    /// Where their endings are kept; 0 where there is none. Empty if no attempt has one.
    #[prost(uint64, repeated, tag = "5")]
    pub endings: Vec<u64>,
    /// When they began, each as the difference from the one before, in nanoseconds since 1970.
    #[prost(sint64, repeated, tag = "6")]
    pub began_steps: Vec<i64>,
}

/// Something was submitted under a key.
#[derive(Clone, PartialEq, Message)]
pub struct KeyNote {
    /// The key.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    /// The task, if it was a single one.
    #[prost(uint64, tag = "2")]
    pub task: u64,
    /// The number of the job, if it was one.
    #[prost(uint64, tag = "3")]
    pub job: u64,
    /// The handle of a single task, which its past is found under.
    #[prost(uint64, tag = "4")]
    pub handle: u64,
}
