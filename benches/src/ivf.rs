//! The grid of inverted-file search: builds, the sweep over the lists probed, batches of few queries.
//!
//! A row is right (`verified`) if, for a few queries of the batch, no vector occurs twice, distances ascend, and each is the float64
//! distance from the stored vector; and if these queries, with all lists probed, get the nearest of all stored vectors. The stored vectors
//! are the base for flat lists, and the results of [`IvfIndex::reconstruct`] for product codes.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use rayon::prelude::*;
use warpann::io::IdMatrix;
use warpann::ivf::{Encoding, IvfIndex};
use warpann::{Device, Element, ElementType, FlatIndex, Metric, NONE, Neighbors, Scan, SearchOptions};
use warpann_measure::{Times, timed};

use crate::machine::Machine;
use crate::record::{Measured, Record};
use crate::set::{Set, slices};
use crate::vectors::{Truth, clustered, recall};
use crate::{Common, Failure, Outcome};

/// Arguments of `ivf`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    source: Source,
    /// What is kept of a vector: flat, f16, sq8, or pq and the bytes of its code.
    #[arg(long, value_delimiter = ',', default_value = "flat,f16,sq8,pq16,pq32,pq64")]
    encodings: Vec<Coding>,
    /// Lists of each index.
    #[arg(long, default_value_t = 4096, value_parser = count)]
    lists: usize,
    /// Numbers of probed lists to measure.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32,64,128,256,512,1024", value_parser = count)]
    probes: Vec<usize>,
    /// Results a query, when all queries are searched at once.
    #[arg(long, value_delimiter = ',', default_value = "10,100", value_parser = count)]
    k: Vec<usize>,
    /// Sizes of batches of few queries, k = 10.
    #[arg(long, value_delimiter = ',', default_value = "1,16,256", value_parser = count)]
    batches: Vec<usize>,
    /// Number of first rows of the base to train on. Default: all; the index takes a sample of them.
    #[arg(long, value_parser = count)]
    train: Option<usize>,
    /// How lists are read: auto, list-major or query-major. Named in the cases unless auto.
    #[arg(long, value_enum, default_value = "auto")]
    scan: ScanOrder,
    /// Rate of matrix products in f16 with f32 sums, in TFLOP/s: gives the floor that arithmetic sets.
    #[arg(long, value_parser = crate::exact::positive)]
    tflops: Option<f64>,
}

/// [`Scan`] as an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ScanOrder {
    Auto,
    ListMajor,
    QueryMajor,
}

impl ScanOrder {
    /// The option of a search.
    pub fn scan(self) -> Scan {
        match self {
            Self::Auto => Scan::Auto,
            Self::ListMajor => Scan::ListMajor,
            Self::QueryMajor => Scan::QueryMajor,
        }
    }

    /// The text that the scan adds to the name of a case.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Auto => "",
            Self::ListMajor => " list-major",
            Self::QueryMajor => " query-major",
        }
    }
}

/// The origin of the vectors.
#[derive(Debug, clap::Args)]
pub struct Source {
    /// Folder of base, query (.fbin, .u8bin or .i8bin) and gt (.ibin or .bin). Default: clustered vectors, which are generated.
    #[arg(long, value_name = "FOLDER")]
    pub data: Option<PathBuf>,
    /// Base vectors to make.
    #[arg(long, default_value_t = 1_000_000, value_parser = count, conflicts_with = "data")]
    pub n: usize,
    /// Components of a vector to make.
    #[arg(long, default_value_t = 128, value_parser = count, conflicts_with = "data")]
    pub dim: usize,
    /// Queries: made, or the first of the file.
    #[arg(long, default_value_t = 10_000, value_parser = count)]
    pub queries: usize,
}

/// A number above 0.
pub fn count(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&number| number > 0).ok_or_else(|| "expected a number above 0".into())
}

/// Number of queries for which an exact search computes the ground truth, if it is not given.
const WITH_TRUTH: usize = 2_000;
/// Number of true neighbours of each query.
const TRUTH_DEPTH: usize = 100;
/// Queries whose answers are compared with float64, if the batch has them.
const CHECKED: &[usize] = &[0, 15, 255, 9_999];
/// Results of batches of few queries.
const FEW_QUERIES_K: usize = 10;

/// The encoding of vectors in an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coding {
    /// An encoding without parameters.
    Plain(Encoding),
    /// A product code of this number of bytes, with one byte for each sub-quantizer.
    Pq(usize),
}

impl Coding {
    /// The coding of vectors as they were added.
    pub const FLAT: Self = Self::Plain(Encoding::Flat);

    /// The encoding as the library's type.
    pub fn encoding(self) -> Encoding {
        match self {
            Self::Plain(encoding) => encoding,
            Self::Pq(sub_quantizers) => Encoding::Pq { sub_quantizers, bits: 8, rotate: false },
        }
    }
}

impl FromStr for Coding {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(encoding) = Encoding::plain().find(|encoding| encoding.name() == text) {
            return Ok(Self::Plain(encoding));
        }
        match text.strip_prefix("pq").map(count) {
            Some(Ok(bytes)) => Ok(Self::Pq(bytes)),
            _ => {
                let plain: Vec<&str> = Encoding::plain().map(Encoding::name).collect();
                Err(format!("expected {}, or pq and a number of bytes such as pq32", plain.join(", ")))
            }
        }
    }
}

impl fmt::Display for Coding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(encoding) => write!(f, "ivf-{}", encoding.name()),
            Self::Pq(bytes) => write!(f, "ivf-pq{bytes}"),
        }
    }
}

/// Base, queries and ground truth of one element type.
pub struct Vectors<'a, T> {
    /// The vectors in which the index searches.
    pub base: &'a [T],
    /// The vectors for which the index searches.
    pub queries: &'a [T],
    /// Components of a vector.
    pub dim: usize,
    /// True neighbours of the first queries.
    pub truth: &'a IdMatrix,
}

impl<T: Element> Vectors<'_, T> {
    /// Rows of the base.
    pub fn rows(&self) -> usize {
        self.base.len() / self.dim
    }

    /// Number of queries.
    pub fn count(&self) -> usize {
        self.queries.len() / self.dim
    }

    /// The name of the set in a record.
    pub fn case(&self, coding: Coding, lists: usize) -> String {
        format!("{coding} {}x{} {} lists={lists}", self.rows(), self.dim, T::TYPE.name())
    }
}

/// A measurement with vectors of any element type.
pub trait Work {
    /// Runs the measurement. Returns true if every result was right.
    fn run<T: Element>(&self, vectors: &Vectors<'_, T>) -> Outcome<bool>;
}

/// Reads or makes vectors, finds the true neighbours if they are not given, and runs the measurement.
pub fn with_vectors(source: &Source, common: &Common, device: Device, work: &impl Work) -> Outcome<bool> {
    let Some(folder) = &source.data else {
        let Source { n, dim, queries, .. } = *source;
        let (n, dim, queries) = if common.quick { (3_000, 24, 300) } else { (n, dim, queries) };
        let mut base = clustered(n + queries, dim, 1);
        let probes = base.split_off(n * dim);
        return go(&base, &probes, dim, None, device, work);
    };
    let Set { base, query, truth } = Set::in_folder(folder)?;
    let queries = if common.quick { 100 } else { source.queries }.min(query.rows());
    macro_rules! go {
        ($T:ty) => {{
            let (base_rows, all) = slices::<$T>(&base, &query)?;
            go(base_rows, &all[..queries * base.dim()], base.dim(), truth, device, work)
        }};
    }
    match base.element() {
        ElementType::F32 => go!(f32),
        ElementType::U8 => go!(u8),
        ElementType::I8 => go!(i8),
        other => Err(Failure::Unmeasured { element: other.name() }),
    }
}

fn go<T: Element>(
    base: &[T],
    queries: &[T],
    dim: usize,
    truth: Option<IdMatrix>,
    device: Device,
    work: &impl Work,
) -> Outcome<bool> {
    let truth = match truth {
        Some(truth) => truth,
        None => {
            let known = (queries.len() / dim).min(WITH_TRUTH);
            let mut exact = FlatIndex::<T>::new(dim, Metric::L2, device)?;
            exact.add(base)?;
            let found = exact.search(&queries[..known * dim], TRUTH_DEPTH)?;
            IdMatrix { rows: known, k: TRUTH_DEPTH, ids: found.ids }
        }
    };
    work.run(&Vectors { base, queries, dim, truth: &truth })
}

/// Measures the grid; true if every result was right.
pub fn run(args: &Args) -> Outcome<bool> {
    let machine = Machine::open(args.common.device, args.common.quick)?;
    with_vectors(&args.source, &args.common, machine.device(), &Grid { args, machine: &machine })
}

struct Grid<'a> {
    args: &'a Args,
    machine: &'a Machine,
}

impl Work for Grid<'_> {
    fn run<T: Element>(&self, vectors: &Vectors<'_, T>) -> Outcome<bool> {
        let Self { args, machine } = *self;
        let mut record = Record::open(&args.common, machine)?;
        let lists = if args.common.quick { 16 } else { args.lists };
        let quick = [Coding::FLAT, Coding::Plain(Encoding::F16), Coding::Plain(Encoding::Scalar8), Coding::Pq(8)];
        for &coding in if args.common.quick { &quick[..] } else { &args.encodings } {
            if machine.gpu.is_some() {
                // Loads the kernels, which the driver compiles.
                self.build(vectors, coding, lists, |_| Ok(()))?;
            }
            let index = self.build(vectors, coding, lists, |measured| record.add(measured))?;
            let truths = truths(&index, vectors, coding)?;
            let steps = Steps { grid: self, vectors, index: &index, truths, case: vectors.case(coding, lists) };
            let exhaustive = steps.exhaustive()?;
            for (batch, k, probes, repeat) in self.batches(vectors.count(), lists) {
                let mut measured = steps.measure(batch, k, probes, args.common.repeat.unwrap_or(repeat))?;
                measured.verified &= exhaustive;
                record.add(measured)?;
            }
        }
        Ok(record.all_verified())
    }
}

impl Grid<'_> {
    /// Queries, k, probes and runs of each step.
    fn batches(&self, queries: usize, lists: usize) -> Vec<(usize, usize, usize, usize)> {
        let Args { common, probes, k, batches, .. } = self.args;
        let quick = [1, 4, lists];
        let probes = if common.quick { &quick[..] } else { probes };
        let large = k.iter().flat_map(|&k| probes.iter().map(move |&probes| (queries, k, probes, 5)));
        let few = batches.iter().filter(|&&batch| batch < queries);
        let small = few.flat_map(|&batch| probes.iter().map(move |&probes| (batch, FEW_QUERIES_K, probes, 20)));
        large.chain(small).collect()
    }

    /// Makes an index with all vectors, and records the times of training and of adding, and their sum.
    fn build<T: Element>(
        &self,
        vectors: &Vectors<'_, T>,
        coding: Coding,
        lists: usize,
        mut tell: impl FnMut(Measured) -> Outcome,
    ) -> Outcome<IvfIndex<T>> {
        let &Vectors { base, dim, .. } = vectors;
        let training = &base[..self.args.train.map_or(base.len(), |rows| (rows * dim).min(base.len()))];
        let builder = IvfIndex::<T>::builder(dim, lists).encoding(coding.encoding());
        let mut index = builder.device(self.machine.device()).seed(1).build()?;
        let case = vectors.case(coding, lists);
        let code_bytes = index.statistics().code_bytes as f64 * vectors.rows() as f64;
        let mut part = |name: &str, milliseconds: f64, bytes: f64| {
            tell(Measured::stage(format!("{name} {case}"), milliseconds, self.machine.floor_ms(bytes)))
        };
        let ((), training_ms) = timed(|| index.train(training))?;
        let ((), adding_ms) = timed(|| index.add(base))?;
        let (sample, read) = (size_of_val(training) as f64, size_of_val(base) as f64);
        part("train", training_ms, sample)?;
        part("add", adding_ms, read + code_bytes)?;
        part("build", training_ms + adding_ms, sample + read + code_bytes)?;
        Ok(index)
    }
}

/// The truth about what the index stores, for the queries that are checked.
pub fn truths<T: Element>(index: &IvfIndex<T>, vectors: &Vectors<'_, T>, coding: Coding) -> Outcome<Vec<Truth>> {
    let &Vectors { base, queries, dim, .. } = vectors;
    let checked = CHECKED.iter().copied().filter(|&query| query < vectors.count());
    if coding == Coding::FLAT {
        return Ok(checked.map(|query| Truth::of(base, queries, dim, query)).collect());
    }
    let ids = (0..vectors.rows() as u64).into_par_iter();
    let stored: Vec<Vec<f32>> = ids.map(|id| index.reconstruct(id)).collect::<Result<_, _>>()?;
    let (stored, queries): (_, Vec<f32>) = (stored.concat(), queries.iter().map(|x| x.to_f32()).collect());
    Ok(checked.map(|query| Truth::of(&stored, &queries, dim, query)).collect())
}

/// An index under measurement.
struct Steps<'a, T: Element> {
    grid: &'a Grid<'a>,
    vectors: &'a Vectors<'a, T>,
    index: &'a IvfIndex<T>,
    truths: Vec<Truth>,
    case: String,
}

impl<T: Element> Steps<'_, T> {
    /// Whether the queries that are checked get the nearest of all that is stored when all lists are probed.
    fn exhaustive(&self) -> Outcome<bool> {
        let dim = self.vectors.dim;
        for truth in &self.truths {
            let query = &self.vectors.queries[truth.query() * dim..][..dim];
            let found = self.index.search_with(query, TRUTH_DEPTH, &SearchOptions::new().probes(self.index.lists()))?;
            if !truth.confirms(&found.ids, &found.distances) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn measure(&self, batch: usize, k: usize, probes: usize, repeat: usize) -> Outcome<Measured> {
        let Self { grid, vectors, index, truths, case } = self;
        let &Vectors { base, queries, dim, truth } = *vectors;
        let part = &queries[..batch * dim];
        let scan = grid.args.scan;
        let options = SearchOptions::new().probes(probes).scan(scan.scan());
        let mut found = Neighbors { k, ids: vec![NONE; batch * k], distances: vec![0.0; batch * k] };
        let search = || index.search_into(part, k, &options, &mut found.ids, &mut found.distances);
        let times = Times::measure(2, repeat, search)?;
        let verified = truths.iter().filter(|truth| truth.query() < batch).all(|truth| {
            let slots = truth.query() * k..(truth.query() + 1) * k;
            truth.admits(&found.ids[slots.clone()], &found.distances[slots])
        });
        // As if different queries probed different lists, as far as there are lists.
        let n = vectors.rows() as f64;
        let lists = index.lists() as f64;
        let share = (batch as f64 * probes as f64 / lists).min(1.0);
        let code_bytes = index.statistics().code_bytes as f64;
        let centroids = 4.0 * lists * dim as f64;
        let bytes = share * n * code_bytes + centroids + size_of_val(part) as f64 + 12.0 * batch as f64 * k as f64;
        let looked_at = batch as f64 * (lists + (probes as f64 / lists).min(1.0) * n);
        Ok(Measured {
            case: format!("{case} nq={batch} probes={probes}{}", scan.suffix()),
            k,
            times,
            memory_floor_ms: grid.machine.floor_ms(bytes),
            matrix_floor_ms: grid.args.tflops.map(|rate| 1e3 * 2.0 * dim as f64 * looked_at / (rate * 1e12)),
            recall: recall(base, queries, dim, &found, truth),
            verified,
            ..Measured::default()
        })
    }
}
