//! Finds the payloads of selected keys, if keys have other payloads than their positions.
//!
//! Selection carries 32 bits with a key, the position. Other payloads (u32 or u64) are looked up afterwards, only for
//! the k winners of a row: one read of k scattered values, in a kernel that all methods of selection share.

use cuda_std::launch::LaunchConfig;
use cuda_std::{Ptr, PtrMut, device_inline, global, kernel, thread};

/// Number of threads of a block.
pub const THREADS: u32 = 256;

/// A type of payloads of keys.
pub trait Payload: Copy {
    /// The payload of an empty slot: all ones.
    const NONE: Self;
}

impl Payload for u32 {
    const NONE: u32 = u32::MAX;
}

impl Payload for u64 {
    const NONE: u64 = u64::MAX;
}

/// Looks up the payload of each key that was selected: `out[i]` becomes the payload at position `positions[i]` of its
/// row.
///
/// # Safety
/// The arrays are as long as the fields say. A position that is not `NO_ROW` lies in its row.
#[kernel(
    max_threads = 256,
    gather_u32 for Gather<u32> = gather::<u32>,
    gather_u64 for Gather<u64> = gather::<u64>,
)]
pub struct Gather<P> {
    /// A payload for each key of the rows, in the layout of the keys.
    pub payloads: Ptr<P>,
    /// Distance from one row to the next in payloads, if `starts` is absent.
    pub stride: u64,
    /// The start of each row; absent: row r starts at r · `stride`.
    pub starts: Option<Ptr<u64>>,
    /// The positions that were selected, `slots` of them; `NO_ROW` in slots without a key.
    pub positions: Ptr<u32>,
    /// The payload of each slot; all ones in slots without a key.
    pub out: PtrMut<P>,
    /// Number of slots of a row.
    pub k: u32,
    /// Number of slots of all rows: rows · `k`.
    pub slots: u64,
}

impl<P> Gather<P> {
    /// One thread for each slot.
    pub fn config(&self) -> LaunchConfig {
        LaunchConfig::linear(self.slots.div_ceil(THREADS as u64), THREADS)
    }
}

/// # Safety
/// As [`Gather`].
#[device_inline]
unsafe fn gather<P: Payload>(Gather { payloads, stride, starts, positions, out, k, slots }: Gather<P>) {
    let slot = thread::block_idx_x() as u64 * THREADS as u64 + thread::thread_idx_x() as u64;
    if slot >= slots {
        return;
    }
    let row = slot / k.max(1) as u64;
    // SAFETY: slot < slots; a position that is not NO_ROW lies in its row.
    unsafe {
        let position = global::load_nc(positions.wrapping_add(slot as usize));
        let start = match starts {
            Some(starts) => global::load_nc(starts.wrapping_add(row as usize)),
            None => row * stride,
        } as usize;
        let payload = if position == crate::NO_ROW {
            P::NONE
        } else {
            global::load_nc(payloads.wrapping_add(start + position as usize))
        };
        global::store(out.wrapping_add(slot as usize), payload);
    }
}
