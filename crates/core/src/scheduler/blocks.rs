//! A sorted set in blocks that are full where entries came in order: it takes little more than its entries do, where a
//! tree with a few in each node takes nearly twice as much. Never moves more than two blocks because of one entry.

use std::collections::{BTreeMap, btree_map};
use std::ops::Bound;
use std::slice;

use super::sorted::move_entry;

/// Entries per block.
pub(super) const BLOCK: usize = 64;

/// Consecutive entries, ascending; never without any.
#[derive(Clone, Debug)]
struct Block<T> {
    entries: Vec<T>,
    /// Entries before this one have left.
    from: usize,
}

impl<T: Ord + Copy> Block<T> {
    fn new(entries: &[T]) -> Block<T> {
        let mut all = Vec::with_capacity(BLOCK);
        all.extend_from_slice(entries);
        Block { entries: all, from: 0 }
    }

    #[inline]
    fn live(&self) -> &[T] {
        &self.entries[self.from..]
    }

    #[inline]
    fn len(&self) -> usize {
        self.entries.len() - self.from
    }

    #[inline]
    fn insert(&mut self, at: usize, entry: T) {
        if self.entries.len() == BLOCK {
            self.entries.drain(..self.from);
            self.from = 0;
        }
        self.entries.insert(self.from + at, entry);
    }

    #[inline]
    fn remove(&mut self, at: usize) {
        if at == 0 {
            self.from += 1;
        } else {
            self.entries.remove(self.from + at);
        }
    }
}

/// A sorted set of small things.
#[derive(Clone, Debug)]
pub(crate) struct Blocks<T> {
    /// By an entry that is not after any of theirs, nor before any of the block before.
    blocks: BTreeMap<T, Block<T>>,
    len: usize,
}

impl<T: Ord + Copy> Blocks<T> {
    /// A set of what is sorted already.
    pub(crate) fn new(sorted: &[T]) -> Blocks<T> {
        let blocks = sorted.chunks(BLOCK).map(|chunk| (chunk[0], Block::new(chunk))).collect();
        Blocks { blocks, len: sorted.len() }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(crate) fn first(&self) -> Option<&T> {
        self.blocks.first_key_value().and_then(|(_, block)| block.live().first())
    }

    pub(crate) fn contains(&self, entry: &T) -> bool {
        let block = self.blocks.range(..=*entry).next_back();
        block.is_some_and(|(_, block)| block.live().binary_search(entry).is_ok())
    }

    /// Adds an entry. Whether it was not there before.
    pub(crate) fn insert(&mut self, entry: T) -> bool {
        // Most come last.
        if let Some(mut last) = self.blocks.last_entry()
            && last.get().live().last().is_some_and(|last| *last < entry)
        {
            self.len += 1;
            if last.get().len() < BLOCK {
                let at = last.get().len();
                last.get_mut().insert(at, entry);
            } else {
                // Whoever comes last begins a block, so that those before stay full.
                self.blocks.insert(entry, Block::new(&[entry]));
            }
            return true;
        }
        let Some((&key, block)) = self.blocks.range_mut(..=entry).next_back() else {
            self.insert_first(entry);
            return true;
        };
        let Err(at) = block.live().binary_search(&entry) else { return false };
        self.len += 1;
        if block.len() < BLOCK {
            block.insert(at, entry);
        } else {
            self.insert_full(key, at, entry);
        }
        true
    }

    /// Adds an entry where a block has no room for it.
    fn insert_full(&mut self, key: T, at: usize, entry: T) {
        let Some(lower) = self.blocks.get_mut(&key) else { return };
        let mut upper = Block::new(&lower.entries[BLOCK / 2..]);
        lower.entries.truncate(BLOCK / 2);
        let key = upper.live()[0];
        if at <= BLOCK / 2 {
            lower.insert(at, entry);
        } else {
            upper.insert(at - BLOCK / 2, entry);
        }
        self.blocks.insert(key, upper);
    }

    /// Adds an entry that comes before all that ever came first.
    fn insert_first(&mut self, entry: T) {
        self.len += 1;
        let block = match self.blocks.first_entry() {
            Some(first) if first.get().len() < BLOCK => {
                let mut block = first.remove();
                block.insert(0, entry);
                block
            }
            _ => Block::new(&[entry]),
        };
        self.blocks.insert(entry, block);
    }

    /// Takes an entry out. Whether it was there.
    pub(crate) fn remove(&mut self, entry: &T) -> bool {
        // Most leave in order.
        if let Some(mut first) = self.blocks.first_entry()
            && first.get().live().first() == Some(entry)
        {
            self.len -= 1;
            first.get_mut().remove(0);
            if first.get().len() == 0 {
                first.remove();
            }
            return true;
        }
        let Some((&key, block)) = self.blocks.range_mut(..=*entry).next_back() else { return false };
        let Ok(at) = block.live().binary_search(entry) else { return false };
        block.remove(at);
        self.len -= 1;
        match block.len() {
            0 => {
                self.blocks.remove(&key);
            }
            // Not each time: of two neighbours with few left, the last to come here finds the other.
            few if few <= BLOCK / 4 && few.is_power_of_two() => self.merge(key),
            _ => {}
        }
        true
    }

    /// Puts an entry that is not there in the place of one that is.
    pub(crate) fn replace(&mut self, before: &T, after: T) {
        let mut up_to = self.blocks.range_mut(..=(*before).max(after));
        // Where both belong to the same block nothing else changes.
        if let Some((&key, block)) = up_to.next_back()
            && key <= (*before).min(after)
            && let (Ok(from), Err(to)) = (block.live().binary_search(before), block.live().binary_search(&after))
        {
            let start = block.from;
            move_entry(&mut block.entries[start..], from, to, after);
            return;
        }
        self.remove(before);
        self.insert(after);
    }

    /// Makes one block of two neighbours, if few are left in them together.
    fn merge(&mut self, key: T) {
        let few = |a: &Block<T>, b: &Block<T>| a.len() + b.len() <= BLOCK / 2;
        let own = &self.blocks[&key];
        let before = self.blocks.range(..key).next_back();
        let after = self.blocks.range((Bound::Excluded(key), Bound::Unbounded)).next();
        let (low, high) = match (before, after) {
            (Some((&low, block)), _) if few(block, own) => (low, key),
            (_, Some((&high, block))) if few(own, block) => (key, high),
            _ => return,
        };
        let moved = self.blocks.remove(&high);
        if let (Some(block), Some(moved)) = (self.blocks.get_mut(&low), moved) {
            block.entries.drain(..block.from);
            block.from = 0;
            block.entries.extend_from_slice(moved.live());
        }
    }

    /// All entries, ascending.
    pub(crate) fn iter(&self) -> Entries<'_, T> {
        Entries { front: [].iter(), blocks: self.blocks.range(..), back: [].iter() }
    }

    /// The entries from one on, ascending.
    pub(crate) fn from(&self, start: T) -> Entries<'_, T> {
        let Some((&key, block)) = self.blocks.range(..=start).next_back() else { return self.iter() };
        let at = block.live().partition_point(|entry| *entry < start);
        Entries {
            front: block.live()[at..].iter(),
            blocks: self.blocks.range((Bound::Excluded(key), Bound::Unbounded)),
            back: [].iter(),
        }
    }
}

/// Entries in a row.
#[derive(Clone, Debug)]
pub(crate) struct Entries<'a, T> {
    front: slice::Iter<'a, T>,
    blocks: btree_map::Range<'a, T, Block<T>>,
    back: slice::Iter<'a, T>,
}

impl<'a, T> From<&'a [T]> for Entries<'a, T> {
    #[inline]
    fn from(entries: &'a [T]) -> Self {
        Entries { front: entries.iter(), blocks: btree_map::Range::default(), back: [].iter() }
    }
}

impl<'a, T: Ord + Copy> Iterator for Entries<'a, T> {
    type Item = &'a T;

    #[inline]
    fn next(&mut self) -> Option<&'a T> {
        loop {
            if let Some(entry) = self.front.next() {
                return Some(entry);
            }
            match self.blocks.next() {
                Some((_, block)) => self.front = block.live().iter(),
                None => return self.back.next(),
            }
        }
    }
}

impl<T: Ord + Copy> DoubleEndedIterator for Entries<'_, T> {
    fn next_back(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(entry) = self.back.next_back() {
                return Some(entry);
            }
            match self.blocks.next_back() {
                Some((_, block)) => self.back = block.live().iter(),
                None => return self.front.next_back(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::rng::Rng;

    fn verify(blocks: &Blocks<u32>, tree: &BTreeSet<u32>) {
        assert!(blocks.iter().eq(tree) && blocks.iter().rev().eq(tree.iter().rev()));
        assert_eq!((blocks.len(), blocks.first()), (tree.len(), tree.first()));
        let mut before = None;
        for (&key, block) in &blocks.blocks {
            assert!(block.len() > 0 && block.entries.capacity() == BLOCK && key <= block.live()[0]);
            assert!(before < Some(key), "the key of a block lies before what the block before has");
            before = block.live().last().copied();
        }
    }

    #[test]
    fn it_behaves_like_a_tree() {
        for seed in 0..10 {
            let mut rng = Rng::new(seed);
            let (mut blocks, mut tree) = (Blocks::new(&[]), BTreeSet::new());
            for round in 0..12 {
                for step in 0..1500 {
                    let entry = match rng.below(4) {
                        // In order, backwards, anywhere.
                        0 => 50_000 + round * 1500 + step,
                        1 => 40_000 - round * 1500 - step,
                        _ => rng.below(3000) as u32,
                    };
                    if rng.below(10) < if round % 3 == 2 { 2 } else { 6 } {
                        assert_eq!(blocks.insert(entry), tree.insert(entry));
                        assert!(!blocks.insert(entry));
                    } else {
                        let first = tree.range(entry..).next().copied().unwrap_or(entry);
                        assert_eq!(blocks.contains(&first), tree.contains(&first));
                        assert_eq!(blocks.remove(&first), tree.remove(&first));
                    }
                }
                verify(&blocks, &tree);
                let start = rng.below(3000) as u32;
                assert!(blocks.from(start).eq(tree.range(start..)));
            }
            while let Some(first) = tree.pop_first() {
                assert!(blocks.remove(&first) && blocks.first() == tree.first());
            }
            assert!(blocks.blocks.is_empty());
        }
    }

    #[test]
    fn what_comes_in_order_fills_its_blocks_and_what_leaves_in_any_order_empties_them() {
        let all: Vec<u32> = (0..100 * BLOCK as u32).collect();
        let mut blocks = Blocks::new(&[]);
        for &entry in &all {
            blocks.insert(entry);
        }
        assert_eq!(blocks.blocks.len(), 100);
        let mut backwards = Blocks::new(&[]);
        for &entry in all.iter().rev() {
            backwards.insert(entry);
        }
        assert_eq!(backwards.blocks.len(), 100);
        // Between two that are full, always before the one that came last.
        let mut between = Blocks::new(&all[..BLOCK]);
        between.insert(1_000_000);
        for entry in (500_000..503_200).rev() {
            between.insert(entry);
        }
        assert!(between.blocks.len() < 110, "{}", between.blocks.len());
        // One of sixteen stays; once from the front to the back, once from the back to the front.
        let leaving: Vec<u32> = all.iter().copied().filter(|entry| entry % 16 != 0).collect();
        let reversed: Vec<u32> = leaving.iter().rev().copied().collect();
        for (mut blocks, leaving) in [(blocks, leaving), (backwards, reversed)] {
            assert!(leaving.iter().all(|entry| blocks.remove(entry)));
            assert_eq!(blocks.len(), 100 * BLOCK / 16);
            assert!(blocks.blocks.len() <= 100 / 3, "{} blocks", blocks.blocks.len());
        }
    }
}
