//! A mesh of triangles, and the vectors that shifted sort makes of it.

use rayon::prelude::*;

use crate::names::named;
use crate::serialised::deserialised;
use crate::{FileDefect, Result};

/// A mesh of triangles in space.
#[derive(Debug, Clone, PartialEq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Mesh {
    /// Coordinates of the vertices, all finite.
    pub vertices: Vec<[f32; 3]>,
    /// The three vertices of each triangle, as valid indices into `vertices`.
    pub triangles: Vec<[u32; 3]>,
}

deserialised!(Mesh { vertices: Vec<[f32; 3]>, triangles: Vec<[u32; 3]> } => |vertices, triangles| {
    if !vertices.as_flattened().iter().all(|coordinate| coordinate.is_finite()) {
        return Err("a coordinate is not finite".to_owned());
    }
    Mesh { vertices, triangles }.checked().map_err(|defect| defect.to_string())
});

/// A way to make a 6-d vector from the bounding box of a triangle, and one from a point in space, so that the two can
/// be compared (Park 2019, section 2-2).
///
/// The distance of the vectors is not the distance of the point to the triangle. The two are close if the point is far
/// away compared with the size of the box.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum BoxForm {
    /// The report's first way: lowest corner, highest corner; a point twice, (x, y, z, x, y, z).
    #[default]
    MinMax,
    /// The report's second way: lowest corner, lengths of the edges, which have a smaller range; a point is a box
    /// without extent, (x, y, z, 0, 0, 0).
    MinExtent,
}

impl BoxForm {
    /// Both forms, in the order of their names.
    pub const ALL: [BoxForm; 2] = [Self::MinMax, Self::MinExtent];

    /// Name on the command line: `min-max`, `min-extent`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::MinMax => "min-max",
            Self::MinExtent => "min-extent",
        }
    }

    /// The 6-d vectors of points in space (row-major, three components each; one or two components at the end are
    /// ignored).
    pub fn points(self, points: &[f32]) -> Vec<f32> {
        let vector = |point: &[f32]| match self {
            Self::MinMax => [point[0], point[1], point[2], point[0], point[1], point[2]],
            Self::MinExtent => [point[0], point[1], point[2], 0.0, 0.0, 0.0],
        };
        points.par_chunks_exact(3).flat_map_iter(vector).collect()
    }
}

named!(BoxForm, name, "a form of boxes");

impl Mesh {
    /// The bounding box of every triangle as a 6-d vector, row-major. Lengths that overflow f32 become infinite.
    /// O(triangles).
    pub fn boxes(&self, form: BoxForm) -> Vec<f32> {
        let vector = |corners: &[u32; 3]| {
            let [a, b, c] = corners.map(|corner| self.vertices[corner as usize]);
            let low: [f32; 3] = std::array::from_fn(|j| a[j].min(b[j]).min(c[j]));
            let high: [f32; 3] = std::array::from_fn(|j| a[j].max(b[j]).max(c[j]));
            let other = match form {
                BoxForm::MinMax => high,
                BoxForm::MinExtent => std::array::from_fn(|j| high[j] - low[j]),
            };
            [low[0], low[1], low[2], other[0], other[1], other[2]]
        };
        self.triangles.par_iter().flat_map_iter(vector).collect()
    }

    /// The vertices as 3-d vectors, row-major.
    pub fn points(&self) -> &[f32] {
        self.vertices.as_flattened()
    }

    /// Appends the fan of triangles of a polygon.
    pub(super) fn push_polygon(&mut self, corners: &[u32]) {
        if let [first, rest @ ..] = corners {
            self.triangles.extend(rest.windows(2).map(|pair| [*first, pair[0], pair[1]]));
        }
    }

    /// Checks that the corners of every triangle are valid indices.
    pub(super) fn checked(self) -> Result<Mesh, FileDefect> {
        let count = self.vertices.len();
        let exists = |corner: &u32| (*corner as usize) < count;
        match self.triangles.iter().position(|corners| !corners.iter().all(exists)) {
            Some(index) => {
                let what = "a corner that is no vertex";
                Err(FileDefect::BadElement { element: "triangle", index: index as u64, what })
            }
            None => Ok(self),
        }
    }
}
