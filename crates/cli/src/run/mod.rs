//! `filch run`: a job on this machine, with a coordinator and workers of its own.

use std::process::ExitCode;

use serde_json::json;

use crate::job::{JobArgs, Plan, Surroundings};
use crate::live::LiveArgs;
use crate::output;

/// Run commands on this machine, many at once.
///
/// Starts a coordinator and workers, runs one task or very many, shows how it goes and ends when all of them ended. Exits
/// with 0 if all ended well, 1 if some did not, 2 if it was called wrongly, and 130 after Ctrl-C.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  filch run --array 1-200 -- sh -c 'sleep 0.0$((FILCH_TASK % 9)); echo task $FILCH_TASK'
  filch run --each-line urls.txt -- curl -sO {}          one task per line
  filch run gzip -9 ::: *.log                            as in GNU parallel
  filch run --each-json cases.json -- ./test --name {name} --size {size.x}
  filch run --shell --array 1-9 -- 'convert {n}.png {n}.jpg && rm {n}.png'
  filch run --each-line - --joblog done.log --resume -- ./work < list
  filch run --file job.yaml                              a graph of tasks
  filch run --workers 4 --retries 2 --timeout 1m --out results --array 1-100 -- ./flaky {}")]
pub(crate) struct Args {
    #[command(flatten)]
    job: JobArgs,
    #[command(flatten)]
    live: LiveArgs,
    /// Print what would be run, and run nothing.
    #[arg(long, help_heading = "What is shown")]
    dry_run: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let plan = match args.job.plan(&Surroundings::default()) {
        Ok(plan) => plan,
        Err(refusal) => return Ok(refusal.complain()),
    };
    if args.dry_run {
        return dry_run(&plan, args.live.json);
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the commands of a job.
pub(crate) fn dry_run(plan: &Plan, as_json: bool) -> anyhow::Result<ExitCode> {
    let tasks = &plan.tasks;
    let mut text = String::new();
    for index in 0..tasks.len() {
        let position = tasks.position(index);
        let (name, command, after) = (tasks.name(position), tasks.command(position), tasks.after(position));
        if as_json {
            let object = json!({"number": tasks.number(position), "name": name, "command": command, "after": after});
            text += &format!("{object}\n");
        } else {
            match name {
                Some(name) if after.is_empty() => text += &format!("{name}: {command}\n"),
                Some(name) => text += &format!("{name} (after {}): {command}\n", after.join(", ")),
                None => text += &format!("{command}\n"),
            }
        }
        if text.len() > 1 << 16 {
            output::print(&text)?;
            text.clear();
        }
    }
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}
