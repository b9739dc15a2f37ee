//! The last few things of some sort, so that the same message coming twice does nothing twice.

use std::collections::VecDeque;
use std::hash::Hash;

use crate::map::Map;

/// A bounded memory: what came last is found, what came long ago is forgotten.
#[derive(Clone, Debug)]
pub(crate) struct Recent<K, V> {
    order: VecDeque<K>,
    known: Map<K, V>,
    most: usize,
}

impl<K: Copy + Eq + Hash, V> Recent<K, V> {
    pub(crate) fn new(most: usize) -> Self {
        Recent { order: VecDeque::new(), known: Map::default(), most }
    }

    pub(crate) fn insert(&mut self, key: K, value: V) {
        if self.known.insert(key, value).is_some() {
            return;
        }
        self.order.push_back(key);
        if self.order.len() > self.most
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.known.get(key)
    }

    pub(crate) fn contains(&self, key: &K) -> bool {
        self.known.contains_key(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_are_forgotten() {
        let mut recent = Recent::new(3);
        for key in [1, 2, 1, 3, 4] {
            recent.insert(key, key * 10);
        }
        assert!(!recent.contains(&1) && recent.contains(&2));
        assert_eq!(recent.get(&4), Some(&40));
        assert_eq!(recent.order.len(), recent.known.len());
    }
}
