//! Those who follow a job or an output, come late or come again: they hear of everything, once.

mod common;

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use common::{Cluster, wait_for};

fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args([format!("-{name}"), child.id().to_string()]).status().expect("kill");
    assert!(sent.success());
}

fn touch(cluster: &Cluster, file: &str) {
    std::fs::write(cluster.place.path().join(file), "").expect("written");
}

fn read(cluster: &Cluster, file: &str) -> String {
    std::fs::read_to_string(cluster.place.path().join(file)).unwrap_or_default()
}

/// Kills the coordinator and starts it again; `meanwhile` happens when there is none.
fn restart(cluster: &mut Cluster, meanwhile: impl FnOnce(&Cluster)) {
    let coordinator = cluster.coordinator;
    cluster.kill(coordinator);
    meanwhile(cluster);
    cluster.serve(&[]);
    wait_for("it answers", || cluster.run(&["worker", "list"]).status.success());
}

fn completed(cluster: &Cluster, job: &str) -> u64 {
    let shown = cluster.run(&["job", "show", job, "--json"]);
    serde_json::from_slice::<Value>(&shown.stdout).ok().and_then(|shown| shown["completed"].as_u64()).unwrap_or(0)
}

#[test]
fn a_client_that_comes_back_hears_of_what_ended_meanwhile() {
    let mut cluster = Cluster::start(&[]);
    cluster.worker("alpha", &["--slots", "4"]);
    let script = "while ! test -e $FILCH_JOB-$FILCH_TASK; do sleep 0.05; done; echo over $FILCH_TASK";
    for (job, meanwhile) in [("1", 1..=2), ("2", 1..=4)] {
        let submit = ["submit", "--wait", "-k", "--array", "1-4", "--", "sh", "-c", script];
        let client = cluster.command(&submit).spawn().expect("the binary runs");
        wait_for("they run", || {
            let shown = cluster.run(&["job", "show", job, "--json"]);
            serde_json::from_slice::<Value>(&shown.stdout).is_ok_and(|shown| shown["running"] == 4)
        });
        // Tasks begin before their submission is durable. Until then the next coordinator may never have heard of them, and
        // the client that would submit them again sleeps.
        wait_for("all is durable", || cluster.json(&["stats", "--json"])["store_pending_bytes"] == 0);
        // Nobody tells it of these: it sleeps, and the coordinator is another one when it wakes up.
        signal(&client, "STOP");
        restart(&mut cluster, |cluster| meanwhile.clone().for_each(|task| touch(cluster, &format!("{job}-{task}"))));
        wait_for("they have ended", || completed(&cluster, job) == *meanwhile.end());
        signal(&client, "CONT");
        (meanwhile.end() + 1..=4).for_each(|task| touch(&cluster, &format!("{job}-{task}")));
        let output = client.wait_with_output().expect("it ends");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "over 1\nover 2\nover 3\nover 4\n", "job {job}");
        assert_eq!(output.status.code(), Some(0));
    }
}

#[test]
fn whoever_looks_on_sees_everything_once_however_late() {
    let mut cluster = Cluster::start(&[]);
    cluster.worker("alpha", &["--slots", "2"]);
    let script = "echo one; echo err >&2; while ! test -e go; do sleep 0.05; done; echo two";
    let job = cluster.told(&["submit", "--", "sh", "-c", script]);
    let look = |cluster: &Cluster, file: &str| {
        let out = File::create(cluster.place.path().join(file)).expect("a file");
        let mut command = cluster.command(&["task", "logs", "-f", job.trim()]);
        let child = command.stdout(out).stderr(Stdio::piped()).spawn().expect("the binary runs");
        wait_for("it sees what there is", || read(cluster, file) == "one\n");
        child
    };
    wait_for("it runs", || cluster.json(&["task", "list", job.trim(), "--json"])[0]["status"] == "running");
    let first = look(&cluster, "first");
    let second = look(&cluster, "second");
    restart(&mut cluster, |_| {});
    let third = look(&cluster, "third");
    touch(&cluster, "go");
    for (child, file) in [(first, "first"), (second, "second"), (third, "third")] {
        let output = child.wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), Some(0));
        assert_eq!(read(&cluster, file), "one\ntwo\n", "{file}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(said.lines().filter(|line| *line == "err").count(), 1, "{file}: {said}");
    }
}

#[test]
fn who_follows_a_task_that_waits_sees_all_of_it() {
    let mut cluster = Cluster::start(&["--plain"]);
    cluster.worker("alpha", &["--slots", "1"]);
    let waits = "while ! test -e go; do sleep 0.05; done";
    cluster.told(&["submit", "--", "sh", "-c", waits]);
    cluster.told(&["submit", "--", "sh", "-c", "echo one; sleep 0.1; echo two"]);
    assert!(!cluster.run(&["task", "logs", "2"]).status.success());
    let mut follower = cluster.command(&["task", "logs", "-f", "2"]).stderr(Stdio::piped()).spawn().expect("it runs");
    let mut said = String::new();
    BufReader::new(follower.stderr.take().expect("piped")).read_line(&mut said).expect("text");
    assert!(said.contains("task 2.1 has not begun; `filch task why 2.1` says why"), "{said}");
    touch(&cluster, "go");
    let seen = follower.wait_with_output().expect("it ends");
    assert_eq!(String::from_utf8_lossy(&seen.stdout), "one\ntwo\n");
}
