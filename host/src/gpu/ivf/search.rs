//! A search of an image: queries made ready, probes, pairs, scan, and the best of what was scanned.
//!
//! ```text
//! queries ──prepare_queries──► f16 copies ──scan centroids──► scores ──stage──► probes          (coarse quantiser)
//!     probes ──count, place, scatter──► pairs by list, items ──scan lists──► scores, one row a query
//!                                                              └──stage──► distances and ranks, and who lacks a certificate
//! ```
//!
//! Queries without a certificate, of their probes or of their neighbours, are searched again with more candidates selected, at last
//! with all of them: then nothing is left to prove.

use std::ops::Range;

use cuda_std::global::U32x4;
use cuda_std::launch::LaunchConfig;
use warpann_kernels::list_scan::{self, TILE_ROWS};
use warpann_kernels::{code_bounds, pairs, queries as query_kernels};

use super::super::exact::blocks;
use super::super::runtime::{Array, OnStream, Runtime, grid};
use super::super::tables::{self, TableScan};
use super::image::{Resident, Stored};
use super::plan::{ITEM_ROWS, SearchPlan};
use super::stage::{CandidateLists, Candidates, Found, Stage, Vectors};
use crate::{ElementType, Result};

/// Shared memory of a multiprocessor, of those with most: where there is less, blocks wait for others to end.
const SHARED_BYTES: u32 = 228 << 10;

/// The kernels of the scan, by tile and whether queries stay in shared memory.
macro_rules! scan_kernel {
    ($small:expr, $resident:expr, $a:ident, $b:ident, $c:ident, $d:ident) => {
        match ($small, $resident) {
            (false, true) => &list_scan::$a,
            (false, false) => &list_scan::$b,
            (true, true) => &list_scan::$c,
            (true, false) => &list_scan::$d,
        }
    };
}

/// A search on its way.
pub(super) struct Search<'a, R: Runtime> {
    pub runtime: &'a R,
    pub stream: &'a R::Stream,
    /// For copies that come before the search.
    pub copies: &'a R::Stream,
    pub resident: &'a Resident<R>,
    pub element: ElementType,
    pub plan: &'a SearchPlan,
    /// Scratch of the plan's size.
    pub start: *mut u8,
}

impl<R: Runtime> Search<'_, R> {
    fn at<T>(&self, offset: usize) -> *mut T {
        self.start.wrapping_add(offset).cast()
    }

    /// Where queries go, as stored vectors are compared with them.
    pub fn queries(&self) -> *mut u8 {
        self.at(self.plan.queries)
    }

    /// Where queries go as f32, if that is another place.
    pub fn wide(&self) -> Option<*mut u8> {
        self.plan.wide.map(|offset| self.at(offset))
    }

    /// Where the bits of a filter go.
    pub fn filter(&self) -> *mut u8 {
        self.at(self.plan.filter)
    }

    /// Where the results are.
    pub fn results(&self) -> *const u8 {
        self.at::<u8>(self.plan.results)
    }

    /// What [`Self::run`] leaves for the host: of each query whether its probes and whether its neighbours lack a certificate, k distances, as
    /// many ranks, and where candidates are appended their number.
    pub fn results_of(&self) -> Vec<Array> {
        let (found, each) = (self.found(), self.plan.ask.k as usize);
        let of_probes = self.at::<u32>(self.plan.results);
        let all = [
            Array::new(of_probes, 1),
            Array::new(found.flags, 1),
            Array::new(found.keys, each),
            Array::new(found.ranks, each),
        ];
        let counts = self.plan.room().map(|_| Array::new(self.counts(), 1));
        all.into_iter().chain(counts).collect()
    }

    fn coarse_queries(&self) -> *const f32 {
        self.at::<f32>(self.plan.wide.unwrap_or(self.plan.queries)).cast_const()
    }

    fn found(&self) -> Found {
        let queries = self.plan.ask.queries as usize;
        let flags = self.at::<u32>(self.plan.results).wrapping_add(queries);
        let keys = flags.wrapping_add(queries);
        Found { keys: keys.cast(), ranks: keys.wrapping_add(queries * self.plan.ask.k as usize), flags }
    }

    /// Launches what comes after [`Self::probe`] of all queries. The results hold, for each query, whether its probes and whether its
    /// neighbours lack a certificate, then k distances and k ranks.
    ///
    /// # Safety
    /// As [`Self::probe`], and the filter is uploaded.
    pub unsafe fn run(&self) -> Result<()> {
        // SAFETY: as the caller promises; each step finds what the ones before wrote.
        unsafe {
            let (dense, all) = (self.plan.ask.dense_probes, self.plan.ask.probes);
            self.group(0..dense, std::ptr::null())?;
            self.scan(None)?;
            let fine = &self.plan.fine;
            let (queries, from) = (self.plan.ask.queries, self.candidates());
            let counts = self.counts();
            match fine.begin_lists(self.runtime, self.stream, self.start, queries, &from, counts)? {
                None => self.best(fine, self.start, self.found()),
                Some(lists) => {
                    self.group(dense..all, lists.limits)?;
                    self.scan(Some(lists))?;
                    let (vectors, to) = (self.vectors(), self.found());
                    fine.end_lists(self.runtime, self.stream, self.start, queries, counts, &from, &vectors, to)
                }
            }
        }
    }

    /// Queries of a tile.
    fn tile(&self, appends: bool) -> u32 {
        match self.resident.image.stored {
            Stored::Rows { .. } if appends => list_scan::APPEND_QUERIES,
            _ => self.resident.tile(self.plan.ask),
        }
    }

    /// Numbers of candidates, behind all else that comes to the host: they do where candidates are appended.
    fn counts(&self) -> *mut u32 {
        let ask = self.plan.ask;
        self.at::<u32>(self.plan.results).wrapping_add((2 + 2 * ask.k as usize) * ask.queries as usize)
    }

    /// Makes some of the queries ready and finds their probes.
    ///
    /// # Safety
    /// These queries are uploaded, and the scratch has what the plan reserved.
    pub unsafe fn probe(&self, of: Range<u32>) -> Result<()> {
        let (plan, image) = (self.plan, &self.resident.image);
        let (first, queries) = (of.start as usize, of.len() as u32);
        let parts = [plan.copies, plan.factors, plan.errors, plan.shifts];
        let element = if plan.wide.is_some() { self.element } else { self.query_element() };
        let stride = image.stride() as usize;
        let wide = self.coarse_queries().wrapping_add(first * stride);
        // SAFETY: as the caller promises.
        unsafe {
            let own = self.queries().wrapping_add(first * stride * element.size());
            self.prepare(of.clone(), element, own, image.metric_code(), image.greatest, parts)?;
            let [copies, factors, errors, shifts] = match plan.coarse_copies {
                None => parts,
                Some(parts) => {
                    let greatest = image.greatest.wrapping_add(1);
                    self.prepare(of, ElementType::F32, wide.cast(), image.probe_metric_code(), greatest, parts)?;
                    parts
                }
            };
            let row_stride = pairs::padded(image.lists);
            let scores = self.at::<f32>(plan.coarse_scores).wrapping_add(first * row_stride as usize);
            let small = queries <= 16;
            let tile = if small { 16 } else { 64 };
            let tiles = queries.div_ceil(tile);
            let cuts = (self.runtime.limits().multiprocessors * 2).div_ceil(tiles.max(1));
            let item_rows = image.lists.div_ceil(cuts).next_multiple_of(TILE_ROWS).min(ITEM_ROWS);
            let null = std::ptr::null();
            let kernel = scan_kernel!(
                small,
                self.resident_queries(tile),
                SCAN_LISTS_64,
                SCAN_LISTS_64_STREAMED,
                SCAN_LISTS_16,
                SCAN_LISTS_16_STREAMED
            );
            let items = u64::from(tiles) * u64::from(image.lists.div_ceil(item_rows));
            let args = (
                self.at::<u16>(copies).wrapping_add(first * image.copy_stride as usize).cast_const(),
                self.at::<f32>(factors).wrapping_add(first).cast_const(),
                queries,
                image.copy_stride,
                std::ptr::null::<U32x4>(),
                null,
                item_rows,
                std::ptr::null::<U32x4>(),
                row_stride,
                null,
                null,
                image.lists,
                image.centroid_values.cast_const(),
                null,
                null,
                scores,
                std::ptr::null_mut::<u32>(),
                std::ptr::null_mut::<u32>(),
                0,
                image.centroid_copies.cast_const(),
            );
            self.runtime.launch(
                self.stream,
                kernel,
                self.scan_config(kernel.name(), self.flat_shared_bytes(tile), items, false)?,
                args,
            )?;
            let from = Candidates {
                scores,
                row_stride: u64::from(row_stride),
                row_starts: std::ptr::null(),
                nprobe: 1,
                probes: null,
                offsets: null,
                list_starts: null,
                lengths: null,
                ranks: null,
                filter: null,
                live_rows: null,
                row_count: image.lists,
                metric: image.probe_metric_code(),
                shifts: self.at::<f32>(shifts).wrapping_add(first),
                // The second half is of the centroids.
                errors: self.at::<f32>(errors).wrapping_add(plan.ask.queries as usize + first),
            };
            let probes = self.at::<u32>(plan.probes).wrapping_add(first * plan.ask.probes as usize);
            let flags = self.at::<u32>(plan.results).wrapping_add(first);
            if plan.ask.attempt == 0 {
                let vectors = (wide, image.centroids.cast_const(), image.stride());
                return plan.coarse.settle(
                    self.runtime,
                    self.stream,
                    self.start,
                    queries,
                    &from,
                    vectors,
                    (probes, flags),
                );
            }
            let vectors = Vectors::Rows {
                element: ElementType::F32,
                queries: wide.cast(),
                rows: image.centroids.cast_const().cast(),
                stride: image.stride(),
            };
            let keys = self.at::<f32>(plan.probe_keys).wrapping_add(first * plan.ask.probes as usize);
            let to = Found { keys, ranks: probes, flags };
            plan.coarse.run(self.runtime, self.stream, self.start, queries, &from, &vectors, to)
        }
    }

    /// What stored vectors are compared with.
    fn query_element(&self) -> ElementType {
        match self.resident.image.stored {
            Stored::Rows { .. } => self.element,
            Stored::Codes(_) => ElementType::F32,
        }
    }

    /// Whether tiles of so many queries of this dimension stay in shared memory.
    fn resident_queries(&self, tile: u32) -> bool {
        self.resident.image.copy_stride / list_scan::CHUNK <= list_scan::resident_chunks(tile)
    }

    /// As many blocks as run at once, each of which takes one item after the other; fewer if there are fewer items.
    fn scan_config(&self, kernel: &'static str, shared_bytes: u32, items: u64, wide: bool) -> Result<LaunchConfig> {
        // Beside the kernel's own memory the driver takes a KiB a block; registers allow three, or two with wide tiles.
        let by_registers = if wide { 2 } else { 3 };
        let each = (SHARED_BYTES / (shared_bytes + 1024)).clamp(1, by_registers);
        let most = u64::from(self.runtime.limits().multiprocessors * each);
        Ok(LaunchConfig {
            grid: [grid(kernel, items.clamp(1, most))?, 1, 1],
            block: [list_scan::THREADS, 1, 1],
            shared_bytes,
        })
    }

    fn flat_shared_bytes(&self, tile: u32) -> u32 {
        list_scan::shared_bytes(tile, self.resident.image.copy_stride / list_scan::CHUNK)
    }

    /// f16 copies of queries and what goes with them.
    ///
    /// # Safety
    /// As [`Self::probe`]; `rows` are these queries, `parts` copies, factors, errors and shifts of all.
    unsafe fn prepare(
        &self,
        of: Range<u32>,
        element: ElementType,
        rows: *const u8,
        metric: u32,
        greatest: *const u32,
        parts: [usize; 4],
    ) -> Result<()> {
        let image = &self.resident.image;
        let (first, queries) = (of.start as usize, of.len() as u32);
        let [copies, factors, errors, shifts] = parts;
        macro_rules! by_element {
            ($(($name:ident, $stored:ty, $q:ident, $kernel:ident, $r:ident, $rh:ident, $f:ident, $fh:ident))*) => {
                match element {$(
                    ElementType::$name => {
                        let kernel = &query_kernels::$kernel;
                        let config = blocks(kernel.name(), u64::from(queries), query_kernels::WARPS_PER_BLOCK)?;
                        let args = (
                            rows.cast::<$stored>(), queries, image.stride(), image.centre.cast_const(), metric, greatest,
                            self.at::<u16>(copies).wrapping_add(first * image.copy_stride as usize), image.copy_stride,
                            self.at::<f32>(factors).wrapping_add(first), image.bounds.cast_const(),
                            self.at::<f32>(errors).wrapping_add(first), self.plan.ask.queries,
                            self.at::<f32>(shifts).wrapping_add(first),
                        );
                        // SAFETY: as the caller promises.
                        unsafe { self.runtime.launch(self.stream, kernel, config, args) }
                    }
                )*}
            };
        }
        warpann_kernels::list_search_instances!(by_element)
    }

    /// Groups the pairs of some probes by list, for appending up to `limits` where those are not null.
    ///
    /// # Safety
    /// As [`Self::run`]; the probes are there.
    pub unsafe fn group(&self, of: Range<u32>, limits: *const f32) -> Result<()> {
        let (plan, image, ask) = (self.plan, &self.resident.image, self.plan.ask);
        let (tile, item_rows) = (self.tile(!limits.is_null()), Resident::<R>::item_rows(ask));
        let pair_count = ask.queries * ask.probes;
        let probes = self.at::<u32>(plan.probes).cast_const();
        let lengths = image.lengths.cast_const();
        let counts = self.at::<u32>(plan.counts);
        // SAFETY: as the caller promises; arrays have the sizes that the plan reserved.
        unsafe {
            if ask.filtered() && of.start == 0 {
                let kernel = &code_bounds::COUNT_LIVE;
                self.runtime.fill(self.stream, self.at(plan.live), 0, 4 * image.lists as usize)?;
                let config = blocks(kernel.name(), u64::from(image.lists) * 4, 4)?;
                let args = (
                    image.starts.cast_const(),
                    lengths,
                    image.ranks.cast_const(),
                    self.at::<u32>(plan.filter).cast_const(),
                    self.at::<u32>(plan.live),
                );
                self.runtime.launch(self.stream, kernel, config, args)?;
            }
            let live = if ask.filtered() { self.at(plan.live) } else { image.lengths };
            // Fewer than lists: else several queries share one, and it is read once for them. By tables it is read for each.
            let few = pair_count < pairs::FEW && (pair_count <= image.lists || plan.tables.is_some());
            if few && of == (0..ask.probes) {
                let kernel = &pairs::FEW_PAIRS;
                let config = LaunchConfig { grid: [1, 1, 1], block: [pairs::PLACE_THREADS, 1, 1], shared_bytes: 0 };
                let args = (
                    probes,
                    ask.queries,
                    ask.probes,
                    lengths,
                    live.cast_const(),
                    self.at::<f32>(plan.factors).cast_const(),
                    item_rows,
                    self.at::<u32>(plan.offsets),
                    self.at::<u64>(plan.row_starts),
                    self.at::<u32>(plan.live_rows),
                    self.at::<u32>(plan.item_count),
                    self.at::<U32x4>(plan.grouped),
                    self.at::<U32x4>(plan.items),
                );
                return self.runtime.launch(self.stream, kernel, config, args);
            }
            self.runtime.fill(self.stream, counts.cast(), 0, 4 * image.lists as usize)?;
            let kernel = &pairs::COUNT_PAIRS;
            let config = blocks(kernel.name(), u64::from(ask.queries), pairs::WARPS_PER_BLOCK)?;
            let args = (
                probes,
                ask.queries,
                ask.probes,
                of.start,
                of.end,
                lengths,
                live.cast_const(),
                counts,
                self.at::<u32>(plan.slots),
                self.at::<u32>(plan.offsets),
                self.at::<u32>(plan.row_lengths),
                self.at::<u32>(plan.live_rows),
            );
            self.runtime.launch(self.stream, kernel, config, args)?;
            let kernel = &pairs::PLACE_PAIRS;
            let config = LaunchConfig { grid: [2, 1, 1], block: [pairs::PLACE_THREADS, 1, 1], shared_bytes: 0 };
            let args = (
                image.lists,
                lengths,
                counts.cast_const(),
                tile,
                item_rows,
                self.at::<u32>(plan.first_pairs),
                self.at::<u32>(plan.first_items),
                self.at::<u32>(plan.item_count),
                ask.queries,
                self.at::<u32>(plan.row_lengths).cast_const(),
                self.at::<u64>(plan.row_starts),
            );
            self.runtime.launch(self.stream, kernel, config, args)?;
            if plan.tables.is_some() {
                return Ok(());
            }
            let kernel = &pairs::SCATTER_PAIRS;
            let config = blocks(kernel.name(), u64::from(pair_count.div_ceil(32)), pairs::SCATTER_THREADS / 32)?;
            let args = (
                probes,
                pair_count,
                ask.probes,
                of.start,
                of.end,
                lengths,
                counts.cast_const(),
                self.at::<u32>(plan.slots).cast_const(),
                self.at::<u32>(plan.offsets).cast_const(),
                self.at::<u64>(plan.row_starts).cast_const(),
                limits,
                self.at::<f32>(plan.factors).cast_const(),
                tile,
                item_rows,
                self.at::<u32>(plan.first_pairs).cast_const(),
                self.at::<u32>(plan.first_items).cast_const(),
                self.at::<U32x4>(plan.grouped),
                self.at::<U32x4>(plan.items),
            );
            self.runtime.launch(self.stream, kernel, config, args)
        }
    }

    fn filter_bits(&self) -> *const u32 {
        if self.plan.ask.filtered() { self.at(self.plan.filter) } else { std::ptr::null() }
    }

    /// Scores every vector of the grouped lists; with `lists`, appends those within the limits.
    ///
    /// # Safety
    /// As [`Self::run`]; the pairs are grouped.
    pub unsafe fn scan(&self, lists: Option<CandidateLists>) -> Result<()> {
        let (plan, image, ask) = (self.plan, &self.resident.image, self.plan.ask);
        if let (Stored::Codes(codes), Some((tables, errors))) = (image.stored, &plan.tables) {
            let what = TableScan {
                queries: self.at(plan.queries),
                query_count: ask.queries,
                probe_count: ask.probes,
                probes: self.at(plan.probes),
                pair_offsets: self.at(plan.offsets),
                row_starts: self.at(plan.row_starts),
                scores: self.at(plan.scores),
                errors: self.at(*errors),
            };
            let queue = OnStream { runtime: self.runtime, stream: self.stream };
            // SAFETY: as the caller promises.
            return unsafe {
                tables::enqueue(&queue, &what, &codes.table_image(image), codes.terms_at, tables, self.start)
            };
        }
        // Appending pays where there are many pairs a list, and has no kernels for few; pairs were cut into the tiles of the ask.
        let small = self.resident.small_tiles(ask);
        let tile = self.tile(lists.is_some());
        let items = self.resident.most_items(ask) as u64;
        let copies = self.at::<u16>(plan.copies).cast_const();
        let factors = self.at::<f32>(plan.factors).cast_const();
        let list_items = self.at::<U32x4>(plan.items).cast_const();
        let item_count = self.at::<u32>(plan.item_count).cast_const();
        let item_rows = Resident::<R>::item_rows(ask);
        let grouped = self.at::<U32x4>(plan.grouped).cast_const();
        let (starts, lengths) = (image.starts.cast_const(), image.lengths.cast_const());
        let (values, ranks) = (image.values.cast_const(), image.ranks.cast_const());
        let scores = lists.map_or(self.at::<f32>(plan.scores), |lists| lists.scores);
        let none = std::ptr::null_mut();
        let (places, counts) = lists.map_or((none, none), |lists| (lists.places, lists.counts));
        let capacity = lists.map_or(0, |lists| lists.capacity);
        let resident = self.resident_queries(tile);
        // SAFETY: as the caller promises.
        unsafe {
            match image.stored {
                Stored::Rows { copies: base, .. } => {
                    let kernel = match (lists.is_some(), resident) {
                        (true, true) => &list_scan::APPEND_LISTS,
                        (true, false) => &list_scan::APPEND_LISTS_STREAMED,
                        (false, _) => scan_kernel!(
                            small,
                            resident,
                            SCAN_LISTS_64,
                            SCAN_LISTS_64_STREAMED,
                            SCAN_LISTS_16,
                            SCAN_LISTS_16_STREAMED
                        ),
                    };
                    let args = (
                        copies,
                        factors,
                        ask.queries,
                        image.copy_stride,
                        list_items,
                        item_count,
                        item_rows,
                        grouped,
                        0,
                        starts,
                        lengths,
                        0,
                        values,
                        ranks,
                        self.filter_bits(),
                        scores,
                        places,
                        counts,
                        capacity,
                        base.cast_const(),
                    );
                    self.runtime.launch(
                        self.stream,
                        kernel,
                        self.scan_config(kernel.name(), self.flat_shared_bytes(tile), items, lists.is_some())?,
                        args,
                    )
                }
                Stored::Codes(codes) => {
                    let chunks = image.copy_stride / list_scan::CHUNK;
                    let table = codes.components() * 2;
                    let in_table = chunks <= list_scan::TABLE_CHUNKS && table <= list_scan::TABLE_BYTES;
                    let kernel = match (lists.is_some(), in_table) {
                        (true, true) => &list_scan::APPEND_CODES,
                        (true, false) => &list_scan::APPEND_CODES_STREAMED,
                        (false, _) => scan_kernel!(
                            small,
                            in_table,
                            SCAN_CODES_64,
                            SCAN_CODES_64_STREAMED,
                            SCAN_CODES_16,
                            SCAN_CODES_16_STREAMED
                        ),
                    };
                    let tile = if small { 16 } else { 64 };
                    let shared_bytes = if in_table {
                        list_scan::table_shared_bytes(tile, chunks, table)
                    } else {
                        list_scan::streamed_shared_bytes(tile)
                    };
                    let config = self.scan_config(kernel.name(), shared_bytes, items, true)?;
                    let args = (
                        copies,
                        list_items,
                        item_count,
                        item_rows,
                        grouped,
                        starts,
                        lengths,
                        values,
                        ranks,
                        self.filter_bits(),
                        scores,
                        places,
                        counts,
                        capacity,
                        codes.codes.cast_const(),
                        codes.shape(),
                        codes.width,
                        image.dim,
                        codes.offsets.cast_const(),
                        codes.halves.cast_const(),
                    );
                    self.runtime.launch(self.stream, kernel, config, args)
                }
            }
        }
    }

    /// What was scanned.
    pub fn candidates(&self) -> Candidates {
        let (plan, image, ask) = (self.plan, &self.resident.image, self.plan.ask);
        Candidates {
            scores: self.at(plan.scores),
            row_stride: 0,
            row_starts: self.at(plan.row_starts),
            nprobe: ask.probes,
            probes: self.at(plan.probes),
            offsets: self.at(plan.offsets),
            list_starts: image.starts,
            lengths: image.lengths,
            ranks: image.ranks,
            filter: self.filter_bits(),
            live_rows: self.at(plan.live_rows),
            row_count: 0,
            metric: image.metric_code(),
            // Scores by tables are whole distances.
            shifts: if plan.tables.is_some() { std::ptr::null() } else { self.at(plan.shifts) },
            errors: self.at(plan.tables.as_ref().map_or(plan.errors, |(_, errors)| *errors)),
        }
    }

    /// The best of what was scanned, by a stage whose scratch is at `start`.
    ///
    /// # Safety
    /// As [`Self::run`]; the scores are there.
    pub unsafe fn best(&self, stage: &Stage, start: *mut u8, to: Found) -> Result<()> {
        let from = self.candidates();
        let vectors = self.vectors();
        let queries = self.plan.ask.queries;
        // SAFETY: as the caller promises.
        unsafe { stage.run(self.runtime, self.stream, start, queries, &from, &vectors, to) }
    }

    fn vectors(&self) -> Vectors {
        let image = &self.resident.image;
        match image.stored {
            Stored::Rows { rows, stride, .. } => {
                Vectors::Rows { element: self.element, queries: self.queries(), rows, stride }
            }
            Stored::Codes(codes) => Vectors::Codes {
                queries: self.queries().cast_const().cast(),
                codes,
                centroids: image.centroids,
                dim: image.dim,
            },
        }
    }
}
