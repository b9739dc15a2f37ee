//! Tables by slot that grow without moving anything, and what finds an entry of theirs by its contents.

use crate::ids::NONE;
use crate::map::SteadyTable;

/// Entries per chunk of a slab.
const CHUNK: usize = 64;

/// A table of things that come and go, by slot. Slots are used again, the latest freed first. Growing adds a chunk and
/// moves nothing.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    chunks: Vec<Box<[Entry<T>; CHUNK]>>,
    /// The slot freed last, where the list of free ones begins.
    free: u32,
    /// Slots ever used.
    used: u32,
    len: u32,
}

#[derive(Debug)]
enum Entry<T> {
    Used(T),
    /// Free; the one that was free before it.
    Free(u32),
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab { chunks: Vec::new(), free: NONE, used: 0, len: 0 }
    }
}

impl<T> Slab<T> {
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        let slot = self.next_slot();
        if slot == self.used {
            if slot as usize == self.chunks.len() * CHUNK {
                self.add_chunk();
            }
            self.used += 1;
        }
        self.len += 1;
        let entry = &mut self.chunks[slot as usize / CHUNK][slot as usize % CHUNK];
        if slot == self.free
            && let Entry::Free(before) = *entry
        {
            self.free = before;
        }
        *entry = Entry::Used(value);
        slot
    }

    /// Puts something into a slot beyond all that were ever used; those in between are free then.
    pub(crate) fn insert_at(&mut self, slot: u32, value: T) {
        debug_assert!(slot >= self.used, "the slot was never used");
        // The slot to be filled comes last, so that it is the first free one.
        for free in self.used..=slot {
            if free as usize == self.chunks.len() * CHUNK {
                self.add_chunk();
            }
            self.chunks[free as usize / CHUNK][free as usize % CHUNK] = Entry::Free(self.free);
            self.free = free;
        }
        self.used = slot + 1;
        self.insert(value);
    }

    /// Adds a chunk of free entries. Made as a list first: an array would be on the stack for a moment.
    fn add_chunk(&mut self) {
        let entries: Box<[Entry<T>]> = (0..CHUNK).map(|_| Entry::Free(NONE)).collect();
        self.chunks.push(entries.try_into().unwrap_or_else(|_| unreachable!("it is as long as a chunk")));
    }

    pub(crate) fn remove(&mut self, slot: u32) -> Option<T> {
        let entry = &mut self.chunks.get_mut(slot as usize / CHUNK)?[slot as usize % CHUNK];
        if matches!(entry, Entry::Free(_)) {
            return None;
        }
        let removed = std::mem::replace(entry, Entry::Free(self.free));
        self.free = slot;
        self.len -= 1;
        match removed {
            Entry::Used(value) => Some(value),
            Entry::Free(_) => None,
        }
    }

    #[inline]
    pub(crate) fn get(&self, slot: u32) -> Option<&T> {
        match &self.chunks.get(slot as usize / CHUNK)?[slot as usize % CHUNK] {
            Entry::Used(value) => Some(value),
            Entry::Free(_) => None,
        }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, slot: u32) -> Option<&mut T> {
        match &mut self.chunks.get_mut(slot as usize / CHUNK)?[slot as usize % CHUNK] {
            Entry::Used(value) => Some(value),
            Entry::Free(_) => None,
        }
    }

    /// The slot that the next `insert` would use is never used again.
    pub(crate) fn forsake_next(&mut self) {
        if let Some(&Entry::Free(before)) =
            self.chunks.get(self.free as usize / CHUNK).and_then(|chunk| chunk.get(self.free as usize % CHUNK))
        {
            self.free = before;
        }
    }

    /// The slot that the next `insert` will use.
    pub(crate) fn next_slot(&self) -> u32 {
        if self.free == NONE { self.used } else { self.free }
    }

    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.chunks.iter().flat_map(|chunk| chunk.iter()).zip(0u32..).filter_map(|(entry, slot)| match entry {
            Entry::Used(value) => Some((slot, value)),
            Entry::Free(_) => None,
        })
    }
}

impl<T> std::ops::Index<u32> for Slab<T> {
    type Output = T;
    #[inline]
    fn index(&self, slot: u32) -> &T {
        self.get(slot).expect("the slot is in use")
    }
}

impl<T> std::ops::IndexMut<u32> for Slab<T> {
    #[inline]
    fn index_mut(&mut self, slot: u32) -> &mut T {
        self.get_mut(slot).expect("the slot is in use")
    }
}

/// Finds slots of a slab by what is in them; the slab itself is the caller's.
#[derive(Debug, Default)]
pub(crate) struct Interner {
    /// Hashes, and the slots of what they belong to.
    table: SteadyTable<(u32, u32)>,
}

/// A hash as tables want it, all of its bits in use.
#[inline]
fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Interner {
    /// The slot whose contents are the `same`.
    pub(crate) fn find(&self, hash: u32, same: impl Fn(u32) -> bool) -> Option<u32> {
        self.table.find(spread(hash), |entry| entry.0 == hash && same(entry.1)).map(|entry| entry.1)
    }

    pub(crate) fn insert(&mut self, hash: u32, slot: u32) {
        self.table.insert_unique(spread(hash), (hash, slot), |entry| spread(entry.0));
    }

    pub(crate) fn remove(&mut self, hash: u32, slot: u32) {
        let removed = self.table.remove(spread(hash), |&entry| entry == (hash, slot));
        debug_assert!(removed.is_some(), "what is in use is found");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_used_again_and_nothing_is_mistaken_for_another() {
        let mut slab = Slab::default();
        let slots: Vec<u32> = (0..1000).map(|value| slab.insert(value)).collect();
        assert_eq!(slots, (0..1000).collect::<Vec<u32>>());
        for slot in [3, 999, 128] {
            assert_eq!(slab.remove(slot), Some(slot));
            assert_eq!((slab.remove(slot), slab.get(slot)), (None, None));
        }
        assert_eq!((slab.len(), slab.iter().count()), (997, 997));
        for (value, slot) in [(7, 128), (8, 999), (9, 3), (10, 1000)] {
            assert_eq!(slab.next_slot(), slot);
            assert_eq!(slab.insert(value), slot);
            assert_eq!(slab[slot], value);
        }
        assert_eq!(slab.len(), 1001);
        slab.insert_at(1005, 11);
        assert_eq!((slab[1005], slab.len(), slab.next_slot()), (11, 1002, 1004));
        for slot in [1004, 1003, 1002, 1001, 1006] {
            assert_eq!(slab.insert(0), slot);
        }
        assert_eq!(slab.remove(5000), None);
        assert_eq!(slab.get(5000), None);
    }
}
