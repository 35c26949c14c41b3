//! `warpann convert`.

mod index;

use std::borrow::Cow;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Serialize;
use warpann::io::{self, Format, IdMatrix, Vectors};
use warpann::{Element, ElementType, Error, FileDefect, Metric};

use self::index::{Converted, IndexFormat, parse_format};
use crate::hdf5::{self, Matrix};
use crate::id_list;
use crate::parquet::{self, is_parquet};
use crate::progress::spinning;
use crate::report::{Failure, Out, Outcome, positive};
use crate::safetensors::{self, is_safetensors};
use crate::streams::{Stdout, Written, check_files, is_stream};
use crate::vectors::{Access, convert, with_element};

/// Extensions of the formats that the command writes.
const FORMATS: &str = "fvecs, bvecs, fbin, u8bin, i8bin, ivecs, ibin, npy, parquet";

/// Arguments of `convert`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Vectors (fvecs, bvecs, fbin, u8bin, i8bin, npy, safetensors, parquet) or ids (ivecs, ibin, bin, npy,
    /// safetensors, parquet, txt, or big-ann ground truth without extension or as fbin); a folder or a pattern of
    /// Parquet files; or an HDF5 file (hdf5, h5) with --dataset.
    #[arg(long = "in", value_name = "FILE")]
    input: PathBuf,
    /// With an HDF5 file: the dataset to convert. Files of ann-benchmarks have train, test, neighbors and distances.
    #[arg(long, value_name = "NAME")]
    dataset: Option<String>,
    /// Write the vectors (fvecs, bvecs, fbin, u8bin, i8bin, npy, parquet) or the ids (ivecs, ibin, npy, parquet). A
    /// Parquet file gets one column of lists, embedding or ids.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Element type of the written vectors: f32, f16, u8 or i8. Default: that of the format; for npy that of the input.
    #[arg(long, value_name = "TYPE", value_parser = parse_element)]
    element: Option<ElementType>,
    /// Round components to the nearest value of the element type, of two equally near ones to the even one. Without
    /// this option, a component that the type cannot hold is an error; components beyond its range always are.
    #[arg(long)]
    round: bool,
    /// The input is an inverted file, a graph or an exact index of bits, a file of FAISS (IndexHNSWFlat, IndexIVFFlat,
    /// IndexIVFPQ, IndexIVFScalarQuantizer, IndexBinaryFlat), or one of hnswlib: write it in this format: warpann,
    /// faiss, or for graphs hnswlib.
    ///
    /// Files of other programs hold bits, f32 or codes of f32. For cosine their vectors are divided by their norms, and
    /// their metric is the inner product; inverted files of codes for cosine cannot be written.
    #[arg(long, value_name = "FORMAT", value_parser = parse_format,
          conflicts_with_all = ["dataset", "element", "round", "skip", "rows"])]
    index: Option<IndexFormat>,
    /// With --index and a file of hnswlib, which does not have its metric: l2, ip or cosine. Also cosine for a file of
    /// FAISS with the inner product.
    #[arg(long, requires = "index")]
    metric: Option<Metric>,
    /// Leave out the first N rows.
    #[arg(long, value_name = "N", default_value_t = 0)]
    skip: usize,
    /// Convert only N rows, or fewer if the input has fewer.
    #[arg(long, value_name = "N", value_parser = positive)]
    rows: Option<usize>,
    #[command(flatten)]
    access: Access,
    #[command(flatten)]
    stdout: Stdout,
}

/// The element type of a name on the command line, for files: bf16 has no file format.
fn parse_element(text: &str) -> Result<ElementType, String> {
    let written = [ElementType::F32, ElementType::F16, ElementType::U8, ElementType::I8];
    written.into_iter().find(|element| element.name() == text).ok_or_else(|| "expected f32, f16, u8 or i8".into())
}

#[derive(Serialize)]
struct Report {
    /// `vectors`, `ids` or `index`.
    kind: &'static str,
    rows: usize,
    /// Dimension of vectors, or number of ids of a row.
    columns: usize,
    /// Element types of vectors in input and output.
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<&'static str>,
    seconds: f64,
    input: String,
    out: String,
}

/// Converts, prints the report.
pub fn run(args: &Args, out: &Out) -> Outcome {
    if let Some(format) = args.index {
        return convert_index(args, format, out);
    }
    let format = args.stdout.format_of(&args.out, FORMATS)?;
    if let (Some(element), Some(held)) = (args.element, element_of(format))
        && element != held
    {
        let (name, held, element) = (format.extension(), held.name(), element.name());
        return Err(Failure::Message(format!("{name} files hold {held}, not {element} (--element)")));
    }
    check_files(args.access.stdin, [&*args.input], [&*args.out])?;
    let start = Instant::now();
    let matrix = spinning("reading", || args.read(format))?;
    let (kind, rows, columns, types) = match &matrix {
        Matrix::Vectors(vectors) => {
            let types = spinning("converting", || args.write_vectors(vectors, format))?;
            ("vectors", args.range(vectors.rows())?.len(), vectors.dim(), Some(types))
        }
        Matrix::Ids(ids) => ("ids", spinning("writing", || args.write_ids(ids, format))?, ids.k, None),
    };
    args.report(out, kind, (rows, columns), types, start)
}

/// As [`run`], with `--index`.
fn convert_index(args: &Args, format: IndexFormat, out: &Out) -> Outcome {
    check_files(args.access.stdin, [&*args.input], [&*args.out])?;
    let start = Instant::now();
    let Converted { vectors, dim, from, to } = index::convert(&args.input, &args.out, format, args.metric)?;
    args.report(out, "index", (vectors, dim), Some((from, to)), start)
}

impl Args {
    /// The files that the command writes, `-` for standard output.
    pub fn outputs(&self) -> impl Iterator<Item = &Path> {
        std::iter::once(&*self.out)
    }

    /// Prints the report of what was written since `start`.
    fn report(
        &self,
        out: &Out,
        kind: &'static str,
        (rows, columns): (usize, usize),
        types: Option<(ElementType, ElementType)>,
        start: Instant,
    ) -> Outcome {
        let report = Report {
            kind,
            rows,
            columns,
            from: types.map(|(from, _)| from.name()),
            to: types.map(|(_, to)| to.name()),
            seconds: start.elapsed().as_secs_f64(),
            input: self.input.display().to_string(),
            out: self.out.display().to_string(),
        };
        match types {
            Some((from, to)) => {
                let changed = if from == to { String::new() } else { format!(" to {}", to.name()) };
                out.field("vectors", format_args!("{rows}, dimension {columns}, {}{changed}", from.name()))?;
            }
            None => out.field("ids", format_args!("{rows} rows of {columns}"))?,
        }
        out.field("convert", format_args!("{:.3} s, from {} to {}", report.seconds, report.input, report.out))?;
        out.object(&report)
    }

    /// Reads the input for an output in `to`. An npy file can hold vectors or ids, and so can an fbin file, by its
    /// size: the output's format selects one; if the output is npy, the input does. A file without extension can only
    /// hold ids.
    fn read(&self, to: Written) -> Outcome<Matrix> {
        if hdf5::is_hdf5(&self.input) {
            return hdf5::read(&self.input, self.dataset.as_deref());
        }
        if self.dataset.is_some() {
            let message = format!("{}: --dataset is for HDF5 files (hdf5, h5)", self.input.display());
            return Err(Failure::Message(message));
        }
        let rows = self.rows.map(|rows| rows.saturating_add(self.skip));
        if is_safetensors(&self.input) {
            return safetensors::read(&self.input, self.access.column.as_deref(), rows);
        }
        let vectors = || self.access.first_vectors(&self.input, rows).map(Matrix::Vectors);
        let ids = || self.access.ids(&self.input).map(Matrix::Ids);
        if is_parquet(&self.input) {
            return match (to.holds_vectors(), to.holds_ids()) {
                (true, true) => parquet::matrix(&self.input, self.access.column.as_deref(), rows),
                (true, false) => vectors(),
                _ => ids(),
            };
        }
        if id_list::is_text(&self.input) {
            return ids();
        }
        match self.access.stdin.format_of(&self.input)? {
            Some(from) if !from.holds_vectors() => ids(),
            None if self.input.extension().is_none() => ids(),
            Some(from) if from.holds_ids() => match (to.holds_vectors(), to.holds_ids()) {
                (true, true) if is_stream(&self.input) => either(&self.input, from),
                (true, true) => {
                    vectors().or_else(|error| if is_of_ids(&error) { ids().map_err(of_neither) } else { Err(error) })
                }
                (true, false) => vectors(),
                _ => ids(),
            },
            Some(Format::Fbin) if !is_stream(&self.input) && to.holds_ids() => match to.holds_vectors() {
                true => vectors().or_else(|error| ids().map_err(|_| error)),
                false => ids(),
            },
            // The reader reports an unknown extension.
            _ => vectors(),
        }
    }

    /// The rows to convert of `rows`.
    fn range(&self, rows: usize) -> Outcome<Range<usize>> {
        if self.skip > rows {
            let message = format!("{}: --skip is {}, and there are {rows} rows", self.input.display(), self.skip);
            return Err(Failure::Message(message));
        }
        Ok(self.skip..rows.min(self.rows.map_or(rows, |count| count.saturating_add(self.skip))))
    }

    /// Writes the vectors. Returns the element types of input and output.
    fn write_vectors(&self, vectors: &Vectors, to: Written) -> Outcome<(ElementType, ElementType)> {
        if !to.holds_vectors() {
            return Err(self.wrong_kind("vectors", to));
        }
        let from = vectors.element();
        let target = element_of(to).or(self.element).unwrap_or(from);
        let (dim, range) = (vectors.dim(), self.range(vectors.rows())?);
        let cut = if range.len() < vectors.rows() { Some(part(vectors, &range)?) } else { None };
        let vectors = cut.as_ref().unwrap_or(vectors);
        with_element!(target, T => {
            let rows = if self.round {
                Cow::Owned(rounded::<T>(vectors, &self.input)?)
            } else {
                convert::<T>(vectors, &self.input)?
            };
            match to {
                Written::Parquet => {
                    self.stdout.write_bytes(&self.out, &parquet::write_vectors(&self.out, &rows, dim)?)?;
                }
                _ => self.stdout.write_vectors(&self.out, &rows, dim)?,
            }
        });
        Ok((from, target))
    }

    /// Writes the ids. Returns the number of rows.
    fn write_ids(&self, ids: &IdMatrix, to: Written) -> Outcome<usize> {
        if !to.holds_ids() {
            return Err(self.wrong_kind("ids", to));
        }
        if self.element.is_some() || self.round {
            return Err(Failure::Message("--element and --round are for vectors; the input holds ids".into()));
        }
        let range = self.range(ids.rows)?;
        let part = &ids.ids[range.start * ids.k..range.end * ids.k];
        match to {
            Written::Parquet => self.stdout.write_bytes(&self.out, &parquet::write_ids(&self.out, part, ids.k)?)?,
            _ => self.stdout.write_ids(&self.out, part, ids.k)?,
        }
        Ok(range.len())
    }

    fn wrong_kind(&self, kind: &str, to: Written) -> Failure {
        Failure::Message(format!("{}: holds {kind}, which {} files cannot hold", self.input.display(), to.extension()))
    }
}

/// The element type of the vectors of a format; `None` if it has several.
fn element_of(format: Written) -> Option<ElementType> {
    let Written::Binary(format) = format else { return None };
    match format {
        Format::Fvecs | Format::Fbin => Some(ElementType::F32),
        Format::Bvecs | Format::U8bin => Some(ElementType::U8),
        Format::I8bin => Some(ElementType::I8),
        // Several in npy; ids in the others.
        _ => None,
    }
}

/// Whether a reader of vectors refused a file because of its element type, which may be one of ids.
fn is_of_ids(error: &Failure) -> bool {
    matches!(error, Failure::Library(Error::BadFile { defect: FileDefect::WrongElement { .. }, .. }))
}

/// The element types of npy files, in errors of files whose type is that of neither vectors nor ids.
const NPY_TYPES: &str = "<f4, <f2, <f8, |u1 or |i1 for vectors; <i4, <u4, <i8 or <u8 for ids";

/// The error of a file that a reader of ids refused after a reader of vectors had refused it.
fn of_neither(error: Failure) -> Failure {
    match error {
        Failure::Library(Error::BadFile { path, defect: FileDefect::WrongElement { actual, .. } }) => {
            Error::BadFile { path, defect: FileDefect::WrongElement { actual, expected: NPY_TYPES } }.into()
        }
        error => error,
    }
}

/// Vectors or ids from standard input, by their element type.
fn either(path: &Path, format: Format) -> Outcome<Matrix> {
    let bad = |defect| Error::BadFile { path: path.to_owned(), defect };
    let mut bytes = Vec::new();
    let read = std::io::stdin().lock().read_to_end(&mut bytes);
    read.map_err(|source| Error::Io { path: path.to_owned(), source })?;
    match io::vectors_from_bytes(format, &bytes) {
        Err(FileDefect::WrongElement { .. }) => {
            let ids = io::ids_from_bytes(format, &bytes).map_err(|defect| of_neither(bad(defect).into()))?;
            Ok(Matrix::Ids(ids.ids))
        }
        vectors => Ok(Matrix::Vectors(vectors.map_err(bad)?)),
    }
}

/// A copy of some rows.
fn part(vectors: &Vectors, rows: &Range<usize>) -> Outcome<Vectors> {
    let dim = vectors.dim();
    with_element!(vectors.element(), T => {
        let values = vectors.as_slice::<T>().unwrap_or_default();
        Ok(Vectors::new(values[rows.start * dim..rows.end * dim].to_vec(), dim)?)
    })
}

/// The components of `vectors`, which came from `path`, as the nearest values of `T`. A component beyond the range of
/// `T` is an error.
fn rounded<T: Element>(vectors: &Vectors, path: &Path) -> Outcome<Vec<T>> {
    let wide = vectors.to_f32().map_err(|defect| Error::BadFile { path: path.to_owned(), defect })?;
    let values = wide.as_slice::<f32>().unwrap_or_default().iter().enumerate();
    let round = |(at, &value): (usize, &f32)| {
        let integer = matches!(T::TYPE, ElementType::U8 | ElementType::I8);
        let nearest = if integer { value.round_ties_even() } else { value };
        let near = T::from_f32(nearest);
        // Conversions to integers saturate, and turn NaN to 0.
        let fits = if integer { near.to_f32() == nearest } else { near.to_f32().is_finite() || !value.is_finite() };
        if fits {
            return Ok(near);
        }
        let (row, column, to) = (at / vectors.dim(), at % vectors.dim(), T::TYPE.name());
        Err(Failure::Message(format!(
            "{}: component {value} at row {row}, column {column} is beyond the range of {to}",
            path.display()
        )))
    };
    values.map(round).collect()
}
