//! Settings and training of the codebooks.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::kmeans::{Clustering, KMeans, Start};
use crate::parallel::{Loop, turns};
use crate::random::Random;
use crate::shards::share;
use crate::threads::at_once;
use crate::{Device, Result, Stage, Watch};

/// Settings to train a [`ProductQuantizer`](super::ProductQuantizer) and a [`Rotation`](super::Rotation) for it.
///
/// ```
/// use warpann::Device;
/// use warpann::pq::PqTraining;
///
/// let settings = PqTraining::new(16).bits(6).iterations(10).seed(7).device(Device::Cpu);
/// ```
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PqTraining {
    pub(super) sub_quantizers: usize,
    pub(super) bits: u32,
    pub(super) iterations: usize,
    pub(super) seed: u64,
    pub(super) points_per_centroid: usize,
    #[cfg_attr(feature = "serde", serde(rename = "rotation_rounds"))]
    pub(super) rounds: usize,
    pub(super) lengthen: bool,
    pub(super) device: Device,
}

impl PqTraining {
    /// Settings with `sub_quantizers` (M, a divisor of the dimension) of 8 bits, 25 iterations, 256 points per
    /// centroid, 20 rounds of rotation, seed 0 and [`Device::Auto`].
    pub fn new(sub_quantizers: usize) -> Self {
        PqTraining {
            sub_quantizers,
            bits: 8,
            iterations: 25,
            seed: 0,
            points_per_centroid: 256,
            rounds: 20,
            lengthen: false,
            device: Device::Auto,
        }
    }

    /// Sets the bits of the code of a sub-vector, 4 to 8, for 2^bits codewords.
    pub fn bits(mut self, bits: u32) -> Self {
        self.bits = bits;
        self
    }

    /// Sets the number of k-means iterations, 25 by default.
    pub fn iterations(mut self, iterations: usize) -> Self {
        self.iterations = iterations;
        self
    }

    /// Sets the seed of random choices, 0 by default. The same seed and rows give the same codebooks.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Sets the largest number of training vectors per codeword, 256 by default. More vectors are sampled.
    pub fn points_per_centroid(mut self, points: usize) -> Self {
        self.points_per_centroid = points;
        self
    }

    /// Sets the number of rounds of [`Rotation::train`](super::Rotation::train), 20 by default. Only rotations use it.
    pub fn rotation_rounds(mut self, rounds: usize) -> Self {
        self.rounds = rounds;
        self
    }

    /// Whether to make codewords longer than those with the least error, for ranking by squared L2 distance; false by
    /// default. The [module documentation](super) gives the formula and the measurements.
    /// [`IvfIndex`](crate::ivf::IvfIndex) uses this under L2.
    pub fn lengthen(mut self, lengthen: bool) -> Self {
        self.lengthen = lengthen;
        self
    }

    /// Sets the device of k-means, and of the rest of the training of a rotation.
    pub fn device(mut self, device: Device) -> Self {
        self.device = device;
        self
    }

    /// Numbers of the training vectors among `have`, ascending: all of them, or a sample of the size that training
    /// uses.
    pub(crate) fn sample(&self, have: usize) -> Vec<usize> {
        let wanted = (1usize << self.bits).saturating_mul(self.points_per_centroid.max(1));
        Random::new(self.seed).sample(have, wanted.min(have))
    }
}

/// Largest width of sub-vectors for which k-means starts from k-means++. In two dimensions 256 random points are so
/// uneven that 25 iterations do not correct them: on SIFT vectors, in the model of [`super`], the error is 1.4 times as
/// large (64 bytes: 10-NN recall .892 instead of .911; 32 bytes, four components: .783 instead of .786). From eight
/// components on, random starts are as good.
const SPREAD_WIDTH: usize = 4;
/// Largest factor by which codewords are lengthened.
const MOST_LENGTHENED: f64 = 1.25;
/// Number of k-means runs that a GPU does at the same time. A run of 65,536 points repeats a few kernels of some µs and
/// a wait, so four runs at the same time take 10 ms and one takes 5 (eight components, H200, 2026-11-22).
const RUNS: usize = 4;

/// The codebooks of all sub-quantizers, M × 2^bits × width: the centroids of one k-means run each. The shapes are
/// checked.
pub(super) fn codebooks(settings: &PqTraining, rows: &[f32], dim: usize, watch: &Watch<'_>) -> Result<Vec<f32>> {
    let (parts, codewords) = (settings.sub_quantizers, 1usize << settings.bits);
    let width = dim / parts;
    // One sample for all sub-quantizers, so that sub-vectors of other rows are never copied.
    let places = settings.sample(rows.len() / dim);
    let sub_vectors = |part: usize| -> Vec<f32> {
        places.iter().flat_map(|&row| &rows[row * dim + part * width..][..width]).copied().collect()
    };
    let kmeans = |part: usize| {
        let seed = settings.seed.wrapping_add(part as u64);
        KMeans::new(codewords).seed(seed).points_per_centroid(None)
    };
    // k-means++ of one sub-quantizer uses one thread: run all of them in parallel, before a GPU starts.
    let spread = |part: usize| {
        let first = kmeans(part).start(Start::PlusPlus).iterations(0).device(Device::Cpu);
        Ok(Start::Given(first.train(&sub_vectors(part), width)?.centroids))
    };
    let starts = if width <= SPREAD_WIDTH {
        turns(0..parts).map(spread).collect().into_iter().collect::<Result<Vec<_>>>()?
    } else {
        vec![Start::Random; parts]
    };
    // Runs end in any order, so they are counted.
    let ended = AtomicUsize::new(0);
    let train = |part: usize, device: Device| -> Result<(Vec<f32>, Device)> {
        watch.report(Stage::Quantizing, ended.load(Ordering::Relaxed), parts)?;
        let points = sub_vectors(part);
        let run = kmeans(part).start(starts[part].clone()).iterations(settings.iterations).device(device);
        let mut clustering = run.train(&points, width)?;
        if settings.lengthen {
            lengthen(&mut clustering, &points);
        }
        watch.report(Stage::Quantizing, ended.fetch_add(1, Ordering::Relaxed) + 1, parts)?;
        Ok((clustering.centroids, clustering.device.first()))
    };
    // The first run resolves `Auto`. Small runs use the threads of a CPU best in parallel with each other.
    let (mut codebooks, device) = train(0, settings.device)?;
    let rest: Vec<_> = match device {
        Device::Cpu => turns(1..parts).map(|part| train(part, device)).collect(),
        _ => {
            let run = |run| share(parts - 1, run, RUNS).map(|part| train(1 + part, device)).collect::<Vec<_>>();
            at_once((0..RUNS).collect(), run).into_iter().flatten().collect()
        }
    };
    for trained in rest {
        codebooks.extend(trained?.0);
    }
    Ok(codebooks)
}

/// Gives the codewords, the means of `points`, half of the length back that they lack (see the documentation of
/// [`super`]).
fn lengthen(clustering: &mut Clustering, points: &[f32]) {
    let energy = |row: &[f32]| row.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>();
    let words = clustering.centroids.chunks_exact(clustering.dim).zip(&clustering.sizes);
    let kept: f64 = words.map(|(word, &size)| f64::from(size) * energy(word)).sum();
    // Codewords of zero lack nothing, and codewords from 0 iterations are not means.
    if kept == 0.0 {
        return;
    }
    let factor = (0.5 + 0.5 * (energy(points) / kept).sqrt()).clamp(1.0, MOST_LENGTHENED);
    let longer = |x: f32| (f64::from(x) * factor) as f32;
    // Near the end of f32's range the means stay unchanged.
    if clustering.centroids.iter().all(|&x| longer(x).is_finite()) {
        clustering.centroids.iter_mut().for_each(|x| *x = longer(*x));
    }
}
