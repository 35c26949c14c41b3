//! Making an inverted-file index: the arguments that `build` and `bench ivf` share, and the description of the result.

use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Serialize;
use warpann::ivf::{Encoding, IvfIndex, IvfIndexBuilder};
use warpann::{Element, Error, Metric, Placement};

use crate::progress::{Step, spinning};
use crate::report::{Failure, Out, Outcome, bytes, parse_bytes, positive};
use crate::vectors::Access;

/// The name of the encoding whose parameters are arguments of their own.
const PQ: &str = "pq";

/// The kind of an index by the name of the command line.
pub fn kind_of(encoding: Encoding) -> String {
    format!("ivf-{}", encoding.name())
}

/// The name of the encoding of a kind of index.
fn parse_kind(text: &str) -> Result<&'static str, String> {
    let names: Vec<&'static str> = Encoding::plain().map(Encoding::name).chain([PQ]).collect();
    let known = names.iter().find(|name| text.strip_prefix("ivf-") == Some(**name));
    known.copied().ok_or_else(|| format!("expected one of ivf-{}", names.join(", ivf-")))
}

/// How an index is made.
#[derive(Debug, Clone, clap::Args)]
pub struct Recipe {
    /// Encoding of the vectors: their components (ivf-flat), their components as half-precision numbers (ivf-f16), a byte for each component
    /// (ivf-sq8), or the code of a product quantizer (ivf-pq).
    #[arg(long, value_parser = parse_kind, default_value = "ivf-flat")]
    kind: &'static str,
    /// Number of lists. Default: four times the square root of the number of vectors.
    #[arg(long, value_parser = positive)]
    lists: Option<usize>,
    /// With ivf-pq: number of parts of a vector, a divisor of its dimension. Default: parts of four components, or the next larger possible
    /// size.
    #[arg(long, value_name = "M", value_parser = positive)]
    sub_quantizers: Option<usize>,
    /// With ivf-pq: bits of the code of each part, 4 to 8. Default: 8.
    #[arg(long, value_name = "BITS")]
    bits: Option<u32>,
    /// With ivf-pq: learn a rotation under which parts are quantized better (optimized product quantization).
    #[arg(long)]
    opq: bool,
    /// l2 (squared Euclidean distance), ip (inner product) or cosine.
    #[arg(long, default_value = "l2")]
    metric: Metric,
    /// Vectors to train with. Default: the base.
    #[arg(long, value_name = "FILE")]
    pub train: Option<PathBuf>,
    /// Seed of the training: the same seed and vectors give the same index.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Iterations of k-means that find the centroids of the lists.
    #[arg(long, default_value_t = 20, value_parser = positive)]
    iterations: usize,
    /// Largest number of training vectors for each list.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = positive)]
    points_per_centroid: usize,
}

/// Default number of vectors that are added at a time.
pub const BATCH: usize = 1 << 20;

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

/// A new index, and the times of making it.
pub struct Built<T: Element> {
    pub index: IvfIndex<T>,
    pub train_seconds: f64,
    pub add_seconds: f64,
}

impl Recipe {
    /// Trains with `train`, or with `base` if `train` is `None`, and adds `base`, both of dimension `dim`. It adds `batch` vectors at a
    /// time, so that a mapped base is never completely in memory.
    pub fn build<T: Element>(
        &self,
        place: &Place,
        dim: usize,
        base: &[T],
        ids: Option<&[u64]>,
        train: Option<&[T]>,
        batch: usize,
    ) -> Outcome<Built<T>> {
        let count = base.len() / dim.max(1);
        let mut index = self.builder(place, dim, count)?.build()?;
        let start = Instant::now();
        spinning(format!("training {} lists", index.lists()), || index.train(train.unwrap_or(base)))?;
        let train_seconds = start.elapsed().as_secs_f64();
        let start = Instant::now();
        add(&mut index, base, ids, batch)?;
        Ok(Built { index, train_seconds, add_seconds: start.elapsed().as_secs_f64() })
    }

    /// The settings of an index of `count` vectors of dimension `dim`.
    pub fn builder<T: Element>(&self, place: &Place, dim: usize, count: usize) -> Outcome<IvfIndexBuilder<T>> {
        let lists = self.lists.unwrap_or_else(|| (4 * count.isqrt()).clamp(1, count.max(1)));
        let builder = IvfIndex::<T>::builder(dim, lists)
            .metric(self.metric)
            .encoding(self.encoding(dim)?)
            .device(place.device.clone())
            .seed(self.seed)
            .iterations(self.iterations)
            .points_per_centroid(self.points_per_centroid);
        Ok(match place.memory_budget {
            Some(budget) => builder.memory_budget(budget),
            None => builder,
        })
    }

    fn encoding(&self, dim: usize) -> Outcome<Encoding> {
        if self.kind == PQ {
            // If no size divides the dimension, every component is a part.
            let fitting = || (4..=dim).find(|&width| dim.is_multiple_of(width)).map_or(dim.max(1), |width| dim / width);
            let sub_quantizers = self.sub_quantizers.unwrap_or_else(fitting);
            return Ok(Encoding::Pq { sub_quantizers, bits: self.bits.unwrap_or(8), rotate: self.opq });
        }
        if self.sub_quantizers.is_some() || self.bits.is_some() || self.opq {
            return Err(Failure::Message("--sub-quantizers, --bits and --opq are for --kind ivf-pq".into()));
        }
        let named = Encoding::plain().find(|encoding| encoding.name() == self.kind);
        named.ok_or_else(|| Failure::Message(format!("no kind of index is called ivf-{}", self.kind)))
    }
}

/// Adds the vectors of `base`, with one id for each or with ids that count up, `batch` vectors at a time.
pub fn add<T: Element>(index: &mut IvfIndex<T>, base: &[T], ids: Option<&[u64]>, batch: usize) -> Outcome {
    let dim = index.dim();
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
        Some(ids) if ids.len() != count => Err(Error::WrongIds { ids: ids.len(), rows: count }),
        Some(ids) => batches.zip(ids.chunks(batch)).enumerate().try_for_each(|(number, (rows, ids))| {
            index.add_with_ids(rows, ids).map_err(|error| error.after_rows(number * batch))
        }),
    };
    Ok(added?)
}

/// Opens an index file.
pub fn open<T: Element>(
    path: &Path,
    device: impl Into<Placement>,
    memory_budget: Option<u64>,
    access: Access,
) -> Outcome<IvfIndex<T>> {
    Ok(spinning("opening the index", || IvfIndex::load_with(path, device, memory_budget, access.how))?)
}

/// A short description of an index.
pub fn describe(encoding: Encoding, lists: usize) -> String {
    match encoding {
        Encoding::Pq { sub_quantizers, bits, rotate } => {
            let rotated = if rotate { ", rotated" } else { "" };
            format!("ivf-{PQ}, {lists} lists, {sub_quantizers} sub-quantizers of {bits} bits{rotated}")
        }
        plain => format!("{}, {lists} lists", kind_of(plain)),
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
    lists: usize,
    empty_lists: usize,
    shortest_list: usize,
    mean_list: f64,
    longest_list: usize,
    imbalance: f64,
    code_bytes: usize,
    bytes: u64,
    probes: usize,
}

impl Summary {
    /// Reads the properties of an index.
    pub fn of<T: Element>(index: &IvfIndex<T>) -> Self {
        let statistics = index.statistics();
        Self {
            device: index.device(),
            kind: kind_of(index.encoding()),
            index: describe(index.encoding(), index.lists()),
            element: T::TYPE.name(),
            metric: index.metric().name(),
            dim: index.dim(),
            vectors: statistics.vectors,
            lists: statistics.lists,
            empty_lists: statistics.empty_lists,
            shortest_list: statistics.shortest,
            mean_list: statistics.mean,
            longest_list: statistics.longest,
            imbalance: statistics.imbalance,
            code_bytes: statistics.code_bytes,
            bytes: statistics.bytes,
            probes: index.probes(),
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
        )
    }
}
