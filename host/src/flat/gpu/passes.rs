//! The distances from which the best of a block are selected: those of all rows, or of the rows that the filter leaves.
//! This is the host side of the filter (kernels `prepare`, `filter`, `candidates`, `canonical`, `warp_select`; the
//! algorithm and its proof are in `warpann_kernels::flat::filter`).
//!
//! ```text
//! queries ──prepare──► f16 copies ──filter_dense on a sample──► upper bounds ──select──► threshold
//!                          │  filter_append on every g-th tile, threshold ──► lists ──select, compact──► tighter threshold
//!                          └─ filter_append on the other tiles, threshold ──► lists ──select, compact──► few rows
//!                                                  canonical distances of those ──select──► the answer
//! ```
//!
//! Where an estimate of the threshold leaves fewer candidates (`warpann_kernels::flat::sample_rows`), the sample has
//! single rows, its selection is of a rank below k, and one filter_append visits all tiles.
//!
//! The canonical distances of all rows are computed and selected from in three cases: if the filter does not pay
//! (little work, or k near the number of rows), if it proves nothing (more components than
//! [`MOST_COMPONENTS`](warpann_kernels::product::bounds::MOST_COMPONENTS)), and, by a kernel that replaces the list,
//! for queries with an overflowed list or an estimate without a proof. This is slower and right for any input. `steps`
//! has these cases, for queries from host memory and from device memory.

use cuda_std::PtrMut;
use cuda_std::global::U32x4;
use warpann_kernels::flat::candidates::CompactCandidates;
use warpann_kernels::flat::filter::{self, FilterOutput, FilterPass};
use warpann_kernels::flat::sample_rows::{self, SampleRows};
use warpann_kernels::product::canonical::Canonical;
use warpann_kernels::select::sample::rank;

use super::block::{Block, Tuning, VisitedRows};
use crate::Result;
use crate::device::limits::Limits;
use crate::device::queue::OnStream;
use crate::device::scratch::{Layout, Reserved, Scratch};
use crate::product::gpu::{Operands, SetLayout, VectorSet, VectorShape, prepare_set};
use crate::select::Best;
use crate::select::gpu::{Columns, Select, SelectPlan, select};

/// Smallest number of sample rows for each neighbour.
const SAMPLE_PER_NEIGHBOUR: u32 = 8;
/// A larger sample costs selection in proportion and saves candidates (k · √(base / sample) in a pass), so the best
/// size grows with √k. A sample of `sample_rows` is right for the square of this number of neighbours. With 3 instead
/// of 5, 10,000 queries among 1,000,000 vectors of 128 bytes took 2 % less for k = 100, and 3 % more for k = 1,000
/// (H200).
const SAMPLE_ROOT: u32 = 5;
/// Smallest ratio of base to sample for which a pass between them pays.
const MIDDLE_FROM: u32 = 16;
/// Room of a candidate list, relative to the number expected for data in random order.
const LIST_MARGIN: u64 = 4;
/// Smallest number of slots of a candidate list.
const LIST_LEAST: u64 = 1024;

/// The filter's passes over a base, for its number of rows and k.
#[derive(Debug, Clone, Copy)]
struct Passes {
    /// Number of tiles of the base.
    tiles: u32,
    /// Number of tiles of the sample.
    sample: u32,
    first: FirstThreshold,
    /// Number of slots of a candidate list, and the number for which its selection is chosen.
    lists: Columns,
}

/// The source of a query's first threshold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FirstThreshold {
    /// The k-th smallest upper bound of the tiles of the base at this distance. The middle pass visits every tile whose
    /// number is a multiple of `middle`; 0 if there is no middle pass.
    Proved { stride: u32, middle: u32 },
    /// The upper bound of this rank of a sample of `rows` single rows, an estimate.
    Estimated { rank: u32, rows: u32 },
}

impl Passes {
    fn choose(tuning: Tuning, rows: u32, k: u32) -> Passes {
        let tiles = rows.div_ceil(filter::TILE_ROWS);
        let by_root = (tuning.sample_rows / SAMPLE_ROOT).saturating_mul(k.isqrt());
        let wanted = tuning.sample_rows.max(by_root).max(k.saturating_mul(SAMPLE_PER_NEIGHBOUR));
        let sample = wanted.div_ceil(filter::TILE_ROWS).min(tiles);
        let ratio = tiles.div_ceil(sample);
        let middle = if ratio < MIDDLE_FROM { 0 } else { ratio.isqrt() };
        let sampled = (sample * filter::TILE_ROWS).min(rows);
        let rank = rank(sampled, k as f32 / rows as f32);
        let [of_first, of_second] = if middle == 0 { [ratio, 0] } else { [middle, ratio.div_ceil(middle)] };
        let candidates = u64::from(k) * (u64::from(of_first) + u64::from(of_second));
        let estimate = u64::from(rank) * u64::from(ratio);
        let (first, expected) = if estimate < candidates {
            (FirstThreshold::Estimated { rank, rows: sampled }, estimate)
        } else {
            let longest = u64::from(k) * u64::from(of_first.max(of_second));
            (FirstThreshold::Proved { stride: tiles / sample, middle }, longest)
        };
        let capacity = (expected * LIST_MARGIN).max(LIST_LEAST).next_multiple_of(32);
        let most = capacity.min(u64::from(tiles) * u64::from(filter::TILE_ROWS)) as u32;
        let typical = match first {
            FirstThreshold::Proved { .. } => most,
            FirstThreshold::Estimated { .. } => most.min(estimate as u32),
        };
        Passes { tiles, sample, first, lists: Columns { most, typical } }
    }

    /// The rank in the sample of the first threshold.
    fn rank(&self, k: u32) -> u32 {
        match self.first {
            FirstThreshold::Proved { .. } => k,
            FirstThreshold::Estimated { rank, .. } => rank,
        }
    }

    fn sample_columns(&self) -> u32 {
        self.sample * filter::TILE_ROWS
    }
}

/// The places of a sample of single rows.
#[derive(Clone, Copy)]
struct SamplePlan {
    rows: u32,
    operands: Reserved<u8>,
    values: Reserved<u32>,
    /// The greatest norm of each tile, and then the greatest residual of each.
    tile_bounds: Reserved<f32>,
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
    sample: Option<SamplePlan>,
    of_sample: SelectPlan,
    pub of_lists: SelectPlan,
    pub bytes: usize,
}

impl FilterPlan {
    pub(super) fn new(block: &Block, queries: usize, k: u32, limits: &Limits) -> FilterPlan {
        let shape = block.shape;
        let passes = Passes::choose(block.tuning, block.base.count, k);
        let mut layout = Layout::default();
        let list = queries.saturating_mul(passes.lists.most as usize);
        let results = queries.saturating_mul(k as usize);
        let mut selection = |columns, k| SelectPlan::by_table(&mut layout, queries as u32, columns, k, limits);
        let of_sample = selection(passes.sample_columns().into(), passes.rank(k));
        let of_lists = selection(passes.lists, k);
        let sample = match passes.first {
            FirstThreshold::Proved { .. } => None,
            FirstThreshold::Estimated { rows, .. } => {
                let padded = passes.sample_columns() as usize;
                let operands = layout.array(padded.saturating_mul(block.operand_bytes()));
                let (values, tile_bounds) = (layout.array(padded), layout.array(2 * passes.sample as usize));
                Some(SamplePlan { rows, operands, values, tile_bounds })
            }
        };
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
            sample,
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

impl Block {
    /// Computes the canonical distances of the queries in `set` to all rows. Returns the selection of the best `k`,
    /// which is still to run.
    ///
    /// # Safety
    /// The scratch is that of the plan, which was made for at least this number of queries; the queries and the base
    /// are in place.
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

    /// Runs the passes of the filter for the prepared queries in `set`, and computes the canonical distances of the
    /// rows that are left. Returns the selection of the best `k` from their lists, which is still to run. The lists of
    /// queries in the plan's `overflowed` are not complete.
    ///
    /// # Safety
    /// The scratch is that of the plan, which was made for at least this number of queries; the base is in place and
    /// prepared.
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
        let (list_values, list_rows, counts) = plan.lists(scratch);
        let (keys, ids) = (scratch.at(plan.keys), scratch.at(plan.ids));
        let (all, rank) = (self.all_rows(), passes.rank(k));
        // The append passes start from this, which visits all tiles.
        let append = FilterPass {
            tiles: passes.tiles,
            tile_stride: 1,
            thresholds: thresholds.into(),
            out_values: list_values,
            out_rows: list_rows,
            counts,
            out_stride: passes.lists.most,
            ..self.pass(set)
        };
        let dense = FilterPass {
            tiles: passes.sample,
            tile_stride: match passes.first {
                FirstThreshold::Proved { stride, .. } => stride,
                FirstThreshold::Estimated { .. } => 1,
            },
            out_values: upper,
            out_stride: passes.sample_columns(),
            ..self.pass(set)
        };
        // SAFETY: the plan reserved every part with the size that the kernels need, the caller promises the base, and
        // the stream runs these in order.
        unsafe {
            runtime.fill(stream, scratch.at(plan.counters), 0)?;

            let sampled = match plan.sample {
                Some(sample) => self.sample(on, sample, scratch)?,
                None => all,
            };
            self.launch_filter(on, FilterOutput::Dense, set, sampled, dense)?;
            let sample = Select {
                keys: upper.into(),
                ids: None,
                row_stride: u64::from(passes.sample_columns()),
                starts: None,
                lengths: None,
                columns: passes.sample_columns(),
                rows: count,
                k: rank,
                best: Best::Smallest,
                out_keys: keys.take(count as usize * rank as usize),
                out_ids: ids.take(count as usize * rank as usize),
            };
            select(runtime, stream, &sample, &plan.of_sample, scratch)?;

            let list = Select {
                keys: list_values.into(),
                ids: list_rows.into(),
                row_stride: u64::from(passes.lists.most),
                lengths: counts.into(),
                columns: passes.lists.most,
                k,
                out_keys: keys,
                out_ids: ids,
                ..sample
            };
            let tighten = || -> Result<()> {
                select(runtime, stream, &list, &plan.of_lists, scratch)?;
                self.apply_threshold(on, plan, scratch, set, k, false)
            };
            self.apply_threshold(on, plan, scratch, set, rank, true)?;
            match passes.first {
                FirstThreshold::Proved { middle, .. } if middle > 0 => {
                    let visited = passes.tiles.div_ceil(middle);
                    let some = FilterPass { tiles: visited, tile_stride: middle, ..append };
                    self.launch_filter(on, FilterOutput::Append, set, all, some)?;
                    tighten()?;
                    let (tiles, tile_skip) = (passes.tiles - visited, middle);
                    let others = FilterPass { tiles, tile_stride: 0, tile_skip, ..append };
                    self.launch_filter(on, FilterOutput::Append, set, all, others)?;
                }
                _ => self.launch_filter(on, FilterOutput::Append, set, all, append)?,
            }
            tighten()?;

            let of_lists = Canonical {
                rows: list_rows.into(),
                counts: counts.into(),
                columns: passes.lists.most,
                list_stride: u64::from(passes.lists.most),
                ..self.canonical(set, list_values)
            };
            self.launch_canonical(runtime, stream, of_lists, k)?;
            Ok(Select { best: shape.best(), ..list })
        }
    }

    /// Copies a sample of single rows of the base.
    ///
    /// # Safety
    /// As [`Block::candidates`]; the scratch is that of the sample's plan.
    unsafe fn sample(&self, on: OnStream<'_>, sample: SamplePlan, scratch: Scratch) -> Result<VisitedRows> {
        let (from, count) = (self.all_rows(), sample.rows);
        let (operands, values) = (scratch.at(sample.operands), scratch.at(sample.values));
        let bounds = scratch.at(sample.tile_bounds);
        let launch = SampleRows {
            base: from.operands.cast(),
            words: (self.operand_bytes() / size_of::<U32x4>()) as u32,
            step: sample_rows::step(self.base.count, count),
            count,
            base_values: from.values,
            base_bounds: self.base.bounds(),
            to: operands.cast(),
            values,
            tile_bounds: match self.shape.operands {
                Operands::Halves => Some(bounds),
                Operands::Bytes(_) => None,
            },
        };
        // SAFETY: as the caller promises.
        unsafe { on.runtime.launch(on.stream, &SampleRows::KERNEL, launch.config(), launch)? };
        let tiles = bounds.len() / 2;
        Ok(VisitedRows {
            operands: operands.into(),
            values: values.into(),
            tile_norms: bounds.take(tiles).into(),
            tile_residuals: bounds.skip(tiles).into(),
        })
    }

    /// Makes the k-th smallest u of the last selection the threshold of each query, and shortens its list by the
    /// threshold. `first` says that there was no threshold.
    ///
    /// # Safety
    /// As [`Block::candidates`]; the selection precedes this in the stream.
    unsafe fn apply_threshold(
        &self,
        on: OnStream<'_>,
        plan: &FilterPlan,
        scratch: Scratch,
        set: VectorSet,
        k: u32,
        first: bool,
    ) -> Result<()> {
        let (values, rows, counts) = plan.lists(scratch);
        let residuals = match self.shape.operands {
            Operands::Halves => Some(set.part(set.layout.residuals).into()),
            Operands::Bytes(_) => None,
        };
        let launch = CompactCandidates {
            query_count: set.count,
            metric: self.shape.metric.of_kernel(),
            gamma: self.shape.gamma(),
            query_norms: set.part(set.layout.norms).into(),
            query_residuals: residuals,
            base_bounds: self.base.bounds(),
            found: scratch.at(plan.keys).skip(k as usize - 1).into(),
            found_stride: k,
            first: u32::from(first),
            estimated: u32::from(!first && plan.sample.is_some()),
            thresholds: scratch.at(plan.thresholds),
            values,
            rows,
            counts,
            stride: plan.passes.lists.most,
            overflow: scratch.at(plan.overflow),
            overflowed: scratch.at(plan.overflowed),
        };
        // SAFETY: as the caller promises.
        unsafe { on.runtime.launch(on.stream, &CompactCandidates::KERNEL, launch.config(), launch) }
    }
}

#[cfg(test)]
mod tests {
    use test_random::Random;
    use warpann_kernels::product::instruction::Instruction;

    use super::*;
    use crate::device::lanes::Lanes;
    use crate::device::runtime::Runtime;
    use crate::neighbors::slots::Slots;
    use crate::product::gpu::upload_rows;
    use crate::vectors::VectorSlice;
    use crate::{Device, Element, ElementType, FlatIndex, Metric};

    /// Random rows and queries with components from -0.5 to 0.5.
    fn vectors(dim: usize, rows: usize, queries: usize) -> (Vec<f32>, Vec<f32>) {
        let mut random = Random::new(7);
        let mut values = |count: usize| -> Vec<f32> { (0..count * dim).map(|_| random.unit_f32() - 0.5).collect() };
        (values(rows), values(queries))
    }

    /// A filtered search on the emulator: ids, distances, and the number of queries with an overflowed list.
    fn filtered<T: Element>(shape: VectorShape, base: &[T], queries: &[T], k: usize) -> (Vec<u64>, Vec<f32>, usize) {
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
        filtered(VectorShape::new(ElementType::F32, metric, 8), &base, &queries, k).2
    }

    /// The filter finds the same as the CPU's search of all rows, and no candidate list overflows, for vectors of each
    /// of the dimensions. Adds to `seen` whether queries are streamed, and the instructions of the sample and of the
    /// rest.
    fn filters_soundly<T: Element>(
        metric: Metric,
        dims: &[usize],
        of: impl Fn(f32) -> T,
        seen: &mut std::collections::BTreeSet<(bool, Instruction, Instruction)>,
    ) {
        for &dim in dims {
            let shape = VectorShape::of_rows(T::TYPE, metric, dim);
            let (bytes, chunk) = match shape.operands {
                Operands::Halves => (2, 128),
                Operands::Bytes(_) => (1, 128),
            };
            let streamed = (dim * bytes).div_ceil(chunk) > filter::RESIDENT_CHUNKS as usize;
            for (k, rows) in [(5, 700), (5, 2_500), (20, 900), (20, 4_200), (100, 2_300)] {
                let passes = Passes::choose(Tuning::of(Runtime::EMULATOR.limits()), rows, k);
                let visited = match passes.first {
                    FirstThreshold::Proved { middle, .. } if middle > 0 => passes.tiles.div_ceil(middle),
                    _ => passes.tiles,
                };
                let is_estimated = matches!(passes.first, FirstThreshold::Estimated { .. });
                assert_eq!(is_estimated, (k, rows) == (20, 4_200) || k == 100, "{passes:?}");
                let instruction = |tiles| Runtime::EMULATOR.limits().products.instruction(tiles);
                seen.insert((streamed, instruction(passes.sample), instruction(visited)));
                let (base, queries) = vectors(dim, rows as usize, 150);
                let [base, queries]: [Vec<T>; 2] = [base, queries].map(|all| all.into_iter().map(&of).collect());
                let mut index = FlatIndex::<T>::new(dim, metric, Device::Cpu).unwrap();
                index.add(&base).unwrap();
                let expected = index.search(&queries, k as usize).unwrap();
                let found = filtered(shape, &base, &queries, k as usize);
                assert_eq!(found, (expected.ids, expected.distances, 0), "{dim} components, {rows} rows, k = {k}");
            }
        }
    }

    /// Products by warps and by warpgroups, of the sample and of the rest, resident and streamed.
    #[test]
    fn every_product_filters_soundly() {
        let mut seen = std::collections::BTreeSet::new();
        filters_soundly(Metric::L2, &[8, 100, 130], |x: f32| x, &mut seen);
        assert_eq!(seen.len(), 8, "both products in both passes, resident and streamed: {seen:?}");
    }

    #[test]
    fn every_product_of_bytes_filters_soundly() {
        let unsigned = |x: f32| (x * 255.0 + 127.5) as u8;
        let signed = |x: f32| (x * 255.0) as i8;
        let mut seen = std::collections::BTreeSet::new();
        filters_soundly(Metric::L2, &[8, 130, 260], unsigned, &mut seen);
        assert_eq!(seen.len(), 8, "both products in both passes, resident and streamed: {seen:?}");
        for metric in [Metric::InnerProduct, Metric::Cosine] {
            filters_soundly(metric, &[40], unsigned, &mut seen);
            filters_soundly(metric, &[130], signed, &mut seen);
        }
        let mut seen = std::collections::BTreeSet::new();
        filters_soundly(Metric::Hamming, &[20, 130, 260], unsigned, &mut seen);
        assert_eq!(seen.len(), 8, "both products in both passes, resident and streamed: {seen:?}");
    }

    /// A list with fewer than k rows gives no threshold, so the earlier threshold must stay. An earlier version dropped
    /// it, and one query in twelve took the slow way.
    #[test]
    fn thresholds_never_loosen() {
        for metric in Metric::OF_NUMBERS {
            for k in [1, 2, 5] {
                let passes = Passes::choose(Tuning::of(Runtime::EMULATOR.limits()), 4_000, k as u32);
                assert!(matches!(passes.first, FirstThreshold::Proved { middle: 1.., .. }), "two passes");
                assert_eq!(overflowed(metric, 4_000, 100, k), 0, "{metric:?}, k = {k}");
            }
        }
    }

    /// The best rows of all queries are rows of the sample, so all estimates leave some of them out.
    #[test]
    fn an_estimate_without_a_proof_finds_the_same() {
        let (rows, k, dim) = (2_300, 100, 8);
        let passes = Passes::choose(Tuning::of(Runtime::EMULATOR.limits()), rows, k);
        let FirstThreshold::Estimated { rows: sampled, .. } = passes.first else { panic!("{passes:?}") };
        let step = sample_rows::step(rows, sampled);
        let sample: std::collections::BTreeSet<u32> =
            (0..sampled).map(|place| sample_rows::number(place, step)).collect();
        let (near, queries) = vectors(dim, rows as usize, 30);
        let of_sample = |at: usize| sample.contains(&((at / dim) as u32));
        let far = near.iter().enumerate().map(|(at, x)| if of_sample(at) { *x } else { x + 7.0 }).collect();
        for (base, unproved) in [(near, 0), (far, 30)] {
            let mut index = FlatIndex::<f32>::new(dim, Metric::L2, Device::Cpu).unwrap();
            index.add(&base).unwrap();
            let expected = index.search(&queries, k as usize).unwrap();
            let found = filtered(VectorShape::of_rows(ElementType::F32, Metric::L2, dim), &base, &queries, k as usize);
            assert_eq!(found, (expected.ids, expected.distances, unproved));
        }
    }

    /// The chance that an estimate is too small, by the binomial distribution, is a few in a million, and not much
    /// smaller.
    #[test]
    fn estimates_are_rarely_too_small() {
        let chance = |k: u32, share: f64, rank: u32| -> f64 {
            let mut term = (1.0 - share).powi(k as i32);
            let mut tail = 0.0;
            for hits in 0..=k {
                tail += if hits < rank { 0.0 } else { term };
                term *= f64::from(k - hits) / f64::from(hits + 1) * share / (1.0 - share);
            }
            tail
        };
        let tuning = Tuning { sample_rows: 8_192, ..Tuning::of(Runtime::EMULATOR.limits()) };
        for (rows, k, expected) in
            [(1_000_000, 100, 11), (1_000_000, 1_000, 86), (200_000, 100, 25), (100_000, 300, 128)]
        {
            let passes = Passes::choose(tuning, rows, k);
            let FirstThreshold::Estimated { rank, rows: sampled } = passes.first else { panic!("{passes:?}") };
            assert_eq!(rank, expected, "k = {k} of {rows}: {passes:?}");
            let share = f64::from(sampled) / f64::from(rows);
            let (of_rank, of_less) = (chance(k, share, rank), chance(k, share, rank * 3 / 4));
            assert!(of_rank <= 4e-6 && of_less > 1e-5, "k = {k} of {rows}: {of_rank:e}, {of_less:e}");
        }
    }

    #[test]
    fn passes_visit_every_tile_once() {
        for rows in [1, 128, 129, 2_600, 40_000, 1_000_000] {
            for k in [1, 10, 100, 1_000] {
                let of_gpu = Tuning { sample_rows: 8_192, ..Tuning::of(Runtime::EMULATOR.limits()) };
                let passes = Passes::choose(of_gpu, rows, k);
                let middle = match passes.first {
                    FirstThreshold::Proved { stride, middle } => {
                        assert!((passes.sample - 1) * stride < passes.tiles);
                        middle
                    }
                    FirstThreshold::Estimated { rank, rows: sampled } => {
                        assert!(rank < k && sampled <= rows.min(passes.sample_columns()));
                        0
                    }
                };
                let mut seen = vec![0; passes.tiles as usize];
                let mut visit = |tiles: u32, stride: u32, skip: u32| {
                    (0..tiles).for_each(|t| seen[filter::tile_number(t, stride, skip) as usize] += 1);
                };
                if middle == 0 {
                    visit(passes.tiles, 1, 0);
                } else {
                    let visited = passes.tiles.div_ceil(middle);
                    visit(visited, middle, 0);
                    visit(passes.tiles - visited, 0, middle);
                }
                assert!(seen.iter().all(|&count| count == 1), "{rows} rows, k = {k}: {passes:?}");
            }
        }
    }
}
