//! The one thread that writes, and what is handed to it.
//!
//! It takes everything that came while it wrote, writes it in one transaction (one row for each shard) and tells everybody
//! when that is durable: under load many appends share one wait for the disk, and a single one waits for nobody. Snapshots
//! and sweeps have transactions of their own after that, so that they cannot fail an append, and [`chores`](super::chores)
//! are done when nobody waits. Never delays an append in the hope of more.

use std::collections::BTreeMap;
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use rusqlite::{Connection, OptionalExtension, params};

use super::chores::Chores;
use super::frame::{self, Growing};
use super::read::{chunk_address, chunk_row, sealed_up_to};
use super::sqlite::{blob_address, blob_row, number, row};
use super::{BlobChange, Done, Entry, Epoch, Error, Place, Shard, Taken, Until};

/// A group is not made longer than about this, so that no row comes near what SQLite can hold.
const GROUP_BYTES: usize = 8 << 20;
/// SQLite holds less than 2^30 bytes in a row; this leaves room for what comes with them.
const BYTES_MAX: usize = 512 << 20;
/// While appends keep coming, a portion of chores is done after so many commits.
const COMMITS_PER_CHORE: u32 = 16;

type Reply<T> = SyncSender<Result<T, Error>>;

/// What the writer is asked to do.
pub(super) enum Request {
    /// [`Store::append`](super::Store::append).
    Append { shard: Shard, epoch: Epoch, entry: Entry, done: Done },
    /// [`Store::take`](super::Store::take).
    Take { shard: Shard, reply: Reply<Taken> },
    /// Begins a snapshot; answered with its id.
    Begin { shard: Shard, epoch: Epoch, up_to: Place, reply: Reply<i64> },
    /// Adds a chunk to a snapshot.
    Chunk { shard: Shard, epoch: Epoch, id: i64, number: u32, body: Vec<u8>, reply: Reply<()> },
    /// Makes a snapshot count.
    Seal { shard: Shard, epoch: Epoch, up_to: Place, id: i64, count: u32, reply: Reply<()> },
    /// [`Store::sweep`](super::Store::sweep).
    Sweep { now: Until, at_most: usize, reply: Reply<usize> },
}

/// What waits for the writer.
#[derive(Default)]
pub(super) struct Inbox {
    waiting: Mutex<Waiting>,
    changed: Condvar,
    bytes: AtomicUsize,
}

#[derive(Default)]
struct Waiting {
    requests: Vec<Request>,
    closed: bool,
}

impl std::fmt::Debug for Inbox {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Inbox").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl Inbox {
    /// Hands over a request; it comes back if the store is closed.
    pub(super) fn push(&self, request: Request, weight: usize) -> Result<(), Request> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.closed {
            return Err(request);
        }
        self.bytes.fetch_add(weight, Ordering::Relaxed);
        waiting.requests.push(request);
        let first = waiting.requests.len() == 1;
        drop(waiting);
        if first {
            self.changed.notify_one();
        }
        Ok(())
    }

    /// The bytes of appends that nobody was told about yet.
    pub(super) fn pending_bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Nothing more is taken in; what waits is still written.
    pub(super) fn close(&self) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
        self.changed.notify_one();
    }

    /// Moves all that waits into `batch`. Waits for something if there is nothing else to do; false when there will be
    /// nothing any more.
    fn next(&self, batch: &mut Vec<Request>, idle: bool) -> bool {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        while idle && waiting.requests.is_empty() && !waiting.closed {
            waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
        mem::swap(&mut waiting.requests, batch);
        !(batch.is_empty() && waiting.closed)
    }
}

/// A shard that this process took.
struct Owned {
    epoch: Epoch,
    last: Place,
    growing: Option<Growing>,
    /// Why nothing more is appended.
    stopped: Option<Arc<Error>>,
    /// Whether the epoch was looked up in the running transaction.
    looked_up: bool,
}

impl Owned {
    /// Keeps the next append from leaving a hole.
    fn stop(&mut self, cause: &Error) {
        self.stopped.get_or_insert_with(|| Arc::new(cause.clone()));
        self.growing = None;
    }
}

/// Whom to tell what, once the transaction is through.
enum Answer {
    Append { done: Done, outcome: Result<Place, Error>, weight: usize },
    Take { shard: Shard, reply: Reply<Taken>, outcome: Result<Taken, Error> },
}

/// Closes the inbox when the writer ends, also when it ends by a panic, so that nobody waits for it in vain.
struct CloseAtEnd(Arc<Inbox>);

impl Drop for CloseAtEnd {
    fn drop(&mut self) {
        let mut waiting = self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.closed = true;
        // Whoever waits for an answer learns that there is none when its sender is dropped; appends are told.
        for request in mem::take(&mut waiting.requests) {
            if let Request::Append { done, .. } = request {
                done(Err(Error::Closed));
            }
        }
    }
}

/// The state of the thread that writes.
pub(super) struct Writer {
    connection: Connection,
    path: PathBuf,
    inbox: Arc<Inbox>,
    shards: BTreeMap<Shard, Owned>,
    chores: Chores,
    commits_since_chore: u32,
}

impl Writer {
    /// A writer that brings the log to its length, if it is told where that is.
    pub(super) fn new(
        connection: Connection,
        path: PathBuf,
        log: Option<&Path>,
        inbox: Arc<Inbox>,
    ) -> Result<Writer, Error> {
        let chores = Chores::left_over(&connection, log).map_err(|error| Error::sqlite(&path, error))?;
        Ok(Writer { connection, path, inbox, shards: BTreeMap::new(), chores, commits_since_chore: 0 })
    }

    /// Writes until the store is closed and everything that was handed over is written.
    pub(super) fn run(mut self) {
        let _closes = CloseAtEnd(Arc::clone(&self.inbox));
        let mut batch = Vec::new();
        while self.inbox.next(&mut batch, self.chores.rest()) {
            if batch.is_empty() || self.commits_since_chore >= COMMITS_PER_CHORE {
                self.commits_since_chore = 0;
                self.chores.portion(&self.connection);
            }
            self.write(&mut batch);
        }
    }

    fn failed(&self, error: rusqlite::Error) -> Error {
        Error::sqlite(&self.path, error)
    }

    fn write(&mut self, batch: &mut Vec<Request>) {
        let later: Vec<Request> =
            batch.extract_if(.., |request| !matches!(request, Request::Append { .. } | Request::Take { .. })).collect();
        if !batch.is_empty() {
            self.commits_since_chore += 1;
            self.write_urgent(batch.drain(..));
        }
        for request in later {
            self.write_later(request);
        }
    }

    /// Appends and takes, in one transaction and in their order.
    fn write_urgent(&mut self, requests: impl Iterator<Item = Request>) {
        let begun = run(&self.connection, "BEGIN IMMEDIATE");
        let mut failure = begun.err().map(|error| self.failed(error));
        let mut answers = Vec::new();
        for request in requests {
            match request {
                Request::Append { shard, epoch, entry, done } => {
                    let weight = entry.weight();
                    let outcome = self.append(shard, epoch, &entry, &mut failure);
                    answers.push((shard, Answer::Append { done, outcome, weight }));
                }
                Request::Take { shard, reply } => {
                    let outcome = self.take(shard, &mut failure);
                    answers.push((shard, Answer::Take { shard, reply, outcome }));
                }
                // Sorted out before.
                Request::Begin { .. } | Request::Chunk { .. } | Request::Seal { .. } | Request::Sweep { .. } => {}
            }
        }
        if failure.is_none() {
            failure = self.flush().and_then(|()| run(&self.connection, "COMMIT")).err().map(|e| self.failed(e));
        }
        for owned in self.shards.values_mut() {
            owned.looked_up = false;
        }
        if let Some(error) = &failure {
            self.undo();
            for (shard, _) in &answers {
                if let Some(owned) = self.shards.get_mut(shard) {
                    owned.stop(error);
                }
            }
        } else {
            self.chores.resume();
        }
        for (_, answer) in answers {
            self.tell(answer, failure.as_ref());
        }
    }

    fn tell(&mut self, answer: Answer, failure: Option<&Error>) {
        match answer {
            Answer::Append { done, outcome, weight } => {
                self.inbox.bytes.fetch_sub(weight, Ordering::Relaxed);
                done(match failure {
                    Some(error) if outcome.is_ok() => Err(error.clone()),
                    _ => outcome,
                });
            }
            Answer::Take { shard, reply, outcome } => {
                let outcome = failure.map_or(outcome, |error| Err(error.clone()));
                if outcome.is_err() {
                    self.shards.remove(&shard);
                }
                // Whoever asked may have gone away.
                drop(reply.send(outcome));
            }
        }
    }

    /// Leaves a transaction that failed, and its half-written frames too where that is possible.
    fn undo(&mut self) {
        // SQLite has often done so itself, and then there is nothing to roll back.
        if !self.connection.is_autocommit() {
            drop(self.connection.execute_batch("ROLLBACK"));
        }
        // Frames of failed commits could look like damage to `wal::check`. If this fails they are overwritten by the next.
        drop(self.connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)"));
    }

    /// Puts an entry into the group that grows. What it says is true once the transaction is through.
    fn append(
        &mut self,
        shard: Shard,
        epoch: Epoch,
        entry: &Entry,
        failure: &mut Option<Error>,
    ) -> Result<Place, Error> {
        if let Some(error) = failure {
            return Err(error.clone());
        }
        self.fence(shard, epoch, failure)?;
        let fits = check_size(entry, shard);
        let Some(owned) = self.shards.get_mut(&shard) else { return Err(Error::Closed) };
        if let Some(cause) = &owned.stopped {
            return Err(Error::Stopped { shard, cause: Arc::clone(cause) });
        }
        if let Err(error) = fits {
            owned.stopped = Some(Arc::new(error.clone()));
            return Err(error);
        }
        if !entry.records.is_empty() {
            owned.growing.get_or_insert_with(Growing::new).push(&entry.records)?;
        }
        let place = Place(owned.last.0 + u64::from(owned.growing.is_some()));
        let full = owned.growing.as_ref().is_some_and(|growing| growing.len() >= GROUP_BYTES);
        let mut written = change_blobs(&self.connection, shard, &entry.blobs);
        if full && written.is_ok() {
            written = self.flush();
        }
        if let Err(error) = written {
            let error = self.failed(error);
            *failure = Some(error.clone());
            return Err(error);
        }
        Ok(place)
    }

    /// Refuses whoever does not hold the shard. The epoch is looked up in the transaction that writes: a second process that
    /// got past the lock is fenced too.
    fn fence(&mut self, shard: Shard, epoch: Epoch, failure: &mut Option<Error>) -> Result<(), Error> {
        let held = self.shards.get(&shard);
        if held.is_some_and(|owned| owned.epoch == epoch && owned.looked_up) {
            return Ok(());
        }
        let current = match stored_epoch(&self.connection, shard) {
            Ok(current) => current,
            Err(error) => {
                let error = self.failed(error);
                *failure = Some(error.clone());
                return Err(error);
            }
        };
        match self.shards.get_mut(&shard) {
            Some(owned) if owned.epoch == epoch && current == epoch => {
                owned.looked_up = true;
                Ok(())
            }
            _ => Err(Error::Fenced { shard, epoch, current }),
        }
    }

    /// Writes every group that grows.
    fn flush(&mut self) -> rusqlite::Result<()> {
        for (shard, owned) in &mut self.shards {
            if let Some(growing) = owned.growing.take() {
                let place = Place(owned.last.0 + 1);
                let body = growing.finish(*shard, place, owned.epoch);
                self.connection
                    .prepare_cached("INSERT INTO journal (place, epoch, body) VALUES (?1, ?2, ?3)")?
                    .execute(params![row(*shard, place.0), owned.epoch.0.cast_signed(), body])?;
                owned.last = place;
            }
        }
        Ok(())
    }

    fn take(&mut self, shard: Shard, failure: &mut Option<Error>) -> Result<Taken, Error> {
        if let Some(error) = failure {
            return Err(error.clone());
        }
        let taken = self.flush().and_then(|()| raise_epoch(&self.connection, shard)).map_err(|error| {
            let error = Error::sqlite(&self.path, error);
            *failure = Some(error.clone());
            error
        })?;
        let Taken { epoch, last } = taken;
        self.shards.insert(shard, Owned { epoch, last, growing: None, stopped: None, looked_up: true });
        Ok(taken)
    }

    /// Something that is durable in a transaction of its own.
    fn write_later(&mut self, request: Request) {
        match request {
            Request::Begin { shard, epoch, up_to, reply } => {
                let outcome = self.guarded(shard, epoch, |connection| {
                    let sql = "INSERT INTO snapshot (shard, up_to, chunks, sealed) VALUES (?1, ?2, 0, 0)";
                    connection.execute(sql, params![shard.0, up_to.0.cast_signed()])?;
                    Ok(connection.last_insert_rowid())
                });
                drop(reply.send(outcome));
            }
            Request::Chunk { shard, epoch, id, number, body, reply } => {
                let outcome = check_bytes("a chunk", body.len()).and_then(|()| {
                    self.guarded(shard, epoch, |connection| {
                        let body = frame::seal(chunk_address(id, number), &body);
                        let sql = "INSERT INTO chunk (place, body) VALUES (?1, ?2)";
                        connection.prepare_cached(sql)?.execute(params![chunk_row(id, number), body])?;
                        Ok(())
                    })
                });
                drop(reply.send(outcome));
            }
            Request::Seal { shard, epoch, up_to, id, count, reply } => {
                drop(reply.send(self.seal(shard, epoch, up_to, id, count)));
            }
            Request::Sweep { now, at_most, reply } => {
                let at_most = i64::try_from(at_most).unwrap_or(i64::MAX);
                let sql = "DELETE FROM blob WHERE place IN
                    (SELECT place FROM blob WHERE until <= ?1 ORDER BY until LIMIT ?2)";
                let swept = self.connection.execute(sql, params![now.0.cast_signed(), at_most]);
                drop(reply.send(swept.map_err(|error| self.failed(error))));
            }
            // Done before.
            Request::Append { .. } | Request::Take { .. } => {}
        }
    }

    /// Makes a snapshot count, and only then lets go of what it replaces.
    fn seal(&mut self, shard: Shard, epoch: Epoch, up_to: Place, id: i64, count: u32) -> Result<(), Error> {
        let previous = sealed_up_to(&self.connection, shard).map_err(|error| self.failed(error))?;
        let last = self.shards.get(&shard).map_or(Place(0), |owned| owned.last);
        if up_to < previous || up_to > last {
            self.chores.forget_snapshot(id);
            return Err(Error::Misplaced { shard, up_to, previous, last });
        }
        let replaced: Vec<i64> = self.guarded(shard, epoch, |connection| {
            let mut statement = connection
                .prepare_cached("DELETE FROM snapshot WHERE shard = ?1 AND sealed AND id <> ?2 RETURNING id")?;
            let replaced = statement.query_map(params![shard.0, id], |row| row.get(0))?.collect::<Result<_, _>>()?;
            connection.execute("UPDATE snapshot SET sealed = 1, chunks = ?2 WHERE id = ?1", params![id, count])?;
            Ok(replaced)
        })?;
        self.chores.trim(shard, up_to, &replaced);
        Ok(())
    }

    /// Does something in a transaction, for whoever holds the shard.
    fn guarded<T>(
        &mut self,
        shard: Shard,
        epoch: Epoch,
        act: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, Error> {
        let run = || {
            let transaction = self.connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
            let current = stored_epoch(&transaction, shard)?;
            if current != epoch {
                return Ok(Err(Error::Fenced { shard, epoch, current }));
            }
            let value = act(&transaction)?;
            transaction.commit()?;
            Ok(Ok(value))
        };
        run().map_err(|error| Error::sqlite(&self.path, error))?
    }
}

/// A statement that is the same every time and returns nothing.
fn run(connection: &Connection, sql: &str) -> rusqlite::Result<()> {
    connection.prepare_cached(sql)?.execute([]).map(drop)
}

fn check_bytes(what: &str, bytes: usize) -> Result<(), Error> {
    if bytes <= BYTES_MAX {
        return Ok(());
    }
    Err(Error::TooMuch { what: format!("{what} of {bytes} bytes"), most: BYTES_MAX as u64 })
}

fn check_size(entry: &Entry, shard: Shard) -> Result<(), Error> {
    check_bytes("an entry", entry.records.len())?;
    entry.blobs.iter().try_for_each(|change| match change {
        BlobChange::Put { id, bytes, .. } => blob_row(shard, *id).and_then(|_| check_bytes("a blob", bytes.len())),
        BlobChange::Keep { id, .. } | BlobChange::Remove { id } => blob_row(shard, *id).map(|_| ()),
    })
}

fn change_blobs(connection: &Connection, shard: Shard, changes: &[BlobChange]) -> rusqlite::Result<()> {
    for change in changes {
        match change {
            BlobChange::Put { id, bytes, until } => {
                let place = row(shard, id.0);
                let body = frame::seal(blob_address(place), bytes);
                connection
                    .prepare_cached("INSERT OR REPLACE INTO blob (place, until, body) VALUES (?1, ?2, ?3)")?
                    .execute(params![place, until.map(|until| until.0.cast_signed()), body])?;
            }
            BlobChange::Keep { id, until } => {
                connection
                    .prepare_cached("UPDATE blob SET until = ?2 WHERE place = ?1")?
                    .execute(params![row(shard, id.0), until.map(|until| until.0.cast_signed())])?;
            }
            BlobChange::Remove { id } => {
                connection.prepare_cached("DELETE FROM blob WHERE place = ?1")?.execute([row(shard, id.0)])?;
            }
        }
    }
    Ok(())
}

/// 0 if the shard was never taken.
fn stored_epoch(connection: &Connection, shard: Shard) -> rusqlite::Result<Epoch> {
    let mut statement = connection.prepare_cached("SELECT epoch FROM shard WHERE shard = ?1")?;
    let epoch: Option<i64> = statement.query_row([shard.0], |row| row.get(0)).optional()?;
    Ok(Epoch(epoch.unwrap_or(0).cast_unsigned()))
}

fn raise_epoch(connection: &Connection, shard: Shard) -> rusqlite::Result<Taken> {
    let epoch = Epoch(stored_epoch(connection, shard)?.0 + 1);
    let sql = "INSERT OR REPLACE INTO shard (shard, epoch) VALUES (?1, ?2)";
    connection.execute(sql, params![shard.0, epoch.0.cast_signed()])?;
    let range = params![row(shard, 0), row(shard, u64::MAX)];
    let sql = "SELECT max(place) FROM journal WHERE place BETWEEN ?1 AND ?2";
    let last: Option<i64> = connection.query_row(sql, range, |row| row.get(0))?;
    let last = Place(last.map_or(0, number)).max(sealed_up_to(connection, shard)?);
    Ok(Taken { epoch, last })
}
