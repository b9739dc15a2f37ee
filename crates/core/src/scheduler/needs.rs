//! What signatures ask for besides resources: kept once, however many of them ask for the same.
//!
//! Tasks that differ in how much memory they need seldom differ in what a worker must be able to do. Never decides
//! whether a worker has it.

use std::sync::Arc;

use crate::capabilities::CapabilitySet;
use crate::config::Matching;
use crate::ids::TypeId;
use crate::map::{SteadyTable, hash_of};

/// What a worker must be able to do for a task, and which policy chooses the worker.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct Needs {
    pub(crate) requires: CapabilitySet,
    pub(crate) skills: CapabilitySet,
    pub(crate) matching: Matching,
    pub(crate) task_type: TypeId,
}

/// All that are in use.
#[derive(Debug, Default)]
pub(crate) struct SharedNeeds {
    table: SteadyTable<Arc<Needs>>,
}

impl SharedNeeds {
    /// The one that everybody with such needs shares.
    pub(crate) fn share(&mut self, needs: Needs) -> Arc<Needs> {
        let hash = hash_of(&needs);
        if let Some(known) = self.table.find(hash, |known| **known == needs) {
            return known.clone();
        }
        self.table.insert_unique(hash, Arc::new(needs), |known| hash_of(&**known)).clone()
    }

    /// How many different ones there are, for checks.
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// Takes back what was shared; nothing is kept of it once nobody has it.
    pub(crate) fn release(&mut self, needs: Arc<Needs>) {
        if Arc::strong_count(&needs) == 2 {
            let removed = self.table.remove(hash_of(&*needs), |known| Arc::ptr_eq(known, &needs));
            debug_assert!(removed.is_some(), "what is shared is found");
        }
        drop(needs);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::CapabilityId;

    fn needs(required: u32) -> Needs {
        Needs {
            requires: [CapabilityId(required)].into_iter().collect(),
            skills: CapabilitySet::default(),
            matching: Matching::Exact,
            task_type: TypeId(0),
        }
    }

    #[test]
    fn equal_needs_are_kept_once_and_only_while_somebody_has_them() {
        let mut shared = SharedNeeds::default();
        let all: Vec<Arc<Needs>> = (0..3000).map(|number| shared.share(needs(number % 1000))).collect();
        assert_eq!(shared.len(), 1000);
        assert!(Arc::ptr_eq(&all[7], &all[2007]) && !Arc::ptr_eq(&all[7], &all[8]));
        let mut all = all.into_iter();
        all.by_ref().take(2000).for_each(|needs| shared.release(needs));
        assert_eq!(shared.len(), 1000);
        all.for_each(|needs| shared.release(needs));
        assert_eq!(shared.len(), 0);
        assert_eq!(shared.share(needs(5)).requires, needs(5).requires);
    }
}
