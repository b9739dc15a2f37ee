//! Many workers: how they steal from each other, how evenly that makes them work, and what they cost while they do nothing.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::Result;
use bytes::Bytes;
use filch_core::wire::talk::{Array, Parts, Submit, Terms};
use filch_core::{Span, Time};
use filch_node::client::Client;
use filch_node::view::{Query, StatsView, WorkerView};
use filch_sim::cluster::Class;
use filch_sim::generate::Generator;
use filch_sim::workload::Run;
use filch_sim::{Scenario, World};

use super::cases::{call, median, runtime, wait};
use super::figures::Figure;
use super::roles::{Cluster, Process};

/// Waits until so many workers are connected; their names.
pub(super) async fn connected(client: &Client, count: usize) -> Result<Vec<String>> {
    loop {
        let workers: Vec<WorkerView> = client.query(&Query::Workers).await?;
        if workers.iter().filter(|worker| worker.connected).count() >= count {
            return Ok(workers.into_iter().map(|worker| worker.worker).collect());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Tasks that sleep for so long each, all pushed to the queues of some workers.
pub(super) fn sleeps(seconds: &[f64], to: Vec<String>) -> Submit {
    let mut part = call("sleep", "");
    part.terms = Some(Terms { to, kind: "sleep".to_owned(), ..Terms::default() });
    let inputs = seconds.iter().map(|time| Bytes::from(time.to_string())).collect();
    let count = u32::try_from(seconds.len()).unwrap_or(u32::MAX);
    let array = Array { part: Some(part), count, inputs, first: 0, step: 1, ..Array::default() };
    Submit { parts: Some(Parts::Array(array)), ..Submit::default() }
}

/// How long a thief waits for an answer, as workers of one machine reach each other and as those of several do, against a
/// ping-pong of two processes.
pub(super) fn steal(quick: bool) -> Result<Vec<Figure>> {
    let rounds = if quick { 3 } else { 7 };
    // Each round of each kind with processes of its own: where the system puts them, which decides how long they wait for each
    // other, is another question each time.
    let mut found = [Vec::new(), Vec::new()];
    for _ in 0..rounds {
        for (found, over_network) in found.iter_mut().zip([false, true]) {
            found.push(steal_round(over_network)?);
        }
    }
    let [local, network] = found;
    Ok(vec![steal_figure("steal", &local), steal_figure("steal/over network", &network)])
}

struct StealRound {
    /// What the cluster says of its steals.
    steal_us: f64,
    /// Of a ping-pong before and after it.
    ping_pong_us: f64,
    /// Of one at the same time.
    beside_us: f64,
    steals: u64,
    relayed: u64,
}

fn steal_round(over_network: bool) -> Result<StealRound> {
    let tasks = 1000;
    let each = Duration::from_millis(2);
    let mut alone = ping_pong(tasks / 4, each)?;
    let mut cluster = Cluster::start(false)?;
    cluster.over_network = over_network;
    cluster.add_workers(1, 1)?;
    cluster.add_workers(1, 1)?;
    let runtime = runtime()?;
    let client = runtime.block_on(Client::connect(cluster.dial()?, "bench"))?;
    let steals = |tasks: usize| {
        runtime.block_on(async {
            let workers = connected(&client, 2).await?;
            let submitted = client.submit(sleeps(&vec![each.as_secs_f64(); tasks], vec![workers[0].clone()])).await?;
            wait(&client, submitted.job).await
        })
    };
    steals(tasks)?;
    let stats = runtime.block_on(async {
        // What the workers know of their steals comes with their next sign of life.
        tokio::time::sleep(Duration::from_millis(500)).await;
        client.query::<StatsView>(&Query::Stats).await
    })?;
    // Again, with a ping-pong that is over before that is.
    let other = std::thread::spawn(move || ping_pong(tasks / 4, each));
    steals(tasks)?;
    let mut beside = other.join().map_err(|_| anyhow::anyhow!("the ping-pong panicked"))??;
    drop(cluster);
    alone.extend(ping_pong(tasks / 4, each)?);
    let number = |name| stats.steals.get(name).and_then(serde_json::Value::as_f64).unwrap_or(f64::NAN);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    Ok(StealRound {
        steal_us: number("latency_p50_s") * 1e6,
        ping_pong_us: median(&mut alone),
        beside_us: median(&mut beside),
        steals: number("successes") as u64,
        relayed: stats.relayed,
    })
}

fn steal_figure(name: &str, rounds: &[StealRound]) -> Figure {
    let middle = |of: &dyn Fn(&StealRound) -> f64| {
        let mut all: Vec<f64> = rounds.iter().map(of).collect();
        all.sort_unstable_by(f64::total_cmp);
        (all[all.len() / 2], all)
    };
    let (steal_us, _) = middle(&|round| round.steal_us);
    let (alone, _) = middle(&|round| round.ping_pong_us);
    let (beside, _) = middle(&|round| round.beside_us);
    let (ratio, all) = middle(&|round| round.steal_us / round.ping_pong_us);
    let each = all.iter().map(|ratio| format!("{ratio:.2}")).collect::<Vec<_>>().join(" ");
    let (steals, relayed) = rounds.iter().fold((0, 0), |sum, round| (sum.0 + round.steals, sum.1 + round.relayed));
    let note = format!(
        "of a TCP ping-pong as often as tasks end ({alone:.1} µs; beside the steals {beside:.1} µs), the middle of {each}; \
         {steals} steals, {relayed} relayed"
    );
    Figure { p50_us: Some(steal_us), ratio: Some(ratio), note, ..Figure::new(name) }
}

/// A byte there and back between two processes, again and again with pauses: how long each took. Whoever was idle for a while
/// has to be woken, which takes longer than the way.
fn ping_pong(rounds: usize, pause: Duration) -> Result<Vec<Duration>> {
    let pong = Process::start(&["pong"])?;
    let mut socket = TcpStream::connect(&pong.first_line)?;
    socket.set_nodelay(true)?;
    let mut times = Vec::new();
    let mut byte = [1];
    for _ in 0..rounds {
        if !pause.is_zero() {
            std::thread::sleep(pause);
        }
        let began = Instant::now();
        socket.write_all(&byte)?;
        socket.read_exact(&mut byte)?;
        times.push(began.elapsed());
    }
    drop(socket);
    Ok(times)
}

/// Many workers with one slot each; everything is pushed to a tenth of them.
pub(super) fn scaling(quick: bool) -> Result<Vec<Figure>> {
    let each = if quick { 20 } else { 100 };
    // What the network of this machine takes one way.
    let way = Span((median(&mut ping_pong(200, Duration::from_millis(2))?) * 500.0) as u64);
    let mut figures = Vec::new();
    for workers in [10_u32, 50, 100] {
        let mut cluster = Cluster::start(false)?;
        for _ in 0..workers / 10 {
            cluster.add_workers(10, 1)?;
        }
        // Between 50 and 200 ms, in an order that is the same every time and no pattern.
        let mut state = 7_u64;
        let seconds: Vec<f64> = (0..workers * each)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                #[allow(clippy::cast_precision_loss)]
                let share = (state >> 33) as f64 / (1_u64 << 31) as f64;
                0.05 + 0.15 * share
            })
            .collect();
        let took = runtime()?.block_on(async {
            let client = Client::connect(cluster.dial()?, "bench").await?;
            let names = connected(&client, workers as usize).await?;
            let to: Vec<String> = names.into_iter().step_by(10).collect();
            let began = Instant::now();
            let submitted = client.submit(sleeps(&seconds, to)).await?;
            wait(&client, submitted.job).await?;
            anyhow::Ok(began.elapsed())
        })?;
        let busy: f64 = seconds.iter().sum();
        let took = took.as_secs_f64();
        let predicted = predict(workers, &seconds, way)?;
        let note = format!(
            "{took:.2} s, ideal {:.2} s; the simulator says {predicted:.2} s ({:+.1}%, at most 5)",
            busy / f64::from(workers),
            (predicted / took - 1.0) * 100.0
        );
        figures.push(Figure {
            efficiency: Some(busy / (took * f64::from(workers))),
            ratio: Some(predicted / took),
            note,
            ..Figure::new(format!("scaling/{workers} workers"))
        });
    }
    Ok(figures)
}

/// How long the same takes in virtual time, in seconds.
fn predict(workers: u32, seconds: &[f64], way: Span) -> Result<f64> {
    let mut scenario = Scenario::default();
    scenario.cluster = vec![Class::plain(workers)];
    scenario.network.latency = way;
    scenario.workload = Generator { tasks: Some(seconds.len() as u32), pushed_to: 0.1, ..Generator::default() };
    let (setting, mut workload) = scenario.make(1);
    for (task, seconds) in workload.tasks.iter_mut().zip(seconds) {
        task.run = Run::Same(Span((seconds * 1e9) as u64));
    }
    let mut world = World::new(setting, workload)?;
    world.run(Time::NEVER).map_err(anyhow::Error::msg)?;
    anyhow::ensure!(world.is_done(), "the simulator did not come to an end");
    let last = world.fates().iter().map(|fate| fate.ended).max().unwrap_or_default();
    Ok(last.since(Time::ZERO).as_secs_f64())
}

/// What it costs to be there: a thousand workers, and one that does nothing, and one that only searches for work.
pub(super) fn idle(quick: bool) -> Result<Vec<Figure>> {
    let window = Duration::from_secs(if quick { 3 } else { 15 });
    let mut cluster = Cluster::start(false)?;
    for _ in 0..4 {
        cluster.add_workers(250, 1)?;
    }
    let empty = Process::start(&["empty"])?;
    cluster.add_workers(1, 1)?;
    let runtime = runtime()?;
    let (thousand, one) = runtime.block_on(async {
        let client = Client::connect(cluster.dial()?, "bench").await?;
        connected(&client, 1001).await?;
        tokio::time::sleep(Duration::from_secs(2)).await;
        anyhow::Ok(shares(&cluster, window).await)
    })?;
    let last = cluster.workers.last().map_or(0, Process::private_memory);
    let above = last.saturating_sub(empty.private_memory());
    let searching = searching(window)?;
    Ok(vec![
        Figure {
            note: format!("the coordinator takes {thousand:.2}% of a core (at most 5)"),
            missed: thousand > 5.0,
            ..Figure::new("idle/1000 workers")
        },
        Figure {
            rss_bytes: Some(above),
            note: format!("above an empty program (at most 5 MB), and {one:.2}% of a core (at most 1)"),
            missed: one > 1.0 || above > 5_000_000,
            ..Figure::new("idle/one worker")
        },
        Figure {
            note: format!("{searching:.2}% of a core (at most 5)"),
            missed: searching > 5.0,
            ..Figure::new("idle/one that searches")
        },
    ])
}

/// What a worker takes while another has much to do that nobody else may have, in percent of a core.
fn searching(window: Duration) -> Result<f64> {
    let mut cluster = Cluster::start(false)?;
    cluster.add_workers(1, 1)?;
    cluster.add_workers(1, 1)?;
    runtime()?.block_on(async {
        let client = Client::connect(cluster.dial()?, "bench").await?;
        let workers = connected(&client, 2).await?;
        let mut submit = sleeps(&vec![0.5; 500], Vec::new());
        if let Some(Parts::Array(Array { part: Some(part), .. })) = &mut submit.parts {
            // The names are in the order of the processes, and the last one is looked at.
            part.terms = Some(Terms { pin: workers.iter().min().cloned(), ..Terms::default() });
        }
        client.submit(submit).await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
        anyhow::Ok(shares(&cluster, window).await.1)
    })
}

/// What the coordinator and the last process of workers take for a while, in percent of a core.
async fn shares(cluster: &Cluster, window: Duration) -> (f64, f64) {
    let before = usage(cluster);
    tokio::time::sleep(window).await;
    let after = usage(cluster);
    let share = |before: Duration, after: Duration| (after - before).as_secs_f64() / window.as_secs_f64() * 100.0;
    (share(before.0, after.0), share(before.1, after.1))
}

/// Processor time of the coordinator and of the last process of workers.
fn usage(cluster: &Cluster) -> (Duration, Duration) {
    let last = cluster.workers.last().map_or(Duration::ZERO, Process::cpu);
    (cluster.cpu().0, last)
}
