//! The worker machine alone, for what only a rare order of messages shows.

use super::{Input, Output, WorkerMachine, WorkerSpec};
use crate::capabilities::CapabilitySet;
use crate::config::Config;
use crate::event::{End, Held};
use crate::ids::ResourceId;
use crate::ids::{KindId, TaskId, WorkerId};
use crate::resources::{Amount, Demand, Vector};
use crate::task::Cause;
use crate::time::{Span, Time};
use crate::wire::{Ask, Message, Order, PeerDigest, Reason};

const FIRST: WorkerId = WorkerId::from_bits(1);

struct Bench {
    machine: WorkerMachine,
    lease: Span,
    out: Vec<Output>,
}

impl Bench {
    /// A worker with one slot that was welcomed at the start.
    fn new() -> Bench {
        Bench::of(WorkerSpec::default())
    }

    /// The same of a worker that has more.
    fn of(spec: WorkerSpec) -> Bench {
        let config = Config::default();
        let machine = WorkerMachine::new(&config, spec, 1);
        let mut bench = Bench { machine, lease: config.limits.lease, out: Vec::new() };
        bench.step(Time::ZERO, Input::Connected);
        bench.told(Time::ZERO, Message::Welcome { worker: FIRST, sent: Time::ZERO });
        bench
    }

    fn step(&mut self, at: Time, input: Input) {
        self.out.clear();
        self.machine.step(at, input, &mut self.out);
    }

    fn told(&mut self, at: Time, message: Message) {
        self.step(at, Input::Told { epoch: 1, message });
    }

    /// So many quarters of a lease from the start.
    fn quarters(&self, count: u64) -> Time {
        Time(self.lease.0 / 4 * count)
    }

    /// The number of the question it has just asked a peer.
    fn asked(&self) -> Option<u64> {
        self.out.iter().find_map(|output| match output {
            Output::Send { message: Message::Ask(ask), .. } => Some(ask.request),
            _ => None,
        })
    }

    fn runs(&self) -> usize {
        self.out.iter().filter(|output| matches!(output, Output::Run(_))).count()
    }
}

fn order(task: u64, exclusive: bool) -> Order {
    Order {
        held: Held { task: TaskId::from_bits(task), attempt: 1, hop: 0 },
        payload: task,
        index: 0,
        priority: 3,
        level: 3,
        deadline: Time::NEVER,
        rank: 0,
        sequence: task,
        kind: KindId::default(),
        expected: Span::from_secs(1),
        timeout: None,
        requires: CapabilitySet::default(),
        demand: Demand::default(),
        bound: exclusive,
        exclusive,
        begins: false,
        patient: false,
    }
}

fn hand(orders: Vec<Order>) -> Message {
    hand_as(1, orders)
}

fn hand_as(number: u64, orders: Vec<Order>) -> Message {
    Message::Hand { number, orders, nothing: false }
}

#[test]
fn a_message_that_was_long_on_its_way_does_not_show_that_the_lease_goes_on() {
    let mut bench = Bench::new();
    // It stood still for five quarters of a lease, and what came meanwhile is read now.
    bench.told(bench.quarters(5), hand(vec![order(1, true)]));
    assert_eq!(bench.runs(), 0, "the coordinator may have given it to others");
    // An answer to something sent long ago shows nothing either.
    let (late, now) = (bench.quarters(2), bench.quarters(6));
    bench.told(now, Message::Heard { sent: late, nothing: true });
    assert_eq!(bench.runs(), 0);
    bench.told(now, Message::Heard { sent: bench.quarters(5), nothing: true });
    assert_eq!(bench.runs(), 1, "now the coordinator has heard it lately");
}

#[test]
fn a_welcome_that_was_long_on_its_way_is_no_reason_to_keep_silent() {
    let mut bench = Bench::new();
    // It stood still for two leases: the coordinator has given it up, and answers none of its beats.
    let now = bench.quarters(8);
    bench.told(now, Message::Welcome { worker: FIRST, sent: Time::ZERO });
    let says_hello = |bench: &Bench| {
        bench.out.iter().any(|output| matches!(output, Output::Send { message: Message::Hello(_), .. }))
    };
    let mut hello = false;
    while let Some(due) = bench.machine.next_timer().filter(|due| *due < bench.quarters(10)) {
        bench.step(due.max(now), Input::Tick);
        hello |= says_hello(&bench);
    }
    assert!(hello, "only a hello can bring it back");
    // An answer to that, in time, is one.
    let sent = bench.quarters(9);
    bench.told(bench.quarters(10), Message::Welcome { worker: WorkerId::from_bits(7), sent });
    bench.step(bench.quarters(11), Input::Tick);
    assert!(!says_hello(&bench), "{:?}", bench.out);
}

#[test]
fn orders_that_were_joined_say_the_same() {
    let messages = || {
        [(1, 1..4u64), (2, 4..6), (3, 6..300)]
            .map(|(number, tasks)| hand_as(number, tasks.map(|task| order(task, false)).collect()))
    };
    let (mut single, mut joined) = (Bench::new(), Bench::new());
    messages().into_iter().for_each(|message| single.told(Time(1), message));
    let mut sent: Vec<Message> = Vec::new();
    for message in messages() {
        let rest = match sent.last_mut() {
            Some(last) => last.join(message),
            None => Some(message),
        };
        sent.extend(rest);
    }
    assert_eq!(sent.len(), 2, "one message takes no more than so many");
    sent.into_iter().for_each(|message| joined.told(Time(1), message));
    assert_eq!(single.machine.depth(), joined.machine.depth());
    // What it says of itself, holdings and what it has seen included.
    let due = single.machine.next_timer().unwrap();
    single.step(due, Input::Tick);
    joined.step(due, Input::Tick);
    assert!(single.out.iter().any(|output| matches!(output, Output::Send { message: Message::Beat(_), .. })));
    assert_eq!(format!("{:?}", single.out), format!("{:?}", joined.out));
}

#[test]
fn what_waits_is_dropped_by_a_worker_that_joins_anew() {
    let mut bench = Bench::new();
    bench.told(Time(1), hand(vec![order(1, false), order(2, false), order(3, true)]));
    assert_eq!((bench.machine.running(), bench.machine.depth()), (1, 2));
    let again = bench.quarters(9);
    bench.told(again, Message::Welcome { worker: WorkerId::from_bits(2), sent: again });
    assert_eq!((bench.runs(), bench.machine.running(), bench.machine.depth()), (0, 1, 0));
    // The same welcome under its old name drops nothing.
    let mut bench = Bench::new();
    bench.told(Time(1), hand(vec![order(1, false), order(2, false)]));
    bench.told(Time(2), Message::Welcome { worker: FIRST, sent: Time(2) });
    assert_eq!(bench.machine.depth(), 1);
}

#[test]
fn sums_of_queued_work_survive_tasks_that_take_for_ever() {
    let mut bench = Bench::new();
    let endless = |task| Order { expected: Span::MAX, ..order(task, false) };
    let kept = Order { bound: true, ..order(9, false) };
    bench.told(Time(1), hand((1..=8).map(endless).chain([kept]).collect()));
    assert_eq!((bench.machine.running(), bench.machine.depth()), (1, 8));
    // A thief asks: whoever answers must add up what there is.
    let resources = WorkerSpec::default().capacity();
    let ask = Ask { request: 1, capabilities: CapabilitySet::default(), resources, speed: 1.0, free: 1 };
    let message = Message::Ask(Box::new(ask));
    bench.step(Time(2), Input::Message { from: WorkerId::from_bits(7), message });
    for task in 2..=8 {
        let held = Held { task: TaskId::from_bits(task), attempt: 1, hop: 0 };
        bench.told(Time(3), Message::Revoke { held, cause: Cause::Requested });
    }
    bench.step(bench.quarters(1) + Span(3), Input::Tick);
    let beat = bench.out.iter().find_map(|output| match output {
        Output::Send { message: Message::Beat(beat), .. } => Some((beat.depth, beat.backlog)),
        _ => None,
    });
    assert_eq!(beat, Some((1, Span::from_secs(1))), "what came and went leaves nothing behind");
}

#[test]
fn a_thief_learns_from_what_it_gets_how_much_is_left() {
    let mut bench = Bench::new();
    let victim = WorkerId::from_bits(7);
    // The digest was made when the first tasks of many had come there.
    let peer = PeerDigest { worker: victim, depth: 4, backlog: Span::from_secs(4), load: 1.0 };
    bench.told(Time(1), Message::Digest(vec![peer]));
    bench.told(Time(2), Message::Heard { sent: Time(1), nothing: true });
    for round in 0..10 {
        let request = bench.asked().unwrap_or_else(|| panic!("nobody was asked in round {round}: {:?}", bench.out));
        let (at, task) = (Time(10 * round + 3), round + 1);
        let orders = vec![Order { held: Held { hop: 1, ..order(task, false).held }, ..order(task, false) }];
        let depth = 1000 - round as u32;
        bench.step(at, Input::Message { from: victim, message: Message::Offer { request, orders, depth } });
        assert_eq!(bench.runs(), 1);
        bench.step(at + Span(5), Input::Ended { task: TaskId::from_bits(task), attempt: 1, end: End::Done });
    }
}

#[test]
fn a_victim_that_has_not_got_its_tasks_yet_is_asked_again() {
    let mut bench = Bench::new();
    let victim = WorkerId::from_bits(7);
    let peer = PeerDigest { worker: victim, depth: 1000, backlog: Span::from_secs(1000), load: 1.0 };
    bench.told(Time(1), Message::Digest(vec![peer]));
    bench.told(Time(2), Message::Heard { sent: Time(1), nothing: true });
    // The digest was faster than what it speaks of, or it is wrong: whenever the victim is asked it has nothing.
    let (mut asks, mut last) = (0, Time::ZERO);
    let mut now = Time(3);
    while now < bench.quarters(1) {
        if let Some(request) = bench.asked() {
            (asks, last) = (asks + 1, now);
            let message = Message::Refuse { request, reason: Reason::TooLittle, depth: 0 };
            bench.step(now, Input::Message { from: victim, message });
            continue;
        }
        now = bench.machine.next_timer().unwrap();
        bench.step(now, Input::Tick);
    }
    assert!(asks > 1, "it is not asked again");
    assert!(last < Time(Span::from_millis(500).0), "after a while it is believed, not at {last:?}");
}

impl Bench {
    fn end(&mut self, at: Time, task: u64, end: End) {
        self.step(at, Input::Ended { task: TaskId::from_bits(task), attempt: 1, end });
    }

    /// The tasks whose ends it has just told the coordinator.
    fn told_of(&self) -> Vec<u64> {
        let ended = |output: &Output| match output {
            Output::Send { message: Message::Ended { held, .. }, .. } => Some(held.task.to_bits()),
            _ => None,
        };
        self.out.iter().filter_map(ended).collect()
    }
}

#[test]
fn good_ends_of_short_tasks_are_told_several_at_a_time_and_none_late() {
    let mut bench = Bench::new();
    let (short, patience) = (Span::from_micros(600), Span::from_millis(8));
    let mut now = Time(1);
    bench.told(now, hand((1..=30).map(|task| order(task, false)).collect()));
    let (mut ended, mut told, mut reports) = (Vec::new(), Vec::new(), 0);
    for task in 1..=30 {
        let due = bench.machine.next_timer().unwrap();
        if due < now + short {
            bench.step(due, Input::Tick);
            reports += usize::from(!bench.told_of().is_empty());
            told.extend(bench.told_of());
        }
        now = now + short;
        bench.end(now, task, End::Done);
        ended.push((task, now));
        assert_eq!(bench.runs(), usize::from(task < 30), "whatever is told, the next one begins at once");
        reports += usize::from(!bench.told_of().is_empty());
        told.extend(bench.told_of());
        let oldest = ended.iter().find(|(task, _)| !told.contains(task));
        assert!(oldest.is_none_or(|(_, at)| *at + patience > now), "{oldest:?} is still not told at {now:?}");
    }
    assert_eq!(told, (1..=30).collect::<Vec<u64>>(), "each once, and all when there is nothing left to do");
    assert!((3..=10).contains(&reports), "told in {reports} reports");
}

#[test]
fn ends_that_nobody_waits_for_are_told_later_and_with_any_other() {
    let (short, quick) = (Span::from_micros(600), Span::from_millis(8));
    // When the ends of the tasks from the third on are told, of which the one given is not patient.
    let told = |awaited: Option<u64>| {
        let mut bench = Bench::new();
        let patient = |task| Order { patient: awaited != Some(task), ..order(task, false) };
        bench.told(Time(1), hand((1..=100).map(patient).collect()));
        let (mut now, mut third) = (Time(1), None);
        for task in 1..=100 {
            now = now + short;
            if let Some(due) = bench.machine.next_timer().filter(|due| *due < now) {
                bench.step(due, Input::Tick);
                if bench.told_of().contains(&3) {
                    return due.since(third.unwrap());
                }
            }
            bench.end(now, task, End::Done);
            if task == 3 {
                third = Some(now);
            }
            assert!(!bench.told_of().contains(&3), "not by an end");
        }
        panic!("it is told");
    };
    let alone = told(None);
    assert!(alone > quick && alone <= Span::from_millis(25), "{alone}");
    assert!(told(Some(3)) <= quick, "somebody waits for it");
    let with = told(Some(6));
    assert!(with > quick && with < alone, "{with}: together with what somebody waits for, and {alone} alone");
}

#[test]
fn ends_of_long_tasks_are_told_at_once() {
    let mut bench = Bench::new();
    bench.told(Time(1), hand((1..=5).map(|task| order(task, false)).collect()));
    for task in 1..=4 {
        bench.end(Time(Span::from_millis(10 * task).0), task, End::Done);
        assert_eq!(bench.told_of(), [task]);
    }
}

#[test]
fn what_others_may_have_to_act_on_is_told_at_once() {
    let mut bench = Bench::new();
    let orders = (1..=9).map(|task| order(task, task == 7));
    bench.told(Time(1), hand(orders.collect()));
    let at = |task: u64| Time(Span::from_micros(500 * task).0);
    // The first is told, since nothing is known of how long such tasks take.
    bench.end(at(1), 1, End::Done);
    for task in 2..=3 {
        bench.end(at(task), task, End::Done);
        assert!(bench.told_of().is_empty());
    }
    bench.end(at(4), 4, End::Failed { retry: true });
    assert_eq!(bench.told_of(), [2, 3, 4], "a failure takes along what waited");
    for task in 5..=6 {
        bench.end(at(task), task, End::Done);
    }
    bench.end(at(7), 7, End::Done);
    assert_eq!(bench.told_of().last(), Some(&7), "others may wait for what must not run twice");
    // Whoever is asked what it holds says first what it holds no longer.
    bench.end(at(8), 8, End::Done);
    bench.told(at(8), Message::Show { number: 1 });
    let said = |output: &Output| matches!(output, Output::Send { message: Message::Holds { .. }, .. });
    assert!(bench.out.last().is_some_and(said), "{:?}", bench.out);
}

#[test]
fn a_thief_tells_of_its_end_with_what_comes_of_its_question() {
    let (victim, now) = (WorkerId::from_bits(7), Time(Span::from_secs(1).0));
    let offer = |bench: &Bench, task: u64| {
        let request = bench.asked().expect("it asks its peer");
        let orders = vec![Order { held: Held { hop: 1, ..order(task, false).held }, ..order(task, false) }];
        Input::Message { from: victim, message: Message::Offer { request, orders, depth: 3 } }
    };
    // It has asked the coordinator in vain, and runs what it has stolen.
    let hungry = || {
        let mut bench = Bench::new();
        let peer = PeerDigest { worker: victim, depth: 4, backlog: Span::from_secs(4), load: 1.0 };
        bench.told(Time(1), Message::Digest(vec![peer]));
        bench.told(Time(2), Message::Heard { sent: Time(1), nothing: true });
        bench.step(Time(3), offer(&bench, 1));
        bench.end(now, 1, End::Done);
        assert!(bench.asked().is_some() && bench.told_of().is_empty(), "{:?}", bench.out);
        bench
    };
    let mut bench = hungry();
    bench.step(now + Span(1), offer(&bench, 2));
    assert_eq!((bench.told_of(), bench.runs()), (vec![1], 1));
    // Without an answer it does not wait for long.
    let mut bench = hungry();
    let due = bench.machine.next_timer().unwrap();
    assert!(due.since(now) <= Span::from_millis(2));
    bench.step(due, Input::Tick);
    assert_eq!(bench.told_of(), [1]);
}

/// What it has just told the coordinator of ends (`-` and the task), moves (`>`) and beginnings (`+`).
fn told_in_order(bench: &Bench) -> String {
    let told = bench.out.iter().filter_map(|output| match output {
        Output::Send { message: Message::Ended { held, .. }, .. } => Some(format!("-{}", held.task.to_bits())),
        Output::Send { message: Message::Moved { held, .. }, .. } => Some(format!(">{}", held.task.to_bits())),
        Output::Send { message: Message::Began(held), .. } => Some(format!("+{}", held.task.to_bits())),
        _ => None,
    });
    told.collect::<Vec<_>>().join(" ")
}

#[test]
fn a_thief_whose_ends_nobody_waits_for_tells_of_several_together_and_in_their_order() {
    let victim = WorkerId::from_bits(7);
    // What it tells at once in twelve steals of tasks of a millisecond, some of which may be waited for.
    let told = |awaited: fn(u64) -> bool| {
        let mut bench = Bench::new();
        let peer = PeerDigest { worker: victim, depth: 99, backlog: Span::from_secs(99), load: 1.0 };
        bench.told(Time(1), Message::Digest(vec![peer]));
        bench.told(Time(2), Message::Heard { sent: Time(1), nothing: true });
        let mut told = Vec::new();
        for task in 1..=12 {
            let now = Time(Span::from_millis(task).0);
            let request = bench.asked().expect("it asks its peer");
            let order = Order { patient: !awaited(task), ..order(task, false) };
            let orders = vec![Order { held: Held { hop: 1, ..order.held }, ..order }];
            bench.step(now, Input::Message { from: victim, message: Message::Offer { request, orders, depth: 50 } });
            assert_eq!(bench.runs(), 1);
            told.push(told_in_order(&bench));
            let ends = now + Span::from_millis(1);
            if let Some(due) = bench.machine.next_timer().filter(|due| *due < ends) {
                bench.step(due, Input::Tick);
                told.push(told_in_order(&bench));
            }
            bench.end(ends, task, End::Done);
            told.push(told_in_order(&bench));
        }
        told.retain(|told| !told.is_empty());
        told.join(" | ")
    };
    // Nothing is known of how long such tasks take before the first has ended, and then it wishes for more. After that it is 8 ms.
    assert_eq!(told(|_| false), ">1 +1 | -1 | >2 -2 >3 -3 >4 -4 >5 -5 >6 -6 >7 -7 >8 -8 >9 -9");
    assert_eq!(told(|task| task == 4), ">1 +1 | -1 | >2 -2 >3 -3 >4 -4 >5 +5");
    assert_eq!(
        told(|task| task > 9),
        ">1 +1 | -1 | >2 -2 >3 -3 >4 -4 >5 -5 >6 -6 >7 -7 >8 -8 >9 -9 | >10 -10 >11 +11 | -11 >12 +12"
    );
}

#[test]
fn a_victim_tells_of_what_it_passed_on_with_its_next_report() {
    let thief = WorkerId::from_bits(7);
    let passes_on = |each: Span| {
        let mut bench = Bench::new();
        bench.told(Time(1), hand((1..=50).map(|task| order(task, false)).collect()));
        let now = Time(1) + each;
        bench.end(now, 1, End::Done);
        let ask = Ask {
            request: 1,
            capabilities: CapabilitySet::default(),
            resources: Vector::default(),
            speed: 1.0,
            free: 1,
        };
        bench.step(now, Input::Message { from: thief, message: Message::Ask(Box::new(ask)) });
        let offered = bench.out.iter().find_map(|output| match output {
            Output::Send { message: Message::Offer { orders, .. }, .. } => Some(orders[0].held),
            _ => None,
        });
        let holds = vec![offered.expect("it has plenty")];
        bench.step(now, Input::Message { from: thief, message: Message::Accept { holds } });
        (told_in_order(&bench), bench)
    };
    assert!(passes_on(Span::from_secs(1)).0.starts_with('>'), "it will not report for long");
    let (told, mut bench) = passes_on(Span::from_micros(500));
    assert_eq!(told, "");
    let due = bench.machine.next_timer().unwrap();
    assert!(due <= Time(1) + Span::from_micros(500) + Span::from_millis(8));
    bench.step(due, Input::Tick);
    assert!(told_in_order(&bench).contains('>'), "{:?}", bench.out);
    let (_, mut bench) = passes_on(Span::from_micros(500));
    bench.step(Time(1) + Span::from_micros(501), Input::Drain);
    assert!(told_in_order(&bench).starts_with('>'), "who leaves says it before: {:?}", bench.out);
    bench.end(Time(1) + Span::from_millis(1), 2, End::Done);
    assert_eq!(bench.told_of(), [2], "and tells of each end at once");
}

#[test]
fn who_knows_nobody_to_ask_waits_for_news_and_for_no_timer() {
    let mut bench = Bench::new();
    bench.told(Time(1), Message::Heard { sent: Time(1), nothing: true });
    assert_eq!(bench.asked(), None);
    // All that is left to do is to beat.
    assert_eq!(bench.machine.next_timer(), Some(bench.quarters(1)));
    let busy = PeerDigest { worker: WorkerId::from_bits(2), depth: 9, backlog: Span::from_secs(9), load: 1.0 };
    bench.told(Time(2), Message::Digest(vec![busy]));
    let request = bench.asked().expect("somebody has something now");
    // It cannot be reached, so it is forgotten, and nobody else is known.
    bench.step(Time(3), Input::Unreachable(busy.worker));
    assert_eq!((bench.asked(), bench.machine.next_timer()), (None, Some(bench.quarters(1))));
    // An answer that comes late is news too.
    let message = Message::Refuse { request, reason: Reason::TooLittle, depth: 9 };
    bench.step(Time(4), Input::Message { from: busy.worker, message });
    assert!(bench.asked().is_some());
}

#[test]
fn who_does_not_answer_is_asked_again_but_not_for_ever() {
    let mut bench = Bench::new();
    bench.told(Time(1), Message::Heard { sent: Time(1), nothing: true });
    let busy = PeerDigest { worker: WorkerId::from_bits(2), depth: 40, backlog: Span::from_secs(40), load: 1.0 };
    bench.told(Time(2), Message::Digest(vec![busy]));
    let mut questions = vec![Time(2)];
    assert!(bench.asked().is_some());
    while let Some(due) = bench.machine.next_timer().filter(|due| *due < bench.quarters(1)) {
        bench.step(due, Input::Tick);
        questions.extend(bench.asked().map(|_| due));
    }
    // While it counts for 40, 20, 10, 5, 2 and 1.
    assert_eq!(questions.len(), 6, "{questions:?}");
    assert!(
        questions[1].since(questions[0]) < Span::from_secs(1),
        "soon, as it may have been one message that was lost"
    );
}

impl Bench {
    /// How many tasks it has just said that it likes to have.
    fn wants(&self) -> Option<u32> {
        self.out.iter().find_map(|output| match output {
            Output::Send { message: Message::Want { count, .. }, .. } => Some(*count),
            Output::Send { message: Message::Beat(beat), .. } => Some(beat.wants),
            _ => None,
        })
    }

    fn says_begun(&self) -> bool {
        self.out.iter().any(|output| matches!(output, Output::Send { message: Message::Began(_), .. }))
    }
}

#[test]
fn what_begins_when_it_comes_is_not_said_to_have_begun() {
    let begins = |task| Order { begins: true, ..order(task, false) };
    let mut bench = Bench::new();
    bench.told(Time(1), hand(vec![begins(1)]));
    assert!(bench.runs() == 1 && !bench.says_begun(), "{:?}", bench.out);
    // Its only slot is taken, whatever the coordinator believed.
    bench.told(Time(2), hand_as(2, vec![begins(2)]));
    assert_eq!(bench.runs(), 0);
    bench.end(Time(5), 1, End::Done);
    assert!(bench.runs() == 1 && bench.says_begun(), "{:?}", bench.out);
    // What need not begin at once is told in any case.
    let mut bench = Bench::new();
    bench.told(Time(1), hand(vec![order(1, false)]));
    assert!(bench.runs() == 1 && bench.says_begun());
}

#[test]
fn it_likes_to_have_none_ahead_of_need_where_its_slots_would_hardly_miss_it() {
    let mut bench = Bench::new();
    assert_eq!(bench.wants(), Some(2), "nobody knows how long its tasks take");
    // A round trip takes 2 ms.
    bench.told(Time(2_000_000), Message::Heard { sent: Time::ZERO, nothing: false });
    let mut wish = |length: Span, first: u64| {
        let mut now = bench.quarters(first);
        for task in first * 100..first * 100 + 50 {
            bench.told(now, hand_as(task, vec![order(task, false)]));
            now = now + length;
            bench.end(now, task, End::Done);
        }
        bench.machine.wish()
    };
    assert_eq!(wish(Span::from_millis(1000), 1), 1, "it misses two thousandths of its time");
    assert_eq!(wish(Span::from_millis(20), 20), 2);
    let many = wish(Span::from_millis(1), 30);
    assert!((18..=20).contains(&many), "{many}: as many end while two reports wait and an answer is on its way");
}

#[test]
fn who_leaves_says_so_before_it_gives_back_what_waits() {
    let mut bench = Bench::new();
    bench.told(Time(1), hand((1..=3).map(|task| order(task, false)).collect()));
    bench.step(Time(2), Input::Drain);
    let wants = |output: &Output| matches!(output, Output::Send { message: Message::Want { count: 0, .. }, .. });
    assert!(bench.out.first().is_some_and(wants), "{:?}", bench.out);
    assert_eq!(bench.told_of(), [2, 3]);
    bench.step(Time(3), Input::Drain);
    assert_eq!(bench.wants(), None, "it is said once");
}

#[test]
fn an_end_is_said_again_with_the_second_beat_unless_it_is_noted() {
    let mut bench = Bench::new();
    bench.told(Time(1), hand(vec![order(1, false), order(2, false)]));
    bench.end(Time(2), 1, End::Done);
    bench.end(Time(3), 2, End::Done);
    bench.step(bench.quarters(1), Input::Tick);
    assert!(bench.told_of().is_empty(), "that they are noted is on its way, in answer to this beat");
    bench.told(bench.quarters(1), Message::Noted(order(1, false).held));
    for quarter in 2..4 {
        bench.step(bench.quarters(quarter), Input::Tick);
        assert_eq!(bench.told_of(), [2]);
    }
    // Where it is welcomed, what it said before may be lost.
    bench.told(bench.quarters(4), hand_as(2, vec![order(3, false)]));
    bench.end(bench.quarters(4) + Span(1), 3, End::Done);
    bench.told(bench.quarters(4) + Span(2), Message::Welcome { worker: FIRST, sent: bench.quarters(4) });
    assert_eq!(bench.told_of(), [2, 3]);
}

/// A worker with eight cores and slots that knows a victim with much to do.
fn wide_thief() -> (Bench, WorkerId) {
    let config = Config::default();
    let cores = (ResourceId(0), Amount::from_f64(8.0));
    let spec = WorkerSpec { slots: 8, resources: Vector::new([cores]), ..WorkerSpec::default() };
    let mut bench =
        Bench { machine: WorkerMachine::new(&config, spec, 1), lease: config.limits.lease, out: Vec::new() };
    bench.step(Time::ZERO, Input::Connected);
    bench.told(Time::ZERO, Message::Welcome { worker: FIRST, sent: Time::ZERO });
    (bench, WorkerId::from_bits(7))
}

fn wide(task: u64, cores: f64) -> Order {
    Order { demand: Demand::new([(ResourceId(0), Amount::from_f64(cores))]), ..order(task, false) }
}

fn digest_of(victim: WorkerId) -> Message {
    let peer = PeerDigest { worker: victim, depth: 100, backlog: Span::from_secs(100), load: 1.0 };
    Message::Digest(vec![peer])
}

#[test]
fn a_thief_says_what_it_has_free_and_gets_what_it_can_begin() {
    let (mut bench, victim) = wide_thief();
    bench.told(Time(1), hand(vec![wide(1, 5.0)]));
    bench.told(Time(1), digest_of(victim));
    bench.told(Time(2), Message::Heard { sent: Time(1), nothing: true });
    let ask = bench.out.iter().find_map(|output| match output {
        Output::Send { message: Message::Ask(ask), .. } => Some(ask.clone()),
        _ => None,
    });
    let ask = ask.expect("it has seven free slots");
    assert_eq!(ask.resources.get(ResourceId(0)), Amount::from_f64(3.0));
    // The victim has wide tasks first, and narrow ones.
    let (mut bench, _) = wide_thief();
    let narrow = (10..=20).map(|task| wide(task, 2.0));
    bench.told(
        Time(1),
        hand([wide(1, 8.0)].into_iter().chain((2..=9).map(|task| wide(task, 8.0))).chain(narrow).collect()),
    );
    bench.step(Time(2), Input::Message { from: victim, message: Message::Ask(ask) });
    let offered: Vec<u64> = bench
        .out
        .iter()
        .filter_map(|output| match output {
            Output::Send { message: Message::Offer { orders, .. }, .. } => Some(orders),
            _ => None,
        })
        .flatten()
        .map(|order| order.held.task.to_bits())
        .collect();
    assert!(!offered.is_empty() && offered.iter().all(|task| *task >= 10), "no wide one: {offered:?}");
}

#[test]
fn who_gets_no_answer_asks_the_next_after_a_pause_and_not_more_often_than_it_may() {
    let config = Config::default();
    let mut bench = Bench::new();
    let peers = |range: std::ops::Range<u64>| {
        let digest = range.map(|peer| PeerDigest {
            worker: WorkerId::from_bits(peer),
            depth: 100,
            backlog: Span::from_secs(100),
            load: 1.0,
        });
        Message::Digest(digest.collect())
    };
    bench.told(Time(1), peers(10..26));
    bench.told(Time(2), Message::Heard { sent: Time(1), nothing: true });
    let mut asked = Vec::new();
    let (mut now, end) = (Time(2), bench.quarters(1));
    while now < end {
        if bench.asked().is_some() {
            asked.push(now);
        }
        now = bench.machine.next_timer().unwrap();
        bench.step(now, Input::Tick);
    }
    let stealing = &config.stealing;
    let shortest = |base: Span| base.mul_f64(1.0 - stealing.backoff_jitter);
    let searches = asked.chunks(stealing.max_retries as usize);
    let mut last_end: Option<Time> = None;
    for search in searches {
        for (tries, pair) in search.windows(2).enumerate() {
            let pause = pair[1].since(pair[0] + stealing.steal_timeout);
            let least = shortest(Span(stealing.retry_backoff.0 << tries));
            assert!(pause >= least, "try {tries} came {pause} after the one before was given up: {asked:?}");
        }
        if let Some(last) = last_end {
            let pause = search[0].since(last);
            assert!(pause >= shortest(stealing.backoff_base), "the next search came after {pause}: {asked:?}");
        }
        last_end = Some(search[search.len() - 1] + stealing.steal_timeout);
    }
    assert!(asked.len() > 2 * stealing.max_retries as usize, "it goes on: {asked:?}");
}

#[test]
fn what_runs_together_has_accelerators_of_its_own() {
    let gpus = |amount: f64| Demand::new([(ResourceId::GPUS, Amount::from_f64(amount))]);
    let spec = WorkerSpec {
        slots: 8,
        resources: Vector::new([(ResourceId::GPUS, Amount::from_units(3))]),
        ..WorkerSpec::default()
    };
    let mut bench = Bench::of(spec);
    let needs = [1.0, 0.5, 0.5, 0.0, 0.6, 2.0, 0.5];
    let order = |(task, amount): (u64, f64)| {
        let demand = if amount > 0.0 { gpus(amount) } else { Demand::default() };
        Order { demand, ..order(task, false) }
    };
    bench.told(Time(1), hand((1..).zip(needs).map(order).collect()));
    let has = |bench: &Bench, task: u64| bench.machine.devices_of(TaskId::from_bits(task)).to_vec();
    let all: Vec<Vec<u16>> = (1..=7).map(|task| has(&bench, task)).collect();
    // Shares fill up one; what wants two waits, and so does what comes after it.
    let none = Vec::new;
    assert_eq!(all, [vec![0], vec![1], vec![1], none(), vec![2], none(), none()]);
    assert_eq!(bench.runs(), 5);
    bench.end(Time(2), 5, End::Done);
    assert_eq!((bench.runs(), has(&bench, 5)), (0, none()), "nobody passes what is wide");
    bench.end(Time(3), 1, End::Done);
    assert_eq!((has(&bench, 6), has(&bench, 7)), (vec![0, 2], none()));
    bench.end(Time(4), 3, End::Done);
    assert_eq!(has(&bench, 7), [1], "beside the other half");
}
