//! Wavefront OBJ: a keyword and its arguments on each line.

use super::triangles::Mesh;
use super::words::{number, words};
use crate::FileDefect;

/// Keywords of lines that do not concern vertices and faces.
const LEFT_OUT: &str = "vt vn vp o g s mg usemtl mtllib usemap maplib l p bevel c_interp d_interp lod shadow_obj trace_obj cstype deg \
                        bmat step curv curv2 surf parm trim hole scrv sp end con ctech stech";

/// Reads vertices and polygons. The caller checks that the corners exist.
pub(super) fn read(bytes: &[u8]) -> Result<Mesh, FileDefect> {
    let mut mesh = Mesh::default();
    let mut corners = Vec::new();
    for (line, text) in (1..).zip(bytes.split(|&byte| byte == b'\n')) {
        let bad = |what| FileDefect::BadLine { line, what };
        let text = text.split(|&byte| byte == b'#').next().unwrap_or_default();
        let mut words = words(text);
        match words.next() {
            None => {}
            Some(b"v") => {
                let mut next = || words.next().and_then(coordinate).ok_or(bad("a vertex has three finite coordinates"));
                mesh.vertices.push([next()?, next()?, next()?]);
            }
            Some(b"f") => {
                corners.clear();
                for word in words {
                    let corner = corner(word, mesh.vertices.len());
                    corners
                        .push(corner.ok_or(bad("a corner is the number of a vertex, from 1, or from -1 backwards"))?);
                }
                if corners.len() < 3 {
                    return Err(bad("a face has at least three corners"));
                }
                mesh.push_polygon(&corners);
            }
            Some(keyword) if LEFT_OUT.split(' ').any(|known| known.as_bytes() == keyword) => {}
            Some(_) => return Err(bad("unknown keyword")),
        }
        if text.trim_ascii_end().ends_with(b"\\") {
            return Err(bad("lines that continue in the next line are not supported"));
        }
    }
    Ok(mesh)
}

/// The index, from 0, of the vertex in `i`, `i/t`, `i//n` or `i/t/n`, if there are `vertices` vertices so far.
fn corner(word: &[u8], vertices: usize) -> Option<u32> {
    let mut parts = word.split(|&byte| byte == b'/');
    let index: i64 = parts.next().and_then(number)?;
    let others = parts.by_ref().take(2).all(|part| part.is_empty() || number::<i64>(part).is_some());
    if !others || parts.next().is_some() {
        return None;
    }
    let from_zero = if index > 0 { index - 1 } else { (vertices as i64).checked_add(index)? };
    if index == 0 { None } else { u32::try_from(from_zero).ok() }
}

/// Parses a finite coordinate; none if `word` is not one.
fn coordinate(word: &[u8]) -> Option<f32> {
    number(word).filter(|x: &f32| x.is_finite())
}
