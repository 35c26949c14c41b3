//! Metrics, and the canonical distance that every back end returns to the bit.
//!
//! A fast path may evaluate vectors in any precision and order, as long as it proves which vectors can be among the
//! best k. The numbers that it *returns*, and their order, follow from one definition. [`canonical`] evaluates it here,
//! and `warpann_kernels::product::canonical` on the GPU and the emulator. So the same input gives the same bits on
//! every device and in every run.
//!
//! # Definition
//!
//! All arithmetic is IEEE binary64, round to nearest, without fused multiply-add. For vectors x, y of dimension d:
//!
//! 1. `term(i)` = (x_i − y_i)² for squared L2 (one subtraction, one multiplication), x_i · y_i otherwise.
//! 2. `acc[j]`, j in 0..128, is the sum of `term(i)` over i ≡ j (mod 128), in ascending i, starting from 0.
//! 3. `lane[l]` = (acc\[4l\] + acc\[4l+1\]) + (acc\[4l+2\] + acc\[4l+3\]), l in 0..32: the four values one lane loads
//!    at once.
//! 4. for m in 16, 8, 4, 2, 1: `lane[l]` += `lane[l ^ m]` (a butterfly; addition commutes, so all lanes agree).
//! 5. `sum` = lane\[0\]. Cosine divides it by sqrt(Σx² · Σy²), both sums formed by steps 1 to 4, and is 0 if either
//!    is 0.
//! 6. The result is `sum` rounded to f32, with −0 made +0.
//!
//! The error before step 6 is below (d/128 + 10) · 2⁻⁵³ of Σ|term|, far below that of the final rounding.
//!
//! The Hamming distance is the number of bits in which x and y differ, rounded to f32. That number is squared L2 of
//! vectors whose components are the bits.

use warpann_kernels::product::metric::Metric as KernelMetric;

use crate::element::{Element, ElementType};
use crate::names::named;
use crate::vectors::{VectorSlice, with_components};
use crate::{Error, Result};

/// The distance or similarity by which vectors are compared.
///
/// As text (command line, configuration): `l2`, `ip`, `cosine`, `hamming`.
///
/// ```
/// use warpann::Metric;
///
/// assert_eq!("ip".parse(), Ok(Metric::InnerProduct));
/// assert_eq!(Metric::InnerProduct.to_string(), "ip");
/// assert!("dot".parse::<Metric>().is_err());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Metric {
    /// Squared Euclidean distance ‖x − y‖²; smaller is better.
    #[default]
    L2,
    /// Inner product ⟨x, y⟩; larger is better.
    InnerProduct,
    /// Cosine similarity ⟨x, y⟩ / (‖x‖ ‖y‖); larger is better; 0 if either vector is zero.
    Cosine,
    /// Hamming distance: the number of bits in which x and y differ; smaller is better. Vectors are of u8, and each
    /// byte holds eight bits, so an index of 1,024 bits has dimension 128. [`FlatIndex`](crate::FlatIndex) and
    /// [`GraphIndex`](crate::GraphIndex) have this metric.
    Hamming,
}

impl Metric {
    /// All metrics, in the order of the enum.
    pub const ALL: [Metric; 4] = [Self::L2, Self::InnerProduct, Self::Cosine, Self::Hamming];
    /// The metrics of vectors whose components are numbers, which vectors of every element type have.
    pub const OF_NUMBERS: [Metric; 3] = [Self::L2, Self::InnerProduct, Self::Cosine];

    /// The metrics by which vectors of this element type can be compared: bytes can hold bits.
    pub const fn of_element(element: ElementType) -> &'static [Metric] {
        match element {
            ElementType::U8 => &Self::ALL,
            _ => &Self::OF_NUMBERS,
        }
    }

    /// Whether a larger value is a better match.
    pub const fn larger_is_better(self) -> bool {
        match self {
            Self::L2 | Self::Hamming => false,
            Self::InnerProduct | Self::Cosine => true,
        }
    }

    /// Whether components are bytes of eight bits each, which are compared.
    pub const fn compares_bits(self) -> bool {
        match self {
            Self::L2 | Self::InnerProduct | Self::Cosine => false,
            Self::Hamming => true,
        }
    }

    /// The value in a slot without a neighbour: +∞ for distances, −∞ for similarities.
    pub const fn worst(self) -> f32 {
        if self.larger_is_better() { f32::NEG_INFINITY } else { f32::INFINITY }
    }

    /// Name on the command line: `l2`, `ip`, `cosine` or `hamming`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::L2 => "l2",
            Self::InnerProduct => "ip",
            Self::Cosine => "cosine",
            Self::Hamming => "hamming",
        }
    }

    /// The order of results, best first. The caller orders equal distances by lower id.
    pub fn order(self, a: f32, b: f32) -> std::cmp::Ordering {
        if self.larger_is_better() { b.total_cmp(&a) } else { a.total_cmp(&b) }
    }

    /// Whether `distance` is as good as `radius` or better.
    pub(crate) fn within(self, distance: f32, radius: f32) -> bool {
        if self.larger_is_better() { distance >= radius } else { distance <= radius }
    }

    /// The distance as a number of which smaller is better: negated for similarities.
    pub(crate) fn badness(self, distance: f32) -> f32 {
        if self.larger_is_better() { -distance } else { distance }
    }

    /// The metric as kernels take it. For kernels of bits, whose components are bits, Hamming is squared L2.
    pub(crate) const fn of_kernel(self) -> KernelMetric {
        match self {
            Self::L2 | Self::Hamming => KernelMetric::L2,
            Self::InnerProduct => KernelMetric::InnerProduct,
            Self::Cosine => KernelMetric::Cosine,
        }
    }

    /// Whether a distance is divided by the norms of both vectors.
    pub(crate) const fn divides_by_norms(self) -> bool {
        match self {
            Self::L2 | Self::InnerProduct | Self::Hamming => false,
            Self::Cosine => true,
        }
    }

    /// The metric that gives the same distances for vectors that are already divided by their norms.
    pub(crate) const fn of_normalised(self) -> Metric {
        match self {
            Self::L2 | Self::Hamming => self,
            Self::InnerProduct | Self::Cosine => Self::InnerProduct,
        }
    }

    /// Whether distances stay the same if one vector is subtracted from all others.
    pub(crate) const fn ignores_translation(self) -> bool {
        match self {
            Self::L2 => true,
            Self::InnerProduct | Self::Cosine | Self::Hamming => false,
        }
    }

    /// Whether a vector comes nearer to many others by being longer, so that a few long ones are the neighbours of
    /// most.
    pub(crate) const fn favors_length(self) -> bool {
        match self {
            Self::InnerProduct => true,
            Self::L2 | Self::Cosine | Self::Hamming => false,
        }
    }

    /// The comparison that assigns the vectors of an inverted file to lists.
    pub(crate) const fn assigned_by(self) -> Assign {
        match self {
            Self::L2 | Self::InnerProduct | Self::Hamming => Assign::L2,
            Self::Cosine => Assign::InnerProduct,
        }
    }

    /// The comparison that chooses the lists of a query.
    pub(crate) const fn probed_by(self) -> Assign {
        match self {
            Self::L2 | Self::Hamming => Assign::L2,
            Self::InnerProduct | Self::Cosine => Assign::InnerProduct,
        }
    }

    /// The quantity that the entries of lookup tables add up to, for distances from codes.
    pub(crate) const fn looked_up_by(self) -> Assign {
        match self {
            Self::L2 | Self::Hamming => Assign::L2,
            Self::InnerProduct | Self::Cosine => Assign::InnerProduct,
        }
    }

    /// The metric that gives the same distances of vectors whose components are apart: of bits as numbers, 0 or 1,
    /// squared L2.
    pub(crate) const fn of_components(self) -> Metric {
        match self {
            Self::Hamming => Self::L2,
            Self::L2 | Self::InnerProduct | Self::Cosine => self,
        }
    }

    /// Number of components of a vector of `dim` elements: its bits under Hamming.
    pub(crate) const fn components(self, dim: usize) -> usize {
        if self.compares_bits() { dim.saturating_mul(8) } else { dim }
    }

    /// Checks that vectors of `element` can be compared by the metric.
    ///
    /// # Errors
    /// [`Error::Mismatch`]: Hamming compares bits, which are in bytes.
    pub(crate) fn check_element(self, element: ElementType) -> Result<()> {
        if Self::of_element(element).contains(&self) {
            return Ok(());
        }
        let (expected, actual) = (ElementType::U8.name(), element.name());
        Err(Error::Mismatch { what: "element type for metric hamming", expected, actual })
    }

    /// Checks that the metric compares vectors of numbers.
    ///
    /// # Errors
    /// [`Error::Mismatch`], which calls the metric `what`.
    pub(crate) fn check_numbers(self, what: &'static str) -> Result<()> {
        if Self::OF_NUMBERS.contains(&self) {
            return Ok(());
        }
        Err(Error::Mismatch { what, expected: "l2, ip or cosine", actual: self.name() })
    }

    /// Whether longer codewords rank better ([`crate::PqTraining::lengthen`]).
    pub(crate) const fn lengthens_codewords(self) -> bool {
        match self {
            Self::L2 => true,
            Self::InnerProduct | Self::Cosine | Self::Hamming => false,
        }
    }
}

named!(Metric, name, "a metric");

/// The comparison that decides which centroid is the nearest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Assign {
    /// The nearest centroid has the smallest squared L2 distance.
    L2,
    /// The nearest centroid has the largest inner product (spherical k-means, cosine).
    InnerProduct,
}

impl Assign {
    /// The comparison that k-means assigns points by.
    pub(crate) const fn of_spherical(spherical: bool) -> Assign {
        if spherical { Self::InnerProduct } else { Self::L2 }
    }

    /// Whether this is the assignment of spherical k-means.
    pub(crate) const fn is_spherical(self) -> bool {
        match self {
            Self::L2 => false,
            Self::InnerProduct => true,
        }
    }

    /// The metric whose canonical distance is compared.
    pub(crate) const fn metric(self) -> Metric {
        match self {
            Self::L2 => Metric::L2,
            Self::InnerProduct => Metric::InnerProduct,
        }
    }
}

/// The canonical distance between `x` and `y`, as the module documentation defines it. [`Metric::Hamming`] compares the
/// bits of the elements as they lie in memory. O(d).
///
/// # Panics
/// If the slices differ in length.
pub fn canonical<T: Element>(metric: Metric, x: &[T], y: &[T]) -> f32 {
    assert_eq!(x.len(), y.len(), "dimensions were checked by the caller");
    let dim = x.len().max(1);
    canonical_of(metric, VectorSlice::of(x, dim), VectorSlice::of(y, dim))
}

/// [`canonical`] of slices of one element type and length. It is not generic, so it is compiled and optimised with the
/// library, also for callers without optimisation.
fn canonical_of(metric: Metric, x: VectorSlice<'_>, y: VectorSlice<'_>) -> f32 {
    with_components!(x, x: T => canonical_typed::<T>(metric, x, y.components()))
}

fn canonical_typed<T: Element>(metric: Metric, x: &[T], y: &[T]) -> f32 {
    match metric {
        Metric::L2 => sum(x, y, |a, b| (a - b) * (a - b)) as f32 + 0.0,
        Metric::InnerProduct => sum(x, y, |a, b| a * b) as f32 + 0.0,
        Metric::Cosine => {
            let squares = sum(x, x, |a, b| a * b) * sum(y, y, |a, b| a * b);
            if squares == 0.0 { 0.0 } else { (sum(x, y, |a, b| a * b) / squares.sqrt()) as f32 + 0.0 }
        }
        Metric::Hamming => differing_bits(bytemuck::cast_slice(x), bytemuck::cast_slice(y)) as f32,
    }
}

/// Number of bits in which two components differ that are bytes.
pub(crate) fn differing_bits_of(x: f32, y: f32) -> u32 {
    (x as u8 ^ y as u8).count_ones()
}

/// Number of bits in which two slices differ.
fn differing_bits(x: &[u8], y: &[u8]) -> u64 {
    x.iter().zip(y).map(|(x, y)| u64::from((x ^ y).count_ones())).sum()
}

/// Steps 1 to 5 of the definition.
#[inline(always)]
fn sum<T: Element>(x: &[T], y: &[T], term: impl Fn(f64, f64) -> f64) -> f64 {
    let mut acc = [0.0f64; 128];
    for (x, y) in x.chunks(128).zip(y.chunks(128)) {
        for (acc, (&x, &y)) in acc.iter_mut().zip(x.iter().zip(y)) {
            *acc += term(f64::from(x.to_f32()), f64::from(y.to_f32()));
        }
    }
    let mut lane = [0.0f64; 32];
    for (lane, four) in lane.iter_mut().zip(acc.chunks_exact(4)) {
        *lane = (four[0] + four[1]) + (four[2] + four[3]);
    }
    // After the step of width m only the lanes below m contribute to lane 0, so the others are not computed.
    for m in [16, 8, 4, 2, 1] {
        for l in 0..m {
            lane[l] += lane[l + m];
        }
    }
    lane[0]
}
