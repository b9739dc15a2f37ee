//! Sets of capabilities and how a task's wishes are matched with what a worker can do.

use smallvec::SmallVec;

use crate::config::Matching;
use crate::ids::CapabilityId;

/// A sorted set of capabilities, small enough to live inside a task's description.
#[derive(Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CapabilitySet(SmallVec<[CapabilityId; 4]>);

impl Clone for CapabilitySet {
    /// Every task has one, so it is copied as a whole and not one by one.
    fn clone(&self) -> Self {
        CapabilitySet(SmallVec::from_slice(&self.0))
    }
}

impl CapabilitySet {
    /// The capabilities, ascending.
    #[must_use]
    pub fn ids(&self) -> &[CapabilityId] {
        &self.0
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<CapabilityId> for CapabilitySet {
    fn from_iter<I: IntoIterator<Item = CapabilityId>>(ids: I) -> Self {
        let mut set: SmallVec<[CapabilityId; 4]> = ids.into_iter().collect();
        set.sort_unstable();
        set.dedup();
        CapabilitySet(set)
    }
}

/// What a class of workers can do, as bits, for quick tests.
#[derive(Clone, Debug, Default)]
pub(crate) struct CapabilityBits {
    words: SmallVec<[u64; 2]>,
    count: u32,
}

impl CapabilityBits {
    pub(crate) fn new(set: &CapabilitySet) -> CapabilityBits {
        let mut bits = CapabilityBits { words: SmallVec::new(), count: set.len() as u32 };
        for id in set.ids() {
            let word = id.0 as usize / 64;
            if word >= bits.words.len() {
                bits.words.resize(word + 1, 0);
            }
            bits.words[word] |= 1 << (id.0 % 64);
        }
        bits
    }

    #[inline]
    pub(crate) fn has(&self, id: CapabilityId) -> bool {
        self.words.get(id.0 as usize / 64).is_some_and(|word| word >> (id.0 % 64) & 1 == 1)
    }

    /// How many of `set` are there.
    pub(crate) fn shared(&self, set: &CapabilitySet) -> u32 {
        set.ids().iter().filter(|&&id| self.has(id)).count() as u32
    }

    /// matched / asked, 1 if none were asked.
    pub(crate) fn skill_match(&self, skills: &CapabilitySet) -> f64 {
        if skills.is_empty() { 1.0 } else { f64::from(self.shared(skills)) / skills.len() as f64 }
    }

    /// Capabilities beyond those in `requires` and `skills`, counting shared ones once.
    pub(crate) fn spare(&self, requires: &CapabilitySet, skills: &CapabilitySet) -> u32 {
        let extra =
            skills.ids().iter().filter(|id| self.has(**id) && requires.ids().binary_search(id).is_err()).count();
        self.count - self.shared(requires) - extra as u32
    }
}

/// How skills are matched for a task of that priority: exactly for high priority, as configured otherwise.
#[must_use]
pub fn matching_for(configured: Matching, priority: u8, high_priority_threshold: u8) -> Matching {
    if priority >= high_priority_threshold { Matching::Exact } else { configured }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(ids: &[u32]) -> CapabilitySet {
        ids.iter().map(|&id| CapabilityId(id)).collect()
    }

    #[test]
    fn matching_counts_what_is_asked_and_what_is_spare() {
        let bits = CapabilityBits::new(&set(&[1, 3, 70]));
        assert!(bits.has(CapabilityId(70)) && !bits.has(CapabilityId(2)) && !bits.has(CapabilityId(500)));
        assert_eq!(bits.skill_match(&set(&[])), 1.0);
        assert_eq!(bits.skill_match(&set(&[1, 2])), 0.5);
        assert_eq!(bits.spare(&set(&[1]), &set(&[1, 3])), 1);
        assert_eq!(bits.spare(&set(&[]), &set(&[])), 3);
        assert_eq!(set(&[3, 1, 3]), set(&[1, 3]));
    }

    #[test]
    fn high_priority_is_matched_exactly() {
        assert_eq!(matching_for(Matching::Fallback, 4, 4), Matching::Exact);
        assert_eq!(matching_for(Matching::Fallback, 3, 4), Matching::Fallback);
    }
}
