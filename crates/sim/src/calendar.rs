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
/// No entry.
const NONE: u32 = u32::MAX;

/// What is to happen, in the list of its place.
#[derive(Clone, Copy, Debug)]
struct Entry<T> {
    at: u64,
    /// The next of its place, or of those that are free.
    next: u32,
    what: T,
}

/// The queue.
#[derive(Debug)]
pub struct Calendar<T> {
    now: u64,
    len: usize,
    /// Which wheels hold something, a bit each.
    wheels: u32,
    /// Which places of a wheel hold something, a bit each.
    used: [u64; WHEELS],
    /// The first and the last of each place that holds something.
    places: Box<[(u32, u32); WHEELS * PLACES]>,
    /// All entries. Those of one place are linked, so that moving them to another copies nothing, and those that are free,
    /// so that the one that was used last and is still in a cache is the next to be used.
    entries: Vec<Entry<T>>,
    free: u32,
}

impl<T> Default for Calendar<T> {
    fn default() -> Self {
        let places = Box::new([(NONE, NONE); WHEELS * PLACES]);
        Calendar { now: 0, len: 0, wheels: 0, used: [0; WHEELS], places, entries: Vec::new(), free: NONE }
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
        let used = |index: &usize| self.used[index / PLACES] & 1 << (index % PLACES) != 0;
        let firsts = (0..WHEELS * PLACES).filter(used).map(|index| self.places[index].0);
        firsts.flat_map(|first| {
            let next = |at: &u32| Some(self.entries[*at as usize].next).filter(|next| *next != NONE);
            std::iter::successors(Some(first), next).map(|at| {
                let entry = &self.entries[at as usize];
                (Time(entry.at), &entry.what)
            })
        })
    }

    /// Puts in what is to happen at `at`, or at once if that has passed.
    pub fn push(&mut self, at: Time, what: T) {
        self.len += 1;
        let at = at.0.max(self.now);
        let entry = Entry { at, next: NONE, what };
        let number = self.free;
        let number = match self.entries.get_mut(number as usize) {
            Some(free) => {
                self.free = free.next;
                *free = entry;
                number
            }
            None => {
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
        };
        self.place(at, number);
    }

    /// Puts an entry, whose next is none, behind all others of its place.
    #[inline]
    fn place(&mut self, at: u64, number: u32) {
        let differs = at ^ self.now;
        let wheel = ((63 - (differs | 1).leading_zeros()) / BITS) as usize;
        let place = (at >> (wheel as u32 * BITS)) as usize & (PLACES - 1);
        let ends = &mut self.places[wheel * PLACES + place];
        if self.used[wheel] & 1 << place == 0 {
            self.used[wheel] |= 1 << place;
            self.wheels |= 1 << wheel;
            *ends = (number, number);
        } else {
            self.entries[ends.1 as usize].next = number;
            ends.1 = number;
        }
    }

    /// A place holds nothing any more.
    #[inline]
    fn clear(&mut self, wheel: usize, place: usize) {
        self.used[wheel] &= !(1 << place);
        if self.used[wheel] == 0 {
            self.wheels &= !(1 << wheel);
        }
    }

    /// Takes out what happens next.
    pub fn pop(&mut self) -> Option<(Time, T)> {
        loop {
            if self.wheels == 0 {
                return None;
            }
            let wheel = self.wheels.trailing_zeros() as usize;
            let place = self.used[wheel].trailing_zeros() as usize;
            let (first, last) = self.places[wheel * PLACES + place];
            // All of one place of the lowest wheel are due at the same moment; one alone is due before all the others.
            if wheel == 0 || first == last {
                let entry = &mut self.entries[first as usize];
                let Entry { at, next, what } = *entry;
                entry.next = self.free;
                self.free = first;
                if first == last {
                    self.clear(wheel, place);
                } else {
                    self.places[wheel * PLACES + place].0 = next;
                }
                self.now = at;
                self.len -= 1;
                return Some((Time(at), what));
            }
            self.clear(wheel, place);
            self.move_down(first);
        }
    }

    /// Moves a list of entries, the first of all, to lower wheels.
    fn move_down(&mut self, first: u32) {
        let (mut number, mut earliest) = (first, u64::MAX);
        while let Some(entry) = self.entries.get(number as usize) {
            earliest = earliest.min(entry.at);
            number = entry.next;
        }
        self.now = earliest;
        number = first;
        while let Some(entry) = self.entries.get_mut(number as usize) {
            let (at, next) = (entry.at, std::mem::replace(&mut entry.next, NONE));
            self.place(at, number);
            number = next;
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
                    prop_assert_eq!(calendar.pop().map(|(at, what)| (at.0, what)), earliest);
                    now = earliest.map_or(now, |entry| entry.0);
                } else {
                    // Short and long delays alike.
                    let at = now + (delay >> shift.min(40));
                    calendar.push(Time(at), number);
                    naive.push((at, number));
                }
                prop_assert_eq!(calendar.len(), naive.len());
            }
        }
    }

    #[test]
    fn what_is_late_happens_at_once_and_the_end_of_time_is_reached() {
        let mut calendar = Calendar::default();
        calendar.push(Time(100), 'a');
        assert_eq!(calendar.pop(), Some((Time(100), 'a')));
        calendar.push(Time(5), 'b');
        calendar.push(Time::NEVER, 'c');
        assert_eq!(calendar.pop(), Some((Time(100), 'b')));
        assert_eq!(calendar.pop(), Some((Time::NEVER, 'c')));
        assert!(calendar.is_empty() && calendar.pop().is_none());
    }
}
