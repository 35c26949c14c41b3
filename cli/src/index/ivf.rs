//! Making an inverted file: the arguments that `build` and `bench ivf` share, and what reports show of it.

use std::path::{Path, PathBuf};
use std::time::Instant;

use rayon::prelude::*;
use serde::Serialize;
use warpann::io::Open;
use warpann::ivf::{Encoding, Ivf, IvfIndex, IvfIndexBuilder};
use warpann::{Element, Error, Index};

use super::basis::{Basis, Built, Place, first_given};
use super::stored::{Stored, first_unequal};
use crate::progress::{Step, staged};
use crate::report::{Failure, Out, Outcome, bytes, positive};

/// The names of the encodings whose parameters are arguments of their own.
const PQ: &str = "pq";
const BITS: &str = "bits";
/// Default number of bits of a component with ivf-bits.
const COMPONENT_BITS: u32 = 4;

/// Default number of vectors that are added at a time.
const BATCH: usize = 1 << 20;

/// The kind of an inverted file by the name of the command line.
pub fn kind_of(encoding: Encoding) -> String {
    format!("ivf-{}", encoding.name())
}

/// The encoding of a kind of inverted file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind(&'static str);

impl Kind {
    /// The names of all kinds, with commas between them.
    pub fn names() -> String {
        let kinds: Vec<String> = Self::all().map(|Kind(name)| format!("ivf-{name}")).collect();
        kinds.join(", ")
    }

    fn all() -> impl Iterator<Item = Kind> {
        Encoding::plain().map(Encoding::name).chain([PQ, BITS]).map(Kind)
    }

    /// The kind of this name; none if there is no such inverted file.
    pub fn named(text: &str) -> Option<Self> {
        Self::all().find(|Kind(name)| text.strip_prefix("ivf-") == Some(*name))
    }

    /// The name on the command line.
    pub fn name(self) -> String {
        format!("ivf-{}", self.0)
    }
}

/// The kind of inverted file of a name on the command line.
pub fn parse_kind(text: &str) -> Result<Kind, String> {
    Kind::named(text).ok_or_else(|| format!("expected one of {}", Kind::names()))
}

/// How an inverted file is made. The basis is for every kind of index.
#[derive(Debug, Clone, clap::Args)]
pub struct Recipe {
    /// Number of lists. Default: four times the square root of the number of vectors.
    #[arg(long, value_parser = positive)]
    lists: Option<usize>,
    /// With ivf-pq: number of parts of a vector, a divisor of its dimension. Default: parts of four components, or the
    /// next larger possible size.
    #[arg(long, value_name = "M", value_parser = positive)]
    sub_quantizers: Option<usize>,
    /// With ivf-pq: bits of the code of each part, 4 to 8, by default 8. With ivf-bits: bits of each component, 1 to 8,
    /// by default 4.
    #[arg(long, value_name = "BITS")]
    bits: Option<u32>,
    /// With ivf-pq: learn a rotation under which parts are quantized better (optimized product quantization).
    #[arg(long)]
    opq: bool,
    #[command(flatten)]
    pub basis: Basis,
    /// Vectors to train with. Default: the base.
    #[arg(long, value_name = "FILE")]
    pub train: Option<PathBuf>,
    /// Iterations of k-means that find the centroids of the lists. Default: 20.
    #[arg(long, value_parser = positive)]
    iterations: Option<usize>,
    /// Largest number of training vectors for each list. Default: 256.
    #[arg(long, value_name = "N", value_parser = positive)]
    points_per_centroid: Option<usize>,
}

impl Recipe {
    /// Trains with `train`, or with `base` if `train` is `None`, and adds `base`, both of dimension `dim`. It adds
    /// `batch` vectors at a time, so that a mapped base is never completely in memory.
    pub fn build<T: Element>(
        &self,
        kind: Kind,
        place: &Place,
        (dim, base): (usize, &[T]),
        ids: Option<&[u64]>,
        train: Option<&[T]>,
        batch: Option<usize>,
    ) -> Outcome<Built<Ivf<T>>> {
        let count = base.len() / dim.max(1);
        let mut index = self.builder(kind, place, dim, count)?.build()?;
        let start = Instant::now();
        staged(format!("training {} lists", index.lists()), |watch| index.train_watched(train.unwrap_or(base), watch))?;
        let train_seconds = Some(start.elapsed().as_secs_f64());
        let start = Instant::now();
        Stored::add_all(&mut index, base, ids, batch)?;
        Ok(Built { index, train_seconds, add_seconds: start.elapsed().as_secs_f64() })
    }

    /// The settings of an index of `count` vectors of dimension `dim`.
    pub fn builder<T: Element>(
        &self,
        kind: Kind,
        place: &Place,
        dim: usize,
        count: usize,
    ) -> Outcome<IvfIndexBuilder<T>> {
        let lists = self.lists.unwrap_or_else(|| (4 * count.isqrt()).clamp(1, count.max(1)));
        let builder = IvfIndex::<T>::builder(dim, lists)
            .metric(self.basis.metric)
            .encoding(self.encoding(kind, dim)?)
            .device(place.device.clone())
            .seed(self.basis.seed)
            .iterations(self.iterations.unwrap_or(20))
            .points_per_centroid(self.points_per_centroid.unwrap_or(256));
        Ok(match place.memory_budget {
            Some(budget) => builder.memory_budget(budget),
            None => builder,
        })
    }

    fn encoding(&self, Kind(name): Kind, dim: usize) -> Outcome<Encoding> {
        if name == PQ {
            // If no size divides the dimension, every component is a part.
            let fitting = || (4..=dim).find(|&width| dim.is_multiple_of(width)).map_or(dim.max(1), |width| dim / width);
            let sub_quantizers = self.sub_quantizers.unwrap_or_else(fitting);
            return Ok(Encoding::Pq { sub_quantizers, bits: self.bits.unwrap_or(8), rotate: self.opq });
        }
        if self.sub_quantizers.is_some() || self.opq {
            return Err(Failure::Message("--sub-quantizers and --opq are for --kind ivf-pq".into()));
        }
        if name == BITS {
            return Ok(Encoding::Bits { bits: self.bits.unwrap_or(COMPONENT_BITS) });
        }
        if self.bits.is_some() {
            return Err(Failure::Message("--bits is for --kind ivf-pq and --kind ivf-bits".into()));
        }
        let named = Encoding::plain().find(|encoding| encoding.name() == name);
        named.ok_or_else(|| Failure::Message(format!("no kind of index is called ivf-{name}")))
    }

    /// The first of the given options that only inverted files have.
    pub fn given(&self) -> Option<&'static str> {
        first_given(&[
            (self.lists.is_some(), "--lists"),
            (self.sub_quantizers.is_some(), "--sub-quantizers"),
            (self.bits.is_some(), "--bits"),
            (self.opq, "--opq"),
            (self.train.is_some(), "--train"),
            (self.iterations.is_some(), "--iterations"),
            (self.points_per_centroid.is_some(), "--points-per-centroid"),
        ])
    }
}

impl<T: Element> Stored for Ivf<T> {
    type Details = Lists;

    fn kind(index: &Index<Self>) -> String {
        kind_of(index.encoding())
    }

    fn add_all(index: &mut Index<Self>, base: &[T], ids: Option<&[u64]>, batch: Option<usize>) -> Outcome {
        let (dim, batch) = (index.dim(), batch.unwrap_or(BATCH));
        let count = base.len() / dim;
        let step = Step::of("adding", count, "vectors");
        // The call of a batch starts when the calls of the batches before it have ended.
        let mut begun = 0;
        let batches = base.chunks(batch.saturating_mul(dim)).inspect(|rows| {
            step.at(begun);
            begun += rows.len() / dim.max(1);
        });
        let added = match ids {
            None => index.add_batches(batches),
            Some(ids) if ids.len() != count => {
                Err(Error::WrongLength { what: "ids", expected: count, actual: ids.len() })
            }
            Some(ids) => batches.zip(ids.chunks(batch)).enumerate().try_for_each(|(number, (rows, ids))| {
                index.add_with_ids(rows, ids).map_err(|error| error.after_rows(number * batch))
            }),
        };
        Ok(added?)
    }

    /// Compares the vectors; or what their codes stand for, with an index of the same training to which batches of the
    /// base are added.
    fn first_other(index: &Index<Self>, base: &[T], _: &Path, _: Open) -> warpann::Result<Option<usize>> {
        let dim = index.dim();
        if index.encoding() == Encoding::Flat {
            return first_unequal(base, dim, |id| index.reconstruct(id));
        }
        let mut coded = index.snapshot();
        for (first, rows) in (0u64..).step_by(BATCH).zip(base.chunks(BATCH * dim)) {
            coded.clear();
            let ids: Vec<u64> = (first..).take(rows.len() / dim).collect();
            coded.add_with_ids(rows, &ids)?;
            let unequal = |&id: &u64| match (coded.reconstruct(id), index.reconstruct(id)) {
                (Ok(coded), Ok(held)) => (coded != held).then_some(Ok(id as usize)),
                (Err(error), _) | (_, Err(error)) => Some(Err(error)),
            };
            if let Some(found) = ids.par_iter().filter_map(unequal).find_first(|_| true) {
                return found.map(Some);
            }
        }
        Ok(None)
    }

    fn description(index: &Index<Self>) -> String {
        describe(index.encoding(), index.lists())
    }

    fn details(index: &Index<Self>) -> Lists {
        Lists::of(index)
    }
}

/// A short description of an inverted file.
pub fn describe(encoding: Encoding, lists: usize) -> String {
    match encoding {
        Encoding::Pq { sub_quantizers, bits, rotate } => {
            let rotated = if rotate { ", rotated" } else { "" };
            format!("ivf-{PQ}, {lists} lists, {sub_quantizers} sub-quantizers of {bits} bits{rotated}")
        }
        Encoding::Bits { bits } => format!("ivf-{BITS}, {lists} lists, {bits} bits a component"),
        plain => format!("{}, {lists} lists", kind_of(plain)),
    }
}

/// The part of a report for inverted files only.
#[derive(Debug, Clone, Serialize)]
pub struct Lists {
    lists: usize,
    empty_lists: usize,
    shortest_list: usize,
    mean_list: f64,
    longest_list: usize,
    imbalance: f64,
    code_bytes: usize,
    clamped_vectors: u64,
    clamped_components: u64,
    bytes: u64,
    pub probes: usize,
}

impl Lists {
    fn of<T: Element>(index: &IvfIndex<T>) -> Self {
        let statistics = index.statistics();
        Self {
            lists: statistics.lists,
            empty_lists: statistics.empty_lists,
            shortest_list: statistics.shortest,
            mean_list: statistics.mean,
            longest_list: statistics.longest,
            imbalance: statistics.imbalance,
            code_bytes: statistics.code_bytes,
            clamped_vectors: statistics.clamped_vectors,
            clamped_components: statistics.clamped_components,
            bytes: statistics.bytes,
            probes: index.probes(),
        }
    }

    pub fn print(&self, out: &Out) -> Outcome {
        let Self { empty_lists, shortest_list, mean_list, longest_list, imbalance, .. } = self;
        out.field(
            "lists",
            format_args!(
                "{shortest_list} to {longest_list} vectors, {mean_list:.1} on average, {empty_lists} empty, imbalance \
                 {imbalance:.3}"
            ),
        )?;
        out.field(
            "memory",
            format_args!("{} bytes per vector and 8 for its id, {}", self.code_bytes, bytes(self.bytes)),
        )?;
        print_clamped(out, self.clamped_vectors, self.clamped_components)
    }
}

/// Prints how many vectors were added beyond the training, if there are any.
pub fn print_clamped(out: &Out, vectors: u64, components: u64) -> Outcome {
    if vectors == 0 {
        return Ok(());
    }
    out.field("clamped", format_args!("{vectors} added vectors beyond the training, {components} components"))
}
