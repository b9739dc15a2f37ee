//! Workers with queues of their own. What the scheduler keeps of such a queue is what it has heard: tasks it handed over
//! and that were not reported as begun, ended or moved. The worker decides what it begins when; peers move tasks among
//! themselves and tell. Attempts are raised by the scheduler alone, hops by whoever passes a task on; a report with an
//! older attempt, or an older hop of the same attempt, no longer counts.

use std::hint::black_box;

use smallvec::SmallVec;

use super::balance::is_bound;
use super::ready::{Found, Head};
use super::tasks::Task;
use super::{COMMON_JOB, Flags, Scheduler, State};
use crate::action::{Action, Record, Refusal};
use crate::event::{End, Held};
use crate::ids::{NONE, ResourceId, TaskId, WorkerId};
use crate::planted::{Mistake, makes};
use crate::resources::Amount;
use crate::task::{Cause, Status};
use crate::time::{Span, Time};
use crate::wire::{Order, PeerDigest, fingerprint};
use crate::worker::{LoadReport, WorkerState};

impl Scheduler {
    /// Says that workers have queues of their own: what they are to do is handed over with [`Action::Hand`] as early as
    /// they ask for it, and they tell what becomes of it.
    #[must_use]
    pub fn with_remote_queues(mut self) -> Scheduler {
        self.remote = true;
        self
    }

    /// Whether a task may be handed to a worker of a class before there is room for it: it has a queue of its own, where
    /// others can steal it, and however many of its kind come together, as many as the worker has slots fit at once.
    pub(super) fn is_ahead(&self, slot: u32, class: u32) -> bool {
        let task = self.tasks.at(slot);
        self.remote
            && !self.never_moves(task.priority, is_bound(task), task.signature)
            && self.is_light(task.signature, class)
    }

    /// Whether no peer may take a task out of its worker's queue.
    fn never_moves(&self, priority: u8, bound: bool, signature: u32) -> bool {
        // A peer is not told what skills a task asks for, so it cannot judge whether a thief has them.
        self.guard.keeps(priority, bound).is_some() || !self.signatures[signature].needs.skills.is_empty()
    }

    /// The same for the first task of a lane.
    pub(super) fn is_ahead_in(&self, found: &Found, at: u32) -> bool {
        let class = self.workers[at].class;
        match self.head(found) {
            Some(Head::Task(slot)) => self.is_ahead(slot, class),
            Some(Head::Element) => self.jobs[found.job].array.as_ref().is_some_and(|array| {
                let bound = array.template.key != NONE || array.template.exclusive;
                !self.never_moves(array.template.priority, bound, found.signature)
                    && self.is_light(found.signature, class)
            }),
            None => false,
        }
    }

    fn is_light(&self, signature: u32, class: u32) -> bool {
        let class = &self.classes[class];
        let slots = u64::from(class.slots);
        self.signatures[signature].demand.amounts().iter().all(|&(resource, needs)| {
            resource != ResourceId::GPUS && Amount(needs.0.saturating_mul(slots)) <= class.capacity.get(resource)
        })
    }

    /// Gives a worker the next task in order that it can have. Whether there was one.
    pub(super) fn hand_next(&mut self, at: u32, actions: &mut Vec<Action>) -> bool {
        let worker = &self.workers[at];
        if self.ready.is_empty() && worker.resume.is_none() && !worker.queue.has_staying() {
            return false;
        }
        if let Some(slot) = self.first_kept_back(at) {
            self.take_own(slot);
            self.assign(slot, at, actions);
            return true;
        }
        let Some(found) = self.first_central(at, 1).0 else { return false };
        if !self.is_ahead_in(&found, at) {
            let Some(slot) = self.take_found(&found, actions) else { return false };
            self.assign(slot, at, actions);
            return true;
        }
        let slot = match self.head(&found) {
            Some(Head::Task(slot)) => {
                self.leave_lane(slot);
                slot
            }
            Some(Head::Element) => {
                let Some(slot) = self.materialise(found.job, actions) else { return false };
                slot
            }
            None => return false,
        };
        if self.begins_at_once(slot, at) {
            // An element was in no lane by itself.
            if self.tasks.at(slot).state.is_queued() {
                self.age_leave(slot);
            } else {
                self.notify(slot, Status::Queued, Cause::None, actions);
            }
            self.counters.queued -= 1;
            self.hand_to_slot(slot, at, actions);
            return true;
        }
        self.put_at_worker_unlisted(slot, at);
        self.notify(slot, Status::Queued, Cause::None, actions);
        self.hand_over(slot, actions);
        true
    }

    /// Whether a worker with a queue of its own begins a task as soon as it gets it: it has room for it, and nothing waits
    /// there.
    pub(super) fn begins_at_once(&self, slot: u32, at: u32) -> bool {
        self.workers[at].queue.is_empty() && self.wish_fits(&self.wish_of(slot), at).is_ok()
    }

    /// A task that is nowhere goes to a free slot of a worker with a queue of its own. It counts as begun: the worker tells
    /// only if it is not so.
    pub(super) fn hand_to_slot(&mut self, slot: u32, at: u32, actions: &mut Vec<Action>) {
        self.next_attempt(slot);
        self.occupy(slot, at);
        self.set_hop(slot, 0);
        let task = self.tasks.at_mut(slot);
        task.state = State::Running;
        let &mut Task { attempt, payload, index, flags, generation, .. } = task;
        let (task, worker) = (TaskId { slot, generation }, self.worker_id(at));
        actions.push(Action::Hand { worker, task, attempt, payload, index });
        self.notify_at(slot, at, Status::Running, Cause::None, actions);
        self.persist(Record::Assigned { task, attempt, worker, at: self.now }, actions);
        if flags.has(Flags::ELEMENT) {
            self.element_left(slot);
        }
    }

    /// The first task in a worker's queue that was not handed over, because its key or its room comes first, and that
    /// fits now.
    fn first_kept_back(&self, at: u32) -> Option<u32> {
        // Whatever waits for a key or for room stays at its worker.
        let queue = self.workers[at].queue.staying().take(crate::steal::QUEUE_LOOKS).map(|key| key.2);
        let mut kept_back = queue.filter(|&slot| self.tasks.at(slot).hop == NONE);
        kept_back.find(|&slot| self.fits_now(slot, at).is_ok())
    }

    /// A task has come to a worker's queue: the worker gets it, unless it must wait for room.
    pub(super) fn hand_over(&mut self, slot: u32, actions: &mut Vec<Action>) {
        let task = self.tasks.at(slot);
        if !self.remote || task.state != State::AtWorker {
            return;
        }
        if task.waits_centrally() {
            return;
        }
        // Who leaves, or is not heard of, would only give it back, again and again. It waits for it here.
        let home = &self.workers[task.worker];
        if task.flags.has(Flags::PINNED) && (home.credit == 0 || home.state != WorkerState::Up) {
            return;
        }
        self.next_attempt(slot);
        self.set_hop(slot, 0);
        let task = self.tasks.at(slot);
        let (attempt, payload, index, at) = (task.attempt, task.payload, task.index, task.worker);
        let element = task.flags.has(Flags::ELEMENT);
        let (task, worker) = (self.tasks.id(slot), self.worker_id(at));
        actions.push(Action::Hand { worker, task, attempt, payload, index });
        self.persist(Record::Assigned { task, attempt, worker, at: self.now }, actions);
        if element {
            self.element_left(slot);
        }
    }

    /// Sets the hop of a task that is with a worker, or that it is with nobody any more. Whether it was with one. A worker that
    /// has less than before may get more when the step ends; it is to be listed anew.
    pub(super) fn set_hop(&mut self, slot: u32, hop: u32) -> bool {
        let task = self.tasks.at_mut(slot);
        let before = std::mem::replace(&mut task.hop, hop);
        if before == NONE && hop == NONE {
            return false;
        }
        let (at, attempt) = (task.worker, task.attempt);
        let task = self.tasks.id(slot);
        let worker = &mut self.workers[at];
        if before != NONE {
            worker.holds -= 1;
            worker.fingerprint = worker.fingerprint.wrapping_sub(fingerprint(&Held { task, attempt, hop: before }));
            if at != self.aside && self.released.last() != Some(&at) {
                self.released.push(at);
            }
        }
        if hop != NONE {
            worker.holds += 1;
            worker.fingerprint = worker.fingerprint.wrapping_add(fingerprint(&Held { task, attempt, hop }));
        }
        before != NONE
    }

    /// A worker will say something soon, of this task or of none: reads a word of each line of memory that this needs.
    #[inline]
    pub(crate) fn load_ahead_for(&self, worker: WorkerId, task: Option<TaskId>) {
        if let Some(found) = self.workers.get(worker.slot) {
            black_box((found.generation, found.running_work, found.busy, found.completed, found.fingerprint));
        }
        if let Some(found) = task.and_then(|task| self.tasks.record(task)) {
            black_box((found.planned, found.signature));
        }
    }

    /// A worker with a queue of its own likes to have so many tasks, with those it has.
    pub(super) fn want(&mut self, worker: WorkerId, count: u32, actions: &mut Vec<Action>) -> Result<(), Refusal> {
        let at = self.worker_slot(worker)?;
        self.workers[at].credit = count;
        self.serve(at, actions);
        Ok(())
    }

    /// A task as its worker gets it.
    #[must_use]
    pub fn order(&self, task: TaskId) -> Option<Order> {
        let slot = self.tasks.find(task)?;
        let task = self.tasks.at(slot);
        if task.hop == NONE {
            return None;
        }
        let signature = &self.signatures[task.signature];
        let slotted = task.state != State::AtWorker;
        Some(Order {
            held: Held { task: self.tasks.id(slot), attempt: task.attempt, hop: task.hop },
            payload: task.payload,
            index: task.index,
            priority: task.priority,
            level: task.level,
            deadline: task.deadline,
            rank: task.rank,
            sequence: task.sequence,
            kind: task.kind,
            expected: self.estimator.anywhere(task.kind, task.declared()).max(super::LEAST_PLANNED),
            timeout: self.tasks.extra(slot).and_then(|extra| extra.timeout),
            requires: signature.needs.requires.clone(),
            demand: signature.demand.clone(),
            bound: slotted || self.never_moves(task.priority, is_bound(task), task.signature),
            exclusive: task.waits_centrally(),
            begins: task.state == State::Running,
            patient: self.is_patient(slot),
        })
    }

    /// Whether nobody acts on the good end of a task alone: it is one of several of a job, and nothing waits for it.
    fn is_patient(&self, slot: u32) -> bool {
        let awaited = self.tasks.extra(slot).is_some_and(|extra| !extra.dependents.is_empty());
        let job = self.tasks.at(slot).job;
        job != COMMON_JOB && self.jobs[job].open > 1 && !awaited
    }

    /// How many attempts a worker holds as far as is known, and the sum of their fingerprints.
    #[must_use]
    pub fn holds(&self, worker: WorkerId) -> Option<(u32, u64)> {
        let at = self.worker_slot(worker).ok()?;
        Some((self.workers[at].holds, self.workers[at].fingerprint))
    }

    /// The attempt of a task that counts, if a worker with a queue of its own has it.
    #[must_use]
    pub fn current(&self, task: TaskId) -> Option<Held> {
        let found = self.tasks.at(self.tasks.find(task)?);
        (found.hop != NONE).then_some(Held { task, attempt: found.attempt, hop: found.hop })
    }

    /// Who has it.
    #[must_use]
    pub fn who_has(&self, task: TaskId) -> Option<WorkerId> {
        let found = self.tasks.at(self.tasks.find(task)?);
        (found.hop != NONE).then(|| self.worker_id(found.worker))
    }

    /// Whether a worker gets work; none if it is not registered.
    #[must_use]
    pub fn worker_state(&self, worker: WorkerId) -> Option<WorkerState> {
        self.worker_slot(worker).ok().map(|at| self.workers[at].state)
    }

    /// Whether a worker would take more than there is for it.
    #[must_use]
    pub fn is_waiting(&self, worker: WorkerId) -> bool {
        self.worker_slot(worker).is_ok_and(|at| self.takes_tasks(&self.workers[at]))
    }

    /// Whether a worker said that it likes to have tasks at all, and may get any.
    #[must_use]
    pub fn likes_tasks(&self, worker: WorkerId) -> bool {
        self.worker_slot(worker).is_ok_and(|at| {
            let worker = &self.workers[at];
            worker.credit > 0 && worker.state == WorkerState::Up
        })
    }

    /// Whether nothing waits at a worker, as far as is known.
    #[must_use]
    pub fn has_nothing_queued(&self, worker: WorkerId) -> bool {
        self.worker_slot(worker).is_ok_and(|at| self.workers[at].queue.is_empty())
    }

    /// Whether a worker has more than it can run at once.
    #[must_use]
    pub fn has_waiting_tasks(&self, worker: WorkerId) -> bool {
        self.worker_slot(worker).is_ok_and(|at| {
            let worker = &self.workers[at];
            worker.queue.len() as u32 + worker.used_slots() > worker.slots
        })
    }

    /// Whether a worker is known to have that load, and is not taken for silent.
    #[must_use]
    pub fn has_reported(&self, worker: WorkerId, load: LoadReport) -> bool {
        self.worker_slot(worker).is_ok_and(|at| {
            let worker = &self.workers[at];
            worker.report == load && worker.state != WorkerState::Silent
        })
    }

    /// Whether a worker is known to like to have so many tasks.
    #[must_use]
    pub fn has_wanted(&self, worker: WorkerId, count: u32) -> bool {
        self.worker_slot(worker).is_ok_and(|at| self.workers[at].credit == count)
    }

    /// Whether nobody has anything queued.
    #[must_use]
    pub fn nobody_is_loaded(&self) -> bool {
        self.loaded.is_empty()
    }

    /// Some workers with something queued: the busiest, and some drawn with `draw` (a number below the one it is given).
    pub fn sample_loaded(&self, most: usize, mut draw: impl FnMut(usize) -> usize) -> Vec<PeerDigest> {
        if self.loaded.is_empty() {
            return Vec::new();
        }
        let digest = |slot: u32| {
            let worker = &self.workers[slot];
            PeerDigest {
                worker: self.worker_id(slot),
                depth: worker.queue.len() as u32,
                backlog: worker.queued_work.span(),
                load: f64::from(worker.used_slots()) / f64::from(worker.slots.max(1)),
            }
        };
        let mut slots: SmallVec<[u32; 16]> =
            self.by_depth.iter().rev().take_while(|entry| entry.0 > 0).take(most / 2).map(|entry| entry.1).collect();
        while slots.len() < most.min(self.loaded.len()) {
            // Whoever is drawn twice leaves a place to the next in the list.
            let start = draw(self.loaded.len());
            let rest = (0..self.loaded.len()).map(|step| self.loaded[(start + step) % self.loaded.len()]);
            match rest.take(most).find(|slot| !slots.contains(slot)) {
                Some(slot) => slots.push(slot),
                None => break,
            }
        }
        slots.into_iter().map(digest).collect()
    }

    /// A task is about to leave a worker's queue for something else: the worker must not begin it.
    pub(super) fn recall(&mut self, slot: u32, cause: Cause, actions: &mut Vec<Action>) {
        if !self.remote || !self.set_hop(slot, NONE) {
            return;
        }
        let (attempt, at) = (self.tasks.at(slot).attempt, self.tasks.at(slot).worker);
        actions.push(Action::Revoke { worker: self.worker_id(at), task: self.tasks.id(slot), attempt, cause });
    }

    /// The slot of the attempt that a worker says it has. If it has got it from another, it is its own from now on.
    fn held_by(&mut self, worker: WorkerId, held: Held, actions: &mut Vec<Action>) -> Result<u32, Refusal> {
        let at = self.worker_slot(worker)?;
        let stale = Refusal::StaleAttempt(held.task, held.attempt);
        let Some(slot) = self.tasks.find(held.task) else {
            return Err(if self.tasks.outcome(held.task).is_some() { stale } else { Refusal::UnknownTask(held.task) });
        };
        if self.is_from_before(slot, held) {
            self.adopt(slot, held, at, actions);
        }
        let task = self.tasks.at(slot);
        let there = matches!(task.state, State::AtWorker | State::Assigned | State::Running);
        let fenced = task.attempt != held.attempt && !makes(Mistake::SkipAttemptFence);
        if !there || fenced || task.hop == NONE || held.hop < task.hop {
            return Err(stale);
        }
        if task.worker != at {
            if held.hop == task.hop || task.state != State::AtWorker {
                return Err(stale);
            }
            self.change_hands(slot, held.hop, at, actions);
        }
        Ok(slot)
    }

    fn change_hands(&mut self, slot: u32, hop: u32, to: u32, actions: &mut Vec<Action>) {
        self.set_hop(slot, NONE);
        self.move_queued(slot, to, actions);
        self.set_hop(slot, hop);
        self.relist(to);
    }

    pub(super) fn began(&mut self, worker: WorkerId, held: Held, actions: &mut Vec<Action>) -> Result<(), Refusal> {
        let slot = self.held_by(worker, held, actions)?;
        self.begin(slot, actions);
        Ok(())
    }

    fn begin(&mut self, slot: u32, actions: &mut Vec<Action>) {
        if self.tasks.at(slot).state == State::AtWorker {
            let at = self.leave_worker_unlisted(slot);
            self.leave_age_and_count(slot);
            self.occupy(slot, at);
            self.relist(at);
        }
        let (task, attempt) = (self.tasks.id(slot), self.tasks.at(slot).attempt);
        // It is held under this attempt, so nothing can be wrong with it.
        let _ = self.start(task, attempt, actions);
    }

    pub(super) fn ended(
        &mut self,
        worker: WorkerId,
        held: Held,
        ran: Span,
        end: End,
        actions: &mut Vec<Action>,
    ) -> Result<(), Refusal> {
        let Held { task, attempt, .. } = held;
        let slot = match self.held_by(worker, held, actions) {
            Ok(slot) => slot,
            Err(refusal) => {
                // Who was told to stop has stopped: what it occupied is free.
                self.bury(task, attempt, actions);
                return Err(refusal);
            }
        };
        if end == End::GivenBack && self.tasks.at(slot).state == State::AtWorker {
            self.set_hop(slot, NONE);
            self.counters.given_back += 1;
            self.queue_elsewhere(slot, Cause::GivenBack, actions);
            return Ok(());
        }
        self.begin(slot, actions);
        self.set_since(slot, Time(self.now.0.saturating_sub(ran.0)));
        match end {
            End::Done => self.finish(task, attempt, actions),
            End::Failed { retry } => self.fail(task, attempt, retry, Cause::Reported, actions),
            End::TimedOut => self.fail(task, attempt, true, Cause::TimedOut, actions),
            End::GivenBack => self.give_back(task, attempt, actions),
        }
    }

    pub(super) fn moved(&mut self, held: Held, to: WorkerId, actions: &mut Vec<Action>) -> Result<(), Refusal> {
        if makes(Mistake::ForgetMoved) {
            return Ok(());
        }
        let stale = Refusal::StaleAttempt(held.task, held.attempt);
        let slot = self.tasks.find(held.task).ok_or(Refusal::UnknownTask(held.task))?;
        if self.is_from_before(slot, held)
            && let Ok(at) = self.worker_slot(to)
            && self.workers[at].state != WorkerState::Silent
        {
            self.adopt(slot, held, at, actions);
            return Ok(());
        }
        let task = self.tasks.at(slot);
        if task.attempt != held.attempt || task.hop == NONE || held.hop <= task.hop || task.state != State::AtWorker {
            return Err(stale);
        }
        match self.worker_slot(to) {
            Ok(at) if self.workers[at].state != WorkerState::Silent => self.change_hands(slot, held.hop, at, actions),
            // Whoever got it is not there any more: it is as if that worker had been lost with it.
            _ => {
                self.set_hop(slot, NONE);
                self.queue_elsewhere(slot, Cause::WorkerLost, actions);
            }
        }
        Ok(())
    }

    pub(super) fn missing(&mut self, worker: WorkerId, held: Held, actions: &mut Vec<Action>) -> Result<(), Refusal> {
        let at = self.worker_slot(worker)?;
        let stale = Refusal::StaleAttempt(held.task, held.attempt);
        let slot = self.tasks.find(held.task).ok_or(Refusal::UnknownTask(held.task))?;
        let task = self.tasks.at(slot);
        if task.attempt != held.attempt || task.hop != held.hop || task.hop == NONE || task.worker != at {
            return Err(stale);
        }
        self.set_hop(slot, NONE);
        match self.tasks.at(slot).state {
            State::AtWorker => self.queue_elsewhere(slot, Cause::WorkerLost, actions),
            State::Assigned | State::Running => {
                self.end_attempt(slot, actions);
                self.enqueue(slot, Cause::WorkerLost, actions);
                self.serve(at, actions);
            }
            _ => return Err(stale),
        }
        Ok(())
    }

    /// What a worker was told to stop and has not said that it did.
    pub fn revoked(&self, worker: WorkerId) -> impl Iterator<Item = Held> + '_ {
        let worker = self.worker_slot(worker).ok().map(|at| &self.workers[at]);
        let ghosts = worker.into_iter().flat_map(|worker| worker.ghosts());
        ghosts.map(|ghost| Held { task: ghost.task, attempt: ghost.attempt, hop: 0 })
    }

    /// What the scheduler believes a worker to have, those that run first.
    pub fn holdings(&self, worker: WorkerId) -> impl Iterator<Item = Held> + '_ {
        let worker = self.worker_slot(worker).ok().map(|at| &self.workers[at]);
        let running = worker.into_iter().flat_map(|worker| worker.running.iter().copied());
        let queued = worker.into_iter().flat_map(|worker| worker.queue.iter().map(|key| key.2));
        running.chain(queued).filter_map(|slot| {
            let task = self.tasks.at(slot);
            (task.hop != NONE).then(|| Held { task: self.tasks.id(slot), attempt: task.attempt, hop: task.hop })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::event::Event;
    use crate::task::TaskSpec;
    use crate::worker::WorkerSpec;

    #[test]
    fn ends_may_be_told_late_only_of_what_is_one_of_several_and_nothing_waits_for() {
        let mut scheduler = Scheduler::new(&Config::default()).unwrap().with_remote_queues();
        let mut step = |event| {
            let mut actions = Vec::new();
            scheduler.step(Time::ZERO, event, &mut actions);
            actions
        };
        let joined = step(Event::Join(WorkerSpec { slots: 9, ..WorkerSpec::default() }));
        let worker = joined.iter().find_map(|action| match *action {
            Action::Joined { worker, .. } => Some(worker),
            _ => None,
        });
        step(Event::Want { worker: worker.unwrap(), count: 9 });
        let handed = |actions: Vec<Action>| {
            let task = |action: &Action| match *action {
                Action::Hand { task, .. } => Some(task),
                _ => None,
            };
            actions.iter().filter_map(task).collect::<Vec<TaskId>>()
        };
        let elements = handed(step(Event::SubmitArray { template: Box::default(), count: 2 }));
        let single = handed(step(Event::Submit(Box::default())));
        let waits = TaskSpec { after: [elements[1]].into_iter().collect(), ..TaskSpec::default() };
        step(Event::Submit(Box::new(waits)));
        let many = handed(step(Event::SubmitMany(vec![TaskSpec::default(); 2])));
        let alone = handed(step(Event::SubmitMany(vec![TaskSpec::default()])));
        let patient = |task: TaskId| scheduler.order(task).unwrap().patient;
        assert_eq!((patient(elements[0]), patient(elements[1]), patient(single[0])), (true, false, false));
        assert_eq!((patient(many[0]), patient(many[1]), patient(alone[0])), (true, true, false));
    }
}
