//! The interface of a kind for [`Index`], one trait for each file of a kind. The shell has checked what no kind must
//! see: vectors are whole, ids are as many as vectors, different and not reserved, k is at least 1, results have their
//! length, and a radius is a number.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;

use crate::io::Open;
#[cfg(feature = "cuda")]
use crate::search::PlannedSearch;
#[cfg(feature = "cuda")]
use crate::search::workspace::{OnGpu, PlannedVersion};
use crate::search_options::GroupedSearch;
#[cfg(feature = "cuda")]
use crate::select::device::CUstream;
#[cfg(feature = "cuda")]
use crate::views::DeviceVectors;
use crate::{Bitset, Element, Metric, Placement, RangeNeighbors, Result, SearchOptions, SearchStatistics, Watch};

/// The results of one search: what it did, except the number of accepted vectors, and the bits of these vectors if not
/// all are accepted.
pub type Searched<'a> = (SearchStatistics, Option<Cow<'a, Bitset>>);

/// The vectors of an index and its properties.
pub trait Stored: Send + Sync + Sized {
    /// Type of the components of vectors.
    type Element: Element;
    /// The name of the kind in messages, such as `FlatIndex`.
    const NAME: &'static str;

    fn dim(&self) -> usize;
    fn metric(&self) -> Metric;
    /// Describes the devices in words.
    fn device(&self) -> String;
    fn len(&self) -> usize;
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    fn contains(&self, id: u64) -> bool;
    /// An id of these, which ascend, that the index has.
    fn find_any(&self, ids: &[u64]) -> Option<u64> {
        ids.iter().copied().find(|&id| self.contains(id))
    }
    /// The ids in ascending order.
    fn ids(&self) -> Vec<u64>;
    /// A number that identifies the ids ([`crate::ids::stamp`]).
    fn stamp(&self) -> u64;
    fn greatest_id(&self) -> Option<u64>;
    /// Names the kind, and of an approximate one everything on which searches depend, except the vectors.
    fn identity(&self) -> Result<String>;
    /// Fields of the kind for debugging.
    fn describe(&self, to: &mut fmt::DebugStruct<'_, '_>);
    fn snapshot(&self) -> Self;
    /// Writes the components of a vector to `to`.
    fn reconstruct_into(&self, id: u64, to: &mut [f32]) -> Result<()>;
}

/// The changes of an index.
pub trait Changed: Stored {
    /// Adds vectors, with new ids or with ids that count up.
    fn add(&mut self, rows: &[Self::Element], ids: Option<&[u64]>, watch: &Watch<'_>) -> Result<()>;
    /// Adds vectors, and replaces those whose ids the index has, of which there are some.
    fn replace(&mut self, rows: &[Self::Element], ids: &[u64]) -> Result<()>;
    /// Removes the vectors with these ids, which ascend.
    ///
    /// # Errors
    /// [`Error::UnknownId`](crate::Error::UnknownId) for the first that the index does not have; then nothing was
    /// removed.
    fn remove(&mut self, ids: &[u64]) -> Result<()>;
    fn clear(&mut self);
    fn merge(&mut self, other: &Self) -> Result<()>;
    fn compact(&mut self) -> Result<()>;
    fn move_to(&mut self, placement: Placement) -> Result<()>;
}

/// Searches from host memory.
pub trait Searching: Stored {
    /// Checks that the index can be searched for these queries, whole vectors, by a public method `call`.
    fn check_queries(&self, queries: &[Self::Element], call: &'static str) -> Result<()>;
    /// Fills `ids` and `distances`, k for each query, and cuts no radius.
    fn search<'a>(
        &'a self,
        queries: &[Self::Element],
        k: usize,
        options: &SearchOptions<'a>,
        results: (&mut [u64], &mut [f32]),
    ) -> Result<Searched<'a>>;
    /// As [`search`](Self::search) of groups of queries in one call. `None` if they share nothing; the results are then
    /// as before.
    fn search_groups(
        &self,
        _search: &GroupedSearch<'_, Self::Element>,
        _results: (&mut [u64], &mut [f32]),
    ) -> Result<Option<SearchStatistics>> {
        Ok(None)
    }
    /// Whether groups with filters of their own take less time in one call than in as many calls at the same time.
    fn shares_filters(&self) -> bool {
        false
    }
    /// Whether the results of a search for fewer neighbours are the first ones of a search for more, with these
    /// options.
    fn prefixes(&self, options: &SearchOptions<'_>) -> bool;
    /// As [`search`](Self::search) without options. An exact index has a way of its own, so that a program without
    /// filters has no code of filters.
    fn search_plainly(&self, queries: &[Self::Element], k: usize, results: (&mut [u64], &mut [f32])) -> Result<()> {
        self.search(queries, k, &SearchOptions::new(), results).map(drop)
    }
    /// The vectors within a radius of each query.
    fn range_search(
        &self,
        queries: &[Self::Element],
        radius: f32,
        options: &SearchOptions<'_>,
    ) -> Result<RangeNeighbors>;
    /// The number that searches of all vectors have as their effort, and the name of such a search in errors; `None` if
    /// searches are exact.
    fn most_effort(&self) -> Option<(usize, &'static str)>;
    /// As [`search`](Self::search) of all vectors, with most effort.
    fn search_all(&self, queries: &[Self::Element], k: usize, results: (&mut [u64], &mut [f32])) -> Result<()>;
    /// The options of searches with this effort.
    fn with_effort(&self, effort: usize) -> SearchOptions<'static>;
    /// Makes this the effort of searches whose options set none. Returns the one that was set, which may be greater.
    fn set_effort(&mut self, effort: usize) -> usize;
    /// The components that the index would return for these vectors, if it held them.
    fn kept(&self, vectors: &[Self::Element]) -> Result<Vec<f32>>;
}

/// The file of an index.
pub trait Filed: Stored {
    fn save(&self, path: &Path, watch: &Watch<'_>) -> Result<()>;
    fn to_bytes(&self) -> Result<Vec<u8>>;
    fn load(path: &Path, placement: Placement, budget: Option<u64>, how: Open) -> Result<Self>;
    fn from_bytes(bytes: &[u8], placement: Placement, budget: Option<u64>) -> Result<Self>;
}

/// Searches whose queries and results are in the memory of a GPU, and vectors from there.
#[cfg(feature = "cuda")]
pub trait OnDevice: Stored {
    /// The GPU of the index.
    ///
    /// # Errors
    /// [`Error::NotInDeviceMemory`](crate::Error::NotInDeviceMemory) unless the index is on one GPU.
    fn on_gpu(&self) -> Result<OnGpu<'_>>;
    fn planned_version(&self) -> PlannedVersion;
    /// Plans searches of up to `queries` queries for `k` neighbours, on the GPU of the index.
    fn plan(&self, queries: usize, k: usize, options: &SearchOptions<'_>) -> Result<PlannedSearch>;
    /// Adds vectors that are in device memory, if they need not pass through the host. Returns whether it did. The ids
    /// were checked.
    ///
    /// # Safety
    /// As [`Index::add_device`](super::Index::add_device).
    unsafe fn add_on_device(
        &mut self,
        _stream: CUstream,
        _rows: &DeviceVectors<Self::Element>,
        _ids: Option<&[u64]>,
    ) -> Result<bool> {
        Ok(false)
    }
}

/// Without the feature `cuda` no index is on a GPU.
#[cfg(not(feature = "cuda"))]
pub trait OnDevice {}

#[cfg(not(feature = "cuda"))]
impl<K: Stored> OnDevice for K {}
