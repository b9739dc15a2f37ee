//! Some elements of an array by the places that they have in it, in a form that stays short.

use super::number_of;

/// Places in ascending order as pairs of numbers: how many are left out, and how many follow that are not.
///
/// ```
/// use filch_core::wire::talk::{Places, place_runs};
/// let runs = place_runs([2, 3, 4, 9]);
/// assert_eq!(runs, [2, 3, 4, 1]);
/// assert_eq!(Places::read(&runs).unwrap().get(3), 9);
/// ```
#[must_use]
pub fn place_runs(places: impl IntoIterator<Item = u32>) -> Vec<u32> {
    let mut runs = Vec::new();
    let mut next = 0;
    for place in places {
        match runs.last_mut() {
            Some(length) if place == next => *length += 1,
            _ => runs.extend([place - next, 1]),
        }
        next = place + 1;
    }
    runs
}

/// The elements of an array that are some of those of a larger one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// Of each run its first element: which it is here, and its place there.
    runs: Vec<(u32, u32)>,
    count: u32,
}

impl Places {
    /// What [`place_runs`] wrote; none if these are other numbers.
    #[must_use]
    pub fn read(runs: &[u32]) -> Option<Places> {
        let mut places = Places { runs: Vec::with_capacity(runs.len() / 2), count: 0 };
        let mut next = 0u32;
        for pair in runs.chunks(2) {
            let [left_out, length] = *pair else { return None };
            if length == 0 || (left_out == 0 && next > 0) {
                return None;
            }
            let place = next.checked_add(left_out)?;
            places.runs.push((places.count, place));
            next = place.checked_add(length)?;
            places.count += length;
        }
        Some(places)
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The place of an element in the larger array. Whatever is not among them comes after the last.
    #[must_use]
    pub fn get(&self, index: u32) -> u32 {
        let after = self.runs.partition_point(|run| run.0 <= index);
        match after.checked_sub(1).and_then(|at| self.runs.get(at)) {
            Some((first, place)) => place.saturating_add(index - first),
            None => index,
        }
    }

    /// Which of them is at a place of the larger array.
    #[must_use]
    pub fn index_of(&self, place: u32) -> Option<u32> {
        let after = self.runs.partition_point(|run| run.1 <= place);
        let (first, start) = *self.runs.get(after.checked_sub(1)?)?;
        let end = self.runs.get(after).map_or(self.count, |run| run.0);
        let index = first.checked_add(place - start)?;
        (index < end).then_some(index)
    }
}

/// How the elements of an array are numbered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Numbers {
    first: i64,
    step: i64,
    places: Option<Places>,
}

impl Numbers {
    /// Of an array whose elements are at these places of a larger one, if they are.
    #[must_use]
    pub fn new(first: i64, step: i64, places: Option<Places>) -> Numbers {
        Numbers { first, step, places }
    }

    /// The place of an element, as its submitter counts from 0.
    #[must_use]
    pub fn place(&self, index: u32) -> u32 {
        self.places.as_ref().map_or(index, |places| places.get(index))
    }

    /// Whether elements are where they are in the submitter's array too.
    #[must_use]
    pub fn are_in_place(&self) -> bool {
        self.places.is_none()
    }

    /// The number of an element.
    #[must_use]
    pub fn number(&self, index: u32) -> i64 {
        number_of(self.first, self.step, self.place(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_subset_is_read_as_it_was_written() {
        for set in 0u32..1 << 10 {
            let chosen: Vec<u32> = (0..10).filter(|place| set >> place & 1 == 1).collect();
            let places = Places::read(&place_runs(chosen.iter().copied())).unwrap();
            assert_eq!(places.count() as usize, chosen.len());
            let read: Vec<u32> = (0..places.count()).map(|index| places.get(index)).collect();
            assert_eq!(read, chosen);
            for place in 0..12 {
                let expected = chosen.iter().position(|each| *each == place).map(|at| at as u32);
                assert_eq!(places.index_of(place), expected, "{chosen:?} {place}");
            }
        }
    }

    #[test]
    fn what_nobody_wrote_is_not_read() {
        for wrong in [&[1][..], &[0, 0], &[3, 0], &[1, 2, 0, 1], &[u32::MAX, 1], &[0, u32::MAX, 1, 1], &[5, 1, 7]] {
            assert_eq!(Places::read(wrong), None, "{wrong:?}");
        }
        assert_eq!(Places::read(&[u32::MAX - 1, 1]).map(|places| places.get(0)), Some(u32::MAX - 1));
    }

    #[test]
    fn numbers_go_by_the_larger_array() {
        let numbers = Numbers::new(10, 5, Places::read(&[1, 1, 1, 2]));
        assert_eq!((0..3).map(|index| numbers.number(index)).collect::<Vec<_>>(), [15, 25, 30]);
        assert_eq!(Numbers::new(10, 5, None).number(2), 20);
    }
}
