//! `filch submit`: a job for a cluster. And `filch spawn`: the same from within a task, as its child.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use filch_node::client::{Client, Follow};
use serde_json::json;

use super::Reach;
use super::stall::Stall;
use crate::interrupt::Interrupts;
use crate::job::joblog::JobLog;
use crate::job::{JobArgs, Plan, Surroundings};
use crate::live::{Finish, Live, LiveArgs, Screen};
use crate::{output, runtime};

/// Submit a job to a cluster.
///
/// Prints the number of the job as soon as it is accepted, which is durable. Tasks run in the current directory unless --cwd
/// says otherwise, with the environment of their worker and what --env adds.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  filch submit -- ./simulate --seed 7
  filch submit --array 1-1000 --cpus 2 --memory 4G -- ./shard {n}
  filch submit --wait --progress --each-line files.txt -- ./convert {}
  filch submit --file job.yaml --priority 4
  filch submit --requires cuda --gpus 1 --retries 2 -- ./train")]
pub(crate) struct Args {
    #[command(flatten)]
    job: JobArgs,
    #[command(flatten)]
    reach: Reach,
    /// Wait until the job is over; the outputs of its tasks are shown as they end.
    #[arg(long, help_heading = "What is shown")]
    wait: bool,
    #[command(flatten)]
    live: LiveArgs,
    /// Print what would be run, and submit nothing.
    #[arg(long, help_heading = "What is shown")]
    dry_run: bool,
}

/// Submit a job as a child of the task that runs this command.
///
/// Inside a task only: reads FILCH_TASK_ID and FILCH_ACCESS from the environment that its worker gave it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  filch spawn -- ./part-two
  filch spawn --array 1-8 -- ./shard {n}")]
pub(crate) struct SpawnArgs {
    #[command(flatten)]
    job: JobArgs,
    #[command(flatten)]
    reach: Reach,
    /// Print an object with `job` and `tasks` instead of the number of the job.
    #[arg(long)]
    json: bool,
}

fn surroundings() -> anyhow::Result<Surroundings> {
    let cwd = std::env::current_dir().context("cannot tell the current directory")?;
    Ok(Surroundings { cwd: Some(cwd), ..Surroundings::default() })
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut plan = match args.job.plan(&surroundings()?) {
        Ok(plan) => plan,
        Err(refusal) => return Ok(refusal.complain()),
    };
    let log = match args.live.begin(&mut plan, args.dry_run)? {
        Ok(log) => log,
        Err(code) => return Ok(code),
    };
    let waits = args.wait || args.live.progress || args.live.want_tasks_shown();
    runtime::ask(async {
        let client = args.reach.client().await?;
        if waits {
            return wait(&client, &Arc::new(plan), log, args).await;
        }
        let submitted = client.submit(plan.submit()).await?;
        tell(submitted.job, plan.tasks.len(), args.live.json)?;
        Ok(ExitCode::SUCCESS)
    })
}

pub(crate) fn spawn(args: &SpawnArgs) -> anyhow::Result<ExitCode> {
    let parent = std::env::var("FILCH_TASK_ID").ok().and_then(|id| id.parse::<u64>().ok());
    let Some(parent) = parent else {
        let help = "tasks find FILCH_TASK_ID in their environment; elsewhere, use `filch submit`";
        output::error("this is no task of a cluster", Some(help));
        return Ok(ExitCode::from(2));
    };
    if let Some(usage) = args.reach.nowhere() {
        return Ok(usage.complain());
    }
    let plan = match args.job.plan(&surroundings()?) {
        Ok(plan) => plan,
        Err(refusal) => return Ok(refusal.complain()),
    };
    runtime::ask(async {
        let client = args.reach.client().await?;
        let mut submit = plan.submit();
        submit.parent = Some(parent);
        let submitted = client.submit(submit).await?;
        tell(submitted.job, plan.tasks.len(), args.json)?;
        Ok(ExitCode::SUCCESS)
    })
}

/// The number alone goes to standard output, so that scripts can take it.
fn tell(job: u64, tasks: u32, as_json: bool) -> anyhow::Result<()> {
    if as_json {
        output::print(&format!("{}\n", json!({"job": job, "tasks": tasks})))?;
    } else {
        output::print(&format!("{job}\n"))?;
    }
    Ok(())
}

async fn wait(client: &Client, plan: &Arc<Plan>, log: Option<JobLog>, args: &Args) -> anyhow::Result<ExitCode> {
    let live = match Live::new(&args.live, plan, log, 0) {
        Ok(live) => live,
        Err(usage) => return Ok(usage.complain()),
    };
    let (submitted, said) = client.submit_and_follow(plan.submit()).await?;
    let screen = Screen::begin(live)?;
    screen.say(&format!("job {}", submitted.job));
    screen.look(client, submitted.job).await;
    follow(client, submitted.job, said, screen).await
}

/// Follows a job until it is over. Ctrl-C ends the following and not the job.
async fn follow(client: &Client, job: u64, mut said: Follow, mut screen: Screen) -> anyhow::Result<ExitCode> {
    let mut interrupts = Interrupts::new()?;
    let mut finish = Finish::Whole;
    let mut stall = Stall::new(client, job);
    while finish == Finish::Whole {
        tokio::select! {
            // What the reader of the output does not take is not taken from the coordinator either.
            next = said.next(), if !screen.is_full() => match next {
                Some(next) => {
                    stall.progressed();
                    if screen.said(next?) {
                        break;
                    }
                }
                None => anyhow::bail!("the coordinator said no more before the job was over"),
            },
            changed = screen.changed() => {
                changed?;
                if screen.has_lost_its_reader() {
                    screen.say(&goes_on(job));
                    finish = Finish::ReaderGone;
                }
            }
            why = stall.news() => screen.say(&why),
            wish = interrupts.next() => {
                screen.say(&goes_on(job));
                return Ok(ExitCode::from(wish.status()));
            }
        }
    }
    tokio::select! {
        status = screen.finish(finish) => Ok(status?),
        wish = interrupts.next() => Ok(ExitCode::from(wish.status())),
    }
}

fn goes_on(job: u64) -> String {
    format!("the job goes on: `filch job wait {job}` waits for it, `filch job cancel {job}` ends it")
}
