//! The modelled disk: how long a write takes until it is durable, and what is durable.
//!
//! Records of one step go together. What comes while a write is under way goes with the next one. A fence keeps out
//! coordinators that another has taken over from. Never reads anything but what was durable.

use filch_core::journal::{Detail, Journal};
use filch_core::{Record, Rng, Span, TaskSpec, WorkerSpec};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::network::Spread;

/// How a disk behaves.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DiskSettings {
    /// How long a write takes until it is durable. Without a disk (0, and no coordinator that crashes) everything is durable
    /// at once.
    #[serde(with = "filch_core::config::span")]
    #[schemars(schema_with = "filch_core::config::span::schema")]
    pub sync: Span,
    /// How much that varies: `constant`, `uniform` (from half to one and a half of it) or `log_normal` (its median, sigma 0.5).
    pub spread: Spread,
}

impl DiskSettings {
    /// How long one write takes.
    pub fn delay(&self, rng: &mut Rng) -> Span {
        self.spread.vary(self.sync, rng)
    }
}

/// A record with what is stored beside it.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) record: Record,
    pub(crate) task: Option<Box<TaskSpec>>,
    pub(crate) worker: Option<Box<WorkerSpec>>,
    /// The task it is about, by its position in the workload.
    pub(crate) index: u32,
}

/// What is durable.
#[derive(Clone, Debug)]
pub(crate) struct Disk {
    /// The latest coordinator that may write.
    pub(crate) epoch: u64,
    pub(crate) journal: Journal,
}

impl Disk {
    /// An empty one, of the first coordinator.
    pub(crate) fn new() -> Disk {
        Disk { epoch: 1, journal: Journal::default() }
    }

    pub(crate) fn apply(&mut self, stored: &Stored) {
        let detail = match (&stored.task, &stored.worker) {
            (Some(spec), _) => Detail::Task(spec),
            (None, Some(spec)) => Detail::Worker(spec),
            (None, None) => Detail::None,
        };
        self.journal.apply(&stored.record, detail);
    }
}
