//! The interface between [`IvfIndex`](super::IvfIndex), which checks arguments and keeps the master copy in host
//! memory, and the devices that search the index.

use super::SearchRequest;
use super::gpu::IvfDevice;
use super::view::View;
use crate::neighbors::RangeNeighbors;
use crate::vectors::VectorSlice;
use crate::{Metric, Result};

/// An exact search of rows that belong to no image.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowSearch<'a> {
    /// The metric of canonical distances.
    pub(crate) metric: Metric,
    /// The rows, of f32. At least one.
    pub(crate) rows: VectorSlice<'a>,
    /// The queries, of f32, finite, transformed as the rows are, and the options of the search, without a filter.
    pub(crate) request: SearchRequest<'a>,
}

/// The operations of a device for an inverted file. Arguments were checked: at least one query, all whole; k ≥ 1. If a
/// query is not finite, the device returns [`Error::NotFinite`](crate::Error::NotFinite) and leaves the results
/// unchanged.
pub(crate) trait IvfBackend: Send + Sync {
    /// Fills `ids` and `distances` (queries × k, both) with the k best vectors of the probed lists by (canonical
    /// distance, lower id), and the remaining slots with [`NONE`](crate::NONE) and the worst distance.
    fn search(
        &self,
        view: &View<'_>,
        request: &SearchRequest<'_>,
        k: usize,
        ids: &mut [u64],
        distances: &mut [f32],
    ) -> Result<()>;

    /// Finds all vectors of the probed lists whose canonical distance is at most `radius` (similarity: at least), which
    /// is not NaN. The results of each query are best first, equal distances by lower id.
    fn range_search(&self, view: &View<'_>, request: &SearchRequest<'_>, radius: f32) -> Result<RangeNeighbors>;

    /// Fills `ids` and `distances` (queries × k, both) with the numbers of the k best rows by (canonical distance,
    /// lower number), and the remaining slots with [`NONE`](crate::NONE) and the worst distance.
    fn search_rows(&self, search: RowSearch<'_>, k: usize, ids: &mut [u64], distances: &mut [f32]) -> Result<()>;

    /// This back end, if it is one device.
    fn as_device(&self) -> Option<&IvfDevice> {
        None
    }

    /// A back end for a snapshot of the index. It has the images of this one, and shares their memory until one of the
    /// two updates them.
    fn snapshot(&self) -> Box<dyn IvfBackend>;

    /// A description of the device.
    fn describe(&self) -> String;
}
