//! More vectors than the memory budget holds: trained, added and searched in batches.
//!
//! Vectors are made batch by batch by [`Clusters`], never all at once. An exact search of each batch for the first
//! queries gives, after merging, the ground truth. The memory budget of the index is a fraction of the size of the
//! uncompressed vectors, by default a quarter. A row is right if, for the queries with ground truth, no vector occurs
//! twice, distances ascend, and each is the float64 distance from the stored form of the vector.

use rayon::prelude::*;
use warpann::io::IdMatrix;
use warpann::ivf::{Encoding, IvfIndex};
use warpann::{NONE, SearchOptions, recall};
use warpann_measure::{Searches, Work, timed};

use crate::Outcome;
use crate::ivf::{encoding, name, pq, probed_bytes};
use crate::record::{Measured, Record, print};
use crate::set::{count, exact};
use crate::vectors::{Clusters, all_admitted};

/// Arguments of `ten-million`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Number of vectors.
    #[arg(long, default_value_t = 10_000_000, value_parser = count)]
    n: usize,
    /// Components of a vector.
    #[arg(long, default_value_t = 128, value_parser = count)]
    dim: usize,
    /// Number of queries.
    #[arg(long, default_value_t = 10_000, value_parser = count)]
    queries: usize,
    /// Vectors made and added at a time.
    #[arg(long, default_value_t = 500_000, value_parser = count)]
    batch: usize,
    /// Encodings of the vectors: flat, f16, sq8, pq and the bytes of its code, or bits and those of a component.
    #[arg(long, value_delimiter = ',', default_value = "pq32", value_parser = encoding)]
    encodings: Vec<Encoding>,
    /// Number of lists.
    #[arg(long, default_value_t = 16_384, value_parser = count)]
    lists: usize,
    /// Vectors to train on, for each list.
    #[arg(long, default_value_t = 64, value_parser = count)]
    train_per_list: usize,
    /// Numbers of probed lists to measure.
    #[arg(long, value_delimiter = ',', default_value = "1,4,16,64,256", value_parser = count)]
    probes: Vec<usize>,
    /// Numbers of neighbours to measure.
    #[arg(long, value_delimiter = ',', default_value = "10,100", value_parser = count)]
    k: Vec<usize>,
    /// Bytes that the index may use on its device; a quarter of the vectors' own unless given.
    #[arg(long)]
    budget: Option<u64>,
}

/// Queries with ground truth.
const WITH_TRUTH: usize = 1_000;
/// Number of true neighbours of each query.
const DEPTH: usize = 100;

/// Measures all cases of the grid.
pub fn run(args: &Args, record: &mut Record) -> Outcome {
    let (n, dim, queries, batch) = (5_000, 24, 200, 1_500);
    let (lists, train_per_list, encodings) = (32, 40, vec![pq(8)]);
    let quick = Args { n, dim, queries, batch, lists, train_per_list, encodings, ..args.clone() };
    let args = record.quick_or(&quick, args);
    let before = record.machine.free_memory();
    let clusters = Clusters::new(args.dim, 1);
    let mut queries = vec![0.0; args.queries * args.dim];
    clusters.fill(args.n, &mut queries);
    let mut truth = None;
    for &encoding in &args.encodings {
        let case = args.case(encoding);
        let index = build(args, &clusters, encoding, record)?;
        let truth = match &truth {
            Some(truth) => truth,
            None => truth.insert(nearest(args, record, &clusters, &queries)?),
        };
        for &k in &args.k {
            for &probes in &args.probes {
                let mut searches = Searches::new(&index, &queries, k, SearchOptions::new().probes(probes))?;
                let times = searches.times(record.repeat(3))?;
                let (found, count) = (searches.found, args.queries);
                let right = all_admitted(&queries, &found, (truth.rows, 1), |id| index.reconstruct(id).ok());
                let bytes =
                    probed_bytes(&index, count as f64, probes) + Work::of_queries(count, size_of_val(&queries[..]), k);
                let case = format!("{case} nq={count} probes={probes}");
                let recall = recall(&found.ids[..truth.rows * k], k, &truth.ids, truth.k, k.min(truth.k));
                record.add(Measured::new(case, k, times, bytes, right).recall(recall))?;
            }
        }
        print(format_args!(
            "index: {:.1} MB of codes, ids and centroids; vectors: {:.1} MB; budget {:.1} MB; longest list {}\n",
            index.statistics().bytes as f64 / 1e6,
            args.bytes() as f64 / 1e6,
            args.budget() as f64 / 1e6,
            index.statistics().longest
        ))?;
        if let (Some(before), Some(now)) = (before, record.machine.free_memory()) {
            print(format_args!("taken of the device's memory: {:.1} MB\n", before.saturating_sub(now) as f64 / 1e6))?;
        }
    }
    Ok(())
}

impl Args {
    fn bytes(&self) -> usize {
        self.n * self.dim * size_of::<f32>()
    }

    fn budget(&self) -> u64 {
        self.budget.unwrap_or(self.bytes() as u64 / 4)
    }

    fn case(&self, encoding: Encoding) -> String {
        let Self { n, dim, lists, .. } = self;
        format!("{} {n}x{dim} f32 lists={lists} budget={}MB", name(encoding), self.budget().div_ceil(1_000_000))
    }

    /// Calls `work` with each batch of the base and the number of its first row.
    fn batches(&self, clusters: &Clusters, mut work: impl FnMut(usize, &[f32]) -> Outcome) -> Outcome {
        let mut rows = vec![0.0; self.batch * self.dim];
        for first in (0..self.n).step_by(self.batch) {
            let rows = &mut rows[..self.batch.min(self.n - first) * self.dim];
            clusters.fill(first, rows);
            work(first, rows)?;
        }
        Ok(())
    }
}

/// Trains on the first rows and adds batch by batch; making the vectors is not in the times.
fn build(args: &Args, clusters: &Clusters, encoding: Encoding, record: &mut Record) -> Outcome<IvfIndex<f32>> {
    let &Args { n, dim, lists, train_per_list, .. } = args;
    let training = (lists * train_per_list).min(n);
    let builder = IvfIndex::<f32>::builder(dim, lists).encoding(encoding).seed(1).memory_budget(args.budget());
    let mut index = builder.points_per_centroid(train_per_list).device(record.device()).build()?;
    let mut sample = vec![0.0; training * dim];
    clusters.fill(0, &mut sample);
    let mut part = |name: &str, milliseconds: f64, vectors: usize| {
        let bytes = (vectors * dim * size_of::<f32>()) as f64;
        record.add(Measured::stage(format!("{name} {}", args.case(encoding)), milliseconds, bytes))
    };
    part("train", timed(|| index.train(&sample))?.1, training)?;
    drop(sample);
    let mut adding = 0.0;
    args.batches(clusters, |_, rows| {
        adding += timed(|| index.add(rows))?.1;
        Ok(())
    })?;
    part("add", adding, n)?;
    Ok(index)
}

/// The exact neighbours of the first queries: those of each batch, merged.
fn nearest(args: &Args, record: &Record, clusters: &Clusters, queries: &[f32]) -> Outcome<IdMatrix> {
    let rows = args.queries.min(WITH_TRUTH);
    let probes = &queries[..rows * args.dim];
    let mut best: Vec<Vec<(f32, u64)>> = vec![Vec::new(); rows];
    args.batches(clusters, |first, rows| {
        let found = exact(rows, args.dim, record.device())?.search(probes, DEPTH)?;
        best.par_iter_mut().enumerate().for_each(|(query, best)| {
            best.extend(found.found(query).map(|(id, distance)| (distance, id + first as u64)));
            best.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            best.truncate(DEPTH);
        });
        Ok(())
    })?;
    let padded = |best: Vec<(f32, u64)>| best.into_iter().map(|(_, id)| id).chain([NONE; DEPTH]).take(DEPTH);
    Ok(IdMatrix { rows, k: DEPTH, ids: best.into_iter().flat_map(padded).collect() })
}
