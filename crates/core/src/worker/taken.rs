//! Which attempts came lately, by their fingerprints, so that a message that comes twice does nothing twice.
//!
//! Every task that comes is looked up and entered here, and the one that came longest ago is forgotten. So it is small: with many
//! workers in one process each of these comes from far away. Two attempts with one fingerprint count as one: whoever is not
//! taken because of that is missed, and handed out again.

/// So few are looked through one by one.
const FEW: usize = 32;
/// Bits of a mark that say where the fingerprint stands; the others are some of its own.
const PLACE_BITS: u32 = 10;
/// A place of the table where none stands.
const FREE: u16 = 0;

/// A bounded memory of fingerprints: what came last is found, what came long ago is forgotten.
#[derive(Clone, Debug)]
pub(crate) struct Taken {
    /// In the order they came, from `oldest` on and round.
    ring: Vec<u64>,
    oldest: usize,
    /// A mark for each of them, where its fingerprint says or as soon after that as one was free; at least twice as many places as
    /// there are marks. Empty while there are few: most workers of a large cluster never have many.
    table: Vec<u16>,
    most: usize,
}

/// What stands in the table for a fingerprint at a place of the ring.
#[inline]
fn mark(fingerprint: u64, at: usize) -> u16 {
    (at as u16 | ((fingerprint >> 59) as u16) << PLACE_BITS) + 1
}

/// The place of the ring that a mark stands for.
#[inline]
fn place(mark: u16) -> usize {
    usize::from(mark - 1) & ((1 << PLACE_BITS) - 1)
}

impl Taken {
    /// A memory for so many, at most 1024.
    pub(crate) fn new(most: usize) -> Self {
        debug_assert!((1..=1 << PLACE_BITS).contains(&most));
        Taken { ring: Vec::new(), oldest: 0, table: Vec::new(), most }
    }

    /// Enters a fingerprint. Whether it was not there.
    pub(crate) fn insert(&mut self, fingerprint: u64) -> bool {
        if self.contains(fingerprint) {
            return false;
        }
        let at = if self.ring.len() < self.most {
            self.ring.push(fingerprint);
            self.ring.len() - 1
        } else {
            let at = self.oldest;
            self.oldest = if at + 1 == self.most { 0 } else { at + 1 };
            if !self.table.is_empty() {
                self.forget(at);
            }
            self.ring[at] = fingerprint;
            at
        };
        if self.ring.len() > FEW && self.ring.len() * 2 > self.table.len() {
            self.grow();
        } else if !self.table.is_empty() {
            self.enter(at);
        }
        true
    }

    pub(crate) fn contains(&self, fingerprint: u64) -> bool {
        if self.table.is_empty() {
            return self.ring.contains(&fingerprint);
        }
        let last = self.table.len() - 1;
        let alike = mark(fingerprint, 0) - 1;
        let mut at = fingerprint as usize & last;
        while self.table[at] != FREE {
            let found = self.table[at] - 1;
            if found >> PLACE_BITS == alike >> PLACE_BITS && self.ring[place(found + 1)] == fingerprint {
                return true;
            }
            at = (at + 1) & last;
        }
        false
    }

    /// Puts the mark of a place of the ring into the table.
    fn enter(&mut self, place: usize) {
        let (last, fingerprint) = (self.table.len() - 1, self.ring[place]);
        let mut at = fingerprint as usize & last;
        while self.table[at] != FREE {
            at = (at + 1) & last;
        }
        self.table[at] = mark(fingerprint, place);
    }

    /// Takes the mark of a place of the ring out of the table; those behind it that stood further back because of it move up.
    fn forget(&mut self, gone: usize) {
        let last = self.table.len() - 1;
        let mut hole = self.ring[gone] as usize & last;
        let sought = mark(self.ring[gone], gone);
        while self.table[hole] != sought {
            hole = (hole + 1) & last;
        }
        let mut at = hole;
        loop {
            at = (at + 1) & last;
            let found = self.table[at];
            if found == FREE {
                break;
            }
            let home = self.ring[place(found)] as usize & last;
            if (at.wrapping_sub(home) & last) >= (at.wrapping_sub(hole) & last) {
                self.table[hole] = found;
                hole = at;
            }
        }
        self.table[hole] = FREE;
    }

    #[cold]
    fn grow(&mut self) {
        self.table = vec![FREE; (self.ring.len() * 2).next_power_of_two()];
        for at in 0..self.ring.len() {
            self.enter(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use crate::rng::Rng;

    #[test]
    fn the_oldest_are_forgotten_and_no_others() {
        for most in [3, FEW, FEW + 1, 100, 1024] {
            let (mut rng, mut taken, mut naive) = (Rng::new(3), Taken::new(most), VecDeque::new());
            for step in 0..6000_u64 {
                // Many of them want the same place, and some come again.
                let fingerprint =
                    (rng.below(64) as u64) | (rng.below(3 * most) as u64) << 40 | (rng.below(4) as u64) << 60;
                let known = naive.contains(&fingerprint);
                assert_eq!(taken.contains(fingerprint), known, "{most}, step {step}");
                assert_eq!(taken.insert(fingerprint), !known);
                if !known {
                    naive.push_back(fingerprint);
                    if naive.len() > most {
                        naive.pop_front();
                    }
                }
                let (newer, older) = taken.ring.split_at(taken.oldest);
                assert!(older.iter().chain(newer).eq(naive.iter()));
                if step % 16 == 0 {
                    assert!(naive.iter().all(|entry| taken.contains(*entry)));
                }
            }
            let marks = taken.table.iter().filter(|entry| **entry != FREE).count();
            assert!(taken.table.is_empty() && most <= FEW || marks == taken.ring.len());
        }
    }
}
