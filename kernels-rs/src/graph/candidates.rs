//! The candidates of rows, list by list: as the library's `graph::candidates` appends them.
//!
//! ```text
//! candidates = those before, then the first `most` rows that a search found and that are not among these; the row itself is left out
//! ```
//! A warp for each row. It reads 8 bytes for each found row, and reads and writes the candidates, 4 bytes each.

use cuda_std::launch::LaunchConfig;
use cuda_std::warp::{self, FULL_MASK};
use cuda_std::{Ptr, PtrMut, global, kernel, shared, thread};

use crate::NO_ROW;

/// Number of threads of a block, which is one warp.
const THREADS: u32 = 32;
/// The id of a place without a row.
const NO_ID: u64 = u64::MAX;

/// Appends the rows that a search found for each row to the candidates of the row.
///
/// # Safety
/// The arrays are as long as the fields say. Ids times `share` are rows. The places of candidates that are taken come
/// first.
#[kernel(max_threads = 32, append_candidates = append)]
pub struct AppendCandidates {
    /// For each row `most` + 1 places, because a row may find itself: the nearest of every `share`-th row, by their
    /// numbers among these, or `u64::MAX`. Each row at most once.
    pub found: Ptr<u64>,
    /// Largest number of candidates of this search.
    pub most: u32,
    /// Number of rows for each that the search knows.
    pub share: u32,
    /// Number of the row of block 0; those of the next blocks follow.
    pub first: u32,
    /// Number of rows.
    pub count: u32,
    /// For each row `width` places: the candidates, then `NO_ROW`.
    pub candidates: PtrMut<u32>,
    /// Number of places of a row.
    pub width: u32,
}

impl AppendCandidates {
    /// One warp for each row.
    pub fn config(&self) -> LaunchConfig {
        LaunchConfig::linear(self.count.into(), THREADS).with_shared(4 * self.width)
    }
}

/// # Safety
/// As [`AppendCandidates`].
#[inline(always)]
unsafe fn append(launch: AppendCandidates) {
    let AppendCandidates { found, most, share, first, candidates, width, .. } = launch;
    let (lane, number) = (warp::lane_id(), thread::block_idx_x());
    let row = first + number;
    let before = shared::dynamic::<u32>();
    let found = found.wrapping_add(number as usize * (most + 1) as usize);
    let candidates = candidates.wrapping_add(number as usize * width as usize);
    // SAFETY: for the whole body, the launch gives room for all candidates, the caller promises the shapes, and a
    // barrier stands between writes and reads of different lanes.
    unsafe {
        let (mut taken, mut base) = (0, 0);
        while base < width {
            let at = base + lane;
            let other = if at < width { global::load(candidates.wrapping_add(at as usize)) } else { NO_ROW };
            if other != NO_ROW {
                before.add(at).store(other);
            }
            taken += warp::ballot(FULL_MASK, other != NO_ROW).count_ones();
            base += THREADS;
        }
        thread::sync_threads();
        let end = width.min(taken + most);
        let (mut count, mut base) = (taken, 0);
        while base <= most && count < end {
            let at = base + lane;
            let id = if at <= most { global::load_nc(found.wrapping_add(at as usize)) } else { NO_ID };
            // Rows have u32 numbers.
            let other = (id as u32).wrapping_mul(share);
            let mut is_new = id != NO_ID && other != row;
            let mut place = 0;
            while place < taken {
                is_new &= before.add(place).load() != other;
                place += 1;
            }
            let votes = warp::ballot(FULL_MASK, is_new);
            let place = count + (votes & ((1 << lane) - 1)).count_ones();
            if is_new && place < end {
                global::store(candidates.wrapping_add(place as usize), other);
            }
            count += votes.count_ones();
            base += THREADS;
        }
    }
}
