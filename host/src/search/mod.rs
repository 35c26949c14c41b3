//! Searches from device memory to device memory, which only enqueue work on a stream: what those of all indexes have in common.
//!
//! | file | content |
//! |---|---|
//! | `download` | the caller's vectors in host memory |
//! | `staging` | padded copies of the caller's vectors, checked on the device |
//! | `workspace` | a planned search in the caller's hands, and the checks of its arguments |

#[cfg(any(feature = "cuda", test))]
pub(crate) mod download;
pub(crate) mod staging;
#[cfg(feature = "cuda")]
pub(crate) mod workspace;

use cuda_std::{Ptr, PtrMut};
use warpann_kernels::flat::name_results::NameResults;

use crate::device::runtime::{Runtime, Stream};
use crate::product::gpu::VectorShape;
use crate::{Error, Result};

/// The tiles of a planned search.
pub(crate) struct Tiles<'a> {
    pub(crate) runtime: &'a Runtime,
    /// The shape of vectors.
    pub(crate) shape: VectorShape,
    /// Number of results of a query.
    pub(crate) k: usize,
    /// Largest number of queries of a tile.
    pub(crate) most: usize,
}

/// A planned search, with its device memory.
pub(crate) trait Enqueue: Send + Sync {
    /// Bytes of device memory that the search has for itself.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "workspaces and tests ask for it"))]
    fn bytes(&self) -> u64;

    /// How queries are divided into tiles.
    fn tiles(&self) -> Tiles<'_>;

    /// Enqueues the search of `count` queries of one tile.
    ///
    /// # Safety
    /// As [`enqueue`](Self::enqueue); the device is current.
    unsafe fn enqueue_tile(
        &self,
        stream: &Stream,
        queries: Ptr<u8>,
        count: u32,
        ids: PtrMut<u64>,
        distances: PtrMut<f32>,
    ) -> Result<()>;

    /// Enqueues the end of a range search of one tile, after [`enqueue_tile`](Self::enqueue_tile) of the same queries: empties the slots beyond the
    /// radius, and writes the number of vectors within it for each query.
    ///
    /// # Errors
    /// [`Error::StaleWorkspace`] if the search is of a kind that has no range search; errors of the device's driver.
    ///
    /// # Safety
    /// As [`enqueue_tile`](Self::enqueue_tile), with the same results; `range` has a count for each of the queries.
    unsafe fn enqueue_range(
        &self,
        _stream: &Stream,
        _count: u32,
        _ids: PtrMut<u64>,
        _distances: PtrMut<f32>,
        _range: Range,
    ) -> Result<()> {
        Err(Error::StaleWorkspace)
    }

    /// Enqueues the search of `count` queries, at most as many as were planned. With a range, the results are those within its radius.
    ///
    /// # Safety
    /// Until the stream has done the work: the index does not change, `queries` has `count` vectors, `ids` and `distances` have room for count · k
    /// values and the range for a count of each query, no other work uses these or this search, and they do not overlap.
    unsafe fn enqueue(
        &self,
        stream: &Stream,
        queries: Ptr<u8>,
        count: usize,
        (ids, distances): (PtrMut<u64>, PtrMut<f32>),
        range: Option<Range>,
    ) -> Result<()> {
        let Tiles { runtime, shape, k, most } = self.tiles();
        let _current = runtime.enter()?;
        let row_bytes = shape.dim * shape.element.size();
        for first in (0..count).step_by(most) {
            let tile = most.min(count - first);
            let queries = queries.skip(first * row_bytes).take(tile * row_bytes);
            let (ids, distances) = (ids.skip(first * k).take(tile * k), distances.skip(first * k).take(tile * k));
            // SAFETY: the arrays go on to the end of the last query.
            unsafe {
                self.enqueue_tile(stream, queries, tile as u32, ids, distances)?;
                if let Some(Range { radius, counts }) = range {
                    let range = Range { radius, counts: counts.skip(first).take(tile) };
                    self.enqueue_range(stream, tile as u32, ids, distances, range)?;
                }
            };
        }
        Ok(())
    }
}

/// The radius of a range search, not NaN, and the place for a count of each query.
#[derive(Clone, Copy)]
pub(crate) struct Range {
    pub radius: f32,
    pub counts: PtrMut<u32>,
}

/// The number of results of a query in 32 bits.
///
/// # Errors
/// [`Error::LaunchLimit`] if it has more.
pub(crate) fn narrow_k(k: usize) -> Result<u32> {
    let (kernel, limit) = (NameResults::KERNEL.name(), u64::from(u32::MAX));
    u32::try_from(k).map_err(|_| Error::LaunchLimit { kernel, what: "k", asked: k as u64, limit })
}
