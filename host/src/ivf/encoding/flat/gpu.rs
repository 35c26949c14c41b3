//! Vectors as they were added, on a device: re-ranking reads the elements, and the list scan reads f16 operands.

use warpann_kernels::ivf::code_bounds::MarkPadding;
use warpann_kernels::ivf::encoding::flat;
use warpann_kernels::ivf::list_scan::CHUNK;

use crate::device::queue::OnStream;
use crate::device::scratch::{Layout, Reserved, Scratch};
use crate::ivf::gpu::stored::{Measuring, RerankKernels, Stored};
use crate::ivf::gpu::stored_plan::{ImageShape, Measured, Source, StoredParts, StoredPlan};
use crate::{ElementType, Result};

/// The places of the parts in the memory of the image.
pub(super) struct FlatPlan {
    element: ElementType,
    dim: usize,
    rows: Reserved<u8>,
    f16_rows: Reserved<u16>,
}

impl FlatPlan {
    pub fn new(layout: &mut Layout, shape: &ImageShape<'_>, element: ElementType) -> Self {
        let (dim, rows) = (shape.dim, shape.rows as usize);
        Self {
            element,
            dim,
            rows: layout.array(rows.saturating_mul(dim.next_multiple_of(4) * element.size())),
            f16_rows: layout.array(rows.saturating_mul(dim.next_multiple_of(CHUNK as usize))),
        }
    }

    fn row_bytes(&self) -> usize {
        self.dim.next_multiple_of(4) * self.element.size()
    }
}

impl StoredPlan for FlatPlan {
    fn stored(&self, memory: Scratch) -> Stored {
        Stored {
            in_place: true,
            f16_rows: memory.at(self.f16_rows).into(),
            row_bytes: self.row_bytes() as u32,
            measuring: Measuring::Operands(self.element),
            ..Stored::new(flat::SCAN, RerankKernels::Stored(self.element.key()), memory.at(self.rows).into())
        }
    }

    fn parts(&self, memory: Scratch) -> StoredParts {
        StoredParts { operands: memory.at(self.f16_rows), ..StoredParts::of_codes(memory.at(self.rows)) }
    }

    unsafe fn copy_to_device(&self, source: &Source<'_>, memory: Scratch) -> Result<()> {
        // SAFETY: as the caller promises; the plan reserved the rows.
        unsafe { source.copy_codes(memory.at(self.rows), self.row_bytes()) }
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
