//! k-means clustering: finds `clusters` centroids such that points lie near the nearest of them.
//!
//! ```text
//! rows = all, or a sample of 256 for each centroid                            start.rs
//! centroids = random rows, k-means++, or given
//! repeat `iterations` times:
//!     assign: each point to its exactly nearest centroid                      on a device: worker.rs
//!             the objective and the progress go to the caller
//!     update: each centroid to the (weighted) mean of its points              exact integer sums: worker.rs
//!     split:  each empty cluster takes half of the largest cluster            split.rs
//! ```
//!
//! This is Lloyd's algorithm, as the paper uses it to train coarse and product quantizers (Johnson, Douze and Jégou,
//! section 5). An iteration costs points · clusters · d for the assignment and points · d for the rest. Fast paths do
//! the assignment in low precision with a proved bound.
//!
//! *The same bits everywhere.* Each point goes to its exactly nearest centroid, and the sums of points are integers
//! (`worker.rs` has the definition). So the CPU with any number of threads, the emulator and the GPU give the same
//! centroids, labels and objectives for one seed.
//!
//! *Several devices* ([`Placement`]). Each device has a part of the points; replicas and shards make no difference
//! here. GPUs add up their sums on the GPUs (`gpu/parts.rs`); devices of different kinds add up their sums on the host
//! (`parts.rs`).
//!
//! *Spherical.* Points are compared by inner product, and centroids have norm 1. Points are not normalised: a longer
//! point has more weight in the mean. Divide points by their norms first if only directions should count.
//!
//! *Balanced.* After every assignment, points move from clusters that are too large to the nearest clusters with room
//! (`balance.rs`). The CPU then makes the update from the new labels.
//!
//! *Equal points.* If half of 200,000 × 128 points are equal, training IVF-PQ (1,024 lists, 32 bytes) takes 499 ms
//! instead of 235 (H200, 2026-11-27, `warpann-grid moved`).
//!
//! ```
//! use warpann::{Device, kmeans::{KMeans, Start}};
//!
//! // Three groups on a line.
//! let rows = [0.0f32, 1.0, 2.0, 100.0, 101.0, 102.0, 200.0, 201.0, 202.0];
//! let found = KMeans::new(3).start(Start::PlusPlus).labels(true).device(Device::Cpu).train(&rows, 1)?;
//!
//! let mut centroids = found.centroids.clone();
//! centroids.sort_by(f32::total_cmp);
//! assert_eq!(centroids, [1.0, 101.0, 201.0]);
//! assert_eq!(found.sizes, [3, 3, 3]);
//! assert_eq!(*found.objectives.last().unwrap(), 6.0);
//! // New points go to the nearest centroid.
//! let labels = found.assign(&[151.5f32, 99.0], Device::Cpu)?;
//! assert_eq!(labels.iter().map(|&l| found.centroids[l as usize]).collect::<Vec<_>>(), [201.0, 101.0]);
//! # Ok::<(), warpann::Error>(())
//! ```

mod balance;
mod cpu;
pub(crate) mod gpu;
mod nearest;
mod parts;
mod points;
mod run;
pub(crate) mod scale;
mod split;
mod start;
mod sums;
#[cfg(test)]
mod tests;
pub(crate) mod worker;

use std::ops::ControlFlow;

use self::nearest::{Nearest, canonical_squares};
use self::parts::{Part, Parts};
use self::points::{Measures, Points};
pub use self::run::Iteration;
use self::run::Run;
use self::scale::Scale;
use self::sums::{PartialSums, Sums};
use self::worker::{PartWorker, Worker};
use crate::device::open::{open, open_together};
use crate::metric::Assign;
use crate::parallel::{Loop, ParallelSlice};
use crate::product::centre::Centre;
use crate::random::{Random, gather};
use crate::serialised::deserialised;
use crate::shards::{by_rows, joined, parts_of};
use crate::validate::{MAX_ROWS, check_dim, check_length, check_rows, check_vectors, check_whole};
use crate::vectors::{VectorSlice, with_components};
use crate::{Device, Element, Error, Input, Placement, Result, host_memory};

/// How training chooses the first centroids.
#[derive(Debug, Clone, PartialEq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "kebab-case"))]
#[non_exhaustive]
pub enum Start {
    /// Distinct points, chosen at random among those with weight above 0, or among all if those are too few.
    #[default]
    Random,
    /// k-means++ (Arthur and Vassilvitskii 2007): chooses each point with probability proportional to its squared
    /// distance from the centroids so far, among a sample of 64 points for each centroid. It runs on the CPU and costs
    /// 64 · clusters² · d f64 operations: for 1024 clusters about a second on two cores (d = 128), for 16 times as many
    /// clusters 256 times that.
    PlusPlus,
    /// The given centroids: clusters × dimension components, row-major.
    Given(#[cfg_attr(feature = "serde", serde(with = "crate::serialised::Numbers"))] Vec<f32>),
}

/// Settings of a k-means run; [`train`](Self::train) runs it.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct KMeans {
    clusters: usize,
    iterations: usize,
    seed: u64,
    start: Start,
    spherical: bool,
    points_per_centroid: Option<usize>,
    #[cfg_attr(feature = "serde", serde(with = "crate::serialised::Numbers"))]
    balanced: Option<f64>,
    labels: bool,
    #[cfg_attr(feature = "serde", serde(rename = "device"))]
    placement: Placement,
    #[cfg_attr(feature = "serde", serde(rename = "memory_budget"))]
    budget: Option<u64>,
}

/// The result of training: centroids, objectives, cluster sizes and labels.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Clustering {
    /// The centroids: clusters × `dim` components, row-major.
    #[cfg_attr(feature = "serde", serde(with = "crate::serialised::Numbers"))]
    pub centroids: Vec<f32>,
    /// Number of components of a centroid.
    pub dim: usize,
    /// The objective of each iteration, for the centroids that its points were assigned to and over the training
    /// points: Σ w‖x − c‖². It falls from one iteration to the next, except for the last bits of f32 centroids and
    /// distances, for iterations that split a cluster and for balanced runs. Spherical: Σ w⟨x, c⟩, which rises.
    /// Balanced: the value after balancing.
    ///
    /// Points are compared by f32 distances. Squared distances below 1.2e-38 have fewer bits or none, and those above
    /// 3.4e38 are infinite. Points then go to the lowest of equal clusters, and the objective may get worse. Multiply
    /// such vectors by a power of two first.
    #[cfg_attr(feature = "serde", serde(with = "crate::serialised::Numbers"))]
    pub objectives: Vec<f64>,
    /// Number of points of each cluster: by `labels` if labels were requested, otherwise by the last iteration.
    pub sizes: Vec<u32>,
    /// The cluster of each row given to training, if [`KMeans::labels`] requested labels: the nearest of the final
    /// centroids, or with balance the cluster that balancing gave the row to.
    pub labels: Option<Vec<u32>>,
    /// Whether points are compared by inner product.
    pub spherical: bool,
    /// The device or devices that trained; the chosen device for [`Device::Auto`].
    pub device: Placement,
}

deserialised!(Clustering {
    #[serde(with = "crate::serialised::Numbers")]
    centroids: Vec<f32>,
    dim: usize,
    #[serde(with = "crate::serialised::Numbers")]
    objectives: Vec<f64>,
    sizes: Vec<u32>,
    labels: Option<Vec<u32>>,
    spherical: bool,
    device: Placement,
} => |centroids, dim, objectives, sizes, labels, spherical, device| {
    let clusters = check_dim(dim).and_then(|()| check_vectors(&centroids, dim, Input::Centroids)).map_err(|error| error.to_string())?;
    let beyond = |label: &u32| *label as usize >= clusters;
    if clusters == 0 || sizes.len() != clusters || labels.as_ref().is_some_and(|labels| labels.iter().any(beyond)) {
        return Err(format!("{clusters} centroids do not agree with the sizes and labels of the clusters"));
    }
    Ok(Clustering { centroids, dim, objectives, sizes, labels, spherical, device })
});

impl KMeans {
    /// Settings for `clusters` centroids: 20 iterations from random points, seed 0, 256 points per centroid, on
    /// [`Device::Auto`].
    pub fn new(clusters: usize) -> Self {
        Self {
            clusters,
            iterations: 20,
            seed: 0,
            start: Start::Random,
            spherical: false,
            points_per_centroid: Some(256),
            balanced: None,
            labels: false,
            placement: Placement::default(),
            budget: None,
        }
    }

    /// Sets the number of iterations, 20 by default. With 0 the result has the first centroids.
    pub fn iterations(mut self, iterations: usize) -> Self {
        self.iterations = iterations;
        self
    }

    /// Sets the seed of all random choices, 0 by default.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Sets the first centroids, [`Start::Random`] by default.
    pub fn start(mut self, start: Start) -> Self {
        self.start = start;
        self
    }

    /// Whether to compare by inner product, with centroids of norm 1; false by default.
    pub fn spherical(mut self, spherical: bool) -> Self {
        self.spherical = spherical;
        self
    }

    /// Trains with at most `points` points per centroid (at least one), sampled by the seed; `None` trains with all
    /// points. The default is 256. More than a few hundred hardly improve the centroids.
    pub fn points_per_centroid(mut self, points: Option<usize>) -> Self {
        self.points_per_centroid = points;
        self
    }

    /// Limits every cluster to ⌈`bound` · points / clusters⌉ points, in training and in the returned labels; no limit
    /// by default. `bound` is at least 1.
    pub fn balanced(mut self, bound: Option<f64>) -> Self {
        self.balanced = bound;
        self
    }

    /// Whether to return the cluster of every row as well, at the cost of one more assignment; false by default.
    pub fn labels(mut self, labels: bool) -> Self {
        self.labels = labels;
        self
    }

    /// Sets the [`Device`], or a [`Placement`] of several devices, which divide the points; default: [`Device::Auto`].
    pub fn device(mut self, device: impl Into<Placement>) -> Self {
        self.placement = device.into();
        self
    }

    /// Sets the bytes that training may use on each GPU; by default a share of the free memory. Points that do not fit
    /// are streamed in batches. The CPU works in place and needs no memory for points.
    pub fn memory_budget(mut self, bytes: u64) -> Self {
        self.budget = Some(bytes);
        self
    }

    /// Clusters the vectors of `rows`, row-major, `dim` components each. O(iterations · points · clusters · dim), where
    /// [`KMeans::points_per_centroid`] limits the points.
    ///
    /// # Errors
    /// [`Error::Zero`], [`Error::Ragged`], [`Error::NotFinite`],
    /// [`Error::TooFewTrainingVectors`] if there are fewer rows than clusters, [`Error::TooMany`],
    /// [`Error::BadNumber`], [`Error::WrongLength`]; the errors of opening the device (see
    /// [`crate::FlatIndexBuilder::build`]) and of its driver.
    pub fn train<T: Element>(&self, rows: &[T], dim: usize) -> Result<Clustering> {
        self.train_watched(rows, dim, None, &mut |_| ControlFlow::Continue(()))
    }

    /// As [`train`](Self::train), where each row counts `weights[row]` times.
    ///
    /// # Errors
    /// As [`train`](Self::train); [`Error::WrongLength`], [`Error::BadWeight`].
    pub fn train_weighted<T: Element>(&self, rows: &[T], dim: usize, weights: &[f32]) -> Result<Clustering> {
        self.train_watched(rows, dim, Some(weights), &mut |_| ControlFlow::Continue(()))
    }

    /// As [`train`](Self::train) or [`train_weighted`](Self::train_weighted), and calls `watch` after every iteration.
    /// If it returns [`ControlFlow::Break`], the call ends.
    ///
    /// # Errors
    /// As [`train_weighted`](Self::train_weighted); [`Error::Cancelled`] if `watch` says so.
    pub fn train_watched<T: Element>(
        &self,
        rows: &[T],
        dim: usize,
        weights: Option<&[f32]>,
        watch: &mut dyn FnMut(&Iteration) -> ControlFlow<()>,
    ) -> Result<Clustering> {
        self.check(rows, dim, weights)?;
        self.cluster_vectors(VectorSlice::of(rows, dim), weights, watch)
    }

    /// [`cluster`](Self::cluster) for every element type. It is not generic, so that it is compiled with this crate.
    fn cluster_vectors(
        &self,
        vectors: VectorSlice<'_>,
        weights: Option<&[f32]>,
        watch: &mut dyn FnMut(&Iteration) -> ControlFlow<()>,
    ) -> Result<Clustering> {
        with_components!(vectors, rows: T => self.cluster::<T>(rows, vectors.dim(), weights, watch))
    }

    /// [`train_watched`](Self::train_watched) for arguments that [`check`](Self::check) accepted. Checks that all
    /// components are finite.
    fn cluster<T: Element>(
        &self,
        rows: &[T],
        dim: usize,
        weights: Option<&[f32]>,
        watch: &mut dyn FnMut(&Iteration) -> ControlFlow<()>,
    ) -> Result<Clustering> {
        let count = rows.len() / dim;
        let mut random = Random::new(self.seed);
        let wanted = self.points_per_centroid.map(|points| points.max(1).saturating_mul(self.clusters));
        let places = wanted.filter(|&wanted| wanted < count).map(|wanted| random.sample(count, wanted));
        // Without a sample, the pass below reads all vectors, and checks them.
        if places.is_some() {
            check_vectors(rows, dim, Input::Training)?;
        }
        let sample = places.as_ref().map(|places| gather(rows, dim, places)).transpose()?;
        let sample_weights =
            places.as_ref().and_then(|places| weights.map(|weights| gather(weights, 1, places))).transpose()?;
        let training = sample.as_deref().unwrap_or(rows);
        let training_weights = sample_weights.as_deref().or(weights);
        let measures = Measures::of(training, dim, training_weights)?;
        let points = measures.points(training, dim, training_weights);
        let centroids = self.first(points, &mut random)?;

        let scale = Scale::of(&points);
        let (device, mut worker) = self.open(points, scale)?;
        let mut run = Run::new(self.assign_by(), self.most(points.len()), points, scale, worker.as_mut(), centroids);
        let objectives =
            (0..self.iterations).map(|iteration| run.iterate(iteration, watch)).collect::<Result<Vec<_>>>()?;
        let (mut labels, mut sizes) = (None, run.sizes().to_vec());
        if self.labels {
            let found = match sample {
                None => run.labels()?,
                Some(_) => {
                    let metric = self.assign_by();
                    let centroids = run.centroids()?;
                    let mut labels = assign_rows(&device, metric, rows, dim, centroids, self.budget)?;
                    if let Some(most) = self.most(count) {
                        let measures = Measures::of(rows, dim, weights)?;
                        let points = measures.points(rows, dim, weights);
                        balance::balance(metric, points, centroids, most, &mut labels);
                    }
                    labels
                }
            };
            sizes = vec![0; self.clusters];
            found.iter().for_each(|&label| sizes[label as usize] += 1);
            labels = Some(found);
        }
        let centroids = run.into_centroids()?;
        Ok(Clustering { centroids, dim, objectives, sizes, labels, spherical: self.spherical, device })
    }

    /// Checks the settings, and the arguments of training except that all components are finite. Returns the number of
    /// rows.
    fn check<T: Element>(&self, rows: &[T], dim: usize, weights: Option<&[f32]>) -> Result<usize> {
        check_dim(dim)?;
        if self.clusters == 0 {
            return Err(Error::Zero { what: "clusters" });
        }
        if let Some(bound) = self.balanced
            && !(bound >= 1.0 && bound.is_finite())
        {
            return Err(Error::BadNumber { what: "bound of cluster sizes over their mean", value: bound, least: 1.0 });
        }
        let count = check_whole(rows, dim)?;
        if count < self.clusters {
            return Err(Error::TooFewTrainingVectors { have: count, need: self.clusters });
        }
        check_rows(count as u64, MAX_ROWS)?;
        if let Start::Given(centroids) = &self.start {
            // This does not overflow: there are at least as many rows as clusters.
            let expected = self.clusters * dim;
            check_length("components of starting centroids", expected, centroids.len())?;
            check_vectors(centroids, dim, Input::Centroids)?;
        }
        if let Some(weights) = weights {
            check_length("weights", count, weights.len())?;
            let bad = weights.iter().position(|&weight| !(weight >= 0.0 && weight.is_finite()));
            // If all weights are zero, the error names the first row.
            let bad = bad.or_else(|| weights.iter().all(|&weight| weight == 0.0).then_some(0));
            if let Some(row) = bad {
                return Err(Error::BadWeight { row, value: weights[row] });
            }
        }
        Ok(count)
    }

    /// Chooses the first centroids by [`Start`].
    fn first<T: Element>(&self, points: Points<'_, T>, random: &mut Random) -> Result<Vec<f32>> {
        let Points { rows, dim, weights, .. } = points;
        let mut centroids = match &self.start {
            Start::Given(centroids) => centroids.clone(),
            Start::Random => {
                let all = || (0..points.len()).collect::<Vec<_>>();
                let heavy = weights.map(|weights| (0..weights.len()).filter(|&row| weights[row] > 0.0).collect());
                let eligible: Vec<usize> =
                    heavy.filter(|heavy: &Vec<usize>| heavy.len() >= self.clusters).unwrap_or_else(all);
                let chosen = random.sample(eligible.len(), self.clusters);
                chosen.iter().flat_map(|&at| points.row(eligible[at])).map(|x| x.to_f32()).collect()
            }
            Start::PlusPlus => {
                let wanted = self.clusters.saturating_mul(start::SAMPLE).min(points.len());
                let places = random.sample(points.len(), wanted);
                let sample = gather(rows, dim, &places)?;
                let weights = weights.map(|weights| gather(weights, 1, &places)).transpose()?;
                start::plus_plus(&sample, dim, weights.as_deref(), self.clusters, self.spherical, random)
            }
        };
        if self.spherical {
            let isa = crate::simd::Isa::detect();
            centroids.par_chunks_mut(dim).for_each(|centroid| sums::normalise(isa, centroid));
        }
        Ok(centroids)
    }

    /// Number of iterations that training makes.
    pub(crate) fn wanted_iterations(&self) -> usize {
        self.iterations
    }

    fn assign_by(&self) -> Assign {
        Assign::of_spherical(self.spherical)
    }

    /// The largest number of points of a cluster, for `points` points, if sizes are bounded. Clusters times this is at
    /// least `points`.
    fn most(&self, points: usize) -> Option<usize> {
        let mean = points.div_ceil(self.clusters);
        self.balanced.map(|bound| ((bound * points as f64 / self.clusters as f64).ceil() as usize).clamp(mean, points))
    }

    /// Opens the devices. Returns the worker and the devices that it uses.
    fn open<'a, T: Element>(&self, points: Points<'a, T>, scale: Scale) -> Result<(Placement, Box<dyn Worker + 'a>)> {
        if let Some(device) = self.placement.single() {
            let (device, worker) = self.open_on(device, points, scale)?;
            return Ok((device.into(), worker));
        }
        let devices = self.placement.devices();
        if let Some(runtimes) = open_together(devices)? {
            let worker = Box::new(gpu::parts::KMeansParts::open(&runtimes, self.run(points), self.means(scale))?);
            // Few points use only the first devices, which become replicas.
            let devices = devices[..parts_of(devices.len(), points.len())].to_vec();
            return Ok((Placement::new(devices, 1)?, worker));
        }
        let opened = by_rows(&self.placement, points.len(), |part, device| {
            let (device, worker) = self.open_on(device, points.range(part.clone()), scale)?;
            Ok((device, Part { points: part, worker, sums: PartialSums::default() }))
        })?;
        let (devices, parts): (Vec<_>, Vec<_>) = opened.into_iter().unzip();
        let sums = Sums::new(self.clusters, points.dim, scale);
        let worker = Parts::new(parts, sums, self.clusters * points.dim, self.spherical);
        Ok((Placement::new(devices, 1)?, Box::new(worker)))
    }

    fn open_on<'a, T: Element>(
        &self,
        device: Device,
        points: Points<'a, T>,
        scale: Scale,
    ) -> Result<(Device, Box<dyn PartWorker + 'a>)> {
        Ok(match open(device)? {
            (device, Some(runtime)) => {
                (device, Box::new(gpu::KMeansDevice::new(runtime, self.run(points), self.means(scale))?))
            }
            (device, None) => {
                let worker = cpu::CpuWorker::new(self.assign_by(), points, self.clusters, scale, self.spherical);
                (device, Box::new(worker))
            }
        })
    }

    /// The input of a run on a GPU or an emulator.
    fn run<'a, T: Element>(&self, points: Points<'a, T>) -> self::gpu::Run<'a> {
        let Points { rows, dim, weights, .. } = points;
        let rows = VectorSlice::of(rows, dim);
        let (metric, clusters, budget) = (self.assign_by(), self.clusters, self.budget);
        self::gpu::Run { metric, clusters, rows, weights, budget }
    }

    fn means(&self, scale: Scale) -> self::gpu::Means {
        self::gpu::Means { scale, spherical: self.spherical }
    }
}

impl Clustering {
    /// Number of clusters; 0 if `dim` is 0.
    pub fn clusters(&self) -> usize {
        self.centroids.len().checked_div(self.dim).unwrap_or(0)
    }

    /// The centroid of `cluster`, which is below [`clusters`](Self::clusters): `dim` components.
    ///
    /// # Panics
    /// If `cluster` is not below [`clusters`](Self::clusters).
    pub fn centroid(&self, cluster: usize) -> &[f32] {
        &self.centroids[cluster * self.dim..][..self.dim]
    }

    /// The nearest centroid of each row, by (canonical distance, lower cluster), or by the largest inner product if
    /// spherical. The result is the same on every device. O(rows · clusters · dim).
    ///
    /// # Errors
    /// [`Error::Zero`]; [`Error::Ragged`] and [`Error::NotFinite`] of the
    /// centroids or the rows; the errors of opening the device and of its driver.
    pub fn assign<T: Element>(&self, rows: &[T], device: impl Into<Placement>) -> Result<Vec<u32>> {
        if self.dim == 0 {
            return Err(Error::Zero { what: "dimension" });
        }
        if check_vectors(&self.centroids, self.dim, Input::Centroids)? == 0 {
            return Err(Error::Zero { what: "clusters" });
        }
        check_whole(rows, self.dim)?;
        let metric = Assign::of_spherical(self.spherical);
        let labels = assign_rows(&device.into(), metric, rows, self.dim, &self.centroids, None);
        VectorSlice::of(rows, self.dim).located(Input::Vectors, labels)
    }
}

/// The nearest centroid of each row, exact by step 1 of [`worker`]'s definition. The devices of `placement` divide the
/// rows, and check them while they read them: [`Error::NotFinite`] may name any place. Rows are whole, and centroids
/// also finite, at least one.
pub(crate) fn assign_rows<T: Element>(
    placement: &Placement,
    metric: Assign,
    rows: &[T],
    dim: usize,
    centroids: &[f32],
    budget: Option<u64>,
) -> Result<Vec<u32>> {
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let vectors = VectorSlice::of(rows, dim);
    let labels = by_rows(placement, vectors.len(), |part, device| {
        let rows = vectors.part(part);
        match open_assigner(device, metric, rows, centroids, budget)? {
            Some(assigner) => assigner.labels(rows),
            None => assign_on_cpu(metric, rows, centroids),
        }
    })?;
    Ok(joined(labels))
}

/// Prepares centroids on a device for vectors like these, at least one; `None` on the CPU.
pub(crate) fn open_assigner(
    device: Device,
    metric: Assign,
    like: VectorSlice<'_>,
    centroids: &[f32],
    budget: Option<u64>,
) -> Result<Option<gpu::assigner::Assigner>> {
    let Some(runtime) = open(device)?.1 else { return Ok(None) };
    let mut centre = Centre::default();
    centre.add(like);
    gpu::assigner::Assigner::new(runtime, metric, (centroids, like.dim()), &centre, budget).map(Some)
}

/// [`assign_rows`] on the CPU, for at least one row. Checks the rows.
pub(crate) fn assign_on_cpu(metric: Assign, rows: VectorSlice<'_>, centroids: &[f32]) -> Result<Vec<u32>> {
    rows.check_finite(Input::Vectors)?;
    let dim = rows.dim();
    let mut labels = host_memory::zeroed(rows.len())?;
    let nearest = Nearest::new(metric, centroids, dim, labels.len());
    with_components!(rows, rows: T => nearest.assign::<T>(rows, &canonical_squares(rows, dim)?, &mut labels));
    Ok(labels)
}
