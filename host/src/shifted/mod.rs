//! Approximate nearest neighbours in low dimension by shifted sort: the fast way for points, boxes and other vectors of
//! up to twelve components.
//!
//! The index has S copies of its points. Each copy is shifted by a different part of a cell of a grid and sorted by
//! Morton code. A search looks for the neighbours of a query among the points around its position in each copy.
//! `warpann_kernels::shifted::morton` and `warpann_kernels::shifted::shifted_sort` explain the algorithm and its cost;
//! [`quality`] measures the quality of results.
//!
//! ```
//! use warpann::shifted::{ShiftedIndex, quality};
//! use warpann::{Device, FlatIndex, Metric};
//!
//! // 2000 points on a surface in space.
//! let points: Vec<f32> =
//!     (0..2000).flat_map(|i| { let t = i as f32 * 0.37; [t.sin(), t.cos(), (t * 0.11).sin()] }).collect();
//! let mut index = ShiftedIndex::builder(3).device(Device::Cpu).build()?;
//! index.add(&points)?;
//!
//! // Two queries near the surface; of queries far away more is missed.
//! let queries = [0.61, 0.79, 0.3, -0.99, 0.1, 0.0f32];
//! let found = index.search(&queries, 8)?;
//!
//! let mut exact = FlatIndex::new(3, Metric::L2, Device::Cpu)?;
//! exact.add(&points)?;
//! let quality = quality(&found, &exact.search(&queries, 8)?)?;
//! assert!(quality.recall > 0.7 && quality.epsilon.max < 0.3);
//! # Ok::<(), warpann::Error>(())
//! ```

mod backend;
mod cpu;
mod gpu;
mod grid;
mod quality;
#[cfg(test)]
mod tests;

pub use warpann_kernels::shifted::morton::MAX_DIM;

use self::backend::{ShiftedBackend, ShiftedRequest};
use self::cpu::ShiftedCpu;
use self::grid::Grid;
pub use self::quality::{Epsilon, Quality, quality};
use crate::device::open::open;
use crate::neighbors::slots::Slots;
use crate::undo::undone_unless_ok;
use crate::validate::{MAX_ROWS, check_results, check_rows, check_vectors};
use crate::{Device, Error, Input, Metric, NONE, Neighbors, Result, host_memory};

/// Smallest default neighborhood: number of positions in each copy, equal to the lanes of one warp.
const LEAST_NEIGHBOURHOOD: usize = 32;

/// An index for approximate search by squared L2 distance among vectors of up to [`MAX_DIM`] f32 components.
///
/// A search examines [`neighborhood`](ShiftedIndexBuilder::neighborhood) points in each of
/// [`shifts`](ShiftedIndexBuilder::shifts) sorted copies and returns exactly the `k` best of them by (canonical
/// distance, lower id), each once, with the canonical distances of [`crate::metric`]: the same bits on every device and
/// on every run. The examined points depend on the query and the index, not on other queries.
///
/// Ids are the positions in which vectors were added, from 0. The index is `Send + Sync`.
pub struct ShiftedIndex {
    dim: usize,
    shifts: usize,
    neighborhood: Option<usize>,
    rows: Vec<f32>,
    backend: Box<dyn ShiftedBackend>,
}

impl std::fmt::Debug for ShiftedIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShiftedIndex")
            .field("dim", &self.dim)
            .field("shifts", &self.shifts)
            .field("neighborhood", &self.neighborhood)
            .field("len", &self.len())
            .field("device", &self.device())
            .finish()
    }
}

/// Settings of a [`ShiftedIndex`] before it is built; see [`ShiftedIndex::builder`].
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ShiftedIndexBuilder {
    dim: usize,
    device: Device,
    shifts: Option<usize>,
    neighborhood: Option<usize>,
    #[cfg_attr(feature = "serde", serde(rename = "memory_budget"))]
    budget: Option<u64>,
}

impl ShiftedIndexBuilder {
    /// The device; [`Device::Auto`] unless set.
    pub fn device(mut self, device: Device) -> Self {
        self.device = device;
        self
    }

    /// Sets the number of shifted copies. More copies find more neighbours; the cost is proportional to their number.
    /// Default: dimension + 1 or dimension + 2, whichever is odd, as in Chan's proof.
    pub fn shifts(mut self, copies: usize) -> Self {
        self.shifts = Some(copies);
        self
    }

    /// Sets the number of points to examine around the position of a query in each copy, half before and half behind
    /// it. More points find more neighbours. Default: 2k (k before and k behind, as published), rounded up to a
    /// multiple of 32, because a warp examines 32 at once.
    pub fn neighborhood(mut self, positions: usize) -> Self {
        self.neighborhood = Some(positions);
        self
    }

    /// Sets the bytes of device memory that the index may use. Default: nine tenths of the free memory. The CPU ignores
    /// it.
    pub fn memory_budget(mut self, bytes: u64) -> Self {
        self.budget = Some(bytes);
        self
    }

    /// Opens the device and makes an empty index on it.
    ///
    /// # Errors
    /// [`Error::Zero`] for vectors without components, no shifts, or a neighborhood of no positions; [`Error::TooMany`]
    /// above [`MAX_DIM`]; [`Error::TooMany`] for more shifts than can be numbered; and the errors of opening the
    /// device, as in [`FlatIndexBuilder::build`](crate::FlatIndexBuilder::build).
    pub fn build(self) -> Result<ShiftedIndex> {
        let dim = self.dim;
        if dim == 0 {
            return Err(Error::Zero { what: "dimension" });
        }
        if dim > MAX_DIM {
            return Err(Error::TooMany {
                what: "dimensions for shifted sort",
                asked: dim as u64,
                limit: MAX_DIM as u64,
            });
        }
        let shifts = self.shifts.unwrap_or((dim + 1) | 1);
        if shifts == 0 {
            return Err(Error::Zero { what: "shifts" });
        }
        // A launch has one row of blocks for each copy.
        if shifts > MOST_SHIFTS {
            return Err(Error::TooMany { what: "shifts", asked: shifts as u64, limit: MOST_SHIFTS as u64 });
        }
        if self.neighborhood == Some(0) {
            return Err(Error::Zero { what: "positions" });
        }
        let backend: Box<dyn ShiftedBackend> = match open(self.device)?.1 {
            Some(runtime) => Box::new(gpu::ShiftedDevice::new(runtime, self.budget)),
            None => Box::new(ShiftedCpu::default()),
        };
        Ok(ShiftedIndex { dim, shifts, neighborhood: self.neighborhood, rows: Vec::new(), backend })
    }
}

/// Largest number of copies of an index.
const MOST_SHIFTS: usize = u16::MAX as usize;

impl ShiftedIndex {
    /// Starts an index over vectors of `dim` components, 1 to [`MAX_DIM`].
    pub fn builder(dim: usize) -> ShiftedIndexBuilder {
        ShiftedIndexBuilder { dim, device: Device::default(), shifts: None, neighborhood: None, budget: None }
    }

    /// Appends the vectors of `rows`, row-major, `dim` components each, and sorts all copies again: O(shifts · len), so
    /// add all vectors in one call if possible. On error the index is unchanged.
    ///
    /// # Errors
    /// [`Error::Ragged`], [`Error::NotFinite`] with the first component that is not finite (row within `rows`),
    /// [`Error::TooMany`], [`Error::OutOfDeviceMemory`], and errors of the device's driver.
    pub fn add(&mut self, rows: &[f32]) -> Result<()> {
        let count = check_vectors(rows, self.dim, Input::Base)?;
        // The limit of the launches as well, whose grids count threads.
        check_rows((self.len() + count) as u64, MAX_ROWS / 2)?;
        if count == 0 {
            return Ok(());
        }
        let before = self.rows.len();
        host_memory::reserve(&mut self.rows, rows.len())?;
        undone_unless_ok(
            &mut self.rows,
            |own| own.truncate(before),
            |own| {
                own.extend_from_slice(rows);
                self.backend.rebuild(&Grid::of(own, self.dim, self.shifts), own)
            },
        )
    }

    /// The `k` nearest vectors that the search finds for each query (`queries`: row-major, `dim` components each), best
    /// first, equal distances by lower id. If the index holds fewer than `k` vectors, rows end with [`NONE`] and +∞;
    /// otherwise every slot is filled unless the neighborhood was set to less than `k`. The index and `queries` may be
    /// empty. O(queries · shifts · (neighborhood · dim + log len)).
    ///
    /// # Errors
    /// [`Error::Zero`], [`Error::Ragged`], [`Error::NotFinite`] with query and column, [`Error::ResultTooLarge`],
    /// [`Error::OutOfDeviceMemory`], and errors of the device's driver.
    pub fn search(&self, queries: &[f32], k: usize) -> Result<Neighbors> {
        let count = self.check_queries(queries, k)?;
        let mut found = Neighbors::none(Metric::L2, count, k)?;
        self.search_checked(queries, false, k, &mut found.ids, &mut found.distances)?;
        Ok(found)
    }

    /// As [`search`](Self::search), into memory of the caller: `ids` and `distances` hold queries × `k` slots each.
    ///
    /// # Errors
    /// As [`search`](Self::search); and [`Error::WrongLength`] if a slice has another length.
    pub fn search_into(&self, queries: &[f32], k: usize, ids: &mut [u64], distances: &mut [f32]) -> Result<()> {
        let count = self.check_queries(queries, k)?;
        check_results(count, k, ids, distances)?;
        self.search_checked(queries, false, k, ids, distances)
    }

    fn check_queries(&self, queries: &[f32], k: usize) -> Result<usize> {
        if k == 0 {
            return Err(Error::Zero { what: "k" });
        }
        check_vectors(queries, self.dim, Input::Queries)
    }

    /// The `k` nearest *other* vectors that the search finds for every vector of the index, in the order of ids: the
    /// k-NN graph. It is a [`search`](Self::search) for the vectors of the index, except that a vector is not in its
    /// row; its duplicates may be. It is cheaper than a search, because the sort has computed the positions of the
    /// vectors.
    ///
    /// # Errors
    /// [`Error::Zero`], [`Error::ResultTooLarge`], [`Error::OutOfDeviceMemory`], and errors of the device's driver.
    pub fn self_join(&self, k: usize) -> Result<Neighbors> {
        if k == 0 {
            return Err(Error::Zero { what: "k" });
        }
        let mut found = Neighbors::none(Metric::L2, self.len(), k)?;
        self.search_checked(&self.rows, true, k, &mut found.ids, &mut found.distances)?;
        Ok(found)
    }

    fn search_checked(
        &self,
        queries: &[f32],
        own: bool,
        k: usize,
        ids: &mut [u64],
        distances: &mut [f32],
    ) -> Result<()> {
        if queries.is_empty() || self.is_empty() {
            ids.fill(NONE);
            distances.fill(Metric::L2.worst());
            return Ok(());
        }
        let n = self.len();
        // At most the number of vectors.
        let at_most = k.min(n);
        let published = (2 * at_most).next_multiple_of(32).max(LEAST_NEIGHBOURHOOD);
        let width = self.neighborhood.unwrap_or(published).min(n);
        let request = ShiftedRequest { queries, own, k: at_most, width };
        self.backend.search(&request, Slots { k, worst: Metric::L2.worst(), ids, distances })
    }

    /// Number of vectors in the index.
    pub fn len(&self) -> usize {
        self.rows.len() / self.dim
    }

    /// Whether no vector was added yet.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Dimension of the vectors.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Number of shifted copies.
    pub fn shifts(&self) -> usize {
        self.shifts
    }

    /// All vectors of the index, row-major.
    pub fn rows(&self) -> &[f32] {
        &self.rows
    }

    /// A description of the device in use, for example of the device that [`Device::Auto`] chose.
    pub fn device(&self) -> String {
        self.backend.describe()
    }
}
