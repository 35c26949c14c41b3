//! The grid of search among bits, by Hamming distance: exact, in inverted files, and by walks in a graph.

use std::path::PathBuf;

use warpann::{ElementType, FlatIndex, GraphIndex, Index, IvfIndex, Kind, Metric, Neighbors, SearchOptions};
use warpann_measure::{Searches, Work, timed};

use crate::record::{Measured, Record};
use crate::set::{Set, count, positive};
use crate::vectors::Clusters;
use crate::{Failure, Outcome};

/// Arguments of `hamming`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Base vectors: bvecs, u8bin or npy of u8, with eight bits in a byte. Default: the signs of clustered vectors.
    #[arg(long, value_name = "FILE", requires = "query", conflicts_with_all = ["n", "bits"])]
    base: Option<PathBuf>,
    /// Queries, as the base.
    #[arg(long, value_name = "FILE", requires = "base")]
    query: Option<PathBuf>,
    /// Number of base vectors to make.
    #[arg(long, default_value_t = 1_000_000, value_parser = count)]
    n: usize,
    /// Bits of a vector to make, a multiple of eight.
    #[arg(long, default_value_t = 1_024, value_parser = count)]
    bits: usize,
    /// Queries of the large batches: made, or the first of the file.
    #[arg(long, default_value_t = 10_000, value_parser = count)]
    queries: usize,
    /// Widths of the beam of walks to measure, at k = 10. Without a width no graph is built, which takes long on a CPU.
    #[arg(long, value_delimiter = ',', num_args = 0.., default_value = "16,32,64,128", value_parser = count)]
    beams: Vec<usize>,
    /// Numbers of probed lists to measure, at k = 10, of √n · 4 lists. Without one no inverted file is built.
    #[arg(long, value_delimiter = ',', num_args = 0.., default_value = "1,4,16,64", value_parser = count)]
    probes: Vec<usize>,
    /// Rate of matrix products of bits in TOP/s, from which the arithmetic floor is computed.
    #[arg(long, value_parser = positive)]
    tops: Option<f64>,
}

/// k of the large batches.
const LARGE: &[usize] = &[1, 10, 100, 1000];
/// Sizes of the small batches, k = 10.
const SMALL: &[usize] = &[1, 16, 256];
/// Numbers of the queries whose results are compared with a plain loop, if the batch has them.
const CHECKED: &[usize] = &[0, 1, 15, 100, 255, 1_000, 5_000, 9_999];
/// Number of vectors that are made at a time.
const PART: usize = 10_000;

/// Measures all cases of the grid.
pub fn run(args: &Args, record: &mut Record) -> Outcome {
    record.tflops = args.tops;
    let queries = record.quick_or(300, args.queries);
    let (Some(base), Some(query)) = (&args.base, &args.query) else {
        let (n, bits) = record.quick_or((2_000, 160), (args.n, args.bits));
        let mut base = signs(n + queries, bits.next_multiple_of(8));
        let queries = base.split_off(n * bits.div_ceil(8));
        return measure(&base, &queries, bits.div_ceil(8), args, record);
    };
    let set = Set::read(base, query, None)?;
    let (Some(base), Some(all)) = (set.base.as_slice::<u8>(), set.query.as_slice::<u8>()) else {
        let other = [set.base.element(), set.query.element()].into_iter().find(|&element| element != ElementType::U8);
        return Err(Failure::Unmeasured { element: other.unwrap_or(ElementType::U8).name() });
    };
    let dim = set.base.dim();
    measure(base, &all[..queries.min(set.query.rows()) * dim], dim, args, record)
}

/// The signs of the first `rows` clustered vectors of `bits` components, eight in a byte.
fn signs(rows: usize, bits: usize) -> Vec<u8> {
    let clusters = Clusters::new(bits, 1);
    let (mut signs, mut part) = (Vec::with_capacity(rows * bits / 8), vec![0.0; PART.min(rows) * bits]);
    for first in (0..rows).step_by(PART) {
        let part = &mut part[..PART.min(rows - first) * bits];
        clusters.fill(first, part);
        let byte = |eight: &[f32; 8]| (0..8).fold(0, |byte, bit| byte | u8::from(eight[bit] > 0.0) << bit);
        signs.extend(part.as_chunks::<8>().0.iter().map(byte));
    }
    signs
}

fn measure(base: &[u8], queries: &[u8], dim: usize, args: &Args, record: &mut Record) -> Outcome {
    let mut index = FlatIndex::<u8>::new(dim, Metric::Hamming, record.device())?;
    index.add(base)?;
    let (rows, count) = (base.len() / dim, queries.len() / dim);
    let large = LARGE.iter().map(|&k| (count, k, 5));
    for (batch, k, repeat) in large.chain(small(count)) {
        let mut searches = Searches::new(&index, &queries[..batch * dim], k, SearchOptions::new())?;
        let times = searches.times(record.repeat(repeat))?;
        let checked = CHECKED.iter().filter(|&&query| query < batch);
        let verified =
            checked.clone().all(|&query| is_right(base, &queries[query * dim..][..dim], query, &searches.found));
        let work = Work::exact::<u8>(rows, batch, dim, k);
        // A byte has eight bits to multiply.
        let work = Work { operations: 8.0 * work.operations, ..work };
        let case = format!("hamming {rows}x{} bits nq={batch}", 8 * dim);
        record.add(Measured::new(case, k, times, work, verified))?;
    }
    if !args.probes.is_empty() {
        lists(&index, (base, queries), &args.probes, record)?;
    }
    if args.beams.is_empty() { Ok(()) } else { walks(&index, (base, queries), &args.beams, record) }
}

/// The small batches: queries, k and repetitions.
fn small(count: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    SMALL.iter().filter(move |&&batch| batch < count).map(|&batch| (batch, 10, 20))
}

/// Measures the building of an inverted file, and searches of some of its lists.
fn lists(exact: &FlatIndex<u8>, of: (&[u8], &[u8]), probes: &[usize], record: &mut Record) -> Outcome {
    let (base, rows) = (of.0, exact.len());
    let lists = (4 * rows.isqrt()).max(1);
    let case = format!("hamming ivf {rows}x{} bits lists={lists}", 8 * exact.dim());
    let builder = IvfIndex::<u8>::builder(exact.dim(), lists).metric(Metric::Hamming).device(record.device());
    let index = built(&case, base, record, || {
        let mut index = builder.clone().build()?;
        index.train(base)?;
        index.add(base)?;
        Ok(index)
    })?;
    let options = probes.iter().map(|&probes| (format!("probes={probes}"), SearchOptions::new().probes(probes)));
    approximate(exact, &index, of.1, &case, options, record)
}

/// Measures the building of a graph, and walks in it.
fn walks(exact: &FlatIndex<u8>, of: (&[u8], &[u8]), beams: &[usize], record: &mut Record) -> Outcome {
    let (dim, base) = (exact.dim(), of.0);
    let case = format!("hamming graph {}x{} bits", exact.len(), 8 * dim);
    let builder = GraphIndex::<u8>::builder(dim).metric(Metric::Hamming).device(record.device()).exact_ratio(0).seed(1);
    let graph = built(&case, base, record, || {
        let mut index = builder.clone().build()?;
        index.add(base)?;
        Ok(index)
    })?;
    let options = beams.iter().map(|&beam| (format!("beam={beam}"), SearchOptions::new().beam(beam)));
    approximate(exact, &graph, of.1, &case, options, record)
}

/// Measures the building of an index.
fn built<I>(case: &str, base: &[u8], record: &mut Record, build: impl Fn() -> warpann::Result<I>) -> Outcome<I> {
    // On a GPU the first build loads kernels.
    if record.machine.gpu.is_some() {
        drop(build()?);
    }
    let (index, milliseconds) = timed(|| build().map_err(Failure::from))?;
    record.add(Measured::stage(format!("build {case}"), milliseconds, base.len() as f64))?;
    Ok(index)
}

/// Measures searches with some options, whose recall is that of all queries.
fn approximate<K: Kind<Element = u8>>(
    exact: &FlatIndex<u8>,
    index: &Index<K>,
    queries: &[u8],
    case: &str,
    options: impl Iterator<Item = (String, SearchOptions<'static>)>,
    record: &mut Record,
) -> Outcome {
    let (dim, count) = (exact.dim(), queries.len() / exact.dim());
    let truth = exact.search(queries, 10)?;
    for (name, options) in options {
        for (batch, k, repeat) in std::iter::once((count, 10, 5)).chain(small(count)) {
            let mut searches = Searches::new(index, &queries[..batch * dim], k, options)?;
            let times = searches.times(record.repeat(repeat))?;
            let verified = agree(index, queries, &searches.found)?;
            let work = Work::of_queries(batch, batch * dim, k);
            let recall = (batch == count).then(|| warpann::recall(&searches.found.ids, k, &truth.ids, k, k));
            let measured = Measured::new(format!("{case} nq={batch} {name}"), k, times, work, verified);
            record.add(measured.recall(recall))?;
        }
    }
    Ok(())
}

/// Whether the distances of some results are the numbers of bits that differ, and ascend.
fn agree<K: Kind<Element = u8>>(index: &Index<K>, queries: &[u8], found: &Neighbors) -> Outcome<bool> {
    let dim = index.dim();
    for &query in CHECKED.iter().filter(|&&query| query < found.ids.len() / found.k) {
        // Few lists may have fewer vectors.
        for (id, distance) in found.found(query) {
            let row: Vec<u8> = index.reconstruct(id)?.iter().map(|&x| x as u8).collect();
            if apart(&row, &queries[query * dim..][..dim]) as f32 != distance {
                return Ok(false);
            }
        }
        if !found.row(query).1.is_sorted() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The number of bits that differ, by a plain loop.
fn apart(x: &[u8], y: &[u8]) -> u32 {
    x.iter().zip(y).map(|(x, y)| (x ^ y).count_ones()).sum()
}

/// Whether the results of a query are the first of all rows, sorted by a loop over bits.
fn is_right(base: &[u8], query: &[u8], number: usize, found: &Neighbors) -> bool {
    let mut all: Vec<(u32, u64)> = base.chunks(query.len()).map(|row| apart(row, query)).zip(0..).collect();
    all.sort_unstable();
    let (ids, distances) = found.row(number);
    let expected = all.iter().map(|&(distance, id)| (id, distance as f32));
    ids.iter().copied().zip(distances.iter().copied()).zip(expected).all(|(found, expected)| found == expected)
}
