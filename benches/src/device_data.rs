//! Exact search, inverted files and walks in a graph from device memory to device memory, compared with the same search from host memory and back.
//!
//! Batches, and queries one at a time: by the ordinary call, by a call that enqueues the work on a stream, and by a launch of a captured
//! graph. Each time includes the wait for the result. The rows `in a row` are the time of a search when a hundred follow each other without
//! a wait. Every result is compared, to the bit, with that of the ordinary call.

use std::ffi::c_char;
use std::ptr::null_mut;

use warpann::DeviceWorkspace;
use warpann::cust::context::Context;
use warpann::cust::memory::{CopyDestination, DeviceBuffer};
use warpann::cust::stream::{Stream, StreamFlags};
use warpann::cust::{self, CudaFlags, sys};
use warpann::recall;
use warpann::views::{DeviceNeighbors, DeviceVectors};
use warpann::{Element, Error, FlatIndex, GraphIndex, IvfIndex, Metric, Neighbors, NoDeviceReason, SearchOptions};
use warpann_measure::Times;

use crate::ivf::{Source, Vectors, Work, with_vectors};
use crate::machine::Machine;
use crate::record::{Measured, Record};
use crate::{Common, Failure, Outcome};

/// Arguments of `device-data`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    source: Source,
    /// Widths of the beam in a graph of all vectors.
    #[arg(long, value_delimiter = ',', default_value = "32,64,128")]
    beams: Vec<usize>,
    /// Numbers of lists that a search of an inverted file of all vectors reads.
    #[arg(long, value_delimiter = ',', default_value = "8,32,128")]
    probes: Vec<usize>,
    /// Number of lists of the inverted file.
    #[arg(long, default_value_t = 4_096, value_parser = clap::value_parser!(u32).range(1..))]
    lists: u32,
    /// Number of edges of a node of the graph.
    #[arg(long, default_value_t = 32)]
    degree: usize,
}

/// Number of neighbours of a query.
const K: usize = 10;
/// Number of queries that are searched one at a time: walks differ in length.
const SINGLE: usize = 50;
/// Number of searches that follow each other without a wait.
const IN_A_ROW: usize = 100;

/// Measures searches of the whole base, of a tenth of it and of a hundredth. Returns true if every result was right.
pub fn run(args: &Args) -> Outcome<bool> {
    let machine = Machine::open(args.common.device, args.common.quick)?;
    let Some(gpu) = machine.gpu else {
        return Err(Error::NoDevice { reason: NoDeviceReason::NoDriver }.into());
    };
    cust::init(CudaFlags::empty())?;
    // The primary context, in which the library works.
    let _context = Context::new(cust::device::Device::get_device(gpu as u32)?)?;
    with_vectors(&args.source, &args.common, machine.device(), &Grid { args, machine: &machine })
}

struct Grid<'a> {
    args: &'a Args,
    machine: &'a Machine,
}

impl Work for Grid<'_> {
    fn run<T: Element>(&self, vectors: &Vectors<'_, T>) -> Outcome<bool> {
        let Grid { args, machine } = *self;
        let (base, queries, dim, n) = (vectors.base, vectors.queries, vectors.dim, vectors.rows());
        let mut record = Record::open(&args.common, machine)?;
        for rows in [n, n / 10, n / 100] {
            let mut index = FlatIndex::<T>::new(dim, Metric::L2, machine.device())?;
            index.add(&base[..rows * dim])?;
            let batches: &[usize] = if rows == n { &[queries.len() / dim, 1] } else { &[1] };
            for &batch in batches {
                let (index, truth) = (Searched::Flat(&index), None);
                Job { args, machine, record: &mut record, index, queries, batch, truth }.measure()?;
            }
            if rows == n {
                let truth = index.search(queries, K)?;
                let few = [queries.len() / dim, 100.min(queries.len() / dim), 1];
                let lists = (args.lists as usize).min(n / 40);
                let mut file = IvfIndex::<T>::builder(dim, lists).device(machine.device()).build()?;
                file.train(base)?;
                file.add(base)?;
                for (&probes, &batch) in
                    args.probes.iter().flat_map(|probes| few.iter().map(move |batch| (probes, batch)))
                {
                    let (index, truth) = (Searched::Ivf(&file, probes), Some(&truth));
                    Job { args, machine, record: &mut record, index, queries, batch, truth }.measure()?;
                }
                let mut graph =
                    GraphIndex::<T>::builder(dim).device(machine.device()).seed(1).degree(args.degree).build()?;
                graph.add(base)?;
                for (&beam, &batch) in args.beams.iter().flat_map(|beam| few.iter().map(move |batch| (beam, batch))) {
                    let (index, truth) = (Searched::Graph(&graph, beam), Some(&truth));
                    Job { args, machine, record: &mut record, index, queries, batch, truth }.measure()?;
                }
            }
        }
        Ok(record.all_verified())
    }
}

/// An index that is searched, and how.
#[derive(Clone, Copy)]
enum Searched<'a, T: Element> {
    Flat(&'a FlatIndex<T>),
    Ivf(&'a IvfIndex<T>, usize),
    Graph(&'a GraphIndex<T>, usize),
}

impl<T: Element> Searched<'_, T> {
    fn shape(self) -> (usize, usize) {
        match self {
            Searched::Flat(index) => (index.len(), index.dim()),
            Searched::Ivf(index, _) => (index.len(), index.dim()),
            Searched::Graph(index, _) => (index.len(), index.dim()),
        }
    }

    fn options(self) -> SearchOptions<'static> {
        match self {
            Searched::Flat(_) => SearchOptions::new(),
            Searched::Ivf(_, probes) => SearchOptions::new().probes(probes),
            Searched::Graph(_, beam) => SearchOptions::new().beam(beam),
        }
    }

    fn search_into(self, queries: &[T], ids: &mut [u64], distances: &mut [f32]) -> warpann::Result<()> {
        match self {
            Searched::Flat(index) => index.search_into(queries, K, &self.options(), ids, distances),
            Searched::Ivf(index, _) => index.search_into(queries, K, &self.options(), ids, distances),
            Searched::Graph(index, _) => index.search_into(queries, K, &self.options(), ids, distances),
        }
    }

    fn workspace(self, queries: usize) -> warpann::Result<DeviceWorkspace> {
        match self {
            Searched::Flat(index) => index.device_workspace(queries, K, &self.options()),
            Searched::Ivf(index, _) => index.device_workspace(queries, K, &self.options()),
            Searched::Graph(index, _) => index.device_workspace(queries, K, &self.options()),
        }
    }

    /// # Safety
    /// As [`FlatIndex::search_device`].
    unsafe fn search_device(
        self,
        workspace: &mut DeviceWorkspace,
        stream: &Stream,
        queries: &DeviceVectors<T>,
        results: &DeviceNeighbors,
    ) -> warpann::Result<()> {
        // SAFETY: the same contract.
        unsafe {
            match self {
                Searched::Flat(index) => index.search_device(workspace, stream.as_inner(), queries, results),
                Searched::Ivf(index, _) => index.search_device(workspace, stream.as_inner(), queries, results),
                Searched::Graph(index, _) => index.search_device(workspace, stream.as_inner(), queries, results),
            }
        }
    }
}

struct Job<'a, T: Element> {
    args: &'a Args,
    machine: &'a Machine,
    record: &'a mut Record,
    index: Searched<'a, T>,
    queries: &'a [T],
    /// Number of queries of a search.
    batch: usize,
    /// The true neighbours, if the search may miss some.
    truth: Option<&'a Neighbors>,
}

/// The times of a way to search, and whether the results were right.
struct Way {
    what: String,
    /// The times of all searches, ascending.
    times: Times,
    verified: bool,
}

impl<T: Element> Job<'_, T> {
    /// Measures all queries at once, or the first ones one at a time.
    fn measure(&mut self) -> Outcome {
        let dim = self.index.shape().1;
        let searches = if self.batch == 1 { SINGLE.min(self.queries.len() / dim) } else { 1 };
        let repeat = self.args.common.repeat.unwrap_or(20);
        let mut all: Vec<Way> = Vec::new();
        for queries in self.queries.chunks_exact(self.batch * dim).take(searches) {
            for (at, way) in measure(self.index, queries, repeat)?.into_iter().enumerate() {
                match all.get_mut(at) {
                    None => all.push(way),
                    Some(first) => {
                        first.times = Times::new([first.times.milliseconds(), way.times.milliseconds()].concat());
                        first.verified &= way.verified;
                    }
                }
            }
        }
        all.into_iter().try_for_each(|way| self.add(way, searches * self.batch))
    }

    /// Records a way. `searched` is the number of queries, all together.
    fn add(&mut self, way: Way, searched: usize) -> Outcome {
        let ((n, dim), count) = (self.index.shape(), self.batch);
        let (kind, read) = match self.index {
            Searched::Flat(_) => (String::new(), n + count),
            Searched::Ivf(index, probes) => (format!("ivf lists={} probes={probes} ", index.lists()), count),
            Searched::Graph(_, beam) => (format!("graph beam={beam} "), count),
        };
        let Way { what, times, verified } = way;
        let case = format!("device data {kind}{n}x{dim} {} nq={count} {what}", T::TYPE.name());
        let memory_floor_ms = self.machine.floor_ms((size_of::<T>() * dim * read) as f64);
        let recall = match self.truth {
            None => None,
            Some(truth) => {
                let (mut ids, mut distances) = (vec![0; searched * K], vec![0.0; searched * K]);
                self.index.search_into(&self.queries[..searched * dim], &mut ids, &mut distances)?;
                Some(recall(&ids, K, &truth.ids[..searched * K], K, K))
            }
        };
        self.record.add(Measured { case, k: K, times, memory_floor_ms, verified, recall, ..Measured::default() })
    }
}

/// Measures the search of these queries in every way.
fn measure<T: Element>(index: Searched<'_, T>, queries: &[T], repeat: usize) -> Outcome<Vec<Way>> {
    let dim = index.shape().1;
    let count = queries.len() / dim;
    let mut expected = Neighbors { k: K, ids: vec![0; count * K], distances: vec![0.0; count * K] };
    index.search_into(queries, &mut expected.ids, &mut expected.distances)?;
    let mut found = expected.clone();
    let times = Times::measure(2, repeat, || index.search_into(queries, &mut found.ids, &mut found.distances))?;
    let mut ways = vec![Way { what: "host to host".into(), times, verified: found == expected }];

    // A stream that waits for the default one, on which the buffers are filled.
    let stream = Stream::new(StreamFlags::DEFAULT, None)?;
    let there = DeviceBuffer::<u8>::from_slice(bytemuck::cast_slice(queries))?;
    let ids = DeviceBuffer::from_slice(&vec![0u64; count * K])?;
    let distances = DeviceBuffer::from_slice(&vec![0f32; count * K])?;
    let mut to = Destination { stream: &stream, ids, distances, expected, repeat };
    let results = DeviceNeighbors::of_slices(&mut to.ids, &mut to.distances)?;
    let mut workspace = index.workspace(count)?;
    let queries = DeviceVectors::<T>::new(there.as_device_ptr().as_raw(), count);
    let mut enqueue = || -> Outcome {
        // SAFETY: the buffers have these sizes, and outlive the wait for the stream.
        unsafe { index.search_device(&mut workspace, &stream, &queries, &results) }.map_err(Failure::from)
    };
    ways.extend(to.measure("device to device", &mut enqueue)?);
    let graph = Graph::capture(&stream, &mut enqueue)?;
    ways.extend(to.measure("device to device by a graph", &mut || graph.launch(&stream))?);
    Ok(ways)
}

/// Where results go on the device, and what they must be.
struct Destination<'a> {
    stream: &'a Stream,
    ids: DeviceBuffer<u64>,
    distances: DeviceBuffer<f32>,
    expected: Neighbors,
    repeat: usize,
}

impl Destination<'_> {
    /// Measures searches that `enqueue` puts on the stream: with a wait after each, and a hundred in a row.
    fn measure(&mut self, what: &str, enqueue: &mut dyn FnMut() -> Outcome) -> Outcome<[Way; 2]> {
        let times = Times::measure(2, self.repeat, || enqueue().and_then(|()| Ok(self.stream.synchronize()?)))?;
        let each = Way { what: what.into(), times, verified: self.is_right()? };
        let in_a_row = Times::measure(2, self.repeat.div_ceil(10), || {
            (0..IN_A_ROW).try_for_each(|_| enqueue())?;
            Outcome::Ok(self.stream.synchronize()?)
        })?;
        let times = in_a_row.divided(IN_A_ROW);
        let what = format!("{what}, in a row");
        Ok([each, Way { what, times, verified: self.is_right()? }])
    }

    /// Whether the results are right. Clears the ids, so that the next search must write its own.
    fn is_right(&mut self) -> Outcome<bool> {
        let found = (self.ids.as_host_vec()?, self.distances.as_host_vec()?);
        self.ids.copy_from(&vec![0; found.0.len()])?;
        Ok(found.0 == self.expected.ids && found.1 == self.expected.distances)
    }
}

/// A captured graph, ready for launches. What it uses must outlive it.
struct Graph {
    graph: sys::CUgraph,
    program: sys::CUgraphExec,
}

fn check(call: &'static str, code: sys::CUresult) -> Outcome {
    if code == sys::CUresult::CUDA_SUCCESS { Ok(()) } else { Err(Failure::Call { call, code: code as i32 }) }
}

impl Graph {
    /// Captures the work that `enqueue` puts on the stream.
    fn capture(stream: &Stream, enqueue: impl FnOnce() -> Outcome) -> Outcome<Graph> {
        let (mut graph, mut program) = (null_mut(), null_mut());
        let raw = stream.as_inner();
        // SAFETY: the stream lives; the driver writes the handles.
        unsafe {
            let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
            check("cuStreamBeginCapture", sys::cuStreamBeginCapture_v2(raw, mode))?;
            let enqueued = enqueue();
            let ended = check("cuStreamEndCapture", sys::cuStreamEndCapture(raw, &mut graph));
            enqueued.and(ended)?;
            let log: *mut c_char = null_mut();
            let made = sys::cuGraphInstantiate_v2(&mut program, graph, null_mut(), log, 0);
            check("cuGraphInstantiate", made)?;
        }
        Ok(Graph { graph, program })
    }

    fn launch(&self, stream: &Stream) -> Outcome {
        // SAFETY: both handles live, and so does what the graph uses.
        check("cuGraphLaunch", unsafe { sys::cuGraphLaunch(self.program, stream.as_inner()) })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: both handles are this struct's, and no launch is under way: every measurement ends with a wait.
        unsafe {
            sys::cuGraphExecDestroy(self.program);
            sys::cuGraphDestroy(self.graph);
        }
    }
}
