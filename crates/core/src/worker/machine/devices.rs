//! Which of its accelerators a worker gives to what it runs, by the rules of the scheduler: a share of one fits into one
//! device, whole ones take whole devices.
//!
//! The scheduler knows only how much fits; which of them a task gets is known here, where it runs. Never gives one to more
//! than it has room for.

use super::WorkerMachine;
use crate::ids::{ResourceId, TaskId};
use crate::resources::{Amount, Demand};
use crate::scheduler::wanted_devices;

impl WorkerMachine {
    /// The positions of the accelerators that a task holds which runs here; none if it asked for none.
    #[must_use]
    pub fn devices_of(&self, task: TaskId) -> &[u16] {
        self.given.get(&task).map_or(&[], |devices| devices)
    }

    /// How much it has in accelerators.
    fn accelerators(&self) -> Amount {
        self.capacity.get(ResourceId::GPUS)
    }

    /// Whether there is room for a demand beside what runs.
    pub(super) fn has_room(&self, demand: &Demand) -> bool {
        self.capacity.has_room(&self.reserved, demand)
            && wanted_devices(demand).is_none_or(|needs| self.devices.check(self.accelerators(), needs).is_ok())
    }

    /// Reserves what a task needs that begins.
    pub(super) fn reserve(&mut self, task: TaskId, demand: &Demand) {
        self.reserved.add(demand);
        if let Some(needs) = wanted_devices(demand) {
            let taken = self.devices.take(self.accelerators(), needs);
            self.given.insert(task, taken);
        }
    }

    /// Gives back what a task held that ran.
    pub(super) fn release(&mut self, task: TaskId, demand: &Demand) {
        self.reserved.remove(demand);
        if let Some(needs) = wanted_devices(demand)
            && let Some(taken) = self.given.remove(&task)
        {
            self.devices.give_back(&taken, needs);
        }
    }
}
