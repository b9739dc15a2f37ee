//! Runs commands: starts them fast, captures what they say, stops all of what they started, and tells how they ended.
//!
//! Every command gets a process group of its own, so that stopping it stops its children too. Standard output and error
//! are captured up to a limit, beginning and end, and shown to a subscriber as they come. A timeout, like
//! [`Running::stop`], asks with SIGTERM and insists with SIGKILL when the grace is over. The command is over when its
//! first process is; what is left of its group then is killed. Exit code, signal, processor time and peak memory come
//! from the system's own account of the process.
//!
//! **One thread per slot.** Each running command has a thread that waits in one `poll` for its output, its end (a pidfd),
//! its deadline and its cancellation. Starting a process takes the time of a whole core (the starting thread is suspended
//! until the new program is loaded), so as many threads are needed as processes start at once, and one thread that waits
//! for all of them would only add a switch to another thread to each. `tests/measure.rs` compares it with a bare loop that
//! starts `/bin/true` from two threads and captures nothing. In seven pairs on a busy two-core machine it had 0.92 to 1.05
//! of the loop's rate, 1.00 in the median. Waiting for the ends of the pipes as well as for the end of the process, which
//! wakes a thread twice, had 0.89 to 1.03, median 0.92, so the two overlap. Tokio's driver of processes (pidfds and epoll,
//! two threads), tried once with a program that is not kept, had 0.81 to 1.23 in five pairs, median 0.84. Threads are
//! started when there is something to run and end with the [`Executor`].
//!
//! Never uses `pre_exec` or anything else that would make the standard library leave the path over `posix_spawn`: limits
//! are set by a shell in front of the command instead. So it can neither catch processes that leave their group
//! (`setsid`) nor let commands die with a worker that is killed by SIGKILL; the [`Guard`] does that from outside. Never decides whether a command is tried again.

mod capture;
mod executor;
mod guard;
mod memory;
mod pages;
mod process;

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

pub use capture::Captured;
pub use executor::{Executor, Running};
pub use guard::{Guard, MARK, stand};
pub use pages::{begin_without_large_pages, without_large_pages};

/// What to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Program {
    /// A program, looked up in PATH if it has no slash, and its arguments.
    Argv {
        /// The program.
        program: OsString,
        /// What follows it.
        arguments: Vec<OsString>,
    },
    /// A script for `/bin/sh`.
    Shell(OsString),
}

/// What the system is asked to enforce. Limits hold for every process of the command by itself, from its first instruction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of private memory that can be written (RLIMIT_DATA). Allocations beyond it fail.
    pub memory: Option<u64>,
    /// Processor time, rounded up to seconds (RLIMIT_CPU). SIGXCPU ends what goes beyond it, and SIGKILL a second later.
    pub cpu_time: Option<Duration>,
}

/// A command and how to run it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// What to run.
    pub program: Program,
    /// What it reads from standard input.
    pub stdin: Vec<u8>,
    /// Variables added to the environment of this process, or in place of those there.
    pub env: Vec<(OsString, OsString)>,
    /// Whether the environment has nothing but `env`.
    pub env_clear: bool,
    /// Where it runs; here, if nothing is said.
    pub cwd: Option<PathBuf>,
    /// How long it may take.
    pub timeout: Option<Duration>,
    /// How long it has after SIGTERM until SIGKILL.
    pub grace: Duration,
    /// What the system enforces.
    pub limits: Limits,
    /// How many bytes of standard output are kept, and how many of standard error: half of them from the beginning and half
    /// from the end.
    pub keep: usize,
}

impl Command {
    /// A program with arguments.
    pub fn argv(program: impl Into<OsString>, arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Command {
        let arguments = arguments.into_iter().map(Into::into).collect();
        Command::of(Program::Argv { program: program.into(), arguments })
    }

    /// A script for `/bin/sh`.
    pub fn shell(script: impl Into<OsString>) -> Command {
        Command::of(Program::Shell(script.into()))
    }

    fn of(program: Program) -> Command {
        Command {
            program,
            stdin: Vec::new(),
            env: Vec::new(),
            env_clear: false,
            cwd: None,
            timeout: None,
            grace: Duration::from_secs(5),
            limits: Limits::default(),
            keep: 64 << 10,
        }
    }
}

/// One of the two streams that are captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// With this exit code.
    Exited(i32),
    /// By this signal.
    Signalled(i32),
}

/// Why a command was stopped from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// Its time was over.
    Timeout,
    /// Somebody asked for it.
    Cancelled,
}

/// How a command ended and what it took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// How its first process ended.
    pub end: End,
    /// Whether it was stopped. It may have ended by itself all the same, between the decision and the signal.
    pub stopped: Option<Stopped>,
    /// What it wrote to standard output.
    pub stdout: Captured,
    /// What it wrote to standard error.
    pub stderr: Captured,
    /// From its start to its end.
    pub wall: Duration,
    /// Processor time in its own code, with the children it waited for.
    pub cpu_user: Duration,
    /// Processor time in the system for it, likewise.
    pub cpu_system: Duration,
    /// The most memory that it, or one of the children it waited for, had at once, in bytes.
    pub peak_memory: u64,
    /// Whether that is its own. Otherwise it is an upper bound: the system counts what this process had when it started the
    /// command, and the command had less.
    pub peak_memory_exact: bool,
}

impl Outcome {
    /// Whether it ended by itself and with exit code 0.
    #[must_use]
    pub fn succeeded(&self) -> bool {
        self.end == End::Exited(0) && self.stopped.is_none()
    }
}

/// Why a command did not even start, or could not be followed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The system did not start it.
    #[error("cannot start {}: {source}", .program.display())]
    Start {
        /// Which program.
        program: OsString,
        /// What the system said.
        source: io::Error,
    },
    /// It was cancelled before it started.
    #[error("cancelled before it started")]
    Cancelled,
    /// The directory to run in cannot be used.
    #[error("cannot run in {}: {source}", .cwd.display())]
    Directory {
        /// Which directory.
        cwd: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The system did not tell how it is going. It was killed.
    #[error("lost sight of {}, which was killed: {source}", .program.display())]
    Lost {
        /// Which program.
        program: OsString,
        /// What the system said.
        source: io::Error,
    },
}

/// Sees output as it comes, on the thread that follows the command. What it does not return from keeps the command's output
/// waiting.
pub type Watch = Box<dyn FnMut(Stream, &[u8]) + Send>;

/// Is told how a command ended, on the thread that followed it. Must not panic: that ends the thread.
pub type Done = Box<dyn FnOnce(Result<Outcome, Error>) + Send>;
