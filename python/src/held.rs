//! An index of any element type behind one interface: Python knows the type at run time only.
//!
//! Vectors pass as bytes, whose alignment [`Vectors`](crate::arrays::Vectors) has checked.

use std::any::Any as Value;
use std::path::Path;
use std::sync::Mutex;
use std::time::Instant;

use warpann::element::ElementType;
use warpann::flat::FlatStatistics;
use warpann::graph::GraphStatistics;
use warpann::graph::hnsw::HnswFormat;
use warpann::ivf::{Encoding, IvfStatistics, Refiner};
use warpann::knn_graph::{Graph, KnnGraph};
use warpann::pq::ProductQuantizer;
use warpann::{
    Answer, Any, AnyIndex, Batcher, BatcherBuilder, BatcherStatistics, Bitset, Element, Error, IndexKind, IndexReader,
    IndexWriter, Metric, Neighbors, Placement, RangeNeighbors, Request, Result, SearchOptions, SearchStatistics,
    SharedFilter, Watch,
};

#[cfg(feature = "cuda")]
use crate::tensors::Plain;
#[cfg(feature = "cuda")]
use warpann::DeviceWorkspace;
#[cfg(feature = "cuda")]
use warpann::cust::sys::CUstream;
#[cfg(feature = "cuda")]
use warpann::views::{DeviceCounts, DeviceNeighbors, DeviceVectors};

/// Does `$body` with `$type` as the type of an element type.
macro_rules! with_element {
    ($element:expr, $type:ident => $body:expr) => {
        match $element {
            warpann::ElementType::F16 => {
                type $type = half::f16;
                $body
            }
            warpann::ElementType::Bf16 => {
                type $type = half::bf16;
                $body
            }
            warpann::ElementType::U8 => {
                type $type = u8;
                $body
            }
            warpann::ElementType::I8 => {
                type $type = i8;
                $body
            }
            _ => {
                type $type = f32;
                $body
            }
        }
    };
}
pub(crate) use with_element;

/// The statistics of an index, by its kind.
pub enum Statistics {
    Flat(FlatStatistics),
    Ivf(IvfStatistics),
    Graph(GraphStatistics),
}

/// The methods that indexes of all kinds and element types have.
pub trait Held: Send + Sync {
    fn value(&self) -> &dyn Value;
    fn element(&self) -> ElementType;
    fn kind(&self) -> IndexKind;
    fn dim(&self) -> usize;
    fn metric(&self) -> Metric;
    fn len(&self) -> usize;
    fn device(&self) -> String;
    fn contains(&self, id: u64) -> bool;
    fn ids(&self) -> Vec<u64>;
    fn filter(&self, keep: &mut dyn FnMut(u64) -> bool) -> Bitset;
    fn reconstruct(&self, ids: &[u64], to: &mut [f32]) -> Result<()>;
    fn statistics(&self) -> Statistics;
    fn description(&self) -> String;

    fn add(&mut self, rows: &[u8], ids: Option<&[u64]>, watch: &Watch<'_>) -> Result<()>;
    fn upsert(&mut self, rows: &[u8], ids: &[u64]) -> Result<usize>;
    fn remove(&mut self, ids: &[u64]) -> Result<()>;
    fn remove_if_present(&mut self, ids: &[u64]) -> Result<usize>;
    fn clear(&mut self);
    fn merge(&mut self, other: &dyn Held) -> Result<()>;
    fn compact(&mut self) -> Result<()>;
    fn move_to(&mut self, placement: Placement) -> Result<()>;
    fn snapshot(&self) -> Box<dyn Held>;

    /// A search with the settings of the index.
    fn search(&self, queries: &[u8], k: usize) -> Result<Neighbors>;
    fn search_with(&self, queries: &[u8], k: usize, options: &SearchOptions<'_>) -> Result<Neighbors>;
    fn search_with_statistics(
        &self,
        queries: &[u8],
        k: usize,
        options: &SearchOptions<'_>,
    ) -> Result<(Neighbors, SearchStatistics)>;
    fn range_search(&self, queries: &[u8], radius: f32, options: &SearchOptions<'_>) -> Result<RangeNeighbors>;
    fn tune(&mut self, queries: &[u8], k: usize, target: f64) -> Result<(usize, f64)>;
    fn knn_graph(&self, base: &[u8], k: usize, watch: &Watch<'_>) -> Result<(Graph, Vec<f32>)>;

    fn save(&self, path: &Path, watch: &Watch<'_>) -> Result<()>;
    fn to_bytes(&self) -> Result<Vec<u8>>;

    /// A batcher for the index as it is now.
    fn batcher(&self, builder: BatcherBuilder) -> Result<Box<dyn Serving>>;
    /// A writer whose first version is the index as it is now.
    fn writer(&self) -> Box<dyn Writing>;

    /// Plans searches in device memory.
    #[cfg(feature = "cuda")]
    fn device_workspace(&self, queries: usize, k: usize, options: &SearchOptions<'_>) -> Result<DeviceWorkspace>;
    /// Enqueues a search from device memory to the tensors of ids and distances.
    ///
    /// # Safety
    /// As that of the library; the tensors are those of their owners.
    #[cfg(feature = "cuda")]
    unsafe fn search_device(
        &self,
        workspace: &mut DeviceWorkspace,
        stream: usize,
        queries: Plain<'_>,
        results: (Plain<'_>, Plain<'_>),
    ) -> Result<()>;
    /// Enqueues a range search from device memory to the tensors of ids, distances and counts.
    ///
    /// # Safety
    /// As [`search_device`](Self::search_device).
    #[cfg(feature = "cuda")]
    unsafe fn range_search_device(
        &self,
        workspace: &mut DeviceWorkspace,
        stream: usize,
        queries: Plain<'_>,
        radius: f32,
        results: (Plain<'_>, Plain<'_>, Plain<'_>),
    ) -> Result<()>;
    /// Adds vectors in device memory, in the order of the default stream, for which it waits.
    ///
    /// # Safety
    /// As that of the library; the tensor is that of its owner.
    #[cfg(feature = "cuda")]
    unsafe fn add_device(&mut self, rows: Plain<'_>, ids: Option<&[u64]>) -> Result<()>;

    /// Writes an exact index of bits as FAISS does.
    fn save_bits(&self, path: &Path) -> Result<()>;
    fn ivf(&self) -> Result<&dyn HeldIvf>;
    fn ivf_mut(&mut self) -> Result<&mut dyn HeldIvf>;
    fn graph(&self) -> Result<&dyn HeldGraph>;
    fn graph_mut(&mut self) -> Result<&mut dyn HeldGraph>;
}

/// The methods that only inverted files have.
pub trait HeldIvf {
    fn is_trained(&self) -> bool;
    fn lists(&self) -> usize;
    fn encoding(&self) -> Encoding;
    fn centroids(&self) -> &[f32];
    fn quantizer(&self) -> Option<&ProductQuantizer>;
    fn probes(&self) -> usize;
    fn set_probes(&mut self, probes: usize) -> Result<()>;
    fn train(&mut self, rows: &[u8], watch: &Watch<'_>) -> Result<()>;
    /// A refined search, whose original vectors and their ids are `base`.
    fn search_refined(
        &self,
        queries: &[u8],
        k: usize,
        options: &SearchOptions<'_>,
        base: (&[u8], Option<&[u64]>),
    ) -> Result<(Neighbors, SearchStatistics)>;
    fn save_faiss(&self, path: &Path) -> Result<()>;
}

/// The methods that only graphs have.
pub trait HeldGraph {
    fn degree(&self) -> usize;
    fn beam(&self) -> usize;
    fn set_beam(&mut self, beam: usize) -> Result<()>;
    fn edges(&self) -> Result<Option<Graph>>;
    fn save_hnsw(&self, path: &Path, format: HnswFormat) -> Result<()>;
}

/// The methods of a batcher for an index of any element type.
pub trait Serving: Send + Sync {
    fn submit(
        &self,
        query: &[u8],
        k: usize,
        options: SearchOptions<'static>,
        filter: Option<SharedFilter>,
        deadline: Option<Instant>,
    ) -> Result<Answer>;
    fn statistics(&self) -> BatcherStatistics;
    fn close(&self);
}

/// A change of an index: of a snapshot it makes the next version.
pub type Change<'a> = &'a mut (dyn FnMut(Box<dyn Held>) -> crate::call::Result<Box<dyn Held>> + Send);

/// A writer of versions.
pub trait Writing: Send + Sync {
    /// The last version, as an index of its own, with its number.
    fn current(&self) -> (u64, Box<dyn Held>);
    /// The number of the last version.
    fn version(&self) -> u64;
    /// Publishes what `change` makes of the last version. Changes of several threads come one after the other.
    fn change(&self, change: Change<'_>) -> crate::call::Result<()>;
    /// Frees the memory of former versions that no reader has any more.
    fn release(&self) -> crate::call::Result<()>;
    /// A batcher for the versions.
    fn batcher(&self, builder: BatcherBuilder) -> Result<Box<dyn Serving>>;
}

/// The components in the memory of vectors.
fn rows<T: Element>(bytes: &[u8]) -> &[T] {
    bytemuck::cast_slice(bytes)
}

/// The kind of index is another one. The classes of Python make it impossible.
const OTHER_KIND: Error = Error::Incompatible { what: "kind" };

impl<T: Element> Held for AnyIndex<T> {
    fn value(&self) -> &dyn Value {
        self
    }

    fn element(&self) -> ElementType {
        T::TYPE
    }

    fn kind(&self) -> IndexKind {
        AnyIndex::kind(self)
    }

    fn dim(&self) -> usize {
        AnyIndex::dim(self)
    }

    fn metric(&self) -> Metric {
        AnyIndex::metric(self)
    }

    fn len(&self) -> usize {
        AnyIndex::len(self)
    }

    fn device(&self) -> String {
        AnyIndex::device(self)
    }

    fn contains(&self, id: u64) -> bool {
        AnyIndex::contains(self, id)
    }

    fn ids(&self) -> Vec<u64> {
        AnyIndex::ids(self)
    }

    fn filter(&self, keep: &mut dyn FnMut(u64) -> bool) -> Bitset {
        AnyIndex::filter(self, keep)
    }

    fn reconstruct(&self, ids: &[u64], to: &mut [f32]) -> Result<()> {
        self.reconstruct_into(ids, to)
    }

    fn statistics(&self) -> Statistics {
        match self.inside() {
            Any::Flat(index) => Statistics::Flat(index.statistics()),
            Any::Ivf(index) => Statistics::Ivf(index.statistics()),
            Any::Graph(index) => Statistics::Graph(index.statistics()),
        }
    }

    fn description(&self) -> String {
        match self.inside() {
            Any::Flat(index) => format!("{index:?}"),
            Any::Ivf(index) => format!("{index:?}"),
            Any::Graph(index) => format!("{index:?}"),
        }
    }

    fn add(&mut self, bytes: &[u8], ids: Option<&[u64]>, watch: &Watch<'_>) -> Result<()> {
        self.add_watched(rows(bytes), ids, watch)
    }

    fn upsert(&mut self, bytes: &[u8], ids: &[u64]) -> Result<usize> {
        AnyIndex::upsert(self, rows(bytes), ids)
    }

    fn remove(&mut self, ids: &[u64]) -> Result<()> {
        AnyIndex::remove(self, ids)
    }

    fn remove_if_present(&mut self, ids: &[u64]) -> Result<usize> {
        AnyIndex::remove_if_present(self, ids)
    }

    fn clear(&mut self) {
        AnyIndex::clear(self);
    }

    fn merge(&mut self, other: &dyn Held) -> Result<()> {
        match other.value().downcast_ref::<Self>() {
            Some(other) => AnyIndex::merge(self, other),
            None => {
                let (expected, actual) = (T::TYPE.name(), other.element().name());
                Err(Error::Mismatch { what: "element type of the other index", expected, actual })
            }
        }
    }

    fn compact(&mut self) -> Result<()> {
        AnyIndex::compact(self)
    }

    fn move_to(&mut self, placement: Placement) -> Result<()> {
        AnyIndex::move_to(self, placement)
    }

    fn snapshot(&self) -> Box<dyn Held> {
        Box::new(AnyIndex::snapshot(self))
    }

    fn search(&self, queries: &[u8], k: usize) -> Result<Neighbors> {
        AnyIndex::search(self, rows(queries), k)
    }

    fn search_with(&self, queries: &[u8], k: usize, options: &SearchOptions<'_>) -> Result<Neighbors> {
        AnyIndex::search_with(self, rows(queries), k, options)
    }

    fn search_with_statistics(
        &self,
        queries: &[u8],
        k: usize,
        options: &SearchOptions<'_>,
    ) -> Result<(Neighbors, SearchStatistics)> {
        AnyIndex::search_with_statistics(self, rows(queries), k, options)
    }

    fn range_search(&self, queries: &[u8], radius: f32, options: &SearchOptions<'_>) -> Result<RangeNeighbors> {
        AnyIndex::range_search(self, rows(queries), radius, options)
    }

    fn tune(&mut self, queries: &[u8], k: usize, target: f64) -> Result<(usize, f64)> {
        AnyIndex::tune(self, rows(queries), k, target)
    }

    fn knn_graph(&self, base: &[u8], k: usize, watch: &Watch<'_>) -> Result<(Graph, Vec<f32>)> {
        KnnGraph::new(k).run_watched(self, rows::<T>(base), watch)
    }

    fn save(&self, path: &Path, watch: &Watch<'_>) -> Result<()> {
        self.save_watched(path, watch)
    }

    fn to_bytes(&self) -> Result<Vec<u8>> {
        AnyIndex::to_bytes(self)
    }

    fn batcher(&self, builder: BatcherBuilder) -> Result<Box<dyn Serving>> {
        Ok(Box::new(builder.serve(AnyIndex::snapshot(self))?))
    }

    fn writer(&self) -> Box<dyn Writing> {
        let writer = IndexWriter::new(AnyIndex::snapshot(self));
        Box::new(Writer { reader: writer.reader(), writer: Mutex::new(writer) })
    }

    #[cfg(feature = "cuda")]
    fn device_workspace(&self, queries: usize, k: usize, options: &SearchOptions<'_>) -> Result<DeviceWorkspace> {
        AnyIndex::device_workspace(self, queries, k, options)
    }

    #[cfg(feature = "cuda")]
    unsafe fn search_device(
        &self,
        workspace: &mut DeviceWorkspace,
        stream: usize,
        queries: Plain<'_>,
        (ids, distances): (Plain<'_>, Plain<'_>),
    ) -> Result<()> {
        // SAFETY: the tensors are those of their owners, as the caller promises.
        unsafe {
            let queries = DeviceVectors::<T>::of_tensor(queries.0, AnyIndex::dim(self))?;
            let results = DeviceNeighbors::of_tensors(ids.0, distances.0)?;
            AnyIndex::search_device(self, workspace, stream as CUstream, &queries, &results)
        }
    }

    #[cfg(feature = "cuda")]
    unsafe fn range_search_device(
        &self,
        workspace: &mut DeviceWorkspace,
        stream: usize,
        queries: Plain<'_>,
        radius: f32,
        (ids, distances, counts): (Plain<'_>, Plain<'_>, Plain<'_>),
    ) -> Result<()> {
        // SAFETY: the tensors are those of their owners, as the caller promises.
        unsafe {
            let queries = DeviceVectors::<T>::of_tensor(queries.0, AnyIndex::dim(self))?;
            let results = DeviceNeighbors::of_tensors(ids.0, distances.0)?;
            let counts = DeviceCounts::of_tensor(counts.0)?;
            AnyIndex::range_search_device(self, workspace, stream as CUstream, &queries, radius, &results, &counts)
        }
    }

    #[cfg(feature = "cuda")]
    unsafe fn add_device(&mut self, rows: Plain<'_>, ids: Option<&[u64]>) -> Result<()> {
        let stream = std::ptr::null_mut();
        // SAFETY: the tensor is that of its owner, as the caller promises.
        unsafe {
            let rows = DeviceVectors::<T>::of_tensor(rows.0, AnyIndex::dim(self))?;
            match ids {
                Some(ids) => self.add_device_with_ids(stream, &rows, ids),
                None => AnyIndex::add_device(self, stream, &rows),
            }
        }
    }

    fn save_bits(&self, path: &Path) -> Result<()> {
        if let Any::Flat(index) = self.inside() { Ok(index.save_faiss(path)?) } else { Err(OTHER_KIND) }
    }

    fn ivf(&self) -> Result<&dyn HeldIvf> {
        if let Any::Ivf(index) = self.inside() { Ok(index) } else { Err(OTHER_KIND) }
    }

    fn ivf_mut(&mut self) -> Result<&mut dyn HeldIvf> {
        if let Any::Ivf(index) = self.inside_mut() { Ok(index) } else { Err(OTHER_KIND) }
    }

    fn graph(&self) -> Result<&dyn HeldGraph> {
        if let Any::Graph(index) = self.inside() { Ok(index) } else { Err(OTHER_KIND) }
    }

    fn graph_mut(&mut self) -> Result<&mut dyn HeldGraph> {
        if let Any::Graph(index) = self.inside_mut() { Ok(index) } else { Err(OTHER_KIND) }
    }
}

impl<T: Element> HeldIvf for warpann::IvfIndex<T> {
    fn is_trained(&self) -> bool {
        self.is_trained()
    }

    fn lists(&self) -> usize {
        self.lists()
    }

    fn encoding(&self) -> Encoding {
        self.encoding()
    }

    fn centroids(&self) -> &[f32] {
        self.centroids()
    }

    fn quantizer(&self) -> Option<&ProductQuantizer> {
        self.quantizer()
    }

    fn probes(&self) -> usize {
        self.probes()
    }

    fn set_probes(&mut self, probes: usize) -> Result<()> {
        self.set_probes(probes)
    }

    fn train(&mut self, bytes: &[u8], watch: &Watch<'_>) -> Result<()> {
        self.train_watched(rows(bytes), watch)
    }

    fn search_refined(
        &self,
        queries: &[u8],
        k: usize,
        options: &SearchOptions<'_>,
        (base, ids): (&[u8], Option<&[u64]>),
    ) -> Result<(Neighbors, SearchStatistics)> {
        let mut refiner = Refiner::new(self.metric(), self.dim(), rows::<T>(base))?;
        if let Some(ids) = ids {
            refiner = refiner.with_ids(ids)?;
        }
        self.search_refined(rows(queries), k, options, &refiner)
    }

    fn save_faiss(&self, path: &Path) -> Result<()> {
        self.save_faiss(path)
    }
}

impl<T: Element> HeldGraph for warpann::GraphIndex<T> {
    fn degree(&self) -> usize {
        self.degree()
    }

    fn beam(&self) -> usize {
        self.beam()
    }

    fn set_beam(&mut self, beam: usize) -> Result<()> {
        self.set_beam(beam)
    }

    fn edges(&self) -> Result<Option<Graph>> {
        self.graph()
    }

    fn save_hnsw(&self, path: &Path, format: HnswFormat) -> Result<()> {
        self.save_hnsw(path, format)
    }
}

impl<T: Element> Serving for Batcher<warpann::Any<T>> {
    fn submit(
        &self,
        query: &[u8],
        k: usize,
        options: SearchOptions<'static>,
        filter: Option<SharedFilter>,
        deadline: Option<Instant>,
    ) -> Result<Answer> {
        let mut request = Request::new(rows::<T>(query), k).options(options);
        if let Some(filter) = filter {
            request = request.filter(filter);
        }
        if let Some(deadline) = deadline {
            request = request.deadline(deadline);
        }
        Batcher::submit(self, request)
    }

    fn statistics(&self) -> BatcherStatistics {
        Batcher::statistics(self)
    }

    fn close(&self) {
        Batcher::close(self);
    }
}

/// A writer and its reader, which no change makes wait.
struct Writer<T: Element> {
    writer: Mutex<IndexWriter<AnyIndex<T>>>,
    reader: IndexReader<AnyIndex<T>>,
}

impl<T: Element> Writing for Writer<T> {
    fn current(&self) -> (u64, Box<dyn Held>) {
        let (number, index) = self.reader.current_with_version();
        (number, Box::new(index.snapshot()))
    }

    fn version(&self) -> u64 {
        self.reader.version()
    }

    fn change(&self, change: Change<'_>) -> crate::call::Result<()> {
        let mut writer = crate::call::lock(&self.writer)?;
        writer.change(|index| {
            let next = change(Held::snapshot(index))?;
            let next = next.value().downcast_ref::<AnyIndex<T>>().ok_or(OTHER_KIND)?;
            *index = next.snapshot();
            Ok(())
        })
    }

    fn release(&self) -> crate::call::Result<()> {
        crate::call::lock(&self.writer)?.release();
        Ok(())
    }

    fn batcher(&self, builder: BatcherBuilder) -> Result<Box<dyn Serving>> {
        Ok(Box::new(builder.serve(self.reader.clone())?))
    }
}
