//! Messages and timers of the world.

use filch_core::coordinator::{self, Output};
use filch_core::wire::{Message, Party};
use filch_core::worker;
use filch_core::{Action, Time, WorkerId};

use super::{Happening, Node, Packet, Sender, World};
use crate::marks::Mark;

/// Whether a message is a sign of life and nothing else. `answers` says whether a beat is being answered.
fn is_heartbeat(message: &Message, answers: bool) -> bool {
    matches!(message, Message::Beat(_)) || answers && matches!(message, Message::Heard { .. })
}

impl World {
    pub(super) fn count_step(&mut self, kind: u64, value: u64) {
        self.counts.events += 1;
        self.note(kind, value);
    }

    // ---- the network ----

    fn transmit(&mut self, packet: Packet) {
        self.counts.messages += 1;
        self.beats_sent += u64::from(packet.heartbeat);
        let seat = self.seats[packet.seat as usize].part;
        let part = |node: Option<u32>| node.map_or(seat, |node| self.nodes[node as usize].part);
        let from = match packet.from {
            Sender::Coordinator => None,
            Sender::Worker(_, node) | Sender::Stranger(node) => Some(node),
        };
        if part(from) != part(packet.to) {
            return;
        }
        let copies = self.setting.network.copies(&mut self.rng);
        let ordered = !self.setting.network.reordering && self.setting.network.varies();
        let mut packet = Some(packet);
        for copy in (0..copies).rev() {
            let mut at = self.now + self.setting.network.delay(&mut self.rng);
            let Some(this) = (if copy == 0 { packet.take() } else { packet.clone() }) else { return };
            if ordered {
                let latest = match (from, this.to) {
                    (None, Some(node)) => &mut self.nodes[node as usize].latest.0,
                    (Some(node), None) => &mut self.nodes[node as usize].latest.1,
                    (from, to) => self.latest.entry((from.unwrap_or(0), to.unwrap_or(0))).or_insert(Time::ZERO),
                };
                *latest = (*latest).max(at);
                at = *latest;
            }
            let place = self.put(this);
            self.calendar.push(at, Happening::Deliver(place));
        }
    }

    fn put(&mut self, packet: Packet) -> u32 {
        match self.free_packets.pop() {
            Some(at) => {
                self.packets[at as usize] = Some(packet);
                at
            }
            None => {
                self.packets.push(Some(packet));
                self.packets.len() as u32 - 1
            }
        }
    }

    pub(super) fn deliver(&mut self, at: u32) {
        let paused = |world: &World, packet: &Packet| {
            packet.to.is_some_and(|node| world.nodes[node as usize].paused_until > world.now)
        };
        let Some(packet) = self.packets[at as usize].as_ref() else { return };
        if paused(self, packet)
            && let Some(node) = packet.to
        {
            self.nodes[node as usize].missed.push(Happening::Deliver(at));
            return;
        }
        let Some(Packet { to, seat, life, from, heartbeat, message }) = self.packets[at as usize].take() else {
            return;
        };
        self.free_packets.push(at);
        let whose = match (to, from) {
            (Some(node), _) | (None, Sender::Worker(_, node) | Sender::Stranger(node)) => node,
            (None, Sender::Coordinator) => return,
        };
        // Connections end with the process at either end.
        if self.nodes[whose as usize].life != life || to.is_none() && !self.seats[seat as usize].alive {
            return;
        }
        self.counts.heartbeats += u64::from(heartbeat);
        if !heartbeat {
            self.counts.events += 2;
        }
        self.note(8, u64::from(whose) << 8 | u64::from(to.is_none()));
        match (to, from) {
            (None, Sender::Stranger(_) | Sender::Worker(..)) => {
                let input = match (message, from) {
                    (Message::Hello(hello), _) => coordinator::Input::Hello(hello),
                    (message, Sender::Worker(from, _)) => coordinator::Input::Message { from, message },
                    _ => return,
                };
                self.answers_beat = heartbeat;
                self.tell(seat, input);
                self.answers_beat = false;
            }
            (Some(node), Sender::Worker(peer, _)) => {
                self.input(node, worker::Input::Message { from: peer, message });
            }
            (Some(node), _) => {
                let epoch = self.seats[seat as usize].coordinator.epoch();
                self.input(node, worker::Input::Told { epoch, message });
            }
            (None, Sender::Coordinator) => {}
        }
    }

    // ---- the machines ----

    /// Hands something to a coordinator and does what it wants.
    pub(super) fn tell(&mut self, seat: u32, input: coordinator::Input) {
        let mut told = std::mem::take(&mut self.told);
        // What the disk confirms changes nothing in the scheduler.
        let looked_at = self.watch.is_some() && !matches!(input, coordinator::Input::Stored { .. });
        self.seats[seat as usize].coordinator.step(self.now, input, &mut told);
        self.carry_out(seat, &mut told);
        self.told = told;
        if looked_at {
            self.watch_coordinator(seat);
        }
    }

    pub(super) fn carry_out(&mut self, seat: u32, told: &mut Vec<Output>) {
        for output in told.drain(..) {
            match output {
                Output::Joined { tag, worker } => {
                    self.seats[seat as usize].enter(worker, tag as u32);
                    self.joined += 1;
                    if self.joined == self.nodes.len() as u32 {
                        // Once the last of them has heard that it is welcome.
                        let heard = self.now + self.setting.network.latency + self.setting.network.latency;
                        self.calendar.push(heard, Happening::Open);
                    }
                    self.mark(|| Mark::Joined { node: tag as u32 });
                }
                Output::Send { to, message } => self.post(seat, to, message),
                Output::Renew => self.seats[seat as usize].renew = true,
                Output::Action(action) => self.act(seat, action),
            }
        }
        if self.disk.is_some() {
            self.write(seat);
        }
        self.set_coordinator_timer(seat);
    }

    /// A coordinator's message goes out now.
    pub(super) fn send(&mut self, seat: u32, to: WorkerId, message: Message) {
        let Some(node) = self.node_behind(seat, to) else { return };
        let life = self.nodes[node as usize].life;
        let heartbeat = is_heartbeat(&message, self.answers_beat);
        self.transmit(Packet { to: Some(node), seat, life, from: Sender::Coordinator, heartbeat, message });
    }

    fn act(&mut self, seat: u32, action: Action) {
        match action {
            Action::Accepted { task, payload } => {
                let at = task.index();
                if at >= self.index_of.len() {
                    self.index_of.resize(at + 1, u32::MAX);
                }
                self.index_of[at] = payload as u32;
                self.ids[payload as usize] = task;
            }
            Action::Persist(record) => self.record(seat, record),
            Action::Move { task, from, to } => {
                self.counts.moved += 1;
                self.note(9, task.to_bits());
                if self.marks.is_some()
                    && let (Some(&index), Some(from), Some(to)) =
                        (self.index_of.get(task.index()), self.node_behind(seat, from), self.node_behind(seat, to))
                {
                    self.mark(|| Mark::Moved { task: index, from, to });
                }
            }
            _ => {}
        }
    }

    fn node_behind(&self, seat: u32, worker: WorkerId) -> Option<u32> {
        let (known, node) = (*self.seats[seat as usize].node_of.get(worker.index())?)?;
        (known == worker).then_some(node)
    }

    /// Hands something to a worker and does what it wants.
    pub(super) fn input(&mut self, node: u32, input: worker::Input) {
        let at = node as usize;
        if !self.nodes[at].alive {
            return;
        }
        let mut outputs = std::mem::take(&mut self.outputs);
        let now = self.nodes[at].clock.shows(self.now);
        self.nodes[at].machine.step(now, input, &mut outputs);
        let (life, seat) = (self.nodes[at].life, self.nodes[at].seat);
        let from = match self.nodes[at].machine.id() {
            Some(id) => Sender::Worker(id, node),
            None => Sender::Stranger(node),
        };
        for output in outputs.drain(..) {
            match output {
                worker::Output::Send { to: Party::Coordinator, message } => {
                    let heartbeat = is_heartbeat(&message, false);
                    self.transmit(Packet { to: None, seat, life, from, heartbeat, message });
                }
                worker::Output::Send { to: Party::Worker(peer), message } => {
                    // Who is not there any more cannot be reached; a real driver would say so after a while.
                    let Some(other) = self.node_behind(seat, peer) else { continue };
                    let life = self.nodes[other as usize].life;
                    self.transmit(Packet { to: Some(other), seat, life, from, heartbeat: false, message });
                }
                worker::Output::Run(order) => self.begin(node, &order),
                worker::Output::Stop { held, cause } => self.stop(node, held, cause),
            }
        }
        self.outputs = outputs;
        self.set_timer(node);
    }

    // ---- timers ----

    pub(super) fn set_timer(&mut self, node: u32) {
        let Node { machine, clock, timer, .. } = &mut self.nodes[node as usize];
        let Some(at) = machine.next_timer() else { return };
        let at = clock.when(at).max(self.now);
        // An entry that comes too early does nothing but put in another.
        if at < *timer {
            *timer = at;
            self.calendar.push(at, Happening::Timer(node));
        }
    }

    pub(super) fn timer(&mut self, node: u32) {
        let at = node as usize;
        if self.nodes[at].timer > self.now {
            return;
        }
        if self.nodes[at].paused_until > self.now {
            self.nodes[at].missed.push(Happening::Timer(node));
            return;
        }
        self.nodes[at].timer = Time::NEVER;
        let clock = self.nodes[at].clock;
        if self.nodes[at].machine.next_timer().is_some_and(|due| clock.when(due) <= self.now) {
            let before = (self.counts.messages, self.beats_sent);
            self.note(10, u64::from(node));
            self.input(node, worker::Input::Tick);
            // A tick that does nothing but send a beat is a heartbeat.
            let sent = (self.counts.messages - before.0, self.beats_sent - before.1);
            if sent == (1, 1) {
                self.counts.heartbeats += 1;
            } else {
                self.counts.events += 1;
            }
        } else {
            self.set_timer(node);
        }
    }

    pub(super) fn set_coordinator_timer(&mut self, seat: u32) {
        let found = &mut self.seats[seat as usize];
        if let Some(at) = found.coordinator.next_timer() {
            let at = at.max(self.now);
            if at < found.timer {
                found.timer = at;
                self.calendar.push(at, Happening::CoordinatorTimer(seat));
            }
        }
    }

    pub(super) fn set_next_arrival(&mut self) {
        let next = self.first_arrival();
        if next < Time::NEVER {
            self.calendar.push(next, Happening::Arrive);
        }
    }
}
