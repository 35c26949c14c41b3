//! Files of vectors, ids and distances. The extension determines the format.
//!
//! | extension | contents (all little-endian) | read as | written from |
//! |---|---|---|---|
//! | `fvecs` | per row: i32 dimension, then that many f32 | vectors | vectors, distances |
//! | `bvecs` | per row: i32 dimension, then that many u8 | vectors | vectors |
//! | `ivecs` | per row: i32 k, then k i32 ids | ids | ids |
//! | `fbin` `u8bin` `i8bin` | u32 rows, u32 dimension, then rows · dimension f32, u8 or i8 | vectors | vectors, distances (`fbin`) |
//! | `ibin` | u32 rows, u32 k, then rows · k u32 ids | ids | ids |
//! | `bin`, or an `ibin` of twice the size | an `ibin`, then rows · k f32 distances (big-ann ground truth) | ids | |
//! | none, or `fbin`, for ids | the same: names that big-ann and DiskANN use; another size is [`FileDefect::UnknownExtension`] | ids | |
//! | `bin` by [`read_range_truth`] | u32 queries, u32 results, u32 results of each query, then u32 ids and f32 distances of all | results | |
//! | `npy` | NumPy array, C order, 2-D, or 1-D for a single row | `f4 f8 f2 u1 i1` vectors; `i4 u4 i8 u8` ids | all three |
//!
//! The case of an extension does not matter. A suffix `.crop_nb_N` behind the extension, which big-ann gives to the
//! first N vectors of a file, is left out: `base.1B.u8bin.crop_nb_10000000` is a `u8bin`.
//!
//! `f8` values become the nearest f32 ([`Vectors::from_f64`]). A finite value beyond the range of f32 is an error.
//!
//! A missing neighbour is −1 in signed ids, all ones in unsigned ids, and [`NONE`](crate::NONE) in memory.
//!
//! For any bytes of a file, a reader returns a value or an [`Error`]: it checks the header against the size of the file
//! before it reserves memory. Every writer writes a temporary file in the same folder, waits until it is on the disk,
//! and renames it. So a reader never sees an incomplete file, and a failed write or a power failure leaves the old file
//! unchanged. Links are followed; pipes and character devices are written directly. A file that is replaced keeps its
//! permissions, and its owner and group if the process may set them. If a process is killed, its temporary file
//! `.warpann-*.part` remains until the next writer of the same name removes it. [`check_files`] checks before the work
//! that outputs can be written. [`lock_file`] makes programs wait that change one file at the same time.
//!
//! `fbin`, `u8bin`, `i8bin` and `npy` vectors above 64 MiB are mapped, not read: opening costs O(1), and the system
//! loads pages when they are used. [`Open`] explains when this is safe, and selects another way. The `vecs` formats
//! have a dimension in front of every row and are copied once, O(file), as `f8` values are. [`read_first_vectors`]
//! reads the beginning of a file, such as the first part of a download of a billion vectors.
//!
//! Streams, such as standard input and output, have no extension: [`read_vectors_from`], [`read_ground_truth_from`],
//! [`write_vectors_to`] and [`write_ids_to`] take the format as an argument.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use warpann::io;
//!
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("three.fvecs");
//! io::write_vectors(&path, &[0.0f32, 1.0, 2.0, 3.0, 4.0, 5.0], 2)?;
//!
//! let vectors = io::read_vectors(&path)?;
//! assert_eq!((vectors.rows(), vectors.dim()), (3, 2));
//! assert_eq!(vectors.as_slice::<f32>().map(|values| values[5]), Some(5.0));
//! assert!(vectors.as_slice::<u8>().is_none());
//! # Ok(())
//! # }
//! ```

mod bin;
mod bytes;
pub(crate) mod checksum;
pub(crate) mod faiss;
pub(crate) mod fields;
mod fuzz;
mod ids;
mod npy;
mod open;
mod output;
mod vecs;
mod vectors;
mod write;

use std::ffi::OsStr;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use crate::element::{Element, ElementType};
use crate::error::{Error, FileDefect, Result};
use crate::names::named;
use crate::neighbors::RangeNeighbors;

use bytes::{Flat, decode, u32_at};
pub(crate) use bytes::{check_size, checked_header};
#[doc(hidden)]
pub use fuzz::read_any_bytes;
pub use ids::{GroundTruth, IdMatrix};
pub use open::Open;
pub(crate) use open::{FileBytes, open, open_regular};
pub(crate) use output::{Destination, Watched, folder_of, is_at, open_locked, replace, sync_folder};
pub use output::{FileLock, check_files, lock_file, write_file, write_file_with};
pub use vectors::{Elements, VectorData, Vectors};
pub(crate) use write::layout;
pub use write::{
    check_distances_path, check_greatest_id, check_ids_path, write_distances, write_ids, write_ids_to, write_vectors,
    write_vectors_to,
};

// Values of files are used in place, so the machine must have the files' byte order. Every host of a CUDA device has
// it.
const _: () = assert!(cfg!(target_endian = "little"), "the file readers need a little-endian host");

/// A file format; each has an extension, which is its text as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// Rows of f32, each after its dimension.
    Fvecs,
    /// Rows of u8, each after its dimension.
    Bvecs,
    /// Rows of i32 ids, each after its length.
    Ivecs,
    /// Header of two u32, then f32.
    Fbin,
    /// Header of two u32, then u8.
    U8bin,
    /// Header of two u32, then i8.
    I8bin,
    /// Header of two u32, then u32 ids; ground-truth distances may follow.
    Ibin,
    /// An array of NumPy.
    Npy,
    /// big-ann ground truth: [`Format::Ibin`] under another extension.
    Bin,
}

/// Extensions of the formats for vectors.
const VECTOR_EXTENSIONS: &str = "fvecs, bvecs, fbin, u8bin, i8bin, npy";
/// Extensions of the formats for ids.
const ID_EXTENSIONS: &str = "ivecs, ibin, npy, bin";
/// The same, in errors of files that could be big-ann ground truth by their names.
const ID_NAMES: &str =
    "ivecs, ibin, npy, bin; fbin or none only for big-ann ground truth, whose size this file does not have";

impl Format {
    /// All formats that the library reads or writes.
    pub const ALL: [Format; 9] =
        [Self::Fvecs, Self::Bvecs, Self::Ivecs, Self::Fbin, Self::U8bin, Self::I8bin, Self::Ibin, Self::Npy, Self::Bin];

    /// The extension, without the dot.
    pub const fn extension(self) -> &'static str {
        match self {
            Self::Fvecs => "fvecs",
            Self::Bvecs => "bvecs",
            Self::Ivecs => "ivecs",
            Self::Fbin => "fbin",
            Self::U8bin => "u8bin",
            Self::I8bin => "i8bin",
            Self::Ibin => "ibin",
            Self::Npy => "npy",
            Self::Bin => "bin",
        }
    }

    /// The format of `path` by its extension, which is compared without regard to case; `None` if it is not that of a
    /// format. A suffix `.crop_nb_N` with digits N behind the extension is left out.
    pub fn of(path: &Path) -> Option<Self> {
        Self::of_extension(extension(path)?.to_str()?)
    }

    /// The format with this extension, without the dot and without regard to case; `None` if there is none.
    pub fn of_extension(extension: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| extension.eq_ignore_ascii_case(format.extension()))
    }

    /// The largest id that a file of this format can hold.
    pub const fn greatest_id(self) -> u64 {
        match self {
            Self::Npy => i64::MAX as u64,
            Self::Ivecs => i32::MAX as u64,
            // Ids are unsigned, and all ones mean `NONE`.
            _ => u32::MAX as u64 - 1,
        }
    }

    /// Whether the format can hold vectors.
    pub const fn holds_vectors(self) -> bool {
        matches!(self, Self::Fvecs | Self::Bvecs | Self::Fbin | Self::U8bin | Self::I8bin | Self::Npy)
    }

    /// Whether the format can hold ids.
    pub const fn holds_ids(self) -> bool {
        matches!(self, Self::Ivecs | Self::Ibin | Self::Npy | Self::Bin)
    }
}

named!(Format, extension, "a file format");

/// Reads a file of vectors: `fvecs`, `bvecs`, `fbin`, `u8bin`, `i8bin` or `npy` by extension. Flat formats above 64 MiB
/// are mapped: such a file must not change while the returned value exists ([`Open`]). [`read_vectors_with`] can read
/// any file into memory instead.
///
/// # Errors
/// [`Error::Io`], or [`Error::BadFile`] with the defect. Values are not checked: NaN and
/// infinities are not an error.
pub fn read_vectors(path: impl AsRef<Path>) -> Result<Vectors> {
    read_vectors_with(path, None, Open::Auto)
}

/// As [`read_vectors`], but only the first `rows` vectors, or all if the file has fewer. In an `fbin`, `u8bin`,
/// `i8bin`, `fvecs` or `bvecs` file the bytes behind them are not read: the file may end anywhere there, whatever
/// number of rows its header has. O(1) for the mapped formats, O(rows) for `vecs`.
///
/// # Errors
/// As [`read_vectors`].
pub fn read_first_vectors(path: impl AsRef<Path>, rows: usize) -> Result<Vectors> {
    read_vectors_with(path, Some(rows), Open::Auto)
}

/// As [`read_vectors`], or as [`read_first_vectors`] if `rows` is given; `how` selects reading or mapping. Vectors that
/// were read do not depend on the file any more. If `rows` is given, only the bytes of these rows are read, except that
/// an `npy` file is read completely.
///
/// # Errors
/// As [`read_vectors`].
pub fn read_vectors_with(path: impl AsRef<Path>, rows: Option<usize>, how: Open) -> Result<Vectors> {
    let path = path.as_ref();
    let format = known(path, Format::holds_vectors, VECTOR_EXTENSIONS)?;
    let bytes = open::open_first(path, how, |head| first_bytes(format, head, rows?))?;
    let read = match bytes {
        Some(bytes) => vectors_of(format, Source::File(&bytes), rows),
        None => vectors_of(format, Source::Bytes(&[]), rows),
    };
    read.map_err(|defect| Error::BadFile { path: path.to_owned(), defect })
}

/// Reads vectors from a stream of the given format, such as standard input: the first `rows` vectors, or all. If `rows`
/// is given, the stream is read only up to the end of these rows, except that `npy` is read completely. `name` stands
/// for the path in errors. O(bytes); all bytes are in memory until they are copied to components.
///
/// # Errors
/// [`Error::Io`], or [`Error::BadFile`] with the defect of the contents; [`FileDefect::WrongElement`] if the format
/// holds no vectors.
///
/// ```
/// use warpann::io::{self, Format};
///
/// let bytes = [1u32.to_le_bytes(), 2u32.to_le_bytes(), 0.5f32.to_le_bytes(), 4.0f32.to_le_bytes()].concat();
/// let vectors = io::read_vectors_from(&bytes[..], "stream", Format::Fbin, None)?;
/// assert_eq!((vectors.rows(), vectors.as_slice()), (1, Some(&[0.5f32, 4.0][..])));
/// # Ok::<(), warpann::Error>(())
/// ```
pub fn read_vectors_from(
    mut stream: impl Read,
    name: impl AsRef<Path>,
    format: Format,
    rows: Option<usize>,
) -> Result<Vectors> {
    let name = name.as_ref();
    let mut bytes = Vec::new();
    // The length of the first vectors follows from the first eight bytes.
    let read = stream.by_ref().take(8).read_to_end(&mut bytes).and_then(|_| {
        let end = rows.and_then(|rows| first_bytes(format, &bytes, rows)).unwrap_or(u64::MAX);
        stream.take(end.saturating_sub(bytes.len() as u64)).read_to_end(&mut bytes)
    });
    read.map_err(|source| Error::Io { path: name.to_owned(), source })?;
    vectors_of(format, Source::Bytes(&bytes), rows).map_err(|defect| Error::BadFile { path: name.to_owned(), defect })
}

/// Reads ids from a stream of the given format, and distances if there are any. `name` stands for the path in errors.
/// O(bytes).
///
/// # Errors
/// As [`read_vectors_from`].
pub fn read_ground_truth_from(mut stream: impl Read, name: impl AsRef<Path>, format: Format) -> Result<GroundTruth> {
    let name = name.as_ref();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).map_err(|source| Error::Io { path: name.to_owned(), source })?;
    ids_from_bytes(format, &bytes).map_err(|defect| Error::BadFile { path: name.to_owned(), defect })
}

/// The number of bytes from the start of the file to the end of its first `rows` vectors, computed from `head`, the
/// beginning of the file. None if the whole file must be read.
fn first_bytes(format: Format, head: &[u8], rows: usize) -> Option<u64> {
    // Sizes of the file's header, of each row's header and of a component, in bytes.
    let (header, row_header, size) = match format {
        Format::Fvecs => (0, 4, 4),
        Format::Bvecs => (0, 4, 1),
        Format::Fbin => (8, 0, 4),
        Format::U8bin | Format::I8bin => (8, 0, 1),
        Format::Ivecs | Format::Ibin | Format::Npy | Format::Bin => return None,
    };
    let dim = head.get(header / 2..header / 2 + 4)?;
    let row = u64::from(u32_at(dim, 0)).saturating_mul(size).saturating_add(row_header);
    Some(row.saturating_mul(rows as u64).saturating_add(header as u64))
}

/// Reads a matrix of ids: `ivecs`, `ibin`, `npy` or `bin` by extension. Distances that a ground-truth file holds are
/// left out.
///
/// # Errors
/// As [`read_vectors`].
pub fn read_ids(path: impl AsRef<Path>) -> Result<IdMatrix> {
    read_ground_truth(path).map(|truth| truth.ids)
}

/// Reads ids, and the distances behind them where the file is big-ann ground truth (`bin`, `ibin`; recognised by its
/// size). A file without extension is read as `bin`. So is an `fbin`, which must have distances: otherwise it is a file
/// of vectors.
///
/// # Errors
/// As [`read_vectors`].
pub fn read_ground_truth(path: impl AsRef<Path>) -> Result<GroundTruth> {
    let path = path.as_ref();
    let floats = Format::of(path) == Some(Format::Fbin);
    if floats || extension(path).is_none() {
        let bytes = open(path, Open::Auto)?;
        let truth = bin::ids(bytes.as_deref().map_or(&[], |bytes| &bytes[..])).ok();
        return truth.filter(|truth| !floats || truth.distances.is_some()).ok_or_else(|| unknown(path, ID_NAMES));
    }
    let format = known(path, Format::holds_ids, ID_EXTENSIONS)?;
    let bytes = open(path, Open::Auto)?;
    ids_from_bytes(format, bytes.as_deref().map_or(&[], |bytes| &bytes[..]))
        .map_err(|defect| Error::BadFile { path: path.to_owned(), defect })
}

/// Reads big-ann ground truth of a range search (`bin`, `ibin`, or without extension), which has for each query all
/// vectors within a radius: u32 number of queries, u32 number of results, u32 number of results of each query, then all
/// ids (u32) and all distances (f32).
///
/// # Errors
/// As [`read_vectors`].
pub fn read_range_truth(path: impl AsRef<Path>) -> Result<RangeNeighbors> {
    let path = path.as_ref();
    if extension(path).is_some() {
        known(path, |format| matches!(format, Format::Bin | Format::Ibin), "bin, ibin, or none")?;
    }
    let bytes = open(path, Open::Auto)?;
    ranges_from_bytes(bytes.as_deref().map_or(&[], |bytes| &bytes[..]))
        .map_err(|defect| Error::BadFile { path: path.to_owned(), defect })
}

/// Reads ground truth of a range search from the contents of a file ([`read_range_truth`]). O(bytes).
///
/// # Errors
/// The defect of the bytes.
pub fn ranges_from_bytes(bytes: &[u8]) -> Result<RangeNeighbors, FileDefect> {
    bin::ranges(bytes)
}

/// Reads vectors from the contents of a file of the given format. The values are copied. O(bytes).
///
/// # Errors
/// The defect of the bytes; [`FileDefect::WrongElement`] if the format holds no vectors.
pub fn vectors_from_bytes(format: Format, bytes: &[u8]) -> Result<Vectors, FileDefect> {
    vectors_of(format, Source::Bytes(bytes), None)
}

/// Reads ids, and distances if there are any, from the contents of a file of the given format. O(bytes).
///
/// # Errors
/// The defect of the bytes; [`FileDefect::WrongElement`] if the format holds no ids.
pub fn ids_from_bytes(format: Format, bytes: &[u8]) -> Result<GroundTruth, FileDefect> {
    match format {
        Format::Ivecs => vecs::ids(bytes),
        Format::Ibin | Format::Bin => bin::ids(bytes),
        Format::Npy => npy::ids(bytes),
        Format::Fvecs | Format::Bvecs | Format::Fbin | Format::U8bin | Format::I8bin => {
            Err(FileDefect::WrongElement { actual: format.extension().into(), expected: ID_EXTENSIONS })
        }
    }
}

/// The origin of bytes, which determines whether the result may refer to them.
#[derive(Clone, Copy)]
enum Source<'a> {
    File(&'a Arc<FileBytes>),
    Bytes(&'a [u8]),
}

impl Source<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::File(bytes) => bytes,
            Self::Bytes(bytes) => bytes,
        }
    }

    /// The `len` elements from byte `at` on. The caller has checked that the bytes exist.
    fn elements<T: Element>(&self, at: usize, len: usize) -> Result<Elements<T>, FileDefect> {
        match self {
            Self::File(bytes) => Elements::of_file(bytes, at, len),
            Self::Bytes(bytes) => Ok(Elements::from(decode(&bytes[at..at + len * size_of::<T>()])?)),
        }
    }
}

/// The vectors of a file, or the first `first` of them.
fn vectors_of(format: Format, source: Source<'_>, first: Option<usize>) -> Result<Vectors, FileDefect> {
    let bytes = source.bytes();
    let flat = match format {
        Format::Fvecs => return vecs::vectors::<f32>(bytes, first),
        Format::Bvecs => return vecs::vectors::<u8>(bytes, first),
        Format::Fbin => bin::flat(bytes, ElementType::F32, first)?,
        Format::U8bin => bin::flat(bytes, ElementType::U8, first)?,
        Format::I8bin => bin::flat(bytes, ElementType::I8, first)?,
        Format::Npy => match npy::matrix(bytes)? {
            npy::Matrix::Flat(flat) => flat,
            npy::Matrix::Float64 { rows, dim, at } => {
                let rows = rows.min(first.unwrap_or(usize::MAX));
                let values = bytes[at..at + rows * dim * 8].chunks_exact(8).map(bytemuck::pod_read_unaligned::<f64>);
                return Vectors::from_f64(values, dim);
            }
        },
        Format::Ivecs | Format::Ibin | Format::Bin => {
            return Err(FileDefect::WrongElement { actual: format.extension().into(), expected: VECTOR_EXTENSIONS });
        }
    };
    let Flat { rows, dim, at, element } = flat;
    let rows = rows.min(first.unwrap_or(usize::MAX));
    let data = match element {
        ElementType::F32 => VectorData::F32(source.elements(at, rows * dim)?),
        ElementType::F16 => VectorData::F16(source.elements(at, rows * dim)?),
        ElementType::Bf16 => VectorData::Bf16(source.elements(at, rows * dim)?),
        ElementType::U8 => VectorData::U8(source.elements(at, rows * dim)?),
        ElementType::I8 => VectorData::I8(source.elements(at, rows * dim)?),
    };
    Ok(Vectors::from_parts(rows, dim, data))
}

/// The extension of `path`, without the dot and without regard to a suffix `.crop_nb_N`; `None` if there is none.
fn extension(path: &Path) -> Option<&OsStr> {
    let last = path.extension()?;
    let digits = last.to_str().and_then(|last| last.strip_prefix("crop_nb_"));
    match digits.is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit())) {
        true => Path::new(path.file_stem()?).extension(),
        false => Some(last),
    }
}

fn unknown(path: &Path, known: &'static str) -> Error {
    Error::BadFile { path: path.to_owned(), defect: FileDefect::UnknownExtension { known } }
}

/// The format of `path`; an error unless `accept` returns true for it.
pub(crate) fn known(path: &Path, accept: impl Fn(Format) -> bool, known: &'static str) -> Result<Format> {
    Format::of(path).filter(|&format| accept(format)).ok_or_else(|| unknown(path, known))
}

#[cfg(test)]
mod tests;
