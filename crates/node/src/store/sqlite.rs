//! The store in one directory: a SQLite database, its write-ahead log and a lock file.
//!
//! One thread writes ([`writer`](super::writer)); whoever reads does so over connections of their own and never waits for
//! it. Never shares its directory with a second process.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};

use rusqlite::{Connection, OptionalExtension};

use super::lock::Lock;
use super::writer::{Inbox, Request, Writer};
use super::{
    BlobId, Done, Entry, Epoch, Error, Groups, Place, Shard, Snapshot, Store, Taken, Until, file, frame, read,
};

/// The numbers that a shard has room for, for groups as for blobs.
const NUMBERS: u64 = 1 << 48;

/// The row of a number of a shard.
pub(super) fn row(shard: Shard, number: u64) -> i64 {
    (i64::from(shard.0) << 48) | (number & (NUMBERS - 1)).cast_signed()
}

/// The number of a row of a shard.
pub(super) fn number(row: i64) -> u64 {
    row.cast_unsigned() & (NUMBERS - 1)
}

/// Settings of a [`SqliteStore`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// The database never grows beyond so many bytes (the log apart): what would make it is refused as if the disk were
    /// full.
    pub bytes_max: Option<u64>,
    /// How long it must last.
    pub lasts: Lasts,
}

/// How long what is stored must last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lasts {
    /// Whatever dies: everything acknowledged was written through to the disk.
    #[default]
    ForGood,
    /// While the store is open; nobody wants it later. Nothing waits for the disk.
    WhileOpen,
}

impl Lasts {
    /// What SQLite calls it: with a write-ahead log, `FULL` writes the log through at the end of every transaction.
    pub(crate) fn synchronous(self) -> &'static str {
        match self {
            Lasts::ForGood => "FULL",
            Lasts::WhileOpen => "OFF",
        }
    }
}

/// A store in a directory.
#[derive(Debug)]
pub struct SqliteStore {
    path: PathBuf,
    inbox: Arc<Inbox>,
    reader: Mutex<Connection>,
    thread: Option<JoinHandle<()>>,
    /// Given back last, when the writer is gone.
    _lock: Lock,
}

impl SqliteStore {
    /// Opens the store of a directory; makes both if there are none. One of an older format is brought to the newest; a
    /// newer or damaged one is refused and left as it is.
    pub fn open(dir: impl AsRef<Path>) -> Result<SqliteStore, Error> {
        SqliteStore::open_with(dir, Options::default())
    }

    /// [`open`](SqliteStore::open) with settings.
    pub fn open_with(dir: impl AsRef<Path>, options: Options) -> Result<SqliteStore, Error> {
        let dir = dir.as_ref();
        fs::create_dir_all(dir).map_err(|error| Error::system(dir, error))?;
        let lock = Lock::take(dir)?;
        let path = file::path(dir);
        let connection = file::open(dir, options.lasts)?;
        let failed = |error| Error::sqlite(&path, error);
        if let Some(bytes) = options.bytes_max {
            let page: u32 = connection.pragma_query_value(None, "page_size", |row| row.get(0)).map_err(failed)?;
            let pages = i64::try_from(bytes / u64::from(page)).unwrap_or(i64::MAX);
            connection.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(())).map_err(failed)?;
        }
        let reader = Mutex::new(file::reader(&path)?);
        let inbox = Arc::new(Inbox::default());
        let log = file::log(dir);
        let stretched = options.bytes_max.is_none().then_some(log.as_path());
        let writer = Writer::new(connection, path.clone(), stretched, Arc::clone(&inbox))?;
        let thread = thread::Builder::new()
            .name("filch-store".to_owned())
            .spawn(move || writer.run())
            .map_err(|error| Error::system(&path, error))?;
        Ok(SqliteStore { path, inbox, reader, thread: Some(thread), _lock: lock })
    }

    /// Reads everything and compares every checksum; the first damage found is the error. Takes time in proportion to
    /// what is stored, and keeps nobody from writing.
    pub fn verify(&self) -> Result<(), Error> {
        read::verify(&self.path)
    }

    /// Hands the writer something and waits for its answer.
    fn ask<T>(&self, request: impl FnOnce(mpsc::SyncSender<Result<T, Error>>) -> Request) -> Result<T, Error> {
        let (tell, told) = mpsc::sync_channel(1);
        self.inbox.push(request(tell), 0).map_err(|_| Error::Closed)?;
        told.recv().unwrap_or(Err(Error::Closed))
    }
}

impl Store for SqliteStore {
    fn take(&self, shard: Shard) -> Result<Taken, Error> {
        if shard.0 > Shard::MAX {
            return Err(Error::TooMuch { what: format!("shard {}", shard.0), most: u64::from(Shard::MAX) });
        }
        self.ask(|reply| Request::Take { shard, reply })
    }

    fn append(&self, shard: Shard, epoch: Epoch, entry: Entry, done: Done) {
        let weight = entry.weight();
        if let Err(Request::Append { done, .. }) =
            self.inbox.push(Request::Append { shard, epoch, entry, done }, weight)
        {
            done(Err(Error::Closed));
        }
    }

    fn pending_bytes(&self) -> usize {
        self.inbox.pending_bytes()
    }

    fn read(&self, shard: Shard, after: Place) -> Result<Groups, Error> {
        Ok(Box::new(read::Journal::open(&self.path, shard, after)?))
    }

    fn snapshot(&self, shard: Shard) -> Result<Option<Snapshot>, Error> {
        read::snapshot(&self.path, shard)
    }

    fn write_snapshot(
        &self,
        shard: Shard,
        epoch: Epoch,
        up_to: Place,
        chunks: &mut dyn Iterator<Item = Vec<u8>>,
    ) -> Result<(), Error> {
        let id = self.ask(|reply| Request::Begin { shard, epoch, up_to, reply })?;
        let mut count = 0;
        for body in chunks {
            // One at a time: what waits to be written is bounded, and appends come in between.
            self.ask(|reply| Request::Chunk { shard, epoch, id, number: count, body, reply })?;
            count += 1;
        }
        self.ask(|reply| Request::Seal { shard, epoch, up_to, id, count, reply })
    }

    fn blob(&self, shard: Shard, id: BlobId) -> Result<Option<Vec<u8>>, Error> {
        let connection = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        let find = || {
            let mut statement = connection.prepare_cached("SELECT body FROM blob WHERE place = ?1")?;
            statement.query_row([row(shard, id.0)], |row| row.get::<_, Vec<u8>>(0)).optional()
        };
        let Some(sealed) = find().map_err(|error| Error::sqlite(&self.path, error))? else { return Ok(None) };
        match frame::open(blob_address(row(shard, id.0)), &sealed) {
            Some(bytes) => Ok(Some(bytes.to_vec())),
            None => Err(Error::damaged(&self.path, format!("blob {} has a wrong checksum", id.0))),
        }
    }

    fn sweep(&self, now: Until, at_most: usize) -> Result<usize, Error> {
        self.ask(|reply| Request::Sweep { now, at_most, reply })
    }
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        self.inbox.close();
        // A callback may hold the last of the store, and the writer cannot wait for itself.
        if let Some(thread) = self.thread.take().filter(|thread| thread.thread().id() != thread::current().id()) {
            // A writer that panicked has told everybody that the store is closed.
            drop(thread.join());
        }
    }
}

/// What a blob's checksum covers besides its bytes.
pub(super) fn blob_address(place: i64) -> frame::Address {
    [2, place.cast_unsigned(), 0]
}

/// The number of a blob, refused if there is no room for it.
pub(super) fn blob_row(shard: Shard, id: BlobId) -> Result<i64, Error> {
    if id.0 < NUMBERS {
        return Ok(row(shard, id.0));
    }
    Err(Error::TooMuch { what: format!("blob {}", id.0), most: NUMBERS - 1 })
}
