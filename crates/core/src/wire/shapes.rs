//! Shapes that messages and records share, between the plain types and protobuf. What comes in is checked here: numbers
//! that index tables are bounded, so that a few bytes cannot ask for gigabytes.

use super::WireError;
use super::columns::{alike, differences, spread, sums, whole};
use super::proto;
use crate::capabilities::CapabilitySet;
use crate::event::Held;
use crate::ids::{CapabilityId, ResourceId, TaskId};
use crate::resources::{Amount, Demand, Vector};
use crate::task::Cause;
use crate::worker::WorkerSpec;

/// Names are interned one by one; nobody has so many.
const MOST_CAPABILITIES: u32 = 1 << 16;
const MOST_RESOURCES: usize = 1 << 12;

/// Causes by their number.
pub(super) const CAUSES: &[Cause] = &Cause::ALL;

/// The number of a value: its position in the table of all.
pub(super) fn number_of<T: PartialEq>(table: &[T], value: &T) -> u32 {
    table.iter().position(|known| known == value).expect("the table has all values") as u32
}

/// The value with a number.
pub(super) fn value_of<T: Copy>(table: &[T], number: u32, what: &'static str) -> Result<T, WireError> {
    table.get(number as usize).copied().ok_or(WireError::Unknown { what, number: u64::from(number) })
}

/// A number that has to fit into fewer bits.
pub(super) fn narrow<T: TryFrom<u64>>(number: u64, what: &'static str) -> Result<T, WireError> {
    T::try_from(number).map_err(|_| WireError::Unknown { what, number })
}

pub(super) fn write_helds(helds: impl Iterator<Item = Held> + Clone) -> proto::Helds {
    proto::Helds {
        task_steps: differences(helds.clone().map(|held| held.task.to_bits())),
        attempts: alike(helds.clone().map(|held| held.attempt)),
        hops: alike(helds.map(|held| held.hop)),
    }
}

pub(super) fn read_helds(helds: Option<&proto::Helds>) -> Result<Vec<Held>, WireError> {
    let Some(helds) = helds else { return Ok(Vec::new()) };
    let count = helds.task_steps.len();
    let rest = spread(&helds.attempts, count)?.zip(spread(&helds.hops, count)?);
    let tasks = sums(&helds.task_steps).map(TaskId::from_bits);
    Ok(tasks.zip(rest).map(|(task, (attempt, hop))| Held { task, attempt, hop }).collect())
}

pub(super) fn write_capabilities(set: &CapabilitySet) -> Vec<u32> {
    set.ids().iter().map(|id| id.0).collect()
}

pub(super) fn read_capabilities(ids: &[u32]) -> Result<CapabilitySet, WireError> {
    if ids.iter().any(|&id| id >= MOST_CAPABILITIES) {
        return Err(WireError::TooMuch("the number of a capability"));
    }
    Ok(ids.iter().map(|&id| CapabilityId(id)).collect())
}

pub(super) fn write_demand(demand: &Demand) -> Option<proto::Demand> {
    let amounts = demand.amounts();
    (!amounts.is_empty()).then(|| proto::Demand {
        resources: amounts.iter().map(|entry| entry.0.0).collect(),
        amounts: amounts.iter().map(|entry| entry.1.0).collect(),
    })
}

pub(super) fn read_demand(demand: Option<&proto::Demand>) -> Result<Demand, WireError> {
    let Some(demand) = demand else { return Ok(Demand::default()) };
    let resources = whole(&demand.resources, demand.amounts.len())?;
    if resources.iter().any(|&id| id as usize >= MOST_RESOURCES) || resources.len() > MOST_RESOURCES {
        return Err(WireError::TooMuch("the number of a resource"));
    }
    Ok(Demand::new(resources.iter().zip(&demand.amounts).map(|(&id, &amount)| (ResourceId(id), Amount(amount)))))
}

pub(super) fn read_amounts(amounts: &[u64]) -> Result<Vector, WireError> {
    if amounts.len() > MOST_RESOURCES {
        return Err(WireError::TooMuch("the number of a resource"));
    }
    Ok(Vector::new((0..).map(ResourceId).zip(amounts.iter().map(|&amount| Amount(amount)))))
}

pub(super) fn write_worker(spec: &WorkerSpec) -> proto::Worker {
    proto::Worker {
        tag: spec.tag,
        capabilities: write_capabilities(&spec.capabilities),
        amounts: spec.resources.in_order().to_vec(),
        slots: spec.slots,
        speed: spec.speed,
        cost_rate: spec.cost_rate,
        weight: spec.weight,
    }
}

pub(super) fn read_worker(worker: Option<&proto::Worker>) -> Result<WorkerSpec, WireError> {
    let worker = worker.ok_or(WireError::Missing("the description of a worker"))?;
    Ok(WorkerSpec {
        tag: worker.tag,
        capabilities: read_capabilities(&worker.capabilities)?,
        resources: read_amounts(&worker.amounts)?,
        slots: worker.slots,
        speed: worker.speed,
        cost_rate: worker.cost_rate,
        weight: worker.weight,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A new cause must get a number, or it could not be written.
    #[test]
    fn every_cause_has_its_number() {
        let last = Cause::Requested as usize;
        assert_eq!(CAUSES.len(), last + 1);
        for (number, cause) in CAUSES.iter().enumerate() {
            assert_eq!(*cause as usize, number);
        }
    }
}
