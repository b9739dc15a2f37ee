//! The `filch` command: arguments in, output and an exit status out. Everything else lives in the libraries.
//!
//! Each subcommand is a module with its arguments and a `run`; it returns what to exit with and never exits itself.

mod cluster;
mod completions;
mod config_command;
mod demo;
mod guard;
mod help;
mod interrupt;
mod job;
mod live;
mod machine;
mod man;
mod output;
mod packing;
mod run;
mod runtime;
mod settings;
mod sim_command;

use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use mimalloc::MiMalloc;

use crate::job::Usage;

/// Large tables in large pages: with very many workers and tasks, finding where a page of memory is costs as much as
/// reading it.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// One work-stealing scheduler, from threads to clusters.
#[derive(Debug, Parser)]
#[command(name = "filch", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(Box<run::Args>),
    Serve(cluster::serve::Args),
    Worker(Box<cluster::worker_command::Args>),
    Submit(Box<cluster::submit::Args>),
    Job(cluster::job_command::Args),
    Task(cluster::task_command::Args),
    Stats(cluster::stats::Args),
    Trace(cluster::trace_command::Args),
    Spawn(Box<cluster::submit::SpawnArgs>),
    Demo(demo::Args),
    Sim(sim_command::Args),
    Config(config_command::Args),
    Completions(completions::Args),
    Man(man::Args),
}

/// The arguments; where they are wrong, or help is asked for, this says so and exits.
fn arguments() -> Cli {
    let matches = help::literal(Cli::command()).get_matches();
    Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.format(&mut Cli::command()).exit())
}

fn main() -> ExitCode {
    if let Some(status) = guard::stand() {
        return status;
    }
    let result = match arguments().command {
        Command::Run(args) => run::run(&args),
        Command::Serve(args) => cluster::serve::run(&args),
        Command::Worker(args) => cluster::worker_command::run(&args),
        Command::Submit(args) => cluster::submit::run(&args),
        Command::Job(args) => cluster::job_command::run(&args),
        Command::Task(args) => cluster::task_command::run(&args),
        Command::Stats(args) => cluster::stats::run(&args),
        Command::Trace(args) => cluster::trace_command::run(&args),
        Command::Spawn(args) => cluster::submit::spawn(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Sim(args) => sim_command::run(&args),
        Command::Config(args) => config_command::run(args),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
    };
    match result {
        Ok(status) => status,
        // The reader of our output, such as `head`, has seen enough; that is no failure.
        Err(error) if output::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => match error.downcast_ref::<Usage>() {
            Some(usage) => usage.complain(),
            None => {
                output::error(&with_causes(&error), None);
                ExitCode::FAILURE
            }
        },
    }
}

/// An error with what caused it, each said once: some say themselves what caused them.
fn with_causes(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}
