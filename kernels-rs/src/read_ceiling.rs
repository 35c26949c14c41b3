//! A kernel that only reads memory. Its time is a lower bound for the time of k-selection.

use cuda_std::global::U32x4;
use cuda_std::launch::LaunchConfig;
use cuda_std::warp::FULL_MASK;
use cuda_std::{Ptr, PtrMut, atomic, device_inline, global, kernel, thread, unroll, warp};

/// Number of threads of a block.
pub const THREADS: u32 = 256;

/// Reads every word once. The exclusive or of the words goes to `out`: without a result the compiler would remove the
/// reads.
///
/// # Safety
/// The arrays are as long as the fields say.
#[kernel(max_threads = 256, read_once = read)]
pub struct ReadOnce {
    /// The words to read: `quads` groups of four words, aligned to 16 bytes.
    pub words: Ptr<U32x4>,
    /// Number of groups of four words.
    pub quads: u64,
    /// One word. The exclusive or of each warp's words is or-ed to it.
    pub out: PtrMut<u32>,
}

impl ReadOnce {
    /// 16 blocks for each multiprocessor, which saturate the memory, but at most one thread for each group of words.
    pub fn config(&self, multiprocessors: u32) -> LaunchConfig {
        let blocks = self.quads.div_ceil(THREADS as u64).max(1);
        LaunchConfig::linear(blocks.min(multiprocessors as u64 * 16), THREADS)
    }
}

/// # Safety
/// As [`ReadOnce`].
#[device_inline]
unsafe fn read(ReadOnce { words, quads, out }: ReadOnce) {
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
        // SAFETY: `out` is one word, and all accesses to it are atomic.
        unsafe { atomic::or_u32(*out, mixed) };
    }
}
