//! Comparison of the kinds of indexes on one data set: exact, inverted files of vectors and of codes, a graph, and, on the CPU, the graph
//! (HNSW) and the tree (KD-tree) of other crates. Of each: what building took and what the index keeps, the share of the true
//! neighbours found at k = 1, 10 and 100, queries per second in one batch, and the time of a single query.
//!
//! A row is right (`verified`) if, for a few queries of the batch, no vector comes twice, distances ascend, and each is the float64
//! distance from the vector (from codes: not checked, part `ivf` does); exact kinds must give the nearest.

#[cfg(feature = "peers")]
use rayon::prelude::*;
#[cfg(feature = "peers")]
use warpann::NONE;
use warpann::ivf::IvfIndex;
use warpann::{Element, FlatIndex, GraphIndex, Metric, Neighbors, SearchOptions, device::info};
use warpann_measure::{Times, timed};

use crate::ivf::{Coding, Source, Vectors, Work, count, with_vectors};
use crate::machine::Machine;
use crate::record::{Measured, Record, print};
use crate::vectors::{Truth, recall};
use crate::{Common, Failure, Outcome};

/// Arguments of `kinds`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    source: Source,
    /// What inverted files keep of a vector: flat, f16, sq8, or pq and the bytes of its code.
    #[arg(long, value_delimiter = ',', default_value = "flat,pq32")]
    encodings: Vec<Coding>,
    /// Lists of each inverted file.
    #[arg(long, default_value_t = 1024, value_parser = count)]
    lists: usize,
    /// Numbers of probed lists to measure.
    #[arg(long, value_delimiter = ',', default_value = "4,16,64", value_parser = count)]
    probes: Vec<usize>,
    /// Links of a vector in the graph.
    #[arg(long, default_value_t = 16, value_parser = count)]
    links: usize,
    /// Queue of the graph's construction.
    #[arg(long, default_value_t = 200, value_parser = count)]
    ef_construction: usize,
    /// Queue of a search in the graph; at least k.
    #[arg(long, value_delimiter = ',', default_value = "32,128,512", value_parser = count)]
    ef: Vec<usize>,
    /// Largest number of edges of a vector in our graph.
    #[arg(long, default_value_t = 32, value_parser = count)]
    degree: usize,
    /// Widths of the beam in our graph to measure.
    #[arg(long, value_delimiter = ',', default_value = "16,32,64,128,256", value_parser = count)]
    beams: Vec<usize>,
    /// Sizes of small batches to measure as well, at k = 10.
    #[arg(long, value_delimiter = ',', value_parser = count)]
    batches: Vec<usize>,
    /// Queries in the KD-tree, which reads nearly all vectors for each where there are many dimensions.
    #[arg(long, default_value_t = 100, value_parser = count)]
    tree_queries: usize,
}

/// Depths of the results for which recall is measured.
const DEPTHS: [usize; 3] = [1, 10, 100];
/// Results of a single query.
const LATENCY_K: usize = 10;
/// Runs of a small batch.
const BATCH_RUNS: usize = 50;
/// Single queries that are timed.
const LATENCY_QUERIES: usize = 200;
/// Queries whose answers are compared with float64, if the batch has them.
const CHECKED: [usize; 3] = [0, 15, 99];

/// Measures all kinds; true if every result was right.
pub fn run(args: &Args) -> Outcome<bool> {
    let machine = Machine::open(args.common.device, args.common.quick)?;
    with_vectors(&args.source, &args.common, machine.device(), &Grid { args, machine: &machine })
}

struct Grid<'a> {
    args: &'a Args,
    machine: &'a Machine,
}

/// What there is to know of an index before it is searched.
struct Built {
    case: String,
    peer: Option<(&'static str, &'static str)>,
    milliseconds: f64,
    bytes: Option<u64>,
}

/// What a search must be for its row to be right.
#[derive(Clone, Copy, PartialEq)]
enum Check {
    Exact,
    Plausible,
    /// Distances are those of codes.
    Unchecked,
}

/// A line of the table.
struct Line {
    case: String,
    build_ms: f64,
    bytes: Option<u64>,
    recall: [Option<f64>; DEPTHS.len()],
    latency_ms: f64,
    per_second: f64,
}

impl Work for Grid<'_> {
    fn run<T: Element>(&self, vectors: &Vectors<'_, T>) -> Outcome<bool> {
        let checked = CHECKED.into_iter().filter(|&query| query < vectors.count());
        let truths = checked.map(|query| Truth::of(vectors.base, vectors.queries, vectors.dim, query)).collect();
        let record = Record::open(&self.args.common, self.machine)?;
        let mut table = Table { grid: self, vectors, truths, record, lines: Vec::new() };
        // First, while the process has freed little memory: what the peers take is seen by its growth.
        if self.machine.gpu.is_none() {
            self.peers(&mut table)?;
        }
        self.flat(&mut table)?;
        for &coding in &self.args.encodings {
            self.inverted(&mut table, coding)?;
        }
        self.graph(&mut table)?;
        print(format_args!("\n{}", printed(&table.lines)))?;
        Ok(table.record.all_verified())
    }
}

impl Grid<'_> {
    #[cfg(feature = "peers")]
    fn peers<T: Element>(&self, table: &mut Table<'_, T>) -> Outcome {
        use crate::peers::{self, Peer};

        let &Vectors { base, queries, dim, .. } = table.vectors;
        let wide = |values: &[T]| -> Vec<f32> { values.iter().map(|x| x.to_f32()).collect() };
        let (base, queries) = (wide(base), wide(queries));
        let shape = format!("{}x{dim} {}", table.vectors.rows(), T::TYPE.name());
        let search = |peer: &dyn Peer, first: usize, count: usize, k: usize, effort: usize| {
            let rows = queries[first * dim..(first + count) * dim].par_chunks_exact(dim);
            let found: Vec<_> = rows.map(|query| peer.nearest(query, k, effort)).collect();
            let (mut ids, mut distances) = (vec![NONE; count * k], vec![f32::INFINITY; count * k]);
            for (query, found) in found.into_iter().enumerate() {
                for (slot, (id, distance)) in found.into_iter().enumerate() {
                    (ids[query * k + slot], distances[query * k + slot]) = (id, distance);
                }
            }
            Neighbors { k, ids, distances }
        };

        let (links, ef_construction) = (self.args.links, self.args.ef_construction);
        let case = format!("hnsw {shape} links={links} ef-construction={ef_construction}");
        let (graph, built) =
            self.built(case, Some(peers::HNSW), || Ok(peers::hnsw(&base, dim, links, ef_construction)))?;
        table.built(&built)?;
        for &ef in &self.args.ef {
            let all = |first, count, k| Ok(search(&graph, first, count, k, ef));
            table.searched(&built, &format!(" ef={ef}"), usize::MAX, Check::Plausible, all)?;
        }
        drop(graph);

        let case = format!("kd-tree {shape}");
        let (tree, built) = self.built(case, Some(peers::KD_TREE), || Ok(peers::kd_tree(&base, dim)))?;
        let Some(tree) = tree else { return print(format_args!("kd-tree: no instance for dimension {dim}\n")) };
        table.built(&built)?;
        let all = |first, count, k| Ok(search(tree.as_ref(), first, count, k, 0));
        table.searched(&built, "", self.args.tree_queries, Check::Exact, all)
    }

    #[cfg(not(feature = "peers"))]
    fn peers<T: Element>(&self, _: &mut Table<'_, T>) -> Outcome {
        print(format_args!(
            "hnsw and kd-tree: not in this build; cargo build --release -p warpann-benches --features peers\n"
        ))
    }

    fn flat<T: Element>(&self, table: &mut Table<'_, T>) -> Outcome {
        let &Vectors { base, queries, dim, .. } = table.vectors;
        let case = format!("exact {}x{dim} {}", table.vectors.rows(), T::TYPE.name());
        let (index, mut built) = self.built(case, None, || {
            let mut index = FlatIndex::<T>::new(dim, Metric::L2, self.machine.device())?;
            index.add(base)?;
            // The image on a GPU is made by the first search.
            index.search(&queries[..dim], 1)?;
            Ok(index)
        })?;
        if self.machine.gpu.is_none() {
            built.bytes = Some(size_of_val(base) as u64);
        }
        table.built(&built)?;
        let all = |first: usize, count: usize, k| {
            index.search(&queries[first * dim..(first + count) * dim], k).map_err(Failure::from)
        };
        table.searched(&built, "", usize::MAX, Check::Exact, all)
    }

    fn inverted<T: Element>(&self, table: &mut Table<'_, T>, coding: Coding) -> Outcome {
        let &Vectors { base, queries, dim, .. } = table.vectors;
        let lists = if self.args.common.quick { 16 } else { self.args.lists };
        let (index, mut built) = self.built(table.vectors.case(coding, lists), None, || {
            let builder = IvfIndex::<T>::builder(dim, lists).encoding(coding.encoding());
            let mut index = builder.device(self.machine.device()).seed(1).build()?;
            index.train(base)?;
            index.add(base)?;
            index.search_with(&queries[..dim], 1, &SearchOptions::new().probes(1))?;
            Ok(index)
        })?;
        if self.machine.gpu.is_none() {
            built.bytes = Some(index.statistics().bytes);
        }
        table.built(&built)?;
        let check = if coding == Coding::FLAT { Check::Plausible } else { Check::Unchecked };
        for &probes in &self.args.probes {
            let options = SearchOptions::new().probes(probes);
            let all = |first: usize, count: usize, k| {
                index.search_with(&queries[first * dim..(first + count) * dim], k, &options).map_err(Failure::from)
            };
            table.searched(&built, &format!(" probes={probes}"), usize::MAX, check, all)?;
        }
        Ok(())
    }

    fn graph<T: Element>(&self, table: &mut Table<'_, T>) -> Outcome {
        let &Vectors { base, queries, dim, .. } = table.vectors;
        let case = format!("graph {}x{dim} {} degree={}", table.vectors.rows(), T::TYPE.name(), self.args.degree);
        let build = || {
            let builder = GraphIndex::<T>::builder(dim).degree(self.args.degree).seed(1);
            let mut index = builder.device(self.machine.device()).build()?;
            index.add(base)?;
            Ok(index)
        };
        // On a GPU the first build loads kernels; the scripts of the peers measure their second build too.
        if self.machine.gpu.is_some() {
            drop(build()?);
        }
        let (index, mut built) = self.built(case, None, build)?;
        let statistics = index.statistics();
        if self.machine.gpu.is_none() {
            built.bytes = Some(statistics.host_bytes);
        }
        table.built(&built)?;
        for &beam in &self.args.beams {
            let options = SearchOptions::new().beam(beam);
            let all = |first: usize, count: usize, k| {
                index.search_with(&queries[first * dim..(first + count) * dim], k, &options).map_err(Failure::from)
            };
            table.searched(&built, &format!(" beam={beam}"), usize::MAX, Check::Plausible, all)?;
        }
        Ok(())
    }

    /// Builds something; says how long that took, and by how much the memory in use has grown.
    fn built<I>(
        &self,
        case: String,
        peer: Option<(&'static str, &'static str)>,
        build: impl FnOnce() -> Outcome<I>,
    ) -> Outcome<(I, Built)> {
        let before = self.memory_in_use();
        let (index, milliseconds) = timed(build)?;
        let bytes = before.zip(self.memory_in_use()).map(|(before, after)| after.saturating_sub(before));
        Ok((index, Built { case, peer, milliseconds, bytes }))
    }

    /// Bytes in use on the GPU, or by this process, where the system tells.
    fn memory_in_use(&self) -> Option<u64> {
        if let Some(gpu) = self.machine.gpu {
            let info = info::devices().ok()?.into_iter().nth(gpu)?;
            return info.memory_free.map(|free| info.memory_total - free);
        }
        let status = std::fs::read_to_string("/proc/self/status").ok()?;
        let kilobytes = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?.trim().strip_suffix(" kB")?;
        kilobytes.trim().parse::<u64>().ok().map(|kilobytes| kilobytes << 10)
    }
}

/// Rows of the record, and the table that grows with them.
struct Table<'a, T: Element> {
    grid: &'a Grid<'a>,
    vectors: &'a Vectors<'a, T>,
    truths: Vec<Truth>,
    record: Record,
    lines: Vec<Line>,
}

impl<T: Element> Table<'_, T> {
    fn built(&mut self, built: &Built) -> Outcome {
        self.record.add(Measured {
            peer: built.peer,
            bytes: built.bytes,
            ..Measured::stage(
                format!("build {}", built.case),
                built.milliseconds,
                self.grid.machine.floor_ms(size_of_val(self.vectors.base) as f64),
            )
        })
    }

    /// Measures `search(first query, queries, k)` on at most `limit` queries.
    fn searched(
        &mut self,
        built: &Built,
        setting: &str,
        limit: usize,
        check: Check,
        search: impl Fn(usize, usize, usize) -> Outcome<Neighbors>,
    ) -> Outcome {
        let &Vectors { base, queries, dim, truth } = self.vectors;
        let count = self.vectors.count().min(limit);
        let repeat = self.grid.args.common.repeat;
        let mut line = Line {
            case: format!("{}{setting}", built.case),
            build_ms: built.milliseconds,
            bytes: built.bytes,
            recall: [None; DEPTHS.len()],
            latency_ms: 0.0,
            per_second: 0.0,
        };
        let floor =
            |queries: usize, k: usize| self.grid.machine.floor_ms((queries * (dim * size_of::<T>() + 12 * k)) as f64);
        for (place, k) in DEPTHS.into_iter().enumerate() {
            let mut found = Neighbors { k, ids: Vec::new(), distances: Vec::new() };
            let times = Times::measure(2, repeat.unwrap_or(3), || {
                found = search(0, count, k)?;
                Outcome::Ok(())
            })?;
            line.recall[place] = recall(base, queries, dim, &found, truth);
            if k == LATENCY_K {
                line.per_second = 1e3 * count as f64 / times.median();
            }
            let verified = self.truths.iter().filter(|truth| truth.query() < count).all(|truth| {
                let (ids, distances) = found.row(truth.query());
                match check {
                    Check::Exact => truth.confirms(ids, distances),
                    Check::Plausible => truth.admits(ids, distances),
                    Check::Unchecked => true,
                }
            });
            self.record.add(Measured {
                peer: built.peer,
                case: format!("{} nq={count}{setting}", built.case),
                k,
                times,
                memory_floor_ms: floor(count, k),
                recall: line.recall[place],
                verified,
                ..Measured::default()
            })?;
        }
        for &batch in self.grid.args.batches.iter().filter(|&&batch| batch < count) {
            let times = Times::measure(2, repeat.unwrap_or(BATCH_RUNS), || search(0, batch, LATENCY_K).map(drop))?;
            self.record.add(Measured {
                peer: built.peer,
                case: format!("{} nq={batch}{setting}", built.case),
                k: LATENCY_K,
                times,
                memory_floor_ms: floor(batch, LATENCY_K),
                verified: true,
                ..Measured::default()
            })?;
        }
        // One after the other, each another query.
        let mut queries = 0..count;
        let single = || search(queries.next().unwrap_or_default(), 1, LATENCY_K).map(drop);
        let times = Times::measure(0, count.min(LATENCY_QUERIES), single)?;
        line.latency_ms = times.median();
        self.lines.push(line);
        self.record.add(Measured {
            peer: built.peer,
            case: format!("latency {}{setting}", built.case),
            k: LATENCY_K,
            times,
            memory_floor_ms: floor(1, LATENCY_K),
            verified: true,
            ..Measured::default()
        })
    }
}

fn printed(lines: &[Line]) -> String {
    let mut text = format!(
        "{:<64} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>11}",
        "kind", "build s", "MB", "recall@1", "@10", "@100", "p50 ms", "queries/s"
    );
    for Line { case, build_ms, bytes, recall, latency_ms, per_second } in lines {
        let megabytes = bytes.map_or_else(|| "-".into(), |bytes| format!("{:.1}", bytes as f64 / 1e6));
        text += &format!("\n{case:<64} {:>9.2} {megabytes:>9}", build_ms / 1e3);
        for recall in recall {
            text += &format!(" {:>9}", recall.map_or_else(|| "-".into(), |recall| format!("{recall:.4}")));
        }
        text += &format!(" {latency_ms:>9.3} {per_second:>11.0}");
    }
    text + "\n"
}
