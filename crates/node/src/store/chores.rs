//! What is done when nobody waits for the writer, a portion at a time: groups and chunks that a newer snapshot replaced
//! are removed, and snapshots that were never finished; and the log is brought to its length, because writing through to
//! a file that grows costs half as much again as to one that does not.
//!
//! What a crash leaves undone is found again when the store is opened. Never removes anything that a durable snapshot does
//! not replace.

use std::path::{Path, PathBuf};

use rusqlite::{Connection, params};

use super::read::chunk_row;
use super::sqlite::row;
use super::{Place, Shard};

/// How many rows go at once.
const PORTION: u32 = 64;
/// The log is folded back when it has so many pages, of 4 KiB.
pub(super) const LOG_PAGES: u32 = 2000;
/// By how many bytes the log grows at once, and to how many.
const STRETCH: u64 = 1 << 20;
const LOG_BYTES: u64 = LOG_PAGES as u64 * 4200;
/// With less space than this left the log is as long as it has to be.
const ROOM: u64 = 32 * LOG_BYTES;

/// Rows to remove.
#[derive(Debug)]
enum Chore {
    /// Groups from one place of the table to another.
    Groups(i64, i64),
    /// Chunks likewise.
    Chunks(i64, i64),
    /// A snapshot that will never be finished.
    Unfinished(i64),
    /// A log that is not as long as it will be.
    Stretch(PathBuf),
}

/// Everything to remove, the next last.
#[derive(Debug, Default)]
pub(super) struct Chores {
    queue: Vec<Chore>,
    /// The last portion failed; nothing is tried before something else succeeds.
    paused: bool,
}

impl Chores {
    /// What earlier lives of this store left to do.
    pub(super) fn left_over(connection: &Connection, log: Option<&Path>) -> rusqlite::Result<Chores> {
        let mut chores = Chores::default();
        chores.queue.extend(log.map(|log| Chore::Stretch(log.to_owned())));
        let mut statement = connection.prepare("SELECT id, shard, up_to, sealed FROM snapshot ORDER BY id")?;
        let snapshots = statement.query_map([], |found| {
            Ok((found.get::<_, i64>(0)?, found.get::<_, u16>(1)?, found.get::<_, i64>(2)?, found.get::<_, bool>(3)?))
        })?;
        let mut previous = -1;
        for snapshot in snapshots {
            let (id, shard, up_to, sealed) = snapshot?;
            // Between two snapshots that are left there may be chunks of one that is gone.
            chores.queue.push(Chore::Chunks(chunk_row(previous + 1, 0), chunk_row(id, 0) - 1));
            previous = id;
            if sealed {
                let up_to = Place(up_to.cast_unsigned());
                chores.queue.push(Chore::Groups(row(Shard(shard), 0), row(Shard(shard), up_to.0)));
            } else {
                chores.forget_snapshot(id);
            }
        }
        // Not further than snapshots went: the next one's chunks are no leftovers.
        let sql = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'snapshot'";
        let newest: i64 = connection.query_row(sql, [], |found| found.get(0))?;
        chores.queue.push(Chore::Chunks(chunk_row(previous + 1, 0), chunk_row(newest + 1, 0) - 1));
        Ok(chores)
    }

    /// Removes what a snapshot replaces: earlier snapshots and the groups that are folded into it.
    pub(super) fn trim(&mut self, shard: Shard, up_to: Place, replaced: &[i64]) {
        self.queue.push(Chore::Groups(row(shard, 0), row(shard, up_to.0)));
        self.queue.extend(replaced.iter().map(|id| Chore::Chunks(chunk_row(*id, 0), chunk_row(id + 1, 0) - 1)));
    }

    /// Removes a snapshot that will never be finished.
    pub(super) fn forget_snapshot(&mut self, id: i64) {
        self.queue.push(Chore::Unfinished(id));
        self.queue.push(Chore::Chunks(chunk_row(id, 0), chunk_row(id + 1, 0) - 1));
    }

    /// Whether nothing can be done now.
    pub(super) fn rest(&self) -> bool {
        self.paused || self.queue.is_empty()
    }

    /// Something was written, so removing may work again.
    pub(super) fn resume(&mut self) {
        self.paused = false;
    }

    /// Removes a few rows. A failure is no matter: it is tried again after the next commit, and found again after a crash.
    pub(super) fn portion(&mut self, connection: &Connection) {
        let Some(chore) = self.queue.last().filter(|_| !self.paused) else { return };
        let removed = match chore {
            Chore::Groups(first, last) => connection.execute(
                "DELETE FROM journal WHERE place IN
                    (SELECT place FROM journal WHERE place BETWEEN ?1 AND ?2 ORDER BY place LIMIT ?3)",
                params![first, last, PORTION],
            ),
            Chore::Chunks(first, last) => connection.execute(
                "DELETE FROM chunk WHERE place IN
                    (SELECT place FROM chunk WHERE place BETWEEN ?1 AND ?2 ORDER BY place LIMIT ?3)",
                params![first, last, PORTION],
            ),
            Chore::Unfinished(id) => connection.execute("DELETE FROM snapshot WHERE id = ?1 AND NOT sealed", [id]),
            Chore::Stretch(log) if !short(log) => Ok(0),
            Chore::Stretch(_) => stretch(connection),
        };
        match removed {
            Ok(rows) if rows < PORTION as usize => {
                self.queue.pop();
            }
            Ok(_) => {}
            Err(_) => self.paused = true,
        }
    }
}

/// Whether a log should be longer, and there is room for it.
fn short(log: &Path) -> bool {
    let length = log.metadata().map_or(LOG_BYTES, |found| found.len());
    let room = || rustix::fs::statvfs(log).is_ok_and(|found| found.f_bavail.saturating_mul(found.f_frsize) > ROOM);
    length < LOG_BYTES && room()
}

/// Writes something long and removes it: the log keeps the length, and the database has free pages to use up.
fn stretch(connection: &Connection) -> rusqlite::Result<usize> {
    // There is no snapshot 0, so nobody reads its chunks, and what a crash leaves of them goes with the other chores.
    connection.execute("INSERT OR REPLACE INTO chunk VALUES (0, zeroblob(?1))", [STRETCH.cast_signed()])?;
    connection.execute("DELETE FROM chunk WHERE place = 0", [])?;
    Ok(PORTION as usize)
}
