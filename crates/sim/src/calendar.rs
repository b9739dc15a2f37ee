//! What is to happen, by the time it happens: a queue that hands out the earliest first, and what is due at the same moment
//! in the order it was put in.
//!
//! A hierarchy of wheels. An entry stands in the wheel of the highest group of bits in which its time differs from the
//! present, so that putting in costs a few instructions and each entry moves down at most once for every wheel. Never
//! hands out anything earlier than what it handed out before.

use filch_core::Time;

/// Bits of the time that one wheel stands for.
const BITS: u32 = 6;
/// Places on a wheel.
const PLACES: usize = 1 << BITS;
/// Wheels that together cover all of the time.
const WHEELS: usize = 64usize.div_ceil(BITS as usize);
/// Entries that a place keeps memory for when it is empty. What had room for more serves the next place of its wheel.
const KEPT: usize = 1024;

/// Entries that are told of together before they happen.
const AHEAD: usize = 128;

/// What is to happen, and when.
type Entry<T> = (u64, T);

/// The queue.
#[derive(Debug)]
pub struct Calendar<T> {
    now: u64,
    len: usize,
    /// Which wheels hold something, a bit each.
    wheels: u32,
    /// Which places of a wheel hold something, a bit each.
    used: [u64; WHEELS],
    /// The entries of each place, in the order they were put in. Lists and not links: with very many entries each link that is
    /// followed, or set, would have to come from memory.
    places: Vec<Vec<Entry<T>>>,
    /// For each wheel, a list that became long and is empty.
    spare: [Vec<Entry<T>>; WHEELS],
    /// How many of the place that is due were handed out.
    taken: usize,
    /// Up to when most of what happens was told ahead.
    told_until: u64,
}

impl<T> Default for Calendar<T> {
    fn default() -> Self {
        let places = std::iter::repeat_with(Vec::new).take(WHEELS * PLACES).collect();
        Calendar {
            now: 0,
            len: 0,
            wheels: 0,
            used: [0; WHEELS],
            places,
            spare: Default::default(),
            taken: 0,
            told_until: 0,
        }
    }
}

impl<T: Copy> Calendar<T> {
    /// How much is to happen.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is to happen any more.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All that is to happen, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (Time, &T)> + '_ {
        // Only the place that is due has entries that were handed out.
        let due = if self.wheels & 1 == 0 { usize::MAX } else { self.used[0].trailing_zeros() as usize };
        self.places.iter().enumerate().flat_map(move |(place, entries)| {
            let left = if place == due { &entries[self.taken..] } else { &entries[..] };
            left.iter().map(|(at, what)| (Time(*at), what))
        })
    }

    /// Puts in what is to happen at `at`, or at once if that has passed.
    #[inline]
    pub fn push(&mut self, at: Time, what: T) {
        self.len += 1;
        self.place((at.0.max(self.now), what));
    }

    /// Puts an entry behind all others of its place.
    #[inline]
    fn place(&mut self, entry: Entry<T>) {
        let differs = entry.0 ^ self.now;
        let wheel = ((63 - (differs | 1).leading_zeros()) / BITS) as usize;
        let place = (entry.0 >> (wheel as u32 * BITS)) as usize & (PLACES - 1);
        self.used[wheel] |= 1 << place;
        self.wheels |= 1 << wheel;
        let entries = &mut self.places[wheel * PLACES + place];
        if entries.capacity() == 0 {
            *entries = std::mem::take(&mut self.spare[wheel]);
        }
        entries.push(entry);
    }

    /// A place holds nothing any more.
    #[inline]
    fn clear(&mut self, wheel: usize, place: usize) {
        self.used[wheel] &= !(1 << place);
        if self.used[wheel] == 0 {
            self.wheels &= !(1 << wheel);
        }
    }

    /// Takes out what happens next. `ahead` is told of most of what happens soon after, many at a time: enough of them to be worth
    /// reading together what they need from memory, and few enough that it is still in a cache when they happen.
    pub fn pop(&mut self, mut ahead: impl FnMut(&T)) -> Option<(Time, T)> {
        loop {
            if self.wheels == 0 {
                return None;
            }
            let wheel = self.wheels.trailing_zeros() as usize;
            let place = self.used[wheel].trailing_zeros() as usize;
            let entries = &mut self.places[wheel * PLACES + place];
            // All of one place of the lowest wheel are due at the same moment; one alone is due before all the others.
            if wheel == 0 || entries.len() == 1 {
                if self.taken.is_multiple_of(AHEAD) && entries.len() > self.taken + 1 {
                    entries[self.taken..].iter().take(AHEAD).for_each(|entry| ahead(&entry.1));
                }
                let (at, what) = entries[self.taken];
                self.taken += 1;
                if self.taken == entries.len() {
                    entries.clear();
                    self.taken = 0;
                    self.clear(wheel, place);
                }
                self.now = at;
                self.len -= 1;
                return Some((Time(at), what));
            }
            // Whoever is told of a place is not told of the smaller ones it falls into.
            let until = (entries[0].0 | ((1 << (wheel as u32 * BITS)) - 1)).max(self.told_until);
            if entries.len() <= AHEAD && until > self.told_until {
                self.told_until = until;
                entries.iter().for_each(|entry| ahead(&entry.1));
            }
            self.move_down(wheel, place);
        }
    }

    /// Moves the entries of a place, the first of all, to lower wheels.
    fn move_down(&mut self, wheel: usize, place: usize) {
        self.clear(wheel, place);
        let mut entries = std::mem::take(&mut self.places[wheel * PLACES + place]);
        self.now = entries.iter().map(|entry| entry.0).min().unwrap_or(self.now);
        for &entry in &entries {
            self.place(entry);
        }
        entries.clear();
        if entries.capacity() <= KEPT {
            self.places[wheel * PLACES + place] = entries;
        } else if entries.capacity() > self.spare[wheel].capacity() {
            self.spare[wheel] = entries;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn hands_out_the_earliest_first_and_equals_in_order(
            steps in prop::collection::vec((any::<bool>(), 0u64..60, 0u64..1_000_000_000_000), 1..400)
        ) {
            let mut calendar = Calendar::default();
            let mut naive: Vec<(u64, usize)> = Vec::new();
            let mut now = 0;
            for (number, (takes, shift, delay)) in steps.into_iter().enumerate() {
                if takes {
                    let earliest = naive.iter().copied().min();
                    naive.retain(|entry| Some(*entry) != earliest);
                    prop_assert_eq!(calendar.pop(|_| ()).map(|(at, what)| (at.0, what)), earliest);
                    now = earliest.map_or(now, |entry| entry.0);
                } else {
                    // Short and long delays alike.
                    let at = now + (delay >> shift.min(40));
                    calendar.push(Time(at), number);
                    naive.push((at, number));
                }
                prop_assert_eq!(calendar.len(), naive.len());
                let mut listed: Vec<_> = calendar.iter().map(|(at, what)| (at.0, *what)).collect();
                listed.sort_unstable();
                let mut expected = naive.clone();
                expected.sort_unstable();
                prop_assert_eq!(listed, expected);
            }
        }
    }

    #[test]
    fn what_is_late_happens_at_once_and_the_end_of_time_is_reached() {
        let mut calendar = Calendar::default();
        calendar.push(Time(100), 'a');
        assert_eq!(calendar.pop(|_| ()), Some((Time(100), 'a')));
        calendar.push(Time(5), 'b');
        calendar.push(Time::NEVER, 'c');
        assert_eq!(calendar.pop(|_| ()), Some((Time(100), 'b')));
        assert_eq!(calendar.pop(|_| ()), Some((Time::NEVER, 'c')));
        assert!(calendar.is_empty() && calendar.pop(|_| ()).is_none());
    }
}
