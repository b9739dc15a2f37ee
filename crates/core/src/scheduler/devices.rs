//! Accelerators of one worker, one by one: a share of a GPU must fit into one device, whole ones take whole devices.
//!
//! The sums are kept with the other resources; this adds what sums cannot see. Never decides who runs what.

use smallvec::SmallVec;

use crate::resources::{Amount, Demand};

/// Which devices a task holds, by position.
pub(crate) type DeviceSet = SmallVec<[u16; 4]>;

/// Most devices a worker may have: each of them is looked at for each task that wants one.
pub(crate) const MOST: u64 = 1024;

/// How much of each device is in use, in parts of one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Devices {
    used: SmallVec<[u16; 4]>,
}

/// The accelerators a demand asks for.
pub(crate) fn wanted(demand: &Demand) -> Option<Amount> {
    let gpus = demand.amounts().iter().find(|entry| entry.0 == crate::ids::ResourceId::GPUS)?;
    Some(gpus.1)
}

/// Whether an amount can be given out: a share of one device, or whole devices.
pub(crate) fn is_divisible(needs: Amount) -> bool {
    needs.0 < Amount::SCALE || needs.0.is_multiple_of(Amount::SCALE)
}

impl Devices {
    /// What is left of the device at a position, if the worker has that much in all.
    fn left(&self, at: usize, capacity: Amount) -> u64 {
        let size = capacity.0.saturating_sub(at as u64 * Amount::SCALE).min(Amount::SCALE);
        size.saturating_sub(u64::from(self.used.get(at).copied().unwrap_or(0)))
    }

    fn count(capacity: Amount) -> usize {
        capacity.0.div_ceil(Amount::SCALE) as usize
    }

    /// Whether a demand fits.
    ///
    /// # Errors
    /// The most of that kind that would fit: a share of the emptiest device, or the number of free ones.
    pub(crate) fn check(&self, capacity: Amount, needs: Amount) -> Result<(), Amount> {
        let devices = 0..Self::count(capacity);
        let free = if needs.0 < Amount::SCALE {
            devices.map(|at| self.left(at, capacity)).max().unwrap_or(0)
        } else {
            devices.filter(|&at| self.left(at, capacity) == Amount::SCALE).count() as u64 * Amount::SCALE
        };
        if free >= needs.0 { Ok(()) } else { Err(Amount(free)) }
    }

    /// Takes devices for a demand that fits: the fullest one that has room for a share, the first free ones otherwise.
    pub(crate) fn take(&mut self, capacity: Amount, needs: Amount) -> DeviceSet {
        let count = Self::count(capacity);
        if self.used.len() < count {
            self.used.resize(count, 0);
        }
        if needs.0 < Amount::SCALE {
            let fits = (0..count).filter(|&at| self.left(at, capacity) >= needs.0);
            let Some(at) = fits.min_by_key(|&at| self.left(at, capacity)) else { return DeviceSet::new() };
            self.used[at] += needs.0 as u16;
            return [at as u16].into_iter().collect();
        }
        let free = (0..count).filter(|&at| self.left(at, capacity) == Amount::SCALE).map(|at| at as u16);
        let set: DeviceSet = free.take((needs.0 / Amount::SCALE) as usize).collect();
        for &at in &set {
            self.used[usize::from(at)] = Amount::SCALE as u16;
        }
        set
    }

    /// Gives devices back that a demand of that size held.
    pub(crate) fn give_back(&mut self, set: &[u16], needs: Amount) {
        let share = needs.0.min(Amount::SCALE) as u16;
        for &at in set {
            self.used[usize::from(at)] -= share;
        }
    }

    /// The same use, counted from what tasks hold.
    pub(crate) fn hold(&mut self, set: &[u16], needs: Amount) {
        let share = needs.0.min(Amount::SCALE) as u16;
        for at in set.iter().map(|&at| usize::from(at)) {
            if self.used.len() <= at {
                self.used.resize(at + 1, 0);
            }
            self.used[at] += share;
        }
    }

    /// Whether two counts agree; devices nobody uses do not matter.
    pub(crate) fn agrees(&self, other: &Devices) -> bool {
        let most = self.used.len().max(other.used.len());
        (0..most).all(|at| self.used.get(at).unwrap_or(&0) == other.used.get(at).unwrap_or(&0))
    }

    /// Whether any device is used beyond its whole.
    pub(crate) fn is_overfull(&self) -> bool {
        self.used.iter().any(|&used| u64::from(used) > Amount::SCALE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_must_fit_into_one_device() {
        let (capacity, share) = (Amount::from_units(2), Amount::from_f64(0.6));
        let mut devices = Devices::default();
        let first = devices.take(capacity, share);
        let second = devices.take(capacity, share);
        assert_eq!((&first[..], &second[..]), (&[0][..], &[1][..]));
        assert_eq!(devices.check(capacity, share), Err(Amount::from_f64(0.4)), "0.8 are free, but not on one device");
        assert_eq!(devices.take(capacity, Amount::from_f64(0.3))[..], [0]);
        assert_eq!(devices.check(capacity, Amount::from_units(1)), Err(Amount(0)));
        devices.give_back(&second, share);
        assert_eq!(devices.check(capacity, Amount::from_units(1)), Ok(()));
        assert_eq!(devices.take(capacity, Amount::from_units(1))[..], [1]);
    }

    #[test]
    fn shares_fill_the_fullest_device_first_and_whole_ones_take_free_ones() {
        let capacity = Amount::from_units(3);
        let mut devices = Devices::default();
        let half = Amount::from_f64(0.5);
        assert_eq!(devices.take(capacity, half)[..], [0]);
        assert_eq!(devices.take(capacity, half)[..], [0]);
        assert_eq!(devices.take(capacity, Amount::from_units(2))[..], [1, 2]);
        assert!(devices.check(capacity, half).is_err());
        devices.give_back(&[1, 2], Amount::from_units(2));
        devices.give_back(&[0], half);
        devices.give_back(&[0], half);
        assert!(devices.agrees(&Devices::default()));
    }

    #[test]
    fn every_device_of_a_big_worker_is_told_apart() {
        let (capacity, half) = (Amount::from_units(200), Amount::from_f64(0.5));
        let mut devices = Devices::default();
        let most = devices.take(capacity, Amount::from_units(199));
        assert_eq!(most.len(), 199);
        assert_eq!(devices.take(capacity, half)[..], [199]);
        assert_eq!(devices.take(capacity, half)[..], [199]);
        assert_eq!(devices.check(capacity, half), Err(Amount(0)));
        devices.give_back(&most, Amount::from_units(199));
        assert_eq!(devices.check(capacity, Amount::from_units(199)), Ok(()));
    }

    #[test]
    fn only_shares_of_one_and_whole_numbers_can_be_given_out() {
        assert!(is_divisible(Amount::from_f64(0.25)) && is_divisible(Amount::from_units(3)));
        assert!(!is_divisible(Amount::from_f64(1.5)));
    }
}
