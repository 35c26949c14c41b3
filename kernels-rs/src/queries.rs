//! Half-precision copies of queries for scanning lists, each with its own scale.
//!
//! As [`crate::prepare`], with two differences. Every query has its own power of two, so one kernel reads a query twice instead of two
//! kernels reading all of them, and a batch of one query costs one launch; and what the scan needs of a query beside its copy comes
//! ready to use:
//!
//! ```text
//! v = x - centre (squared L2), x (inner product), x / |x| (cosine)
//! copy = f16(v * scale), scale = the power of two that brings the query's greatest component into [2^14, 2^15)
//! factor = -2 (L2) or -1, over the scales of query and base     // score = value of the base row + factor * product
//! error = bound of |score + shift - distance| for every row of the base           // of crate::filter, from its greatest norm and residual
//! shift = |v|^2 (L2) or 0                                        // score + shift is the distance
//! ```

use cuda_std::warp::FULL_MASK;
use cuda_std::{global, kernel, thread, unroll, warp};

use crate::canonical::squares;
use crate::element::{self, Element};
use crate::filter::{Bounds, QueryTerms};
use crate::prepare::{METRIC_COSINE, METRIC_L2, copy_row, normaliser, product_factor, row_greatest, scale_of};

/// Warps in a block of these kernels.
pub const WARPS_PER_BLOCK: u32 = 4;

/// Body of the `prepare_queries_*` kernels.
///
/// # Safety
/// As [`prepare_queries_f32`].
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "kernel parameters are passed separately so that loads stay ld.global")]
unsafe fn prepare_queries<E: Element>(
    rows: *const E::Stored,
    count: u32,
    stride: u32,
    centre: *const f32,
    metric: u32,
    base_greatest: *const u32,
    copy: *mut u16,
    copy_stride: u32,
    factors: *mut f32,
    base_bounds: *const f32,
    errors: *mut f32,
    errors_apart: u32,
    shifts: *mut f32,
) {
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
        // Floats that are not negative order like their bits.
        let scale = scale_of(metric, f32::from_bits(warp::reduce_max(FULL_MASK, greatest.to_bits())));
        let squares = if metric == METRIC_COSINE { squares::<E>(x, quads, lane) } else { 0.0 };
        let normalise = normaliser(metric, squares);
        let to = copy.wrapping_add(row as usize * copy_stride as usize);
        let (own, bounds) = copy_row::<E>(x, quads, centre, normalise, scale, to, copy_stride / 4, lane);
        if lane == 0 {
            let at = row as usize;
            let factor = product_factor(metric, scale, scale_of(metric, f32::from_bits(global::load(base_greatest))));
            global::store(factors.wrapping_add(at), factor);
            let terms = QueryTerms::new(metric, copy_stride, bounds).with_factor(factor);
            unroll::<2>(|set| {
                let y = Bounds {
                    norm: global::load_nc(base_bounds.wrapping_add(2 * set)),
                    residual: global::load_nc(base_bounds.wrapping_add(2 * set + 1)),
                };
                global::store(errors.wrapping_add(set * errors_apart as usize + at), terms.error(metric, y));
            });
            global::store(shifts.wrapping_add(at), if metric == METRIC_L2 { own as f32 } else { 0.0 });
        }
    }
}

macro_rules! define_kernels {
    ($(($element:ident, $stored:ty, $name:ident, $handle:ident, $rerank:ident, $rh:ident, $f:ident, $fh:ident))*) => {$(
        /// Writes copy, factor, shift and errors of each query (module documentation). `base_bounds` are the greatest norm and
        /// residual of the vectors, then of the centroids; `errors` are the bounds against the vectors, and `errors_apart` behind each the one
        /// against the centroids.
        ///
        /// Grid: ceil(count / 4) blocks of 128 threads, a warp a query.
        ///
        /// # Safety
        /// `rows` has `count` rows of `stride` components, `copy` as many of `copy_stride` ≥ stride, both multiples of 4; the other
        /// arrays have an entry a row; `centre` is null or has `stride` components; `base_greatest` is what `greatest_*` made.
        #[kernel(max_threads = 128)]
        pub unsafe fn $name(
            rows: *const $stored, count: u32, stride: u32, centre: *const f32, metric: u32, base_greatest: *const u32,
            copy: *mut u16, copy_stride: u32, factors: *mut f32, base_bounds: *const f32, errors: *mut f32,
            errors_apart: u32, shifts: *mut f32,
        ) {
            // SAFETY: the same contract.
            unsafe {
                prepare_queries::<element::$element>(
                    rows, count, stride, centre, metric, base_greatest, copy, copy_stride, factors, base_bounds,
                    errors, errors_apart, shifts,
                )
            }
        }
    )*};
}
crate::list_search_instances!(define_kernels);
