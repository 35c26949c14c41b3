//! The error bound of a score from half-precision operands, on which every filter of this crate depends.
//!
//! Let x̂, ŷ be the f16 copies of [`crate::product::prepare`], and score(x, y) = ‖y‖² − 2⟨x, y⟩ or −⟨x, y⟩. A tile
//! product ([`crate::product::mainloop`]) gives v = score(x̂, ŷ). This file gives E ≥ |v − score(x, y)|.
//!
//! # The bound
//! ⟨x, y⟩ − ⟨x̂, ŷ⟩ = ⟨x − x̂, ŷ⟩ + ⟨x, y − ŷ⟩. By Cauchy and Schwarz the magnitude of this is at most ‖x − x̂‖·‖ŷ‖ +
//! ‖x‖·‖y − ŷ‖: the residuals and norms that `prepare` measured. f16 products are exact in f32. The error of an
//! addition on the tensor core is at most 2⁻²³ of the largest magnitude involved, and there are at most 18 additions
//! for 16 components, so the error of the sum is less than d·2⁻²²·‖x̂‖·‖ŷ‖ =: γ‖x̂‖‖ŷ‖. This holds for any order of the
//! additions, so it covers every instruction of [`crate::product::instruction`]: `mma.sync` and `wgmma` may give sums
//! that differ in their last bits, and either is within E. The roundings of ‖y‖², of the score, of the limit, and of
//! the canonical distance to f32 are covered by 2⁻²⁰(‖x‖² + ‖y‖²) (inner products: 2⁻²⁰‖x‖‖y‖). [`QueryTerms`] adds
//! these up with the greatest norm and residual of the tile: one number for each query and tile.
//!
//! *Dimension.* The magnitude of a partial sum grows with its own error, so the first-order bound γ is not enough for
//! every d. With a = 18/16·d·2⁻²³, the relative error of d/16 steps, the error of the sum is at most a/(1 − a). This is
//! below γ = d·2⁻²² as long as a ≤ 7/16, up to 3.2 million components. Beyond [`MOST_COMPONENTS`] = 2²¹ γ is infinite.
//!
//! *Overflow.* The magnitudes of scores, limits and canonical distances are below (‖x‖ + ‖y‖)², and their bounds not
//! much above. If either norm is 2⁶² or more ([`FARTHEST`]), that may leave the range of f32: a value ‖y‖² may be
//! infinite, a score infinite or NaN, and two distances that differ may both be +∞, a tie that the lower row wins. Such
//! a norm becomes +∞ where it is measured ([`Bounds::of_squares`]), and so does every bound that it is part of. All
//! other norms are finite, and so are all scores: (2⁶² + 2⁶²)² is 2¹²⁶.
//!
//! *Underflow.* Norms and residuals are never below 2⁻¹²⁶ ([`round_up`]), so the factors of E that are multiplied by a
//! norm of any size are normal numbers: γ‖x‖ and 2⁻²⁰‖x‖ round by at most 2⁻¹⁵⁰ each if they are subnormal or 0, and
//! the residual that they are added to has a margin of 2⁻¹²⁶. Other numbers that may be subnormal, or vanish, have an
//! error of 2⁻¹⁵⁰ for each rounding and are not multiplied any more (‖y‖², scores, limits, canonical distances,
//! 2⁻²⁰‖x‖²): 10⁻³⁵ covers all of them.
//!
//! *Scales.* One factor turns a product of copies into one of vectors: a power of two, the product of both inverse
//! scales. With components of about 10⁻¹⁸ on either side, or 10²³, it is 0 or infinite in f32, although some scores are
//! not: then every bound is infinite. A subnormal power of two is exact.
//!
//! An infinite bound keeps all rows: v − E ≤ limit is evaluated as not (v > limit + E), which holds for E = +∞ and any
//! limit and v, including NaN; v + E is then +∞ or NaN, which are last in k-selection. NaN occurs with an infinite
//! bound only.

use cuda_std::device_inline;
use cuda_std::math::{mul_add_f32, sqrt_f64};

use crate::product::metric::Metric;
use crate::product::tile::TILE_ROWS;

/// Largest number of components of a copy for which the bound is proved (module documentation, *Dimension*): half of
/// the 3.2 million for which it would be true, and the same as the CPU's. Up to this number, offsets inside a tile of
/// rows also fit 32 bits; with 2²⁵ components they would not.
pub const MOST_COMPONENTS: u32 = 1 << 21;
const _: () = assert!(TILE_ROWS.checked_mul(MOST_COMPONENTS).is_some());

/// 2⁶²: norms of this size and above have no finite bound (module documentation, *Overflow*).
pub const FARTHEST: f32 = (1u64 << 62) as f32;

/// f64 to f32, rounded up: never below `value` (≥ 0), and above it by at most the sum of 2^-20 of it and the least
/// normal f32, 2^-126.
///
/// So the result is a normal number, also if `value` is 0: the conversion alone would round a subnormal result down.
/// For a value of at least 2^-101, the least normal number changes no bit.
#[device_inline]
pub fn round_up(value: f64) -> f32 {
    (value * (1.0 + 1.0 / 1_048_576.0)) as f32 + f32::MIN_POSITIVE
}

/// The norms of one side of a pair: `norm` ≥ ‖v‖ and ‖v̂‖, `residual` ≥ ‖v − v̂‖. Each lies in 2⁻¹²⁶ .. [`FARTHEST`],
/// or is +∞.
#[derive(Clone, Copy)]
pub struct Bounds {
    /// Upper bound of the norms of the vector and its copy.
    pub norm: f32,
    /// Upper bound of the norm of the vector minus its copy.
    pub residual: f32,
}

impl Bounds {
    /// The bounds of a vector v of which `greatest` is the larger of ‖v‖² and ‖v̂‖², and `lost` is ‖v − v̂‖².
    #[device_inline]
    pub fn of_squares(greatest: f64, lost: f64) -> Bounds {
        let bound = |square: f64| {
            let root = round_up(sqrt_f64(square));
            // False if `root` is NaN.
            if root < FARTHEST { root } else { f32::INFINITY }
        };
        Bounds { norm: bound(greatest), residual: bound(lost) }
    }
}

/// E of the module documentation as a function of the base's side: E = per_norm · norm + per_residual · residual +
/// own + [`Self::of_base`].
#[derive(Clone, Copy)]
pub struct QueryTerms {
    pub(crate) per_norm: f32,
    pub(crate) per_residual: f32,
    pub(crate) own: f32,
}

impl QueryTerms {
    /// Covers rounding, also of the bound itself, upwards.
    pub(crate) const UNIT: f32 = 1.0 / 1_048_576.0;
    /// Covers the errors of subnormal results (module documentation, *Underflow*).
    const TINY: f32 = 1e-35;

    /// Whether a bound is proved for products of copies of `padded` components; otherwise all bounds are infinite.
    pub fn are_proved(metric: Metric, padded: u32) -> bool {
        match metric {
            Metric::L2 | Metric::InnerProduct | Metric::Cosine => padded <= MOST_COMPONENTS,
        }
    }

    /// γ of the module documentation for copies of `padded` components: infinite if nothing is proved. 0 is that of
    /// exact products.
    #[device_inline]
    pub fn gamma(padded: u32) -> f32 {
        if padded <= MOST_COMPONENTS { (padded + 16) as f32 * (1.0 / 4_194_304.0) } else { f32::INFINITY }
    }

    /// The terms of a query, for copies of `padded` components.
    #[device_inline]
    pub fn new(metric: Metric, padded: u32, x: Bounds) -> QueryTerms {
        QueryTerms::with_gamma(metric, QueryTerms::gamma(padded), x)
    }

    /// The terms of a query of norm at most `norm`, for exact products of vectors without residuals: what covers the
    /// roundings of numbers to f32.
    #[device_inline]
    pub fn exact(metric: Metric, norm: f32) -> QueryTerms {
        QueryTerms::with_gamma(metric, 0.0, Bounds { norm, residual: 0.0 })
    }

    /// The terms of a query, for products with [`gamma`](Self::gamma).
    #[device_inline]
    pub fn with_gamma(metric: Metric, gamma: f32, x: Bounds) -> QueryTerms {
        let per_norm = x.residual + gamma * x.norm;
        let up = 1.0 + Self::UNIT;
        match metric {
            Metric::L2 => {
                let own = Self::UNIT * x.norm * x.norm * up + Self::TINY;
                QueryTerms { per_norm: 2.0 * per_norm * up, per_residual: 2.0 * x.norm * up, own }
            }
            Metric::InnerProduct | Metric::Cosine => {
                let per_norm = (per_norm + Self::UNIT * x.norm) * up;
                QueryTerms { per_norm, per_residual: x.norm * up, own: Self::TINY }
            }
        }
    }

    /// These terms for products with the factor `factor` ([`crate::product::metric::product_factor`]). The bound is
    /// infinite if the factor left the range of f32.
    #[device_inline]
    pub fn with_factor(self, factor: f32) -> QueryTerms {
        let lost = factor == 0.0 || !factor.is_finite();
        QueryTerms { own: if lost { f32::INFINITY } else { self.own }, ..self }
    }

    /// The part of the bound that depends on the base's side only.
    #[device_inline]
    pub fn of_base(metric: Metric, y: Bounds) -> f32 {
        match metric {
            Metric::L2 => Self::UNIT * y.norm * y.norm * (1.0 + Self::UNIT),
            Metric::InnerProduct | Metric::Cosine => 0.0,
        }
    }

    /// The error bound against `y`, added to `start`.
    #[device_inline]
    pub fn error_from(&self, start: f32, y: Bounds) -> f32 {
        mul_add_f32(self.per_norm, y.norm, mul_add_f32(self.per_residual, y.residual, start))
    }

    /// The error bound against `y`.
    #[device_inline]
    pub fn error(&self, metric: Metric, y: Bounds) -> f32 {
        self.error_from(self.own + Self::of_base(metric, y), y)
    }
}
