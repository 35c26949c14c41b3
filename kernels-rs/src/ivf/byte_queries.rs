//! Queries of bytes, or of bits, for the scan of vectors of bytes ([`crate::ivf::encoding::bytes`]): the factor of
//! their products, the bound of a score's error, and the shift from a score to a distance. The queries themselves are
//! the operands.
//!
//! # Cost
//! One read of the queries, one warp a query.

use cuda_std::launch::LaunchConfig;
use cuda_std::{Ptr, PtrMut, device_inline, global, kernel, thread, warp};

use crate::product::bounds::{Bounds, QueryTerms};
use crate::product::canonical::squares;
use crate::product::element::{Bits, ExactKey, I8, Row, U8};
use crate::product::metric::{Metric, normaliser};
use crate::product::prepare_bytes::row_norm;

/// Number of warps in a block of these kernels.
const WARPS_PER_BLOCK: u32 = 4;

/// Writes factor, shift and error of each query.
///
/// # Safety
/// The arrays are as long as the fields say.
#[kernel(
    key = ExactKey,
    max_threads = 128,
    ExactKey::U8 => prepare_byte_queries_u8 = prepare::<U8>,
    ExactKey::I8 => prepare_byte_queries_i8 = prepare::<I8>,
    ExactKey::Bits => prepare_byte_queries_bits = prepare::<Bits>,
)]
pub struct PrepareByteQueries {
    /// `count` queries of `stride` bytes.
    pub rows: Ptr<u8>,
    /// Number of queries.
    pub count: u32,
    /// Distance from one query to the next in bytes: a multiple of 4, zero padded.
    pub stride: u32,
    /// The metric of the scores.
    pub metric: Metric,
    /// The greatest norm of the vectors: one number.
    pub base_norm: Ptr<f32>,
    /// The factor of each query.
    pub factors: PtrMut<f32>,
    /// The error bound of each query against the vectors.
    pub errors: PtrMut<f32>,
    /// The shift of each query.
    pub shifts: PtrMut<f32>,
}

impl PrepareByteQueries {
    /// One warp for each query.
    pub fn config(&self) -> LaunchConfig {
        LaunchConfig::warps(self.count as u64, WARPS_PER_BLOCK)
    }
}

/// # Safety
/// As [`PrepareByteQueries`].
#[device_inline]
unsafe fn prepare<E: Row>(launch: PrepareByteQueries) {
    let PrepareByteQueries { rows, count, stride, metric, base_norm, factors, errors, shifts } = launch;
    let row = thread::block_idx_x() * WARPS_PER_BLOCK + warp::warp_id();
    if row >= count {
        return;
    }
    let at = row as usize;
    // SAFETY: the caller promises the shapes; row < count.
    unsafe {
        let x = rows.cast::<E::Stored>().wrapping_add(at * stride as usize);
        let squares = squares::<E>(x, stride / 4, warp::lane_id());
        if warp::lane_id() == 0 {
            let factor = match metric {
                Metric::L2 => -2.0,
                Metric::InnerProduct => -1.0,
                Metric::Cosine => -normaliser(metric, squares) as f32,
            };
            let y = Bounds { norm: global::load_nc(*base_norm), residual: 0.0 };
            let terms = QueryTerms::exact(metric, row_norm(metric, squares));
            global::store(factors.wrapping_add(at), factor);
            global::store(errors.wrapping_add(at), terms.error(metric, y));
            global::store(shifts.wrapping_add(at), metric.value(squares));
        }
    }
}
