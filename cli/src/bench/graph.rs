//! `warpann bench graph`: recall against speed of a graph index, for widths of the beam, numbers of neighbours and of
//! queries at once.

use std::path::PathBuf;
use std::time::Instant;

use warpann::{Element, GraphIndex, Index, SearchOptions};

use super::point::Effort;
use super::sweep::{self, Files, Seconds, Swept};
use crate::index::{Basis, GraphRecipe, read_graph};
use crate::report::{Out, Outcome, positive};
use crate::streams::parse_index;
use crate::vectors::with_element;

/// Arguments of `bench graph`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The index to measure, which `warpann build --kind graph` made.
    #[arg(long, value_name = "INDEX", value_parser = parse_index, conflicts_with_all = [
        "degree", "beam", "exact_ratio", "no_codes", "edges", "neighbours", "metric", "seed",
    ])]
    index: Option<PathBuf>,
    /// Vectors of the index, unless --index is given. Without --gt, an exact search among them finds the true
    /// neighbours. With --index, the ids of the index must be the rows of this file.
    #[arg(long, value_name = "FILE", required_unless_present = "index")]
    base: Option<PathBuf>,
    #[command(flatten)]
    basis: Basis,
    #[command(flatten)]
    recipe: GraphRecipe,
    /// Vectors that a walk keeps; several numbers are separated by commas. Default: 16, 32, 64, 128, 256.
    #[arg(long, value_delimiter = ',', value_parser = positive)]
    beams: Vec<usize>,
    #[command(flatten)]
    sweep: sweep::Args,
}

impl<T: Element> Swept for warpann::graph::LinkedVectors<T> {
    fn effort(count: usize) -> Effort {
        Effort::Beam(count)
    }

    fn usual(_: &Index<Self>) -> Vec<usize> {
        vec![16, 32, 64, 128, 256]
    }

    fn at(effort: usize) -> SearchOptions<'static> {
        SearchOptions::new().beam(effort)
    }

    /// An exact search of the index finds the true neighbours.
    fn aim(index: &mut Index<Self>, queries: &[T], k: usize, _: &[u64], recall: f64) -> warpann::Result<(usize, f64)> {
        index.tune(queries, k, recall)
    }
}

/// Measures, writes the files, prints the table.
pub fn run(args: &Args, out: &Out) -> Outcome {
    let edges: Vec<&PathBuf> = args.recipe.file().into_iter().collect();
    let files = Files::read(&args.sweep, args.index.as_ref(), args.base.as_ref(), &edges)?;
    let stored = args.index.as_ref().map(|index| read_graph(index, "bench graph")).transpose()?;
    let element = files.element(stored.map(|info| (info.element, info.dim)))?;
    with_element!(element, T => files.measure::<T, _>(&args.beams, |dim, base| index(args, dim, base), out))
}

/// A new index of the base.
fn index<T: Element>(args: &Args, dim: usize, base: &[T]) -> Outcome<(GraphIndex<T>, Seconds)> {
    let (access, place) = (&args.sweep.access, &args.sweep.place);
    let graph = args.recipe.file().map(|path| access.stdin.graph(path)).transpose()?;
    let start = Instant::now();
    let index = args.recipe.build::<T>(&args.basis, place, (dim, base), None, graph.as_ref())?;
    Ok((index, Seconds { train_seconds: None, add_seconds: Some(start.elapsed().as_secs_f64()) }))
}
