//! The rows of a block that take part in a search, where others do not.
//!
//! The rows that take no part ([`Mask`]) get the value +∞ for the filter, so that its thresholds are those of the other
//! rows, and the distance NaN in the lists, because where a bound is infinite such a row can become a candidate.

use cuda_std::PtrMut;
use warpann_kernels::flat::mask_distances::MaskDistances;
use warpann_kernels::flat::mask_values::MaskValues;

use super::block::{Block, Mask};
use crate::device::queue::OnStream;
use crate::device::scratch::{Layout, Reserved, Scratch};
use crate::select::gpu::Select;
use crate::{Bitset, Result};

/// The memory of a [`Mask`].
#[derive(Debug, Clone, Copy)]
pub(super) struct MaskPlan {
    bits: Reserved<u32>,
    values: Reserved<f32>,
}

impl MaskPlan {
    pub fn reserve(layout: &mut Layout, block: &Block, bits: &Bitset) -> MaskPlan {
        let values = block.base.part(block.base.layout.values).len();
        MaskPlan { bits: layout.array(2 * bits.words().len()), values: layout.array(values) }
    }
}

impl Block {
    /// Copies the bits of the rows that take part to the device, and makes the values of all rows, in stream order.
    ///
    /// # Safety
    /// The plan was reserved for this block in `scratch`, which no other work uses. The block is prepared, and has a
    /// bit for each of its rows.
    pub(super) unsafe fn make_mask(
        &self,
        OnStream { runtime, stream }: OnStream<'_>,
        plan: MaskPlan,
        scratch: Scratch,
        rows: &Bitset,
    ) -> Result<Mask> {
        let values = self.base.part(self.base.layout.values);
        let (bits, out) = (scratch.at(plan.bits), scratch.at(plan.values));
        let (rows_count, count) = (self.base.count, values.len() as u32);
        let launch = MaskValues { values: values.into(), bits: bits.into(), rows: rows_count, count, out };
        // SAFETY: as the caller promises.
        unsafe {
            runtime.copy_to_device(stream, bits, bytemuck::cast_slice(rows.words()))?;
            runtime.launch(stream, &MaskValues::KERNEL, launch.config(), launch)?;
        }
        Ok(Mask { bits: bits.into(), values: out.into() })
    }

    /// Gives the rows that take no part the distance NaN.
    ///
    /// # Safety
    /// The distances are those of the selection, in its layout.
    pub(super) unsafe fn leave_out(&self, on: OnStream<'_>, lists: &Select<f32>, distances: PtrMut<f32>) -> Result<()> {
        let Some(Mask { bits, .. }) = self.mask else { return Ok(()) };
        let launch = MaskDistances {
            query_count: lists.rows,
            rows: lists.ids,
            counts: lists.lengths,
            columns: lists.columns,
            stride: lists.row_stride,
            bits,
            distances,
        };
        // SAFETY: as the caller promises, and there is a bit for each row.
        unsafe { on.runtime.launch(on.stream, &MaskDistances::KERNEL, launch.config(), launch) }
    }
}
