//! Coordinators and what they write: one after the other, and for a while two at once.
//!
//! A coordinator's records go to the disk in groups. What must wait for them waits here. A coordinator that crashed, or
//! that another took over from, leaves what was durable; its successor gets that and nothing else.

use std::collections::VecDeque;

use filch_core::coordinator::{Coordinator, Input};
use filch_core::planted::{Mistake, makes};
use filch_core::policy::PolicyError;
use filch_core::wire::Message;
use filch_core::{Config, Record, Span, Time, WorkerId, worker};

use super::{Happening, World};
use crate::disk::Stored;
use crate::marks::Mark;
use crate::workload::NONE;

/// How long a worker may need to find a coordinator.
const SEARCH: f64 = 0.5;

/// A write under way.
struct Write {
    number: u64,
    begun: Time,
    records: Vec<Stored>,
}

/// A process that is known under an id. When it has died, what is said to it reaches nobody, whoever follows it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) worker: WorkerId,
    pub(super) node: u32,
    pub(super) life: u32,
}

/// One coordinator.
pub(super) struct Seat {
    pub(super) coordinator: Coordinator,
    pub(super) alive: bool,
    /// When its next timer stands in the calendar.
    pub(super) timer: Time,
    /// By the slot of the worker.
    node_of: Vec<Option<Place>>,
    /// In which part of the network it is; the disk is in part 0.
    pub(super) part: u32,
    /// It wants to write even if it has nothing to write.
    pub(super) renew: bool,
    pending: Vec<Stored>,
    under_way: Option<Write>,
    /// Writes begun.
    writes: u64,
    /// Messages, and the write after which they go out.
    waiting: VecDeque<(u64, WorkerId, Message)>,
}

impl Seat {
    pub(super) fn new(config: &Config, epoch: u64, stores: bool, now: Time) -> Result<Seat, PolicyError> {
        let mut coordinator = Coordinator::new(config, epoch)?;
        if stores {
            coordinator = coordinator.with_store(now);
        } else {
            coordinator.keep_records(true);
        }
        // A world counts what is recorded, and has no use for the steps in between.
        coordinator.keep_notices(false);
        Ok(Seat {
            coordinator,
            alive: true,
            timer: Time::NEVER,
            node_of: Vec::new(),
            part: 0,
            renew: false,
            pending: Vec::new(),
            under_way: None,
            writes: 0,
            waiting: VecDeque::new(),
        })
    }

    /// A worker is known under an id from now on, in this of its lives.
    pub(super) fn enter(&mut self, worker: WorkerId, node: u32, life: u32) {
        let at = worker.index();
        if at >= self.node_of.len() {
            self.node_of.resize(at + 1, None);
        }
        self.node_of[at] = Some(Place { worker, node, life });
    }

    /// Where the process is, or was, that is known under an id.
    pub(super) fn place_of(&self, worker: WorkerId) -> Option<Place> {
        self.node_of.get(worker.index()).copied().flatten().filter(|place| place.worker == worker)
    }

    /// The write after which all that was recorded so far is durable.
    fn unsynced(&self) -> Option<u64> {
        if !self.pending.is_empty() {
            return Some(self.writes + 1);
        }
        self.under_way.as_ref().map(|write| write.number)
    }
}

impl World {
    pub(super) fn leader(&self) -> &Seat {
        &self.seats[self.seats.len() - 1]
    }

    pub(super) fn leader_at(&self) -> u32 {
        self.seats.len() as u32 - 1
    }

    /// A coordinator's message goes out, now or when the disk says so.
    pub(super) fn post(&mut self, seat: u32, to: WorkerId, message: Message) {
        let found = &mut self.seats[seat as usize];
        if self.disk.is_some()
            && message.waits_for_store()
            && let Some(number) = found.unsynced()
        {
            found.waiting.push_back((number, to, message));
        } else {
            self.send(seat, to, message);
        }
    }

    /// A coordinator has something to remember.
    pub(super) fn record(&mut self, seat: u32, record: Record) {
        let (task, status, cause) = match record {
            _ if self.disk.is_some() => return self.record_for_disk(seat, record),
            Record::Submitted { payload, .. } => return self.accepted(payload as u32),
            Record::Settled { task, status, cause, .. } => (task, status, cause),
            _ => return,
        };
        if let Some(&index) = self.index_of.get(task.index())
            && index != NONE
        {
            self.settle(index, status, cause);
        }
    }

    fn record_for_disk(&mut self, seat: u32, record: Record) {
        let index = match record {
            Record::Submitted { payload, .. } => payload as u32,
            Record::Settled { task, .. } => self.index_of.get(task.index()).copied().unwrap_or(NONE),
            _ => NONE,
        };
        let (task, worker) = match record {
            Record::Submitted { .. } => (self.specs.remove(&index).map(Box::new), None),
            Record::Joined { tag, .. } => (None, Some(Box::new(self.nodes[tag as usize].spec.clone()))),
            _ => (None, None),
        };
        self.seats[seat as usize].pending.push(Stored { record, task, worker, index });
    }

    fn is_durable(&mut self, stored: &Stored) {
        match stored.record {
            Record::Submitted { .. } => self.accepted(stored.index),
            Record::Settled { status, cause, .. } if stored.index != NONE => {
                self.settle(stored.index, status, cause);
            }
            _ => {}
        }
    }

    /// Begins to write what a coordinator has recorded, unless it still writes or cannot reach the disk.
    pub(super) fn write(&mut self, seat: u32) {
        let found = &mut self.seats[seat as usize];
        let something = !found.pending.is_empty() || found.renew;
        if !found.alive || found.under_way.is_some() || !something || found.part != 0 {
            return;
        }
        found.renew = false;
        found.writes += 1;
        let number = found.writes;
        let records = std::mem::take(&mut found.pending);
        found.under_way = Some(Write { number, begun: self.now, records });
        let delay = self.setting.disk.delay(&mut self.rng);
        self.calendar.push(self.now + delay, Happening::Synced { seat, number });
    }

    pub(super) fn synced(&mut self, seat: u32, number: u64) {
        let found = &mut self.seats[seat as usize];
        let Some(write) = found.under_way.take_if(|write| write.number == number && found.alive) else { return };
        let Some(disk) = &mut self.disk else { return };
        if found.coordinator.epoch() < disk.epoch && !makes(Mistake::AcceptOldEpoch) {
            self.stop_coordinator(seat);
            return;
        }
        self.note(17, number);
        self.make_durable(&write.records);
        self.count_step(18, u64::from(seat));
        self.tell(seat, Input::Stored { begun: write.begun });
        while let Some((_, to, message)) = self.seats[seat as usize].waiting.pop_front_if(|entry| entry.0 <= number) {
            self.send(seat, to, message);
        }
        self.coordinator_stepped(seat);
    }

    fn make_durable(&mut self, records: &[Stored]) {
        for stored in records {
            if let Some(disk) = &mut self.disk {
                disk.apply(stored);
            }
            self.is_durable(stored);
        }
    }

    /// A write that was under way when its coordinator was stopped has reached the disk, or has not.
    fn decide_last_write(&mut self, seat: u32) {
        let Some(write) = self.seats[seat as usize].under_way.take() else { return };
        if self.rng.below(2) == 0 {
            self.make_durable(&write.records);
        }
    }

    /// A coordinator is no more.
    fn stop_coordinator(&mut self, seat: u32) {
        let found = &mut self.seats[seat as usize];
        found.alive = false;
        found.pending.clear();
        found.waiting.clear();
        found.under_way = None;
        // Whoever was connected to it looks for another.
        self.reconnect(|node| node.seat == seat);
    }

    fn reconnect(&mut self, which: impl Fn(&super::Node) -> bool) {
        for node in 0..self.nodes.len() as u32 {
            if which(&self.nodes[node as usize]) {
                let delay = Span::from_secs_f64(SEARCH * self.rng.unit()) + self.setting.network.latency;
                self.calendar.push(self.now + delay, Happening::Connect(node));
            }
        }
    }

    /// The coordinator crashes, and another one begins after a while.
    pub(super) fn crash_coordinator(&mut self, back_after: Span) {
        let seat = self.leader_at();
        if !self.seats[seat as usize].alive {
            return;
        }
        self.decide_last_write(seat);
        self.stop_coordinator(seat);
        self.mark(|| Mark::CoordinatorDied);
        self.calendar.push(self.now + back_after, Happening::TakeOver);
    }

    /// Another coordinator takes over while the old one lives, cut off from the disk together with some workers.
    pub(super) fn cut_coordinator(&mut self, part: u32, first: u32, count: u32, span: Span) {
        let seat = self.leader_at();
        if !self.seats[seat as usize].alive {
            return;
        }
        self.decide_last_write(seat);
        self.seats[seat as usize].part = part;
        self.cut(part, first, count, span);
        self.take_over();
    }

    pub(super) fn take_over(&mut self) {
        let Some(disk) = &mut self.disk else { return };
        disk.epoch += 1;
        let (epoch, journal) = (disk.epoch, disk.journal.clone());
        let Ok(mut seat) = Seat::new(&self.setting.config, epoch, true, self.now) else { return };
        for (worker, node) in journal.workers() {
            let known = self.seats.iter().rev().find_map(|seat| seat.place_of(worker));
            seat.enter(worker, node as u32, known.map_or(0, |place| place.life));
        }
        self.counts.takeovers += 1;
        self.note(19, epoch);
        self.mark(|| Mark::TookOver);
        let mut told = Vec::new();
        seat.coordinator.restore(self.now, journal, &mut told);
        self.seats.push(seat);
        let at = self.leader_at();
        self.carry_out(at, &mut told);
        self.coordinator_stepped(at);
        if self.watch.is_some() {
            self.watch_coordinator(at);
        }
        let before = at.saturating_sub(1);
        let cut_off = self.seats[before as usize].part;
        self.reconnect(|node| node.part != cut_off || cut_off == 0);
    }

    /// A worker connects to the latest coordinator.
    pub(super) fn connect(&mut self, node: u32) {
        let leader = self.leader_at();
        let found = &mut self.nodes[node as usize];
        if !found.alive || found.seat == leader {
            return;
        }
        if found.paused_until > self.now {
            found.missed.push(Happening::Connect(node));
            return;
        }
        found.seat = leader;
        self.count_step(20, u64::from(node));
        self.input(node, worker::Input::Connected);
    }

    /// The network is whole again: who was cut off from the disk reaches it, and its workers find the latest coordinator.
    pub(super) fn reach_disk(&mut self, part: u32) {
        let leader = self.leader_at();
        for seat in 0..self.seats.len() as u32 {
            let found = &mut self.seats[seat as usize];
            if found.part == part {
                found.part = 0;
                self.write(seat);
            }
        }
        self.reconnect(|node| node.seat != leader && node.part == 0);
    }
}
