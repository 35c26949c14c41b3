//! Codes of bits on a device: the codes as they are, and the tables by which queries become bytes. The list scan
//! unpacks the codes to levels, which are its operands.

use warpann_kernels::ivf::encoding::bits;

use crate::Result;
use crate::device::queue::OnStream;
use crate::device::scratch::{Layout, Reserved, Scratch};
use crate::ivf::gpu::stored::{Measuring, RerankKernels, ScanOperands, Stored};
use crate::ivf::gpu::stored_plan::{ImageShape, Measured, Source, StoredParts, StoredPlan};

/// The least value of a component in units of its step: code 128 of a byte is the centroid.
const LEAST: f32 = -128.0;

/// The places of the parts in the memory of the image.
pub(super) struct BitsPlan {
    bits: u32,
    row_bytes: usize,
    /// Bytes of a row of unpacked levels.
    operand_bytes: usize,
    stride: usize,
    codes: Reserved<u8>,
    /// Least values, then steps, `stride` numbers of each, for queries.
    tables: Reserved<f32>,
    /// The list of each row, needed only while the image is made.
    row_lists: Reserved<u32>,
}

impl BitsPlan {
    pub fn new(layout: &mut Layout, shape: &ImageShape<'_>, bits: u32) -> Self {
        let (dim, rows) = (shape.dim, shape.rows as usize);
        let (row_bytes, stride) = (bits::row_bytes(dim, bits), dim.next_multiple_of(4));
        Self {
            bits,
            row_bytes,
            operand_bytes: dim.next_multiple_of(bits::GROUP as usize),
            stride,
            codes: layout.array(rows.saturating_mul(row_bytes)),
            tables: layout.array(2 * stride),
            row_lists: layout.array(rows),
        }
    }
}

impl StoredPlan for BitsPlan {
    fn stored(&self, memory: Scratch) -> Stored {
        Stored {
            operands: ScanOperands::Codes { bytes: self.operand_bytes as u32 },
            measuring: Measuring::Codes { by: bits::measuring(), scaled: false },
            row_bytes: self.row_bytes as u32,
            bits: self.bits,
            codebooks: memory.at(self.tables).into(),
            ..Stored::new(
                bits::SCAN,
                RerankKernels::Coded(bits::reranking, bits::rescanning),
                memory.at(self.codes).into(),
            )
        }
    }

    fn parts(&self, memory: Scratch) -> StoredParts {
        StoredParts::of_codes(memory.at(self.codes))
    }

    unsafe fn copy_to_device(&self, source: &Source<'_>, memory: Scratch) -> Result<()> {
        let OnStream { runtime, stream } = source.on;
        let mut tables = vec![LEAST; 2 * self.stride];
        tables[self.stride..].fill(1.0);
        // SAFETY: as the caller promises; the plan reserved every part.
        unsafe {
            source.copy_codes(memory.at(self.codes), self.row_bytes, 0)?;
            runtime.copy_to_device(stream, memory.at(self.tables), &tables)?;
            source.copy_row_lists(memory.at(self.row_lists))
        }
    }

    unsafe fn prepare(&self, on: OnStream<'_>, memory: Scratch, to: Measured<'_>) -> Result<()> {
        // SAFETY: as the caller promises; the lists of the rows are on the device.
        unsafe { Measured { row_lists: memory.at(self.row_lists).read_only(), ..to }.measure(on) }
    }
}
