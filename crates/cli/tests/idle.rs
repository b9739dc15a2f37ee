//! What it costs to be there and do nothing: a coordinator of a thousand workers, and one worker, as processes of their own.
//!
//! Only the time that processors spent is looked at, not how long it took, so other tests do not disturb.

mod common;

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use filch_node::access::Access;
use filch_node::dial::Dial;
use filch_node::door;
use filch_node::worker::{Worker, WorkerOptions};

use common::{Cluster, wait_for};

const WINDOW: Duration = Duration::from_secs(4);

/// Processor time of all threads of a process so far.
fn spent(id: u32) -> Duration {
    let threads = std::fs::read_dir(format!("/proc/{id}/task")).expect("it lives");
    let nanos = threads.flatten().map(|thread| {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).unwrap_or_default();
        text.split(' ').next().and_then(|first| first.parse::<u64>().ok()).unwrap_or(0)
    });
    Duration::from_nanos(nanos.sum())
}

/// How much of a processor it takes for a while, in percent.
fn share(id: u32) -> f64 {
    let (before, began) = (spent(id), Instant::now());
    std::thread::sleep(WINDOW);
    (spent(id) - before).as_secs_f64() / began.elapsed().as_secs_f64() * 100.0
}

/// Memory that a process has written to and shares with nobody.
fn private(id: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{id}/smaps_rollup")).expect("it lives");
    let line = text.lines().find_map(|line| line.strip_prefix("Private_Dirty:")).expect("a size");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}

#[test]
#[ignore = "the program that another test compares with"]
fn child_is_empty() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(async {
        println!("ready");
        let _ = tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink())).await;
    });
}

/// A program with a runtime and nothing to do.
fn empty() -> Child {
    let mut command = Command::new(std::env::current_exe().expect("this test is a program"));
    command
        .args(["child_is_empty", "--exact", "--ignored", "--nocapture"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = command.spawn().expect("it runs");
    let lines = BufReader::new(child.stdout.take().expect("standard output")).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.contains("ready")));
    child
}

#[test]
fn a_thousand_workers_cost_their_coordinator_little() {
    const WORKERS: usize = 1000;
    door::permit_many();
    let cluster = Cluster::start(&["--plain"]);
    let access = Access::read(&cluster.place.path().join("access.json")).expect("an access file");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    for number in 0..WORKERS {
        let worker = Worker::new(WorkerOptions::new(format!("w{number}")));
        runtime.spawn(worker.run(Dial::Socket(access.clone())));
    }
    wait_for("all are connected", || cluster.json(&["stats", "--json"])["workers"] == WORKERS);
    // What their coming costs is over when there is a quiet moment.
    wait_for("it is quiet", || share(cluster.coordinator) < 5.0);
    let taken = share(cluster.coordinator);
    assert!(taken < 5.0, "{WORKERS} workers take {taken:.2} % of a processor");
    assert_eq!(cluster.json(&["stats", "--json"])["workers"], WORKERS);
    runtime.shutdown_background();
}

#[test]
fn a_worker_without_work_costs_next_to_nothing() {
    let mut cluster = Cluster::start(&[]);
    let idle = cluster.worker("idle", &["--slots", "1"]);
    let mut nothing = empty();
    wait_for("it is quiet", || share(idle) < 1.0);
    let above = private(idle).saturating_sub(private(nothing.id()));
    let taken = share(idle);
    assert!(taken < 1.0, "an idle worker takes {taken:.2} % of a processor");

    // Somebody has much to do that nobody else may have: it goes on asking.
    cluster.worker("busy", &["--slots", "1"]);
    let job = cluster.told(&["submit", "--array", "1-500", "--pin", "busy", "--", "sleep", "0.5"]);
    wait_for("it runs", || cluster.json(&["job", "show", job.trim(), "--json"])["running"] == 1);
    let searching = share(idle);
    assert!(searching < 5.0, "a worker that only searches takes {searching:.2} % of a processor");
    assert_eq!(cluster.json(&["worker", "show", "idle", "--json"])["completed"], 0);
    cluster.told(&["job", "cancel", job.trim()]);
    let _ = nothing.kill();
    let _ = nothing.wait();
    eprintln!("idle {taken:.2} %, searching {searching:.2} %, {above} bytes above an empty program");
    assert!(above < 5_000_000, "an idle worker has {above} bytes more than an empty program");
}
