//! Codes of one to eight bits for each component of residuals, with a step of each row. Component i of a vector in list
//! l is
//!
//! ```text
//! r[i] = f32(c_l[i] + f32(step * level[i]))
//! ```
//!
//! Levels of B bits are whole numbers: the odd ones of −2^B + 1 .. 2^B − 1 up to seven bits, and −128 .. 127 with
//! eight. So a level is a signed byte, and with seven bits or fewer no level is the centroid itself: the best a few
//! bits can do for components that are spread on both sides of it.
//!
//! # Rows
//! `code_bytes` bytes, a multiple of 4: the step as f32, the rest, which no search reads (the error of the code), and
//! then, for each [`GROUP`] of 32 components, a word for each bit of the code, the sign first. The
//! code of component 4·s + e of a group has its bits at place 8·e + s of the words. So `(word >> s) & 0x01010101` is
//! one bit of the codes of four neighbours, a byte each, and codes become levels four at a time. Bits of components
//! that a vector does not have are zero.
//!
//! # Operands
//! The levels as signed bytes, which the scan unpacks into shared memory, and queries as two planes of bytes
//! ([`crate::ivf::code_queries`]). A product is multiplied by the step of its row. Queries know one step and one least
//! value for all components: `codebooks` has −128 for each component and then 1, so that code 128 of a byte is the
//! centroid.
//!
//! # Cost
//! A row is read as B/8 bytes for each component. A thread unpacks 16 components of four rows with about 3·B + 6
//! instructions for each four components: for B = 4 and 128 rows × 128 components 300 instructions a thread, 600 cycles
//! of a multiprocessor's four schedulers, where the products with 64 queries in two planes take 760 (1,442 TOPS of
//! bytes on an H200). Two blocks of a multiprocessor overlap them.
//!
//! Measured on an H200 with 4 bits: 10,000 queries, 32 of 1,024 lists, 300,000 × 384 take .60 ms, 156·10⁹ pairs a
//! second; the products alone, with padding, would take .13. Whole searches are in docs/FIGURES.md.
//!
//! A billion vectors meet few queries a list, and the scan of tiles of 16 queries is nine tenths of the search. For 10⁸
//! × 96, 5 bits, 2.4 queries for each of 13,107 lists, it takes 6.5 ms: 2.4 instructions a cycle, and a fifth of the
//! memory's rate (Nsight Compute, H200, 2026-11-30).
//!
//! # What lost
//! Levels times 2^(7 − B), whose bits come from a plane by two instructions each (a rotation, and a selection of bits)
//! instead of three, without a correction behind them. For 1,000,000 × 384 10,000 queries took 1 % less to 9 % more,
//! and 256 queries 6 to 12 % less (means of two rounds in turn). For the 10⁸ above, rows one after the other with three
//! blocks a multiprocessor and warps without queries that rest took 6.4 ms; four rows together with two blocks took
//! 7.1, with 14 % fewer instructions. Half of 6.5 had been predicted: what a bit costs beside its two instructions was
//! left out.

use cuda_std::global::U32x4;
use cuda_std::shared::SharedPtr;
use cuda_std::{device_inline, global, unroll};

use super::{Decode, Held, Operand4, OperandSource, StoredRows};
use crate::ivf::code_bounds::{MeasureCodes, measure, measure_kernels};
#[cfg(not(target_arch = "nvptx64"))]
use crate::ivf::list_scan::RowScan;
use crate::ivf::list_scan::{
    CHUNK_BYTES, ROWS_A_THREAD, Residence, Rows, ScanKey, ScanLists, THREADS, Tile, UNPACKED_STAGES, chunk_offset,
    scan, scan_kernels,
};
use crate::ivf::rerank::{PerQuery, Rerank, by_block, by_warp, rerank_kernels};
use crate::ivf::rescan::{Rescan, Rescanned, count, rescan, rescan_kernels};
use crate::product::element::{self, Element, I8};
use crate::product::instruction::{Instruction, MmaSync, Wgmma};

/// Number of components whose bits are neighbours in a row.
pub const GROUP: u32 = 32;
/// The greatest number of bits of a code.
pub const MOST_BITS: u32 = 8;
/// Bytes of a row before its first group: the step and the rest.
pub const HEAD_BYTES: u32 = 8;
/// The lowest bit of each byte.
const ONES: u32 = 0x0101_0101;

/// Bytes of a row of `dim` components in codes of `bits` bits.
pub const fn row_bytes(dim: usize, bits: u32) -> usize {
    HEAD_BYTES as usize + dim.div_ceil(GROUP as usize) * 4 * bits as usize
}

/// The scans of codes of bits.
#[cfg(not(target_arch = "nvptx64"))]
pub const SCAN: RowScan =
    RowScan { kernel: scan_bit_codes, append_queries: 64, table: false, planes: true, steps: true };

scan_kernels! {
    fn scan_bit_codes(key: ScanKey) {
        (Instruction::MmaSync, Tile::Of64, Residence::Resident) =>
            scan_bit_codes_64 = scan::<Unpacked<1>, MmaSync<2, 4, 4, I8>, 4, 4, 64, true, false>,
        (Instruction::MmaSync, Tile::Of64, Residence::Streamed) =>
            scan_bit_codes_64_streamed = scan::<Unpacked<1>, MmaSync<2, 4, 4, I8>, 4, 4, 64, false, false>,
        (_, Tile::Of16, Residence::Resident) =>
            scan_bit_codes_16 = scan::<Unpacked<1>, MmaSync<2, 1, 4, I8>, 1, 4, 16, true, false>,
        (_, Tile::Of16, Residence::Streamed) =>
            scan_bit_codes_16_streamed = scan::<Unpacked<1>, MmaSync<2, 1, 4, I8>, 1, 4, 16, false, false>,
        (Instruction::MmaSync, Tile::Append, Residence::Resident) =>
            append_bit_codes(min_blocks = 1) = scan::<Unpacked<1>, MmaSync<2, 4, 4, I8>, 4, 4, 64, true, true>,
        (Instruction::MmaSync, Tile::Append, Residence::Streamed) =>
            append_bit_codes_streamed(min_blocks = 1) = scan::<Unpacked<1>, MmaSync<2, 4, 4, I8>, 4, 4, 64, false, true>,
        (Instruction::Wgmma, Tile::Of64, Residence::Resident) =>
            scan_bit_codes_64_sm90(arch = "sm_90a") = scan::<Unpacked<4>, Wgmma<16, I8>, 1, 16, 64, true, false>,
        (Instruction::Wgmma, Tile::Of64, Residence::Streamed) =>
            scan_bit_codes_64_streamed_sm90(arch = "sm_90a") = scan::<Unpacked<4>, Wgmma<16, I8>, 1, 16, 64, false, false>,
        (Instruction::Wgmma, Tile::Append, Residence::Resident) =>
            append_bit_codes_sm90(arch = "sm_90a") = scan::<Unpacked<4>, Wgmma<16, I8>, 1, 16, 64, true, true>,
        (Instruction::Wgmma, Tile::Append, Residence::Streamed) =>
            append_bit_codes_streamed_sm90(arch = "sm_90a") = scan::<Unpacked<4>, Wgmma<16, I8>, 1, 16, 64, false, true>,
    }
}

rerank_kernels! {
    /// The kernel that re-ranks codes.
    pub fn reranking(key: PerQuery) {
        PerQuery::Block => rerank_bit_codes(min_blocks = 3) = by_block::<Bits>,
        PerQuery::Warp => rerank_few_bit_codes(min_blocks = 3) = by_warp::<Bits>,
    }
}

rescan_kernels! {
    /// The kernel that compares all codes of a query's lists.
    pub fn rescanning(key: Rescanned) {
        Rescanned::Neighbors => rescan_bit_codes(min_blocks = 2) = rescan::<Bits>,
        Rescanned::Count => count_bit_codes = count::<Bits>,
    }
}

measure_kernels! {
    /// The kernel that measures codes.
    pub fn measuring() {
        measure_bit_codes = measure::<Bits>,
    }
}

/// Codes of `bits` bits for each component.
#[derive(Clone, Copy)]
pub(crate) struct Bits {
    rows: *const u8,
    code_bytes: u32,
    bits: u32,
    dim: u32,
    centroids: *const f32,
    stride: u32,
}

/// The codes of four components, a byte each, without their signs: one plane after the other.
#[device_inline]
fn more(low: u32, plane: u32, s: u32) -> u32 {
    low << 1 | plane >> s & ONES
}

/// Four levels as signed bytes, of the sign plane and of the other bits of the codes.
#[device_inline]
fn levels(signs: u32, s: u32, low: u32, bits: u32) -> u32 {
    // 1 for the lower half of all codes. Products of bytes with 0 or 1 have no carry.
    let lower = !(signs >> s) & ONES;
    if bits < MOST_BITS { (lower * (0x100 - (1 << bits))) | (low << 1) | ONES } else { (lower << 7) | low }
}

impl Bits {
    /// The words of a group of a row.
    #[device_inline]
    fn group(&self, row: u32, group: u32) -> *const u32 {
        let at = row as usize * self.code_bytes as usize + (HEAD_BYTES + 4 * self.bits * group) as usize;
        self.rows.wrapping_add(at).cast()
    }

    /// The step of a row.
    ///
    /// # Safety
    /// The row exists.
    #[device_inline]
    unsafe fn step(&self, row: u32) -> f32 {
        // SAFETY: as the caller promises; rows have a multiple of four bytes.
        unsafe { global::load_nc(self.rows.wrapping_add(row as usize * self.code_bytes as usize).cast()) }
    }

    /// The levels of components 4·`quad` .. of a row, 0 for components that a vector does not have.
    ///
    /// # Safety
    /// As [`Decode::quad`].
    #[device_inline]
    unsafe fn levels4(&self, row: u32, quad: u32) -> [f32; 4] {
        let (from, s) = (self.group(row, quad / 8), quad % 8);
        // SAFETY: as the caller promises; a group has `bits` words.
        unsafe {
            let signs = global::load_nc(from);
            let (mut low, mut bit) = (0, 1);
            while bit < self.bits {
                low = more(low, global::load_nc(from.wrapping_add(bit as usize)), s);
                bit += 1;
            }
            let word = levels(signs, s, low, self.bits);
            let mut found = [0.0; 4];
            unroll::<4>(|e| {
                if 4 * quad + (e as u32) < self.dim {
                    found[e] = (word >> (8 * e)) as u8 as i8 as f32;
                }
            });
            found
        }
    }
}

impl Decode for Bits {
    type Query = element::F32;

    #[device_inline]
    fn of(rows: &StoredRows, stride: u32) -> Self {
        let StoredRows { rows, code_bytes, bits, dim, centroids, .. } = *rows;
        Self { rows: *rows, code_bytes, bits, dim, centroids: *centroids, stride }
    }

    #[device_inline]
    unsafe fn quad(&self, row: u32, list: u32, quad: u32) -> [f32; 4] {
        // SAFETY: as the caller promises; the quad is inside the stride.
        unsafe {
            let (step, levels) = (self.step(row), self.levels4(row, quad));
            let mut r = element::F32::load4(self.centroids.wrapping_add(list as usize * self.stride as usize), quad);
            unroll::<4>(|e| r[e] += step * levels[e]);
            r
        }
    }
}

impl Operand4 for Bits {
    const CODES: bool = true;

    #[device_inline]
    unsafe fn operand4(&self, from: OperandSource, row: u32, list: u32, quad: u32) -> Held {
        // SAFETY: as the caller promises; the quad is inside the stride.
        unsafe {
            let (step, levels) = (self.step(row) as f64, self.levels4(row, quad));
            let centroid = element::F32::load4(self.centroids.wrapping_add(list as usize * self.stride as usize), quad);
            let mut held = Held { values: [0.0; 4], sizes: [0.0; 4], code_squares: 0.0 };
            unroll::<4>(|e| {
                let (offset, code) = ((centroid[e] - from.centre[e]) as f64, step * levels[e] as f64);
                held.values[e] = offset + code;
                held.sizes[e] = held.values[e].abs().max(offset.abs());
                held.code_squares += code * code;
            });
            held
        }
    }
}

/// Codes that become levels on the way to shared memory. A thread unpacks `TOGETHER` rows together, so that their loads
/// wait for memory at the same time: with `mma.sync`, whose sums take the registers, one.
#[derive(Clone, Copy)]
pub(crate) struct Unpacked<const TOGETHER: usize> {
    codes: Bits,
    /// Number of groups of a row.
    groups: u32,
}

impl<const TOGETHER: usize> Rows for Unpacked<TOGETHER> {
    const DENSE: bool = false;
    const FACTORS: bool = true;
    const PARTIAL: bool = true;
    const PLANES: bool = true;
    const STEPS: bool = true;
    const STAGES: u32 = UNPACKED_STAGES;
    /// The signs of the thread's components, for each of its rows.
    type Ahead = [u32; ROWS_A_THREAD];

    #[device_inline]
    fn of(launch: &ScanLists) -> Self {
        let dim = launch.stored.dim;
        Self { codes: Decode::of(&launch.stored, dim.next_multiple_of(4)), groups: dim.div_ceil(GROUP) }
    }

    #[device_inline]
    unsafe fn begin(&mut self, _: SharedPtr<u8>, _: u32) {}

    #[device_inline]
    unsafe fn step(&self, row: u32) -> f32 {
        // SAFETY: as the caller promises.
        unsafe { self.codes.step(row) }
    }

    #[device_inline]
    unsafe fn ahead(&self, first: u32, chunk: u32, thread: u32) -> Self::Ahead {
        let (row, part) = (thread / 8, thread % 8);
        // A chunk has four groups, and a part is half a group.
        let group = 4 * chunk + part / 2;
        let mut found = [0; ROWS_A_THREAD];
        if group < self.groups {
            unroll::<ROWS_A_THREAD>(|i| {
                // SAFETY: as the caller promises; the group is inside the row.
                found[i] = unsafe { global::load_nc(self.codes.group(first + row + i as u32 * (THREADS / 8), group)) };
            });
        }
        found
    }

    #[device_inline]
    unsafe fn fill(&self, to: SharedPtr<u8>, _: u32, first: u32, chunk: u32, thread: u32, signs: Self::Ahead) {
        let (row, part) = (thread / 8, thread % 8);
        let group = 4 * chunk + part / 2;
        let (bits, s) = (self.codes.bits, 4 * (part % 2));
        // SAFETY: rows row + 32·i < 128, which exist; groups past the end of a row become zeros.
        unsafe {
            let to = to.add(chunk_offset(row, part));
            unroll::<ROWS_A_THREAD>(|i| {
                if !i.is_multiple_of(TOGETHER) {
                    return;
                }
                let of = |j: usize| (i + j) as u32 * (THREADS / 8);
                let mut words = [[0u32; 4]; TOGETHER];
                if group < self.groups {
                    let mut from = [core::ptr::null(); TOGETHER];
                    unroll::<TOGETHER>(|j| from[j] = self.codes.group(first + row + of(j), group));
                    let mut bit = 1;
                    while bit < bits {
                        let mut planes = [0; TOGETHER];
                        unroll::<TOGETHER>(|j| planes[j] = global::load_nc(from[j].wrapping_add(bit as usize)));
                        unroll::<TOGETHER>(|j| {
                            let plane = planes[j] >> s;
                            unroll::<4>(|q| words[j][q] = more(words[j][q], plane, q as u32));
                        });
                        bit += 1;
                    }
                    unroll::<TOGETHER>(|j| {
                        let signs = signs[i + j] >> s;
                        unroll::<4>(|q| words[j][q] = levels(signs, q as u32, words[j][q], bits));
                    });
                }
                unroll::<TOGETHER>(|j| to.add(of(j) * CHUNK_BYTES).cast::<U32x4>().store(U32x4(words[j])));
            });
        }
    }
}
