//! Coordinator, workers and clients in networks of their own that are cut and mended: nothing is lost, nothing counts twice,
//! and whoever was cut off comes back.
//!
//! The coordinator stands in the middle and everybody else has a cable of their own to it. What goes from one worker to
//! another passes the middle, which can refuse to pass it on.

mod common;

use std::process::{Child, Command};
use std::time::{Duration, Instant};

use serde_json::Value;

use common::apart::{inside, shell};
use common::{Cluster, ends, wait_for};

const PROBE: &str = "mount -t tmpfs tmpfs /run && ip netns add probe && ip link add x type veth peer name y netns probe \
                     && nsenter --net=/run/netns/probe true && echo 1 > /proc/sys/net/ipv4/ip_forward";
/// Where the coordinator is.
const MIDDLE: &str = "10.77.0.1:7433";
const CONFIG: &str = "limits:\n  lease: 2s\n";

/// A coordinator in the middle, and places around it that have the numbers 1 to `count`.
struct Star {
    cluster: Cluster,
}

impl Star {
    fn new(count: u32) -> Star {
        shell("mount -t tmpfs tmpfs /run; ip link set lo up; ip addr add 10.77.0.1/32 dev lo");
        pass_on(true);
        for at in 1..=count {
            shell(&format!(
                "set -e; ip netns add n{at}; ip link add c{at} type veth peer name port netns n{at}; \
                 ip addr add 10.77.{at}.1/24 dev c{at}; ip link set c{at} up; \
                 ip -n n{at} addr add 10.77.{at}.2/24 dev port; ip -n n{at} link set port up; ip -n n{at} link set lo up; \
                 ip -n n{at} route add default via 10.77.{at}.1"
            ));
        }
        let options = ["--listen", "0.0.0.0:7433", "--advertise", MIDDLE];
        Star { cluster: Cluster::start_at(CONFIG, &options) }
    }

    /// The binary at one of the places.
    fn command(&self, at: u32, arguments: &[&str]) -> Command {
        self.cluster.command_by(&["nsenter", &format!("--net=/run/netns/n{at}")], arguments)
    }

    fn worker(&mut self, at: u32, slots: &str) {
        let (name, address) = (format!("w{at}"), format!("10.77.{at}.2:0"));
        let command = self.command(at, &["worker", "--listen", &address, "--name", &name, "--slots", slots]);
        self.cluster.spawn_command(command);
        wait_for("the worker is there", || self.connected(at));
    }

    fn connected(&self, at: u32) -> bool {
        let output = self.cluster.run(&["worker", "show", &format!("w{at}"), "--json"]);
        serde_json::from_slice::<Value>(&output.stdout).is_ok_and(|shown| shown["connected"] == true)
    }

    /// What was noted in a file, line by line.
    fn noted(&self, file: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.cluster.place.path().join(file)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn touch(&self, file: &str) {
        std::fs::write(self.cluster.place.path().join(file), "").expect("written");
    }

    /// How the tasks of a job ended: by whom, one line for each.
    fn outcomes(&self, job: &str) -> Vec<(i64, String, String)> {
        let listed = self.cluster.json(&["task", "list", job, "--json", "--limit", "1000"]);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let each = listed.as_array().expect("a list").iter();
        each.map(|task| (task["number"].as_i64().unwrap_or(-1), text(&task["status"]), text(&task["worker"]))).collect()
    }
}

/// Nothing goes through the cable of a place, or everything again.
fn cut(at: u32) {
    shell(&format!("ip link set c{at} down"));
}

fn mend(at: u32) {
    shell(&format!("ip link set c{at} up"));
}

/// Whether the places reach each other.
fn pass_on(it: bool) {
    std::fs::write("/proc/sys/net/ipv4/ip_forward", if it { "1" } else { "0" }).expect("the middle is ours");
}

fn still_runs(child: &mut Child) -> bool {
    child.try_wait().expect("a child").is_none()
}

#[test]
fn a_worker_that_is_cut_off_loses_its_tasks_and_comes_back() {
    if !inside("a_worker_that_is_cut_off_loses_its_tasks_and_comes_back", &["--mount", "--net"], PROBE) {
        return;
    }
    let mut star = Star::new(2);
    star.worker(1, "3");
    let script = "echo $FILCH_TASK $FILCH_WORKER >> begun; while ! test -e go; do sleep 0.05; done; echo over";
    let job = star.cluster.told(&["submit", "--array", "1-2", "--", "sh", "-c", script]);
    // One that must never run twice at once says every few moments that it lives.
    let script = "while ! test -e go; do echo $(date +%s%N) >> alive-$FILCH_WORKER; sleep 0.02; done";
    let alone = star.cluster.told(&["submit", "--exclusive", "--", "sh", "-c", script]);
    wait_for("all run", || star.noted("begun").len() == 2 && !star.noted("alive-w1").is_empty());
    star.worker(2, "4");

    cut(1);
    wait_for("the lease ends", || !star.connected(1));
    wait_for("what it had runs elsewhere", || star.noted("begun").len() == 4 && !star.noted("alive-w2").is_empty());
    let mut begun = star.noted("begun");
    begun.sort();
    assert_eq!(begun, ["1 w1", "1 w2", "2 w1", "2 w2"]);
    // It has stopped by itself, nobody could tell it; and it had before the other began.
    let time = |line: &String| line.parse::<u128>().expect("a time");
    let last = star.noted("alive-w1").iter().map(time).max();
    assert!(last < star.noted("alive-w2").first().map(time), "the exclusive task ran twice at once");

    // Both ends of each task come about, one of them unheard.
    star.touch("go");
    for job in [&job, &alone] {
        assert_eq!(star.cluster.run(&["job", "wait", job.trim()]).status.code(), Some(0));
    }
    mend(1);
    wait_for("it comes back", || star.connected(1));
    let told = star.cluster.told(&["submit", "--wait", "--pin", "w1", "--", "sh", "-c", "echo $FILCH_WORKER"]);
    assert_eq!(told, "w1\n");
    let done = |number, worker: &str| (number, "completed".to_owned(), worker.to_owned());
    assert_eq!(star.outcomes(job.trim()), [done(1, "w2"), done(2, "w2")]);
    assert_eq!(star.outcomes(alone.trim()).iter().map(|one| &*one.2).collect::<Vec<_>>(), ["w2"]);
    assert_eq!(star.cluster.json(&["job", "show", job.trim(), "--json"])["completed"], 2);
    // Two of the array, one alone, one to see that it is back; whatever else was reported does not count.
    assert_eq!(star.cluster.json(&["stats", "--json"])["settled"], 4);
}

#[test]
fn peers_that_are_cut_off_from_each_other_steal_through_the_coordinator() {
    if !inside("peers_that_are_cut_off_from_each_other_steal_through_the_coordinator", &["--mount", "--net"], PROBE) {
        return;
    }
    let mut star = Star::new(2);
    star.worker(1, "1");
    star.worker(2, "1");
    let relayed = |star: &Star| star.cluster.json(&["stats", "--json"])["relayed"].as_u64().expect("a number");
    let by_thief = |star: &Star, job: &str| star.outcomes(job).iter().filter(|one| one.2 == "w2").count();
    let submit = ["submit", "--array", "1-600", "--to", "w1", "--", "sleep", "0.1"];

    let first = star.cluster.told(&submit);
    wait_for("a task is stolen", || by_thief(&star, first.trim()) > 1);
    assert_eq!(relayed(&star), 0, "they reach each other");
    star.cluster.told(&["job", "cancel", first.trim()]);

    // The connection that they have goes silent.
    pass_on(false);
    let second = star.cluster.told(&submit);
    wait_for("a task is stolen all the same", || by_thief(&star, second.trim()) > 2 && relayed(&star) > 0);
    let said = star.cluster.told(&["stats"]);
    assert!(said.contains("went through the coordinator: some cannot reach each other"), "{said}");
    assert!(star.connected(1) && star.connected(2));
    star.cluster.told(&["job", "cancel", second.trim()]);
    let outcomes = star.outcomes(second.trim());
    assert_eq!(outcomes.len(), 600);
    assert!(outcomes.iter().all(|one| one.1 == "completed" || one.1 == "cancelled"), "{outcomes:?}");
}

#[test]
fn a_client_that_was_cut_off_still_hears_the_end() {
    if !inside("a_client_that_was_cut_off_still_hears_the_end", &["--mount", "--net"], PROBE) {
        return;
    }
    let mut star = Star::new(3);
    star.worker(1, "4");
    let script = "while ! test -e go; do sleep 0.05; done; echo over $FILCH_TASK";
    let submit = ["submit", "--wait", "-k", "--array", "1-4", "--", "sh", "-c", script];
    let mut submitter = star.command(2, &submit).spawn().expect("the binary runs");
    wait_for("they run", || star.cluster.json(&["job", "list", "--json"])[0]["running"] == 4);
    let mut waiter = star.command(3, &["job", "wait", "1"]).spawn().expect("the binary runs");
    // How far it is can be seen from its socket only.
    let connections = || {
        let output =
            Command::new("nsenter").args(["--net=/run/netns/n3", "ss", "-Htn", "state", "established"]).output();
        String::from_utf8_lossy(&output.expect("ss").stdout).lines().count()
    };
    wait_for("the waiter is connected", || connections() == 1);

    cut(2);
    cut(3);
    star.touch("go");
    wait_for("the job ends", || star.cluster.json(&["job", "show", "1", "--json"])["completed"] == 4);
    let until = Instant::now() + Duration::from_secs(1);
    while Instant::now() < until {
        assert!(still_runs(&mut submitter) && still_runs(&mut waiter), "whoever hears nothing goes on waiting");
        std::thread::sleep(Duration::from_millis(50));
    }
    mend(2);
    mend(3);
    assert_eq!(ends(waiter), Some(0));
    let output = submitter.wait_with_output().expect("it ends");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "over 1\nover 2\nover 3\nover 4\n");
    assert_eq!(output.status.code(), Some(0));
}
