//! Product-quantizer codes as vectors: the components that a stored code stands for.
//!
//! # Problem
//! An IVF-PQ index stores, for a vector in list l, the codes of its M sub-vectors' residuals (paper sections 2.2 and
//! 5.2). The reconstruction r of the vector is
//!
//! ```text
//! r[i] = f32(c_l[i] + codebook[m][code m][i mod w]),  w = dim / M,  m = i / w
//! ```
//!
//! with one f32 addition for each component. Every back end uses this reconstruction. Codes of `bits` bits are packed
//! from the lowest bit of the first byte, sub-quantizer 0 first.
//!
//! # How it is read
//! Four components at a time, as with rows of any other element type ([`crate::product::element`]). If w is a multiple
//! of four, they are read by one load of 16 bytes from the codebook, which the first-level cache holds (128 KiB for 256
//! codewords of 128 components). If w is another even number, they are read by two loads of 8 bytes, because a
//! sub-vector has both components of a pair; otherwise one by one.

use cuda_std::global::{F32x2, F32x4, U32x2};
use cuda_std::{device_inline, global, math, unroll};

use crate::pq::pq_codes::code_at;

/// An image of coded vectors in global memory.
#[derive(Clone, Copy)]
pub struct Codes {
    /// Codes, `code_bytes` bytes in a row.
    pub codes: *const u8,
    /// Number of bytes of a row.
    pub code_bytes: u32,
    /// Number of bits of a sub-quantizer's code, at most 8.
    pub bits: u32,
    /// Number of components of a sub-vector, w.
    pub width: u32,
    /// Number of components of a vector.
    pub dim: u32,
    /// Codewords \[M\]\[2^bits\]\[w\].
    pub codebooks: *const f32,
    /// Centroids of the lists, `stride` components in a row, zero padded.
    pub centroids: *const f32,
    /// Distance from one centroid to the next in components: `dim` padded to a multiple of four.
    pub stride: u32,
}

impl Codes {
    /// Code `m` of storage row `row`.
    ///
    /// # Safety
    /// The row exists, and m < dim / width.
    #[device_inline]
    pub unsafe fn code(&self, row: u32, m: u32) -> u32 {
        let code = self.codes.wrapping_add(row as usize * self.code_bytes as usize);
        // SAFETY: the row's code has sub-quantizer m, and bits are at most 8, as the field says.
        unsafe { code_at(code, m, self.bits) }
    }

    /// Components 4·`quad` .. 4·`quad` + 4 of the vector in storage row `row`, which belongs to list `list`; zeros from
    /// `dim` on.
    ///
    /// # Safety
    /// Row and list exist, and the pointers are as their fields say.
    #[device_inline]
    pub unsafe fn load4(&self, row: u32, list: u32, quad: u32) -> [f32; 4] {
        let width = self.width.max(1);
        let first = 4 * quad;
        // SAFETY: components below dim belong to sub-quantizers below dim / width, and every code has a codeword.
        unsafe {
            let centroid = self.centroids.wrapping_add(list as usize * self.stride as usize + first as usize);
            if width.is_multiple_of(4) {
                let m = first / width;
                if first >= self.dim {
                    return [0.0; 4];
                }
                let codeword = (m << self.bits | self.code(row, m)) as usize * width as usize;
                let part = (first - m * width) as usize;
                let c = global::load_nc(centroid.cast::<F32x4>()).0;
                let p = global::load_nc(self.codebooks.wrapping_add(codeword + part).cast::<F32x4>()).0;
                [c[0] + p[0], c[1] + p[1], c[2] + p[2], c[3] + p[3]]
            } else if width == 2 && self.bits == 8 && self.code_bytes.is_multiple_of(2) {
                if first >= self.dim {
                    return [0.0; 4];
                }
                // Bytes 2·quad and 2·quad + 1 of a row with an even number of bytes: the address is even, and both
                // exist.
                let at = row as usize * self.code_bytes as usize + 2 * quad as usize;
                let two = global::load_nc(self.codes.wrapping_add(at).cast::<u16>()) as u32;
                let codeword = |m: u32, code: u32| {
                    let at = ((m << 8 | code) * 2) as usize;
                    global::load_nc(self.codebooks.wrapping_add(at).cast::<F32x2>()).0
                };
                let (low, high) = (codeword(2 * quad, two & 0xff), codeword(2 * quad + 1, two >> 8));
                let c = global::load_nc(centroid.cast::<F32x4>()).0;
                [c[0] + low[0], c[1] + low[1], c[2] + high[0], c[3] + high[1]]
            } else if width.is_multiple_of(2) {
                let mut r = [0.0; 4];
                let mut i = first;
                while i < self.dim.min(first + 4) {
                    let m = i / width;
                    let codeword = (m << self.bits | self.code(row, m)) as usize * width as usize;
                    let p = global::load_nc(
                        self.codebooks.wrapping_add(codeword + (i - m * width) as usize).cast::<F32x2>(),
                    );
                    let c = global::load_nc(centroid.wrapping_add((i - first) as usize).cast::<F32x2>());
                    unroll::<4>(|e| r[e] = if i == (first + e as u32) & !1 { c.0[e % 2] + p.0[e % 2] } else { r[e] });
                    i += 2;
                }
                r
            } else {
                // One after the other, because in parallel eight rows of them take more registers than there are.
                let mut r = [0.0; 4];
                let mut i = first;
                while i < self.dim.min(first + 4) {
                    let m = i / width;
                    let codeword = (m << self.bits | self.code(row, m)) as usize * width as usize;
                    let p = global::load_nc(self.codebooks.wrapping_add(codeword + (i - m * width) as usize));
                    let sum = global::load_nc(centroid.wrapping_add((i - first) as usize)) + p;
                    unroll::<4>(|e| r[e] = if i == first + e as u32 { sum } else { r[e] });
                    i += 1;
                }
                r
            }
        }
    }
}

/// Codes as operands of the tensor cores. They are decoded with few instructions, relative to `centre` and scaled by a
/// power of two s.
///
/// ```text
/// offset[l][i] = f16((c_l[i] - centre[i]) * s)       // once for an index
/// half[..] = f16(codeword * s)
/// operand = f16(offset + half)                       // one addition for two components
/// ```
///
/// s brings the greatest component of any vector below 2^14 and that of any centroid below 2^15, so a codeword, their
/// difference, stays below 2^16 · 3/4 and no f16 overflows.
#[derive(Clone, Copy)]
pub struct Operands {
    /// The codes that are decoded to operands.
    pub codes: Codes,
    /// The scaled centroids: `stride` components for each list.
    pub offsets: *const u16,
    /// The scaled codewords, laid out as the codebooks.
    pub halves: *const u16,
}

impl Operands {
    /// The offsets of components 4·`quad` .. of `list`, as two words; zeros from the stride on.
    ///
    /// # Safety
    /// The list exists.
    #[device_inline]
    pub unsafe fn offset4(&self, list: u32, quad: u32) -> [u32; 2] {
        if 4 * quad < self.codes.stride {
            let at = list as usize * self.codes.stride as usize + 4 * quad as usize;
            // SAFETY: the components are inside the list's row, whose padding is zero.
            unsafe { global::load_nc(self.offsets.wrapping_add(at).cast::<U32x2>()).0 }
        } else {
            [0; 2]
        }
    }

    /// The sub-quantizer of component 4·`quad`, and the place of this component of its first codeword among the halves.
    /// For widths that are multiples of four.
    #[device_inline]
    pub fn book(&self, quad: u32) -> (u32, u32) {
        let width = self.codes.width.max(1);
        // A division costs as much as the rest of a decoding.
        let m = if width == 4 { quad } else { 4 * quad / width };
        (m, (m << self.codes.bits) * width + (4 * quad - m * width))
    }

    /// The sub-quantizer of each of the four pairs of components from 8·`octet` on, and the place of the pair in its
    /// sub-vector. For even widths.
    #[device_inline]
    pub fn pairs(&self, octet: u32) -> [(u32, u32); 4] {
        let width = self.codes.width.max(2);
        let m = 8 * octet / width;
        let mut pair = (m, 8 * octet - m * width);
        [(); 4].map(|()| {
            let this = pair;
            pair = if this.1 + 2 == width { (this.0 + 1, 0) } else { (this.0, this.1 + 2) };
            this
        })
    }

    /// The operands of components 4·`quad` .. of a row, as two words, whose offsets are `offset`. `half` looks up the
    /// halves one by one. For any width.
    ///
    /// # Safety
    /// The row exists, and `half` is defined for every place of the halves.
    #[device_inline]
    pub unsafe fn quad(&self, row: u32, quad: u32, offset: [u32; 2], half: impl Fn(u32) -> u16) -> [u32; 2] {
        let (width, dim) = (self.codes.width.max(1), self.codes.dim);
        let mut halves = [0u32; 4];
        unroll::<4>(|e| {
            let i = 4 * quad + e as u32;
            if i < dim {
                let m = i / width;
                // SAFETY: m is below the number of sub-quantizers.
                let code = unsafe { self.codes.code(row, m) };
                halves[e] = half((m << self.codes.bits | code) * width + (i - m * width)) as u32;
            }
        });
        [
            math::add_f16x2(offset[0], halves[0] | halves[1] << 16),
            math::add_f16x2(offset[1], halves[2] | halves[3] << 16),
        ]
    }
}
