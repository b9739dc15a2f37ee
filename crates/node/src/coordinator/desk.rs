//! What a coordinator does between its machine and the world: whatever comes in is put to the machine, whatever that
//! wants is carried out, and what must wait for the store waits here.
//!
//! One turn takes all that has come, and ends with one parcel for everybody who is to hear something and one page for
//! the store. Never decides where a task goes or what becomes of it.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use filch_core::coordinator::{Coordinator as Machine, Input, Output};
use filch_core::journal::Detail;
use filch_core::names::Sort;
use filch_core::steal::StealStats;
use filch_core::wire::talk::{Body, Ended, Ending, KeyNote, Page, Peer, Relay, Reply, Said, Submitted, WorkerCard};
use filch_core::wire::{Group, Message, Order};
use filch_core::{Action, Cause, Config, Held, JobId, Names, Record, Span, Status, TaskId, TaskSpec, Time, WorkerId};
use prost::Message as _;
use rustc_hash::{FxHashMap, FxHashSet};

use super::Failure;
use super::Inbox;
use super::bodies::{Bodies, Elements};
use super::catch_up::Latecomer;
use super::chores::Chores;
use super::endings::{Unsaid, nobody_can};
use super::history::{Item as Past, Keeper, NOBODY, Outcome};
use super::jobs::Jobs;
use super::keys::Keys;
use super::looks::Looker;
use super::recover::{EndColumns, Folded};
use crate::clock::Clock;
use crate::link::{HEAVY, Outgoing, Parcel};
use crate::store::{BlobChange, BlobId, Entry, Epoch, Shard, Store};

/// Elements that never became tasks and were settled together: so many of them are told of one by one.
const ELEMENTS_TOLD: usize = 100;

/// Somebody who is connected.
pub(super) struct Connection {
    pub(super) out: Outgoing,
    /// What it gets at the end of this turn.
    pub(super) parcel: Parcel,
    /// About how many bytes were put into it.
    pub(super) bytes: usize,
    pub(super) dirty: bool,
    /// Shared bodies it has.
    sent: FxHashSet<u64>,
    pub(super) worker: Option<WorkerId>,
    pub(super) card: Option<Box<WorkerCard>>,
    /// Requests that are answered more than once, and of what.
    pub(super) watches: FxHashMap<u64, Watched>,
    pub(super) looks: Vec<Looker>,
}

/// What a request goes on hearing of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Watched {
    Job(u64),
    Task(TaskId),
}

/// A worker that has joined, connected or not.
pub(super) struct Seat {
    pub(super) id: WorkerId,
    pub(super) name: Arc<str>,
    pub(super) connection: Option<u64>,
    pub(super) card: Box<WorkerCard>,
    pub(super) steals: StealStats,
    /// The same of the peers it asked last.
    pub(super) steals_by_peer: Vec<(WorkerId, StealStats)>,
    pub(super) relayed: u64,
}

/// What waits for the store.
pub(super) enum Later {
    Message(WorkerId, Message),
    Reply(u64, Reply),
    Past(Latecomer),
}

/// Where everything is kept.
pub(super) struct Kept {
    pub(super) store: Arc<dyn Store>,
    pub(super) shard: Shard,
    pub(super) epoch: Epoch,
    pub(super) history: Keeper,
}

/// The desk.
pub(super) struct Desk {
    pub(super) machine: Machine,
    pub(super) clock: Clock,
    pub(super) now: Time,
    pub(super) config: Config,
    pub(super) config_text: String,
    pub(super) names: Names,
    pub(super) store: Arc<dyn Store>,
    pub(super) shard: Shard,
    pub(super) epoch: Epoch,
    pub(super) connections: FxHashMap<u64, Connection>,
    pub(super) dirty: Vec<u64>,
    /// Those who get something with the next parcel, and when without one.
    pub(super) along: FxHashSet<u64>,
    pub(super) along_due: Option<Time>,
    /// By the slot of the worker.
    pub(super) seats: Vec<Option<Seat>>,
    pub(super) worker_names: FxHashMap<Arc<str>, WorkerId>,
    /// Who had a name that nobody has now.
    pub(super) former: FxHashMap<Arc<str>, WorkerId>,
    pub(super) former_order: VecDeque<Arc<str>>,
    pub(super) jobs: Jobs,
    pub(super) bodies: Bodies,
    /// Bodies that several orders share, and who has them.
    pub(super) shared: FxHashMap<u64, Vec<u64>>,
    pub(super) next_blob: u64,
    pub(super) keys: Keys,
    /// What this turn is to remember.
    group: Group,
    pub(super) page: Page,
    pub(super) ends: EndColumns,
    /// What history is to hear when this turn is durable, and what it is to hear after earlier ones.
    past: Vec<Past>,
    pub(super) outcomes: Vec<Outcome>,
    told_later: VecDeque<(u64, Vec<Past>)>,
    pub(super) chores: Chores,
    pub(super) history: Keeper,
    /// For those who answer later.
    pub(super) inbox: Inbox,
    pub(super) blobs: Vec<BlobChange>,
    pub(super) specs: VecDeque<TaskSpec>,
    renew: bool,
    /// The number of this turn's page, if it gets one; the last one that was begun and the last that is durable.
    turn: u64,
    begun: u64,
    durable: u64,
    waiting: VecDeque<(u64, Later)>,
    /// Replies that wait until somebody has heard of the past.
    pub(super) held: FxHashMap<(u64, u64), super::catch_up::Held>,
    outputs: Vec<Output>,
    /// What came with the messages that are being heard.
    pub(super) endings: FxHashMap<(u64, u32), Ending>,
    /// Tasks that were cancelled while a worker had them, which has not said yet what they wrote.
    pub(super) unsaid: Unsaid,
    /// Elements of an array that are being settled, and what each class of workers lacks for them.
    elements: Option<(Outcome, u32)>,
    lacks: Vec<String>,
    /// How long the attempt ran whose end is being heard.
    pub(super) ran: Option<(Held, Span, WorkerId)>,
    pub(super) watched_tasks: FxHashMap<TaskId, Vec<(u64, u64)>>,
    pub(super) retention: Span,
    pub(super) settled: u64,
    pub(super) steals_gone: StealStats,
    /// Tasks whose output somebody looks at as it comes, and the connections of those who do: one for each request.
    pub(super) looked_at: FxHashMap<TaskId, Vec<u64>>,
    /// When this life began.
    pub(super) since: Time,
}

impl Desk {
    pub(super) fn new(machine: Machine, config: Config, kept: Kept, clock: Clock, inbox: Inbox) -> Desk {
        let Kept { store, shard, epoch, history } = kept;
        Desk {
            machine,
            now: clock.now(),
            clock,
            config_text: config.to_yaml(),
            config,
            names: Names::default(),
            store,
            shard,
            epoch,
            connections: FxHashMap::default(),
            dirty: Vec::new(),
            along: FxHashSet::default(),
            along_due: None,
            seats: Vec::new(),
            worker_names: FxHashMap::default(),
            former: FxHashMap::default(),
            former_order: VecDeque::new(),
            jobs: Jobs::default(),
            bodies: Bodies::default(),
            shared: FxHashMap::default(),
            next_blob: 1,
            keys: Keys::default(),
            group: Group::default(),
            page: Page::default(),
            ends: EndColumns::default(),
            past: Vec::new(),
            outcomes: Vec::new(),
            told_later: VecDeque::new(),
            chores: Chores::new(super::FOLD_AFTER, 0),
            history,
            inbox,
            blobs: Vec::new(),
            specs: VecDeque::new(),
            renew: false,
            turn: 1,
            begun: 0,
            durable: 0,
            waiting: VecDeque::new(),
            held: FxHashMap::default(),
            outputs: Vec::new(),
            endings: FxHashMap::default(),
            unsaid: Unsaid::default(),
            elements: None,
            lacks: Vec::new(),
            ran: None,
            watched_tasks: FxHashMap::default(),
            retention: Span::from_secs(7 * 24 * 3600),
            settled: 0,
            steals_gone: StealStats::default(),
            looked_at: FxHashMap::default(),
            since: clock.now(),
        }
    }

    /// Gets back what earlier lives have left.
    pub(super) fn restore(&mut self, folded: Folded) {
        let Folded { journal, names, jobs, keys, workers, named, heirs, next_blob, unsaid, .. } = folded;
        (self.names, self.jobs, self.keys, self.next_blob) = (names, jobs, keys, next_blob);
        self.unsaid = unsaid;
        for (worker, name) in workers {
            self.restore_seat(worker, &name);
        }
        self.restore_names(named);
        for job in self.jobs.unfinished() {
            let card = &job.card;
            if card.handle > 0 {
                self.bodies.restore(card.handle);
                self.shared.insert(card.handle, Vec::new());
            }
            self.bodies.keep_elements(card.handle, Elements::restored(card, &job.numbers));
        }
        for (_, handle) in journal.unfinished() {
            if !self.shared.contains_key(&handle) {
                self.bodies.restore(handle);
            }
        }
        let mut outputs = Vec::new();
        self.machine.restore(self.now, journal, &mut outputs);
        self.carry_out(&mut outputs);
        for (former, worker) in heirs {
            self.succeeds(worker, former);
        }
    }

    /// Policies of single task types, whose names are to be known.
    pub(super) fn use_policies(&mut self) -> Result<(), Failure> {
        let types: Vec<String> = self.config.scheduling.per_type.keys().cloned().collect();
        for name in types {
            self.number(Sort::TaskType, &name).map_err(|error| Failure::Config(error.to_string()))?;
        }
        self.machine.use_policies_per_type(&mut self.names).map_err(|error| Failure::Config(error.to_string()))
    }

    // ---- connections ----

    pub(super) fn connected(&mut self, connection: u64, out: Outgoing, card: Option<Box<WorkerCard>>) {
        let entry = Connection {
            out,
            parcel: Parcel::default(),
            bytes: 0,
            dirty: false,
            sent: FxHashSet::default(),
            worker: None,
            card,
            watches: FxHashMap::default(),
            looks: Vec::new(),
        };
        self.connections.insert(connection, entry);
    }

    pub(super) fn gone(&mut self, connection: u64, why: &str) {
        let Some(gone) = self.connections.remove(&connection) else { return };
        if let Some(worker) = gone.worker {
            self.disconnected(worker, connection, why);
        }
        for looker in &gone.looks {
            self.look_away(looker.task, connection);
        }
        self.held.retain(|&(of, _), _| of != connection);
        for watched in gone.watches.values() {
            self.unwatch(*watched, |(of, _)| of == connection);
        }
    }

    pub(super) fn unwatch(&mut self, watched: Watched, is: impl Fn((u64, u64)) -> bool) {
        match watched {
            Watched::Job(number) => {
                if let Some(job) = self.jobs.get_mut(number) {
                    job.watchers.retain(|&(connection, request, _)| !is((connection, request)));
                }
            }
            Watched::Task(task) => {
                if let Some(watchers) = self.watched_tasks.get_mut(&task) {
                    watchers.retain(|&entry| !is(entry));
                    if watchers.is_empty() {
                        self.watched_tasks.remove(&task);
                    }
                }
            }
        }
    }

    pub(super) fn reply(&mut self, connection: u64, id: u64, said: Said) {
        self.push_reply(connection, Reply { id, said: Some(said) });
    }

    /// Tells of the past when all that was recorded so far is durable.
    pub(super) fn when_durable(&mut self, who: Latecomer) {
        match self.unsynced() {
            None => self.tell_past(who),
            Some(turn) => self.waiting.push_back((turn, Later::Past(who))),
        }
    }

    /// The store has failed: whoever waits to hear that something was accepted hears that it was not.
    pub(super) fn store_failed(&mut self, why: &str) {
        for (_, later) in std::mem::take(&mut self.waiting) {
            if let Later::Reply(connection, Reply { id, said: Some(Said::Submitted(_)) }) = later {
                self.push_at_once(connection, Reply { id, said: Some(super::requests::refused(why)) });
            }
        }
        self.post();
    }

    /// Replies when all that was recorded so far is durable.
    pub(super) fn reply_when_durable(&mut self, connection: u64, id: u64, said: Said) {
        match self.unsynced() {
            None => self.reply(connection, id, said),
            Some(turn) => {
                self.waiting.push_back((turn, Later::Reply(connection, Reply { id, said: Some(said) })));
            }
        }
    }

    fn has_page(&self) -> bool {
        let page = &self.page;
        let notes = page.names.len() + page.jobs.len() + page.workers.len() + page.keys.len();
        !self.group.is_empty() || !self.blobs.is_empty() || notes > 0 || !self.ends.is_empty()
    }

    /// The page after which all that was recorded so far is durable.
    fn unsynced(&self) -> Option<u64> {
        if self.has_page() {
            return Some(self.turn);
        }
        (self.begun > self.durable).then_some(self.begun)
    }

    // ---- what comes in ----

    pub(super) fn arrived(&mut self, connection: u64, parcel: Parcel) {
        let Parcel { messages, packet, .. } = parcel;
        let Some(found) = self.connections.get(&connection) else { return };
        let (is_worker, worker) = (found.card.is_some(), found.worker);
        if is_worker {
            if packet.drain
                && let Some(worker) = worker
            {
                self.drain(worker);
            }
            if let (Some(steals), Some(worker)) = (packet.steals, worker)
                && let Some(seat) = self.seat_mut(worker)
            {
                seat.count_steals(&steals);
            }
            let keyed = packet.endings.into_iter().map(|ending| ((ending.task, ending.attempt), ending));
            self.endings.extend(keyed);
            // What a task wrote comes before its end, after which nobody looks on.
            for chunk in packet.chunks {
                self.pass_output(&chunk);
            }
            for message in messages {
                self.heard(connection, message);
            }
            self.endings.clear();
            for relay in packet.relays {
                self.pass_on(connection, relay);
            }
        }
        for request in packet.requests {
            self.asked(connection, request);
        }
    }

    /// Workers that cannot reach each other talk through here.
    fn pass_on(&mut self, connection: u64, relay: Relay) {
        let Some(from) = self.connections.get(&connection).and_then(|found| found.worker) else { return };
        let to = self.seat(WorkerId::from_bits(relay.worker)).and_then(|seat| seat.connection);
        let Some(to) = to else { return };
        let bytes = relay.packet.len();
        if let Some(packet) = self.parcel(to) {
            packet.relays.push(Relay { worker: from.to_bits(), packet: relay.packet });
        }
        self.loaded(to, bytes);
    }

    fn heard(&mut self, connection: u64, message: Message) {
        if let Message::Hello(hello) = message {
            self.greet(connection, hello);
            return;
        }
        let Some(from) = self.connections.get(&connection).and_then(|found| found.worker) else { return };
        match message {
            Message::Ended { held, ran, .. } => self.ran = Some((held, ran, from)),
            Message::Began(held) if self.machine.scheduler().current(held.task).is_some() => {
                self.jobs.began(held, from, self.now);
                self.show_begun(connection, held.task);
            }
            _ => {}
        }
        let over = if let Message::Ended { held, .. } = message { Some(held) } else { None };
        self.put(Input::Message { from, message });
        if let Some(held) = over {
            self.hear_late_words(held);
        }
        self.ran = None;
    }

    pub(super) fn drain(&mut self, worker: WorkerId) {
        let change = filch_core::WorkerChange { draining: Some(true), ..filch_core::WorkerChange::default() };
        self.put(Input::Event(filch_core::Event::Change { worker, change }));
    }

    /// Puts something to the machine and carries out what it wants.
    pub(super) fn put(&mut self, input: Input) {
        let mut outputs = std::mem::take(&mut self.outputs);
        self.machine.step(self.now, input, &mut outputs);
        self.carry_out(&mut outputs);
        self.outputs = outputs;
    }

    pub(super) fn carry_out(&mut self, outputs: &mut Vec<Output>) {
        for output in outputs.drain(..) {
            match output {
                Output::Joined { tag, worker } => self.joined(tag, worker),
                Output::Send { to, message } => {
                    if message.waits_for_store()
                        && let Some(turn) = self.unsynced()
                    {
                        self.waiting.push_back((turn, Later::Message(to, message)));
                    } else {
                        self.send(to, message);
                    }
                }
                Output::Renew => self.renew = true,
                Output::Action(action) => self.act(action),
            }
        }
    }

    fn send(&mut self, to: WorkerId, message: Message) {
        let Some(connection) = self.seat(to).and_then(|seat| seat.connection) else { return };
        match message {
            Message::Hand { number, orders, nothing } => {
                self.hand(to, connection, (number, nothing), orders);
                return;
            }
            Message::Digest(ref peers) => {
                for peer in peers {
                    let Some(seat) = self.seat(peer.worker).filter(|seat| !seat.card.address.is_empty()) else {
                        continue;
                    };
                    let peer = Peer {
                        worker: peer.worker.to_bits(),
                        address: seat.card.address.clone(),
                        pin: seat.card.pin.clone(),
                        token: seat.card.peer_token.clone(),
                        local: seat.card.local.clone(),
                    };
                    if let Some(packet) = self.parcel(connection) {
                        packet.peers.push(peer);
                    }
                }
            }
            _ => {}
        }
        self.push_message(connection, message);
    }

    /// Orders go with what they are to do, in several parcels if that is much.
    fn hand(&mut self, to: WorkerId, connection: u64, (number, nothing): (u64, bool), orders: Vec<Order>) {
        let mut together = Vec::with_capacity(orders.len());
        let (mut last, mut bytes) = (None, 0);
        for order in orders {
            self.jobs.handed(order.held, to, self.now);
            if order.begins {
                self.jobs.began(order.held, to, self.now);
                self.show_begun(connection, order.held.task);
            }
            if last != Some(order.payload) {
                bytes += self.attach_body(connection, order.payload);
            }
            last = Some(order.payload);
            if let Some(input) = self.bodies.element(order.payload, order.index, &*self.store, self.shard) {
                bytes += input.bytes.len();
                if let Some(packet) = self.parcel(connection) {
                    packet.inputs.push(input);
                }
            }
            together.push(order);
            if bytes > HEAVY {
                let orders = std::mem::take(&mut together);
                self.push_message(connection, Message::Hand { number, orders, nothing });
                self.loaded(connection, std::mem::take(&mut bytes));
            }
        }
        if !together.is_empty() {
            self.push_message(connection, Message::Hand { number, orders: together, nothing });
            self.loaded(connection, bytes);
        }
    }

    /// How many bytes it has; none if the other side has it.
    fn attach_body(&mut self, connection: u64, handle: u64) -> usize {
        let shared = self.shared.contains_key(&handle);
        let Some(found) = self.connections.get_mut(&connection) else { return 0 };
        if shared && !found.sent.insert(handle) {
            return 0;
        }
        if let Some(having) = self.shared.get_mut(&handle) {
            having.push(connection);
        }
        let Some(work) = self.bodies.work(handle, &*self.store, self.shard) else {
            tracing::error!(handle, "what is to be done is not in the store");
            return 0;
        };
        let length = work.len();
        if let Some(packet) = self.parcel(connection) {
            packet.bodies.push(Body { handle, work, shared });
        }
        length
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Persist(record) => self.record(&record),
            Action::Element { job, index, task, payload } => {
                if let Some(number) = self.jobs.number_of(job) {
                    self.jobs.enter(task, number, index, payload);
                }
            }
            // Both sides tell of a theft; the machine says which word counts.
            Action::Move { task, from, to } if from != to => {
                // One that ended with the same word is over by now.
                let held = self.machine.scheduler().current(task).or(self.ran.map(|(held, ..)| held));
                if let Some(held) = held.filter(|held| held.task == task) {
                    self.jobs.moved(held, to, self.now);
                }
            }
            Action::Notify { task, status, cause, .. }
                if !matches!(status, Status::Running | Status::Assigned)
                    && !status.is_settled()
                    && !self.has_only_moved(task, cause) =>
            {
                self.jobs.waits(task);
            }
            Action::JobDone { job } => self.job_done(job),
            Action::ElementsRefused { worker, lack, .. } => {
                self.lacks.push(self.lack_words(worker, lack));
            }
            Action::ElementsSettled { job, count, status, .. } => {
                self.settled += u64::from(count);
                if let Some(number) = self.jobs.number_of(job) {
                    self.elements_over(number);
                    self.jobs.settled(number, status, u64::from(count));
                }
            }
            _ => {}
        }
    }

    /// Whether a task that is said to wait because it was moved is with a worker, or was until it ended.
    fn has_only_moved(&self, task: TaskId, cause: Cause) -> bool {
        let scheduler = self.machine.scheduler();
        cause == Cause::Moved
            && (scheduler.who_has(task).is_some() || scheduler.status(task).is_none_or(Status::is_settled))
    }

    // ---- what is remembered ----

    fn record(&mut self, record: &Record) {
        match *record {
            Record::Submitted { .. } => {
                let spec = self.specs.pop_front();
                self.group.push(record, spec.as_ref().map_or(Detail::None, Detail::Task));
                return;
            }
            Record::ArraySubmitted { .. } => {
                let spec = self.specs.pop_front();
                self.group.push(record, spec.as_ref().map_or(Detail::None, Detail::Task));
                return;
            }
            Record::Joined { tag, .. } => {
                let card = self.connections.get(&tag).and_then(|found| found.card.clone());
                let spec = card.and_then(|card| self.worker_spec(&card, tag).ok());
                self.group.push(record, spec.as_ref().map_or(Detail::None, Detail::Worker));
                return;
            }
            Record::ElementsSettled { from, to, status, cause, at, .. } => {
                self.elements = Some((Outcome::of_element(0, from, status, cause, at.0), to));
            }
            Record::Left { worker } => self.unseat(worker),
            Record::Retrying { task, attempt, .. } => self.note_end(task, attempt),
            Record::Settled { task, attempt, status, cause, .. } => {
                self.group.push(record, Detail::None);
                self.settle(task, attempt, status, cause);
                return;
            }
            _ => {}
        }
        self.group.push(record, Detail::None);
    }

    fn settle(&mut self, task: TaskId, attempt: u32, status: Status, cause: Cause) {
        self.settled += 1;
        let mut ending = self.endings.remove(&(task.to_bits(), attempt));
        if cause == Cause::NoWorker && ending.is_none() {
            ending = self.nobody_can_run(task, attempt);
        }
        let last_worker = self.last_worker(task);
        let live = self.jobs.stopped(task);
        let own = self.ran.filter(|(held, ..)| held.task == task && held.attempt == attempt);
        // Of one that was handed out in an earlier life only its end is known.
        let ran = own.map_or(Span(0), |(_, ran, _)| ran);
        let began = live.filter(|live| live.runs).map_or(self.now.0.saturating_sub(ran.0), |live| live.began.0);
        let kept = self.keep_last_ending((task, attempt, status), ending.as_ref(), began);
        let Some(note) = self.jobs.note(task) else { return };
        let number = u64::from(note.job);
        let worker = own.map(|(_, _, worker)| worker).or(last_worker);
        let outcome = Outcome {
            job: number,
            index: if number == 0 { note.handle } else { u64::from(note.index) },
            status,
            cause,
            attempts: filch_core::attempt_in_life(attempt),
            hops: live.map_or(0, |live| live.hops),
            worker: worker.map_or(NOBODY, WorkerId::to_bits),
            began,
            ended: self.now.0,
            ran: ran.0,
            ending: kept,
        };
        self.outcomes.push(outcome);
        if status == Status::Cancelled && live.is_some_and(|live| live.runs) {
            self.expect_words(task, attempt, outcome);
        }
        // Those who look on see the rest of what is being stopped.
        if self.looked_at.contains_key(&task) && !self.is_stopping(task, attempt, worker) {
            self.end_looks(task, ending.as_ref());
        }
        self.tell_ended(task, &outcome, worker, ending);
        if !self.shared.contains_key(&note.handle) {
            self.forget_body(note.handle);
        }
        self.jobs.settled(number, status, 1);
        self.jobs.leave(task);
    }

    pub(super) fn lack_words(&self, worker: WorkerId, lack: filch_core::Lack) -> String {
        format!("{}: {}", self.worker_name(worker), self.names.lack(lack))
    }

    /// Elements of an array are over that never became tasks, and why if nobody could run them.
    fn elements_over(&mut self, number: u64) {
        let lacks = std::mem::take(&mut self.lacks);
        let Some((mut outcome, to)) = self.elements.take() else { return };
        outcome.job = number;
        let ending = nobody_can(&lacks).map(|error| Ending { error, ..Ending::default() });
        if let Some(ending) = &ending {
            outcome.ending = self.put_ending(ending);
        }
        // Those who follow hear of as many as anybody reads; the rest is in the sums and in the history.
        let first = outcome.index;
        for index in (first..u64::from(to)).take(ELEMENTS_TOLD) {
            outcome.index = index;
            // It has no number of a task.
            self.tell_ended(TaskId::from_bits(0), &outcome, None, ending.clone());
        }
        outcome.index = first;
        self.past.push(Past::Elements { outcome: Box::new(outcome), to });
    }

    /// Whoever waits for the task hears of its end.
    fn tell_ended(&mut self, task: TaskId, outcome: &Outcome, worker: Option<WorkerId>, ending: Option<Ending>) {
        let mut watchers: Vec<(u64, u64)> = Vec::new();
        let mut since = None;
        if let Some(job) = self.jobs.get(outcome.job) {
            since = Some(job.card.at);
            watchers.extend(job.watchers.iter().filter(|entry| entry.2).map(|entry| (entry.0, entry.1)));
        }
        if !self.watched_tasks.is_empty()
            && let Some(own) = self.watched_tasks.remove(&task)
        {
            watchers.extend(own);
        }
        if watchers.is_empty() {
            return;
        }
        let ended = Ended {
            job: outcome.job,
            index: outcome.index as u32,
            task: task.to_bits(),
            status: outcome.status.name().to_owned(),
            cause: outcome.cause.words().unwrap_or_default().to_owned(),
            attempts: outcome.attempts,
            worker: worker.map_or_else(String::new, |worker| self.worker_name(worker)),
            waited_nanos: since.map_or(0, |since| outcome.began.saturating_sub(since)),
            ran_nanos: outcome.ran,
            began_nanos: outcome.began,
            hops: outcome.hops,
            ending: ending.map(Box::new),
        };
        for (connection, request) in watchers {
            if let Some(found) = self.connections.get_mut(&connection)
                && found.watches.get(&request) == Some(&Watched::Task(task))
            {
                found.watches.remove(&request);
            }
            self.reply_when_durable(connection, request, Said::Ended(Box::new(ended.clone())));
        }
    }

    fn job_done(&mut self, job: JobId) {
        let now = self.now;
        let Some(found) = self.jobs.done(job, now) else { return };
        let progress = found.progress.clone();
        let (number, submission, handle) = (found.card.number, found.card.submission, found.card.handle);
        let watchers = std::mem::take(&mut found.watchers);
        self.past.push(Past::JobDone { job: number, at: now.0, progress: Box::new(progress.clone()) });
        for (connection, request, _) in watchers {
            if let Some(known) = self.connections.get_mut(&connection) {
                known.watches.remove(&request);
            }
            self.reply_when_durable(connection, request, Said::JobDone(progress.clone()));
        }
        if handle > 0 {
            self.forget_body(handle);
        }
        // It may be asked for again.
        let until = crate::store::Until((now + self.retention).0 / 1_000_000);
        self.blobs.push(BlobChange::Keep { id: BlobId(submission), until: Some(until) });
    }

    pub(super) fn forget_body(&mut self, handle: u64) {
        self.bodies.forget(handle, &mut self.blobs);
        if self.shared.is_empty() {
            return;
        }
        for connection in self.shared.remove(&handle).unwrap_or_default() {
            if let Some(found) = self.connections.get_mut(&connection) {
                found.sent.remove(&handle);
            }
            if let Some(packet) = self.parcel(connection) {
                packet.forget.push(handle);
            }
        }
    }

    pub(super) fn new_blob(&mut self) -> u64 {
        let blob = self.next_blob;
        self.next_blob += 1;
        blob
    }

    pub(super) fn keep_body(&mut self, work: Bytes) -> u64 {
        let next = &mut self.next_blob;
        self.bodies.add(work, self.turn, &mut self.blobs, || {
            *next += 1;
            *next - 1
        })
    }

    pub(super) fn note_key(&mut self, key: Bytes, answer: Submitted) {
        if !key.is_empty() {
            let handle = self.jobs.note(TaskId::from_bits(answer.task)).filter(|_| answer.job == 0);
            let handle = handle.map_or(0, |note| note.handle);
            self.keys.insert(&key, answer, handle);
            self.page.keys.push(KeyNote { key, task: answer.task, job: answer.job, handle });
        }
    }

    pub(super) fn remember(&mut self, past: Past) {
        self.past.push(past);
    }

    // ---- the turn ----

    /// Ends the turn: everybody gets what there is for them, and the store what is to be remembered.
    pub(super) fn end_turn(&mut self) {
        self.bodies.seal(self.turn, &mut self.blobs);
        if self.has_page() || std::mem::take(&mut self.renew) {
            self.renew = false;
            let entry = self.take_entry();
            self.chores.wrote(entry.records.len());
            self.chores.look(self.now, &self.store, (self.shard, self.epoch), || self.history.sender());
            let (turn, begun) = (self.turn, self.now);
            self.begun = turn;
            self.turn += 1;
            self.keep_past(turn);
            let inbox = self.inbox.clone();
            let done = Box::new(move |outcome| inbox.stored(turn, begun, outcome));
            self.store.append(self.shard, self.epoch, entry, done);
        }
        self.post();
    }

    fn take_entry(&mut self) -> Entry {
        let mut page = std::mem::take(&mut self.page);
        if !self.group.is_empty() {
            page.records = self.group.encode().into();
        }
        page.ends = self.ends.take();
        page.next_blob = self.next_blob;
        Entry { records: page.encode_to_vec(), blobs: std::mem::take(&mut self.blobs) }
    }

    /// History hears of it when it is durable.
    fn keep_past(&mut self, turn: u64) {
        let mut past = std::mem::take(&mut self.past);
        if !self.outcomes.is_empty() {
            past.insert(0, Past::Settled(std::mem::take(&mut self.outcomes)));
        }
        if !past.is_empty() {
            self.told_later.push_back((turn, past));
        }
    }

    /// The store has confirmed a page.
    pub(super) fn durable(&mut self, turn: u64, begun: Time, place: u64) {
        self.durable = self.durable.max(turn);
        self.put(Input::Stored { begun });
        self.bodies.durable(turn);
        let mut told = false;
        while let Some((_, past)) = self.told_later.pop_front_if(|entry| entry.0 <= turn) {
            told = true;
            for item in past {
                self.history.tell(item);
            }
        }
        if told {
            // More of the same group of the store may follow.
            self.history.tell(Past::Upto(place.saturating_sub(1)));
        }
        while let Some((_, later)) = self.waiting.pop_front_if(|entry| entry.0 <= turn) {
            match later {
                Later::Message(to, message @ Message::Noted(_)) if self.has_work(to) => self.send_along(to, message),
                Later::Message(to, message) => self.send(to, message),
                Later::Reply(connection, reply) => self.push_reply(connection, reply),
                Later::Past(who) => self.tell_past(who),
            }
        }
    }
}
