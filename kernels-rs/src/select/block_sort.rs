//! Sorting entries in shared memory by one block: a merge sort of any number of entries, which may keep only the first
//! ones.
//!
//! # Algorithm
//! ```text
//! block_sort(words):
//!   each warp sorts runs of 32 or 128 words in registers (networks::warp_sort)
//!   for each width: merge neighbouring runs of that width, from one array into the other, keeping the first `keep`
//!
//! block_order(entries), 64 bits each:
//!   word of an entry = the leading bits of (entry − least) / (greatest − least), and in the low bits its slot
//!   block_sort(words)                                          // 32 bits: half the shuffles, a third of the instructions
//!   neighbours whose leading bits agree: sort them by their entries, a thread a group
//!   a group of more than 16: sort the entries themselves
//! ```
//! The output of a merge is cut into equal pieces, and each thread makes one piece at a time. A binary search along the
//! diagonal finds the start of a piece in the two runs (merge path: output o takes i words from the left and o − i from
//! the right, and i is unique because words are distinct). Then the thread merges its piece step by step.
//!
//! # Why the order is exact
//! Words have the order of the leading bits, so only adjacent words with equal leading bits can be out of order, and
//! these are compared as entries. The sort keeps 32 words more than wanted. A group that extends from the wanted words
//! past all 32 would have been cut by slot, so it counts as too long.
//!
//! # Cost
//! Of 4,096 entries 12 bits go to the slot and 20 to the key: about 35 groups of two among 2,900 survivors of random
//! floats. An entry costs about 85 instructions for the runs of 128 and 20 for each merge. Sorting whole entries took 7
//! % longer in all, with twice the bank conflicts (10,000 × 16,000, k = 2048, H200: 1.18 ms instead of 1.10). A bitonic
//! network would cost about 6 instructions for each of its ½ log² steps. Pieces have odd length, so that the threads of
//! a warp write to different banks.

use cuda_std::shared::SharedPtr;
use cuda_std::warp::{self, Shuffle};
use cuda_std::{atomic, device_inline, thread, unroll};

use crate::select::entry::EMPTY;
use crate::select::networks::warp_sort;

/// A type of words to sort, of 32 or 64 bits.
pub trait Word: Shuffle + Ord {
    /// The word that comes after all others.
    const LAST: Self;
}

impl Word for u32 {
    const LAST: u32 = u32::MAX;
}

impl Word for u64 {
    const LAST: u64 = EMPTY;
}

/// A sorted run in shared memory.
#[derive(Clone, Copy)]
pub struct Run<T> {
    /// Pointer to the first word of the run.
    pub start: SharedPtr<T>,
    /// Number of words of the run.
    pub len: u32,
}

impl<T: Word> Run<T> {
    /// Word `place`, or [`Word::LAST`] from the end on.
    ///
    /// # Safety
    /// The run is initialised, and no thread writes it.
    #[device_inline]
    unsafe fn get(&self, place: u32) -> T {
        // SAFETY: place < len.
        if place < self.len { unsafe { self.start.add(place).load() } } else { T::LAST }
    }
}

/// Returns how many of the first `output` words of the merge of `left` and `right` come from `left`. `output` is at
/// most the number of words.
///
/// # Safety
/// Both runs are initialised and sorted, and no thread writes them.
#[device_inline]
unsafe fn taken_from_left<T: Word>(left: Run<T>, right: Run<T>, output: u32) -> u32 {
    let (mut low, mut high) = (output.saturating_sub(right.len), output.min(left.len));
    while low < high {
        let middle = (low + high) / 2;
        // SAFETY: low <= middle < high keeps both places inside their runs.
        let from_left = unsafe { left.start.add(middle).load() < right.start.add(output - 1 - middle).load() };
        low = if from_left { middle + 1 } else { low };
        high = if from_left { high } else { middle };
    }
    low
}

/// Writes words `first .. end` of the merge of two sorted runs to `to + first ..`. Each thread calls it alone; no other
/// thread must arrive.
///
/// # Safety
/// Both runs are initialised and sorted, and no thread writes them; `end` is at most the number of words; `to` has
/// room, and no other thread accesses it.
#[device_inline]
pub unsafe fn merge_piece<T: Word>(left: Run<T>, right: Run<T>, to: SharedPtr<T>, first: u32, end: u32) {
    // SAFETY: as the caller promises.
    unsafe {
        let mut from_left = taken_from_left(left, right, first);
        let mut from_right = first - from_left;
        let (mut next_left, mut next_right) = (left.get(from_left), right.get(from_right));
        let mut place = first;
        while place < end {
            let take_left = next_left < next_right;
            to.add(place).store(if take_left { next_left } else { next_right });
            from_left += take_left as u32;
            from_right += !take_left as u32;
            let run = if take_left { left } else { right };
            let next = run.get(if take_left { from_left } else { from_right });
            next_left = if take_left { next } else { next_left };
            next_right = if take_left { next_right } else { next };
            place += 1;
        }
    }
}

/// Number of outputs of one thread if `threads` threads share `outputs`. It is odd, so that the writes of a warp go to
/// different banks.
#[device_inline]
pub fn piece(outputs: u32, threads: u32) -> u32 {
    outputs.div_ceil(threads.max(1)) | 1
}

/// Sorts runs of 32·`REGISTERS` of `len` words: word `place` is `make(place)`, and goes to `to`.
///
/// # Safety
/// `to` has room for `len` words, and no other warp accesses the words of this warp's runs. All threads of the block
/// arrive.
#[device_inline]
unsafe fn sort_runs<T: Word, const REGISTERS: usize>(to: SharedPtr<T>, len: u32, make: impl Fn(u32) -> T) {
    let lane = warp::lane_id();
    let mut first = 32 * REGISTERS as u32 * warp::warp_id();
    while first < len {
        let mut words = [T::LAST; REGISTERS];
        unroll::<REGISTERS>(|r| {
            let place = first + 32 * r as u32 + lane;
            words[r] = if place < len { make(place) } else { T::LAST };
        });
        warp_sort(&mut words, lane);
        unroll::<REGISTERS>(|r| {
            let place = first + 32 * r as u32 + lane;
            if place < len {
                // SAFETY: place < len.
                unsafe { to.add(place).store(words[r]) };
            }
        });
        first += REGISTERS as u32 * thread::block_dim_x();
    }
}

/// Merges the sorted runs of 1 << `width_log` words in `from` until one is left, and returns the array, `from` or `to`,
/// that then holds the first `keep` of all words in order. All threads of the block arrive; ends with a barrier.
///
/// # Safety
/// Both arrays have room for `len` words; the runs are visible to all threads; no thread of another block accesses
/// either array.
#[device_inline]
unsafe fn merge_all<T: Word>(
    from: SharedPtr<T>,
    to: SharedPtr<T>,
    len: u32,
    keep: u32,
    width_log: u32,
) -> SharedPtr<T> {
    let (thread, threads) = (thread::thread_idx_x(), thread::block_dim_x());
    let (mut from, mut to, mut width_log) = (from, to, width_log);
    while len > 1 << width_log {
        let width = 1 << width_log;
        let pairs = ((len - 1) >> (width_log + 1)) + 1;
        let outputs = keep.min(2 * width).min(len);
        let piece = piece(pairs * outputs, threads);
        let pieces = outputs.div_ceil(piece.max(1));
        let mut task = thread;
        while task < pairs * pieces {
            let pair = task / pieces.max(1);
            let first = (task - pair * pieces) * piece;
            let base = pair * 2 * width;
            // SAFETY: places below len; outputs are written by one thread each, a barrier stands between levels.
            unsafe {
                let left = Run { start: from.add(base), len: (len - base).min(width).min(keep) };
                let right_len = (len - base).saturating_sub(width).min(width).min(keep);
                let right = Run { start: from.add(base + width.min(len - base)), len: right_len };
                let end = (first + piece).min(outputs).min(left.len + right.len);
                if first < end {
                    merge_piece(left, right, to.add(base), first, end);
                }
            }
            task += threads;
        }
        thread::sync_threads();
        (from, to) = (to, from);
        width_log += 1;
    }
    from
}

/// Sorts the first `len` entries of `from` and returns the array, `from` or `to`, that then holds the best `keep` of
/// them in order (all if `keep` ≥ `len`). All threads of the block arrive, with the same arguments; ends with a
/// barrier.
///
/// # Safety
/// Both arrays have room for `len` entries; those of `from` are initialised and visible to all threads (a barrier
/// precedes the call); no thread of another block accesses either.
#[device_inline]
pub unsafe fn block_sort(from: SharedPtr<u64>, to: SharedPtr<u64>, len: u32, keep: u32) -> SharedPtr<u64> {
    // SAFETY: as the caller promises; a warp reads and writes only its runs.
    unsafe {
        sort_runs::<u64, 1>(from, len, |place| from.add(place).load());
        thread::sync_threads();
        merge_all(from, to, len, keep, 5)
    }
}

/// Shared memory for [`block_order`].
#[derive(Clone, Copy)]
pub struct OrderWorkspace {
    /// Two entries and a word.
    pub header: SharedPtr<u64>,
    /// Two arrays with one word for each entry, one behind the other, at a multiple of eight bytes.
    pub words: SharedPtr<u32>,
    /// Capacity of the array of entries, and of each array of words.
    pub capacity: u32,
}

/// Size of [`OrderWorkspace::header`] in bytes.
pub const ORDER_HEADER_BYTES: u32 = 24;

/// Number of words kept beyond the wanted ones, for groups of equal leading bits that extend past the last wanted word.
const MARGIN: u32 = 32;
/// Largest number of entries with equal leading bits that one thread sorts.
const LONGEST_GROUP: u32 = 16;

/// The entries of an array in order.
#[derive(Clone, Copy)]
pub struct Order {
    entries: SharedPtr<u64>,
    words: SharedPtr<u32>,
    /// The bits of a word that are its slot; 0 if the entries are themselves in order.
    slots: u32,
}

impl Order {
    /// Entry number `place` in order.
    ///
    /// # Safety
    /// place < keep and the number of entries.
    #[device_inline]
    pub unsafe fn get(&self, place: u32) -> u64 {
        // SAFETY: as the caller promises; the slot is that of an entry.
        unsafe {
            let slot = if self.slots == 0 { place } else { self.words.add(place).load() & self.slots };
            self.entries.add(slot).load()
        }
    }
}

/// Orders the first `len` ≤ capacity of `entries`: the best `keep` of them. All threads of the block arrive, with the
/// same arguments; ends with a barrier.
///
/// # Safety
/// The entries are initialised and visible to all threads (a barrier precedes the call); the workspace is as its
/// documentation states, and no other code uses it.
#[device_inline]
pub unsafe fn block_order(entries: SharedPtr<u64>, len: u32, keep: u32, workspace: OrderWorkspace) -> Order {
    let OrderWorkspace { header, words, capacity } = workspace;
    let (thread, threads) = (thread::thread_idx_x(), thread::block_dim_x());
    // SAFETY: the header is set and read between barriers, and changed by atomics; places are below len.
    unsafe {
        let (least, most_inverted, groups) = (header, header.add(1), header.add(2).cast::<u32>());
        if thread == 0 {
            least.store(u64::MAX);
            most_inverted.store(u64::MAX);
            groups.store(0);
        }
        thread::sync_threads();
        let (mut low, mut high_inverted) = (u64::MAX, u64::MAX);
        let mut place = thread;
        while place < len {
            let entry = entries.add(place).load();
            low = low.min(entry);
            high_inverted = high_inverted.min(!entry);
            place += threads;
        }
        let (low, high_inverted) = warp::butterfly((low, high_inverted), |a, b| (a.0.min(b.0), a.1.min(b.1)));
        if warp::lane_id() == 0 {
            atomic::shared_min_u64(least, low);
            atomic::shared_min_u64(most_inverted, high_inverted);
        }
        thread::sync_threads();
        let low = least.load();
        let shift = ((!most_inverted.load()).wrapping_sub(low) | 1).leading_zeros();
        let slot_bits = u32::BITS - len.saturating_sub(1).leading_zeros();
        // At least one bit, because 0 means that the entries are in order.
        let slots = (2 << slot_bits.saturating_sub(1)) - 1;
        let make = |place: u32| {
            let leading = ((entries.add(place).load() - low) << shift >> 32) as u32;
            leading & !slots | place
        };
        let other = words.add(capacity);
        let kept = keep.saturating_add(MARGIN).min(len);
        // With few words, all warps share the runs.
        let width_log = if len > threads {
            sort_runs::<u32, 4>(words, len, make);
            7
        } else {
            sort_runs::<u32, 1>(words, len, make);
            5
        };
        thread::sync_threads();
        let sorted = merge_all(words, other, len, kept, width_log);
        let order = Order { entries, words: sorted, slots };
        let spare = if sorted.address() == words.address() { other } else { words };
        // All threads find their groups before any group is changed.
        let leading = |place: u32| sorted.add(place).load() & !slots;
        let mut too_long = false;
        let mut place = thread;
        while place + 1 < kept {
            let own = leading(place);
            if own == leading(place + 1) && (place == 0 || own != leading(place - 1)) {
                let mut end = place + 2;
                while end < kept && end - place <= LONGEST_GROUP && own == leading(end) {
                    end += 1;
                }
                too_long |= end - place > LONGEST_GROUP || (end == kept && kept < len && place < keep);
                spare.add(atomic::shared_add_u32(groups, 1)).store(place << 8 | (end - place));
            }
            place += threads;
        }
        if thread::sync_threads_or(too_long) {
            let moved = block_sort(entries, words.cast(), len, keep);
            return Order { entries: moved, words, slots: 0 };
        }
        let count = groups.load();
        let mut group = thread;
        while group < count {
            let found = spare.add(group).load();
            let (first, size) = (sorted.add(found >> 8), found & 0xff);
            let mut next = 1;
            while next < size {
                let word = first.add(next).load();
                let entry = entries.add(word & slots).load();
                let mut place = next;
                while place > 0 {
                    let before = first.add(place - 1).load();
                    if entries.add(before & slots).load() <= entry {
                        break;
                    }
                    first.add(place).store(before);
                    place -= 1;
                }
                first.add(place).store(word);
                next += 1;
            }
            group += threads;
        }
        thread::sync_threads();
        order
    }
}
