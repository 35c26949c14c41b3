//! A search of an image: queries become operands, then probes, pairs and scan, and then the best of the scanned
//! vectors.
//!
//! ```text
//! queries ──prepare_queries──► f16 operands ──scan centroids──► scores ──stage──► probes          (coarse quantiser)
//!     (one or two queries: exact distances of all centroids ──selection──► probes;
//!      few vectors in their lists: exact distances of all of them ──► distances and ranks)
//!     probes ──count, place, scatter──► pairs by list, items ──scan lists──► scores, one row a query
//!                                                              └──stage──► distances and ranks, and who lacks a certificate
//! ```
//!
//! Codes of one byte are scanned as they are: queries also become two planes of bytes, and each pair gets a term, which
//! its scores contain (`warpann_kernels::ivf::code_queries`).
//!
//! Queries without a certificate, for their probes or for their neighbours, are compared exactly with all centroids or
//! with all vectors of their lists, by kernels that follow in the stream (`warpann_kernels::ivf::rescan`). The host may
//! leave these kernels out and read the flags of the queries instead.

use std::ops::Range;

use cuda_std::{Ptr, PtrMut};
use warpann_kernels::ivf::byte_queries::PrepareByteQueries;
use warpann_kernels::ivf::code_bounds::CountLive;
use warpann_kernels::ivf::code_queries::{PairTerms, PrepareCodeQueries};
use warpann_kernels::ivf::encoding::flat;
use warpann_kernels::ivf::list_scan::{ScanLists, TILE_ROWS, Tile};
use warpann_kernels::ivf::pairs::{self, CountPairs, FewPairs, PlacePairs, ScatterPairs};
use warpann_kernels::ivf::queries::PrepareQueries;
use warpann_kernels::ivf::rerank::{ProbedLists, Rerank};
use warpann_kernels::ivf::rescan::{Rescan, Rescanned};
use warpann_kernels::ivf::widen::WidenQueries;
use warpann_kernels::product::canonical::{self, Canonical};
use warpann_kernels::product::element::{ExactKey, RowKey};
use warpann_kernels::product::metric::Metric as KernelMetric;

use super::image::Resident;
use super::plan::{ITEM_ROWS, ListsPlan, OperandsPlan, SearchPlan};
use super::stage::{CandidateLists, Candidates, Centroids, Found, Stage};
use super::stored::{ScanOperands, Stored};
use super::tables;
use super::tables::TableScan;
use crate::device::backend::ResultArray;
use crate::device::queue::OnStream;
use crate::device::runtime::Stream;
use crate::device::scratch::{Reserved, Scratch};
use crate::product::gpu::VectorShape;
use crate::{ElementType, Result};

/// A search that runs on a stream.
pub(super) struct Search<'a> {
    pub on: OnStream<'a>,
    /// The stream for copies that precede the search.
    pub copies: &'a Stream,
    pub resident: &'a Resident,
    pub element: ElementType,
    pub plan: &'a SearchPlan,
    /// Scratch of the plan's size.
    pub scratch: Scratch,
    /// A counter for each query, up to [`COUNTERS`](crate::device::lanes::COUNTERS). They are 0 between the kernels of
    /// the stream.
    pub counters: PtrMut<u32>,
    /// Number of queries that have results. The plan may be for more: nobody reads what the search finds for the rest.
    pub queries: u32,
    /// Whether kernels complete the queries that lack a certificate.
    pub completes: bool,
}

/// The part of an array that belongs to some of the queries; each query has `each` values.
fn part<T>(array: PtrMut<T>, of: &Range<u32>, each: usize) -> PtrMut<T> {
    array.skip(of.start as usize * each).take(of.len() * each)
}

/// Queries on the device, the metric of their comparison, and the place for their operands.
struct GivenQueries {
    element: ElementType,
    /// All queries of the search.
    rows: PtrMut<u8>,
    /// The metric of the operands.
    metric: KernelMetric,
    /// Whether distances from stored vectors are divided by norms of which the operands know nothing.
    cosines: bool,
    /// The greatest component of the compared vectors.
    greatest: Ptr<u32>,
    to: OperandsPlan,
}

impl Search<'_> {
    fn at<T>(&self, array: Reserved<T>) -> PtrMut<T> {
        self.scratch.at(array)
    }

    /// The place for queries that are compared with stored vectors.
    pub fn queries(&self) -> PtrMut<u8> {
        self.plan.narrow_queries.map_or(self.at(self.plan.queries).as_bytes(), |narrow| self.at(narrow))
    }

    /// Converts queries of the shape `own` to f32, and normalises them if the index keeps codes of normalised vectors.
    /// Those that `refused` names become NaN.
    ///
    /// # Safety
    /// `rows` and `to` have `count` rows.
    pub unsafe fn widen(
        &self,
        own: VectorShape,
        (rows, count): (Ptr<u8>, u32),
        refused: Option<Ptr<u32>>,
        to: PtrMut<f32>,
    ) -> Result<()> {
        let launch = WidenQueries {
            rows,
            count,
            stride: own.stride() as u32,
            normalise: (!self.resident.image.stored.in_place && own.metric.divides_by_norms()).into(),
            refused,
            to,
            to_stride: self.resident.image.stride(),
        };
        let kernel = WidenQueries::kernel(own.row_key());
        // SAFETY: as the caller promises.
        unsafe { self.on.runtime.launch(self.on.stream, kernel, launch.config(), launch) }
    }

    /// The place for some of the queries as they come, of the shape `own`, until they are widened: that of their
    /// operands, which are made after that and take no less.
    pub fn given_queries(&self, of: &Range<usize>, own: VectorShape) -> PtrMut<u8> {
        let all = self.at(self.plan.operands.queries).as_bytes();
        let each = all.len() / self.plan.search_shape.queries.max(1) as usize;
        all.skip(of.start * each).take(of.len() * own.row_bytes())
    }

    /// The place for some of the queries before they are rotated.
    pub fn unrotated(&self, of: &Range<usize>) -> PtrMut<f32> {
        let stride = self.resident.image.stride() as usize;
        self.at(self.plan.unrotated).skip(of.start * stride).take(of.len() * stride)
    }

    /// The place for queries as f32, if it is a separate one.
    pub fn wide_queries(&self) -> Option<PtrMut<u8>> {
        self.plan.narrow_queries.map(|_| self.at(self.plan.queries).as_bytes())
    }

    /// The place for the bits of a filter.
    pub fn filter(&self) -> PtrMut<u32> {
        self.at(self.plan.filter)
    }

    /// The number of candidates of each query, if candidates are appended.
    pub fn counts(&self) -> PtrMut<u32> {
        self.at(self.plan.results.counts)
    }

    /// The start of each query's row of scores, and then the end of the last row.
    pub fn row_starts(&self) -> PtrMut<u64> {
        self.at(self.plan.row_starts)
    }

    /// The results of [`Self::run`] for the host: k distances and k ranks for each query. If the search completes none,
    /// there follow whether its probes and whether its neighbours lack a certificate, and, if candidates are appended,
    /// their number.
    pub fn results(&self) -> Vec<ResultArray> {
        let (found, each) = (self.found(), self.plan.search_shape.k as usize);
        let mut all = vec![ResultArray::new(found.keys, each), ResultArray::new(found.ranks, each)];
        if !self.completes {
            // Probes without flags are as good as those whose neighbours have a certificate.
            let of_probes =
                if self.plan.compares_centroids { found.flags } else { self.at(self.plan.results.probe_flags) };
            all.extend([of_probes, found.flags].map(|flags| ResultArray::new(flags, 1)));
            all.extend(self.plan.room().map(|_| ResultArray::new(self.counts(), 1)));
        }
        all
    }

    /// Whether a query lacks a certificate, by the flags and numbers of [`Self::results`].
    pub fn lacks_certificate(&self, flags: &[&[u8]]) -> bool {
        let mut words = flags.iter().map(|part| bytemuck::cast_slice::<u8, u32>(part));
        let set = words.by_ref().take(2).flatten().any(|&flag| flag != 0);
        let room = self.plan.room().unwrap_or(u32::MAX);
        set || words.flatten().any(|&count| count > room)
    }

    /// The neighbours that [`Self::run`] finds.
    pub fn found(&self) -> Found {
        let results = &self.plan.results;
        Found { keys: self.at(results.keys), ranks: self.at(results.ranks), flags: self.at(results.flags) }
    }

    /// Launches the steps that follow [`Self::probe`] of all queries. Then [`Self::results`] hold the results.
    ///
    /// # Safety
    /// As [`Self::probe`] for all queries; the filter is on the device.
    pub unsafe fn run(&self) -> Result<()> {
        // SAFETY: as the caller promises; each step reads what the previous steps wrote.
        unsafe {
            if let Some(lists) = self.plan.compares_lists {
                return self.compare_lists(lists);
            }
            self.group(0..self.plan.search_shape.dense_probes, None)?;
            self.run_grouped()
        }
    }

    /// Groups the pairs of all probes, waits for that, and returns the number of their scores.
    ///
    /// # Safety
    /// As [`Self::run`].
    pub unsafe fn group_and_count(&self) -> Result<u64> {
        let mut end = [0u64];
        // SAFETY: as the caller promises; the last row of scores ends where `row_starts` says.
        unsafe {
            self.group(0..self.plan.search_shape.probes, None)?;
            let from = self.row_starts().skip(self.plan.search_shape.queries as usize);
            self.on.runtime.copy_to_host(self.on.stream, &mut end, from)?;
        }
        Ok(end[0])
    }

    /// The steps of [`Self::run`] that follow the grouping of pairs.
    ///
    /// # Safety
    /// As [`Self::run`]; the pairs of the probes whose scores are all kept are grouped, and their scores have room.
    pub unsafe fn run_grouped(&self) -> Result<()> {
        let (dense, all) = (self.plan.search_shape.dense_probes, self.plan.search_shape.probes);
        let from = self.candidates();
        let (fine, of) = (&self.plan.fine, self.compared());
        // SAFETY: as the caller promises; each step reads what the previous steps wrote.
        unsafe {
            self.scan(None)?;
            match fine.begin_lists(from, self.counts())? {
                None => fine.run(from, of, self.found())?,
                Some(lists) => {
                    self.group(dense..all, Some(lists.thresholds.into()))?;
                    self.scan(Some(lists))?;
                    fine.end_lists(from, lists, of, self.found())?;
                }
            }
            if self.completes { self.rescan() } else { Ok(()) }
        }
    }

    /// Finds the neighbours of all queries by exact distances of all vectors in their lists.
    ///
    /// # Safety
    /// As [`Self::run`].
    unsafe fn compare_lists(&self, lists: ListsPlan) -> Result<()> {
        let (found, shape) = (self.found(), self.plan.search_shape);
        let launch = Rescan {
            query_count: shape.queries,
            flags: found.flags,
            k: shape.k,
            shared_by: lists.shared_by,
            piece: lists.piece,
            entries: self.at(lists.entries),
            finished: self.counters,
            keys: found.keys,
            out_ranks: found.ranks,
            ..self.all_rows()
        };
        // SAFETY: as the caller promises; the plan reserved the entries for these blocks, and there is a counter for
        // each query.
        unsafe { self.compare_all(Rescanned::Neighbors, launch) }
    }

    /// Compares the queries that lack a certificate for their neighbours with all vectors of their lists.
    ///
    /// # Safety
    /// As [`Self::run`], of which this is the last step.
    unsafe fn rescan(&self) -> Result<()> {
        let (found, lists) = (self.found(), self.plan.fine.lists(self.candidates(), self.counts()));
        let launch = Rescan {
            flags: found.flags,
            counts: lists.map(|lists| lists.counts.into()),
            room: lists.map_or(0, |lists| lists.capacity),
            candidate_scores: lists.map(|lists| lists.scores.into()),
            candidate_places: lists.map_or(Ptr::empty(), |lists| lists.places.into()),
            thresholds: lists.map_or(Ptr::empty(), |lists| lists.thresholds.into()),
            entries: self.at(self.plan.completed),
            finished: self.counters,
            k: self.plan.search_shape.k,
            keys: found.keys,
            out_ranks: found.ranks,
            ..self.all_rows()
        };
        // SAFETY: as the caller promises; the re-ranking wrote k results of each query.
        unsafe { self.compare_all(Rescanned::Neighbors, launch) }
    }

    /// Adds the number of vectors within `radius` in the lists of the listed queries to their counts.
    ///
    /// # Safety
    /// [`Self::run`] precedes this in the stream. `listed` has the number of listed queries and then their numbers, and
    /// `within` a word for each query.
    pub unsafe fn count_within(&self, radius: f32, listed: Ptr<u32>, within: PtrMut<u32>) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.compare_all(Rescanned::Count, Rescan { listed, radius, within, ..self.all_rows() }) }
    }

    /// # Safety
    /// As [`Rescan`].
    unsafe fn compare_all(&self, what: Rescanned, launch: Rescan) -> Result<()> {
        let OnStream { runtime, stream } = self.on;
        let config = launch.config(what, runtime.limits().multiprocessors);
        let kernel = self.resident.image.stored.rerank.rescanning(what);
        // SAFETY: as the caller promises.
        unsafe { runtime.launch(stream, kernel, config, launch) }
    }

    /// All vectors of the probed lists, for kernels that compare queries with them.
    fn all_rows(&self) -> Rescan {
        let (plan, image, from) = (self.plan, &self.resident.image, self.candidates());
        Rescan {
            query_count: self.queries,
            queries: self.queries().into(),
            stride: image.row_stride(),
            stored: image.stored_rows(),
            metric: from.metric,
            lists: from.lists,
            // If candidates are appended, only the scores of the first probes are in memory; if all vectors are
            // compared, none.
            scores: (plan.room().is_none() && plan.compares_lists.is_none()).then_some(from.scores),
            row_starts: self.row_starts().into(),
            shifts: from.shifts,
            errors: from.errors,
            ..Rescan::default()
        }
    }

    /// The tiles of queries with which the lists are scanned.
    fn tile(&self, appends: bool) -> Tile {
        // Appending pays only with many pairs for each list, so there are no kernels that append with small tiles.
        let all = if self.plan.search_shape.small_tiles { Tile::Of16 } else { Tile::Of64 };
        if appends { Tile::Append } else { all }
    }

    /// Prepares some of the queries and finds their probes.
    ///
    /// # Safety
    /// These queries are on the device, and the scratch has the arrays that the plan reserved.
    pub unsafe fn probe(&self, of: Range<u32>) -> Result<()> {
        let (plan, image) = (self.plan, &self.resident.image);
        let queries = of.len() as u32;
        let wide = self.at(plan.queries);
        let own = GivenQueries {
            element: if plan.narrow_queries.is_some() { self.element } else { ElementType::F32 },
            rows: self.queries(),
            metric: image.operand_metric(),
            cosines: image.divides_scores(),
            greatest: image.greatest,
            to: plan.operands,
        };
        // SAFETY: as the caller promises.
        unsafe {
            if plan.compares_lists.is_none() {
                match image.stored.operands {
                    ScanOperands::Halves => self.prepare(&of, own)?,
                    ScanOperands::Bytes(key) => self.prepare_bytes(&of, key)?,
                    ScanOperands::Codes { bytes } => self.prepare_planes(&of, bytes)?,
                }
            }
            if plan.compares_centroids {
                return self.compare_centroids(&of);
            }
            let operands = match plan.coarse_operands {
                None => plan.operands,
                Some(to) => {
                    let own = GivenQueries {
                        element: ElementType::F32,
                        rows: wide.as_bytes(),
                        metric: image.probe_metric(),
                        cosines: false,
                        greatest: image.centroid_greatest,
                        to,
                    };
                    self.prepare(&of, own)?;
                    to
                }
            };
            let row_stride = pairs::padded(image.lists);
            let scores = part(self.at(plan.coarse_scores), &of, row_stride as usize);
            let tile = if queries <= 16 { Tile::Of16 } else { Tile::Of64 };
            let tile_queries = flat::SCAN.queries(tile);
            let limits = self.on.runtime.limits();
            let multiprocessors = limits.multiprocessors;
            let cuts = (multiprocessors * 2).div_ceil(queries.div_ceil(tile_queries).max(1));
            // A dense scan: every query with all centroids.
            let launch = ScanLists {
                queries: part(self.at(operands.queries), &of, image.f16_stride as usize).into(),
                factors: part(self.at(operands.factors), &of, 1).into(),
                query_count: queries,
                stride: image.f16_stride,
                item_rows: image.lists.div_ceil(cuts).next_multiple_of(TILE_ROWS).min(ITEM_ROWS),
                row_stride,
                row_count: image.lists,
                values: image.centroid_values,
                scores,
                base: image.f16_centroids,
                ..ScanLists::default()
            };
            let items = launch.dense_items(tile_queries);
            let by = (limits.products.instruction(items), tile);
            let (kernel, config) = flat::SCAN.kernel_and_config(&launch, by, items.into(), multiprocessors);
            self.on.runtime.launch(self.on.stream, kernel, config, launch)?;
            let against_centroids = self.at(operands.errors).skip(plan.search_shape.queries as usize);
            let from = Candidates {
                row_count: image.lists,
                metric: image.probe_metric(),
                shifts: part(self.at(operands.shifts), &of, 1).into(),
                errors: part(against_centroids, &of, 1).into(),
                ..Candidates::of_one_list(self.on, self.scratch, queries, scores.into(), row_stride.into())
            };
            let vectors = Centroids {
                queries: part(wide, &of, image.stride() as usize).into(),
                centroids: image.centroids,
                stride: image.stride(),
            };
            let probes = part(self.at(plan.probed_lists), &of, plan.search_shape.probes as usize);
            let flags = part(self.at(plan.results.probe_flags), &of, 1);
            plan.coarse.settle(from, vectors, probes, flags)?;
            if !self.completes {
                return Ok(());
            }
            let from = Candidates { queries: queries.min(self.queries.saturating_sub(of.start)), ..from };
            plan.coarse.rescan_probes(from, vectors, probes, flags)
        }
    }

    /// Finds the probes of some of the queries by exact distances of all centroids.
    ///
    /// # Safety
    /// As [`Self::probe`].
    unsafe fn compare_centroids(&self, of: &Range<u32>) -> Result<()> {
        let (plan, image) = (self.plan, &self.resident.image);
        let (queries, each) = (of.len() as u32, plan.search_shape.probes as usize);
        let row_stride = pairs::padded(image.lists);
        let distances = part(self.at(plan.coarse_scores), of, row_stride as usize);
        // A block for each multiprocessor, at most: launches of so few blocks may start before the kernel ahead has
        // ended.
        let warps = self.on.runtime.limits().multiprocessors * canonical::WARPS_PER_BLOCK / queries.max(1);
        let launch = Canonical {
            queries: part(self.at(plan.queries), of, image.stride() as usize).as_bytes().into(),
            base: image.centroids.as_bytes(),
            stride: image.stride(),
            query_count: queries,
            metric: image.probe_metric(),
            query_squares: None,
            base_squares: Ptr::empty(),
            rows: None,
            counts: None,
            columns: image.lists,
            slices: warps.clamp(1, image.lists.div_ceil(canonical::BATCH as u32).max(1)),
            list_stride: row_stride.into(),
            distances,
        };
        let from = Candidates::of_one_list(self.on, self.scratch, queries, distances.into(), row_stride.into());
        let (keys, probes) = (part(self.at(plan.probe_keys), of, each), part(self.at(plan.probed_lists), of, each));
        // SAFETY: as the caller promises; the plan reserved the arrays, and the selection reads what the first kernel
        // writes.
        unsafe {
            let kernel = Canonical::kernel(RowKey::F32);
            self.on.runtime.launch(self.on.stream, kernel, launch.config(), launch)?;
            plan.coarse.best(from, image.nearest_probes(), keys, probes)
        }
    }

    /// Makes f16 operands of some of the queries.
    ///
    /// # Safety
    /// As [`Self::probe`].
    unsafe fn prepare(&self, of: &Range<u32>, from: GivenQueries) -> Result<()> {
        let GivenQueries { element, rows, metric, cosines, greatest, to } = from;
        let (image, queries) = (&self.resident.image, self.plan.search_shape.queries);
        let row_bytes = image.stride() as usize * element.size();
        // `errors` has the bounds of all queries against vectors, then against centroids. This part reaches from the
        // first to the second bounds of these queries.
        let errors = self.at(to.errors).skip(of.start as usize).take(queries as usize + of.len());
        let launch = PrepareQueries {
            rows: part(rows, of, row_bytes).into(),
            count: of.len() as u32,
            stride: image.stride(),
            centre: image.centre,
            metric,
            base_greatest: greatest,
            copy: part(self.at(to.queries), of, image.f16_stride as usize),
            copy_stride: image.f16_stride,
            factors: part(self.at(to.factors), of, 1),
            cosines: cosines.into(),
            base_bounds: image.bounds,
            errors,
            errors_apart: queries,
            shifts: part(self.at(to.shifts), of, 1),
        };
        let kernel = PrepareQueries::kernel(element.key());
        // SAFETY: as the caller promises.
        unsafe { self.on.runtime.launch(self.on.stream, kernel, launch.config(), launch) }
    }

    /// Finds factors, errors and shifts of some of the queries, which are bytes or bits.
    ///
    /// # Safety
    /// As [`Self::probe`].
    unsafe fn prepare_bytes(&self, of: &Range<u32>, key: ExactKey) -> Result<()> {
        let (image, to) = (&self.resident.image, self.plan.operands);
        let launch = PrepareByteQueries {
            rows: part(self.queries(), of, image.row_stride() as usize).into(),
            count: of.len() as u32,
            stride: image.row_stride(),
            metric: image.row_metric(),
            base_norm: image.bounds.take(1),
            factors: part(self.at(to.factors), of, 1),
            errors: part(self.at(to.errors), of, 1),
            shifts: part(self.at(to.shifts), of, 1),
        };
        // SAFETY: as the caller promises.
        unsafe { self.on.runtime.launch(self.on.stream, PrepareByteQueries::kernel(key), launch.config(), launch) }
    }

    /// Makes two planes of `plane_bytes` bytes, factors, errors and shifts of some of the queries.
    ///
    /// # Safety
    /// As [`Self::probe`].
    unsafe fn prepare_planes(&self, of: &Range<u32>, plane_bytes: u32) -> Result<()> {
        let (plan, image, to) = (self.plan, &self.resident.image, self.plan.operands);
        let launch = PrepareCodeQueries {
            rows: part(self.at(plan.queries), of, image.stride() as usize).into(),
            count: of.len() as u32,
            stored: image.stored_rows(),
            plane_bytes,
            centre: image.centre,
            metric: image.operand_metric(),
            cosines: image.divides_scores().into(),
            base_bounds: image.bounds,
            planes: part(self.at(to.queries), of, plane_bytes as usize).as_bytes(),
            factors: part(self.at(to.factors), of, 1),
            errors: part(self.at(to.errors), of, 1),
            shifts: part(self.at(to.shifts), of, 1),
            terms: plan.terms.filter(|_| self.has_query_terms()).map(|terms| part(self.at(terms), of, 1)),
        };
        // SAFETY: as the caller promises.
        unsafe { self.on.runtime.launch(self.on.stream, &PrepareCodeQueries::KERNEL, launch.config(), launch) }
    }

    /// Groups the pairs of some probes by list. With `thresholds`, the pairs are for a scan that appends candidates up
    /// to the thresholds.
    ///
    /// # Safety
    /// As [`Self::run`]; the probes were found.
    pub unsafe fn group(&self, of: Range<u32>, thresholds: Option<Ptr<f32>>) -> Result<()> {
        let OnStream { runtime, stream } = self.on;
        let (plan, image, search_shape) = (self.plan, &self.resident.image, self.plan.search_shape);
        let tile = image.stored.scan.queries(self.tile(thresholds.is_some()));
        let item_rows = Resident::item_rows(search_shape);
        let pair_count = search_shape.queries * search_shape.probes;
        let probed_lists = self.at(plan.probed_lists).read_only();
        let counts = self.at(plan.counts);
        let factors = self.at(plan.operands.factors).read_only();
        // SAFETY: as the caller promises; arrays have the sizes that the plan reserved.
        unsafe {
            if search_shape.filtered() && of.start == 0 {
                runtime.fill(stream, self.at(plan.live), 0)?;
                let launch = CountLive {
                    list_starts: image.starts,
                    lengths: image.lengths,
                    ranks: image.ranks,
                    filter: self.at(plan.filter).into(),
                    live: self.at(plan.live),
                };
                runtime.launch(stream, &CountLive::KERNEL, launch.config(image.lists), launch)?;
            }
            let live = if search_shape.filtered() { self.at(plan.live).read_only() } else { image.lengths };
            // With more pairs than lists, several queries share a list, and grouping lets the scan read it once for
            // all. The scan by tables reads a list for each query anyway.
            let few = pair_count < pairs::FEW && (pair_count <= image.lists || plan.tables.is_some());
            if few && of == (0..search_shape.probes) {
                let launch = FewPairs {
                    probed_lists,
                    query_count: search_shape.queries,
                    probes: search_shape.probes,
                    lengths: image.lengths,
                    live,
                    factors,
                    item_rows,
                    shared_scores: search_shape.shares_scores.into(),
                    offsets: self.at(plan.offsets),
                    row_starts: self.row_starts(),
                    live_rows: self.at(plan.live_rows),
                    item_count: self.at(plan.item_count),
                    grouped: self.at(plan.grouped),
                    items: self.at(plan.items),
                };
                runtime.launch(stream, &FewPairs::KERNEL, launch.config(), launch)?;
                return self.pair_terms(&of, false);
            }
            runtime.fill(stream, counts, 0)?;
            let launch = CountPairs {
                probed_lists,
                query_count: search_shape.queries,
                probes: search_shape.probes,
                first_probe: of.start,
                end_probe: of.end,
                lengths: image.lengths,
                live,
                shared_scores: search_shape.shares_scores.into(),
                counts,
                slots: self.at(plan.slots),
                offsets: self.at(plan.offsets),
                row_lengths: self.at(plan.row_lengths),
                live_rows: self.at(plan.live_rows),
            };
            runtime.launch(stream, &CountPairs::KERNEL, launch.config(), launch)?;
            let launch = PlacePairs {
                list_count: image.lists,
                lengths: image.lengths,
                counts: counts.into(),
                tile,
                item_rows,
                first_pairs: self.at(plan.first_pairs),
                first_items: self.at(plan.first_items),
                item_count: self.at(plan.item_count),
                query_count: search_shape.queries,
                row_lengths: self.at(plan.row_lengths).into(),
                row_starts: self.row_starts(),
            };
            runtime.launch(stream, &PlacePairs::KERNEL, launch.config(), launch)?;
            if plan.tables.is_some() {
                return Ok(());
            }
            let launch = ScatterPairs {
                probed_lists,
                pair_count,
                probes: search_shape.probes,
                first_probe: of.start,
                end_probe: of.end,
                lengths: image.lengths,
                counts: counts.into(),
                slots: self.at(plan.slots).into(),
                offsets: self.at(plan.offsets).into(),
                row_starts: self.row_starts().into(),
                thresholds,
                factors,
                tile,
                item_rows,
                first_pairs: self.at(plan.first_pairs).into(),
                first_items: self.at(plan.first_items).into(),
                grouped: self.at(plan.grouped),
                items: self.at(plan.items),
            };
            runtime.launch(stream, &ScatterPairs::KERNEL, launch.config(), launch)?;
            self.pair_terms(&of, true)
        }
    }

    /// Whether the terms of scores are those of queries, and the same for all lists.
    fn has_query_terms(&self) -> bool {
        self.resident.image.stored.no_centroid.is_some()
    }

    /// Computes the terms of the pairs of some probes, if the scores have them.
    ///
    /// # Safety
    /// As [`Self::group`], whose other kernels precede this in the stream.
    unsafe fn pair_terms(&self, of: &Range<u32>, grouped: bool) -> Result<()> {
        let (plan, image) = (self.plan, &self.resident.image);
        let Some(terms) = plan.terms.filter(|_| !self.has_query_terms()) else { return Ok(()) };
        let launch = PairTerms {
            rows: self.at(plan.queries).into(),
            stored: image.stored_rows(),
            centre: image.centre,
            metric: image.operand_metric(),
            probed_lists: self.at(plan.probed_lists).into(),
            query_count: plan.search_shape.queries,
            probes: plan.search_shape.probes,
            first_probe: of.start,
            end_probe: of.end,
            lengths: image.lengths,
            slots: grouped.then(|| self.at(plan.slots).into()),
            first_pairs: self.at(plan.first_pairs).into(),
            terms: self.at(terms),
        };
        // SAFETY: as the caller promises; the plan reserved a term for each pair.
        unsafe { self.on.runtime.launch(self.on.stream, &PairTerms::KERNEL, launch.config(), launch) }
    }

    fn filter_bits(&self) -> Option<Ptr<u32>> {
        self.plan.search_shape.filtered().then(|| self.at(self.plan.filter).into())
    }

    /// Scores every vector of the grouped lists; with `lists`, appends the vectors within the thresholds.
    ///
    /// # Safety
    /// As [`Self::run`]; the pairs are grouped.
    pub unsafe fn scan(&self, lists: Option<CandidateLists>) -> Result<()> {
        let (plan, image, search_shape) = (self.plan, &self.resident.image, self.plan.search_shape);
        if let (Some(index), Some((tables, errors))) = (image.stored.tables, &plan.tables) {
            let what = TableScan {
                queries: self.at(plan.queries).into(),
                query_count: search_shape.queries,
                probes: search_shape.probes,
                probed_lists: self.at(plan.probed_lists).into(),
                pair_offsets: self.at(plan.offsets).into(),
                row_starts: self.row_starts().into(),
                scores: self.at(plan.scores),
                errors: self.at(*errors),
            };
            let image = image.table_image();
            // SAFETY: as the caller promises.
            return unsafe { tables::enqueue(&self.on, &what, &image, index.terms, tables, self.scratch) };
        }
        let stored = &image.stored;
        // The operands of queries and rows, as words of 16 bits.
        let (queries, stride, base) = match stored.operands {
            ScanOperands::Halves => (self.at(plan.operands.queries).into(), image.f16_stride, stored.f16_rows),
            ScanOperands::Bytes(_) => (self.queries().cast::<u16>().into(), stored.row_bytes / 2, stored.rows.cast()),
            ScanOperands::Codes { bytes } => (self.at(plan.operands.queries).into(), bytes / 2, stored.rows.cast()),
        };
        let launch = ScanLists {
            queries,
            stride,
            items: self.at(plan.items).into(),
            item_count: self.at(plan.item_count).into(),
            item_rows: Resident::item_rows(search_shape),
            grouped: self.at(plan.grouped).into(),
            terms: plan.terms.map_or(Ptr::empty(), |terms| self.at(terms).into()),
            terms_of_queries: self.has_query_terms().into(),
            list_starts: image.starts,
            lengths: image.lengths,
            values: image.values,
            row_factors: image.has_factors().into(),
            ranks: image.ranks,
            filter: self.filter_bits(),
            shared_scores: search_shape.shares_scores.into(),
            base,
            stored: image.stored_rows(),
            parts: stored.parts,
            ..ScanLists::default()
        };
        let launch = match lists {
            None => ScanLists { scores: self.at(plan.scores), ..launch },
            Some(CandidateLists { capacity, scores, places, counts, .. }) => {
                ScanLists { scores, places, counts, capacity, ..launch }
            }
        };
        let limits = self.on.runtime.limits();
        let items = self.resident.most_items(search_shape);
        let by = (limits.products.instruction(items as u32), self.tile(lists.is_some()));
        let (kernel, config) = stored.scan.kernel_and_config(&launch, by, items as u64, limits.multiprocessors);
        // SAFETY: as the caller promises; pairs were grouped for tiles of this size.
        unsafe { self.on.runtime.launch(self.on.stream, kernel, config, launch) }
    }

    /// The candidates of the scan.
    pub fn candidates(&self) -> Candidates<'_> {
        let (plan, image, search_shape) = (self.plan, &self.resident.image, self.plan.search_shape);
        // Scores by tables are whole distances and have separate error bounds.
        let (shifts, errors) = match plan.tables {
            Some((_, errors)) => (None, self.at(errors)),
            None => {
                let against_vectors = self.at(plan.operands.errors).take(search_shape.queries as usize);
                (self.at(plan.operands.shifts).into(), against_vectors)
            }
        };
        Candidates {
            on: self.on,
            scratch: self.scratch,
            queries: search_shape.queries,
            scores: self.at(plan.scores).into(),
            row_stride: 0,
            row_starts: self.row_starts().into(),
            lists: ProbedLists {
                probes: search_shape.probes,
                probed_lists: self.at(plan.probed_lists).into(),
                offsets: self.at(plan.offsets).into(),
                list_starts: image.starts,
                lengths: image.lengths,
                shared_scores: search_shape.shares_scores.into(),
                ranks: Some(image.ranks),
                filter: self.filter_bits(),
            },
            live_rows: self.at(plan.live_rows).into(),
            row_count: 0,
            metric: image.row_metric(),
            shifts,
            errors: errors.into(),
        }
    }

    /// Finds the best of the scanned vectors by a stage that reserved `scratch`.
    ///
    /// # Safety
    /// As [`Self::run`]; the scores were written.
    pub unsafe fn best(&self, stage: &Stage, scratch: Scratch, to: Found) -> Result<()> {
        let from = Candidates { scratch, ..self.candidates() };
        // SAFETY: as the caller promises.
        unsafe { stage.run(from, self.compared(), to) }
    }

    /// The stored vectors, and the queries that are compared with them.
    fn compared(&self) -> (&Stored, Rerank) {
        let image = &self.resident.image;
        let (queries, stored) = (self.queries().into(), image.stored_rows());
        (&image.stored, Rerank { queries, stride: image.row_stride(), stored, ..Rerank::default() })
    }
}
