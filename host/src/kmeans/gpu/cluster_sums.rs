//! Sums over clusters on a device, and what is made of them: the host side of kernels `cluster_sums` and `centroids`.
//!
//! ```text
//! labels, previous ──count──► counts ──scan──► places ──group──► order of moves ──add_rows──► sums ──┬─totals──► host
//!                                                                                                    └─update──► centroids
//! ```

use warpann_kernels::kmeans::centroids::{ClusterTotals, UpdateCentroids};
use warpann_kernels::kmeans::cluster_sums::{
    AddLevel, AddRows, AddWords, CountMoves, CountMovesGlobal, GroupMoves, GroupMovesGlobal, SHARED_CLUSTERS,
    ScanGroups,
};

use super::assign::Batch;
use crate::device::runtime::{Runtime, Stream};
use crate::device::scratch::Layout;
use crate::flat::gpu::exact::{Set, SetLayout, Shape};
use crate::kmeans::scale::{Scale, power_of_two};
use crate::kmeans::sums::PartialSums;
use crate::kmeans::worker::Totals;
use crate::{ElementType, Result};

/// How means are formed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Means {
    /// The powers of two of the definition, and the levels that they belong to.
    pub scale: Scale,
    /// Whether centroids are divided by their norms.
    pub spherical: bool,
}

/// Where what belongs to clusters lies in its memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClusterLayout {
    set: (usize, SetLayout),
    /// Components from one row of sums to the next.
    stride: u32,
    /// Levels of the sums; 0 without means.
    levels: u32,
    /// The units of the levels, and behind them those of their weights.
    units: usize,
    /// Moves of each group in this batch, and the places that the order has for them; behind these the number of all.
    counts: usize,
    next: usize,
    /// From here to `products` all is zeroed for an assignment, and added up over the parts of a run; from `weights` to `end` it goes to
    /// the host.
    sums: usize,
    weights: usize,
    totals: usize,
    products: usize,
    norms: usize,
    end: usize,
    bytes: usize,
}

impl ClusterLayout {
    /// Room for `clusters` centroids, with sums of `levels` levels; 0 if there are to be no means.
    pub fn new(shape: Shape, clusters: usize, levels: usize) -> ClusterLayout {
        let shape = Shape { element: ElementType::F32, ..shape };
        let mut layout = Layout::default();
        let set = SetLayout::reserve(&mut layout, shape, clusters);
        let summed = if levels > 0 { clusters } else { 0 };
        let mut clusters = ClusterLayout {
            set,
            stride: shape.stride() as u32,
            levels: levels as u32,
            units: layout.array::<f64>(2 * levels),
            counts: layout.array::<u32>(summed.saturating_mul(2)),
            next: layout.array::<u32>(if levels > 0 { summed.saturating_mul(2).saturating_add(1) } else { 0 }),
            sums: layout.array::<u64>(summed.saturating_mul(shape.stride()).saturating_mul(levels)),
            weights: layout.array::<u64>(summed.saturating_mul(levels)),
            totals: layout.array::<u32>(summed),
            products: layout.array::<f64>(summed),
            norms: layout.array::<f64>(summed),
            end: 0,
            bytes: layout.bytes(),
        };
        clusters.end = clusters.norms.saturating_add(summed * size_of::<f64>());
        clusters
    }

    /// Bytes of sums, weights and counts, which lie side by side, in whole words of 8: what the parts of a run add up.
    pub fn sum_bytes(&self) -> usize {
        self.products - self.sums
    }

    /// Bytes of these and of what is made of them: what [`Clusters::with_sums`] needs.
    pub fn result_bytes(&self) -> usize {
        self.end - self.sums
    }

    /// Bytes of all parts.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// What belongs to clusters, on the device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clusters {
    start: *mut u8,
    /// Sums, and what is made of them.
    results: *mut u8,
    layout: ClusterLayout,
    stride: u32,
    /// The centroids.
    pub set: Set,
}

impl Clusters {
    /// The `count` clusters whose memory is at `start`.
    pub fn new(start: *mut u8, layout: ClusterLayout, count: u32) -> Clusters {
        let (at, set) = layout.set;
        let results = start.wrapping_add(layout.sums);
        Clusters { start, results, layout, stride: layout.stride, set: Set::new(start.wrapping_add(at), set, count) }
    }

    /// These clusters with other sums, those at `results`.
    pub fn with_sums(self, results: *mut u8) -> Clusters {
        Clusters { results, ..self }
    }

    /// Makes the memory ready, once.
    ///
    /// # Safety
    /// It is as laid out, for the levels of `means`.
    pub unsafe fn prepare(&self, runtime: &Runtime, stream: &Stream, means: Means) -> Result<()> {
        let units = means.scale.units().concat();
        // SAFETY: as the caller promises. The scan leaves the counts at zero after every batch.
        unsafe {
            runtime.upload(stream, self.part(self.layout.units), bytemuck::cast_slice(&units))?;
            runtime.fill(stream, self.counts().cast(), 0, self.layout.next - self.layout.counts)
        }
    }

    /// As [`ClusterLayout::sum_bytes`].
    pub fn sum_bytes(&self) -> usize {
        self.layout.sum_bytes()
    }

    fn part<V>(&self, offset: usize) -> *mut V {
        self.start.wrapping_add(offset).cast()
    }

    fn counts(&self) -> *mut u32 {
        self.part(self.layout.counts)
    }

    fn next(&self) -> *mut u32 {
        self.part(self.layout.next)
    }

    fn result<V>(&self, offset: usize) -> *mut V {
        self.results.wrapping_add(offset - self.layout.sums).cast()
    }

    /// The units of the levels.
    fn units(&self) -> *const f64 {
        self.part(self.layout.units)
    }

    fn weight_units(&self) -> *const f64 {
        self.units().wrapping_add(self.layout.levels as usize)
    }

    /// Words of the sums of a level.
    fn level_words(&self) -> usize {
        self.set.count as usize * self.stride as usize
    }

    /// Sums, and behind them weights and counts.
    pub fn sums(&self) -> *mut u64 {
        self.result(self.layout.sums)
    }

    fn weights(&self) -> *mut u64 {
        self.result(self.layout.weights)
    }

    fn totals(&self) -> *mut u32 {
        self.result(self.layout.totals)
    }

    fn products(&self) -> *mut f64 {
        self.result(self.layout.products)
    }

    fn norms(&self) -> *mut f64 {
        self.result(self.layout.norms)
    }
}

/// Groups the moves of the points of a batch since their previous labels, which become the present ones.
///
/// # Safety
/// As [`add_batch`].
unsafe fn group_batch(runtime: &Runtime, stream: &Stream, batch: Batch, clusters: Clusters) -> Result<()> {
    let (count, cluster_count) = (batch.set.count, clusters.set.count);
    let (labels, previous) = (batch.labels(), batch.previous());
    let (counts, next, order) = (clusters.counts(), clusters.next(), batch.order());
    let multiprocessors = runtime.limits().multiprocessors;
    let scan = ScanGroups { clusters: cluster_count, counts, next, totals: clusters.totals() };
    // SAFETY: labels are below the number of clusters; the order has room for the batch.
    unsafe {
        if cluster_count <= SHARED_CLUSTERS {
            let count_moves = CountMoves { labels, previous, count, clusters: cluster_count, counts };
            runtime.launch(stream, &CountMoves::KERNEL, count_moves.config(multiprocessors), count_moves)?;
            runtime.launch(stream, &ScanGroups::KERNEL, scan.config(), scan)?;
            let group_moves = GroupMoves { labels, previous, count, clusters: cluster_count, next, order };
            runtime.launch(stream, &GroupMoves::KERNEL, group_moves.config(multiprocessors), group_moves)
        } else {
            let count_moves = CountMovesGlobal { labels, previous, count, counts };
            runtime.launch(stream, &CountMovesGlobal::KERNEL, count_moves.config(multiprocessors), count_moves)?;
            runtime.launch(stream, &ScanGroups::KERNEL, scan.config(), scan)?;
            let group_moves = GroupMovesGlobal { labels, previous, count, next, order };
            runtime.launch(stream, &GroupMovesGlobal::KERNEL, group_moves.config(multiprocessors), group_moves)
        }
    }
}

/// Brings the sums of clusters up to date with the labels of a batch: adds and takes away the points whose labels are not
/// their previous ones.
///
/// # Safety
/// The memory of both is as laid out, with room for order and sums, and every label is that of a cluster; the batch was added
/// before, or [`forget_labels`] called for it.
pub(crate) unsafe fn add_batch(
    runtime: &Runtime,
    stream: &Stream,
    shape: Shape,
    batch: Batch,
    clusters: Clusters,
    means: Means,
    weighted: bool,
) -> Result<()> {
    // SAFETY: as the caller promises.
    unsafe { group_batch(runtime, stream, batch, clusters)? };
    let (key, multiprocessors) = (shape.element.key(), runtime.limits().multiprocessors);
    for (at, (level, of_weights)) in means.scale.levels().enumerate() {
        let all = AddRows {
            rows: batch.set.rows(),
            stride: shape.stride() as u32,
            order: batch.order(),
            move_count: clusters.next().wrapping_add(2 * clusters.set.count as usize),
            weights: if weighted { batch.weights() } else { std::ptr::null() },
            component_scale: power_of_two(level.exponent),
            weight_scale: power_of_two(of_weights.exponent),
            sums: clusters.sums().wrapping_add(at * clusters.level_words()),
            weight_sums: clusters.weights().wrapping_add(at * clusters.set.count as usize),
        };
        // SAFETY: as the caller promises; every level has its sums and weights.
        unsafe {
            if means.scale.count() == 1 {
                runtime.launch(stream, AddRows::kernel(key), all.config(multiprocessors), all)?;
            } else {
                let one = AddLevel::of(all, level.from..level.below, of_weights.from..of_weights.below);
                runtime.launch(stream, AddLevel::kernel(key), one.config(multiprocessors), one)?;
            }
        }
    }
    Ok(())
}

/// Makes the points of a batch points that were never added.
///
/// # Safety
/// The memory is as laid out, with room for order and sums.
pub(crate) unsafe fn forget_labels(runtime: &Runtime, stream: &Stream, batch: Batch) -> Result<()> {
    // All ones is the label of a point without one.
    let bytes = batch.set.count as usize * size_of::<u32>();
    // SAFETY: as the caller promises.
    unsafe { runtime.fill(stream, batch.previous().cast(), 0xff, bytes) }
}

/// Zeroes sums, weights and totals.
///
/// # Safety
/// The memory is as laid out, with room for sums.
pub(crate) unsafe fn clear_sums(runtime: &Runtime, stream: &Stream, clusters: Clusters) -> Result<()> {
    // SAFETY: the three lie side by side.
    unsafe { runtime.fill(stream, clusters.sums().cast(), 0, clusters.layout.sum_bytes()) }
}

/// Weights, products and norms; brings them and the counts to the host where they are asked for: the one synchronisation of an iteration.
///
/// # Safety
/// The memory is as laid out, and every batch was added up for the centroids that are there.
pub(crate) unsafe fn totals_of(
    runtime: &Runtime,
    stream: &Stream,
    clusters: Clusters,
    means: Means,
    weighted: bool,
    totals: Option<&mut Totals>,
) -> Result<()> {
    let (layout, count) = (clusters.layout, clusters.set.count as usize);
    let launch = ClusterTotals {
        clusters: clusters.set.count,
        stride: clusters.stride,
        centroids: clusters.set.rows().cast(),
        sums: clusters.sums(),
        levels: layout.levels,
        units: clusters.units(),
        counts: clusters.totals(),
        weighted: u32::from(weighted),
        weights: clusters.weights(),
        products: clusters.products(),
        norms: clusters.norms(),
    };
    // SAFETY: every part has an entry a cluster.
    unsafe { runtime.launch(stream, &ClusterTotals::KERNEL, launch.config(), launch)? };
    let Some(totals) = totals else { return Ok(()) };
    // Words of 8 bytes, as the parts are aligned.
    let mut words = vec![0u64; (layout.end - layout.weights) / size_of::<u64>()];
    // SAFETY: it was zeroed or written, but for the gaps between parts, at which nobody looks.
    unsafe { runtime.download(stream, bytemuck::cast_slice_mut(&mut words), clusters.weights().cast())? };
    let part = |offset: usize| &words[(offset - layout.weights) / size_of::<u64>()..];
    let [_, weight_units] = means.scale.units();
    let weight = |cluster: usize| {
        let levels = weight_units.iter().zip(part(layout.weights).chunks(count)).rev();
        levels.fold(0.0, |total, (unit, words)| total + words[cluster] as i64 as f64 * unit)
    };
    totals.weights = (0..count).map(weight).collect();
    totals.counts.clear();
    totals.counts.extend_from_slice(&bytemuck::cast_slice(part(layout.totals))[..count]);
    totals.products.clear();
    totals.products.extend_from_slice(bytemuck::cast_slice(&part(layout.products)[..count]));
    totals.norms.clear();
    totals.norms.extend_from_slice(bytemuck::cast_slice(&part(layout.norms)[..count]));
    Ok(())
}

/// Brings component sums, weights and counts to the host, in one copy.
///
/// # Safety
/// The memory is as laid out, with room for sums, and every batch was added up.
pub(crate) unsafe fn sums_of(
    runtime: &Runtime,
    stream: &Stream,
    clusters: Clusters,
    weighted: bool,
    sums: &mut PartialSums,
) -> Result<()> {
    let layout = clusters.layout;
    // Words of 8 bytes, as the parts are aligned.
    let word = |offset: usize| (offset - layout.sums) / size_of::<u64>();
    sums.clusters = clusters.set.count as usize;
    sums.stride = layout.stride as usize;
    sums.weights = weighted.then(|| word(layout.weights));
    sums.counts = word(layout.totals);
    sums.words.resize(word(layout.products), 0);
    // SAFETY: what is downloaded was zeroed, and then added to.
    unsafe { runtime.download(stream, bytemuck::cast_slice_mut(&mut sums.words), clusters.sums().cast()) }
}

/// Adds the sums at `from` to those of the clusters.
///
/// # Safety
/// Both are as laid out, with room for sums, and were written; they are not the same.
pub(crate) unsafe fn add_sums(runtime: &Runtime, stream: &Stream, from: *const u8, clusters: Clusters) -> Result<()> {
    let count = (clusters.layout.sum_bytes() / size_of::<u64>()) as u64;
    // Counts are two to a word: no cluster has 2^32 points, so none carries into the other.
    let launch = AddWords { from: from.cast(), count, to: clusters.sums() };
    // SAFETY: as the caller promises.
    unsafe { runtime.launch(stream, &AddWords::KERNEL, launch.config(runtime.limits().multiprocessors), launch) }
}

/// Replaces the centroids by the means of their points.
///
/// # Safety
/// As [`totals_of`], after it.
pub(crate) unsafe fn update_centroids(
    runtime: &Runtime,
    stream: &Stream,
    clusters: Clusters,
    means: Means,
) -> Result<()> {
    let launch = UpdateCentroids {
        clusters: clusters.set.count,
        stride: clusters.stride,
        sums: clusters.sums(),
        levels: clusters.layout.levels,
        units: clusters.units(),
        weights: clusters.weights(),
        weight_units: clusters.weight_units(),
        spherical: u32::from(means.spherical),
        centroids: clusters.set.rows().cast(),
    };
    // SAFETY: every part has an entry a cluster.
    unsafe { runtime.launch(stream, &UpdateCentroids::KERNEL, launch.config(), launch) }
}
