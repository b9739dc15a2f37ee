//! `filch run`: a job on this machine, with a coordinator and workers of its own.
//!
//! Ctrl-C and SIGTERM stop starting: workers finish what they run, and the rest is withdrawn. A second one kills what runs, and
//! so does the end of the terminal. Either way nothing that was started here runs on.

mod house;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use filch_core::wire::talk::Name;

use crate::interrupt::{Interrupts, Wish};
use crate::job::joblog::JobLog;
use crate::job::{JobArgs, Plan, Resource, Surroundings, Usage};
use crate::live::{Finish, Live, LiveArgs, Screen};
use crate::settings::{ConfigArgs, Joining};
use crate::{machine, runtime};
use house::{House, Offer, Size};

/// Run commands on this machine, many at once.
///
/// Starts a coordinator and workers, runs one task or very many, shows how it goes and ends when all of them ended. Exits
/// with 0 if all ended well, 1 if some did not, 2 if it was called wrongly, 130 after Ctrl-C and 143 after
/// SIGTERM, which let what runs finish (a second one kills it), 129 if its terminal is closed, and 141 if whoever reads its output goes away before the job is
/// over; both kill what runs.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  filch run --array 1-200 --workers 4 -- sh -c 'sleep 0.0$((FILCH_TASK % 9)); echo task $FILCH_TASK'
  filch run --each-line urls.txt -- curl -sO {}          one task per line
  filch run gzip -9 ::: *.log                            as in GNU parallel
  filch run --each-json cases.json -- ./test --name {name} --size {size.x}
  filch run --shell --array 1-9 -- 'convert {n}.png {n}.jpg && rm {n}.png'
  filch run --each-line - --joblog done.log --resume -- ./work < list
  filch run --file job.yaml                              a graph of tasks
  filch run --worker-resource licence=2 --resource licence=1 --array 1-9 -- ./licensed {}
  filch run --slots 8 --retries 2 --timeout 1m --out results --array 1-100 -- ./flaky {}")]
pub(crate) struct Args {
    #[command(flatten)]
    job: JobArgs,
    /// Workers to start.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096), help_heading = "Who runs it")]
    workers: Option<u32>,
    /// Tasks that each worker runs at once; as many as it has processors if nothing is said.
    #[arg(long, short = 'j', value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536), help_heading = "Who runs it")]
    slots: Option<u32>,
    /// An amount of a resource that each worker has, such as `licence=2` or `gpus=1`, whatever is found; can be repeated.
    #[arg(long = "worker-resource", value_name = "NAME=N", help_heading = "Who runs it")]
    worker_resources: Vec<Resource>,
    /// Something that each worker can do, besides what is found; can be repeated.
    #[arg(long = "worker-capability", value_name = "NAME", help_heading = "Who runs it")]
    worker_capabilities: Vec<String>,
    #[command(flatten)]
    config: ConfigArgs,
    #[command(flatten)]
    live: LiveArgs,
    /// Print what would be run, and run nothing.
    #[arg(long, help_heading = "What is shown")]
    dry_run: bool,
}

/// Of each output of a task so much is kept if nothing is said: all of it goes to the terminal, mostly.
const KEPT: &str = "1M";

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut around = Surroundings::default();
    around.terms.keep = KEPT.parse().ok();
    let mut plan = match args.job.plan(&around) {
        Ok(plan) => plan,
        Err(refusal) => return Ok(refusal.complain()),
    };
    let config = match args.config.load(Joining::Nobody) {
        Ok(config) => config,
        Err(status) => return Ok(status),
    };
    let machine = machine::look(&config.detection.probes)?;
    let size = Size::of(args.workers, args.slots, &machine);
    if let Some(usage) = unknown_worker(&plan, size) {
        return Ok(usage.complain());
    }
    let log = match args.live.begin(&mut plan, args.dry_run)? {
        Ok(log) => log,
        Err(code) => return Ok(code),
    };
    let plan = Arc::new(plan);
    runtime::run(async {
        // From here on Ctrl-C is ours: there is something to clean up.
        let mut interrupts = Interrupts::new()?;
        let (resources, capabilities) = (&args.worker_resources[..], &args.worker_capabilities[..]);
        let house = House::open(config, size, &Offer { machine: &machine, resources, capabilities }).await?;
        if let Some(wish) = interrupts.pending().await {
            house.close().await;
            return Ok(ExitCode::from(wish.status()));
        }
        play(house, &plan, log, (args, size), interrupts).await
    })
}

/// What is wrong if a task names a worker that there will not be.
fn unknown_worker(plan: &Plan, size: Size) -> Option<Usage> {
    let is_known = |name: &str| (1..=size.workers).any(|number| house::name(number) == name);
    let unknown = plan.workers_named().find(|name| !is_known(name))?;
    let help = match size.workers {
        1 => format!("the only one is called {}; --workers starts more", house::name(1)),
        count => format!("they are called {} to {}", house::name(1), house::name(count)),
    };
    Some(Usage::new(format!("there is no worker `{unknown}`")).help(help))
}

/// Runs the job to its end, whatever that is.
async fn play(
    mut house: House,
    plan: &Arc<Plan>,
    log: Option<JobLog>,
    (args, size): (&Args, Size),
    interrupts: Interrupts,
) -> anyhow::Result<ExitCode> {
    let live = match Live::new(&args.live, plan, log, size.all_slots()) {
        Ok(live) => live,
        Err(usage) => {
            house.close().await;
            return Ok(usage.complain());
        }
    };
    let outcome = follow(&mut house, plan, live, interrupts).await;
    house.close().await;
    outcome
}

/// How long a reader of the output that takes nothing is waited for, once somebody wants an end at once.
const PATIENCE: Duration = Duration::from_secs(1);

async fn follow(house: &mut House, plan: &Plan, live: Live, mut interrupts: Interrupts) -> anyhow::Result<ExitCode> {
    let (submitted, mut said) = house.client.submit_and_follow(plan.submit()).await?;
    let mut screen = Screen::begin(live)?;
    screen.look(&house.client, submitted.job).await;
    let (mut presses, mut finish, mut deserted) = (0, Finish::Whole, false);
    loop {
        tokio::select! {
            // What the reader of the output does not take is not taken from the coordinator either.
            next = said.next(), if !screen.is_full() => match next {
                Some(next) => if screen.said(next?) { break },
                None => anyhow::bail!("the coordinator said no more before the job was over"),
            },
            changed = screen.changed() => {
                // A terminal that is closed takes nothing any more.
                if finish == Finish::HungUp && changed.is_err() {
                    return Ok(ExitCode::from(Wish::HangUp.status()));
                }
                changed?;
                if screen.has_lost_its_reader() && finish == Finish::Whole {
                    finish = Finish::ReaderGone;
                    house.stop();
                }
            }
            wish = interrupts.next() => {
                (presses, finish) = match wish {
                    Wish::Interrupt | Wish::Terminate => (presses + 1, finish.max(wish.into())),
                    // Nobody is there to press twice.
                    Wish::HangUp => (presses + 2, Finish::HungUp),
                };
                if presses == 1 {
                    screen.say(&format!("stopping: what runs may finish; {} kills it", wish.again()));
                    house.drain();
                } else {
                    house.stop();
                }
            }
            left = house.left(), if !house.is_empty() => {
                left?;
                if house.is_empty() {
                    // What has not begun is withdrawn; then the job is over.
                    deserted = finish == Finish::Whole;
                    house.client.cancel(Name { job: submitted.job, ..Name::default() }).await?;
                }
            }
            () = tokio::time::sleep(PATIENCE), if presses > 1 && house.is_empty() && screen.is_full() => {
                return Ok(given_up(&screen, finish));
            }
        }
    }
    let status = tokio::select! {
        status = screen.finish(finish) => match status {
            Err(_) if finish == Finish::HungUp => None,
            status => Some(status?),
        },
        // Nothing runs any more: whoever wants an end now does not want to wait for the reader.
        wish = interrupts.next() => {
            finish = wish.into();
            None
        }
        () = tokio::time::sleep(PATIENCE), if presses > 1 => None,
    };
    if deserted {
        anyhow::bail!("all workers have left before the job was over");
    }
    Ok(status.unwrap_or_else(|| given_up(&screen, finish)))
}

/// Nobody takes the output, and somebody wants an end.
fn given_up(screen: &Screen, finish: Finish) -> ExitCode {
    screen.say("nobody reads the output; what is left of it is not shown");
    ExitCode::from(finish.status(false))
}
