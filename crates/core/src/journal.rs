//! What a coordinator that crashed leaves behind: its records, folded into what its successor needs.
//!
//! Applies facts and never decides anything. Whoever stores records appends them in order; those of one step of the
//! machine go together or not at all. How settled tasks ended is kept for each slot that no other task has taken since.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::action::Record;
use crate::ids::{JobId, KeyId, TaskId, WorkerId};
use crate::planted::{Mistake, makes};
use crate::task::{Cause, Status, TaskSpec};
use crate::time::Time;
use crate::worker::WorkerSpec;

/// What is stored beside a record that would be too large otherwise.
#[derive(Clone, Copy, Debug)]
pub enum Detail<'a> {
    /// Nothing.
    None,
    /// The description of a submitted task, or of the elements of an array.
    Task(&'a TaskSpec),
    /// The description of a worker that joined.
    Worker(&'a WorkerSpec),
}

/// A task that is not settled.
#[derive(Clone, Debug)]
pub(crate) struct Unfinished {
    /// Its place in the order of submission.
    pub(crate) number: u64,
    /// What it is like, but for its payload: many are alike.
    pub(crate) spec: Arc<TaskSpec>,
    pub(crate) payload: u64,
    /// Its job, its position and its rank there.
    pub(crate) member: Option<(JobId, u32, u32)>,
    /// The latest attempt that is known.
    pub(crate) attempt: u32,
    /// Who was given that attempt, unless it has ended.
    pub(crate) holder: Option<WorkerId>,
    pub(crate) retries: u16,
    /// When its next attempt may begin.
    pub(crate) until: Time,
    /// It was an element of an array.
    pub(crate) is_element: bool,
}

impl Unfinished {
    /// Records that come to this.
    fn records(&self, task: TaskId, each: &mut impl FnMut(&Record, Detail<'_>)) {
        let at = Time::ZERO;
        match self.member {
            Some((job, index, _)) if self.is_element => each(&Record::Element { task, job, index }, Detail::None),
            member => {
                let payload = self.payload;
                let spec = TaskSpec { payload, ..TaskSpec::clone(&self.spec) };
                each(&Record::Submitted { task, payload, at }, Detail::Task(&spec));
                if let Some((job, index, rank)) = member {
                    each(&Record::Member { task, job, index, rank }, Detail::None);
                }
            }
        }
        let (attempt, retries, until) = (self.attempt, self.retries, self.until);
        if retries > 0 || until > Time::ZERO || attempt > 0 && self.holder.is_none() {
            each(&Record::Retrying { task, attempt, retries, until }, Detail::None);
        }
        if let Some(worker) = self.holder {
            each(&Record::Assigned { task, attempt, worker, at }, Detail::None);
        }
    }
}

/// An attempt of a task with a key that was settled while somebody had it, and not by its holder: who was told to stop may not
/// have stopped, and until it says so nobody else may have the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lingering {
    pub(crate) attempt: u32,
    pub(crate) worker: WorkerId,
    pub(crate) key: KeyId,
}

impl Lingering {
    /// What is left of a task that was settled like this.
    fn of(known: &Unfinished, status: Status, cause: Cause) -> Option<Lingering> {
        let said_by_holder = status == Status::Completed || matches!(cause, Cause::Reported | Cause::TimedOut);
        let (worker, key) = (known.holder.filter(|_| !said_by_holder)?, known.spec.key?);
        Some(Lingering { attempt: known.attempt, worker, key })
    }

    /// Records that come to this.
    fn records(self, task: TaskId, each: &mut impl FnMut(&Record, Detail<'_>)) {
        let Lingering { attempt, worker, key } = self;
        let (at, status, cause) = (Time::ZERO, Status::Cancelled, Cause::Requested);
        let spec = TaskSpec { key: Some(key), ..TaskSpec::default() };
        each(&Record::Submitted { task, payload: 0, at }, Detail::Task(&spec));
        each(&Record::Assigned { task, attempt, worker, at }, Detail::None);
        each(&Record::Settled { task, attempt, status, cause, at }, Detail::None);
    }
}

/// An array of which something is not settled.
#[derive(Clone, Debug)]
pub(crate) struct OpenArray {
    /// Its place in the order of submission.
    pub(crate) number: u64,
    /// What its elements are like.
    pub(crate) spec: Arc<TaskSpec>,
    pub(crate) count: u32,
    /// The first element that has not become a task.
    pub(crate) next: u32,
    /// Those from there on that are settled.
    pub(crate) skipped: BTreeSet<u32>,
}

impl OpenArray {
    /// Nothing before `next` has to become a task.
    fn go_on(&mut self, next: u32) {
        self.next = next;
        self.skipped = self.skipped.split_off(&next);
        while self.skipped.first() == Some(&self.next) {
            self.skipped.pop_first();
            self.next += 1;
        }
    }

    /// Settles those of a range that have not become tasks; how many that were.
    fn settle(&mut self, from: u32, to: u32) -> u64 {
        let (from, to) = (from.max(self.next), to.min(self.count));
        if from >= to {
            return 0;
        }
        let before = self.skipped.len() as u64;
        if from == self.next {
            let settled = self.skipped.range(..to).count() as u64;
            self.go_on(to);
            return u64::from(to - from) - settled;
        }
        self.skipped.extend(from..to);
        self.skipped.len() as u64 - before
    }
}

/// A job that may still get tasks, or has some that are not settled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenJob {
    pub(crate) weight: f64,
    pub(crate) closed: bool,
    open: u64,
}

/// Something that is not settled, in the order of submission.
enum Entry<'a> {
    Array(JobId, &'a OpenArray),
    Task(TaskId, &'a Unfinished),
}

/// Elements of an array are settled; how is not known any more, and does not matter.
fn settled_elements(job: JobId, from: u32, to: u32, each: &mut impl FnMut(&Record, Detail<'_>)) {
    if from < to {
        let (status, cause, at) = (Status::Completed, Cause::None, Time::ZERO);
        each(&Record::ElementsSettled { job, from, to, status, cause, at }, Detail::None);
    }
}

/// All records so far, as what they come to.
#[derive(Clone, Debug, Default)]
pub struct Journal {
    pub(crate) tasks: BTreeMap<TaskId, Unfinished>,
    /// How the last settled task of each slot ended.
    pub(crate) outcomes: BTreeMap<usize, (TaskId, Status, Cause)>,
    pub(crate) workers: BTreeMap<WorkerId, WorkerSpec>,
    pub(crate) lingering: BTreeMap<TaskId, Lingering>,
    pub(crate) jobs: BTreeMap<JobId, OpenJob>,
    pub(crate) arrays: BTreeMap<JobId, OpenArray>,
    pub(crate) key_limits: BTreeMap<KeyId, u32>,
    number: u64,
    /// The description that was shared last, also as one to compare with.
    latest: Option<(TaskSpec, Arc<TaskSpec>)>,
}

impl Journal {
    /// Applies the next record. `detail` is what was stored beside it; a task or worker without its description is not
    /// known.
    pub fn apply(&mut self, record: &Record, detail: Detail<'_>) {
        match *record {
            Record::Joined { worker, .. } => {
                if let Detail::Worker(spec) = detail {
                    self.workers.insert(worker, spec.clone());
                }
            }
            Record::Left { worker } => {
                self.workers.remove(&worker);
                self.lingering.retain(|_, lingering| lingering.worker != worker);
            }
            Record::Opened { job, weight } => {
                self.jobs.insert(job, OpenJob { weight, closed: false, open: 0 });
            }
            Record::Closed { job } => {
                if let Some(known) = self.jobs.get_mut(&job) {
                    known.closed = true;
                }
                self.forget_done(job);
            }
            Record::Submitted { task, .. } => {
                if let Detail::Task(spec) = detail {
                    let shared = self.shared(spec);
                    self.enter(task, shared, spec.payload, None);
                }
            }
            Record::Element { task, job, index } => {
                if let Some(array) = self.arrays.get_mut(&job) {
                    array.go_on(index + 1);
                    let spec = Arc::clone(&array.spec);
                    let payload = spec.payload;
                    self.enter(task, spec, payload, Some((job, index, u32::MAX)));
                }
            }
            Record::Member { task, job, index, rank } => {
                if let (Some(known), Some(owner)) = (self.tasks.get_mut(&task), self.jobs.get_mut(&job)) {
                    known.member = Some((job, index, rank));
                    owner.open += 1;
                }
            }
            Record::After { task, parent } => {
                if let Some(known) = self.tasks.get_mut(&task) {
                    Arc::make_mut(&mut known.spec).after.push(parent);
                }
            }
            Record::ArraySubmitted { job, count, .. } => {
                if let (Detail::Task(spec), Some(owner)) = (detail, self.jobs.get_mut(&job)) {
                    self.number += 1;
                    owner.open += u64::from(count);
                    let (number, spec) = (self.number, Arc::new(spec.clone()));
                    self.arrays.insert(job, OpenArray { number, spec, count, next: 0, skipped: BTreeSet::new() });
                }
            }
            Record::ElementsSettled { job, from, to, .. } => {
                if let (Some(array), Some(owner)) = (self.arrays.get_mut(&job), self.jobs.get_mut(&job)) {
                    owner.open -= array.settle(from, to);
                }
                self.forget_done(job);
            }
            Record::KeyLimit { key, limit } => {
                self.key_limits.insert(key, limit);
            }
            Record::Assigned { task, attempt, worker, .. } => {
                if let Some(known) = self.tasks.get_mut(&task) {
                    (known.attempt, known.holder) = (attempt, Some(worker));
                }
            }
            Record::Retrying { task, attempt, retries, until } => {
                if let Some(known) = self.tasks.get_mut(&task) {
                    (known.attempt, known.holder) = (attempt, None);
                    (known.retries, known.until) = (retries, until);
                } else {
                    self.lingering.remove(&task);
                }
            }
            Record::Settled { .. } if makes(Mistake::ForgetOutcome) => {}
            Record::Settled { task, status, cause, .. } => {
                let Some(known) = self.tasks.remove(&task) else { return };
                self.lingering.extend(Lingering::of(&known, status, cause).map(|lingering| (task, lingering)));
                self.outcomes.insert(task.index(), (task, status, cause));
                if let Some((job, ..)) = known.member {
                    if let Some(owner) = self.jobs.get_mut(&job) {
                        owner.open -= 1;
                    }
                    self.forget_done(job);
                }
            }
        }
    }

    /// A description that tasks like the one before share with it.
    fn shared(&mut self, spec: &TaskSpec) -> Arc<TaskSpec> {
        if let Some((known, shared)) = &mut self.latest {
            known.payload = spec.payload;
            if known == spec {
                return Arc::clone(shared);
            }
        }
        let shared = Arc::new(TaskSpec { payload: 0, ..spec.clone() });
        self.latest = Some((spec.clone(), Arc::clone(&shared)));
        shared
    }

    fn enter(&mut self, task: TaskId, spec: Arc<TaskSpec>, payload: u64, member: Option<(JobId, u32, u32)>) {
        self.number += 1;
        self.outcomes.remove(&task.index());
        let unfinished = Unfinished {
            number: self.number,
            spec,
            payload,
            member,
            attempt: 0,
            holder: None,
            retries: 0,
            until: Time::ZERO,
            is_element: member.is_some(),
        };
        self.tasks.insert(task, unfinished);
    }

    fn forget_done(&mut self, job: JobId) {
        if self.jobs.get(&job).is_some_and(|known| known.closed && known.open == 0) {
            self.jobs.remove(&job);
            self.arrays.remove(&job);
        }
    }

    /// Records that come to the same: what a snapshot keeps in place of all that were applied. What has settled is left out,
    /// but for how the last task of each slot ended.
    pub fn records(&self, mut each: impl FnMut(&Record, Detail<'_>)) {
        for (&worker, spec) in &self.workers {
            each(&Record::Joined { worker, tag: spec.tag }, Detail::Worker(spec));
        }
        for (&key, &limit) in &self.key_limits {
            each(&Record::KeyLimit { key, limit }, Detail::None);
        }
        for (&job, known) in &self.jobs {
            each(&Record::Opened { job, weight: known.weight }, Detail::None);
        }
        for (&task, lingering) in &self.lingering {
            lingering.records(task, &mut each);
        }
        let at = Time::ZERO;
        let nothing = TaskSpec::default();
        for &(task, ..) in self.outcomes.values() {
            each(&Record::Submitted { task, payload: 0, at }, Detail::Task(&nothing));
        }
        for &(task, status, cause) in self.outcomes.values() {
            each(&Record::Settled { task, attempt: 0, status, cause, at }, Detail::None);
        }
        let arrays = self.arrays.iter().map(|(&job, array)| (array.number, Entry::Array(job, array)));
        let tasks = self.tasks.iter().map(|(&task, known)| (known.number, Entry::Task(task, known)));
        let mut entries: Vec<(u64, Entry<'_>)> = arrays.chain(tasks).collect();
        entries.sort_by_key(|entry| entry.0);
        let mut reached: BTreeMap<JobId, u32> = BTreeMap::new();
        for (_, entry) in entries {
            match entry {
                Entry::Array(job, array) => {
                    let (count, payload) = (array.count, array.spec.payload);
                    each(&Record::ArraySubmitted { job, count, payload, at }, Detail::Task(&array.spec));
                    reached.insert(job, 0);
                }
                Entry::Task(task, known) => {
                    if let (true, Some((job, index, _))) = (known.is_element, known.member) {
                        let from = reached.insert(job, index + 1).unwrap_or(0);
                        settled_elements(job, from, index, &mut each);
                    }
                    known.records(task, &mut each);
                }
            }
        }
        for (&job, array) in &self.arrays {
            settled_elements(job, reached.get(&job).copied().unwrap_or(0), array.next, &mut each);
            let mut skipped = array.skipped.iter().copied();
            let mut run = skipped.next().map(|first| (first, first + 1));
            while let Some((from, to)) = run {
                let next = skipped.next();
                if next == Some(to) {
                    run = Some((from, to + 1));
                } else {
                    settled_elements(job, from, to, &mut each);
                    run = next.map(|first| (first, first + 1));
                }
            }
        }
        for (&job, _) in self.jobs.iter().filter(|(_, known)| known.closed) {
            each(&Record::Closed { job }, Detail::None);
        }
    }

    /// How many tasks of a job are not settled.
    #[must_use]
    pub fn open_tasks(&self, job: JobId) -> u64 {
        self.jobs.get(&job).map_or(0, |known| known.open)
    }

    /// Arrays of which something is not settled: the handle of each, and how many of its elements are not tasks yet.
    pub fn arrays(&self) -> impl Iterator<Item = (JobId, u64, u32)> + '_ {
        self.arrays.iter().map(|(&job, array)| {
            let pending = array.count - array.next - array.skipped.len() as u32;
            (job, array.spec.payload, pending)
        })
    }

    /// Tasks that are not settled, with the handle of each, in the order of their ids.
    pub fn unfinished(&self) -> impl Iterator<Item = (TaskId, u64)> + '_ {
        self.tasks.iter().map(|(&task, known)| (task, known.payload))
    }

    /// Workers that have not left, with the handle of each.
    pub fn workers(&self) -> impl Iterator<Item = (WorkerId, u64)> + '_ {
        self.workers.iter().map(|(&worker, spec)| (worker, spec.tag))
    }

    /// How a task ended, if it has and its slot was not used again.
    #[must_use]
    pub fn outcome(&self, task: TaskId) -> Option<Status> {
        self.outcomes.get(&task.index()).filter(|known| known.0 == task).map(|known| known.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All that it comes to, but for the numbers that only say who came first.
    fn sum(journal: &Journal) -> String {
        let mut order: Vec<(u64, String)> = Vec::new();
        for (task, known) in &journal.tasks {
            order.push((known.number, format!("{task} {:?}", Unfinished { number: 0, ..known.clone() })));
        }
        for (job, array) in &journal.arrays {
            order.push((array.number, format!("{job} {:?}", OpenArray { number: 0, ..array.clone() })));
        }
        order.sort();
        let order: Vec<String> = order.into_iter().map(|entry| entry.1).collect();
        let rest = (&journal.outcomes, &journal.workers, &journal.lingering, &journal.jobs, &journal.key_limits);
        format!("{order:#?} {rest:#?}")
    }

    fn folded(journal: &Journal) -> Journal {
        let mut again = Journal::default();
        journal.records(|record, detail| again.apply(record, detail));
        again
    }

    fn task(slot: u64, generation: u64) -> TaskId {
        TaskId::from_bits(generation << 32 | slot)
    }

    /// A journal, and another that gets the same records as the store gives them back, group by group.
    #[derive(Default)]
    struct Twice {
        journal: Journal,
        group: crate::wire::Group,
        read: Journal,
    }

    impl Twice {
        fn apply(&mut self, record: &Record, detail: Detail<'_>) {
            self.journal.apply(record, detail);
            self.group.push(record, detail);
        }

        /// A slot that no task has, with its next generation.
        fn free_slot(&self, rng: &mut crate::rng::Rng, next: &mut u64) -> TaskId {
            if rng.below(3) > 0
                && let Some(&(before, ..)) = self.journal.outcomes.values().next()
            {
                return task(before.index() as u64, (before.to_bits() >> 32) + 1);
            }
            *next += 1;
            task(*next, 1)
        }
    }

    #[test]
    fn a_snapshot_and_what_the_store_gives_back_come_to_the_same() {
        let mut rng = crate::rng::Rng::new(7);
        let mut both = Twice::default();
        let key = |payload: u64| payload.is_multiple_of(3).then_some(KeyId(payload as u32 % 5));
        let spec = |payload| TaskSpec { payload, key: key(payload), ..TaskSpec::default() };
        let at = Time::ZERO;
        let mut next = 0;
        let mut lingering = 0;
        for step in 0..20_000u64 {
            let job = JobId::from_bits(step % 40);
            match rng.below(9) {
                0 if !both.journal.jobs.contains_key(&job) => {
                    both.apply(&Record::Opened { job, weight: 1.5 }, Detail::None);
                    if rng.below(2) == 0 {
                        let record = Record::ArraySubmitted { job, count: 30, payload: step, at };
                        both.apply(&record, Detail::Task(&spec(step)));
                        both.apply(&Record::Closed { job }, Detail::None);
                    }
                }
                1 | 2 => {
                    let id = both.free_slot(&mut rng, &mut next);
                    both.apply(&Record::Submitted { task: id, payload: step, at }, Detail::Task(&spec(step)));
                    if both.journal.jobs.get(&job).is_some_and(|known| !known.closed || known.open > 0) {
                        both.apply(&Record::Member { task: id, job, index: 4, rank: 9 }, Detail::None);
                    }
                }
                3 | 4 => {
                    if let Some(array) = both.journal.arrays.get(&job).filter(|array| array.next < array.count) {
                        let (id, from) = (both.free_slot(&mut rng, &mut next), array.next);
                        if let Some(index) = (from..array.count).find(|index| !array.skipped.contains(index)) {
                            both.apply(&Record::Element { task: id, job, index }, Detail::None);
                        }
                    }
                }
                5 => {
                    let from = rng.below(30) as u32;
                    let to = (from + 1 + rng.below(4) as u32).min(30);
                    let (status, cause) = (Status::Cancelled, Cause::Requested);
                    both.apply(&Record::ElementsSettled { job, from, to, status, cause, at }, Detail::None);
                }
                kind => {
                    let Some(&id) = both.journal.tasks.keys().nth(rng.below(both.journal.tasks.len().max(1))) else {
                        continue;
                    };
                    let attempt = both.journal.tasks[&id].attempt + 1;
                    let record = match kind {
                        6 => Record::Assigned { task: id, attempt, worker: WorkerId::from_bits(step % 7), at },
                        7 => Record::Retrying { task: id, attempt, retries: 2, until: Time(step) },
                        _ if step % 2 == 0 => {
                            let (status, cause) = (Status::Cancelled, Cause::Requested);
                            Record::Settled { task: id, attempt, status, cause, at }
                        }
                        _ => Record::Settled { task: id, attempt, status: Status::Failed, cause: Cause::Reported, at },
                    };
                    both.apply(&record, Detail::None);
                    lingering = both.journal.lingering.len().max(lingering);
                    // The holder of one has stopped, or is gone.
                    if let Some((&task, &Lingering { attempt, worker, .. })) = both.journal.lingering.first_key_value()
                    {
                        match rng.below(20) {
                            0 => both.apply(&Record::Left { worker }, Detail::None),
                            1..5 => {
                                let until = Time::ZERO;
                                both.apply(&Record::Retrying { task, attempt, retries: 0, until }, Detail::None);
                            }
                            _ => {}
                        }
                    }
                }
            }
            if step.is_multiple_of(97) {
                let Twice { journal, group, read } = &mut both;
                assert_eq!(sum(&folded(journal)), sum(journal), "after {step} records");
                crate::wire::Group::replay(&group.encode(), |record, detail| read.apply(record, detail)).unwrap();
                assert_eq!(sum(read), sum(journal), "after {step} records");
            }
        }
        assert!(lingering > 2, "some were settled while somebody had them");
        assert!(both.journal.tasks.len() > 50 && !both.journal.arrays.is_empty(), "there is something to compare");
    }

    #[test]
    fn a_closed_job_lives_on_in_what_its_last_task_submitted() {
        let mut both = Twice::default();
        let (at, job, spec) = (Time::ZERO, JobId::from_bits(1), TaskSpec::default());
        both.apply(&Record::Opened { job, weight: 1.0 }, Detail::None);
        for slot in 0..2 {
            if slot == 1 {
                both.apply(&Record::Closed { job }, Detail::None);
            }
            both.apply(&Record::Submitted { task: task(slot, 1), payload: 0, at }, Detail::Task(&spec));
            both.apply(&Record::Member { task: task(slot, 1), job, index: 0, rank: 0 }, Detail::None);
        }
        let (status, cause) = (Status::Completed, Cause::None);
        both.apply(&Record::Settled { task: task(0, 1), attempt: 1, status, cause, at }, Detail::None);
        let Twice { mut group, mut read, journal } = both;
        crate::wire::Group::replay(&group.encode(), |record, detail| read.apply(record, detail)).unwrap();
        assert_eq!(sum(&read), sum(&journal));
        assert_eq!(read.open_tasks(job), 1);
    }
}
