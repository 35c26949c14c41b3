//! Compaction of candidate lists between filter passes, with one warp for each list.
//!
//! # Problem
//! For each query, a filter pass ([`crate::flat::filter`]) appended rows with upper bounds u of their scores, and
//! k-selection found the k-th smallest u of the list. This number may be a tighter threshold than the old one. Rows
//! whose lower bound is above the threshold can be dropped.
//!
//! # Algorithm
//! ```text
//! threshold = min(threshold, k-th smallest u of the list)       // the list need not hold the rows that gave the old threshold
//! E = error bound of the query against the base's greatest norm and residual      // at least the E of each row
//! keep entry (u, row) if u - 2E <= threshold; pack the kept entries to the front, in order
//! ```
//!
//! The first threshold of a search comes from the sample alone. At that point there is no older threshold and no list.
//!
//! A threshold that is an estimate ([`crate::flat::sample_rows`]) is proved here: if the k-th smallest u of the list is
//! above it, or there is none, rows may be missing.
//!
//! The compaction is in place: a ballot numbers the kept entries of 32, and each entry moves only towards the front, to
//! a place that was read before. A list that overflowed, or lacks the proof of an estimate, sets the flag of the query.
//! The list is then not complete, and the query must be searched again: by the host, which reads the flags, or by
//! [`crate::flat::rescan`], which takes the list of these queries.

use cuda_std::launch::LaunchConfig;
use cuda_std::warp::FULL_MASK;
use cuda_std::{Ptr, PtrMut, atomic, device_inline, global, kernel, math, thread, warp};

use crate::product::bounds::{Bounds, QueryTerms};
use crate::product::metric::Metric;

/// Number of warps in a block of this kernel.
const WARPS_PER_BLOCK: u32 = 4;

/// Tightens the threshold of each query, and drops the entries of its list that the threshold excludes.
///
/// # Safety
/// The arrays are as long as the fields say.
#[kernel(max_threads = 128, compact_candidates = compact)]
pub struct CompactCandidates {
    /// Number of queries; each has one list.
    pub query_count: u32,
    /// The metric of the scores.
    pub metric: Metric,
    /// The γ of products ([`QueryTerms::gamma`]).
    pub gamma: f32,
    /// Upper bound of the norm of each query.
    pub query_norms: Ptr<f32>,
    /// Upper bound of the residual of each query: the norm of the query minus its f16 copy. Absent: no residuals.
    pub query_residuals: Option<Ptr<f32>>,
    /// The base's greatest norm and greatest residual: two numbers.
    pub base_bounds: Ptr<f32>,
    /// The k-th smallest u of the list of query q, at place q · `found_stride`; NaN if the list has fewer than k
    /// entries. The array has (`query_count` − 1) · `found_stride` + 1 numbers.
    pub found: Ptr<f32>,
    /// Distance from the number of one query in `found` to that of the next.
    pub found_stride: u32,
    /// Not 0: `thresholds` is not set yet, and `found` becomes the threshold.
    pub first: u32,
    /// Not 0: `thresholds` are estimates, which `found` must prove.
    pub estimated: u32,
    /// The threshold of each query; the launch updates it.
    pub thresholds: PtrMut<f32>,
    /// Upper bounds u of the list entries, `query_count` · `stride` numbers: the list of query q starts at q ·
    /// `stride`.
    pub values: PtrMut<f32>,
    /// The base row of each entry of `values`.
    pub rows: PtrMut<u32>,
    /// The length of each list, which may be above `stride` after an overflow; becomes the number of entries that stay.
    pub counts: PtrMut<u32>,
    /// Capacity of a list, and distance from one list to the next, in entries.
    pub stride: u32,
    /// A flag for each query: becomes 1 if the list was longer than `stride`, or an estimate is not proved, and does
    /// not change otherwise.
    pub overflow: PtrMut<u32>,
    /// The number of queries whose flags are set, and then their numbers in any order: `query_count` + 1 words, of
    /// which the first starts as 0.
    pub overflowed: PtrMut<u32>,
}

impl CompactCandidates {
    /// One warp for each query.
    pub fn config(&self) -> LaunchConfig {
        LaunchConfig::warps(self.query_count as u64, WARPS_PER_BLOCK)
    }
}

/// # Safety
/// As [`CompactCandidates`].
#[device_inline]
unsafe fn compact(launch: CompactCandidates) {
    let CompactCandidates { query_count, metric, gamma, query_norms, query_residuals, base_bounds, .. } = launch;
    let CompactCandidates { found, found_stride, first, thresholds, values, rows, counts, stride, overflow, .. } =
        launch;
    let CompactCandidates { estimated, overflowed, .. } = launch;
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
            residual: query_residuals.map_or(0.0, |of| global::load_nc(of.wrapping_add(query))),
        };
        let y = Bounds { norm: global::load_nc(*base_bounds), residual: global::load_nc(base_bounds.wrapping_add(1)) };
        let found = global::load_nc(found.wrapping_add(query * found_stride as usize));
        let old = if first != 0 { found } else { global::load(thresholds.wrapping_add(query)) };
        // `min_f32` ignores a NaN and returns the other number.
        let threshold = math::min_f32(found, old);
        // An infinite threshold leaves no row out. NaN, where the list has fewer than k entries, proves nothing.
        let is_proved = estimated == 0 || found <= old || old == f32::INFINITY;
        let highest = threshold + 2.0 * QueryTerms::with_gamma(metric, gamma, x).error(metric, y);
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
        // An empty list has no ballot. This barrier makes sure that all lanes have read the count and the threshold
        // before they change.
        warp::sync_warp(FULL_MASK);
        if lane == 0 {
            global::store(counts.wrapping_add(query), kept);
            global::store(thresholds.wrapping_add(query), threshold);
            if count > stride || !is_proved {
                if global::load(overflow.wrapping_add(query)) == 0 {
                    let place = atomic::add_u32(*overflowed, 1);
                    global::store(overflowed.wrapping_add(1 + place as usize), query as u32);
                }
                global::store(overflow.wrapping_add(query), 1);
            }
        }
    }
}
