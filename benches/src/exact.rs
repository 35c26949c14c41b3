//! The grid of exact search.

use std::path::PathBuf;

use warpann::{Element, SearchOptions};
use warpann_measure::{Searches, Work};

use crate::Outcome;
use crate::record::{Measured, Record};
use crate::set::{Measurement, Set, Vectors, count, exact, made, positive};
use crate::vectors::{Truth, all_right};

/// Arguments of `exact`.
#[derive(Debug, clap::Args)]
pub struct Args {
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
    #[arg(long, default_value_t = 1_000_000, value_parser = count)]
    n: usize,
    /// Dimension of the vectors to make.
    #[arg(long, default_value_t = 128, value_parser = count)]
    dim: usize,
    /// Queries of the large batches: made, or the first of the file.
    #[arg(long, default_value_t = 10_000, value_parser = count)]
    queries: usize,
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

/// Measures all cases of the grid.
pub fn run(args: &Args, record: &mut Record) -> Outcome {
    record.tflops = args.tflops;
    let queries = record.quick_or(300, args.queries);
    let (Some(base), Some(query)) = (&args.base, &args.query) else {
        let (n, dim) = record.quick_or((2_000, 20), (args.n, args.dim));
        let (base, queries) = made(n, queries, dim);
        return Grid.run(&Vectors { base: &base, queries: &queries, dim, truth: None }, record);
    };
    Set::read(base, query, args.gt.as_deref())?.run(queries, &Grid, record)
}

struct Grid;

impl Measurement for Grid {
    fn run<T: Element>(&self, vectors: &Vectors<'_, T>, record: &mut Record) -> Outcome {
        let &Vectors { base, queries, dim, .. } = vectors;
        let truths = vectors.truths(CHECKED);
        let index = exact(base, dim, record.device())?;
        let large = LARGE.iter().map(|&k| (vectors.count(), k, 5));
        let small = SMALL.iter().filter(|&&batch| batch < vectors.count()).map(|&batch| (batch, 10, 20));
        for (batch, k, repeat) in large.chain(small) {
            let mut searches = Searches::new(&index, &queries[..batch * dim], k, SearchOptions::new())?;
            let times = searches.times(record.repeat(repeat))?;
            let recall = vectors.recall(&searches.found);
            let confirmed = all_right(&truths, &searches.found, Truth::confirms);
            let verified = confirmed && recall.is_none_or(|recall| recall == 1.0);
            let case = format!("exact {} nq={batch}", vectors.shape());
            let work = Work::exact::<T>(vectors.rows(), batch, dim, k);
            record.add(Measured::new(case, k, times, work, verified).recall(recall))?;
        }
        Ok(())
    }
}
