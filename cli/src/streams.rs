//! Standard input and output in the place of files of vectors and ids: the file name `-`.

use std::io::Write;
use std::path::Path;

use serde::Serialize;
use warpann::io::{self, Format, GroundTruth, IdMatrix, Open, Vectors};
use warpann::knn_graph::Graph;
use warpann::{Element, Error, FileDefect};

use crate::id_list;
use crate::parquet;
use crate::report::{Failure, Outcome, complain};

/// The file name of standard input and standard output.
const STREAM: &str = "-";

/// Whether a file name stands for standard input or standard output.
pub fn is_stream(path: &Path) -> bool {
    path == Path::new(STREAM)
}

/// The format of standard input, which has no extension.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub struct Stdin {
    /// The format of standard input, for a command with - as the name of an input: fvecs, bvecs, ivecs, fbin, u8bin,
    /// i8bin, ibin, bin or npy.
    #[arg(long, value_name = "FORMAT")]
    format: Option<Format>,
}

impl Stdin {
    /// The format of an input: by its extension, or that of standard input.
    pub fn format_of(self, path: &Path) -> Outcome<Option<Format>> {
        if !is_stream(path) {
            return Ok(Format::of(path));
        }
        let missing = || Failure::NoFormat { stream: "standard input", option: "--format" };
        self.format.ok_or_else(missing).map(Some)
    }

    /// The first `rows` vectors of a file or of standard input, or all. `how` is for files.
    pub fn vectors(self, path: &Path, rows: Option<usize>, how: Open) -> Outcome<Vectors> {
        Ok(match self.format_of(path)? {
            Some(format) if is_stream(path) => io::read_vectors_from(std::io::stdin().lock(), STREAM, format, rows)?,
            _ => io::read_vectors_with(path, rows, how)?,
        })
    }

    /// The ids of a file or of standard input, with their distances if there are any.
    pub fn ground_truth(self, path: &Path) -> Outcome<GroundTruth> {
        Ok(match self.format_of(path)? {
            Some(format) if is_stream(path) => io::read_ground_truth_from(std::io::stdin().lock(), STREAM, format)?,
            _ => io::read_ground_truth(path)?,
        })
    }

    /// The ids of a file, also of a text, or of standard input.
    pub fn ids(self, path: &Path) -> Outcome<IdMatrix> {
        if id_list::is_text(path) {
            return id_list::ids(path);
        }
        self.ground_truth(path).map(|truth| truth.ids)
    }

    /// The graph in a file or in standard input.
    pub fn graph(self, path: &Path) -> Outcome<Graph> {
        let graph = Graph::from_ids(&self.ground_truth(path)?.ids);
        Ok(graph.map_err(|defect| Error::BadFile { path: path.to_owned(), defect })?)
    }
}

/// The format of standard output, which has no extension.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub struct Stdout {
    /// The format of standard output, for a command with - as the name of an output. Then the report goes to standard
    /// error.
    #[arg(long, value_name = "FORMAT", value_parser = parse_written)]
    out_format: Option<Written>,
}

/// The format of an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// A format of the library.
    Binary(Format),
    /// A table as text.
    Csv,
    Parquet,
}

impl Written {
    /// The format with this extension.
    fn of_extension(extension: &str) -> Option<Self> {
        let mut others = [Self::Csv, Self::Parquet].into_iter();
        let other = others.find(|format| extension.eq_ignore_ascii_case(format.extension()));
        other.or_else(|| Format::of_extension(extension).map(Self::Binary))
    }

    /// The extension, without the dot.
    pub fn extension(self) -> &'static str {
        match self {
            Self::Binary(format) => format.extension(),
            Self::Csv => "csv",
            Self::Parquet => parquet::EXTENSION,
        }
    }

    /// Whether the format can hold vectors.
    pub fn holds_vectors(self) -> bool {
        matches!(self, Self::Parquet) || matches!(self, Self::Binary(format) if format.holds_vectors())
    }

    /// Whether the format can hold ids.
    pub fn holds_ids(self) -> bool {
        matches!(self, Self::Parquet) || matches!(self, Self::Binary(format) if format.holds_ids())
    }
}

/// Extensions of the formats in which ids are written.
pub const ID_FORMATS: &str = "ibin, ivecs, npy";
/// Extensions of the formats in which f32 vectors and distances are written.
pub const F32_FORMATS: &str = "fbin, fvecs, npy";

impl Stdout {
    /// The format of an output, which must be one of `known`, the names of formats with a comma and a space between
    /// them.
    pub fn format_of(self, path: &Path, known: &'static str) -> Outcome<Written> {
        let extension = path.extension().and_then(|extension| extension.to_str());
        let format = match self.out_format {
            Some(format) if is_stream(path) => Some(format),
            None if is_stream(path) => {
                return Err(Failure::NoFormat { stream: "standard output", option: "--out-format" });
            }
            _ => extension.and_then(Written::of_extension),
        };
        let accepted = |format: &Written| known.split(", ").any(|known| known == format.extension());
        format.filter(accepted).ok_or_else(|| match self.out_format {
            Some(format) if is_stream(path) => {
                Failure::WrongFormat { option: "--out-format", format: format.extension(), known }
            }
            _ => Error::BadFile { path: path.to_owned(), defect: FileDefect::UnknownExtension { known } }.into(),
        })
    }

    /// Writes vectors of dimension `dim` to a file or to standard output.
    pub fn write_vectors<T: Element>(self, path: &Path, values: &[T], dim: usize) -> Outcome {
        match self.out_format {
            Some(Written::Binary(format)) if is_stream(path) => {
                to_stdout(|out| io::write_vectors_to(out, STREAM, format, values, dim))
            }
            _ => Ok(io::write_vectors(path, values, dim)?),
        }
    }

    /// Writes `k` ids for each row to a file or to standard output.
    pub fn write_ids(self, path: &Path, ids: &[u64], k: usize) -> Outcome {
        match self.out_format {
            Some(Written::Binary(format)) if is_stream(path) => {
                to_stdout(|out| io::write_ids_to(out, STREAM, format, ids, k))
            }
            _ => Ok(io::write_ids(path, ids, k)?),
        }
    }

    /// Writes the bytes of a whole file to a file or to standard output.
    pub fn write_bytes(self, path: &Path, bytes: &[u8]) -> Outcome {
        if !is_stream(path) {
            return Ok(io::write_file(path, bytes)?);
        }
        to_stdout(|mut out| out.write_all(bytes).map_err(|source| Error::Io { path: STREAM.into(), source }))
    }

    /// Writes csv to a file or to standard output: a line with the names of the columns, which are the fields of a row,
    /// and then the rows.
    pub fn write_table<R: Serialize>(
        self,
        path: &Path,
        columns: &[&str],
        rows: impl IntoIterator<Item = R>,
    ) -> Outcome {
        let write = |out: &mut dyn Write| {
            let mut table = csv::WriterBuilder::new().has_headers(false).from_writer(out);
            table.write_record(columns)?;
            rows.into_iter().try_for_each(|row| table.serialize(row))?;
            table.flush()
        };
        if !is_stream(path) {
            return Ok(io::write_file_with(path, |file| write(file))?);
        }
        to_stdout(|mut out| write(&mut out).map_err(|source| Error::Io { path: STREAM.into(), source }))
    }
}

/// Calls `write` with standard output. A failure to write there is [`Failure::Output`].
fn to_stdout(write: impl FnOnce(std::io::StdoutLock<'static>) -> warpann::Result<()>) -> Outcome {
    let written = write(std::io::stdout().lock());
    written.map_err(|error| match error {
        Error::Io { source, .. } => Failure::Output(source),
        error => error.into(),
    })?;
    std::io::stdout().flush().map_err(Failure::Output)
}

/// Checks the files of a command before any work: standard input is at most one input and has a format, standard output
/// is at most one output, and the other files are right for [`io::check_files`].
pub fn check_files<'i, 'o>(
    stdin: Stdin,
    inputs: impl IntoIterator<Item = &'i Path>,
    outputs: impl IntoIterator<Item = &'o Path>,
) -> Outcome {
    let (streams, inputs): (Vec<&Path>, Vec<&Path>) = inputs.into_iter().partition(|path| is_stream(path));
    if streams.len() > 1 {
        return Err(Failure::Message("standard input can be only one of the inputs".into()));
    }
    streams.first().map_or(Ok(None), |path| stdin.format_of(path))?;
    let (streams, outputs): (Vec<&Path>, Vec<&Path>) = outputs.into_iter().partition(|path| is_stream(path));
    if streams.len() > 1 {
        return Err(Failure::Message("standard output can be only one of the outputs".into()));
    }
    Ok(io::check_files(inputs, outputs)?)
}

/// Takes the lock of an index file that a command writes, and waits while another run has it. A command that changes a
/// file holds the lock from before it reads the file. Pipes and devices have no lock.
pub fn lock(path: &Path) -> Outcome<Option<io::FileLock>> {
    if std::fs::metadata(path).is_ok_and(|file| !file.is_file()) {
        return Ok(None);
    }
    let waiting = || complain(format_args!("note: another run is changing {}: waiting", path.display()));
    Ok(Some(io::lock_file(path, waiting)?))
}

/// Refuses standard input and output for a command of several ranks: mpirun connects them with one rank only.
#[cfg(feature = "mpi")]
pub fn refuse<'a>(mut files: impl Iterator<Item = &'a Path>) -> Outcome {
    match files.any(is_stream) {
        true => Err(Failure::Message("with --mpi every input and output must be a file, not -".into())),
        false => Ok(()),
    }
}

fn parse_written(text: &str) -> Result<Written, String> {
    if let Some(other) = [Written::Csv, Written::Parquet].into_iter().find(|format| format.extension() == text) {
        return Ok(other);
    }
    text.parse().map(Written::Binary).map_err(|error: warpann::UnknownName| format!("{error}, csv, parquet"))
}

/// The path of an index, which must be a file because the library maps and replaces it.
pub fn parse_index(text: &str) -> Result<std::path::PathBuf, String> {
    if is_stream(Path::new(text)) {
        return Err("an index must be a file; only vectors and ids can be in standard input and output".into());
    }
    Ok(text.into())
}
