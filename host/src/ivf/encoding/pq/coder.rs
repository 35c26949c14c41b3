//! Finds the list and the code of each vector of an inverted file with one trip over the bus: the host side of the
//! kernels `generate`, `prepare`, `assign`, `settle` and `encode`.
//!
//! ```text
//! centroids, codebooks ──► device, prepared           // once, for all calls: `kmeans::gpu::assigner`
//! rows ──copy, or generate──► device ──prepare, assign, settle──► labels ──encode──► codes ──► host
//! ```
//!
//! Two lanes work on different batches: the rows of one batch are copied while the other is computed. Rows that the
//! device generates come in larger batches, with which the matrix product is more efficient.

use std::sync::Arc;

use crate::device::runtime::Memory;
use crate::device::scratch::{Layout, Reserved};
use crate::device::tiling::{Planned, Tiling, bus_rows};
use crate::generate::Rows;
use crate::generate::gpu::enqueue_rows;
use crate::ivf::encoding::codec::ListCoder;
use crate::kmeans::gpu::assign::{Batch, BatchLayout};
use crate::kmeans::gpu::assigner::Assigner;
use crate::pq::ProductQuantizer;
use crate::pq::gpu::encode::{OnDevice, enqueue};
use crate::product::gpu::{VectorShape, upload_checked};
use crate::vectors::VectorSlice;
use crate::{ElementType, Input, Result};

/// Number of rows of a batch that the device generates.
const GENERATED_ROWS: usize = 1 << 20;

/// A [`ListCoder`] on one device; see the module documentation.
pub(super) struct Coder {
    assigner: Assigner,
    quantizer: Arc<ProductQuantizer>,
    /// The codebooks, component by component.
    memory: Memory,
    codebooks: Reserved<f32>,
    bytes: usize,
}

impl Coder {
    /// Copies the codebooks to the device of the centroids.
    pub fn new(assigner: Assigner, quantizer: Arc<ProductQuantizer>) -> Result<Self> {
        let mut layout = Layout::default();
        let codebooks = layout.array(quantizer.codebooks().len());
        let (runtime, bytes) = (assigner.runtime(), layout.bytes());
        let memory = runtime.allocate(bytes)?;
        assigner.lanes().with(runtime, |lane| {
            let to = runtime.scratch(&memory).at(codebooks);
            // SAFETY: the layout reserved the array.
            unsafe { runtime.copy_to_device(&lane.stream, to, quantizer.all_transposed())? };
            runtime.synchronize(&lane.stream)
        })?;
        Ok(Coder { assigner, quantizer, memory, codebooks, bytes })
    }

    /// The layout of a batch of `rows` rows and their codes in scratch memory.
    fn place(&self, shape: VectorShape, rows: usize) -> ((BatchLayout, Reserved<u8>), Layout) {
        let batch = BatchLayout::new(shape, rows, false, false);
        let mut layout = Layout::default();
        // The batch lies at the start of the scratch.
        layout.array::<u8>(batch.bytes());
        let codes = layout.array(rows.saturating_mul(self.quantizer.code_bytes()));
        ((batch, codes), layout)
    }
}

impl ListCoder for Coder {
    fn bytes(&self) -> usize {
        self.assigner.bytes() + self.bytes
    }

    fn code(&self, rows: Rows<'_>, labels: &mut [u32], codes: &mut [u8]) -> Result<()> {
        let (assigner, code_bytes) = (&self.assigner, self.quantizer.code_bytes());
        let (runtime, shape) = (assigner.runtime(), assigner.shape_of(ElementType::F32));
        let count = labels.len();
        if count == 0 {
            return Ok(());
        }
        let most = match rows {
            Rows::Given(_) => bus_rows(shape.row_bytes()),
            Rows::Generated { .. } => GENERATED_ROWS,
        };
        let budget = assigner.budget().with_shared(self.bytes);
        let tiling = Tiling::overlapped(budget, (count, most), |rows| Ok(self.place(shape, rows)))?;
        let ((layout, codes_at), tile_layout) = &tiling.plan;
        let outs = labels.chunks_mut(tiling.rows).zip(codes.chunks_mut(tiling.rows * code_bytes));
        tiling.run(runtime, assigner.lanes(), outs, |lane, tile, (labels, codes)| {
            let scratch = lane.scratch(runtime, tile_layout.bytes())?;
            let stream = &lane.stream;
            let count = labels.len() as u32;
            let batch = Batch::new(scratch, *layout, count);
            let components = batch.set.components().take(labels.len() * shape.stride());
            // SAFETY: the layouts reserved the parts for the number of rows of a tile; the copies to the host wait for
            // the kernels; `assign` gives labels below the number of centroids.
            unsafe {
                match rows {
                    Rows::Given(rows) => {
                        let rows = &rows[tile.start * shape.dim..tile.end * shape.dim];
                        let rows = VectorSlice::of(rows, shape.dim);
                        upload_checked(runtime, stream, shape, batch.set.rows(), rows, Input::Vectors)?;
                    }
                    Rows::Generated { generator, first: start } => {
                        let number = start.wrapping_add(tile.start as u64);
                        enqueue_rows(runtime, stream, generator, number, count, shape.stride(), components)?;
                    }
                }
                assigner.assign(stream, shape, batch)?;
                let what = OnDevice {
                    rows: components.into(),
                    stride: shape.stride() as u32,
                    count,
                    labels: batch.labels().take(labels.len()).into(),
                    centroids: assigner.centroids().components().into(),
                    codebooks: runtime.scratch(&self.memory).at(self.codebooks).into(),
                    codes: scratch.at(*codes_at).take(codes.len()),
                };
                enqueue(runtime, stream, &self.quantizer, what)?;
                runtime.copy_to_host(stream, labels, batch.labels())?;
                runtime.copy_to_host(stream, codes, what.codes)
            }
        })
    }
}
