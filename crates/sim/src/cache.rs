//! What workers still have of what they used: the things that make a task cheaper, the latest used kept longest.

use std::collections::BTreeMap;

use filch_core::AffinityId;
use filch_core::map::Map;

/// What one worker has.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cache {
    /// The process it belongs to: a new one begins with nothing.
    life: u32,
    /// When each thing was used, by a count of uses, and the same the other way round.
    used: Map<u32, u64>,
    by_use: BTreeMap<u64, u32>,
    uses: u64,
}

impl Cache {
    /// Uses things in order; how many of the first of them were there already. Keeps `kept` things.
    pub(crate) fn take(&mut self, life: u32, things: &[AffinityId], kept: u32) -> u64 {
        if self.life != life {
            *self = Cache { life, ..Cache::default() };
        }
        let there = things.iter().take_while(|thing| self.used.contains_key(&thing.0)).count() as u64;
        for thing in things {
            self.uses += 1;
            if let Some(before) = self.used.insert(thing.0, self.uses) {
                self.by_use.remove(&before);
            }
            self.by_use.insert(self.uses, thing.0);
        }
        while self.used.len() > kept as usize {
            let Some((_, thing)) = self.by_use.pop_first() else { break };
            self.used.remove(&thing);
        }
        there
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_longest_ago_goes_first_and_only_the_first_things_in_a_row_count() {
        let mut cache = Cache::default();
        let mut take = |life: u32, things: &[u32]| {
            let things: Vec<AffinityId> = things.iter().map(|thing| AffinityId(*thing)).collect();
            cache.take(life, &things, 3)
        };
        assert_eq!(take(0, &[1, 2]), 0);
        assert_eq!(take(0, &[1, 3]), 1);
        assert_eq!(take(0, &[4, 1]), 0);
        // 2 was used longest ago.
        assert_eq!(take(0, &[1, 2, 3]), 1);
        assert_eq!(take(1, &[1]), 0);
    }
}
