//! Clients and workers of the library with a real coordinator, over sockets.
#![cfg(feature = "worker")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../examples/cluster.rs"]
#[allow(dead_code, reason = "its main function is for those who run it")]
mod example;

use std::path::PathBuf;
use std::sync::Arc;

use filch::Worker;
use filch::client::{Client, Event, Job, blocking};
use filch_node::access::Access;
use filch_node::coordinator::{Coordinator, Options};
use filch_node::door::Door;
use filch_node::secure::{Identity, new_token};

struct Served {
    coordinator: Coordinator,
    dir: tempfile::TempDir,
}

impl Served {
    async fn start() -> Served {
        let dir = tempfile::tempdir().unwrap();
        let mut coordinator = Coordinator::start(Options::new(dir.path().join("store"))).await.unwrap();
        let (identity, token) = (Identity::generate().unwrap(), new_token().unwrap());
        let pin = Some(identity.pin());
        let door = Arc::new(Door::new(Some(identity), token.clone()));
        let address = coordinator.listen("127.0.0.1:0".parse().unwrap(), door).await.unwrap();
        let access = Access { addresses: vec![address.to_string()], pin, token };
        access.write(&dir.path().join("access.json")).unwrap();
        Served { coordinator, dir }
    }

    fn access(&self) -> PathBuf {
        self.dir.path().join("access.json")
    }
}

fn shouting(name: &str) -> Worker {
    Worker::new(name).slots(2).handle("shout", |call| async move {
        let text = String::from_utf8(call.input.to_vec())?;
        Ok::<_, std::string::FromUtf8Error>(text.to_uppercase())
    })
}

#[tokio::test]
async fn a_function_of_ones_own_is_called() {
    let served = Served::start().await;
    let running = shouting("w").run_in(served.access()).unwrap();
    let client = Client::connect_to(served.access()).await.unwrap();
    assert_eq!(client.call("shout", "hello").await.unwrap(), "HELLO");
    let bad = client.call("shout", vec![0xff, 0xfe]).await.unwrap_err();
    assert!(bad.to_string().contains("utf-8"), "{bad}");
    assert_eq!(client.workers().await.unwrap().len(), 1);
    running.drain().await.unwrap();
    served.coordinator.stop().await.unwrap();
}

#[tokio::test]
async fn the_example_runs() {
    let served = Served::start().await;
    example::take_part(served.access()).await.unwrap();
    served.coordinator.stop().await.unwrap();
}

#[tokio::test]
async fn a_job_says_how_each_of_its_tasks_ended() {
    let served = Served::start().await;
    let running = Worker::new("w").slots(2).run_in(served.access()).unwrap();
    let client = Client::connect_to(served.access()).await.unwrap();
    let script = "echo got $FILCH_INPUT; test $FILCH_INPUT != bad";
    let mut job = client.submit(Job::shell(script).each(["good", "bad", "fine"]).name("three")).await.unwrap();
    let mut ends = Vec::new();
    let mut done = None;
    while let Some(event) = job.events().next().await {
        match event.unwrap() {
            Event::Ended(end) => ends.push((end.index, end.status, end.exit_code, end.stdout)),
            Event::Done(summary) => done = Some((summary.completed, summary.failed)),
            _ => {}
        }
    }
    ends.sort_by_key(|end| end.0);
    assert_eq!(done, Some((2, 1)));
    let said: Vec<&[u8]> = ends.iter().map(|end| &*end.3).collect();
    assert_eq!(said, [&b"got good\n"[..], b"got bad\n", b"got fine\n"]);
    assert_eq!((ends[1].1.as_str(), ends[1].2), ("failed", Some(1)));
    assert_eq!(client.job(job.number()).await.unwrap().name, "three");
    running.stop().await.unwrap();
    served.coordinator.stop().await.unwrap();
}

#[test]
fn without_async_it_is_the_same() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let served = runtime.block_on(Served::start());
    let guard = runtime.enter();
    let running = shouting("w").run_in(served.access()).unwrap();
    drop(guard);
    let client = blocking::Client::connect_to(served.access()).unwrap();
    assert_eq!(client.call("shout", "hello").unwrap(), "HELLO");
    let summary = client.submit(Job::command(["true"]).array(1, 20)).unwrap().wait().unwrap();
    assert_eq!((summary.completed, summary.total), (20, 20));
    let job = client.submit(Job::call("echo", "still there")).unwrap();
    drop(client);
    let events: Vec<Event> = job.map(Result::unwrap).collect();
    assert!(matches!(events.last(), Some(Event::Done(_))), "a job is heard of after its client is gone: {events:?}");
    runtime.block_on(running.drain()).unwrap();
    runtime.block_on(served.coordinator.stop()).unwrap();
}

#[test]
fn without_an_access_file_it_says_what_to_do() {
    let error = blocking::Client::connect_to("nowhere/access.json").map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("filch serve"), "{error}");
}
