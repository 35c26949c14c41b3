//! The grid of cells that points are sorted on.

use crate::parallel::{Loop, ParallelSlice};
use warpann_kernels::shifted::morton::{self, Code, MAX_DIM, coordinate_bits};

/// A grid of cubes over the bounding box of the points, and the copies of it. `warpann_kernels::shifted::morton`
/// defines the codes.
///
/// All components have one scale: the longest side of the box spans the whole range, so that cells are cubes and close
/// codes mean close points. A component that is constant or short spans one cell or few. If all are constant, every
/// point has the same cell.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Grid {
    /// Dimension of the points.
    pub dim: u32,
    /// Number of bits of a coordinate.
    pub bits: u32,
    /// Number of shifted copies.
    pub copies: u32,
    /// Lowest corner of the box; zero from `dim` on.
    pub mins: [f64; MAX_DIM],
    /// Number of cells in a unit of length.
    pub scale: f64,
}

impl Grid {
    /// The grid of finite `rows`, at least one; 1 ≤ `dim` ≤ [`MAX_DIM`], 1 ≤ `copies`. O(len · dim).
    pub fn of(rows: &[f32], dim: usize, copies: usize) -> Grid {
        let empty = || ([f32::INFINITY; MAX_DIM], [f32::NEG_INFINITY; MAX_DIM]);
        let joined = |(mut min, mut max): ([f32; MAX_DIM], [f32; MAX_DIM]), low: &[f32], high: &[f32]| {
            for (j, (&low, &high)) in low.iter().zip(high).enumerate() {
                min[j] = min[j].min(low);
                max[j] = max[j].max(high);
            }
            (min, max)
        };
        let (min, max) = rows
            .par_chunks(dim << 12)
            .map(|rows| rows.chunks_exact(dim).fold(empty(), |bounds, row| joined(bounds, row, row)))
            .reduce(empty, |bounds, (min, max)| joined(bounds, &min, &max));
        let bits = coordinate_bits(dim as u32);
        let mut mins = [0.0; MAX_DIM];
        let mut extent = 0.0f64;
        for j in 0..dim {
            mins[j] = f64::from(min[j]);
            extent = extent.max(f64::from(max[j]) - mins[j]);
        }
        let scale = if extent > 0.0 { f64::from(1u32 << (bits - 1)) / extent } else { 0.0 };
        Grid { dim: dim as u32, bits, copies: copies as u32, mins, scale }
    }

    /// The code of `row` in copy `copy`.
    pub fn code<W: Code>(&self, row: &[f32], copy: u32) -> W {
        let offset = morton::offset(self.bits, self.copies, copy);
        morton::code(|j| row[j], |j| self.mins[j], self.scale, self.dim, self.bits, offset)
    }
}
