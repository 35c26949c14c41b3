//! Reading memory and nothing else: the ceiling that k-selection is measured against.

use cuda_std::global::U32x4;
use cuda_std::warp::FULL_MASK;
use cuda_std::{atomic, global, kernel, thread, unroll, warp};

/// Threads of a block.
pub const THREADS: u32 = 256;

/// Reads `quads` · 16 bytes once and leaves the exclusive or of all words, or-ed over warps, in `out`, which only says that
/// nothing was left out.
///
/// Grid: any number of blocks of [`THREADS`]; 16 a multiprocessor saturate the memory.
///
/// # Safety
/// `words` is that long and aligned to 16 bytes; `out` is one word.
#[kernel(max_threads = 256)]
pub unsafe fn read_once(words: *const U32x4, quads: u64, out: *mut u32) {
    let threads = (thread::grid_dim_x() * THREADS) as u64;
    let mut quad = (thread::block_idx_x() * THREADS + thread::thread_idx_x()) as u64;
    let mut mixed = 0;
    while quad < quads {
        let mut tile = [U32x4([0; 4]); 4];
        unroll::<4>(|a| {
            let at = quad + a as u64 * threads;
            if at < quads {
                // SAFETY: at < quads.
                tile[a] = unsafe { global::load_nc(words.wrapping_add(at as usize)) };
            }
        });
        unroll::<4>(|a| {
            let [x, y, z, w] = tile[a].0;
            mixed ^= x ^ y ^ z ^ w;
        });
        quad += 4 * threads;
    }
    let mixed = warp::reduce_xor(FULL_MASK, mixed);
    if warp::lane_id() == 0 {
        // SAFETY: `out` is one word, touched by atomics only.
        unsafe { atomic::or_u32(out, mixed) };
    }
}
