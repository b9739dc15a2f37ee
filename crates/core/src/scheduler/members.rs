//! The unsettled tasks of a job, so that it can be cancelled as a whole. A task knows its place among them; coming and
//! going touch one line of the cache each and move nobody.

use super::slab::Slab;
use crate::ids::NONE;

/// Places per line: with its count and its neighbours they fill one line of the cache.
const LINE: u32 = 13;

#[derive(Debug)]
#[repr(align(64))]
struct Line {
    live: u32,
    before: u32,
    after: u32,
    slots: [u32; LINE as usize],
}

/// The slots of tasks, by place. Lines are filled one after another; one whose tasks have all gone is used again.
#[derive(Debug)]
pub(crate) struct Members {
    lines: Slab<Line>,
    /// The lines in use form a list, the one being filled last.
    first: u32,
    last: u32,
    /// Places used in the last line.
    used: u32,
    len: u64,
}

impl Default for Members {
    fn default() -> Self {
        Members { lines: Slab::default(), first: NONE, last: NONE, used: 0, len: 0 }
    }
}

impl Members {
    /// Adds a task; its place.
    pub(crate) fn insert(&mut self, slot: u32) -> u32 {
        if self.last == NONE || self.used == LINE {
            self.add_line();
        }
        let at = self.used;
        self.used += 1;
        self.len += 1;
        let line = &mut self.lines[self.last];
        line.live += 1;
        line.slots[at as usize] = slot;
        self.last * LINE + at
    }

    fn add_line(&mut self) {
        let before = self.last;
        let line = Line { live: 0, before, after: NONE, slots: [NONE; LINE as usize] };
        self.last = self.lines.insert(line);
        self.used = 0;
        if before == NONE {
            self.first = self.last;
        } else {
            self.lines[before].after = self.last;
        }
    }

    /// Takes out the task at a place.
    pub(crate) fn remove(&mut self, place: u32) {
        let (number, at) = (place / LINE, place % LINE);
        let Some(line) = self.lines.get_mut(number) else { return };
        if std::mem::replace(&mut line.slots[at as usize], NONE) == NONE {
            return;
        }
        line.live -= 1;
        self.len -= 1;
        if line.live > 0 {
            return;
        }
        let (before, after) = (line.before, line.after);
        self.lines.remove(number);
        match before {
            NONE => self.first = after,
            before => self.lines[before].after = after,
        }
        match after {
            NONE => {
                self.last = before;
                self.used = LINE;
            }
            after => self.lines[after].before = before,
        }
    }

    pub(crate) fn contains(&self, place: u32, slot: u32) -> bool {
        self.lines.get(place / LINE).is_some_and(|line| line.slots[(place % LINE) as usize] == slot)
    }

    /// Reads what taking out the task at a place will need.
    pub(crate) fn load_ahead(&self, place: u32) {
        std::hint::black_box(self.lines.get(place / LINE).map_or(0, |line| line.live));
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// All of them, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let lines = std::iter::successors(self.lines.get(self.first), |line| self.lines.get(line.after));
        lines.flat_map(|line| line.slots).filter(|&slot| slot != NONE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use std::collections::BTreeMap;

    #[test]
    fn members_are_those_of_a_plain_map() {
        let mut members = Members::default();
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
            }
            assert_eq!(members.len(), model.len() as u64);
            if slot % 64 == 0 {
                let mut all: Vec<u32> = members.iter().collect();
                all.sort_unstable();
                assert_eq!(all, model.keys().copied().collect::<Vec<_>>());
            }
        }
        for place in std::mem::take(&mut model).into_values() {
            members.remove(place);
        }
        assert!(members.lines.len() == 0 && members.len() == 0 && members.first == NONE && members.last == NONE);
    }

    #[test]
    fn one_that_stays_keeps_no_others_place() {
        let mut members = Members::default();
        let first = members.insert(0);
        for slot in 1..100_000 {
            let place = members.insert(slot);
            members.remove(place);
        }
        assert_eq!((members.lines.len(), members.iter().count()), (1, 1));
        members.remove(first);
        assert_eq!(members.iter().count(), 0);
    }
}
