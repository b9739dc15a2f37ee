//! The database file: how it is made, which formats there were, and what is refused before it is touched.
//!
//! Never makes a file where one is damaged or missing its half: a new one is built under another name and renamed, so a
//! file under the real name is always whole, and an empty one is damage rather than a beginning.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

use super::chores::LOG_PAGES;
use super::{Error, Lasts, wal};

/// The database's name in the directory.
const NAME: &str = "filch.db";
/// Where a new one is built.
const FRESH: &str = "filch.db.new";
/// "filc": tells our databases from others.
const APPLICATION: i64 = 0x6669_6c63;
/// What every SQLite database starts with.
const MAGIC: &[u8] = b"SQLite format 3\0";
/// The bytes of the smallest page that there is.
const PAGE_MIN: usize = 512;

/// Every format there ever was: step n makes format n + 1 of format n, and all of them in turn make a new database. Steps
/// are never edited once released; a change is a step more.
const STEPS: &[&str] = &[
    // The place of a row in `journal` and `blob` is shard * 2^48 + number.
    "CREATE TABLE shard (shard INTEGER PRIMARY KEY, epoch INTEGER NOT NULL) STRICT;
     CREATE TABLE journal (place INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, body BLOB NOT NULL) STRICT;",
    // The place of a chunk is snapshot * 2^24 + number. A snapshot counts from the moment it is sealed.
    "CREATE TABLE snapshot (id INTEGER PRIMARY KEY AUTOINCREMENT, shard INTEGER NOT NULL, up_to INTEGER NOT NULL,
        chunks INTEGER NOT NULL, sealed INTEGER NOT NULL) STRICT;
     CREATE TABLE chunk (place INTEGER PRIMARY KEY, body BLOB NOT NULL) STRICT;",
    "CREATE TABLE blob (place INTEGER PRIMARY KEY, until INTEGER, body BLOB NOT NULL) STRICT;
     CREATE INDEX blob_until ON blob (until) WHERE until IS NOT NULL;",
];

/// The newest format.
pub(super) const FORMAT: i64 = STEPS.len() as i64;

/// Where the database lies.
pub(crate) fn path(dir: &Path) -> PathBuf {
    dir.join(NAME)
}

/// Where its write-ahead log lies.
pub(super) fn log(dir: &Path) -> PathBuf {
    dir.join(format!("{NAME}-wal"))
}

/// The connection of the writer, on a database that is made if there is none, of the newest format and whole as far as
/// can be told without reading all of it.
pub(super) fn open(dir: &Path, lasts: Lasts) -> Result<Connection, Error> {
    let path = path(dir);
    let log = log(dir);
    if !path.try_exists().map_err(|error| Error::system(&path, error))? {
        if log.try_exists().map_err(|error| Error::system(&log, error))? {
            return Err(Error::damaged(&path, "its write-ahead log is there, and it is not"));
        }
        create(dir, FORMAT, lasts)?;
    }
    check_header(&path)?;
    wal::check(&log)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(&path, flags).map_err(|error| Error::sqlite(&path, error))?;
    check_format(&connection, &path)?;
    prepare(&connection, lasts).map_err(|error| Error::sqlite(&path, error))?;
    migrate(&mut connection, FORMAT).map_err(|error| Error::sqlite(&path, error))?;
    Ok(connection)
}

/// A connection that only reads.
pub(super) fn reader(path: &Path) -> Result<Connection, Error> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(|error| Error::sqlite(path, error))?;
    connection.busy_timeout(Duration::from_secs(10)).map_err(|error| Error::sqlite(path, error))?;
    Ok(connection)
}

/// Builds a database of a format beside where it belongs and moves it there when it is durable.
pub(super) fn create(dir: &Path, format: i64, lasts: Lasts) -> Result<(), Error> {
    let fresh = dir.join(FRESH);
    let failed = |error| Error::system(&fresh, error);
    // What a crash left of an earlier beginning: nothing was ever acknowledged in it.
    for leftover in [fresh.clone(), dir.join(format!("{FRESH}-journal"))] {
        if leftover.try_exists().map_err(failed)? {
            fs::remove_file(&leftover).map_err(failed)?;
        }
    }
    keep_private(&fresh).map_err(failed)?;
    let build = || {
        let mut connection = Connection::open(&fresh)?;
        connection.pragma_update(None, "synchronous", lasts.synchronous())?;
        connection.pragma_update(None, "application_id", APPLICATION)?;
        migrate(&mut connection, format)?;
        connection.close().map_err(|(_, error)| error)
    };
    build().map_err(|error| Error::sqlite(&fresh, error))?;
    let write_through = |path: &Path| match lasts {
        Lasts::ForGood => File::open(path).and_then(|file| file.sync_all()).map_err(failed),
        Lasts::WhileOpen => Ok(()),
    };
    write_through(&fresh)?;
    fs::rename(&fresh, path(dir)).map_err(failed)?;
    write_through(dir)
}

/// A file that nobody else may read, made if it is not there: what tasks are given and what they write is nobody else's. What a
/// database keeps beside itself is as private as itself.
pub(crate) fn keep_private(path: &Path) -> std::io::Result<()> {
    let file = fs::OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
    // One that is there and belongs to somebody else is as they want it.
    let _ = file.set_permissions(fs::Permissions::from_mode(0o600));
    Ok(())
}

fn check_header(path: &Path) -> Result<(), Error> {
    let failed = |error| Error::system(path, error);
    let mut start = Vec::new();
    File::open(path).map_err(failed)?.take(PAGE_MIN as u64).read_to_end(&mut start).map_err(failed)?;
    if start.is_empty() {
        return Err(Error::damaged(path, "the file is empty"));
    }
    if !start.starts_with(MAGIC) {
        return Err(Error::damaged(path, "the file is no database"));
    }
    // SQLite takes what has less than a page for a database without tables.
    if start.len() < PAGE_MIN {
        return Err(Error::damaged(path, "the file is cut short"));
    }
    Ok(())
}

fn check_format(connection: &Connection, path: &Path) -> Result<(), Error> {
    let ask = |pragma| {
        connection
            .pragma_query_value(None, pragma, |row| row.get::<_, i64>(0))
            .map_err(|error| Error::sqlite(path, error))
    };
    let found = ask("user_version")?;
    match ask("application_id")? {
        APPLICATION if found > FORMAT => Err(Error::Newer { path: path.to_owned(), found, known: FORMAT }),
        APPLICATION if found < 1 => Err(Error::damaged(path, format!("it says that its format is {found}"))),
        APPLICATION => Ok(()),
        _ => Err(Error::Foreign { path: path.to_owned() }),
    }
}

/// What makes a commit durable: with a write-ahead log, `synchronous = FULL` writes the log through to the disk at the end
/// of every transaction; `NORMAL` would do so only when the log is folded back.
fn prepare(connection: &Connection, lasts: Lasts) -> rusqlite::Result<()> {
    connection.busy_timeout(Duration::from_secs(10))?;
    connection.pragma_update(None, "synchronous", lasts.synchronous())?;
    connection.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
    connection.pragma_update(None, "wal_autocheckpoint", LOG_PAGES)?;
    connection.pragma_update(None, "trusted_schema", false)?;
    connection.set_prepared_statement_cache_capacity(32);
    Ok(())
}

/// Brings a database to a format, all steps in one transaction.
fn migrate(connection: &mut Connection, format: i64) -> rusqlite::Result<()> {
    let found: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    if found >= format {
        return Ok(());
    }
    let transaction = connection.transaction()?;
    for (_, step) in (0..format).zip(STEPS).filter(|(number, _)| *number >= found) {
        transaction.execute_batch(step)?;
    }
    transaction.pragma_update(None, "user_version", format)?;
    transaction.commit()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::frame::Growing;
    use crate::store::{Epoch, Place, Shard, SqliteStore, Store, Taken};

    #[test]
    fn a_store_of_every_older_format_is_brought_to_the_newest_and_keeps_its_records() {
        for format in 1..FORMAT {
            let dir = tempfile::tempdir().unwrap();
            create(dir.path(), format, Lasts::ForGood).unwrap();
            let old = Connection::open(path(dir.path())).unwrap();
            let mut group = Growing::new();
            group.push(b"from long ago").unwrap();
            let body = group.finish(Shard(0), Place(1), Epoch(4));
            old.execute("INSERT INTO shard VALUES (0, 4)", []).unwrap();
            old.execute("INSERT INTO journal VALUES (1, 4, ?1)", [body]).unwrap();
            old.close().unwrap();

            let store = SqliteStore::open(dir.path()).unwrap();
            assert_eq!(store.take(Shard(0)).unwrap(), Taken { epoch: Epoch(5), last: Place(1) });
            let groups: Vec<_> = store.read(Shard(0), Place(0)).unwrap().map(Result::unwrap).collect();
            assert_eq!(groups[0].entries, [b"from long ago"]);
            store.write_snapshot(Shard(0), Epoch(5), Place(1), &mut [vec![1]].into_iter()).unwrap();
            store.verify().unwrap();
            drop(store);
            let found: i64 = Connection::open(path(dir.path()))
                .unwrap()
                .pragma_query_value(None, "user_version", |row| row.get(0))
                .unwrap();
            assert_eq!(found, FORMAT, "from format {format}");
        }
    }

    #[test]
    fn every_commit_is_written_through_to_the_disk_unless_nobody_wants_it_later() {
        for (lasts, expected) in [(Lasts::ForGood, 2), (Lasts::WhileOpen, 0)] {
            let dir = tempfile::tempdir().unwrap();
            let connection = open(dir.path(), lasts).unwrap();
            let synchronous: i64 = connection.pragma_query_value(None, "synchronous", |row| row.get(0)).unwrap();
            let mode: String = connection.pragma_query_value(None, "journal_mode", |row| row.get(0)).unwrap();
            assert_eq!((synchronous, mode.as_str()), (expected, "wal"), "2 is FULL, 0 is OFF");
        }
    }

    #[test]
    fn a_creation_that_a_crash_cut_short_is_begun_anew() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(FRESH), b"half of a database").unwrap();
        fs::write(dir.path().join(format!("{FRESH}-journal")), b"and of its journal").unwrap();
        drop(SqliteStore::open(dir.path()).unwrap());
        assert!(!dir.path().join(FRESH).exists());
    }
}
