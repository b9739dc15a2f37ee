//! Workers that leave while many short tasks run and are stolen: nothing is lost, and nothing runs twice.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test")]

mod common;

use common::{Cluster, ends, signal, wait_for};

/// Runs tasks on four workers, one of which is told to go in between; how often each ran.
fn runs_while_one_leaves(options: &[&str], go: impl Fn(&Cluster, u32)) {
    const TASKS: usize = 1200;
    let mut cluster = Cluster::start(&["--plain"]);
    let leaver = cluster.worker("leaver", &["--slots", "4"]);
    for name in ["one", "two", "three"] {
        cluster.worker(name, &["--slots", "4"]);
    }
    let log = cluster.place.path().join("log");
    let script = "echo $FILCH_TASK >> log; sleep 0.005; echo $FILCH_TASK >> log";
    let array = ["submit", "--array", "1-1200"];
    let job = cluster.told(&[&array[..], options, &["--", "sh", "-c", script]].concat());
    let lines = || std::fs::read_to_string(&log).unwrap_or_default();
    wait_for("some have run", || lines().lines().count() > TASKS / 2);
    go(&cluster, leaver);
    assert!(ends(cluster.take(leaver)).is_some());
    assert_eq!(cluster.run(&["job", "wait", job.trim()]).status.code(), Some(0));
    let mut seen = vec![0; TASKS + 1];
    for line in lines().lines() {
        seen[line.parse::<usize>().expect("a number")] += 1;
    }
    let others: Vec<usize> = (1..=TASKS).filter(|task| seen[*task] != 2).collect();
    assert!(others.is_empty(), "did not run once, from beginning to end: {others:?}");
}

#[test]
fn whoever_is_drained_finishes_what_runs_and_gives_back_the_rest() {
    runs_while_one_leaves(&[], |cluster, _| drop(cluster.told(&["worker", "drain", "leaver"])));
}

#[test]
fn whoever_is_drained_while_others_steal_from_it_does_too() {
    runs_while_one_leaves(&["--to", "leaver"], |cluster, _| drop(cluster.told(&["worker", "drain", "leaver"])));
}

#[test]
fn whoever_is_interrupted_does_too() {
    runs_while_one_leaves(&[], |_, leaver| signal(leaver, "INT"));
    runs_while_one_leaves(&["--to", "leaver"], |_, leaver| signal(leaver, "INT"));
}

#[test]
fn whoever_is_killed_gets_nothing_of_what_comes_after() {
    let mut cluster = Cluster::start_with("limits: { lease: 10m }", &["--plain"]);
    let gone = cluster.worker("gone", &["--slots", "8"]);
    cluster.worker("there", &["--slots", "1"]);
    cluster.kill(gone);
    wait_for("that is noticed", || cluster.json(&["worker", "show", "gone", "--json"])["connected"] == false);
    // Nobody waits for its lease to end.
    assert_eq!(cluster.run(&["submit", "--wait", "--array", "1-8", "--", "true"]).status.code(), Some(0));
    let tasks = cluster.json(&["task", "list", "1", "--json"]);
    assert!(tasks.as_array().expect("tasks").iter().all(|task| task["worker"] == "there"), "{tasks}");
}
