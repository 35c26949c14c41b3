//! Values of rows for a search that leaves some rows out.
//!
//! The filter adds the value of a row to each of its scores, and the value of padding is +∞, so that no limit keeps it.
//! A row with the value +∞ is left out in the same way. So a search among most of the rows needs no copies of them,
//! only other values: 4 bytes for each row.
//!
//! # Cost
//! One read and one write of a number for each row, and one read of its bit.

use cuda_std::launch::LaunchConfig;
use cuda_std::{Ptr, PtrMut, device_inline, global, kernel, thread};

/// Number of threads of a block.
const THREADS: u32 = 256;

/// Copies the values of the rows that take part, and stores +∞ for the others and for padding.
///
/// # Safety
/// The arrays are as long as the fields say.
#[kernel(max_threads = 256, mask_values = mask)]
pub struct MaskValues {
    /// The value of each row, `count` of them.
    pub values: Ptr<f32>,
    /// Bit r mod 32 of word r / 32 is set if row r takes part; there are `rows` bits.
    pub bits: Ptr<u32>,
    /// Number of rows without padding.
    pub rows: u32,
    /// Number of rows with padding.
    pub count: u32,
    /// Room for `count` values.
    pub out: PtrMut<f32>,
}

impl MaskValues {
    /// One thread for each row.
    pub fn config(&self) -> LaunchConfig {
        LaunchConfig::linear((self.count as u64).div_ceil(THREADS as u64), THREADS)
    }
}

/// # Safety
/// As [`MaskValues`].
#[device_inline]
unsafe fn mask(MaskValues { values, bits, rows, count, out }: MaskValues) {
    let row = thread::block_idx_x() * THREADS + thread::thread_idx_x();
    if row >= count {
        return;
    }
    // SAFETY: row < count, and bits are read below `rows`.
    unsafe {
        let takes_part = row < rows && global::load_nc(bits.wrapping_add((row / 32) as usize)) >> (row % 32) & 1 == 1;
        let value = if takes_part { global::load_nc(values.wrapping_add(row as usize)) } else { f32::INFINITY };
        global::store(out.wrapping_add(row as usize), value);
    }
}
