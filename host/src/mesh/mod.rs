//! Triangle meshes from OBJ and PLY files, and the vectors that shifted sort makes of them.
//!
//! | extension | read | left out |
//! |---|---|---|
//! | `obj` | `v` and `f` lines, indices from 1 or relative, with or without `/texture/normal` | everything that is neither |
//! | `ply` | `x`, `y`, `z` of `vertex`, `vertex_indices` of `face`; ascii and binary of both byte orders | other properties, other elements |
//!
//! Polygons become fans of triangles. For any bytes of a file, a reader returns a mesh with finite coordinates and valid indices, or an
//! [`Error`]. Its time and memory are proportional to the size of the file.
//!
//! The readers are part of this library because the formats are small, and because tests must show that no file makes a reader panic or
//! reserve memory for a false count in a header.
//!
//! ```
//! use warpann::mesh::{BoxForm, Mesh, MeshFormat, mesh_from_bytes};
//!
//! let mesh = mesh_from_bytes(MeshFormat::Obj, b"v 0 0 0\nv 1 0 0\nv 1 2 3\nf 1 2 3\n")?;
//! assert_eq!(mesh.triangles, [[0, 1, 2]]);
//! assert_eq!(mesh.boxes(BoxForm::MinMax), [0.0, 0.0, 0.0, 1.0, 2.0, 3.0]);
//! assert_eq!(BoxForm::MinMax.points(&[0.5, 1.0, 2.0]), [0.5, 1.0, 2.0, 0.5, 1.0, 2.0]);
//! # Ok::<(), warpann::FileDefect>(())
//! ```

mod fuzz;
mod obj;
mod ply;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::str::FromStr;

use rayon::prelude::*;

#[doc(hidden)]
pub use self::fuzz::read_any_mesh_bytes;
use crate::names::named;
use crate::serialised::deserialised;
use crate::{Error, FileDefect, Result};

/// A format of mesh files; each has an extension, which is its text as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MeshFormat {
    /// The text format OBJ of Wavefront.
    Obj,
    /// The format PLY of Stanford, as text or binary.
    Ply,
}

impl MeshFormat {
    /// All formats, in the order of their names.
    pub const ALL: [MeshFormat; 2] = [Self::Obj, Self::Ply];

    /// The extension, without the dot.
    pub const fn extension(self) -> &'static str {
        match self {
            Self::Obj => "obj",
            Self::Ply => "ply",
        }
    }

    /// The format of `path` by its extension, which is compared without regard to case; `None` if it is not that of a format.
    pub fn of(path: &Path) -> Option<Self> {
        let extension = path.extension()?;
        Self::ALL.into_iter().find(|format| extension.eq_ignore_ascii_case(format.extension()))
    }
}

named!(MeshFormat, extension, "a mesh format");

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

/// A way to make a 6-d vector from the bounding box of a triangle, and one from a point in space, so that the two can be compared (Park
/// 2019, section 2-2).
///
/// The distance of the vectors is not the distance of the point to the triangle. The two are close if the point is far away compared with
/// the size of the box.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum BoxForm {
    /// The report's first way: lowest corner, highest corner; a point twice, (x, y, z, x, y, z).
    #[default]
    MinMax,
    /// The report's second way: lowest corner, lengths of the edges, which have a smaller range; a point is a box without extent,
    /// (x, y, z, 0, 0, 0).
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

    /// The 6-d vectors of points in space (row-major, three components each; one or two components at the end are ignored).
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
    /// The bounding box of every triangle as a 6-d vector, row-major. Lengths that overflow f32 become infinite. O(triangles).
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
    fn push_polygon(&mut self, corners: &[u32]) {
        if let [first, rest @ ..] = corners {
            self.triangles.extend(rest.windows(2).map(|pair| [*first, pair[0], pair[1]]));
        }
    }

    /// Checks that the corners of every triangle are valid indices.
    fn checked(self) -> Result<Mesh, FileDefect> {
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

/// Reads a mesh: `obj` or `ply` by extension. O(file).
///
/// # Errors
/// [`Error::Io`], or [`Error::BadFile`] with the defect.
pub fn read_mesh(path: impl AsRef<Path>) -> Result<Mesh> {
    let path = path.as_ref();
    let bad = |defect| Error::BadFile { path: path.to_owned(), defect };
    let format = MeshFormat::of(path).ok_or_else(|| bad(FileDefect::UnknownExtension { known: "obj, ply" }))?;
    let bytes = crate::io::open(path, crate::io::Open::Auto)?;
    mesh_from_bytes(format, bytes.as_deref().map_or(&[], |bytes| &bytes[..])).map_err(bad)
}

/// Reads a mesh from the contents of a file. O(bytes).
///
/// # Errors
/// The defect of the bytes.
pub fn mesh_from_bytes(format: MeshFormat, bytes: &[u8]) -> Result<Mesh, FileDefect> {
    match format {
        MeshFormat::Obj => obj::read(bytes)?.checked(),
        MeshFormat::Ply => ply::read(bytes)?.checked(),
    }
}

/// The words of a line.
fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty())
}

/// Parses a number; none if `word` is not a number.
fn number<T: FromStr>(word: &[u8]) -> Option<T> {
    std::str::from_utf8(word).ok()?.parse().ok()
}

/// Parses a finite coordinate; none if `word` is not one.
fn coordinate(word: &[u8]) -> Option<f32> {
    number(word).filter(|x: &f32| x.is_finite())
}
