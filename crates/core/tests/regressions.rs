//! Bugs that were found by reading, each as the shortest sequence of events that shows it.

use filch_core::config::{Bind, Matching, PolicySpec};
use filch_core::{
    Action, CapabilityId, CapabilitySet, Config, Event, KeyId, Priority, Remaining, Scheduler, Span, TaskId, TaskSpec,
    Time, WorkerId, WorkerSpec,
};

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
        self.step(Event::Join(WorkerSpec { capabilities, slots, ..WorkerSpec::default() }));
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
