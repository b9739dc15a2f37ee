//! Repository chores: `cargo xtask test | tidy | bench | mutants`.
//!
//! Never part of what users install, and never decides anything about scheduling.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command line tool talks to its terminal")]

mod bench;
mod deep;
mod generated;
mod mutants;
mod process;
mod setup;
mod test;
mod tidy;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "xtask", bin_name = "cargo xtask", about = "Repository chores")]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Set up what is missing, then run every check: fmt, clippy, test, doc, tidy, instructions.
    Test {
        /// Run this stage alone.
        #[arg(long, value_name = "STAGE")]
        only: Option<test::Stage>,
        /// Look deeper into the pool instead: loom, shuttle, Miri, ThreadSanitizer. Takes 25 minutes.
        #[arg(long, conflicts_with = "only")]
        deep: bool,
    },
    /// Check what compilers do not: module docs, file sizes, links, fresh references, the README's commands.
    Tidy {
        /// Regenerate the generated references first.
        #[arg(long)]
        fix: bool,
    },
    /// Weaken each memory ordering of the pool in a copy and see which loom model notices. Takes half an hour.
    Mutants {
        /// Only this file, such as `ring.rs`.
        file: Option<String>,
    },
    /// Run a benchmark by name with its own arguments; without a name, list them.
    Bench {
        /// The benchmark: a binary of the package `filch-bench`.
        name: Option<String>,
        /// Handed to the benchmark as they stand.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().chore {
        Chore::Test { deep: true, .. } => deep::run(),
        Chore::Test { only, .. } => test::run(only),
        Chore::Tidy { fix } => tidy::run(fix),
        Chore::Mutants { file } => mutants::run(file.as_deref()),
        Chore::Bench { name, arguments } => bench::run(name.as_deref(), &arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn arguments_are_well_formed() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn a_benchmark_gets_its_flags_untouched() {
        let parsed = Arguments::try_parse_from(["xtask", "bench", "core", "--json", "--help"]).unwrap();
        let Chore::Bench { name, arguments } = parsed.chore else { panic!("not a bench chore") };
        assert_eq!(name.as_deref(), Some("core"));
        assert_eq!(arguments, ["--json", "--help"]);
    }
}
