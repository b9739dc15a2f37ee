//! What a worker holds, by task: beside the worker itself while it is little, which it nearly always is, in a table when it
//! has become much. Never in an order that means anything.

use smallvec::SmallVec;

use crate::ids::TaskId;
use crate::map::Map;

/// So many are looked through one by one.
const FEW: usize = 8;

/// Things by task.
#[derive(Clone, Debug)]
pub(crate) struct Holdings<V> {
    few: SmallVec<[(TaskId, V); 2]>,
    /// All of them, once they were more than a few; until nothing is left.
    many: Option<Box<Map<TaskId, V>>>,
}

impl<V> Default for Holdings<V> {
    fn default() -> Self {
        Holdings { few: SmallVec::new(), many: None }
    }
}

impl<V> Holdings<V> {
    #[inline]
    pub(crate) fn get(&self, task: TaskId) -> Option<&V> {
        match &self.many {
            None => self.few.iter().find(|entry| entry.0 == task).map(|entry| &entry.1),
            Some(many) => many.get(&task),
        }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, task: TaskId) -> Option<&mut V> {
        match &mut self.many {
            None => self.few.iter_mut().find(|entry| entry.0 == task).map(|entry| &mut entry.1),
            Some(many) => many.get_mut(&task),
        }
    }

    /// Adds what was not there.
    #[inline]
    pub(crate) fn insert_new(&mut self, task: TaskId, value: V) {
        debug_assert!(self.get(task).is_none(), "it is held once");
        if self.many.is_none() && self.few.len() < FEW {
            self.few.push((task, value));
        } else {
            let many = self.many.get_or_insert_with(|| Box::new(self.few.drain(..).collect()));
            many.insert(task, value);
        }
    }

    #[inline]
    pub(crate) fn remove(&mut self, task: TaskId) -> Option<V> {
        let Some(many) = &mut self.many else {
            let at = self.few.iter().position(|entry| entry.0 == task)?;
            return Some(self.few.swap_remove(at).1);
        };
        let removed = many.remove(&task);
        if many.is_empty() {
            self.many = None;
        }
        removed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn it_behaves_like_a_table() {
        let (mut rng, mut holdings, mut table) = (Rng::new(3), Holdings::default(), Map::default());
        for step in 0..4000_u64 {
            // At times many, at times few, at times nothing.
            let grows = step / 200 % 2 == 0;
            let task = TaskId::from_bits(rng.below(30) as u64);
            if (rng.below(4) == 0) == grows {
                assert_eq!(holdings.remove(task), table.remove(&task));
            } else if table.insert(task, step).is_none() {
                holdings.insert_new(task, step);
            } else if let Some(value) = holdings.get_mut(task) {
                *value = step;
            }
            for task in (0..30).map(TaskId::from_bits) {
                assert_eq!(holdings.get(task), table.get(&task));
            }
            assert!(holdings.many.is_none() || holdings.few.is_empty());
        }
    }
}
