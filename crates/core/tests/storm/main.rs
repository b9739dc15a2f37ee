//! Storms of random events: every invariant after every step, for every combination of binding and policy; a witness
//! who judges by events and actions alone; a twin that must act alike; and at the end nothing may be left. Then a large
//! state, checked part by part, and the promise of reservations in time.
//!
//! A failure prints the seed; run it again with `FILCH_STORM_SEED=N`.

#![allow(clippy::disallowed_methods, reason = "a test may read the seed to replay from its surroundings")]

mod backfill;
mod large;
mod witness;

use filch_core::config::{Bind, Matching, PolicySpec, Strategy, Take, VictimStrategy};
use filch_core::{
    Action, AffinityId, Amount, CapabilityId, CapabilitySet, Config, Demand, Event, GraphTask, JobId, KeyId, KindId,
    LoadReport, ParentFailure, Priority, Remaining, ResourceId, RetryTerms, Rng, Scheduler, Span, TaskId, TaskSpec,
    Time, Vector, WorkerChange, WorkerId, WorkerSpec,
};

use witness::Witness;

const POLICIES: [&str; 14] = [
    "expected_completion",
    "fifo",
    "round_robin",
    "weighted_round_robin",
    "priority_based",
    "load_balancing",
    "work_stealing",
    "best_fit",
    "performance_based",
    "affinity_based",
    "cost_based",
    "deadline",
    "batch",
    "adaptive",
];

/// What the outside world knows: who is registered, which attempts it holds.
struct Storm {
    rng: Rng,
    scheduler: Scheduler,
    now: Time,
    actions: Vec<Action>,
    workers: Vec<WorkerId>,
    held: Vec<(TaskId, u32)>,
    stale: Vec<(TaskId, u32)>,
    known: Vec<TaskId>,
    jobs: Vec<JobId>,
    witness: Witness,
    /// A second scheduler with the same seed.
    twin: Option<Scheduler>,
    twin_actions: Vec<Action>,
    payload: u64,
    steps: u64,
}

fn config(rng: &mut Rng) -> Config {
    let mut config = Config { seed: rng.next_u64(), ..Config::default() };
    let pick = |rng: &mut Rng, of: usize| rng.below(of);
    config.scheduling.bind = if pick(rng, 2) == 0 { Bind::Late } else { Bind::Push };
    config.scheduling.policy = PolicySpec::Name(POLICIES[pick(rng, POLICIES.len())].to_owned());
    config.scheduling.fair_share = pick(rng, 4) > 0;
    config.scheduling.aging_interval = Span::from_millis([0, 5, 50, 60_000][pick(rng, 4)]);
    config.scheduling.candidates_per_class = [1, 2, 8][pick(rng, 3)];
    config.load_balancing.strategy = [Strategy::Pull, Strategy::Push, Strategy::Hybrid][pick(rng, 3)];
    config.load_balancing.thresholds.rebalance_interval_sec = 0.02;
    config.load_balancing.thresholds.busy_threshold = 3;
    config.load_balancing.work_stealing.prefer_recent_tasks = pick(rng, 2) == 0;
    config.load_balancing.work_stealing.allow_task_migration = pick(rng, 2) == 0;
    config.load_balancing.capabilities.matching_strategy =
        [Matching::Exact, Matching::BestFit, Matching::Fallback][pick(rng, 3)];
    config.stealing.strategy = [
        VictimStrategy::Random,
        VictimStrategy::LeastLoaded,
        VictimStrategy::MostLoaded,
        VictimStrategy::PowerOfTwo,
        VictimStrategy::Adaptive,
    ][pick(rng, 5)];
    config.stealing.take = if pick(rng, 2) == 0 { Take::One } else { Take::Half };
    config.stealing.min_local_queue = pick(rng, 3) as u32;
    config.limits.requeue_interval = Span::from_millis(10);
    config.limits.max_requeue_attempts = pick(rng, 4) as u32;
    config.limits.lease = Span::from_millis(30);
    config.limits.quarantine_after = [0, 2, 10][pick(rng, 3)];
    config.limits.quarantine = Span::from_millis(20);
    config.limits.settled_kept = [0, 4, 64][pick(rng, 3)];
    config.limits.max_queued = [20, 200, 100_000][pick(rng, 3)];
    config.limits.key_limit = 1 + pick(rng, 2) as u32;
    config.retry.max_retries = pick(rng, 3) as u32;
    config.retry.backoff = Span::from_millis(3);
    config
}

impl Storm {
    fn new(seed: u64) -> Storm {
        let mut rng = Rng::new(seed);
        let config = config(&mut rng);
        let scheduler = Scheduler::new(&config).expect("the policies exist");
        let twin = seed.is_multiple_of(8).then(|| Scheduler::new(&config).expect("the policies exist"));
        Storm {
            rng,
            scheduler,
            now: Time::ZERO,
            actions: Vec::new(),
            workers: Vec::new(),
            held: Vec::new(),
            stale: Vec::new(),
            known: Vec::new(),
            jobs: Vec::new(),
            witness: Witness::new(&config),
            twin,
            twin_actions: Vec::new(),
            payload: 0,
            steps: 0,
        }
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.rng.below(100) < percent
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        from.get(self.rng.below(from.len().max(1))).copied()
    }

    fn capabilities(&mut self, most: usize) -> CapabilitySet {
        let count = self.rng.below(most + 1);
        (0..count).map(|_| CapabilityId(self.rng.below(4) as u32)).collect()
    }

    fn task(&mut self) -> TaskSpec {
        let known = self.known.clone();
        let workers = self.workers.clone();
        self.payload += 1;
        let mut spec = TaskSpec {
            payload: self.payload,
            kind: KindId(self.rng.below(3) as u32),
            priority: Priority::from_f64(1.0 + self.rng.below(5) as f64),
            ..TaskSpec::default()
        };
        if self.chance(30) {
            spec.requires = self.capabilities(1);
        }
        if self.chance(30) {
            spec.skills = self.capabilities(2);
        }
        if self.chance(40) {
            let cpus = Amount::from_f64([0.5, 1.0, 2.0, 3.0, 9.0][self.rng.below(5)]);
            let memory = Amount::from_units(self.rng.below(4) as u64);
            spec.demand = Demand::new([(ResourceId::CPUS, cpus), (ResourceId::MEMORY, memory)]);
        } else if self.chance(20) {
            let gpus = Amount::from_f64([0.4, 0.6, 1.0, 1.5, 2.0][self.rng.below(5)]);
            spec.demand = Demand::new([(ResourceId::GPUS, gpus)]);
        }
        if self.chance(20) {
            spec.key = Some(KeyId(self.rng.below(3) as u32));
        }
        spec.exclusive = self.chance(10);
        spec.idempotent = self.chance(50);
        if self.chance(40) {
            spec.estimate = Some(Span::from_millis(1 + self.rng.below(30) as u64));
        }
        if self.chance(15) {
            spec.deadline = Some(self.now + Span::from_millis(self.rng.below(60) as u64));
        }
        if self.chance(15) {
            spec.timeout = Some(Span::from_millis(1 + self.rng.below(20) as u64));
        }
        if self.chance(10) {
            let backoff = Span::from_millis(2);
            spec.retry = Some(RetryTerms { max_retries: 2, backoff, backoff_max: Span::from_millis(9) });
        }
        if self.chance(15) {
            spec.affinity.push((AffinityId(self.rng.below(3) as u32), Span::from_millis(5)));
        }
        if self.chance(5) {
            spec.pin = self.pick(&workers);
        }
        if self.chance(15) {
            spec.parent = self.pick(&known);
        }
        if self.chance(20) {
            spec.after.extend(self.pick(&known));
            spec.after.extend(self.pick(&known));
            spec.on_parent_failure = [ParentFailure::Fail, ParentFailure::Skip, ParentFailure::Run][self.rng.below(3)];
        }
        spec
    }

    fn worker(&mut self) -> WorkerSpec {
        let capabilities = self.capabilities(4);
        let slots = 1 + self.rng.below(3) as u32;
        let resources = match self.rng.below(3) {
            0 => Vector::default(),
            1 => Vector::new([(ResourceId::CPUS, Amount::from_units(2)), (ResourceId::MEMORY, Amount::from_units(2))]),
            _ => Vector::new([
                (ResourceId::CPUS, Amount::from_units(4)),
                (ResourceId::MEMORY, Amount::from_units(4)),
                (ResourceId::GPUS, Amount::from_units(2)),
            ]),
        };
        let speed = [1.0, 2.0][self.rng.below(2)];
        WorkerSpec { capabilities, resources, slots, speed, ..WorkerSpec::default() }
    }

    fn event(&mut self) -> Event {
        let (workers, held, known, jobs) =
            (self.workers.clone(), self.held.clone(), self.known.clone(), self.jobs.clone());
        let nobody = WorkerId::from_bits(u64::MAX);
        let worker = self.pick(&workers).unwrap_or(nobody);
        match self.rng.below(100) {
            0..=24 => {
                let mut spec = self.task();
                if self.chance(10) {
                    spec.job = self.pick(&jobs);
                }
                Event::Submit(Box::new(spec))
            }
            25..=27 => Event::SubmitMany((0..self.rng.below(5)).map(|_| self.task()).collect()),
            28..=30 => {
                let count = self.rng.below(6) as u32;
                let mut template = self.task();
                if self.chance(80) {
                    (template.after, template.pin) = (Default::default(), None);
                }
                Event::SubmitArray { template: Box::new(template), count }
            }
            31..=33 => {
                let count = self.rng.below(7);
                let mut graph = Vec::new();
                for at in 0..count {
                    let spec = self.task();
                    let mut task = GraphTask { spec, parents: Default::default() };
                    for _ in 0..self.rng.below(3) {
                        // Mostly earlier ones, so that most graphs have no cycle.
                        let bound = if self.chance(95) { at } else { count };
                        if bound > 0 {
                            task.parents.push(self.rng.below(bound) as u32);
                        }
                    }
                    graph.push(task);
                }
                Event::SubmitGraph(graph)
            }
            34..=55 => Event::Pull { worker, wait: self.chance(60) },
            56..=57 => Event::Withdraw { worker },
            58..=63 => {
                let (task, attempt) = self.pick(&held).unwrap_or((TaskId::from_bits(77), 1));
                Event::Start { task, attempt }
            }
            64..=79 => self.end(&held),
            80..=82 => Event::Cancel { task: self.pick(&known).unwrap_or(TaskId::from_bits(9)) },
            83 => match self.pick(&jobs) {
                Some(job) if self.chance(50) => Event::CancelJob { job },
                Some(job) => Event::CancelElement { job, index: self.rng.below(5) as u32 },
                None => Event::OpenJob { weight: 2.0 },
            },
            84 => match self.pick(&jobs) {
                Some(job) => Event::CloseJob { job },
                None => Event::OpenJob { weight: 0.5 },
            },
            85..=86 => Event::Steal { thief: worker },
            87 => Event::Rebalance,
            88 => Event::SetKeyLimit { key: KeyId(self.rng.below(3) as u32), limit: 1 + self.rng.below(3) as u32 },
            89..=91 if self.workers.len() < 6 => Event::Join(self.worker()),
            92 if self.workers.len() > 1 => {
                let remaining = if self.chance(50) { Remaining::Return } else { Remaining::Requeue };
                Event::Leave { worker, remaining }
            }
            93 => Event::Silent { worker },
            94 | 95 => Event::Report { worker, load: LoadReport::default() },
            96 => {
                let spec = self.worker();
                let change = WorkerChange {
                    capabilities: self.chance(50).then_some(spec.capabilities),
                    resources: self.chance(30).then_some(spec.resources),
                    slots: self.chance(30).then_some(spec.slots),
                    speed: self.chance(30).then_some(spec.speed),
                    cost_rate: self.chance(30).then_some(spec.cost_rate),
                    weight: self.chance(30).then_some(1.0 + self.rng.below(3) as f64),
                    draining: self.chance(50).then_some(self.rng.below(2) == 0),
                };
                Event::Change { worker, change }
            }
            97 => {
                let name = POLICIES[self.rng.below(POLICIES.len())];
                Event::SetPolicy { task_type: None, policy: PolicySpec::Name(name.to_owned()) }
            }
            _ => Event::Tick,
        }
    }

    fn end(&mut self, held: &[(TaskId, u32)]) -> Event {
        let stale = self.stale.clone();
        let from: &[(TaskId, u32)] = if self.chance(85) { held } else { &stale };
        let (task, attempt) = self.pick(from).unwrap_or((TaskId::from_bits(3), 1));
        match self.rng.below(10) {
            0..=6 => Event::Finish { task, attempt },
            7 | 8 => Event::Fail { task, attempt, retry: self.rng.below(4) > 0 },
            _ => Event::GiveBack { task, attempt },
        }
    }

    fn step(&mut self) {
        let event = self.event();
        self.now = self.now + Span::from_micros(self.rng.below(2000) as u64);
        // What is due comes first and by itself, so that the witness knows what caused what.
        if self.scheduler.next_timer().is_some_and(|due| due <= self.now) {
            self.take(&Event::Tick);
        }
        self.take(&event);
        let tasks: Vec<TaskId> = self.scheduler.tasks().map(|task| task.0).take(2).collect();
        for task in tasks {
            assert!(self.scheduler.explain(task).is_some());
        }
    }

    /// Plays one event, and judges what came of it.
    fn take(&mut self, event: &Event) {
        self.steps += 1;
        if let Event::Leave { worker, .. } = event {
            self.workers.retain(|known| known != worker);
        }
        if let Event::Finish { task, attempt } | Event::Fail { task, attempt, .. } | Event::GiveBack { task, attempt } =
            event
        {
            self.held.retain(|known| known != &(*task, *attempt));
            self.stale.retain(|known| known != &(*task, *attempt));
        }
        self.witness.hear(self.now, event);
        self.actions.clear();
        self.scheduler.step(self.now, event.clone(), &mut self.actions);
        if let Some(twin) = &mut self.twin {
            self.twin_actions.clear();
            twin.step(self.now, event.clone(), &mut self.twin_actions);
            assert_eq!(self.actions, self.twin_actions, "the same events and seed give the same actions");
        }
        for action in &self.actions {
            match *action {
                Action::Joined { worker, .. } => self.workers.push(worker),
                Action::Opened { job } => self.jobs.push(job),
                Action::JobDone { job } => self.jobs.retain(|known| *known != job),
                Action::Accepted { task, .. } => self.known.push(task),
                Action::Assign { task, attempt, .. } => self.held.push((task, attempt)),
                Action::Revoke { task, attempt, .. } => {
                    self.held.retain(|known| known != &(task, attempt));
                    self.stale.push((task, attempt));
                }
                _ => {}
            }
        }
        let scheduler = &self.scheduler;
        self.held.retain(|(task, attempt)| scheduler.holder(*task).is_some_and(|holder| holder.1 == *attempt));
        self.known.retain(|task| scheduler.status(*task).is_some());
        if self.known.len() > 40 {
            self.known.remove(0);
        }
        let judged = self.witness.see(event, &self.actions);
        let checked = self.scheduler.check().map_err(|violation| violation.to_string());
        if let Err(violation) = judged.and(checked) {
            panic!("{violation}\nafter {event:?}\nactions: {:#?}", self.actions);
        }
    }

    /// Withdraws everything and lets go of every attempt: nothing may be left anywhere.
    fn drain(&mut self) {
        for job in self.jobs.clone() {
            self.take(&Event::CancelJob { job });
        }
        while let Some(task) = { self.scheduler.tasks().map(|entry| entry.0).next() } {
            self.take(&Event::Cancel { task });
        }
        for (task, attempt) in self.witness.outstanding() {
            self.take(&Event::Finish { task, attempt });
        }
        assert_eq!(self.scheduler.unsettled(), 0);
        for &worker in &self.workers {
            let status = self.scheduler.worker(worker).expect("it is registered");
            assert!(status.reserved.is_zero() && status.queue_length == 0 && status.running == 0, "{status:?}");
        }
        self.witness.end().expect("nothing is lost");
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

#[test]
fn no_storm_breaks_an_invariant() {
    let (first, count) = match number("FILCH_STORM_SEED") {
        Some(seed) => (seed, 1),
        None => (0, number("FILCH_STORMS").unwrap_or(1500)),
    };
    let (mut steps, mut assigned, mut moved) = (0, 0, 0);
    for seed in first..first + count {
        let result = std::panic::catch_unwind(|| {
            let mut storm = Storm::new(seed);
            for _ in 0..500 {
                storm.step();
            }
            storm.drain();
            (storm.steps, storm.witness.assigned, storm.witness.moved)
        });
        match result {
            Ok(counts) => {
                steps += counts.0;
                assigned += counts.1;
                moved += counts.2;
            }
            Err(panic) => {
                eprintln!("replay with: FILCH_STORM_SEED={seed} cargo test -p filch-core --test storm");
                std::panic::resume_unwind(panic);
            }
        }
    }
    // A storm that does nothing proves nothing.
    assert!(
        assigned * 20 > steps && (count < 1000 || moved > 1000),
        "{steps} steps, {assigned} assigned, {moved} moved"
    );
}
