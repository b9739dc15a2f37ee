//! Reservations in time: a worker is kept free for a wide task, and only what cannot delay that task may pass it.
//!
//! All of it rests on one guess, when what occupies a worker will be over. Never hands anything out by itself.

use super::devices::{DeviceSet, Devices};
use super::place::Wish;
use super::ready::{Found, Head};
use super::serve::Next;
use super::state::Reservation;
use super::{Flags, Scheduler, Shortage, State, Timer, wanted_devices};
use crate::action::Action;
use crate::ids::{NONE, ResourceId, TaskId, WorkerId};
use crate::resources::{Demand, Vector};
use crate::time::{Span, Time};
use crate::tracker::expected_end;

/// How far ahead the moment of a reservation is at the least, and how long its task may be late at the least.
const LEAST: Span = Span::from_millis(1);

/// What is in use of a worker.
#[derive(Default)]
struct InUse {
    amounts: Vector,
    devices: Devices,
    slots: u32,
}

impl InUse {
    fn add(&mut self, demand: &Demand, devices: &[u16]) {
        self.amounts.add(demand);
        if let Some(needs) = wanted_devices(demand) {
            self.devices.hold(devices, needs);
        }
        self.slots += 1;
    }

    fn remove(&mut self, demand: &Demand, devices: &[u16]) {
        self.amounts.remove(demand);
        if let Some(needs) = wanted_devices(demand) {
            self.devices.give_back(devices, needs);
        }
        self.slots -= 1;
    }
}

/// What a worker is kept for, as far as it concerns others.
pub(crate) struct Kept {
    task: TaskId,
    /// When the task should fit.
    from: Time,
    /// The task's signature.
    signature: u32,
    /// What should be in use at that moment, as far as was known when it was set, and of what has begun since.
    in_use: InUse,
}

impl Scheduler {
    // ---- what will be free when ----

    /// What occupies a worker: when that should be over, seen from a moment, its signature and its devices.
    fn occupants(&self, at: u32, seen_from: Time) -> impl Iterator<Item = (Time, u32, &[u16])> {
        let worker = &self.workers[at];
        let running = worker.running.iter().map(move |&slot| {
            let task = self.tasks.at(slot);
            let devices = self.tasks.extra(slot).map_or(&[][..], |extra| &extra.devices);
            (expected_end(seen_from, task.since, task.planned), task.signature, devices)
        });
        let ghosts = worker.ghosts().iter().map(move |ghost| {
            (expected_end(seen_from, ghost.since, ghost.planned), ghost.signature, &ghost.devices[..])
        });
        running.chain(ghosts)
    }

    /// Whether a demand fits a worker of which so much is in use: a slot, the sums, and each device by itself.
    fn fits_beside(&self, demand: &Demand, at: u32, in_use: &InUse) -> bool {
        let worker = &self.workers[at];
        let capacity = &self.classes[worker.class].capacity;
        let gpus = capacity.get(ResourceId::GPUS);
        in_use.slots < worker.slots
            && capacity.has_room(&in_use.amounts, demand)
            && wanted_devices(demand).is_none_or(|needs| in_use.devices.check(gpus, needs).is_ok())
    }

    /// The first moment at which a demand that a worker can ever meet should fit there.
    fn fits_from(&self, demand: &Demand, at: u32) -> Time {
        let worker = &self.workers[at];
        let (amounts, devices) = (worker.reserved.clone(), worker.devices.clone());
        let mut in_use = InUse { amounts, devices, slots: worker.used_slots() };
        let mut held: Vec<_> = self.occupants(at, self.now).collect();
        held.sort_by_key(|held| held.0);
        let mut from = self.now;
        for (end, signature, devices) in held {
            if self.fits_beside(demand, at, &in_use) {
                break;
            }
            in_use.remove(&self.signatures[signature].demand, devices);
            from = end;
        }
        from
    }

    // ---- whom it concerns ----

    /// What a worker is kept for, if anything.
    #[inline]
    pub(crate) fn kept(&self, at: u32) -> Option<Kept> {
        self.workers[at].reservation().and_then(|reservation| self.kept_by(&reservation, at))
    }

    fn kept_by(&self, reservation: &Reservation, at: u32) -> Option<Kept> {
        let &Reservation { task, from, made, .. } = reservation;
        let signature = self.tasks.at(self.tasks.find(task)?).signature;
        let mut in_use = InUse::default();
        for (_, signature, devices) in self.occupants(at, made).filter(|occupant| occupant.0 > from) {
            in_use.add(&self.signatures[signature].demand, devices);
        }
        Some(Kept { task, from, signature, in_use })
    }

    /// Whether something for which there is room may use a worker that is kept for another task: it ends before that one
    /// should fit, or fits beside it.
    pub(crate) fn may_pass(&self, wish: &Wish, at: u32, kept: &Kept) -> Result<(), Shortage> {
        let worker = &self.workers[at];
        let ends_at = self.now + self.planned(wish.kind, wish.declared, worker.class);
        if wish.task == Some(kept.task) || ends_at <= kept.from {
            return Ok(());
        }
        let demand = &self.signatures[wish.signature].demand;
        let gpus = self.classes[worker.class].capacity.get(ResourceId::GPUS);
        let given: Option<DeviceSet> = wanted_devices(demand).map(|needs| worker.devices.clone().take(gpus, needs));
        let (amounts, devices) = (kept.in_use.amounts.clone(), kept.in_use.devices.clone());
        let mut in_use = InUse { amounts, devices, slots: kept.in_use.slots };
        in_use.add(demand, &given.unwrap_or_default());
        if self.fits_beside(&self.signatures[kept.signature].demand, at, &in_use) {
            return Ok(());
        }
        Err(Shortage::Reserved { task: kept.task, from: kept.from })
    }

    // ---- keeping and letting go ----

    /// Keeps a worker free for what it has no room for, from the moment that should fit. Whether it did.
    pub(super) fn reserve(&mut self, wide: &Next, at: u32, actions: &mut Vec<Action>) -> bool {
        let slot = match wide {
            Next::Own(key) => key.2,
            Next::Central(found) => match self.head(found) {
                Some(Head::Task(slot)) => slot,
                Some(Head::Element) => match self.separate(found, actions) {
                    Some(slot) => slot,
                    None => return false,
                },
                None => return false,
            },
        };
        let task = self.tasks.at(slot);
        if task.flags.has(Flags::RESERVED) || !self.may_reserve(task.ready_at) {
            return false;
        }
        self.set_reservation(slot, at);
        let task = self.tasks.at_mut(slot);
        task.flags.set(Flags::RESERVED, true);
        task.worker = at;
        self.counters.reservations += 1;
        true
    }

    /// Whether what has been ready since then has waited long enough for a reservation.
    fn may_reserve(&self, ready_at: Time) -> bool {
        self.now.since(ready_at) >= self.config.scheduling.reserve_after
    }

    /// The next element of an array waits by itself from now on, if it has waited long enough for a reservation.
    fn separate(&mut self, found: &Found, actions: &mut Vec<Action>) -> Option<u32> {
        let ready_at = self.jobs[found.job].array.as_ref()?.template.ready_at;
        if !self.may_reserve(ready_at) {
            return None;
        }
        let slot = self.materialise(found.job, actions)?;
        self.wait_loose(slot, actions);
        Some(slot)
    }

    /// Keeps a worker free for a task from the moment it should fit.
    fn set_reservation(&mut self, slot: u32, at: u32) {
        self.forget_reservation(at);
        let demand = &self.signatures[self.tasks.at(slot).signature].demand;
        let from = self.fits_from(demand, at).max(self.now + LEAST);
        // What ends a little late does not put the moment off.
        let again = from + Span(from.since(self.now).0 / 16).max(LEAST);
        let task = self.tasks.id(slot);
        self.workers[at].set_reservation(Some(Reservation { task, from, made: self.now, again }));
        self.timers.set(again, Timer::Reserved(self.worker_id(at)));
    }

    fn forget_reservation(&mut self, at: u32) {
        if let Some(reservation) = self.workers[at].reservation() {
            self.timers.cancel(reservation.again, Timer::Reserved(self.worker_id(at)));
            self.workers[at].set_reservation(None);
        }
    }

    /// The moment that a worker is kept free for is well over. If its task does not fit yet, something runs longer than
    /// was thought, and there is another moment: until then others may use what is left. If it fits, nothing but a
    /// question of the worker is missing.
    pub(super) fn reservation_due(&mut self, worker: WorkerId, actions: &mut Vec<Action>) {
        let Ok(at) = self.worker_slot(worker) else { return };
        let Some(slot) = self.reserved_for(at) else { return };
        if self.fits_now(slot, at).is_err() {
            self.set_reservation(slot, at);
        }
        self.serve(at, actions);
    }

    /// The task a worker is kept free for, if that still holds.
    #[inline]
    pub(crate) fn reserved_for(&self, worker: u32) -> Option<u32> {
        self.workers[worker].reservation().and_then(|reservation| self.still_reserved(&reservation, worker))
    }

    fn still_reserved(&self, reservation: &Reservation, worker: u32) -> Option<u32> {
        let slot = self.tasks.find(reservation.task)?;
        let task = self.tasks.at(slot);
        let waits = matches!(task.state, State::Central | State::AtWorker);
        (waits && task.flags.has(Flags::RESERVED) && task.worker == worker).then_some(slot)
    }

    /// A task no longer needs the worker that is kept free for it.
    #[inline]
    pub(super) fn drop_reservation(&mut self, slot: u32) {
        let task = self.tasks.at_mut(slot);
        if !task.flags.has(Flags::RESERVED) {
            return;
        }
        task.flags.set(Flags::RESERVED, false);
        let worker = task.worker;
        if task.state == State::Central {
            task.worker = NONE;
        }
        self.forget_reservation(worker);
        self.released.push(worker);
    }

    /// Workers that were kept free for tasks which no longer need them get other work.
    pub(super) fn serve_released(&mut self, actions: &mut Vec<Action>) {
        while let Some(worker) = self.released.pop() {
            if self.workers.get(worker).is_some() {
                self.serve(worker, actions);
                self.feed_hungry(actions);
            }
        }
    }
}
