//! The nearest centroid of each point of one batch on the device: the host side of kernels `prepare`, `assign` and
//! `settle`.
//!
//! ```text
//! centroids ──prepare──► f16 copies ┐    (few: `assign_few`)
//! points ──prepare (once)─► copies ─┴─assign──► labels │ pending points with candidates ──settle──► their labels
//!                                                      │ unbounded points ────────────settle_all──► their labels
//! ```
//!
//! With more components than the bound of the products is proved for, all points are unbounded, and no product is made.

use cuda_std::launch::LaunchConfig;
use warpann_kernels::{assign, assign_few, clustering_instances, settle};

use super::exact::{Set, SetLayout, Shape, blocks};
use super::runtime::{Layout, Runtime, grid};
use crate::{ElementType, Metric, Result};

/// Where the parts of a batch of points lie, relative to its start.
#[derive(Debug, Clone, Copy)]
pub(super) struct BatchLayout {
    set: (usize, SetLayout),
    weights: usize,
    labels: usize,
    previous: usize,
    queue_sizes: usize,
    pending: usize,
    pending_lists: usize,
    unbounded: usize,
    order: usize,
    bytes: usize,
}

impl BatchLayout {
    /// Room for `points` points; for their weights, and for what adding them up needs, only where asked for.
    pub fn new(shape: Shape, points: usize, weighted: bool, summed: bool) -> BatchLayout {
        let mut layout = Layout::default();
        let mut batch = BatchLayout {
            set: SetLayout::reserve(&mut layout, shape, points),
            weights: layout.array::<f32>(if weighted { points } else { 0 }),
            labels: layout.array::<u32>(points),
            queue_sizes: layout.array::<u32>(2),
            pending: layout.array::<u32>(points),
            pending_lists: layout.array::<u32>(points.saturating_mul(assign::LIST as usize)),
            unbounded: layout.array::<u32>(points),
            previous: layout.array::<u32>(if summed { points } else { 0 }),
            order: layout.array::<u64>(if summed { points.saturating_mul(2) } else { 0 }),
            bytes: 0,
        };
        batch.bytes = layout.bytes();
        batch
    }

    /// Bytes of all parts.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// A batch of points on the device.
#[derive(Debug, Clone, Copy)]
pub(super) struct Batch {
    start: *mut u8,
    layout: BatchLayout,
    /// The points as a set of vectors.
    pub set: Set,
}

impl Batch {
    /// The batch of `count` points that lies at `start`.
    pub fn new(start: *mut u8, layout: BatchLayout, count: u32) -> Batch {
        let (at, set) = layout.set;
        Batch { start, layout, set: Set::new(start.wrapping_add(at), set, count) }
    }

    fn part<V>(&self, offset: usize) -> *mut V {
        self.start.wrapping_add(offset).cast()
    }

    /// Weights of the points, where there is room for them.
    pub fn weights(&self) -> *mut f32 {
        self.part(self.layout.weights)
    }

    /// Labels of the points.
    pub fn labels(&self) -> *mut u32 {
        self.part(self.layout.labels)
    }

    /// The labels that the sums of clusters have them with, where there is room for them.
    pub fn previous(&self) -> *mut u32 {
        self.part(self.layout.previous)
    }

    /// How many points were pending, and how many unbounded.
    #[cfg(test)]
    pub fn queue_sizes(&self) -> *const u32 {
        self.part(self.layout.queue_sizes)
    }

    /// Moves of points from cluster to cluster, in the order of clusters, where there is room for them.
    pub fn order(&self) -> *mut u64 {
        self.part(self.layout.order)
    }
}

/// Labels every point of `batch` with the nearest of `centroids`. Both are prepared, with the same centre. Where the
/// points are `labelled`, at best from an assignment to centroids nearby, that saves time.
///
/// # Safety
/// The memory of both is as laid out, the centroids are f32 of the points' dimension and metric, at least one; labelled
/// points have labels, any numbers.
pub(super) unsafe fn assign_batch<R: Runtime>(
    runtime: &R,
    stream: &R::Stream,
    shape: Shape,
    batch: Batch,
    centroids: Set,
    labelled: bool,
) -> Result<()> {
    let queues = Queues::of(batch);
    // SAFETY: the layouts reserved every part with the size that the kernels ask for, and the stream runs these in
    // order.
    unsafe {
        if !shape.has_bound() {
            enqueue_all(runtime, stream, batch.set.count, queues)?;
            return settle_queues(runtime, stream, shape, batch, centroids, queues);
        }
        runtime.fill(stream, queues.sizes.cast(), 0, 2 * size_of::<u32>())?;
        let chunks = (shape.copy_stride() / assign::CHUNK as usize) as u32;
        match assign_few::shared_bytes(centroids.count, chunks, runtime.limits().shared_bytes) {
            Some(shared) => launch_few(runtime, stream, shape, batch, centroids, queues, shared)?,
            None => launch_many(runtime, stream, shape, batch, centroids, queues, labelled)?,
        }
        settle_queues(runtime, stream, shape, batch, centroids, queues)
    }
}

/// Where the kernels of assignment leave the points that they have not proved a label for.
#[derive(Debug, Clone, Copy)]
struct Queues {
    sizes: *mut u32,
    pending: *mut u32,
    pending_lists: *mut u32,
    unbounded: *mut u32,
}

impl Queues {
    fn of(batch: Batch) -> Queues {
        Queues {
            sizes: batch.part(batch.layout.queue_sizes),
            pending: batch.part(batch.layout.pending),
            pending_lists: batch.part(batch.layout.pending_lists),
            unbounded: batch.part(batch.layout.unbounded),
        }
    }
}

/// Puts all of `count` points into the queue of the unbounded.
///
/// # Safety
/// As [`assign_batch`].
unsafe fn enqueue_all<R: Runtime>(runtime: &R, stream: &R::Stream, count: u32, queues: Queues) -> Result<()> {
    let points: Vec<u32> = (0..count).collect();
    // SAFETY: the queues have room for all points, and two words for their sizes.
    unsafe {
        runtime.upload(stream, queues.sizes.cast(), bytemuck::cast_slice(&[0, count]))?;
        runtime.upload(stream, queues.unbounded.cast(), bytemuck::cast_slice(&points))
    }
}

/// Kernels `assign_few`: all centroids in `shared` bytes of shared memory.
///
/// # Safety
/// As [`assign_batch`].
unsafe fn launch_few<R: Runtime>(
    runtime: &R,
    stream: &R::Stream,
    shape: Shape,
    batch: Batch,
    centroids: Set,
    queues: Queues,
    shared: u32,
) -> Result<()> {
    let points = batch.set;
    let wide = shape.copy_stride() > assign::CHUNK as usize;
    let kernel = if wide { &assign_few::ASSIGN_FEW_128 } else { &assign_few::ASSIGN_FEW_64 };
    let blocks = points.count.div_ceil(assign_few::WARPS * assign_few::WARP_POINTS);
    let config = LaunchConfig {
        grid: [blocks.min(runtime.limits().multiprocessors).into(), 1, 1],
        block: [assign_few::THREADS, 1, 1],
        shared_bytes: shared,
    };
    let args = (
        points.part::<u16>(points.layout.copy).cast_const(),
        centroids.part::<u16>(centroids.layout.copy).cast_const(),
        points.count,
        centroids.count,
        shape.metric_code(),
        points.part::<u32>(points.layout.greatest).cast_const(),
        centroids.part::<u32>(centroids.layout.greatest).cast_const(),
        points.part::<f32>(points.layout.norms).cast_const(),
        points.part::<f32>(points.layout.residuals).cast_const(),
        centroids.part::<f32>(centroids.layout.values).cast_const(),
        centroids.part::<f32>(centroids.layout.norms).cast_const(),
        centroids.part::<f32>(centroids.layout.residuals).cast_const(),
        centroids.part::<f32>(centroids.layout.bounds).cast_const(),
        batch.labels(),
        queues.sizes,
        queues.pending,
        queues.pending_lists,
        queues.unbounded,
    );
    // SAFETY: as the caller promises.
    unsafe { runtime.launch(stream, kernel, config, args) }
}

/// Kernels `assign`: tiles of centroids pass by.
///
/// # Safety
/// As [`assign_batch`].
unsafe fn launch_many<R: Runtime>(
    runtime: &R,
    stream: &R::Stream,
    shape: Shape,
    batch: Batch,
    centroids: Set,
    queues: Queues,
    labelled: bool,
) -> Result<()> {
    let points = batch.set;
    let chunks = (shape.copy_stride() / assign::CHUNK as usize) as u32;
    let tiles = points.count.div_ceil(assign::TILE_ROWS);
    let groups = runtime.limits().products.by_groups(tiles);
    let kernel = match (groups, chunks <= assign::RESIDENT_CHUNKS) {
        (false, true) => &assign::ASSIGN_RESIDENT,
        (false, false) => &assign::ASSIGN_STREAMED,
        (true, true) => &assign::ASSIGN_RESIDENT_SM90,
        (true, false) => &assign::ASSIGN_STREAMED_SM90,
    };
    let config = LaunchConfig {
        grid: [grid(kernel.name(), tiles.into())?, 1, 1],
        block: [assign::THREADS, 1, 1],
        shared_bytes: assign::shared_bytes(if groups { assign::GROUPS_RING } else { assign::WARPS_RING }, chunks),
    };
    let of_tiles = centroids.count.next_multiple_of(assign::TILE_ROWS) as usize * size_of::<f32>();
    let numbers = [centroids.layout.values, centroids.layout.norms, centroids.layout.residuals];
    debug_assert_eq!(numbers, [0, 1, 2].map(|array| numbers[0] + array * of_tiles), "one after the other");
    let args = (
        points.part::<u16>(points.layout.copy).cast_const(),
        centroids.part::<u16>(centroids.layout.copy).cast_const(),
        shape.copy_stride() as u32,
        points.count,
        centroids.count,
        shape.metric_code(),
        points.part::<u32>(points.layout.greatest).cast_const(),
        centroids.part::<u32>(centroids.layout.greatest).cast_const(),
        points.part::<f32>(points.layout.norms).cast_const(),
        points.part::<f32>(points.layout.residuals).cast_const(),
        centroids.part::<f32>(centroids.layout.values).cast_const(),
        centroids.part::<f32>(centroids.layout.tile_norms).cast_const(),
        centroids.part::<f32>(centroids.layout.tile_residuals).cast_const(),
        centroids.part::<f32>(centroids.layout.bounds).cast_const(),
        u32::from(labelled),
        batch.labels(),
        queues.sizes,
        queues.pending,
        queues.pending_lists,
        queues.unbounded,
    );
    // SAFETY: as the caller promises.
    unsafe { runtime.launch(stream, kernel, config, args) }
}

macro_rules! per_element {
    ($(($name:ident, $stored:ty, $s:ident, $settle:ident, $a:ident, $settle_all:ident, $d:ident, $add:ident,
        $e:ident, $level:ident))*) => {
        /// Labels of the points that `assign` left in its queues.
        ///
        /// # Safety
        /// As [`assign_batch`]; the queues are as `assign` left them.
        unsafe fn settle_queues<R: Runtime>(
            runtime: &R, stream: &R::Stream, shape: Shape, batch: Batch, centroids: Set, queues: Queues,
        ) -> Result<()> {
            // The device alone knows how long the queues are: as many warps as it holds, or the longest queue needs.
            let multiprocessors = u64::from(runtime.limits().multiprocessors);
            let points = u64::from(batch.set.count);
            let squared_difference = u32::from(shape.metric == Metric::L2);
            let stride = shape.stride() as u32;
            let rows = centroids.rows().cast::<f32>().cast_const();
            match shape.element {$(
                ElementType::$name => {
                    let kernel = &settle::$settle;
                    let config = blocks(kernel.name(), points.min(multiprocessors * 64), settle::WARPS_PER_BLOCK)?;
                    let x = batch.set.rows().cast::<$stored>().cast_const();
                    // SAFETY: as the caller promises.
                    unsafe {
                        runtime.launch(stream, kernel, config, (
                            x, rows, stride, squared_difference, queues.sizes.cast_const(), queues.pending.cast_const(),
                            queues.pending_lists.cast_const(), batch.labels(),
                        ))?;
                        let kernel = &settle::$settle_all;
                        let warps = points.min(multiprocessors * 4) * u64::from(settle::WARPS_FOR_ALL);
                        let config = blocks(kernel.name(), warps, settle::WARPS_FOR_ALL)?;
                        runtime.launch(stream, kernel, config, (
                            x, rows, stride, squared_difference, centroids.count,
                            queues.sizes.wrapping_add(1).cast_const(), queues.unbounded.cast_const(), batch.labels(),
                        ))
                    }
                }
            )*}
        }
    };
}
clustering_instances!(per_element);

#[cfg(test)]
mod tests {
    use super::super::emulated::{Emulator, Immediate};
    use super::super::exact::prepare_set;
    use super::super::sets::upload_rows;
    use super::*;

    /// What vectors of too many components take, on vectors of few.
    #[test]
    fn queues_of_all_points_are_settled_by_the_definition() {
        let shape = Shape { element: ElementType::F32, metric: Metric::L2, dim: 3 };
        let points: Vec<f32> = (0..70 * 3).map(|at| (at * 7919 % 101) as f32).collect();
        let centroids = &points[30..30 + 9 * 3];
        let layout = BatchLayout::new(shape, 70, false, false);
        let memory = Emulator.allocate(layout.bytes()).unwrap();
        let batch = Batch::new(Emulator.address(&memory), layout, 70);
        let mut of_centroids = Layout::default();
        let (start, set) = SetLayout::reserve(&mut of_centroids, shape, 9);
        let centroid_memory = Emulator.allocate(of_centroids.bytes()).unwrap();
        let set = Set::new(Emulator.address(&centroid_memory).wrapping_add(start), set, 9);
        let mut labels = vec![u32::MAX; 70];
        // SAFETY: both have the room that their layouts reserved, and all that is read was written before.
        unsafe {
            upload_rows(&Emulator, &Immediate, shape, batch.set.rows(), &points).unwrap();
            upload_rows(&Emulator, &Immediate, shape, set.rows(), centroids).unwrap();
            prepare_set(&Emulator, &Immediate, shape, set, false).unwrap();
            enqueue_all(&Emulator, &Immediate, 70, Queues::of(batch)).unwrap();
            settle_queues(&Emulator, &Immediate, shape, batch, set, Queues::of(batch)).unwrap();
            Emulator
                .download(&Immediate, bytemuck::cast_slice_mut(&mut labels), batch.labels().cast_const().cast())
                .unwrap();
        }
        for (point, &label) in points.chunks(3).zip(&labels) {
            let distance = |c: &[f32]| point.iter().zip(c).map(|(x, c)| (x - c) * (x - c)).sum::<f32>();
            let distances: Vec<f32> = centroids.chunks(3).map(distance).collect();
            let nearest = (0..9).rev().min_by(|&a, &b| distances[a].total_cmp(&distances[b]).then(a.cmp(&b))).unwrap();
            assert_eq!(label as usize, nearest);
        }
    }
}
