//! `warpann search`.

mod options;
mod results;

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Serialize;
use warpann::io::{GroundTruth, Vectors};
use warpann::ivf::Ivf;
use warpann::ivf::{IvfIndex, Refiner};
use warpann::{
    Any, AnyIndex, Bitset, Element, Error, Filter, FlatIndex, FlatIndexBuilder, IndexInfo, IndexKind, Input, Metric,
    NONE, Placement, Proof, RangeNeighbors, SearchOptions, SearchStatistics, metric,
};

use crate::index::{GRAPH, INVERTED_FILES, Stored, name_of, open};
use crate::progress::{Step, spinning, watched};
use crate::recall::{Recall, mean, read_truth, recall_of};
use crate::report::{Failure, Out, Outcome, complain, parse_bytes, positive};
use crate::streams::{Stdout, check_files, parse_index};
use crate::vectors::{Access, exactly, with_element};
use options::{IndexOptions, Originals};

/// Arguments of `search`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Vectors for an exact search: fvecs, bvecs, fbin, u8bin, i8bin, npy, safetensors or parquet, or a folder or a
    /// pattern of Parquet files.
    #[arg(long, value_name = "FILE", required_unless_present = "index")]
    pub base: Option<PathBuf>,
    /// Ids of the vectors of the base, one for each: ibin, ivecs, npy or parquet; or txt, with an id or a range such as
    /// 100-199 in each line; or, with a base in Parquet, the name of a column. Default: 0, 1, 2, ..
    #[arg(long, value_name = "FILE|COLUMN", conflicts_with = "index")]
    ids: Option<PathBuf>,
    /// An index to search, which `warpann build` made.
    #[arg(long, value_name = "INDEX", conflicts_with_all = ["base", "metric"], value_parser = parse_index)]
    pub index: Option<PathBuf>,
    /// With --index and an inverted file: number of lists to search for each query. Default: the number in the index.
    #[arg(long, conflicts_with = "base", value_parser = positive)]
    pub probes: Option<usize>,
    /// With --index and a graph: number of vectors that a walk keeps, at least k. More find more of the true neighbours
    /// and take longer. Default: the number in the index, or 2 k if that is more.
    #[arg(long, conflicts_with = "base", value_parser = positive)]
    beam: Option<usize>,
    /// Vectors to search for, in any of the same formats. If the element types differ, both are converted to f32, which
    /// is exact; an index keeps its type.
    #[arg(long, value_name = "FILE")]
    pub query: PathBuf,
    /// Neighbours of each query.
    #[arg(long, default_value_t = 10)]
    pub k: usize,
    /// l2 (squared Euclidean distance), ip (inner product), cosine, or for u8 hamming (bits, eight in a byte).
    #[arg(long, default_value = "l2")]
    pub metric: Metric,
    /// auto, cpu, gpu, gpu:N, or emulator (checks the GPU's kernels on the CPU; very slow). Several: gpu:0,gpu:1 are
    /// replicas, which divide the queries; gpu:0+gpu:1 are shards, which divide the vectors; gpu:0+gpu:1,gpu:2+gpu:3
    /// are both.
    #[arg(long, default_value = "auto")]
    pub device: Placement,
    /// True neighbours: ivecs, ibin, npy, or big-ann ground truth (bin, ibin, fbin or without extension).
    ///
    /// Prints two figures. recall@k: the fraction of the first k true neighbours that were found, averaged over
    /// queries. Recall by distance: the fraction of found neighbours that are at most as far as the k-th true one, by
    /// distances that are computed from the vectors, so that another order of equal distances does not count as a miss.
    /// The second figure is not available with an index, nor with --ids.
    #[arg(long, value_name = "FILE")]
    pub gt: Option<PathBuf>,
    /// Write the ids: ibin, ivecs or npy; or ids and distances: csv or parquet, with the columns query, rank, id and
    /// distance.
    ///
    /// Queries and rows of the table count from 0 and ranks from 1. A line is a neighbour; empty slots have no line.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Write the distances: fbin, fvecs or npy.
    #[arg(long, value_name = "FILE")]
    distances: Option<PathBuf>,
    /// Memory that the index may use on its device (of several, on each), in bytes or with K, M, G, T.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub memory_budget: Option<u64>,
    /// Print the neighbours of the first N queries.
    #[arg(long, value_name = "N", default_value_t = 0)]
    show: usize,
    #[command(flatten)]
    pub options: IndexOptions,
    #[command(flatten)]
    pub access: Access,
    #[command(flatten)]
    pub stdout: Stdout,
    /// Search on every rank that mpirun starts: each rank takes a part of the base, or its part of an index that
    /// `build --mpi` wrote. The results are those of one process; rank 0 prints and writes them. auto distributes the
    /// ranks of a machine among its GPUs.
    #[cfg(feature = "mpi")]
    #[arg(long, conflicts_with_all = ["filter", "exclude", "refine", "within", "radius", "ids"])]
    pub mpi: bool,
}

impl Args {
    /// Checks the arguments that can be checked without work. `index` is the index file.
    pub fn check(&self, index: Option<&Path>) -> Outcome {
        if self.k == 0 {
            return Err(Error::Zero { what: "k" }.into());
        }
        if index.is_none() {
            self.options.none()?;
        }
        self.check_formats()?;
        let inputs = [index, self.base.as_deref(), Some(&*self.query), self.gt.as_deref(), self.ids.as_deref()];
        check_files(self.access.stdin, inputs.into_iter().flatten().chain(self.options.inputs()), self.outputs())
    }

    /// Refuses options that the kind of the index does not have.
    fn check_kind(&self, file: &IndexInfo) -> Outcome {
        let other = |option, known| Err(Failure::OtherKind { option, known, kind: name_of(file) });
        let kind = file.kind();
        if kind != IndexKind::Graph && self.beam.is_some() {
            return other("--beam", GRAPH);
        }
        let of_ivf = if self.probes.is_some() { Some("--probes") } else { self.options.of_ivf() };
        of_ivf.filter(|_| kind != IndexKind::Ivf).map_or(Ok(()), |option| other(option, INVERTED_FILES))
    }
}

/// The report of the command, as JSON.
#[derive(Serialize)]
pub struct Report {
    device: String,
    /// Description of the index, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    probes: Option<usize>,
    metric: &'static str,
    element: &'static str,
    dim: usize,
    base: u64,
    queries: usize,
    /// None for a range search.
    #[serde(skip_serializing_if = "Option::is_none")]
    k: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    radius: Option<f32>,
    /// Number of vectors within the radius, over all queries.
    #[serde(skip_serializing_if = "Option::is_none")]
    results: Option<usize>,
    /// Number of vectors that the filter lets the search return.
    #[serde(skip_serializing_if = "Option::is_none")]
    filtered: Option<usize>,
    /// Number of candidates of each query that were refined.
    #[serde(skip_serializing_if = "Option::is_none")]
    candidates: Option<usize>,
    /// The proof until which more were refined.
    #[serde(skip_serializing_if = "Option::is_none")]
    proof: Option<Proof>,
    /// The largest distance of a neighbour.
    #[serde(skip_serializing_if = "Option::is_none")]
    within: Option<f32>,
    /// Number of lists that were read, over all queries.
    #[serde(skip_serializing_if = "Option::is_none")]
    lists: Option<u64>,
    /// Number of vectors that walks kept; 0 if no query walked.
    #[serde(skip_serializing_if = "Option::is_none")]
    beam: Option<u64>,
    /// Number of queries that were compared with every vector that they may find.
    #[serde(skip_serializing_if = "Option::is_none")]
    exact_queries: Option<u64>,
    load_seconds: f64,
    build_seconds: f64,
    search_seconds: f64,
    queries_per_second: f64,
    recall: Option<Recall>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    neighbours: Vec<Shown>,
}

/// The neighbours of one query, without empty slots.
#[derive(Serialize)]
struct Shown {
    query: usize,
    ids: Vec<u64>,
    distances: Vec<f32>,
}

/// Searches, writes the files, prints the report. `--mpi` is in ranks.rs.
pub fn run(args: &Args, out: &Out) -> Outcome {
    args.check(args.index.as_deref())?;
    let report = match (&args.index, &args.base) {
        (Some(index), _) => search_index(args, index)?,
        (None, Some(base)) => search_base(args, base)?,
        // The command line requires one of them.
        (None, None) => return Ok(()),
    };
    print(&report, out)
}

/// The files of a search in an index, which agree with each other.
pub struct IndexFiles {
    pub file: IndexInfo,
    pub queries: Vectors,
    pub truth: Option<GroundTruth>,
}

impl IndexFiles {
    /// Reads the files, including the header of the index at `path`.
    pub fn read(args: &Args, path: &Path) -> Outcome<Self> {
        let file = IndexInfo::read(path)?;
        args.check_kind(&file)?;
        let queries = args.access.vectors(&args.query)?;
        check_dim(file.dim, &queries)?;
        let read = |path: &Path| read_truth(&args.access, path, queries.rows(), args.k, None);
        let truth = args.gt.as_deref().map(read).transpose()?;
        Ok(Self { file, queries, truth })
    }
}

/// The files of an exact search, which agree with each other.
pub struct BaseFiles {
    pub base: Vectors,
    ids: Option<Vec<u64>>,
    pub queries: Vectors,
    pub truth: Option<GroundTruth>,
    pub dim: usize,
}

impl BaseFiles {
    /// Reads the files, and converts base and queries to one element type.
    pub fn read(args: &Args, path: &Path) -> Outcome<Self> {
        // The note below is printed when the step has ended.
        let read = || {
            let ids = args.ids.as_ref().map(|ids| args.access.ids_of(path, ids, None)).transpose()?;
            Ok::<_, Failure>((args.access.vectors(path)?, ids, args.access.vectors(&args.query)?))
        };
        let (mut base, ids, mut queries) = spinning("reading", read)?;
        if base.rows() > 0 {
            check_dim(base.dim(), &queries)?;
        }
        // Ground truth has the ids of the base.
        let rows = ids.is_none().then_some(base.rows());
        let read = |path: &Path| read_truth(&args.access, path, queries.rows(), args.k, rows);
        let truth = args.gt.as_deref().map(read).transpose()?;
        if base.element() != queries.element() {
            let (from, to) = (base.element().name(), queries.element().name());
            complain(format_args!("note: base is {from}, queries are {to}: both are searched as f32, which is exact"));
            let wide = |vectors: &Vectors, path: &Path| {
                vectors.to_f32().map_err(|defect| Error::BadFile { path: path.to_owned(), defect })
            };
            base = wide(&base, path)?;
            queries = wide(&queries, &args.query)?;
        }
        // A vecs file without rows has no dimension. The other file has one, or there are no queries and no vectors.
        let dim = base.dim().max(queries.dim());
        Ok(Self { base, ids: ids.map(|ids| ids.ids), queries, truth, dim })
    }
}

/// Opens an index and searches it.
fn search_index(args: &Args, path: &Path) -> Outcome<Report> {
    let start = Instant::now();
    let files = spinning("reading", || IndexFiles::read(args, path))?;
    with_element!(files.file.element, T => match files.file.kind() {
        IndexKind::Ivf => search_ivf::<T>(args, path, &files, start),
        _ => search_vectors::<T>(args, path, &files, start),
    })
}

/// Memory for the results of queries for k neighbours; none for a range search.
fn room(args: &Args, queries: usize, metric: Metric) -> Outcome<(Vec<u64>, Vec<f32>)> {
    match args.options.radius {
        Some(_) => Ok((Vec::new(), Vec::new())),
        None => results(queries, args.k, metric),
    }
}

fn search_ivf<T: Element>(args: &Args, path: &Path, files: &IndexFiles, start: Instant) -> Outcome<Report> {
    let IndexFiles { file, queries, truth } = files;
    let queries = exactly::<T>(queries, &args.query)?;
    let count = queries.len() / file.dim;
    let filter = args.options.filter(&args.access)?;
    let originals = spinning("reading the original vectors", || args.options.originals(&args.access, file.dim))?;
    let candidates = originals.as_ref().map(|originals| originals.candidates(count, args.k)).transpose()?;
    let room = room(args, count, file.metric)?;
    let rows = originals.as_ref().map(Originals::exactly::<T>).transpose()?;
    let load_seconds = start.elapsed().as_secs_f64();
    let start = Instant::now();
    let index = open::<Ivf<T>>(path, args.device.clone(), args.memory_budget, &args.access)?;
    args.check_ids(index.greatest_id())?;
    let refiner = match (&originals, &rows) {
        (Some(originals), Some(rows)) => Some((originals.refiner(&index, rows)?, originals)),
        _ => None,
    };
    let filter = filter.map(|filter| filter.bits(&index));
    let build_seconds = start.elapsed().as_secs_f64();
    let mut about = About::ivf(&index, args);
    (about.filtered, about.candidates) = (filter.as_ref().map(Bitset::count_ones), candidates);
    let options = SearchOptions::new().probes(about.probes).filter(filter.as_ref().map(Filter::Bits));
    let job = Job { args, about, queries, base: None, truth: truth.as_ref(), load_seconds, build_seconds };
    if let Some(radius) = args.options.radius {
        return job.run_range(&index, radius, &options);
    }
    let options = options.widen(!args.options.no_widen).radius(args.options.within);
    let refiner = refiner.as_ref();
    let options =
        refiner.map_or(options, |(_, originals)| options.refine(originals.factor()).prove(args.options.prove));
    let index = Index::Ivf { index: &index, options, refiner: refiner.map(|(refiner, _)| refiner) };
    job.run(&index, room, |error| match refiner {
        Some((_, originals)) => originals.failure(error),
        None => error.into(),
    })
}

/// Searches an index of whole vectors without lists.
fn search_vectors<T: Element>(args: &Args, path: &Path, files: &IndexFiles, start: Instant) -> Outcome<Report> {
    let IndexFiles { file, queries, truth } = files;
    let queries = exactly::<T>(queries, &args.query)?;
    let filter = args.options.filter(&args.access)?;
    let room = room(args, queries.len() / file.dim, file.metric)?;
    let load_seconds = start.elapsed().as_secs_f64();
    let start = Instant::now();
    let index = open::<Any<T>>(path, args.device.clone(), args.memory_budget, &args.access)?;
    args.check_ids(index.greatest_id())?;
    let filter = filter.map(|filter| filter.bits(&index));
    let build_seconds = start.elapsed().as_secs_f64();
    let mut about = About::stored(&index);
    about.filtered = filter.as_ref().map(Bitset::count_ones);
    let options = SearchOptions::new().filter(filter.as_ref().map(Filter::Bits));
    let job = Job { args, about, queries, base: None, truth: truth.as_ref(), load_seconds, build_seconds };
    if let Some(radius) = args.options.radius {
        return job.run_range(&index, radius, &options);
    }
    let options = options.beam(args.beam).radius(args.options.within);
    job.run(&Index::Stored { index: &index, options }, room, Failure::from)
}

/// Adds vectors to an exact index and searches it.
fn search_base(args: &Args, path: &Path) -> Outcome<Report> {
    let start = Instant::now();
    let BaseFiles { base, ids, queries, truth, dim } = BaseFiles::read(args, path)?;
    let greatest = ids.as_ref().map_or((base.rows() as u64).checked_sub(1), |ids| ids.iter().copied().max());
    args.check_ids(greatest)?;
    let results = results(queries.rows(), args.k, args.metric)?;
    let load_seconds = start.elapsed().as_secs_f64();
    with_element!(base.element(), T => {
        let start = Instant::now();
        let mut index = flat_builder::<T>(args, dim).device(args.device.clone()).build()?;
        // They are of the same type now.
        let vectors = exactly::<T>(&base, path)?;
        spinning(format!("adding {} vectors", base.rows()), || match &ids {
            Some(ids) => index.add_with_ids(&vectors, ids),
            None => index.add(&vectors),
        })?;
        let build_seconds = start.elapsed().as_secs_f64();
        let queries = exactly::<T>(&queries, &args.query)?;
        let about = About::flat(&index);
        let (index, base) = (Index::Flat(index), ids.is_none().then_some(&*vectors));
        let job = Job { args, about, queries, base, truth: truth.as_ref(), load_seconds, build_seconds };
        job.run(&index, results, Failure::from)
    })
}

/// The settings of an exact index, without the device.
pub fn flat_builder<T: Element>(args: &Args, dim: usize) -> FlatIndexBuilder<T> {
    let builder = FlatIndex::<T>::builder(dim).metric(args.metric);
    match args.memory_budget {
        Some(budget) => builder.memory_budget(budget),
        None => builder,
    }
}

fn check_dim(expected: usize, queries: &Vectors) -> Outcome {
    if queries.rows() > 0 && queries.dim() != expected {
        return Err(Error::WrongDimension { expected, actual: queries.dim() }.into());
    }
    Ok(())
}

/// Memory for ids and distances.
fn results(queries: usize, k: usize, metric: Metric) -> Outcome<(Vec<u64>, Vec<f32>)> {
    let too_large = || Error::ResultTooLarge { queries, k };
    let slots = queries.checked_mul(k).ok_or_else(too_large)?;
    let (mut ids, mut distances) = (Vec::new(), Vec::new());
    ids.try_reserve_exact(slots).map_err(|_| too_large())?;
    distances.try_reserve_exact(slots).map_err(|_| too_large())?;
    ids.resize(slots, NONE);
    distances.resize(slots, metric.worst());
    Ok((ids, distances))
}

/// The index in which the command searches.
enum Index<'a, T: Element> {
    Flat(FlatIndex<T>),
    Ivf { index: &'a IvfIndex<T>, options: SearchOptions<'a>, refiner: Option<&'a Refiner<'a, T>> },
    Stored { index: &'a AnyIndex<T>, options: SearchOptions<'a> },
}

impl<T: Element> Index<'_, T> {
    fn dim(&self) -> usize {
        match self {
            Self::Flat(index) => index.dim(),
            Self::Ivf { index, .. } => index.dim(),
            Self::Stored { index, .. } => index.dim(),
        }
    }

    /// Searches, and returns what the search did.
    fn search_into(&self, queries: &[T], k: usize, ids: &mut [u64], distances: &mut [f32]) -> warpann::Result<Done> {
        let (found, statistics) = match self {
            Self::Flat(index) => {
                index.search_into(queries, k, &SearchOptions::new(), ids, distances)?;
                return Ok(Done::default());
            }
            Self::Ivf { index, options, refiner: None } => index.search_with_statistics(queries, k, options)?,
            Self::Ivf { index, options, refiner: Some(refiner) } => {
                index.search_refined(queries, k, options, refiner)?
            }
            Self::Stored { index, options } => index.search_with_statistics(queries, k, options)?,
        };
        ids.copy_from_slice(&found.ids);
        distances.copy_from_slice(&found.distances);
        let SearchStatistics { lists, exact_queries, beam, .. } = statistics;
        Ok(Done { lists, exact_queries, beam })
    }
}

/// Counts of the searches of an inverted file or a graph.
#[derive(Debug, Clone, Copy, Default)]
struct Done {
    lists: u64,
    exact_queries: u64,
    /// Number of vectors that walks kept; 0 without walks.
    beam: u64,
}

/// The properties of the searched index that a report shows.
pub struct About {
    pub device: String,
    pub vectors: u64,
    dim: usize,
    metric: Metric,
    /// Number of probed lists; none unless the index is an inverted file.
    pub probes: Option<usize>,
    index: Option<String>,
    /// Number of vectors that the filter lets the search return.
    filtered: Option<usize>,
    /// Number of candidates of each query that are refined.
    candidates: Option<usize>,
}

impl About {
    /// Settings of a search in an exact index.
    pub fn flat<T: Element>(index: &FlatIndex<T>) -> Self {
        let (device, vectors) = (index.device(), index.len() as u64);
        let (filtered, candidates) = (None, None);
        Self {
            device,
            vectors,
            dim: index.dim(),
            metric: index.metric(),
            probes: None,
            index: None,
            filtered,
            candidates,
        }
    }

    /// Settings of a search in an inverted file.
    pub fn ivf<T: Element>(index: &IvfIndex<T>, args: &Args) -> Self {
        Self { probes: Some(args.probes.unwrap_or(index.probes())), ..Self::stored(index) }
    }

    /// Settings of a search in an index of any kind.
    fn stored<K: Stored>(index: &warpann::Index<K>) -> Self {
        Self {
            device: index.device(),
            vectors: index.len() as u64,
            dim: index.dim(),
            metric: index.metric(),
            probes: None,
            index: Some(K::description(index)),
            filtered: None,
            candidates: None,
        }
    }
}

/// A search whose files are loaded and agree with each other.
pub struct Job<'a, T: Element> {
    pub args: &'a Args,
    pub about: About,
    pub queries: Cow<'a, [T]>,
    /// The vectors to which ground truth refers, if they are available.
    pub base: Option<&'a [T]>,
    pub truth: Option<&'a GroundTruth>,
    pub load_seconds: f64,
    pub build_seconds: f64,
}

impl<T: Element> Job<'_, T> {
    /// Finds k neighbours. `failure` makes a failure of a search's error.
    fn run(
        self,
        index: &Index<'_, T>,
        (mut ids, mut distances): (Vec<u64>, Vec<f32>),
        failure: impl FnOnce(Error) -> Failure,
    ) -> Outcome<Report> {
        let start = Instant::now();
        let done = search_all(index, &self.queries, self.args.k, &mut ids, &mut distances).map_err(failure)?;
        let search_seconds = start.elapsed().as_secs_f64();
        let within = self.args.options.within;
        let mut report = self.report(&ids, &distances, search_seconds)?;
        report.within = within;
        match index {
            Index::Ivf { .. } => (report.lists, report.exact_queries) = (Some(done.lists), Some(done.exact_queries)),
            Index::Stored { index, .. } if index.kind() == IndexKind::Graph => {
                (report.beam, report.exact_queries) = (Some(done.beam), Some(done.exact_queries));
            }
            Index::Flat(_) | Index::Stored { .. } => {}
        }
        Ok(report)
    }

    /// Finds all vectors within a radius.
    fn run_range(
        self,
        index: &warpann::Index<impl Stored<Element = T>>,
        radius: f32,
        options: &SearchOptions<'_>,
    ) -> Outcome<Report> {
        let start = Instant::now();
        let found = spinning("searching", || index.range_search(&self.queries, radius, options))?;
        let search_seconds = start.elapsed().as_secs_f64();
        let RangeNeighbors { ids, distances, .. } = &found;
        self.args.write(ids, distances, (0..found.queries()).map(|query| found.row(query)))?;
        let rows = (0..found.queries()).map(|query| found.row(query));
        let mut report = self.described(search_seconds, rows);
        (report.k, report.radius, report.results) = (None, Some(radius), Some(ids.len()));
        Ok(report)
    }

    /// Writes the output files, and returns the report.
    pub fn report(self, ids: &[u64], distances: &[f32], search_seconds: f64) -> Outcome<Report> {
        let Self { args, queries, base, truth, .. } = &self;
        let (dim, metric, k) = (self.about.dim, self.about.metric, args.k);
        let slots = || ids.chunks_exact(k).zip(distances.chunks_exact(k));
        args.write(ids, distances, slots())?;
        let rows = || slots().enumerate();
        let recall = truth.map(|truth| {
            let found = rows().map(|(query, (ids, distances))| {
                let probe = &queries[query * dim..(query + 1) * dim];
                let exact = base.map(|base| {
                    move |id: u64| metric::canonical(metric, probe, &base[id as usize * dim..(id as usize + 1) * dim])
                });
                recall_of(ids, distances, &truth.ids.row(query)[..k], metric, exact)
            });
            let recall = mean(found, k);
            Recall { by_distance: recall.by_distance.filter(|_| base.is_some()), ..recall }
        });
        Ok(Report { recall, ..self.described(search_seconds, slots()) })
    }

    /// The report, without recall. `rows` are the ids and distances of each query.
    fn described<'r>(self, search_seconds: f64, rows: impl Iterator<Item = (&'r [u64], &'r [f32])>) -> Report {
        let Self { args, about, queries, load_seconds, build_seconds, .. } = self;
        let About { device, vectors, dim, metric, probes, index, filtered, candidates } = about;
        let neighbours = rows.enumerate().take(args.show).map(|(query, (ids, distances))| {
            let found = ids.iter().take_while(|&&id| id != NONE).count();
            Shown { query, ids: ids[..found].to_vec(), distances: distances[..found].to_vec() }
        });
        let queries = queries.len() / dim;
        Report {
            device,
            index,
            probes,
            metric: metric.name(),
            element: T::TYPE.name(),
            dim,
            base: vectors,
            queries,
            k: Some(args.k),
            radius: None,
            results: None,
            filtered,
            candidates,
            proof: Some(args.options.prove).filter(|&proof| proof != Proof::None),
            within: None,
            lists: None,
            beam: None,
            exact_queries: None,
            load_seconds,
            build_seconds,
            search_seconds,
            queries_per_second: queries as f64 / search_seconds.max(f64::MIN_POSITIVE),
            recall: None,
            neighbours: neighbours.collect(),
        }
    }
}

/// Searches in one call or, if progress is shown, in batches that grow until each takes a quarter of a second.
fn search_all<T: Element>(
    index: &Index<'_, T>,
    probes: &[T],
    k: usize,
    ids: &mut [u64],
    distances: &mut [f32],
) -> warpann::Result<Done> {
    let dim = index.dim();
    let queries = probes.len() / dim;
    if !watched() {
        return index.search_into(probes, k, ids, distances);
    }
    let step = Step::of("searching", queries, "queries");
    let (mut done, mut batch, mut sum) = (0, 64, Done::default());
    while done < queries {
        let end = queries.min(done + batch);
        let start = Instant::now();
        let slots = done * k..end * k;
        let part = index
            .search_into(&probes[done * dim..end * dim], k, &mut ids[slots.clone()], &mut distances[slots])
            .map_err(|error| match error {
                // A refined search also names rows of the original vectors.
                Error::NotFinite { input: Input::Base, .. } => error,
                error => error.after_rows(done),
            })?;
        sum.lists += part.lists;
        sum.exact_queries += part.exact_queries;
        sum.beam = sum.beam.max(part.beam);
        if start.elapsed().as_secs_f64() < 0.25 {
            batch = batch.saturating_mul(2);
        }
        done = end;
        step.at(done);
    }
    Ok(sum)
}

/// Prints the report, as text or JSON.
pub fn print(report: &Report, out: &Out) -> Outcome {
    let Report { dim, element, .. } = report;
    out.field("device", &report.device)?;
    out.field("base", format_args!("{} vectors, dimension {dim}, {element}", report.base))?;
    match (&report.index, report.probes, report.beam) {
        (Some(index), Some(probes), _) => out.field("index", format_args!("{index}, {probes} probes"))?,
        (Some(index), None, Some(0)) => out.field("index", format_args!("{index}, all vectors compared"))?,
        (Some(index), None, Some(beam)) => out.field("index", format_args!("{index}, beam {beam}"))?,
        (Some(index), None, None) => out.field("index", index)?,
        (None, ..) => {}
    }
    if let Some(filtered) = report.filtered {
        out.field("filter", format_args!("{filtered} of {} vectors", report.base))?;
    }
    let (queries, metric) = (report.queries, report.metric);
    match (report.k, report.radius) {
        (Some(k), _) => out.field("queries", format_args!("{queries}, k = {k}, metric {metric}"))?,
        (None, Some(radius)) => out.field("queries", format_args!("{queries}, radius {radius}, metric {metric}"))?,
        (None, None) => {}
    }
    if let Some(candidates) = report.candidates {
        let more = match report.proof {
            Some(proof) => format!(", and more until a {proof} proof"),
            None => String::new(),
        };
        out.field("refined", format_args!("{candidates} candidates of each query{more}"))?;
    }
    if let Some(within) = report.within {
        out.field("within", within)?;
    }
    out.field("load", format_args!("{:.3} s", report.load_seconds))?;
    let build = if report.index.is_some() { "open" } else { "build" };
    out.field(build, format_args!("{:.3} s", report.build_seconds))?;
    out.field("search", format_args!("{:.3} s, {:.0} queries/s", report.search_seconds, report.queries_per_second))?;
    if let Some(results) = report.results {
        out.field("results", format_args!("{results} vectors within the radius"))?;
    }
    if let Some(Recall { at, by_id, by_distance }) = report.recall {
        let by_distance = by_distance.map_or(String::new(), |recall| format!(", {recall:.6} by distance"));
        out.field(&format!("recall@{at}"), format_args!("{by_id:.6} by id{by_distance}"))?;
    }
    for Shown { query, ids, distances } in &report.neighbours {
        out.line(format_args!("query {query}"))?;
        for (place, (id, distance)) in ids.iter().zip(distances).enumerate() {
            out.line(format_args!("{:>6} {id:>12} {distance:>16}", place + 1))?;
        }
    }
    out.object(report)
}
