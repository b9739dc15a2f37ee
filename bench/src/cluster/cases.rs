//! The cases. Rivals and bare limits are measured in the same run, alternating.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use filch_core::wire::talk::{Array, Part, Parts, Program, Said, Submit, Work};
use filch_node::client::Client;
use filch_node::view::{Query, StatsView};
use prost::Message as _;

use super::figures::Figure;
use super::roles::Cluster;
use super::{command_line, peers};

type Case = fn(bool) -> Result<Vec<Figure>>;

const CASES: [(&str, Case); 9] = [
    ("noop-array", noop_array),
    ("noop-single", noop_single),
    ("await", awaited),
    ("command-line", command_line::awaited),
    ("true", command_line::bin_true),
    ("steal", peers::steal),
    ("scaling", peers::scaling),
    ("idle", peers::idle),
    ("recovery", recovery),
];

pub(super) fn run(filter: Option<&str>, quick: bool) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for (name, case) in CASES {
        if filter.is_none_or(|filter| name.contains(filter)) {
            figures.extend(case(quick).with_context(|| format!("the case {name}"))?);
        }
    }
    Ok(figures)
}

pub(super) fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

pub(super) fn call(function: &str, input: &str) -> Part {
    let program = Some(Program::Call(function.to_owned()));
    let work = Work { program, stdin: Bytes::from(input.to_owned()), ..Work::default() };
    Part { work: work.encode_to_vec().into(), ..Part::default() }
}

pub(super) fn array(part: Part, count: u32) -> Submit {
    let array = Array { part: Some(part), count, step: 1, ..Array::default() };
    Submit { parts: Some(Parts::Array(array)), ..Submit::default() }
}

#[allow(clippy::cast_precision_loss)]
pub(super) fn per_second(tasks: u32, took: Duration) -> f64 {
    f64::from(tasks) / took.as_secs_f64()
}

fn note_of((coordinator, workers): (Duration, Duration), tasks: u32) -> (f64, String) {
    let each = |time: Duration| time.as_secs_f64() * 1e6 / f64::from(tasks);
    (each(coordinator + workers), format!("coordinator {:.2}, workers {:.2} µs", each(coordinator), each(workers)))
}

fn noop_array(quick: bool) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    let count = if quick { 200_000 } else { 1_000_000 };
    for tls in [false, true] {
        let mut cluster = Cluster::start(tls)?;
        cluster.add_workers(1, 128)?;
        let took = runtime()?.block_on(async {
            let client = Client::connect(cluster.dial()?, "bench").await?;
            let submitted = client.submit(array(call("noop", ""), 1000)).await?;
            wait(&client, submitted.job).await?;
            let began = Instant::now();
            let submitted = client.submit(array(call("noop", ""), count)).await?;
            wait(&client, submitted.job).await?;
            anyhow::Ok(began.elapsed())
        })?;
        let (cpu, note) = note_of(cluster.cpu(), count);
        figures.push(Figure {
            tasks_per_s: Some(per_second(count, took)),
            cpu_us_per_task: Some(cpu),
            rss_bytes: cluster.coordinator.as_ref().map(super::roles::Process::peak_memory),
            note,
            ..Figure::new(format!("noop-array/{count}{}", if tls { "/tls" } else { "" }))
        });
    }
    Ok(figures)
}

pub(super) async fn wait(client: &Client, job: u64) -> Result<()> {
    let mut follow = client.watch(job, false).await?;
    while let Some(said) = follow.next().await {
        if let Said::JobDone(_) = said? {
            return Ok(());
        }
    }
    anyhow::bail!("the job was never done")
}

fn noop_single(quick: bool) -> Result<Vec<Figure>> {
    let count = if quick { 50_000 } else { 300_000 };
    let mut cluster = Cluster::start(false)?;
    cluster.add_workers(1, 128)?;
    let took = runtime()?.block_on(async {
        let client = Client::connect(cluster.dial()?, "bench").await?;
        let began = Instant::now();
        submit_singles(&client, count).await?;
        until_settled(&client).await?;
        anyhow::Ok(began.elapsed())
    })?;
    let (cpu, note) = note_of(cluster.cpu(), count);
    Ok(vec![Figure {
        tasks_per_s: Some(per_second(count, took)),
        cpu_us_per_task: Some(cpu),
        rss_bytes: cluster.coordinator.as_ref().map(super::roles::Process::peak_memory),
        note,
        ..Figure::new(format!("noop-single/{count}"))
    }])
}

/// Many submissions under way at once, each with a payload of its own.
pub(super) async fn submit_singles(client: &Client, count: u32) -> Result<()> {
    let client = std::sync::Arc::new(client.clone());
    let lanes = 2000;
    let mut tasks = Vec::new();
    for lane in 0..lanes {
        let client = std::sync::Arc::clone(&client);
        tasks.push(tokio::spawn(async move {
            for number in (lane..count).step_by(lanes as usize) {
                let part = call("noop", &format!("payload number {number}"));
                client.submit(Submit { parts: Some(Parts::Single(part)), ..Submit::default() }).await?;
            }
            anyhow::Ok(())
        }));
    }
    for task in tasks {
        task.await??;
    }
    Ok(())
}

pub(super) async fn until_settled(client: &Client) -> Result<()> {
    loop {
        let stats: StatsView = client.query(&Query::Stats).await?;
        if stats.unsettled == 0 {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// One task, submitted and awaited, against writing to the disk.
fn awaited(quick: bool) -> Result<Vec<Figure>> {
    let rounds = if quick { 200 } else { 1000 };
    let mut cluster = Cluster::start(false)?;
    cluster.add_workers(1, 2)?;
    let file = std::fs::File::create(cluster.dir.join("sync"))?;
    let (mut ours, mut syncs) = (Vec::new(), Vec::new());
    runtime()?.block_on(async {
        let client = Client::connect(cluster.dial()?, "bench").await?;
        for round in 0..rounds {
            let began = Instant::now();
            client.call("echo", "x").await?;
            ours.push(began.elapsed());
            std::os::unix::fs::FileExt::write_all_at(&file, &[7; 4096], round * 4096)?;
            let began = Instant::now();
            file.sync_data()?;
            syncs.push(began.elapsed());
        }
        anyhow::Ok(())
    })?;
    let (ours, sync) = (median(&mut ours), median(&mut syncs));
    let allowed = 2.2 * sync + 200.0;
    Ok(vec![Figure {
        p50_us: Some(ours),
        ratio: Some(ours / allowed),
        note: format!("of 2.2 × fdatasync ({sync:.0} µs) + 200 µs"),
        ..Figure::new("await/client")
    }])
}

/// In microseconds.
pub(super) fn median(times: &mut [Duration]) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e6
}

/// Tasks that were submitted one by one, and a coordinator that is killed and comes back.
fn recovery(quick: bool) -> Result<Vec<Figure>> {
    let count = if quick { 100_000 } else { 1_000_000 };
    let mut cluster = Cluster::start(false)?;
    let began = Instant::now();
    runtime()?.block_on(async {
        let client = Client::connect(cluster.dial()?, "bench").await?;
        submit_singles(&client, count).await
    })?;
    let submitting = began.elapsed();
    let queued = cluster.coordinator.as_ref().map(super::roles::Process::peak_memory);
    if let Some(coordinator) = cluster.coordinator.take() {
        coordinator.kill();
    }
    let began = Instant::now();
    cluster.begin(false)?;
    let left = runtime()?.block_on(async {
        let client = Client::connect(cluster.dial()?, "bench").await?;
        let stats: StatsView = client.query(&Query::Stats).await?;
        anyhow::Ok(stats.unsettled)
    })?;
    let took = began.elapsed();
    anyhow::ensure!(left == u64::from(count), "{left} of {count} tasks were found again");
    Ok(vec![
        Figure {
            tasks_per_s: Some(per_second(count, submitting)),
            rss_bytes: queued,
            ..Figure::new(format!("submit-only/{count}"))
        },
        Figure {
            tasks_per_s: Some(per_second(count, took)),
            rss_bytes: cluster.coordinator.as_ref().map(super::roles::Process::peak_memory),
            note: format!("{:.2} s", took.as_secs_f64()),
            ..Figure::new(format!("recovery/{count}"))
        },
    ])
}
