//! `IndexHNSWFlat` of FAISS, as `faiss.write_index` writes it and `faiss.read_index` reads it (1.15.1;
//! faiss/impl/index_write.cpp).
//!
//! [`crate::io::faiss`] has vectors, headers and IndexFlat.
//!
//! ```text
//! if the ids are not 0, 1, 2, ..:  IxM2, header
//! IHNf, header
//! vector of f64: the probability of each level, for additions
//! vector of i32: the number of places for edges below each level
//! vector of i32: the number of levels of each node
//! vector of u64: the first place of each node, and the end of the last
//! vector of i32: all places, level after level of a node, −1 after its edges
//! i32: entry point, top level (−1 of an empty index), efConstruction, efSearch, 1
//! IndexFlat
//! if the ids are not 0, 1, 2, ..:  vector of i64: the ids
//! ```
//! `IxMp` (`IndexIDMap`), which older versions wrote, is read as well.

use std::io::{self, Write};

use super::hierarchy::Hierarchy;
use super::info::{HnswFormat, HnswInfo};
use super::parsed::{Edges, Parsed};
use crate::error::FileDefect;
use crate::io::faiss::{HEAD, Head, check_ids, length, number, vector, vector_of};
use crate::io::fields::{Fields, copied, values};
use crate::{Element, Result};

/// Indexes that have the ids, and another index inside.
const ID_MAPS: [&[u8; 4]; 2] = [b"IxM2", b"IxMp"];
const HNSW_FLAT: &[u8; 4] = b"IHNf";
/// Bytes at the beginning that tell the shape.
pub(super) const FIRST: usize = 2 * HEAD;
/// efConstruction of FAISS: the beam of additions to the file's index.
const EF_CONSTRUCTION: i32 = 40;
/// The least probability of a level in FAISS.
const LEAST_PROBABILITY: f64 = 1e-9;

/// Whether a file begins as an HNSW file of FAISS may.
pub(super) fn is_faiss(bytes: &[u8]) -> bool {
    bytes.starts_with(HNSW_FLAT) || ID_MAPS.iter().any(|&map| bytes.starts_with(map))
}

/// Writes the file. Its ids are at most [`faiss::MOST_ID`](crate::io::faiss::MOST_ID).
pub(super) fn write<T: Element>(hierarchy: &Hierarchy<T>, out: &mut impl Write) -> io::Result<()> {
    let (len, top) = (hierarchy.len(), hierarchy.top());
    let ids = hierarchy.ids().map_err(io::Error::other)?;
    let head = Head { word: *HNSW_FLAT, dim: hierarchy.dim(), len, metric: hierarchy.metric() };
    if ids.is_some() {
        head.of(ID_MAPS[0]).write(out)?;
    }
    head.write(out)?;

    // As FAISS chooses levels, with at least one more than the file has: the level of an added vector is random.
    let mean = 1.0 / (hierarchy.degree() as f64).ln();
    let probability = |level: usize| (-(level as f64) / mean).exp() * (1.0 - (-1.0 / mean).exp());
    let probabilities = (0..).map(|level| (level, probability(level)));
    let probabilities: Vec<f64> =
        probabilities.take_while(|&(level, p)| p >= LEAST_PROBABILITY || level <= top).map(|(_, p)| p).collect();
    let below = |level: usize| match level {
        0 => 0,
        level => hierarchy.places(0) + (level - 1) * hierarchy.places(1),
    };
    let places: Vec<i32> = (0..=probabilities.len()).map(|level| below(level) as i32).collect();
    vector(&probabilities, out)?;
    vector(&places, out)?;
    length(len, out)?;
    (0..len).try_for_each(|row| number(hierarchy.level_of(row) as i32 + 1, out))?;
    length(len + 1, out)?;
    let mut end = 0u64;
    number(end, out)?;
    for row in 0..len {
        end += below(hierarchy.level_of(row) + 1) as u64;
        number(end, out)?;
    }
    length(end as usize, out)?;
    let mut edges: Vec<u32> = Vec::new();
    for row in 0..len {
        edges.clear();
        for level in 0..=hierarchy.level_of(row) {
            hierarchy.edges(row, level, &mut edges);
            // NO_NODE has the bits of −1.
            edges.resize(below(level + 1), crate::knn_graph::NO_NODE);
        }
        out.write_all(bytemuck::cast_slice(&edges))?;
    }
    let entry = hierarchy.entry();
    number(entry.map_or(-1, |entry| entry as i32), out)?;
    number(if entry.is_some() { top as i32 } else { -1 }, out)?;
    number(EF_CONSTRUCTION, out)?;
    number(i32::try_from(hierarchy.beam()).unwrap_or(i32::MAX), out)?;
    number(1i32, out)?;

    head.write_flat(out)?;
    let mut components = Vec::new();
    for row in 0..len {
        components.clear();
        hierarchy.vector(row, &mut components);
        out.write_all(bytemuck::cast_slice(&components))?;
    }
    ids.map_or(Ok(()), |ids| vector(&ids, out))
}

/// The header of the graph, and whether a map with ids is around it.
fn read_heads(fields: &mut Fields<'_>) -> Result<(Head, bool), FileDefect> {
    let first = Head::read(fields)?;
    let is_mapped = ID_MAPS.contains(&&first.word);
    let head = if is_mapped { Head::read(fields)?.within(&first)? } else { first };
    if &head.word != HNSW_FLAT {
        return Err(FileDefect::BadHeader("an index of FAISS that is no IndexHNSWFlat"));
    }
    Ok((head, is_mapped))
}

fn info_of(head: &Head) -> HnswInfo {
    let (dim, metric, vectors) = (head.dim, Some(head.metric), head.len as u64);
    HnswInfo { format: HnswFormat::Faiss, dim, metric, vectors }
}

/// The shape of a file with these first bytes.
pub(super) fn info(first: &[u8]) -> Result<HnswInfo, FileDefect> {
    Ok(info_of(&read_heads(&mut Fields::new(first))?.0))
}

/// Reads and checks a file.
pub(super) fn parse(bytes: &[u8]) -> Result<Parsed, FileDefect> {
    let mut fields = Fields::new(bytes);
    let (head, is_mapped) = read_heads(&mut fields)?;
    let len = head.len;
    let probabilities = fields.size()?;
    fields.values(probabilities, 8)?;
    let count = fields.size()?;
    let below: Vec<i32> = copied(fields.values(count, 4)?)?;
    if below.len() < 2 || below[0] != 0 || !below.is_sorted() {
        return Err(FileDefect::Inconsistent("numbers of places that do not ascend from 0"));
    }
    let levels = vector_of(&mut fields, len, 4)?;
    let ends = vector_of(&mut fields, len.saturating_add(1), 8)?;
    let count = fields.size()?;
    let places = fields.values(count, 4)?;
    fields.take(3 * 4)?;
    let beam: i32 = fields.get()?;
    fields.take(4)?;

    // Each node has level 0. Checked before there is memory for its edges.
    if len.checked_mul(below[1] as usize).is_none_or(|least| least > count) {
        return Err(FileDefect::Inconsistent("fewer places than the nodes have at level 0"));
    }
    let mut edges = Edges::new(len, below[1] as usize)?;
    let mut at = 0usize;
    let mut ends = values::<u64>(ends);
    let mut is_end = |at: usize| ends.next() == Some(at as u64);
    let wrong = || FileDefect::Inconsistent("places of nodes that differ from their levels");
    if !is_end(0) {
        return Err(wrong());
    }
    for level in values::<i32>(levels) {
        let all = usize::try_from(level).ok().filter(|&level| level > 0).and_then(|level| below.get(level));
        let first = 4 * at;
        // Both numbers are at most 2^31.
        at = at.saturating_add(*all.ok_or_else(wrong)? as usize);
        let of_node = places.get(first..).and_then(|rest| rest.get(..4 * below[1] as usize));
        if !is_end(at) || at > count {
            return Err(wrong());
        }
        edges.push(
            values::<i32>(of_node.ok_or_else(wrong)?).take_while(|&other| other >= 0).map(|other| other as u32),
        )?;
    }
    if at != count {
        return Err(wrong());
    }

    let vectors = copied(head.read_flat(&mut fields)?)?;
    let mut ids = None;
    if is_mapped {
        ids =
            Some(copied::<u64>(vector_of(&mut fields, len, 8)?)?).filter(|ids| !ids.iter().copied().eq(0..len as u64));
        check_ids(ids.iter().flatten().copied())?;
    }
    fields.finish()?;
    let (edges, degree) = edges.finish()?;
    let beam = usize::try_from(beam).ok().filter(|&beam| beam > 0);
    Ok(Parsed { info: info_of(&head), vectors, ids, removed: Vec::new(), edges, degree, beam })
}
