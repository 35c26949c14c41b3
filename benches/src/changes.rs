//! Changes of a flat index, of inverted files and of a graph, searches right after them, and searches under filters.
//!
//! A change of one vector is made a thousand times; its row has the mean. Each change is followed by its opposite, so the index keeps its
//! size. A search under a filter is compared, to the bit, with one of an index that has only the accepted vectors. A graph gets a tenth of its vectors
//! in one addition, loses another tenth, and its recall is compared with that of a new graph of the same vectors.

use warpann::ivf::Encoding;
use warpann::{FlatIndex, GraphIndex, Index, IvfIndex, Kind, Metric, Neighbors, SearchOptions, recall};
use warpann_measure::{Times, timed};

use crate::machine::Machine;
use crate::record::{Measured, Record};
use crate::vectors::clustered;
use crate::{Common, Outcome};

/// Arguments of `changes`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Number of base vectors.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1_000..))]
    n: u32,
    /// Dimension of the vectors.
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    dim: u32,
    /// Queries of a search.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    queries: u32,
    /// Encodings of the inverted files that are measured after the flat index.
    #[arg(long, value_delimiter = ',', default_value = "flat")]
    ivf: Vec<Encoding>,
    /// Lists of the inverted files; by default the square root of the number of vectors, to a power of two.
    #[arg(long)]
    lists: Option<usize>,
}

/// Number of neighbours of a query.
const K: usize = 10;
/// Vectors of a batch of changes.
const BATCH: usize = 1_000;
/// Lists that a search of inverted files reads.
const PROBES: usize = 8;
/// Widths of the beam of searches in a graph.
const BEAMS: [usize; 3] = [24, 48, 96];
/// A filter accepts one of this number of vectors.
const ACCEPTED: [u64; 5] = [1, 2, 10, 100, 1_000];

/// Measures changes and filters. Returns true if every result was right.
pub fn run(args: &Args) -> Outcome<bool> {
    let (n, dim, queries) =
        if args.common.quick { (2_000, 20, 20) } else { (args.n as usize, args.dim as usize, args.queries as usize) };
    let mut base = clustered(n + queries, dim, 1);
    let queries = base.split_off(n * dim);
    let machine = Machine::open(args.common.device, args.common.quick)?;
    let mut index = FlatIndex::<f32>::new(dim, Metric::L2, machine.device())?;
    index.add(&base)?;
    let mut record = Record::open(&args.common, &machine)?;
    let kind = String::new();
    let mut job = Job { args, machine: &machine, record: &mut record, base: &base, queries: &queries, dim, kind };
    job.single_changes(&mut index)?;
    job.batches_of_changes(&mut index)?;
    job.filters(&index)?;
    drop(index);
    for &encoding in &args.ivf {
        let lists = args.lists.unwrap_or((n as f64).sqrt() as usize).next_power_of_two().min(n / 4);
        let mut index = IvfIndex::<f32>::builder(dim, lists).encoding(encoding).device(machine.device()).build()?;
        index.train(&base)?;
        index.add(&base)?;
        job.kind = format!(" ivf-{encoding} lists={lists} probes={PROBES}");
        job.single_changes(&mut index)?;
        job.batches_of_changes(&mut index)?;
    }
    job.graph()?;
    Ok(record.all_verified())
}

struct Job<'a> {
    args: &'a Args,
    machine: &'a Machine,
    record: &'a mut Record,
    base: &'a [f32],
    queries: &'a [f32],
    dim: usize,
    /// The kind of index, as a part of the names of cases: empty for a flat index.
    kind: String,
}

impl Job<'_> {
    fn add(&mut self, what: &str, k: usize, times: Times, bytes: f64, verified: bool) -> Outcome {
        let case = format!("changes {}x{} f32{} {what}", self.base.len() / self.dim, self.dim, self.kind);
        let memory_floor_ms = self.machine.floor_ms(bytes);
        self.record.add(Measured { case, k, times, memory_floor_ms, verified, ..Measured::default() })
    }

    fn repeat(&self, otherwise: usize) -> usize {
        self.args.common.repeat.unwrap_or(otherwise).max(1)
    }

    /// One vector out, and in again.
    fn single_changes(&mut self, index: &mut Index<impl Kind<Element = f32>>) -> Outcome {
        let (base, dim) = (self.base, self.dim);
        let n = base.len() / dim;
        let count = if self.machine.gpu.is_some() { 20 } else { BATCH };
        let ids: Vec<u64> = (0..count).map(|at| (at * 7_919 % n) as u64).collect();
        let row = |id: u64| &base[id as usize * dim..][..dim];
        let (mut removing, mut adding) = (Vec::new(), Vec::new());
        for _ in 0..self.repeat(5) {
            removing.push(timed(|| ids.iter().try_for_each(|&id| index.remove(&[id])))?.1);
            adding.push(timed(|| ids.iter().try_for_each(|&id| index.add_with_ids(row(id), &[id])))?.1);
        }
        let (removing, adding) = (Times::new(removing).divided(count), Times::new(adding).divided(count));
        let verified = index.len() == n && ids.iter().all(|&id| index.contains(id));
        let bytes = (dim * size_of::<f32>()) as f64;
        self.add("remove one", 0, removing, bytes, verified)?;
        self.add("add one", 0, adding, bytes, verified)
    }

    /// The recall of a graph that changed beside that of a new one.
    fn graph(&mut self) -> Outcome {
        let (base, queries, dim) = (self.base, self.queries, self.dim);
        let n = base.len() / dim;
        let tenth = n / 10;
        let new = || GraphIndex::<f32>::builder(dim).device(self.machine.device()).seed(1).build();
        let mut changed = new()?;
        changed.add(&base[..(n - tenth) * dim])?;
        let adding = Times::measure(0, 1, || changed.add(&base[(n - tenth) * dim..]))?;
        let gone: Vec<u64> = (0..tenth as u64).map(|at| 10 * at + 3).collect();
        let removing = Times::measure(0, 1, || changed.remove(&gone))?;

        let left: Vec<u64> = (0..n as u64).filter(|id| gone.binary_search(id).is_err()).collect();
        let rows: Vec<f32> = left.iter().flat_map(|&id| &base[id as usize * dim..][..dim]).copied().collect();
        let mut exact = FlatIndex::<f32>::new(dim, Metric::L2, self.machine.device())?;
        exact.add_with_ids(&rows, &left)?;
        let truth = exact.search(queries, K)?;
        drop(exact);
        let mut rebuilt = new()?;
        let building = Times::measure(0, 1, || rebuilt.add_with_ids(&rows, &left))?;

        self.kind = " graph".to_owned();
        let bytes = |rows: usize| (rows * dim * size_of::<f32>()) as f64;
        self.add(&format!("add {tenth}"), 0, adding, bytes(tenth), true)?;
        self.add(&format!("remove {tenth}"), 0, removing, bytes(0), true)?;
        self.add(&format!("build {}", left.len()), 0, building, bytes(n), true)?;
        for (name, index) in [("changed", &changed), ("rebuilt", &rebuilt)] {
            for beam in BEAMS {
                let options = SearchOptions::new().beam(beam);
                let found = index.search_with(queries, K, &options)?;
                let search = || index.search_with(queries, K, &options).map(drop);
                let times = Times::measure(2, self.repeat(5), search)?;
                let case = format!("changes {n}x{dim} f32 graph {name} beam={beam} nq={}", queries.len() / dim);
                let found = Some(recall(&found.ids, K, &truth.ids, K, K));
                let measured = Measured { case, k: K, times, recall: found, verified: true, ..Measured::default() };
                self.record.add(measured)?;
            }
        }
        Ok(())
    }

    /// Searches, alone and right after a batch of changes.
    fn batches_of_changes(&mut self, index: &mut Index<impl Kind<Element = f32>>) -> Outcome {
        let (base, queries, dim) = (self.base, self.queries, self.dim);
        let n = base.len() / dim;
        let batch = BATCH.min(n / 2);
        let last = (n - batch) as u64..n as u64;
        let spread: Vec<u64> = (0..batch).map(|at| (at * (n / batch)) as u64).collect();
        let rows =
            |ids: &[u64]| ids.iter().flat_map(|&id| &base[id as usize * dim..][..dim]).copied().collect::<Vec<f32>>();
        let bytes = size_of_val(base) as f64;
        let options = SearchOptions::new().probes(PROBES);
        let expected = index.search_with(queries, K, &options)?;
        let nq = queries.len() / dim;

        let times = Times::measure(2, self.repeat(20), || index.search_with(queries, K, &options).map(drop))?;
        self.add(&format!("search nq={nq}"), K, times, bytes, true)?;
        for (what, ids) in [("spread", spread), ("last", last.collect())] {
            let rows = rows(&ids);
            let (mut removing, mut adding) = (Vec::new(), Vec::new());
            for _ in 0..self.repeat(10) {
                let removed = timed(|| index.remove(&ids).and_then(|()| index.search_with(queries, K, &options)));
                removing.push(removed?.1);
                let added =
                    timed(|| index.add_with_ids(&rows, &ids).and_then(|()| index.search_with(queries, K, &options)));
                adding.push(added?.1);
            }
            let (removing, adding) = (Times::new(removing), Times::new(adding));
            let verified = same_bits(&index.search_with(queries, K, &options)?, &expected);
            self.add(&format!("remove {batch} {what}, search nq={nq}"), K, removing, bytes, verified)?;
            self.add(&format!("add {batch} {what}, search nq={nq}"), K, adding, bytes, verified)?;
        }
        Ok(())
    }

    fn filters(&mut self, index: &FlatIndex<f32>) -> Outcome {
        let (queries, dim) = (self.queries, self.dim);
        let nq = queries.len() / dim;
        for one_of in ACCEPTED {
            let filter = index.filter(|id| id % one_of == 0);
            let options = SearchOptions::new().filter(&filter);
            let found = index.search_with(queries, K, &options)?;
            let times = Times::measure(2, self.repeat(20), || index.search_with(queries, K, &options).map(drop))?;
            let ids: Vec<u64> = index.ids().into_iter().filter(|id| id % one_of == 0).collect();
            let rows: Vec<f32> = ids.iter().flat_map(|&id| &self.base[id as usize * dim..][..dim]).copied().collect();
            let mut accepted = FlatIndex::<f32>::new(dim, Metric::L2, self.machine.device())?;
            accepted.add_with_ids(&rows, &ids)?;
            let verified = same_bits(&found, &accepted.search(queries, K)?);
            self.add(
                &format!("search nq={nq} filter=1/{one_of}"),
                K,
                times,
                size_of_val(rows.as_slice()) as f64,
                verified,
            )?;
        }
        Ok(())
    }
}

fn same_bits(a: &Neighbors, b: &Neighbors) -> bool {
    a.ids == b.ids && a.distances.iter().zip(&b.distances).all(|(a, b)| a.to_bits() == b.to_bits())
}
