//! The candidates of rows, list by list: as the library's `graph::candidates` appends them.
//!
//! ```text
//! candidates = those before, then the first `most` rows that a search found and that are not among these; the row itself is left out
//! ```
//! A warp for each row. It reads 8 bytes for each found row, and reads and writes the candidates, 4 bytes each.

use cuda_std::launch::LaunchConfig;
use cuda_std::shared::SharedPtr;
use cuda_std::warp::{self, FULL_MASK};
use cuda_std::{Ptr, PtrMut, device_inline, global, kernel, shared, thread};

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
#[device_inline]
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
        let taken = load_candidates(candidates, width, before);
        let end = width.min(taken + most);
        let (mut count, mut base) = (taken, 0);
        while base <= most && count < end {
            let at = base + lane;
            let id = if at <= most { global::load_nc(found.wrapping_add(at as usize)) } else { NO_ID };
            // Rows have u32 numbers.
            let other = (id as u32).wrapping_mul(share);
            let mut is_new = id != NO_ID && other != row;
            is_new &= !is_among(before, taken, other);
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

/// Copies the candidates of a row, the first of `width` places, to shared memory. Returns their number. All lanes of
/// the warp, which is the block, arrive; ends with a barrier.
///
/// # Safety
/// There are `width` places, also in shared memory, and no lane reads that any more.
#[device_inline]
pub(super) unsafe fn load_candidates(candidates: *const u32, width: u32, to: SharedPtr<u32>) -> u32 {
    let (mut taken, mut base) = (0, 0);
    while base < width {
        let at = base + warp::lane_id();
        // SAFETY: the place exists.
        let other = if at < width { unsafe { global::load(candidates.wrapping_add(at as usize)) } } else { NO_ROW };
        if other != NO_ROW {
            // SAFETY: there is room for all places.
            unsafe { to.add(at).store(other) };
        }
        taken += warp::ballot(FULL_MASK, other != NO_ROW).count_ones();
        base += THREADS;
    }
    thread::sync_threads();
    taken
}

/// Whether a row is among the first `count` in shared memory.
///
/// # Safety
/// So many are there, and no lane writes them.
#[device_inline]
pub(super) unsafe fn is_among(rows: SharedPtr<u32>, count: u32, row: u32) -> bool {
    let (mut found, mut at) = (false, 0);
    while at < count {
        // SAFETY: at < count.
        found |= unsafe { rows.add(at).load() } == row;
        at += 1;
    }
    found
}
