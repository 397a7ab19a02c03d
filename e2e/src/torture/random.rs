//! Pseudo-random numbers that depend only on their seed.

use std::ops::RangeInclusive;

/// A generator of pseudo-random numbers: `SplitMix64` (Steele, Lea, Flood: "Fast splittable pseudorandom number generators").
///
/// The crates for random numbers may return other numbers in their next version, but a seed must reproduce its run.
#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number of a range. The range must not be empty, nor have all numbers.
    pub fn within(&mut self, range: RangeInclusive<u64>) -> u64 {
        let (start, end) = range.into_inner();
        start + self.number() % (end - start + 1)
    }

    /// Returns one of the items, each with a probability that is proportional to its weight. The weights must not all be 0.
    pub fn choose<T: Copy, const N: usize>(&mut self, items: &[(u64, T); N]) -> T {
        let total: u64 = items.iter().map(|(weight, _)| weight).sum();
        let mut drawn = self.number() % total;
        for (weight, item) in items {
            if drawn < *weight {
                return *item;
            }
            drawn -= weight;
        }
        items[N - 1].1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_published_algorithm() {
        let mut random = Random::new(1_234_567);
        // Sebastiano Vigna's `splitmix64.c` returns these numbers for this seed.
        for expected in [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423] {
            assert_eq!(random.number(), expected);
        }
    }

    #[test]
    fn items_are_chosen_by_their_weights() {
        let mut random = Random::new(1);
        let mut counts = [0_u32; 3];
        for _ in 0..4000 {
            counts[random.choose(&[(3, 0_usize), (0, 1), (1, 2)])] += 1;
        }
        assert_eq!(counts[1], 0, "an item without weight was chosen");
        assert!((2800..3200).contains(&counts[0]) && counts[0] + counts[2] == 4000, "{counts:?}");
        assert!((0..100).all(|_| (5..=7).contains(&random.within(5..=7))));
    }
}
