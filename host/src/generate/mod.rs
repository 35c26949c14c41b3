//! Clustered vectors that are made from their row numbers: a set of any size that needs no storage.
//!
//! [`Generator`] can make any row alone, with the same bits on every device. `warpann_kernels::generate` explains how, and why these
//! vectors resemble descriptors reduced by principal components. An index adds them without a copy on the host
//! ([`IvfIndex::add_generated`](crate::IvfIndex::add_generated)), and [`Generator::nearest`] finds the true neighbours among any number of
//! rows.
//!
//! ```
//! use warpann::generate::Generator;
//! use warpann::{Device, Metric};
//!
//! let vectors = Generator::new(24, 64, 1)?;
//! // Rows past those that are searched make queries of the same kind.
//! let queries = vectors.rows(5_000, 3);
//! let truth = vectors.nearest(0..5_000, &queries, 10, Device::Cpu)?;
//! assert_eq!((truth.queries(), truth.k), (3, 10));
//! # Ok::<(), warpann::Error>(())
//! ```

pub(crate) mod gpu;

use std::ops::Range;

use warpann_kernels::generate::RowKeys;

use crate::device::open::open;
use crate::parallel::{Loop, ParallelSlice};
use crate::serialised::deserialised;
use crate::shards::merge;
use crate::validate::{check_dim, check_vectors};
use crate::vectors::VectorSlice;
use crate::{Device, Error, FlatIndex, Input, Metric, Neighbors, Result};

/// Number of rows that the CPU makes and searches at a time.
const CPU_ROWS: u64 = 1 << 16;

/// Clustered vectors of one dimension; see the [module](self).
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
    /// Vectors of `dim` components around `clusters` centres, or the next power of two, at most 2³¹. Of n rows, about n / clusters belong
    /// to each centre; n / 1000 clusters are a good choice.
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

    /// Rows `first` to `first + count`, row-major. O(count · dim), in parallel. It allocates memory for them, and ends the program if
    /// memory is short; [`fill`](Self::fill) writes to memory of the caller.
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

    /// The exact `k` nearest of the rows `rows` for each query by squared L2 distance. Ids are row numbers. The results are those of a
    /// [`FlatIndex`] of these rows. `device` makes the rows in blocks, searches each block, and discards it. O(rows · queries · dim).
    ///
    /// # Errors
    /// [`Error::Zero`], [`Error::Ragged`], [`Error::NotFinite`] with query and column, [`Error::ResultTooLarge`],
    /// [`Error::OutOfDeviceMemory`], and the errors of opening the device and running on it.
    pub fn nearest(&self, rows: Range<u64>, queries: &[f32], k: usize, device: Device) -> Result<Neighbors> {
        if k == 0 {
            return Err(Error::Zero { what: "k" });
        }
        let count = check_vectors(queries, self.dim, Input::Queries)?;
        let none = Neighbors::none(Metric::L2, count, k)?;
        if count == 0 || rows.is_empty() {
            return Ok(none);
        }
        let mut found = none;
        if let Some(runtime) = open(device)?.1 {
            gpu::nearest(&runtime, self, rows, VectorSlice::of(queries, self.dim), k, &mut found)?;
            return Ok(found);
        }
        let mut first = rows.start;
        while first < rows.end {
            let end = rows.end.min(first.saturating_add(CPU_ROWS));
            let mut index = FlatIndex::<f32>::new(self.dim, Metric::L2, Device::Cpu)?;
            index.add(&self.rows(first, (end - first) as usize))?;
            let mut more = index.search(queries, k)?;
            more.ids.par_iter_mut().for_each(|id| *id = if *id == crate::NONE { *id } else { *id + first });
            merge(Metric::L2, k, &mut found.ids, &mut found.distances, &[(&more.ids, &more.distances)]);
            first = end;
        }
        Ok(found)
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

    #[test]
    fn devices_make_and_search_the_same_rows() {
        // The device pads the first dimension, but not the second.
        for dim in [6, 8] {
            let generator = Generator::new(dim, 16, 5).unwrap();
            let queries = generator.rows(1 << 40, 9);
            let base = generator.rows(100, 700);
            let mut flat = FlatIndex::<f32>::new(dim, Metric::L2, Device::Cpu).unwrap();
            flat.add(&base).unwrap();
            let mut expected = flat.search(&queries, 5).unwrap();
            expected.ids.iter_mut().for_each(|id| *id += 100);
            for device in [Device::Cpu, Device::Emulator] {
                let found = generator.nearest(100..800, &queries, 5, device).unwrap();
                assert_eq!(found, expected, "{device}, {dim} components");
            }
        }
    }

    #[test]
    fn bad_settings_are_errors() {
        assert!(matches!(Generator::new(0, 1, 0), Err(Error::Zero { what: "dimension" })));
        assert!(matches!(Generator::new(1, 0, 0), Err(Error::Zero { what: "clusters" })));
        let generator = Generator::new(4, 3, 0).unwrap();
        assert_eq!(generator.clusters(), 4);
        assert!(matches!(generator.nearest(0..5, &[0.0; 4], 0, Device::Cpu), Err(Error::Zero { what: "k" })));
        assert!(matches!(
            generator.nearest(0..5, &[0.0; 3], 1, Device::Cpu),
            Err(Error::Ragged { what: "components", .. })
        ));
        assert!(matches!(generator.nearest(0..5, &[f32::NAN; 4], 1, Device::Cpu), Err(Error::NotFinite { .. })));
        // No rows, and fewer than k.
        assert_eq!(generator.nearest(5..5, &[0.0; 4], 1, Device::Cpu).unwrap().ids, [crate::NONE]);
        let few = generator.nearest(5..7, &[0.0; 4], 3, Device::Cpu).unwrap();
        assert!(few.ids[0] >= 5 && few.ids[2] == crate::NONE);
    }
}
