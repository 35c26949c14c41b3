//! ClusterSelect: the k best of each row by a cluster of blocks, in one launch (compute capability 9.0 and later).
//!
//! # Problem
//! As [`crate::select::threshold_select`]: the best k entries (key, position) of each row, sorted. That module takes
//! three launches and a list in global memory for few long rows, and one block for each of many rows; here 1, 2, 4, 8
//! or 16 blocks share a row, and nothing but keys and results is in global memory.
//!
//! # Algorithm
//! ```text
//! each of the N blocks of a row:
//!   start asynchronous copies of its part of the row into shared memory
//!   threshold, splitters = from a sorted sample of the whole row     // every block finds the same ones
//!   survivors = entries of its part at or below the threshold        // each turn's copies make room for the next ones
//!   barrier of the cluster
//!   send each survivor to the block in whose range it is, by the splitters
//!   send the numbers of survivors that went to each block, to all blocks
//!   barrier of the cluster
//!   sort the survivors that have come                                // bucket_order
//!   write them to the places behind those of the ranges before
//! if there are fewer than k survivors, or more than there is room for:    // rare, for any data
//!   threshold = the k-th best entry, by radix counting in all blocks
//! ```
//! 1. *Loads without registers.* A thread copies 16 bytes at a time (`cp.async`) into places that only this thread
//!    reads, so no barrier stands between copies and use. Four turns of two units are in flight, also while the block
//!    takes the sample and finds the threshold. A part of at most four turns stays in shared memory as a whole.
//! 2. *No barrier for the threshold.* The sample is small: each block of a cluster reads it all, most of it from L2,
//!    while its own keys arrive. Joining the samples of blocks would cost a barrier of the cluster and a read from the
//!    peers.
//! 3. *One comparison a key.* Bits of a key are compared with the bits of two marks, one for the positions up to that
//!    of the threshold and one for those behind it, where ties do not pass. So a key that passes need not be looked at
//!    again before its place is counted, and a thread counts the places of a turn by one atomic operation. With ids,
//!    which decide ties, and with a threshold among NaN each entry is looked at.
//! 4. *Each block sorts a range.* The ranges differ in size as the sample is wrong, which costs time and nothing else.
//! 5. *The last barrier is not at the end.* No block accesses a peer after the second barrier, so blocks return when
//!    they are done.
//!
//! # Cost
//! Floor on an H200: bytes of the keys over 4.0 TB/s, or over 110 GB/s for each multiprocessor that takes part, and one
//! latency of .8 µs; 3 µs for a launch. A barrier of a cluster is about .7 µs, a barrier of a block 40 to 60 ns, a read
//! from a peer .25 µs. Measured in turn (the kernel alone, f32 keys, sorted results, µs; one H200, 2026-11-29; "merge"
//! is the kernel of 62eafdae, with steps 3 and 4 as in *What lost*):
//!
//! | rows × keys, k | blocks of a row | floor | merge | now |
//! |---|---|---|---|---|
//! | 1 × 262,144, 2048 | 16 of 512 threads | 3 + 1.5 | 22.0 | 14.8 |
//! | 256 × 65,536, 2048 | 1 of 512 | 3 + 17 | 54.6 | 42.3 |
//! | 2,048 × 131,072, 1024 | 1 of 512 | 268 | 406 | 306 |
//! | 1,024 × 131,072, 2048 | 1 of 512 | 134 | 248 | 189 |
//! | 4,000 × 128,000, 2048 | 1 of 512 | 512 | 850 | 634 |
//!
//! Many rows: instructions decide, not memory. 1,024 × 131,072 took 38.8 a key with the merge and 2.8 a cycle of a
//! multiprocessor; 2,048 × 131,072 takes 22.5 now, of which the scan is 15. A fifth of the time goes to waits for the
//! keys of the sample.
//!
//! # What lost
//! - Orders of all keys by integers, the least of eight for a quick look, and a look at each key that passes, whose
//!   place a lane counted alone: 28.8 instructions a key in the scan of 1,024 × 131,072, k = 2,048. The comparisons had
//!   results in predicates across the vote, of which there are too few: 35 of 129 instructions of a turn moved them.
//! - Loads of the sample that wait for each other, because each stood behind the question whether the row has ids: 18 %
//!   of the time of 256 × 65,536.
//! - The ring at a place that is no multiple of 128 bytes: loads of keys wait 2.5 times as long, 2,048 × 131,072 takes
//!   7 % more.
//! - Each block sorts the survivors of its part, copies the lists of all others, and searches them for the ranks of its
//!   own: 19.2 µs for 1 × 262,144 with searches that need no division, 15.2 with ranges.
//! - A vote, an atomic and a shuffle of the warp for the survivors that its lanes find at the same time: 264 µs for
//!   1,024 × 131,072, where each lane asked for its place by an atomic of its own in 257; 2,178 and 2,106 for 10,000 ×
//!   128,000 (on two machines).
//!
//! By registers (64 of each thread; ptxas of CUDA 13, 2026-11-29):
//! - Eight keys of the sample in flight in each thread: 20 bytes spilled. With 1,024 threads two of them share a group
//!   instead.
//! - The sort by 32-bit words of [`crate::select::block_sort`] for crowded buckets, in place of its sort of entries: 12
//!   bytes spilled.
//! - Divisions by the number of blocks, which the compiler does not know as a power of two: 224 bytes spilled.
//! - The part of the row in registers during the sample: up to 132 bytes spilled from sm_100 on.

use cuda_std::cluster;
use cuda_std::global::U32x4;
use cuda_std::launch::{LaunchConfig, MOST_CLUSTER_BLOCKS};
use cuda_std::shared::{self, SharedPtr};
use cuda_std::warp::FULL_MASK;
use cuda_std::{async_copy, atomic, device_inline, kernel, thread, unroll, warp};

use crate::select::block_sort::block_sort;
use crate::select::bucket_order::{BucketWorkspace, bucket_order};
use crate::select::entry::{self, ALL, EMPTY};
use crate::select::keys::{Bf16Key, F16Key, F32Key, I32Key, Key, KeyType, U32Key};
use crate::select::radix::{BINS, Counted};
use crate::select::rows::{KeyTable, Row, SelectedRows};
use crate::select::sample::{BLOCK_GROUP_KEYS, MOST_GROUPS, SamplePlan};
use crate::select::threshold_select::{enough, store_result};

/// Bytes of a unit: what a thread copies at once.
const UNIT_BYTES: u32 = 16;
/// Number of units that a thread reads in one turn.
const UNITS: usize = 2;
/// Number of turns whose copies are in flight.
const AHEAD: u32 = 4;
/// Number of bits of the number of a bucket in the sort of survivors, and in that of the groups of the sample.
const BUCKET_BITS: u32 = 12;
const GROUP_BITS: u32 = 10;
/// Number of units of a thread in shared memory.
const STAGES: u32 = UNITS as u32 * AHEAD;

/// The words of the header in shared memory: the count of survivors; two words of a radix pass; the address of the
/// header; four words of the sort; a word for each warp; where the ranges of the blocks begin; the count of entries
/// that this block has received; its rank; how many it has sent to each block.
const START_WORD: u32 = 3;
const SORT_WORD: u32 = 4;
const SUMS_WORD: u32 = 8;
const SPLITTERS_WORD: u32 = SUMS_WORD + 32;
const RECEIVED_WORD: u32 = SPLITTERS_WORD + 2 * MOST_CLUSTER_BLOCKS;
const RANK_WORD: u32 = RECEIVED_WORD + 1;
const SENT_WORD: u32 = RECEIVED_WORD + 4;
/// A multiple of 128 bytes: the ring at another place takes 7 % more time (2,048 × 131,072 on an H200), because loads
/// of keys from it wait 2.5 times as long.
const HEADER_WORDS: u32 = (SENT_WORD + MOST_CLUSTER_BLOCKS).next_multiple_of(32);
const _: () = assert!(SPLITTERS_WORD.is_multiple_of(2), "entries have 8 bytes");

/// Bytes of the area of the survivors. The radix passes have two arrays of counters there, and the sample its groups
/// and the workspace of their sort.
const fn survivor_bytes(capacity: u32) -> u32 {
    let least = 8 * BINS;
    assert!(16 * MOST_GROUPS + (4 << GROUP_BITS) <= least, "the groups, a place to move each to, and the buckets");
    if 8 * capacity > least { 8 * capacity } else { least }
}

/// Bytes of the area of the buckets, which has the numbers of what blocks send to each other before.
const BUCKET_BYTES: u32 = 4 << BUCKET_BITS;
const _: () = assert!(4 * MOST_CLUSTER_BLOCKS * MOST_CLUSTER_BLOCKS <= BUCKET_BYTES);

/// Shared memory of a block in bytes, for `capacity` survivors of a row of at most `columns` keys of `key_bytes` bytes,
/// which `blocks` blocks of `threads` threads share.
pub const fn shared_bytes(capacity: u32, columns: u32, key_bytes: u32, blocks: u32, threads: u32) -> u64 {
    let part = (columns.div_ceil(blocks) as u64 + 8) * key_bytes as u64;
    let stages = part.div_ceil((UNIT_BYTES * threads) as u64);
    let stages = if stages < STAGES as u64 { stages } else { STAGES as u64 };
    let ring = stages * (UNIT_BYTES * threads) as u64;
    let sort = 8 * capacity as u64 + BUCKET_BYTES as u64;
    4 * HEADER_WORDS as u64 + survivor_bytes(capacity) as u64 + if ring > sort { ring } else { sort }
}

/// Selects the best `k` of each row, sorted. The results are those of
/// [`ThresholdSelect`](crate::select::threshold_select::ThresholdSelect).
///
/// # Safety
/// The pointers that are present cover the shapes that the fields give. 1 ≤ k ≤ `out.stride`;
/// min(k, columns) ≤ capacity, a multiple of 32. All blocks of a cluster share a row; the threads of a block are a
/// power of two, from 32 to 1,024.
#[kernel(
    key = KeyType,
    max_threads = 1024,
    min_blocks = 1,
    arch = "sm_90",
    KeyType::F32 => cluster_select_f32 = select_by_clusters::<F32Key>,
    KeyType::F16 => cluster_select_f16 = select_by_clusters::<F16Key>,
    KeyType::Bf16 => cluster_select_bf16 = select_by_clusters::<Bf16Key>,
    KeyType::I32 => cluster_select_i32 = select_by_clusters::<I32Key>,
    KeyType::U32 => cluster_select_u32 = select_by_clusters::<U32Key>,
)]
pub struct ClusterSelect {
    /// The rows of keys.
    #[group]
    pub table: KeyTable,
    /// Number of results of a row.
    pub k: u32,
    /// Largest number of survivors of a row.
    pub capacity: u32,
    /// The results: `k` of each row.
    #[group]
    pub out: SelectedRows,
}

impl ClusterSelect {
    /// `blocks` blocks of `threads` threads for each row of keys of the type `key`: 1, 2, 4, 8 or 16 blocks, 32 to
    /// 1,024 threads, powers of two.
    pub fn config(&self, key: KeyType, rows: u32, blocks: u32, threads: u32) -> LaunchConfig {
        let bytes = shared_bytes(self.capacity, self.table.columns, key.bytes(), blocks, threads);
        LaunchConfig::linear(rows as u64 * blocks as u64, threads)
            .with_shared(u32::try_from(bytes).unwrap_or(u32::MAX))
            .with_cluster(blocks)
    }
}

/// Shared memory of a block.
#[derive(Clone, Copy)]
struct Areas {
    header: SharedPtr<u32>,
    /// The survivors of the part.
    survivors: SharedPtr<u64>,
    /// Copies of keys; behind it are the areas of the sort.
    ring: SharedPtr<U32x4>,
    /// Memory for `capacity` entries.
    moved: SharedPtr<u64>,
    /// The buckets, and before the sort how many survivors each block has sent to each.
    buckets: SharedPtr<u32>,
}

impl Areas {
    #[device_inline]
    fn new(header: SharedPtr<u32>, capacity: u32) -> Areas {
        // SAFETY: the launch gives `shared_bytes`.
        unsafe {
            let survivors = header.add(HEADER_WORDS).cast::<u64>();
            let moved = survivors.add(survivor_bytes(capacity) / 8);
            Areas { header, survivors, ring: moved.cast(), moved, buckets: moved.add(capacity).cast() }
        }
    }
}

/// A block's part of a row, and its copy in shared memory.
#[derive(Clone, Copy)]
struct Part<K: Key> {
    row: Row<K>,
    /// The positions of the part.
    from: u32,
    to: u32,
    /// The position of the first key of the first unit, and the number of units.
    first: u32,
    units: u32,
    ring: SharedPtr<U32x4>,
    /// Whether the copies of the first turns were started, and not used since.
    started: bool,
}

impl<K: Key> Part<K> {
    /// Number of keys of a unit.
    const KEYS: u32 = UNIT_BYTES / size_of::<K::Stored>() as u32;

    /// Part `rank` of a row that is divided among `blocks` blocks.
    #[device_inline]
    fn of(row: Row<K>, rank: u32, blocks: u32, ring: SharedPtr<U32x4>) -> Part<K> {
        // A multiple of eight keys, so that only the start of the row determines the alignment.
        let share = ((row.len + 8 * blocks - 1) >> log2(8 * blocks)) * 8;
        let from = (rank * share).min(row.len);
        let to = row.len.min(from + share);
        let misaligned = (row.keys.wrapping_add(from as usize).addr() / size_of::<K::Stored>()) as u32 % Self::KEYS;
        let head = ((Self::KEYS - misaligned) % Self::KEYS).min(to - from);
        let units = (to - from - head) / Self::KEYS;
        Part { row, from, to, first: from + head, units, ring, started: false }
    }

    /// The place in the ring of this unit of the part.
    #[device_inline]
    fn place(&self, unit: u32) -> SharedPtr<U32x4> {
        // Fewer places than these there are only if the part has fewer units.
        // SAFETY: the place is in the ring, or no unit is there, and it is not used.
        unsafe { self.ring.add(unit & (STAGES * thread::block_dim_x() - 1)) }
    }

    /// Starts this thread's copies of a turn, and closes their group. `unit` is the first unit, to be copied to
    /// `place`.
    ///
    /// # Safety
    /// The row is readable. This thread has used the units that were at their places.
    #[device_inline]
    unsafe fn copy(&self, unit: u32, place: SharedPtr<U32x4>) {
        let threads = thread::block_dim_x();
        let body = self.row.keys.wrapping_add(self.first as usize).cast::<U32x4>();
        unroll::<UNITS>(|u| {
            let ahead = u as u32 * threads;
            if unit + ahead < self.units {
                // SAFETY: a unit of the part lies inside the row, at a multiple of its size; the places of a turn are
                // as far apart as its units.
                unsafe {
                    async_copy::copy_16(place.add(ahead).cast(), body.wrapping_add((unit + ahead) as usize).cast());
                }
            }
        });
        async_copy::commit();
    }

    /// Starts the copies of the first turns, unless they were started before.
    ///
    /// # Safety
    /// As [`Self::turns`]; no other code uses the ring.
    #[device_inline]
    unsafe fn start(&mut self) {
        if !self.started {
            let mut unit = thread::thread_idx_x();
            let mut turn = 0;
            while turn < AHEAD {
                // SAFETY: as the caller promises. The first turns fill the ring from its start.
                unsafe { self.copy(unit, self.ring.add(unit)) };
                unit += UNITS as u32 * thread::block_dim_x();
                turn += 1;
            }
            self.started = true;
        }
    }

    #[device_inline]
    fn turn_count(&self) -> u32 {
        let units = UNITS as u32 * thread::block_dim_x();
        (self.units + units - 1) >> log2(units)
    }

    /// Whether the whole part is in the ring after its turns.
    #[device_inline]
    fn stays(&self) -> bool {
        self.turn_count() <= AHEAD
    }

    /// Calls `visit(first unit of this thread, its place in the ring)` for each turn: unit u of the turn is `threads` ·
    /// u further on in both, and exists if its number is below `units`. All threads of the block arrive, and come to
    /// each call together.
    ///
    /// # Safety
    /// The row is readable. No other code uses the ring between [`Self::start`] and the end of the call.
    #[device_inline]
    unsafe fn turns(&mut self, mut visit: impl FnMut(u32, SharedPtr<U32x4>)) {
        let step = UNITS as u32 * thread::block_dim_x();
        let (mut unit, mut turns) = (thread::thread_idx_x(), self.turn_count());
        // SAFETY: as the caller promises; a place is refilled after its unit was used.
        unsafe {
            self.start();
            while turns > 0 {
                async_copy::wait_group::<{ AHEAD - 1 }>();
                let place = self.place(unit);
                visit(unit, place);
                // AHEAD turns further on the places are the same.
                self.copy(unit + AHEAD * step, place);
                unit += step;
                turns -= 1;
            }
        }
        async_copy::wait_all();
        self.started = self.stays();
    }

    /// The thread's key outside the units: whether there is one, and its position. Only threads of the first warp have
    /// one.
    #[device_inline]
    fn fringe(&self) -> (bool, u32) {
        let thread = thread::thread_idx_x();
        let head = self.first - self.from;
        let position =
            if thread < head { self.from + thread } else { self.first + self.units * Self::KEYS + thread - head };
        (position < self.to, position)
    }

    /// The raw orders of the unit at `place`, in quads. Of keys of 32 bits there is one quad.
    ///
    /// # Safety
    /// The unit is in the ring.
    #[device_inline]
    unsafe fn raw_orders(&self, place: SharedPtr<U32x4>) -> [[u32; 4]; 2] {
        // SAFETY: as the caller promises.
        let unit = unsafe { place.load() };
        let mut raw = [[u32::MAX; 4]; 2];
        unroll::<2>(|q| {
            if (q as u32) < Self::KEYS / 4 {
                raw[q] = K::unit_bits(unit, q).map(|bits| K::raw_order(bits ^ self.row.flip));
            }
        });
        raw
    }

    /// Writes the entries of the part at or below `threshold` to `survivors`, as many as there is room for, and their
    /// number to `count`. All threads of the block arrive; ends with a barrier.
    ///
    /// # Safety
    /// As [`Self::turns`]; `survivors` has room for `capacity` entries, and no other code uses it or `count`.
    #[device_inline]
    unsafe fn filter(&mut self, threshold: u64, count: SharedPtr<u32>, survivors: SharedPtr<u64>, capacity: u32) {
        let (thread, threads) = (thread::thread_idx_x(), thread::block_dim_x());
        let row = self.row;
        let (first, units) = (self.first, self.units);
        let bound = entry::key(threshold);
        // With a threshold among NaN every key may pass: a bit for each key of a unit.
        let all = if bound > K::WORST { (1 << Self::KEYS) - 1 } else { 0 };
        // Whether the bits of a key and its position decide. With ids the ids decide about ties.
        let decided = row.ids.is_none() && all == 0 && bound > K::BEST;
        // Up to this unit ties pass. Behind it only better keys do: none if there are none.
        let tied = if decided { entry::payload(threshold).saturating_add(1) } else { u32::MAX };
        let ties_end = (tied.saturating_sub(first) / Self::KEYS).min(units);
        let (mark, strict_mark) = (K::bits_up_to(bound), K::bits_up_to(bound.wrapping_sub(1)));
        // SAFETY: a place within the capacity belongs to the thread that has counted it.
        let store = |place: u32, found: u64| unsafe {
            if place < capacity {
                survivors.add(place).store(found);
            }
        };
        let append = |found: u64| {
            // EMPTY is above every threshold.
            if found <= threshold {
                // SAFETY: the counter was set before a barrier.
                store(unsafe { atomic::shared_add_u32(count, 1) }, found);
            }
        };
        // SAFETY: as the caller promises; units exist where their number is below `units`.
        unsafe {
            if thread == 0 {
                count.store(0);
            }
            thread::sync_threads();
            let part = *self;
            let (exists, position) = part.fringe();
            if exists {
                append(row.entry(row.raw(position), position));
            }
            // The ties of the unit in which they end.
            if ties_end < units && thread < tied.saturating_sub(first + ties_end * Self::KEYS) {
                let position = tied - 1 - thread;
                let found = row.entry(row.raw(position), position);
                if entry::key(found) == bound {
                    append(found);
                }
            }
            self.turns(|unit, place| {
                // A bit for each of the lane's keys that pass, or may pass.
                let mut hits = 0u32;
                unroll::<UNITS>(|u| {
                    let (unit, place) = (unit + u as u32 * threads, place.add(u as u32 * threads));
                    if unit < units {
                        let keys = place.load();
                        let mark = if unit < ties_end { mark } else { strict_mark };
                        hits |= all << (u as u32 * Self::KEYS);
                        unroll::<8>(|e| {
                            if (e as u32) < Self::KEYS {
                                let bits = K::unit_bits(keys, e / 4)[e % 4] ^ row.flip;
                                if K::at_or_before(bits, mark) {
                                    hits |= 1 << (u as u32 * Self::KEYS + e as u32);
                                }
                            }
                        });
                    }
                });
                if warp::any(FULL_MASK, hits != 0) {
                    let mut own = 0;
                    if decided && hits != 0 {
                        own = atomic::shared_add_u32(count, hits.count_ones());
                    }
                    while hits != 0 {
                        let key = hits.trailing_zeros();
                        hits &= hits - 1;
                        let (ahead, key) = (key / Self::KEYS * threads, key % Self::KEYS);
                        // The key is read again: choosing among registers by a number takes longer.
                        let stored = place.add(ahead).cast::<K::Stored>().add(key).load();
                        let raw = K::raw_order(K::bits(stored) ^ row.flip);
                        let position = first + (unit + ahead) * Self::KEYS + key;
                        if decided {
                            store(own, entry::pack(K::order_of_number(raw), position));
                            own += 1;
                        } else {
                            append(row.entry(raw, position));
                        }
                    }
                    warp::sync_warp(FULL_MASK);
                }
            });
            thread::sync_threads();
        }
    }
}

/// A part of a row whose keys are counted with those of the other blocks of the cluster.
struct CountedPart<'a, K: Key> {
    part: &'a mut Part<K>,
    /// [`BINS`] counters, for the sums over the blocks.
    sums: SharedPtr<u32>,
}

impl<K: Key> Counted<K> for CountedPart<'_, K> {
    #[device_inline]
    unsafe fn scan(&mut self, mut visit: impl FnMut([u32; 4], u32, u32)) {
        let threads = thread::block_dim_x();
        let part = *self.part;
        // SAFETY: as the caller promises.
        unsafe {
            self.part.turns(|unit, place| {
                unroll::<UNITS>(|u| {
                    let unit = unit + u as u32 * threads;
                    if unit < part.units {
                        let raw = part.raw_orders(place.add(u as u32 * threads));
                        let position = part.first + unit * Part::<K>::KEYS;
                        visit(raw[0], position, 4);
                        if Part::<K>::KEYS == 8 {
                            visit(raw[1], position + 4, 4);
                        }
                    }
                });
            });
            let (exists, position) = part.fringe();
            if exists {
                visit([part.row.raw(position), u32::MAX, u32::MAX, u32::MAX], position, 1);
            }
        }
    }

    #[device_inline]
    unsafe fn joined(&mut self, bins: SharedPtr<u32>) -> SharedPtr<u32> {
        let blocks = cluster::block_count();
        cluster::sync();
        let mut bin = thread::thread_idx_x();
        while bin < BINS {
            let (mut sum, mut rank) = (0, 0);
            while rank < blocks {
                let mut counts = [0; FETCHED];
                unroll::<FETCHED>(|f| {
                    if rank + (f as u32) < blocks {
                        // SAFETY: the blocks have counted, and change their counters after the next barrier.
                        counts[f] = unsafe { cluster::peer(bins.add(bin), rank + f as u32).load() };
                    }
                });
                unroll::<FETCHED>(|f| sum += counts[f]);
                rank += FETCHED as u32;
            }
            // SAFETY: bin < BINS.
            unsafe { self.sums.add(bin).store(sum) };
            bin += thread::block_dim_x();
        }
        cluster::sync();
        self.sums
    }
}

/// The logarithm of a power of two. The compiler does not see that numbers of blocks and threads are such, and divides.
#[device_inline]
fn log2(power: u32) -> u32 {
    power.trailing_zeros() % 32
}

/// The block whose range `found` belongs to: the number of splitters up to it. There are `blocks` − 1, a power of two
/// less one, and ascend.
///
/// # Safety
/// No thread writes the splitters.
#[device_inline]
unsafe fn range_of(splitters: SharedPtr<u64>, blocks: u32, found: u64) -> u32 {
    let (mut range, mut step) = (0, blocks / 2);
    while step > 0 {
        // SAFETY: range + step < blocks.
        if unsafe { splitters.add(range + step - 1).load() } <= found {
            range += step;
        }
        step /= 2;
    }
    range
}

/// Number of words that a thread reads from peers before it uses the first.
const FETCHED: usize = 4;

/// The body of the kernels `cluster_select_*`. All threads of the cluster arrive.
///
/// # Safety
/// As [`ClusterSelect`].
#[device_inline]
unsafe fn select_by_clusters<K: Key>(launch: ClusterSelect) {
    let ClusterSelect { table, k, capacity, out } = launch;
    let (rank, blocks) = (cluster::block_rank(), cluster::block_count());
    let blocks_log = log2(blocks);
    let number = thread::block_idx_x() >> blocks_log;
    let (thread, threads) = (thread::thread_idx_x(), thread::block_dim_x());
    let lane = warp::lane_id();
    let Areas { header, survivors, ring, .. } = Areas::new(shared::dynamic(), capacity);
    // SAFETY: the caller promises the shapes. Areas that overlap are used one after the other, with barriers between:
    // the ring, then what peers send, then those of the sort. Only the blocks of this row write its results, and
    // every rank has one survivor.
    unsafe {
        let row = Row::<K>::of(table, number);
        let (len, wanted) = (row.len, k.min(row.len));
        Part::of(row, rank, blocks, ring).start();
        let (extremes, sums) = (header.add(SORT_WORD), header.add(SUMS_WORD));
        let splitters = header.add(SPLITTERS_WORD).cast::<u64>();
        let mut threshold = ALL;
        if len > capacity {
            let plan = SamplePlan::new(wanted, len, BLOCK_GROUP_KEYS);
            // If there are two threads for each group, each takes half of its keys.
            let halves = 1 + (threads >= 2 * plan.groups) as u32;
            let step = threads >> (halves - 1);
            let half = (thread >= step) as u32;
            let middle = plan.group_keys.div_ceil(halves);
            let turns = if half == 0 { (0, middle) } else { (middle, plan.group_keys) };
            let groups = (thread - half * step, step);
            let bests = survivors.add(half * MOST_GROUPS);
            row.sample_groups::<4>(plan, groups, turns, |group, best| bests.add(group).store(best));
            thread::sync_threads();
            if halves == 2 {
                if thread < plan.groups {
                    let best = survivors.add(thread);
                    best.store(best.load().min(survivors.add(MOST_GROUPS + thread).load()));
                }
                thread::sync_threads();
            }
            let moved = survivors.add(MOST_GROUPS);
            let buckets = moved.add(MOST_GROUPS).cast();
            let workspace = BucketWorkspace { extremes, sums, buckets, moved };
            let emit = |rank: u32, best: u64| survivors.add(rank).store(best);
            let sorted = if bucket_order::<K, GROUP_BITS>(survivors, plan.groups, plan.rank, workspace, emit) {
                survivors
            } else {
                block_sort(survivors, moved, plan.groups, plan.rank)
            };
            threshold = sorted.add(plan.rank - 1).load();
            // Each block gets a range of as many groups' best.
            if thread < blocks - 1 {
                splitters.add(thread).store(sorted.add(((thread + 1) * plan.rank) >> blocks_log).load());
            }
            threshold = threshold.min(ALL);
        } else if thread < blocks - 1 {
            // Without a sample the first block gets all.
            splitters.add(thread).store(EMPTY);
        }
        let slot = |rank: u32| number as usize * out.stride as usize + rank as usize;
        let mut total;
        if thread == 0 {
            header.add(START_WORD).store(header.address());
            header.add(RANK_WORD).store(rank);
        }
        thread::sync_threads();
        // From a rank that the compiler cannot know it makes the part again, and the sample has registers.
        let rank = header.add(RANK_WORD).load();
        let mut part = Part { started: true, ..Part::of(row, rank, blocks, ring) };
        loop {
            // From an address that the compiler cannot know it does not compute the addresses of all steps before the
            // loop, for which there are not enough registers.
            let start = SharedPtr::from_address(header.add(START_WORD).load());
            let Areas { header, survivors, ring, moved, buckets } = Areas::new(start, capacity);
            part.ring = ring;
            let (extremes, sums) = (header.add(SORT_WORD), header.add(SUMS_WORD));
            part.filter(threshold, header, survivors, capacity);
            let count = header.load();
            total = count;
            // Whether every key passes. The threshold itself would take two registers until the end of the sort.
            let all = threshold == ALL;
            let alone = blocks == 1;
            let (mut entries, mut other, mut own, mut before) = (survivors, moved, count, 0);
            if !alone {
                let splitters = header.add(SPLITTERS_WORD).cast::<u64>();
                let (received, sent) = (header.add(RECEIVED_WORD), header.add(SENT_WORD));
                // How many each block has sent to each, where the buckets are later.
                let all_sent = buckets;
                if thread == 0 {
                    received.store(0);
                }
                if thread < blocks {
                    sent.add(thread).store(0);
                }
                // The rings of all blocks are free.
                cluster::sync();
                let mut place = thread;
                while place < count.min(capacity) {
                    let found = survivors.add(place).load();
                    let to = range_of(splitters, blocks, found);
                    atomic::shared_add_u32(sent.add(to), 1);
                    let at = cluster::add_u32(cluster::peer(received, to), 1);
                    if at < capacity {
                        cluster::peer(moved.add(at), to).store(found);
                    }
                    place += threads;
                }
                thread::sync_threads();
                let mut task = thread;
                while task < blocks << blocks_log {
                    let (of, to) = (task & (blocks - 1), task >> blocks_log);
                    // Survivors without room count too.
                    let lost = if of == rank { count.saturating_sub(capacity) } else { 0 };
                    let place = cluster::peer(all_sent.add((rank << blocks_log) + of), to);
                    place.store(sent.add(of).load() + lost);
                    task += threads;
                }
                // Behind this barrier no block accesses a peer.
                cluster::sync();
                let mut of_lane = 0;
                if lane < blocks {
                    let mut from = 0;
                    while from < blocks {
                        of_lane += all_sent.add((from << blocks_log) + lane).load();
                        from += 1;
                    }
                }
                total = warp::butterfly_sum(of_lane);
                own = warp::shuffle_idx(FULL_MASK, of_lane, rank);
                before = warp::shuffle_idx(FULL_MASK, warp::inclusive_sum(of_lane) - of_lane, rank);
                (entries, other) = (moved, survivors);
                // All warps have read the numbers.
                thread::sync_threads();
            }
            if enough(total, wanted, capacity, all) {
                let keep = own.min(wanted.saturating_sub(before));
                let workspace = BucketWorkspace { extremes, sums, buckets, moved: other };
                let emit = |rank: u32, found: u64| store_result::<K>(found, table.flip, out, slot(before + rank));
                if !bucket_order::<K, BUCKET_BITS>(entries, own, keep, workspace, emit) {
                    let sorted = block_sort(entries, other, own, keep);
                    let mut place = thread;
                    while place < keep {
                        store_result::<K>(sorted.add(place).load(), table.flip, out, slot(before + place));
                        place += threads;
                    }
                }
                break;
            }
            // What peers have sent is where the keys were.
            part.started = part.started && alone;
            let bins = survivors.cast::<u32>();
            let mut counted = CountedPart { part: &mut part, sums: bins.add(BINS) };
            threshold = row.exact_threshold_by(&mut counted, wanted, bins, header.add(1));
        }
        if rank == 0 {
            let mut place = total.min(wanted) + thread;
            while place < k {
                store_result::<K>(EMPTY, table.flip, out, slot(place));
                place += threads;
            }
        }
    }
}
