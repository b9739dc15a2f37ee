//! The store on real files: what is acknowledged is there, whatever happens; what cannot be trusted is refused.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use filch_node::store::{
    BlobChange, BlobId, Entry, Epoch, Error, Group, Options, Place, Shard, SqliteStore, Store, Taken, Until,
};
use rusqlite::Connection;

const SHARD: Shard = Shard(0);

fn entry(text: &str) -> Entry {
    Entry::of(text.as_bytes().to_vec())
}

fn read(store: &SqliteStore, shard: Shard, after: Place) -> Vec<Group> {
    store.read(shard, after).unwrap().map(|group| group.unwrap()).collect()
}

fn texts(store: &SqliteStore, shard: Shard) -> Vec<String> {
    let groups = read(store, shard, Place(0));
    groups.into_iter().flat_map(|group| group.entries).map(|entry| String::from_utf8(entry).unwrap()).collect()
}

fn database(dir: &Path) -> PathBuf {
    dir.join("filch.db")
}

fn count(dir: &Path, table: &str) -> i64 {
    let connection = Connection::open(database(dir)).unwrap();
    connection.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap()
}

/// Waits for something that happens by itself; says what did not.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what} did not happen");
        std::thread::yield_now();
    }
}

/// A closed store with ten groups in its database file and nothing in its log.
fn ten_groups() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(dir.path()).unwrap();
    let Taken { epoch, .. } = store.take(SHARD).unwrap();
    for number in 1..=10 {
        store.append_and_wait(SHARD, epoch, entry(&format!("group {number} of ten"))).unwrap();
    }
    dir
}

/// Copies a store as a crash would leave it: with its log.
fn copy(from: &Path) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for name in ["filch.db", "filch.db-wal"] {
        fs::copy(from.join(name), dir.path().join(name)).unwrap();
    }
    dir
}

fn find(haystack: &[u8], needle: &[u8]) -> usize {
    haystack.windows(needle.len()).position(|window| window == needle).unwrap()
}

#[test]
fn what_was_appended_comes_back_in_order_shard_by_shard_and_after_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(dir.path().join("made/by/open")).unwrap();
    let here = store.take(SHARD).unwrap();
    let there = store.take(Shard(Shard::MAX)).unwrap();
    assert_eq!(here, Taken { epoch: Epoch(1), last: Place(0) });
    for number in 0..5 {
        assert_eq!(store.append_and_wait(SHARD, here.epoch, entry(&format!("here {number}"))).unwrap().0, number + 1);
        store.append_and_wait(Shard(Shard::MAX), there.epoch, entry(&format!("there {number}"))).unwrap();
    }
    let expected: Vec<String> = (0..5).map(|number| format!("here {number}")).collect();
    assert_eq!(texts(&store, SHARD), expected);
    assert_eq!(read(&store, SHARD, Place(3)).len(), 2);
    assert_eq!(store.pending_bytes(), 0);
    store.verify().unwrap();
    drop(store);
    let store = SqliteStore::open(dir.path().join("made/by/open")).unwrap();
    assert_eq!(texts(&store, SHARD), expected);
    assert_eq!(texts(&store, Shard(Shard::MAX)).len(), 5);
    assert_eq!(texts(&store, Shard(1)), Vec::<String>::new());
    assert_eq!(store.take(SHARD).unwrap(), Taken { epoch: Epoch(2), last: Place(5) });
    assert!(matches!(store.take(Shard(Shard::MAX + 1)), Err(Error::TooMuch { .. })));
}

#[test]
fn whatever_came_while_a_commit_ran_goes_into_the_next_as_one_group() {
    let dir = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(dir.path()).unwrap();
    let epoch = store.take(SHARD).unwrap().epoch;
    let (go, gate) = mpsc::channel::<()>();
    let (entered, inside) = mpsc::channel();
    let first = Box::new(move |outcome: Result<Place, Error>| {
        assert_eq!(outcome.unwrap(), Place(1));
        entered.send(()).unwrap();
        gate.recv().unwrap();
    });
    store.append(SHARD, epoch, entry("first"), first);
    inside.recv().unwrap();
    let told = Arc::new(Mutex::new(Vec::new()));
    for number in 0..100 {
        let told = Arc::clone(&told);
        let done = Box::new(move |outcome: Result<Place, Error>| told.lock().unwrap().push((number, outcome.unwrap())));
        store.append(SHARD, epoch, entry(&format!("{number}")), done);
    }
    assert!(store.pending_bytes() > 100);
    go.send(()).unwrap();
    drop(store);
    let expected: Vec<(i32, Place)> = (0..100).map(|number| (number, Place(2))).collect();
    assert_eq!(*told.lock().unwrap(), expected, "told in order, before the store was closed");
    let store = SqliteStore::open(dir.path()).unwrap();
    let groups = read(&store, SHARD, Place(0));
    assert_eq!(groups.iter().map(|group| group.entries.len()).collect::<Vec<_>>(), [1, 100]);
}

#[test]
fn whoever_was_taken_over_from_writes_nothing_more() {
    let dir = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(dir.path()).unwrap();
    let never = store.append_and_wait(SHARD, Epoch(0), entry("never taken"));
    assert!(matches!(never, Err(Error::Fenced { .. })));
    let old = store.take(SHARD).unwrap().epoch;
    store.append_and_wait(SHARD, old, entry("old")).unwrap();
    let new = store.take(SHARD).unwrap().epoch;
    let refused = store.append_and_wait(SHARD, old, entry("too late")).unwrap_err();
    assert!(matches!(refused, Error::Fenced { epoch, current, .. } if epoch == old && current == new));
    assert_eq!(refused.to_string(), "shard 0 was taken under epoch 2; nothing more is written under epoch 1");
    let snapshot = store.write_snapshot(SHARD, old, Place(1), &mut [vec![0]].into_iter());
    assert!(matches!(snapshot, Err(Error::Fenced { .. })));
    store.append_and_wait(SHARD, new, entry("new")).unwrap();
    // Somebody who got past the lock.
    Connection::open(database(dir.path())).unwrap().execute("UPDATE shard SET epoch = 9", []).unwrap();
    let refused = store.append_and_wait(SHARD, new, entry("too late as well")).unwrap_err();
    assert!(matches!(refused, Error::Fenced { current: Epoch(9), .. }));
    assert_eq!(texts(&store, SHARD), ["old", "new"]);
}

#[test]
fn a_full_store_refuses_clearly_keeps_what_it_acknowledged_and_leaves_no_hole() {
    let dir = tempfile::tempdir().unwrap();
    let store =
        SqliteStore::open_with(dir.path(), Options { bytes_max: Some(400 << 10), ..Options::default() }).unwrap();
    let epoch = store.take(SHARD).unwrap().epoch;
    let other = store.take(Shard(1)).unwrap().epoch;
    let text = "x".repeat(10_000);
    let mut acknowledged = 0;
    let refused = loop {
        match store.append_and_wait(SHARD, epoch, entry(&format!("{acknowledged} {text}"))) {
            Ok(_) => acknowledged += 1,
            Err(error) => break error,
        }
    };
    assert!(acknowledged > 20, "{acknowledged}");
    assert!(matches!(refused, Error::Full { .. }), "{refused}");
    assert!(refused.to_string().contains("what was acknowledged is safe"));
    // It would fit, but something before it did not.
    let refused = store.append_and_wait(SHARD, epoch, entry("small")).unwrap_err();
    assert!(matches!(refused, Error::Stopped { .. }), "{refused}");
    assert_eq!(store.append_and_wait(Shard(1), other, entry("of another shard")).unwrap(), Place(1));
    let again = store.take(SHARD).unwrap();
    assert_eq!(again.last, Place(acknowledged));
    store.append_and_wait(SHARD, again.epoch, entry("small")).unwrap();
    let found = texts(&store, SHARD);
    assert_eq!(found.len() as u64, acknowledged + 1);
    assert!(found[..found.len() - 1].iter().zip(0..).all(|(text, number)| text.starts_with(&format!("{number} "))));
    // A snapshot makes room: what it replaces is removed and its pages are used again.
    let last = Place(acknowledged + 1);
    store.write_snapshot(SHARD, again.epoch, last, &mut [b"all of it".to_vec()].into_iter()).unwrap();
    until("the removal of folded groups", || count(dir.path(), "journal") == 1);
    store.append_and_wait(SHARD, again.epoch, entry(&text)).unwrap();
    store.verify().unwrap();
}

#[test]
fn a_snapshot_replaces_the_groups_it_folds_and_counts_only_when_whole() {
    let dir = ten_groups();
    let store = SqliteStore::open(dir.path()).unwrap();
    let epoch = store.take(SHARD).unwrap().epoch;
    assert!(store.snapshot(SHARD).unwrap().is_none());
    let mut behind = store.read(SHARD, Place(0)).unwrap();
    assert_eq!(behind.next().unwrap().unwrap().place, Place(1));
    for (up_to, previous) in [(11, 0), (20, 0)] {
        let refused = store.write_snapshot(SHARD, epoch, Place(up_to), &mut [vec![1]].into_iter()).unwrap_err();
        assert!(matches!(refused, Error::Misplaced { previous: found, .. } if found == Place(previous)), "{refused}");
    }
    let chunks: Vec<Vec<u8>> = (0..50_u8).map(|number| vec![number; 10_000]).collect();
    store.write_snapshot(SHARD, epoch, Place(7), &mut chunks.clone().into_iter()).unwrap();
    let snapshot = store.snapshot(SHARD).unwrap().unwrap();
    assert_eq!(snapshot.up_to, Place(7));
    let found: Vec<Vec<u8>> = snapshot.chunks.map(Result::unwrap).collect();
    assert_eq!(found, chunks);
    until("the removal of folded groups", || count(dir.path(), "journal") == 3);
    until("the removal of refused snapshots", || count(dir.path(), "snapshot") == 1);
    assert_eq!(read(&store, SHARD, Place(7)).iter().map(|group| group.place.0).collect::<Vec<_>>(), [8, 9, 10]);
    assert!(matches!(store.read(SHARD, Place(0)).unwrap().next(), Some(Err(Error::Folded { .. }))));
    store.write_snapshot(SHARD, epoch, Place(10), &mut [b"newer".to_vec()].into_iter()).unwrap();
    until("the removal of older chunks", || count(dir.path(), "chunk") == 1);
    // A snapshot that a crash cut short.
    drop(store);
    let connection = Connection::open(database(dir.path())).unwrap();
    connection.execute("INSERT INTO snapshot (id, shard, up_to, chunks, sealed) VALUES (77, 0, 10, 0, 0)", []).unwrap();
    connection.execute("INSERT INTO chunk VALUES (77 * 16777216, x'00')", []).unwrap();
    drop(connection);
    let store = SqliteStore::open(dir.path()).unwrap();
    let snapshot = store.snapshot(SHARD).unwrap().unwrap();
    assert_eq!(snapshot.chunks.map(Result::unwrap).collect::<Vec<_>>(), [b"newer"]);
    until("the removal of what was cut short", || {
        count(dir.path(), "snapshot") == 1 && count(dir.path(), "chunk") == 1
    });
    // With every group folded the journal still goes on where it was.
    assert_eq!(store.take(SHARD).unwrap(), Taken { epoch: Epoch(3), last: Place(10) });
    assert_eq!(store.append_and_wait(SHARD, Epoch(3), entry("eleven")).unwrap(), Place(11));
    store.verify().unwrap();
}

#[test]
fn blobs_are_durable_with_their_records_and_go_when_their_time_is_over() {
    let dir = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(dir.path()).unwrap();
    let epoch = store.take(SHARD).unwrap().epoch;
    let put = |id, text: &str, until: Option<u64>| BlobChange::Put {
        id: BlobId(id),
        bytes: text.as_bytes().to_vec(),
        until: until.map(Until),
    };
    let blob = |id| store.blob(SHARD, BlobId(id)).unwrap().map(|bytes| String::from_utf8(bytes).unwrap());
    let blobs = vec![put(1, "payload", None), put(2, "result", Some(500)), put(3, "log", Some(100)), put(4, "", None)];
    store.append_and_wait(SHARD, epoch, Entry { records: b"r".to_vec(), blobs }).unwrap();
    assert_eq!(blob(1).as_deref(), Some("payload"));
    assert_eq!(blob(4).as_deref(), Some(""));
    assert_eq!(blob(5), None);
    assert_eq!(store.blob(Shard(1), BlobId(1)).unwrap(), None, "shards are apart");
    let changes = vec![
        put(3, "a longer log", Some(200)),
        BlobChange::Keep { id: BlobId(1), until: Some(Until(300)) },
        BlobChange::Remove { id: BlobId(4) },
        BlobChange::Keep { id: BlobId(99), until: None },
    ];
    let place = store.append_and_wait(SHARD, epoch, Entry { records: Vec::new(), blobs: changes }).unwrap();
    assert_eq!(place, Place(1), "no records, no group");
    assert_eq!((blob(3).as_deref(), blob(4)), (Some("a longer log"), None));
    assert_eq!(store.sweep(Until(199), 10).unwrap(), 0);
    assert_eq!(store.sweep(Until(1000), 2).unwrap(), 2, "the longest over first");
    assert_eq!((blob(1), blob(2).as_deref(), blob(3)), (None, Some("result"), None));
    // Refused with all that belongs to it.
    let blobs = vec![put(6, "kept by nobody", None), put(1 << 48, "too great an id", None)];
    let refused = store.append_and_wait(SHARD, epoch, Entry { records: b"s".to_vec(), blobs });
    assert!(matches!(refused, Err(Error::TooMuch { .. })));
    assert_eq!(blob(6), None);
    assert_eq!(texts(&store, SHARD), ["r"]);
}

#[test]
fn a_newer_or_foreign_store_is_refused_with_what_to_do() {
    let dir = ten_groups();
    Connection::open(database(dir.path())).unwrap().pragma_update(None, "user_version", 99).unwrap();
    let before = fs::read(database(dir.path())).unwrap();
    let refused = SqliteStore::open(dir.path()).unwrap_err();
    assert!(matches!(refused, Error::Newer { found: 99, .. }), "{refused}");
    assert!(refused.to_string().contains("use the filch that wrote it or a later one"), "{refused}");
    assert_eq!(fs::read(database(dir.path())).unwrap(), before);
    let dir = tempfile::tempdir().unwrap();
    Connection::open(database(dir.path())).unwrap().execute_batch("CREATE TABLE mine (x)").unwrap();
    assert!(matches!(SqliteStore::open(dir.path()), Err(Error::Foreign { .. })));
}

#[test]
fn a_damaged_store_is_refused_and_never_reset() {
    let sound = ten_groups();
    let bytes = fs::read(database(sound.path())).unwrap();
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("empty", Vec::new()),
        ("not a database", b"once upon a time there was a text file".to_vec()),
        ("cut in its header", bytes[..50].to_vec()),
        ("cut in the middle", bytes[..bytes.len() / 2].to_vec()),
        ("without its last page", bytes[..bytes.len() - 4096].to_vec()),
    ];
    for (name, bytes) in cases {
        let dir = tempfile::tempdir().unwrap();
        fs::write(database(dir.path()), &bytes).unwrap();
        let refused = SqliteStore::open(dir.path()).unwrap_err();
        assert!(matches!(refused, Error::Damaged { .. }), "{name}: {refused}");
        assert!(refused.to_string().contains("restore it from a backup"), "{name}: {refused}");
        assert_eq!(fs::read(database(dir.path())).unwrap(), bytes, "{name} was changed");
    }
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("filch.db-wal"), b"a log").unwrap();
    assert!(matches!(SqliteStore::open(dir.path()), Err(Error::Damaged { .. })));
    assert!(!database(dir.path()).exists());
}

#[test]
fn damage_inside_is_found_when_it_is_read() {
    let dir = ten_groups();
    let mut bytes = fs::read(database(dir.path())).unwrap();
    let at = find(&bytes, b"group 5 of ten");
    bytes[at] ^= 1;
    fs::write(database(dir.path()), bytes).unwrap();
    let store = SqliteStore::open(dir.path()).unwrap();
    let mut groups = store.read(SHARD, Place(0)).unwrap();
    assert_eq!(groups.by_ref().take(4).map(|group| group.unwrap().place.0).collect::<Vec<_>>(), [1, 2, 3, 4]);
    let refused = groups.next().unwrap().unwrap_err();
    assert!(refused.to_string().contains("group 5 of shard 0 has a wrong checksum"), "{refused}");
    assert!(groups.next().is_none(), "nothing follows what is wrong");
    assert!(matches!(store.verify(), Err(Error::Damaged { .. })));
    drop(store);
    let dir = ten_groups();
    Connection::open(database(dir.path())).unwrap().execute("DELETE FROM journal WHERE place = 5", []).unwrap();
    let store = SqliteStore::open(dir.path()).unwrap();
    let refused = store.read(SHARD, Place(4)).unwrap().next().unwrap().unwrap_err();
    assert!(refused.to_string().contains("group 5 of shard 0 is missing"), "{refused}");
}

#[test]
fn a_log_that_hides_acknowledged_commits_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    // With a limit the log is not brought to its length, so that it holds the commits and nothing else.
    let store = SqliteStore::open_with(dir.path(), Options { bytes_max: Some(1 << 30), ..Options::default() }).unwrap();
    let epoch = store.take(SHARD).unwrap().epoch;
    for number in 1..=10 {
        store.append_and_wait(SHARD, epoch, entry(&format!("group {number} of ten"))).unwrap();
    }
    let log = |dir: &Path| dir.join("filch.db-wal");
    let crashed = copy(dir.path());
    assert_eq!(texts(&SqliteStore::open(crashed.path()).unwrap(), SHARD).len(), 10);
    // In the header, in the first frame, in the middle.
    let length = fs::read(log(dir.path())).unwrap().len();
    for at in [20, 32 + 24 + 100, length / 2] {
        let crashed = copy(dir.path());
        let mut bytes = fs::read(log(crashed.path())).unwrap();
        bytes[at] ^= 1;
        fs::write(log(crashed.path()), &bytes).unwrap();
        let refused = SqliteStore::open(crashed.path()).unwrap_err();
        assert!(matches!(refused, Error::Damaged { .. }), "byte {at}: {refused}");
        assert_eq!(fs::read(log(crashed.path())).unwrap(), bytes);
    }
    // The last commit alone may be torn: a crash does that before it is acknowledged.
    let crashed = copy(dir.path());
    let mut bytes = fs::read(log(crashed.path())).unwrap();
    bytes[length - 1] ^= 1;
    fs::write(log(crashed.path()), &bytes).unwrap();
    assert_eq!(texts(&SqliteStore::open(crashed.path()).unwrap(), SHARD).len(), 9);
    let crashed = copy(dir.path());
    fs::write(log(crashed.path()), &fs::read(log(dir.path())).unwrap()[..length - 100]).unwrap();
    assert_eq!(texts(&SqliteStore::open(crashed.path()).unwrap(), SHARD).len(), 9);
}

#[test]
fn a_second_store_on_the_same_directory_is_refused_with_the_first_ones_number() {
    let dir = tempfile::tempdir().unwrap();
    let first = SqliteStore::open(dir.path()).unwrap();
    let refused = SqliteStore::open(dir.path()).unwrap_err();
    assert!(matches!(refused, Error::InUse { pid: Some(pid), .. } if pid == std::process::id()), "{refused}");
    drop(first);
    SqliteStore::open(dir.path()).unwrap();
}

#[test]
fn a_closed_store_finishes_what_was_handed_over() {
    let dir = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(dir.path()).unwrap();
    let epoch = store.take(SHARD).unwrap().epoch;
    let (tell, told) = mpsc::channel();
    for number in 0..1000 {
        let tell = tell.clone();
        let done = Box::new(move |outcome: Result<Place, Error>| tell.send(outcome.is_ok()).unwrap());
        store.append(SHARD, epoch, entry(&format!("{number}")), done);
    }
    drop((store, tell));
    assert_eq!(told.iter().filter(|durable| *durable).count(), 1000);
    assert_eq!(texts(&SqliteStore::open(dir.path()).unwrap(), SHARD).len(), 1000);
}
