//! The index: what all kinds have in common, and what a kind must have.
//!
//! [`Index`] has the methods of every index once. A kind ([`Kind`]) has the vectors, and is a folder with its data:
//! exact search in `flat`, inverted files in `ivf`, graphs in `graph`. Public code names an index by its alias:
//! [`FlatIndex`](crate::FlatIndex), [`IvfIndex`](crate::IvfIndex), [`GraphIndex`](crate::GraphIndex),
//! [`AnyIndex`](crate::AnyIndex).

#[cfg(feature = "cuda")]
mod device;
pub(crate) mod each;
pub(crate) mod kind;
pub(crate) mod private;
#[cfg(test)]
mod tests;
mod tune;

use std::borrow::Cow;
use std::fmt;
use std::path::Path;

pub use self::kind::IndexKind;
pub use self::tune::recall;
pub(crate) use self::tune::{check_truth, smallest};
use crate::ids::ascending;
use crate::io::Open;
use crate::neighbors::cut_off;
use crate::validate::{check_length, check_radius, check_results, check_whole};
use crate::{
    Bitset, Element, Error, Filter, Metric, NONE, Neighbors, Placement, RangeNeighbors, Result, SearchOptions,
    SearchStatistics, Watch, host_memory,
};

/// An index of vectors of one dimension, element type and metric, of one [`Kind`].
///
/// Programs use it by the names of its kinds, which say how each searches and what its changes cost:
/// [`FlatIndex`](crate::FlatIndex), [`IvfIndex`](crate::IvfIndex), [`GraphIndex`](crate::GraphIndex), and
/// [`AnyIndex`](crate::AnyIndex) for a kind that is known at run time only. All have the methods of this page. Code for
/// indexes of any kind has a type parameter for the kind:
///
/// ```
/// use warpann::{Device, FlatIndex, Index, IvfIndex, Kind, Metric};
///
/// fn replaced_and_removed(index: &mut Index<impl Kind<Element = f32>>) -> warpann::Result<Vec<u64>> {
///     index.add_with_ids(&[0.0, 1.0, 2.0, 3.0], &[10, 20, 30, 40])?;
///     index.upsert(&[9.0], &[20])?;
///     index.remove(&[30])?;
///     Ok(index.search(&[2.2], 3)?.ids)
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
///
/// # Which results are exact
/// A [`FlatIndex`](crate::FlatIndex) misses no neighbour. Inverted files of whole vectors miss none in a search of all
/// lists, and a [`GraphIndex`](crate::GraphIndex) none where it compares all vectors
/// ([`exact_ratio`](crate::GraphIndexBuilder::exact_ratio) of `usize::MAX`: always). Codes change distances, not which
/// codes are found. [`SearchStatistics::exact_queries`] counts the queries of which no neighbour is missing.
///
/// # Ids
/// Ids are u64 of the caller's choice, or count up from 0. [`NONE`] is no id.
///
/// # Threads
/// An index is `Send + Sync`: any number of threads may search it at the same time. A call that fails leaves the index
/// as it was.
pub struct Index<K> {
    pub(crate) kind: K,
}

/// A kind of index: how its vectors are stored, changed and searched. The kinds of this crate are the only ones; a
/// program names the trait to write code for all of them ([`Index`]).
pub trait Kind: private::Changed + private::Searching + private::Filed + private::OnDevice {}

impl<K: private::Changed + private::Searching + private::Filed + private::OnDevice> Kind for K {}

impl<K: Kind> fmt::Debug for Index<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct(K::NAME);
        fields.field("element", &K::Element::TYPE).field("dim", &self.dim()).field("metric", &self.metric());
        fields.field("len", &self.len());
        self.kind.describe(&mut fields);
        fields.field("device", &self.device()).finish()
    }
}

/// # What it is
impl<K: Kind> Index<K> {
    pub(crate) fn of(kind: K) -> Self {
        Index { kind }
    }

    /// Number of vectors in the index.
    pub fn len(&self) -> usize {
        self.kind.len()
    }

    /// Whether the index has no vectors.
    pub fn is_empty(&self) -> bool {
        self.kind.is_empty()
    }

    /// Number of components of a vector.
    pub fn dim(&self) -> usize {
        self.kind.dim()
    }

    /// The metric of the searches.
    pub fn metric(&self) -> Metric {
        self.kind.metric()
    }

    /// Describes the devices in use: the choice of [`Device::Auto`](crate::Device::Auto), for the CPU threads and
    /// instruction set, and which devices have failed.
    pub fn device(&self) -> String {
        self.kind.device()
    }

    /// Whether the index has a vector with this id. O(log len); for inverted files O(len) in the first call after very
    /// many vectors were added.
    pub fn contains(&self, id: u64) -> bool {
        self.kind.contains(id)
    }

    /// All ids, ascending: bit r of a filter stands for the r-th id. O(len).
    pub fn ids(&self) -> Vec<u64> {
        self.kind.ids()
    }

    /// The greatest id, from which the ids of [`add`](Self::add) count up; `None` if the index has no vectors. O(1).
    pub fn greatest_id(&self) -> Option<u64> {
        self.kind.greatest_id()
    }

    /// A filter that lets a search return only the vectors whose ids `keep` accepts. It is for the ids that the index
    /// holds now: searches refuse it after ids were added or removed ([`Error::StaleFilter`]), and accept it again when
    /// the ids are the same again. Another index with the same ids accepts it too. [`Filter`](crate::Filter) has other
    /// forms, which are never stale. O(len).
    pub fn filter(&self, keep: impl FnMut(u64) -> bool) -> Bitset {
        self.kind.ids().into_iter().map(keep).collect::<Bitset>().for_ids(self.kind.stamp())
    }

    /// The components of the vector with this id as f32, which holds the values of every element type: those that were
    /// added, or, in an index of codes, those of the vector that the code stands for (under cosine of a vector of
    /// length 1). Distances of a search are from this vector. O(log len + dim), O(dim²) with a rotation.
    ///
    /// # Errors
    /// [`Error::UnknownId`], and the errors of the device's driver.
    pub fn reconstruct(&self, id: u64) -> Result<Vec<f32>> {
        let mut vector = host_memory::zeroed(self.dim())?;
        self.kind.reconstruct_into(id, &mut vector)?;
        Ok(vector)
    }

    /// As [`reconstruct`](Self::reconstruct) for many ids, into the caller's memory: `dim` components for each id, in
    /// the order of `ids`.
    ///
    /// # Errors
    /// As [`reconstruct`](Self::reconstruct); [`Error::WrongLength`] if `to` has another length. `to` may then have
    /// some of the vectors.
    pub fn reconstruct_into(&self, ids: &[u64], to: &mut [f32]) -> Result<()> {
        check_length("components", ids.len().saturating_mul(self.dim()), to.len())?;
        ids.iter().zip(to.chunks_exact_mut(self.dim())).try_for_each(|(&id, to)| self.kind.reconstruct_into(id, to))
    }
}

/// # Changes
impl<K: Kind> Index<K> {
    /// Appends the vectors of `rows`, row-major, `dim` components each. Their ids count up from 0, or from one past the
    /// greatest id in the index.
    ///
    /// Cost: exact search O(rows · dim), inverted files O(rows · lists · dim), a graph a walk and O(degree² · dim) for
    /// each vector, or a new graph if the new vectors are more than the old ones.
    ///
    /// # Errors
    /// As [`add_with_ids`](Self::add_with_ids); [`Error::ReservedId`] if there are not enough ids above the greatest
    /// one.
    pub fn add(&mut self, rows: &[K::Element]) -> Result<()> {
        self.add_watched(rows, None, &Watch::none())
    }

    /// Adds the vectors of `rows`, row-major, with one id for each: any numbers except [`NONE`], all different. The
    /// cost is that of [`add`](Self::add) if the ids lie above those in the index, or come back after they were
    /// removed. An id between others makes an exact index or a graph arrange all vectors anew, O(len · dim) with memory
    /// for a second index, and inverted files number them anew, O(len). So add many of such ids in one call.
    ///
    /// # Errors
    /// [`Error::NotTrained`]; [`Error::WrongLength`], [`Error::ReservedId`], [`Error::DuplicateId`] if the index has an
    /// id or it occurs twice; [`Error::Ragged`]; [`Error::NotFinite`], and for codes [`Error::DoesNotFit`], with the
    /// first bad component (row within `rows`); [`Error::TooMany`], [`Error::OutOfHostMemory`],
    /// [`Error::OutOfDeviceMemory`], and errors of the device's driver.
    pub fn add_with_ids(&mut self, rows: &[K::Element], ids: &[u64]) -> Result<()> {
        self.add_watched(rows, Some(ids), &Watch::none())
    }

    /// As [`add`](Self::add), or as [`add_with_ids`](Self::add_with_ids) if there are ids, with a [`Watch`]. With a
    /// callback, vectors are added in parts; inverted files of whole vectors copy those of the call once more, and a
    /// graph copies its vectors and edges, because it may have to bring them back.
    ///
    /// # Errors
    /// As the call without a watch; [`Error::Cancelled`]. The index is then as it was.
    pub fn add_watched(&mut self, rows: &[K::Element], ids: Option<&[u64]>, watch: &Watch<'_>) -> Result<()> {
        add_checked(&mut self.kind, rows, ids, watch)
    }

    /// Adds the vectors of `rows` as [`add_with_ids`](Self::add_with_ids), and replaces those whose ids the index has.
    /// Returns the number of replaced vectors. A replaced vector costs as much as a new one.
    ///
    /// # Errors
    /// As [`add_with_ids`](Self::add_with_ids), but an id that the index has is no error. The index is then as it was,
    /// unless its device refuses all further work: then vectors that were to be replaced may have the new values.
    pub fn upsert(&mut self, rows: &[K::Element], ids: &[u64]) -> Result<usize> {
        let known =
            check_ids(check_whole(rows, self.dim())?, ids)?.iter().filter(|&&id| self.kind.contains(id)).count();
        if known == 0 {
            self.kind.add(rows, Some(ids), &Watch::none())?;
        } else {
            self.kind.replace(rows, ids)?;
        }
        Ok(known)
    }

    /// Removes the vectors with these ids, in any order. O(ids · log len) amortised: the rows of removed vectors in an
    /// exact index or a graph stay until they are a quarter of all, and then the others move together.
    ///
    /// # Errors
    /// [`Error::UnknownId`] for the least of `ids` that the index does not have, [`Error::DuplicateId`] if `ids` has
    /// one twice; [`Error::OutOfHostMemory`].
    pub fn remove(&mut self, ids: &[u64]) -> Result<()> {
        let sorted = ascending(ids)?;
        if sorted.is_empty() { Ok(()) } else { self.kind.remove(&sorted) }
    }

    /// Removes the vectors with these ids as [`remove`](Self::remove), and skips ids that the index does not have.
    /// Returns the number of removed vectors.
    ///
    /// # Errors
    /// [`Error::DuplicateId`] if `ids` has one twice; [`Error::OutOfHostMemory`].
    pub fn remove_if_present(&mut self, ids: &[u64]) -> Result<usize> {
        let mut present = ascending(ids)?.into_owned();
        present.retain(|&id| self.kind.contains(id));
        if !present.is_empty() {
            self.kind.remove(&present)?;
        }
        Ok(present.len())
    }

    /// Removes all vectors. The training and the settings stay.
    pub fn clear(&mut self) {
        self.kind.clear();
    }

    /// Adds the vectors of `other`, with their ids, to this index. Inverted files must have the same training: for
    /// example, build several indexes with the same settings and seed, train them on the same vectors, and add a part
    /// of the base to each. O(len of both · dim) at most.
    ///
    /// # Errors
    /// [`Error::Incompatible`] if dimension, metric or training differ; as [`add_with_ids`](Self::add_with_ids).
    pub fn merge(&mut self, other: &Self) -> Result<()> {
        self.kind.merge(&other.kind)
    }

    /// Moves the vectors together that are left after removals, so that their memory is free, and replaces edges to
    /// removed ones. [`remove`](Self::remove) does so by itself when it pays. Inverted files put the codes of each list
    /// in one place, if changes after snapshots have scattered them; scans on the CPU then copy nothing. O(len ·
    /// dim).
    ///
    /// # Errors
    /// [`Error::OutOfHostMemory`], [`Error::OutOfDeviceMemory`], and errors of the device's driver.
    pub fn compact(&mut self) -> Result<()> {
        self.kind.compact()
    }

    /// Moves the index to other devices through host memory: to more or fewer replicas or shards, or away from a device
    /// that has failed. During the move an exact index or a graph exists in both places; devices make their images of
    /// inverted files at the next search. On error the index stays in its place. O(len · dim).
    ///
    /// ```
    /// use warpann::{Device, IvfIndex};
    ///
    /// let base: Vec<f32> = (0..100).map(|i| i as f32).collect();
    /// let mut index = IvfIndex::<f32>::builder(1, 4).device(Device::Cpu).build()?;
    /// index.train(&base)?;
    /// index.add(&base)?;
    /// let found = index.search(&[50.2], 3)?;
    /// index.move_to("cpu+cpu,cpu+cpu".parse::<warpann::Placement>()?)?;
    /// assert_eq!(index.search(&[50.2], 3)?, found);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of opening the devices (see [`FlatIndexBuilder::build`](crate::FlatIndexBuilder::build)) and of
    /// [`add`](Self::add); [`Error::ShardLost`] if no device is left that has some of the vectors.
    pub fn move_to(&mut self, device: impl Into<Placement>) -> Result<()> {
        self.kind.move_to(device.into())
    }

    /// An index of its own with the vectors and the settings of now, on the same devices. Later changes of one of the
    /// two do not show in the other, so searches of the snapshot go on while this index changes.
    /// [`IndexWriter`](crate::IndexWriter) does so for many threads.
    ///
    /// O(devices). The two share all memory, also that of the devices, until one of them changes. The first change of
    /// either copies what it changes: a removal from an exact index or a graph O(len / 64), until rows move, any other
    /// change of these all vectors and edges; inverted files copy the codes that change, and the ids of their lists. So
    /// a snapshot before each of many small changes costs a copy for each; several changes after one snapshot cost one.
    /// The first search of inverted files on a GPU after that copies the image of the index within the memory of the
    /// device, as long as both indexes exist.
    ///
    /// ```
    /// use warpann::{Device, FlatIndex, Metric};
    ///
    /// let mut index = FlatIndex::<f32>::new(1, Metric::L2, Device::Cpu)?;
    /// index.add(&[0.0, 1.0, 2.0])?;
    /// let before = index.snapshot();
    /// index.remove(&[1])?;
    /// assert_eq!(before.search(&[1.1], 2)?.ids, [1, 2]);
    /// assert_eq!(index.search(&[1.1], 2)?.ids, [2, 0]);
    /// # Ok::<(), warpann::Error>(())
    /// ```
    pub fn snapshot(&self) -> Self {
        Index::of(self.kind.snapshot())
    }
}

/// As [`Index::add_watched`].
pub(crate) fn add_checked<K: private::Changed>(
    kind: &mut K,
    rows: &[K::Element],
    ids: Option<&[u64]>,
    watch: &Watch<'_>,
) -> Result<()> {
    if let Some(ids) = ids {
        check_new(kind, check_whole(rows, kind.dim())?, ids)?;
    }
    kind.add(rows, ids, watch)
}

/// Checks the ids of `count` new vectors: as [`check_ids`], and the index has none of them.
fn check_new<K: private::Stored>(kind: &K, count: usize, ids: &[u64]) -> Result<()> {
    match kind.find_any(&check_ids(count, ids)?) {
        Some(id) => Err(Error::DuplicateId { id }),
        None => Ok(()),
    }
}

/// Checks the ids of `count` vectors: one for each, different, not reserved. Returns them, ascending.
fn check_ids(count: usize, ids: &[u64]) -> Result<Cow<'_, [u64]>> {
    check_length("ids", count, ids.len())?;
    let sorted = ascending(ids)?;
    if sorted.last() == Some(&NONE) { Err(Error::ReservedId) } else { Ok(sorted) }
}

/// # Searches
impl<K: Kind> Index<K> {
    /// Finds the `k` best vectors of each query (`queries`: row-major, `dim` components each), best first, equal
    /// distances by lower id, with the settings of the index. If fewer than `k` vectors are found, the row ends in
    /// [`NONE`] and [`Metric::worst`]. No queries and an empty index are legal.
    ///
    /// # Errors
    /// [`Error::NotTrained`], [`Error::Zero`], [`Error::Ragged`], [`Error::NotFinite`] with query and column,
    /// [`Error::ResultTooLarge`], [`Error::OutOfHostMemory`], [`Error::OutOfDeviceMemory`], and the errors of the
    /// device's driver. On several devices also [`Error::DeviceFailed`], after which the index continues without the
    /// device, and [`Error::ShardLost`] when it cannot continue, until it moves to other devices
    /// ([`move_to`](Self::move_to)).
    pub fn search(&self, queries: &[K::Element], k: usize) -> Result<Neighbors> {
        let count = self.check_search(queries, k, &SearchOptions::new())?;
        let mut found = Neighbors::none(self.metric(), count, k)?;
        self.kind.search_plainly(queries, k, (&mut found.ids, &mut found.distances))?;
        Ok(found)
    }

    /// As [`search`](Self::search) for one query, which has exactly `dim` components. Vectors of another index, with
    /// twice as many components, are not mistaken for two queries.
    ///
    /// # Errors
    /// As [`search_with`](Self::search_with); [`Error::WrongDimension`].
    pub fn search_one(&self, query: &[K::Element], k: usize, options: &SearchOptions<'_>) -> Result<Neighbors> {
        if query.len() != self.dim() {
            return Err(Error::WrongDimension { expected: self.dim(), actual: query.len() });
        }
        self.search_with(query, k, options)
    }

    /// As [`search`](Self::search), with options. Options that a kind does not have are ignored: an exact search reads
    /// no lists and keeps no beam. Under a filter the results are among the vectors that it accepts.
    ///
    /// ```
    /// use warpann::{Device, FlatIndex, Metric, SearchOptions};
    ///
    /// let mut index = FlatIndex::<f32>::new(1, Metric::L2, Device::Cpu)?;
    /// index.add_with_ids(&[0.0, 1.0, 2.0, 3.0], &[10, 20, 30, 45])?;
    /// let tens = index.filter(|id| id % 10 == 0);
    /// let options = SearchOptions::new().filter(&tens);
    /// assert_eq!(index.search_with(&[2.9], 2, &options)?.ids, [30, 20]);
    /// index.remove(&[30])?;
    /// assert_eq!(index.search(&[2.9], 2)?.ids, [45, 20]);
    /// # Ok::<(), warpann::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`search`](Self::search), and [`Error::WrongLength`] or [`Error::StaleFilter`] for a filter,
    /// [`Error::Mismatch`] for filters for each query inside of each other, [`Error::BadNumber`] for a radius.
    pub fn search_with(&self, queries: &[K::Element], k: usize, options: &SearchOptions<'_>) -> Result<Neighbors> {
        Ok(self.found(queries, k, options)?.0)
    }

    /// As [`search_with`](Self::search_with), and says what the search did. Counting the accepted vectors takes O(len /
    /// 64).
    ///
    /// # Errors
    /// As [`search_with`](Self::search_with).
    pub fn search_with_statistics(
        &self,
        queries: &[K::Element],
        k: usize,
        options: &SearchOptions<'_>,
    ) -> Result<(Neighbors, SearchStatistics)> {
        let (found, (statistics, among)) = self.found(queries, k, options)?;
        let accepted = match (among, options.filter) {
            (None, Some(Filter::Each(_))) => statistics.accepted,
            (among, _) => among.map_or(self.len(), |among| among.count_ones()) as u64,
        };
        Ok((found, SearchStatistics { accepted, ..statistics }))
    }

    fn found<'a>(
        &'a self,
        queries: &[K::Element],
        k: usize,
        options: &SearchOptions<'a>,
    ) -> Result<(Neighbors, private::Searched<'a>)> {
        let count = self.check_search(queries, k, options)?;
        let mut found = Neighbors::none(self.metric(), count, k)?;
        let searched = self.search_checked(queries, k, options, (&mut found.ids, &mut found.distances))?;
        Ok((found, searched))
    }

    /// As [`search_with`](Self::search_with), into the caller's memory: `ids` and `distances` have queries × `k` slots
    /// each.
    ///
    /// # Errors
    /// As [`search_with`](Self::search_with); and [`Error::WrongLength`] if a slice has another length.
    pub fn search_into(
        &self,
        queries: &[K::Element],
        k: usize,
        options: &SearchOptions<'_>,
        ids: &mut [u64],
        distances: &mut [f32],
    ) -> Result<()> {
        let count = self.check_search(queries, k, options)?;
        check_results(count, k, ids, distances)?;
        self.search_checked(queries, k, options, (ids, distances)).map(drop)
    }

    /// Checks the arguments of a search. Returns the number of queries.
    fn check_search(&self, queries: &[K::Element], k: usize, options: &SearchOptions<'_>) -> Result<usize> {
        if k == 0 {
            return Err(Error::Zero { what: "k" });
        }
        options.check_radius()?;
        let count = check_whole(queries, self.dim())?;
        self.kind.check_queries(queries, "search")?;
        Ok(count)
    }

    fn search_checked<'a>(
        &'a self,
        queries: &[K::Element],
        k: usize,
        options: &SearchOptions<'a>,
        (ids, distances): (&mut [u64], &mut [f32]),
    ) -> Result<private::Searched<'a>> {
        let results = (&mut *ids, &mut *distances);
        let searched = match options.filter {
            Some(Filter::Each(filters)) => {
                (each::search_each(&self.kind, queries, k, options, filters, results)?, None)
            }
            _ => self.kind.search(queries, k, options, results)?,
        };
        cut_off(self.metric(), options.radius, k, ids, distances);
        Ok(searched)
    }

    /// Finds all vectors whose distance from a query is at most `radius` (similarity: at least), best first, equal
    /// distances by lower id. An exact index and a graph compare all vectors, O(queries · len · dim); inverted files
    /// those in the probed lists. Under [`Metric::L2`] the radius is a squared distance, as all distances are.
    ///
    /// # Errors
    /// [`Error::NotTrained`], [`Error::BadNumber`] for NaN, [`Error::Zero`], [`Error::WrongLength`],
    /// [`Error::StaleFilter`], [`Error::Ragged`], [`Error::NotFinite`] with query and column,
    /// [`Error::OutOfHostMemory`], [`Error::OutOfDeviceMemory`], and the errors of the device's driver.
    pub fn range_search(
        &self,
        queries: &[K::Element],
        radius: f32,
        options: &SearchOptions<'_>,
    ) -> Result<RangeNeighbors> {
        check_radius(radius)?;
        check_whole(queries, self.dim())?;
        self.kind.check_queries(queries, "range_search")?;
        match options.filter {
            Some(Filter::Each(filters)) => each::range_search_each(&self.kind, queries, radius, options, filters),
            _ => self.kind.range_search(queries, radius, options),
        }
    }
}

/// # Files
impl<K: Kind> Index<K> {
    /// Writes the index to a file, which gets the name `path` when it is complete. An index that was loaded from this
    /// file can be saved over it. O(bytes); an exact index and a graph need host memory for all vectors, and a graph
    /// with rows of removed vectors the time of [`compact`](Self::compact).
    ///
    /// ```
    /// use warpann::{Device, FlatIndex, Metric};
    ///
    /// let mut index = FlatIndex::<f32>::new(2, Metric::L2, Device::Cpu)?;
    /// index.add_with_ids(&[0.0, 0.0, 3.0, 4.0], &[7, 9])?;
    /// let folder = tempfile::tempdir().unwrap();
    /// let path = folder.path().join("points.index");
    /// index.save(&path)?;
    /// let loaded = FlatIndex::<f32>::load(&path, Device::Cpu, None)?;
    /// assert_eq!(loaded.search(&[3.0, 4.0], 1)?.ids, [9]);
    /// # Ok::<(), warpann::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotTrained`]; [`Error::Io`]; [`Error::OutOfHostMemory`]; errors of the device's driver.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        self.save_watched(path, &Watch::none())
    }

    /// As [`save`](Self::save), with a [`Watch`]. If it cancels, the old file stays as it was.
    ///
    /// # Errors
    /// As [`save`](Self::save); [`Error::Cancelled`].
    pub fn save_watched(&self, path: impl AsRef<Path>, watch: &Watch<'_>) -> Result<()> {
        self.kind.save(path.as_ref(), watch)
    }

    /// The bytes that [`save`](Self::save) writes. O(bytes).
    ///
    /// # Errors
    /// [`Error::NotTrained`]; [`Error::OutOfHostMemory`]; errors of the device's driver.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        self.kind.to_bytes()
    }

    /// Loads an index from a file, to search on `device` (a [`Device`](crate::Device), or a [`Placement`] over several)
    /// within `budget` bytes on each (the `memory_budget` of the builders). O(bytes): every byte is checked, and in a
    /// graph that every vector can be reached.
    ///
    /// A file above 64 MiB is mapped, and inverted files use codes and ids in the mapping until they are changed. Such
    /// a file must not be changed during the life of the index ([`Open`]). Replacing it by renaming is harmless;
    /// [`save`](Self::save) does that. [`load_with`](Self::load_with) can read files of any size into memory.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::BadFile`] with the defect of the bytes, or with [`FileDefect`](crate::FileDefect)
    /// `WrongElement` or `WrongKind` if the file has another index; [`Error::OutOfHostMemory`]; and the errors of
    /// opening the device, as in [`FlatIndexBuilder::build`](crate::FlatIndexBuilder::build).
    pub fn load(path: impl AsRef<Path>, device: impl Into<Placement>, budget: Option<u64>) -> Result<Self> {
        Self::load_with(path, device, budget, Open::Auto)
    }

    /// As [`load`](Self::load); `how` selects whether the file is read or mapped. An index that was read does not
    /// depend on its file.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_with(
        path: impl AsRef<Path>,
        device: impl Into<Placement>,
        budget: Option<u64>,
        how: Open,
    ) -> Result<Self> {
        K::load(path.as_ref(), device.into(), budget, how).map(Index::of)
    }

    /// As [`load`](Self::load), from the bytes of a file.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn from_bytes(bytes: &[u8], device: impl Into<Placement>, budget: Option<u64>) -> Result<Self> {
        K::from_bytes(bytes, device.into(), budget).map(Index::of)
    }
}
