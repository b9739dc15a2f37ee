//! The worker's side: a worker asks, and gets the first task in order that it can run now.

use super::ready::{Found, Head, Search};
use super::reserve::Kept;
use super::{Array, ArrayPlace, Flags, OrderKey, QueueKey, Scheduler, Shortage, State, Timer};
use crate::action::{Action, Record, Refusal};
use crate::ids::WorkerId;
use crate::steal::QUEUE_LOOKS;
use crate::time::{Span, Time};
use crate::worker::WorkerState;

/// Tasks that one search looks at for something short enough to run before a wide task that waits.
const BACKFILL_LOOKS: usize = 256;
/// How soon a worker whose search was cut off looks on, if it still waits.
const LOOK_ON_AFTER: Span = Span::from_millis(1);

/// Something a worker may be given, and where it waits.
pub(super) enum Next {
    /// In the worker's own queue.
    Own(QueueKey),
    /// In a lane of the central queue.
    Central(Found),
}

impl Next {
    /// The order between the two: highest level first, then as inside a level.
    fn place(&self) -> (u8, OrderKey) {
        match self {
            Next::Own(key) => (key.0, key.1),
            Next::Central(found) => (u8::MAX - found.level, found.order),
        }
    }

    fn comes_before(&self, other: Option<&Next>) -> bool {
        other.is_none_or(|other| self.place() < other.place())
    }

    /// The earlier of two; the worker's own if they are equal.
    fn earlier(own: Option<Next>, central: Option<Next>) -> Option<Next> {
        match central {
            Some(central) if central.comes_before(own.as_ref()) => Some(central),
            _ => own,
        }
    }
}

impl Scheduler {
    pub(super) fn pull(&mut self, worker: WorkerId, wait: bool, actions: &mut Vec<Action>) -> Result<(), Refusal> {
        let slot = self.worker_slot(worker)?;
        let asker = &mut self.workers[slot];
        let before = asker.credit;
        asker.credit = before.saturating_add(1);
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

    /// The same where nobody is set aside.
    #[inline(always)]
    pub(super) fn serve_now(&mut self, slot: u32, actions: &mut Vec<Action>) {
        self.hand_out(slot, actions);
        self.relist(slot);
    }

    #[inline]
    fn hand_out(&mut self, slot: u32, actions: &mut Vec<Action>) {
        while self.takes_more(slot) && self.hand_one(slot, actions) {}
    }

    #[inline]
    fn takes_more(&self, slot: u32) -> bool {
        let worker = &self.workers[slot];
        self.takes_tasks(worker) && worker.state == WorkerState::Up && (self.remote || worker.has_free_slot())
    }

    /// Gives a worker that takes more one task. Whether there was one.
    #[inline(never)]
    fn hand_one(&mut self, slot: u32, actions: &mut Vec<Action>) -> bool {
        if self.remote {
            return self.hand_next(slot, actions);
        }
        let task = self.choose_for(slot, actions);
        if let Some(task) = task {
            self.assign(task, slot, actions);
        }
        task.is_some()
    }

    /// The task that a worker with a free slot gets next, taken out of its queue.
    #[inline(always)]
    fn choose_for(&mut self, worker: u32, actions: &mut Vec<Action>) -> Option<u32> {
        if let Some(slot) = self.first_of_all(worker) {
            self.remember_asked(slot, worker);
            return Some(slot);
        }
        self.choose_among(worker, actions)
    }

    /// The first task of the central queue, taken out of it, if a worker has room for it and there is nothing to weigh it
    /// against: nothing of its own waits, it is kept for nobody, and no search of its was cut off. What `choose_among` would
    /// come to then, without the search.
    #[inline(always)]
    fn first_of_all(&mut self, worker: u32) -> Option<u32> {
        let asker = &self.workers[worker];
        if asker.rare.is_some() || asker.resume.is_some() || !asker.queue.is_empty() {
            return None;
        }
        let found = self.ready.first(1)?;
        let (class, signature) = (&self.classes[asker.class], &mut self.signatures[found.signature]);
        if class.can_ever(signature).is_err() || asker.has_room(class, signature).is_err() {
            return None;
        }
        let (slot, next) = self.ready.take_first(&mut signature.waiting, &self.tasks, &found)?;
        self.left_lane(slot, next);
        self.leave_age_and_count(slot);
        Some(slot)
    }

    #[inline(never)]
    fn choose_among(&mut self, worker: u32, actions: &mut Vec<Action>) -> Option<u32> {
        if let Some(slot) = self.reserved_for(worker)
            && self.fits_now(slot, worker).is_ok()
        {
            if self.tasks.at(slot).state == State::AtWorker {
                return Some(self.take_own(slot));
            }
            self.take_from_lane(slot);
            return Some(slot);
        }
        let mut next = self.next_for(worker, actions);
        if next.is_none() && self.may_steal(worker) && self.steal_for(worker, actions) > 0 {
            next = self.next_for(worker, actions);
        }
        let slot = match next? {
            Next::Own(own) => self.take_own(own.2),
            Next::Central(found) => self.take_found(&found, actions)?,
        };
        self.remember_asked(slot, worker);
        Some(slot)
    }

    /// What comes next for a worker. A wide task that would come before it gets a reservation in time, and then only what
    /// keeps out of its way is left.
    #[inline(always)]
    fn next_for(&mut self, worker: u32, actions: &mut Vec<Action>) -> Option<Next> {
        let (next, wide) = self.look(worker);
        match wide {
            Some(wide) if self.reserve(&wide, worker, actions) => self.look_again(worker),
            _ => next,
        }
    }

    /// What is left for a worker that is kept for a wide task. Seldom needed, so it keeps out of the way of `next_for`.
    #[cold]
    fn look_again(&mut self, worker: u32) -> Option<Next> {
        self.look(worker).0
    }

    /// The first that a worker could run and that fits now, and, unless it is kept for a task already, the first before
    /// that which it has no room for. In its own queue only the very first of all may be that one.
    #[inline(always)]
    fn look(&mut self, worker: u32) -> (Option<Next>, Option<Next>) {
        let first = self.workers[worker].queue.first();
        let own = if first.is_none() { None } else { self.first_own(worker) };
        let floor = own.map_or(1, |key| u8::MAX - key.0);
        let (central, wide) = self.first_central(worker, floor);
        if first.is_none() {
            let wide = wide.filter(|_| self.workers[worker].reservation().is_none());
            return (central.map(Next::Central), wide.map(Next::Central));
        }
        let (own, central) = (own.map(Next::Own), central.map(Next::Central));
        if self.workers[worker].reservation().is_some() {
            return (Next::earlier(own, central), None);
        }
        let own_wide = first.map(Next::Own).filter(|first| Some(first.place()) != own.as_ref().map(Next::place));
        let own_wide = own_wide.filter(|first| first.comes_before(central.as_ref()));
        let wide = wide.map(Next::Central).filter(|wide| wide.comes_before(own.as_ref()));
        (Next::earlier(own, central), Next::earlier(own_wide, wide))
    }

    /// The first task in the worker's own queue that fits now.
    fn first_own(&self, worker: u32) -> Option<QueueKey> {
        let queue = &self.workers[worker].queue;
        queue.iter().take(QUEUE_LOOKS).find(|key| self.fits_now(key.2, worker).is_ok())
    }

    pub(super) fn take_own(&mut self, slot: u32) -> u32 {
        self.leave_worker_queue(slot);
        self.leave_age_and_count(slot);
        slot
    }

    /// What of the central queue, not below a level, fits the worker now, and the first that would have come before it if
    /// there were room.
    #[inline(always)]
    pub(super) fn first_central(&mut self, at: u32, floor: u8) -> (Option<Found>, Option<Found>) {
        let (search, wide) = self.search(at, floor);
        // Both are nearly always nothing.
        if search.cut_off.is_some() || self.workers[at].resume.is_some() {
            self.workers[at].resume = search.cut_off.map(Box::new);
        }
        if search.cut_off.is_some() {
            self.timers.set(self.now + LOOK_ON_AFTER, Timer::Look(self.worker_id(at)));
        }
        (search.found, wide)
    }

    #[inline(always)]
    fn search(&self, at: u32, floor: u8) -> (Search, Option<Found>) {
        let worker = &self.workers[at];
        let class = &self.classes[worker.class];
        let kept = self.kept(at);
        let (mut wide, mut picked, mut looks) = (None, None, BACKFILL_LOOKS);
        let mut search = self.ready.find(floor, worker.resume.as_deref(), |found| {
            let signature = &self.signatures[found.signature];
            if class.can_ever(signature).is_err() {
                return false;
            }
            if self.remote {
                return self.is_ahead_in(found, at) || worker.has_room(class, signature).is_ok();
            }
            match (worker.has_room(class, signature), &kept) {
                (Ok(()), None) => true,
                (Ok(()), Some(kept)) if self.head(found) == Some(Head::Element) => {
                    let wish = self.jobs[found.job].array.as_ref().map(Array::wish);
                    wish.is_some_and(|wish| self.may_pass(&wish, at, kept).is_ok())
                }
                (Ok(()), Some(kept)) => {
                    picked = self.backfill(found, at, kept, &mut looks);
                    picked.is_some()
                }
                (Err(Shortage::Resource { .. }), None) => {
                    wide = wide.or(Some(*found));
                    false
                }
                (Err(_), _) => false,
            }
        });
        if let (Some(found), Some(picked)) = (&mut search.found, picked) {
            found.picked = Some(picked);
            found.order = self.tasks.at(picked).order();
        }
        (search, wide)
    }

    /// Something of a lane that may use a worker although a wide task waits for it: the first, or one of the next that is
    /// shorter. `looks` falls by those looked at.
    fn backfill(&self, found: &Found, at: u32, kept: &Kept, looks: &mut usize) -> Option<u32> {
        let mut tasks = self
            .ready
            .in_order(self.signatures[found.signature].waiting, &self.tasks, found)
            .take(*looks)
            .inspect(|_| *looks -= 1);
        tasks.find(|&slot| self.may_pass(&self.wish_of(slot), at, kept).is_ok())
    }

    /// What is first in a lane that was found, if it is still there.
    #[inline(always)]
    pub(super) fn head(&self, found: &Found) -> Option<Head> {
        self.ready.head(self.signatures.get(found.signature)?.waiting, &self.tasks, found)
    }

    #[inline(always)]
    pub(super) fn take_found(&mut self, found: &Found, actions: &mut Vec<Action>) -> Option<u32> {
        match self.head(found)? {
            Head::Task(first) => {
                let slot = found.picked.unwrap_or(first);
                self.take_from_lane(slot);
                Some(slot)
            }
            Head::Element => self.take_element(found.job, actions),
        }
    }

    #[inline(never)]
    fn take_element(&mut self, job: u32, actions: &mut Vec<Action>) -> Option<u32> {
        let slot = self.materialise(job, actions)?;
        self.counters.queued -= 1;
        self.notify(slot, crate::task::Status::Queued, crate::task::Cause::None, actions);
        Some(slot)
    }

    #[inline]
    pub(super) fn take_from_lane(&mut self, slot: u32) {
        self.leave_lane(slot);
        self.leave_age_and_count(slot);
    }

    /// A task that has left its queue waits no longer.
    #[inline(always)]
    pub(super) fn leave_age_and_count(&mut self, slot: u32) {
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
        let task = self.tasks.id(slot);
        actions.push(Action::Element { job: id, index, task, payload });
        self.persist(Record::Element { task, job: id, index }, actions);
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
    use crate::ids::{CapabilityId, ResourceId};
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
