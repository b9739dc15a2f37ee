//! Tasks that are pinned to a worker whose process dies and is started anew under the same name.

mod common;

use common::{Cluster, wait_for};

/// A cluster with a worker that runs the first of three tasks pinned to it.
fn with_pinned(options: &[&str]) -> (Cluster, u32) {
    let mut cluster = Cluster::start_with("limits: { lease: 1s }", options);
    let worker = cluster.worker("alpha", &["--slots", "1"]);
    cluster.worker("beta", &["--slots", "1"]);
    // Whoever comes first would take very long.
    let script = "mkdir began 2> /dev/null && sleep 600; echo $FILCH_TASK $FILCH_WORKER";
    cluster.told(&["submit", "--array", "1-3", "--pin", "alpha", "--", "sh", "-c", script]);
    wait_for("the first runs", || cluster.json(&["job", "show", "1", "--json"])["running"].as_u64() == Some(1));
    (cluster, worker)
}

fn all_run(cluster: &Cluster) {
    assert_eq!(cluster.run(&["job", "wait", "1"]).status.code(), Some(0), "{}", cluster.told(&["task", "list", "1"]));
    for number in 1..=3 {
        let logs = cluster.told(&["task", "logs", &format!("1.{number}")]);
        assert_eq!(logs, format!("{number} alpha\n"));
    }
}

fn is_given_up(cluster: &Cluster) -> bool {
    cluster.json(&["worker", "list", "--json"]).as_array().map(Vec::len) == Some(1)
}

#[test]
fn a_worker_that_is_started_anew_at_once_gets_them() {
    let (mut cluster, worker) = with_pinned(&[]);
    cluster.kill(worker);
    cluster.worker("alpha", &["--slots", "1"]);
    all_run(&cluster);
}

/// The journal is folded all the time, so that what is known of workers that have left must be in snapshots.
const FOLD: &[&str] = &["--fold-after", "300"];

#[test]
fn so_does_one_that_is_started_when_it_was_given_up_long_ago_and_the_coordinator_began_anew() {
    for options in [&[][..], FOLD] {
        comes_back_late(options);
    }
}

fn comes_back_late(options: &[&str]) {
    let (mut cluster, worker) = with_pinned(options);
    cluster.kill(worker);
    wait_for("it is given up", || is_given_up(&cluster));
    let waits = cluster.json(&["task", "list", "1", "--json"]);
    assert!(waits.as_array().is_some_and(|all| all.iter().all(|task| task["status"] == "unschedulable")), "{waits}");
    let coordinator = cluster.coordinator;
    // Something more for the journal, so that it is folded.
    cluster.told(&["submit", "--wait", "--array", "1-20", "--", "true"]);
    cluster.kill(coordinator);
    cluster.serve(options);
    wait_for("the coordinator is back", || cluster.run(&["worker", "show", "beta"]).status.success());
    cluster.worker("alpha", &["--slots", "1"]);
    all_run(&cluster);
}
