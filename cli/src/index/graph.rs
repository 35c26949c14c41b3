//! Making a graph index: its arguments, and what reports show of it.

use std::path::{Path, PathBuf};

use serde::Serialize;
use warpann::io::Open;
use warpann::knn_graph::Graph;
use warpann::{Device, Element, GraphIndex, GraphIndexBuilder, Index};

use super::basis::{Basis, Place, first_given};
use super::stored::{Stored, first_unequal};
use crate::progress::{spinning, staged};
use crate::report::{Out, Outcome, bytes, positive};

/// The name of the kind of graph indexes.
pub const GRAPH: &str = "graph";

/// How a graph index is made, in addition to its basis.
#[derive(Debug, Clone, clap::Args)]
pub struct GraphRecipe {
    /// For a graph: largest number of edges of a vector, 4 to 256. Default: 32.
    #[arg(long, value_name = "N", conflicts_with = "edges")]
    degree: Option<usize>,
    /// For a graph: number of vectors that a walk keeps unless a search sets another. Default: 64.
    #[arg(long, value_name = "N", value_parser = positive)]
    beam: Option<usize>,
    /// For a graph: a search compares all vectors if there are at most N for each place of its beam, and walks
    /// otherwise; 0: it always walks. Default: 128.
    #[arg(long, value_name = "N")]
    exact_ratio: Option<usize>,
    /// For a graph: walks compare the vectors themselves, not codes of one byte for each component.
    #[arg(long)]
    no_codes: bool,
    /// For a graph: take the edges from this file instead of making a graph: ibin, npy, ivecs or bin, a row of numbers
    /// of other vectors (from 0, in the order of the base) for each vector, and all ones in empty slots.
    ///
    /// The edges stay as they are, except that a vector that no search could reach gets one edge from another.
    #[arg(long, value_name = "FILE")]
    edges: Option<PathBuf>,
    /// For a graph: choose the edges among the vectors in this file instead of searching for near ones: ibin, npy,
    /// ivecs or bin, a row of numbers of other vectors for each vector, as --edges.
    ///
    /// A file of knn-graph, which resumes an interrupted run, lets a long build be resumed. About as many neighbours as
    /// the degree are enough.
    #[arg(long, value_name = "FILE", conflicts_with = "edges")]
    neighbours: Option<PathBuf>,
}

impl GraphRecipe {
    /// The file of edges or of neighbours, if one is given.
    pub fn file(&self) -> Option<&PathBuf> {
        self.edges.as_ref().or(self.neighbours.as_ref())
    }

    /// An index of the vectors of `base`, of dimension `dim`, with edges of `graph` if there is a [`file`](Self::file).
    pub fn build<T: Element>(
        &self,
        basis: &Basis,
        place: &Place,
        (dim, base): (usize, &[T]),
        ids: Option<&[u64]>,
        graph: Option<&Graph>,
    ) -> Outcome<GraphIndex<T>> {
        let builder = self.builder(basis, place, dim);
        if let Some(graph) = graph {
            if self.neighbours.is_some() {
                let name = format!("adding {} vectors", graph.len());
                return Ok(staged(name, |watch| builder.build_with_neighbors(base, ids, graph, watch))?);
            }
            let build = || builder.build_with_graph(base, ids, graph);
            return Ok(spinning(format!("adding {} vectors and their edges", graph.len()), build)?);
        }
        let mut index = builder.build()?;
        Stored::add_all(&mut index, base, ids, None)?;
        Ok(index)
    }

    fn builder<T: Element>(&self, basis: &Basis, place: &Place, dim: usize) -> GraphIndexBuilder<T> {
        let mut builder = GraphIndex::<T>::builder(dim)
            .metric(basis.metric)
            .device(place.device.clone())
            .seed(basis.seed)
            .codes(!self.no_codes);
        if let Some(degree) = self.degree {
            builder = builder.degree(degree);
        }
        if let Some(beam) = self.beam {
            builder = builder.beam(beam);
        }
        if let Some(vectors) = self.exact_ratio {
            builder = builder.exact_ratio(vectors);
        }
        if let Some(budget) = place.memory_budget {
            builder = builder.memory_budget(budget);
        }
        builder
    }

    /// The first of the given options, all of which only graphs have.
    pub fn given(&self) -> Option<&'static str> {
        first_given(&[
            (self.degree.is_some(), "--degree"),
            (self.beam.is_some(), "--beam"),
            (self.exact_ratio.is_some(), "--exact-ratio"),
            (self.no_codes, "--no-codes"),
            (self.edges.is_some(), "--edges"),
            (self.neighbours.is_some(), "--neighbours"),
        ])
    }
}

impl<T: Element> Stored for warpann::graph::LinkedVectors<T> {
    type Details = Edges;

    /// Adds all vectors at once: a graph of all is better than one that grows.
    fn kind(_: &Index<Self>) -> String {
        GRAPH.into()
    }

    /// Compares the vectors in host memory: one at a time is slow to read from a device.
    fn first_other(index: &Index<Self>, base: &[T], path: &Path, how: Open) -> warpann::Result<Option<usize>> {
        let loaded = Index::<Self>::load_with(path, Device::Cpu, None, how)?;
        first_unequal(base, index.dim(), |id| loaded.reconstruct(id))
    }

    fn description(index: &Index<Self>) -> String {
        describe(index.degree())
    }

    fn details(index: &Index<Self>) -> Edges {
        Edges::of(index)
    }
}

/// A short description of a graph index.
pub fn describe(degree: usize) -> String {
    format!("{GRAPH}, degree {degree}")
}

/// The part of a report for graph indexes only.
#[derive(Debug, Clone, Serialize)]
pub struct Edges {
    degree: usize,
    edges: u64,
    mean_degree: f64,
    starts: u64,
    codes: bool,
    bytes: u64,
    pub beam: usize,
}

impl Edges {
    fn of<T: Element>(index: &GraphIndex<T>) -> Self {
        let statistics = index.statistics();
        Self {
            degree: index.degree(),
            edges: statistics.edges,
            mean_degree: statistics.mean_degree,
            starts: statistics.starts,
            codes: statistics.codes,
            bytes: statistics.host_bytes,
            beam: index.beam(),
        }
    }

    pub fn print(&self, out: &Out) -> Outcome {
        let Self { edges, mean_degree, starts, .. } = self;
        match edges {
            0 => out.field("edges", "none: all vectors are compared")?,
            _ => out.field("edges", format_args!("{edges}, {mean_degree:.1} of a vector, {starts} start nodes"))?,
        }
        let codes = if self.codes { ", with codes of the components" } else { "" };
        out.field("memory", format_args!("{}{codes}", bytes(self.bytes)))
    }
}
