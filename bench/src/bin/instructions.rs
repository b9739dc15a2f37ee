//! `cargo xtask bench instructions`: counts the instructions of one cycle under valgrind and compares them with a budget.
//!
//! Times differ from machine to machine and from moment to moment; instructions hardly do, so a regression shows even on
//! a busy machine. Each mix is run twice with different numbers of cycles; the difference is free of everything that is
//! not a cycle. Never measures time.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command line tool talks to its terminal")]

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};
use filch_bench::mix::Mix;
use filch_bench::world::{Unwatched, World};

/// What is counted: a cycle from the central queue, the same with many classes and signatures, bound at submission
/// with steals, and placed at once by a score.
const COUNTED: [Mix; 4] = [Mix::Homogeneous, Mix::Mixed, Mix::Steal, Mix::Sparse];

const WORKERS: u64 = 200;
const QUEUED: u64 = 4_000;
/// Cycles before the difference starts: what is learned and remembered has its final size by then.
const WARM_UP: u64 = 6_000;
const CYCLES: u64 = 4_000;

/// How much more than the budget is no regression yet: other compilers and small changes.
const SLACK: f64 = 0.10;

/// Instructions of one cycle, compared with the budget in bench/instructions.txt.
#[derive(Parser)]
#[command(name = "instructions")]
struct Arguments {
    #[command(subcommand)]
    job: Option<Job>,
    /// Write what was counted as the new budget.
    #[arg(long)]
    update: bool,
}

#[derive(Subcommand)]
enum Job {
    /// Runs that many cycles; what valgrind is given to run.
    #[command(hide = true)]
    Run {
        /// The mix.
        mix: Mix,
        /// Cycles.
        cycles: u64,
    },
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    if let Some(Job::Run { mix, cycles }) = arguments.job {
        run(mix, cycles)?;
        return Ok(ExitCode::SUCCESS);
    }
    if Command::new("valgrind").arg("--version").output().is_err() {
        eprintln!("skipped: valgrind is not installed, so no instructions can be counted");
        return Ok(ExitCode::SUCCESS);
    }
    let mut counts = Vec::new();
    for mix in COUNTED {
        counts.push((mix, per_cycle(mix)?));
    }
    let file = budget_file();
    if arguments.update {
        std::fs::write(&file, written(&counts)).with_context(|| format!("cannot write {}", file.display()))?;
        println!("{} is written", file.display());
        return Ok(ExitCode::SUCCESS);
    }
    let text = std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let mut exceeded = false;
    for (mix, count) in counts {
        let verdict = verdict(mix, count, budget(&text, mix)?);
        exceeded |= verdict.exceeded;
        println!("{}", verdict.line);
    }
    if exceeded {
        eprintln!("a cycle got dearer; if that is worth it: cargo xtask bench instructions --update");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

fn run(mix: Mix, cycles: u64) -> Result<()> {
    let mut world = World::new(mix, WORKERS, QUEUED)?;
    world.fill(&mut Unwatched)?;
    world.start()?;
    world.run(cycles, &mut Unwatched)
}

/// Instructions of one cycle.
fn per_cycle(mix: Mix) -> Result<f64> {
    let (few, many) = (counted(mix, WARM_UP)?, counted(mix, WARM_UP + CYCLES)?);
    Ok(many.saturating_sub(few) as f64 / CYCLES as f64)
}

/// Instructions of a whole run under valgrind.
fn counted(mix: Mix, cycles: u64) -> Result<u64> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let output = Command::new("valgrind")
        .args(["--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"])
        .arg(&program)
        .args(["run", mix.name(), &cycles.to_string()])
        .output()
        .context("cannot start valgrind")?;
    let log = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!("valgrind failed ({}):\n{log}", output.status);
    }
    instructions(&log).with_context(|| format!("valgrind did not say how many instructions ran:\n{log}"))
}

/// The number in a line like `==42== I refs: 1,234`.
fn instructions(log: &str) -> Option<u64> {
    let line = log.lines().find(|line| line.contains("I") && line.contains("refs:"))?;
    let digits: String = line.rsplit(':').next()?.chars().filter(char::is_ascii_digit).collect();
    digits.parse().ok()
}

fn budget_file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("instructions.txt")
}

fn written(counts: &[(Mix, f64)]) -> String {
    let mut text = String::from(
        "# Instructions of one cycle, by mix. Written by `cargo xtask bench instructions --update`; see docs/benchmarks.md.\n",
    );
    for (mix, count) in counts {
        text.push_str(&format!("{} {count:.0}\n", mix.name()));
    }
    text
}

fn budget(text: &str, mix: Mix) -> Result<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(mix.name())?.strip_prefix(' '));
    let line = line.with_context(|| format!("the budget has no line for {}", mix.name()))?;
    line.trim().parse().with_context(|| format!("the budget of {} is not a number: {line}", mix.name()))
}

struct Verdict {
    line: String,
    exceeded: bool,
}

fn verdict(mix: Mix, count: f64, budget: f64) -> Verdict {
    let change = count / budget - 1.0;
    let exceeded = change > SLACK;
    let word = if exceeded {
        "TOO MANY"
    } else if change < -SLACK {
        "fewer; lower the budget with --update"
    } else {
        "within the budget"
    };
    let percent = 100.0 * change;
    let line =
        format!("{:<12} {count:>8.0} instructions per cycle, budget {budget:.0} ({percent:+.1} %): {word}", mix.name());
    Verdict { line, exceeded }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_well_formed() {
        use clap::CommandFactory;
        Arguments::command().debug_assert();
    }

    #[test]
    fn the_count_is_found_in_the_log() {
        assert_eq!(instructions("==7== Cachegrind\n==7== \n==7== I refs:        12,345,678\n"), Some(12_345_678));
        assert_eq!(instructions("==7== I   refs:      5\n"), Some(5));
        assert_eq!(instructions("==7== nothing\n"), None);
    }

    #[test]
    fn the_committed_budget_has_every_mix() {
        let text = std::fs::read_to_string(budget_file()).unwrap();
        for mix in COUNTED {
            assert!(budget(&text, mix).unwrap() > 0.0, "{mix:?}");
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        let text = written(&[(Mix::Push, 10.0), (Mix::PushOwnClass, 20.4)]);
        assert_eq!(budget(&text, Mix::Push).unwrap(), 10.0);
        assert_eq!(budget(&text, Mix::PushOwnClass).unwrap(), 20.0);
        assert!(budget(&text, Mix::Mixed).is_err());
        assert!(budget("mixed many", Mix::Mixed).is_err());
    }

    #[test]
    fn only_more_than_the_slack_is_too_many() {
        assert!(!verdict(Mix::Mixed, 1099.0, 1000.0).exceeded);
        assert!(verdict(Mix::Mixed, 1101.0, 1000.0).exceeded);
        assert!(verdict(Mix::Mixed, 800.0, 1000.0).line.contains("--update"));
    }
}
