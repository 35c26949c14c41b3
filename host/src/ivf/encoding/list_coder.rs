//! Finds the list and the code of each vector of an inverted file with one trip over the bus: the host side of the
//! kernels `generate`, `prepare`, `assign`, `settle`, and those of an encoding.
//!
//! ```text
//! centroids, tables ──► device, prepared              // once, for all calls: `kmeans::gpu::assigner`
//! rows ──copy, or generate and rotate──► device ──prepare, assign, settle──► labels ──encode──► codes ──► host
//! ```
//!
//! Two lanes work on different batches: the rows of one batch are copied while the other is computed. Rows that the
//! device generates come in larger batches, with which the matrix product is more efficient.

use std::borrow::Cow;

use cuda_std::{Ptr, PtrMut};
use warpann_kernels::pq::mix::Mix;

use crate::device::queue::OnStream;
use crate::device::runtime::Memory;
use crate::device::scratch::{Layout, Reserved};
use crate::device::tiling::{Planned, Tiling, bus_rows};
use crate::generate::Rows;
use crate::generate::gpu::enqueue_rows;
use crate::ivf::encoding::codec::ListCoder;
use crate::kmeans::gpu::assign::{Batch, BatchLayout};
use crate::kmeans::gpu::assigner::Assigner;
use crate::product::gpu::{VectorShape, upload_checked};
use crate::vectors::VectorSlice;
use crate::{ElementType, Error, Input, Result};

/// Number of rows of a batch that the device generates.
const GENERATED_ROWS: usize = 1 << 20;

/// The part of an encoding that codes rows on a device.
pub(super) trait RowEncoder: Send + Sync {
    /// The numbers that encoding reads, for rows of this stride; the signs of a rotation first.
    fn tables(&self, stride: usize) -> Cow<'_, [f32]>;

    /// Whether rows as they are generated are rotated first, by the signs of the tables ([`Mix`]).
    fn rotates(&self) -> bool {
        false
    }

    /// The name of the values that are too large in rows that no code can hold; `None` if codes hold all rows.
    fn derived(&self) -> Option<&'static str> {
        None
    }

    /// Enqueues the encoding of at least one row.
    ///
    /// # Safety
    /// The arrays have the lengths that the shapes require, and every label names a centroid.
    unsafe fn enqueue(&self, on: OnStream<'_>, rows: OnDevice) -> Result<()>;
}

/// Rows and codes in device memory.
#[derive(Clone, Copy)]
pub(super) struct OnDevice {
    /// The rows, transformed, `stride` components apart; centroids have the same stride.
    pub rows: Ptr<f32>,
    pub stride: u32,
    /// Number of rows, at least one.
    pub count: u32,
    /// The number of the centroid of each row.
    pub labels: Ptr<u32>,
    pub centroids: Ptr<f32>,
    /// [`RowEncoder::tables`].
    pub tables: Ptr<f32>,
    /// The codes, one after the other.
    pub codes: PtrMut<u8>,
    /// Receives the least of 2^32 · row + column of rows that no code can hold, unless there is none.
    pub refused: PtrMut<u64>,
}

/// A [`ListCoder`] on one device; see the module documentation.
pub(super) struct Coder {
    assigner: Assigner,
    encoder: Box<dyn RowEncoder>,
    memory: Memory,
    tables: Reserved<f32>,
    bytes: usize,
}

/// The places of a batch in scratch memory.
#[derive(Clone, Copy)]
struct Place {
    batch: BatchLayout,
    codes: Reserved<u8>,
    refused: Reserved<u64>,
    /// Rows before they are rotated.
    unturned: Reserved<f32>,
}

impl Coder {
    /// Copies the tables to the device of the centroids.
    pub fn new(assigner: Assigner, encoder: Box<dyn RowEncoder>) -> Result<Self> {
        let of_encoder = encoder.tables(assigner.shape_of(ElementType::F32).stride());
        let mut layout = Layout::default();
        let tables = layout.array(of_encoder.len());
        let (runtime, bytes) = (assigner.runtime(), layout.bytes());
        let memory = runtime.allocate(bytes)?;
        assigner.lanes().with(runtime, |lane| {
            let to = runtime.scratch(&memory).at(tables);
            // SAFETY: the layout reserved the array.
            unsafe { runtime.copy_to_device(&lane.stream, to, &of_encoder)? };
            runtime.synchronize(&lane.stream)
        })?;
        drop(of_encoder);
        Ok(Coder { assigner, encoder, memory, tables, bytes })
    }

    /// The layout of a batch of `rows` rows, which are generated or not, and their codes of `code_bytes` bytes in
    /// scratch memory.
    fn place(&self, shape: VectorShape, rows: usize, code_bytes: usize, generated: bool) -> (Place, Layout) {
        let batch = BatchLayout::new(shape, rows, false, false);
        let mut layout = Layout::default();
        // The batch lies at the start of the scratch.
        layout.array::<u8>(batch.bytes());
        let codes = layout.array(rows.saturating_mul(code_bytes));
        let refused = layout.array(1);
        let unturned = if generated && self.encoder.rotates() { rows.saturating_mul(shape.stride()) } else { 0 };
        (Place { batch, codes, refused, unturned: layout.array(unturned) }, layout)
    }
}

impl ListCoder for Coder {
    fn bytes(&self) -> usize {
        self.assigner.bytes() + self.bytes
    }

    fn code(&self, rows: Rows<'_>, labels: &mut [u32], codes: &mut [u8]) -> Result<()> {
        let (assigner, encoder) = (&self.assigner, &*self.encoder);
        let (runtime, shape) = (assigner.runtime(), assigner.shape_of(ElementType::F32));
        let count = labels.len();
        if count == 0 {
            return Ok(());
        }
        let code_bytes = codes.len() / count;
        let (most, generated) = match rows {
            Rows::Given(_) => (bus_rows(shape.row_bytes()), false),
            Rows::Generated { .. } => (GENERATED_ROWS, true),
        };
        let budget = assigner.budget().with_shared(self.bytes);
        let tiling =
            Tiling::overlapped(budget, (count, most), |rows| Ok(self.place(shape, rows, code_bytes, generated)))?;
        let (place, tile_layout) = &tiling.plan;
        let outs = labels.chunks_mut(tiling.rows).zip(codes.chunks_mut(tiling.rows * code_bytes));
        tiling.run(runtime, assigner.lanes(), outs, |lane, tile, (labels, codes)| {
            let scratch = lane.scratch(runtime, tile_layout.bytes())?;
            let stream = &lane.stream;
            let (count, stride) = (labels.len() as u32, shape.stride());
            let batch = Batch::new(scratch, place.batch, count);
            let components = batch.set.components().take(labels.len() * stride);
            let tables: Ptr<f32> = runtime.scratch(&self.memory).at(self.tables).into();
            let refused = scratch.at(place.refused);
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
                        let rotates = encoder.rotates();
                        let to = if rotates { scratch.at(place.unturned) } else { components };
                        enqueue_rows(runtime, stream, generator, number, count, stride, to)?;
                        if rotates {
                            let (dim, stride, to_stride) = (shape.dim as u32, stride as u32, stride as u32);
                            let vectors = to.take(components.len()).into();
                            let launch = Mix { vectors, count, stride, dim, signs: tables, to: components, to_stride };
                            runtime.launch(stream, &Mix::KERNEL, launch.config(), launch)?;
                        }
                    }
                }
                assigner.assign(stream, shape, batch)?;
                let what = OnDevice {
                    rows: components.into(),
                    stride: stride as u32,
                    count,
                    labels: batch.labels().take(labels.len()).into(),
                    centroids: assigner.centroids().components().into(),
                    tables,
                    codes: scratch.at(place.codes).take(codes.len()),
                    refused,
                };
                if encoder.derived().is_some() {
                    runtime.fill(stream, refused, 0xff)?;
                }
                encoder.enqueue(OnStream { runtime, stream }, what)?;
                runtime.copy_to_host(stream, labels, batch.labels())?;
                runtime.copy_to_host(stream, codes, what.codes)?;
                if let Some(derived) = encoder.derived() {
                    let mut found = [0u64];
                    runtime.copy_to_host(stream, &mut found, refused)?;
                    if found[0] != u64::MAX {
                        let (row, column) = (tile.start + (found[0] >> 32) as usize, found[0] as u32 as usize);
                        return Err(Error::Overflow { derived, row, column });
                    }
                }
                Ok(())
            }
        })
    }
}
