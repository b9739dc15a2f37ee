//! `filch trace`: a job that was run, as a file that `filch sim run` plays again.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Subcommand;
use filch_node::view::{JobView, Query, TaskView, TraceView, WorkerView};
use serde_json::{Value, json};

use super::Reach;
use crate::job::Usage;
use crate::{output, packing, runtime};

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
    /// Write a job as `filch trace v1`: its tasks, what they waited for and needed, how long they ran, and the workers that are
    /// there now.
    Export {
        /// The number of the job.
        #[arg(value_parser = super::job_number)]
        job: u64,
        /// The file, gzipped if its name ends with .gz; standard output if nothing is said.
        #[arg(long, short = 'o', value_name = "OUT.jsonl[.gz]", value_hint = clap::ValueHint::FilePath)]
        output: Option<PathBuf>,
    },
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let Command::Export { job, output } = &args.command;
    runtime::ask(async {
        let client = args.reach.client().await?;
        let view: JobView = client.query(&Query::Job { job: *job }).await?;
        let tasks: Vec<TraceView> = client.query(&Query::Trace { job: *job }).await?;
        let workers: Vec<WorkerView> = client.query(&Query::Workers).await?;
        let left_out = match output {
            Some(path) => {
                let words = || format!("cannot write `{}`", path.display());
                let mut file = BufWriter::new(File::create(path).map_err(|error| Usage::unwritable(path, &error))?);
                packing::write(path, &mut file, |out| write(out, &view, &tasks, &workers)).with_context(words)?
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
fn write(out: &mut dyn Write, job: &JobView, tasks: &[TraceView], workers: &[WorkerView]) -> anyhow::Result<usize> {
    writeln!(out, "{}", header(job, tasks, workers))?;
    let has_ended = |traced: &&TraceView| traced.task.ran_s.is_some() && traced.task.ended_s.is_some();
    let ended: BTreeMap<u32, &TraceView> = tasks.iter().filter(has_ended).map(|one| (one.task.index, one)).collect();
    let first = tasks.iter().map(|traced| traced.submitted_s).fold(f64::INFINITY, f64::min);
    for traced in ended.values() {
        let kind = [&traced.kind, &job.name].into_iter().find(|kind| !kind.is_empty()).map_or("task", String::as_str);
        let at = traced.submitted_s - first;
        let mut line = json!({"id": id(&traced.task), "kind": kind, "at": at, "run": traced.task.ran_s});
        // Nobody waits for what is not in the file.
        let parents = traced.after.iter().filter_map(|parent| ended.get(parent));
        let parents: Vec<String> = parents.map(|parent| id(&parent.task)).collect();
        if !parents.is_empty() {
            line["deps"] = json!(parents);
        }
        // Of other resources the simulator knows nothing.
        for (name, amount) in traced.needs.iter().filter(|(name, _)| NEEDS.contains(&name.as_str())) {
            line["needs"][name] = json!(amount);
        }
        if let Some(estimate) = traced.estimate_s {
            line["estimate"] = json!(estimate);
        }
        writeln!(out, "{line}")?;
    }
    Ok(tasks.len() - ended.len())
}

/// What a task of a trace may need.
const NEEDS: [&str; 3] = ["cpus", "memory", "gpus"];

fn id(task: &TaskView) -> String {
    task.name.clone().unwrap_or_else(|| task.number.to_string())
}

/// How much is there of a resource, or needed of it.
fn amount(of: &[(String, f64)], name: &str) -> f64 {
    of.iter().find(|one| one.0 == name).map_or(0.0, |one| one.1)
}

fn header(job: &JobView, tasks: &[TraceView], workers: &[WorkerView]) -> Value {
    // A worker of a trace runs as many tasks at once as it has cores, so these are its slots; but what ran must fit.
    let widest = tasks.iter().map(|traced| amount(&traced.needs, "cpus")).fold(0.0, f64::max).ceil();
    let mut classes: BTreeMap<(u64, u64, u64), u64> = BTreeMap::new();
    for worker in workers.iter().filter(|worker| worker.connected) {
        let cores = f64::from(worker.slots).max(widest.min(amount(&worker.resources, "cpus"))) as u64;
        let [memory, gpus] = ["memory", "gpus"].map(|name| amount(&worker.resources, name) as u64);
        *classes.entry((cores, memory, gpus)).or_default() += 1;
    }
    let cluster = classes.iter().enumerate().map(|(at, ((cores, memory, gpus), count))| {
        let mut class = json!({"class": format!("class-{}", at + 1), "count": count, "cores": cores, "memory": memory});
        if *gpus > 0 {
            class["gpus"] = json!(gpus);
        }
        class
    });
    let cluster: Vec<Value> = cluster.collect();
    let mut header = json!({"filch_trace": 1, "name": job.name, "source": format!("filch trace export {}", job.job)});
    if !cluster.is_empty() {
        header["cluster"] = json!(cluster);
    }
    header
}
