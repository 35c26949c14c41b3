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
//! then, for each [`GROUP`] of 32 components, a word for each bit of the code. A code is a number of B bits with a
//! sign, n: level 2·n + 1, or n with eight bits. It is cut into fields of 8, 4, 2 and 1 bits, from the highest on: B =
//! 5 has a field of 4 bits and one of 1. A field of w bits has w words of the group. Component 4·s + e of a group,
//! s = 0 .. 7, has its bits from place 8·e + w·(s mod 8/w) on, in word s·w/8 of the field ([`Field`]). So a word,
//! turned and masked, has the field of four neighbours, a byte each, where their levels have it, and codes become
//! levels four at a time. Bits of components that a vector does not have are zero.
//!
//! # Operands
//! The levels times 2^(7 − B), which fill a signed byte, and queries as two planes of bytes
//! ([`crate::ivf::code_queries`]). A product is multiplied by the step of its row, over 2^(7 − B). Queries know one
//! step and one least value for all components: `codebooks` has −128 for each component and then 1, so that code 128 of
//! a byte is the centroid.
//!
//! # Cost
//! A row is read as B/8 bytes for each component. Four components of a row become operands by a load of each field,
//! shared with four others, and two instructions for each. In tiles a thread unpacks 16 components of four rows into
//! shared memory, a chunk after it has loaded them. With few queries a list the rows become operands in registers
//! ([`crate::ivf::strip_scan`]).
//!
//! Measured on an H200 (2026-12-01), 10,000 queries of 1,000,000 × 384, 5 bits, whole searches from host memory and
//! back: 1.7 to 1.8 ms with 8 of 4,096 lists, 2.2 with 32. Other searches are in docs/FIGURES.md.
//!
//! # What lost
//! A word for each bit of the codes of a group, the sign first. A component then took three instructions for each bit
//! instead of two for each field. The searches above took 2.0 and 2.6 ms (the day before, another machine of the kind).

use cuda_std::global::U32x4;
use cuda_std::shared::SharedPtr;
use cuda_std::warp::{FULL_MASK, sync_warp};
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
use crate::ivf::strip_scan::{self, LANE_ROWS, Strips, scan_strips};
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
pub const SCAN: RowScan = RowScan {
    kernel: scan_bit_codes,
    append_queries: 64,
    table: false,
    planes: true,
    steps: true,
    strips: Some(strip_scan::SCAN),
};

scan_kernels! {
    fn scan_bit_codes(key: ScanKey) {
        (Instruction::MmaSync, Tile::Of64, Residence::Resident) =>
            scan_bit_codes_64 = scan::<Unpacked<false>, MmaSync<2, 4, 4, I8>, 4, 4, 64, true, false>,
        (Instruction::MmaSync, Tile::Of64, Residence::Streamed) =>
            scan_bit_codes_64_streamed = scan::<Unpacked<false>, MmaSync<2, 4, 4, I8>, 4, 4, 64, false, false>,
        (_, Tile::Of16, Residence::Resident) =>
            scan_bit_codes_16(max_threads = 128, min_blocks = 5) = scan_strips::<Bits>,
        (_, Tile::Of16, Residence::Streamed) =>
            scan_bit_codes_16_streamed = scan::<Unpacked<false>, MmaSync<2, 1, 4, I8>, 1, 4, 16, false, false>,
        (Instruction::MmaSync, Tile::Append, Residence::Resident) =>
            append_bit_codes(min_blocks = 1) = scan::<Unpacked<false>, MmaSync<2, 4, 4, I8>, 4, 4, 64, true, true>,
        (Instruction::MmaSync, Tile::Append, Residence::Streamed) =>
            append_bit_codes_streamed(min_blocks = 1) = scan::<Unpacked<false>, MmaSync<2, 4, 4, I8>, 4, 4, 64, false, true>,
        (Instruction::Wgmma, Tile::Of64, Residence::Resident) =>
            scan_bit_codes_64_sm90(arch = "sm_90a") = scan::<Unpacked<true>, Wgmma<16, I8>, 1, 16, 64, true, false>,
        (Instruction::Wgmma, Tile::Of64, Residence::Streamed) =>
            scan_bit_codes_64_streamed_sm90(arch = "sm_90a") = scan::<Unpacked<true>, Wgmma<16, I8>, 1, 16, 64, false, false>,
        (Instruction::Wgmma, Tile::Append, Residence::Resident) =>
            append_bit_codes_sm90(arch = "sm_90a") = scan::<Unpacked<false>, Wgmma<16, I8>, 1, 16, 64, true, true>,
        (Instruction::Wgmma, Tile::Append, Residence::Streamed) =>
            append_bit_codes_streamed_sm90(arch = "sm_90a") = scan::<Unpacked<false>, Wgmma<16, I8>, 1, 16, 64, false, true>,
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

/// A field of the codes of four components: [`WIDTHS`] of the bits that a code has.
#[derive(Clone, Copy)]
pub struct Field {
    width: u32,
    /// The first of the field's words in a group.
    first: u32,
    /// The lowest of the field's bits in a signed byte that holds a level.
    place: u32,
    /// The bits of the field in four such bytes; 0 if codes have no such field.
    mask: u32,
}

/// Number of bits of each field that a code may have, from its highest bits on.
pub const WIDTHS: [u32; 4] = [8, 4, 2, 1];

impl Field {
    /// The field of `width` bits of codes of `bits` bits.
    #[device_inline]
    pub const fn of(bits: u32, width: u32) -> Field {
        let first = bits & !(2 * width - 1);
        let place = (MOST_BITS - first).wrapping_sub(width) % MOST_BITS;
        let mask = if bits & width == 0 { 0 } else { (ONES * ((1 << width) - 1)) << place };
        Field { width, first, place, mask }
    }

    /// Whether codes have this field.
    #[device_inline]
    pub const fn exists(self) -> bool {
        self.mask != 0
    }

    /// The word of a group with the field of components 4·`s` ..
    #[device_inline]
    pub const fn word(self, s: u32) -> u32 {
        self.first + s * self.width / MOST_BITS
    }

    /// The lowest of the field's bits of component 4·`s` + `e` in its word.
    #[device_inline]
    pub const fn place_in_word(self, s: u32, e: u32) -> u32 {
        8 * e + self.width * s % MOST_BITS
    }

    /// The field of a code.
    #[device_inline]
    pub const fn of_code(self, bits: u32, code: u32) -> u32 {
        code >> (bits - self.first - self.width) & ((1 << self.width) - 1)
    }

    /// The field of components 4·`s` .., of its word, where their levels have it.
    #[device_inline]
    pub const fn in_levels(self, word: u32, s: u32) -> u32 {
        word.rotate_left(self.place.wrapping_sub(self.width * s % MOST_BITS)) & self.mask
    }
}

/// Levels times 2^(7 − B) have this bit of each byte, besides their fields: half of the distance of two levels.
#[device_inline]
pub const fn half(bits: u32) -> u32 {
    if bits < MOST_BITS { ONES << (MOST_BITS - 1 - bits) } else { 0 }
}

/// 2^(B − 7), by which unpacked levels are multiplied; 1 with eight bits.
#[device_inline]
pub const fn unit(bits: u32) -> f32 {
    1.0 / (1 << (MOST_BITS - 1).saturating_sub(bits)) as f32
}

/// The levels of components 4·`s` .. of a group, times 2^(7 − B), as signed bytes; `word` loads a word of the group.
#[device_inline]
pub fn levels(bits: u32, s: u32, word: impl Fn(u32) -> u32) -> u32 {
    let mut levels = half(bits);
    unroll::<{ WIDTHS.len() }>(|i| {
        let field = Field::of(bits, WIDTHS[i]);
        if field.exists() {
            levels |= field.in_levels(word(field.word(s)), s);
        }
    });
    levels
}

impl Bits {
    /// The words of a group of a row.
    #[device_inline]
    fn group(&self, row: u32, group: u32) -> *const u32 {
        let at = row as usize * self.code_bytes as usize + (HEAD_BYTES + 4 * self.bits * group) as usize;
        self.rows.wrapping_add(at).cast()
    }

    /// The step of a row, for unpacked levels.
    ///
    /// # Safety
    /// The row exists.
    #[device_inline]
    unsafe fn step(&self, row: u32) -> f32 {
        let at = self.rows.wrapping_add(row as usize * self.code_bytes as usize);
        // SAFETY: as the caller promises; rows have a multiple of four bytes.
        unit(self.bits) * unsafe { global::load_nc(at.cast::<f32>()) }
    }

    /// The unpacked levels of components 4·`quad` .. of a row, 0 for components that a vector does not have.
    ///
    /// # Safety
    /// As [`Decode::quad`].
    #[device_inline]
    unsafe fn levels4(&self, row: u32, quad: u32) -> [f32; 4] {
        let from = self.group(row, quad / 8);
        // SAFETY: as the caller promises; a group has `bits` words.
        let word = levels(self.bits, quad % 8, |at| unsafe { global::load_nc(from.wrapping_add(at as usize)) });
        let mut found = [0.0; 4];
        unroll::<4>(|e| {
            if 4 * quad + (e as u32) < self.dim {
                found[e] = (word >> (8 * e)) as u8 as i8 as f32;
            }
        });
        found
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

impl Strips for Bits {
    #[device_inline]
    fn of(launch: &ScanLists) -> Self {
        Decode::of(&launch.stored, launch.stored.dim.next_multiple_of(4))
    }

    #[device_inline]
    unsafe fn step(&self, row: SharedPtr<u8>) -> f32 {
        // SAFETY: the row starts with its step.
        unit(self.bits) * unsafe { row.cast::<f32>().load() }
    }

    #[device_inline]
    unsafe fn groups(
        &self,
        row: SharedPtr<u8>,
        apart: u32,
        part: u32,
        groups: u32,
        mut each: impl FnMut(u32, [[u32; 2]; LANE_ROWS]),
    ) {
        let bits = self.bits;
        // SAFETY: as the caller promises; a group has `bits` words.
        unsafe {
            let (mut at, mut group) = (row.add(HEAD_BYTES), 0);
            if bits == MOST_BITS {
                while group < groups {
                    let mut operands = [[0; 2]; LANE_ROWS];
                    unroll::<LANE_ROWS>(|i| {
                        let from = at.add(i as u32 * apart + 8 * part).cast::<u32>();
                        operands[i] = [from.load(), from.add(1).load()];
                    });
                    each(group, operands);
                    // Unrolled, this loop would take registers that the other one needs. A barrier prevents that.
                    sync_warp(FULL_MASK);
                    (at, group) = (at.add(4 * MOST_BITS), group + 1);
                }
                return;
            }
            let field = |width| Field::of(bits % MOST_BITS, width);
            while group < groups {
                // Of up to four bits, eight components share a word. One field after the other, for all rows.
                let with = |field: Field, word: u32, others: [[u32; 2]; LANE_ROWS]| {
                    let mut operands = others;
                    unroll::<LANE_ROWS>(|i| {
                        let word = at.add(i as u32 * apart + 4 * word).cast::<u32>().load();
                        unroll::<2>(|q| operands[i][q] |= field.in_levels(word, 2 * part + q as u32));
                    });
                    operands
                };
                // Without a field of four bits its mask is empty: a branch would cost all others eight instructions.
                let word = if field(4).exists() { field(4).word(2 * part) } else { 0 };
                let mut operands = with(field(4), word, [[half(bits); 2]; LANE_ROWS]);
                if field(2).exists() {
                    operands = with(field(2), field(2).word(2 * part), operands);
                }
                if field(1).exists() {
                    operands = with(field(1), field(1).word(2 * part), operands);
                }
                each(group, operands);
                (at, group) = (at.add(4 * bits), group + 1);
            }
        }
    }
}

/// Largest number of words of a thread's components, four times four neighbours of a group: with 7 bits two of the
/// field of 4, and one of each other.
const WORDS: usize = 4;

/// Codes that become levels on the way to shared memory. They are loaded a chunk `AHEAD`, but not where sums take the
/// registers: with `mma.sync`, and with scores that are appended.
#[derive(Clone, Copy)]
pub(crate) struct Unpacked<const AHEAD: bool> {
    codes: Bits,
    /// Number of groups of a row.
    groups: u32,
}

impl<const AHEAD: bool> Unpacked<AHEAD> {
    /// The words with half a group of a row: components 4·`s` .. 4·`s` + 16.
    ///
    /// # Safety
    /// The row exists.
    #[device_inline]
    unsafe fn words(&self, row: u32, group: u32, s: u32) -> [u32; WORDS] {
        let from = self.codes.group(row, group);
        // SAFETY: as the caller promises; the group is inside the row.
        let word = |at: u32| unsafe { global::load_nc(from.wrapping_add(at as usize)) };
        let field = |width| Field::of(self.codes.bits, width);
        let mut words = [0; WORDS];
        if field(8).exists() {
            unroll::<WORDS>(|q| words[q] = word(field(8).word(s + q as u32)));
        } else {
            if field(4).exists() {
                unroll::<2>(|half| words[half] = word(field(4).word(s + 2 * half as u32)));
            }
            if field(2).exists() {
                words[2] = word(field(2).word(s));
            }
            if field(1).exists() {
                words[3] = word(field(1).word(s));
            }
        }
        words
    }

    /// The levels of these components.
    #[device_inline]
    fn levels(&self, words: [u32; WORDS], s: u32) -> [u32; 4] {
        let bits = self.codes.bits;
        let mut levels = words;
        if bits < MOST_BITS {
            unroll::<4>(|q| {
                let field = |width, word| Field::of(bits, width).in_levels(word, s + q as u32);
                levels[q] = half(bits) | field(4, words[q / 2]) | field(2, words[2]) | field(1, words[3]);
            });
        }
        levels
    }
}

impl<const AHEAD: bool> Rows for Unpacked<AHEAD> {
    const DENSE: bool = false;
    const FACTORS: bool = true;
    const PARTIAL: bool = true;
    const PLANES: bool = true;
    const STEPS: bool = true;
    const STAGES: u32 = UNPACKED_STAGES;
    /// The words with the thread's components, for each of its rows.
    type Ahead = [[u32; WORDS]; ROWS_A_THREAD];

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
        let mut found = [[0; WORDS]; ROWS_A_THREAD];
        let (group, s) = part_of(chunk, thread);
        if AHEAD && group < self.groups {
            unroll::<ROWS_A_THREAD>(|i| {
                // SAFETY: as the caller promises.
                found[i] = unsafe { self.words(first + thread / 8 + i as u32 * (THREADS / 8), group, s) };
            });
        }
        found
    }

    #[device_inline]
    unsafe fn fill(&self, to: SharedPtr<u8>, _: u32, first: u32, chunk: u32, thread: u32, ahead: Self::Ahead) {
        let row = thread / 8;
        let (group, s) = part_of(chunk, thread);
        // SAFETY: rows row + 32·i < 128, which exist; groups past the end of a row become zeros.
        unsafe {
            let to = to.add(chunk_offset(row, thread % 8));
            unroll::<ROWS_A_THREAD>(|i| {
                let down = i as u32 * (THREADS / 8);
                let mut words = [0u32; 4];
                if group < self.groups {
                    let of_row = if AHEAD { ahead[i] } else { self.words(first + row + down, group, s) };
                    words = self.levels(of_row, s);
                }
                to.add(down * CHUNK_BYTES).cast::<U32x4>().store(U32x4(words));
            });
        }
    }
}

/// The group of a thread's components of a chunk, and the first four of the half of it that they are.
#[device_inline]
const fn part_of(chunk: u32, thread: u32) -> (u32, u32) {
    // A chunk has four groups, and a thread one of eight parts.
    let part = thread % 8;
    (4 * chunk + part / 2, 4 * (part % 2))
}
