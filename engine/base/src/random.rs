//! Seeded random streams. One stream for each concern, so that drawing more from one changes nothing in another.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};

/// A stream of random numbers decided by its seed and the concern it was made for.
#[derive(Clone, Debug)]
pub struct Random(Xoshiro256PlusPlus);

impl Random {
    /// The stream of `concern` under `seed`.
    #[must_use]
    pub fn new(seed: u64, concern: &str) -> Self {
        Self(Xoshiro256PlusPlus::seed_from_u64(xxhash_rust::xxh3::xxh3_64_with_seed(
            concern.as_bytes(),
            seed,
        )))
    }

    /// 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `bound` (0 where `bound` is 0), without modulo bias worth speaking of (128-bit multiply).
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// True with probability `ppm` in a million.
    pub fn chance_ppm(&mut self, ppm: u32) -> bool {
        self.below(1_000_000) < u64::from(ppm)
    }
}

#[cfg(test)]
mod tests {
    use super::Random;

    #[test]
    fn streams_depend_on_seed_and_concern_only() {
        let draw = |seed, concern| (0..4).map(|_| Random::new(seed, concern).next_u64()).collect::<Vec<_>>();
        assert_eq!(draw(1, "disk"), draw(1, "disk"));
        assert_ne!(draw(1, "disk"), draw(1, "network"));
        assert_ne!(draw(1, "disk"), draw(2, "disk"));
    }

    #[test]
    fn below_stays_below() {
        let mut random = Random::new(7, "test");
        assert!((0..10_000).all(|_| random.below(3) < 3));
        assert_eq!(random.below(0), 0);
    }
}
