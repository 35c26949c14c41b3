//! What all indexes have in common.

use std::path::Path;

use crate::{
    Bitset, Element, FlatIndex, IvfIndex, Metric, Neighbors, Placement, RangeNeighbors, Result, SearchOptions,
    SearchStatistics, Watch,
};

/// The methods that every index has, with the same meaning, for code that works with any of them.
///
/// The methods of the same names on [`FlatIndex`] and [`IvfIndex`] say what each costs and which errors it returns. An [`IvfIndex`] must be
/// trained before vectors are added.
///
/// ```
/// use warpann::{Device, FlatIndex, Index, IvfIndex, Metric, SearchOptions};
///
/// fn replaced_and_removed(index: &mut impl Index<f32>) -> warpann::Result<Vec<u64>> {
///     index.add_with_ids(&[0.0, 1.0, 2.0, 3.0], &[10, 20, 30, 40])?;
///     index.upsert(&[9.0], &[20])?;
///     index.remove(&[30])?;
///     Ok(index.search_with(&[2.2], 3, &SearchOptions::new())?.ids)
/// }
///
/// let mut flat = FlatIndex::<f32>::new(1, Metric::L2, Device::Cpu)?;
/// assert_eq!(replaced_and_removed(&mut flat)?, [40, 10, 20]);
///
/// let mut ivf = IvfIndex::<f32>::builder(1, 1).device(Device::Cpu).build()?;
/// ivf.train(&[0.0, 1.0])?;
/// assert_eq!(replaced_and_removed(&mut ivf)?, [40, 10, 20]);
/// # Ok::<(), warpann::Error>(())
/// ```
pub trait Index<T: Element>: Send + Sync + Sized {
    /// Number of vectors.
    fn len(&self) -> usize;
    /// Whether the index has no vectors.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Number of components of a vector.
    fn dim(&self) -> usize;
    /// The metric of the searches.
    fn metric(&self) -> Metric;
    /// The ids of all vectors, ascending: bit r of a filter stands for the r-th.
    fn ids(&self) -> Vec<u64>;
    /// Whether the index has a vector with this id.
    fn contains(&self, id: u64) -> bool;
    /// A filter that accepts the vectors whose ids `keep` accepts, for as long as the index holds exactly the ids of now.
    fn filter(&self, keep: impl FnMut(u64) -> bool) -> Bitset;

    /// Adds vectors, with ids that count up from 0, or from one past the greatest id.
    ///
    /// # Errors
    /// As [`FlatIndex::add`], [`IvfIndex::add`].
    fn add(&mut self, rows: &[T]) -> Result<()>;
    /// Adds vectors with ids of the caller's, which are new.
    ///
    /// # Errors
    /// As [`FlatIndex::add_with_ids`], [`IvfIndex::add_with_ids`].
    fn add_with_ids(&mut self, rows: &[T], ids: &[u64]) -> Result<()>;
    /// Adds vectors, with ids of the caller's or with ids that count up, and reports its progress to a watch, which can cancel it.
    ///
    /// # Errors
    /// As [`add`](Self::add) and [`add_with_ids`](Self::add_with_ids); [`Error::Cancelled`](crate::Error::Cancelled).
    fn add_watched(&mut self, rows: &[T], ids: Option<&[u64]>, watch: &Watch<'_>) -> Result<()>;
    /// Adds vectors, and replaces those whose ids the index has. Returns the number of replaced vectors.
    ///
    /// # Errors
    /// As [`FlatIndex::upsert`], [`IvfIndex::upsert`].
    fn upsert(&mut self, rows: &[T], ids: &[u64]) -> Result<usize>;
    /// Removes the vectors with these ids, all of which the index has.
    ///
    /// # Errors
    /// As [`FlatIndex::remove`], [`IvfIndex::remove`].
    fn remove(&mut self, ids: &[u64]) -> Result<()>;
    /// Removes the vectors with those of these ids that the index has. Returns their number.
    ///
    /// # Errors
    /// As [`FlatIndex::remove_if_present`], [`IvfIndex::remove_if_present`].
    fn remove_if_present(&mut self, ids: &[u64]) -> Result<usize>;
    /// Removes all vectors. The training and the settings stay.
    fn clear(&mut self);
    /// Adds the vectors of another index, with their ids, which are new.
    ///
    /// # Errors
    /// As [`FlatIndex::merge`], [`IvfIndex::merge`].
    fn merge(&mut self, other: &Self) -> Result<()>;

    /// An index of its own with the vectors of now, which later changes of this one do not show in. It shares memory with this index until one
    /// of the two changes.
    fn snapshot(&self) -> Self;

    /// Finds the `k` best vectors for each query.
    ///
    /// # Errors
    /// As [`FlatIndex::search_with`], [`IvfIndex::search_with`].
    fn search_with(&self, queries: &[T], k: usize, options: &SearchOptions<'_>) -> Result<Neighbors>;
    /// As [`search_with`](Self::search_with), and says what the search did.
    ///
    /// # Errors
    /// As [`search_with`](Self::search_with).
    fn search_with_statistics(
        &self,
        queries: &[T],
        k: usize,
        options: &SearchOptions<'_>,
    ) -> Result<(Neighbors, SearchStatistics)>;
    /// Finds all vectors within a radius of each query.
    ///
    /// # Errors
    /// As [`FlatIndex::range_search`], [`IvfIndex::range_search`].
    fn range_search(&self, queries: &[T], radius: f32, options: &SearchOptions<'_>) -> Result<RangeNeighbors>;
    /// The components of a vector as f32: those that were added, or those for which its code stands.
    ///
    /// # Errors
    /// As [`FlatIndex::reconstruct`], [`IvfIndex::reconstruct`].
    fn reconstruct_f32(&self, id: u64) -> Result<Vec<f32>>;

    /// Moves the index to other devices.
    ///
    /// # Errors
    /// As [`FlatIndex::move_to`], [`IvfIndex::move_to`].
    fn move_to(&mut self, device: impl Into<Placement>) -> Result<()>;
    /// Writes the index to a file.
    ///
    /// # Errors
    /// As [`FlatIndex::save`], [`IvfIndex::save`].
    fn save(&self, path: impl AsRef<Path>) -> Result<()>;
    /// Writes the index to a file, and reports its progress to a watch, which can cancel it. Then the old file stays.
    ///
    /// # Errors
    /// As [`save`](Self::save); [`Error::Cancelled`](crate::Error::Cancelled).
    fn save_watched(&self, path: impl AsRef<Path>, watch: &Watch<'_>) -> Result<()>;
    /// Loads an index from a file.
    ///
    /// # Errors
    /// As [`FlatIndex::load`], [`IvfIndex::load`].
    fn load(path: impl AsRef<Path>, device: impl Into<Placement>, budget: Option<u64>) -> Result<Self>;
    /// The bytes of the file.
    ///
    /// # Errors
    /// As [`FlatIndex::to_bytes`], [`IvfIndex::to_bytes`].
    fn to_bytes(&self) -> Result<Vec<u8>>;
    /// Loads an index from the bytes of a file.
    ///
    /// # Errors
    /// As [`FlatIndex::from_bytes`], [`IvfIndex::from_bytes`].
    fn from_bytes(bytes: &[u8], device: impl Into<Placement>, budget: Option<u64>) -> Result<Self>;
}

/// Implements the trait by the methods of the same names.
macro_rules! index {
    ($index:ident, $as_f32:expr) => {
        impl<T: $crate::Element> $crate::Index<T> for $index<T> {
            fn len(&self) -> usize {
                self.len()
            }
            fn dim(&self) -> usize {
                self.dim()
            }
            fn metric(&self) -> $crate::Metric {
                self.metric()
            }
            fn ids(&self) -> Vec<u64> {
                self.ids()
            }
            fn contains(&self, id: u64) -> bool {
                self.contains(id)
            }
            fn filter(&self, keep: impl FnMut(u64) -> bool) -> $crate::Bitset {
                self.filter(keep)
            }
            fn add(&mut self, rows: &[T]) -> $crate::Result<()> {
                self.add(rows)
            }
            fn add_with_ids(&mut self, rows: &[T], ids: &[u64]) -> $crate::Result<()> {
                self.add_with_ids(rows, ids)
            }
            fn add_watched(
                &mut self,
                rows: &[T],
                ids: Option<&[u64]>,
                watch: &$crate::Watch<'_>,
            ) -> $crate::Result<()> {
                self.add_watched(rows, ids, watch)
            }
            fn upsert(&mut self, rows: &[T], ids: &[u64]) -> $crate::Result<usize> {
                self.upsert(rows, ids)
            }
            fn remove(&mut self, ids: &[u64]) -> $crate::Result<()> {
                self.remove(ids)
            }
            fn remove_if_present(&mut self, ids: &[u64]) -> $crate::Result<usize> {
                self.remove_if_present(ids)
            }
            fn clear(&mut self) {
                self.clear();
            }
            fn merge(&mut self, other: &Self) -> $crate::Result<()> {
                self.merge(other)
            }
            fn snapshot(&self) -> Self {
                self.snapshot()
            }
            fn search_with(
                &self,
                queries: &[T],
                k: usize,
                options: &$crate::SearchOptions<'_>,
            ) -> $crate::Result<$crate::Neighbors> {
                self.search_with(queries, k, options)
            }
            fn search_with_statistics(
                &self,
                queries: &[T],
                k: usize,
                options: &$crate::SearchOptions<'_>,
            ) -> $crate::Result<($crate::Neighbors, $crate::SearchStatistics)> {
                self.search_with_statistics(queries, k, options)
            }
            fn range_search(
                &self,
                queries: &[T],
                radius: f32,
                options: &$crate::SearchOptions<'_>,
            ) -> $crate::Result<$crate::RangeNeighbors> {
                self.range_search(queries, radius, options)
            }
            fn reconstruct_f32(&self, id: u64) -> $crate::Result<Vec<f32>> {
                self.reconstruct(id).map($as_f32)
            }
            fn move_to(&mut self, device: impl Into<$crate::Placement>) -> $crate::Result<()> {
                self.move_to(device)
            }
            fn save(&self, path: impl AsRef<std::path::Path>) -> $crate::Result<()> {
                self.save(path)
            }
            fn save_watched(&self, path: impl AsRef<std::path::Path>, watch: &$crate::Watch<'_>) -> $crate::Result<()> {
                self.save_watched(path, watch)
            }
            fn load(
                path: impl AsRef<std::path::Path>,
                device: impl Into<$crate::Placement>,
                budget: Option<u64>,
            ) -> $crate::Result<Self> {
                Self::load(path, device, budget)
            }
            fn to_bytes(&self) -> $crate::Result<Vec<u8>> {
                self.to_bytes()
            }
            fn from_bytes(
                bytes: &[u8],
                device: impl Into<$crate::Placement>,
                budget: Option<u64>,
            ) -> $crate::Result<Self> {
                Self::from_bytes(bytes, device, budget)
            }
        }
    };
}

pub(crate) use index;

index!(FlatIndex, |vector| vector.into_iter().map(T::to_f32).collect());
index!(IvfIndex, |vector| vector);
