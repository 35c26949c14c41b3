//! Product-quantizer codes: the nearest codeword of each sub-vector, packed.
//!
//! # Problem
//! n vectors, M sub-quantizers of 2^bits codewords, width w = dim / M. Code m of a vector is the first codeword c with
//! the smallest Σ_j (x_j − c_j)², j ascending from 0, in f32, without fused operations. This is the definition of the
//! host crate's `pq` module, bit for bit. In an inverted list, x is the residual: the vector minus its list's centroid,
//! component by component.
//!
//! # Algorithm
//! ```text
//! a block has 256 vectors, two in each thread, and a run of sub-quantizers; for each:
//!     x[j] of the thread's vectors -> shared memory (the thread's own column: no barrier)
//!     for each piece of the codebook (transposed: component by component) -> shared memory
//!         for 8 codewords at a time: acc[2][8] = Σ_j (x[j] − c[j])²        // c: two 16-byte loads, the same for all lanes
//!                                    keep the first smallest
//!     append the number to the vector's word; after 8 sub-quantizers (whole bytes) store the word
//! ```
//!
//! 1. Two vectors times eight codewords give 16 independent chains of additions, and 48 arithmetic instructions for the
//!    four loads of a component.
//! 2. The codebook is transposed, so any width works without padding. x is in shared memory and not in registers,
//!    because the loop over components has no fixed length.
//! 3. Eight codes of b bits are b bytes. Blocks that share vectors have runs of eight sub-quantizers, so no byte has
//!    codes of two blocks.
//!
//! If sub-vectors are so wide that x does not fit in shared memory, they and the codebook are read from global memory,
//! several times slower.
//!
//! # Cost
//! 3 · dim · 2^bits f32 instructions for each vector and 3 · M · 2^bits for the comparisons; 1 M × 128 with 256
//! codewords is 98 G operations without the comparisons, 3.3 ms of an H200's f32 rate.

use cuda_std::global::F32x4;
use cuda_std::launch::LaunchConfig;
use cuda_std::shared::{self, SharedPtr};
use cuda_std::{Ptr, PtrMut, device_inline, global, kernel, thread, unroll};

/// Number of threads of a block.
const THREADS: u32 = 128;
/// Number of vectors of a thread.
const ROWS: usize = 2;
/// Number of vectors of a block.
pub const BLOCK_ROWS: u32 = THREADS * ROWS as u32;
/// Number of codewords that are compared at once.
const CODEWORDS: usize = 8;
/// Number of codewords of the smallest piece of a codebook.
pub const FEWEST_CODEWORDS: u32 = CODEWORDS as u32;
/// Number of sub-quantizers whose codes fill whole bytes.
pub const GROUP: u32 = 8;

/// Bytes of dynamic shared memory for sub-vectors of `width` components and pieces of `piece` codewords.
pub const fn shared_bytes(width: u64, piece: u64) -> u64 {
    4 * width * (piece + BLOCK_ROWS as u64)
}

/// One vector of a thread.
#[derive(Clone, Copy)]
struct Vector {
    row: *const f32,
    /// The centroid that is subtracted, if the code is of a residual.
    centroid: Option<Ptr<f32>>,
}

impl Vector {
    /// Component `j` of the vector or residual.
    ///
    /// # Safety
    /// The row, and the centroid if there is one, have that component.
    #[device_inline]
    unsafe fn component(self, j: usize) -> f32 {
        // SAFETY: as the caller promises.
        unsafe {
            let centroid = match self.centroid {
                Some(centroid) => global::load_nc(centroid.wrapping_add(j)),
                None => 0.0,
            };
            // Without a centroid, x − 0 is x, also if x is −0.
            global::load_nc(self.row.wrapping_add(j)) - centroid
        }
    }
}

/// The memory from which a block reads sub-vectors and codebooks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Staging {
    /// Shared memory, which the block fills piece by piece: [`shared_bytes`].
    Shared,
    /// Global memory, for any width.
    Global,
}

/// Writes the code of each vector, or of its residual.
///
/// # Safety
/// The arrays are as long as the fields say; there is at least one row; every label has a centroid.
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
    /// Number of rows.
    pub row_count: u32,
    /// The row of `centroids` that is subtracted from each row; absent: no centroids.
    pub labels: Option<Ptr<u32>>,
    /// Rows laid out as those of `rows`, one for each label; empty if `labels` is absent.
    pub centroids: Ptr<f32>,
    /// The codebooks, `sub_quantizers` × `width` × 2^`bits`, aligned to 16 bytes.
    pub codebooks: Ptr<f32>,
    /// Distance from one row to the next in components.
    pub stride: u32,
    /// Number of sub-quantizers.
    pub sub_quantizers: u32,
    /// Number of components of a sub-vector.
    pub width: u32,
    /// Number of bits of a code.
    pub bits: u32,
    /// Number of codewords that are in shared memory at once: a power of two from [`FEWEST_CODEWORDS`] to 2^`bits`. For
    /// [`Staging::Global`] 2^`bits`.
    pub piece: u32,
    /// Number of sub-quantizers of a block: a multiple of [`GROUP`].
    pub run: u32,
    /// The codes: ceil(`sub_quantizers` · `bits` / 8) bytes for each row.
    pub codes: PtrMut<u8>,
}

impl Encode {
    /// Blocks along x share the rows, 256 for each; those along y share the sub-quantizers, a run for each.
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
#[device_inline]
unsafe fn encode<const STAGED: bool>(launch: Encode) {
    let Encode { rows, row_count, labels, centroids, codebooks, stride, .. } = launch;
    let Encode { sub_quantizers, width, bits, piece, run, codes, .. } = launch;
    let thread = thread::thread_idx_x();
    let stride = stride as usize;
    let codewords = 1u32 << bits;
    let code_bytes = (sub_quantizers as usize * bits as usize).div_ceil(8);
    let book = shared::dynamic::<f32>();
    // SAFETY: the launch gives `shared_bytes(width, piece)`; rows after the end repeat the last one and are not stored;
    // the caller promises the shapes. Each thread reads and writes its own columns of `column`. Barriers precede and
    // follow the filling of `book`, and every thread of the block arrives at them, because all loop bounds are the same
    // for all.
    unsafe {
        let column: SharedPtr<f32> = book.add(width * piece + thread);
        let mut number = [0u32; ROWS];
        let mut vector = [Vector { row: *rows, centroid: None }; ROWS];
        unroll::<ROWS>(|r| {
            number[r] = thread::block_idx_x() * BLOCK_ROWS + r as u32 * THREADS + thread;
            let row = number[r].min(row_count - 1) as usize;
            let centroid = labels.map(|labels| {
                let label = global::load_nc(labels.wrapping_add(row)) as usize;
                // The centroid exists, so its address is not 0.
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
                    // `piece` is a power of two, at least 8.
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
