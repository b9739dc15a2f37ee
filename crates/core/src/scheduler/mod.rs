//! The scheduler machine: events in, actions out.
//!
//! [`Scheduler::step`] takes one event at one moment, changes the state, and appends what is to be done. It never
//! reads a clock, draws from a random device, or looks at all workers or all tasks because of one event. The same
//! events with the same seed give the same actions, byte for byte.

mod balance;
mod blocks;
#[cfg(test)]
mod bounds;
mod chores;
mod devices;
mod directory;
mod ends;
mod hosts;
mod keys;
mod line;
mod members;
mod needs;
mod own;
mod place;
mod ready;
mod remote;
mod reserve;
mod restore;
mod run;
mod serve;
mod settle;
mod slab;
pub(crate) mod sorted;
mod state;
mod submit;
mod tasks;
mod timers;
mod upkeep;
mod view;
mod workers;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use smallvec::SmallVec;

use crate::action::{Action, Record, Refusal};
use crate::config::{Bind, Config};
use crate::event::Event;
use crate::explain::Remembered;
use crate::ids::{JobId, KindId, NONE, Names, TaskId, WorkerId};
use crate::map::{Map, Steady};
use crate::metrics::{Counters, Sample};
use crate::policy::{self, Order, Policy, PolicyError};
use crate::rng::Rng;
use crate::steal::{Guard, VictimChooser};
use crate::task::{Cause, Status};
use crate::time::{Span, Time};
use crate::tracker::{Estimator, Tracker};
use crate::worker::recent::Recent;

pub(crate) use devices::{DeviceSet, Devices, wanted as wanted_devices};
pub(crate) use directory::Directory;
use ends::LatestEnds;
pub(crate) use hosts::{CLASS_LOOKS, Hosts};
pub(crate) use keys::Keys;
pub(crate) use needs::SharedNeeds;
pub(crate) use place::Wish;
pub(crate) use ready::{LEVELS, Ready};
pub use restore::attempt_in_life;
pub(crate) use slab::{Interner, Slab};
pub(crate) use state::{Array, ArrayPlace, Class, Job, QueueKey, Shortage, Signature, Worker, queue_key};
pub(crate) use tasks::{Flags, OrderKey, State, Tasks};
pub(crate) use timers::{Timer, Timers};
pub use view::JobFigures;

/// The job of tasks that name none.
pub(crate) const COMMON_JOB: u32 = 0;

/// Weight of the newest observation in the moving averages, unless `adaptive` says otherwise.
const EWMA_ALPHA: f64 = 0.1;
/// Workers started anew that are remembered.
const HEIRS: usize = 4096;

/// The least a task is planned with, however short its kind has been: a queue of such tasks still is work, so loads
/// differ and a steal from it can be worth it.
const LEAST_PLANNED: Span = Span::from_micros(1);

/// The time that something is planned with on a worker of a class, if it takes so long on an ordinary one.
#[inline]
fn planned_on(class: &Class, anywhere: Span) -> Span {
    let planned = if class.speed == 1.0 { anywhere } else { anywhere.mul_f64(1.0 / class.speed) };
    planned.max(LEAST_PLANNED)
}

/// A policy in use.
struct Placement {
    policy: Box<dyn Policy>,
    /// The directory it chooses candidates from.
    directory: usize,
    /// The one whose order it wants; another one as long as that is not whole.
    wanted: usize,
    /// Which of the workers' moving averages it is shown.
    average: usize,
    /// Whom its tasks are stolen from, if the policy has a say in that.
    chooser: Option<VictimChooser>,
}

/// Oldest and newest task of a level, by the time they came to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AgeList {
    pub(crate) oldest: u32,
    pub(crate) newest: u32,
}

/// The scheduler machine.
///
/// See the [crate's documentation](crate) for an example.
pub struct Scheduler {
    pub(crate) config: Config,
    rng: Rng,
    pub(crate) now: Time,
    pub(crate) tasks: Tasks,
    pub(crate) workers: Slab<Worker>,
    worker_generations: Vec<u32>,
    pub(crate) classes: Slab<Class>,
    class_table: Interner,
    hosts: Hosts,
    pub(crate) signatures: Slab<Signature>,
    signature_table: Interner,
    pub(crate) needs: SharedNeeds,
    /// The signature interned last, which the next task is likely to share.
    last_signature: u32,
    pub(crate) jobs: Slab<Job>,
    job_generations: Vec<u32>,
    pub(crate) ready: Ready,
    pub(crate) keys: Keys,
    pub(crate) timers: Timers,
    pub(crate) directories: Vec<Directory>,
    pub(crate) orders: Vec<Order>,
    placements: Vec<Placement>,
    placement_by_type: Map<u32, usize>,
    pub(crate) estimator: Box<dyn Estimator>,
    latest_ends: LatestEnds,
    /// Workers with something in their queue, in no particular order.
    pub(crate) loaded: Vec<u32>,
    /// All workers that are up, by the length of their queue; kept under `bind: push`.
    pub(crate) by_depth: BTreeSet<(u32, u32)>,
    chooser: VictimChooser,
    guard: Guard,
    pub(crate) aging: [AgeList; LEVELS],
    aging_at: Option<Time>,
    /// Workers that last ran something with an affinity key, newest first.
    warm: BTreeMap<u32, SmallVec<[WorkerId; 4]>>,
    /// Where the search for gone workers among them goes on.
    warm_from: Option<u32>,
    /// Somebody else has gone since it began.
    warm_again: bool,
    /// Something is left for the next step.
    unfinished: bool,
    /// Tasks of a key that one step lets in or out.
    portion: usize,
    /// Workers have queues of their own; those kept here are what is known of them.
    remote: bool,
    /// Attempts, and generations of ids, are counted from here: beyond all that an earlier life may have given out.
    first_generation: u32,
    /// The generations beyond belong to later lives.
    last_generation: u32,
    /// Entries that bounded searches and unfinished business have looked at, for tests of the bounds.
    pub(crate) looked_at: u64,
    /// Attempts that no longer count but may still occupy a worker, and whom.
    pub(crate) ghosts: Steady<(TaskId, u32), u32>,
    /// Where the search for tasks without any possible worker goes on.
    orphans_from: Option<ready::Cursor>,
    /// Keyed arrays whose next elements may wait for their key now.
    hungry: Vec<u32>,
    /// Arrays that nobody can run.
    parked_arrays: BTreeSet<u32>,
    /// Workers whose reservation was dropped in this step.
    released: Vec<u32>,
    /// Tasks that wait for nobody any more and are about to be queued, the next one last; and whether that is under way.
    freed: Vec<TaskId>,
    freeing: bool,
    /// The job that is being cancelled.
    cancelling: u32,
    /// The worker that changes or whose attempt ends in this step: it is served once what that sets free has queued,
    /// so that it gets the first in order and not whatever came free first.
    aside: u32,
    /// Tasks nobody can run, by signature.
    pub(crate) parked: BTreeMap<u32, BTreeSet<u32>>,
    /// Who came after workers that were started anew.
    heirs: Recent<WorkerId, WorkerId>,
    pub(crate) counters: Counters,
    samples: VecDeque<Sample>,
    /// Scores of the candidates for a task; empty between two decisions, and serves again.
    scores: Vec<Option<f64>>,
    pub(crate) decisions: VecDeque<Remembered>,
    refusal: Option<Refusal>,
    /// The policy that was replaced last, for whoever does not want it dropped here.
    replaced: Option<Box<dyn Policy>>,
    announced: Option<Time>,
    records: bool,
    /// Whether anybody reads how tasks fare.
    notices: bool,
    sequence: u64,
    turn: u64,
    /// Weights of the newest observation, one for each moving average that workers have.
    alphas: SmallVec<[f64; 1]>,
}

impl Scheduler {
    /// A scheduler with nothing in it.
    ///
    /// # Errors
    /// If the default policy of the configuration cannot be made. Policies per type need the driver's names: see
    /// [`use_policies_per_type`](Self::use_policies_per_type).
    pub fn new(config: &Config) -> Result<Scheduler, PolicyError> {
        let scheduling = &config.scheduling;
        let thresholds = &config.load_balancing.thresholds;
        let stealing = config.stealing.under(scheduling.bind);
        let mut jobs = Slab::default();
        jobs.insert(Job::new(0, 1.0));
        let mut scheduler = Scheduler {
            rng: Rng::new(config.seed),
            now: Time::ZERO,
            tasks: Tasks::new(config.limits.settled_kept as usize),
            workers: Slab::default(),
            worker_generations: Vec::new(),
            classes: Slab::default(),
            class_table: Interner::default(),
            hosts: Hosts::default(),
            signatures: Slab::default(),
            signature_table: Interner::default(),
            needs: SharedNeeds::default(),
            last_signature: NONE,
            jobs,
            job_generations: vec![0],
            ready: Ready::new(scheduling.fair_share),
            keys: Keys::new(config.limits.key_limit),
            timers: Timers::default(),
            directories: Vec::new(),
            orders: Vec::new(),
            placements: Vec::new(),
            placement_by_type: Map::default(),
            estimator: Box::new(Tracker::new(scheduling.default_estimate)),
            latest_ends: LatestEnds::default(),
            loaded: Vec::new(),
            by_depth: BTreeSet::new(),
            chooser: VictimChooser::new(&stealing, thresholds.busy_threshold),
            guard: Guard::new(config),
            aging: [AgeList { oldest: NONE, newest: NONE }; LEVELS],
            aging_at: None,
            warm: BTreeMap::new(),
            warm_from: None,
            warm_again: false,
            unfinished: false,
            portion: chores::PORTION,
            remote: false,
            first_generation: 0,
            last_generation: u32::MAX,
            looked_at: 0,
            ghosts: Steady::default(),
            orphans_from: None,
            hungry: Vec::new(),
            parked_arrays: BTreeSet::new(),
            released: Vec::new(),
            freed: Vec::new(),
            freeing: false,
            cancelling: NONE,
            aside: NONE,
            parked: BTreeMap::new(),
            heirs: Recent::new(HEIRS),
            counters: Counters::default(),
            samples: VecDeque::new(),
            scores: Vec::new(),
            decisions: VecDeque::new(),
            refusal: None,
            replaced: None,
            announced: None,
            records: false,
            notices: true,
            sequence: 0,
            turn: 0,
            alphas: SmallVec::new(),
            config: Config { stealing, ..config.clone() },
        };
        let default = policy::create(&config.scheduling.policy, config)?;
        scheduler.set_placement(None, default);
        scheduler.arm_upkeep();
        Ok(scheduler)
    }

    /// Replaces the source of estimates; what was learned before is gone.
    #[must_use]
    pub fn with_estimator(mut self, estimator: Box<dyn Estimator>) -> Scheduler {
        self.estimator = estimator;
        self
    }

    /// Sets how many tasks of one concurrency key a single step lets in or out, where a change concerns many of them;
    /// the following steps go on. For tests: whatever it is, the same happens in the end.
    #[must_use]
    pub fn with_portion(mut self, portion: usize) -> Scheduler {
        self.portion = portion.max(1);
        self
    }

    /// Asks for [`Action::Persist`] with every fact worth remembering.
    pub fn keep_records(&mut self, on: bool) {
        self.records = on;
    }

    /// Says whether [`Action::Notify`] is asked for with every change of a task's status, as it is at first. Who does not
    /// read them need not have them made.
    pub fn keep_notices(&mut self, on: bool) {
        self.notices = on;
    }

    /// Uses the policies the configuration names for single types of tasks.
    ///
    /// # Errors
    /// If one of them cannot be made.
    pub fn use_policies_per_type(&mut self, names: &mut Names) -> Result<(), PolicyError> {
        for (name, spec) in self.config.scheduling.per_type.clone() {
            let policy = policy::create(&spec, &self.config)?;
            self.use_policy(Some(names.task_type(&name)), policy);
        }
        Ok(())
    }

    /// Uses a policy of the caller's own, for one type of task or, with `None`, as the default.
    pub fn use_policy(&mut self, task_type: Option<crate::ids::TypeId>, policy: Box<dyn Policy>) {
        let at = match task_type {
            None => Some(0),
            Some(task_type) => self.placement_by_type.get(&task_type.0).copied(),
        };
        let at = self.set_placement(at, policy);
        if let Some(task_type) = task_type {
            self.placement_by_type.insert(task_type.0, at);
        }
    }

    /// The moving average with that weight. A new one goes on from one that nobody but the placement at `at` has used,
    /// or else begins as a copy of the first, at each worker when it next learns something.
    fn average_for(&mut self, alpha: f64, at: usize) -> usize {
        if let Some(known) = self.alphas.iter().position(|known| *known == alpha) {
            return known;
        }
        let others = || self.placements.iter().enumerate().filter(|entry| entry.0 != at).map(|entry| entry.1.average);
        if let Some(free) = (0..self.alphas.len()).find(|average| !others().any(|used| used == *average)) {
            self.alphas[free] = alpha;
            return free;
        }
        self.alphas.push(alpha);
        self.alphas.len() - 1
    }

    /// Handles one event at the moment `now`; what is to be done is appended to `actions`. Timers due by then fire
    /// first. A moment before the last one counts as the last one.
    pub fn step(&mut self, now: Time, event: Event, actions: &mut Vec<Action>) {
        self.now = self.now.max(now);
        if self.refusal.is_some() {
            self.refusal = None;
        }
        if self.timers.next().is_some_and(|at| at <= self.now) {
            self.fire_timers(actions);
        }
        if self.unfinished {
            self.go_on(actions);
        }
        self.counters.events += 1;
        let result = match event {
            Event::Tick => Ok(()),
            Event::Pull { worker, wait } => self.pull(worker, wait, actions),
            Event::Submit(spec) => self.submit(&spec, actions),
            Event::Start { task, attempt } => self.start(task, attempt, actions),
            Event::Finish { task, attempt } => self.finish(task, attempt, actions),
            Event::Fail { task, attempt, retry } => self.fail(task, attempt, retry, Cause::Reported, actions),
            Event::GiveBack { task, attempt } => self.give_back(task, attempt, actions),
            Event::Cancel { task } => self.cancel(task, actions),
            Event::CancelElement { job, index } => self.cancel_element(job, index, actions),
            Event::CancelJob { job } => self.cancel_job(job, actions),
            Event::SubmitMany(specs) => self.submit_many(specs, actions),
            Event::SubmitArray { template, count } => self.submit_array(&template, count, actions),
            Event::SubmitGraph(graph) => self.submit_graph(graph, actions),
            Event::OpenJob { weight } => self.open_job(weight, actions),
            Event::CloseJob { job } => self.close_job(job, actions),
            Event::Join(spec) => self.join(spec, actions),
            Event::Change { worker, change } => self.change(worker, change, actions),
            Event::Report { worker, load } => self.report(worker, load, actions),
            Event::Leave { worker, remaining } => self.leave(worker, remaining, actions),
            Event::Succeeds { worker, former } => self.succeeds(worker, former, actions),
            Event::Silent { worker } => self.silent(worker, actions),
            Event::Want { worker, count } => self.want(worker, count, actions),
            Event::Began { worker, held } => self.began(worker, held, actions),
            Event::Ended { worker, held, ran, end } => self.ended(worker, held, ran, end, actions),
            Event::Moved { held, to } => self.moved(held, to, actions),
            Event::Missing { worker, held } => self.missing(worker, held, actions),
            Event::Reattached { worker, held } => self.reattached(worker, held, actions),
            Event::Withdraw { worker } => self.withdraw(worker),
            Event::Steal { thief } => self.steal(thief, actions),
            Event::Rebalance => {
                self.rebalance(actions);
                Ok(())
            }
            Event::SetKeyLimit { key, limit } => self.set_key_limit(key, limit, actions),
            Event::SetPolicy { task_type, policy } => policy::create(&policy, &self.config)
                .map(|policy| self.use_policy(task_type, policy))
                .map_err(|error| Refusal::Invalid(error.0)),
            Event::UsePolicy { task_type, policy } => {
                self.use_policy(task_type, Box::new(policy));
                Ok(())
            }
        };
        self.feed_hungry(actions);
        self.serve_released(actions);
        if let Err(refusal) = result {
            self.refusal = Some(refusal);
            actions.push(Action::Refused);
        }
        let next = self.next_timer();
        if next != self.announced {
            self.announced = next;
            if let Some(at) = next {
                actions.push(Action::Timer { at });
            }
        }
    }

    /// When `step` must be called again at the latest, if nothing else happens.
    #[must_use]
    pub fn next_timer(&self) -> Option<Time> {
        let next = self.timers.next();
        if self.unfinished { Some(next.map_or(self.now, |at| at.min(self.now))) } else { next }
    }

    /// The policy that was replaced last. It may be a caller's own, whose drop runs code of theirs; take it to choose
    /// where that is.
    pub fn take_replaced(&mut self) -> Option<Box<dyn Policy>> {
        self.replaced.take()
    }

    /// Why the last event was refused.
    pub fn take_refusal(&mut self) -> Option<Refusal> {
        self.refusal.take()
    }

    fn push_bound(&self) -> bool {
        self.config.scheduling.bind == Bind::Push
    }

    /// The slot of a registered worker.
    #[inline]
    pub(crate) fn worker_slot(&self, id: WorkerId) -> Result<u32, Refusal> {
        match self.workers.get(id.slot) {
            Some(worker) if worker.generation == id.generation => Ok(id.slot),
            _ => Err(Refusal::UnknownWorker(id)),
        }
    }

    #[inline]
    pub(crate) fn worker_id(&self, slot: u32) -> WorkerId {
        WorkerId { slot, generation: self.workers[slot].generation }
    }

    pub(crate) fn job_slot(&self, id: JobId) -> Result<u32, Refusal> {
        match self.jobs.get(id.slot) {
            Some(job) if job.generation == id.generation => Ok(id.slot),
            _ => Err(Refusal::UnknownJob(id)),
        }
    }

    pub(crate) fn job_id(&self, slot: u32) -> JobId {
        JobId { slot, generation: self.jobs[slot].generation }
    }

    #[inline]
    fn notify(&self, slot: u32, status: Status, cause: Cause, actions: &mut Vec<Action>) {
        self.notify_at(slot, self.tasks.at(slot).at_worker(), status, cause, actions);
    }

    /// The same, naming the worker it is or was with.
    #[inline]
    fn notify_at(&self, slot: u32, at: u32, status: Status, cause: Cause, actions: &mut Vec<Action>) {
        if self.notices {
            let worker = (at != NONE).then(|| self.worker_id(at));
            actions.push(Action::Notify { task: self.tasks.id(slot), status, worker, cause });
        }
    }

    #[inline]
    fn persist(&self, record: Record, actions: &mut Vec<Action>) {
        if self.records {
            actions.push(Action::Persist(record));
        }
    }

    /// The policy of a type of task.
    fn placement(&self, task_type: crate::ids::TypeId) -> &Placement {
        &self.placements[self.placement_at(task_type)]
    }

    /// Which of a worker's moving averages goes for a type of task.
    #[inline]
    fn average_of(&self, task_type: crate::ids::TypeId) -> usize {
        if self.alphas.len() == 1 { 0 } else { self.placement(task_type).average }
    }

    fn placement_at(&self, task_type: crate::ids::TypeId) -> usize {
        if self.placement_by_type.is_empty() {
            0
        } else {
            self.placement_by_type.get(&task_type.0).copied().unwrap_or(0)
        }
    }

    fn next_sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    /// The time a task is planned with on a worker of that class.
    fn planned_for(&self, slot: u32, class: u32) -> Span {
        let task = self.tasks.at(slot);
        self.planned(task.kind, task.declared(), class)
    }

    /// The same for a task of some kind, with the duration its submitter declared.
    fn planned(&self, kind: KindId, declared: Option<Span>, class: u32) -> Span {
        planned_on(&self.classes[class], self.estimator.anywhere(kind, declared))
    }

    /// A task's place among all that wait.
    pub(crate) fn queue_place(&self, slot: u32) -> QueueKey {
        let task = self.tasks.at(slot);
        queue_key(task.level, task.order(), slot)
    }

    /// Tasks that wait in any queue, elements of arrays included.
    #[must_use]
    pub fn queued(&self) -> u64 {
        self.counters.queued
    }

    /// Tasks that are not settled, elements of arrays included.
    #[must_use]
    pub fn unsettled(&self) -> u64 {
        self.tasks.live() + self.counters.pending_elements
    }

    /// Where a task stands, while it is known: until its slot is used again after it was settled.
    #[must_use]
    pub fn status(&self, task: TaskId) -> Option<Status> {
        if self.tasks.find(task).is_some() {
            return Some(self.tasks.at(task.slot).status());
        }
        self.tasks.outcome(task).map(|outcome| outcome.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_that_is_replaced_again_and_again_takes_no_more_room() {
        let mut scheduler = Scheduler::new(&Config::default()).unwrap();
        for _ in 0..10 {
            for task_type in [None, Some(crate::ids::TypeId(1)), Some(crate::ids::TypeId(2))] {
                scheduler.use_policy(task_type, Box::new(policy::Fifo));
            }
        }
        assert_eq!(scheduler.placements.len(), 3);
    }

    #[test]
    fn every_weight_in_use_has_its_own_average_and_no_other_has() {
        let mut scheduler = Scheduler::new(&Config::default()).unwrap();
        for alpha in [0.2, 0.3, 0.4, 0.5] {
            for task_type in [None, Some(crate::ids::TypeId(1))] {
                let alpha = if task_type.is_some() { 0.1 } else { alpha };
                let policy = policy::Adaptive { model: crate::config::AdaptiveModel::Ewma, alpha: Some(alpha) };
                scheduler.use_policy(task_type, Box::new(policy));
            }
        }
        assert_eq!(scheduler.alphas[..], [0.5, 0.1]);
    }
}
