//! k-NN graphs: every vector of a set is a query.
//!
//! The time of an exact graph is from vectors in host memory to the graph in host memory: adding the vectors to the
//! index, and searching for all of them. The time of a graph through an inverted file excludes the build, which has
//! separate rows; its recall is that of a sample, which is searched exactly. A row is right if, for a few vectors, no
//! neighbour occurs twice or is the vector itself, distances ascend, and each is the float64 distance. In an exact
//! graph the neighbours must also be the nearest.

use warpann::ivf::IvfIndex;
use warpann::knn_graph::{Graph, KnnGraph, NO_NODE};
use warpann::{FlatIndex, Metric, NONE, SearchOptions};
use warpann_measure::{Times, Work, timed};

use crate::Outcome;
use crate::record::{Measured, Record};
use crate::set::{count, exact, positive};
use crate::vectors::{Truth, admits, clustered};

/// Arguments of `graph`.
#[derive(Debug, clap::Args)]
pub struct Args {
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
    #[arg(long, value_parser = positive)]
    tflops: Option<f64>,
}

/// Vectors whose neighbours are checked.
const CHECKED: usize = 8;

/// Measures all cases of the grid.
pub fn run(args: &Args, record: &mut Record) -> Outcome {
    record.tflops = args.tflops;
    let (n, dim) = record.quick_or((2_000, 20), (args.n, args.dim));
    let job = Job { args, base: clustered(n, dim, 1), dim };
    match args.lists {
        Some(lists) => job.inverted(record.quick_or(lists.min(16), lists), record),
        None => job.exact(record),
    }
}

/// The vectors, and the settings of the measurement.
struct Job<'a> {
    args: &'a Args,
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

    /// Bytes of `reads` times the base, and of the graph.
    fn bytes(&self, reads: f64) -> f64 {
        reads * size_of_val(&self.base[..]) as f64 + 8.0 * self.rows() as f64 * self.args.k as f64
    }

    fn exact(&self, record: &mut Record) -> Outcome {
        let Self { args, base, dim } = self;
        let (mut last, device) = (None, record.device());
        // The first run loads kernels and does not count.
        let times = Times::collect(1, record.repeat(3), || {
            // Freed before the time starts.
            last = None;
            let mut index = FlatIndex::<f32>::new(*dim, Metric::L2, device)?;
            let (made, milliseconds) =
                timed(|| index.add(base).and_then(|()| KnnGraph::new(args.k).run(&index, base)))?;
            last.replace(made);
            Outcome::Ok(milliseconds)
        })?;
        let work = Work { bytes: self.bytes(1.0), operations: 2.0 * (self.rows() as f64).powi(2) * *dim as f64 };
        let right = last.is_some_and(|(graph, distances)| self.right(&graph, &distances, true));
        record.add(Measured::new(self.case("exact"), args.k, times, work, right))
    }

    fn inverted(&self, lists: usize, record: &mut Record) -> Outcome {
        let Self { args, base, dim } = self;
        let per_list = record.quick_or(40, args.train_per_list);
        let builder = IvfIndex::<f32>::builder(*dim, lists).seed(1).points_per_centroid(per_list);
        let mut index = builder.device(record.device()).build()?;
        let case = format!("{} lists={lists}", self.case("ivf-flat"));
        let mut part = |name: &str, milliseconds: f64| {
            record.add(Measured::stage(format!("{name} {case}"), milliseconds, self.bytes(1.0)))
        };
        part("train", timed(|| index.train(base))?.1)?;
        part("add", timed(|| index.add(base))?.1)?;
        // The first search makes the device's image of the lists.
        index.search_with(&base[..*dim], 1, &SearchOptions::new().probes(1))?;
        let mut graphs = Vec::new();
        for &probes in record.quick_or(&[2, 16][..], &args.probes) {
            index.set_probes(probes)?;
            let mut made = None;
            let times = Times::collect(0, record.repeat(1), || {
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
        let exact = exact(base, *dim, record.device())?;
        for (probes, times, graph, right) in graphs {
            // The vectors as queries, and every list once.
            let measured = Measured::new(format!("{case} probes={probes}"), args.k, times, self.bytes(2.0), right);
            record.add(measured.recall(graph.accuracy(&exact, base, args.sample)?))?;
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
