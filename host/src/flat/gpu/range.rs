//! Range search of a block: all rows within a radius, by the filter of the exact search with thresholds from the
//! radius.
//!
//! ```text
//! queries ──prepare──► f16 copies, ‖x‖² ──► threshold of each query
//!                          └─ filter_append on all tiles, threshold ──► lists ──► canonical distances ──► host: those within the radius
//! ```
//!
//! # Thresholds
//! The filter keeps each row whose lower bound v − E is at most the threshold of the query
//! (`warpann_kernels::flat::filter`). So it keeps all rows within the radius r if the threshold is at least their true
//! scores:
//!
//! | metric | score | rows within r | threshold |
//! |---|---|---|---|
//! | squared L2 | ‖y‖² − 2⟨x, y⟩ = ‖x − y‖² − ‖x‖² | ‖x − y‖² ≤ r | r − ‖x‖² |
//! | inner product, cosine | −⟨x, y⟩ | ⟨x, y⟩ ≥ r | −r |
//!
//! x and y are without the centre here (squared L2) or divided by their norms (cosine). Roundings that grow with the
//! norms are part of E: that of the canonical distance, which is compared with r, and those of v. r itself may be far
//! larger than any score, and ‖x‖² comes from `prepare` as an f32. So a threshold is raised by 2⁻²⁰(|r| + ‖x‖²). This
//! is more than twice what the roundings of ‖x‖², of the threshold and of its sum with E come to: six, each of at most
//! 2⁻²⁴(|r| + ‖x‖²). An infinite E keeps all rows for any threshold, infinite or NaN. The host compares canonical
//! distances with r, so rows that are kept without need cost only time.
//!
//! # Lists
//! The first lists have room for [`Tuning::range_list`](super::block::Tuning) rows. A launch counts also those that
//! find no room, so the host knows the lengths of all lists. Queries of up to a quarter of the rows get lists of the
//! right length in a second attempt, which cannot overflow, because the same thresholds keep the same rows. For the
//! others, and where the filter does not pay, the host gets the canonical distances of all rows.

use cuda_std::Ptr;
use warpann_kernels::flat::filter::{FilterOutput, FilterPass};
use warpann_kernels::product::canonical::Canonical;

use super::block::{Block, MOST_QUERIES};
use super::rows::FlatDevice;
use super::{TILE_QUERIES, TWO_LANES_FROM};
use crate::device::backend::ResultArray;
use crate::device::lanes::Lane;
use crate::device::queue::OnStream;
use crate::device::runtime::Runtime;
use crate::device::scratch::{Layout, Reserved};
use crate::device::tiling::{Budget, Tiling};
use crate::parallel::{Loop, ParallelSlice};
use crate::product::gpu::{SetLayout, VectorSet, VectorShape, prepare_set, upload_vectors};
use crate::threads::work_off;
use crate::vectors::VectorSlice;
use crate::{Bitset, Metric, RangeNeighbors, Result, events, host_memory};

/// A list is used for at most this share of the rows; longer ones take as much memory as all distances.
const LONGEST_SHARE: u32 = 4;
/// Relative margin added to a threshold, because the threshold is a rounded difference.
const SLACK: f64 = 1.0 / 1_048_576.0;

/// Ids and distances of the rows within the radius, for each of some queries.
type Ranges = Vec<Vec<(u64, f32)>>;

/// The scratch of an attempt with lists.
struct ListPlan {
    queries: SetLayout,
    thresholds: Reserved<f32>,
    counts: Reserved<u32>,
    values: Reserved<f32>,
    rows: Reserved<u32>,
    bytes: usize,
}

impl ListPlan {
    fn new(shape: VectorShape, queries: usize, capacity: u32) -> ListPlan {
        let mut layout = Layout::default();
        let list = queries.saturating_mul(capacity as usize);
        let mut plan = ListPlan {
            queries: SetLayout::reserve(&mut layout, shape, queries),
            thresholds: layout.array(queries),
            counts: layout.array(queries),
            values: layout.array(list),
            rows: layout.array(list),
            bytes: 0,
        };
        plan.bytes = layout.bytes();
        plan
    }
}

/// The scratch of queries whose canonical distances to all rows go to the host.
struct AllPlan {
    queries: SetLayout,
    distances: Reserved<f32>,
    bytes: usize,
}

impl AllPlan {
    fn new(shape: VectorShape, queries: usize, rows: u32) -> AllPlan {
        let mut layout = Layout::default();
        let set = SetLayout::reserve(&mut layout, shape, queries);
        let distances = layout.array(queries.saturating_mul(rows as usize));
        AllPlan { queries: set, distances, bytes: layout.bytes() }
    }
}

/// The threshold of a query with squared norm `square` (module documentation).
fn threshold(metric: Metric, radius: f32, square: f32) -> f32 {
    if radius.is_infinite() {
        return metric.badness(radius);
    }
    let (badness, magnitude) = (f64::from(metric.badness(radius)), f64::from(radius.abs()));
    let own = f64::from(metric.of_kernel().value(square.into()));
    (badness - own + (magnitude + own) * SLACK) as f32
}

/// A range search of a block, on the device of the block.
#[derive(Clone, Copy)]
struct RangeSearch<'a> {
    runtime: &'a Runtime,
    block: &'a Block,
    radius: f32,
}

impl RangeSearch<'_> {
    /// Whether queries are searched with lists. A radius that includes every row excludes the filter.
    fn uses_filter(&self, queries: usize) -> bool {
        self.block.filter_pays(queries) && self.radius != self.block.shape.metric.worst()
    }

    /// The name of the path of a search of `queries` queries at a time.
    fn path(&self, queries: usize) -> &'static str {
        if self.uses_filter(queries) { "filter on tensor cores" } else { "all canonical distances" }
    }

    fn lists(&self, queries: usize, capacity: u32) -> ListPlan {
        ListPlan::new(self.block.shape, queries, capacity)
    }

    fn all(&self, queries: usize) -> AllPlan {
        AllPlan::new(self.block.shape, queries, self.block.base.count)
    }

    /// Bytes of scratch of a search of `queries` queries at a time.
    fn bytes(&self, queries: usize) -> usize {
        if self.uses_filter(queries) {
            self.lists(queries, self.block.tuning.range_list).bytes
        } else {
            self.all(queries).bytes
        }
    }

    /// The rows within the radius of each query, in no order.
    fn search(&self, lane: &mut Lane, queries: VectorSlice<'_>) -> Result<Ranges> {
        if !self.uses_filter(queries.len()) {
            return self.search_all(lane, queries);
        }
        let (mut found, counts) = self.search_lists(lane, queries, self.block.tuning.range_list)?;
        let longest = self.block.base.count / LONGEST_SHARE;
        // Queries with lists of similar length are searched together: those of shorter lists first, as numbers of
        // length and query.
        let too_long = (0..counts.len()).filter(|&query| counts[query] > self.block.tuning.range_list);
        let mut by_length: Vec<u64> = too_long.map(|query| u64::from(counts[query]) << 32 | query as u64).collect();
        by_length.sort_unstable();
        let again: Vec<usize> = by_length.into_iter().map(|place| place as u32 as usize).collect();
        let (short, long) = again.split_at(again.partition_point(|&query| counts[query] <= longest));
        let first = self.bytes(queries.len());
        let mut replace = |numbers: &[usize], some: Ranges| {
            numbers.iter().zip(some).for_each(|(&query, rows)| found[query] = rows);
        };
        // A few queries at a time. One query runs even if it needs more than the first attempt.
        let tiling = |numbers: &[usize], bytes: &dyn Fn(usize) -> usize| {
            let budget = Budget::new(self.runtime, first.max(bytes(1)) as u64);
            Tiling::new(budget, (numbers.len(), usize::MAX), 1, |queries| Ok(bytes(queries)))
        };
        let dim = self.block.shape.dim;
        let most = short.last().map_or(0, |&query| counts[query]);
        for numbers in short.chunks(tiling(short, &|queries| self.lists(queries, most).bytes)?.rows) {
            let some = queries.gather(numbers)?;
            let capacity = numbers.last().map_or(0, |&query| counts[query]);
            replace(numbers, self.search_lists(lane, some.as_slice(dim), capacity)?.0);
        }
        for numbers in long.chunks(tiling(long, &|queries| self.all(queries).bytes)?.rows) {
            let some = queries.gather(numbers)?;
            replace(numbers, self.search_all(lane, some.as_slice(dim))?);
        }
        Ok(found)
    }

    /// Computes the canonical distances of all rows.
    fn search_all(&self, lane: &mut Lane, queries: VectorSlice<'_>) -> Result<Ranges> {
        let RangeSearch { runtime, block, .. } = *self;
        let (count, rows) = (queries.len(), block.base.count);
        let plan = self.all(count);
        let scratch = lane.scratch(runtime, plan.bytes)?;
        let (stream, set) = (&lane.stream, VectorSet::new(scratch, plan.queries, count as u32));
        let distances = scratch.at(plan.distances);
        let mut found: Vec<Result<_>> = (0..count).map(|_| Ok(Vec::new())).collect();
        // SAFETY: the plan reserved every part; the base is in place and prepared.
        unsafe {
            upload_vectors(runtime, stream, block.shape, set.rows(), queries)?;
            if block.shape.metric.divides_by_norms() {
                prepare_set(runtime, stream, block.shape, set, false)?;
            }
            block.launch_canonical(runtime, stream, block.canonical(set, distances), rows)?;
            let arrays = [ResultArray::new(distances, rows as usize)];
            runtime.copy_results_to_host(stream, count, &arrays, &mut |queries, parts| {
                let distances: &[f32] = bytemuck::cast_slice(parts[0]);
                let pieces = found[queries].iter_mut().zip(distances.chunks(rows as usize));
                work_off(pieces, parts[0].len(), |(found, distances): (&mut Result<_>, &[f32])| {
                    *found = self.within(distances, |place| place as u32);
                });
            })?;
        }
        found.into_iter().collect()
    }

    /// Searches with lists of `capacity` rows. Also returns the lengths of the lists; a query whose list is longer than
    /// `capacity` lacks rows.
    fn search_lists(&self, lane: &mut Lane, queries: VectorSlice<'_>, capacity: u32) -> Result<(Ranges, Vec<u32>)> {
        let RangeSearch { runtime, block, radius } = *self;
        let (count, metric) = (queries.len(), block.shape.metric);
        let plan = self.lists(count, capacity);
        let scratch = lane.scratch(runtime, plan.bytes)?;
        let (stream, set) = (&lane.stream, VectorSet::new(scratch, plan.queries, count as u32));
        let (thresholds, counts) = (scratch.at(plan.thresholds), scratch.at(plan.counts));
        let (values, rows) = (scratch.at(plan.values), scratch.at(plan.rows));
        let mut numbers = host_memory::zeroed::<f32>(count)?;
        let mut lengths = host_memory::zeroed::<u32>(count)?;
        let mut found: Vec<Result<_>> = (0..count).map(|_| Ok(Vec::new())).collect();
        // SAFETY: the plan reserved every part with the size that the kernels need, the base is in place and prepared,
        // and the stream runs these in order. Lists are filled with zeros first, so that all that is copied to the host
        // is written.
        unsafe {
            block.prepare_queries(runtime, stream, set, queries)?;
            runtime.copy_to_host(stream, &mut numbers, set.part(set.layout.values).take(count))?;
            let own = |number: f32| block.shape.value_of(number.to_bits());
            numbers.iter_mut().for_each(|number| *number = threshold(metric, radius, own(*number)));
            runtime.copy_to_device(stream, thresholds, &numbers)?;
            runtime.fill(stream, counts, 0)?;
            runtime.fill(stream, values, 0)?;
            runtime.fill(stream, rows, 0)?;
            let append = FilterPass {
                thresholds: thresholds.into(),
                out_values: values,
                out_rows: rows,
                counts,
                out_stride: capacity,
                ..block.pass(set)
            };
            block.launch_filter(OnStream { runtime, stream }, FilterOutput::Append, set, block.all_rows(), append)?;
            let of_lists = Canonical {
                rows: Some(Ptr::from(rows)),
                counts: Some(Ptr::from(counts)),
                columns: capacity,
                list_stride: u64::from(capacity),
                ..block.canonical(set, values)
            };
            block.launch_canonical(runtime, stream, of_lists, capacity)?;
            let arrays = [
                ResultArray::new(counts, 1),
                ResultArray::new(values, capacity as usize),
                ResultArray::new(rows, capacity as usize),
            ];
            runtime.copy_results_to_host(stream, count, &arrays, &mut |queries, parts| {
                let counts: &[u32] = bytemuck::cast_slice(parts[0]);
                let (values, rows): (&[f32], &[u32]) = (bytemuck::cast_slice(parts[1]), bytemuck::cast_slice(parts[2]));
                lengths[queries.clone()].copy_from_slice(counts);
                let lists = values.chunks(capacity as usize).zip(rows.chunks(capacity as usize)).zip(counts);
                let pieces = found[queries].iter_mut().zip(lists);
                work_off(pieces, size_of_val(values), |(found, ((values, rows), &count))| {
                    if count <= capacity {
                        *found = self.within(&values[..count as usize], |place| rows[place]);
                    }
                });
            })?;
        }
        Ok((found.into_iter().collect::<Result<_>>()?, lengths))
    }

    /// Ids and distances of the places of a list whose distances are within the radius. `row_of` returns the row of a
    /// place.
    fn within(&self, distances: &[f32], row_of: impl Fn(usize) -> u32) -> Result<Vec<(u64, f32)>> {
        let near = |distance: f32| self.block.shape.metric.within(distance, self.radius);
        let mut found = host_memory::with_room(distances.iter().filter(|distance| near(**distance)).count())?;
        let id_of = self.block.id_of();
        let places = distances.iter().enumerate().filter(|(_, distance)| near(**distance));
        found.extend(places.map(|(place, &distance)| (id_of(row_of(place)), distance)));
        Ok(found)
    }
}

impl FlatDevice {
    /// The rows within the radius of each query, among the rows whose numbers are listed or among all rows. Of these,
    /// only rows with set bits are kept, if there are bits.
    pub(super) fn range(
        &self,
        queries: VectorSlice<'_>,
        radius: f32,
        numbers: Option<&[u32]>,
        kept: Option<&Bitset>,
    ) -> Result<RangeNeighbors> {
        let mut found: Ranges = host_memory::filled(Vec::new(), queries.len())?;
        if numbers.is_none_or(|numbers| !numbers.is_empty()) {
            self.each_block(numbers, &mut |block, scratch| {
                self.range_block(block, scratch, queries, radius, &mut found)
            })?;
        }
        let metric = self.shape.metric;
        found.par_iter_mut().for_each(|rows| {
            if let Some(kept) = kept {
                rows.retain(|&(id, _)| kept.get(id as usize));
            }
            if let Some(numbers) = numbers {
                rows.iter_mut().for_each(|(id, _)| *id = numbers[*id as usize].into());
            }
            rows.sort_unstable_by(|a, b| metric.order(a.1, b.1).then(a.0.cmp(&b.0)));
        });
        RangeNeighbors::of_rows(&found, |found| found)
    }

    /// Searches one block for all queries, tile by tile, and appends the rows to those of earlier blocks.
    fn range_block(
        &self,
        block: &Block,
        scratch: u64,
        queries: VectorSlice<'_>,
        radius: f32,
        found: &mut [Vec<(u64, f32)>],
    ) -> Result<()> {
        let (runtime, count) = (&self.runtime, queries.len());
        let search = RangeSearch { runtime, block, radius };
        let lanes = if count >= TWO_LANES_FROM { 2 } else { 1 };
        let most = TILE_QUERIES.min(MOST_QUERIES);
        let tiling =
            Tiling::new(Budget::new(runtime, scratch), (count, most), lanes, |queries| Ok(search.bytes(queries)))?;
        events::path("range search", || runtime.describe(), search.path(tiling.rows.min(count)), count);
        tiling.run(runtime, &self.lanes, found.chunks_mut(tiling.rows), |lane, tile, found| {
            for (found, rows) in found.iter_mut().zip(search.search(lane, queries.part(tile))?) {
                if found.is_empty() {
                    *found = rows;
                } else {
                    host_memory::reserve(found, rows.len())?;
                    found.extend(rows);
                }
            }
            Ok(())
        })
    }
}
