//! Coordinator and workers are killed again and again while tasks leave traces: none is lost, each has one outcome, and every
//! time one was run is accounted for.

mod common;

use std::collections::BTreeMap;
use std::time::Duration;

use common::{Cluster, wait_for};

const TASKS: u32 = 5000;
const KILLS: u32 = 30;
const WORKERS: usize = 4;
const SLOTS: usize = 2;

/// The same every time.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

#[test]
fn nothing_is_lost_however_often_anything_is_killed() {
    let mut cluster = Cluster::start_with("limits:\n  lease: 2s\n", &[]);
    std::fs::create_dir(cluster.place.path().join("traces")).expect("a directory");
    let mut workers: Vec<u32> = Vec::new();
    let slots = SLOTS.to_string();
    for number in 0..WORKERS {
        workers.push(cluster.worker(&format!("w{number}"), &["--slots", &slots]));
    }
    // One trace for every time that a task is run.
    let script = "sleep 0.003; : > traces/$FILCH_TASK.$FILCH_WORKER.$$";
    let array = format!("1-{TASKS}");
    cluster.told(&["submit", "--array", &array, "--", "sh", "-c", script]);

    let mut dice = Dice(11);
    let mut killed_workers = 0;
    for kill in 0..KILLS {
        std::thread::sleep(Duration::from_millis(100 + dice.below(300)));
        if kill % 3 == 0 {
            let coordinator = cluster.coordinator;
            cluster.kill(coordinator);
            std::thread::sleep(Duration::from_millis(dice.below(200)));
            cluster.serve(&[]);
        } else {
            let at = dice.below(WORKERS as u64) as usize;
            cluster.kill(workers[at]);
            killed_workers += 1;
            // Under a new name: who takes over a name is another matter.
            let name = format!("w{at}-{kill}");
            let arguments = ["worker", "--listen", "127.0.0.1:0", "--name", &name, "--slots", &slots];
            workers[at] = cluster.spawn(&arguments);
        }
    }
    wait_for("the coordinator answers", || cluster.run(&["job", "show", "1"]).status.success());
    let waited = cluster.run(&["job", "wait", "1"]);
    assert!(waited.status.success(), "{}", String::from_utf8_lossy(&waited.stderr));

    let listed = cluster.json(&["task", "list", "1", "--limit", "10000", "--json"]);
    let tasks = listed.as_array().expect("a list");
    let mut outcomes: BTreeMap<i64, u32> = BTreeMap::new();
    for task in tasks {
        assert_eq!(task["status"].as_str(), Some("completed"), "{task}");
        *outcomes.entry(task["number"].as_i64().expect("a number")).or_default() += 1;
    }
    assert_eq!(outcomes.len(), TASKS as usize, "every task has an outcome");
    assert!(outcomes.values().all(|count| *count == 1), "and only one");

    let mut runs: BTreeMap<i64, u32> = BTreeMap::new();
    for trace in std::fs::read_dir(cluster.place.path().join("traces")).expect("a directory") {
        let name = trace.expect("an entry").file_name().into_string().expect("a name");
        let number = name.split('.').next().and_then(|number| number.parse().ok()).expect("a number");
        *runs.entry(number).or_default() += 1;
    }
    assert_eq!(runs.len(), TASKS as usize, "every task was run");
    assert!(runs.keys().all(|number| outcomes.contains_key(number)), "and nothing else was");
    // Only what a killed worker ran, or had not yet reported, is run again; of each that is what it held.
    let again: u32 = runs.values().map(|count| count - 1).sum();
    let held = 64;
    assert!(again <= killed_workers * held, "{again} were run again though {killed_workers} workers were killed");
}
