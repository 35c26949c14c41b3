//! Random numbers that depend only on a seed, with the same results on every machine.

use bytemuck::Pod;

use crate::parallel::{Loop, ParallelSlice};
use crate::{Result, host_memory};

/// Smallest number of bytes that [`gather`] copies by several threads.
const PARALLEL_BYTES: usize = 1 << 20;
/// Number of rows that a thread copies at a time.
const PIECE: usize = 64;

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

    /// Chooses `count` of the numbers below `total` and returns them in ascending order. Every set is equally likely
    /// (selection sampling, Knuth's algorithm S). O(total).
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

/// Copies the rows with the numbers `places`, one after the other, by several threads if there are many bytes: `dim` is
/// at least 1.
pub(crate) fn gather<T: Pod + Send + Sync>(rows: &[T], dim: usize, places: &[usize]) -> Result<Vec<T>> {
    let count = host_memory::count::<T>(&[places.len(), dim])?;
    if count * size_of::<T>() < PARALLEL_BYTES {
        let mut gathered = host_memory::with_room(count)?;
        places.iter().for_each(|&place| gathered.extend_from_slice(&rows[place * dim..][..dim]));
        return Ok(gathered);
    }
    let mut gathered = host_memory::zeroed(count)?;
    let pieces = gathered.par_chunks_mut(PIECE * dim).zip(places.par_chunks(PIECE));
    pieces.for_each(|(to, places)| {
        let rows = places.iter().map(|&place| &rows[place * dim..][..dim]);
        to.chunks_exact_mut(dim).zip(rows).for_each(|(to, row)| to.copy_from_slice(row));
    });
    Ok(gathered)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_gathered_in_the_given_order_whatever_their_number() {
        let (rows, dim) = ((0..3_000u32).collect::<Vec<_>>(), 3);
        // The last set takes more bytes than one thread copies.
        for count in [0, 1, 64, 90_001] {
            let places: Vec<usize> = (0..count).map(|at| at * 7 % 1000).collect();
            let gathered = gather(&rows, dim, &places).unwrap();
            assert_eq!(gathered.len(), 3 * count);
            for (row, place) in gathered.chunks(3).zip(&places) {
                assert_eq!(row, [3 * place, 3 * place + 1, 3 * place + 2].map(|x| x as u32), "{count}");
            }
        }
    }
}
