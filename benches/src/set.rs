//! Vectors to search in and vectors to search for: from files, or made.

use std::path::{Path, PathBuf};

use warpann::io::{self, IdMatrix, read_ground_truth, read_vectors};
use warpann::{Device, Element, ElementType, FlatIndex, Metric, NONE, Neighbors};

use crate::record::Record;
use crate::vectors::{Truth, clustered, recall};
use crate::{Failure, Outcome};

/// Base vectors, queries of the same dimension, and the true neighbours of the first queries if they are known. Base
/// and queries are not empty, and the neighbours are rows of the base.
pub struct Set {
    /// The vectors in which the benchmark searches.
    pub base: io::Vectors,
    /// The vectors for which the benchmark searches.
    pub query: io::Vectors,
    /// The true neighbours of the queries, if they are known.
    pub truth: Option<IdMatrix>,
}

impl Set {
    /// Reads and checks the files.
    pub fn read(base: &Path, query: &Path, truth: Option<&Path>) -> Outcome<Self> {
        let (vectors, queries) = (read_vectors(base)?, read_vectors(query)?);
        let (base_dim, query_dim) = (vectors.dim(), queries.dim());
        if base_dim == 0 || vectors.rows() == 0 || queries.rows() == 0 || query_dim != base_dim {
            return Err(Failure::Queries { path: query.to_owned(), queries: queries.rows(), query_dim, base_dim });
        }
        let known = truth.map(read_ground_truth).transpose()?.map(|truth| truth.ids);
        if let (Some(path), Some(known)) = (truth, &known)
            && let Some(&id) = known.ids.iter().find(|&&id| id != NONE && id >= vectors.rows() as u64)
        {
            return Err(Failure::Truth { path: path.to_owned(), id, rows: vectors.rows() });
        }
        Ok(Self { base: vectors, query: queries, truth: known })
    }

    /// Measures with the first `queries` queries.
    pub fn run(&self, queries: usize, work: &impl Measurement, record: &mut Record) -> Outcome {
        match self.base.element() {
            ElementType::F32 => work.run(&self.vectors::<f32>(queries)?, record),
            ElementType::U8 => work.run(&self.vectors::<u8>(queries)?, record),
            ElementType::I8 => work.run(&self.vectors::<i8>(queries)?, record),
            other => Err(Failure::Unmeasured { element: other.name() }),
        }
    }

    /// The vectors, if they are of type `T`.
    fn vectors<T: Element>(&self, queries: usize) -> Outcome<Vectors<'_, T>> {
        let Self { base, query, truth } = self;
        let (dim, queries) = (base.dim(), queries.min(query.rows()));
        match (base.as_slice(), query.as_slice()) {
            (Some(base), Some(all)) => Ok(Vectors { base, queries: &all[..queries * dim], dim, truth: truth.as_ref() }),
            _ => Err(Failure::Elements { base: base.element().name(), query: query.element().name() }),
        }
    }

    /// Reads `base`, `query` (`.fbin`, `.u8bin` or `.i8bin`) and, if it is there, `gt` (`.ibin` or `.bin`) of a folder.
    pub fn in_folder(folder: &Path) -> Outcome<Self> {
        let first = |name: &str, extensions: &[&str]| -> Option<PathBuf> {
            let path = |extension: &&str| folder.join(name).with_extension(extension);
            extensions.iter().map(path).find(|path| path.exists())
        };
        let vectors = |name: &str| {
            // If there is none, the error names the usual one.
            first(name, &["fbin", "u8bin", "i8bin"]).unwrap_or_else(|| folder.join(name).with_extension("fbin"))
        };
        Self::read(&vectors("base"), &vectors("query"), first("gt", &["ibin", "bin"]).as_deref())
    }
}

/// The arguments of a grid, after the origin of its vectors.
#[derive(Debug, clap::Args)]
pub struct Sourced<A: clap::Args> {
    #[command(flatten)]
    source: Source,
    /// The arguments of the grid.
    #[command(flatten)]
    pub grid: A,
}

/// The origin of the vectors.
#[derive(Debug, clap::Args)]
struct Source {
    /// Folder of base, query (.fbin, .u8bin or .i8bin) and gt (.ibin or .bin). Default: clustered vectors, which are
    /// generated.
    #[arg(long, value_name = "FOLDER")]
    data: Option<PathBuf>,
    /// Base vectors to make.
    #[arg(long, default_value_t = 1_000_000, value_parser = count, conflicts_with = "data")]
    n: usize,
    /// Components of a vector to make.
    #[arg(long, default_value_t = 128, value_parser = count, conflicts_with = "data")]
    dim: usize,
    /// Queries: made, or the first of the file.
    #[arg(long, default_value_t = 10_000, value_parser = count)]
    queries: usize,
}

/// Base, queries and ground truth of one element type.
#[derive(Clone, Copy)]
pub struct Vectors<'a, T> {
    /// The vectors in which the index searches.
    pub base: &'a [T],
    /// The vectors for which the index searches.
    pub queries: &'a [T],
    /// Components of a vector.
    pub dim: usize,
    /// True neighbours of the first queries, if they are known.
    pub truth: Option<&'a IdMatrix>,
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

    /// The sizes and the element type, as they stand in a case.
    pub fn shape(&self) -> String {
        format!("{}x{} {}", self.rows(), self.dim, T::TYPE.name())
    }

    /// Float64 distances of those of the queries `checked` that there are.
    pub fn truths(&self, checked: &[usize]) -> Vec<Truth> {
        let checked = checked.iter().copied().filter(|&query| query < self.count());
        checked.map(|query| Truth::of(self.base, self.queries, self.dim, query)).collect()
    }

    /// The recall of results for the first queries, by [`recall`].
    pub fn recall(&self, found: &Neighbors) -> Option<f64> {
        recall(self.base, self.queries, self.dim, found, self.truth?)
    }
}

/// A measurement with vectors of any element type.
pub trait Measurement {
    /// Measures all cases with these vectors.
    fn run<T: Element>(&self, vectors: &Vectors<'_, T>, record: &mut Record) -> Outcome;
}

impl<A: clap::Args + Measurement> Sourced<A> {
    /// Reads or makes vectors, finds the true neighbours if they are not given, and measures.
    pub fn run(&self, record: &mut Record) -> Outcome {
        let Source { data, n, dim, queries } = &self.source;
        let work = WithTruth(&self.grid);
        if let Some(folder) = data {
            return Set::in_folder(folder)?.run(record.quick_or(100, *queries), &work, record);
        }
        let (n, dim, queries) = record.quick_or((3_000, 24, 300), (*n, *dim, *queries));
        let (base, queries) = made(n, queries, dim);
        work.run(&Vectors { base: &base, queries: &queries, dim, truth: None }, record)
    }
}

/// Number of queries for which an exact search computes the ground truth, if it is not given.
const WITH_TRUTH: usize = 2_000;
/// Number of true neighbours of each query.
pub const TRUTH_DEPTH: usize = 100;

/// A measurement that needs ground truth.
struct WithTruth<'a, W>(&'a W);

impl<W: Measurement> Measurement for WithTruth<'_, W> {
    fn run<T: Element>(&self, vectors: &Vectors<'_, T>, record: &mut Record) -> Outcome {
        if vectors.truth.is_some() {
            return self.0.run(vectors, record);
        }
        let &Vectors { base, queries, dim, .. } = vectors;
        let rows = vectors.count().min(WITH_TRUTH);
        let found = exact(base, dim, record.device())?.search(&queries[..rows * dim], TRUTH_DEPTH)?;
        let truth = IdMatrix { rows, k: TRUTH_DEPTH, ids: found.ids };
        self.0.run(&Vectors { truth: Some(&truth), ..*vectors }, record)
    }
}

/// Clustered vectors, and queries from the same clusters.
pub fn made(n: usize, queries: usize, dim: usize) -> (Vec<f32>, Vec<f32>) {
    let mut base = clustered(n + queries, dim, 1);
    let queries = base.split_off(n * dim);
    (base, queries)
}

/// An index for exact search by squared L2.
pub fn exact<T: Element>(base: &[T], dim: usize, device: Device) -> warpann::Result<FlatIndex<T>> {
    let mut index = FlatIndex::new(dim, Metric::L2, device)?;
    index.add(base)?;
    Ok(index)
}

/// A number above 0.
pub fn count(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&number| number > 0).ok_or_else(|| "expected a number above 0".into())
}

/// A rate above 0.
pub fn positive(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate: &f64| rate.is_finite() && *rate > 0.0);
    rate.ok_or_else(|| "expected a rate above 0".into())
}
