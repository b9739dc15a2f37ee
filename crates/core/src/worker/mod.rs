//! What a worker is to the scheduler: what it can do, how much it has, and how it fares; and the machine it runs itself.

mod holdings;
mod lease;
mod machine;
pub(crate) mod recent;
mod registry;
mod taken;
#[cfg(test)]
mod tests;
mod unnoted;

pub use lease::{fence_after, longest_round_trip};
pub use machine::{Input, Output, WorkerMachine};

use crate::capabilities::CapabilitySet;
use crate::ids::{ResourceId, WorkerId};
use crate::resources::{Amount, Vector};
use crate::time::Time;

/// A worker as it registers.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerSpec {
    /// The driver's handle.
    pub tag: u64,
    /// What it can do.
    pub capabilities: CapabilitySet,
    /// How much it has. A worker that declares no cores has as many as slots.
    pub resources: Vector,
    /// Tasks it runs at once.
    pub slots: u32,
    /// Relative speed; durations are divided by it until history knows better.
    pub speed: f64,
    /// Cost of one second of its time, for cost-based placement.
    pub cost_rate: f64,
    /// Share of the turns in `weighted_round_robin`.
    pub weight: f64,
}

impl WorkerSpec {
    /// Whether it has as many cores as slots, because it declares none.
    pub(crate) fn implies_cores(&self) -> bool {
        self.resources.get(ResourceId::CPUS) == Amount(0)
    }

    /// How much it has, implied cores included.
    pub(crate) fn capacity(&self) -> Vector {
        let mut capacity = self.resources.clone();
        if self.implies_cores() {
            capacity.set(ResourceId::CPUS, Amount::from_units(u64::from(self.slots)));
        }
        capacity
    }
}

impl Default for WorkerSpec {
    fn default() -> Self {
        WorkerSpec {
            tag: 0,
            capabilities: CapabilitySet::default(),
            resources: Vector::default(),
            slots: 1,
            speed: 1.0,
            cost_rate: 1.0,
            weight: 1.0,
        }
    }
}

/// What a worker says of its own load; known to policies and shown to people, never needed for bookkeeping.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LoadReport {
    /// Processor use of the whole machine, 0 to 1.
    pub cpu: f64,
    /// Memory use of the whole machine, 0 to 1.
    pub memory: f64,
}

/// Whether a worker gets work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WorkerState {
    /// It does.
    #[default]
    Up,
    /// It keeps what it has and gets nothing new.
    Draining,
    /// Not heard of; what it held has been given to others.
    Silent,
    /// Set aside after too many failures, until the moment given.
    Quarantined(Time),
}

impl WorkerState {
    /// The state in one lower-case word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            WorkerState::Up => "up",
            WorkerState::Draining => "draining",
            WorkerState::Silent => "silent",
            WorkerState::Quarantined(_) => "quarantined",
        }
    }
}

/// A worker's figures, for people and for `status`.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerStatus {
    /// Who.
    pub id: WorkerId,
    /// The driver's handle.
    pub tag: u64,
    /// Whether it gets work.
    pub state: WorkerState,
    /// Tasks in its own queue.
    pub queue_length: u32,
    /// Slots in use, those of cancelled or timed-out attempts it has not let go of included.
    pub running: u32,
    /// Tasks it runs at once.
    pub slots: u32,
    /// Capacity by resource.
    pub capacity: Vector,
    /// Reserved by resource.
    pub reserved: Vector,
    /// Seconds of work queued and running, per slot.
    pub backlog_s: f64,
    /// Share of its attempts that ended well; 1 before the first.
    pub success_rate: f64,
    /// Attempts that ended well.
    pub total_completed: u64,
    /// Attempts that did not.
    pub total_failed: u64,
    /// Tasks it took from others.
    pub stolen: u64,
    /// Tasks others took from it.
    pub lost: u64,
    /// Seconds its slots were in use, added up.
    pub busy_s: f64,
    /// Seconds its tasks waited before they were handed to it, added up.
    pub wait_s: f64,
    /// When it joined.
    pub since: Time,
    /// What it last said of itself.
    pub report: LoadReport,
}
