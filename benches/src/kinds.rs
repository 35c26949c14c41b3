//! Comparison of the kinds of indexes on one data set: exact, inverted files of vectors and of codes, a graph, and, on
//! the CPU, the graph (HNSW) and the tree (KD-tree) of other crates. Of each: what building took and what the index
//! keeps, the share of the true neighbours found at k = 1, 10 and 100, queries per second in one batch, and the time of
//! a single query.
//!
//! A row is right (`verified`) if, for a few queries of the batch, no vector comes twice, distances ascend, and each is
//! the float64 distance from the vector (from codes: not checked, part `ivf` does); exact kinds must give the nearest.

use warpann::ivf::{Encoding, IvfIndex};
use warpann::{Element, GraphIndex, Index, Kind, Neighbors, SearchOptions};
use warpann_measure::{Times, Work, timed};

use crate::ivf::{case, encoding, filled};
use crate::record::{Library, Measured, Record, print};
use crate::set::{Measurement, Vectors, count, exact};
use crate::vectors::{Check, Truth, all_right};
use crate::{Failure, Outcome};

/// Arguments of `kinds`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Encodings of the inverted files: flat, f16, sq8, or pq and the bytes of its code.
    #[arg(long, value_delimiter = ',', default_value = "flat,pq32", value_parser = encoding)]
    encodings: Vec<Encoding>,
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

/// The name, the build time and the size of an index, before it is searched.
struct Built {
    case: String,
    peer: Option<Library>,
    milliseconds: f64,
    bytes: Option<u64>,
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

impl Measurement for Args {
    fn run<T: Element>(&self, vectors: &Vectors<'_, T>, record: &mut Record) -> Outcome {
        let mut table = Table { args: self, vectors, truths: vectors.truths(&CHECKED), record, lines: Vec::new() };
        // First, while the process has freed little memory: what the peers take is seen by its growth.
        if table.record.machine.gpu.is_none() {
            table.peers()?;
        }
        table.flat()?;
        for &encoding in &self.encodings {
            table.inverted(encoding)?;
        }
        table.graph()?;
        print(format_args!("\n{}", printed(&table.lines)))
    }
}

/// Rows of the record, and the table that grows with them.
struct Table<'a, T: Element> {
    args: &'a Args,
    vectors: &'a Vectors<'a, T>,
    truths: Vec<Truth>,
    record: &'a mut Record,
    lines: Vec<Line>,
}

impl<T: Element> Table<'_, T> {
    #[cfg(feature = "peers")]
    fn peers(&mut self) -> Outcome {
        use warpann::NONE;

        use crate::peers::{self, Peer};

        let (dim, Args { links, ef_construction, .. }) = (self.vectors.dim, self.args);
        let wide = |values: &[T]| -> Vec<f32> { values.iter().map(|x| x.to_f32()).collect() };
        let (base, queries) = (wide(self.vectors.base), wide(self.vectors.queries));
        let shape = self.vectors.shape();
        let search = |peer: &dyn Peer, first: usize, count: usize, k: usize, effort: usize| {
            let (ids, distances) = (vec![NONE; count * k], vec![f32::INFINITY; count * k]);
            let mut found = Neighbors { k, ids, distances };
            peers::search(peer, &queries[first * dim..(first + count) * dim], dim, effort, &mut found);
            Ok(found)
        };

        let case = format!("hnsw {shape} links={links} ef-construction={ef_construction}");
        let (graph, built) =
            self.built(case, Some(peers::HNSW), || Ok(peers::hnsw(&base, dim, *links, *ef_construction)))?;
        self.add(&built)?;
        for &ef in &self.args.ef {
            let all = |first, count, k| search(&graph, first, count, k, ef);
            self.searched(&built, &format!(" ef={ef}"), usize::MAX, Some(Truth::admits), all)?;
        }
        drop(graph);

        let case = format!("kd-tree {shape}");
        let (tree, built) = self.built(case, Some(peers::KD_TREE), || Ok(peers::kd_tree(&base, dim)))?;
        let Some(tree) = tree else { return print(format_args!("kd-tree: no instance for dimension {dim}\n")) };
        self.add(&built)?;
        let all = |first, count, k| search(tree.as_ref(), first, count, k, 0);
        self.searched(&built, "", self.args.tree_queries, Some(Truth::confirms), all)
    }

    #[cfg(not(feature = "peers"))]
    fn peers(&mut self) -> Outcome {
        print(format_args!(
            "hnsw and kd-tree: not in this build; cargo build --release -p warpann-benches --features peers\n"
        ))
    }

    fn flat(&mut self) -> Outcome {
        let &Vectors { base, queries, dim, .. } = self.vectors;
        let device = self.record.device();
        let (index, built) = self.built(format!("exact {}", self.vectors.shape()), None, || {
            let index = exact(base, dim, device)?;
            // The image on a GPU is made by the first search.
            index.search(&queries[..dim], 1)?;
            Ok(index)
        })?;
        let built = self.counted(built, size_of_val(base) as u64)?;
        self.index(&built, "", Some(Truth::confirms), &index, &SearchOptions::new())
    }

    fn inverted(&mut self, encoding: Encoding) -> Outcome {
        let &Vectors { base, queries, dim, .. } = self.vectors;
        let lists = self.record.quick_or(16, self.args.lists);
        let builder = IvfIndex::<T>::builder(dim, lists).encoding(encoding).seed(1);
        let builder = builder.device(self.record.device());
        let (index, built) = self.built(case(self.vectors, encoding, lists), None, || {
            let index = filled(builder, base)?;
            index.search_with(&queries[..dim], 1, &SearchOptions::new().probes(1))?;
            Ok(index)
        })?;
        let built = self.counted(built, index.statistics().bytes)?;
        // Distances of other encodings are those of codes.
        let check = (encoding == Encoding::Flat).then_some(Truth::admits as Check);
        for &probes in &self.args.probes {
            let options = SearchOptions::new().probes(probes);
            self.index(&built, &format!(" probes={probes}"), check, &index, &options)?;
        }
        Ok(())
    }

    fn graph(&mut self) -> Outcome {
        let &Vectors { base, dim, .. } = self.vectors;
        let case = format!("graph {} degree={}", self.vectors.shape(), self.args.degree);
        let builder = GraphIndex::<T>::builder(dim).degree(self.args.degree).seed(1).device(self.record.device());
        let build = || {
            let mut index = builder.clone().build()?;
            index.add(base)?;
            Ok(index)
        };
        // On a GPU the first build loads kernels; the scripts of the peers measure their second build too.
        if self.record.machine.gpu.is_some() {
            drop(build()?);
        }
        let (index, built) = self.built(case, None, build)?;
        let built = self.counted(built, index.statistics().host_bytes)?;
        for &beam in &self.args.beams {
            let options = SearchOptions::new().beam(beam);
            self.index(&built, &format!(" beam={beam}"), Some(Truth::admits), &index, &options)?;
        }
        Ok(())
    }

    /// Builds something; says how long that took, and by how much the memory in use has grown.
    fn built<I>(&self, case: String, peer: Option<Library>, build: impl FnOnce() -> Outcome<I>) -> Outcome<(I, Built)> {
        let before = self.record.machine.memory_in_use();
        let (index, milliseconds) = timed(build)?;
        let after = self.record.machine.memory_in_use();
        let bytes = before.zip(after).map(|(before, after)| after.saturating_sub(before));
        Ok((index, Built { case, peer, milliseconds, bytes }))
    }

    /// Records a build. On the CPU the index has counted its bytes.
    fn counted(&mut self, built: Built, bytes: u64) -> Outcome<Built> {
        let bytes = if self.record.machine.gpu.is_none() { Some(bytes) } else { built.bytes };
        let built = Built { bytes, ..built };
        self.add(&built)?;
        Ok(built)
    }

    fn add(&mut self, built: &Built) -> Outcome {
        let bytes = size_of_val(self.vectors.base) as f64;
        let stage = Measured::stage(format!("build {}", built.case), built.milliseconds, bytes);
        self.record.add(Measured { bytes: built.bytes, ..stage.by(built.peer) })
    }

    /// Measures searches in an index of ours.
    fn index<K: Kind<Element = T>>(
        &mut self,
        built: &Built,
        setting: &str,
        check: Option<Check>,
        index: &Index<K>,
        options: &SearchOptions<'_>,
    ) -> Outcome {
        let &Vectors { queries, dim, .. } = self.vectors;
        let all = |first: usize, count: usize, k| {
            index.search_with(&queries[first * dim..(first + count) * dim], k, options).map_err(Failure::from)
        };
        self.searched(built, setting, usize::MAX, check, all)
    }

    /// Measures `search(first query, queries, k)` on at most `limit` queries.
    fn searched(
        &mut self,
        built: &Built,
        setting: &str,
        limit: usize,
        check: Option<Check>,
        search: impl Fn(usize, usize, usize) -> Outcome<Neighbors>,
    ) -> Outcome {
        let count = self.vectors.count().min(limit);
        let mut line = Line {
            case: format!("{}{setting}", built.case),
            build_ms: built.milliseconds,
            bytes: built.bytes,
            recall: [None; DEPTHS.len()],
            latency_ms: 0.0,
            per_second: 0.0,
        };
        let dim = self.vectors.dim;
        let work = |queries: usize, k: usize| Work::of_queries(queries, queries * dim * size_of::<T>(), k);
        for (place, k) in DEPTHS.into_iter().enumerate() {
            let (times, found) = Times::with_result(2, self.record.repeat(3), || search(0, count, k))?;
            line.recall[place] = self.vectors.recall(&found);
            if k == LATENCY_K {
                line.per_second = 1e3 * count as f64 / times.median();
            }
            let right = check.is_none_or(|check| all_right(&self.truths, &found, check));
            let case = format!("{} nq={count}{setting}", built.case);
            let measured = Measured::new(case, k, times, work(count, k), right);
            self.record.add(measured.by(built.peer).recall(line.recall[place]))?;
        }
        for &batch in self.args.batches.iter().filter(|&&batch| batch < count) {
            let search = || search(0, batch, LATENCY_K).map(drop);
            let times = Times::measure(2, self.record.repeat(BATCH_RUNS), search)?;
            let case = format!("{} nq={batch}{setting}", built.case);
            self.record.add(Measured::new(case, LATENCY_K, times, work(batch, LATENCY_K), true).by(built.peer))?;
        }
        // One after the other, each another query.
        let mut queries = 0..count;
        let single = || search(queries.next().unwrap_or_default(), 1, LATENCY_K).map(drop);
        let times = Times::measure(0, count.min(LATENCY_QUERIES), single)?;
        line.latency_ms = times.median();
        self.lines.push(line);
        let case = format!("latency {}{setting}", built.case);
        self.record.add(Measured::new(case, LATENCY_K, times, work(1, LATENCY_K), true).by(built.peer))
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
