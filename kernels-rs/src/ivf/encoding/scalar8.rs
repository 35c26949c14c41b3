//! One byte for each component of residuals or of vectors. Component i of a vector in list l is
//!
//! ```text
//! r[i] = f32(c_l[i] + f32(least[i] + f32(code[i] * step[i])))
//! ```
//!
//! Where codes are of vectors, c is zero, the same for all lists ([`StoredRows::centroids_apart`]).
//!
//! `codebooks` has `least`, then `step`, `stride` numbers each, zero padded. Rows hold code − 128 as signed bytes,
//! padded to a multiple of sixteen bytes: tensor cores multiply signed bytes with signed bytes, and centred codes have
//! smaller errors.
//!
//! # Operands
//! The rows themselves, multiplied with queries as two planes of bytes ([`crate::ivf::code_queries`]). So the scan
//! reads one byte for each component and decodes nothing, and the index keeps nothing but the codes.

#[cfg(not(target_arch = "nvptx64"))]
use cuda_std::launch::Kernel;
use cuda_std::{device_inline, global, unroll};

use super::flat::InMemory;
use super::{Decode, Held, Operand4, OperandSource, StoredRows};
use crate::ivf::code_bounds::{MeasureCodes, measure, measure_kernels};
#[cfg(not(target_arch = "nvptx64"))]
use crate::ivf::list_scan::RowScan;
use crate::ivf::list_scan::{Residence, ScanKey, ScanLists, Tile, scan, scan_kernels};
use crate::ivf::rerank::{PerQuery, Rerank, by_block, by_warp, rerank_kernels};
use crate::ivf::rescan::{Rescan, Rescanned, count, rescan, rescan_kernels};
use crate::product::element::{self, Element, I8};
use crate::product::instruction::{Instruction, MmaSync, Wgmma};

/// The scans of codes of one byte.
#[cfg(not(target_arch = "nvptx64"))]
pub const SCAN: RowScan =
    RowScan { kernel: scan_bytes, append_queries: 64, table: false, planes: true, steps: false, strips: None };

scan_kernels! {
    fn scan_bytes(key: ScanKey) {
        (Instruction::MmaSync, Tile::Of64, Residence::Resident) =>
            scan_scalar8_64 = scan::<Codes, MmaSync<2, 4, 4, I8>, 4, 4, 64, true, false>,
        (Instruction::MmaSync, Tile::Of64, Residence::Streamed) =>
            scan_scalar8_64_streamed = scan::<Codes, MmaSync<2, 4, 4, I8>, 4, 4, 64, false, false>,
        (_, Tile::Of16, Residence::Resident) =>
            scan_scalar8_16 = scan::<Codes, MmaSync<2, 1, 4, I8>, 1, 4, 16, true, false>,
        (_, Tile::Of16, Residence::Streamed) =>
            scan_scalar8_16_streamed = scan::<Codes, MmaSync<2, 1, 4, I8>, 1, 4, 16, false, false>,
        (Instruction::MmaSync, Tile::Append, Residence::Resident) =>
            append_scalar8(min_blocks = 1) = scan::<Codes, MmaSync<2, 4, 4, I8>, 4, 4, 64, true, true>,
        (Instruction::MmaSync, Tile::Append, Residence::Streamed) =>
            append_scalar8_streamed = scan::<Codes, MmaSync<2, 4, 4, I8>, 4, 4, 64, false, true>,
        (Instruction::Wgmma, Tile::Of64, Residence::Resident) =>
            scan_scalar8_64_sm90(arch = "sm_90a") = scan::<Codes, Wgmma<16, I8>, 1, 16, 64, true, false>,
        (Instruction::Wgmma, Tile::Of64, Residence::Streamed) =>
            scan_scalar8_64_streamed_sm90(arch = "sm_90a") = scan::<Codes, Wgmma<16, I8>, 1, 16, 64, false, false>,
        (Instruction::Wgmma, Tile::Append, Residence::Resident) =>
            append_scalar8_sm90(arch = "sm_90a") = scan::<Codes, Wgmma<16, I8>, 1, 16, 64, true, true>,
        (Instruction::Wgmma, Tile::Append, Residence::Streamed) =>
            append_scalar8_streamed_sm90(arch = "sm_90a") = scan::<Codes, Wgmma<16, I8>, 1, 16, 64, false, true>,
    }
}

/// The codes as stored, for queries of two planes.
type Codes = InMemory<true, true>;

rerank_kernels! {
    /// The kernel that re-ranks codes.
    pub fn reranking(key: PerQuery) {
        PerQuery::Block => rerank_scalar8(min_blocks = 3) = by_block::<Scalar8>,
        PerQuery::Warp => rerank_few_scalar8(min_blocks = 3) = by_warp::<Scalar8>,
    }
}

rerank_kernels! {
    fn few_of_vectors() {
        rerank_few_scalar8_vectors(min_blocks = 4) = by_warp::<OfVectors>,
    }
}

/// The kernel that re-ranks codes of vectors. Blocks add zeros: another kernel for them would make each program 15 KB
/// larger.
#[cfg(not(target_arch = "nvptx64"))]
pub fn reranking_of_vectors(key: PerQuery) -> &'static Kernel<Rerank> {
    match key {
        PerQuery::Block => reranking(key),
        PerQuery::Warp => few_of_vectors(),
    }
}

rescan_kernels! {
    /// The kernel that compares all codes of a query's lists.
    pub fn rescanning(key: Rescanned) {
        Rescanned::Neighbors => rescan_scalar8(min_blocks = 2) = rescan::<Scalar8>,
        Rescanned::Count => count_scalar8 = count::<Scalar8>,
    }
}

measure_kernels! {
    /// The kernel that measures codes.
    pub fn measuring() {
        measure_scalar8 = measure::<Scalar8>,
    }
}

/// Codes of one byte for each component of residuals or vectors.
#[derive(Clone, Copy)]
pub(crate) struct Scalar8 {
    rows: StoredRows,
    stride: u32,
}

impl Scalar8 {
    /// The decoded values of code 128 for components 4·`quad` .. of a list, minus the centre. The scan takes them for
    /// exact numbers; what the roundings here lose is part of the residual that [`crate::ivf::code_bounds`] measures.
    ///
    /// # Safety
    /// The list exists, and the quad is inside the stride.
    #[device_inline]
    pub(crate) unsafe fn offset4(&self, list: u32, quad: u32, centre: [f32; 4]) -> [f32; 4] {
        // SAFETY: as the caller promises.
        unsafe { self.offset4_of(list, quad, self.middle4(quad), centre) }
    }

    /// [`Self::offset4`] of [`Self::middle4`].
    ///
    /// # Safety
    /// As [`Self::offset4`].
    #[device_inline]
    pub(crate) unsafe fn offset4_of(&self, list: u32, quad: u32, middle: [f32; 4], centre: [f32; 4]) -> [f32; 4] {
        // SAFETY: as the caller promises.
        let centroid = unsafe { element::F32::load4(self.centroid(list), quad) };
        let mut offset = [0.0; 4];
        unroll::<4>(|e| offset[e] = (centroid[e] + middle[e]) - centre[e]);
        offset
    }

    /// least + 128 · step for components 4·`quad` ..: the decoded code 128, without a centroid.
    ///
    /// # Safety
    /// The quad is inside the stride.
    #[device_inline]
    pub(crate) unsafe fn middle4(&self, quad: u32) -> [f32; 4] {
        // SAFETY: as the caller promises.
        let (least, step) = unsafe { (element::F32::load4(*self.rows.codebooks, quad), self.step4(quad)) };
        let mut middle = [0.0; 4];
        unroll::<4>(|e| middle[e] = least[e] + 128.0 * step[e]);
        middle
    }

    #[device_inline]
    fn centroid(&self, list: u32) -> *const f32 {
        self.rows.centroids.wrapping_add(list as usize * self.rows.centroids_apart as usize)
    }

    /// The steps of components 4·`quad` ...
    ///
    /// # Safety
    /// The quad is inside the stride.
    #[device_inline]
    pub(crate) unsafe fn step4(&self, quad: u32) -> [f32; 4] {
        // SAFETY: as the caller promises; the steps follow the least values.
        unsafe { element::F32::load4(self.rows.codebooks.wrapping_add(self.stride as usize), quad) }
    }

    /// The decoded components 4·`quad` .. of a row, without the centroid of its list.
    ///
    /// # Safety
    /// The row exists, and the quad is inside it.
    #[device_inline]
    unsafe fn coded4(&self, row: u32, quad: u32) -> [f32; 4] {
        let StoredRows { rows, code_bytes, codebooks, .. } = self.rows;
        // SAFETY: the quad is inside the row, whose bytes are a multiple of sixteen, and inside the stride.
        unsafe {
            let codes = rows.wrapping_add(row as usize * code_bytes as usize + 4 * quad as usize);
            let codes = global::load_nc(codes.cast::<u32>()) ^ 0x8080_8080;
            let (least, step) = (element::F32::load4(*codebooks, quad), self.step4(quad));
            let mut coded = [0.0; 4];
            unroll::<4>(|e| coded[e] = least[e] + (codes >> (8 * e) & 0xff) as f32 * step[e]);
            coded
        }
    }
}

impl Decode for Scalar8 {
    type Query = element::F32;

    #[device_inline]
    fn of(rows: &StoredRows, stride: u32) -> Self {
        Self { rows: *rows, stride }
    }

    #[device_inline]
    unsafe fn quad(&self, row: u32, list: u32, quad: u32) -> [f32; 4] {
        // SAFETY: as the caller promises; the list exists.
        let (coded, centroid) = unsafe { (self.coded4(row, quad), element::F32::load4(self.centroid(list), quad)) };
        let mut r = [0.0; 4];
        unroll::<4>(|e| r[e] = centroid[e] + coded[e]);
        r
    }
}

/// Codes that are known to be of vectors: [`Scalar8`] without loads of zeros, and with so few registers that four
/// blocks share a multiprocessor.
#[derive(Clone, Copy)]
pub(crate) struct OfVectors(Scalar8);

impl Decode for OfVectors {
    type Query = element::F32;

    #[device_inline]
    fn of(rows: &StoredRows, stride: u32) -> Self {
        Self(Scalar8::of(rows, stride))
    }

    #[device_inline]
    unsafe fn quad(&self, row: u32, _: u32, quad: u32) -> [f32; 4] {
        // SAFETY: as the caller promises.
        unsafe { self.0.coded4(row, quad) }
    }
}

impl Operand4 for Scalar8 {
    const CODES: bool = true;

    #[device_inline]
    unsafe fn operand4(&self, from: OperandSource, row: u32, list: u32, quad: u32) -> Held {
        let StoredRows { rows, code_bytes, .. } = self.rows;
        // SAFETY: as the caller promises; rows are multiples of sixteen bytes.
        unsafe {
            let codes = I8::load4(rows.wrapping_add(row as usize * code_bytes as usize).cast(), quad);
            let (offset, step) = (self.offset4(list, quad, from.centre), self.step4(quad));
            let mut held = Held { values: [0.0; 4], sizes: [0.0; 4], code_squares: 0.0 };
            unroll::<4>(|e| {
                let (code, offset) = (codes[e] as f64, offset[e] as f64);
                held.values[e] = offset + code * step[e] as f64;
                held.sizes[e] = held.values[e].abs().max(offset.abs());
                held.code_squares += code * code;
            });
            held
        }
    }
}
