//! Index files of every kind: opening, and the description in reports.

mod flat;
mod graph;
mod ivf;

use std::path::Path;
use std::time::Instant;

use rayon::prelude::*;
use serde::Serialize;
use warpann::io::Open;
use warpann::knn_graph::Graph;
use warpann::{Any, AnyIndex, Element, Index, IndexInfo, IndexKind, Kind, KindInfo, Metric, Placement};

pub use self::graph::GraphRecipe;
pub use self::ivf::{Kind as IvfKind, Recipe, describe as describe_ivf, kind_of, parse_kind as parse_ivf_kind};
use crate::progress::{spinning, staged};
use crate::report::{Failure, Out, Outcome, parse_bytes};
use crate::vectors::Access;

/// The name of the kind of graph indexes.
pub const GRAPH: &str = "graph";
/// The name of the kind of exact indexes.
pub const FLAT: &str = "flat";
/// Inverted files, in messages.
pub const INVERTED_FILES: &str = "inverted files";
/// The kinds whose searches have an effort, in messages.
pub const APPROXIMATE: &str = "inverted files and graphs";
/// The kind [`GRAPH`], in messages.
pub const GRAPHS: &str = "graphs";

/// Default number of vectors that are added at a time.
pub const BATCH: usize = 1 << 20;

/// A kind of index that the program can make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Made {
    Ivf(IvfKind),
    Graph,
}

/// The kind of a name on the command line.
pub fn parse_kind(text: &str) -> Result<Made, String> {
    if text == GRAPH {
        return Ok(Made::Graph);
    }
    IvfKind::named(text).map(Made::Ivf).ok_or_else(|| format!("expected one of {}, {GRAPH}", IvfKind::names()))
}

/// How an index of each kind is made.
#[derive(Debug, Clone, clap::Args)]
pub struct Recipes {
    #[command(flatten)]
    pub ivf: Recipe,
    #[command(flatten)]
    pub graph: GraphRecipe,
}

/// What an index is made of: vectors with their dimension, ids, vectors to train with, and edges or neighbours.
pub struct Inputs<'a, T: Element> {
    pub base: (usize, &'a [T]),
    pub ids: Option<&'a [u64]>,
    pub train: Option<&'a [T]>,
    pub graph: Option<&'a Graph>,
}

/// A new index, and the times of making it. Only some kinds are trained.
pub struct Built<K: Kind> {
    pub index: Index<K>,
    pub train_seconds: Option<f64>,
    pub add_seconds: f64,
}

impl Made {
    /// Refuses options that the kind of index does not have; `batch` is one of them.
    pub fn check(self, recipes: &Recipes, batch: Option<usize>) -> Outcome {
        let of_ivf = recipes.ivf.given().or(batch.map(|_| "--batch"));
        let (other, known, kind) = match self {
            Made::Ivf(kind) => (recipes.graph.given(), "--kind graph", kind.name()),
            Made::Graph => (of_ivf, INVERTED_FILES, GRAPH.into()),
        };
        other.map_or(Ok(()), |option| Err(Failure::OtherKind { option, known, kind }))
    }

    /// Makes an index of the kind; an inverted file adds `batch` vectors at a time.
    pub fn build<T: Element>(
        self,
        recipes: &Recipes,
        place: &Place,
        inputs: Inputs<'_, T>,
        batch: Option<usize>,
    ) -> Outcome<Built<Any<T>>> {
        let Inputs { base, ids, train, graph } = inputs;
        match self {
            Made::Ivf(kind) => {
                let Built { index, train_seconds, add_seconds } =
                    recipes.ivf.build(kind, place, base, ids, train, batch)?;
                Ok(Built { index: index.into(), train_seconds, add_seconds })
            }
            Made::Graph => {
                let start = Instant::now();
                let index = recipes.graph.build(&recipes.ivf.basis, place, base, ids, graph)?.into();
                Ok(Built { index, train_seconds: None, add_seconds: start.elapsed().as_secs_f64() })
            }
        }
    }
}

/// The first of the options that are given.
fn first_given(options: &[(bool, &'static str)]) -> Option<&'static str> {
    options.iter().find_map(|&(given, option)| given.then_some(option))
}

/// How an index of any kind is made.
#[derive(Debug, Clone, clap::Args)]
pub struct Basis {
    /// l2 (squared Euclidean distance), ip (inner product) or cosine.
    #[arg(long, default_value = "l2")]
    pub metric: Metric,
    /// Seed of the index: the same seed and vectors give the same index.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// The device of an index and its memory budget.
#[derive(Debug, Clone, clap::Args)]
pub struct Place {
    /// auto, cpu, gpu, gpu:N, or emulator (checks the GPU's kernels on the CPU; very slow). Several: gpu:0,gpu:1 are replicas, which
    /// divide the queries; gpu:0+gpu:1 are shards, which divide the vectors; gpu:0+gpu:1,gpu:2+gpu:3 are both.
    #[arg(long, default_value = "auto")]
    pub device: Placement,
    /// Memory that the index may use on its device (of several, on each), in bytes or with K, M, G, T.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub memory_budget: Option<u64>,
}

/// The name on the command line of the kind of an index in a file.
pub fn name_of(info: &IndexInfo) -> String {
    match info.of_kind {
        KindInfo::Ivf { encoding, .. } => kind_of(encoding),
        _ => info.kind().name().into(),
    }
}

/// The header of a file, for `user`, an option or a command that only inverted files have.
pub fn read_ivf(path: &Path, user: &'static str) -> Outcome<IndexInfo> {
    read_kind(path, IndexKind::Ivf, user, INVERTED_FILES)
}

/// The header of a file, for `user`, a command that only graphs have.
pub fn read_graph(path: &Path, user: &'static str) -> Outcome<IndexInfo> {
    read_kind(path, IndexKind::Graph, user, GRAPHS)
}

fn read_kind(path: &Path, kind: IndexKind, user: &'static str, known: &'static str) -> Outcome<IndexInfo> {
    let info = IndexInfo::read(path)?;
    if info.kind() == kind { Ok(info) } else { Err(Failure::OtherKind { option: user, known, kind: name_of(&info) }) }
}

/// What the header of a file says of one kind of index only.
#[derive(Serialize)]
#[serde(untagged)]
pub enum HeaderDetails {
    Flat {},
    Ivf { lists: usize, probes: usize, clamped_vectors: u64, clamped_components: u64 },
    Graph { degree: usize, beam: u64, starts: u64 },
}

impl HeaderDetails {
    /// The details of a header, and the kind and its parameters in a few words.
    pub fn of(info: &IndexInfo) -> (Self, String) {
        match info.of_kind {
            KindInfo::Ivf { encoding, lists, probes, clamped_vectors, clamped_components } => {
                (Self::Ivf { lists, probes, clamped_vectors, clamped_components }, describe_ivf(encoding, lists))
            }
            KindInfo::Graph { degree, beam, starts } => (Self::Graph { degree, beam, starts }, graph::describe(degree)),
            _ => (Self::Flat {}, name_of(info)),
        }
    }

    pub fn print(&self, out: &Out) -> Outcome {
        match *self {
            Self::Flat {} => Ok(()),
            Self::Ivf { probes, clamped_vectors, clamped_components, .. } => {
                out.field("probes", format_args!("{probes} by default"))?;
                ivf::print_clamped(out, clamped_vectors, clamped_components)
            }
            Self::Graph { beam, .. } => out.field("beam", format_args!("{beam} by default")),
        }
    }
}

/// A kind of index that a file can hold.
pub trait Stored: Kind {
    /// The name of the kind on the command line.
    fn kind(index: &Index<Self>) -> String;
    /// Adds the vectors of `base`, with one id for each or with ids that count up. Only inverted files add a number of vectors at a time.
    fn add_all(index: &mut Index<Self>, base: &[Self::Element], ids: Option<&[u64]>, batch: Option<usize>) -> Outcome {
        if batch.is_some() {
            return Err(Failure::OtherKind { option: "--batch", known: INVERTED_FILES, kind: Self::kind(index) });
        }
        let name = format!("adding {} vectors", base.len() / index.dim());
        Ok(staged(name, |watch| index.add_watched(base, ids, watch))?)
    }
    /// The first row of `base` that is not the vector whose id is the number of the row; none if all are. Equal vectors, and in an index of
    /// codes vectors of equal codes, are the same vector. `base` has as many rows as the index has vectors, and their numbers are the ids. The
    /// index was opened from `path`. O(base), and with codes as much as adding the base.
    fn first_other(
        index: &Index<Self>,
        base: &[Self::Element],
        path: &Path,
        how: Open,
    ) -> warpann::Result<Option<usize>>;
    /// The kind and its parameters in a few words, such as `ivf-flat, 64 lists`.
    fn description(index: &Index<Self>) -> String;
    /// What reports show of this kind only.
    fn details(index: &Index<Self>) -> Details;
}

/// Calls `Stored::$name` of the kind inside of an index.
macro_rules! inside {
    ($inside:expr, $name:ident($($argument:expr),*)) => {
        match $inside {
            Any::Flat(index) => Stored::$name(index, $($argument),*),
            Any::Ivf(index) => Stored::$name(index, $($argument),*),
            Any::Graph(index) => Stored::$name(index, $($argument),*),
        }
    };
}

impl<T: Element> Stored for Any<T> {
    fn kind(index: &AnyIndex<T>) -> String {
        inside!(index.inside(), kind())
    }

    fn add_all(index: &mut AnyIndex<T>, base: &[T], ids: Option<&[u64]>, batch: Option<usize>) -> Outcome {
        inside!(index.inside_mut(), add_all(base, ids, batch))
    }

    fn first_other(index: &AnyIndex<T>, base: &[T], path: &Path, how: Open) -> warpann::Result<Option<usize>> {
        inside!(index.inside(), first_other(base, path, how))
    }

    fn description(index: &AnyIndex<T>) -> String {
        inside!(index.inside(), description())
    }

    fn details(index: &AnyIndex<T>) -> Details {
        inside!(index.inside(), details())
    }
}

/// The number of the first of `rows`, of dimension `dim`, that is not equal to what `vector` returns for its number; none if all are equal.
fn first_unequal<T: Element>(
    rows: &[T],
    dim: usize,
    vector: impl Fn(u64) -> warpann::Result<Vec<f32>> + Sync,
) -> warpann::Result<Option<usize>> {
    let unequal = |(number, row): (usize, &[T])| match vector(number as u64) {
        Ok(vector) if vector.iter().copied().eq(row.iter().map(|x| x.to_f32())) => None,
        Ok(_) => Some(Ok(number)),
        Err(error) => Some(Err(error)),
    };
    rows.par_chunks_exact(dim).enumerate().filter_map(unequal).find_first(|_| true).transpose()
}

/// Opens an index file.
pub fn open<K: Kind>(
    path: &Path,
    device: impl Into<Placement>,
    memory_budget: Option<u64>,
    access: Access,
) -> Outcome<Index<K>> {
    Ok(spinning("opening the index", || Index::load_with(path, device, memory_budget, access.how))?)
}

/// What reports show of one kind of index only.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum Details {
    Flat(flat::Rows),
    Ivf(ivf::Lists),
    Graph(graph::Edges),
}

/// The properties of an index that reports show.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    device: String,
    kind: String,
    /// Description of the index.
    index: String,
    element: &'static str,
    metric: &'static str,
    dim: usize,
    vectors: u64,
    #[serde(flatten)]
    details: Details,
}

impl Summary {
    /// Reads the properties of an index.
    pub fn of<K: Stored>(index: &Index<K>) -> Self {
        Self {
            device: index.device(),
            kind: K::kind(index),
            index: K::description(index),
            element: K::Element::TYPE.name(),
            metric: index.metric().name(),
            dim: index.dim(),
            vectors: index.len() as u64,
            details: K::details(index),
        }
    }

    /// The descriptions of the device and of the index.
    pub fn names(&self) -> (&str, &str) {
        (&self.device, &self.index)
    }

    /// Prints the properties, as text or JSON.
    pub fn print(&self, out: &Out) -> Outcome {
        let Self { device, index, element, metric, dim, vectors, .. } = self;
        out.field("device", device)?;
        out.field("vectors", format_args!("{vectors}, dimension {dim}, {element}, metric {metric}"))?;
        out.field("index", index)?;
        match &self.details {
            Details::Flat(rows) => rows.print(out),
            Details::Ivf(lists) => lists.print(out),
            Details::Graph(edges) => edges.print(out),
        }
    }
}
