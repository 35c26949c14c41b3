//! Exact search, inverted files and walks in a graph from device memory to device memory, compared with the same search
//! from host memory and back.
//!
//! Batches, and queries one at a time: by the ordinary call, by a call that enqueues the work on a stream, and by a
//! launch of a captured graph. Each time includes the wait for the result. The rows `in a row` are the time of a search
//! when a hundred follow each other without a wait. Every result is compared, to the bit, with that of the ordinary
//! call.

use std::ffi::c_char;
use std::ptr::null_mut;

use warpann::cust::context::Context;
use warpann::cust::memory::{CopyDestination, DeviceBuffer};
use warpann::cust::stream::{Stream, StreamFlags};
use warpann::cust::{self, CudaFlags, sys};
use warpann::views::{DeviceNeighbors, DeviceVectors};
use warpann::{Element, Error, GraphIndex, Index, IvfIndex, Kind, Neighbors, NoDeviceReason, SearchOptions, recall};
use warpann_measure::{Searches, Times};

use crate::ivf::filled;
use crate::record::{Measured, Record};
use crate::set::{Measurement, Vectors, exact};
use crate::{Failure, Outcome};

/// Arguments of `device-data`.
#[derive(Debug, clap::Args)]
pub struct Args {
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

impl Measurement for Args {
    /// Measures searches of the whole base, of a tenth of it and of a hundredth.
    fn run<T: Element>(&self, vectors: &Vectors<'_, T>, record: &mut Record) -> Outcome {
        let Some(gpu) = record.machine.gpu else {
            return Err(Error::NoDevice { reason: NoDeviceReason::NoDriver }.into());
        };
        cust::init(CudaFlags::empty())?;
        // The primary context, in which the library works.
        let _context = Context::new(cust::device::Device::get_device(gpu as u32)?)?;
        let &Vectors { base, queries, dim, .. } = vectors;
        let (n, count, device) = (vectors.rows(), vectors.count(), record.device());
        let mut truth = None;
        for rows in [n, n / 10, n / 100] {
            let index = exact(&base[..rows * dim], dim, device)?;
            let batches: &[usize] = if rows == n { &[count, 1] } else { &[1] };
            for &batch in batches {
                let read = size_of::<T>() * dim * rows;
                Job { index: &index, options: SearchOptions::new(), kind: "", read, vectors, batch, truth: None }
                    .measure(record)?;
            }
            if rows == n {
                truth = Some(index.search(queries, K)?);
            }
        }
        let few = [count, 100.min(count), 1];
        let lists = (self.lists as usize).min(n / 40);
        let file = filled(IvfIndex::<T>::builder(dim, lists).device(device), base)?;
        for (&probes, &batch) in self.probes.iter().flat_map(|probes| few.iter().map(move |batch| (probes, batch))) {
            let (options, truth) = (SearchOptions::new().probes(probes), truth.as_ref());
            let kind = &format!("ivf lists={lists} probes={probes} ");
            Job { index: &file, options, kind, read: 0, vectors, batch, truth }.measure(record)?;
        }
        let mut graph = GraphIndex::<T>::builder(dim).device(device).seed(1).degree(self.degree).build()?;
        graph.add(base)?;
        for (&beam, &batch) in self.beams.iter().flat_map(|beam| few.iter().map(move |batch| (beam, batch))) {
            let (options, truth) = (SearchOptions::new().beam(beam), truth.as_ref());
            let kind = &format!("graph beam={beam} ");
            Job { index: &graph, options, kind, read: 0, vectors, batch, truth }.measure(record)?;
        }
        Ok(())
    }
}

/// Searches of one kind of index with some options.
struct Job<'a, K: Kind> {
    index: &'a Index<K>,
    options: SearchOptions<'static>,
    /// The first words of the case.
    kind: &'a str,
    /// Bytes that a search reads besides the queries.
    read: usize,
    vectors: &'a Vectors<'a, K::Element>,
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

impl<I: Kind> Job<'_, I> {
    /// Measures all queries at once, or the first ones one at a time.
    fn measure(&self, record: &mut Record) -> Outcome {
        let dim = self.index.dim();
        let searches = if self.batch == 1 { SINGLE.min(self.vectors.count()) } else { 1 };
        let repeat = record.repeat(20);
        let mut all: Vec<Way> = Vec::new();
        for queries in self.vectors.queries.chunks_exact(self.batch * dim).take(searches) {
            for (at, way) in self.ways(queries, repeat)?.into_iter().enumerate() {
                match all.get_mut(at) {
                    None => all.push(way),
                    Some(first) => {
                        first.times = Times::new([first.times.milliseconds(), way.times.milliseconds()].concat());
                        first.verified &= way.verified;
                    }
                }
            }
        }
        all.into_iter().try_for_each(|way| self.add(way, searches * self.batch, record))
    }

    /// Records a way. `searched` is the number of queries, all together.
    fn add(&self, way: Way, searched: usize, record: &mut Record) -> Outcome {
        let (n, dim, count, kind) = (self.index.len(), self.index.dim(), self.batch, self.kind);
        let Way { what, times, verified } = way;
        let case = format!("device data {kind}{n}x{dim} {} nq={count} {what}", I::Element::TYPE.name());
        let bytes = (self.read + size_of::<I::Element>() * dim * count) as f64;
        let recalled = |truth: &Neighbors| -> Outcome<f64> {
            let found = self.index.search_with(&self.vectors.queries[..searched * dim], K, &self.options)?;
            Ok(recall(&found.ids, K, &truth.ids[..searched * K], K, K))
        };
        let recall = self.truth.map(recalled).transpose()?;
        record.add(Measured::new(case, K, times, bytes, verified).recall(recall))
    }

    /// Measures the search of these queries in every way.
    fn ways(&self, queries: &[I::Element], repeat: usize) -> Outcome<Vec<Way>> {
        let Self { index, options, .. } = self;
        let count = queries.len() / index.dim();
        let expected = index.search_with(queries, K, options)?;
        let mut searches = Searches::new(*index, queries, K, *options)?;
        let times = searches.times(repeat)?;
        let mut ways = vec![Way { what: "host to host".into(), times, verified: searches.found == expected }];

        // A stream that waits for the default one, on which the buffers are filled.
        let stream = Stream::new(StreamFlags::DEFAULT, None)?;
        let there = DeviceBuffer::<u8>::from_slice(bytemuck::cast_slice(queries))?;
        let ids = DeviceBuffer::from_slice(&vec![0u64; count * K])?;
        let distances = DeviceBuffer::from_slice(&vec![0f32; count * K])?;
        let mut to = Destination { stream: &stream, ids, distances, expected, repeat };
        let results = DeviceNeighbors::of_slices(&mut to.ids, &mut to.distances)?;
        let mut workspace = index.device_workspace(count, K, options)?;
        let queries = DeviceVectors::<I::Element>::new(there.as_device_ptr().as_raw(), count);
        let mut enqueue = || -> Outcome {
            // SAFETY: the buffers have these sizes, and outlive the wait for the stream.
            unsafe { index.search_device(&mut workspace, stream.as_inner(), &queries, &results) }.map_err(Failure::from)
        };
        ways.extend(to.measure("device to device", &mut enqueue)?);
        let graph = Graph::capture(&stream, &mut enqueue)?;
        ways.extend(to.measure("device to device by a graph", &mut || graph.launch(&stream))?);
        Ok(ways)
    }
}

/// The buffers of the results on the device, and the expected results.
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
