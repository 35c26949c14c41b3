//! Range search with a fixed number of places for each query: the results of a k-nearest search are cut off at the
//! radius, and the rows within it are counted.
//!
//! # Problem
//! The number of rows within a radius has no bound, and a search that only enqueues work cannot allocate room for them.
//! So each query has k places. It gets the best k rows within the radius, and the number of all rows within it.
//!
//! # Algorithm
//! ```text
//! k best rows of each query                                // an exact search
//! for each query:  n = number of its places within the radius; the other places become empty
//!                  n < k: n is the number of rows within the radius
//!                  n = k: there may be more; the query is listed
//! for each listed query, for each piece of the base:      // a warp each
//!     add the number of rows of the piece whose canonical distance is within the radius
//! ```
//!
//! # Cost
//! One read of the results. For each query all of whose places are within the radius, the canonical distances of all
//! rows: so k should be larger than most of the numbers.

use cuda_std::launch::LaunchConfig;
use cuda_std::warp::FULL_MASK;
use cuda_std::{Ptr, PtrMut, atomic, device_inline, global, kernel, thread, warp};

use crate::flat::rescan::ScannedRows;
use crate::product::element::{self, Row, RowKey};
use crate::product::metric::Metric;

/// Number of warps in a block of these kernels.
const WARPS_PER_BLOCK: u32 = 4;
/// Number of blocks for each multiprocessor.
const BLOCKS: u64 = 3;
/// Number of words of 32 rows of a piece, of which a launch has at most [`MOST_PIECES`].
const PIECE_WORDS: u32 = 8;
const MOST_PIECES: u32 = 4096;
/// The id of a slot without a neighbour.
const NONE: u64 = u64::MAX;

/// Empties the slots whose distances are beyond the radius, counts the others, and lists the queries all of whose slots
/// are within the radius. Slots with the distance NaN, those of refused queries, stay as they are.
///
/// # Safety
/// The arrays are as long as the fields say.
#[kernel(max_threads = 128, cut_results = cut)]
pub struct CutResults {
    /// Number of queries.
    pub query_count: u32,
    /// Number of slots of a query.
    pub k: u32,
    /// The metric of the distances.
    pub metric: Metric,
    /// The radius, a distance of the metric, not NaN.
    pub radius: f32,
    /// `k` ids of each query, best first.
    pub ids: PtrMut<u64>,
    /// The distances in the same places.
    pub distances: PtrMut<f32>,
    /// The number of slots within the radius of each query that is not listed; 0 for those that are.
    pub counts: PtrMut<u32>,
    /// The number of listed queries, 0 before the launch, and then room for the numbers of `query_count` queries.
    pub listed: PtrMut<u32>,
}

impl CutResults {
    /// One warp for each query.
    pub fn config(&self) -> LaunchConfig {
        LaunchConfig::warps(self.query_count as u64, WARPS_PER_BLOCK)
    }
}

/// # Safety
/// As [`CutResults`].
#[device_inline]
unsafe fn cut(launch: CutResults) {
    let CutResults { query_count, k, metric, radius, ids, distances, counts, listed } = launch;
    let query = thread::block_idx_x() * WARPS_PER_BLOCK + warp::warp_id();
    if query >= query_count {
        return;
    }
    let lane = warp::lane_id();
    let (mut within, mut first) = (0, 0);
    // SAFETY: the query exists, and slots are below k. Whole warps return early, so all lanes vote.
    unsafe {
        while first < k {
            let slot = first + lane;
            let at = query as usize * k as usize + slot as usize;
            let mut near = false;
            if slot < k {
                let distance = global::load(distances.wrapping_add(at));
                near = global::load(ids.wrapping_add(at)) != NONE && metric.badness(distance) <= metric.badness(radius);
                if !near && !distance.is_nan() {
                    global::store(ids.wrapping_add(at), NONE);
                    global::store(distances.wrapping_add(at), metric.worst());
                }
            }
            within += warp::ballot(FULL_MASK, near).count_ones();
            first += 32;
        }
        if lane == 0 {
            let is_full = within == k;
            if is_full {
                let place = atomic::add_u32(*listed, 1);
                global::store(listed.wrapping_add(1 + place as usize), query);
            }
            global::store(counts.wrapping_add(query as usize), if is_full { 0 } else { within });
        }
    }
}

/// Adds the number of rows within the radius to the count of each listed query.
///
/// # Safety
/// The arrays are as long as the fields say. `pieces` is [`Self::pieces`].
#[kernel(
    key = RowKey,
    max_threads = 128,
    min_blocks = 3,
    RowKey::F32 => count_rows_f32 = count::<element::F32>,
    RowKey::F16 => count_rows_f16 = count::<element::F16>,
    RowKey::Bf16 => count_rows_bf16 = count::<element::Bf16>,
    RowKey::U8 => count_rows_u8 = count::<element::U8>,
    RowKey::I8 => count_rows_i8 = count::<element::I8>,
    RowKey::Bits => count_rows_bits = count::<element::Bits>,
)]
pub struct CountRows {
    /// The queries and the base.
    #[group]
    pub scanned: ScannedRows,
    /// The number of listed queries, and then their numbers.
    pub listed: Ptr<u32>,
    /// Number of pieces of the base.
    pub pieces: u32,
    /// The radius, a distance of the metric, not NaN.
    pub radius: f32,
    /// The count of each query.
    pub counts: PtrMut<u32>,
}

impl CountRows {
    /// The number of pieces of a base of `rows` rows.
    pub fn pieces(rows: u32) -> u32 {
        rows.div_ceil(32 * PIECE_WORDS).clamp(1, MOST_PIECES)
    }

    /// A fixed number of warps, which share the pieces of all listed queries.
    pub fn config(&self, multiprocessors: u32) -> LaunchConfig {
        LaunchConfig::warps(multiprocessors as u64 * BLOCKS * WARPS_PER_BLOCK as u64, WARPS_PER_BLOCK)
    }
}

/// # Safety
/// As [`CountRows`].
#[device_inline]
unsafe fn count<E: Row>(launch: CountRows) {
    let CountRows { scanned, listed, pieces, radius, counts } = launch;
    let worst = scanned.metric.badness(radius);
    let words = scanned.row_count.div_ceil(32);
    let of_piece = words.div_ceil(pieces.max(1));
    let warps = thread::grid_dim_x() * WARPS_PER_BLOCK;
    // SAFETY: the caller promises the shapes; words below `words` have rows of the base.
    unsafe {
        let items = global::load_nc(*listed) as u64 * pieces as u64;
        let mut item = (thread::block_idx_x() * WARPS_PER_BLOCK + warp::warp_id()) as u64;
        while item < items {
            let (slot, piece) = (item / pieces.max(1) as u64, (item % pieces.max(1) as u64) as u32);
            let query = global::load_nc(listed.wrapping_add(1 + slot as usize)) as usize;
            let first = (piece * of_piece).min(words);
            let mut near = 0;
            scanned.each::<E>(query, first, words.min(first + of_piece), |badness, _, takes| {
                near += (takes && badness <= worst) as u32;
            });
            let near = warp::reduce_add(FULL_MASK, near);
            if warp::lane_id() == 0 && near > 0 {
                atomic::add_u32(counts.wrapping_add(query), near);
            }
            item += warps as u64;
        }
    }
}
