//! Writes Parquet files, compressed by snappy.
//!
//! A file is made in memory, because the crate writes only to what threads can share.

use std::path::Path;
use std::sync::Arc;

use bytemuck::cast_slice;
use parquet::basic::Compression;
use parquet::data_type::{
    ByteArray, DataType, FixedLenByteArray, FixedLenByteArrayType, FloatType, Int32Type, Int64Type,
};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use warpann::{Element, ElementType, Error, FileDefect, NONE};

use super::GREATEST_ID;
use crate::report::{Failure, Outcome};

/// The most values of a column in a row group.
const GROUP: usize = 1 << 22;
/// The name of the column of vectors.
const VECTORS: &str = "embedding";
/// The name of the column of ids.
const IDS: &str = "ids";

type Result<V = (), E = ParquetError> = std::result::Result<V, E>;
type Group<'g> = SerializedRowGroupWriter<'g, Vec<u8>>;

/// A file of the schema, whose row groups `write` writes.
fn file(
    path: &Path,
    schema: &str,
    write: impl FnOnce(&mut SerializedFileWriter<Vec<u8>>) -> Result,
) -> Outcome<Vec<u8>> {
    let made = || {
        let schema = Arc::new(parse_message_type(schema)?);
        // A dictionary of components or distances is as large as these.
        let properties =
            WriterProperties::builder().set_compression(Compression::SNAPPY).set_dictionary_enabled(false).build();
        let mut file = SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties))?;
        write(&mut file)?;
        file.into_inner()
    };
    made().map_err(|error| Failure::Message(format!("{}: {error}", path.display())))
}

/// Writes the next column of a row group.
fn column(group: &mut Group<'_>, write: impl FnOnce(&mut SerializedColumnWriter<'_>) -> Result<usize>) -> Result {
    let mut column = group.next_column()?.ok_or_else(|| ParquetError::General("no column is left".into()))?;
    write(&mut column)?;
    column.close()
}

/// Writes the next column, of whole numbers.
fn integers<D: DataType>(group: &mut Group<'_>, values: &[D::T]) -> Result {
    column(group, |column| column.typed::<D>().write_batch(values, None, None))
}

/// The results of searches: a row for each neighbour, with the columns query, rank, id and distance.
pub fn table<'r>(path: &Path, rows: impl IntoIterator<Item = (usize, usize, &'r u64, &'r f32)>) -> Outcome<Vec<u8>> {
    let schema = "message warpann {
        required int64 query; required int64 rank; required int64 id; required float distance;
    }";
    file(path, schema, |file| {
        let mut rows = rows.into_iter().peekable();
        while rows.peek().is_some() {
            let (mut queries, mut ranks, mut ids, mut distances) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
            for (query, rank, &id, &distance) in rows.by_ref().take(GROUP) {
                queries.push(query as i64);
                ranks.push(rank as i64);
                ids.push(id as i64);
                distances.push(distance);
            }
            let mut group = file.next_row_group()?;
            integers::<Int64Type>(&mut group, &queries)?;
            integers::<Int64Type>(&mut group, &ranks)?;
            integers::<Int64Type>(&mut group, &ids)?;
            column(&mut group, |column| column.typed::<FloatType>().write_batch(&distances, None, None))?;
            group.close()?;
        }
        Ok(())
    })
}

/// A file with one column of lists, each of `width` values, that are stored as `element` says. `stored` converts some
/// of them.
fn lists<D: DataType, T>(
    path: &Path,
    name: &str,
    element: &str,
    values: &[T],
    width: usize,
    stored: impl Fn(&[T]) -> Vec<D::T>,
) -> Outcome<Vec<u8>> {
    let schema = format!(
        "message warpann {{ required group {name} (LIST) {{ repeated group list {{ required {element}; }} }} }}"
    );
    file(path, &schema, |file| {
        if width == 0 {
            return Ok(());
        }
        for part in values.chunks((GROUP / width).max(1) * width) {
            let defined = vec![1i16; part.len()];
            let repeated: Vec<i16> = (0..part.len()).map(|at| i16::from(at % width != 0)).collect();
            let mut group = file.next_row_group()?;
            column(&mut group, |column| {
                column.typed::<D>().write_batch(&stored(part), Some(&defined), Some(&repeated))
            })?;
            group.close()?;
        }
        Ok(())
    })
}

/// Vectors of dimension `dim` in a column of lists.
pub fn write_vectors<T: Element>(path: &Path, values: &[T], dim: usize) -> Outcome<Vec<u8>> {
    let integers = |part: &[T]| part.iter().map(|value| value.to_f32() as i32).collect();
    match T::TYPE {
        ElementType::F32 => {
            lists::<FloatType, T>(path, VECTORS, "float element", values, dim, |part| cast_slice(part).to_vec())
        }
        ElementType::F16 => {
            let element = "fixed_len_byte_array(2) element (FLOAT16)";
            lists::<FixedLenByteArrayType, T>(path, VECTORS, element, values, dim, |part| {
                let halves = cast_slice::<T, [u8; 2]>(part).iter();
                halves.map(|bytes| FixedLenByteArray::from(ByteArray::from(&bytes[..]))).collect()
            })
        }
        ElementType::U8 => {
            lists::<Int32Type, T>(path, VECTORS, "int32 element (INTEGER(8,false))", values, dim, integers)
        }
        ElementType::I8 => {
            lists::<Int32Type, T>(path, VECTORS, "int32 element (INTEGER(8,true))", values, dim, integers)
        }
        other => Err(Failure::Message(format!("{}: Parquet has no {other}", path.display()))),
    }
}

/// `k` ids for each row in a column of lists. An empty slot is −1.
pub fn write_ids(path: &Path, ids: &[u64], k: usize) -> Outcome<Vec<u8>> {
    if let Some(&id) = ids.iter().find(|&&id| id != NONE && id > GREATEST_ID) {
        let defect = FileDefect::IdTooLarge { id, limit: GREATEST_ID };
        return Err(Error::BadFile { path: path.to_owned(), defect }.into());
    }
    lists::<Int64Type, u64>(path, IDS, "int64 element", ids, k, |part| cast_slice(part).to_vec())
}
