//! `cargo xtask test`: every check in one command, each stage a cargo command that a person can repeat alone.
//!
//! Never hides a failure behind a later stage: it stops at the first one.

use std::fmt::Write;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use crate::setup::Tool;
use crate::{process, setup};

/// All checks together must stay below this on two cores.
const BUDGET: Duration = Duration::from_secs(25 * 60);

/// One check, cheapest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Stage {
    /// The code is formatted.
    Fmt,
    /// Clippy has nothing to say.
    Clippy,
    /// Unit and integration tests.
    Test,
    /// Mistakes planted on purpose are found by the simulator.
    Planted,
    /// The examples in doc comments.
    Doc,
    /// What compilers do not check.
    Tidy,
    /// A cycle of the scheduler takes no more instructions than it may.
    Instructions,
}

/// What is not on by itself and is tested all the same.
const FEATURES: &str = "filch/worker,filch-bench/cluster";

impl Stage {
    fn name(self) -> &'static str {
        match self {
            Stage::Fmt => "fmt",
            Stage::Clippy => "clippy",
            Stage::Test => "test",
            Stage::Planted => "planted",
            Stage::Doc => "doc",
            Stage::Tidy => "tidy",
            Stage::Instructions => "instructions",
        }
    }

    /// What cargo is told. All but the last use the dev profile, so nothing is built twice for a different setting.
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Stage::Fmt => &["fmt", "--all", "--check"],
            Stage::Clippy => {
                &["clippy", "--workspace", "--features", FEATURES, "--all-targets", "--", "-D", "warnings"]
            }
            // Benchmarks are left to `cargo xtask bench`; clippy has compiled them.
            Stage::Test => &["test", "--workspace", "--features", FEATURES, "--lib", "--bins", "--tests", "--examples"],
            // With a feature of its own, which must not get into what the others test.
            Stage::Planted => &["test", "--package", "filch-sim", "--features", "planted", "--test", "mutants"],
            Stage::Doc => &["test", "--workspace", "--features", FEATURES, "--doc"],
            Stage::Tidy => &["xtask", "tidy"],
            Stage::Instructions => &["run", "--release", "--package", "filch-bench", "--bin", "instructions"],
        }
    }

    fn command(self) -> String {
        format!("cargo {}", self.arguments().join(" "))
    }

    fn tools(self) -> &'static [Tool] {
        match self {
            Stage::Fmt => &[Tool::Rustfmt],
            Stage::Clippy => &[Tool::Clippy],
            Stage::Test => &[Tool::Network],
            Stage::Planted | Stage::Doc | Stage::Tidy => &[],
            Stage::Instructions => &[Tool::Valgrind],
        }
    }
}

/// How one stage went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Passed(Duration),
    Failed(Duration),
    NotRun,
}

/// Runs all stages, or one.
pub(crate) fn run(only: Option<Stage>) -> Result<()> {
    let stages: Vec<Stage> = only.map_or_else(|| Stage::value_variants().to_vec(), |stage| vec![stage]);
    let tools: Vec<Tool> = stages.iter().flat_map(|stage| stage.tools()).copied().collect();
    setup::run(&tools);
    let outcomes = run_until_failure(&stages, |stage| {
        eprintln!("\n== {}: {}", stage.name(), stage.command());
        let status = process::command("cargo").args(stage.arguments()).status().context("cannot start cargo")?;
        Ok(status.success())
    })?;
    eprint!("\n{}", summary(&outcomes));
    match outcomes.iter().find(|(_, outcome)| matches!(outcome, Outcome::Failed(_))) {
        Some((stage, _)) => bail!("{} failed; repeat it with: {}", stage.name(), stage.command()),
        None => Ok(()),
    }
}

fn run_until_failure(stages: &[Stage], mut passes: impl FnMut(Stage) -> Result<bool>) -> Result<Vec<(Stage, Outcome)>> {
    let mut failed = false;
    let mut outcomes = Vec::new();
    for &stage in stages {
        if failed {
            outcomes.push((stage, Outcome::NotRun));
            continue;
        }
        let start = Instant::now();
        let passed = passes(stage)?;
        let time = start.elapsed();
        failed = !passed;
        let word = if passed { "passed" } else { "failed" };
        eprintln!("== {}: {word} in {}", stage.name(), process::duration(time));
        outcomes.push((stage, if passed { Outcome::Passed(time) } else { Outcome::Failed(time) }));
    }
    Ok(outcomes)
}

fn summary(outcomes: &[(Stage, Outcome)]) -> String {
    let mut text = String::from("== summary\n");
    let mut total = Duration::ZERO;
    for (stage, outcome) in outcomes {
        let (word, time) = match *outcome {
            Outcome::Passed(time) => ("passed", time),
            Outcome::Failed(time) => ("FAILED", time),
            Outcome::NotRun => ("not run", Duration::ZERO),
        };
        total += time;
        let time = if *outcome == Outcome::NotRun { String::new() } else { process::duration(time) };
        line(&mut text, stage.name(), word, &time);
    }
    line(&mut text, "total", "", &process::duration(total));
    if total > BUDGET {
        let _ = writeln!(text, "this is above the {} that all checks may take together", process::duration(BUDGET));
    }
    text
}

pub(crate) fn line(text: &mut String, name: &str, word: &str, time: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{}", format!("{name:<14}{word:<9}{time:>12}").trim_end());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_stops_the_run() {
        let mut ran = Vec::new();
        let outcomes = run_until_failure(Stage::value_variants(), |stage| {
            ran.push(stage);
            Ok(stage != Stage::Clippy)
        })
        .unwrap();
        assert_eq!(ran, [Stage::Fmt, Stage::Clippy]);
        assert!(matches!(outcomes[0].1, Outcome::Passed(_)));
        assert!(matches!(outcomes[1].1, Outcome::Failed(_)));
        assert!(outcomes[2..].iter().all(|(_, outcome)| *outcome == Outcome::NotRun));
        assert_eq!(outcomes.len(), 7);
    }

    #[test]
    fn the_summary_shows_every_stage() {
        let second = Duration::from_secs(1);
        let text = summary(&[
            (Stage::Fmt, Outcome::Passed(second)),
            (Stage::Clippy, Outcome::Failed(2 * second)),
            (Stage::Test, Outcome::NotRun),
        ]);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["fmt", "passed", "1.0", "s"]);
        assert_eq!(lines[2], ["clippy", "FAILED", "2.0", "s"]);
        assert_eq!(lines[3], ["test", "not", "run"]);
        assert_eq!(lines[4], ["total", "3.0", "s"]);
        assert_eq!(lines.len(), 5);
    }

    #[test]
    fn a_run_above_the_budget_says_so() {
        let text = summary(&[(Stage::Test, Outcome::Passed(BUDGET + Duration::from_secs(1)))]);
        assert!(text.contains("above the 25 min 00 s"), "{text}");
    }

    #[test]
    fn warnings_are_denied() {
        let command = Stage::Clippy.command();
        assert!(command.starts_with("cargo clippy --workspace ") && command.ends_with(" -- -D warnings"), "{command}");
        // What is off by itself is looked at too.
        assert!(command.contains(FEATURES), "{command}");
    }
}
