//! Copies rows between two sets of vectors, of which one has them one after the other and the other at listed numbers.
//!
//! # Problem
//! A search among some rows of the base, and a removal of rows, need the rows that stay one after the other: row
//! `numbers[i]` of one set becomes row i of another ([`GatherRows`]). A replacement of scattered rows is the opposite
//! ([`ScatterRows`]): an upload of its own for each row costs more than 10 µs. Inverted files change by the same
//! kernels.
//!
//! # Algorithm
//! As many lanes as a row has words, rounded up to a power of two and at most 32, copy a row. So a warp copies one long
//! row or several short ones, its accesses are contiguous within a row, and no thread divides. A word is the largest of
//! 16, 8, 4 and 1 bytes that divides the size of a row: rows of f32 have words of 16 bytes, rows of bytes have words of
//! 4 bytes if their padded dimension is not a multiple of 8. Only product-quantizer codes, which are not padded, may
//! have words of 1 byte.
//!
//! # Cost
//! One read and one write of the listed rows, and one read of their numbers: 2 · rows · row bytes over the memory
//! bandwidth.

use cuda_std::global::U32x4;
use cuda_std::launch::LaunchConfig;
use cuda_std::{Ptr, PtrMut, device_inline, global, kernel, thread};

/// Number of threads of a block.
pub const THREADS: u32 = 256;
/// Largest number of lanes that copy a row.
const MOST_LANES: u32 = 32;

/// Copies row `numbers[i]` of `from` to row i of `to`, for each i below `count`; a number past the last row means the
/// last row. Rows are copied as words of type `W`.
///
/// # Safety
/// The arrays are as long as the fields say, and `to` does not overlap `from`.
#[kernel(
    max_threads = 256,
    gather_rows_4 for GatherRows<u32> = gather_rows::<u32>,
    gather_rows_8 for GatherRows<u64> = gather_rows::<u64>,
    gather_rows_16 for GatherRows<U32x4> = gather_rows::<U32x4>,
)]
pub struct GatherRows<W> {
    /// `last + 1` rows of `words` words.
    pub from: Ptr<W>,
    /// Number of the last row.
    pub last: u32,
    /// The numbers of the rows to copy, `count` of them.
    pub numbers: Ptr<u32>,
    /// Number of rows to copy.
    pub count: u32,
    /// Number of words of a row.
    pub words: u32,
    /// Room for `count` rows of `words` words.
    pub to: PtrMut<W>,
}

/// The binary logarithm of the number of lanes that copy a row of `words` words.
#[device_inline]
fn log_lanes(words: u32) -> u32 {
    let most = MOST_LANES.trailing_zeros();
    if words >= MOST_LANES { most } else { words.max(1).next_power_of_two().trailing_zeros() }
}

/// Copies row i of `from` to row `numbers[i]` of `to`, for each i below `count`. Rows are copied as words of type `W`.
///
/// # Safety
/// The arrays are as long as the fields say, `to` has every listed row and does not overlap `from`, and the numbers
/// differ.
#[kernel(
    max_threads = 256,
    scatter_rows_1 for ScatterRows<u8> = scatter_rows::<u8>,
    scatter_rows_4 for ScatterRows<u32> = scatter_rows::<u32>,
    scatter_rows_8 for ScatterRows<u64> = scatter_rows::<u64>,
    scatter_rows_16 for ScatterRows<U32x4> = scatter_rows::<U32x4>,
)]
pub struct ScatterRows<W> {
    /// `count` rows of `words` words.
    pub from: Ptr<W>,
    /// The numbers of the rows to overwrite, `count` of them.
    pub numbers: Ptr<u32>,
    /// Number of rows to copy.
    pub count: u32,
    /// Number of words of a row.
    pub words: u32,
    /// Rows of `words` words.
    pub to: PtrMut<W>,
}

/// A power of two of lanes for each row.
pub(crate) fn config(count: u32, words: u32) -> LaunchConfig {
    LaunchConfig::linear(((count as u64) << log_lanes(words)).div_ceil(THREADS as u64), THREADS)
}

impl<W> GatherRows<W> {
    /// A power of two of lanes for each row.
    pub fn config(&self) -> LaunchConfig {
        config(self.count, self.words)
    }
}

impl<W> ScatterRows<W> {
    /// A power of two of lanes for each row.
    pub fn config(&self) -> LaunchConfig {
        config(self.count, self.words)
    }
}

/// # Safety
/// As [`GatherRows`].
#[device_inline]
unsafe fn gather_rows<W: Copy>(GatherRows { from, last, numbers, count, words, to }: GatherRows<W>) {
    let number = |row: usize| {
        // SAFETY: the row is below `count`.
        unsafe { global::load_nc(numbers.wrapping_add(row)) }
    };
    // SAFETY: the contract is the same, no row past the last one is read, and each row of `to` is written once.
    unsafe { copy_rows(from, (count, words), to, |row| (number(row).min(last) as usize, row)) }
}

/// # Safety
/// As [`ScatterRows`].
#[device_inline]
unsafe fn scatter_rows<W: Copy>(ScatterRows { from, numbers, count, words, to }: ScatterRows<W>) {
    let number = |row: usize| {
        // SAFETY: the row is below `count`.
        unsafe { global::load_nc(numbers.wrapping_add(row)) }
    };
    // SAFETY: the contract is the same, and each row of `to` is written once, because the numbers differ.
    unsafe { copy_rows(from, (count, words), to, |row| (row, number(row) as usize)) }
}

/// Copies one row for each place below `count`; `of` returns the rows to read and to write for a place.
///
/// # Safety
/// The rows that `of` returns exist and have `words` words. Two places do not write the same row.
#[device_inline]
pub(crate) unsafe fn copy_rows<W: Copy>(
    from: Ptr<W>,
    (count, words): (u32, u32),
    to: PtrMut<W>,
    of: impl Fn(usize) -> (usize, usize),
) {
    let log_lanes = log_lanes(words);
    let thread = thread::block_idx_x() as u64 * THREADS as u64 + thread::thread_idx_x() as u64;
    let row = thread >> log_lanes;
    if row >= count as u64 {
        return;
    }
    let mut word = thread as u32 & ((1 << log_lanes) - 1);
    // SAFETY: row < count and word < words; the caller promises that the rows exist.
    unsafe {
        let (read, written) = of(row as usize);
        let from = from.wrapping_add(read * words as usize);
        let to = to.wrapping_add(written * words as usize);
        while word < words {
            global::store(to.wrapping_add(word as usize), global::load_nc(from.wrapping_add(word as usize)));
            word += 1 << log_lanes;
        }
    }
}
