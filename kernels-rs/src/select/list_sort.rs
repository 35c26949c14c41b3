//! Sorting long lists of entries in global memory: merge sort, for selections whose k is beyond shared memory.
//!
//! # Algorithm
//! ```text
//! sort_chunks: each block sorts 2,048 entries of a list in shared memory (block_sort)
//! merge_runs, for width in 2,048, 4,096, ..: merge neighbouring runs, keeping the first `keep`; a block writes 2,048 entries
//! unpack: the first k entries as keys and payloads
//! ```
//! A block of `merge_runs` finds by binary search in global memory the parts of the two runs that contain its outputs
//! (at most 2,048 entries of both), copies them to shared memory and merges them there, one piece for each thread.
//!
//! # Cost
//! 16 bytes of traffic for each entry and level, and log₂(length / 2,048) levels. For k = 65,536 of a million keys,
//! there are 5 levels of 100,000 survivors: 8 MB, about twice the size of the keys.

use cuda_std::launch::LaunchConfig;
use cuda_std::{Ptr, PtrMut, device_inline, global, kernel, shared, thread};

use crate::select::block_sort::{ORDER_HEADER_BYTES, OrderWorkspace, Run, block_order, merge_piece, piece};
use crate::select::entry::EMPTY;
use crate::select::keys::{Bf16Key, F16Key, F32Key, I32Key, Key, KeyType, U32Key};
use crate::select::rows::SelectedRows;
use crate::select::threshold_select::store_result;

/// Number of threads of a block.
pub const THREADS: u32 = 256;
/// Number of entries that a block sorts or merges.
pub const CHUNK: u32 = 2048;
/// Shared memory of a block in bytes: two chunks, or one chunk with its words and the header of the sort.
pub const SHARED_BYTES: u32 = 16 * CHUNK + ORDER_HEADER_BYTES;

/// Sorts every chunk of each list in place. A chunk is [`CHUNK`] entries.
///
/// # Safety
/// The arrays are as long as the fields say; chunks · CHUNK ≥ capacity.
#[kernel(max_threads = 256, sort_chunks = sort)]
pub struct SortChunks {
    /// The lists, `capacity` entries each.
    pub lists: PtrMut<u64>,
    /// Number of entries of each list; a number above `capacity` means `capacity`.
    pub counts: Ptr<u32>,
    /// Distance from one list to the next in entries.
    pub capacity: u32,
    /// Number of chunks of a list.
    pub chunks: u32,
}

impl SortChunks {
    /// One block for each chunk.
    pub fn config(&self, lists: u32) -> LaunchConfig {
        LaunchConfig::linear(lists as u64 * self.chunks as u64, THREADS).with_shared(SHARED_BYTES)
    }
}

/// # Safety
/// As [`SortChunks`].
#[device_inline]
unsafe fn sort(SortChunks { lists, counts, capacity, chunks }: SortChunks) {
    let list = thread::block_idx_x() / chunks.max(1);
    let first = thread::block_idx_x() % chunks.max(1) * CHUNK;
    let (a, thread) = (shared::dynamic::<u64>(), thread::thread_idx_x());
    // SAFETY: places below the list's count; the launch gives room for two chunks.
    unsafe {
        let count = global::load_nc(counts.wrapping_add(list as usize)).min(capacity);
        let len = count.saturating_sub(first).min(CHUNK);
        let entries = lists.wrapping_add(list as usize * capacity as usize + first as usize);
        let mut place = thread;
        while place < len {
            a.add(place).store(global::load(entries.wrapping_add(place as usize)));
            place += THREADS;
        }
        thread::sync_threads();
        let words = a.add(CHUNK);
        let workspace = OrderWorkspace { header: words.add(CHUNK), words: words.cast(), capacity: CHUNK };
        let ordered = block_order(a, len, len, workspace);
        let mut place = thread;
        while place < len {
            global::store(entries.wrapping_add(place as usize), ordered.get(place));
            place += THREADS;
        }
    }
}

/// How many of the first `output` entries of a merge come from the left run (see [`crate::select::block_sort`]), in
/// global memory.
///
/// # Safety
/// The runs are readable and sorted; output ≤ their entries.
#[device_inline]
unsafe fn taken_from_left(left: *const u64, left_len: u32, right: *const u64, right_len: u32, output: u32) -> u32 {
    let (mut low, mut high) = (output.saturating_sub(right_len), output.min(left_len));
    while low < high {
        let middle = (low + high) / 2;
        // SAFETY: low <= middle < high keeps both places inside their runs.
        let from_left = unsafe {
            global::load_nc(left.wrapping_add(middle as usize))
                < global::load_nc(right.wrapping_add((output - 1 - middle) as usize))
        };
        low = if from_left { middle + 1 } else { low };
        high = if from_left { high } else { middle };
    }
    low
}

/// Merges adjacent runs of `width` entries of each list.
///
/// # Safety
/// The arrays are as long as the fields say; chunks · CHUNK ≥ capacity. `from` and `to` do not overlap. The first
/// `keep` entries of each run of `from` are sorted.
#[kernel(max_threads = 256, merge_runs = merge)]
pub struct MergeRuns {
    /// The lists, `capacity` entries each.
    pub from: Ptr<u64>,
    /// The lists with runs twice as long, laid out as `from`.
    pub to: PtrMut<u64>,
    /// Number of entries of each list; a number above `capacity` means `capacity`.
    pub counts: Ptr<u32>,
    /// Distance from one list to the next in entries.
    pub capacity: u32,
    /// Number of chunks of [`CHUNK`] entries of a list.
    pub chunks: u32,
    /// Number of entries of a run: [`CHUNK`] times a power of two.
    pub width: u32,
    /// Number of entries of a run that are read and written: the first `keep`, or all if the run has fewer.
    pub keep: u32,
}

impl MergeRuns {
    /// One block for each chunk of `to`.
    pub fn config(&self, lists: u32) -> LaunchConfig {
        LaunchConfig::linear(lists as u64 * self.chunks as u64, THREADS).with_shared(SHARED_BYTES)
    }
}

/// # Safety
/// As [`MergeRuns`].
#[device_inline]
unsafe fn merge(MergeRuns { from, to, counts, capacity, chunks, width, keep }: MergeRuns) {
    let list = thread::block_idx_x() / chunks.max(1);
    let output = thread::block_idx_x() % chunks.max(1) * CHUNK;
    let (inputs, thread) = (shared::dynamic::<u64>(), thread::thread_idx_x());
    // SAFETY: places below the list's count; the launch gives room for two chunks.
    unsafe {
        let count = global::load_nc(counts.wrapping_add(list as usize)).min(capacity);
        // A chunk of outputs lies in one pair of runs, because 2 · width is a multiple of the chunk.
        let base = output & !(2 * width - 1);
        if base >= count {
            return;
        }
        let start = list as usize * capacity as usize + base as usize;
        let (left, right) = (from.wrapping_add(start), from.wrapping_add(start + width as usize));
        let left_len = (count - base).min(width).min(keep);
        let right_len = (count - base).saturating_sub(width).min(width).min(keep);
        let first = output - base;
        let end = (first + CHUNK).min(left_len + right_len).min(keep);
        if first >= end {
            return;
        }
        let left_first = taken_from_left(left, left_len, right, right_len, first);
        let left_end = taken_from_left(left, left_len, right, right_len, end);
        let (lefts, rights) = (left_end - left_first, (end - left_end) - (first - left_first));
        let mut place = thread;
        while place < lefts + rights {
            let entry = if place < lefts {
                left.wrapping_add((left_first + place) as usize)
            } else {
                right.wrapping_add((first - left_first + place - lefts) as usize)
            };
            inputs.add(place).store(global::load_nc(entry));
            place += THREADS;
        }
        thread::sync_threads();
        let outputs = inputs.add(CHUNK);
        let len = end - first;
        let piece = piece(len, THREADS);
        let mine = (piece * thread).min(len);
        let (left, right) = (Run { start: inputs, len: lefts }, Run { start: inputs.add(lefts), len: rights });
        merge_piece(left, right, outputs, mine, (mine + piece).min(len));
        thread::sync_threads();
        let merged = to.wrapping_add(start + first as usize);
        let mut place = thread;
        while place < len {
            global::store(merged.wrapping_add(place as usize), outputs.add(place).load());
            place += THREADS;
        }
    }
}

/// Writes the first `k` entries of each sorted list as keys and ids.
///
/// # Safety
/// The arrays are as long as the fields say; k ≤ `out.stride`.
#[kernel(
    key = KeyType,
    max_threads = 256,
    KeyType::F32 => unpack_lists_f32 = unpack::<F32Key>,
    KeyType::F16 => unpack_lists_f16 = unpack::<F16Key>,
    KeyType::Bf16 => unpack_lists_bf16 = unpack::<Bf16Key>,
    KeyType::I32 => unpack_lists_i32 = unpack::<I32Key>,
    KeyType::U32 => unpack_lists_u32 = unpack::<U32Key>,
)]
pub struct UnpackLists {
    /// The lists, `capacity` entries each.
    pub lists: Ptr<u64>,
    /// Number of entries of each list; a number above `capacity` means `capacity`.
    pub counts: Ptr<u32>,
    /// Distance from one list to the next in entries.
    pub capacity: u32,
    /// Number of blocks of a list: ceil(k / [`THREADS`]).
    pub pieces: u32,
    /// 0 if the smallest keys were selected, `Key::FLIP` for the largest.
    pub flip: u32,
    /// Number of results of a list.
    pub k: u32,
    /// The results: `k` of each list.
    #[group]
    pub out: SelectedRows,
}

impl UnpackLists {
    /// One thread for each result.
    pub fn config(&self, lists: u32) -> LaunchConfig {
        LaunchConfig::linear(lists as u64 * self.pieces as u64, THREADS)
    }
}

/// # Safety
/// As [`UnpackLists`].
#[device_inline]
unsafe fn unpack<K: Key>(launch: UnpackLists) {
    let UnpackLists { lists, counts, capacity, pieces, flip, k, out } = launch;
    let list = (thread::block_idx_x() / pieces.max(1)) as usize;
    let place = thread::block_idx_x() % pieces.max(1) * THREADS + thread::thread_idx_x();
    if place >= k {
        return;
    }
    // SAFETY: place < k; entries are read below the list's count.
    unsafe {
        let count = global::load_nc(counts.wrapping_add(list)).min(capacity);
        let entry = lists.wrapping_add(list * capacity as usize + place as usize);
        let found = if place < count { global::load_nc(entry) } else { EMPTY };
        store_result::<K>(found, flip, out, list * out.stride as usize + place as usize);
    }
}
