//! The grid of exact search among bits, by Hamming distance.

use std::path::PathBuf;

use warpann::{ElementType, FlatIndex, Metric, Neighbors, SearchOptions};
use warpann_measure::{Searches, Work};

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
        return measure(&base, &queries, bits.div_ceil(8), record);
    };
    let set = Set::read(base, query, None)?;
    let (Some(base), Some(all)) = (set.base.as_slice::<u8>(), set.query.as_slice::<u8>()) else {
        let other = [set.base.element(), set.query.element()].into_iter().find(|&element| element != ElementType::U8);
        return Err(Failure::Unmeasured { element: other.unwrap_or(ElementType::U8).name() });
    };
    let dim = set.base.dim();
    measure(base, &all[..queries.min(set.query.rows()) * dim], dim, record)
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

fn measure(base: &[u8], queries: &[u8], dim: usize, record: &mut Record) -> Outcome {
    let mut index = FlatIndex::<u8>::new(dim, Metric::Hamming, record.device())?;
    index.add(base)?;
    let (rows, count) = (base.len() / dim, queries.len() / dim);
    let large = LARGE.iter().map(|&k| (count, k, 5));
    let small = SMALL.iter().filter(|&&batch| batch < count).map(|&batch| (batch, 10, 20));
    for (batch, k, repeat) in large.chain(small) {
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
    Ok(())
}

/// Whether the results of a query are the first of all rows, sorted by a loop over bits.
fn is_right(base: &[u8], query: &[u8], number: usize, found: &Neighbors) -> bool {
    let apart = |row: &[u8]| row.iter().zip(query).map(|(x, y)| (x ^ y).count_ones()).sum::<u32>();
    let mut all: Vec<(u32, u64)> = base.chunks(query.len()).map(apart).zip(0..).collect();
    all.sort_unstable();
    let (ids, distances) = found.row(number);
    let expected = all.iter().map(|&(distance, id)| (id, distance as f32));
    ids.iter().copied().zip(distances.iter().copied()).zip(expected).all(|(found, expected)| found == expected)
}
