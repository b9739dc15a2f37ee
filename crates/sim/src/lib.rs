//! Whole clusters in virtual time.
//!
//! A [`World`] holds the coordinator and worker machines of `filch-core`, a modelled network and whatever goes wrong, and
//! plays a [`Workload`](workload::Workload) on them. The decisions are those of the machines; nothing here takes any.
#![forbid(unsafe_code)]

mod blind;
mod bound;
mod cache;
pub mod calendar;
pub mod cluster;
pub mod disk;
pub mod fault;
mod flows;
pub mod fuzz;
pub mod generate;
pub mod log;
pub mod marks;
pub mod network;
pub mod outcome;
pub mod picture;
pub mod scenario;
pub mod trace;
pub mod watch;
pub mod workload;
mod world;

pub use blind::blind_makespan;
pub use bound::lower_bound;
pub use outcome::Outcome;
pub use scenario::Scenario;
pub use world::{Counts, Fate, Setting, World};
