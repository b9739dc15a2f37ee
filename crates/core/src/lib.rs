//! The pure core of filch: every scheduling decision, as state machines that know no clock, socket, file or thread.
//!
//! Time comes in with every event and what is to be done goes out as actions, so the same code runs in a program, in
//! a cluster and in a simulation:
//!
//! ```
//! use filch_core::{Action, Config, Event, Scheduler, TaskSpec, Time, WorkerSpec};
//!
//! let mut scheduler = Scheduler::new(&Config::default()).unwrap();
//! let mut actions = Vec::new();
//! scheduler.step(Time::ZERO, Event::Join(WorkerSpec::default()), &mut actions);
//! let Some(Action::Joined { worker, .. }) = actions.first().copied() else { panic!() };
//! scheduler.step(Time::ZERO, Event::Submit(Box::new(TaskSpec::default())), &mut actions);
//! actions.clear();
//! scheduler.step(Time(5), Event::Pull { worker, wait: false }, &mut actions);
//! assert!(actions.iter().any(|action| matches!(action, Action::Assign { .. })));
//! ```
#![forbid(unsafe_code)]

mod action;
mod capabilities;
mod check;
pub mod config;
pub mod coordinator;
mod event;
mod explain;
mod ids;
pub mod journal;
pub mod map;
mod metrics;
pub mod names;
#[doc(hidden)]
pub mod planted;
pub mod policy;
mod resources;
mod rng;
mod scheduler;
pub mod steal;
mod task;
pub mod terms;
mod time;
pub mod told;
pub mod tracker;
pub mod wire;
pub mod worker;

pub use action::{Action, Lack, ParentName, Record, Refusal};
pub use capabilities::{CapabilitySet, matching_for};
pub use check::Violation;
pub use config::Config;
pub use event::{End, Event, Held, Remaining, WorkerChange};
pub use explain::{COUNTED, CandidateFate, Decision, DecisionCandidate, Explanation, JobExplanation, Reason, Refusals};
pub use ids::{AffinityId, CapabilityId, JobId, KeyId, KindId, Names, ResourceId, Table, TaskId, TypeId, WorkerId};
pub use metrics::{Concern, Health, Metrics, Sample};
pub use resources::{Amount, Demand, Vector};
pub use rng::Rng;
pub use scheduler::{JobFigures, Scheduler, attempt_in_life};
pub use task::{Cause, GraphTask, ParentFailure, Priority, RetryTerms, Status, TaskSpec};
pub use time::{Span, Time};
pub use worker::{LoadReport, WorkerSpec, WorkerState, WorkerStatus};
