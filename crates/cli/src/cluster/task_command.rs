//! `filch task`: the tasks of a job.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Subcommand;
use filch_core::wire::talk::{Logs, Name, Numbers, Places, Said};
use filch_node::client::Client;
use filch_node::view::{JobView, Query, TaskView};
use serde_json::{Value, json};

use super::Reach;
use super::stall::QUIET;
use super::table::{ago, bytes, facts, or_dash, seconds, table, text};
use crate::job::{Usage, one_line};
use crate::{output, runtime};

/// List and show tasks, what they wrote, and why they are where they are.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  filch task list 12 --status failed
  filch task show 12.7             task 7 of job 12
  filch task logs -f 12.7          what it writes, as it comes
  filch task logs 12.7 --attempt 1 what it wrote before it was tried again
  filch task why 12.7              why it waits, or why it is where it is")]
pub(crate) struct Args {
    #[command(flatten)]
    reach: Reach,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the tasks of a job.
    #[command(visible_alias = "ls")]
    List {
        /// The number of the job.
        #[arg(value_parser = super::job_number)]
        job: u64,
        /// Only those with this status, such as failed, running or queued.
        #[arg(long, value_name = "STATUS", value_parser = STATUSES)]
        status: Option<String>,
        /// At most so many.
        #[arg(long, short = 'n', default_value_t = 100, value_name = "N")]
        limit: usize,
        /// Print an array of objects instead.
        #[arg(long)]
        json: bool,
    },
    /// Show a task.
    Show {
        /// JOB.TASK, such as 12.7; the number of the job is enough if it has one task.
        #[arg(value_name = "JOB.TASK")]
        task: String,
        /// Print an object instead.
        #[arg(long)]
        json: bool,
    },
    /// Print what a task wrote: its standard output to standard output, its standard error to standard error.
    Logs {
        /// JOB.TASK, such as 12.7; the number of the job is enough if it has one task.
        #[arg(value_name = "JOB.TASK")]
        task: String,
        /// Wait until it begins, and go on until it has ended.
        #[arg(long, short = 'f')]
        follow: bool,
        /// What it wrote in this attempt, counted from 1, instead of in the latest.
        #[arg(long, value_name = "N", conflicts_with = "follow", value_parser = clap::value_parser!(u32).range(1..))]
        attempt: Option<u32>,
    },
    /// Explain why a task waits, or why it is where it is.
    Why {
        /// JOB.TASK, such as 12.7; the number of the job for those of its array that wait.
        #[arg(value_name = "JOB[.TASK]")]
        task: String,
        /// Print an object instead.
        #[arg(long)]
        json: bool,
    },
}

const STATUSES: [&str; 11] = [
    "blocked",
    "queued",
    "retrying",
    "unschedulable",
    "assigned",
    "running",
    "completed",
    "failed",
    "cancelled",
    "skipped",
    "returned",
];

/// A task as people name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TaskName {
    pub(super) job: u64,
    /// As its submitter counts.
    pub(super) number: Option<i64>,
}

impl TaskName {
    pub(super) fn parse(name: &str) -> Result<TaskName, Usage> {
        let wrong =
            || Usage::new(format!("`{name}` is no task")).help("JOB.TASK names one, such as 12.7: task 7 of job 12");
        let (job, number) = match name.split_once('.') {
            None => (name, None),
            Some((job, number)) => (job, Some(number.parse().map_err(|_| wrong())?)),
        };
        Ok(TaskName { job: job.parse().map_err(|_| wrong())?, number })
    }

    /// Its position in the job.
    pub(super) async fn index(&self, client: &Client) -> anyhow::Result<Result<u32, Usage>> {
        let job: JobView = client.query(&Query::Job { job: self.job }).await?;
        Ok(self.index_in(&job))
    }

    fn index_in(&self, job: &JobView) -> Result<u32, Usage> {
        let step = job.step.max(1);
        let places = if job.places.is_empty() { None } else { Places::read(&job.places) };
        let numbers = Numbers::new(job.first, step, places.clone());
        let count = u32::try_from(job.tasks).unwrap_or(u32::MAX);
        let (first, last) = (numbers.number(0), numbers.number(count.saturating_sub(1)));
        let Some(number) = self.number else {
            if job.tasks == 1 {
                return Ok(0);
            }
            let message = format!("job {} has {} tasks", self.job, job.tasks);
            return Err(Usage::new(message).help(format!("name one of them, such as {}.{first}", self.job)));
        };
        let offset = i128::from(number) - i128::from(job.first);
        let place = u32::try_from(offset / i128::from(step)).ok().filter(|_| offset % i128::from(step) == 0);
        let index = place.and_then(|place| match &places {
            Some(places) => places.index_of(place),
            None => (place < count).then_some(place),
        });
        index.ok_or_else(|| {
            let message = format!("job {} has no task {number}", self.job);
            let by = if step > 1 { format!(" in steps of {step}") } else { String::new() };
            let some = if job.places.is_empty() { "the" } else { "some of the" };
            Usage::new(message).help(format!("its tasks have {some} numbers {first} to {last}{by}"))
        })
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    runtime::ask(async {
        let client = args.reach.client().await?;
        match &args.command {
            Command::List { job, status, limit, json } => list(&client, *job, status.clone(), *limit, *json).await,
            Command::Show { task, json } => show(&client, task, *json).await,
            Command::Logs { task, follow, attempt } => logs(&client, task, *follow, *attempt).await,
            Command::Why { task, json } => why(&client, task, *json).await,
        }
    })
}

async fn list(
    client: &Client,
    job: u64,
    status: Option<String>,
    limit: usize,
    as_json: bool,
) -> anyhow::Result<ExitCode> {
    let tasks: Vec<TaskView> = client.query(&Query::Tasks { job, status, limit }).await?;
    if as_json {
        output::print(&format!("{:#}\n", json!(tasks)))?;
        return Ok(ExitCode::SUCCESS);
    }
    let named = tasks.iter().any(|task| task.name.is_some());
    let mut columns = vec!["task", "status", "exit", "attempts", "worker", "ran", "why"];
    if named {
        columns.insert(1, "name");
    }
    let mut table = table(&columns);
    for task in &tasks {
        let mut row = vec![
            format!("{}.{}", task.job, task.number),
            task.status.clone(),
            or_dash(code(task)),
            task.attempts.to_string(),
            or_dash(task.worker.as_deref().map(text)),
            or_dash(task.ran_s.map(seconds)),
            text(task.error.as_deref().or(task.cause.as_deref()).unwrap_or_default()),
        ];
        if named {
            row.insert(1, text(task.name.as_deref().unwrap_or_default()));
        }
        table.add_row(row);
    }
    output::print(&format!("{table}\n"))?;
    if tasks.len() == limit {
        output::note(&format!("only the first {limit}; --limit shows more"));
    }
    Ok(ExitCode::SUCCESS)
}

fn code(task: &TaskView) -> Option<String> {
    match (task.signal, task.exit_code) {
        (Some(signal), _) => Some(format!("signal {signal}")),
        (None, Some(code)) => Some(code.to_string()),
        (None, None) => None,
    }
}

async fn show(client: &Client, name: &str, as_json: bool) -> anyhow::Result<ExitCode> {
    let (name, index) = match find(client, name).await? {
        Ok(found) => found,
        Err(usage) => return Ok(usage.complain()),
    };
    let task: TaskView = client.query(&Query::Task { job: name.job, index }).await?;
    if as_json {
        output::print(&format!("{:#}\n", json!(task)))?;
        return Ok(ExitCode::SUCCESS);
    }
    output::print(&facts(&[
        ("task", format!("{}.{}", task.job, task.number)),
        ("name", or_dash(task.name.clone())),
        ("command", or_dash(task.command.as_deref().map(one_line))),
        ("directory", or_dash(task.cwd.clone())),
        ("status", task.status.clone()),
        ("cause", or_dash(task.cause.clone())),
        ("exit", or_dash(code(&task))),
        ("error", or_dash(task.error.clone())),
        ("attempts", task.attempts.to_string()),
        ("worker", or_dash(task.worker.clone())),
        ("began", or_dash(task.began_s.map(ago))),
        ("ran", or_dash(task.ran_s.map(seconds))),
        ("processor time", or_dash(task.cpu_s.map(seconds))),
        ("peak memory", or_dash(task.peak_memory.map(|peak| peak_memory(peak, task.peak_memory_is_bound)))),
    ]))?;
    Ok(ExitCode::SUCCESS)
}

fn peak_memory(peak: u64, is_bound: bool) -> String {
    if is_bound { format!("at most {}", bytes(peak)) } else { bytes(peak) }
}

async fn find(client: &Client, name: &str) -> anyhow::Result<Result<(TaskName, u32), Usage>> {
    match TaskName::parse(name) {
        Ok(name) => Ok(name.index(client).await?.map(|index| (name, index))),
        Err(usage) => Ok(Err(usage)),
    }
}

async fn logs(client: &Client, name: &str, follow: bool, attempt: Option<u32>) -> anyhow::Result<ExitCode> {
    let (name, index) = match find(client, name).await? {
        Ok(found) => found,
        Err(usage) => return Ok(usage.complain()),
    };
    if follow {
        await_beginning(client, name.job, index).await?;
    }
    let name = Name { job: name.job, index: Some(index), task: None };
    let mut said =
        client.logs(Logs { name: Some(name), follow, only: attempt.unwrap_or(0), ..Logs::default() }).await?;
    while let Some(next) = said.next().await {
        match next? {
            Said::Output(chunk) if chunk.stderr => {
                let mut err = std::io::stderr().lock();
                err.write_all(&chunk.bytes).map_err(|error| output::unwritten("to standard error", &error))?;
            }
            Said::Output(chunk) => {
                let mut out = std::io::stdout().lock();
                let written = out.write_all(&chunk.bytes).and_then(|()| out.flush());
                written.map_err(|error| output::unwritten("to standard output", &error))?;
            }
            Said::Done(_) => break,
            _ => {}
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Waits until there is something to follow, and says so if it takes long.
async fn await_beginning(client: &Client, job: u64, index: u32) -> anyhow::Result<()> {
    let asked = Instant::now();
    let mut silent = true;
    loop {
        let task: TaskView = client.query(&Query::Task { job, index }).await?;
        if task.began_s.is_some() || task.ended_s.is_some() {
            return Ok(());
        }
        if silent && asked.elapsed() > QUIET {
            silent = false;
            let number = task.number;
            output::note(&format!("task {job}.{number} has not begun; `filch task why {job}.{number}` says why"));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn why(client: &Client, name: &str, as_json: bool) -> anyhow::Result<ExitCode> {
    let name = match TaskName::parse(name) {
        Ok(name) => name,
        Err(usage) => return Ok(usage.complain()),
    };
    let index = match name.number {
        None => None,
        Some(_) => match name.index(client).await? {
            Ok(index) => Some(index),
            Err(usage) => return Ok(usage.complain()),
        },
    };
    let told: Value = client.query(&Query::Why { job: name.job, index }).await?;
    match told.get("text").and_then(Value::as_str) {
        Some(text) if !as_json => {
            let lines: Vec<String> = text.lines().map(filch_core::config::printable).collect();
            output::print(&format!("{}\n", lines.join("\n")))?;
        }
        _ => output::print(&format!("{told:#}\n"))?,
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_named_by_job_and_number() {
        assert_eq!(TaskName::parse("12.7"), Ok(TaskName { job: 12, number: Some(7) }));
        assert_eq!(TaskName::parse("12.-7"), Ok(TaskName { job: 12, number: Some(-7) }));
        assert_eq!(TaskName::parse("12"), Ok(TaskName { job: 12, number: None }));
        for wrong in ["", "x", "1.x", "1.2.3", "-1"] {
            assert!(TaskName::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn numbers_lead_to_positions() {
        let job: JobView = serde_json::from_value(json!({
            "job": 3, "name": "", "command": "", "state": "running", "tasks": 4, "waiting": 0, "running": 0, "completed": 0,
            "failed": 0, "cancelled": 0, "skipped": 0, "stolen": 0, "submitted_s": 0.0, "ended_s": null, "first": 10, "step": 5
        }))
        .unwrap();
        let index = |number| TaskName { job: 3, number }.index_in(&job);
        assert_eq!((index(Some(10)), index(Some(25))), (Ok(0), Ok(3)));
        for wrong in [Some(9), Some(11), Some(30), Some(i64::MIN), Some(i64::MAX), None] {
            assert!(index(wrong).is_err(), "{wrong:?}");
        }
        // Some of an array: 20, 25, 40 and 45.
        let some = JobView { places: vec![2, 2, 2, 2], ..job };
        let index = |number| TaskName { job: 3, number: Some(number) }.index_in(&some);
        assert_eq!([20, 25, 40, 45].map(|number| index(number).ok()), [Some(0), Some(1), Some(2), Some(3)]);
        for wrong in [10, 15, 30, 41, 50] {
            assert!(index(wrong).is_err(), "{wrong}");
        }
    }
}
