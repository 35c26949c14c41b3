//! How far the roundings of codes may mislead a walk, for device and host.
//!
//! A code differs from the scaled component by a rounding: an error that is uniform between −½ and ½ where nothing was
//! clamped, with a mean square of 1/12. Errors of different components are taken for independent. So the distance of
//! two vectors, in units of codes, has an error of deviation √(2/12), and the inner product of x and y one of √((‖x‖² +
//! ‖y‖²)/12). [`DEVIATIONS`] of these are allowed for.
//!
//! Both questions of a walk compare two nodes of one beam:
//!
//! - Which nodes may be among the k best? Those [within](Tolerance::within) the tolerance of the k-th: they are ranked
//!   by their vectors.
//! - May nodes outside of the beam be nearer than some inside? If the last node of a full beam is [as near as the
//!   first](Tolerance::ties), codes cannot tell, and the query walks by vectors instead. Near-duplicates and equal
//!   vectors make such beams.
//!
//! All operations are IEEE binary32, round to nearest, so host and device agree to the bit.

use cuda_std::device_inline;
use cuda_std::math::sqrt_f32;

use crate::product::metric::Metric;

/// Deviations of an error that are allowed for.
pub const DEVIATIONS: f32 = 6.0;

/// How far the codes of a query and of rows may mislead its walk.
#[derive(Debug, Clone, Copy)]
pub struct Tolerance {
    products: bool,
    most: f32,
}

impl Tolerance {
    /// That of a query whose codes have the sum of squares `query_square`, among rows with at most `greatest_square`.
    /// `metric` is that of the codes: squared L2 or the inner product.
    #[device_inline]
    pub fn new(metric: Metric, query_square: u32, greatest_square: u32) -> Self {
        if metric.favors_length() {
            let squares = query_square as f32 + greatest_square as f32;
            Self { products: true, most: DEVIATIONS * sqrt_f32(squares / 12.0) }
        } else {
            Self { products: false, most: DEVIATIONS * sqrt_f32(1.0 / 6.0) }
        }
    }

    /// The value of a key to which the error is added: a distance, or the negative of a product.
    #[device_inline]
    fn value(self, key: u32) -> f32 {
        if self.products { (key ^ 1 << 31) as i32 as f32 } else { sqrt_f32(key as f32) }
    }

    /// Whether the node of `key`, which is not less than `nearer`, may be as near as that of `nearer`.
    #[device_inline]
    pub fn within(self, nearer: u32, key: u32) -> bool {
        self.value(key) - self.value(nearer) <= self.most
    }

    /// Whether codes cannot order a full beam, whose first and last nodes have these keys.
    #[device_inline]
    pub fn ties(self, first: u32, last: u32) -> bool {
        self.value(last) - self.value(first) <= 2.0 * self.most
    }
}
