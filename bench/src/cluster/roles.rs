//! The processes of the benchmark.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use filch_node::access::Access;
use filch_node::coordinator::{Coordinator, Options};
use filch_node::dial::Dial;
use filch_node::door::Door;
use filch_node::secure::{Identity, new_token};
use filch_node::worker::{Worker, WorkerOptions};

/// As many threads as `filch serve` has on two processors.
fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?)
}

/// As `filch worker` has it.
fn runtime_of_worker() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

/// Waits on a thread of its own until standard input ends.
async fn input_ended() {
    let _ = tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink())).await;
}

#[allow(clippy::print_stdout)]
fn ready() {
    println!("ready");
    let _ = std::io::stdout().flush();
}

pub(super) fn coordinator(dir: &Path, tls: bool) -> Result<()> {
    runtime()?.block_on(async {
        let mut coordinator = Coordinator::start(Options::new(dir.join("store"))).await?;
        let token = new_token()?;
        let identity = if tls { Some(Identity::generate()?) } else { None };
        let pin = identity.as_ref().map(Identity::pin);
        let door = Arc::new(Door::new(identity, token.clone()));
        let address = coordinator.listen("127.0.0.1:0".parse()?, door).await?;
        Access { addresses: vec![address.to_string()], pin, token }.write(&dir.join("access.json"))?;
        ready();
        input_ended().await;
        coordinator.stop().await?;
        Ok(())
    })
}

pub(super) fn worker(access: &Path, name: &str, count: u32, slots: u32, over_network: bool) -> Result<()> {
    runtime_of_worker()?.block_on(async {
        let access = Access::read(access)?;
        let mut tasks = Vec::new();
        for number in 0..count {
            let mut options = WorkerOptions::new(format!("{name}-{number}"));
            options.slots = slots;
            options.listen = Some("127.0.0.1:0".parse()?);
            options.local = !over_network;
            let dial = Dial::Socket(access.clone());
            tasks.push(tokio::spawn(Worker::new(options).run(dial)));
        }
        ready();
        input_ended().await;
        Ok(())
    })
}

pub(super) fn empty() -> Result<()> {
    runtime_of_worker()?.block_on(async {
        ready();
        input_ended().await;
        Ok(())
    })
}

#[allow(clippy::print_stdout)]
pub(super) fn pong() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?);
    std::io::stdout().flush()?;
    let (mut socket, _) = listener.accept()?;
    socket.set_nodelay(true)?;
    let mut byte = [0; 64];
    while let Ok(count) = socket.read(&mut byte)
        && count > 0
    {
        socket.write_all(&byte[..count])?;
    }
    Ok(())
}

/// A process of the benchmark that ends with this.
pub(super) struct Process {
    child: Child,
    pub(super) first_line: String,
}

impl Process {
    pub(super) fn start(arguments: &[&str]) -> Result<Process> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut first_line = String::new();
        let out = child.stdout.take().context("no standard output")?;
        BufReader::new(out).read_line(&mut first_line)?;
        if first_line.is_empty() {
            bail!("a process of the benchmark did not begin: {arguments:?}");
        }
        Ok(Process { child, first_line: first_line.trim().to_owned() })
    }

    /// Processor time of all its threads so far.
    pub(super) fn cpu(&self) -> Duration {
        let mut nanos = 0;
        let Ok(threads) = std::fs::read_dir(format!("/proc/{}/task", self.child.id())) else { return Duration::ZERO };
        for thread in threads.flatten() {
            let text = std::fs::read_to_string(thread.path().join("schedstat")).unwrap_or_default();
            nanos += text.split(' ').next().and_then(|first| first.parse::<u64>().ok()).unwrap_or(0);
        }
        Duration::from_nanos(nanos)
    }

    /// The most memory it had.
    pub(super) fn peak_memory(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kilobytes = line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok());
        kilobytes.unwrap_or(0) * 1024
    }

    /// Memory that it shares with nobody, now.
    pub(super) fn private_memory(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", self.child.id())).unwrap_or_default();
        let lines = text.lines().filter(|line| line.starts_with("Private_"));
        let kilobytes = lines.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
        kilobytes.sum::<u64>() * 1024
    }

    /// Ends it the hard way.
    pub(super) fn kill(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// A coordinator and its directory.
pub(super) struct Cluster {
    pub(super) coordinator: Option<Process>,
    pub(super) workers: Vec<Process>,
    pub(super) dir: PathBuf,
    /// Whether its workers reach each other over the network, as they must on different machines.
    pub(super) over_network: bool,
}

impl Cluster {
    pub(super) fn start(tls: bool) -> Result<Cluster> {
        let name = format!("filch-bench-{}-{:x}", std::process::id(), next_number());
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&dir)?;
        let mut cluster = Cluster { coordinator: None, workers: Vec::new(), dir, over_network: false };
        cluster.begin(tls)?;
        Ok(cluster)
    }

    pub(super) fn begin(&mut self, tls: bool) -> Result<()> {
        let dir = self.dir.to_string_lossy().into_owned();
        let mut arguments = vec!["coordinator", "--dir", &dir];
        if tls {
            arguments.push("--tls");
        }
        self.coordinator = Some(Process::start(&arguments)?);
        Ok(())
    }

    pub(super) fn add_workers(&mut self, count: u32, slots: u32) -> Result<()> {
        let access = self.access_path().to_string_lossy().into_owned();
        let name = format!("w{}", self.workers.len());
        let (count, slots) = (count.to_string(), slots.to_string());
        let mut arguments = vec!["worker", "--access", &access, "--name", &name, "--count", &count, "--slots", &slots];
        if self.over_network {
            arguments.push("--over-network");
        }
        self.workers.push(Process::start(&arguments)?);
        Ok(())
    }

    fn access_path(&self) -> PathBuf {
        self.dir.join("access.json")
    }

    pub(super) fn dial(&self) -> Result<Dial> {
        Ok(Dial::Socket(Access::read(&self.access_path())?))
    }

    /// Processor time of coordinator and workers.
    pub(super) fn cpu(&self) -> (Duration, Duration) {
        let coordinator = self.coordinator.as_ref().map_or(Duration::ZERO, Process::cpu);
        (coordinator, self.workers.iter().map(Process::cpu).sum())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.workers.clear();
        self.coordinator = None;
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// A number that no other directory of this process has.
fn next_number() -> u64 {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}
