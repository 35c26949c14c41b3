//! The vectors of a generator, and rows that are in memory or to be generated.

use std::ops::Range;

use warpann_kernels::generate::RowKeys;

use crate::parallel::{Loop, ParallelSlice};
use crate::serialised::deserialised;
use crate::validate::check_dim;
use crate::{Error, Result};

/// Clustered vectors of one dimension; see the [module](super).
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Generator {
    dim: usize,
    clusters: u32,
    seed: u64,
}

deserialised!(Generator { dim: usize, clusters: usize, seed: u64 } => |dim, clusters, seed| {
    Generator::new(dim, clusters, seed).map_err(|error| error.to_string())
});

/// Vectors of f32, in memory or to be generated.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Rows<'a> {
    /// Vectors in memory, row-major.
    Given(&'a [f32]),
    /// The rows of `generator` from row `first` on.
    Generated { generator: &'a Generator, first: u64 },
}

impl<'a> Rows<'a> {
    /// The vectors at `places`, of `dim` components each.
    pub(crate) fn part(&self, places: Range<usize>, dim: usize) -> Rows<'a> {
        match *self {
            Rows::Given(rows) => Rows::Given(&rows[places.start * dim..places.end * dim]),
            Rows::Generated { generator, first } => {
                Rows::Generated { generator, first: first.wrapping_add(places.start as u64) }
            }
        }
    }
}

impl Generator {
    /// Vectors of `dim` components around `clusters` centres, or the next power of two, at most 2³¹. Of n rows, about n
    /// / clusters belong to each centre; n / 1000 clusters are a good choice.
    ///
    /// # Errors
    /// [`Error::Zero`], [`Error::TooMany`].
    pub fn new(dim: usize, clusters: usize, seed: u64) -> Result<Generator> {
        check_dim(dim)?;
        if clusters == 0 {
            return Err(Error::Zero { what: "clusters" });
        }
        Ok(Generator { dim, clusters: clusters.min(1 << 31).next_power_of_two() as u32, seed })
    }

    /// Dimension of the vectors.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Number of centres around which the vectors lie.
    pub fn clusters(&self) -> usize {
        self.clusters as usize
    }

    /// The seed: another seed gives other vectors of the same dimension and number of clusters.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Rows `first` to `first + count`, row-major. O(count · dim), in parallel. It allocates memory for them, and ends
    /// the program if memory is short; [`fill`](Self::fill) writes to memory of the caller.
    pub fn rows(&self, first: u64, count: usize) -> Vec<f32> {
        let mut rows = vec![0.0; count * self.dim];
        self.fill(first, &mut rows);
        rows
    }

    /// Fills `out`, a whole number of rows, with the rows from row `first` on. O(out), in parallel.
    pub fn fill(&self, first: u64, out: &mut [f32]) {
        out.par_chunks_mut(self.dim).enumerate().with_min_len(16).for_each(|(row, out)| {
            let keys = RowKeys::new(self.seed, self.clusters, first.wrapping_add(row as u64));
            out.iter_mut().zip(0..).for_each(|(x, j)| *x = keys.component(j));
        });
    }

    /// The parameters of the kernel: seed and number of clusters.
    pub(crate) fn law(&self) -> (u64, u32) {
        (self.seed, self.clusters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The formulas of `warpann_kernels::generate`, implemented independently with wide integers.
    fn naive(seed: u64, clusters: u64, number: u64, j: u64) -> f32 {
        const M64: u128 = 1 << 64;
        const M32: u64 = 1 << 32;
        let mix = |z: u64| {
            let z = u128::from(z);
            let z = (z ^ (z >> 30)) * 0xbf58_476d_1ce4_e5b9 % M64;
            let z = (z ^ (z >> 27)) * 0x94d0_49bb_1331_11eb % M64;
            (z ^ (z >> 31)) as u64
        };
        let key = |level: u128, number: u64| {
            let of_level = mix(((u128::from(seed) + level) % M64) as u64);
            mix(of_level ^ (u128::from(number) * 0x9e37_79b9_7f4a_7c15 % M64) as u64)
        };
        let deviate = |key: u64| {
            let x = (key % M32) ^ (j * 0x9e37_79b9 % M32);
            let x = (x ^ (x >> 16)) * 0x85eb_ca6b % M32;
            let x = (x ^ (x >> 13)) * 0xc2b2_ae35 % M32;
            let x = x ^ (x >> 16) ^ (key / M32);
            let x = (x ^ (x >> 16)) * 0x7feb_352d % M32;
            let x = (x ^ (x >> 15)) * 0x846c_a68b % M32;
            let x = x ^ (x >> 16);
            (x as u32).to_le_bytes().iter().map(|&byte| i64::from(byte)).sum::<i64>() - 510
        };
        let row = key(1, number);
        let cluster = (mix(row) / M32) % clusters;
        let sum = 3 * deviate(key(3, cluster / 64)) + 2 * deviate(key(2, cluster)) + 2 * deviate(row);
        (sum as f64 / (j as f64 + 8.0)) as f32
    }

    #[test]
    fn rows_follow_the_definition() {
        for (dim, clusters, seed, first) in [(1, 1, 0, 0), (5, 64, 7, 3), (96, 300, u64::MAX, u64::from(u32::MAX) - 2)]
        {
            let generator = Generator::new(dim, clusters, seed).unwrap();
            let clusters = generator.clusters() as u64;
            let rows = generator.rows(first, 6);
            for (at, &x) in rows.iter().enumerate() {
                let (row, j) = (first + (at / dim) as u64, (at % dim) as u64);
                assert_eq!(x.to_bits(), naive(seed, clusters, row, j).to_bits(), "row {row}, component {j}");
            }
            // A row can be made alone.
            assert_eq!(generator.rows(first + 4, 1), rows[4 * dim..5 * dim]);
        }
    }

    #[test]
    fn components_spread_as_documented() {
        let dim = 12;
        let generator = Generator::new(dim, 1 << 12, 3).unwrap();
        let count = 40_000;
        let rows = generator.rows(0, count);
        for j in 0..dim {
            let column = || rows.iter().skip(j).step_by(dim).map(|&x| f64::from(x));
            let mean = column().sum::<f64>() / count as f64;
            let deviation = (column().map(|x| (x - mean).powi(2)).sum::<f64>() / count as f64).sqrt();
            // √(3² + 2² + 2²) · 147.8 / (j + 8), estimated from 64 groups only.
            let expected = 17f64.sqrt() * 147.8 / (j as f64 + 8.0);
            assert!((0.7..1.3).contains(&(deviation / expected)), "{j}: {deviation} for {expected}");
        }
    }
}
