//! What is to happen, by the time it happens: a queue that hands out the earliest first, and what is due at the same moment
//! in the order it was put in.
//!
//! A hierarchy of wheels. An entry stands in the wheel of the highest group of bits in which its time differs from the
//! present, so that putting in costs a few instructions and each entry moves down at most once for every wheel. Never
//! hands out anything earlier than what it handed out before.

use std::collections::VecDeque;

use filch_core::Time;

/// Bits of the time that one wheel stands for.
const BITS: u32 = 6;
/// Places on a wheel.
const PLACES: usize = 1 << BITS;
/// Wheels that together cover all of the time.
const WHEELS: usize = 64usize.div_ceil(BITS as usize);

/// The queue.
#[derive(Debug)]
pub struct Calendar<T> {
    now: u64,
    len: usize,
    /// Which places of a wheel hold something, a bit each.
    used: [u64; WHEELS],
    places: Vec<VecDeque<(u64, T)>>,
    /// Memory of places that are empty, for the next that is not. Otherwise every place would keep as much as it once
    /// needed, and each of them would be cold.
    spare: Vec<VecDeque<(u64, T)>>,
}

impl<T> Default for Calendar<T> {
    fn default() -> Self {
        let places = (0..WHEELS * PLACES).map(|_| VecDeque::new()).collect();
        Calendar { now: 0, len: 0, used: [0; WHEELS], places, spare: Vec::new() }
    }
}

impl<T> Calendar<T> {
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
        self.places.iter().flatten().map(|(at, what)| (Time(*at), what))
    }

    /// Puts in what is to happen at `at`, or at once if that has passed.
    pub fn push(&mut self, at: Time, what: T) {
        self.len += 1;
        self.place(at.0.max(self.now), what);
    }

    fn place(&mut self, at: u64, what: T) {
        let differs = at ^ self.now;
        let wheel = (63 - (differs | 1).leading_zeros()) / BITS;
        let place = (at >> (wheel * BITS)) as usize & (PLACES - 1);
        let index = wheel as usize * PLACES + place;
        if self.used[wheel as usize] & 1 << place == 0 {
            self.used[wheel as usize] |= 1 << place;
            if let Some(spare) = self.spare.pop() {
                self.places[index] = spare;
            }
        }
        self.places[index].push_back((at, what));
    }

    /// Takes out what happens next.
    pub fn pop(&mut self) -> Option<(Time, T)> {
        loop {
            let wheel = self.used.iter().position(|used| *used != 0)?;
            let place = self.used[wheel].trailing_zeros() as usize;
            let at = wheel * PLACES + place;
            // All of one place of the lowest wheel are due at the same moment; one alone is due before all the others.
            if wheel == 0 || self.places[at].len() == 1 {
                let (time, what) = self.places[at].pop_front()?;
                if self.places[at].is_empty() {
                    self.used[wheel] &= !(1 << place);
                    let spare = std::mem::take(&mut self.places[at]);
                    self.spare.push(spare);
                }
                self.now = time;
                self.len -= 1;
                return Some((Time(time), what));
            }
            self.used[wheel] &= !(1 << place);
            let mut moved = std::mem::take(&mut self.places[at]);
            if let Some(earliest) = moved.iter().map(|entry| entry.0).min() {
                self.now = earliest;
            }
            for (time, what) in moved.drain(..) {
                self.place(time, what);
            }
            self.spare.push(moved);
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
