//! The directory of workers: by class, each class in a task-independent order, classes by their best worker.
//!
//! It answers "the k best of each eligible class" without looking at anybody else. Never scores and never filters.
//!
//! A directory that somebody wants anew fills up slot by slot, one that nobody wants any more empties the same way, both
//! over as many steps as it takes. Whoever is listed and has a slot below `covered` stands in it.

use super::blocks::Entries;
use super::sorted::Sorted;
use crate::ids::NONE;

/// A worker's place in its class: its key, then its slot.
type Entry = (u64, u32);

/// Workers by class, in the order of one key.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    classes: Vec<Sorted<Entry>>,
    /// The best worker of each class that has any, and the class.
    best: Sorted<(Entry, u32)>,
    /// Listed workers in slots below this one stand here; `NONE` if all do.
    pub(crate) covered: u32,
    /// Placements that use it or wait for it.
    pub(crate) users: u32,
}

impl Directory {
    /// Whether a listed worker in that slot stands here.
    #[inline]
    pub(crate) fn covers(&self, slot: u32) -> bool {
        slot < self.covered
    }

    /// Whether everybody who should stand here does.
    pub(crate) fn is_whole(&self) -> bool {
        self.covered == NONE
    }

    /// Whether it stays as it is: whole if it is wanted, empty if not.
    pub(crate) fn is_settled(&self) -> bool {
        if self.users > 0 { self.is_whole() } else { self.covered == 0 }
    }

    pub(crate) fn insert(&mut self, class: u32, key: u64, worker: u32) {
        if class as usize >= self.classes.len() {
            self.classes.resize_with(class as usize + 1, Sorted::default);
        }
        let entries = &mut self.classes[class as usize];
        let before = entries.first().copied();
        entries.insert((key, worker));
        if before.is_none_or(|first| (key, worker) < first) {
            if let Some(first) = before {
                self.best.remove(&(first, class));
            }
            self.best.insert(((key, worker), class));
        }
    }

    pub(crate) fn remove(&mut self, class: u32, key: u64, worker: u32) {
        let entries = &mut self.classes[class as usize];
        let was_first = entries.first() == Some(&(key, worker));
        let removed = entries.remove(&(key, worker));
        debug_assert!(removed, "a listed worker is found under its key");
        if was_first {
            self.best.remove(&((key, worker), class));
            if let Some(&first) = entries.first() {
                self.best.insert((first, class));
            }
        }
    }

    /// A worker has another key.
    pub(crate) fn change(&mut self, class: u32, before: u64, key: u64, worker: u32) {
        let entries = &mut self.classes[class as usize];
        let first = entries.first().copied();
        entries.replace(&(before, worker), (key, worker));
        if let (Some(first), Some(&now)) = (first, entries.first())
            && first != now
        {
            self.best.replace(&(first, class), (now, class));
        }
    }

    /// Classes that have anybody, the one with the best worker first.
    pub(crate) fn classes(&self) -> impl Iterator<Item = u32> + '_ {
        self.best.iter().map(|&(_, class)| class)
    }

    /// The workers of a class, best first.
    pub(crate) fn workers(&self, class: u32) -> impl Iterator<Item = u32> + '_ {
        let entries = self.classes.get(class as usize).map_or_else(|| Entries::from(&[][..]), Sorted::iter);
        entries.map(|&(_, worker)| worker)
    }

    /// How many classes have anybody.
    pub(crate) fn class_count(&self) -> usize {
        self.best.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.best.is_empty()
    }

    pub(crate) fn contains(&self, class: u32, key: u64, worker: u32) -> bool {
        self.classes.get(class as usize).is_some_and(|entries| entries.contains(&(key, worker)))
    }

    pub(crate) fn len(&self) -> usize {
        self.best.iter().map(|&(_, class)| self.classes[class as usize].len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_come_in_the_order_of_their_best_worker() {
        let mut directory = Directory::default();
        directory.insert(0, 5, 1);
        directory.insert(1, 3, 2);
        directory.insert(0, 4, 3);
        assert_eq!(directory.classes().collect::<Vec<_>>(), [1, 0]);
        assert_eq!(directory.workers(0).collect::<Vec<_>>(), [3, 1]);
        directory.change(0, 5, 2, 1);
        assert_eq!(directory.classes().collect::<Vec<_>>(), [0, 1]);
        assert_eq!(directory.workers(0).collect::<Vec<_>>(), [1, 3]);
        directory.change(0, 2, 5, 1);
        assert_eq!(directory.classes().collect::<Vec<_>>(), [1, 0]);
        directory.insert(0, 1, 4);
        assert_eq!(directory.classes().collect::<Vec<_>>(), [0, 1]);
        directory.remove(1, 3, 2);
        directory.remove(0, 1, 4);
        assert_eq!(directory.classes().collect::<Vec<_>>(), [0]);
        directory.remove(0, 4, 3);
        directory.remove(0, 5, 1);
        assert!(directory.is_empty());
    }
}
