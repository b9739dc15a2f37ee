//! Help in which placeholders stand as they are written.
//!
//! clap takes the three characters `{n}` for the end of a line, in every help text, and knows no way to escape them.

use clap::builder::StyledStr;
use clap::{Arg, Command};

/// The same command, with help that shows `{n}`.
pub(crate) fn literal(command: Command) -> Command {
    let mut command = command.mut_args(literal_argument).mut_subcommands(literal);
    if let Some(text) = command.get_about().map(apart) {
        command = command.about(text);
    }
    if let Some(text) = command.get_long_about().map(apart) {
        command = command.long_about(text);
    }
    if let Some(text) = command.get_after_help().map(apart) {
        command = command.after_help(text);
    }
    command
}

fn literal_argument(mut argument: Arg) -> Arg {
    if let Some(text) = argument.get_help().map(apart) {
        argument = argument.help(text);
    }
    if let Some(text) = argument.get_long_help().map(apart) {
        argument = argument.long_help(text);
    }
    argument
}

/// The characters with an empty style between them: it takes no room, and is gone where there are no colours.
fn apart(text: &StyledStr) -> StyledStr {
    StyledStr::from(text.ansi().to_string().replace("{n}", "{\u{1b}[0mn}"))
}
