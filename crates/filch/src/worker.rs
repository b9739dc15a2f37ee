//! Workers as they are registered and changed: with names.

#[cfg(feature = "worker")]
pub(crate) mod cluster;

use std::sync::Arc;

use filch_core::{WorkerChange, WorkerId, WorkerSpec};

use crate::error::Error;
use crate::names::NameBook;

/// A worker to register: who it is, what it can do and how much it has.
///
/// ```
/// use filch::Worker;
/// let worker = Worker::new("gpu-box").capability("cuda").resource("gpus", 2.0).slots(4);
/// assert_eq!(worker.id(), "gpu-box");
/// ```
#[derive(Clone, Debug)]
pub struct Worker {
    pub(crate) name: Arc<str>,
    pub(crate) capabilities: Vec<String>,
    resources: Vec<(String, f64)>,
    slots: u32,
    speed: f64,
    cost_rate: f64,
    weight: f64,
    #[cfg(feature = "worker")]
    handlers: filch_node::worker::Handlers,
}

impl Worker {
    /// A worker with one slot, under an id that is not empty and that no other registered worker may have.
    #[must_use]
    pub fn new(id: impl Into<String>) -> Worker {
        let WorkerSpec { slots, speed, cost_rate, weight, .. } = WorkerSpec::default();
        let name: String = id.into();
        let (capabilities, resources) = (Vec::new(), Vec::new());
        Worker {
            name: name.into(),
            capabilities,
            resources,
            slots,
            speed,
            cost_rate,
            weight,
            #[cfg(feature = "worker")]
            handlers: filch_node::worker::Handlers::default(),
        }
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.name
    }

    /// Something it can do.
    #[must_use]
    pub fn capability(mut self, name: impl Into<String>) -> Self {
        self.capabilities.push(name.into());
        once(&mut self.capabilities);
        self
    }

    /// Several things it can do.
    #[must_use]
    pub fn capabilities<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.capabilities.extend(names.into_iter().map(Into::into));
        once(&mut self.capabilities);
        self
    }

    /// How much it has of a resource: `cpus`, `memory`, `gpus`, `gpu_memory` or any name. Without `cpus` it has as many
    /// as slots. Amounts are counted in steps of 0.0001. `gpus` may end in a share: 1.5 is one whole device and half of
    /// another, for a machine that keeps the other half for itself.
    #[must_use]
    pub fn resource(mut self, name: impl Into<String>, amount: f64) -> Self {
        self.resources.push((name.into(), amount));
        self
    }

    /// How many tasks it runs at once.
    #[must_use]
    pub fn slots(mut self, slots: u32) -> Self {
        self.slots = slots;
        self
    }

    /// Its relative speed; durations are divided by it until history knows better.
    #[must_use]
    pub fn speed(mut self, speed: f64) -> Self {
        self.speed = speed;
        self
    }

    /// The cost of one second of its time, for policies that look at cost.
    #[must_use]
    pub fn cost_rate(mut self, cost_rate: f64) -> Self {
        self.cost_rate = cost_rate;
        self
    }

    /// Its share of the turns under `weighted_round_robin`.
    #[must_use]
    pub fn weight(mut self, weight: f64) -> Self {
        self.weight = weight;
        self
    }

    pub(crate) fn spec(&self, names: &NameBook) -> Result<WorkerSpec, Error> {
        if self.name.is_empty() {
            return Err(Error::Invalid("the id of a worker must not be empty".to_owned()));
        }
        Ok(WorkerSpec {
            tag: 0,
            capabilities: names.capabilities(&self.capabilities)?,
            resources: names.vector(&self.resources)?,
            slots: self.slots,
            speed: self.speed,
            cost_rate: self.cost_rate,
            weight: self.weight,
        })
    }
}

/// Leaves every name where it stands first.
fn once(names: &mut Vec<String>) {
    let mut seen = std::collections::BTreeSet::new();
    names.retain(|name| seen.insert(name.clone()));
}

/// A change of a registered worker. What is not mentioned stays.
///
/// ```
/// use filch::WorkerUpdate;
/// let update = WorkerUpdate::new().slots(8).draining(false);
/// assert_ne!(update, WorkerUpdate::new());
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WorkerUpdate {
    pub(crate) capabilities: Option<Vec<String>>,
    resources: Option<Vec<(String, f64)>>,
    slots: Option<u32>,
    speed: Option<f64>,
    cost_rate: Option<f64>,
    weight: Option<f64>,
    draining: Option<bool>,
}

impl WorkerUpdate {
    /// No change at all.
    #[must_use]
    pub fn new() -> WorkerUpdate {
        WorkerUpdate::default()
    }

    /// All it can do from now on.
    #[must_use]
    pub fn capabilities<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        let mut names = names.into_iter().map(Into::into).collect();
        once(&mut names);
        self.capabilities = Some(names);
        self
    }

    /// All it has from now on.
    #[must_use]
    pub fn resources<S: Into<String>>(mut self, amounts: impl IntoIterator<Item = (S, f64)>) -> Self {
        self.resources = Some(amounts.into_iter().map(|(name, amount)| (name.into(), amount)).collect());
        self
    }

    /// How many tasks it runs at once from now on.
    #[must_use]
    pub fn slots(mut self, slots: u32) -> Self {
        self.slots = Some(slots);
        self
    }

    /// Its relative speed from now on; what is queued with it or runs keeps the time it was planned with.
    #[must_use]
    pub fn speed(mut self, speed: f64) -> Self {
        self.speed = Some(speed);
        self
    }

    /// The cost of one second of its time from now on.
    #[must_use]
    pub fn cost_rate(mut self, cost_rate: f64) -> Self {
        self.cost_rate = Some(cost_rate);
        self
    }

    /// Its share of the turns from now on.
    #[must_use]
    pub fn weight(mut self, weight: f64) -> Self {
        self.weight = Some(weight);
        self
    }

    /// Whether it keeps what it runs and gets nothing new.
    #[must_use]
    pub fn draining(mut self, draining: bool) -> Self {
        self.draining = Some(draining);
        self
    }

    pub(crate) fn change(&self, names: &NameBook) -> Result<WorkerChange, Error> {
        Ok(WorkerChange {
            capabilities: self.capabilities.as_ref().map(|list| names.capabilities(list)).transpose()?,
            resources: self.resources.as_ref().map(|list| names.vector(list)).transpose()?,
            slots: self.slots,
            speed: self.speed,
            cost_rate: self.cost_rate,
            weight: self.weight,
            draining: self.draining,
        })
    }
}

/// A worker as a caller names it: by the number it got when it was registered, which is quicker, or by its id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkerName {
    /// By the number the balancer gave it.
    Id(WorkerId),
    /// By the id it was registered under.
    Name(Arc<str>),
}

impl std::fmt::Display for WorkerName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            WorkerName::Id(id) => id.fmt(f),
            WorkerName::Name(name) => f.write_str(name),
        }
    }
}

impl From<WorkerId> for WorkerName {
    fn from(id: WorkerId) -> Self {
        WorkerName::Id(id)
    }
}

impl From<&str> for WorkerName {
    fn from(name: &str) -> Self {
        WorkerName::Name(name.into())
    }
}

impl From<&String> for WorkerName {
    fn from(name: &String) -> Self {
        WorkerName::Name(name.as_str().into())
    }
}

impl From<String> for WorkerName {
    fn from(name: String) -> Self {
        WorkerName::Name(name.into())
    }
}
