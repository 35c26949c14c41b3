//! The entry points of fuzzers: every reader of meshes on any bytes, and the properties of all accepted meshes.

use super::{MeshFormat, mesh_from_bytes};

/// Reads `bytes` as every format in turn and returns how many readings gave a mesh. For fuzzers and tests.
///
/// # Panics
/// If a reader panics, or accepts bytes with a shape that contradicts what it returns.
pub fn read_any_mesh_bytes(bytes: &[u8]) -> usize {
    let mut accepted = 0;
    for format in MeshFormat::ALL {
        if let Ok(mesh) = mesh_from_bytes(format, bytes) {
            accepted += 1;
            assert!(mesh.points().iter().all(|x| x.is_finite()), "{format:?}");
            let corners = mesh.triangles.as_flattened();
            assert!(corners.iter().all(|&corner| (corner as usize) < mesh.vertices.len()), "{format:?}");
            // A triangle beyond a polygon's first takes one more corner, of a byte at least.
            assert!(mesh.triangles.len() <= bytes.len(), "{format:?}");
        }
    }
    accepted
}
