//! Exact search of a block of rows in device memory, for queries from host memory: `steps`, and the copies of queries
//! and results.

use cuda_std::PtrMut;

use super::block::{Block, MOST_QUERIES};
use super::steps::Steps;
use crate::Result;
use crate::device::backend::ResultArray;
use crate::device::lanes::Lane;
use crate::device::queue::OnStream;
use crate::device::runtime::Runtime;
use crate::device::tiling::{Budget, Tiling};
use crate::neighbors::slots::{FoundRows, Slots};
use crate::product::gpu::{VectorSet, upload_vectors};
use crate::select::gpu::Select;
use crate::vectors::VectorSlice;

impl Block {
    /// The name of the path of a search of `queries` queries at a time.
    pub fn path(&self, queries: usize, k: usize) -> &'static str {
        let k = k.min(self.base.count as usize) as u32;
        if self.uses_filter(queries, k) { "filter on tensor cores" } else { "all canonical distances" }
    }

    /// Divides queries into tiles of at most `most` queries whose scratch fits the budget, for searches on `lanes`
    /// lanes.
    pub fn tiling(
        &self,
        budget: Budget<'_>,
        (queries, most): (usize, usize),
        k: usize,
        lanes: usize,
    ) -> Result<Tiling<usize>> {
        let k = k.min(self.base.count as usize) as u32;
        let limits = budget.runtime().limits();
        let plan = |queries| Ok(Steps::new(self, queries, k, limits).bytes());
        Tiling::new(budget, (queries, most.min(MOST_QUERIES)), lanes, plan)
    }

    /// Finds the best k of this block for each query, best first. Slots without a neighbour get `NONE` and the worst
    /// distance.
    ///
    /// `ids` and `distances` have queries × k slots. The block's memory must outlive the call. At least k rows take
    /// part, or all do.
    pub fn search(
        &self,
        runtime: &Runtime,
        lane: &mut Lane,
        queries: VectorSlice<'_>,
        k: usize,
        ids: &mut [u64],
        distances: &mut [f32],
    ) -> Result<()> {
        let slots = Slots { k, worst: self.shape.metric.worst(), ids, distances };
        self.search_tile(runtime, lane, queries, slots).map(|_| ())
    }

    /// As [`Block::search`]. Returns the number of queries whose candidates overflowed.
    pub(super) fn search_tile(
        &self,
        runtime: &Runtime,
        lane: &mut Lane,
        queries: VectorSlice<'_>,
        mut slots: Slots<'_>,
    ) -> Result<usize> {
        let (count, k) = (queries.len(), slots.k.min(self.base.count as usize) as u32);
        let steps = Steps::new(self, count, k, runtime.limits());
        let scratch = lane.scratch(runtime, steps.bytes())?;
        let on = OnStream { runtime, stream: &lane.stream };
        let set = VectorSet::new(scratch, steps.queries(), count as u32);
        // SAFETY: the plan reserved every part, the base is in place, as the caller promises, and the stream runs these
        // in order.
        unsafe {
            upload_vectors(runtime, on.stream, self.shape, set.rows(), queries)?;
            let found = self.find(on, &steps, scratch, set, k, false)?;
            let overflow = steps.filter().map(|plan| scratch.at(plan.overflow));
            let overflowed = self.copy_results(on, &found, overflow, &mut slots)?;
            if let Some(plan) = steps.filter().filter(|_| overflowed > 0) {
                self.complete(on, plan, scratch, set, &found)?;
                self.copy_results(on, &found, overflow, &mut slots)?;
            }
            Ok(overflowed)
        }
    }

    /// Waits for a selection, writes its results to the slots, and returns the number of flags that are set, of which
    /// there is one for each query.
    ///
    /// # Safety
    /// The selection, earlier on the same stream, writes all its results, and the flags are written.
    pub(super) unsafe fn copy_results(
        &self,
        on: OnStream<'_>,
        from: &Select<f32>,
        flags: Option<PtrMut<u32>>,
        slots: &mut Slots<'_>,
    ) -> Result<usize> {
        let each = from.k as usize;
        let flags = flags.map(|flags| ResultArray::new(flags, 1));
        let arrays = [ResultArray::new(from.out_keys, each), ResultArray::new(from.out_ids, each)];
        let arrays: Vec<ResultArray> = arrays.into_iter().chain(flags).collect();
        let mut set = 0;
        // SAFETY: as the caller promises.
        unsafe {
            on.runtime.copy_results_to_host(on.stream, from.rows as usize, &arrays, &mut |queries, parts| {
                slots.fill(queries.start, FoundRows::new(each, parts[0], parts[1]), self.id_of());
                let flags = parts[2..].iter().flat_map(|part| bytemuck::cast_slice::<u8, u32>(part));
                set += flags.filter(|flag| **flag != 0).count();
            })?;
        }
        Ok(set)
    }
}
