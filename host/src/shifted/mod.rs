//! Approximate nearest neighbours in low dimension by shifted sort: the fast way for points, boxes and other vectors of up to
//! twelve components.
//!
//! The index keeps S copies of its points, each shifted by another part of a grid's cube and sorted by Morton code. The neighbours of
//! a query are looked for among the points around its place in each copy. `warpann_kernels::shifted::morton` and
//! `warpann_kernels::shifted::shifted_sort` explain the algorithm and what it costs; [`quality`] measures how good its answers are.
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

mod cpu;
mod gpu;
mod grid;
mod quality;
#[cfg(test)]
mod tests;

use warpann_kernels::select::entry::{self, EMPTY};
pub use warpann_kernels::shifted::morton::MAX_DIM;

use self::cpu::ShiftedCpu;
pub(crate) use self::grid::Grid;
pub use self::quality::{Epsilon, Quality, quality};
use crate::device::open::open;
use crate::parallel::{Loop, ParallelSlice};
use crate::validate::{MAX_ROWS, check_results, check_rows, check_vectors};
use crate::{Device, Error, Input, Metric, NONE, Neighbors, Result, host_memory};

// An empty slot is the same word in an entry and in an id, so that entries can be turned into ids in place.
const _: () = assert!(EMPTY == NONE);

/// Positions looked at in each copy, at least, unless the caller says otherwise: those of one warp.
const LEAST_NEIGHBOURHOOD: usize = 32;

/// What a search asks of a back end. Arguments were checked.
#[derive(Clone, Copy)]
pub(crate) struct Ask<'a> {
    /// Row-major queries, finite; the index's own rows where `own` holds.
    pub queries: &'a [f32],
    /// Each query is the row of its number, which is not its own neighbour.
    pub own: bool,
    /// Neighbours of each, 1 ≤ k ≤ rows.
    pub k: usize,
    /// Positions looked at in each copy, 1 ≤ width ≤ rows.
    pub width: usize,
}

/// What a device does for a shifted index.
pub(crate) trait ShiftedBackend: Send + Sync {
    /// Sorts `rows`, at least one, anew. On error the back end holds what it held before.
    fn rebuild(&mut self, grid: &Grid, rows: &[f32]) -> Result<()>;
    /// Fills `entries` (queries × k) with the best distinct candidates of each query, sorted, [`EMPTY`] behind the last. There are rows.
    fn search(&self, ask: &Ask<'_>, entries: &mut [u64]) -> Result<()>;
    /// The device in words.
    fn describe(&self) -> String;
}

/// An index for approximate search by squared L2 distance among vectors of up to [`MAX_DIM`] f32 components.
///
/// A search looks at [`neighbourhood`](ShiftedIndexBuilder::neighbourhood) points in each of
/// [`shifts`](ShiftedIndexBuilder::shifts) sorted copies and returns exactly the `k` best of them by (canonical distance, lower id),
/// each once, with the canonical distances of [`crate::metric`]: the same bits on every device and on every run. Which points are
/// looked at depends on the query and the index, not on the other queries.
///
/// Ids are the positions in which vectors were added, from 0. The index is `Send + Sync`.
pub struct ShiftedIndex {
    dim: usize,
    shifts: usize,
    neighbourhood: Option<usize>,
    rows: Vec<f32>,
    backend: Box<dyn ShiftedBackend>,
}

impl std::fmt::Debug for ShiftedIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShiftedIndex")
            .field("dim", &self.dim)
            .field("shifts", &self.shifts)
            .field("neighbourhood", &self.neighbourhood)
            .field("len", &self.len())
            .field("device", &self.device())
            .finish()
    }
}

/// Settings of a [`ShiftedIndex`] before it is built; see [`ShiftedIndex::builder`].
#[derive(Debug, Clone)]
pub struct ShiftedIndexBuilder {
    dim: usize,
    device: Device,
    shifts: Option<usize>,
    neighbourhood: Option<usize>,
    budget: Option<u64>,
}

impl ShiftedIndexBuilder {
    /// The device; [`Device::Auto`] unless set.
    pub fn device(mut self, device: Device) -> Self {
        self.device = device;
        self
    }

    /// Shifted copies: more find more neighbours, at a cost that is proportional to them. Unless set, the odd number of
    /// dimension + 1 or dimension + 2: those of Chan's proof.
    pub fn shifts(mut self, copies: usize) -> Self {
        self.shifts = Some(copies);
        self
    }

    /// Points looked at around a query's place in each copy, half before and half behind it; more find more neighbours. Unless
    /// set, twice k (k before and k behind, as published), rounded up to a multiple of 32, for a warp looks at 32 at once.
    pub fn neighbourhood(mut self, positions: usize) -> Self {
        self.neighbourhood = Some(positions);
        self
    }

    /// Bytes of device memory that the index may use; nine tenths of what is free unless set. The CPU takes no notice of it.
    pub fn memory_budget(mut self, bytes: u64) -> Self {
        self.budget = Some(bytes);
        self
    }

    /// Opens the device and makes an empty index on it.
    ///
    /// # Errors
    /// [`Error::ZeroDimension`]; [`Error::TooManyDimensions`] above [`MAX_DIM`]; [`Error::ZeroClusters`] for no shifts or a
    /// neighbourhood of no positions; [`Error::TooManyRows`] for more shifts than can be numbered; and what opening the device can
    /// meet, as [`FlatIndexBuilder::build`](crate::FlatIndexBuilder::build).
    pub fn build(self) -> Result<ShiftedIndex> {
        let dim = self.dim;
        if dim == 0 {
            return Err(Error::ZeroDimension);
        }
        if dim > MAX_DIM {
            return Err(Error::TooManyDimensions { what: "shifted sort", dim, limit: MAX_DIM });
        }
        let shifts = self.shifts.unwrap_or((dim + 1) | 1);
        if shifts == 0 {
            return Err(Error::ZeroClusters { what: "shifts" });
        }
        // A launch has one row of blocks for each copy.
        if shifts > MOST_SHIFTS {
            return Err(Error::TooManyRows { asked: shifts as u64, limit: MOST_SHIFTS as u64 });
        }
        if self.neighbourhood == Some(0) {
            return Err(Error::ZeroClusters { what: "positions" });
        }
        let backend: Box<dyn ShiftedBackend> = match open(self.device)?.1 {
            Some(runtime) => Box::new(gpu::ShiftedDevice::new(runtime, self.budget)),
            None => Box::new(ShiftedCpu::default()),
        };
        Ok(ShiftedIndex { dim, shifts, neighbourhood: self.neighbourhood, rows: Vec::new(), backend })
    }
}

/// Copies that an index can have.
const MOST_SHIFTS: usize = u16::MAX as usize;

impl ShiftedIndex {
    /// Starts an index over vectors of `dim` components, 1 to [`MAX_DIM`].
    pub fn builder(dim: usize) -> ShiftedIndexBuilder {
        ShiftedIndexBuilder { dim, device: Device::default(), shifts: None, neighbourhood: None, budget: None }
    }

    /// Appends the vectors of `rows`, row-major, `dim` components each, and sorts all copies anew: O(shifts · len), so add all
    /// vectors in one call where that is possible. All or nothing: on error the index is unchanged.
    ///
    /// # Errors
    /// [`Error::RaggedVectors`], [`Error::NotFinite`] with the first offending place (row within `rows`), [`Error::TooManyRows`],
    /// [`Error::OutOfDeviceMemory`], and what the device's driver reports.
    pub fn add(&mut self, rows: &[f32]) -> Result<()> {
        let count = check_vectors(rows, self.dim, Input::Base)?;
        // Shared with the launches, whose grids count threads.
        check_rows((self.len() + count) as u64, MAX_ROWS / 2)?;
        if count == 0 {
            return Ok(());
        }
        let before = self.rows.len();
        host_memory::reserve(&mut self.rows, rows.len())?;
        self.rows.extend_from_slice(rows);
        let grid = Grid::of(&self.rows, self.dim, self.shifts);
        let rebuilt = self.backend.rebuild(&grid, &self.rows);
        if rebuilt.is_err() {
            self.rows.truncate(before);
        }
        rebuilt
    }

    /// The `k` nearest vectors that are found for each query (`queries`: row-major, `dim` components each), best first, equal
    /// distances by lower id. Where the index holds fewer than `k` vectors the row ends in [`NONE`] and +∞; otherwise every slot is
    /// filled unless the neighbourhood was set to less than `k`. No queries and an empty index are legal.
    /// O(queries · shifts · (neighbourhood · dim + log len)).
    ///
    /// # Errors
    /// [`Error::ZeroK`], [`Error::RaggedVectors`], [`Error::NotFinite`] with query and column, [`Error::ResultTooLarge`],
    /// [`Error::OutOfDeviceMemory`], and what the device's driver reports.
    pub fn search(&self, queries: &[f32], k: usize) -> Result<Neighbors> {
        let count = self.check_queries(queries, k)?;
        let mut found = Neighbors::none(Metric::L2, count, k)?;
        self.search_checked(queries, false, k, &mut found.ids, &mut found.distances)?;
        Ok(found)
    }

    /// As [`search`](Self::search), into memory of the caller: `ids` and `distances` hold queries × `k` slots each.
    ///
    /// # Errors
    /// As [`search`](Self::search); and [`Error::WrongResultLength`] if a slice has another length.
    pub fn search_into(&self, queries: &[f32], k: usize, ids: &mut [u64], distances: &mut [f32]) -> Result<()> {
        let count = self.check_queries(queries, k)?;
        check_results(count, k, ids, distances)?;
        self.search_checked(queries, false, k, ids, distances)
    }

    fn check_queries(&self, queries: &[f32], k: usize) -> Result<usize> {
        if k == 0 {
            return Err(Error::ZeroK);
        }
        check_vectors(queries, self.dim, Input::Queries)
    }

    /// The `k` nearest *other* vectors that are found for every vector of the index, in the order of their ids: the k-NN graph. As
    /// [`search`](Self::search) for the index's own vectors, each of which is left out of its own row, by id: its duplicates are not.
    /// The places of the vectors are known from the sort, so it is cheaper than that.
    ///
    /// # Errors
    /// [`Error::ZeroK`], [`Error::ResultTooLarge`], [`Error::OutOfDeviceMemory`], and what the device's driver reports.
    pub fn self_join(&self, k: usize) -> Result<Neighbors> {
        if k == 0 {
            return Err(Error::ZeroK);
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
        // No more than there are.
        let at_most = k.min(n);
        let published = (2 * at_most).next_multiple_of(32).max(LEAST_NEIGHBOURHOOD);
        let width = self.neighbourhood.unwrap_or(published).min(n);
        let ask = Ask { queries, own, k: at_most, width };
        if at_most == k {
            self.backend.search(&ask, ids)?;
        } else {
            let mut entries = host_memory::filled(EMPTY, queries.len() / self.dim * at_most)?;
            self.backend.search(&ask, &mut entries)?;
            for (ids, entries) in ids.chunks_exact_mut(k).zip(entries.chunks_exact(at_most)) {
                ids[..at_most].copy_from_slice(entries);
                ids[at_most..].fill(EMPTY);
            }
        }
        ids.par_iter_mut().zip(distances.par_iter_mut()).with_min_len(1 << 14).for_each(|(slot, distance)| {
            if *slot == EMPTY {
                *distance = Metric::L2.worst();
            } else {
                *distance = entry::value_of(entry::key(*slot));
                *slot = u64::from(entry::payload(*slot));
            }
        });
        Ok(())
    }

    /// Vectors in the index.
    pub fn len(&self) -> usize {
        self.rows.len() / self.dim
    }

    /// True where no vector was added yet.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Components of a vector.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Shifted copies.
    pub fn shifts(&self) -> usize {
        self.shifts
    }

    /// The vectors, row-major.
    pub fn rows(&self) -> &[f32] {
        &self.rows
    }

    /// The device in use, in words: what [`Device::Auto`] chose.
    pub fn device(&self) -> String {
        self.backend.describe()
    }
}
