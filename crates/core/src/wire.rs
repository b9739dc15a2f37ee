//! What the machines say to each other: coordinator and workers, and workers among themselves. Plain data; nothing here
//! decides anything. Any message may be lost, doubled or overtaken by another; `docs/stealing.md` says why that is no
//! harm.
//!
//! Messages and [records](crate::Record) are all that is ever serialised: messages by the [`Frame`], records by the
//! [`Group`], both as protobuf. Drivers only carry the bytes.

mod columns;
mod frame;
mod group;
mod proto;
mod shapes;
pub mod talk;

pub use columns::{differences, sums};
pub use frame::Frame;
pub use group::Group;
pub use proto::Columns;

use crate::capabilities::CapabilitySet;
use crate::event::{End, Held};
use crate::ids::{KindId, WorkerId};
use crate::planted::{Mistake, makes};
use crate::resources::{Demand, Vector};
use crate::task::Cause;
use crate::time::{Span, Time};
use crate::worker::{LoadReport, WorkerSpec};

/// The version of what goes over the wire. Who speaks another one is refused: a `Want` of version 1, say, was how many more
/// tasks a worker would take, and now it is how many it likes to have.
pub const VERSION: u32 = 2;

/// Why bytes are not what they should be. Whoever sent them is not to be believed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// Not protobuf, or cut off.
    #[error("these bytes are no message of filch: {0}")]
    Garbled(String),
    /// Columns of one batch have different lengths.
    #[error("the columns of a batch do not belong together")]
    Columns,
    /// Something that must be there is not.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// A number stands for nothing this version knows.
    #[error("{number} is no {what} that this version knows")]
    Unknown {
        /// Of what.
        what: &'static str,
        /// Which.
        number: u64,
    },
    /// Larger than anything real.
    #[error("{0} beyond all bounds")]
    TooMuch(&'static str),
}

/// Who is to get a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Party {
    /// The coordinator.
    Coordinator,
    /// A worker.
    Worker(WorkerId),
}

/// A task as a worker gets it: all it needs to run it, or to judge whether a thief may have it.
#[derive(Clone, Debug, PartialEq)]
pub struct Order {
    /// Which attempt of what.
    pub held: Held,
    /// The driver's handle to what is to be done.
    pub payload: u64,
    /// Position in its array or other job.
    pub index: u32,
    /// The priority it was submitted with.
    pub priority: u8,
    /// The level it queues in.
    pub level: u8,
    /// When it should have ended.
    pub deadline: Time,
    /// Highest rank first, inverted.
    pub rank: u32,
    /// First come, first served among equals.
    pub sequence: u64,
    /// History is learned per kind.
    pub kind: KindId,
    /// How long it should take on a worker of speed 1.
    pub expected: Span,
    /// How long one attempt may run.
    pub timeout: Option<Span>,
    /// Capabilities a worker must have.
    pub requires: CapabilitySet,
    /// What it reserves while it runs.
    pub demand: Demand,
    /// Pinned, keyed, exclusive, with skills, or given to this very slot: stays where it is.
    pub bound: bool,
    /// Must never run twice at once, or together with others of its key: stops when the worker is cut off.
    pub exclusive: bool,
    /// Counts as begun when it is handed over; its worker tells if it begins later.
    pub begins: bool,
    /// One of several of a job, on which nothing waits: nobody acts on its good end alone, so that may be told of a little later,
    /// together with others.
    pub patient: bool,
}

/// What is known of a peer, as the coordinator spreads it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PeerDigest {
    /// Who.
    pub worker: WorkerId,
    /// Tasks in its queue.
    pub depth: u32,
    /// Seconds of work queued there.
    pub backlog: Span,
    /// Running tasks per slot.
    pub load: f64,
}

/// A worker introduces itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Hello {
    /// What it is.
    pub spec: WorkerSpec,
    /// Who it was the last time, if it was there before.
    pub known: Option<WorkerId>,
    /// What it holds from then.
    pub holds: Vec<Held>,
    /// When it introduced itself for the first time, by its own clock: who says so again is the same, and no further worker.
    pub born: Time,
    /// When it was sent, by the worker's own clock; comes back with the answer.
    pub sent: Time,
}

/// A sign of life, and how the worker fares.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Beat {
    /// Load of its machine.
    pub load: LoadReport,
    /// Tasks in its queue.
    pub depth: u32,
    /// Work queued.
    pub backlog: Span,
    /// As in [`Message::Want`].
    pub wants: u32,
    /// How many attempts it holds.
    pub holds: u32,
    /// The sum of [`fingerprint`]s of what it holds.
    pub fingerprint: u64,
    /// When it was sent, by the worker's own clock; comes back with the answer.
    pub sent: Time,
}

/// A thief asks for work.
#[derive(Clone, Debug, PartialEq)]
pub struct Ask {
    /// Comes back with the answer.
    pub request: u64,
    /// What the thief can do.
    pub capabilities: CapabilitySet,
    /// What a task could have that begins there next.
    pub resources: Vector,
    /// Its speed.
    pub speed: f64,
    /// Tasks it could begin at once.
    pub free: u32,
}

/// Why a peer gives nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It has too little itself.
    TooLittle,
    /// It has nothing that may go, or nothing the thief could run sooner.
    NothingFits,
    /// It leaves, or knows nobody.
    Closed,
}

/// One message. What is large and rare is boxed, so that the many small ones are cheap to pass on.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// Worker: here I am, and this is what I hold.
    Hello(Box<Hello>),
    /// Coordinator: this is who you are.
    Welcome {
        /// Its id from now on.
        worker: WorkerId,
        /// From the hello.
        sent: Time,
    },
    /// Worker: I live.
    Beat(Box<Beat>),
    /// Coordinator: I heard you. Answers every beat, and a `Want` for which there is nothing.
    Heard {
        /// From the beat or the wish.
        sent: Time,
        /// There is nothing for the worker now; it will hear when there is.
        nothing: bool,
    },
    /// Worker: I like to have so many, from now on.
    Want {
        /// How many, those that it has and those on their way included.
        count: u32,
        /// As in [`Beat`].
        sent: Time,
    },
    /// Coordinator: you like to have more, and there is nothing for you now; you will hear when there is. Said once.
    Nothing,
    /// Coordinator: these are yours.
    Hand {
        /// Counts the handings-over to this worker.
        number: u64,
        /// What.
        orders: Vec<Order>,
        /// The worker likes to have more, and there is nothing for it now.
        nothing: bool,
    },
    /// Coordinator: do not begin it, or stop it.
    Revoke {
        /// What; any hop.
        held: Held,
        /// Why.
        cause: Cause,
    },
    /// Worker: I began it. Not said of an order that [begins](Order::begins), if it did when it came.
    Began(Held),
    /// Worker: it ended. Said again until `Noted`.
    Ended {
        /// What.
        held: Held,
        /// How long it ran.
        ran: Span,
        /// How it ended.
        end: End,
    },
    /// Coordinator: that is noted; you may forget it. Goes with the next handing-over or the answer to the next beat.
    Noted(Held),
    /// Worker: it changed hands.
    Moved {
        /// What, with its new hop.
        held: Held,
        /// Who has it.
        to: WorkerId,
    },
    /// Coordinator: tell me all you hold.
    Show {
        /// Comes back with the answer.
        number: u64,
    },
    /// Worker: this is all I hold, what I have offered included.
    Holds {
        /// From the question.
        number: u64,
        /// The latest handing-over it has seen.
        seen: u64,
        /// All of it.
        holds: Vec<Held>,
    },
    /// Victim to the coordinator: I offered it to somebody and heard nothing. Whose is it?
    Whose {
        /// What, with the hop it was offered under.
        held: Held,
        /// To whom.
        thief: WorkerId,
    },
    /// Coordinator to the thief: do you have it? If not, never take it.
    Deny {
        /// What.
        held: Held,
    },
    /// Thief to the coordinator: that one is not mine and never will be.
    Denied {
        /// What.
        held: Held,
    },
    /// Coordinator to the victim: it is yours again, or not.
    Ruling {
        /// What, as asked.
        held: Held,
        /// Whether the victim has it again.
        yours: bool,
    },
    /// Coordinator: some of your peers that have something queued; if there are none, nobody has.
    Digest(Vec<PeerDigest>),
    /// Thief to victim: have you anything for me?
    Ask(Box<Ask>),
    /// Victim to thief: take these.
    Offer {
        /// From the question.
        request: u64,
        /// What.
        orders: Vec<Order>,
        /// How much it still has, so that the thief knows whether to come again.
        depth: u32,
    },
    /// Victim to thief: no.
    Refuse {
        /// From the question.
        request: u64,
        /// Why.
        reason: Reason,
        /// How much it has, so that the thief knows better.
        depth: u32,
    },
    /// Thief to victim: they are mine now.
    Accept {
        /// What.
        holds: Vec<Held>,
    },
}

/// Orders in one message.
pub(crate) const ORDERS: usize = 256;

impl Message {
    /// Makes one message of this and the one that follows it right away, where that says the same; else the other comes
    /// back.
    pub fn join(&mut self, next: Message) -> Option<Message> {
        match (self, next) {
            (
                Message::Hand { number, orders, nothing },
                Message::Hand { number: later, orders: mut more, nothing: now },
            ) if orders.len() + more.len() <= ORDERS => {
                *number = later.max(*number);
                *nothing = now;
                orders.append(&mut more);
                None
            }
            (_, next) => Some(next),
        }
    }

    /// Whether a coordinator sends this only when all that it recorded before is durable. A worker that is told that an end
    /// is noted forgets it; and what must never run twice at once is handed over only when whoever comes after this
    /// coordinator will know who has it.
    #[must_use]
    pub fn waits_for_store(&self) -> bool {
        match self {
            _ if makes(Mistake::AcknowledgeBeforeSync) => false,
            Message::Noted(_) => true,
            Message::Hand { orders, .. } => orders.iter().any(|order| order.exclusive),
            _ => false,
        }
    }
}

/// What a holding adds to the sum that worker and coordinator compare.
#[must_use]
pub fn fingerprint(held: &Held) -> u64 {
    // The task first by itself: a hop must not look like some bits of a task's number.
    let task = held.task.to_bits().wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut bits = (task ^ (task >> 32)).wrapping_add(u64::from(held.attempt) << 32 | u64::from(held.hop));
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_told_apart_by_its_fingerprint() {
        let held = |task: u64, attempt, hop| Held { task: crate::ids::TaskId::from_bits(task), attempt, hop };
        // A hop counted like a bit of the task's number: these two were one.
        assert_ne!(fingerprint(&held(105_423, 1, 1)), fingerprint(&held(236_495, 1, 0)));
        let mut all = std::collections::BTreeSet::new();
        let tasks = (0..64_u32).flat_map(|bit| [1 << bit, 3 << bit.min(62), (1 << bit) - 1]).chain(0..20_000);
        let tasks: std::collections::BTreeSet<u64> = tasks.collect();
        for &task in &tasks {
            for (attempt, hop) in [(1, 0), (1, 1), (1, 2), (1, 3), (2, 0), (2, 1), (3, 0), (4096, 0)] {
                assert!(all.insert(fingerprint(&held(task, attempt, hop))), "{task} {attempt} {hop}");
            }
        }
    }

    /// Messages are moved several times between the machines and the network.
    #[test]
    fn a_message_is_small() {
        assert!(size_of::<Message>() <= 48, "{}", size_of::<Message>());
    }
}
