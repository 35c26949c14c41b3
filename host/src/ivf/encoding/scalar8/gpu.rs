//! Codes of one byte for each component, on a device: codes, ranges, and the scaled parts of f16 operands.

use warpann_kernels::ivf::code_bounds::ScaleCodes;
use warpann_kernels::ivf::encoding::{OperandParts, scalar8};

use crate::Result;
use crate::device::queue::OnStream;
use crate::device::scratch::{Layout, Reserved, Scratch};
use crate::ivf::gpu::stored::{Measuring, RerankKernels, Stored};
use crate::ivf::gpu::stored_plan::{ImageShape, Measured, Source, StoredParts, StoredPlan};

/// The places of the parts in the memory of the image.
pub(super) struct Scalar8Plan<'a> {
    /// The least value and the step of each component.
    parts: (&'a [f32], &'a [f32]),
    /// Upper bound of the size of a decoded residual.
    reach: f32,
    row_bytes: usize,
    stride: usize,
    codes: Reserved<u8>,
    /// Least values, then steps, `stride` numbers of each.
    tables: Reserved<f32>,
    /// The list of each row, needed only while the image is made.
    row_lists: Reserved<u32>,
    offsets: Reserved<u16>,
    halves: Reserved<u16>,
}

impl<'a> Scalar8Plan<'a> {
    pub fn new(layout: &mut Layout, shape: &ImageShape<'_>, parts: (&'a [f32], &'a [f32]), reach: f32) -> Self {
        let (dim, rows) = (shape.dim, shape.rows as usize);
        // Kernels read eight codes at a time.
        let (row_bytes, stride) = (dim.next_multiple_of(8), dim.next_multiple_of(4));
        Self {
            parts,
            reach,
            row_bytes,
            stride,
            codes: layout.array(rows.saturating_mul(row_bytes)),
            tables: layout.array(2 * stride),
            row_lists: layout.array(rows),
            offsets: layout.array(shape.lists * stride),
            halves: layout.array(2 * stride),
        }
    }
}

impl StoredPlan for Scalar8Plan<'_> {
    fn stored(&self, memory: Scratch) -> Stored {
        Stored {
            decodes: true,
            measuring: Measuring::Codes { by: scalar8::measuring(), scaled: false },
            row_bytes: self.row_bytes as u32,
            codebooks: memory.at(self.tables).into(),
            parts: OperandParts { offsets: memory.at(self.offsets).into(), halves: memory.at(self.halves).into() },
            ..Stored::new(
                scalar8::SCAN,
                RerankKernels::Coded(scalar8::reranking, scalar8::rescanning),
                memory.at(self.codes).into(),
            )
        }
    }

    fn parts(&self, memory: Scratch) -> StoredParts {
        StoredParts::of_codes(memory.at(self.codes))
    }

    /// Large enough that neither the parts of an operand nor their sums exceed the range of f16: with the resulting
    /// scale, a centroid is below 2^15 in size, and a decoded residual below 2^13.
    fn least_greatest(&self) -> f32 {
        4.0 * self.reach
    }

    unsafe fn copy_to_device(&self, source: &Source<'_>, memory: Scratch) -> Result<()> {
        let OnStream { runtime, stream } = source.on;
        let (least, steps) = self.parts;
        let mut tables = vec![0.0; 2 * self.stride];
        tables[..least.len()].copy_from_slice(least);
        tables[self.stride..][..steps.len()].copy_from_slice(steps);
        // SAFETY: as the caller promises; the plan reserved every part.
        unsafe {
            source.copy_codes(memory.at(self.codes), self.row_bytes)?;
            runtime.copy_to_device(stream, memory.at(self.tables), &tables)?;
            source.copy_row_lists(memory.at(self.row_lists))
        }
    }

    unsafe fn prepare(&self, on: OnStream<'_>, memory: Scratch, to: Measured<'_>) -> Result<()> {
        let OnStream { runtime, stream } = on;
        let image = to.image;
        let scale = ScaleCodes {
            centroids: image.centroids,
            centroid_count: image.lists * image.stride(),
            stride: image.stride(),
            centre: image.centre,
            codebooks: image.stored.codebooks,
            codeword_count: 2 * self.stride as u32,
            greatest: image.greatest,
            offsets: memory.at(self.offsets),
            halves: memory.at(self.halves),
        };
        // SAFETY: as the caller promises; the stream runs both in order, after the greatest component of the centroids
        // was found.
        unsafe {
            runtime.launch(stream, &ScaleCodes::KERNEL, scale.config(), scale)?;
            Measured { row_lists: memory.at(self.row_lists).read_only(), ..to }.measure(on)
        }
    }
}
