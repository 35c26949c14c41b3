//! Triangle meshes from OBJ and PLY files, and the vectors that shifted sort makes of them.
//!
//! | extension | read | left out |
//! |---|---|---|
//! | `obj` | `v` and `f` lines, indices from 1 or relative, with or without `/texture/normal` | everything that is neither |
//! | `ply` | `x`, `y`, `z` of `vertex`, `vertex_indices` of `face`; ascii and binary of both byte orders | other properties, other elements |
//!
//! Polygons become fans of triangles. For any bytes of a file, a reader returns a mesh with finite coordinates and
//! valid indices, or an [`Error`]. Its time and memory are proportional to the size of the file.
//!
//! The readers are part of this library because the formats are small, and because tests must show that no file makes a
//! reader panic or reserve memory for a false count in a header.
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
mod triangles;
mod words;

use std::path::Path;

#[doc(hidden)]
pub use self::fuzz::read_any_mesh_bytes;
pub use self::triangles::{BoxForm, Mesh};
use crate::names::named;
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

    /// The format of `path` by its extension, which is compared without regard to case; `None` if it is not that of a
    /// format.
    pub fn of(path: &Path) -> Option<Self> {
        let extension = path.extension()?;
        Self::ALL.into_iter().find(|format| extension.eq_ignore_ascii_case(format.extension()))
    }
}

named!(MeshFormat, extension, "a mesh format");

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
