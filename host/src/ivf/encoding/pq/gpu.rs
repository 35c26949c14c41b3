//! Product-quantizer codes on a device: codes, codebooks, the parts of f16 operands, and the terms for the scan by
//! lookup tables.

use warpann_kernels::ivf::code_bounds::ScaleCodes;
use warpann_kernels::ivf::encoding::{OperandParts, pq};

use crate::Result;
use crate::device::queue::OnStream;
use crate::device::scratch::{Layout, Reserved, Scratch};
use crate::ivf::gpu::stored::{Measuring, RerankKernels, Stored, TableIndex};
use crate::ivf::gpu::stored_plan::{ImageShape, Measured, Source, StoredParts, StoredPlan};
use crate::ivf::gpu::tables;
use crate::ivf::gpu::tables::Terms;
use crate::pq::ProductQuantizer;

/// The places of the parts in the memory of the image.
pub(super) struct PqPlan<'a> {
    quantizer: &'a ProductQuantizer,
    codes: Reserved<u8>,
    codebooks: Reserved<f32>,
    /// The list of each row, needed only while the image is made.
    row_lists: Reserved<u32>,
    offsets: Reserved<u16>,
    halves: Reserved<u16>,
    tables: tables::Shape,
    kind: Terms,
    terms: Reserved<f32>,
}

impl<'a> PqPlan<'a> {
    pub fn new(layout: &mut Layout, shape: &ImageShape<'_>, quantizer: &'a ProductQuantizer) -> Self {
        let &ImageShape { dim, lists, metric, centroids, rows, longest_list, budget } = shape;
        let stored_rows = rows as usize;
        let (books, sub_quantizers) = (quantizer.codebooks(), quantizer.sub_quantizers());
        let tables = tables::Shape {
            dim: dim as u32,
            sub_quantizers: sub_quantizers as u32,
            bits: quantizer.bits(),
            lists: lists as u32,
            stored_rows: rows,
            longest_list,
            inner_product: metric.looked_up_by().is_spherical(),
            norms: tables::Norms::new(centroids, books, dim, sub_quantizers),
        };
        // The paper's first term is optional for the scan, so it may take at most an eighth of the budget.
        let kind = tables.choose_terms(budget / 8);
        Self {
            quantizer,
            codes: layout.array(stored_rows.saturating_mul(quantizer.code_bytes())),
            codebooks: layout.array(books.len()),
            row_lists: layout.array(stored_rows),
            offsets: layout.array(lists * dim.next_multiple_of(4)),
            // The scan copies the codebooks to shared memory in units of 16 bytes.
            halves: layout.array(books.len().next_multiple_of(8)),
            tables,
            kind,
            terms: layout.array(tables.terms_len(kind)),
        }
    }
}

impl StoredPlan for PqPlan<'_> {
    fn stored(&self, memory: Scratch) -> Stored {
        Stored {
            decodes: true,
            costly: true,
            measuring: Measuring::Codes { by: pq::measuring(), scaled: true },
            row_bytes: self.quantizer.code_bytes() as u32,
            bits: self.quantizer.bits(),
            width: self.quantizer.width() as u32,
            codebooks: memory.at(self.codebooks).into(),
            parts: OperandParts { offsets: memory.at(self.offsets).into(), halves: memory.at(self.halves).into() },
            tables: Some(TableIndex { shape: self.tables, kind: self.kind, terms: memory.at(self.terms).into() }),
            ..Stored::new(pq::SCAN, RerankKernels::Coded(pq::reranking, pq::rescanning), memory.at(self.codes).into())
        }
    }

    fn parts(&self, memory: Scratch) -> StoredParts {
        StoredParts { terms: memory.at(self.terms), ..StoredParts::of_codes(memory.at(self.codes)) }
    }

    unsafe fn copy_to_device(&self, source: &Source<'_>, memory: Scratch) -> Result<()> {
        let OnStream { runtime, stream } = source.on;
        // SAFETY: as the caller promises; the plan reserved every part.
        unsafe {
            source.copy_codes(memory.at(self.codes), self.quantizer.code_bytes(), 0)?;
            runtime.copy_to_device(stream, memory.at(self.codebooks), self.quantizer.codebooks())?;
            source.copy_row_lists(memory.at(self.row_lists))
        }
    }

    unsafe fn prepare(&self, on: OnStream<'_>, memory: Scratch, to: Measured<'_>) -> Result<()> {
        let OnStream { runtime, stream } = on;
        let to = Measured { row_lists: memory.at(self.row_lists).read_only(), ..to };
        let image = to.image;
        let components = self.quantizer.codebooks().len();
        // SAFETY: as the caller promises; the stream runs the launches in order.
        unsafe {
            to.raise_greatest(on)?;
            let by_tables = image.table_image();
            tables::enqueue_terms(&on, &self.tables, &by_tables, self.kind, memory.at(self.terms))?;
            let launch = ScaleCodes {
                centroids: image.centroids,
                centroid_count: image.lists * image.stride(),
                stride: image.stride(),
                centre: image.centre,
                codebooks: image.stored.codebooks,
                codeword_count: components as u32,
                greatest: image.greatest,
                offsets: memory.at(self.offsets),
                halves: memory.at(self.halves).take(components),
            };
            runtime.launch(stream, &ScaleCodes::KERNEL, launch.config(), launch)?;
            to.measure(on)
        }
    }
}
