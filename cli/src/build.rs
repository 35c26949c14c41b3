//! `warpann build`: makes an index file from vectors.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Serialize;
use warpann::io::{IdMatrix, Vectors};
use warpann::knn_graph::Graph;
use warpann::{Any, Element};

use crate::index::{Built, Inputs, Made, Place, Recipes, Summary, parse_kind};
use crate::progress::{spinning, staged};
use crate::report::{Out, Outcome, bytes, positive};
use crate::streams::{check_files, lock, parse_index};
use crate::vectors::{Access, exactly, with_element};

/// Arguments of `build`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Vectors to index: fvecs, bvecs, fbin, u8bin, i8bin, npy, safetensors or parquet, or a folder or a pattern of
    /// Parquet files. The index keeps their element type.
    #[arg(long, value_name = "FILE")]
    pub base: PathBuf,
    /// Index only the first N vectors of the base; the file may end anywhere behind them.
    #[arg(long, value_name = "N", value_parser = positive)]
    rows: Option<usize>,
    /// Kind of index. A graph (graph), which finds more of the neighbours in less time; or an inverted file, which is
    /// made in less time, and keeps of each vector its components (ivf-flat), its components as half-precision numbers
    /// (ivf-f16), a byte for each component (ivf-sq8), a few bits for each component (ivf-bits), or the code of a
    /// product quantizer (ivf-pq).
    #[arg(long, value_parser = parse_kind, default_value = "ivf-flat")]
    pub kind: Made,
    /// With an inverted file: number of vectors that are read and added at a time; the index does not depend on it.
    /// Default: 1048576.
    #[arg(long, value_name = "N", value_parser = positive)]
    batch: Option<usize>,
    /// Ids of the vectors, one for each: ibin, ivecs, npy or parquet; or txt, with an id or a range such as 100-199 in
    /// each line; or, with a base in Parquet, the name of a column. Default: 0, 1, 2, ..
    #[arg(long, value_name = "FILE|COLUMN")]
    pub ids: Option<PathBuf>,
    /// The file to write.
    #[arg(long, value_name = "INDEX", value_parser = parse_index)]
    pub out: PathBuf,
    #[command(flatten)]
    pub recipes: Recipes,
    #[command(flatten)]
    pub place: Place,
    #[command(flatten)]
    pub access: Access,
    /// Build on every rank that mpirun starts: rank 0 trains; each rank adds a part of the base and writes it to
    /// INDEX.RANK-of-COUNT, for `search --mpi` with the same number of ranks. auto distributes the ranks of a machine
    /// among its GPUs.
    #[cfg(feature = "mpi")]
    #[arg(long)]
    pub mpi: bool,
}

/// Components of the base, and of the vectors to train on.
type Rows<'a, T> = (Cow<'a, [T]>, Option<Cow<'a, [T]>>);

/// The files of a build, which agree with each other.
pub struct Files {
    pub base: Vectors,
    pub ids: Option<IdMatrix>,
    pub train: Option<Vectors>,
    graph: Option<Graph>,
}

impl Files {
    /// Reads the files, for an index that is saved to `out`.
    pub fn read(args: &Args, out: &Path) -> Outcome<Self> {
        args.kind.check(&args.recipes, args.batch)?;
        // Training takes long, so this first checks everything that could prevent saving.
        let inputs = [Some(&args.base), args.ids.as_ref(), args.recipes.ivf.train.as_ref(), args.recipes.graph.file()];
        check_files(args.access.stdin, inputs.into_iter().flatten().map(PathBuf::as_path), [out])?;
        let base = args.access.first_vectors(&args.base, args.rows)?;
        let ids = args.ids.as_ref().map(|ids| args.access.ids_of(&args.base, ids, args.rows)).transpose()?;
        let train = args.recipes.ivf.train.as_ref().map(|path| args.access.vectors(path)).transpose()?;
        if let Some(train) = &train
            && train.rows() > 0
            && train.dim() != base.dim()
        {
            return Err(warpann::Error::WrongDimension { expected: base.dim(), actual: train.dim() }.into());
        }
        let graph = args.recipes.graph.file().map(|path| args.access.stdin.graph(path)).transpose()?;
        Ok(Self { base, ids, train, graph })
    }

    /// Base and training vectors as components of `T`.
    pub fn exactly<T: Element>(&self, args: &Args) -> Outcome<Rows<'_, T>> {
        let train = match (&self.train, &args.recipes.ivf.train) {
            (Some(train), Some(path)) => Some(exactly::<T>(train, path)?),
            _ => None,
        };
        Ok((exactly::<T>(&self.base, &args.base)?, train))
    }
}

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    summary: Summary,
    load_seconds: f64,
    train_seconds: f64,
    add_seconds: f64,
    save_seconds: f64,
    file: String,
    file_bytes: u64,
}

/// Saves the index, and returns the report.
fn saved<T: Element>(args: &Args, built: &Built<Any<T>>, load_seconds: f64) -> Outcome<Report> {
    // A run that changes the old file meanwhile would replace the new one by what it made of the old.
    let _lock = lock(&args.out)?;
    let start = Instant::now();
    staged("saving the index", |watch| built.index.save_watched(&args.out, watch))?;
    Ok(Report {
        summary: Summary::of(&built.index),
        load_seconds,
        train_seconds: built.train_seconds.unwrap_or(0.0),
        add_seconds: built.add_seconds,
        save_seconds: start.elapsed().as_secs_f64(),
        file: args.out.display().to_string(),
        file_bytes: std::fs::metadata(&args.out).map_or(0, |file| file.len()),
    })
}

/// Builds, saves, prints the report. `--mpi` is in ranks.rs.
pub fn run(args: &Args, out: &Out) -> Outcome {
    let start = Instant::now();
    let files = spinning("reading", || Files::read(args, &args.out))?;
    let (dim, ids) = (files.base.dim(), files.ids.as_ref().map(|ids| &ids.ids[..]));
    let (report, train_seconds) = with_element!(files.base.element(), T => {
        let (rows, train) = files.exactly::<T>(args)?;
        let load_seconds = start.elapsed().as_secs_f64();
        let inputs = Inputs { base: (dim, &rows), ids, train: train.as_deref(), graph: files.graph.as_ref() };
        let built = args.kind.build(&args.recipes, &args.place, inputs, args.batch)?;
        (saved(args, &built, load_seconds)?, built.train_seconds)
    });
    report.summary.print(out)?;
    out.field("load", format_args!("{:.3} s", report.load_seconds))?;
    if let Some(seconds) = train_seconds {
        out.field("train", format_args!("{seconds:.3} s"))?;
    }
    out.field("add", format_args!("{:.3} s", report.add_seconds))?;
    out.field("save", format_args!("{:.3} s, {} in {}", report.save_seconds, bytes(report.file_bytes), report.file))?;
    out.object(&report)
}
