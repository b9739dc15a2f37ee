//! A sorted set that is a plain list while it is short, which most of them always are, and in blocks once it is long.

use super::blocks::{BLOCK, Blocks, Entries};

/// Entries beyond which the list is cut into blocks: as many as a block has.
const LONG: usize = BLOCK;
/// Entries at which it becomes a list again; far below, so that nothing goes to and fro.
const SHORT: usize = 12;

/// A sorted set of small things.
#[derive(Clone, Debug)]
pub(crate) enum Sorted<T> {
    Few(Vec<T>),
    Many(Blocks<T>),
}

impl<T> Default for Sorted<T> {
    fn default() -> Self {
        Sorted::Few(Vec::new())
    }
}

impl<T: Ord + Copy> Sorted<T> {
    #[inline]
    pub(crate) fn len(&self) -> usize {
        match self {
            Sorted::Few(list) => list.len(),
            Sorted::Many(blocks) => blocks.len(),
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    pub(crate) fn first(&self) -> Option<&T> {
        match self {
            Sorted::Few(list) => list.first(),
            Sorted::Many(blocks) => blocks.first(),
        }
    }

    pub(crate) fn contains(&self, entry: &T) -> bool {
        match self {
            Sorted::Few(list) => list.binary_search(entry).is_ok(),
            Sorted::Many(blocks) => blocks.contains(entry),
        }
    }

    /// Adds an entry. Whether it was not there before.
    #[inline]
    pub(crate) fn insert(&mut self, entry: T) -> bool {
        match self {
            Sorted::Few(list) => {
                // Most come last.
                if list.last().is_none_or(|last| *last < entry) {
                    list.push(entry);
                } else if let Err(at) = list.binary_search(&entry) {
                    list.insert(at, entry);
                } else {
                    return false;
                }
                if list.len() > LONG {
                    *self = Sorted::Many(Blocks::new(list));
                }
                true
            }
            Sorted::Many(blocks) => blocks.insert(entry),
        }
    }

    /// Takes an entry out. Whether it was there.
    #[inline]
    pub(crate) fn remove(&mut self, entry: &T) -> bool {
        match self {
            Sorted::Few(list) => {
                let at = if list.first() == Some(entry) { Ok(0) } else { list.binary_search(entry) };
                let Ok(at) = at else { return false };
                list.remove(at);
                true
            }
            Sorted::Many(blocks) => {
                let removed = blocks.remove(entry);
                self.shorten();
                removed
            }
        }
    }

    /// Puts an entry that is not there in the place of one that is.
    #[inline]
    pub(crate) fn replace(&mut self, before: &T, after: T) {
        let list = match self {
            Sorted::Few(list) => list,
            // As many as before: it stays what it is.
            Sorted::Many(blocks) => return blocks.replace(before, after),
        };
        // Where there is no other there is nothing to search.
        if let [only] = &mut list[..] {
            debug_assert!(*only == *before, "it is there");
            *only = after;
            return;
        }
        let from = if list.first() == Some(before) { Ok(0) } else { list.binary_search(before) };
        let Ok(from) = from else { return };
        if *before < after && list.get(from + 1).is_none_or(|next| after < *next) {
            list[from] = after;
            return;
        }
        let Err(to) = list.binary_search(&after) else { return };
        move_entry(list, from, to, after);
    }

    pub(crate) fn pop_first(&mut self) -> Option<T> {
        let first = *self.first()?;
        self.remove(&first);
        Some(first)
    }

    fn shorten(&mut self) {
        if let Sorted::Many(blocks) = self
            && blocks.len() <= SHORT
        {
            *self = Sorted::Few(blocks.iter().copied().collect());
        }
    }

    /// All entries, ascending.
    #[inline]
    pub(crate) fn iter(&self) -> Entries<'_, T> {
        match self {
            Sorted::Few(list) => Entries::from(&list[..]),
            Sorted::Many(blocks) => blocks.iter(),
        }
    }

    /// The entries from one on, ascending.
    #[inline]
    pub(crate) fn from(&self, start: T) -> Entries<'_, T> {
        match self {
            Sorted::Few(list) => Entries::from(&list[list.partition_point(|entry| *entry < start)..]),
            Sorted::Many(blocks) => blocks.from(start),
        }
    }
}

/// Takes out the entry at `from` of a sorted list and puts one in that belonged at `to`.
#[inline]
pub(super) fn move_entry<T: Copy>(list: &mut [T], from: usize, to: usize, entry: T) {
    if from < to {
        list.copy_within(from + 1..to, from);
        list[to - 1] = entry;
    } else {
        list.copy_within(to..from, to + 1);
        list[to] = entry;
    }
}

impl<'a, T: Ord + Copy> IntoIterator for &'a Sorted<T> {
    type Item = &'a T;
    type IntoIter = Entries<'a, T>;

    fn into_iter(self) -> Entries<'a, T> {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::rng::Rng;

    #[test]
    fn it_behaves_like_a_tree_at_every_length() {
        let mut rng = Rng::new(5);
        let (mut sorted, mut tree) = (Sorted::default(), BTreeSet::new());
        let (mut was_many, mut was_few_again) = (false, false);
        for round in 0..40 {
            for _ in 0..200 {
                let entry = rng.below(100) as u32;
                if rng.below(10) < if round % 2 == 0 { 7 } else { 2 } {
                    assert_eq!(sorted.insert(entry), tree.insert(entry));
                } else if rng.below(3) == 0 {
                    assert_eq!(sorted.pop_first(), tree.pop_first());
                } else if tree.contains(&entry) && rng.below(2) == 0 {
                    let after = rng.below(100) as u32;
                    if !tree.contains(&after) {
                        sorted.replace(&entry, after);
                        assert!(tree.remove(&entry) && tree.insert(after));
                        assert!(sorted.iter().eq(tree.iter()));
                    }
                } else {
                    assert_eq!(sorted.remove(&entry), tree.remove(&entry));
                }
                was_many |= matches!(sorted, Sorted::Many(_));
                was_few_again |= was_many && matches!(sorted, Sorted::Few(_));
                assert_eq!((sorted.len(), sorted.is_empty()), (tree.len(), tree.is_empty()));
                assert_eq!(sorted.first(), tree.first());
                assert_eq!(sorted.contains(&entry), tree.contains(&entry));
                assert!(sorted.from(entry).eq(tree.range(entry..)));
                assert!(sorted.iter().rev().eq(tree.iter().rev()));
            }
        }
        assert!(was_many && was_few_again);
    }
}
