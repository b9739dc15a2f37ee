//! Random scenarios: operations that name tasks and workers by position, so that a shorter list still makes sense.

use filch_core::config::{Bind, Hopeless, Matching, PolicyOptions, PolicySpec, RebalanceBy, Strategy as Balance, Take};
use filch_core::config::{VictimStrategy, WeightedPolicy};
use filch_core::{
    AffinityId, Amount, CapabilityId, CapabilitySet, Config, Demand, KeyId, KindId, ParentFailure, Priority,
    ResourceId, RetryTerms, Span, TaskSpec, Time, TypeId, Vector, WorkerSpec,
};
use proptest::prelude::*;

pub(crate) const POLICIES: [&str; 17] = [
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
    "composite",
    // With options.
    "work_stealing",
    "adaptive",
];

/// A task in small numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct TaskOp {
    pub(crate) priority: u8,
    pub(crate) kind: u8,
    /// 0 is that of tasks that name none.
    pub(crate) task_type: u8,
    pub(crate) requires: Option<u8>,
    pub(crate) skills: Vec<u8>,
    pub(crate) cpus: Option<u8>,
    pub(crate) key: Option<u8>,
    pub(crate) exclusive: bool,
    pub(crate) idempotent: bool,
    pub(crate) estimate_ms: Option<u8>,
    pub(crate) deadline_ms: Option<u8>,
    pub(crate) timeout_ms: Option<u8>,
    pub(crate) retries: Option<u8>,
    pub(crate) affinity: Option<u8>,
    pub(crate) pin: Option<u8>,
    pub(crate) parent: Option<u8>,
    pub(crate) after: Vec<u8>,
    pub(crate) on_parent_failure: u8,
    pub(crate) job: Option<u8>,
}

/// A worker in small numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct WorkerOp {
    pub(crate) capabilities: Vec<u8>,
    pub(crate) slots: u8,
    pub(crate) cpus: u8,
    pub(crate) fast: bool,
    pub(crate) heavy: bool,
}

/// One thing that happens. Numbers pick from what there is, counted round.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Join(WorkerOp),
    Change {
        worker: u8,
        to: WorkerOp,
        what: u8,
        draining: Option<bool>,
    },
    Report(u8),
    Leave {
        worker: u8,
        requeue: bool,
    },
    Silent(u8),
    Submit(TaskOp),
    Many(Vec<TaskOp>),
    Graph(Vec<(TaskOp, Vec<u8>)>),
    Array {
        task: TaskOp,
        count: u8,
    },
    CancelElement {
        job: u8,
        index: u8,
    },
    Open(u8),
    Close(u8),
    CancelJob(u8),
    Pull {
        worker: u8,
        wait: bool,
    },
    Withdraw(u8),
    Start(u8),
    Finish(u8),
    Fail {
        held: u8,
        retry: bool,
    },
    GiveBack(u8),
    /// A report of an attempt that no longer counts.
    Late(u8),
    Cancel(u8),
    Steal(u8),
    Rebalance,
    Limit {
        key: u8,
        limit: u8,
    },
    /// For a type of tasks, if the scenario has them, or for all others.
    Policy {
        policy: u8,
        of: Option<u8>,
    },
    Tick,
}

fn task() -> impl Strategy<Value = TaskOp> {
    let small = prop::option::weighted;
    let asks = (
        1u8..=5,
        0u8..3,
        small(0.25, 0u8..4),
        prop_oneof![3 => Just(Vec::new()), 1 => prop::collection::vec(0u8..4, 1..3)],
        small(0.4, 0u8..10),
        small(0.25, 0u8..2),
        prop::bool::weighted(0.1),
        any::<bool>(),
    );
    let terms = (
        small(0.4, 1u8..30),
        small(0.15, 0u8..60),
        small(0.15, 1u8..20),
        small(0.15, 0u8..3),
        small(0.2, 0u8..3),
        small(0.08, 0u8..255),
        small(0.15, 0u8..255),
        prop_oneof![4 => Just(Vec::new()), 1 => prop::collection::vec(any::<u8>(), 1..3)],
        0u8..3,
        small(0.15, 0u8..255),
        0u8..3,
    );
    (asks, terms).prop_map(|(a, t)| TaskOp {
        priority: a.0,
        kind: a.1,
        requires: a.2,
        skills: a.3,
        cpus: a.4,
        key: a.5,
        exclusive: a.6,
        idempotent: a.7,
        estimate_ms: t.0,
        deadline_ms: t.1,
        timeout_ms: t.2,
        retries: t.3,
        affinity: t.4,
        pin: t.5,
        parent: t.6,
        after: t.7,
        on_parent_failure: t.8,
        job: t.9,
        task_type: t.10,
    })
}

fn worker() -> impl Strategy<Value = WorkerOp> {
    (prop::collection::vec(0u8..4, 0..4), 1u8..4, 0u8..3, any::<bool>(), any::<bool>())
        .prop_map(|(capabilities, slots, cpus, fast, heavy)| WorkerOp { capabilities, slots, cpus, fast, heavy })
}

fn op() -> impl Strategy<Value = Op> {
    let at = any::<u8>;
    prop_oneof![
        24 => task().prop_map(Op::Submit),
        2 => prop::collection::vec(task(), 0..4).prop_map(Op::Many),
        3 => prop::collection::vec((task(), prop::collection::vec(any::<u8>(), 0..3)), 0..6).prop_map(Op::Graph),
        3 => (task(), 0u8..6).prop_map(|(task, count)| Op::Array { task, count }),
        2 => (at(), 0u8..6).prop_map(|(job, index)| Op::CancelElement { job, index }),
        20 => (at(), any::<bool>()).prop_map(|(worker, wait)| Op::Pull { worker, wait }),
        1 => at().prop_map(Op::Withdraw),
        5 => at().prop_map(Op::Start),
        14 => at().prop_map(Op::Finish),
        4 => (at(), prop::bool::weighted(0.7)).prop_map(|(held, retry)| Op::Fail { held, retry }),
        2 => at().prop_map(Op::GiveBack),
        3 => at().prop_map(Op::Late),
        3 => at().prop_map(Op::Cancel),
        1 => at().prop_map(Op::CancelJob),
        1 => at().prop_map(Op::Open),
        1 => at().prop_map(Op::Close),
        3 => at().prop_map(Op::Steal),
        2 => Just(Op::Rebalance),
        2 => (0u8..2, 1u8..8).prop_map(|(key, limit)| Op::Limit { key, limit }),
        4 => worker().prop_map(Op::Join),
        2 => (at(), worker(), any::<u8>(), prop::option::of(any::<bool>()))
            .prop_map(|(worker, to, what, draining)| Op::Change { worker, to, what, draining }),
        2 => (at(), any::<bool>()).prop_map(|(worker, requeue)| Op::Leave { worker, requeue }),
        1 => at().prop_map(Op::Silent),
        2 => at().prop_map(Op::Report),
        2 => (0u8..17, prop::option::of(0u8..2)).prop_map(|(policy, of)| Op::Policy { policy, of }),
        3 => Just(Op::Tick),
    ]
}

/// How the scheduler is set up, in small numbers.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) push: bool,
    pub(crate) policy: u8,
    pub(crate) fair: bool,
    pub(crate) aging_ms: u8,
    pub(crate) per_class: u32,
    pub(crate) strategy: u8,
    pub(crate) victims: u8,
    pub(crate) matching: u8,
    pub(crate) choices: u16,
    pub(crate) requeues: u32,
    pub(crate) quarantine_after: u32,
    pub(crate) max_queued: u64,
    /// Tasks of a key that one step lets in or out.
    pub(crate) portion: usize,
    pub(crate) reserve_after_ms: u32,
    /// Big workers, and tasks that differ in size more than in what they require, so that wide ones wait for room.
    pub(crate) wide: bool,
    /// Tasks have types, with policies of their own. Then victims are not drawn by lot, and there is one weight of moving
    /// averages.
    pub(crate) typed: bool,
    /// Workers, each a class of its own, that are there from the start.
    pub(crate) crowd: u16,
}

fn setup() -> impl Strategy<Value = Setup> {
    (
        any::<bool>(),
        0u8..17,
        any::<bool>(),
        prop_oneof![Just(0u8), Just(5), Just(40)],
        1u32..4,
        0u8..3,
        0u8..5,
        0u8..3,
        any::<u16>(),
        (
            0u32..3,
            prop_oneof![Just(0u32), Just(2)],
            prop_oneof![Just(12u64), Just(100_000)],
            prop_oneof![Just(1usize), Just(2), Just(256)],
            // At once, after a while, never.
            prop_oneof![3 => Just(0u32), 1 => Just(5), 1 => Just(1_000_000_000)],
            prop::bool::weighted(0.4),
            prop::bool::weighted(0.3),
        ),
    )
        .prop_map(|(push, policy, fair, aging_ms, per_class, strategy, victims, matching, choices, limits)| {
            Setup {
                push,
                policy,
                fair,
                aging_ms,
                per_class,
                strategy,
                victims,
                matching,
                choices,
                requeues: limits.0,
                quarantine_after: limits.1,
                max_queued: limits.2,
                portion: limits.3,
                reserve_after_ms: limits.4,
                wide: limits.5,
                typed: limits.6,
                crowd: 0,
            }
        })
}

/// A scenario: a setup and what happens, each after a pause in microseconds.
pub(crate) fn scenario(most: usize, crowd: u16) -> impl Strategy<Value = (Setup, Vec<(u16, Op)>)> {
    (setup().prop_map(move |setup| Setup { crowd, ..setup }), prop::collection::vec((0u16..2500, op()), 1..most))
}

pub(crate) fn policy(at: u8) -> PolicySpec {
    let name = POLICIES[usize::from(at) % POLICIES.len()];
    if at >= 15 {
        let kind = name.to_owned();
        let (alpha, steal_threshold) = if at == 15 { (None, Some(1)) } else { (Some(0.5), None) };
        return PolicySpec::Options(PolicyOptions { kind, alpha, steal_threshold, ..PolicyOptions::default() });
    }
    if name != "composite" {
        return PolicySpec::Name(name.to_owned());
    }
    let part = |kind: &str, weight: f64| WeightedPolicy {
        weight,
        policy: PolicyOptions { kind: kind.to_owned(), ..PolicyOptions::default() },
    };
    PolicySpec::Options(PolicyOptions {
        kind: name.to_owned(),
        algorithms: vec![part("performance_based", 0.6), part("priority_based", 0.3), part("affinity_based", 0.1)],
        ..PolicyOptions::default()
    })
}

impl Setup {
    /// The policy in its place that this scenario may have.
    pub(crate) fn common_policy(&self, policy: u8) -> u8 {
        if self.typed { policy.min(15) } else { policy }
    }

    pub(crate) fn config(&self) -> Config {
        let mut config = Config { seed: u64::from(self.choices), ..Config::default() };
        let chosen = |bit: u16| self.choices >> bit & 1 == 1;
        config.scheduling.bind = if self.push { Bind::Push } else { Bind::Late };
        config.scheduling.policy = policy(self.common_policy(self.policy));
        config.scheduling.fair_share = self.fair;
        config.scheduling.aging_interval = Span::from_millis(u64::from(self.aging_ms));
        config.scheduling.candidates_per_class = self.per_class;
        config.scheduling.default_estimate = Span::from_millis(7);
        config.scheduling.hopeless_deadlines = if chosen(0) { Hopeless::Refuse } else { Hopeless::Flag };
        config.scheduling.reserve_after = Span::from_millis(u64::from(self.reserve_after_ms));
        config.load_balancing.strategy = [Balance::Pull, Balance::Push, Balance::Hybrid][usize::from(self.strategy)];
        let thresholds = &mut config.load_balancing.thresholds;
        thresholds.rebalance_interval_sec = 0.02;
        thresholds.busy_threshold = 2;
        thresholds.severe_imbalance_ratio = 1.5;
        thresholds.rebalance_by = if chosen(1) { RebalanceBy::Backlog } else { RebalanceBy::Count };
        config.load_balancing.work_stealing.prefer_recent_tasks = chosen(2);
        config.load_balancing.work_stealing.allow_task_migration = chosen(3);
        config.load_balancing.priority.preserve_high_priority = chosen(4);
        config.load_balancing.capabilities.matching_strategy =
            [Matching::Exact, Matching::BestFit, Matching::Fallback][usize::from(self.matching)];
        config.stealing.strategy = [
            VictimStrategy::MostLoaded,
            VictimStrategy::LeastLoaded,
            VictimStrategy::PowerOfTwo,
            VictimStrategy::Random,
            VictimStrategy::Adaptive,
        ][usize::from(if self.typed { self.victims % 2 } else { self.victims })];
        config.stealing.take = if chosen(5) { Take::Half } else { Take::One };
        config.stealing.min_local_queue = u32::from(self.choices >> 6 & 1);
        config.stealing.min_victim_queue = 2;
        config.limits.requeue_interval = Span::from_millis(10);
        config.limits.max_requeue_attempts = self.requeues;
        config.limits.lease = Span::from_millis(30);
        config.limits.quarantine_after = self.quarantine_after;
        config.limits.quarantine = Span::from_millis(20);
        config.limits.max_queued = self.max_queued;
        config.limits.key_limit = 1 + u32::from(chosen(7));
        config.limits.decisions_kept = if chosen(8) { 16 } else { 0 };
        config.limits.settled_kept = u32::MAX;
        config.limits.sample_interval = Span::ZERO;
        config.retry.max_retries = u32::from(self.choices >> 9 & 3);
        config.retry.backoff = Span::from_millis(3);
        config.retry.jitter = 0.0;
        config
    }
}

fn capabilities(of: &[u8]) -> CapabilitySet {
    of.iter().map(|&id| CapabilityId(u32::from(id))).collect()
}

impl WorkerOp {
    /// The same with more slots and something of everything.
    pub(crate) fn bigger(&self) -> WorkerOp {
        WorkerOp { slots: self.slots + 3, cpus: 2, ..self.clone() }
    }

    pub(crate) fn spec(&self) -> WorkerSpec {
        let units = |amount: u64| Amount::from_units(amount);
        let resources = match self.cpus {
            0 => Vector::default(),
            1 => Vector::new([(ResourceId::CPUS, units(2)), (ResourceId::MEMORY, units(2))]),
            _ => Vector::new([
                (ResourceId::CPUS, units(4)),
                (ResourceId::MEMORY, units(4)),
                (ResourceId::GPUS, units(2)),
            ]),
        };
        WorkerSpec {
            tag: 0,
            capabilities: capabilities(&self.capabilities),
            resources,
            slots: u32::from(self.slots.max(1)),
            speed: if self.fast { 2.0 } else { 1.0 },
            cost_rate: if self.heavy { 3.0 } else { 1.0 },
            weight: if self.heavy { 2.0 } else { 1.0 },
        }
    }
}

impl TaskOp {
    /// The same for anybody who has room for it.
    pub(crate) fn wider(&self) -> TaskOp {
        TaskOp { requires: None, skills: Vec::new(), cpus: Some(self.cpus.unwrap_or(self.kind)), ..self.clone() }
    }

    /// The task, but for what names other tasks, workers and jobs.
    pub(crate) fn spec(&self, payload: u64, now: Time) -> TaskSpec {
        let millis = |of: Option<u8>| of.map(|millis| Span::from_millis(u64::from(millis)));
        let demand = self.cpus.map(|at| {
            if at >= 5 {
                let gpus = Amount::from_f64([0.3, 0.6, 1.0, 2.0, 1.5][usize::from(at) - 5]);
                return Demand::new([(ResourceId::GPUS, gpus)]);
            }
            let cpus = Amount::from_f64([0.5, 1.0, 2.0, 3.0, 9.0][usize::from(at)]);
            Demand::new([(ResourceId::CPUS, cpus), (ResourceId::MEMORY, Amount::from_units(u64::from(at) / 2))])
        });
        TaskSpec {
            payload,
            kind: KindId(u32::from(self.kind)),
            task_type: TypeId(u32::from(self.task_type)),
            priority: Priority::from_f64(f64::from(self.priority)),
            requires: self.requires.iter().map(|&id| CapabilityId(u32::from(id))).collect(),
            skills: capabilities(&self.skills),
            demand: demand.unwrap_or_default(),
            key: self.key.map(|key| KeyId(u32::from(key))),
            exclusive: self.exclusive,
            idempotent: self.idempotent,
            estimate: millis(self.estimate_ms),
            deadline: millis(self.deadline_ms).map(|after| now + after),
            timeout: millis(self.timeout_ms),
            retry: self.retries.map(|retries| RetryTerms {
                max_retries: u32::from(retries),
                backoff: Span::from_millis(2),
                backoff_max: Span::from_millis(5),
            }),
            affinity: self.affinity.map(|key| (AffinityId(u32::from(key)), Span::from_millis(5))).into_iter().collect(),
            on_parent_failure: [ParentFailure::Fail, ParentFailure::Skip, ParentFailure::Run]
                [usize::from(self.on_parent_failure)],
            ..TaskSpec::default()
        }
    }
}
