//! Concurrency keys: tasks with the same key never run together beyond the key's limit.
//!
//! The waiting tasks of a key stand in order; the first of them, as many as there are free tokens, are *offered*: they
//! queue like any other task. The rest wait here. A token is taken when a task is handed to a slot. Never queues or
//! starts anything itself.
//!
//! Where very many tasks would have to be let in or out at once, the limit in force stops where they have got to, and
//! follows the limit that was set over the next steps. So it holds at every moment, and no event is long.

use std::collections::BTreeSet;

use super::state::QueueKey;
use crate::map::Map;

#[derive(Debug)]
struct Key {
    /// The limit in force.
    limit: u32,
    /// What the limit becomes as soon as the tasks of the key have followed.
    goal: u32,
    held: u32,
    offered: BTreeSet<QueueKey>,
    waiting: BTreeSet<QueueKey>,
}

impl Key {
    fn free(&self) -> u32 {
        self.limit.saturating_sub(self.held).saturating_sub(self.offered.len() as u32)
    }
}

/// What became of a task that asked to be offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// It may queue.
    Offered,
    /// It may queue, and the task in this slot must wait instead.
    Instead(u32),
    /// It waits.
    Waits,
}

/// All keys in use, and those with a limit of their own.
#[derive(Debug)]
pub(crate) struct Keys {
    default_limit: u32,
    keys: Map<u32, Key>,
    /// Keys whose limit in force is not yet what it shall be.
    moving: BTreeSet<u32>,
}

impl Keys {
    pub(crate) fn new(default_limit: u32) -> Keys {
        Keys { default_limit, keys: Map::default(), moving: BTreeSet::new() }
    }

    fn key(&mut self, key: u32) -> &mut Key {
        let limit = self.default_limit;
        self.keys.entry(key).or_insert_with(|| Key {
            limit,
            goal: limit,
            held: 0,
            offered: BTreeSet::new(),
            waiting: BTreeSet::new(),
        })
    }

    fn tidy(&mut self, key: u32) {
        if let Some(entry) = self.keys.get(&key)
            && entry.held == 0
            && entry.offered.is_empty()
            && entry.waiting.is_empty()
            && entry.limit == self.default_limit
            && entry.goal == self.default_limit
        {
            self.moving.remove(&key);
            self.keys.remove(&key);
        }
    }

    /// A task wants to queue.
    pub(crate) fn arrive(&mut self, key: u32, place: QueueKey) -> Arrival {
        let entry = self.key(key);
        if entry.free() > 0 {
            entry.offered.insert(place);
            return Arrival::Offered;
        }
        if let Some(&last) = entry.offered.last()
            && place < last
        {
            entry.offered.remove(&last);
            entry.waiting.insert(last);
            entry.offered.insert(place);
            return Arrival::Instead(last.2);
        }
        entry.waiting.insert(place);
        Arrival::Waits
    }

    /// A task that had its token in an earlier life is about to take it again, whatever the limit is now.
    pub(crate) fn promise(&mut self, key: u32, place: QueueKey) {
        self.key(key).offered.insert(place);
    }

    /// A token that was out in an earlier life is out still.
    pub(crate) fn keep(&mut self, key: u32) {
        self.key(key).held += 1;
    }

    /// An offered task was handed to a slot.
    pub(crate) fn take(&mut self, key: u32, place: QueueKey) {
        let entry = self.key(key);
        let offered = entry.offered.remove(&place);
        debug_assert!(offered, "only offered tasks take tokens");
        entry.held += 1;
    }

    /// A token came back. The next task to be offered, if any.
    pub(crate) fn give_back(&mut self, key: u32) -> Option<u32> {
        let entry = self.key(key);
        debug_assert!(entry.held > 0, "a token is given back once");
        entry.held -= 1;
        self.offer_next(key)
    }

    /// A task left before it was handed to a slot. The next to be offered, if any.
    pub(crate) fn leave(&mut self, key: u32, place: QueueKey) -> Option<u32> {
        let entry = self.key(key);
        if !entry.offered.remove(&place) {
            let waited = entry.waiting.remove(&place);
            debug_assert!(waited, "a keyed task is offered or waits");
        }
        self.offer_next(key)
    }

    /// The next waiting task to be offered, if there is a free token.
    pub(crate) fn offer_next(&mut self, key: u32) -> Option<u32> {
        let entry = self.key(key);
        if entry.free() > 0
            && let Some(next) = entry.waiting.pop_first()
        {
            entry.offered.insert(next);
            return Some(next.2);
        }
        self.tidy(key);
        None
    }

    /// A task's place has changed; one that is offered stays offered.
    pub(crate) fn rename(&mut self, key: u32, before: QueueKey, after: QueueKey) {
        let entry = self.key(key);
        if entry.offered.remove(&before) {
            entry.offered.insert(after);
        } else if entry.waiting.remove(&before) {
            entry.waiting.insert(after);
        }
    }

    /// Sets what the limit shall be. Tasks follow by `retract` and `offer_next`, then `settle_limit`.
    pub(crate) fn set_limit(&mut self, key: u32, limit: u32) {
        self.key(key).goal = limit;
        self.moving.insert(key);
    }

    /// A key whose limit in force is not yet what it shall be.
    pub(crate) fn first_moving(&self) -> Option<u32> {
        self.moving.first().copied()
    }

    /// Puts the limit that was set in force, for `retract` and `offer_next` to say what follows from it.
    pub(crate) fn apply_limit(&mut self, key: u32) {
        let entry = self.key(key);
        entry.limit = entry.goal;
    }

    /// As many tasks have followed as may in one step: if that was not enough, the limit in force stops where they are.
    /// Whether something is left to do.
    pub(crate) fn settle_limit(&mut self, key: u32) -> bool {
        let entry = self.key(key);
        let promised = entry.held.saturating_add(entry.offered.len() as u32);
        let too_many = promised > entry.goal && !entry.offered.is_empty();
        let too_few = promised < entry.goal && !entry.waiting.is_empty();
        if too_many || too_few {
            entry.limit = promised;
            self.moving.insert(key);
            return true;
        }
        entry.limit = entry.goal;
        self.moving.remove(&key);
        self.tidy(key);
        false
    }

    /// An offered task left, and for now nobody is offered its place. Whether somebody waits for it.
    pub(crate) fn leave_and_hold(&mut self, key: u32, place: QueueKey) -> bool {
        let left = self.key(key).offered.remove(&place);
        debug_assert!(left, "only an offered task has a place to leave");
        self.settle_limit(key)
    }

    /// A task that was offered a token there is no longer: the last of them waits again.
    pub(crate) fn retract(&mut self, key: u32) -> Option<u32> {
        let entry = self.key(key);
        if entry.held.saturating_add(entry.offered.len() as u32) <= entry.limit {
            return None;
        }
        let last = entry.offered.pop_last()?;
        entry.waiting.insert(last);
        Some(last.2)
    }

    /// Limit, tokens held, tasks offered and waiting.
    pub(crate) fn figures(&self, key: u32) -> (u32, u32, usize, usize) {
        self.keys.get(&key).map_or((self.default_limit, 0, 0, 0), |entry| {
            (entry.limit, entry.held, entry.offered.len(), entry.waiting.len())
        })
    }

    /// Tasks of a key that come before a place; counting stops at `most`.
    pub(crate) fn ahead_of(&self, key: u32, place: QueueKey, most: usize) -> usize {
        let before = |set: &BTreeSet<QueueKey>| set.range(..place).take(most).count();
        self.keys.get(&key).map_or(0, |entry| (before(&entry.offered) + before(&entry.waiting)).min(most))
    }

    pub(crate) fn is_offered(&self, key: u32, place: QueueKey) -> bool {
        self.keys.get(&key).is_some_and(|entry| entry.offered.contains(&place))
    }

    pub(crate) fn is_waiting(&self, key: u32, place: QueueKey) -> bool {
        self.keys.get(&key).is_some_and(|entry| entry.waiting.contains(&place))
    }

    /// Every key: its number, limit, tokens held, offered and waiting; for checks.
    pub(crate) fn all(&self) -> impl Iterator<Item = (u32, u32, u32, usize, usize)> + '_ {
        self.keys.iter().map(|(&key, entry)| (key, entry.limit, entry.held, entry.offered.len(), entry.waiting.len()))
    }
}
