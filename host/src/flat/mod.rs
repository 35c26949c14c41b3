//! The exact index: a search compares each query with every vector and returns exactly the k best.
//!
//! This file and `changes` check arguments once for all back ends, and `device` those of searches in device memory. The
//! module `ids` keeps the ids. The back ends (`backend`) know only rows: `cpu`, `gpu` (GPUs and their emulator) and
//! `grid` (several devices).

mod backend;
mod changes;
pub(crate) mod cpu;
#[cfg(feature = "cuda")]
mod device;
mod faiss;
mod former;
pub(crate) mod gpu;
pub(crate) mod grid;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use half::{bf16, f16};

pub(crate) use self::backend::FlatBackend;
use self::cpu::{FlatBits, FlatCpu};
pub use self::faiss::FaissBits;
use self::former::FormerRows;
pub(crate) use self::gpu::FlatDevice;
pub(crate) use self::gpu::ResidentRows;
pub(crate) use self::gpu::sets::RowSet;
use self::grid::FlatGrid;
use crate::device::open::open;
use crate::filter::FilterGroup;
use crate::ids::row_ids::RowIds;
use crate::index::Index;
use crate::index::private::{Searched, Searching, Stored};
use crate::parallel::{Loop, ParallelSlice};
use crate::product::gpu::VectorShape;
use crate::search::PlannedSearch;
use crate::search_options::{GroupedSearch, SearchRequest};
use crate::shards::check_queries;
use crate::shared::former::Former;
use crate::validate::check_dim;
pub use crate::validate::{MAX_COMPONENTS, MAX_ROWS};
use crate::vectors::{VectorSlice, VectorSliceMut};
use crate::{
    Bitset, Device, Element, ElementType, Error, Metric, NONE, Placement, RangeNeighbors, Result, SearchOptions,
    SearchStatistics, host_memory,
};

/// An exact nearest-neighbour index over vectors of one dimension and element type.
///
/// A search compares the query with every vector and returns exactly the `k` best by (canonical distance, lower id), in
/// O(queries · len · dim). Of the options, only [`SearchOptions::filter`] and [`SearchOptions::radius`] have an effect.
/// Under a filter the cost falls with the number of accepted vectors, and the results are the `k` nearest of them, or
/// all of them if they are fewer. The canonical distances of [`crate::metric`] have the same bits on every device and
/// in every run.
///
/// Ids are u64 of the caller's choice, or count up from 0. The index is `Send + Sync`: any number of threads may search
/// it at the same time.
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
///
/// Vectors of bits, eight in a byte, are compared by Hamming distance:
///
/// ```
/// use warpann::{Device, FlatIndex, Metric};
///
/// let mut index = FlatIndex::<u8>::new(2, Metric::Hamming, Device::Cpu)?;
/// index.add(&[0b1111_0000, 0, 0b1010_0000, 0b0000_0001])?;
/// let found = index.search(&[0b1010_0000, 0], 2)?;
/// assert_eq!((found.ids, found.distances), (vec![1, 0], vec![1.0, 2.0]));
/// # Ok::<(), warpann::Error>(())
/// ```
pub type FlatIndex<T = f32> = Index<Flat<T>>;

/// The vectors of a [`FlatIndex`].
pub struct Flat<T: Element> {
    builder: FlatIndexBuilder<T>,
    /// Shared with snapshots until one of the indexes changes: [`Flat::own_backend`].
    backend: Arc<dyn FlatBackend>,
    /// Shared likewise: [`Flat::own_rows`].
    rows: Arc<RowIds>,
    /// The back end of a former version, if it is in host memory.
    former: Former<FormerRows>,
    version: Version,
}

/// A number that every index and every change of one gets anew. Equal versions mean the same index with the same
/// vectors.
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
    /// Bytes of host memory: vectors that are not on devices, norms, ids, and those of a former version that the next
    /// change takes over.
    pub host_bytes: u64,
    /// Bytes of memory on devices, over all replicas and shards.
    pub device_bytes: u64,
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
    /// [`Error::Zero`], [`Error::TooMany`] above [`MAX_COMPONENTS`]; [`Error::Mismatch`] for [`Metric::Hamming`] of
    /// other vectors than u8; and errors of opening the device: [`Error::NoDevice`], [`Error::OutOfDeviceMemory`],
    /// [`Error::PtxRefused`]. [`Device::Auto`] falls back to the CPU only if there is no usable device.
    pub fn build(self) -> Result<FlatIndex<T>> {
        self.open().map(Index::of)
    }

    /// As [`build`](Self::build), for an index that has the vectors inside.
    pub(crate) fn open(self) -> Result<Flat<T>> {
        check_dim(self.settings.dim)?;
        self.settings.metric.check_element(T::TYPE)?;
        let backend = self.settings.open(open_cpu_of::<T>())?.into();
        let (rows, former) = (Arc::default(), Former::default());
        Ok(Flat { builder: self, backend, rows, former, version: Version::new() })
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
            return Ok(Box::new(FlatDevice::new(runtime, VectorShape::of_rows(element, metric, dim), budget)?));
        }
        Ok(if metric.compares_bits() { Box::new(FlatBits::new(dim, budget)) } else { open_cpu(dim, metric, budget) })
    }
}

/// Opens the back end of the CPU for one element type.
type OpenCpu = fn(usize, Metric, Option<u64>) -> Box<dyn FlatBackend>;

/// The function that opens the CPU for vectors of `T`. A program that uses one element type has the code of that one
/// only: the choice is made where `T` is known, and the functions are compiled in this crate, with its settings.
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

    /// The components of the vector with this id, with their type, as they were added. O(log len + dim).
    ///
    /// # Errors
    /// [`Error::UnknownId`], and the errors of the device's driver.
    pub fn vector(&self, id: u64) -> Result<Vec<T>> {
        self.kind.vector(id)
    }

    /// Counts the vectors, the rows that removed vectors left, and the bytes of memory. O(devices).
    pub fn statistics(&self) -> FlatStatistics {
        self.kind.statistics()
    }
}

impl<T: Element> Flat<T> {
    pub(crate) fn statistics(&self) -> FlatStatistics {
        let (host, device) = self.backend.bytes();
        FlatStatistics {
            vectors: self.len() as u64,
            removed: self.rows.removed() as u64,
            host_bytes: host + self.rows.bytes() + self.former.get().as_ref().map_or(0, FormerRows::bytes),
            device_bytes: device,
        }
    }

    pub(crate) fn vector(&self, id: u64) -> Result<Vec<T>> {
        let row = self.rows.find(id).ok_or(Error::UnknownId { id, len: self.len() as u64 })?;
        let mut vector = host_memory::zeroed(self.dim())?;
        self.backend.rows(row as u64, VectorSliceMut::of(&mut vector))?;
        Ok(vector)
    }

    /// Searches with arguments that were checked.
    pub(crate) fn search_checked(
        &self,
        request: &SearchRequest<'_>,
        k: usize,
        ids: &mut [u64],
        distances: &mut [f32],
    ) -> Result<()> {
        if request.queries.len() == 0 {
            return Ok(());
        }
        if self.is_empty() {
            ids.fill(NONE);
            distances.fill(self.metric().worst());
            return Ok(());
        }
        self.backend.search(request, k, ids, distances)?;
        self.rows.name(ids);
        Ok(())
    }

    /// The rows among which a search with these options looks; `None` means all.
    pub(crate) fn among<'a>(&'a self, options: &SearchOptions<'a>) -> Result<Option<Cow<'a, Bitset>>> {
        let live = self.rows.live();
        let Some(filter) = options.filter else { return Ok(live.map(Cow::Borrowed)) };
        filter.check(self.len(), || self.rows.stamp())?;
        self.rows.accepted(filter).map(Some)
    }

    /// The rows that filters accept, and their numbers.
    ///
    /// # Errors
    /// Those of [`Filter::check`]; [`Error::OutOfHostMemory`].
    pub(crate) fn accepted_by<'a>(&'a self, groups: &[FilterGroup<'a>]) -> Result<Vec<(Cow<'a, Bitset>, usize)>> {
        let accepted = |group: &FilterGroup<'a>| {
            group.0.check(self.len(), || self.rows.stamp())?;
            let rows = self.rows.accepted(group.0)?;
            let count = rows.count_ones();
            Ok((rows, count))
        };
        let rows: Vec<Result<(Cow<'a, Bitset>, usize)>> = groups.par_iter().map(accepted).collect();
        rows.into_iter().collect()
    }

    /// Searches for queries that may find the rows of sets, on the device, in as few launches as they can share. There
    /// is at least one row.
    pub(crate) fn search_sets(
        &self,
        device: &FlatDevice,
        queries: &[T],
        k: usize,
        sets: &[RowSet<'_>],
        (ids, distances): (&mut [u64], &mut [f32]),
    ) -> Result<SearchStatistics> {
        let searches = device.search_sets(VectorSlice::of(queries, self.dim()), sets, k, (ids, distances))?;
        let mut statistics = SearchStatistics { passes: searches, ..SearchStatistics::default() };
        for set in sets {
            self.rows.name(&mut ids[set.queries.start * k..set.queries.end * k]);
            let count = set.queries.len() as u64;
            statistics.queries += count;
            statistics.exact_queries += count;
            statistics.accepted += count * set.count as u64;
        }
        Ok(statistics)
    }

    /// The device that has the index, if it is one and the index is not empty.
    pub(crate) fn one_device(&self) -> Option<&FlatDevice> {
        self.backend.as_device().filter(|_| !self.is_empty())
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

    /// Plans searches of up to `queries` queries for `k` of all rows, also those that removed vectors left, from device
    /// memory to device memory; ids are the numbers of rows. `None` unless the rows are in the memory of one device.
    ///
    /// # Errors
    /// [`Error::OutOfDeviceMemory`], errors of the device's driver.
    pub(crate) fn planned(&self, queries: usize, k: usize) -> Result<Option<PlannedSearch>> {
        let Some(device) = self.backend.as_device().filter(|device| device.resident_rows().is_some()) else {
            return Ok(None);
        };
        let request = SearchRequest::among_all(VectorSlice::of::<T>(&[], self.dim()));
        device.plan_search(queries, k, &request, None).map(Some)
    }

    /// The number of the index and of its vectors as they are now.
    pub(crate) fn version(&self) -> Version {
        self.version
    }

    /// Copies rows from row `first` on, which exist, to `to`.
    pub(crate) fn copy_rows(&self, first: usize, to: &mut [T]) -> Result<()> {
        self.backend.rows(first as u64, VectorSliceMut::of(to))
    }
}

impl<T: Element> Stored for Flat<T> {
    type Element = T;
    const NAME: &'static str = "FlatIndex";

    fn dim(&self) -> usize {
        self.builder.settings.dim
    }

    fn metric(&self) -> Metric {
        self.builder.settings.metric
    }

    fn device(&self) -> String {
        self.backend.describe()
    }

    fn len(&self) -> usize {
        self.rows.len()
    }

    fn contains(&self, id: u64) -> bool {
        self.rows.find(id).is_some()
    }

    fn ids(&self) -> Vec<u64> {
        self.rows.live_rows().map(|row| self.rows.id(row)).collect()
    }

    fn stamp(&self) -> u64 {
        self.rows.stamp()
    }

    fn greatest_id(&self) -> Option<u64> {
        self.rows.last()
    }

    fn identity(&self) -> Result<String> {
        Ok("exact".to_owned())
    }

    fn describe(&self, _: &mut fmt::DebugStruct<'_, '_>) {}

    fn snapshot(&self) -> Self {
        let (backend, rows) = (Arc::clone(&self.backend), Arc::clone(&self.rows));
        let (builder, former) = (self.builder.clone(), self.former.shared());
        Flat { builder, backend, rows, former, version: Version::new() }
    }

    fn reconstruct_into(&self, id: u64, to: &mut [f32]) -> Result<()> {
        let vector = self.vector(id)?;
        to.iter_mut().zip(vector).for_each(|(to, x)| *to = x.to_f32());
        Ok(())
    }
}

impl<T: Element> Searching for Flat<T> {
    fn check_queries(&self, queries: &[T], _: &'static str) -> Result<()> {
        check_queries(self.builder.settings.placement.devices().len(), queries, self.dim()).map(drop)
    }

    fn search<'a>(
        &'a self,
        queries: &[T],
        k: usize,
        options: &SearchOptions<'a>,
        (ids, distances): (&mut [u64], &mut [f32]),
    ) -> Result<Searched<'a>> {
        let among = self.among(options)?;
        let request = SearchRequest::new(VectorSlice::of(queries, self.dim()), options, among.as_deref());
        self.search_checked(&request, k, ids, distances)?;
        let count = request.queries.len();
        let mut statistics = SearchStatistics { queries: count as u64, ..SearchStatistics::default() };
        if count > 0 && !self.is_empty() {
            statistics.compared_all(count);
        }
        Ok((statistics, among))
    }

    fn search_groups(
        &self,
        &GroupedSearch { queries, k, groups, .. }: &GroupedSearch<'_, T>,
        results: (&mut [u64], &mut [f32]),
    ) -> Result<Option<SearchStatistics>> {
        let Some(device) = self.one_device() else { return Ok(None) };
        let accepted = self.accepted_by(groups)?;
        let sets: Vec<RowSet<'_>> = RowSet::all(&accepted, groups).collect();
        self.search_sets(device, queries, k, &sets, results).map(Some)
    }

    fn shares_filters(&self) -> bool {
        self.resident_rows().is_some()
    }

    fn range_search(&self, queries: &[T], radius: f32, options: &SearchOptions<'_>) -> Result<RangeNeighbors> {
        let among = self.among(options)?;
        if queries.is_empty() || self.is_empty() {
            return Ok(RangeNeighbors::none(queries.len() / self.dim()));
        }
        let queries = VectorSlice::of(queries, self.dim());
        let mut found = self.backend.range_search(queries, radius, among.as_deref())?;
        self.rows.name(&mut found.ids);
        Ok(found)
    }

    fn search_plainly(&self, queries: &[T], k: usize, results: (&mut [u64], &mut [f32])) -> Result<()> {
        self.search_all(queries, k, results)
    }

    fn prefixes(&self, _options: &SearchOptions<'_>) -> bool {
        true
    }

    fn most_effort(&self) -> Option<(usize, &'static str)> {
        None
    }

    fn search_all(&self, queries: &[T], k: usize, (ids, distances): (&mut [u64], &mut [f32])) -> Result<()> {
        let all = SearchRequest::among_all(VectorSlice::of(queries, self.dim()));
        self.search_checked(&SearchRequest { filter: self.rows.live(), ..all }, k, ids, distances)
    }

    fn with_effort(&self, _: usize) -> SearchOptions<'static> {
        SearchOptions::new()
    }

    fn set_effort(&mut self, effort: usize) -> usize {
        effort
    }

    fn kept(&self, vectors: &[T]) -> Result<Vec<f32>> {
        host_memory::collected(vectors.iter().map(|x| x.to_f32()), vectors.len())
    }
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
            index.search_into(&[1.0, 2.0], 2, &SearchOptions::new(), &mut [0; 2], &mut [0.0; 3]),
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
        for metric in Metric::OF_NUMBERS {
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
        index.search_into(&[0.0, 1.1, 1.0, 0.1], 2, &SearchOptions::new(), &mut ids, &mut distances).unwrap();
        assert_eq!((found.ids.as_slice(), found.distances.as_slice()), (ids.as_slice(), distances.as_slice()));
        assert_eq!(index.vector(2).unwrap(), [0.0, 2.0]);
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
