//! What SIMD and threads each bring to inverted-file search on the CPU: the same search four times, as one table.
//!
//! `plain` runs on one thread with what every processor of its kind has, `simd` with the widest instructions that this one
//! has, `parallel` on all threads without those, `both` with both. All four give the same bits, which is checked.

use rayon::{ThreadPool, ThreadPoolBuilder};
use warpann::ivf::IvfIndex;
use warpann::{Device, Element, NONE, Neighbors, SearchOptions};
use warpann_measure::Times;

use crate::ivf::{Coding, Source, Vectors, Work, count, with_vectors};
use crate::machine::Machine;
use crate::record::{Measured, Record, print};
use crate::vectors::recall;
use crate::{Common, Failure, Outcome};

/// Arguments of `levels`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    source: Source,
    /// What is kept of a vector: flat, f16, sq8, or pq and the bytes of its code.
    #[arg(long, value_delimiter = ',', default_value = "flat,pq16,pq32")]
    encodings: Vec<Coding>,
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

/// Measures the levels; true if they agree.
pub fn run(args: &Args) -> Outcome<bool> {
    let machine = Machine::open(Device::Cpu, args.common.quick)?;
    let threads = |number| ThreadPoolBuilder::new().num_threads(number).build().map_err(Failure::Threads);
    let grid = Grid { args, machine: &machine, one: threads(1)?, all: threads(0)? };
    with_vectors(&args.source, &args.common, Device::Cpu, &grid)
}

struct Grid<'a> {
    args: &'a Args,
    machine: &'a Machine,
    one: ThreadPool,
    all: ThreadPool,
}

impl Work for Grid<'_> {
    fn run<T: Element>(&self, vectors: &Vectors<'_, T>) -> Outcome<bool> {
        let Self { args, machine, .. } = *self;
        let mut record = Record::open(&args.common, machine)?;
        let lists = if args.common.quick { 16 } else { args.lists };
        let quick = [Coding::FLAT, Coding::Pq(8)];
        let mut table = Vec::new();
        for &coding in if args.common.quick { &quick[..] } else { &args.encodings } {
            let case = format!("{} nq={} probes={}", vectors.case(coding, lists), vectors.count(), args.probes);
            let mut medians = Vec::new();
            for measured in self.levels(vectors, coding, lists, &case)? {
                medians.push(measured.times.median());
                record.add(measured)?;
            }
            table.push((case, medians));
        }
        print(format_args!("\n{}", side_by_side(&table)))?;
        Ok(record.all_verified())
    }
}

impl Grid<'_> {
    fn levels<T: Element>(
        &self,
        vectors: &Vectors<'_, T>,
        coding: Coding,
        lists: usize,
        case: &str,
    ) -> Outcome<Vec<Measured>> {
        let Args { k, probes, ref common, .. } = *self.args;
        let &Vectors { base, queries, dim, truth } = vectors;
        let options = SearchOptions::new().probes(probes);
        let slots = vectors.count() * k;
        let mut first: Option<Neighbors> = None;
        let mut rows = Vec::new();
        for (name, simd, parallel) in LEVELS {
            let builder = IvfIndex::<T>::builder(dim, lists).encoding(coding.encoding()).seed(1);
            let mut index = builder.device(Device::Cpu).simd(simd).build()?;
            index.train(base)?;
            index.add(base)?;
            let mut found = Neighbors { k, ids: vec![NONE; slots], distances: vec![0.0; slots] };
            let threads = if parallel { &self.all } else { &self.one };
            let search = || index.search_into(queries, k, &options, &mut found.ids, &mut found.distances);
            let times = threads.install(|| Times::measure(2, common.repeat.unwrap_or(5), search))?;
            let share = (vectors.count() as f64 * probes as f64 / lists as f64).min(1.0);
            let code_bytes = index.statistics().code_bytes as f64 * vectors.rows() as f64;
            rows.push(Measured {
                case: format!("{case} {name}"),
                k,
                times,
                memory_floor_ms: self.machine.floor_ms(share * code_bytes + size_of_val(queries) as f64),
                recall: recall(base, queries, dim, &found, truth),
                verified: first.as_ref().is_none_or(|first| same_bits(first, &found)),
                ..Measured::default()
            });
            first.get_or_insert(found);
        }
        Ok(rows)
    }
}

fn same_bits(a: &Neighbors, b: &Neighbors) -> bool {
    a.ids == b.ids && a.distances.iter().zip(&b.distances).all(|(a, b)| a.to_bits() == b.to_bits())
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
