//! `cargo xtask bench sim`: how many events a second the simulator plays, how that grows with the cluster, and how it
//! compares with SimPy on the queue of the textbooks.
//!
//! Only the run is timed, not the making of the workload. Each world is played by a process of its own, as `filch sim run` and
//! SimPy do: in one process a small world would find memory that the one before has left, and a large one would have to ask the
//! system for it. Rounds of all sizes, and of filch and of SimPy, alternate, so that a disturbance hits all; medians are
//! reported. SimPy is installed into a folder of its own below the build's.

use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use filch_bench::python;
use filch_core::{Span, Time};
use filch_sim::cluster::Class;
use filch_sim::generate::{Duration, Generator};
use filch_sim::{Scenario, World};
use mimalloc::MiMalloc;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// The allocator of the product.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

const SIZES: [u32; 4] = [100, 1_000, 10_000, 100_000];
/// What was promised.
const EVENTS_PER_S: f64 = 2_000_000.0;
const GROWTH: f64 = 2.0;
const TIMES_SIMPY: f64 = 7.0;
const MEMORY_GIB: f64 = 8.0;
/// Known to work, and the same everywhere.
const SIMPY: &str = "simpy==4.1.1";

/// Measures the simulator.
#[derive(Debug, Parser)]
#[command(name = "sim")]
struct Args {
    /// Prints JSON instead of tables.
    #[arg(long)]
    json: bool,
    /// Rounds of each case.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Workers of the largest cluster that is measured.
    #[arg(long, default_value_t = 100_000)]
    up_to: u32,
    /// Jobs of the queue that SimPy plays too.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1000..=10_000_000))]
    jobs: u32,
    /// Leaves SimPy out.
    #[arg(long)]
    no_simpy: bool,
    /// Plays 10^7 tasks on 10^4 workers instead, and says how much memory that took.
    #[arg(long)]
    large: bool,
    /// Tasks of the large case.
    #[arg(long, default_value_t = 10_000_000)]
    tasks: u32,
    /// Plays one world and says what it took: so many workers, or none for the queue. What the benchmark calls itself with.
    #[arg(long, hide = true)]
    play: Option<u32>,
    #[arg(long, hide = true, default_value_t = 1)]
    seed: u64,
}

/// What one world took.
#[derive(Debug, Deserialize, Serialize)]
struct Played {
    events: u64,
    seconds: f64,
    /// Seconds that its tasks waited, on average.
    mean_wait_s: f64,
}

#[derive(Debug, Serialize)]
struct Row {
    workers: u32,
    tasks: u32,
    events: u64,
    events_per_s: f64,
    ns_per_event: f64,
}

#[derive(Debug, Serialize)]
struct Queue {
    jobs: u32,
    filch_jobs_per_s: f64,
    simpy_jobs_per_s: f64,
    ratio: f64,
    filch_mean_wait_s: f64,
    simpy_mean_wait_s: f64,
}

#[derive(Debug, Serialize)]
struct Target {
    promise: String,
    found: String,
    holds: bool,
}

#[allow(clippy::print_stdout, reason = "the result of a benchmark")]
fn main() -> Result<()> {
    let args = Args::parse();
    if args.large {
        return large(&args);
    }
    if let Some(workers) = args.play {
        println!("{}", json!(play_one(&args, workers)?));
        return Ok(());
    }
    let rows = throughput(&args)?;
    let (queue, skipped) = match args.no_simpy {
        true => (None, None),
        false => match queueing(&args) {
            Ok(queue) => (Some(queue), None),
            Err(error) => (None, Some(format!("{error:#}"))),
        },
    };
    let targets = targets(&rows, queue.as_ref());
    if args.json {
        println!("{:#}", json!({"throughput": rows, "queue": queue, "simpy_skipped": skipped, "targets": targets}));
        return Ok(());
    }
    println!("workers    tasks      events   events/s  ns/event");
    for row in &rows {
        println!(
            "{:>7} {:>8} {:>11} {:>10.0} {:>9.0}",
            row.workers, row.tasks, row.events, row.events_per_s, row.ns_per_event
        );
    }
    if let Some(queue) = &queue {
        println!(
            "\nM/M/50 at 80% load, {} jobs: filch {:.0} jobs/s (mean wait {:.4} s), SimPy {:.0} jobs/s (mean wait {:.4} s)",
            queue.jobs,
            queue.filch_jobs_per_s,
            queue.filch_mean_wait_s,
            queue.simpy_jobs_per_s,
            queue.simpy_mean_wait_s
        );
    }
    if let Some(skipped) = skipped {
        println!("\nSimPy was not compared: {skipped}");
    }
    say(&targets);
    Ok(())
}

#[allow(clippy::print_stdout, reason = "the result of a benchmark")]
fn say(targets: &[Target]) {
    println!();
    for Target { promise, found, holds } in targets {
        println!("{}  {promise}: {found}", if *holds { "holds " } else { "MISSED" });
    }
}

fn targets(rows: &[Row], queue: Option<&Queue>) -> Vec<Target> {
    let of = |workers: u32| rows.iter().find(|row| row.workers == workers);
    let mut targets = Vec::new();
    if let Some(row) = of(1000) {
        targets.push(Target {
            promise: format!("at least {EVENTS_PER_S} events/s with 1000 workers"),
            found: format!("{:.0}", row.events_per_s),
            holds: row.events_per_s >= EVENTS_PER_S,
        });
        if let Some(many) = of(100_000) {
            let growth = many.ns_per_event / row.ns_per_event;
            targets.push(Target {
                promise: format!("an event costs at most {GROWTH} times as much with 100000 workers as with 1000"),
                found: format!("{growth:.2} times"),
                holds: growth <= GROWTH,
            });
        }
    }
    if let Some(queue) = queue {
        targets.push(Target {
            promise: format!("at least {TIMES_SIMPY} times the jobs/s of SimPy"),
            found: format!("{:.1} times", queue.ratio),
            holds: queue.ratio >= TIMES_SIMPY,
        });
    }
    targets
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// A world of equal workers and tasks of half a second to two, with the default policy.
fn cluster(workers: u32, tasks: u32) -> Scenario {
    let workload = Generator {
        tasks: Some(tasks),
        duration: Duration::Uniform,
        least: Span::from_millis(500),
        most: Span::from_secs(2),
        ..Generator::default()
    };
    let mut scenario = Scenario::default();
    (scenario.cluster, scenario.workload) = (vec![Class::plain(workers)], workload);
    scenario
}

/// Plays a scenario; its events, and the seconds they took.
fn play(scenario: &Scenario, seed: u64) -> Result<(World, f64)> {
    let (setting, workload) = scenario.make(seed);
    let mut world = World::new(setting, workload)?;
    let start = Instant::now();
    world.run(Time::NEVER).map_err(anyhow::Error::msg)?;
    let seconds = start.elapsed().as_secs_f64();
    ensure!(world.is_done(), "not every task has an outcome: {}", world.stuck().unwrap_or_default());
    Ok((world, seconds))
}

/// Plays one world in this process.
fn play_one(args: &Args, workers: u32) -> Result<Played> {
    let scenario = if workers == 0 { queue(args)? } else { cluster(workers, tasks_for(workers)) };
    let (world, seconds) = play(&scenario, args.seed)?;
    let waited = world.fates().iter().map(|fate| fate.begun.since(fate.arrived).as_secs_f64()).sum::<f64>();
    Ok(Played { events: world.counts().events, seconds, mean_wait_s: waited / world.fates().len() as f64 })
}

/// Plays one world in a process of its own.
fn play_apart(args: &Args, workers: u32, seed: u64) -> Result<Played> {
    let own = std::env::current_exe().context("this program cannot be found")?;
    let numbers = [workers.to_string(), seed.to_string(), args.jobs.to_string()];
    let [workers, seed, jobs] = &numbers;
    let output = Command::new(own).args(["--play", workers, "--seed", seed, "--jobs", jobs]).output()?;
    ensure!(output.status.success(), "a world failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn tasks_for(workers: u32) -> u32 {
    (workers * 10).max(200_000)
}

/// Clusters of all sizes, in turn.
fn throughput(args: &Args) -> Result<Vec<Row>> {
    let sizes: Vec<u32> = SIZES.into_iter().filter(|size| *size <= args.up_to).collect();
    let (mut rates, mut events) = (vec![Vec::new(); sizes.len()], vec![0; sizes.len()]);
    for round in 0..args.rounds {
        for (at, workers) in sizes.iter().enumerate() {
            let played = play_apart(args, *workers, u64::from(round) + 1)?;
            rates[at].push(played.events as f64 / played.seconds);
            events[at] = played.events;
        }
    }
    let rows = sizes.into_iter().zip(rates.into_iter().zip(events)).map(|(workers, (rates, events))| {
        let events_per_s = median(rates);
        Row { workers, tasks: tasks_for(workers), events, events_per_s, ns_per_event: 1e9 / events_per_s }
    });
    Ok(rows.collect())
}

// ---- the queue of the textbooks ----

fn queue(args: &Args) -> Result<Scenario> {
    let mut scenario = Scenario::builtin("queueing").context("the scenario `queueing` is gone")?;
    scenario.workload.tasks = Some(args.jobs);
    Ok(scenario)
}

fn queueing(args: &Args) -> Result<Queue> {
    let python = python::with("simpy", &[SIMPY], "simpy")?;
    let scenario = queue(args)?;
    let Generator { rate, typical, .. } = scenario.workload;
    let servers = scenario.workers();
    let (mut ours, mut theirs, mut waits) = (Vec::new(), Vec::new(), (0.0, 0.0));
    for round in 0..args.rounds.max(3) {
        let seed = u64::from(round) + 1;
        let played = play_apart(args, 0, seed)?;
        ours.push(f64::from(args.jobs) / played.seconds);
        waits.0 += played.mean_wait_s;
        let arguments = [f64::from(args.jobs), f64::from(servers), rate, typical.as_secs_f64(), seed as f64];
        let said = python::ask(&python, "simpy/mmc.py", &arguments.map(|number| number.to_string()))?;
        let figure = |key: &str| said[key].as_f64().with_context(|| format!("SimPy did not say `{key}`"));
        theirs.push(f64::from(args.jobs) / figure("seconds")?);
        waits.1 += figure("mean_wait_s")?;
    }
    let rounds = ours.len() as f64;
    let ratio = median(ours.iter().zip(&theirs).map(|(ours, theirs)| ours / theirs).collect());
    Ok(Queue {
        jobs: args.jobs,
        filch_jobs_per_s: median(ours),
        simpy_jobs_per_s: median(theirs),
        ratio,
        filch_mean_wait_s: waits.0 / rounds,
        simpy_mean_wait_s: waits.1 / rounds,
    })
}

// ---- the large case ----

#[allow(clippy::print_stdout, reason = "the result of a benchmark")]
fn large(args: &Args) -> Result<()> {
    let scenario = cluster(10_000, args.tasks);
    let (world, seconds) = play(&scenario, 1)?;
    let peak_gib = peak_bytes().context("this system does not say how much memory was used")? / f64::from(1 << 30);
    let events = world.counts().events;
    let target = Target {
        promise: format!("{} tasks on 10000 workers within {MEMORY_GIB} GiB", args.tasks),
        found: format!("{peak_gib:.2} GiB"),
        holds: peak_gib <= MEMORY_GIB,
    };
    if args.json {
        let row = json!({
            "workers": 10_000, "tasks": args.tasks, "events": events, "seconds": seconds,
            "events_per_s": events as f64 / seconds, "peak_gib": peak_gib, "targets": [target],
        });
        println!("{row:#}");
        return Ok(());
    }
    println!(
        "{events} events in {seconds:.1} s, {:.0} events/s, at the most {peak_gib:.2} GiB",
        events as f64 / seconds
    );
    say(&[target]);
    Ok(())
}

/// The most memory this process ever had.
fn peak_bytes() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    let kib: f64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024.0)
}
