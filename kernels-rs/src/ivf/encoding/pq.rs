//! Product-quantizer codes of residuals ([`Codes`]), which a scan decodes to f16 operands ([`Operands`]).

use cuda_std::global::{U32x2, U32x4};
use cuda_std::shared::SharedPtr;
use cuda_std::{device_inline, global, math, unroll};

use super::{Decode, Held, Operand4, OperandParts, OperandSource, StoredRows};
use crate::ivf::code_bounds::{MeasureCodes, measure, measure_kernels};
#[cfg(not(target_arch = "nvptx64"))]
use crate::ivf::list_scan::RowScan;
use crate::ivf::list_scan::{
    CHUNK, CHUNK_BYTES, ROWS_A_THREAD, Residence, Rows, STAGES, ScanKey, ScanLists, THREADS, Tile, chunk_offset, scan,
    scan_kernels,
};
use crate::ivf::rerank::{PerQuery, Rerank, by_block, by_warp, rerank_kernels};
use crate::ivf::rescan::{Rescan, Rescanned, count, rescan, rescan_kernels};
use crate::pq::codes::{Codes, Operands};
use crate::product::element;
use crate::product::instruction::{Instruction, MmaSync, Wgmma};

/// The scans of product-quantizer codes.
#[cfg(not(target_arch = "nvptx64"))]
pub const SCAN: RowScan =
    RowScan { kernel: scan_codes, append_queries: 64, table: true, planes: false, steps: false, strips: None };

scan_kernels! {
    fn scan_codes(key: ScanKey) {
        (Instruction::MmaSync, Tile::Of64, Residence::Resident) =>
            scan_codes_64 = scan::<Decoded<true>, MmaSync<2, 2, 4>, 2, 4, 64, true, false>,
        (Instruction::MmaSync, Tile::Of64, Residence::Streamed) =>
            scan_codes_64_streamed = scan::<Decoded<false>, MmaSync<2, 2, 4>, 2, 4, 64, false, false>,
        (_, Tile::Of16, Residence::Resident) =>
            scan_codes_16 = scan::<Decoded<true>, MmaSync<1, 1, 2>, 1, 2, 16, true, false>,
        (_, Tile::Of16, Residence::Streamed) =>
            scan_codes_16_streamed = scan::<Decoded<false>, MmaSync<1, 1, 2>, 1, 2, 16, false, false>,
        (Instruction::MmaSync, Tile::Append, Residence::Resident) =>
            append_codes = scan::<Decoded<true>, MmaSync<2, 2, 4>, 2, 4, 64, true, true>,
        (Instruction::MmaSync, Tile::Append, Residence::Streamed) =>
            append_codes_streamed = scan::<Decoded<false>, MmaSync<2, 2, 4>, 2, 4, 64, false, true>,
        (Instruction::Wgmma, Tile::Of64, Residence::Resident) =>
            scan_codes_64_sm90(arch = "sm_90a") = scan::<Decoded<true>, Wgmma<8>, 1, 8, 64, true, false>,
        (Instruction::Wgmma, Tile::Of64, Residence::Streamed) =>
            scan_codes_64_streamed_sm90(arch = "sm_90a") = scan::<Decoded<false>, Wgmma<8>, 1, 8, 64, false, false>,
        (Instruction::Wgmma, Tile::Append, Residence::Resident) =>
            append_codes_sm90(arch = "sm_90a") = scan::<Decoded<true>, Wgmma<8>, 1, 8, 64, true, true>,
        (Instruction::Wgmma, Tile::Append, Residence::Streamed) =>
            append_codes_streamed_sm90(arch = "sm_90a") = scan::<Decoded<false>, Wgmma<8>, 1, 8, 64, false, true>,
    }
}

rerank_kernels! {
    /// The kernel that re-ranks codes.
    pub fn reranking(key: PerQuery) {
        PerQuery::Block => rerank_codes(min_blocks = 3) = by_block::<Codes>,
        PerQuery::Warp => rerank_few_codes(min_blocks = 3) = by_warp::<Codes>,
    }
}

rescan_kernels! {
    /// The kernel that compares all codes of a query's lists.
    pub fn rescanning(key: Rescanned) {
        Rescanned::Neighbors => rescan_codes(min_blocks = 2) = rescan::<Codes>,
        Rescanned::Count => count_codes = count::<Codes>,
    }
}

measure_kernels! {
    /// The kernel that measures codes.
    pub fn measuring() {
        measure_codes = measure::<Codes>,
    }
}

/// Codes that are decoded on the way to shared memory; with `TABLE`, the halves of the codebooks are in shared memory
/// too.
#[derive(Clone, Copy)]
pub(crate) struct Decoded<const TABLE: bool> {
    operands: Operands,
    table: SharedPtr<u16>,
    table_bytes: u32,
}

impl<const TABLE: bool> Decoded<TABLE> {
    /// Four halves, as two words, from place `at` on, a multiple of four.
    ///
    /// # Safety
    /// The places exist.
    #[device_inline]
    unsafe fn halves(&self, at: u32) -> [u32; 2] {
        // SAFETY: as the caller promises.
        unsafe {
            if TABLE {
                self.table.add(at).cast::<U32x2>().load().0
            } else {
                global::load_nc(self.operands.halves.wrapping_add(at as usize).cast::<U32x2>()).0
            }
        }
    }

    /// Whether sub-vectors have two components, and codes are bytes that fill whole words.
    #[device_inline]
    fn in_pairs(&self) -> bool {
        let codes = self.operands.codes;
        codes.width == 2 && codes.bits == 8 && codes.code_bytes.is_multiple_of(4)
    }

    /// Whether sub-vectors have a multiple of eight components or four, so that the codes of eight components are one
    /// byte or two.
    #[device_inline]
    fn in_bytes(&self) -> bool {
        let codes = self.operands.codes;
        let whole = codes.width.is_multiple_of(8) || (codes.width == 4 && codes.code_bytes.is_multiple_of(2));
        codes.bits == 8 && whole
    }

    /// Two halves from place `at` on, an even number.
    ///
    /// # Safety
    /// The places exist.
    #[device_inline]
    unsafe fn two_halves(&self, at: u32) -> u32 {
        // SAFETY: as the caller promises.
        unsafe {
            if TABLE {
                self.table.add(at).cast::<u32>().load()
            } else {
                global::load_nc(self.operands.halves.wrapping_add(at as usize).cast::<u32>())
            }
        }
    }

    /// The half at place `at`.
    ///
    /// # Safety
    /// The place exists.
    #[device_inline]
    unsafe fn half(&self, at: u32) -> u16 {
        // SAFETY: as the caller promises.
        unsafe {
            if TABLE {
                self.table.add(at).load()
            } else {
                global::load_nc(self.operands.halves.wrapping_add(at as usize))
            }
        }
    }
}

impl<const TABLE: bool> Rows for Decoded<TABLE> {
    const DENSE: bool = false;
    const FACTORS: bool = true;
    const PARTIAL: bool = false;
    const STAGES: u32 = if TABLE { 1 } else { STAGES };
    /// The codes of the thread's eight components, for each of its rows, one byte for each code: one for each quad if
    /// the width of sub-vectors is a multiple of four, and one for each pair if it is another even number.
    type Ahead = [u32; ROWS_A_THREAD];

    #[device_inline]
    fn of(launch: &ScanLists) -> Self {
        let ScanLists { stored, parts: OperandParts { offsets, halves }, .. } = *launch;
        let codes = Decode::of(&stored, stored.dim.next_multiple_of(4));
        Self {
            operands: Operands { codes, offsets: *offsets, halves: *halves },
            table: SharedPtr::from_address(0),
            table_bytes: launch.table_bytes(),
        }
    }

    #[device_inline]
    unsafe fn ahead(&self, first: u32, chunk: u32, thread: u32) -> Self::Ahead {
        let (row, part) = (thread / 8, thread % 8);
        let codes = self.operands.codes;
        let quad = chunk * (CHUNK / 4) + 2 * part;
        let mut found = [0u32; ROWS_A_THREAD];
        if self.in_pairs() {
            unroll::<ROWS_A_THREAD>(|i| {
                let row = (first + row + i as u32 * (THREADS / 8)) as usize;
                if 4 * quad < codes.dim {
                    let at = codes.codes.wrapping_add(row * codes.code_bytes as usize + 2 * quad as usize);
                    // SAFETY: rows have a multiple of four bytes, and so do the codes of eight components.
                    found[i] = unsafe { global::load_nc(at.cast::<u32>()) };
                }
            });
        } else if self.in_bytes() {
            let two = codes.width == 4;
            let first_code = self.operands.book(quad).0;
            unroll::<ROWS_A_THREAD>(|i| {
                let row = (first + row + i as u32 * (THREADS / 8)) as usize;
                if 4 * quad < codes.dim {
                    let at = codes.codes.wrapping_add(row * codes.code_bytes as usize + first_code as usize);
                    // SAFETY: with codes of four components, rows have a multiple of two bytes, and so do the codes of
                    // eight components.
                    found[i] = unsafe {
                        if two { global::load_nc(at.cast::<u16>()) as u32 } else { global::load_nc(at) as u32 * 0x101 }
                    };
                }
            });
        } else if codes.width.is_multiple_of(4) {
            let books = [self.operands.book(quad), self.operands.book(quad + 1)];
            let inside = [4 * quad < codes.dim, 4 * quad + 4 < codes.dim];
            unroll::<ROWS_A_THREAD>(|i| {
                let row = first + row + i as u32 * (THREADS / 8);
                unroll::<2>(|q| {
                    if inside[q] {
                        // SAFETY: as the caller promises; components inside the vector have codes.
                        found[i] |= unsafe { codes.code(row, books[q].0) } << (8 * q);
                    }
                });
            });
        } else if codes.width.is_multiple_of(2) {
            let pairs = self.operands.pairs(quad / 2);
            unroll::<ROWS_A_THREAD>(|i| {
                let row = first + row + i as u32 * (THREADS / 8);
                unroll::<4>(|j| {
                    if 4 * quad + 2 * (j as u32) < codes.dim {
                        // SAFETY: as above.
                        found[i] |= unsafe { codes.code(row, pairs[j].0) } << (8 * j);
                    }
                });
            });
        }
        found
    }

    #[device_inline]
    unsafe fn begin(&mut self, to: SharedPtr<u8>, thread: u32) {
        if TABLE {
            self.table = to.cast();
            let mut at = 16 * thread;
            while at < self.table_bytes {
                // SAFETY: the halves are padded to 16 bytes, and the launch reserved shared memory for them.
                unsafe {
                    let from = self.operands.halves.cast::<u8>().wrapping_add(at as usize);
                    to.add(at).cast::<U32x4>().store(global::load_nc(from.cast::<U32x4>()));
                }
                at += 16 * THREADS;
            }
        }
    }

    #[device_inline]
    unsafe fn fill(&self, to: SharedPtr<u8>, list: u32, first: u32, chunk: u32, thread: u32, found: Self::Ahead) {
        let (row, part) = (thread / 8, thread % 8);
        let codes = self.operands.codes;
        let quad = chunk * (CHUNK / 4) + 2 * part;
        // SAFETY: rows row + 32·i < 128, which exist; quads past the end of a vector have no codes and become zeros.
        unsafe {
            let to = to.add(chunk_offset(row, part));
            let offsets = [self.operands.offset4(list, quad), self.operands.offset4(list, quad + 1)];
            let place = |i: u32| to.add(i * (THREADS / 8) * CHUNK_BYTES).cast::<U32x4>();
            if self.in_pairs() {
                unroll::<ROWS_A_THREAD>(|i| {
                    let mut words = [0u32; 4];
                    if 4 * quad < codes.dim {
                        unroll::<4>(|j| {
                            let code = found[i] >> (8 * j) & 0xff;
                            let half = self.two_halves(((2 * quad + j as u32) << 8 | code) * 2);
                            words[j] = math::add_f16x2(offsets[j / 2][j % 2], half);
                        });
                    }
                    place(i as u32).store(U32x4(words));
                });
            } else if codes.width % 4 == 2 {
                let starts = self.operands.pairs(quad / 2).map(|(m, at)| (m << codes.bits) * codes.width + at);
                unroll::<ROWS_A_THREAD>(|i| {
                    let mut words = [0u32; 4];
                    unroll::<4>(|j| {
                        if 4 * quad + 2 * (j as u32) < codes.dim {
                            let code = found[i] >> (8 * j) & 0xff;
                            let half = self.two_halves(starts[j] + code * codes.width);
                            words[j] = math::add_f16x2(offsets[j / 2][j % 2], half);
                        }
                    });
                    place(i as u32).store(U32x4(words));
                });
            } else if codes.width.is_multiple_of(4) {
                let books = [self.operands.book(quad), self.operands.book(quad + 1)];
                let inside = [4 * quad < codes.dim, 4 * quad + 4 < codes.dim];
                unroll::<ROWS_A_THREAD>(|i| {
                    let mut words = [[0u32; 2]; 2];
                    unroll::<2>(|q| {
                        if inside[q] {
                            let code = found[i] >> (8 * q) & 0xff;
                            let halves = self.halves(code * codes.width + books[q].1);
                            unroll::<2>(|e| words[q][e] = math::add_f16x2(offsets[q][e], halves[e]));
                        }
                    });
                    place(i as u32).store(U32x4([words[0][0], words[0][1], words[1][0], words[1][1]]));
                });
            } else {
                let mut i = 0;
                while i < ROWS_A_THREAD as u32 {
                    let row = first + row + i * (THREADS / 8);
                    let low = self.operands.quad(row, quad, offsets[0], |at| self.half(at));
                    let high = self.operands.quad(row, quad + 1, offsets[1], |at| self.half(at));
                    place(i).store(U32x4([low[0], low[1], high[0], high[1]]));
                    i += 1;
                }
            }
        }
    }
}

impl Decode for Codes {
    type Query = element::F32;

    #[device_inline]
    fn of(rows: &StoredRows, stride: u32) -> Self {
        let StoredRows { rows, code_bytes, bits, width, dim, codebooks, centroids, .. } = *rows;
        let (codes, codebooks, centroids) = (*rows, *codebooks, *centroids);
        Self { codes, code_bytes, bits, width, dim, codebooks, centroids, stride }
    }

    #[device_inline]
    unsafe fn quad(&self, row: u32, list: u32, quad: u32) -> [f32; 4] {
        // SAFETY: as the caller promises.
        unsafe { Codes::load4(self, row, list, quad) }
    }
}

impl Operand4 for Codes {
    const CODES: bool = false;

    #[device_inline]
    unsafe fn operand4(&self, from: OperandSource, row: u32, list: u32, quad: u32) -> Held {
        let OperandParts { offsets, halves } = from.parts;
        let operands = Operands { codes: *self, offsets: *offsets, halves: *halves };
        // SAFETY: as the caller promises; codes name places of the halves.
        unsafe {
            let half = |at: u32| global::load_nc(halves.wrapping_add(at as usize));
            Held::of_halves(operands.quad(row, quad, operands.offset4(list, quad), half), from.down)
        }
    }
}
