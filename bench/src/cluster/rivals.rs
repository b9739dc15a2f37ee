//! The same work on filch and on rivals, by turns.

use std::time::Instant;

use anyhow::{Context as _, Result};
use filch_node::client::Client;

use super::cases::{median, per_second, runtime, submit_singles, until_settled, wait};
use super::figures::Figure;
use super::peers::{connected, sleeps};
use super::roles::Cluster;
use crate::python;

const SECONDS: f64 = 0.01;
const WORKERS: u32 = 8;

/// How much of each work.
struct Amounts {
    rounds: usize,
    noops: u32,
    awaits: u32,
    /// Tasks that sleep, for each worker.
    each: u32,
}

/// What one system made of it.
#[derive(Clone, Copy, Debug)]
struct Made {
    tasks_per_s: f64,
    p50_us: f64,
    efficiency: f64,
}

/// Runs it all: a row for each system and work, with how many times as fast as the rival filch is.
pub(super) fn run(quick: bool) -> Result<Vec<Figure>> {
    let amounts = if quick {
        Amounts { rounds: 1, noops: 1_000, awaits: 50, each: 20 }
    } else {
        Amounts { rounds: 3, noops: 5_000, awaits: 200, each: 100 }
    };
    let python = python::with("rivals", &["dask", "distributed", "ray"], "dask, distributed, ray")?;
    let mut figures = Vec::new();
    for rival in ["dask", "ray"] {
        let (mut ours, mut theirs, mut version) = (Vec::new(), Vec::new(), String::new());
        for _ in 0..amounts.rounds {
            ours.push(filch(&amounts)?);
            let arguments = [
                rival.to_owned(),
                amounts.noops.to_string(),
                amounts.awaits.to_string(),
                WORKERS.to_string(),
                amounts.each.to_string(),
                SECONDS.to_string(),
            ];
            let said = python::ask(&python, "rivals/works.py", &arguments)?;
            let figure = |key: &str| said[key].as_f64().with_context(|| format!("{rival} did not say `{key}`"));
            let (tasks_per_s, p50_us, efficiency) = (figure("tasks_per_s")?, figure("p50_us")?, figure("efficiency")?);
            theirs.push(Made { tasks_per_s, p50_us, efficiency });
            said["version"].as_str().unwrap_or("?").clone_into(&mut version);
        }
        figures.extend(rows(rival, &version, &ours, &theirs));
    }
    Ok(figures)
}

fn rows(rival: &str, version: &str, ours: &[Made], theirs: &[Made]) -> Vec<Figure> {
    let middle = |made: &[Made], of: fn(&Made) -> f64| {
        let mut values: Vec<f64> = made.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let row = |case: &str, ratio: Option<f64>| Figure {
        ratio,
        note: if ratio.is_some() { format!("times {rival} {version}") } else { String::new() },
        ..Figure::new(case)
    };
    let rate = |made: &[Made]| middle(made, |made| made.tasks_per_s);
    let awaited = |made: &[Made]| middle(made, |made| made.p50_us);
    let busy = |made: &[Made]| middle(made, |made| made.efficiency);
    vec![
        Figure { tasks_per_s: Some(rate(theirs)), ..row(&format!("rival/noop/{rival}"), None) },
        Figure { tasks_per_s: Some(rate(ours)), ..row("rival/noop/filch", Some(rate(ours) / rate(theirs))) },
        Figure { p50_us: Some(awaited(theirs)), ..row(&format!("rival/await/{rival}"), None) },
        Figure {
            p50_us: Some(awaited(ours)),
            // Shorter is better here.
            ..row("rival/await/filch", Some(awaited(theirs) / awaited(ours)))
        },
        Figure { efficiency: Some(busy(theirs)), ..row(&format!("rival/8 × 10 ms/{rival}"), None) },
        Figure { efficiency: Some(busy(ours)), ..row("rival/8 × 10 ms/filch", Some(busy(ours) / busy(theirs))) },
    ]
}

fn filch(amounts: &Amounts) -> Result<Made> {
    let mut cluster = Cluster::start(true)?;
    cluster.add_workers(1, 1)?;
    cluster.add_workers(1, 1)?;
    let (tasks_per_s, p50_us) = runtime()?.block_on(async {
        let client = Client::connect(cluster.dial()?, "bench").await?;
        connected(&client, 2).await?;
        submit_singles(&client, 100).await?;
        until_settled(&client).await?;
        let began = Instant::now();
        submit_singles(&client, amounts.noops).await?;
        until_settled(&client).await?;
        let rate = per_second(amounts.noops, began.elapsed());
        let mut times = Vec::new();
        for _ in 0..amounts.awaits {
            let began = Instant::now();
            client.call("noop", "").await?;
            times.push(began.elapsed());
        }
        anyhow::Ok((rate, median(&mut times)))
    })?;
    let mut cluster = Cluster::start(true)?;
    for _ in 0..WORKERS {
        cluster.add_workers(1, 1)?;
    }
    let efficiency = runtime()?.block_on(async {
        let client = Client::connect(cluster.dial()?, "bench").await?;
        connected(&client, WORKERS as usize).await?;
        let run = async |seconds: f64, each: u32| {
            let submitted = client.submit(sleeps(&vec![seconds; (each * WORKERS) as usize], Vec::new())).await?;
            wait(&client, submitted.job).await
        };
        run(0.001, 10).await?;
        let began = Instant::now();
        run(SECONDS, amounts.each).await?;
        anyhow::Ok(f64::from(amounts.each) * SECONDS / began.elapsed().as_secs_f64())
    })?;
    Ok(Made { tasks_per_s, p50_us, efficiency })
}
