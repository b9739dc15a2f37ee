//! Numbers rather than verdicts: run alone on an idle machine, with
//! `cargo test --release -p filch-node --test measure -- --ignored --nocapture --test-threads 1`.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use filch_node::exec::{Command, Executor};
use filch_node::store::{BlobChange, BlobId, Entry, Place, Shard, SqliteStore, Store};

const SHARD: Shard = Shard(0);
const PER_ENTRY: u64 = 1000;

/// Where measured files go: the system's temporary files may be no disk at all.
fn scratch() -> tempfile::TempDir {
    let near = PathBuf::from(std::env!("CARGO_TARGET_TMPDIR"));
    tempfile::tempdir_in(near).unwrap()
}

fn percentile(times: &mut [Duration], part: f64) -> Duration {
    times.sort();
    times[((times.len() - 1) as f64 * part) as usize]
}

#[test]
#[ignore = "a measurement"]
fn records_per_second_in_entries_of_a_thousand() {
    // Outcomes are about 20 bytes each; descriptions of tasks more.
    for (bytes, entries, ahead) in [(20, 4000, 0), (20, 4000, 16), (64, 4000, 0), (64, 4000, 16)] {
        let dir = scratch();
        let store = SqliteStore::open(dir.path()).unwrap();
        let epoch = store.take(SHARD).unwrap().epoch;
        let (tell, told) = mpsc::channel();
        let start = Instant::now();
        for number in 0..entries {
            let records = vec![number as u8; bytes * PER_ENTRY as usize];
            let tell = tell.clone();
            let done = Box::new(move |outcome: Result<Place, _>| tell.send(outcome.unwrap()).unwrap());
            store.append(SHARD, epoch, Entry::of(records), done);
            if number >= ahead {
                told.recv().unwrap();
            }
        }
        drop(tell);
        assert!(told.iter().count() > 0 || ahead == 0);
        let rate = (entries * PER_ENTRY) as f64 / start.elapsed().as_secs_f64();
        let groups = store.take(SHARD).unwrap().last.0;
        println!("{bytes} bytes a record, {ahead:2} entries ahead: {rate:9.0} records/s in {groups} groups");
        drop(store);
        let store = SqliteStore::open(dir.path()).unwrap();
        let start = Instant::now();
        let read: usize = store.read(SHARD, Place(0)).unwrap().map(|group| group.unwrap().entries.len()).sum();
        assert_eq!(read as u64, entries);
        let rate = (entries * PER_ENTRY) as f64 / start.elapsed().as_secs_f64();
        println!("    read back at {rate:9.0} records/s");
    }
}

#[test]
#[ignore = "a measurement"]
fn entries_with_a_payload_each() {
    let dir = scratch();
    let store = SqliteStore::open(dir.path()).unwrap();
    let epoch = store.take(SHARD).unwrap().epoch;
    let (tell, told) = mpsc::channel();
    let (start, count) = (Instant::now(), 1_000_000_u64);
    for number in 0..count {
        let bytes = format!("a payload of its own {number}").into_bytes();
        let blobs = vec![BlobChange::Put { id: BlobId(number), bytes, until: None }];
        let tell = tell.clone();
        let done = Box::new(move |outcome: Result<Place, _>| tell.send(outcome.unwrap()).unwrap());
        store.append(SHARD, epoch, Entry { records: vec![7; 40], blobs }, done);
        while store.pending_bytes() > 16 << 20 {
            told.recv().unwrap();
        }
    }
    drop(tell);
    let groups = told.iter().last().map_or(0, |place| place.0);
    let rate = count as f64 / start.elapsed().as_secs_f64();
    println!("one record and one blob an entry: {rate:9.0} entries/s in {groups} groups");
}

#[test]
#[ignore = "a measurement"]
fn one_durable_append_against_one_fdatasync() {
    let dir = scratch();
    let file = File::create(dir.path().join("bare")).unwrap();
    file.write_all_at(&vec![1; 16 << 20], 0).unwrap();
    file.sync_all().unwrap();
    let store = SqliteStore::open(dir.path()).unwrap();
    let epoch = store.take(SHARD).unwrap().epoch;
    let (mut bare, mut append) = (Vec::new(), Vec::new());
    // In turn, so that whatever disturbs the disk disturbs both.
    for number in 0..3000_u64 {
        let start = Instant::now();
        file.write_all_at(&[number as u8; 4096], (number * 4096) % (16 << 20)).unwrap();
        file.sync_data().unwrap();
        bare.push(start.elapsed());
        let start = Instant::now();
        store.append_and_wait(SHARD, epoch, Entry::of(vec![number as u8; 40])).unwrap();
        append.push(start.elapsed());
    }
    // Until the log has its length, every commit makes it longer, which costs more.
    let early = percentile(&mut append[..500], 0.5);
    println!("p50 of the first 500 appends {early:?}, of the last 500 {:?}", percentile(&mut append[2500..], 0.5));
    for part in [0.5, 0.9, 0.99] {
        let (bare, append) = (percentile(&mut bare, part), percentile(&mut append, part));
        let ratio = append.as_secs_f64() / bare.as_secs_f64();
        println!("p{:2.0}: fdatasync {bare:?}, append {append:?}, ratio {ratio:.2}", part * 100.0);
    }
}

/// Starts `/bin/true` so many times from two threads, with nothing captured; how many a second.
fn bare_loop(count: u32) -> f64 {
    let start = Instant::now();
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..count / 2 {
                    let mut command = std::process::Command::new("/bin/true");
                    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
                    assert!(command.status().unwrap().success());
                }
            });
        }
    });
    f64::from(count) / start.elapsed().as_secs_f64()
}

/// The same through an executor with two slots, each next one started by the callback of the last.
fn executor(count: u32) -> f64 {
    let executor = Arc::new(Executor::new(2));
    let left = Arc::new(AtomicU32::new(count));
    let (tell, told) = mpsc::channel::<()>();
    fn next(executor: &Arc<Executor>, left: &Arc<AtomicU32>, tell: &mpsc::Sender<()>) {
        if left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_err() {
            return;
        }
        let (again, left, tell) = (Arc::clone(executor), Arc::clone(left), tell.clone());
        let done = Box::new(move |outcome: Result<filch_node::exec::Outcome, _>| {
            assert!(outcome.unwrap().succeeded());
            next(&again, &left, &tell);
        });
        executor.start(Command::argv("/bin/true", [""; 0]), None, done).detach();
    }
    let start = Instant::now();
    for _ in 0..2 {
        next(&executor, &left, &tell);
    }
    drop(tell);
    assert!(told.recv().is_err(), "nobody tells; it is over when nobody could");
    f64::from(count) / start.elapsed().as_secs_f64()
}

#[test]
#[ignore = "a measurement"]
fn commands_per_second_against_a_bare_loop() {
    let mut ratios = Vec::new();
    for _ in 0..7 {
        let (bare, ours) = (bare_loop(3000), executor(3000));
        println!("bare loop {bare:5.0}/s, executor {ours:5.0}/s, ratio {:.3}", ours / bare);
        ratios.push(ours / bare);
    }
    ratios.sort_by(f64::total_cmp);
    println!("median ratio {:.3}", ratios[3]);
}
