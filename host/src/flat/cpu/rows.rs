//! The vectors of a flat index in host memory, with the factors and bounds of their scores.

use crate::flat::backend::FlatBackend;
use crate::parallel::{Loop, ParallelSlice};
use crate::product::cpu::bound::{self, has_offset, largest_norm};
use crate::product::cpu::{BLOCK, DEFAULT_BUDGET, canonical_square};
use crate::simd::Isa;
use crate::{Element, Metric, Result, host_memory};

/// The vectors of a flat index, in host memory.
#[derive(Debug)]
pub(crate) struct FlatCpu<T: Element> {
    pub(super) dim: usize,
    pub(super) metric: Metric,
    pub(super) isa: Isa,
    pub(super) budget: u64,
    pub(super) rows: Vec<T>,
    /// f32(1/‖y‖) for cosine, otherwise empty.
    pub(super) scale: Vec<f32>,
    /// Σy² by the canonical definition, for cosine; otherwise empty.
    pub(super) squares: Vec<f64>,
    /// f32(‖y‖²) for L2, otherwise empty.
    pub(super) offset: Vec<f32>,
    /// [`largest_norm`] of each [`BLOCK`] rows. Replaced and removed rows may leave a value larger than that, which is
    /// still a bound.
    pub(super) largest: Vec<f32>,
}

impl<T: Element> FlatCpu<T> {
    pub(crate) fn new(dim: usize, metric: Metric, budget: Option<u64>) -> Self {
        Self::with_isa(dim, metric, budget, Isa::detect())
    }

    /// As [`new`](Self::new). The processor must have `isa`.
    pub(crate) fn with_isa(dim: usize, metric: Metric, budget: Option<u64>, isa: Isa) -> Self {
        let budget = budget.unwrap_or(DEFAULT_BUDGET);
        Self {
            dim,
            metric,
            isa,
            budget,
            rows: Vec::new(),
            scale: Vec::new(),
            squares: Vec::new(),
            offset: Vec::new(),
            largest: Vec::new(),
        }
    }

    pub(super) fn row(&self, id: u32) -> &[T] {
        let start = id as usize * self.dim;
        &self.rows[start..start + self.dim]
    }

    /// Σy² of each of `rows` by the canonical definition.
    pub(super) fn squares_of(&self, rows: &[T]) -> Result<Vec<f64>> {
        let square = |row| canonical_square(self.isa, row);
        host_memory::collected_in_parallel(rows.par_chunks(self.dim).with_min_len(256).map(square))
    }

    /// Number of factors of `count` rows, if the metric has the factor.
    pub(super) fn factors(&self, has: fn(Metric) -> bool, count: usize) -> usize {
        if has(self.metric) { count } else { 0 }
    }

    /// Sets what depends on the norms of the rows from `first` on, which exist. `squares` are the canonical squares of
    /// these rows.
    pub(super) fn set_norms(&mut self, first: usize, squares: &[f64]) {
        let range = first..first + squares.len();
        if has_offset(self.metric) {
            self.offset[range.clone()].iter_mut().zip(squares).for_each(|(to, &square)| *to = square as f32);
        }
        if self.metric.divides_by_norms() {
            self.scale[range.clone()].iter_mut().zip(squares).for_each(|(to, &square)| *to = bound::scale(square));
            self.squares[range.clone()].copy_from_slice(squares);
        }
        let len = self.len();
        for block in range.start / BLOCK..range.end.div_ceil(BLOCK) {
            let of_block = block * BLOCK..((block + 1) * BLOCK).min(len);
            let part = of_block.start.max(range.start)..of_block.end.min(range.end);
            let norm = largest_norm(self.metric, squares[part.start - first..part.end - first].iter().copied());
            // Other rows of the block may have the largest norm. If it was a replaced row that had it, the bound is
            // larger than needed.
            self.largest[block] = if part == of_block { norm } else { self.largest[block].max(norm) };
        }
    }
}
