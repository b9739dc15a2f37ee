//! The pure core of filch: every scheduling decision, as state machines that know no clock, socket, file or thread.
#![forbid(unsafe_code)]

pub mod config;
pub mod time;

pub use config::Config;
pub use time::{Span, Time};
