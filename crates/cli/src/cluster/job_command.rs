//! `filch job`: the jobs of a cluster.

use std::process::ExitCode;

use clap::Subcommand;
use filch_core::wire::talk::{Name, Said};
use filch_node::client::Client;
use filch_node::view::{JobView, Query};
use serde_json::json;

use super::Reach;
use super::stall::Stall;
use super::table::{ago, facts, seconds, table, text};
use crate::interrupt::Interrupts;
use crate::{output, runtime};

/// List, show, wait for, cancel and retry jobs.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  filch job list                 the newest jobs
  filch job show 12              one of them
  filch job wait 12 13           wait until both are over
  filch job cancel 12            withdraw it
  filch job retry 12             run again what did not end well, as a new job")]
pub(crate) struct Args {
    #[command(flatten)]
    reach: Reach,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the newest jobs, newest last.
    #[command(visible_alias = "ls")]
    List {
        /// At most so many.
        #[arg(long, short = 'n', default_value_t = 20, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        limit: u32,
        /// Print an array of objects instead.
        #[arg(long)]
        json: bool,
    },
    /// Show a job.
    Show {
        /// Its number.
        #[arg(value_parser = super::job_number)]
        job: u64,
        /// Print an object instead.
        #[arg(long)]
        json: bool,
    },
    /// Wait until jobs are over. Exits with 0 if all of their tasks ended well, and with 1 if some did not.
    Wait {
        /// Their numbers.
        #[arg(required = true, value_name = "JOB", value_parser = super::job_number)]
        jobs: Vec<u64>,
        /// Print an array of objects when they are over.
        #[arg(long)]
        json: bool,
    },
    /// Run again what did not end well of jobs that are over, each as a new job. Prints their numbers.
    Retry {
        /// Numbers of jobs.
        #[arg(required = true, value_name = "JOB", value_parser = super::job_number)]
        jobs: Vec<u64>,
        /// Print an array of objects instead.
        #[arg(long)]
        json: bool,
    },
    /// Withdraw jobs, or single tasks of them: what waits is not run, and what runs is stopped.
    Cancel {
        /// Numbers of jobs such as `12`, or tasks such as `12.7`.
        #[arg(required = true, value_name = "JOB[.TASK]")]
        names: Vec<String>,
    },
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    runtime::ask(async {
        let client = args.reach.client().await?;
        match &args.command {
            Command::List { limit, json } => list(&client, *limit as usize, *json).await,
            Command::Show { job, json } => show(&client, *job, *json).await,
            Command::Wait { jobs, json } => wait(&client, jobs, *json).await,
            Command::Cancel { names } => cancel(&client, names).await,
            Command::Retry { jobs, json } => retry(&client, jobs, *json).await,
        }
    })
}

async fn list(client: &Client, limit: usize, as_json: bool) -> anyhow::Result<ExitCode> {
    let jobs: Vec<JobView> = client.query(&Query::Jobs { limit }).await?;
    if as_json {
        output::print(&format!("{:#}\n", json!(jobs)))?;
    } else if jobs.is_empty() {
        output::note("there are no jobs; `filch submit` makes one");
    } else {
        let mut table =
            table(&["job", "name", "state", "tasks", "done", "failed", "running", "waiting", "submitted", "command"]);
        for job in &jobs {
            table.add_row([
                job.job.to_string(),
                text(&job.name),
                job.state.clone(),
                job.tasks.to_string(),
                job.completed.to_string(),
                job.failed.to_string(),
                job.running.to_string(),
                job.waiting.to_string(),
                ago(job.submitted_s),
                text(&job.command),
            ]);
        }
        output::print(&format!("{table}\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn show(client: &Client, number: u64, as_json: bool) -> anyhow::Result<ExitCode> {
    let job: JobView = client.query(&Query::Job { job: number }).await?;
    if as_json {
        output::print(&format!("{:#}\n", json!(job)))?;
        return Ok(ExitCode::SUCCESS);
    }
    let took = job.ended_s.map_or_else(|| "not over".to_owned(), |ended| seconds(ended - job.submitted_s));
    output::print(&facts(&[
        ("job", job.job.to_string()),
        ("name", job.name),
        ("command", job.command),
        ("state", job.state),
        ("tasks", job.tasks.to_string()),
        ("waiting", job.waiting.to_string()),
        ("running", job.running.to_string()),
        ("done", job.completed.to_string()),
        ("failed", job.failed.to_string()),
        ("cancelled", job.cancelled.to_string()),
        ("skipped", job.skipped.to_string()),
        ("stolen", job.stolen.to_string()),
        ("submitted", ago(job.submitted_s)),
        ("took", took),
    ]))?;
    if job.failed > 0 {
        output::note(&format!("`filch task list {number} --status failed` shows which failed"));
    }
    Ok(ExitCode::SUCCESS)
}

async fn wait(client: &Client, jobs: &[u64], as_json: bool) -> anyhow::Result<ExitCode> {
    let mut interrupts = Interrupts::new()?;
    for job in jobs {
        // A job that was over before the coordinator began anew is known, but nothing of it can be watched any more.
        let view: JobView = client.query(&Query::Job { job: *job }).await?;
        if view.ended_s.is_some() {
            continue;
        }
        let mut said = client.watch(*job, false).await?;
        let mut stall = Stall::new(client, *job);
        loop {
            tokio::select! {
                next = said.next() => match next {
                    Some(next) => {
                        stall.progressed();
                        if let Said::JobDone(_) = next? {
                            break;
                        }
                    }
                    None => anyhow::bail!("the coordinator said no more before job {job} was over"),
                },
                why = stall.news() => output::note(&why),
                wish = interrupts.next() => return Ok(ExitCode::from(wish.status())),
            }
        }
    }
    let mut views = Vec::with_capacity(jobs.len());
    for job in jobs {
        let view: JobView = client.query(&Query::Job { job: *job }).await?;
        if !as_json {
            output::print(&format!(
                "job {job}: {}, {} of {} tasks ended well\n",
                view.state, view.completed, view.tasks
            ))?;
        }
        views.push(view);
    }
    if as_json {
        output::print(&format!("{:#}\n", json!(views)))?;
    }
    let well = views.iter().all(|view| view.failed + view.cancelled + view.skipped == 0);
    Ok(if well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn retry(client: &Client, jobs: &[u64], as_json: bool) -> anyhow::Result<ExitCode> {
    let mut begun = Vec::new();
    for &job in jobs {
        let again = client.retry(job).await?.job;
        begun.push(json!({ "job": job, "retried_as": again }));
        if !as_json {
            output::print(&format!("{again}\n"))?;
        }
    }
    if as_json {
        output::print(&format!("{:#}\n", json!(begun)))?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn cancel(client: &Client, names: &[String]) -> anyhow::Result<ExitCode> {
    for name in names {
        let name = match super::task_command::TaskName::parse(name) {
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
        client.cancel(Name { job: name.job, index, task: None }).await?;
    }
    Ok(ExitCode::SUCCESS)
}
