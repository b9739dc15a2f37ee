//! The coordinator: the machine of `core` that schedules, with connections, a store and a clock.
//!
//! One task of the runtime owns all of it and takes, turn by turn, whatever has come. Whoever connects is looked at by the
//! [`Door`] first; workers and clients of the same process come in by [`Coordinator::doorway`]. Never decides where a
//! task goes, and never says that something is accepted or over before the store has it.

mod bodies;
mod catch_up;
mod chores;
mod desk;
mod endings;
mod history;
mod jobs;
mod keys;
mod looks;
mod post;
mod query;
mod recover;
mod requests;
mod retry;
mod seats;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use filch_core::coordinator::Coordinator as Machine;
use filch_core::wire::VERSION;
use filch_core::wire::talk::{Answer, Opening, Role, WorkerCard};
use filch_core::{Config, Span, Time};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use self::chores::Chores;
use self::desk::{Desk, Kept};
use self::history::Keeper;
use self::recover::{Folded, Unreadable};
use crate::clock::Clock;
use crate::dial::{self, Deliver, Doorway};
use crate::door::{Admitted, Door};
use crate::link::{Arrival, Outgoing, attach};
use crate::seldom::Seldom;
use crate::store::{self, Lasts, Place, Shard, SqliteStore, Store};
use crate::view::StatsView;

/// Items that are taken in one turn at the most, so that nobody waits for long.
const TURN: usize = 4096;
/// How often those who look on hear how a job goes.
const PROGRESS: Duration = Duration::from_millis(100);

/// What a coordinator is to be like.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where it keeps everything.
    pub directory: PathBuf,
    /// Its configuration.
    pub config: Config,
    /// How long results, output and what became of tasks are kept.
    pub retention: Duration,
    /// The journal is folded into a snapshot when it has so many bytes.
    pub fold_after: usize,
    /// How long what it keeps must last.
    pub lasts: Lasts,
}

/// Bytes of the journal that are worth a snapshot, if nothing else is said.
pub const FOLD_AFTER: usize = 256 << 20;

impl Options {
    /// One with the default configuration in a directory.
    #[must_use]
    pub fn new(directory: impl Into<PathBuf>) -> Options {
        let retention = Duration::from_secs(7 * 24 * 3600);
        Options {
            directory: directory.into(),
            config: Config::default(),
            retention,
            fold_after: FOLD_AFTER,
            lasts: Lasts::default(),
        }
    }
}

/// Why a coordinator did not begin, or ended.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The store.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// What is in the store.
    #[error("{0}")]
    Unreadable(String),
    /// The configuration.
    #[error("{0}")]
    Config(String),
    /// The network.
    #[error("{what}: {source}")]
    Network {
        /// What was tried.
        what: String,
        /// What the system said.
        source: std::io::Error,
    },
}

impl From<Unreadable> for Failure {
    fn from(error: Unreadable) -> Failure {
        match error {
            Unreadable::Store(error) => Failure::Store(error),
            other => Failure::Unreadable(other.to_string()),
        }
    }
}

/// What the task that owns everything may be told.
enum Item {
    Enter { opening: Box<Opening>, answer: oneshot::Sender<Entered> },
    Connected { connection: u64, out: Outgoing, card: Option<Box<WorkerCard>> },
    Arrival { connection: u64, arrival: Arrival },
    Stored { turn: u64, begun: Time, outcome: Result<Place, store::Error> },
    Answered { connection: u64, id: u64, answer: Later },
    Stats(oneshot::Sender<StatsView>),
    Stop,
}

/// An answer that took a while.
pub(crate) enum Later {
    Json(String),
    Refused(String),
    Output(Box<filch_core::wire::talk::Ending>),
    Said(Box<filch_core::wire::talk::Said>),
    /// What somebody has not seen yet of what a task wrote.
    Rest(Vec<filch_core::wire::talk::Chunk>),
    /// Something of the past that somebody is to hear before all else.
    Past(Box<filch_core::wire::talk::Said>),
    /// That was all of the past; how the job ended, if it was over then.
    CaughtUp(Option<Box<filch_core::wire::talk::Progress>>),
    Resubmit(Box<filch_core::wire::talk::Submit>),
}

/// Whoever wants in is told this.
struct Entered {
    connection: u64,
    answer: Answer,
}

/// The way to the task that owns everything.
#[derive(Clone)]
pub(crate) struct Inbox(mpsc::UnboundedSender<Item>);

impl Inbox {
    pub(crate) fn stored(&self, turn: u64, begun: Time, outcome: Result<Place, store::Error>) {
        let _ = self.0.send(Item::Stored { turn, begun, outcome });
    }

    pub(crate) fn answered(&self, connection: u64, id: u64, answer: Later) {
        let _ = self.0.send(Item::Answered { connection, id, answer });
    }
}

/// Looks at a coordinator.
#[derive(Clone)]
pub struct Observer(Inbox);

impl Observer {
    /// Its figures; none if it has ended.
    pub async fn stats(&self) -> Option<StatsView> {
        let (answer, answered) = oneshot::channel();
        self.0.0.send(Item::Stats(answer)).ok()?;
        answered.await.ok()
    }
}

/// A coordinator that runs.
pub struct Coordinator {
    inbox: Inbox,
    task: JoinHandle<Result<(), Failure>>,
    epoch: u64,
    listeners: Vec<tokio::task::AbortHandle>,
}

impl Coordinator {
    /// Opens the store, gets back what earlier lives have left, and begins.
    ///
    /// # Errors
    /// If the store cannot be opened or read, or the configuration cannot be used.
    pub async fn start(options: Options) -> Result<Coordinator, Failure> {
        let (to, from) = mpsc::unbounded_channel();
        let inbox = Inbox(to);
        let given = inbox.clone();
        let desk = tokio::task::spawn_blocking(move || open(options, given)).await;
        let desk = desk.map_err(|error| Failure::Unreadable(error.to_string()))??;
        let epoch = desk.machine.epoch();
        let task = tokio::spawn(run(desk, from));
        Ok(Coordinator { inbox, task, epoch, listeners: Vec::new() })
    }

    /// Which life of the store this is.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Somebody who looks at it.
    #[must_use]
    pub fn observer(&self) -> Observer {
        Observer(self.inbox.clone())
    }

    /// How somebody in the same process connects.
    #[must_use]
    pub fn doorway(&self) -> Arc<dyn Doorway> {
        Arc::new(Near(self.inbox.clone()))
    }

    /// Lets in whoever comes to an address and passes the door. The address that it really has.
    ///
    /// # Errors
    /// If nothing can be bound there.
    pub async fn listen(&mut self, address: SocketAddr, door: Arc<Door>) -> Result<SocketAddr, Failure> {
        let failed = |source| Failure::Network { what: format!("cannot listen on {address}"), source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        let task = tokio::spawn(accept(listener, door, self.inbox.clone()));
        self.listeners.push(task.abort_handle());
        Ok(bound)
    }

    /// Ends it; what it has said is in the store.
    ///
    /// # Errors
    /// Why it had ended before, if it had.
    pub async fn stop(self) -> Result<(), Failure> {
        for listener in &self.listeners {
            listener.abort();
        }
        let _ = self.inbox.0.send(Item::Stop);
        self.ended().await
    }

    /// Waits until it ends by itself, which is always for a reason.
    ///
    /// # Errors
    /// That reason.
    pub async fn ended(self) -> Result<(), Failure> {
        self.task.await.unwrap_or_else(|error| Err(Failure::Unreadable(error.to_string())))
    }
}

/// Opens what there is.
fn open(options: Options, inbox: Inbox) -> Result<Desk, Failure> {
    let Options { directory, config, retention, fold_after, lasts } = options;
    let shard = Shard(0);
    history::check_store(&directory)?;
    let store: Arc<dyn Store> =
        Arc::new(SqliteStore::open_with(&directory, store::Options { lasts, ..store::Options::default() })?);
    let taken = store.take(shard)?;
    let (history, told) = Keeper::open(&directory, retention, lasts)?;
    let mut folded = Folded::read(&*store, shard, None, told, |item| history.tell(item))?;
    let clock = Clock::new();
    let machine = Machine::new(&config, taken.epoch.0).map_err(|error| Failure::Config(error.to_string()))?;
    let machine = machine.with_store(clock.now());
    let mut desk = Desk::new(machine, config, Kept { store, shard, epoch: taken.epoch, history }, clock, inbox);
    desk.chores = Chores::new(fold_after, folded.bytes);
    desk.retention = Span(u64::try_from(retention.as_nanos()).unwrap_or(u64::MAX / 4));
    desk.names = folded.names.clone();
    desk.use_policies()?;
    folded.names = std::mem::take(&mut desk.names);
    desk.restore(folded);
    Ok(desk)
}

/// Takes turns until it is stopped or the store fails.
async fn run(mut desk: Desk, mut from: mpsc::UnboundedReceiver<Item>) -> Result<(), Failure> {
    let mut items = Vec::new();
    let mut progress_due: Option<tokio::time::Instant> = None;
    desk.end_turn();
    loop {
        let timer = [desk.machine.next_timer(), desk.along_due()].into_iter().flatten().min();
        let timer = timer.map(|at| tokio::time::Instant::from_std(desk.clock.instant(at)));
        let due = match (timer, progress_due) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        if due.is_none_or(|due| due > tokio::time::Instant::now()) {
            let wait = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                count = from.recv_many(&mut items, TURN) => if count == 0 { return Ok(()) },
                () = wait => {}
            }
        } else {
            while items.len() < TURN
                && let Ok(item) = from.try_recv()
            {
                items.push(item);
            }
            // Whoever reads from the sockets gets a turn as well.
            tokio::task::yield_now().await;
        }
        desk.now = desk.clock.now();
        for item in items.drain(..) {
            if !take(&mut desk, item)? {
                return Ok(());
            }
        }
        if desk.machine.next_timer().is_some_and(|at| at <= desk.now) {
            desk.put(filch_core::coordinator::Input::Tick);
        }
        let now = tokio::time::Instant::now();
        if progress_due.is_some_and(|due| due <= now) {
            progress_due = None;
            desk.tell_progress();
        }
        if progress_due.is_none() && desk.jobs.has_changed() {
            progress_due = Some(now + PROGRESS);
        }
        desk.end_turn();
    }
}

/// Takes one item; whether there is to be another.
fn take(desk: &mut Desk, item: Item) -> Result<bool, Failure> {
    match item {
        Item::Enter { opening, answer } => {
            let entered = enter(desk, *opening);
            // Whoever has gone in the meantime needs none.
            let _ = answer.send(entered);
        }
        Item::Connected { connection, out, card } => desk.connected(connection, out, card),
        Item::Arrival { connection, arrival: Arrival::Parcel(parcel) } => desk.arrived(connection, *parcel),
        Item::Arrival { connection, arrival: Arrival::Closed(why) } => {
            tracing::debug!(connection, why, "a connection ended");
            desk.gone(connection, &why);
        }
        Item::Stored { turn, begun, outcome } => {
            let place = outcome.inspect_err(|error| {
                tracing::error!(%error, "the store failed; nothing more is acknowledged");
                desk.store_failed(&format!("nothing was submitted: {error}"));
            })?;
            desk.durable(turn, begun, place.0);
        }
        Item::Answered { connection, id, answer } => desk.answered(connection, id, answer),
        Item::Stats(answer) => drop(answer.send(desk.stats())),
        Item::Stop => {
            desk.close();
            return Ok(false);
        }
    }
    Ok(true)
}

static CONNECTIONS: AtomicU64 = AtomicU64::new(1);

/// Somebody wants in.
fn enter(desk: &mut Desk, opening: Opening) -> Entered {
    let connection = CONNECTIONS.fetch_add(1, Ordering::Relaxed);
    let mut answer = Answer { version: VERSION, epoch: desk.machine.epoch(), tag: connection, ..Answer::default() };
    match opening.role {
        Some(Role::Worker(card)) => match desk.check_in(&card, connection) {
            Ok((capabilities, resources)) => {
                (answer.capabilities, answer.resources) = (capabilities, resources);
                answer.config.clone_from(&desk.config_text);
            }
            Err(why) => answer.refused = why,
        },
        Some(Role::Client(_)) => {}
        _ => answer.refused = "this is a coordinator, not a worker; the access file of another cluster?".to_owned(),
    }
    Entered { connection, answer }
}

/// Lets people in.
async fn accept(listener: TcpListener, door: Arc<Door>, inbox: Inbox) {
    let refusals = Arc::new(Seldom::default());
    loop {
        let (socket, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Mostly too many open files: those that are there go on.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let (door, inbox, refusals) = (Arc::clone(&door), inbox.clone(), Arc::clone(&refusals));
        tokio::spawn(async move {
            match door.admit(socket).await {
                Ok(admitted) => welcome(admitted, from, inbox).await,
                Err(turned) => {
                    if let Some(unsaid) = refusals.says() {
                        tracing::warn!(%from, %turned, unsaid, "turned away");
                    }
                }
            }
        });
    }
}

async fn welcome(mut admitted: Admitted, from: SocketAddr, inbox: Inbox) {
    let opening = std::mem::take(&mut admitted.opening);
    let card = card_of(&opening);
    let (answer, answered) = oneshot::channel();
    if inbox.0.send(Item::Enter { opening: Box::new(opening), answer }).is_err() {
        return;
    }
    let Ok(Entered { connection, answer }) = answered.await else { return };
    let refused = answer.refused.clone();
    let Ok((reader, writer, rest)) = admitted.answer(answer).await else { return };
    if !refused.is_empty() {
        tracing::warn!(%from, why = refused, "refused");
        return;
    }
    let arrivals = inbox.clone();
    // Nothing of what arrives may overtake the news that there is a connection.
    let gate = Arc::new(Mutex::new(()));
    let held = Arc::clone(&gate);
    let closed = held.lock();
    let out = attach(reader, writer, rest, move |arrival| {
        drop(gate.lock());
        arrivals.0.send(Item::Arrival { connection, arrival }).is_ok()
    });
    let _ = inbox.0.send(Item::Connected { connection, out, card });
    drop(closed);
}

fn card_of(opening: &Opening) -> Option<Box<WorkerCard>> {
    match &opening.role {
        Some(Role::Worker(card)) => Some(Box::new(card.clone())),
        _ => None,
    }
}

/// Somebody in the same process comes in by this.
struct Near(Inbox);

impl Doorway for Near {
    fn enter(&self, opening: Opening, deliver: Deliver) -> dial::Entered {
        let inbox = self.0.clone();
        Box::pin(async move {
            let over = || "the coordinator has ended".to_owned();
            let card = card_of(&opening);
            let (answer, answered) = oneshot::channel();
            let asked = inbox.0.send(Item::Enter { opening: Box::new(opening), answer });
            asked.map_err(|_| over())?;
            let Entered { connection, answer } = answered.await.map_err(|_| over())?;
            let sender = inbox.clone();
            let way = Outgoing::near(move |arrival| sender.0.send(Item::Arrival { connection, arrival }).is_ok());
            if answer.refused.is_empty() {
                let out = Outgoing::near(deliver);
                inbox.0.send(Item::Connected { connection, out, card }).map_err(|_| over())?;
            }
            Ok((answer, way))
        })
    }
}
