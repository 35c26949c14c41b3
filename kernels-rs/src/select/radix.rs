//! The exact k-th best entry of a row by radix counting, for [`crate::select::threshold_select`] and
//! [`crate::select::cluster_select`] if a sample was misleading.

use cuda_std::shared::SharedPtr;
use cuda_std::warp::FULL_MASK;
use cuda_std::{atomic, device_inline, thread, unroll, warp};

use crate::select::entry::{ALL, EMPTY};
use crate::select::keys::Key;
use crate::select::rows::Row;

/// Number of bits of one pass.
const DIGIT_BITS: u32 = 11;
/// Number of counters of one pass.
pub const BINS: u32 = 1 << DIGIT_BITS;

/// The keys that a radix pass counts: those of a row, or one block's part of them.
pub trait Counted<K: Key> {
    /// Calls `visit` as [`Row::scan`] does. All threads of the block arrive.
    ///
    /// # Safety
    /// The keys are readable.
    unsafe fn scan(&mut self, visit: impl FnMut([u32; 4], u32, u32));

    /// The counts of the whole row, from those of the keys of [`Self::scan`]. All threads of the block arrive, after
    /// their counting; ends with a barrier, behind which `bins` may be changed.
    ///
    /// # Safety
    /// `bins` has [`BINS`] counters.
    unsafe fn joined(&mut self, bins: SharedPtr<u32>) -> SharedPtr<u32>;
}

/// The keys of a row that one block counts.
struct WholeRow<K: Key>(Row<K>);

impl<K: Key> Counted<K> for WholeRow<K> {
    #[device_inline]
    unsafe fn scan(&mut self, visit: impl FnMut([u32; 4], u32, u32)) {
        // SAFETY: the same contract.
        unsafe { self.0.scan::<1>(0, self.0.len, visit) }
    }

    #[device_inline]
    unsafe fn joined(&mut self, bins: SharedPtr<u32>) -> SharedPtr<u32> {
        thread::sync_threads();
        bins
    }
}

impl<K: Key> Row<K> {
    /// The k-th best entry of the row, or [`ALL`] if it has fewer: radix counting from the highest digit on, until all
    /// entries with the digits so far are wanted. At most six passes over the row. All threads of the block arrive;
    /// ends with a barrier.
    ///
    /// # Safety
    /// The row is readable; k ≥ 1; `bins` has room for [`BINS`] counters and `found` for two words, and no other code
    /// uses them.
    #[device_inline]
    pub unsafe fn exact_threshold(&self, k: u32, bins: SharedPtr<u32>, found: SharedPtr<u32>) -> u64 {
        // SAFETY: the same contract.
        unsafe { self.exact_threshold_by(&mut WholeRow(*self), k, bins, found) }
    }

    /// As [`Self::exact_threshold`], with the keys that `counted` visits.
    ///
    /// # Safety
    /// As [`Self::exact_threshold`].
    #[device_inline]
    pub unsafe fn exact_threshold_by(
        &self,
        counted: &mut impl Counted<K>,
        k: u32,
        bins: SharedPtr<u32>,
        found: SharedPtr<u32>,
    ) -> u64 {
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
                counted.scan(|raw, position, exist| {
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
                let counts = counted.joined(bins);
                if thread < 32 {
                    let (mut before, mut bin) = (0, 0);
                    let mut digit = BINS;
                    let mut inside = 0;
                    while bin < BINS {
                        let count = counts.add(bin + lane).load();
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
