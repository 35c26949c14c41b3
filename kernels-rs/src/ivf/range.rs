//! Counts the candidates of a query that may lie within a radius.
//!
//! Range search returns every vector whose distance is at most a radius. Scores v bound distances: distance ≥ v + shift
//! − E. So every vector within the radius has v + shift − E ≤ radius. E is one number for each query, so these vectors
//! are the first of the row in the order of scores. Their count is the number of vectors to select and re-rank
//! ([`crate::ivf::rerank`]). Cost: one read of the scores.

use cuda_std::launch::LaunchConfig;
use cuda_std::warp::FULL_MASK;
use cuda_std::{Ptr, PtrMut, device_inline, global, kernel, shared_array, thread, warp};

/// Number of threads of a block.
pub const THREADS: u32 = 128;

/// Counts the scores of each query's row with score + shift − error ≤ `radius`. NaN scores count. Infinite scores of
/// padding count only if the sum of radius and error is infinite or NaN.
///
/// # Safety
/// The arrays are as long as the fields say.
#[kernel(max_threads = 128, count_within = count)]
pub struct CountWithin {
    /// The rows of scores, up to the end that `row_starts` gives.
    pub scores: Ptr<f32>,
    /// The start of each query's row, and the end of the last row: one entry more than queries.
    pub row_starts: Ptr<u64>,
    /// The shift of each query; absent: 0.
    pub shifts: Option<Ptr<f32>>,
    /// The error bound of each query's scores.
    pub errors: Ptr<f32>,
    /// The radius, as a distance of which smaller is better.
    pub radius: f32,
    /// The count of each query.
    pub counts: PtrMut<u32>,
}

impl CountWithin {
    /// One block for each of `queries` queries.
    pub fn config(&self, queries: u64) -> LaunchConfig {
        LaunchConfig::linear(queries, THREADS)
    }
}

/// # Safety
/// As [`CountWithin`].
#[device_inline]
unsafe fn count(launch: CountWithin) {
    let CountWithin { scores, row_starts, shifts, errors, radius, counts } = launch;
    let sums = shared_array!(u32, 4);
    let query = thread::block_idx_x() as usize;
    let thread = thread::thread_idx_x();
    // SAFETY: the caller promises the shapes; four warps write four sums before the barrier.
    unsafe {
        let start = global::load_nc(row_starts.wrapping_add(query));
        let end = global::load_nc(row_starts.wrapping_add(query + 1));
        let shift = match shifts {
            Some(shifts) => global::load_nc(shifts.wrapping_add(query)),
            None => 0.0,
        };
        // f64, so that rounding does not drop a vector.
        let limit = radius as f64 - shift as f64 + global::load_nc(errors.wrapping_add(query)) as f64;
        let mut own = 0u32;
        let mut at = start + thread as u64;
        while at < end {
            let score = global::load_nc(scores.wrapping_add(at as usize)) as f64;
            #[expect(clippy::neg_cmp_op_on_partial_ord, reason = "NaN on either side must count")]
            let within = !(score > limit);
            own += within as u32;
            at += THREADS as u64;
        }
        let of_warp = warp::reduce_add(FULL_MASK, own);
        if warp::lane_id() == 0 {
            sums.add(warp::warp_id()).store(of_warp);
        }
        thread::sync_threads();
        if thread == 0 {
            let total = sums.load() + sums.add(1).load() + sums.add(2).load() + sums.add(3).load();
            global::store(counts.wrapping_add(query), total);
        }
    }
}
