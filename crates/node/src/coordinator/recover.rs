//! Pages of the store, folded into what a coordinator must know when it begins, and into snapshots. Applies what was
//! written; never decides anything.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use filch_core::journal::{Detail, Journal};
use filch_core::names::Sort;
use filch_core::wire::talk::{Ends, JobCard, KeyNote, NewName, Page, Submitted, WorkerNote};
use filch_core::wire::{Group, WireError, differences, sums};
use filch_core::{Cause, Names, Record, Status, TaskId, WorkerId};
use prost::Message as _;
use rustc_hash::FxHashMap;

use super::endings::Unsaid;
use super::history::{Item, NOBODY, Outcome};
use super::jobs::{Jobs, Tried};
use super::keys::Keys;
use crate::store::{Error, Place, Shard, Store};

/// Tasks of a snapshot that go into one of its parts.
const PART: usize = 20_000;
/// Workers that have left and are remembered.
const PAST: usize = 4096;

/// What all pages so far come to.
#[derive(Default)]
pub(super) struct Folded {
    pub(super) journal: Journal,
    pub(super) names: Names,
    pub(super) jobs: Jobs,
    pub(super) keys: Keys,
    pub(super) workers: FxHashMap<WorkerId, String>,
    /// Who had each name last, and in whose place workers were started, in order.
    pub(super) named: FxHashMap<String, WorkerId>,
    pub(super) heirs: Vec<(WorkerId, WorkerId)>,
    /// Workers that have left, the latest last.
    past: VecDeque<(WorkerId, String)>,
    pub(super) next_blob: u64,
    /// Where the endings of attempts are that are known, as the page says that is applied.
    ends: FxHashMap<(u64, u32), End>,
    /// Tasks that were cancelled, of which a worker may say later what they wrote.
    pub(super) unsaid: Unsaid,
    /// The bytes of all that is in no snapshot.
    pub(super) bytes: usize,
    /// The last place that was folded.
    pub(super) place: Place,
}

/// How an attempt ended, beside what its record says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct End {
    pub(super) ran: u64,
    pub(super) worker: u64,
    /// Where its ending is kept; 0 if there is none.
    pub(super) ending: u64,
    pub(super) began: u64,
}

/// Why pages cannot be folded.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unreadable {
    #[error("{0}")]
    Store(#[from] Error),
    #[error(
        "group {place} of the journal cannot be read: {what}; keep a copy of the directory, and use the filch that wrote it"
    )]
    Page { place: u64, what: String },
}

impl Folded {
    /// Everything a store has. What comes after `told` goes to history as well.
    pub(super) fn read(
        store: &dyn Store,
        shard: Shard,
        up_to: Option<Place>,
        told: u64,
        mut history: impl FnMut(Item),
    ) -> Result<Folded, Unreadable> {
        let mut folded = Folded { next_blob: 1, ..Folded::default() };
        if let Some(snapshot) = store.snapshot(shard)? {
            let place = snapshot.up_to;
            // A snapshot is made of what history has.
            if told < place.0 {
                tracing::warn!(
                    "history.db is missing, or older than the store: what ended long ago is not listed any more; \
                     unfinished tasks are all there"
                );
            }
            for chunk in snapshot.chunks {
                folded.apply(&chunk?, place, None::<&mut fn(Item)>)?;
            }
            folded.place = place;
        }
        for group in store.read(shard, folded.place)? {
            let group = group?;
            if up_to.is_some_and(|last| group.place > last) {
                break;
            }
            let news = group.place.0 > told;
            for entry in group.entries {
                folded.bytes += entry.len();
                folded.apply(&entry, group.place, news.then_some(&mut history))?;
            }
            folded.place = group.place;
        }
        Ok(folded)
    }

    fn apply(&mut self, bytes: &[u8], place: Place, history: Option<&mut impl FnMut(Item)>) -> Result<(), Unreadable> {
        let wrong = |what: String| Unreadable::Page { place: place.0, what };
        let page = Page::decode(bytes).map_err(|error| wrong(error.to_string()))?;
        let is_snapshot = page.last_job > 0;
        self.next_blob = self.next_blob.max(page.next_blob);
        self.jobs.count_from(page.last_job);
        let mut items = Vec::new();
        for NewName { sort, name } in page.names {
            let sort =
                *Sort::ALL.get(sort as usize).ok_or_else(|| wrong(format!("there are no names of sort {sort}")))?;
            self.names.number(sort, &name).map_err(|error| wrong(error.to_string()))?;
        }
        for WorkerNote { worker, name } in page.past {
            self.call(WorkerId::from_bits(worker), &name);
            self.leaves(WorkerId::from_bits(worker), name);
        }
        for WorkerNote { worker, name } in page.workers {
            items.push(Item::Worker { id: worker, name: name.as_str().into() });
            let worker = WorkerId::from_bits(worker);
            self.call(worker, &name);
            self.workers.insert(worker, name);
        }
        for card in page.jobs {
            items.push(Item::Job(Box::new(card.clone())));
            let numbers = Arc::new(card.numbers());
            self.jobs.open(card, numbers);
        }
        for KeyNote { key, task, job, handle } in page.keys {
            self.keys.insert(&key, Submitted { job, task }, handle);
        }
        self.ends = page.ends.map(|ends| spread(&ends)).unwrap_or_default();
        let mut outcomes = Vec::new();
        for (key, end) in self.ends.iter().filter(|(_, end)| end.ending > 0) {
            if let Some((outcome, _)) = self.unsaid.take(*key) {
                let End { ran, worker, ending, began } = *end;
                outcomes.push(Outcome { ran, worker, ending, began, ..outcome });
            }
        }
        let replayed = Group::replay(&page.records, |record, detail| {
            self.record(record, detail, is_snapshot, &mut outcomes, &mut items);
        });
        replayed.map_err(|error: WireError| wrong(error.to_string()))?;
        if let Some(history) = history {
            items.insert(0, Item::Settled(outcomes));
            items.push(Item::Upto(place.0.saturating_sub(1)));
            items.into_iter().for_each(history);
        }
        Ok(())
    }

    fn record(
        &mut self,
        record: &Record,
        detail: Detail<'_>,
        is_snapshot: bool,
        outcomes: &mut Vec<Outcome>,
        items: &mut Vec<Item>,
    ) {
        let before = match record {
            Record::ElementsSettled { job, .. } => self.journal.open_tasks(*job),
            _ => 0,
        };
        self.journal.apply(record, detail);
        match *record {
            Record::Submitted { task, payload, .. } => self.jobs.enter(task, 0, 0, payload),
            Record::Member { task, job, index, .. } => {
                let handle = self.jobs.note(task).map_or(0, |note| note.handle);
                if let Some(number) = self.jobs.number_of(job) {
                    self.jobs.enter(task, number, index, handle);
                }
            }
            Record::Element { task, job, index } => {
                if let Some(number) = self.jobs.number_of(job) {
                    let handle = self.jobs.get(number).map_or(0, |job| job.card.handle);
                    self.jobs.enter(task, number, index, handle);
                }
            }
            Record::Retrying { task, attempt, .. } => {
                let end = self.ends.get(&(task.to_bits(), attempt));
                let worker = end.filter(|end| end.worker != NOBODY).map(|end| WorkerId::from_bits(end.worker));
                self.jobs.has_tried(task, Tried { attempt, worker, ending: end.map_or(0, |end| end.ending) });
            }
            Record::Left { worker } => {
                if let Some(name) = self.workers.remove(&worker) {
                    self.leaves(worker, name);
                }
            }
            Record::ElementsSettled { job, from, to, status, cause, at } if !is_snapshot => {
                let count = before - self.journal.open_tasks(job);
                if let Some(job) = self.jobs.of_id(job) {
                    job.settled(status, count);
                    let outcome = Outcome::of_element(job.card.number, from, status, cause, at.0);
                    items.push(Item::Elements { outcome: Box::new(outcome), to });
                }
                self.close_done(job, at.0, items);
            }
            Record::Settled { task, attempt, status, cause, at } if !is_snapshot => {
                let Some(note) = self.jobs.note(task) else { return };
                let end = self.ends.get(&(task.to_bits(), attempt)).copied();
                let number = u64::from(note.job);
                if status == Status::Cancelled && filch_core::attempt_in_life(attempt) > 0 {
                    let index = if number == 0 { note.handle } else { u64::from(note.index) };
                    let settled = outcome(number, index, (task, attempt, status, cause, at), end);
                    self.unsaid.insert(task, attempt, settled, self.jobs.earlier(task).to_vec());
                }
                self.jobs.leave(task);
                let Some(job) = self.jobs.get_mut(number) else {
                    outcomes.push(outcome(0, note.handle, (task, attempt, status, cause, at), end));
                    return;
                };
                job.settled(status, 1);
                let id = filch_core::JobId::from_bits(job.card.job);
                outcomes.push(outcome(number, u64::from(note.index), (task, attempt, status, cause, at), end));
                self.close_done(id, at.0, items);
            }
            _ => {}
        }
    }

    /// A job of which nothing is left is done.
    fn close_done(&mut self, job: filch_core::JobId, at: u64, items: &mut Vec<Item>) {
        if self.journal.open_tasks(job) > 0 {
            return;
        }
        if let Some(done) = self.jobs.done(job, filch_core::Time(at)) {
            let progress = Box::new(done.progress.clone());
            items.push(Item::JobDone { job: done.card.number, at, progress });
        }
    }

    /// A worker has a name. Whoever had it before was the same.
    fn call(&mut self, worker: WorkerId, name: &str) {
        if let Some(former) = self.named.insert(name.to_owned(), worker).filter(|former| *former != worker) {
            self.heirs.push((former, worker));
        }
    }

    fn leaves(&mut self, worker: WorkerId, name: String) {
        self.past.push_back((worker, name));
        if self.past.len() > PAST {
            self.past.pop_front();
        }
    }

    /// Pages that come to the same.
    pub(super) fn into_pages(self) -> Vec<Vec<u8>> {
        let last_job = self.jobs.last().max(1);
        let mut pages = Vec::new();
        let mut page = Page { next_blob: self.next_blob, last_job, ..Page::default() };
        for (number, sort) in Sort::ALL.into_iter().enumerate() {
            let named = self.names.table(sort).names();
            page.names.extend(named.map(|name| NewName { sort: number as u32, name: name.to_owned() }));
        }
        let mut workers: Vec<_> = self.workers.iter().collect();
        workers.sort();
        page.workers =
            workers.iter().map(|(id, name)| WorkerNote { worker: id.to_bits(), name: (*name).clone() }).collect();
        let note = |(id, name): &(WorkerId, String)| WorkerNote { worker: id.to_bits(), name: name.clone() };
        page.past = self.past.iter().map(note).collect();
        let open = self.jobs.iter().filter(|job| job.done_at.is_none());
        page.jobs = open.map(|job| JobCard { progress: Some(job.progress.clone()), ..job.card.clone() }).collect();
        page.keys = self.keys.notes();
        pages.push(page.encode_to_vec());
        let mut group = Group::default();
        let mut seal = |group: &mut Group, least: usize| {
            if group.len() > least {
                let records = Bytes::from(group.encode());
                pages.push(Page { records, last_job, ..Page::default() }.encode_to_vec());
            }
        };
        self.journal.records(|record, detail| {
            // What belongs to a task stays with it: a part begins with something new.
            if matches!(record, Record::Submitted { .. } | Record::Element { .. } | Record::ArraySubmitted { .. }) {
                seal(&mut group, PART);
            }
            group.push(record, detail);
        });
        seal(&mut group, 0);
        pages
    }
}

fn outcome(
    job: u64,
    index: u64,
    (_, attempt, status, cause, at): (TaskId, u32, Status, Cause, filch_core::Time),
    end: Option<End>,
) -> Outcome {
    Outcome {
        job,
        index,
        status,
        cause,
        attempts: filch_core::attempt_in_life(attempt),
        hops: 0,
        worker: end.map_or(NOBODY, |end| end.worker),
        began: end.map_or(0, |end| end.began),
        ended: at.0,
        ran: end.map_or(0, |end| end.ran),
        ending: end.map_or(0, |end| end.ending),
    }
}

/// Columns of ends, by attempt.
fn spread(ends: &Ends) -> FxHashMap<(u64, u32), End> {
    let (mut attempts, mut workers) = (sums(&ends.attempt_steps), sums(&ends.worker_steps));
    let (mut began, mut ran) = (sums(&ends.began_steps), ends.ran_nanos.iter());
    // Empty if no attempt has one.
    let mut endings = ends.endings.iter();
    let each = sums(&ends.task_steps).map(|task| {
        let end = End {
            ran: ran.next().copied().unwrap_or(0),
            worker: workers.next().unwrap_or(0),
            ending: endings.next().copied().unwrap_or(0),
            began: began.next().unwrap_or(0),
        };
        ((task, attempts.next().unwrap_or(0) as u32), end)
    });
    each.collect()
}

/// The ends of a turn, which become columns.
#[derive(Default)]
pub(super) struct EndColumns(Vec<(u64, u32, End)>);

impl EndColumns {
    pub(super) fn push(&mut self, task: TaskId, attempt: u32, end: End) {
        self.0.push((task.to_bits(), attempt, end));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn take(&mut self) -> Option<Ends> {
        let taken = std::mem::take(&mut self.0);
        let ends = || taken.iter().map(|entry| &entry.2);
        let has_endings = ends().any(|end| end.ending > 0);
        (!taken.is_empty()).then(|| Ends {
            task_steps: differences(taken.iter().map(|entry| entry.0)),
            attempt_steps: differences(taken.iter().map(|entry| u64::from(entry.1))),
            ran_nanos: ends().map(|end| end.ran).collect(),
            worker_steps: differences(ends().map(|end| end.worker)),
            endings: ends().filter(|_| has_endings).map(|end| end.ending).collect(),
            began_steps: differences(ends().map(|end| end.began)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_come_out_of_their_columns_as_they_went_in() {
        for kept in [0, 7] {
            let mut columns = EndColumns::default();
            let end = |at: u64| End { ran: 5 * at, worker: 90 - at, ending: kept * at, began: 1000 + at };
            for at in 0..10 {
                columns.push(TaskId::from_bits(at << 32 | (10 - at)), at as u32 % 3, end(at));
            }
            let ends = columns.take().unwrap();
            assert_eq!(ends.endings.is_empty(), kept == 0);
            let found = spread(&ends);
            assert_eq!(found.len(), 10);
            for at in 0..10 {
                assert_eq!(found.get(&(at << 32 | (10 - at), at as u32 % 3)), Some(&end(at)));
            }
            assert!(columns.is_empty() && columns.take().is_none());
        }
    }
}
