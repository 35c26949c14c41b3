//! Index files: one file holds all of an [`IvfIndex`], for any device.
//!
//! A file starts with a header, which describes the content and the places of the sections. The sections (centroids,
//! starts of lists, ids, codes, codebooks, rotation) have the layout of memory, so that codes and ids are used in the
//! mapped or read file without a copy. `format.rs` has the layout. Every section has a checksum (XXH64, in chunks that
//! all threads hash in parallel). Loading reads every byte once. It checks the checksums and also every value on which
//! a search relies, because a right checksum does not make the values valid.
//!
//! Saving writes a temporary file and renames it, so that no reader sees an incomplete file and a failure leaves the
//! old one. The same index gives the same bytes.
//!
//! ```
//! use warpann::{Device, ElementType, IndexInfo, IvfIndex, Metric};
//!
//! let base: Vec<f32> = (0..1000).map(|i| (i as f32 * 0.37).sin()).collect();
//! let mut index = IvfIndex::<f32>::builder(2, 8).metric(Metric::L2).device(Device::Cpu).build()?;
//! index.train(&base)?;
//! index.add(&base)?;
//!
//! let folder = tempfile::tempdir().unwrap();
//! let path = folder.path().join("points.ivf");
//! index.save(&path)?;
//! let info = IndexInfo::read(&path)?;
//! assert_eq!((info.element, info.vectors), (ElementType::F32, 500));
//! let loaded = IvfIndex::<f32>::load(&path, Device::Cpu, None)?;
//! assert_eq!(loaded.search(&base[..20], 3)?, index.search(&base[..20], 3)?);
//! # Ok::<(), warpann::Error>(())
//! ```

mod faiss;
#[cfg(test)]
mod faiss_tests;
mod flat;
mod format;
mod fuzz;
mod mapped;
#[cfg(test)]
mod round_trip;
#[cfg(test)]
mod tests;
mod write;

use std::borrow::Cow;
use std::path::Path;

pub use self::faiss::FaissInfo;
pub(crate) use self::format::{HEADER, IN_MEMORY, Shape};
use self::format::{Places, Section};
#[doc(hidden)]
pub use self::fuzz::{mend_index_bytes, read_any_faiss_bytes, read_any_index_bytes};
use self::mapped::IndexFile;
use self::write::Content;
use super::encoding::{Clamped, FileParts};
use super::lists::Bytes;
use super::{Ivf, IvfIndex, Lists, Trained};
use crate::error::{Error, FileDefect, Result};
use crate::index::IndexKind;
use crate::index::private::{Filed, Stored};
use crate::io::{FileBytes, Open, checksum};
use crate::parallel::{Loop, ParallelSlice, turns};
use crate::{Element, Placement, Watch};

/// Decodes the header of a file of `bytes` bytes, which is in its first [`HEADER`] bytes.
///
/// # Errors
/// The defect of the header.
pub(crate) fn shape_of(header: &[u8], bytes: u64) -> Result<Shape, FileDefect> {
    format::decode(header, bytes).map(|(shape, ..)| shape)
}

impl<T: Element> Filed for Ivf<T> {
    fn save(&self, path: &Path, watch: &Watch<'_>) -> Result<()> {
        self.content(self.trained_for("save")?).write(path, watch)
    }

    fn to_bytes(&self) -> Result<Vec<u8>> {
        self.content(self.trained_for("to_bytes")?).to_bytes()
    }

    fn load(path: &Path, placement: Placement, budget: Option<u64>, how: Open) -> Result<Self> {
        let file = IndexFile::open(path, how, IndexKind::Ivf)?;
        let (trained, lists) = parts::<T>(&file).map_err(|defect| Error::BadFile { path: path.to_owned(), defect })?;
        Self::restored(file.shape(), trained, lists, placement, budget)
    }

    fn from_bytes(bytes: &[u8], placement: Placement, budget: Option<u64>) -> Result<Self> {
        let bytes = FileBytes::copied(bytes).map_err(|source| Error::Io { path: IN_MEMORY.into(), source })?;
        let file = IndexFile::of_kind(bytes, IndexKind::Ivf).map_err(bytes_defect)?;
        let (trained, lists) = parts::<T>(&file).map_err(bytes_defect)?;
        Self::restored(file.shape(), trained, lists, placement, budget)
    }
}

impl<T: Element> Ivf<T> {
    /// The training of the index and its number of probes, as the bytes of an index file without vectors. Equal bytes
    /// mean that the indexes give every vector the same list and code.
    pub(crate) fn training_bytes(&self) -> Result<Vec<u8>> {
        let trained = self.trained().ok_or(Error::NotTrained { call: "training_bytes" })?;
        let mut content = self.content(trained);
        (content.shape.vectors, content.shape.clamped) = (0, Clamped::default());
        content.lists.fill((&[], Vec::new()));
        content.to_bytes()
    }

    fn restored(
        shape: &Shape,
        trained: Trained,
        lists: Lists,
        placement: Placement,
        budget: Option<u64>,
    ) -> Result<Self> {
        let mut builder = IvfIndex::<T>::builder(shape.dim as usize, shape.lists as usize)
            .metric(shape.metric)
            .encoding(shape.encoding)
            .device(placement);
        if let Some(budget) = budget {
            builder = builder.memory_budget(budget);
        }
        if shape.waits_for > 0 {
            builder = builder.train_at(shape.waits_for as usize);
        }
        let mut index = builder.restore(trained, lists, shape.probes as usize, shape.clamped)?;
        index.spread = shape.spread;
        Ok(index)
    }

    /// A hash of everything on which searches with the index's default number of probes depend. Two indexes that would
    /// be saved as the same bytes have the same hash. O(bytes), in parallel.
    ///
    /// # Errors
    /// [`Error::NotTrained`] before training.
    pub(crate) fn fingerprint(&self) -> Result<u64> {
        let trained = self.trained().ok_or(Error::NotTrained { call: "search" })?;
        let Content { shape, centroids, codebooks, rotation, lists } = self.content(trained);
        let shape = Shape { clamped: Clamped::default(), spread: 0.0, ..shape };
        let header = format::encode(&shape, &Places::default(), &Default::default());
        let mut hashes = vec![checksum::xxh64(&header)];
        hashes.extend([centroids, codebooks, rotation].map(|part| checksum::of_bytes(bytemuck::cast_slice(part))));
        let of_list = |(ids, codes): &(&[u64], Vec<&[u8]>)| {
            let codes = if let [codes] = codes[..] { Cow::Borrowed(codes) } else { codes.concat().into() };
            [ids.len() as u64, checksum::of_bytes(bytemuck::cast_slice(ids)), checksum::of_bytes(&codes)]
        };
        hashes.extend(lists.par_iter().map(of_list).collect().as_flattened());
        Ok(checksum::of_chunks(&hashes))
    }

    /// The content of a file with this index.
    pub(super) fn content<'a>(&'a self, trained: &'a Trained) -> Content<'a> {
        let lists = self.master();
        let [codebooks, rotation] = trained.codec.sections();
        let shape = Shape {
            kind: Some(IndexKind::Ivf),
            element: T::TYPE,
            metric: self.metric(),
            encoding: self.settings.encoding,
            dim: self.dim() as u64,
            lists: self.settings.lists as u64,
            vectors: self.len() as u64,
            probes: self.probes as u64,
            form: trained.codec.form(),
            clamped: self.clamped,
            // The number of rows has 32 bits, and an index has less vectors than it waits for.
            waits_for: self.waits_for.map_or(0, |vectors| u32::try_from(vectors).unwrap_or(u32::MAX)),
            spread: self.spread,
        };
        let lists = (0..lists.count()).map(|list| (lists.ids(list), lists.codes(list).runs().collect())).collect();
        Content { shape, centroids: &trained.centroids, codebooks, rotation, lists }
    }
}

fn bytes_defect(defect: FileDefect) -> Error {
    Error::BadFile { path: IN_MEMORY.into(), defect }
}

/// The parts of an index of `T` in a file that was checked.
fn parts<T: Element>(file: &IndexFile) -> Result<(Trained, Lists), FileDefect> {
    let shape = file.shape();
    if shape.element != T::TYPE {
        return Err(FileDefect::WrongElement { actual: shape.element.name().into(), expected: T::TYPE.name() });
    }
    let dim = shape.dim as usize;
    let scheme = shape.stored_encoding().scheme();
    let (codebooks, rotation) = (file.values(Section::Codebooks), file.values(Section::Rotation));
    let (element, metric, form) = (shape.element, shape.metric, shape.form);
    let codec = scheme
        .codec(FileParts { dim, element, metric, codebooks, rotation, form })
        .map_err(FileDefect::Inconsistent)?;
    let (ids, codes) = (file.place(Section::Ids), file.place(Section::Codes));
    // The size fits in memory: it was checked when the sections were placed.
    let code_bytes = shape.code_bytes() as usize;
    let align = scheme.alignment(shape.element);
    let starts: &[u64] = file.values(Section::Starts);
    let lists: Option<Vec<(Bytes, Bytes)>> = starts
        .windows(2)
        .map(|pair| {
            let (start, end) = (pair[0] as usize, pair[1] as usize);
            let codes = codes.start + start * code_bytes..codes.start + end * code_bytes;
            let ids = ids.start + 8 * start..ids.start + 8 * end;
            Some((Bytes::of_file(file.bytes(), codes, align)?, Bytes::of_file(file.bytes(), ids, 8)?))
        })
        .collect();
    // Sections start at multiples of 64, and lists at whole vectors from there.
    let lists = lists.ok_or(FileDefect::Inconsistent("a list is not aligned"))?;
    let (dim, centroids) = (shape.components() as usize, file.values(Section::Centroids).to_vec());
    checked(Trained { dim, centroids, codec }, code_bytes, lists)
}

/// The parts of an index, of the codes and ids of each list. Codes that are compared without decoding have been
/// checked.
fn checked(trained: Trained, code_bytes: usize, lists: Vec<(Bytes, Bytes)>) -> Result<(Trained, Lists), FileDefect> {
    let lists = Lists::from_parts(code_bytes, lists).map_err(|error| match error {
        Error::DuplicateId { .. } => FileDefect::Inconsistent("an id occurs twice"),
        Error::ReservedId => FileDefect::Inconsistent("an id is the one that means 'no neighbour'"),
        _ => FileDefect::Inconsistent("the lists contradict the shape"),
    })?;
    if !codes_are_finite(&trained, &lists) {
        return Err(FileDefect::Inconsistent("a code stands for a vector that is not finite"));
    }
    Ok((trained, lists))
}

/// Whether all decoded vectors are finite. O(lists · dim), unless the values are so large that all codes must be
/// decoded. Codes that are compared without decoding were checked before.
fn codes_are_finite(trained: &Trained, lists: &Lists) -> bool {
    let Trained { dim, ref centroids, ref codec } = *trained;
    let greatest = centroids.iter().fold(0.0f32, |greatest, value| greatest.max(value.abs()));
    if codec.in_place() || (greatest + codec.reach()).is_finite() {
        return true;
    }
    let not_finite = turns(0..lists.count()).position_first(|list| {
        let mut vector = vec![0.0; dim];
        !lists.codes(list).runs().flat_map(|run| run.chunks_exact(lists.code_bytes())).all(|code| {
            codec.decode_into(code, &centroids[list * dim..][..dim], &mut vector);
            vector.iter().all(|x| x.is_finite())
        })
    });
    not_finite.is_none()
}
