//! The coordinator: the scheduler, and what it takes to run it for workers that are far away. Signs of life, what each
//! of them holds, whose an offer is that nobody answered, and who is worth robbing.
//!
//! Pure like the scheduler it wraps, and decides nothing about tasks: whatever it hears becomes an event of the scheduler,
//! whatever the scheduler wants of a worker becomes a message. Never believes a worker lost before its lease has ended, and
//! never a task before the worker was asked twice. One with a store says nothing to anybody while it does not know that the
//! store is still its own.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hint::black_box;

use crate::action::{Action, Refusal};
use crate::config::Config;
use crate::event::{End, Event, Held, Remaining, WorkerChange};
use crate::ids::WorkerId;
use crate::journal::Journal;
use crate::map::Map;
use crate::planted::{Mistake, makes};
use crate::policy::PolicyError;
use crate::rng::Rng;
use crate::scheduler::Scheduler;
use crate::task::Cause;
use crate::time::{Span, Time};
use crate::wire::{Beat, Hello, Message, ORDERS, Order};
use crate::worker::WorkerState;

/// Ends that are noted together at the most.
const NOTED_TOGETHER: usize = 16;
/// Peers in one digest: well below 2 KB, however many workers there are.
const DIGEST: usize = 16;

/// What can happen to the coordinator.
#[derive(Clone, Debug)]
pub enum Input {
    /// Somebody submits, cancels or asks for something: any event that is not about a worker.
    Event(Event),
    /// A worker says hello. The tag in its description is the driver's handle to the connection.
    Hello(Box<Hello>),
    /// A message of a worker that was welcomed.
    Message {
        /// From whom.
        from: WorkerId,
        /// What.
        message: Message,
    },
    /// A worker that was to finish and go has gone; nobody has to wait for it to come back.
    Left(WorkerId),
    /// The store has confirmed a write of this coordinator. Only with [`Coordinator::with_store`].
    Stored {
        /// When the write was begun.
        begun: Time,
    },
    /// It is about to end: who has reported something hears what of it is noted, and need not wait for the next one.
    Closing,
    /// Time has passed.
    Tick,
}

/// What the coordinator wants done.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// The worker behind a connection is known under this id from now on.
    Joined {
        /// From its description.
        tag: u64,
        /// Who.
        worker: WorkerId,
    },
    /// Send a message, at once or [when the store is durable](Message::waits_for_store).
    Send {
        /// To whom.
        to: WorkerId,
        /// What.
        message: Message,
    },
    /// Write to the store, even if there is nothing to write, to see whether it is still this coordinator's.
    Renew,
    /// Something of the scheduler's that is not about messages.
    Action(Action),
}

/// What is known of a worker that said hello.
#[derive(Debug)]
struct Session {
    worker: WorkerId,
    heard: Time,
    /// Handings-over so far.
    number: u64,
    /// When the latest of them was sent, if it may still be on its way.
    handed_at: Option<Time>,
    /// What was missing when it was last asked.
    suspects: BTreeSet<Held>,
    asked_at: Option<Time>,
    /// The question what it holds that was asked last, until it is answered.
    question: u64,
    answered: bool,
    digest_at: Time,
    /// Whether it was last told of somebody with something queued.
    knows_peers: bool,
    /// Ends that it may forget and was not told so. They go with what is said to it next, at the latest in answer to its next
    /// beat: that it may forget something is not worth waking it up for.
    noted: Vec<Held>,
    /// Whether it was told that it likes to have more than there is, and has not got all of that since.
    told_nothing: bool,
    /// Whether it is among those that look for work and have not found any.
    hungry: bool,
    /// Known from an earlier life, and not heard of in this one.
    absent: bool,
    /// How it introduced itself, if it joined in this life.
    newcomer: Option<(u64, Time)>,
}

impl Session {
    fn new(worker: WorkerId, heard: Time, absent: bool) -> Session {
        Session {
            worker,
            heard,
            number: 0,
            handed_at: None,
            suspects: BTreeSet::new(),
            asked_at: None,
            question: 0,
            answered: true,
            digest_at: Time::ZERO,
            knows_peers: false,
            noted: Vec::new(),
            told_nothing: false,
            hungry: false,
            absent,
            newcomer: None,
        }
    }
}

/// What is known of the store.
#[derive(Clone, Copy, Debug)]
struct Store {
    /// When the latest write was begun that it has confirmed.
    confirmed: Time,
    /// When to write next if nothing else is written.
    renew_at: Time,
}

/// The coordinator machine.
pub struct Coordinator {
    scheduler: Scheduler,
    lease: Span,
    discovery: Span,
    epoch: u64,
    rng: Rng,
    now: Time,
    /// By the slot of the worker.
    sessions: Vec<Option<Session>>,
    /// Those that joined in this life, by how they introduced themselves.
    newcomers: Map<(u64, Time), WorkerId>,
    /// When to look whether a worker is still there.
    leases: BTreeSet<(Time, WorkerId)>,
    /// The first of them.
    lease_due: Time,
    /// Offers nobody knows the end of: the victim that asked.
    disputed: BTreeMap<Held, WorkerId>,
    /// Workers that were told there is nothing for them, the longest waiting first. Some may have found work since.
    hungry: VecDeque<WorkerId>,
    store: Option<Store>,
    /// When this life began.
    since: Time,
    /// Tasks that were given to others because whoever should have had them had not.
    found_missing: u64,
    actions: Vec<Action>,
    /// What goes to whom; serves again.
    hands: Vec<(WorkerId, Vec<Order>)>,
    refusal: Option<Refusal>,
}

impl Coordinator {
    /// A coordinator in its first or a later life, each with a higher epoch.
    ///
    /// # Errors
    /// If the default policy of the configuration cannot be made.
    pub fn new(config: &Config, epoch: u64) -> Result<Coordinator, PolicyError> {
        Ok(Coordinator {
            scheduler: Scheduler::new(config)?.with_remote_queues().in_life(epoch),
            lease: config.limits.lease,
            discovery: config.stealing.discovery_interval,
            epoch,
            rng: Rng::new(config.seed ^ epoch.rotate_left(32)),
            now: Time::ZERO,
            sessions: Vec::new(),
            newcomers: Map::default(),
            leases: BTreeSet::new(),
            lease_due: Time::NEVER,
            disputed: BTreeMap::new(),
            hungry: VecDeque::new(),
            store: None,
            since: Time::ZERO,
            found_missing: 0,
            actions: Vec::new(),
            hands: Vec::new(),
            refusal: None,
        })
    }

    /// Says that its records go to a store that another coordinator may take over, and that the store was its own `now`.
    /// A quarter of a lease after the last write that the store confirmed it no longer believes that, and hears nobody.
    #[must_use]
    pub fn with_store(mut self, now: Time) -> Coordinator {
        self.keep_records(true);
        self.since = now;
        self.store = Some(Store { confirmed: now, renew_at: now + self.renew_every() });
        self
    }

    /// Gets back what earlier lives have recorded. To be called once, before anything else happens. Whoever was given a
    /// task has a lease to come back.
    pub fn restore(&mut self, now: Time, journal: Journal, out: &mut Vec<Output>) {
        self.now = self.now.max(now);
        self.since = self.now;
        for (worker, _) in journal.workers() {
            let session = Session::new(worker, self.now, true);
            self.enter(session);
        }
        let mut actions = std::mem::take(&mut self.actions);
        self.scheduler.restore(self.now, journal, &mut actions);
        self.pass_on(&mut actions, out);
        self.actions = actions;
    }

    fn enter(&mut self, session: Session) {
        let at = session.worker.index();
        if at >= self.sessions.len() {
            self.sessions.resize_with(at + 1, || None);
        }
        let due = session.heard + self.lease;
        self.leases.insert((due, session.worker));
        self.lease_due = self.lease_due.min(due);
        self.sessions[at] = Some(session);
    }

    /// How often the store is asked at the least.
    fn renew_every(&self) -> Span {
        Span(self.lease.0 / 8)
    }

    /// Whether the store was its own not long ago. Whoever takes it over waits until that has passed.
    fn leads(&self) -> bool {
        makes(Mistake::AnswerWithoutStore)
            || self.store.is_none_or(|store| self.now < store.confirmed + Span(self.lease.0 / 4))
    }

    /// Makes the policies that the configuration gives to single task types.
    ///
    /// # Errors
    /// If one of them cannot be made.
    pub fn use_policies_per_type(&mut self, names: &mut crate::ids::Names) -> Result<(), PolicyError> {
        self.scheduler.use_policies_per_type(names)
    }

    /// Asks for [`Action::Persist`] with every fact worth remembering.
    pub fn keep_records(&mut self, on: bool) {
        self.scheduler.keep_records(on);
    }

    /// Says whether [`Action::Notify`] is asked for with every change of a task's status, as it is at first.
    pub fn keep_notices(&mut self, on: bool) {
        self.scheduler.keep_notices(on);
    }

    /// How many tasks were not with whoever should have had them, and were given to others.
    #[must_use]
    pub fn found_missing(&self) -> u64 {
        self.found_missing
    }

    /// Which life of the coordinator this is. Goes with every message of its.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The scheduler inside, to look at.
    #[must_use]
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// This will be heard soon of a worker: a chance to read what is known of it from memory meanwhile.
    #[inline]
    pub fn load_ahead(&self, worker: WorkerId, message: &Message) {
        if let Some(Some(session)) = self.sessions.get(worker.index()) {
            black_box((session.heard, session.hungry));
        }
        let task = match message {
            Message::Began(held) | Message::Ended { held, .. } => Some(held.task),
            _ => None,
        };
        self.scheduler.load_ahead_for(worker, task);
    }

    /// When `step` must be called again at the latest.
    #[must_use]
    pub fn next_timer(&self) -> Option<Time> {
        let renew = self.store.map_or(Time::NEVER, |store| store.renew_at);
        let scheduler = self.scheduler.next_timer().unwrap_or(Time::NEVER);
        let earliest = scheduler.min(self.lease_due).min(renew);
        (earliest < Time::NEVER).then_some(earliest)
    }

    /// Handles one input at the moment `now`.
    pub fn step(&mut self, now: Time, input: Input, out: &mut Vec<Output>) {
        self.now = self.now.max(now);
        self.renew(out);
        if self.lease_due <= self.now {
            self.end_leases(out);
            self.lease_due = self.leases.first().map_or(Time::NEVER, |entry| entry.0);
        }
        match input {
            Input::Stored { begun } => {
                let renew_at = self.now + self.renew_every();
                if let Some(store) = &mut self.store {
                    *store = Store { confirmed: store.confirmed.max(begun), renew_at };
                }
            }
            // Another may have taken over: nobody may count on this one.
            Input::Hello(_) | Input::Closing if !self.leads() => {}
            Input::Message { from, .. } if !self.leads() => {
                if let Some(session) = self.session(from) {
                    session.heard = now;
                }
            }
            Input::Event(event) => {
                self.refusal = self.tell(event, out);
                if self.refusal.is_some() {
                    out.push(Output::Action(Action::Refused));
                }
            }
            Input::Hello(hello) => self.welcome(*hello, out),
            Input::Left(worker) => self.leave(worker, out),
            Input::Closing => self.sessions.iter_mut().flatten().for_each(|session| say_noted(session, out)),
            Input::Message { from, message } => self.hear(from, message, out),
            Input::Tick => {
                self.tell(Event::Tick, out);
            }
        }
    }

    fn renew(&mut self, out: &mut Vec<Output>) {
        let next = self.now + self.renew_every();
        if let Some(store) = &mut self.store
            && store.renew_at <= self.now
        {
            store.renew_at = next;
            out.push(Output::Renew);
        }
    }

    /// Why the last event was refused.
    pub fn take_refusal(&mut self) -> Option<Refusal> {
        self.refusal.take()
    }

    /// Hands an event to the scheduler and passes on what it wants. Why it was refused, if it was.
    fn tell(&mut self, event: Event, out: &mut Vec<Output>) -> Option<Refusal> {
        let mut actions = std::mem::take(&mut self.actions);
        self.scheduler.step(self.now, event, &mut actions);
        let refused = self.pass_on(&mut actions, out);
        self.actions = actions;
        refused
    }

    /// Passes on what the scheduler wants. Why it refused something, if it did.
    fn pass_on(&mut self, actions: &mut Vec<Action>, out: &mut Vec<Output>) -> Option<Refusal> {
        // Tasks for the same worker go in one message, but those that wait for the store keep no others waiting.
        let mut hands = std::mem::take(&mut self.hands);
        let mut refused = None;
        for &action in &*actions {
            match action {
                Action::Hand { worker, task, .. } | Action::Assign { worker, task, .. } => {
                    let Some(order) = self.scheduler.order(task) else { continue };
                    let joins = |(to, orders): &&mut (WorkerId, Vec<Order>)| {
                        *to == worker && orders.len() < ORDERS && orders[0].exclusive == order.exclusive
                    };
                    match hands.iter_mut().rev().take(8).find(joins) {
                        Some((_, orders)) => orders.push(order),
                        None => hands.push((worker, vec![order])),
                    }
                }
                Action::Revoke { worker, task, attempt, cause } => {
                    let message = Message::Revoke { held: Held { task, attempt, hop: 0 }, cause };
                    out.push(Output::Send { to: worker, message });
                }
                Action::Refused => refused = self.scheduler.take_refusal(),
                // It has timers of its own besides: whoever drives it asks `next_timer`.
                Action::Timer { .. } => {}
                other => out.push(Output::Action(other)),
            }
        }
        actions.clear();
        if hands.is_empty() {
            self.hands = hands;
            return refused;
        }
        for (to, orders) in hands.drain(..) {
            let (now, nothing) = (self.now, self.scheduler.is_waiting(to));
            let Some(session) = self.session(to) else { continue };
            session.number += 1;
            session.handed_at = Some(now);
            session.told_nothing = nothing;
            let number = session.number;
            say_noted(session, out);
            // What somebody else could have sooner is worth telling to as many as there are tasks.
            let spare = orders.iter().filter(|order| !order.bound).count();
            out.push(Output::Send { to, message: Message::Hand { number, orders, nothing } });
            if self.scheduler.has_waiting_tasks(to) {
                self.wake_hungry(spare, out);
            }
        }
        self.hands = hands;
        refused
    }

    /// Work was pushed to somebody who cannot begin it at once: those that look for work hear where it is.
    fn wake_hungry(&mut self, most: usize, out: &mut Vec<Output>) {
        for _ in 0..most {
            let Some(worker) = self.hungry.pop_front() else { return };
            if let Some(session) = self.session(worker) {
                session.hungry = false;
                if self.scheduler.is_waiting(worker) {
                    self.spread(worker, true, out);
                    self.say_nothing(worker, out);
                }
            }
        }
    }

    /// A worker that has ended something may like to have more than there is. If somebody has something queued it is told both,
    /// what it does not know yet; otherwise when somebody has.
    fn may_be_hungry(&mut self, worker: WorkerId, out: &mut Vec<Output>) {
        if !self.scheduler.is_waiting(worker) {
            return;
        }
        self.is_hungry(worker);
        let nobody = self.scheduler.nobody_is_loaded();
        if self.session(worker).is_some_and(|session| session.knows_peers || !nobody) {
            self.spread(worker, self.scheduler.has_nothing_queued(worker), out);
            self.say_nothing(worker, out);
        }
    }

    /// Tells a worker that there is nothing for it, unless it knows.
    fn say_nothing(&mut self, worker: WorkerId, out: &mut Vec<Output>) {
        if let Some(session) = self.session(worker)
            && !std::mem::replace(&mut session.told_nothing, true)
        {
            say_noted(session, out);
            out.push(Output::Send { to: worker, message: Message::Nothing });
        }
    }

    /// A worker is told that there is nothing for it. Whether that is news.
    fn is_hungry(&mut self, worker: WorkerId) -> bool {
        let Some(session) = self.session(worker) else { return false };
        let news = !std::mem::replace(&mut session.hungry, true);
        if news {
            self.hungry.push_back(worker);
        }
        news
    }

    fn session(&mut self, worker: WorkerId) -> Option<&mut Session> {
        let session = self.sessions.get_mut(worker.index())?.as_mut()?;
        (session.worker == worker).then_some(session)
    }

    // ---- coming and going ----

    fn welcome(&mut self, hello: Hello, out: &mut Vec<Output>) {
        let Hello { spec, known, holds, born, sent } = hello;
        let tag = spec.tag;
        let known = known.filter(|worker| self.session(*worker).is_some());
        // Who has not heard that it was let in asks again, and is no further worker.
        let again = self.newcomers.get(&(tag, born)).copied().filter(|worker| self.session(*worker).is_some());
        let worker = match known.or(again) {
            Some(worker) => worker,
            None => {
                let before = out.len();
                self.tell(Event::Join(spec), out);
                let joined = out[before..].iter().find_map(|output| match output {
                    Output::Action(Action::Joined { worker, .. }) => Some(*worker),
                    _ => None,
                });
                let Some(worker) = joined else { return };
                self.enter(Session { newcomer: Some((tag, born)), ..Session::new(worker, self.now, false) });
                self.newcomers.insert((tag, born), worker);
                worker
            }
        };
        out.push(Output::Joined { tag, worker });
        out.push(Output::Send { to: worker, message: Message::Welcome { worker, sent } });
        self.is_alive(worker, out);
        for held in holds {
            // Under a new name it has let go of what waited, and what it had was given to others.
            if known.is_none() || self.scheduler.is_of_earlier_life(held) && !self.reattach(worker, held, out) {
                out.push(Output::Send { to: worker, message: Message::Revoke { held, cause: Cause::WorkerLost } });
            }
        }
    }

    /// A worker has something from an earlier life. Whether it may keep it.
    fn reattach(&mut self, worker: WorkerId, held: Held, out: &mut Vec<Output>) -> bool {
        if makes(Mistake::RestartUnreconciled) {
            return true;
        }
        let kept = self.tell(Event::Reattached { worker, held }, out).is_none();
        self.settle_dispute(held, out);
        kept || self.scheduler.who_has(held.task) == Some(worker)
    }

    /// A worker that got nothing more has gone. What it still had, if anything, is for others; unless it comes back it is for
    /// its lease to say that of any other.
    fn leave(&mut self, worker: WorkerId, out: &mut Vec<Output>) {
        let drained = self.scheduler.worker_state(worker) == Some(WorkerState::Draining);
        if self.session(worker).is_none() {
            return;
        }
        if !drained || self.scheduler.holds(worker).is_none_or(|held| held.0 > 0) {
            // Nothing reaches it. When it is back it says anew how many it likes to have.
            self.tell(Event::Want { worker, count: 0 }, out);
            return;
        }
        self.forget(worker);
        self.tell(Event::Leave { worker, remaining: Remaining::Requeue }, out);
    }

    /// A worker is no member any more; if it comes back it joins anew.
    fn forget(&mut self, worker: WorkerId) {
        let newcomer = self.sessions[worker.index()].take().and_then(|session| session.newcomer);
        if let Some(newcomer) = newcomer {
            self.newcomers.remove(&newcomer);
        }
    }

    /// A worker was heard.
    fn is_alive(&mut self, worker: WorkerId, out: &mut Vec<Output>) {
        let now = self.now;
        let Some(session) = self.session(worker) else { return };
        session.heard = now;
        let came_back = std::mem::take(&mut session.absent);
        if self.scheduler.worker_state(worker) == Some(WorkerState::Silent) {
            let load = crate::worker::LoadReport::default();
            self.tell(Event::Report { worker, load }, out);
        }
        if came_back {
            let change = WorkerChange { draining: Some(false), ..WorkerChange::default() };
            self.tell(Event::Change { worker, change }, out);
        }
    }

    fn end_leases(&mut self, out: &mut Vec<Output>) {
        while let Some(&(at, worker)) = self.leases.first()
            && at <= self.now
        {
            self.leases.remove(&(at, worker));
            let lease = self.lease;
            let (now, silent) = (self.now, self.scheduler.worker_state(worker) == Some(WorkerState::Silent));
            let Some(session) = self.session(worker) else { continue };
            let due = session.heard + lease;
            if due > now {
                self.leases.insert((due, worker));
            } else if silent {
                // It has stopped by itself what must not run twice, if it still is anywhere: whatever it held is free. If it
                // comes back it joins anew.
                self.forget(worker);
                self.tell(Event::Leave { worker, remaining: Remaining::Requeue }, out);
            } else {
                session.suspects.clear();
                session.handed_at = None;
                self.leases.insert((now + lease, worker));
                self.tell(Event::Silent { worker }, out);
            }
        }
    }

    // ---- what workers say ----

    fn hear(&mut self, from: WorkerId, message: Message, out: &mut Vec<Output>) {
        if self.session(from).is_none() {
            return;
        }
        self.is_alive(from, out);
        match message {
            Message::Beat(beat) => self.hear_beat(from, &beat, out),
            Message::Want { count, sent } => {
                self.tell(Event::Want { worker: from, count }, out);
                // Who leaves waits for it.
                if count == 0
                    && let Some(session) = self.session(from)
                {
                    say_noted(session, out);
                }
                if self.scheduler.is_waiting(from) {
                    self.is_hungry(from);
                    self.spread(from, true, out);
                    self.heard(from, sent, true, out);
                }
            }
            Message::Began(held) => {
                let refused = self.tell(Event::Began { worker: from, held }, out);
                self.settle_dispute(held, out);
                if refused.is_some() {
                    self.revoke(from, held, out);
                }
            }
            Message::Ended { held, ran, end } => self.hear_end(from, held, ran, end, out),
            Message::Moved { held, to } => {
                let refused = self.tell(Event::Moved { held, to }, out);
                self.settle_dispute(held, out);
                // Whoever has it says so itself. What its victim says may come when it has ended.
                if refused.is_some() && from == to && !self.is_current(held) {
                    self.revoke(to, held, out);
                }
            }
            Message::Holds { number, seen, holds } => self.compare(from, number, seen, &holds, out),
            Message::Whose { held, thief } => self.rule(from, held, thief, out),
            Message::Denied { held } => {
                if let Some(victim) = self.disputed.remove(&held) {
                    self.give_back(victim, held, out);
                }
            }
            _ => {}
        }
    }

    fn hear_beat(&mut self, from: WorkerId, beat: &Beat, out: &mut Vec<Output>) {
        // Mostly the same as the last time.
        if !self.scheduler.has_reported(from, beat.load) {
            self.tell(Event::Report { worker: from, load: beat.load }, out);
        }
        if !self.scheduler.has_wanted(from, beat.wants) {
            self.tell(Event::Want { worker: from, count: beat.wants }, out);
        }
        let nothing = self.scheduler.is_waiting(from);
        let newly_hungry = nothing && self.is_hungry(from);
        self.heard(from, beat.sent, nothing, out);
        self.spread(from, newly_hungry, out);
        for held in self.scheduler.revoked(from) {
            // It has not said that it stopped: perhaps it was never told.
            out.push(Output::Send { to: from, message: Message::Revoke { held, cause: Cause::Moved } });
        }
        let agrees = self.scheduler.holds(from) == Some((beat.holds, beat.fingerprint));
        let (now, patience) = (self.now, Span(self.lease.0 / 4));
        let Some(session) = self.session(from) else { return };
        if agrees {
            session.suspects.clear();
            session.asked_at = None;
            return;
        }
        if makes(Mistake::DropHoldingsCheck) {
            return;
        }
        // What is on its way explains most of it; whoever still differs later is asked.
        match session.asked_at {
            None => session.asked_at = Some(now + patience),
            Some(at) if at <= now => {
                session.asked_at = Some(now + patience);
                session.question += 1;
                session.answered = false;
                let number = session.question;
                out.push(Output::Send { to: from, message: Message::Show { number } });
            }
            Some(_) => {}
        }
    }

    /// Says that a worker was heard, and whether it likes to have more than there is.
    fn heard(&mut self, to: WorkerId, sent: Time, nothing: bool, out: &mut Vec<Output>) {
        if let Some(session) = self.session(to) {
            session.told_nothing = nothing;
            say_noted(session, out);
        }
        out.push(Output::Send { to, message: Message::Heard { sent, nothing } });
    }

    /// Tells a worker about some of its peers, at once if it needs them, otherwise now and then.
    fn spread(&mut self, to: WorkerId, now: bool, out: &mut Vec<Output>) {
        let (at, discovery) = (self.now, self.discovery);
        let Some(session) = self.session(to) else { return };
        if !now && session.digest_at + discovery > at {
            return;
        }
        session.digest_at = at;
        let knew = session.knows_peers;
        if !knew && self.scheduler.nobody_is_loaded() {
            return;
        }
        let rng = &mut self.rng;
        let peers = self.scheduler.sample_loaded(DIGEST, |bound| rng.below(bound));
        if let Some(session) = self.session(to) {
            session.knows_peers = !peers.is_empty();
        }
        out.push(Output::Send { to, message: Message::Digest(peers) });
    }

    fn hear_end(&mut self, from: WorkerId, held: Held, ran: Span, end: End, out: &mut Vec<Output>) {
        // A stale end is counted and dropped; either way its worker may forget it.
        if let Some(session) = self.session(from) {
            session.noted.push(held);
        }
        self.tell(Event::Ended { worker: from, held, ran, end }, out);
        self.settle_dispute(held, out);
        self.may_be_hungry(from, out);
        let leaves = !self.scheduler.likes_tasks(from);
        if let Some(session) = self.session(from)
            && (leaves || session.noted.len() >= NOTED_TOGETHER)
        {
            say_noted(session, out);
        }
    }

    fn revoke(&mut self, to: WorkerId, held: Held, out: &mut Vec<Output>) {
        if self.session(to).is_some() {
            out.push(Output::Send { to, message: Message::Revoke { held, cause: Cause::Moved } });
        }
    }

    /// Whether an attempt, under whatever hop, is the one that counts.
    fn is_current(&self, held: Held) -> bool {
        self.scheduler.current(held.task).is_some_and(|current| current.attempt == held.attempt)
    }

    // ---- whose is it? ----

    /// A victim does not know what became of its offer.
    fn rule(&mut self, victim: WorkerId, held: Held, thief: WorkerId, out: &mut Vec<Output>) {
        let open = self.scheduler.current(held.task).is_some_and(|current| {
            current.attempt == held.attempt
                && current.hop < held.hop
                && self.scheduler.who_has(held.task) == Some(victim)
        });
        if !open {
            self.disputed.remove(&held);
            out.push(Output::Send { to: victim, message: Message::Ruling { held, yours: false } });
            return;
        }
        let lost = !matches!(self.scheduler.worker_state(thief), Some(state) if state != WorkerState::Silent);
        if lost {
            self.give_back(victim, held, out);
            return;
        }
        self.disputed.insert(held, victim);
        out.push(Output::Send { to: thief, message: Message::Deny { held } });
    }

    /// The victim has it again, under a hop beyond the thief's.
    fn give_back(&mut self, victim: WorkerId, held: Held, out: &mut Vec<Output>) {
        self.disputed.remove(&held);
        let again = Held { hop: held.hop + 1, ..held };
        let yours = self.tell(Event::Moved { held: again, to: victim }, out).is_none();
        out.push(Output::Send { to: victim, message: Message::Ruling { held, yours } });
    }

    /// The thief has shown that it has it.
    fn settle_dispute(&mut self, held: Held, out: &mut Vec<Output>) {
        // Asked at every begin and every end, with hardly ever an offer that is disputed.
        if !self.disputed.is_empty()
            && let Some(victim) = self.disputed.remove(&held)
        {
            out.push(Output::Send { to: victim, message: Message::Ruling { held, yours: false } });
        }
    }

    // ---- what they hold ----

    /// Compares what a worker holds with what it should. What is missing twice is given to others; what it should not have
    /// it is told to drop.
    fn compare(&mut self, from: WorkerId, number: u64, seen: u64, holds: &[Held], out: &mut Vec<Output>) {
        let has: BTreeSet<Held> = holds.iter().copied().collect();
        let believed: BTreeSet<Held> = self.scheduler.holdings(from).collect();
        let (now, longest) = (self.now, Span(self.lease.0 / 2));
        let Some(session) = self.session(from) else { return };
        // An answer that comes twice, or late, says nothing new.
        if session.answered || session.question != number {
            return;
        }
        session.answered = true;
        // Nothing is on its way for so long: it was lost.
        if session.number > seen && session.handed_at.is_some_and(|at| now < at + longest) {
            return;
        }
        let missing: BTreeSet<Held> = believed.difference(&has).copied().collect();
        let lost: Vec<Held> = missing.intersection(&session.suspects).copied().collect();
        session.suspects = missing;
        for held in lost {
            if self.scheduler.is_of_earlier_life(held) && makes(Mistake::RestartUnreconciled) {
                continue;
            }
            // What was handed out in an earlier life may have changed hands: who has it gets a lease to say so.
            if self.scheduler.is_of_earlier_life(held) && self.now < self.since + self.lease {
                continue;
            }
            // What must not run twice may still be on its way: whoever says it does not have it never takes it.
            if self.scheduler.order(held.task).is_some_and(|order| order.exclusive) {
                self.revoke(from, held, out);
            } else {
                let gone = self.tell(Event::Missing { worker: from, held }, out).is_none();
                self.found_missing += u64::from(gone);
            }
        }
        for &held in has.difference(&believed) {
            if self.scheduler.is_of_earlier_life(held) {
                if !self.reattach(from, held, out) {
                    self.revoke(from, held, out);
                }
            } else if self.tell(Event::Moved { held, to: from }, out).is_some()
                && self.scheduler.who_has(held.task) != Some(from)
            {
                self.revoke(from, held, out);
            }
        }
    }
}

/// Tells a worker which ends it may forget.
fn say_noted(session: &mut Session, out: &mut Vec<Output>) {
    let to = session.worker;
    out.extend(session.noted.drain(..).map(|held| Output::Send { to, message: Message::Noted(held) }));
}
