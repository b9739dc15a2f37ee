//! A coordinator that crashes, and the next one, by hand: what comes back from the records, and what holders bring along.
#![allow(clippy::unwrap_used, reason = "a test")]

use filch_core::coordinator::{Coordinator, Input, Output};
use filch_core::journal::{Detail, Journal};
use filch_core::wire::{Beat, Group, Hello, Message, Order};
use filch_core::{
    Action, Amount, Config, Demand, End, Event, GraphTask, Held, JobId, KeyId, LoadReport, Record, Remaining,
    ResourceId, RetryTerms, Scheduler, Span, Status, TaskId, TaskSpec, Time, WorkerId, WorkerSpec,
};

/// A coordinator, the journal it writes, and what it said last.
struct Bench {
    config: Config,
    coordinator: Coordinator,
    journal: Journal,
    out: Vec<Output>,
    specs: Vec<TaskSpec>,
    now: Time,
    /// Workers that came so far.
    hellos: u64,
}

impl Bench {
    fn new() -> Bench {
        Bench::of(Config::default())
    }

    fn of(config: Config) -> Bench {
        let coordinator = Coordinator::new(&config, 1).unwrap().with_store(Time::ZERO);
        let (journal, now) = (Journal::default(), Time::ZERO);
        Bench { config, coordinator, journal, out: Vec::new(), specs: Vec::new(), now, hellos: 0 }
    }

    fn step(&mut self, input: Input) {
        self.out.clear();
        self.coordinator.step(self.now, input, &mut self.out);
        let mut group = Group::default();
        for output in &self.out {
            let Output::Action(Action::Persist(record)) = output else { continue };
            let detail = match *record {
                Record::Submitted { payload, .. } | Record::ArraySubmitted { payload, .. } => {
                    Detail::Task(&self.specs[payload as usize])
                }
                Record::Joined { .. } => Detail::Worker(&WorkerSpec { slots: 4, ..WorkerSpec::default() }),
                _ => Detail::None,
            };
            group.push(record, detail);
        }
        // As a store would have it.
        Group::replay(&group.encode(), |record, detail| self.journal.apply(record, detail)).unwrap();
    }

    fn hello(&mut self, known: Option<WorkerId>, holds: Vec<Held>) -> WorkerId {
        self.hellos += 1;
        self.hello_again(known, holds)
    }

    /// The same worker once more, which has not heard yet that it was let in.
    fn hello_again(&mut self, known: Option<WorkerId>, holds: Vec<Held>) -> WorkerId {
        let spec = WorkerSpec { slots: 4, ..WorkerSpec::default() };
        self.step(Input::Hello(Box::new(Hello { spec, known, holds, born: Time(self.hellos), sent: self.now })));
        let joined = self.out.iter().find_map(|output| match output {
            Output::Joined { worker, .. } => Some(*worker),
            _ => None,
        });
        joined.unwrap()
    }

    fn submit(&mut self, spec: TaskSpec) -> TaskId {
        let spec = TaskSpec { payload: self.specs.len() as u64, ..spec };
        self.specs.push(spec.clone());
        self.step(Input::Event(Event::Submit(Box::new(spec))));
        self.accepted()[0]
    }

    /// The job that was opened in the last step.
    fn opened(&self) -> JobId {
        let opened = self.out.iter().find_map(|output| match output {
            Output::Action(Action::Opened { job }) => Some(*job),
            _ => None,
        });
        opened.unwrap()
    }

    fn accepted(&self) -> Vec<TaskId> {
        let accepted = self.out.iter().filter_map(|output| match output {
            Output::Action(Action::Accepted { task, .. }) => Some(*task),
            _ => None,
        });
        accepted.collect()
    }

    fn hear(&mut self, from: WorkerId, message: Message) {
        self.step(Input::Message { from, message });
    }

    /// An eighth of a lease later: the store has noted all, and these are still there.
    /// What was handed over meanwhile.
    fn later(&mut self, lease: Span, there: &[WorkerId]) -> Vec<(Order, bool)> {
        self.now = self.now + Span(lease.0 / 8);
        self.step(Input::Stored { begun: self.now });
        let mut handed = self.handed();
        for worker in there {
            self.hear(*worker, beat(self.now));
            handed.extend(self.handed());
        }
        self.step(Input::Tick);
        handed.extend(self.handed());
        handed
    }

    /// What was handed over in the last step, and whether that waits for the store.
    fn handed(&self) -> Vec<(Order, bool)> {
        let hands = self.out.iter().filter_map(|output| match output {
            Output::Send { message: message @ Message::Hand { orders, .. }, .. } => {
                Some(orders.iter().map(|order| (order.clone(), message.waits_for_store())))
            }
            _ => None,
        });
        hands.flatten().collect()
    }

    fn revoked(&self) -> Vec<Held> {
        let revoked = self.out.iter().filter_map(|output| match output {
            Output::Send { message: Message::Revoke { held, .. }, .. } => Some(*held),
            _ => None,
        });
        revoked.collect()
    }

    /// The coordinator is no more; the next one gets what is in the journal.
    fn restart(&mut self) {
        let epoch = self.coordinator.epoch() + 1;
        self.coordinator = Coordinator::new(&self.config, epoch).unwrap().with_store(self.now);
        self.out.clear();
        self.coordinator.restore(self.now, self.journal.clone(), &mut self.out);
        self.coordinator.scheduler().check().unwrap();
    }

    fn status(&self, task: TaskId) -> Option<Status> {
        self.coordinator.scheduler().status(task)
    }
}

fn keyed() -> TaskSpec {
    TaskSpec { key: Some(KeyId(7)), ..TaskSpec::default() }
}

fn want(count: u32) -> Message {
    Message::Want { count, sent: Time::ZERO }
}

/// Of a worker that has nothing and wants nothing.
fn beat(sent: Time) -> Message {
    let load = LoadReport { cpu: 0.0, memory: 0.0 };
    let beat = Beat { load, depth: 0, backlog: Span::ZERO, wants: 0, holds: 0, fingerprint: 0, sent };
    Message::Beat(Box::new(beat))
}

fn done(held: Held) -> Message {
    Message::Ended { held, ran: Span::from_secs(1), end: End::Done }
}

#[test]
fn every_unfinished_task_comes_back_under_its_id_and_its_holder_goes_on() {
    let mut bench = Bench::new();
    let worker = bench.hello(None, Vec::new());
    bench.hear(worker, want(2));
    let token = bench.submit(keyed());
    let [(second, waits)] = &bench.handed()[..] else { panic!("{:?}", bench.out) };
    assert!(waits, "the next coordinator must know who has the key");
    let second = second.held;
    let plain = bench.submit(TaskSpec::default());
    let [(first, waits)] = &bench.handed()[..] else { panic!("{:?}", bench.out) };
    assert!(!waits, "nothing is exclusive about it");
    let first = first.held;
    let waiting = bench.submit(keyed());
    let over = bench.submit(TaskSpec::default());
    bench.step(Input::Event(Event::Cancel { task: over }));

    bench.restart();
    let queued = Some(Status::Queued);
    assert_eq!([bench.status(plain), bench.status(waiting)], [queued, queued]);
    assert_eq!((bench.status(token), bench.status(over)), (Some(Status::Assigned), Some(Status::Cancelled)));
    let scheduler = bench.coordinator.scheduler();
    assert_eq!((scheduler.who_has(plain), scheduler.who_has(token)), (Some(worker), Some(worker)));
    assert!(scheduler.who_has(waiting).is_none(), "its key is taken");

    assert_eq!(bench.hello(Some(worker), vec![first, second]), worker);
    assert!(bench.revoked().is_empty());
    bench.hear(worker, want(3));
    assert!(bench.handed().is_empty(), "its key is still taken");
    bench.hear(worker, done(second));
    let [(third, _)] = &bench.handed()[..] else { panic!("{:?}", bench.out) };
    assert_eq!(third.held.task, waiting);
    assert!(third.held.attempt > 4096, "beyond the attempts of the first life");
    bench.hear(worker, done(first));
    assert_eq!([bench.status(plain), bench.status(token)], [Some(Status::Completed); 2]);
    let fresh = bench.submit(TaskSpec::default());
    assert!(fresh.to_bits() >> 32 >= 4096, "{fresh} cannot have been given out before");
    assert!([plain, token, waiting, over].iter().all(|old| *old != fresh));
}

#[test]
fn what_was_never_recorded_is_told_by_whoever_holds_it() {
    let mut bench = Bench::new();
    let (one, two) = (bench.hello(None, Vec::new()), bench.hello(None, Vec::new()));
    let tasks = [bench.submit(TaskSpec::default()), bench.submit(TaskSpec::default())];
    let before = bench.journal.clone();
    // This is lost with the coordinator.
    bench.hear(one, want(2));
    let held: Vec<Held> = bench.handed().iter().map(|(order, _)| order.held).collect();
    assert_eq!(held.len(), 2);
    bench.journal = before;
    bench.restart();
    bench.hello(Some(two), Vec::new());
    bench.hear(two, want(1));
    let given: Vec<Held> = bench.handed().iter().map(|(order, _)| order.held).collect();
    assert_eq!(given.len(), 1, "nobody knows that the first worker has it");
    bench.hello(Some(one), held.clone());
    let other = *held.iter().find(|held| held.task != given[0].task).unwrap();
    assert_eq!(bench.revoked(), [*held.iter().find(|held| held.task == given[0].task).unwrap()]);
    assert_eq!(bench.coordinator.scheduler().current(other.task), Some(other), "the attempt counts as it is");
    assert_eq!(bench.coordinator.scheduler().who_has(other.task), Some(one));
    bench.coordinator.scheduler().check().unwrap();
    bench.hear(one, done(other));
    assert!(tasks.contains(&other.task) && bench.status(other.task) == Some(Status::Completed));
}

#[test]
fn a_failure_that_was_recorded_does_not_count_again_when_it_is_said_again_after_a_restart() {
    let mut bench = Bench::new();
    let worker = bench.hello(None, Vec::new());
    bench.hear(worker, want(1));
    let retry = RetryTerms { max_retries: 1, backoff: Span::from_secs(1), backoff_max: Span::from_secs(1) };
    let task = bench.submit(TaskSpec { retry: Some(retry), ..TaskSpec::default() });
    let first = bench.handed()[0].0.held;
    let failed = |held| Message::Ended { held, ran: Span::from_secs(1), end: End::Failed { retry: true } };
    bench.hear(worker, failed(first));
    assert_eq!(bench.status(task), Some(Status::Retrying));
    // Its pause is over when the next coordinator begins, and the worker was never told that its report was noted.
    bench.now = bench.now + Span::from_secs(3);
    bench.restart();
    bench.hello(Some(worker), Vec::new());
    bench.hear(worker, failed(first));
    assert_eq!(bench.status(task), Some(Status::Queued), "one of its two attempts has failed");
    bench.hear(worker, want(1));
    let second = bench.handed()[0].0.held;
    assert_eq!(second.task, task);
    bench.hear(worker, failed(second));
    assert_eq!(bench.status(task), Some(Status::Failed));
}

#[test]
fn an_attempt_of_an_earlier_life_fails_once_however_often_that_is_said() {
    let mut bench = Bench::new();
    let worker = bench.hello(None, Vec::new());
    bench.hear(worker, want(1));
    let retry = RetryTerms { max_retries: 1, backoff: Span::from_secs(1), backoff_max: Span::from_secs(1) };
    let task = bench.submit(TaskSpec { retry: Some(retry), ..TaskSpec::default() });
    let first = bench.handed()[0].0.held;
    bench.restart();
    bench.hello(Some(worker), vec![first]);
    let failed = |held| Message::Ended { held, ran: Span::from_secs(1), end: End::TimedOut };
    bench.hear(worker, failed(first));
    assert_eq!(bench.status(task), Some(Status::Retrying));
    // It waits for a worker again when the same is said once more.
    bench.now = bench.now + Span::from_secs(3);
    bench.step(Input::Tick);
    assert_eq!(bench.status(task), Some(Status::Queued));
    bench.hear(worker, failed(first));
    assert_eq!(bench.status(task), Some(Status::Queued));
    bench.hear(worker, want(1));
    let second = bench.handed()[0].0.held;
    bench.hear(worker, failed(second));
    assert_eq!(bench.status(task), Some(Status::Failed));
}

#[test]
fn what_was_stolen_belongs_to_the_thief_after_a_restart() {
    let mut bench = Bench::new();
    let (victim, thief) = (bench.hello(None, Vec::new()), bench.hello(None, Vec::new()));
    bench.hear(victim, want(1));
    bench.submit(TaskSpec::default());
    let held = bench.handed()[0].0.held;
    bench.restart();
    let stolen = Held { hop: 1, ..held };
    bench.hello(Some(thief), vec![stolen]);
    assert_eq!(bench.coordinator.scheduler().who_has(held.task), Some(thief));
    // The victim says the same as it always did, and what it says is old.
    bench.hello(Some(victim), vec![held]);
    assert_eq!(bench.coordinator.scheduler().who_has(held.task), Some(thief));
    assert_eq!(bench.revoked(), [held]);
}

#[test]
fn graphs_and_their_jobs_come_back_and_children_wait_for_their_parents() {
    let mut bench = Bench::new();
    let worker = bench.hello(None, Vec::new());
    let spec = |payload| TaskSpec { payload, ..TaskSpec::default() };
    bench.specs = vec![spec(0), spec(1)];
    let child = GraphTask { spec: spec(1), parents: [0].into_iter().collect() };
    let graph = vec![GraphTask { spec: spec(0), ..GraphTask::default() }, child];
    bench.step(Input::Event(Event::SubmitGraph(graph)));
    let [parent, child] = bench.accepted()[..] else { panic!("{:?}", bench.out) };
    bench.restart();
    assert_eq!((bench.status(parent), bench.status(child)), (Some(Status::Queued), Some(Status::Blocked)));
    bench.hello(Some(worker), Vec::new());
    bench.hear(worker, want(1));
    let held = bench.handed()[0].0.held;
    bench.hear(worker, done(held));
    assert_eq!(bench.status(child), Some(Status::Running), "it likes to have one, so it gets the next");
    let held = bench.handed()[0].0.held;
    bench.hear(worker, done(held));
    assert!(bench.out.iter().any(|output| matches!(output, Output::Action(Action::JobDone { .. }))));
    assert_eq!(bench.journal.unfinished().count(), 0);
}

#[test]
fn who_does_not_know_that_the_store_is_its_own_answers_nobody() {
    let mut bench = Bench::new();
    let worker = bench.hello(None, Vec::new());
    let lease = bench.config.limits.lease;
    let heard = |bench: &Bench| {
        bench.out.iter().any(|output| matches!(output, Output::Send { message: Message::Heard { .. }, .. }))
    };
    bench.now = Time(lease.0 / 8);
    bench.hear(worker, want(1));
    assert!(heard(&bench) && bench.out.contains(&Output::Renew));
    bench.now = Time(lease.0 / 4);
    bench.hear(worker, want(1));
    assert!(!heard(&bench));
    bench.step(Input::Stored { begun: Time(lease.0 / 8) });
    bench.hear(worker, want(1));
    assert!(heard(&bench));
}

#[test]
fn ids_of_a_long_life_are_no_ids_of_the_next_one() {
    let mut scheduler = Scheduler::new(&Config::default()).unwrap().in_life(2);
    let next_life = 2 << 16;
    let (mut actions, mut newest, mut reused) = (Vec::new(), 0, 0);
    for round in 0..70_000 {
        actions.clear();
        scheduler.step(Time::ZERO, Event::Join(WorkerSpec::default()), &mut actions);
        let worker = actions.iter().find_map(|action| match action {
            Action::Joined { worker, .. } => Some(*worker),
            _ => None,
        });
        let worker = worker.unwrap();
        let generation = (worker.to_bits() >> 32) as u32;
        assert!(generation < next_life, "{worker} in round {round} belongs to the next life");
        (newest, reused) = (newest.max(generation), reused + u32::from(worker.index() == 0));
        scheduler.step(Time::ZERO, Event::Leave { worker, remaining: Remaining::Requeue }, &mut actions);
    }
    assert_eq!((newest, reused), (next_life - 1, 1 << 16), "the slot was used as often as it may be");
}

#[test]
fn an_array_comes_back_as_far_as_it_had_come() {
    let mut bench = Bench::new();
    let worker = bench.hello(None, Vec::new());
    let template = TaskSpec { payload: 0, ..TaskSpec::default() };
    bench.specs.push(template.clone());
    bench.hear(worker, want(3));
    bench.step(Input::Event(Event::SubmitArray { template: Box::new(template), count: 10 }));
    let handed: Vec<Order> = bench.handed().into_iter().map(|(order, _)| order).collect();
    assert_eq!(handed.iter().map(|order| order.index).collect::<Vec<_>>(), [0, 1, 2]);
    let job = bench.opened();
    bench.hear(worker, want(2));
    bench.hear(worker, done(handed[0].held));
    assert!(bench.handed().is_empty(), "it has as many as it likes");
    bench.step(Input::Event(Event::CancelElement { job, index: 5 }));
    let (journal, _, pending) = bench.journal.arrays().next().unwrap();
    assert_eq!((journal, pending), (job, 6), "three are tasks, one was cancelled");
    bench.restart();
    // Its holder goes on with what it had, and the rest follows, each element once.
    let held: Vec<Held> = handed[1..].iter().map(|order| order.held).collect();
    assert_eq!(bench.hello(Some(worker), held.clone()), worker);
    assert_eq!(bench.revoked(), []);
    bench.hear(worker, want(10));
    let rest: Vec<Order> = bench.handed().into_iter().map(|(order, _)| order).collect();
    assert_eq!(rest.iter().map(|order| order.index).collect::<Vec<_>>(), [3, 4, 6, 7, 8, 9]);
    for held in held.into_iter().chain(rest.iter().map(|order| order.held)) {
        assert!(bench.coordinator.scheduler().job(job).is_some(), "the job goes on");
        bench.hear(worker, done(held));
        bench.coordinator.scheduler().check().unwrap();
    }
    assert!(bench.coordinator.scheduler().job(job).is_none(), "the job is done");
    assert_eq!((bench.journal.arrays().count(), bench.journal.unfinished().count()), (0, 0));
}

#[test]
fn an_array_that_was_cancelled_stays_cancelled_and_limits_of_keys_stay_as_set() {
    let mut bench = Bench::new();
    let worker = bench.hello(None, Vec::new());
    bench.step(Input::Event(Event::SetKeyLimit { key: KeyId(7), limit: 2 }));
    let template = TaskSpec { payload: 0, ..keyed() };
    bench.specs.push(template.clone());
    bench.step(Input::Event(Event::SubmitArray { template: Box::new(template.clone()), count: 9 }));
    let first = bench.opened();
    bench.step(Input::Event(Event::SubmitArray { template: Box::new(template), count: 5 }));
    bench.step(Input::Event(Event::CancelJob { job: first }));
    bench.restart();
    assert_eq!(bench.hello(Some(worker), Vec::new()), worker);
    bench.hear(worker, want(4));
    let handed = bench.handed();
    assert_eq!(handed.len(), 2, "as many as the key allows");
    assert!(handed.iter().all(|(order, waits)| order.exclusive && *waits));
    let left: u32 = bench.journal.arrays().map(|(job, _, pending)| u32::from(job != first) * pending).sum();
    assert_eq!((bench.journal.arrays().count(), left), (1, 3));
}

impl Bench {
    /// The ends that were noted in the last step.
    fn noted(&self) -> Vec<Held> {
        let noted = self.out.iter().filter_map(|output| match output {
            Output::Send { message: Message::Noted(held), .. } => Some(*held),
            _ => None,
        });
        noted.collect()
    }
}

#[test]
fn the_end_of_one_task_is_answered_with_the_next_and_noted_with_it() {
    let mut bench = Bench::new();
    let worker = bench.hello(None, Vec::new());
    bench.hear(worker, want(1));
    bench.submit(TaskSpec::default());
    let [(first, _)] = &bench.handed()[..] else { panic!("{:?}", bench.out) };
    assert!(first.begins, "it has nothing else to do");
    let first = first.held;
    let waiting = bench.submit(TaskSpec::default());
    assert!(bench.handed().is_empty(), "it has as many as it likes");
    bench.hear(worker, done(first));
    let [(second, _)] = &bench.handed()[..] else { panic!("{:?}", bench.out) };
    assert_eq!((second.held.task, bench.noted()), (waiting, vec![first]));
    let second = second.held;
    // There is nothing to be said to it until it beats, or leaves.
    bench.hear(worker, done(second));
    assert!(bench.handed().is_empty() && bench.noted().is_empty(), "{:?}", bench.out);
    bench.hear(worker, want(0));
    assert_eq!(bench.noted(), [second]);
    bench.submit(TaskSpec::default());
    assert!(bench.handed().is_empty(), "it likes to have none");
}

#[test]
fn what_a_victim_says_of_what_has_ended_elsewhere_troubles_nobody_but_a_thief_is_stopped() {
    let mut bench = Bench::new();
    let (victim, thief) = (bench.hello(None, Vec::new()), bench.hello(None, Vec::new()));
    bench.hear(victim, want(6));
    let mut waiting = Vec::new();
    for _ in 0..6 {
        bench.submit(TaskSpec::default());
        waiting.extend(bench.handed().iter().filter(|(order, _)| !order.begins).map(|(order, _)| order.held));
    }
    let [first, second] = waiting[..] else { panic!("four slots, and two ahead of need: {waiting:?}") };
    let stolen = |held: Held| Held { hop: held.hop + 1, ..held };
    // The thief was quicker with all it had to say.
    bench.hear(thief, Message::Moved { held: stolen(first), to: thief });
    bench.hear(thief, done(stolen(first)));
    assert_eq!(bench.status(first.task), Some(Status::Completed));
    bench.hear(victim, Message::Moved { held: stolen(first), to: thief });
    assert!(bench.revoked().is_empty(), "{:?}", bench.out);
    // What was cancelled meanwhile stops wherever it is; whoever has it says so.
    bench.step(Input::Event(Event::Cancel { task: second.task }));
    assert_eq!(bench.revoked(), [second]);
    bench.hear(victim, Message::Moved { held: stolen(second), to: thief });
    assert!(bench.revoked().is_empty(), "{:?}", bench.out);
    bench.hear(thief, Message::Moved { held: stolen(second), to: thief });
    assert_eq!(bench.revoked(), [stolen(second)]);
}

#[test]
fn who_has_lost_its_connection_gets_nothing_until_it_is_back() {
    let mut bench = Bench::new();
    let gone = bench.hello(None, Vec::new());
    bench.hear(gone, want(4));
    bench.step(Input::Left(gone));
    bench.submit(TaskSpec::default());
    assert!(bench.handed().is_empty(), "nothing reaches it: {:?}", bench.out);
    let there = bench.hello(None, Vec::new());
    bench.hear(there, want(1));
    assert_eq!(bench.handed().len(), 1);
    bench.submit(TaskSpec::default());
    assert!(bench.handed().is_empty());
    bench.hello(Some(gone), Vec::new());
    bench.hear(gone, want(4));
    assert_eq!(bench.handed().len(), 1);
}

#[test]
fn a_worker_has_more_than_it_runs_if_it_likes_and_no_more_than_that() {
    let mut bench = Bench::new();
    let worker = bench.hello(None, Vec::new());
    bench.hear(worker, want(5));
    let mut begins = Vec::new();
    for _ in 0..6 {
        bench.submit(TaskSpec::default());
        begins.extend(bench.handed().into_iter().map(|(order, _)| (order.held, order.begins)));
    }
    assert_eq!(
        begins.iter().map(|entry| entry.1).collect::<Vec<_>>(),
        [true, true, true, true, false],
        "it has four slots"
    );
    // It has begun the last before it says that the first has ended.
    bench.hear(worker, Message::Began(begins[4].0));
    bench.hear(worker, done(begins[0].0));
    let [(next, _)] = &bench.handed()[..] else { panic!("{:?}", bench.out) };
    assert!(!next.begins, "its slots are taken");
    // What is withdrawn makes room too.
    let held = next.held;
    let last = bench.submit(TaskSpec::default());
    assert!(bench.handed().is_empty());
    bench.step(Input::Event(Event::Cancel { task: held.task }));
    assert_eq!(bench.revoked(), [held]);
    assert_eq!(bench.handed().iter().map(|(order, _)| order.held.task).collect::<Vec<_>>(), [last]);
    bench.coordinator.scheduler().check().unwrap();
}

#[test]
fn who_asks_again_to_be_let_in_is_the_same_worker() {
    let mut bench = Bench::new();
    let first = bench.hello(None, Vec::new());
    let task = bench.submit(TaskSpec::default());
    // The answer is still on its way, for longer than the worker waits for it.
    bench.now = bench.now + Span::from_secs(1);
    assert_eq!(bench.hello_again(None, Vec::new()), first);
    assert_eq!(bench.coordinator.scheduler().workers().count(), 1, "there is no second worker that nobody is");
    assert!(bench.revoked().is_empty(), "{task} stays its own");
    assert_ne!(bench.hello(None, Vec::new()), first, "another is another");
    // One that was given up joins anew, and that too is the same however often it says so.
    for _ in 0..4 {
        bench.now = bench.now + Span::from_secs(3600);
        bench.step(Input::Tick);
    }
    bench.step(Input::Stored { begun: bench.now });
    let held = Held { task, attempt: 1, hop: 0 };
    let anew = bench.hello_again(Some(first), vec![held]);
    assert_ne!(anew, first);
    assert_eq!(bench.hello_again(Some(first), vec![held]), anew);
    assert_eq!(bench.revoked(), [held], "what it had under its old name was given to others");
}

#[test]
fn what_was_given_up_in_this_life_is_over_when_its_holder_says_so() {
    let mut bench = Bench::new();
    let worker = bench.hello(None, Vec::new());
    bench.hear(worker, want(1));
    let task = bench.submit(TaskSpec::default());
    let held = bench.handed()[0].0.held;
    bench.restart();
    // It runs the attempt of the first life, until nothing is heard of it for a lease: the attempt is given up, and the task waits,
    // since there is nobody else.
    bench.hello(Some(worker), vec![held]);
    bench.hear(worker, Message::Began(held));
    bench.now = bench.now + bench.config.limits.lease + Span(1);
    bench.step(Input::Stored { begun: bench.now });
    assert_eq!(bench.revoked(), [held]);
    assert_eq!(bench.status(task), Some(Status::Queued));

    // It comes back, and has stopped.
    bench.hello_again(Some(worker), Vec::new());
    bench.hear(worker, want(1));
    assert!(bench.handed().is_empty(), "nobody has said that it stopped");
    bench.hear(worker, Message::Ended { held, ran: Span::from_secs(1), end: End::GivenBack });
    bench.coordinator.scheduler().check().unwrap();
    let status = bench.coordinator.scheduler().worker(worker).unwrap();
    assert_eq!(bench.coordinator.scheduler().revoked(worker).count(), 0, "nothing is left to be told to stop");
    let again = bench.handed();
    assert_eq!(again.len(), 1, "its slot is free for the next attempt: {status:?}");
    assert!(again[0].0.held.task == task && again[0].0.held.attempt > held.attempt);
}

#[test]
fn what_is_pinned_to_a_worker_that_leaves_waits_for_it_and_is_not_handed_to_and_fro() {
    let mut bench = Bench::new();
    let worker = bench.hello(None, Vec::new());
    bench.hear(worker, want(2));
    let pinned = || TaskSpec { pin: Some(worker), ..TaskSpec::default() };
    let mut held = Vec::new();
    for _ in 0..3 {
        bench.submit(pinned());
        held.extend(bench.handed().into_iter().map(|(order, _)| order.held));
    }
    assert_eq!(held.len(), 3, "one that likes to have tasks gets what is pinned to it at once");
    bench.hear(worker, want(0));
    for held in held {
        bench.hear(worker, Message::Ended { held, ran: Span::ZERO, end: End::GivenBack });
        assert!(bench.handed().is_empty(), "it has just given it back: {:?}", bench.out);
    }
    bench.submit(pinned());
    assert!(bench.handed().is_empty());
    bench.coordinator.scheduler().check().unwrap();
    // It stays after all.
    bench.hear(worker, want(2));
    assert_eq!(bench.handed().len(), 2);
}

#[test]
fn a_key_stays_with_what_was_cancelled_until_its_holder_has_stopped_also_after_a_restart() {
    let mut bench = Bench::new();
    let worker = bench.hello(None, Vec::new());
    bench.hear(worker, want(4));
    let first = bench.submit(keyed());
    let held = bench.handed()[0].0.held;
    let second = bench.submit(keyed());
    bench.step(Input::Event(Event::Cancel { task: first }));
    assert!(bench.revoked() == [held] && bench.handed().is_empty(), "it may take a while to stop");
    for _ in 0..2 {
        bench.restart();
        assert_eq!((bench.status(first), bench.status(second)), (Some(Status::Cancelled), Some(Status::Queued)));
        bench.hello(Some(worker), vec![held]);
        assert_eq!(bench.revoked(), [held], "nobody may have told it yet");
        bench.hear(worker, want(4));
        assert!(bench.handed().is_empty(), "it still runs: {:?}", bench.out);
        // As a snapshot has it.
        let mut again = Journal::default();
        bench.journal.records(|record, detail| again.apply(record, detail));
        bench.journal = again;
    }
    bench.hear(worker, Message::Ended { held, ran: Span::from_secs(1), end: End::GivenBack });
    bench.coordinator.scheduler().check().unwrap();
    assert_eq!(bench.handed().iter().map(|(order, _)| order.held.task).collect::<Vec<_>>(), [second]);
    let next = bench.handed()[0].0.held;
    // Now it is over, and the next life knows that.
    bench.restart();
    bench.hello(Some(worker), vec![next]);
    bench.hear(worker, want(4));
    assert!(bench.revoked().is_empty(), "{:?}", bench.out);
    bench.submit(keyed());
    bench.hear(worker, done(next));
    assert_eq!(bench.handed().len(), 1);
}

#[test]
fn what_is_pinned_to_a_worker_waits_for_the_one_that_is_started_in_its_place() {
    let mut config = Config::default();
    config.limits.requeue_interval = Span::from_secs(60);
    let mut bench = Bench::of(config);
    let (first, other) = (bench.hello(None, Vec::new()), bench.hello(None, Vec::new()));
    for worker in [first, other] {
        bench.hear(worker, want(1));
    }
    let pinned = || TaskSpec { pin: Some(first), ..TaskSpec::default() };
    let (runs, keyed) = (bench.submit(pinned()), bench.submit(TaskSpec { key: Some(KeyId(1)), ..pinned() }));
    let waits = bench.submit(pinned());
    let status = |bench: &Bench, task| bench.coordinator.scheduler().status(task);
    // It dies; long after that it is given up, and nobody was started in its place yet.
    let lease = bench.config.limits.lease;
    for _ in 0..24 {
        assert!(bench.later(lease, &[other]).is_empty(), "nobody else gets it");
    }
    assert!(bench.coordinator.scheduler().worker_state(first).is_none(), "given up");
    for task in [runs, keyed, waits] {
        assert_eq!(status(&bench, task), Some(Status::Unschedulable), "it waits");
    }
    let again = bench.hello(None, Vec::new());
    bench.step(Input::Event(Event::Succeeds { worker: again, former: first }));
    bench.hear(again, want(4));
    let mut handed: Vec<TaskId> = bench.handed().into_iter().map(|(order, _)| order.held.task).collect();
    handed.sort();
    assert_eq!(handed, [runs, keyed, waits]);
    bench.coordinator.scheduler().check().unwrap();
    // What comes later and names the former goes the same way; so it does if it was started anew twice.
    let last = bench.hello(None, Vec::new());
    bench.step(Input::Event(Event::Succeeds { worker: last, former: again }));
    for _ in 0..24 {
        bench.later(lease, &[other, last]);
    }
    bench.hear(last, want(4));
    assert!(handed.iter().all(|task| bench.coordinator.scheduler().who_has(*task) == Some(last)));
}

#[test]
fn what_is_pinned_to_a_worker_that_never_comes_back_fails_in_the_end() {
    let mut bench = Bench::new();
    let (first, other) = (bench.hello(None, Vec::new()), bench.hello(None, Vec::new()));
    let waits = bench.submit(TaskSpec { pin: Some(first), ..TaskSpec::default() });
    let Config { limits, .. } = bench.config.clone();
    let longest = limits.lease.0 * 3 + limits.requeue_interval.0 * (u64::from(limits.max_requeue_attempts) + 2);
    let mut failed = None;
    while bench.now < Time(longest) && failed.is_none() {
        bench.later(limits.lease, &[other]);
        failed = bench.out.iter().find_map(|output| match output {
            Output::Action(Action::Persist(Record::Settled { task, status, .. })) if *task == waits => Some(*status),
            _ => None,
        });
    }
    assert_eq!(failed, Some(Status::Failed));
}

#[test]
fn one_started_in_the_place_of_another_gets_only_what_it_can_run() {
    let mut config = Config::default();
    config.limits.requeue_interval = Span::from_secs(60);
    let lease = config.limits.lease;
    let mut bench = Bench::of(config);
    let (first, other) = (bench.hello(None, Vec::new()), bench.hello(None, Vec::new()));
    let four = Demand::new([(ResourceId::CPUS, Amount::from_units(4))]);
    let wide = bench.submit(TaskSpec { pin: Some(first), demand: four, ..TaskSpec::default() });
    let narrow = bench.submit(TaskSpec { pin: Some(first), ..TaskSpec::default() });
    for _ in 0..24 {
        bench.later(lease, &[other]);
    }
    // Two were started since, and the first of them has gone already: its successor is known before it is.
    let spec = WorkerSpec { slots: 1, ..WorkerSpec::default() };
    let hello = Hello { spec, known: None, holds: Vec::new(), born: Time(99), sent: bench.now };
    bench.step(Input::Hello(Box::new(hello)));
    let last = bench.out.iter().find_map(|output| match output {
        Output::Joined { worker, .. } => Some(*worker),
        _ => None,
    });
    let (last, between) = (last.unwrap(), WorkerId::from_bits(77));
    bench.step(Input::Event(Event::Succeeds { worker: between, former: first }));
    bench.step(Input::Event(Event::Succeeds { worker: last, former: between }));
    bench.hear(last, want(2));
    assert_eq!(bench.handed().iter().map(|(order, _)| order.held.task).collect::<Vec<_>>(), [narrow]);
    assert_eq!(bench.coordinator.scheduler().status(wide), Some(Status::Unschedulable), "it has one processor");
    for _ in 0..80 {
        bench.later(lease, &[other]);
    }
    bench.coordinator.scheduler().check().unwrap();
}
