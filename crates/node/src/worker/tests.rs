//! Workers at work, with real sockets and processes, for a coordinator that has the real machine and nothing beside it.

mod house;

use std::time::Duration;

use bytes::Bytes;
use filch_core::wire::talk::{InputSort, Opening, Program, Variable, Words, Work};
use filch_core::{RetryTerms, Span, Status, TaskSpec};

use super::*;
use crate::access::Access;
use crate::dial::{Deliver, Doorway, Entered};
use house::House;

fn call(name: &str, input: &'static str) -> Work {
    Work { program: Some(Program::Call(name.to_owned())), stdin: input.into(), ..Work::default() }
}

fn shell(script: &'static str) -> Work {
    Work { program: Some(Program::Shell(script.into())), first: 1, step: 1, job: 7, ..Work::default() }
}

fn once() -> TaskSpec {
    let second = Span::from_secs(1);
    TaskSpec { retry: Some(RetryTerms { max_retries: 0, backoff: second, backoff_max: second }), ..TaskSpec::default() }
}

fn options(name: &str) -> WorkerOptions {
    WorkerOptions { slots: 2, ..WorkerOptions::new(name) }
}

/// Starts a worker; its handle, and how it ends.
fn start(house: &House, options: WorkerOptions) -> (WorkerHandle, tokio::task::JoinHandle<Result<(), WorkerFailure>>) {
    let worker = Worker::new(options);
    (worker.handle(), tokio::spawn(worker.run(Dial::Socket(house.access()))))
}

async fn end(ending: tokio::task::JoinHandle<Result<(), WorkerFailure>>) {
    let patience = Duration::from_secs(30);
    tokio::time::timeout(patience, ending).await.expect("it ends").unwrap().expect("it ends well");
}

#[tokio::test(flavor = "multi_thread")]
async fn functions_that_are_there_anyway() {
    let house = House::open("").await;
    let (handle, ending) = start(&house, options("one"));
    house.submit_array(&call("noop", ""), 3000, Vec::new());
    let echo = house.submit(&call("echo", "hello"), once());
    let sleep = house.submit(&call("sleep", "0.05"), once());
    let wrong = house.submit(&call("sleep", "long"), once());
    let unknown = house.submit(&call("paint", ""), once());
    house.settled(3004).await;
    assert_eq!(house.count(Status::Completed), 3002);
    assert_eq!(house.ending(echo).unwrap().result, "hello");
    assert_eq!(house.ending(sleep), None, "there is nothing to say of it");
    assert!(house.ending(wrong).unwrap().error.contains("wants a number of seconds, not `long`"));
    assert!(house.ending(unknown).unwrap().error.contains("no function `paint`"));
    handle.drain();
    end(ending).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn registered_functions() {
    let house = House::open("").await;
    let mut with = options("one");
    with.handlers.handle("upper", |call| async move {
        Ok::<_, std::str::Utf8Error>(std::str::from_utf8(&call.input)?.to_uppercase())
    });
    with.handlers.handle("panics", |_| async { if true { panic!("oh no") } else { Ok::<_, String>("") } });
    with.handlers.handle("large", |_| async { Ok::<_, String>(vec![7; 100_000]) });
    with.handlers.handle("never", |_| std::future::pending::<Result<Bytes, String>>());
    let (handle, ending) = start(&house, with);
    let upper = house.submit(&call("upper", "abc"), once());
    let panics = house.submit(&call("panics", ""), once());
    let large = house.submit(&call("large", ""), TaskSpec::default());
    house.settled(3).await;
    assert_eq!(house.ending(upper).unwrap().result, "ABC");
    assert_eq!(house.ending(panics).unwrap().error, "it panicked: oh no");
    assert!(house.ending(large).unwrap().error.contains("100000 bytes, and at most 65536"));
    let timed = TaskSpec { timeout: Some(Span::from_millis(50)), ..once() };
    let never = house.submit(&call("never", ""), timed.clone());
    let sleeps = house.submit(&call("sleep", "100"), timed);
    house.settled(5).await;
    // The coordinator has a clock of its own, and may have given it up before its worker says so.
    house.until("it is said why", |house| house.ending(never).is_some()).await;
    assert!(house.ending(never).unwrap().error.contains("ran longer than"));
    assert_eq!((house.status(never), house.status(sleeps)), (Some(Status::Failed), Some(Status::Failed)));
    handle.stop();
    end(ending).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_get_their_input_and_environment_and_say_how_they_ended() {
    let house = House::open("").await;
    let (handle, ending) = start(&house, WorkerOptions { access_file: Some("/a/b".into()), ..options("one") });
    let script = "echo $FILCH_TASK $FILCH_INDEX $FILCH_JOB $FILCH_ATTEMPT $FILCH_WORKER $FILCH_ACCESS \"$FILCH_INPUT\" {} {n} $MINE";
    let lines = Work {
        placeholders: true,
        input: InputSort::Line as i32,
        env: vec![Variable { name: "MINE".into(), value: "own".into() }],
        ..shell(script)
    };
    let job = house.submit_array(&lines, 2, vec![Bytes::from("a b"), Bytes::from("$HOME")]);
    house.settled(2).await;
    let said: Vec<Bytes> = house.endings_of(job).into_iter().map(|ending| ending.stdout).collect();
    assert!(said.contains(&Bytes::from("1 0 7 1 one /a/b a b a b 1 own\n")), "{said:?}");
    assert!(said.contains(&Bytes::from("2 1 7 1 one /a/b $HOME $HOME 2 own\n")), "{said:?}");

    let words = ["sh", "-c", "cat; echo \"$0\" >&2; exit 3", "{name}"].map(Bytes::from).to_vec();
    let argv = Work { program: Some(Program::Argv(Words { words })), stdin: "in".into(), ..shell("") };
    let fails = house.submit(&argv, once());
    let filled = Work { placeholders: true, ..argv };
    let unknown = house.submit(&filled, TaskSpec::default());
    let nothing = Words { words: vec![Bytes::from("/no/such/program")] };
    let nothing = house.submit(&Work { program: Some(Program::Argv(nothing)), ..Work::default() }, once());
    let killed = house.submit(&shell("kill -9 $$"), once());
    house.settled(6).await;
    let ending_of = |task| house.ending(task).unwrap();
    let failed = ending_of(fails);
    assert_eq!((failed.exit_code, &*failed.stdout, &*failed.stderr), (Some(3), &b"in"[..], &b"{name}\n"[..]));
    assert!(failed.wall_nanos > 0 && failed.peak_memory > 0);
    assert!(ending_of(unknown).error.starts_with("`{name}` stands for nothing here"));
    assert!(ending_of(nothing).error.contains("/no/such/program"));
    assert_eq!(ending_of(killed).signal, Some(9));
    handle.drain();
    end(ending).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_worker_finishes_what_runs_and_gives_back_the_rest() {
    let house = House::open("").await;
    let (first, first_ends) = start(&house, options("first"));
    let place = tempfile::tempdir().unwrap();
    let (gate, marks) = (place.path().join("gate"), place.path().join("marks"));
    let wait = format!("while [ ! -e {} ]; do sleep 0.01; done", gate.display());
    let script = format!("echo $FILCH_WORKER >> {}; {wait}", marks.display());
    house.submit_array(&Work { program: Some(Program::Shell(script.into())), ..Work::default() }, 6, Vec::new());
    let run = |name: &str| {
        let marks = std::fs::read_to_string(&marks).unwrap_or_default();
        marks.lines().filter(|line| *line == name).count()
    };
    house.until("two run", |_| run("first") == 2).await;
    first.drain();
    let (second, second_ends) = start(&house, options("second"));
    house.until("four run", |_| run("second") == 2).await;
    std::fs::write(&gate, "").unwrap();
    end(first_ends).await;
    house.settled(6).await;
    assert_eq!((house.count(Status::Completed), run("first"), run("second")), (6, 2, 4));
    second.stop();
    end(second_ends).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_worker_kills_what_it_runs_and_gives_it_back() {
    let house = House::open("").await;
    let (first, first_ends) = start(&house, options("first"));
    let place = tempfile::tempdir().unwrap();
    let marks = place.path().join("marks");
    let script = format!("echo $$ >> {}; sleep 1000 & wait", marks.display());
    house.submit(&Work { program: Some(Program::Shell(script.into())), ..Work::default() }, TaskSpec::default());
    house.until("it has begun", |_| std::fs::read_to_string(&marks).is_ok_and(|text| text.ends_with('\n'))).await;
    first.stop();
    end(first_ends).await;
    let process = std::fs::read_to_string(&marks).unwrap();
    assert!(!std::path::Path::new("/proc").join(process.trim()).exists(), "it is gone");
    // Given back, not lost: the next one begins it long before the lease is over.
    let (second, second_ends) = start(&house, options("second"));
    house.until("it has begun again", |_| std::fs::read_to_string(&marks).unwrap().lines().count() == 2).await;
    second.stop();
    end(second_ends).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_connection_is_made_again_and_nothing_is_run_twice() {
    let house = House::open("").await;
    let (handle, ending) = start(&house, options("one"));
    let place = tempfile::tempdir().unwrap();
    let (gate, marks) = (place.path().join("gate"), place.path().join("marks"));
    let wait = format!("while [ ! -e {} ]; do sleep 0.01; done", gate.display());
    let script = format!("echo begun >> {}; {wait}; echo done", marks.display());
    let task = house.submit(&Work { program: Some(Program::Shell(script.into())), ..Work::default() }, once());
    house.until("it runs", |_| marks.exists()).await;
    for _ in 0..3 {
        let before = house.connections();
        house.cut_all();
        house.until("it is back", |house| house.connections() > before && house.welcomed() > before).await;
    }
    house.cut_all();
    std::fs::write(&gate, "").unwrap();
    house.settled(1).await;
    assert_eq!(house.ending(task).unwrap().stdout, "done\n");
    assert_eq!(std::fs::read_to_string(&marks).unwrap(), "begun\n");
    handle.drain();
    end(ending).await;
}

/// Leads to whichever coordinator is there now.
struct Junction(Arc<Mutex<Access>>);

impl Doorway for Junction {
    fn enter(&self, opening: Opening, deliver: Deliver) -> Entered {
        let dial = Dial::Socket(self.0.lock().unwrap().clone());
        Box::pin(async move { dial.connect(opening.role.unwrap(), deliver).await.map_err(|error| error.to_string()) })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn for_another_coordinator_a_worker_begins_anew() {
    let first = House::open_in_life("", 5).await;
    let current = Arc::new(Mutex::new(first.access()));
    let worker = Worker::new(options("one"));
    let handle = worker.handle();
    let ending = tokio::spawn(worker.run(Dial::Near(Arc::new(Junction(Arc::clone(&current))))));
    let place = tempfile::tempdir().unwrap();
    let marks = place.path().join("marks");
    let script = format!("echo $$ >> {}; sleep 1000 & wait", marks.display());
    first.submit(&Work { program: Some(Program::Shell(script.into())), ..Work::default() }, once());
    first.until("it has begun", |_| std::fs::read_to_string(&marks).is_ok_and(|text| text.ends_with('\n'))).await;
    let process = std::path::Path::new("/proc").join(std::fs::read_to_string(&marks).unwrap().trim());
    // One that has lost everything is in an earlier life than the one before, and knows nothing of what runs.
    let second = House::open_in_life("", 1).await;
    *current.lock().unwrap() = second.access();
    first.cut_all();
    second.submit_array(&call("noop", ""), 100, Vec::new());
    second.settled(100).await;
    second.until("what ran is gone", |_| !process.exists()).await;
    handle.drain();
    end(ending).await;
}

/// All tasks go to the queue of one worker, and the other has only what it steals.
async fn steals(house: &House, all: [WorkerOptions; 2]) {
    let [first, second] = all;
    let name = first.name.clone();
    let first = start(house, first);
    house.until("the first is there", |house| house.worker(&name).is_some()).await;
    let seeded = house.worker(&name);
    let works: Vec<u64> =
        (0..60).map(|_| house.submit(&call("sleep", "0.02"), TaskSpec { seeded, ..TaskSpec::default() })).collect();
    // A thief that asks before they have come is told that there is nothing, and asks no more for a while.
    house.until("the first is at work", |house| house.count(Status::Completed) > 1).await;
    let second = start(house, second);
    house.settled(60).await;
    assert_eq!(house.count(Status::Completed), 60);
    assert!(works.iter().all(|task| house.status(*task) == Some(Status::Completed)));
    for (handle, ending) in [first, second] {
        handle.drain();
        end(ending).await;
    }
}

const PUSHING: &str = "scheduling: { bind: push }\nload_balancing: { strategy: pull }";

#[tokio::test(flavor = "multi_thread")]
async fn peers_steal_over_sockets_with_and_without_encryption() {
    let listen = Some("127.0.0.1:0".parse().unwrap());
    let listening = |name| WorkerOptions { listen, local: false, ..options(name) };
    let encrypted = |name| WorkerOptions { identity: Some(Identity::generate().unwrap()), ..listening(name) };
    for all in [[listening("first"), listening("second")], [encrypted("first"), encrypted("second")]] {
        let house = House::open(PUSHING).await;
        steals(&house, all).await;
        assert!(house.stolen() > 5, "{} were stolen: {}", house.stolen(), house.state());
        assert_eq!(house.relayed(), 0);
    }
}

/// The address that is told leads nowhere, with and without encryption, and is not needed.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn peers_of_one_machine_steal_by_a_socket_of_that_machine() {
    let nowhere = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let listen = Some("127.0.0.1:0".parse().unwrap());
    let listening = |name| WorkerOptions { listen, advertise: Some(nowhere.clone()), ..options(name) };
    let encrypted = |name| WorkerOptions { identity: Some(Identity::generate().unwrap()), ..listening(name) };
    for all in [[listening("first"), listening("second")], [encrypted("first"), encrypted("second")]] {
        let house = House::open(PUSHING).await;
        steals(&house, all).await;
        assert!(house.stolen() > 5, "{} were stolen: {}", house.stolen(), house.state());
        assert_eq!(house.relayed(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn neighbours_steal_without_sockets() {
    let neighbours = Neighbours::default();
    let near = |name| WorkerOptions { neighbours: Some(neighbours.clone()), ..options(name) };
    let house = House::open(PUSHING).await;
    steals(&house, [near("first"), near("second")]).await;
    assert!(house.stolen() > 5, "{} were stolen: {}", house.stolen(), house.state());
    assert_eq!(house.relayed(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn peers_that_cannot_reach_each_other_steal_through_the_coordinator() {
    // Somewhere nobody listens.
    let nowhere = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let cut_off = |name| WorkerOptions {
        listen: Some("127.0.0.1:0".parse().unwrap()),
        advertise: Some(nowhere.clone()),
        local: false,
        ..options(name)
    };
    let house = House::open(PUSHING).await;
    steals(&house, [cut_off("first"), cut_off("second")]).await;
    assert!(house.stolen() > 5, "{} were stolen: {}", house.stolen(), house.state());
    assert!(house.relayed() > 0);
}

/// Passes bytes on to an address until it is told not to; then it takes them and says nothing, as some networks do.
async fn passes_on(to: SocketAddr) -> (String, tokio::sync::watch::Sender<bool>) {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let (silence, silent) = tokio::sync::watch::channel(false);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let Ok(far) = TcpStream::connect(to).await else { continue };
            let (near, far) = (near.into_split(), far.into_split());
            for (mut from, mut to) in [(near.0, far.1), (far.0, near.1)] {
                let silent = silent.clone();
                tokio::spawn(async move {
                    let mut bytes = vec![0; 1 << 16];
                    while let Ok(count) = from.read(&mut bytes).await {
                        if count == 0 || (!*silent.borrow() && to.write_all(&bytes[..count]).await.is_err()) {
                            break;
                        }
                    }
                });
            }
        }
    });
    (address, silence)
}

#[tokio::test(flavor = "multi_thread")]
async fn peers_whose_connection_goes_silent_steal_through_the_coordinator() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = nobody.local_addr().unwrap();
    drop(nobody);
    let (address, silence) = passes_on(listen).await;
    let victim = WorkerOptions { listen: Some(listen), advertise: Some(address), local: false, ..options("first") };
    let thief = WorkerOptions { listen: Some("127.0.0.1:0".parse().unwrap()), ..options("second") };
    let house = House::open(PUSHING).await;
    let first = start(&house, victim);
    house.until("the first is there", |house| house.worker("first").is_some()).await;
    let pushed = || {
        let spec = TaskSpec { seeded: house.worker("first"), ..TaskSpec::default() };
        house.submit(&call("sleep", "0.05"), spec);
    };
    (0..100).for_each(|_| pushed());
    // A thief that asks before they have come is told that there is nothing, and asks no more for a while.
    house.until("the first is at work", |house| house.count(Status::Completed) > 1).await;
    let second = start(&house, thief);
    house.until("one has robbed the other", |house| house.stolen() > 5).await;
    assert_eq!(house.relayed(), 0);

    silence.send_replace(true);
    let before = house.stolen();
    (0..400).for_each(|_| pushed());
    house.until("it does so in another way", |house| house.relayed() > 0 && house.stolen() > before + 20).await;
    house.settled(500).await;
    assert_eq!(house.count(Status::Completed), 500);
    for (handle, ending) in [first, second] {
        handle.drain();
        end(ending).await;
    }
}

/// What a thief takes may be more than a connection carries at once.
#[tokio::test(flavor = "multi_thread")]
async fn an_offer_heavier_than_any_packet_arrives() {
    let nowhere = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let listening =
        |name| WorkerOptions { listen: Some("127.0.0.1:0".parse().unwrap()), slots: 1, ..WorkerOptions::new(name) };
    let cut_off = |name| WorkerOptions { advertise: Some(nowhere.clone()), local: false, ..listening(name) };
    for all in [[listening("first"), listening("second")], [cut_off("first"), cut_off("second")]] {
        let house = House::open(&format!("{PUSHING}\nstealing: {{ take: half }}")).await;
        let [first, second] = all;
        let first = start(&house, first);
        house.until("the first is there", |house| house.worker("first").is_some()).await;
        let pinned = TaskSpec { pin: house.worker("first"), ..TaskSpec::default() };
        let place = tempfile::tempdir().unwrap();
        let (gate, mark) = (place.path().join("gate"), place.path().join("mark"));
        let script =
            format!("echo x; echo > {}; while [ ! -e {} ]; do sleep 0.01; done", mark.display(), gate.display());
        let busy = house.submit(&Work { program: Some(Program::Shell(script.into())), ..Work::default() }, pinned);
        house.until("it runs", |_| mark.exists()).await;
        let heavy = Work { stdin: Bytes::from(vec![b'x'; 3_000_000]), ..call("noop", "") };
        for _ in 0..64 {
            house.submit(&heavy, TaskSpec { seeded: house.worker("first"), ..TaskSpec::default() });
        }
        // What is asked for after them is answered after they have come.
        house.look(busy);
        house.until("all have come", |house| house.shown(busy, false) == "x\n").await;
        // The first is busy with something else, so whatever ends was stolen: at once, 96 MB of it.
        let second = start(&house, second);
        house.until("half was stolen", |house| house.count(Status::Completed) >= 32).await;
        assert!(house.stolen() >= 32, "{}", house.state());
        std::fs::write(&gate, "").unwrap();
        house.settled(65).await;
        assert_eq!(house.count(Status::Completed), 65);
        for (handle, ending) in [first, second] {
            handle.drain();
            end(ending).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn output_is_shown_to_those_who_look_on() {
    let house = House::open("").await;
    let (handle, ending) = start(&house, options("one"));
    let place = tempfile::tempdir().unwrap();
    let gate = place.path().join("gate");
    let wait = format!("while [ ! -e {} ]; do sleep 0.01; done", gate.display());
    let script = format!("echo early; echo aside >&2; {wait}; echo late");
    let task = house.submit(&Work { program: Some(Program::Shell(script.into())), ..Work::default() }, once());
    house.until("it runs", |house| house.began() == 1).await;
    house.look(task);
    house.until("early is shown", |house| house.shown(task, false) == "early\n").await;
    house.until("aside is shown", |house| house.shown(task, true) == "aside\n").await;
    std::fs::write(&gate, "").unwrap();
    house.until("all is shown", |house| house.shown(task, false) == "early\nlate\n").await;
    house.settled(1).await;
    handle.drain();
    end(ending).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_refused_says_why() {
    let house = House::open("").await;
    let access = Access { token: Bytes::from_static(b"a guess"), ..house.access() };
    let error = Worker::new(options("one")).run(Dial::Socket(access)).await.unwrap_err().to_string();
    assert!(error.contains("refuses this worker: the token is wrong"), "{error}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = Some(taken.local_addr().unwrap());
    let worker = Worker::new(WorkerOptions { listen, ..options("one") });
    let error = worker.run(Dial::Socket(house.access())).await.unwrap_err().to_string();
    assert!(error.contains("cannot listen for peers on 127.0.0.1"), "{error}");
}

#[tokio::test]
async fn a_worker_without_a_coordinator_waits_and_can_be_stopped() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addresses = vec![listener.local_addr().unwrap().to_string()];
    drop(listener);
    let access = Access { addresses, pin: None, token: Bytes::from_static(b"x") };
    let worker = Worker::new(options("one"));
    let handle = worker.handle();
    let ending = tokio::spawn(worker.run(Dial::Socket(access)));
    tokio::task::yield_now().await;
    handle.stop();
    end(ending).await;
}
