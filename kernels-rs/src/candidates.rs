//! Compaction of candidate lists between filter passes, one warp a list.
//!
//! # Problem
//! A filter pass ([`crate::filter`]) appended, for each query, rows with upper bounds u of their scores; k-selection over the
//! list gave the k-th smallest u. It may be a tighter limit, and rows whose lower bound is above the limit can go.
//!
//! # Algorithm
//! ```text
//! limit = min(limit, k-th smallest u of the list)       // the list need not hold the rows that gave the old limit
//! E = error bound of the query against the base's greatest norm and residual      // at least each row's own E
//! keep entry (u, row) if u - 2E <= limit; pack the kept ones to the front, in order
//! ```
//!
//! The first limit of a search comes from the sample alone: then there is nothing to take the minimum with, and no list.
//!
//! In place: a ballot numbers the kept entries of 32, and they move towards the front only, behind everything read.
//! A list that overflowed raises the query's flag; its survivors are then not complete and the host searches it again.

use cuda_std::warp::FULL_MASK;
use cuda_std::{global, kernel, math, thread, warp};

use crate::filter::{Bounds, QueryTerms};

/// Warps in a block of this kernel.
pub const WARPS_PER_BLOCK: u32 = 4;

/// Compacts each query's list of `counts[query]` entries (at most `stride`) from query · `stride` in `values` and `rows`,
/// and stores the new count.
///
/// `found[query · found_stride]` is the k-th smallest u; the new limit, its minimum with `limits[query]` (itself if `first` ≠
/// 0), is stored to `limits[query]`. `base_bounds` are the base's greatest norm and residual. `overflow[query]` is set to 1 if
/// the count exceeds `stride`, and left otherwise.
///
/// Grid: ceil(query_count / 4) blocks of 128 threads.
///
/// # Safety
/// All pointers cover the shapes above.
#[kernel(max_threads = 128)]
pub unsafe fn compact_candidates(
    query_count: u32,
    metric: u32,
    padded: u32,
    query_norms: *const f32,
    query_residuals: *const f32,
    base_bounds: *const f32,
    found: *const f32,
    found_stride: u32,
    first: u32,
    limits: *mut f32,
    values: *mut f32,
    rows: *mut u32,
    counts: *mut u32,
    stride: u32,
    overflow: *mut u32,
) {
    let query = (thread::block_idx_x() * WARPS_PER_BLOCK + warp::warp_id()) as usize;
    if query as u32 >= query_count {
        return;
    }
    let lane = warp::lane_id();
    // SAFETY: query < query_count; entries are read and written below min(count, stride).
    unsafe {
        let count = global::load(counts.wrapping_add(query));
        let len = count.min(stride);
        let x = Bounds {
            norm: global::load_nc(query_norms.wrapping_add(query)),
            residual: global::load_nc(query_residuals.wrapping_add(query)),
        };
        let y = Bounds { norm: global::load_nc(base_bounds), residual: global::load_nc(base_bounds.wrapping_add(1)) };
        let found = global::load_nc(found.wrapping_add(query * found_stride as usize));
        // A NaN says nothing; `min_f32` takes the other value.
        let limit = if first != 0 { found } else { math::min_f32(found, global::load(limits.wrapping_add(query))) };
        let highest = limit + 2.0 * QueryTerms::new(metric, padded, x).error(metric, y);
        let list = query * stride as usize;
        let mut kept = 0;
        let mut start = 0;
        while start < len {
            let place = start + lane;
            let exists = place < len;
            let (value, row) = if exists {
                (
                    global::load(values.wrapping_add(list + place as usize)),
                    global::load(rows.wrapping_add(list + place as usize)),
                )
            } else {
                (f32::INFINITY, 0)
            };
            #[expect(clippy::neg_cmp_op_on_partial_ord, reason = "NaN on either side must keep the row")]
            let keep = exists && !(value > highest);
            let keepers = warp::ballot(FULL_MASK, keep);
            if keep {
                let to = list + (kept + (keepers & ((1 << lane) - 1)).count_ones()) as usize;
                global::store(values.wrapping_add(to), value);
                global::store(rows.wrapping_add(to), row);
            }
            kept += keepers.count_ones();
            start += 32;
        }
        // A list of no entries has had no ballot: all lanes have read the count and the limit before they change.
        warp::sync_warp(FULL_MASK);
        if lane == 0 {
            global::store(counts.wrapping_add(query), kept);
            global::store(limits.wrapping_add(query), limit);
            if count > stride {
                global::store(overflow.wrapping_add(query), 1);
            }
        }
    }
}
