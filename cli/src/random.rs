//! The random numbers of `verify` and `bench`.

/// A sequence of random numbers, by SplitMix64: the same from the same seed on every machine.
pub struct Random(u64);

impl Random {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A random number in 0..`below`; `below` is not 0.
    pub fn below(&mut self, below: usize) -> usize {
        (self.bits() % below as u64) as usize
    }

    /// A random number from 0 to `most`: half of the time uniform, half of the time with a uniform logarithm.
    pub fn size(&mut self, most: usize) -> usize {
        match self.below(2) {
            0 => self.below(most + 1),
            _ => {
                let bits = self.below(most.ilog2() as usize + 2);
                self.below(1 << bits).min(most)
            }
        }
    }

    /// A random element of `from`, which is not empty.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// A random number in 0..1, in steps of 2⁻²⁴.
    pub fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u32 << 24) as f32
    }

    /// A random number in −1..1, in steps of 2⁻²³.
    pub fn signed_unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A seed that a report of `verify` names must give the same case in every version.
    #[test]
    fn the_sequence_of_a_seed_stays() {
        let mut random = Random::new(1_234_567);
        assert_eq!(random.bits(), 6_457_827_717_110_365_317);
        assert_eq!(random.below(1000), 973);
        assert_eq!(
            [random.unit(), random.signed_unit()],
            [8_928_956.0 / 16_777_216.0, 4_177_655.0 / 8_388_608.0 - 1.0]
        );
    }
}
