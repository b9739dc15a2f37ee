//! Reading journals and snapshots over connections of their own, in portions, so that no reader holds anything up.
//!
//! Every checksum is compared and every gap noticed. Never returns less than was acknowledged without saying so.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OptionalExtension, params};

use super::sqlite::{blob_address, number, row};
use super::{Epoch, Error, Group, Place, Shard, Snapshot, file, frame};

/// Groups read at once.
const PORTION: u32 = 16;
/// Chunks that a snapshot has room for.
const CHUNKS: i64 = 1 << 24;

/// The row of a chunk.
pub(super) fn chunk_row(id: i64, number: u32) -> i64 {
    id.saturating_mul(CHUNKS).saturating_add(i64::from(number))
}

/// What a chunk's checksum covers besides its bytes.
pub(super) fn chunk_address(id: i64, number: u32) -> frame::Address {
    [1, id.cast_unsigned(), u64::from(number)]
}

/// The last group that is folded into the newest snapshot; 0 without one.
pub(super) fn sealed_up_to(connection: &Connection, shard: Shard) -> rusqlite::Result<Place> {
    let sql = "SELECT max(up_to) FROM snapshot WHERE shard = ?1 AND sealed";
    let up_to: Option<i64> = connection.query_row(sql, [shard.0], |row| row.get(0))?;
    Ok(Place(up_to.unwrap_or(0).cast_unsigned()))
}

/// The groups of a journal after some place.
pub(super) struct Journal {
    connection: Connection,
    path: PathBuf,
    shard: Shard,
    last: Place,
    portion: VecDeque<(i64, i64, Vec<u8>)>,
    over: bool,
}

impl Journal {
    pub(super) fn open(path: &Path, shard: Shard, after: Place) -> Result<Journal, Error> {
        let connection = file::reader(path)?;
        Ok(Journal { connection, path: path.to_owned(), shard, last: after, portion: VecDeque::new(), over: false })
    }

    fn fetch(&mut self) -> rusqlite::Result<()> {
        let mut statement = self.connection.prepare_cached(
            "SELECT place, epoch, body FROM journal WHERE place > ?1 AND place <= ?2 ORDER BY place LIMIT ?3",
        )?;
        let range = params![row(self.shard, self.last.0), row(self.shard, u64::MAX), PORTION];
        let rows = statement.query_map(range, |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        for group in rows {
            self.portion.push_back(group?);
        }
        Ok(())
    }

    fn step(&mut self) -> Result<Option<Group>, Error> {
        if self.portion.is_empty() {
            self.fetch().map_err(|error| Error::sqlite(&self.path, error))?;
        }
        let wanted = Place(self.last.0 + 1);
        let Some((found, epoch, body)) = self.portion.pop_front() else { return self.end(wanted) };
        if number(found) != wanted.0 {
            return Err(self.missing(wanted));
        }
        let epoch = Epoch(epoch.cast_unsigned());
        let Some(entries) = frame::entries(self.shard, wanted, epoch, &body) else {
            let what = format!("group {} of shard {} has a wrong checksum", wanted.0, self.shard.0);
            return Err(Error::damaged(&self.path, what));
        };
        self.last = wanted;
        Ok(Some(Group { place: wanted, epoch, entries }))
    }

    /// There is nothing after the last group, unless it was folded in the meantime.
    fn end(&self, wanted: Place) -> Result<Option<Group>, Error> {
        match sealed_up_to(&self.connection, self.shard) {
            Ok(folded) if folded >= wanted => Err(Error::Folded { shard: self.shard, place: wanted }),
            Ok(_) => Ok(None),
            Err(error) => Err(Error::sqlite(&self.path, error)),
        }
    }

    fn missing(&self, wanted: Place) -> Error {
        match self.end(wanted) {
            Err(error) => error,
            Ok(_) => Error::damaged(&self.path, format!("group {} of shard {} is missing", wanted.0, self.shard.0)),
        }
    }
}

impl Iterator for Journal {
    type Item = Result<Group, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.over {
            return None;
        }
        let step = self.step().transpose();
        self.over = !matches!(step, Some(Ok(_)));
        step
    }
}

/// The parts of a snapshot, in order.
#[derive(Debug)]
pub struct Chunks {
    connection: Connection,
    path: PathBuf,
    shard: Shard,
    up_to: Place,
    id: i64,
    next: u32,
    count: u32,
}

/// The newest snapshot of a shard that is complete.
pub(super) fn snapshot(path: &Path, shard: Shard) -> Result<Option<Snapshot>, Error> {
    let connection = file::reader(path)?;
    let sql = "SELECT id, up_to, chunks FROM snapshot WHERE shard = ?1 AND sealed ORDER BY up_to DESC LIMIT 1";
    let found = connection
        .query_row(sql, [shard.0], |row| Ok((row.get(0)?, row.get::<_, i64>(1)?, row.get(2)?)))
        .optional()
        .map_err(|error| Error::sqlite(path, error))?;
    Ok(found.map(|(id, up_to, count)| {
        let up_to = Place(up_to.cast_unsigned());
        Snapshot { up_to, chunks: Chunks { connection, path: path.to_owned(), shard, up_to, id, next: 0, count } }
    }))
}

impl Chunks {
    fn step(&mut self) -> Result<Vec<u8>, Error> {
        let failed = |error| Error::sqlite(&self.path, error);
        let place = chunk_row(self.id, self.next);
        let body: Option<Vec<u8>> = self
            .connection
            .prepare_cached("SELECT body FROM chunk WHERE place = ?1")
            .and_then(|mut statement| statement.query_row([place], |row| row.get(0)).optional())
            .map_err(failed)?;
        if let Some(bytes) = body.as_deref().and_then(|body| frame::open(chunk_address(self.id, self.next), body)) {
            self.next += 1;
            return Ok(bytes.to_vec());
        }
        let newest = sealed_up_to(&self.connection, self.shard).map_err(failed)?;
        if newest > self.up_to {
            return Err(Error::Folded { shard: self.shard, place: self.up_to });
        }
        let wrong = if body.is_some() { "has a wrong checksum" } else { "is missing" };
        Err(Error::damaged(
            &self.path,
            format!("chunk {} of the snapshot of shard {} {wrong}", self.next, self.shard.0),
        ))
    }
}

impl Iterator for Chunks {
    type Item = Result<Vec<u8>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.next >= self.count {
            return None;
        }
        let step = self.step();
        if step.is_err() {
            self.count = self.next;
        }
        Some(step)
    }
}

/// Reads everything there is; the first thing wrong is the error.
pub(super) fn verify(path: &Path) -> Result<(), Error> {
    let connection = file::reader(path)?;
    let failed = |error| Error::sqlite(path, error);
    let verdict: String = connection.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0)).map_err(failed)?;
    if verdict != "ok" {
        return Err(Error::damaged(path, verdict));
    }
    for shard in shards(&connection).map_err(failed)? {
        // What is folded meanwhile is read again from the newer snapshot.
        while let Err(error) = verify_shard(path, shard) {
            if !matches!(error, Error::Folded { .. }) {
                return Err(error);
            }
        }
    }
    let mut statement = connection.prepare("SELECT place, body FROM blob").map_err(failed)?;
    let mut rows = statement.query([]).map_err(failed)?;
    while let Some(row) = rows.next().map_err(failed)? {
        let place: i64 = row.get(0).map_err(failed)?;
        let body = row.get_ref(1).and_then(|body| Ok(body.as_blob()?)).map_err(failed)?;
        if frame::open(blob_address(place), body).is_none() {
            return Err(Error::damaged(path, format!("blob {} has a wrong checksum", number(place))));
        }
    }
    Ok(())
}

fn verify_shard(path: &Path, shard: Shard) -> Result<(), Error> {
    let mut after = Place(0);
    if let Some(mut snapshot) = snapshot(path, shard)? {
        after = snapshot.up_to;
        snapshot.chunks.try_for_each(|chunk| chunk.map(drop))?;
    }
    Journal::open(path, shard, after)?.try_for_each(|group| group.map(drop))
}

fn shards(connection: &Connection) -> rusqlite::Result<Vec<Shard>> {
    let mut statement = connection.prepare("SELECT shard FROM shard ORDER BY shard")?;
    let shards = statement.query_map([], |row| row.get(0).map(Shard))?;
    shards.collect()
}
