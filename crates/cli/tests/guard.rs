//! What runs dies with whoever ran it, also if that is killed and can do nothing about it any more.
#![cfg(target_os = "linux")]

mod common;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use common::{Cluster, filch, runs, wait_for};

/// Says who it is and who its child is, and would go on for ever, both of them. The second has left the group.
const SCRIPT: &str = "setsid sleep 1000 & echo $! > left-$FILCH_TASK; sleep 1000 & echo $! > child-$FILCH_TASK; \
                      echo $$ > self-$FILCH_TASK; wait";

fn noted(place: &Path, name: &str) -> Option<u32> {
    std::fs::read_to_string(place.join(name)).ok()?.trim().parse().ok()
}

fn all_noted(place: &Path, tasks: u32) -> Vec<u32> {
    let mut all = Vec::new();
    wait_for("all tasks run", || {
        all = (1..=tasks)
            .flat_map(|task| [noted(place, &format!("self-{task}")), noted(place, &format!("child-{task}"))])
            .flatten()
            .collect();
        all.len() == 2 * tasks as usize && all.iter().all(|process| runs(*process))
    });
    all
}

/// Those that left the session are nobody's any more; the test ends them.
fn end_those_that_left(place: &Path, tasks: u32) {
    for task in 1..=tasks {
        if let Some(process) = noted(place, &format!("left-{task}")) {
            assert!(runs(process), "who leaves the session is left alone, as when a command ends by itself");
            common::signal(process, "KILL");
        }
    }
}

#[test]
fn what_filch_run_runs_dies_with_it() {
    killed_run_leaves_nothing();
}

/// Where nobody has ever called `setsid`, as below the first process of a container, the number of the session is 0.
#[test]
fn what_filch_run_runs_dies_with_it_in_the_first_session_too() {
    if common::apart::inside("what_filch_run_runs_dies_with_it_in_the_first_session_too", &[], "true") {
        killed_run_leaves_nothing();
    }
}

fn is_empty(directory: &Path) -> bool {
    std::fs::read_dir(directory).expect("a directory").next().is_none()
}

/// Ctrl-C in the moment in which there is something to clean up, which is before anything runs.
#[test]
fn a_run_that_is_interrupted_at_once_leaves_nothing() {
    for _ in 0..10 {
        let own = tempfile::tempdir().expect("a directory");
        let mut command = filch(&["run", "--workers", "2", "--", "sleep", "1000"]);
        let mut run = command.env("TMPDIR", own.path()).spawn().expect("the binary runs");
        wait_for("it begins", || !is_empty(own.path()));
        let mut status = None;
        // Once, or once more if that came when something ran already.
        wait_for("it ends", || {
            common::signal(run.id(), "INT");
            status = run.try_wait().expect("a child");
            status.is_some()
        });
        assert_eq!(status.and_then(|status| status.code()), Some(130));
        assert!(is_empty(own.path()), "it cleans up");
    }
}

fn killed_run_leaves_nothing() {
    let place = tempfile::tempdir().expect("a directory");
    // Its name is no text, as names of directories need not be.
    let name = OsStr::from_bytes(b"own-\xff-");
    let own = tempfile::Builder::new().prefix(name).tempdir().expect("a directory");
    let mut run = filch(&["run", "--array", "1-2", "--workers", "2", "--", "sh", "-c", SCRIPT])
        .current_dir(place.path())
        .env("TMPDIR", own.path())
        .spawn()
        .expect("the binary runs");
    let processes = all_noted(place.path(), 2);
    assert!(!is_empty(own.path()), "its store is there");
    run.kill().expect("killed");
    run.wait().expect("gone");
    wait_for("all are gone", || !processes.iter().any(|process| runs(*process)));
    wait_for("its directory is gone", || is_empty(own.path()));
    end_those_that_left(place.path(), 2);
}

#[test]
fn what_a_worker_runs_dies_with_it_and_nothing_else_does() {
    let mut cluster = Cluster::start(&[]);
    let one = cluster.worker("one", &["--slots", "1"]);
    let two = cluster.worker("two", &["--slots", "1"]);
    let place = cluster.place.path().to_owned();
    cluster.told(&["submit", "--to", "one", "--array", "1-1", "--", "sh", "-c", SCRIPT]);
    let first = all_noted(&place, 1);
    cluster.told(&["submit", "--to", "two", "--", "sh", "-c", "echo $$ > other; exec sleep 1000"]);
    let mut other = 0;
    wait_for("the other runs", || {
        other = noted(&place, "other").unwrap_or(0);
        other > 0 && runs(other)
    });
    cluster.kill(one);
    wait_for("all are gone", || !first.iter().any(|process| runs(*process)));
    assert!(runs(other), "what another worker runs goes on");
    end_those_that_left(&place, 1);
    cluster.kill(two);
    wait_for("that is gone too", || !runs(other));
}

#[test]
fn a_guard_goes_with_whoever_it_guards() {
    let output = filch(&["run", "--", "sh", "-c", "echo $FILCH_LIFE"]).output().expect("the binary runs");
    assert!(output.status.success());
    let life = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    assert!(!life.is_empty(), "commands know whose they are");
    // It was waited for, so it is gone already.
    let guards = std::fs::read_dir("/proc").expect("processes").flatten().filter(|process| {
        let words = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        words.split(|byte| *byte == 0).any(|word| word == life.as_bytes())
    });
    assert_eq!(guards.count(), 0);
}
