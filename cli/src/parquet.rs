//! Parquet files: vectors in a column of lists, ids in a column of integers, results as a table.
//!
//! An input is a file, a folder (all of its Parquet files, by name), or a pattern with `*` and `?` in the last part of
//! the path. Rows are those of all files, in order. A column is read row group by row group, so what is in memory is
//! the vectors and one page of the file. Of a file only the columns that are needed are read.
//!
//! The crate `parquet` is used without Arrow. Without the feature `parquet` every function that needs it refuses its
//! file.

#[cfg(feature = "parquet")]
mod files;
#[cfg(feature = "parquet")]
mod read;
#[cfg(feature = "parquet")]
mod write;

use std::path::Path;

#[cfg(feature = "parquet")]
pub use self::read::{ids, matrix, only_ids, vectors};
#[cfg(feature = "parquet")]
pub use self::write::{table, write_ids, write_vectors};

/// The extension of the files.
pub const EXTENSION: &str = "parquet";

/// The greatest id that is written: ids are signed, as other programs write them.
pub const GREATEST_ID: u64 = i64::MAX as u64;

/// Whether a path is that of Parquet files: by its extension, or a folder.
pub fn is_parquet(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case(EXTENSION)) || path.is_dir()
}

#[cfg(not(feature = "parquet"))]
mod off {
    use warpann::Element;
    use warpann::io::{IdMatrix, Vectors};

    use super::*;
    use crate::hdf5::Matrix;
    use crate::report::{Failure, Outcome};

    fn refused<V>(path: &Path) -> Outcome<V> {
        Err(Failure::Message(format!("{}: this program was built without its feature parquet", path.display())))
    }

    pub fn vectors(path: &Path, _: Option<&str>, _: Option<usize>) -> Outcome<Vectors> {
        refused(path)
    }

    pub fn ids(path: &Path, _: Option<&str>, _: Option<usize>) -> Outcome<IdMatrix> {
        refused(path)
    }

    pub fn only_ids(path: &Path, _: Option<&str>) -> Outcome<IdMatrix> {
        refused(path)
    }

    pub fn matrix(path: &Path, _: Option<&str>, _: Option<usize>) -> Outcome<Matrix> {
        refused(path)
    }

    pub fn table<'r>(path: &Path, _: impl IntoIterator<Item = (usize, usize, &'r u64, &'r f32)>) -> Outcome<Vec<u8>> {
        refused(path)
    }

    pub fn write_vectors<T: Element>(path: &Path, _: &[T], _: usize) -> Outcome<Vec<u8>> {
        refused(path)
    }

    pub fn write_ids(path: &Path, _: &[u64], _: usize) -> Outcome<Vec<u8>> {
        refused(path)
    }
}
#[cfg(not(feature = "parquet"))]
pub use off::{ids, matrix, only_ids, table, vectors, write_ids, write_vectors};
