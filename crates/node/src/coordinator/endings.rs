//! What attempts leave: what is known of their ends goes to the store, and where that is kept is known as long as the task is.
//!
//! A task that is cancelled is settled at once, and its worker says later what it wrote until it was stopped: that is kept as
//! well, and changes nothing of how the task ended. Decides nothing.

use std::collections::VecDeque;

use filch_core::wire::talk::{Earlier, Ending};
use filch_core::{Held, Status, TaskId, WorkerId, attempt_in_life};
use prost::Message as _;
use rustc_hash::FxHashMap;

use super::desk::Desk;
use super::history::{NOBODY, Outcome};
use super::jobs::Tried;
use super::recover::End;
use crate::store::{BlobChange, BlobId, Until};

/// Cancelled tasks of which words may still come.
const UNSAID: usize = 4096;

/// Tasks that were cancelled while a worker had them, the latest of them, with what is kept of their earlier attempts.
#[derive(Default)]
pub(super) struct Unsaid {
    tasks: FxHashMap<(u64, u32), (Outcome, Vec<Earlier>)>,
    /// All that were cancelled lately, the latest last.
    order: VecDeque<(u64, u32)>,
}

impl Unsaid {
    pub(super) fn insert(&mut self, task: TaskId, attempt: u32, outcome: Outcome, earlier: Vec<Earlier>) {
        let key = (task.to_bits(), attempt);
        self.tasks.insert(key, (outcome, earlier));
        self.order.push_back(key);
        if self.order.len() > UNSAID
            && let Some(oldest) = self.order.pop_front()
        {
            self.tasks.remove(&oldest);
        }
    }

    pub(super) fn take(&mut self, key: (u64, u32)) -> Option<(Outcome, Vec<Earlier>)> {
        if self.tasks.is_empty() { None } else { self.tasks.remove(&key) }
    }
}

impl Desk {
    /// What is known of the end of an attempt that is not the last goes to the store.
    pub(super) fn note_end(&mut self, task: TaskId, attempt: u32) {
        if self.jobs.note(task).is_none() {
            // Its key is free now, and it was settled before: what there is to say of it comes late.
            return;
        }
        let ending = self.endings.remove(&(task.to_bits(), attempt));
        let ending = self.keep_ending(task, attempt, ending.as_ref(), 0);
        let own = self.ran.filter(|(held, ..)| held.task == task && held.attempt == attempt);
        let worker = own.map(|(_, _, worker)| worker).or_else(|| self.last_worker(task));
        self.jobs.has_tried(task, Tried { attempt, worker, ending });
    }

    /// Who has a task, or had it last.
    pub(super) fn last_worker(&self, task: TaskId) -> Option<WorkerId> {
        self.jobs.live(task).map(|live| live.worker).or_else(|| self.jobs.tried(task)?.worker)
    }

    /// Where the ending is kept; 0 if there is none.
    fn keep_ending(&mut self, task: TaskId, attempt: u32, ending: Option<&Ending>, began: u64) -> u64 {
        let own = self.ran.filter(|(held, ..)| held.task == task && held.attempt == attempt);
        if ending.is_none() && own.is_none() {
            return 0;
        }
        let kept = ending.map_or(0, |ending| self.put_ending(ending));
        let (ran, worker) = own.map_or((0, NOBODY), |(_, ran, worker)| (ran.0, worker.to_bits()));
        self.ends.push(task, attempt, End { ran, worker, ending: kept, began });
        kept
    }

    /// The same of the last attempt of a task, with where those before it are kept. That one may have nothing to say itself.
    pub(super) fn keep_last_ending(
        &mut self,
        (task, attempt, status): (TaskId, u32, Status),
        ending: Option<&Ending>,
        began: u64,
    ) -> u64 {
        let earlier = self.jobs.earlier(task);
        if earlier.is_empty() {
            return self.keep_ending(task, attempt, ending, began);
        }
        let silent = || Ending {
            task: task.to_bits(),
            attempt,
            exit_code: (status == Status::Completed).then_some(0),
            ..Ending::default()
        };
        let ending = Ending { earlier: earlier.to_vec(), ..ending.cloned().unwrap_or_else(silent) };
        self.keep_ending(task, attempt, Some(&ending), began)
    }

    pub(super) fn put_ending(&mut self, ending: &Ending) -> u64 {
        let kept = self.new_blob();
        let until = Until((self.now + self.retention).0 / 1_000_000);
        self.blobs.push(BlobChange::Put { id: BlobId(kept), bytes: ending.encode_to_vec(), until: Some(until) });
        kept
    }

    // ---- words that come later ----

    /// A task was cancelled that a worker has: what it wrote comes when it has stopped.
    pub(super) fn expect_words(&mut self, task: TaskId, attempt: u32, outcome: Outcome) {
        let earlier = self.jobs.earlier(task).to_vec();
        self.unsaid.insert(task, attempt, outcome, earlier);
    }

    /// Whether a task that is being settled runs on until its worker has stopped it.
    pub(super) fn is_stopping(&self, task: TaskId, attempt: u32, worker: Option<WorkerId>) -> bool {
        let revoked = worker.map(|worker| self.machine.scheduler().revoked(worker));
        revoked.is_some_and(|mut revoked| revoked.any(|held| (held.task, held.attempt) == (task, attempt)))
    }

    /// An attempt has ended: if its task was cancelled before, what there is to say of it is kept all the same.
    pub(super) fn hear_late_words(&mut self, held: Held) {
        let key = (held.task.to_bits(), held.attempt);
        if !self.looked_at.is_empty() && self.jobs.note(held.task).is_none() {
            let ending = self.endings.get(&key).cloned();
            self.end_looks(held.task, ending.as_ref());
        }
        let Some((outcome, earlier)) = self.unsaid.take(key) else { return };
        let Some(ending) = self.endings.remove(&key) else { return };
        let Some((_, ran, worker)) = self.ran.filter(|(own, ..)| *own == held) else { return };
        let began = if outcome.began > 0 { outcome.began } else { self.now.0.saturating_sub(ran.0) };
        let kept = self.keep_ending(held.task, held.attempt, Some(&Ending { earlier, ..ending }), began);
        self.outcomes.push(Outcome { ending: kept, ran: ran.0, began, worker: worker.to_bits(), ..outcome });
    }

    /// What there is to say of a task that failed because nobody can run it: what each class of workers lacks.
    pub(super) fn nobody_can_run(&self, task: TaskId, attempt: u32) -> Option<Ending> {
        let refusals = self.machine.scheduler().explain(task)?.refusals;
        let mut lacks: Vec<String> =
            refusals.classes.into_iter().map(|(worker, lack)| self.lack_words(worker, lack)).collect();
        if refusals.more > 0 {
            lacks.push(format!("and {} more classes", refusals.more));
        }
        let error = nobody_can(&lacks)?;
        Some(Ending { task: task.to_bits(), attempt, error, ..Ending::default() })
    }
}

/// In words what each class of workers lacks, if any are known.
pub(super) fn nobody_can(lacks: &[String]) -> Option<String> {
    (!lacks.is_empty()).then(|| format!("no worker can run it; {}", lacks.join("; ")))
}

/// Where the attempt is kept that people call by this number: the latest, if it was counted anew since.
pub(super) fn kept_of(earlier: &[Earlier], attempt: u32) -> Option<u64> {
    earlier.iter().rev().find(|one| attempt_in_life(one.attempt) == attempt).map(|one| one.ending)
}

/// Where the latest attempt is kept, if its task was over later and had nothing more to say.
pub(super) fn before_the_end(ending: &Ending) -> Option<u64> {
    let latest = ending.earlier.last().filter(|one| one.attempt == ending.attempt)?;
    let silent = ending.wall_nanos == 0 && ending.error.is_empty() && ending.exit_code.is_none();
    silent.then_some(latest.ending)
}

/// Why there is nothing to show of an attempt.
pub(super) fn nothing_of(attempt: u32, made: u32) -> String {
    let made = format!("{made} attempt{}", if made == 1 { "" } else { "s" });
    format!("there is nothing of attempt {attempt}: the task has made {made}, of which the latest are kept for a while")
}

#[cfg(test)]
mod tests {
    use filch_core::Cause;

    use super::*;

    #[test]
    fn of_those_cancelled_the_latest_are_known() {
        let mut unsaid = Unsaid::default();
        let outcome = |index| Outcome::of_element(1, index, Status::Cancelled, Cause::Requested, 7);
        for at in 0..=UNSAID as u64 {
            unsaid.insert(TaskId::from_bits(at), 1, outcome(at as u32), Vec::new());
        }
        assert_eq!((unsaid.tasks.len(), unsaid.order.len()), (UNSAID, UNSAID));
        assert_eq!((unsaid.take((0, 1)), unsaid.take((1, 2))), (None, None));
        assert_eq!(unsaid.take((1, 1)), Some((outcome(1), Vec::new())));
        assert_eq!(unsaid.take((1, 1)), None);
    }

    #[test]
    fn the_latest_attempt_of_a_number_counts() {
        let earlier = [(1, 10), (2, 11), (65_537, 12)].map(|(attempt, ending)| Earlier { attempt, ending });
        assert_eq!([1, 2, 3].map(|attempt| kept_of(&earlier, attempt)), [Some(12), Some(11), None]);
    }
}
