//! Vectors as they were added, on a device: re-ranking reads the elements, and the list scan reads f16 operands, or the
//! elements if they are bytes or bits.

use warpann_kernels::ivf::code_bounds::MarkPadding;
use warpann_kernels::ivf::encoding::{bytes, flat};
use warpann_kernels::ivf::list_scan::CHUNK;

use crate::Result;
use crate::device::queue::OnStream;
use crate::device::scratch::{Layout, Reserved, Scratch};
use crate::ivf::gpu::stored::{Measuring, RerankKernels, ScanOperands, Stored};
use crate::ivf::gpu::stored_plan::{ImageShape, Measured, Source, StoredParts, StoredPlan};
use crate::product::gpu::{Operands, VectorShape};

/// The places of the parts in the memory of the image.
pub(super) struct FlatPlan {
    shape: VectorShape,
    rows: Reserved<u8>,
    /// The f16 operands of the rows. Rows of bytes have none.
    f16_rows: Reserved<u16>,
}

impl FlatPlan {
    /// For vectors of `shape`.
    pub fn new(layout: &mut Layout, image: &ImageShape<'_>, shape: VectorShape) -> Self {
        let rows = image.rows as usize;
        let copies = match shape.operands {
            Operands::Halves => rows,
            Operands::Bytes(_) => 0,
        };
        Self {
            shape,
            rows: layout.array(rows.saturating_mul(shape.row_bytes())),
            f16_rows: layout.array(copies.saturating_mul(image.dim.next_multiple_of(CHUNK as usize))),
        }
    }
}

impl StoredPlan for FlatPlan {
    fn stored(&self, memory: Scratch) -> Stored {
        let shape = self.shape;
        let (scan, operands, measuring) = match shape.operands {
            Operands::Halves => (flat::SCAN, ScanOperands::Halves, Measuring::Operands(shape.element)),
            Operands::Bytes(key) => {
                let key = shape.exact_key(key);
                (bytes::scan_of(key), ScanOperands::Bytes(key), Measuring::Bytes(key))
            }
        };
        Stored {
            in_place: true,
            f16_rows: memory.at(self.f16_rows).into(),
            operands,
            row_bytes: shape.row_bytes() as u32,
            measuring,
            ..Stored::new(scan, RerankKernels::Stored(shape.row_key()), memory.at(self.rows).into())
        }
    }

    fn parts(&self, memory: Scratch) -> StoredParts {
        StoredParts { operands: memory.at(self.f16_rows), ..StoredParts::of_codes(memory.at(self.rows)) }
    }

    unsafe fn copy_to_device(&self, source: &Source<'_>, memory: Scratch) -> Result<()> {
        // SAFETY: as the caller promises; the plan reserved the rows.
        unsafe { source.copy_codes(memory.at(self.rows), self.shape.row_bytes(), 0) }
    }

    unsafe fn prepare(&self, on: OnStream<'_>, memory: Scratch, to: Measured<'_>) -> Result<()> {
        let to = Measured { operands: memory.at(self.f16_rows), ..to };
        // SAFETY: as the caller promises.
        unsafe {
            to.raise_greatest(on)?;
            to.measure(on)?;
            let launch = MarkPadding { ranks: to.image.ranks, row_count: to.image.rows, values: to.values };
            on.runtime.launch(on.stream, &MarkPadding::KERNEL, launch.config(), launch)
        }
    }
}
