//! What goes over the wire and into the store: pinned byte by byte, unharmed by the way there and back, and safe from
//! bytes that somebody made up.
#![allow(clippy::unwrap_used, reason = "a test")]

use filch_core::journal::Detail;
use filch_core::wire::{Ask, Beat, Frame, Group, Hello, Message, Order, PeerDigest, Reason, VERSION, WireError};
use filch_core::{
    AffinityId, Amount, CapabilityId, Cause, Demand, End, Held, JobId, KeyId, KindId, LoadReport, ParentFailure,
    Priority, Record, ResourceId, RetryTerms, Span, Status, TaskId, TaskSpec, Time, TypeId, Vector, WorkerId,
    WorkerSpec,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

fn held(task: u64, attempt: u32, hop: u32) -> Held {
    Held { task: TaskId::from_bits(task), attempt, hop }
}

fn worker(bits: u64) -> WorkerId {
    WorkerId::from_bits(bits)
}

fn order(number: u64) -> Order {
    Order {
        held: held(number, 1, 0),
        payload: 100 + number,
        index: number as u32,
        priority: 3,
        level: 3,
        deadline: Time::NEVER,
        rank: u32::MAX,
        sequence: 50 + number,
        kind: KindId(2),
        expected: Span::from_secs(1),
        timeout: Some(Span::from_secs(60)),
        requires: [CapabilityId(1), CapabilityId(4)].into_iter().collect(),
        demand: Demand::new([(ResourceId::CPUS, Amount::from_units(2))]),
        bound: false,
        exclusive: false,
        begins: false,
        patient: false,
    }
}

fn spec() -> WorkerSpec {
    WorkerSpec {
        tag: 9,
        capabilities: [CapabilityId(0), CapabilityId(3)].into_iter().collect(),
        resources: Vector::new([(ResourceId::CPUS, Amount::from_units(8))]),
        slots: 4,
        speed: 1.5,
        cost_rate: 1.0,
        weight: 2.0,
    }
}

fn task() -> TaskSpec {
    TaskSpec {
        payload: 7,
        kind: KindId(1),
        task_type: TypeId(2),
        priority: Priority::MAX,
        requires: [CapabilityId(5)].into_iter().collect(),
        skills: [CapabilityId(6)].into_iter().collect(),
        demand: Demand::new([(ResourceId::GPUS, Amount::from_f64(0.5))]),
        key: Some(KeyId(3)),
        exclusive: true,
        idempotent: true,
        estimate: Some(Span::from_millis(5)),
        deadline: Some(Time(1_000_000)),
        timeout: Some(Span::from_secs(1)),
        retry: Some(RetryTerms { max_retries: 2, backoff: Span(10), backoff_max: Span(20) }),
        affinity: [(AffinityId(4), Span(30))].into_iter().collect(),
        pin: Some(worker(11)),
        seeded: Some(worker(12)),
        parent: Some(TaskId::from_bits(13)),
        after: [TaskId::from_bits(14), TaskId::from_bits(2)].into_iter().collect(),
        on_parent_failure: ParentFailure::Skip,
        job: Some(JobId::from_bits(15)),
    }
}

/// Every message there is, with something in every field.
fn messages() -> Vec<(&'static str, Message)> {
    let beat = Beat {
        load: LoadReport { cpu: 0.5, memory: 0.25 },
        depth: 3,
        backlog: Span::from_secs(4),
        wants: 2,
        holds: 5,
        fingerprint: 0x0123_4567_89ab_cdef,
        sent: Time(1_000),
    };
    let begins = Order { begins: true, ..order(5) };
    let patient = Order { patient: true, ..order(6) };
    let ask = Ask { request: 5, capabilities: spec().capabilities, resources: spec().resources, speed: 2.0, free: 3 };
    let hello =
        Hello { spec: spec(), known: Some(worker(6)), holds: vec![held(1, 2, 3)], born: Time(5), sent: Time(8) };
    let peer = |bits, load| PeerDigest { worker: worker(bits), depth: 4, backlog: Span::from_secs(2), load };
    vec![
        ("hello", Message::Hello(Box::new(hello))),
        ("welcome", Message::Welcome { worker: worker(6), sent: Time(8) }),
        ("beat", Message::Beat(Box::new(beat))),
        ("heard", Message::Heard { sent: Time(9), nothing: true }),
        ("want", Message::Want { count: 4, sent: Time(10) }),
        ("nothing", Message::Nothing),
        ("hand", Message::Hand { number: 18, orders: vec![order(1), order(2), begins], nothing: true }),
        ("hand patient", Message::Hand { number: 19, orders: vec![patient], nothing: false }),
        ("revoke", Message::Revoke { held: held(1, 1, 0), cause: Cause::Requested }),
        ("began", Message::Began(held(1, 1, 0))),
        ("ended", Message::Ended { held: held(1, 1, 0), ran: Span(77), end: End::Failed { retry: true } }),
        ("noted", Message::Noted(held(1, 1, 0))),
        ("moved", Message::Moved { held: held(1, 1, 1), to: worker(7) }),
        ("show", Message::Show { number: 3 }),
        ("holds", Message::Holds { number: 3, seen: 18, holds: vec![held(5, 1, 0), held(2, 1, 4)] }),
        ("whose", Message::Whose { held: held(1, 1, 1), thief: worker(7) }),
        ("deny", Message::Deny { held: held(1, 1, 1) }),
        ("denied", Message::Denied { held: held(1, 1, 1) }),
        ("ruling", Message::Ruling { held: held(1, 1, 1), yours: true }),
        ("digest", Message::Digest(vec![peer(7, 0.5), peer(8, 1.0)])),
        ("ask", Message::Ask(Box::new(ask))),
        ("offer", Message::Offer { request: 5, orders: vec![order(4)], depth: 3 }),
        ("refuse", Message::Refuse { request: 5, reason: Reason::NothingFits, depth: 1 }),
        ("accept", Message::Accept { holds: vec![held(4, 1, 1)] }),
    ]
}

/// Every record there is, with what is stored beside it.
fn records() -> Vec<(&'static str, Record, Stored)> {
    let (task_id, job) = (TaskId::from_bits(3 << 32 | 21), JobId::from_bits(15));
    let assigned = Record::Assigned { task: task_id, attempt: 1, worker: worker(7), at: Time(60) };
    let (status, cause) = (Status::Failed, Cause::TimedOut);
    vec![
        ("joined", Record::Joined { worker: worker(7), tag: 9 }, Stored::Worker(spec())),
        ("left", Record::Left { worker: worker(7) }, Stored::Nothing),
        ("opened", Record::Opened { job, weight: 1.5 }, Stored::Nothing),
        ("closed", Record::Closed { job }, Stored::Nothing),
        ("submitted", Record::Submitted { task: task_id, payload: 7, at: Time(50) }, Stored::Task(Box::new(task()))),
        ("member", Record::Member { task: task_id, job, index: 4, rank: 99 }, Stored::Nothing),
        ("after", Record::After { task: task_id, parent: TaskId::from_bits(2) }, Stored::Nothing),
        (
            "array",
            Record::ArraySubmitted { job, count: 1000, payload: 7, at: Time(51) },
            Stored::Task(Box::new(task())),
        ),
        ("element", Record::Element { task: task_id, job, index: 5 }, Stored::Nothing),
        (
            "elements_settled",
            Record::ElementsSettled { job, from: 6, to: 9, status, cause, at: Time(52) },
            Stored::Nothing,
        ),
        ("key_limit", Record::KeyLimit { key: KeyId(3), limit: 2 }, Stored::Nothing),
        ("assigned", assigned, Stored::Nothing),
        ("retrying", Record::Retrying { task: task_id, attempt: 1, retries: 1, until: Time(70) }, Stored::Nothing),
        ("settled", Record::Settled { task: task_id, attempt: 2, status, cause, at: Time(80) }, Stored::Nothing),
    ]
}

#[derive(Clone, Debug, PartialEq)]
enum Stored {
    Nothing,
    Task(Box<TaskSpec>),
    Worker(WorkerSpec),
}

impl Stored {
    fn detail(&self) -> Detail<'_> {
        match self {
            Stored::Nothing => Detail::None,
            Stored::Task(spec) => Detail::Task(spec),
            Stored::Worker(spec) => Detail::Worker(spec),
        }
    }
}

fn encode(records: &[(Record, Stored)]) -> Vec<u8> {
    let mut group = Group::default();
    for (record, stored) in records {
        group.push(record, stored.detail());
    }
    assert_eq!(group.len(), records.len());
    group.encode()
}

fn decode(bytes: &[u8]) -> Result<Vec<(Record, Stored)>, WireError> {
    let mut read = Vec::new();
    Group::replay(bytes, |record, detail| {
        let stored = match detail {
            Detail::None => Stored::Nothing,
            Detail::Task(spec) => Stored::Task(Box::new(spec.clone())),
            Detail::Worker(spec) => Stored::Worker(spec.clone()),
        };
        read.push((*record, stored));
    })?;
    Ok(read)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// If this fails, a node of this version and one of the last no longer understand each other, or an old store is no
/// longer read: raise `wire::VERSION` and say how the old is migrated, or give what is new a number of its own.
#[test]
fn the_bytes_are_what_they_always_were() {
    // Other bytes, or the same with another meaning, are another version: who speaks the one before must be refused.
    let mut golden = format!("version {VERSION}\n");
    for (name, message) in messages() {
        let frame = Frame { epoch: 2, messages: vec![message] };
        golden += &format!("message {name} {}\n", hex(&frame.encode()));
    }
    for (name, record, stored) in records() {
        golden += &format!("record {name} {}\n", hex(&encode(&[(record, stored)])));
    }
    if std::env::var_os("FILCH_UPDATE").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/wire.txt");
        std::fs::write(path, &golden).unwrap();
    }
    let known = include_str!("golden/wire.txt");
    for (now, then) in golden.lines().zip(known.lines()) {
        assert_eq!(now, then);
    }
    assert_eq!(golden.lines().count(), known.lines().count());
}

#[test]
fn a_frame_with_everything_comes_back_in_order() {
    let all: Vec<Message> = messages().into_iter().map(|(_, message)| message).collect();
    let frame = Frame { epoch: 3, messages: all.iter().chain(&all).cloned().collect() };
    assert_eq!(Frame::decode(&frame.encode()), Ok(frame));
    let records: Vec<(Record, Stored)> = records().into_iter().map(|(_, record, stored)| (record, stored)).collect();
    let twice: Vec<_> = records.iter().chain(&records).cloned().collect();
    let read = decode(&encode(&twice)).unwrap();
    same_but_for_the_order(&twice, &read);
}

/// Each record is there, and those about one task, or about more than tasks, are in their order.
fn same_but_for_the_order(written: &[(Record, Stored)], read: &[(Record, Stored)]) {
    fn tasks(record: &Record) -> Vec<TaskId> {
        match *record {
            Record::Submitted { task, .. }
            | Record::Member { task, .. }
            | Record::Element { task, .. }
            | Record::Assigned { task, .. }
            | Record::Retrying { task, .. }
            | Record::Settled { task, .. } => vec![task],
            Record::After { task, parent } => vec![task, parent],
            _ => Vec::new(),
        }
    }
    assert_eq!(written.len(), read.len());
    let mut all: Vec<TaskId> = written.iter().flat_map(|(record, _)| tasks(record)).collect();
    all.sort();
    all.dedup();
    for task in all {
        let of_it = |records: &[(Record, Stored)]| -> Vec<(Record, Stored)> {
            records.iter().filter(|(record, _)| tasks(record).contains(&task)).cloned().collect()
        };
        assert_eq!(of_it(written), of_it(read), "of {task}");
    }
    // Whatever is about more than tasks parts them all: before it are the same records.
    let fixed = |records: &[(Record, Stored)]| -> Vec<(usize, (Record, Stored))> {
        records.iter().cloned().enumerate().filter(|(_, (record, _))| tasks(record).is_empty()).collect()
    };
    assert_eq!(fixed(written), fixed(read));
}

/// Submissions and ends that come by turns still take a few bytes each.
#[test]
fn records_by_turns_take_few_bytes_each() {
    let mut records = Vec::new();
    let at = Time(5);
    for slot in 0..1000u64 {
        let (task, before) = (TaskId::from_bits(2 << 32 | slot), TaskId::from_bits(1 << 32 | slot));
        let (status, cause) = (Status::Completed, Cause::None);
        records.push((Record::Settled { task: before, attempt: 1, status, cause, at }, Stored::Nothing));
        let spec = TaskSpec { payload: slot, ..TaskSpec::default() };
        records.push((Record::Submitted { task, payload: slot, at }, Stored::Task(Box::new(spec))));
        records.push((Record::Assigned { task, attempt: 1, worker: worker(3), at }, Stored::Nothing));
    }
    let bytes = encode(&records);
    assert!(bytes.len() < 8_000, "{} bytes for a thousand of each", bytes.len());
    same_but_for_the_order(&records, &decode(&bytes).unwrap());
}

/// DESIGN: columns, so that many of a kind cost little.
#[test]
fn many_of_a_kind_take_few_bytes_each() {
    let count = 10_000;
    let orders = (0..count).map(order).collect();
    let bytes = Frame { epoch: 1, messages: vec![Message::Hand { number: 1, orders, nothing: false }] }.encode().len();
    assert!(bytes < 5 * count as usize, "{bytes} bytes for {count} orders");
    let ended = |number| Message::Ended { held: held(number, 1, 0), ran: Span(1_234_567), end: End::Done };
    let bytes = Frame { epoch: 1, messages: (0..count).map(ended).collect() }.encode().len();
    assert!(bytes < 5 * count as usize, "{bytes} bytes for {count} ends");
    let (status, cause) = (Status::Completed, Cause::None);
    let settled = |number: u64| {
        let (task, at) = (TaskId::from_bits(number), Time(1_000_000_000 + number * 5_000));
        (Record::Settled { task, attempt: 1, status, cause, at }, Stored::Nothing)
    };
    let bytes = encode(&(0..count).map(settled).collect::<Vec<_>>()).len();
    assert!(bytes < 5 * count as usize, "{bytes} bytes for {count} outcomes");
}

/// The coordinator tells a worker of 16 peers at a time, however many there are.
#[test]
fn a_digest_takes_less_than_two_kilobytes() {
    let peer =
        |bits: u64| PeerDigest { worker: worker(u64::MAX - bits), depth: u32::MAX, backlog: Span::MAX, load: 0.1 };
    let frame = Frame { epoch: u64::MAX, messages: vec![Message::Digest((0..16).map(peer).collect())] };
    assert!(frame.encode().len() < 2_000, "{}", frame.encode().len());
}

#[test]
fn what_few_bytes_claim_is_not_believed() {
    let id = u32::MAX;
    let ask = Ask {
        request: 1,
        capabilities: [CapabilityId(id)].into_iter().collect(),
        resources: Vector::default(),
        speed: 1.0,
        free: 1,
    };
    let frame = Frame { epoch: 0, messages: vec![Message::Ask(Box::new(ask))] };
    assert_eq!(Frame::decode(&frame.encode()), Err(WireError::TooMuch("the number of a capability")));
    let far = Order { demand: Demand::new([(ResourceId(id), Amount(1))]), ..order(1) };
    let frame = Frame { epoch: 0, messages: vec![Message::Offer { request: 1, orders: vec![far], depth: 0 }] };
    assert_eq!(Frame::decode(&frame.encode()), Err(WireError::TooMuch("the number of a resource")));
    // Many orders that share a very long list of requirements.
    let wide = |number| Order { requires: (0..10_000).map(CapabilityId).collect(), ..order(number) };
    let orders = (0..500).map(wide).collect();
    let frame = Frame { epoch: 0, messages: vec![Message::Offer { request: 1, orders, depth: 0 }] };
    assert_eq!(Frame::decode(&frame.encode()), Err(WireError::TooMuch("requirements")));
}

fn any_held() -> impl Strategy<Value = Held> {
    (any::<u64>(), any::<u32>(), any::<u32>()).prop_map(|(task, attempt, hop)| held(task, attempt, hop))
}

fn any_order() -> impl Strategy<Value = Order> {
    let own = (any_held(), any::<u64>(), any::<u32>(), any::<u64>());
    let terms = (any::<u8>(), any::<u8>(), any::<u64>(), any::<u32>(), any::<u32>(), any::<u64>());
    let more = (option::of(any::<u64>()), vec(0u32..60_000, 0..6), vec((0u32..9, 1u64..99), 0..4), any::<[bool; 4]>());
    (own, terms, more).prop_map(|(own, terms, more)| Order {
        held: own.0,
        payload: own.1,
        index: own.2,
        sequence: own.3,
        priority: terms.0,
        level: terms.1,
        deadline: Time(terms.2),
        rank: terms.3,
        kind: KindId(terms.4),
        expected: Span(terms.5),
        timeout: more.0.map(Span),
        requires: more.1.into_iter().map(CapabilityId).collect(),
        demand: Demand::new(more.2.into_iter().map(|(id, amount)| (ResourceId(id), Amount(amount)))),
        bound: more.3[0],
        exclusive: more.3[1],
        begins: more.3[2],
        patient: more.3[3],
    })
}

fn any_end() -> impl Strategy<Value = End> {
    let failed = any::<bool>().prop_map(|retry| End::Failed { retry });
    prop_oneof![Just(End::Done), failed, Just(End::GivenBack), Just(End::TimedOut)]
}

fn any_message() -> impl Strategy<Value = Message> {
    let any_worker = || any::<u64>().prop_map(worker);
    prop_oneof![
        any_held().prop_map(Message::Began),
        any_held().prop_map(Message::Noted),
        (any_held(), any::<u64>(), any_end()).prop_map(|(held, ran, end)| Message::Ended { held, ran: Span(ran), end }),
        (any_held(), any_worker()).prop_map(|(held, to)| Message::Moved { held, to }),
        (any_held(), any_worker()).prop_map(|(held, thief)| Message::Whose { held, thief }),
        (any_held(), any::<bool>()).prop_map(|(held, yours)| Message::Ruling { held, yours }),
        any_held().prop_map(|held| Message::Revoke { held, cause: Cause::WorkerLost }),
        any_held().prop_map(|held| Message::Deny { held }),
        any_held().prop_map(|held| Message::Denied { held }),
        vec(any_held(), 0..5).prop_map(|holds| Message::Accept { holds }),
        (any::<u64>(), vec(any_held(), 0..5)).prop_map(|(n, holds)| Message::Holds { number: n, seen: n / 2, holds }),
        (any::<u64>(), vec(any_order(), 0..5), any::<bool>()).prop_map(|(number, orders, nothing)| Message::Hand {
            number,
            orders,
            nothing
        }),
        (any::<u64>(), vec(any_order(), 0..5), any::<u32>()).prop_map(|(request, orders, depth)| Message::Offer {
            request,
            orders,
            depth
        }),
        (0..23usize).prop_map(|at| messages().swap_remove(at).1),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn messages_survive_the_wire(epoch: u64, messages in vec(any_message(), 0..12)) {
        let frame = Frame { epoch, messages };
        prop_assert_eq!(Frame::decode(&frame.encode()), Ok(frame));
    }

    #[test]
    fn records_survive_the_store(picks in vec((0..14usize, any::<u32>(), any::<u64>()), 0..40)) {
        let mut all = Vec::new();
        for (at, small, large) in picks {
            let (_, mut record, stored) = records().swap_remove(at);
            let mut stored = stored;
            match &mut record {
                Record::Submitted { task, payload, at } => {
                    (*task, *payload, *at) = (TaskId::from_bits(large), u64::from(small), Time(large / 3));
                    stored = match stored {
                        Stored::Task(spec) if small % 5 > 0 => {
                            Stored::Task(Box::new(TaskSpec { payload: u64::from(small), exclusive: small % 2 == 0, ..*spec }))
                        }
                        _ => Stored::Nothing,
                    };
                }
                Record::Member { task, index, rank, .. } => {
                    (*task, *index, *rank) = (TaskId::from_bits(large), small, small / 2);
                }
                Record::Element { task, index, .. } => (*task, *index) = (TaskId::from_bits(large), small),
                Record::Assigned { task, attempt, worker, at } => {
                    (*task, *attempt, *at) = (TaskId::from_bits(large), small, Time(large));
                    *worker = WorkerId::from_bits(large / 2);
                }
                Record::Retrying { task, attempt, retries, until } => {
                    (*task, *attempt, *retries, *until) = (TaskId::from_bits(large), small, small as u16, Time(large));
                }
                Record::Settled { task, attempt, at, .. } => {
                    (*task, *attempt, *at) = (TaskId::from_bits(large), small, Time(large));
                }
                _ => {}
            }
            all.push((record, stored));
        }
        same_but_for_the_order(&all, &decode(&encode(&all)).unwrap());
    }

    #[test]
    fn made_up_bytes_do_no_harm(bytes in vec(any::<u8>(), 0..200)) {
        // Whatever comes out, nothing panics; and what is read can be written again.
        if let Ok(frame) = Frame::decode(&bytes) {
            prop_assert!(Frame::decode(&frame.encode()).is_ok());
        }
        if let Ok(records) = decode(&bytes) {
            prop_assert!(decode(&encode(&records)).is_ok());
        }
    }

    #[test]
    fn damaged_frames_do_no_harm(messages in vec(any_message(), 1..6), cut: prop::sample::Index, flip: u8) {
        let frame = Frame { epoch: 1, messages };
        let mut bytes = frame.encode();
        let at = cut.index(bytes.len());
        bytes[at] ^= flip;
        if let Ok(read) = Frame::decode(&bytes) {
            prop_assert!(Frame::decode(&read.encode()).is_ok());
        }
        bytes.truncate(at);
        if let Ok(read) = Frame::decode(&bytes) {
            prop_assert!(read.messages.len() <= frame.messages.len());
        }
    }
}
