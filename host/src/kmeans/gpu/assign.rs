//! The nearest centroid of each point of a batch on the device: the host side of kernels `prepare`, `assign` and
//! `settle`.
//!
//! ```text
//! centroids ──prepare──► f16 copies ┐    (few: `assign_few`)
//! points ──prepare (once)─► copies ─┴─assign──► labels │ pending points with candidates ──settle──► their labels
//!                                                      │ unbounded points ────────────settle_all──► their labels
//! ```
//!
//! If vectors have more components than the bound of the products is proved for, all points are unbounded, and no
//! product is computed.

use std::cmp::Ordering;

use cuda_std::PtrMut;
use warpann_kernels::kmeans::assign::{Assign, Assignment, LIST};
use warpann_kernels::kmeans::assign_few::{AssignFew, CopyWidth};
use warpann_kernels::kmeans::settle::{Settle, SettleAll};

use crate::Result;
use crate::device::runtime::{Runtime, Stream};
use crate::device::scratch::{Layout, Reserved, Scratch};
use crate::device::tiling::Planned;
use crate::product::gpu::{SetLayout, VectorSet, VectorShape};

/// The places of the arrays of a batch of points.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchLayout {
    set: SetLayout,
    weights: Reserved<f32>,
    labels: Reserved<u32>,
    previous: Reserved<u32>,
    queue_sizes: Reserved<u32>,
    pending: Reserved<u32>,
    pending_lists: Reserved<u32>,
    unbounded: Reserved<u32>,
    order: Reserved<u64>,
    bytes: usize,
}

impl BatchLayout {
    /// Room for `points` points, for their weights if `weighted`, and for the moves between clusters if `summed`.
    pub fn new(shape: VectorShape, points: usize, weighted: bool, summed: bool) -> BatchLayout {
        let mut layout = Layout::default();
        let mut batch = BatchLayout {
            set: SetLayout::reserve(&mut layout, shape, points),
            weights: layout.array::<f32>(if weighted { points } else { 0 }),
            labels: layout.array::<u32>(points),
            queue_sizes: layout.array::<u32>(2),
            pending: layout.array::<u32>(points),
            pending_lists: layout.array::<u32>(points.saturating_mul(LIST as usize)),
            unbounded: layout.array::<u32>(points),
            previous: layout.array::<u32>(if summed { points } else { 0 }),
            order: layout.array::<u64>(if summed { points.saturating_mul(2) } else { 0 }),
            bytes: 0,
        };
        batch.bytes = layout.bytes();
        batch
    }
}

impl Planned for BatchLayout {
    fn bytes(&self) -> usize {
        self.bytes
    }
}

/// A batch of points in device memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Batch {
    scratch: Scratch,
    layout: BatchLayout,
    /// The points as a set of vectors.
    pub set: VectorSet,
}

impl Batch {
    /// The batch of `count` points in `scratch`, where `layout` reserved room for at least this number.
    pub fn new(scratch: Scratch, layout: BatchLayout, count: u32) -> Batch {
        Batch { scratch, layout, set: VectorSet::new(scratch, layout.set, count) }
    }

    /// Weights of the points; empty without weights.
    pub fn weights(&self) -> PtrMut<f32> {
        self.scratch.at(self.layout.weights)
    }

    /// Labels of the points, one for each.
    pub fn labels(&self) -> PtrMut<u32> {
        self.scratch.at(self.layout.labels)
    }

    /// The labels under which the points are in the sums of clusters; empty without sums.
    pub fn previous(&self) -> PtrMut<u32> {
        self.scratch.at(self.layout.previous)
    }

    /// Number of pending points, then number of unbounded points.
    pub fn queue_sizes(&self) -> PtrMut<u32> {
        self.scratch.at(self.layout.queue_sizes)
    }

    fn pending(&self) -> PtrMut<u32> {
        self.scratch.at(self.layout.pending)
    }

    fn pending_lists(&self) -> PtrMut<u32> {
        self.scratch.at(self.layout.pending_lists)
    }

    fn unbounded(&self) -> PtrMut<u32> {
        self.scratch.at(self.layout.unbounded)
    }

    /// Moves of points between clusters, in the order of clusters; empty without sums.
    pub fn order(&self) -> PtrMut<u64> {
        self.scratch.at(self.layout.order)
    }
}

/// Labels every point of `batch` with the nearest of `centroids`. Both are prepared, with the same centre. If the
/// points are `labelled` already, best by an assignment to nearby centroids, this takes less time.
///
/// # Safety
/// The memory of both has their layouts. The centroids are f32 of the points' dimension and metric, at least one.
/// Labelled points have labels, of any value.
pub(crate) unsafe fn assign_batch(
    runtime: &Runtime,
    stream: &Stream,
    shape: VectorShape,
    batch: Batch,
    centroids: VectorSet,
    labelled: bool,
) -> Result<()> {
    // SAFETY: the layouts reserved every array with the size that the kernels need, and the stream runs the kernels in
    // order.
    unsafe {
        if shape.has_bound() {
            runtime.fill(stream, batch.queue_sizes(), 0)?;
            launch_assign(runtime, stream, shape, batch, centroids, labelled)?;
        } else {
            enqueue_all(runtime, stream, batch)?;
        }
        settle_queues(runtime, stream, shape, batch, centroids)
    }
}

/// The value of a centroid that no point may get: above all scores with a bound, as in
/// [`warpann_kernels::kmeans::assign_few`].
const HIDDEN: f32 = 3e38;

/// The numbers of the rows that equal an earlier one, ascending. O(rows · log(rows)), times dim for rows that begin
/// with the same component.
pub(super) fn equals_of_earlier(rows: &[f32], dim: usize) -> Vec<u32> {
    let row = |number: u32| &rows[number as usize * dim..][..dim];
    // −0 equals 0.
    let compare = |a: u32, b: u32| {
        let mut components = row(a).iter().zip(row(b)).map(|(a, b)| (a + 0.0).total_cmp(&(b + 0.0)));
        components.find(|ordering| ordering.is_ne()).unwrap_or(Ordering::Equal)
    };
    // Every iteration asks. Rows in the order of their first components cost a tenth of rows in order.
    let first = rows.chunks_exact(dim).map(|row| (row[0] + 0.0).to_bits());
    let mut firsts: Vec<(u32, u32)> = first.zip(0..).collect();
    firsts.sort_unstable();
    let mut equals = Vec::new();
    for run in firsts.chunk_by(|a, b| a.0 == b.0).filter(|run| run.len() > 1) {
        let mut numbers: Vec<u32> = run.iter().map(|&(_, number)| number).collect();
        numbers.sort_unstable_by(|&a, &b| compare(a, b).then(a.cmp(&b)));
        equals.extend(numbers.windows(2).filter(|pair| compare(pair[0], pair[1]).is_eq()).map(|pair| pair[1]));
    }
    equals.sort_unstable();
    equals
}

/// Hides prepared centroids that equal an earlier one, by their values. Of equal centroids a point gets the one with
/// the lowest number, so no label changes. But a point near many equal centroids has more candidates than its list, and
/// was compared with all centroids in f64: if half of the rows of a training are equal, so are half of the first
/// centroids, and half of the points are near these.
///
/// # Safety
/// The set is prepared, and has rows of these numbers.
pub(super) unsafe fn hide(runtime: &Runtime, stream: &Stream, centroids: VectorSet, equals: &[u32]) -> Result<()> {
    if equals.is_empty() {
        return Ok(());
    }
    let there = centroids.part(centroids.layout.values);
    let mut values = vec![0.0f32; there.len()];
    // SAFETY: the prepared set has all values, padding included.
    unsafe {
        runtime.copy_to_host(stream, &mut values, there)?;
        equals.iter().for_each(|&number| values[number as usize] = HIDDEN);
        runtime.copy_to_device(stream, there, &values)
    }
}

/// Puts all points into the queue of unbounded points.
///
/// # Safety
/// As [`assign_batch`].
unsafe fn enqueue_all(runtime: &Runtime, stream: &Stream, batch: Batch) -> Result<()> {
    let count = batch.set.count;
    let points: Vec<u32> = (0..count).collect();
    // SAFETY: the queues have room for all points, and two words for their sizes.
    unsafe {
        runtime.copy_to_device(stream, batch.queue_sizes(), &[0, count])?;
        runtime.copy_to_device(stream, batch.unbounded(), &points)
    }
}

/// Labels the points whose nearest centroid the half-precision products prove, and puts the others into the queues. Few
/// centroids stay in shared memory; many are streamed, tile after tile.
///
/// # Safety
/// As [`assign_batch`], for vectors that have a bound; the sizes of the queues are 0.
unsafe fn launch_assign(
    runtime: &Runtime,
    stream: &Stream,
    shape: VectorShape,
    batch: Batch,
    centroids: VectorSet,
    labelled: bool,
) -> Result<()> {
    let (points, limits) = (batch.set, runtime.limits());
    let stride = shape.copy_stride() as u32;
    let assignment = Assignment {
        points: points.part(points.layout.copy).into(),
        centroids: centroids.part(centroids.layout.copy).into(),
        stride,
        point_count: points.count,
        cluster_count: centroids.count,
        metric: shape.metric.of_kernel(),
        point_greatest: points.part(points.layout.greatest).into(),
        centroid_greatest: centroids.part(centroids.layout.greatest).into(),
        point_norms: points.part(points.layout.norms).into(),
        point_residuals: points.part(points.layout.residuals).into(),
        set_bounds: centroids.bounds(),
        labels: batch.labels(),
        queue_sizes: batch.queue_sizes(),
        pending: batch.pending(),
        pending_lists: batch.pending_lists(),
        unbounded: batch.unbounded(),
    };
    let few = AssignFew {
        assignment,
        centroid_values: centroids.part(centroids.layout.values).into(),
        centroid_norms: centroids.part(centroids.layout.norms).into(),
        centroid_residuals: centroids.part(centroids.layout.residuals).into(),
    };
    if let Some(width) = CopyWidth::of(stride)
        && let Some(config) = few.config(width, limits.multiprocessors, limits.shared_bytes)
    {
        // SAFETY: as the caller promises.
        return unsafe { runtime.launch(stream, AssignFew::kernel(width), config, few) };
    }
    let many = Assign {
        assignment,
        centroid_numbers: centroids.part(centroids.layout.numbers).into(),
        tile_norms: centroids.tile_norms(),
        tile_residuals: centroids.tile_residuals(),
        labelled: u32::from(labelled),
    };
    let instruction = limits.products.instruction(many.tiles());
    let kernel = Assign::kernel((instruction, many.residency()));
    // SAFETY: as the caller promises.
    unsafe { runtime.launch(stream, kernel, many.config(instruction), many) }
}

/// Labels the points in the queues.
///
/// # Safety
/// As [`assign_batch`]; the queues are filled.
unsafe fn settle_queues(
    runtime: &Runtime,
    stream: &Stream,
    shape: VectorShape,
    batch: Batch,
    centroids: VectorSet,
) -> Result<()> {
    let (count, multiprocessors) = (batch.set.count, runtime.limits().multiprocessors);
    let pending = Settle {
        points: batch.set.stored(shape),
        centroids: centroids.components().into(),
        stride: shape.stride() as u32,
        metric: shape.metric.of_kernel(),
        queue_size: batch.queue_sizes().take(1).into(),
        pending: batch.pending().into(),
        pending_lists: batch.pending_lists().into(),
        labels: batch.labels(),
    };
    let unbounded = SettleAll {
        points: pending.points,
        centroids: pending.centroids,
        stride: pending.stride,
        metric: pending.metric,
        clusters: centroids.count,
        queue_size: batch.queue_sizes().skip(1).into(),
        unbounded: batch.unbounded().into(),
        labels: pending.labels,
    };
    let key = shape.element.key();
    // SAFETY: as the caller promises.
    unsafe {
        runtime.launch(stream, Settle::kernel(key), pending.config(count, multiprocessors), pending)?;
        runtime.launch(stream, SettleAll::kernel(key), unbounded.config(count, multiprocessors), unbounded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::runtime::{Runtime, Stream};
    use crate::product::gpu::prepare_set;
    use crate::product::gpu::upload_rows;
    use crate::random::Random;
    use crate::{ElementType, Metric};

    #[test]
    fn equal_rows_are_those_after_the_first() {
        let rows = [1.0, 2.0, 0.0, 5.0, 1.0, 2.0, -0.0, 5.0, 1.0, 2.0, 0.0, 6.0];
        assert_eq!(equals_of_earlier(&rows, 2), [2, 3, 4]);
        assert_eq!(equals_of_earlier(&rows[..4], 2), [0; 0]);
        // By comparing all pairs.
        let mut random = Random::new(1);
        for (dim, values) in [(1, 40), (2, 3), (3, 2), (5, 1)] {
            let rows: Vec<f32> =
                (0..200 * dim).map(|_| [-0.0, 0.0, 1.0, -7.5][random.below(4)] * random.below(values) as f32).collect();
            let row = |number: usize| &rows[number * dim..][..dim];
            let expected: Vec<u32> =
                (0..200).filter(|&at| (0..at).any(|before| row(before) == row(at))).map(|at| at as u32).collect();
            assert!(equals_of_earlier(&rows, dim) == expected, "{dim} {values}");
        }
    }

    /// The path of vectors with too many components, for short vectors.
    #[test]
    fn queues_of_all_points_are_settled_by_the_definition() {
        let shape = VectorShape::new(ElementType::F32, Metric::L2, 3);
        let points: Vec<f32> = (0..70 * 3).map(|at| (at * 7919 % 101) as f32).collect();
        let centroids = &points[30..30 + 9 * 3];
        let layout = BatchLayout::new(shape, 70, false, false);
        let memory = Runtime::EMULATOR.allocate(layout.bytes()).unwrap();
        let batch = Batch::new(Runtime::EMULATOR.scratch(&memory), layout, 70);
        let mut of_centroids = Layout::default();
        let set = SetLayout::reserve(&mut of_centroids, shape, 9);
        let centroid_memory = Runtime::EMULATOR.allocate(of_centroids.bytes()).unwrap();
        let set = VectorSet::new(Runtime::EMULATOR.scratch(&centroid_memory), set, 9);
        let mut labels = vec![u32::MAX; 70];
        // SAFETY: both have the room that their layouts reserved, and all memory that is read was written before.
        unsafe {
            upload_rows(&Runtime::EMULATOR, &Stream::EMULATOR, shape, batch.set.rows(), &points).unwrap();
            upload_rows(&Runtime::EMULATOR, &Stream::EMULATOR, shape, set.rows(), centroids).unwrap();
            prepare_set(&Runtime::EMULATOR, &Stream::EMULATOR, shape, set, false).unwrap();
            enqueue_all(&Runtime::EMULATOR, &Stream::EMULATOR, batch).unwrap();
            settle_queues(&Runtime::EMULATOR, &Stream::EMULATOR, shape, batch, set).unwrap();
            Runtime::EMULATOR.copy_to_host(&Stream::EMULATOR, &mut labels, batch.labels()).unwrap();
        }
        for (point, &label) in points.chunks(3).zip(&labels) {
            let distance = |c: &[f32]| point.iter().zip(c).map(|(x, c)| (x - c) * (x - c)).sum::<f32>();
            let distances: Vec<f32> = centroids.chunks(3).map(distance).collect();
            let nearest = (0..9).rev().min_by(|&a, &b| distances[a].total_cmp(&distances[b]).then(a.cmp(&b))).unwrap();
            assert_eq!(label as usize, nearest);
        }
    }
}
