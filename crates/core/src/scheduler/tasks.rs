//! The table of tasks: compact records in fixed chunks, so that growing never copies and a task costs little.
//!
//! Never decides anything; it hands out slots, finds tasks by id and remembers for a while how settled ones ended.

use std::collections::VecDeque;

use smallvec::SmallVec;

use super::devices::DeviceMask;
use crate::action::Lack;
use crate::ids::{AffinityId, KindId, NONE, TaskId, WorkerId};
use crate::map::Map;
use crate::task::{Cause, ParentFailure, RetryTerms, Status};
use crate::time::{Span, Time};

/// Where a task is, as far as the scheduler's structures are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The slot is free; its last task is settled.
    Vacant,
    /// Waits for tasks it depends on.
    Blocked,
    /// In a lane of the central queue.
    Central,
    /// Waits for a token of its concurrency key.
    KeyWaiting,
    /// In a worker's own queue.
    AtWorker,
    /// Waits for its next attempt.
    Backoff,
    /// No registered worker can ever run it.
    Parked,
    /// Handed to a slot.
    Assigned,
    /// Said to run.
    Running,
}

impl State {
    /// Whether the task waits in a queue, and so ages.
    pub(crate) fn is_queued(self) -> bool {
        matches!(self, State::Central | State::KeyWaiting | State::AtWorker)
    }

    /// Whether a worker's slot holds the task.
    pub(crate) fn is_held(self) -> bool {
        matches!(self, State::Assigned | State::Running)
    }

    pub(crate) fn status(self, outcome: Status) -> Status {
        match self {
            State::Vacant => outcome,
            State::Blocked => Status::Blocked,
            State::Central | State::KeyWaiting | State::AtWorker => Status::Queued,
            State::Backoff => Status::Retrying,
            State::Parked => Status::Unschedulable,
            State::Assigned => Status::Assigned,
            State::Running => Status::Running,
        }
    }
}

/// Yes-or-no properties of a task, packed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flags(u8);

impl Flags {
    pub(crate) const EXCLUSIVE: Flags = Flags(1);
    pub(crate) const IDEMPOTENT: Flags = Flags(2);
    /// Has a record in the side table.
    pub(crate) const EXTRA: Flags = Flags(4);
    /// Some worker is kept free for it.
    pub(crate) const RESERVED: Flags = Flags(8);
    pub(crate) const PINNED: Flags = Flags(16);
    /// Holds a token of its key.
    pub(crate) const TOKEN: Flags = Flags(32);
    /// An element of an array.
    pub(crate) const ELEMENT: Flags = Flags(64);
    /// An element of a keyed array that was let out to wait for its key and has not been handed out.
    pub(crate) const FED: Flags = Flags(128);

    pub(crate) fn has(self, flag: Flags) -> bool {
        self.0 & flag.0 != 0
    }

    pub(crate) fn set(&mut self, flag: Flags, on: bool) {
        if on {
            self.0 |= flag.0;
        } else {
            self.0 &= !flag.0;
        }
    }
}

/// The order inside a level: earliest deadline, then highest rank, then first come.
pub(crate) type OrderKey = (u64, u32, u64);

/// One task. Kept small: ten million of them may wait.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub(crate) generation: u32,
    pub(crate) state: State,
    /// How the last task of a vacant slot ended.
    pub(crate) outcome: Status,
    pub(crate) cause: Cause,
    /// The level it queues in; aging raises it, requeueing lowers it.
    pub(crate) level: u8,
    /// The priority it was submitted with.
    pub(crate) priority: u8,
    pub(crate) flags: Flags,
    pub(crate) requeues: u16,
    pub(crate) retries: u16,
    pub(crate) given_back: u16,
    /// Highest rank first; stored inverted so that the least comes first.
    pub(crate) rank: u32,
    pub(crate) signature: u32,
    pub(crate) kind: KindId,
    pub(crate) job: u32,
    pub(crate) key: u32,
    pub(crate) worker: u32,
    pub(crate) attempt: u32,
    /// Unsettled tasks it depends on.
    pub(crate) blockers: u32,
    /// Its place in the worker's list of running tasks.
    pub(crate) place: u32,
    /// Neighbours in its level's list by waiting time.
    pub(crate) older: u32,
    pub(crate) newer: u32,
    /// Position in its job.
    pub(crate) index: u32,
    pub(crate) payload: u64,
    pub(crate) sequence: u64,
    /// When it came to its level, its slot or its pause; when the pause ends, for those.
    pub(crate) since: Time,
    /// When it became ready to run.
    pub(crate) ready_at: Time,
    pub(crate) deadline: Time,
    /// The declared estimate; zero if there is none.
    pub(crate) estimate: Span,
    /// The time it is planned with at its worker.
    pub(crate) planned: Span,
}

impl Task {
    fn vacant() -> Task {
        Task {
            generation: 0,
            state: State::Vacant,
            outcome: Status::Completed,
            cause: Cause::None,
            level: 0,
            priority: 0,
            flags: Flags::default(),
            requeues: 0,
            retries: 0,
            given_back: 0,
            rank: 0,
            signature: NONE,
            kind: KindId(0),
            job: NONE,
            key: NONE,
            worker: NONE,
            attempt: 0,
            blockers: 0,
            place: NONE,
            older: NONE,
            newer: NONE,
            index: 0,
            payload: 0,
            sequence: 0,
            since: Time::ZERO,
            ready_at: Time::ZERO,
            deadline: Time::NEVER,
            estimate: Span::ZERO,
            planned: Span::ZERO,
        }
    }

    pub(crate) fn order(&self) -> OrderKey {
        (self.deadline.0, self.rank, self.sequence)
    }

    pub(crate) fn declared(&self) -> Option<Span> {
        (self.estimate != Span::ZERO).then_some(self.estimate)
    }

    pub(crate) fn status(&self) -> Status {
        self.state.status(self.outcome)
    }
}

/// What few tasks have, kept aside so that the others do not pay for it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Extra {
    /// Tasks that wait for this one.
    pub(crate) dependents: Vec<TaskId>,
    /// Tasks this one waits for.
    pub(crate) parents: SmallVec<[TaskId; 2]>,
    pub(crate) affinity: SmallVec<[(AffinityId, Span); 1]>,
    pub(crate) pin: Option<WorkerId>,
    pub(crate) spawned_by: Option<TaskId>,
    pub(crate) timeout: Option<Span>,
    pub(crate) retry: Option<RetryTerms>,
    pub(crate) on_parent_failure: ParentFailure,
    /// Where earlier attempts ended badly, and why.
    pub(crate) failures: Vec<(WorkerId, Cause)>,
    /// The accelerators it holds, while it holds a slot.
    pub(crate) devices: DeviceMask,
    /// Why no class could run it, once it has failed for that.
    pub(crate) refused_by: Vec<(WorkerId, Lack)>,
}

/// Tasks per chunk.
const CHUNK: usize = 1024;

/// All tasks, by slot.
#[derive(Debug, Default)]
pub(crate) struct Tasks {
    chunks: Vec<Box<[Task]>>,
    /// Vacant slots, longest vacant first.
    vacant: VecDeque<u32>,
    /// Slots ever used.
    used: u32,
    /// Vacant slots kept at the least, to remember how their tasks ended.
    kept: usize,
    live: u64,
    extras: Map<u32, Box<Extra>>,
}

impl Tasks {
    pub(crate) fn new(kept: usize) -> Tasks {
        Tasks { kept, ..Tasks::default() }
    }

    /// Tasks that are not settled.
    pub(crate) fn live(&self) -> u64 {
        self.live
    }

    /// A slot for a new task, with everything at its default and a new generation.
    pub(crate) fn allocate(&mut self) -> u32 {
        self.live += 1;
        if self.vacant.len() > self.kept
            && let Some(slot) = self.vacant.pop_front()
        {
            let task = self.at_mut(slot);
            let generation = task.generation.wrapping_add(1);
            *task = Task { generation, ..Task::vacant() };
            if self.extras.is_empty() {
                return slot;
            }
            self.extras.remove(&slot);
            return slot;
        }
        let slot = self.used;
        self.used += 1;
        if slot as usize / CHUNK == self.chunks.len() {
            self.chunks.push(vec![Task::vacant(); CHUNK].into_boxed_slice());
        }
        slot
    }

    /// The task is settled; its slot remembers how until it is used again.
    pub(crate) fn release(&mut self, slot: u32, outcome: Status, cause: Cause) {
        let task = self.at_mut(slot);
        debug_assert!(task.state != State::Vacant, "a task is settled once");
        task.state = State::Vacant;
        task.outcome = outcome;
        task.cause = cause;
        if task.flags.has(Flags::EXTRA)
            && let Some(extra) = self.extras.get_mut(&slot)
        {
            extra.dependents = Vec::new();
        }
        self.live -= 1;
        self.vacant.push_back(slot);
    }

    #[inline]
    pub(crate) fn at(&self, slot: u32) -> &Task {
        &self.chunks[slot as usize / CHUNK][slot as usize % CHUNK]
    }

    #[inline]
    pub(crate) fn at_mut(&mut self, slot: u32) -> &mut Task {
        &mut self.chunks[slot as usize / CHUNK][slot as usize % CHUNK]
    }

    #[inline]
    pub(crate) fn id(&self, slot: u32) -> TaskId {
        TaskId { slot, generation: self.at(slot).generation }
    }

    /// The slot of a task that is known and not settled.
    #[inline]
    pub(crate) fn find(&self, id: TaskId) -> Option<u32> {
        (id.slot < self.used && self.at(id.slot).generation == id.generation && self.at(id.slot).state != State::Vacant)
            .then_some(id.slot)
    }

    /// How a settled task ended, while it is remembered.
    pub(crate) fn outcome(&self, id: TaskId) -> Option<(Status, Cause)> {
        if id.slot >= self.used {
            return None;
        }
        let task = self.at(id.slot);
        (task.generation == id.generation && task.state == State::Vacant).then_some((task.outcome, task.cause))
    }

    pub(crate) fn extra(&self, slot: u32) -> Option<&Extra> {
        if !self.at(slot).flags.has(Flags::EXTRA) {
            return None;
        }
        self.extras.get(&slot).map(Box::as_ref)
    }

    /// The side record of a task, made if it has none.
    pub(crate) fn extra_mut(&mut self, slot: u32) -> &mut Extra {
        self.at_mut(slot).flags.set(Flags::EXTRA, true);
        self.extras.entry(slot).or_default()
    }

    /// All slots in use, for checks and reports.
    pub(crate) fn slots(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.used).filter(|&slot| self.at(slot).state != State::Vacant)
    }

    /// Slots ever used.
    pub(crate) fn span(&self) -> u32 {
        self.used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_record_stays_small() {
        assert!(size_of::<Task>() <= 136, "{}", size_of::<Task>());
    }

    #[test]
    fn ids_of_settled_tasks_tell_their_outcome_until_the_slot_is_used_again() {
        let mut tasks = Tasks::new(2);
        let mut ids = Vec::new();
        for _ in 0..4 {
            let slot = tasks.allocate();
            tasks.at_mut(slot).state = State::Blocked;
            ids.push(tasks.id(slot));
        }
        for id in &ids {
            assert_eq!(tasks.find(*id), Some(id.slot));
            tasks.release(id.slot, Status::Failed, Cause::Reported);
            assert_eq!(tasks.find(*id), None);
            assert_eq!(tasks.outcome(*id), Some((Status::Failed, Cause::Reported)));
        }
        assert_eq!(tasks.live(), 0);
        let slot = tasks.allocate();
        assert_eq!(slot, ids[0].slot, "the longest vacant slot is used again");
        assert_eq!(tasks.outcome(ids[0]), None);
        assert_ne!(tasks.id(slot), ids[0]);
        assert_eq!(tasks.outcome(ids[3]), Some((Status::Failed, Cause::Reported)));
    }
}
