//! What is asked of whoever runs a task: the same options on the command line and in a job file.

use filch_core::wire::talk::{NamedAmount, Terms, Work};
use schemars::JsonSchema;
use serde::Deserialize;

use super::amounts::{self, Key, Lasting, Size};

/// What a task needs and how it is treated.
#[derive(Clone, Debug, Default, PartialEq, clap::Args, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct TermArgs {
    /// Processor cores that a task takes; parts of one are allowed.
    #[arg(long, value_name = "N", value_parser = amounts::amount, help_heading = "What a task needs")]
    #[schemars(range(min = 0))]
    pub(crate) cpus: Option<f64>,
    /// Memory that a task takes, such as 2G. Reserved, not enforced: see --memory-limit.
    #[arg(long, value_name = "SIZE", help_heading = "What a task needs")]
    pub(crate) memory: Option<Size>,
    /// Accelerators that a task takes; parts of one are allowed.
    #[arg(long, value_name = "N", value_parser = amounts::amount, help_heading = "What a task needs")]
    #[schemars(range(min = 0))]
    pub(crate) gpus: Option<f64>,
    /// A capability that the worker must have; can be repeated.
    #[arg(long, value_name = "CAPABILITY", help_heading = "What a task needs")]
    pub(crate) requires: Vec<String>,
    /// A capability that the worker should have, matched as the configuration says; can be repeated.
    #[arg(long = "skill", value_name = "CAPABILITY", help_heading = "What a task needs")]
    pub(crate) skills: Vec<String>,
    /// Runs on this worker and no other.
    #[arg(long, value_name = "WORKER", help_heading = "What a task needs")]
    pub(crate) pin: Option<String>,
    /// Goes to the queue of this worker first; others may steal it from there. Can be repeated: then in turn.
    #[arg(long, value_name = "WORKER", num_args = 1, help_heading = "What a task needs")]
    pub(crate) to: Vec<String>,
    /// From 1 (least) to 5; tasks of 4 and 5 are never stolen.
    #[arg(long, value_name = "1-5", value_parser = amounts::priority, allow_negative_numbers = true, help_heading = "When it runs")]
    #[schemars(range(min = 1, max = 5))]
    pub(crate) priority: Option<i64>,
    /// A task should have ended after this time, counted from now.
    #[arg(long, value_name = "DURATION", value_parser = amounts::positive, help_heading = "When it runs")]
    pub(crate) deadline: Option<Lasting>,
    /// How long a task is expected to take.
    #[arg(long, value_name = "DURATION", help_heading = "When it runs")]
    pub(crate) estimate: Option<Lasting>,
    /// Tasks with the same key never run together, or at most LIMIT of them.
    #[arg(long, value_name = "NAME[=LIMIT]", value_parser = key, help_heading = "When it runs")]
    pub(crate) key: Option<String>,
    /// Must never run twice at once, not even while a worker is out of reach.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_possible_values = true, value_name = "true|false", help_heading = "When it runs")]
    pub(crate) exclusive: Option<bool>,
    /// How long one attempt may run; then it is asked to stop, and killed if it does not.
    #[arg(long, value_name = "DURATION", value_parser = amounts::positive, help_heading = "When it fails")]
    pub(crate) timeout: Option<Lasting>,
    /// How often a task is tried again after a failure.
    #[arg(long, value_name = "N", help_heading = "When it fails")]
    pub(crate) retries: Option<u32>,
    /// The pause before the first retry; each further one is twice as long.
    #[arg(long, value_name = "DURATION", help_heading = "When it fails")]
    pub(crate) backoff: Option<Lasting>,
    /// The longest pause before a retry.
    #[arg(long, value_name = "DURATION", help_heading = "When it fails")]
    pub(crate) backoff_max: Option<Lasting>,
    /// May safely be run again from the start: it can be moved while it runs, and copied if it lags behind.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_possible_values = true, value_name = "true|false", help_heading = "When it fails")]
    pub(crate) idempotent: Option<bool>,
    /// Bytes of memory that each process of a task may have, enforced by the system.
    #[arg(long, value_name = "SIZE", help_heading = "When it fails")]
    pub(crate) memory_limit: Option<Size>,
    /// Processor time that each process of a task may take, enforced by the system.
    #[arg(long, value_name = "DURATION", value_parser = amounts::positive, help_heading = "When it fails")]
    pub(crate) cpu_limit: Option<Lasting>,
    /// Durations are learned per kind; the name of the program if nothing is said.
    #[arg(long, value_name = "NAME", help_heading = "What it is")]
    pub(crate) kind: Option<String>,
    /// Selects the placement policy that the configuration has for this type of task.
    #[arg(long = "type", value_name = "NAME", help_heading = "What it is")]
    #[serde(rename = "type")]
    pub(crate) task_type: Option<String>,
    /// Bytes of each output of a task that are kept: half from its beginning, half from its end. 1M for `filch run`, 64K for
    /// `filch submit` if nothing is said, and at most 16M.
    #[arg(long, value_name = "SIZE", help_heading = "What it is")]
    pub(crate) keep: Option<Size>,
}

fn key(text: &str) -> Result<String, String> {
    text.parse::<Key>().map(|_| text.to_owned())
}

/// The most of an output that can be kept: it travels in one piece.
const MOST_KEPT: u64 = 16 << 20;

impl TermArgs {
    /// These, and what `usual` says where these say nothing.
    pub(crate) fn or(self, usual: &TermArgs) -> TermArgs {
        let list = |own: Vec<String>, usual: &[String]| if own.is_empty() { usual.to_vec() } else { own };
        TermArgs {
            cpus: self.cpus.or(usual.cpus),
            memory: self.memory.or_else(|| usual.memory.clone()),
            gpus: self.gpus.or(usual.gpus),
            requires: list(self.requires, &usual.requires),
            skills: list(self.skills, &usual.skills),
            pin: self.pin.or_else(|| usual.pin.clone()),
            to: list(self.to, &usual.to),
            priority: self.priority.or(usual.priority),
            deadline: self.deadline.or(usual.deadline),
            estimate: self.estimate.or(usual.estimate),
            key: self.key.or_else(|| usual.key.clone()),
            exclusive: self.exclusive.or(usual.exclusive),
            timeout: self.timeout.or(usual.timeout),
            retries: self.retries.or(usual.retries),
            backoff: self.backoff.or(usual.backoff),
            backoff_max: self.backoff_max.or(usual.backoff_max),
            idempotent: self.idempotent.or(usual.idempotent),
            memory_limit: self.memory_limit.or_else(|| usual.memory_limit.clone()),
            cpu_limit: self.cpu_limit.or(usual.cpu_limit),
            kind: self.kind.or_else(|| usual.kind.clone()),
            task_type: self.task_type.or_else(|| usual.task_type.clone()),
            keep: self.keep.or_else(|| usual.keep.clone()),
        }
    }

    /// What is wrong with it: the option, as a job file calls it, and why.
    pub(crate) fn wrong(&self) -> Vec<(&'static str, String)> {
        let mut wrong = Vec::new();
        for (name, size) in [("memory", &self.memory), ("memory_limit", &self.memory_limit), ("keep", &self.keep)] {
            wrong.extend(size.as_ref().and_then(|size| size.bytes().err()).map(|why| (name, why)));
        }
        if let Some(why) = self.key.as_ref().and_then(|key| key.parse::<Key>().err()) {
            wrong.push(("key", why));
        }
        if size(self.keep.as_ref()).is_some_and(|keep| keep > MOST_KEPT) {
            wrong.push(("keep", format!("at most {}M of an output can be kept", MOST_KEPT >> 20)));
        }
        if self.pin.is_some() && !self.to.is_empty() {
            wrong.push(("pin", "a task is pinned to one worker or goes to others first, not both".to_owned()));
        }
        wrong
    }

    /// As the coordinator is told. `program` is the kind of tasks that have none.
    pub(crate) fn terms(&self, program: &str, resources: &[(String, f64)]) -> Terms {
        let key = self.key.as_ref().and_then(|key| key.parse::<Key>().ok());
        let (key, key_limit) = key.map_or((None, None), |key| (Some(key.name), key.limit));
        let nanos = |lasting: Option<Lasting>| lasting.map(|lasting| lasting.0.0);
        Terms {
            kind: self.kind.clone().unwrap_or_else(|| program.to_owned()),
            task_type: self.task_type.clone().unwrap_or_default(),
            priority: self.priority,
            requires: self.requires.clone(),
            skills: self.skills.clone(),
            resources: self.resources(resources),
            key,
            key_limit,
            exclusive: self.exclusive.unwrap_or_default(),
            idempotent: self.idempotent.unwrap_or_default(),
            estimate_nanos: nanos(self.estimate),
            deadline_in_nanos: nanos(self.deadline),
            timeout_nanos: nanos(self.timeout),
            retries: self.retries,
            backoff_nanos: nanos(self.backoff),
            backoff_max_nanos: nanos(self.backoff_max),
            pin: self.pin.clone(),
            to: self.to.clone(),
            ..Terms::default()
        }
    }

    fn resources(&self, more: &[(String, f64)]) -> Vec<NamedAmount> {
        let memory = size(self.memory.as_ref()).map(|bytes| bytes as f64);
        let known = [("cpus", self.cpus), ("memory", memory), ("gpus", self.gpus)];
        let known = known.into_iter().filter_map(|(name, amount)| Some((name.to_owned(), amount?)));
        known.chain(more.iter().cloned()).map(|(name, amount)| NamedAmount { name, amount }).collect()
    }

    /// The limits of its processes.
    pub(crate) fn limit(&self, work: &mut Work) {
        work.memory_limit = size(self.memory_limit.as_ref());
        work.cpu_limit_nanos = self.cpu_limit.map(|lasting| lasting.0.0);
        work.keep = size(self.keep.as_ref());
    }
}

/// The bytes of a size that was looked at before.
fn size(size: Option<&Size>) -> Option<u64> {
    size.and_then(|size| size.bytes().ok())
}
