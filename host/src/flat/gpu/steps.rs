//! The search of one block for one tile of queries that are in device memory. Searches from host memory (`exact`) and
//! from device memory (`planned`) have these steps in common:
//!
//! ```text
//! queries ──[filter, or all distances]──► lists of distances ──[mask]──[rescan]──select──► rows
//! ```
//!
//! `mask` leaves out the rows that take no part. `rescan` replaces the lists that overflowed by the best of all rows
//! that take part.

use cuda_std::Ptr;
use warpann_kernels::flat::rescan::{Rescan, ScannedRows};

use super::block::Block;
use super::passes::{DirectPlan, FilterPlan};
use crate::Result;
use crate::device::limits::Limits;
use crate::device::queue::OnStream;
use crate::device::scratch::Scratch;
use crate::product::gpu::{SetLayout, VectorSet};
use crate::select::gpu::{Select, select};

/// The scratch of a tile, by the way in which its queries are searched.
pub(super) enum Steps {
    Filter(Box<FilterPlan>),
    Direct(Box<DirectPlan>),
}

impl Steps {
    /// For `queries` queries and `k` results of each, at most as many as the block has rows.
    pub fn new(block: &Block, queries: usize, k: u32, limits: &Limits) -> Steps {
        let (shape, rows) = (block.shape, block.base.count);
        if block.uses_filter(queries, k) {
            Steps::Filter(Box::new(FilterPlan::new(block, queries, k, limits)))
        } else {
            Steps::Direct(Box::new(DirectPlan::new(shape, queries, rows, k, limits)))
        }
    }

    pub fn bytes(&self) -> usize {
        match self {
            Steps::Filter(plan) => plan.bytes,
            Steps::Direct(plan) => plan.bytes,
        }
    }

    /// The places of the queries.
    pub fn queries(&self) -> SetLayout {
        match self {
            Steps::Filter(plan) => plan.queries,
            Steps::Direct(plan) => plan.queries,
        }
    }

    pub fn filter(&self) -> Option<&FilterPlan> {
        match self {
            Steps::Filter(plan) => Some(plan),
            Steps::Direct(_) => None,
        }
    }
}

impl Block {
    /// Enqueues the search for the `k` best rows of each query in `set`. Returns the selection that finds them. Without
    /// `completes`, results of queries whose lists overflowed are not final, and [`Block::complete`] completes them.
    ///
    /// # Safety
    /// The scratch is that of the steps, which were planned for at least this number of queries; the queries and the
    /// base are in place, and the base is prepared.
    pub(super) unsafe fn find(
        &self,
        on: OnStream<'_>,
        steps: &Steps,
        scratch: Scratch,
        set: VectorSet,
        k: u32,
        completes: bool,
    ) -> Result<Select<f32>> {
        // SAFETY: as the caller promises.
        unsafe {
            match steps {
                Steps::Direct(plan) => {
                    let all = self.all_distances(on, plan, scratch, set, k)?;
                    self.leave_out(on, &all, scratch.at(plan.distances))?;
                    select(on.runtime, on.stream, &all, &plan.selection, scratch)?;
                    Ok(all)
                }
                Steps::Filter(plan) => {
                    self.prepare_stored(on.runtime, on.stream, set)?;
                    let lists = self.candidates(on, plan, scratch, set, k)?;
                    self.leave_out(on, &lists, plan.lists(scratch).0)?;
                    if completes {
                        self.complete(on, plan, scratch, set, &lists)?;
                    } else {
                        select(on.runtime, on.stream, &lists, &plan.of_lists, scratch)?;
                    }
                    Ok(lists)
                }
            }
        }
    }

    /// The rows of the block that `queries` are compared with.
    pub(super) fn scanned(&self, queries: VectorSet) -> ScannedRows {
        ScannedRows {
            queries: queries.stored(self.shape),
            base: self.base.stored(self.shape),
            stride: self.shape.stride() as u32,
            row_count: self.base.count,
            metric: self.shape.metric.of_kernel(),
            query_squares: queries.squares().map(Ptr::from),
            base_squares: self.base.squares().map_or_else(Ptr::empty, Ptr::from),
            bits: self.mask.map(|mask| mask.bits),
        }
    }

    /// Replaces the lists that overflowed by lists of the best rows, and selects from all lists.
    ///
    /// # Safety
    /// As [`Block::find`], of whose filter `lists` is the selection.
    pub(super) unsafe fn complete(
        &self,
        on: OnStream<'_>,
        plan: &FilterPlan,
        scratch: Scratch,
        set: VectorSet,
        lists: &Select<f32>,
    ) -> Result<()> {
        let (values, rows, counts) = plan.lists(scratch);
        let (capacity, k) = (lists.columns, lists.k);
        let launch = Rescan {
            scanned: self.scanned(set),
            overflowed: scratch.at(plan.overflowed).into(),
            k,
            pieces: Rescan::pieces(self.base.count, k, capacity),
            list_stride: u64::from(capacity),
            values,
            rows,
            counts,
        };
        let config = launch.config(on.runtime.limits().multiprocessors);
        // SAFETY: as the caller promises.
        unsafe {
            on.runtime.launch(on.stream, Rescan::kernel(self.shape.row_key()), config, launch)?;
            select(on.runtime, on.stream, lists, &plan.of_lists, scratch)
        }
    }
}
