//! Those who follow a job and come late, or come again: first they hear of the tasks that have ended and of which they
//! have not heard, then of what happens from now on, then of the end of the job.
//!
//! What happens meanwhile waits here until the past was told. Never decides what is told, only when.

use std::sync::{Arc, Weak};

use filch_core::wire::talk::{Ended, LARGEST_PACKET, Progress, Reply, Said};

use super::Later;
use super::desk::Desk;
use super::history::{Item as Past, Outcome};
use super::query::{Promise, ending};
use crate::link::{HEAVY, weight_of_reply};

/// Somebody who is to hear of the past of a job.
#[derive(Clone, Debug)]
pub(super) struct Latecomer {
    pub(super) connection: u64,
    pub(super) request: u64,
    pub(super) job: u64,
    /// Positions of which it has heard: the first of a run, the first after it, and so on.
    pub(super) heard: Vec<u32>,
    /// Gone when it does not want to hear more.
    wanted: Weak<()>,
}

/// What somebody is to hear after the past.
#[derive(Debug, Default)]
pub(super) struct Held {
    replies: Vec<Reply>,
    /// There as long as the past is to be told.
    wanted: Arc<()>,
}

impl Latecomer {
    pub(super) fn new(connection: u64, request: u64, job: u64, heard: Vec<u32>) -> Latecomer {
        Latecomer { connection, request, job, heard, wanted: Weak::new() }
    }

    fn has_heard(&self, index: u64) -> bool {
        // An odd number of turns before it: it lies within a run.
        self.heard.partition_point(|turn| u64::from(*turn) <= index) % 2 == 1
    }
}

impl Desk {
    /// Tells somebody of what has ended of a job so far; all else that it is to hear waits until that is done.
    pub(super) fn catch_up(&mut self, mut who: Latecomer) {
        let held = Held::default();
        who.wanted = Arc::downgrade(&held.wanted);
        self.held.insert((who.connection, who.request), held);
        self.when_durable(who);
    }

    /// All that was recorded when the latecomer came is durable: history has it, or hears it before this.
    pub(super) fn tell_past(&self, who: Latecomer) {
        let (inbox, store, shard) = (self.inbox.clone(), Arc::clone(&self.store), self.shard);
        let since = self.jobs.get(who.job).map_or(0, |job| job.card.at);
        let (connection, request) = (who.connection, who.request);
        let is_unwanted = {
            let wanted = Weak::clone(&who.wanted);
            move || wanted.strong_count() == 0
        };
        if is_unwanted() {
            return;
        }
        let told = move |history: &mut super::history::History| -> Result<Told, crate::store::Error> {
            let workers = history.workers()?;
            let mut outcomes: Vec<Outcome> = Vec::new();
            history.tasks(who.job, 0..=i64::MAX as u64, |outcome| {
                if !who.has_heard(outcome.index) {
                    outcomes.push(outcome);
                }
                true
            })?;
            for outcome in outcomes {
                if is_unwanted() {
                    return Ok(Told::Unwanted);
                }
                let mut ended = ended(&outcome, outcome.worker_name(&workers));
                ended.waited_nanos = outcome.began.saturating_sub(since);
                ended.ending = ending(&*store, shard, outcome.ending)?.map(Box::new);
                inbox.answered(connection, request, Later::Past(Box::new(Said::Ended(Box::new(ended)))));
            }
            let job = history.job(who.job)?;
            Ok(Told::All(job.and_then(|(_, done_at, progress)| done_at.map(|_| progress.unwrap_or_default()))))
        };
        let promise = Promise::new(&self.inbox, connection, request);
        self.history.tell(Past::Ask(Box::new(move |history| match told(history) {
            Ok(Told::All(done)) => promise.keep(Later::CaughtUp(done.map(Box::new))),
            Ok(Told::Unwanted) => promise.drop_it(),
            Err(error) => promise.keep(Later::Refused(error.to_string())),
        })));
    }

    /// The past was told: now what has come meanwhile. If the job was done before, that is all.
    pub(super) fn caught_up(&mut self, connection: u64, request: u64, done: Option<Box<Progress>>) {
        let held = self.held.remove(&(connection, request)).unwrap_or_default().replies;
        let is_over = held.iter().any(|reply| matches!(reply.said, Some(Said::JobDone(_))));
        for reply in held {
            self.push_reply(connection, reply);
        }
        let watches = self.connections.get(&connection).is_some_and(|found| found.watches.contains_key(&request));
        if let Some(progress) = done.filter(|_| !is_over && !watches) {
            self.push_reply(connection, Reply { id: request, said: Some(Said::JobDone(*progress)) });
        }
    }

    /// Sends a reply at the end of this turn, unless it is held back.
    pub(super) fn push_reply(&mut self, connection: u64, reply: Reply) {
        if !self.held.is_empty()
            && let Some(held) = self.held.get_mut(&(connection, reply.id))
            && !matches!(reply.said, Some(Said::Submitted(_)))
        {
            held.replies.push(reply);
            return;
        }
        self.push_at_once(connection, reply);
    }

    /// Sends a reply at the end of this turn.
    pub(super) fn push_at_once(&mut self, connection: u64, mut reply: Reply) {
        let mut weight = weight_of_reply(&reply);
        if weight > LARGEST_PACKET - HEAVY {
            let most = (LARGEST_PACKET - HEAVY) >> 20;
            let why =
                format!("the answer has {} MB and at most {most} can be sent: ask for less at once", weight >> 20);
            reply.said = Some(super::requests::refused(why));
            weight = weight_of_reply(&reply);
        }
        if let Some(packet) = self.parcel(connection) {
            packet.replies.push(reply);
            self.loaded(connection, weight);
        }
    }
}

/// How far the past was told.
enum Told {
    /// To its end, and how the job went if it is over.
    All(Option<Progress>),
    /// Nobody wants to hear it any more.
    Unwanted,
}

/// The end of a task as history knows it, but for when it was submitted and what it wrote.
pub(super) fn ended(outcome: &Outcome, worker: Option<&String>) -> Ended {
    Ended {
        job: outcome.job,
        index: outcome.index as u32,
        status: outcome.status.name().to_owned(),
        cause: outcome.cause.words().unwrap_or_default().to_owned(),
        attempts: outcome.attempts,
        worker: worker.cloned().unwrap_or_default(),
        ran_nanos: outcome.ran,
        began_nanos: outcome.began,
        hops: outcome.hops,
        ..Ended::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_say_what_was_heard() {
        let who = Latecomer::new(1, 1, 1, vec![0, 2, 5, 6]);
        let heard: Vec<u64> = (0..8).filter(|index| who.has_heard(*index)).collect();
        assert_eq!(heard, [0, 1, 5]);
        assert!(!Latecomer { heard: Vec::new(), ..who }.has_heard(0));
    }
}
