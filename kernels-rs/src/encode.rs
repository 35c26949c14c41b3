//! Product-quantizer codes: the nearest codeword of each sub-vector, packed.
//!
//! # Problem
//! n vectors, M sub-quantizers of 2^bits codewords, width w = dim / M. Code m of a vector is the first smallest, over codewords c,
//! of Σ_j (x_j − c_j)², j ascending from 0, f32, nothing fused: the definition of the host crate's `pq` module, bit for bit.
//! Of an inverted list, x is the residual: the vector minus its list's centroid, component by component.
//!
//! # Algorithm
//! ```text
//! a block takes 256 vectors, two a thread, and a run of sub-quantizers; for each:
//!     x[j] of the thread's vectors -> shared memory (its own column: no barrier)
//!     for each piece of the codebook (transposed: component by component) -> shared memory
//!         for 8 codewords at a time: acc[2][8] = Σ_j (x[j] − c[j])²        // c: two 16-byte loads, the same for all lanes
//!                                    keep the first smallest
//!     append the number to the vector's word; after 8 sub-quantizers (whole bytes) store it
//! ```
//!
//! 1. Two vectors times eight codewords give 16 independent chains of additions, and 48 arithmetic instructions for the four
//!    loads of a component.
//! 2. The codebook is transposed, so any width works without padding; x lies in shared memory rather than in registers,
//!    because the loop over components has no fixed length.
//! 3. Eight codes of b bits are b bytes: blocks that share vectors take runs of eight sub-quantizers, and nothing is combined
//!    between them.
//!
//! Sub-vectors so wide that x does not fit in shared memory are read from global memory, codebook and all, several times slower.
//!
//! # Cost
//! 3 · dim · 2^bits f32 instructions a vector and 3 · M · 2^bits for the comparisons; 1 M × 128 with 256 codewords is 98 G
//! operations without the comparisons, 3.3 ms of an H200's f32 rate.

use cuda_std::global::F32x4;
use cuda_std::shared::{self, SharedPtr};
use cuda_std::{global, kernel, thread, unroll};

/// Threads of a block.
pub const THREADS: u32 = 128;
/// Vectors of a thread.
const ROWS: usize = 2;
/// Vectors of a block.
pub const BLOCK_ROWS: u32 = THREADS * ROWS as u32;
/// Codewords compared at once.
const CODEWORDS: usize = 8;
/// Codewords of the smallest piece of a codebook.
pub const FEWEST_CODEWORDS: u32 = CODEWORDS as u32;
/// Sub-quantizers whose codes fill whole bytes.
pub const GROUP: u32 = 8;

/// Bytes of dynamic shared memory for sub-vectors of `width` and pieces of `piece` codewords.
pub const fn shared_bytes(width: u64, piece: u64) -> u64 {
    4 * width * (piece + BLOCK_ROWS as u64)
}

/// One vector of a thread.
#[derive(Clone, Copy)]
struct Vector {
    row: *const f32,
    /// Null, or what is subtracted.
    centroid: *const f32,
}

impl Vector {
    /// Component `j` of the vector or residual.
    ///
    /// # Safety
    /// The row, and the centroid if there is one, have that component.
    #[inline(always)]
    unsafe fn component(self, j: usize) -> f32 {
        // SAFETY: as the caller promises.
        unsafe {
            let centroid = if self.centroid.is_null() { 0.0 } else { global::load_nc(self.centroid.wrapping_add(j)) };
            // Without a centroid: x − 0 is x, also where x is −0.
            global::load_nc(self.row.wrapping_add(j)) - centroid
        }
    }
}

/// Body of the two kernels; parameters at [`encode_staged`].
///
/// # Safety
/// As [`encode_staged`].
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "kernel parameters are passed separately so that loads stay ld.global")]
unsafe fn encode<const STAGED: bool>(
    rows: *const f32,
    row_count: u32,
    labels: *const u32,
    centroids: *const f32,
    codebooks: *const f32,
    stride: u32,
    sub_quantizers: u32,
    width: u32,
    bits: u32,
    piece: u32,
    run: u32,
    codes: *mut u8,
) {
    let thread = thread::thread_idx_x();
    let stride = stride as usize;
    let codewords = 1u32 << bits;
    let code_bytes = (sub_quantizers as usize * bits as usize).div_ceil(8);
    let book = shared::dynamic::<f32>();
    // SAFETY: the launch gives `shared_bytes(width, piece)`; rows past the end repeat the last one and are not stored; the
    // caller promises the shapes. Each thread reads and writes its own columns of `column`; barriers stand around the
    // filling of `book`, and every thread of the block arrives at them, since all loop bounds are the same for all.
    unsafe {
        let column: SharedPtr<f32> = book.add(width * piece + thread);
        let mut number = [0u32; ROWS];
        let mut vector = [Vector { row: rows, centroid: centroids }; ROWS];
        unroll::<ROWS>(|r| {
            number[r] = thread::block_idx_x() * BLOCK_ROWS + r as u32 * THREADS + thread;
            let row = number[r].min(row_count - 1) as usize;
            let label = if labels.is_null() { 0 } else { global::load_nc(labels.wrapping_add(row)) as usize };
            // Without labels `centroids` is null and stays it.
            vector[r] =
                Vector { row: rows.wrapping_add(row * stride), centroid: centroids.wrapping_add(label * stride) };
        });
        let mut words = [0u64; ROWS];
        let mut part = thread::block_idx_y() * run;
        let end = (part + run).min(sub_quantizers);
        while part < end {
            let first = (part * width) as usize;
            if STAGED {
                let mut j = 0;
                while j < width {
                    unroll::<ROWS>(|r| {
                        let x = vector[r].component(first + j as usize);
                        column.add(j * BLOCK_ROWS + r as u32 * THREADS).store(x);
                    });
                    j += 1;
                }
            }
            let codebook = codebooks.wrapping_add(first * codewords as usize);
            let mut best = [f32::INFINITY; ROWS];
            let mut place = [0u32; ROWS];
            let mut base = 0;
            while base < codewords {
                if STAGED {
                    thread::sync_threads();
                    // `piece` is a power of two, 8 at least.
                    let shift = 29 - piece.leading_zeros();
                    let mut quad = thread;
                    while quad < width << shift {
                        let from = (quad >> shift) * codewords + base + 4 * (quad & ((1 << shift) - 1));
                        let value = global::load_nc(codebook.wrapping_add(from as usize).cast::<F32x4>());
                        book.add(4 * quad).cast::<F32x4>().store(value);
                        quad += THREADS;
                    }
                    thread::sync_threads();
                }
                let mut group = 0;
                while group < piece {
                    let mut acc = [[0.0f32; CODEWORDS]; ROWS];
                    let mut j = 0;
                    while j < width {
                        let mut x = [0.0f32; ROWS];
                        unroll::<ROWS>(|r| {
                            x[r] = if STAGED {
                                column.add(j * BLOCK_ROWS + r as u32 * THREADS).load()
                            } else {
                                vector[r].component(first + j as usize)
                            };
                        });
                        unroll::<{ CODEWORDS / 4 }>(|q| {
                            let at = 4 * q as u32 + group;
                            let c = if STAGED {
                                book.add(j * piece + at).cast::<F32x4>().load().0
                            } else {
                                let at = (j as usize) * codewords as usize + (base + at) as usize;
                                global::load_nc(codebook.wrapping_add(at).cast::<F32x4>()).0
                            };
                            unroll::<4>(|e| {
                                unroll::<ROWS>(|r| {
                                    let difference = x[r] - c[e];
                                    acc[r][4 * q + e] += difference * difference;
                                });
                            });
                        });
                        j += 1;
                    }
                    unroll::<CODEWORDS>(|c| {
                        unroll::<ROWS>(|r| {
                            let less = acc[r][c] < best[r];
                            best[r] = if less { acc[r][c] } else { best[r] };
                            place[r] = if less { base + group + c as u32 } else { place[r] };
                        });
                    });
                    group += CODEWORDS as u32;
                }
                base += piece;
            }
            let at = part % GROUP;
            unroll::<ROWS>(|r| words[r] |= (place[r] as u64) << (at * bits));
            if at == GROUP - 1 || part == end - 1 {
                let bytes = ((at + 1) * bits).div_ceil(8);
                unroll::<ROWS>(|r| {
                    if number[r] < row_count {
                        let to = number[r] as usize * code_bytes + (part / GROUP * bits) as usize;
                        let mut byte = 0;
                        while byte < bytes {
                            global::store(codes.wrapping_add(to + byte as usize), (words[r] >> (8 * byte)) as u8);
                            byte += 1;
                        }
                    }
                    words[r] = 0;
                });
            }
            part += 1;
        }
    }
}

macro_rules! define_kernels {
    ($($(#[$doc:meta])* $name:ident, $staged:literal;)*) => {$(
        $(#[$doc])*
        ///
        /// `rows`: `row_count` ≥ 1 rows of `sub_quantizers` · `width` components, row-major with `stride`, as are centroids. `labels`
        /// and `centroids` are both null, or the row of `centroids` that is subtracted from each row. `codebooks`: `sub_quantizers` × `width` ×
        /// 2^`bits`, 16-byte aligned. `piece`, a power of two from 8 to 2^bits, counts the codewords that are in shared memory
        /// at once. `codes` gets ceil(sub_quantizers · bits / 8) bytes a row. `run`, a multiple of 8: the sub-quantizers of a
        /// block.
        ///
        /// Grid: ceil(row_count / 256) × ceil(sub_quantizers / run) blocks of [`THREADS`].
        ///
        /// # Safety
        /// The pointers cover the shapes above, and every label names a centroid.
        #[kernel(max_threads = 128, min_blocks = 4)]
        pub unsafe fn $name(
            rows: *const f32, row_count: u32, labels: *const u32, centroids: *const f32, codebooks: *const f32,
            stride: u32, sub_quantizers: u32, width: u32, bits: u32, piece: u32, run: u32, codes: *mut u8,
        ) {
            // SAFETY: the same contract.
            unsafe {
                encode::<$staged>(
                    rows, row_count, labels, centroids, codebooks, stride, sub_quantizers, width, bits, piece, run,
                    codes,
                )
            }
        }
    )*};
}
define_kernels! {
    /// Codes of vectors or residuals, sub-vectors and codebooks in shared memory: [`shared_bytes`] of it.
    encode_staged, true;
    /// As [`encode_staged`] for sub-vectors that are too wide for that: without shared memory; `piece` is 2^bits.
    encode_direct, false;
}
