//! Workers as people know them: names, cards, and which connection is whose.

use std::sync::Arc;

use filch_core::coordinator::Input;
use filch_core::names::{NameError, Sort};
use filch_core::steal::StealStats;
use filch_core::wire::talk::{NewName, PeerSteals, Steals, WorkerCard, WorkerNote};
use filch_core::{Amount, CapabilityId, CapabilitySet, Event, ResourceId, Vector, WorkerId, WorkerSpec, WorkerState};

use rustc_hash::FxHashMap;

use super::desk::{Desk, Seat};
use super::history::Item as Past;

/// Peers of a worker that are kept apart, whatever it says.
const PEERS_KEPT: usize = 64;
/// Workers that have gone whose names are remembered: under the same name they are the same.
const FORMER_KEPT: usize = 4096;

impl Seat {
    /// A worker has said how its steals went.
    pub(super) fn count_steals(&mut self, said: &Steals) {
        self.steals = StealStats::from(said);
        self.relayed = said.relayed;
        let peer = |one: &PeerSteals| {
            let steals = one.steals.as_deref()?;
            Some((WorkerId::from_bits(one.worker), StealStats::from(steals)))
        };
        self.steals_by_peer = said.peers.iter().take(PEERS_KEPT).filter_map(peer).collect();
    }
}

impl Desk {
    pub(super) fn seat(&self, worker: WorkerId) -> Option<&Seat> {
        self.seats.get(worker.index())?.as_ref().filter(|seat| seat.id == worker)
    }

    pub(super) fn seat_mut(&mut self, worker: WorkerId) -> Option<&mut Seat> {
        self.seats.get_mut(worker.index())?.as_mut().filter(|seat| seat.id == worker)
    }

    pub(super) fn worker_name(&self, worker: WorkerId) -> String {
        self.seat(worker).map_or_else(|| worker.to_string(), |seat| seat.name.to_string())
    }

    pub(super) fn number(&mut self, sort: Sort, name: &str) -> Result<u32, NameError> {
        if let Some(known) = self.names.known(sort, name)? {
            return Ok(known);
        }
        let number = self.names.number(sort, name)?;
        self.page.names.push(NewName { sort: sort as u32, name: name.to_owned() });
        Ok(number)
    }

    /// The description of a worker that the machine gets.
    pub(super) fn worker_spec(&mut self, card: &WorkerCard, tag: u64) -> Result<WorkerSpec, NameError> {
        let mut capabilities = Vec::with_capacity(card.capabilities.len());
        for name in &card.capabilities {
            capabilities.push(CapabilityId(self.number(Sort::Capability, name)?));
        }
        let pairs: Vec<(String, f64)> = card.resources.iter().map(|one| (one.name.clone(), one.amount)).collect();
        let pairs = pairs.iter().map(|(name, amount)| (name.as_str(), *amount));
        let resources: Vec<(ResourceId, Amount)> =
            filch_core::names::amounts(pairs, |sort, name| self.number(sort, name))?;
        Ok(WorkerSpec {
            tag,
            capabilities: capabilities.into_iter().collect::<CapabilitySet>(),
            resources: Vector::new(resources),
            slots: card.slots.clamp(1, 1 << 16),
            ..WorkerSpec::default()
        })
    }

    /// A worker wants to connect: the numbers of what it can do and has, or why not.
    pub(super) fn check_in(&mut self, card: &WorkerCard, connection: u64) -> Result<(Vec<u32>, Vec<u32>), String> {
        if card.name.is_empty() {
            return Err("a worker needs a name".to_owned());
        }
        if let Some(id) = self.worker_names.get(card.name.as_str())
            && self.seat(*id).is_some_and(|seat| seat.connection.is_some())
            && card.known != Some(id.to_bits())
        {
            return Err(format!("a worker `{}` is connected already; give this one another --name", card.name));
        }
        self.worker_spec(card, connection).map_err(|error| error.to_string())?;
        let capabilities = card.capabilities.iter().filter_map(|name| self.names.table(Sort::Capability).get(name));
        let resources = card.resources.iter().filter_map(|one| self.names.table(Sort::Resource).get(&one.name));
        Ok((capabilities.collect(), resources.collect()))
    }

    /// A worker introduces itself to the machine.
    pub(super) fn greet(&mut self, connection: u64, mut hello: Box<filch_core::wire::Hello>) {
        let Some(found) = self.connections.get(&connection) else { return };
        let Some(card) = found.card.clone() else { return };
        // What it is was said when it connected; nobody else's numbers are believed.
        let Ok(spec) = self.worker_spec(&card, connection) else { return };
        hello.spec = spec;
        hello.known = hello.known.filter(|worker| self.seat(*worker).is_some_and(|seat| *seat.name == *card.name));
        self.put(Input::Hello(hello));
    }

    pub(super) fn joined(&mut self, connection: u64, worker: WorkerId) {
        let Some(found) = self.connections.get_mut(&connection) else { return };
        found.worker = Some(worker);
        let Some(card) = found.card.clone() else { return };
        let name: Arc<str> = card.name.as_str().into();
        if let Some(seat) = self.seat_mut(worker) {
            // The one it had before is dead, whether it knows or not.
            let before = seat.connection.replace(connection);
            seat.card = card;
            if before != Some(connection) {
                tracing::info!(worker = %name, "a worker is back");
            }
            if let Some(before) = before.filter(|before| *before != connection) {
                self.connections.remove(&before);
            }
            // One that had the name too, in an earlier life of the coordinator: this one is there.
            if let Some(former) = self.worker_names.insert(name, worker).filter(|former| *former != worker) {
                self.succeeds(worker, former);
            }
            if self.machine.scheduler().worker_state(worker) == Some(WorkerState::Draining) {
                // Perhaps it was away when it was to hear that.
                self.tell_to_drain(worker);
            }
            return;
        }
        let at = worker.index();
        if at >= self.seats.len() {
            self.seats.resize_with(at + 1, || None);
        }
        self.page.workers.push(WorkerNote { worker: worker.to_bits(), name: card.name.clone() });
        self.remember(Past::Worker { id: worker.to_bits(), name: Arc::clone(&name) });
        let former = self.worker_names.insert(Arc::clone(&name), worker).or_else(|| self.former.remove(&name));
        tracing::info!(worker = %name, address = %card.address, "a worker has joined");
        self.seats[at] = Some(Seat {
            id: worker,
            name,
            connection: Some(connection),
            card,
            steals: StealStats::default(),
            steals_by_peer: Vec::new(),
            relayed: 0,
        });
        if let Some(former) = former {
            self.succeeds(worker, former);
        }
    }

    /// The connection of a worker has ended. One that was drained and has nothing left is gone for good.
    pub(super) fn disconnected(&mut self, worker: WorkerId, connection: u64, why: &str) {
        let Some(seat) = self.seat_mut(worker).filter(|seat| seat.connection == Some(connection)) else { return };
        seat.connection = None;
        let name = Arc::clone(&seat.name);
        self.put(Input::Left(worker));
        if self.seat(worker).is_some() {
            tracing::warn!(worker = %name, why, "lost a worker: what it has is given to others if it does not come back");
        } else {
            tracing::info!(worker = %name, "a worker has left");
        }
    }

    pub(super) fn restore_seat(&mut self, worker: WorkerId, name: &str) {
        let at = worker.index();
        if at >= self.seats.len() {
            self.seats.resize_with(at + 1, || None);
        }
        let name: Arc<str> = name.into();
        self.worker_names.insert(Arc::clone(&name), worker);
        let card = Box::new(WorkerCard { name: name.to_string(), ..WorkerCard::default() });
        self.seats[at] = Some(Seat {
            id: worker,
            name,
            connection: None,
            card,
            steals: StealStats::default(),
            steals_by_peer: Vec::new(),
            relayed: 0,
        });
    }

    /// A worker was started in the place of another.
    pub(super) fn succeeds(&mut self, worker: WorkerId, former: WorkerId) {
        // Of one that is gone too it is not worth knowing.
        let _ = self.put_event(Event::Succeeds { worker, former });
    }

    /// Who had which name last: that one has it, or would be the same if it came back.
    pub(super) fn restore_names(&mut self, named: FxHashMap<String, WorkerId>) {
        for (name, worker) in named {
            if self.seat(worker).is_some() {
                self.worker_names.insert(name.into(), worker);
            } else {
                self.remember_former(name.into(), worker);
            }
        }
    }

    fn remember_former(&mut self, name: Arc<str>, worker: WorkerId) {
        if self.former.insert(Arc::clone(&name), worker).is_none() {
            self.former_order.push_back(name);
        }
        // Some of them have a worker again, and are not there any more.
        while self.former_order.len() > FORMER_KEPT
            && let Some(oldest) = self.former_order.pop_front()
        {
            self.former.remove(&oldest);
        }
    }

    pub(super) fn unseat(&mut self, worker: WorkerId) {
        self.end_looks_of_settled();
        let Some(seat) = self.seats.get_mut(worker.index()) else { return };
        if let Some(seat) = seat.take_if(|seat| seat.id == worker) {
            // Whose connection had ended was told of when it did.
            if seat.connection.is_some() {
                tracing::warn!(worker = %seat.name, "lost a worker: it is connected and says nothing");
            }
            tracing::debug!(worker = %seat.name, id = %worker, "no member any more");
            if self.worker_names.get(&seat.name) == Some(&worker) {
                self.worker_names.remove(&seat.name);
                self.remember_former(Arc::clone(&seat.name), worker);
            }
            self.steals_gone.add(&seat.steals);
        }
    }
}
