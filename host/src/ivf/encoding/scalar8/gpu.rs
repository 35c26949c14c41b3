//! Codes of one byte for each component, on a device: codes, ranges, and zeros in the place of centroids where codes
//! are of vectors. The codes minus 128, as signed bytes, are the operands of the list scan.

use warpann_kernels::ivf::encoding::scalar8;

use crate::Result;
use crate::device::queue::OnStream;
use crate::device::scratch::{Layout, Reserved, Scratch};
use crate::ivf::gpu::stored::{Measuring, RerankKernels, ScanOperands, Stored};
use crate::ivf::gpu::stored_plan::{ImageShape, Measured, Source, StoredParts, StoredPlan};

/// A code with this bit flipped is, as a signed byte, the code minus 128.
const FLIPS: u8 = 0x80;

/// The places of the parts in the memory of the image.
pub(super) struct Scalar8Plan<'a> {
    /// The least value and the step of each component.
    parts: (&'a [f32], &'a [f32]),
    of_vectors: bool,
    row_bytes: usize,
    stride: usize,
    codes: Reserved<u8>,
    /// Least values, then steps, then zeros, `stride` numbers of each.
    tables: Reserved<f32>,
    /// The list of each row, needed only while the image is made.
    row_lists: Reserved<u32>,
}

impl<'a> Scalar8Plan<'a> {
    pub fn new(layout: &mut Layout, shape: &ImageShape<'_>, parts: (&'a [f32], &'a [f32]), of_vectors: bool) -> Self {
        let (dim, rows) = (shape.dim, shape.rows as usize);
        // Kernels copy sixteen codes at a time.
        let (row_bytes, stride) = (dim.next_multiple_of(16), dim.next_multiple_of(4));
        Self {
            parts,
            of_vectors,
            row_bytes,
            stride,
            codes: layout.array(rows.saturating_mul(row_bytes)),
            tables: layout.array(3 * stride),
            row_lists: layout.array(rows),
        }
    }
}

impl StoredPlan for Scalar8Plan<'_> {
    fn stored(&self, memory: Scratch) -> Stored {
        let reranking = if self.of_vectors { scalar8::reranking_of_vectors } else { scalar8::reranking };
        Stored {
            operands: ScanOperands::Codes { bytes: self.row_bytes as u32 },
            flips: FLIPS,
            measuring: Measuring::Codes { by: scalar8::measuring(), scaled: false },
            row_bytes: self.row_bytes as u32,
            codebooks: memory.at(self.tables).into(),
            no_centroid: self.of_vectors.then(|| memory.at(self.tables).skip(2 * self.stride).into()),
            ..Stored::new(
                scalar8::SCAN,
                RerankKernels::Coded(reranking, scalar8::rescanning),
                memory.at(self.codes).into(),
            )
        }
    }

    fn parts(&self, memory: Scratch) -> StoredParts {
        StoredParts::of_codes(memory.at(self.codes))
    }

    unsafe fn copy_to_device(&self, source: &Source<'_>, memory: Scratch) -> Result<()> {
        let OnStream { runtime, stream } = source.on;
        let (least, steps) = self.parts;
        let mut tables = vec![0.0; 3 * self.stride];
        tables[..least.len()].copy_from_slice(least);
        tables[self.stride..][..steps.len()].copy_from_slice(steps);
        // SAFETY: as the caller promises; the plan reserved every part.
        unsafe {
            source.copy_codes(memory.at(self.codes), self.row_bytes, FLIPS)?;
            runtime.copy_to_device(stream, memory.at(self.tables), &tables)?;
            source.copy_row_lists(memory.at(self.row_lists))
        }
    }

    unsafe fn prepare(&self, on: OnStream<'_>, memory: Scratch, to: Measured<'_>) -> Result<()> {
        // SAFETY: as the caller promises; the lists of the rows are on the device.
        unsafe { Measured { row_lists: memory.at(self.row_lists).read_only(), ..to }.measure(on) }
    }
}
