//! The formats of HNSW files, and the shape of a file.

use crate::Metric;

/// A format of HNSW files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HnswFormat {
    /// `IndexHNSWFlat` of FAISS, inside of an `IndexIDMap2` if the ids are not 0, 1, 2, ..
    Faiss,
    /// `HierarchicalNSW` of hnswlib, as its method `saveIndex` writes it, with the ids as labels. The file has no
    /// metric.
    Hnswlib,
}

impl HnswFormat {
    /// All formats, in the order of this table.
    pub const ALL: [HnswFormat; 2] = [HnswFormat::Faiss, HnswFormat::Hnswlib];

    /// Name on the command line: `faiss`, `hnswlib`.
    pub const fn name(self) -> &'static str {
        match self {
            HnswFormat::Faiss => "faiss",
            HnswFormat::Hnswlib => "hnswlib",
        }
    }
}

crate::names::named!(HnswFormat, name, "a format of HNSW files");

/// The shape of an HNSW file, by its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct HnswInfo {
    /// The program whose format it is.
    pub format: HnswFormat,
    /// Number of components of a vector.
    pub dim: usize,
    /// [`Metric::L2`] or [`Metric::InnerProduct`]; `None` in files of hnswlib, which do not have it.
    pub metric: Option<Metric>,
    /// Number of vectors, with those that hnswlib has marked as deleted.
    pub vectors: u64,
}
