//! Morton codes of shifted points: integers in whose order points that are close in space are mostly close (Park 2019,
//! section 2-1).
//!
//! # Problem
//! A point of dimension d ≤ [`MAX_DIM`] becomes a code of d·B bits, B = [`coordinate_bits`]`(d)`: 21 bits for each
//! coordinate in 64 bits for d = 3, 21 bits for each in 128 bits for d = 6, as many as fit 64 (d ≤ 3) or 128 bits
//! otherwise, and no more than the 24 that an f32 holds. The code has the highest bit of every coordinate first, then
//! the next bit of every coordinate, and so on: its order is the depth-first order of a 2^d-ary tree of cubes.
//!
//! ```text
//! cell(x, j)   = floor((x − min_j) · scale), clamped to 0 .. 2^(B−1)          // f64; one scale for all j: cells are cubes
//! code(x, v)   = interleave(cell(x, j) + v for each j)                        // v = offset(copy): the whole grid is shifted
//! ```
//!
//! The upper half of a coordinate's range is for the shift (Chan, *Approximate nearest neighbor queries revisited*,
//! 1997): points lie in the unit cube, and shifted points in a cube of side 2. Copy c of S is shifted by c/S of the
//! unit cube along the diagonal, S taken odd: the binary expansion of such a shift is infinite, so cubes of two copies
//! never coincide on any level. Two close points that a face of one copy separates lie inside one cube of most other
//! copies. Chan proves for d + 1 shifts (d even) that every point shares in some copy a cube with its neighbour whose
//! side is O(d) times their distance.
//!
//! # Cost
//! 2·12 + 6 instructions for each bit and point: about 600 for 21 bits; 2²³ points in 7 copies take about 1.3 ms of an
//! H200's instruction slots. The spreading of one coordinate at a time by shifts and masks (the report's table 2) has
//! five steps of 128-bit arithmetic for each coordinate, about the same, and a table of masks for each d.
//!
//! A query outside the base's bounding box gets the code of the nearest cell of the box.

use cuda_std::launch::LaunchConfig;
use cuda_std::{Ptr, PtrMut, device_inline, global, kernel, thread, unroll};

/// Largest dimension of points.
pub const MAX_DIM: usize = 12;
/// Number of threads of a block.
const THREADS: u32 = 256;

/// Number of bits of one coordinate in a code of dimension `dim`, 1 ≤ `dim` ≤ [`MAX_DIM`].
pub const fn coordinate_bits(dim: u32) -> u32 {
    let fit = if is_wide(dim) { 128 / dim } else { 64 / dim };
    if fit < 24 { fit } else { 24 }
}

/// Whether codes of dimension `dim` are u128; otherwise they are u64.
pub const fn is_wide(dim: u32) -> bool {
    dim > 3
}

/// The shift of copy `copy` of `copies` in cells: copy/S of the unit cube, S = `copies` or the next odd number.
#[device_inline]
pub fn offset(bits: u32, copies: u32, copy: u32) -> u32 {
    (((copy as u64) << (bits - 1)) / (copies | 1).max(1) as u64) as u32
}

/// The cell of component `x`, below 2^(`bits` − 1); `x` is finite.
#[device_inline]
pub fn cell(x: f32, min: f64, scale: f64, bits: u32) -> u32 {
    // The cast saturates: a coordinate below the box becomes 0.
    (((x as f64 - min) * scale) as u32).min((1 << (bits - 1)) - 1)
}

/// An integer that holds a code.
pub trait Code: Copy + Ord {
    /// A code without bits.
    const ZERO: Self;
    /// Appends the lower `dim` bits of `level`, 1 ≤ `dim` ≤ [`MAX_DIM`]; the rest of `level` is zero.
    fn append(self, level: u32, dim: u32) -> Self;
}

impl Code for u64 {
    const ZERO: Self = 0;
    #[device_inline]
    fn append(self, level: u32, dim: u32) -> Self {
        self << dim | level as u64
    }
}

impl Code for u128 {
    const ZERO: Self = 0;
    #[device_inline]
    fn append(self, level: u32, dim: u32) -> Self {
        // Two separate words, because a 128-bit shift by a variable distance also tests for distances from 64 on.
        let (high, low) = ((self >> 64) as u64, self as u64);
        let (high, low) = (high << dim | low >> (64 - dim), low << dim | level as u64);
        (high as u128) << 64 | low as u128
    }
}

/// The code of `cells`, `bits` of each; cells from `dim` on are zero.
#[device_inline]
pub fn interleave<W: Code>(cells: [u32; MAX_DIM], dim: u32, bits: u32) -> W {
    let mut left = cells;
    unroll::<MAX_DIM>(|j| left[j] = cells[j] << (32 - bits));
    let mut code = W::ZERO;
    let mut bit = 0;
    while bit < bits {
        // The top bits of all coordinates; coordinates that do not exist come last.
        let mut level = 0;
        unroll::<MAX_DIM>(|j| {
            level = level << 1 | left[j] >> 31;
            left[j] <<= 1;
        });
        code = code.append(level >> (MAX_DIM as u32 - dim), dim);
        bit += 1;
    }
    code
}

/// The code of the point whose component j is `x(j)`, every coordinate shifted by `offset` cells; `min(j)` is the
/// lowest corner of the base's bounding box.
#[device_inline]
pub fn code<W: Code>(
    x: impl Fn(usize) -> f32,
    min: impl Fn(usize) -> f64,
    scale: f64,
    dim: u32,
    bits: u32,
    offset: u32,
) -> W {
    let mut cells = [0; MAX_DIM];
    unroll::<MAX_DIM>(|j| cells[j] = if (j as u32) < dim { cell(x(j), min(j), scale, bits) + offset } else { 0 });
    interleave(cells, dim, bits)
}

/// Writes the code of every point in one copy, and the point's number: the pairs for the sort.
///
/// # Safety
/// The arrays are as long as the fields say; the codes of these dimensions fit `W`.
#[kernel(
    max_threads = 256,
    morton_codes_u64 for MortonCodes<u64> = write_codes::<u64>,
    morton_codes_u128 for MortonCodes<u128> = write_codes::<u128>,
)]
pub struct MortonCodes<W> {
    /// Rows of `dim` components.
    pub points: Ptr<f32>,
    /// Number of points.
    pub count: u32,
    /// Dimension of the points: 1 to [`MAX_DIM`].
    pub dim: u32,
    /// Number of bits of a coordinate: [`coordinate_bits`]`(dim)`.
    pub bits: u32,
    /// The lowest corner of the base's bounding box: `dim` coordinates.
    pub mins: Ptr<f64>,
    /// Number of cells in a unit of the coordinates.
    pub scale: f64,
    /// The shift of the copy in cells: [`offset`].
    pub offset: u32,
    /// A code for each point.
    pub codes: PtrMut<W>,
    /// The number of each point.
    pub ids: PtrMut<u32>,
}

impl<W> MortonCodes<W> {
    /// One thread for each point.
    pub fn config(&self) -> LaunchConfig {
        LaunchConfig::linear(self.count.div_ceil(THREADS) as u64, THREADS)
    }
}

/// # Safety
/// As [`MortonCodes`].
#[device_inline]
unsafe fn write_codes<W: Code>(launch: MortonCodes<W>) {
    let MortonCodes { points, count, dim, bits, mins, scale, offset, codes, ids } = launch;
    let point = thread::block_idx_x() * THREADS + thread::thread_idx_x();
    if point < count {
        let row = points.wrapping_add(point as usize * dim as usize);
        // SAFETY: point < count, and components are asked for below dim.
        unsafe {
            let code = code::<W>(
                |j| global::load_nc(row.wrapping_add(j)),
                |j| global::load_nc(mins.wrapping_add(j)),
                scale,
                dim,
                bits,
                offset,
            );
            global::store(codes.wrapping_add(point as usize), code);
            global::store(ids.wrapping_add(point as usize), point);
        }
    }
}
