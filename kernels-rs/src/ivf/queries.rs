//! Half-precision copies of queries for the scan of lists, each with its own scale.
//!
//! This is [`crate::product::prepare`] with two differences. Every query has its own power of two, so one kernel reads
//! a query twice instead of two kernels reading all of them, and a batch of one query costs one launch. The other
//! numbers of a query that the scan needs are computed here too:
//!
//! ```text
//! v = x - centre (squared L2), x (inner product), x / |x| (cosine)
//! copy = f16(v * scale), scale = the power of two that brings the query's greatest |component| into [2^14, 2^15)
//! factor = -2 (L2) or -1, over the scales of query and base     // score = value of the base row + factor * product
//! error = bound of |score + shift - distance| for every row of the base      // crate::product::bounds, by the base's greatest norm and residual
//! shift = |v|^2 (L2) or 0                                        // score + shift is the distance
//! ```
//!
//! Queries for codes of normalised vectors are normalised before, and also compared with centroids by inner product. So
//! their operands are those of inner product. Their distances from the codes are cosines, which divide by |x| as well.
//! |x| is nearly 1, and no cosine exceeds 1, so the error grows by
//! ||x| - 1| at most.

use cuda_std::launch::LaunchConfig;
use cuda_std::warp::FULL_MASK;
use cuda_std::{Ptr, PtrMut, device_inline, global, kernel, math, thread, unroll, warp};

use crate::product::bounds::{Bounds, QueryTerms, round_up};
use crate::product::canonical::squares;
use crate::product::element::{self, Element, ElementKey};
use crate::product::metric::{Metric, normaliser, product_factor, scale_of};
use crate::product::prepare::{RowOperand, copy_row, row_greatest};

/// Number of warps in a block of these kernels.
pub const WARPS_PER_BLOCK: u32 = 4;

/// Writes copy, factor, shift and errors of each query; see the module documentation.
///
/// # Safety
/// All pointers that are present cover the shapes of their fields.
#[kernel(
    key = ElementKey,
    max_threads = 128,
    ElementKey::F32 => prepare_queries_f32 = prepare_queries::<element::F32>,
    ElementKey::F16 => prepare_queries_f16 = prepare_queries::<element::F16>,
    ElementKey::Bf16 => prepare_queries_bf16 = prepare_queries::<element::Bf16>,
    ElementKey::U8 => prepare_queries_u8 = prepare_queries::<element::U8>,
    ElementKey::I8 => prepare_queries_i8 = prepare_queries::<element::I8>,
)]
pub struct PrepareQueries {
    /// `count` queries of `stride` components, of the type of the key.
    pub rows: Ptr<u8>,
    /// Number of queries.
    pub count: u32,
    /// Distance from one query to the next in components: a multiple of 4, zero padded.
    pub stride: u32,
    /// `stride` components that are subtracted from each query; absent: no centre.
    pub centre: Option<Ptr<f32>>,
    /// The metric of the scores.
    pub metric: Metric,
    /// Bits of the greatest |component| of the base, from [`crate::product::prepare::Greatest`]: one word.
    pub base_greatest: Ptr<u32>,
    /// f16 copies: `count` rows of `copy_stride` components.
    pub copy: PtrMut<u16>,
    /// Distance from one copy to the next in components: a multiple of 4, at least `stride`.
    pub copy_stride: u32,
    /// The factor of each query.
    pub factors: PtrMut<f32>,
    /// 1 if distances from the vectors are cosines, and the metric of the scores is inner product.
    pub cosines: u32,
    /// Four numbers: the greatest norm and residual of the vectors, then those of the centroids.
    pub base_bounds: Ptr<f32>,
    /// The error bound of each query against the vectors, and `errors_apart` places after it the one against the
    /// centroids. The array has `errors_apart` + `count` numbers.
    pub errors: PtrMut<f32>,
    /// Distance from a query's first error bound to its second.
    pub errors_apart: u32,
    /// The shift of each query.
    pub shifts: PtrMut<f32>,
}

impl PrepareQueries {
    /// One warp for each query.
    pub fn config(&self) -> LaunchConfig {
        LaunchConfig::warps(self.count as u64, WARPS_PER_BLOCK)
    }
}

/// # Safety
/// As [`PrepareQueries`].
#[device_inline]
unsafe fn prepare_queries<E: Element>(launch: PrepareQueries) {
    let PrepareQueries { count, stride, centre, metric, base_greatest, copy, copy_stride, .. } = launch;
    let PrepareQueries { factors, base_bounds, cosines, errors, errors_apart, shifts, .. } = launch;
    let rows = launch.rows.cast::<E::Stored>();
    let row = thread::block_idx_x() * WARPS_PER_BLOCK + warp::warp_id();
    if row >= count {
        return;
    }
    let lane = warp::lane_id();
    let quads = stride / 4;
    let x = rows.wrapping_add(row as usize * stride as usize);
    // SAFETY: the caller promises the shapes; row < count.
    unsafe {
        let greatest = row_greatest::<E>(x, quads, centre, lane);
        // Floats that are not negative have the order of their bits.
        let scale = scale_of(metric, f32::from_bits(warp::reduce_max(FULL_MASK, greatest.to_bits())));
        let squares = if metric.divides_by_norms() { squares::<E>(x, quads, lane) } else { 0.0 };
        let normalise = normaliser(metric, squares);
        let to = copy.wrapping_add(row as usize * copy_stride as usize);
        let operand = RowOperand::<E> { x, quads, centre, normalise, scale };
        let (own, bounds) = copy_row(operand, to, copy_stride / 4, lane);
        if lane == 0 {
            let at = row as usize;
            let factor = product_factor(metric, scale, scale_of(metric, f32::from_bits(global::load(*base_greatest))));
            global::store(factors.wrapping_add(at), factor);
            let terms = QueryTerms::new(metric, copy_stride, bounds).with_factor(factor);
            // The distances of a zero query are 0, as its scores are.
            let of_length = if cosines == 0 || own == 0.0 { 0.0 } else { round_up((math::sqrt_f64(own) - 1.0).abs()) };
            unroll::<2>(|set| {
                let y = Bounds {
                    norm: global::load_nc(base_bounds.wrapping_add(2 * set)),
                    residual: global::load_nc(base_bounds.wrapping_add(2 * set + 1)),
                };
                let error = terms.error(metric, y) + if set == 0 { of_length } else { 0.0 };
                global::store(errors.wrapping_add(set * errors_apart as usize + at), error);
            });
            global::store(shifts.wrapping_add(at), metric.value(own));
        }
    }
}
