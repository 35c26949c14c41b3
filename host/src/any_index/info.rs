//! The content of an index file of any kind, by its header.

use std::io::Read;
use std::path::Path;

use super::KindInfo;
use crate::error::FileDefect;
use crate::graph::file::HEADERS;
use crate::index::IndexKind;
use crate::ivf::file::{IN_MEMORY, Shape};
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
    /// The kind of the index, and the settings that only this kind has. Files of versions that did not write the kind
    /// are inverted files or exact, and count as inverted files.
    pub of_kind: KindInfo,
    /// Size of the file in bytes.
    pub bytes: u64,
}

impl IndexInfo {
    /// Reads the header of an index file; only loading the index checks the rest. O(1).
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::BadFile`] if it is not an index file, its header is damaged, or its length contradicts
    /// the header.
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let (file, bytes) = io::open_regular(path)?;
        let mut header = Vec::new();
        let read = file.take(HEADERS as u64).read_to_end(&mut header);
        read.map_err(|source| Error::Io { path: path.to_owned(), source })?;
        Self::of_header(&header, bytes).map_err(|defect| Error::BadFile { path: path.to_owned(), defect })
    }

    /// As [`read`](Self::read), of the bytes of a file ([`Index::to_bytes`](crate::Index::to_bytes)).
    ///
    /// # Errors
    /// [`Error::BadFile`].
    pub fn of_bytes(bytes: &[u8]) -> Result<Self> {
        let header = &bytes[..bytes.len().min(HEADERS)];
        Self::of_header(header, bytes.len() as u64).map_err(|defect| Error::BadFile { path: IN_MEMORY.into(), defect })
    }

    /// Decodes the first bytes of an index file of `bytes` bytes.
    ///
    /// # Errors
    /// The defect of the header.
    fn of_header(header: &[u8], bytes: u64) -> Result<Self, FileDefect> {
        let (shape, of_kind) = KindInfo::of_header(header, bytes)?;
        let Shape { element, metric, dim, vectors, .. } = shape;
        Ok(Self { element, dim: dim as usize, metric, vectors, of_kind, bytes })
    }

    /// The kind of the index.
    pub fn kind(&self) -> IndexKind {
        self.of_kind.kind()
    }
}
