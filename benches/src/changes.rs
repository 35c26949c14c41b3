//! Changes of a flat index, of inverted files and of a graph, searches right after them, and searches under filters.
//!
//! A change of one vector is made a thousand times; its row has the mean. Each change is followed by its opposite, so
//! the index keeps its size. A search under a filter is compared, to the bit, with one of an index that has only the
//! accepted vectors. A graph gets a tenth of its vectors in one addition, loses another tenth, and its recall is
//! compared with that of a new graph of the same vectors. An index of each kind gets a thousand other vectors in each
//! of some versions, as an `IndexWriter` makes them, with a search in each version: alone, and beside threads that
//! search for one query after the other.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rayon::ThreadPoolBuilder;
use warpann::ivf::Encoding;
use warpann::{FlatIndex, GraphIndex, Index, IndexWriter, IvfIndex, Kind, Metric, SearchOptions, recall};
use warpann_measure::{Searches, Times, timed};

use crate::ivf::filled;
use crate::record::{Measured, Record};
use crate::set::{exact, made};
use crate::vectors::same_bits;
use crate::{Failure, Outcome};

/// Arguments of `changes`.
#[derive(Debug, clap::Args)]
pub struct Args {
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
/// Threads that search while an index changes.
const READERS: usize = 8;
/// Time from the end of a change to the next one, beside readers.
const PAUSE: Duration = Duration::from_millis(20);
/// A prime number: the ids of changes all over an index are so many places apart, modulo its length.
const STEP: usize = 611_953;
/// Lists that a search of inverted files reads.
const PROBES: usize = 8;
/// Widths of the beam of searches in a graph.
const BEAMS: [usize; 3] = [24, 48, 96];
/// A filter accepts one of this number of vectors.
const ACCEPTED: [u64; 5] = [1, 2, 10, 100, 1_000];

/// Measures changes and filters.
pub fn run(args: &Args, record: &mut Record) -> Outcome {
    let sizes = (args.n as usize, args.dim as usize, args.queries as usize);
    let (n, dim, queries) = record.quick_or((2_000, 20, 20), sizes);
    let (base, queries) = made(n, queries, dim);
    let device = record.device();
    let mut index = exact(&base, dim, device)?;
    let mut job = Job { record, base: &base, queries: &queries, dim, kind: String::new() };
    job.single_changes(&mut index)?;
    job.batches_of_changes(&mut index)?;
    job.filters(&index)?;
    job.versions(index)?;
    for &encoding in &args.ivf {
        let lists = args.lists.unwrap_or((n as f64).sqrt() as usize).next_power_of_two().min(n / 4);
        let builder = IvfIndex::<f32>::builder(dim, lists).encoding(encoding).device(device);
        let mut index = filled(builder, &base)?;
        job.kind = format!(" ivf-{encoding} lists={lists} probes={PROBES}");
        job.single_changes(&mut index)?;
        job.batches_of_changes(&mut index)?;
        job.versions(index)?;
    }
    job.graph()
}

struct Job<'a> {
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
        self.record.add(Measured::new(case, k, times, bytes, verified))
    }

    /// The vectors with these ids.
    fn rows(&self, ids: &[u64]) -> Vec<f32> {
        ids.iter().flat_map(|&id| &self.base[id as usize * self.dim..][..self.dim]).copied().collect()
    }

    /// One vector out, and in again.
    fn single_changes(&mut self, index: &mut Index<impl Kind<Element = f32>>) -> Outcome {
        let (base, dim) = (self.base, self.dim);
        let n = base.len() / dim;
        let count = if self.record.machine.gpu.is_some() { 20 } else { BATCH };
        let ids: Vec<u64> = (0..count).map(|at| (at * 7_919 % n) as u64).collect();
        let row = |id: u64| &base[id as usize * dim..][..dim];
        let (mut removing, mut adding) = (Vec::new(), Vec::new());
        for _ in 0..self.record.repeat(5) {
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
        let new = || GraphIndex::<f32>::builder(dim).device(self.record.device()).seed(1).build();
        let mut changed = new()?;
        changed.add(&base[..(n - tenth) * dim])?;
        let adding = Times::measure(0, 1, || changed.add(&base[(n - tenth) * dim..]))?;
        let gone: Vec<u64> = (0..tenth as u64).map(|at| 10 * at + 3).collect();
        let removing = Times::measure(0, 1, || changed.remove(&gone))?;

        let left: Vec<u64> = (0..n as u64).filter(|id| gone.binary_search(id).is_err()).collect();
        let rows = self.rows(&left);
        let mut exact = FlatIndex::<f32>::new(dim, Metric::L2, self.record.device())?;
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
                let mut searches = Searches::new(index, queries, K, SearchOptions::new().beam(beam))?;
                let times = searches.times(self.record.repeat(5))?;
                let case = format!("changes {n}x{dim} f32 graph {name} beam={beam} nq={}", queries.len() / dim);
                let recall = recall(&searches.found.ids, K, &truth.ids, K, K);
                self.record.add(Measured::new(case, K, times, 0.0, true).recall(recall))?;
            }
        }
        drop(rebuilt);
        self.versions(changed)
    }

    /// Versions of an index, each with other vectors for a batch of ids all over it, and the first search of each; then
    /// the same [beside readers](Self::beside_readers).
    fn versions(&mut self, index: Index<impl Kind<Element = f32>>) -> Outcome {
        let (queries, dim, ids) = (self.queries, self.dim, index.ids());
        let batch = BATCH.min(ids.len() / 2);
        // Ids with equal distances would hit each of a graph's pivots, which changes of a program seldom do.
        let mut places: Vec<usize> = (0..batch).map(|at| (at + 1) * STEP % ids.len()).collect();
        places.sort_unstable();
        let scattered: Vec<u64> = places.into_iter().map(|place| ids[place]).collect();
        let (rows, options) = (self.rows(&scattered), SearchOptions::new().probes(PROBES));
        let (len, nq) = (index.len(), queries.len() / dim);
        let mut writer = IndexWriter::new(index);
        let (mut changing, mut searching, mut verified) = (Vec::new(), Vec::new(), true);
        // The first two versions allocate, and a graph counts its vectors.
        for version in 0..2 + self.record.repeat(20) {
            let scale = 1.0 - 1e-4 * (1 + version) as f32;
            let moved: Vec<f32> = rows.iter().map(|x| x * scale).collect();
            let changed = timed(|| writer.change(|index| index.upsert(&moved, &scattered)))?.1;
            let current = writer.current();
            let searched = timed(|| current.search_with(queries, K, &options))?.1;
            verified &= current.len() == len && scattered.iter().all(|&id| current.contains(id));
            if version >= 2 {
                changing.push(changed);
                searching.push(searched);
            }
        }
        let bytes = size_of_val(rows.as_slice()) as f64;
        self.add(&format!("upsert {batch} scattered, as a version"), 0, Times::new(changing), bytes, verified)?;
        self.add(&format!("search nq={nq}, first of a version"), K, Times::new(searching), 0.0, verified)?;
        self.beside_readers(&mut writer, &rows, &scattered)
    }

    /// Versions as above, which half of the processors make, beside threads that search for one query after the other;
    /// and these searches, also without changes.
    fn beside_readers(
        &mut self,
        writer: &mut IndexWriter<Index<impl Kind<Element = f32>>>,
        rows: &[f32],
        ids: &[u64],
    ) -> Outcome {
        let (queries, dim, options) = (self.queries, self.dim, SearchOptions::new().probes(PROBES));
        let changers = ThreadPoolBuilder::new().num_threads(rayon::current_num_threads().div_ceil(2)).build();
        let changers = changers.map_err(Failure::Threads)?;
        let (reader, over) = (writer.reader(), AtomicBool::new(false));
        // Loads the kernels of a search for one query.
        reader.current().search_one(&queries[..dim], K, &options)?;
        let read = |number: usize| -> warpann::Result<Vec<f64>> {
            let mut times = Vec::new();
            for query in queries.chunks_exact(dim).cycle().skip(number) {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                let (found, time) = timed(|| reader.current().search_one(query, K, &options))?;
                times.push(if found.ids.len() == K { time } else { f64::NAN });
            }
            Ok(times)
        };
        let beside = |work: &mut dyn FnMut() -> warpann::Result<()>| -> warpann::Result<Times> {
            over.store(false, Ordering::Relaxed);
            thread::scope(|scope| {
                let readers: Vec<_> = (0..READERS).map(|number| scope.spawn(move || read(number))).collect();
                let done = work();
                over.store(true, Ordering::Relaxed);
                let times = readers
                    .into_iter()
                    .map(|reader| reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
                let times: Vec<Vec<f64>> = times.collect::<warpann::Result<_>>()?;
                done.map(|()| Times::new(times.concat()))
            })
        };
        let repeat = self.record.repeat(40);
        let rest = beside(&mut || {
            thread::sleep(repeat as u32 * PAUSE);
            Ok(())
        })?;
        let (mut changing, mut in_all) = (Vec::new(), Vec::new());
        let busy = beside(&mut || {
            for version in 0..repeat {
                let scale = 1.0 + 1e-4 * (1 + version) as f32;
                let moved: Vec<f32> = rows.iter().map(|x| x * scale).collect();
                let start = Instant::now();
                let milliseconds = || start.elapsed().as_secs_f64() * 1e3;
                // A search brings the version to the device before a reader does.
                let changed = changers.install(|| {
                    writer.change(|index| {
                        index.upsert(&moved, ids)?;
                        let changed = milliseconds();
                        index.search_with(&queries[..dim], K, &options).map(|_| changed)
                    })
                })?;
                changing.push(changed);
                in_all.push(milliseconds());
                thread::sleep(PAUSE);
            }
            Ok(())
        })?;
        let bytes = size_of_val(rows) as f64;
        let case = format!("upsert {} scattered beside {READERS} readers", ids.len());
        self.add(&case, 0, Times::new(changing), bytes, true)?;
        self.add(&format!("{case}, and a search"), 0, Times::new(in_all), bytes, true)?;
        for (name, times) in [("at rest", rest), ("beside changes", busy)] {
            let (verified, tail) = (times.milliseconds().iter().all(|time| time.is_finite()), times.percentile(0.999));
            self.add(&format!("search nq=1 by {READERS} readers {name}"), K, times, 0.0, verified)?;
            self.add(
                &format!("search nq=1 by {READERS} readers {name} p99.9"),
                K,
                Times::new(vec![tail]),
                0.0,
                verified,
            )?;
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
        let bytes = size_of_val(base) as f64;
        let options = SearchOptions::new().probes(PROBES);
        let nq = queries.len() / dim;

        let mut searches = Searches::new(index, queries, K, options)?;
        let times = searches.times(self.record.repeat(20))?;
        let expected = searches.found;
        self.add(&format!("search nq={nq}"), K, times, bytes, true)?;
        for (what, ids) in [("spread", spread), ("last", last.collect())] {
            let rows = self.rows(&ids);
            let (mut removing, mut adding) = (Vec::new(), Vec::new());
            for _ in 0..self.record.repeat(10) {
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
            let mut searches = Searches::new(index, queries, K, SearchOptions::new().filter(&filter))?;
            let times = searches.times(self.record.repeat(20))?;
            let ids: Vec<u64> = index.ids().into_iter().filter(|id| id % one_of == 0).collect();
            let rows = self.rows(&ids);
            let mut accepted = FlatIndex::<f32>::new(dim, Metric::L2, self.record.device())?;
            accepted.add_with_ids(&rows, &ids)?;
            let verified = same_bits(&searches.found, &accepted.search(queries, K)?);
            let bytes = size_of_val(rows.as_slice()) as f64;
            self.add(&format!("search nq={nq} filter=1/{one_of}"), K, times, bytes, verified)?;
        }
        Ok(())
    }
}
