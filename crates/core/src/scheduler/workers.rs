//! Workers come, change, report, fall silent and leave.

use smallvec::SmallVec;

use super::devices::MOST;
use super::own::OwnQueue;
use super::restore::next_of;
use super::{Class, Devices, Flags, Scheduler, State, Timer, Worker, queue_key};
use crate::action::{Action, Record, Refusal};
use crate::capabilities::CapabilityBits;
use crate::event::{Remaining, WorkerChange};
use crate::ids::{NONE, ResourceId, TaskId, WorkerId};
use crate::map::short_hash;
use crate::resources::{Amount, Vector};
use crate::task::{Cause, Status};
use crate::time::{Span, Work};
use crate::tracker::MovingAverage;
use crate::worker::{LoadReport, WorkerSpec, WorkerState};

/// Parked tasks looked at when a new class of workers appears; the rest are found by their own timers.
const UNPARKED_PER_JOIN: usize = 1024;
/// Of each signature so many are looked at then.
const PARKED_LOOKED_AT: usize = 4096;
/// How often the worker of a pinned task may have been started anew.
const HEIRS_LOOKED_AT: usize = 256;

impl Scheduler {
    pub(super) fn join(&mut self, spec: WorkerSpec, actions: &mut Vec<Action>) -> Result<(), Refusal> {
        check_spec(&spec)?;
        let first = self.workers.len() == 0;
        let tag = spec.tag;
        let own = self.own_generations();
        let (slot, generation) = next_of(own, &mut self.workers, &mut self.worker_generations);
        let worker = self.new_worker(spec, slot, generation);
        let class = worker.class;
        self.workers.insert(worker);
        self.counters.worker_came(&self.config.load_balancing.thresholds);
        let worker = self.worker_id(slot);
        actions.push(Action::Joined { tag, worker });
        self.persist(Record::Joined { worker, tag }, actions);
        self.up_again(slot);
        if first && self.counters.queued > 0 {
            self.expect_orphans();
        }
        self.revisit_parked(class, actions);
        Ok(())
    }

    /// A worker that holds nothing, for that slot.
    pub(super) fn new_worker(&mut self, spec: WorkerSpec, slot: u32, generation: u32) -> Worker {
        let (tag, slots) = (spec.tag, spec.slots);
        let cores_implied = spec.implies_cores();
        let (class, class_at) = self.enter_class(new_class(spec), slot);
        self.counters.joined += 1;
        Worker {
            generation,
            class,
            class_at,
            state: WorkerState::Up,
            before_silence: WorkerState::Up,
            silent_since: self.now,
            slots,
            cores_implied,
            credit: 0,
            reserved: Vector::default(),
            devices: Devices::default(),
            running: SmallVec::new(),
            rare: None,
            queue: OwnQueue::default(),
            queued_work: Work::default(),
            running_work: Work::default(),
            resume: None,
            keys: SmallVec::new(),
            listed: false,
            loaded_at: NONE,
            joined: self.counters.joined,
            tag,
            since: self.now,
            report: LoadReport::default(),
            average: MovingAverage::default(),
            more_averages: Vec::new(),
            completed: 0,
            failed: 0,
            failures_in_a_row: 0,
            quarantines: 0,
            assigned: 0,
            last_assigned: 0,
            stolen: 0,
            lost: 0,
            holds: 0,
            fingerprint: 0,
            busy: Span::ZERO,
            waited: Span::ZERO,
        }
    }

    pub(super) fn set_state(&mut self, slot: u32, state: WorkerState) {
        let set_aside = |state: WorkerState| u64::from(matches!(state, WorkerState::Quarantined(_)));
        let before = std::mem::replace(&mut self.workers[slot].state, state);
        self.counters.quarantined = self.counters.quarantined + set_aside(state) - set_aside(before);
    }

    /// The worker gets work from now on.
    pub(super) fn up_again(&mut self, slot: u32) {
        if self.push_bound() {
            self.by_depth.insert((self.workers[slot].queue.len() as u32, slot));
        }
        self.relist(slot);
    }

    /// The worker gets no work from now on. (Its state has been changed already.)
    pub(super) fn not_up(&mut self, slot: u32) {
        self.unlist(slot);
        self.by_depth.remove(&(self.workers[slot].queue.len() as u32, slot));
        if let Some(task) = self.reserved_for(slot) {
            self.drop_reservation(task);
        }
    }

    /// Makes a worker a member of a class; the class, and its position there.
    fn enter_class(&mut self, class: Class, worker: u32) -> (u32, u32) {
        let hash = class_hash(&class);
        let known = self.class_table.find(hash, |at| self.classes[at].same(&class));
        let at = known.unwrap_or_else(|| {
            let at = self.classes.insert(class);
            self.class_table.insert(hash, at);
            self.classes[at].born = self.hosts.class_came(at, &self.classes[at].capabilities);
            self.introduce_newcomers();
            at
        });
        let members = &mut self.classes[at].members;
        members.push(worker);
        (at, members.len() as u32 - 1)
    }

    /// Ends the membership of a worker, given its class and position there; an empty class is gone.
    fn leave_class(&mut self, at: u32, class_at: u32, actions: &mut Vec<Action>) {
        let members = &mut self.classes[at].members;
        members.swap_remove(class_at as usize);
        if let Some(&moved) = members.get(class_at as usize) {
            self.workers[moved].class_at = class_at;
        }
        if !self.classes[at].members.is_empty() {
            return;
        }
        let hash = class_hash(&self.classes[at]);
        self.class_table.remove(hash, at);
        let Some(gone) = self.classes.remove(at) else { return };
        self.hosts.class_went(at, gone.born, &gone.capabilities);
        self.go_on_with_hosts(actions);
        if self.counters.queued > 0 {
            self.expect_orphans();
        }
    }

    fn class_can_run(&self, class: u32, signature: u32) -> bool {
        self.classes[class].can_ever(&self.signatures[signature]).is_ok()
    }

    /// A worker of this class may be what parked tasks wait for; the first in order are queued first.
    fn revisit_parked(&mut self, class: u32, actions: &mut Vec<Action>) {
        let arrays: Vec<u32> = self.parked_arrays.iter().copied().take(UNPARKED_PER_JOIN).collect();
        for job in arrays {
            let signature = self.jobs[job].array.as_ref().map(|array| array.template.signature);
            if signature.is_some_and(|signature| self.class_can_run(class, signature)) {
                self.queue_array(job, actions);
            }
        }
        let signatures: Vec<u32> = self.parked.keys().copied().take(UNPARKED_PER_JOIN).collect();
        let mut places = Vec::new();
        for signature in signatures {
            if self.class_can_run(class, signature) {
                // What is pinned to somebody who has gone waits for that one alone.
                let waits =
                    |slot: &&u32| !self.tasks.at(**slot).flags.has(Flags::PINNED) || self.home_of(**slot).is_some();
                let slots = self.parked.get(&signature).into_iter().flatten().take(PARKED_LOOKED_AT).filter(waits);
                let place = |&slot: &u32| queue_key(self.tasks.at(slot).level, self.tasks.at(slot).order(), slot);
                places.extend(slots.take(UNPARKED_PER_JOIN - places.len()).map(place));
            }
        }
        places.sort_unstable();
        for (_, _, slot) in places {
            self.unpark(slot);
            self.enqueue(slot, Cause::None, actions);
        }
    }

    /// A worker is a former one that was started anew. That may still be believed alive, and keeps what is pinned to it until it
    /// is not.
    pub(super) fn succeeds(
        &mut self,
        worker: WorkerId,
        former: WorkerId,
        actions: &mut Vec<Action>,
    ) -> Result<(), Refusal> {
        if worker != former {
            // It may have gone itself, and somebody may have come after it.
            self.heirs.insert(former, worker);
        }
        let at = self.worker_slot(worker)?;
        self.revisit_parked(self.workers[at].class, actions);
        Ok(())
    }

    /// The worker a task is pinned to, or whoever came after it, while that is registered. Who came after it may be another machine,
    /// and is asked whether it can run the task; of the worker itself that was asked when the task came.
    pub(crate) fn home_of(&self, slot: u32) -> Option<u32> {
        let pin = self.tasks.extra(slot).and_then(|extra| extra.pin)?;
        let mut home = pin;
        for _ in 0..HEIRS_LOOKED_AT {
            if let Ok(at) = self.worker_slot(home) {
                let fits = || self.class_can_run(self.workers[at].class, self.tasks.at(slot).signature);
                return (home == pin || fits()).then_some(at);
            }
            home = *self.heirs.get(&home)?;
        }
        None
    }

    /// Whether a task that waits has somebody to wait for. With nobody registered at all nobody has refused it either; what is pinned
    /// has its own worker or none.
    pub(super) fn may_stay(&mut self, slot: u32) -> bool {
        let task = self.tasks.at(slot);
        if task.flags.has(Flags::PINNED) {
            return self.home_of(slot).is_some();
        }
        let signature = task.signature;
        self.workers.len() == 0 || self.has_host(signature)
    }

    /// A pinned task whose worker has gone is nowhere. Where workers are elsewhere they may come back, and it waits as one that
    /// nobody can run.
    pub(super) fn lose_home(&mut self, slot: u32, actions: &mut Vec<Action>) {
        if self.remote {
            self.park(slot, actions);
        } else {
            self.settle(slot, Status::Failed, Cause::NoWorker, actions);
        }
    }

    pub(super) fn change(
        &mut self,
        worker: WorkerId,
        change: WorkerChange,
        actions: &mut Vec<Action>,
    ) -> Result<(), Refusal> {
        let slot = self.worker_slot(worker)?;
        let old = &self.classes[self.workers[slot].class];
        let mut declared = old.capacity.clone();
        if self.workers[slot].cores_implied {
            declared.set(ResourceId::CPUS, Amount(0));
        }
        let spec = WorkerSpec {
            tag: 0,
            capabilities: change.capabilities.unwrap_or_else(|| old.capabilities.clone()),
            resources: change.resources.unwrap_or(declared),
            slots: change.slots.unwrap_or(old.slots),
            speed: change.speed.unwrap_or(old.speed),
            cost_rate: change.cost_rate.unwrap_or(old.cost_rate),
            weight: change.weight.unwrap_or(old.weight),
        };
        check_spec(&spec)?;
        self.unlist(slot);
        let worker = &mut self.workers[slot];
        let used = worker.used_slots();
        self.counters.use_changed((used, worker.slots), (used, spec.slots));
        worker.slots = spec.slots;
        worker.cores_implied = spec.implies_cores();
        let (class, class_at) = self.enter_class(new_class(spec), slot);
        let worker = &mut self.workers[slot];
        let before = (worker.class, worker.class_at);
        (worker.class, worker.class_at) = (class, class_at);
        self.aside = slot;
        self.leave_class(before.0, before.1, actions);
        match (change.draining, self.workers[slot].state) {
            (Some(true), WorkerState::Up | WorkerState::Quarantined(_)) => {
                self.set_state(slot, WorkerState::Draining);
                self.not_up(slot);
                // One with a queue of its own gives back what waits there when it hears of it. Until then it may begin some.
                if !self.remote {
                    self.requeue_queue(slot, Cause::WorkerLeft, actions);
                }
            }
            (Some(false), WorkerState::Draining) => {
                self.set_state(slot, WorkerState::Up);
                self.up_again(slot);
            }
            (Some(true), WorkerState::Silent) => self.workers[slot].before_silence = WorkerState::Draining,
            (Some(false), WorkerState::Silent) => self.workers[slot].before_silence = WorkerState::Up,
            _ => {}
        }
        self.relist(slot);
        // Only what it is can make a task unfit for it; whether it drains cannot.
        if class != before.0 {
            self.requeue_unfit(slot, actions);
        }
        if let Some(task) = self.reserved_for(slot) {
            self.drop_reservation(task);
        }
        self.revisit_parked(class, actions);
        self.aside = NONE;
        self.serve(slot, actions);
        Ok(())
    }

    /// Queued tasks that the changed worker can never run go elsewhere.
    fn requeue_unfit(&mut self, at: u32, actions: &mut Vec<Action>) {
        let class = &self.classes[self.workers[at].class];
        let unfit = |slot: &u32| class.can_ever(&self.signatures[self.tasks.at(*slot).signature]).is_err();
        let slots: Vec<u32> = self.workers[at].queue.iter().map(|key| key.2).filter(unfit).collect();
        for slot in slots {
            let task = self.tasks.at(slot);
            // One that left its queue may have let in another, and so moved this one.
            if task.state != State::AtWorker || task.worker != at {
                continue;
            }
            if task.flags.has(Flags::PINNED) {
                self.leave_queue(slot, actions);
                self.settle(slot, Status::Failed, Cause::NoWorker, actions);
            } else {
                self.queue_elsewhere(slot, Cause::Moved, actions);
            }
        }
    }

    pub(super) fn report(
        &mut self,
        worker: WorkerId,
        load: LoadReport,
        actions: &mut Vec<Action>,
    ) -> Result<(), Refusal> {
        let slot = self.worker_slot(worker)?;
        for (what, value) in [("cpu", load.cpu), ("memory", load.memory)] {
            if !(0.0..=1.0).contains(&value) {
                return Err(Refusal::Invalid(format!("a load is a share from 0 to 1, `{what}` is {value}")));
            }
        }
        self.workers[slot].report = load;
        if self.workers[slot].state == WorkerState::Silent {
            // Silence neither ends a drain nor shortens a quarantine.
            match self.workers[slot].before_silence {
                WorkerState::Draining => self.set_state(slot, WorkerState::Draining),
                WorkerState::Quarantined(until) if until > self.now => {
                    self.set_state(slot, WorkerState::Quarantined(until));
                }
                _ => {
                    self.set_state(slot, WorkerState::Up);
                    self.up_again(slot);
                    self.serve(slot, actions);
                }
            }
        }
        Ok(())
    }

    pub(super) fn silent(&mut self, worker: WorkerId, actions: &mut Vec<Action>) -> Result<(), Refusal> {
        let slot = self.worker_slot(worker)?;
        if self.workers[slot].state == WorkerState::Silent {
            return Ok(());
        }
        self.workers[slot].before_silence = self.workers[slot].state;
        self.workers[slot].silent_since = self.now;
        self.set_state(slot, WorkerState::Silent);
        self.workers[slot].credit = 0;
        self.not_up(slot);
        self.take_away(slot, false, actions);
        if !self.workers[slot].running.is_empty() {
            self.timers.set(self.now + self.config.limits.lease, Timer::Lease(worker));
        }
        self.requeue_queue(slot, Cause::WorkerLost, actions);
        Ok(())
    }

    /// Exclusive tasks of a worker that is still silent are given to others.
    pub(super) fn lease_ended(&mut self, worker: WorkerId, actions: &mut Vec<Action>) {
        if let Ok(slot) = self.worker_slot(worker)
            && self.workers[slot].state == WorkerState::Silent
            // It may have come back meanwhile and fallen silent again.
            && self.workers[slot].silent_since + self.config.limits.lease <= self.now
        {
            self.take_away(slot, true, actions);
        }
    }

    /// Queues the running tasks of a silent worker again; exclusive ones only if told so.
    fn take_away(&mut self, at: u32, exclusive_too: bool, actions: &mut Vec<Action>) {
        let running = self.workers[at].running.clone();
        for slot in running {
            if exclusive_too || !self.tasks.at(slot).flags.has(Flags::EXCLUSIVE) {
                self.abandon(slot, Cause::WorkerLost, actions);
                self.enqueue(slot, Cause::WorkerLost, actions);
            }
        }
    }

    /// Queues the tasks in a worker's own queue elsewhere; pinned ones stay.
    pub(super) fn requeue_queue(&mut self, at: u32, cause: Cause, actions: &mut Vec<Action>) {
        let movable = |slot: &u32| !self.tasks.at(*slot).flags.has(Flags::PINNED);
        let slots: Vec<u32> = self.workers[at].queue.iter().map(|key| key.2).filter(movable).collect();
        for slot in slots {
            // One that was queued elsewhere may have made another worker steal this one.
            let task = self.tasks.at(slot);
            if task.state == State::AtWorker && task.worker == at {
                self.queue_elsewhere(slot, cause, actions);
            }
        }
    }

    pub(super) fn leave(
        &mut self,
        worker: WorkerId,
        remaining: Remaining,
        actions: &mut Vec<Action>,
    ) -> Result<(), Refusal> {
        let at = self.worker_slot(worker)?;
        self.set_state(at, WorkerState::Draining);
        self.workers[at].credit = 0;
        self.not_up(at);
        // Running ones first, in the order they were handed out.
        let mut running = self.workers[at].running.clone();
        running.sort_unstable_by_key(|&slot| (self.tasks.at(slot).since, self.tasks.at(slot).sequence));
        let mut left: Vec<TaskId> = Vec::with_capacity(running.len() + self.workers[at].queue.len());
        for slot in running {
            self.end_attempt(slot, actions);
            // Those in its queue have been ready for a while, these only are again.
            self.tasks.at_mut(slot).ready_at = self.now;
            left.push(self.tasks.id(slot));
        }
        let (used, slots) = (self.workers[at].used_slots(), self.workers[at].slots);
        self.counters.use_changed((used, slots), (0, slots));
        let ghosts = self.workers[at].take_ghosts();
        for ghost in ghosts {
            self.ghosts.remove(&(ghost.task, ghost.attempt));
            self.release_signature(ghost.signature);
            self.return_token(ghost.key, actions);
        }
        // One by one: a task that leaves may let another in that is pinned here and waited for the same key.
        while let Some((_, _, slot)) = self.workers[at].queue.first() {
            self.leave_queue(slot, actions);
            left.push(self.tasks.id(slot));
        }
        self.counters.worker_went(&self.config.load_balancing.thresholds);
        let (class, class_at) = (self.workers[at].class, self.workers[at].class_at);
        self.workers.remove(at);
        self.persist(Record::Left { worker }, actions);
        self.estimator.forget(at as usize);
        self.forget_warmth();
        self.leave_class(class, class_at, actions);
        for id in left {
            let Some(slot) = self.tasks.find(id) else { continue };
            debug_assert_eq!(self.tasks.at(slot).state, State::Blocked);
            match remaining {
                Remaining::Requeue => self.enqueue_again(slot, Cause::WorkerLeft, actions),
                Remaining::Return => {
                    let (payload, index) = (self.tasks.at(slot).payload, self.tasks.at(slot).index);
                    actions.push(Action::HandedBack { task: id, payload, index });
                    self.settle(slot, Status::Returned, Cause::WorkerLeft, actions);
                }
            }
        }
        Ok(())
    }
}

fn check_spec(spec: &WorkerSpec) -> Result<(), Refusal> {
    if spec.slots == 0 {
        return Err(Refusal::Invalid("a worker needs at least one slot".to_owned()));
    }
    for (name, value) in [("speed", spec.speed), ("weight", spec.weight)] {
        if !value.is_finite() || value <= 0.0 {
            return Err(Refusal::Invalid(format!("a worker's {name} must be a finite number above 0, not {value}")));
        }
    }
    let gpus = spec.resources.get(ResourceId::GPUS);
    if gpus > Amount::from_units(MOST) {
        return Err(Refusal::Invalid(format!(
            "a worker has at most {MOST} GPUs, not {gpus}: register several workers instead"
        )));
    }
    if !spec.cost_rate.is_finite() || spec.cost_rate < 0.0 {
        return Err(Refusal::Invalid(format!(
            "a worker's cost rate must be a finite number of 0 or more, not {}",
            spec.cost_rate
        )));
    }
    Ok(())
}

fn new_class(spec: WorkerSpec) -> Class {
    let capacity = spec.capacity();
    Class {
        bits: CapabilityBits::new(&spec.capabilities),
        capabilities: spec.capabilities,
        capacity,
        slots: spec.slots,
        speed: spec.speed,
        cost_rate: spec.cost_rate,
        weight: spec.weight,
        born: 0,
        members: Vec::new(),
    }
}

fn class_hash(class: &Class) -> u32 {
    short_hash(&(
        &class.capabilities,
        &class.capacity,
        class.slots,
        class.speed.to_bits(),
        class.cost_rate.to_bits(),
        class.weight.to_bits(),
    ))
}
