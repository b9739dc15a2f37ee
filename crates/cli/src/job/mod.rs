//! What `run`, `submit` and `spawn` share: from options and files to a submission, and what each of its tasks is called.
//!
//! Reads files and this process's surroundings; sends nothing.

mod amounts;
mod args;
mod command;
mod file;
mod graph;
mod inputs;
pub(crate) mod joblog;
mod plan;
mod terms;

use std::fmt;
use std::path::Path;
use std::process::ExitCode;

use filch_core::config::ConfigErrors;

pub(crate) use amounts::{Lasting, Resource, Size};
pub(crate) use args::{JobArgs, Surroundings};
pub(crate) use command::one_line;
pub(crate) use plan::{Plan, Tasks};

use crate::output;

/// What is wrong with how a command was called, and the next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Usage {
    message: String,
    help: Option<String>,
    /// Nothing is wrong, there is only nothing to do.
    idle: bool,
}

impl Usage {
    pub(crate) fn new(message: impl Into<String>) -> Usage {
        Usage { message: message.into(), help: None, idle: false }
    }

    /// A file was named that cannot be written at all.
    pub(crate) fn unwritable(path: &Path, error: &std::io::Error) -> Usage {
        Usage::new(format!("cannot write `{}`: {error}", path.display()))
            .help("name a file in a directory that exists and that you may write to")
    }

    /// There is nothing to do, and that is nobody's mistake: what comes through a pipe may be empty.
    pub(crate) fn nothing(message: impl Into<String>) -> Usage {
        Usage { idle: true, ..Usage::new(message) }
    }

    pub(crate) fn help(mut self, help: impl Into<String>) -> Usage {
        self.help = Some(help.into());
        self
    }

    /// Says it, and what to exit with.
    pub(crate) fn complain(&self) -> ExitCode {
        if self.idle {
            output::note(&self.message);
            return ExitCode::SUCCESS;
        }
        output::error_lines(&self.message, self.help.as_deref());
        ExitCode::from(2)
    }
}

impl std::error::Error for Usage {}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Why there is no job.
#[derive(Debug)]
pub(crate) enum Refusal {
    Usage(Usage),
    /// A job file is wrong.
    File(ConfigErrors),
}

impl From<Usage> for Refusal {
    fn from(usage: Usage) -> Refusal {
        Refusal::Usage(usage)
    }
}

impl Refusal {
    /// Says it, and what to exit with.
    pub(crate) fn complain(&self) -> ExitCode {
        match self {
            Refusal::Usage(usage) => usage.complain(),
            Refusal::File(errors) => {
                output::config_errors(errors);
                ExitCode::from(2)
            }
        }
    }
}
