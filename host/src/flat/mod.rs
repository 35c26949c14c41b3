//! The exact index: a search compares each query with every vector and returns exactly the k best.
//!
//! This file and `changes` check arguments once for all back ends, and `device` those of searches in device memory. The module `ids` keeps the ids. The
//! back ends know only rows: `cpu`, `gpu` (GPUs and their emulator) and `grid` (several devices).

mod changes;
pub(crate) mod cpu;
#[cfg(feature = "cuda")]
pub mod device;
pub(crate) mod gpu;
pub(crate) mod grid;

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cuda_std::PtrMut;
use half::{bf16, f16};

use self::cpu::FlatCpu;
use self::gpu::FlatDevice;
use self::grid::FlatGrid;
use crate::device::lanes::Lanes;
use crate::device::open::open;
use crate::device::runtime::Runtime;
use crate::enqueued::Enqueue;
use crate::ids::row_ids::RowIds;
use crate::neighbors::cut_off;
use crate::product::gpu::VectorShape;
use crate::shards::check_queries;
pub use crate::validate::{MAX_COMPONENTS, MAX_ROWS};
use crate::validate::{check_dim, check_results};
use crate::vectors::{VectorSlice, VectorSliceMut};
use crate::{
    Bitset, Device, Element, ElementType, Error, Metric, NONE, Neighbors, Placement, RangeNeighbors, Result,
    SearchOptions, SearchStatistics, host_memory,
};

/// The interface of a device for a flat index. A back end knows rows by their numbers, from 0; [`FlatIndex`] keeps their ids. The caller has
/// checked the arguments: whole rows of the index's dimension, finite components, k ≥ 1, row count within [`MAX_ROWS`], at least one query
/// and one row. `among` has one bit for each row; a search returns only rows whose bits are set, and `None` means all rows.
pub(crate) trait FlatBackend: Send + Sync {
    /// A back end of its own with the same rows, on the same device, and with room for `more` rows if that costs nothing.
    fn copied(&self, more: usize) -> Result<Box<dyn FlatBackend>>;
    /// A back end without rows on the same device.
    fn emptied(&self) -> Box<dyn FlatBackend>;
    /// Appends rows. On error the back end is unchanged.
    fn add(&mut self, rows: VectorSlice<'_>) -> Result<()>;
    /// Replaces the rows with these numbers, which exist and ascend, by `rows`. On error the back end is unchanged.
    fn replace(&mut self, numbers: &[u64], rows: VectorSlice<'_>) -> Result<()>;
    /// Keeps the rows whose bits are set, in their order, and removes the others. On error the back end is unchanged.
    fn retain(&mut self, kept: &Bitset) -> Result<()>;
    /// Fills `ids` (row numbers) and `distances` (queries × k each) as [`FlatIndex::search_with`] promises, including empty slots.
    fn search(
        &self,
        queries: VectorSlice<'_>,
        k: usize,
        among: Option<&Bitset>,
        ids: &mut [u64],
        distances: &mut [f32],
    ) -> Result<()>;
    /// Finds all rows whose canonical distance is at most `radius` (similarity: at least), which is not NaN. The results of each query are
    /// best first, equal distances by lower row.
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

/// The rows of a flat index in the memory of a device, for kernels of other indexes.
pub(crate) struct ResidentRows<'a> {
    pub runtime: &'a Runtime,
    pub lanes: &'a Lanes,
    pub shape: VectorShape,
    /// Rows of `shape.row_bytes()` bytes, also those that removed vectors left.
    pub rows: PtrMut<u8>,
}

/// An exact nearest-neighbour index over vectors of one dimension and element type.
///
/// A search compares the query with every vector and returns exactly the `k` best by (canonical distance, lower id).
/// The canonical distances of [`crate::metric`] have the same bits on every device and in every run.
///
/// Ids are u64 of the caller's choice, or count up from 0. The index is `Send + Sync`: any number of threads may search it at the same time.
///
/// ```
/// use warpann::{Device, FlatIndex, Metric};
///
/// // Four vectors of dimension 2, row-major.
/// let base = [0.0, 0.0, 1.0, 0.0, 0.0, 2.0, 3.0, 3.0f32];
/// let mut index = FlatIndex::<f32>::builder(2).metric(Metric::L2).device(Device::Cpu).build()?;
/// index.add(&base)?;
///
/// let found = index.search(&[0.9, 0.1], 2)?;
/// assert_eq!(found.ids, [1, 0]);
/// assert!((found.distances[0] - 0.02).abs() < 1e-6);
/// # Ok::<(), warpann::Error>(())
/// ```
///
/// Bytes, half precision and other metrics work in the same way:
///
/// ```
/// use warpann::{Device, FlatIndex, Metric};
///
/// let mut index = FlatIndex::<u8>::new(3, Metric::InnerProduct, Device::Cpu)?;
/// index.add(&[1, 2, 3, 200, 100, 0])?;
/// let found = index.search(&[1, 1, 1], 1)?;
/// assert_eq!((found.ids[0], found.distances[0]), (1, 300.0));
/// # Ok::<(), warpann::Error>(())
/// ```
pub struct FlatIndex<T: Element = f32> {
    builder: FlatIndexBuilder<T>,
    /// Shared with snapshots until one of the indexes changes: [`FlatIndex::own_backend`].
    backend: Arc<dyn FlatBackend>,
    /// Shared likewise: [`FlatIndex::own_rows`].
    rows: Arc<RowIds>,
    version: Version,
}

/// A number that every index and every change of one gets anew. Equal versions mean the same index with the same vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Version(u64);

impl Version {
    fn new() -> Version {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Version(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// The number of vectors of a [`FlatIndex`], and its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct FlatStatistics {
    /// Number of vectors in the index.
    pub vectors: u64,
    /// Number of rows that removed vectors left, until [`FlatIndex::compact`].
    pub removed: u64,
    /// Bytes of host memory: vectors that are not on devices, norms, ids.
    pub host_bytes: u64,
    /// Bytes of memory on devices, over all replicas and shards.
    pub device_bytes: u64,
}

impl<T: Element> std::fmt::Debug for FlatIndex<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FlatIndex")
            .field("element", &T::TYPE)
            .field("dim", &self.dim())
            .field("metric", &self.metric())
            .field("len", &self.len())
            .field("device", &self.device())
            .finish()
    }
}

/// Settings of a [`FlatIndex`] before it is built; see [`FlatIndex::builder`].
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(transparent, bound = ""))]
pub struct FlatIndexBuilder<T: Element = f32> {
    settings: FlatSettings,
    #[cfg_attr(feature = "serde", serde(skip))]
    element: std::marker::PhantomData<T>,
}

#[cfg(feature = "serde")]
impl<'de, T: Element> serde::Deserialize<'de> for FlatIndexBuilder<T> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let settings = FlatSettings::deserialize(deserializer)?;
        if settings.element != T::TYPE {
            let message = format!("the settings are those of an index of {}, not of {}", settings.element, T::TYPE);
            return Err(serde::de::Error::custom(message));
        }
        Ok(Self { settings, element: std::marker::PhantomData })
    }
}

/// The type of an index's vectors, and the devices of the index.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
struct FlatSettings {
    element: ElementType,
    dim: usize,
    metric: Metric,
    #[cfg_attr(feature = "serde", serde(rename = "device"))]
    placement: Placement,
    #[cfg_attr(feature = "serde", serde(rename = "memory_budget"))]
    budget: Option<u64>,
}

impl<T: Element> FlatIndexBuilder<T> {
    /// Sets the metric, [`Metric::L2`] by default.
    pub fn metric(mut self, metric: Metric) -> Self {
        self.settings.metric = metric;
        self
    }

    /// Sets the [`Device`], or the [`Placement`] over several devices; [`Device::Auto`] by default.
    pub fn device(mut self, device: impl Into<Placement>) -> Self {
        self.settings.placement = device.into();
        self
    }

    /// Sets the bytes that the index may use on each of its devices; by default a share of the free memory. On a GPU
    /// this includes vectors, norms and search buffers; a base that does not fit stays on the host and is streamed. On
    /// the CPU it is the scratch memory of one search, without the vectors; even with a smaller budget a search keeps
    /// the candidates of one query.
    pub fn memory_budget(mut self, bytes: u64) -> Self {
        self.settings.budget = Some(bytes);
        self
    }

    /// Opens the device and creates an empty index on it.
    ///
    /// # Errors
    /// [`Error::Zero`], [`Error::TooManyDimensions`] above [`MAX_COMPONENTS`]; and errors of opening the
    /// device: [`Error::NoDevice`], [`Error::NoSuchDevice`], [`Error::DeviceTooOld`], [`Error::OutOfDeviceMemory`],
    /// [`Error::PtxRefused`]. [`Device::Auto`] falls back to the CPU only if there is no usable device.
    pub fn build(self) -> Result<FlatIndex<T>> {
        check_dim(self.settings.dim)?;
        let backend = self.settings.open(open_cpu_of::<T>())?.into();
        Ok(FlatIndex { builder: self, backend, rows: Arc::default(), version: Version::new() })
    }
}

impl FlatSettings {
    /// Opens the devices of the placement, with an empty back end.
    fn open(&self, open_cpu: OpenCpu) -> Result<Box<dyn FlatBackend>> {
        if let Some(device) = self.placement.single() {
            return self.open_on(device, open_cpu);
        }
        let devices = self.placement.devices().iter();
        let backends = devices.map(|&device| self.open_on(device, open_cpu)).collect::<Result<_>>()?;
        Ok(Box::new(FlatGrid::new(&self.placement, backends, self.dim, self.metric)))
    }

    fn open_on(&self, device: Device, open_cpu: OpenCpu) -> Result<Box<dyn FlatBackend>> {
        let &FlatSettings { element, dim, metric, budget, .. } = self;
        if let Some(runtime) = open(device)?.1 {
            return Ok(Box::new(FlatDevice::new(runtime, VectorShape { element, metric, dim }, budget)?));
        }
        Ok(open_cpu(dim, metric, budget))
    }
}

/// Opens the back end of the CPU for one element type.
type OpenCpu = fn(usize, Metric, Option<u64>) -> Box<dyn FlatBackend>;

/// The function that opens the CPU for vectors of `T`. A program that uses one element type has the code of that one only: the choice is made
/// where `T` is known, and the functions are compiled in this crate, with its settings.
#[inline(always)]
fn open_cpu_of<T: Element>() -> OpenCpu {
    match T::TYPE {
        ElementType::F32 => open_cpu_f32,
        ElementType::F16 => open_cpu_f16,
        ElementType::Bf16 => open_cpu_bf16,
        ElementType::U8 => open_cpu_u8,
        ElementType::I8 => open_cpu_i8,
    }
}

macro_rules! open_cpu {
    ($($name:ident: $element:ty),*) => {$(
        #[inline(never)]
        fn $name(dim: usize, metric: Metric, budget: Option<u64>) -> Box<dyn FlatBackend> {
            Box::new(FlatCpu::<$element>::new(dim, metric, budget))
        }
    )*};
}
open_cpu!(open_cpu_f32: f32, open_cpu_f16: f16, open_cpu_bf16: bf16, open_cpu_u8: u8, open_cpu_i8: i8);

impl<T: Element> FlatIndex<T> {
    /// Starts the settings of an index over vectors of `dim` components.
    pub fn builder(dim: usize) -> FlatIndexBuilder<T> {
        let (metric, placement) = (Metric::default(), Placement::default());
        FlatIndexBuilder {
            settings: FlatSettings { element: T::TYPE, dim, metric, placement, budget: None },
            element: std::marker::PhantomData,
        }
    }

    /// Creates an empty index over vectors of `dim` components, with the default memory budget.
    ///
    /// # Errors
    /// As [`FlatIndexBuilder::build`].
    pub fn new(dim: usize, metric: Metric, device: impl Into<Placement>) -> Result<Self> {
        Self::builder(dim).metric(metric).device(device).build()
    }

    /// Finds the `k` nearest vectors of each query (`queries`: row-major, `dim` components each), best first, equal
    /// distances by lower id. If the index has fewer than `k` vectors, the row ends in [`NONE`] and [`Metric::worst`].
    /// No queries and an empty index are legal. O(queries · len · dim).
    ///
    /// # Errors
    /// [`Error::Zero`], [`Error::Ragged`], [`Error::NotFinite`] with query and column,
    /// [`Error::ResultTooLarge`], [`Error::OutOfDeviceMemory`], and the errors of the device's driver. On several
    /// devices also [`Error::DeviceFailed`], after which the index continues without the device, and
    /// [`Error::ShardLost`] when it cannot continue.
    pub fn search(&self, queries: &[T], k: usize) -> Result<Neighbors> {
        // Not by `search_with`, so that a program without filters has no code of filters.
        let count = self.check_search(queries, k)?;
        let mut found = Neighbors::none(self.metric(), count, k)?;
        self.search_checked(queries, k, self.rows.live(), &mut found.ids, &mut found.distances)?;
        Ok(found)
    }

    /// As [`search`](Self::search), with options. Of these, only [`SearchOptions::filter`] and [`SearchOptions::radius`] have an effect: an exact
    /// search reads no lists.
    /// Under a filter, the results are the `k` nearest of the vectors that it accepts, or all of them if they are fewer. The cost falls with
    /// the number of accepted vectors.
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
    /// As [`search`](Self::search), and [`Error::WrongFilterLength`], [`Error::StaleFilter`], [`Error::BadRadius`].
    pub fn search_with(&self, queries: &[T], k: usize, options: &SearchOptions<'_>) -> Result<Neighbors> {
        Ok(self.search_among(queries, k, options)?.0)
    }

    /// As [`search_with`](Self::search_with), and says what the search did. Counting the accepted vectors takes O(len / 64).
    ///
    /// # Errors
    /// As [`search_with`](Self::search_with).
    pub fn search_with_statistics(
        &self,
        queries: &[T],
        k: usize,
        options: &SearchOptions<'_>,
    ) -> Result<(Neighbors, SearchStatistics)> {
        let (found, among) = self.search_among(queries, k, options)?;
        let mut statistics = SearchStatistics {
            queries: found.queries() as u64,
            accepted: among.map_or(self.len(), |among| among.count_ones()) as u64,
            ..SearchStatistics::default()
        };
        if found.queries() > 0 && !self.is_empty() {
            statistics.compared_all(found.queries());
        }
        Ok((found, statistics))
    }

    /// The results, and the rows among which they are the best.
    fn search_among<'a>(
        &'a self,
        queries: &[T],
        k: usize,
        options: &SearchOptions<'a>,
    ) -> Result<(Neighbors, Option<Cow<'a, Bitset>>)> {
        let count = self.check_search(queries, k)?;
        options.check_radius()?;
        let among = self.among(options)?;
        let mut found = Neighbors::none(self.metric(), count, k)?;
        self.search_checked(queries, k, among.as_deref(), &mut found.ids, &mut found.distances)?;
        cut_off(self.metric(), options.radius, k, &mut found.ids, &mut found.distances);
        Ok((found, among))
    }

    /// As [`search`](Self::search), into the caller's memory: `ids` and `distances` have queries × `k` slots each.
    ///
    /// # Errors
    /// As [`search`](Self::search); and [`Error::WrongLength`] if a slice has another length.
    pub fn search_into(&self, queries: &[T], k: usize, ids: &mut [u64], distances: &mut [f32]) -> Result<()> {
        let count = self.check_search(queries, k)?;
        check_results(count, k, ids, distances)?;
        self.search_checked(queries, k, self.rows.live(), ids, distances)
    }

    /// As [`search_into`](Self::search_into) among some rows, with arguments that were checked.
    pub(crate) fn search_checked(
        &self,
        queries: &[T],
        k: usize,
        among: Option<&Bitset>,
        ids: &mut [u64],
        distances: &mut [f32],
    ) -> Result<()> {
        if queries.is_empty() {
            return Ok(());
        }
        if self.is_empty() {
            ids.fill(NONE);
            distances.fill(self.metric().worst());
            return Ok(());
        }
        self.backend.search(VectorSlice::of(queries, self.dim()), k, among, ids, distances)?;
        self.rows.name(ids);
        Ok(())
    }

    /// Finds all vectors whose distance from a query is at most `radius` (similarity: at least), best first, equal distances by lower id.
    /// Of the options, only [`SearchOptions::filter`] has an effect. O(queries · len · dim).
    ///
    /// # Errors
    /// [`Error::BadRadius`] for NaN, [`Error::WrongFilterLength`], [`Error::StaleFilter`], [`Error::Ragged`], [`Error::NotFinite`]
    /// with query and column, [`Error::OutOfHostMemory`], [`Error::OutOfDeviceMemory`], and the errors of the device's driver.
    pub fn range_search(&self, queries: &[T], radius: f32, options: &SearchOptions<'_>) -> Result<RangeNeighbors> {
        if radius.is_nan() {
            return Err(Error::BadRadius);
        }
        let count = self.check_queries(queries)?;
        let among = self.among(options)?;
        if count == 0 || self.is_empty() {
            return Ok(RangeNeighbors { offsets: vec![0; count + 1], ids: Vec::new(), distances: Vec::new() });
        }
        let queries = VectorSlice::of(queries, self.dim());
        let mut found = self.backend.range_search(queries, radius, among.as_deref())?;
        self.rows.name(&mut found.ids);
        Ok(found)
    }

    /// An index of its own with the vectors and the settings of now, on the same devices. Later changes of one of the two do not show in the
    /// other, so searches of the snapshot go on while this index changes. [`IndexWriter`](crate::IndexWriter) does so for many threads.
    ///
    /// O(1). The two share all memory, also that of the devices, until one of them changes. The first change of either copies what it
    /// changes: a removal O(len / 64), until the removed vectors are a quarter of all; any other change all vectors, O(len · dim), within
    /// host memory or within the memory of a device. So a snapshot before each of many small changes costs a copy for each; several changes
    /// after one snapshot cost one.
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
    pub fn snapshot(&self) -> FlatIndex<T> {
        let (backend, rows) = (Arc::clone(&self.backend), Arc::clone(&self.rows));
        FlatIndex { builder: self.builder.clone(), backend, rows, version: Version::new() }
    }

    /// Checks k and queries. Returns the number of queries.
    pub(crate) fn check_search(&self, queries: &[T], k: usize) -> Result<usize> {
        if k == 0 {
            return Err(Error::Zero { what: "k" });
        }
        self.check_queries(queries)
    }

    fn check_queries(&self, queries: &[T]) -> Result<usize> {
        check_queries(self.builder.settings.placement.devices().len(), queries, self.dim())
    }

    /// The rows among which a search with these options looks; `None` means all.
    pub(crate) fn among<'a>(&'a self, options: &SearchOptions<'a>) -> Result<Option<Cow<'a, Bitset>>> {
        let live = self.rows.live();
        let Some(filter) = options.filter else { return Ok(live.map(Cow::Borrowed)) };
        filter.check(self.len(), || self.rows.stamp())?;
        self.rows.accepted(filter).map(Some)
    }

    /// The ids of the rows, for an index that adds to the rows.
    pub(crate) fn row_ids(&self) -> &Arc<RowIds> {
        &self.rows
    }

    /// All rows, also those that removed vectors left, if they are in host memory.
    pub(crate) fn host_rows(&self) -> Option<&[T]> {
        self.backend.host_rows().map(VectorSlice::components)
    }

    /// All rows, also those that removed vectors left, if they are in the memory of one device.
    pub(crate) fn resident_rows(&self) -> Option<ResidentRows<'_>> {
        self.backend.as_device()?.resident_rows()
    }

    /// Plans searches of up to `queries` queries for `k` of all rows, also those that removed vectors left, from device memory to device memory;
    /// ids are the numbers of rows. `None` unless the rows are in the memory of one device.
    ///
    /// # Errors
    /// [`Error::OutOfDeviceMemory`], errors of the device's driver.
    pub(crate) fn planned(&self, queries: usize, k: usize) -> Result<Option<Box<dyn Enqueue>>> {
        let Some(device) = self.backend.as_device().filter(|device| device.resident_rows().is_some()) else {
            return Ok(None);
        };
        Ok(Some(Box::new(device.plan_search(queries, k, None, None)?)))
    }

    /// The number of the index and of its vectors as they are now.
    pub(crate) fn version(&self) -> Version {
        self.version
    }

    /// Copies rows from row `first` on, which exist, to `to`.
    pub(crate) fn copy_rows(&self, first: usize, to: &mut [T]) -> Result<()> {
        self.backend.rows(first as u64, VectorSliceMut::of(to))
    }

    /// Whether the index has a vector with this id. O(log len).
    pub fn contains(&self, id: u64) -> bool {
        self.rows.find(id).is_some()
    }

    /// All ids, ascending: bit r of a filter stands for the r-th id. O(len).
    pub fn ids(&self) -> Vec<u64> {
        self.rows.live_rows().map(|row| self.rows.id(row)).collect()
    }

    /// A filter that lets a search return only the vectors whose ids `keep` accepts. It is for the ids that the index holds now: searches
    /// refuse it after ids were added or removed ([`Error::StaleFilter`]), and accept it again when the ids are the same again. Another
    /// index with the same ids accepts it too. [`Filter`](crate::Filter) has other forms, which are never stale. O(len).
    pub fn filter(&self, mut keep: impl FnMut(u64) -> bool) -> Bitset {
        let bits: Bitset = self.rows.live_rows().map(|row| keep(self.rows.id(row))).collect();
        bits.for_ids(self.rows.stamp())
    }

    /// Returns the components of the vector with this id, as they were added. O(log len + dim).
    ///
    /// # Errors
    /// [`Error::UnknownId`], and the errors of the device's driver.
    pub fn reconstruct(&self, id: u64) -> Result<Vec<T>> {
        let row = self.rows.find(id).ok_or(Error::UnknownId { id, len: self.len() as u64 })?;
        let mut vector = host_memory::zeroed(self.dim())?;
        self.backend.rows(row as u64, VectorSliceMut::of(&mut vector))?;
        Ok(vector)
    }

    /// Counts the vectors, the rows that removed vectors left, and the bytes of memory. O(devices).
    pub fn statistics(&self) -> FlatStatistics {
        let (host, device) = self.backend.bytes();
        FlatStatistics {
            vectors: self.len() as u64,
            removed: self.rows.removed() as u64,
            host_bytes: host + self.rows.bytes(),
            device_bytes: device,
        }
    }

    /// Number of vectors in the index.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether the index has no vectors.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of components of a vector.
    pub fn dim(&self) -> usize {
        self.builder.settings.dim
    }

    /// The metric set when the index was built.
    pub fn metric(&self) -> Metric {
        self.builder.settings.metric
    }

    /// Describes the device in use: the choice of [`Device::Auto`], and for the CPU threads and instruction set.
    pub fn device(&self) -> String {
        self.backend.describe()
    }
}

/// The runs of ascending row numbers: the first number of each run, and the places of its numbers.
pub(crate) fn runs_of(numbers: &[u64]) -> impl Iterator<Item = (usize, Range<usize>)> {
    let mut end = 0;
    numbers.chunk_by(|a, b| a + 1 == *b).map(move |run| {
        let start = end;
        end += run.len();
        (run[0] as usize, start..end)
    })
}

/// Bytes of vectors that move through host memory at a time.
const MOVED_BYTES: usize = 256 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Input;

    fn index(metric: Metric) -> FlatIndex<f32> {
        let mut index = FlatIndex::new(2, metric, Device::Cpu).unwrap();
        index.add(&[0.0, 0.0, 1.0, 0.0, 0.0, 2.0]).unwrap();
        index
    }

    #[test]
    fn bad_arguments_are_refused_with_the_numbers() {
        assert!(matches!(FlatIndex::<f32>::new(0, Metric::L2, Device::Cpu), Err(Error::Zero { what: "dimension" })));
        let mut index = index(Metric::L2);
        assert!(matches!(index.add(&[1.0, 2.0, 3.0]), Err(Error::Ragged { what: "components", len: 3, size: 2 })));
        assert!(matches!(index.search(&[1.0], 1), Err(Error::Ragged { what: "components", len: 1, size: 2 })));
        assert!(matches!(index.search(&[1.0, 2.0], 0), Err(Error::Zero { what: "k" })));
        assert!(matches!(
            index.search(&[1.0, 2.0], usize::MAX / 2),
            Err(Error::ResultTooLarge { queries: 1, k }) if k == usize::MAX / 2
        ));
        assert!(matches!(
            index.search(&[1.0, 2.0, 3.0, 4.0], usize::MAX),
            Err(Error::ResultTooLarge { queries: 2, k: usize::MAX })
        ));
        assert!(matches!(index.reconstruct(3), Err(Error::UnknownId { id: 3, len: 3 })));
        assert!(matches!(index.reconstruct(NONE), Err(Error::UnknownId { id: NONE, len: 3 })));
        assert!(matches!(
            index.search_into(&[1.0, 2.0], 2, &mut [0; 2], &mut [0.0; 3]),
            Err(Error::WrongLength { what: "results", expected: 2, actual: 3 })
        ));
        assert_eq!(index.len(), 3);
    }

    #[test]
    fn what_is_not_finite_is_named_by_place_and_changes_nothing() {
        let mut index = FlatIndex::<f32>::new(5, Metric::L2, Device::Cpu).unwrap();
        let mut rows = vec![1.0; 5 * 1000];
        index.add(&rows).unwrap();
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in [0, 4, 2500, 4999] {
                rows[at] = bad;
                let (add, search) = (index.add(&rows), index.search(&rows, 1).map(|_| ()));
                for (result, expected) in [(add, Input::Base), (search, Input::Queries)] {
                    match result {
                        Err(Error::NotFinite { input, row, column, value }) => {
                            assert_eq!((input, row, column), (expected, at / 5, at % 5));
                            assert_eq!(value.to_bits(), bad.to_bits());
                        }
                        other => panic!("{other:?}"),
                    }
                }
                rows[at] = 1.0;
            }
        }
        assert_eq!(index.len(), 1000);
        let mut halves = FlatIndex::<half::f16>::new(1, Metric::L2, Device::Cpu).unwrap();
        assert!(matches!(halves.add(&[half::f16::NAN]), Err(Error::NotFinite { row: 0, column: 0, .. })));
    }

    #[test]
    fn nothing_to_search_and_nothing_to_find_are_legal() {
        for metric in Metric::ALL {
            let mut empty = FlatIndex::<f32>::new(2, metric, Device::Cpu).unwrap();
            empty.add(&[]).unwrap();
            assert!(empty.is_empty());
            let found = empty.search(&[1.0, 2.0], 3).unwrap();
            assert_eq!((found.queries(), found.row(0)), (1, ([NONE; 3].as_slice(), [metric.worst(); 3].as_slice())));
            assert_eq!(found.found(0).count(), 0);

            let found = index(metric).search(&[], 3).unwrap();
            assert_eq!((found.queries(), found.rows().len()), (0, 0));

            let found = index(metric).search(&[1.0, 1.0], 5).unwrap();
            assert_eq!(found.found(0).count(), 3);
            assert_eq!(&found.ids[3..], [NONE; 2]);
            assert_eq!(&found.distances[3..], [metric.worst(); 2]);
        }
    }

    #[test]
    fn small_results_by_hand() {
        let l2 = index(Metric::L2).search(&[1.0, 1.0], 3).unwrap();
        assert_eq!((l2.ids.as_slice(), l2.distances.as_slice()), ([1, 0, 2].as_slice(), [1.0, 2.0, 2.0].as_slice()));
        let ip = index(Metric::InnerProduct).search(&[1.0, 1.0], 3).unwrap();
        assert_eq!((ip.ids.as_slice(), ip.distances.as_slice()), ([2, 1, 0].as_slice(), [2.0, 1.0, 0.0].as_slice()));
        let cosine = index(Metric::Cosine).search(&[1.0, 1.0], 3).unwrap();
        assert_eq!(cosine.ids, [1, 2, 0]);
        assert_eq!(cosine.distances, [0.5f32.sqrt(), 0.5f32.sqrt(), 0.0]);
    }

    #[test]
    fn search_into_and_reconstruct_agree_with_search_and_add() {
        let index = index(Metric::L2);
        let found = index.search(&[0.0, 1.1, 1.0, 0.1], 2).unwrap();
        let (mut ids, mut distances) = ([0; 4], [0.0; 4]);
        index.search_into(&[0.0, 1.1, 1.0, 0.1], 2, &mut ids, &mut distances).unwrap();
        assert_eq!((found.ids.as_slice(), found.distances.as_slice()), (ids.as_slice(), distances.as_slice()));
        assert_eq!(index.reconstruct(2).unwrap(), [0.0, 2.0]);
    }

    #[test]
    fn an_index_is_shared_between_threads() {
        fn shared<T: Send + Sync>() {}
        shared::<FlatIndex<f32>>();
        shared::<FlatIndex<half::bf16>>();
        assert!(index(Metric::L2).device().starts_with("cpu, "));
        assert!(format!("{:?}", index(Metric::L2)).contains("len: 3"));
    }
}
