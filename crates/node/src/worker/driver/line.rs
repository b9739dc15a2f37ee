//! The line of a worker to its coordinator: made, lost, and made again for as long as it takes.

use filch_core::wire::talk::{Answer, Role, WorkerCard};
use filch_core::worker::Input;
use filch_core::{Span, Time};

use super::{Detained, Driver, Leaving, new_machine};
use crate::dial::{Dial, DialError};
use crate::link::Outgoing;
use crate::worker::inbox::{Inbox, Listener};
use crate::worker::{Event, WorkerFailure, WorkerOptions};

/// How often it is said that results wait for a coordinator that is gone.
const MENTION: Span = Span::from_secs(30);

/// How a worker stands with its coordinator.
pub(in crate::worker) enum Line {
    /// Connected.
    Up(Outgoing),
    /// On the way; lost already, if the other side has gone before the connection was seen here.
    Dialing { gone: bool },
    /// Tries again then.
    Down { retry: Time },
}

/// A coordinator that has let a worker in.
pub(in crate::worker) struct Contact {
    pub(super) answer: Answer,
    pub(super) out: Outgoing,
    pub(super) generation: u64,
    /// What came meanwhile.
    pub(super) early: Vec<Event>,
}

/// Dials until somebody answers; nothing if the worker is to leave before that.
pub(in crate::worker) async fn first_contact(
    dial: &Dial,
    card: &WorkerCard,
    options: &WorkerOptions,
    listener: &Listener,
) -> Result<Option<Contact>, WorkerFailure> {
    let mut early = Vec::new();
    let mut generation = 0;
    loop {
        generation += 1;
        let connecting = dial.connect(Role::Worker(card.clone()), deliver(listener.0.clone(), generation));
        tokio::pin!(connecting);
        let outcome = loop {
            tokio::select! {
                outcome = &mut connecting => break outcome,
                () = listener.wait() => if is_to_leave(listener, &mut early) {
                    return Ok(None);
                },
            }
        };
        let pause = match outcome {
            Ok((answer, out)) => {
                // A warning, as is what it says when it loses the coordinator: people who have not asked for more see both.
                tracing::info!(worker = %card.name, coordinator = %dial, "connected");
                return Ok(Some(Contact { answer, out, generation, early }));
            }
            Err(DialError::Refused(why)) => return Err(WorkerFailure::Refused(why)),
            Err(DialError::Again(why)) => {
                let pause = options.backoff.pause(generation as u32);
                tracing::warn!(%why, ?pause, "no coordinator yet");
                pause
            }
        };
        let pausing = tokio::time::sleep(pause);
        tokio::pin!(pausing);
        loop {
            tokio::select! {
                () = &mut pausing => break,
                () = listener.wait() => if is_to_leave(listener, &mut early) {
                    return Ok(None);
                },
            }
        }
    }
}

/// Takes what has come; whether the worker is to leave.
fn is_to_leave(listener: &Listener, early: &mut Vec<Event>) -> bool {
    let before = early.len();
    listener.0.take(early);
    early[before..].iter().any(|event| matches!(event, Event::Drain | Event::Stop))
}

fn deliver(inbox: Inbox, generation: u64) -> impl Fn(crate::link::Arrival) -> bool + Send + Sync + 'static {
    move |arrival| inbox.send(Event::Coordinator { generation, arrival })
}

impl Driver {
    /// The coordinator was reached, or not.
    pub(super) fn connected(
        &mut self,
        generation: u64,
        outcome: Result<(Answer, Outgoing), DialError>,
    ) -> Result<(), WorkerFailure> {
        let Line::Dialing { gone } = self.line else { return Ok(()) };
        if generation != self.generation {
            return Ok(());
        }
        let why = match outcome {
            Err(DialError::Refused(why)) => return Err(WorkerFailure::Refused(why)),
            Err(DialError::Again(why)) => why,
            Ok(_) if gone => "it closed the connection at once".to_owned(),
            Ok((answer, out)) => return self.reattach(&answer, out),
        };
        self.failures += 1;
        tracing::warn!(%why, "no coordinator");
        self.line = self.down();
        Ok(())
    }

    fn reattach(&mut self, answer: &Answer, out: Outgoing) -> Result<(), WorkerFailure> {
        let numbers = (answer.capabilities.clone(), answer.resources.clone());
        if numbers != self.numbers || answer.epoch < self.epoch {
            // It has forgotten everything, and knows nothing of what runs here.
            tracing::warn!("this is another coordinator, or it has lost its store: beginning anew");
            self.runs.clear();
            self.at_once.clear();
            self.endings.clear();
            self.peers.known_as(None);
            let (machine, config) = new_machine(&self.card, answer)?;
            (self.machine, self.lease) = (machine, config.limits.lease);
            self.numbers = numbers;
            self.epoch = answer.epoch;
        }
        tracing::info!(worker = %self.card.name, "connected again");
        // One that says nothing counts as no connection.
        self.failures += 1;
        self.line = Line::Up(out);
        self.heard = self.now;
        self.step(Input::Connected);
        if self.leaving != Leaving::No {
            self.post.packet.drain = true;
            self.step(Input::Drain);
        }
        Ok(())
    }

    /// Not connected, and not before a pause: those who lost the same coordinator do not all come back at once.
    fn down(&self) -> Line {
        let pause = self.options.backoff.pause(self.failures.max(1));
        Line::Down { retry: self.now + Span(u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX)) }
    }

    /// The connection is gone.
    pub(super) fn lost(&mut self, why: &str) {
        match &mut self.line {
            Line::Up(_) => {
                tracing::warn!(worker = %self.card.name, why, "lost the coordinator");
                self.bodies.disconnected();
                self.line = self.down();
            }
            Line::Dialing { gone } => *gone = true,
            Line::Down { .. } => {}
        }
    }

    /// Looks whether the line is still good, and makes a new one if it is time.
    pub(super) fn watch_line(&mut self) {
        if matches!(self.line, Line::Up(_)) && self.now.since(self.heard) > self.lease {
            self.lost("it has not answered for a whole lease");
        }
        self.mention_what_waits();
        let Line::Down { retry } = self.line else { return };
        if retry > self.now {
            return;
        }
        self.generation += 1;
        self.line = Line::Dialing { gone: false };
        let (dial, inbox, generation) = (self.dial.clone(), self.inbox.clone(), self.generation);
        let known = self.machine.id().map(filch_core::WorkerId::to_bits);
        let role = Role::Worker(WorkerCard { known, ..self.card.clone() });
        tokio::spawn(async move {
            let outcome = dial.connect(role, deliver(inbox.clone(), generation)).await;
            // Nobody listens any more if the worker has ended.
            let _ = inbox.send(Event::Connected { generation, outcome });
        });
    }

    /// Says now and then why a worker with nothing left to do does not leave: nobody takes its results.
    fn mention_what_waits(&mut self) {
        let idle = self.runs.is_empty() && self.at_once.is_empty();
        let alone = self.leaving == Leaving::Drained && !matches!(self.line, Line::Up(_));
        if !alone || !idle {
            // Every turn comes here: what it holds, which may be much, is counted only beyond.
            self.detained = None;
            return;
        }
        let (results, unbegun) = (self.machine.unnoted(), self.machine.holds().count());
        if results + unbegun == 0 {
            self.detained = None;
            return;
        }
        let now = self.now;
        let since = self.detained.map_or(now, |detained| detained.since);
        if self.is_given_up() {
            tracing::warn!(
                results,
                unbegun,
                "the coordinator was not back in time: this worker leaves without its results, and their tasks are run again elsewhere"
            );
        } else if self.detained.is_none_or(|detained| now.since(detained.said) >= MENTION) {
            self.detained = Some(Detained { since, said: now });
            let most_s = self.stays().as_secs_f64();
            tracing::warn!(
                results,
                unbegun,
                most_s,
                coordinator = %self.dial,
                "this worker is done but stays: its results wait for a coordinator that cannot be reached, and are reported if it comes back \
                 in time. Stopped now (Ctrl-C or SIGTERM once more) it leaves without them, and their tasks are run again elsewhere"
            );
        }
    }

    /// How long a worker that is done waits for a coordinator that is gone. After two leases nothing of its is waited for by
    /// the next coordinator either.
    fn stays(&self) -> Span {
        Span(self.lease.0.saturating_mul(2))
    }

    /// Whether it has waited long enough for somebody to take its results.
    pub(super) fn is_given_up(&self) -> bool {
        self.detained.is_some_and(|detained| self.now.since(detained.since) >= self.stays())
    }
}
