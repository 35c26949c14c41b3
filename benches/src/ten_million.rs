//! More vectors than the memory budget holds: trained, added and searched in batches.
//!
//! Vectors are made batch by batch by [`Clusters`], never all at once. An exact search of each batch for the first queries gives, after
//! merging, the ground truth. The memory budget of the index is a fraction of the size of the uncompressed vectors, by default a quarter. A
//! row is right if, for the queries with ground truth, no vector occurs twice, distances ascend, and each is the float64 distance from the
//! stored form of the vector.

use rayon::prelude::*;
use warpann::ivf::IvfIndex;
use warpann::{FlatIndex, Metric, NONE, Neighbors, SearchOptions, device::info};
use warpann_measure::{Times, timed};

use crate::ivf::{Coding, count};
use crate::machine::Machine;
use crate::record::{Measured, Record, print};
use crate::vectors::{Clusters, admits};
use crate::{Common, Outcome};

/// Arguments of `ten-million`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
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
    /// What is kept of a vector: flat, f16, sq8, or pq and the bytes of its code.
    #[arg(long, value_delimiter = ',', default_value = "pq32")]
    encodings: Vec<Coding>,
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

/// Measures; true if every result was right.
pub fn run(args: &Args) -> Outcome<bool> {
    let machine = Machine::open(args.common.device, args.common.quick)?;
    let mut record = Record::open(&args.common, &machine)?;
    let shape = Shape::of(args);
    let free = free_memory(&machine)?;
    let clusters = Clusters::new(shape.dim, 1);
    let mut queries = vec![0.0; shape.queries * shape.dim];
    clusters.fill(shape.n, &mut queries);
    let mut truth = None;
    let quick = [Coding::Pq(8)];
    for &coding in if args.common.quick { &quick[..] } else { &args.encodings } {
        let index = build(args, &shape, &machine, &clusters, coding, &mut record)?;
        let truth = match &truth {
            Some(truth) => truth,
            None => truth.insert(exact(&shape, &machine, &clusters, &queries)?),
        };
        for &k in &args.k {
            for &probes in &args.probes {
                let repeat = args.common.repeat.unwrap_or(3);
                record.add(search(&shape, &machine, &index, (coding, k, probes), &queries, truth, repeat)?)?;
            }
        }
        print(format_args!(
            "index: {:.1} MB of codes, ids and centroids; vectors: {:.1} MB; budget {:.1} MB; longest list {}\n",
            index.statistics().bytes as f64 / 1e6,
            shape.bytes() as f64 / 1e6,
            shape.budget as f64 / 1e6,
            index.statistics().longest
        ))?;
        if let (Some(before), Some(now)) = (free, free_memory(&machine)?) {
            print(format_args!("taken of the device's memory: {:.1} MB\n", before.saturating_sub(now) as f64 / 1e6))?;
        }
    }
    Ok(record.all_verified())
}

/// Free bytes of GPU memory; `None` on the CPU, or if the driver does not report them.
pub fn free_memory(machine: &Machine) -> Outcome<Option<u64>> {
    let Some(index) = machine.gpu else { return Ok(None) };
    Ok(info::devices()?.get(index).and_then(|device| device.memory_free))
}

/// The sizes of a measurement.
struct Shape {
    n: usize,
    dim: usize,
    queries: usize,
    batch: usize,
    lists: usize,
    training: usize,
    budget: u64,
}

impl Shape {
    fn of(args: &Args) -> Self {
        let &Args { n, dim, queries, batch, lists, train_per_list, budget, .. } = args;
        let quick = args.common.quick;
        let (n, dim, queries, batch) = if quick { (5_000, 24, 200, 1_500) } else { (n, dim, queries, batch) };
        let (lists, per_list) = if quick { (32, 40) } else { (lists, train_per_list) };
        let budget = budget.unwrap_or((n * dim * size_of::<f32>() / 4) as u64);
        Self { n, dim, queries, batch, lists, training: (lists * per_list).min(n), budget }
    }

    fn bytes(&self) -> usize {
        self.n * self.dim * size_of::<f32>()
    }

    fn case(&self, coding: Coding) -> String {
        let Self { n, dim, lists, budget, .. } = self;
        format!("{coding} {n}x{dim} f32 lists={lists} budget={}MB", budget.div_ceil(1_000_000))
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
fn build(
    args: &Args,
    shape: &Shape,
    machine: &Machine,
    clusters: &Clusters,
    coding: Coding,
    record: &mut Record,
) -> Outcome<IvfIndex<f32>> {
    let &Shape { n, dim, lists, training, budget, .. } = shape;
    let builder = IvfIndex::<f32>::builder(dim, lists).encoding(coding.encoding()).seed(1).memory_budget(budget);
    let mut index = builder.points_per_centroid(args.train_per_list).device(machine.device()).build()?;
    let mut sample = vec![0.0; training * dim];
    clusters.fill(0, &mut sample);
    let mut part = |name: &str, milliseconds: f64, vectors: usize| {
        let floor_ms = machine.floor_ms((vectors * dim * size_of::<f32>()) as f64);
        record.add(Measured::stage(format!("{name} {}", shape.case(coding)), milliseconds, floor_ms))
    };
    part("train", timed(|| index.train(&sample))?.1, training)?;
    drop(sample);
    let mut adding = 0.0;
    shape.batches(clusters, |_, rows| {
        adding += timed(|| index.add(rows))?.1;
        Ok(())
    })?;
    part("add", adding, n)?;
    Ok(index)
}

/// The exact neighbours of the first queries: those of each batch, merged.
fn exact(shape: &Shape, machine: &Machine, clusters: &Clusters, queries: &[f32]) -> Outcome<Vec<Vec<(f32, u64)>>> {
    let probes = &queries[..shape.queries.min(WITH_TRUTH) * shape.dim];
    let mut best: Vec<Vec<(f32, u64)>> = vec![Vec::new(); probes.len() / shape.dim];
    shape.batches(clusters, |first, rows| {
        let mut index = FlatIndex::<f32>::new(shape.dim, Metric::L2, machine.device())?;
        index.add(rows)?;
        let found = index.search(probes, DEPTH)?;
        best.par_iter_mut().enumerate().for_each(|(query, best)| {
            best.extend(found.found(query).map(|(id, distance)| (distance, id + first as u64)));
            best.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            best.truncate(DEPTH);
        });
        Ok(())
    })?;
    Ok(best)
}

fn search(
    shape: &Shape,
    machine: &Machine,
    index: &IvfIndex<f32>,
    (coding, k, probes): (Coding, usize, usize),
    queries: &[f32],
    truth: &[Vec<(f32, u64)>],
    repeat: usize,
) -> Outcome<Measured> {
    let &Shape { n, dim, queries: count, lists, .. } = shape;
    let options = SearchOptions::new().probes(probes);
    let mut found = Neighbors { k, ids: vec![NONE; count * k], distances: vec![0.0; count * k] };
    let search = || index.search_into(queries, k, &options, &mut found.ids, &mut found.distances);
    let times = Times::measure(2, repeat, search)?;
    let depth = k.min(DEPTH);
    let hits = |(query, known): (usize, &Vec<(f32, u64)>)| {
        let ids = found.ids[query * k..][..depth].iter();
        ids.filter(|&&id| known.iter().take(depth).any(|&(_, known)| known == id)).count()
    };
    let hits: usize = truth.par_iter().enumerate().map(hits).sum();
    let stored = |id: u64| index.reconstruct(id).ok();
    let right = (0..truth.len()).into_par_iter().all(|query| {
        let slots = query * k..(query + 1) * k;
        admits(&queries[query * dim..][..dim], stored, &found.ids[slots.clone()], &found.distances[slots])
    });
    let share = (count as f64 * probes as f64 / lists as f64).min(1.0);
    let bytes = share * n as f64 * index.statistics().code_bytes as f64 + size_of_val(queries) as f64;
    Ok(Measured {
        case: format!("{} nq={count} probes={probes}", shape.case(coding)),
        k,
        times,
        memory_floor_ms: machine.floor_ms(bytes + 12.0 * (count * k) as f64),
        recall: Some(hits as f64 / (truth.len() * depth) as f64),
        verified: right,
        ..Measured::default()
    })
}
