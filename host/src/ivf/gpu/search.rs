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

use warpann_kernels::ivf::code_bounds::CountLive;
use warpann_kernels::ivf::list_scan::{Operand, ScanLists, TILE_ROWS, Tile};
use warpann_kernels::ivf::pairs::{self, CountPairs, FewPairs, PlacePairs, ScatterPairs};
use warpann_kernels::ivf::queries::PrepareQueries;

use super::image::{Resident, Stored};
use super::plan::{ITEM_ROWS, SearchPlan};
use super::stage::{CandidateLists, Candidates, Found, Stage, Vectors};
use super::tables;
use super::tables::TableScan;
use crate::device::backend::Array;
use crate::device::queue::OnStream;
use crate::device::runtime::{Runtime, Stream};
use crate::{ElementType, Result};

/// A search on its way.
pub(super) struct Search<'a> {
    pub runtime: &'a Runtime,
    pub stream: &'a Stream,
    /// For copies that come before the search.
    pub copies: &'a Stream,
    pub resident: &'a Resident,
    pub element: ElementType,
    pub plan: &'a SearchPlan,
    /// Scratch of the plan's size.
    pub start: *mut u8,
}

impl Search<'_> {
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

    /// What the rows of the lists are multiplied as, and in which tiles of queries.
    fn operand_and_tile(&self, appends: bool) -> (Operand, Tile) {
        let operand = match self.resident.image.stored {
            Stored::Rows { .. } => Operand::Copies,
            Stored::Codes(_) => Operand::Codes,
        };
        // Appending pays where there are many pairs a list, and has no kernels for few.
        let all = if self.resident.small_tiles(self.plan.ask) { Tile::Of16 } else { Tile::Of64 };
        (operand, if appends { Tile::Append } else { all })
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
            let tile = if queries <= 16 { Tile::Of16 } else { Tile::Of64 };
            let tile_queries = tile.queries(Operand::Copies);
            let multiprocessors = self.runtime.limits().multiprocessors;
            let cuts = (multiprocessors * 2).div_ceil(queries.div_ceil(tile_queries).max(1));
            // Dense use: every query with all centroids.
            let launch = ScanLists {
                queries: self.at::<u16>(copies).wrapping_add(first * image.copy_stride as usize),
                factors: self.at::<f32>(factors).wrapping_add(first),
                query_count: queries,
                stride: image.copy_stride,
                item_rows: image.lists.div_ceil(cuts).next_multiple_of(TILE_ROWS).min(ITEM_ROWS),
                row_stride,
                row_count: image.lists,
                values: image.centroid_values,
                scores,
                base: image.centroid_copies,
                ..ScanLists::default()
            };
            let key = launch.key(Operand::Copies, tile);
            let config = launch.config(key, launch.dense_items(tile_queries).into(), multiprocessors);
            self.runtime.launch(self.stream, ScanLists::kernel(key), config, launch)?;
            let from = Candidates {
                scores,
                row_stride: u64::from(row_stride),
                row_count: image.lists,
                metric: image.probe_metric_code(),
                shifts: self.at::<f32>(shifts).wrapping_add(first),
                // The second half is of the centroids.
                errors: self.at::<f32>(errors).wrapping_add(plan.ask.queries as usize + first),
                ..Candidates::default()
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
        let launch = PrepareQueries {
            rows,
            count: queries,
            stride: image.stride(),
            centre: image.centre,
            metric,
            base_greatest: greatest,
            copy: self.at::<u16>(copies).wrapping_add(first * image.copy_stride as usize),
            copy_stride: image.copy_stride,
            factors: self.at::<f32>(factors).wrapping_add(first),
            base_bounds: image.bounds,
            errors: self.at::<f32>(errors).wrapping_add(first),
            errors_apart: self.plan.ask.queries,
            shifts: self.at::<f32>(shifts).wrapping_add(first),
        };
        let kernel = PrepareQueries::kernel(element.key());
        // SAFETY: as the caller promises.
        unsafe { self.runtime.launch(self.stream, kernel, launch.config(), launch) }
    }

    /// Groups the pairs of some probes by list, for appending up to `limits` where those are not null.
    ///
    /// # Safety
    /// As [`Self::run`]; the probes are there.
    pub unsafe fn group(&self, of: Range<u32>, limits: *const f32) -> Result<()> {
        let (plan, image, ask) = (self.plan, &self.resident.image, self.plan.ask);
        let (operand, tile) = self.operand_and_tile(!limits.is_null());
        let (tile, item_rows) = (tile.queries(operand), Resident::item_rows(ask));
        let pair_count = ask.queries * ask.probes;
        let probes = self.at::<u32>(plan.probes);
        let counts = self.at::<u32>(plan.counts);
        // SAFETY: as the caller promises; arrays have the sizes that the plan reserved.
        unsafe {
            if ask.filtered() && of.start == 0 {
                self.runtime.fill(self.stream, self.at(plan.live), 0, 4 * image.lists as usize)?;
                let launch = CountLive {
                    list_starts: image.starts,
                    lengths: image.lengths,
                    ranks: image.ranks,
                    filter: self.at(plan.filter),
                    live: self.at(plan.live),
                };
                self.runtime.launch(self.stream, &CountLive::KERNEL, launch.config(image.lists), launch)?;
            }
            let live = if ask.filtered() { self.at(plan.live) } else { image.lengths };
            // Fewer than lists: else several queries share one, and it is read once for them. By tables it is read for each.
            let few = pair_count < pairs::FEW && (pair_count <= image.lists || plan.tables.is_some());
            if few && of == (0..ask.probes) {
                let launch = FewPairs {
                    probes,
                    query_count: ask.queries,
                    nprobe: ask.probes,
                    lengths: image.lengths,
                    live,
                    factors: self.at(plan.factors),
                    item_rows,
                    offsets: self.at(plan.offsets),
                    row_starts: self.at(plan.row_starts),
                    live_rows: self.at(plan.live_rows),
                    item_count: self.at(plan.item_count),
                    grouped: self.at(plan.grouped),
                    items: self.at(plan.items),
                };
                return self.runtime.launch(self.stream, &FewPairs::KERNEL, launch.config(), launch);
            }
            self.runtime.fill(self.stream, counts.cast(), 0, 4 * image.lists as usize)?;
            let launch = CountPairs {
                probes,
                query_count: ask.queries,
                nprobe: ask.probes,
                first_probe: of.start,
                end_probe: of.end,
                lengths: image.lengths,
                live,
                counts,
                slots: self.at(plan.slots),
                offsets: self.at(plan.offsets),
                row_lengths: self.at(plan.row_lengths),
                live_rows: self.at(plan.live_rows),
            };
            self.runtime.launch(self.stream, &CountPairs::KERNEL, launch.config(), launch)?;
            let launch = PlacePairs {
                list_count: image.lists,
                lengths: image.lengths,
                counts,
                tile,
                item_rows,
                first_pairs: self.at(plan.first_pairs),
                first_items: self.at(plan.first_items),
                item_count: self.at(plan.item_count),
                query_count: ask.queries,
                row_lengths: self.at(plan.row_lengths),
                row_starts: self.at(plan.row_starts),
            };
            self.runtime.launch(self.stream, &PlacePairs::KERNEL, launch.config(), launch)?;
            if plan.tables.is_some() {
                return Ok(());
            }
            let launch = ScatterPairs {
                probes,
                pair_count,
                nprobe: ask.probes,
                first_probe: of.start,
                end_probe: of.end,
                lengths: image.lengths,
                counts,
                slots: self.at(plan.slots),
                offsets: self.at(plan.offsets),
                row_starts: self.at(plan.row_starts),
                limits,
                factors: self.at(plan.factors),
                tile,
                item_rows,
                first_pairs: self.at(plan.first_pairs),
                first_items: self.at(plan.first_items),
                grouped: self.at(plan.grouped),
                items: self.at(plan.items),
            };
            self.runtime.launch(self.stream, &ScatterPairs::KERNEL, launch.config(), launch)
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
        let (operand, tile) = self.operand_and_tile(lists.is_some());
        let launch = ScanLists {
            queries: self.at(plan.copies),
            stride: image.copy_stride,
            items: self.at(plan.items),
            item_count: self.at(plan.item_count),
            item_rows: Resident::item_rows(ask),
            grouped: self.at(plan.grouped),
            list_starts: image.starts,
            lengths: image.lengths,
            values: image.values,
            ranks: image.ranks,
            filter: self.filter_bits(),
            scores: self.at(plan.scores),
            ..ScanLists::default()
        };
        let launch = match lists {
            None => launch,
            Some(CandidateLists { capacity, scores, places, counts, .. }) => {
                ScanLists { scores, places, counts, capacity, ..launch }
            }
        };
        let launch = match image.stored {
            Stored::Rows { copies, .. } => ScanLists { base: copies, ..launch },
            Stored::Codes(codes) => ScanLists {
                codes: codes.codes,
                code_bytes: codes.code_bytes,
                bits: codes.bits,
                width: codes.width,
                dim: image.dim,
                centroid_offsets: codes.offsets,
                halves: codes.halves,
                ..launch
            },
        };
        let key = launch.key(operand, tile);
        let items = self.resident.most_items(ask) as u64;
        let config = launch.config(key, items, self.runtime.limits().multiprocessors);
        // SAFETY: as the caller promises; pairs were grouped for these tiles.
        unsafe { self.runtime.launch(self.stream, ScanLists::kernel(key), config, launch) }
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
