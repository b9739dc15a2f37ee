//! What a worker knows of what is to be done: bodies by handle, inputs by handle and index.
//!
//! What belongs to a single task goes when it begins, since what has begun is passed to nobody. What waited and went away,
//! or came from a peer and nobody says when to forget it, is found by looking at everything that still waits, when there is
//! twice as much as the last time. Never decides what runs.

use std::sync::Arc;

use bytes::Bytes;
use filch_core::wire::Order;
use filch_core::wire::talk::{Body, Input, Packet, Program, Work};
use prost::Message as _;
use rustc_hash::{FxHashMap, FxHashSet};

use super::call::{Handler, Handlers};

/// From how many on it is worth looking for what nobody needs.
const SWEEP: usize = 1024;

/// What is to be done, ready to be done.
pub(super) struct Prepared {
    pub(super) work: Work,
    pub(super) action: Action,
}

/// How it is done.
pub(super) enum Action {
    /// Nothing at all.
    Noop,
    /// Gives back what it gets.
    Echo,
    /// Waits for so many seconds as it is told.
    Sleep,
    /// A registered function.
    Call(Handler),
    /// A program.
    Process,
    /// It cannot be; why, and whether another worker might.
    Impossible(String, bool),
}

/// How long a body is kept.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stay {
    /// Until the coordinator says so.
    Told,
    /// While something that waits needs it.
    Needed,
    /// Likewise, and it goes when its task begins.
    Once,
}

/// What one element is told besides what it shares with others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Element {
    /// What it gets.
    pub(super) input: Option<Bytes>,
    /// Its place as its submitter counts.
    pub(super) place: u32,
}

impl Element {
    /// What its function reads: what it gets, or what all of them read.
    pub(super) fn read(self, work: &Work) -> Bytes {
        self.input.unwrap_or_else(|| work.stdin.clone())
    }

    fn told(input: Input) -> ((u64, u32), Element) {
        let Input { handle, index, bytes, place, bare } = input;
        ((handle, index), Element { input: (!bare).then_some(bytes), place: place.unwrap_or(index) })
    }
}

struct Kept {
    raw: Bytes,
    stay: Stay,
    /// The coordinator marked it as shared.
    shared: bool,
    prepared: Option<Arc<Prepared>>,
}

/// What is known.
#[derive(Default)]
pub(super) struct Bodies {
    handlers: Handlers,
    works: FxHashMap<u64, Kept>,
    inputs: FxHashMap<(u64, u32), Element>,
    /// Works that stay until told.
    told: usize,
    sweep_at: usize,
}

impl Bodies {
    pub(super) fn new(handlers: Handlers) -> Bodies {
        Bodies { handlers, sweep_at: SWEEP, ..Bodies::default() }
    }

    /// Remembers what came; from a peer, nobody will say when to forget it.
    pub(super) fn learn(&mut self, bodies: Vec<Body>, inputs: Vec<Input>, from_peer: bool) {
        for Body { handle, work, shared } in bodies {
            let stay = match (shared, from_peer) {
                (true, false) => Stay::Told,
                (true, true) => Stay::Needed,
                (false, _) => Stay::Once,
            };
            if stay == Stay::Needed && self.works.contains_key(&handle) {
                continue;
            }
            self.forget(handle);
            self.told += usize::from(stay == Stay::Told);
            self.works.insert(handle, Kept { raw: work, stay, shared, prepared: None });
        }
        self.inputs.extend(inputs.into_iter().map(Element::told));
    }

    pub(super) fn forget(&mut self, handle: u64) {
        if let Some(gone) = self.works.remove(&handle) {
            self.told -= usize::from(gone.stay == Stay::Told);
        }
    }

    /// Nobody will say when to forget what was told so far.
    pub(super) fn disconnected(&mut self) {
        for kept in self.works.values_mut().filter(|kept| kept.stay == Stay::Told) {
            kept.stay = Stay::Needed;
        }
        self.told = 0;
    }

    /// What an order that begins is to do, and what its element is told.
    pub(super) fn begin(&mut self, order: &Order) -> Option<(Arc<Prepared>, Element)> {
        let element = match self.inputs.is_empty() {
            true => None,
            false => self.inputs.remove(&(order.payload, order.index)),
        };
        let element = element.unwrap_or(Element { input: None, place: order.index });
        let kept = self.works.get_mut(&order.payload)?;
        if kept.stay == Stay::Once {
            let raw = std::mem::take(&mut kept.raw);
            self.works.remove(&order.payload);
            return Some((Arc::new(prepare(raw, &self.handlers)), element));
        }
        let prepared = kept.prepared.get_or_insert_with(|| Arc::new(prepare(kept.raw.clone(), &self.handlers)));
        Some((Arc::clone(prepared), element))
    }

    /// Adds to a packet for a thief what it must know of these orders.
    pub(super) fn pack(&self, orders: &[Order], packet: &mut Packet) {
        for order in orders {
            if let Some(kept) = self.works.get(&order.payload)
                && packet.bodies.iter().all(|body| body.handle != order.payload)
            {
                let Kept { raw, shared, .. } = kept;
                packet.bodies.push(Body { handle: order.payload, work: raw.clone(), shared: *shared });
            }
            if let Some(Element { input, place }) = self.inputs.get(&(order.payload, order.index)).cloned() {
                let (handle, index) = (order.payload, order.index);
                let place = (place != index).then_some(place);
                let bare = input.is_none();
                packet.inputs.push(Input { handle, index, bytes: input.unwrap_or_default(), place, bare });
            }
        }
    }

    /// Forgets what none of those that wait need, if there may be much of it.
    pub(super) fn sweep<'a>(&mut self, waiting: impl Iterator<Item = &'a Order>) {
        if self.works.len() - self.told + self.inputs.len() < self.sweep_at {
            return;
        }
        let needed: FxHashSet<(u64, u32)> = waiting.map(|order| (order.payload, order.index)).collect();
        let handles: FxHashSet<u64> = needed.iter().map(|entry| entry.0).collect();
        self.inputs.retain(|of, _| needed.contains(of));
        self.works.retain(|handle, kept| kept.stay == Stay::Told || handles.contains(handle));
        self.sweep_at = SWEEP.max(2 * (self.works.len() - self.told + self.inputs.len()));
    }
}

fn prepare(raw: Bytes, handlers: &Handlers) -> Prepared {
    let work = match Work::decode(raw) {
        Ok(work) => work,
        Err(error) => {
            let why = format!("what is to be done cannot be understood: {error}");
            return Prepared { work: Work::default(), action: Action::Impossible(why, false) };
        }
    };
    let action = match &work.program {
        Some(Program::Argv(words)) if words.words.is_empty() => {
            Action::Impossible("the command has no words".to_owned(), false)
        }
        Some(Program::Argv(_) | Program::Shell(_)) => Action::Process,
        Some(Program::Call(name)) => match (handlers.get(name), name.as_str()) {
            (Some(handler), _) => Action::Call(Arc::clone(handler)),
            (None, "noop") => Action::Noop,
            (None, "sleep") => Action::Sleep,
            (None, "echo") => Action::Echo,
            (None, _) => {
                let known = handlers.names().join(", ");
                let why = format!("this worker has no function `{name}`: it has {known}");
                Action::Impossible(why, true)
            }
        },
        None => Action::Impossible("there is nothing to do that this version knows".to_owned(), true),
    };
    Prepared { work, action }
}

#[cfg(test)]
mod tests {
    use filch_core::{CapabilitySet, Demand, Held, KindId, Span, TaskId, Time};

    use super::*;

    fn order(payload: u64, index: u32) -> Order {
        Order {
            held: Held { task: TaskId::from_bits(payload * 100 + u64::from(index)), attempt: 1, hop: 0 },
            payload,
            index,
            priority: 3,
            level: 3,
            deadline: Time::NEVER,
            rank: 0,
            sequence: 1,
            kind: KindId::default(),
            expected: Span::ZERO,
            timeout: None,
            requires: CapabilitySet::default(),
            demand: Demand::default(),
            bound: false,
            exclusive: false,
            begins: false,
            patient: false,
        }
    }

    fn body(handle: u64, function: &str, shared: bool) -> Body {
        let work = Work { program: Some(Program::Call(function.to_owned())), ..Work::default() };
        Body { handle, work: work.encode_to_vec().into(), shared }
    }

    fn input(handle: u64, index: u32) -> Input {
        Input { handle, index, bytes: Bytes::from(vec![index as u8]), ..Input::default() }
    }

    #[test]
    fn shared_bodies_stay_until_told_and_others_go_when_they_begin() {
        let mut bodies = Bodies::new(Handlers::default());
        bodies.learn(vec![body(1, "noop", true), body(2, "echo", false)], vec![input(1, 4)], false);
        for index in [3, 4] {
            let (prepared, element) = bodies.begin(&order(1, index)).unwrap();
            assert!(matches!(prepared.action, Action::Noop));
            assert_eq!(element, Element { input: (index == 4).then(|| Bytes::from(vec![4])), place: index });
        }
        assert!(matches!(bodies.begin(&order(2, 0)).unwrap().0.action, Action::Echo));
        assert!(bodies.begin(&order(2, 0)).is_none());
        bodies.forget(1);
        assert!(bodies.begin(&order(1, 5)).is_none());
        assert_eq!((bodies.works.len(), bodies.inputs.len(), bodies.told), (0, 0, 0));
    }

    #[test]
    fn a_thief_gets_what_belongs_to_its_loot() {
        let mut bodies = Bodies::new(Handlers::default());
        let placed = Input { handle: 1, index: 6, place: Some(700), bare: true, ..Input::default() };
        let inputs = vec![input(1, 4), input(1, 5), placed.clone()];
        bodies.learn(vec![body(1, "noop", true), body(2, "echo", false)], inputs, false);
        let mut packet = Packet::default();
        bodies.pack(&[order(1, 3), order(1, 4), order(1, 6), order(2, 0)], &mut packet);
        assert_eq!(packet.bodies, [body(1, "noop", true), body(2, "echo", false)]);
        assert_eq!(packet.inputs, [input(1, 4), placed]);
        let mut thief = Bodies::new(Handlers::default());
        thief.learn(packet.bodies, packet.inputs, true);
        assert_eq!(thief.begin(&order(1, 6)).unwrap().1, Element { input: None, place: 700 });
    }

    #[test]
    fn what_nobody_needs_is_swept_away() {
        let mut bodies = Bodies::new(Handlers::default());
        bodies.learn(vec![body(1, "noop", true)], Vec::new(), false);
        bodies.learn(vec![body(2, "noop", true)], Vec::new(), true);
        bodies.learn((10..1500).map(|handle| body(handle, "noop", false)).collect(), vec![input(2, 7)], false);
        let waiting = [order(20, 0), order(2, 7)];
        bodies.sweep(waiting.iter());
        assert_eq!((bodies.works.len(), bodies.inputs.len()), (3, 1));
        bodies.disconnected();
        bodies.learn((10..1500).map(|handle| body(handle, "noop", false)).collect(), Vec::new(), false);
        bodies.sweep([].iter());
        assert_eq!((bodies.works.len(), bodies.inputs.len()), (0, 0));
    }

    #[test]
    fn what_cannot_be_done_says_why() {
        let mut bodies = Bodies::new(Handlers::default());
        let garbled = Body { handle: 2, work: Bytes::from_static(&[0xff]), shared: false };
        let empty = Body { handle: 3, work: Bytes::new(), shared: false };
        bodies.learn(vec![body(1, "paint", false), garbled, empty], Vec::new(), false);
        for (handle, expected) in
            [(1, "no function `paint`: it has echo, noop, sleep"), (2, "understood"), (3, "nothing")]
        {
            let (prepared, _) = bodies.begin(&order(handle, 0)).unwrap();
            let Action::Impossible(why, _) = &prepared.action else { panic!("{handle} is possible") };
            assert!(why.contains(expected), "{why}");
        }
    }
}
