//! OPQ: a rotation of the space under which product quantization loses less.
//!
//! # Problem
//! Sub-quantizers cannot use what sub-vectors have in common, and serve best where each has an equal share of the variance.
//! An orthogonal matrix R changes no L2 distance or inner product; find R and codebooks that minimise Σ‖R·x − y‖², y being what
//! the code of R·x decodes to.
//!
//! # Algorithm (Ge, He, Ke, Sun 2013, section 3.1, non-parametric)
//! ```text
//! R = the identity, or the polar factor of a random matrix;  codebooks by a short k-means in R's space
//!     whichever of the two has the smaller error
//! repeat `rounds` times:
//!     code every R·x                                                      // on the device
//!     S[m][c] = Σ x of the vectors whose code m is c, n[m][c] their number // f64, ascending
//!     codeword[m][c] = rows of part m of R · S[m][c] / n[m][c]            // their mean, rotated
//!     C = Σ y·xᵀ = Σ over m, c of codeword[m][c] · S[m][c]ᵀ               // in the rows of part m
//!     R = polar factor of C + λR                                          // orthogonal Procrustes: minimises Σ‖R·x − y‖²
//! ```
//!
//! Codewords and C both come from S, so a round reads the vectors twice and adds M · dim times a vector where the plain sum of
//! y·xᵀ would multiply dim² times. λ, 10⁻⁷ of C, matters only where C is singular (vectors in a subspace): there it keeps R as it
//! was. λ does not undo progress: the new R is no worse for C, since ⟨R', R⟩ is largest at R' = R.
//!
//! The start decides: on SIFT vectors with 8 sub-quantizers, 20 rounds from the identity end with 0.70 of the error that 20 rounds
//! from a random rotation end with, and 0.76 of that from principal components with balanced variance; where the order of
//! components says nothing, a random one is better than none.
//!
//! # Definition
//! The matrix is f32, row-major. Component i of the rotated vector is the canonical inner product ([`crate::metric`]: f64 sums,
//! rounded to f32 at the end) of the vector with row i, the same bits on every device; rotating back takes columns for rows.

use rayon::prelude::*;

use super::linear::polar;
use super::{PqTraining, ProductQuantizer, check_shape, codes};
use crate::cpu::exact::{self, Term};
use crate::cpu::simd::Isa;
use crate::flat::{check_derived, check_dim, check_vectors};
use crate::kmeans::on_device;
use crate::kmeans::start::Random;
use crate::{Device, Error, Input, Result, host_memory};

/// Vectors that rotations are learned from: so many for each codeword, or component where there are more of them.
const POINTS: usize = 64;
/// Iterations of the k-means that the alternation starts from.
const FIRST_ITERATIONS: usize = 5;
/// Largest deviation from orthogonality that a matrix from outside may have.
const TOLERANCE: f64 = 1e-4;

/// Where the alternation stands.
struct State {
    rotation: Rotation,
    quantizer: ProductQuantizer,
    /// Codes of the rotated sample.
    codes: Vec<u8>,
}

/// An orthogonal matrix, learned for product quantization or given.
///
/// ```
/// use warpann::Device;
/// use warpann::pq::{PqTraining, Rotation};
///
/// // 300 vectors of dimension 4 whose components are all nearly the same.
/// let rows: Vec<f32> = (0..300).flat_map(|i| (0..4).map(move |j| (i as f32).sin() + 0.01 * (i * j) as f32)).collect();
/// let rotation = Rotation::train(&PqTraining::new(2).bits(4).device(Device::Cpu), &rows, 4)?;
/// assert!(rotation.orthogonality_error() < 1e-6);
///
/// let rotated = rotation.apply(&rows, Device::Cpu)?;
/// let back = rotation.apply_transposed(&rotated, Device::Cpu)?;
/// assert!(rows.iter().zip(&back).all(|(x, y)| (x - y).abs() < 1e-5));
/// # Ok::<(), warpann::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Rotation {
    dim: usize,
    matrix: Vec<f32>,
    transposed: Vec<f32>,
}

impl Rotation {
    /// Learns a rotation for product quantizers of these settings from `rows` (row-major, `dim` components each), of which it
    /// samples 64 for each codeword (or each component, if there are more of those; fewer if the settings say fewer points per
    /// centroid). The same settings and rows give the same rotation on every device. A round costs O(sample · dim · (dim + 2^bits)).
    ///
    /// Its rows are orthonormal to 2 · 10⁻⁷: they are so in f64 to 10⁻¹², and rounding to f32 moves an inner product of two by
    /// 2 · 2⁻²⁴ at most.
    ///
    /// # Errors
    /// As [`ProductQuantizer::train`]; [`Error::Overflow`] where f32 cannot hold a rotated vector.
    pub fn train(settings: &PqTraining, rows: &[f32], dim: usize) -> Result<Rotation> {
        check_shape(dim, settings.sub_quantizers, settings.bits)?;
        let have = check_vectors(rows, dim, Input::Training)?;
        let codewords = 1usize << settings.bits;
        if have < codewords {
            return Err(Error::TooFewTrainingVectors { have, need: codewords });
        }
        let mut random = Random::new(settings.seed);
        let points = codewords.max(dim).saturating_mul(settings.points_per_centroid.clamp(1, POINTS));
        let places = random.sample(have, points.min(have));
        let sample: Vec<f32> = places.iter().flat_map(|&row| &rows[row * dim..][..dim]).copied().collect();

        // Components that come in a meaningful order are best left together; without one, mixing shares out the variance.
        let noise: Vec<f64> = (0..dim * dim).map(|_| (0..12).map(|_| random.unit()).sum::<f64>() - 6.0).collect();
        let starts =
            std::iter::once(Self::identity(dim)).chain(polar(&noise, dim).map(|mixed| Self::rounded(dim, &mixed)));
        // Rotations are compared by the error, which means make the least.
        let first = settings.clone().lengthen(false).iterations(settings.iterations.min(FIRST_ITERATIONS));
        let mut best: Option<(f64, State)> = None;
        for rotation in starts {
            let rotated = rotation.apply_finite(&sample, &places, settings.device)?;
            let quantizer = ProductQuantizer::train(&first, &rotated, dim)?;
            let codes = quantizer.encode_checked(&rotated, settings.device, None)?;
            let error = error(&rotated, &quantizer.decode(&codes)?);
            if best.as_ref().is_none_or(|(least, _)| error < *least) {
                best = Some((error, State { rotation, quantizer, codes }));
            }
        }
        let Some((_, State { mut rotation, mut quantizer, mut codes })) = best else { return Ok(Self::identity(dim)) };
        for _ in 0..settings.rounds {
            let (codebooks, products) = rotation.round(&quantizer, &sample, &codes);
            let Some(matrix) = rotation.procrustes(products) else { break };
            rotation = Self::rounded(dim, &matrix);
            quantizer = ProductQuantizer::from_codebooks(dim, settings.sub_quantizers, settings.bits, codebooks)?;
            let rotated = rotation.apply_finite(&sample, &places, settings.device)?;
            codes = quantizer.encode_checked(&rotated, settings.device, None)?;
        }
        Ok(rotation)
    }

    /// The rotated `sample`, which are the rows `places` of the caller's vectors; an error that names one of those if f32 cannot hold it.
    fn apply_finite(&self, sample: &[f32], places: &[usize], device: Device) -> Result<Vec<f32>> {
        let rotated = self.apply(sample, device)?;
        check_derived(&rotated, self.dim, "rotated vector").map_err(|error| error.with_row(|row| places[row]))?;
        Ok(rotated)
    }

    /// The codewords after the update, and C.
    fn round(&self, quantizer: &ProductQuantizer, sample: &[f32], codes: &[u8]) -> (Vec<f32>, Vec<f64>) {
        let (dim, width, codewords) = (self.dim, quantizer.width(), quantizer.codewords());
        let parts = quantizer.sub_quantizers();
        let mut numbers = vec![0; sample.len() / dim * parts];
        for (code, numbers) in codes.chunks_exact(quantizer.code_bytes()).zip(numbers.chunks_exact_mut(parts)) {
            codes::unpack(code, quantizer.bits(), numbers);
        }
        let mut codebooks = quantizer.codebooks().to_vec();
        let mut products = vec![0.0; dim * dim];
        let books = codebooks.par_chunks_exact_mut(codewords * width).zip(products.par_chunks_exact_mut(width * dim));
        books.enumerate().for_each(|(part, (codebook, products))| {
            let (mut sums, mut counts) = (vec![0.0f64; codewords * dim], vec![0u32; codewords]);
            for (x, numbers) in sample.chunks_exact(dim).zip(numbers.chunks_exact(parts)) {
                let number = usize::from(numbers[part]);
                counts[number] += 1;
                sums[number * dim..][..dim].iter_mut().zip(x).for_each(|(sum, &x)| *sum += f64::from(x));
            }
            let own = &self.matrix[part * width * dim..][..width * dim];
            let words = codebook.chunks_exact_mut(width).zip(sums.chunks_exact(dim)).zip(counts);
            for ((word, sum), count) in words.filter(|(_, count)| *count > 0) {
                for ((value, row), products) in
                    word.iter_mut().zip(own.chunks_exact(dim)).zip(products.chunks_exact_mut(dim))
                {
                    let rotated: f64 = row.iter().zip(sum).map(|(&r, x)| f64::from(r) * x).sum();
                    *value = (rotated / f64::from(count)) as f32;
                    let y = f64::from(*value);
                    products.iter_mut().zip(sum).for_each(|(product, x)| *product += y * x);
                }
            }
        });
        (codebooks, products)
    }

    /// The orthogonal matrix nearest to C + λR; `None` if there is no telling which, or nothing to learn from.
    fn procrustes(&self, mut products: Vec<f64>) -> Option<Vec<f64>> {
        let size = (products.iter().map(|c| c * c).sum::<f64>() / self.dim as f64).sqrt();
        if size == 0.0 || !size.is_finite() {
            return None;
        }
        products.iter_mut().zip(&self.matrix).for_each(|(c, &r)| *c = *c / size + 1e-7 * f64::from(r));
        polar(&products, self.dim)
    }

    fn rounded(dim: usize, matrix: &[f64]) -> Rotation {
        Self::new(dim, matrix.iter().map(|&value| value as f32).collect())
    }

    fn new(dim: usize, matrix: Vec<f32>) -> Rotation {
        let transposed = (0..dim * dim).map(|i| matrix[i % dim * dim + i / dim]).collect();
        Rotation { dim, matrix, transposed }
    }

    /// The rotation that changes nothing.
    fn identity(dim: usize) -> Rotation {
        Self::new(dim, (0..dim * dim).map(|i| if i / dim == i % dim { 1.0 } else { 0.0 }).collect())
    }

    /// A rotation of this matrix: dim × dim, row-major, orthogonal to 10⁻⁴. O(dim³).
    ///
    /// # Errors
    /// [`Error::ZeroDimension`], [`Error::NotOrthogonal`], [`Error::NotFinite`].
    pub fn from_matrix(dim: usize, matrix: Vec<f32>) -> Result<Rotation> {
        check_dim(dim)?;
        let len = matrix.len();
        if dim.checked_mul(dim) != Some(len) {
            return Err(Error::NotOrthogonal { dim, len, error: f64::INFINITY });
        }
        check_vectors(&matrix, dim, Input::Rotation)?;
        let rotation = Self::new(dim, matrix);
        let error = rotation.orthogonality_error();
        if error > TOLERANCE { Err(Error::NotOrthogonal { dim, len, error }) } else { Ok(rotation) }
    }

    /// Components of a vector.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// The matrix, row-major.
    pub fn matrix(&self) -> &[f32] {
        &self.matrix
    }

    /// The largest entry of |R·Rᵀ − I|. O(dim³).
    pub fn orthogonality_error(&self) -> f64 {
        let isa = Isa::detect();
        let rows = self.matrix.par_chunks_exact(self.dim).enumerate();
        let of_row = |(i, x): (usize, &[f32])| {
            let x: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
            let products =
                self.matrix.chunks_exact(self.dim).take(i + 1).map(|y| exact::sum(isa, Term::Product, &x, y));
            let deviation = |(j, product)| f64::abs(product - if i == j { 1.0 } else { 0.0 });
            products.enumerate().map(deviation).fold(0.0, f64::max)
        };
        rows.map(of_row).reduce(|| 0.0, f64::max)
    }

    /// The rotated `rows` (row-major, `dim` components each): the same bits on every device. O(rows · dim²).
    ///
    /// # Errors
    /// [`Error::RaggedVectors`], [`Error::NotFinite`]; and what opening the device and running on it can meet.
    pub fn apply(&self, rows: &[f32], device: Device) -> Result<Vec<f32>> {
        self.by(&self.matrix, rows, device)
    }

    /// What [`apply`](Self::apply) rotated, rotated back by the transposed matrix.
    ///
    /// # Errors
    /// As [`apply`](Self::apply).
    pub fn apply_transposed(&self, rows: &[f32], device: Device) -> Result<Vec<f32>> {
        self.by(&self.transposed, rows, device)
    }

    fn by(&self, matrix: &[f32], rows: &[f32], device: Device) -> Result<Vec<f32>> {
        check_vectors(rows, self.dim, Input::Vectors)?;
        let cpu = || products(matrix, rows, self.dim);
        Ok(on_device(device, |device| crate::gpu::row_products(device, matrix, rows, self.dim), cpu)?.1)
    }
}

/// Σ‖x − y‖², ascending.
fn error(x: &[f32], y: &[f32]) -> f64 {
    x.iter().zip(y).map(|(&x, &y)| (f64::from(x) - f64::from(y)).powi(2)).sum()
}

/// Canonical inner products of each of `rows` with each row of a dim × dim matrix.
fn products(matrix: &[f32], rows: &[f32], dim: usize) -> Result<Vec<f32>> {
    let isa = Isa::detect();
    let mut out = host_memory::zeroed(rows.len())?;
    out.par_chunks_exact_mut(dim).zip(rows.par_chunks_exact(dim)).with_min_len(16).for_each_init(
        Vec::new,
        |x, (out, row)| {
            x.clear();
            x.extend(row.iter().map(|&x| f64::from(x)));
            for (out, y) in out.iter_mut().zip(matrix.chunks_exact(dim)) {
                *out = exact::sum(isa, Term::Product, x, y) as f32 + 0.0;
            }
        },
    );
    Ok(out)
}
