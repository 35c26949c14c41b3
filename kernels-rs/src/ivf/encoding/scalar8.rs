//! One byte for each component of residuals. Component i of a vector in list l is
//!
//! ```text
//! r[i] = f32(c_l[i] + f32(least[i] + f32(code[i] * step[i])))
//! ```
//!
//! `codebooks` has `least`, then `step`, `stride` numbers each, zero padded. Rows of codes are padded to a multiple of
//! eight bytes.
//!
//! # Operands
//! As for product-quantizer codes, the operand is computed from scaled f16 parts
//! ([`crate::ivf::code_bounds::ScaleCodes`]):
//!
//! ```text
//! operand = f16(code * step + f16(offset_l + least))       // one fused multiply-add for two components
//! ```
//!
//! A code becomes an f16 without conversion: 0x6400 | code is the f16 1024 + code, and the subtraction of 1024 is
//! exact. No table is in shared memory, and a thread loads the parts of its eight components once for all its rows.

use cuda_std::global::{U32x2, U32x4};
use cuda_std::shared::SharedPtr;
use cuda_std::{global, math, unroll};

use super::{Decode, Operand4, OperandParts, StoredRows};
use crate::ivf::code_bounds::{MeasureCodes, measure, measure_kernels};
#[cfg(not(target_arch = "nvptx64"))]
use crate::ivf::list_scan::RowScan;
use crate::ivf::list_scan::{
    CHUNK, CHUNK_BYTES, ROWS_A_THREAD, Residence, Rows, STAGES, ScanKey, ScanLists, THREADS, Tile, chunk_offset, scan,
    scan_kernels,
};
use crate::ivf::rerank::{PerQuery, Rerank, by_block, by_warp, rerank_kernels};
use crate::ivf::rescan::{Rescan, Rescanned, count, rescan, rescan_kernels};
use crate::product::element;
use crate::product::instruction::{Instruction, MmaSync, Wgmma};

/// The scans of codes of one byte.
#[cfg(not(target_arch = "nvptx64"))]
pub const SCAN: RowScan = RowScan { kernel: scan_bytes, append_queries: 64, table: false };

scan_kernels! {
    fn scan_bytes(key: ScanKey) {
        /// With two blocks a multiprocessor this kernel would spill 8 bytes on some architectures.
        (Instruction::MmaSync, Tile::Of64, Residence::Resident) =>
            scan_scalar8_64(min_blocks = 1) = scan::<Scaled, MmaSync<2, 2, 4>, 2, 4, 64, true, false>,
        (Instruction::MmaSync, Tile::Of64, Residence::Streamed) =>
            scan_scalar8_64_streamed(min_blocks = 1) = scan::<Scaled, MmaSync<2, 2, 4>, 2, 4, 64, false, false>,
        (_, Tile::Of16, Residence::Resident) =>
            scan_scalar8_16 = scan::<Scaled, MmaSync<1, 1, 2>, 1, 2, 16, true, false>,
        (_, Tile::Of16, Residence::Streamed) =>
            scan_scalar8_16_streamed = scan::<Scaled, MmaSync<1, 1, 2>, 1, 2, 16, false, false>,
        (Instruction::MmaSync, Tile::Append, Residence::Resident) =>
            append_scalar8 = scan::<Scaled, MmaSync<2, 2, 4>, 2, 4, 64, true, true>,
        (Instruction::MmaSync, Tile::Append, Residence::Streamed) =>
            append_scalar8_streamed = scan::<Scaled, MmaSync<2, 2, 4>, 2, 4, 64, false, true>,
        (Instruction::Wgmma, Tile::Of64, Residence::Resident) =>
            scan_scalar8_64_sm90(arch = "sm_90a") = scan::<Scaled, Wgmma<8>, 1, 8, 64, true, false>,
        (Instruction::Wgmma, Tile::Of64, Residence::Streamed) =>
            scan_scalar8_64_streamed_sm90(arch = "sm_90a") = scan::<Scaled, Wgmma<8>, 1, 8, 64, false, false>,
        (Instruction::Wgmma, Tile::Append, Residence::Resident) =>
            append_scalar8_sm90(arch = "sm_90a") = scan::<Scaled, Wgmma<8>, 1, 8, 64, true, true>,
        (Instruction::Wgmma, Tile::Append, Residence::Streamed) =>
            append_scalar8_streamed_sm90(arch = "sm_90a") = scan::<Scaled, Wgmma<8>, 1, 8, 64, false, true>,
    }
}

rerank_kernels! {
    /// The kernel that re-ranks codes.
    pub fn reranking(key: PerQuery) {
        PerQuery::Block => rerank_scalar8(min_blocks = 3) = by_block::<Scalar8>,
        PerQuery::Warp => rerank_few_scalar8(min_blocks = 3) = by_warp::<Scalar8>,
    }
}

rescan_kernels! {
    /// The kernel that compares all codes of a query's lists.
    pub fn rescanning(key: Rescanned) {
        Rescanned::Neighbors => rescan_scalar8 = rescan::<Scalar8>,
        Rescanned::Count => count_scalar8 = count::<Scalar8>,
    }
}

measure_kernels! {
    /// The kernel that measures codes.
    pub fn measuring() {
        measure_scalar8 = measure::<Scalar8>,
    }
}

/// Codes of one byte for each component of residuals.
#[derive(Clone, Copy)]
pub(crate) struct Scalar8 {
    rows: StoredRows,
    stride: u32,
}

/// Two codes, the low and the third byte of `bytes`, as f16.
#[inline(always)]
fn two_f16(bytes: u32) -> u32 {
    // 1024 + code in each half; the other operand is −1024.
    math::add_f16x2(bytes & 0x00ff_00ff | 0x6400_6400, 0xe400_e400)
}

/// Four codes, one in each byte, as f16 in order.
#[inline(always)]
fn four_f16(codes: u32) -> [u32; 2] {
    let spread = |two: u32| two & 0xff | (two & 0xff00) << 8;
    [two_f16(spread(codes)), two_f16(spread(codes >> 16))]
}

/// The parts of the operands of four components of one list.
#[derive(Clone, Copy)]
struct QuadParts {
    base: [u32; 2],
    step: [u32; 2],
}

impl QuadParts {
    /// The parts of components 4·`quad` .. of `list`; zeros from the stride on.
    ///
    /// # Safety
    /// The list exists, and the parts have this stride.
    #[inline(always)]
    unsafe fn of(parts: OperandParts, stride: u32, list: u32, quad: u32) -> Self {
        if 4 * quad >= stride {
            return Self { base: [0; 2], step: [0; 2] };
        }
        let at = 4 * quad as usize;
        // SAFETY: the quad is inside the stride, which is a multiple of four.
        unsafe {
            let two = |from: *const u16| global::load_nc(from.cast::<U32x2>()).0;
            let offset = two(parts.offsets.wrapping_add(list as usize * stride as usize + at));
            let least = two(parts.halves.wrapping_add(at));
            let step = two(parts.halves.wrapping_add(stride as usize + at));
            Self { base: [math::add_f16x2(offset[0], least[0]), math::add_f16x2(offset[1], least[1])], step }
        }
    }

    /// The operands of four codes.
    #[inline(always)]
    fn operands(&self, codes: u32) -> [u32; 2] {
        let codes = four_f16(codes);
        [math::fma_f16x2(codes[0], self.step[0], self.base[0]), math::fma_f16x2(codes[1], self.step[1], self.base[1])]
    }
}

impl Decode for Scalar8 {
    type Query = element::F32;

    #[inline(always)]
    fn of(rows: &StoredRows, stride: u32) -> Self {
        Self { rows: *rows, stride }
    }

    #[inline(always)]
    unsafe fn load4(&self, row: u32, list: u32, quad: u32) -> [f32; 4] {
        let StoredRows { rows, code_bytes, codebooks, centroids, .. } = self.rows;
        let stride = self.stride;
        let at = 4 * quad as usize;
        // SAFETY: the quad is inside the row, whose bytes are a multiple of eight, and inside the stride.
        unsafe {
            let codes = rows.wrapping_add(row as usize * code_bytes as usize + at);
            let codes = global::load_nc(codes.cast::<u32>());
            let four = |from: *const f32| global::load_nc(from.cast::<global::F32x4>()).0;
            let least = four(codebooks.wrapping_add(at));
            let step = four(codebooks.wrapping_add(stride as usize + at));
            let centroid = four(centroids.wrapping_add(list as usize * stride as usize + at));
            let mut r = [0.0; 4];
            unroll::<4>(|e| {
                let code = (codes >> (8 * e) & 0xff) as f32;
                r[e] = centroid[e] + (least[e] + code * step[e]);
            });
            r
        }
    }

    #[inline(always)]
    unsafe fn quad(&self, row: u32, list: u32, quad: u32) -> [f32; 4] {
        // SAFETY: the same contract.
        unsafe { Decode::load4(self, row, list, quad) }
    }
}

impl Operand4 for Scalar8 {
    #[inline(always)]
    unsafe fn operand4(&self, parts: OperandParts, row: u32, list: u32, quad: u32) -> [u32; 2] {
        let StoredRows { rows, code_bytes, .. } = self.rows;
        // SAFETY: as the caller promises; rows are multiples of eight bytes.
        unsafe {
            let codes = rows.wrapping_add(row as usize * code_bytes as usize + 4 * quad as usize);
            QuadParts::of(parts, self.stride, list, quad).operands(global::load_nc(codes.cast::<u32>()))
        }
    }
}

/// Codes in the form that a list scan reads.
#[derive(Clone, Copy)]
pub(crate) struct Scaled {
    codes: *const u8,
    code_bytes: u32,
    dim: u32,
    parts: OperandParts,
}

impl Rows for Scaled {
    const DENSE: bool = false;
    const FACTORS: bool = true;
    const PARTIAL: bool = false;
    const STAGES: u32 = STAGES;
    /// The codes of the thread's eight components, for each of its rows.
    type Ahead = [[u32; 2]; ROWS_A_THREAD];

    #[inline(always)]
    fn of(launch: &ScanLists) -> Self {
        let ScanLists { stored: StoredRows { rows, code_bytes, dim, .. }, parts, .. } = *launch;
        Self { codes: *rows, code_bytes, dim, parts }
    }

    #[inline(always)]
    unsafe fn begin(&mut self, _: SharedPtr<u8>, _: u32) {}

    #[inline(always)]
    unsafe fn ahead(&self, first: u32, chunk: u32, thread: u32) -> Self::Ahead {
        let (row, part) = (thread / 8, thread % 8);
        let component = chunk * CHUNK + 8 * part;
        let mut found = [[0; 2]; ROWS_A_THREAD];
        if component < self.dim {
            unroll::<ROWS_A_THREAD>(|i| {
                let row = (first + row + i as u32 * (THREADS / 8)) as usize;
                let at = self.codes.wrapping_add(row * self.code_bytes as usize + component as usize);
                // SAFETY: the row exists; its bytes are a multiple of eight, and so is the component.
                found[i] = unsafe { global::load_nc(at.cast::<U32x2>()) }.0;
            });
        }
        found
    }

    #[inline(always)]
    unsafe fn fill(&self, to: SharedPtr<u8>, list: u32, _: u32, chunk: u32, thread: u32, found: Self::Ahead) {
        let (row, part) = (thread / 8, thread % 8);
        let (quad, stride) = (chunk * (CHUNK / 4) + 2 * part, self.dim.next_multiple_of(4));
        // SAFETY: rows row + 32·i < 128, which exist; the swizzle repeats after 8 rows. Components from the stride on
        // are zeros.
        unsafe {
            let to = to.add(chunk_offset(row, part));
            let low = QuadParts::of(self.parts, stride, list, quad);
            let high = QuadParts::of(self.parts, stride, list, quad + 1);
            unroll::<ROWS_A_THREAD>(|i| {
                let (low, high) = (low.operands(found[i][0]), high.operands(found[i][1]));
                let to = to.add(i as u32 * (THREADS / 8) * CHUNK_BYTES).cast::<U32x4>();
                to.store(U32x4([low[0], low[1], high[0], high[1]]));
            });
        }
    }
}
