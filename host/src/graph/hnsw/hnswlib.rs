//! `HierarchicalNSW` of hnswlib, as its method `saveIndex` writes it and `loadIndex` reads it (0.8.0;
//! hnswlib/hnswalg.h).
//!
//! All numbers are little-endian, of a machine with 64 bits:
//!
//! | bytes | |
//! |---|---|
//! | 0..8 | u64: 0 |
//! | 8..24 | u64: capacity, number of nodes |
//! | 24..48 | u64: bytes of a node, place of its label, place of its vector |
//! | 48..56 | i32: top level; u32: entry point; both −1 if there is no node |
//! | 56..80 | u64: places for edges above level 0, places at level 0, M: edges of a node that is added |
//! | 80..88 | f64: 1 / ln M |
//! | 88..96 | u64: efConstruction |
//!
//! Then each node: u16, the number of its edges; a byte whose lowest bit says that it is deleted; a byte 0; the places,
//! u32 each; the vector; the label, u64. Then for each node u32, the number of bytes of its levels above 0, and these:
//! for each level u32, the number of edges, and the places.

use std::io::{self, Write};

use super::hierarchy::Hierarchy;
use super::info::{HnswFormat, HnswInfo};
use super::parsed::{Edges, Parsed};
use crate::Element;
use crate::error::FileDefect;
use crate::io::fields::{Fields, dimension, room, values};

/// Bytes of the header.
pub(super) const HEADER: usize = 96;
/// efConstruction of hnswlib: the beam of additions to the file's index.
const EF_CONSTRUCTION: u64 = 200;

/// Whether a file begins as one of hnswlib does. No other known format begins with zeros.
pub(super) fn is_hnswlib(bytes: &[u8]) -> bool {
    bytes.starts_with(&[0; 8])
}

/// Writes the file, without room for vectors that are added: hnswlib takes a capacity when it loads it.
pub(super) fn write<T: Element>(hierarchy: &Hierarchy<T>, out: &mut impl Write) -> io::Result<()> {
    let (len, above) = (hierarchy.len(), hierarchy.places(1));
    let layout = Layout { places: hierarchy.places(0), dim: hierarchy.dim() };
    let sizes = [0, len, len, layout.bytes(), layout.label(), layout.vector()].map(|size| size as u64);
    out.write_all(bytemuck::bytes_of(&sizes))?;
    let entry = hierarchy.entry();
    let top = if entry.is_some() { hierarchy.top() as u32 } else { u32::MAX };
    out.write_all(bytemuck::bytes_of(&[top, entry.unwrap_or(u32::MAX)]))?;
    // hnswlib gives an added node M edges at level 0, so M must not be the number of places above.
    let degree = hierarchy.degree();
    out.write_all(bytemuck::bytes_of(&[above, layout.places, degree].map(|places| places as u64)))?;
    out.write_all(bytemuck::bytes_of(&(1.0 / (degree as f64).ln())))?;
    out.write_all(bytemuck::bytes_of(&EF_CONSTRUCTION))?;

    let (mut edges, mut components) = (Vec::new(), Vec::new());
    for row in 0..len {
        level(hierarchy, row, 0, &mut edges, out)?;
        components.clear();
        hierarchy.vector(row, &mut components);
        out.write_all(bytemuck::cast_slice(&components))?;
        out.write_all(&hierarchy.id(row).to_le_bytes())?;
    }
    for row in 0..len {
        let levels = hierarchy.level_of(row);
        out.write_all(&((levels * (above + 1) * 4) as u32).to_le_bytes())?;
        (1..=levels).try_for_each(|above| level(hierarchy, row, above, &mut edges, out))?;
    }
    Ok(())
}

/// Writes the edges of a row at a level: their number and the places.
fn level<T: Element>(
    hierarchy: &Hierarchy<T>,
    row: usize,
    level: usize,
    edges: &mut Vec<u32>,
    out: &mut impl Write,
) -> io::Result<()> {
    edges.clear();
    edges.push(0);
    hierarchy.edges(row, level, edges);
    edges[0] = edges.len() as u32 - 1;
    edges.resize(1 + hierarchy.places(level), 0);
    out.write_all(bytemuck::cast_slice(edges))
}

/// The bytes of a node.
#[derive(PartialEq)]
struct Layout {
    places: usize,
    dim: usize,
}

impl Layout {
    fn vector(&self) -> usize {
        4 + 4 * self.places
    }

    fn label(&self) -> usize {
        self.vector() + 4 * self.dim
    }

    fn bytes(&self) -> usize {
        self.label() + 8
    }
}

/// The header of a file.
struct Header {
    len: usize,
    layout: Layout,
    /// Places for edges above level 0.
    above: usize,
}

impl Header {
    fn read(fields: &mut Fields<'_>) -> Result<Self, FileDefect> {
        let sizes: [u64; 6] = fields.get()?;
        let [_, _, len, node, label, vector] = sizes;
        fields.take(2 * 4)?;
        let (above, places) = (fields.size()?, fields.size()?);
        fields.take(3 * 8)?;
        let bytes = label.checked_sub(vector).ok_or(FileDefect::BadHeader("a vector behind its label"))?;
        if !bytes.is_multiple_of(4) {
            return Err(FileDefect::BadHeader("vectors that are not of f32"));
        }
        let layout = Layout { places, dim: dimension((bytes / 4).try_into().unwrap_or(i64::MAX))? };
        // Places have 16 bits for their number, so these products are far below the address space.
        let limit = usize::from(u16::MAX);
        let is_right = places <= limit
            && above <= limit
            && [node, label, vector] == [layout.bytes(), layout.label(), layout.vector()].map(|size| size as u64);
        if !is_right {
            return Err(FileDefect::BadHeader("sizes of hnswlib that contradict each other"));
        }
        let len = usize::try_from(len).map_err(|_| FileDefect::TooLarge { rows: len, dim: bytes / 4 })?;
        Ok(Header { len, layout, above })
    }

    fn info(&self) -> HnswInfo {
        HnswInfo { format: HnswFormat::Hnswlib, dim: self.layout.dim, metric: None, vectors: self.len as u64 }
    }
}

/// The shape of a file with these first bytes.
pub(super) fn info(first: &[u8]) -> Result<HnswInfo, FileDefect> {
    Ok(Header::read(&mut Fields::new(first))?.info())
}

/// Reads and checks a file.
pub(super) fn parse(bytes: &[u8]) -> Result<Parsed, FileDefect> {
    let mut fields = Fields::new(bytes);
    let header = Header::read(&mut fields)?;
    let Header { len, ref layout, above } = header;
    let nodes = fields.values(len, layout.bytes())?;
    let mut edges = Edges::new(len, layout.places)?;
    let (mut vectors, mut ids, mut removed) = (room(len, layout.dim)?, room(len, 1)?, Vec::new());
    for node in nodes.chunks_exact(layout.bytes()) {
        let count = usize::from(u16::from_le_bytes([node[0], node[1]]));
        if count > layout.places {
            return Err(FileDefect::Inconsistent("more edges of a node than places"));
        }
        edges.push(values::<u32>(&node[4..][..4 * count]))?;
        vectors.extend(values::<f32>(&node[layout.vector()..layout.label()]));
        let id: u64 = bytemuck::pod_read_unaligned(&node[layout.label()..]);
        ids.push(id);
        if node[2] & 1 != 0 {
            removed.push(id);
        }
    }
    for _ in 0..len {
        let bytes = fields.get::<u32>()? as usize;
        if !bytes.is_multiple_of(4 * (above + 1)) {
            return Err(FileDefect::Inconsistent("levels of a node that are not whole"));
        }
        fields.take(bytes)?;
    }
    fields.finish()?;
    let ids = Some(ids).filter(|ids: &Vec<u64>| !ids.iter().copied().eq(0..len as u64));
    let (edges, degree) = edges.finish()?;
    Ok(Parsed { info: header.info(), vectors, ids, removed, edges, degree, beam: None })
}
