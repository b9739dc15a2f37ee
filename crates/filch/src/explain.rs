//! Explanations with the names that a balancer knows. What they say is the core's.

use std::fmt;

use filch_core as core;
use filch_core::told::{Labels, RestExplanation};
use filch_core::{Lack, Time, WorkerId};
use serde::Serialize;

pub use filch_core::told::{Candidate, Choice, Explanation, Hopeless, Parent, Reason, Refused};

use crate::balancer::State;
use crate::info::JobStatus;
use crate::names::NameBook;

/// Where a job stands, and why the elements of its array wait that were never handed out. Displays as readable text.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JobExplanation {
    /// How many tasks stand where; `rest` of them are explained here.
    pub status: JobStatus,
    /// Why they wait.
    #[serde(flatten)]
    pub waiting: RestExplanation,
}

/// The names of a balancer.
struct Known<'a, T, R> {
    state: &'a State<T, R>,
    names: &'a NameBook,
}

impl<T, R> Labels for Known<'_, T, R> {
    fn worker(&self, id: WorkerId) -> String {
        self.state.worker_label(id)
    }

    fn task(&self, id: core::TaskId) -> String {
        self.state.task_label(id)
    }

    fn lack(&self, lack: Lack) -> String {
        self.names.lack(lack)
    }

    fn key(&self, id: core::KeyId) -> String {
        self.names.key_name(id)
    }

    fn resource(&self, id: core::ResourceId) -> String {
        self.names.resource_name(id)
    }
}

pub(crate) fn translate<T, R>(
    state: &State<T, R>,
    names: &NameBook,
    now: Time,
    explanation: core::Explanation,
) -> Explanation {
    let error = state.entry(explanation.task).and_then(|entry| entry.error.as_deref());
    Explanation::told(&Known { state, names }, now, explanation, error)
}

/// The same for a job; if the machine knows it no more, it is done.
pub(crate) fn translate_job<T, R>(
    state: &State<T, R>,
    names: &NameBook,
    now: Time,
    status: JobStatus,
    explanation: Option<core::JobExplanation>,
) -> JobExplanation {
    let known = Known { state, names };
    let waiting = explanation.map(|found| RestExplanation::told(&known, now, found)).unwrap_or_default();
    JobExplanation { status, waiting }
}

impl fmt::Display for JobExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.status)?;
        if let Some(error) = &self.status.error {
            writeln!(f, "  nobody could run what failed: {error}")?;
        }
        write!(f, "{}", self.waiting)
    }
}
