//! The results of a search whose caller reads them on the device: ids in place of rows, and every slot filled.
//!
//! # Cost
//! One read and one write of the results, and one read of an id for each of them.

use cuda_std::launch::LaunchConfig;
use cuda_std::{Ptr, PtrMut, device_inline, global, kernel, thread};

use crate::NO_ROW;

/// Number of threads of a block.
const THREADS: u32 = 256;
/// The id of a slot without a neighbour.
const NONE: u64 = u64::MAX;

/// Writes id and distance of every slot. A slot without a row, or whose distance is NaN, gets no id and the distance
/// `worst`. The slots of a query that was refused get no id and the distance NaN.
///
/// # Safety
/// The arrays are as long as the fields say, and every row has an id.
#[kernel(max_threads = 256, name_results = name)]
pub struct NameResults {
    /// Rows that were found, best first: `found` for each query; `NO_ROW` where there is none.
    pub rows: Ptr<u32>,
    /// Distances of these rows, in the same places.
    pub distances: Ptr<f32>,
    /// Number of rows that a query may have.
    pub found: u32,
    /// The id of each row; absent: the id is the row.
    pub names: Option<Ptr<u64>>,
    /// A word of each query: not 0 if it was refused.
    pub refused: Ptr<u32>,
    /// Distance of a slot without a row.
    pub worst: f32,
    /// Number of slots of a query, at least `found`.
    pub k: u32,
    /// Number of slots of all queries.
    pub slots: u64,
    /// Room for `slots` ids.
    pub out_ids: PtrMut<u64>,
    /// Room for `slots` distances.
    pub out_distances: PtrMut<f32>,
}

impl NameResults {
    /// One thread for each slot.
    pub fn config(&self) -> LaunchConfig {
        LaunchConfig::linear(self.slots.div_ceil(THREADS as u64), THREADS)
    }
}

/// # Safety
/// As [`NameResults`].
#[device_inline]
unsafe fn name(launch: NameResults) {
    let NameResults { rows, distances, found, names, refused, worst, k, slots, out_ids, out_distances } = launch;
    let slot = thread::block_idx_x() as u64 * THREADS as u64 + thread::thread_idx_x() as u64;
    if slot >= slots {
        return;
    }
    let query = (slot / k.max(1) as u64) as usize;
    let place = (slot % k.max(1) as u64) as u32;
    // SAFETY: slot < slots, so the query exists; results are read below `found`, and a row that is not NO_ROW has an
    // id.
    unsafe {
        let (mut id, mut distance) = (NONE, worst);
        if place < found {
            let at = query * found as usize + place as usize;
            let (row, of_row) = (global::load_nc(rows.wrapping_add(at)), global::load_nc(distances.wrapping_add(at)));
            if row != NO_ROW && !of_row.is_nan() {
                distance = of_row;
                id = match names {
                    Some(names) => global::load_nc(names.wrapping_add(row as usize)),
                    None => row as u64,
                };
            }
        }
        if global::load_nc(refused.wrapping_add(query)) != 0 {
            (id, distance) = (NONE, f32::NAN);
        }
        global::store(out_ids.wrapping_add(slot as usize), id);
        global::store(out_distances.wrapping_add(slot as usize), distance);
    }
}
