//! `filch trace`: a job that was run, as a file that `filch sim run` plays again.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Subcommand;
use filch_node::view::{JobView, Query, TaskView, WorkerView};
use serde_json::{Value, json};

use super::Reach;
use crate::{output, runtime};

/// Export jobs for the simulator.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  filch trace export 12 --output job.jsonl
  filch sim run job.jsonl --policy round_robin")]
pub(crate) struct Args {
    #[command(flatten)]
    reach: Reach,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Write a job as `filch trace v1`: when its tasks came, how long they ran, and the workers that are there now.
    Export {
        /// The number of the job.
        job: u64,
        /// The file; standard output if nothing is said.
        #[arg(long, short = 'o', value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
        output: Option<PathBuf>,
    },
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let Command::Export { job, output } = &args.command;
    runtime::ask(async {
        let client = args.reach.client().await?;
        let view: JobView = client.query(&Query::Job { job: *job }).await?;
        let tasks: Vec<Value> = client.query(&Query::Trace { job: *job }).await?;
        let workers: Vec<WorkerView> = client.query(&Query::Workers).await?;
        let left_out = match output {
            Some(path) => {
                let words = || format!("cannot write `{}`", path.display());
                let mut file = BufWriter::new(File::create(path).with_context(words)?);
                let left_out = write(&mut file, &view, &tasks, &workers).with_context(words)?;
                file.flush().with_context(words)?;
                left_out
            }
            None => {
                let mut text = Vec::new();
                let left_out = write(&mut text, &view, &tasks, &workers)?;
                output::print(&String::from_utf8_lossy(&text))?;
                left_out
            }
        };
        if left_out > 0 {
            output::warning(&format!("{left_out} of {} tasks have not ended and are left out", view.tasks));
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Writes the lines; how many tasks have no duration and are left out.
fn write(out: &mut impl Write, job: &JobView, tasks: &[Value], workers: &[WorkerView]) -> anyhow::Result<usize> {
    writeln!(out, "{}", header(job, workers))?;
    let mut left_out = 0;
    for told in tasks {
        let task: TaskView = serde_json::from_value(told.clone())?;
        let Some(ran_s) = task.ran_s.filter(|_| task.ended_s.is_some() || task.exit_code.is_some()) else {
            left_out += 1;
            continue;
        };
        let kind = if job.name.is_empty() { "task" } else { &job.name };
        let mut line = json!({"id": id(&task), "kind": kind, "at": 0, "run": ran_s});
        for key in ["deps", "needs", "estimate"] {
            if let Some(value) = told.get(key).filter(|value| !value.is_null()) {
                line[key] = value.clone();
            }
        }
        writeln!(out, "{line}")?;
    }
    Ok(left_out)
}

fn id(task: &TaskView) -> String {
    task.name.clone().unwrap_or_else(|| task.number.to_string())
}

fn header(job: &JobView, workers: &[WorkerView]) -> Value {
    let mut classes: BTreeMap<u32, u64> = BTreeMap::new();
    for worker in workers.iter().filter(|worker| worker.connected) {
        *classes.entry(worker.slots).or_default() += 1;
    }
    let class =
        |(slots, count): (&u32, &u64)| json!({"class": format!("slots-{slots}"), "count": count, "cores": slots});
    let cluster: Vec<Value> = classes.iter().map(class).collect();
    let mut header = json!({"filch_trace": 1, "name": job.name, "source": format!("filch trace export {}", job.job)});
    if !cluster.is_empty() {
        header["cluster"] = json!(cluster);
    }
    header
}
