//! The content of an index file of any kind, by its header.

use std::io::Read;
use std::path::Path;

use crate::error::FileDefect;
use crate::graph::file as graph;
use crate::index::IndexKind;
use crate::index::kind::GRAPH;
use crate::ivf::Encoding;
use crate::ivf::file as lists;
use crate::{ElementType, Error, Metric, Result, io};

/// The content of an index file according to its header.
///
/// ```
/// use warpann::{Device, FlatIndex, IndexInfo, IndexKind, Metric};
///
/// let mut index = FlatIndex::<f32>::new(2, Metric::L2, Device::Cpu)?;
/// index.add(&[0.0, 1.0, 2.0, 3.0])?;
/// let folder = tempfile::tempdir().unwrap();
/// let path = folder.path().join("two.index");
/// index.save(&path)?;
/// let info = IndexInfo::read(&path)?;
/// assert_eq!((info.kind(), info.dim, info.vectors), (IndexKind::Flat, 2, 2));
/// # Ok::<(), warpann::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct IndexInfo {
    /// Type of the components; the `T` of the index that can load the file.
    pub element: ElementType,
    /// Number of components of a vector.
    pub dim: usize,
    /// The metric of the index.
    pub metric: Metric,
    /// Number of vectors.
    pub vectors: u64,
    /// The kind of the index, and the settings that only this kind has. Files of versions that did not write the kind are inverted files or exact, and
    /// count as inverted files.
    pub of_kind: KindInfo,
    /// Size of the file in bytes.
    pub bytes: u64,
}

/// A kind of index, with the settings that only this kind has in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum KindInfo {
    /// A [`FlatIndex`](crate::FlatIndex).
    Flat,
    /// An [`IvfIndex`](crate::IvfIndex).
    Ivf {
        /// What the index keeps of each vector.
        encoding: Encoding,
        /// Number of lists.
        lists: usize,
        /// Number of lists that a search probes unless its options set another.
        probes: usize,
        /// As [`IvfStatistics::clamped_vectors`](crate::ivf::IvfStatistics::clamped_vectors).
        clamped_vectors: u64,
        /// As [`IvfStatistics::clamped_components`](crate::ivf::IvfStatistics::clamped_components).
        clamped_components: u64,
    },
    /// A [`GraphIndex`](crate::GraphIndex).
    Graph {
        /// Largest number of edges of a vector.
        degree: usize,
        /// Number of vectors that a walk keeps unless its options set another.
        beam: u64,
        /// Number of vectors at which walks can begin; 0 if searches are exact.
        starts: u64,
    },
}

impl IndexInfo {
    /// Reads the header of an index file; only loading the index checks the rest. O(1).
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::BadFile`] if it is not an index file, its header is damaged, or its length contradicts the header.
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let (file, bytes) = io::open_regular(path)?;
        let mut header = Vec::new();
        let read = file.take(graph::HEADERS as u64).read_to_end(&mut header);
        read.map_err(|source| Error::Io { path: path.to_owned(), source })?;
        Self::of_header(&header, bytes).map_err(|defect| Error::BadFile { path: path.to_owned(), defect })
    }

    /// Decodes the first bytes of an index file of `bytes` bytes.
    ///
    /// # Errors
    /// The defect of the header.
    fn of_header(header: &[u8], bytes: u64) -> Result<Self, FileDefect> {
        let (shape, of_kind) = if header.starts_with(&GRAPH) {
            let (graph, shape) = graph::headers(header, bytes)?;
            let (degree, beam, starts) = (graph.degree as usize, graph.beam, graph.starts);
            (shape, KindInfo::Graph { degree, beam, starts })
        } else {
            let shape = lists::shape_of(header, bytes)?;
            let of_kind = if shape.kind == Some(IndexKind::Flat) {
                KindInfo::Flat
            } else {
                KindInfo::Ivf {
                    encoding: shape.encoding,
                    lists: shape.lists as usize,
                    probes: shape.probes as usize,
                    clamped_vectors: shape.clamped.vectors,
                    clamped_components: shape.clamped.components,
                }
            };
            (shape, of_kind)
        };
        let lists::Shape { element, metric, dim, vectors, .. } = shape;
        Ok(Self { element, dim: dim as usize, metric, vectors, of_kind, bytes })
    }

    /// The kind of the index.
    pub fn kind(&self) -> IndexKind {
        match self.of_kind {
            KindInfo::Flat => IndexKind::Flat,
            KindInfo::Ivf { .. } => IndexKind::Ivf,
            KindInfo::Graph { .. } => IndexKind::Graph,
        }
    }
}
