//! Tasks as their submitter describes them: with names, and with something to be done.

use std::sync::Arc;
use std::time::Duration;

use filch_core::{JobId, ParentFailure, Priority, TaskId, TaskSpec, Time, terms};

use crate::assignment::AttemptId;
use crate::config::Retry;
use crate::error::Error;
use crate::names::NameBook;
use crate::span;
use crate::worker::WorkerName;

/// A task to submit: what is to be done, and what is asked of whoever does it.
///
/// Clones share the payload, so a task can be kept and submitted again without copying it.
///
/// ```
/// use std::time::Duration;
/// use filch::Task;
///
/// let render = Task::named("frame-17")
///     .payload("scene.blend".to_owned())
///     .kind("render")
///     .requires("blender")
///     .resource("gpus", 1.0)
///     .priority(4)
///     .timeout(Duration::from_secs(600))
///     .retries(2);
/// assert_eq!(render.id(), Some("frame-17"));
/// ```
#[derive(Debug)]
pub struct Task<T = ()> {
    pub(crate) payload: Arc<T>,
    /// Most tasks of a long queue ask for nothing special and have none.
    pub(crate) details: Option<Arc<Details>>,
}

impl<T> Clone for Task<T> {
    fn clone(&self) -> Self {
        Task { payload: Arc::clone(&self.payload), details: self.details.clone() }
    }
}

/// What a task asks for beyond being run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Details {
    pub(crate) name: Option<Arc<str>>,
    kind: Option<String>,
    task_type: Option<String>,
    priority: Option<PriorityValue>,
    requires: Vec<String>,
    skills: Vec<String>,
    resources: Vec<(String, f64)>,
    key: Option<String>,
    exclusive: bool,
    idempotent: bool,
    estimate: Option<Duration>,
    deadline: Option<Deadline>,
    timeout: Option<Duration>,
    retries: Option<u32>,
    backoff: Option<(Duration, Duration)>,
    affinity: Vec<(String, Duration)>,
    pub(crate) pin: Option<WorkerName>,
    pub(crate) after: Vec<Dependency>,
    pub(crate) parent: Option<TaskName>,
    on_parent_failure: ParentFailure,
    pub(crate) job: Option<JobId>,
}

#[derive(Clone, Copy, Debug)]
enum Deadline {
    /// Counted from the submission.
    In(Duration),
    /// As it was fixed by the first submission.
    At(Time),
}

/// A priority as a caller gives it: a whole number from 1 to 5, or any score, which is rounded to the nearest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PriorityValue {
    /// A whole number; anything but 1 to 5 is refused when the task is submitted.
    Level(i64),
    /// A score; values beyond 1 and 5 count as these, an undefined one is refused.
    Score(f64),
}

impl PriorityValue {
    fn resolve(self) -> Result<Priority, Error> {
        match self {
            PriorityValue::Level(level) => Ok(terms::priority(level)?),
            PriorityValue::Score(score) if score.is_nan() => Err(terms::no_priority(score).into()),
            PriorityValue::Score(score) => Ok(Priority::from_f64(score)),
        }
    }
}

macro_rules! priority_from {
    ($($number:ty),+) => {
        $(impl From<$number> for PriorityValue {
            fn from(value: $number) -> Self {
                PriorityValue::Level(i64::from(value))
            }
        })+
    };
}
priority_from!(u8, u32, i32, i64);

impl From<f64> for PriorityValue {
    fn from(value: f64) -> Self {
        PriorityValue::Score(value)
    }
}

impl From<Priority> for PriorityValue {
    fn from(value: Priority) -> Self {
        PriorityValue::Level(i64::from(value.get()))
    }
}

/// A task as a caller names it: by the id it got when it was submitted, or by its own name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskName {
    /// By the number the balancer gave it.
    Id(TaskId),
    /// By the name its submitter gave it.
    Name(Arc<str>),
}

impl std::fmt::Display for TaskName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TaskName::Id(id) => id.fmt(f),
            TaskName::Name(name) => f.write_str(name),
        }
    }
}

impl From<TaskId> for TaskName {
    fn from(id: TaskId) -> Self {
        TaskName::Id(id)
    }
}

impl From<&str> for TaskName {
    fn from(name: &str) -> Self {
        TaskName::Name(name.into())
    }
}

impl From<&String> for TaskName {
    fn from(name: &String) -> Self {
        TaskName::Name(name.as_str().into())
    }
}

impl From<String> for TaskName {
    fn from(name: String) -> Self {
        TaskName::Name(name.into())
    }
}

/// What a report by id is about: a task, and which attempt of it if the reporter knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reported {
    pub(crate) task: TaskName,
    pub(crate) attempt: Option<u32>,
}

impl From<AttemptId> for Reported {
    fn from(id: AttemptId) -> Self {
        Reported { task: TaskName::Id(id.task), attempt: Some(id.attempt) }
    }
}

macro_rules! reported_from {
    ($($name:ty),+) => {
        $(impl From<$name> for Reported {
            fn from(name: $name) -> Self {
                Reported { task: name.into(), attempt: None }
            }
        })+
    };
}
reported_from!(TaskName, TaskId, &str, &String, String);

/// A task that another one waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dependency {
    /// One that was submitted before, or one of the same graph by its name.
    Task(TaskName),
    /// One of the same graph, by its position in the submission.
    Position(usize),
}

impl std::fmt::Display for Dependency {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Dependency::Task(task) => task.fmt(f),
            Dependency::Position(at) => write!(f, "#{at}"),
        }
    }
}

impl From<usize> for Dependency {
    fn from(at: usize) -> Self {
        Dependency::Position(at)
    }
}

macro_rules! dependency_from {
    ($($name:ty),+) => {
        $(impl From<$name> for Dependency {
            fn from(name: $name) -> Self {
                Dependency::Task(name.into())
            }
        })+
    };
}
dependency_from!(TaskId, &str, &String, String);

impl From<&TaskId> for Dependency {
    fn from(id: &TaskId) -> Self {
        Dependency::Task(TaskName::Id(*id))
    }
}

impl Default for Task<()> {
    fn default() -> Self {
        Task::new()
    }
}

impl Task<()> {
    /// A task without a name and without a payload.
    #[must_use]
    pub fn new() -> Task<()> {
        Task { payload: Arc::new(()), details: None }
    }

    /// A task that can be found by this name, which must not be empty. No two tasks that are not settled may share one.
    #[must_use]
    pub fn named(id: impl Into<String>) -> Task<()> {
        let name: String = id.into();
        Task::new().with(|details| details.name = Some(name.into()))
    }
}

impl<T> Task<T> {
    /// A task without a name that carries `payload`.
    #[must_use]
    pub fn with_payload(payload: T) -> Task<T> {
        Task { payload: Arc::new(payload), details: None }
    }

    /// The same task with another payload: whatever the one who runs it needs to know.
    #[must_use]
    pub fn payload<U>(self, payload: U) -> Task<U> {
        Task { payload: Arc::new(payload), details: self.details }
    }

    /// The name it was given.
    #[must_use]
    pub fn id(&self) -> Option<&str> {
        self.details.as_ref()?.name.as_deref()
    }

    /// What it carries.
    #[must_use]
    pub fn payload_ref(&self) -> &T {
        &self.payload
    }

    fn with(mut self, change: impl FnOnce(&mut Details)) -> Self {
        change(Arc::make_mut(self.details.get_or_insert_default()));
        self
    }

    /// What it is; durations and success are learned per kind. Empty is the same as none.
    #[must_use]
    pub fn kind(self, kind: impl Into<String>) -> Self {
        self.with(|details| details.kind = Some(kind.into()))
    }

    /// Its type, which selects a placement policy of its own where one is set for it. Empty is the same as none.
    #[must_use]
    pub fn task_type(self, task_type: impl Into<String>) -> Self {
        self.with(|details| details.task_type = Some(task_type.into()))
    }

    /// How important it is: 1 (least) to 5; 3 unless given. A float is rounded to the nearest.
    #[must_use]
    pub fn priority(self, priority: impl Into<PriorityValue>) -> Self {
        self.with(|details| details.priority = Some(priority.into()))
    }

    /// A capability its worker must have.
    #[must_use]
    pub fn requires(self, capability: impl Into<String>) -> Self {
        self.with(|details| details.requires.push(capability.into()))
    }

    /// Capabilities that are matched by the configured strategy.
    #[must_use]
    pub fn skills<S: Into<String>>(self, skills: impl IntoIterator<Item = S>) -> Self {
        self.with(|details| details.skills.extend(skills.into_iter().map(Into::into)))
    }

    /// How much of a resource is reserved for it while it runs, in steps of 0.0001. Of `gpus` either a share below 1,
    /// which is given from one device, or a whole number.
    #[must_use]
    pub fn resource(self, name: impl Into<String>, amount: f64) -> Self {
        self.with(|details| details.resources.push((name.into(), amount)))
    }

    /// Tasks with the same key never run together, beyond the limit of the key (1 unless set).
    #[must_use]
    pub fn key(self, key: impl Into<String>) -> Self {
        self.with(|details| details.key = Some(key.into()))
    }

    /// It must never run twice at once, not even for a moment after a failure.
    #[must_use]
    pub fn exclusive(self, exclusive: bool) -> Self {
        self.with(|details| details.exclusive = exclusive)
    }

    /// It may safely be stopped and run again from the start.
    #[must_use]
    pub fn idempotent(self, idempotent: bool) -> Self {
        self.with(|details| details.idempotent = idempotent)
    }

    /// How long it should take; zero says nothing.
    #[must_use]
    pub fn estimate(self, estimate: Duration) -> Self {
        self.with(|details| details.estimate = Some(estimate))
    }

    /// How long after its submission it should have ended.
    #[must_use]
    pub fn deadline(self, from_now: Duration) -> Self {
        self.with(|details| details.deadline = Some(Deadline::In(from_now)))
    }

    /// How long one attempt may run.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        self.with(|details| details.timeout = Some(timeout))
    }

    /// How often it is tried again after a failure, instead of as often as configured.
    #[must_use]
    pub fn retries(self, most: u32) -> Self {
        self.with(|details| details.retries = Some(most))
    }

    /// The pause before the first retry, doubled each time, and the longest pause, instead of the configured ones. The
    /// longest must not be the shorter one.
    #[must_use]
    pub fn backoff(self, first: Duration, longest: Duration) -> Self {
        self.with(|details| details.backoff = Some((first, longest)))
    }

    /// Something it uses; on a worker that has used it lately the task takes so much less time.
    #[must_use]
    pub fn affinity(self, key: impl Into<String>, saved: Duration) -> Self {
        self.with(|details| details.affinity.push((key.into(), saved)))
    }

    /// Runs on this worker and no other.
    #[must_use]
    pub fn pin(self, worker: impl Into<WorkerName>) -> Self {
        self.with(|details| details.pin = Some(worker.into()))
    }

    /// Tasks that must end well first: by id, by name or, in a graph, by position.
    #[must_use]
    pub fn after<D: Into<Dependency>>(self, parents: impl IntoIterator<Item = D>) -> Self {
        self.with(|details| details.after.extend(parents.into_iter().map(Into::into)))
    }

    /// What becomes of it if one of those does not end well.
    #[must_use]
    pub fn on_parent_failure(self, choice: ParentFailure) -> Self {
        self.with(|details| details.on_parent_failure = choice)
    }

    /// The task that spawned it, which must not be settled yet; see [`Balancer::spawn`](crate::Balancer::spawn).
    #[must_use]
    pub fn parent(self, parent: impl Into<TaskName>) -> Self {
        self.with(|details| details.parent = Some(parent.into()))
    }

    /// The open job it is added to.
    #[must_use]
    pub fn job(self, job: JobId) -> Self {
        self.with(|details| details.job = Some(job))
    }

    /// The task as it can be submitted again after its worker left: what it waited for is over.
    pub(crate) fn returned(self) -> Self {
        let Some(details) = &self.details else { return self };
        if details.after.is_empty() && details.parent.is_none() && details.pin.is_none() && details.job.is_none() {
            return self;
        }
        self.with(|details| {
            details.after.clear();
            details.parent = None;
            details.pin = None;
            details.job = None;
        })
    }
}

impl Details {
    /// The deadline counts from now on, also for a task that is submitted again.
    pub(crate) fn fix_deadline(details: &mut Arc<Details>, now: impl FnOnce() -> Time) {
        if let Some(Deadline::In(from_now)) = details.deadline {
            Arc::make_mut(details).deadline = Some(Deadline::At(now() + span(from_now)));
        }
    }

    /// The task as the core sees it, but for other tasks, workers and jobs, which only the balancer's state knows.
    pub(crate) fn spec(&self, names: &NameBook, retry: &Retry) -> Result<TaskSpec, Error> {
        if self.name.as_ref().is_some_and(|name| name.is_empty()) {
            return Err(Error::Invalid("the name of a task must not be empty; leave it out instead".to_owned()));
        }
        let (first, longest) = self.backoff.map(|(first, longest)| (span(first), span(longest))).unzip();
        let mut spec = TaskSpec {
            retry: terms::retry_terms(self.retries, first, longest, retry)?,
            requires: names.capabilities(&self.requires)?,
            skills: names.capabilities(&self.skills)?,
            demand: names.demand(&self.resources)?,
            exclusive: self.exclusive,
            idempotent: self.idempotent,
            estimate: self.estimate.map(span),
            timeout: self.timeout.map(span),
            on_parent_failure: self.on_parent_failure,
            job: self.job,
            ..TaskSpec::default()
        };
        if let Some(kind) = &self.kind {
            spec.kind = names.kind(kind)?;
        }
        if let Some(task_type) = &self.task_type {
            spec.task_type = names.task_type(task_type)?;
        }
        if let Some(priority) = self.priority {
            spec.priority = priority.resolve()?;
        }
        if let Some(key) = &self.key {
            spec.key = Some(names.key(key)?);
        }
        if let Some(Deadline::At(at)) = self.deadline {
            spec.deadline = Some(at);
        }
        for (key, saved) in &self.affinity {
            spec.affinity.push((names.affinity(key)?, span(*saved)));
        }
        Ok(spec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_are_levels_or_scores_and_nonsense_is_refused() {
        for (value, level) in [(PriorityValue::from(1), 1), (PriorityValue::from(5u8), 5), (3.6.into(), 4)] {
            assert_eq!(value.resolve().unwrap().get(), level);
        }
        assert_eq!(PriorityValue::from(99.0).resolve().unwrap(), Priority::MAX);
        assert_eq!(PriorityValue::from(-99.0).resolve().unwrap(), Priority::MIN);
        for value in [PriorityValue::from(0), PriorityValue::from(6), (-1).into(), f64::NAN.into()] {
            let error = value.resolve().unwrap_err();
            assert!(error.to_string().starts_with("a priority is a number from 1 (least) to 5, not "), "{error}");
        }
    }

    #[test]
    fn retries_without_pauses_of_their_own_use_the_configured_ones() {
        let (names, retry) = (NameBook::default(), Retry { max_retries: 7, ..Retry::default() });
        let terms = |task: Task| task.details.unwrap().spec(&names, &retry).unwrap().retry.unwrap();
        let two = terms(Task::new().retries(2));
        assert_eq!((two.max_retries, two.backoff, two.backoff_max), (2, retry.backoff, retry.backoff_max));
        let quick = terms(Task::new().backoff(Duration::from_millis(1), Duration::from_millis(9)));
        assert_eq!((quick.max_retries, quick.backoff.as_micros(), quick.backoff_max.as_micros()), (7, 1000, 9000));
    }

    #[test]
    fn a_clone_shares_the_payload_and_changes_alone() {
        let first = Task::with_payload(vec![1, 2, 3]).kind("sum");
        let second = first.clone().kind("product");
        assert!(Arc::ptr_eq(&first.payload, &second.payload));
        assert_eq!(first.details.unwrap().kind.as_deref(), Some("sum"));
        assert_eq!(second.details.unwrap().kind.as_deref(), Some("product"));
    }
}
