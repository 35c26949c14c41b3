//! Data that once cost many times as much as other data of the same size: exact search of an index whose first vectors
//! lay elsewhere, and training with many equal vectors. Each case stands beside the same work without that, so the two
//! medians should be alike.

use warpann::ivf::Encoding;
use warpann::{FlatIndex, IvfIndex, Metric, Neighbors, SearchOptions};
use warpann_measure::{Searches, Times, timed};

use crate::Outcome;
use crate::record::{Measured, Record};
use crate::set::made;
use crate::vectors::clustered;

/// Arguments of `moved`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Number of vectors.
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u32).range(1_000..))]
    n: u32,
    /// Dimension of the vectors.
    #[arg(long, default_value_t = 128, value_parser = fours)]
    dim: u32,
}

/// Product codes have a sub-quantizer for each four components.
fn fours(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(dim) if dim > 0 && u32::is_multiple_of(dim, 4) => Ok(dim),
        _ => Err("the dimension must be a multiple of 4".into()),
    }
}

/// Number of neighbours of a query.
const K: usize = 10;
/// Distance of the vectors from those that were there before, in each component.
const AWAY: f32 = 1_000.0;

/// Measures all cases of the grid.
pub fn run(args: &Args, record: &mut Record) -> Outcome {
    let (n, dim, queries) = record.quick_or((2_000, 20, 20), (args.n as usize, args.dim as usize, 1_000));
    let (device, repeat, bits) = (record.device(), record.repeat(5), record.quick_or(4, 8));
    let first = clustered(n / 2, dim, 2);
    let (mut base, mut queries) = made(n, queries, dim);
    base.iter_mut().chain(&mut queries).for_each(|x| *x += AWAY);
    let bytes = size_of_val(&base[..]) as f64;
    let mut add =
        |case: String, times: Times, verified: bool| record.add(Measured::new(case, K, times, bytes, verified));

    let mut expected: Option<Neighbors> = None;
    for before in ["nothing", "others, removed", "others, cleared"] {
        let mut index = FlatIndex::<f32>::new(dim, Metric::L2, device)?;
        let ids: Vec<u64> = (0..n as u64).collect();
        if before != "nothing" {
            let others: Vec<u64> = (n as u64..).take(n / 2).collect();
            index.add_with_ids(&first, &others)?;
            index.search(&queries, K)?;
            if before == "others, cleared" { index.clear() } else { index.remove(&others)? }
        }
        index.add_with_ids(&base, &ids)?;
        let mut searches = Searches::new(&index, &queries, K, SearchOptions::new())?;
        let times = searches.times(repeat)?;
        let right = *expected.get_or_insert_with(|| searches.found.clone()) == searches.found;
        add(format!("exact {n}x{dim} f32 nq={} after {before}", queries.len() / dim), times, right)?;
    }

    let lists = (n / 64).min(1_024);
    let mut half = base.clone();
    (0..n).step_by(2).for_each(|row| half.copy_within(0..dim, row * dim));
    for (name, rows) in [("distinct rows", &base), ("half of the rows equal", &half)] {
        let encoding = Encoding::Pq { sub_quantizers: dim / 4, bits, rotate: false };
        let times = Times::collect(0, repeat.min(3), || {
            let mut index = IvfIndex::<f32>::builder(dim, lists).encoding(encoding).device(device).build()?;
            Outcome::Ok(timed(|| index.train(rows))?.1)
        })?;
        add(format!("train pq{} {n}x{dim} lists={lists} {name}", dim / 4), times, true)?;
    }
    Ok(())
}
