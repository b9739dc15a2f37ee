//! What is kept of each task beside the machine: its payload, its names, what came of it.
//!
//! Entries live in chunks: growing copies nothing, and a chunk whose last entry goes is given back, so memory does not
//! stay at its peak after a burst. Never decides how long an entry is kept.

use std::sync::Arc;

use filch_core::{Cause, JobId, Status, TaskId, Time};

use crate::task::Details;

/// Where a task came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// It was submitted alone.
    Alone,
    /// It was added to a job that had been opened.
    Job(JobId),
    /// It was submitted with others, at that position.
    Position(JobId, u32),
    /// It is that element of an array.
    Element(JobId, u32),
}

impl Origin {
    pub(crate) fn job(self) -> Option<JobId> {
        match self {
            Origin::Alone => None,
            Origin::Job(job) | Origin::Position(job, _) | Origin::Element(job, _) => Some(job),
        }
    }

    pub(crate) fn index(self) -> Option<u32> {
        match self {
            Origin::Alone | Origin::Job(_) => None,
            Origin::Position(_, index) | Origin::Element(_, index) => Some(index),
        }
    }
}

/// How an element of an array is called by people.
pub(crate) fn element_label(job: JobId, index: u32) -> String {
    format!("{job}[{index}]")
}

/// What is kept of a task beside the machine.
pub(crate) struct Entry<T, R> {
    pub(super) id: TaskId,
    /// Gone once the task is settled.
    pub(super) payload: Option<Arc<T>>,
    pub(crate) details: Option<Arc<Details>>,
    pub(crate) origin: Origin,
    /// Where it stands, as last told; none before the first time.
    pub(super) told: Option<Status>,
    pub(crate) result: Option<Arc<R>>,
    pub(crate) error: Option<Arc<str>>,
    /// How it ended, why and when, once it is settled. The machine may forget that sooner.
    pub(crate) outcome: Option<(Status, Cause, Time)>,
}

impl<T, R> Entry<T, R> {
    pub(crate) fn name(&self) -> Option<&Arc<str>> {
        self.details.as_ref()?.name.as_ref()
    }
}

/// Entries in a chunk.
const CHUNK: usize = 256;

struct Chunk<T, R> {
    slots: Vec<Option<Entry<T, R>>>,
    used: usize,
}

impl<T, R> Chunk<T, R> {
    fn new() -> Self {
        Chunk { slots: (0..CHUNK).map(|_| None).collect(), used: 0 }
    }
}

/// All entries, by the index of the task.
pub(crate) struct Entries<T, R> {
    chunks: Vec<Option<Chunk<T, R>>>,
    /// An empty chunk at hand, so that one entry that comes and goes costs no memory traffic.
    spare: Option<Chunk<T, R>>,
}

impl<T, R> Default for Entries<T, R> {
    fn default() -> Self {
        Entries { chunks: Vec::new(), spare: None }
    }
}

impl<T, R> Entries<T, R> {
    /// The entry of that very task.
    #[inline]
    pub(crate) fn get(&self, task: TaskId) -> Option<&Entry<T, R>> {
        let chunk = self.chunks.get(task.index() / CHUNK)?.as_ref()?;
        chunk.slots[task.index() % CHUNK].as_ref().filter(|entry| entry.id == task)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, task: TaskId) -> Option<&mut Entry<T, R>> {
        let chunk = self.chunks.get_mut(task.index() / CHUNK)?.as_mut()?;
        chunk.slots[task.index() % CHUNK].as_mut().filter(|entry| entry.id == task)
    }

    /// Enters a task; what was known of the one that had its place before.
    pub(crate) fn insert(&mut self, entry: Entry<T, R>) -> Option<Entry<T, R>> {
        let (at, place) = (entry.id.index() / CHUNK, entry.id.index() % CHUNK);
        if at >= self.chunks.len() {
            self.chunks.resize_with(at + 1, || None);
        }
        let chunk = self.chunks[at].get_or_insert_with(|| self.spare.take().unwrap_or_else(Chunk::new));
        let before = chunk.slots[place].replace(entry);
        chunk.used += usize::from(before.is_none());
        before
    }

    /// Takes out what is known of a task.
    pub(crate) fn remove(&mut self, task: TaskId) -> Option<Entry<T, R>> {
        let at = task.index() / CHUNK;
        let chunk = self.chunks.get_mut(at)?.as_mut()?;
        let entry = chunk.slots[task.index() % CHUNK].take_if(|entry| entry.id == task)?;
        chunk.used -= 1;
        if chunk.used == 0 {
            self.spare = self.chunks[at].take();
        }
        Some(entry)
    }

    /// Entries that memory is held for, for tests of how much that is.
    #[cfg(test)]
    pub(crate) fn room(&self) -> usize {
        self.chunks.iter().flatten().count() * CHUNK
    }
}

#[cfg(test)]
mod tests {
    use crate::{Balancer, ManualClock, Task, Worker};

    #[test]
    fn after_a_burst_the_memory_of_names_and_results_is_given_back() {
        let builder = Balancer::builder().clock(ManualClock::default()).settled_max(100);
        let balancer: Balancer<(), Vec<u8>> = builder.build().unwrap();
        balancer.register_worker(Worker::new("w")).unwrap();
        let burst = 20_000;
        balancer.submit_many((0..burst).map(|at| Task::named(format!("t{at}")))).unwrap();
        let room = || {
            let state = balancer.shared.state.lock();
            (state.entries.room(), state.tasks_by_name.room())
        };
        let (entries, names) = room();
        assert!(entries >= burst && names >= burst);
        while let Some(assignment) = balancer.next("w").unwrap() {
            assignment.succeed(vec![1]).unwrap();
        }
        let (entries, names) = room();
        assert!(entries <= 1024, "{entries}");
        assert!(names <= 8 * 1024, "{names}");
        assert_eq!(balancer.status(format!("t{}", burst - 1)).unwrap().result.unwrap().len(), 1);
        balancer.check().unwrap();
    }
}
