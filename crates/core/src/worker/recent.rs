//! The last few things of some sort, so that the same message coming twice does nothing twice.

use std::collections::VecDeque;
use std::hash::Hash;

use crate::map::Map;

/// So few are looked through one by one.
const FEW: usize = 32;

/// A bounded memory: what came last is found, what came long ago is forgotten.
#[derive(Clone, Debug)]
pub(crate) struct Recent<K, V> {
    order: VecDeque<(K, V)>,
    /// The same by key. Empty while there are few: most workers of a large cluster never have many.
    known: Map<K, V>,
    most: usize,
}

impl<K: Copy + Eq + Hash, V: Copy> Recent<K, V> {
    pub(crate) fn new(most: usize) -> Self {
        Recent { order: VecDeque::new(), known: Map::default(), most }
    }

    pub(crate) fn insert(&mut self, key: K, value: V) {
        if self.known.is_empty() {
            if let Some(entry) = self.order.iter_mut().find(|entry| entry.0 == key) {
                entry.1 = value;
                return;
            }
        } else if self.known.insert(key, value).is_some() {
            return;
        }
        self.order.push_back((key, value));
        if self.order.len() > self.most
            && let Some((oldest, _)) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
        if self.known.is_empty() && self.order.len() > FEW {
            self.known = self.order.iter().copied().collect();
        }
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        if self.known.is_empty() {
            return self.order.iter().find(|entry| entry.0 == *key).map(|entry| &entry.1);
        }
        self.known.get(key)
    }

    pub(crate) fn contains(&self, key: &K) -> bool {
        self.get(key).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_are_forgotten() {
        for most in [3, FEW, FEW + 1, 100] {
            let mut recent = Recent::new(most);
            for key in 0..300 {
                recent.insert(key, key * 10);
                recent.insert(key / 2, key);
                let oldest = recent.order.front().map(|entry| entry.0);
                assert!(recent.order.len() <= most && oldest.is_some_and(|oldest| recent.contains(&oldest)));
                assert_eq!(recent.get(&(key / 2)), Some(&key), "{most}");
                assert!(recent.known.is_empty() || recent.known.len() == recent.order.len());
            }
            assert_eq!((recent.order.len(), recent.contains(&1000)), (most, false));
        }
    }
}
