//! The interface of a device for a flat index, and what its implementations share.

use std::ops::Range;

use super::gpu::FlatDevice;
use crate::search_options::SearchRequest;
use crate::vectors::{VectorSlice, VectorSliceMut};
use crate::{Bitset, RangeNeighbors, Result};

/// The interface of a device for a flat index. A back end knows rows by their numbers, from 0;
/// [`FlatIndex`](crate::FlatIndex) keeps their ids. The caller has checked the arguments: whole rows of the index's
/// dimension, finite components, k ≥ 1, row count within [`MAX_ROWS`](crate::validate::MAX_ROWS), at least one query
/// and one row. A filter, `among`, has one bit for each row; a search returns only rows whose bits are set, and `None`
/// means all rows.
pub(crate) trait FlatBackend: Send + Sync {
    /// A back end of its own with the same rows, on the same device, and with room for `more` rows if that costs
    /// nothing.
    fn copied(&self, more: usize) -> Result<Box<dyn FlatBackend>>;
    /// A back end without rows on the same device.
    fn emptied(&self) -> Box<dyn FlatBackend>;
    /// Appends rows. On error the back end is unchanged.
    fn add(&mut self, rows: VectorSlice<'_>) -> Result<()>;
    /// Replaces the rows with these numbers, which exist and ascend, by `rows`. On error the back end is unchanged.
    fn replace(&mut self, numbers: &[u64], rows: VectorSlice<'_>) -> Result<()>;
    /// Keeps the rows whose bits are set, in their order, and removes the others. On error the back end is unchanged.
    fn retain(&mut self, kept: &Bitset) -> Result<()>;
    /// Fills `ids` (row numbers) and `distances` (queries × k each) as
    /// [`FlatIndex::search_with`](crate::FlatIndex::search_with) promises, including empty slots.
    fn search(&self, request: &SearchRequest<'_>, k: usize, ids: &mut [u64], distances: &mut [f32]) -> Result<()>;
    /// Finds all rows whose canonical distance is at most `radius` (similarity: at least), which is not NaN. The
    /// results of each query are best first, equal distances by lower row.
    fn range_search(&self, queries: VectorSlice<'_>, radius: f32, among: Option<&Bitset>) -> Result<RangeNeighbors>;
    /// Bytes of memory that the rows take on the host and on devices, with what belongs to them.
    fn bytes(&self) -> (u64, u64);
    /// Keeps the first `len` rows; there may be fewer. Touches no device.
    fn truncate(&mut self, len: usize);
    /// Number of rows in the back end.
    fn len(&self) -> usize;
    /// This back end, if it is one device.
    fn as_device(&self) -> Option<&FlatDevice> {
        None
    }
    /// As [`as_device`](Self::as_device).
    #[cfg(feature = "cuda")]
    fn as_device_mut(&mut self) -> Option<&mut FlatDevice> {
        None
    }
    /// All rows, if they are in host memory as they were added.
    fn host_rows(&self) -> Option<VectorSlice<'_>> {
        None
    }
    /// Copies rows from row `first` on to `to`. Every row that `to` has room for exists.
    fn rows(&self, first: u64, to: VectorSliceMut<'_>) -> Result<()>;
    /// Describes the device in words.
    fn describe(&self) -> String;
}

/// The runs of ascending row numbers: the first number of each run, and the places of its numbers.
pub(super) fn runs_of(numbers: &[u64]) -> impl Iterator<Item = (usize, Range<usize>)> {
    let mut end = 0;
    numbers.chunk_by(|a, b| a + 1 == *b).map(move |run| {
        let start = end;
        end += run.len();
        (run[0] as usize, start..end)
    })
}
