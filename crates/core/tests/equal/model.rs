//! A naive scheduler: plain lists, searched from end to end for every question. No index, no laziness, no sharing with
//! the scheduler under test beyond the public formulas of policies, stealing and estimates.
//!
//! It takes the ids that the scheduler hands out as given (they are names, not decisions), and in the strategies that
//! draw lots it takes the victim that was drawn, after checking that it might have been.

use std::collections::VecDeque;

use filch_core::config::{Bind, Config, Matching};
use filch_core::policy::{self, Order, Policy, TaskView, WorkerView};
use filch_core::steal::{Guard, VictimChooser};
use filch_core::tracker::{Estimator, MovingAverage, Tracker};
use filch_core::{
    Action, Amount, Cause, Demand, JobId, KeyId, KindId, ResourceId, Span, Status, TaskId, TaskSpec, Time, TypeId,
    Vector, WorkerId, WorkerSpec, WorkerState, matching_for,
};

use crate::arrays::{Rest, RestAt};
use crate::reservations::Kept;

/// Where a task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Where {
    Nowhere,
    Central,
    ForKey,
    AtWorker,
    Backoff,
    Parked,
    Assigned,
    Running,
}

impl Where {
    pub(crate) fn is_queued(self) -> bool {
        matches!(self, Where::Central | Where::ForKey | Where::AtWorker)
    }

    pub(crate) fn is_held(self) -> bool {
        matches!(self, Where::Assigned | Where::Running)
    }

    pub(crate) fn status(self) -> Status {
        match self {
            Where::Nowhere => Status::Blocked,
            Where::Central | Where::ForKey | Where::AtWorker => Status::Queued,
            Where::Backoff => Status::Retrying,
            Where::Parked => Status::Unschedulable,
            Where::Assigned => Status::Assigned,
            Where::Running => Status::Running,
        }
    }
}

/// The order of waiting tasks: level, deadline, rank, sequence, and among elements of an array the number of the task.
pub(crate) type Place = (u8, u64, u32, u64, usize);

#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub(crate) id: TaskId,
    pub(crate) spec: TaskSpec,
    pub(crate) job: JobId,
    pub(crate) index: u32,
    pub(crate) rank: u32,
    pub(crate) sequence: u64,
    pub(crate) level: u8,
    pub(crate) state: Where,
    pub(crate) worker: Option<WorkerId>,
    pub(crate) attempt: u32,
    pub(crate) retries: u32,
    pub(crate) requeues: u32,
    pub(crate) given_back: u32,
    pub(crate) waits_for: Vec<TaskId>,
    /// May queue although it has a key.
    pub(crate) offered: bool,
    pub(crate) since: Time,
    /// A running number of arrivals in queues, for the order of age.
    pub(crate) entered: u64,
    pub(crate) ready_at: Time,
    pub(crate) planned: Span,
    /// Positions of the accelerators it was given.
    pub(crate) devices: Vec<usize>,
    /// An element of an array that waits by itself and was not handed out.
    pub(crate) loose: bool,
}

impl Task {
    /// A task that is nowhere and has no place in any order yet.
    pub(crate) fn new(id: TaskId, spec: &TaskSpec, job: JobId, index: u32) -> Task {
        Task {
            id,
            spec: spec.clone(),
            job,
            index,
            rank: 0,
            sequence: 0,
            level: spec.priority.get(),
            state: Where::Nowhere,
            worker: None,
            attempt: 0,
            retries: 0,
            requeues: 0,
            given_back: 0,
            waits_for: Vec::new(),
            offered: false,
            since: Time::ZERO,
            entered: 0,
            ready_at: Time::ZERO,
            planned: Span::ZERO,
            devices: Vec::new(),
            loose: false,
        }
    }

    pub(crate) fn place(&self) -> Place {
        let deadline = self.spec.deadline.unwrap_or(Time::NEVER);
        (u8::MAX - self.level, deadline.0, self.rank, self.sequence, self.id.index())
    }

    pub(crate) fn declared(&self) -> Option<Span> {
        self.spec.estimate.filter(|estimate| *estimate != Span::ZERO)
    }
}

/// An attempt that no longer counts but may still occupy its worker.
#[derive(Clone, Debug)]
pub(crate) struct Ghost {
    pub(crate) task: TaskId,
    pub(crate) attempt: u32,
    pub(crate) demand: Demand,
    pub(crate) key: Option<KeyId>,
    pub(crate) devices: Vec<usize>,
    pub(crate) since: Time,
    pub(crate) planned: Span,
}

#[derive(Clone, Debug)]
pub(crate) struct Worker {
    pub(crate) id: WorkerId,
    pub(crate) spec: WorkerSpec,
    pub(crate) state: WorkerState,
    /// The state before it fell silent.
    pub(crate) before: WorkerState,
    pub(crate) silent_since: Time,
    /// It declared no cores.
    pub(crate) coreless: bool,
    pub(crate) credit: u32,
    pub(crate) running: Vec<TaskId>,
    pub(crate) ghosts: Vec<Ghost>,
    pub(crate) joined: u64,
    pub(crate) average: MovingAverage,
    pub(crate) completed: u64,
    pub(crate) failed: u64,
    pub(crate) in_a_row: u32,
    pub(crate) quarantines: u32,
    pub(crate) assigned: u64,
    pub(crate) last_assigned: u64,
    pub(crate) stolen: u64,
    pub(crate) lost: u64,
}

impl Worker {
    pub(crate) fn used(&self) -> u32 {
        (self.running.len() + self.ghosts.len()) as u32
    }

    pub(crate) fn has_free_slot(&self) -> bool {
        self.used() < self.spec.slots
    }

    fn has(&self, capability: filch_core::CapabilityId) -> bool {
        self.spec.capabilities.ids().contains(&capability)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) id: JobId,
    pub(crate) weight: f64,
    pub(crate) received: u64,
    pub(crate) closed: bool,
}

/// What is due, in the order in which things due at the same moment happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    Rebalance,
    Aging,
    Orphans,
    Retry(TaskId),
    Park(TaskId),
    Timeout(TaskId, u32),
    Deadline(TaskId),
    ParkArray(JobId),
    ArrayAging(JobId),
    Reserved(WorkerId),
    Lease(WorkerId),
    Quarantine(WorkerId),
}

/// What is counted.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Counts {
    pub(crate) submitted: u64,
    pub(crate) completed: u64,
    pub(crate) failed: u64,
    pub(crate) cancelled: u64,
    pub(crate) skipped: u64,
    pub(crate) returned: u64,
    pub(crate) retries: u64,
    pub(crate) requeues: u64,
    pub(crate) timeouts: u64,
    pub(crate) promotions: u64,
    pub(crate) quarantines: u64,
    pub(crate) stale_reports: u64,
    pub(crate) hopeless: u64,
    pub(crate) missed: u64,
    pub(crate) steals: u64,
    pub(crate) stolen: u64,
    pub(crate) migrated: u64,
    pub(crate) cycles: u64,
    pub(crate) reservations: u64,
    /// Reservations whose moment had to be put off.
    pub(crate) put_off: u64,
    /// Tasks handed to a worker that is kept for another.
    pub(crate) let_past: u64,
    pub(crate) assignments: u64,
    pub(crate) waited: Span,
    pub(crate) longest_wait: Span,
}

impl Counts {
    /// Every count by its name.
    pub(crate) fn list(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("submitted", self.submitted),
            ("completed", self.completed),
            ("failed", self.failed),
            ("cancelled", self.cancelled),
            ("skipped", self.skipped),
            ("returned", self.returned),
            ("retries", self.retries),
            ("requeues", self.requeues),
            ("timeouts", self.timeouts),
            ("promotions", self.promotions),
            ("quarantines", self.quarantines),
            ("stale_reports", self.stale_reports),
            ("hopeless", self.hopeless),
            ("missed", self.missed),
            ("steals", self.steals),
            ("stolen", self.stolen),
            ("migrated", self.migrated),
            ("cycles", self.cycles),
            ("reservations", self.reservations),
            ("put_off", self.put_off),
            ("let_past", self.let_past),
            ("assignments", self.assignments),
        ]
    }

    pub(crate) fn add(&mut self, other: &Counts) {
        self.submitted += other.submitted;
        self.completed += other.completed;
        self.failed += other.failed;
        self.cancelled += other.cancelled;
        self.skipped += other.skipped;
        self.returned += other.returned;
        self.retries += other.retries;
        self.requeues += other.requeues;
        self.timeouts += other.timeouts;
        self.promotions += other.promotions;
        self.quarantines += other.quarantines;
        self.stale_reports += other.stale_reports;
        self.hopeless += other.hopeless;
        self.missed += other.missed;
        self.steals += other.steals;
        self.stolen += other.stolen;
        self.migrated += other.migrated;
        self.cycles += other.cycles;
        self.reservations += other.reservations;
        self.put_off += other.put_off;
        self.let_past += other.let_past;
        self.assignments += other.assignments;
    }
}

pub(crate) struct Model {
    pub(crate) config: Config,
    pub(crate) now: Time,
    pub(crate) policy: Box<dyn Policy>,
    /// Those of single types of tasks, in the order in which they were first set.
    pub(crate) policies: Vec<(TypeId, Box<dyn Policy>)>,
    pub(crate) tracker: Tracker,
    pub(crate) chooser: VictimChooser,
    pub(crate) guard: Guard,
    pub(crate) workers: Vec<Worker>,
    pub(crate) tasks: Vec<Task>,
    pub(crate) jobs: Vec<Job>,
    pub(crate) rests: Vec<Rest>,
    /// Keyed arrays whose next elements may wait for their key at the end of the step.
    pub(crate) hungry: Vec<JobId>,
    pub(crate) settled: Vec<(TaskId, Status)>,
    pub(crate) limits: Vec<(KeyId, u32)>,
    /// Keys whose tasks have not all followed the limit that was set, and the limit they keep to meanwhile.
    pub(crate) in_force: Vec<(KeyId, u32)>,
    /// How many tasks of a key one step lets in or out.
    pub(crate) portion: usize,
    pub(crate) warm: Vec<(filch_core::AffinityId, Vec<WorkerId>)>,
    pub(crate) timers: Vec<(Time, Timer)>,
    pub(crate) aging_at: Option<Time>,
    pub(crate) counts: Counts,
    /// What ended, of which kind and with whom, in order.
    pub(crate) ends: Vec<(KindId, WorkerId, bool)>,
    pub(crate) joined: u64,
    pub(crate) sequence: u64,
    pub(crate) entered: u64,
    pub(crate) turn: u64,
    /// What the scheduler under test did in this step, for ids and lots.
    pub(crate) hints: VecDeque<Action>,
    pub(crate) out: Vec<Action>,
    /// A worker whose attempt ends in this step, or that changes: it is served after everything else.
    pub(crate) aside: Option<WorkerId>,
    /// Tasks about to be queued, the next one last; and whether that is under way.
    pub(crate) freed: Vec<TaskId>,
    pub(crate) freeing: bool,
    /// A worker that changes its class right now and so belongs to none.
    pub(crate) unlisted: Option<WorkerId>,
    pub(crate) kept: Vec<Kept>,
    /// Workers that were kept for a task until this step.
    pub(crate) released: Vec<WorkerId>,
}

/// What may be first in a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Head {
    Task(TaskId),
    /// The next element of an array.
    Rest(JobId),
}

/// The job of tasks that name none.
pub(crate) const COMMON: JobId = JobId::from_bits(0);

impl Model {
    pub(crate) fn new(config: &Config, portion: usize) -> Model {
        let mut model = Model {
            config: Config { stealing: config.stealing.under(config.scheduling.bind), ..config.clone() },
            now: Time::ZERO,
            policy: policy::create(&config.scheduling.policy, config).expect("the policy exists"),
            policies: Vec::new(),
            tracker: Tracker::new(config.scheduling.default_estimate),
            chooser: VictimChooser::new(
                &config.stealing.under(config.scheduling.bind),
                config.load_balancing.thresholds.busy_threshold,
            ),
            guard: Guard::new(config),
            workers: Vec::new(),
            tasks: Vec::new(),
            jobs: vec![Job { id: COMMON, weight: 1.0, received: 0, closed: false }],
            rests: Vec::new(),
            hungry: Vec::new(),
            settled: Vec::new(),
            limits: Vec::new(),
            in_force: Vec::new(),
            portion,
            warm: Vec::new(),
            timers: Vec::new(),
            aging_at: None,
            counts: Counts::default(),
            ends: Vec::new(),
            joined: 0,
            sequence: 0,
            entered: 0,
            turn: 0,
            hints: VecDeque::new(),
            out: Vec::new(),
            aside: None,
            freed: Vec::new(),
            freeing: false,
            unlisted: None,
            kept: Vec::new(),
            released: Vec::new(),
        };
        if model.push() && config.load_balancing.strategy.pushes() {
            model.timers.push((Time::ZERO + config.load_balancing.thresholds.rebalance_interval(), Timer::Rebalance));
        }
        model
    }

    pub(crate) fn push(&self) -> bool {
        self.config.scheduling.bind == Bind::Push
    }

    pub(crate) fn find(&self, id: TaskId) -> Option<&Task> {
        self.tasks.iter().find(|task| task.id == id)
    }

    pub(crate) fn task(&self, id: TaskId) -> &Task {
        self.find(id).expect("the task is there")
    }

    pub(crate) fn task_mut(&mut self, id: TaskId) -> &mut Task {
        self.tasks.iter_mut().find(|task| task.id == id).expect("the task is there")
    }

    pub(crate) fn knows(&self, id: WorkerId) -> bool {
        self.workers.iter().any(|worker| worker.id == id)
    }

    pub(crate) fn worker(&self, id: WorkerId) -> &Worker {
        self.workers.iter().find(|worker| worker.id == id).expect("the worker is there")
    }

    pub(crate) fn worker_mut(&mut self, id: WorkerId) -> &mut Worker {
        self.workers.iter_mut().find(|worker| worker.id == id).expect("the worker is there")
    }

    pub(crate) fn job_mut(&mut self, id: JobId) -> &mut Job {
        self.jobs.iter_mut().find(|job| job.id == id).expect("the job is there")
    }

    pub(crate) fn job(&self, id: JobId) -> &Job {
        self.jobs.iter().find(|job| job.id == id).expect("the job is there")
    }

    /// The next thing of some sort that the scheduler under test did in this step.
    pub(crate) fn hint<T>(&mut self, sort: impl Fn(&Action) -> Option<T>) -> Option<T> {
        let at = self.hints.iter().position(|action| sort(action).is_some())?;
        self.hints.remove(at).as_ref().and_then(sort)
    }

    pub(crate) fn set_timer(&mut self, at: Time, timer: Timer) {
        if !self.timers.contains(&(at, timer)) {
            self.timers.push((at, timer));
        }
    }

    pub(crate) fn cancel_timer(&mut self, timer: Timer) {
        self.timers.retain(|entry| entry.1 != timer);
    }

    pub(crate) fn notify(&mut self, id: TaskId, status: Status, cause: Cause) {
        let worker = self.task(id).worker;
        self.out.push(Action::Notify { task: id, status, worker, cause });
    }

    // ---- what there is ----

    /// The tasks in a worker's queue, first in order first.
    pub(crate) fn queue(&self, worker: WorkerId) -> Vec<TaskId> {
        let mut queue: Vec<&Task> =
            self.tasks.iter().filter(|task| task.state == Where::AtWorker && task.worker == Some(worker)).collect();
        queue.sort_by_key(|task| task.place());
        queue.into_iter().map(|task| task.id).collect()
    }

    pub(crate) fn depth(&self, worker: WorkerId) -> u32 {
        let here = |task: &&Task| task.state == Where::AtWorker && task.worker == Some(worker);
        self.tasks.iter().filter(here).count() as u32
    }

    /// Workers that are up by the length of their queues, shortest first.
    pub(crate) fn by_depth(&self) -> Vec<(u32, WorkerId)> {
        if !self.push() {
            return Vec::new();
        }
        let up = self.workers.iter().filter(|worker| worker.state == WorkerState::Up);
        let mut all: Vec<(u32, WorkerId)> = up.map(|worker| (self.depth(worker.id), worker.id)).collect();
        all.sort_unstable_by_key(|&(depth, id)| (depth, id.index()));
        all
    }

    pub(crate) fn reserved(&self, worker: &Worker) -> Vector {
        let running = worker.running.iter().map(|&id| &self.task(id).spec.demand);
        let ghosts = worker.ghosts.iter().map(|ghost| &ghost.demand);
        Vector::new(running.chain(ghosts).flat_map(|demand| demand.amounts().iter().copied()))
    }

    pub(crate) fn backlog(&self, id: WorkerId) -> Span {
        self.work(id, |_| true)
    }

    pub(crate) fn backlog_besides(&self, task: TaskId, id: WorkerId) -> Span {
        self.work(id, |other| other != task)
    }

    fn work(&self, id: WorkerId, counts: impl Fn(TaskId) -> bool) -> Span {
        let holds = |task: &&Task| task.worker == Some(id) && (task.state == Where::AtWorker || task.state.is_held());
        let counted = self.tasks.iter().filter(holds).filter(|task| counts(task.id));
        Span(counted.map(|task| task.planned.0).sum::<u64>() / u64::from(self.worker(id).spec.slots))
    }

    pub(crate) fn queued_work(&self, id: WorkerId) -> Span {
        let here = |task: &&Task| task.state == Where::AtWorker && task.worker == Some(id);
        Span(self.tasks.iter().filter(here).map(|task| task.planned.0).sum())
    }

    pub(crate) fn queued(&self) -> u64 {
        let rests = self.rests.iter().filter(|rest| rest.at != RestAt::Parked).map(Rest::pending).sum::<u64>();
        self.tasks.iter().filter(|task| task.state.is_queued()).count() as u64 + rests
    }

    pub(crate) fn planned_for(&self, task: TaskId, worker: WorkerId) -> Span {
        self.planned(&self.task(task).spec, self.worker(worker))
    }

    pub(crate) fn planned(&self, spec: &TaskSpec, worker: &Worker) -> Span {
        let anywhere = self.tracker.anywhere(spec.kind, spec.estimate.filter(|estimate| *estimate != Span::ZERO));
        let speed = worker.spec.speed;
        let planned = if speed == 1.0 { anywhere } else { anywhere.mul_f64(1.0 / speed) };
        planned.max(Span::from_micros(1))
    }

    // ---- matching ----

    /// The most skills of the task that any registered worker shares.
    pub(crate) fn best_shared(&self, spec: &TaskSpec) -> usize {
        let shared = |worker: &Worker| spec.skills.ids().iter().filter(|&&skill| worker.has(skill)).count();
        let able = self.workers.iter().filter(|worker| Self::meets_requirements(spec, worker));
        able.map(shared).max().unwrap_or(0)
    }

    /// How the skills of a task are matched.
    pub(crate) fn matching(&self, spec: &TaskSpec) -> Matching {
        let rules = &self.config.load_balancing;
        let high = rules.priority.high_priority_threshold;
        matching_for(rules.capabilities.matching_strategy, spec.priority.get(), high)
    }

    pub(crate) fn can_ever(&self, spec: &TaskSpec, worker: &Worker) -> bool {
        let shared = spec.skills.ids().iter().filter(|&&skill| worker.has(skill)).count();
        let skilled = spec.skills.is_empty()
            || match self.matching(spec) {
                Matching::Exact | Matching::BestFit => shared == spec.skills.len(),
                Matching::Fallback => shared > 0 && shared == self.best_shared(spec),
            };
        skilled && Self::meets_requirements(spec, worker)
    }

    fn meets_requirements(spec: &TaskSpec, worker: &Worker) -> bool {
        let required = spec.requires.ids().iter().all(|&capability| worker.has(capability));
        let big_enough = spec.demand.amounts().iter().all(|&(what, needs)| worker.spec.resources.get(what) >= needs);
        required && big_enough
    }

    pub(crate) fn has_host(&self, spec: &TaskSpec) -> bool {
        self.workers.iter().any(|worker| self.can_ever(spec, worker))
    }

    /// The accelerators a demand would get beside others: for a share the fullest with room, for whole ones the first
    /// free.
    pub(crate) fn pick_devices<'a>(
        demand: &Demand,
        worker: &Worker,
        held: impl Iterator<Item = (&'a Demand, &'a [usize])>,
    ) -> Option<Vec<usize>> {
        let whole = Amount::SCALE;
        let wants = |demand: &Demand| demand.amounts().iter().find(|entry| entry.0 == ResourceId::GPUS).map(|e| e.1.0);
        let Some(needs) = wants(demand) else { return Some(Vec::new()) };
        let has = worker.spec.resources.get(ResourceId::GPUS).0;
        let mut free: Vec<u64> = (0..has.div_ceil(whole)).map(|at| (has - at * whole).min(whole)).collect();
        for (demand, devices) in held {
            for &at in devices {
                if let Some(left) = free.get_mut(at) {
                    *left = left.saturating_sub(wants(demand).unwrap_or(0).min(whole));
                }
            }
        }
        let positions = 0..free.len();
        if needs < whole {
            return positions.filter(|&at| free[at] >= needs).min_by_key(|&at| free[at]).map(|at| vec![at]);
        }
        let count = (needs / whole) as usize;
        let picked: Vec<usize> = positions.filter(|&at| free[at] == whole).take(count).collect();
        (picked.len() == count).then_some(picked)
    }

    // ---- placement ----

    /// The policy of a task's type, or the default.
    pub(crate) fn policy_of(&self, spec: &TaskSpec) -> &dyn Policy {
        let own = self.policies.iter().find(|entry| entry.0 == spec.task_type);
        own.map_or(&*self.policy, |entry| &*entry.1)
    }

    pub(crate) fn set_policy(&mut self, of: Option<TypeId>, policy: Box<dyn Policy>) {
        let Some(of) = of else {
            self.policy = policy;
            return;
        };
        match self.policies.iter_mut().find(|entry| entry.0 == of) {
            Some(entry) => entry.1 = policy,
            None => self.policies.push((of, policy)),
        }
    }

    fn order_key(&self, worker: &Worker, order: Order) -> u64 {
        let held = u64::from(worker.used() + self.depth(worker.id));
        match order {
            Order::Load => self.backlog(worker.id).0,
            Order::Joined if worker.has_free_slot() && self.depth(worker.id) == 0 => worker.joined,
            Order::Joined => (1 << 63) + worker.joined,
            Order::Recency => worker.last_assigned,
            Order::Weighted => {
                Amount::from_f64((worker.assigned + u64::from(self.depth(worker.id)) + 1) as f64 / worker.spec.weight).0
            }
            Order::Batch(size) if held < u64::from(size) => 0,
            Order::Batch(_) => held,
        }
    }

    /// The documented candidates: of each eligible class the k best by the policy's order, classes in the order of
    /// their best worker, 64 classes at the most; then affine workers and the parent's.
    fn candidates(&self, id: TaskId, queue: bool) -> Vec<WorkerId> {
        let spec = &self.task(id).spec;
        let order = self.policy_of(spec).order();
        let listed = |worker: &&Worker| {
            let asks = worker.credit > 0 && worker.has_free_slot();
            worker.state == WorkerState::Up && (self.push() || asks)
        };
        let mut entries: Vec<(u64, &Worker)> =
            self.workers.iter().filter(listed).map(|worker| (self.order_key(worker, order), worker)).collect();
        entries.sort_by_key(|(key, worker)| (*key, worker.id.index()));
        let mut classes: Vec<Vec<&Worker>> = Vec::new();
        for (_, worker) in entries {
            let alike = |class: &&mut Vec<&Worker>| {
                WorkerSpec { tag: 0, ..class[0].spec.clone() } == WorkerSpec { tag: 0, ..worker.spec.clone() }
            };
            match classes.iter_mut().find(alike) {
                Some(class) => class.push(worker),
                None => classes.push(vec![worker]),
            }
        }
        let takes = |worker: &Worker| {
            let here = Some(worker.id) != self.aside;
            if queue {
                worker.state == WorkerState::Up
            } else {
                here && worker.credit > 0 && self.fits_now(Head::Task(id), worker)
            }
        };
        let per_class = self.config.scheduling.candidates_per_class as usize;
        let mut found: Vec<WorkerId> = Vec::new();
        let offers = classes.iter().filter(|class| self.can_ever(spec, class[0])).map(|class| {
            let takers = class.iter().filter(|worker| takes(worker)).take(per_class);
            takers.map(|worker| worker.id).collect::<Vec<WorkerId>>()
        });
        found.extend(offers.filter(|takers| !takers.is_empty()).take(64).flatten());
        let warm = spec.affinity.iter().flat_map(|(key, _)| self.warm_workers(*key));
        for extra in warm.chain(self.parent_worker(id)) {
            if self.knows(extra) && !found.contains(&extra) {
                let worker = self.worker(extra);
                if self.can_ever(spec, worker) && takes(worker) {
                    found.push(extra);
                }
            }
        }
        found
    }

    pub(crate) fn warm_workers(&self, key: filch_core::AffinityId) -> Vec<WorkerId> {
        self.warm.iter().find(|entry| entry.0 == key).map(|entry| entry.1.clone()).unwrap_or_default()
    }

    fn parent_worker(&self, id: TaskId) -> Option<WorkerId> {
        self.find(self.task(id).spec.parent?)?.worker
    }

    pub(crate) fn cold(&self, id: TaskId, worker: WorkerId) -> (Span, bool) {
        let (mut cold, mut warm) = (Span::ZERO, false);
        for &(key, saved) in &self.task(id).spec.affinity {
            if self.warm_workers(key).contains(&worker) {
                warm = true;
            } else {
                cold += saved;
            }
        }
        (cold, warm)
    }

    /// The candidate that the policy's own formula likes best.
    fn decide(&self, id: TaskId, candidates: &[WorkerId]) -> Option<WorkerId> {
        let task = self.task(id);
        let reserved: Vec<Vector> = candidates.iter().map(|&at| self.reserved(self.worker(at))).collect();
        let views: Vec<WorkerView<'_>> = candidates
            .iter()
            .zip(&reserved)
            .map(|(&at, reserved)| {
                let worker = self.worker(at);
                let mut estimate = self.tracker.estimate(task.spec.kind, at.index(), task.declared());
                if estimate.samples == 0 && worker.spec.speed != 1.0 {
                    estimate.duration = estimate.duration.mul_f64(1.0 / worker.spec.speed);
                }
                let shared = task.spec.skills.ids().iter().filter(|&&skill| worker.has(skill)).count();
                let wanted = |id: &filch_core::CapabilityId| {
                    task.spec.requires.ids().contains(id) || task.spec.skills.ids().contains(id)
                };
                let ends = worker.completed + worker.failed;
                let (cold, warm) = self.cold(id, at);
                WorkerView {
                    id: at,
                    joined: worker.joined,
                    slots: worker.spec.slots,
                    running: worker.used(),
                    queued: self.depth(at),
                    gpus: worker.spec.resources.get(ResourceId::GPUS).as_f64(),
                    backlog: self.backlog(at),
                    skill_match: if task.spec.skills.is_empty() {
                        1.0
                    } else {
                        shared as f64 / task.spec.skills.len() as f64
                    },
                    spare: worker.spec.capabilities.ids().iter().filter(|id| !wanted(id)).count() as u32,
                    success_rate: if ends == 0 { 1.0 } else { worker.completed as f64 / ends as f64 },
                    average: worker.average,
                    estimate,
                    cost_rate: worker.spec.cost_rate,
                    weight: worker.spec.weight,
                    assigned: worker.assigned + u64::from(self.depth(at)),
                    last_assigned: worker.last_assigned,
                    cold,
                    warm,
                    capacity: &worker.spec.resources,
                    reserved,
                }
            })
            .collect();
        let view = TaskView {
            now: self.now,
            kind: task.spec.kind,
            priority: task.spec.priority.get(),
            estimate: task.declared(),
            deadline: task.spec.deadline.unwrap_or(Time::NEVER),
            demand: &task.spec.demand,
            retry_pause: task.spec.retry.map_or(self.config.retry.backoff, |terms| terms.backoff),
            parent_worker: self.parent_worker(id),
        };
        let mut scores = Vec::new();
        self.policy_of(&task.spec).score_all(&view, &views, &mut scores);
        policy::best(&views, &scores).map(|at| candidates[at])
    }

    /// Who gets a task that needs room right now.
    pub(crate) fn who_has_room(&self, id: TaskId) -> Option<WorkerId> {
        let candidates = self.candidates(id, false);
        self.decide(id, &candidates).or(candidates.first().copied())
    }

    /// Whose queue a task goes to.
    pub(crate) fn whose_queue(&self, id: TaskId) -> Option<WorkerId> {
        self.decide(id, &self.candidates(id, true))
    }

    // ---- the order in which a worker is served ----

    /// The turn of a job in a level: the work it has received, or, without fair share, who came first.
    pub(crate) fn turn_of(&self, level: u8, job: JobId) -> u64 {
        if self.config.scheduling.fair_share {
            return self.job(job).received;
        }
        let waiting = self.tasks.iter().filter(|task| task.state == Where::Central && task.level == level);
        let tasks = waiting.filter(|task| task.job == job).map(Task::place);
        let rests = self.rests.iter().filter(|rest| rest.waits_in(level) && rest.job == job).map(Rest::place);
        tasks.chain(rests).min().map_or(0, |place| place.3)
    }

    /// All that waits centrally in the order in which it is offered to a worker that asks: tasks, and arrays by their
    /// next element.
    pub(crate) fn central(&self) -> Vec<Head> {
        let waiting = self.tasks.iter().filter(|task| task.state == Where::Central);
        let tasks = waiting.map(|task| (task.level, task.job, task.place(), Head::Task(task.id)));
        let waiting = self.rests.iter().filter(|rest| rest.at == RestAt::Lane);
        let rests = waiting.map(|rest| (rest.level, rest.job, rest.place(), Head::Rest(rest.job)));
        let mut all: Vec<_> = tasks.chain(rests).collect();
        all.sort_by_key(|&(level, job, place, _)| (u8::MAX - level, self.turn_of(level, job), job.index(), place));
        all.into_iter().map(|entry| entry.3).collect()
    }

    pub(crate) fn head_spec(&self, head: Head) -> &TaskSpec {
        match head {
            Head::Task(id) => &self.task(id).spec,
            Head::Rest(job) => &self.rest(job).expect("the array is there").spec,
        }
    }

    pub(crate) fn head_place(&self, head: Head) -> Place {
        match head {
            Head::Task(id) => self.task(id).place(),
            Head::Rest(job) => self.rest(job).expect("the array is there").place(),
        }
    }

    // ---- keys ----

    /// The limit in force.
    pub(crate) fn limit(&self, key: KeyId) -> u32 {
        self.in_force.iter().find(|entry| entry.0 == key).map_or_else(|| self.limit_set(key), |entry| entry.1)
    }

    /// The limit that was set.
    pub(crate) fn limit_set(&self, key: KeyId) -> u32 {
        let set = self.limits.iter().rev().find(|entry| entry.0 == key).map(|entry| entry.1);
        set.unwrap_or(self.config.limits.key_limit)
    }

    /// Tokens of a key that are with running attempts, counted or not.
    pub(crate) fn tokens_held(&self, key: KeyId) -> u32 {
        let running = self.tasks.iter().filter(|task| task.state.is_held() && task.spec.key == Some(key)).count();
        let ghosts = self.workers.iter().flat_map(|worker| &worker.ghosts).filter(|ghost| ghost.key == Some(key));
        (running + ghosts.count()) as u32
    }

    pub(crate) fn offered(&self, key: KeyId) -> Vec<TaskId> {
        let mut offered: Vec<&Task> =
            self.tasks.iter().filter(|task| task.offered && task.spec.key == Some(key)).collect();
        offered.sort_by_key(|task| task.place());
        offered.into_iter().map(|task| task.id).collect()
    }

    pub(crate) fn tokens_free(&self, key: KeyId) -> u32 {
        self.limit(key).saturating_sub(self.tokens_held(key)).saturating_sub(self.offered(key).len() as u32)
    }
}
