//! More than anybody can take at once: outputs, answers, what nobody can run, what runs too long. It may take longer; it must
//! come to an end, and say what became of it.

mod common;

use std::os::unix::fs::PermissionsExt as _;

use common::{Cluster, filch, wait_for};

#[test]
fn outputs_that_are_more_than_a_packet_all_arrive() {
    let mut cluster = Cluster::start(&["--plain"]);
    // All of them end together: 12 MB each, 144 MB in all, while a packet has 64 at the most.
    cluster.worker("alpha", &["--slots", "12"]);
    let script = "head -c 12000000 /dev/zero; : > {n}.there; while ! test -e go; do sleep 0.02; done";
    let job = cluster.told(&["submit", "--keep", "16M", "--array", "1-12", "--shell", "--", script]);
    let place = cluster.place.path().to_owned();
    wait_for("all have written", || (1..=12).all(|number| place.join(format!("{number}.there")).exists()));
    std::fs::write(place.join("go"), "").expect("written");
    let job = job.trim();
    assert_eq!(cluster.run(&["job", "wait", job]).status.code(), Some(0));
    for number in 1..=12 {
        let logs = cluster.run(&["task", "logs", &format!("{job}.{number}")]);
        assert_eq!(logs.stdout.len(), 12_000_000, "of task {number}: {}", String::from_utf8_lossy(&logs.stderr));
    }
}

#[test]
fn an_answer_that_is_too_long_is_refused() {
    let cluster = Cluster::start(&["--plain"]);
    cluster.told(&["submit", "--array", "1-400000", "--", "true"]);
    let all = cluster.run(&["task", "list", "1", "--limit", "400000", "--json"]);
    assert_eq!(all.status.code(), Some(1));
    let said = String::from_utf8_lossy(&all.stderr).into_owned();
    assert!(said.contains("at most") && said.contains("ask for less"), "{said}");
    let some = cluster.json(&["task", "list", "1", "--limit", "1000", "--json"]);
    assert_eq!(some.as_array().map(Vec::len), Some(1000));
}

#[test]
fn a_task_that_runs_too_long_leaves_what_it_wrote() {
    for round in 0..6 {
        let script = "echo before; sleep 30";
        let output =
            filch(&["run", "--timeout", "200ms", "--json", "--", "sh", "-c", script]).output().expect("it runs");
        assert_eq!(output.status.code(), Some(1));
        let first = String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_owned();
        let task: serde_json::Value = serde_json::from_str(&first).expect("JSON");
        assert_eq!(task["stdout"], "before\n", "round {round}: {task}");
        assert_eq!(task["attempts"], 1, "{task}");
        assert!(task["ran_s"].as_f64().is_some_and(|seconds| (0.1..20.0).contains(&seconds)), "{task}");
    }
}

#[test]
fn time_begins_when_a_task_does_and_only_runs_count_as_attempts() {
    // The second waits for longer than it may run, and the first does not want to end.
    let script = "trap '' TERM; if test $FILCH_TASK = 1; then sleep 1; sleep 1; fi; echo $FILCH_TASK";
    let output = filch(&["run", "-j", "1", "--timeout", "500ms", "--json", "--array", "1-2", "--", "sh", "-c", script])
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let tasks: Vec<serde_json::Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let of = |number: i64| tasks.iter().find(|task| task["number"] == number).unwrap_or_else(|| panic!("{text}"));
    assert_eq!((of(1)["status"].as_str(), of(1)["attempts"].as_i64()), (Some("failed"), Some(1)), "{text}");
    assert_eq!((of(2)["status"].as_str(), of(2)["attempts"].as_i64()), (Some("completed"), Some(1)), "{text}");
}

#[test]
fn what_nobody_can_run_says_why_to_everybody() {
    let mut cluster = Cluster::start_with("limits:\n  max_requeue_attempts: 1\n  requeue_interval: 1s\n", &["--plain"]);
    cluster.worker("alpha", &["--slots", "1"]);
    let waited = cluster.run(&["submit", "--wait", "--array", "1-3", "--requires", "warp-drive", "--", "true"]);
    assert_eq!(waited.status.code(), Some(1));
    let said = String::from_utf8_lossy(&waited.stderr).into_owned();
    assert!(said.contains("warp-drive"), "{said}");
    wait_for("it is listed", || {
        cluster
            .json(&["task", "list", "1", "--status", "failed", "--json"])
            .as_array()
            .is_some_and(|all| all.len() == 3)
    });
    let task = cluster.json(&["task", "show", "1.2", "--json"]);
    assert_eq!(task["status"], "failed", "{task}");
    assert!(task.to_string().contains("warp-drive"), "{task}");
    // So does what was cancelled before it began.
    cluster.told(&["submit", "--array", "1-50", "--", "sleep", "60"]);
    cluster.told(&["job", "cancel", "2"]);
    wait_for("it is cancelled", || cluster.json(&["task", "show", "2.40", "--json"])["status"] == "cancelled");
}

#[test]
fn what_tasks_are_given_is_for_nobody_else_to_read_and_what_is_refused_is_not_kept() {
    let mut cluster = Cluster::start(&["--plain"]);
    let input = "x".repeat(200_000);
    std::fs::write(cluster.place.path().join("in"), format!("{input}\n{input}\n")).expect("written");
    for name in ["filch.db", "history.db"] {
        let found = find(cluster.place.path(), name).unwrap_or_else(|| panic!("there is no {name}"));
        let mode = std::fs::metadata(&found).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o077, 0, "{} has {mode:o}", found.display());
    }
    let refused = cluster.run(&["submit", "--to", "nobody", "--each-line", "in", "--", "echo", "{}"]);
    assert!(!refused.status.success());
    // What is there is written when the coordinator ends.
    let coordinator = cluster.coordinator;
    cluster.kill(coordinator);
    let store = find(cluster.place.path(), "filch.db").expect("a store");
    let database = rusqlite::Connection::open(store).expect("a database");
    let largest: Option<i64> =
        database.query_row("select max(length(body)) from blob", [], |row| row.get(0)).expect("a table");
    assert!(largest.unwrap_or(0) < 200_000, "a refused submission is kept: {largest:?} bytes");
}

/// A file of that name below a directory.
fn find(place: &std::path::Path, name: &str) -> Option<std::path::PathBuf> {
    for entry in std::fs::read_dir(place).ok()?.flatten() {
        let path = entry.path();
        if path.file_name().is_some_and(|found| found == name) {
            return Some(path);
        }
        if path.is_dir()
            && let Some(found) = find(&path, name)
        {
            return Some(found);
        }
    }
    None
}
