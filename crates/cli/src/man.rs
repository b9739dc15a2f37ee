//! `filch man`: the manual pages of all commands.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::CommandFactory as _;

use crate::{Cli, output};

/// Write the manual pages of all commands to a directory.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  filch man ~/.local/share/man/man1
  man filch-run")]
pub(crate) struct Args {
    /// The directory; it is made if it is not there.
    #[arg(value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    directory: PathBuf,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let words = || format!("cannot write manual pages to `{}`", args.directory.display());
    std::fs::create_dir_all(&args.directory).with_context(words)?;
    clap_mangen::generate_to(Cli::command(), &args.directory).with_context(words)?;
    output::note(&format!("manual pages are in {}", args.directory.display()));
    Ok(ExitCode::SUCCESS)
}
