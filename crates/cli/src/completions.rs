//! `filch completions`: the script that teaches a shell to complete filch's arguments.

use std::process::ExitCode;

use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::{Cli, output};

/// Print the completion script of a shell.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  filch completions bash > ~/.local/share/bash-completion/completions/filch
  filch completions zsh > ~/.zfunc/_filch
  filch completions fish > ~/.config/fish/completions/filch.fish")]
pub(crate) struct Args {
    /// The shell to complete in.
    shell: Shell,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "filch", &mut script);
    output::print(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::SUCCESS)
}
