//! Sums over clusters on a device, with the totals and centroids from them: the host side of kernels `cluster_sums` and
//! `centroids`.
//!
//! ```text
//! labels, previous ──count──► counts ──scan──► places ──group──► order of moves ──add_rows──► sums ──┬─totals──► host
//!                                                                                                    └─update──► centroids
//! ```

use cuda_std::{Ptr, PtrMut};
use warpann_kernels::kmeans::centroids::{ClusterTotals, UpdateCentroids};
use warpann_kernels::kmeans::cluster_sums::{
    AddLevel, AddRows, AddWords, CountMoves, CountMovesGlobal, GroupMoves, GroupMovesGlobal, MovedRows,
    SHARED_CLUSTERS, ScanGroups,
};

use super::assign::Batch;
use crate::device::runtime::{Runtime, Stream};
use crate::device::scratch::{Layout, Reserved, Scratch};
use crate::kmeans::scale::{Scale, power_of_two};
use crate::kmeans::sums::PartialSums;
use crate::kmeans::worker::Totals;
use crate::product::gpu::{SetLayout, VectorSet, VectorShape};
use crate::{ElementType, Result};

/// The options of the means.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Means {
    /// The powers of two of the definition, and the levels that they belong to.
    pub scale: Scale,
    /// Whether centroids are divided by their norms.
    pub spherical: bool,
}

/// A range of the words of [`SumLayout`].
#[derive(Debug, Clone, Copy)]
struct Words {
    from: usize,
    len: usize,
}

impl Words {
    fn end(self) -> usize {
        self.from.saturating_add(self.len)
    }

    /// This range of `all` reserved words.
    fn of(self, all: Reserved<u64>) -> Reserved<u64> {
        all.part(self.from, self.len)
    }
}

/// The places of the sums over clusters and of the totals: one span of 8-byte words.
///
/// ```text
/// sums | weights | counts, two to a word | products | norms
/// └────── added up over parts ───────┘
///        └──────────────── copied to the host ────────────┘
/// ```
#[derive(Debug, Clone, Copy)]
struct SumLayout {
    all: Reserved<u64>,
    sums: Words,
    weights: Words,
    counts: Words,
    products: Words,
    norms: Words,
}

impl SumLayout {
    /// The layout for `clusters` rows of `stride` components in each of `levels` levels, and its bytes.
    fn new(clusters: usize, stride: usize, levels: usize) -> (SumLayout, usize) {
        // Parts begin at multiples of 256 bytes, as separate arrays do.
        let mut next = 0usize;
        let mut part = |len: usize| {
            let words = Words { from: next, len };
            next = words.end().checked_next_multiple_of(32).unwrap_or(usize::MAX);
            words
        };
        let sums = part(clusters.saturating_mul(stride).saturating_mul(levels));
        let weights = part(clusters.saturating_mul(levels));
        let [counts, products, norms] = [clusters.div_ceil(2), clusters, clusters].map(part);
        let mut layout = Layout::default();
        let all = layout.array(norms.end());
        (SumLayout { all, sums, weights, counts, products, norms }, layout.bytes())
    }

    /// The words that are added up over the parts of a run: sums, weights and counts, with the gaps between them.
    fn added(&self) -> Reserved<u64> {
        self.all.part(0, self.products.from)
    }
}

/// The places of all arrays of clusters in their memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClusterLayout {
    set: SetLayout,
    /// Number of components from one row of sums to the next.
    stride: u32,
    /// Number of levels of the sums; 0 without means.
    levels: u32,
    /// The units of the levels, then those of the weights' levels.
    units: Reserved<f64>,
    /// Number of moves of each group in this batch.
    counts: Reserved<u32>,
    /// The next place in `order` for each group, then the number of all moves.
    next: Reserved<u32>,
    /// Memory for sums and totals, with the layout `of_sums`.
    results: Reserved<u8>,
    of_sums: SumLayout,
    bytes: usize,
}

impl ClusterLayout {
    /// Room for `clusters` centroids, with sums of `levels` levels; 0 levels means no means.
    pub fn new(shape: VectorShape, clusters: usize, levels: usize) -> ClusterLayout {
        let shape = VectorShape::new(ElementType::F32, shape.metric, shape.dim);
        let mut layout = Layout::default();
        let set = SetLayout::reserve(&mut layout, shape, clusters);
        let summed = if levels > 0 { clusters } else { 0 };
        let (of_sums, result_bytes) = SumLayout::new(summed, shape.stride(), levels);
        let mut clusters = ClusterLayout {
            set,
            stride: shape.stride() as u32,
            levels: levels as u32,
            units: layout.array(2 * levels),
            counts: layout.array(summed.saturating_mul(2)),
            next: layout.array(if levels > 0 { summed.saturating_mul(2).saturating_add(1) } else { 0 }),
            results: layout.array(result_bytes),
            of_sums,
            bytes: 0,
        };
        clusters.bytes = layout.bytes();
        clusters
    }

    /// Bytes of the words that are added up over the parts of a run.
    pub fn sum_bytes(&self) -> usize {
        self.of_sums.added().len() * size_of::<u64>()
    }

    /// Bytes of sums and totals, as [`Clusters::with_sums`] needs them.
    pub fn result_bytes(&self) -> usize {
        self.results.len()
    }

    /// Bytes of all arrays.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// The centroids and their sums, on the device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clusters {
    scratch: Scratch,
    /// The memory of sums and totals.
    results: Scratch,
    layout: ClusterLayout,
    stride: u32,
    /// The centroids as a set of vectors.
    pub set: VectorSet,
}

impl Clusters {
    /// The `count` clusters in `scratch`, which has the given layout for this number of clusters.
    pub fn new(scratch: Scratch, layout: ClusterLayout, count: u32) -> Clusters {
        let results = Scratch::new(scratch.at(layout.results));
        Clusters { scratch, results, layout, stride: layout.stride, set: VectorSet::new(scratch, layout.set, count) }
    }

    /// The same clusters with the sums in `results`.
    pub fn with_sums(self, results: Scratch) -> Clusters {
        Clusters { results, ..self }
    }

    /// Uploads the units and zeroes the counts. Called once.
    ///
    /// # Safety
    /// The memory has this layout, for the levels of `means`.
    pub unsafe fn prepare(&self, runtime: &Runtime, stream: &Stream, means: Means) -> Result<()> {
        let units = means.scale.units().concat();
        // SAFETY: as the caller promises. The scan leaves the counts at zero after every batch.
        unsafe {
            runtime.copy_to_device(stream, self.scratch.at(self.layout.units), &units)?;
            runtime.fill(stream, self.counts(), 0)
        }
    }

    fn counts(&self) -> PtrMut<u32> {
        self.scratch.at(self.layout.counts)
    }

    fn next(&self) -> PtrMut<u32> {
        self.scratch.at(self.layout.next)
    }

    fn result(&self, words: Words) -> Reserved<u64> {
        words.of(self.layout.of_sums.all)
    }

    /// The units of the levels of w·x.
    fn units(&self) -> Ptr<f64> {
        self.scratch.at(self.layout.units.part(0, self.layout.levels as usize)).into()
    }

    fn weight_units(&self) -> Ptr<f64> {
        let levels = self.layout.levels as usize;
        self.scratch.at(self.layout.units.part(levels, levels)).into()
    }

    /// Number of words of the sums of a level.
    fn level_words(&self) -> usize {
        self.set.count as usize * self.stride as usize
    }

    /// The words that are added up over the parts of a run.
    pub fn added(&self) -> PtrMut<u64> {
        self.results.at(self.layout.of_sums.added())
    }

    fn sums(&self) -> PtrMut<u64> {
        self.results.at(self.result(self.layout.of_sums.sums))
    }

    fn weights(&self) -> PtrMut<u64> {
        self.results.at(self.result(self.layout.of_sums.weights))
    }

    fn totals(&self) -> PtrMut<u32> {
        self.results.at(self.result(self.layout.of_sums.counts).halves())
    }

    fn products(&self) -> PtrMut<f64> {
        self.results.at(self.result(self.layout.of_sums.products).cast())
    }

    fn norms(&self) -> PtrMut<f64> {
        self.results.at(self.result(self.layout.of_sums.norms).cast())
    }
}

/// Groups the moves of a batch's points from their previous labels, and makes the present labels the previous ones.
///
/// # Safety
/// As [`add_batch`].
unsafe fn group_batch(runtime: &Runtime, stream: &Stream, batch: Batch, clusters: Clusters) -> Result<()> {
    let (count, cluster_count) = (batch.set.count, clusters.set.count);
    let (labels, previous) = (batch.labels(), batch.previous());
    let (before, present) = (Ptr::from(previous), Ptr::from(labels));
    let (counts, next, order) = (clusters.counts(), clusters.next(), batch.order());
    let multiprocessors = runtime.limits().multiprocessors;
    let scan = ScanGroups { clusters: cluster_count, counts, next, totals: clusters.totals() };
    // SAFETY: labels are below the number of clusters, and `order` has room for the batch.
    unsafe {
        if cluster_count <= SHARED_CLUSTERS {
            let count_moves = CountMoves { labels: present, previous: before, count, clusters: cluster_count, counts };
            runtime.launch(stream, &CountMoves::KERNEL, count_moves.config(multiprocessors), count_moves)?;
            runtime.launch(stream, &ScanGroups::KERNEL, scan.config(), scan)?;
            let group_moves = GroupMoves { labels: present, previous, count, clusters: cluster_count, next, order };
            runtime.launch(stream, &GroupMoves::KERNEL, group_moves.config(multiprocessors), group_moves)
        } else {
            let count_moves = CountMovesGlobal { labels: present, previous: before, count, counts };
            runtime.launch(stream, &CountMovesGlobal::KERNEL, count_moves.config(multiprocessors), count_moves)?;
            runtime.launch(stream, &ScanGroups::KERNEL, scan.config(), scan)?;
            let group_moves = GroupMovesGlobal { labels: present, previous, count, next, order };
            runtime.launch(stream, &GroupMovesGlobal::KERNEL, group_moves.config(multiprocessors), group_moves)
        }
    }
}

/// Updates the sums of clusters with the labels of a batch: moves each point whose label is not its previous one from
/// the old cluster's sums to the new cluster's.
///
/// # Safety
/// The memory of both has the given layouts, with room for order and sums. Every label is below the number of clusters.
/// The batch was added before, or [`forget_labels`] was called for it.
pub(crate) unsafe fn add_batch(
    runtime: &Runtime,
    stream: &Stream,
    shape: VectorShape,
    batch: Batch,
    clusters: Clusters,
    means: Means,
    weighted: bool,
) -> Result<()> {
    // SAFETY: as the caller promises.
    unsafe { group_batch(runtime, stream, batch, clusters)? };
    let (key, multiprocessors) = (shape.element.key(), runtime.limits().multiprocessors);
    for (at, (level, of_weights)) in means.scale.levels().enumerate() {
        let moves = MovedRows {
            rows: batch.set.stored(shape),
            stride: shape.stride() as u32,
            order: batch.order().into(),
            move_count: clusters.next().skip(2 * clusters.set.count as usize).into(),
            weights: if weighted { batch.weights().into() } else { None },
            component_scale: power_of_two(level.exponent),
            weight_scale: power_of_two(of_weights.exponent),
            sums: clusters.sums().skip(at * clusters.level_words()).take(clusters.level_words()),
            weight_sums: clusters.weights().skip(at * clusters.set.count as usize).take(clusters.set.count as usize),
        };
        let config = moves.config(multiprocessors);
        // SAFETY: as the caller promises; every level has separate sums and weights.
        unsafe {
            if means.scale.count() == 1 {
                runtime.launch(stream, AddRows::kernel(key), config, AddRows { moves })?;
            } else {
                let (from, below) = (level.from, level.below);
                let (weight_from, weight_below) = (of_weights.from, of_weights.below);
                let launch = AddLevel { moves, from, below, weight_from, weight_below };
                runtime.launch(stream, AddLevel::kernel(key), config, launch)?;
            }
        }
    }
    Ok(())
}

/// Marks the points of a batch as points that are in no sum.
///
/// # Safety
/// The memory has the given layout, with room for order and sums.
pub(crate) unsafe fn forget_labels(runtime: &Runtime, stream: &Stream, batch: Batch) -> Result<()> {
    // All ones mark a point without a label.
    // SAFETY: as the caller promises.
    unsafe { runtime.fill(stream, batch.previous().take(batch.set.count as usize), 0xff) }
}

/// Zeroes sums, weights and counts.
///
/// # Safety
/// The memory has the given layout, with room for sums.
pub(crate) unsafe fn clear_sums(runtime: &Runtime, stream: &Stream, clusters: Clusters) -> Result<()> {
    // SAFETY: as the caller promises.
    unsafe { runtime.fill(stream, clusters.added(), 0) }
}

/// Computes weights, products and norms. If `totals` is given, copies them and the counts to it, which is the one
/// synchronisation of an iteration.
///
/// # Safety
/// The memory has the given layout, and every batch was added up for the present centroids.
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
        centroids: clusters.set.components().into(),
        sums: clusters.sums().into(),
        levels: layout.levels,
        units: clusters.units(),
        counts: clusters.totals().into(),
        weighted: u32::from(weighted),
        weights: clusters.weights(),
        products: clusters.products(),
        norms: clusters.norms(),
    };
    // SAFETY: every array has an entry for each cluster.
    unsafe { runtime.launch(stream, &ClusterTotals::KERNEL, launch.config(), launch)? };
    let Some(totals) = totals else { return Ok(()) };
    let of_sums = layout.of_sums;
    let copied = Words { from: of_sums.weights.from, len: of_sums.norms.end() - of_sums.weights.from };
    let mut words = vec![0u64; copied.len];
    // SAFETY: the words were zeroed or written, except the gaps between arrays, which nothing reads.
    unsafe { runtime.copy_to_host(stream, &mut words, clusters.results.at(clusters.result(copied)))? };
    let part = |part: Words| &words[part.from - copied.from..];
    let [_, weight_units] = means.scale.units();
    let weight = |cluster: usize| {
        let levels = weight_units.iter().zip(part(of_sums.weights).chunks(count)).rev();
        levels.fold(0.0, |total, (unit, words)| total + words[cluster] as i64 as f64 * unit)
    };
    totals.weights = (0..count).map(weight).collect();
    totals.counts.clear();
    totals.counts.extend_from_slice(&bytemuck::cast_slice(part(of_sums.counts))[..count]);
    totals.products.clear();
    totals.products.extend_from_slice(bytemuck::cast_slice(&part(of_sums.products)[..count]));
    totals.norms.clear();
    totals.norms.extend_from_slice(bytemuck::cast_slice(&part(of_sums.norms)[..count]));
    Ok(())
}

/// Copies component sums, weights and counts to the host, in one copy.
///
/// # Safety
/// The memory has the given layout, with room for sums, and every batch was added up.
pub(crate) unsafe fn sums_of(
    runtime: &Runtime,
    stream: &Stream,
    clusters: Clusters,
    weighted: bool,
    sums: &mut PartialSums,
) -> Result<()> {
    let layout = clusters.layout;
    let of_sums = layout.of_sums;
    sums.clusters = clusters.set.count as usize;
    sums.stride = layout.stride as usize;
    sums.weights = weighted.then_some(of_sums.weights.from);
    sums.counts = of_sums.counts.from;
    sums.words.resize(of_sums.products.from, 0);
    // SAFETY: the copied words were zeroed, and then added to.
    unsafe { runtime.copy_to_host(stream, &mut sums.words, clusters.added()) }
}

/// Adds the sums at `from` to those of `clusters`.
///
/// # Safety
/// Both have the same layout, with room for sums, and were written. They do not overlap.
pub(crate) unsafe fn add_sums(runtime: &Runtime, stream: &Stream, from: Ptr<u64>, clusters: Clusters) -> Result<()> {
    let to = clusters.added();
    let count = to.len() as u64;
    // A word has two counts. No cluster has 2^32 points, so the lower count never carries into the upper one.
    let launch = AddWords { from, count, to };
    // SAFETY: as the caller promises.
    unsafe { runtime.launch(stream, &AddWords::KERNEL, launch.config(runtime.limits().multiprocessors), launch) }
}

/// Replaces the centroids by the means of their points.
///
/// # Safety
/// As [`totals_of`], and it was called for these sums.
pub(crate) unsafe fn update_centroids(
    runtime: &Runtime,
    stream: &Stream,
    clusters: Clusters,
    means: Means,
) -> Result<()> {
    let launch = UpdateCentroids {
        clusters: clusters.set.count,
        stride: clusters.stride,
        sums: clusters.sums().into(),
        levels: clusters.layout.levels,
        units: clusters.units(),
        weights: clusters.weights().into(),
        weight_units: clusters.weight_units(),
        spherical: u32::from(means.spherical),
        centroids: clusters.set.components(),
    };
    // SAFETY: every array has an entry for each cluster.
    unsafe { runtime.launch(stream, &UpdateCentroids::KERNEL, launch.config(), launch) }
}
