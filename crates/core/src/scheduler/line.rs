//! A queue in order for tasks that nearly always come in order.
//!
//! Who comes last is mostly last, and who leaves is mostly first; both are done here without searching. The few others
//! (earlier deadlines, tasks that come back) stand in a tree beside it. Never moves the entries of more
//! than one block because of one task; only when a block within runs empty does the list of blocks, five words each, close up.

use std::collections::{BTreeSet, VecDeque};

use super::tasks::OrderKey;
use crate::ids::NONE;
use crate::time::Time;

/// A task's place: its order, then its slot.
pub(crate) type Entry = (OrderKey, u32);

/// Entries per block.
const BLOCK: usize = 128;

/// Consecutive entries, ascending. Those that left before their turn have the slot `NONE`.
#[derive(Debug, Default)]
struct Block {
    entries: Vec<Entry>,
    /// Entries before this one have left.
    from: usize,
    /// Entries that have not left.
    live: usize,
}

impl Block {
    /// Skips those at the front that have left.
    fn trim(&mut self) {
        while self.entries.get(self.from).is_some_and(|entry| entry.1 == NONE) {
            self.from += 1;
        }
    }
}

/// A sorted queue. Whoever is first stands apart, so that a queue of one is small; it comes before all the rest.
#[derive(Debug)]
pub(crate) struct Line {
    /// The first; its slot is `NONE` if nobody is there.
    first: Entry,
    rest: Option<Box<Rest>>,
}

/// All but the first. The first block's first entry is there, or there is no block.
#[derive(Debug, Default)]
struct Rest {
    blocks: VecDeque<Block>,
    /// Those that came after somebody who stands behind them.
    early: BTreeSet<Entry>,
    /// Entries in blocks.
    live: usize,
}

impl Default for Line {
    fn default() -> Self {
        Line { first: NOBODY, rest: None }
    }
}

const NOBODY: Entry = (OrderKey { deadline: Time::ZERO, rank: 0, sequence: 0 }, NONE);

impl Line {
    pub(crate) fn len(&self) -> usize {
        let rest = self.rest.as_ref().map_or(0, |rest| rest.live + rest.early.len());
        usize::from(self.first.1 != NONE) + rest
    }

    #[inline]
    pub(crate) fn first(&self) -> Option<Entry> {
        (self.first.1 != NONE).then_some(self.first)
    }

    #[inline]
    pub(crate) fn insert(&mut self, entry: Entry) {
        if self.first.1 == NONE {
            self.first = entry;
            return;
        }
        if entry < self.first {
            self.insert_first(entry);
        } else {
            self.rest.get_or_insert_default().insert(entry);
        }
    }

    #[inline(never)]
    fn insert_first(&mut self, entry: Entry) {
        let second = std::mem::replace(&mut self.first, entry);
        self.rest.get_or_insert_default().early.insert(second);
    }

    /// Takes an entry out. Whether it was there.
    #[inline]
    pub(crate) fn remove(&mut self, entry: Entry) -> bool {
        if self.first != entry {
            return self.rest.as_mut().is_some_and(|rest| rest.remove(entry));
        }
        self.pop_first();
        true
    }

    /// Takes the first out.
    #[inline]
    pub(crate) fn pop_first(&mut self) {
        self.first = self.rest.as_mut().and_then(|rest| rest.pop_first()).unwrap_or(NOBODY);
    }

    /// All entries, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Entry> + '_ {
        self.first().into_iter().chain(self.rest.iter().flat_map(|rest| rest.iter()))
    }

    /// The slots of all, the first in order first.
    pub(crate) fn in_order(&self) -> impl Iterator<Item = u32> + '_ {
        self.first().map(|first| first.1).into_iter().chain(self.rest.iter().flat_map(|rest| rest.in_order()))
    }

    /// How many stand before a place in the order; counting stops at about `most`.
    pub(crate) fn before(&self, order: OrderKey, most: usize) -> usize {
        let first = self.first().is_some_and(|first| first.0 < order);
        usize::from(first) + self.rest.as_ref().map_or(0, |rest| rest.before(order, most))
    }
}

impl Rest {
    #[inline]
    fn insert(&mut self, entry: Entry) {
        match self.blocks.back_mut() {
            // A place that was left still keeps its order.
            Some(block) if block.entries.last().is_some_and(|last| last.0 >= entry.0) => self.insert_early(entry),
            Some(block) if block.entries.len() < BLOCK => {
                block.live += 1;
                block.entries.push(entry);
                self.live += 1;
            }
            Some(_) => self.begin_block(Vec::with_capacity(BLOCK), entry),
            None => self.begin_block(Vec::with_capacity(1), entry),
        }
    }

    // What few insertions need stands apart, so that the others stay small.
    #[inline(never)]
    fn insert_early(&mut self, entry: Entry) {
        self.early.insert(entry);
    }

    #[inline(never)]
    fn begin_block(&mut self, mut entries: Vec<Entry>, entry: Entry) {
        entries.push(entry);
        self.blocks.push_back(Block { entries, from: 0, live: 1 });
        self.live += 1;
    }

    #[inline(never)]
    fn pop_early(&mut self) -> Option<Entry> {
        self.early.pop_first()
    }

    #[inline]
    fn pop_first(&mut self) -> Option<Entry> {
        let Some(block) = self.blocks.front_mut() else { return self.pop_early() };
        let first = block.entries[block.from];
        if !self.early.is_empty() && self.early.first().is_some_and(|early| *early < first) {
            return self.pop_early();
        }
        block.from += 1;
        block.live -= 1;
        self.live -= 1;
        if block.live == 0 {
            self.blocks.pop_front();
        }
        self.trim();
        Some(first)
    }

    #[inline(never)]
    fn remove(&mut self, entry: Entry) -> bool {
        if self.early.remove(&entry) {
            return true;
        }
        let at = self.blocks.partition_point(|block| block.entries.last().is_some_and(|last| last.0 < entry.0));
        let Some(block) = self.blocks.get_mut(at) else { return false };
        let Ok(place) = block.entries.binary_search_by_key(&entry.0, |entry| entry.0) else { return false };
        if place < block.from || block.entries[place].1 != entry.1 {
            return false;
        }
        block.entries[place].1 = NONE;
        block.live -= 1;
        self.live -= 1;
        if block.live == 0 {
            self.blocks.remove(at);
        }
        self.trim();
        true
    }

    /// Makes the first block's first entry one that is there.
    fn trim(&mut self) {
        if let Some(block) = self.blocks.front_mut() {
            block.trim();
        }
    }

    fn in_order(&self) -> impl Iterator<Item = u32> + '_ {
        let in_blocks = self.blocks.iter().flat_map(|block| &block.entries[block.from..]);
        let mut in_blocks = in_blocks.filter(|entry| entry.1 != NONE).peekable();
        let mut early = self.early.iter().peekable();
        std::iter::from_fn(move || {
            let sooner = match (early.peek(), in_blocks.peek()) {
                (Some(early), Some(other)) => early < other,
                (early, _) => early.is_some(),
            };
            let next = if sooner { early.next() } else { in_blocks.next() };
            next.map(|entry| entry.1)
        })
    }

    fn iter(&self) -> impl Iterator<Item = Entry> + '_ {
        let in_blocks = self.blocks.iter().flat_map(|block| &block.entries[block.from..]);
        in_blocks.filter(|entry| entry.1 != NONE).chain(&self.early).copied()
    }

    fn before(&self, order: OrderKey, most: usize) -> usize {
        let in_blocks = self.blocks.iter().flat_map(|block| &block.entries[block.from..]);
        let in_blocks = in_blocks.take_while(|entry| entry.0 < order).take(most).filter(|entry| entry.1 != NONE);
        in_blocks.count() + self.early.range(..(order, 0)).take(most).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    fn order(deadline: u64, sequence: u64) -> OrderKey {
        OrderKey { deadline: Time(deadline), rank: 9, sequence }
    }

    #[test]
    fn an_entry_stays_small() {
        assert_eq!(size_of::<Entry>(), 24);
    }

    #[test]
    fn it_behaves_like_a_sorted_set() {
        for seed in 0..20 {
            let mut rng = Rng::new(seed);
            let (mut line, mut set) = (Line::default(), BTreeSet::new());
            for step in 0..4000u64 {
                match rng.below(20) {
                    // In order, out of order, first away, anybody away.
                    0..8 => {
                        let entry = (order(9, step), step as u32);
                        line.insert(entry);
                        set.insert(entry);
                    }
                    8..10 => {
                        let entry = (order(rng.below(10) as u64, step), step as u32);
                        line.insert(entry);
                        set.insert(entry);
                    }
                    10..17 => {
                        if let Some(first) = set.pop_first() {
                            assert!(line.remove(first));
                            assert!(!line.remove(first));
                        }
                    }
                    _ => {
                        if let Some(&entry) = set.iter().nth(rng.below(set.len())) {
                            set.remove(&entry);
                            assert!(line.remove(entry));
                            assert!(!line.remove(entry));
                            line.insert(entry);
                            assert!(line.remove(entry));
                        }
                    }
                }
                assert_eq!((line.first(), line.len()), (set.first().copied(), set.len()));
                if step % 64 == 0 {
                    let mut all: Vec<Entry> = line.iter().collect();
                    all.sort_unstable();
                    assert!(all.iter().eq(set.iter()));
                    assert!(line.in_order().eq(set.iter().map(|entry| entry.1)));
                    let order = order(9, step / 2);
                    assert_eq!(line.before(order, usize::MAX), set.range(..(order, 0)).count());
                }
            }
            while let Some(first) = set.pop_first() {
                assert_eq!(line.first(), Some(first));
                assert!(line.remove(first));
            }
            let rest = line.rest.as_ref().unwrap();
            assert!(rest.blocks.is_empty() && rest.early.is_empty() && line.len() == 0);
        }
    }
}
