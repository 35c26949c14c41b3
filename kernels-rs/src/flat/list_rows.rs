//! The rows that each query of a batch may find, one list for each query.
//!
//! # Problem
//! Queries of one launch have filters of their own. The canonical distances of listed rows
//! ([`crate::product::canonical`]) need a list of row numbers for each query, with one distance from list to list. The
//! host has sets of rows, several queries may have the same set, and what it sends over the bus should be small.
//!
//! # Algorithm
//! A set comes in the form that has fewer words: its row numbers, ascending, or a bit for each row. It comes once, and
//! each query has the place of its set. One block makes the list of a query. Numbers are copied. Of bits, each thread
//! takes a word of 32; the sum of the counts before it, over the warp and then over the block, is the place of its
//! first number. So lists ascend in both forms.
//!
//! # Cost
//! For m of n rows min(m, n / 32) words over the bus for each set, m writes for each query, and the same number of
//! reads as words. Not measured on a GPU.

use cuda_std::launch::LaunchConfig;
use cuda_std::{Ptr, PtrMut, device_inline, global, kernel, thread, warp};

/// Number of threads of a block.
const THREADS: u32 = 256;
/// Number of warps of a block.
const WARPS: u32 = THREADS / 32;

/// Writes the list of each query.
///
/// # Safety
/// The arrays are as long as the fields say. A set has as many words as its form needs, its numbers or bits are as many
/// as `counts` says, and no count exceeds `stride`.
#[kernel(max_threads = 256, list_rows = list)]
pub struct ListRows {
    /// Number of queries; each has one list.
    pub query_count: u32,
    /// The sets, in any order.
    pub sets: Ptr<u32>,
    /// The place in `sets` of the first word of each query's set.
    pub starts: Ptr<u32>,
    /// Number of rows of each query's set.
    pub counts: Ptr<u32>,
    /// Number of words of a set of bits. A set of fewer rows has their numbers instead.
    pub bit_words: u32,
    /// Distance from one list to the next, in rows.
    pub stride: u32,
    /// The lists: that of query q starts at q · `stride`.
    pub rows: PtrMut<u32>,
}

impl ListRows {
    /// One block for each query.
    pub fn config(&self) -> LaunchConfig {
        LaunchConfig::linear(self.query_count as u64, THREADS)
    }
}

/// # Safety
/// As [`ListRows`].
#[device_inline]
unsafe fn list(ListRows { sets, starts, counts, bit_words, stride, rows, .. }: ListRows) {
    let totals = cuda_std::shared_array!(u32, WARPS as usize);
    let (query, thread) = (thread::block_idx_x() as usize, thread::thread_idx_x());
    let (lane, warp) = (warp::lane_id(), warp::warp_id());
    // SAFETY: there is a block for each query. Words are read below the number that the set has, and as many numbers
    // are written as the set has rows. One lane writes the total of a warp, barriers stand before and after its reads,
    // and all threads of a block take the same turns.
    unsafe {
        let set = sets.wrapping_add(global::load_nc(starts.wrapping_add(query)) as usize);
        let count = global::load_nc(counts.wrapping_add(query));
        let to = rows.wrapping_add(query * stride as usize);
        if count < bit_words {
            let mut at = thread;
            while at < count {
                global::store(to.wrapping_add(at as usize), global::load_nc(set.wrapping_add(at as usize)));
                at += THREADS;
            }
            return;
        }
        let mut listed = 0;
        let mut first = 0;
        while first < bit_words {
            let at = first + thread;
            let mut word = if at < bit_words { global::load_nc(set.wrapping_add(at as usize)) } else { 0 };
            let own = word.count_ones();
            let up_to = warp::inclusive_sum(own);
            if lane == 31 {
                totals.add(warp).store(up_to);
            }
            thread::sync_threads();
            let mut place = listed + up_to - own;
            for of_warp in 0..WARPS {
                let total = totals.add(of_warp).load();
                place += if of_warp < warp { total } else { 0 };
                listed += total;
            }
            thread::sync_threads();
            while word != 0 {
                global::store(to.wrapping_add(place as usize), at * 32 + word.trailing_zeros());
                word &= word - 1;
                place += 1;
            }
            first += THREADS;
        }
    }
}
