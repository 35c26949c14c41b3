//! Index files of every kind: opening, and the description in reports.

mod basis;
mod flat;
mod graph;
mod ivf;
mod stored;

use std::path::Path;
use std::time::Instant;

use serde::Serialize;
use warpann::io::Open;
use warpann::knn_graph::Graph;
use warpann::{Any, AnyIndex, Element, Index, IndexInfo, IndexKind, Kind, KindInfo, Placement};

pub use self::basis::{Basis, Built, Place};
pub use self::graph::{GRAPH, GraphRecipe};
pub use self::ivf::{Kind as IvfKind, Recipe, describe as describe_ivf, kind_of, parse_kind as parse_ivf_kind};
pub use self::stored::{INVERTED_FILES, Stored};
use crate::progress::spinning;
use crate::report::{Failure, Out, Outcome};
use crate::vectors::Access;

/// The kinds whose searches have an effort, in messages.
pub const APPROXIMATE: &str = "inverted files and graphs";
/// The kind [`GRAPH`], in messages.
pub const GRAPHS: &str = "graphs";

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

/// The inputs of an index: vectors with their dimension, ids, vectors to train with, and edges or neighbours.
pub struct Inputs<'a, T: Element> {
    pub base: (usize, &'a [T]),
    pub ids: Option<&'a [u64]>,
    pub train: Option<&'a [T]>,
    pub graph: Option<&'a Graph>,
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

/// The part of a file's header that depends on the kind of index.
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
    type Details = Details;

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
        match index.inside() {
            Any::Flat(index) => Stored::details(index).into(),
            Any::Ivf(index) => Stored::details(index).into(),
            Any::Graph(index) => Stored::details(index).into(),
        }
    }
}

/// Opens an index file.
pub fn open<K: Kind>(
    path: &Path,
    device: impl Into<Placement>,
    memory_budget: Option<u64>,
    access: &Access,
) -> Outcome<Index<K>> {
    Ok(spinning("opening the index", || Index::load_with(path, device, memory_budget, access.how))?)
}

/// The part of a report that depends on the kind of index.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum Details {
    Flat(flat::Rows),
    Ivf(ivf::Lists),
    Graph(graph::Edges),
}

impl From<flat::Rows> for Details {
    fn from(rows: flat::Rows) -> Self {
        Self::Flat(rows)
    }
}

impl From<ivf::Lists> for Details {
    fn from(lists: ivf::Lists) -> Self {
        Self::Ivf(lists)
    }
}

impl From<graph::Edges> for Details {
    fn from(edges: graph::Edges) -> Self {
        Self::Graph(edges)
    }
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
    pub fn of<K: Stored<Details: Into<Details>>>(index: &Index<K>) -> Self {
        Self {
            device: index.device(),
            kind: K::kind(index),
            index: K::description(index),
            element: K::Element::TYPE.name(),
            metric: index.metric().name(),
            dim: index.dim(),
            vectors: index.len() as u64,
            details: K::details(index).into(),
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
