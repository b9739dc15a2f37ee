//! The names of workers that have left, so that what happened before is still told by name. Only so many are kept.

use std::collections::VecDeque;
use std::sync::Arc;

use filch_core::WorkerId;
use filch_core::map::Map;

/// Names kept at the most; those who left longest ago are forgotten first.
const KEPT: usize = 1024;

/// Who has left, under which name. An id is never given twice, so no name is ever that of somebody else.
#[derive(Default)]
pub(super) struct LeftWorkers {
    names: Map<WorkerId, Arc<str>>,
    order: VecDeque<WorkerId>,
}

impl LeftWorkers {
    pub(super) fn add(&mut self, id: WorkerId, name: Arc<str>) {
        if self.order.len() == KEPT
            && let Some(oldest) = self.order.pop_front()
        {
            self.names.remove(&oldest);
        }
        if self.names.insert(id, name).is_none() {
            self.order.push_back(id);
        }
    }

    pub(super) fn name(&self, id: WorkerId) -> Option<&Arc<str>> {
        self.names.get(&id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_names_are_kept_and_no_more() {
        let mut left = LeftWorkers::default();
        let id = |at: usize| WorkerId::from_bits((at as u64) << 32);
        for at in 0..KEPT + 10 {
            left.add(id(at), format!("w{at}").into());
        }
        assert_eq!((left.names.len(), left.order.len()), (KEPT, KEPT));
        assert!(left.name(id(9)).is_none());
        assert_eq!(left.name(id(10)).map(|name| &**name), Some("w10"));
    }
}
