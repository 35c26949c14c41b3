//! Finds the payloads of selected keys, where keys have others than their positions.
//!
//! Selection carries 32 bits beside a key, the position. What else lies beside the keys (u32 or u64) is looked up afterwards, for
//! the k winners of a row alone: one read of k scattered values, in a kernel that every method of selection shares.

use cuda_std::{global, kernel, thread};

/// Threads of a block.
pub const THREADS: u32 = 256;

/// The payload of each found key: `out[i]` becomes the payload at position `positions[i]` of its row, or all ones where the
/// position is `NO_ROW`. Row r is `positions[r · k ..]`, its payloads lie as its keys do.
///
/// # Safety
/// As [`gather_u32`].
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "kernel parameters")]
unsafe fn gather<T: Copy>(
    payloads: *const T,
    stride: u64,
    starts: *const u64,
    missing: T,
    positions: *const u32,
    out: *mut T,
    k: u32,
    slots: u64,
) {
    let slot = thread::block_idx_x() as u64 * THREADS as u64 + thread::thread_idx_x() as u64;
    if slot >= slots {
        return;
    }
    let row = slot / k.max(1) as u64;
    // SAFETY: slot < slots; a position that is not NO_ROW lies in its row.
    unsafe {
        let position = global::load_nc(positions.wrapping_add(slot as usize));
        let start =
            if starts.is_null() { row * stride } else { global::load_nc(starts.wrapping_add(row as usize)) } as usize;
        let payload = if position == crate::NO_ROW {
            missing
        } else {
            global::load_nc(payloads.wrapping_add(start + position as usize))
        };
        global::store(out.wrapping_add(slot as usize), payload);
    }
}

macro_rules! define_gather {
    ($($payload:ty, $name:ident;)*) => {$(
        /// Replaces the position of each found key by its payload: `out[i]` becomes the payload at `positions[i]` of its row, or
        /// all ones where that is `NO_ROW`. Row r has the slots from r · k on; its payloads lie as its keys do.
        ///
        /// Grid: ceil(`slots` / 256) blocks of [`THREADS`]; `slots` is rows · k.
        ///
        /// # Safety
        /// The pointers cover the shapes above (`starts` may be null: then rows are `stride` apart).
        #[kernel(max_threads = 256)]
        pub unsafe fn $name(
            payloads: *const $payload, stride: u64, starts: *const u64, positions: *const u32, out: *mut $payload,
            k: u32, slots: u64,
        ) {
            // SAFETY: the same contract.
            unsafe { gather(payloads, stride, starts, <$payload>::MAX, positions, out, k, slots) }
        }
    )*};
}
define_gather! {
    u32, gather_u32;
    u64, gather_u64;
}
