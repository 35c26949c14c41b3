//! Random numbers for tests and measurements: the same from the same seed on every machine; and the seeds of a revision
//! ([`seeds`]).
//!
//! The crate has no dependencies, so that the tests of every crate of the workspace can use it. No method uses a
//! library function whose rounding varies between machines, such as a logarithm.
//!
//! ```
//! use test_random::Random;
//!
//! let mut random = Random::new(1);
//! let mut order: Vec<usize> = (0..10).collect();
//! random.shuffle(&mut order);
//! assert!(order.contains(&random.below(10)));
//! assert!(random.signed_units(100).iter().all(|x| (-1.0..1.0).contains(x)));
//! ```
//!
//! # The generator
//! SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014): a counter that grows by
//! an odd constant, and a bijection that mixes its bits. The period is 2⁶⁴, every value occurs once in it, and the n-th
//! number costs no more than the first ([`Random::nth`]). All seeds are equally good, 0 included. Two seeds that differ
//! by a small multiple of the constant give overlapping sequences; small seeds do not.
#![forbid(unsafe_code)]

pub mod seeds;

/// The increment of the counter: 2⁶⁴ divided by the golden ratio.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// A sequence of random numbers, by SplitMix64.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// Number `n` of the sequence of `seed`, from 0: what the call `n + 1` of [`Random::bits`] returns. O(1), for
    /// threads that fill parts of one array.
    pub fn nth(seed: u64, n: u64) -> u64 {
        Random(seed.wrapping_add(n.wrapping_mul(STEP))).bits()
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number in 0..`below`, uniform up to one part in 2⁶⁴ / `below`. 0 if `below` is 0.
    pub fn below(&mut self, below: usize) -> usize {
        ((u128::from(self.bits()) * below as u128) >> 64) as usize
    }

    /// A number in 0..=`most`: half of the time uniform, half of the time with a uniform logarithm.
    pub fn size(&mut self, most: usize) -> usize {
        if self.below(2) == 0 {
            return self.below(most + 1);
        }
        let bits = self.below(most.checked_ilog2().unwrap_or(0) as usize + 2);
        self.below(1 << bits).min(most)
    }

    /// True with probability 1 / `times`.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// A random element of `from`.
    ///
    /// # Panics
    /// Panics if `from` is empty.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// Puts `values` in a random order, every order equally likely (Fisher and Yates).
    pub fn shuffle<T>(&mut self, values: &mut [T]) {
        for last in (1..values.len()).rev() {
            values.swap(last, self.below(last + 1));
        }
    }

    /// A number in 0..1, in steps of 2⁻⁵³.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A number in 0..1, in steps of 2⁻²⁴.
    pub fn unit_f32(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u32 << 24) as f32
    }

    /// `len` numbers of [`Random::unit_f32`].
    pub fn units(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.unit_f32()).collect()
    }

    /// A number in −1..1, in steps of 2⁻²³.
    pub fn signed_unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    }

    /// `len` numbers of [`Random::signed_unit`].
    pub fn signed_units(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.signed_unit()).collect()
    }

    /// `len` whole numbers in 0..`below`. Vectors of few different numbers have many equal distances.
    pub fn whole(&mut self, len: usize, below: usize) -> Vec<f32> {
        (0..len).map(|_| self.below(below) as f32).collect()
    }

    /// A number with mean 0, variance 1 and nearly the normal distribution: the sum of twelve uniform numbers, minus 6.
    pub fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.unit()).sum::<f64>() - 6.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of the authors' program in C (splitmix64.c).
    #[test]
    fn the_sequence_is_that_of_the_reference() {
        let mut random = Random::new(1_234_567);
        let first = [(); 5].map(|()| random.bits());
        let expected = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        assert_eq!(first, expected);
        assert_eq!([0, 1, 2, 3, 4].map(|n| Random::nth(1_234_567, n)), expected);
    }

    #[test]
    fn numbers_stay_in_their_ranges_and_reach_all_of_them() {
        let mut random = Random::new(1);
        for below in [1, 2, 3, 7] {
            let mut counts = vec![0; below];
            (0..1000 * below).for_each(|_| counts[random.below(below)] += 1);
            assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
        }
        assert_eq!(random.below(0), 0);
        let sizes: Vec<usize> = (0..10_000).map(|_| random.size(1000)).collect();
        assert!(sizes.contains(&0) && sizes.iter().all(|&size| size <= 1000) && sizes.iter().any(|&size| size > 900));
        // An even distribution has 1 % of its numbers below 10.
        assert!(sizes.iter().filter(|&&size| size < 10).count() > 1000);
        assert_eq!((0..20).map(|_| random.size(0)).max(), Some(0));
        let units: Vec<f64> = (0..10_000).map(|_| random.unit()).collect();
        assert!(units.iter().all(|unit| (0.0..1.0).contains(unit)));
        assert!((units.iter().sum::<f64>() / 10_000.0 - 0.5).abs() < 0.02);
        assert!(random.units(10_000).iter().all(|unit| (0.0..1.0).contains(unit)));
        let signed = random.signed_units(10_000);
        assert!(signed.iter().all(|x| (-1.0..1.0).contains(x)) && signed.iter().any(|&x| x < -0.99));
        assert!(signed.iter().any(|&x| x > 0.99));
        let whole = random.whole(1000, 3);
        assert!([0.0, 1.0, 2.0].iter().all(|x| whole.contains(x)) && whole.iter().all(|x| [0.0, 1.0, 2.0].contains(x)));
        assert_eq!(whole.len(), 1000);
        let rare = (0..10_000).filter(|_| random.once_in(100)).count();
        assert!((60..150).contains(&rare), "{rare}");
        assert!((0..100).map(|_| random.pick(&[3, 5])).all(|picked| picked == 3 || picked == 5));
    }

    #[test]
    fn normal_numbers_have_mean_0_and_variance_1() {
        let mut random = Random::new(2);
        let numbers: Vec<f64> = (0..20_000).map(|_| random.normal()).collect();
        let mean = numbers.iter().sum::<f64>() / 20_000.0;
        let variance = numbers.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 20_000.0;
        assert!(mean.abs() < 0.03 && (variance - 1.0).abs() < 0.05, "{mean}, {variance}");
    }

    #[test]
    fn every_order_is_equally_likely() {
        let mut random = Random::new(3);
        let mut counts = std::collections::BTreeMap::new();
        for _ in 0..6000 {
            let mut values = [0, 1, 2];
            random.shuffle(&mut values);
            *counts.entry(values).or_insert(0) += 1;
        }
        assert!(counts.len() == 6 && counts.values().all(|count| (850..1150).contains(count)), "{counts:?}");
    }
}
