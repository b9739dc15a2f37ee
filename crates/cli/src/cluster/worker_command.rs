//! `filch worker`: runs a worker of a cluster, or tells about those that run.

use std::net::SocketAddr;
use std::process::ExitCode;

use clap::Subcommand;
use filch_core::config::Probe;
use filch_node::client::Client;
use filch_node::detect::Machine;
use filch_node::view::{Query, WorkerView};
use filch_node::worker::{Neighbours, Worker, WorkerHandle, WorkerOptions};
use serde_json::json;
use tokio::task::JoinSet;

use super::Reach;
use super::table::{bytes, facts, or_dash, table, text};
use crate::config_command::{self, Failure};
use crate::interrupt::Interrupts;
use crate::job::{Resource, Size};
use crate::{guard, machine, output, runtime};

/// Run a worker of a cluster, or list, show and drain workers.
///
/// Without a subcommand it connects to the coordinator of the access file, runs what it is handed, and steals from its peers
/// when it has nothing to do. It comes back after every break. Ctrl-C, or the end of its terminal, lets what runs finish and
/// gives back the rest; a second one kills it. Started with `nohup` it lives on.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  filch worker                               as many slots as processors
  filch worker --slots 8 --capability cuda --resource licence=2
  filch worker --config probes.yaml          with what the commands of its `detection` section find
  filch worker --detect                      what this machine offers
  filch worker list
  filch worker drain build-3"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    start: StartArgs,
    #[command(flatten)]
    reach: Reach,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the workers.
    #[command(visible_alias = "ls")]
    List {
        /// Print an array of objects instead.
        #[arg(long)]
        json: bool,
    },
    /// Show a worker.
    Show {
        /// Its name.
        worker: String,
        /// Print an object instead.
        #[arg(long)]
        json: bool,
    },
    /// Have workers finish what they run, give back the rest and leave.
    Drain {
        /// Their names.
        #[arg(required = true, value_name = "WORKER")]
        workers: Vec<String>,
    },
}

#[derive(Debug, clap::Args)]
struct StartArgs {
    /// Its name; the name of the machine and the number of the process if nothing is said.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Tasks it runs at once; as many as there are processors if nothing is said.
    #[arg(long, short = 'j', value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    slots: Option<u32>,
    /// Processors it has, whatever is found.
    #[arg(long, value_name = "N")]
    cpus: Option<f64>,
    /// Memory it has, whatever is found.
    #[arg(long, value_name = "SIZE")]
    memory: Option<Size>,
    /// Accelerators it has, whatever is found.
    #[arg(long, value_name = "N")]
    gpus: Option<f64>,
    /// An amount of a named resource that it has; can be repeated.
    #[arg(long = "resource", value_name = "NAME=N")]
    resources: Vec<Resource>,
    /// Something it can do; can be repeated.
    #[arg(long = "capability", value_name = "NAME")]
    capabilities: Vec<String>,
    /// Where it listens for its peers.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "0.0.0.0:0")]
    listen: SocketAddr,
    /// Where peers reach it, if that is another address.
    #[arg(long, value_name = "HOST:PORT")]
    advertise: Option<String>,
    /// Workers of the same machine reach it over the network, too, instead of by a socket of the machine.
    #[arg(long)]
    over_network: bool,
    /// Does not listen: peers reach it through the coordinator.
    #[arg(long, conflicts_with_all = ["advertise"])]
    no_peers: bool,
    /// So many workers in one process.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    count: u32,
    /// A configuration file, of which it reads `detection`: the commands that show which software is there.
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    config: Option<String>,
    /// Print what this machine offers, and start nothing.
    #[arg(long)]
    detect: bool,
    /// With --detect: print an object instead.
    #[arg(long, requires = "detect")]
    json: bool,
    /// It has begun anew without large pages of memory.
    #[arg(long, hide = true)]
    small_pages: bool,
}

/// The option above.
const SMALL_PAGES: &str = "--small-pages";

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let Some(command) = &args.command else { return start(args) };
    runtime::ask(async {
        let client = args.reach.client().await?;
        match command {
            Command::List { json } => list(&client, *json).await,
            Command::Show { worker, json } => show(&client, worker, *json).await,
            Command::Drain { workers } => {
                for worker in workers {
                    client.drain(worker).await?;
                }
                Ok(ExitCode::SUCCESS)
            }
        }
    })
}

// ---- running one ----

fn start(args: &Args) -> anyhow::Result<ExitCode> {
    let probes = match args.start.probes() {
        Ok(probes) => probes,
        Err(failure) => {
            failure.complain();
            return Ok(ExitCode::from(2));
        }
    };
    if args.start.detect {
        return show_machine(&probes, args.start.json);
    }
    if args.start.small_pages {
        filch_node::exec::without_large_pages();
    } else {
        filch_node::exec::begin_without_large_pages(SMALL_PAGES);
    }
    let machine = machine::look(&probes)?;
    let dial = args.reach.dial()?;
    output::log_to_stderr();
    let guard = guard::start(None);
    runtime::alone(async {
        let neighbours = Neighbours::default();
        let (mut workers, mut handles) = (JoinSet::new(), Vec::new());
        for number in 1..=args.start.count {
            let mut options = args.start.options(&machine, number);
            options.neighbours = (args.start.count > 1).then(|| neighbours.clone());
            options.access_file = std::path::absolute(args.reach.path()).ok();
            options.life = guard.as_ref().map(|guard| guard.life().to_owned());
            let worker = Worker::new(options);
            handles.push(worker.handle());
            workers.spawn(worker.run(dial.clone()));
        }
        let mut interrupts = Interrupts::new()?;
        let mut presses = 0;
        loop {
            tokio::select! {
                ended = workers.join_next() => match ended {
                    Some(ended) => ended??,
                    None => return Ok(if presses > 1 { ExitCode::from(130) } else { ExitCode::SUCCESS }),
                },
                _ = interrupts.next() => {
                    presses += 1;
                    if presses == 1 {
                        output::note("leaving: what runs may finish; Ctrl-C again kills it and leaves at once");
                    }
                    let end = if presses == 1 { WorkerHandle::drain } else { WorkerHandle::stop };
                    handles.iter().for_each(end);
                }
            }
        }
    })
}

impl StartArgs {
    /// What its file has it look for.
    fn probes(&self) -> Result<Vec<Probe>, Failure> {
        let Some(file) = &self.config else { return Ok(Vec::new()) };
        config_command::load(file, None).map(|loaded| loaded.config.detection.probes)
    }

    fn options(&self, machine: &Machine, number: u32) -> WorkerOptions {
        let base = self.name.clone().unwrap_or_else(|| format!("{}-{}", machine.hostname, std::process::id()));
        let name = if self.count > 1 { format!("{base}-{number}") } else { base };
        let slots = self.slots.unwrap_or(u32::try_from(machine.cpu.usable).unwrap_or(1)).max(1);
        let memory = self.memory.as_ref().and_then(|size| size.bytes().ok()).unwrap_or(machine.memory.usable);
        let cpus = self.cpus.unwrap_or((machine.cpu.usable as f64).max(f64::from(slots)));
        let accelerators = machine::accelerators(machine, self.count, number);
        let gpus = self.gpus.unwrap_or(accelerators.len() as f64);
        let found = [("cpus", cpus), ("memory", memory as f64), ("gpus", gpus)];
        let found = found.map(|(name, amount)| (name.to_owned(), amount)).to_vec();
        WorkerOptions {
            slots,
            resources: machine::resources(found, &self.resources),
            capabilities: machine::capabilities(machine, &self.capabilities),
            gpus: accelerators.to_vec(),
            listen: (!self.no_peers).then_some(self.listen),
            advertise: self.advertise.clone(),
            local: !self.over_network,
            ..WorkerOptions::new(name)
        }
    }
}

fn show_machine(probes: &[Probe], as_json: bool) -> anyhow::Result<ExitCode> {
    let machine = machine::look_closely(probes)?;
    if as_json {
        output::print(&format!("{:#}\n", json!(machine)))?;
        return Ok(ExitCode::SUCCESS);
    }
    let Machine { hostname, os, cpu, memory, numa, disks, gpus, software, missing } = machine;
    let mut lines = vec![
        ("name", hostname),
        ("system", format!("{}, kernel {}, {}", os.name, os.kernel, os.architecture)),
        (
            "processors",
            format!("{} usable of {} threads on {} cores: {}", cpu.usable, cpu.threads, cpu.cores, cpu.model),
        ),
        ("instructions", cpu.features.join(" ")),
        ("memory", format!("{} usable of {}", bytes(memory.usable), bytes(memory.total))),
    ];
    lines.extend(
        numa.iter()
            .map(|node| ("NUMA node", format!("{}: {} processors, {}", node.id, node.cpus.len(), bytes(node.memory)))),
    );
    lines.extend(
        disks.iter().map(|disk| {
            ("disk", format!("{}: {} free of {}", disk.path.display(), bytes(disk.free), bytes(disk.total)))
        }),
    );
    lines.extend(
        gpus.iter().map(|gpu| ("accelerator", format!("{} {} with {}", gpu.vendor, gpu.model, bytes(gpu.memory)))),
    );
    if !software.is_empty() {
        lines.push(("software", software.join(" ")));
    }
    lines.extend(missing.iter().map(|one| ("not found", format!("{}: {}", one.capability, one.why))));
    output::print(&facts(&lines))?;
    Ok(ExitCode::SUCCESS)
}

// ---- telling about them ----

async fn list(client: &Client, as_json: bool) -> anyhow::Result<ExitCode> {
    let workers: Vec<WorkerView> = client.query(&Query::Workers).await?;
    if as_json {
        output::print(&format!("{:#}\n", json!(workers)))?;
    } else if workers.is_empty() {
        output::note("there are no workers; `filch worker` starts one");
    } else {
        let mut table =
            table(&["worker", "state", "running", "queued", "done", "failed", "stolen", "lost", "load", "address"]);
        for worker in &workers {
            table.add_row([
                text(&worker.worker),
                state(worker),
                format!("{}/{}", worker.running, worker.slots),
                worker.queued.to_string(),
                worker.completed.to_string(),
                worker.failed.to_string(),
                worker.stolen.to_string(),
                worker.lost.to_string(),
                format!("{:.0}%", 100.0 * worker.cpu),
                or_dash((!worker.address.is_empty()).then(|| text(&worker.address))),
            ]);
        }
        output::print(&format!("{table}\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn state(worker: &WorkerView) -> String {
    if worker.connected { worker.state.clone() } else { format!("{}, away", worker.state) }
}

async fn show(client: &Client, name: &str, as_json: bool) -> anyhow::Result<ExitCode> {
    let worker: WorkerView = client.query(&Query::Worker { name: name.to_owned() }).await?;
    if as_json {
        output::print(&format!("{:#}\n", json!(worker)))?;
        return Ok(ExitCode::SUCCESS);
    }
    let amount = |(name, amount): &(String, f64)| match name.as_str() {
        "memory" | "gpu_memory" => format!("{name} {}", bytes(*amount as u64)),
        _ => format!("{name} {amount}"),
    };
    output::print(&facts(&[
        ("worker", worker.worker.clone()),
        ("id", worker.id.clone()),
        ("state", state(&worker)),
        ("running", format!("{} of {} slots", worker.running, worker.slots)),
        ("queued", worker.queued.to_string()),
        ("done", worker.completed.to_string()),
        ("failed", worker.failed.to_string()),
        ("stolen from others", worker.stolen.to_string()),
        ("lost to others", worker.lost.to_string()),
        ("load", format!("{:.0}%, memory {:.0}%", 100.0 * worker.cpu, 100.0 * worker.memory)),
        ("resources", worker.resources.iter().map(amount).collect::<Vec<_>>().join(", ")),
        ("capabilities", worker.capabilities.join(" ")),
        ("address", or_dash((!worker.address.is_empty()).then(|| worker.address.clone()))),
    ]))?;
    if !worker.steals.is_empty() {
        let mut table =
            table(&["asked for work", "times", "successes", "timeouts", "net errors", "rejections", "answer after"]);
        for peer in &worker.steals {
            table.add_row([
                text(&peer.peer),
                peer.attempts.to_string(),
                peer.successes.to_string(),
                peer.timeouts.to_string(),
                peer.network_errors.to_string(),
                peer.rejections.to_string(),
                format!("{:.2} ms", peer.latency_avg_ms),
            ]);
        }
        output::print(&format!("\n{table}\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}
