//! The worker among its peers: it asks when it has too little, and gives when it is asked.

use super::{Output, Place, QueueKey, Thief, WorkerMachine, queue_key};
use crate::capabilities::CapabilityBits;
use crate::config::Stealing;
use crate::ids::{TaskId, WorkerId};
use crate::planted::{Mistake, makes};
use crate::resources::Vector;
use crate::steal::{self, Choice, Hunger, Loot, Peers as _, StealOutcome};
use crate::time::{Span, Time, Work};
use crate::tracker::expected_end;
use crate::wire::{Ask, Message, Order, Party, Reason};

impl WorkerMachine {
    pub(super) fn hear_peer(&mut self, peer: WorkerId, message: Message, out: &mut Vec<Output>) {
        match message {
            Message::Ask(ask) => self.asked_by(peer, &ask, out),
            Message::Offer { request, orders, depth } => {
                self.peers.set_depth(peer, depth, self.now);
                self.offered_by(peer, request, orders, out);
            }
            Message::Refuse { request, depth, .. } => {
                let on_the_way = self.patience();
                self.peers.refused(peer, depth, self.now, on_the_way);
                if matches!(self.thief, Thief::Asked { request: asked, .. } if asked == request) {
                    self.steal_ended(Some(peer), self.asked_since(), StealOutcome::Rejection, out);
                } else if self.waits_for_news() && !self.peers.is_empty() {
                    // Too late for the question, but it has something now.
                    self.thief = Thief::Content;
                }
            }
            Message::Accept { holds } => {
                for held in holds {
                    if self.offered.get(&held.task).is_some_and(|(offered, to, _)| *offered == held && *to == peer) {
                        self.let_go(held.task);
                        self.passed_on.insert(held.task, (held, peer));
                        self.report_move(held, peer);
                    }
                }
            }
            _ => {}
        }
    }

    fn asked_by(&mut self, peer: WorkerId, thief: &Ask, out: &mut Vec<Output>) {
        let (to, request) = (Party::Worker(peer), thief.request);
        let round_trip = Span::from_secs_f64(self.round_trip_s);
        let hunger = Hunger { tasks: thief.free.max(1), round_trip };
        let Stealing { take, min_local_queue, .. } = self.stealing;
        let haul = steal::haul(take, self.depth(), self.queued_work.span(), min_local_queue, hunger);
        if haul.tasks == 0 || self.id.is_none() {
            let reason = if self.id.is_none() { Reason::Closed } else { Reason::TooLittle };
            out.push(Output::Send { to, message: Message::Refuse { request, reason, depth: self.depth() } });
            return;
        }
        let work = self.work();
        let can = CapabilityBits::new(&thief.capabilities);
        let check = |task: TaskId| {
            let Some(entry) = self.held.get(task) else { return Err(steal::Kept::Bound) };
            let order = &entry.order;
            let able = order.requires.ids().iter().all(|id| can.has(*id))
                && order.demand.amounts().iter().all(|&(resource, needs)| needs <= thief.resources.get(resource));
            let loot = Loot {
                priority: order.priority,
                bound: order.bound,
                thief_can_run: able,
                transfer: round_trip,
                duration_at_thief: order.expected.mul_f64(1.0 / thief.speed.max(f64::MIN_POSITIVE)),
                duration_at_victim: order.expected,
            };
            let mut rest = work;
            rest -= order.expected;
            self.guard.check(&loot, rest.per(self.spec.slots))
        };
        let expected = |key: &QueueKey| self.held.get(key.2).map_or(Span::ZERO, |entry| entry.order.expected);
        let queue = self.queue.iter().map(|key| (key.2, expected(key)));
        let mut taken = Vec::new();
        if self.recent_first {
            steal::pick(queue.rev(), haul, check, &mut taken);
        } else {
            steal::pick(queue, haul, check, &mut taken);
        }
        if taken.is_empty() {
            let message = Message::Refuse { request, reason: Reason::NothingFits, depth: self.depth() };
            out.push(Output::Send { to, message });
            return;
        }
        let due = self.now + self.patience();
        let mut orders = Vec::with_capacity(taken.len());
        for task in taken {
            let Some(entry) = self.held.get_mut(task) else { continue };
            self.queue.remove(&queue_key(&entry.order));
            self.queued_work -= entry.order.expected;
            entry.place = Place::Offered;
            let mut order = (*entry.order).clone();
            order.held.hop += 1;
            order.begins = false;
            self.offered.insert(task, (order.held, peer, due));
            self.offers.insert((due, task));
            orders.push(order);
        }
        let depth = self.depth();
        out.push(Output::Send { to, message: Message::Offer { request, orders, depth } });
    }

    /// What waits and what is left of what runs.
    fn work(&self) -> Work {
        let mut work = self.queued_work;
        for entry in self.running.iter().filter_map(|task| self.held.get(*task)) {
            work += expected_end(self.now, entry.since, entry.order.expected).since(self.now);
        }
        work
    }

    fn offered_by(&mut self, victim: WorkerId, request: u64, orders: Vec<Order>, out: &mut Vec<Output>) {
        let Some(own) = self.id else { return };
        let mut mine = Vec::with_capacity(orders.len());
        for order in orders {
            let held = order.held;
            if self.denied.contains(&held) {
                continue;
            }
            if makes(Mistake::LoseGrant) && !self.queue.is_empty() {
                mine.push(held);
                continue;
            }
            // What is not accepted stays with the victim until the coordinator has ruled.
            if self.take(order, out) {
                mine.push(held);
                self.report_move(held, own);
            }
        }
        let outcome = if mine.is_empty() { StealOutcome::Rejection } else { StealOutcome::Success };
        out.push(Output::Send { to: Party::Worker(victim), message: Message::Accept { holds: mine } });
        if matches!(self.thief, Thief::Asked { request: asked, .. } if asked == request) {
            self.steal_ended(Some(victim), self.asked_since(), outcome, out);
        }
    }

    pub(super) fn unreachable(&mut self, peer: WorkerId, out: &mut Vec<Output>) {
        self.peers.forget(peer);
        if matches!(self.thief, Thief::Asked { victim, .. } if victim == peer) {
            self.steal_ended(Some(peer), None, StealOutcome::NetworkError, out);
        }
    }

    fn asked_since(&self) -> Option<Span> {
        match self.thief {
            Thief::Asked { sent, .. } => Some(self.now.since(sent)),
            _ => None,
        }
    }

    pub(super) fn steal_ended(
        &mut self,
        victim: Option<WorkerId>,
        latency: Option<Span>,
        outcome: StealOutcome,
        out: &mut Vec<Output>,
    ) {
        let success = outcome == StealOutcome::Success;
        self.chooser.learn(success);
        if victim.is_some() {
            self.steal_stats.record(latency, outcome);
            if let Some(by_peer) = &mut self.by_peer {
                by_peer.record(victim, latency, outcome);
            }
        }
        self.thief = Thief::Content;
        if success {
            self.failures = 0;
            self.tried.clear();
            return;
        }
        self.failures += 1;
        self.tried.extend(victim);
        let nobody_left = victim.is_none() || self.peers.is_empty();
        if nobody_left || self.tried.len() as u32 >= self.stealing.max_retries {
            self.pause();
        } else if matches!(outcome, StealOutcome::Timeout | StealOutcome::NetworkError) {
            // Something is wrong on the way, and more questions do not mend it.
            let Stealing { retry_backoff, backoff_max, backoff_jitter, .. } = self.stealing;
            let before = self.tried.len() as u32 - 1;
            let longest = backoff_max.max(retry_backoff);
            let pause = steal::backoff(&mut self.rng, retry_backoff, longest, backoff_jitter, before);
            self.thief = Thief::Retry { until: self.now + pause };
        } else {
            self.consider_stealing(out);
        }
    }

    /// Whether it knows nobody who has anything, and looks for work again when it hears of somebody.
    fn waits_for_news(&self) -> bool {
        matches!(self.thief, Thief::Pause { until: Time::NEVER })
    }

    fn pause(&mut self) {
        self.tried.clear();
        if self.peers.is_empty() {
            // However often it looked, there would be nobody to ask before somebody says so; the coordinator does.
            self.thief = Thief::Pause { until: Time::NEVER };
            return;
        }
        let Stealing { backoff_base, backoff_max, backoff_jitter, .. } = self.stealing;
        let searches = self.failures / self.stealing.max_retries.max(1);
        let pause = steal::backoff(&mut self.rng, backoff_base, backoff_max, backoff_jitter, searches);
        self.thief = Thief::Pause { until: self.now + pause };
    }

    /// Whether what it runs should be done before an answer to a question asked now has come.
    fn is_done_soon(&self) -> bool {
        let share = self.running.len() as f64 / f64::from(self.spec.slots.max(1));
        self.duration_s.is_some_and(|duration| duration * share <= self.round_trip_s)
    }

    /// What a task could have that begins here next: what is free now and, if no slot is, what the run has that should end
    /// first. A thief that takes what it cannot begin would only be robbed of it by the next. How many it takes is another
    /// question: where the way is long, more than it can begin at once.
    fn soon_free(&self) -> Vector {
        let mut reserved = self.reserved.clone();
        if self.running.len() >= self.spec.slots as usize {
            let runs = self.running.iter().filter_map(|task| self.held.get(*task));
            let first = runs.min_by_key(|entry| expected_end(self.now, entry.since, entry.order.expected));
            if let Some(entry) = first {
                reserved.remove(&entry.order.demand);
            }
        }
        self.capacity.without(&reserved)
    }

    /// Looks for work with its peers if it has too little and the coordinator has none.
    #[inline]
    pub(super) fn consider_stealing(&mut self, out: &mut Vec<Output>) {
        let coordinator_first = self.late && !self.nothing_central;
        if coordinator_first || !matches!(self.thief, Thief::Content) {
            return;
        }
        self.look_for_work(out);
    }

    // Apart, since most steps of most workers end before it.
    #[inline(never)]
    fn look_for_work(&mut self, out: &mut Vec<Output>) {
        let Some(own) = self.id else { return };
        if !self.steals || self.draining || self.fenced {
            return;
        }
        let hungry = (self.running.len() < self.spec.slots as usize || self.is_done_soon())
            && f64::from(self.depth()) < self.stealing.steal_threshold * f64::from(self.spec.slots);
        if !hungry {
            return;
        }
        match self.chooser.choose(&mut self.rng, &self.peers, own, &self.tried) {
            Some(Choice::Victim(victim)) => {
                self.requests += 1;
                let request = self.requests;
                self.thief = Thief::Asked { request, victim: victim.worker, sent: self.now };
                let ask = Ask {
                    request,
                    capabilities: self.spec.capabilities.clone(),
                    resources: self.soon_free(),
                    speed: self.spec.speed,
                    free: self.spec.slots.saturating_sub(self.running.len() as u32),
                };
                out.push(Output::Send { to: Party::Worker(victim.worker), message: Message::Ask(Box::new(ask)) });
            }
            Some(Choice::Refused(_)) | None => {
                self.failures += u32::from(!self.peers.is_empty());
                self.pause();
            }
        }
    }
}
