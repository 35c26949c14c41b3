//! `warpann add`, `warpann remove` and `warpann merge`: changes of index files.
//!
//! The changed index is written in full and takes its name when it is complete, so a failure leaves the file as it was.
//! Runs that change one file wait for each other. Each reads its input before it takes the lock, because the input may
//! come from a pipe that waits for another run.

use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Serialize;
use warpann::{Any, AnyIndex, Device, Error, Index, IndexInfo, NONE};

use crate::index::{Details, Place, Stored, Summary, open};
use crate::progress::{Step, spinning, staged};
use crate::report::{Failure, Out, Outcome, bytes, positive};
use crate::streams::{check_files, lock, parse_index};
use crate::vectors::{Access, exactly, with_element};

/// Arguments of `add`.
#[derive(Debug, clap::Args)]
pub struct AddArgs {
    /// The index to change, which `warpann build` made. Runs that change one index wait for each other.
    #[arg(long, value_name = "INDEX", value_parser = parse_index)]
    index: PathBuf,
    /// Vectors to add: fvecs, bvecs, fbin, u8bin, i8bin, npy, safetensors or parquet, or a folder or a pattern of
    /// Parquet files. Other element types than that of the index are converted if that is exact.
    #[arg(long, value_name = "FILE")]
    base: PathBuf,
    /// Add only the first N vectors; the file may end anywhere behind them.
    #[arg(long, value_name = "N", value_parser = positive)]
    rows: Option<usize>,
    /// Ids of the vectors, one for each: ibin, ivecs, npy or parquet; or txt, with an id or a range such as 100-199 in
    /// each line; or, with a base in Parquet, the name of a column. Default: the numbers after the greatest id of the
    /// index.
    #[arg(long, value_name = "FILE|COLUMN")]
    ids: Option<PathBuf>,
    /// With an inverted file: number of vectors that are read and added at a time; the index does not depend on it.
    /// Default: 1048576.
    #[arg(long, value_name = "N", value_parser = positive)]
    batch: Option<usize>,
    /// Write the changed index here and leave the old one. Default: replace the old one.
    #[arg(long, value_name = "INDEX", value_parser = parse_index)]
    out: Option<PathBuf>,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    access: Access,
}

/// Arguments of `remove`.
#[derive(Debug, clap::Args)]
pub struct RemoveArgs {
    /// The index to change, which `warpann build` made. Runs that change one index wait for each other.
    #[arg(long, value_name = "INDEX", value_parser = parse_index)]
    index: PathBuf,
    /// Ids of the vectors to remove, each once: ibin, ivecs, npy, parquet or bin; or txt, with an id or a range such as
    /// 100-199 in each line. Empty slots are ignored. An id that the index does not hold is an error.
    #[arg(long, value_name = "FILE")]
    ids: PathBuf,
    /// Write the changed index here and leave the old one. Default: replace the old one.
    #[arg(long, value_name = "INDEX", value_parser = parse_index)]
    out: Option<PathBuf>,
    #[command(flatten)]
    access: Access,
}

/// Arguments of `merge`.
#[derive(Debug, clap::Args)]
pub struct MergeArgs {
    /// Indexes to merge, at least two of the same kind, with different ids. Inverted files must have the same training;
    /// a graph gets the vectors of the others.
    ///
    /// Inverted files have the same training if `warpann build` made them with the same --train, --lists, --kind,
    /// --metric, --seed and other settings of the training, or if `warpann add` and `warpann remove` made them from one
    /// index.
    #[arg(long, value_name = "INDEX", required = true, num_args = 1.., value_parser = parse_index)]
    index: Vec<PathBuf>,
    /// The index to write. Its number of probes or its beam is that of the first index.
    #[arg(long, value_name = "INDEX", value_parser = parse_index)]
    out: PathBuf,
    #[command(flatten)]
    access: Access,
}

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    summary: Summary,
    #[serde(flatten)]
    change: Change,
    load_seconds: f64,
    change_seconds: f64,
    save_seconds: f64,
    file: String,
    file_bytes: u64,
}

/// A change of an index, with the number of vectors or indexes; in JSON a field with the name of the change.
#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum Change {
    Added(usize),
    Removed(usize),
    Merged(usize),
}

/// Adds vectors to an index file.
pub fn run_add(args: &AddArgs, out: &Out) -> Outcome {
    let target = args.out.as_ref().unwrap_or(&args.index);
    let inputs = [Some(&*args.base), args.ids.as_deref()];
    check_files(args.access.stdin, inputs.into_iter().flatten(), [&**target])?;
    IndexInfo::read(&args.index)?;
    let start = Instant::now();
    let base = spinning("reading", || args.access.first_vectors(&args.base, args.rows))?;
    let ids = args.ids.as_ref().map(|ids| args.access.ids_of(&args.base, ids, args.rows)).transpose()?;
    let _lock = lock(target)?;
    let file = IndexInfo::read(&args.index)?;
    if base.rows() > 0 && base.dim() != file.dim {
        return Err(Error::WrongDimension { expected: file.dim, actual: base.dim() }.into());
    }
    with_element!(file.element, T => {
        let rows = exactly::<T>(&base, &args.base)?;
        let mut index = open::<Any<T>>(&args.index, args.place.device.clone(), args.place.memory_budget, &args.access)?;
        let load_seconds = start.elapsed().as_secs_f64();
        let start = Instant::now();
        Any::add_all(&mut index, &rows, ids.as_ref().map(|ids| &ids.ids[..]), args.batch)?;
        let change = Change::Added(base.rows());
        save(&index, target, change, load_seconds, start.elapsed().as_secs_f64(), out)
    })
}

/// Removes vectors from an index file.
pub fn run_remove(args: &RemoveArgs, out: &Out) -> Outcome {
    let target = args.out.as_ref().unwrap_or(&args.index);
    check_files(args.access.stdin, [&*args.ids], [&**target])?;
    IndexInfo::read(&args.index)?;
    let start = Instant::now();
    let mut ids = spinning("reading", || args.access.ids(&args.ids))?.ids;
    ids.retain(|&id| id != NONE);
    let _lock = lock(target)?;
    let file = IndexInfo::read(&args.index)?;
    with_element!(file.element, T => {
        let mut index = open::<Any<T>>(&args.index, Device::Cpu, None, &args.access)?;
        let load_seconds = start.elapsed().as_secs_f64();
        let start = Instant::now();
        spinning(format!("removing {} vectors", ids.len()), || index.remove(&ids))?;
        let change = Change::Removed(ids.len());
        save(&index, target, change, load_seconds, start.elapsed().as_secs_f64(), out)
    })
}

/// Merges index files into one.
pub fn run_merge(args: &MergeArgs, out: &Out) -> Outcome {
    let [first, others @ ..] = &args.index[..] else { return Ok(()) };
    if others.is_empty() {
        return Err(Failure::Message("merge needs at least two indexes".into()));
    }
    check_files(args.access.stdin, args.index.iter().map(PathBuf::as_path), [&*args.out])?;
    // The headers of all files are read before the content of any.
    let file = IndexInfo::read(first)?;
    for path in others {
        let other = IndexInfo::read(path)?;
        if other.kind() != file.kind() {
            return Err(named(path, Error::Incompatible { what: "kind" }));
        }
        if other.element != file.element {
            return Err(named(path, Error::Incompatible { what: "element type" }));
        }
    }
    with_element!(file.element, T => {
        let start = Instant::now();
        let mut index = open::<Any<T>>(first, Device::Cpu, None, &args.access)?;
        let load_seconds = start.elapsed().as_secs_f64();
        let start = Instant::now();
        let step = Step::of("merging", others.len(), "indexes");
        for (number, path) in others.iter().enumerate() {
            let other = AnyIndex::<T>::load_with(path, Device::Cpu, None, args.access.how)?;
            index.merge(&other).map_err(|error| named(path, error))?;
            step.at(number + 1);
        }
        drop(step);
        let _lock = lock(&args.out)?;
        let change = Change::Merged(args.index.len());
        save(&index, &args.out, change, load_seconds, start.elapsed().as_secs_f64(), out)
    })
}

/// An error of merging the index at `path`, with its path.
fn named(path: &Path, error: Error) -> Failure {
    Failure::Message(format!("{}: {error}", path.display()))
}

/// Saves a changed index and prints the report.
fn save<K: Stored<Details = Details>>(
    index: &Index<K>,
    target: &Path,
    change: Change,
    load_seconds: f64,
    change_seconds: f64,
    out: &Out,
) -> Outcome {
    let start = Instant::now();
    staged("saving the index", |watch| index.save_watched(target, watch))?;
    let save_seconds = start.elapsed().as_secs_f64();
    let (name, text) = match change {
        Change::Added(count) => ("add", format!("{count} vectors")),
        Change::Removed(count) => ("remove", format!("{count} vectors")),
        Change::Merged(count) => ("merge", format!("{count} indexes")),
    };
    let report = Report {
        summary: Summary::of(index),
        change,
        load_seconds,
        change_seconds,
        save_seconds,
        file: target.display().to_string(),
        file_bytes: std::fs::metadata(target).map_or(0, |file| file.len()),
    };
    report.summary.print(out)?;
    out.field("load", format_args!("{load_seconds:.3} s"))?;
    out.field(name, format_args!("{change_seconds:.3} s, {text}"))?;
    out.field("save", format_args!("{save_seconds:.3} s, {} in {}", bytes(report.file_bytes), report.file))?;
    out.object(&report)
}
