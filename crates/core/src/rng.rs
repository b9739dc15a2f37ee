//! The seeded generator behind every random choice of a machine. Never touches a random device.

/// A small, fast, seedable generator (SplitMix64): good enough for victims and jitter, not for secrets.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator that repeats itself for the same seed.
    #[must_use]
    pub fn new(seed: u64) -> Rng {
        Rng(seed ^ 0x5851_f42d_4c95_7f2d)
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// As if so many numbers had been drawn.
    pub fn skip(&mut self, numbers: u64) {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(numbers));
    }

    /// A number below `bound`; zero if the bound is zero.
    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next_u64()) * bound as u128) >> 64) as usize
    }

    /// A number in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A factor in [1 − share, 1 + share).
    pub fn jitter(&mut self, share: f64) -> f64 {
        1.0 + share * (2.0 * self.unit() - 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_same_numbers_and_bounds_hold() {
        let (mut a, mut b) = (Rng::new(7), Rng::new(7));
        for _ in 0..1000 {
            assert_eq!(a.next_u64(), b.next_u64());
            assert!(a.below(10) < 10);
            b.below(10);
            let factor = a.jitter(0.5);
            assert!((0.5..1.5).contains(&factor), "{factor}");
            b.unit();
        }
        assert_eq!(a.below(0), 0);
        b.skip(1);
        a.skip(16);
        for _ in 0..16 {
            b.unit();
        }
        assert_eq!(a.next_u64(), b.next_u64());
    }
}
