//! k-means clustering: finds `clusters` centroids such that points lie near the nearest of them.
//!
//! ```text
//! rows = all, or a sample of 256 a centroid                                   start.rs
//! centroids = random rows, k-means++, or given
//! repeat `iterations` times:
//!     assign: each point to its nearest centroid, exactly                     a device: worker.rs
//!             objective, and progress to whoever watches
//!     update: each centroid to the (weighted) mean of its points              exact integer sums: worker.rs
//!     split:  empty clusters take half of the largest                         split.rs
//! ```
//!
//! Lloyd's algorithm, as the paper uses it to train coarse and product quantizers (Johnson, Douze and Jégou, section 5). An
//! iteration costs points · clusters · d for the assignment, which fast paths do in low precision with a proved bound, and
//! points · d for the rest.
//!
//! *The same bits everywhere.* Points go to their exactly nearest centroid and are summed as integers (`worker.rs` has the
//! definition), so the CPU with any number of threads, the emulator and the GPU give the same centroids, labels and
//! objectives for one seed.
//!
//! *Several devices* ([`Placement`]) have a part of the points each, whether as replicas or as shards. Sums of GPUs meet on the GPUs
//! (`gpu/parts.rs`), those of devices of different kinds on the host (`parts.rs`).
//!
//! *Spherical.* Points are compared by inner product, and centroids have norm 1. Points are taken as they are: a longer one
//! pulls more. Divide them by their norms first where directions alone should count.
//!
//! *Balanced.* After every assignment points move from clusters that are too large to the nearest that have room (balance.rs),
//! and the update is made on the CPU from the labels that result.
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
mod run;
pub(crate) mod scale;
mod split;
mod start;
mod sums;
#[cfg(test)]
mod tests;
pub(crate) mod worker;

use self::cpu::Points;
use self::nearest::{Nearest, canonical_squares};
use self::parts::{Part, Parts};
use self::run::Run;
use self::scale::Scale;
use self::sums::{PartialSums, Sums};
use self::worker::{PartWorker, Worker};
use crate::device::open::{open, open_together};
use crate::metric::Assign;
use crate::parallel::{Loop, ParallelSlice};
use crate::random::{Random, gather};
use crate::shards::{by_rows, joined, parts_of};
use crate::validate::{MAX_ROWS, check_dim, check_rows, check_vectors};
use crate::vectors::{VectorSlice, with_components};
use crate::{Device, Element, Error, Input, Placement, Result, host_memory};

/// The first centroids.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Start {
    /// Distinct points, chosen evenly among those with weight.
    #[default]
    Random,
    /// k-means++ (Arthur and Vassilvitskii 2007): each point with probability proportional to its squared distance from the
    /// centroids so far, among a sample of 64 points a centroid. It runs on the CPU and costs 64 · clusters² · d f64
    /// operations: for 1024 clusters about a second on two cores (d = 128), for 16 times as many clusters 256 times that.
    PlusPlus,
    /// These: clusters × dimension components, row-major.
    Given(Vec<f32>),
}

/// Settings of a k-means run.
#[derive(Debug, Clone)]
pub struct KMeans {
    clusters: usize,
    iterations: usize,
    seed: u64,
    start: Start,
    spherical: bool,
    points_per_centroid: Option<usize>,
    balanced: Option<f64>,
    labels: bool,
    placement: Placement,
    budget: Option<u64>,
}

/// How one iteration went.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress {
    /// The iteration, from 0.
    pub iteration: usize,
    /// Its entry in [`Clustering::objectives`].
    pub objective: f64,
    /// Empty clusters that took half of a large one.
    pub split: usize,
    /// Points of the largest cluster.
    pub largest: u32,
    /// Points of a cluster on average.
    pub mean: f64,
}

/// What training found.
#[derive(Debug, Clone, PartialEq)]
pub struct Clustering {
    /// The centroids, row-major.
    pub centroids: Vec<f32>,
    /// Components of a centroid.
    pub dim: usize,
    /// One an iteration, of the centroids that its points were assigned to: Σ w‖x − c‖² over the points trained with, which
    /// falls but for the last bits of f32 centroids (without balance, and where nothing was split); spherical: Σ w⟨x, c⟩,
    /// which rises. Balanced: after balancing.
    pub objectives: Vec<f64>,
    /// Points of each cluster: by `labels` where those were asked for, else of the last iteration.
    pub sizes: Vec<u32>,
    /// The cluster of each row given to training, where [`KMeans::labels`] asked for them: the nearest of the final
    /// centroids, or with balance the one that the row was given to.
    pub labels: Option<Vec<u32>>,
    /// True where points are compared by inner product.
    pub spherical: bool,
    /// The device that trained, what [`Device::Auto`] chose; or several.
    pub device: Placement,
}

impl KMeans {
    /// `clusters` centroids; 20 iterations from random points, seed 0, 256 points a centroid, on [`Device::Auto`].
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

    /// Iterations; with 0 the centroids are the first ones.
    pub fn iterations(mut self, iterations: usize) -> Self {
        self.iterations = iterations;
        self
    }

    /// All that is random follows from this.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// The first centroids.
    pub fn start(mut self, start: Start) -> Self {
        self.start = start;
        self
    }

    /// Compare by inner product, with centroids of norm 1.
    pub fn spherical(mut self, spherical: bool) -> Self {
        self.spherical = spherical;
        self
    }

    /// Train with at most so many points a centroid (at least one), sampled by the seed; `None` for all points. More than a
    /// few hundred hardly better the centroids.
    pub fn points_per_centroid(mut self, points: Option<usize>) -> Self {
        self.points_per_centroid = points;
        self
    }

    /// No cluster gets more than ⌈`bound` · points / clusters⌉ points, neither in training nor in the labels returned.
    pub fn balanced(mut self, bound: Option<f64>) -> Self {
        self.balanced = bound;
        self
    }

    /// Return the cluster of every row as well. Costs one more assignment.
    pub fn labels(mut self, labels: bool) -> Self {
        self.labels = labels;
        self
    }

    /// The [`Device`], or a [`Placement`] of several, which divide the points; [`Device::Auto`] unless set.
    pub fn device(mut self, device: impl Into<Placement>) -> Self {
        self.placement = device.into();
        self
    }

    /// Bytes that training may use on a GPU, of several on each; points that do not fit are streamed in batches. Unless set, a share of what is
    /// free. The CPU works in place and needs none.
    pub fn memory_budget(mut self, bytes: u64) -> Self {
        self.budget = Some(bytes);
        self
    }

    /// Clusters the vectors of `rows`, row-major, `dim` components each. O(iterations · points · clusters · dim), points
    /// being those of [`KMeans::points_per_centroid`].
    ///
    /// # Errors
    /// [`Error::ZeroDimension`], [`Error::ZeroClusters`], [`Error::RaggedVectors`], [`Error::NotFinite`],
    /// [`Error::TooFewTrainingVectors`] if there are fewer rows than clusters, [`Error::TooManyRows`], [`Error::BadBalance`],
    /// [`Error::WrongCentroids`]; what opening the device can meet (see [`crate::FlatIndexBuilder::build`]), and what its driver
    /// reports.
    pub fn train<T: Element>(&self, rows: &[T], dim: usize) -> Result<Clustering> {
        self.train_watched(rows, dim, None, &mut |_| {})
    }

    /// As [`train`](Self::train), each row counting `weights[row]` times.
    ///
    /// # Errors
    /// As [`train`](Self::train); [`Error::WrongWeights`], [`Error::BadWeight`].
    pub fn train_weighted<T: Element>(&self, rows: &[T], dim: usize, weights: &[f32]) -> Result<Clustering> {
        self.train_watched(rows, dim, Some(weights), &mut |_| {})
    }

    /// As [`train`](Self::train) or [`train_weighted`](Self::train_weighted), telling `watch` about every iteration.
    ///
    /// # Errors
    /// As those.
    pub fn train_watched<T: Element>(
        &self,
        rows: &[T],
        dim: usize,
        weights: Option<&[f32]>,
        watch: &mut dyn FnMut(&Progress),
    ) -> Result<Clustering> {
        self.check(rows, dim, weights)?;
        self.cluster_vectors(VectorSlice::of(rows, dim), weights, watch)
    }

    /// [`cluster`](Self::cluster) for every element type. Not generic, so that it is compiled with this crate.
    fn cluster_vectors(
        &self,
        vectors: VectorSlice<'_>,
        weights: Option<&[f32]>,
        watch: &mut dyn FnMut(&Progress),
    ) -> Result<Clustering> {
        with_components!(vectors, rows: T => self.cluster::<T>(rows, vectors.dim(), weights, watch))
    }

    /// [`train_watched`](Self::train_watched) of what was checked.
    fn cluster<T: Element>(
        &self,
        rows: &[T],
        dim: usize,
        weights: Option<&[f32]>,
        watch: &mut dyn FnMut(&Progress),
    ) -> Result<Clustering> {
        let count = rows.len() / dim;
        let mut random = Random::new(self.seed);
        let wanted = self.points_per_centroid.map(|points| points.max(1).saturating_mul(self.clusters));
        let places = wanted.filter(|&wanted| wanted < count).map(|wanted| random.sample(count, wanted));
        let sample = places.as_ref().map(|places| gather(rows, dim, places)).transpose()?;
        let sample_weights =
            places.as_ref().and_then(|places| weights.map(|weights| gather(weights, 1, places))).transpose()?;
        let training = sample.as_deref().unwrap_or(rows);
        let training_weights = sample_weights.as_deref().or(weights);
        let squares = canonical_squares(training, dim)?;
        let points = Points { rows: training, dim, weights: training_weights, squares: &squares };
        let centroids = self.first(points, &mut random)?;

        let scale = Scale::of(&points);
        let (device, mut worker) = self.open(points, scale)?;
        let mut run = Run::new(self, points, scale, worker.as_mut(), centroids);
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
                        let squares = canonical_squares(rows, dim)?;
                        let points = Points { rows, dim, weights, squares: &squares };
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

    /// Number of rows, once everything is known to be in order.
    fn check<T: Element>(&self, rows: &[T], dim: usize, weights: Option<&[f32]>) -> Result<usize> {
        check_dim(dim)?;
        if self.clusters == 0 {
            return Err(Error::ZeroClusters { what: "clusters" });
        }
        if let Some(bound) = self.balanced
            && !(bound >= 1.0 && bound.is_finite())
        {
            return Err(Error::BadBalance { bound });
        }
        let count = check_vectors(rows, dim, Input::Training)?;
        if count < self.clusters {
            return Err(Error::TooFewTrainingVectors { have: count, need: self.clusters });
        }
        check_rows(count as u64, MAX_ROWS)?;
        if let Start::Given(centroids) = &self.start {
            // No overflow: there are at least as many rows as clusters.
            let expected = self.clusters * dim;
            if centroids.len() != expected {
                return Err(Error::WrongCentroids { expected, actual: centroids.len() });
            }
            check_vectors(centroids, dim, Input::Centroids)?;
        }
        if let Some(weights) = weights {
            if weights.len() != count {
                return Err(Error::WrongWeights { weights: weights.len(), rows: count });
            }
            let bad = weights.iter().position(|&weight| !(weight >= 0.0 && weight.is_finite()));
            // All zero: the first stands for them.
            let bad = bad.or_else(|| weights.iter().all(|&weight| weight == 0.0).then_some(0));
            if let Some(row) = bad {
                return Err(Error::BadWeight { row, value: weights[row] });
            }
        }
        Ok(count)
    }

    /// The first centroids.
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

    fn assign_by(&self) -> Assign {
        Assign::of_spherical(self.spherical)
    }

    /// Points that a cluster may have of `points`, where that is bounded; clusters times this is at least `points`.
    fn most(&self, points: usize) -> Option<usize> {
        let mean = points.div_ceil(self.clusters);
        self.balanced.map(|bound| ((bound * points as f64 / self.clusters as f64).ceil() as usize).clamp(mean, points))
    }

    /// The worker, and where it works.
    fn open<'a, T: Element>(&self, points: Points<'a, T>, scale: Scale) -> Result<(Placement, Box<dyn Worker + 'a>)> {
        if let Some(device) = self.placement.single() {
            let (device, worker) = self.open_on(device, points, scale)?;
            return Ok((device.into(), worker));
        }
        let devices = self.placement.devices();
        if let Some(runtimes) = open_together(devices)? {
            let worker = Box::new(gpu::parts::KMeansParts::open(&runtimes, self.run(points), self.means(scale))?);
            // Few points stay on few devices, which are as many replicas then.
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

    /// What GPUs and emulators need to know.
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
    /// Number of clusters; 0 where `dim` is.
    pub fn clusters(&self) -> usize {
        self.centroids.len().checked_div(self.dim).unwrap_or(0)
    }

    /// The centroid of a cluster, which is below [`clusters`](Self::clusters).
    ///
    /// # Panics
    /// If it is not.
    pub fn centroid(&self, cluster: usize) -> &[f32] {
        &self.centroids[cluster * self.dim..][..self.dim]
    }

    /// The nearest centroid of each row, by (canonical distance, lower cluster); the largest inner product if spherical. The
    /// same on every device. O(rows · clusters · dim).
    ///
    /// # Errors
    /// [`Error::ZeroDimension`], [`Error::ZeroClusters`], [`Error::RaggedVectors`], [`Error::NotFinite`], of the centroids or the rows;
    /// what opening the device can meet, and what its driver reports.
    pub fn assign<T: Element>(&self, rows: &[T], device: impl Into<Placement>) -> Result<Vec<u32>> {
        if self.dim == 0 {
            return Err(Error::ZeroDimension);
        }
        if check_vectors(&self.centroids, self.dim, Input::Centroids)? == 0 {
            return Err(Error::ZeroClusters { what: "clusters" });
        }
        check_vectors(rows, self.dim, Input::Vectors)?;
        let metric = Assign::of_spherical(self.spherical);
        assign_rows(&device.into(), metric, rows, self.dim, &self.centroids, None)
    }
}

/// The nearest centroid of each row, exact by step 1 of [`worker`]'s definition, on any devices, which divide the rows. Rows and centroids are whole
/// and finite, and there is a centroid at least.
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
    assign_vectors(placement, metric, VectorSlice::of(rows, dim), centroids, budget)
}

/// [`assign_rows`] for a row at least.
fn assign_vectors(
    placement: &Placement,
    metric: Assign,
    vectors: VectorSlice<'_>,
    centroids: &[f32],
    budget: Option<u64>,
) -> Result<Vec<u32>> {
    let dim = vectors.dim();
    let labels = by_rows(placement, vectors.len(), |part, device| {
        let rows = vectors.part(part);
        if let Some(runtime) = open(device)?.1 {
            let run = gpu::Run { metric, clusters: centroids.len() / dim, rows, weights: None, budget };
            return gpu::labels(runtime, run, centroids);
        }
        let mut labels = host_memory::zeroed(rows.len())?;
        let nearest = Nearest::new(metric, centroids, dim, labels.len());
        with_components!(rows, rows: T => nearest.assign::<T>(rows, &canonical_squares(rows, dim)?, &mut labels));
        Ok(labels)
    })?;
    Ok(joined(labels))
}
