//! OPQ: a rotation of vectors that lowers the error of product quantization.
//!
//! # Problem
//! Sub-quantizers cannot use the correlation between sub-vectors, and work best if each has an equal share of the
//! variance. An orthogonal matrix R changes no L2 distance or inner product. Find R and codebooks that minimise Σ‖R·x −
//! y‖², where y is the vector decoded from the code of R·x.
//!
//! # Algorithm (Ge, He, Ke, Sun 2013, section 3.1, non-parametric)
//! ```text
//! R = the identity, or the polar factor of a random matrix;  codebooks by a short k-means in R's space
//!     start from the one with the smaller error
//! repeat `rounds` times:
//!     code every R·x                                                      // on the device
//!     S[m][c] = Σ x of the vectors whose code m is c, n[m][c] their number // f64, ascending
//!     codeword[m][c] = rows of part m of R · S[m][c] / n[m][c]            // their mean, rotated
//!     C = Σ y·xᵀ = Σ over m, c of codeword[m][c] · S[m][c]ᵀ               // in the rows of part m
//!     R = polar factor of C + λR                                          // orthogonal Procrustes: minimises Σ‖R·x − y‖²
//! ```
//!
//! Codewords and C both come from S, so a round reads the vectors twice and does M · dim additions per vector, while
//! the plain sum of y·xᵀ takes dim² multiplications. λ, 10⁻⁷ of C, matters only if C is singular (vectors in a
//! subspace): it then keeps R unchanged there. λ does not undo progress: the new R is no worse for C, since ⟨R', R⟩ is
//! largest at R' = R.
//!
//! The start matters most. On SIFT vectors with 8 sub-quantizers, the error after 20 rounds from the identity is 0.70
//! of the error after 20 rounds from a random rotation, and 0.76 of that from principal components with balanced
//! variance. If the order of components has no meaning, a random rotation is better than none.
//!
//! # Definition
//! The matrix is f32, row-major. Component i of the rotated vector is the canonical inner product ([`crate::metric`]:
//! f64 sums, rounded to f32 at the end) of the vector with row i, with the same bits on every device. Rotating back
//! uses columns instead of rows.

use std::borrow::Cow;

use super::gpu::rotate::row_products;
use super::linear::polar;
use super::{PqTraining, ProductQuantizer, check_shape, codes};
use crate::device::open::open;
use crate::parallel::{Loop, ParallelSlice};
use crate::product::cpu::exact;
use crate::product::cpu::exact::Term;
use crate::random::Random;
use crate::serialised::deserialised;
use crate::simd::Isa;
use crate::validate::{check_derived, check_dim, check_vectors};
use crate::{Device, Error, Input, Result, Stage, Watch, host_memory};

/// Largest number of training vectors of a rotation for each codeword, or for each component if there are more
/// components.
const POINTS: usize = 64;
/// Largest number of k-means iterations before the first round.
const FIRST_ITERATIONS: usize = 5;
/// Largest deviation from orthogonality of a given matrix.
const TOLERANCE: f64 = 1e-4;
/// Number of random sign vectors that a given matrix is tested with.
const TRIALS: usize = 32;
/// Number of products up to which the CPU rotates: a change of a few vectors then asks a device for nothing. Chosen,
/// not measured: a thousand vectors of 64 components.
const FEW_PRODUCTS: usize = 1 << 22;
/// Number of vectors of a task: the task reads the matrix once for all of them.
const ROTATED: usize = 16;

/// The state of the alternation between rounds.
struct State {
    rotation: Rotation,
    quantizer: ProductQuantizer,
    /// Codes of the rotated sample.
    codes: Vec<u8>,
}

/// An orthogonal matrix for product quantization, learned or given.
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
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Rotation {
    dim: usize,
    matrix: Vec<f32>,
    #[cfg_attr(feature = "serde", serde(skip))]
    transposed: Vec<f32>,
}

deserialised!(Rotation { dim: usize, matrix: Vec<f32> } => |dim, matrix| {
    Rotation::from_matrix(dim, matrix).map_err(|error| error.to_string())
});

impl Rotation {
    /// Learns a rotation for product quantizers of these settings from `rows` (row-major, `dim` components each). It
    /// samples 64 rows per codeword, or per component if there are more components, and fewer if the settings have
    /// fewer points per centroid. The same settings and rows give the same rotation on every device. A round costs
    /// O(sample · dim · (dim + 2^bits)).
    ///
    /// The rows of the matrix are orthonormal to 2 · 10⁻⁷: to 10⁻¹² in f64, and rounding to f32 changes an inner
    /// product of two rows by at most 2 · 2⁻²⁴.
    ///
    /// # Errors
    /// As [`ProductQuantizer::train`]; [`Error::Overflow`] if f32 cannot hold a rotated vector.
    pub fn train(settings: &PqTraining, rows: &[f32], dim: usize) -> Result<Rotation> {
        Self::train_watched(settings, rows, dim, &Watch::none())
    }

    /// As [`train`](Self::train), with a [`Watch`].
    ///
    /// # Errors
    /// As [`train`](Self::train); [`Error::Cancelled`].
    pub fn train_watched(settings: &PqTraining, rows: &[f32], dim: usize, watch: &Watch<'_>) -> Result<Rotation> {
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

        // Components in a meaningful order are best left together. Without such an order, mixing balances the variance.
        let noise: Vec<f64> = (0..dim * dim).map(|_| (0..12).map(|_| random.unit()).sum::<f64>() - 6.0).collect();
        let starts =
            std::iter::once(Self::identity(dim)).chain(polar(&noise, dim).map(|mixed| Self::rounded(dim, &mixed)));
        // The starts are compared by error, which is smallest for means.
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
        for round in 0..settings.rounds {
            watch.report(Stage::Rotating, round, settings.rounds)?;
            let (codebooks, products) = rotation.round(&quantizer, &sample, &codes);
            let Some(matrix) = rotation.procrustes(products) else { break };
            rotation = Self::rounded(dim, &matrix);
            quantizer = ProductQuantizer::from_codebooks(dim, settings.sub_quantizers, settings.bits, codebooks)?;
            let rotated = rotation.apply_finite(&sample, &places, settings.device)?;
            codes = quantizer.encode_checked(&rotated, settings.device, None)?;
        }
        Ok(rotation)
    }

    /// Rotates `sample`, the rows `places` of the caller's vectors. If f32 cannot hold a rotated vector, the error
    /// names its row.
    fn apply_finite(&self, sample: &[f32], places: &[usize], device: Device) -> Result<Vec<f32>> {
        let rotated = self.apply(sample, device)?;
        check_derived(&rotated, self.dim, "rotated vector").map_err(|error| error.with_row(|row| places[row]))?;
        Ok(rotated)
    }

    /// The updated codewords, and C.
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

    /// The orthogonal matrix nearest to C + λR; `None` if it is not unique, or if C is zero or not finite.
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

    /// The rows after the rotation, on a device; few rows on the CPU, which allocates nothing on the device and asks it
    /// for nothing.
    ///
    /// # Errors
    /// As [`apply`](Self::apply); [`Error::Overflow`] if f32 cannot hold a rotated vector.
    pub(crate) fn applied_to<'a>(&self, rows: Cow<'a, [f32]>, device: Device) -> Result<Cow<'a, [f32]>> {
        let device = if rows.len().saturating_mul(self.dim) <= FEW_PRODUCTS { Device::Cpu } else { device };
        let rows = self.apply(&rows, device)?;
        check_derived(&rows, self.dim, "rotated vector")?;
        Ok(Cow::Owned(rows))
    }

    /// The identity matrix as a rotation.
    fn identity(dim: usize) -> Rotation {
        Self::new(dim, (0..dim * dim).map(|i| if i / dim == i % dim { 1.0 } else { 0.0 }).collect())
    }

    /// Makes a rotation of a dim × dim matrix, row-major, if no entry of R·Rᵀ − I exceeds 10⁻⁴ in magnitude. The
    /// probability that a larger entry is not detected is at most 2⁻³². O(dim²) for a matrix that is orthogonal to
    /// 10⁻⁴ / dim, as most learned ones are; otherwise O(dim³).
    ///
    /// # Errors
    /// [`Error::Zero`], [`Error::NotOrthogonal`], [`Error::NotFinite`].
    pub fn from_matrix(dim: usize, matrix: Vec<f32>) -> Result<Rotation> {
        check_dim(dim)?;
        let len = matrix.len();
        if dim.checked_mul(dim) != Some(len) {
            return Err(Error::NotOrthogonal { dim, len, error: f64::INFINITY });
        }
        check_vectors(&matrix, dim, Input::Rotation)?;
        let rotation = Self::new(dim, matrix);
        // Trials cost 2 · TRIALS · dim²; all inner products cost dim³ / 2.
        if dim > 4 * TRIALS && rotation.passes_trials() {
            return Ok(rotation);
        }
        let error = rotation.orthogonality_error();
        if error > TOLERANCE { Err(Error::NotOrthogonal { dim, len, error }) } else { Ok(rotation) }
    }

    /// Whether R·Rᵀ·v − v has no component above [`TOLERANCE`] for each of [`TRIALS`] vectors v of random signs
    /// (Freivalds 1977). If an entry (i, j) of E = R·Rᵀ − I is above it, a trial fails with a probability of at least
    /// one half: the two values of component i of E·v for the two signs of v_j differ by twice the entry, so one of
    /// them is as large as the entry. A matrix with only smaller entries may fail as well. O(TRIALS · dim²).
    fn passes_trials(&self) -> bool {
        let mut random = Random::new(0x0172_0a11);
        let sign = |bits: u64, trial: usize| if bits >> trial & 1 == 0 { 1.0 } else { -1.0 };
        let signs: Vec<[f64; TRIALS]> =
            (0..self.dim).map(|_| random.bits()).map(|bits| std::array::from_fn(|trial| sign(bits, trial))).collect();
        let times = |matrix: &[f32], vectors: &[[f64; TRIALS]]| -> Vec<[f64; TRIALS]> {
            let row = |row: &[f32]| {
                let mut sums = [0.0; TRIALS];
                for (&x, vector) in row.iter().zip(vectors) {
                    sums.iter_mut().zip(vector).for_each(|(sum, v)| *sum += f64::from(x) * v);
                }
                sums
            };
            matrix.par_chunks_exact(self.dim).map(row).collect()
        };
        let products = times(&self.matrix, &times(&self.transposed, &signs));
        let deviations =
            products.iter().flatten().zip(signs.iter().flatten()).map(|(product, sign)| (product - sign).abs());
        deviations.fold(0.0, f64::max) <= TOLERANCE
    }

    /// Number of components of a vector.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// The matrix: dim × dim, row-major.
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

    /// Rotates `rows` (row-major, `dim` components each), with the same bits on every device. O(rows · dim²).
    ///
    /// # Errors
    /// [`Error::Ragged`], [`Error::NotFinite`]; and the errors of opening the device and running on it.
    pub fn apply(&self, rows: &[f32], device: Device) -> Result<Vec<f32>> {
        self.by(&self.matrix, rows, device)
    }

    /// Rotates the vectors of [`apply`](Self::apply) back, by the transposed matrix. O(rows · dim²).
    ///
    /// # Errors
    /// As [`apply`](Self::apply).
    pub fn apply_transposed(&self, rows: &[f32], device: Device) -> Result<Vec<f32>> {
        self.by(&self.transposed, rows, device)
    }

    fn by(&self, matrix: &[f32], rows: &[f32], device: Device) -> Result<Vec<f32>> {
        check_vectors(rows, self.dim, Input::Vectors)?;
        match open(device)?.1 {
            Some(runtime) => row_products(&runtime, matrix, rows, self.dim),
            None => products(matrix, rows, self.dim),
        }
    }
}

/// Σ‖x − y‖² over all components, added up in ascending order.
fn error(x: &[f32], y: &[f32]) -> f64 {
    x.iter().zip(y).map(|(&x, &y)| (f64::from(x) - f64::from(y)).powi(2)).sum()
}

/// Canonical inner products of each of `rows` with each row of a dim × dim matrix.
fn products(matrix: &[f32], rows: &[f32], dim: usize) -> Result<Vec<f32>> {
    let isa = Isa::detect();
    let mut out = host_memory::zeroed(rows.len())?;
    out.par_chunks_mut(ROTATED * dim).zip(rows.par_chunks(ROTATED * dim)).for_each_init(
        Vec::new,
        |wide, (out, rows)| {
            wide.clear();
            wide.extend(rows.iter().map(|&x| f64::from(x)));
            for (column, y) in matrix.chunks_exact(dim).enumerate() {
                for (x, out) in wide.chunks_exact(dim).zip(out.chunks_exact_mut(dim)) {
                    out[column] = exact::sum(isa, Term::Product, x, y) as f32 + 0.0;
                }
            }
        },
    );
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An orthogonal matrix of 200 × 200 without damage.
    fn rotation() -> Rotation {
        let mut random = Random::new(5);
        let noise: Vec<f64> = (0..200 * 200).map(|_| random.unit() - 0.5).collect();
        Rotation::rounded(200, &polar(&noise, 200).unwrap())
    }

    #[test]
    fn trials_pass_what_is_orthogonal_and_nothing_that_is_damaged() {
        let whole = rotation();
        assert!(whole.passes_trials());
        assert_eq!(Rotation::from_matrix(200, whole.matrix.clone()).unwrap(), whole);
        // One entry is changed, of any size, by little or by much.
        for (at, to) in [(0, 0.0), (777, 1.0), (39_999, -0.5), (20_100, whole.matrix[20_100] + 2e-3)] {
            let mut matrix = whole.matrix.clone();
            matrix[at] = to;
            let damaged = Rotation::new(200, matrix.clone());
            assert!(damaged.orthogonality_error() > TOLERANCE && !damaged.passes_trials(), "{at}, {to}");
            assert!(matches!(Rotation::from_matrix(200, matrix), Err(Error::NotOrthogonal { .. })), "{at}, {to}");
        }
        let damaged = |change: &dyn Fn(usize, f32) -> f32| {
            let matrix = whole.matrix.iter().enumerate().map(|(at, &x)| change(at, x)).collect();
            assert!(!Rotation::new(200, matrix).passes_trials());
        };
        damaged(&|at, x| if at / 200 == 30 { 0.0 } else { x });
        damaged(&|at, x| if at / 200 == 30 { whole.matrix[at + 200] } else { x });
        damaged(&|_, x| 1.001 * x);
        // The transposed matrix is also orthogonal.
        assert!(Rotation::new(200, whole.transposed.clone()).passes_trials());
    }

    #[test]
    fn what_trials_leave_open_all_products_decide() {
        // Every inner product of two rows is 0.8 of the tolerance, with the same sign: (I + a·1·1ᵀ)·R with 2a = 0.8 of
        // the tolerance.
        let whole = rotation();
        let sum = |column: usize| (0..200).map(|row| f64::from(whole.matrix[row * 200 + column])).sum::<f64>();
        let entry = |at: usize| (f64::from(whole.matrix[at]) + 0.4 * TOLERANCE * sum(at % 200)) as f32;
        let leaning = Rotation::new(200, (0..200 * 200).map(entry).collect());
        let error = leaning.orthogonality_error();
        assert!(error > 0.5 * TOLERANCE && error <= TOLERANCE && !leaning.passes_trials(), "{error}");
        assert_eq!(Rotation::from_matrix(200, leaning.matrix.clone()).unwrap(), leaning);
    }
}
