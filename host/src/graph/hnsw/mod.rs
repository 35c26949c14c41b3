//! Files of HNSW graphs, which FAISS and hnswlib search on CPUs: a graph index is written as one, and one is read.
//!
//! | file | content |
//! |---|---|
//! | `hierarchy` | the levels above the graph, for a file |
//! | `faiss` | `IndexHNSWFlat` of FAISS |
//! | `hnswlib` | `HierarchicalNSW` of hnswlib |
//! | `info` | formats, and the shape of a file |
//! | `parsed` | what both formats have, once it is read and checked |
//! | `fuzz` | any bytes as a file |
//!
//! # Out
//! Level 0 of the file has the vectors and edges of the index. A walk of HNSW begins at one node, where ours compares
//! the query with many start nodes, so the start nodes become the levels above: `hierarchy` says how. Rows that removed
//! vectors left are left out. An index that is so small that it has no edges gets a graph for the file.
//!
//! Both formats hold f32, so vectors of f16, bf16, u8 and i8 are widened, and the file has four bytes for each
//! component. They have no cosine: its vectors are divided by their norms, and the metric is the inner product. FAISS
//! then returns cosines, and hnswlib one minus the cosine.
//!
//! # In
//! Level 0 becomes the graph of [`GraphIndexBuilder::build_with_graph`], after nodes to which no edge leads have got
//! one from a free place (`parsed`). Its start nodes are those of any graph of this library, so the upper levels and
//! the entry point are not needed, and only their sizes are checked.
//!
//! # Recall
//! A walk of this library expands the eight nearest nodes of its beam at a time, and one of HNSW the nearest. So ours
//! computes more distances with the same beam, and finds more where beams are narrow. Recall of the 10 nearest, L2:
//!
//! | beam | 100,000 SIFT descriptors: ours, FAISS and hnswlib in the file | 20,000 random vectors, 32 components |
//! |---|---|---|
//! | 16 | .947, .908 | .807, .701 |
//! | 32 | .978, .968 | .893, .850 |
//! | 64 | .9943, .9931 | .964, .955 |
//! | 128 | .9984, .9982 | .993, .992 |
//!
//! On the random vectors our walk computed 1.57 times the distances at 16 and 1.1 times at 64. With one node at a time
//! it found .694 and .950 of a part of these queries, also if it began at as many start nodes as the beam has places.
//! With an ef of 12 more than the beam, FAISS finds at least as much as ours in both sets, at all of these beams. Among
//! clusters under the inner product it takes an ef half as wide again: .9876 at 72, and ours .9882 at 48 (4,000 vectors
//! of 24 components in 60 clusters; two cores of an AMD EPYC, 2026-11-28).

mod faiss;
mod fuzz;
mod hierarchy;
mod hnswlib;
mod info;
mod parsed;
#[cfg(test)]
mod tests;

use std::io::{BufWriter, Read};
use std::path::Path;

#[doc(hidden)]
pub use self::fuzz::read_any_hnsw_bytes;
use self::hierarchy::Hierarchy;
pub use self::info::{HnswFormat, HnswInfo};
use self::parsed::Parsed;
use super::{GraphIndex, GraphIndexBuilder};
use crate::error::FileDefect;
use crate::io::faiss::{check_greatest_id, check_metric};
use crate::io::{self, Open};
use crate::knn_graph::Graph;
use crate::{Element, Error, Result};

/// Bytes of a file that tell its format and shape.
const FIRST: usize = if faiss::FIRST > hnswlib::HEADER { faiss::FIRST } else { hnswlib::HEADER };

/// The format of a file with these first bytes.
fn format_of(first: &[u8]) -> Result<HnswFormat, FileDefect> {
    if faiss::is_faiss(first) {
        return Ok(HnswFormat::Faiss);
    }
    let is_hnswlib = hnswlib::is_hnswlib(first);
    is_hnswlib.then_some(HnswFormat::Hnswlib).ok_or(FileDefect::BadHeader("no HNSW file of FAISS or hnswlib"))
}

impl HnswInfo {
    /// Reads the header of an HNSW file; only [`GraphIndexBuilder::load_hnsw`] checks the rest. O(1).
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::BadFile`] if it is no HNSW file of a known format, or its header is damaged.
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let mut first = Vec::new();
        let read = io::open_regular(path)?.0.take(FIRST as u64).read_to_end(&mut first);
        read.map_err(|source| Error::Io { path: path.to_owned(), source })?;
        let info = format_of(&first).and_then(|format| match format {
            HnswFormat::Faiss => faiss::info(&first),
            HnswFormat::Hnswlib => hnswlib::info(&first),
        });
        info.map_err(|defect| Error::BadFile { path: path.to_owned(), defect })
    }
}

impl<T: Element> GraphIndex<T> {
    /// Writes the index as an HNSW file, which FAISS (`faiss.read_index`) or hnswlib (`Index.load_index`) searches on a
    /// CPU. At the same beam (efSearch, ef) they find about as many of the nearest vectors as this index.
    ///
    /// Both formats hold f32: other elements are widened. For [`Metric::Cosine`](crate::Metric::Cosine) the vectors are
    /// divided by their norms, and the metric of the file is the inner product: FAISS needs queries that are divided by
    /// theirs, and hnswlib divides them if the file is loaded for its space `cosine`. Removed vectors are left out. The
    /// beam of the index is the efSearch of FAISS's file; hnswlib's has none.
    ///
    /// O(len · degree), and the building of graphs of each 64th vector and fewer. A file that exists is replaced once
    /// the new one is complete.
    ///
    /// # Errors
    /// [`Error::Mismatch`] for [`Metric::Hamming`](crate::Metric::Hamming), which both formats lack; [`Error::Io`];
    /// [`Error::OutOfRange`] for an id above 2⁶³ − 1 in FAISS's format; [`Error::OutOfHostMemory`]; errors of the
    /// device's driver.
    pub fn save_hnsw(&self, path: impl AsRef<Path>, format: HnswFormat) -> Result<()> {
        self.metric().check_numbers("metric of an HNSW file")?;
        let hierarchy = Hierarchy::of(&self.kind)?;
        if format == HnswFormat::Faiss {
            let last = hierarchy.len().checked_sub(1);
            check_greatest_id(last.map(|last| hierarchy.id(last)))?;
        }
        io::replace(path.as_ref(), |file| {
            let mut out = BufWriter::new(file);
            match format {
                HnswFormat::Faiss => faiss::write(&hierarchy, &mut out)?,
                HnswFormat::Hnswlib => hnswlib::write(&hierarchy, &mut out)?,
            }
            out.into_inner().map(drop).map_err(std::io::IntoInnerError::into_error)
        })
    }
}

impl GraphIndexBuilder<f32> {
    /// Opens the device and creates an index of the vectors, ids and edges of an HNSW file that FAISS, hnswlib or
    /// [`GraphIndex::save_hnsw`] wrote. The format is known by the first bytes. [`HnswInfo::read`] tells the dimension.
    ///
    /// Level 0 of the file becomes the graph as in [`build_with_graph`](Self::build_with_graph), and a node to which no
    /// edge leads gets one from a node near it that has a free place, if there is one. The degree of the
    /// index is the number of places at level 0, at least 4. FAISS's efSearch becomes the beam. Vectors that hnswlib
    /// marked as deleted are removed vectors. The vectors stay as the file has them: those of a file for cosine have
    /// norm 1.
    ///
    /// The metric is that of the builder. It must be that of FAISS's file, or cosine if the file's is the inner
    /// product. hnswlib's file does not have its metric, nor the element type of its space: only spaces of f32 can be
    /// read.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::BadFile`] if it is no HNSW file, is damaged, or a node has more than 256 edges;
    /// [`Error::WrongDimension`]; [`Error::Mismatch`] for another metric; the errors of
    /// [`build_with_graph`](Self::build_with_graph), such as [`Error::DuplicateId`] and [`Error::NotFinite`].
    pub fn load_hnsw(self, path: impl AsRef<Path>, how: Open) -> Result<GraphIndex<f32>> {
        let path = path.as_ref();
        let bytes = io::open(path, how)?;
        let parsed = parsed(bytes.as_deref().map_or(&[], |bytes| bytes));
        self.build_parsed(parsed.map_err(|defect| Error::BadFile { path: path.to_owned(), defect })?)
    }

    fn build_parsed(mut self, parsed: Parsed) -> Result<GraphIndex<f32>> {
        let Parsed { info, vectors, ids, removed, edges, degree, beam } = parsed;
        if info.dim != self.dim {
            return Err(Error::WrongDimension { expected: self.dim, actual: info.dim });
        }
        info.metric.map_or(Ok(()), |of_file| check_metric(self.settings.metric, of_file))?;
        self.beam = beam.unwrap_or(self.beam);
        let mut index = self.build_with_graph(&vectors, ids.as_deref(), &Graph::of_rows(edges, degree))?;
        index.remove(&removed)?;
        Ok(index)
    }
}

/// The content of a file.
fn parsed(bytes: &[u8]) -> Result<Parsed, FileDefect> {
    match format_of(bytes)? {
        HnswFormat::Faiss => faiss::parse(bytes),
        HnswFormat::Hnswlib => hnswlib::parse(bytes),
    }
}
