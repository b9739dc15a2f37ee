//! Amounts of resources: fixed point, added and compared exactly, never oversubscribed.

use std::fmt;

use smallvec::SmallVec;

use crate::ids::ResourceId;

/// An amount of a resource in ten-thousandths of its unit, so that a third of a GPU adds up the same everywhere.
///
/// ```
/// use filch_core::Amount;
/// assert_eq!(Amount::from_f64(0.5) + Amount::from_f64(0.5), Amount::from_units(1));
/// assert_eq!(Amount::from_f64(2.5).to_string(), "2.5");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Amount(pub u64);

impl Amount {
    /// Parts in one unit.
    pub const SCALE: u64 = 10_000;

    /// That many whole units.
    #[must_use]
    pub const fn from_units(units: u64) -> Amount {
        Amount(units.saturating_mul(Self::SCALE))
    }

    /// That many units, rounded to the nearest ten-thousandth; negative and undefined values count as zero.
    #[must_use]
    pub fn from_f64(units: f64) -> Amount {
        Amount((units * Self::SCALE as f64 + 0.5) as u64)
    }

    /// The amount in units.
    #[must_use]
    pub fn as_f64(self) -> f64 {
        self.0 as f64 / Self::SCALE as f64
    }
}

impl std::ops::Add for Amount {
    type Output = Amount;
    fn add(self, other: Amount) -> Amount {
        Amount(self.0.saturating_add(other.0))
    }
}

impl std::ops::Sub for Amount {
    type Output = Amount;
    fn sub(self, other: Amount) -> Amount {
        Amount(self.0.saturating_sub(other.0))
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.0 / Self::SCALE, self.0 % Self::SCALE);
        if rest == 0 {
            return write!(f, "{whole}");
        }
        write!(f, "{whole}.{}", format!("{rest:04}").trim_end_matches('0'))
    }
}

/// What a task asks for: amounts by resource, sorted, without zeros.
#[derive(Debug, Default, PartialEq, Eq, Hash)]
pub struct Demand(SmallVec<[(ResourceId, Amount); 2]>);

impl Clone for Demand {
    /// Every task has one, so it is copied as a whole and not amount by amount.
    fn clone(&self) -> Self {
        Demand(SmallVec::from_slice(&self.0))
    }
}

impl Demand {
    /// A demand from amounts in any order; amounts of the same resource add up.
    #[must_use]
    pub fn new(amounts: impl IntoIterator<Item = (ResourceId, Amount)>) -> Demand {
        let mut demand = Demand::default();
        for (resource, amount) in amounts {
            if amount == Amount(0) {
                continue;
            }
            match demand.0.binary_search_by_key(&resource, |entry| entry.0) {
                Ok(at) => demand.0[at].1 = demand.0[at].1 + amount,
                Err(at) => demand.0.insert(at, (resource, amount)),
            }
        }
        demand
    }

    /// The amounts, by resource.
    #[must_use]
    pub fn amounts(&self) -> &[(ResourceId, Amount)] {
        &self.0
    }

    /// Whether nothing is asked for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A vector of amounts indexed by resource; what is not listed is zero.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Vector(SmallVec<[u64; 4]>);

impl Vector {
    /// A vector from amounts in any order.
    #[must_use]
    pub fn new(amounts: impl IntoIterator<Item = (ResourceId, Amount)>) -> Vector {
        let mut vector = Vector::default();
        for (resource, amount) in amounts {
            vector.set(resource, vector.get(resource) + amount);
        }
        vector
    }

    /// The amount of one resource.
    #[must_use]
    pub fn get(&self, resource: ResourceId) -> Amount {
        Amount(self.0.get(resource.0 as usize).copied().unwrap_or(0))
    }

    /// Whether it is the same as another. Most are so short that a call to compare them would cost more than comparing them.
    #[inline]
    pub(crate) fn is(&self, other: &Vector) -> bool {
        let (own, others) = (&self.0[..], &other.0[..]);
        own.len() == others.len() && std::iter::zip(own, others).all(|(own, other)| own == other)
    }

    /// The amounts in the order of their resources' ids.
    pub(crate) fn in_order(&self) -> &[u64] {
        &self.0
    }

    pub(crate) fn set(&mut self, resource: ResourceId, amount: Amount) {
        let at = resource.0 as usize;
        if amount == Amount(0) && at >= self.0.len() {
            return;
        }
        if at >= self.0.len() {
            self.0.resize(at + 1, 0);
        }
        self.0[at] = amount.0;
    }

    /// What is left of this capacity beside what is reserved.
    #[must_use]
    pub(crate) fn without(&self, reserved: &Vector) -> Vector {
        let left = |(at, amount): (usize, &u64)| amount.saturating_sub(reserved.0.get(at).copied().unwrap_or(0));
        Vector(self.0.iter().enumerate().map(left).collect())
    }

    /// Whether `demand` fits beside `reserved` into this capacity.
    #[inline]
    #[must_use]
    pub fn has_room(&self, reserved: &Vector, demand: &Demand) -> bool {
        demand.0.iter().all(|&(resource, amount)| reserved.get(resource) + amount <= self.get(resource))
    }

    #[inline]
    pub(crate) fn add(&mut self, demand: &Demand) {
        for &(resource, amount) in &demand.0 {
            self.set(resource, self.get(resource) + amount);
        }
    }

    #[inline]
    pub(crate) fn remove(&mut self, demand: &Demand) {
        for &(resource, amount) in &demand.0 {
            debug_assert!(self.get(resource) >= amount, "released more than was reserved");
            self.set(resource, self.get(resource) - amount);
        }
    }

    /// Whether nothing is held.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        self.0.iter().all(|&amount| amount == 0)
    }

    /// The non-zero amounts.
    pub fn iter(&self) -> impl Iterator<Item = (ResourceId, Amount)> + '_ {
        self.0
            .iter()
            .enumerate()
            .filter(|entry| *entry.1 > 0)
            .map(|(i, &amount)| (ResourceId(i as u32), Amount(amount)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_demand_fits_up_to_the_last_part_and_no_further() {
        let capacity = Vector::new([(ResourceId::GPUS, Amount::from_units(1))]);
        let third = Demand::new([(ResourceId::GPUS, Amount::from_f64(1.0 / 3.0))]);
        let mut reserved = Vector::default();
        for _ in 0..3 {
            assert!(capacity.has_room(&reserved, &third));
            reserved.add(&third);
        }
        assert!(!capacity.has_room(&reserved, &third));
        for _ in 0..3 {
            reserved.remove(&third);
        }
        assert!(reserved.is_zero());
    }

    #[test]
    fn demands_are_sorted_summed_and_free_of_zeros() {
        let demand = Demand::new([
            (ResourceId::MEMORY, Amount(5)),
            (ResourceId::CPUS, Amount(0)),
            (ResourceId::CPUS, Amount(2)),
            (ResourceId::MEMORY, Amount(1)),
        ]);
        assert_eq!(demand.amounts(), &[(ResourceId::CPUS, Amount(2)), (ResourceId::MEMORY, Amount(6))]);
        assert!(!Vector::default().has_room(&Vector::default(), &demand));
    }
}
