//! The exact k-th best entry of a row by radix counting, for [`crate::select::threshold_select`] if a sample was
//! misleading.

use cuda_std::shared::SharedPtr;
use cuda_std::warp::FULL_MASK;
use cuda_std::{atomic, thread, unroll, warp};

use crate::select::entry::{ALL, EMPTY};
use crate::select::keys::Key;
use crate::select::rows::Row;

/// Number of bits of one pass.
const DIGIT_BITS: u32 = 11;
/// Number of counters of one pass.
pub const BINS: u32 = 1 << DIGIT_BITS;

impl<K: Key> Row<K> {
    /// The k-th best entry of the row, or [`ALL`] if it has fewer: radix counting from the highest digit on, until all
    /// entries with the digits so far are wanted. At most six passes over the row. All threads of the block arrive;
    /// ends with a barrier.
    ///
    /// # Safety
    /// The row is readable; k ≥ 1; `bins` has room for [`BINS`] counters and `found` for two words, and no other code
    /// uses them.
    #[inline(always)]
    pub unsafe fn exact_threshold(&self, k: u32, bins: SharedPtr<u32>, found: SharedPtr<u32>) -> u64 {
        let (thread, threads) = (thread::thread_idx_x(), thread::block_dim_x());
        let lane = warp::lane_id();
        // The k-th best has the leading digits `prefix`; `rank` is its rank among the entries that have them.
        let (mut prefix, mut rank, mut shift) = (0u64, k, u64::BITS);
        // SAFETY: bins are counted atomically between barriers, and read by one warp.
        unsafe {
            loop {
                let low = shift.saturating_sub(DIGIT_BITS);
                let mut bin = thread;
                while bin < BINS {
                    bins.add(bin).store(0);
                    bin += threads;
                }
                thread::sync_threads();
                self.scan::<1>(0, self.len, |raw, position, exist| {
                    unroll::<4>(|e| {
                        if (e as u32) < exist {
                            let found = self.entry(raw[e], position + e as u32);
                            let same = shift == u64::BITS || found >> (shift % u64::BITS) == prefix;
                            if same & (found != EMPTY) {
                                let digit = (found >> low) as u32 & ((1 << (shift - low)) - 1);
                                atomic::shared_add_u32(bins.add(digit), 1);
                            }
                        }
                    });
                });
                thread::sync_threads();
                if thread < 32 {
                    let (mut before, mut bin) = (0, 0);
                    let mut digit = BINS;
                    let mut inside = 0;
                    while bin < BINS {
                        let count = bins.add(bin + lane).load();
                        let up_to = before + warp::inclusive_sum(count);
                        let reached = warp::ballot(FULL_MASK, up_to >= rank);
                        if digit == BINS && reached != 0 {
                            let holder = reached.trailing_zeros();
                            digit = bin + holder;
                            inside = warp::shuffle_idx(FULL_MASK, count, holder);
                            rank -= warp::shuffle_idx(FULL_MASK, up_to - count, holder);
                        }
                        before = warp::shuffle_idx(FULL_MASK, up_to, 31);
                        bin += 32;
                    }
                    if lane == 0 {
                        found.store(digit);
                        // All entries with this digit are wanted, so no further pass is needed.
                        found.add(1).store(if rank == inside { 0 } else { rank });
                    }
                }
                thread::sync_threads();
                let (digit, left) = (found.load(), found.add(1).load());
                thread::sync_threads();
                if digit == BINS {
                    return ALL;
                }
                prefix = prefix << (shift - low) | digit as u64;
                rank = left;
                shift = low;
                if left == 0 || low == 0 {
                    return (prefix << low | ((1 << low) - 1)).min(ALL);
                }
            }
        }
    }
}
