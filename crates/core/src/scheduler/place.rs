//! Placement: from "ready to run" to a worker or a place in a queue.

use std::cell::Cell;

use smallvec::SmallVec;

use super::keys::Arrival;
use super::ready::Head;
use super::{Class, Flags, Scheduler, State, Timer, Worker, queue_key};
use crate::action::Action;
use crate::explain::{Decision, DecisionCandidate, Remembered};
use crate::ids::{KindId, NONE, TaskId, WorkerId};
use crate::policy::{self, ExpectedCompletion, Prospect, Rank, Stakes, TaskView, Terms, WorkerView};
use crate::resources::{Amount, Vector};
use crate::task::{Cause, Status};
use crate::time::Span;
use crate::tracker::Estimates;
use crate::worker::WorkerState;

/// Eligible classes whose best workers are scored for one task.
pub(crate) const CLASSES_SCORED: usize = 64;
/// Candidates that a decision is remembered with.
const CANDIDATES_KEPT: usize = 8;
/// Classes looked at for one task, eligible or not.
const CLASSES_LOOKED_AT: usize = 1024;
/// Workers of one class looked at for one task.
const WORKERS_LOOKED_AT: usize = 64;
/// Workers of all classes looked at for one task.
const LOOKS: usize = 4096;
/// Workers remembered as warm for one affinity key.
const WARM_KEPT: usize = 4;

/// Candidates for one task, by slot.
pub(crate) type Candidates = SmallVec<[u32; 16]>;

/// The same as a policy sees them. Large, so it is filled where it stands.
type Views<'a> = SmallVec<[WorkerView<'a>; 8]>;

/// What a candidate must have.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Room right now, and somebody waiting for a task.
    Room,
    /// Nothing but a queue.
    Queue,
}

/// What a task, or the next element of an array, asks of a worker: enough to say whether it fits there.
#[derive(Clone, Copy)]
pub(crate) struct Wish {
    pub(crate) signature: u32,
    pub(crate) kind: KindId,
    /// The duration its submitter expects.
    pub(crate) declared: Option<Span>,
    /// The task, unless it is an element that is none yet.
    pub(crate) task: Option<TaskId>,
}

impl Scheduler {
    /// A task is ready to run: hand it to a worker that waits for one, or queue it.
    #[inline]
    pub(super) fn enqueue(&mut self, slot: u32, cause: Cause, actions: &mut Vec<Action>) {
        self.tasks.at_mut(slot).ready_at = self.now;
        self.enqueue_again(slot, cause, actions);
    }

    /// The same for a task that has been ready for a while: its wait goes on.
    #[inline(always)]
    pub(super) fn enqueue_again(&mut self, slot: u32, cause: Cause, actions: &mut Vec<Action>) {
        let task = self.tasks.at(slot);
        debug_assert!(matches!(task.state, State::Blocked), "only tasks that are nowhere are queued");
        let (signature, key, pinned) = (task.signature, task.key, task.flags.has(Flags::PINNED));
        if !pinned && !self.has_host(signature) && self.workers.len() > 0 {
            self.park(slot, actions);
            return;
        }
        self.counters.queued += 1;
        if key == NONE || self.arrive_at_key(slot) {
            self.offer(slot, Some(cause), actions);
        } else {
            self.notify(slot, Status::Queued, cause, actions);
        }
    }

    /// A task without a key leaves its worker's queue for another: it has waited, and it ages, as before.
    pub(super) fn queue_elsewhere(&mut self, slot: u32, cause: Cause, actions: &mut Vec<Action>) {
        debug_assert!(self.tasks.at(slot).key == NONE, "tasks with a key are pinned or wait centrally");
        self.recall(slot, cause, actions);
        self.leave_worker_queue(slot);
        if self.may_stay(slot) {
            self.offer(slot, Some(cause), actions);
            return;
        }
        self.leave_waiting(slot);
        if self.tasks.at(slot).flags.has(Flags::PINNED) {
            self.lose_home(slot, actions);
        } else {
            self.park(slot, actions);
        }
    }

    /// A queued task that was taken out of its queue is nowhere then, and no longer counts as queued.
    pub(super) fn leave_waiting(&mut self, slot: u32) {
        self.age_leave(slot);
        self.counters.queued -= 1;
        self.tasks.at_mut(slot).state = State::Blocked;
    }

    /// Asks the task's key whether it may queue; if not it waits there.
    fn arrive_at_key(&mut self, slot: u32) -> bool {
        let task = self.tasks.at(slot);
        let place = queue_key(task.level, task.order(), slot);
        match self.keys.arrive(task.key, place) {
            Arrival::Offered => true,
            Arrival::Instead(other) => {
                self.step_back(other);
                true
            }
            Arrival::Waits => {
                self.tasks.at_mut(slot).state = State::KeyWaiting;
                self.age_enter(slot);
                false
            }
        }
    }

    /// A task steps back to wait for its key: out of its lane or its worker's queue, but still queued.
    pub(super) fn step_back(&mut self, slot: u32) {
        if self.tasks.at(slot).state == State::AtWorker {
            self.leave_worker_queue(slot);
        } else {
            self.leave_lane(slot);
        }
        self.tasks.at_mut(slot).state = State::KeyWaiting;
    }

    /// A task that waited for a token of its key may queue now.
    pub(super) fn offer_from_key(&mut self, slot: u32, actions: &mut Vec<Action>) {
        self.offer_first(slot, self.portion, Vec::new(), actions);
    }

    /// Lets the first task of a key queue, from `slot` on, that somebody can run. Those nobody can run any more are set
    /// aside on the way; those pinned to a worker that has gone too, and with them the `homeless`. How many tasks that
    /// were, at most `most`; the key keeps to what it has offered then, until the next step goes on.
    pub(super) fn offer_first(
        &mut self,
        mut slot: u32,
        most: usize,
        mut homeless: Vec<u32>,
        actions: &mut Vec<Action>,
    ) -> usize {
        let mut handled = 0;
        loop {
            handled += 1;
            let task = self.tasks.at(slot);
            let (key, place) = (task.key, self.queue_place(slot));
            let pinned = task.flags.has(Flags::PINNED);
            if self.may_stay(slot) {
                self.offer(slot, None, actions);
                break;
            }
            self.leave_waiting(slot);
            let next = if handled < most { self.keys.leave(key, place) } else { self.hold_key(key, place) };
            if pinned {
                homeless.push(slot);
            } else {
                self.park(slot, actions);
            }
            match next {
                Some(next) => slot = next,
                None => break,
            }
        }
        self.looked_at += handled as u64;
        for slot in homeless {
            self.lose_home(slot, actions);
        }
        handled
    }

    fn hold_key(&mut self, key: u32, place: super::QueueKey) -> Option<u32> {
        self.unfinished |= self.keys.leave_and_hold(key, place);
        None
    }

    /// Finds a worker for a task that may queue, or a place in a queue. If it is news that it queues, that is told
    /// once its place is known, and before it leaves it again.
    fn offer(&mut self, slot: u32, news: Option<Cause>, actions: &mut Vec<Action>) {
        let task = self.tasks.at(slot);
        if task.flags.has(Flags::PINNED) {
            self.offer_to_pinned(slot, news, actions);
            return;
        }
        if !task.waits_centrally() {
            if task.flags.has(Flags::EXTRA)
                && let Some(worker) = self.seeded_at(slot)
            {
                self.tasks.forget_seed(slot);
                self.push_to(slot, worker, news, actions);
                return;
            }
            if self.push_bound() {
                let candidates = self.candidates(slot, Wanted::Queue);
                if let Some(worker) = self.decide(slot, &candidates) {
                    self.push_to(slot, worker, news, actions);
                    return;
                }
            }
        }
        if self.directories.iter().any(|directory| !directory.is_empty())
            && let Some(worker) = self.who_has_room(slot)
        {
            self.give(slot, worker, news, actions);
            return;
        }
        self.put_in_lane(slot);
        self.tell_queued(slot, news, actions);
    }

    /// Gives a worker a task that is in no queue, though it may have waited in one: to a slot, or into a queue of its own if
    /// that is where it waits.
    pub(super) fn give(&mut self, slot: u32, worker: u32, news: Option<Cause>, actions: &mut Vec<Action>) {
        let ahead = self.is_ahead(slot, self.workers[worker].class);
        if ahead && !self.begins_at_once(slot, worker) {
            self.put_at_worker_unlisted(slot, worker);
            self.tell_queued(slot, news, actions);
            self.hand_over(slot, actions);
        } else {
            self.tell_queued(slot, news, actions);
            if self.tasks.at(slot).state.is_queued() {
                self.age_leave(slot);
            }
            self.counters.queued -= 1;
            if ahead {
                self.hand_to_slot(slot, worker, actions);
            } else {
                self.assign(slot, worker, actions);
            }
        }
        self.relist(worker);
    }

    /// A task goes to a worker's own queue, whoever decided that.
    fn push_to(&mut self, slot: u32, worker: u32, news: Option<Cause>, actions: &mut Vec<Action>) {
        self.put_at_worker_unlisted(slot, worker);
        self.tell_queued(slot, news, actions);
        self.hand_over(slot, actions);
        self.serve(worker, actions);
    }

    /// The worker whose queue a task that was never handed out goes to by its submitter's wish, if it gets work and can
    /// run it.
    fn seeded_at(&self, slot: u32) -> Option<u32> {
        let task = self.tasks.at(slot);
        let home = self.tasks.extra(slot).and_then(|extra| extra.seeded).filter(|_| task.attempt == 0)?;
        let at = self.worker_slot(home).ok()?;
        let worker = &self.workers[at];
        let able = || self.classes[worker.class].can_ever(&self.signatures[task.signature]).is_ok();
        (worker.state == WorkerState::Up && able()).then_some(at)
    }

    /// Who gets a task that needs room right now, of those who wait for one.
    pub(super) fn who_has_room(&mut self, slot: u32) -> Option<u32> {
        let candidates = self.candidates(slot, Wanted::Room);
        self.decide(slot, &candidates).or_else(|| self.as_if_asked(slot, &candidates))
    }

    /// The policy refused everybody who waits for a task. Whoever asks gets the first it can run, whatever the policy says
    /// of it; so does who has asked and waits. Otherwise both would wait for each other.
    fn as_if_asked(&mut self, slot: u32, candidates: &[u32]) -> Option<u32> {
        let &worker = candidates.first()?;
        self.remember_asked(slot, worker);
        Some(worker)
    }

    #[inline]
    fn tell_queued(&self, slot: u32, news: Option<Cause>, actions: &mut Vec<Action>) {
        if let Some(cause) = news {
            self.notify(slot, Status::Queued, cause, actions);
        }
    }

    /// A pinned task goes to its worker's queue, or nowhere if that worker has gone; then the next task of its key gets its
    /// chance.
    fn offer_to_pinned(&mut self, slot: u32, news: Option<Cause>, actions: &mut Vec<Action>) {
        if let Some(worker) = self.home_of(slot) {
            self.push_to(slot, worker, news, actions);
            return;
        }
        self.tell_queued(slot, news, actions);
        let (key, place) = (self.tasks.at(slot).key, self.queue_place(slot));
        self.counters.queued -= 1;
        let next = if key == NONE { None } else { self.keys.leave(key, place) };
        match next {
            Some(next) => {
                self.offer_first(next, self.portion, vec![slot], actions);
            }
            None => self.lose_home(slot, actions),
        }
    }

    /// Puts a task into the central queue. If it waited elsewhere it goes on aging.
    #[inline(always)]
    pub(super) fn put_in_lane(&mut self, slot: u32) {
        let task = self.tasks.at_mut(slot);
        let waited = std::mem::replace(&mut task.state, State::Central).is_queued();
        task.worker = NONE;
        let (level, job, signature) = (task.level, task.job, task.signature);
        let received = self.join_level(level, job);
        self.ready.push(&mut self.signatures[signature].waiting, &self.tasks, slot, received);
        if !waited {
            self.age_enter(slot);
        }
    }

    /// The key under which a job takes its turns in a level: what it has received, but not less than the others there.
    #[inline(always)]
    pub(super) fn join_level(&mut self, level: u8, job: u32) -> u64 {
        match self.ready.only_job(level) {
            Some(only) if only == job => return self.jobs[job].received,
            Some(only) => self.ready.refresh(only, self.jobs[only].received),
            None => {}
        }
        let floor = self.ready.floor(level);
        if self.jobs[job].received < floor {
            self.jobs[job].received = floor;
            self.ready.refresh(job, floor);
        }
        self.jobs[job].received
    }

    /// Takes a task out of its lane; it stays in its level's list by age.
    #[inline(always)]
    pub(super) fn leave_lane(&mut self, slot: u32) {
        let signature = self.tasks.at(slot).signature;
        let next = self.ready.remove(&mut self.signatures[signature].waiting, &self.tasks, slot);
        self.left_lane(slot, next);
    }

    /// A task was taken out of its lane, where that is first now.
    #[inline(always)]
    pub(super) fn left_lane(&mut self, slot: u32, next: Option<Head>) {
        let task = self.tasks.at(slot);
        let (signature, reserved) = (task.signature, task.flags.has(Flags::RESERVED));
        if let Some(Head::Task(next)) = next {
            // It will probably be handed out next: by then it has come from memory.
            self.tasks.fetch(next, signature);
        }
        if reserved {
            self.drop_reservation(slot);
        }
    }

    /// Puts a task into a worker's own queue. If it waited elsewhere it goes on aging.
    pub(super) fn put_at_worker(&mut self, slot: u32, worker: u32) {
        self.put_at_worker_unlisted(slot, worker);
        self.relist(worker);
    }

    /// The same where the worker is listed anew only when something else about it has changed too, with nobody placed in
    /// between.
    pub(super) fn put_at_worker_unlisted(&mut self, slot: u32, worker: u32) {
        let planned = self.planned_for(slot, self.workers[worker].class);
        let task = self.tasks.at_mut(slot);
        let waited = std::mem::replace(&mut task.state, State::AtWorker).is_queued();
        task.worker = worker;
        task.planned = planned;
        let (place, stays) = (self.queue_place(slot), self.stays(slot));
        let target = &mut self.workers[worker];
        target.queue.insert(place, stays);
        target.queued_work += planned;
        self.turn += 1;
        self.workers[worker].last_assigned = self.turn;
        self.depth_changed(worker, false);
        if !waited {
            self.age_enter(slot);
        }
    }

    /// Takes a task out of its worker's queue; it stays in its level's list by age.
    pub(super) fn leave_worker_queue(&mut self, slot: u32) {
        let worker = self.leave_worker_unlisted(slot);
        self.relist(worker);
    }

    /// The same where the worker is listed anew only when something else about it has changed too, with nobody placed in
    /// between. Who the worker is.
    pub(super) fn leave_worker_unlisted(&mut self, slot: u32) -> u32 {
        self.drop_reservation(slot);
        let task = self.tasks.at_mut(slot);
        let (worker, planned) = (task.worker, task.planned);
        let place = queue_key(task.level, task.order(), slot);
        task.worker = NONE;
        let source = &mut self.workers[worker];
        let removed = source.queue.remove(&place);
        debug_assert!(removed, "a task at a worker is in its queue");
        source.queued_work -= planned;
        self.depth_changed(worker, true);
        worker
    }

    /// Keeps the indexes by queue length right after one task came or went.
    fn depth_changed(&mut self, slot: u32, shrunk: bool) {
        let worker = &mut self.workers[slot];
        let now = worker.queue.len() as u32;
        let before = if shrunk { now + 1 } else { now - 1 };
        if before == 0 {
            worker.loaded_at = self.loaded.len() as u32;
            self.loaded.push(slot);
        } else if now == 0 {
            let at = worker.loaded_at as usize;
            worker.loaded_at = NONE;
            self.loaded.swap_remove(at);
            if let Some(&moved) = self.loaded.get(at) {
                self.workers[moved].loaded_at = at as u32;
            }
        }
        if self.by_depth.remove(&(before, slot)) {
            self.by_depth.insert((now, slot));
        }
        self.counters.depth_changed(before, now, &self.config.load_balancing.thresholds);
    }

    /// Sets a task aside that nobody can run; it is tried again a few times.
    pub(super) fn park(&mut self, slot: u32, actions: &mut Vec<Action>) {
        let due = self.now + self.config.limits.requeue_interval;
        let task = self.tasks.at_mut(slot);
        debug_assert_eq!(task.state, State::Blocked, "only tasks that are nowhere are set aside");
        task.state = State::Parked;
        task.since = due;
        let signature = task.signature;
        self.parked.entry(signature).or_default().insert(slot);
        self.counters.parked += 1;
        self.timers.set(due, Timer::Park(self.tasks.id(slot)));
        self.notify(slot, Status::Unschedulable, Cause::NoWorker, actions);
    }

    /// Takes a parked task back to nowhere.
    pub(super) fn unpark(&mut self, slot: u32) {
        let id = self.tasks.id(slot);
        let task = self.tasks.at_mut(slot);
        task.state = State::Blocked;
        let (due, signature) = (task.since, task.signature);
        self.timers.cancel(due, Timer::Park(id));
        self.counters.parked -= 1;
        if let Some(slots) = self.parked.get_mut(&signature) {
            slots.remove(&slot);
            if slots.is_empty() {
                self.parked.remove(&signature);
            }
        }
    }

    /// The workers a policy looks at for a task: the best few of each eligible class, in the order the policy asks
    /// for, then those where the task's data is warm and the one that runs its parent.
    pub(crate) fn candidates(&self, slot: u32, wanted: Wanted) -> Candidates {
        let task = self.tasks.at(slot);
        let signature = &self.signatures[task.signature];
        let directory = &self.directories[self.placement(signature.needs.task_type).directory];
        let per_class = self.config.scheduling.candidates_per_class as usize;
        let mut found = Candidates::new();
        let (eligible, looks) = (Cell::new(0), Cell::new(0));
        let mut consider = |class: u32| {
            if self.classes[class].can_ever(signature).is_ok() {
                let before = found.len();
                let ahead = self.is_ahead(slot, class);
                let mut looked_at = 0;
                for at in directory.workers(class).take(WORKERS_LOOKED_AT) {
                    looked_at += 1;
                    if self.is_candidate(slot, at, wanted, ahead) {
                        found.push(at);
                        if found.len() == before + per_class {
                            break;
                        }
                    }
                }
                looks.set(looks.get() + looked_at);
                // A class without room must not stand before one that has some.
                eligible.set(eligible.get() + usize::from(found.len() > before));
            }
            eligible.get() == CLASSES_SCORED || looks.get() >= LOOKS
        };
        if !directory.classes().take(CLASSES_LOOKED_AT).any(&mut consider)
            && eligible.get() == 0
            && directory.class_count() > CLASSES_LOOKED_AT
        {
            // Those few that can run it stand behind very many that cannot.
            let known = signature.host;
            let others = self.hosts.walk(signature, 0).map(|(_, class)| class).filter(|&class| class != known);
            let known = self.classes.get(known).map(|_| known).into_iter();
            known.chain(others.take(CLASSES_LOOKED_AT)).any(consider);
        }
        if task.flags.has(Flags::EXTRA) {
            for id in self.affine(slot) {
                if let Ok(at) = self.worker_slot(id)
                    && self.workers[at].listed
                    && !found.contains(&at)
                    && self.classes[self.workers[at].class].can_ever(signature).is_ok()
                    && self.is_candidate(slot, at, wanted, self.is_ahead(slot, self.workers[at].class))
                {
                    found.push(at);
                }
            }
        }
        found
    }

    /// Workers worth a look although their class may not offer them.
    fn affine(&self, slot: u32) -> SmallVec<[WorkerId; 4]> {
        let Some(extra) = self.tasks.extra(slot) else { return SmallVec::new() };
        let warm = extra.affinity.iter().filter_map(|(key, _)| self.warm.get(&key.0)).flatten().copied();
        warm.chain(self.parent_worker(slot)).collect()
    }

    fn parent_worker(&self, slot: u32) -> Option<WorkerId> {
        let parent = self.tasks.extra(slot)?.spawned_by?;
        let at = self.tasks.at(self.tasks.find(parent)?).at_worker();
        (at != NONE).then(|| self.worker_id(at))
    }

    /// Whether a worker is worth a look; `ahead` says whether those of its class get such a task before there is room.
    #[inline(always)]
    fn is_candidate(&self, slot: u32, at: u32, wanted: Wanted, ahead: bool) -> bool {
        let worker = &self.workers[at];
        match wanted {
            Wanted::Queue => worker.state == WorkerState::Up,
            Wanted::Room => {
                at != self.aside
                    && self.takes_tasks(worker)
                    && (ahead || self.wish_fits(&self.wish_of(slot), at).is_ok())
            }
        }
    }

    /// Whether a task that this worker could run fits there right now.
    #[inline]
    pub(crate) fn fits_now(&self, slot: u32, at: u32) -> Result<(), super::Shortage> {
        if self.is_ahead(slot, self.workers[at].class) {
            return Ok(());
        }
        self.wish_fits(&self.wish_of(slot), at)
    }

    /// What a task asks of a worker.
    #[inline]
    pub(crate) fn wish_of(&self, slot: u32) -> Wish {
        let task = self.tasks.at(slot);
        let id = TaskId { slot, generation: task.generation };
        Wish { signature: task.signature, kind: task.kind, declared: task.declared(), task: Some(id) }
    }

    /// Whether what somebody asks of a worker that could run it is there right now.
    #[inline]
    pub(crate) fn wish_fits(&self, wish: &Wish, at: u32) -> Result<(), super::Shortage> {
        let worker = &self.workers[at];
        let (class, signature) = (&self.classes[worker.class], &self.signatures[wish.signature]);
        worker.has_room(class, signature)?;
        if worker.reservation().is_none_or(|reservation| Some(reservation.task) == wish.task) {
            return Ok(());
        }
        self.kept(at).map_or(Ok(()), |kept| self.may_pass(wish, at, &kept))
    }

    /// The candidate the task's policy likes best; remembered, with the scores, if decisions are kept.
    fn decide(&mut self, slot: u32, candidates: &[u32]) -> Option<u32> {
        if candidates.is_empty() {
            return None;
        }
        if self.config.limits.decisions_kept == 0
            && let Some(expected) = self.policy_of(slot).expected_completion()
        {
            return self.soonest(expected, slot, candidates);
        }
        let mut scores = std::mem::take(&mut self.scores);
        let (winner, decision) = {
            let mut views = Views::new();
            self.look_at(slot, candidates, &mut views);
            let task = self.task_view(slot);
            let policy = self.policy_of(slot);
            policy.score_all(&task, &views, &mut scores);
            let winner = policy::best(&views, &scores);
            debug_assert!(
                policy.expected_completion().is_none_or(|expected| {
                    self.soonest(expected, slot, candidates) == winner.map(|at| candidates[at])
                }),
                "whether a decision is remembered does not change it"
            );
            let recorded = winner.filter(|_| self.config.limits.decisions_kept > 0);
            (winner, recorded.map(|winner| self.describe_decision(slot, policy, &task, &views, &scores, winner)))
        };
        scores.clear();
        self.scores = scores;
        if let Some(decision) = decision {
            self.remember(Remembered::Scored(Box::new(decision)));
        }
        winner.map(|winner| candidates[winner])
    }

    fn policy_of(&self, slot: u32) -> &dyn policy::Policy {
        &*self.placement(self.signatures[self.tasks.at(slot).signature].needs.task_type).policy
    }

    /// The candidate that [`ExpectedCompletion`] likes best, by the same formula but without the view of everything there is to
    /// know of each.
    fn soonest(&self, policy: &ExpectedCompletion, slot: u32, candidates: &[u32]) -> Option<u32> {
        let task = self.tasks.at(slot);
        let signature = &self.signatures[task.signature];
        let stakes = Stakes::new(self.now, task.deadline, self.retry_terms(slot).backoff);
        let has_affinity = task.flags.has(Flags::EXTRA);
        let mut estimates = Estimates::new();
        self.estimator.estimate_each(task.kind, candidates, task.declared(), &mut estimates);
        let mut winner: Option<(u32, Rank)> = None;
        // What all of a class have in common, and how much a task fragments those who have the same reserved: candidates
        // come class by class, and most of them are alike.
        let mut common: Option<(u32, &Class, u32)> = None;
        let mut alike: Option<(&Vector, Option<f64>)> = None;
        for (&at, &(mut estimate)) in candidates.iter().zip(&estimates) {
            let worker = &self.workers[at];
            let (class, spare) = match common {
                Some((known, class, spare)) if known == worker.class => (class, spare),
                _ => {
                    let class = &self.classes[worker.class];
                    let spare = class.bits.spare(&signature.needs.requires, &signature.needs.skills);
                    common = Some((worker.class, class, spare));
                    alike = None;
                    (class, spare)
                }
            };
            let fragmentation = match alike {
                Some((reserved, fragmentation)) if reserved.is(&worker.reserved) => fragmentation,
                _ => policy::fragmentation(&signature.demand, &class.capacity, &worker.reserved),
            };
            alike = Some((&worker.reserved, fragmentation));
            if estimate.samples == 0 && class.speed != 1.0 {
                estimate.duration = estimate.duration.mul_f64(1.0 / class.speed);
            }
            let is_idle = worker.has_free_slot() && worker.queue.is_empty();
            let prospect = Prospect {
                wait_s: if is_idle { 0.0 } else { worker.backlog().as_secs_f64() },
                cold_s: if has_affinity { self.warmth(slot, at).0.as_secs_f64() } else { 0.0 },
                cost_rate: class.cost_rate,
                estimate,
            };
            let score = policy.sum(&stakes, &prospect, fragmentation, &mut Terms::default());
            let id = WorkerId { slot: at, generation: worker.generation };
            if let Some(rank) = Rank::new(score, spare, id)
                && winner.is_none_or(|(_, best)| rank.beats(best))
            {
                winner = Some((at, rank));
            }
        }
        winner.map(|(at, _)| at)
    }

    fn describe_decision(
        &self,
        slot: u32,
        policy: &dyn policy::Policy,
        task: &TaskView<'_>,
        views: &[WorkerView<'_>],
        scores: &[Option<f64>],
        winner: usize,
    ) -> Decision {
        let shown = policy::leaders(scores, winner, CANDIDATES_KEPT);
        let terms = policy.terms_of(task, views, &shown);
        let candidates = shown.iter().zip(terms).map(|(&at, mut terms)| DecisionCandidate {
            worker: views[at].id,
            score: scores[at],
            terms: terms.take(),
        });
        Decision {
            task: self.tasks.id(slot),
            at: self.now,
            worker: views[winner].id,
            policy: policy.name().to_owned(),
            candidates: candidates.collect(),
            scored: views.len() as u32,
        }
    }

    /// A worker asked, and the task was the first in order that it could run.
    #[inline(always)]
    pub(super) fn remember_asked(&mut self, slot: u32, worker: u32) {
        if self.config.limits.decisions_kept > 0 {
            let (task, worker, at) = (self.tasks.id(slot), self.worker_id(worker), self.now);
            self.remember(Remembered::Asked { task, worker, at });
        }
    }

    /// Keeps a decision for explanations, and forgets the oldest beyond the limit.
    #[inline(always)]
    fn remember(&mut self, decision: Remembered) {
        let kept = self.config.limits.decisions_kept as usize;
        while self.decisions.len() >= kept.max(1) {
            self.decisions.pop_front();
        }
        self.decisions.push_back(decision);
    }

    pub(crate) fn task_view(&self, slot: u32) -> TaskView<'_> {
        let task = self.tasks.at(slot);
        TaskView {
            now: self.now,
            kind: task.kind,
            priority: task.priority,
            estimate: task.declared(),
            deadline: task.deadline,
            demand: &self.signatures[task.signature].demand,
            retry_pause: self.retry_terms(slot).backoff,
            parent_worker: self.parent_worker(slot),
        }
    }

    /// Candidates for a task as its policy sees them.
    fn look_at<'a>(&'a self, slot: u32, candidates: &[u32], views: &mut Views<'a>) {
        let task = self.tasks.at(slot);
        let (kind, declared, has_affinity) = (task.kind, task.declared(), task.flags.has(Flags::EXTRA));
        let signature = &self.signatures[task.signature];
        let average = self.average_of(signature.needs.task_type);
        // What all of a class have in common is found out once: candidates come class by class.
        let mut common = None;
        for &at in candidates {
            let worker = &self.workers[at];
            let (class, gpus, skill_match, spare) = match common {
                Some((known, suits)) if known == worker.class => suits,
                _ => {
                    let (class, needs) = (&self.classes[worker.class], &signature.needs);
                    let gpus = class.capacity.get(crate::ids::ResourceId::GPUS).as_f64();
                    let skill_match = class.bits.skill_match(&needs.skills);
                    let suits = (class, gpus, skill_match, class.bits.spare(&needs.requires, &needs.skills));
                    common = Some((worker.class, suits));
                    suits
                }
            };
            let mut estimate = self.estimator.estimate(kind, at as usize, declared);
            if estimate.samples == 0 && class.speed != 1.0 {
                estimate.duration = estimate.duration.mul_f64(1.0 / class.speed);
            }
            let (cold, warm) = if has_affinity { self.warmth(slot, at) } else { (Span::ZERO, false) };
            views.push(WorkerView {
                id: WorkerId { slot: at, generation: worker.generation },
                joined: worker.joined,
                slots: worker.slots,
                running: worker.used_slots(),
                queued: worker.queue.len() as u32,
                gpus,
                backlog: worker.backlog(),
                skill_match,
                spare,
                success_rate: worker.success_rate(),
                average: worker.average(average),
                estimate,
                cost_rate: class.cost_rate,
                weight: class.weight,
                assigned: worker.given(),
                last_assigned: worker.last_assigned,
                cold,
                warm,
                capacity: &class.capacity,
                reserved: &worker.reserved,
            });
        }
    }

    /// What a task loses on a worker because what it has affinity to is not warm there, and whether anything is.
    pub(crate) fn warmth(&self, slot: u32, at: u32) -> (Span, bool) {
        let (mut cold, mut warm) = (Span::ZERO, false);
        for &(key, saved) in self.tasks.extra(slot).iter().flat_map(|extra| &extra.affinity) {
            if self.is_warm(key.0, at) {
                warm = true;
            } else {
                cold += saved;
            }
        }
        (cold, warm)
    }

    fn is_warm(&self, key: u32, at: u32) -> bool {
        let id = self.worker_id(at);
        self.warm.get(&key).is_some_and(|workers| workers.contains(&id))
    }

    /// What the task has affinity to is warm where it runs from now on.
    pub(super) fn warm_up(&mut self, slot: u32, at: u32) {
        let id = self.worker_id(at);
        let keys: SmallVec<[u32; 2]> =
            self.tasks.extra(slot).iter().flat_map(|extra| &extra.affinity).map(|(key, _)| key.0).collect();
        for key in keys {
            let workers = self.warm.entry(key).or_default();
            // Who has gone keeps nobody's place.
            let there =
                |known: &WorkerId| self.workers.get(known.slot).is_some_and(|w| w.generation == known.generation);
            workers.retain(|known| *known != id && there(known));
            workers.insert(0, id);
            workers.truncate(WARM_KEPT);
        }
    }

    /// Whether a worker would take more than it has. One with a queue of its own says how many it likes to have; what it
    /// was told to stop it still has, as far as is known.
    #[inline]
    pub(crate) fn takes_tasks(&self, worker: &Worker) -> bool {
        if !self.remote {
            return worker.credit > 0;
        }
        worker.credit > worker.holds + worker.ghosts().len() as u32
    }

    /// Whether a worker may be given something right away: into its queue, or because it waits for it.
    #[inline]
    pub(crate) fn belongs_in_directories(&self, worker: &Worker) -> bool {
        let takes_more = self.takes_tasks(worker) && (self.remote || worker.has_free_slot());
        worker.state == WorkerState::Up && (self.push_bound() || takes_more)
    }

    /// Lists a worker in the directories as it is now, or takes it out if it should not be there.
    #[inline]
    pub(super) fn relist(&mut self, slot: u32) {
        let worker = &self.workers[slot];
        if self.belongs_in_directories(worker) {
            self.list(slot);
        } else if worker.listed {
            self.unlist(slot);
        }
    }

    #[inline(never)]
    fn list(&mut self, slot: u32) {
        let class = self.workers[slot].class;
        for at in 0..self.orders.len() {
            if !self.directories[at].covers(slot) {
                continue;
            }
            let key = self.directory_key(slot, self.orders[at]);
            let worker = &mut self.workers[slot];
            if !worker.listed {
                self.enter_directory(at, class, key, slot);
            } else if worker.keys[at] != key {
                let before = std::mem::replace(&mut worker.keys[at], key);
                self.directories[at].change(class, before, key, slot);
            }
        }
        self.workers[slot].listed = true;
    }

    #[inline(never)]
    pub(super) fn unlist(&mut self, slot: u32) {
        let worker = &mut self.workers[slot];
        if !worker.listed {
            return;
        }
        worker.listed = false;
        for (directory, &key) in self.directories.iter_mut().zip(&worker.keys) {
            if directory.covers(slot) {
                directory.remove(worker.class, key, slot);
            }
        }
    }

    pub(super) fn enter_directory(&mut self, at: usize, class: u32, key: u64, slot: u32) {
        let keys = &mut self.workers[slot].keys;
        if at >= keys.len() {
            keys.resize(at + 1, 0);
        }
        keys[at] = key;
        self.directories[at].insert(class, key, slot);
    }

    pub(crate) fn directory_key(&self, slot: u32, order: policy::Order) -> u64 {
        let worker = &self.workers[slot];
        let held = u64::from(worker.used_slots()) + worker.queue.len() as u64;
        match order {
            policy::Order::Load => worker.backlog().0,
            policy::Order::Joined if worker.has_free_slot() && worker.queue.is_empty() => worker.joined,
            policy::Order::Joined => (1 << 63) | worker.joined,
            policy::Order::Recency => worker.last_assigned,
            policy::Order::Weighted => {
                let share = (worker.given() + 1) as f64 / self.classes[worker.class].weight;
                Amount::from_f64(share).0
            }
            policy::Order::Batch(size) => {
                if held < u64::from(size) {
                    0
                } else {
                    held
                }
            }
        }
    }
}
