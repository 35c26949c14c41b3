//! Reads vectors from files and converts them to the required element type.

use std::borrow::Cow;
use std::path::Path;

use warpann::io::{GroundTruth, IdMatrix, Open, Vectors};
use warpann::{Element, ElementType, Error};

use crate::hdf5::Matrix;
use crate::parquet::{self, is_parquet};
use crate::report::{Failure, Outcome, complain};
use crate::safetensors::{self, is_safetensors};
use crate::streams::{Stdin, is_stream};

/// The option that selects whether files are read or mapped.
#[derive(Debug, Clone, clap::Args)]
pub struct Access {
    /// auto reads files of vectors and indexes up to 64 MiB into memory and maps larger ones; read reads all, map maps
    /// all. A mapped file must not change during the run: if it is truncated, the system ends the program.
    #[arg(long = "map", value_name = "HOW", default_value_t)]
    pub how: Open,
    /// The column of vectors in Parquet files, or the tensor in safetensors files. Default: the only one.
    #[arg(long, value_name = "NAME")]
    pub column: Option<String>,
    #[command(flatten)]
    pub stdin: Stdin,
}

impl Access {
    /// The vectors of a file or of standard input.
    pub fn vectors(&self, path: impl AsRef<Path>) -> Outcome<Vectors> {
        self.first_vectors(path, None)
    }

    /// The first `rows` vectors, or all.
    pub fn first_vectors(&self, path: impl AsRef<Path>, rows: Option<usize>) -> Outcome<Vectors> {
        let (path, column) = (path.as_ref(), self.column.as_deref());
        if is_parquet(path) {
            return parquet::vectors(path, column, rows);
        }
        if !is_safetensors(path) {
            return self.stdin.vectors(path, rows, self.how);
        }
        match safetensors::read(path, column, rows)? {
            Matrix::Vectors(vectors) => Ok(vectors),
            Matrix::Ids(_) => Err(Failure::Message(format!("{}: the tensor holds ids", path.display()))),
        }
    }

    /// The ids of a file or of standard input.
    pub fn ids(&self, path: impl AsRef<Path>) -> Outcome<IdMatrix> {
        let (path, column) = (path.as_ref(), self.column.as_deref());
        if is_parquet(path) {
            return parquet::only_ids(path, column);
        }
        if !is_safetensors(path) {
            return self.stdin.ids(path);
        }
        match safetensors::read(path, column, None)? {
            Matrix::Ids(ids) => Ok(ids),
            Matrix::Vectors(_) => Err(Failure::Message(format!("{}: the tensor holds vectors", path.display()))),
        }
    }

    /// The ids of the first `rows` vectors of `base`, or of all: a file of ids, or a column if `base` is Parquet.
    pub fn ids_of(&self, base: &Path, ids: &Path, rows: Option<usize>) -> Outcome<IdMatrix> {
        match ids.to_str() {
            Some(column) if is_parquet(base) && ids.extension().is_none() && !is_stream(ids) => {
                parquet::ids(base, Some(column), rows)
            }
            _ => self.ids(ids),
        }
    }

    /// The ids of a file or of standard input, with their distances if there are any.
    pub fn ground_truth(&self, path: impl AsRef<Path>) -> Outcome<GroundTruth> {
        let path = path.as_ref();
        if is_parquet(path) || is_safetensors(path) {
            return Ok(GroundTruth { ids: self.ids(path)?, distances: None });
        }
        self.stdin.ground_truth(path)
    }
}

/// Runs `$body` with `$T` as the type of an [`ElementType`]. In a function that returns an [`Outcome`]: an element type
/// that the program lacks is its failure.
macro_rules! with_element {
    ($element:expr, $T:ident => $body:expr) => {
        match $element {
            warpann::ElementType::F32 => {
                type $T = f32;
                $body
            }
            warpann::ElementType::F16 => {
                type $T = half::f16;
                $body
            }
            warpann::ElementType::Bf16 => {
                type $T = half::bf16;
                $body
            }
            warpann::ElementType::U8 => {
                type $T = u8;
                $body
            }
            warpann::ElementType::I8 => {
                type $T = i8;
                $body
            }
            other => return Err($crate::report::Failure::Message(format!("this program has no vectors of {other}"))),
        }
    };
}
pub(crate) use with_element;

/// The components of `vectors`, which came from `path`, as `T`: in place, or converted with a note. A component that
/// `T` cannot hold is an error.
pub fn exactly<'a, T: Element>(vectors: &'a Vectors, path: &Path) -> Outcome<Cow<'a, [T]>> {
    let converted = convert::<T>(vectors, path)?;
    if let Cow::Owned(_) = converted {
        let (from, to) = (vectors.element().name(), T::TYPE.name());
        complain(format_args!("note: {} holds {from}: converted to {to}, which is exact", path.display()));
    }
    Ok(converted)
}

/// As [`exactly`], without a note.
pub fn convert<'a, T: Element>(vectors: &'a Vectors, path: &Path) -> Outcome<Cow<'a, [T]>> {
    if let Some(values) = vectors.as_slice::<T>() {
        return Ok(Cow::Borrowed(values));
    }
    let wide = vectors.to_f32().map_err(|defect| Error::BadFile { path: path.to_owned(), defect })?;
    let wide = wide.as_slice::<f32>().unwrap_or_default();
    // f32 holds the values of every type. The library checks that numbers are finite.
    let fits = |x: f32| T::TYPE == ElementType::F32 || T::from_f32(x).to_f32() == x;
    if let Some(at) = wide.iter().position(|&x| !fits(x)) {
        let (row, column, value, to) = (at / vectors.dim(), at % vectors.dim(), wide[at], T::TYPE.name());
        let message =
            format!("{}: component {value} at row {row}, column {column} is not a value of {to}", path.display());
        return Err(Failure::Message(message));
    }
    Ok(Cow::Owned(wide.iter().map(|&x| T::from_f32(x)).collect()))
}
