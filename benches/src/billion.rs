//! An inverted file of codes of a stream of generated vectors, which is never completely in memory.
//!
//! The vectors are those of [`Generator`]: the GPU makes them and encodes them. Queries are the rows behind the base.
//! An exact search of the same rows, which are made again, finds the true nearest neighbours of each query. R@n is the
//! fraction of queries whose true nearest neighbour is among the first n results, and 10 of 10 the share of the true
//! ten nearest among the first ten results. A row is right if, for the first
//! queries, no vector occurs twice, distances ascend, and each is the float64 distance from the stored form of the
//! vector.
//!
//! Each stage has a separate row: `train`, `add`, `truth` (once; right if the neighbours of the first queries, made on
//! the CPU, have the distances that the device computed), and `image`, the first search, which copies the lists to the
//! device.

use warpann::SearchOptions;
use warpann::generate::Generator;
use warpann::ivf::{Encoding, IvfIndex};
use warpann_measure::{Searches, Work, nearest_in, timed};

use crate::ivf::{ScanOrder, probed_bytes};
use crate::machine::{peak_memory, resident_memory};
use crate::record::{Measured, Record, print};
use crate::set::count;
use crate::vectors::all_admitted;
use crate::{Failure, Outcome};

/// Arguments of `billion`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Number of vectors.
    #[arg(long, default_value_t = 1_000_000_000, value_parser = count)]
    rows: usize,
    /// Components of a vector.
    #[arg(long, default_value_t = 96, value_parser = count)]
    dim: usize,
    /// Number of queries.
    #[arg(long, default_value_t = 10_000, value_parser = count)]
    queries: usize,
    /// Bytes of a code: that number of sub-quantizers of 8 bits if it divides the dimension, else more sub-quantizers
    /// of fewer bits.
    #[arg(long, value_delimiter = ',', num_args = 0.., default_value = "8,16,20", value_parser = count)]
    bytes: Vec<usize>,
    /// Bits of a component in codes of bits, measured after the product codes.
    #[arg(long, value_delimiter = ',', num_args = 0.., value_parser = count)]
    bits: Vec<usize>,
    /// Number of neighbours of a search, at least ten.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(10..=2048))]
    k: u64,
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

/// The n of R@n, up to the number of neighbours.
const AT: [usize; 3] = [1, 10, 100];
/// Number of true neighbours.
const TRUE: usize = 10;
/// Queries whose results are checked.
const CHECKED: usize = 100;
/// Approximate number of vectors of a cluster.
const PER_CLUSTER: usize = 1000;
/// Number of vectors that the CPU makes at a time.
const BATCH: usize = 1 << 20;

/// Measures all cases of the grid.
pub fn run(args: &Args, record: &mut Record) -> Outcome {
    let (rows, dim, queries, lists) = (20_000, 24, 200, 64);
    let quick = Args { rows, dim, queries, lists, bytes: vec![8, 15], probes: vec![1, 4, 64], ..args.clone() };
    let args = record.quick_or(&quick, args);
    let &Args { rows, dim, lists, .. } = args;
    let generator = Generator::new(dim, rows.div_ceil(PER_CLUSTER), 1)?;
    let queries = generator.rows(rows as u64, args.queries);
    let vector_bytes = (rows * dim * size_of::<f32>()) as f64;

    let (truth, truth_ms) = timed(|| generator.nearest(0..rows as u64, &queries, TRUE, record.device()))?;
    // The CPU makes the same vectors as the device.
    let made = |id: u64| Some(generator.rows(id, 1));
    let right = all_admitted(&queries, &truth, (CHECKED, 1), made);
    let case = format!("truth {}x{} nq={}", rows, dim, args.queries);
    record.add(stage(case, truth_ms, vector_bytes, right))?;

    let mut encodings = Vec::new();
    for &bytes in &args.bytes {
        encodings.push((format!("pq{bytes}"), encoding(dim, bytes)?));
    }
    encodings.extend(args.bits.iter().map(|&bits| (format!("bits{bits}"), Encoding::Bits { bits: bits as u32 })));
    for (name, encoding) in encodings {
        let case = format!("{name} {rows}x{dim} lists={lists}");
        let builder = IvfIndex::<f32>::builder(dim, lists)
            .encoding(encoding)
            .points_per_centroid(args.train_per_list)
            .device(record.device());
        let mut index = match args.budget {
            Some(bytes) => builder.memory_budget(bytes).build()?,
            None => builder.build()?,
        };
        // Rows in the order of their numbers are in random order: the first ones are a sample.
        let training = (lists * args.train_per_list).min(rows);
        let ((), training_ms) = timed(|| index.train(&generator.rows(0, training)))?;
        let bytes_read = (training * dim * size_of::<f32>()) as f64;
        record.add(stage(format!("train {case}"), training_ms, bytes_read, true))?;

        let ((), adding_ms) = timed(|| {
            if args.over_the_bus {
                let batch = |first: usize| generator.rows(first as u64, BATCH.min(rows - first));
                index.add_batches((0..rows).step_by(BATCH).map(batch))
            } else {
                index.add_generated(&generator, 0..rows as u64)
            }
        })?;
        let all = index.len() == rows;
        record.add(stage(format!("add {case}"), adding_ms, vector_bytes, all))?;
        print(format_args!("process with the index {}, at most {}\n", size(resident_memory()), size(peak_memory())))?;

        let k = args.k as usize;
        let (_, image_ms) = timed(|| index.search_with(&queries, k, &SearchOptions::new().probes(1)))?;
        let carried = (rows * (index.statistics().code_bytes + size_of::<u32>())) as f64;
        record.add(stage(format!("image {case}"), image_ms, carried, true))?;
        for &scan in &args.scan {
            for &probes in &args.probes {
                search(record, &index, &case, (probes, scan, k), &queries, &truth.ids)?;
            }
        }
        let statistics = index.statistics();
        print(format_args!(
            "index: {:.2} GB of codes, ids and centroids; lists of {} to {}, imbalance {:.2}; process {}; device {}\n",
            statistics.bytes as f64 / 1e9,
            statistics.shortest,
            statistics.longest,
            statistics.imbalance,
            size(resident_memory()),
            record
                .machine
                .free_memory()
                .map_or_else(|| "the host".into(), |bytes| format!("with {:.1} GB free", bytes as f64 / 1e9)),
        ))?;
    }
    Ok(())
}

/// A size as text.
fn size(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "unknown".into(), |bytes| format!("{:.1} GB", bytes as f64 / 1e9))
}

/// Times the search for k neighbours, and records it once for each R@n, and for ten of ten.
fn search(
    record: &mut Record,
    index: &IvfIndex<f32>,
    case: &str,
    (probes, scan, k): (usize, ScanOrder, usize),
    queries: &[f32],
    truth: &[u64],
) -> Outcome {
    let count = truth.len() / TRUE;
    let options = SearchOptions::new().probes(probes).scan(scan.scan());
    let mut searches = Searches::new(index, queries, k, options)?;
    let times = searches.times(record.repeat(5))?;
    let found = searches.found;
    // Called once before many threads call it, because the first call makes the directory of all vectors.
    index.reconstruct(0)?;
    let right = all_admitted(queries, &found, (CHECKED, 1), |id| index.reconstruct(id).ok());
    let bytes = probed_bytes(index, count as f64, probes) + Work::of_queries(count, size_of_val(queries), k);
    let case = format!("{case} nq={} probes={probes}{}", count, scan.suffix());
    let mut recalls = Vec::new();
    for at in AT.into_iter().filter(|&at| at <= k) {
        let recall = nearest_in(&found.ids, k, truth, TRUE, at);
        recalls.push(format!("R@{at} {recall:.4}"));
        record.add(Measured::new(case.clone(), at, times.clone(), bytes, right).recall(recall))?;
    }
    let recall = warpann::recall(&found.ids, k, truth, TRUE, TRUE);
    recalls.push(format!("10 of 10 {recall:.4}"));
    record.add(Measured::new(format!("{case} 10 of 10"), k, times.clone(), bytes, right).recall(recall))?;
    let each = 1e3 * times.median() / count as f64;
    print(format_args!("{each:.3} us a query, {}\n", recalls.join(", ")))
}

/// A stage of the build, which reads or makes `bytes` at least once.
fn stage(case: String, milliseconds: f64, bytes: f64, verified: bool) -> Measured {
    Measured { verified, ..Measured::stage(case, milliseconds, bytes) }
}

/// The encoding with codes of this number of bytes: the largest number of bits for which the sub-quantizers divide the
/// dimension.
fn encoding(dim: usize, bytes: usize) -> Outcome<Encoding> {
    let fitting = |&bits: &usize| (8 * bytes).is_multiple_of(bits) && dim.is_multiple_of(8 * bytes / bits);
    match (4..=8).rev().find(fitting) {
        Some(bits) => Ok(Encoding::Pq { sub_quantizers: 8 * bytes / bits, bits: bits as u32, rotate: false }),
        None => Err(Failure::CodeBytes { bytes, dim }),
    }
}
