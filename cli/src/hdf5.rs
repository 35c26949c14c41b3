//! Datasets of HDF5 files, such as those of ann-benchmarks: `train` and `test` (vectors), `neighbors` (ids) and
//! `distances`.

mod values;

use std::path::Path;

use hdf5_reader::{Dataset, Datatype, H5Type, Hdf5File};
use warpann::io::{IdMatrix, Vectors};
use warpann::{Element, Error, FileDefect, NONE};

use crate::report::{Failure, Outcome};
use values::MOST_COMPRESSION;

/// Rows of vectors, or of ids.
pub enum Matrix {
    Vectors(Vectors),
    Ids(IdMatrix),
}

/// Whether a path has the extension of an HDF5 file.
pub fn is_hdf5(path: &Path) -> bool {
    path.extension().is_some_and(|extension| ["hdf5", "h5"].iter().any(|known| extension.eq_ignore_ascii_case(known)))
}

/// Reads a dataset of two dimensions, or of one, which is a single row. Floating-point numbers and 8-bit integers are
/// components; f64 is read as f32, as in npy files. Integers of 32 and 64 bits are ids; −1, or all ones in unsigned
/// types, is an empty slot.
///
/// A shape that is too large for the file or for the memory is an error. The reader limits what other parts of a
/// damaged file can allocate.
pub fn read(path: &Path, name: Option<&str>) -> Outcome<Matrix> {
    let failed = |error: hdf5_reader::error::Error| Failure::Message(format!("{}: {error}", path.display()));
    let file = Hdf5File::open(path).map_err(failed)?;
    let Some(name) = name else {
        let names = file.root_group().and_then(|root| root.member_names()).map_err(failed)?.1.join(", ");
        let message = format!("{}: name one of the datasets by --dataset: {names}", path.display());
        return Err(Failure::Message(message));
    };
    let dataset = file.dataset(name).map_err(failed)?;
    let (rows, columns) = match *dataset.shape() {
        [columns] => (1, columns),
        [rows, columns] => (rows, columns),
        ref shape => {
            let message = format!("{}: dataset {name} has {} dimensions, not 1 or 2", path.display(), shape.len());
            return Err(Failure::Message(message));
        }
    };
    let bad = |defect| Failure::from(Error::BadFile { path: path.to_owned(), defect });
    let shape = usize::try_from(rows).ok().zip(usize::try_from(columns).ok());
    let Some((rows, dim)) = shape else { return Err(bad(FileDefect::TooLarge { rows, dim: columns })) };
    if rows > 0 && dim == 0 {
        return Err(bad(FileDefect::BadDimension(0)));
    }
    let file_bytes = std::fs::metadata(path).map_err(|source| Error::Io { path: path.to_owned(), source })?.len();
    let values = (rows as u64).saturating_mul(dim as u64);
    if values > file_bytes.saturating_mul(MOST_COMPRESSION) {
        return Err(Failure::Message(format!(
            "{}: a file of {file_bytes} bytes cannot hold {rows} rows of {dim} values, the shape of dataset {name}",
            path.display()
        )));
    }
    let from = Source { path, file: &file, dataset: &dataset, rows, dim };
    match *dataset.dtype() {
        Datatype::FloatingPoint { size: 4, .. } => from.vectors::<f32>(),
        Datatype::FloatingPoint { size: 8, .. } => {
            let values = from.values(0f64)?;
            Vectors::from_f64(values.into_iter(), dim).map(Matrix::Vectors).map_err(bad)
        }
        Datatype::FixedPoint { size: 1, signed: false, .. } => from.vectors::<u8>(),
        Datatype::FixedPoint { size: 1, signed: true, .. } => from.vectors::<i8>(),
        Datatype::FixedPoint { size: 4, signed: true, .. } => from.ids(0i32, |id| signed(id.into())),
        Datatype::FixedPoint { size: 8, signed: true, .. } => from.ids(0i64, signed),
        Datatype::FixedPoint { size: 4, signed: false, .. } => {
            from.ids(0u32, |id| Ok(if id == u32::MAX { NONE } else { id.into() }))
        }
        Datatype::FixedPoint { size: 8, signed: false, .. } => from.ids(0u64, Ok),
        ref other => Err(bad(FileDefect::WrongElement {
            actual: described(other),
            expected: "floating point of 32 or 64 bits, or integers of 8, 32 or 64 bits",
        })),
    }
}

/// A short name of a type that is not supported.
fn described(datatype: &Datatype) -> String {
    match datatype {
        Datatype::FloatingPoint { size, .. } => format!("floating point of {} bits", 8 * u32::from(*size)),
        Datatype::FixedPoint { size, .. } => format!("integer of {} bits", 8 * u32::from(*size)),
        Datatype::Enum { .. } => "enumeration (or bool)".into(),
        Datatype::VarLen { .. } => "rows of different lengths".into(),
        _ => "neither integer nor floating point".into(),
    }
}

fn signed(id: i64) -> Result<u64, i64> {
    if id == -1 { Ok(NONE) } else { u64::try_from(id).map_err(|_| id) }
}

/// A dataset and its shape.
struct Source<'a> {
    path: &'a Path,
    file: &'a Hdf5File,
    dataset: &'a Dataset,
    rows: usize,
    dim: usize,
}

impl Source<'_> {
    /// All values, of the stored type. `zero` is 0.
    fn values<T: H5Type + Copy>(&self, zero: T) -> Outcome<Vec<T>> {
        let &Self { path, file, dataset, rows, dim } = self;
        let too_large = || {
            let defect = FileDefect::TooLarge { rows: rows as u64, dim: dim as u64 };
            Error::BadFile { path: path.to_owned(), defect }
        };
        let len = rows.checked_mul(dim).ok_or_else(too_large)?;
        let mut values = Vec::new();
        values.try_reserve_exact(len).map_err(|_| too_large())?;
        values.resize(len, zero);
        let read = values::read(file, dataset, &mut values);
        read.map_err(|error| Failure::Message(format!("{}: {error}", path.display())))?;
        Ok(values)
    }

    fn vectors<T: H5Type + Element>(&self) -> Outcome<Matrix> {
        Ok(Matrix::Vectors(Vectors::new(self.values(T::default())?, self.dim.max(1))?))
    }

    fn ids<T: H5Type + Copy>(&self, zero: T, read: impl Fn(T) -> Result<u64, i64>) -> Outcome<Matrix> {
        let &Self { path, rows, dim: k, .. } = self;
        let values = self.values(zero)?;
        let ids = values.into_iter().enumerate().map(|(at, value)| {
            read(value).map_err(|id| {
                let defect = FileDefect::BadId { row: (at / k) as u64, column: (at % k) as u64, id };
                Error::BadFile { path: path.to_owned(), defect }
            })
        });
        Ok(Matrix::Ids(IdMatrix { rows, k, ids: ids.collect::<warpann::Result<_>>()? }))
    }
}

#[cfg(test)]
mod tests {
    use rayon::prelude::*;

    use super::*;

    /// The files that the scripts in cli/tests/data wrote with h5py, and the datasets of these files that are damaged.
    const FILES: [(&[u8], &str); 2] = [
        (
            include_bytes!("../tests/data/ann-benchmarks.hdf5"),
            "train packed double bytes neighbors wide big_endian ragged",
        ),
        (
            include_bytes!("../tests/data/hdf5-chunks.hdf5"),
            "fixed-high fixed-gzip fixed-pages implicit-high single-gzip extensible-high tree-gzip old grown line narrow",
        ),
    ];

    /// Reads the datasets of a damaged file. Returns the number of those that were read.
    fn read_all(path: &Path, bytes: &[u8], datasets: &str) -> usize {
        std::fs::write(path, bytes).unwrap();
        let read = |name: &&str| match read(path, Some(name)) {
            Ok(Matrix::Vectors(vectors)) => vectors.rows() < 1 << 20,
            Ok(Matrix::Ids(ids)) => ids.ids.len() == ids.rows * ids.k,
            Err(error) => error.to_string().is_empty(),
        };
        datasets.split(' ').filter(read).count()
    }

    /// A run damages one byte in four. Which ones follows from the revision, so each is damaged in the course of some
    /// revisions.
    const SHARE: usize = 4;

    /// Neither a panic nor an allocation that ends the program.
    #[test]
    fn damaged_files_give_values_or_errors() {
        let path = || tempfile::NamedTempFile::new().unwrap().into_temp_path();
        let whole_path = path();
        for (file, datasets) in FILES {
            let whole = read_all(&whole_path, file, datasets);
            assert_eq!(whole, datasets.split(' ').count() - 1, "all but the last can be read");
            let lengths = (0..file.len()).step_by(97);
            let refused = lengths.clone().filter(|&len| read_all(&whole_path, &file[..len], datasets) < whole).count();
            assert!(refused > lengths.count() * 9 / 10, "{refused}");
            let first = test_random::seeds::base().unwrap() as usize % SHARE;
            let used: Vec<usize> = (0..file.len()).filter(|&at| file[at] != 0).collect();
            assert!(used.len() > 1000);
            let used: Vec<usize> = used.into_iter().skip(first).step_by(SHARE).collect();
            let damaged = || (path(), file.to_vec());
            used.into_par_iter().for_each_init(damaged, |(path, bytes), at| {
                for value in [0xff, file[at] ^ 1] {
                    bytes[at] = value;
                    read_all(path, bytes, datasets);
                }
                bytes[at] = file[at];
            });
        }
    }
}
