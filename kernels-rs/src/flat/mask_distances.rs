//! Leaves rows out of a selection from canonical distances.
//!
//! The filter's values leave rows out of its lists ([`crate::flat::mask_values`]) where a bound is finite. This kernel
//! leaves them out for certain: the distance of a row that takes no part becomes NaN, which selection puts behind every
//! number. The canonical distance of finite vectors is never NaN.
//!
//! # Cost
//! One read of the row numbers and their bits, and one write for each row that is left out.

use cuda_std::launch::LaunchConfig;
use cuda_std::{Ptr, PtrMut, device_inline, global, kernel, thread};

/// Number of threads of a block.
const THREADS: u32 = 256;

/// Replaces the distances of the rows that take no part by NaN.
///
/// # Safety
/// The arrays are as long as the fields say, and every listed row has a bit.
#[kernel(max_threads = 256, mask_distances = mask)]
pub struct MaskDistances {
    /// Number of queries; each has one list.
    pub query_count: u32,
    /// The lists: that of query q starts at q · `stride` and has `columns` places. Absent: place p is row p.
    pub rows: Option<Ptr<u32>>,
    /// The length of each list, of which at most `columns` count; absent if all have `columns`.
    pub counts: Option<Ptr<u32>>,
    /// Largest length of a list.
    pub columns: u32,
    /// Distance from one list to the next, in places.
    pub stride: u64,
    /// Bit r mod 32 of word r / 32 is set if row r takes part.
    pub bits: Ptr<u32>,
    /// The distances, laid out as the lists.
    pub distances: PtrMut<f32>,
}

impl MaskDistances {
    /// One thread for each place of a list; lists along y.
    pub fn config(&self) -> LaunchConfig {
        LaunchConfig::linear((self.columns as u64).div_ceil(THREADS as u64), THREADS).along_y(self.query_count as u64)
    }
}

/// # Safety
/// As [`MaskDistances`].
#[device_inline]
unsafe fn mask(launch: MaskDistances) {
    let MaskDistances { rows, counts, columns, stride, bits, distances, .. } = launch;
    let query = thread::block_idx_y() as usize;
    let place = thread::block_idx_x() * THREADS + thread::thread_idx_x();
    // SAFETY: there is a list for each block along y; places stay below its length.
    unsafe {
        let length = match counts {
            Some(counts) => global::load_nc(counts.wrapping_add(query)).min(columns),
            None => columns,
        };
        if place >= length {
            return;
        }
        let at = (query as u64 * stride + place as u64) as usize;
        let row = match rows {
            Some(rows) => global::load_nc(rows.wrapping_add(at)),
            None => place,
        };
        if global::load_nc(bits.wrapping_add((row / 32) as usize)) >> (row % 32) & 1 == 0 {
            global::store(distances.wrapping_add(at), f32::NAN);
        }
    }
}
