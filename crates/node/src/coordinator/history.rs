//! What became of tasks, for people: filled in the background from what is durable already, never on the way of anybody
//! who waits for an answer. Tasks of a job are packed into rows of many.
//!
//! What it has not yet written when a coordinator dies is in the journal, and comes from there again.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use filch_core::wire::talk::{JobCard, Progress};
use filch_core::wire::{differences, sums};
use filch_core::{Cause, Status};
use prost::Message;
use rusqlite::{Connection, OpenFlags, OptionalExtension as _, params};
use rustc_hash::FxHashMap;

use crate::store::{Error, Lasts};

/// The format that is written. In the first one rows did not say when the last of their tasks had ended.
const FORMAT: i64 = 2;
/// What stands for a job with tasks that were submitted alone.
const ALONE: u64 = 0;
/// Tasks in one row.
const ROW: usize = 8192;
/// How long something waits before it is written.
const PATIENCE: Duration = Duration::from_millis(500);

/// What stands for a worker where there is none: 0 is one, mostly the first that ever joined.
pub(crate) const NOBODY: u64 = u64::MAX;

/// What became of one task.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) job: u64,
    /// Its position; of a single task its handle.
    pub(crate) index: u64,
    pub(crate) status: Status,
    pub(crate) cause: Cause,
    pub(crate) attempts: u32,
    pub(crate) hops: u32,
    pub(crate) worker: u64,
    pub(crate) began: u64,
    pub(crate) ended: u64,
    pub(crate) ran: u64,
    /// Where its ending is kept; 0 if there is none.
    pub(crate) ending: u64,
}

impl Outcome {
    /// That of an element that never became a task.
    pub(crate) fn of_element(job: u64, index: u32, status: Status, cause: Cause, at: u64) -> Outcome {
        Outcome {
            job,
            index: u64::from(index),
            status,
            cause,
            attempts: 0,
            hops: 0,
            worker: NOBODY,
            began: at,
            ended: at,
            ran: 0,
            ending: 0,
        }
    }

    /// What its worker is called, if it was ever with one. Earlier rows have 0 where there was none.
    pub(crate) fn worker_name<'a>(&self, workers: &'a FxHashMap<u64, String>) -> Option<&'a String> {
        workers.get(&self.worker).filter(|_| self.attempts > 0)
    }
}

/// Many of them, in columns.
#[derive(Clone, PartialEq, Message)]
struct Row {
    #[prost(sint64, repeated, tag = "1")]
    indexes: Vec<i64>,
    #[prost(uint32, repeated, tag = "2")]
    statuses: Vec<u32>,
    #[prost(uint32, repeated, tag = "3")]
    causes: Vec<u32>,
    #[prost(uint32, repeated, tag = "4")]
    attempts: Vec<u32>,
    #[prost(uint32, repeated, tag = "5")]
    hops: Vec<u32>,
    #[prost(sint64, repeated, tag = "6")]
    workers: Vec<i64>,
    #[prost(sint64, repeated, tag = "7")]
    began: Vec<i64>,
    #[prost(sint64, repeated, tag = "8")]
    ended: Vec<i64>,
    #[prost(uint64, repeated, tag = "9")]
    ran: Vec<u64>,
    #[prost(sint64, repeated, tag = "10")]
    endings: Vec<i64>,
}

impl Row {
    fn of(outcomes: &[Outcome]) -> Row {
        let each = || outcomes.iter();
        Row {
            indexes: differences(each().map(|one| one.index)),
            statuses: each().map(|one| status_number(one.status)).collect(),
            causes: each().map(|one| cause_number(one.cause)).collect(),
            attempts: each().map(|one| one.attempts).collect(),
            hops: each().map(|one| one.hops).collect(),
            workers: differences(each().map(|one| one.worker)),
            began: differences(each().map(|one| one.began)),
            ended: differences(each().map(|one| one.ended)),
            ran: each().map(|one| one.ran).collect(),
            endings: differences(each().map(|one| one.ending)),
        }
    }

    fn outcomes(&self, job: u64) -> Vec<Outcome> {
        let mut workers = sums(&self.workers);
        let mut began = sums(&self.began);
        let mut ended = sums(&self.ended);
        let mut endings = sums(&self.endings);
        let at = |column: &[u32], place: usize| column.get(place).copied().unwrap_or(0);
        sums(&self.indexes)
            .enumerate()
            .map(|(place, index)| Outcome {
                job,
                index,
                status: Status::ALL.get(at(&self.statuses, place) as usize).copied().unwrap_or(Status::Failed),
                cause: Cause::ALL.get(at(&self.causes, place) as usize).copied().unwrap_or(Cause::None),
                attempts: at(&self.attempts, place),
                hops: at(&self.hops, place),
                worker: workers.next().unwrap_or(0),
                began: began.next().unwrap_or(0),
                ended: ended.next().unwrap_or(0),
                ran: self.ran.get(place).copied().unwrap_or(0),
                ending: endings.next().unwrap_or(0),
            })
            .collect()
    }
}

fn status_number(status: Status) -> u32 {
    Status::ALL.iter().position(|known| *known == status).unwrap_or(0) as u32
}

fn cause_number(cause: Cause) -> u32 {
    Cause::ALL.iter().position(|known| *known == cause).unwrap_or(0) as u32
}

/// A job, when it was done and how it went.
pub(crate) type PastJob = (JobCard, Option<u64>, Option<Progress>);

/// Something that history hears.
pub(crate) enum Item {
    /// A job was opened.
    Job(Box<JobCard>),
    /// A worker joined.
    Worker { id: u64, name: Arc<str> },
    /// Tasks were settled.
    Settled(Vec<Outcome>),
    /// So were elements of an array that never became tasks, from that of the outcome to the one before `to`, all alike.
    Elements { outcome: Box<Outcome>, to: u32 },
    /// All tasks of a job were.
    JobDone { job: u64, at: u64, progress: Box<Progress> },
    /// All up to that place of the journal was told.
    Upto(u64),
    /// Somebody wants to know something.
    Ask(Box<dyn FnOnce(&mut History) + Send>),
    /// Whatever there is, is to be on disk; the place up to which it is.
    Flush(mpsc::SyncSender<u64>),
}

/// Refuses a directory that has a history and no store any more. Job numbers would begin again, and what the history tells of
/// the old ones would be told of new ones.
pub(crate) fn check_store(dir: &Path) -> Result<(), Error> {
    let (store, history) = (crate::store::path(dir), dir.join("history.db"));
    let is_there = |path: &Path| path.try_exists().map_err(|error| Error::system(path, error));
    if is_there(&store)? || !is_there(&history)? {
        return Ok(());
    }
    if has_content(&history).map_err(|error| Error::sqlite(&history, error))? {
        return Err(Error::Lost { path: store, history });
    }
    Ok(())
}

/// Whether a history tells of anything.
fn has_content(path: &Path) -> rusqlite::Result<bool> {
    let db = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    for table in ["jobs", "tasks"] {
        let made = "select exists (select 1 from sqlite_schema where type = 'table' and name = ?)";
        if db.query_row(made, [table], |row| row.get(0))?
            && db.query_row(&format!("select exists (select 1 from {table})"), [], |row| row.get(0))?
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The way to the thread that keeps it.
pub(crate) struct Keeper {
    to: Option<mpsc::Sender<Item>>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Opens the history of a directory and begins to keep it; also the place of the journal up to which it goes.
    pub(crate) fn open(dir: &Path, retention: Duration, lasts: Lasts) -> Result<(Keeper, u64), Error> {
        let path = dir.join("history.db");
        let history = History::open(&path, retention, lasts)?;
        let place = history.place;
        let (to, from) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("filch-history".to_owned())
            .spawn(move || history.run(&from))
            .map_err(|error| Error::system(&path, error))?;
        Ok((Keeper { to: Some(to), thread: Some(thread) }, place))
    }

    pub(crate) fn tell(&self, item: Item) {
        if let Some(to) = &self.to {
            // Its thread ends only with us, or by a fault that it has logged.
            let _ = to.send(item);
        }
    }

    /// A way to tell it, for others.
    pub(crate) fn sender(&self) -> Option<mpsc::Sender<Item>> {
        self.to.clone()
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.to = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Brings an empty or older history to the format that is written.
fn migrate(db: &Connection, format: i64) -> rusqlite::Result<()> {
    if format == 1 {
        // When they ended is not known without reading them all: they are kept as if it had been now.
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let now = i64::try_from(now.as_nanos()).unwrap_or(i64::MAX);
        db.execute_batch(&format!(
            "begin;
             alter table tasks add column ended integer not null default 0;
             update tasks set ended = {now};
             drop index if exists tasks_by_job;
             commit;"
        ))?;
    }
    // The first index answers where a task may be without a look at any row, the second one which rows of tasks submitted
    // alone are too old: those have no job that could be.
    db.execute_batch(&format!(
        "create index if not exists tasks_by_place on tasks (job, last, first);
         create index if not exists tasks_alone on tasks (ended) where job = {ALONE};
         pragma user_version = {FORMAT};"
    ))
}

/// What there is to know of the past.
pub(crate) struct History {
    path: PathBuf,
    db: Connection,
    /// What is not written yet, by job.
    buffers: FxHashMap<u64, Vec<Outcome>>,
    cards: Vec<JobCard>,
    ends: Vec<(u64, u64, Box<Progress>)>,
    workers: Vec<(u64, Arc<str>)>,
    buffered: usize,
    place: u64,
    dirty: bool,
    retention: Duration,
}

impl History {
    fn open(path: &Path, retention: Duration, lasts: Lasts) -> Result<History, Error> {
        let failed = |error| Error::sqlite(path, error);
        crate::store::keep_private(path).map_err(|error| Error::system(path, error))?;
        let db = Connection::open(path).map_err(failed)?;
        db.pragma_update_and_check(None, "journal_mode", "wal", |_| Ok(())).map_err(failed)?;
        // What is lost of it is told again from the journal.
        let synchronous = if lasts == Lasts::ForGood { "NORMAL" } else { lasts.synchronous() };
        db.pragma_update(None, "synchronous", synchronous).map_err(failed)?;
        let format: i64 = db.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(failed)?;
        if format > FORMAT {
            return Err(Error::Newer { path: path.to_owned(), found: format, known: FORMAT });
        }
        db.execute_batch(
            "create table if not exists jobs (number integer primary key, card blob not null, done_at integer, \
             progress blob);
             create table if not exists tasks (id integer primary key, job integer not null, first integer not null, \
             last integer not null, outcomes blob not null, ended integer not null default 0);
             create table if not exists workers (id integer primary key, name text not null);
             create table if not exists place (id integer primary key check (id = 0), place integer not null);
             insert or ignore into place values (0, 0);",
        )
        .map_err(failed)?;
        if format < FORMAT {
            migrate(&db, format).map_err(failed)?;
        }
        let place: i64 = db.query_row("select place from place", [], |row| row.get(0)).map_err(failed)?;
        Ok(History {
            path: path.to_owned(),
            db,
            buffers: FxHashMap::default(),
            cards: Vec::new(),
            ends: Vec::new(),
            workers: Vec::new(),
            buffered: 0,
            place: place.cast_unsigned(),
            dirty: false,
            retention,
        })
    }

    fn run(mut self, from: &mpsc::Receiver<Item>) {
        let mut due = Instant::now() + PATIENCE;
        loop {
            let item = match from.recv_timeout(due.saturating_duration_since(Instant::now())) {
                Ok(item) => Some(item),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            if !self.dirty {
                due = Instant::now() + PATIENCE;
            }
            let outcome = match item {
                Some(item) => self.take(item),
                None if self.dirty => self.write(),
                // Nothing happened: there is nothing to wake up for.
                None => match from.recv() {
                    Ok(item) => {
                        due = Instant::now() + PATIENCE;
                        self.take(item)
                    }
                    Err(_) => break,
                },
            };
            if let Err(error) = outcome {
                tracing::error!(%error, "the history of tasks cannot be kept; it comes from the journal later");
                return;
            }
        }
        if let Err(error) = self.write() {
            tracing::error!(%error, "the history of tasks cannot be kept; it comes from the journal later");
        }
    }

    fn take(&mut self, item: Item) -> Result<(), Error> {
        self.dirty |= !matches!(item, Item::Ask(_) | Item::Flush(_));
        match item {
            Item::Job(card) => self.cards.push(*card),
            Item::Worker { id, name } => self.workers.push((id, name)),
            Item::Settled(outcomes) => {
                self.buffered += outcomes.len();
                for outcome in outcomes {
                    self.buffers.entry(outcome.job).or_default().push(outcome);
                }
            }
            Item::Elements { outcome, to } => {
                let indexes = outcome.index..u64::from(to);
                self.buffered += indexes.clone().count();
                let buffer = self.buffers.entry(outcome.job).or_default();
                buffer.extend(indexes.map(|index| Outcome { index, ..*outcome }));
            }
            Item::JobDone { job, at, progress } => self.ends.push((job, at, progress)),
            Item::Upto(place) => self.place = self.place.max(place),
            Item::Ask(ask) => ask(self),
            Item::Flush(told) => {
                self.write()?;
                let checked = self.db.pragma_update_and_check(None, "wal_checkpoint", "full", |_| Ok(()));
                checked.map_err(|error| Error::sqlite(&self.path, error))?;
                let _ = told.send(self.place);
            }
        }
        if self.buffered >= 16 * ROW {
            self.write()?;
        }
        Ok(())
    }

    /// Writes what has come.
    fn write(&mut self) -> Result<(), Error> {
        if !self.dirty {
            return Ok(());
        }
        let path = self.path.clone();
        self.write_rows().map_err(|error| Error::sqlite(&path, error))?;
        self.dirty = false;
        Ok(())
    }

    fn write_rows(&mut self) -> rusqlite::Result<()> {
        let transaction = self.db.transaction()?;
        for card in self.cards.drain(..) {
            let sql =
                "insert into jobs (number, card) values (?, ?) on conflict (number) do update set card = excluded.card";
            transaction.prepare_cached(sql)?.execute(params![card.number.cast_signed(), card.encode_to_vec()])?;
        }
        for (id, name) in self.workers.drain(..) {
            let sql = "insert or replace into workers (id, name) values (?, ?)";
            transaction.prepare_cached(sql)?.execute(params![id.cast_signed(), &*name])?;
        }
        // Time passes by what ends: of an idle cluster nothing is forgotten.
        let mut latest = 0;
        for (job, outcomes) in &mut self.buffers {
            for part in outcomes.chunks(ROW) {
                let first = part.iter().map(|one| one.index).min().unwrap_or(0).cast_signed();
                let last = part.iter().map(|one| one.index).max().unwrap_or(0).cast_signed();
                let ended = part.iter().map(|one| one.ended).max().unwrap_or(0);
                let sql = "insert into tasks (job, first, last, outcomes, ended) values (?, ?, ?, ?, ?)";
                let row = Row::of(part).encode_to_vec();
                let values = params![job.cast_signed(), first, last, row, ended.cast_signed()];
                transaction.prepare_cached(sql)?.execute(values)?;
                if *job == ALONE {
                    latest = latest.max(ended);
                }
            }
        }
        self.buffers.clear();
        self.buffered = 0;
        for (job, at, progress) in self.ends.drain(..) {
            let sql = "update jobs set done_at = ?, progress = ? where number = ?";
            let values = params![at.cast_signed(), progress.encode_to_vec(), job.cast_signed()];
            transaction.prepare_cached(sql)?.execute(values)?;
            latest = latest.max(at);
        }
        transaction.prepare_cached("update place set place = ?")?.execute(params![self.place.cast_signed()])?;
        if latest > 0 {
            let before = latest.saturating_sub(u64::try_from(self.retention.as_nanos()).unwrap_or(u64::MAX));
            let gone = "delete from tasks where job in (select number from jobs where done_at < ?)";
            transaction.prepare_cached(gone)?.execute(params![before.cast_signed()])?;
            transaction.prepare_cached("delete from jobs where done_at < ?")?.execute(params![before.cast_signed()])?;
            let alone = format!("delete from tasks where job = {ALONE} and ended < ?");
            transaction.prepare_cached(&alone)?.execute(params![before.cast_signed()])?;
        }
        transaction.commit()
    }

    // ---- questions ----

    /// A job that is done, or was open when it was last written.
    pub(crate) fn job(&mut self, number: u64) -> Result<Option<PastJob>, Error> {
        self.write()?;
        let sql = "select card, done_at, progress from jobs where number = ?";
        self.select_job(sql, number).map_err(|error| Error::sqlite(&self.path, error))
    }

    fn select_job(&self, sql: &str, number: u64) -> rusqlite::Result<Option<PastJob>> {
        let mut statement = self.db.prepare_cached(sql)?;
        let found = statement.query_row(params![number.cast_signed()], |row| {
            let card: Vec<u8> = row.get(0)?;
            let done: Option<i64> = row.get(1)?;
            let progress: Option<Vec<u8>> = row.get(2)?;
            Ok((card, done, progress))
        });
        let Some((card, done, progress)) = found.optional()? else { return Ok(None) };
        let card = JobCard::decode(&*card).unwrap_or_default();
        let progress = progress.and_then(|bytes| Progress::decode(&*bytes).ok());
        Ok(Some((card, done.map(i64::cast_unsigned), progress)))
    }

    /// The newest jobs that are done.
    pub(crate) fn jobs(&mut self, limit: usize) -> Result<Vec<PastJob>, Error> {
        self.write()?;
        let sql = "select number from jobs order by number desc limit ?";
        let numbers = || -> rusqlite::Result<Vec<i64>> {
            self.db.prepare_cached(sql)?.query_map(params![limit as i64], |row| row.get(0))?.collect()
        };
        let numbers = numbers().map_err(|error| Error::sqlite(&self.path, error))?;
        let mut jobs = Vec::new();
        for number in numbers {
            jobs.extend(self.job(number.cast_unsigned())?);
        }
        Ok(jobs)
    }

    /// Tasks of a job that were settled, the latest word on each, by position. `each` says whether it wants more.
    pub(crate) fn tasks(
        &mut self,
        job: u64,
        range: std::ops::RangeInclusive<u64>,
        mut each: impl FnMut(Outcome) -> bool,
    ) -> Result<(), Error> {
        self.write()?;
        let rows = || -> rusqlite::Result<Vec<Vec<u8>>> {
            let sql = "select outcomes from tasks where job = ? and last >= ? and first <= ? order by id";
            let values = params![job.cast_signed(), range.start().cast_signed(), range.end().cast_signed()];
            self.db.prepare_cached(sql)?.query_map(values, |row| row.get(0))?.collect()
        };
        let rows = rows().map_err(|error| Error::sqlite(&self.path, error))?;
        let mut found: Vec<Outcome> = Vec::new();
        for row in rows {
            let outcomes = Row::decode(&*row).unwrap_or_default().outcomes(job);
            found.extend(outcomes.into_iter().filter(|one| range.contains(&one.index)));
        }
        // What came again after a restart is the same; the later word counts.
        found.sort_by_key(|one| one.index);
        for place in 0..found.len() {
            let is_last = found.get(place + 1).is_none_or(|next| next.index != found[place].index);
            if is_last && !each(found[place]) {
                break;
            }
        }
        Ok(())
    }

    /// One task of a job, if it was settled.
    pub(crate) fn task(&mut self, job: u64, index: u64) -> Result<Option<Outcome>, Error> {
        let mut found = None;
        self.tasks(job, index..=index, |outcome| {
            found = Some(outcome);
            true
        })?;
        Ok(found)
    }

    /// What all workers were called that anything was ever run by.
    pub(crate) fn workers(&mut self) -> Result<FxHashMap<u64, String>, Error> {
        self.write()?;
        let rows = || -> rusqlite::Result<FxHashMap<u64, String>> {
            let mut statement = self.db.prepare_cached("select id, name from workers")?;
            let pairs = statement.query_map([], |row| Ok((row.get::<_, i64>(0)?.cast_unsigned(), row.get(1)?)))?;
            pairs.collect()
        };
        rows().map_err(|error| Error::sqlite(&self.path, error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(index: u64) -> Outcome {
        Outcome {
            job: 3,
            index,
            status: if index.is_multiple_of(3) { Status::Failed } else { Status::Completed },
            cause: Cause::None,
            attempts: 1 + (index % 2) as u32,
            hops: 0,
            worker: (index % 4) << 32,
            began: 1_000_000 + index * 7,
            ended: 2_000_000 + index * 7,
            ran: 1_000_000,
            ending: index % 5,
        }
    }

    fn all(dir: &Path) -> (Vec<Outcome>, u64) {
        let mut history = History::open(&dir.join("history.db"), Duration::from_secs(3600), Lasts::ForGood).unwrap();
        let mut found = Vec::new();
        history
            .tasks(3, 0..=i64::MAX as u64, |one| {
                found.push(one);
                true
            })
            .unwrap();
        (found, history.place)
    }

    #[test]
    fn what_was_told_is_found_again_once() {
        let dir = tempfile::tempdir().unwrap();
        let (keeper, place) = Keeper::open(dir.path(), Duration::from_secs(3600), Lasts::ForGood).unwrap();
        assert_eq!(place, 0);
        keeper.tell(Item::Job(Box::new(JobCard { number: 3, ..JobCard::default() })));
        keeper.tell(Item::Settled((0..20_000).rev().map(outcome).collect()));
        // Told again, as after a restart.
        keeper.tell(Item::Settled((100..200).map(outcome).collect()));
        keeper.tell(Item::Upto(17));
        drop(keeper);
        let (found, place) = all(dir.path());
        assert_eq!(place, 17);
        assert_eq!(found, (0..20_000).map(outcome).collect::<Vec<_>>());
    }

    /// Tasks submitted alone that are still known.
    fn alone(history: &mut History) -> Vec<u64> {
        let mut found = Vec::new();
        history
            .tasks(ALONE, 0..=i64::MAX as u64, |one| {
                found.push(one.index);
                true
            })
            .unwrap();
        found
    }

    fn ended_alone(index: u64, ended: u64) -> Outcome {
        Outcome { job: ALONE, ended, ..outcome(index) }
    }

    #[test]
    fn tasks_submitted_alone_are_forgotten_when_they_are_too_old() {
        let dir = tempfile::tempdir().unwrap();
        let mut history =
            History::open(&dir.path().join("history.db"), Duration::from_nanos(1000), Lasts::ForGood).unwrap();
        for (index, ended) in [(1, 5000), (2, 5500), (3, 6400), (4, 6600)] {
            history.take(Item::Settled(vec![ended_alone(index, ended)])).unwrap();
            history.write().unwrap();
        }
        assert_eq!(alone(&mut history), [3, 4], "what ended more than 1000 before the latest is gone");
        // Those of a job go with their job, however old they are.
        history.take(Item::Settled(vec![outcome(9)])).unwrap();
        history.take(Item::Settled(vec![ended_alone(5, 9_000_000_000)])).unwrap();
        assert_eq!(alone(&mut history), [5]);
        assert_eq!(history.task(3, 9).unwrap(), Some(outcome(9)));
    }

    #[test]
    fn a_history_of_the_first_format_is_brought_to_this_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("history.db");
        let old = Connection::open(&path).unwrap();
        old.execute_batch(
            "create table jobs (number integer primary key, card blob not null, done_at integer, progress blob);
             create table tasks (id integer primary key, job integer not null, first integer not null, \
             last integer not null, outcomes blob not null);
             create index tasks_by_job on tasks (job, first);
             create table workers (id integer primary key, name text not null);
             create table place (id integer primary key check (id = 0), place integer not null);
             insert into place values (0, 17);
             pragma user_version = 1;",
        )
        .unwrap();
        for outcome in [ended_alone(7, 5), outcome(8)] {
            let values =
                params![outcome.job.cast_signed(), outcome.index.cast_signed(), Row::of(&[outcome]).encode_to_vec()];
            old.execute("insert into tasks (job, first, last, outcomes) values (?1, ?2, ?2, ?3)", values).unwrap();
        }
        drop(old);
        for _ in 0..2 {
            let mut history = History::open(&path, Duration::from_secs(3600), Lasts::ForGood).unwrap();
            assert_eq!((history.place, alone(&mut history)), (17, vec![7]));
            assert_eq!(history.task(3, 8).unwrap(), Some(outcome(8)));
            // Kept for a while from now on, whenever it ended.
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
            history.take(Item::Settled(vec![ended_alone(7, now)])).unwrap();
            assert_eq!(alone(&mut history), [7]);
        }
    }

    #[test]
    fn a_history_without_its_store_is_refused_unless_it_is_empty() {
        let dir = tempfile::tempdir().unwrap();
        check_store(dir.path()).unwrap();
        let open = || Keeper::open(dir.path(), Duration::from_secs(3600), Lasts::ForGood).unwrap().0;
        drop(open());
        check_store(dir.path()).unwrap();
        let keeper = open();
        keeper.tell(Item::Job(Box::new(JobCard { number: 3, ..JobCard::default() })));
        drop(keeper);
        let error = check_store(dir.path()).unwrap_err().to_string();
        assert!(error.contains("filch.db is missing") && error.contains("history.db"), "{error}");
        std::fs::write(dir.path().join("filch.db"), "").unwrap();
        check_store(dir.path()).unwrap();
    }

    #[test]
    fn a_question_sees_what_was_told_before_it() {
        let dir = tempfile::tempdir().unwrap();
        let (keeper, _) = Keeper::open(dir.path(), Duration::from_secs(3600), Lasts::ForGood).unwrap();
        keeper.tell(Item::Job(Box::new(JobCard { number: 3, name: "one".to_owned(), ..JobCard::default() })));
        keeper.tell(Item::Worker { id: 7, name: "w7".into() });
        let (tell, told) = mpsc::channel();
        keeper.tell(Item::Ask(Box::new(move |history| {
            let job = history.job(3).unwrap().map(|found| found.0.name);
            let _ = tell.send((job, history.workers().unwrap().remove(&7)));
        })));
        assert_eq!(told.recv().unwrap(), (Some("one".to_owned()), Some("w7".to_owned())));
    }
}
