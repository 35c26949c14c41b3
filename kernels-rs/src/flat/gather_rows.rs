//! Copies rows of a set of vectors, listed by their numbers, to another set.
//!
//! # Problem
//! A search among some rows of the base, and a removal of rows, need the rows that stay one after the other: row `numbers[i]` of one set
//! becomes row i of another.
//!
//! # Algorithm
//! As many lanes as a row has words, rounded up to a power of two and at most 32, copy a row. So a warp copies one long row or several short
//! ones, its accesses are contiguous within a row, and no thread divides. A word is the largest of 16, 8 and 4 bytes that divides the size of
//! a row: rows of f32 have words of 16 bytes, rows of bytes have words of 4 bytes if their padded dimension is not a multiple of 8.
//!
//! # Cost
//! One read and one write of the listed rows, and one read of their numbers: 2 · rows · row bytes over the memory bandwidth.

use cuda_std::global::U32x4;
use cuda_std::launch::LaunchConfig;
use cuda_std::{Ptr, PtrMut, global, kernel, thread};

/// Number of threads of a block.
pub const THREADS: u32 = 256;
/// Largest number of lanes that copy a row.
const MOST_LANES: u32 = 32;

/// Copies row `numbers[i]` of `from` to row i of `to`, for each i below `count`. Rows are copied as words of type `W`.
///
/// # Safety
/// The arrays are as long as the fields say, `from` has every listed row, and `to` does not overlap it.
#[kernel(
    max_threads = 256,
    gather_rows_4 for GatherRows<u32> = gather_rows::<u32>,
    gather_rows_8 for GatherRows<u64> = gather_rows::<u64>,
    gather_rows_16 for GatherRows<U32x4> = gather_rows::<U32x4>,
)]
pub struct GatherRows<W> {
    /// Rows of `words` words.
    pub from: Ptr<W>,
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
#[inline(always)]
fn log_lanes(words: u32) -> u32 {
    let most = MOST_LANES.trailing_zeros();
    if words >= MOST_LANES { most } else { words.max(1).next_power_of_two().trailing_zeros() }
}

impl<W> GatherRows<W> {
    /// A power of two of lanes for each row.
    pub fn config(&self) -> LaunchConfig {
        LaunchConfig::linear(((self.count as u64) << log_lanes(self.words)).div_ceil(THREADS as u64), THREADS)
    }
}

/// # Safety
/// As [`GatherRows`].
#[inline(always)]
unsafe fn gather_rows<W: Copy>(GatherRows { from, numbers, count, words, to }: GatherRows<W>) {
    let log_lanes = log_lanes(words);
    let thread = thread::block_idx_x() as u64 * THREADS as u64 + thread::thread_idx_x() as u64;
    let row = thread >> log_lanes;
    if row >= count as u64 {
        return;
    }
    let mut word = thread as u32 & ((1 << log_lanes) - 1);
    // SAFETY: row < count and word < words; the caller promises that the listed rows exist.
    unsafe {
        let number = global::load_nc(numbers.wrapping_add(row as usize));
        let from = from.wrapping_add(number as usize * words as usize);
        let to = to.wrapping_add(row as usize * words as usize);
        while word < words {
            global::store(to.wrapping_add(word as usize), global::load_nc(from.wrapping_add(word as usize)));
            word += 1 << log_lanes;
        }
    }
}
