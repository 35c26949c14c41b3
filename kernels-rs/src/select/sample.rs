//! The threshold of a row from a sample of it, for [`crate::select::threshold_select`].
//!
//! # The sample
//! n groups of g keys; the threshold is the j-th smallest of the groups' best entries, for which n entries are sorted
//! instead of n·g. With p = k/ℓ, a group's best is among the row's best k with probability at most q = g·p (just that where keys are
//! sorted by position, 1 − (1 − p)^g where they are random), so at most about Binomial(n, q) groups are, and the rank
//! j = n·q + 4.5·√(n·q·(1 − q)) + 4 is too small for a few rows in 10⁶. (With 2 for the 4, it was for one row in 3,000 at
//! k = 10, and one such row, scanned five times by its block, was seen at the end of every launch.) g is less where p is large (q ≤ ¼ keeps the
//! estimate sharp) or the row short (a quarter of it is sampled), and at most 16 where one block takes the sample, 256 where up
//! to 16 do: a row of 10⁸ keys then has thousands of survivors and not hundreds of thousands.
//! n is 256; down to 64 for short rows (below 32,768, or 2,048 where more than 1/64 is wanted), which would not pay for sorting
//! more; 512 for long rows of which more than 1/512 is wanted, where a sharper threshold spares more sorting than it costs.
//!
//! Keys are taken eight at a time (32 bytes, the unit of memory traffic), one octet from each of n·g/8 equal strata of the row,
//! at a place that varies: a sorted row is sampled better than a random one, and a period in the data meets no period here.
//!
//! Ties need no care: a threshold is an entry, not a key. In a row of equal keys the sample's positions decide, and the
//! threshold lets the first positions through.

use cuda_std::shared::SharedPtr;
use cuda_std::{math, thread, unroll};

use crate::select::block_sort::{OrderWorkspace, block_order};
use crate::select::entry::EMPTY;
use crate::select::keys::Key;
use crate::select::rows::Row;
use crate::select::threshold_select::ALL;

/// Groups of a sample, at most.
pub const MOST_GROUPS: u32 = 512;
/// Keys of a group, at most, where one block takes the sample.
pub const BLOCK_GROUP_KEYS: u32 = 16;
/// Keys of a group, at most, where many blocks do: one for every [`BLOCK_GROUP_KEYS`].
pub const GRID_GROUP_KEYS: u32 = 256;
/// Keys that the sample takes side by side.
const OCTET: u32 = 8;

/// How a row is sampled, and which rank of the sample is its threshold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplePlan {
    /// Groups, n: a multiple of 32.
    pub groups: u32,
    /// Keys of a group, g.
    pub group_keys: u32,
    /// Rank of the threshold among the groups' best entries, j, from 1.
    pub rank: u32,
}

impl SamplePlan {
    /// The plan for the best `k` of `len` keys, 1 ≤ k < len, with at most `most_keys` keys in a group.
    #[inline(always)]
    pub fn new(k: u32, len: u32, most_keys: u32) -> SamplePlan {
        let share = k as f32 / len as f32;
        let most = if len >= 1 << 16 && share > 1.0 / 512.0 { MOST_GROUPS } else { MOST_GROUPS / 2 };
        let groups = (if share > 1.0 / 64.0 { len / 8 } else { len / 128 }).clamp(64, most) & !31;
        let quarter = len / (4 * groups);
        let sharp = (0.25 / share) as u32;
        let group_keys = sharp.min(quarter).min(most_keys).max(1);
        // Below 1: g is 1, or at most a quarter over the share.
        let hit = group_keys as f32 * share;
        let rank = groups as f32 * hit + 4.5 * math::sqrt_f32(groups as f32 * hit * (1.0 - hit)) + 4.0;
        SamplePlan { groups, group_keys, rank: (rank as u32).min(groups) }
    }

    /// Where key `turn` of `group` lies in row `number` of `len` keys: an octet of groups reads eight neighbours of one stratum.
    #[inline(always)]
    pub fn position(&self, group: u32, turn: u32, len: u32, number: u32) -> u32 {
        let octets = self.groups / OCTET;
        let stratum_len = len / (self.group_keys * octets).max(1);
        let stratum = turn * octets + group / OCTET;
        // A hash of row and stratum (Knuth's multiplicative one): a place in the middle half of the stratum.
        let hash = (stratum ^ (number << 10)).wrapping_mul(2_654_435_761);
        let place = stratum * stratum_len + stratum_len / 4 + ((hash as u64 * (stratum_len / 2) as u64) >> 32) as u32;
        ((place & !(OCTET - 1)) + group % OCTET).min(len - 1)
    }

    /// Keys of a group, at most, in a row of `len` keys that many blocks share, [`BLOCK_GROUP_KEYS`] a block: about 1/64 of a long
    /// row is sampled.
    #[inline(always)]
    pub fn grid_keys(len: u32) -> u32 {
        (len >> 14).next_multiple_of(BLOCK_GROUP_KEYS).clamp(BLOCK_GROUP_KEYS, GRID_GROUP_KEYS)
    }
}

impl<K: Key> Row<K> {
    /// Gives `store(group, best entry)` of the keys `turns` of each group of the sample, `AHEAD` of which a thread loads before
    /// it looks at the first. The threads of the block share the groups.
    ///
    /// # Safety
    /// The row is readable and has keys.
    #[inline(always)]
    pub unsafe fn sample<const AHEAD: usize>(&self, plan: SamplePlan, turns: (u32, u32), store: impl Fn(u32, u64)) {
        let mut group = thread::thread_idx_x();
        while group < plan.groups {
            let mut best = EMPTY;
            let mut turn = turns.0;
            while turn < turns.1 {
                let mut tile = [(0, 0); AHEAD];
                unroll::<AHEAD>(|ahead| {
                    // Behind the last key comes the first again.
                    let turn = turn + ahead as u32;
                    let turn = if turn < turns.1 { turn } else { turns.0 };
                    let position = plan.position(group, turn, self.len, self.number);
                    // SAFETY: position < len.
                    tile[ahead] = (unsafe { self.raw(position) }, position);
                });
                unroll::<AHEAD>(|ahead| {
                    let (raw, position) = tile[ahead];
                    // SAFETY: position < len.
                    best = best.min(unsafe { self.entry(raw, position) });
                });
                turn += AHEAD as u32;
            }
            store(group, best);
            group += thread::block_dim_x();
        }
    }
}

/// The threshold that the groups' best entries give. All threads of the block arrive; ends with a barrier.
///
/// # Safety
/// `groups` holds the plan's groups and is seen by all; the workspace has room for them; nobody else uses either.
#[inline(always)]
pub unsafe fn threshold_of_groups(plan: SamplePlan, groups: SharedPtr<u64>, workspace: OrderWorkspace) -> u64 {
    // SAFETY: rank ≤ groups, and the rest is the caller's promise.
    let threshold = unsafe { block_order(groups, plan.groups, plan.rank, workspace).get(plan.rank - 1) };
    thread::sync_threads();
    threshold.min(ALL)
}
