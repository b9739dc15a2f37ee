//! `cargo xtask bench balancer`: whole lives of tasks per second through `filch::Balancer`, from one and two threads.
//!
//! One cycle is submit, next, start and succeed. Rounds of one and of two threads alternate, so that a disturbance hits
//! both; what is reported is the median of the rounds.

use std::time::Instant;

use anyhow::{Context as _, Result, anyhow};
use clap::Parser;
use filch::{Balancer, Task, Worker};
use mimalloc::MiMalloc;
use serde_json::json;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// What must be reached with two threads.
const TARGET_PER_SECOND: f64 = 500_000.0;

/// Measures the balancer from one and two threads.
#[derive(Debug, Parser)]
#[command(name = "balancer")]
struct Args {
    /// Prints JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// Cycles of each thread in a round.
    #[arg(long, default_value_t = 300_000)]
    cycles: u32,
    /// Rounds.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Runs only so many threads, to look at one of the two by itself; says nothing of what must hold.
    #[arg(long)]
    threads: Option<u32>,
}

#[allow(clippy::print_stdout, reason = "the result of a benchmark")]
fn main() -> Result<()> {
    let args = Args::parse();
    let mut found =
        args.threads.map_or_else(|| vec![(1, Vec::new()), (2, Vec::new())], |only| vec![(only, Vec::new())]);
    for _ in 0..args.rounds.max(1) {
        for (threads, rates) in &mut found {
            rates.push(round(*threads, args.cycles)?);
        }
    }
    let mut rows = Vec::new();
    for (threads, rates) in &mut found {
        rates.sort_unstable_by(f64::total_cmp);
        let (median, best) = (rates[rates.len() / 2], rates[rates.len() - 1]);
        rows.push(json!({"threads": threads, "cycles_per_s": median.round(), "best_cycles_per_s": best.round()}));
    }
    if args.json {
        println!("{:#}", json!(rows));
        return Ok(());
    }
    println!("threads  cycles/s (median of {})  best", args.rounds);
    for row in &rows {
        let figure = |key: &str| row[key].as_f64().unwrap_or_default();
        println!("{:>7}  {:>24.0}  {:.0}", figure("threads"), figure("cycles_per_s"), figure("best_cycles_per_s"));
    }
    if args.threads.is_some() {
        return Ok(());
    }
    let reached = rows[1]["cycles_per_s"].as_f64().unwrap_or_default();
    let word = if reached >= TARGET_PER_SECOND { "holds" } else { "DOES NOT HOLD" };
    println!("at least {TARGET_PER_SECOND} cycles/s from 2 threads: {word}");
    Ok(())
}

/// Cycles per second of so many threads together.
fn round(threads: u32, cycles: u32) -> Result<f64> {
    let balancer: Balancer = Balancer::builder().build()?;
    let start = Instant::now();
    let running: Vec<_> = (0..threads)
        .map(|index| {
            let balancer = balancer.clone();
            std::thread::spawn(move || run(&balancer, index, cycles))
        })
        .collect();
    for thread in running {
        thread.join().map_err(|_| anyhow!("a thread panicked"))?.context("a cycle was refused")?;
    }
    let seconds = start.elapsed().as_secs_f64();
    let total = u64::from(cycles) * u64::from(threads);
    anyhow::ensure!(balancer.metrics().completed == total, "not every task was completed");
    Ok(total as f64 / seconds)
}

fn run(balancer: &Balancer, index: u32, cycles: u32) -> Result<(), filch::Error> {
    let worker = balancer.register_worker(Worker::new(format!("worker-{index}")))?;
    for _ in 0..cycles {
        balancer.submit(Task::new())?;
        // Each thread has submitted as much as it has taken, so there is always one; the other may have it for a moment.
        let assignment = loop {
            if let Some(assignment) = balancer.next(worker)? {
                break assignment;
            }
        };
        assignment.start()?;
        assignment.succeed(())?;
    }
    Ok(())
}
