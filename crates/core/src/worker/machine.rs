//! The worker machine: its queue and slots, what it tells the coordinator, and how it steals from its peers.
//!
//! Pure like the scheduler: messages and ends of runs come in, messages and orders to run or stop go out. Never decides
//! whom to rob or what may be taken: these rules are in [`crate::steal`]. Never raises an attempt; raises the hop of what
//! it offers. An offer is kept until it is accepted or the coordinator has ruled; it is never taken back.

mod devices;
mod peers;
mod reports;

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;

use smallvec::SmallVec;

use super::holdings::Holdings;
use super::lease::{beat_every, fence_after};
use super::recent::Recent;
use super::registry::Registry;
use super::taken::Taken;
use super::unnoted::Unnoted;
use super::{LoadReport, WorkerSpec};
use crate::config::{Bind, Config, Stealing};
use crate::event::{End, Held};
use crate::ids::{TaskId, WorkerId};
use crate::planted::{Mistake, makes};
use crate::resources::Vector;
use crate::rng::Rng;
use crate::scheduler::sorted::Sorted;
use crate::scheduler::{DeviceSet, Devices};
use crate::steal::{self, Guard, StealOutcome, StealStats, StealTelemetry, VictimChooser};
use crate::task::Cause;
use crate::time::{Span, Time, Work};
use crate::wire::{Beat, Hello, Message, Order, Party, fingerprint};

/// Attempts remembered after they are gone, so that a message that comes twice does nothing twice.
const REMEMBERED: usize = 1024;
/// Weight of the newest observation in the averages of durations and round trips.
const NEWEST: f64 = 0.2;
/// Peers whose steals are counted apart, if that is wanted: those asked last.
const PEERS_KEPT: usize = 16;
/// The share of its time that a slot may wait for the next task rather than have it ahead of need.
const HARDLY: f64 = 0.01;
/// Tasks asked for ahead of need at the most, for each slot.
const MOST_AHEAD: u32 = 64;

/// What can happen to a worker.
#[derive(Clone, Debug)]
pub enum Input {
    /// It can reach a coordinator, for the first time or again, perhaps another one.
    Connected,
    /// A message of a coordinator has come.
    Told {
        /// Which life of the coordinator it is from. Those of earlier lives than the one that welcomed the worker count no
        /// more.
        epoch: u64,
        /// What.
        message: Message,
    },
    /// A message of a peer has come.
    Message {
        /// From whom.
        from: WorkerId,
        /// What.
        message: Message,
    },
    /// A peer could not be reached.
    Unreachable(WorkerId),
    /// What was run has ended; of one that was stopped this is said too.
    Ended {
        /// Which task.
        task: TaskId,
        /// Which attempt.
        attempt: u32,
        /// How.
        end: End,
    },
    /// The load of its machine.
    Load(LoadReport),
    /// It is to finish what runs and give back the rest.
    Drain,
    /// Time has passed.
    Tick,
}

/// What a worker wants done.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Send a message.
    Send {
        /// To whom.
        to: Party,
        /// What.
        message: Message,
    },
    /// Run this.
    Run(Arc<Order>),
    /// Stop this.
    Stop {
        /// What.
        held: Held,
        /// Why.
        cause: Cause,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Queued,
    Running,
    /// Told to stop.
    Stopping,
    /// Offered to a thief that has not answered.
    Offered,
}

#[derive(Clone, Debug)]
struct Entry {
    /// Shared with whoever runs it.
    order: Arc<Order>,
    place: Place,
    /// When it came to its place.
    since: Time,
    /// Whether the coordinator was told that it runs.
    told: bool,
}

/// Highest level first, then as inside a level.
type QueueKey = (u8, (u64, u32, u64), TaskId);

fn queue_key(order: &Order) -> QueueKey {
    (u8::MAX - order.level, (order.deadline.0, order.rank, order.sequence), order.held.task)
}

#[derive(Clone, Debug)]
enum Thief {
    /// Has work, or waits for the coordinator.
    Content,
    Asked {
        request: u64,
        victim: WorkerId,
        sent: Time,
    },
    /// Got no answer and asks somebody else then.
    Retry {
        until: Time,
    },
    /// Found nothing and tries again then, at the latest: never, if it knows nobody to ask.
    Pause {
        until: Time,
    },
}

/// The worker machine. What almost every step looks at lies together: with very many workers in one process a step costs
/// as much as what it must get from memory.
#[repr(C)]
pub struct WorkerMachine {
    now: Time,
    /// The earliest of all its timers.
    due: Time,
    id: Option<WorkerId>,
    thief: Thief,
    queue: Sorted<QueueKey>,
    running: SmallVec<[TaskId; 4]>,
    held: Holdings<Entry>,
    reserved: Vector,
    queued_work: Work,
    fingerprint: u64,
    unnoted: Unnoted,
    duration_s: Option<f64>,
    round_trip_s: f64,
    seen: u64,
    /// The life of the coordinator that welcomed it.
    epoch: u64,
    /// When the latest was sent that the coordinator says it has heard.
    heard: Time,
    beat_at: Option<Time>,
    hello_at: Option<Time>,
    /// When it first introduced itself.
    born: Option<Time>,
    /// Ends and moves that the coordinator was not told of yet, how many run that it was not told of, whether somebody may wait for
    /// one of those ends, and when it is told at the latest.
    reports: Vec<Message>,
    untold: u32,
    awaited: bool,
    report_at: Time,
    /// Whether the end of what last ended well could wait.
    patient: bool,
    /// How many tasks it likes to have, and what it last said of that.
    wish: u32,
    said: u32,
    failures: u32,
    late: bool,
    steals: bool,
    draining: bool,
    fenced: bool,
    nothing_central: bool,
    recent_first: bool,
    capacity: Vector,
    spec: WorkerSpec,
    peers: Registry,
    taken: Taken,
    /// Attempts it said it does not have: should they still come, they are too late.
    refused: Recent<(TaskId, u32), ()>,
    /// When attempts have run too long.
    timeouts: Sorted<(Time, TaskId)>,
    /// Offers by when to ask whose they are.
    offers: Sorted<(Time, TaskId)>,
    lease: Span,
    reserve_after: Span,
    stealing: Stealing,
    guard: Guard,
    chooser: VictimChooser,
    rng: Rng,
    load: LoadReport,
    offered: BTreeMap<TaskId, (Held, WorkerId, Time)>,
    denied: Recent<Held, ()>,
    passed_on: Recent<TaskId, (Held, WorkerId)>,
    tried: SmallVec<[WorkerId; 8]>,
    requests: u64,
    /// How far its accelerators are in use, and by whom.
    devices: Devices,
    given: BTreeMap<TaskId, DeviceSet>,
    /// What it counted of its steals, all together.
    steal_stats: StealStats,
    /// The same by peer, for who wants to know.
    by_peer: Option<Box<StealTelemetry>>,
}

impl WorkerMachine {
    /// A worker that has not met its coordinator. `seed` makes its random choices its own.
    #[must_use]
    pub fn new(config: &Config, spec: WorkerSpec, seed: u64) -> WorkerMachine {
        let capacity = spec.capacity();
        let stealing = config.stealing.under(config.scheduling.bind);
        WorkerMachine {
            guard: Guard::new(config),
            chooser: VictimChooser::new(&stealing, config.load_balancing.thresholds.busy_threshold),
            stealing,
            recent_first: config.load_balancing.work_stealing.prefer_recent_tasks,
            steals: config.load_balancing.strategy.pulls(),
            late: config.scheduling.bind == Bind::Late,
            lease: config.limits.lease,
            reserve_after: config.scheduling.reserve_after,
            spec,
            capacity,
            rng: Rng::new(seed),
            now: Time::ZERO,
            id: None,
            epoch: 0,
            draining: false,
            load: LoadReport::default(),
            held: Holdings::default(),
            queue: Sorted::default(),
            queued_work: Work::default(),
            running: SmallVec::new(),
            reserved: Vector::default(),
            fingerprint: 0,
            offers: Sorted::default(),
            offered: BTreeMap::new(),
            devices: Devices::default(),
            given: BTreeMap::new(),
            timeouts: Sorted::default(),
            unnoted: Unnoted::default(),
            taken: Taken::new(REMEMBERED),
            denied: Recent::new(REMEMBERED),
            refused: Recent::new(REMEMBERED),
            passed_on: Recent::new(REMEMBERED),
            peers: Registry::default(),
            thief: Thief::Content,
            tried: SmallVec::new(),
            failures: 0,
            requests: 0,
            steal_stats: StealStats::default(),
            by_peer: None,
            heard: Time::ZERO,
            fenced: false,
            due: Time::NEVER,
            hello_at: None,
            born: None,
            beat_at: None,
            seen: 0,
            reports: Vec::new(),
            awaited: false,
            untold: 0,
            report_at: Time::NEVER,
            patient: false,
            wish: 0,
            said: 0,
            nothing_central: false,
            round_trip_s: 0.0,
            duration_s: None,
        }
    }

    /// Handles one input at the moment `now`. Timers due by then fire first.
    pub fn step(&mut self, now: Time, input: Input, out: &mut Vec<Output>) {
        self.now = self.now.max(now);
        let timers_fired = self.due <= self.now;
        if timers_fired {
            self.fire_timers(out);
        }
        match input {
            Input::Tick => {}
            Input::Connected => self.greet(out),
            Input::Told { epoch, message: Message::Noted(held) } if !timers_fired => {
                if epoch == self.epoch {
                    self.noted(held);
                }
                // Nothing else has changed since the last step, which did all that could be done.
                return;
            }
            Input::Told { epoch, message } => self.told(epoch, message, out),
            Input::Message { from, message } => self.hear_peer(from, message, out),
            Input::Unreachable(peer) => self.unreachable(peer, out),
            Input::Ended { task, attempt, end } => self.ended(task, attempt, end, out),
            Input::Load(load) => self.load = load,
            Input::Drain => self.drain(out),
        }
        self.begin_what_fits(out);
        self.want(out);
        self.consider_stealing(out);
        if self.is_report_due() {
            self.report(out);
        }
        self.due = self.earliest_timer();
    }

    /// It will be stepped soon: a chance to read what almost every step looks at from memory meanwhile.
    #[inline]
    pub fn load_ahead(&self) {
        // One of each line.
        black_box((
            self.now,
            self.running.len(),
            self.reserved.in_order().len(),
            self.unnoted.len(),
            self.heard,
            self.spec.slots,
        ));
    }

    /// When `step` must be called again at the latest.
    #[must_use]
    pub fn next_timer(&self) -> Option<Time> {
        (self.due < Time::NEVER).then_some(self.due)
    }

    fn earliest_timer(&self) -> Time {
        let steal = match self.thief {
            Thief::Content => Time::NEVER,
            Thief::Asked { sent, .. } => sent + self.patience(),
            Thief::Retry { until } | Thief::Pause { until } => until,
        };
        let fence = if self.fenced || self.id.is_none() { Time::NEVER } else { self.fence_at() };
        let connection = self.hello_at.unwrap_or(Time::NEVER).min(self.beat_at.unwrap_or(Time::NEVER));
        let first = |set: &Sorted<(Time, TaskId)>| set.first().map_or(Time::NEVER, |entry| entry.0);
        steal.min(fence).min(connection).min(first(&self.offers)).min(first(&self.timeouts)).min(self.report_at)
    }

    /// Who it is, once the coordinator has said so.
    #[must_use]
    pub fn id(&self) -> Option<WorkerId> {
        self.id
    }

    /// Tasks in its queue.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.queue.len() as u32
    }

    /// Tasks it runs.
    #[must_use]
    pub fn running(&self) -> u32 {
        self.running.len() as u32
    }

    /// What it counted of its steals, all together.
    #[must_use]
    pub fn steal_stats(&self) -> &StealStats {
        &self.steal_stats
    }

    /// Counts steals by peer from now on. Who plays very many workers and reads nothing of it does without.
    pub fn count_steals_by_peer(&mut self) {
        self.by_peer.get_or_insert_with(|| Box::new(StealTelemetry::of_recent(PEERS_KEPT)));
    }

    /// What it counted of its steals from each of the peers asked last, if it [does](WorkerMachine::count_steals_by_peer).
    pub fn steals_by_peer(&self) -> impl Iterator<Item = (WorkerId, &StealStats)> {
        self.by_peer.iter().flat_map(|telemetry| telemetry.peers())
    }

    /// Everything it holds, what it has offered included.
    pub fn holds(&self) -> impl Iterator<Item = Held> + '_ {
        let queued = self.queue.iter().map(|key| key.2);
        let tasks = self.running.iter().copied().chain(queued).chain(self.offered.keys().copied());
        tasks.filter_map(|task| self.held.get(task).map(|entry| entry.order.held))
    }

    /// What it holds and has not begun, what it has offered included.
    pub fn waiting(&self) -> impl Iterator<Item = &Order> + '_ {
        let queued = self.queue.iter().map(|key| key.2);
        queued.chain(self.offered.keys().copied()).filter_map(|task| self.held.get(task).map(|entry| &*entry.order))
    }

    /// How many tasks it likes to have, those that it has included.
    #[cfg(test)]
    pub(crate) fn wish(&self) -> u32 {
        self.wish
    }

    /// How many ends the coordinator has not noted.
    #[must_use]
    pub fn unnoted(&self) -> usize {
        self.unnoted.len()
    }

    /// Says something to the coordinator, and before it what waited to be said.
    fn send(&mut self, message: Message, out: &mut Vec<Output>) {
        self.report(out);
        out.push(Output::Send { to: Party::Coordinator, message });
    }

    fn fence_at(&self) -> Time {
        self.heard + fence_after(self.lease)
    }

    /// How long to wait for a peer's answer.
    fn patience(&self) -> Span {
        steal::patience(self.stealing.steal_timeout, Span::from_secs_f64(self.round_trip_s))
    }

    fn beat_every(&self) -> Span {
        beat_every(self.lease)
    }

    fn fire_timers(&mut self, out: &mut Vec<Output>) {
        let due = |at: Option<Time>, now: Time| at.is_some_and(|at| at <= now);
        if due(self.hello_at, self.now) {
            self.greet(out);
        }
        if due(self.beat_at, self.now) {
            self.beat(out);
        }
        if !self.fenced && self.id.is_some() && self.fence_at() <= self.now {
            self.fence(out);
        }
        while let Some(&(at, task)) = self.timeouts.first()
            && at <= self.now
        {
            self.timeouts.remove(&(at, task));
            self.stop(task, Cause::TimedOut, out);
        }
        while let Some(&(at, task)) = self.offers.first()
            && at <= self.now
        {
            self.offers.remove(&(at, task));
            let patience = self.patience();
            if let Some((held, thief, due)) = self.offered.get_mut(&task) {
                *due = self.now + patience;
                let again = (*due, task);
                let message = Message::Whose { held: *held, thief: *thief };
                self.offers.insert(again);
                out.push(Output::Send { to: Party::Coordinator, message });
            }
        }
        match self.thief {
            Thief::Asked { victim, sent, .. } if sent + self.patience() <= self.now => {
                self.peers.doubt(victim);
                self.steal_ended(Some(victim), None, StealOutcome::Timeout, out);
            }
            Thief::Retry { until } if until <= self.now => self.thief = Thief::Content,
            Thief::Pause { until } if until <= self.now => {
                self.thief = Thief::Content;
                self.tried.clear();
            }
            _ => {}
        }
    }

    // ---- the coordinator ----

    fn greet(&mut self, out: &mut Vec<Output>) {
        self.hello_at = Some(self.now + self.beat_every());
        let holds = self.holds().collect();
        let born = *self.born.get_or_insert(self.now);
        let hello = Hello { spec: self.spec.clone(), known: self.id, holds, born, sent: self.now };
        self.send(Message::Hello(Box::new(hello)), out);
    }

    /// Joined anew: what it had under its old name has been given to others. What runs goes on until it is told to stop.
    fn drop_what_waits(&mut self) {
        let queued = self.queue.iter().map(|key| key.2);
        let waiting: Vec<TaskId> = queued.chain(self.offered.keys().copied()).collect();
        for task in waiting {
            self.let_go(task);
        }
    }

    /// The coordinator has heard what was sent then. Only that shows how long it believes this worker alive: whatever else
    /// comes may have been on its way for long.
    fn acknowledged(&mut self, sent: Time) {
        self.heard = self.heard.max(sent);
        self.fenced = self.fence_at() <= self.now && !makes(Mistake::BeginBeyondLease);
    }

    /// A coordinator has welcomed it: this is the one that counts.
    fn welcomed(&mut self, worker: WorkerId, epoch: u64, sent: Time, out: &mut Vec<Output>) {
        self.acknowledged(sent);
        if self.id != Some(worker) || self.epoch != epoch {
            self.seen = 0;
            self.nothing_central = false;
        }
        if self.id != Some(worker) {
            self.drop_what_waits();
        } else if self.epoch != epoch {
            // What it runs it began in another life of the coordinator, which may not have written that down.
            self.report(out);
            for entry in self.running.iter().filter_map(|task| self.held.get(*task)) {
                out.push(Output::Send { to: Party::Coordinator, message: Message::Began(entry.order.held) });
            }
        }
        self.id = Some(worker);
        self.epoch = epoch;
        // One that was so long on its way says nothing of now: it may have been given up since, and then only a hello is heard.
        self.hello_at = self.fenced.then_some(self.now);
        // Whatever was said before may have been lost.
        self.unnoted.grow_old(|_, _, _| ());
        self.beat(out);
    }

    fn told(&mut self, epoch: u64, message: Message, out: &mut Vec<Output>) {
        if epoch < self.epoch || epoch > self.epoch && !matches!(message, Message::Welcome { .. }) {
            return;
        }
        match message {
            Message::Welcome { worker, sent, .. } => self.welcomed(worker, epoch, sent, out),
            Message::Heard { sent, nothing } => {
                self.acknowledged(sent);
                let took = self.now.since(sent).as_secs_f64();
                self.round_trip_s = match self.round_trip_s {
                    0.0 => took,
                    known => known + NEWEST * (took - known),
                };
                self.nothing_central = nothing;
                self.reckon();
            }
            Message::Nothing => self.nothing_central = true,
            Message::Hand { number, orders, nothing } => {
                self.seen = self.seen.max(number);
                self.nothing_central = nothing;
                for order in orders {
                    self.take(order, out);
                }
            }
            Message::Revoke { held, cause } => self.revoked(held, cause, out),
            Message::Noted(held) => self.noted(held),
            Message::Show { number } => {
                let holds = self.holds().collect();
                self.send(Message::Holds { number, seen: self.seen, holds }, out);
            }
            Message::Deny { held } => {
                let mine = self.held.get(held.task).map(|entry| entry.order.held);
                match (mine, self.id) {
                    (Some(mine), Some(to)) if mine.attempt == held.attempt && mine.hop >= held.hop => {
                        self.send(Message::Moved { held: mine, to }, out);
                    }
                    _ => {
                        self.denied.insert(held, ());
                        self.send(Message::Denied { held }, out);
                    }
                }
            }
            Message::Ruling { held, yours } => self.ruled(held, yours),
            Message::Digest(peers) => {
                let stale_after = Span(self.stealing.discovery_interval.0.saturating_mul(3));
                match peers.is_empty() {
                    true => self.peers.clear(),
                    false => self.peers.merge(&peers, self.id, self.now, stale_after),
                }
                if let Thief::Pause { .. } = self.thief {
                    self.thief = Thief::Content;
                    self.tried.clear();
                }
            }
            _ => {}
        }
    }

    fn beat(&mut self, out: &mut Vec<Output>) {
        // An answer is overdue: what must not run twice would soon have to stop, so a lost beat is made up for quickly.
        let overdue = !self.fenced && self.heard + self.beat_every() < self.now && self.runs_exclusive();
        let pause = if overdue { Span(self.beat_every().0 / 4) } else { self.beat_every() };
        self.beat_at = Some(self.now + pause);
        self.reckon();
        let beat = Beat {
            load: self.load,
            depth: self.depth(),
            backlog: self.queued_work.span(),
            wants: self.wish,
            holds: (self.queue.len() + self.running.len() + self.offered.len()) as u32,
            fingerprint: self.fingerprint,
            sent: self.now,
        };
        self.said = beat.wants;
        self.send(Message::Beat(Box::new(beat)), out);
        // That the youngest are noted is said in answer to this beat.
        self.unnoted.grow_old(|held, ran, end| {
            out.push(Output::Send { to: Party::Coordinator, message: Message::Ended { held, ran, end } });
        });
    }

    fn runs_exclusive(&self) -> bool {
        self.running.iter().any(|task| self.held.get(*task).is_some_and(|entry| entry.order.exclusive))
    }

    /// Cut off from the coordinator for so long that it may soon be given up.
    fn fence(&mut self, out: &mut Vec<Output>) {
        self.hello_at = Some(self.now);
        if makes(Mistake::BeginBeyondLease) {
            self.heard = self.now;
            return;
        }
        self.fenced = true;
        let exclusive: Vec<TaskId> = self
            .running
            .iter()
            .copied()
            .filter(|task| self.held.get(*task).is_some_and(|entry| entry.order.exclusive))
            .collect();
        for task in exclusive {
            self.stop(task, Cause::WorkerLost, out);
        }
    }

    fn drain(&mut self, out: &mut Vec<Output>) {
        self.draining = true;
        // Before what it gives back, or it might get that again.
        self.reckon();
        self.want(out);
        let queued: Vec<TaskId> = self.queue.iter().map(|key| key.2).collect();
        for task in queued {
            if let Some(entry) = self.let_go(task) {
                self.report_end(entry.order.held, Span::ZERO, End::GivenBack, out);
            }
        }
    }

    /// Something has changed that it depends on how many tasks it likes to have: what its slots run, and so many ahead of need.
    fn reckon(&mut self) {
        let leaves = self.draining || self.id.is_none();
        self.wish = if leaves { 0 } else { self.spec.slots.saturating_add(self.ahead()) };
    }

    /// How many it wants ahead of need: what its slots will finish while the next task is on its way, and while the end before
    /// it waits to be reported. None if that is so short that a slot hardly misses it: whatever waits here waits behind
    /// what runs, while somebody else may be free first.
    fn ahead(&self) -> u32 {
        if !self.late {
            return 0;
        }
        let per_slot = match self.duration_s {
            Some(duration) if duration > 0.0 => {
                let missed = (self.round_trip_s + 2.0 * self.reported_after_s(self.patient)) / duration;
                if missed <= HARDLY { 0 } else { missed.min(f64::from(MOST_AHEAD)) as u32 + 1 }
            }
            _ => 1,
        };
        self.spec.slots.saturating_mul(per_slot.min(MOST_AHEAD))
    }

    /// Says how many tasks it likes to have if that has become much more, or none; of the rest the next beat tells.
    #[inline]
    fn want(&mut self, out: &mut Vec<Output>) {
        let (wish, said) = (self.wish, self.said);
        if wish > said.saturating_add(said / 4) || wish == 0 && said > 0 {
            self.said = wish;
            self.send(Message::Want { count: wish, sent: self.now }, out);
        }
    }

    // ---- its own queue and slots ----

    /// A task is its own from now on. Whether it is, or was: not if it comes too late, or while an older attempt runs here.
    fn take(&mut self, order: Order, out: &mut Vec<Output>) -> bool {
        let Held { task, attempt, hop } = order.held;
        let print = fingerprint(&order.held);
        if self.taken.contains(print) {
            return true;
        }
        if self.refused.contains(&(task, attempt)) {
            return false;
        }
        if let Some(entry) = self.held.get(task) {
            if (entry.order.held.attempt, entry.order.held.hop) >= (attempt, hop) {
                return true;
            }
            if matches!(entry.place, Place::Running | Place::Stopping) {
                // Given up and given out again. The old attempt stops; that the new one is not here is found out by the
                // next count of what is held, when it has.
                self.stop(task, Cause::Moved, out);
                return false;
            }
            self.let_go(task);
        }
        self.taken.insert(print);
        self.fingerprint = self.fingerprint.wrapping_add(print);
        self.queued_work += order.expected;
        self.queue.insert(queue_key(&order));
        let entry = Entry { order: Arc::new(order), place: Place::Queued, since: self.now, told: false };
        self.held.insert_new(task, entry);
        self.thief = match self.thief {
            Thief::Retry { .. } | Thief::Pause { .. } => Thief::Content,
            ref other => other.clone(),
        };
        true
    }

    /// Lets go of a task that does not run.
    fn let_go(&mut self, task: TaskId) -> Option<Entry> {
        let entry = self.held.remove(task)?;
        self.fingerprint = self.fingerprint.wrapping_sub(fingerprint(&entry.order.held));
        match entry.place {
            Place::Queued => {
                self.queue.remove(&queue_key(&entry.order));
                self.queued_work -= entry.order.expected;
            }
            Place::Offered => {
                if let Some((_, _, due)) = self.offered.remove(&task) {
                    self.offers.remove(&(due, task));
                }
            }
            Place::Running | Place::Stopping => {
                if let Some(at) = self.running.iter().position(|running| *running == task) {
                    self.running.swap_remove(at);
                }
                self.release(task, &entry.order.demand);
                // If it was not told of yet, its end says it too.
                self.untold -= u32::from(!entry.told);
                if let Some(timeout) = entry.order.timeout {
                    self.timeouts.remove(&(entry.since + timeout, task));
                }
            }
        }
        Some(entry)
    }

    /// Begins what fits, in order. One that is too wide for what is left lets others pass, but not for ever.
    fn begin_what_fits(&mut self, out: &mut Vec<Output>) {
        if self.id.is_none() {
            return;
        }
        while self.running.len() < self.spec.slots as usize {
            let mut next = None;
            for key in self.queue.iter().take(steal::QUEUE_LOOKS) {
                let Some(entry) = self.held.get(key.2) else { continue };
                let fits = self.has_room(&entry.order.demand);
                if fits && !(self.fenced && entry.order.exclusive) {
                    next = Some(key.2);
                    break;
                }
                if self.now.since(entry.since) >= self.reserve_after && !self.running.is_empty() {
                    break;
                }
            }
            let Some(task) = next else { return };
            self.begin(task, out);
        }
    }

    fn begin(&mut self, task: TaskId, out: &mut Vec<Output>) {
        let Some(entry) = self.held.get_mut(task) else { return };
        self.queue.remove(&queue_key(&entry.order));
        self.queued_work -= entry.order.expected;
        entry.place = Place::Running;
        let known = entry.order.begins && entry.since == self.now;
        entry.told = known;
        entry.since = self.now;
        let order = Arc::clone(&entry.order);
        self.reserve(task, &order.demand);
        self.running.push(task);
        if let Some(timeout) = order.timeout {
            self.timeouts.insert((self.now + timeout, task));
        }
        if known {
            // It counts as begun since it was handed over.
        } else if self.has_more_to_report() {
            self.untold += 1;
            self.report_soon(order.patient);
        } else {
            if let Some(entry) = self.held.get_mut(task) {
                entry.told = true;
            }
            // That it changed hands comes first.
            self.send(Message::Began(order.held), out);
        }
        out.push(Output::Run(order));
    }

    fn stop(&mut self, task: TaskId, cause: Cause, out: &mut Vec<Output>) {
        if let Some(entry) = self.held.get_mut(task)
            && entry.place == Place::Running
        {
            entry.place = Place::Stopping;
            out.push(Output::Stop { held: entry.order.held, cause });
        }
    }

    fn ended(&mut self, task: TaskId, attempt: u32, end: End, out: &mut Vec<Output>) {
        let ours = |entry: &Entry| {
            entry.order.held.attempt == attempt && matches!(entry.place, Place::Running | Place::Stopping)
        };
        if !self.held.get(task).is_some_and(ours) {
            return;
        }
        let Some(entry) = self.let_go(task) else { return };
        let ran = self.now.since(entry.since);
        if end == End::Done {
            self.patient = entry.order.patient;
            let seconds = ran.as_secs_f64();
            let average = self.duration_s.get_or_insert(seconds);
            *average += NEWEST * (seconds - *average);
            self.reckon();
        }
        if end != End::Done || entry.order.exclusive {
            // Somebody may have to act on it.
            self.report_end(entry.order.held, ran, end, out);
            return;
        }
        let held = entry.order.held;
        self.unnoted.set(held, ran, end);
        self.reports.push(Message::Ended { held, ran, end });
        self.awaited |= !entry.order.patient;
        self.report_soon(entry.order.patient);
    }

    fn report_end(&mut self, held: Held, ran: Span, end: End, out: &mut Vec<Output>) {
        self.unnoted.set(held, ran, end);
        self.send(Message::Ended { held, ran, end }, out);
    }

    /// The coordinator knows of an end.
    fn noted(&mut self, held: Held) {
        self.unnoted.remove(held);
    }

    fn revoked(&mut self, held: Held, cause: Cause, out: &mut Vec<Output>) {
        match self.held.get(held.task) {
            Some(entry) if entry.order.held.attempt > held.attempt => {}
            Some(entry) if matches!(entry.place, Place::Running | Place::Stopping) => {
                self.stop(held.task, cause, out);
            }
            Some(_) => {
                self.let_go(held.task);
            }
            None => {
                match self.passed_on.get(&held.task) {
                    // Only onwards, or two that passed it to each other would send the question round for ever.
                    Some(&(passed, to)) if passed.attempt == held.attempt && passed.hop > held.hop => {
                        self.send(Message::Moved { held: passed, to }, out);
                    }
                    // Its end is still being told.
                    _ if self.unnoted.has_attempt(held) => {}
                    // It has never come, or has gone already.
                    _ => {
                        self.refused.insert((held.task, held.attempt), ());
                        self.report_end(held, Span::ZERO, End::GivenBack, out);
                    }
                }
            }
        }
    }

    fn ruled(&mut self, held: Held, yours: bool) {
        let Some(&(offered, thief, _)) = self.offered.get(&held.task) else { return };
        if offered != held {
            return;
        }
        let Some(mut entry) = self.let_go(held.task) else { return };
        if !yours {
            self.passed_on.insert(held.task, (held, thief));
            return;
        }
        // The thief's hop is used up; whatever it says of it no longer counts.
        Arc::make_mut(&mut entry.order).held.hop = held.hop + 1;
        entry.place = Place::Queued;
        self.fingerprint = self.fingerprint.wrapping_add(fingerprint(&entry.order.held));
        self.queued_work += entry.order.expected;
        self.queue.insert(queue_key(&entry.order));
        self.held.insert_new(held.task, entry);
    }
}
