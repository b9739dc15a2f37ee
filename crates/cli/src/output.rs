//! Writing to the terminal: colour only where it is seen, and no panic when the reader goes away.

use std::io::{self, Write as _};

use anstyle::{AnsiColor, Style};
use filch_core::config::{ConfigErrors, Palette, printable};

const ERROR: Style = AnsiColor::Red.on_default().bold();
const WARNING: Style = AnsiColor::Yellow.on_default().bold();
const PLACE: Style = Style::new().bold();
const MARGIN: Style = AnsiColor::Cyan.on_default();

/// Writes to standard output.
///
/// # Errors
/// When nobody reads it any more, or the disk behind it is full.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut out = anstream::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| unwritten("to standard output", &error))
}

/// Why something could not be written, with what it is. Of the same kind, so that a reader who went away is still told apart.
pub(crate) fn unwritten(what: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot write {what}: {error}"))
}

/// Columns of the terminal that standard output goes to, if it goes to one.
pub(crate) fn width() -> Option<u16> {
    let terminal = console::Term::stdout();
    terminal.is_term().then(|| terminal.size_checked()).flatten().map(|(_, columns)| columns)
}

/// Writes `error: …` to standard error, with a line of help if there is one. What it quotes cannot command the terminal.
pub(crate) fn error(message: &str, help: Option<&str>) {
    let (message, help) = (printable(message), help.map(printable));
    let help = help.map(|help| format!("{MARGIN}      help:{MARGIN:#} {help}\n")).unwrap_or_default();
    complain(&format!("{ERROR}error:{ERROR:#} {message}\n{help}"));
}

/// The same of a message of several lines.
pub(crate) fn error_lines(message: &str, help: Option<&str>) {
    let lines: Vec<String> = message.lines().map(printable).collect();
    let help = help.map(|help| format!("{MARGIN}      help:{MARGIN:#} {}\n", printable(help))).unwrap_or_default();
    complain(&format!("{ERROR}error:{ERROR:#} {}\n{help}", lines.join("\n")));
}

/// Writes `warning: …` to standard error.
pub(crate) fn warning(message: &str) {
    complain(&format!("{WARNING}warning:{WARNING:#} {}\n", printable(message)));
}

/// Writes a line about how things go to standard error.
pub(crate) fn note(message: &str) {
    complain(&format!("{}\n", printable(message)));
}

/// Writes lines that are fit for a terminal to standard error.
pub(crate) fn report(text: &str) {
    complain(text);
}

/// Writes the problems of a configuration to standard error.
pub(crate) fn config_errors(errors: &ConfigErrors) {
    let [error, place, margin] = [ERROR, PLACE, MARGIN].map(|style| style.render().to_string());
    let reset = ERROR.render_reset().to_string();
    complain(&errors.render(&Palette { error: &error, place: &place, margin: &margin, reset: &reset }));
}

/// Lets the libraries tell what happens, on standard error: who comes and goes and what goes wrong, or as much as FILCH_LOG says (error, warn, info, debug
/// or trace).
pub(crate) fn log_to_stderr() {
    let level = std::env::var("FILCH_LOG").ok().and_then(|level| level.parse().ok());
    let level = level.unwrap_or(tracing_subscriber::filter::LevelFilter::INFO);
    let colour = console::Term::stderr().is_term();
    let set = tracing_subscriber::fmt().with_max_level(level).with_writer(io::stderr).with_ansi(colour);
    // Somebody who has set another one before keeps it.
    let _ = set.try_init();
}

fn complain(text: &str) {
    // Nothing is left to do when even standard error is closed; the exit status still tells.
    let _ = anstream::stderr().lock().write_all(text.as_bytes());
}

/// Whether the cause is that nobody reads the output any more.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let broken = |cause: &io::Error| cause.kind() == io::ErrorKind::BrokenPipe;
    error.chain().any(|cause| cause.downcast_ref::<io::Error>().is_some_and(broken))
}
