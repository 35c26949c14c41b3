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
use cuda_std::launch::LaunchConfig;
use cuda_std::shared::{self, SharedPtr};
use cuda_std::{Ptr, PtrMut, global, kernel, thread, unroll};

/// Threads of a block.
const THREADS: u32 = 128;
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
    /// What is subtracted, if anything.
    centroid: Option<Ptr<f32>>,
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
            let centroid = match self.centroid {
                Some(centroid) => global::load_nc(centroid.wrapping_add(j)),
                None => 0.0,
            };
            // Without a centroid: x − 0 is x, also where x is −0.
            global::load_nc(self.row.wrapping_add(j)) - centroid
        }
    }
}

/// Where a block reads sub-vectors and codebooks from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Staging {
    /// From shared memory, which it fills piece by piece: [`shared_bytes`] of it.
    Shared,
    /// From global memory: any width.
    Global,
}

/// Writes the code of each vector, or of its residual.
///
/// # Safety
/// The arrays are as long as the fields say; there is at least one row; every label names a centroid.
#[kernel(
    key = Staging,
    max_threads = 128,
    min_blocks = 4,
    Staging::Shared => encode_staged = encode::<true>,
    Staging::Global => encode_direct = encode::<false>,
)]
pub struct Encode {
    /// Rows of `sub_quantizers` · `width` components.
    pub rows: Ptr<f32>,
    /// Rows.
    pub row_count: u32,
    /// The row of `centroids` that is subtracted from each row; absent where nothing is.
    pub labels: Option<Ptr<u32>>,
    /// Rows as those of `rows`, one for each label; empty where `labels` is absent.
    pub centroids: Ptr<f32>,
    /// The codebooks, `sub_quantizers` × `width` × 2^`bits`, aligned to 16 bytes.
    pub codebooks: Ptr<f32>,
    /// Components from one row to the next.
    pub stride: u32,
    /// Sub-quantizers.
    pub sub_quantizers: u32,
    /// Components of a sub-vector.
    pub width: u32,
    /// Bits of a code.
    pub bits: u32,
    /// Codewords that are in shared memory at once: a power of two from [`FEWEST_CODEWORDS`] to 2^`bits`. All of them where nothing is in
    /// shared memory.
    pub piece: u32,
    /// Sub-quantizers of a block: a multiple of [`GROUP`].
    pub run: u32,
    /// ceil(`sub_quantizers` · `bits` / 8) bytes a row.
    pub codes: PtrMut<u8>,
}

impl Encode {
    /// Blocks along x share the rows, 256 each; those along y share the sub-quantizers, a run each.
    pub fn config(&self, staging: Staging) -> LaunchConfig {
        let shared = match staging {
            Staging::Shared => shared_bytes(self.width as u64, self.piece as u64) as u32,
            Staging::Global => 0,
        };
        LaunchConfig::linear(self.row_count.div_ceil(BLOCK_ROWS) as u64, THREADS)
            .along_y(self.sub_quantizers.div_ceil(self.run) as u64)
            .with_shared(shared)
    }
}

/// # Safety
/// As [`Encode`].
#[inline(always)]
unsafe fn encode<const STAGED: bool>(launch: Encode) {
    let Encode { rows, row_count, labels, centroids, codebooks, stride, .. } = launch;
    let Encode { sub_quantizers, width, bits, piece, run, codes, .. } = launch;
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
        let mut vector = [Vector { row: *rows, centroid: None }; ROWS];
        unroll::<ROWS>(|r| {
            number[r] = thread::block_idx_x() * BLOCK_ROWS + r as u32 * THREADS + thread;
            let row = number[r].min(row_count - 1) as usize;
            let centroid = labels.map(|labels| {
                let label = global::load_nc(labels.wrapping_add(row)) as usize;
                // The centroid exists, so that its address is not 0.
                centroids.advance(label * stride)
            });
            vector[r] = Vector { row: rows.wrapping_add(row * stride), centroid };
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
