//! What was submitted under which key: what comes again gets the first answer.

use std::collections::VecDeque;

use bytes::Bytes;
use filch_core::wire::talk::{KeyNote, Submitted};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// Submissions that are remembered. Whoever sends one again does so soon, or not at all.
const KEPT: usize = 100_000;

/// The latest submissions.
#[derive(Debug, Default)]
pub(super) struct Keys {
    known: FxHashMap<Key, (Submitted, u64)>,
    order: VecDeque<Key>,
}

/// A key by itself: the bytes of a request would keep all that came with it.
type Key = SmallVec<[u8; 16]>;

impl Keys {
    /// The first answer, and the handle of a single task.
    pub(super) fn get(&self, key: &[u8]) -> Option<(Submitted, u64)> {
        self.known.get(key).copied()
    }

    /// All of them, the oldest first.
    pub(super) fn notes(&self) -> Vec<KeyNote> {
        let note = |key: &Key| {
            let (Submitted { job, task }, handle) = *self.known.get(key)?;
            Some(KeyNote { key: Bytes::copy_from_slice(key), task, job, handle })
        };
        self.order.iter().filter_map(note).collect()
    }

    pub(super) fn insert(&mut self, key: &[u8], answer: Submitted, handle: u64) {
        let key = Key::from_slice(key);
        if key.is_empty() || self.known.insert(key.clone(), (answer, handle)).is_some() {
            return;
        }
        self.order.push_back(key);
        if self.order.len() > KEPT
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }
}
