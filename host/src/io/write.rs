//! Writers of vectors, distances and ids. `output.rs` makes the files.

use std::io::{BufWriter, Write};
use std::path::Path;

use super::output::replace;
use super::{Format, npy};
use crate::NONE;
use crate::element::{Element, ElementType};
use crate::error::{Error, FileDefect, Result};
use crate::validate::check_multiple;

/// Extensions of the formats for distances.
const DISTANCE_EXTENSIONS: &str = "fbin, fvecs, npy";
/// Extensions of the formats in which ids are written.
const WRITTEN_IDS: &str = "ibin, ivecs, npy";

/// Writes vectors of dimension `dim`, row after row, to an `fvecs`, `bvecs`, `fbin`, `u8bin`, `i8bin` or `npy` file.
/// O(values).
///
/// # Errors
/// [`Error::BadFile`] with [`FileDefect::UnknownExtension`], or with [`FileDefect::WrongElement`] if the format has
/// another element type (bf16 has no file format), or [`FileDefect::BadHeader`] if rows or dimension exceed its header;
/// [`Error::Zero`] and [`Error::Ragged`]; [`Error::Io`].
pub fn write_vectors<T: Element>(path: impl AsRef<Path>, values: &[T], dim: usize) -> Result<()> {
    let path = path.as_ref();
    let format = matrix_format(path, super::VECTOR_EXTENSIONS)?;
    let table = Table::of_vectors(path, format, values, dim)?;
    replace(path, |file| table.write(file))
}

/// As [`write_vectors`], but to a stream of the given format, such as standard output. `name` stands for the path in
/// errors. The checks come before the first byte.
///
/// # Errors
/// As [`write_vectors`]; [`FileDefect::WrongElement`] also if the format holds no vectors.
///
/// ```
/// use warpann::io::{self, Format};
///
/// let mut bytes = Vec::new();
/// io::write_vectors_to(&mut bytes, "stream", Format::U8bin, &[7u8, 8, 9], 3)?;
/// assert_eq!(bytes, [1, 0, 0, 0, 3, 0, 0, 0, 7, 8, 9]);
/// # Ok::<(), warpann::Error>(())
/// ```
pub fn write_vectors_to<T: Element>(
    stream: impl Write,
    name: impl AsRef<Path>,
    format: Format,
    values: &[T],
    dim: usize,
) -> Result<()> {
    let name = name.as_ref();
    Table::of_vectors(name, format, values, dim)?.stream(stream, name)
}

/// Checks that [`write_ids`] supports the extension of `path`. A program can call this before long work.
///
/// # Errors
/// [`Error::BadFile`] with [`FileDefect::UnknownExtension`].
pub fn check_ids_path(path: impl AsRef<Path>) -> Result<()> {
    ids_format(path.as_ref()).map(drop)
}

/// Checks that the format of `path` can hold ids up to `greatest`. A program can call this before long work.
///
/// # Errors
/// [`Error::BadFile`] with [`FileDefect::UnknownExtension`], or with [`FileDefect::IdTooLarge`].
pub fn check_greatest_id(path: impl AsRef<Path>, greatest: u64) -> Result<()> {
    let path = path.as_ref();
    let limit = ids_format(path)?.greatest_id();
    if greatest > limit {
        return Err(Error::BadFile { path: path.to_owned(), defect: FileDefect::IdTooLarge { id: greatest, limit } });
    }
    Ok(())
}

/// Checks that [`write_distances`] supports the extension of `path`. A program can call this before long work.
///
/// # Errors
/// [`Error::BadFile`] with [`FileDefect::UnknownExtension`].
pub fn check_distances_path(path: impl AsRef<Path>) -> Result<()> {
    matrix_format(path.as_ref(), DISTANCE_EXTENSIONS).map(drop)
}

/// Writes distances, `k` for each query, to an `fbin`, `fvecs` or `npy` file. O(values).
///
/// # Errors
/// As [`write_vectors`].
pub fn write_distances(path: impl AsRef<Path>, distances: &[f32], k: usize) -> Result<()> {
    let path = path.as_ref();
    let format = matrix_format(path, DISTANCE_EXTENSIONS)?;
    let table = Table::of_vectors(path, format, distances, k)?;
    replace(path, |file| table.write(file))
}

/// Writes ids, `k` for each query, to an `ibin`, `ivecs` or `npy` file. [`NONE`] is written as all ones, which is −1 in
/// signed ids. `ibin` holds u32, `ivecs` i32 and `npy` i64. Some programs read the ids of `ibin` as i32; they get
/// negative numbers for ids from 2³¹ on. O(ids).
///
/// # Errors
/// [`Error::BadFile`] with [`FileDefect::UnknownExtension`], or with [`FileDefect::IdTooLarge`] if an id exceeds 2³² −
/// 2 in `ibin`, 2³¹ − 1 in `ivecs` or 2⁶³ − 1 in `npy`, or [`FileDefect::BadHeader`] if the counts exceed its header;
/// [`Error::Zero`] and [`Error::Ragged`]; [`Error::Io`].
pub fn write_ids(path: impl AsRef<Path>, ids: &[u64], k: usize) -> Result<()> {
    let path = path.as_ref();
    let table = Table::of_ids(path, ids_format(path)?, ids, k)?;
    replace(path, |file| table.write(file))
}

/// As [`write_ids`], but to a stream of the given format, such as standard output. `name` stands for the path in
/// errors. The checks come before the first byte.
///
/// # Errors
/// As [`write_ids`]; [`FileDefect::WrongElement`] if the format holds no ids.
pub fn write_ids_to(stream: impl Write, name: impl AsRef<Path>, format: Format, ids: &[u64], k: usize) -> Result<()> {
    let name = name.as_ref();
    Table::of_ids(name, format, ids, k)?.stream(stream, name)
}

fn ids_format(path: &Path) -> Result<Format> {
    super::known(path, |format| matches!(format, Format::Ibin | Format::Ivecs | Format::Npy), WRITTEN_IDS)
}

/// The format of `path` if it is one of `extensions`.
fn matrix_format(path: &Path, extensions: &'static str) -> Result<Format> {
    let accept = |format: Format| extensions.split(", ").any(|extension| extension == format.extension());
    super::known(path, accept, extensions)
}

/// A matrix in the layout of a format, ready to be written.
struct Table<'a> {
    header: Vec<u8>,
    /// The bytes in front of each row.
    prefix: Vec<u8>,
    columns: usize,
    values: Values<'a>,
}

/// The values of a [`Table`], row after row.
enum Values<'a> {
    /// Bytes of components of `size` bytes.
    Components { bytes: &'a [u8], size: usize },
    /// Ids in 8 bytes.
    Wide(&'a [u64]),
    /// Ids in 4 bytes.
    Narrow(&'a [u64]),
}

impl<'a> Table<'a> {
    /// Vectors of dimension `dim`. `path` is for errors.
    fn of_vectors<T: Element>(path: &Path, format: Format, values: &'a [T], dim: usize) -> Result<Self> {
        if dim == 0 {
            return Err(Error::Zero { what: "dimension" });
        }
        use ElementType::{Bf16, F16, F32, I8, U8};
        let descr = match (format, T::TYPE) {
            (Format::Fvecs | Format::Fbin, F32) | (Format::Bvecs | Format::U8bin, U8) | (Format::I8bin, I8) => Ok(""),
            (Format::Npy, F32) => Ok("<f4"),
            (Format::Npy, F16) => Ok("<f2"),
            (Format::Npy, U8) => Ok("|u1"),
            (Format::Npy, I8) => Ok("|i1"),
            (Format::Npy, Bf16) => Err("f32, f16, u8 or i8"),
            (Format::Bvecs | Format::U8bin, _) => Err("u8"),
            (Format::I8bin, _) => Err("i8"),
            (Format::Ivecs | Format::Ibin | Format::Bin, _) => Err("ids"),
            (Format::Fvecs | Format::Fbin, _) => Err("f32"),
        };
        let descr = descr.map_err(|expected| {
            let defect = FileDefect::WrongElement { actual: T::TYPE.name().into(), expected };
            Error::BadFile { path: path.to_owned(), defect }
        })?;
        let bytes = Values::Components { bytes: bytemuck::cast_slice(values), size: size_of::<T>() };
        Self::new(path, format, values.len(), dim, descr, bytes)
    }

    /// `k` ids for each row. `path` is for errors.
    fn of_ids(path: &Path, format: Format, ids: &'a [u64], k: usize) -> Result<Self> {
        let bad = |defect| Error::BadFile { path: path.to_owned(), defect };
        if !matches!(format, Format::Ibin | Format::Ivecs | Format::Npy) {
            return Err(bad(FileDefect::WrongElement { actual: "ids".into(), expected: WRITTEN_IDS }));
        }
        if k == 0 {
            return Err(Error::Zero { what: "k" });
        }
        let limit = format.greatest_id();
        if let Some(&id) = ids.iter().find(|&&id| id > limit && id != NONE) {
            return Err(bad(FileDefect::IdTooLarge { id, limit }));
        }
        let (descr, values) = match format {
            Format::Npy => ("<i8", Values::Wide(ids)),
            _ => ("", Values::Narrow(ids)),
        };
        Self::new(path, format, ids.len(), k, descr, values)
    }

    fn new(path: &Path, format: Format, len: usize, columns: usize, descr: &str, values: Values<'a>) -> Result<Self> {
        let rows = check_multiple("values", len, columns)?;
        let (header, prefix) = layout(path, format, rows, columns, descr)?;
        Ok(Self { header, prefix, columns, values })
    }

    /// Writes all bytes to `out`. O(values).
    fn write(&self, out: impl Write) -> std::io::Result<()> {
        let mut out = BufWriter::new(out);
        out.write_all(&self.header)?;
        match self.values {
            Values::Components { bytes, size } => self.rows(bytes, size, &mut out, |row, out| out.write_all(row))?,
            Values::Wide(ids) => self.rows(ids, 1, &mut out, |row, out| out.write_all(bytemuck::cast_slice(row)))?,
            // All bits of NONE are ones, so its low 32 bits are the i32 −1 and the u32 that means no id.
            Values::Narrow(ids) => self.rows(ids, 1, &mut out, |row, out| {
                row.iter().try_for_each(|&id| out.write_all(&(id as u32).to_le_bytes()))
            })?,
        }
        out.flush()
    }

    /// Writes each row of `values`, `size` of which make a component.
    fn rows<V, O: Write>(
        &self,
        values: &[V],
        size: usize,
        out: &mut O,
        mut write: impl FnMut(&[V], &mut O) -> std::io::Result<()>,
    ) -> std::io::Result<()> {
        values.chunks_exact(self.columns * size).try_for_each(|row| {
            out.write_all(&self.prefix)?;
            write(row, out)
        })
    }

    /// Writes all bytes to a stream.
    fn stream(&self, stream: impl Write, name: &Path) -> Result<()> {
        self.write(stream).map_err(|source| Error::Io { path: name.to_owned(), source })
    }
}

/// The header of a file with `rows` rows, and the bytes in front of each row. `descr` is NumPy's name for the type of
/// the values.
pub(crate) fn layout(
    path: &Path,
    format: Format,
    rows: usize,
    columns: usize,
    descr: &str,
) -> Result<(Vec<u8>, Vec<u8>)> {
    let too_big = |field| Error::BadFile { path: path.to_owned(), defect: FileDefect::BadHeader(field) };
    Ok(match format {
        Format::Npy => (npy::write_header(descr, rows, columns), Vec::new()),
        Format::Fvecs | Format::Bvecs | Format::Ivecs => {
            let columns =
                i32::try_from(columns).map_err(|_| too_big("a row is longer than the limit of vecs files"))?;
            (Vec::new(), columns.to_le_bytes().to_vec())
        }
        Format::Fbin | Format::U8bin | Format::I8bin | Format::Ibin | Format::Bin => {
            let word = |count: usize| {
                u32::try_from(count).map_err(|_| too_big("more rows or columns than the limit of bin files; use npy"))
            };
            ([word(rows)?.to_le_bytes(), word(columns)?.to_le_bytes()].concat(), Vec::new())
        }
    })
}
