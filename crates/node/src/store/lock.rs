//! One directory, one coordinator: a lock file that the system lets go of when its holder dies, however it dies.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::Path;

use super::Error;

/// The name of the lock file.
const NAME: &str = "filch.lock";

/// The right to a directory, held as long as this lives.
#[derive(Debug)]
pub(super) struct Lock {
    _held: File,
}

impl Lock {
    /// Takes the lock, or says who has it.
    pub(super) fn take(dir: &Path) -> Result<Lock, Error> {
        let path = dir.join(NAME);
        let failed = |error| Error::system(&path, error);
        // Not truncated here: that would wipe out the number of whoever has it.
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut text = String::new();
                // What cannot be read is nobody's number; the refusal stands all the same.
                let pid = file.read_to_string(&mut text).ok().and_then(|_| text.trim().parse().ok());
                return Err(Error::InUse { dir: dir.to_owned(), pid });
            }
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        file.set_len(0).map_err(failed)?;
        file.rewind().map_err(failed)?;
        writeln!(file, "{}", std::process::id()).map_err(failed)?;
        Ok(Lock { _held: file })
    }
}
