//! The access file: where a coordinator is and how to be let in. Whoever can read it can use the cluster.
//!
//! Written by a coordinator, for nobody but its owner to read, and read by workers and clients. It is replaced as a whole,
//! so nobody ever sees half of it. Never connects to anything.

use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// The version of the file that is written here. A later one is refused.
pub const VERSION: u32 = 1;

/// SHA-256 of a certificate.
pub type Pin = [u8; 32];

/// How to reach a coordinator and be let in.
#[derive(Clone, PartialEq, Eq)]
pub struct Access {
    /// Where it is, as `host:port`; the first that answers is taken.
    pub addresses: Vec<String>,
    /// SHA-256 of its certificate; without, the connection is plain.
    pub pin: Option<Pin>,
    /// The secret it wants to hear.
    pub token: Bytes,
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Secrets stay out of logs.
        f.debug_struct("Access").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

/// The file as it is written.
#[derive(Serialize, Deserialize)]
struct File {
    version: u32,
    #[serde(default)]
    addresses: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    certificate_sha256: Option<String>,
    #[serde(default)]
    token: String,
}

/// Why an access file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// There is none.
    #[error(
        "there is no access file {}: `filch serve` writes one; copy it here, or name another with --access or FILCH_ACCESS",
        .path.display()
    )]
    Missing {
        /// Where it should be.
        path: PathBuf,
    },
    /// The system did not let it be read or written.
    #[error("cannot {what} the access file {}: {source}", .path.display())]
    System {
        /// `read` or `write`.
        what: &'static str,
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is not what it should be.
    #[error("{}:{line}:{column}: {what}; copy the access file again from where `filch serve` runs", .path.display())]
    Syntax {
        /// Which file.
        path: PathBuf,
        /// In which line.
        line: usize,
        /// In which column.
        column: usize,
        /// What is wrong.
        what: String,
    },
    /// A field makes no sense.
    #[error("{}: {what}; copy the access file again from where `filch serve` runs", .path.display())]
    Invalid {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// It was written by a later version.
    #[error(
        "{} has version {version}, and this filch knows versions up to {VERSION}: it was written by a newer filch; install \
         that one here",
        .path.display()
    )]
    Newer {
        /// Which file.
        path: PathBuf,
        /// Its version.
        version: u64,
    },
}

impl Access {
    /// Reads one.
    ///
    /// # Errors
    /// If there is none, or it cannot be understood.
    pub fn read(path: &Path) -> Result<Access, AccessError> {
        let path_buf = || path.to_path_buf();
        let text = fs::read(path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => AccessError::Missing { path: path_buf() },
            _ => AccessError::System { what: "read", path: path_buf(), source },
        })?;
        warn_if_open(path);
        let syntax = |error: serde_json::Error| AccessError::Syntax {
            path: path_buf(),
            line: error.line(),
            column: error.column(),
            // Its place is said already.
            what: error.to_string().split(" at line ").next().unwrap_or_default().to_owned(),
        };
        // The version first: what a later one looks like is not known.
        let value: serde_json::Value = serde_json::from_slice(&text).map_err(syntax)?;
        if let Some(version) = value.get("version").and_then(serde_json::Value::as_u64)
            && version > u64::from(VERSION)
        {
            return Err(AccessError::Newer { path: path_buf(), version });
        }
        let file: File = serde_json::from_slice(&text).map_err(syntax)?;
        Access::from_file(file).map_err(|what| AccessError::Invalid { path: path_buf(), what })
    }

    fn from_file(file: File) -> Result<Access, String> {
        if file.addresses.is_empty() {
            return Err("it names no address".to_owned());
        }
        let token = from_hex(&file.token).filter(|token| !token.is_empty());
        let token = token.ok_or("its `token` is no hexadecimal number")?;
        let pin = match file.certificate_sha256 {
            None => None,
            Some(text) => {
                let pin = from_hex(&text).and_then(|pin| Pin::try_from(pin).ok());
                Some(pin.ok_or("its `certificate_sha256` has not 64 hexadecimal digits")?)
            }
        };
        Ok(Access { addresses: file.addresses, pin, token: token.into() })
    }

    /// Writes it, for nobody but the owner to read, in place of what was there.
    ///
    /// # Errors
    /// If the system does not allow it.
    pub fn write(&self, path: &Path) -> Result<(), AccessError> {
        let file = File {
            version: VERSION,
            addresses: self.addresses.clone(),
            certificate_sha256: self.pin.map(|pin| to_hex(&pin)),
            token: to_hex(&self.token),
        };
        let failed = |source| AccessError::System { what: "write", path: path.to_path_buf(), source };
        let mut text = serde_json::to_vec_pretty(&file).map_err(|error| failed(error.into()))?;
        text.push(b'\n');
        write_private(path, &text).map_err(failed)
    }

    /// Where it is if nobody says: `$FILCH_ACCESS`, else `access.json` in `$FILCH_DIR`, else in `~/.filch`.
    #[must_use]
    pub fn usual_place() -> PathBuf {
        place(variable)
    }
}

/// Where a coordinator keeps everything if nobody says: `$FILCH_DIR`, else `~/.filch`.
#[must_use]
pub fn usual_directory() -> PathBuf {
    directory(variable)
}

fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

fn directory(variable: impl Fn(&str) -> Option<PathBuf>) -> PathBuf {
    let given = variable("FILCH_DIR").or_else(|| variable("HOME").map(|home| home.join(".filch")));
    given.unwrap_or_else(|| PathBuf::from(".filch"))
}

fn place(variable: impl Fn(&str) -> Option<PathBuf>) -> PathBuf {
    variable("FILCH_ACCESS").unwrap_or_else(|| directory(variable).join("access.json"))
}

fn warn_if_open(path: &Path) {
    if let Ok(found) = fs::metadata(path)
        && found.permissions().mode() & 0o077 != 0
    {
        let mode = format!("{:o}", found.permissions().mode() & 0o777);
        tracing::warn!(path = %path.display(), mode, "others may read the access file and use the cluster; chmod 600 it");
    }
}

/// Writes a file that nobody else may read, whole or not at all.
pub(crate) fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
    name.push(format!(".{:016x}.new", fastrand::u64(..)));
    let beside = directory.join(name);
    let outcome = (|| {
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&beside, path)?;
        fs::File::open(directory)?.sync_all()
    })();
    if outcome.is_err() {
        // What could not be made need not be removed.
        let _ = fs::remove_file(&beside);
    }
    outcome
}

/// Bytes as hexadecimal digits.
#[must_use]
pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes that hexadecimal digits stand for.
#[must_use]
pub fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| Some((digit(pair.first()?)? * 16 + digit(pair.get(1)?)?) as u8)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Access {
        Access {
            addresses: vec!["localhost:7000".to_owned()],
            pin: Some([0xab; 32]),
            token: Bytes::from_static(b"secret"),
        }
    }

    fn problem(text: &str) -> String {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("access.json");
        fs::write(&path, text).unwrap();
        Access::read(&path).unwrap_err().to_string().replace(&*place.path().to_string_lossy(), "DIR")
    }

    #[test]
    fn what_is_written_is_read_and_only_its_owner_may() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("access.json");
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        sample().write(&path).unwrap();
        assert_eq!(Access::read(&path).unwrap(), sample());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let plain = Access { pin: None, ..sample() };
        plain.write(&path).unwrap();
        assert_eq!(Access::read(&path).unwrap(), plain);
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1, "nothing is left beside it");
        assert!(!format!("{:?}", sample()).contains("secret"));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        let missing = Access::read(Path::new("/nowhere/access.json")).unwrap_err().to_string();
        assert!(missing.contains("/nowhere/access.json") && missing.contains("filch serve"), "{missing}");
        let bad = problem("{\"version\": 1,\n  \"token\": }");
        assert!(bad.starts_with("DIR/access.json:2:12: expected value; copy"), "{bad}");
        assert!(problem("{}").contains("missing field `version`"), "{}", problem("{}"));
        let newer = problem("{\"version\": 7, \"places\": 3}");
        assert!(newer.contains("version 7") && newer.contains("up to 1"), "{newer}");
        assert!(problem("{\"version\": 1, \"token\": \"ab\"}").contains("names no address"));
        assert!(problem("{\"version\": 1, \"addresses\": [\"a:1\"], \"token\": \"xy\"}").contains("`token`"));
        let pin = "{\"version\": 1, \"addresses\": [\"a:1\"], \"token\": \"ab\", \"certificate_sha256\": \"abc\"}";
        assert!(problem(pin).contains("64 hexadecimal digits"));
    }

    #[test]
    fn it_cannot_be_written_where_there_is_nothing() {
        let error = sample().write(Path::new("/nowhere/at/all/access.json")).unwrap_err().to_string();
        assert!(error.contains("cannot write the access file"), "{error}");
    }

    #[test]
    fn the_usual_place_follows_the_environment() {
        let with = |known: &'static [(&str, &str)]| {
            place(|name| known.iter().find(|entry| entry.0 == name).map(|entry| PathBuf::from(entry.1)))
        };
        assert_eq!(with(&[("FILCH_ACCESS", "/a"), ("FILCH_DIR", "/d"), ("HOME", "/h")]), Path::new("/a"));
        assert_eq!(with(&[("FILCH_DIR", "/d"), ("HOME", "/h")]), Path::new("/d/access.json"));
        assert_eq!(with(&[("HOME", "/h")]), Path::new("/h/.filch/access.json"));
    }
}
