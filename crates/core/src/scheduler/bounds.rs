//! Tests of the bounds: however large the crowd, no single step looks at more than a constant number of entries, and what
//! is left is finished in the steps that `next_timer` asks for.

use super::Scheduler;
use crate::action::Action;
use crate::capabilities::CapabilitySet;
use crate::config::{Bind, Config, Matching, PolicyOptions, PolicySpec};
use crate::event::{Event, Remaining};
use crate::ids::{AffinityId, CapabilityId, KeyId, ResourceId, TypeId, WorkerId};
use crate::resources::{Amount, Demand};
use crate::task::TaskSpec;
use crate::time::{Span, Time};
use crate::worker::WorkerSpec;

/// More than any step may look at.
const MOST: u64 = 4096;

struct Bench {
    scheduler: Scheduler,
    actions: Vec<Action>,
}

impl Bench {
    fn new(config: &Config) -> Bench {
        Bench { scheduler: Scheduler::new(config).expect("a valid policy"), actions: Vec::new() }
    }

    /// One event; how many entries it made the scheduler look at.
    fn step(&mut self, event: Event) -> u64 {
        let before = self.scheduler.looked_at;
        self.actions.clear();
        self.scheduler.step(self.scheduler.now, event, &mut self.actions);
        let looked_at = self.scheduler.looked_at - before;
        assert!(looked_at <= MOST, "one step looked at {looked_at} entries");
        looked_at
    }

    /// Steps until nothing is left to do at this moment; how many.
    fn finish(&mut self) -> usize {
        let mut steps = 0;
        while self.scheduler.next_timer().is_some_and(|at| at <= self.scheduler.now) {
            self.step(Event::Tick);
            steps += 1;
            assert!(steps < 10_000, "it never ends");
        }
        self.scheduler.check().expect("every invariant holds");
        steps
    }

    /// Lets time pass, a step for every timer.
    fn wait(&mut self, span: Span) {
        let until = self.scheduler.now + span;
        while let Some(at) = self.scheduler.next_timer().filter(|at| *at <= until) {
            self.scheduler.now = self.scheduler.now.max(at);
            self.step(Event::Tick);
        }
        self.scheduler.now = until;
    }

    fn join(&mut self, spec: WorkerSpec) -> WorkerId {
        self.step(Event::Join(spec));
        let joined = |action: &Action| if let Action::Joined { worker, .. } = action { Some(*worker) } else { None };
        self.actions.iter().find_map(joined).expect("the worker joins")
    }

    fn submit(&mut self, spec: TaskSpec) -> u64 {
        self.step(Event::Submit(Box::new(spec)))
    }

    fn set_policy(&mut self, task_type: Option<TypeId>, policy: PolicySpec) -> u64 {
        self.step(Event::SetPolicy { task_type, policy })
    }

    fn assigned(&self) -> Vec<WorkerId> {
        let assigned = |action: &Action| if let Action::Assign { worker, .. } = action { Some(*worker) } else { None };
        self.actions.iter().filter_map(assigned).collect()
    }
}

fn named(policy: &str) -> PolicySpec {
    PolicySpec::Name(policy.to_owned())
}

fn can(ids: &[u32]) -> CapabilitySet {
    ids.iter().map(|&id| CapabilityId(id)).collect()
}

#[test]
fn a_new_order_of_candidates_is_built_while_the_old_one_serves() {
    let mut bench = Bench::new(&Config::default());
    for at in 0..10_000 {
        let worker = bench.join(WorkerSpec { weight: f64::from(1 + at % 7), ..WorkerSpec::default() });
        bench.step(Event::Pull { worker, wait: true });
    }
    let first = bench.set_policy(None, named("weighted_round_robin"));
    assert!(first > 0, "it begins at once");
    bench.submit(TaskSpec::default());
    assert_eq!(bench.assigned().len(), 1, "meanwhile tasks are placed as before");
    assert!(bench.finish() > 3, "it takes several steps");
    // Built in portions it is what it would have been at once: the worker with the greatest weight is first.
    bench.submit(TaskSpec::default());
    let heaviest = bench.scheduler.workers[bench.assigned()[0].slot].class;
    assert_eq!(bench.scheduler.classes[heaviest].weight, 7.0);
    // One for a type of task begins with the default's order and gets its own.
    bench.set_policy(Some(TypeId(3)), named("fifo"));
    bench.submit(TaskSpec { task_type: TypeId(3), ..TaskSpec::default() });
    assert_eq!(bench.assigned().len(), 1);
    bench.finish();
    bench.submit(TaskSpec { task_type: TypeId(3), ..TaskSpec::default() });
    let earliest = bench.scheduler.workers.iter().filter(|entry| entry.1.listed).map(|entry| entry.1.joined).min();
    let joined = bench.scheduler.workers[bench.assigned()[0].slot].joined;
    assert!(earliest.is_some_and(|earliest| joined < earliest), "the first who waits comes first");
}

#[test]
fn orders_that_nobody_wants_any_more_are_given_up() {
    let mut bench = Bench::new(&Config::default());
    let workers: Vec<WorkerId> = (0..3000).map(|_| bench.join(WorkerSpec::default())).collect();
    for &worker in &workers {
        bench.step(Event::Pull { worker, wait: true });
    }
    for size in 1..40 {
        let options = PolicyOptions { kind: "batch".to_owned(), batch_size: Some(size), ..PolicyOptions::default() };
        bench.set_policy(None, PolicySpec::Options(options));
        if size % 3 == 0 {
            bench.finish();
        }
        // Somebody comes and goes while lists are half built and half taken down.
        let worker = workers[size as usize * 70];
        bench.step(Event::Leave { worker, remaining: Remaining::Return });
        bench.submit(TaskSpec::default());
        bench.scheduler.check().expect("every invariant holds");
    }
    bench.finish();
    assert!(bench.scheduler.directories.len() <= 8, "{} orders are kept", bench.scheduler.directories.len());
    let kept = bench.scheduler.directories.iter().filter(|directory| !directory.is_empty()).count();
    assert_eq!(kept, 1);
}

#[test]
fn many_tasks_of_a_key_follow_its_limit_step_by_step() {
    let mut bench = Bench::new(&Config::default());
    let worker = bench.join(WorkerSpec { slots: 100_000, ..WorkerSpec::default() });
    let key = KeyId(1);
    for _ in 0..5000 {
        bench.submit(TaskSpec { key: Some(key), ..TaskSpec::default() });
    }
    let figures = |bench: &Bench| bench.scheduler.keys.figures(key.0);
    assert_eq!(figures(&bench), (1, 0, 1, 4999));
    assert!(bench.step(Event::SetKeyLimit { key, limit: 4000 }) <= 256);
    assert_eq!(figures(&bench).2, 257, "a portion at once");
    assert!(bench.finish() >= 14);
    assert_eq!(figures(&bench), (4000, 0, 4000, 1000));
    // Downwards the limit in force is never exceeded, not even half way.
    bench.step(Event::SetKeyLimit { key, limit: 2 });
    for _ in 0..3 {
        bench.step(Event::Pull { worker, wait: false });
        let (limit, held, offered, _) = figures(&bench);
        assert!(held as usize + offered <= limit as usize);
        bench.scheduler.check().expect("every invariant holds");
    }
    bench.finish();
    assert_eq!(figures(&bench), (2, 3, 0, 4997));
    // Up and down before the tasks could follow: the last word counts.
    bench.step(Event::SetKeyLimit { key, limit: 4000 });
    bench.step(Event::SetKeyLimit { key, limit: 10 });
    bench.finish();
    assert_eq!(figures(&bench), (10, 3, 7, 4990));
}

#[test]
fn tasks_of_a_key_that_nobody_can_run_any_more_are_set_aside_step_by_step() {
    let mut bench = Bench::new(&Config::default());
    let worker = bench.join(WorkerSpec { capabilities: can(&[1]), ..WorkerSpec::default() });
    let other = bench.join(WorkerSpec::default());
    let keyed = TaskSpec { key: Some(KeyId(1)), ..TaskSpec::default() };
    bench.step(Event::Pull { worker: other, wait: false });
    bench.submit(keyed.clone());
    bench.step(Event::Pull { worker: other, wait: false });
    let Some(&Action::Assign { task, attempt, .. }) =
        bench.actions.iter().find(|action| matches!(action, Action::Assign { .. }))
    else {
        panic!("the first task is handed out")
    };
    // Half of them are pinned to the worker that goes, half need what only it can do.
    for at in 0..5000 {
        let pin = (at % 2 == 0).then_some(worker);
        bench.submit(TaskSpec { requires: can(&[1]), pin, ..keyed.clone() });
    }
    bench.submit(keyed);
    bench.step(Event::Leave { worker, remaining: Remaining::Return });
    bench.step(Event::Pull { worker: other, wait: true });
    assert!(bench.step(Event::Finish { task, attempt }) <= 300);
    assert!(bench.assigned().is_empty(), "the one that can run stands behind all the others");
    assert!(bench.finish() >= 5000 / 256);
    assert_eq!(bench.scheduler.metrics().failed, 2500);
    assert_eq!(bench.scheduler.metrics().running, 1, "but it gets its turn");
}

#[test]
fn a_long_keyed_array_lets_out_a_portion_at_a_time() {
    let mut config = Config::default();
    config.limits.key_limit = 1_000_000;
    let mut bench = Bench::new(&config);
    let worker = bench.join(WorkerSpec { slots: 1_000_000, ..WorkerSpec::default() });
    let template = TaskSpec { key: Some(KeyId(1)), ..TaskSpec::default() };
    bench.step(Event::SubmitArray { template: Box::new(template), count: 1_000_000 });
    assert!(bench.actions.len() < 600, "{} actions", bench.actions.len());
    for _ in 0..1000 {
        bench.step(Event::Pull { worker, wait: false });
        assert_eq!(bench.assigned().len(), 1);
    }
    assert_eq!(bench.finish(), 0);
}

#[test]
fn a_cycle_in_which_nothing_may_move_looks_at_few_tasks() {
    let mut config = Config::default();
    config.scheduling.bind = Bind::Push;
    let mut bench = Bench::new(&config);
    // What could move, but to nobody who is idle.
    let able: CapabilitySet = [CapabilityId(7)].into_iter().collect();
    for at in 0..200 {
        let capabilities = if at < 100 { able.clone() } else { CapabilitySet::default() };
        bench.join(WorkerSpec { capabilities, ..WorkerSpec::default() });
    }
    for _ in 0..7000 {
        bench.submit(TaskSpec { requires: able.clone(), ..TaskSpec::default() });
    }
    let before = bench.scheduler.looked_at;
    bench.scheduler.step(Time::ZERO, Event::Rebalance, &mut bench.actions);
    let looked_at = bench.scheduler.looked_at - before;
    assert!(looked_at > 0 && looked_at <= 64 * 256, "{looked_at} tasks were looked at");
}

#[test]
fn what_was_warm_at_workers_that_have_gone_is_forgotten() {
    let mut bench = Bench::new(&Config::default());
    for round in 0..20 {
        let worker = bench.join(WorkerSpec { slots: 1000, ..WorkerSpec::default() });
        for at in 0..100 {
            let affinity = [(AffinityId(round * 100 + at), Span::from_secs(1))].into_iter().collect();
            bench.submit(TaskSpec { affinity, ..TaskSpec::default() });
            bench.step(Event::Pull { worker, wait: false });
        }
        assert!(bench.scheduler.warm.len() >= 100);
        bench.step(Event::Leave { worker, remaining: Remaining::Return });
    }
    bench.finish();
    assert_eq!(bench.scheduler.warm.len(), 0);
    bench.wait(Span::from_secs(1));
}

fn fallback() -> Config {
    let mut config = Config::default();
    config.load_balancing.capabilities.matching_strategy = Matching::Fallback;
    config
}

/// A worker like no other: it has a weight of its own.
fn unlike(at: u32, capabilities: &[u32]) -> WorkerSpec {
    WorkerSpec { capabilities: can(capabilities), weight: f64::from(at + 1), ..WorkerSpec::default() }
}

#[test]
fn among_very_many_classes_the_best_match_is_found_step_by_step() {
    let mut bench = Bench::new(&fallback());
    let workers: Vec<WorkerId> = (0..5000).map(|at| bench.join(unlike(at, &[1]))).collect();
    for &worker in &workers {
        bench.step(Event::Pull { worker, wait: true });
    }
    let both = || TaskSpec { skills: can(&[1, 2]), ..TaskSpec::default() };
    assert!(bench.submit(both()) <= 1024);
    assert_eq!(bench.assigned().len(), 1, "what is known so far is good enough");
    assert!(bench.finish() >= 2);
    assert_eq!(bench.submit(both()), 0, "nobody is looked at twice");
    // A better one comes, and is known at once; nobody looks at the others for that.
    let better = bench.join(unlike(9999, &[1, 2]));
    bench.step(Event::Pull { worker: better, wait: true });
    assert_eq!(bench.submit(both()), 0);
    assert_eq!(bench.assigned(), [better]);
    bench.submit(both());
    assert!(bench.assigned().is_empty(), "those that share fewer skills do not get it");
    // It goes: whoever shares the most of what is left gets the task that waited, as soon as that is known.
    bench.step(Event::Leave { worker: better, remaining: Remaining::Return });
    let mut assigned = bench.assigned().len();
    while bench.scheduler.next_timer().is_some_and(|at| at <= bench.scheduler.now) {
        bench.step(Event::Tick);
        assigned += bench.assigned().len();
    }
    assert_eq!(assigned, 1);
    assert_eq!(bench.scheduler.queued(), 0);
    bench.finish();
    // Very few have it: only they are looked at.
    let rare = bench.join(unlike(7777, &[3]));
    bench.step(Event::Pull { worker: rare, wait: true });
    assert_eq!(bench.submit(TaskSpec { skills: can(&[3, 4]), ..TaskSpec::default() }), 1);
    assert_eq!(bench.assigned(), [rare]);
    bench.finish();
}

#[test]
fn that_nobody_can_run_a_task_is_found_out_step_by_step() {
    let mut config = Config::default();
    config.limits.requeue_interval = Span::from_millis(10);
    config.limits.max_requeue_attempts = 2;
    let mut bench = Bench::new(&config);
    for at in 0..5000 {
        bench.join(unlike(at, &[1]));
    }
    let wide = || {
        let demand = Demand::new([(ResourceId::MEMORY, Amount::from_units(1))]);
        TaskSpec { requires: can(&[1]), demand, ..TaskSpec::default() }
    };
    assert_eq!(bench.submit(wide()), 1024);
    assert_eq!(bench.scheduler.queued(), 1, "somebody may still be found");
    assert!(bench.finish() >= 2);
    assert_eq!(bench.submit(TaskSpec { requires: can(&[7]), ..wide() }), 0, "nobody has what this one needs");
    assert_eq!(bench.scheduler.queued(), 1);
    bench.wait(Span::from_millis(100));
    assert_eq!(bench.scheduler.metrics().failed, 2, "in the end both have failed for that");
    // What was found out is not found out again; only who came since is looked at.
    bench.join(unlike(8888, &[1]));
    assert!(bench.submit(wide()) <= 1024);
    bench.finish();
    bench.wait(Span::from_millis(10));
    assert_eq!(bench.submit(wide()), 0);
    assert_eq!(bench.scheduler.queued(), 0);
}

#[test]
fn a_new_class_is_shown_to_very_many_signatures_step_by_step() {
    let mut bench = Bench::new(&fallback());
    bench.join(unlike(0, &[1]));
    for at in 0..3000 {
        bench.submit(TaskSpec { skills: can(&[1, 2, 100 + at]), ..TaskSpec::default() });
    }
    let shared = |bench: &Bench, most: u32| {
        bench.scheduler.signatures.iter().filter(|entry| entry.1.best_shared == most).count()
    };
    assert_eq!(shared(&bench, 1), 3000);
    let better = bench.join(unlike(1, &[1, 2]));
    assert_eq!(shared(&bench, 2), 1024);
    let passing = bench.join(unlike(2, &[1, 2, 100]));
    bench.step(Event::Leave { worker: passing, remaining: Remaining::Return });
    bench.finish();
    assert_eq!(shared(&bench, 2), 3000);
    bench.step(Event::Leave { worker: better, remaining: Remaining::Return });
    assert!(bench.finish() >= 1);
    assert_eq!(shared(&bench, 1), 3000);
}
