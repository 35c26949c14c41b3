//! The kind of an index in a file.

use std::io::Read;
use std::path::Path;

use crate::error::FileDefect;
use crate::{Error, Result, io};

/// The first bytes of files of a [`FlatIndex`](crate::FlatIndex) and of an [`IvfIndex`](crate::IvfIndex). A text
/// transfer changes the line ends or the control character among them.
pub(crate) const LISTS: [u8; 8] = *b"wpn\r\n\x1a\nI";
/// Those of files of a [`GraphIndex`](crate::GraphIndex).
pub(crate) const GRAPH: [u8; 8] = *b"wpn\r\n\x1a\nG";
/// The place of the word that tells exact from inverted files.
pub(crate) const WORD: usize = 232;

/// A kind of index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum IndexKind {
    /// [`FlatIndex`](crate::FlatIndex): exact search.
    Flat,
    /// [`IvfIndex`](crate::IvfIndex): inverted files.
    Ivf,
    /// [`GraphIndex`](crate::GraphIndex): walks in a graph.
    Graph,
}

impl IndexKind {
    /// The kinds in the order of this table.
    pub const ALL: [IndexKind; 3] = [IndexKind::Flat, IndexKind::Ivf, IndexKind::Graph];

    /// The name of the kind.
    pub const fn name(self) -> &'static str {
        match self {
            IndexKind::Flat => "flat",
            IndexKind::Ivf => "ivf",
            IndexKind::Graph => "graph",
        }
    }

    /// The first bytes of files of the kind.
    const fn magic(self) -> [u8; 8] {
        match self {
            IndexKind::Flat | IndexKind::Ivf => LISTS,
            IndexKind::Graph => GRAPH,
        }
    }

    /// The kind of the index in a file, by its first bytes; a file that has no index counts as inverted files, as which
    /// it is refused. Files of versions that did not write the kind are inverted files or exact, and count as inverted
    /// files. O(1).
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn of_file(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let mut first = Vec::new();
        let read = io::open_regular(path)?.0.take(WORD as u64 + 4).read_to_end(&mut first);
        read.map_err(|source| Error::Io { path: path.to_owned(), source })?;
        Ok(Self::of_bytes(&first))
    }

    /// As [`of_file`](Self::of_file), of the first bytes of a file.
    pub(crate) fn of_bytes(bytes: &[u8]) -> Self {
        if bytes.starts_with(&GRAPH) {
            return IndexKind::Graph;
        }
        let word = bytes.get(WORD..WORD + 4).filter(|_| bytes.starts_with(&LISTS));
        if word == Some(&Self::word(Some(IndexKind::Flat))[..]) { IndexKind::Flat } else { IndexKind::Ivf }
    }

    /// The word of a file for a kind; zeros in files of versions that did not write it.
    pub(crate) fn word(kind: Option<IndexKind>) -> [u8; 4] {
        let number: u32 = match kind {
            None | Some(IndexKind::Graph) => 0,
            Some(IndexKind::Ivf) => 1,
            Some(IndexKind::Flat) => 2,
        };
        number.to_le_bytes()
    }

    /// The kind of a word; `None` if files of earlier versions have it.
    ///
    /// # Errors
    /// [`FileDefect::BadHeader`] for a word that no version writes.
    pub(crate) fn of_word(word: [u8; 4]) -> Result<Option<IndexKind>, FileDefect> {
        let known = [None, Some(IndexKind::Ivf), Some(IndexKind::Flat)];
        let kind = known.into_iter().find(|&kind| Self::word(kind) == word);
        kind.ok_or(FileDefect::BadHeader("unknown kind of index"))
    }

    /// Refuses bytes that begin as only files of other kinds do.
    ///
    /// # Errors
    /// [`FileDefect::WrongKind`].
    pub(crate) fn check_first(self, bytes: &[u8]) -> Result<(), FileDefect> {
        let mut others = Self::ALL.into_iter().filter(|kind| kind.magic() != self.magic());
        let other = others.any(|kind| bytes.starts_with(&kind.magic()));
        self.check(other.then(|| Self::of_bytes(bytes)))
    }

    /// Refuses the bytes of a file of another kind.
    ///
    /// # Errors
    /// [`FileDefect::WrongKind`].
    pub(crate) fn check(self, actual: Option<IndexKind>) -> Result<(), FileDefect> {
        match actual.filter(|&actual| actual != self) {
            Some(actual) => Err(FileDefect::WrongKind { actual: actual.name(), expected: self.name() }),
            None => Ok(()),
        }
    }
}

crate::names::named!(IndexKind, name, "a kind of index");
