//! What a coordinator keeps: a journal of records, snapshots that fold it, and blobs beside it.
//!
//! The [`Store`] trait is all that the rest of filch knows of it. A journal belongs to a shard and is written by whoever
//! took the shard last: [`take`](Store::take) raises the shard's epoch, and whoever still writes under an older one is
//! refused as [fenced](Error::Fenced). What is appended while a commit runs goes into the next commit, as one row, and
//! is acknowledged when that is durable. [`SqliteStore`] keeps all of it in one directory.
//!
//! Never looks into records, never decides anything, never repairs or resets what it cannot read, and never leaves a
//! hole: once an append of an epoch has failed, every later one of that epoch fails too.

mod chores;
mod error;
mod file;
mod frame;
mod lock;
mod read;
mod sqlite;
mod wal;
mod writer;

use std::sync::mpsc;

pub use error::Error;
pub(crate) use file::{keep_private, path};
pub use read::Chunks;
pub use sqlite::{Lasts, Options, SqliteStore};

/// A part of the work with a journal of its own. At most [`Shard::MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Shard(pub u16);

impl Shard {
    /// The greatest number of a shard.
    pub const MAX: u16 = 0x7fff;
}

/// How often a shard was taken: whoever took it later fences whoever took it earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Epoch(pub u64);

/// Where a group stands in its shard's journal: 1 for the first, one more for each that follows. 0 is before all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place(pub u64);

/// The name of a blob within its shard, chosen by whoever puts it: below 2^48. Ascending ones are the fastest to put.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlobId(pub u64);

/// What a blob may be dropped after, in milliseconds since 1970. The store has no clock: see [`Store::sweep`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Until(pub u64);

/// What one append adds: all of it becomes durable together or not at all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Encoded records, one or many; the store does not look inside. None are appended if this is empty.
    pub records: Vec<u8>,
    /// What happens to blobs, in this order.
    pub blobs: Vec<BlobChange>,
}

impl Entry {
    /// An entry that changes no blobs.
    #[must_use]
    pub fn of(records: Vec<u8>) -> Entry {
        Entry { records, blobs: Vec::new() }
    }

    pub(crate) fn weight(&self) -> usize {
        let blobs = self.blobs.iter().map(|change| match change {
            BlobChange::Put { bytes, .. } => bytes.len() + 32,
            BlobChange::Keep { .. } | BlobChange::Remove { .. } => 32,
        });
        self.records.len() + 32 + blobs.sum::<usize>()
    }
}

/// What happens to a blob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlobChange {
    /// Kept from now on, in place of what had this id.
    Put {
        /// Its name.
        id: BlobId,
        /// What it holds.
        bytes: Vec<u8>,
        /// Until when; without it, until it is removed.
        until: Option<Until>,
    },
    /// From now on kept until then. Nothing happens if there is none.
    Keep {
        /// Which.
        id: BlobId,
        /// Until when; without it, until it is removed.
        until: Option<Until>,
    },
    /// Gone. Nothing happens if there is none.
    Remove {
        /// Which.
        id: BlobId,
    },
}

/// A shard that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// What to append under from now on.
    pub epoch: Epoch,
    /// The last group of the journal.
    pub last: Place,
}

/// A group of the journal: what was committed together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Where it stands.
    pub place: Place,
    /// Under which epoch it was written.
    pub epoch: Epoch,
    /// The records of each append, in order.
    pub entries: Vec<Vec<u8>>,
}

/// The newest snapshot of a shard.
#[derive(Debug)]
pub struct Snapshot {
    /// The last group that is folded into it; the journal goes on after it.
    pub up_to: Place,
    /// Its parts, in the order in which they were written.
    pub chunks: Chunks,
}

/// What is told when an entry is durable, or never will be. Runs on the thread that writes, so it must be brief, must not
/// wait for the store, and must not panic.
pub type Done = Box<dyn FnOnce(Result<Place, Error>) + Send>;

/// Groups of a journal, in order.
pub type Groups = Box<dyn Iterator<Item = Result<Group, Error>> + Send>;

/// What every store can do. All shards are apart: nothing done to one is noticed by another.
pub trait Store: Send + Sync {
    /// Takes a shard: raises its epoch, so that no older writer can append any more. Waits until that is durable.
    fn take(&self, shard: Shard) -> Result<Taken, Error>;

    /// Appends an entry and returns at once; `done` is told when it is durable. Entries of a shard are written in the order
    /// of the calls. After a failure the shard must be taken anew: a journal has no holes.
    fn append(&self, shard: Shard, epoch: Epoch, entry: Entry, done: Done);

    /// The bytes that are appended and not yet durable. Whoever accepts work looks here and refuses it in time.
    fn pending_bytes(&self) -> usize;

    /// The groups after a place, up to the last that is durable when the reader comes to it.
    fn read(&self, shard: Shard, after: Place) -> Result<Groups, Error>;

    /// The newest complete snapshot.
    fn snapshot(&self, shard: Shard) -> Result<Option<Snapshot>, Error>;

    /// Writes a snapshot of everything up to a place, a chunk at a time between the appends, and waits until it is durable.
    /// Then, and not earlier, what it replaces is removed: older snapshots and the groups up to that place.
    fn write_snapshot(
        &self,
        shard: Shard,
        epoch: Epoch,
        up_to: Place,
        chunks: &mut dyn Iterator<Item = Vec<u8>>,
    ) -> Result<(), Error>;

    /// A blob, if there is one.
    fn blob(&self, shard: Shard, id: BlobId) -> Result<Option<Vec<u8>>, Error>;

    /// Removes blobs whose time is over, the longest over first and at most so many; how many those were.
    fn sweep(&self, now: Until, at_most: usize) -> Result<usize, Error>;

    /// [`append`](Store::append), waiting until the entry is durable. Not for the thread that writes.
    fn append_and_wait(&self, shard: Shard, epoch: Epoch, entry: Entry) -> Result<Place, Error> {
        let (tell, told) = mpsc::sync_channel(1);
        // Nobody listens any more only if the caller is gone.
        self.append(shard, epoch, entry, Box::new(move |outcome| drop(tell.send(outcome))));
        told.recv().unwrap_or(Err(Error::Closed))
    }
}
