//! Timers: what is due when. Never fires anything itself.

use super::sorted::Sorted;
use crate::ids::{JobId, TaskId, WorkerId};
use crate::time::Time;

/// What happens when a timer is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// The scheduler looks at the balance.
    Rebalance,
    /// A utilisation sample is taken.
    Sample,
    /// Tasks that waited too long rise.
    Aging,
    /// Queued tasks whose last possible worker has gone are set aside.
    Orphans,
    /// A failed task gets its next attempt.
    Retry(TaskId),
    /// A task nobody could run is tried again.
    Park(TaskId),
    /// An attempt has run too long.
    Timeout(TaskId, u32),
    /// A deadline passes.
    Deadline(TaskId),
    /// An array nobody could run is tried again.
    ParkArray(JobId),
    /// An array has waited long enough to rise.
    ArrayAging(JobId),
    /// A worker whose search for work was cut off looks on.
    Look(WorkerId),
    /// The moment a worker is kept free for has come.
    Reserved(WorkerId),
    /// A silent worker's exclusive tasks are given to others.
    Lease(WorkerId),
    /// A worker that was set aside gets work again.
    Quarantine(WorkerId),
}

/// All timers, earliest first.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    due: Sorted<(Time, Timer)>,
    /// When the first is due: every step asks twice, few change it.
    next: Option<Time>,
}

impl Timers {
    pub(crate) fn set(&mut self, at: Time, timer: Timer) {
        self.due.insert((at, timer));
        self.changed();
    }

    pub(crate) fn cancel(&mut self, at: Time, timer: Timer) {
        self.due.remove(&(at, timer));
        self.changed();
    }

    fn changed(&mut self) {
        self.next = self.due.first().map(|entry| entry.0);
    }

    #[inline]
    pub(crate) fn next(&self) -> Option<Time> {
        self.next
    }

    /// The next timer that is due.
    pub(crate) fn pop(&mut self, now: Time) -> Option<(Time, Timer)> {
        if self.next? > now {
            return None;
        }
        let first = self.due.pop_first();
        self.changed();
        first
    }

    pub(crate) fn contains(&self, at: Time, timer: Timer) -> bool {
        self.due.contains(&(at, timer))
    }
}
