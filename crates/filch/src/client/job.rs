//! Jobs as they are submitted to a cluster.

use std::time::Duration;

use bytes::Bytes;
use filch_core::wire::talk::{
    Array, InputSort, NamedAmount, Part, Parts, Program, Submit, Terms, Variable, Words, Work,
};
use prost::Message as _;

/// A job to submit: one command or function, for one task or for many.
///
/// In the words of a command `{}` stands for the input of a task, or its number if it has none; `{n}` for its number. Every
/// program finds both in its environment too, as `FILCH_INPUT` and `FILCH_TASK`.
///
/// ```
/// use filch::client::Job;
/// use std::time::Duration;
///
/// let job = Job::shell("convert $FILCH_INPUT out-$FILCH_TASK.png")
///     .each(["one.jpg", "two.jpg"])
///     .cpus(2.0)
///     .timeout(Duration::from_secs(60))
///     .retries(2);
/// ```
#[derive(Clone, Debug)]
#[must_use = "a job does nothing until it is submitted"]
pub struct Job {
    name: String,
    work: Work,
    terms: Terms,
    count: u32,
    inputs: Vec<Bytes>,
    summary: String,
}

impl Job {
    fn of(program: Program, summary: String) -> Job {
        let work = Work { program: Some(program), placeholders: true, step: 1, ..Work::default() };
        Job { name: String::new(), work, terms: Terms::default(), count: 1, inputs: Vec::new(), summary }
    }

    /// A program and its arguments.
    pub fn command<S: AsRef<str>>(words: impl IntoIterator<Item = S>) -> Job {
        let words: Vec<String> = words.into_iter().map(|word| word.as_ref().to_owned()).collect();
        let summary = words.join(" ");
        let kind = words.first().map(|program| program.rsplit('/').next().unwrap_or_default().to_owned());
        let words = Words { words: words.into_iter().map(Bytes::from).collect() };
        let mut job = Job::of(Program::Argv(words), summary);
        job.terms.kind = kind.unwrap_or_default();
        job
    }

    /// A script for the shell.
    pub fn shell(script: impl Into<String>) -> Job {
        let script = script.into();
        Job::of(Program::Shell(Bytes::from(script.clone())), script)
    }

    /// A function that workers have registered.
    pub fn call(function: impl Into<String>, input: impl Into<Bytes>) -> Job {
        let function = function.into();
        let mut job = Job::of(Program::Call(function.clone()), function.clone());
        job.work.stdin = input.into();
        job.work.placeholders = false;
        job.terms.kind = function;
        job
    }

    /// So many tasks, numbered from `first`.
    pub fn array(mut self, first: i64, count: u32) -> Job {
        (self.work.first, self.count) = (first, count);
        self
    }

    /// A task for each of these.
    pub fn each<S: Into<String>>(mut self, inputs: impl IntoIterator<Item = S>) -> Job {
        self.inputs = inputs.into_iter().map(|input| Bytes::from(input.into())).collect();
        self.count = u32::try_from(self.inputs.len()).unwrap_or(u32::MAX);
        self.work.input = InputSort::Line as i32;
        self
    }

    /// What it is called.
    pub fn name(mut self, name: impl Into<String>) -> Job {
        self.name = name.into();
        self
    }

    /// History is learned per kind; by default that is the program or function.
    pub fn kind(mut self, kind: impl Into<String>) -> Job {
        self.terms.kind = kind.into();
        self
    }

    /// Cores that each task gets.
    pub fn cpus(self, cpus: f64) -> Job {
        self.resource("cpus", cpus)
    }

    /// Bytes of memory that each task gets.
    #[allow(clippy::cast_precision_loss)]
    pub fn memory(self, bytes: u64) -> Job {
        self.resource("memory", bytes as f64)
    }

    /// How much of a resource each task gets.
    pub fn resource(mut self, name: impl Into<String>, amount: f64) -> Job {
        self.terms.resources.push(NamedAmount { name: name.into(), amount });
        self
    }

    /// Something that a worker must be able to do.
    pub fn requires(mut self, capability: impl Into<String>) -> Job {
        self.terms.requires.push(capability.into());
        self
    }

    /// From 1 to 5; 3 is usual.
    pub fn priority(mut self, priority: u8) -> Job {
        self.terms.priority = Some(i64::from(priority));
        self
    }

    /// How long one attempt may run.
    pub fn timeout(mut self, limit: Duration) -> Job {
        self.terms.timeout_nanos = Some(nanos(limit));
        self
    }

    /// When its tasks should have ended, counted from the submission.
    pub fn deadline(mut self, within: Duration) -> Job {
        self.terms.deadline_in_nanos = Some(nanos(within));
        self
    }

    /// How often a task that failed is tried again.
    pub fn retries(mut self, retries: u32) -> Job {
        self.terms.retries = Some(retries);
        self
    }

    /// Tasks with this key never run together beyond its limit.
    pub fn key(mut self, key: impl Into<String>, limit: u32) -> Job {
        (self.terms.key, self.terms.key_limit) = (Some(key.into()), Some(limit));
        self
    }

    /// Tasks may safely be run again from the start.
    pub fn idempotent(mut self) -> Job {
        self.terms.idempotent = true;
        self
    }

    /// A variable of the environment of its programs.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Job {
        let (name, value) = (Bytes::from(name.into()), Bytes::from(value.into()));
        self.work.env.push(Variable { name, value });
        self
    }

    /// Where its programs run.
    pub fn directory(mut self, path: impl Into<String>) -> Job {
        self.work.cwd = Some(Bytes::from(path.into()));
        self
    }

    /// What its programs read.
    pub fn stdin(mut self, bytes: impl Into<Bytes>) -> Job {
        self.work.stdin = bytes.into();
        self
    }

    pub(super) fn into_submit(self) -> Submit {
        let Job { name, work, terms, count, inputs, summary } = self;
        let (first, step) = (work.first, 1);
        let part = Part { terms: Some(terms), work: work.encode_to_vec().into(), ..Part::default() };
        let array = Array { part: Some(part), count, inputs, first, step, ..Array::default() };
        Submit { name, parts: Some(Parts::Array(array)), summary, ..Submit::default() }
    }
}

fn nanos(duration: Duration) -> u64 {
    crate::span(duration).0
}
