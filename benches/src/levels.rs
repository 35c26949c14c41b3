//! The gain by SIMD and by threads in inverted-file search on the CPU: the same search four times, as one table.
//!
//! `plain` runs on one thread with what every processor of its kind has, `simd` with the widest instructions that this
//! one has, `parallel` on all threads without those, `both` with both. All four give the same bits, which is checked.

use rayon::ThreadPoolBuilder;
use warpann::ivf::{Encoding, IvfIndex};
use warpann::{Element, Neighbors, SearchOptions};
use warpann_measure::Searches;

use crate::ivf::{case, encoding, filled, pq, probed_bytes};
use crate::record::{Measured, Record, print};
use crate::set::{Measurement, Vectors, count};
use crate::vectors::same_bits;
use crate::{Failure, Outcome};

/// Arguments of `levels`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Encodings of the vectors: flat, f16, sq8, pq and the bytes of its code, or bits and those of a component.
    #[arg(long, value_delimiter = ',', default_value = "flat,pq16,pq32", value_parser = encoding)]
    encodings: Vec<Encoding>,
    /// Lists of each index.
    #[arg(long, default_value_t = 1024, value_parser = count)]
    lists: usize,
    /// Number of probed lists.
    #[arg(long, default_value_t = 16, value_parser = count)]
    probes: usize,
    /// Number of neighbours per query.
    #[arg(long, default_value_t = 10, value_parser = count)]
    k: usize,
}

/// Name, wide instructions, all threads.
const LEVELS: [(&str, bool, bool); 4] =
    [("plain", false, false), ("simd", true, false), ("parallel", false, true), ("both", true, true)];

impl Measurement for Args {
    fn run<T: Element>(&self, vectors: &Vectors<'_, T>, record: &mut Record) -> Outcome {
        let &Args { k, probes, .. } = self;
        let threads = |number| ThreadPoolBuilder::new().num_threads(number).build().map_err(Failure::Threads);
        let (one, all) = (threads(1)?, threads(0)?);
        let lists = record.quick_or(16, self.lists);
        let mut table = Vec::new();
        for &encoding in record.quick_or(&[Encoding::Flat, pq(8)][..], &self.encodings) {
            let case = format!("{} nq={} probes={probes}", case(vectors, encoding, lists), vectors.count());
            let (mut medians, mut first) = (Vec::new(), None::<Neighbors>);
            for (name, simd, parallel) in LEVELS {
                let builder = IvfIndex::<T>::builder(vectors.dim, lists).encoding(encoding).seed(1);
                let index = filled(builder.device(record.device()).simd(simd), vectors.base)?;
                let mut searches = Searches::new(&index, vectors.queries, k, SearchOptions::new().probes(probes))?;
                let threads = if parallel { &all } else { &one };
                let times = threads.install(|| searches.times(record.repeat(5)))?;
                medians.push(times.median());
                let bytes = probed_bytes(&index, vectors.count() as f64, probes) + size_of_val(vectors.queries) as f64;
                let verified = first.as_ref().is_none_or(|first| same_bits(first, &searches.found));
                let measured = Measured::new(format!("{case} {name}"), k, times, bytes, verified);
                record.add(measured.recall(vectors.recall(&searches.found)))?;
                first.get_or_insert(searches.found);
            }
            table.push((case, medians));
        }
        print(format_args!("\n{}", side_by_side(&table)))
    }
}

/// A line a case: milliseconds of each level, and how many times faster than the first it is.
fn side_by_side(table: &[(String, Vec<f64>)]) -> String {
    let mut text = format!("{:<58}", "case: median ms (times faster than plain)");
    for (name, ..) in LEVELS {
        text += &format!(" {name:>18}");
    }
    for (case, medians) in table {
        text += &format!("\n{case:<58}");
        for median in medians {
            text += &format!(" {:>18}", format!("{median:.2} ({:.2}x)", medians[0] / median));
        }
    }
    text + "\n"
}
