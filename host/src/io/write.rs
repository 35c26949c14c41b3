//! Writers of vectors, distances and ids. `output.rs` makes the files.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::ops::Range;
use std::path::Path;

use super::output::replace;
use super::{Format, npy};
use crate::NONE;
use crate::element::{Element, ElementType};
use crate::error::{Error, FileDefect, Result};

/// Extensions of the formats for distances.
const DISTANCE_EXTENSIONS: &str = "fbin, fvecs, npy";

/// Writes vectors of dimension `dim`, row after row, to an `fvecs`, `bvecs`, `fbin`, `u8bin`, `i8bin` or `npy` file. O(values).
///
/// # Errors
/// [`Error::UnknownExtension`]; [`Error::BadFile`] with [`FileDefect::WrongElement`] if the format has another element
/// type (bf16 has no file format), or [`FileDefect::BadHeader`] if rows or dimension exceed its header;
/// [`Error::ZeroDimension`] and [`Error::RaggedVectors`]; [`Error::Io`].
pub fn write_vectors<T: Element>(path: impl AsRef<Path>, values: &[T], dim: usize) -> Result<()> {
    matrix(path.as_ref(), values, dim, super::VECTOR_EXTENSIONS)
}

/// Checks that [`write_ids`] supports the extension of `path`. A program can call this before long work.
///
/// # Errors
/// [`Error::UnknownExtension`].
pub fn check_ids_path(path: impl AsRef<Path>) -> Result<()> {
    ids_format(path.as_ref()).map(drop)
}

/// Checks that the format of `path` can hold ids up to `greatest`. A program can call this before long work.
///
/// # Errors
/// [`Error::UnknownExtension`]; [`Error::BadFile`] with [`FileDefect::IdTooLarge`].
pub fn check_greatest_id(path: impl AsRef<Path>, greatest: u64) -> Result<()> {
    let path = path.as_ref();
    let limit = greatest_id(ids_format(path)?);
    if greatest > limit {
        return Err(Error::BadFile { path: path.to_owned(), defect: FileDefect::IdTooLarge { id: greatest, limit } });
    }
    Ok(())
}

/// The largest id that a format of ids can hold.
fn greatest_id(format: Format) -> u64 {
    match format {
        Format::Npy => i64::MAX as u64,
        Format::Ivecs => i32::MAX as u64,
        // Ids are unsigned, and all ones mean `NONE`.
        _ => u64::from(u32::MAX) - 1,
    }
}

/// Checks that [`write_distances`] supports the extension of `path`. A program can call this before long work.
///
/// # Errors
/// [`Error::UnknownExtension`].
pub fn check_distances_path(path: impl AsRef<Path>) -> Result<()> {
    matrix_format(path.as_ref(), DISTANCE_EXTENSIONS).map(drop)
}

/// Writes distances, `k` for each query, to an `fbin`, `fvecs` or `npy` file. O(values).
///
/// # Errors
/// As [`write_vectors`].
pub fn write_distances(path: impl AsRef<Path>, distances: &[f32], k: usize) -> Result<()> {
    matrix(path.as_ref(), distances, k, DISTANCE_EXTENSIONS)
}

/// Writes ids, `k` for each query, to an `ibin`, `ivecs` or `npy` file. [`NONE`] is written as all ones, which is −1 in signed ids. `ibin`
/// holds u32, `ivecs` i32 and `npy` i64. Some programs read the ids of `ibin` as i32; they get negative numbers for ids from 2³¹ on.
/// O(ids).
///
/// # Errors
/// [`Error::UnknownExtension`]; [`Error::BadFile`] with [`FileDefect::IdTooLarge`] if an id exceeds 2³² − 2 in `ibin`, 2³¹ − 1 in
/// `ivecs` or 2⁶³ − 1 in `npy`, or [`FileDefect::BadHeader`] if the counts exceed its header; [`Error::ZeroK`] and [`Error::RaggedVectors`];
/// [`Error::Io`].
pub fn write_ids(path: impl AsRef<Path>, ids: &[u64], k: usize) -> Result<()> {
    let path = path.as_ref();
    let format = ids_format(path)?;
    if k == 0 {
        return Err(Error::ZeroK);
    }
    let limit = greatest_id(format);
    let bad = |defect| Error::BadFile { path: path.to_owned(), defect };
    if let Some(&id) = ids.iter().find(|&&id| id > limit && id != NONE) {
        return Err(bad(FileDefect::IdTooLarge { id, limit }));
    }
    // All bits of NONE are ones, so its low 32 bits are the i32 −1 and the u32 that means no id.
    if format == Format::Npy {
        return save(path, format, ids.len(), k, "<i8", |range, out| out.write_all(bytemuck::cast_slice(&ids[range])));
    }
    save(path, format, ids.len(), k, "", |range, out| {
        ids[range].iter().try_for_each(|&id| out.write_all(&(id as u32).to_le_bytes()))
    })
}

fn ids_format(path: &Path) -> Result<Format> {
    super::known(path, |format| matches!(format, Format::Ibin | Format::Ivecs | Format::Npy), "ibin, ivecs, npy")
}

/// The format of `path` if it is one of `extensions`.
fn matrix_format(path: &Path, extensions: &'static str) -> Result<Format> {
    let accept = |format: Format| extensions.split(", ").any(|extension| extension == format.extension());
    super::known(path, accept, extensions)
}

/// Writes `values` as rows of `dim` components. The extension of `path` must be one of `extensions`.
fn matrix<T: Element>(path: &Path, values: &[T], dim: usize, extensions: &'static str) -> Result<()> {
    let format = matrix_format(path, extensions)?;
    if dim == 0 {
        return Err(Error::ZeroDimension);
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
        _ => Err("f32"),
    };
    let descr = descr.map_err(|expected| {
        let defect = FileDefect::WrongElement { actual: T::TYPE.name().into(), expected };
        Error::BadFile { path: path.to_owned(), defect }
    })?;
    save(path, format, values.len(), dim, descr, |range, out| out.write_all(bytemuck::cast_slice(&values[range])))
}

/// Writes `len` values as rows of `columns` in the layout of `format`; `write` writes the values of one row.
fn save(
    path: &Path,
    format: Format,
    len: usize,
    columns: usize,
    descr: &str,
    mut write: impl FnMut(Range<usize>, &mut BufWriter<&mut File>) -> std::io::Result<()>,
) -> Result<()> {
    if !len.is_multiple_of(columns) {
        return Err(Error::RaggedVectors { len, dim: columns });
    }
    let rows = len / columns;
    let (header, prefix) = layout(path, format, rows, columns, descr)?;
    replace(path, |file| {
        let mut out = BufWriter::new(file);
        out.write_all(&header)?;
        for row in 0..rows {
            out.write_all(&prefix)?;
            write(row * columns..(row + 1) * columns, &mut out)?;
        }
        out.flush()
    })
}

/// The header of a file with `rows` rows, and the bytes in front of each row. `descr` is NumPy's name for the type of the values.
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
