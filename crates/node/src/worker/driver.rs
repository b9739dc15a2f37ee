//! The task that owns the machine of a worker: whatever comes is put to the machine, and whatever that wants is carried
//! out at once or goes out at the end of the turn.
//!
//! What the machine says to the coordinator is put into an order that packs well; the protocol allows any. An attempt that
//! began and ended in one turn is only said to have ended. Never decides what runs.
//!
//! The thread that followed a program puts its end to the machine itself, if nobody else is there just then, and goes on with
//! what that wants run next: where processors are busy, waking another thread for it takes longer than a short program.

mod line;
mod runs;

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use filch_core::wire::talk::{Answer, Ending, Packet, PeerSteals, Steals, WorkerCard};
use filch_core::wire::{Message, Party};
use filch_core::worker::{Input, Output, WorkerMachine};
use filch_core::{
    Amount, CapabilityId, CapabilitySet, Config, End, ResourceId, Span, TaskId, Time, Vector, WorkerId, WorkerSpec,
};
use rustc_hash::FxHashMap;

use super::bodies::Bodies;
use super::inbox::{Inbox, Listener};
use super::load::load;
use super::peers::{Peers, is_between_peers};
use super::{Event, WorkerFailure, WorkerOptions};
use crate::alarm::{Alarm, Bell, alarm};
use crate::clock::Clock;
use crate::dial::Dial;
use crate::link::{Arrival, HEAVY, Parcel, weight_of_ending};
use line::Line;
pub(super) use line::{Contact, first_contact};
pub(super) use runs::Finished;
use runs::Runs;

/// Runs that end where they begin, in one turn. The rest waits for the next, so that others are heard in between.
const AT_ONCE: usize = 1024;
/// How often the coordinator is told how steals go, at the most.
const TELL_STEALS: Span = Span::from_millis(250);
/// How long a worker that is stopped waits until the coordinator knows what it gives back.
const PARTING: Span = Span::from_secs(2);

/// What the coordinator gets at the end of the turn.
#[derive(Default)]
struct Post {
    others: Vec<Message>,
    began: Vec<Message>,
    ended: Vec<Message>,
    packet: Packet,
}

/// Whether it is about to leave.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Leaving {
    No,
    /// When all that runs has ended.
    Drained,
    /// At the latest then.
    Stopped(Time),
}

/// A worker that is done and has results for a coordinator that is gone.
#[derive(Clone, Copy)]
struct Detained {
    since: Time,
    /// When that was last said.
    said: Time,
}

/// What there is to say of an end that is not noted.
struct Kept {
    ending: Ending,
    /// Over which connection it was said, and when.
    said: Option<(u64, Time)>,
}

/// What follows a turn.
enum Next {
    /// Another, after others had theirs.
    GoOn,
    /// One when something comes, or when an alarm rings.
    Wait,
    /// None.
    Leave,
}

/// Whoever panicked with it has said so.
fn locked(driver: &Mutex<Driver>) -> MutexGuard<'_, Driver> {
    driver.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A worker at work.
pub(super) struct Driver {
    options: WorkerOptions,
    card: WorkerCard,
    dial: Dial,
    inbox: Inbox,
    /// What has come, while it is looked at.
    batch: Vec<Event>,
    /// Where other threads begin what must be begun there.
    runtime: tokio::runtime::Handle,
    clock: Clock,
    now: Time,
    lease: Span,
    machine: WorkerMachine,
    /// The numbers of its capabilities and resources, and the latest life of the coordinator.
    numbers: (Vec<u32>, Vec<u32>),
    epoch: u64,
    outputs: Vec<Output>,
    line: Line,
    generation: u64,
    /// Tries to connect that have failed since the last that did not.
    failures: u32,
    heard: Time,
    bodies: Bodies,
    runs: Runs,
    /// Ended where they began; the machine does not know yet.
    at_once: VecDeque<(TaskId, u32, End)>,
    /// What there is to say of ends that are not noted.
    endings: FxHashMap<(u64, u32), Kept>,
    post: Post,
    peers: Peers,
    leaving: Leaving,
    /// Whether it cannot leave for want of a coordinator.
    detained: Option<Detained>,
    steals_told: (u64, u64, Time),
    /// Why it must give up, if that came out in a turn elsewhere.
    failed: Option<WorkerFailure>,
    alarms: Alarms,
}

/// What rings when there is something to do even if nothing comes.
pub(super) struct Alarms {
    due: Alarm,
    /// For tasks that sleep. Apart, since it rings whenever one of them ends, and what is due otherwise mostly stands still.
    sleepers: Alarm,
}

/// Hears both.
pub(super) struct Bells {
    due: Bell,
    sleepers: Bell,
}

/// Both alarms, and what hears them.
///
/// # Errors
/// If the system has none left. Must be called within a runtime.
pub(super) fn alarms() -> io::Result<(Alarms, Bells)> {
    let ((due, due_bell), (sleepers, sleepers_bell)) = (alarm()?, alarm()?);
    Ok((Alarms { due, sleepers }, Bells { due: due_bell, sleepers: sleepers_bell }))
}

impl Driver {
    pub(super) fn new(
        options: WorkerOptions,
        card: WorkerCard,
        dial: Dial,
        contact: Contact,
        inbox: Inbox,
        alarms: Alarms,
    ) -> Result<Driver, WorkerFailure> {
        let Contact { answer, out, generation, early } = contact;
        let (machine, config) = new_machine(&card, &answer)?;
        let clock = Clock::new();
        let mut driver = Driver {
            runs: Runs::new(&options, inbox.clone()),
            bodies: Bodies::new(options.handlers.clone()),
            peers: Peers::new(inbox.clone(), options.neighbours.clone()),
            options,
            card,
            dial,
            inbox,
            batch: early,
            runtime: tokio::runtime::Handle::current(),
            now: clock.now(),
            clock,
            lease: config.limits.lease,
            machine,
            numbers: (answer.capabilities, answer.resources),
            epoch: answer.epoch,
            outputs: Vec::new(),
            line: Line::Up(out),
            generation,
            failures: 0,
            heard: clock.now(),
            at_once: VecDeque::new(),
            endings: FxHashMap::default(),
            post: Post::default(),
            leaving: Leaving::No,
            detained: None,
            steals_told: (0, 0, Time::ZERO),
            failed: None,
            alarms,
        };
        driver.step(Input::Connected);
        Ok(driver)
    }

    /// Works until it leaves.
    pub(super) async fn run(self, listener: &Listener, bells: &Bells) -> Result<(), WorkerFailure> {
        let driver = Arc::new(Mutex::new(self));
        listener.0.belongs_to(Arc::downgrade(&driver));
        loop {
            let next = locked(&driver).turn()?;
            match next {
                Next::Leave => return Ok(()),
                Next::GoOn => tokio::task::yield_now().await,
                Next::Wait => tokio::select! {
                    () = listener.wait() => {}
                    () = bells.due.rings() => {}
                    () = bells.sleepers.rings() => {}
                },
            }
        }
    }

    /// When something is due besides the ends of those that sleep.
    fn due_at(&self) -> Option<Time> {
        let leave = match self.leaving {
            Leaving::Stopped(at) => Some(at),
            _ => None,
        };
        let retry = match self.line {
            Line::Down { retry } => Some(retry),
            _ => None,
        };
        [self.machine.next_timer(), leave, retry].into_iter().flatten().min()
    }

    /// A turn by whoever has brought something. The task of the worker has the next one, if there must be one at once.
    pub(super) fn turn_elsewhere(&mut self) {
        let _entered = self.runtime.clone().enter();
        match self.turn() {
            Ok(Next::Wait) => return,
            Ok(Next::GoOn | Next::Leave) => {}
            Err(failure) => self.failed = Some(failure),
        }
        self.inbox.nudge();
    }

    fn end(&mut self, finished: Finished) {
        if let Some((task, attempt, end, ending)) = self.runs.finished(finished) {
            self.keep_ending(ending);
            self.step(Input::Ended { task, attempt, end });
        }
    }

    /// One turn: all that has come, all that is due, and what follows from it.
    fn turn(&mut self) -> Result<Next, WorkerFailure> {
        if let Some(failure) = self.failed.take() {
            return Err(failure);
        }
        self.now = self.clock.now();
        let mut batch = std::mem::take(&mut self.batch);
        self.inbox.take(&mut batch);
        for event in batch.drain(..) {
            self.take(event)?;
        }
        self.batch = batch;
        // Whoever has asked waits for nothing but the answer.
        self.send_to_peers();
        self.now = self.clock.now();
        while let Some((task, attempt)) = self.runs.wake(self.now) {
            self.at_once.push_back((task, attempt, End::Done));
        }
        if self.machine.next_timer().is_some_and(|at| at <= self.now) {
            self.step(Input::Load(load()));
        }
        for _ in 0..AT_ONCE {
            let Some((task, attempt, end)) = self.at_once.pop_front() else { break };
            self.step(Input::Ended { task, attempt, end });
        }
        self.bodies.sweep(self.machine.waiting());
        if self.machine.unnoted() == 0 && !self.endings.is_empty() && self.at_once.is_empty() {
            self.endings.clear();
        }
        self.peers.tidy(self.now);
        self.watch_line();
        self.send_all();
        Ok(if self.has_left() {
            Next::Leave
        } else if self.at_once.is_empty() {
            self.alarms.due.ring_by(self.due_at().map(|at| self.clock.instant(at)));
            self.alarms.sleepers.ring_by(self.runs.next_wake().map(|at| self.clock.instant(at)));
            Next::Wait
        } else {
            Next::GoOn
        })
    }

    fn take(&mut self, event: Event) -> Result<(), WorkerFailure> {
        match event {
            Event::Connected { generation, outcome } => return self.connected(generation, outcome),
            Event::Coordinator { generation, arrival } if generation == self.generation => match arrival {
                Arrival::Parcel(parcel) => self.told(*parcel),
                Arrival::Closed(why) => self.lost(&why),
            },
            Event::Coordinator { .. } => {}
            Event::Knocked { peer, number, outcome } => self.peers.knocked(peer, number, outcome, self.now),
            Event::Entered { peer, number, out } => self.peers.entered(peer, number, out, self.now),
            Event::Peer { peer, arrival: Arrival::Parcel(parcel), .. } => {
                self.peers.heard(peer, self.now);
                self.hear_peer(peer, parcel);
            }
            Event::Peer { peer, number, arrival: Arrival::Closed(_) } => {
                if self.peers.closed(peer, number, self.now) {
                    self.step(Input::Unreachable(peer));
                }
            }
            Event::Near { from, parcel } => self.hear_peer(from, parcel),
            Event::Ended(finished) => self.end(*finished),
            Event::Wrote(shown) => self.post.packet.chunks.push(shown.take()),
            Event::Drain => self.drain(),
            Event::Stop => self.stop(),
        }
        Ok(())
    }

    fn keep_ending(&mut self, ending: Option<Ending>) {
        if let Some(ending) = ending {
            self.endings.insert((ending.task, ending.attempt), Kept { ending, said: None });
        }
    }

    /// The coordinator has said something.
    fn told(&mut self, parcel: Parcel) {
        self.heard = self.now;
        self.failures = 0;
        let Parcel { epoch, messages, packet, .. } = parcel;
        self.bodies.learn(packet.bodies, packet.inputs, false);
        self.peers.learn(packet.peers);
        for look in packet.looks {
            self.runs.look(look.task, !look.stop);
        }
        for message in messages {
            if let Message::Noted(held) = &message {
                self.endings.remove(&(held.task.to_bits(), held.attempt));
            }
            let welcome = matches!(message, Message::Welcome { .. });
            self.step(Input::Told { epoch, message });
            if welcome {
                self.peers.known_as(self.machine.id());
                self.epoch = self.epoch.max(epoch);
            }
        }
        for relay in packet.relays {
            match Parcel::decode(relay.packet) {
                Ok(parcel) => {
                    let peer = WorkerId::from_bits(relay.worker);
                    self.peers.heard_round(peer, self.now);
                    self.hear_peer(peer, parcel);
                }
                Err(error) => tracing::warn!(%error, "a peer sent nonsense through the coordinator"),
            }
        }
        for handle in packet.forget {
            self.bodies.forget(handle);
        }
        if packet.drain {
            self.drain();
        }
    }

    fn hear_peer(&mut self, from: WorkerId, mut parcel: Box<Parcel>) {
        let Packet { bodies, inputs, .. } = &mut parcel.packet;
        self.bodies.learn(std::mem::take(bodies), std::mem::take(inputs), true);
        for message in parcel.messages.drain(..) {
            if is_between_peers(&message) {
                self.step(Input::Message { from, message });
            }
        }
    }

    fn drain(&mut self) {
        if self.leaving == Leaving::No {
            self.leaving = Leaving::Drained;
            self.post.packet.drain = true;
            self.step(Input::Drain);
        }
    }

    fn stop(&mut self) {
        self.drain();
        self.leaving = Leaving::Stopped(self.now + PARTING);
        self.runs.kill_all();
    }

    /// Whether there is nothing left to do here.
    fn has_left(&self) -> bool {
        let idle = self.runs.is_empty() && self.at_once.is_empty();
        match self.leaving {
            Leaving::No => false,
            _ if self.machine.id().is_none() => idle,
            Leaving::Drained if self.is_given_up() => true,
            Leaving::Drained => idle && self.machine.holds().next().is_none() && self.machine.unnoted() == 0,
            Leaving::Stopped(at) => {
                let known = self.machine.unnoted() == 0 || !matches!(self.line, Line::Up(_));
                idle && known || at <= self.now
            }
        }
    }

    // ---- what the machine wants ----

    fn step(&mut self, input: Input) {
        self.now = self.clock.now();
        let mut outputs = std::mem::take(&mut self.outputs);
        self.machine.step(self.now, input, &mut outputs);
        let mut began = None;
        for output in outputs.drain(..) {
            match output {
                Output::Send { to: Party::Coordinator, message } => match message {
                    Message::Began(_) => self.post.began.extend(began.replace(message)),
                    Message::Ended { .. } => self.post.ended.push(message),
                    _ => self.post.others.push(message),
                },
                Output::Send { to: Party::Worker(peer), message } => {
                    let parcel = self.peers.parcel(peer, self.now);
                    if let Message::Offer { orders, .. } = &message {
                        self.bodies.pack(orders, &mut parcel.packet);
                    }
                    parcel.messages.push(message);
                }
                Output::Run(order) => {
                    // Of what is over already only the end is said; what else has begun is said all the same.
                    let is_its = matches!(&began, Some(Message::Began(held)) if *held == order.held);
                    let is_over = self.begin(&order);
                    self.post.began.extend(began.take().filter(|_| !(is_over && is_its)));
                }
                Output::Stop { held, cause } => {
                    if let Some((end, ending)) = self.runs.stop(held, cause) {
                        self.keep_ending(ending);
                        self.at_once.push_back((held.task, held.attempt, end));
                    }
                }
            }
        }
        self.post.began.extend(began);
        self.outputs = outputs;
    }

    /// Begins a task; whether it has ended already.
    fn begin(&mut self, order: &filch_core::wire::Order) -> bool {
        let (task, attempt) = (order.held.task, order.held.attempt);
        let found = self.bodies.begin(order);
        if matches!(self.leaving, Leaving::Stopped(_)) {
            self.at_once.push_back((task, attempt, End::GivenBack));
            return true;
        }
        let started = match found {
            Some((prepared, input)) => {
                self.runs.start(order, &prepared, input, self.machine.devices_of(task), self.now)
            }
            None => runs::Started::Failed("what is to be done did not come with the task".to_owned(), true),
        };
        let ending = |fill: &dyn Fn(&mut Ending)| {
            let mut ending = Ending { task: task.to_bits(), attempt, ..Ending::default() };
            fill(&mut ending);
            Some(ending)
        };
        let (end, ending) = match started {
            runs::Started::Runs => return false,
            runs::Started::Done(result) if result.is_empty() => (End::Done, None),
            runs::Started::Done(result) => (End::Done, ending(&|ending| ending.result = Bytes::clone(&result))),
            runs::Started::Failed(error, retry) => {
                (End::Failed { retry }, ending(&|ending| ending.error.clone_from(&error)))
            }
        };
        self.keep_ending(ending);
        self.at_once.push_back((task, attempt, end));
        true
    }

    // ---- the end of the turn ----

    fn send_to_peers(&mut self) {
        while self.peers.have_mail() {
            let relays = match self.line {
                Line::Up(_) => Some(&mut self.post.packet.relays),
                _ => None,
            };
            for peer in self.peers.post(self.now, relays) {
                self.step(Input::Unreachable(peer));
            }
        }
    }

    fn send_all(&mut self) {
        self.send_to_peers();
        let Post { others: mut messages, mut began, ended, mut packet } = std::mem::take(&mut self.post);
        if !matches!(self.line, Line::Up(_)) {
            return;
        }
        messages.append(&mut began);
        if messages.is_empty() && ended.is_empty() && packet == Packet::default() {
            return;
        }
        let told = (self.machine.steal_stats().attempts, self.peers.relayed);
        let (attempts, relayed, at) = self.steals_told;
        let due = self.now.since(at) >= TELL_STEALS || self.leaving != Leaving::No;
        if told != (attempts, relayed) && due {
            let peers = self.machine.steals_by_peer().map(|(peer, stats)| PeerSteals {
                worker: peer.to_bits(),
                // Nobody asks for the median of one peer.
                steals: Some(Box::new(Steals { fine: Vec::new(), ..Steals::from(stats) })),
            });
            let steals = Steals { relayed: told.1, peers: peers.collect(), ..Steals::from(self.machine.steal_stats()) };
            packet.steals = Some(Box::new(steals));
            self.steals_told = (told.0, told.1, self.now);
        }
        let (chunks, relays) = (std::mem::take(&mut packet.chunks), std::mem::take(&mut packet.relays));
        let mut parcel = Parcel::of(packet);
        parcel.messages = messages;
        // What a task wrote comes before its end, and no parcel has too much of anything.
        let mut bytes = 0;
        for relay in relays {
            self.make_room(&mut parcel, &mut bytes, relay.packet.len());
            parcel.packet.relays.push(relay);
        }
        for chunk in chunks {
            self.make_room(&mut parcel, &mut bytes, chunk.bytes.len());
            parcel.packet.chunks.push(chunk);
        }
        for message in ended {
            let ending = self.words_for(&message);
            self.make_room(&mut parcel, &mut bytes, ending.as_ref().map_or(0, weight_of_ending));
            parcel.packet.endings.extend(ending);
            parcel.messages.push(message);
        }
        self.send_parcel(parcel);
    }

    /// Sends a parcel if it would become too heavy with so many bytes more.
    fn make_room(&mut self, parcel: &mut Parcel, bytes: &mut usize, more: usize) {
        if *bytes > 0 && *bytes + more > HEAVY {
            self.send_parcel(std::mem::take(parcel));
            *bytes = 0;
        }
        *bytes += more;
    }

    fn send_parcel(&mut self, parcel: Parcel) {
        let Line::Up(out) = &self.line else { return };
        if !out.send(parcel) {
            self.lost("it takes nothing any more");
        }
    }

    /// What there is to say of an end. The machine says every end again until it is noted; what came with it was not lost if the
    /// connection is still the same, and may be much.
    fn words_for(&mut self, message: &Message) -> Option<Ending> {
        let Message::Ended { held, .. } = message else { return None };
        let kept = self.endings.get_mut(&(held.task.to_bits(), held.attempt))?;
        let again = kept.said.is_none_or(|(over, at)| over != self.generation || self.now.since(at) > self.lease);
        again.then(|| {
            kept.said = Some((self.generation, self.now));
            kept.ending.clone()
        })
    }
}

/// A machine for a worker that a coordinator has let in.
fn new_machine(card: &WorkerCard, answer: &Answer) -> Result<(WorkerMachine, Config), WorkerFailure> {
    let config = Config::from_yaml(&answer.config, "coordinator")
        .map_err(|errors| WorkerFailure::Config(errors.to_string()))?
        .config;
    let few = || WorkerFailure::Config("it does not number all that this worker has".to_owned());
    if answer.capabilities.len() != card.capabilities.len() || answer.resources.len() != card.resources.len() {
        return Err(few());
    }
    let resources = answer.resources.iter().zip(&card.resources);
    let spec = WorkerSpec {
        tag: answer.tag,
        capabilities: answer.capabilities.iter().map(|id| CapabilityId(*id)).collect::<CapabilitySet>(),
        resources: Vector::new(resources.map(|(id, amount)| (ResourceId(*id), Amount::from_f64(amount.amount)))),
        slots: card.slots,
        ..WorkerSpec::default()
    };
    let mut machine = WorkerMachine::new(&config, spec, fastrand::u64(..));
    machine.count_steals_by_peer();
    Ok((machine, config))
}
