//! k-NN graphs: every vector of a set is a query.
//!
//! The time of an exact graph is from vectors in host memory to the graph in host memory: adding the vectors to the index, and searching
//! for all of them. The time of a graph through an inverted file excludes the build, which has separate rows; its recall is that of a
//! sample, which is searched exactly. A row is right if, for a few vectors, no neighbour occurs twice or is the vector itself, distances
//! ascend, and each is the float64 distance. In an exact graph the neighbours must also be the nearest.

use warpann::ivf::IvfIndex;
use warpann::knn_graph::{Graph, KnnGraph, NO_NODE};
use warpann::{FlatIndex, Metric, NONE, SearchOptions};
use warpann_measure::{Times, timed};

use crate::ivf::count;
use crate::machine::Machine;
use crate::record::{Measured, Record};
use crate::vectors::{Truth, admits, clustered};
use crate::{Common, Outcome};

/// Arguments of `graph`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Number of vectors.
    #[arg(long, default_value_t = 1_000_000, value_parser = count)]
    n: usize,
    /// Components of a vector to make.
    #[arg(long, default_value_t = 128, value_parser = count)]
    dim: usize,
    /// Number of neighbours of each vector.
    #[arg(long, default_value_t = 10, value_parser = count)]
    k: usize,
    /// Make graphs through an inverted file with this number of lists. Default: exact graphs.
    #[arg(long, value_parser = count)]
    lists: Option<usize>,
    /// With --lists: lists probed.
    #[arg(long, value_delimiter = ',', default_value = "8,16,32,64", value_parser = count)]
    probes: Vec<usize>,
    /// With --lists: vectors to train on, for each list.
    #[arg(long, default_value_t = 64, value_parser = count)]
    train_per_list: usize,
    /// With --lists: vectors that are searched exactly as well.
    #[arg(long, default_value_t = 10_000, value_parser = count)]
    sample: usize,
    /// Rate of matrix products in f16 with f32 sums, in TFLOP/s: gives the floor that arithmetic sets for exact graphs.
    #[arg(long, value_parser = crate::exact::positive)]
    tflops: Option<f64>,
}

/// Vectors whose neighbours are checked.
const CHECKED: usize = 8;

/// Measures all cases. Returns true if every result was right.
pub fn run(args: &Args) -> Outcome<bool> {
    let machine = Machine::open(args.common.device, args.common.quick)?;
    let mut record = Record::open(&args.common, &machine)?;
    let (n, dim) = if args.common.quick { (2_000, 20) } else { (args.n, args.dim) };
    let base = clustered(n, dim, 1);
    let job = Job { args, machine, base, dim };
    match args.lists {
        Some(lists) => job.inverted(if args.common.quick { lists.min(16) } else { lists }, &mut record)?,
        None => record.add(job.exact()?)?,
    }
    Ok(record.all_verified())
}

/// The vectors, and the settings of the measurement.
struct Job<'a> {
    args: &'a Args,
    machine: Machine,
    base: Vec<f32>,
    dim: usize,
}

impl Job<'_> {
    fn rows(&self) -> usize {
        self.base.len() / self.dim
    }

    fn case(&self, kind: &str) -> String {
        format!("graph {kind} {}x{} f32", self.rows(), self.dim)
    }

    /// Time of `reads` times the base, and of writing the graph.
    fn floor_ms(&self, reads: f64) -> f64 {
        let results = 8.0 * self.rows() as f64 * self.args.k as f64;
        self.machine.floor_ms(reads * size_of_val(&self.base[..]) as f64 + results)
    }

    fn exact(&self) -> Outcome<Measured> {
        let Self { args, machine, base, dim } = self;
        let mut last = None;
        // The first run loads kernels and does not count.
        let times = Times::collect(1, args.common.repeat.unwrap_or(3), || {
            // Freed before the time starts.
            last = None;
            let mut index = FlatIndex::<f32>::new(*dim, Metric::L2, machine.device())?;
            let (made, milliseconds) =
                timed(|| index.add(base).and_then(|()| KnnGraph::new(args.k).run(&index, base)))?;
            last.replace(made);
            Outcome::Ok(milliseconds)
        })?;
        let operations = 2.0 * (self.rows() as f64).powi(2) * *dim as f64;
        Ok(Measured {
            case: self.case("exact"),
            k: args.k,
            times,
            memory_floor_ms: self.floor_ms(1.0),
            matrix_floor_ms: args.tflops.map(|rate| 1e3 * operations / (rate * 1e12)),
            verified: last.is_some_and(|(graph, distances)| self.right(&graph, &distances, true)),
            ..Measured::default()
        })
    }

    fn inverted(&self, lists: usize, record: &mut Record) -> Outcome {
        let Self { args, machine, base, dim } = self;
        let per_list = if args.common.quick { 40 } else { args.train_per_list };
        let builder = IvfIndex::<f32>::builder(*dim, lists).seed(1).points_per_centroid(per_list);
        let mut index = builder.device(machine.device()).build()?;
        let case = format!("{} lists={lists}", self.case("ivf-flat"));
        let mut part = |name: &str, milliseconds: f64| {
            record.add(Measured::stage(format!("{name} {case}"), milliseconds, self.floor_ms(1.0)))
        };
        part("train", timed(|| index.train(base))?.1)?;
        part("add", timed(|| index.add(base))?.1)?;
        // The first search makes the device's image of the lists.
        index.search_with(&base[..*dim], 1, &SearchOptions::new().probes(1))?;
        let mut graphs = Vec::new();
        let numbers = if args.common.quick { &[2, 16][..] } else { &args.probes };
        for &probes in numbers {
            index.set_probes(probes)?;
            let mut made = None;
            let times = Times::collect(0, args.common.repeat.unwrap_or(1), || {
                made = None;
                let (graph, milliseconds) = timed(|| KnnGraph::new(args.k).run(&index, base))?;
                made.replace(graph);
                Outcome::Ok(milliseconds)
            })?;
            graphs.extend(made.map(|(graph, distances)| {
                let right = self.right(&graph, &distances, false);
                (probes, times, graph, right)
            }));
        }
        // One index on the device at a time.
        drop(index);
        let mut exact = FlatIndex::<f32>::new(*dim, Metric::L2, machine.device())?;
        exact.add(base)?;
        for (probes, times, graph, verified) in graphs {
            record.add(Measured {
                case: format!("{case} probes={probes}"),
                k: args.k,
                times,
                // The vectors as queries, and every list once.
                memory_floor_ms: self.floor_ms(2.0),
                recall: Some(graph.accuracy(&exact, base, args.sample)?),
                verified,
                ..Measured::default()
            })?;
        }
        Ok(())
    }

    /// Whether the neighbours of a few vectors, which are spread over the base, are right.
    fn right(&self, graph: &Graph, distances: &[f32], exact: bool) -> bool {
        let Self { args, base, dim, .. } = self;
        let (rows, k, dim) = (self.rows(), args.k, *dim);
        let stored = |id: u64| base.chunks_exact(dim).nth(id as usize).map(<[f32]>::to_vec);
        (0..CHECKED.min(rows)).map(|at| at * rows / CHECKED.min(rows)).all(|row| {
            let wide = |&node: &u32| if node == NO_NODE { NONE } else { u64::from(node) };
            let ids: Vec<u64> = graph.row(row).iter().map(wide).collect();
            let found = &distances[row * k..(row + 1) * k];
            if ids.contains(&(row as u64)) || !admits(&base[row * dim..(row + 1) * dim], stored, &ids, found) {
                return false;
            }
            // With the row itself before them they are the k + 1 nearest.
            let (ids, found) = ([&[row as u64][..], &ids[..]].concat(), [&[0.0][..], found].concat());
            !exact || Truth::of(base, base, dim, row).confirms(&ids, &found)
        })
    }
}
