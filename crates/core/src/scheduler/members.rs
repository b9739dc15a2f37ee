//! The unsettled tasks of a job, so that it can be cancelled as a whole. A task knows its place among them; coming and
//! going touch one line of the cache each and move nobody.

use std::collections::VecDeque;

use crate::ids::NONE;

/// Places per line: with the count they fill one line of the cache.
const LINE: u32 = 15;

#[derive(Debug)]
#[repr(align(64))]
struct Line {
    live: u32,
    slots: [u32; LINE as usize],
}

/// The slots of tasks, by place. Places are given out in turn and never again, so tasks that end about in the order
/// they came leave no holes behind; a line whose tasks have all gone is given up.
#[derive(Debug, Default)]
pub(crate) struct Members {
    lines: VecDeque<Option<Box<Line>>>,
    /// The number of the first line. Numbers, like places, start again after four billion.
    first: u32,
    /// Places used in the last line.
    used: u32,
    len: u64,
}

impl Members {
    /// Adds a task; its place.
    pub(crate) fn insert(&mut self, slot: u32) -> u32 {
        if self.lines.is_empty() || self.used == LINE {
            // A place is a line's number and a position in it, so there are fewer numbers than fit in a word.
            self.lines.push_back(None);
            self.used = 0;
        }
        let number = (self.first + (self.lines.len() as u32 - 1)) % NUMBERS;
        let at = self.used;
        self.used += 1;
        self.len += 1;
        if let Some(last) = self.lines.back_mut() {
            let line = last.get_or_insert_with(|| Box::new(Line { live: 0, slots: [NONE; LINE as usize] }));
            line.live += 1;
            line.slots[at as usize] = slot;
        }
        number * LINE + at
    }

    /// Takes out the task at a place.
    pub(crate) fn remove(&mut self, place: u32) {
        let (number, at) = (place / LINE, place % LINE);
        let index = (number + NUMBERS - self.first) % NUMBERS;
        let Some(entry) = self.lines.get_mut(index as usize) else { return };
        let Some(line) = entry else { return };
        if std::mem::replace(&mut line.slots[at as usize], NONE) == NONE {
            return;
        }
        line.live -= 1;
        self.len -= 1;
        if line.live > 0 {
            return;
        }
        *entry = None;
        while self.lines.front().is_some_and(Option::is_none) {
            self.lines.pop_front();
            self.first = (self.first + 1) % NUMBERS;
        }
        if self.lines.is_empty() {
            self.used = 0;
        }
    }

    pub(crate) fn contains(&self, place: u32, slot: u32) -> bool {
        let index = (place / LINE + NUMBERS - self.first) % NUMBERS;
        let line = self.lines.get(index as usize).and_then(Option::as_ref);
        line.is_some_and(|line| line.slots[(place % LINE) as usize] == slot)
    }

    /// Reads what taking out the task at a place will need.
    pub(crate) fn load_ahead(&self, place: u32) {
        let index = (place / LINE + NUMBERS - self.first) % NUMBERS;
        std::hint::black_box(self.lines.get(index as usize).and_then(Option::as_ref).map_or(0, |line| line.live));
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// All of them, in the order they came.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let slots = self.lines.iter().flatten().flat_map(|line| line.slots);
        slots.filter(|&slot| slot != NONE)
    }
}

/// Numbers of lines before they start again.
const NUMBERS: u32 = u32::MAX / LINE;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use std::collections::BTreeMap;

    #[test]
    fn members_are_those_of_a_plain_map() {
        // Once from the start, once over the end of the numbers.
        for first in [0, NUMBERS - 3] {
            let mut members = Members { first, ..Members::default() };
            let (mut model, mut rng) = (BTreeMap::new(), Rng::new(7));
            for slot in 0..20_000u32 {
                let place = members.insert(slot);
                assert!(members.contains(place, slot));
                model.insert(slot, place);
                let wanted = if slot < 10_000 { 200 } else { 3 };
                while model.len() > wanted {
                    let gone = *model.keys().nth(rng.below(model.len())).unwrap();
                    let place = model.remove(&gone).unwrap();
                    members.remove(place);
                    assert!(!members.contains(place, gone));
                    members.remove(place);
                }
                assert_eq!(members.len(), model.len() as u64);
                if slot % 64 == 0 {
                    assert_eq!(members.iter().collect::<Vec<_>>(), model.keys().copied().collect::<Vec<_>>());
                }
            }
            for place in std::mem::take(&mut model).into_values() {
                members.remove(place);
            }
            assert!(members.lines.is_empty() && members.len() == 0);
        }
    }
}
