//! The memory of a flat index on a device: rows in device memory, or rows in host memory with two places on the device
//! for blocks of them.

use std::mem::replace;
use std::sync::Arc;

use cuda_std::PtrMut;

use super::block::Tuning;
use super::prepared::Preparation;
use crate::Result;
use crate::device::lanes::Lanes;
use crate::device::runtime::{Memory, Runtime};
use crate::device::scratch::Layout;
use crate::device::spare::Spare;
use crate::device::tiling::resident_share;
use crate::product::gpu::{SetLayout, VectorSet, VectorShape};
use crate::shared::journal::Journal;
use crate::threads::Exclusive;
use crate::vectors::VectorBuffer;

/// A flat index on one device.
pub(crate) struct FlatDevice {
    pub(super) runtime: Runtime,
    pub(super) shape: VectorShape,
    pub(super) tuning: Tuning,
    pub(super) budget: u64,
    pub(super) count: usize,
    pub(super) rows: BaseRows,
    pub(super) lanes: Arc<Lanes>,
    /// The rows that have changed, by which rows that a former version has left are brought up to date.
    pub(super) journal: Journal<u32>,
    /// The rows of a former version. Shared with copies, as the lanes are.
    pub(super) spare: Arc<Spare<Left>>,
}

/// Rows that a former version has left.
pub(super) struct Left {
    pub(super) resident: Resident,
    /// The version of the rows in the journal.
    pub(super) version: u64,
    /// Number of rows.
    pub(super) count: usize,
}

/// Leaves resident rows to the versions of the index that remain.
impl Drop for FlatDevice {
    fn drop(&mut self) {
        let rows = replace(&mut self.rows, BaseRows::Device(Resident::empty(&self.runtime, self.shape).into()));
        if let BaseRows::Device(resident) = rows {
            let bytes = set_layout(self.shape, resident.capacity).1.bytes() as u64;
            let left = Left { resident: *resident, version: self.journal.version(), count: self.count };
            self.spare.keep(left, bytes, self.budget);
        }
    }
}

/// The memory of the rows: the device, or the host with slots on the device.
pub(super) enum BaseRows {
    Device(Box<Resident>),
    Host { rows: VectorBuffer, slots: Exclusive<Option<Slots>> },
}

/// Rows in device memory.
pub(super) struct Resident {
    pub(super) memory: Memory,
    pub(super) layout: SetLayout,
    pub(super) capacity: usize,
    /// The rows to which copies and norms belong. The first search after a change makes those of the others.
    pub(super) prepared: Exclusive<Preparation>,
}

impl Resident {
    /// No rows, and no room for any.
    pub(super) fn empty(runtime: &Runtime, shape: VectorShape) -> Resident {
        let (layout, _) = set_layout(shape, 0);
        let prepared = Exclusive::new(Preparation::default());
        Resident { memory: runtime.no_memory(), layout, capacity: 0, prepared }
    }
}

/// Two places in device memory for blocks of a base in host memory.
pub(super) struct Slots {
    pub(super) memory: [Memory; 2],
    /// Number of rows that each has room for.
    pub(super) rows: usize,
}

/// The layout of a set of `rows` rows in its memory.
pub(super) fn set_layout(shape: VectorShape, rows: usize) -> (SetLayout, Layout) {
    let mut layout = Layout::default();
    let set = SetLayout::reserve(&mut layout, shape, rows);
    (set, layout)
}

impl FlatDevice {
    /// An empty index; `budget` defaults to nine tenths of the device's free memory.
    pub fn new(runtime: Runtime, shape: VectorShape, budget: Option<u64>) -> Result<Self> {
        let budget = runtime.budget(budget)?;
        Ok(FlatDevice::with_lanes(runtime, shape, budget, Arc::new(Lanes::of_index())))
    }

    /// An empty index that shares lanes with another one of the device.
    pub fn with_lanes(runtime: Runtime, shape: VectorShape, budget: u64, lanes: Arc<Lanes>) -> Self {
        let tuning = Tuning::of(runtime.limits());
        FlatDevice::without_rows(runtime, shape, tuning, budget, lanes)
    }

    pub(super) fn without_rows(
        runtime: Runtime,
        shape: VectorShape,
        tuning: Tuning,
        budget: u64,
        lanes: Arc<Lanes>,
    ) -> Self {
        let rows = BaseRows::Device(Resident::empty(&runtime, shape).into());
        let (journal, spare) = (Journal::new(), Arc::default());
        FlatDevice { runtime, shape, tuning, budget, count: 0, rows, lanes, journal, spare }
    }

    /// All rows, if they are in the memory of the device.
    pub fn resident_rows(&self) -> Option<ResidentRows<'_>> {
        let BaseRows::Device(resident) = &self.rows else { return None };
        let rows = self.set(resident).rows();
        Some(ResidentRows { runtime: &self.runtime, lanes: &self.lanes, budget: self.budget, shape: self.shape, rows })
    }

    /// The device of the index.
    #[cfg(feature = "cuda")]
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    pub(super) fn resident_limit(&self) -> u64 {
        resident_share(self.budget)
    }

    /// Bytes of the memory of resident rows, and of those that a former version has left.
    pub(super) fn resident_bytes(&self, resident: &Resident) -> u64 {
        set_layout(self.shape, resident.capacity).1.bytes() as u64 + self.spare.bytes()
    }

    /// The set of resident rows.
    pub(super) fn set(&self, resident: &Resident) -> VectorSet {
        VectorSet::new(self.runtime.scratch(&resident.memory), resident.layout, self.count as u32)
    }

    pub(super) fn centred(&self) -> bool {
        self.shape.is_centred()
    }
}

/// The rows of a flat index in the memory of a device, for kernels of other indexes.
pub(crate) struct ResidentRows<'a> {
    pub runtime: &'a Runtime,
    pub lanes: &'a Arc<Lanes>,
    /// The memory budget of the index in bytes.
    pub budget: u64,
    pub shape: VectorShape,
    /// Rows of `shape.row_bytes()` bytes, also those that removed vectors left.
    pub rows: PtrMut<u8>,
}
