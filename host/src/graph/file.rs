//! Files of a [`GraphIndex`]: a header, the file of the flat index, and the graph.
//!
//! All numbers are little-endian. The header has [`HEADER`] bytes:
//!
//! | bytes | |
//! |---|---|
//! | 0..8 | `wpn\r\n\x1a\nG` |
//! | 8..12 | [`VERSION`] |
//! | 12..16 | degree: u32 |
//! | 16..40 | beam, exact ratio, seed: u64 each |
//! | 40..48 | bytes of the flat index's file: u64 |
//! | 48..56 | number of start nodes: u64; 0 if there is no graph |
//! | 56..64 | checksum of the graph, as of a section of an index file |
//! | 64..68 | f32: the scale of the codes ([`super::codes`]); 0 if walks compare the vectors |
//! | 68..72 | u32: 1 if walks must not compare codes, otherwise 0 |
//! | 72..80 | u64: the limit of the codes; 0 in older files, whose codes are fitted again |
//! | 80..120 | zeros |
//! | 120..128 | XXH64 of bytes 0..120 |
//!
//! The file of the flat index follows, which has its own header and checksums. Then,
//! from the next multiple of 64 with zeros before it, come the start nodes and the edges: u32, `degree` places for each
//! vector in the order of ids; and, if there are codes, the shifts of the components: f32. The codes follow from the
//! vectors. Parents are not stored, because they follow from the edges. Rows that removed vectors left are not stored
//! either: the file is that of the index after [`GraphIndex::compact`]. So one index has one file, and loading and
//! saving it again gives the same bytes.

use std::borrow::Cow;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use super::build;
use super::codes::{Coder, Codes};
use super::distance::WalkDistance;
use super::links::Links;
use super::{DEGREES, GraphIndex, LinkedVectors};
use crate::error::{Error, FileDefect, Result};
use crate::flat::Flat;
use crate::index::IndexKind;
use crate::index::kind::GRAPH;
use crate::index::private::{Filed, Stored};
use crate::io::checksum::{of_bytes, xxh64};
use crate::io::{self, Open};
use crate::ivf::file::{Shape, shape_of};
use crate::knn_graph::NO_NODE;
use crate::vectors::VectorSlice;
use crate::{Element, Placement, Watch, host_memory};

/// Number of bytes of the header.
const HEADER: usize = 128;
/// The first bytes of a file.
/// The version that this program writes and reads.
const VERSION: u32 = 1;
/// The graph starts at a multiple of this number of bytes.
const ALIGNMENT: usize = 64;
/// Place of the header's checksum.
const SUM: usize = HEADER - 8;
/// The path in errors about bytes that were not read from a file.
const IN_MEMORY: &str = "(an index in memory)";

/// Number of bytes of both headers.
pub(crate) const HEADERS: usize = HEADER + crate::ivf::file::HEADER;

/// Decodes both headers of a file of `bytes` bytes, which are in its first [`HEADERS`] bytes.
///
/// # Errors
/// The defect of a header.
pub(crate) fn headers(first: &[u8], bytes: u64) -> Result<(Header, Shape), FileDefect> {
    let header = Header::decode(first)?;
    let shape = shape_of(&first[HEADER..], header.flat_bytes)?;
    header.check_length(shape.vectors, shape.dim as usize, bytes)?;
    Ok((header, shape))
}

/// The header of a file.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Header {
    pub(crate) degree: u32,
    pub(crate) beam: u64,
    exact_ratio: u64,
    seed: u64,
    flat_bytes: u64,
    pub(crate) starts: u64,
    checksum: u64,
    scale: f32,
    no_codes: u32,
    limit: u64,
}

impl Header {
    fn encode(&self) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &GRAPH);
        put(8, bytemuck::cast_slice(&[VERSION, self.degree]));
        let longs = [self.beam, self.exact_ratio, self.seed, self.flat_bytes, self.starts, self.checksum];
        put(16, bytemuck::cast_slice(&longs));
        put(64, bytemuck::bytes_of(&self.scale));
        put(68, bytemuck::bytes_of(&self.no_codes));
        put(72, bytemuck::bytes_of(&self.limit));
        let sum = xxh64(&header[..SUM]);
        header[SUM..].copy_from_slice(&sum.to_le_bytes());
        header
    }

    fn decode(bytes: &[u8]) -> Result<Self, FileDefect> {
        IndexKind::Graph.check_first(bytes)?;
        let header: &[u8; HEADER] = io::checked_header(bytes, &GRAPH, VERSION, "not a file of a graph index")?;
        let word = |at: usize| bytemuck::pod_read_unaligned::<u32>(&header[at..at + 4]);
        let long = |at: usize| bytemuck::pod_read_unaligned::<u64>(&header[at..at + 8]);
        if header[80..SUM].iter().any(|&byte| byte != 0) {
            return Err(FileDefect::BadHeader("reserved bytes are not zero"));
        }
        let [beam, exact_ratio, seed, flat_bytes, starts, checksum] = [16, 24, 32, 40, 48, 56].map(long);
        let (scale, no_codes, limit) = (f32::from_bits(word(64)), word(68), long(72));
        let header =
            Header { degree: word(12), beam, exact_ratio, seed, flat_bytes, starts, checksum, scale, no_codes, limit };
        if !(DEGREES.0..=DEGREES.1).contains(&(header.degree as usize)) {
            return Err(FileDefect::Inconsistent("a degree that no graph has"));
        }
        if beam == 0 {
            return Err(FileDefect::Inconsistent("a beam of 0"));
        }
        let has_codes = scale.to_bits() != 0;
        if no_codes > 1 || (has_codes && (starts == 0 || no_codes == 1)) || (!has_codes && limit != 0) {
            return Err(FileDefect::Inconsistent("codes that no graph has"));
        }
        Ok(header)
    }

    /// The first byte of the graph; `None` if there is no such place in memory.
    fn graph(&self) -> Option<usize> {
        let flat = usize::try_from(self.flat_bytes).ok()?;
        HEADER.checked_add(flat)?.checked_next_multiple_of(ALIGNMENT)
    }

    /// Number of shifts of vectors of this dimension.
    fn shifts(&self, dim: usize) -> usize {
        if self.scale.to_bits() == 0 { 0 } else { dim }
    }

    /// Checks the length `actual` of a file with `vectors` vectors.
    fn check_length(&self, vectors: u64, dim: usize, actual: u64) -> Result<(), FileDefect> {
        if self.starts > vectors {
            return Err(FileDefect::Inconsistent("more start nodes than vectors"));
        }
        let numbers = if self.starts == 0 { Some(0) } else { vectors.checked_mul(u64::from(self.degree)) };
        let numbers = || numbers?.checked_add(self.starts)?.checked_add(self.shifts(dim) as u64);
        let bytes = || numbers()?.checked_mul(4)?.checked_add(self.graph()? as u64);
        let expected = bytes().ok_or(FileDefect::TooLarge { rows: vectors, dim: u64::from(self.degree) })?;
        io::check_size(expected, actual)
    }
}

impl<T: Element> Filed for LinkedVectors<T> {
    fn save(&self, path: &Path, watch: &Watch<'_>) -> Result<()> {
        self.with_parts(|parts| {
            let bytes = parts.iter().map(|part| part.len()).sum();
            io::replace(path, |file| {
                let mut out = io::Watched::new(file, watch, bytes);
                parts.iter().try_for_each(|part| out.write_all(part))
            })
        })
    }

    fn to_bytes(&self) -> Result<Vec<u8>> {
        self.with_parts(|parts| {
            let mut bytes = host_memory::with_room(parts.iter().map(|part| part.len()).sum())?;
            parts.iter().for_each(|part| bytes.extend_from_slice(part));
            Ok(bytes)
        })
    }

    fn load(path: &Path, placement: Placement, budget: Option<u64>, how: Open) -> Result<Self> {
        let bad = |defect| Error::BadFile { path: path.to_owned(), defect };
        let bytes = io::open(path, how)?.ok_or_else(|| bad(FileDefect::BadHeader("not a file of a graph index")))?;
        Self::from_bytes(&bytes, placement, budget).map_err(|error| match error {
            Error::BadFile { defect, .. } => bad(defect),
            other => other,
        })
    }

    fn from_bytes(bytes: &[u8], device: Placement, budget: Option<u64>) -> Result<Self> {
        let bad = |defect| Error::BadFile { path: IN_MEMORY.into(), defect };
        let first = &bytes[..bytes.len().min(HEADERS)];
        let (header, shape) = headers(first, bytes.len() as u64).map_err(bad)?;
        // The length was checked, so both places are inside the bytes.
        let (flat_end, graph) = (HEADER + header.flat_bytes as usize, header.graph().unwrap_or(bytes.len()));
        if bytes[flat_end..graph].iter().any(|&byte| byte != 0) {
            return Err(bad(FileDefect::Inconsistent("bytes between sections are not zero")));
        }
        if of_bytes(&bytes[graph..]) != header.checksum {
            return Err(bad(FileDefect::Checksum { section: "graph" }));
        }
        let flat = Flat::from_bytes(&bytes[HEADER..flat_end], device.clone(), budget)?;
        let size = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
        let mut builder = GraphIndex::<T>::builder(shape.dim as usize)
            .metric(shape.metric)
            .device(device)
            .degree(header.degree as usize)
            .beam(size(header.beam))
            .exact_ratio(size(header.exact_ratio))
            .seed(header.seed)
            .codes(header.no_codes == 0);
        builder.budget = budget;
        let mut index = builder.with_vectors(|_| Ok(flat))?;
        if header.starts > 0 {
            let mut numbers: Vec<u32> = host_memory::zeroed((bytes.len() - graph) / 4)?;
            bytemuck::cast_slice_mut::<u32, u8>(&mut numbers).copy_from_slice(&bytes[graph..]);
            let mut edges = numbers.split_off(header.starts as usize);
            let shifts = edges.split_off(edges.len() - header.shifts(shape.dim as usize));
            let links = Links::of_edges(edges, header.degree as usize, numbers)?;
            let no_graph = || bad(FileDefect::Inconsistent("edges that no graph has"));
            let mut links = links.ok_or_else(no_graph)?;
            index.copy_all_rows()?;
            if !links.complete(index.rows(), shape.dim as usize)? {
                return Err(no_graph());
            }
            if !shifts.is_empty() {
                let coder = Coder::new(shape.metric, bytemuck::cast_vec(shifts), header.scale, header.limit);
                let coder = coder.ok_or_else(|| bad(FileDefect::Inconsistent("codes that no graph has")))?;
                let codes = Codes::of(Arc::new(coder), VectorSlice::of(index.rows(), shape.dim as usize))?;
                let are_old = header.limit == 0 || codes.are_old();
                index.made.codes = if are_old { index.fitted_codes(index.rows())? } else { Some(codes) };
            }
            links.list_starts(&index.walk_distances().fast);
            index.made.links = Some(Arc::new(links));
        }
        Ok(index)
    }
}

impl<T: Element> LinkedVectors<T> {
    /// Calls `use_parts` with the parts of the file.
    fn with_parts<V>(&self, use_parts: impl FnOnce(&[&[u8]]) -> Result<V>) -> Result<V> {
        let flat = self.flat.to_bytes()?;
        let (header, graph) = self.header_and_graph(flat.len())?;
        let padding = (HEADER + flat.len()).next_multiple_of(ALIGNMENT) - HEADER - flat.len();
        use_parts(&[&header.encode(), &flat, &[0; ALIGNMENT][..padding], bytemuck::cast_slice(&graph)])
    }

    /// A hash of everything on which searches depend, except the vectors. O(len · degree).
    pub(super) fn fingerprint(&self) -> Result<u64> {
        let (header, _) = self.header_and_graph(0)?;
        Ok(xxh64(&header.encode()))
    }

    /// The header of a file with `flat_bytes` bytes of the flat index, and the numbers of its graph.
    fn header_and_graph(&self, flat_bytes: usize) -> Result<(Header, Vec<u32>)> {
        let (links, codes) = (self.links(), self.codes());
        let links = links.map(|links| self.compacted(links)).transpose()?;
        let graph: Vec<u32> = match &links {
            Some(links) => {
                let shifts: &[f32] = codes.map_or(&[], |codes| &codes.coder.shifts);
                let mut graph = host_memory::with_room(links.starts().len() + links.edges().len() + shifts.len())?;
                graph.extend_from_slice(links.starts());
                graph.extend_from_slice(links.edges());
                graph.extend_from_slice(bytemuck::cast_slice(shifts));
                graph
            }
            None => Vec::new(),
        };
        let header = Header {
            degree: self.builder.settings.degree as u32,
            beam: self.builder.beam as u64,
            exact_ratio: self.builder.exact_ratio as u64,
            seed: self.builder.settings.seed,
            flat_bytes: flat_bytes as u64,
            starts: links.as_ref().map_or(0, |links| links.starts().len() as u64),
            checksum: of_bytes(bytemuck::cast_slice(&graph)),
            scale: codes.map_or(0.0, |codes| codes.coder.scale),
            no_codes: u32::from(!self.builder.codes),
            limit: codes.map_or(0, |codes| codes.coder.limit),
        };
        Ok((header, graph))
    }

    /// The graph without the rows that removed vectors left.
    pub(super) fn compacted<'a>(&self, links: &'a Links) -> Result<Cow<'a, Links>> {
        let ids = self.flat.row_ids();
        let Some(live) = ids.live() else { return Ok(Cow::Borrowed(links)) };
        let mut kept = 0..self.len() as u32;
        let next = |row| if live.get(row) { kept.next().unwrap_or(NO_NODE) } else { NO_NODE };
        let mut moved: Vec<u32> = (0..ids.rows()).map(next).collect();
        let rows = self.flat.all_rows()?;
        let rows = VectorSlice::of(&rows, self.dim());
        let codes = self.codes().map(|codes| Codes::of(Arc::clone(&codes.coder), rows)).transpose()?;
        let distance = codes.as_ref().map_or_else(|| WalkDistance::new(self.metric(), rows), Codes::distance);
        let mut links = build::moved(links, &distance, &mut moved, self.len(), None)?;
        links.connect_without(&distance, &[]);
        Ok(Cow::Owned(links))
    }
}

/// Replaces the checksums of the header and the graph in changed bytes by right ones.
#[cfg(test)]
pub(super) fn mend(bytes: &mut [u8]) {
    let flat = bytemuck::pod_read_unaligned::<u64>(&bytes[40..48]) as usize;
    let graph = (HEADER + flat).next_multiple_of(ALIGNMENT);
    let checksum = of_bytes(&bytes[graph..]);
    bytes[56..64].copy_from_slice(&checksum.to_le_bytes());
    let sum = xxh64(&bytes[..SUM]);
    bytes[SUM..HEADER].copy_from_slice(&sum.to_le_bytes());
}
