//! f32 vectors stored as f16. The rows are also the operands, with scale 1 and without centre. The list scan multiplies them in place
//! (`flat`), and re-ranking compares their exact values with f32 queries.

use cuda_std::global;
use cuda_std::global::U32x2;

use super::{CodedRows, Decode, Operand4, OperandParts};
use crate::ivf::code_bounds::{MeasureCodes, measure, measure_kernels};
use crate::ivf::rerank::{PerQuery, Rerank, by_block, by_warp, rerank_kernels};
use crate::ivf::rescan::{Rescan, Rescanned, count, rescan, rescan_kernels};
use crate::product::element::{self, Element};

rerank_kernels! {
    /// The kernel that re-ranks f16 rows.
    pub fn reranking(key: PerQuery) {
        PerQuery::Block => rerank_f16_codes = by_block::<F16Rows>,
        PerQuery::Warp => rerank_few_f16_codes = by_warp::<F16Rows>,
    }
}

rescan_kernels! {
    /// The kernel that compares all f16 rows of a query's lists.
    pub fn rescanning(key: Rescanned) {
        Rescanned::Neighbors => rescan_f16_codes = rescan::<F16Rows>,
        Rescanned::Count => count_f16_codes = count::<F16Rows>,
    }
}

measure_kernels! {
    /// The kernel that measures f16 rows.
    pub fn measuring() {
        measure_f16_codes = measure::<F16Rows>,
    }
}

/// Rows of f16 components.
#[derive(Clone, Copy)]
pub(crate) struct F16Rows {
    rows: *const u16,
    /// Distance from one row to the next in components, a multiple of four.
    stride: u32,
}

impl F16Rows {
    #[inline(always)]
    fn row(&self, row: u32) -> *const u16 {
        self.rows.wrapping_add(row as usize * self.stride as usize)
    }
}

impl Decode for F16Rows {
    type Query = element::F32;

    #[inline(always)]
    fn of(rows: &CodedRows) -> Self {
        Self { rows: rows.codes.cast(), stride: rows.code_bytes / 2 }
    }

    #[inline(always)]
    unsafe fn load4(&self, row: u32, _: u32, quad: u32) -> [f32; 4] {
        // SAFETY: as the caller promises.
        unsafe { element::F16::load4(self.row(row).cast(), quad) }
    }
}

impl Operand4 for F16Rows {
    #[inline(always)]
    unsafe fn operand4(&self, _: OperandParts, row: u32, _: u32, quad: u32) -> [u32; 2] {
        // SAFETY: as the caller promises; rows are multiples of eight bytes.
        unsafe { global::load_nc(self.row(row).wrapping_add(4 * quad as usize).cast::<U32x2>()).0 }
    }
}
