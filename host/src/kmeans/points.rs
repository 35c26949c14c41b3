//! The points of a run.

use crate::Element;
use crate::parallel::{Loop, ParallelSlice};

/// The points of a run, which the worker borrows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Points<'a, T: Element> {
    pub(super) rows: &'a [T],
    pub(super) dim: usize,
    pub(super) weights: Option<&'a [f32]>,
    /// Σx² of each point by the canonical definition.
    pub(super) squares: &'a [f64],
}

impl<T: Element> Points<'_, T> {
    /// The points with numbers in `points`.
    pub(super) fn range(&self, points: std::ops::Range<usize>) -> Self {
        Self {
            rows: &self.rows[points.start * self.dim..points.end * self.dim],
            dim: self.dim,
            weights: self.weights.map(|weights| &weights[points.clone()]),
            squares: &self.squares[points],
        }
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len() / self.dim
    }

    pub(super) fn row(&self, point: usize) -> &[T] {
        &self.rows[point * self.dim..][..self.dim]
    }

    /// The largest |w·x|. O(points · dim), in parallel.
    pub(super) fn greatest(&self) -> f64 {
        // The bits of non-negative floats have the order of the floats, and the maximum of integers runs in SIMD.
        let peak = |row: &[T]| f32::from_bits(row.iter().fold(0, |peak, x| peak.max(x.to_f32().abs().to_bits())));
        let rows = self.rows.par_chunks(self.dim).with_min_len(256).map(peak).enumerate();
        let weight = |point: usize| self.weights.map_or(1.0, |weights| f64::from(weights[point]));
        rows.map(|(point, peak)| f64::from(peak) * weight(point)).reduce(|| 0.0, f64::max)
    }
}
