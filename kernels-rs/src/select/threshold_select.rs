//! ThresholdSelect: the k best of each row by a bound from a sample, one pass over the keys, and a sort of the
//! survivors.
//!
//! # Problem
//! As [`crate::select::warp_select`], for every key type, any k and any row: the best k entries (key, position),
//! sorted.
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
//! For any threshold, k survivors or more contain the best k: the sample affects only the time, never the result. A row
//! that fits in the capacity needs no threshold. There are three ways to run it, for different numbers and lengths of
//! rows:
//! 1. *block*: one block for each row does all steps, with survivors in shared memory ([`ThresholdSelect`]);
//! 2. *grid*: for few long rows. [`RowThresholds`] uses one block for each row and up to 16 for the longest;
//!    [`FilterRows`] uses many blocks for each row and writes survivors to a list in global memory; then
//!    [`ThresholdSelect`] selects from the list;
//! 3. *list*: for k beyond shared memory. The first two kernels of *grid*, [`RepairLists`] for lists that are too short
//!    or too long, then a merge sort of the lists in global memory ([`crate::select::list_sort`]).
//!
//! The modules of the steps: reading rows is [`crate::select::rows`], the sample [`crate::select::sample`], the filter
//! [`crate::select::survivors`], the exact threshold [`crate::select::radix`], the sort [`crate::select::block_sort`].
//!
//! Ties need no special treatment, because a threshold is an entry, not a key. In a row of equal keys the positions of
//! the sample decide, and the first positions pass the threshold.
//!
//! # Cost
//! Floor: one read of the row. Sample: n·g keys, 3 % of a row of 128,000. Survivors are about 1.3·k to 2·k for k ≥
//! 1,000 and j·ℓ/(n·g) for small k (500 for k = 100, ℓ = 128,000). Per key about 5 instructions: order, minimum of
//! four, a vote per 128 keys. Sort: [`crate::select::block_sort`].
//!
//! # What lost (H200)
//! - A place in the list for each single survivor: a global atomic for whose result the warp waits. 128 rows of 10⁶
//!   took 0.24 ms at k = 100, and 0.16 ms with a stage in shared memory.
//! - Sixteen copies of the code that appends a survivor: registers spilled. A loop over the survivors of a lane is also
//!   faster.
//! - A sample in approximate order: groups far from the others determined the leading bits, so the order of the others
//!   was lost, and rows of two values overflowed.
//! - A sharper threshold by more keys in a group: with q above ¼, more keys of random rows passed, not fewer.
//!
//! [`crate::select::cluster_select`] has the same steps in one launch, on devices that have clusters of blocks.
//!
//! It is faster than WarpSelect if rows are long: there is no queue and no merge while reading, so registers are free
//! for loads in flight.

use cuda_std::launch::LaunchConfig;
use cuda_std::shared::SharedPtr;
use cuda_std::{Ptr, PtrMut, atomic, device_inline, global, kernel, shared, shared_array, thread};

use crate::select::block_sort::{ORDER_HEADER_BYTES, OrderWorkspace, block_order};
pub use crate::select::entry::ALL;
use crate::select::entry::{self, EMPTY};
use crate::select::keys::{Bf16Key, F16Key, F32Key, I32Key, Key, KeyType, U32Key};
use crate::select::radix::BINS;
use crate::select::rows::{KeyTable, Row, SelectedRows};
use crate::select::sample::{BLOCK_GROUP_KEYS, MOST_GROUPS, SamplePlan, threshold_of_groups};
use crate::select::survivors::{ListSink, SharedSink, StagedSink};

/// Number of threads of a block of the kernels that only filter or find thresholds.
pub const FILTER_THREADS: u32 = 256;
/// Smallest capacity for survivors of a block, because a sample and the counters of the radix passes use the same
/// memory.
pub const LEAST_CAPACITY: u32 = 512;
const _: () = assert!(MOST_GROUPS <= LEAST_CAPACITY && 4 * BINS <= 16 * LEAST_CAPACITY);
/// Number of words before the survivors in shared memory: a counter, two words of a radix pass, and the words of the
/// sort.
const HEADER_WORDS: u32 = 4 + ORDER_HEADER_BYTES / 4 + 2;
/// Number of survivors that a filtering block holds in shared memory.
const STAGE: usize = 1024;

/// Shared memory of a block in bytes, for `capacity` survivors and two words for each, between which the sort moves
/// them.
pub const fn shared_bytes(capacity: u32) -> u32 {
    4 * HEADER_WORDS + 16 * capacity
}

/// Whether `count` survivors include the best k, and all of them fit in the capacity. `all`: every key passed.
#[device_inline]
pub(crate) fn enough(count: u32, k: u32, capacity: u32, all: bool) -> bool {
    count <= capacity && (count >= k || all)
}

/// Writes a result to place `at` as key and payload; [`EMPTY`] becomes the worst key and [`NO_ROW`].
///
/// # Safety
/// Both arrays of `out` have the place.
#[device_inline]
pub(crate) unsafe fn store_result<K: Key>(found: u64, flip: u32, out: SelectedRows, at: usize) {
    let order = if found == EMPTY { K::WORST } else { entry::key(found) };
    let bits = K::unorder(order);
    // NaN and zero have one bit pattern each, in both orders.
    let is_float = K::NAN != K::WORST;
    let keep = is_float && (order == K::NAN || bits == 0);
    // SAFETY: as the caller promises.
    unsafe {
        global::store(out.keys.cast::<K::Stored>().wrapping_add(at), K::stored(if keep { bits } else { bits ^ flip }));
        global::store(out.ids.wrapping_add(at), entry::payload(found));
    }
}

/// Shared memory of a block, for `capacity` entries.
#[derive(Clone, Copy)]
pub(crate) struct Workspace {
    /// The counters of the row, in shared memory.
    pub header: SharedPtr<u32>,
    /// The survivors of the row, in shared memory.
    pub entries: SharedPtr<u64>,
    /// Memory of two words for each survivor.
    pub order: OrderWorkspace,
}

impl Workspace {
    #[device_inline]
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

/// Selects the best `k` of each row, sorted.
///
/// If `lists` is present, it holds the survivors of each row: `counts[r]` entries at or below `thresholds[r]`, from r ·
/// `capacity` of `lists` on, as [`FilterRows`] wrote them.
///
/// # Safety
/// The pointers that are present cover the shapes that the fields give. 1 ≤ k ≤ `out.stride`;
/// min(k, columns) ≤ capacity; [`LEAST_CAPACITY`] ≤ capacity.
#[kernel(
    key = KeyType,
    max_threads = 512,
    min_blocks = 2,
    KeyType::F32 => threshold_select_f32 = select_rows::<F32Key>,
    KeyType::F16 => threshold_select_f16 = select_rows::<F16Key>,
    KeyType::Bf16 => threshold_select_bf16 = select_rows::<Bf16Key>,
    KeyType::I32 => threshold_select_i32 = select_rows::<I32Key>,
    KeyType::U32 => threshold_select_u32 = select_rows::<U32Key>,
)]
pub struct ThresholdSelect {
    /// The rows of keys.
    #[group]
    pub table: KeyTable,
    /// Number of results of a row.
    pub k: u32,
    /// Largest number of survivors of a row that a block can hold.
    pub capacity: u32,
    /// The threshold of each row; empty if `lists` is absent.
    pub thresholds: Ptr<u64>,
    /// A list of survivors for each row, `capacity` entries; absent: the kernel finds the survivors.
    pub lists: Option<Ptr<u64>>,
    /// Number of survivors of each row, including those that do not fit in the list; empty if `lists` is absent.
    pub counts: Ptr<u32>,
    /// The results: `k` of each row.
    #[group]
    pub out: SelectedRows,
}

impl ThresholdSelect {
    /// One block for each row, of `threads` threads: 32 to 512, a multiple of 32.
    pub fn config(&self, rows: u32, threads: u32) -> LaunchConfig {
        LaunchConfig::linear(rows as u64, threads).with_shared(shared_bytes(self.capacity))
    }
}

/// The body of the kernels `threshold_select_*`.
///
/// # Safety
/// As [`ThresholdSelect`].
#[device_inline]
pub(crate) unsafe fn select_rows<K: Key>(launch: ThresholdSelect) {
    let ThresholdSelect { table, k, capacity, thresholds, lists, counts, out } = launch;
    let number = thread::block_idx_x();
    let (thread, threads) = (thread::thread_idx_x(), thread::block_dim_x());
    let Workspace { header, entries, order } = Workspace::new(capacity);
    // SAFETY: the caller promises the shapes; only this block uses the row's workspace and results.
    unsafe {
        let row = Row::<K>::of(table, number);
        let len = row.len;
        let wanted = k.min(len);
        let listed = lists.is_some();
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
            if enough(count, wanted, capacity, threshold == ALL) {
                break;
            }
            thread::sync_threads();
            threshold = row.exact_threshold(wanted, entries.cast(), header.add(1));
            gathered = false;
        }
        if let Some(lists) = lists
            && gathered
        {
            let list = lists.wrapping_add(number as usize * capacity as usize);
            let mut place = thread;
            while place < count {
                entries.add(place).store(global::load_nc(list.wrapping_add(place as usize)));
                place += threads;
            }
            thread::sync_threads();
        }
        let ordered = block_order(entries, count, wanted, order);
        let first = number as usize * out.stride as usize;
        let mut place = thread;
        while place < k {
            let found = if place < count { ordered.get(place) } else { EMPTY };
            store_result::<K>(found, table.flip, out, first + place as usize);
            place += threads;
        }
    }
}

/// Finds the threshold of each row for the best `k` from a sample of the row, and sets the row's count of survivors
/// to 0. A row of at most `capacity` keys gets [`ALL`].
///
/// # Safety
/// The pointers that are present cover the shapes that the fields give; min(k, columns) ≤ capacity.
#[kernel(
    key = KeyType,
    max_threads = 256,
    KeyType::F32 => row_thresholds_f32 = find_thresholds::<F32Key>,
    KeyType::F16 => row_thresholds_f16 = find_thresholds::<F16Key>,
    KeyType::Bf16 => row_thresholds_bf16 = find_thresholds::<Bf16Key>,
    KeyType::I32 => row_thresholds_i32 = find_thresholds::<I32Key>,
    KeyType::U32 => row_thresholds_u32 = find_thresholds::<U32Key>,
)]
pub struct RowThresholds {
    /// The rows of keys.
    #[group]
    pub table: KeyTable,
    /// Number of keys of each row that are wanted.
    pub k: u32,
    /// Largest number of survivors of a row that the list can hold.
    pub capacity: u32,
    /// Number of blocks that share the sample of a row.
    pub blocks: u32,
    /// Memory in which the blocks of a row join their samples: [`MOST_GROUPS`] words for each row, all ones. Not used
    /// if `blocks` is 1.
    pub bests: PtrMut<u64>,
    /// Counter of the blocks of each row: one word, all ones. Not used if `blocks` is 1.
    pub tickets: PtrMut<u32>,
    /// The threshold of each row.
    pub thresholds: PtrMut<u64>,
    /// The count of survivors of each row, which becomes 0.
    pub counts: PtrMut<u32>,
}

impl RowThresholds {
    /// `blocks` blocks for each row.
    pub fn config(&self, rows: u32) -> LaunchConfig {
        LaunchConfig::linear(rows as u64 * self.blocks as u64, FILTER_THREADS).with_shared(shared_bytes(MOST_GROUPS))
    }
}

/// The body of the kernels `row_thresholds_*`.
///
/// # Safety
/// As [`RowThresholds`].
#[device_inline]
unsafe fn find_thresholds<K: Key>(launch: RowThresholds) {
    let RowThresholds { table, k, capacity, blocks, bests, tickets, thresholds, counts } = launch;
    let (number, block) = (thread::block_idx_x() / blocks.max(1), thread::block_idx_x() % blocks.max(1));
    let thread = thread::thread_idx_x();
    let Workspace { header, entries, order } = Workspace::new(MOST_GROUPS);
    // SAFETY: the caller promises the shapes.
    unsafe {
        let row = Row::<K>::of(table, number);
        let len = row.len;
        let mut threshold = ALL;
        if len > capacity {
            let plan = SamplePlan::new(k.min(len), len, blocks * BLOCK_GROUP_KEYS);
            let first = (block * BLOCK_GROUP_KEYS).min(plan.group_keys);
            let turns = (first, plan.group_keys.min(first + BLOCK_GROUP_KEYS));
            // With several blocks the groups are joined in global memory, and the last block continues.
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

/// Appends the entries of each row at or below its threshold to its list, in any order.
///
/// # Safety
/// The pointers that are present cover the shapes that the fields give. [`RowThresholds`] wrote `thresholds` and
/// `counts`. segments · `segment_columns` ≥ columns.
#[kernel(
    key = KeyType,
    max_threads = 256,
    min_blocks = 5,
    KeyType::F32 => filter_rows_f32 = filter_rows::<F32Key>,
    KeyType::F16 => filter_rows_f16 = filter_rows::<F16Key>,
    KeyType::Bf16 => filter_rows_bf16 = filter_rows::<Bf16Key>,
    KeyType::I32 => filter_rows_i32 = filter_rows::<I32Key>,
    KeyType::U32 => filter_rows_u32 = filter_rows::<U32Key>,
)]
pub struct FilterRows {
    /// The rows of keys.
    #[group]
    pub table: KeyTable,
    /// Number of blocks that filter one row.
    pub segments: u32,
    /// Number of keys that one block filters.
    pub segment_columns: u32,
    /// Distance from one list to the next in entries.
    pub capacity: u32,
    /// The threshold of each row.
    pub thresholds: Ptr<u64>,
    /// The survivors of each row, at most `capacity`.
    pub lists: PtrMut<u64>,
    /// Number of survivors of each row, including those that do not fit in the list.
    pub counts: PtrMut<u32>,
}

impl FilterRows {
    /// `segments` blocks for each row.
    pub fn config(&self, rows: u32) -> LaunchConfig {
        LaunchConfig::linear(rows as u64 * self.segments as u64, FILTER_THREADS)
    }
}

/// The body of the kernels `filter_rows_*`.
///
/// # Safety
/// As [`FilterRows`].
#[device_inline]
unsafe fn filter_rows<K: Key>(launch: FilterRows) {
    let FilterRows { table, segments, segment_columns, capacity, thresholds, lists, counts } = launch;
    let number = thread::block_idx_x() / segments.max(1);
    let segment = thread::block_idx_x() % segments.max(1);
    // SAFETY: the caller promises the shapes.
    unsafe {
        let row = Row::<K>::of(table, number);
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

/// Replaces each list that does not hold the best `k` by exactly the best `k`. The exact threshold takes up to six
/// passes over the row.
///
/// # Safety
/// The pointers that are present cover the shapes that the fields give. [`FilterRows`] wrote the lists. min(k, columns)
/// ≤ capacity.
#[kernel(
    key = KeyType,
    max_threads = 256,
    min_blocks = 4,
    KeyType::F32 => repair_lists_f32 = repair_lists::<F32Key>,
    KeyType::F16 => repair_lists_f16 = repair_lists::<F16Key>,
    KeyType::Bf16 => repair_lists_bf16 = repair_lists::<Bf16Key>,
    KeyType::I32 => repair_lists_i32 = repair_lists::<I32Key>,
    KeyType::U32 => repair_lists_u32 = repair_lists::<U32Key>,
)]
pub struct RepairLists {
    /// The rows of keys.
    #[group]
    pub table: KeyTable,
    /// Number of keys of each row that are wanted.
    pub k: u32,
    /// Distance from one list to the next in entries.
    pub capacity: u32,
    /// The threshold with which each list was made.
    pub thresholds: Ptr<u64>,
    /// The survivors of each row, at most `capacity`.
    pub lists: PtrMut<u64>,
    /// Number of survivors of each row, including those that do not fit in the list.
    pub counts: PtrMut<u32>,
}

impl RepairLists {
    /// One block for each row.
    pub fn config(&self, rows: u32) -> LaunchConfig {
        LaunchConfig::linear(rows as u64, FILTER_THREADS).with_shared(shared_bytes(LEAST_CAPACITY))
    }
}

/// The body of the kernels `repair_lists_*`.
///
/// # Safety
/// As [`RepairLists`].
#[device_inline]
unsafe fn repair_lists<K: Key>(launch: RepairLists) {
    let RepairLists { table, k, capacity, thresholds, lists, counts } = launch;
    let number = thread::block_idx_x();
    let Workspace { header, entries, .. } = Workspace::new(LEAST_CAPACITY);
    // SAFETY: the caller promises the shapes.
    unsafe {
        let row = Row::<K>::of(table, number);
        let (len, wanted) = (row.len, k.min(row.len));
        let threshold = global::load_nc(thresholds.wrapping_add(number as usize));
        let count = counts.wrapping_add(number as usize);
        if enough(global::load(count), wanted, capacity, threshold == ALL) {
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
