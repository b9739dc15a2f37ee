//! A coordinator, workers and clients as processes of their own, through the commands that people use.

mod common;

use std::fs::File;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use common::{Cluster, ends, signal, wait_for};

#[test]
fn jobs_are_submitted_followed_shown_and_explained() {
    let mut cluster = Cluster::start(&[]);
    assert!(cluster.told(&["worker", "list"]).is_empty());
    cluster.worker("alpha", &["--slots", "2", "--capability", "paint"]);
    let output =
        cluster.run(&["submit", "--wait", "-k", "--array", "1-3", "--", "sh", "-c", "echo $FILCH_WORKER $FILCH_TASK"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "alpha 1\nalpha 2\nalpha 3\n");
    assert_eq!(output.status.code(), Some(0));

    let script = "echo out; echo err >&2; pwd > here; exit $((FILCH_TASK == 2))";
    let job = cluster.told(&["submit", "--array", "1-3", "--requires", "paint", "--", "sh", "-c", script]);
    let job = job.trim();
    assert_eq!(cluster.run(&["job", "wait", job]).status.code(), Some(1));
    let shown = cluster.json(&["job", "show", job, "--json"]);
    assert_eq!(
        (shown["state"].as_str(), shown["completed"].as_u64(), shown["failed"].as_u64()),
        (Some("failed"), Some(2), Some(1))
    );
    assert!(cluster.told(&["job", "show", job]).contains("failed     1\n"));
    assert_eq!(cluster.json(&["job", "list", "--json"]).as_array().map(Vec::len), Some(2));
    assert!(cluster.told(&["job", "list"]).contains("completed"));
    // It ran where it was submitted.
    let here = std::fs::read_to_string(cluster.place.path().join("here")).expect("a file");
    assert_eq!(Path::new(here.trim()).canonicalize().ok(), cluster.place.path().canonicalize().ok());

    let failed = cluster.json(&["task", "list", job, "--status", "failed", "--json"]);
    assert_eq!((failed.as_array().map(Vec::len), failed[0]["number"].as_i64()), (Some(1), Some(2)));
    let exits = |listed: &Value| -> Vec<Option<i64>> {
        listed.as_array().expect("a list").iter().map(|task| task["exit_code"].as_i64()).collect()
    };
    assert_eq!(exits(&failed), [Some(1)]);
    assert_eq!(exits(&cluster.json(&["task", "list", job, "--json"])), [Some(0), Some(1), Some(0)]);
    assert!(cluster.told(&["task", "list", job, "--status", "failed"]).contains(" failed  1 "));
    let task = format!("{job}.2");
    let shown = cluster.json(&["task", "show", &task, "--json"]);
    assert_eq!((shown["peak_memory"].is_u64(), shown["peak_memory_is_bound"].as_bool()), (true, Some(true)), "{shown}");
    assert!(cluster.told(&["task", "show", &task]).contains("at most "), "{shown}");
    assert_eq!(cluster.json(&["task", "show", &task, "--json"])["exit_code"].as_i64(), Some(1));
    let logs = cluster.run(&["task", "logs", &task]);
    assert_eq!((logs.stdout.as_slice(), logs.stderr.as_slice()), (&b"out\n"[..], &b"err\n"[..]));

    let waits = cluster.told(&["submit", "--requires", "sculpt", "--", "true"]);
    let waits = waits.trim();
    assert!(cluster.told(&["task", "why", waits]).contains("it lacks `sculpt`"));
    cluster.told(&["job", "cancel", waits]);
    assert_eq!(cluster.json(&["job", "show", waits, "--json"])["state"].as_str(), Some("cancelled"));

    // Tasks of a graph have names, and numbers from 1.
    std::fs::write(
        cluster.place.path().join("two.yaml"),
        "tasks: [{ name: a, command: echo $FILCH_TASK }, { name: b, command: echo $FILCH_TASK, after: a }]",
    )
    .expect("written");
    assert_eq!(cluster.told(&["submit", "--wait", "--file", "two.yaml"]), "1\n2\n");
    let listed = cluster.json(&["task", "list", "4", "--json"]);
    assert_eq!((listed[1]["number"].as_i64(), listed[1]["name"].as_str()), (Some(2), Some("b")));
    assert_eq!(cluster.told(&["task", "logs", "4.2"]), "2\n");

    assert!(cluster.told(&["stats"]).contains("workers connected        1\n"));
    assert_eq!(cluster.json(&["stats", "--json"])["settled"].as_u64(), Some(9));
    for (file, begins) in [("job.jsonl", b"{\""), ("job.jsonl.gz", b"\x1f\x8b")] {
        cluster.told(&["trace", "export", job, "-o", file]);
        let bytes = std::fs::read(cluster.place.path().join(file)).expect("a file");
        assert!(bytes.starts_with(begins), "{file} is what its name says");
        let played = cluster.json(&["sim", "run", file, "--json"]);
        assert_eq!(played["tasks"]["completed"].as_u64(), Some(3), "{played}");
    }
}

#[test]
fn tasks_ask_for_tasks_and_drained_workers_leave() {
    let mut cluster = Cluster::start(&["--plain"]);
    let alpha = cluster.worker("alpha", &["--slots", "1"]);
    let binary = env!("CARGO_BIN_EXE_filch");
    assert_eq!(
        cluster.run(&["submit", "--wait", "--", binary, "spawn", "--", "sh", "-c", "echo child"]).stdout,
        b"2\n"
    );
    assert_eq!(cluster.run(&["job", "wait", "2"]).status.code(), Some(0));
    assert_eq!(cluster.run(&["task", "logs", "2"]).stdout, b"child\n");

    // What a running task writes is seen as it comes.
    let script = "echo begun; while ! test -e go; do sleep 0.05; done; echo over";
    let job = cluster.told(&["submit", "--", "sh", "-c", script]);
    let job = job.trim();
    let running = || cluster.json(&["task", "list", job, "--json"])[0]["status"] == "running";
    wait_for("it runs", running);
    let follower = cluster.command(&["task", "logs", "-f", job]).spawn().expect("the binary runs");
    cluster.told(&["worker", "drain", "alpha"]);
    std::fs::write(cluster.place.path().join("go"), "").expect("written");
    let seen = follower.wait_with_output().expect("it ends");
    assert_eq!(String::from_utf8_lossy(&seen.stdout), "begun\nover\n");
    let alpha = cluster.take(alpha);
    assert_eq!(ends(alpha), Some(0));
    assert_eq!(cluster.run(&["job", "wait", job]).status.code(), Some(0));
}

/// Scattered elements of an array, by a log or by a retry: they are those, for whoever runs them and for whoever asks, after a
/// restart of the coordinator too.
#[test]
fn what_is_left_of_an_array_keeps_its_numbers_places_and_inputs() {
    let mut cluster = Cluster::start(&[]);
    let log = "Seq\tHost\tStarttime\tJobRuntime\tSend\tReceive\tExitval\tSignal\tCommand\n";
    let done = |seq: u32, command: &str| format!("{seq}\tw\t0.000\t     0.000\t0\t0\t0\t0\t{command}\n");
    let script = "echo {n} {i} $FILCH_TASK $FILCH_INDEX";
    let filled = |n: u32, i: u32| format!("echo {n} {i} $FILCH_TASK $FILCH_INDEX");
    let text = [log.to_owned(), done(10, &filled(10, 0)), done(20, &filled(20, 2))].concat();
    std::fs::write(cluster.place.path().join("log"), text).expect("written");
    let options = ["--array", "10-30:5", "--joblog", "log", "--resume", "--requires", "paint", "--shell", "--", script];
    let client = cluster.command(&[&["submit"], &options[..]].concat()).spawn().expect("the binary runs");
    let job = "1";
    wait_for("it is known", || cluster.run(&["job", "show", job]).status.success());
    let coordinator = cluster.coordinator;
    cluster.kill(coordinator);
    cluster.serve(&[]);
    wait_for("it is back", || cluster.run(&["job", "show", job]).status.success());
    cluster.worker("alpha", &["--slots", "2", "--capability", "paint"]);
    let output = client.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let log = std::fs::read_to_string(cluster.place.path().join("log")).expect("a log");
    let mut done: Vec<&str> = log.lines().skip(1).filter_map(|line| line.split('\t').next()).collect();
    done.sort_unstable();
    assert_eq!(done, ["10", "15", "20", "25", "30"]);
    for (number, place) in [(15, 1), (25, 3), (30, 4)] {
        let logs = cluster.told(&["task", "logs", &format!("{job}.{number}")]);
        assert_eq!(logs, format!("{number} {place} {number} {place}\n"));
    }
    let wrong = cluster.run(&["task", "show", &format!("{job}.20")]);
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("has no task 20"), "{wrong:?}");
    let listed = cluster.json(&["task", "list", job, "--json"]);
    let numbers: Vec<Option<i64>> =
        listed.as_array().expect("a list").iter().map(|task| task["number"].as_i64()).collect();
    assert_eq!(numbers, [Some(15), Some(25), Some(30)]);

    let script = "echo {} {n} {i}; test -e again || test {n} = 2";
    let failed = cluster.run(&["submit", "--wait", "--shell", "--", script, ":::", "a", "b", "c"]);
    assert_eq!(failed.status.code(), Some(1), "{failed:?}");
    std::fs::write(cluster.place.path().join("again"), "").expect("written");
    let retried = cluster.told(&["job", "retry", "2"]);
    let retried = retried.trim();
    assert_eq!(cluster.run(&["job", "wait", retried]).status.code(), Some(0));
    assert_eq!(cluster.told(&["task", "logs", &format!("{retried}.1")]), "a 1 0\n");
    assert_eq!(cluster.told(&["task", "logs", &format!("{retried}.3")]), "c 3 2\n");
}

#[test]
fn a_worker_has_what_the_probes_of_its_file_find() {
    let mut cluster = Cluster::start(&[]);
    let probes = "detection: { probes: [{ capability: 'tool-$1', command: [echo, tool 3], pattern: 'tool (.)' }] }\n";
    std::fs::write(cluster.place.path().join("probes.yaml"), probes).expect("written");
    cluster.worker("alpha", &["--slots", "1", "--config", "probes.yaml"]);
    assert!(cluster.told(&["worker", "show", "alpha"]).contains("tool-3"));
    assert_eq!(cluster.told(&["submit", "--wait", "--requires", "tool-3", "--", "echo", "here"]), "here\n");
}

#[test]
fn a_cause_is_told_once() {
    let cluster = Cluster::prepare("");
    let mut command = cluster.command(&["worker", "list"]);
    let output = command.env("FILCH_ACCESS", cluster.place.path()).output().expect("the binary runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), said.matches("Is a directory").count()), (Some(2), 1), "{said}");
}

#[test]
fn a_task_that_nobody_can_run_says_what_each_class_lacks() {
    let config = "limits: { requeue_interval: 20ms, max_requeue_attempts: 1 }";
    let mut cluster = Cluster::start_with(config, &[]);
    cluster.worker("alpha", &["--slots", "1", "--cpus", "2"]);
    cluster.worker("beta", &["--slots", "1", "--cpus", "2", "--capability", "paint"]);
    let file = "tasks: [{ name: a, command: 'true', requires: [paint], cpus: 64 }]";
    std::fs::write(cluster.place.path().join("job.yaml"), file).expect("written");
    for (at, options) in
        [&["--file", "job.yaml"][..], &["--requires", "paint", "--cpus", "64", "--", "true"]].iter().enumerate()
    {
        let output = cluster.run(&[&["submit", "--wait"], *options].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        let job = (at + 1).to_string();
        let shown = cluster.json(&["task", "show", &format!("{job}.1"), "--json"]);
        let error = shown["error"].as_str().unwrap_or_default().to_owned();
        let why = cluster.told(&["task", "why", &format!("{job}.1")]);
        for text in [&error, &said, &why] {
            assert!(text.contains("alpha: ") && text.contains("`paint`"), "{text}");
            assert!(text.contains("beta: ") && text.contains("cpus"), "{text}");
        }
    }
}

/// A worker that is to leave, has run two tasks and has no coordinator to tell; and what it says.
fn detained(config: &str) -> (Cluster, Child, impl Fn() -> String + use<>) {
    let mut cluster = Cluster::start_with(config, &[]);
    let said = cluster.place.path().join("said");
    let mut command = cluster.command(&["worker", "--listen", "127.0.0.1:0", "--name", "alpha", "--slots", "2"]);
    let worker =
        command.stdout(Stdio::null()).stderr(File::create(&said).expect("a file")).spawn().expect("the binary runs");
    wait_for("the worker is there", || cluster.run(&["worker", "show", "alpha"]).status.success());
    let script = "touch begun-$FILCH_TASK; while ! test -e go; do sleep 0.05; done";
    cluster.told(&["submit", "--array", "1-2", "--", "sh", "-c", script]);
    let place = cluster.place.path().to_owned();
    wait_for("they run", || [1, 2].iter().all(|task| place.join(format!("begun-{task}")).exists()));
    let coordinator = cluster.coordinator;
    cluster.kill(coordinator);
    signal(worker.id(), "INT");
    std::fs::write(place.join("go"), "").expect("written");
    let read = move || std::fs::read_to_string(&said).unwrap_or_default();
    wait_for("it says what waits", || read().contains("results=2"));
    (cluster, worker, read)
}

/// A worker that is to leave and has something to report that nobody takes says so, and leaves when it is told again.
#[test]
fn a_drained_worker_without_a_coordinator_says_what_waits() {
    let (_cluster, mut worker, said) = detained("");
    let text = said();
    assert!(text.contains("leaving: what runs may finish") && text.contains("coordinator=127.0.0.1:"), "{text}");
    assert!(worker.try_wait().expect("a child").is_none(), "{text}");
    signal(worker.id(), "TERM");
    assert_eq!(ends(worker), Some(130));
}

/// A coordinator that ends tells its workers what it has noted, so that they can leave after it.
#[test]
fn whoever_is_stopped_after_its_coordinator_leaves_at_once() {
    for _ in 0..5 {
        let mut cluster = Cluster::start(&[]);
        let worker = cluster.worker("alpha", &["--slots", "2"]);
        cluster.told(&["submit", "--wait", "--array", "1-4", "--", "true"]);
        let coordinator = cluster.coordinator;
        signal(coordinator, "TERM");
        assert_eq!(ends(cluster.take(coordinator)), Some(0));
        let began = Instant::now();
        signal(worker, "TERM");
        assert!(ends(cluster.take(worker)).is_some());
        assert!(began.elapsed() < Duration::from_secs(15), "it waited for a coordinator");
    }
}

/// Whoever stops everything at once does not find workers there for ever that wait for a coordinator.
#[test]
fn a_drained_worker_does_not_wait_for_ever_for_a_coordinator() {
    let (_cluster, worker, said) = detained("limits: { lease: 1s }");
    assert!(ends(worker).is_some());
    assert!(said().contains("leaves without its results"), "{}", said());
}

#[test]
fn an_exported_job_has_what_its_replay_needs() {
    let mut cluster = Cluster::start(&[]);
    cluster.worker("alpha", &["--slots", "2", "--cpus", "4", "--memory", "8G"]);
    let file = "tasks:\n  - { name: fetch, command: 'true', estimate: 2s, kind: get }\n  - { name: shard, command: 'true', array: 1-2, after: fetch, cpus: 3, memory: 1G }\n  - { name: report, command: 'true', after: [shard] }\n";
    std::fs::write(cluster.place.path().join("job.yaml"), file).expect("written");
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/jobs/pipeline.yaml");
    cluster.told(&["submit", "--wait", "--file", "job.yaml"]);
    cluster.told(&["submit", "--wait", "--file", example]);
    let lines = |job: &str| -> Vec<Value> {
        let text = cluster.told(&["trace", "export", job]);
        std::fs::write(cluster.place.path().join("job.jsonl"), &text).expect("written");
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    };
    let of = |lines: &[Value], id: &str| lines.iter().find(|line| line["id"] == id).expect("the task").clone();

    let exported = lines("1");
    let (fetch, shard, report) = (of(&exported, "fetch"), of(&exported, "shard[2]"), of(&exported, "report"));
    assert_eq!(
        (fetch["estimate"].as_f64(), fetch["kind"].as_str(), fetch["at"].as_f64()),
        (Some(2.0), Some("get"), Some(0.0))
    );
    assert_eq!(shard["deps"], json!(["fetch"]));
    assert_eq!(shard["needs"], json!({"cpus": 3.0, "memory": 1_073_741_824.0}));
    assert_eq!(report["deps"], json!(["shard[1]", "shard[2]"]));
    let played = cluster.json(&["sim", "run", "job.jsonl", "--json"]);
    assert_eq!(played["tasks"]["completed"].as_u64(), Some(4), "{played}");

    let exported = lines("2");
    assert_eq!(of(&exported, "cleanup")["deps"].as_array().map(Vec::len), Some(5));
    let played = cluster.json(&["sim", "run", "job.jsonl", "--json"]);
    assert_eq!(played["tasks"]["completed"].as_u64(), Some(7), "{played}");
}

#[test]
fn tasks_of_a_run_reach_no_cluster_that_does_not_know_them() {
    let cluster = Cluster::start(&["--plain"]);
    let binary = env!("CARGO_BIN_EXE_filch");
    let access = cluster.place.path().join("access.json");
    for (words, status) in [(&["spawn", "--", "true"][..], 2), (&["submit", "--", "true"], 2), (&["job", "list"], 2)] {
        let words = [&["run", "--json", "--", binary], words].concat();
        let output = cluster.command(&words).env("FILCH_ACCESS", &access).output().expect("the binary runs");
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        let told: Value = serde_json::from_str(told.lines().next().expect("a task")).expect("JSON");
        assert_eq!(told["exit_code"].as_i64(), Some(status), "{told}");
        let said = told["stderr"].as_str().expect("text");
        assert!(said.contains("this task runs under `filch run`, which has no coordinator"), "{said}");
    }
    assert_eq!(cluster.json(&["job", "list", "--json"]).as_array().map(Vec::len), Some(0));
    // Whoever names a cluster means it.
    let words = ["run", "--", binary, "submit", "--access", access.to_str().expect("text"), "--", "true"];
    assert_eq!(cluster.told(&words), "1\n");
}

#[test]
fn a_worker_says_of_each_peer_how_its_steals_went() {
    steals_are_counted(&[]);
}

#[test]
fn workers_of_one_machine_steal_over_the_network_if_told_to() {
    steals_are_counted(&["--over-network"]);
}

fn steals_are_counted(options: &[&str]) {
    let mut cluster = Cluster::start(&["--plain"]);
    cluster.worker("alpha", &[&["--slots", "1"], options].concat());
    cluster.worker("beta", &[&["--slots", "1"], options].concat());
    cluster.told(&["submit", "--wait", "--to", "alpha", "--array", "1-40", "--", "sleep", "0.05"]);
    let of_alpha = || cluster.json(&["worker", "show", "beta", "--json"])["steals"][0].clone();
    wait_for("it was told", || of_alpha()["successes"].as_u64().is_some_and(|successes| successes > 0));
    let steals = of_alpha();
    assert_eq!(steals["peer"], "alpha");
    assert!(steals["attempts"].as_u64() >= steals["successes"].as_u64(), "{steals}");
    assert!(steals["latency_avg_ms"].as_f64().is_some_and(|latency| latency > 0.0), "{steals}");
    assert!(cluster.told(&["worker", "show", "beta"]).contains("asked for work"));
    let metrics = cluster.json(&["stats", "--json"])["metrics"].clone();
    assert!(metrics["total_steals"].as_u64() >= steals["attempts"].as_u64(), "{metrics}");
    assert!(metrics["success_rate"].as_f64().is_some_and(|rate| rate > 0.0), "{metrics}");
    let stats = cluster.told(&["stats"]);
    assert!(
        stats.contains("Half of the answers came within ") && !stats.contains("went through the coordinator"),
        "{stats}"
    );
    assert_eq!(cluster.json(&["worker", "show", "alpha", "--json"])["steals"].as_array().map(Vec::len), Some(0));
}

#[test]
fn a_worker_and_a_coordinator_whose_terminal_is_closed_leave_in_order() {
    let mut cluster = Cluster::start(&["--plain"]);
    let alpha = cluster.worker("alpha", &["--slots", "1"]);
    let script = "touch begun; while ! test -e go; do sleep 0.05; done";
    let job = cluster.told(&["submit", "--", "sh", "-c", script]);
    wait_for("it runs", || cluster.place.path().join("begun").exists());
    signal(alpha, "HUP");
    wait_for("it drains", || cluster.json(&["worker", "show", "alpha", "--json"])["state"] == "draining");
    std::fs::write(cluster.place.path().join("go"), "").expect("written");
    let alpha = cluster.take(alpha);
    assert_eq!(ends(alpha), Some(0));
    assert_eq!(cluster.run(&["job", "wait", job.trim()]).status.code(), Some(0));
    let coordinator = cluster.coordinator;
    signal(coordinator, "HUP");
    let coordinator = cluster.take(coordinator);
    assert_eq!(ends(coordinator), Some(0));
}

#[test]
fn what_cannot_be_done_is_said_with_the_next_step() {
    let cluster = Cluster::start(&[]);
    let cases: [(&[&str], i32, &str); 8] = [
        (&["job", "show", "99"], 1, "there is no job 99; `filch job list` shows them"),
        (&["task", "show", "x"], 2, "`x` is no task"),
        (&["worker", "show", "nobody"], 1, "there is no worker `nobody`; `filch worker list` shows them"),
        (&["submit", "--pin", "nobody", "--", "true"], 1, "there is no worker `nobody`"),
        (&["submit"], 2, "there is no command to run"),
        (&["spawn", "--", "true"], 2, "this is no task of a cluster"),
        (&["job", "list", "--access", "nowhere.json"], 2, "there is no access file nowhere.json"),
        (&["serve", "--plain"], 2, "--plain listens on a loopback address only"),
    ];
    for (arguments, status, expected) in cases {
        let output = cluster.run(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {said}");
        assert!(said.contains(expected), "{arguments:?}: {said}");
    }
    // Two coordinators never have the same directory.
    let output = cluster.run(&["serve", "--listen", "127.0.0.1:0"]);
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn what_failed_is_run_again_under_its_number() {
    let mut cluster = Cluster::start(&[]);
    cluster.worker("alpha", &["--slots", "2"]);
    let script = "echo $FILCH_TASK $FILCH_INPUT >> ran; test -e mended || test $((FILCH_TASK % 2)) = 1";
    let words = ["submit", "--", "sh", "-c", script, ":::", "a", "b", "c", "d", "e"];
    let job = cluster.told(&words);
    assert_eq!(cluster.run(&["job", "wait", job.trim()]).status.code(), Some(1));
    std::fs::write(cluster.place.path().join("mended"), "").expect("written");
    std::fs::remove_file(cluster.place.path().join("ran")).expect("removed");
    let again = cluster.told(&["job", "retry", job.trim()]);
    assert_eq!(cluster.run(&["job", "wait", again.trim()]).status.code(), Some(0));
    let ran = std::fs::read_to_string(cluster.place.path().join("ran")).expect("a file");
    let mut ran: Vec<&str> = ran.lines().collect();
    ran.sort_unstable();
    assert_eq!(ran, ["2 b", "4 d"]);
    let refused = cluster.run(&["job", "retry", again.trim()]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("nothing to retry"), "{refused:?}");
}

#[test]
fn a_coordinator_that_was_killed_goes_on_and_so_does_its_worker() {
    let mut cluster = Cluster::start(&[]);
    cluster.worker("alpha", &["--slots", "2"]);
    let script = "while ! test -e go; do sleep 0.05; done; echo x >> ran-$FILCH_TASK";
    let job = cluster.told(&["submit", "--array", "1-6", "--", "sh", "-c", script]);
    let job = job.trim();
    wait_for("tasks run", || cluster.json(&["job", "show", job, "--json"])["running"] == 2);
    let mut first = cluster.processes.remove(0);
    first.kill().expect("killed");
    first.wait().expect("it ended");
    cluster.spawn(&["serve", "--listen", "127.0.0.1:0"]);
    std::fs::write(cluster.place.path().join("go"), "").expect("written");
    wait_for("all tasks are over", || {
        let shown = cluster.run(&["job", "show", job, "--json"]);
        serde_json::from_slice::<Value>(&shown.stdout).is_ok_and(|shown| shown["completed"] == 6)
    });
    let ran =
        |number: u32| std::fs::read_to_string(cluster.place.path().join(format!("ran-{number}"))).expect("it ran");
    assert_eq!((1..=6).map(ran).collect::<String>(), "x\n".repeat(6));
}

#[test]
fn stolen_are_the_tasks_that_somebody_else_took_each_once() {
    let place = tempfile::tempdir().expect("a directory");
    let words = ["run", "--to", "w1", "--workers", "2", "-j", "1", "--array", "1-10", "--json", "--", "sleep", "0.1"];
    let output = common::filch(&words).current_dir(place.path()).output().expect("the binary runs");
    let lines: Vec<Value> =
        String::from_utf8_lossy(&output.stdout).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let elsewhere = lines.iter().filter(|line| line["worker"] == "w2").count() as u64;
    let summary = lines.iter().find_map(|line| line.get("summary")).expect("a summary");
    assert!(elsewhere > 0, "{lines:?}");
    assert_eq!(summary["stolen"].as_u64(), Some(elsewhere), "{lines:?}");
}

#[test]
fn a_task_that_never_ran_was_with_nobody() {
    let mut cluster = Cluster::start(&[]);
    cluster.worker("alpha", &["--slots", "1"]);
    let file = "tasks: [{ name: a, command: 'false' }, { name: b, command: 'true', after: a }]";
    std::fs::write(cluster.place.path().join("two.yaml"), file).expect("written");
    assert_eq!(cluster.run(&["submit", "--wait", "--file", "two.yaml"]).status.code(), Some(1));
    let listed = cluster.json(&["task", "list", "1", "--json"]);
    assert_eq!((listed[0]["worker"].as_str(), listed[0]["attempts"].as_u64()), (Some("alpha"), Some(1)), "{listed}");
    for never in [&listed[1], &cluster.json(&["task", "show", "1.2", "--json"])] {
        assert_eq!((never["status"].as_str(), never["attempts"].as_u64()), (Some("failed"), Some(0)), "{never}");
        assert!(never["worker"].is_null(), "{never}");
    }
}

#[test]
fn why_a_job_is_where_it_is_is_never_nothing() {
    let mut cluster = Cluster::start(&[]);
    cluster.worker("alpha", &["--slots", "1"]);
    let script = "while ! test -e go; do sleep 0.05; done";
    let job = cluster.told(&["submit", "--", "sh", "-c", script]);
    let job = job.trim();
    wait_for("it runs", || cluster.json(&["job", "show", job, "--json"])["running"] == 1);
    let head = |text: &str| text.lines().next().unwrap_or_default().to_owned();
    let own = cluster.told(&["task", "why", &format!("{job}.1")]);
    assert!(own.contains("running"), "{own}");
    assert_eq!(head(&cluster.told(&["task", "why", job])), head(&own));
    assert_ne!(cluster.json(&["task", "why", job, "--json"])["text"], "");

    let file = "tasks: [{ name: a, command: 'true' }, { name: b, command: 'true', after: a }, { name: c, command: 'true', after: a }]";
    std::fs::write(cluster.place.path().join("three.yaml"), file).expect("written");
    let graph = cluster.told(&["submit", "--file", "three.yaml"]);
    let text = cluster.told(&["task", "why", graph.trim()]);
    assert!(text.contains("2 tasks are blocked") && text.contains("1 task is queued"), "{text}");
    assert!(text.contains(&format!("{}.2", graph.trim())), "{text}");
    std::fs::write(cluster.place.path().join("go"), "").expect("written");
}

#[test]
fn a_task_that_waits_for_its_next_attempt_says_so_everywhere() {
    let mut cluster = Cluster::start(&[]);
    cluster.worker("alpha", &["--slots", "2"]);
    let options = ["submit", "--retries", "5", "--backoff", "60s"];
    let single = cluster.told(&[&options[..], &["--", "sh", "-c", "echo reason >&2; exit 3"]].concat());
    let array =
        cluster.told(&[&options[..], &["--array", "1-2", "--", "sh", "-c", "exit $((FILCH_TASK - 1))"]].concat());
    std::fs::write(
        cluster.place.path().join("one.yaml"),
        "tasks: [{ name: a, command: exit 3, retries: 5, backoff: 60s }]",
    )
    .expect("written");
    let graph = cluster.told(&["submit", "--file", "one.yaml"]);
    for (job, number, exit) in [(single.trim(), 1, 3), (array.trim(), 2, 1), (graph.trim(), 1, 3)] {
        let task = format!("{job}.{number}");
        wait_for("it has failed once", || {
            let shown = cluster.json(&["task", "show", &task, "--json"]);
            shown["status"] == "retrying" && shown["exit_code"].is_i64()
        });
        let listed = cluster.json(&["task", "list", job, "--status", "retrying", "--json"]);
        assert_eq!(listed.as_array().map(Vec::len), Some(1), "{listed}");
        for view in [&listed[0], &cluster.json(&["task", "show", &task, "--json"])] {
            assert_eq!(view["number"].as_i64(), Some(number), "{view}");
            assert_eq!((view["status"].as_str(), view["attempts"].as_u64()), (Some("retrying"), Some(1)), "{view}");
            assert_eq!((view["worker"].as_str(), view["exit_code"].as_i64()), (Some("alpha"), Some(exit)), "{view}");
        }
        assert!(cluster.told(&["task", "why", &task]).contains("retrying"));
    }
    assert!(cluster.told(&["task", "why", single.trim()]).contains("retrying"));
    let nobody = cluster.told(&["submit", "--array", "1-2", "--requires", "sculpt", "--", "true"]);
    wait_for("nobody can run it", || {
        cluster.json(&["task", "show", &format!("{}.2", nobody.trim()), "--json"])["status"] == "unschedulable"
    });
    let listed = cluster.json(&["task", "list", nobody.trim(), "--status", "unschedulable", "--json"]);
    assert_eq!(listed.as_array().map(Vec::len), Some(2), "{listed}");
}

#[test]
fn a_directory_that_has_lost_its_store_is_refused() {
    let mut cluster = Cluster::start(&[]);
    cluster.worker("alpha", &["--slots", "1"]);
    cluster.told(&["submit", "--wait", "--", "true"]);
    let coordinator = cluster.coordinator;
    signal(coordinator, "TERM");
    assert_eq!(ends(cluster.take(coordinator)), Some(0));
    for name in ["filch.db", "filch.db-wal", "filch.db-shm"] {
        let _ = std::fs::remove_file(cluster.place.path().join(name));
    }
    let mut command = cluster.command(&["serve", "--listen", "127.0.0.1:0"]);
    let said = cluster.place.path().join("said");
    let child =
        command.stderr(File::create(&said).expect("a file")).stdout(Stdio::null()).spawn().expect("the binary runs");
    let id = child.id();
    cluster.processes.push(child);
    let mut code = None;
    let until = Instant::now() + Duration::from_secs(10);
    while code.is_none() && Instant::now() < until {
        let child = cluster.processes.iter_mut().find(|child| child.id() == id).expect("it was started");
        code = child.try_wait().expect("a child").and_then(|status| status.code());
        std::thread::sleep(Duration::from_millis(20));
    }
    let said = std::fs::read_to_string(said).expect("a file");
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("filch.db") && said.contains("history.db"), "{said}");
    assert!(!cluster.place.path().join("filch.db").exists());
}

#[test]
fn who_comes_and_who_is_lost_is_in_the_logs() {
    let mut cluster = Cluster::prepare("");
    let logged = |name: &str| File::create(cluster.place.path().join(name)).expect("a file");
    let mut serve = cluster.command(&["serve", "--config", "filch.yaml", "--listen", "127.0.0.1:0"]);
    let serve = serve.stdout(Stdio::null()).stderr(logged("coordinator")).spawn().expect("the binary runs");
    let own = logged("worker");
    cluster.processes.push(serve);
    wait_for("the access file is there", || cluster.place.path().join("access.json").exists());
    let mut worker = cluster.command(&["worker", "--listen", "127.0.0.1:0", "--name", "alpha", "--slots", "1"]);
    let worker = worker.stdout(Stdio::null()).stderr(own).spawn().expect("the binary runs");
    let id = worker.id();
    cluster.processes.push(worker);
    let read = |name: &str| std::fs::read_to_string(cluster.place.path().join(name)).unwrap_or_default();
    wait_for("the worker is there", || cluster.run(&["worker", "show", "alpha"]).status.success());
    wait_for("the worker says so", || read("worker").contains("connected"));
    let text = read("coordinator");
    assert_eq!((text.matches("alpha").count(), text.contains("a worker has joined")), (1, true), "{text}");
    let child = cluster.processes.iter_mut().find(|child| child.id() == id).expect("it was started");
    child.kill().expect("killed");
    let at = cluster.place.path().join("coordinator");
    let read = move || std::fs::read_to_string(&at).unwrap_or_default();
    wait_for("it is missed", || read().contains("lost a worker"));
    assert_eq!(read().matches("alpha").count(), 2, "{}", read());

    let beta = cluster.worker("beta", &["--slots", "1"]);
    signal(beta, "TERM");
    assert_eq!(ends(cluster.take(beta)), Some(0));
    wait_for("it has left", || read().contains("a worker has left"));
    assert_eq!(read().matches("beta").count(), 2, "{}", read());
}

#[test]
fn a_task_says_what_it_runs_where_and_how_often_it_was_tried() {
    let mut cluster = Cluster::start(&[]);
    let shown = |cluster: &Cluster, task: &str| cluster.json(&["task", "show", task, "--json"]);
    let here = cluster.place.path().canonicalize().expect("a directory");
    cluster.told(&["submit", "--requires", "paint", "--", "echo", "{}", "{n}", ":::", "a b", "c"]);
    cluster.told(&["submit", "--array", "5-7:2", "--shell", "--cwd", "/tmp", "--", "echo {n} > /dev/null\ntrue"]);
    let file = "tasks: [{ name: a, command: 'false', retries: 1, backoff: 10ms }, { name: b, command: [echo, 'x y'] }]";
    std::fs::write(cluster.place.path().join("two.yaml"), file).expect("written");
    cluster.told(&["submit", "--file", "two.yaml"]);
    // Before, while and after they run.
    for round in 0..2 {
        for (task, command) in [
            ("1.1", "echo 'a b' 1"),
            ("1.2", "echo c 2"),
            ("2.7", "echo 7 > /dev/null\ntrue"),
            ("3.1", "false"),
            ("3.2", "echo 'x y'"),
        ] {
            let view = shown(&cluster, task);
            assert_eq!(view["command"].as_str(), Some(command), "{round}: {view}");
            let cwd = view["cwd"].as_str().map(|cwd| Path::new(cwd).canonicalize().expect("a directory"));
            let expected = if task == "2.7" { Path::new("/tmp").canonicalize().ok() } else { Some(here.clone()) };
            assert_eq!(cwd, expected, "{round}: {view}");
            let text = cluster.told(&["task", "show", task]);
            assert!(
                text.contains(&format!("  {}\n", command.replace('\n', "\\n"))) && text.contains("directory"),
                "{round}: {text}"
            );
        }
        if round == 0 {
            cluster.worker("alpha", &["--slots", "2", "--capability", "paint"]);
            for job in ["1", "2", "3"] {
                cluster.run(&["job", "wait", job]);
            }
        }
    }
    assert_eq!(shown(&cluster, "3.1")["attempts"].as_u64(), Some(2));
}

#[test]
fn what_a_cancelled_task_wrote_is_kept() {
    let mut cluster = Cluster::start(&[]);
    cluster.worker("alpha", &["--slots", "2"]);
    let script = "trap 'echo caught >&2; exit 3' TERM; echo begun; touch begun-$FILCH_JOB-$FILCH_TASK; sleep 60 & wait";
    let begun = |cluster: &Cluster, name: &str| cluster.place.path().join(name).exists();
    cluster.told(&["submit", "--array", "1-2", "--", "sh", "-c", script]);
    wait_for("they run", || begun(&cluster, "begun-1-1") && begun(&cluster, "begun-1-2"));
    let follower = cluster.command(&["task", "logs", "-f", "1.1"]).spawn().expect("the binary runs");
    std::thread::sleep(Duration::from_millis(300));
    // The task alone, then the rest of its job.
    cluster.told(&["job", "cancel", "1.2"]);
    cluster.told(&["job", "cancel", "1"]);
    let seen = follower.wait_with_output().expect("it ends");
    assert_eq!((seen.stdout.as_slice(), seen.stderr.as_slice()), (&b"begun\n"[..], &b"caught\n"[..]), "{seen:?}");
    let kept = |cluster: &Cluster, task: &str| {
        let logs = cluster.run(&["task", "logs", task]);
        (logs.stdout == b"begun\n" && logs.stderr == b"caught\n", logs)
    };
    for task in ["1.1", "1.2"] {
        wait_for("what it wrote is kept", || kept(&cluster, task).0);
        let shown = cluster.json(&["task", "show", task, "--json"]);
        assert_eq!((shown["status"].as_str(), shown["exit_code"].as_i64()), (Some("cancelled"), Some(3)), "{shown}");
        assert!(shown["ran_s"].as_f64().is_some_and(|ran| ran > 0.0), "{shown}");
    }
    let job = cluster.json(&["job", "show", "1", "--json"]);
    assert_eq!((job["cancelled"].as_u64(), job["state"].as_str()), (Some(2), Some("cancelled")), "{job}");
    let listed = cluster.json(&["task", "list", "1", "--json"]);
    assert_eq!(listed.as_array().map(Vec::len), Some(2), "{listed}");
    // What is kept survives the coordinator, and is in its journal too.
    cluster.begin_anew_from_the_journal("1");
    for task in ["1.1", "1.2"] {
        assert!(kept(&cluster, task).0, "{:?}", kept(&cluster, task).1);
        assert_eq!(cluster.json(&["task", "show", task, "--json"])["status"], "cancelled");
    }

    // The worker says it to the coordinator that is there when the task has stopped.
    wait_for("the worker is back", || cluster.json(&["worker", "show", "alpha", "--json"])["connected"] == true);
    let script = "trap 'touch stopping; while ! test -e go; do :; done; echo caught >&2; exit 3' TERM; echo begun; \
                  touch begun-2-1; sleep 60 & wait";
    cluster.told(&["submit", "--key", "one", "--", "sh", "-c", script]);
    wait_for("it runs", || begun(&cluster, "begun-2-1"));
    cluster.told(&["job", "cancel", "2"]);
    wait_for("it was told", || begun(&cluster, "stopping"));
    cluster.begin_anew_from_the_journal("2");
    std::fs::write(cluster.place.path().join("go"), "").expect("written");
    wait_for("what it wrote is kept", || kept(&cluster, "2").0);
    let shown = cluster.json(&["task", "show", "2", "--json"]);
    assert_eq!((shown["status"].as_str(), shown["worker"].as_str()), (Some("cancelled"), Some("alpha")), "{shown}");

    // So it is with a key, which is free only then.
    let script = "trap 'echo caught >&2; exit 3' TERM; echo begun; touch begun-$FILCH_JOB-1; sleep 60 & wait";
    cluster.told(&["submit", "--key", "one", "--", "sh", "-c", script]);
    wait_for("it runs", || begun(&cluster, "begun-3-1"));
    cluster.told(&["job", "cancel", "3"]);
    wait_for("what it wrote is kept", || kept(&cluster, "3").0);
}

/// Whoever looks on at a task that a worker was to stop, which is lost, hears that it is over.
#[test]
fn nobody_looks_on_for_ever_at_what_a_lost_worker_was_to_stop() {
    let mut cluster = Cluster::start_with("limits: { lease: 1s }", &[]);
    let alpha = cluster.worker("alpha", &["--slots", "1"]);
    let script = "trap 'touch stopping; while :; do :; done' TERM; echo begun; touch begun; sleep 60 & wait";
    cluster.told(&["submit", "--", "sh", "-c", script]);
    wait_for("it runs", || cluster.place.path().join("begun").exists());
    let follower = cluster.command(&["task", "logs", "-f", "1"]).spawn().expect("the binary runs");
    std::thread::sleep(Duration::from_millis(300));
    cluster.told(&["job", "cancel", "1"]);
    wait_for("it was told", || cluster.place.path().join("stopping").exists());
    cluster.kill(alpha);
    let began = Instant::now();
    let seen = follower.wait_with_output().expect("it ends");
    assert_eq!((seen.stdout.as_slice(), seen.status.code()), (&b"begun\n"[..], Some(0)), "{seen:?}");
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
}

#[test]
fn earlier_attempts_have_logs_too() {
    let mut cluster = Cluster::start(&[]);
    cluster.worker("alpha", &["--slots", "2"]);
    let script = "test $FILCH_ATTEMPT = 3 || { echo try $FILCH_ATTEMPT; exit 1; }";
    let retried = ["submit", "--retries", "2", "--backoff", "10ms", "--", "sh", "-c"];
    cluster.told(&[&retried[..], &[script]].concat());
    cluster.told(&[&retried[..], &["echo try $FILCH_ATTEMPT; exit 1"]].concat());
    cluster.told(&["submit", "--retries", "1", "--backoff", "60s", "--", "sh", "-c", "echo first; exit 1"]);
    cluster.run(&["job", "wait", "1", "2"]);
    let logs = |cluster: &Cluster, options: &[&str]| {
        let output = cluster.run(&[&["task", "logs"], options].concat());
        String::from_utf8_lossy(&if output.status.success() { output.stdout } else { output.stderr }).into_owned()
    };
    for round in 0..2 {
        assert_eq!(logs(&cluster, &["1"]), "", "{round}");
        assert_eq!(logs(&cluster, &["2"]), "try 3\n", "{round}");
        assert_eq!(logs(&cluster, &["2", "--attempt", "3"]), "try 3\n", "{round}");
        for job in ["1", "2"] {
            for attempt in ["1", "2"] {
                assert_eq!(logs(&cluster, &[job, "--attempt", attempt]), format!("try {attempt}\n"), "{round}: {job}");
            }
        }
        assert_eq!(logs(&cluster, &["1", "--attempt", "3"]), "", "{round}");
        let none = logs(&cluster, &["2", "--attempt", "4"]);
        assert!(none.contains("attempt 4") && none.contains("3 attempts"), "{none}");
        let shown = cluster.json(&["task", "show", "1", "--json"]);
        assert_eq!((shown["exit_code"].as_i64(), shown["attempts"].as_u64()), (Some(0), Some(3)), "{shown}");
        if round == 0 {
            wait_for("it has failed once", || logs(&cluster, &["3", "--attempt", "1"]) == "first\n");
            cluster.begin_anew_from_the_journal("1");
        }
    }
    // It was tried and is over, but not by that.
    cluster.told(&["submit", "--retries", "2", "--backoff", "60s", "--", "sh", "-c", "echo only; exit 4"]);
    wait_for("it has failed", || cluster.json(&["task", "show", "4", "--json"])["status"] == "retrying");
    cluster.told(&["job", "cancel", "4"]);
    let shown = cluster.json(&["task", "show", "4", "--json"]);
    assert_eq!((shown["status"].as_str(), shown["exit_code"].as_i64()), (Some("cancelled"), Some(4)), "{shown}");
    for options in [&["4"][..], &["4", "--attempt", "1"]] {
        assert_eq!(logs(&cluster, options), "only\n");
    }
}

/// What a command says on standard error while it runs.
fn said_by(cluster: &mut Cluster, name: &str, arguments: &[&str]) -> (u32, impl Fn() -> String + use<>) {
    let place = cluster.place.path().to_owned();
    let mut command = cluster.command(arguments);
    let file = |end: &str| File::create(place.join(format!("{name}.{end}"))).expect("a file");
    let child = command.stdout(file("out")).stderr(file("err")).spawn().expect("the binary runs");
    let id = child.id();
    cluster.processes.push(child);
    let said = place.join(format!("{name}.err"));
    (id, move || std::fs::read_to_string(&said).unwrap_or_default())
}

#[test]
fn whoever_waits_for_what_nobody_can_run_hears_why() {
    let mut cluster = Cluster::start(&[]);
    let (submits, submitter) =
        said_by(&mut cluster, "submit", &["submit", "--wait", "--json", "--requires", "sculpt", "--", "echo", "done"]);
    wait_for("the job is there", || cluster.run(&["job", "show", "1"]).status.success());
    let (waits, waiter) = said_by(&mut cluster, "wait", &["job", "wait", "1", "--json"]);
    for said in [&submitter as &dyn Fn() -> String, &waiter] {
        wait_for("it says that nobody is there", || said().contains("no worker is connected"));
        assert!(said().contains("`filch worker`") && said().contains("`filch job cancel 1`"), "{}", said());
    }
    cluster.worker("alpha", &["--slots", "1"]);
    for said in [&submitter as &dyn Fn() -> String, &waiter] {
        wait_for("it says who lacks what", || said().contains("alpha: it lacks `sculpt`"));
        assert!(said().contains("`filch task why 1`"), "{}", said());
    }
    // Nothing is said again that has not changed.
    std::thread::sleep(Duration::from_secs(6));
    cluster.worker("beta", &["--slots", "1", "--capability", "sculpt"]);
    for (id, said) in [(submits, &submitter as &dyn Fn() -> String), (waits, &waiter)] {
        assert_eq!(ends(cluster.take(id)), Some(0));
        let text = said();
        assert_eq!((text.matches("no worker is connected").count(), text.matches("sculpt").count()), (1, 1), "{text}");
    }
    for name in ["submit.out", "wait.out"] {
        let out = std::fs::read_to_string(cluster.place.path().join(name)).expect("a file");
        let values: Result<Vec<Value>, _> = serde_json::Deserializer::from_str(&out).into_iter().collect();
        assert!(values.is_ok_and(|values| !values.is_empty()), "{out}");
    }

    // Where all goes well nothing is said, however long it takes.
    let output = cluster.run(&["submit", "--wait", "--array", "1-4", "--", "sleep", "2.5"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && !said.contains("waits"), "{said}");
}
