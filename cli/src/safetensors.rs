//! Tensors of safetensors files: eight bytes with the length of a header, the header in JSON, then the values.
//!
//! Format: <https://huggingface.co/docs/safetensors>.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use half::{bf16, f16};
use serde::Deserialize;
use warpann::io::{IdMatrix, Vectors};
use warpann::{Element, Error, FileDefect, NONE};

use crate::hdf5::Matrix;
use crate::report::{Failure, Outcome};

/// Most bytes of a header, as in the reader of the format's authors.
const MOST_HEADER: u64 = 100_000_000;
/// Bytes that are read at a time.
const CHUNK: usize = 1 << 20;

/// Whether a path has the extension of the files.
pub fn is_safetensors(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("safetensors"))
}

#[derive(Deserialize)]
struct Tensor {
    dtype: String,
    shape: Vec<u64>,
    /// First byte, and the byte behind the last, after the header.
    data_offsets: (u64, u64),
}

/// The first `rows` rows of a tensor with two axes, or all. Floating-point numbers and 8-bit integers are components;
/// F64 becomes the nearest f32. Integers of 32 and 64 bits are ids, and −1 is an empty slot. Without a name the file
/// must have one tensor of such a shape.
pub fn read(path: &Path, name: Option<&str>, rows: Option<usize>) -> Outcome<Matrix> {
    let io = |source| Failure::from(Error::Io { path: path.to_owned(), source });
    let bad = |defect| Failure::from(Error::BadFile { path: path.to_owned(), defect });
    let failed = |message: String| Failure::Message(format!("{}: {message}", path.display()));
    let file = File::open(path).map_err(io)?;
    let actual = file.metadata().map_err(io)?.len();
    let mut file = BufReader::with_capacity(CHUNK, file);
    let mut length = [0; 8];
    if actual < 8 {
        return Err(bad(FileDefect::Truncated { expected: 8, actual }));
    }
    file.read_exact(&mut length).map_err(io)?;
    let length = u64::from_le_bytes(length);
    if length > MOST_HEADER {
        return Err(bad(FileDefect::BadHeader("the header is longer than 100 MB")));
    }
    if length > actual - 8 {
        return Err(bad(FileDefect::Truncated { expected: 8 + length, actual }));
    }
    let mut header = Vec::new();
    file.by_ref().take(length).read_to_end(&mut header).map_err(io)?;
    let mut tensors: BTreeMap<String, serde_json::Value> =
        serde_json::from_slice(&header).map_err(|error| failed(format!("header: {error}")))?;
    tensors.remove("__metadata__");
    let parsed = |(name, tensor): (String, serde_json::Value)| match serde_json::from_value::<Tensor>(tensor) {
        Ok(tensor) => Ok((name, tensor)),
        Err(error) => Err(failed(format!("tensor {name}: {error}"))),
    };
    let mut tensors: BTreeMap<String, Tensor> = tensors.into_iter().map(parsed).collect::<Outcome<_>>()?;
    let all: Vec<&str> = tensors.keys().map(String::as_str).collect();
    let all = all.join(", ");
    let (name, tensor) = match name {
        Some(name) => tensors
            .remove_entry(name)
            .ok_or_else(|| failed(format!("there is no tensor {name}; the tensors are {all}")))?,
        None => {
            tensors.retain(|_, tensor| tensor.shape.len() == 2);
            let found = tensors.pop_first().filter(|_| tensors.is_empty());
            found.ok_or_else(|| failed(format!("name one of the tensors with two axes by --column: {all}")))?
        }
    };
    let &[all_rows, columns] = &tensor.shape[..] else {
        return Err(failed(format!("tensor {name} has {} axes, not 2", tensor.shape.len())));
    };
    let (size, read): (u64, fn(&mut Source<'_>) -> Outcome<Matrix>) = match &*tensor.dtype {
        "F32" => (4, |source| source.vectors(f32::from_le_bytes)),
        "F16" => (2, |source| source.vectors(f16::from_le_bytes)),
        "BF16" => (2, |source| source.vectors(bf16::from_le_bytes)),
        "F64" => (8, |source| source.doubles()),
        "U8" => (1, |source| source.vectors(u8::from_le_bytes)),
        "I8" => (1, |source| source.vectors(i8::from_le_bytes)),
        "I32" => (4, |source| source.ids(|bytes| i32::from_le_bytes(bytes).into())),
        "I64" => (8, |source| source.ids(i64::from_le_bytes)),
        other => {
            let expected = "F32, F16, BF16, F64, U8, I8 for vectors; I32, I64 for ids";
            return Err(bad(FileDefect::WrongElement { actual: other.into(), expected }));
        }
    };
    let (first, end) = tensor.data_offsets;
    let bytes = all_rows.checked_mul(columns).and_then(|values| values.checked_mul(size));
    if bytes.is_none() || end.checked_sub(first) != bytes {
        return Err(failed(format!(
            "tensor {name}: the offsets do not fit {all_rows} rows of {columns} {}",
            tensor.dtype
        )));
    }
    let expected = end.saturating_add(8 + length);
    if expected > actual {
        return Err(bad(FileDefect::Truncated { expected, actual }));
    }
    if columns == 0 {
        return Err(bad(FileDefect::BadDimension(0)));
    }
    let too_large = || bad(FileDefect::TooLarge { rows: all_rows, dim: columns });
    let rows = usize::try_from(all_rows).map_err(|_| too_large())?.min(rows.unwrap_or(usize::MAX));
    let columns = usize::try_from(columns).map_err(|_| too_large())?;
    file.seek(SeekFrom::Start(8 + length + first)).map_err(io)?;
    read(&mut Source { path, file, rows, columns })
}

/// The values of a tensor, all of which the file has.
struct Source<'a> {
    path: &'a Path,
    file: BufReader<File>,
    rows: usize,
    columns: usize,
}

impl Source<'_> {
    fn bad(&self, defect: FileDefect) -> Failure {
        Error::BadFile { path: self.path.to_owned(), defect }.into()
    }

    fn values<const SIZE: usize, T>(&mut self, value: impl Fn([u8; SIZE]) -> T) -> Outcome<Vec<T>> {
        let too_large =
            |source: &Self| source.bad(FileDefect::TooLarge { rows: source.rows as u64, dim: source.columns as u64 });
        let count = self.rows.checked_mul(self.columns).ok_or_else(|| too_large(self))?;
        let mut values = Vec::new();
        values.try_reserve_exact(count).map_err(|_| too_large(self))?;
        let mut bytes = vec![0; CHUNK];
        while values.len() < count {
            let part = &mut bytes[..(count - values.len()).min(CHUNK / SIZE) * SIZE];
            let read = self.file.read_exact(part);
            read.map_err(|source| Error::Io { path: self.path.to_owned(), source })?;
            values.extend(part.as_chunks().0.iter().map(|&bytes| value(bytes)));
        }
        Ok(values)
    }

    fn vectors<const SIZE: usize, T: Element>(&mut self, value: impl Fn([u8; SIZE]) -> T) -> Outcome<Matrix> {
        Ok(Matrix::Vectors(Vectors::new(self.values(value)?, self.columns)?))
    }

    fn doubles(&mut self) -> Outcome<Matrix> {
        let values = self.values(f64::from_le_bytes)?;
        Vectors::from_f64(values.into_iter(), self.columns).map(Matrix::Vectors).map_err(|defect| self.bad(defect))
    }

    fn ids<const SIZE: usize>(&mut self, value: impl Fn([u8; SIZE]) -> i64) -> Outcome<Matrix> {
        let values = self.values(value)?;
        let (rows, k) = (self.rows, self.columns);
        let ids = values.into_iter().enumerate().map(|(at, id)| match id {
            -1 => Ok(NONE),
            id => u64::try_from(id)
                .map_err(|_| self.bad(FileDefect::BadId { row: (at / k) as u64, column: (at % k) as u64, id })),
        });
        Ok(Matrix::Ids(IdMatrix { rows, k, ids: ids.collect::<Outcome<_>>()? }))
    }
}
