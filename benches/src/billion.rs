//! An IVF-PQ index of a stream of generated vectors, which is never completely in memory.
//!
//! The vectors are those of [`Generator`]: the GPU makes them and encodes them. Queries are the rows behind the base. An exact search of
//! the same rows, which are made again, finds the true nearest neighbour of each query. R@n is the fraction of queries whose true nearest
//! neighbour is among the first n results. A row is right if, for the first queries, no vector occurs twice, distances ascend, and each is
//! the float64 distance from the stored form of the vector.
//!
//! Each stage has a separate row: `train`, `add`, `truth` (once; right if the neighbours of the first queries, made on the CPU, have the
//! distances that the device computed), and `image`, the first search, which copies the lists to the device.

use rayon::prelude::*;
use warpann::generate::Generator;
use warpann::ivf::{Encoding, IvfIndex};
use warpann::{NONE, Neighbors, SearchOptions};
use warpann_measure::{Times, timed};

use crate::ivf::{ScanOrder, count};
use crate::machine::Machine;
use crate::record::{Measured, Record, print};
use crate::ten_million::free_memory;
use crate::vectors::admits;
use crate::{Common, Failure, Outcome};

/// Arguments of `billion`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Number of vectors.
    #[arg(long, default_value_t = 1_000_000_000, value_parser = count)]
    rows: usize,
    /// Components of a vector.
    #[arg(long, default_value_t = 96, value_parser = count)]
    dim: usize,
    /// Number of queries.
    #[arg(long, default_value_t = 10_000, value_parser = count)]
    queries: usize,
    /// Bytes of a code: that number of sub-quantizers of 8 bits if it divides the dimension, else more sub-quantizers of fewer bits.
    #[arg(long, value_delimiter = ',', default_value = "8,16,20", value_parser = count)]
    bytes: Vec<usize>,
    /// Number of lists.
    #[arg(long, default_value_t = 65_536, value_parser = count)]
    lists: usize,
    /// Vectors to train on, for each list.
    #[arg(long, default_value_t = 32, value_parser = count)]
    train_per_list: usize,
    /// Numbers of probed lists to measure.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32,64", value_parser = count)]
    probes: Vec<usize>,
    /// How lists are read: auto, list-major or query-major, one after the other. Named in the cases unless auto.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "auto")]
    scan: Vec<ScanOrder>,
    /// Bytes of device memory that the index may use: fewer cut a search into more batches.
    #[arg(long)]
    budget: Option<u64>,
    /// Make the vectors on the CPU and copy them to the device, as vectors of a file are.
    #[arg(long)]
    over_the_bus: bool,
}

/// Number of neighbours of a search, as R@100 needs it.
const K: usize = 100;
/// The n of R@n.
const AT: [usize; 3] = [1, 10, 100];
/// Queries whose results are checked.
const CHECKED: usize = 100;
/// Approximate number of vectors of a cluster.
const PER_CLUSTER: usize = 1000;
/// Number of vectors that the CPU makes at a time.
const BATCH: usize = 1 << 20;

/// Measures; true if every result was right.
pub fn run(args: &Args) -> Outcome<bool> {
    let machine = Machine::open(args.common.device, args.common.quick)?;
    let mut record = Record::open(&args.common, &machine)?;
    let run = Run::new(args, &machine)?;
    let queries = run.generator.rows(run.rows as u64, run.queries);
    let vector_bytes = (run.rows * run.dim * size_of::<f32>()) as f64;

    let (truth, truth_ms) = timed(|| run.generator.nearest(0..run.rows as u64, &queries, 1, machine.device()))?;
    // The CPU makes the same vectors as the device.
    let made = |id: u64| Some(run.generator.rows(id, 1));
    let right = (0..run.queries.min(CHECKED)).all(|query| {
        let (ids, distances) = truth.row(query);
        admits(&queries[query * run.dim..][..run.dim], made, ids, distances)
    });
    let case = format!("truth {}x{} nq={}", run.rows, run.dim, run.queries);
    run.stage(&mut record, case, truth_ms, vector_bytes, right)?;

    for &bytes in &run.bytes {
        let encoding = encoding(run.dim, bytes)?;
        let case = format!("pq{bytes} {}x{} lists={}", run.rows, run.dim, run.lists);
        let builder = IvfIndex::<f32>::builder(run.dim, run.lists)
            .encoding(encoding)
            .points_per_centroid(args.train_per_list)
            .device(machine.device());
        let mut index = match args.budget {
            Some(bytes) => builder.memory_budget(bytes).build()?,
            None => builder.build()?,
        };
        // Rows in the order of their numbers are in random order: the first ones are a sample.
        let training = (run.lists * args.train_per_list).min(run.rows);
        let ((), training_ms) = timed(|| index.train(&run.generator.rows(0, training)))?;
        let bytes_read = (training * run.dim * size_of::<f32>()) as f64;
        run.stage(&mut record, format!("train {case}"), training_ms, bytes_read, true)?;

        let ((), adding_ms) = timed(|| {
            if args.over_the_bus {
                let batch = |first: usize| run.generator.rows(first as u64, BATCH.min(run.rows - first));
                index.add_batches((0..run.rows).step_by(BATCH).map(batch))
            } else {
                index.add_generated(&run.generator, 0..run.rows as u64)
            }
        })?;
        let all = index.len() == run.rows;
        run.stage(&mut record, format!("add {case}"), adding_ms, vector_bytes, all)?;

        let (_, image_ms) = timed(|| index.search_with(&queries, K, &SearchOptions::new().probes(1)))?;
        let carried = (run.rows * (bytes + size_of::<u32>())) as f64;
        run.stage(&mut record, format!("image {case}"), image_ms, carried, true)?;
        for &scan in &args.scan {
            for &probes in &run.probes {
                run.search(&mut record, &index, &case, (probes, scan), &queries, &truth.ids)?;
            }
        }
        let statistics = index.statistics();
        print(format_args!(
            "index: {:.2} GB of codes, ids and centroids; lists of {} to {}, imbalance {:.2}; process {}; device {}\n",
            statistics.bytes as f64 / 1e9,
            statistics.shortest,
            statistics.longest,
            statistics.imbalance,
            resident_memory().map_or_else(|| "unknown".into(), |bytes| format!("{:.1} GB", bytes as f64 / 1e9)),
            free_memory(&machine)?
                .map_or_else(|| "the host".into(), |bytes| format!("with {:.1} GB free", bytes as f64 / 1e9)),
        ))?;
    }
    Ok(record.all_verified())
}

/// One run of the grid.
struct Run<'a> {
    machine: &'a Machine,
    generator: Generator,
    rows: usize,
    dim: usize,
    queries: usize,
    lists: usize,
    bytes: Vec<usize>,
    probes: Vec<usize>,
    repeat: usize,
}

impl<'a> Run<'a> {
    fn new(args: &Args, machine: &'a Machine) -> Outcome<Self> {
        let &Args { rows, dim, queries, lists, .. } = args;
        let quick = args.common.quick;
        let (rows, dim, queries, lists) = if quick { (20_000, 24, 200, 64) } else { (rows, dim, queries, lists) };
        let small = |all: &[usize], few: &[usize]| if quick { few.to_vec() } else { all.to_vec() };
        Ok(Run {
            machine,
            generator: Generator::new(dim, rows.div_ceil(PER_CLUSTER), 1)?,
            rows,
            dim,
            queries,
            lists,
            bytes: small(&args.bytes, &[8, 15]),
            probes: small(&args.probes, &[1, 4, 64]),
            repeat: args.common.repeat.unwrap_or(5),
        })
    }

    /// Records a stage of the build, which reads or makes `bytes` at least once.
    fn stage(&self, record: &mut Record, case: String, milliseconds: f64, bytes: f64, verified: bool) -> Outcome {
        record.add(Measured { verified, ..Measured::stage(case, milliseconds, self.machine.floor_ms(bytes)) })
    }

    /// Times the search for [`K`] neighbours and records it once for each R@n.
    fn search(
        &self,
        record: &mut Record,
        index: &IvfIndex<f32>,
        case: &str,
        (probes, scan): (usize, ScanOrder),
        queries: &[f32],
        truth: &[u64],
    ) -> Outcome {
        let options = SearchOptions::new().probes(probes).scan(scan.scan());
        let slots = self.queries * K;
        let mut found = Neighbors { k: K, ids: vec![NONE; slots], distances: vec![0.0; slots] };
        let search = || index.search_into(queries, K, &options, &mut found.ids, &mut found.distances);
        let times = Times::measure(2, self.repeat, search)?;
        // Called once before many threads call it, because the first call makes the directory of all vectors.
        index.reconstruct(0)?;
        let stored = |id: u64| index.reconstruct(id).ok();
        let right = (0..self.queries.min(CHECKED)).into_par_iter().all(|query| {
            let (ids, distances) = found.row(query);
            admits(&queries[query * self.dim..][..self.dim], stored, ids, distances)
        });
        let share = (self.queries as f64 * probes as f64 / self.lists as f64).min(1.0);
        let bytes = share * self.rows as f64 * index.statistics().code_bytes as f64 + size_of_val(queries) as f64;
        let mut recalls = Vec::new();
        for at in AT {
            let hit = |&(query, nearest): &(usize, &u64)| found.row(query).0[..at].contains(nearest);
            let recall = truth.iter().enumerate().filter(hit).count() as f64 / truth.len() as f64;
            recalls.push(format!("R@{at} {recall:.4}"));
            record.add(Measured {
                case: format!("{case} nq={} probes={probes}{}", self.queries, scan.suffix()),
                k: at,
                times: times.clone(),
                memory_floor_ms: self.machine.floor_ms(bytes + 12.0 * slots as f64),
                recall: Some(recall),
                verified: right,
                ..Measured::default()
            })?;
        }
        let each = 1e3 * times.median() / self.queries as f64;
        print(format_args!("{each:.3} us a query, {}\n", recalls.join(", ")))
    }
}

/// The encoding with codes of this number of bytes: the largest number of bits for which the sub-quantizers divide the dimension.
fn encoding(dim: usize, bytes: usize) -> Outcome<Encoding> {
    let fitting = |&bits: &usize| (8 * bytes).is_multiple_of(bits) && dim.is_multiple_of(8 * bytes / bits);
    match (4..=8).rev().find(fitting) {
        Some(bits) => Ok(Encoding::Pq { sub_quantizers: 8 * bytes / bits, bits: bits as u32, rotate: false }),
        None => Err(Failure::CodeBytes { bytes, dim }),
    }
}

/// Bytes of memory of this process, if the system reports them.
fn resident_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
}
