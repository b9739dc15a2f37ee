//! The worker's side: a worker asks, and gets the first task in order that it can run now.

use super::ready::{Found, Head, Search};
use super::state::Reservation;
use super::{Array, ArrayPlace, Flags, QueueKey, Scheduler, Shortage, State, Timer, wanted_devices};
use crate::action::{Action, Refusal};
use crate::explain::Decision;
use crate::ids::{NONE, ResourceId, WorkerId};
use crate::steal::QUEUE_LOOKS;
use crate::time::{Span, Time};
use crate::tracker::expected_end;
use crate::worker::WorkerState;

/// Tasks that one search looks at for something short enough to run before a wide task that waits.
const BACKFILL_LOOKS: usize = 256;
/// How soon a worker whose search was cut off looks on, if it still waits.
const LOOK_ON_AFTER: Span = Span::from_millis(1);

impl Scheduler {
    pub(super) fn pull(&mut self, worker: WorkerId, wait: bool, actions: &mut Vec<Action>) -> Result<(), Refusal> {
        let slot = self.worker_slot(worker)?;
        let before = self.workers[slot].credit;
        self.workers[slot].credit = before.saturating_add(1);
        self.hand_out(slot, actions);
        let worker = &mut self.workers[slot];
        if !wait && worker.credit > before {
            worker.credit = before;
        }
        self.relist(slot);
        Ok(())
    }

    pub(super) fn withdraw(&mut self, worker: WorkerId) -> Result<(), Refusal> {
        let slot = self.worker_slot(worker)?;
        let credit = &mut self.workers[slot].credit;
        *credit = credit.saturating_sub(1);
        self.relist(slot);
        Ok(())
    }

    /// Gives a worker what it waits for, as far as there is anything. One that is set aside is served when its step
    /// ends.
    pub(super) fn serve(&mut self, slot: u32, actions: &mut Vec<Action>) {
        if slot != self.aside {
            self.hand_out(slot, actions);
        }
        self.relist(slot);
    }

    fn hand_out(&mut self, slot: u32, actions: &mut Vec<Action>) {
        loop {
            let worker = &self.workers[slot];
            if worker.credit == 0 || worker.state != WorkerState::Up || !(self.remote || worker.has_free_slot()) {
                return;
            }
            if self.remote {
                if !self.hand_next(slot, actions) {
                    return;
                }
                continue;
            }
            let Some(task) = self.choose_for(slot, actions) else { return };
            self.assign(task, slot, actions);
        }
    }

    /// The task that a worker with a free slot gets next, taken out of its queue.
    fn choose_for(&mut self, worker: u32, actions: &mut Vec<Action>) -> Option<u32> {
        if let Some(slot) = self.reserved_for(worker)
            && self.fits_now(slot, worker).is_ok()
        {
            if self.tasks.at(slot).state == State::AtWorker {
                return Some(self.take_own(slot));
            }
            self.take_from_lane(slot);
            return Some(slot);
        }
        let own = self.first_own(worker);
        let floor = own.map_or(1, |key| u8::MAX - key.0);
        let central = self.first_central(worker, floor, actions);
        let slot = match (own, central) {
            (Some(own), Some(found)) if (u8::MAX - found.level, found.order) < (own.0, own.1) => {
                self.take_found(&found, actions)
            }
            (Some(own), _) => Some(self.take_own(own.2)),
            (None, Some(found)) => self.take_found(&found, actions),
            (None, None) => {
                if !self.may_steal(worker) || self.steal_for(worker, actions) == 0 {
                    return None;
                }
                self.first_own(worker).map(|key| self.take_own(key.2))
            }
        }?;
        if self.config.limits.decisions_kept > 0 {
            let decision = Decision::asked(self.tasks.id(slot), self.worker_id(worker), self.now);
            self.remember(decision);
        }
        Some(slot)
    }

    /// The first task in the worker's own queue that fits now. If the very first is too wide for what is left, the
    /// worker is kept free for it, so that narrow ones do not pass it for ever.
    fn first_own(&mut self, worker: u32) -> Option<QueueKey> {
        let (_, _, first) = self.workers[worker].queue.first()?;
        if let Err(Shortage::Resource { .. }) = self.fits_now(first, worker)
            && self.workers[worker].reservation().is_none()
        {
            self.reserve_slot(first, worker);
        }
        let queue = &self.workers[worker].queue;
        queue.iter().take(QUEUE_LOOKS).find(|key| self.fits_now(key.2, worker).is_ok())
    }

    pub(super) fn take_own(&mut self, slot: u32) -> u32 {
        self.leave_worker_queue(slot);
        self.age_leave(slot);
        self.counters.queued -= 1;
        slot
    }

    /// The first lane of the central queue, not below a level, whose head fits the worker now. On the way, the first
    /// task that this worker could run but has no room for gets a reservation in time.
    pub(super) fn first_central(&mut self, at: u32, floor: u8, actions: &mut Vec<Action>) -> Option<Found> {
        let (mut search, wide) = self.search(at, floor);
        if let Some(wide) = wide
            && self.reserve(&wide, at, actions)
        {
            // What was found must not get in the way of the reservation.
            search = self.search(at, floor).0;
        }
        self.workers[at].resume = search.cut_off.map(Box::new);
        if search.cut_off.is_some() {
            self.timers.set(self.now + LOOK_ON_AFTER, Timer::Look(self.worker_id(at)));
        }
        search.found
    }

    /// What fits, and what would have come before it if there were room.
    fn search(&self, at: u32, floor: u8) -> (Search, Option<Found>) {
        let worker = &self.workers[at];
        let class = &self.classes[worker.class];
        let (mut wide, mut picked, mut looks) = (None, None, BACKFILL_LOOKS);
        let mut search = self.ready.find(floor, worker.resume.as_deref(), |found| {
            let signature = &self.signatures[found.signature];
            if class.can_ever(signature).is_err() {
                return false;
            }
            if self.remote {
                return self.is_ahead_in(found, at) || worker.has_room(class, signature).is_ok();
            }
            match worker.has_room(class, signature) {
                Ok(()) if worker.reservation().is_none() => true,
                Ok(()) if self.head(found) == Some(Head::Element) => self.may_backfill_element(found, at),
                Ok(()) => {
                    picked = self.backfill(found, at, &mut looks);
                    picked.is_some()
                }
                Err(Shortage::Resource { .. }) => {
                    if wide.is_none() && worker.reservation().is_none() {
                        wide = Some(*found);
                    }
                    false
                }
                Err(_) => false,
            }
        });
        if let Some(found) = &mut search.found {
            found.picked = picked;
        }
        (search, wide)
    }

    /// Something of a lane that may use a worker although a wide task waits for it: the first, or one of the next that is
    /// shorter. `looks` falls by those looked at.
    fn backfill(&self, found: &Found, at: u32, looks: &mut usize) -> Option<u32> {
        let tasks = self
            .ready
            .in_order(self.signatures[found.signature].waiting, &self.tasks, found)
            .take(*looks)
            .inspect(|_| *looks -= 1);
        let mut tasks = tasks.filter(|&slot| self.fits_now(slot, at).is_ok());
        tasks.next()
    }

    fn may_backfill_element(&self, found: &Found, at: u32) -> bool {
        let wish = self.jobs[found.job].array.as_ref().map(Array::wish);
        wish.is_some_and(|wish| self.wish_fits(&wish, at).is_ok())
    }

    /// Keeps a worker free for the task that is first in a lane, from the moment it should fit. Whether it did.
    fn reserve(&mut self, wide: &Found, at: u32, actions: &mut Vec<Action>) -> bool {
        let slot = match self.head(wide) {
            Some(Head::Task(slot)) => slot,
            Some(Head::Element) => {
                let ready_at = self.jobs[wide.job].array.as_ref().map(|array| array.template.ready_at);
                if ready_at.is_none_or(|ready_at| !self.may_reserve(ready_at)) {
                    return false;
                }
                let Some(slot) = self.materialise(wide.job, actions) else { return false };
                self.wait_loose(slot, actions);
                slot
            }
            None => return false,
        };
        self.reserve_slot(slot, at)
    }

    /// Whether what has been ready since then has waited long enough for a reservation.
    fn may_reserve(&self, ready_at: Time) -> bool {
        self.now.since(ready_at) >= self.config.scheduling.reserve_after
    }

    /// Keeps a worker free for a queued task, unless the task has one already or has not waited long enough.
    fn reserve_slot(&mut self, slot: u32, at: u32) -> bool {
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

    /// When a task that a worker can ever run is expected to fit there.
    pub(crate) fn fits_from(&self, slot: u32, at: u32) -> Time {
        let worker = &self.workers[at];
        let capacity = &self.classes[worker.class].capacity;
        let demand = &self.signatures[self.tasks.at(slot).signature].demand;
        let (gpus, needs) = (capacity.get(ResourceId::GPUS), wanted_devices(demand));
        let mut ends: Vec<(Time, u32, &[u16])> = Vec::with_capacity(worker.used_slots() as usize);
        for &running in &worker.running {
            let task = self.tasks.at(running);
            let devices = self.tasks.extra(running).map_or(&[][..], |extra| &extra.devices);
            ends.push((expected_end(self.now, task.since, task.planned), task.signature, devices));
        }
        for ghost in worker.ghosts() {
            ends.push((expected_end(self.now, ghost.since, ghost.planned), ghost.signature, &ghost.devices));
        }
        ends.sort_by_key(|end| end.0);
        let (mut reserved, mut devices) = (worker.reserved.clone(), worker.devices.clone());
        for (end, signature, held) in ends {
            let ended = &self.signatures[signature].demand;
            reserved.remove(ended);
            if let Some(needs) = wanted_devices(ended) {
                devices.give_back(held, needs);
            }
            let on_devices = needs.is_none_or(|needs| devices.check(gpus, needs).is_ok());
            if on_devices && capacity.has_room(&reserved, demand) {
                return end;
            }
        }
        self.now
    }

    /// The moment has come that a worker is kept free for. If its task does not fit yet, something runs longer than was
    /// thought: until then others may use what is left.
    pub(super) fn reservation_due(&mut self, worker: WorkerId, actions: &mut Vec<Action>) {
        let Ok(at) = self.worker_slot(worker) else { return };
        let (Some(reservation), Some(slot)) = (self.workers[at].reservation(), self.reserved_for(at)) else { return };
        if reservation.from > self.now {
            return;
        }
        self.set_reservation(slot, at);
        self.serve(at, actions);
    }

    /// Keeps a worker free for a task from the moment it should fit.
    fn set_reservation(&mut self, slot: u32, at: u32) {
        let from = self.fits_from(slot, at).max(self.now + LOOK_ON_AFTER);
        let task = self.tasks.id(slot);
        self.workers[at].set_reservation(Some(Reservation { task, from }));
        // What ends a little late does not put the moment off.
        let late = Span(from.since(self.now).0 / 16).max(LOOK_ON_AFTER);
        self.timers.set(from + late, Timer::Reserved(self.worker_id(at)));
    }

    /// The task a worker is kept free for, if that still holds.
    pub(crate) fn reserved_for(&self, worker: u32) -> Option<u32> {
        let reservation = self.workers[worker].reservation()?;
        let slot = self.tasks.find(reservation.task)?;
        let task = self.tasks.at(slot);
        let waits = matches!(task.state, State::Central | State::AtWorker);
        (waits && task.flags.has(Flags::RESERVED) && task.worker == worker).then_some(slot)
    }

    /// A task no longer needs the worker that is kept free for it.
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
        self.workers[worker].set_reservation(None);
        self.released.push(worker);
    }

    /// Workers that were kept free for tasks which no longer need them get other work.
    pub(super) fn serve_released(&mut self, actions: &mut Vec<Action>) {
        while let Some(worker) = self.released.pop() {
            if self.workers.get(worker).is_some() {
                self.serve(worker, actions);
            }
        }
    }

    /// What is first in a lane that was found, if it is still there.
    #[inline]
    pub(super) fn head(&self, found: &Found) -> Option<Head> {
        self.ready.head(self.signatures.get(found.signature)?.waiting, &self.tasks, found)
    }

    pub(super) fn take_found(&mut self, found: &Found, actions: &mut Vec<Action>) -> Option<u32> {
        match self.head(found)? {
            Head::Task(first) => {
                let slot = found.picked.unwrap_or(first);
                self.take_from_lane(slot);
                Some(slot)
            }
            Head::Element => {
                let slot = self.materialise(found.job, actions)?;
                self.counters.queued -= 1;
                self.notify(slot, crate::task::Status::Queued, crate::task::Cause::None, actions);
                Some(slot)
            }
        }
    }

    pub(super) fn take_from_lane(&mut self, slot: u32) {
        self.leave_lane(slot);
        self.age_leave(slot);
        self.counters.queued -= 1;
    }

    /// Turns the next element of an array into a task of its own, nowhere yet.
    pub(super) fn materialise(&mut self, job: u32, actions: &mut Vec<Action>) -> Option<u32> {
        let array = self.jobs[job].array.as_mut()?;
        let index = array.advance()?;
        array.since = self.now;
        let (level, place, left) = (array.level, array.place, array.pending());
        let template = array.template.clone();
        self.signatures[template.signature].users += 1;
        let slot = self.tasks.allocate();
        let task = self.tasks.at_mut(slot);
        task.state = State::Blocked;
        task.priority = template.priority;
        task.level = level;
        task.flags.set(Flags::EXCLUSIVE, template.exclusive);
        task.flags.set(Flags::IDEMPOTENT, template.idempotent);
        task.flags.set(Flags::ELEMENT, true);
        task.rank = template.rank;
        task.signature = template.signature;
        task.kind = template.kind;
        task.job = job;
        task.key = template.key;
        task.index = index;
        task.payload = template.payload;
        task.sequence = template.sequence;
        task.since = template.ready_at;
        task.ready_at = template.ready_at;
        task.deadline = template.deadline;
        task.estimate = template.estimate;
        if let Some(extra) = template.extra {
            *self.tasks.extra_mut(slot) = *extra;
        }
        if template.deadline != Time::NEVER {
            self.timers.set(template.deadline, Timer::Deadline(self.tasks.id(slot)));
        }
        let (id, payload) = (self.job_id(job), template.payload);
        actions.push(Action::Element { job: id, index, task: self.tasks.id(slot), payload });
        self.tasks.at_mut(slot).member = self.jobs[job].members.insert(slot);
        self.counters.pending_elements -= 1;
        if left == 0 {
            if place == ArrayPlace::Lane {
                self.set_array_place(level, job, template.signature, 0, None);
            }
            self.empty_array(job);
        }
        Some(slot)
    }

    /// Nothing of an array is left to be handed out: it gives up its hold on the signature.
    pub(super) fn empty_array(&mut self, job: u32) {
        if let Some(array) = self.jobs[job].array.as_mut()
            && array.place != ArrayPlace::Empty
        {
            array.place = ArrayPlace::Empty;
            self.parked_arrays.remove(&job);
            let signature = array.template.signature;
            self.release_signature(signature);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capabilities::CapabilitySet;
    use crate::ids::CapabilityId;
    use crate::resources::{Amount, Demand, Vector};
    use crate::task::TaskSpec;
    use crate::worker::WorkerSpec;
    use crate::{Config, Event};

    #[test]
    fn a_task_behind_very_many_lanes_that_do_not_fit_is_found_in_the_end() {
        let mut scheduler = Scheduler::new(&Config::default()).unwrap();
        let mut actions = Vec::new();
        let able: CapabilitySet = [CapabilityId(0)].into_iter().collect();
        let memory = |units| Vector::new([(ResourceId::MEMORY, Amount::from_units(units))]);
        // Somebody could run them all, but does not ask; who asks can run only the last.
        for capabilities in [able.clone(), CapabilitySet::default()] {
            let spec = WorkerSpec { capabilities, resources: memory(20_000), ..WorkerSpec::default() };
            scheduler.step(Time::ZERO, Event::Join(spec), &mut actions);
        }
        let worker = scheduler.workers().last().unwrap();
        for units in 1..=10_000 {
            let demand = Demand::new([(ResourceId::MEMORY, Amount::from_units(units))]);
            let spec = TaskSpec { requires: able.clone(), demand, ..TaskSpec::default() };
            scheduler.step(Time::ZERO, Event::Submit(Box::new(spec)), &mut actions);
        }
        scheduler.step(
            Time::ZERO,
            Event::Submit(Box::new(TaskSpec { payload: 7, ..TaskSpec::default() })),
            &mut actions,
        );
        actions.clear();
        scheduler.step(Time::ZERO, Event::Pull { worker, wait: true }, &mut actions);
        for _ in 0..3 {
            let Some(at) = scheduler.next_timer() else { break };
            scheduler.step(at, Event::Tick, &mut actions);
        }
        assert!(actions.iter().any(|action| matches!(action, Action::Assign { payload: 7, .. })));
        scheduler.check().unwrap();
    }
}
