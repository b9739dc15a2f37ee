//! The scheduler beside a naive one: random scenarios into both, and after every event the same actions in the same
//! order, the same status, holder and place of every task, the same figures of every worker and of the whole, and
//! every invariant. At the end everything is drained, and nothing may be left reserved.
//!
//! Compared: placement by every policy, by type of task too, over the documented candidates, the order of queues, fair share, aging, keys,
//! resources, reservations in time, dependencies, retries, timeouts, requeues, quarantine, leases, cancellation, stealing
//! and rebalancing, arrays, under both bindings.
//!
//! Not modelled here: workers with queues of their own (see `cluster`), moving averages with several weights at once (see
//! `regressions.rs`), and the bounds that one step keeps to with very many workers or tasks (see `bounds.rs` beside the
//! scheduler). The pause of a retry is compared without jitter; victims that are drawn by lot are only checked for
//! admissibility, and where types of tasks have policies of their own they are not drawn by lot.
//!
//! A failure prints the smallest scenario found, as events, and the `FILCH_SEED=N` that repeats it; `FILCH_STEPS=N` sets
//! how many steps are compared.

#![allow(clippy::disallowed_methods, reason = "a test may read from its surroundings how much to do")]

mod arrays;
mod keys;
mod life;
mod model;
mod ops;
mod reservations;
mod world;

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use filch_core::{
    Action, Event, GraphTask, JobId, KeyId, LoadReport, Reason, Remaining, Scheduler, Span, TaskId, TaskSpec, Time,
    TypeId, WorkerChange, WorkerId, WorkerSpec,
};
use proptest::test_runner::{Config as Runs, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use model::{Counts, Model};
use ops::{Op, Setup, TaskOp};

/// Both schedulers and what the outside world knows.
struct Pair {
    core: Scheduler,
    model: Model,
    setup: Setup,
    now: Time,
    payload: u64,
    actions: Vec<Action>,
    jobs: Vec<JobId>,
    /// Attempts that no longer count and were not reported yet.
    stale: Vec<(TaskId, u32)>,
    log: Vec<(Time, Event)>,
    steps: u64,
}

fn pick<T: Copy>(from: &[T], at: u8) -> Option<T> {
    if from.is_empty() { None } else { Some(from[usize::from(at) % from.len()]) }
}

impl Pair {
    fn new(setup: &Setup) -> Pair {
        let config = setup.config();
        Pair {
            core: Scheduler::new(&config).expect("the policies exist").with_portion(setup.portion),
            model: Model::new(&config, setup.portion),
            setup: setup.clone(),
            now: Time::ZERO,
            payload: 0,
            actions: Vec::new(),
            jobs: Vec::new(),
            stale: Vec::new(),
            log: Vec::new(),
            steps: 0,
        }
    }

    fn workers(&self) -> Vec<WorkerId> {
        self.core.workers().collect()
    }

    fn held(&self) -> Vec<(TaskId, u32)> {
        let held = |(task, _)| self.core.holder(task).map(|(_, attempt)| (task, attempt));
        self.core.tasks().filter_map(held).collect()
    }

    fn known(&self) -> Vec<TaskId> {
        let settled = self.model.settled.iter().rev().take(8).map(|entry| entry.0);
        self.core.tasks().map(|entry| entry.0).chain(settled).collect()
    }

    fn spec(&mut self, op: &TaskOp) -> TaskSpec {
        self.payload += 1;
        let mut spec = if self.setup.wide { op.wider() } else { op.clone() }.spec(self.payload, self.now);
        let (workers, known) = (self.workers(), self.known());
        spec.task_type = if self.setup.typed { spec.task_type } else { TypeId::default() };
        spec.pin = op.pin.and_then(|at| pick(&workers, at));
        spec.parent = op.parent.and_then(|at| pick(&known, at));
        spec.after = op.after.iter().filter_map(|&at| pick(&known, at)).collect();
        spec
    }

    /// The event that an operation means here and now.
    fn event(&mut self, op: &Op) -> Event {
        let (workers, held, jobs) = (self.workers(), self.held(), self.jobs.clone());
        let worker = |at: u8| pick(&workers, at).unwrap_or(WorkerId::from_bits(u64::MAX));
        let attempt = |at: u8| pick(&held, at).unwrap_or((TaskId::from_bits(u64::MAX), 1));
        let job = |at: u8| pick(&jobs, at).unwrap_or(JobId::from_bits(u64::MAX));
        match op {
            Op::Join(_) if workers.len() >= 6 && workers.len() < 50 => Event::Tick,
            Op::Join(spec) if self.setup.wide => Event::Join(spec.bigger().spec()),
            Op::Join(spec) => Event::Join(spec.spec()),
            Op::Change { worker: at, to, what, draining } => {
                let to = if self.setup.wide { to.bigger() } else { to.clone() }.spec();
                let change = WorkerChange {
                    capabilities: (what & 1 == 1).then_some(to.capabilities),
                    resources: (what & 6 == 6).then_some(to.resources),
                    slots: (what & 24 == 24).then_some(to.slots),
                    speed: (what & 32 == 32).then_some(to.speed),
                    cost_rate: (what & 64 == 64).then_some(to.cost_rate),
                    weight: (what & 128 == 128).then_some(to.weight),
                    draining: *draining,
                };
                Event::Change { worker: worker(*at), change }
            }
            Op::Report(at) => Event::Report { worker: worker(*at), load: LoadReport::default() },
            Op::Leave { worker: at, requeue } => {
                let remaining = if *requeue { Remaining::Requeue } else { Remaining::Return };
                Event::Leave { worker: worker(*at), remaining }
            }
            Op::Silent(at) => Event::Silent { worker: worker(*at) },
            Op::Submit(task) => {
                let mut spec = self.spec(task);
                spec.job = task.job.and_then(|at| pick(&jobs, at));
                Event::Submit(Box::new(spec))
            }
            Op::Many(tasks) => Event::SubmitMany(tasks.iter().map(|task| self.spec(task)).collect()),
            Op::Graph(tasks) => {
                let mut graph = Vec::new();
                for (at, (task, parents)) in tasks.iter().enumerate() {
                    // Earlier ones, but now and then any, so that some graphs have cycles.
                    let parent =
                        |&p: &u8| if p % 16 == 15 { u32::from(p) % 7 } else { u32::from(p) % at.max(1) as u32 };
                    let parents = if at == 0 { Vec::new() } else { parents.iter().map(parent).collect() };
                    graph.push(GraphTask { spec: self.spec(task), parents: parents.into() });
                }
                Event::SubmitGraph(graph)
            }
            Op::Array { task, count } => {
                let template = Box::new(self.spec(task));
                Event::SubmitArray { template, count: u32::from(*count) }
            }
            Op::CancelElement { job: at, index } => Event::CancelElement { job: job(*at), index: u32::from(*index) },
            Op::Open(weight) => Event::OpenJob { weight: f64::from(weight % 4) * 0.5 + 0.5 },
            Op::Close(at) => Event::CloseJob { job: job(*at) },
            Op::CancelJob(at) => Event::CancelJob { job: job(*at) },
            Op::Pull { worker: at, wait } => Event::Pull { worker: worker(*at), wait: *wait },
            Op::Withdraw(at) => Event::Withdraw { worker: worker(*at) },
            Op::Start(at) => Event::Start { task: attempt(*at).0, attempt: attempt(*at).1 },
            Op::Finish(at) => Event::Finish { task: attempt(*at).0, attempt: attempt(*at).1 },
            Op::Fail { held: at, retry } => {
                Event::Fail { task: attempt(*at).0, attempt: attempt(*at).1, retry: *retry }
            }
            Op::GiveBack(at) => Event::GiveBack { task: attempt(*at).0, attempt: attempt(*at).1 },
            Op::Late(at) => {
                let (task, attempt) = pick(&self.stale, *at).unwrap_or((TaskId::from_bits(u64::MAX), 1));
                Event::Finish { task, attempt }
            }
            Op::Cancel(at) => Event::Cancel { task: pick(&self.known(), *at).unwrap_or(TaskId::from_bits(u64::MAX)) },
            Op::Steal(at) => Event::Steal { thief: worker(*at) },
            Op::Rebalance => Event::Rebalance,
            Op::Limit { key, limit } => Event::SetKeyLimit { key: KeyId(u32::from(*key)), limit: u32::from(*limit) },
            Op::Policy { policy, of } => Event::SetPolicy {
                task_type: of.filter(|_| self.setup.typed).map(|of| TypeId(u32::from(of) + 1)),
                policy: ops::policy(self.setup.common_policy(*policy)),
            },
            Op::Tick => Event::Tick,
        }
    }

    fn play(&mut self, pause: Span, op: &Op) {
        let then = self.now + pause;
        // As a driver does: every timer at its own moment. (Every eighth pause is slept through.)
        while !pause.0.is_multiple_of(8_000)
            && let Some(due) = self.core.next_timer().filter(|due| *due < then)
        {
            self.now = self.now.max(due);
            self.step(Event::Tick);
        }
        self.now = then;
        let event = self.event(op);
        self.step(event);
    }

    fn step(&mut self, event: Event) {
        self.steps += 1;
        self.log.push((self.now, event.clone()));
        if let Event::Finish { task, attempt } | Event::Fail { task, attempt, .. } | Event::GiveBack { task, attempt } =
            &event
        {
            self.stale.retain(|known| known != &(*task, *attempt));
        }
        self.actions.clear();
        self.core.step(self.now, event, &mut self.actions);
        self.actions.retain(|action| !matches!(action, Action::Timer { .. } | Action::Persist(_)));
        for action in &self.actions {
            match *action {
                Action::Opened { job } => self.jobs.push(job),
                Action::JobDone { job } => self.jobs.retain(|known| *known != job),
                Action::Revoke { task, attempt, .. } => self.stale.push((task, attempt)),
                _ => {}
            }
        }
        let event = &self.log[self.log.len() - 1].1;
        self.model.step(self.now, event, &self.actions);
        assert_eq!(self.actions, self.model.out, "the scheduler (left) and the model (right) act differently");
        self.compare();
        if let Err(violation) = self.core.check() {
            panic!("{violation}");
        }
    }

    fn compare(&self) {
        let mut tasks: Vec<_> = self.core.tasks().collect();
        let mut expected: Vec<_> = self.model.tasks.iter().map(|task| (task.id, task.state.status())).collect();
        tasks.sort_unstable();
        expected.sort_unstable();
        assert_eq!(tasks, expected, "status of tasks");
        for task in &self.model.tasks {
            let holder = task.worker.filter(|_| task.state.is_held()).map(|worker| (worker, task.attempt));
            assert_eq!(self.core.holder(task.id), holder, "holder of {}", task.id);
            if task.state.is_held() {
                assert_eq!(self.core.devices(task.id), task.devices, "devices of {}", task.id);
            }
        }
        for worker in &self.model.workers {
            let id = worker.id;
            let status = self.core.worker(id).expect("the worker is registered");
            let queue = self.model.queue(id);
            assert_eq!(status.state, worker.state, "state of {id}");
            assert_eq!(status.queue_length as usize, queue.len(), "queue of {id}");
            assert_eq!(status.running as usize, worker.running.len() + worker.ghosts.len(), "slots of {id}");
            assert_eq!(status.capacity, worker.spec.resources, "capacity of {id}");
            let (reserved, expected) = (status.reserved, self.model.reserved(worker));
            assert!(reserved.iter().eq(expected.iter()), "{id} reserves {reserved:?}, should {expected:?}");
            assert_eq!(status.backlog_s, self.model.backlog(id).as_secs_f64(), "backlog of {id}");
            let figures = (status.total_completed, status.total_failed, status.stolen, status.lost);
            assert_eq!(figures, (worker.completed, worker.failed, worker.stolen, worker.lost), "figures of {id}");
            for (place, &task) in queue.iter().enumerate() {
                let explained = self.core.explain(task).expect("the task is known");
                let here = explained.reasons.iter().any(|reason| {
                    matches!(reason, Reason::AtWorker { worker, ahead, .. } if *worker == id && *ahead == place as u64)
                });
                assert!(here, "{task} should be number {place} at {id}: {explained:?}");
            }
        }
        for kept in &self.model.kept {
            let explained = self.core.explain(kept.task).expect("the task is known");
            let known = Reason::Reserved { worker: kept.worker, from: kept.from };
            assert!(explained.reasons.contains(&known), "{kept:?}, but {explained:?}");
        }
        assert_eq!(self.core.workers().count(), self.model.workers.len());
        self.compare_metrics();
    }

    fn compare_metrics(&self) {
        let (metrics, counts) = (self.core.metrics(), &self.model.counts);
        let found = [
            metrics.submitted,
            metrics.completed,
            metrics.failed,
            metrics.cancelled,
            metrics.skipped,
            metrics.returned,
            metrics.retries,
            metrics.requeues,
            metrics.timeouts,
            metrics.promotions,
            metrics.quarantines,
            metrics.stale_reports,
            metrics.hopeless_deadlines,
            metrics.missed_deadlines,
            metrics.total_steals,
            metrics.successful_steals,
            metrics.tasks_migrated,
            metrics.rebalance_cycles,
            metrics.reservations,
            metrics.total_queued,
            metrics.running,
            metrics.busy_agents,
            metrics.idle_agents,
        ];
        let model = &self.model;
        let thresholds = &model.config.load_balancing.thresholds;
        let count = |test: &dyn Fn(&model::Worker) -> bool| model.workers.iter().filter(|w| test(w)).count() as u64;
        let (busy, idle) = if model.push() {
            (
                count(&|worker| model.depth(worker.id) > thresholds.busy_threshold),
                count(&|worker| model.depth(worker.id) < thresholds.idle_threshold),
            )
        } else {
            (count(&|worker| worker.used() >= worker.spec.slots), count(&|worker| worker.used() == 0))
        };
        let expected = [
            counts.submitted,
            counts.completed,
            counts.failed,
            counts.cancelled,
            counts.skipped,
            counts.returned,
            counts.retries,
            counts.requeues,
            counts.timeouts,
            counts.promotions,
            counts.quarantines,
            counts.stale_reports,
            counts.hopeless,
            counts.missed,
            counts.steals,
            counts.stolen,
            counts.migrated,
            counts.cycles,
            counts.reservations,
            model.queued(),
            model.tasks.iter().filter(|task| task.state.is_held()).count() as u64,
            busy,
            idle,
        ];
        assert_eq!(found, expected, "metrics");
        let wait = if counts.assignments == 0 { 0.0 } else { counts.waited.as_secs_f64() / counts.assignments as f64 };
        assert_eq!(metrics.avg_task_wait_time, wait);
        assert_eq!(metrics.max_task_wait_time, counts.longest_wait.as_secs_f64());
    }

    /// Ends everything that can end, withdraws the rest, and lets go of all attempts: nothing may be left.
    fn drain(&mut self) {
        for _ in 0..100 {
            for (task, attempt) in self.stale.clone().into_iter().chain(self.held()) {
                self.step(Event::Finish { task, attempt });
            }
            for worker in self.workers() {
                self.step(Event::Report { worker, load: LoadReport::default() });
                self.step(Event::Pull { worker, wait: true });
            }
            if self.held().is_empty() && self.stale.is_empty() {
                break;
            }
        }
        for job in self.jobs.clone() {
            self.step(Event::CancelJob { job });
        }
        while let Some(task) = self.known().first().copied().filter(|_| self.core.unsettled() > 0) {
            self.step(Event::Cancel { task });
        }
        for (task, attempt) in self.stale.clone() {
            self.step(Event::Finish { task, attempt });
        }
        assert_eq!(self.core.unsettled(), 0, "nothing is lost");
        for worker in self.workers() {
            let status = self.core.worker(worker).expect("the worker is registered");
            assert!(status.reserved.is_zero() && status.running == 0, "{worker} still holds {:?}", status.reserved);
        }
    }
}

/// Plays a scenario to its end; the events so far are left in `log`, also if it fails.
fn play(setup: &Setup, ops: &[(u16, Op)], log: &mut Vec<(Time, Event)>) -> Result<(u64, Counts), String> {
    let mut pair = Pair::new(setup);
    let result = catch_unwind(AssertUnwindSafe(|| {
        for at in 0..setup.crowd {
            let spec = WorkerSpec { weight: 1.0 + f64::from(at * 7 % 100), ..WorkerSpec::default() };
            pair.step(Event::Join(spec));
            let worker = pair.workers().last().copied().expect("it joined");
            pair.step(Event::Pull { worker, wait: true });
        }
        for (pause, op) in ops {
            pair.play(Span::from_micros(u64::from(*pause)), op);
        }
        pair.drain();
    }));
    *log = std::mem::take(&mut pair.log);
    result.map(|()| (pair.steps, pair.model.counts.clone())).map_err(|panic| match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => panic.downcast_ref::<&str>().map_or_else(|| "panic".to_owned(), |text| (*text).to_owned()),
    })
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// An event without the fields that say nothing.
fn brief(event: &Event) -> String {
    let default = format!("{:?}", TaskSpec::default());
    let fields = default.trim_start_matches("TaskSpec { ").trim_end_matches(" }");
    let mut text = format!("{event:?}");
    for field in fields.split(", ").filter(|field| !field.starts_with("payload")) {
        text = text.replace(&format!(", {field}"), "");
    }
    text
}

thread_local! {
    /// Whether panics of this thread are expected: shrinking sees many of them.
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

fn hush_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let loud = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !QUIET.get() {
                loud(panic);
            }
        }));
    });
}

/// Runs random scenarios of up to `most` operations until `steps` events were compared, and shrinks what fails.
fn compare_scenarios(most: usize, crowd: u16, least_steps: u64) -> Counts {
    let wanted = number("FILCH_STEPS").unwrap_or(least_steps);
    let mut seed = number("FILCH_SEED").unwrap_or(0);
    let runs = Runs { cases: 1, failure_persistence: None, max_shrink_iters: 20_000, ..Runs::default() };
    hush_panics();
    QUIET.set(true);
    let totals = RefCell::new((0, Counts::default()));
    let mut failure = None;
    while totals.borrow().0 < wanted && failure.is_none() {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        seed += 1;
        let mut runner = TestRunner::new_with_rng(runs.clone(), TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
        let result = runner.run(&ops::scenario(most, crowd), |(setup, ops)| {
            let (steps, counts) = play(&setup, &ops, &mut Vec::new()).map_err(TestCaseError::fail)?;
            let mut totals = totals.borrow_mut();
            totals.0 += steps;
            totals.1.add(&counts);
            Ok(())
        });
        failure = result.err();
    }
    QUIET.set(false);
    match failure {
        None => totals.into_inner().1,
        Some(TestError::Fail(reason, (setup, ops))) => {
            let mut log = Vec::new();
            QUIET.set(true);
            let _ = play(&setup, &ops, &mut log);
            QUIET.set(false);
            let events: Vec<String> = log.iter().map(|(at, event)| format!("{:>12} {}", at.0, brief(event))).collect();
            panic!(
                "FILCH_SEED={} repeats this\n\n{setup:?}\n\nevents, by nanosecond:\n{}\n\n{reason}",
                seed - 1,
                events.join("\n")
            );
        }
        Some(TestError::Abort(reason)) => panic!("{reason}"),
    }
}

#[test]
fn the_scheduler_decides_as_the_naive_model_does() {
    let counts = compare_scenarios(150, 0, 1_000_000);
    // What never happens is not compared.
    for (name, count) in counts.list() {
        assert!(count > 100 || number("FILCH_STEPS").is_some(), "{name} happened only {count} times: {counts:?}");
    }
}

#[test]
fn with_more_classes_than_are_scored_the_same_ones_are_left_out() {
    compare_scenarios(60, 80, 5_000);
}
