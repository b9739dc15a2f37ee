//! A coordinator and workers in this process, for one job: what `filch run` runs on.

use std::time::Duration;

use anyhow::Context as _;
use filch_core::Config;
use filch_node::client::Client;
use filch_node::coordinator::{Coordinator, Options};
use filch_node::detect::Machine;
use filch_node::dial::Dial;
use filch_node::exec::Guard;
use filch_node::store::Lasts;
use filch_node::view::{Query, WorkerView};
use filch_node::worker::{Neighbours, Worker, WorkerFailure, WorkerHandle, WorkerOptions};
use tokio::task::JoinSet;

use crate::job::Resource;
use crate::{guard, machine};

/// How long workers have to stop what they run, once they are told to.
const FAREWELL: Duration = Duration::from_secs(20);

/// How large it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) workers: u32,
    /// Of each.
    pub(crate) slots: u32,
}

/// What its workers have.
pub(crate) struct Offer<'a> {
    /// They share it.
    pub(crate) machine: &'a Machine,
    /// Each has these, whatever is found.
    pub(crate) resources: &'a [Resource],
    pub(crate) capabilities: &'a [String],
}

impl Size {
    /// Of what is asked for; what is not is chosen so that each processor has a slot.
    pub(crate) fn of(workers: Option<u32>, slots: Option<u32>, machine: &Machine) -> Size {
        let workers = workers.unwrap_or(1);
        let share = u32::try_from(machine.cpu.usable).unwrap_or(1) / workers.max(1);
        Size { workers, slots: slots.unwrap_or(share).max(1) }
    }

    pub(crate) fn all_slots(self) -> u32 {
        self.workers.saturating_mul(self.slots)
    }
}

/// What a worker is called, counted from 1.
pub(crate) fn name(number: u32) -> String {
    format!("w{number}")
}

/// A coordinator and its workers.
pub(crate) struct House {
    coordinator: Coordinator,
    workers: JoinSet<Result<(), WorkerFailure>>,
    handles: Vec<WorkerHandle>,
    pub(crate) client: Client,
    /// Where the store is; gone with this.
    _directory: tempfile::TempDir,
    /// The last to go.
    _guard: Option<Guard>,
}

impl House {
    /// Opens one; all workers are there then.
    pub(crate) async fn open(config: Config, size: Size, offer: &Offer<'_>) -> anyhow::Result<House> {
        let directory =
            tempfile::Builder::new().prefix("filch-run-").tempdir().context("cannot make a temporary directory")?;
        let guard = guard::start(Some(directory.path()));
        let options = Options { config, lasts: Lasts::WhileOpen, ..Options::new(directory.path()) };
        let coordinator = Coordinator::start(options).await?;
        let dial = || Dial::Near(coordinator.doorway());
        let neighbours = Neighbours::default();
        let (mut workers, mut handles) = (JoinSet::new(), Vec::new());
        let capabilities = machine::capabilities(offer.machine, offer.capabilities);
        for number in 1..=size.workers {
            let worker = Worker::new(WorkerOptions {
                slots: size.slots,
                resources: machine::resources(share(offer.machine, size, number), offer.resources),
                capabilities: capabilities.clone(),
                gpus: machine::accelerators(offer.machine, size.workers, number).to_vec(),
                neighbours: Some(neighbours.clone()),
                life: guard.as_ref().map(|guard| guard.life().to_owned()),
                ..WorkerOptions::new(name(number))
            });
            handles.push(worker.handle());
            workers.spawn(worker.run(dial()));
        }
        let client = Client::connect(dial(), "filch run").await?;
        let mut house = House { coordinator, workers, handles, client, _directory: directory, _guard: guard };
        house.wait_for_workers(size.workers).await?;
        Ok(house)
    }

    async fn wait_for_workers(&mut self, count: u32) -> anyhow::Result<()> {
        let mut pause = Duration::from_micros(200);
        loop {
            let there: Vec<WorkerView> = self.client.query(&Query::Workers).await?;
            if there.iter().filter(|worker| worker.connected).count() >= count as usize {
                return Ok(());
            }
            if let Some(ended) = self.workers.try_join_next() {
                ended??;
                anyhow::bail!("a worker ended before it began");
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(10));
        }
    }

    /// Workers finish what they run and leave.
    pub(crate) fn drain(&self) {
        self.handles.iter().for_each(WorkerHandle::drain);
    }

    /// Workers kill what they run and leave.
    pub(crate) fn stop(&self) {
        self.handles.iter().for_each(WorkerHandle::stop);
    }

    /// Waits until a worker has left; false if there is none.
    pub(crate) async fn left(&mut self) -> anyhow::Result<bool> {
        match self.workers.join_next().await {
            None => Ok(false),
            Some(ended) => {
                ended??;
                Ok(true)
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.workers.is_empty()
    }

    /// Ends everything; nothing that was started here runs on.
    pub(crate) async fn close(mut self) {
        self.stop();
        let all = async { while self.workers.join_next().await.is_some() {} };
        if tokio::time::timeout(FAREWELL, all).await.is_err() {
            // Dropping them kills what they run.
            self.workers.abort_all();
        }
        // The job is over and was told; that the store of it fails now harms nobody.
        let _ = self.coordinator.stop().await;
    }
}

/// What one of the workers has: its share of the machine.
fn share(machine: &Machine, size: Size, number: u32) -> Vec<(String, f64)> {
    let workers = f64::from(size.workers);
    let cpus = (machine.cpu.usable as f64 / workers).floor().max(f64::from(size.slots));
    let memory = (machine.memory.usable as f64 / workers).floor();
    let gpus = machine::accelerators(machine, size.workers, number).len();
    vec![("cpus".to_owned(), cpus), ("memory".to_owned(), memory), ("gpus".to_owned(), gpus as f64)]
}
