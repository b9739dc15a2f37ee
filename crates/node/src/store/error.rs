//! What a store refuses and why, each with what to do about it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Epoch, Place, Shard};

/// Why a store was not opened, or did not do what it was asked to.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// Another process has the directory.
    #[error("{} is in use by {}; stop that one, or use another directory", .dir.display(), holder(*.pid))]
    InUse {
        /// The directory.
        dir: PathBuf,
        /// Who has it, as far as that can be told.
        pid: Option<u32>,
    },
    /// Written by a later filch.
    #[error(
        "{} has format {found}, and this filch knows formats up to {known}; use the filch that wrote it or a later one, or \
         another directory", .path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: i64,
        /// The newest format that is known.
        known: i64,
    },
    /// A database, but of something else.
    #[error("{} is a database of another program; use another directory", .path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// What was written is not what is read.
    #[error(
        "{} is damaged: {what}; nothing was changed. Keep a copy of the whole directory, then restore it from a backup, or \
         start with an empty directory and submit again what was not finished", .path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The database is gone, and what tells of its tasks is not.
    #[error(
        "{} is missing, but {} tells of jobs that it kept; nothing was changed. Restore it with the rest of the directory from a \
         backup; or begin anew, without those jobs, in another directory or after moving {} away as well", .path.display(),
        .history.display(), .history.display()
    )]
    Lost {
        /// The file that is missing.
        path: PathBuf,
        /// The one that is there.
        history: PathBuf,
    },
    /// Nothing can be written there.
    #[error("{} cannot be written: {what}; make it writable for this user, or use another directory", .path.display())]
    ReadOnly {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        what: String,
    },
    /// No space is left.
    #[error(
        "no space is left for {}; what was acknowledged is safe. Make room, then start again", .path.display()
    )]
    Full {
        /// The file.
        path: PathBuf,
    },
    /// Another coordinator took the shard.
    #[error("shard {} was taken under epoch {}; nothing more is written under epoch {}", .shard.0, .current.0, .epoch.0)]
    Fenced {
        /// The shard.
        shard: Shard,
        /// Under which it was to be written.
        epoch: Epoch,
        /// Under which it is written now.
        current: Epoch,
    },
    /// An earlier append failed, so that this one would have left a hole.
    #[error("nothing more is written to shard {} before it is taken again, because an append failed: {cause}", .shard.0)]
    Stopped {
        /// The shard.
        shard: Shard,
        /// What happened to the earlier one.
        cause: Arc<Error>,
    },
    /// A snapshot that does not fit the journal.
    #[error("a snapshot of shard {} up to group {} does not lie between the last one ({}) and the end of the journal ({})",
        .shard.0, .up_to.0, .previous.0, .last.0)]
    Misplaced {
        /// The shard.
        shard: Shard,
        /// What it was to fold.
        up_to: Place,
        /// What the last one folded.
        previous: Place,
        /// The last group of the journal.
        last: Place,
    },
    /// What was being read is folded into a newer snapshot by now.
    #[error("group {} of shard {} is folded into a newer snapshot; start again from that", .place.0, .shard.0)]
    Folded {
        /// The shard.
        shard: Shard,
        /// What was to be read.
        place: Place,
    },
    /// A shard or blob with a number that is too great, or more bytes than a store takes at once.
    #[error("{what} is more than a store takes, which is {most}")]
    TooMuch {
        /// What, and how much of it.
        what: String,
        /// How much it may be.
        most: u64,
    },
    /// The store is closed or its writer is gone.
    #[error("the store is closed")]
    Closed,
    /// The system refused something.
    #[error("{}: {source}", .path.display())]
    System {
        /// The file.
        path: PathBuf,
        /// What it said.
        source: Arc<io::Error>,
    },
    /// SQLite refused something.
    #[error("{}: {source}", .path.display())]
    Sqlite {
        /// The file.
        path: PathBuf,
        /// What it said.
        source: Arc<rusqlite::Error>,
    },
}

fn holder(pid: Option<u32>) -> String {
    pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"))
}

impl Error {
    pub(crate) fn damaged(path: &Path, what: impl Into<String>) -> Error {
        Error::Damaged { path: path.to_owned(), what: what.into() }
    }

    pub(crate) fn system(path: &Path, source: io::Error) -> Error {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Error::Full { path },
            io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => {
                Error::ReadOnly { path, what: source.to_string() }
            }
            _ => Error::System { path, source: Arc::new(source) },
        }
    }

    pub(crate) fn sqlite(path: &Path, source: rusqlite::Error) -> Error {
        use rusqlite::ErrorCode;
        let path = path.to_owned();
        match source.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => Error::Full { path },
            Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => {
                Error::ReadOnly { path, what: source.to_string() }
            }
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
                Error::Damaged { path, what: source.to_string() }
            }
            _ => Error::Sqlite { path, source: Arc::new(source) },
        }
    }
}
