//! Searches from device memory to device memory, which only enqueue work on a stream: what those of all indexes have in common.
//!
//! | file | content |
//! |---|---|
//! | `staging` | padded copies of the caller's vectors, checked on the device |
//! | `workspace` | a planned search in the caller's hands, and the checks of its arguments |

pub(crate) mod staging;
#[cfg(feature = "cuda")]
pub(crate) mod workspace;

use std::ops::Range;

use cuda_std::{Ptr, PtrMut};
use warpann_kernels::flat::name_results::NameResults;

use crate::device::runtime::{Runtime, Stream};
use crate::product::gpu::VectorShape;
use crate::{Error, Result, host_memory};

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

    /// Enqueues the search of `count` queries, at most as many as were planned.
    ///
    /// # Safety
    /// Until the stream has done the work: the index does not change, `queries` has `count` vectors, `ids` and `distances` have room for count · k
    /// values, no other work uses these or this search, and they do not overlap.
    unsafe fn enqueue(
        &self,
        stream: &Stream,
        queries: Ptr<u8>,
        count: usize,
        ids: PtrMut<u64>,
        distances: PtrMut<f32>,
    ) -> Result<()> {
        let Tiles { runtime, shape, k, most } = self.tiles();
        let _current = runtime.enter()?;
        let row_bytes = shape.dim * shape.element.size();
        for first in (0..count).step_by(most) {
            let tile = most.min(count - first);
            let queries = queries.skip(first * row_bytes).take(tile * row_bytes);
            let (ids, distances) = (ids.skip(first * k).take(tile * k), distances.skip(first * k).take(tile * k));
            // SAFETY: the arrays go on to the end of the last query.
            unsafe { self.enqueue_tile(stream, queries, tile as u32, ids, distances)? };
        }
        Ok(())
    }
}

/// The number of results of a query in 32 bits.
///
/// # Errors
/// [`Error::LaunchLimit`] if it has more.
pub(crate) fn narrow_k(k: usize) -> Result<u32> {
    let (kernel, limit) = (NameResults::KERNEL.name(), u64::from(u32::MAX));
    u32::try_from(k).map_err(|_| Error::LaunchLimit { kernel, what: "k", asked: k as u64, limit })
}

/// Bytes of the caller's at `from`, in the order of `stream`, for which it waits. In words, because bytes would not be aligned for every element.
///
/// # Safety
/// `from` has these bytes when the stream arrives there.
pub(crate) unsafe fn download(
    runtime: &Runtime,
    stream: &Stream,
    from: Ptr<u8>,
    bytes: Range<usize>,
) -> Result<Vec<u32>> {
    let mut words = host_memory::zeroed::<u32>(bytes.len().div_ceil(size_of::<u32>()))?;
    let _current = runtime.enter()?;
    let to = &mut bytemuck::cast_slice_mut(&mut words)[..bytes.len()];
    // SAFETY: as the caller promises.
    unsafe { runtime.copy_to_host(stream, to, from.skip(bytes.start))? };
    Ok(words)
}
