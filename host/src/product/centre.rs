//! A point near the middle of vectors.

use crate::Element;
use crate::vectors::{VectorSlice, with_components};

/// Number of rows that a centre is estimated from.
pub(crate) const CENTRE_SAMPLE: usize = 4096;

/// A point near the middle of vectors: their mean, or that of a sample. Subtracting it from every vector changes no
/// squared L2 distance, and lowers the norms and thus the error bounds of scores.
#[derive(Default, Clone)]
pub(crate) struct Centre {
    sum: Vec<f64>,
    /// Sum of the weights of the rows.
    weight: f64,
    /// Whether a row of the samples has a component that is no integer.
    fractions: bool,
}

impl Centre {
    /// Adds one row. O(dim).
    pub fn add_row<T: Element>(&mut self, row: &[T], weight: f64) {
        self.sum.resize(row.len(), 0.0);
        self.sum.iter_mut().zip(row).for_each(|(sum, value)| *sum += weight * f64::from(value.to_f32()));
        self.weight += weight;
    }

    /// Adds a sample of the rows to the estimate.
    pub fn add(&mut self, rows: VectorSlice<'_>) {
        if self.weight >= CENTRE_SAMPLE as f64 {
            return;
        }
        let step = rows.len().div_ceil(CENTRE_SAMPLE).max(1);
        for row in (0..rows.len()).step_by(step) {
            with_components!(rows.part(row..row + 1), components: T => {
                self.add_row(components, 1.0);
                // Apart from the sums, which then compile to SIMD instructions. The first fraction ends it: 1,000 × 128
                // f32 take 22 µs, and took 270 in one loop (one core of an EPYC, 2026-11-25).
                let integers = || components.iter().map(|x| T::to_f32(*x)).all(|x| x.trunc() == x);
                self.fractions = self.fractions || !integers();
            });
        }
    }

    /// The mean of the rows by their weights.
    pub fn mean(&self) -> impl Iterator<Item = f64> {
        self.sum.iter().map(|sum| sum / self.weight.max(1.0))
    }

    /// The estimate, with zeros up to `stride`. For integer components it is an integer, so that f16 still holds the
    /// differences exactly.
    pub fn components(&self, stride: usize) -> Vec<f32> {
        self.rounded(!self.fractions, stride)
    }

    /// As [`components`](Self::components), where the caller says whether all components are integers.
    pub fn rounded(&self, integers: bool, stride: usize) -> Vec<f32> {
        let round = |value: f64| if integers { value.round() } else { value };
        let mut centre: Vec<f32> = self.mean().map(round).map(|value| value as f32).collect();
        centre.resize(stride, 0.0);
        // Sums of components near f32's limit may overflow: then there is no centre.
        if centre.iter().all(|value| value.is_finite()) { centre } else { vec![0.0; stride] }
    }
}
