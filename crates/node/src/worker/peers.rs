//! The ways of a worker to its peers: within this process, by connections made when they are needed, and through the
//! coordinator where neither is possible.
//!
//! Never says what is sent. A peer that cannot be reached directly is not tried again for a while.

use std::sync::{Arc, Mutex, PoisonError};

use filch_core::wire::Message;
use filch_core::wire::talk::{Packet, Peer, Relay};
use filch_core::{Span, Time, WorkerId};
use prost::Message as _;
use rustc_hash::FxHashMap;

use super::Event;
use super::inbox::Inbox;
use crate::dial::{DialError, knock};
use crate::link::{Outgoing, Parcel};

/// How long a peer that cannot be reached is not tried.
const DETOUR: Span = Span::from_secs(30);
/// How long a connection stays that nobody uses.
const IDLE: Span = Span::from_secs(120);
/// How long a peer may leave a question unanswered before a connection to it counts as dead. Every question is answered at
/// once, if only by a refusal, and there is another way.
const UNANSWERED: Span = Span::from_secs(1);
/// How long after something was sent its loss is worth telling the machine.
const RECENT: Span = Span::from_secs(2);
/// Addresses that are remembered.
const MOST_KNOWN: usize = 4096;

/// Workers in this process that reach each other without a socket. Those that share it must belong to one coordinator.
#[derive(Clone, Default)]
pub struct Neighbours(Arc<Mutex<FxHashMap<u64, Inbox>>>);

impl std::fmt::Debug for Neighbours {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Neighbours")
    }
}

impl Neighbours {
    fn change(&self, own: Option<WorkerId>, to: Option<WorkerId>, inbox: &Inbox) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = own
            && all.get(&own.to_bits()).is_some_and(|entry| entry.is(inbox))
        {
            all.remove(&own.to_bits());
        }
        if let Some(to) = to {
            all.insert(to.to_bits(), inbox.clone());
        }
    }

    fn find(&self, peer: WorkerId) -> Option<Inbox> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&peer.to_bits()).cloned()
    }
}

enum Way {
    /// Not tried yet.
    Unknown,
    /// Being connected; what is to be sent waits.
    #[expect(clippy::vec_box, reason = "parcels are large, and stay where they are")]
    Knocking(Vec<Box<Parcel>>),
    Direct(Outgoing),
    /// Through the coordinator, until then.
    Detour(Time),
}

struct Link {
    /// Tells apart connections to the same peer.
    number: u64,
    way: Way,
    /// What goes out next.
    parcel: Option<Box<Parcel>>,
    used: Time,
    /// When a question was sent directly, if nothing was heard since.
    asked: Option<Time>,
}

impl Link {
    /// What is sent goes through the coordinator for a while.
    fn go_round(&mut self, now: Time) {
        self.way = Way::Detour(now + DETOUR);
        self.asked = None;
    }
}

/// All peers of a worker.
pub(super) struct Peers {
    inbox: Inbox,
    neighbours: Option<Neighbours>,
    own: Option<WorkerId>,
    cards: FxHashMap<WorkerId, Peer>,
    links: FxHashMap<WorkerId, Link>,
    dirty: Vec<WorkerId>,
    numbers: u64,
    tidied: Time,
    /// Messages that went through the coordinator.
    pub(super) relayed: u64,
}

impl Peers {
    pub(super) fn new(inbox: Inbox, neighbours: Option<Neighbours>) -> Peers {
        Peers {
            inbox,
            neighbours,
            own: None,
            cards: FxHashMap::default(),
            links: FxHashMap::default(),
            dirty: Vec::new(),
            numbers: 0,
            tidied: Time::ZERO,
            relayed: 0,
        }
    }

    /// Who this worker is; peers that know it by another name are let go.
    pub(super) fn known_as(&mut self, own: Option<WorkerId>) {
        if self.own == own {
            return;
        }
        if let Some(neighbours) = &self.neighbours {
            neighbours.change(self.own, own, &self.inbox);
        }
        self.own = own;
        self.links.clear();
    }

    /// Where peers are.
    pub(super) fn learn(&mut self, peers: Vec<Peer>) {
        if self.cards.len() > MOST_KNOWN {
            self.cards.clear();
        }
        for peer in peers {
            let worker = WorkerId::from_bits(peer.worker);
            if let Some(known) = self.cards.get(&worker)
                && *known != peer
            {
                // It has moved; what was tried before says nothing.
                self.links.remove(&worker);
            }
            self.cards.insert(worker, peer);
        }
    }

    /// What a peer gets next.
    pub(super) fn parcel(&mut self, peer: WorkerId, now: Time) -> &mut Parcel {
        let link = self.links.entry(peer).or_insert_with(|| Link {
            number: 0,
            way: Way::Unknown,
            parcel: None,
            used: now,
            asked: None,
        });
        link.used = now;
        if link.parcel.is_none() {
            self.dirty.push(peer);
        }
        link.parcel.get_or_insert_default()
    }

    /// Whether there is anything to send.
    pub(super) fn have_mail(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Sends what there is. What must go through the coordinator is added to `relays`; if that cannot be reached either,
    /// those for whom it was are returned.
    pub(super) fn post(&mut self, now: Time, mut relays: Option<&mut Vec<Relay>>) -> Vec<WorkerId> {
        let mut unreachable = Vec::new();
        for peer in std::mem::take(&mut self.dirty) {
            let Some(parcel) = self.links.get_mut(&peer).and_then(|link| link.parcel.take()) else { continue };
            for parcel in parcel.in_parts() {
                let Some(parcel) = self.send(peer, parcel, now) else { continue };
                match &mut relays {
                    Some(relays) => self.relay(peer, parcel, relays),
                    None if unreachable.last() == Some(&peer) => {}
                    None => unreachable.push(peer),
                }
            }
        }
        unreachable
    }

    /// Sends directly, or gives the parcel back.
    fn send(&mut self, peer: WorkerId, parcel: Box<Parcel>, now: Time) -> Option<Box<Parcel>> {
        let own = self.own?;
        if let Some(near) = self.neighbours.as_ref().and_then(|all| all.find(peer)) {
            // One that has just gone is noticed by the machine's own timers.
            let _ = near.send(Event::Near { from: own, parcel });
            return None;
        }
        let link = self.links.get_mut(&peer)?;
        if matches!(link.way, Way::Direct(_))
            && parcel.messages.iter().any(|message| matches!(message, Message::Ask(_)))
        {
            let since = *link.asked.get_or_insert(now);
            if now.since(since) >= UNANSWERED {
                tracing::warn!(%peer, "a peer does not answer; messages to it go through the coordinator");
                link.go_round(now);
            }
        }
        match &mut link.way {
            Way::Direct(out) => {
                if !out.send(parcel) {
                    link.way = Way::Unknown;
                }
                return None;
            }
            Way::Knocking(waiting) => {
                waiting.push(parcel);
                return None;
            }
            Way::Detour(until) if now < *until => return Some(parcel),
            Way::Detour(_) | Way::Unknown => {}
        }
        let Some(card) = self.cards.get(&peer).filter(|card| !card.address.is_empty()).cloned() else {
            return Some(parcel);
        };
        self.numbers += 1;
        let number = self.numbers;
        (link.number, link.way) = (number, Way::Knocking(vec![parcel]));
        let inbox = self.inbox.clone();
        tokio::spawn(async move {
            let deliver = inbox.clone();
            let deliver = move |arrival| deliver.hand_over(Event::Peer { peer, number, arrival });
            let outcome = knock(&card, own.to_bits(), deliver).await;
            // Nobody listens any more if the worker has ended.
            let _ = inbox.send(Event::Knocked { peer, number, outcome });
        });
        None
    }

    fn relay(&mut self, peer: WorkerId, mut parcel: Box<Parcel>, relays: &mut Vec<Relay>) {
        self.relayed += parcel.messages.len() as u64;
        relays.push(Relay { worker: peer.to_bits(), packet: parcel.as_packet().encode_to_vec().into() });
    }

    /// A peer was connected to, or not.
    pub(super) fn knocked(&mut self, peer: WorkerId, number: u64, outcome: Result<Outgoing, DialError>, now: Time) {
        let Some(link) = self.links.get_mut(&peer).filter(|link| link.number == number) else { return };
        let Way::Knocking(waiting) = &mut link.way else { return };
        let waiting = std::mem::take(waiting);
        match outcome {
            Ok(out) => {
                for parcel in waiting {
                    out.send(parcel);
                }
                link.way = Way::Direct(out);
                link.asked = None;
            }
            Err(error) => {
                tracing::warn!(%peer, %error, "cannot reach a peer; messages to it go through the coordinator");
                link.go_round(now);
                for waiting in waiting {
                    self.add(peer, waiting, now);
                }
            }
        }
    }

    /// Adds what waited to what goes out at the end of this turn.
    fn add(&mut self, peer: WorkerId, waiting: Box<Parcel>, now: Time) {
        let parcel = self.parcel(peer, now);
        let Parcel { messages, packet, .. } = *waiting;
        parcel.messages.extend(messages);
        let Packet { bodies, inputs, .. } = packet;
        parcel.packet.bodies.extend(bodies);
        parcel.packet.inputs.extend(inputs);
    }

    /// A peer has connected by itself.
    pub(super) fn entered(&mut self, peer: WorkerId, number: u64, out: Outgoing, now: Time) {
        let waiting = match self.links.remove(&peer) {
            Some(Link { way: Way::Direct(_), .. }) | None => Vec::new(),
            Some(Link { way: Way::Knocking(waiting), parcel, .. }) => waiting.into_iter().chain(parcel).collect(),
            Some(Link { parcel, .. }) => parcel.into_iter().collect(),
        };
        let way = Way::Direct(out);
        let link = Link { number, way, parcel: None, used: now, asked: None };
        self.links.insert(peer, link);
        self.dirty.retain(|other| *other != peer);
        for waiting in waiting {
            self.add(peer, waiting, now);
        }
    }

    /// A connection has ended; whether the machine should know.
    pub(super) fn closed(&mut self, peer: WorkerId, number: u64, now: Time) -> bool {
        let Some(link) = self.links.get_mut(&peer).filter(|link| link.number == number) else { return false };
        if !matches!(link.way, Way::Direct(_)) {
            return false;
        }
        link.way = Way::Unknown;
        now.since(link.used) < RECENT
    }

    /// A message has come over a connection.
    pub(super) fn heard(&mut self, peer: WorkerId, now: Time) {
        if let Some(link) = self.links.get_mut(&peer) {
            link.used = now;
            link.asked = None;
        }
    }

    /// A message has come through the coordinator: the peer has no other way, so a connection to it that is still open here
    /// leads nowhere.
    pub(super) fn heard_round(&mut self, peer: WorkerId, now: Time) {
        if let Some(link) = self.links.get_mut(&peer)
            && matches!(link.way, Way::Direct(_))
        {
            link.go_round(now);
        }
    }

    /// Lets go of connections that nobody uses.
    pub(super) fn tidy(&mut self, now: Time) {
        if now.since(self.tidied) < Span(IDLE.0 / 4) {
            return;
        }
        self.tidied = now;
        self.links.retain(|_, link| link.parcel.is_some() || now.since(link.used) < IDLE);
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        if let Some(neighbours) = &self.neighbours {
            neighbours.change(self.own, None, &self.inbox);
        }
    }
}

/// Whether a message is one that peers send each other.
pub(super) fn is_between_peers(message: &Message) -> bool {
    matches!(message, Message::Ask(_) | Message::Offer { .. } | Message::Refuse { .. } | Message::Accept { .. })
}
