//! Messages as bytes. Those of one sort that follow each other become columns; their order is kept.

use prost::Message as _;

use super::columns::{alike, differences, spread, sums, whole};
use super::proto::{self, Columns, Sort};
use super::shapes::{
    CAUSES, narrow, number_of, read_amounts, read_capabilities, read_demand, read_helds, read_worker, value_of,
    write_capabilities, write_demand, write_helds, write_worker,
};
use super::{Ask, Beat, Hello, Message, Order, PeerDigest, Reason, WireError};
use crate::event::{End, Held};
use crate::ids::{KindId, WorkerId};
use crate::time::{Span, Time};
use crate::worker::LoadReport;

const ENDS: [End; 5] =
    [End::Done, End::Failed { retry: true }, End::Failed { retry: false }, End::GivenBack, End::TimedOut];
const REASONS: [Reason; 3] = [Reason::TooLittle, Reason::NothingFits, Reason::Closed];

/// Requirements of all orders of one frame. Orders share what they have in common, so a short frame could otherwise
/// unfold into any amount of memory.
const MOST_REQUIREMENTS: usize = 1 << 22;

/// Messages that travel together.
///
/// ```
/// use filch_core::wire::{Frame, Message};
/// let frame = Frame { epoch: 7, messages: vec![Message::Show { number: 1 }] };
/// let bytes = frame.encode();
/// assert_eq!(Frame::decode(&bytes), Ok(frame));
/// assert!(Frame::decode(&bytes[1..]).is_err());
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Frame {
    /// The life of the coordinator that sent it; 0 from anybody else.
    pub epoch: u64,
    /// What is said, in this order.
    pub messages: Vec<Message>,
}

impl Frame {
    /// The frame as bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        Columns::of(self.epoch, &self.messages).encode_to_vec()
    }

    /// The frame behind the bytes.
    ///
    /// # Errors
    ///
    /// If they are none. Nothing of it is to be believed then.
    pub fn decode(bytes: &[u8]) -> Result<Frame, WireError> {
        Columns::decode(bytes).map_err(|error| WireError::Garbled(error.to_string()))?.read()
    }
}

impl Columns {
    /// The columns of a frame.
    #[must_use]
    pub fn of(epoch: u64, messages: &[Message]) -> Columns {
        let runs = messages.chunk_by(travel_as_one);
        let batches = runs.map(|run| proto::Batch { sort: Some(write(run)) }).collect();
        Columns { epoch, batches }
    }

    /// The frame behind the columns.
    ///
    /// # Errors
    ///
    /// If they do not belong together. Nothing of it is to be believed then.
    pub fn read(&self) -> Result<Frame, WireError> {
        let mut reader = Reader { messages: Vec::with_capacity(self.batches.len()), requirements: 0 };
        for batch in &self.batches {
            let sort = batch.sort.as_ref().ok_or(WireError::Missing("a message that this version knows"))?;
            reader.read(sort)?;
        }
        Ok(Frame { epoch: self.epoch, messages: reader.messages })
    }
}

/// Whether two messages that follow each other go into the same batch.
fn travel_as_one(first: &Message, second: &Message) -> bool {
    matches!(
        (first, second),
        (Message::Revoke { .. }, Message::Revoke { .. })
            | (Message::Began(_), Message::Began(_))
            | (Message::Ended { .. }, Message::Ended { .. })
            | (Message::Noted(_), Message::Noted(_))
            | (Message::Moved { .. }, Message::Moved { .. })
            | (Message::Whose { .. }, Message::Whose { .. })
            | (Message::Deny { .. }, Message::Deny { .. })
            | (Message::Denied { .. }, Message::Denied { .. })
            | (Message::Ruling { .. }, Message::Ruling { .. })
    )
}

/// What a message is about, if it is about one attempt.
fn held_of(message: &Message) -> Option<Held> {
    match *message {
        Message::Began(held)
        | Message::Noted(held)
        | Message::Revoke { held, .. }
        | Message::Ended { held, .. }
        | Message::Moved { held, .. }
        | Message::Whose { held, .. }
        | Message::Deny { held }
        | Message::Denied { held }
        | Message::Ruling { held, .. } => Some(held),
        _ => None,
    }
}

/// A run of messages of one sort; of most sorts a run is one message.
fn write(run: &[Message]) -> Sort {
    let helds = || write_helds(run.iter().filter_map(held_of));
    let some_helds = || Some(helds());
    match &run[0] {
        Message::Hello(hello) => {
            let Hello { spec, known, holds, born, sent } = hello.as_ref();
            Sort::Hello(proto::Hello {
                worker: Some(write_worker(spec)),
                known: known.map(WorkerId::to_bits),
                holds: Some(write_helds(holds.iter().copied())),
                sent_nanos: sent.0,
                born_nanos: born.0,
            })
        }
        Message::Welcome { worker, sent } => {
            Sort::Welcome(proto::Welcome { worker: worker.to_bits(), sent_nanos: sent.0 })
        }
        Message::Beat(beat) => Sort::Beat(write_beat(beat)),
        &Message::Heard { sent, nothing } => Sort::Heard(proto::Heard { sent_nanos: sent.0, nothing }),
        &Message::Want { count, sent } => Sort::Want(proto::Want { count, sent_nanos: sent.0 }),
        Message::Nothing => Sort::Nothing(proto::Nothing {}),
        Message::Hand { number, orders, nothing } => {
            Sort::Hand(proto::Orders { nothing: *nothing, ..write_orders(*number, orders) })
        }
        Message::Offer { request, orders, depth } => {
            Sort::Offer(proto::Orders { depth: *depth, ..write_orders(*request, orders) })
        }
        Message::Revoke { .. } => {
            let causes = run.iter().filter_map(|message| match message {
                Message::Revoke { cause, .. } => Some(number_of(CAUSES, cause)),
                _ => None,
            });
            Sort::Revoke(proto::Coded { helds: some_helds(), codes: alike(causes) })
        }
        Message::Ruling { .. } => {
            let yours = run.iter().filter_map(|message| match message {
                Message::Ruling { yours, .. } => Some(u32::from(*yours)),
                _ => None,
            });
            Sort::Ruling(proto::Coded { helds: some_helds(), codes: alike(yours) })
        }
        Message::Began(_) => Sort::Began(helds()),
        Message::Noted(_) => Sort::Noted(helds()),
        Message::Deny { .. } => Sort::Deny(helds()),
        Message::Denied { .. } => Sort::Denied(helds()),
        Message::Ended { .. } => {
            let ends = run.iter().filter_map(|message| match message {
                Message::Ended { ran, end, .. } => Some((ran.0, number_of(&ENDS, end))),
                _ => None,
            });
            let (ran_nanos, ends): (Vec<u64>, Vec<u32>) = ends.unzip();
            Sort::Ended(proto::Ends { helds: some_helds(), ran_nanos, ends: alike(ends.into_iter()) })
        }
        Message::Moved { .. } | Message::Whose { .. } => {
            let workers = run.iter().filter_map(|message| match message {
                Message::Moved { to: worker, .. } | Message::Whose { thief: worker, .. } => Some(worker.to_bits()),
                _ => None,
            });
            let moves = proto::Moves { helds: some_helds(), workers: alike(workers) };
            if matches!(run[0], Message::Moved { .. }) { Sort::Moved(moves) } else { Sort::Whose(moves) }
        }
        &Message::Show { number } => Sort::Show(proto::Show { number }),
        Message::Holds { number, seen, holds } => {
            let holds = Some(write_helds(holds.iter().copied()));
            Sort::Holds(proto::Holds { number: *number, seen: *seen, holds })
        }
        Message::Digest(peers) => Sort::Digest(proto::Digest {
            workers: peers.iter().map(|peer| peer.worker.to_bits()).collect(),
            depths: peers.iter().map(|peer| peer.depth).collect(),
            backlog_nanos: peers.iter().map(|peer| peer.backlog.0).collect(),
            loads: peers.iter().map(|peer| peer.load).collect(),
        }),
        Message::Ask(ask) => Sort::Ask(proto::Ask {
            request: ask.request,
            capabilities: write_capabilities(&ask.capabilities),
            amounts: ask.resources.in_order().to_vec(),
            speed: ask.speed,
            free: ask.free,
        }),
        Message::Refuse { request, reason, depth } => {
            Sort::Refuse(proto::Refuse { request: *request, reason: number_of(&REASONS, reason), depth: *depth })
        }
        Message::Accept { holds } => Sort::Accept(write_helds(holds.iter().copied())),
    }
}

fn write_beat(beat: &Beat) -> proto::Beat {
    proto::Beat {
        cpu: beat.load.cpu,
        memory: beat.load.memory,
        depth: beat.depth,
        backlog_nanos: beat.backlog.0,
        wants: beat.wants,
        holds: beat.holds,
        fingerprint: beat.fingerprint,
        sent_nanos: beat.sent.0,
    }
}

fn write_orders(number: u64, orders: &[Order]) -> proto::Orders {
    let mut templates: Vec<proto::Template> = Vec::new();
    let mut templates_used = Vec::with_capacity(orders.len());
    let mut before: Option<&Order> = None;
    for order in orders {
        if !before.is_some_and(|before| has_same_template(before, order)) {
            templates.push(write_template(order));
        }
        before = Some(order);
        templates_used.push(templates.len() as u32 - 1);
    }
    proto::Orders {
        number,
        helds: Some(write_helds(orders.iter().map(|order| order.held))),
        payload_steps: differences(orders.iter().map(|order| order.payload)),
        index_steps: differences(orders.iter().map(|order| u64::from(order.index))),
        sequence_steps: differences(orders.iter().map(|order| order.sequence)),
        templates_used: alike(templates_used.into_iter()),
        templates,
        depth: 0,
        nothing: false,
    }
}

fn has_same_template(first: &Order, second: &Order) -> bool {
    let Order { held, payload, index, sequence, .. } = *second;
    // What tells orders apart set equal, the rest decides. Comparing field by field would forget a new one some day.
    let Order { requires, demand, .. } = first;
    (requires, demand) == (&second.requires, &second.demand)
        && Order { held, payload, index, sequence, ..first.clone() } == *second
}

fn write_template(order: &Order) -> proto::Template {
    proto::Template {
        priority: u32::from(order.priority),
        level: u32::from(order.level),
        deadline_nanos: (order.deadline != Time::NEVER).then_some(order.deadline.0),
        rank: order.rank,
        kind: order.kind.0,
        expected_nanos: order.expected.0,
        timeout_nanos: order.timeout.map(|timeout| timeout.0),
        requires: write_capabilities(&order.requires),
        demand: write_demand(&order.demand),
        bound: order.bound,
        exclusive: order.exclusive,
        begins: order.begins,
        patient: order.patient,
    }
}

struct Reader {
    messages: Vec<Message>,
    requirements: usize,
}

impl Reader {
    fn read(&mut self, sort: &Sort) -> Result<(), WireError> {
        match sort {
            Sort::Hello(hello) => self.messages.push(Message::Hello(Box::new(Hello {
                spec: read_worker(hello.worker.as_ref())?,
                known: hello.known.map(WorkerId::from_bits),
                holds: read_helds(hello.holds.as_ref())?,
                born: Time(hello.born_nanos),
                sent: Time(hello.sent_nanos),
            }))),
            &Sort::Welcome(proto::Welcome { worker, sent_nanos }) => {
                self.messages.push(Message::Welcome { worker: WorkerId::from_bits(worker), sent: Time(sent_nanos) });
            }
            Sort::Beat(beat) => self.messages.push(Message::Beat(Box::new(read_beat(beat)))),
            &Sort::Heard(proto::Heard { sent_nanos, nothing }) => {
                self.messages.push(Message::Heard { sent: Time(sent_nanos), nothing });
            }
            &Sort::Want(proto::Want { count, sent_nanos }) => {
                self.messages.push(Message::Want { count, sent: Time(sent_nanos) });
            }
            Sort::Nothing(proto::Nothing {}) => self.messages.push(Message::Nothing),
            Sort::Hand(orders) => {
                let (number, nothing) = (orders.number, orders.nothing);
                let message = Message::Hand { number, orders: self.orders(orders)?, nothing };
                self.messages.push(message);
            }
            Sort::Offer(orders) => {
                let (request, depth) = (orders.number, orders.depth);
                let message = Message::Offer { request, orders: self.orders(orders)?, depth };
                self.messages.push(message);
            }
            Sort::Revoke(revoked) => self.each(revoked.helds.as_ref(), &revoked.codes, |held, &code| {
                Ok(Message::Revoke { held, cause: value_of(CAUSES, code, "cause")? })
            })?,
            Sort::Ruling(ruled) => self.each(ruled.helds.as_ref(), &ruled.codes, |held, &code| {
                Ok(Message::Ruling { held, yours: value_of(&[false, true], code, "ruling")? })
            })?,
            Sort::Began(helds) => self.every(helds, Message::Began)?,
            Sort::Noted(helds) => self.every(helds, Message::Noted)?,
            Sort::Deny(helds) => self.every(helds, |held| Message::Deny { held })?,
            Sort::Denied(helds) => self.every(helds, |held| Message::Denied { held })?,
            Sort::Ended(ends) => {
                let count = ends.ran_nanos.len();
                let codes = spread(&ends.ends, count)?;
                let pairs: Vec<(u64, u32)> = ends.ran_nanos.iter().copied().zip(codes).collect();
                self.each(ends.helds.as_ref(), &pairs, |held, &(ran, code)| {
                    Ok(Message::Ended { held, ran: Span(ran), end: value_of(&ENDS, code, "end")? })
                })?;
            }
            Sort::Moved(moves) => self.each(moves.helds.as_ref(), &moves.workers, |held, &worker| {
                Ok(Message::Moved { held, to: WorkerId::from_bits(worker) })
            })?,
            Sort::Whose(moves) => self.each(moves.helds.as_ref(), &moves.workers, |held, &worker| {
                Ok(Message::Whose { held, thief: WorkerId::from_bits(worker) })
            })?,
            &Sort::Show(proto::Show { number }) => self.messages.push(Message::Show { number }),
            Sort::Holds(shown) => self.messages.push(Message::Holds {
                number: shown.number,
                seen: shown.seen,
                holds: read_helds(shown.holds.as_ref())?,
            }),
            Sort::Digest(digest) => self.messages.push(Message::Digest(read_digest(digest)?)),
            Sort::Ask(ask) => self.messages.push(Message::Ask(Box::new(Ask {
                request: ask.request,
                capabilities: read_capabilities(&ask.capabilities)?,
                resources: read_amounts(&ask.amounts)?,
                speed: ask.speed,
                free: ask.free,
            }))),
            &Sort::Refuse(proto::Refuse { request, reason, depth }) => {
                self.messages.push(Message::Refuse { request, reason: value_of(&REASONS, reason, "reason")?, depth });
            }
            Sort::Accept(holds) => self.messages.push(Message::Accept { holds: read_helds(Some(holds))? }),
        }
        Ok(())
    }

    /// A message for each attempt.
    fn every(&mut self, helds: &proto::Helds, message: impl Fn(Held) -> Message) -> Result<(), WireError> {
        self.messages.extend(read_helds(Some(helds))?.into_iter().map(message));
        Ok(())
    }

    /// A message for each attempt and what is said of it.
    fn each<T>(
        &mut self,
        helds: Option<&proto::Helds>,
        column: &[T],
        message: impl Fn(Held, &T) -> Result<Message, WireError>,
    ) -> Result<(), WireError> {
        let helds = read_helds(helds)?;
        let refs: Vec<&T> = column.iter().collect();
        for (held, value) in helds.iter().zip(spread(&refs, helds.len())?) {
            self.messages.push(message(*held, value)?);
        }
        Ok(())
    }

    fn orders(&mut self, read: &proto::Orders) -> Result<Vec<Order>, WireError> {
        let helds = read_helds(read.helds.as_ref())?;
        let count = helds.len();
        let mut templates = Vec::with_capacity(read.templates.len());
        for template in &read.templates {
            templates.push(read_template(template)?);
        }
        let payloads = sums(whole(&read.payload_steps, count)?);
        let indexes = sums(whole(&read.index_steps, count)?);
        let sequences = sums(whole(&read.sequence_steps, count)?);
        let mut orders = Vec::with_capacity(count);
        let columns = helds.into_iter().zip(payloads).zip(indexes.zip(sequences));
        for (((held, payload), (index, sequence)), used) in columns.zip(spread(&read.templates_used, count)?) {
            let template = templates.get(used as usize).ok_or(WireError::Missing("what an order follows"))?;
            self.requirements += template.requires.len() + template.demand.amounts().len();
            if self.requirements > MOST_REQUIREMENTS {
                return Err(WireError::TooMuch("requirements"));
            }
            orders.push(Order { held, payload, index: narrow(index, "index")?, sequence, ..template.clone() });
        }
        Ok(orders)
    }
}

fn read_beat(beat: &proto::Beat) -> Beat {
    Beat {
        load: LoadReport { cpu: beat.cpu, memory: beat.memory },
        depth: beat.depth,
        backlog: Span(beat.backlog_nanos),
        wants: beat.wants,
        holds: beat.holds,
        fingerprint: beat.fingerprint,
        sent: Time(beat.sent_nanos),
    }
}

fn read_digest(digest: &proto::Digest) -> Result<Vec<PeerDigest>, WireError> {
    let count = digest.workers.len();
    let (depths, backlogs) = (whole(&digest.depths, count)?, whole(&digest.backlog_nanos, count)?);
    let loads = whole(&digest.loads, count)?;
    let peer = |at: usize| PeerDigest {
        worker: WorkerId::from_bits(digest.workers[at]),
        depth: depths[at],
        backlog: Span(backlogs[at]),
        load: loads[at],
    };
    Ok((0..count).map(peer).collect())
}

/// An order that lacks what is its own.
fn read_template(template: &proto::Template) -> Result<Order, WireError> {
    Ok(Order {
        held: Held { task: crate::ids::TaskId::from_bits(0), attempt: 0, hop: 0 },
        payload: 0,
        index: 0,
        priority: narrow(u64::from(template.priority), "priority")?,
        level: narrow(u64::from(template.level), "level")?,
        deadline: template.deadline_nanos.map_or(Time::NEVER, Time),
        rank: template.rank,
        sequence: 0,
        kind: KindId(template.kind),
        expected: Span(template.expected_nanos),
        timeout: template.timeout_nanos.map(Span),
        requires: read_capabilities(&template.requires)?,
        demand: read_demand(template.demand.as_ref())?,
        bound: template.bound,
        exclusive: template.exclusive,
        begins: template.begins,
        patient: template.patient,
    })
}
