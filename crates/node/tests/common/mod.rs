//! A cluster in a temporary directory.
#![allow(dead_code, clippy::needless_pass_by_value, reason = "not every test uses all of it, and tests read better so")]

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use filch_core::wire::talk::{Array, Logs, Name, Part, Parts, Program, Said, Submit, Work};
use filch_core::{Config, Span};
use filch_node::access::Access;
use filch_node::client::Client;
use filch_node::coordinator::{Coordinator, Options};
use filch_node::dial::Dial;
use filch_node::door::Door;
use filch_node::worker::{Worker, WorkerHandle, WorkerOptions};
use prost::Message as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

pub(crate) struct Cluster {
    dir: tempfile::TempDir,
    coordinator: Option<Coordinator>,
    pub(crate) dial: Dial,
    near: bool,
    token: Bytes,
    workers: Vec<(WorkerHandle, tokio::task::JoinHandle<()>)>,
}

fn config() -> Config {
    let mut config = Config::default();
    // Tests that kill workers need not wait for long.
    config.limits.lease = Span::from_secs(2);
    config
}

impl Cluster {
    pub(crate) async fn start(near: bool, workers: usize) -> Cluster {
        let dir = tempfile::tempdir().unwrap();
        let token = Bytes::from_static(b"secret of the test");
        let (coordinator, dial) = begin(dir.path(), near, &token, None).await;
        let mut cluster = Cluster { dir, coordinator: Some(coordinator), dial, near, token, workers: Vec::new() };
        for _ in 0..workers {
            cluster.add_worker().await;
        }
        cluster
    }

    pub(crate) async fn add_worker(&mut self) {
        let mut options = WorkerOptions::new(format!("w{}", self.workers.len()));
        options.slots = 2;
        options.listen = Some("127.0.0.1:0".parse().unwrap());
        let worker = Worker::new(options);
        let handle = worker.handle();
        let dial = self.dial.clone();
        let task = tokio::spawn(async move { worker.run(dial).await.unwrap() });
        self.workers.push((handle, task));
    }

    /// As if its machine were gone.
    pub(crate) fn kill_worker(&mut self, number: usize) {
        self.workers[number].1.abort();
    }

    pub(crate) async fn client(&self) -> Client {
        Client::connect(self.dial.clone(), "test").await.unwrap()
    }

    pub(crate) fn observer(&self) -> filch_node::coordinator::Observer {
        self.coordinator.as_ref().unwrap().observer()
    }

    /// The coordinator ends and another begins at the same address.
    pub(crate) async fn restart(&mut self) {
        self.coordinator.take().unwrap().stop().await.unwrap();
        let address = match &self.dial {
            Dial::Socket(access) => Some(access.addresses[0].clone()),
            Dial::Near(_) => None,
        };
        let (coordinator, dial) = begin(self.dir.path(), self.near, &self.token, address).await;
        self.coordinator = Some(coordinator);
        self.dial = dial;
    }

    pub(crate) async fn stop(self) {
        for (handle, _) in &self.workers {
            handle.stop();
        }
        for (_, task) in self.workers {
            let _ = tokio::time::timeout(Duration::from_secs(10), task).await.expect("a worker does not stop");
        }
        self.coordinator.unwrap().stop().await.unwrap();
    }
}

async fn begin(dir: &std::path::Path, near: bool, token: &Bytes, address: Option<String>) -> (Coordinator, Dial) {
    let mut coordinator = Coordinator::start(Options { config: config(), ..Options::new(dir) }).await.unwrap();
    if near {
        let dial = Dial::Near(coordinator.doorway());
        return (coordinator, dial);
    }
    let door = Arc::new(Door::new(None, token.clone()));
    let wanted = address.unwrap_or_else(|| "127.0.0.1:0".to_owned()).parse().unwrap();
    let bound = coordinator.listen(wanted, door).await.unwrap();
    let access = Access { addresses: vec![bound.to_string()], pin: None, token: token.clone() };
    (coordinator, Dial::Socket(access))
}

pub(crate) fn call_of(function: &str) -> Work {
    Work { program: Some(Program::Call(function.to_owned())), ..Work::default() }
}

pub(crate) fn shell(script: &str) -> Work {
    Work { program: Some(Program::Shell(Bytes::from(script.to_owned()))), first: 0, step: 1, ..Work::default() }
}

fn part(work: &Work) -> Part {
    Part { work: work.encode_to_vec().into(), ..Part::default() }
}

pub(crate) fn array_of(work: Work, count: u32) -> Submit {
    let array = Array { part: Some(part(&work)), count, step: 1, ..Array::default() };
    Submit { parts: Some(Parts::Array(array)), ..Submit::default() }
}

/// The first element gets this number.
pub(crate) fn number_from(submit: &mut Submit, first: i64) {
    let Some(Parts::Array(array)) = &mut submit.parts else { panic!("no array") };
    array.first = first;
    let part = array.part.as_mut().unwrap();
    let mut work = Work::decode(part.work.clone()).unwrap();
    work.first = first;
    part.work = work.encode_to_vec().into();
}

pub(crate) fn single(work: Work, input: &str) -> Submit {
    let work = Work { stdin: Bytes::from(input.to_owned()), ..work };
    Submit { parts: Some(Parts::Single(part(&work))), ..Submit::default() }
}

/// What a task wrote.
pub(crate) async fn logs(client: &Client, job: u64, index: u32) -> (String, String) {
    let name = Name { job, index: Some(index), task: None };
    let mut follow = client.logs(Logs { name: Some(name), follow: false, ..Logs::default() }).await.unwrap();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    while let Some(said) = follow.next().await {
        match said.unwrap() {
            Said::Output(chunk) if chunk.stderr => err.extend_from_slice(&chunk.bytes),
            Said::Output(chunk) => out.extend_from_slice(&chunk.bytes),
            _ => break,
        }
    }
    (String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
}

/// What a server answers, head and all.
pub(crate) async fn http_get(address: std::net::SocketAddr, path: &str) -> String {
    let mut socket = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.unwrap();
    answer
}

/// Waits until something holds.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    while !holds().await {
        assert!(tokio::time::Instant::now() < deadline, "{what}: not within 30 s");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
