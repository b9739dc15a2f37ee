//! What involves programs: the command line, and tasks that are processes.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use filch_core::wire::talk::{Part, Program, Words, Work};
use filch_node::client::Client;
use prost::Message as _;

use super::cases::{array, median, runtime, wait};
use super::figures::Figure;
use super::roles::Cluster;

/// One task, submitted and awaited with the `filch` binary that was built beside this one.
pub(super) fn awaited(quick: bool) -> Result<Vec<Figure>> {
    let binary = std::env::current_exe()?.with_file_name("filch");
    if !binary.exists() {
        let note = "left out: there is no filch binary; build it with `cargo build --release`".to_owned();
        return Ok(vec![Figure { note, ..Figure::new("command-line/await") }]);
    }
    let mut cluster = Cluster::start(false)?;
    cluster.add_workers(1, 2)?;
    let mut times = Vec::new();
    for _ in 0..if quick { 20 } else { 100 } {
        let began = Instant::now();
        let status = Command::new(&binary)
            .args(["submit", "--wait", "--no-progress", "--", "true"])
            .env("FILCH_ACCESS", cluster.dir.join("access.json"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .with_context(|| format!("cannot run {}", binary.display()))?;
        anyhow::ensure!(status.success(), "filch submit failed: {status}");
        times.push(began.elapsed());
    }
    let p50 = median(&mut times);
    let note = "of 12 ms".to_owned();
    Ok(vec![Figure { p50_us: Some(p50), ratio: Some(p50 / 12_000.0), note, ..Figure::new("command-line/await") }])
}

/// `/bin/true`, against a loop that only spawns it from two threads and against xargs, in turn.
pub(super) fn bin_true(quick: bool) -> Result<Vec<Figure>> {
    let (rounds, count) = if quick { (2, 1000) } else { (5, 2000) };
    let mut cluster = Cluster::start(false)?;
    cluster.add_workers(1, 2)?;
    let (mut ours, mut bare, mut xargs) = (Vec::new(), Vec::new(), Vec::new());
    let runtime = runtime()?;
    let client = runtime.block_on(Client::connect(cluster.dial()?, "bench"))?;
    let before = cluster.cpu();
    for _ in 0..rounds {
        let words = Words { words: vec!["/bin/true".into()] };
        let work = Work { program: Some(Program::Argv(words)), ..Work::default() };
        let part = Part { work: work.encode_to_vec().into(), ..Part::default() };
        ours.push(timed(|| {
            runtime.block_on(async {
                let submitted = client.submit(array(part, count)).await?;
                wait(&client, submitted.job).await
            })
        })?);
        bare.push(timed(|| bare_loop(count))?);
        xargs.push(timed(|| run_xargs(count))?);
    }
    // What the programs took is not in it.
    let after = cluster.cpu();
    let each = |before: Duration, after: Duration| (after - before).as_secs_f64() * 1e6 / f64::from(rounds * count);
    let (coordinator, worker) = (each(before.0, after.0), each(before.1, after.1));
    let rate = |times: &mut Vec<Duration>| f64::from(count) / (median(times) / 1e6);
    let (ours, bare, xargs) = (rate(&mut ours), rate(&mut bare), rate(&mut xargs));
    Ok(vec![
        Figure {
            tasks_per_s: Some(ours),
            cpu_us_per_task: Some(coordinator + worker),
            ratio: Some(ours / bare),
            note: format!(
                "of a bare loop on two threads; {:.2} of xargs -P2; coordinator {coordinator:.0} µs, worker {worker:.0} µs",
                ours / xargs
            ),
            ..Figure::new("true")
        },
        Figure { tasks_per_s: Some(bare), ..Figure::new("true/bare loop") },
        Figure { tasks_per_s: Some(xargs), ..Figure::new("true/xargs -P2") },
    ])
}

fn timed(run: impl FnOnce() -> Result<()>) -> Result<Duration> {
    let began = Instant::now();
    run()?;
    Ok(began.elapsed())
}

fn bare_loop(count: u32) -> Result<()> {
    let spawn = move || -> Result<()> {
        for _ in 0..count / 2 {
            let status = Command::new("/bin/true").stdin(Stdio::null()).status()?;
            anyhow::ensure!(status.success(), "/bin/true failed");
        }
        Ok(())
    };
    let threads = [std::thread::spawn(spawn), std::thread::spawn(spawn)];
    for thread in threads {
        thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
    }
    Ok(())
}

fn run_xargs(count: u32) -> Result<()> {
    let script = format!("seq {count} | xargs -P2 -n1 /bin/true");
    let status = Command::new("sh").args(["-c", &script]).status()?;
    anyhow::ensure!(status.success(), "xargs failed");
    Ok(())
}
