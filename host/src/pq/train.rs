//! Settings and training of the codebooks.

use rayon::prelude::*;

use crate::kmeans::KMeans;
use crate::kmeans::start::Random;
use crate::{Device, Result};

/// How a [`ProductQuantizer`](super::ProductQuantizer), and a [`Rotation`](super::Rotation) for it, is trained.
///
/// ```
/// use warpann::Device;
/// use warpann::pq::PqTraining;
///
/// let settings = PqTraining::new(16).bits(6).iterations(10).seed(7).device(Device::Cpu);
/// ```
#[derive(Debug, Clone)]
pub struct PqTraining {
    pub(super) sub_quantizers: usize,
    pub(super) bits: u32,
    pub(super) iterations: usize,
    pub(super) seed: u64,
    pub(super) points_per_centroid: usize,
    pub(super) rounds: usize,
    pub(super) device: Device,
}

impl PqTraining {
    /// `sub_quantizers` (M, a divisor of the dimension) of 8 bits; 25 iterations, 256 points per centroid, 20 rounds
    /// of rotation, seed 0, [`Device::Auto`].
    pub fn new(sub_quantizers: usize) -> Self {
        PqTraining {
            sub_quantizers,
            bits: 8,
            iterations: 25,
            seed: 0,
            points_per_centroid: 256,
            rounds: 20,
            device: Device::Auto,
        }
    }

    /// Bits of the code of a sub-vector, 4 to 8: 2^bits codewords.
    pub fn bits(mut self, bits: u32) -> Self {
        self.bits = bits;
        self
    }

    /// Iterations of k-means.
    pub fn iterations(mut self, iterations: usize) -> Self {
        self.iterations = iterations;
        self
    }

    /// What random choices start from: the same seed and rows give the same codebooks.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Training vectors used per codeword, at most; more are sampled.
    pub fn points_per_centroid(mut self, points: usize) -> Self {
        self.points_per_centroid = points;
        self
    }

    /// Rounds in which [`Rotation::train`](super::Rotation::train) improves the rotation; codebooks alone have no use for it.
    pub fn rotation_rounds(mut self, rounds: usize) -> Self {
        self.rounds = rounds;
        self
    }

    /// Where k-means, and for a rotation the rest of the training, runs.
    pub fn device(mut self, device: Device) -> Self {
        self.device = device;
        self
    }
}

/// The codebooks of all sub-quantizers, M × 2^bits × width: each is the centroids of one k-means run. Shapes were checked.
pub(super) fn codebooks(settings: &PqTraining, rows: &[f32], dim: usize) -> Result<Vec<f32>> {
    let width = dim / settings.sub_quantizers;
    let codewords = 1usize << settings.bits;
    // One sample for all: sub-vectors of other rows are never copied.
    let (have, wanted) = (rows.len() / dim, codewords.saturating_mul(settings.points_per_centroid.max(1)));
    let places = Random::new(settings.seed).sample(have, wanted.min(have));
    let train = |part: usize, device: Device| {
        let points = places.iter().flat_map(|&row| &rows[row * dim + part * width..][..width]);
        KMeans::new(codewords)
            .iterations(settings.iterations)
            .seed(settings.seed.wrapping_add(part as u64))
            .points_per_centroid(None)
            .device(device)
            .train(&points.copied().collect::<Vec<f32>>(), width)
    };
    // The first finds out what `Auto` means here. Small runs fill the threads of a CPU best side by side; a GPU takes one at a time.
    let first = train(0, settings.device)?;
    let device = first.device.first();
    let rest: Vec<_> = match device {
        Device::Cpu => (1..settings.sub_quantizers).into_par_iter().map(|part| train(part, device)).collect(),
        _ => (1..settings.sub_quantizers).map(|part| train(part, device)).collect(),
    };
    let mut codebooks = first.centroids;
    for clustering in rest {
        codebooks.extend(clustering?.centroids);
    }
    Ok(codebooks)
}
