//! k-means on a device: [`Worker`] over the kernels `assign`, `settle`, `cluster_sums` and `centroids`.
//!
//! ```text
//! assign:  prepare the centroids; the first time, zero the sums
//!          each batch of points:  labels (see `assign`) ──count, scan, group──► order of moves ──add_rows──► sums
//!          totals ──► host                                          // the one synchronisation of an iteration
//! update:  sums ──► centroids
//! ```
//!
//! If points, their f16 copies and labels fit the budget, they stay in device memory as one batch. It is uploaded and
//! prepared once, and the sums are only updated from one iteration to the next. Otherwise the points stay in host
//! memory and pass through two slots in every iteration: the next batch is uploaded into one slot while the device
//! works on the other. Sums are integers, so batches change no bit.

pub(crate) mod assign;
pub(crate) mod assigner;
mod cluster_sums;
pub(super) mod parts;

use std::ops::Range;

use self::assign::{Batch, BatchLayout, assign_batch, equals_of_earlier, hide};
pub(crate) use self::cluster_sums::Means;
use self::cluster_sums::{
    ClusterLayout, Clusters, add_batch, clear_sums, forget_labels, sums_of, totals_of, update_centroids,
};
use super::sums::PartialSums;
use super::worker::{PartWorker, Totals, Worker};
use crate::device::runtime::{Memory, Runtime, Stream};
use crate::device::tiling::{Budget, Planned, Tiling};
use crate::metric::Assign;
use crate::product::centre::Centre;

use crate::product::gpu::{VectorSet, VectorShape, prepare_set, upload_rows, upload_vectors};
use crate::threads::{apart, meanwhile};
use crate::vectors::VectorSlice;
use crate::{ElementType, Error, Metric, Result, events};

/// Largest number of points of a batch: with padding they, and two moves of each, stay in u32.
const BATCH_POINTS: usize = 1 << 30;

/// Largest number of clusters: two groups of moves for each cluster stay in u32.
const MOST_CLUSTERS: usize = 1 << 30;

/// The input of a run on one device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Run<'a> {
    /// How points and centroids are compared.
    pub metric: Assign,
    /// Number of centroids, at least 1.
    pub clusters: usize,
    /// The points of the run.
    pub rows: VectorSlice<'a>,
    /// The weight of each point; `None` means 1 for all.
    pub weights: Option<&'a [f32]>,
    /// Device memory that may be used, in bytes; `None` means nine tenths of the free memory.
    pub budget: Option<u64>,
}

impl Run<'_> {
    /// The same run over some of the points.
    pub(crate) fn part(&self, points: Range<usize>) -> Self {
        Run { rows: self.rows.part(points.clone()), weights: self.weights.map(|weights| &weights[points]), ..*self }
    }
}

/// Bytes of the sums and totals of all clusters, and bytes of the sums alone.
pub(crate) fn result_bytes(run: &Run<'_>, means: Means) -> [usize; 2] {
    let shape = VectorShape::new(run.rows.element(), Metric::L2, run.rows.dim());
    let layout = ClusterLayout::new(shape, run.clusters, means.scale.count());
    [layout.result_bytes(), layout.sum_bytes()]
}

/// Checks the number of clusters, and returns it.
fn check_clusters(clusters: usize) -> Result<usize> {
    if clusters == 0 {
        return Err(Error::Zero { what: "clusters" });
    }
    if clusters > MOST_CLUSTERS {
        return Err(Error::TooMany { what: "clusters", asked: clusters as u64, limit: MOST_CLUSTERS as u64 });
    }
    Ok(clusters)
}

/// The points of one k-means run on one device.
pub(crate) struct KMeansDevice<'a> {
    points: Source<'a>,
    means: Means,
    stream: Stream,
    /// The stream that uploads the next batch while `stream` works.
    loader: Stream,
    clusters: usize,
    cluster_memory: Memory,
    cluster_layout: ClusterLayout,
    /// Whether copies and bounds belong to the present centroids.
    prepared: bool,
    /// Numbers of the present centroids that equal an earlier one, as far as the host has set them: means of points
    /// hardly ever do.
    equals: Vec<u32>,
    /// Whether all points are in one batch with labels of an earlier assignment and their sums, from which the next
    /// assignment starts.
    labelled: bool,
    /// Labels of all points if they are in several batches.
    labels: Vec<u32>,
}

/// The points on the host, and their batches on the device.
struct Source<'a> {
    runtime: Runtime,
    rows: VectorSlice<'a>,
    weights: Option<&'a [f32]>,
    shape: VectorShape,
    /// The vector subtracted from points and centroids (squared L2).
    centre: Option<Vec<f32>>,
    /// The division of the points into batches.
    tiling: Tiling<BatchLayout>,
    /// One slot if all points are in one batch, otherwise two.
    slots: Vec<Memory>,
}

impl Source<'_> {
    fn count(&self) -> usize {
        self.rows.len()
    }

    fn batches(&self) -> usize {
        self.tiling.len()
    }

    /// Numbers of the points of batch `number`.
    fn range(&self, number: usize) -> Range<usize> {
        self.tiling.tile(number)
    }

    fn batch(&self, number: usize) -> Batch {
        let slot = &self.slots[number % self.slots.len()];
        Batch::new(self.runtime.scratch(slot), self.tiling.plan, self.range(number).len() as u32)
    }

    /// Uploads and prepares batch `number`, and waits until that is done.
    fn load(&self, stream: &Stream, number: usize) -> Result<()> {
        let (runtime, shape, batch) = (&self.runtime, self.shape, self.batch(number));
        let range = self.range(number);
        let started = events::Started::now();
        let bytes = (range.len() * shape.row_bytes()) as u64;
        // SAFETY: the layout has room for a batch, and all work that used the slot before is finished.
        unsafe {
            upload_vectors(runtime, stream, shape, batch.set.rows(), self.rows.part(range.clone()))?;
            if let Some(weights) = self.weights {
                runtime.copy_to_device(stream, batch.weights(), &weights[range])?;
            }
            self.upload_centre(stream, batch.set)?;
            prepare_set(runtime, stream, shape, batch.set, self.centre.is_some())?;
        }
        runtime.synchronize(stream)?;
        events::uploaded("points of k-means", || runtime.describe(), bytes, &started);
        Ok(())
    }

    /// Uploads the centre, if there is one, to a set of points or centroids.
    ///
    /// # Safety
    /// The set's memory is allocated, for vectors of this dimension.
    unsafe fn upload_centre(&self, stream: &Stream, set: VectorSet) -> Result<()> {
        match &self.centre {
            // SAFETY: as the caller promises; the centre has the components of a row.
            Some(centre) => unsafe { self.runtime.copy_to_device(stream, set.centre(), centre) },
            None => Ok(()),
        }
    }
}

impl<'a> KMeansDevice<'a> {
    /// Uploads the points if they fit the device, otherwise allocates two slots for batches of them. There are no
    /// centroids yet.
    pub fn new(runtime: Runtime, run: Run<'a>, means: Means) -> Result<Self> {
        let Run { metric, clusters, rows, weights, budget } = run;
        check_clusters(clusters)?;
        let metric = metric.metric();
        let shape = VectorShape::new(rows.element(), metric, rows.dim());
        let count = rows.len();
        let cluster_layout = ClusterLayout::new(shape, clusters, means.scale.count());
        let budget = Budget::new(&runtime, runtime.budget(budget)?).with_shared(cluster_layout.bytes());
        let layout = |points| BatchLayout::new(shape, points, weights.is_some(), true);
        let tiling = Tiling::largest(budget, (count, BATCH_POINTS), layout)?;
        let cluster_memory = runtime.allocate(cluster_layout.bytes())?;
        let slots = (0..tiling.lanes()).map(|_| runtime.allocate(tiling.plan.bytes())).collect::<Result<Vec<_>>>()?;
        let centre = metric.ignores_translation().then(|| {
            let mut centre = Centre::default();
            centre.add(rows);
            centre.components(shape.stride())
        });
        let (stream, loader) = (runtime.stream()?, runtime.stream()?);
        let points = Source { runtime, rows, weights, shape, centre, tiling, slots };
        if points.batches() == 1 {
            points.load(&stream, 0)?;
        }
        let labels = vec![0; if points.batches() > 1 { count } else { 0 }];
        let device = KMeansDevice {
            points,
            means,
            stream,
            loader,
            clusters,
            cluster_memory,
            cluster_layout,
            prepared: false,
            equals: Vec::new(),
            labelled: false,
            labels,
        };
        let parts = device.cluster_parts();
        // SAFETY: the cluster memory has the layout of `cluster_layout`.
        unsafe {
            device.points.upload_centre(&device.stream, parts.set)?;
            parts.prepare(&device.points.runtime, &device.stream, means)?;
        }
        Ok(device)
    }

    /// Number of points of the run.
    pub fn count(&self) -> usize {
        self.points.count()
    }

    fn cluster_shape(&self) -> VectorShape {
        VectorShape::new(ElementType::F32, self.points.shape.metric, self.points.shape.dim)
    }

    /// The device that has the points.
    pub(crate) fn runtime(&self) -> &Runtime {
        &self.points.runtime
    }

    /// The stream of the device's work.
    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    pub(crate) fn weighted(&self) -> bool {
        self.points.weights.is_some()
    }

    /// Marks the centroids as changed: their copies and bounds will be made again.
    pub(crate) fn centroids_move(&mut self) {
        self.prepared = false;
        self.equals.clear();
    }

    pub(crate) fn cluster_parts(&self) -> Clusters {
        Clusters::new(self.points.runtime.scratch(&self.cluster_memory), self.cluster_layout, self.clusters as u32)
    }

    /// Labels all points with the present centroids, and adds the points to the sums.
    pub(crate) fn label_points(&mut self) -> Result<()> {
        let clusters = self.cluster_parts();
        if !self.prepared {
            let centred = self.points.centre.is_some();
            let runtime = &self.points.runtime;
            // SAFETY: the centroids are set or updated, and the centre is uploaded.
            unsafe {
                prepare_set(runtime, &self.stream, self.cluster_shape(), clusters.set, centred)?;
                hide(runtime, &self.stream, clusters.set, &self.equals)?;
            }
            self.prepared = true;
        }
        let (means, anew) = (self.means, !self.labelled);
        if anew {
            // SAFETY: the cluster memory has the layout of `cluster_layout`.
            unsafe { clear_sums(&self.points.runtime, &self.stream, clusters)? };
        }
        self.each_batch(|points, stream, batch| {
            let weighted = points.weights.is_some();
            // SAFETY: points and centroids are prepared; labels are of these clusters, and labelled points are in the
            // sums already.
            unsafe {
                if anew {
                    forget_labels(&points.runtime, stream, batch)?;
                }
                add_batch(&points.runtime, stream, points.shape, batch, clusters, means, weighted)
            }
        })
    }

    /// Labels every batch, then calls `then` for it. If there are several batches, copies their labels to the host.
    fn each_batch(&mut self, then: impl Fn(&Source<'a>, &Stream, Batch) -> Result<()>) -> Result<()> {
        let centroids = self.cluster_parts().set;
        let KMeansDevice { points, stream, loader, labelled, labels, .. } = self;
        let (points, stream) = (&*points, &*stream);
        let start = std::mem::replace(labelled, points.batches() == 1);
        let work = |number: usize| -> Result<Batch> {
            let batch = points.batch(number);
            // SAFETY: points and centroids are uploaded and prepared.
            unsafe { assign_batch(&points.runtime, stream, points.shape, batch, centroids, start)? };
            then(points, stream, batch)?;
            Ok(batch)
        };
        match points.batches() {
            0 => return Ok(()),
            1 => return work(0).map(|_| ()),
            _ => points.load(loader, 0)?,
        }
        for number in 0..points.batches() {
            let labels = &mut labels[points.range(number)];
            let loader = &mut *loader;
            let next = number + 1;
            let own = || {
                let batch = work(number)?;
                // SAFETY: every point has a label. The copy also waits for the batch, whose slot is filled next.
                unsafe { points.runtime.copy_to_host(stream, labels, batch.labels()) }
            };
            let ahead = move || if next < points.batches() { points.load(loader, next) } else { Ok(()) };
            let (ahead, own) = apart(|| meanwhile(ahead, own));
            own.and(ahead)?;
        }
        Ok(())
    }

    /// Waits until all queued work is done.
    #[cfg(all(feature = "cuda", feature = "internals"))]
    pub fn synchronize(&self) -> Result<()> {
        self.points.runtime.synchronize(&self.stream)
    }
}

impl Worker for KMeansDevice<'_> {
    fn set_centroids(&mut self, centroids: &[f32]) -> Result<()> {
        // Labels of other centroids are bad guesses for the new ones: the lists of candidates would overflow.
        self.labelled = false;
        self.move_centroids(centroids)
    }

    fn centroids(&mut self, to: &mut [f32]) -> Result<()> {
        let (clusters, shape) = (self.cluster_parts(), self.cluster_shape());
        let from = clusters.set.components();
        // SAFETY: the centroids are set, with `stride` components for each row.
        unsafe {
            if shape.stride() == shape.dim {
                return self.points.runtime.copy_to_host(&self.stream, to, from);
            }
            let mut padded = vec![0.0f32; self.clusters * shape.stride()];
            self.points.runtime.copy_to_host(&self.stream, &mut padded, from)?;
            for (to, from) in to.chunks_exact_mut(shape.dim).zip(padded.chunks_exact(shape.stride())) {
                to.copy_from_slice(&from[..shape.dim]);
            }
        }
        Ok(())
    }

    fn assign(&mut self, totals: &mut Totals) -> Result<()> {
        self.label_points()?;
        // SAFETY: every batch has been added to the sums.
        unsafe {
            totals_of(
                &self.points.runtime,
                &self.stream,
                self.cluster_parts(),
                self.means,
                self.weighted(),
                Some(totals),
            )
        }
    }

    fn update(&mut self) -> Result<()> {
        self.centroids_move();
        // SAFETY: the last `assign` filled sums and weights.
        unsafe { update_centroids(&self.points.runtime, &self.stream, self.cluster_parts(), self.means) }
    }

    fn labels(&mut self, to: &mut [u32]) -> Result<()> {
        match self.points.batches() {
            0 => Ok(()),
            1 => {
                let from = self.points.batch(0).labels();
                // SAFETY: the last `assign` gave every point a label.
                unsafe { self.points.runtime.copy_to_host(&self.stream, to, from) }
            }
            _ => {
                to.copy_from_slice(&self.labels);
                Ok(())
            }
        }
    }
}

impl PartWorker for KMeansDevice<'_> {
    fn move_centroids(&mut self, centroids: &[f32]) -> Result<()> {
        let (clusters, shape) = (self.cluster_parts(), self.cluster_shape());
        let centroids = &centroids[..self.clusters * shape.dim];
        self.centroids_move();
        self.equals = equals_of_earlier(centroids, shape.dim);
        // SAFETY: the layout has room for this number of centroids.
        unsafe { upload_rows(&self.points.runtime, &self.stream, shape, clusters.set.rows(), centroids) }
    }

    fn assign_part(&mut self, sums: &mut PartialSums) -> Result<()> {
        self.label_points()?;
        let weighted = self.weighted();
        // SAFETY: every batch has been added to the sums.
        unsafe { sums_of(&self.points.runtime, &self.stream, self.cluster_parts(), weighted, sums) }
    }
}

#[cfg(test)]
mod tests;
