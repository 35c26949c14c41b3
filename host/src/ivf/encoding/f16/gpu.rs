//! f16 codes on a device. The list scan reads the rows themselves as operands: their scale is that of the codes, and no
//! centre is subtracted.

use warpann_kernels::ivf::encoding::{f16, flat};
use warpann_kernels::ivf::list_scan::CHUNK;

use crate::Result;
use crate::device::queue::OnStream;
use crate::device::scratch::{Layout, Reserved, Scratch};
use crate::ivf::gpu::stored::{Measuring, RerankKernels, Stored};
use crate::ivf::gpu::stored_plan::{ImageShape, Measured, Source, StoredParts, StoredPlan};

/// A greatest component for which the scale is 2^exponent (`warpann_kernels::product::metric::scale_of`).
fn greatest_of_scale(exponent: u32) -> f32 {
    16_384.0 * 0.5f32.powi(exponent as i32)
}

/// The places of the parts in the memory of the image.
pub(super) struct F16Plan {
    exponent: u32,
    rows: Reserved<u16>,
    row_bytes: usize,
    /// The list of each row, needed only while the image is made.
    row_lists: Reserved<u32>,
}

impl F16Plan {
    pub fn new(layout: &mut Layout, shape: &ImageShape<'_>, exponent: u32) -> Self {
        let rows = shape.rows as usize;
        let stride = shape.dim.next_multiple_of(CHUNK as usize);
        Self {
            exponent,
            rows: layout.array(rows.saturating_mul(stride)),
            row_bytes: stride * size_of::<u16>(),
            row_lists: layout.array(rows),
        }
    }
}

impl StoredPlan for F16Plan {
    fn stored(&self, memory: Scratch) -> Stored {
        Stored {
            row_bytes: self.row_bytes as u32,
            bits: self.exponent,
            f16_rows: memory.at(self.rows).into(),
            measuring: Measuring::Codes { by: f16::measuring(), scaled: false },
            ..Stored::new(
                flat::SCAN,
                RerankKernels::Coded(f16::reranking, f16::rescanning),
                memory.at(self.rows).as_bytes().into(),
            )
        }
    }

    fn parts(&self, memory: Scratch) -> StoredParts {
        StoredParts::of_codes(memory.at(self.rows).as_bytes())
    }

    fn least_greatest(&self) -> f32 {
        greatest_of_scale(self.exponent)
    }

    fn fixed_scale(&self) -> bool {
        true
    }

    unsafe fn copy_to_device(&self, source: &Source<'_>, memory: Scratch) -> Result<()> {
        // SAFETY: as the caller promises; the plan reserved both arrays.
        unsafe {
            source.copy_codes(memory.at(self.rows).as_bytes(), self.row_bytes, 0)?;
            source.copy_row_lists(memory.at(self.row_lists))
        }
    }

    unsafe fn prepare(&self, on: OnStream<'_>, memory: Scratch, to: Measured<'_>) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { Measured { row_lists: memory.at(self.row_lists).read_only(), ..to }.measure(on) }
    }
}

#[cfg(test)]
mod tests {
    use warpann_kernels::ivf::encoding::f16::GREATEST_EXPONENT;
    use warpann_kernels::product::metric::{Metric, scale_of};

    #[test]
    fn the_scale_of_f16_rows_is_that_of_their_codes() {
        for exponent in 0..=GREATEST_EXPONENT {
            let scale = scale_of(Metric::L2, super::greatest_of_scale(exponent));
            assert_eq!(scale, 2f32.powi(exponent as i32));
        }
    }
}
