//! Bugs that were found by reading, each as the shortest sequence of events that shows it.

use filch_core::config::{Bind, Matching, PolicyOptions, PolicySpec};
use filch_core::{
    Action, Amount, CapabilityId, CapabilitySet, Cause, Config, Demand, Event, KeyId, Lack, ParentFailure, Priority,
    Refusal, Remaining, ResourceId, Scheduler, Span, Status, TaskId, TaskSpec, Time, TypeId, Vector, WorkerChange,
    WorkerId, WorkerSpec,
};

#[path = "regressions/reservations.rs"]
mod reservations;

struct Bench {
    scheduler: Scheduler,
    now: Time,
    actions: Vec<Action>,
}

impl Bench {
    fn new(config: &Config) -> Bench {
        Bench { scheduler: Scheduler::new(config).expect("a valid policy"), now: Time::ZERO, actions: Vec::new() }
    }

    /// One event, with every invariant checked after it.
    fn step(&mut self, event: Event) {
        self.actions.clear();
        self.scheduler.step(self.now, event, &mut self.actions);
        self.scheduler.check().expect("every invariant holds");
    }

    fn join(&mut self, capabilities: &[u32], slots: u32) -> WorkerId {
        let capabilities: CapabilitySet = capabilities.iter().map(|&id| CapabilityId(id)).collect();
        self.register(WorkerSpec { capabilities, slots, ..WorkerSpec::default() })
    }

    fn register(&mut self, spec: WorkerSpec) -> WorkerId {
        self.step(Event::Join(spec));
        let joined = |action: &Action| if let Action::Joined { worker, .. } = action { Some(*worker) } else { None };
        self.actions.iter().find_map(joined).expect("the worker joins")
    }

    fn submit(&mut self, spec: TaskSpec) -> TaskId {
        self.step(Event::Submit(Box::new(spec)));
        let accepted = |action: &Action| if let Action::Accepted { task, .. } = action { Some(*task) } else { None };
        self.actions.iter().find_map(accepted).expect("the task is accepted")
    }

    fn assigned(&self) -> Vec<(TaskId, u32)> {
        let assigned = |action: &Action| match action {
            Action::Assign { task, attempt, .. } => Some((*task, *attempt)),
            _ => None,
        };
        self.actions.iter().filter_map(assigned).collect()
    }

    /// Lets time pass, firing timers when they are due; how many steps that took.
    fn wait(&mut self, span: Span) -> usize {
        let (until, mut steps) = (self.now + span, 0);
        while let Some(at) = self.scheduler.next_timer().filter(|at| *at <= until) {
            self.now = self.now.max(at);
            self.step(Event::Tick);
            steps += 1;
        }
        self.now = until;
        steps
    }
}

fn needs(ids: &[u32]) -> TaskSpec {
    TaskSpec { requires: ids.iter().map(|&id| CapabilityId(id)).collect(), ..TaskSpec::default() }
}

#[test]
fn a_queue_that_is_being_emptied_may_be_stolen_from_meanwhile() {
    let mut config = Config::default();
    config.scheduling.bind = Bind::Push;
    config.scheduling.policy = PolicySpec::Name("work_stealing".to_owned());
    config.stealing.min_local_queue = 0;
    let mut bench = Bench::new(&config);
    let parent_worker = bench.join(&[], 1);
    let parent = bench.submit(TaskSpec::default());
    bench.step(Event::Pull { worker: parent_worker, wait: false });
    for _ in 0..10 {
        bench.submit(TaskSpec { parent: Some(parent), ..TaskSpec::default() });
    }
    let other = bench.join(&[], 2);
    // Its first wish is met by a steal; the second stands.
    bench.step(Event::Pull { worker: other, wait: true });
    bench.step(Event::Pull { worker: other, wait: true });
    bench.step(Event::Silent { worker: parent_worker });
    assert_eq!(bench.scheduler.unsettled(), 11);
}

#[test]
fn fallback_looks_only_at_workers_that_could_run_the_task_at_all() {
    let mut config = Config::default();
    config.load_balancing.capabilities.matching_strategy = Matching::Fallback;
    let mut bench = Bench::new(&config);
    let (python, ml, gpu) = (0, 1, 2);
    bench.join(&[python, ml], 1);
    let able = bench.join(&[python, gpu], 1);
    let skills = [CapabilityId(python), CapabilityId(ml)].into_iter().collect();
    bench.submit(TaskSpec { skills, ..needs(&[gpu]) });
    bench.step(Event::Pull { worker: able, wait: false });
    assert_eq!(bench.assigned().len(), 1, "who has more skills lacks the GPU");
}

#[test]
fn a_keyed_array_is_settled_to_its_last_element_when_nobody_can_run_it() {
    let mut bench = Bench::new(&Config::default());
    let able = bench.join(&[7], 1);
    bench.join(&[], 1);
    let template = TaskSpec { key: Some(KeyId(0)), ..needs(&[7]) };
    bench.step(Event::SubmitArray { template: Box::new(template), count: 10 });
    bench.step(Event::Leave { worker: able, remaining: Remaining::Requeue });
    bench.wait(Span::from_secs(60));
    assert_eq!(bench.scheduler.unsettled(), 0);
    assert_eq!(bench.scheduler.metrics().failed, 10);
}

#[test]
fn a_keyed_array_goes_on_when_elements_are_cancelled() {
    let mut bench = Bench::new(&Config::default());
    let worker = bench.join(&[], 1);
    let template = TaskSpec { key: Some(KeyId(0)), ..TaskSpec::default() };
    bench.step(Event::SubmitArray { template: Box::new(template), count: 100 });
    let mut done = 0;
    while bench.scheduler.unsettled() > 0 {
        let waiting: Vec<TaskId> = bench.scheduler.tasks().map(|entry| entry.0).collect();
        if done % 3 == 0 && !waiting.is_empty() {
            bench.step(Event::Cancel { task: waiting[0] });
        } else {
            bench.step(Event::Pull { worker, wait: false });
            for (task, attempt) in bench.assigned() {
                bench.step(Event::Finish { task, attempt });
            }
        }
        done += 1;
        assert!(done < 1000, "it ends");
    }
}

#[test]
fn an_array_never_rises_above_the_top_level() {
    let mut bench = Bench::new(&Config::default());
    let host = bench.join(&[7], 1);
    bench.join(&[], 1);
    let template = TaskSpec { priority: Priority::from_f64(4.0), ..needs(&[7]) };
    bench.step(Event::SubmitArray { template: Box::new(template), count: 3 });
    bench.step(Event::Leave { worker: host, remaining: Remaining::Requeue });
    bench.wait(Span::from_millis(2500));
    bench.join(&[7], 1);
    for _ in 0..10 {
        // Late ticks: several timers are due at once.
        bench.now = bench.now + Span::from_secs(61);
        bench.step(Event::Tick);
    }
    assert_eq!(bench.scheduler.queued(), 3);
}

#[test]
fn nobody_is_looked_for_while_nobody_is_registered() {
    let mut config = Config::default();
    config.limits.sample_interval = Span::ZERO;
    config.scheduling.aging_interval = Span::ZERO;
    let mut bench = Bench::new(&config);
    let last = bench.join(&[], 1);
    for kind in 0..300 {
        let template = TaskSpec { payload: kind, ..TaskSpec::default() };
        bench.step(Event::SubmitMany(vec![template]));
    }
    bench.step(Event::Leave { worker: last, remaining: Remaining::Requeue });
    let steps = bench.wait(Span::from_secs(60));
    assert!(steps < 10, "{steps} steps in a minute in which nothing can happen");
}

#[test]
fn a_task_that_is_given_back_again_and_again_keeps_nobody_waiting() {
    let mut bench = Bench::new(&Config::default());
    let worker = bench.join(&[], 1);
    let poison = bench.submit(TaskSpec::default());
    let good = bench.submit(TaskSpec::default());
    let mut order = Vec::new();
    for _ in 0..8 {
        bench.step(Event::Pull { worker, wait: false });
        for (task, attempt) in bench.assigned() {
            order.push(task);
            let end = if task == poison { Event::GiveBack { task, attempt } } else { Event::Finish { task, attempt } };
            bench.step(end);
        }
    }
    assert_eq!(order, [poison, good, poison, poison, poison], "and then it pauses");
    assert_eq!(bench.scheduler.metrics().given_back, 4);
    bench.wait(Span::from_secs(1));
    bench.step(Event::Pull { worker, wait: false });
    assert_eq!(bench.assigned().len(), 1, "but it is not forgotten");
}

#[test]
fn all_of_a_cancelled_job_is_cancelled() {
    let mut bench = Bench::new(&Config::default());
    let chain = (0..4u32).map(|at| filch_core::GraphTask {
        spec: TaskSpec::default(),
        parents: if at == 0 { Default::default() } else { [at - 1].into_iter().collect() },
    });
    bench.step(Event::SubmitGraph(chain.collect()));
    let opened = |action: &Action| if let Action::Opened { job } = action { Some(*job) } else { None };
    let job = bench.actions.iter().find_map(opened).expect("a job");
    bench.step(Event::CancelJob { job });
    let metrics = bench.scheduler.metrics();
    assert_eq!((metrics.cancelled, metrics.failed), (4, 0));
}

/// What the assigned tasks of the last step carry, in order.
fn payloads(bench: &Bench) -> Vec<u64> {
    let assigned = |action: &Action| if let Action::Assign { payload, .. } = action { Some(*payload) } else { None };
    bench.actions.iter().filter_map(assigned).collect()
}

fn ranked(payload: u64, priority: f64) -> TaskSpec {
    TaskSpec { payload, priority: Priority::from_f64(priority), ..TaskSpec::default() }
}

#[test]
fn whoever_waits_gets_the_first_in_order_of_tasks_submitted_together() {
    let mut bench = Bench::new(&Config::default());
    let worker = bench.join(&[], 1);
    bench.step(Event::Pull { worker, wait: true });
    bench.step(Event::SubmitMany(vec![ranked(1, 1.0), ranked(2, 5.0), ranked(3, 3.0)]));
    assert_eq!(payloads(&bench), [2]);
    let mut bench = Bench::new(&Config::default());
    let worker = bench.join(&[], 1);
    bench.step(Event::Pull { worker, wait: true });
    let long = |payload, secs| TaskSpec { payload, estimate: Some(Span::from_secs(secs)), ..TaskSpec::default() };
    bench.step(Event::SubmitMany(vec![long(1, 1), long(2, 9), long(3, 5)]));
    assert_eq!(payloads(&bench), [2], "the longest first");
}

#[test]
fn of_tasks_released_together_the_first_in_order_is_handed_out_first() {
    for bind in [Bind::Push, Bind::Late] {
        let mut config = Config::default();
        config.scheduling.bind = bind;
        let mut bench = Bench::new(&config);
        let worker = bench.join(&[], 1);
        let parent = bench.submit(TaskSpec::default());
        bench.step(Event::Pull { worker, wait: false });
        for (payload, priority) in [(1, 1.0), (2, 5.0), (3, 3.0)] {
            bench.submit(TaskSpec { after: [parent].into_iter().collect(), ..ranked(payload, priority) });
        }
        bench.step(Event::Pull { worker, wait: true });
        bench.step(Event::Finish { task: parent, attempt: 1 });
        assert_eq!(payloads(&bench), [2], "{bind:?}");
    }
}

#[test]
fn a_pinned_task_let_in_by_an_end_waits_for_a_better_one_let_in_by_the_same_end() {
    let mut bench = Bench::new(&Config::default());
    let worker = bench.join(&[], 1);
    let (key, pin) = (Some(KeyId(0)), Some(worker));
    let parent = bench.submit(TaskSpec { key, pin, ..TaskSpec::default() });
    bench.step(Event::Pull { worker, wait: false });
    // The token comes back before the child is released, but both by the same end.
    bench.submit(TaskSpec { key, pin, ..ranked(1, 1.0) });
    bench.submit(TaskSpec { after: [parent].into_iter().collect(), ..ranked(2, 5.0) });
    bench.step(Event::Pull { worker, wait: true });
    bench.step(Event::Finish { task: parent, attempt: 1 });
    assert_eq!(payloads(&bench), [2]);
}

fn units(of: ResourceId, amount: f64) -> [(ResourceId, Amount); 1] {
    [(of, Amount::from_f64(amount))]
}

/// A task that asks for so much of one resource for so many seconds.
fn wide(payload: u64, of: ResourceId, amount: f64, secs: u64) -> TaskSpec {
    let (demand, estimate) = (Demand::new(units(of, amount)), Some(Span::from_secs(secs)));
    TaskSpec { payload, demand, estimate, ..TaskSpec::default() }
}

#[test]
fn an_array_is_backfilled_by_the_time_it_takes_on_that_worker() {
    let mut bench = Bench::new(&Config::default());
    let resources = Vector::new(units(ResourceId::CPUS, 4.0));
    let worker = bench.register(WorkerSpec { resources, slots: 4, speed: 2.0, ..WorkerSpec::default() });
    bench.submit(wide(1, ResourceId::CPUS, 1.0, 10));
    bench.step(Event::Pull { worker, wait: false });
    bench.submit(wide(2, ResourceId::CPUS, 4.0, 10));
    bench.step(Event::Pull { worker, wait: false });
    assert_eq!(payloads(&bench), [0; 0], "the wide one waits for the first, which ends in 5 seconds");
    let template = Box::new(wide(3, ResourceId::CPUS, 1.0, 8));
    bench.step(Event::SubmitArray { template, count: 2 });
    bench.step(Event::Pull { worker, wait: false });
    assert_eq!(payloads(&bench), [3], "an element needs 4 seconds here");
    let template = Box::new(wide(4, ResourceId::CPUS, 1.0, 12));
    bench.step(Event::SubmitArray { template, count: 2 });
    bench.step(Event::Pull { worker, wait: false });
    bench.step(Event::Pull { worker, wait: false });
    assert_eq!(payloads(&bench), [0; 0], "and one of these 6");
}

#[test]
fn backfilled_tasks_leave_a_wide_one_the_single_device_it_needs() {
    let mut bench = Bench::new(&Config::default());
    let resources = Vector::new(units(ResourceId::GPUS, 2.0));
    let worker = bench.register(WorkerSpec { resources, slots: 4, ..WorkerSpec::default() });
    bench.submit(wide(1, ResourceId::GPUS, 0.5, 100));
    bench.submit(wide(2, ResourceId::GPUS, 0.6, 10));
    bench.step(Event::Pull { worker, wait: false });
    bench.step(Event::Pull { worker, wait: false });
    bench.submit(wide(3, ResourceId::GPUS, 1.0, 10));
    // It would go to the second device, and then neither is ever free although enough is in all.
    bench.submit(wide(4, ResourceId::GPUS, 0.4, 1000));
    bench.step(Event::Pull { worker, wait: false });
    assert_eq!(payloads(&bench), [0; 0]);
    bench.submit(wide(5, ResourceId::GPUS, 0.3, 5));
    bench.step(Event::Pull { worker, wait: false });
    assert_eq!(payloads(&bench), [5], "this one ends before the wide one fits");
}

#[test]
fn all_accelerators_of_a_big_worker_are_used() {
    let mut bench = Bench::new(&Config::default());
    let resources = Vector::new(units(ResourceId::GPUS, 100.0));
    let worker = bench.register(WorkerSpec { resources, slots: 4, ..WorkerSpec::default() });
    let task = bench.submit(wide(1, ResourceId::GPUS, 80.0, 1));
    bench.step(Event::Pull { worker, wait: false });
    assert_eq!(bench.scheduler.devices(task), (0..80).collect::<Vec<_>>());
    let resources = Vector::new(units(ResourceId::GPUS, 2000.0));
    bench.step(Event::Join(WorkerSpec { resources, ..WorkerSpec::default() }));
    let refusal = bench.scheduler.take_refusal().expect("too many to tell apart");
    assert_eq!(refusal.to_string(), "a worker has at most 1024 GPUs, not 2000: register several workers instead");
}

fn push() -> Config {
    let mut config = Config::default();
    config.scheduling.bind = Bind::Push;
    config
}

/// How many tasks steals have brought in the last step.
fn stolen(bench: &Bench) -> u32 {
    let stolen = |action: &Action| if let Action::Stole { tasks, .. } = action { *tasks } else { 0 };
    bench.actions.iter().map(stolen).sum()
}

#[test]
fn protected_tasks_in_front_do_not_hide_the_others_from_a_thief() {
    for prefer_recent_tasks in [false, true] {
        let mut config = push();
        config.load_balancing.work_stealing.prefer_recent_tasks = prefer_recent_tasks;
        let mut bench = Bench::new(&config);
        bench.join(&[], 1);
        // Some that were aged or requeued may stand on either side, so both orders must not matter.
        for at in 0..200 {
            bench.submit(ranked(at, if at == 100 { 3.0 } else { 5.0 }));
        }
        let thief = bench.join(&[], 1);
        bench.step(Event::Steal { thief });
        assert_eq!(stolen(&bench), 1);
    }
}

#[test]
fn tasks_that_take_no_time_at_all_are_worth_stealing_when_many_wait() {
    let mut bench = Bench::new(&push());
    let worker = bench.join(&[], 1);
    for _ in 0..10 {
        let task = bench.submit(TaskSpec::default());
        bench.step(Event::Pull { worker, wait: false });
        bench.step(Event::Finish { task, attempt: 1 });
    }
    for _ in 0..10 {
        bench.submit(TaskSpec::default());
    }
    let thief = bench.join(&[], 1);
    bench.step(Event::Steal { thief });
    assert_eq!(stolen(&bench), 1);
}

#[test]
fn whatever_waits_counts_against_the_limit() {
    let mut config = Config::default();
    config.limits.max_queued = 3;
    config.retry.max_retries = 1;
    let mut bench = Bench::new(&config);
    let worker = bench.join(&[], 2);
    let (parent, flaky) = (bench.submit(TaskSpec::default()), bench.submit(TaskSpec::default()));
    bench.step(Event::Pull { worker, wait: false });
    bench.step(Event::Pull { worker, wait: false });
    bench.submit(TaskSpec { after: [parent].into_iter().collect(), ..TaskSpec::default() });
    bench.submit(needs(&[7]));
    bench.step(Event::Fail { task: flaky, attempt: 1, retry: true });
    bench.step(Event::Submit(Box::default()));
    let refusal = bench.scheduler.take_refusal();
    assert!(
        matches!(refusal, Some(Refusal::QueueFull { queued: 3, limit: 3, .. })),
        "one blocked, one nobody can run, one that is tried again: {refusal:?}"
    );
    bench.step(Event::Finish { task: parent, attempt: 1 });
    bench.step(Event::Pull { worker, wait: false });
    bench.submit(TaskSpec::default());
}

#[test]
fn a_task_that_moves_goes_on_aging() {
    let mut bench = Bench::new(&push());
    bench.join(&[], 1);
    for at in 0..6 {
        bench.submit(ranked(at, 1.0));
    }
    bench.wait(Span::from_secs(50));
    let thief = bench.join(&[], 1);
    bench.step(Event::Steal { thief });
    assert_eq!(stolen(&bench), 1);
    bench.step(Event::Change { worker: thief, change: WorkerChange { draining: Some(true), ..Default::default() } });
    bench.wait(Span::from_secs(11));
    assert_eq!(bench.scheduler.metrics().promotions, 6);
}

#[test]
fn a_task_that_gets_its_turn_for_a_key_goes_on_aging() {
    let mut bench = Bench::new(&Config::default());
    let worker = bench.join(&[], 1);
    let keyed = || TaskSpec { key: Some(KeyId(0)), ..ranked(0, 1.0) };
    let first = bench.submit(keyed());
    bench.submit(keyed());
    bench.step(Event::Pull { worker, wait: false });
    bench.wait(Span::from_secs(50));
    bench.step(Event::Finish { task: first, attempt: 1 });
    bench.wait(Span::from_secs(11));
    assert_eq!(bench.scheduler.metrics().promotions, 1);
}

#[test]
fn whoever_is_told_that_a_task_is_queued_is_told_where() {
    let mut bench = Bench::new(&push());
    let worker = bench.join(&[], 1);
    let task = bench.submit(TaskSpec::default());
    let told = Action::Notify { task, status: Status::Queued, worker: Some(worker), cause: Cause::None };
    assert!(bench.actions.contains(&told), "{:?}", bench.actions);
}

fn set_policy(task_type: Option<TypeId>, options: PolicyOptions) -> Event {
    Event::SetPolicy { task_type, policy: PolicySpec::Options(options) }
}

#[test]
fn the_threshold_of_work_stealing_counts_wherever_the_policy_is_chosen() {
    let mut config = push();
    config.stealing.min_local_queue = 0;
    let options = || PolicyOptions { kind: "work_stealing".to_owned(), steal_threshold: Some(1), ..Default::default() };
    for task_type in [None, Some(TypeId(1))] {
        let mut bench = Bench::new(&config);
        bench.step(set_policy(task_type, options()));
        bench.join(&[], 1);
        let own = bench.submit(TaskSpec { task_type: TypeId(1), ..TaskSpec::default() });
        let other = bench.submit(TaskSpec { task_type: TypeId(2), ..TaskSpec::default() });
        let thief = bench.join(&[], 1);
        bench.step(Event::Steal { thief });
        let moved = |action: &Action| if let Action::Move { task, .. } = action { Some(*task) } else { None };
        // Newest first, but for one type only its own tasks.
        let expected = if task_type.is_some() { own } else { other };
        assert_eq!(bench.actions.iter().filter_map(moved).collect::<Vec<_>>(), [expected]);
    }
}

#[test]
fn the_alpha_of_adaptive_counts_wherever_the_policy_is_chosen() {
    for task_type in [None, Some(TypeId(1))] {
        let mut bench = Bench::new(&Config::default());
        let options = PolicyOptions { kind: "adaptive".to_owned(), alpha: Some(1.0), ..Default::default() };
        bench.step(set_policy(task_type, options));
        let workers = [bench.join(&[], 1), bench.join(&[], 1)];
        for (worker, secs) in [(0, 10), (0, 1), (1, 5), (1, 5)] {
            let worker = workers[worker];
            let task = bench.submit(TaskSpec { pin: Some(worker), ..TaskSpec::default() });
            bench.step(Event::Pull { worker, wait: false });
            bench.wait(Span::from_secs(secs));
            bench.step(Event::Finish { task, attempt: 1 });
        }
        for worker in workers {
            bench.step(Event::Pull { worker, wait: true });
        }
        let task = bench.submit(TaskSpec { task_type: TypeId(1), ..TaskSpec::default() });
        assert_eq!(bench.scheduler.holder(task), Some((workers[0], 1)), "only the latest counts");
    }
}

#[test]
fn elements_that_wait_by_themselves_are_known_and_can_be_withdrawn() {
    let mut bench = Bench::new(&Config::default());
    let worker = bench.join(&[], 1);
    let template = Box::new(TaskSpec { payload: 9, key: Some(KeyId(0)), ..TaskSpec::default() });
    bench.step(Event::SubmitArray { template, count: 3 });
    let element = |action: &Action| match *action {
        Action::Element { job, index, task, payload: 9 } => Some((job, index, task)),
        _ => None,
    };
    let (job, index, task) = bench.actions.iter().find_map(element).expect("the first waits for the key");
    assert_eq!((index, bench.scheduler.status(task)), (0, Some(Status::Queued)));
    bench.step(Event::CancelElement { job, index: 0 });
    assert!(bench.scheduler.take_refusal().is_none());
    assert_eq!(bench.scheduler.status(task), Some(Status::Cancelled));
    assert_eq!(bench.actions.iter().find_map(element).map(|entry| entry.1), Some(1), "the next one follows");
    bench.step(Event::Pull { worker, wait: false });
    bench.step(Event::CancelElement { job, index: 1 });
    assert!(bench.scheduler.take_refusal().is_some(), "handed out: it is a task like any other");
    bench.step(Event::CancelElement { job, index: 2 });
    assert!(bench.scheduler.take_refusal().is_none());
}

#[test]
fn an_element_that_a_worker_is_kept_free_for_is_known() {
    let mut bench = Bench::new(&Config::default());
    let resources = Vector::new(units(ResourceId::CPUS, 4.0));
    let worker = bench.register(WorkerSpec { resources, slots: 4, ..WorkerSpec::default() });
    bench.submit(wide(1, ResourceId::CPUS, 1.0, 10));
    bench.step(Event::Pull { worker, wait: false });
    bench.step(Event::SubmitArray { template: Box::new(wide(2, ResourceId::CPUS, 4.0, 10)), count: 2 });
    bench.step(Event::Pull { worker, wait: false });
    let told = |action: &Action| match *action {
        Action::Element { index, task, .. } => Some((index, task)),
        _ => None,
    };
    let (index, task) = bench.actions.iter().find_map(told).expect("it has become a task of its own");
    assert_eq!(index, 0);
    let queued = Action::Notify { task, status: Status::Queued, worker: None, cause: Cause::None };
    assert!(bench.actions.contains(&queued), "{:?}", bench.actions);
}

#[test]
fn an_array_that_nobody_can_run_fails_with_a_reason_for_each_class() {
    let mut bench = Bench::new(&Config::default());
    let (plain, small) = (bench.join(&[], 1), bench.join(&[7], 1));
    let demand = Demand::new(units(ResourceId::MEMORY, 8.0));
    let template = Box::new(TaskSpec { demand, ..needs(&[7]) });
    bench.step(Event::SubmitArray { template, count: 3 });
    let mut refused = Vec::new();
    while bench.scheduler.unsettled() > 0 {
        bench.now = bench.scheduler.next_timer().expect("it is tried again").max(bench.now);
        bench.step(Event::Tick);
        refused.extend(bench.actions.iter().filter_map(|action| match *action {
            Action::ElementsRefused { worker, lack, .. } => Some((worker, lack)),
            _ => None,
        }));
    }
    let memory = Lack::Resource { resource: ResourceId::MEMORY, needs: Amount::from_units(8), has: Amount(0) };
    assert_eq!(refused, [(plain, Lack::Capability(CapabilityId(7))), (small, memory)]);
}

fn asks_for_a_gpu() -> TaskSpec {
    let demand = Demand::new([(ResourceId::GPUS, Amount::from_units(1))]);
    TaskSpec { demand, ..TaskSpec::default() }
}

#[test]
fn who_waits_gets_a_task_although_the_policy_refuses_everybody() {
    for (bind, policy) in [
        (Bind::Late, "fifo"),
        (Bind::Late, "priority_based"),
        (Bind::Late, "adaptive"),
        (Bind::Late, "expected_completion"),
        (Bind::Push, "fifo"),
    ] {
        let mut config = Config::default();
        config.scheduling.bind = bind;
        config.scheduling.policy = PolicySpec::Name(policy.to_owned());
        let mut bench = Bench::new(&config);
        let resources =
            Vector::new([(ResourceId::CPUS, Amount::from_units(3)), (ResourceId::GPUS, Amount::from_units(1))]);
        let worker = bench.register(WorkerSpec { slots: 3, resources, ..WorkerSpec::default() });
        bench.submit(asks_for_a_gpu());
        bench.step(Event::Pull { worker, wait: false });
        assert_eq!(bench.assigned().len(), 1);
        // It waits at the worker for the accelerator, so the worker's queue is not empty although slots are free.
        bench.submit(TaskSpec { pin: Some(worker), ..asks_for_a_gpu() });
        bench.step(Event::Pull { worker, wait: true });
        assert!(bench.assigned().is_empty());
        let small = bench.submit(TaskSpec::default());
        assert_eq!(bench.assigned(), [(small, 1)], "{bind:?}, {policy}");
        // So it is for an array.
        bench.step(Event::Finish { task: small, attempt: 1 });
        bench.step(Event::Pull { worker, wait: true });
        bench.step(Event::SubmitArray { template: Box::new(TaskSpec::default()), count: 2 });
        assert_eq!(bench.assigned().len(), 1, "{bind:?}, {policy}");
    }
}

#[test]
fn a_class_with_room_is_found_behind_very_many_without() {
    let mut bench = Bench::new(&Config::default());
    let memory = |units: u64, slots: u64| {
        Vector::new([(ResourceId::CPUS, Amount::from_units(slots)), (ResourceId::MEMORY, Amount::from_units(units))])
    };
    let asks = |units: u64| {
        let demand = Demand::new([(ResourceId::MEMORY, Amount::from_units(units))]);
        TaskSpec { demand, ..TaskSpec::default() }
    };
    // A hundred classes with a free slot each, whose memory is in use.
    for class in 0..100 {
        let worker =
            bench.register(WorkerSpec { slots: 2, resources: memory(1000 + class, 2), ..WorkerSpec::default() });
        bench.submit(TaskSpec { pin: Some(worker), ..asks(900) });
        bench.step(Event::Pull { worker, wait: false });
        assert_eq!(bench.assigned().len(), 1);
        bench.step(Event::Pull { worker, wait: true });
    }
    let last = bench.register(WorkerSpec { slots: 2, resources: memory(2000, 2), ..WorkerSpec::default() });
    // It has as much to do as the others, so that its class does not come first.
    for _ in 0..2 {
        bench.step(Event::Pull { worker: last, wait: true });
    }
    bench.submit(asks(500));
    assert_eq!(bench.assigned().len(), 1);
    let task = bench.submit(asks(500));
    assert_eq!(bench.assigned(), [(task, 1)]);
}

#[test]
fn a_long_chain_of_tasks_without_a_home_ends_without_recursion() {
    let mut scheduler = Scheduler::new(&Config::default()).expect("a valid policy");
    let mut actions = Vec::new();
    let mut step = |event: Event| {
        actions.clear();
        scheduler.step(Time::ZERO, event, &mut actions);
        actions.clone()
    };
    let joined = |actions: Vec<Action>| {
        actions.iter().find_map(|action| if let Action::Joined { worker, .. } = action { Some(*worker) } else { None })
    };
    let home = joined(step(Event::Join(WorkerSpec::default()))).expect("the worker joins");
    joined(step(Event::Join(WorkerSpec::default()))).expect("the other one joins");
    let mut parent: Option<TaskId> = None;
    let mut ids = Vec::new();
    for _ in 0..50_000 {
        let spec = TaskSpec {
            pin: Some(home),
            after: parent.into_iter().collect(),
            on_parent_failure: ParentFailure::Run,
            ..TaskSpec::default()
        };
        let actions = step(Event::Submit(Box::new(spec)));
        let accepted = |action: &Action| if let Action::Accepted { task, .. } = action { Some(*task) } else { None };
        parent = actions.iter().find_map(accepted);
        ids.extend(parent);
    }
    let actions = step(Event::Leave { worker: home, remaining: Remaining::Requeue });
    let failed = |action: &&Action| matches!(action, Action::Notify { status: Status::Failed, .. });
    assert_eq!(actions.iter().filter(failed).count(), ids.len());
    scheduler.check().expect("every invariant holds");
}

/// A worker with four cores, one of them in use by a task that was planned with `planned`, and a task as wide as the worker.
fn beside_a_wide_task(planned: Span) -> (Bench, WorkerId, (TaskId, u32), TaskId) {
    let mut bench = Bench::new(&Config::default());
    let worker = bench.join(&[], 4);
    let cores = |units| Demand::new([(ResourceId::CPUS, Amount::from_units(units))]);
    let blocker = TaskSpec { demand: cores(1), estimate: Some(planned), ..TaskSpec::default() };
    bench.submit(blocker);
    bench.step(Event::Pull { worker, wait: false });
    let held = bench.assigned()[0];
    bench.step(Event::Start { task: held.0, attempt: held.1 });
    let wide = bench.submit(TaskSpec { demand: cores(4), estimate: Some(Span::from_secs(1)), ..TaskSpec::default() });
    (bench, worker, held, wide)
}

fn one_core(estimate: Span) -> TaskSpec {
    let demand = Demand::new([(ResourceId::CPUS, Amount::from_units(1))]);
    TaskSpec { demand, estimate: Some(estimate), ..TaskSpec::default() }
}

#[test]
fn what_runs_longer_than_planned_does_not_keep_short_tasks_from_the_rest_of_its_worker() {
    for cancelled in [false, true] {
        let (mut bench, worker, (blocker, attempt), wide) = beside_a_wide_task(Span::from_secs(2));
        let short = bench.submit(one_core(Span::from_millis(1)));
        bench.wait(Span::from_secs(3));
        if cancelled {
            bench.step(Event::Cancel { task: blocker });
        }
        bench.step(Event::Pull { worker, wait: true });
        let mut got = bench.assigned();
        let mut waited = Span::ZERO;
        while got.is_empty() && waited < Span::from_secs(60) {
            bench.wait(Span::from_millis(100));
            waited += Span::from_millis(100);
            got = bench.assigned();
        }
        assert_eq!(got.first().map(|entry| entry.0), Some(short), "cancelled: {cancelled}");
        assert!(waited <= Span::from_secs(1), "{waited}");
        // And the wide one comes as soon as there is room.
        bench.step(Event::Finish { task: short, attempt: got[0].1 });
        bench.step(Event::Pull { worker, wait: true });
        assert_eq!(bench.assigned(), []);
        bench.step(Event::Finish { task: blocker, attempt });
        assert_eq!(bench.assigned().first().map(|entry| entry.0), Some(wide), "cancelled: {cancelled}");
    }
}

#[test]
fn a_long_task_does_not_hide_short_ones_that_fit_before_a_wide_one() {
    let (mut bench, worker, _, wide) = beside_a_wide_task(Span::from_secs(3));
    let long = bench.submit(one_core(Span::from_secs(100)));
    let short = bench.submit(one_core(Span::from_millis(5)));
    bench.step(Event::Pull { worker, wait: true });
    let got: Vec<TaskId> = bench.assigned().iter().map(|entry| entry.0).collect();
    assert_eq!(got, [short]);
    assert_eq!(bench.scheduler.status(long), Some(Status::Queued));
    assert_eq!(bench.scheduler.status(wide), Some(Status::Queued));
}

#[test]
fn all_of_a_job_is_cancelled_also_what_waits_for_it_by_way_of_another_job() {
    for choice in [ParentFailure::Fail, ParentFailure::Skip, ParentFailure::Run] {
        let mut bench = Bench::new(&Config::default());
        bench.step(Event::OpenJob { weight: 1.0 });
        let opened = |action: &Action| if let Action::Opened { job } = action { Some(*job) } else { None };
        let job = bench.actions.iter().find_map(opened).expect("the job is opened");
        let first = bench.submit(TaskSpec { job: Some(job), ..TaskSpec::default() });
        let between =
            bench.submit(TaskSpec { after: vec![first].into(), on_parent_failure: choice, ..TaskSpec::default() });
        let last = bench.submit(TaskSpec { job: Some(job), after: vec![between].into(), ..TaskSpec::default() });
        bench.step(Event::CancelJob { job });
        for task in [first, last] {
            assert_eq!(bench.scheduler.outcome(task), Some((Status::Cancelled, Cause::Requested)), "{choice:?}");
        }
    }
}

#[test]
fn however_long_tasks_are_said_to_take_their_sum_can_be_undone() {
    let mut bench = Bench::new(&push());
    let worker = bench.join(&[], 1);
    let endless: Vec<TaskId> =
        (0..3).map(|_| bench.submit(TaskSpec { estimate: Some(Span(u64::MAX)), ..TaskSpec::default() })).collect();
    let short = bench.submit(TaskSpec { estimate: Some(Span::from_secs(1)), ..TaskSpec::default() });
    // Every step checks that the sum is what the queue says.
    for task in endless {
        bench.step(Event::Cancel { task });
    }
    bench.step(Event::Pull { worker, wait: false });
    assert_eq!(bench.assigned(), [(short, 1)]);
}

#[test]
fn batches_go_to_the_biggest_first_however_big_it_is() {
    let mut config = push();
    let options = PolicyOptions { kind: "batch".to_owned(), batch_size: Some(2), ..PolicyOptions::default() };
    config.scheduling.policy = PolicySpec::Options(options);
    let mut bench = Bench::new(&config);
    let giant = bench.join(&[], 5_000_000);
    let small = bench.join(&[], 1);
    let placed: Vec<WorkerId> = (0..6)
        .map(|_| {
            bench.submit(TaskSpec::default());
            let at = bench.actions.iter().find_map(|action| match action {
                Action::Notify { status: Status::Queued, worker, .. } => *worker,
                _ => None,
            });
            at.expect("it is queued at a worker")
        })
        .collect();
    assert_eq!(placed, [giant, giant, small, small, giant, small]);
}

#[test]
fn a_task_that_nobody_can_run_fails_with_a_reason_for_each_class() {
    let mut bench = Bench::new(&Config::default());
    for class in 1..=100 {
        bench.join(&[class], 1);
    }
    let task = bench.submit(needs(&[0]));
    bench.wait(Span::from_secs(60));
    let explanation = bench.scheduler.explain(task).expect("it is remembered");
    assert_eq!((explanation.status, explanation.cause), (Status::Failed, Cause::NoWorker));
    assert_eq!((explanation.refusals.classes.len(), explanation.refusals.more), (64, 36));
    assert!(explanation.refusals.classes.iter().all(|(_, lack)| *lack == Lack::Capability(CapabilityId(0))));
}

#[test]
fn a_pause_is_never_longer_than_the_longest() {
    let mut config = Config::default();
    (config.retry.max_retries, config.retry.jitter) = (40, 0.5);
    (config.retry.backoff, config.retry.backoff_max) = (Span::from_secs(1), Span::from_secs(1));
    config.limits.quarantine_after = 0;
    let mut bench = Bench::new(&config);
    let worker = bench.join(&[], 1);
    bench.submit(TaskSpec::default());
    let mut longest = Span::ZERO;
    for _ in 0..40 {
        bench.step(Event::Pull { worker, wait: true });
        while bench.assigned().is_empty() {
            bench.now = bench.scheduler.next_timer().expect("it will be tried again");
            bench.step(Event::Tick);
        }
        let (task, attempt) = bench.assigned()[0];
        let failed = bench.now;
        bench.step(Event::Fail { task, attempt, retry: true });
        let again =
            bench.scheduler.explain(task).expect("it is known").reasons.into_iter().find_map(|reason| match reason {
                filch_core::Reason::Backoff { until, .. } => Some(until),
                _ => None,
            });
        longest = longest.max(again.map_or(Span::ZERO, |until| until.since(failed)));
    }
    assert!(longest > Span::from_millis(800) && longest <= Span::from_secs(1), "{longest}");
}
