//! A worker: connects to its coordinator, runs what it is handed, steals from its peers, and comes back after every break.
//!
//! All decisions are those of the [`WorkerMachine`](filch_core::worker::WorkerMachine); here they are carried out. One task
//! owns the machine and takes everything that has come in one turn, and each connection gets one parcel in a turn. A worker
//! with nothing to do wakes up only for the timers of its machine.

mod bodies;
mod call;
mod devices;
mod driver;
mod inbox;
mod load;
mod peers;
mod process;
#[cfg(test)]
mod tests;

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use filch_core::WorkerId;
use filch_core::wire::VERSION;
use filch_core::wire::talk::{Answer, NamedAmount, Role, WorkerCard};
use tokio::net::{TcpListener, TcpStream};

pub use call::{Call, Handlers};
pub use peers::Neighbours;

use crate::detect::Gpu;
use crate::dial::{Backoff, Dial, DialError};
use crate::door::{Door, Reader, Writer};
use crate::link::{Arrival, Outgoing, Parcel, attach};
use crate::local;
use crate::secure::{Identity, new_token};
use crate::seldom::Seldom;
use driver::Driver;
use inbox::{Inbox, Listener};

/// The most that a function may return, unless something else is said.
pub const LARGEST_RESULT: usize = 64 << 10;

/// What a worker is.
#[derive(Clone, Debug)]
pub struct WorkerOptions {
    /// Its name; no other worker of the cluster has it.
    pub name: String,
    /// Tasks it runs at once.
    pub slots: u32,
    /// What it can do.
    pub capabilities: Vec<String>,
    /// How much it has.
    pub resources: Vec<(String, f64)>,
    /// Where it listens for its peers; without, they reach it through the coordinator.
    pub listen: Option<SocketAddr>,
    /// Where peers reach it, if that is another address, as `host:port`.
    pub advertise: Option<String>,
    /// Whether peers of the same machine reach it by a socket of that machine, if it listens at all.
    pub local: bool,
    /// Its certificate for peers; if none is given and the coordinator speaks TLS, it makes one.
    pub identity: Option<Identity>,
    /// Workers in the same process, which it reaches directly.
    pub neighbours: Option<Neighbours>,
    /// Its accelerators, in the order in which tasks are given them. Those of its resource `gpus` that are not listed go by their
    /// position.
    pub gpus: Vec<Gpu>,
    /// Its functions.
    pub handlers: Handlers,
    /// Pauses between tries to connect.
    pub backoff: Backoff,
    /// Where the access file is, for the tasks it runs.
    pub access_file: Option<PathBuf>,
    /// By what the guard of this process knows its commands ([`Guard`](crate::exec::Guard)).
    pub life: Option<String>,
    /// The most that a function may return.
    pub largest_result: usize,
}

impl WorkerOptions {
    /// A worker with one slot and nothing special.
    #[must_use]
    pub fn new(name: impl Into<String>) -> WorkerOptions {
        WorkerOptions {
            name: name.into(),
            slots: 1,
            capabilities: Vec::new(),
            resources: Vec::new(),
            listen: None,
            advertise: None,
            local: true,
            identity: None,
            neighbours: None,
            gpus: Vec::new(),
            handlers: Handlers::default(),
            backoff: Backoff::default(),
            access_file: None,
            life: None,
            largest_result: LARGEST_RESULT,
        }
    }
}

/// Why a worker gave up.
#[derive(Debug, thiserror::Error)]
pub enum WorkerFailure {
    /// The coordinator will not have it.
    #[error("the coordinator refuses this worker: {0}")]
    Refused(String),
    /// The coordinator's configuration makes no sense to it.
    #[error("the coordinator's configuration is not understood: {0}")]
    Config(String),
    /// It cannot listen for its peers.
    #[error("cannot listen for peers on {address}: {source}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The system does not give what it needs.
    #[error("{0}")]
    System(#[from] io::Error),
}

/// What can happen to a worker.
enum Event {
    /// The coordinator was connected to, or not.
    Connected { generation: u64, outcome: Result<(Answer, Outgoing), DialError> },
    /// Something came from the coordinator.
    Coordinator { generation: u64, arrival: Arrival },
    /// A peer was connected to, or not.
    Knocked { peer: WorkerId, number: u64, outcome: Result<Outgoing, DialError> },
    /// A peer has connected.
    Entered { peer: WorkerId, number: u64, out: Outgoing },
    /// Something came from a peer.
    Peer { peer: WorkerId, number: u64, arrival: Arrival },
    /// Something came from a worker in this process.
    Near { from: WorkerId, parcel: Box<Parcel> },
    /// Something that ran has ended.
    Ended(Box<driver::Finished>),
    /// A running program wrote something that somebody wants to see.
    Wrote(Box<process::Shown>),
    /// It is to finish what runs and leave.
    Drain,
    /// It is to leave.
    Stop,
}

/// A worker that does not run yet.
pub struct Worker {
    options: WorkerOptions,
    listener: Listener,
}

/// Ends a worker, soon or now. Can be copied and used from anywhere.
#[derive(Clone)]
pub struct WorkerHandle(Inbox);

impl WorkerHandle {
    /// The worker finishes what it runs, gives back the rest, and leaves.
    pub fn drain(&self) {
        // One that has ended has left already.
        let _ = self.0.send(Event::Drain);
    }

    /// The worker kills what it runs, gives everything back, and leaves.
    pub fn stop(&self) {
        let _ = self.0.send(Event::Stop);
    }
}

impl Worker {
    /// A worker.
    #[must_use]
    pub fn new(options: WorkerOptions) -> Worker {
        Worker { options, listener: Listener::new() }
    }

    /// Something to end it with.
    #[must_use]
    pub fn handle(&self) -> WorkerHandle {
        WorkerHandle(self.listener.0.clone())
    }

    /// Runs until it is drained or stopped, or the coordinator will not have it. Dropping this kills what it runs.
    ///
    /// # Errors
    /// If the coordinator refuses it, or it cannot listen for its peers. A coordinator that cannot be reached is tried again
    /// for ever.
    pub async fn run(self, dial: Dial) -> Result<(), WorkerFailure> {
        let Worker { options, listener } = self;
        let (listening, card) = prepare(&options, &dial, &listener.0).await?;
        let Some(contact) = driver::first_contact(&dial, &card, &options, &listener).await? else {
            return Ok(());
        };
        let (alarms, bells) = driver::alarms()?;
        let driver = Driver::new(options, card, dial, contact, listener.0.clone(), alarms)?;
        let outcome = driver.run(&listener, &bells).await;
        drop(listening);
        outcome
    }
}

/// Stops listening when it is dropped.
struct Listening(Option<tokio::task::JoinHandle<()>>);

impl Drop for Listening {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

/// Listens for peers, if it should, and says who the worker is.
async fn prepare(
    options: &WorkerOptions,
    dial: &Dial,
    inbox: &Inbox,
) -> Result<(Listening, WorkerCard), WorkerFailure> {
    let resources = options.resources.iter().map(|(name, amount)| NamedAmount { name: name.clone(), amount: *amount });
    let mut card = WorkerCard {
        name: options.name.clone(),
        capabilities: options.capabilities.clone(),
        resources: resources.collect(),
        process: std::process::id(),
        slots: options.slots.max(1),
        ..WorkerCard::default()
    };
    let Some(address) = options.listen else { return Ok((Listening(None), card)) };
    let failed = |source| WorkerFailure::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    let encrypts = matches!(dial, Dial::Socket(access) if access.pin.is_some());
    let identity = match (&options.identity, encrypts) {
        (Some(identity), _) => Some(identity.clone()),
        (None, true) => Some(Identity::generate()?),
        (None, false) => None,
    };
    card.peer_token = new_token()?;
    card.pin = identity.as_ref().map_or_else(Bytes::new, |identity| Bytes::copy_from_slice(&identity.pin()));
    card.address = options.advertise.clone().unwrap_or_else(|| reachable(bound, dial).to_string());
    let door = Door::for_peers(identity, card.peer_token.clone());
    let local = options.local.then(local_listener).flatten();
    card.local = local.as_ref().map_or_else(String::new, |local| local.name().to_owned());
    let task = tokio::spawn(listen(listener, local, Arc::new(door), inbox.clone()));
    Ok((Listening(Some(task)), card))
}

/// An address that others can use: one that stands for all of this machine's becomes the one the coordinator sees.
fn reachable(bound: SocketAddr, dial: &Dial) -> SocketAddr {
    if !bound.ip().is_unspecified() {
        return bound;
    }
    let towards = || -> Option<IpAddr> {
        let Dial::Socket(access) = dial else { return None };
        let socket = UdpSocket::bind((if bound.is_ipv4() { "0.0.0.0" } else { "::" }, 0)).ok()?;
        // Nothing is sent; the system only says which of its addresses it would use.
        socket.connect(access.addresses.first()?.as_str()).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    SocketAddr::new(towards().unwrap_or(IpAddr::from([127, 0, 0, 1])), bound.port())
}

/// What peers of the same machine reach it by; without, they go over the network like the others.
fn local_listener() -> Option<local::Listener> {
    match local::Listener::open() {
        Ok(listener) => Some(listener),
        Err(error) if error.kind() == io::ErrorKind::Unsupported => None,
        Err(error) => {
            tracing::warn!(%error, "no socket for workers of this machine: they use the network");
            None
        }
    }
}

/// A peer that stands before the door.
enum Caller {
    Far(TcpStream, SocketAddr),
    Local((Reader, Writer)),
}

async fn next_caller(listener: &TcpListener, local: Option<&local::Listener>) -> io::Result<Caller> {
    let from_afar = async { listener.accept().await.map(|(socket, from)| Caller::Far(socket, from)) };
    let Some(local) = local else { return from_afar.await };
    tokio::select! {
        caller = from_afar => caller,
        halves = local.accept() => halves.map(Caller::Local),
    }
}

async fn listen(listener: TcpListener, local: Option<local::Listener>, door: Arc<Door>, inbox: Inbox) {
    let mut numbers = 0;
    let refusals = Arc::new(Seldom::default());
    while !inbox.is_closed() {
        let caller = match next_caller(&listener, local.as_ref()).await {
            Ok(caller) => caller,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                if let Some(unsaid) = refusals.says() {
                    tracing::warn!(%error, unsaid, "turned away");
                }
                continue;
            }
            // Out of descriptors, most likely: others give theirs back some time.
            Err(_) => {
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                continue;
            }
        };
        // The numbers of connections that are made here are odd at the top, so they never meet those of others.
        numbers += 1;
        let number = numbers | 1 << 63;
        let (door, inbox, refusals) = (Arc::clone(&door), inbox.clone(), Arc::clone(&refusals));
        tokio::spawn(async move {
            let from = match &caller {
                Caller::Far(_, from) => from.to_string(),
                Caller::Local(_) => "this machine".to_owned(),
            };
            if let Err(why) = admit(caller, number, &door, &inbox).await
                && let Some(unsaid) = refusals.says()
            {
                tracing::warn!(from, %why, unsaid, "turned away");
            }
        });
    }
}

async fn admit(caller: Caller, number: u64, door: &Door, inbox: &Inbox) -> Result<(), String> {
    let admitted = match caller {
        Caller::Far(socket, _) => door.admit(socket).await,
        Caller::Local(halves) => door.admit_local(halves).await,
    };
    let admitted = admitted.map_err(|turned| turned.to_string())?;
    let Some(Role::Peer(peer)) = admitted.opening.role else { return Err("is no worker".to_owned()) };
    let peer = WorkerId::from_bits(peer);
    let answer = Answer { version: VERSION, ..Answer::default() };
    let (reader, writer, rest) = admitted.answer(answer).await.map_err(|error| error.to_string())?;
    // What it says waits until the way back is known: otherwise the answer would look for another one.
    let gate = Arc::new(Mutex::new(()));
    let entering = gate.lock().unwrap_or_else(PoisonError::into_inner);
    let (waiting, deliver) = (Arc::clone(&gate), inbox.clone());
    let out = attach(reader, writer, rest, move |arrival| {
        drop(waiting.lock().unwrap_or_else(PoisonError::into_inner));
        deliver.hand_over(Event::Peer { peer, number, arrival })
    });
    // Nobody listens any more if the worker has ended.
    let _ = inbox.send(Event::Entered { peer, number, out });
    drop(entering);
    Ok(())
}
