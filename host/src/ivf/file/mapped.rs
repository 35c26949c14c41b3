//! An index file in memory: mapped or read, and checked before any use.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::format::{self, Section, Shape};
use crate::error::{Error, FileDefect, Result};
use crate::index::IndexKind;
use crate::io::checksum;
use crate::io::checksum::{CHUNK, xxh64};
use crate::io::{self, FileBytes, Open};
use crate::ivf::encoding::finite;
use crate::parallel::{Loop, ParallelSlice};

/// An index file of which every byte was checked. Clones share the bytes.
#[derive(Debug, Clone)]
pub(crate) struct IndexFile {
    bytes: Arc<FileBytes>,
    shape: Shape,
    places: [Range<usize>; Section::ALL.len()],
}

/// The reason why a chunk of a section cannot be what was saved, or `None`.
type Finding = Option<&'static str>;

impl IndexFile {
    /// Opens and checks a file. O(bytes), in parallel.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::BadFile`].
    pub fn open(path: &Path, how: Open, kind: IndexKind) -> Result<Self> {
        let bad = |defect| Error::BadFile { path: path.to_owned(), defect };
        let bytes = io::open(path, how)?.ok_or_else(|| bad(FileDefect::BadHeader("not an index file")))?;
        Self::of_kind(bytes, kind).map_err(bad)
    }

    /// As [`from_bytes`](Self::from_bytes), for an index of a kind.
    ///
    /// # Errors
    /// [`FileDefect::WrongKind`], as [`from_bytes`](Self::from_bytes).
    pub fn of_kind(bytes: Arc<FileBytes>, kind: IndexKind) -> Result<Self, FileDefect> {
        kind.check_first(&bytes)?;
        let file = Self::from_bytes(bytes)?;
        kind.check(file.shape.kind)?;
        Ok(file)
    }

    /// Checks the contents of a file, which start at a multiple of 64, as all [`FileBytes`] do.
    ///
    /// # Errors
    /// The first defect of the bytes.
    pub fn from_bytes(bytes: Arc<FileBytes>) -> Result<Self, FileDefect> {
        let (shape, places, checksums) = format::decode(&bytes, bytes.len() as u64)?;
        // All places are within the file, so they fit usize.
        let places = places.map(|place| place.start as usize..place.end as usize);
        let file = Self { bytes, shape, places };
        file.check_bytes(&checksums)?;
        file.check_starts()?;
        Ok(file)
    }

    /// The shape that the header describes.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// All bytes of the file.
    pub fn bytes(&self) -> &Arc<FileBytes> {
        &self.bytes
    }

    /// The place of a section in the file.
    pub fn place(&self, section: Section) -> Range<usize> {
        self.places[section as usize].clone()
    }

    /// The values of a section. Every section starts at a multiple of 64 and holds whole values, so the cast succeeds.
    pub fn values<V: bytemuck::AnyBitPattern>(&self, section: Section) -> &[V] {
        bytemuck::cast_slice(&self.bytes[self.place(section)])
    }

    /// Checks the checksums, the padding, and the values, in one pass.
    fn check_bytes(&self, checksums: &[u64; Section::ALL.len()]) -> Result<(), FileDefect> {
        let mut end = format::HEADER;
        for place in &self.places {
            if self.bytes[end..place.start].iter().any(|&byte| byte != 0) {
                return Err(FileDefect::Inconsistent("bytes between sections are not zero"));
            }
            end = place.end;
        }
        let chunks = |section: Section| self.place(section).len().div_ceil(CHUNK);
        let all: Vec<(Section, usize)> = Section::ALL
            .into_iter()
            .flat_map(|section| (0..chunks(section)).map(move |chunk| (section, chunk)))
            .collect();
        let looked_at: Vec<(u64, Finding)> =
            all.par_iter().map(|&(section, chunk)| self.look_at(section, chunk)).collect();
        let (hashes, findings): (Vec<u64>, Vec<Finding>) = looked_at.into_iter().unzip();
        let mut from = 0;
        for (section, &sum) in Section::ALL.into_iter().zip(checksums) {
            let to = from + chunks(section);
            if checksum::of_chunks(&hashes[from..to]) != sum {
                return Err(FileDefect::Checksum { section: section.name() });
            }
            from = to;
        }
        // The checksums are right, so a wrong value was saved like this.
        findings.into_iter().flatten().next().map_or(Ok(()), |finding| Err(FileDefect::Inconsistent(finding)))
    }

    /// The hash of a chunk, and the defect of its values.
    fn look_at(&self, section: Section, chunk: usize) -> (u64, Finding) {
        let place = self.place(section);
        let from = chunk * CHUNK;
        let bytes = &self.bytes[place.start + from..place.end.min(place.start + from + CHUNK)];
        let (right, finding) = match section {
            Section::Centroids => (finite(bytes, f32::is_finite), "a centroid is not finite"),
            Section::Codebooks => (finite(bytes, f32::is_finite), "a codeword is not finite"),
            Section::Rotation => (finite(bytes, f32::is_finite), "the rotation is not finite"),
            Section::Codes => {
                let Shape { dim, element, .. } = self.shape;
                return (
                    xxh64(bytes),
                    self.shape.stored_encoding().scheme().defect(bytes, from, dim as usize, element),
                );
            }
            Section::Starts | Section::Ids => (true, ""),
        };
        (xxh64(bytes), (!right).then_some(finding))
    }

    /// Checks that lists follow each other and hold all vectors.
    fn check_starts(&self) -> Result<(), FileDefect> {
        let starts: &[u64] = self.values(Section::Starts);
        let whole = starts.first() == Some(&0) && starts.last() == Some(&self.shape.vectors);
        if whole && starts.is_sorted() {
            return Ok(());
        }
        Err(FileDefect::Inconsistent("the lists do not partition the vectors"))
    }
}
