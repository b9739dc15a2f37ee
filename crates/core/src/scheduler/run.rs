//! From the slot to the end of an attempt: assign, start, finish, fail, give back, time out.

use std::hint::black_box;

use super::state::Ghost;
use super::tasks::Task;
use super::{COMMON_JOB, Flags, Scheduler, State, Timer, planned_on, queue_key, wanted_devices};
use crate::action::{Action, Record, Refusal};
use crate::config::Retry;
use crate::ids::{KindId, NONE, ResourceId, TaskId, WorkerId};
use crate::planted::{Mistake, makes};
use crate::resources::Amount;
use crate::steal;
use crate::task::{Cause, RetryTerms, Status};
use crate::time::{Span, Time};
use crate::worker::WorkerState;

/// How often a task may be given back before it has to pause.
const RETURNS_WITHOUT_PAUSE: u16 = 3;
/// Running tasks of a worker among which one is sought rather than found by its place.
const SHORT_LIST: usize = 16;
/// The last failed attempts of a task that are remembered.
const FAILURES_KEPT: usize = 16;

/// An attempt that has left the list of running ones; its devices are still with the task.
struct Left {
    task: TaskId,
    attempt: u32,
    signature: u32,
    /// The key whose token it holds.
    key: u32,
    planned: Span,
    since: Time,
}

impl Scheduler {
    /// Hands a task that is nowhere to a free slot of a worker and reserves what it asks for.
    pub(super) fn assign(&mut self, slot: u32, at: u32, actions: &mut Vec<Action>) {
        let now = self.now;
        // What may wait in a worker's own queue counts as begun or as queued there, where others may steal it.
        debug_assert!(!self.is_ahead(slot, self.workers[at].class));
        self.next_attempt(slot);
        self.occupy(slot, at);
        if self.remote {
            self.set_hop(slot, 0);
        }
        let &Task { attempt, payload, index, flags, generation, .. } = self.tasks.at(slot);
        let holder = &mut self.workers[at];
        if !self.remote {
            holder.credit = holder.credit.saturating_sub(1);
        }
        let worker = WorkerId { slot: at, generation: holder.generation };
        let task = TaskId { slot, generation };
        actions.push(Action::Assign { worker, task, attempt, payload, index });
        self.notify_at(slot, at, Status::Assigned, Cause::None, actions);
        self.persist(Record::Assigned { task, attempt, worker, at: now }, actions);
        if flags.has(Flags::ELEMENT) {
            self.element_left(slot);
        }
    }

    /// Whoever gets a task holds a new attempt of it, beyond those of earlier lives.
    #[inline]
    pub(super) fn next_attempt(&mut self, slot: u32) {
        let earlier = self.first_generation;
        let task = self.tasks.at_mut(slot);
        task.attempt = task.attempt.max(earlier) + 1;
    }

    /// A task that is nowhere takes a slot of a worker and reserves what it asks for.
    #[inline(always)]
    pub(super) fn occupy(&mut self, slot: u32, at: u32) {
        let now = self.now;
        let task = self.tasks.at(slot);
        let (signature, job, key) = (task.signature, task.job, task.key);
        let (kind, declared) = (task.kind, task.declared());
        let waited = now.since(task.ready_at);
        if key != NONE {
            let place = queue_key(task.level, task.order(), slot);
            self.keys.take(key, place);
        }
        let anywhere = self.estimator.anywhere(kind, declared);
        let worker = &mut self.workers[at];
        let planned = planned_on(&self.classes[worker.class], anywhere);
        debug_assert!(self.remote || worker.has_free_slot(), "only free slots get tasks");
        let place = worker.running.len() as u32;
        let (used, slots) = (worker.used_slots(), worker.slots);
        worker.running.push(slot);
        self.counters.use_changed((used, slots), (used + 1, slots));
        let demand = &self.signatures[signature].demand;
        worker.reserved.add(demand);
        if let Some(needs) = wanted_devices(demand) {
            self.take_devices(slot, at, needs);
        }
        let worker = &mut self.workers[at];
        worker.running_work += planned;
        worker.assigned += 1;
        self.turn += 1;
        worker.last_assigned = self.turn;
        worker.waited += waited;
        let task = self.tasks.at_mut(slot);
        task.state = State::Assigned;
        task.worker = at;
        task.place = place;
        task.planned = planned;
        task.since = now;
        task.flags.set(Flags::TOKEN, key != NONE);
        if task.flags.has(Flags::EXTRA) {
            self.set_timeout(slot);
            self.warm_up(slot, at);
        }
        let owner = &mut self.jobs[job];
        let charge = if owner.weight == 1.0 { planned.0 } else { planned.mul_f64(1.0 / owner.weight).0 };
        owner.received = owner.received.saturating_add(charge.max(1));
        let received = owner.received;
        self.ready.charge(job, received);
        self.counters.assigned(waited);
    }

    #[inline(never)]
    fn take_devices(&mut self, slot: u32, at: u32, needs: Amount) {
        let worker = &mut self.workers[at];
        let capacity = self.classes[worker.class].capacity.get(ResourceId::GPUS);
        self.tasks.extra_mut(slot).devices = worker.devices.take(capacity, needs);
    }

    /// How long an attempt may run, if that is watched here. A worker with a queue of its own watches what it runs itself: only
    /// there is it known when that began, and what it has said until it was stopped.
    fn timeout(&self, slot: u32) -> Option<Span> {
        self.tasks.extra(slot).and_then(|extra| extra.timeout).filter(|_| !self.remote)
    }

    /// (Re)sets the timer of an attempt that may not run for ever; it counts from the assignment, then from the start.
    fn set_timeout(&mut self, slot: u32) {
        if let Some(timeout) = self.timeout(slot) {
            let task = self.tasks.at(slot);
            self.timers.set(task.since + timeout, Timer::Timeout(self.tasks.id(slot), task.attempt));
        }
    }

    /// The attempt began earlier than was thought; its timer, if it has one, counts from there.
    pub(super) fn set_since(&mut self, slot: u32, since: Time) {
        let timed = self.tasks.at(slot).flags.has(Flags::EXTRA);
        if timed {
            self.clear_timeout(slot);
        }
        self.tasks.at_mut(slot).since = since;
        if timed {
            self.set_timeout(slot);
        }
    }

    fn clear_timeout(&mut self, slot: u32) {
        if let Some(timeout) = self.timeout(slot) {
            let task = self.tasks.at(slot);
            self.timers.cancel(task.since + timeout, Timer::Timeout(self.tasks.id(slot), task.attempt));
        }
    }

    /// The slot of a task held under that attempt, and who holds it. A report of an attempt that no longer counts frees what it still
    /// occupied.
    #[inline]
    fn held(&mut self, task: TaskId, attempt: u32, actions: &mut Vec<Action>) -> Result<(u32, u32), Refusal> {
        if let Some(found) = self.tasks.record(task)
            && found.state.is_held()
            && (found.attempt == attempt || makes(Mistake::SkipAttemptFence))
        {
            return Ok((task.slot, found.worker));
        }
        Err(self.not_held(task, attempt, actions))
    }

    #[cold]
    fn not_held(&mut self, task: TaskId, attempt: u32, actions: &mut Vec<Action>) -> Refusal {
        self.bury(task, attempt, actions);
        let known = self.tasks.find(task).is_some() || self.tasks.outcome(task).is_some();
        if known { Refusal::StaleAttempt(task, attempt) } else { Refusal::UnknownTask(task) }
    }

    pub(super) fn start(&mut self, task: TaskId, attempt: u32, actions: &mut Vec<Action>) -> Result<(), Refusal> {
        let slot = match self.tasks.record(task) {
            Some(record) if record.state.is_held() && record.attempt == attempt => task.slot,
            Some(_) => return Err(Refusal::StaleAttempt(task, attempt)),
            None if self.tasks.outcome(task).is_some() => return Err(Refusal::StaleAttempt(task, attempt)),
            None => return Err(Refusal::UnknownTask(task)),
        };
        let now = self.now;
        let record = self.tasks.at_mut(slot);
        if record.state == State::Running {
            return Ok(());
        }
        record.state = State::Running;
        let at = record.worker;
        if record.flags.has(Flags::EXTRA) {
            self.set_since(slot, now);
        } else {
            record.since = now;
        }
        self.notify_at(slot, at, Status::Running, Cause::None, actions);
        Ok(())
    }

    pub(super) fn finish(&mut self, task: TaskId, attempt: u32, actions: &mut Vec<Action>) -> Result<(), Refusal> {
        let (slot, at) = self.held(task, attempt, actions)?;
        self.load_ahead(slot);
        self.learn(slot, true);
        self.counters.drained(self.now);
        self.aside = at;
        self.end_attempt(slot, actions);
        self.settle_at(slot, at, Status::Completed, Cause::None, actions);
        self.aside = NONE;
        self.serve_now(at, actions);
        Ok(())
    }

    pub(super) fn fail(
        &mut self,
        task: TaskId,
        attempt: u32,
        retry: bool,
        cause: Cause,
        actions: &mut Vec<Action>,
    ) -> Result<(), Refusal> {
        let (slot, at) = self.held(task, attempt, actions)?;
        let kind = self.tasks.at(slot).kind;
        self.learn(slot, false);
        self.counters.timeouts += u64::from(cause == Cause::TimedOut);
        self.aside = at;
        self.end_attempt(slot, actions);
        self.failed_attempt(slot, at, retry, cause, actions);
        self.watch_failures(at, kind, actions);
        self.aside = NONE;
        self.serve(at, actions);
        Ok(())
    }

    pub(super) fn give_back(&mut self, task: TaskId, attempt: u32, actions: &mut Vec<Action>) -> Result<(), Refusal> {
        let (slot, at) = self.held(task, attempt, actions)?;
        self.aside = at;
        self.end_attempt(slot, actions);
        self.requeue_given_back(slot, actions);
        self.aside = NONE;
        self.serve(at, actions);
        Ok(())
    }

    /// A task that was given back queues behind its equals, and after the third time only after a growing pause:
    /// whoever drops it again and again, by a panic perhaps, must keep neither others nor a processor busy.
    fn requeue_given_back(&mut self, slot: u32, actions: &mut Vec<Action>) {
        self.counters.given_back += 1;
        let sequence = self.next_sequence();
        let task = self.tasks.at_mut(slot);
        task.sequence = sequence;
        task.given_back = task.given_back.saturating_add(1);
        let beyond = u32::from(task.given_back.saturating_sub(RETURNS_WITHOUT_PAUSE));
        if beyond == 0 {
            self.enqueue(slot, Cause::GivenBack, actions);
            return;
        }
        let RetryTerms { backoff, backoff_max, .. } = self.retry_terms(slot);
        let pause = steal::backoff(&mut self.rng, backoff, backoff_max, self.config.retry.jitter, beyond - 1);
        self.back_off(slot, self.now + pause, Cause::GivenBack, actions);
    }

    /// A task that is nowhere waits for its next attempt.
    pub(super) fn back_off(&mut self, slot: u32, due: Time, cause: Cause, actions: &mut Vec<Action>) {
        let task = self.tasks.at_mut(slot);
        task.state = State::Backoff;
        self.counters.retrying += 1;
        task.since = due;
        task.cause = cause;
        self.timers.set(due, Timer::Retry(self.tasks.id(slot)));
        self.notify(slot, Status::Retrying, cause, actions);
    }

    /// An attempt ran too long: its worker should stop it, and the task is treated as failed.
    pub(super) fn time_out(&mut self, slot: u32, actions: &mut Vec<Action>) {
        let Task { worker: at, kind, .. } = *self.tasks.at(slot);
        self.learn(slot, false);
        self.counters.timeouts += 1;
        self.abandon(slot, Cause::TimedOut, actions);
        self.failed_attempt(slot, at, true, Cause::TimedOut, actions);
        self.watch_failures(at, kind, actions);
    }

    /// Reads a word of each line of memory that the end of a task will need. With very many workers none of them is in
    /// a cache; read together they come at the same time, one after another each would have to be waited for.
    #[inline]
    fn load_ahead(&self, slot: u32) {
        let task = self.tasks.at(slot);
        let worker = &self.workers[task.worker];
        black_box((worker.generation, worker.running_work, worker.busy, worker.completed));
        self.estimator.load_ahead(task.worker as usize);
        black_box(task.planned);
        if task.job != COMMON_JOB {
            self.jobs[task.job].members.load_ahead(task.member);
        }
    }

    /// Remembers how long the attempt took and how it ended.
    fn learn(&mut self, slot: u32, success: bool) {
        let task = self.tasks.at(slot);
        let (kind, at, duration) = (task.kind, task.worker, self.now.since(task.since));
        self.estimator.record(kind, at as usize, duration, success);
        self.latest_ends.note(kind, self.worker_id(at), success);
        let (worker, seconds) = (&mut self.workers[at], duration.as_secs_f64());
        if let [_, others @ ..] = &self.alphas[..]
            && !others.is_empty()
        {
            worker.learn_more(others, seconds, success);
        }
        worker.average.update(self.alphas[0], seconds, success);
        if success {
            worker.completed += 1;
            worker.failures_in_a_row = 0;
            worker.quarantines = 0;
        } else {
            worker.failed += 1;
            worker.failures_in_a_row += 1;
        }
    }

    /// Takes a held task out of its slot and releases everything; it is nowhere then.
    pub(super) fn end_attempt(&mut self, slot: u32, actions: &mut Vec<Action>) {
        let task = self.tasks.at_mut(slot);
        let at = task.worker;
        if task.flags.has(Flags::EXTRA) {
            self.clear_timeout(slot);
        }
        let left = self.vacate(slot);
        self.tasks.at_mut(slot).worker = NONE;
        let devices = self.tasks.extra(slot).map_or(&[][..], |extra| &extra.devices);
        let worker = &mut self.workers[at];
        worker.release(&self.signatures[left.signature].demand, devices);
        let (used, slots) = (worker.used_slots(), worker.slots);
        self.counters.use_changed((used + 1, slots), (used, slots));
        if self.push_bound() {
            // Whatever is queued next because of this end must see the worker's load as it is.
            self.relist(at);
        }
        self.return_token(left.key, actions);
    }

    /// Takes a held task out of the list of running ones; what it reserved stays reserved.
    #[inline(always)]
    fn vacate(&mut self, slot: u32) -> Left {
        let now = self.now;
        if self.remote {
            self.set_hop(slot, NONE);
        }
        let task = self.tasks.at_mut(slot);
        let (at, guess) = (task.worker, task.place as usize);
        let key = if task.flags.has(Flags::TOKEN) { task.key } else { NONE };
        let (planned, since) = (task.planned, task.since);
        let left = Left { task: task.id(slot), attempt: task.attempt, signature: task.signature, key, planned, since };
        task.state = State::Blocked;
        task.place = NONE;
        task.flags.set(Flags::TOKEN, false);
        let worker = &mut self.workers[at];
        // Right but for those that moved while the list was short.
        let place = if worker.running.get(guess) == Some(&slot) {
            guess
        } else {
            worker.running.iter().position(|&running| running == slot).expect("who is held is in the list")
        };
        worker.running.swap_remove(place);
        worker.running_work -= planned;
        self.counters.running -= 1;
        worker.busy += now.since(since);
        // Telling the one that moved costs a look at its record, looking through a short list less.
        if worker.running.len() > SHORT_LIST
            && let Some(&moved) = worker.running.get(place)
        {
            self.tasks.at_mut(moved).place = place as u32;
        }
        left
    }

    /// The attempt no longer counts, but its worker may still be at it: what it occupies stays occupied until the
    /// worker says otherwise. The task is nowhere then.
    pub(super) fn abandon(&mut self, slot: u32, cause: Cause, actions: &mut Vec<Action>) {
        if self.tasks.at(slot).flags.has(Flags::EXTRA) {
            self.clear_timeout(slot);
        }
        let at = self.tasks.at(slot).worker;
        let Left { task, attempt, signature, key, planned, since } = self.vacate(slot);
        let devices = self.tasks.extra(slot).map(|extra| extra.devices.clone()).unwrap_or_default();
        let ghost = Ghost { task, attempt, signature, key, devices, planned, since };
        self.signatures[signature].users += 1;
        self.workers[at].rare_mut().ghosts.push(ghost);
        self.tasks.at_mut(slot).worker = NONE;
        actions.push(Action::Revoke { worker: self.worker_id(at), task, attempt, cause });
        self.ghosts.insert_new((task, attempt), at);
        self.relist(at);
    }

    /// The worker has let go of an attempt that no longer counts.
    pub(super) fn bury(&mut self, task: TaskId, attempt: u32, actions: &mut Vec<Action>) {
        let Some(at) = self.ghosts.remove(&(task, attempt)) else { return };
        self.counters.stale_reports += 1;
        let worker = &mut self.workers[at];
        let held = |ghost: &Ghost| ghost.task == task && ghost.attempt == attempt;
        let Some(place) = worker.ghosts().iter().position(held) else { return };
        let ghost = worker.rare_mut().ghosts.swap_remove(place);
        let (used, slots) = (worker.used_slots(), worker.slots);
        self.counters.use_changed((used + 1, slots), (used, slots));
        worker.release(&self.signatures[ghost.signature].demand, &ghost.devices);
        worker.busy += self.now.since(ghost.since);
        self.release_signature(ghost.signature);
        if ghost.key != NONE && self.tasks.find(task).is_none() {
            // Whoever comes after this life need not wait for it.
            self.persist(Record::Retrying { task, attempt, retries: 0, until: Time::ZERO }, actions);
        }
        self.aside = at;
        self.return_token(ghost.key, actions);
        if makes(Mistake::ReleaseKeyTwice) {
            self.return_token(ghost.key, actions);
        }
        self.aside = NONE;
        self.serve(at, actions);
    }

    /// A token of a key comes back; the next task that waits for it may queue.
    #[inline(always)]
    pub(super) fn return_token(&mut self, key: u32, actions: &mut Vec<Action>) {
        if key != NONE
            && let Some(next) = self.keys.give_back(key)
        {
            self.offer_from_key(next, actions);
        }
    }

    /// A task that is nowhere after a failed attempt: tried again after a pause, or failed for good.
    pub(super) fn failed_attempt(&mut self, slot: u32, at: u32, retry: bool, cause: Cause, actions: &mut Vec<Action>) {
        let id = self.worker_id(at);
        let terms = self.retry_terms(slot);
        let tries = u32::from(self.tasks.at(slot).retries);
        let failures = &mut self.tasks.extra_mut(slot).failures;
        if failures.len() == FAILURES_KEPT {
            failures.remove(0);
        }
        failures.push((id, cause));
        if !retry || tries >= terms.max_retries {
            self.settle_at(slot, at, Status::Failed, cause, actions);
            return;
        }
        let pause = steal::backoff(&mut self.rng, terms.backoff, terms.backoff_max, self.config.retry.jitter, tries);
        // Whoever has an exclusive task may still be at it for as long as a lease.
        let due = self.now + if self.may_still_run(slot) { pause.max(self.config.limits.lease) } else { pause };
        let task = self.tasks.at_mut(slot);
        task.retries = task.retries.saturating_add(1);
        let (attempt, retries) = (task.attempt, task.retries);
        // Of an attempt that this life has given out nothing more counts when it has failed. One of an earlier life would be taken
        // for one that nobody knew of, and fail again, whenever that is said again.
        if attempt <= self.first_generation {
            task.attempt = self.first_generation + 1;
        }
        self.counters.retries += 1;
        self.back_off(slot, due, cause, actions);
        let task = self.tasks.id(slot);
        self.persist(Record::Retrying { task, attempt, retries, until: due }, actions);
    }

    /// Whether a task that must never run twice at once was taken from a holder that has not let go of it.
    pub(crate) fn may_still_run(&self, slot: u32) -> bool {
        let task = self.tasks.at(slot);
        task.flags.has(Flags::EXCLUSIVE) && self.ghosts.get(&(self.tasks.id(slot), task.attempt)).is_some()
    }

    pub(crate) fn retry_terms(&self, slot: u32) -> RetryTerms {
        let Retry { max_retries, backoff, backoff_max, .. } = self.config.retry;
        let configured = RetryTerms { max_retries, backoff, backoff_max };
        self.tasks.extra(slot).and_then(|extra| extra.retry).unwrap_or(configured)
    }

    /// Sets a worker aside that fails too often in a row at what others can do, for longer each time.
    fn watch_failures(&mut self, at: u32, kind: KindId, actions: &mut Vec<Action>) {
        let limits = &self.config.limits;
        let worker = &self.workers[at];
        let too_many = limits.quarantine_after > 0 && worker.failures_in_a_row >= limits.quarantine_after;
        if !too_many || worker.state != WorkerState::Up || !self.latest_ends.others_can(kind, self.worker_id(at)) {
            return;
        }
        let pause = Span(limits.quarantine.0.saturating_mul(1 << worker.quarantines.min(10)));
        let until = self.now + pause;
        let worker = &mut self.workers[at];
        worker.quarantines += 1;
        worker.failures_in_a_row = 0;
        self.set_state(at, WorkerState::Quarantined(until));
        self.counters.quarantines += 1;
        self.timers.set(until, Timer::Quarantine(self.worker_id(at)));
        self.not_up(at);
        self.requeue_queue(at, Cause::WorkerLost, actions);
    }
}
