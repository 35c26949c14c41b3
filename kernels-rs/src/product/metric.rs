//! Metrics, and all decisions of kernels that depend on a metric.
//!
//! | decision | where |
//! |---|---|
//! | the terms that a canonical distance sums ([`Term`]), and the use of the sum | here |
//! | the parts of a score: scale, factor, value | here |
//! | which of two distances is better, and the worst | here |
//! | the error bound of a score | [`crate::product::bounds`] |
//!
//! Each is a `match` that names every metric. So a new metric does not compile before all of them cover it, and no
//! other code of a kernel depends on the metric.

use cuda_std::device_inline;
use cuda_std::launch::Param;
use cuda_std::math;

/// The similarity of two vectors. A kernel's argument, by value.
#[derive(Debug, Clone, Copy, Default, Param)]
#[repr(u32)]
pub enum Metric {
    /// Squared Euclidean distance: smaller is better.
    #[default]
    L2,
    /// Inner product: larger is better.
    InnerProduct,
    /// Inner product divided by both norms: larger is better.
    Cosine,
}

impl Metric {
    /// Metrics of products of vectors as they are. Rows are assigned to centroids by one of these.
    pub const UNNORMALISED: [Metric; 2] = [Metric::L2, Metric::InnerProduct];

    /// A row's part of a score: Σv² (squared L2) or 0, for a row with Σv² = `squares`.
    #[device_inline]
    pub fn value(self, squares: f64) -> f32 {
        match self {
            Metric::L2 => squares as f32,
            Metric::InnerProduct | Metric::Cosine => 0.0,
        }
    }

    /// Whether distances are divided by the norms of both vectors.
    #[device_inline]
    pub fn divides_by_norms(self) -> bool {
        match self {
            Metric::L2 | Metric::InnerProduct => false,
            Metric::Cosine => true,
        }
    }

    /// Whether a vector comes nearer to many others by being longer.
    #[device_inline]
    pub fn favors_length(self) -> bool {
        match self {
            Metric::InnerProduct => true,
            Metric::L2 | Metric::Cosine => false,
        }
    }

    /// A distance as a number of which less is better: similarities become their negatives.
    #[device_inline]
    pub fn badness(self, distance: f32) -> f32 {
        match self {
            Metric::L2 => distance,
            Metric::InnerProduct | Metric::Cosine => 0.0 - distance,
        }
    }

    /// The distance of which [`Self::badness`] is `badness`.
    #[device_inline]
    pub fn distance(self, badness: f32) -> f32 {
        match self {
            Metric::L2 => badness,
            Metric::InnerProduct | Metric::Cosine => 0.0 - badness,
        }
    }

    /// The key of a distance ([`crate::select::entry::key_of`]) as a key of which less is better.
    #[device_inline]
    pub fn order(self, key: u32) -> u32 {
        match self {
            Metric::L2 => key,
            Metric::InnerProduct | Metric::Cosine => !key,
        }
    }

    /// The distance in a slot without a neighbour.
    #[device_inline]
    pub fn worst(self) -> f32 {
        match self {
            Metric::L2 => f32::INFINITY,
            Metric::InnerProduct | Metric::Cosine => f32::NEG_INFINITY,
        }
    }
}

/// The term of a canonical distance.
pub trait Term {
    /// The term of two components.
    fn of(x: f64, y: f64) -> f64;

    /// The sum of the terms of some integer components, of the sum of their squares Σx² + Σy² and of their products,
    /// modulo 2³².
    fn of_sums(squares: i32, products: i32) -> i32;
}

/// The term of squared L2: (x − y)².
pub struct SquaredDifference;

impl Term for SquaredDifference {
    #[device_inline]
    fn of(x: f64, y: f64) -> f64 {
        (x - y) * (x - y)
    }

    #[device_inline]
    fn of_sums(squares: i32, products: i32) -> i32 {
        squares.wrapping_sub(products).wrapping_sub(products)
    }
}

/// The term of an inner product: x · y.
pub struct Product;

impl Term for Product {
    #[device_inline]
    fn of(x: f64, y: f64) -> f64 {
        x * y
    }

    #[device_inline]
    fn of_sums(_: i32, products: i32) -> i32 {
        products
    }
}

/// Evaluates `body` with the name bound to the [`Term`] of a metric.
macro_rules! with_term {
    ($metric:expr, $term:ident => $body:expr) => {
        match $metric {
            $crate::product::metric::Metric::L2 => {
                type $term = $crate::product::metric::SquaredDifference;
                $body
            }
            $crate::product::metric::Metric::InnerProduct | $crate::product::metric::Metric::Cosine => {
                type $term = $crate::product::metric::Product;
                $body
            }
        }
    };
}
pub(crate) use with_term;

/// The power of two that brings `greatest` into [2^14, 2^15); 2^14 for cosine, whose components are at most 1.
#[device_inline]
pub fn scale_of(metric: Metric, greatest: f32) -> f32 {
    match metric {
        Metric::L2 | Metric::InnerProduct => {
            // Exponent field e means 2^(e - 127); the result's field is 127 + 14 - (e - 127), limited to the normal
            // range. Zero and subnormal greatest values get the largest scale; the residual then covers the parts that
            // f16 cannot hold.
            let exponent = (greatest.to_bits() >> 23) as i32;
            f32::from_bits(((268 - exponent).clamp(1, 254) as u32) << 23)
        }
        Metric::Cosine => 16384.0,
    }
}

/// The factor that turns a product of copies with these scales into its part of a score: −2 (squared L2) or −1, divided
/// by both scales. 0 or infinite if that is outside the range of f32.
#[device_inline]
pub fn product_factor(metric: Metric, x_scale: f32, y_scale: f32) -> f32 {
    let factor = (1.0 / x_scale) * (1.0 / y_scale);
    match metric {
        Metric::L2 => -2.0 * factor,
        Metric::InnerProduct | Metric::Cosine => -factor,
    }
}

/// The factor of the components of a row with Σx² = `squares`: 1 / ‖x‖ for cosine (0 if there is no direction),
/// otherwise 1.
#[device_inline]
pub fn normaliser(metric: Metric, squares: f64) -> f64 {
    match metric {
        Metric::L2 | Metric::InnerProduct => 1.0,
        Metric::Cosine if squares == 0.0 => 0.0,
        Metric::Cosine => 1.0 / math::sqrt_f64(squares),
    }
}
