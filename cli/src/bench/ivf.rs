//! `warpann bench ivf`: recall against speed of an inverted-file index, for numbers of probes, neighbours and queries
//! at once.

use std::path::PathBuf;

use warpann::SearchOptions;
use warpann::ivf::IvfIndex;

use warpann::{Element, Index};

use super::point::Effort;
use super::sweep::{self, Files, Seconds, Swept};
use crate::index::{IvfKind, Recipe, parse_ivf_kind, read_ivf};
use crate::report::{Failure, Out, Outcome, positive};
use crate::streams::parse_index;
use crate::vectors::{exactly, with_element};

/// Arguments of `bench ivf`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The index to measure, which `warpann build` made.
    #[arg(long, value_name = "INDEX", value_parser = parse_index, conflicts_with_all = [
        "kind", "lists", "sub_quantizers", "bits", "opq", "metric", "train", "seed", "iterations", "points_per_centroid",
    ])]
    index: Option<PathBuf>,
    /// Vectors of the index, unless --index is given. Without --gt, an exact search among them finds the true
    /// neighbours. With --index, the ids of the index must be the rows of this file.
    #[arg(long, value_name = "FILE", required_unless_present = "index")]
    base: Option<PathBuf>,
    /// Kind of inverted file, which says what it keeps of each vector: its components (ivf-flat), its components as
    /// half-precision numbers (ivf-f16), a byte for each component (ivf-sq8), a few bits for each component (ivf-bits),
    /// or the code of a product quantizer (ivf-pq).
    #[arg(long, value_parser = parse_ivf_kind, default_value = "ivf-flat")]
    kind: IvfKind,
    #[command(flatten)]
    recipe: Recipe,
    /// Lists to search; several numbers are separated by commas. Default: powers of two up to the number of lists, at
    /// most 256.
    #[arg(long, value_delimiter = ',', value_parser = positive)]
    probes: Vec<usize>,
    #[command(flatten)]
    sweep: sweep::Args,
}

impl<T: Element> Swept for warpann::ivf::Ivf<T> {
    fn effort(count: usize) -> Effort {
        Effort::Probes(count)
    }

    fn usual(index: &Index<Self>) -> Vec<usize> {
        let doubled = std::iter::successors(Some(1usize), |probes| probes.checked_mul(2));
        doubled.take_while(|&probes| probes <= index.lists().min(256)).collect()
    }

    fn at(effort: usize) -> SearchOptions<'static> {
        SearchOptions::new().probes(effort)
    }

    fn aim(
        index: &mut Index<Self>,
        queries: &[T],
        k: usize,
        truth: &[u64],
        recall: f64,
    ) -> warpann::Result<(usize, f64)> {
        let (probes, reached) = index.probes_for_recall(queries, k, truth, recall)?;
        index.set_probes(probes)?;
        Ok((probes, reached))
    }
}

/// Measures, writes the files, prints the table.
pub fn run(args: &Args, out: &Out) -> Outcome {
    let train: Vec<&PathBuf> = args.recipe.train.iter().collect();
    let files = Files::read(&args.sweep, args.index.as_ref(), args.base.as_ref(), &train)?;
    let stored = args.index.as_ref().map(|index| read_ivf(index, "bench ivf")).transpose()?;
    let element = files.element(stored.map(|info| (info.element, info.dim)))?;
    with_element!(element, T => files.measure::<T, _>(&args.probes, |dim, base| index(args, dim, base), out))
}

/// A new index of the base.
fn index<T: Element>(args: &Args, dim: usize, base: &[T]) -> Outcome<(IvfIndex<T>, Seconds)> {
    let (access, place) = (&args.sweep.access, &args.sweep.place);
    let train = args.recipe.train.as_ref().map(|path| Ok::<_, Failure>((access.vectors(path)?, path))).transpose()?;
    let train = match &train {
        Some((train, _)) if train.dim() != dim => {
            return Err(warpann::Error::WrongDimension { expected: dim, actual: train.dim() }.into());
        }
        Some((train, path)) => Some(exactly::<T>(train, path)?),
        None => None,
    };
    let built = args.recipe.build::<T>(args.kind, place, (dim, base), None, train.as_deref(), None)?;
    Ok((built.index, Seconds { train_seconds: built.train_seconds, add_seconds: Some(built.add_seconds) }))
}
