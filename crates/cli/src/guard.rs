//! The guard beside a process that runs commands: this program once more, which ends what is left behind if that one is killed.

use std::path::Path;
use std::process::{Command, ExitCode};

use filch_node::exec::{self, Guard};

use crate::output;

/// What this program is called with to be a guard; the mark of the life it guards follows. No option for people.
const STAND_GUARD: &str = "--stand-guard";

/// Guards somebody, if that is what this process was started for.
pub(crate) fn stand() -> Option<ExitCode> {
    // Directories, and what others are called with, need not be text.
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != STAND_GUARD {
        return None;
    }
    let life = arguments.next()?.into_string().ok()?;
    exec::stand(&life, arguments.next().as_deref().map(Path::new));
    Some(ExitCode::SUCCESS)
}

/// Starts a guard for this process, and for a directory that is to go with it. Without one everything works, but for what is
/// left behind by SIGKILL.
pub(crate) fn start(place: Option<&Path>) -> Option<Guard> {
    let started = std::env::current_exe().and_then(|program| {
        let mut again = Command::new(program);
        again.arg(STAND_GUARD);
        Guard::start(again, place)
    });
    match started {
        Ok(guard) => Some(guard),
        Err(error) if error.kind() == std::io::ErrorKind::Unsupported => None,
        Err(error) => {
            output::note(&format!("commands would outlive this process if it were killed: no guard: {error}"));
            None
        }
    }
}
