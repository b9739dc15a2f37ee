//! A process that outlives the one it guards by a moment: if that one is killed, what it ran is killed too.
//!
//! A process that gets SIGKILL cannot clean up behind itself, and its commands would go on, while others are told to run
//! the same. The guard waits at a pipe whose other end nobody but the guarded process has. If that closes without a
//! farewell, it ends whoever has the mark of that life in its environment and is in the same session. So nothing has to be
//! written down for each command. Whoever has left the session (`setsid`) or has dropped its environment is not found: as
//! when a command ends by itself. Only where there is `/proc`; elsewhere there is no guard.

use std::io::{self, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// The variable in the environment of commands that says whose they are.
pub const MARK: &str = "FILCH_LIFE";
/// What a guarded process says when it ends by itself.
const FAREWELL: &[u8] = b"farewell";
/// How often it looks again for those that were just being started.
const ROUNDS: u32 = 50;

/// A guard for this process. Dropping it says farewell.
#[derive(Debug)]
pub struct Guard {
    life: String,
    process: Child,
}

impl Guard {
    /// Starts one: `program` followed by the mark, and `place` if there is one, must call [`stand`] with them.
    ///
    /// # Errors
    /// If the program cannot be started, or this system tells too little about processes.
    pub fn start(mut program: Command, place: Option<&Path>) -> io::Result<Guard> {
        if !Path::new("/proc/self/environ").exists() {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "there is no /proc here"));
        }
        let life = format!("{}-{:016x}", std::process::id(), fastrand::u64(..));
        // In a group of its own: what is pressed on the keyboard is not for it.
        program.arg(&life).args(place).process_group(0);
        let process = program.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        Ok(Guard { life, process })
    }

    /// What commands must have as [`MARK`] in their environment to be found.
    #[must_use]
    pub fn life(&self) -> &str {
        &self.life
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(mut pipe) = self.process.stdin.take() {
            // A guard that is gone needs none.
            let _ = pipe.write_all(FAREWELL);
        }
        let _ = self.process.wait();
    }
}

/// Guards a life until it ends, then cleans up behind it if it said no farewell: ends what it ran, and removes the directory
/// that was its own.
pub fn stand(life: &str, place: Option<&Path>) {
    let mut said = Vec::new();
    let heard = io::stdin().lock().read_to_end(&mut said);
    if heard.is_ok() && said == FAREWELL {
        return;
    }
    let mark = format!("{MARK}={life}").into_bytes();
    for _ in 0..ROUNDS {
        if end_all(&mark) == 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    if let Some(place) = place {
        // What cannot be removed stays: there is nobody to tell.
        let _ = std::fs::remove_dir_all(place);
    }
}

/// Kills all that have the mark in their environment and are of this session; how many there were.
fn end_all(mark: &[u8]) -> usize {
    let Ok(processes) = std::fs::read_dir("/proc") else { return 0 };
    let Some(session) = session_of(Path::new("/proc/self")) else { return 0 };
    let mut found = 0;
    for process in processes.flatten() {
        let pid = process.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw);
        let Some(pid) = pid else { continue };
        // Those of others cannot be read, and those that are over have none.
        let Ok(environment) = std::fs::read(process.path().join("environ")) else { continue };
        let is_marked = environment.split(|byte| *byte == 0).any(|variable| variable == mark);
        if is_marked && session_of(&process.path()) == Some(session) && kill_process(pid, Signal::KILL).is_ok() {
            found += 1;
        }
    }
    found
}

/// The session of a process, by its directory in `/proc`.
///
/// Not `getsid`, whose answer must be the number of a process for `rustix`. It is 0 for whoever has the session of the
/// first process of a machine or container, or one whose leader is outside of the container.
fn session_of(process: &Path) -> Option<u32> {
    session_in(&std::fs::read_to_string(process.join("stat")).ok()?)
}

/// The sixth word of `stat`. The second, the name, stands in parentheses and may have some itself, and spaces.
fn session_in(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::session_in;

    #[test]
    fn the_session_is_found_behind_any_name() {
        assert_eq!(session_in("71 (sh) S 70 71 65 0 -1 4194304"), Some(65));
        assert_eq!(session_in("71 (a) S 1 2 3 (b) R 70 71 0 34816"), Some(0));
        assert_eq!(session_in("71 (sh"), None);
        assert_eq!(session_in("71 (sh) S 70"), None);
    }
}
