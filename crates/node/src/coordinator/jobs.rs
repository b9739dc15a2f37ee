//! Jobs and tasks as people know them, beside what the machine knows of them.

use std::collections::BTreeMap;

use filch_core::wire::talk::{JobCard, Progress};
use filch_core::{JobId, Status, TaskId, Time, WorkerId};
use rustc_hash::FxHashMap;

/// Jobs that are done and still known by their figures.
const DONE_KEPT: usize = 10_000;

/// A job.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) card: JobCard,
    pub(super) progress: Progress,
    pub(super) done_at: Option<Time>,
    /// Who wants to hear of it: connection, request, and whether of each task.
    pub(super) watchers: Vec<(u64, u64, bool)>,
    /// Somebody is to hear how it goes.
    pub(super) changed: bool,
}

impl Job {
    fn new(card: JobCard) -> Job {
        let progress = Progress { job: card.number, total: card.total, ..Progress::default() };
        Job { card, progress, done_at: None, watchers: Vec::new(), changed: false }
    }

    pub(super) fn settled(&mut self, status: Status, count: u64) {
        let progress = &mut self.progress;
        match status {
            Status::Completed => progress.completed += count,
            Status::Cancelled | Status::Returned => progress.cancelled += count,
            Status::Skipped => progress.skipped += count,
            _ => progress.failed += count,
        }
        self.changed = true;
    }
}

/// What is known of a task that is not settled, beside what the machine knows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Note {
    generation: u32,
    /// The number of its job; 0 if it has none.
    pub(super) job: u32,
    pub(super) index: u32,
    /// What is to be done.
    pub(super) handle: u64,
}

/// What is known of a task that is with a worker.
#[derive(Clone, Copy, Debug)]
pub(super) struct Live {
    pub(super) worker: WorkerId,
    pub(super) began: Time,
    pub(super) hops: u32,
    pub(super) runs: bool,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    by_number: BTreeMap<u64, Job>,
    by_id: FxHashMap<JobId, u64>,
    last: u64,
    /// By the slot of the task.
    notes: Vec<Note>,
    live: FxHashMap<TaskId, Live>,
    done: std::collections::VecDeque<u64>,
    pub(super) watched_changed: Vec<u64>,
}

impl Jobs {
    pub(super) fn next_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    pub(super) fn open(&mut self, card: JobCard) {
        self.last = self.last.max(card.number);
        self.by_id.insert(JobId::from_bits(card.job), card.number);
        self.by_number.insert(card.number, Job::new(card));
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
            self.notes.resize(at + 1, Note { generation: u32::MAX, job: 0, index: 0, handle: 0 });
        }
        self.notes[at] = Note { generation: generation(task), job: job as u32, index, handle };
    }

    pub(super) fn note(&self, task: TaskId) -> Option<Note> {
        self.notes.get(task.index()).copied().filter(|note| note.generation == generation(task))
    }

    pub(super) fn live(&self, task: TaskId) -> Option<Live> {
        self.live.get(&task).copied()
    }

    pub(super) fn lives(&self) -> impl Iterator<Item = (TaskId, Live)> + '_ {
        self.live.iter().map(|(&task, &live)| (task, live))
    }

    /// A task is with a worker.
    pub(super) fn handed(&mut self, task: TaskId, worker: WorkerId, now: Time) {
        self.stopped(task);
        self.live.insert(task, Live { worker, began: now, hops: 0, runs: false });
    }

    /// A worker runs it.
    pub(super) fn began(&mut self, task: TaskId, worker: WorkerId, now: Time) {
        let live = self.live.entry(task).or_insert(Live { worker, began: now, hops: 0, runs: false });
        (live.worker, live.began) = (worker, now);
        if !std::mem::replace(&mut live.runs, true)
            && let Some(job) = self.job_of(task)
        {
            job.progress.running += 1;
            job.changed = true;
        }
    }

    /// It changed hands.
    pub(super) fn moved(&mut self, task: TaskId, to: WorkerId, hop: u32) {
        let Some(live) = self.live.get_mut(&task).filter(|live| live.hops < hop) else { return };
        (live.worker, live.hops) = (to, hop);
        if let Some(job) = self.job_of(task) {
            job.progress.stolen += 1;
            job.changed = true;
        }
    }

    /// It is with nobody any more.
    pub(super) fn stopped(&mut self, task: TaskId) -> Option<Live> {
        let live = self.live.remove(&task)?;
        if live.runs
            && let Some(job) = self.job_of(task)
        {
            job.progress.running = job.progress.running.saturating_sub(1);
            job.changed = true;
        }
        Some(live)
    }

    fn job_of(&mut self, task: TaskId) -> Option<&mut Job> {
        let note = self.note(task)?;
        self.by_number.get_mut(&u64::from(note.job))
    }
}

fn generation(task: TaskId) -> u32 {
    (task.to_bits() >> 32) as u32
}
