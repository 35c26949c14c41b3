//! Reads columns of Parquet files.

use std::fs::File;
use std::panic::catch_unwind;
use std::path::Path;

use half::f16;
use parquet::basic::{ConvertedType, LogicalType, Repetition, Type as Physical};
use parquet::column::reader::get_typed_column_reader;
use parquet::data_type::{DataType, DoubleType, FixedLenByteArrayType, FloatType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::schema::types::ColumnDescriptor;
use warpann::io::{IdMatrix, Vectors};
use warpann::{Element, Error, FileDefect, NONE};

use super::files::files;
use crate::hdf5::Matrix;
use crate::report::{Failure, Outcome};

/// Values that are decoded at a time, about.
const BATCH: usize = 1 << 16;

/// The types of values that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Values {
    F32,
    F64,
    F16,
    U8,
    I8,
    I32,
    U32,
    I64,
    U64,
}

impl Values {
    /// The type of a column; `None` if it is another.
    fn of(column: &ColumnDescriptor) -> Option<Self> {
        use ConvertedType as Old;
        let integer = match (column.logical_type_ref(), column.converted_type()) {
            (Some(LogicalType::Float16), _) => {
                return (column.physical_type() == Physical::FIXED_LEN_BYTE_ARRAY).then_some(Self::F16);
            }
            (Some(LogicalType::Integer(integer)), _) => Some((integer.bit_width, integer.is_signed)),
            (Some(_), _) => return None,
            (None, Old::NONE) => None,
            (None, Old::INT_8) => Some((8, true)),
            (None, Old::INT_16) => Some((16, true)),
            (None, Old::INT_32) => Some((32, true)),
            (None, Old::INT_64) => Some((64, true)),
            (None, Old::UINT_8) => Some((8, false)),
            (None, Old::UINT_16) => Some((16, false)),
            (None, Old::UINT_32) => Some((32, false)),
            (None, Old::UINT_64) => Some((64, false)),
            _ => return None,
        };
        match (column.physical_type(), integer) {
            (Physical::FLOAT, None) => Some(Self::F32),
            (Physical::DOUBLE, None) => Some(Self::F64),
            (Physical::INT32, Some((8, signed))) => Some(if signed { Self::I8 } else { Self::U8 }),
            (Physical::INT32, None | Some((_, true))) => Some(Self::I32),
            (Physical::INT32, Some((_, false))) => Some(Self::U32),
            (Physical::INT64, None | Some((_, true))) => Some(Self::I64),
            (Physical::INT64, Some((_, false))) => Some(Self::U64),
            _ => None,
        }
    }

    fn are_ids(self) -> bool {
        matches!(self, Self::I32 | Self::U32 | Self::I64 | Self::U64)
    }
}

/// The content that a command takes from a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Vectors,
    Ids,
    /// Vectors if there are any, else ids.
    Either,
}

impl Wanted {
    /// Whether a column is one of these.
    fn takes(self, column: &ColumnDescriptor) -> bool {
        let of_lists = column.max_rep_level() == 1;
        Values::of(column).is_some_and(|values| match self {
            Self::Vectors => of_lists && !values.are_ids(),
            Self::Ids => values.are_ids() && column.max_rep_level() <= 1,
            Self::Either => of_lists,
        })
    }

    /// The columns for which [`takes`](Self::takes) is true, in messages.
    fn described(self) -> &'static str {
        match self {
            Self::Vectors => "lists of float, double, float16, uint8 or int8",
            Self::Ids => "integers of 16 bits or more, or lists of them",
            Self::Either => "lists of float, double, float16 or integers",
        }
    }
}

/// A column of a file, and the file.
struct Column<'a> {
    path: &'a Path,
    reader: &'a SerializedFileReader<File>,
    number: usize,
    name: &'a str,
    values: Values,
    of_lists: bool,
    /// The definition level of a value.
    defined: i16,
    /// Whether an element of a list may be null.
    elements_may_be_null: bool,
}

impl<'a> Column<'a> {
    /// The column that has the name, or the only one that is right.
    fn find(
        path: &'a Path,
        reader: &'a SerializedFileReader<File>,
        named: Option<&str>,
        wanted: Wanted,
    ) -> Outcome<Self> {
        let schema = reader.metadata().file_metadata().schema_descr();
        let name = |column: &'a ColumnDescriptor| column.path().parts().first().map_or("", String::as_str);
        let columns = || schema.columns().iter().map(|column| &**column).enumerate();
        let listed = |columns: &[(usize, &'a ColumnDescriptor)]| {
            let mut names: Vec<&str> = columns.iter().map(|&(_, column)| name(column)).collect();
            names.dedup();
            names.join(", ")
        };
        let failed = |message: String| Err(Failure::Message(format!("{}: {message}", path.display())));
        let (number, column) = match named {
            Some(named) => {
                let Some(found) = columns().find(|&(_, column)| name(column) == named) else {
                    let all: Vec<_> = columns().collect();
                    return failed(format!("there is no column {named}; the columns are {}", listed(&all)));
                };
                if !wanted.takes(found.1) {
                    return failed(format!("column {named} does not hold {}", wanted.described()));
                }
                found
            }
            None => {
                let all: Vec<_> = columns().filter(|(_, column)| wanted.takes(column)).collect();
                let lists = || all.iter().copied().filter(|(_, column)| column.max_rep_level() == 1);
                let vectors = || lists().filter(|(_, column)| Wanted::Vectors.takes(column));
                // The first group of columns that has any must have one only.
                let groups = [vectors().collect::<Vec<_>>(), lists().collect(), all.clone()];
                match groups.iter().find(|group| !group.is_empty()).map(Vec::as_slice) {
                    Some(&[found]) => found,
                    Some(several) => {
                        return failed(format!("name one of the columns by --column: {}", listed(several)));
                    }
                    None => {
                        let all: Vec<_> = columns().collect();
                        return failed(format!("no column holds {}: {}", wanted.described(), listed(&all)));
                    }
                }
            }
        };
        let Some(values) = Values::of(column) else { return failed("the type of a column".into()) };
        Ok(Self {
            path,
            reader,
            number,
            name: name(column),
            values,
            of_lists: column.max_rep_level() == 1,
            defined: column.max_def_level(),
            elements_may_be_null: column.self_type().get_basic_info().repetition() == Repetition::OPTIONAL,
        })
    }

    fn failed(&self, message: impl std::fmt::Display) -> Failure {
        Failure::Message(format!("{}: column {}: {message}", self.path.display(), self.name))
    }

    /// The failure of a place without a value, at definition level `level`.
    fn missing(&self, level: i16, row: usize, at: usize) -> Failure {
        if !self.of_lists {
            return self.failed(format_args!("row {row} is null"));
        }
        match level {
            level if self.elements_may_be_null && level + 1 == self.defined => {
                self.failed(format_args!("row {row} has null as component {at}"))
            }
            level if level + 1 + i16::from(self.elements_may_be_null) == self.defined => {
                self.failed(format_args!("row {row} is an empty list"))
            }
            _ => self.failed(format_args!("row {row} is null")),
        }
    }
}

/// Rows of equally many values.
struct Rows<T> {
    values: Vec<T>,
    /// Number of values of a row, once there is a row.
    width: Option<usize>,
    count: usize,
}

impl<T> Rows<T> {
    fn new() -> Self {
        Rows { values: Vec::new(), width: None, count: 0 }
    }

    /// Appends rows of a column until there are `most`. `convert` makes a value from a stored one.
    fn append<D: DataType>(
        &mut self,
        column: &Column<'_>,
        most: usize,
        convert: impl Fn(&D::T) -> Result<T, Bad>,
    ) -> Outcome {
        let damaged = |error: ParquetError| column.failed(error);
        // Number of the row in the file.
        let mut row = 0;
        for group in 0..column.reader.num_row_groups() {
            if self.count >= most {
                break;
            }
            let group = column.reader.get_row_group(group).map_err(damaged)?;
            let places = group.metadata().column(column.number);
            let (first, bytes) = (places.dictionary_page_offset().unwrap_or(0), places.compressed_size());
            // The crate panics for these.
            if first < 0 || places.data_page_offset() < 0 || bytes < 0 {
                return Err(column.failed("a place in the file is negative"));
            }
            let chunk = group.get_column_reader(column.number).map_err(damaged)?;
            let mut chunk = get_typed_column_reader::<D>(chunk);
            let (mut values, mut defined, mut repeated) = (Vec::new(), Vec::new(), Vec::new());
            while self.count < most {
                values.clear();
                defined.clear();
                repeated.clear();
                let records = (BATCH / self.width.unwrap_or(BATCH / 64).max(1)).clamp(1, most - self.count);
                let (records, stored, levels) = chunk
                    .read_records(records, Some(&mut defined), Some(&mut repeated), &mut values)
                    .map_err(damaged)?;
                if records == 0 {
                    break;
                }
                if column.defined == 0 {
                    defined.resize(levels, 0);
                }
                if !column.of_lists {
                    repeated.resize(levels, 0);
                }
                if stored != values.len() || levels != defined.len() || levels != repeated.len() {
                    return Err(column.failed("levels and values do not agree"));
                }
                self.values.try_reserve(stored).map_err(|_| self.too_large(column))?;
                self.append_records(column, &values, (&defined, &repeated), &mut row, &convert)?;
            }
        }
        Ok(())
    }

    /// Appends whole rows: their values, and the definition and repetition level of each place. `row` counts them.
    fn append_records<S>(
        &mut self,
        column: &Column<'_>,
        values: &[S],
        (defined, repeated): (&[i16], &[i16]),
        row: &mut usize,
        convert: impl Fn(&S) -> Result<T, Bad>,
    ) -> Outcome {
        let mut values = values.iter();
        let mut first = 0;
        while first < defined.len() {
            let next = repeated[first + 1..].iter().position(|&level| level == 0);
            let end = next.map_or(defined.len(), |more| first + 1 + more);
            if let Some(at) = defined[first..end].iter().position(|&level| level != column.defined) {
                return Err(column.missing(defined[first + at], *row, at));
            }
            let actual = end - first;
            let expected = *self.width.get_or_insert(actual);
            if actual != expected {
                let (row, expected) = (*row as u64, expected as u64);
                let defect = FileDefect::UnevenRows { row, expected, actual: actual as i64 };
                return Err(Error::BadFile { path: column.path.to_owned(), defect }.into());
            }
            for (at, value) in values.by_ref().take(actual).enumerate() {
                self.values.push(convert(value).map_err(|bad| bad.failure(column, *row, at))?);
            }
            self.count += 1;
            *row += 1;
            first = end;
        }
        Ok(())
    }

    fn too_large(&self, column: &Column<'_>) -> Failure {
        let (rows, dim) = (self.count as u64 + 1, self.width.unwrap_or(1) as u64);
        Error::BadFile { path: column.path.to_owned(), defect: FileDefect::TooLarge { rows, dim } }.into()
    }
}

/// A stored value that is none of the wanted type.
enum Bad {
    /// A finite number beyond the range of f32.
    Large(f64),
    /// An id below −1, which is an empty slot.
    Id(i64),
    /// An integer beyond the range that the type of the column says, or a float16 of another size.
    OfType,
}

impl Bad {
    fn failure(self, column: &Column<'_>, row: usize, at: usize) -> Failure {
        let (row, at) = (row as u64, at as u64);
        let defect = match self {
            Self::Large(value) => FileDefect::ExceedsF32 { row, column: at, value: format!("{value:e}") },
            Self::Id(id) => FileDefect::BadId { row, column: at, id },
            Self::OfType => return column.failed(format_args!("row {row} has a value that is not of its type")),
        };
        Error::BadFile { path: column.path.to_owned(), defect }.into()
    }
}

fn near(value: &f64) -> Result<f32, Bad> {
    let near = *value as f32;
    if near.is_infinite() && value.is_finite() { Err(Bad::Large(*value)) } else { Ok(near) }
}

/// An id; −1 is an empty slot.
fn signed(id: i64) -> Result<u64, Bad> {
    if id == -1 { Ok(NONE) } else { u64::try_from(id).map_err(|_| Bad::Id(id)) }
}

/// The rows of all files, each appended by `append`.
fn all_rows<T>(
    path: &Path,
    named: Option<&str>,
    wanted: Wanted,
    values: Values,
    most: usize,
    append: impl Fn(&mut Rows<T>, &Column<'_>, usize) -> Outcome,
) -> Outcome<Rows<T>> {
    let mut rows = Rows::new();
    for file in files(path)? {
        if rows.count >= most {
            break;
        }
        let reader = open(&file)?;
        let column = Column::find(&file, &reader, named, wanted)?;
        if column.values != values {
            return Err(column.failed(format_args!("holds {:?}, the first file {values:?}", column.values)));
        }
        append(&mut rows, &column, most)?;
    }
    Ok(rows)
}

fn open(path: &Path) -> Outcome<SerializedFileReader<File>> {
    let file = File::open(path).map_err(|source| Error::Io { path: path.to_owned(), source })?;
    SerializedFileReader::new(file).map_err(|error| Failure::Message(format!("{}: {error}", path.display())))
}

/// The vectors or the ids of a column: the first `most` rows.
///
/// The crate panics for some files that are damaged; that is an error here, behind the panic's message.
fn read(path: &Path, named: Option<&str>, most: Option<usize>, wanted: Wanted) -> Outcome<Matrix> {
    catch_unwind(|| read_column(path, named, most, wanted))
        .unwrap_or_else(|_| Err(Failure::Message(format!("{}: the file is damaged", path.display()))))
}

fn read_column(path: &Path, named: Option<&str>, most: Option<usize>, wanted: Wanted) -> Outcome<Matrix> {
    let first = files(path)?.swap_remove(0);
    let reader = open(&first)?;
    let values = Column::find(&first, &reader, named, wanted)?.values;
    let most = most.unwrap_or(usize::MAX);
    macro_rules! rows {
        ($D:ty, $T:ty, $convert:expr) => {
            all_rows::<$T>(path, named, wanted, values, most, |rows, column, most| {
                rows.append::<$D>(column, most, $convert)
            })
        };
    }
    fn vectors<T: Element>(rows: Rows<T>) -> Outcome<Matrix> {
        // Files without rows have no dimension.
        Ok(Matrix::Vectors(Vectors::new(rows.values, rows.width.unwrap_or(1))?))
    }
    fn ids(rows: Rows<u64>) -> Outcome<Matrix> {
        Ok(Matrix::Ids(IdMatrix { rows: rows.count, k: rows.width.unwrap_or(0), ids: rows.values }))
    }
    match values {
        Values::F32 => vectors(rows!(FloatType, f32, |value| Ok(*value))?),
        Values::F64 => vectors(rows!(DoubleType, f32, near)?),
        Values::F16 => vectors(rows!(FixedLenByteArrayType, f16, |value| {
            value.data().try_into().map(f16::from_le_bytes).map_err(|_| Bad::OfType)
        })?),
        Values::U8 => vectors(rows!(Int32Type, u8, |&value| value.try_into().map_err(|_| Bad::OfType))?),
        Values::I8 => vectors(rows!(Int32Type, i8, |&value| value.try_into().map_err(|_| Bad::OfType))?),
        Values::I32 => ids(rows!(Int32Type, u64, |&id| signed(id.into()))?),
        Values::U32 => ids(rows!(Int32Type, u64, |&id| Ok(if id == -1 { NONE } else { (id as u32).into() }))?),
        Values::I64 => ids(rows!(Int64Type, u64, |&id| signed(id))?),
        Values::U64 => ids(rows!(Int64Type, u64, |&id| Ok(id as u64))?),
    }
}

/// The vectors of a column of lists, or the first `rows` of them. Without a name the file must have one such column.
/// Double becomes the nearest f32.
pub fn vectors(path: &Path, column: Option<&str>, rows: Option<usize>) -> Outcome<Vectors> {
    match read(path, column, rows, Wanted::Vectors)? {
        Matrix::Vectors(vectors) => Ok(vectors),
        Matrix::Ids(_) => Err(Failure::Message(format!("{}: holds ids", path.display()))),
    }
}

/// The ids of a column, or those of the first `rows` rows: a row of ids for each list, or one id. Without a name the
/// file must have one column of lists of ids, or no such column and one of ids.
pub fn ids(path: &Path, column: Option<&str>, rows: Option<usize>) -> Outcome<IdMatrix> {
    match read(path, column, rows, Wanted::Ids)? {
        Matrix::Ids(ids) => Ok(ids),
        Matrix::Vectors(_) => Err(Failure::Message(format!("{}: holds vectors", path.display()))),
    }
}

/// The ids of a file which has nothing but ids: those of the column if it has ids, else as without a name.
pub fn only_ids(path: &Path, column: Option<&str>) -> Outcome<IdMatrix> {
    let first = files(path)?.swap_remove(0);
    let reader = open(&first)?;
    let named = column.filter(|_| Column::find(&first, &reader, column, Wanted::Ids).is_ok());
    ids(path, named, None)
}

/// The lists of a column, as vectors or as ids by their type.
pub fn matrix(path: &Path, column: Option<&str>, rows: Option<usize>) -> Outcome<Matrix> {
    read(path, column, rows, Wanted::Either)
}

#[cfg(test)]
mod tests {
    use rayon::prelude::*;

    use super::*;

    /// Files of three programs, which `cli/tests/data/parquet.py` wrote.
    const FILES: [&[u8]; 6] = [
        include_bytes!("../../tests/data/parquet/pyarrow.parquet"),
        include_bytes!("../../tests/data/parquet/half.parquet"),
        include_bytes!("../../tests/data/parquet/bytes.parquet"),
        include_bytes!("../../tests/data/parquet/split.parquet"),
        include_bytes!("../../tests/data/parquet/polars.parquet"),
        include_bytes!("../../tests/data/parquet/duckdb.parquet"),
    ];
    /// A run damages one byte in four. Which ones follows from the revision, so each is damaged in the course of some
    /// revisions.
    const SHARE: usize = 4;

    /// Whether a file has its vectors.
    fn reads(path: &Path, bytes: &[u8]) -> bool {
        std::fs::write(path, bytes).unwrap();
        vectors(path, Some("embedding"), None).is_ok_and(|vectors| vectors.rows() == 50 && vectors.dim() == 4)
    }

    /// Neither a panic nor an allocation that ends the program.
    #[test]
    fn damaged_files_give_vectors_or_errors() {
        let path = || tempfile::Builder::new().suffix(".parquet").tempfile().unwrap().into_temp_path();
        let first = test_random::seeds::base().unwrap() as usize % SHARE;
        for file in FILES {
            let whole = path();
            assert!(reads(&whole, file));
            assert!((0..file.len()).step_by(31).all(|len| !reads(&whole, &file[..len])));
            let places: Vec<usize> = (first..file.len()).step_by(SHARE).collect();
            places.into_par_iter().for_each_init(
                || (path(), file.to_vec()),
                |(path, bytes), at| {
                    for value in [0xff, file[at] ^ 1, file[at] ^ 0x40] {
                        bytes[at] = value;
                        reads(path, bytes);
                    }
                    bytes[at] = file[at];
                },
            );
        }
    }
}
