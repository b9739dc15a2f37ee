//! Snapshots with the real binary: the journal is folded again and again while jobs come and go and the coordinator is
//! killed, also in the middle of one; everything is there afterwards, and the journal stays short.

mod common;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rusqlite::{Connection, OpenFlags};

use common::{Cluster, wait_for};

/// So short that every job is worth a snapshot.
const FOLD: &[&str] = &["--fold-after", "3000"];
const ROUNDS: u32 = 6;
const TASKS: u32 = 150;

/// What the store of a running coordinator holds.
struct Store {
    journal_bytes: i64,
    sealed: i64,
    unsealed: i64,
    /// How many snapshots there ever were.
    newest: i64,
}

fn store(cluster: &Cluster) -> Store {
    let path = cluster.place.path().join("filch.db");
    let db = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).expect("a database");
    db.busy_timeout(Duration::from_secs(10)).expect("patience");
    let ask = |sql: &str| db.query_row(sql, [], |row| row.get::<_, i64>(0)).expect("a number");
    Store {
        journal_bytes: ask("select coalesce(sum(length(body)), 0) from journal"),
        sealed: ask("select count(*) from snapshot where sealed"),
        unsealed: ask("select count(*) from snapshot where not sealed"),
        newest: ask("select coalesce(max(seq), 0) from sqlite_sequence where name = 'snapshot'"),
    }
}

#[test]
fn snapshots_keep_the_journal_short_and_lose_nothing() {
    let mut cluster = Cluster::start(FOLD);
    cluster.worker("alpha", &["--slots", "2"]);
    // These wait for somebody who comes at the very end, through all snapshots.
    let waits = cluster.told(&[
        "submit",
        "--array",
        "1-20",
        "--requires",
        "late",
        "--",
        "sh",
        "-c",
        "echo $FILCH_TASK >> late",
    ]);
    let mut jobs = Vec::new();
    let mut caught = 0;
    for _ in 0..ROUNDS {
        let before = store(&cluster).newest;
        let array = format!("1-{TASKS}");
        jobs.push(cluster.told(&["submit", "--array", &array, "--", "true"]));
        // In the middle of a snapshot if one is seen in time, else soon after one.
        let until = Instant::now() + Duration::from_secs(20);
        while Instant::now() < until {
            let store = store(&cluster);
            // One that was begun before this round is none of it.
            if store.newest > before && store.unsealed > 0 || store.newest > before + 2 {
                caught += store.unsealed;
                break;
            }
        }
        let coordinator = cluster.coordinator;
        cluster.kill(coordinator);
        cluster.serve(FOLD);
        wait_for("it answers", || cluster.run(&["worker", "list"]).status.success());
        assert!(store(&cluster).newest > before, "there was a snapshot in this round");
    }
    for job in &jobs {
        assert_eq!(cluster.run(&["job", "wait", job.trim()]).status.code(), Some(0));
        let listed = cluster.json(&["task", "list", job.trim(), "--json", "--limit", "1000"]);
        let mut outcomes: BTreeMap<i64, u32> = BTreeMap::new();
        for task in listed.as_array().expect("a list") {
            assert_eq!(task["status"].as_str(), Some("completed"), "{task}");
            *outcomes.entry(task["number"].as_i64().expect("a number")).or_default() += 1;
        }
        assert_eq!(outcomes.len(), TASKS as usize, "job {job}");
        assert!(outcomes.values().all(|count| *count == 1), "each has one outcome");
    }
    let shown = cluster.json(&["job", "show", waits.trim(), "--json"]);
    assert_eq!((shown["waiting"].as_u64(), shown["tasks"].as_u64()), (Some(20), Some(20)), "{shown}");
    cluster.worker("beta", &["--slots", "2", "--capability", "late"]);
    assert_eq!(cluster.run(&["job", "wait", waits.trim()]).status.code(), Some(0));
    let ran = std::fs::read_to_string(cluster.place.path().join("late")).expect("a file");
    let mut ran: Vec<u32> = ran.lines().map(|line| line.parse().expect("a number")).collect();
    ran.sort_unstable();
    assert_eq!(ran, (1..=20).collect::<Vec<_>>());

    // What a snapshot has replaced goes when nobody waits for the writer, at the next commits.
    let short = 4 * 3000;
    wait_for("the journal is short", || {
        let job = cluster.told(&["submit", "--array", "1-20", "--", "true"]);
        assert_eq!(cluster.run(&["job", "wait", job.trim()]).status.code(), Some(0));
        let store = store(&cluster);
        store.journal_bytes < short && store.sealed == 1 && store.unsealed == 0
    });
    // How often the middle was met is for people who look at the output.
    eprintln!("{caught} of {ROUNDS} kills were in the middle of a snapshot");
}
