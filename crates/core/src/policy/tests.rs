//! Each formula against numbers worked out by hand or given in the documents it comes from.

use super::*;
use crate::config::AdaptiveModel;
use crate::ids::ResourceId;
use crate::resources::Amount;

struct Bench {
    capacity: Vector,
    reserved: Vector,
    demand: Demand,
}

impl Bench {
    fn new() -> Bench {
        Bench { capacity: Vector::default(), reserved: Vector::default(), demand: Demand::default() }
    }

    fn task(&self) -> TaskView<'_> {
        TaskView {
            now: Time::ZERO,
            kind: KindId(0),
            priority: 3,
            estimate: None,
            deadline: Time::NEVER,
            demand: &self.demand,
            retry_pause: Span::from_millis(500),
            parent_worker: None,
        }
    }

    fn worker(&self, slot: u32) -> WorkerView<'_> {
        WorkerView {
            id: WorkerId { slot, generation: 0 },
            joined: u64::from(slot),
            slots: 1,
            running: 0,
            queued: 0,
            gpus: 0.0,
            backlog: Span::ZERO,
            skill_match: 1.0,
            spare: 0,
            success_rate: 1.0,
            average: MovingAverage::default(),
            estimate: Estimate { duration: Span::from_secs(1), spread: Span::ZERO, success: 1.0, samples: 0 },
            cost_rate: 1.0,
            weight: 1.0,
            assigned: 0,
            last_assigned: 0,
            cold: Span::ZERO,
            warm: false,
            capacity: &self.capacity,
            reserved: &self.reserved,
        }
    }
}

fn make(name: &str) -> Box<dyn Policy> {
    create(&PolicySpec::Name(name.to_owned()), &Config::default()).unwrap()
}

/// The slot of the worker that wins, as the scheduler would choose it.
fn winner(policy: &dyn Policy, task: &TaskView<'_>, workers: &[WorkerView<'_>]) -> Option<u32> {
    let mut scores = Vec::new();
    policy.score_all(task, workers, &mut scores);
    best(workers, &scores).map(|at| workers[at].id.slot)
}

fn score(policy: &dyn Policy, task: &TaskView<'_>, worker: &WorkerView<'_>) -> f64 {
    policy.score(task, worker, &mut Terms::default()).unwrap()
}

#[test]
fn best_fit_is_skill_match_less_queue_tenths_plus_weighted_history() {
    let bench = Bench::new();
    let worker = WorkerView { skill_match: 0.5, queued: 3, success_rate: 0.8, ..bench.worker(0) };
    assert!((score(&*make("best_fit"), &bench.task(), &worker) - (0.5 - 0.3 + 0.8 * 0.3)).abs() < 1e-12);
    let mut config = Config::default();
    config.load_balancing.capabilities.consider_history = false;
    let without = create(&PolicySpec::Name("best_fit".to_owned()), &config).unwrap();
    assert!((score(&*without, &bench.task(), &worker) - 0.2).abs() < 1e-12);
}

#[test]
fn load_balancing_takes_the_less_loaded_of_the_documented_pair() {
    let bench = Bench::new();
    let first = WorkerView { gpus: 2.0, ..bench.worker(1) };
    let second = WorkerView { gpus: 2.0, running: 3, ..bench.worker(2) };
    let policy = make("load_balancing");
    assert_eq!(winner(&*policy, &bench.task(), &[second, first]), Some(1));
    assert_eq!(score(&*policy, &bench.task(), &WorkerView { queued: 4, ..second }), -(1.5 + 4.0));
    let slots = WorkerView { slots: 4, running: 2, ..bench.worker(3) };
    assert_eq!(score(&*policy, &bench.task(), &slots), -0.5, "without GPUs the slots count");
}

#[test]
fn fifo_takes_the_first_idle_worker_and_nobody_when_all_are_busy() {
    let bench = Bench::new();
    let busy = WorkerView { running: 1, ..bench.worker(0) };
    let policy = make("fifo");
    assert_eq!(winner(&*policy, &bench.task(), &[busy, bench.worker(2), bench.worker(1)]), Some(1));
    assert_eq!(winner(&*policy, &bench.task(), &[busy]), None);
}

#[test]
fn priority_based_takes_the_idle_worker_with_the_fewest_tasks() {
    let bench = Bench::new();
    let some = WorkerView { slots: 4, running: 2, ..bench.worker(0) };
    let fewer = WorkerView { slots: 4, running: 1, ..bench.worker(1) };
    let queued = WorkerView { queued: 1, ..bench.worker(2) };
    assert_eq!(winner(&*make("priority_based"), &bench.task(), &[some, fewer, queued]), Some(1));
}

#[test]
fn adaptive_is_speed_times_success_and_one_for_a_new_worker() {
    let bench = Bench::new();
    let average = MovingAverage { completion_s: 2.0, success: 0.9, total: 5 };
    let known = WorkerView { average, ..bench.worker(0) };
    let policy = Adaptive { model: AdaptiveModel::Ewma, alpha: None };
    assert!((score(&policy, &bench.task(), &known) - 0.9 / (2.0 + 1e-6)).abs() < 1e-12);
    assert_eq!(score(&policy, &bench.task(), &bench.worker(1)), 1.0);
    assert_eq!(winner(&policy, &bench.task(), &[known, bench.worker(1)]), Some(1));
    assert_eq!(policy.score(&bench.task(), &WorkerView { running: 1, ..known }, &mut Terms::default()), None);
}

#[test]
fn batch_fills_the_biggest_first_then_the_next_then_goes_round() {
    let bench = Bench::new();
    let policy = make("batch");
    let mut workers = [
        WorkerView { gpus: 1.0, ..bench.worker(0) },
        WorkerView { gpus: 4.0, ..bench.worker(1) },
        WorkerView { gpus: 2.0, ..bench.worker(2) },
    ];
    let mut order = Vec::new();
    for _ in 0..15 {
        let slot = winner(&*policy, &bench.task(), &workers).unwrap();
        workers[slot as usize].queued += 1;
        order.push(slot);
    }
    assert_eq!(order, [1, 1, 1, 1, 2, 2, 2, 2, 0, 0, 0, 0, 1, 2, 0]);
}

#[test]
fn round_robin_takes_turns_and_weights_shift_them() {
    let bench = Bench::new();
    let mut workers = [bench.worker(0), bench.worker(1), bench.worker(2)];
    let mut turns = Vec::new();
    for turn in 1..=6 {
        let slot = winner(&*make("round_robin"), &bench.task(), &workers).unwrap();
        workers[slot as usize].last_assigned = turn;
        turns.push(slot);
    }
    assert_eq!(turns, [0, 1, 2, 0, 1, 2]);
    let mut workers = [WorkerView { weight: 3.0, ..bench.worker(0) }, bench.worker(1)];
    for _ in 0..40 {
        let slot = winner(&*make("weighted_round_robin"), &bench.task(), &workers).unwrap();
        workers[slot as usize].assigned += 1;
    }
    assert_eq!((workers[0].assigned, workers[1].assigned), (30, 10));
}

#[test]
fn work_stealing_keeps_children_at_home_and_else_takes_the_shortest_queue() {
    let bench = Bench::new();
    let (long, short) = (WorkerView { queued: 9, ..bench.worker(0) }, WorkerView { queued: 1, ..bench.worker(1) });
    let policy = make("work_stealing");
    assert_eq!(winner(&*policy, &bench.task(), &[long, short]), Some(1));
    let child = TaskView { parent_worker: Some(long.id), ..bench.task() };
    assert_eq!(winner(&*policy, &child, &[long, short]), Some(0));
}

#[test]
fn performance_cost_and_affinity_prefer_what_they_are_named_for() {
    let bench = Bench::new();
    let fast = |slot, seconds, success| WorkerView {
        estimate: Estimate { duration: Span::from_secs(seconds), success, samples: 3, spread: Span::ZERO },
        ..bench.worker(slot)
    };
    let performance = make("performance_based");
    assert_eq!(winner(&*performance, &bench.task(), &[fast(0, 4, 1.0), fast(1, 2, 1.0)]), Some(1));
    assert_eq!(winner(&*performance, &bench.task(), &[fast(0, 4, 1.0), fast(1, 2, 0.3)]), Some(0));
    let dear = WorkerView { cost_rate: 3.0, ..fast(1, 2, 1.0) };
    assert_eq!(winner(&*make("cost_based"), &bench.task(), &[fast(0, 4, 1.0), dear]), Some(0));
    let warm = WorkerView { warm: true, ..bench.worker(1) };
    assert_eq!(winner(&*make("affinity_based"), &bench.task(), &[fast(0, 1, 1.0), warm]), Some(1));
    assert_eq!(winner(&*make("affinity_based"), &bench.task(), &[bench.worker(0), fast(1, 1, 1.0)]), Some(1));
}

#[test]
fn expected_completion_adds_wait_cold_run_and_retries() {
    let bench = Bench::new();
    let policy = ExpectedCompletion::default();
    let worker = WorkerView {
        running: 1,
        backlog: Span::from_secs(3),
        cold: Span::from_secs(1),
        estimate: Estimate { duration: Span::from_secs(4), spread: Span::from_secs(2), success: 0.5, samples: 9 },
        ..bench.worker(0)
    };
    // 3 wait + 1 cold + (4 + 0.5·2) / 0.5 run + (1/0.5 − 1)·0.5 pauses before retries
    assert!((score(&policy, &bench.task(), &worker) + 14.5).abs() < 1e-9);
    let late = TaskView { deadline: Time::ZERO + Span::from_secs(15), ..bench.task() };
    // 14.5 + spread 2 − 15 = 1.5 seconds late, ten times
    assert!((score(&policy, &late, &worker) + 29.5).abs() < 1e-9);
    let dear = ExpectedCompletion { lambda_cost: 2.0, ..policy };
    assert!((score(&dear, &bench.task(), &WorkerView { cost_rate: 3.0, ..worker }) + 14.5 + 48.0).abs() < 1e-9);
}

#[test]
fn expected_completion_evens_out_resources_at_equal_time() {
    let mut bench = Bench::new();
    let units =
        |cpus, memory| [(ResourceId::CPUS, Amount::from_units(cpus)), (ResourceId::MEMORY, Amount::from_units(memory))];
    bench.capacity = Vector::new(units(4, 4));
    bench.demand = Demand::new(units(2, 0));
    let cpu_heavy = Vector::new(units(2, 0));
    let memory_heavy = Vector::new(units(0, 2));
    let a = WorkerView { reserved: &cpu_heavy, ..bench.worker(0) };
    let b = WorkerView { reserved: &memory_heavy, ..bench.worker(1) };
    assert_eq!(winner(&ExpectedCompletion::default(), &bench.task(), &[a, b]), Some(1));
}

#[test]
fn deadline_prefers_being_in_time_over_everything() {
    let bench = Bench::new();
    let quick = |slot, seconds, spread| WorkerView {
        estimate: Estimate {
            duration: Span::from_secs(seconds),
            spread: Span::from_secs(spread),
            success: 1.0,
            samples: 9,
        },
        ..bench.worker(slot)
    };
    let task = TaskView { deadline: Time::ZERO + Span::from_secs(10), ..bench.task() };
    // 6 s give or take 8 may be late; 9 s sharp are not.
    assert_eq!(winner(&*make("deadline"), &task, &[quick(0, 6, 8), quick(1, 9, 0)]), Some(1));
}

#[test]
fn composites_scale_their_parts_and_weigh_them() {
    let bench = Bench::new();
    let spec = |weights: [f64; 2]| {
        let part = |weight, kind: &str| crate::config::WeightedPolicy {
            weight,
            policy: PolicyOptions { kind: kind.to_owned(), ..PolicyOptions::default() },
        };
        PolicySpec::Options(PolicyOptions {
            kind: "composite".to_owned(),
            algorithms: vec![part(weights[0], "performance_based"), part(weights[1], "load_balancing")],
            ..PolicyOptions::default()
        })
    };
    let quick_but_loaded = WorkerView {
        queued: 2,
        estimate: Estimate { duration: Span::from_millis(1), ..bench.worker(0).estimate },
        ..bench.worker(0)
    };
    let workers = [quick_but_loaded, bench.worker(1)];
    let config = Config::default();
    assert_eq!(winner(&*create(&spec([0.9, 0.1]), &config).unwrap(), &bench.task(), &workers), Some(0));
    assert_eq!(winner(&*create(&spec([0.1, 0.9]), &config).unwrap(), &bench.task(), &workers), Some(1));
    assert!(create(&spec([0.0, 0.0]), &config).is_err());
    assert!(create(&spec([f64::NAN, 1.0]), &config).is_err());
}

#[test]
fn ties_go_to_fewer_spare_capabilities_then_to_the_lower_id() {
    let bench = Bench::new();
    let (a, b) = (WorkerView { spare: 2, ..bench.worker(0) }, WorkerView { spare: 1, ..bench.worker(1) });
    assert_eq!(winner(&*make("load_balancing"), &bench.task(), &[a, b]), Some(1));
    assert_eq!(winner(&*make("load_balancing"), &bench.task(), &[bench.worker(5), bench.worker(4)]), Some(4));
}

#[test]
fn a_score_that_is_no_number_never_wins() {
    let bench = Bench::new();
    let workers = [bench.worker(0), bench.worker(1)];
    assert_eq!(best(&workers, &[Some(f64::NAN), Some(5.0)]), Some(1));
    assert_eq!(best(&workers, &[Some(f64::NAN), None]), None);
}

#[test]
fn every_documented_policy_can_be_made_by_its_name() {
    // A composite needs parts; its own test makes one.
    for entry in crate::config::POLICIES.iter().filter(|entry| entry.name != "composite") {
        assert_eq!(make(entry.name).name(), entry.name);
    }
}

#[test]
fn terms_are_kept_only_when_asked_for() {
    let bench = Bench::new();
    let (mut kept, mut dropped) = (Terms::kept(), Terms::default());
    make("best_fit").score(&bench.task(), &bench.worker(0), &mut kept);
    make("best_fit").score(&bench.task(), &bench.worker(0), &mut dropped);
    assert_eq!(kept.take(), [("skill_match", 1.0), ("queue", 0.0), ("history", 0.3)]);
    assert!(dropped.take().is_empty());
}

#[test]
fn a_decision_is_remembered_with_the_winner_and_those_that_came_next() {
    let scores = [Some(1.0), None, Some(9.0), Some(f64::NAN), Some(3.0), Some(9.0)];
    assert_eq!(leaders(&scores, 5, 8).as_slice(), [0, 1, 2, 3, 4, 5]);
    assert_eq!(leaders(&scores, 5, 3).as_slice(), [2, 4, 5]);
    assert_eq!(leaders(&scores, 5, 1).as_slice(), [5], "the winner, who won by a rule for equals");
    assert_eq!(leaders(&scores, 5, 4).as_slice(), [0, 2, 4, 5], "refusals come last");
}
