//! Finds the list and the code of each vector of an inverted file with one trip over the bus: the host side of the kernels `generate`,
//! `prepare`, `assign`, `settle` and `encode`.
//!
//! ```text
//! centroids, codebooks ──► device, prepared           // once, for all calls
//! rows ──copy, or generate──► device ──prepare, assign, settle──► labels ──encode──► codes ──► host
//! ```
//!
//! Two lanes work on different batches: the rows of one batch are copied while the other is computed. Rows that the device generates come
//! in larger batches, with which the matrix product is more efficient.

use super::super::{CoderOn, ListCoder};
use crate::device::lanes::Lanes;
use crate::device::runtime::{Memory, Runtime};
use crate::device::scratch::{Layout, Reserved};
use crate::device::tiling::{Budget, Planned, Tiling, bus_rows};
use crate::flat::gpu::Centre;
use crate::generate::Rows;
use crate::generate::gpu::enqueue_rows;
use crate::kmeans::gpu::assign::{Batch, BatchLayout, assign_batch};
use crate::pq::ProductQuantizer;
use crate::pq::gpu::encode::{OnDevice, enqueue};
use crate::product::gpu::{SetLayout, VectorSet, VectorShape, prepare_set, upload_rows};
use crate::vectors::VectorSlice;
use crate::{ElementType, Result};

/// Number of rows of a batch that the device generates.
const GENERATED_ROWS: usize = 1 << 20;

/// A [`ListCoder`] on one device; see the module documentation.
pub(super) struct Coder<'a> {
    runtime: Runtime,
    shape: VectorShape,
    quantizer: &'a ProductQuantizer,
    budget: Option<u64>,
    lists: usize,
    /// The memory of centroids and codebooks.
    memory: Memory,
    centroids: SetLayout,
    codebooks: Reserved<f32>,
    bytes: usize,
    lanes: Lanes,
}

impl<'a> Coder<'a> {
    /// Copies centroids and codebooks to the device and prepares them.
    pub fn new(runtime: Runtime, on: &CoderOn<'a>, quantizer: &'a ProductQuantizer) -> Result<Self> {
        let &CoderOn { by, centroids, budget, .. } = on;
        let shape = VectorShape { element: ElementType::F32, metric: by.metric(), dim: quantizer.dim() };
        let lists = centroids.len() / shape.dim;
        let mut layout = Layout::default();
        let set = SetLayout::reserve(&mut layout, shape, lists);
        let codebooks = layout.array(quantizer.codebooks().len());
        let memory = runtime.allocate(layout.bytes())?;
        let (bytes, lanes) = (layout.bytes(), Lanes::new());
        let coder = Coder { runtime, shape, quantizer, budget, lists, memory, centroids: set, codebooks, bytes, lanes };
        coder.lanes.with(&coder.runtime, |lane| {
            let (runtime, set) = (&coder.runtime, coder.set());
            // SAFETY: the layout reserved every part.
            unsafe {
                upload_rows(runtime, &lane.stream, shape, set.rows(), centroids)?;
                if coder.centred() {
                    let mut centre = Centre::default();
                    centre.add(VectorSlice::of(centroids, shape.dim));
                    let centre = centre.components(shape.stride());
                    runtime.copy_to_device(&lane.stream, set.centre(), &centre)?;
                }
                prepare_set(runtime, &lane.stream, shape, set, coder.centred())?;
                let to = runtime.scratch(&coder.memory).at(codebooks);
                runtime.copy_to_device(&lane.stream, to, quantizer.all_transposed())?;
            }
            runtime.synchronize(&lane.stream)
        })?;
        Ok(coder)
    }

    fn centred(&self) -> bool {
        self.shape.metric.ignores_translation()
    }

    /// The centroids as a prepared set.
    fn set(&self) -> VectorSet {
        VectorSet::new(self.runtime.scratch(&self.memory), self.centroids, self.lists as u32)
    }

    /// The layout of a batch of `rows` rows and their codes in scratch memory.
    fn place(&self, rows: usize) -> ((BatchLayout, Reserved<u8>), Layout) {
        let batch = BatchLayout::new(self.shape, rows, false, false);
        let mut layout = Layout::default();
        // The batch lies at the start of the scratch.
        layout.array::<u8>(batch.bytes());
        let codes = layout.array(rows.saturating_mul(self.quantizer.code_bytes()));
        ((batch, codes), layout)
    }
}

impl ListCoder for Coder<'_> {
    fn code(&self, rows: Rows<'_>, labels: &mut [u32], codes: &mut [u8]) -> Result<()> {
        let (runtime, shape, code_bytes) = (&self.runtime, self.shape, self.quantizer.code_bytes());
        let count = labels.len();
        if count == 0 {
            return Ok(());
        }
        let most = match rows {
            Rows::Given(_) => bus_rows(shape.row_bytes()),
            Rows::Generated { .. } => GENERATED_ROWS,
        };
        let budget = Budget::new(runtime, runtime.budget(self.budget)?).with_shared(self.bytes);
        let tiling = Tiling::overlapped(budget, (count, most), |rows| Ok(self.place(rows)))?;
        let ((layout, codes_at), tile_layout) = &tiling.plan;
        let outs = labels.chunks_mut(tiling.rows).zip(codes.chunks_mut(tiling.rows * code_bytes));
        tiling.run(runtime, &self.lanes, outs, |lane, tile, (labels, codes)| {
            let centroids = self.set();
            let scratch = lane.scratch(runtime, tile_layout.bytes())?;
            let stream = &lane.stream;
            let count = labels.len() as u32;
            let batch = Batch::new(scratch, *layout, count);
            let components = batch.set.components().take(labels.len() * shape.stride());
            // SAFETY: the layouts reserved the parts for the number of rows of a tile; the copies to the host wait for the kernels;
            // `assign` gives labels below the number of centroids.
            unsafe {
                match rows {
                    Rows::Given(rows) => {
                        let rows = &rows[tile.start * shape.dim..tile.end * shape.dim];
                        upload_rows(runtime, stream, shape, batch.set.rows(), rows)?;
                    }
                    Rows::Generated { generator, first: start } => {
                        let number = start.wrapping_add(tile.start as u64);
                        enqueue_rows(runtime, stream, generator, number, count, shape.stride(), components)?;
                    }
                }
                if self.centred() {
                    runtime.copy(stream, batch.set.centre(), centroids.centre())?;
                }
                prepare_set(runtime, stream, shape, batch.set, self.centred())?;
                assign_batch(runtime, stream, shape, batch, centroids, false)?;
                let what = OnDevice {
                    rows: components.into(),
                    stride: shape.stride() as u32,
                    count,
                    labels: batch.labels().take(labels.len()).into(),
                    centroids: centroids.components().into(),
                    codebooks: runtime.scratch(&self.memory).at(self.codebooks).into(),
                    codes: scratch.at(*codes_at).take(codes.len()),
                };
                enqueue(runtime, stream, self.quantizer, what)?;
                runtime.copy_to_host(stream, labels, batch.labels())?;
                runtime.copy_to_host(stream, codes, what.codes)
            }
        })
    }
}
