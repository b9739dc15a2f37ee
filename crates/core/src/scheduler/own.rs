//! A worker's own queue. What may move to another worker stands apart from what must stay, so that a thief never wades
//! through tasks it may not take. Never knows why a task stays.

use super::sorted::Sorted;
use super::state::QueueKey;

/// The tasks queued at one worker, in order.
#[derive(Debug, Default)]
pub(crate) struct OwnQueue {
    movable: Sorted<QueueKey>,
    /// None at all at most workers, so it takes no room in their records.
    staying: Option<Box<Sorted<QueueKey>>>,
}

impl OwnQueue {
    pub(crate) fn len(&self) -> usize {
        self.movable.len() + self.staying.as_ref().map_or(0, |part| part.len())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn insert(&mut self, place: QueueKey, stays: bool) {
        let part = if stays { self.staying.get_or_insert_default() } else { &mut self.movable };
        part.insert(place);
    }

    /// Takes a task out. Whether it was there.
    pub(crate) fn remove(&mut self, place: &QueueKey) -> bool {
        self.movable.remove(place) || self.staying.as_mut().is_some_and(|part| part.remove(place))
    }

    /// A task's place has changed.
    pub(crate) fn rename(&mut self, before: &QueueKey, after: QueueKey) {
        if self.movable.remove(before) {
            self.movable.insert(after);
        } else if let Some(part) = &mut self.staying
            && part.remove(before)
        {
            part.insert(after);
        }
    }

    #[inline]
    pub(crate) fn first(&self) -> Option<QueueKey> {
        match (self.movable.first(), self.staying.as_ref().and_then(|part| part.first())) {
            (Some(&movable), Some(&staying)) => Some(movable.min(staying)),
            (movable, staying) => movable.or(staying).copied(),
        }
    }

    /// All of them, first in order first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = QueueKey> + '_ {
        let mut movable = self.movable.iter().peekable();
        let mut staying = self.staying.iter().flat_map(|part| part.iter()).peekable();
        std::iter::from_fn(move || {
            let stays = match (movable.peek(), staying.peek()) {
                (Some(movable), Some(staying)) => staying < movable,
                (movable, _) => movable.is_none(),
            };
            if stays { staying.next().copied() } else { movable.next().copied() }
        })
    }

    /// Those that may move, first in order first.
    pub(crate) fn movable(&self) -> impl DoubleEndedIterator<Item = QueueKey> + '_ {
        self.movable.iter().copied()
    }

    /// Whether anything must stay.
    #[inline]
    pub(crate) fn has_staying(&self) -> bool {
        self.staying.as_ref().is_some_and(|part| !part.is_empty())
    }

    /// Those that must stay, first in order first.
    pub(crate) fn staying(&self) -> impl Iterator<Item = QueueKey> + '_ {
        self.staying.iter().flat_map(|part| part.iter()).copied()
    }

    /// How many stand before a place; counting stops at `most`.
    pub(crate) fn ahead_of(&self, place: QueueKey, most: usize) -> usize {
        let before = |part: &Sorted<QueueKey>| part.iter().take_while(|key| **key < place).take(most).count();
        (before(&self.movable) + self.staying.as_deref().map_or(0, before)).min(most)
    }

    pub(crate) fn contains(&self, place: &QueueKey, stays: bool) -> bool {
        let part = if stays { self.staying.as_deref() } else { Some(&self.movable) };
        part.is_some_and(|part| part.contains(place))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tasks::OrderKey;
    use super::*;

    #[test]
    fn both_parts_are_one_queue_in_order() {
        let place = |sequence: u64| (0, OrderKey { sequence, ..OrderKey::default() }, sequence as u32);
        let mut queue = OwnQueue::default();
        for sequence in [5, 1, 4, 2, 3] {
            queue.insert(place(sequence), sequence % 2 == 0);
        }
        assert_eq!(queue.first(), Some(place(1)));
        assert_eq!(queue.iter().map(|key| key.2).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
        assert_eq!(queue.movable().map(|key| key.2).collect::<Vec<_>>(), [1, 3, 5]);
        assert_eq!(queue.staying().map(|key| key.2).collect::<Vec<_>>(), [2, 4]);
        assert_eq!((queue.ahead_of(place(4), 9), queue.ahead_of(place(4), 2)), (3, 2));
        queue.rename(&place(2), place(9));
        assert!(queue.remove(&place(9)) && !queue.remove(&place(2)));
        assert_eq!(queue.len(), 4);
        assert!(queue.contains(&place(4), true) && !queue.contains(&place(4), false));
    }
}
