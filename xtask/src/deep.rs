//! `cargo xtask test --deep`: the checks that look at every interleaving of the pool, at its memory and at its races.
//!
//! A check whose tool cannot be had is named as not run, with the reason; it never counts as passed.

use std::fmt::Write;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::setup::Tool;
use crate::{process, setup, test};

/// One way to look deeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Check {
    /// Every interleaving and every allowed reordering of the protocols, at small sizes.
    Loom,
    /// Random schedules of whole pools.
    Shuttle,
    /// What must not compile fails with the error it should: only a nightly compiler compares their codes.
    Refusals,
    /// Undefined behaviour, leaks and races, in an interpreter, at small sizes.
    Miri,
    /// Races, on the machine, with a standard library that is instrumented too.
    ThreadSanitizer,
}

const CHECKS: [Check; 5] = [Check::Loom, Check::Shuttle, Check::Refusals, Check::Miri, Check::ThreadSanitizer];

#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    Passed(Duration),
    Failed(Duration),
    NotRun(String),
}

impl Check {
    fn name(self) -> &'static str {
        match self {
            Check::Loom => "loom",
            Check::Shuttle => "shuttle",
            Check::Refusals => "refusals",
            Check::Miri => "miri",
            Check::ThreadSanitizer => "tsan",
        }
    }

    fn tools(self) -> &'static [Tool] {
        match self {
            Check::Loom | Check::Shuttle => &[],
            Check::Miri => &[Tool::Miri, Tool::RustSource],
            Check::Refusals | Check::ThreadSanitizer => &[Tool::RustSource],
        }
    }

    /// The shell line. Each has its own target directory, because each compiles everything in its own way.
    fn line(self, host: &str) -> String {
        match self {
            Check::Loom => "RUSTFLAGS='--cfg loom -C debug-assertions=on' \
                            cargo test -p filch-pool --lib --release --target-dir target/loom"
                .to_owned(),
            Check::Shuttle => "RUSTFLAGS='--cfg shuttle' \
                               cargo test -p filch-pool --test shuttle --target-dir target/shuttle"
                .to_owned(),
            Check::Refusals => "cargo +nightly test -p filch-pool --doc --target-dir target/nightly".to_owned(),
            Check::Miri => {
                "MIRIFLAGS=-Zmiri-isolation-error=hide cargo +nightly miri test -p filch-pool --lib --tests --target-dir target/miri -- --test-threads=1"
                    .to_owned()
            }
            Check::ThreadSanitizer => format!(
                "RUSTFLAGS='-Zsanitizer=thread --cfg tsan' TSAN_OPTIONS='halt_on_error=1' \
                 cargo +nightly test -Zbuild-std -p filch-pool --lib --tests --target {host} --target-dir target/tsan"
            ),
        }
    }
}

/// Runs every check that can be run.
pub(crate) fn run() -> Result<()> {
    let tools: Vec<Tool> = CHECKS.iter().flat_map(|check| check.tools()).copied().collect();
    setup::run(&tools);
    let host = host().unwrap_or_default();
    let mut outcomes = Vec::new();
    for check in CHECKS {
        outcomes.push((check, look(check, &host)?));
    }
    eprint!("\n{}", summary(&outcomes));
    match outcomes.iter().find(|(_, outcome)| matches!(outcome, Outcome::Failed(_))) {
        Some((check, _)) => bail!("{} failed; repeat it with: {}", check.name(), check.line(&host)),
        None => Ok(()),
    }
}

fn look(check: Check, host: &str) -> Result<Outcome> {
    if let Some(tool) = check.tools().iter().find(|tool| !tool.is_there()) {
        return Ok(Outcome::NotRun(tool.absence().to_owned()));
    }
    let line = check.line(host);
    eprintln!("\n== {}: {line}", check.name());
    let start = Instant::now();
    let status = process::command("sh").args(["-c", &line]).status().context("cannot start sh")?;
    let time = start.elapsed();
    Ok(if status.success() { Outcome::Passed(time) } else { Outcome::Failed(time) })
}

/// The platform the nightly compiler builds for by itself.
fn host() -> Option<String> {
    let output = process::command("rustc").args(["+nightly", "-vV"]).stderr(Stdio::null()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    text.lines().find_map(|line| line.strip_prefix("host: ")).map(str::to_owned)
}

fn summary(outcomes: &[(Check, Outcome)]) -> String {
    let mut text = String::from("== summary\n");
    for (check, outcome) in outcomes {
        match outcome {
            Outcome::Passed(time) => test::line(&mut text, check.name(), "passed", &process::duration(*time)),
            Outcome::Failed(time) => test::line(&mut text, check.name(), "FAILED", &process::duration(*time)),
            Outcome::NotRun(why) => {
                // Writing to a string cannot fail.
                let _ = writeln!(text, "{:<14}NOT RUN  {why}", check.name());
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_run_says_why_and_is_not_passed() {
        let text = summary(&[
            (Check::Loom, Outcome::Passed(Duration::from_secs(1))),
            (Check::Miri, Outcome::NotRun(Tool::Miri.absence().to_owned())),
            (Check::ThreadSanitizer, Outcome::Failed(Duration::from_secs(2))),
        ]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1].split_whitespace().collect::<Vec<_>>(), ["loom", "passed", "1.0", "s"]);
        assert!(lines[2].contains("NOT RUN") && lines[2].contains("nightly"), "{text}");
        assert!(lines[3].contains("FAILED"));
    }

    #[test]
    fn the_sanitizer_gets_an_instrumented_standard_library() {
        let line = Check::ThreadSanitizer.line("x86_64-unknown-linux-gnu");
        assert!(line.contains("-Zbuild-std") && line.contains("--target x86_64-unknown-linux-gnu"), "{line}");
        assert!(!line.contains("suppressions"), "{line}");
    }
}
