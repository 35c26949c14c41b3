//! ThresholdSelect: the k best of each row by a bound from a sample, one pass over the keys, and a sort of what is left.
//!
//! # Problem
//! As [`crate::warp_select`], for every key type, any k and any row: the best k entries (key, position), sorted.
//!
//! # Algorithm
//! ```text
//! threshold = the entry of rank j in a sample of the row          // j: so that k and a few more of the row are below
//! survivors = entries of the row at or below the threshold        // one pass, one comparison a key
//! if fewer than k, or more than there is room for:                // rare, for any data
//!     threshold = the k-th best entry, by radix counting          // exact: exactly k survivors
//!     survivors = entries at or below it
//! sort the survivors; the first k are the answer
//! ```
//! Whatever the threshold, k survivors or more contain the best k: the sample decides how long the work takes, never its
//! result. A row that fits in the room needs no threshold.
//!
//! Three ways to run it, for rows of different number and length:
//! 1. *block*: one block a row does all of it, survivors in shared memory ([`threshold_select_f32`]);
//! 2. *grid*: for few long rows. [`row_thresholds_f32`], one block a row and up to 16 for the longest; [`filter_rows_f32`], many
//!    blocks a row, survivors to a list in global memory; then [`threshold_select_f32`] takes the survivors from the list;
//! 3. *list*: for k beyond shared memory. The first two kernels of *grid*, [`repair_lists_f32`] for a list that came out too
//!    short or too long, then a merge sort of the lists in global memory ([`crate::list_sort`]).
//!
//! Where the steps are: rows are read as [`crate::rows`] says, the sample is [`crate::sample`], the filter
//! [`crate::survivors`], the exact threshold [`crate::radix`], the sort [`crate::block_sort`].
//!
//! Ties need no care: a threshold is an entry, not a key. In a row of equal keys the sample's positions decide, and the
//! threshold lets the first positions through.
//!
//! # Cost
//! Floor: one read of the row. Sample: n·g keys, 3 % of a row of 128,000. Survivors are about 1.3·k to 2·k for k ≥ 1,000 and
//! j·ℓ/(n·g) for small k (500 for k = 100, ℓ = 128,000). Per key about 5 instructions: order, minimum of four, a vote
//! per 128 keys. Sort: [`crate::block_sort`].
//!
//! # What lost (H200)
//! - A place in the list for every find: a global atomic whose answer the warp waits for; 128 rows of 10⁶ took 0.24 ms at k = 100 for
//!   0.16 with a stage in shared memory.
//! - Sixteen copies of the code that appends a survivor: registers spilled. A loop over the hits of a lane costs less as well.
//! - A sample in nearly the right order: groups far from the others took the leading bits, the others' order was lost, and rows of two
//!   values overflowed.
//! - A sharper threshold by more keys a group: with q above ¼ random rows let through more, not fewer.
//!
//! It wins against WarpSelect wherever rows are long: no queue, no merge while reading, registers free for loads in flight.

use cuda_std::shared::SharedPtr;
use cuda_std::{atomic, global, kernel, shared, shared_array, thread};

use crate::block_sort::{ORDER_HEADER_BYTES, OrderWorkspace, block_order};
use crate::entry::{self, EMPTY};
use crate::keys::{Bf16Key, F16Key, F32Key, I32Key, Key, U32Key};
use crate::radix::BINS;
use crate::rows::{Row, RowTable};
use crate::sample::{BLOCK_GROUP_KEYS, MOST_GROUPS, SamplePlan, threshold_of_groups};
use crate::survivors::{ListSink, SharedSink, StagedSink};

/// Threads in a block of the kernels that only filter or look for thresholds.
pub const FILTER_THREADS: u32 = 256;
/// Survivors that a block has room for, at least: a sample, and the counters of the radix passes, lie in the same memory.
pub const LEAST_CAPACITY: u32 = 512;
const _: () = assert!(MOST_GROUPS <= LEAST_CAPACITY && 4 * BINS <= 16 * LEAST_CAPACITY);
/// Words before the survivors in shared memory: a counter and two words of a radix pass, and behind them the sort's.
const HEADER_WORDS: u32 = 4 + ORDER_HEADER_BYTES / 4 + 2;
/// The threshold that every entry passes.
pub const ALL: u64 = EMPTY - 1;
/// Survivors that a filtering block keeps until it is done.
const STAGE: usize = 1024;

/// Shared memory of a block with room for `capacity` survivors, and two words for each, between which sorting moves.
pub const fn shared_bytes(capacity: u32) -> u32 {
    4 * HEADER_WORDS + 16 * capacity
}

/// Whether `count` survivors of `threshold` hold the best k, all of them in their places.
#[inline(always)]
fn enough(count: u32, k: u32, capacity: u32, threshold: u64) -> bool {
    count <= capacity && (count >= k || threshold == ALL)
}

/// Writes result `place` of a row as key and payload; [`EMPTY`] becomes the worst key and [`NO_ROW`].
///
/// # Safety
/// Both pointers are writable at the place.
#[inline(always)]
pub(crate) unsafe fn store_result<K: Key>(
    found: u64,
    flip: u32,
    out_keys: *mut K::Stored,
    out_ids: *mut u32,
    at: usize,
) {
    let order = if found == EMPTY { K::WORST } else { entry::key(found) };
    let bits = K::unorder(order);
    // NaN and zero have one pattern each, whichever way the order goes.
    let is_float = K::NAN != K::WORST;
    let keep = is_float && (order == K::NAN || bits == 0);
    // SAFETY: as the caller promises.
    unsafe {
        global::store(out_keys.wrapping_add(at), K::stored(if keep { bits } else { bits ^ flip }));
        global::store(out_ids.wrapping_add(at), entry::payload(found));
    }
}

/// Shared memory of a block, for `capacity` entries.
#[derive(Clone, Copy)]
pub(crate) struct Workspace {
    /// Counters.
    pub header: SharedPtr<u32>,
    /// Survivors.
    pub entries: SharedPtr<u64>,
    /// Two words for each.
    pub order: OrderWorkspace,
}

impl Workspace {
    #[inline(always)]
    pub fn new(capacity: u32) -> Workspace {
        let header = shared::dynamic::<u32>();
        // SAFETY: the launch gives `shared_bytes(capacity)`.
        unsafe {
            let entries = header.add(HEADER_WORDS).cast::<u64>();
            let words = entries.add(capacity).cast::<u32>();
            Workspace { header, entries, order: OrderWorkspace { header: header.add(4).cast(), words, capacity } }
        }
    }
}

/// The body of `threshold_select_*`.
///
/// # Safety
/// As [`threshold_select_f32`].
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "kernel parameters")]
pub(crate) unsafe fn select_row<K: Key>(
    keys: *const K::Stored,
    ids: *const u32,
    table: RowTable,
    flip: u32,
    k: u32,
    capacity: u32,
    thresholds: *const u64,
    lists: *const u64,
    counts: *const u32,
    out_keys: *mut K::Stored,
    out_ids: *mut u32,
    out_stride: u32,
) {
    let number = thread::block_idx_x();
    let (thread, threads) = (thread::thread_idx_x(), thread::block_dim_x());
    let Workspace { header, entries, order } = Workspace::new(capacity);
    // SAFETY: the caller promises the shapes; one block has the row's workspace and results to itself.
    unsafe {
        let row = Row::<K>::of(table, number, keys, ids, flip);
        let len = row.len;
        let wanted = k.min(len);
        let listed = !lists.is_null();
        let (mut threshold, mut count) = (ALL, 0);
        if listed {
            threshold = global::load_nc(thresholds.wrapping_add(number as usize));
            count = global::load_nc(counts.wrapping_add(number as usize));
        } else if len > capacity {
            let plan = SamplePlan::new(wanted, len, BLOCK_GROUP_KEYS);
            row.sample::<4>(plan, (0, plan.group_keys), |group, best| entries.add(group).store(best));
            thread::sync_threads();
            threshold = threshold_of_groups(plan, entries, order);
        }
        let mut gathered = listed;
        loop {
            if !gathered {
                if thread == 0 {
                    header.store(0);
                }
                thread::sync_threads();
                row.filter(0, len, threshold, SharedSink { count: header, entries, capacity });
                thread::sync_threads();
                count = header.load();
            }
            if enough(count, wanted, capacity, threshold) {
                break;
            }
            thread::sync_threads();
            threshold = row.exact_threshold(wanted, entries.cast(), header.add(1));
            gathered = false;
        }
        if gathered {
            let list = lists.wrapping_add(number as usize * capacity as usize);
            let mut place = thread;
            while place < count {
                entries.add(place).store(global::load_nc(list.wrapping_add(place as usize)));
                place += threads;
            }
            thread::sync_threads();
        }
        let ordered = block_order(entries, count, wanted, order);
        let out = number as usize * out_stride as usize;
        let mut place = thread;
        while place < k {
            let found = if place < count { ordered.get(place) } else { EMPTY };
            store_result::<K>(found, flip, out_keys, out_ids, out + place as usize);
            place += threads;
        }
    }
}

/// The body of `row_thresholds_*`.
///
/// # Safety
/// As [`row_thresholds_f32`].
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "kernel parameters")]
unsafe fn threshold_of_row<K: Key>(
    keys: *const K::Stored,
    ids: *const u32,
    table: RowTable,
    flip: u32,
    k: u32,
    capacity: u32,
    blocks: u32,
    bests: *mut u64,
    tickets: *mut u32,
    thresholds: *mut u64,
    counts: *mut u32,
) {
    let (number, block) = (thread::block_idx_x() / blocks.max(1), thread::block_idx_x() % blocks.max(1));
    let thread = thread::thread_idx_x();
    let Workspace { header, entries, order } = Workspace::new(MOST_GROUPS);
    // SAFETY: the caller promises the shapes.
    unsafe {
        let row = Row::<K>::of(table, number, keys, ids, flip);
        let len = row.len;
        let mut threshold = ALL;
        if len > capacity {
            let plan = SamplePlan::new(k.min(len), len, blocks * BLOCK_GROUP_KEYS);
            let first = (block * BLOCK_GROUP_KEYS).min(plan.group_keys);
            let turns = (first, plan.group_keys.min(first + BLOCK_GROUP_KEYS));
            // With several blocks the groups meet in global memory, and the last block to come goes on.
            let shared = bests.wrapping_add(number as usize * MOST_GROUPS as usize);
            row.sample::<16>(plan, turns, |group, best| {
                if blocks > 1 {
                    atomic::min_u64(shared.wrapping_add(group as usize), best);
                } else {
                    entries.add(group).store(best);
                }
            });
            if blocks > 1 {
                thread::fence();
                thread::sync_threads();
                if thread == 0 {
                    // Tickets start at all ones, as the groups do: the first block turns that to 0.
                    let ticket = atomic::add_u32(tickets.wrapping_add(number as usize), 1).wrapping_add(1);
                    header.store((ticket == blocks - 1) as u32);
                }
                thread::sync_threads();
                if header.load() == 0 {
                    return;
                }
                thread::fence();
                let mut group = thread;
                while group < plan.groups {
                    entries.add(group).store(global::load_volatile(shared.wrapping_add(group as usize)));
                    group += FILTER_THREADS;
                }
            }
            thread::sync_threads();
            threshold = threshold_of_groups(plan, entries, order);
        }
        if thread == 0 && (len > capacity || block == 0) {
            global::store(thresholds.wrapping_add(number as usize), threshold);
            global::store(counts.wrapping_add(number as usize), 0);
        }
    }
}

/// The body of `filter_rows_*`.
///
/// # Safety
/// As [`filter_rows_f32`].
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "kernel parameters")]
unsafe fn filter_segment<K: Key>(
    keys: *const K::Stored,
    ids: *const u32,
    table: RowTable,
    flip: u32,
    segments: u32,
    segment_columns: u32,
    capacity: u32,
    thresholds: *const u64,
    lists: *mut u64,
    counts: *mut u32,
) {
    let number = thread::block_idx_x() / segments.max(1);
    let segment = thread::block_idx_x() % segments.max(1);
    // SAFETY: the caller promises the shapes.
    unsafe {
        let row = Row::<K>::of(table, number, keys, ids, flip);
        let len = row.len;
        let from = (segment * segment_columns).min(len);
        let to = len.min(from + segment_columns);
        let header = shared_array!(u32, 4);
        let stage = SharedSink { count: header, entries: shared_array!(u64, STAGE), capacity: STAGE as u32 };
        let list = ListSink {
            count: counts.wrapping_add(number as usize),
            entries: lists.wrapping_add(number as usize * capacity as usize),
            capacity,
        };
        let sink = StagedSink { stage, list };
        if thread::thread_idx_x() == 0 {
            header.store(0);
        }
        thread::sync_threads();
        row.filter(from, to, global::load_nc(thresholds.wrapping_add(number as usize)), sink);
        thread::sync_threads();
        sink.flush(header.add(1));
    }
}

/// The body of `repair_lists_*`.
///
/// # Safety
/// As [`repair_lists_f32`].
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "kernel parameters")]
unsafe fn repair_list<K: Key>(
    keys: *const K::Stored,
    ids: *const u32,
    table: RowTable,
    flip: u32,
    k: u32,
    capacity: u32,
    thresholds: *const u64,
    lists: *mut u64,
    counts: *mut u32,
) {
    let number = thread::block_idx_x();
    let Workspace { header, entries, .. } = Workspace::new(LEAST_CAPACITY);
    // SAFETY: the caller promises the shapes.
    unsafe {
        let row = Row::<K>::of(table, number, keys, ids, flip);
        let (len, wanted) = (row.len, k.min(row.len));
        let threshold = global::load_nc(thresholds.wrapping_add(number as usize));
        let count = counts.wrapping_add(number as usize);
        if enough(global::load(count), wanted, capacity, threshold) {
            return;
        }
        let threshold = row.exact_threshold(wanted, entries.cast(), header.add(1));
        if thread::thread_idx_x() == 0 {
            global::store(count, 0);
        }
        thread::sync_threads();
        let entries = lists.wrapping_add(number as usize * capacity as usize);
        row.filter(0, len, threshold, ListSink { count, entries, capacity });
    }
}

/// Kernels of one key type.
macro_rules! define_kernels {
    ($(($key:ident, $select:ident, $thresholds:ident, $filter:ident, $repair:ident))*) => {$(
        /// Selects the best `k` of each row, sorted.
        ///
        /// Rows lie as [`RowTable`] says, from `keys` on, and ids beside them where `ids` is not null (a key with the id
        /// `NO_ROW` is not there; ties go by id). Results of row r go to `out_keys` and `out_ids` from r · `out_stride`: k keys
        /// with their ids (positions in the row where `ids` is null), missing ones as the worst key and `NO_ROW`. `flip` is 0
        /// for the smallest, `Key::FLIP` for the largest.
        ///
        /// Where `lists` is not null, a row's survivors are there already: `counts[r]` entries of `thresholds[r]` from
        /// r · `capacity`, as the filter kernel left them.
        ///
        /// Grid: a block a row, of 32 to 512 threads (a multiple of 32), with [`shared_bytes`] of `capacity`.
        ///
        /// # Safety
        /// All pointers that are not null cover the shapes above; 1 ≤ k ≤ out_stride, min(k, columns) ≤ capacity, 512 ≤ capacity.
        #[kernel(max_threads = 512, min_blocks = 2)]
        pub unsafe fn $select(
            keys: *const <$key as Key>::Stored, ids: *const u32, stride: u64, starts: *const u64, lengths: *const u32,
            columns: u32, flip: u32, k: u32, capacity: u32, thresholds: *const u64, lists: *const u64,
            counts: *const u32, out_keys: *mut <$key as Key>::Stored, out_ids: *mut u32, out_stride: u32,
        ) {
            // SAFETY: the same contract.
            unsafe {
                select_row::<$key>(
                    keys, ids, RowTable { stride, starts, lengths, columns }, flip, k, capacity, thresholds, lists,
                    counts, out_keys, out_ids, out_stride,
                )
            }
        }

        /// Finds the threshold of each row for the best `k`, from a sample, and sets its count of survivors to 0. Rows of
        /// at most `capacity` keys need none and get [`ALL`]. `blocks` blocks share the sample of a row.
        ///
        /// Grid: rows · `blocks` blocks of [`FILTER_THREADS`], with [`shared_bytes`] of [`MOST_GROUPS`].
        ///
        /// # Safety
        /// Rows are as for the selection; min(k, columns) ≤ capacity; `thresholds` and `counts` have an element a row. With more
        /// than one block, `bests` ([`MOST_GROUPS`] a row) and `tickets` (one a row) are all ones.
        #[kernel(max_threads = 256)]
        pub unsafe fn $thresholds(
            keys: *const <$key as Key>::Stored, ids: *const u32, stride: u64, starts: *const u64, lengths: *const u32,
            columns: u32, flip: u32, k: u32, capacity: u32, blocks: u32, bests: *mut u64, tickets: *mut u32,
            thresholds: *mut u64, counts: *mut u32,
        ) {
            // SAFETY: the same contract.
            unsafe {
                threshold_of_row::<$key>(
                    keys, ids, RowTable { stride, starts, lengths, columns }, flip, k, capacity, blocks, bests, tickets,
                    thresholds, counts,
                )
            }
        }

        /// Appends the entries of each row at or below its threshold to its list, `capacity` entries from
        /// row · `capacity`, in any order; `counts` also counts what had no room.
        ///
        /// Grid: rows · `segments` blocks of [`FILTER_THREADS`]; each filters `segment_columns` keys of a row.
        ///
        /// # Safety
        /// Rows are as for the selection; the kernel above has run; segments · segment_columns ≥ columns.
        #[kernel(max_threads = 256, min_blocks = 5)]
        pub unsafe fn $filter(
            keys: *const <$key as Key>::Stored, ids: *const u32, stride: u64, starts: *const u64, lengths: *const u32,
            columns: u32, flip: u32, segments: u32, segment_columns: u32, capacity: u32, thresholds: *const u64,
            lists: *mut u64, counts: *mut u32,
        ) {
            // SAFETY: the same contract.
            unsafe {
                filter_segment::<$key>(
                    keys, ids, RowTable { stride, starts, lengths, columns }, flip, segments, segment_columns, capacity,
                    thresholds, lists, counts,
                )
            }
        }

        /// Makes the lists that do not hold the best `k` anew, from the exact threshold: they then hold just those.
        ///
        /// Grid: a block a row, of [`FILTER_THREADS`], with [`shared_bytes`] of [`LEAST_CAPACITY`].
        ///
        /// # Safety
        /// As for the filter kernel, which has run; min(k, columns) ≤ capacity.
        #[kernel(max_threads = 256, min_blocks = 4)]
        pub unsafe fn $repair(
            keys: *const <$key as Key>::Stored, ids: *const u32, stride: u64, starts: *const u64, lengths: *const u32,
            columns: u32, flip: u32, k: u32, capacity: u32, thresholds: *const u64, lists: *mut u64, counts: *mut u32,
        ) {
            // SAFETY: the same contract.
            unsafe {
                repair_list::<$key>(
                    keys, ids, RowTable { stride, starts, lengths, columns }, flip, k, capacity, thresholds, lists, counts,
                )
            }
        }
    )*};
}
define_kernels! {
    (F32Key, threshold_select_f32, row_thresholds_f32, filter_rows_f32, repair_lists_f32)
    (F16Key, threshold_select_f16, row_thresholds_f16, filter_rows_f16, repair_lists_f16)
    (Bf16Key, threshold_select_bf16, row_thresholds_bf16, filter_rows_bf16, repair_lists_bf16)
    (I32Key, threshold_select_i32, row_thresholds_i32, filter_rows_i32, repair_lists_i32)
    (U32Key, threshold_select_u32, row_thresholds_u32, filter_rows_u32, repair_lists_u32)
}
