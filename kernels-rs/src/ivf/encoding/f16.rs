//! f32 vectors, times a power of two 2^e that belongs to the index, stored as f16. The rows are also the operands, with
//! scale 2^e and without centre. The list scan multiplies them in place (`flat`), and re-ranking compares their exact
//! values, divided by 2^e, with f32 queries. `bits` of a launch is e, at most [`GREATEST_EXPONENT`], so no quotient is
//! a subnormal f32.

use cuda_std::device_inline;
use cuda_std::global;
use cuda_std::global::U32x2;

use super::{Decode, Held, Operand4, OperandSource, StoredRows};
use crate::ivf::code_bounds::{MeasureCodes, measure, measure_kernels};
use crate::ivf::rerank::{PerQuery, Rerank, by_block, by_warp, rerank_kernels};
use crate::ivf::rescan::{Rescan, Rescanned, count, rescan, rescan_kernels};
use crate::product::element::{self, Element};

/// The greatest exponent of the power of two.
pub const GREATEST_EXPONENT: u32 = 100;

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
    /// 2^−e.
    unit: f32,
}

impl F16Rows {
    #[device_inline]
    fn row(&self, row: u32) -> *const u16 {
        self.rows.wrapping_add(row as usize * self.stride as usize)
    }
}

impl Decode for F16Rows {
    type Query = element::F32;

    #[device_inline]
    fn of(rows: &StoredRows, _: u32) -> Self {
        Self { rows: *rows.rows.cast(), stride: rows.code_bytes / 2, unit: f32::from_bits((127 - rows.bits) << 23) }
    }

    #[device_inline]
    unsafe fn quad(&self, row: u32, _: u32, quad: u32) -> [f32; 4] {
        // SAFETY: as the caller promises.
        let halves = unsafe { element::F16::load4(self.row(row).cast(), quad) };
        halves.map(|half| half * self.unit)
    }
}

impl Operand4 for F16Rows {
    const CODES: bool = false;

    #[device_inline]
    unsafe fn operand4(&self, from: OperandSource, row: u32, _: u32, quad: u32) -> Held {
        // SAFETY: as the caller promises; rows are multiples of eight bytes.
        let halves = unsafe { global::load_nc(self.row(row).wrapping_add(4 * quad as usize).cast::<U32x2>()).0 };
        Held::of_halves(halves, from.down)
    }
}
