//! Centroids in device memory, prepared once, to which vectors are assigned call after call.
//!
//! ```text
//! centroids ──copy, prepare──► device                                    // once
//! vectors ──copy──► device ──prepare, assign, settle──► labels ──► host    // two lanes: one tile is copied while another is computed
//! ```
//!
//! # Cost
//! A call for vectors that fit the scratch of an earlier call allocates nothing, creates no stream, and does not ask
//! the driver for free memory. As counted with an emulated driver, it takes three copies, two fills, five launches and
//! one wait.

use std::ops::Range;

use cuda_std::{Ptr, PtrMut};

use super::assign::{Batch, BatchLayout, assign_batch, equals_of_earlier, hide};
use super::check_clusters;
use crate::device::lanes::Lanes;
use crate::device::runtime::{Memory, Runtime, Stream};
use crate::device::scratch::Layout;
use crate::device::tiling::{Budget, Planned, Tiling, bus_rows};
use crate::metric::Assign;
use crate::product::centre::Centre;
use crate::product::gpu::{SetLayout, VectorSet, VectorShape, prepare_set, upload_checked, upload_rows};
use crate::vectors::VectorSlice;
use crate::{ElementType, Input, Result, events, host_memory};

/// Prepared centroids on one device; see the module documentation.
pub(crate) struct Assigner {
    runtime: Runtime,
    /// The shape of the centroids.
    shape: VectorShape,
    count: u32,
    memory: Memory,
    layout: SetLayout,
    /// Size of `memory` in bytes.
    bytes: usize,
    /// Device memory that may be used, in bytes.
    budget: u64,
    lanes: Lanes,
}

impl Assigner {
    /// Copies centroids, row-major and at least one, to the device, and prepares them. `centre` is near the vectors
    /// that will be assigned; it changes the time only. Without a budget in bytes, nine tenths of the free memory may
    /// be used.
    ///
    /// # Errors
    /// [`Error::Zero`](crate::Error::Zero), [`Error::TooMany`](crate::Error::TooMany), and the errors of the device.
    pub fn new(
        runtime: Runtime,
        by: Assign,
        (centroids, dim): (&[f32], usize),
        centre: &Centre,
        budget: Option<u64>,
    ) -> Result<Self> {
        let count = check_clusters(centroids.len() / dim)?;
        let shape = VectorShape::new(ElementType::F32, by.metric(), dim);
        let mut layout = Layout::default();
        let set = SetLayout::reserve(&mut layout, shape, count);
        let (bytes, budget) = (layout.bytes(), runtime.budget(budget)?);
        Budget::new(&runtime, budget).check(bytes as u64)?;
        let (memory, lanes) = (runtime.allocate(bytes)?, Lanes::new());
        let assigner = Assigner { runtime, shape, count: count as u32, memory, layout: set, bytes, budget, lanes };
        assigner.lanes.with(&assigner.runtime, |lane| {
            let (runtime, set) = (&assigner.runtime, assigner.centroids());
            // SAFETY: the layout reserved every part.
            unsafe {
                upload_rows(runtime, &lane.stream, shape, set.rows(), centroids)?;
                if assigner.is_centred() {
                    runtime.copy_to_device(&lane.stream, set.centre(), &centre.components(shape.stride()))?;
                }
                prepare_set(runtime, &lane.stream, shape, set, assigner.is_centred())?;
                hide(runtime, &lane.stream, set, &equals_of_earlier(centroids, dim))?;
            }
            runtime.synchronize(&lane.stream)
        })?;
        Ok(assigner)
    }

    /// The device that has the centroids.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// The lanes of the device that calls use.
    pub fn lanes(&self) -> &Lanes {
        &self.lanes
    }

    /// The centroids as a prepared set.
    pub fn centroids(&self) -> VectorSet {
        VectorSet::new(self.runtime.scratch(&self.memory), self.layout, self.count)
    }

    /// The memory that a call may use beside the centroids.
    pub fn budget(&self) -> Budget<'_> {
        Budget::new(&self.runtime, self.budget).with_shared(self.bytes)
    }

    /// Bytes of device memory of the centroids and of the scratch that calls have left.
    pub fn bytes(&self) -> usize {
        self.bytes + self.lanes.bytes()
    }

    fn is_centred(&self) -> bool {
        self.shape.metric.ignores_translation()
    }

    /// The shape of vectors of an element type.
    pub fn shape_of(&self, element: ElementType) -> VectorShape {
        VectorShape::new(element, self.shape.metric, self.shape.dim)
    }

    /// Labels a batch whose rows, of this shape, are on the device, with the nearest centroids.
    ///
    /// # Safety
    /// The memory of the batch has its layout, for rows of this shape.
    pub unsafe fn assign(&self, stream: &Stream, shape: VectorShape, batch: Batch) -> Result<()> {
        let (runtime, centroids) = (&self.runtime, self.centroids());
        // SAFETY: as the caller promises; the centroids have been prepared with this centre.
        unsafe {
            if self.is_centred() {
                // The batch may have longer rows, whose padding has zeros in the centre, too.
                let (to, from) = (batch.set.centre(), centroids.centre());
                let both = to.len().min(from.len());
                runtime.copy(stream, to.take(both), from.take(both))?;
                if to.len() > both {
                    runtime.fill(stream, to.skip(both), 0)?;
                }
            }
            prepare_set(runtime, stream, shape, batch.set, self.is_centred())?;
            assign_batch(runtime, stream, shape, batch, centroids, false)
        }
    }

    /// The number of the nearest centroid of each vector, exact as all assignments are. The copy to the device checks
    /// the vectors.
    ///
    /// # Errors
    /// [`Error::NotFinite`](crate::Error::NotFinite), with the row among the vectors of a tile; the errors of the
    /// device; [`Error::OutOfDeviceMemory`](crate::Error::OutOfDeviceMemory) if the budget has no room for a vector.
    pub fn labels(&self, vectors: VectorSlice<'_>) -> Result<Vec<u32>> {
        let (runtime, shape) = (&self.runtime, self.shape_of(vectors.element()));
        self.labels_of(shape, vectors.len(), |stream, tile, to| {
            let (started, bytes) = (events::Started::now(), (tile.len() * shape.row_bytes()) as u64);
            // SAFETY: the caller has room for the rows of the tile.
            unsafe { upload_checked(runtime, stream, shape, to, vectors.part(tile), Input::Vectors)? };
            events::uploaded("vectors to assign", || runtime.describe(), bytes, &started);
            Ok(())
        })
    }

    /// As [`labels`](Self::labels), of vectors that the device has as the rows of a flat index.
    ///
    /// # Errors
    /// The errors of the device; [`Error::OutOfDeviceMemory`](crate::Error::OutOfDeviceMemory) if the budget has no
    /// room for a vector.
    ///
    /// # Safety
    /// `rows` are whole vectors, finite, and nothing changes them during the call.
    pub unsafe fn labels_of_resident(&self, element: ElementType, rows: Ptr<u8>) -> Result<Vec<u32>> {
        let Self { shape: VectorShape { metric, dim, .. }, .. } = *self;
        let shape = VectorShape::of_rows(element, metric, dim).with_copies();
        let row_bytes = shape.row_bytes();
        self.labels_of(shape, rows.len() / row_bytes, |stream, tile, to| {
            let rows = rows.skip(tile.start * row_bytes).take(tile.len() * row_bytes);
            // SAFETY: as the caller promises; there is room for the rows of the tile.
            unsafe { self.runtime.copy(stream, to, rows) }
        })
    }

    /// The labels of `count` vectors of this shape, of which `give` copies a tile to the device.
    fn labels_of(
        &self,
        shape: VectorShape,
        count: usize,
        give: impl Fn(&Stream, Range<usize>, PtrMut<u8>) -> Result<()> + Sync,
    ) -> Result<Vec<u32>> {
        let runtime = &self.runtime;
        let mut labels = host_memory::zeroed(count)?;
        let plan = |rows| Ok(BatchLayout::new(shape, rows, false, false));
        let tiling = Tiling::overlapped(self.budget(), (count, bus_rows(shape.row_bytes())), plan)?;
        let outs = labels.chunks_mut(tiling.rows);
        tiling.run(runtime, &self.lanes, outs, |lane, tile, labels| {
            let scratch = lane.scratch(runtime, tiling.plan.bytes())?;
            let batch = Batch::new(scratch, tiling.plan, tile.len() as u32);
            give(&lane.stream, tile, batch.set.rows())?;
            // SAFETY: the layout has room for the rows of a tile. The copy to the host waits for the work on the
            // scratch.
            unsafe {
                self.assign(&lane.stream, shape, batch)?;
                runtime.copy_to_host(&lane.stream, labels, batch.labels())
            }
        })?;
        Ok(labels)
    }
}
