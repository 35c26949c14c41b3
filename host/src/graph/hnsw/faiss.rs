//! `IndexHNSWFlat` of FAISS, as `faiss.write_index` writes it and `faiss.read_index` reads it (1.15.1;
//! faiss/impl/index_write.cpp).
//!
//! All numbers are little-endian. A vector is a u64, its length, and its values.
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
//! IxF2 or IxFI, header
//! vector of f32: the components
//! if the ids are not 0, 1, 2, ..:  vector of i64: the ids
//!
//! header: i32 dimension, i64 number of vectors, 2 · i64 2^20, u8 1 (trained), i32 metric: 0 inner product, 1 L2
//! ```
//! `IxMp` (`IndexIDMap`) and `IxFl`, which older versions wrote, are read as well.

use std::io::{self, Write};

use super::hierarchy::Hierarchy;
use super::info::{HnswFormat, HnswInfo, stored_metric};
use super::parsed::{Edges, Fields, Parsed, copied, dimension, values};
use crate::error::FileDefect;
use crate::{Element, Error, Metric, Result};

/// Indexes that have the ids, and another index inside.
const ID_MAPS: [&[u8; 4]; 2] = [b"IxM2", b"IxMp"];
const HNSW_FLAT: &[u8; 4] = b"IHNf";
/// Bytes of a word of four letters and a header.
const HEAD: usize = 4 + 4 + 3 * 8 + 1 + 4;
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

/// The largest id of FAISS.
const MOST_ID: u64 = i64::MAX as u64;

/// Checks that FAISS can number the vectors.
///
/// # Errors
/// [`Error::OutOfRange`].
pub(super) fn check_ids<T: Element>(hierarchy: &Hierarchy<T>) -> Result<()> {
    let greatest = hierarchy.len().checked_sub(1).map_or(0, |last| hierarchy.id(last));
    if greatest > MOST_ID {
        return Err(Error::OutOfRange { what: "id", value: greatest, least: 0, most: MOST_ID });
    }
    Ok(())
}

/// Writes the file. Its ids have been [checked](check_ids).
pub(super) fn write<T: Element>(hierarchy: &Hierarchy<T>, out: &mut impl Write) -> io::Result<()> {
    let (len, top) = (hierarchy.len(), hierarchy.top());
    let ids = hierarchy.ids().map_err(io::Error::other)?;
    if ids.is_some() {
        head(ID_MAPS[0], hierarchy, out)?;
    }
    head(HNSW_FLAT, hierarchy, out)?;

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

    head(if metric_of(hierarchy) == 1 { b"IxF2" } else { b"IxFI" }, hierarchy, out)?;
    length(len * hierarchy.dim(), out)?;
    let mut components = Vec::new();
    for row in 0..len {
        components.clear();
        hierarchy.vector(row, &mut components);
        out.write_all(bytemuck::cast_slice(&components))?;
    }
    ids.map_or(Ok(()), |ids| vector(&ids, out))
}

/// The number of the metric.
fn metric_of<T: Element>(hierarchy: &Hierarchy<T>) -> i32 {
    match stored_metric(hierarchy.metric()) {
        Metric::L2 => 1,
        Metric::InnerProduct | Metric::Cosine => 0,
    }
}

fn number<V: bytemuck::NoUninit>(value: V, out: &mut impl Write) -> io::Result<()> {
    out.write_all(bytemuck::bytes_of(&value))
}

fn length(len: usize, out: &mut impl Write) -> io::Result<()> {
    number(len as u64, out)
}

fn vector<V: bytemuck::NoUninit>(values: &[V], out: &mut impl Write) -> io::Result<()> {
    length(values.len(), out)?;
    out.write_all(bytemuck::cast_slice(values))
}

fn head<T: Element>(word: &[u8; 4], hierarchy: &Hierarchy<T>, out: &mut impl Write) -> io::Result<()> {
    out.write_all(word)?;
    number(hierarchy.dim() as i32, out)?;
    length(hierarchy.len(), out)?;
    number([1u64 << 20; 2], out)?;
    number(1u8, out)?;
    number(metric_of(hierarchy), out)
}

/// A header that was read.
struct Head {
    word: [u8; 4],
    dim: usize,
    len: usize,
    metric: Metric,
}

impl Head {
    fn read(fields: &mut Fields<'_>) -> Result<Self, FileDefect> {
        let word = fields.get()?;
        let dim = dimension(fields.get::<i32>()?.into())?;
        let len = fields.size()?;
        fields.take(16 + 1)?;
        let metric = match fields.get::<i32>()? {
            0 => Metric::InnerProduct,
            1 => Metric::L2,
            _ => return Err(FileDefect::BadHeader("a metric of FAISS that is neither L2 nor inner product")),
        };
        Ok(Head { word, dim, len, metric })
    }

    /// The header of the graph, and whether a map with ids is around it.
    fn of_graph(fields: &mut Fields<'_>) -> Result<(Self, bool), FileDefect> {
        let first = Head::read(fields)?;
        let is_mapped = ID_MAPS.contains(&&first.word);
        let head = if is_mapped { Head::read(fields)?.within(&first)? } else { first };
        if &head.word != HNSW_FLAT {
            return Err(FileDefect::BadHeader("an index of FAISS that is no IndexHNSWFlat"));
        }
        Ok((head, is_mapped))
    }

    /// This header, if it has the shape of that of the index around it.
    fn within(self, outer: &Head) -> Result<Self, FileDefect> {
        if (self.dim, self.len, self.metric) != (outer.dim, outer.len, outer.metric) {
            return Err(FileDefect::Inconsistent("headers of an index and of the one inside differ"));
        }
        Ok(self)
    }

    fn info(&self) -> HnswInfo {
        let (dim, metric, vectors) = (self.dim, Some(self.metric), self.len as u64);
        HnswInfo { format: HnswFormat::Faiss, dim, metric, vectors }
    }
}

/// The shape of a file with these first bytes.
pub(super) fn info(first: &[u8]) -> Result<HnswInfo, FileDefect> {
    Ok(Head::of_graph(&mut Fields::new(first))?.0.info())
}

/// Reads a vector of `len` values of so many bytes.
fn vector_of<'a>(fields: &mut Fields<'a>, len: usize, bytes: usize) -> Result<&'a [u8], FileDefect> {
    if fields.size()? != len {
        return Err(FileDefect::Inconsistent("a length that differs from the number of vectors"));
    }
    fields.values(len, bytes)
}

/// Reads and checks a file.
pub(super) fn parse(bytes: &[u8]) -> Result<Parsed, FileDefect> {
    let mut fields = Fields::new(bytes);
    let (head, is_mapped) = Head::of_graph(&mut fields)?;
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

    let storage = Head::read(&mut fields)?.within(&head)?;
    let word = match head.metric {
        Metric::L2 => b"IxF2",
        Metric::InnerProduct | Metric::Cosine => b"IxFI",
    };
    if &storage.word != word && &storage.word != b"IxFl" {
        return Err(FileDefect::BadHeader("vectors of FAISS that are no IndexFlat"));
    }
    let vectors = copied(vector_of(&mut fields, len.saturating_mul(head.dim), 4)?)?;
    let mut ids = None;
    if is_mapped {
        ids =
            Some(copied::<u64>(vector_of(&mut fields, len, 8)?)?).filter(|ids| !ids.iter().copied().eq(0..len as u64));
        if ids.iter().flatten().any(|&id| id > MOST_ID) {
            return Err(FileDefect::Inconsistent("a negative id"));
        }
    }
    fields.finish()?;
    let (edges, degree) = edges.finish()?;
    let beam = usize::try_from(beam).ok().filter(|&beam| beam > 0);
    Ok(Parsed { info: head.info(), vectors, ids, removed: Vec::new(), edges, degree, beam })
}
