//! When the coordinator is told how runs go: at once, unless there is soon more to tell and nobody waits for it here.
//!
//! Every report wakes the coordinator and its store, which costs about as much as a short program does. So a worker that has
//! work for all its slots and some left tells of several good ends at a time; so does a thief that has work, if the
//! coordinator has none and nobody waits for those ends. One that has just asked a peer for work tells of its end together
//! with what comes of that. Whatever else is said to the coordinator takes along what waits. Never keeps a failure waiting,
//! nor the end of something that must not run twice, since others may have to act on it; nor anything when it leaves.

use super::{Output, Thief, WorkerMachine};
use crate::event::Held;
use crate::ids::WorkerId;
use crate::time::{Span, Time};
use crate::wire::{Message, Party};

/// How long a report waits for others at the most.
const LONGEST: Span = Span::from_millis(8);
/// The same where nobody acts on an end alone: shorter than what people see, and what a worker that dies has done in vain.
const LONGEST_OF_PATIENT: Span = Span::from_millis(25);
/// How long it waits for the answer of a peer.
const ANSWER: Span = Span::from_millis(2);
/// Ends that wait at the most.
const MOST: usize = 64;

impl WorkerMachine {
    /// Has changed hands. The other side says so too, and nobody acts on it unless one of them is lost.
    pub(super) fn report_move(&mut self, held: Held, to: WorkerId) {
        self.reports.push(Message::Moved { held, to });
        self.report_soon(false);
    }

    /// There is something to be said of a run.
    pub(super) fn report_soon(&mut self, patient: bool) {
        let after = self.report_after(patient).unwrap_or(ANSWER);
        self.report_at = self.report_at.min(self.now + after);
    }

    /// Says what waited to be said.
    pub(super) fn report(&mut self, out: &mut Vec<Output>) {
        if self.report_at == Time::NEVER {
            return;
        }
        self.report_at = Time::NEVER;
        self.awaited = false;
        let say = |message| Output::Send { to: Party::Coordinator, message };
        out.extend(self.reports.drain(..).map(say));
        if std::mem::take(&mut self.untold) > 0 {
            for task in &self.running {
                if let Some(entry) = self.held.get_mut(*task)
                    && !std::mem::replace(&mut entry.told, true)
                {
                    out.push(say(Message::Began(entry.order.held)));
                }
            }
        }
    }

    /// Whether something waits to be said that must wait no longer.
    pub(super) fn is_report_due(&self) -> bool {
        self.report_at < Time::NEVER && (self.report_at <= self.now || !self.has_more_to_report())
    }

    /// Whether what there is to report can wait for more.
    pub(super) fn has_more_to_report(&self) -> bool {
        // Who leaves may be gone before it could say it later.
        if self.draining || self.reports.len() >= MOST {
            return false;
        }
        let asks = matches!(self.thief, Thief::Asked { .. });
        let busy = self.running.len() == self.spec.slots as usize;
        // Nobody has anything to gain from knowing that there is room here, nor waits for what has ended.
        let unmissed = self.nothing_central && !self.awaited;
        asks || busy && (unmissed || !self.queue.is_empty()) && self.reports_together()
    }

    /// How long a report waits for others; none if there will hardly be any in time.
    pub(super) fn report_after(&self, patient: bool) -> Option<Span> {
        let longest = if patient { LONGEST_OF_PATIENT } else { LONGEST };
        self.reports_together().then_some(longest)
    }

    /// How long an end waits to be told at the most, in seconds: until there are as many as are told together.
    pub(super) fn reported_after_s(&self, patient: bool) -> f64 {
        let all = self.duration_s.map_or(f64::INFINITY, |each| each * MOST as f64 / f64::from(self.spec.slots));
        self.report_after(patient).map_or(0.0, |span| span.as_secs_f64().min(all))
    }

    /// Whether ends come so fast that it is worth waiting for the next.
    fn reports_together(&self) -> bool {
        self.duration_s.is_some_and(|each| 2.0 * each / f64::from(self.spec.slots) <= LONGEST.as_secs_f64())
    }
}
