//! What everybody who is connected gets: one parcel at the end of a turn.
//!
//! What nobody waits for waits for a parcel to go with, so that a worker is not woken for it. Never says what is sent.

use filch_core::coordinator::Input;
use filch_core::wire::Message;
use filch_core::wire::talk::Packet;
use filch_core::{Span, Time, WorkerId};

use super::desk::Desk;
use crate::link::HEAVY;

/// How long a message that nobody waits for waits for another to go with.
const ALONG: Span = Span::from_millis(20);

impl Desk {
    /// What a connection gets at the end of this turn.
    pub(super) fn parcel(&mut self, connection: u64) -> Option<&mut Packet> {
        let found = self.connections.get_mut(&connection)?;
        if !std::mem::replace(&mut found.dirty, true) {
            self.dirty.push(connection);
        }
        Some(&mut found.parcel.packet)
    }

    /// So many bytes were put into the parcel of a connection: it goes at once if it has become heavy.
    pub(super) fn loaded(&mut self, connection: u64, bytes: usize) {
        let epoch = self.machine.epoch();
        let Some(found) = self.connections.get_mut(&connection) else { return };
        found.bytes += bytes;
        if found.bytes > HEAVY {
            found.bytes = 0;
            let mut parcel = std::mem::take(&mut found.parcel);
            parcel.epoch = epoch;
            // Whoever takes nothing any more is noticed at the end of the turn.
            let _ = found.out.send(parcel);
        }
    }

    pub(super) fn push_message(&mut self, connection: u64, message: Message) {
        if self.parcel(connection).is_some()
            && let Some(found) = self.connections.get_mut(&connection)
        {
            let messages = &mut found.parcel.messages;
            let rest = match messages.last_mut() {
                Some(last) => last.join(message),
                None => Some(message),
            };
            messages.extend(rest);
        }
    }

    /// Whether a worker will be told more soon, since it has more to do than to hear that its ends are noted.
    pub(super) fn has_work(&self, worker: WorkerId) -> bool {
        self.machine.scheduler().holds(worker).is_some_and(|(count, _)| count > 0)
    }

    /// Sends a message that nobody waits for with the next parcel that goes to the same worker, or a little later by itself.
    pub(super) fn send_along(&mut self, to: WorkerId, message: Message) {
        let Some(connection) = self.seat(to).and_then(|seat| seat.connection) else { return };
        let Some(found) = self.connections.get_mut(&connection) else { return };
        found.parcel.messages.push(message);
        if !found.dirty {
            self.along.insert(connection);
            self.along_due.get_or_insert(self.now + ALONG);
        }
    }

    /// When messages go by themselves that nothing came to take along.
    pub(super) fn along_due(&self) -> Option<Time> {
        self.along_due
    }

    fn send_what_waits(&mut self) {
        self.along_due = None;
        for connection in std::mem::take(&mut self.along) {
            if self.connections.get(&connection).is_some_and(|found| !found.parcel.messages.is_empty()) {
                // It is marked as one that gets something.
                let _ = self.parcel(connection);
            }
        }
    }

    /// The last turn: workers that were told to leave too wait for nothing that is known already.
    pub(super) fn close(&mut self) {
        self.put(Input::Closing);
        self.end_turn();
        self.send_what_waits();
        self.post();
    }

    /// Sends what there is for everybody.
    pub(super) fn post(&mut self) {
        if self.along_due.is_some_and(|at| at <= self.now) {
            self.send_what_waits();
        }
        let epoch = self.machine.epoch();
        for connection in std::mem::take(&mut self.dirty) {
            let Some(found) = self.connections.get_mut(&connection) else { continue };
            (found.dirty, found.bytes) = (false, 0);
            let mut parcel = std::mem::take(&mut found.parcel);
            parcel.epoch = epoch;
            if !found.out.send(parcel) {
                self.gone(connection, "the connection takes nothing more");
            }
        }
    }
}
