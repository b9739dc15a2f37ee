//! The hash maps of the core: fast and free of random state. Never iterate them where order could reach a decision.

use std::hash::{BuildHasher, Hash};

use hashbrown::HashTable;
use rustc_hash::FxBuildHasher;

/// A hash map whose hasher is the same on every run and machine. Growing moves everything in it at once, so it is for
/// what stays small; what may become large grows in parts.
pub type Map<K, V> = hashbrown::HashMap<K, V, FxBuildHasher>;

/// Entries in one part of a [`SteadyTable`] before it is split in two: what fits into 1024 buckets.
const PART: usize = 896;

/// A hash table that moves no more than one small part because of one entry, however large it has become (extendible
/// hashing: a list of parts, chosen by the first bits of the hash; a full part is split in two). What does grow with
/// it are the list and its index, two words for a thousand entries.
///
/// Like `hashbrown::HashTable` it leaves hashes and equality to the caller.
#[derive(Debug)]
pub(crate) struct SteadyTable<T> {
    parts: Vec<Part<T>>,
    /// Which part has the entries whose hashes begin with these bits.
    index: Vec<u32>,
    /// Bits of the hash that `index` distinguishes.
    bits: u32,
    len: usize,
}

#[derive(Debug)]
struct Part<T> {
    entries: HashTable<T>,
    /// Bits of the hash that all its entries share.
    bits: u32,
}

impl<T> Default for SteadyTable<T> {
    fn default() -> Self {
        SteadyTable { parts: vec![Part { entries: HashTable::new(), bits: 0 }], index: vec![0], bits: 0, len: 0 }
    }
}

/// The first `bits` bits of a hash, spread once more: the tables inside use its bits as they are.
#[inline]
fn prefix(hash: u64, bits: u32) -> usize {
    if bits == 0 { 0 } else { (hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - bits)) as usize }
}

impl<T> SteadyTable<T> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn part(&self, hash: u64) -> u32 {
        self.index[prefix(hash, self.bits)]
    }

    #[inline]
    pub(crate) fn find(&self, hash: u64, same: impl FnMut(&T) -> bool) -> Option<&T> {
        self.parts[self.part(hash) as usize].entries.find(hash, same)
    }

    #[inline]
    pub(crate) fn find_mut(&mut self, hash: u64, same: impl FnMut(&T) -> bool) -> Option<&mut T> {
        let part = self.part(hash);
        self.parts[part as usize].entries.find_mut(hash, same)
    }

    /// Whether the part of a hash should be split. Entries with equal hashes stay together whatever is done, so the index
    /// does not grow for a few parts alone.
    fn is_full(&self, hash: u64) -> bool {
        let part = &self.parts[self.part(hash) as usize];
        part.entries.len() >= PART && (part.bits < self.bits || self.index.len() <= 8 * self.parts.len())
    }

    /// Adds an entry that is not there yet.
    pub(crate) fn insert_unique(&mut self, hash: u64, value: T, hasher: impl Fn(&T) -> u64) -> &mut T {
        while self.is_full(hash) {
            self.split(hash, &hasher);
        }
        self.len += 1;
        let part = self.part(hash);
        self.parts[part as usize].entries.insert_unique(hash, value, hasher).into_mut()
    }

    pub(crate) fn remove(&mut self, hash: u64, same: impl FnMut(&T) -> bool) -> Option<T> {
        let (part, many) = (self.part(hash), self.parts.len() > 1);
        let entries = &mut self.parts[part as usize].entries;
        let value = entries.find_entry(hash, same).ok()?.remove().0;
        if many && entries.is_empty() {
            *entries = HashTable::new();
        }
        self.len -= 1;
        Some(value)
    }

    /// Makes two parts of the one that a hash belongs to.
    fn split(&mut self, hash: u64, hasher: &impl Fn(&T) -> u64) {
        let new = self.parts.len() as u32;
        let at = self.part(hash);
        let part = &mut self.parts[at as usize];
        let shared = prefix(hash, part.bits);
        part.bits += 1;
        let bits = part.bits;
        let half = part.entries.len() / 2;
        let (mut low, mut high) = (HashTable::with_capacity(half), HashTable::with_capacity(half));
        for value in std::mem::take(&mut part.entries) {
            let hash = hasher(&value);
            let half = if prefix(hash, bits) & 1 == 0 { &mut low } else { &mut high };
            half.insert_unique(hash, value, hasher);
        }
        part.entries = low;
        self.parts.push(Part { entries: high, bits });
        if bits > self.bits {
            self.index = self.index.iter().flat_map(|&part| [part, part]).collect();
            self.bits = bits;
        }
        // Its hashes are a run in the index, of which the upper half is the new part's.
        let run = 1 << (self.bits - bits);
        let upper = (2 * shared + 1) * run;
        self.index[upper..upper + run].fill(new);
    }
}

/// A hash map on a [`SteadyTable`].
#[derive(Debug)]
pub(crate) struct Steady<K, V> {
    table: SteadyTable<(K, V)>,
}

impl<K, V> Default for Steady<K, V> {
    fn default() -> Self {
        Steady { table: SteadyTable::default() }
    }
}

/// A hash of 32 bits, the best that the hasher has.
pub(crate) fn short_hash<K: Hash>(key: &K) -> u32 {
    let hash = hash_of(key);
    (hash >> 32) as u32 ^ hash as u32
}

#[inline]
pub(crate) fn hash_of<K: Hash>(key: &K) -> u64 {
    FxBuildHasher.hash_one(key)
}

impl<K: Hash + Eq, V> Steady<K, V> {
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.table.len() == 0
    }

    #[inline]
    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.table.find(hash_of(key), |entry| entry.0 == *key).map(|entry| &entry.1)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.table.find_mut(hash_of(key), |entry| entry.0 == *key).map(|entry| &mut entry.1)
    }

    /// Adds a key that is not there yet.
    pub(crate) fn insert_new(&mut self, key: K, value: V) -> &mut V {
        debug_assert!(self.get(&key).is_none(), "only new keys are added");
        &mut self.table.insert_unique(hash_of(&key), (key, value), |entry| hash_of(&entry.0)).1
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        self.table.remove(hash_of(key), |entry| entry.0 == *key).map(|entry| entry.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn it_behaves_like_a_map_while_it_grows_and_shrinks() {
        let mut rng = Rng::new(1);
        let (mut steady, mut map) = (Steady::default(), Map::default());
        for round in 0..6 {
            for _ in 0..20_000 {
                let key = rng.below(30_000) as u32;
                let grow = rng.below(10) < if round % 2 == 0 { 8 } else { 3 };
                if grow && !map.contains_key(&key) {
                    *steady.insert_new(key, 0) = u64::from(key);
                    map.insert(key, u64::from(key));
                } else if !grow {
                    assert_eq!(steady.remove(&key), map.remove(&key));
                }
                if let Some(value) = steady.get_mut(&key) {
                    *value += 1;
                }
                map.entry(key).and_modify(|value| *value += 1);
                assert_eq!(steady.get(&key), map.get(&key));
            }
            assert_eq!(steady.len(), map.len());
            assert!(map.iter().all(|(key, value)| steady.get(key) == Some(value)));
        }
        for key in map.into_keys() {
            assert!(steady.remove(&key).is_some());
        }
        assert!(steady.is_empty());
    }

    #[test]
    fn no_insertion_moves_more_than_one_part() {
        let mut table = SteadyTable::default();
        for key in 0..200_000u64 {
            let moved = std::cell::Cell::new(0);
            table.insert_unique(hash_of(&key), key, |key| {
                moved.set(moved.get() + 1);
                hash_of(key)
            });
            // Each entry of the part is hashed to choose a half, and again whenever a half grows.
            assert!(moved.get() <= 2 * PART, "{} at {key}", moved.get());
        }
        assert!(table.parts.len() > 200_000 / PART && table.parts.len() < 8 * 200_000 / PART);
    }

    #[test]
    fn equal_hashes_stay_together() {
        let mut table = SteadyTable::default();
        for key in 0..2 * PART {
            table.insert_unique(7, key, |_| 7);
        }
        for key in 0..2 * PART {
            assert_eq!(table.find(7, |&other| other == key), Some(&key));
        }
        assert!(table.len() == 2 * PART && table.index.len() < 100);
    }
}
