//! The table of tasks: compact records in fixed chunks, so that growing never copies and a task costs little.
//!
//! Never decides anything; it hands out slots, finds tasks by id and remembers for a while how settled ones ended.

use std::collections::VecDeque;
use std::ops::RangeInclusive;

use smallvec::SmallVec;

use super::devices::DeviceSet;
use crate::explain::Refusals;
use crate::ids::{AffinityId, KindId, NONE, TaskId, WorkerId};
use crate::map::Steady;
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
    /// An element that waits by itself and has not been handed out.
    pub(crate) const LOOSE: Flags = Flags(128);

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
/// Packed, since each queued task has one in its queue, beside a number of four bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(Rust, packed(4))]
pub(crate) struct OrderKey {
    pub(crate) deadline: Time,
    pub(crate) rank: u32,
    pub(crate) sequence: u64,
}

/// One task. Kept small: ten million of them may wait, and each step of one should touch two lines of the cache. The
/// first has all that queues and aging touch, so that a promotion needs no other.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(crate) struct Task {
    pub(crate) sequence: u64,
    pub(crate) deadline: Time,
    /// When it came to its level, its slot or its pause; when the pause ends, for those.
    pub(crate) since: Time,
    /// Highest rank first; stored inverted so that the least comes first.
    pub(crate) rank: u32,
    pub(crate) generation: u32,
    pub(crate) signature: u32,
    pub(crate) job: u32,
    pub(crate) key: u32,
    pub(crate) worker: u32,
    /// Neighbours in its level's list by waiting time; of a vacant slot, in the list of those.
    pub(crate) older: u32,
    pub(crate) newer: u32,
    pub(crate) state: State,
    /// How the last task of a vacant slot ended.
    pub(crate) outcome: Status,
    /// Why it ended so, or why it pauses.
    pub(crate) cause: Cause,
    /// The level it queues in; aging raises it, requeueing lowers it.
    pub(crate) level: u8,
    /// The priority it was submitted with.
    pub(crate) priority: u8,
    pub(crate) flags: Flags,
    pub(crate) requeues: u16,
    // The second line begins here.
    pub(crate) payload: u64,
    /// When it became ready to run.
    pub(crate) ready_at: Time,
    /// The declared estimate; zero if there is none.
    pub(crate) estimate: Span,
    /// The time it is planned with at its worker.
    pub(crate) planned: Span,
    pub(crate) kind: KindId,
    pub(crate) attempt: u32,
    /// How often the attempt has changed hands by stealing; [`NONE`] as long as it is not with a worker that has its own
    /// queue.
    pub(crate) hop: u32,
    /// Unsettled tasks it depends on.
    pub(crate) blockers: u32,
    /// Its place in the worker's list of running tasks; only a first guess while that list is short, [`NONE`] if it is in
    /// no such list.
    pub(crate) place: u32,
    /// Its place among the members of its job.
    pub(crate) member: u32,
    /// Position in its job.
    pub(crate) index: u32,
    pub(crate) retries: u16,
    pub(crate) given_back: u16,
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
            hop: NONE,
            blockers: 0,
            place: NONE,
            member: NONE,
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

    /// Its id, given its slot.
    #[inline]
    pub(crate) fn id(&self, slot: u32) -> TaskId {
        TaskId { slot, generation: self.generation }
    }

    #[inline]
    pub(crate) fn order(&self) -> OrderKey {
        OrderKey { deadline: self.deadline, rank: self.rank, sequence: self.sequence }
    }

    /// Whether it must not run beside others of its key, or twice at once: it leaves the scheduler only for a free slot.
    #[inline]
    pub(crate) fn waits_centrally(&self) -> bool {
        self.key != NONE || self.flags.has(Flags::EXCLUSIVE)
    }

    /// The worker it is with, in its queue or in a slot. One that is kept free for it does not have it yet.
    #[inline]
    pub(crate) fn at_worker(&self) -> u32 {
        if self.state == State::Central { NONE } else { self.worker }
    }

    pub(crate) fn declared(&self) -> Option<Span> {
        (self.estimate != Span::ZERO).then_some(self.estimate)
    }

    pub(crate) fn status(&self) -> Status {
        self.state.status(self.outcome)
    }
}

/// What few tasks have, kept aside so that the others do not pay for it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Extra {
    /// Tasks that wait for this one.
    pub(crate) dependents: Vec<TaskId>,
    /// Tasks this one waits for.
    pub(crate) parents: SmallVec<[TaskId; 2]>,
    pub(crate) affinity: SmallVec<[(AffinityId, Span); 1]>,
    pub(crate) pin: Option<WorkerId>,
    pub(crate) seeded: Option<WorkerId>,
    pub(crate) spawned_by: Option<TaskId>,
    pub(crate) timeout: Option<Span>,
    pub(crate) retry: Option<RetryTerms>,
    pub(crate) on_parent_failure: ParentFailure,
    /// Where earlier attempts ended badly, and why.
    pub(crate) failures: Vec<(WorkerId, Cause)>,
    /// The accelerators it holds, while it holds a slot.
    pub(crate) devices: DeviceSet,
    /// Why no class could run it, once it has failed for that.
    pub(crate) refusals: Option<Box<Refusals>>,
}

/// Tasks per chunk.
const CHUNK: usize = 1024;

/// Chunks beyond what is needed that are kept for the next burst.
const SPARE_CHUNKS: usize = 64;

/// Tasks in neighbouring slots; nothing if the chunk was given up. Of fixed length, so that a slot needs no second check.
type Records = Option<Box<[Task; CHUNK]>>;

/// What is known of tasks in neighbouring slots as a whole.
#[derive(Debug)]
struct Chunk {
    /// Tasks in it that are not settled.
    live: u32,
    /// How many tasks had been settled when the last of its own was.
    settled_at: u64,
    /// The generation its slots begin with, beyond all that were in use before it was given up.
    generation: u32,
    /// It gets no new tasks and is given up once nothing in it is needed; its vacant slots are in no list.
    retiring: bool,
}

/// Blank records for a chunk whose slots begin with that generation.
fn blank_records(generation: u32) -> Records {
    vec![Task { generation, ..Task::vacant() }; CHUNK].into_boxed_slice().try_into().ok()
}

/// All tasks, by slot.
#[derive(Debug)]
pub(crate) struct Tasks {
    /// The records by chunk, apart from the rest: they are what every look at a task goes through.
    records: Vec<Records>,
    chunks: Vec<Chunk>,
    /// Vacant slots, a list from the longest vacant to the latest.
    vacant_first: u32,
    vacant_last: u32,
    vacant: usize,
    /// Slots ever used, up to the first that never was.
    used: u32,
    /// Chunks given up, to be filled again before there are new ones.
    absent: Vec<u32>,
    /// The chunk filled again last, and how many of its slots are in use for the first time since.
    filling: Option<(u32, u32)>,
    /// Chunks on the way to be given up.
    retiring: VecDeque<u32>,
    /// The chunk that is looked at next when there are too many.
    look_at: usize,
    /// Vacant slots kept at the least, to remember how their tasks ended.
    kept: usize,
    /// The least generation of a new task: beyond all that an earlier life of the scheduler may have given out.
    first_generation: u32,
    /// The greatest one: those beyond belong to later lives. A slot that had it gets no more tasks.
    last_generation: u32,
    live: u64,
    settled: u64,
    extras: Steady<u32, Box<Extra>>,
}

impl Tasks {
    pub(crate) fn new(kept: usize) -> Tasks {
        Tasks {
            records: Vec::new(),
            chunks: Vec::new(),
            vacant_first: NONE,
            vacant_last: NONE,
            vacant: 0,
            used: 0,
            absent: Vec::new(),
            filling: None,
            retiring: VecDeque::new(),
            look_at: 0,
            kept,
            first_generation: 0,
            last_generation: u32::MAX,
            live: 0,
            settled: 0,
            extras: Steady::default(),
        }
    }

    /// Tasks that are not settled.
    pub(crate) fn live(&self) -> u64 {
        self.live
    }

    /// A slot for a new task, with everything at its default and a new generation.
    pub(crate) fn allocate(&mut self) -> u32 {
        self.live += 1;
        let slot = if self.vacant > self.kept && !self.retire_spent() { self.reuse() } else { self.extend() };
        self.chunks[slot as usize / CHUNK].live += 1;
        slot
    }

    /// Whether the slot that would be next has had all generations of this life; its chunk gets no new tasks then.
    #[inline]
    fn retire_spent(&mut self) -> bool {
        let spent = self.at(self.vacant_first).generation >= self.last_generation;
        if spent {
            self.retire(self.vacant_first as usize / CHUNK);
        }
        spent
    }

    /// The slot that has been vacant longest.
    fn reuse(&mut self) -> u32 {
        let slot = self.vacant_first;
        let next = self.at(slot).newer;
        self.vacant_first = next;
        self.vacant -= 1;
        if next == NONE {
            self.vacant_last = NONE;
        } else {
            // Both of its lines are written to: by the time it is used they have come from memory.
            let next = self.at_mut(next);
            (next.older, next.place) = (NONE, NONE);
        }
        let first = self.first_generation;
        let task = self.at_mut(slot);
        let generation = (task.generation + 1).max(first);
        *task = Task { generation, ..Task::vacant() };
        if !self.extras.is_empty() {
            self.extras.remove(&slot);
        }
        slot
    }

    /// A slot that was never used, or not since its chunk was given up.
    #[inline(never)]
    fn extend(&mut self) -> u32 {
        if self.filling.is_none()
            && let Some(chunk) = self.absent.pop()
        {
            let known = &mut self.chunks[chunk as usize];
            known.retiring = false;
            self.records[chunk as usize] = blank_records(known.generation);
            self.filling = Some((chunk, 0));
        }
        if let Some((chunk, used)) = self.filling {
            self.filling = (used as usize + 1 < CHUNK).then_some((chunk, used + 1));
            return chunk * CHUNK as u32 + used;
        }
        let slot = self.used;
        self.used += 1;
        if slot as usize / CHUNK == self.chunks.len() {
            let generation = self.first_generation;
            self.chunks.push(Chunk { live: 0, settled_at: 0, generation, retiring: false });
            self.records.push(blank_records(generation));
        }
        slot
    }

    /// Says which generations are this life's own.
    pub(crate) fn begin_with(&mut self, generations: RangeInclusive<u32>) {
        (self.first_generation, self.last_generation) = generations.into_inner();
    }

    /// A slot for a task of an earlier life, under its id, or for what is remembered of it if it has an outcome. Slots
    /// come in ascending order, before any other task.
    pub(crate) fn restore(&mut self, id: TaskId, outcome: Option<(Status, Cause)>) -> u32 {
        while self.used <= id.slot {
            let slot = self.extend();
            self.chunks[slot as usize / CHUNK].live += 1;
            self.live += 1;
            let task = self.at_mut(slot);
            task.state = State::Blocked;
            if slot < id.slot {
                self.release(slot, Status::Completed, Cause::None);
            }
        }
        self.at_mut(id.slot).generation = id.generation;
        if let Some((status, cause)) = outcome {
            self.release(id.slot, status, cause);
        }
        id.slot
    }

    /// Takes a slot out of the list of vacant ones.
    fn unlink(&mut self, slot: u32) {
        let &Task { older, newer, .. } = self.at(slot);
        match older {
            NONE => self.vacant_first = newer,
            older => self.at_mut(older).newer = newer,
        }
        match newer {
            NONE => self.vacant_last = older,
            newer => self.at_mut(newer).older = older,
        }
        self.vacant -= 1;
    }

    /// The task is settled; its slot remembers how until it is used again.
    pub(crate) fn release(&mut self, slot: u32, outcome: Status, cause: Cause) {
        let task = self.at_mut(slot);
        debug_assert!(task.state != State::Vacant, "a task is settled once");
        task.state = State::Vacant;
        task.outcome = outcome;
        task.cause = cause;
        let extra = task.flags.has(Flags::EXTRA);
        if extra && let Some(extra) = self.extras.get_mut(&slot) {
            extra.dependents = Vec::new();
        }
        self.live -= 1;
        self.settled += 1;
        let chunk = &mut self.chunks[slot as usize / CHUNK];
        chunk.live -= 1;
        chunk.settled_at = self.settled;
        if !chunk.retiring {
            self.link(slot);
        }
        if self.vacant > self.kept + self.live as usize + SPARE_CHUNKS * CHUNK {
            self.retire_one();
        }
        if !self.retiring.is_empty() {
            self.give_up_one();
        }
    }

    /// Adds a slot to the list of vacant ones.
    fn link(&mut self, slot: u32) {
        let last = std::mem::replace(&mut self.vacant_last, slot);
        let task = self.at_mut(slot);
        (task.older, task.newer) = (last, NONE);
        match last {
            NONE => self.vacant_first = slot,
            last => self.at_mut(last).newer = slot,
        }
        self.vacant += 1;
    }

    /// There are more vacant slots than needed: the chunk whose turn it is gets no new tasks from now on.
    #[cold]
    fn retire_one(&mut self) {
        let at = self.look_at;
        self.look_at = if at + 2 < self.chunks.len() { at + 1 } else { 0 };
        if self.records[at].is_some() && !self.chunks[at].retiring && !self.is_filling(at) {
            self.retire(at);
        }
    }

    /// Whether a chunk may have slots that were not used since it was filled.
    fn is_filling(&self, at: usize) -> bool {
        self.filling.is_some_and(|(filling, _)| filling as usize == at) || at + 1 == self.chunks.len()
    }

    #[cold]
    fn retire(&mut self, at: usize) {
        self.chunks[at].retiring = true;
        self.retiring.push_back(at as u32);
        for slot in (at * CHUNK) as u32..((at + 1) * CHUNK) as u32 {
            if self.at(slot).state == State::Vacant {
                self.unlink(slot);
            }
        }
    }

    /// Gives the memory of a retiring chunk back, if nothing in it runs or need be remembered.
    #[cold]
    fn give_up_one(&mut self) {
        let Some(at) = self.retiring.pop_front() else { return };
        let filling = self.is_filling(at as usize);
        let chunk = &mut self.chunks[at as usize];
        if filling || chunk.live > 0 || self.settled - chunk.settled_at < self.kept as u64 {
            self.retiring.push_back(at);
            return;
        }
        let Some(gone) = self.records[at as usize].take() else { return };
        let newest = gone.iter().map(|task| task.generation).max().unwrap_or(0);
        if newest < self.last_generation {
            chunk.generation = (newest + 1).max(self.first_generation);
            self.absent.push(at);
        }
        for (task, slot) in gone.iter().zip(at * CHUNK as u32..) {
            if task.flags.has(Flags::EXTRA) {
                self.extras.remove(&slot);
            }
        }
    }

    #[inline]
    fn get(&self, slot: u32) -> Option<&Task> {
        Some(&self.records.get(slot as usize / CHUNK)?.as_ref()?[slot as usize % CHUNK])
    }

    #[inline]
    pub(crate) fn at(&self, slot: u32) -> &Task {
        self.get(slot).expect("the chunk is there")
    }

    #[inline]
    pub(crate) fn at_mut(&mut self, slot: u32) -> &mut Task {
        let records = self.records.get_mut(slot as usize / CHUNK).and_then(Option::as_mut);
        &mut records.expect("the chunk is there")[slot as usize % CHUNK]
    }

    /// Lets the record of a task in a lane, which will be needed soon, come from memory. Writes into each of its lines
    /// what is there already: nobody waits for a write, as one does for a read.
    #[inline]
    pub(crate) fn fetch(&mut self, slot: u32, signature: u32) {
        let task = self.at_mut(slot);
        debug_assert!(task.signature == signature && task.place == NONE, "nothing is changed");
        (task.signature, task.place) = (signature, NONE);
    }

    #[inline]
    pub(crate) fn id(&self, slot: u32) -> TaskId {
        self.at(slot).id(slot)
    }

    /// The slot of a task that is known and not settled.
    #[inline]
    pub(crate) fn find(&self, id: TaskId) -> Option<u32> {
        self.record(id).map(|_| id.slot)
    }

    /// The record of a task that is known and not settled.
    #[inline]
    pub(crate) fn record(&self, id: TaskId) -> Option<&Task> {
        self.get(id.slot).filter(|task| task.generation == id.generation && task.state != State::Vacant)
    }

    /// How a settled task ended, while it is remembered.
    pub(crate) fn outcome(&self, id: TaskId) -> Option<(Status, Cause)> {
        let task = self.get(id.slot)?;
        let known = task.generation == id.generation && task.state == State::Vacant && self.was_used(id.slot);
        known.then_some((task.outcome, task.cause))
    }

    /// Whether a slot has had a task since its chunk was filled.
    fn was_used(&self, slot: u32) -> bool {
        let first_time = self
            .filling
            .is_some_and(|(chunk, used)| slot >= chunk * CHUNK as u32 + used && slot / CHUNK as u32 == chunk);
        slot < self.used && !first_time
    }

    #[inline]
    pub(crate) fn extra(&self, slot: u32) -> Option<&Extra> {
        if self.at(slot).flags.has(Flags::EXTRA) { self.kept_extra(slot) } else { None }
    }

    // Apart, so that asking costs those that have none no more than a flag.
    #[inline(never)]
    fn kept_extra(&self, slot: u32) -> Option<&Extra> {
        self.extras.get(&slot).map(Box::as_ref)
    }

    /// The side record of a task, made if it has none.
    pub(crate) fn extra_mut(&mut self, slot: u32) -> &mut Extra {
        self.at_mut(slot).flags.set(Flags::EXTRA, true);
        if self.extras.get(&slot).is_none() {
            return self.extras.insert_new(slot, Box::default());
        }
        self.extras.get_mut(&slot).expect("it is there")
    }

    /// The submitter's wish where the task should queue first has been granted; nothing is kept for it any more.
    pub(crate) fn forget_seed(&mut self, slot: u32) {
        let extra = self.extra_mut(slot);
        extra.seeded = None;
        if *extra == Extra::default() {
            self.extras.remove(&slot);
            self.at_mut(slot).flags.set(Flags::EXTRA, false);
        }
    }

    /// Whether a slot has a task that is not settled.
    pub(crate) fn is_live(&self, slot: u32) -> bool {
        self.get(slot).is_some_and(|task| task.state != State::Vacant)
    }

    /// All slots in use, for checks and reports.
    pub(crate) fn slots(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.used).filter(|&slot| self.is_live(slot))
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
        assert_eq!((size_of::<Task>(), std::mem::offset_of!(Task, payload)), (128, 64));
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

    #[test]
    fn after_a_burst_most_of_the_memory_is_given_back_and_no_id_is_mistaken_for_another() {
        const KEPT: usize = 3000;
        let mut tasks = Tasks::new(KEPT);
        let enter = |tasks: &mut Tasks| {
            let slot = tasks.allocate();
            tasks.at_mut(slot).state = State::Blocked;
            tasks.id(slot)
        };
        let filled = |tasks: &Tasks| tasks.records.iter().flatten().count();
        let mut seen = std::collections::BTreeSet::new();
        for round in 0..3 {
            let mut ids: Vec<TaskId> = (0..300_000).map(|_| enter(&mut tasks)).collect();
            for id in &ids {
                assert!(seen.insert(*id), "{id} came back");
            }
            assert!(filled(&tasks) >= 290);
            // Not in the order in which they came.
            let mut rng = crate::rng::Rng::new(round);
            for at in (1..ids.len()).rev() {
                ids.swap(at, rng.below(at + 1));
            }
            for (at, id) in ids.iter().enumerate() {
                tasks.release(id.slot, Status::Failed, Cause::Reported);
                let oldest_kept = ids[at.saturating_sub(KEPT - 1)];
                assert_eq!(tasks.outcome(oldest_kept), Some((Status::Failed, Cause::Reported)));
            }
            // A little work goes on; the rest is given back by and by.
            for _ in 0..20_000 {
                let id = enter(&mut tasks);
                assert!(seen.insert(id), "{id} came back");
                tasks.release(id.slot, Status::Completed, Cause::None);
            }
            assert!(filled(&tasks) <= 2 * SPARE_CHUNKS, "{} chunks are left", filled(&tasks));
            assert_eq!(tasks.live(), 0);
            assert!(tasks.slots().next().is_none());
        }
        assert!(tasks.span() <= 310_000);
        assert_eq!(tasks.find(TaskId { slot: 10_000_000, generation: 0 }), None);
    }
    #[test]
    fn no_slot_has_more_generations_than_its_life() {
        const KEPT: usize = 1500;
        let mut tasks = Tasks::new(KEPT);
        tasks.begin_with(10..=13);
        let mut seen = std::collections::BTreeSet::new();
        for round in 0..40_000 {
            let slot = tasks.allocate();
            tasks.at_mut(slot).state = State::Blocked;
            let id = tasks.id(slot);
            assert!((10..=13).contains(&id.generation), "{id} in round {round}");
            assert!(seen.insert(id), "{id} came back");
            tasks.release(slot, Status::Completed, Cause::None);
            assert_eq!(tasks.outcome(id), Some((Status::Completed, Cause::None)));
        }
        let filled = tasks.records.iter().flatten().count();
        assert!(filled <= 6, "{filled} chunks are left");
        // Four lives of each slot, and what is remembered at a time.
        assert!(tasks.span() <= 40_000 / 4 + 4 * CHUNK as u32, "{} slots were used", tasks.span());
    }
}
