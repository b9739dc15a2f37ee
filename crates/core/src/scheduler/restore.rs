//! A scheduler in a later life: it gets back what its records say, under the same ids, and goes on from there.
//!
//! Never decides again what is recorded. Whoever was given an attempt is believed to hold it until a lease has passed;
//! what is not recorded, holders tell when they come back: an attempt of an earlier life counts as long as this one has
//! given out no other.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use super::devices::DeviceSet;
use super::slab::Slab;
use super::state::Ghost;
use super::submit::NO_RANK;
use super::{COMMON_JOB, Flags, Job, Scheduler, State};
use crate::action::{Action, Record, Refusal};
use crate::event::Held;
use crate::ids::{JobId, NONE, TaskId, WorkerId};
use crate::journal::{Journal, Lingering, OpenArray, Unfinished};
use crate::planted::{Mistake, makes};
use crate::task::{Cause, Status, TaskSpec};
use crate::time::{Span, Time};
use crate::worker::WorkerState;

/// Attempts of one task, or generations of one slot, that a life has for itself. A slot that has had all of them is not
/// used again in that life. Attempts are not counted against it: a task comes nowhere near, since it waits longer and
/// longer between those that fail or are given back.
const PER_LIFE: u32 = 1 << 16;

/// The slot for what comes next into a table, and its generation there, one of `own`.
pub(super) fn next_of<T>(own: (u32, u32), table: &mut Slab<T>, generations: &mut Vec<u32>) -> (u32, u32) {
    let (first, last) = own;
    loop {
        let slot = table.next_slot();
        match generations.get_mut(slot as usize) {
            None => {
                generations.push(first);
                return (slot, first);
            }
            Some(generation) if *generation < last => {
                *generation = (*generation + 1).max(first);
                return (slot, *generation);
            }
            Some(_) => table.forsake_next(),
        }
    }
}

/// Which attempt it is among those that its life of the scheduler has made of the task, counted from 1.
#[must_use]
pub fn attempt_in_life(attempt: u32) -> u32 {
    attempt % PER_LIFE
}

/// What is to become of a task of an earlier life.
struct Again {
    task: TaskId,
    holder: Option<WorkerId>,
    until: Time,
    /// A planted mistake.
    forgotten: bool,
    /// Those of its parents that ended badly; most have none.
    failed: Option<Box<[TaskId]>>,
}

impl Scheduler {
    /// Says which life of the scheduler this is, counted from 1. What it names differs from all that earlier lives may
    /// have named without leaving a record of it.
    #[must_use]
    pub fn in_life(mut self, epoch: u64) -> Scheduler {
        self.first_generation = (epoch.saturating_sub(1) as u32).wrapping_mul(PER_LIFE);
        self.last_generation = self.first_generation + (PER_LIFE - 1);
        self.tasks.begin_with(self.first_generation..=self.last_generation);
        self
    }

    /// The first and the last generation that ids of this life have.
    pub(super) fn own_generations(&self) -> (u32, u32) {
        (self.first_generation, self.last_generation)
    }

    /// Gets back what an earlier life has left. To be called once, before anything else happens. Workers are there but
    /// get nothing new until [`Event::Change`](crate::Event::Change) says that they do not drain any more.
    pub fn restore(&mut self, now: Time, journal: Journal, actions: &mut Vec<Action>) {
        self.now = self.now.max(now);
        for (&worker, spec) in &journal.workers {
            let spec = spec.clone();
            self.worker_generations.resize(worker.index() + 1, self.first_generation);
            self.worker_generations[worker.index()] = worker.generation;
            let mut restored = self.new_worker(spec, worker.slot, worker.generation);
            restored.state = WorkerState::Draining;
            restored.before_silence = WorkerState::Draining;
            self.workers.insert_at(worker.slot, restored);
            self.counters.worker_came(&self.config.load_balancing.thresholds);
        }
        for (&job, known) in &journal.jobs {
            self.job_generations.resize(job.index() + 1, self.first_generation);
            self.job_generations[job.index()] = job.generation;
            self.jobs.insert_at(job.slot, Job::new(job.generation, known.weight));
            self.jobs[job.slot].closed = known.closed;
        }
        let outcomes = journal.outcomes.values().map(|&(task, status, cause)| (task, Some((status, cause))));
        let mut slots: Vec<(TaskId, Option<(Status, Cause)>)> = outcomes.collect();
        slots.extend(journal.tasks.keys().map(|&task| (task, None)));
        slots.sort_unstable_by_key(|entry| entry.0.index());
        for (task, outcome) in slots {
            self.tasks.restore(task, outcome);
        }
        for (&key, &limit) in &journal.key_limits {
            self.keys.set_limit(key.0, limit);
            self.follow_limit(key.0, actions);
        }
        let Journal { tasks, jobs, arrays, lingering, .. } = journal;
        for (task, lingering) in lingering {
            self.linger(task, lingering);
        }
        let (waiting_arrays, again) = self.enter_all_again(tasks, arrays);
        // Those that are with somebody first: what they hold nobody else may have.
        let (held, waiting): (Vec<Again>, Vec<Again>) = again
            .into_iter()
            .partition(|again| again.holder.is_some_and(|holder| self.worker_slot(holder).is_ok()) && !again.forgotten);
        for again in held {
            if let Some(holder) = again.holder {
                self.hold_again(again.task.slot, holder.slot);
            }
        }
        for Again { task, until, failed, .. } in waiting {
            // One may have ended because of another.
            let Some(slot) = self.tasks.find(task).filter(|&slot| self.tasks.at(slot).state == State::Blocked) else {
                continue;
            };
            if until > self.now {
                self.back_off(slot, until, Cause::Reported, actions);
            } else {
                self.admit(slot, failed.as_deref().unwrap_or_default(), false, actions);
            }
        }
        for job in waiting_arrays {
            self.queue_array(job, actions);
        }
        for (job, _) in jobs.into_iter().filter(|(_, known)| known.closed) {
            if self.job_slot(job).is_ok() {
                self.job_may_be_done(job.slot, actions);
            }
        }
    }

    /// An attempt that its holder was told to stop in an earlier life keeps its key until the holder says so, or is gone. What
    /// else it occupied is not known any more.
    fn linger(&mut self, task: TaskId, lingering: Lingering) {
        let Lingering { attempt, worker, key } = lingering;
        let Ok(at) = self.worker_slot(worker) else { return };
        let signature = self.intern_signature(&TaskSpec::default());
        self.keys.keep(key.0);
        let worker = &mut self.workers[at];
        let (used, slots) = (worker.used_slots(), worker.slots);
        self.counters.use_changed((used, slots), (used + 1, slots));
        let (devices, planned, since) = (DeviceSet::default(), Span::ZERO, self.now);
        worker.rare_mut().ghosts.push(Ghost { task, attempt, signature, key: key.0, devices, planned, since });
        self.ghosts.insert_new((task, attempt), at);
    }

    /// Tasks and arrays are there again, in the order in which they came, so that they queue in it: the arrays of which
    /// something is to be handed out, and what is to become of the tasks.
    fn enter_all_again(
        &mut self,
        tasks: BTreeMap<TaskId, Unfinished>,
        arrays: BTreeMap<JobId, OpenArray>,
    ) -> (Vec<u32>, Vec<Again>) {
        let mut arrays: Vec<(JobId, OpenArray)> = arrays.into_iter().collect();
        arrays.sort_unstable_by_key(|(_, array)| std::cmp::Reverse(array.number));
        let mut unfinished: Vec<(TaskId, Unfinished)> = tasks.into_iter().collect();
        unfinished.sort_unstable_by_key(|(_, known)| known.number);
        let mut waiting = Vec::with_capacity(arrays.len());
        for (id, known) in &unfinished {
            while let Some((job, array)) = arrays.pop_if(|(_, array)| array.number < known.number) {
                waiting.extend(self.enter_again(job, &array));
            }
            self.describe_again(*id, known);
        }
        for (job, array) in arrays.into_iter().rev() {
            waiting.extend(self.enter_again(job, &array));
        }
        let mut again = Vec::with_capacity(unfinished.len());
        for (task, known) in unfinished {
            let failed = self.link_again(task, &known);
            let forgotten = makes(Mistake::RestoreWithoutToken) && known.spec.key.is_some();
            let (holder, until) = (known.holder, known.until);
            again.push(Again {
                task,
                holder,
                until,
                forgotten,
                failed: (!failed.is_empty()).then(|| failed.as_slice().into()),
            });
        }
        (waiting, again)
    }

    /// An array gets back what was left of it; its job, if anything is to be handed out.
    fn enter_again(&mut self, job: JobId, known: &OpenArray) -> Option<u32> {
        let slot = self.job_slot(job).ok()?;
        self.enter_array(slot, &known.spec, known.count, known.next, known.skipped.clone());
        self.jobs[slot].array.as_ref().is_some_and(|array| array.pending() > 0).then_some(slot)
    }

    fn describe_again(&mut self, id: TaskId, known: &Unfinished) {
        let (job, index, rank) = match known.member {
            Some((job, index, rank)) => (self.job_slot(job).unwrap_or(COMMON_JOB), index, rank),
            None => (COMMON_JOB, 0, NO_RANK),
        };
        self.describe(id.slot, &known.spec, job, index, rank, 0);
        let task = self.tasks.at_mut(id.slot);
        (task.payload, task.attempt, task.retries) = (known.payload, known.attempt, known.retries);
        // The attempt that is known has failed, and that counts already: whoever says so again, because it was never told that this
        // is noted, is late.
        if known.holder.is_none() && known.attempt > 0 {
            task.attempt += 1;
        }
        if known.is_element
            && let Some(array) = &self.jobs[job].array
        {
            task.flags.set(Flags::ELEMENT, true);
            task.sequence = array.template.sequence;
        }
    }

    /// Enters a task with those of its parents that have not ended; those that ended badly.
    fn link_again(&mut self, id: TaskId, known: &Unfinished) -> SmallVec<[TaskId; 2]> {
        let (mut waits_for, mut failed) = (SmallVec::<[u32; 4]>::new(), SmallVec::new());
        for &parent in &known.spec.after {
            match (self.tasks.find(parent), self.tasks.outcome(parent)) {
                (Some(slot), _) => waits_for.push(slot),
                (None, Some((status, _))) if status != Status::Completed => failed.push(parent),
                // It has ended well, or so long ago that nobody remembers: those that fail take their children along.
                (None, _) => {}
            }
        }
        self.link(id.slot, &waits_for);
        self.tasks.at_mut(id.slot).blockers = waits_for.len() as u32;
        failed
    }

    /// A task that is nowhere is with its worker, as it was.
    fn hold_again(&mut self, slot: u32, at: u32) {
        let task = self.tasks.at(slot);
        if task.waits_centrally() {
            let (key, place) = (task.key, self.queue_place(slot));
            if key != NONE {
                self.keys.promise(key, place);
            }
            self.occupy(slot, at);
        } else {
            self.counters.queued += 1;
            self.put_at_worker_unlisted(slot, at);
        }
        self.set_hop(slot, 0);
        self.relist(at);
    }

    /// Whether somebody holds an attempt of an earlier life that this one does not know of and has not replaced. What
    /// must not run twice at once was recorded before it was handed over, so of that there is none.
    pub(super) fn is_from_before(&self, slot: u32, held: Held) -> bool {
        let task = self.tasks.at(slot);
        let earlier = self.is_of_earlier_life(held) && task.attempt <= self.first_generation;
        let newer = held.attempt > task.attempt;
        let same_and_waiting = held.attempt == task.attempt && matches!(task.state, State::Central | State::Parked);
        // One that this life has given up was told to stop; what is still said of it is that it has.
        let given_up = || self.ghosts.get(&(held.task, held.attempt)).is_some();
        earlier && (newer || same_and_waiting) && task.blockers == 0 && !task.waits_centrally() && !given_up()
    }

    /// A worker has an attempt of an earlier life, wherever the task was thought to be.
    pub(super) fn adopt(&mut self, slot: u32, held: Held, at: u32, actions: &mut Vec<Action>) {
        self.pull_out(slot, Cause::Moved, actions);
        self.tasks.at_mut(slot).attempt = held.attempt;
        self.counters.queued += 1;
        self.put_at_worker_unlisted(slot, at);
        self.set_hop(slot, held.hop);
        self.relist(at);
        self.notify(slot, Status::Queued, Cause::Moved, actions);
        let (task, worker) = (held.task, self.worker_id(at));
        self.persist(Record::Assigned { task, attempt: held.attempt, worker, at: self.now }, actions);
    }

    pub(super) fn reattached(
        &mut self,
        worker: WorkerId,
        held: Held,
        actions: &mut Vec<Action>,
    ) -> Result<(), Refusal> {
        let at = self.worker_slot(worker)?;
        let stale = Refusal::StaleAttempt(held.task, held.attempt);
        let slot = self.tasks.find(held.task).ok_or(Refusal::UnknownTask(held.task))?;
        if self.is_from_before(slot, held) {
            self.adopt(slot, held, at, actions);
            return Ok(());
        }
        let task = self.tasks.at(slot);
        if task.attempt != held.attempt || task.hop == NONE || held.hop < task.hop {
            return Err(stale);
        }
        if task.worker == at {
            self.set_hop(slot, held.hop);
            return Ok(());
        }
        self.moved(held, worker, actions)
    }

    /// Whether an attempt was given out by an earlier life.
    #[must_use]
    pub fn is_of_earlier_life(&self, held: Held) -> bool {
        held.attempt <= self.first_generation
    }
}
