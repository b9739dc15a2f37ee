//! Messages and timers of the world.

use filch_core::coordinator::{self, Output};
use filch_core::wire::{Message, Party};
use filch_core::worker;
use filch_core::{Action, Time, WorkerId};

use super::seats::Place;
use super::{Frame, Happening, NOBODY, Node, Parcel, Route, Sender, World};
use crate::marks::Mark;
use crate::workload::NONE;

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

    /// Puts a message into the frame that is being filled for its place, or begins one.
    fn pack(&mut self, route: Route, heartbeat: bool, message: Message) {
        self.counts.messages += 1;
        self.beats_sent += u64::from(heartbeat);
        let open = match (route.from, route.to) {
            (Sender::Coordinator, Some(node)) => {
                let open = self.lines[node as usize].open;
                // A process that has died and the one that follows it are two places.
                if open != NONE && self.frames[open as usize].route.life == route.life { open } else { NONE }
            }
            // A worker sends to few at a time.
            (from, to) => {
                let same = |at: &u32| {
                    let known = &self.frames[*at as usize].route;
                    known.to == to && known.from == from && known.life == route.life
                };
                self.open.iter().copied().find(same).unwrap_or(NONE)
            }
        };
        let at = if open != NONE {
            open
        } else {
            let at = self.begin_frame(route);
            if let (Sender::Coordinator, Some(node)) = (route.from, route.to) {
                self.lines[node as usize].open = at;
            }
            self.open.push(at);
            at
        };
        self.frames[at as usize].messages.push(Parcel { message, heartbeat });
    }

    fn begin_frame(&mut self, route: Route) -> u32 {
        match self.free_frames.pop() {
            Some(at) => {
                self.frames[at as usize].route = route;
                at
            }
            None => {
                self.frames.push(Frame { route, messages: Vec::new() });
                self.frames.len() as u32 - 1
            }
        }
    }

    /// Sends what one step has said, a frame for every place.
    #[inline]
    pub(super) fn transmit(&mut self) {
        if !self.open.is_empty() {
            self.transmit_all();
        }
    }

    fn transmit_all(&mut self) {
        for at in 0..self.open.len() {
            self.transmit_frame(self.open[at]);
        }
        self.open.clear();
    }

    fn transmit_frame(&mut self, at: u32) {
        let route = &self.frames[at as usize].route;
        if let (Sender::Coordinator, Some(node)) = (route.from, route.to) {
            self.lines[node as usize].open = NONE;
        }
        if self.steady {
            self.calendar.push(self.now + self.setting.network.latency, Happening::Deliver(at));
            return;
        }
        let route = *route;
        let from = match route.from {
            Sender::Coordinator => None,
            Sender::Worker(_, node) | Sender::Stranger(node) => Some(node),
        };
        let copies =
            if self.reaches(route.seat, from, route.to) { self.setting.network.copies(&mut self.rng) } else { 0 };
        if copies == 0 {
            self.frames[at as usize].messages.clear();
            self.free_frames.push(at);
            return;
        }
        let ordered = !self.setting.network.reordering && self.setting.network.varies();
        for copy in 0..copies {
            let mut due = self.now + self.setting.network.delay(&mut self.rng);
            if ordered {
                let latest = match (from, route.to) {
                    (None, Some(node)) => &mut self.nodes[node as usize].latest.0,
                    (Some(node), None) => &mut self.nodes[node as usize].latest.1,
                    (from, to) => self.latest.entry((from.unwrap_or(0), to.unwrap_or(0))).or_insert(Time::ZERO),
                };
                *latest = (*latest).max(due);
                due = *latest;
            }
            let place = if copy == 0 {
                at
            } else {
                let place = self.begin_frame(route);
                self.frames[place as usize].messages = self.frames[at as usize].messages.clone();
                place
            };
            self.calendar.push(due, Happening::Deliver(place));
        }
    }

    /// Whether what somebody sends reaches somebody else; none is the coordinator.
    fn reaches(&self, seat: u32, from: Option<u32>, to: Option<u32>) -> bool {
        let seat = self.seats[seat as usize].part;
        let part = |node: Option<u32>| node.map_or(seat, |node| self.nodes[node as usize].part);
        let is_mute = from.is_some_and(|node| self.nodes[node as usize].mute != 0);
        let is_deaf = to.is_some_and(|node| self.nodes[node as usize].deaf != 0);
        part(from) == part(to) && !is_mute && !is_deaf
    }

    pub(super) fn deliver(&mut self, at: u32) {
        let Route { to, seat, life, from, .. } = self.frames[at as usize].route;
        if let Some(node) = to
            && self.nodes[node as usize].paused_until > self.now
        {
            self.nodes[node as usize].missed.push(Happening::Deliver(at));
            return;
        }
        if let (Some(node), Sender::Worker(_, asker)) = (to, from)
            && self.lines[node as usize].life != life
        {
            // The machine is there and the process is not: it refuses, unless that is lost on its way back.
            self.frames[at as usize].messages.clear();
            if self.reaches(seat, to, Some(asker)) {
                let due = self.now + self.setting.network.delay(&mut self.rng);
                self.calendar.push(due, Happening::Refused(at));
            } else {
                self.free_frames.push(at);
            }
            return;
        }
        let mut messages = std::mem::take(&mut self.frames[at as usize].messages);
        self.unpack(to, seat, life, from, &mut messages);
        // Its memory serves the next frame.
        messages.clear();
        self.frames[at as usize].messages = messages;
        self.free_frames.push(at);
    }

    /// A worker hears that a peer is not there any more.
    pub(super) fn refused(&mut self, at: u32) {
        let Route { from, peer, .. } = self.frames[at as usize].route;
        let Sender::Worker(asker, node) = from else { return };
        if self.nodes[node as usize].paused_until > self.now {
            self.nodes[node as usize].missed.push(Happening::Refused(at));
            return;
        }
        self.free_frames.push(at);
        // Whoever follows a process that has died did not ask.
        if self.nodes[node as usize].machine.id() == Some(asker) {
            self.count_step(23, u64::from(node));
            self.input(node, worker::Input::Unreachable(peer));
        }
    }

    /// The messages of a frame, one after the other; what they are answered goes out when all have been heard.
    fn unpack(&mut self, to: Option<u32>, seat: u32, life: u32, from: Sender, messages: &mut Vec<Parcel>) {
        let whose = match (to, from) {
            (Some(node), _) | (None, Sender::Worker(_, node) | Sender::Stranger(node)) => node,
            (None, Sender::Coordinator) => return,
        };
        // Connections end with the process at either end.
        if self.lines[whose as usize].life != life || to.is_none() && !self.seats[seat as usize].alive {
            return;
        }
        let beats = messages.iter().filter(|parcel| parcel.heartbeat).count() as u64;
        self.counts.heartbeats += beats;
        self.counts.events += 2 * (messages.len() as u64 - beats);
        self.note(8, u64::from(whose) << 32 | (messages.len() as u64) << 8 | u64::from(to.is_none()));
        let Some(node) = to else {
            for Parcel { message, heartbeat } in messages.drain(..) {
                let input = match (message, from) {
                    (Message::Hello(hello), _) => coordinator::Input::Hello(hello),
                    (message, Sender::Worker(from, _)) => coordinator::Input::Message { from, message },
                    _ => continue,
                };
                self.answers_beat = heartbeat;
                self.step_coordinator(seat, input);
            }
            self.answers_beat = false;
            self.coordinator_stepped(seat);
            return;
        };
        if !self.nodes[node as usize].alive {
            return;
        }
        let epoch = self.seats[seat as usize].coordinator.epoch();
        for Parcel { message, .. } in messages.drain(..) {
            let input = match from {
                Sender::Worker(peer, _) => worker::Input::Message { from: peer, message },
                _ => worker::Input::Told { epoch, message },
            };
            self.step_worker(node, input);
        }
        self.worker_stepped(node);
    }

    // ---- the machines ----

    /// Hands something to a coordinator and does what it wants.
    pub(super) fn tell(&mut self, seat: u32, input: coordinator::Input) {
        self.step_coordinator(seat, input);
        self.coordinator_stepped(seat);
    }

    fn step_coordinator(&mut self, seat: u32, input: coordinator::Input) {
        // What the disk confirms changes nothing in the scheduler.
        let looked_at = self.watch.is_some() && !matches!(input, coordinator::Input::Stored { .. });
        self.seats[seat as usize].coordinator.step(self.now, input, &mut self.told);
        if !self.told.is_empty() {
            let mut told = std::mem::take(&mut self.told);
            self.carry_out(seat, &mut told);
            self.told = told;
        }
        if looked_at {
            self.watch_coordinator(seat);
        }
    }

    pub(super) fn carry_out(&mut self, seat: u32, told: &mut Vec<Output>) {
        for output in told.drain(..) {
            match output {
                Output::Joined { tag, worker } => {
                    let life = self.lines[tag as usize].life;
                    self.seats[seat as usize].enter(worker, tag as u32, life);
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
    }

    /// A coordinator has done what there was to do for now: what it said and recorded goes out.
    pub(super) fn coordinator_stepped(&mut self, seat: u32) {
        if self.disk.is_some() {
            self.write(seat);
        }
        self.transmit();
        self.set_coordinator_timer(seat);
    }

    /// A coordinator's message goes out now, with whatever else it says in this step.
    pub(super) fn send(&mut self, seat: u32, to: WorkerId, message: Message) {
        let Some(Place { node, life, .. }) = self.seats[seat as usize].place_of(to) else { return };
        let heartbeat = is_heartbeat(&message, self.answers_beat);
        let route = Route { to: Some(node), seat, life, from: Sender::Coordinator, peer: NOBODY };
        self.pack(route, heartbeat, message);
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
        self.seats[seat as usize].place_of(worker).map(|place| place.node)
    }

    /// Hands something to a worker and does what it wants.
    pub(super) fn input(&mut self, node: u32, input: worker::Input) {
        if self.nodes[node as usize].alive {
            self.step_worker(node, input);
            self.worker_stepped(node);
        }
    }

    /// A worker has done what there was to do for now: what it said goes out.
    fn worker_stepped(&mut self, node: u32) {
        self.transmit();
        self.set_timer(node);
    }

    fn step_worker(&mut self, node: u32, input: worker::Input) {
        let stepped = &mut self.nodes[node as usize];
        stepped.machine.step(stepped.clock.shows(self.now), input, &mut self.outputs);
        if self.outputs.is_empty() {
            return;
        }
        let (life, seat) = (stepped.life, stepped.seat);
        let from = match stepped.machine.id() {
            Some(id) => Sender::Worker(id, node),
            None => Sender::Stranger(node),
        };
        let mut outputs = std::mem::take(&mut self.outputs);
        for output in outputs.drain(..) {
            match output {
                worker::Output::Send { to: Party::Coordinator, message } => {
                    let heartbeat = is_heartbeat(&message, false);
                    self.pack(Route { to: None, seat, life, from, peer: NOBODY }, heartbeat, message);
                }
                worker::Output::Send { to: Party::Worker(peer), message } => {
                    let place = self.seats[seat as usize].place_of(peer);
                    let (to, life) = place.map_or((None, 0), |place| (Some(place.node), place.life));
                    let route = Route { to, seat, life, from, peer };
                    if to.is_some() {
                        self.pack(route, false, message);
                    } else {
                        // Nobody knows where it was.
                        let at = self.begin_frame(route);
                        self.calendar.push(self.now + self.setting.network.latency, Happening::Refused(at));
                    }
                }
                worker::Output::Run(order) => self.begin(node, &order),
                worker::Output::Stop { held, cause } => self.stop(node, held, cause),
            }
        }
        self.outputs = outputs;
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
