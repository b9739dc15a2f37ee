//! A work-stealing scheduler to embed: register workers, submit tasks, pull assignments.
//!
//! [`Balancer`] is the scheduler inside your process. Your workers run your code; the balancer decides who runs what,
//! moves queued work from the busy to the idle, retries, times out, and can say why. Every decision is taken by the
//! pure machine of `filch-core`; this crate gives it a lock, a clock and a timer thread, keeps names and payloads,
//! and calls you back. It never decides anything itself.
//!
//! [Callbacks](Balancer::on_status), wakers and drops of payloads and results run while no lock is held, and may use the
//! balancer. A custom [policy](PolicyChoice::Custom) or [estimator](Builder::estimator) is part of a decision: it runs
//! under the lock and must not use the balancer, and neither must a custom [clock](Clock). Where one does, its call
//! panics with a message that says so, instead of waiting for ever; the balancer goes on unharmed.
//!
//! ```
//! use filch::{Balancer, Task, Worker};
//!
//! let balancer = Balancer::builder().build()?;
//! balancer.register_worker(Worker::new("python_worker").capability("python"))?;
//! let task = balancer.submit(Task::named("analyze").payload("data.csv".to_owned()).requires("python").priority(3))?;
//!
//! let assignment = balancer.next("python_worker")?.expect("a task is waiting");
//! assignment.start()?;
//! let length = assignment.payload().len();
//! assignment.succeed(length)?;
//!
//! assert_eq!(balancer.status(task)?.result.as_deref(), Some(&8));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! For work inside one process that is too small to be submitted there is [`pool`]: fork and join, scopes, loops.
//!
//! ```
//! let numbers: Vec<u64> = (1..=1000).collect();
//! let (low, high) = numbers.split_at(500);
//! let (low, high) = filch::pool::join(|| low.iter().sum::<u64>(), || high.iter().sum::<u64>());
//! assert_eq!(low + high, 500_500);
//! ```
#![forbid(unsafe_code)]

mod assignment;
mod balancer;
mod builder;
mod calm;
#[cfg(feature = "client")]
pub mod client;
mod clock;
mod error;
mod explain;
mod info;
mod lock;
mod names;
mod task;
mod worker;

pub use assignment::{Assignment, AttemptId};
pub use balancer::{
    Balancer, CallbackId, Job, JobEnd, NextAssignment, ReturnedTask, StatusChange, Subject, WeakBalancer,
};
pub use builder::{Builder, PolicyChoice};
#[cfg(feature = "client")]
pub use client::Client;
pub use clock::{Clock, ManualClock, SystemClock};
pub use error::{BuildError, Error};
pub use explain::{Candidate, Choice, Explanation, Hopeless, JobExplanation, Parent, Reason, Refused};
pub use filch_core::config::{self, Config, PolicySpec};
pub use filch_core::policy::{self, Policy};
pub use filch_core::steal;
pub use filch_core::tracker::{self, Estimator};
pub use filch_core::{
    Cause, Concern, Health, JobId, KindId, LoadReport, Metrics, ParentFailure, Priority, Span, Status, TaskId, Time,
    WorkerId, WorkerState,
};
/// The in-process pool, apart from the balancer: a fork costs nanoseconds, and nothing of it is scheduled by events.
pub use filch_pool as pool;
pub use info::{JobStatus, Sample, StealReport, TaskInfo, TaskStatus, WorkerInfo};
pub use task::{Dependency, PriorityValue, Reported, Task, TaskName};
#[cfg(feature = "worker")]
pub use worker::cluster::{Call, Running, WorkerFailure};
pub use worker::{Worker, WorkerName, WorkerUpdate};

/// A duration as the core counts it; longer than 500 years is for ever.
pub(crate) fn span(duration: std::time::Duration) -> Span {
    Span(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}

/// A span as the standard library counts it.
pub(crate) fn duration(span: Span) -> std::time::Duration {
    std::time::Duration::from_nanos(span.0)
}

/// The story of one task in `docs/journey.md`; its snippets are tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/journey.md")]
struct Journey;

/// The example in the README is a test too.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
