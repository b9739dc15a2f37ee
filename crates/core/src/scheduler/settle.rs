//! The end of tasks: settling, what it means for those that depend on them, and cancellation at every stage.

use super::{ArrayPlace, COMMON_JOB, Flags, Scheduler, State, Timer, queue_key};
use crate::action::{Action, Record, Refusal};
use crate::ids::{JobId, KeyId, NONE, TaskId};
use crate::task::{Cause, ParentFailure, Status};

impl Scheduler {
    /// Settles a task that is nowhere, and whatever follows from it for others.
    pub(super) fn settle(&mut self, slot: u32, status: Status, cause: Cause, actions: &mut Vec<Action>) {
        self.settle_at(slot, NONE, status, cause, actions);
    }

    /// The same, naming the worker it was with.
    #[inline(always)]
    pub(super) fn settle_at(&mut self, slot: u32, at: u32, status: Status, cause: Cause, actions: &mut Vec<Action>) {
        if self.tasks.at(slot).flags.has(Flags::EXTRA) {
            self.settle_with_others(slot, at, status, cause, actions);
        } else {
            self.settle_one(slot, at, status, cause, actions);
        }
    }

    /// The same for a task that others may depend on.
    #[inline(never)]
    fn settle_with_others(&mut self, slot: u32, at: u32, status: Status, cause: Cause, actions: &mut Vec<Action>) {
        // Those who wait for it, and in turn for them; a list, not recursion, since chains may be long.
        let mut settled = vec![(slot, at, status, cause)];
        let mut released = Vec::new();
        while let Some((slot, at, status, cause)) = settled.pop() {
            let dependents = match self.tasks.extra(slot) {
                Some(_) => std::mem::take(&mut self.tasks.extra_mut(slot).dependents),
                None => Vec::new(),
            };
            self.settle_one(slot, at, status, cause, actions);
            for child in dependents {
                let Some(child) = self.tasks.find(child) else { continue };
                let task = self.tasks.at(child);
                if task.state != State::Blocked || task.blockers == 0 || task.job == self.cancelling {
                    continue;
                }
                let choice = self.tasks.extra(child).map_or(ParentFailure::Fail, |extra| extra.on_parent_failure);
                if status == Status::Completed || choice == ParentFailure::Run {
                    let task = self.tasks.at_mut(child);
                    task.blockers -= 1;
                    if task.blockers == 0 {
                        released.push(self.tasks.id(child));
                    }
                } else {
                    let status = if choice == ParentFailure::Skip { Status::Skipped } else { Status::Failed };
                    // Marked at once, so that another parent's end does not find it waiting.
                    self.tasks.at_mut(child).blockers = 0;
                    settled.push((child, NONE, status, Cause::ParentFailed));
                }
            }
        }
        if released.len() > 1 {
            released.sort_unstable_by_key(|id| self.queue_place(id.slot));
        }
        self.freed.extend(released.into_iter().rev());
        if self.freeing {
            // Queueing one of them ended in its end: whoever called goes on with these first, and the stack stays flat.
            return;
        }
        self.freeing = true;
        while let Some(id) = self.freed.pop() {
            if let Some(child) = self.tasks.find(id) {
                self.enqueue(child, Cause::None, actions);
            }
        }
        self.freeing = false;
    }

    fn settle_one(&mut self, slot: u32, at: u32, status: Status, cause: Cause, actions: &mut Vec<Action>) {
        let task = self.tasks.at_mut(slot);
        debug_assert_eq!(task.state, State::Blocked, "only tasks that are nowhere are settled");
        let (id, loose) = (task.id(slot), task.flags.has(Flags::LOOSE));
        let (job, signature, attempt, deadline) = (task.job, task.signature, task.attempt, task.deadline);
        let member = task.member;
        task.worker = NONE;
        if loose {
            self.element_left(slot);
        }
        if deadline != crate::time::Time::NEVER {
            self.timers.cancel(deadline, Timer::Deadline(id));
        }
        self.notify_at(slot, at, status, cause, actions);
        self.persist(Record::Settled { task: id, attempt, status, cause, at: self.now }, actions);
        self.counters.settled(status, 1);
        self.tasks.release(slot, status, cause);
        self.release_signature(signature);
        let owner = &mut self.jobs[job];
        owner.open -= 1;
        if job != COMMON_JOB {
            owner.members.remove(member);
            self.job_may_be_done(job, actions);
        }
    }

    pub(super) fn cancel(&mut self, task: TaskId, actions: &mut Vec<Action>) -> Result<(), Refusal> {
        let slot = self.tasks.find(task).ok_or(Refusal::UnknownTask(task))?;
        self.cancel_slot(slot, actions);
        Ok(())
    }

    fn cancel_slot(&mut self, slot: u32, actions: &mut Vec<Action>) {
        let at = self.tasks.at(slot).worker;
        let held = self.tasks.at(slot).state.is_held();
        self.pull_out(slot, Cause::Requested, actions);
        self.settle_at(slot, if held { at } else { NONE }, Status::Cancelled, Cause::Requested, actions);
    }

    /// Takes a task out of wherever it is; it is nowhere then.
    pub(super) fn pull_out(&mut self, slot: u32, cause: Cause, actions: &mut Vec<Action>) {
        let task = self.tasks.at(slot);
        match task.state {
            State::Blocked | State::Vacant => {}
            State::Central | State::KeyWaiting | State::AtWorker => self.leave_queue(slot, actions),
            State::Backoff => {
                self.timers.cancel(task.since, Timer::Retry(self.tasks.id(slot)));
                self.tasks.at_mut(slot).state = State::Blocked;
                self.counters.retrying -= 1;
            }
            State::Parked => self.unpark(slot),
            State::Assigned | State::Running => self.abandon(slot, cause, actions),
        }
    }

    /// Takes a queued task out of its queue for good (not to be handed out); it is nowhere then.
    pub(super) fn leave_queue(&mut self, slot: u32, actions: &mut Vec<Action>) {
        let task = self.tasks.at(slot);
        let (key, place) = (task.key, queue_key(task.level, task.order(), slot));
        match task.state {
            State::Central => self.leave_lane(slot),
            State::AtWorker => {
                self.recall(slot, Cause::Requested, actions);
                self.leave_worker_queue(slot);
            }
            _ => {}
        }
        self.leave_waiting(slot);
        if key != NONE
            && let Some(next) = self.keys.leave(key, place)
        {
            self.offer_from_key(next, actions);
        }
    }

    pub(super) fn cancel_element(&mut self, job: JobId, index: u32, actions: &mut Vec<Action>) -> Result<(), Refusal> {
        let slot = self.job_slot(job)?;
        let Some(array) = self.jobs[slot].array.as_mut() else { return Err(Refusal::UnknownElement(job, index)) };
        if let Some(&element) = array.loose.get(&index) {
            self.cancel_slot(element, actions);
            return Ok(());
        }
        if index < array.next || index >= array.count || !array.skipped.insert(index) {
            return Err(Refusal::UnknownElement(job, index));
        }
        let (left, parked) = (array.pending(), array.place == ArrayPlace::Parked);
        self.elements_settled(slot, (index, index + 1), Status::Cancelled, Cause::Requested, actions);
        self.settle_elements(slot, 1, parked, Status::Cancelled, Cause::Requested, actions);
        if left == 0 {
            self.withdraw_array(slot);
        }
        self.job_may_be_done(slot, actions);
        Ok(())
    }

    pub(super) fn cancel_job(&mut self, job: JobId, actions: &mut Vec<Action>) -> Result<(), Refusal> {
        let slot = self.job_slot(job)?;
        if slot == COMMON_JOB {
            return Err(Refusal::UnknownJob(job));
        }
        self.jobs[slot].closed = true;
        self.drop_elements(slot, Status::Cancelled, Cause::Requested, actions);
        let mut ids: Vec<TaskId> = self.jobs[slot].members.iter().map(|member| self.tasks.id(member)).collect();
        ids.sort_unstable_by_key(|id| id.slot);
        let none_left = ids.is_empty();
        // All of them are cancelled; none shall fail or start because of another.
        self.cancelling = slot;
        for id in ids {
            if let Some(member) = self.tasks.find(id) {
                self.cancel_slot(member, actions);
            }
        }
        self.cancelling = NONE;
        if none_left {
            self.job_may_be_done(slot, actions);
        }
        Ok(())
    }

    /// Settles all elements of an array that were never handed out.
    pub(super) fn drop_elements(&mut self, job: u32, status: Status, cause: Cause, actions: &mut Vec<Action>) {
        let Some(array) = self.jobs[job].array.as_ref() else { return };
        let (pending, parked) = (array.pending(), array.place == ArrayPlace::Parked);
        let rest = (array.next, array.count);
        if pending == 0 {
            return;
        }
        self.elements_settled(job, rest, status, cause, actions);
        self.withdraw_array(job);
        if let Some(array) = self.jobs[job].array.as_mut() {
            array.next = array.count;
            array.skipped.clear();
        }
        self.settle_elements(job, pending, parked, status, cause, actions);
    }

    /// Writes down that elements were settled which never were tasks.
    fn elements_settled(
        &mut self,
        job: u32,
        (from, to): (u32, u32),
        status: Status,
        cause: Cause,
        actions: &mut Vec<Action>,
    ) {
        let (job, at) = (self.job_id(job), self.now);
        self.persist(Record::ElementsSettled { job, from, to, status, cause, at }, actions);
    }

    fn settle_elements(
        &mut self,
        job: u32,
        count: u32,
        parked: bool,
        status: Status,
        cause: Cause,
        actions: &mut Vec<Action>,
    ) {
        self.jobs[job].open -= u64::from(count);
        self.counters.pending_elements -= u64::from(count);
        let place = if parked { &mut self.counters.parked } else { &mut self.counters.queued };
        *place -= u64::from(count);
        self.counters.settled(status, u64::from(count));
        actions.push(Action::ElementsSettled { job: self.job_id(job), count, status, cause });
    }

    pub(super) fn set_key_limit(&mut self, key: KeyId, limit: u32, actions: &mut Vec<Action>) -> Result<(), Refusal> {
        if limit == 0 {
            return Err(Refusal::Invalid("the limit of a concurrency key must be at least 1".to_owned()));
        }
        self.persist(Record::KeyLimit { key, limit }, actions);
        self.keys.set_limit(key.0, limit);
        self.follow_limit(key.0, actions);
        Ok(())
    }
}
