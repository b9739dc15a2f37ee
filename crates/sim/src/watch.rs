//! What must hold in every world, checked after every event: nothing runs beside what it must not, beyond what its worker
//! has, longer than it may, or before what it waits for; every task has one outcome, and one that may follow from what happened.

use filch_core::map::Map;
use filch_core::wire::Order;
use filch_core::{Amount, Cause, Config, End, ResourceId, Span, Status, WorkerSpec};

use crate::workload::Workload;
use crate::world::Fate;

/// The watcher. Keeps books of its own, so that a mistake in the machines' does not hide itself.
#[derive(Clone, Debug)]
pub struct Watch {
    /// The first thing that was wrong, until it is taken.
    pub broken: Option<String>,
    /// Tasks with this priority or a higher one never change hands.
    protected_from: u8,
    /// How many runs of a task there are now.
    running: Map<u32, u32>,
    /// How many runs with a key.
    keys: Map<u32, u32>,
    /// Runs of every worker, and what they reserve.
    nodes: Vec<(u32, Map<ResourceId, Amount>)>,
    /// How often a failed task is tried again.
    max_retries: u32,
    /// Attempts that failed, and those among them that ran too long.
    failures: Map<u32, (u32, u32)>,
}

impl Watch {
    /// A watcher of so many workers.
    #[must_use]
    pub fn new(config: &Config, nodes: usize) -> Watch {
        Watch {
            broken: None,
            protected_from: filch_core::steal::Guard::new(config).protected_from,
            running: Map::default(),
            keys: Map::default(),
            nodes: vec![(0, Map::default()); nodes],
            max_retries: config.retry.max_retries,
            failures: Map::default(),
        }
    }

    /// Something is wrong. The first counts.
    pub fn says(&mut self, what: String) {
        self.broken.get_or_insert(what);
    }

    /// A worker wants to run a task: may it?
    pub(crate) fn may_begin(
        &mut self,
        workload: &Workload,
        fates: &[Fate],
        order: &Order,
        node: u32,
        spec: &WorkerSpec,
    ) {
        let index = order.payload as u32;
        let label = workload.label(index);
        for parent in workload.parents_of(index) {
            if !fates[parent.task as usize].finished {
                self.says(format!("{label} began before {} had ended well", workload.label(parent.task)));
            }
        }
        if order.priority >= self.protected_from && order.held.hop > 0 {
            self.says(format!("{label} was stolen although its priority is protected"));
        }
        if !workload.shape_of(index).requires.ids().iter().all(|id| spec.capabilities.ids().contains(id)) {
            self.says(format!("{label} began on worker {node}, which lacks a capability it requires"));
        }
    }

    /// A run executes from now on.
    pub(crate) fn begins(&mut self, workload: &Workload, index: u32, node: u32, spec: &WorkerSpec) {
        let label = workload.label(index);
        let shape = workload.shape_of(index);
        let runs = self.running.entry(index).or_insert(0);
        *runs += 1;
        let runs = *runs;
        if runs > 1 && (shape.exclusive || shape.key.is_some()) {
            self.says(format!("{label} must not run twice at once and does"));
        }
        if let Some(key) = shape.key {
            let together = self.keys.entry(key.0).or_insert(0);
            *together += 1;
            if *together > 1 {
                self.says(format!("{label} began while another task of its key ran"));
            }
        }
        let (slots, reserved) = &mut self.nodes[node as usize];
        *slots += 1;
        let mut over =
            (*slots > spec.slots).then(|| format!("worker {node} runs {slots} tasks in {} slots", spec.slots));
        for &(resource, amount) in shape.demand.amounts() {
            let sum = reserved.entry(resource).or_insert(Amount(0));
            sum.0 += amount.0;
            if *sum > spec.resources.get(resource) {
                over = Some(format!("worker {node} has reserved more of {resource:?} than it has"));
            }
        }
        if let Some(over) = over {
            self.says(over);
        }
    }

    /// An attempt has come to its end after so long, at its worker; nobody else may know yet.
    pub(crate) fn attempt_ended(&mut self, workload: &Workload, index: u32, end: End, ran: Span) {
        if let Some(timeout) = workload.shape_of(index).timeout.filter(|timeout| ran > *timeout) {
            self.says(format!("{} ran for {ran}, and may for {timeout}", workload.label(index)));
        }
        let failures = self.failures.entry(index).or_default();
        failures.0 += u32::from(matches!(end, End::Failed { .. } | End::TimedOut));
        failures.1 += u32::from(end == End::TimedOut);
    }

    /// A task is settled: is that what may become of it?
    pub(crate) fn may_end_so(&mut self, workload: &Workload, index: u32, status: Status, cause: Cause) {
        let label = workload.label(index);
        let (failed, timed_out) = self.failures.get(&index).copied().unwrap_or_default();
        if status == Status::Cancelled && workload.cancelled_after(index).is_none() {
            self.says(format!("{label} is said to be cancelled, and nobody has asked for that"));
        }
        // A timeout is a failure, and every failure but the last is followed by another attempt.
        if matches!(cause, Cause::TimedOut | Cause::Reported)
            && (status != Status::Failed || failed <= self.max_retries)
        {
            let tries = self.max_retries + 1;
            self.says(format!("{label} is {} after {failed} attempts that failed, of {tries}", status.name()));
        }
        if cause == Cause::TimedOut && timed_out == 0 {
            self.says(format!("{label} is said to have run too long, and no attempt of it did"));
        }
    }

    pub(crate) fn ends(&mut self, workload: &Workload, index: u32, node: u32) {
        let shape = workload.shape_of(index);
        if let Some(runs) = self.running.get_mut(&index) {
            *runs -= 1;
        }
        if let Some(together) = shape.key.and_then(|key| self.keys.get_mut(&key.0)) {
            *together -= 1;
        }
        let (slots, reserved) = &mut self.nodes[node as usize];
        *slots -= 1;
        for &(resource, amount) in shape.demand.amounts() {
            if let Some(sum) = reserved.get_mut(&resource) {
                sum.0 -= amount.0;
            }
        }
    }
}
