//! A coordinator for tests: the real machine behind a real door, and everything else in one lock.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use bytes::Bytes;
use filch_core::coordinator::{Coordinator, Input, Output};
use filch_core::wire::talk::{
    Answer, Body, Ending, Input as ElementInput, Look, Packet, Peer, Relay, Role, Steals, Work, WorkerCard,
};
use filch_core::wire::{Message, VERSION};
use filch_core::{Action, Config, Event, Record, Status, TaskId, TaskSpec, WorkerChange, WorkerId};
use prost::Message as _;
use rustc_hash::FxHashMap;
use tokio::net::TcpListener;

use crate::access::Access;
use crate::clock::Clock;
use crate::door::Door;
use crate::link::{Arrival, Outgoing, Parcel, attach};

const TOKEN: Bytes = Bytes::from_static(b"a token for tests");

pub(super) struct House {
    address: String,
    inner: Arc<Mutex<Inner>>,
}

struct Inner {
    machine: Coordinator,
    clock: Clock,
    config: String,
    lines: FxHashMap<u64, (Outgoing, WorkerCard)>,
    seats: FxHashMap<WorkerId, (u64, WorkerCard)>,
    works: FxHashMap<u64, (Bytes, bool)>,
    inputs: FxHashMap<u64, Vec<Bytes>>,
    payloads: FxHashMap<TaskId, u64>,
    endings: FxHashMap<u64, Ending>,
    settled: Vec<(u64, Status)>,
    chunks: Vec<(u64, bool, Bytes)>,
    connections: u64,
    welcomed: u64,
    stolen: u64,
    began: u64,
    steals: FxHashMap<u64, Steals>,
    next: u64,
}

impl House {
    pub(super) async fn open(yaml: &str) -> House {
        House::open_in_life(yaml, 1).await
    }

    pub(super) async fn open_in_life(yaml: &str, epoch: u64) -> House {
        let config = Config::from_yaml(yaml, "test").unwrap().config;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let mut machine = Coordinator::new(&config, epoch).unwrap();
        machine.keep_records(true);
        let inner = Arc::new(Mutex::new(Inner {
            machine,
            clock: Clock::new(),
            config: yaml.to_owned(),
            lines: FxHashMap::default(),
            seats: FxHashMap::default(),
            works: FxHashMap::default(),
            inputs: FxHashMap::default(),
            payloads: FxHashMap::default(),
            endings: FxHashMap::default(),
            settled: Vec::new(),
            chunks: Vec::new(),
            connections: 0,
            welcomed: 0,
            stolen: 0,
            began: 0,
            steals: FxHashMap::default(),
            next: 0,
        }));
        let door = Arc::new(Door::new(None, TOKEN));
        tokio::spawn(accept(listener, door, Arc::clone(&inner)));
        let weak = Arc::downgrade(&inner);
        tokio::spawn(async move {
            while let Some(inner) = weak.upgrade() {
                inner.lock().unwrap().put(Input::Tick);
                drop(inner);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        House { address, inner }
    }

    pub(super) fn access(&self) -> Access {
        Access { addresses: vec![self.address.clone()], pin: None, token: TOKEN }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }

    /// Submits a single task; its handle.
    pub(super) fn submit(&self, work: &Work, spec: TaskSpec) -> u64 {
        let mut inner = self.lock();
        let payload = inner.keep(work, false);
        inner.put(Input::Event(Event::Submit(Box::new(TaskSpec { payload, ..spec }))));
        payload
    }

    pub(super) fn submit_array(&self, work: &Work, count: u32, inputs: Vec<Bytes>) -> u64 {
        let mut inner = self.lock();
        let payload = inner.keep(work, true);
        inner.inputs.insert(payload, inputs);
        let template = Box::new(TaskSpec { payload, ..TaskSpec::default() });
        inner.put(Input::Event(Event::SubmitArray { template, count }));
        payload
    }

    /// Waits until something is so.
    pub(super) async fn until(&self, what: &str, is_so: impl Fn(&House) -> bool) {
        let began = Instant::now();
        while !is_so(self) {
            assert!(began.elapsed() < Duration::from_secs(20), "waited in vain until {what}: {}", self.state());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Everything that may explain why something does not come.
    pub(super) fn state(&self) -> String {
        let inner = self.lock();
        let scheduler = inner.machine.scheduler();
        let workers: Vec<_> = inner.seats.keys().map(|worker| scheduler.worker(*worker)).collect();
        let (settled, lines, steals) = (inner.settled.len(), inner.lines.len(), &inner.steals);
        format!("{settled} settled, {lines} lines, {steals:?}, workers {workers:?}")
    }

    pub(super) async fn settled(&self, count: usize) {
        self.until("all are settled", |house| house.lock().settled.len() >= count).await;
        assert_eq!(self.lock().settled.len(), count);
    }

    pub(super) fn count(&self, status: Status) -> usize {
        self.lock().settled.iter().filter(|entry| entry.1 == status).count()
    }

    pub(super) fn status(&self, payload: u64) -> Option<Status> {
        self.lock().settled.iter().find(|entry| entry.0 == payload).map(|entry| entry.1)
    }

    pub(super) fn ending(&self, payload: u64) -> Option<Ending> {
        self.endings_of(payload).pop()
    }

    pub(super) fn endings_of(&self, payload: u64) -> Vec<Ending> {
        let inner = self.lock();
        let of = |ending: &&Ending| inner.payloads.get(&TaskId::from_bits(ending.task)) == Some(&payload);
        inner.endings.values().filter(of).cloned().collect()
    }

    /// How often a worker said that it began something.
    pub(super) fn began(&self) -> u64 {
        self.lock().began
    }

    pub(super) fn worker(&self, name: &str) -> Option<WorkerId> {
        self.lock().seats.iter().find(|(_, seat)| seat.1.name == name).map(|(worker, _)| *worker)
    }

    pub(super) fn connections(&self) -> u64 {
        self.lock().connections
    }

    pub(super) fn welcomed(&self) -> u64 {
        self.lock().welcomed
    }

    pub(super) fn cut_all(&self) {
        self.lock().lines.clear();
    }

    pub(super) fn stolen(&self) -> u64 {
        self.lock().stolen
    }

    pub(super) fn relayed(&self) -> u64 {
        self.lock().steals.values().map(|steals| steals.relayed).sum()
    }

    pub(super) fn look(&self, payload: u64) {
        let inner = self.lock();
        let task = inner.payloads.iter().find(|entry| *entry.1 == payload).map(|entry| entry.0.to_bits()).unwrap();
        for (out, _) in inner.lines.values() {
            out.send(Parcel::of(Packet { looks: vec![Look { task, stop: false }], ..Packet::default() }));
        }
    }

    pub(super) fn shown(&self, payload: u64, stderr: bool) -> String {
        let inner = self.lock();
        let of = |chunk: &&(u64, bool, Bytes)| {
            inner.payloads.get(&TaskId::from_bits(chunk.0)) == Some(&payload) && chunk.1 == stderr
        };
        let bytes: Vec<u8> = inner.chunks.iter().filter(of).flat_map(|chunk| chunk.2.to_vec()).collect();
        String::from_utf8(bytes).unwrap()
    }
}

async fn accept(listener: TcpListener, door: Arc<Door>, inner: Arc<Mutex<Inner>>) {
    while let Ok((socket, _)) = listener.accept().await {
        let (door, inner) = (Arc::clone(&door), Arc::clone(&inner));
        tokio::spawn(async move {
            let Ok(admitted) = door.admit(socket).await else { return };
            let Some(Role::Worker(card)) = admitted.opening.role.clone() else { return };
            let (tag, config, epoch) = {
                let mut inner = inner.lock().unwrap();
                inner.next += 1;
                (inner.next, inner.config.clone(), inner.machine.epoch())
            };
            let answer = Answer { version: VERSION, epoch, config, tag, ..Answer::default() };
            let Ok((reader, writer, rest)) = admitted.answer(answer).await else { return };
            let heard = Arc::downgrade(&inner);
            // Nothing of this one is looked at before it is entered.
            let mut entering = inner.lock().unwrap();
            let out = attach(reader, writer, rest, move |arrival| {
                let Some(inner) = heard.upgrade() else { return false };
                let mut inner = inner.lock().unwrap();
                inner.arrived(tag, arrival);
                inner.lines.contains_key(&tag)
            });
            entering.connections += 1;
            entering.lines.insert(tag, (out, card));
        });
    }
}

impl Inner {
    fn keep(&mut self, work: &Work, shared: bool) -> u64 {
        self.next += 1;
        self.works.insert(self.next, (work.encode_to_vec().into(), shared));
        self.next
    }

    fn arrived(&mut self, tag: u64, arrival: Arrival) {
        let Arrival::Parcel(parcel) = arrival else {
            self.lines.remove(&tag);
            return;
        };
        let Some((_, card)) = self.lines.get(&tag) else { return };
        let card = card.clone();
        let from = self.seats.iter().find(|(_, seat)| seat.0 == tag).map(|(worker, _)| *worker);
        let Parcel { messages, packet, .. } = *parcel;
        self.endings.extend(packet.endings.into_iter().map(|ending| (ending.task, ending)));
        self.chunks.extend(packet.chunks.into_iter().map(|chunk| (chunk.task, chunk.stderr, chunk.bytes)));
        if let Some(steals) = packet.steals {
            self.steals.insert(tag, *steals);
        }
        for message in messages {
            match (message, from) {
                (Message::Hello(mut hello), _) => {
                    hello.spec.tag = tag;
                    hello.spec.slots = card.slots;
                    self.put(Input::Hello(hello));
                }
                (message, Some(from)) => {
                    self.began += u64::from(matches!(message, Message::Began(_)));
                    self.stolen += u64::from(matches!(message, Message::Moved { to, .. } if to == from));
                    self.put(Input::Message { from, message });
                }
                _ => {}
            }
        }
        let Some(from) = from else { return };
        if packet.drain {
            let change = WorkerChange { draining: Some(true), ..WorkerChange::default() };
            self.put(Input::Event(Event::Change { worker: from, change }));
        }
        for relay in packet.relays {
            let relays = vec![Relay { worker: from.to_bits(), packet: relay.packet }];
            self.send(WorkerId::from_bits(relay.worker), Vec::new(), Packet { relays, ..Packet::default() });
        }
    }

    fn put(&mut self, input: Input) {
        let mut outputs = Vec::new();
        self.machine.step(self.clock.now(), input, &mut outputs);
        for output in outputs {
            match output {
                Output::Joined { tag, worker } => {
                    if let Some((_, card)) = self.lines.get(&tag) {
                        self.welcomed += 1;
                        self.seats.insert(worker, (tag, card.clone()));
                    }
                }
                Output::Send { to, message } => self.tell(to, message),
                Output::Action(Action::Persist(Record::Settled { task, status, .. })) => {
                    let payload = self.payloads.get(&task).copied().unwrap_or(0);
                    self.settled.push((payload, status));
                }
                Output::Action(Action::Accepted { task, payload } | Action::Element { task, payload, .. }) => {
                    self.payloads.insert(task, payload);
                }
                _ => {}
            }
        }
    }

    fn tell(&mut self, to: WorkerId, message: Message) {
        let mut packet = Packet::default();
        match &message {
            Message::Hand { orders, .. } => {
                for order in orders {
                    self.began += u64::from(order.begins);
                    let (work, shared) = self.works[&order.payload].clone();
                    packet.bodies.push(Body { handle: order.payload, work, shared });
                    let input = self.inputs.get(&order.payload).and_then(|all| all.get(order.index as usize));
                    let (handle, index) = (order.payload, order.index);
                    packet.inputs.extend(input.map(|bytes| ElementInput {
                        handle,
                        index,
                        bytes: bytes.clone(),
                        ..ElementInput::default()
                    }));
                }
            }
            Message::Digest(peers) => {
                for peer in peers {
                    if let Some((_, card)) = self.seats.get(&peer.worker) {
                        packet.peers.push(Peer {
                            worker: peer.worker.to_bits(),
                            address: card.address.clone(),
                            pin: card.pin.clone(),
                            token: card.peer_token.clone(),
                            local: card.local.clone(),
                        });
                    }
                }
            }
            _ => {}
        }
        self.send(to, vec![message], packet);
    }

    fn send(&mut self, to: WorkerId, messages: Vec<Message>, packet: Packet) {
        let line = self.seats.get(&to).and_then(|seat| self.lines.get(&seat.0));
        if let Some((out, _)) = line {
            let mut parcel = Parcel::of(packet);
            (parcel.messages, parcel.epoch) = (messages, self.machine.epoch());
            out.send(parcel);
        }
    }
}
