//! Jobs and tasks as people know them, beside what the machine knows of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use filch_core::wire::talk::{Earlier, JobCard, Numbers, Progress};
use filch_core::{Held, JobId, Status, TaskId, Time, WorkerId};
use rustc_hash::{FxHashMap, FxHashSet};

/// Jobs that are done and still known by their figures.
const DONE_KEPT: usize = 10_000;
/// Earlier attempts of a task of which is known where they are kept.
const EARLIER: usize = 100;

/// A job.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) card: JobCard,
    pub(super) numbers: Arc<Numbers>,
    pub(super) progress: Progress,
    pub(super) done_at: Option<Time>,
    /// Who wants to hear of it: connection, request, and whether of each task.
    pub(super) watchers: Vec<(u64, u64, bool)>,
    /// Whether it is among those that have changed since their watchers heard.
    changed: bool,
    /// Its tasks by position, if they are not elements of an array.
    tasks: Vec<TaskId>,
}

impl Job {
    fn new(card: JobCard, numbers: Arc<Numbers>) -> Job {
        let begun = Progress { job: card.number, total: card.total, ..Progress::default() };
        let progress = card.progress.clone().unwrap_or(begun);
        Job { card, numbers, progress, done_at: None, watchers: Vec::new(), changed: false, tasks: Vec::new() }
    }

    pub(super) fn settled(&mut self, status: Status, count: u64) {
        let progress = &mut self.progress;
        match status {
            Status::Completed => progress.completed += count,
            Status::Cancelled | Status::Returned => progress.cancelled += count,
            Status::Skipped => progress.skipped += count,
            _ => progress.failed += count,
        }
    }
}

/// What is known of a task that is not settled, beside what the machine knows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Note {
    generation: u32,
    /// The number of its job; 0 if it has none.
    pub(super) job: u32,
    pub(super) index: u32,
    /// Where it is among those that are with a worker, or `NOWHERE`.
    live: u32,
    /// What is to be done.
    pub(super) handle: u64,
}

const NOWHERE: u32 = u32::MAX;

impl Note {
    fn is_free(&self) -> bool {
        self.generation == u32::MAX
    }

    /// The task whose note this is, by its place among all.
    fn id(&self, at: usize) -> TaskId {
        TaskId::from_bits(u64::from(self.generation) << 32 | at as u64)
    }
}

/// What is known of a task that is with a worker.
#[derive(Clone, Copy, Debug)]
pub(super) struct Live {
    pub(super) worker: WorkerId,
    pub(super) began: Time,
    pub(super) attempt: u32,
    pub(super) hops: u32,
    pub(super) runs: bool,
}

impl Live {
    fn new(worker: WorkerId, attempt: u32, now: Time) -> Live {
        Live { worker, began: now, attempt, hops: 0, runs: false }
    }
}

/// The latest attempt that ended of a task that is not settled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tried {
    pub(super) attempt: u32,
    pub(super) worker: Option<WorkerId>,
    /// Where its ending is kept; 0 if there is none.
    pub(super) ending: u64,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    by_number: BTreeMap<u64, Job>,
    by_id: FxHashMap<JobId, u64>,
    last: u64,
    /// By the slot of the task.
    notes: Vec<Note>,
    live: Vec<(TaskId, Live)>,
    /// Tasks that are not settled and were stolen, in whichever attempt.
    stolen: FxHashSet<TaskId>,
    tried: FxHashMap<TaskId, Tried>,
    /// Attempts of tasks that are not settled of which something is kept, the latest last.
    earlier: FxHashMap<TaskId, Vec<Earlier>>,
    done: std::collections::VecDeque<u64>,
    /// Jobs that somebody watches and that have changed.
    changed: Vec<u64>,
}

impl Jobs {
    pub(super) fn next_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// The number of the latest job.
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// Numbers go on after this one.
    pub(super) fn count_from(&mut self, last: u64) {
        self.last = self.last.max(last);
    }

    pub(super) fn open(&mut self, card: JobCard, numbers: Arc<Numbers>) {
        self.last = self.last.max(card.number);
        self.by_id.insert(JobId::from_bits(card.job), card.number);
        self.by_number.insert(card.number, Job::new(card, numbers));
    }

    pub(super) fn get(&self, number: u64) -> Option<&Job> {
        self.by_number.get(&number)
    }

    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut Job> {
        self.by_number.get_mut(&number)
    }

    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = &Job> {
        self.by_number.values()
    }

    /// Jobs that are not done, by number.
    pub(super) fn unfinished(&self) -> impl Iterator<Item = &Job> {
        let mut numbers: Vec<u64> = self.by_id.values().copied().collect();
        numbers.sort_unstable();
        numbers.into_iter().filter_map(|number| self.by_number.get(&number))
    }

    /// Those who watch a job are to hear how it goes.
    fn touch(&mut self, number: u64) {
        if let Some(job) = self.by_number.get_mut(&number)
            && !job.watchers.is_empty()
            && !std::mem::replace(&mut job.changed, true)
        {
            self.changed.push(number);
        }
    }

    /// Tasks of a job were settled.
    pub(super) fn settled(&mut self, number: u64, status: Status, count: u64) {
        if let Some(job) = self.by_number.get_mut(&number) {
            job.settled(status, count);
            self.touch(number);
        }
    }

    /// Watched jobs that have changed since this was last asked.
    pub(super) fn take_changed(&mut self) -> Vec<u64> {
        for number in &self.changed {
            if let Some(job) = self.by_number.get_mut(number) {
                job.changed = false;
            }
        }
        std::mem::take(&mut self.changed)
    }

    pub(super) fn has_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    pub(super) fn number_of(&self, job: JobId) -> Option<u64> {
        self.by_id.get(&job).copied()
    }

    pub(super) fn of_id(&mut self, job: JobId) -> Option<&mut Job> {
        let number = self.by_id.get(&job)?;
        self.by_number.get_mut(number)
    }

    /// A job is done: its handles, which nobody needs any more. Those done longest ago are forgotten here.
    pub(super) fn done(&mut self, job: JobId, now: Time) -> Option<&mut Job> {
        let number = self.by_id.remove(&job)?;
        self.done.push_back(number);
        if self.done.len() > DONE_KEPT
            && let Some(oldest) = self.done.pop_front()
        {
            self.by_number.remove(&oldest);
        }
        let found = self.by_number.get_mut(&number)?;
        found.done_at = Some(now);
        found.progress.running = 0;
        Some(found)
    }

    // ---- tasks ----

    pub(super) fn enter(&mut self, task: TaskId, job: u64, index: u32, handle: u64) {
        let at = task.index();
        if at >= self.notes.len() {
            self.notes.resize(at + 1, Note { generation: u32::MAX, job: 0, index: 0, live: NOWHERE, handle: 0 });
        }
        self.notes[at] = Note { generation: generation(task), job: job as u32, index, live: NOWHERE, handle };
        if let Some(job) = self.by_number.get_mut(&job)
            && !job.card.lazy
        {
            let at = index as usize;
            if job.tasks.len() <= at {
                job.tasks.resize(at + 1, task);
            }
            job.tasks[at] = task;
        }
    }

    /// The task at a position of a job, if it is one and not settled.
    pub(super) fn at(&self, number: u64, index: u32) -> Option<TaskId> {
        let job = self.by_number.get(&number)?;
        let is_it = |task: TaskId| {
            self.note(task).is_some_and(|note| u64::from(note.job) == number && note.index == index).then_some(task)
        };
        if !job.tasks.is_empty() {
            return job.tasks.get(index as usize).copied().and_then(is_it);
        }
        self.live.iter().find_map(|entry| is_it(entry.0)).or_else(|| {
            // It became a task and is with nobody: it waits for its next attempt.
            let wanted = |note: &&Note| u64::from(note.job) == number && note.index == index && !note.is_free();
            let at = self.notes.iter().position(|note| wanted(&note))?;
            Some(self.notes[at].id(at))
        })
    }

    /// Tasks of a job that are not settled and are more than elements of an array, with their positions.
    pub(super) fn current(&self, number: u64) -> Vec<(u32, TaskId)> {
        let Some(job) = self.by_number.get(&number).filter(|job| job.done_at.is_none()) else { return Vec::new() };
        let of_job = |note: &Note| u64::from(note.job) == number;
        if !job.tasks.is_empty() {
            let known = job
                .tasks
                .iter()
                .zip(0..)
                .filter(|&(&task, at)| self.note(task).is_some_and(|note| of_job(&note) && note.index == at));
            return known.map(|(&task, at)| (at, task)).collect();
        }
        let noted = self.notes.iter().enumerate().filter(|(_, note)| !note.is_free() && of_job(note));
        let mut current: Vec<(u32, TaskId)> = noted.map(|(at, note)| (note.index, note.id(at))).collect();
        current.sort_unstable();
        current
    }

    /// Nothing more is to be known of a task.
    pub(super) fn leave(&mut self, task: TaskId) {
        self.take_live(task);
        if !self.stolen.is_empty() {
            self.stolen.remove(&task);
        }
        if !self.tried.is_empty() {
            self.tried.remove(&task);
        }
        if !self.earlier.is_empty() {
            self.earlier.remove(&task);
        }
        if let Some(note) = self.note_mut(task) {
            note.generation = u32::MAX;
        }
    }

    fn note_mut(&mut self, task: TaskId) -> Option<&mut Note> {
        self.notes.get_mut(task.index()).filter(|note| note.generation == generation(task))
    }

    pub(super) fn note(&self, task: TaskId) -> Option<Note> {
        self.notes.get(task.index()).copied().filter(|note| note.generation == generation(task))
    }

    pub(super) fn live(&self, task: TaskId) -> Option<Live> {
        let note = self.note(task)?;
        self.live.get(note.live as usize).map(|entry| entry.1)
    }

    fn live_mut(&mut self, task: TaskId) -> Option<&mut Live> {
        let note = self.note(task)?;
        self.live.get_mut(note.live as usize).map(|entry| &mut entry.1)
    }

    /// A task is with a worker that was with none; none if nothing is known of it.
    fn add_live(&mut self, task: TaskId, live: Live) -> Option<&mut Live> {
        let at = self.live.len();
        self.note_mut(task)?.live = at as u32;
        self.live.push((task, live));
        self.live.last_mut().map(|entry| &mut entry.1)
    }

    /// Takes a task out of those with a worker; the last of them takes its place.
    fn take_live(&mut self, task: TaskId) -> Option<Live> {
        let at = std::mem::replace(&mut self.note_mut(task)?.live, NOWHERE);
        if at == NOWHERE {
            return None;
        }
        let (_, live) = self.live.swap_remove(at as usize);
        if let Some(&(moved, _)) = self.live.get(at as usize)
            && let Some(note) = self.note_mut(moved)
        {
            note.live = at;
        }
        Some(live)
    }

    /// How many tasks each worker runs, and how many wait with it.
    pub(super) fn by_worker(&self) -> FxHashMap<WorkerId, (u32, u32)> {
        let mut counts: FxHashMap<WorkerId, (u32, u32)> = FxHashMap::default();
        for (_, live) in &self.live {
            let (running, queued) = counts.entry(live.worker).or_default();
            *(if live.runs { running } else { queued }) += 1;
        }
        counts
    }

    /// A task is with a worker.
    pub(super) fn handed(&mut self, held: Held, worker: WorkerId, now: Time) {
        self.stopped(held.task);
        self.add_live(held.task, Live::new(worker, held.attempt, now));
    }

    /// A worker runs it.
    pub(super) fn began(&mut self, held: Held, worker: WorkerId, now: Time) {
        let task = held.task;
        if self.live(task).is_none() {
            self.add_live(task, Live::new(worker, held.attempt, now));
        }
        let Some(live) = self.live_mut(task) else { return };
        (live.worker, live.began) = (worker, now);
        if !std::mem::replace(&mut live.runs, true) {
            self.change(task, |progress| progress.running += 1);
        }
    }

    /// It was stolen. A job counts each of its tasks once, however often that happens to it.
    pub(super) fn moved(&mut self, held: Held, to: WorkerId, now: Time) {
        let task = held.task;
        if self.live(task).is_none() {
            self.add_live(task, Live::new(to, held.attempt, now));
        }
        let Some(live) = self.live_mut(task) else { return };
        (live.worker, live.hops) = (to, live.hops.max(held.hop));
        if self.stolen.insert(task) {
            self.change(task, |progress| progress.stolen += 1);
        }
    }

    /// It is with nobody any more.
    pub(super) fn stopped(&mut self, task: TaskId) -> Option<Live> {
        let live = self.take_live(task)?;
        if live.runs {
            self.change(task, |progress| progress.running = progress.running.saturating_sub(1));
        }
        Some(live)
    }

    /// It waits: with nobody any more, and if it ran, that was an attempt.
    pub(super) fn waits(&mut self, task: TaskId) {
        if let Some(live) = self.stopped(task).filter(|live| live.runs)
            && self.tried.get(&task).is_none_or(|tried| tried.attempt < live.attempt)
        {
            self.tried.insert(task, Tried { attempt: live.attempt, worker: Some(live.worker), ending: 0 });
        }
    }

    /// An attempt ended, and there may be another.
    pub(super) fn has_tried(&mut self, task: TaskId, tried: Tried) {
        if self.note(task).is_none() {
            return;
        }
        self.tried.insert(task, tried);
        let Tried { attempt, ending, .. } = tried;
        if ending > 0 {
            let earlier = self.earlier.entry(task).or_default();
            if earlier.len() == EARLIER {
                earlier.remove(0);
            }
            earlier.push(Earlier { attempt, ending });
        }
    }

    /// Attempts that have ended of which something is kept, the latest last.
    pub(super) fn earlier(&self, task: TaskId) -> &[Earlier] {
        self.earlier.get(&task).map_or(&[], Vec::as_slice)
    }

    pub(super) fn tried(&self, task: TaskId) -> Option<Tried> {
        self.tried.get(&task).copied()
    }

    fn change(&mut self, task: TaskId, change: impl FnOnce(&mut Progress)) {
        let Some(number) = self.note(task).map(|note| u64::from(note.job)) else { return };
        if let Some(job) = self.by_number.get_mut(&number) {
            change(&mut job.progress);
            self.touch(number);
        }
    }
}

fn generation(task: TaskId) -> u32 {
    (task.to_bits() >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_that_is_stolen_again_and_again_counts_once() {
        let (task, other) = (TaskId::from_bits(0), TaskId::from_bits(1));
        let [first, second, third] = [0, 1, 2].map(WorkerId::from_bits);
        let mut jobs = Jobs::default();
        let card = JobCard { number: 1, total: 2, lazy: true, ..JobCard::default() };
        let numbers = Arc::new(card.numbers());
        jobs.open(card, numbers);
        let stolen = |jobs: &Jobs| jobs.get(1).unwrap().progress.stolen;
        let held = |task, attempt, hop| Held { task, attempt, hop };
        for (index, task) in [task, other].into_iter().enumerate() {
            jobs.enter(task, 1, index as u32, 0);
            jobs.handed(held(task, 1, 0), first, Time(1));
        }
        for (hop, to) in [(1, second), (2, third), (3, second)] {
            jobs.moved(held(task, 1, hop), to, Time(2));
        }
        assert_eq!((stolen(&jobs), jobs.live(task).map(|live| (live.worker, live.hops))), (1, Some((second, 3))));
        // It runs, fails, and is stolen once more.
        jobs.began(held(task, 1, 3), second, Time(3));
        jobs.waits(task);
        assert_eq!(jobs.tried(task).map(|tried| (tried.attempt, tried.worker)), Some((1, Some(second))));
        jobs.handed(held(task, 2, 0), first, Time(4));
        jobs.moved(held(task, 2, 1), third, Time(5));
        assert_eq!(stolen(&jobs), 1);
        jobs.moved(held(other, 1, 1), third, Time(5));
        assert_eq!((stolen(&jobs), jobs.current(1)), (2, vec![(0, task), (1, other)]));
        jobs.leave(task);
        assert!(jobs.tried(task).is_none() && jobs.current(1) == [(1, other)]);
    }
}
