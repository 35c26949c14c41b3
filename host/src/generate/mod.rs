//! Clustered vectors that are made from their row numbers: a set of any size that needs no storage.
//!
//! [`Generator`] can make any row alone, with the same bits on every device. `warpann_kernels::generate` explains how,
//! and why these vectors resemble descriptors reduced by principal components. An index adds them without a copy on the
//! host ([`IvfIndex::add_generated`](crate::IvfIndex::add_generated)), and [`Generator::nearest`] finds the true
//! neighbours among any number of rows.
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

mod generator;
pub(crate) mod gpu;

use std::ops::Range;

pub use self::generator::Generator;
pub(crate) use self::generator::Rows;
use crate::device::open::open;
use crate::parallel::{Loop, ParallelSlice};
use crate::shards::merge;
use crate::validate::check_vectors;
use crate::vectors::VectorSlice;
use crate::{Device, Error, FlatIndex, Input, Metric, Neighbors, Result};

/// Number of rows that the CPU makes and searches at a time.
const CPU_ROWS: u64 = 1 << 16;

impl Generator {
    /// The exact `k` nearest of the rows `rows` for each query by squared L2 distance. Ids are row numbers. The results
    /// are those of a [`FlatIndex`] of these rows. `device` makes the rows in blocks, searches each block, and discards
    /// it. O(rows · queries · dim).
    ///
    /// # Errors
    /// [`Error::Zero`], [`Error::Ragged`], [`Error::NotFinite`] with query and column, [`Error::ResultTooLarge`],
    /// [`Error::OutOfDeviceMemory`], and the errors of opening the device and running on it.
    pub fn nearest(&self, rows: Range<u64>, queries: &[f32], k: usize, device: Device) -> Result<Neighbors> {
        if k == 0 {
            return Err(Error::Zero { what: "k" });
        }
        let count = check_vectors(queries, self.dim(), Input::Queries)?;
        let none = Neighbors::none(Metric::L2, count, k)?;
        if count == 0 || rows.is_empty() {
            return Ok(none);
        }
        let mut found = none;
        if let Some(runtime) = open(device)?.1 {
            gpu::nearest(&runtime, self, rows, VectorSlice::of(queries, self.dim()), k, &mut found)?;
            return Ok(found);
        }
        let mut first = rows.start;
        while first < rows.end {
            let end = rows.end.min(first.saturating_add(CPU_ROWS));
            let mut index = FlatIndex::<f32>::new(self.dim(), Metric::L2, Device::Cpu)?;
            index.add(&self.rows(first, (end - first) as usize))?;
            let mut more = index.search(queries, k)?;
            more.ids.par_iter_mut().for_each(|id| *id = if *id == crate::NONE { *id } else { *id + first });
            merge(Metric::L2, k, &mut found.ids, &mut found.distances, &[(&more.ids, &more.distances)]);
            first = end;
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
