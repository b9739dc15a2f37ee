//! Workers, classes, signatures and jobs as the scheduler keeps them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use smallvec::SmallVec;

use super::devices::{DeviceSet, Devices, wanted};
use super::members::Members;
use super::needs::Needs;
use super::own::OwnQueue;
use super::place::Wish;
use super::ready::{Cursor, Waiting};
use super::tasks::OrderKey;
use crate::action::Lack;
use crate::capabilities::{CapabilityBits, CapabilitySet};
use crate::config::Matching;
use crate::ids::{NONE, ResourceId, TaskId};
use crate::resources::{Amount, Demand, Vector};
use crate::task::Status;
use crate::time::{Span, Time, Work};
use crate::tracker::{MovingAverage, as_float};
use crate::worker::{LoadReport, WorkerState};

/// What a task asks of a worker; tasks that ask alike share one.
/// Kept small: there may be one for every task.
#[derive(Debug)]
pub(crate) struct Signature {
    pub(crate) needs: Arc<Needs>,
    pub(crate) demand: Demand,
    /// Tasks and ghosts that use it.
    pub(crate) users: u32,
    /// Under `fallback`: the most skills any class shares.
    pub(crate) best_shared: u32,
    /// A class known to be able to run it.
    pub(crate) host: u32,
    /// Of the classes born up to then none can run it, unless it is the one known; not kept under `fallback`.
    pub(crate) seen: u64,
    /// How its tasks wait in the central queue.
    pub(crate) waiting: Waiting,
}

impl Signature {
    /// One that nobody uses yet.
    pub(crate) fn new(needs: Arc<Needs>, demand: Demand) -> Signature {
        Signature { needs, demand, users: 0, best_shared: 0, host: NONE, seen: 0, waiting: Waiting::NOBODY }
    }

    #[inline]
    pub(crate) fn asks_for(&self, needs: &Needs, demand: &Demand) -> bool {
        self.demand == *demand && *self.needs == *needs
    }

    pub(crate) fn is_fallback(&self) -> bool {
        self.needs.matching == Matching::Fallback
    }
}

/// Workers with equal capabilities and hardware.
#[derive(Clone, Debug)]
pub(crate) struct Class {
    pub(crate) capabilities: CapabilitySet,
    pub(crate) bits: CapabilityBits,
    pub(crate) capacity: Vector,
    pub(crate) slots: u32,
    pub(crate) speed: f64,
    pub(crate) cost_rate: f64,
    pub(crate) weight: f64,
    /// When it appeared, counted in classes.
    pub(crate) born: u64,
    /// Workers in it, in no particular order.
    pub(crate) members: Vec<u32>,
}

impl Class {
    pub(crate) fn same(&self, other: &Class) -> bool {
        self.slots == other.slots
            && self.capacity == other.capacity
            && self.capabilities == other.capabilities
            && self.speed.to_bits() == other.speed.to_bits()
            && self.cost_rate.to_bits() == other.cost_rate.to_bits()
            && self.weight.to_bits() == other.weight.to_bits()
    }

    /// Whether a worker of this class could ever run such a task; what it lacks otherwise. The one predicate behind
    /// placement, stealing, `can_execute` and explanations.
    #[inline]
    pub(crate) fn can_ever(&self, signature: &Signature) -> Result<(), Lack> {
        self.meets_requirements(signature)?;
        if !signature.needs.skills.is_empty() {
            match signature.needs.matching {
                Matching::Exact | Matching::BestFit => {
                    if let Some(&id) = signature.needs.skills.ids().iter().find(|&&id| !self.bits.has(id)) {
                        return Err(Lack::Skill(id));
                    }
                }
                Matching::Fallback => {
                    let (shared, best) = (self.bits.shared(&signature.needs.skills), signature.best_shared);
                    if best == 0 {
                        return Err(Lack::Skill(signature.needs.skills.ids()[0]));
                    }
                    if shared < best {
                        return Err(Lack::FewerSkills { shared, best });
                    }
                }
            }
        }
        Ok(())
    }

    /// The part of it that has nothing to do with skills: required capabilities and capacity.
    #[inline]
    fn meets_requirements(&self, signature: &Signature) -> Result<(), Lack> {
        for &id in signature.needs.requires.ids() {
            if !self.bits.has(id) {
                return Err(Lack::Capability(id));
            }
        }
        for &(resource, needs) in signature.demand.amounts() {
            let has = self.capacity.get(resource);
            if has < needs {
                return Err(Lack::Resource { resource, needs, has });
            }
        }
        Ok(())
    }

    /// How many skills of a signature this class shares, for `fallback`; none if it could not run such a task anyway.
    pub(crate) fn shared_skills(&self, signature: &Signature) -> u32 {
        if self.meets_requirements(signature).is_ok() { self.bits.shared(&signature.needs.skills) } else { 0 }
    }
}

/// What a worker is short of right now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shortage {
    /// It gets no work.
    NotUp,
    /// Every slot is taken.
    Slots,
    /// It has not enough of a resource left.
    Resource { resource: ResourceId, needs: Amount, free: Amount },
    /// What is left is kept for a wide task that waits.
    Reserved { task: TaskId, from: Time },
}

/// An attempt that no longer counts but may still occupy its worker.
#[derive(Clone, Debug)]
pub(crate) struct Ghost {
    pub(crate) task: TaskId,
    pub(crate) attempt: u32,
    pub(crate) signature: u32,
    pub(crate) key: u32,
    pub(crate) devices: DeviceSet,
    pub(crate) planned: Span,
    pub(crate) since: Time,
}

/// A worker kept free for a wide task.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reservation {
    pub(crate) task: TaskId,
    /// When the task is expected to fit.
    pub(crate) from: Time,
    /// When that was thought.
    pub(crate) made: Time,
    /// When it is looked at again, if the task has not started by then.
    pub(crate) again: Time,
}

/// What few workers have at any time, kept aside so that the others do not pay for it.
#[derive(Debug, Default)]
pub(crate) struct Rare {
    pub(crate) ghosts: Vec<Ghost>,
    pub(crate) reservation: Option<Reservation>,
}

/// The order in a worker's queue: highest level first, then as inside a level.
pub(crate) type QueueKey = (u8, OrderKey, u32);

pub(crate) fn queue_key(level: u8, order: OrderKey, slot: u32) -> QueueKey {
    (u8::MAX - level, order, slot)
}

/// One worker. What every cycle touches comes first, so that with very many workers few lines of the cache are missed.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Worker {
    pub(crate) generation: u32,
    pub(crate) class: u32,
    pub(crate) slots: u32,
    /// Tasks it asked for and waits for. Of one with a queue of its own: how many it likes to have, with what it has.
    pub(crate) credit: u32,
    pub(crate) state: WorkerState,
    pub(crate) running: SmallVec<[u32; 4]>,
    pub(crate) rare: Option<Box<Rare>>,
    pub(crate) reserved: Vector,
    /// Planned time of queued and of running tasks.
    pub(crate) queued_work: Work,
    pub(crate) running_work: Work,
    /// Where its search for work goes on, if it was cut off.
    pub(crate) resume: Option<Box<Cursor>>,
    pub(crate) queue: OwnQueue,
    pub(crate) listed: bool,
    pub(crate) failures_in_a_row: u32,
    pub(crate) quarantines: u32,
    /// Its position among the workers with something queued.
    pub(crate) loaded_at: u32,
    pub(crate) busy: Span,
    pub(crate) completed: u64,
    pub(crate) average: MovingAverage,
    pub(crate) assigned: u64,
    pub(crate) last_assigned: u64,
    pub(crate) waited: Span,
    /// Its keys in the directories, while it is listed there.
    pub(crate) keys: SmallVec<[u64; 1]>,
    pub(crate) devices: Devices,
    /// Its position among the members of its class.
    pub(crate) class_at: u32,
    /// It declared no cores, so it has as many as slots.
    pub(crate) cores_implied: bool,
    /// The state it comes back to when it is heard of again.
    pub(crate) before_silence: WorkerState,
    pub(crate) silent_since: Time,
    pub(crate) joined: u64,
    pub(crate) tag: u64,
    pub(crate) since: Time,
    pub(crate) report: LoadReport,
    pub(crate) failed: u64,
    /// Its moving averages with other weights than the first.
    pub(crate) more_averages: Vec<MovingAverage>,
    pub(crate) stolen: u64,
    pub(crate) lost: u64,
    /// Of what it holds in a queue of its own or has begun from there: how many, and the sum of their fingerprints.
    pub(crate) holds: u32,
    pub(crate) fingerprint: u64,
}

impl Worker {
    #[inline]
    pub(crate) fn used_slots(&self) -> u32 {
        (self.running.len() + self.ghosts().len()) as u32
    }

    #[inline]
    pub(crate) fn ghosts(&self) -> &[Ghost] {
        self.rare.as_ref().map_or(&[], |rare| &rare.ghosts)
    }

    pub(crate) fn take_ghosts(&mut self) -> Vec<Ghost> {
        self.rare.as_mut().map(|rare| std::mem::take(&mut rare.ghosts)).unwrap_or_default()
    }

    pub(crate) fn rare_mut(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    #[inline]
    pub(crate) fn reservation(&self) -> Option<Reservation> {
        self.rare.as_ref().and_then(|rare| rare.reservation)
    }

    pub(crate) fn set_reservation(&mut self, reservation: Option<Reservation>) {
        if reservation.is_some() || self.rare.is_some() {
            self.rare_mut().reservation = reservation;
        }
    }

    /// Tasks given to it so far, those in its queue included.
    pub(crate) fn given(&self) -> u64 {
        self.assigned + self.queue.len() as u64
    }

    pub(crate) fn has_free_slot(&self) -> bool {
        self.used_slots() < self.slots
    }

    /// Lets go of what an attempt had reserved.
    #[inline]
    pub(crate) fn release(&mut self, demand: &Demand, devices: &[u16]) {
        self.reserved.remove(demand);
        if let Some(needs) = wanted(demand) {
            self.devices.give_back(devices, needs);
        }
    }

    /// One of its moving averages; one it has not begun yet is like the first.
    #[inline]
    pub(crate) fn average(&self, at: usize) -> MovingAverage {
        if at == 0 { self.average } else { self.more_averages.get(at - 1).copied().unwrap_or(self.average) }
    }

    /// Adds an observation to its moving averages with other weights than the first.
    #[inline(never)]
    pub(crate) fn learn_more(&mut self, alphas: &[f64], seconds: f64, success: bool) {
        self.more_averages.resize(alphas.len(), self.average);
        for (average, &alpha) in self.more_averages.iter_mut().zip(alphas) {
            average.update(alpha, seconds, success);
        }
    }

    /// Work queued and running, per slot.
    pub(crate) fn backlog(&self) -> Span {
        (self.queued_work + self.running_work).per(self.slots)
    }

    /// What is there besides a task of that length.
    pub(crate) fn backlog_besides(&self, own: Span) -> Span {
        let mut rest = self.queued_work + self.running_work;
        rest -= own;
        rest.per(self.slots)
    }

    pub(crate) fn success_rate(&self) -> f64 {
        let ends = self.completed + self.failed;
        if ends == 0 { 1.0 } else { as_float(self.completed) / as_float(ends) }
    }

    /// Whether a task of this signature fits right now, its reservation aside.
    #[inline]
    pub(crate) fn has_room(&self, class: &Class, signature: &Signature) -> Result<(), Shortage> {
        if self.state != WorkerState::Up {
            return Err(Shortage::NotUp);
        }
        if !self.has_free_slot() {
            return Err(Shortage::Slots);
        }
        match self.shortages(class, signature).next() {
            None => Ok(()),
            Some(shortage) => Err(shortage),
        }
    }

    /// The resources it has too little of right now.
    #[inline]
    pub(crate) fn shortages(&self, class: &Class, signature: &Signature) -> impl Iterator<Item = Shortage> {
        signature.demand.amounts().iter().filter_map(|&(resource, needs)| {
            let free = class.capacity.get(resource) - self.reserved.get(resource);
            if free < needs {
                return Some(Shortage::Resource { resource, needs, free });
            }
            if resource == ResourceId::GPUS
                && let Err(free) = self.devices.check(class.capacity.get(resource), needs)
            {
                return Some(Shortage::Resource { resource, needs, free });
            }
            None
        })
    }
}

/// Tasks submitted together.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) generation: u32,
    /// Tasks that are not settled, elements never handed out included.
    pub(crate) open: u64,
    /// Nothing will be added.
    pub(crate) closed: bool,
    pub(crate) weight: f64,
    /// Work received so far, for its weight.
    pub(crate) received: u64,
    pub(crate) array: Option<Array>,
    /// Its unsettled tasks, so that it can be cancelled; not kept for the common job.
    pub(crate) members: Members,
}

impl Job {
    pub(crate) fn new(generation: u32, weight: f64) -> Job {
        Job { generation, open: 0, closed: false, weight, received: 0, array: None, members: Members::default() }
    }
}

/// An array: a template, a cursor and exceptions.
#[derive(Debug)]
pub(crate) struct Array {
    pub(crate) template: ArrayTemplate,
    /// The next element to be handed out.
    pub(crate) next: u32,
    pub(crate) count: u32,
    /// Cancelled elements at or after the cursor.
    pub(crate) skipped: BTreeSet<u32>,
    pub(crate) level: u8,
    pub(crate) place: ArrayPlace,
    pub(crate) requeues: u32,
    /// When an element was last handed out, or the array changed its level.
    pub(crate) since: Time,
    /// Elements that are materialised and not handed out, by index: those that wait for the key of the array, and those
    /// a worker is kept free for.
    pub(crate) loose: BTreeMap<u32, u32>,
}

/// Where the rest of an array waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ArrayPlace {
    /// In a lane of the central queue.
    Lane,
    /// Fed element by element, for the tokens of its key.
    Fed,
    /// No registered worker can ever run it.
    Parked,
    /// Nothing is left.
    Empty,
}

/// What every element of an array is like.
#[derive(Clone, Debug)]
pub(crate) struct ArrayTemplate {
    pub(crate) payload: u64,
    pub(crate) signature: u32,
    pub(crate) kind: crate::ids::KindId,
    pub(crate) priority: u8,
    pub(crate) key: u32,
    pub(crate) exclusive: bool,
    pub(crate) idempotent: bool,
    pub(crate) estimate: Span,
    pub(crate) deadline: Time,
    pub(crate) sequence: u64,
    pub(crate) rank: u32,
    pub(crate) extra: Option<Box<super::tasks::Extra>>,
    pub(crate) ready_at: Time,
}

impl ArrayTemplate {
    pub(crate) fn declared(&self) -> Option<Span> {
        (self.estimate != Span::ZERO).then_some(self.estimate)
    }
}

impl Array {
    /// Elements never handed out.
    pub(crate) fn pending(&self) -> u32 {
        self.count - self.next - self.skipped.len() as u32
    }

    pub(crate) fn order(&self) -> OrderKey {
        let ArrayTemplate { deadline, rank, sequence, .. } = self.template;
        OrderKey { deadline, rank, sequence }
    }

    /// What the next element asks of a worker.
    pub(crate) fn wish(&self) -> Wish {
        let ArrayTemplate { signature, kind, .. } = self.template;
        Wish { signature, kind, declared: self.template.declared(), task: None }
    }

    /// Where the elements stand that were never handed out.
    pub(crate) fn status(&self) -> Status {
        if self.place == ArrayPlace::Parked { Status::Unschedulable } else { Status::Queued }
    }

    /// Moves the cursor past the next element and returns it.
    pub(crate) fn advance(&mut self) -> Option<u32> {
        while self.next < self.count {
            let index = self.next;
            self.next += 1;
            if !self.skipped.remove(&index) {
                return Some(index);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_stays_small() {
        assert_eq!((size_of::<Signature>(), size_of::<Option<Signature>>()), (72, 72));
    }
}
