//! Searches from device memory to device memory, which only enqueue work on a stream: no copy to or from the host, no
//! allocation, no wait.
//!
//! A kind of index plans the search of a tile of queries ([`TileSearch`]): it stages the queries, notes those that are
//! not finite, and finds rows. The rest stands here once for all kinds ([`PlannedSearch`]): tiles, ids in place of
//! rows, the cut of a range, and the first run that loads kernels.
//!
//! ```text
//! queries ──find──► rows, distances; refused ──name_results──► ids, distances ──[cut_results]──► those within a radius
//!                                                                                   └─[count_within: queries whose places are full]──► counts
//! ```
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

use std::sync::Arc;

use cuda_std::{Ptr, PtrMut};
use warpann_kernels::flat::count_within::CutResults;
use warpann_kernels::flat::name_results::NameResults;

use self::staging::{StagedRows, stage_rows};
use crate::device::lanes::Lanes;
use crate::device::queue::OnStream;
use crate::device::runtime::{Memory, Runtime, Stream};
use crate::device::scratch::{Layout, Reserved};
use crate::product::gpu::VectorShape;
use crate::threads::apart;
use crate::{Error, Result};

/// The queries of a tile as they come: vectors without bytes between them, and a word of each: whether it was refused.
#[derive(Clone, Copy)]
pub(crate) struct Given {
    pub rows: Ptr<u8>,
    pub count: u32,
    pub refused: PtrMut<u32>,
}

impl Given {
    /// Copies the queries to rows of the stride of `shape`, and notes which are refused, because they are not finite.
    ///
    /// # Errors
    /// Errors of the device's driver.
    ///
    /// # Safety
    /// As [`TileSearch::find`]; `to` has room for the rows.
    pub unsafe fn stage(self, on: OnStream<'_>, shape: VectorShape, to: PtrMut<u8>) -> Result<()> {
        let notes = StagedRows { refused: Some(self.refused), first_refused: None };
        // SAFETY: as the caller promises.
        unsafe { stage_rows(on, shape, self.rows, self.count, to, notes) }
    }
}

/// Rows that were found, best first, with their distances: `each` of every query.
pub(crate) struct Found {
    pub rows: Ptr<u32>,
    pub distances: Ptr<f32>,
    pub each: u32,
}

impl Found {
    /// The result of a search among no rows.
    pub const NOTHING: Found = Found { rows: Ptr::empty(), distances: Ptr::empty(), each: 0 };
}

/// The radius of a range search, not NaN, and the place for a count of each query.
#[derive(Clone, Copy)]
pub(crate) struct Range {
    pub radius: f32,
    pub counts: PtrMut<u32>,
}

/// The search of a tile of queries, planned by a kind of index, with the device memory that it needs.
pub(crate) trait TileSearch: Send + Sync {
    /// Bytes of device memory that the search has for itself.
    fn bytes(&self) -> usize;

    /// The shape of queries as they come.
    fn shape(&self) -> VectorShape;

    /// Largest number of queries of a tile.
    fn most(&self) -> usize;

    /// Number of plans, each for other numbers of queries.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only a workspace runs all plans when it is made"))]
    fn plans(&self) -> usize {
        1
    }

    /// Number of the plan that a tile of `count` queries takes.
    fn plan_of(&self, _count: u32) -> usize {
        0
    }

    /// Enqueues the search of the given queries by a plan for at least as many. Writes the word of each query: 1 if it
    /// was refused because it is not finite, or else 0.
    ///
    /// # Errors
    /// Errors of the device's driver.
    ///
    /// # Safety
    /// The device is current. Until the stream has done the work: the index does not change, the queries and their
    /// words are as many as `given` says, and no other work uses these or this search.
    unsafe fn find(&self, on: OnStream<'_>, plan: usize, given: Given) -> Result<Found>;

    /// Whether the search can count the vectors within a radius: it compares all of them, or all of some lists. Walks
    /// find near ones only.
    fn counts(&self) -> bool {
        false
    }

    /// Enqueues the count of the vectors within a radius of some of the `count` queries of the last
    /// [`find`](Self::find), which was by the same plan: adds it to the counts of these. `listed` has the number of
    /// these queries, and then their numbers.
    ///
    /// # Errors
    /// [`Error::StaleWorkspace`] if the search cannot [count](Self::counts); errors of the device's driver.
    ///
    /// # Safety
    /// As [`find`](Self::find), which came before in the stream.
    unsafe fn count_within(
        &self,
        _on: OnStream<'_>,
        _plan: usize,
        _count: u32,
        _range: Range,
        _listed: Ptr<u32>,
    ) -> Result<()> {
        Err(Error::StaleWorkspace)
    }

    /// Numbers of queries of the last search, which had `count` of one tile, that lacked a certificate for their
    /// probes, that lacked one for their neighbours, and whose candidates exceeded their room.
    #[cfg(test)]
    fn completed(&self, _stream: &Stream, _count: usize) -> Result<[usize; 3]> {
        Ok([0; 3])
    }
}

/// The tables of a planned search for `queries` queries of a tile.
struct Tables {
    /// The id of each row; `None` if it is the row.
    names: Option<Reserved<u64>>,
    /// A word of each query: whether it was refused.
    refused: Reserved<u32>,
    /// The number of queries all of whose places are within a radius, and then the numbers of these queries.
    listed: Reserved<u32>,
    bytes: usize,
}

impl Tables {
    fn new(names: Option<usize>, queries: usize) -> Tables {
        let mut layout = Layout::default();
        let names = names.map(|names| layout.array(names));
        let (refused, listed) = (layout.array(queries), layout.array(queries.saturating_add(1)));
        Tables { names, refused, listed, bytes: layout.bytes() }
    }
}

/// Bytes of the tables of a planned search with `names` ids of rows, for `queries` queries of a tile, beside those of
/// its [`TileSearch`].
pub(crate) fn table_bytes(names: Option<usize>, queries: usize) -> usize {
    Tables::new(names, queries).bytes
}

/// A planned search, with its device memory.
pub struct PlannedSearch {
    runtime: Runtime,
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only a workspace runs the search when it is made"))]
    lanes: Arc<Lanes>,
    search: Box<dyn TileSearch>,
    /// Number of results of a query.
    k: u32,
    tables: Tables,
    memory: Memory,
}

impl PlannedSearch {
    /// The search for `k` neighbours whose tiles are those of `search`. `names` has the id of each row; `None` means
    /// that it is the row. Allocates, uploads the ids on a lane, and waits for them.
    ///
    /// # Errors
    /// [`Error::OutOfDeviceMemory`]; errors of the device's driver.
    pub(crate) fn new(
        runtime: &Runtime,
        lanes: &Arc<Lanes>,
        search: Box<dyn TileSearch>,
        k: u32,
        names: Option<&[u64]>,
    ) -> Result<PlannedSearch> {
        let tables = Tables::new(names.map(<[u64]>::len), search.most());
        let memory = runtime.allocate(tables.bytes)?;
        if let (Some(to), Some(names)) = (tables.names, names) {
            let to = runtime.scratch(&memory).at(to);
            // `apart` keeps a pool thread from starting another search while it has a lane.
            apart(|| {
                lanes.with(runtime, |lane| {
                    // SAFETY: the tables have room for the ids, and no other work uses them.
                    unsafe { runtime.copy_to_device(&lane.stream, to, names)? };
                    runtime.synchronize(&lane.stream)
                })
            })?;
        }
        let (runtime, lanes) = (runtime.clone(), Arc::clone(lanes));
        Ok(PlannedSearch { runtime, lanes, search, k, tables, memory })
    }

    /// Bytes of device memory that the search has for itself.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "workspaces and tests ask for it"))]
    pub(crate) fn bytes(&self) -> u64 {
        (self.search.bytes() + self.tables.bytes) as u64
    }

    #[cfg(test)]
    pub(crate) fn search(&self) -> &dyn TileSearch {
        &*self.search
    }

    /// Runs one query by each plan, so that all kernels are loaded, and waits.
    ///
    /// # Errors
    /// Errors of the device's driver.
    #[cfg(feature = "cuda")]
    fn run_once(&self) -> Result<()> {
        let run = |lane: &mut crate::device::lanes::Lane| {
            let (shape, k) = (self.search.shape(), self.k as usize);
            let mut layout = Layout::default();
            let query = layout.array::<u8>(shape.dim * shape.element.size());
            let (ids, distances, counts) = (layout.array(k), layout.array(k), layout.array(1));
            let scratch = lane.scratch(&self.runtime, layout.bytes())?;
            let (query, ids, distances) = (scratch.at(query), scratch.at(ids), scratch.at(distances));
            let range = self.search.counts().then(|| Range { radius: 0.0, counts: scratch.at(counts) });
            let on = OnStream { runtime: &self.runtime, stream: &lane.stream };
            // SAFETY: the scratch has room for one query and its results.
            unsafe {
                self.runtime.fill(&lane.stream, query, 0)?;
                for plan in 0..self.search.plans() {
                    self.enqueue_tile(on, plan, query.into(), 1, (ids, distances), range)?;
                }
            }
            self.runtime.synchronize(&lane.stream)
        };
        apart(|| self.lanes.with(&self.runtime, run))
    }

    /// Enqueues the search of `count` queries, at most as many as were planned. With a range, the results are those
    /// within its radius, and the range gets the number of vectors within it for each query.
    ///
    /// # Errors
    /// [`Error::StaleWorkspace`] for a range if the search cannot count; errors of the device's driver.
    ///
    /// # Safety
    /// Until the stream has done the work: the index does not change, `queries` has `count` vectors, `ids` and
    /// `distances` have room for count · k values and the range for a count of each query, no other work uses these or
    /// this search, and they do not overlap.
    pub(crate) unsafe fn enqueue(
        &self,
        stream: &Stream,
        queries: Ptr<u8>,
        count: usize,
        (ids, distances): (PtrMut<u64>, PtrMut<f32>),
        range: Option<Range>,
    ) -> Result<()> {
        if range.is_some() && !self.search.counts() {
            return Err(Error::StaleWorkspace);
        }
        let (runtime, shape, k, most) = (&self.runtime, self.search.shape(), self.k as usize, self.search.most());
        let _current = runtime.enter()?;
        let row_bytes = shape.dim * shape.element.size();
        for first in (0..count).step_by(most) {
            let tile = most.min(count - first);
            let queries = queries.skip(first * row_bytes).take(tile * row_bytes);
            let results = (ids.skip(first * k).take(tile * k), distances.skip(first * k).take(tile * k));
            let range = range.map(|range| Range { counts: range.counts.skip(first).take(tile), ..range });
            let plan = self.search.plan_of(tile as u32);
            // SAFETY: the arrays go on to the end of the last query.
            unsafe { self.enqueue_tile(OnStream { runtime, stream }, plan, queries, tile as u32, results, range)? };
        }
        Ok(())
    }

    /// As [`enqueue`](Self::enqueue), of the queries of a tile, by a plan for at least as many.
    ///
    /// # Safety
    /// As [`enqueue`](Self::enqueue); the device is current.
    pub(crate) unsafe fn enqueue_tile(
        &self,
        on: OnStream<'_>,
        plan: usize,
        queries: Ptr<u8>,
        count: u32,
        (ids, distances): (PtrMut<u64>, PtrMut<f32>),
        range: Option<Range>,
    ) -> Result<()> {
        let OnStream { runtime, stream } = on;
        let (k, metric, tables) = (self.k, self.search.shape().metric, runtime.scratch(&self.memory));
        let refused = tables.at(self.tables.refused).take(count as usize);
        // SAFETY: the tables have a word for each query of a tile and one more, the stream runs these in order, and the
        // caller promises the rest.
        unsafe {
            let found = self.search.find(on, plan, Given { rows: queries, count, refused })?;
            let launch = NameResults {
                rows: found.rows,
                distances: found.distances,
                found: found.each,
                names: self.tables.names.map(|names| tables.at(names).into()),
                refused: refused.into(),
                worst: metric.worst(),
                k,
                slots: u64::from(count) * u64::from(k),
                out_ids: ids,
                out_distances: distances,
            };
            runtime.launch(stream, &NameResults::KERNEL, launch.config(), launch)?;
            let Some(range) = range else { return Ok(()) };
            let listed = tables.at(self.tables.listed);
            runtime.fill(stream, listed.take(1), 0)?;
            let (Range { radius, counts }, metric) = (range, metric.of_kernel());
            let launch = CutResults { query_count: count, k, metric, radius, ids, distances, counts, listed };
            runtime.launch(stream, &CutResults::KERNEL, launch.config(), launch)?;
            self.search.count_within(on, plan, count, range, listed.into())
        }
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
