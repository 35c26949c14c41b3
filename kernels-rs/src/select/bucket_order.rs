//! Sorting the survivors of a row by one block, by counting: each entry goes to a bucket by its leading bits, and is
//! compared only with the entries of its bucket.
//!
//! # Algorithm
//! ```text
//! value of an entry  = (key − least key) · span + payload          // span: more than the payloads, so no two are equal
//! bucket of an entry = the leading 12 bits of its value, of as many bits as the greatest value has
//! count the entries of each bucket; prefix sums give the first place of each
//! move each entry to its bucket
//! rank of an entry   = the first place of its bucket + the entries of the bucket before it
//! ```
//! The values have no gaps where keys have few distinct values: then the positions spread the entries of one key over
//! the buckets. With ids instead of positions, the value is the difference of the entries.
//!
//! # Cost
//! An entry costs about 75 instructions: 8 for the extremes, 18 to count it, 18 to move it, and the rest to compare it
//! with the two entries of an average bucket. [`crate::select::block_sort`] takes 185 for 3,500 entries. A bucket of c
//! entries costs c² comparisons, so buckets of more than [`MOST`] entries are left to `block_sort`. Keys whose
//! survivors lie in few buckets have them: one outlier far below the others, such as a single zero among floats of which
//! the rest lies above 10⁻³, takes a factor of ten of the buckets away. (Predicted, not measured yet.)

use cuda_std::global::U32x4;
use cuda_std::shared::SharedPtr;
use cuda_std::{atomic, thread, unroll, warp};

use crate::select::entry;
use crate::select::keys::Key;

/// Number of bits of a bucket's number.
const BUCKET_BITS: u32 = 12;
/// Number of buckets.
pub const BUCKETS: u32 = 1 << BUCKET_BITS;
/// Largest number of entries of a bucket.
pub const MOST: u32 = 48;

/// Shared memory for [`bucket_order`].
#[derive(Clone, Copy)]
pub struct BucketWorkspace {
    /// Two entries.
    pub extremes: SharedPtr<u64>,
    /// A word for each warp of the block.
    pub sums: SharedPtr<u32>,
    /// [`BUCKETS`] counters, at a multiple of 16 bytes.
    pub buckets: SharedPtr<u32>,
    /// As many entries as are sorted.
    pub moved: SharedPtr<u64>,
}

/// The map from entries to buckets.
#[derive(Clone, Copy)]
struct Buckets {
    /// The least entry.
    least: u64,
    /// More than the largest payload; 0 if the payloads are ids.
    span: u32,
    /// Number of leading zeros of the greatest value.
    shift: u32,
}

impl Buckets {
    #[inline(always)]
    fn value<K: Key>(&self, found: u64) -> u64 {
        // The lower half of a 16-bit key says nothing.
        let unused = if size_of::<K::Stored>() == 2 { 16 } else { 0 };
        let key = (entry::key(found) >> unused).wrapping_sub(entry::key(self.least) >> unused);
        let by_position = (key as u64 * self.span as u64).wrapping_add(entry::payload(found) as u64);
        if self.span == 0 { found.wrapping_sub(self.least) } else { by_position }
    }

    #[inline(always)]
    fn of<K: Key>(&self, found: u64) -> u32 {
        ((self.value::<K>(found) << self.shift) >> (u64::BITS - BUCKET_BITS)) as u32
    }
}

/// Finds the order of the first `len` of `entries`, and calls `emit(rank, entry)` once for each of the best `keep`.
/// `span` is more than the largest payload, or 0. Returns `false`, without a call of `emit`, if a bucket has more than
/// [`MOST`] entries. All threads of the block arrive, with the same arguments; the number of threads is a power of two
/// from 32 on. Ends with a barrier.
///
/// # Safety
/// The entries are initialised and visible to all threads (a barrier precedes the call), and none is
/// [`entry::EMPTY`]; the workspace is as its documentation states, and no other code uses it. `emit` may write over the
/// entries, each rank at its place.
#[inline(always)]
pub unsafe fn bucket_order<K: Key>(
    entries: SharedPtr<u64>,
    len: u32,
    keep: u32,
    span: u32,
    workspace: BucketWorkspace,
    emit: impl Fn(u32, u64),
) -> bool {
    let BucketWorkspace { extremes, sums, buckets, moved } = workspace;
    let (thread, threads) = (thread::thread_idx_x(), thread::block_dim_x());
    let (lane, warp) = (warp::lane_id(), warp::warp_id());
    let quads = buckets.cast::<U32x4>();
    // SAFETY: places are below len, buckets below BUCKETS, warps below their number. Barriers stand between the steps;
    // within a step, counters change by atomics, and every other place belongs to one thread.
    unsafe {
        let (least, most_inverted) = (extremes, extremes.add(1));
        if thread == 0 {
            least.store(u64::MAX);
            most_inverted.store(u64::MAX);
        }
        let mut quad = thread;
        while quad < BUCKETS / 4 {
            quads.add(quad).store(U32x4([0; 4]));
            quad += threads;
        }
        thread::sync_threads();
        let (mut low, mut high_inverted) = (u64::MAX, u64::MAX);
        let mut place = thread;
        while place < len {
            let found = entries.add(place).load();
            low = low.min(found);
            high_inverted = high_inverted.min(!found);
            place += threads;
        }
        let (low, high_inverted) = warp::butterfly((low, high_inverted), |a, b| (a.0.min(b.0), a.1.min(b.1)));
        if lane == 0 {
            atomic::shared_min_u64(least, low);
            atomic::shared_min_u64(most_inverted, high_inverted);
        }
        thread::sync_threads();
        let unscaled = Buckets { least: least.load(), span, shift: 0 };
        // The shift by 64 bits of no value becomes one by 63.
        let shift = (unscaled.value::<K>(!most_inverted.load()) | 1).leading_zeros();
        let map = Buckets { shift, ..unscaled };
        let mut place = thread;
        while place < len {
            atomic::shared_add_u32(buckets.add(map.of::<K>(entries.add(place).load())), 1);
            place += threads;
        }
        thread::sync_threads();
        // Consecutive buckets for each thread: their counts become the places before them.
        let share = (BUCKETS / 4) >> (threads.trailing_zeros() % 32);
        let share = share.max(1);
        let first = thread * share;
        let end = if first < BUCKETS / 4 { first + share } else { first };
        let (mut sum, mut most) = (0, 0);
        let mut quad = first;
        while quad < end {
            let U32x4([a, b, c, d]) = quads.add(quad).load();
            sum += a + b + c + d;
            most = a.max(b).max(c.max(d)).max(most);
            quad += 1;
        }
        let up_to = warp::inclusive_sum(sum);
        if lane == 31 {
            sums.add(warp).store(up_to);
        }
        if thread::sync_threads_or(most > MOST) {
            return false;
        }
        let of_warp = if lane < warp { sums.add(lane).load() } else { 0 };
        let mut before = warp::butterfly_sum(of_warp) + up_to - sum;
        let mut quad = first;
        while quad < end {
            let U32x4(mut counts) = quads.add(quad).load();
            unroll::<4>(|c| {
                let count = counts[c];
                counts[c] = before;
                before += count;
            });
            quads.add(quad).store(U32x4(counts));
            quad += 1;
        }
        thread::sync_threads();
        let mut place = thread;
        while place < len {
            let found = entries.add(place).load();
            moved.add(atomic::shared_add_u32(buckets.add(map.of::<K>(found)), 1)).store(found);
            place += threads;
        }
        thread::sync_threads();
        // The counter of a bucket is now its end, which is the start of the next one.
        let mut place = thread;
        while place < len {
            let found = moved.add(place).load();
            let bucket = map.of::<K>(found);
            let end = buckets.add(bucket).load();
            let start = if bucket > 0 { buckets.add(bucket - 1).load() } else { 0 };
            let (mut rank, mut other) = (start, start);
            while other < end && start < keep {
                let word = moved.add(other).load();
                // Of equal entries, which only equal ids make, each gets a rank.
                rank += (word < found || word == found && other < place) as u32;
                other += 1;
            }
            if rank < keep {
                emit(rank, found);
            }
            place += threads;
        }
        thread::sync_threads();
    }
    true
}
