//! The candidates of a row, from the rows that two searches found: as the library's `proximity::candidates` joins them.
//!
//! ```text
//! candidates = the first `degree` near rows, then the first `degree` far rows that are not among these; the row itself is left out
//! ```
//! A warp for each row. It reads 8 bytes for each found row and writes 4 for each candidate.

use cuda_std::launch::LaunchConfig;
use cuda_std::warp::{self, FULL_MASK};
use cuda_std::{Ptr, PtrMut, global, kernel, shared, thread};

use crate::NO_ROW;

/// Number of threads of a block, which is one warp.
const THREADS: u32 = 32;
/// The id of a place without a row.
const NO_ID: u64 = u64::MAX;

/// Joins the rows that two searches found for each row.
///
/// # Safety
/// The arrays are as long as the fields say. Ids of near rows are rows; those of far rows times `share` are.
#[kernel(max_threads = 32, join_candidates = join)]
pub struct JoinCandidates {
    /// For each row `k` places: the nearest rows, or `u64::MAX`. Each row at most once.
    pub near: Ptr<u64>,
    /// For each row `k` places: the nearest of every `share`-th row, by their numbers among these, or `u64::MAX`.
    pub far: Ptr<u64>,
    /// Number of places of each search: one more than `degree`, because a row finds itself.
    pub k: u32,
    /// Number of a row for each far row.
    pub share: u32,
    /// Number of the row of block 0; those of the next blocks follow.
    pub first: u32,
    /// Number of rows.
    pub count: u32,
    /// Largest number of candidates of each search.
    pub degree: u32,
    /// For each row 2 · `degree` places: the candidates, then `NO_ROW`.
    pub candidates: PtrMut<u32>,
}

impl JoinCandidates {
    /// One warp for each row.
    pub fn config(&self) -> LaunchConfig {
        LaunchConfig::linear(self.count.into(), THREADS).with_shared(4 * 2 * self.degree)
    }
}

/// # Safety
/// As [`JoinCandidates`].
#[inline(always)]
unsafe fn join(launch: JoinCandidates) {
    let JoinCandidates { near, far, k, share, first, degree, candidates, .. } = launch;
    let (lane, number) = (warp::lane_id(), thread::block_idx_x());
    let row = first + number;
    let joined = shared::dynamic::<u32>();
    let (mut count, mut near_count) = (0, 0);
    // SAFETY: for the whole body, the launch gives room for all candidates, the caller promises the shapes, and a barrier stands between writes and reads
    // of different lanes.
    unsafe {
        let mut list = 0;
        while list < 2 {
            let ids = if list == 0 { near } else { far }.wrapping_add(number as usize * k as usize);
            let most = near_count + degree;
            let mut base = 0;
            while base < k && count < most {
                let at = base + lane;
                let id = if at < k { global::load_nc(ids.wrapping_add(at as usize)) } else { NO_ID };
                // Rows have u32 numbers.
                let other = if list == 0 { id as u32 } else { (id as u32).wrapping_mul(share) };
                let mut is_new = id != NO_ID && other != row;
                if list == 1 {
                    let mut before = 0;
                    while before < near_count {
                        is_new &= joined.add(before).load() != other;
                        before += 1;
                    }
                }
                let votes = warp::ballot(FULL_MASK, is_new);
                let place = count + (votes & ((1 << lane) - 1)).count_ones();
                if is_new && place < most {
                    joined.add(place).store(other);
                }
                count = (count + votes.count_ones()).min(most);
                base += THREADS;
            }
            thread::sync_threads();
            if list == 0 {
                near_count = count;
            }
            list += 1;
        }
        let to = candidates.wrapping_add(number as usize * 2 * degree as usize);
        let mut at = lane;
        while at < 2 * degree {
            global::store(to.wrapping_add(at as usize), if at < count { joined.add(at).load() } else { NO_ROW });
            at += THREADS;
        }
    }
}
