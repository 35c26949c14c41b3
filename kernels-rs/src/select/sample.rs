//! The threshold of a row from a sample of it, for [`crate::select::threshold_select`].
//!
//! # The sample
//! n groups of g keys; the threshold is the j-th smallest of the groups' best entries, for which n entries are sorted
//! instead of n·g. With p = k/ℓ, a group's best is among the row's best k with probability at most q = g·p (just that
//! where keys are sorted by position, 1 − (1 − p)^g where they are random), so at most about Binomial(n, q) groups are,
//! and the rank j = n·q + 4.5·√(n·q·(1 − q)) + 4 is too small for a few rows in 10⁶. (With 2 instead of 4, it was too
//! small for one row in 3,000 at k =
//! 10. The block of such a row scans it five times, which was visible at the end of every launch.) g is smaller if p is
//!     large (q ≤ ¼ keeps the estimate sharp) or the row is short (at most a quarter is sampled). It is at most 16 if
//!     one block takes the sample, and 256 if
//! up to 16 blocks do: a row of 10⁸ keys then has thousands of survivors instead of hundreds of thousands. n is 256. It
//! is as low as 64 for short rows (below 32,768 keys, or 2,048 if more than 1/64 is wanted), because sorting more would
//! cost more than it saves. It is 512 for long rows of which more than 1/512 is wanted, because a sharper threshold
//! saves more sorting than it costs.
//!
//! Keys are taken eight at a time (32 bytes, the unit of memory traffic), one octet from each of n·g/8 equal strata of
//! the row, at a pseudo-random place. So a sorted row is sampled better than a random one, and a period in the data
//! does not coincide with one of the sample.
//!
//! Ties need no special treatment, because a threshold is an entry, not a key. In a row of equal keys the positions of
//! the sample decide, and the first positions pass the threshold.

use cuda_std::shared::SharedPtr;
use cuda_std::{device_inline, math, thread, unroll};

use crate::select::block_sort::{OrderWorkspace, block_order};
use crate::select::entry::{self, ALL, EMPTY};
use crate::select::keys::Key;
use crate::select::rows::Row;

/// Largest number of groups of a sample.
pub const MOST_GROUPS: u32 = 512;
/// Largest number of keys of a group, if one block takes the sample.
pub const BLOCK_GROUP_KEYS: u32 = 16;
/// Largest number of keys of a group, if many blocks take the sample, one for every [`BLOCK_GROUP_KEYS`] keys.
pub const GRID_GROUP_KEYS: u32 = 256;
/// Number of adjacent keys that the sample takes together.
const OCTET: u32 = 8;

/// The sample of a row, and the rank of the threshold in it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplePlan {
    /// Number of groups, n: a multiple of 32.
    pub groups: u32,
    /// Number of keys of a group, g.
    pub group_keys: u32,
    /// Rank of the threshold among the groups' best entries, j, from 1.
    pub rank: u32,
}

/// The rank of the threshold in a sample of `count`, each of which is among the best k with probability `hit`.
#[device_inline]
pub fn rank(count: u32, hit: f32) -> u32 {
    let rank = count as f32 * hit + 4.5 * math::sqrt_f32(count as f32 * hit * (1.0 - hit)) + 4.0;
    (rank as u32).min(count)
}

impl SamplePlan {
    /// The plan for the best `k` of `len` keys, 1 ≤ k < len, with at most `most_keys` keys in a group.
    #[device_inline]
    pub fn new(k: u32, len: u32, most_keys: u32) -> SamplePlan {
        let share = k as f32 / len as f32;
        let most = if len >= 1 << 16 && share > 1.0 / 512.0 { MOST_GROUPS } else { MOST_GROUPS / 2 };
        let groups = (if share > 1.0 / 64.0 { len / 8 } else { len / 128 }).clamp(64, most) & !31;
        let quarter = len / (4 * groups);
        let sharp = (0.25 / share) as u32;
        let group_keys = sharp.min(quarter).min(most_keys).max(1);
        // q is below 1: g is 1, or q is at most a quarter.
        let hit = group_keys as f32 * share;
        SamplePlan { groups, group_keys, rank: rank(groups, hit) }
    }

    /// The position of key `turn` of `group` in row `number` of `len` keys. Eight consecutive groups read eight
    /// adjacent keys of one stratum.
    #[device_inline]
    pub fn position(&self, group: u32, turn: u32, len: u32, number: u32) -> u32 {
        let octets = self.groups / OCTET;
        let stratum_len = len / (self.group_keys * octets).max(1);
        let stratum = turn * octets + group / OCTET;
        // A hash of row and stratum (Knuth's multiplicative one): a place in the middle half of the stratum.
        let hash = (stratum ^ (number << 10)).wrapping_mul(2_654_435_761);
        let place = stratum * stratum_len + stratum_len / 4 + ((hash as u64 * (stratum_len / 2) as u64) >> 32) as u32;
        ((place & !(OCTET - 1)) + group % OCTET).min(len - 1)
    }

    /// Largest number of keys of a group in a row of `len` keys that many blocks share, with [`BLOCK_GROUP_KEYS`] for
    /// each block. About 1/64 of a long row is sampled.
    #[device_inline]
    pub fn grid_keys(len: u32) -> u32 {
        (len >> 14).next_multiple_of(BLOCK_GROUP_KEYS).clamp(BLOCK_GROUP_KEYS, GRID_GROUP_KEYS)
    }
}

impl<K: Key> Row<K> {
    /// Calls `store(group, best entry)` for each group of the sample, with the best of its keys `turns`. A thread loads
    /// `AHEAD` keys before it uses the first. The threads of the block share the groups.
    ///
    /// # Safety
    /// The row is readable and has keys.
    #[device_inline]
    pub unsafe fn sample<const AHEAD: usize>(&self, plan: SamplePlan, turns: (u32, u32), store: impl Fn(u32, u64)) {
        // SAFETY: the same contract.
        unsafe { self.sample_groups::<AHEAD>(plan, (thread::thread_idx_x(), thread::block_dim_x()), turns, store) }
    }

    /// As [`Self::sample`], for every group from `groups.0` on in steps of `groups.1`.
    ///
    /// # Safety
    /// As [`Self::sample`].
    #[device_inline]
    pub unsafe fn sample_groups<const AHEAD: usize>(
        &self,
        plan: SamplePlan,
        groups: (u32, u32),
        turns: (u32, u32),
        store: impl Fn(u32, u64),
    ) {
        let mut group = groups.0;
        while group < plan.groups {
            let mut best = EMPTY;
            let mut turn = turns.0;
            while turn < turns.1 {
                let mut tile = [(0, 0); AHEAD];
                unroll::<AHEAD>(|ahead| {
                    // Positions wrap around at the end of the row.
                    let turn = turn + ahead as u32;
                    let turn = if turn < turns.1 { turn } else { turns.0 };
                    let position = plan.position(group, turn, self.len, self.number);
                    // SAFETY: position < len.
                    tile[ahead] = (unsafe { self.raw(position) }, position);
                });
                // An id that must be looked at first would keep each load of a key behind the use of the one before.
                if self.ids.is_none() {
                    unroll::<AHEAD>(|ahead| {
                        let (raw, position) = tile[ahead];
                        best = best.min(entry::pack(K::order(raw), position));
                    });
                } else {
                    unroll::<AHEAD>(|ahead| {
                        let (raw, position) = tile[ahead];
                        // SAFETY: position < len.
                        best = best.min(unsafe { self.entry(raw, position) });
                    });
                }
                turn += AHEAD as u32;
            }
            store(group, best);
            group += groups.1;
        }
    }
}

/// The threshold that the groups' best entries give. All threads of the block arrive; ends with a barrier.
///
/// # Safety
/// `groups` holds the plan's groups and is visible to all threads; the workspace has room for them; no other code uses
/// either.
#[device_inline]
pub unsafe fn threshold_of_groups(plan: SamplePlan, groups: SharedPtr<u64>, workspace: OrderWorkspace) -> u64 {
    // SAFETY: rank ≤ groups, and the rest is the caller's promise.
    let threshold = unsafe { block_order(groups, plan.groups, plan.rank, workspace).get(plan.rank - 1) };
    thread::sync_threads();
    threshold.min(ALL)
}
