//! Exact search of a block of rows in device memory: the host side of the filter (kernels `prepare`, `filter`, `candidates`, `canonical`,
//! `warp_select`; the algorithm and its proof are in `warpann_kernels::flat::filter`).
//!
//! ```text
//! queries ──prepare──► f16 copies ──filter_dense on a sample──► upper bounds ──select──► limit
//!                          │  filter_append on every g-th tile, limit ──► lists ──select, compact──► tighter limit
//!                          └─ filter_append on the other tiles, limit ──► lists ──select, compact──► few rows
//!                                                  canonical distances of those ──select──► the answer
//! ```
//!
//! The canonical distances of all rows are computed and selected from in three cases: if the filter does not pay (little work, or k near
//! the number of rows), if it proves nothing (more components than
//! [`MOST_COMPONENTS`](warpann_kernels::product::bounds::MOST_COMPONENTS)), and, by a kernel that replaces the list, for queries with an
//! overflowed list. This is slower and right for any input. `steps` has these cases, for queries from host memory and from device memory.

use cuda_std::{Ptr, PtrMut};
use warpann_kernels::flat::candidates::CompactCandidates;
use warpann_kernels::flat::filter::{self, Filter, FilterOutput};
use warpann_kernels::product::canonical::Canonical;

use super::steps::{Mask, Steps};
use crate::Result;
use crate::device::backend::ResultArray;
use crate::device::lanes::Lane;
use crate::device::limits::Limits;
use crate::device::queue::OnStream;
use crate::device::runtime::{Runtime, Stream};
use crate::device::scratch::{Layout, Reserved, Scratch};
use crate::device::tiling::{Budget, Tiling};
use crate::neighbors::slots::{FoundRows, Slots};
use crate::product::gpu::{SetLayout, VectorSet, VectorShape, prepare_set, upload_vectors};
use crate::select::Best;
use crate::select::gpu::{Columns, Select, SelectPlan, select};
use crate::vectors::VectorSlice;

/// Smallest number of sample rows for each neighbour.
const SAMPLE_PER_NEIGHBOUR: u32 = 8;
/// A larger sample costs selection in proportion and saves candidates (k · √(base / sample) in a pass), so the best size grows with √k. A
/// sample of `sample_rows` is right for the square of this number of neighbours.
const SAMPLE_ROOT: u32 = 5;
/// Smallest ratio of base to sample for which a pass between them pays.
const MIDDLE_FROM: u32 = 16;
/// Room of a candidate list, relative to the number expected for data in random order.
const LIST_MARGIN: u64 = 4;
/// Smallest number of slots of a candidate list.
const LIST_LEAST: u64 = 1024;
/// Largest number of queries of a search: with padding it stays in u32.
pub(super) const MOST_QUERIES: usize = u32::MAX as usize / 2;

/// Choices that depend on the device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tuning {
    /// Component products (queries × rows × components) up to which the filter costs more than it saves.
    pub direct_work: u64,
    /// Smallest number of sample rows for the first limit.
    pub sample_rows: u32,
    /// Number of slots of a query's list in the first attempt of a range search.
    pub range_list: u32,
}

impl Tuning {
    /// The choices for a device.
    pub fn of(limits: &Limits) -> Tuning {
        if limits.emulated {
            // The emulator exists to run kernels, so it uses the filter from the smallest case on that has more rows than neighbours. A small
            // sample lets small cases have the middle pass, and short lists let them overflow.
            return Tuning { direct_work: 0, sample_rows: 128, range_list: 32 };
        }
        // Below this much work the filter's extra launches cost more than the bytes it saves. On an H200 with 128 components: 500,000 rows
        // for one query (0.128 ms with the filter, 0.132 without), 125,000 for two (0.089, 0.086), 60,000 for four (0.076, 0.070).
        Tuning { direct_work: 48_000_000, sample_rows: 8192, range_list: 1024 }
    }
}

/// The filter's passes over a base, for its number of rows and k.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Passes {
    /// Number of tiles of the base.
    tiles: u32,
    /// Number of tiles of the sample, and the distance between them.
    sample: u32,
    sample_stride: u32,
    /// The middle pass visits every tile whose number is a multiple of this; 0 if there is no middle pass.
    middle: u32,
    /// Number of slots of a candidate list.
    capacity: u32,
}

impl Passes {
    fn choose(tuning: Tuning, rows: u32, k: u32) -> Passes {
        let tiles = rows.div_ceil(filter::TILE_ROWS);
        let by_root = (tuning.sample_rows / SAMPLE_ROOT).saturating_mul(k.isqrt());
        let wanted = tuning.sample_rows.max(by_root).max(k.saturating_mul(SAMPLE_PER_NEIGHBOUR));
        let sample = wanted.div_ceil(filter::TILE_ROWS).min(tiles);
        let sample_stride = tiles / sample;
        let ratio = tiles.div_ceil(sample);
        let middle = if ratio < MIDDLE_FROM { 0 } else { ratio.isqrt() };
        let growth = if middle == 0 { ratio } else { middle.max(ratio.div_ceil(middle)) };
        let expected = u64::from(k) * u64::from(growth);
        let capacity = (expected * LIST_MARGIN).max(LIST_LEAST).next_multiple_of(32);
        let capacity = capacity.min(u64::from(tiles) * u64::from(filter::TILE_ROWS)) as u32;
        Passes { tiles, sample, sample_stride, middle, capacity }
    }

    fn sample_columns(&self) -> u32 {
        self.sample * filter::TILE_ROWS
    }
}

/// The scratch of a search with the filter.
pub(super) struct FilterPlan {
    passes: Passes,
    pub queries: SetLayout,
    upper: Reserved<f32>,
    list_values: Reserved<f32>,
    list_rows: Reserved<u32>,
    /// The span of the next three arrays, which starts as zeros.
    counters: Reserved<u32>,
    counts: Reserved<u32>,
    pub overflowed: Reserved<u32>,
    pub overflow: Reserved<u32>,
    thresholds: Reserved<f32>,
    keys: Reserved<f32>,
    ids: Reserved<u32>,
    of_sample: SelectPlan,
    pub of_lists: SelectPlan,
    pub bytes: usize,
}

impl FilterPlan {
    pub(super) fn new(
        shape: VectorShape,
        tuning: Tuning,
        queries: usize,
        rows: u32,
        k: u32,
        limits: &Limits,
    ) -> FilterPlan {
        let passes = Passes::choose(tuning, rows, k);
        let mut layout = Layout::default();
        let list = queries.saturating_mul(passes.capacity as usize);
        let results = queries.saturating_mul(k as usize);
        let mut selection =
            |columns| SelectPlan::by_table(&mut layout, queries as u32, Columns::from(columns), k, limits);
        let (of_sample, of_lists) = (selection(passes.sample_columns()), selection(passes.capacity));
        let set = SetLayout::reserve(&mut layout, shape, queries);
        let upper = layout.array::<f32>(queries.saturating_mul(passes.sample_columns() as usize));
        let (list_values, list_rows) = (layout.array::<f32>(list), layout.array::<u32>(list));
        let thresholds = layout.array::<f32>(queries);
        // Flags, keys and ids go to the host. They are reserved in sequence, so that one copy moves small results.
        let counters = layout.array::<u32>(queries.saturating_mul(3).saturating_add(1));
        let (counts, rest) = counters.split_at(queries);
        let (overflowed, overflow) = rest.split_at(queries.saturating_add(1));
        let mut plan = FilterPlan {
            passes,
            queries: set,
            upper,
            list_values,
            list_rows,
            thresholds,
            counters,
            counts,
            overflowed,
            overflow,
            keys: layout.array::<f32>(results),
            ids: layout.array::<u32>(results),
            of_sample,
            of_lists,
            bytes: 0,
        };
        plan.bytes = layout.bytes();
        plan
    }

    /// The lists of candidates: their distances, their rows, and their lengths.
    pub(super) fn lists(&self, scratch: Scratch) -> (PtrMut<f32>, PtrMut<u32>, PtrMut<u32>) {
        (scratch.at(self.list_values), scratch.at(self.list_rows), scratch.at(self.counts))
    }
}

/// The scratch of a search without the filter.
pub(super) struct DirectPlan {
    pub queries: SetLayout,
    pub distances: Reserved<f32>,
    keys: Reserved<f32>,
    ids: Reserved<u32>,
    pub selection: SelectPlan,
    pub bytes: usize,
}

impl DirectPlan {
    pub(super) fn new(shape: VectorShape, queries: usize, rows: u32, k: u32, limits: &Limits) -> DirectPlan {
        let mut layout = Layout::default();
        let results = queries.saturating_mul(k as usize);
        let selection = SelectPlan::by_table(&mut layout, queries as u32, rows.into(), k, limits);
        let mut plan = DirectPlan {
            queries: SetLayout::reserve(&mut layout, shape, queries),
            distances: layout.array::<f32>(queries.saturating_mul(rows as usize)),
            keys: layout.array::<f32>(results),
            ids: layout.array::<u32>(results),
            selection,
            bytes: 0,
        };
        plan.bytes = layout.bytes();
        plan
    }
}

/// A block of base rows in device memory, ready for search.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Block {
    /// Element type, metric and dimension of the vectors.
    pub shape: VectorShape,
    /// The rows, prepared unless every search of the base is without the filter.
    pub base: VectorSet,
    /// Whether a centre is subtracted from rows and queries.
    pub centred: bool,
    /// Id of the first row.
    pub first_id: u64,
    /// Choices that depend on the device.
    pub tuning: Tuning,
    /// The rows that take part in a search; `None` if all do.
    pub mask: Option<Mask>,
}

impl Block {
    pub(super) fn uses_filter(&self, queries: usize, k: u32) -> bool {
        self.filter_pays(queries) && u64::from(k) * 4 < u64::from(self.base.count)
    }

    /// Whether the filter proves anything, and the work is enough for its launches.
    pub(super) fn filter_pays(&self, queries: usize) -> bool {
        let rows = u64::from(self.base.count);
        let work = (queries as u64).saturating_mul(rows).saturating_mul(self.shape.dim as u64);
        work > self.tuning.direct_work && self.shape.has_bound()
    }

    /// The name of the path of a search of `queries` queries at a time.
    pub fn path(&self, queries: usize, k: usize) -> &'static str {
        let k = k.min(self.base.count as usize) as u32;
        if self.uses_filter(queries, k) { "filter on tensor cores" } else { "all canonical distances" }
    }

    /// Divides queries into tiles of at most `most` queries whose scratch fits the budget, for searches on `lanes` lanes.
    pub fn tiling(
        &self,
        budget: Budget<'_>,
        (queries, most): (usize, usize),
        k: usize,
        lanes: usize,
    ) -> Result<Tiling<usize>> {
        let k = k.min(self.base.count as usize) as u32;
        let limits = budget.runtime().limits();
        let plan = |queries| Ok(Steps::new(self, queries, k, limits).bytes());
        Tiling::new(budget, (queries, most.min(MOST_QUERIES)), lanes, plan)
    }

    /// Finds the best k of this block for each query, best first. Slots without a neighbour get `NONE` and the worst distance.
    ///
    /// `ids` and `distances` have queries × k slots. The block's memory must outlive the call. At least k rows take part, or all do.
    pub fn search(
        &self,
        runtime: &Runtime,
        lane: &mut Lane,
        queries: VectorSlice<'_>,
        k: usize,
        ids: &mut [u64],
        distances: &mut [f32],
    ) -> Result<()> {
        let slots = Slots { k, worst: self.shape.metric.worst(), ids, distances };
        self.search_tile(runtime, lane, queries, slots).map(|_| ())
    }

    /// As [`Block::search`]. Returns the number of queries whose candidates overflowed.
    pub(super) fn search_tile(
        &self,
        runtime: &Runtime,
        lane: &mut Lane,
        queries: VectorSlice<'_>,
        mut slots: Slots<'_>,
    ) -> Result<usize> {
        let (count, k) = (queries.len(), slots.k.min(self.base.count as usize) as u32);
        let steps = Steps::new(self, count, k, runtime.limits());
        let scratch = lane.scratch(runtime, steps.bytes())?;
        let on = OnStream { runtime, stream: &lane.stream };
        let set = VectorSet::new(scratch, steps.queries(), count as u32);
        // SAFETY: the plan reserved every part, the base is in place, as the caller promises, and the stream runs these in order.
        unsafe {
            upload_vectors(runtime, on.stream, self.shape, set.rows(), queries)?;
            let found = self.find(on, &steps, scratch, set, k, false)?;
            let overflow = steps.filter().map(|plan| scratch.at(plan.overflow));
            let overflowed = self.copy_results(on, &found, overflow, &mut slots)?;
            if let Some(plan) = steps.filter().filter(|_| overflowed > 0) {
                self.complete(on, plan, scratch, set, &found)?;
                self.copy_results(on, &found, overflow, &mut slots)?;
            }
            Ok(overflowed)
        }
    }

    /// Waits for a selection, writes its results to the slots, and returns the number of flags that are set, of which there is one for each query.
    ///
    /// # Safety
    /// The selection, earlier on the same stream, writes all its results, and the flags are written.
    unsafe fn copy_results(
        &self,
        on: OnStream<'_>,
        from: &Select<f32>,
        flags: Option<PtrMut<u32>>,
        slots: &mut Slots<'_>,
    ) -> Result<usize> {
        let each = from.k as usize;
        let flags = flags.map(|flags| ResultArray::new(flags, 1));
        let arrays = [ResultArray::new(from.out_keys, each), ResultArray::new(from.out_ids, each)];
        let arrays: Vec<ResultArray> = arrays.into_iter().chain(flags).collect();
        let mut set = 0;
        // SAFETY: as the caller promises.
        unsafe {
            on.runtime.copy_results_to_host(on.stream, from.rows as usize, &arrays, &mut |queries, parts| {
                slots.fill(queries.start, FoundRows::new(each, parts[0], parts[1]), self.id_of());
                let flags = parts[2..].iter().flat_map(|part| bytemuck::cast_slice::<u8, u32>(part));
                set += flags.filter(|flag| **flag != 0).count();
            })?;
        }
        Ok(set)
    }

    pub(super) fn id_of(&self) -> impl Fn(u32) -> u64 + Sync + use<> {
        let first_id = self.first_id;
        move |row| first_id + u64::from(row)
    }

    /// The launch of canonical distances from each query to all rows: one row of `distances` for each query.
    pub(super) fn canonical(&self, queries: VectorSet, distances: PtrMut<f32>) -> Canonical {
        Canonical {
            queries: queries.stored(self.shape),
            base: self.base.stored(self.shape),
            stride: self.shape.stride() as u32,
            query_count: queries.count,
            metric: self.shape.metric.of_kernel(),
            query_squares: queries.squares().map(Ptr::from),
            base_squares: self.base.squares().map_or_else(Ptr::empty, Ptr::from),
            rows: None,
            counts: None,
            columns: self.base.count,
            slices: 1,
            list_stride: u64::from(self.base.count),
            distances,
        }
    }

    /// A pass of the filter over all tiles of the base, without limits and outputs.
    pub(super) fn filter(&self, queries: VectorSet) -> Filter {
        Filter {
            queries: queries.part(queries.layout.copy).into(),
            base: self.base.part(self.base.layout.copy).into(),
            stride: self.shape.copy_stride() as u32,
            query_count: queries.count,
            row_count: self.base.count,
            metric: self.shape.metric.of_kernel(),
            query_greatest: queries.part(queries.layout.greatest).into(),
            base_greatest: self.base.part(self.base.layout.greatest).into(),
            query_norms: queries.part(queries.layout.norms).into(),
            query_residuals: queries.part(queries.layout.residuals).into(),
            base_values: self.mask.map_or_else(|| self.base.part(self.base.layout.values).into(), |mask| mask.values),
            tile_norms: self.base.tile_norms(),
            tile_residuals: self.base.tile_residuals(),
            tiles: self.base.count.div_ceil(filter::TILE_ROWS),
            tile_stride: 1,
            tile_skip: 0,
            limits: Ptr::empty(),
            out_values: PtrMut::empty(),
            out_rows: PtrMut::empty(),
            counts: PtrMut::empty(),
            out_stride: 0,
        }
    }

    /// Uploads queries to `set`, and makes copies, norms and bounds of them with the centre of the base.
    ///
    /// # Safety
    /// `set` has room for the queries, and the base is prepared.
    pub(super) unsafe fn prepare_queries(
        &self,
        runtime: &Runtime,
        stream: &Stream,
        set: VectorSet,
        queries: VectorSlice<'_>,
    ) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe {
            upload_vectors(runtime, stream, self.shape, set.rows(), queries)?;
            self.prepare_stored(runtime, stream, set)
        }
    }

    /// Makes copies, norms and bounds of the queries in `set` with the centre of the base.
    ///
    /// # Safety
    /// The queries are in place, and the base is prepared.
    pub(super) unsafe fn prepare_stored(&self, runtime: &Runtime, stream: &Stream, set: VectorSet) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe {
            if self.centred {
                runtime.copy(stream, set.centre(), self.base.centre())?;
            }
            prepare_set(runtime, stream, self.shape, set, self.centred)
        }
    }

    /// Launches canonical distances for lists of about `expected` rows. Enough warps share a list to fill the device, but no more than the list
    /// has rows for.
    ///
    /// # Safety
    /// As [`Canonical`].
    pub(super) unsafe fn launch_canonical(
        &self,
        runtime: &Runtime,
        stream: &Stream,
        launch: Canonical,
        expected: u32,
    ) -> Result<()> {
        let warps = u64::from(runtime.limits().multiprocessors) * 64;
        let of_query = warps.div_ceil(u64::from(launch.query_count).max(1));
        let slices = of_query.min(u64::from(expected).div_ceil(8)).max(1) as u32;
        let launch = Canonical { slices, ..launch };
        // SAFETY: as the caller promises.
        unsafe { runtime.launch(stream, Canonical::kernel(self.shape.element.key()), launch.config(), launch) }
    }

    /// Computes the canonical distances of the queries in `set` to all rows. Returns the selection of the best `k`, which is still to run.
    ///
    /// # Safety
    /// The scratch is that of the plan, which was made for at least this number of queries; the queries and the base are in place.
    pub(super) unsafe fn all_distances(
        &self,
        OnStream { runtime, stream }: OnStream<'_>,
        plan: &DirectPlan,
        scratch: Scratch,
        set: VectorSet,
        k: u32,
    ) -> Result<Select<f32>> {
        let (shape, rows) = (self.shape, self.base.count);
        let distances = scratch.at(plan.distances);
        // SAFETY: as the caller promises.
        unsafe {
            if shape.metric.divides_by_norms() {
                prepare_set(runtime, stream, shape, set, false)?;
            }
            self.launch_canonical(runtime, stream, self.canonical(set, distances), rows)?;
        }
        Ok(Select {
            keys: distances.into(),
            ids: None,
            row_stride: u64::from(rows),
            starts: None,
            lengths: None,
            columns: rows,
            rows: set.count,
            k,
            best: shape.best(),
            out_keys: scratch.at(plan.keys),
            out_ids: scratch.at(plan.ids),
        })
    }

    /// Runs the passes of the filter for the prepared queries in `set`, and computes the canonical distances of the rows that are left.
    /// Returns the selection of the best `k` from their lists, which is still to run. The lists of queries in the plan's `overflowed` are not
    /// complete.
    ///
    /// # Safety
    /// The scratch is that of the plan, which was made for at least this number of queries; the base is in place and prepared.
    pub(super) unsafe fn candidates(
        &self,
        on: OnStream<'_>,
        plan: &FilterPlan,
        scratch: Scratch,
        set: VectorSet,
        k: u32,
    ) -> Result<Select<f32>> {
        let OnStream { runtime, stream } = on;
        let (shape, count, passes) = (self.shape, set.count, plan.passes);
        let (upper, thresholds) = (scratch.at(plan.upper), scratch.at(plan.thresholds));
        let (list_values, list_rows) = (scratch.at(plan.list_values), scratch.at(plan.list_rows));
        let counts = scratch.at(plan.counts);
        let (keys, ids) = (scratch.at(plan.keys), scratch.at(plan.ids));
        let dense = Filter {
            tiles: passes.sample,
            tile_stride: passes.sample_stride,
            out_values: upper,
            out_stride: passes.sample_columns(),
            ..self.filter(set)
        };
        // The append passes start from this, which visits all tiles.
        let append = Filter {
            tiles: passes.tiles,
            tile_stride: 1,
            limits: thresholds.into(),
            out_values: list_values,
            out_rows: list_rows,
            counts,
            out_stride: passes.capacity,
            ..dense
        };
        // SAFETY: the plan reserved every part with the size that the kernels need, the caller promises the base, and the stream runs these in
        // order.
        unsafe {
            runtime.fill(stream, scratch.at(plan.counters), 0)?;

            launch_filter(runtime, stream, FilterOutput::Dense, dense)?;
            let sample = Select {
                keys: upper.into(),
                ids: None,
                row_stride: u64::from(passes.sample_columns()),
                starts: None,
                lengths: None,
                columns: passes.sample_columns(),
                rows: count,
                k,
                best: Best::Smallest,
                out_keys: keys,
                out_ids: ids,
            };
            select(runtime, stream, &sample, &plan.of_sample, scratch)?;

            let list = Select {
                keys: list_values.into(),
                ids: list_rows.into(),
                row_stride: u64::from(passes.capacity),
                lengths: counts.into(),
                columns: passes.capacity,
                ..sample
            };
            let tighten = || -> Result<()> {
                select(runtime, stream, &list, &plan.of_lists, scratch)?;
                self.apply_limit(on, plan, scratch, set, k, false)
            };
            self.apply_limit(on, plan, scratch, set, k, true)?;
            if passes.middle == 0 {
                launch_filter(runtime, stream, FilterOutput::Append, append)?;
            } else {
                let visited = passes.tiles.div_ceil(passes.middle);
                let middle = Filter { tiles: visited, tile_stride: passes.middle, ..append };
                launch_filter(runtime, stream, FilterOutput::Append, middle)?;
                tighten()?;
                let others =
                    Filter { tiles: passes.tiles - visited, tile_stride: 0, tile_skip: passes.middle, ..append };
                launch_filter(runtime, stream, FilterOutput::Append, others)?;
            }
            tighten()?;

            let of_lists = Canonical {
                rows: list_rows.into(),
                counts: counts.into(),
                columns: passes.capacity,
                list_stride: u64::from(passes.capacity),
                ..self.canonical(set, list_values)
            };
            self.launch_canonical(runtime, stream, of_lists, k)?;
            Ok(Select { best: shape.best(), ..list })
        }
    }

    /// Makes the k-th smallest u of the last selection the limit of each query, and shortens its list by the limit. `first` says that there was no limit.
    ///
    /// # Safety
    /// As [`Block::candidates`]; the selection precedes this in the stream.
    unsafe fn apply_limit(
        &self,
        on: OnStream<'_>,
        plan: &FilterPlan,
        scratch: Scratch,
        set: VectorSet,
        k: u32,
        first: bool,
    ) -> Result<()> {
        let (values, rows, counts) = plan.lists(scratch);
        let launch = CompactCandidates {
            query_count: set.count,
            metric: self.shape.metric.of_kernel(),
            padded: self.shape.copy_stride() as u32,
            query_norms: set.part(set.layout.norms).into(),
            query_residuals: set.part(set.layout.residuals).into(),
            base_bounds: self.base.bounds(),
            found: scratch.at(plan.keys).skip(k as usize - 1).into(),
            found_stride: k,
            first: u32::from(first),
            limits: scratch.at(plan.thresholds),
            values,
            rows,
            counts,
            stride: plan.passes.capacity,
            overflow: scratch.at(plan.overflow),
            overflowed: scratch.at(plan.overflowed),
        };
        // SAFETY: as the caller promises.
        unsafe { on.runtime.launch(on.stream, &CompactCandidates::KERNEL, launch.config(), launch) }
    }
}

/// Launches one pass of the filter with the kernel for this device and these dimensions. A pass without tiles launches nothing.
///
/// # Safety
/// As [`Filter`].
pub(super) unsafe fn launch_filter(
    runtime: &Runtime,
    stream: &Stream,
    output: FilterOutput,
    launch: Filter,
) -> Result<()> {
    if launch.tiles == 0 {
        return Ok(());
    }
    let limits = runtime.limits();
    let instruction = limits.products.instruction(launch.tiles);
    let kernel = Filter::kernel((instruction, output, launch.residency()));
    // SAFETY: as the caller promises; queries are resident if their stride allows it.
    unsafe { runtime.launch(stream, kernel, launch.config(instruction, limits.multiprocessors), launch) }
}

#[cfg(test)]
mod tests {
    use test_random::Random;

    use super::*;
    use crate::device::lanes::Lanes;
    use crate::device::runtime::Runtime;
    use crate::device::scratch::Scratch;
    use crate::product::gpu::upload_rows;
    use crate::{Device, ElementType, FlatIndex, Metric};

    /// Random rows and queries with components from -0.5 to 0.5.
    fn vectors(dim: usize, rows: usize, queries: usize) -> (Vec<f32>, Vec<f32>) {
        let mut random = Random::new(7);
        let mut values = |count: usize| -> Vec<f32> { (0..count * dim).map(|_| random.unit_f32() - 0.5).collect() };
        (values(rows), values(queries))
    }

    /// A filtered search on the emulator: ids, distances, and the number of queries with an overflowed list.
    fn filtered(shape: VectorShape, base: &[f32], queries: &[f32], k: usize) -> (Vec<u64>, Vec<f32>, usize) {
        let rows = base.len() / shape.dim;
        let runtime = Runtime::EMULATOR;
        let mut layout = Layout::default();
        let set = SetLayout::reserve(&mut layout, shape, rows);
        let memory = runtime.allocate(layout.bytes()).unwrap();
        let set = VectorSet::new(runtime.scratch(&memory), set, rows as u32);
        let block =
            Block { shape, base: set, centred: false, first_id: 0, tuning: Tuning::of(runtime.limits()), mask: None };
        let count = queries.len() / shape.dim;
        let (mut ids, mut distances) = (vec![0; count * k], vec![0.0; count * k]);
        let lanes = Lanes::new();
        let overflowed = lanes.with(&runtime, |lane| {
            // SAFETY: the memory has the layout of this set.
            unsafe {
                upload_rows(&runtime, &lane.stream, shape, set.rows(), base)?;
                prepare_set(&runtime, &lane.stream, shape, set, false)?;
            }
            let slots = Slots { k, worst: shape.metric.worst(), ids: &mut ids, distances: &mut distances };
            block.search_tile(&runtime, lane, VectorSlice::of(queries, shape.dim), slots)
        });
        (ids, distances, overflowed.unwrap())
    }

    fn overflowed(metric: Metric, rows: usize, queries: usize, k: usize) -> usize {
        let (base, queries) = vectors(8, rows, queries);
        filtered(VectorShape { element: ElementType::F32, metric, dim: 8 }, &base, &queries, k).2
    }

    /// Products by warps and by warpgroups, of the sample and of the rest, resident and streamed: the filter finds the same as the CPU's
    /// search of all rows, and no candidate list overflows.
    #[test]
    fn every_product_filters_soundly() {
        let mut seen = std::collections::BTreeSet::new();
        for dim in [8, 100, 130] {
            for (k, rows) in [(5, 700), (5, 2_500), (20, 900), (20, 4_200)] {
                let passes = Passes::choose(Tuning::of(Runtime::EMULATOR.limits()), rows, k);
                let visited = if passes.middle == 0 { passes.tiles } else { passes.tiles.div_ceil(passes.middle) };
                let instruction = |tiles| Runtime::EMULATOR.limits().products.instruction(tiles);
                seen.insert((dim > 128, instruction(passes.sample), instruction(visited)));
                let shape = VectorShape { element: ElementType::F32, metric: Metric::L2, dim };
                let (base, queries) = vectors(dim, rows as usize, 150);
                let mut index = FlatIndex::<f32>::new(dim, Metric::L2, Device::Cpu).unwrap();
                index.add(&base).unwrap();
                let expected = index.search(&queries, k as usize).unwrap();
                let found = filtered(shape, &base, &queries, k as usize);
                assert_eq!(found, (expected.ids, expected.distances, 0), "{dim} components, {rows} rows, k = {k}");
            }
        }
        assert_eq!(seen.len(), 8, "both products in both passes, resident and streamed: {seen:?}");
    }

    /// A list with fewer than k rows gives no limit, so the earlier limit must stay. An earlier version dropped it, and one query in twelve
    /// took the slow way.
    #[test]
    fn thresholds_never_loosen() {
        for metric in Metric::ALL {
            for k in [1, 2, 5] {
                assert!(
                    Passes::choose(Tuning::of(Runtime::EMULATOR.limits()), 4_000, k as u32).middle > 0,
                    "two passes"
                );
                assert_eq!(overflowed(metric, 4_000, 100, k), 0, "{metric:?}, k = {k}");
            }
        }
    }

    /// Above the dimension that the bound is proved for there is no filter. Up to it, offsets in a tile of rows fit 32 bits.
    #[test]
    fn no_filter_beyond_the_dimension_of_the_bound() {
        let most = warpann_kernels::product::bounds::MOST_COMPONENTS as usize;
        for (dim, filters) in [(8, true), (most - 1, true), (most, true), (most + 1, false), (1 << 25, false)] {
            for metric in Metric::ALL {
                let shape = VectorShape { element: ElementType::F32, metric, dim };
                let layout = SetLayout::reserve(&mut Layout::default(), shape, 1_000);
                let base = VectorSet::new(Scratch::new(PtrMut::empty()), layout, 1_000);
                let block = Block {
                    shape,
                    base,
                    centred: false,
                    first_id: 0,
                    tuning: Tuning::of(Runtime::EMULATOR.limits()),
                    mask: None,
                };
                assert_eq!(block.uses_filter(10, 5), filters, "{dim} components");
                let of_tile = u64::from(filter::TILE_ROWS) * shape.copy_stride() as u64;
                assert!(!filters || of_tile <= u64::from(u32::MAX), "{dim} components");
            }
        }
    }

    #[test]
    fn passes_visit_every_tile_once() {
        for rows in [1, 128, 129, 2_600, 40_000, 1_000_000] {
            for k in [1, 10, 100, 1_000] {
                let passes = Passes::choose(Tuning { direct_work: 0, sample_rows: 8_192, range_list: 1024 }, rows, k);
                assert!((passes.sample - 1) * passes.sample_stride < passes.tiles);
                let mut seen = vec![0; passes.tiles as usize];
                let mut visit = |tiles: u32, stride: u32, skip: u32| {
                    (0..tiles).for_each(|t| seen[filter::tile_number(t, stride, skip) as usize] += 1);
                };
                if passes.middle == 0 {
                    visit(passes.tiles, 1, 0);
                } else {
                    let visited = passes.tiles.div_ceil(passes.middle);
                    visit(visited, passes.middle, 0);
                    visit(passes.tiles - visited, 0, passes.middle);
                }
                assert!(seen.iter().all(|&count| count == 1), "{rows} rows, k = {k}: {passes:?}");
            }
        }
    }
}
