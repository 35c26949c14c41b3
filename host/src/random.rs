//! Random numbers that depend only on a seed, with the same results on every machine.

use crate::{Result, host_memory};

/// The random generator SplitMix64.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A random number in 0..`below`; `below` is not 0.
    pub(crate) fn below(&mut self, below: usize) -> usize {
        ((u128::from(self.bits()) * below as u128) >> 64) as usize
    }

    /// A random number from 0 up to and excluding 1.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Chooses `count` of the numbers below `total` and returns them in ascending order. Every set is equally likely (selection sampling,
    /// Knuth's algorithm S). O(total).
    pub(crate) fn sample(&mut self, total: usize, count: usize) -> Vec<usize> {
        let mut chosen = Vec::with_capacity(count);
        for at in 0..total {
            if chosen.len() < count && self.below(total - at) < count - chosen.len() {
                chosen.push(at);
            }
        }
        chosen
    }
}

/// Copies the rows with the numbers `places`, one after the other.
pub(crate) fn gather<T: Copy>(rows: &[T], dim: usize, places: &[usize]) -> Result<Vec<T>> {
    let mut gathered = host_memory::with_room(host_memory::count::<T>(&[places.len(), dim])?)?;
    places.iter().for_each(|&place| gathered.extend_from_slice(&rows[place * dim..][..dim]));
    Ok(gathered)
}
