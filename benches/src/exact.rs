//! The grid of exact search.

use std::path::PathBuf;

use warpann::io::IdMatrix;
use warpann::{Element, ElementType, FlatIndex, Metric, NONE, Neighbors, SearchOptions};
use warpann_measure::Times;

use crate::machine::Machine;
use crate::record::{Measured, Record};
use crate::set::{Set, slices};
use crate::vectors::{Truth, clustered, recall};
use crate::{Common, Failure, Outcome};

/// Arguments of `exact`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Base vectors: fvecs, bvecs, fbin, u8bin, i8bin or npy. Default: clustered vectors, which are generated.
    #[arg(long, value_name = "FILE", requires = "query", conflicts_with_all = ["n", "dim"])]
    base: Option<PathBuf>,
    /// Queries, of the same element type.
    #[arg(long, value_name = "FILE", requires = "base")]
    query: Option<PathBuf>,
    /// True neighbours of the first queries: ivecs, ibin or npy.
    #[arg(long, value_name = "FILE", requires = "base")]
    gt: Option<PathBuf>,
    /// Number of base vectors to make.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..))]
    n: u32,
    /// Dimension of the vectors to make.
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    dim: u32,
    /// Queries of the large batches: made, or the first of the file.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    queries: u32,
    /// Rate of matrix products in f16 with f32 sums, in TFLOP/s, from which the arithmetic floor is computed.
    #[arg(long, value_parser = positive)]
    tflops: Option<f64>,
}

/// k of the large batches.
const LARGE: &[usize] = &[1, 10, 100, 1000];
/// Sizes of the small batches, k = 10.
const SMALL: &[usize] = &[1, 16, 256];
/// Numbers of the queries whose results are compared with float64, if the batch has them.
const CHECKED: &[usize] = &[0, 1, 15, 100, 255, 1_000, 5_000, 9_999];

/// A rate above 0.
pub fn positive(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|rate: &f64| rate.is_finite() && *rate > 0.0)
        .ok_or_else(|| "expected a rate above 0".into())
}

/// Measures the grid. Returns true if every result was right.
pub fn run(args: &Args) -> Outcome<bool> {
    let queries = if args.common.quick { 300 } else { args.queries as usize };
    let (Some(base), Some(query)) = (&args.base, &args.query) else {
        let (n, dim) = if args.common.quick { (2_000, 20) } else { (args.n as usize, args.dim as usize) };
        let mut values = clustered(n + queries, dim, 1);
        let probes = values.split_off(n * dim);
        return Job { args, base: &values, queries: &probes, dim, truth: None }.run();
    };
    let Set { base, query, truth } = Set::read(base, query, args.gt.as_deref())?;
    let dim = base.dim();
    macro_rules! run {
        ($T:ty) => {{
            let (base, all) = slices::<$T>(&base, &query)?;
            let queries = &all[..queries.min(query.rows()) * dim];
            Job { args, base, queries, dim, truth: truth.as_ref() }.run()
        }};
    }
    match base.element() {
        ElementType::F32 => run!(f32),
        ElementType::U8 => run!(u8),
        ElementType::I8 => run!(i8),
        other => Err(Failure::Unmeasured { element: other.name() }),
    }
}

/// Vectors that agree with each other.
struct Job<'a, T> {
    args: &'a Args,
    base: &'a [T],
    queries: &'a [T],
    dim: usize,
    truth: Option<&'a IdMatrix>,
}

impl<T: Element> Job<'_, T> {
    fn run(&self) -> Outcome<bool> {
        let Self { args, base, queries, dim, .. } = *self;
        let common = &args.common;
        let count = queries.len() / dim;
        let checked = CHECKED.iter().copied().filter(|&query| query < count);
        let truths: Vec<Truth> = checked.map(|query| Truth::of(base, queries, dim, query)).collect();
        let machine = Machine::open(common.device, common.quick)?;
        let mut index = FlatIndex::<T>::new(dim, Metric::L2, machine.device())?;
        index.add(base)?;
        let mut record = Record::open(common, &machine)?;
        let large = LARGE.iter().map(|&k| (count, k, 5));
        let small = SMALL.iter().filter(|&&batch| batch < count).map(|&batch| (batch, 10, 20));
        for (batch, k, repeat) in large.chain(small) {
            record.add(self.measure(&machine, &index, &truths, (batch, k), common.repeat.unwrap_or(repeat))?)?;
        }
        Ok(record.all_verified())
    }

    fn measure(
        &self,
        machine: &Machine,
        index: &FlatIndex<T>,
        truths: &[Truth],
        (batch, k): (usize, usize),
        repeat: usize,
    ) -> Outcome<Measured> {
        let Self { args, base, queries, dim, truth } = *self;
        let n = base.len() / dim;
        let probes = &queries[..batch * dim];
        let mut found = Neighbors { k, ids: vec![NONE; batch * k], distances: vec![0.0; batch * k] };
        let times = Times::measure(2, repeat, || {
            index.search_into(probes, k, &SearchOptions::new(), &mut found.ids, &mut found.distances)
        })?;

        let recall = truth.and_then(|truth| recall(base, queries, dim, &found, truth));
        let confirmed = truths.iter().filter(|truth| truth.query() < batch).all(|truth| {
            let slots = truth.query() * k..(truth.query() + 1) * k;
            truth.confirms(&found.ids[slots.clone()], &found.distances[slots])
        });
        let operations = 2.0 * n as f64 * batch as f64 * dim as f64;
        let bytes = size_of::<T>() as f64 * (n + batch) as f64 * dim as f64 + 12.0 * batch as f64 * k as f64;
        Ok(Measured {
            case: format!("exact {n}x{dim} {} nq={batch}", T::TYPE.name()),
            k,
            times,
            memory_floor_ms: machine.floor_ms(bytes),
            matrix_floor_ms: args.tflops.map(|rate| 1e3 * operations / (rate * 1e12)),
            recall,
            verified: confirmed && recall.is_none_or(|recall| recall == 1.0),
            ..Measured::default()
        })
    }
}
