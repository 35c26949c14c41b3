//! Sorting the survivors of a row by one block, by counting: each entry goes to a bucket by its leading bits, and is
//! compared only with the entries of its bucket.
//!
//! # Algorithm
//! ```text
//! value of an entry  = (key − least key) · (largest payload + 1) + payload      // entries differ in their values
//! bucket of an entry = the leading bits of its value, of as many bits as the greatest value has
//! count the entries of each bucket; prefix sums give the first place of each
//! move each entry to its bucket
//! rank of an entry   = the first place of its bucket + the entries of the bucket before it
//! ```
//! The values have no gaps where keys have few distinct values: then the positions spread the entries of one key over
//! the buckets.
//!
//! # Cost
//! An entry costs about 75 instructions: 8 for the extremes, 18 to count it, 18 to move it, and the rest to compare it
//! with the two entries of an average bucket. [`crate::select::block_sort`] takes 185 for 3,500 entries, and its least
//! and greatest entries are atomic operations of 64 bits, which the hardware repeats until no other warp disturbs. A
//! bucket of c entries costs c² comparisons, so buckets of more than [`MOST`] entries are left to `block_sort`. Keys
//! whose survivors lie in few buckets have them: one outlier far below the others, such as a single zero among floats
//! of which the rest lies above 10⁻³, takes a factor of ten of the buckets away: 10,000 rows of
//! 10,000 keys with an outlier, k = 1,000, take .99 ms on an H200 where random keys take .60.

use cuda_std::global::U32x4;
use cuda_std::shared::SharedPtr;
use cuda_std::warp::FULL_MASK;
use cuda_std::{atomic, device_inline, thread, unroll, warp};

use crate::select::entry;
use crate::select::keys::Key;

/// Largest number of entries of a bucket.
pub const MOST: u32 = 48;

/// Shared memory for [`bucket_order`].
#[derive(Clone, Copy)]
pub struct BucketWorkspace {
    /// Room for the least key, the greatest key, the largest payload, and a zero.
    pub extremes: SharedPtr<u32>,
    /// A word for each warp of the block.
    pub sums: SharedPtr<u32>,
    /// A counter for each bucket, at a multiple of 16 bytes.
    pub buckets: SharedPtr<u32>,
    /// Room for all entries, in the order of their buckets.
    pub moved: SharedPtr<u64>,
}

/// The ordered bits of the key of an entry. The lower half of a key of 16 bits says nothing.
#[device_inline]
fn key_bits<K: Key>(found: u64) -> u32 {
    entry::key(found) >> if size_of::<K::Stored>() == 2 { 16 } else { 0 }
}

/// The map from entries to 2 to the power of `BITS` buckets.
#[derive(Clone, Copy)]
struct Buckets<const BITS: u32> {
    /// The bits of the least key.
    least: u32,
    /// More than the largest payload, except that of [`entry::EMPTY`].
    span: u32,
    /// Number of leading zeros of the greatest value.
    shift: u32,
}

impl<const BITS: u32> Buckets<BITS> {
    #[device_inline]
    fn of<K: Key>(&self, found: u64) -> u32 {
        let key = key_bits::<K>(found).wrapping_sub(self.least);
        let value = (key as u64 * self.span as u64).wrapping_add(entry::payload(found) as u64);
        ((value << self.shift) >> (u64::BITS - BITS)) as u32
    }
}

/// Finds the order of the first `len` of `entries` by 2 to the power of `BITS` buckets, and calls `emit(rank, entry)`
/// once for each of the best `keep`. Returns `false`, without a call of `emit`, if a bucket has more than [`MOST`]
/// entries. All threads of the block arrive, with the same arguments; the number of threads is a power of two from 32
/// on. Ends with a barrier.
///
/// # Safety
/// The entries are initialised and visible to all threads (a barrier precedes the call); the workspace is as its
/// documentation states, and no other code uses it. `emit` may write over the entries, each rank at its place.
#[device_inline]
pub unsafe fn bucket_order<K: Key, const BITS: u32>(
    entries: SharedPtr<u64>,
    len: u32,
    keep: u32,
    workspace: BucketWorkspace,
    emit: impl Fn(u32, u64),
) -> bool {
    let BucketWorkspace { extremes, sums, buckets, moved } = workspace;
    let (thread, threads) = (thread::thread_idx_x(), thread::block_dim_x());
    let (lane, warp) = (warp::lane_id(), warp::warp_id());
    let quads = buckets.cast::<U32x4>();
    let count_quads = 1u32 << (BITS - 2);
    // SAFETY: places are below len, buckets and warps below their numbers. Barriers stand between the steps; within a
    // step, counters change by atomics, and every other place belongs to one thread.
    unsafe {
        let (least, greatest, payload) = (extremes, extremes.add(1), extremes.add(2));
        if thread == 0 {
            least.store(u32::MAX);
            greatest.store(0);
            payload.store(0);
            extremes.add(3).store(0);
        }
        let mut quad = thread;
        while quad < count_quads {
            quads.add(quad).store(U32x4([0; 4]));
            quad += threads;
        }
        thread::sync_threads();
        let (mut low, mut high, mut largest) = (u32::MAX, 0, 0);
        let mut place = thread;
        while place < len {
            let found = entries.add(place).load();
            low = low.min(key_bits::<K>(found));
            high = high.max(key_bits::<K>(found));
            largest = largest.max(entry::payload(found));
            place += threads;
        }
        let low = warp::reduce_min(FULL_MASK, low);
        let high = warp::reduce_max(FULL_MASK, high);
        let largest = warp::reduce_max(FULL_MASK, largest);
        if lane == 0 {
            atomic::shared_min_u32(least, low);
            atomic::shared_max_u32(greatest, high);
            atomic::shared_max_u32(payload, largest);
        }
        thread::sync_threads();
        let (least, largest) = (least.load(), payload.load());
        let span = largest.saturating_add(1);
        let most = (greatest.load().wrapping_sub(least) as u64 * span as u64).wrapping_add(largest as u64);
        // The shift by 64 bits of no value becomes one by 63.
        let map = Buckets::<BITS> { least, span, shift: (most | 1).leading_zeros() };
        let mut place = thread;
        while place < len {
            atomic::shared_add_u32(buckets.add(map.of::<K>(entries.add(place).load())), 1);
            place += threads;
        }
        thread::sync_threads();
        // Consecutive buckets for each thread: their counts become the places before them.
        let share = (count_quads >> (threads.trailing_zeros() % 32)).max(1);
        // Adding a zero that the compiler cannot know keeps it from computing these before the loop of the caller, for
        // which there are not enough registers.
        let first = (thread + extremes.add(3).load()) * share;
        let end = if first < count_quads { first + share } else { first };
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
