//! The points of a run, and what one pass over them finds.

use crate::host_memory;
use crate::parallel::{Loop, ParallelSlice};
use crate::product::cpu::canonical_square;
use crate::simd::Isa;
use crate::validate::check_vectors;
use crate::{Element, Input, Result};

/// Number of points of a piece of the pass.
const PIECE: usize = 256;

/// The points of a run, which the worker borrows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Points<'a, T: Element> {
    pub(super) rows: &'a [T],
    pub(super) dim: usize,
    pub(super) weights: Option<&'a [f32]>,
    /// Σx² of each point by the canonical definition.
    pub(super) squares: &'a [f64],
    /// The greatest magnitudes of all points of the run.
    pub(super) greatest: Greatest,
}

impl<T: Element> Points<'_, T> {
    /// The weight of a point; 1 without weights.
    pub(super) fn weight(&self, point: usize) -> f64 {
        self.weights.map_or(1.0, |weights| f64::from(weights[point]))
    }
}

/// The greatest magnitudes of points.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Greatest {
    /// The largest magnitude of a component; NaN if one is NaN, else infinite if one is.
    pub component: f32,
    /// The largest |w·x|; without weights that of |x|.
    pub weighted: f64,
}

/// Measures of the points of a run, from one pass over them.
#[derive(Debug, PartialEq)]
pub(super) struct Measures {
    squares: Vec<f64>,
    greatest: Greatest,
}

impl Measures {
    /// Reads all points once, in parallel, and checks them. O(points · dim).
    ///
    /// # Errors
    /// [`Error::NotFinite`](crate::Error::NotFinite), [`Error::OutOfHostMemory`](crate::Error::OutOfHostMemory).
    pub fn of<T: Element>(rows: &[T], dim: usize, weights: Option<&[f32]>) -> Result<Measures> {
        let isa = Isa::detect();
        let mut squares = host_memory::zeroed(rows.len() / dim)?;
        let weight = |point: usize| weights.map_or(1.0, |weights| f64::from(weights[point]));
        let pieces = squares.par_chunks_mut(PIECE).zip(rows.par_chunks(PIECE * dim)).enumerate();
        let of_piece = |(piece, (squares, rows)): (usize, (&mut [f64], &[T]))| {
            let mut greatest = Greatest::default();
            for (at, (square, row)) in squares.iter_mut().zip(rows.chunks_exact(dim)).enumerate() {
                *square = canonical_square(isa, row);
                // The bits of non-negative floats have the order of the floats, and the maximum of integers runs in
                // SIMD. Those of infinity and NaN are the largest.
                let component = f32::from_bits(row.iter().fold(0, |most, x| most.max(x.to_f32().abs().to_bits())));
                let weighted = f64::from(component) * weight(piece * PIECE + at);
                greatest = greatest.or(Greatest { component, weighted });
            }
            greatest
        };
        let greatest = pieces.map(of_piece).reduce(Greatest::default, Greatest::or);
        if !greatest.component.is_finite() {
            check_vectors(rows, dim, Input::Training)?;
        }
        Ok(Measures { squares, greatest })
    }

    /// The points that were read: the same arguments as in [`of`](Self::of).
    pub fn points<'a, T: Element>(&'a self, rows: &'a [T], dim: usize, weights: Option<&'a [f32]>) -> Points<'a, T> {
        Points { rows, dim, weights, squares: &self.squares, greatest: self.greatest }
    }
}

impl Greatest {
    /// The greatest of both. NaN counts as above all numbers for components.
    fn or(self, other: Greatest) -> Greatest {
        Greatest {
            component: f32::from_bits(self.component.to_bits().max(other.component.to_bits())),
            weighted: self.weighted.max(other.weighted),
        }
    }
}

impl<T: Element> Points<'_, T> {
    /// The points with numbers in `points`.
    pub(super) fn range(&self, points: std::ops::Range<usize>) -> Self {
        Self {
            rows: &self.rows[points.start * self.dim..points.end * self.dim],
            weights: self.weights.map(|weights| &weights[points.clone()]),
            squares: &self.squares[points],
            ..*self
        }
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len() / self.dim
    }

    pub(super) fn row(&self, point: usize) -> &[T] {
        &self.rows[point * self.dim..][..self.dim]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    #[test]
    fn one_pass_finds_squares_and_the_greatest_magnitudes() {
        let mut rows: Vec<f32> = (0..2 * 1000).map(|at| (at % 7) as f32 - 3.0).collect();
        (rows[1400], rows[601]) = (-9.0, 6.5);
        let weights: Vec<f32> = (0..1000).map(|point| if point == 300 { 4.0 } else { 0.5 }).collect();
        for (weights, weighted) in [(None, 9.0), (Some(&weights[..]), 26.0)] {
            let found = Measures::of(&rows, 2, weights).unwrap();
            assert_eq!(found.greatest, Greatest { component: 9.0, weighted });
            let squares: Vec<f64> = rows.chunks(2).map(|x| f64::from(x[0] * x[0] + x[1] * x[1])).collect();
            assert_eq!(found.squares, squares);
        }
        assert_eq!(Measures::of::<f32>(&[], 2, None).unwrap().greatest, Greatest::default());
    }

    #[test]
    fn a_value_that_is_not_finite_is_named() {
        for value in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut rows = vec![f32::MAX; 2 * 1000];
            (rows[1401], rows[1601]) = (value, f32::NAN);
            let weights = vec![0.0; 1000];
            for weights in [None, Some(&weights[..])] {
                let found = Measures::of(&rows, 2, weights);
                let named = Error::NotFinite { input: Input::Training, row: 700, column: 1, value };
                assert_eq!(format!("{:?}", found.unwrap_err()), format!("{named:?}"));
            }
        }
    }
}
