//! The store and what the world does to it: killed processes, full disks, read-only disks.
//!
//! The tests start this very program again as the process that is to suffer.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Instant;

use filch_node::store::{BlobChange, BlobId, Entry, Error, Place, Shard, SqliteStore, Store};

const SHARD: Shard = Shard(0);
const DIR: &str = "FILCH_TEST_STORE";

/// The part of a test that runs in a process of its own; nothing without the directory it is meant for.
fn our_dir() -> Option<PathBuf> {
    std::env::var_os(DIR).map(PathBuf::from)
}

/// This program as another process that runs one of the children below.
fn child(name: &str, dir: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--ignored", "--nocapture"]).env(DIR, dir);
    command
}

/// What a child says about itself, told apart from what the test harness says.
fn say(text: &str) {
    // Through the lock of standard output and in one piece: what is written must not be lost in a buffer.
    let mut out = std::io::stdout().lock();
    out.write_all(format!("\n# {text}\n").as_bytes()).unwrap();
    out.flush().unwrap();
}

fn heard(line: &str) -> Option<&str> {
    line.strip_prefix("# ")
}

/// Entry n of the journal: its number, then as many more bytes as that says.
fn entry(number: u64) -> Entry {
    let mut records = number.to_le_bytes().to_vec();
    records.resize(8 + (number % 300) as usize, number as u8);
    let blobs = vec![BlobChange::Put { id: BlobId(number), bytes: number.to_le_bytes().to_vec(), until: None }];
    Entry { records, blobs }
}

/// Everything that is in the journal, checked to be entries 0, 1, 2, … with their blobs.
fn entries(store: &SqliteStore) -> u64 {
    let mut number = 0;
    for group in store.read(SHARD, Place(0)).unwrap() {
        for found in group.unwrap().entries {
            assert_eq!(found, entry(number).records, "entry {number}");
            let blob = store.blob(SHARD, BlobId(number)).unwrap();
            assert_eq!(blob.as_deref(), Some(&number.to_le_bytes()[..]), "blob {number}");
            number += 1;
        }
    }
    number
}

#[test]
#[ignore = "the process that another test kills"]
fn child_appends() {
    let Some(dir) = our_dir() else { return };
    let store = SqliteStore::open(dir).unwrap();
    let epoch = store.take(SHARD).unwrap().epoch;
    let first = entries(&store);
    say("opened");
    for number in first.. {
        let done = Box::new(move |outcome: Result<Place, Error>| {
            outcome.unwrap();
            say(&number.to_string());
        });
        store.append(SHARD, epoch, entry(number), done);
        while store.pending_bytes() > 100_000 {
            std::thread::yield_now();
        }
    }
}

fn spawn_appender(dir: &Path) -> (Child, BufReader<ChildStdout>) {
    let mut child = child("child_appends", dir).stdout(Stdio::piped()).spawn().unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    (child, out)
}

#[test]
fn what_was_acknowledged_before_kill_9_is_there_after_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut acknowledged = None;
    for round in 1..=5_u64 {
        let (mut child, out) = spawn_appender(dir.path());
        let mut lines = out.lines().map(Result::unwrap);
        let mut heard_of = 0;
        for line in lines.by_ref() {
            match heard(&line).map(str::parse::<u64>) {
                Some(Ok(number)) => {
                    acknowledged = Some(number);
                    heard_of += 1;
                }
                Some(Err(_)) if round == 1 => {
                    // The directory is its own as long as it lives.
                    let refused = SqliteStore::open(dir.path()).unwrap_err();
                    assert!(matches!(refused, Error::InUse { pid, .. } if pid == Some(child.id())), "{refused}");
                }
                _ => {}
            }
            if heard_of == round * 37 {
                break;
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        // It was still telling while it was killed.
        for line in lines {
            if let Some(Ok(number)) = heard(&line).map(str::parse::<u64>) {
                acknowledged = Some(number);
            }
        }
        let store = SqliteStore::open(dir.path()).unwrap();
        assert!(entries(&store) > acknowledged.unwrap(), "round {round}");
        store.verify().unwrap();
    }
}

/// Runs a child under a file system of its own that is mounted at the directory; none where that is not permitted.
fn on_a_file_system_of_its_own(name: &str, mount: &str, dir: &Path) -> Option<String> {
    let exe = child(name, dir);
    let mut unshare = Command::new("unshare");
    unshare.args(["--user", "--map-root-user", "--mount", "sh", "-c"]);
    unshare.arg(format!("{mount} || {{ echo '# not permitted'; exit 0; }}; exec \"$@\"")).arg("sh");
    unshare.arg(exe.get_program()).args(exe.get_args()).env(DIR, dir);
    let said = unshare.output().ok().filter(|output| output.status.success() || !output.stdout.is_empty());
    let said = said.map(|output| {
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{out}{err}");
        out.into_owned()
    });
    let said = said.filter(|said| !said.contains("# not permitted"));
    if said.is_none() {
        println!("skipped: this system does not permit mounting a file system for a test");
    }
    said
}

#[test]
#[ignore = "runs on the tiny file system of another test"]
fn child_fills_the_disk() {
    let Some(dir) = our_dir() else { return };
    let store = SqliteStore::open(&dir).unwrap();
    let mut taken = store.take(SHARD).unwrap();
    let (mut number, mut refusals, start) = (0, 0, Instant::now());
    while refusals < 5 {
        assert!(start.elapsed().as_secs() < 60, "the disk does not fill up");
        match store.append_and_wait(SHARD, taken.epoch, entry(number)) {
            Ok(_) => number += 1,
            Err(error) => {
                assert!(matches!(error, Error::Full { .. }), "{error:?}");
                let stopped = store.append_and_wait(SHARD, taken.epoch, entry(number)).unwrap_err();
                assert!(matches!(stopped, Error::Stopped { .. }), "{stopped:?}");
                refusals += 1;
                // Taking the shard needs space too. Where there is none, this is how it stays.
                match store.take(SHARD) {
                    Ok(again) => taken = again,
                    Err(error) => {
                        assert!(matches!(error, Error::Full { .. }), "{error:?}");
                        break;
                    }
                }
            }
        }
    }
    assert_eq!(entries(&store), number);
    drop(store);
    // A restart on the full disk finds all of it, and goes on once there is room.
    std::fs::remove_file(dir.join("ballast")).unwrap();
    let store = SqliteStore::open(&dir).unwrap();
    assert_eq!(entries(&store), number);
    let epoch = store.take(SHARD).unwrap().epoch;
    store.append_and_wait(SHARD, epoch, entry(number)).unwrap();
    assert_eq!(entries(&store), number + 1);
    store.verify().unwrap();
    say(&format!("{number} were acknowledged"));
}

#[test]
fn a_full_disk_loses_nothing_that_was_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let mount =
        format!("mount -t tmpfs -o size=2m none {0} && head -c 500000 /dev/zero > {0}/ballast", dir.path().display());
    if let Some(said) = on_a_file_system_of_its_own("child_fills_the_disk", &mount, dir.path()) {
        assert!(said.contains("were acknowledged"), "{said}");
    }
}

#[test]
#[ignore = "runs on the read-only file system of another test"]
fn child_opens_read_only() {
    let Some(dir) = our_dir() else { return };
    for dir in [dir.join("old"), dir.join("new")] {
        let refused = SqliteStore::open(dir).unwrap_err();
        assert!(matches!(refused, Error::ReadOnly { .. }), "{refused:?}");
        assert!(refused.to_string().contains("make it writable for this user"), "{refused}");
    }
    say("refused");
}

#[test]
fn a_read_only_directory_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(dir.path().join("old")).unwrap();
    let epoch = store.take(SHARD).unwrap().epoch;
    store.append_and_wait(SHARD, epoch, entry(0)).unwrap();
    drop(store);
    let mount = format!("mount --bind {0} {0} && mount -o remount,bind,ro {0}", dir.path().display());
    if let Some(said) = on_a_file_system_of_its_own("child_opens_read_only", &mount, dir.path()) {
        assert!(said.contains("# refused"), "{said}");
    }
    assert_eq!(entries(&SqliteStore::open(dir.path().join("old")).unwrap()), 1);
}
