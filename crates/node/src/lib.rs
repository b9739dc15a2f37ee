//! The real world around the machines of `filch-core`.
//!
//! [`store`] keeps what was acknowledged, [`exec`] runs commands and [`detect`] finds out what a machine offers. Nothing
//! here decides where a task goes or who steals it; that is the core's alone, and what is here carries it out.
#![forbid(unsafe_code)]

pub mod access;
pub mod admin;
mod alarm;
pub mod client;
pub mod clock;
pub mod coordinator;
pub mod detect;
pub mod dial;
pub mod door;
pub mod exec;
pub mod link;
mod local;
pub mod secure;
mod seldom;
pub mod store;
pub mod template;
pub mod view;
mod watched;
pub mod worker;
