//! Searches whose queries, results and vectors are in device memory, on streams of the test's own. For GPUs, and small
//! cases for the emulated driver. The emulator runs the same searches in warpann's unit tests, where small cases take
//! the filter as well.

use std::ptr;

use warpann::MemoryDefect::{Address, OtherGpu, Unknown};
use warpann::cust::memory::{CopyDestination, DeviceBuffer, DeviceCopy};
use warpann::ivf::Encoding;
use warpann::select::device::CUstream;
use warpann::views::dlpack::{CUDA, DLDataType, DLDevice, DLTensor};
use warpann::views::{DeviceCounts, DeviceNeighbors, DeviceVectors};
use warpann::{
    Device, DeviceWorkspace, Element, Error, Filter, FlatIndex, GraphIndex, Index, IvfIndex, Kind, Metric, NONE,
    Neighbors, RangeNeighbors, SearchOptions,
};

use crate::data::Random;
use crate::on_device::{Graph, OwnEvent, OwnStream, driver, enter, uploaded};
use crate::runner::{Outcome, same, text};
use crate::scenarios::Scenario;

/// Returns an error from a scenario unless a call is refused with this error.
macro_rules! refused {
    ($call:expr, $expected:pat) => {
        match $call {
            Err($expected) => {}
            other => return Err(format!("{}: {other:?}", stringify!($call))),
        }
    };
}
pub(crate) use refused;

/// Every scenario, for [`Device::Gpu`].
pub const ALL: &[Scenario] = &[
    ("device_data::filtered_f32", |device| searches::<f32>(device, Metric::L2, &FILTERED)),
    ("device_data::filtered_u8", |device| searches::<u8>(device, Metric::Cosine, &FILTERED)),
    ("device_data::all_distances", |device| searches::<f32>(device, Metric::InnerProduct, &SMALL)),
    ("device_data::one_query", |device| searches::<i8>(device, Metric::L2, &ONE)),
    ("device_data::captured_into_a_graph", |device| captured_into_a_graph(device, &[&FILTERED, &ONE])),
    ("device_data::captured_on_two_streams", captured_on_two_streams),
    ("device_data::walks_by_codes", |device| walks::<f32>(device, Metric::Cosine, &WALKS, true)),
    ("device_data::walks_by_vectors", |device| walks::<f32>(device, Metric::L2, &WALKS, false)),
    // Rows of 17 bytes are staged twice.
    ("device_data::walks_by_bytes", |device| walks::<u8>(device, Metric::InnerProduct, &WALKS, false)),
    ("device_data::lists_f32", |device| lists::<f32>(device, Metric::L2, Encoding::Flat, &LISTS)),
    ("device_data::lists_u8", |device| lists::<u8>(device, Metric::Cosine, Encoding::Flat, &LISTS)),
    ("device_data::lists_of_codes", |device| lists::<f32>(device, Metric::L2, PQ, &LISTS)),
    ("device_data::lists_of_rotated_codes", |device| lists::<u8>(device, Metric::Cosine, OPQ, &LISTS)),
    ("device_data::lists_of_bytes", |device| lists::<i8>(device, Metric::InnerProduct, Encoding::Scalar8, &LISTS)),
    ("device_data::lists_of_bits", |device| lists::<f32>(device, Metric::Cosine, Encoding::Bits { bits: 5 }, &LISTS)),
    ("device_data::refusals", refusals),
    ("device_data::refusals_of_lists", refusals_of_lists),
];

/// The scenarios that the emulated driver runs in little time.
pub const SMALL_ONES: &[Scenario] = &[
    ("device_data::all_distances", |device| searches::<f32>(device, Metric::InnerProduct, &SMALL)),
    ("device_data::refusals", refusals),
    ("device_data::captured_into_a_graph", |device| captured_into_a_graph(device, &[&SMALL])),
    ("device_data::walks_by_codes", |device| walks::<f32>(device, Metric::Cosine, &SMALL_WALKS, true)),
    ("device_data::walks_by_bytes", |device| walks::<u8>(device, Metric::InnerProduct, &SMALL_WALKS, false)),
    ("device_data::lists_f32", |device| lists::<f32>(device, Metric::L2, Encoding::Flat, &SMALL_LISTS)),
    ("device_data::lists_of_rotated_codes", |device| lists::<u8>(device, Metric::Cosine, OPQ, &SMALL_LISTS)),
    ("device_data::refusals_of_lists", refusals_of_lists),
];

/// Sizes of a case.
struct Shape {
    rows: usize,
    queries: usize,
    dim: usize,
    k: usize,
}

/// So much work that the filter runs.
const FILTERED: Shape = Shape { rows: 60_000, queries: 300, dim: 17, k: 12 };
/// So little that all distances are computed.
const SMALL: Shape = Shape { rows: 300, queries: 3, dim: 6, k: 5 };
const WALKS: Shape = Shape { rows: 20_000, queries: 700, dim: 17, k: 10 };
const SMALL_WALKS: Shape = Shape { rows: 150, queries: 3, dim: 17, k: 3 };
const LISTS: Shape = Shape { rows: 20_000, queries: 700, dim: 16, k: 10 };
const SMALL_LISTS: Shape = Shape { rows: 300, queries: 5, dim: 16, k: 3 };
const PQ: Encoding = Encoding::Pq { sub_quantizers: 8, bits: 4, rotate: false };
const OPQ: Encoding = Encoding::Pq { sub_quantizers: 8, bits: 4, rotate: true };
const ONE: Shape = Shape { rows: 20_000, queries: 1, dim: 64, k: 10 };

/// Small integers, so that distances occur several times.
pub(crate) fn vectors<T: Element>(count: usize, dim: usize, seed: u64) -> Vec<T> {
    let mut random = Random::new(seed);
    (0..count * dim).map(|_| T::from_f32(random.below(60) as f32)).collect()
}

/// Waits until the values are in the buffer, because the streams of these tests do not wait for the default one.
fn buffer<T: DeviceCopy>(values: &[T]) -> Result<DeviceBuffer<T>, String> {
    let buffer = DeviceBuffer::from_slice(values).map_err(driver)?;
    uploaded().map(|()| buffer)
}

/// Two equal indexes, on the device from device memory, and on the CPU: with ids of the test's own, and with removed
/// vectors.
fn indexes<T: Element + DeviceCopy>(
    device: Device,
    metric: Metric,
    shape: &Shape,
    stream: CUstream,
) -> Result<[FlatIndex<T>; 2], String> {
    let &Shape { rows, dim, .. } = shape;
    let base = vectors::<T>(rows, dim, 1);
    let (first, second) = base.split_at(rows / 3 * dim);
    let ids: Vec<u64> = (0..(second.len() / dim) as u64).map(|at| 1_000_000 + 3 * at).collect();
    let removed: Vec<u64> = ids.iter().copied().step_by(7).chain([2, 5]).collect();
    let new = |device| FlatIndex::<T>::new(dim, metric, device).map_err(text);
    let (mut on_gpu, mut on_cpu) = (new(device)?, new(Device::Cpu)?);
    let (first_there, second_there) = (buffer(first)?, buffer(second)?);
    // SAFETY: the buffers hold the vectors, and each call waits for the stream.
    unsafe {
        on_gpu.add_device(stream, &DeviceVectors::of_slice(&first_there, dim).map_err(text)?).map_err(text)?;
        let view = DeviceVectors::of_slice(&second_there, dim).map_err(text)?;
        on_gpu.add_device_with_ids(stream, &view, &ids).map_err(text)?;
        // Ids between others pass through the host.
        let view = DeviceVectors::new(first_there.as_device_ptr().as_raw(), 2);
        on_gpu.add_device_with_ids(stream, &view, &[999_999, 999_990]).map_err(text)?;
    }
    on_cpu.add(first).map_err(text)?;
    on_cpu.add_with_ids(second, &ids).map_err(text)?;
    on_cpu.add_with_ids(&first[..2 * dim], &[999_999, 999_990]).map_err(text)?;
    on_gpu.remove(&removed).map_err(text)?;
    on_cpu.remove(&removed).map_err(text)?;
    Ok([on_gpu, on_cpu])
}

/// Memory for results of a search on the device.
struct Results {
    ids: DeviceBuffer<u64>,
    distances: DeviceBuffer<f32>,
    k: usize,
}

impl Results {
    fn new(queries: usize, k: usize) -> Result<Results, String> {
        Ok(Results { ids: buffer(&vec![7; queries * k])?, distances: buffer(&vec![7.0; queries * k])?, k })
    }

    fn view(&mut self) -> Result<DeviceNeighbors, String> {
        DeviceNeighbors::of_slices(&mut self.ids, &mut self.distances).map_err(text)
    }

    /// Compares the results with those of the CPU, to the bit. The stream is done.
    fn verify(&self, expected: &Neighbors) -> Outcome {
        let (ids, distances) = (self.ids.as_host_vec().map_err(driver)?, self.distances.as_host_vec().map_err(driver)?);
        same("in device memory", expected, &Neighbors { k: self.k, ids, distances })
    }
}

/// Compares the results of a range search, with as many places for each query as results have, with all vectors within
/// the radius.
fn verify_ranges(results: &Results, counts: &DeviceBuffer<u32>, all: &RangeNeighbors, metric: Metric) -> Outcome {
    let (k, queries) = (results.k, all.queries());
    let mut expected = Neighbors { k, ids: vec![NONE; queries * k], distances: vec![metric.worst(); queries * k] };
    for query in 0..queries {
        let (ids, distances) = all.row(query);
        let found = ids.len().min(k);
        expected.ids[query * k..][..found].copy_from_slice(&ids[..found]);
        expected.distances[query * k..][..found].copy_from_slice(&distances[..found]);
    }
    results.verify(&expected)?;
    let counts = counts.as_host_vec().map_err(driver)?;
    match (0..queries).find(|&query| counts[query] as usize != all.row(query).0.len()) {
        Some(query) => Err(format!("query {query} has {} vectors, not {}", counts[query], all.row(query).0.len())),
        None => Ok(()),
    }
}

/// A planned search: an index on the device and an equal one that says what is right, queries in the memory of both,
/// and room for results.
struct Planned<'a, K: Kind<Element: DeviceCopy>> {
    on_gpu: &'a Index<K>,
    on_cpu: &'a Index<K>,
    options: SearchOptions<'a>,
    host: Vec<K::Element>,
    there: DeviceBuffer<K::Element>,
    workspace: DeviceWorkspace,
    results: Results,
    stream: &'a OwnStream,
}

impl<'a, K: Kind<Element: DeviceCopy>> Planned<'a, K> {
    /// A plan of as many queries as the shape has, or of one more.
    fn new(
        [on_gpu, on_cpu]: [&'a Index<K>; 2],
        options: SearchOptions<'a>,
        &Shape { queries, dim, k, .. }: &Shape,
        more: usize,
        stream: &'a OwnStream,
    ) -> Result<Self, String> {
        let host = vectors(queries, dim, 2);
        Ok(Self {
            there: buffer(&host)?,
            host,
            workspace: on_gpu.device_workspace(queries + more, k, &options).map_err(text)?,
            results: Results::new(queries, k)?,
            stream,
            on_gpu,
            on_cpu,
            options,
        })
    }

    fn expected(&self) -> Result<Neighbors, String> {
        self.on_cpu.search_with(&self.host, self.results.k, &self.options).map_err(text)
    }

    /// Searches for the first `count` queries.
    fn search(&mut self, count: usize) -> Outcome {
        let dim = self.on_gpu.dim();
        let mut results = Results::new(count, self.results.k)?;
        let view = results.view()?;
        let queries = DeviceVectors::new(self.there.as_device_ptr().as_raw(), count);
        // SAFETY: the buffers have the sizes that they are said to have, and nothing changes before the wait.
        unsafe {
            self.on_gpu.search_device(&mut self.workspace, self.stream.as_inner(), &queries, &view).map_err(text)?
        };
        self.stream.synchronize()?;
        let expected = self.on_cpu.search_with(&self.host[..count * dim], self.results.k, &self.options);
        results.verify(&expected.map_err(text)?).map_err(|failure| format!("{count} queries: {failure}"))
    }

    /// Searches for all vectors within a radius, of which there may be more than places.
    fn range_search(&mut self, radius: f32) -> Outcome {
        let (view, stream) = (self.results.view()?, self.stream.as_inner());
        let mut counts = buffer(&vec![7u32; self.host.len() / self.on_gpu.dim()])?;
        let places = DeviceCounts::of_slice(&mut counts);
        let queries = DeviceVectors::of_slice(&self.there, self.on_gpu.dim()).map_err(text)?;
        let (index, workspace) = (self.on_gpu, &mut self.workspace);
        // SAFETY: as in `search`.
        unsafe { index.range_search_device(workspace, stream, &queries, radius, &view, &places).map_err(text)? };
        self.stream.synchronize()?;
        let all = self.on_cpu.range_search(&self.host, radius, &self.options).map_err(text)?;
        verify_ranges(&self.results, &counts, &all, self.on_gpu.metric())
            .map_err(|failure| format!("within {radius}: {failure}"))
    }

    /// Captures a search into a graph and launches it twice, for other queries the second time. While a stream is
    /// captured, the driver refuses whatever allocates or waits in the capturing thread. The graph searches for
    /// whatever the buffer of queries holds.
    fn launch_twice(&mut self) -> Outcome {
        let (view, stream, index) = (self.results.view()?, self.stream.as_inner(), self.on_gpu);
        let queries = DeviceVectors::of_slice(&self.there, index.dim()).map_err(text)?;
        let workspace = &mut self.workspace;
        // SAFETY: stream and buffers are this test's.
        let graph = unsafe {
            Graph::captured(stream, || index.search_device(workspace, stream, &queries, &view).map_err(text))?
        };
        for round in 0..2 {
            if round > 0 {
                self.host.reverse();
                self.there.copy_from(&self.host).map_err(driver)?;
                uploaded()?;
            }
            // SAFETY: what the graph uses lives and does not change.
            unsafe { graph.run(stream)? };
            let outcome = self.results.verify(&self.expected()?);
            outcome.map_err(|failure| format!("launch {round} of the graph: {failure}"))?;
        }
        graph.destroy()
    }
}

/// Searches without a filter, and with filters that accept most vectors, few, and none.
fn searches<T: Element + DeviceCopy>(device: Device, metric: Metric, shape: &Shape) -> Outcome {
    let _context = enter(device)?;
    let stream = OwnStream::new()?;
    let [on_gpu, on_cpu] = indexes::<T>(device, metric, shape, stream.as_inner())?;
    if on_gpu.ids() != on_cpu.ids() {
        return Err("the indexes have different ids".to_owned());
    }
    for one_of in [0, 1, 2, 50] {
        let filter = on_cpu.filter(|id| one_of > 0 && id % one_of == 0);
        let options = if one_of == 1 { SearchOptions::new() } else { SearchOptions::new().filter(&filter) };
        let mut planned = Planned::new([&on_gpu, &on_cpu], options, shape, 1, &stream)?;
        let mut outcome = planned.search(shape.queries);
        // In the same workspace: the distance of a neighbour, within which some queries have more vectors than places,
        // and none.
        for radius in [planned.expected()?.distances[shape.k / 2], -metric.worst()] {
            outcome = outcome.and_then(|()| planned.range_search(radius));
        }
        outcome.map_err(|failure| format!("filter 1/{one_of}: {failure}"))?;
    }
    Ok(())
}

/// Walks from device memory to device memory find what walks from host memory find, also when they were captured and
/// are launched again.
fn walks<T: Element + DeviceCopy>(device: Device, metric: Metric, shape: &Shape, codes: bool) -> Outcome {
    let _context = enter(device)?;
    let stream = OwnStream::new()?;
    let &Shape { rows, dim, .. } = shape;
    let base = vectors::<T>(rows, dim, 1);
    let ids: Vec<u64> = (0..rows as u64).map(|at| 5 * at + 3).collect();
    let mut index = GraphIndex::<T>::builder(dim)
        .metric(metric)
        .device(device)
        .exact_ratio(0)
        .degree(8)
        .codes(codes)
        .build()
        .map_err(text)?;
    let base_there = buffer(&base)?;
    // SAFETY: the buffer holds the vectors, and the call waits for the stream.
    unsafe {
        let rows = DeviceVectors::of_slice(&base_there, dim).map_err(text)?;
        index.add_device_with_ids(stream.as_inner(), &rows, &ids).map_err(text)?;
    }
    if index.ids() != ids || index.vector(ids[7]).map_err(text)? != base[7 * dim..8 * dim] {
        return Err("the index has other vectors".to_owned());
    }
    index.remove(&ids[10..20]).map_err(text)?;
    if index.statistics().codes != codes {
        return Err(format!("codes: {}", index.statistics().codes));
    }
    let half = index.filter(|id| id % 2 == 0);
    for filter in [None, Some(&half)] {
        let options = SearchOptions::new().beam(40).filter(filter.map(Filter::Bits));
        Planned::new([&index; 2], options, shape, 1, &stream)?
            .launch_twice()
            .map_err(|failure| format!("filtered: {}: {failure}", filter.is_some()))?;
    }
    let refused = index.device_workspace(1, shape.k, &SearchOptions::new().beam(0)).err();
    if !matches!(refused, Some(Error::Zero { what: "beam" })) {
        return Err(format!("a beam of 0: {refused:?}"));
    }
    // Few accepted vectors need a beam as wide as the index. A device that has no room for it compares all accepted
    // vectors.
    let few = index.filter(|id| id < 53);
    let mut planned = Planned::new([&index; 2], SearchOptions::new().filter(&few), shape, 0, &stream)?;
    planned.search(shape.queries).map_err(|failure| format!("few accepted: {failure}"))?;
    // Walks find near vectors, not all within a radius. With a beam of all vectors a search compares all.
    let mut planned = Planned::new([&index; 2], SearchOptions::new().beam(40), shape, 0, &stream)?;
    let refused = planned.range_search(0.0);
    if refused != Err(Error::StaleWorkspace.to_string()) {
        return Err(format!("a range search by walks: {refused:?}"));
    }
    let mut exact = GraphIndex::<T>::builder(dim).metric(metric).device(device).degree(8).build().map_err(text)?;
    exact.add_with_ids(&base, &ids).map_err(text)?;
    let mut planned = Planned::new([&exact; 2], SearchOptions::new().beam(rows), shape, 0, &stream)?;
    let radius = planned.expected()?.distances[shape.k / 2];
    planned.range_search(radius).map_err(|failure| format!("within {radius}: {failure}"))
}

/// Two equal inverted files, on the device from device memory, and on the CPU: with ids of the test's own, and with
/// removed vectors.
fn files<T: Element + DeviceCopy>(
    device: Device,
    (metric, encoding): (Metric, Encoding),
    shape: &Shape,
    stream: CUstream,
) -> Result<[IvfIndex<T>; 2], String> {
    let &Shape { rows, dim, .. } = shape;
    let base = vectors::<T>(rows, dim, 1);
    let there = buffer(&base)?;
    let ids: Vec<u64> = (0..rows as u64 / 2).map(|at| 1_000_000 + 3 * at).collect();
    let new = |device| {
        let builder = IvfIndex::<T>::builder(dim, 20).metric(metric).encoding(encoding).iterations(3).device(device);
        builder.build().map_err(text)
    };
    let (mut on_gpu, mut on_cpu) = (new(device)?, new(Device::Cpu)?);
    let half = rows - ids.len();
    let (address, row_bytes) = (there.as_device_ptr().as_raw(), dim * size_of::<T>());
    // SAFETY: the buffer holds the vectors, and each call waits for the stream.
    unsafe {
        on_gpu.train_device(stream, &DeviceVectors::of_slice(&there, dim).map_err(text)?).map_err(text)?;
        on_gpu.add_device(stream, &DeviceVectors::new(address, half)).map_err(text)?;
        let second = DeviceVectors::new(address + (half * row_bytes) as u64, ids.len());
        on_gpu.add_device_with_ids(stream, &second, &ids).map_err(text)?;
    }
    on_cpu.train(&base).map_err(text)?;
    on_cpu.add(&base[..half * dim]).map_err(text)?;
    on_cpu.add_with_ids(&base[half * dim..], &ids).map_err(text)?;
    for index in [&mut on_gpu, &mut on_cpu] {
        index.remove(&ids[10..20]).map_err(text)?;
    }
    if on_gpu.centroids() != on_cpu.centroids() || on_gpu.ids() != on_cpu.ids() {
        return Err("the indexes differ".to_owned());
    }
    Ok([on_gpu, on_cpu])
}

/// Searches of inverted files from device memory to device memory, with and without a filter, that were captured and
/// are launched twice, and of fewer queries than were planned.
fn lists<T: Element + DeviceCopy>(device: Device, metric: Metric, encoding: Encoding, shape: &Shape) -> Outcome {
    let _context = enter(device)?;
    let stream = OwnStream::new()?;
    let [on_gpu, on_cpu] = files::<T>(device, (metric, encoding), shape, stream.as_inner())?;
    let half = on_cpu.filter(|id| id % 2 == 0);
    for (filter, probes) in [(None, 1), (None, 7), (Some(&half), 3)] {
        let options = SearchOptions::new().probes(probes).filter(filter.map(Filter::Bits)).widen(false);
        let mut planned = Planned::new([&on_gpu, &on_cpu], options, shape, 1, &stream)?;
        planned
            .launch_twice()
            .and_then(|()| planned.range_search(planned.expected()?.distances[shape.k / 2]))
            .and_then(|()| planned.search(1))
            .map_err(|failure| format!("{probes} probes, filtered: {}: {failure}", filter.is_some()))?;
    }
    Ok(())
}

/// Bad arguments of inverted files are typed errors, and a changed index refuses its workspace. A query that is not
/// finite has no neighbours.
fn refusals_of_lists(device: Device) -> Outcome {
    let _context = enter(device)?;
    let stream = OwnStream::new()?;
    let raw = stream.as_inner();
    let (dim, k, options) = (SMALL_LISTS.dim, 2, SearchOptions::new().probes(3));
    let untrained = IvfIndex::<f32>::builder(dim, 4).device(device).build().map_err(text)?;
    refused!(untrained.device_workspace(1, k, &options), Error::NotTrained { call: "device_workspace" });
    let [mut index, mut on_cpu] = files::<f32>(device, (Metric::L2, Encoding::Flat), &SMALL_LISTS, raw)?;
    refused!(index.device_workspace(2, 0, &options), Error::Zero { what: "k" });
    refused!(index.device_workspace(2, k, &options.probes(0)), Error::Zero { what: "probes" });
    refused!(on_cpu.device_workspace(2, k, &options), Error::NotInDeviceMemory { .. });
    let mut host = vectors::<f32>(2, dim, 3);
    host[dim + 4] = f32::NAN;
    let there = buffer(&host)?;
    let queries = DeviceVectors::of_slice(&there, dim).map_err(text)?;
    let mut results = Results::new(2, k)?;
    let view = results.view()?;
    let mut workspace = index.device_workspace(2, k, &options).map_err(text)?;
    let flat = FlatIndex::<f32>::new(dim, Metric::L2, device).map_err(text)?;
    // SAFETY: refused calls use no memory. The others have buffers of the right sizes, which live until the stream is
    // done.
    unsafe {
        let three = DeviceVectors::new(queries.address(), 3);
        refused!(
            index.search_device(&mut workspace, raw, &three, &view),
            Error::TooMany { what: "queries for this workspace", asked: 3, limit: 2 }
        );
        refused!(flat.search_device(&mut workspace, raw, &queries, &view), Error::StaleWorkspace);
        index.search_device(&mut workspace, raw, &queries, &view).map_err(text)?;
        stream.synchronize()?;
        let mut expected = on_cpu.search_with(&host[..dim], k, &options).map_err(text)?;
        expected.ids.extend([NONE; 2]);
        expected.distances.extend([f32::NAN; 2]);
        results.verify(&expected)?;
        refused!(on_cpu.add_device(raw, &queries), Error::NotInDeviceMemory { .. });
        let len = index.len();
        refused!(index.add_device(raw, &queries), Error::NotFinite { row: 1, column: 4, .. });
        if index.len() != len {
            return Err("a refused addition changed the index".to_owned());
        }
        index.remove(&[3]).map_err(text)?;
        refused!(index.search_device(&mut workspace, raw, &queries, &view), Error::StaleWorkspace);
        // Without vectors, slots stay empty.
        index.clear();
        let mut workspace = index.device_workspace(2, k, &options).map_err(text)?;
        index.search_device(&mut workspace, raw, &queries, &view).map_err(text)?;
        stream.synchronize()?;
        expected.ids.fill(NONE);
        expected.distances[..2].fill(f32::INFINITY);
        results.verify(&expected)
    }
}

fn captured_into_a_graph(device: Device, shapes: &[&Shape]) -> Outcome {
    let _context = enter(device)?;
    let stream = OwnStream::new()?;
    for &shape in shapes {
        let [on_gpu, on_cpu] = indexes::<f32>(device, Metric::L2, shape, stream.as_inner())?;
        Planned::new([&on_gpu, &on_cpu], SearchOptions::new(), shape, 0, &stream)?.launch_twice()?;
    }
    Ok(())
}

/// A captured stream waits for another one that captures too, between searches on both. So the first kernel of a search
/// has two kernels ahead of it, of which only the one on its own stream may still run when it starts. For GPUs only:
/// the emulated driver captures one stream.
fn captured_on_two_streams(device: Device) -> Outcome {
    let _context = enter(device)?;
    let streams = [OwnStream::new()?, OwnStream::new()?];
    let [here, there] = streams.each_ref().map(OwnStream::as_inner);
    let (dim, k, count) = (ONE.dim, ONE.k, 3);
    let [on_gpu, on_cpu] = indexes::<f32>(device, Metric::L2, &ONE, here)?;
    let hosts = [2, 3].map(|seed| vectors::<f32>(count, dim, seed));
    let buffers = [buffer(&hosts[0])?, buffer(&hosts[1])?];
    let mut results = [Results::new(count, k)?, Results::new(count, k)?];
    let mut workspaces = [0, 1].map(|_| on_gpu.device_workspace(count, k, &SearchOptions::new()));
    let [first, second] = &mut workspaces;
    let (Ok(first), Ok(second)) = (first, second) else { return Err("no workspace".to_owned()) };
    let views = [results[0].view()?, results[1].view()?];
    let (forked, joined) = (OwnEvent::new()?, OwnEvent::new()?);
    // SAFETY: streams, events and buffers are this test's.
    let graph = unsafe {
        let queries = [DeviceVectors::of_slice(&buffers[0], dim), DeviceVectors::of_slice(&buffers[1], dim)];
        let [of_first, of_second] = queries.map(|queries| queries.map_err(text));
        let (of_first, of_second) = (of_first?, of_second?);
        Graph::captured(here, || {
            // The other way round first, so that results of this search are overwritten.
            on_gpu.search_device(first, here, &of_second, &views[0]).map_err(text)?;
            forked.order(here, there)?;
            on_gpu.search_device(second, there, &of_second, &views[1]).map_err(text)?;
            on_gpu.search_device(first, here, &of_first, &views[0]).map_err(text)?;
            joined.order(there, here)?;
            on_gpu.search_device(first, here, &of_first, &views[0]).map_err(text)
        })?
    };
    for round in 0..20 {
        // SAFETY: what the graph uses lives and does not change.
        unsafe { graph.run(here)? };
        for (host, results) in hosts.iter().zip(&mut results) {
            let expected = on_cpu.search(host, k).map_err(text)?;
            results.verify(&expected).map_err(|failure| format!("launch {round} of the graph: {failure}"))?;
        }
    }
    graph.destroy()
}

/// Bad arguments are typed errors, and leave the index as it was. A query that is not finite has no neighbours.
fn refusals(device: Device) -> Outcome {
    let _context = enter(device)?;
    let stream = OwnStream::new()?;
    let (dim, k, none) = (SMALL.dim, 2, SearchOptions::new());
    let Device::Gpu(gpu) = device else { return Err(format!("{device} is no GPU")) };
    let [mut index, mut on_cpu] = indexes::<f32>(device, Metric::L2, &SMALL, stream.as_inner())?;
    let mut host = vectors::<f32>(2, dim, 3);
    host[dim + 4] = f32::INFINITY;
    let there = buffer(&host)?;
    let address = there.as_device_ptr().as_raw();
    let mut results = Results::new(2, k)?;
    let view = results.view()?;
    let raw = stream.as_inner();
    refused!(index.device_workspace(2, 0, &none), Error::Zero { what: "k" });
    refused!(on_cpu.device_workspace(2, k, &none), Error::NotInDeviceMemory { .. });
    let mut shape = [2, dim as i64];
    let mut tensor = DLTensor {
        data: ptr::without_provenance_mut(address as usize),
        device: DLDevice { device_type: CUDA, device_id: gpu as i32 + 1 },
        ndim: 2,
        dtype: DLDataType::F32,
        shape: shape.as_mut_ptr(),
        strides: ptr::null_mut(),
        byte_offset: 0,
    };
    let mut workspace = index.device_workspace(2, k, &none).map_err(text)?;
    // SAFETY: refused calls use no memory. The others have buffers of the right sizes, which live until the stream is
    // done.
    unsafe {
        let elsewhere = DeviceVectors::<f32>::of_tensor(&tensor, dim).map_err(text)?;
        tensor.device.device_id = gpu as i32;
        let queries = DeviceVectors::<f32>::of_tensor(&tensor, dim).map_err(text)?;
        let mut search = |queries: &DeviceVectors<f32>, view: &DeviceNeighbors| {
            index.search_device(&mut workspace, raw, queries, view)
        };
        let at = DeviceVectors::<f32>::new;
        refused!(search(&elsewhere, &view), Error::BadMemory { defect: OtherGpu { .. }, .. });
        refused!(
            search(&at(address, 3), &view),
            Error::TooMany { what: "queries for this workspace", asked: 3, limit: 2 }
        );
        refused!(
            search(&at(0, 1), &view),
            Error::BadMemory { what: "queries", defect: Address { address: 0, align: 4 } }
        );
        refused!(search(&at(address + 2, 1), &view), Error::BadMemory { what: "queries", defect: Address { .. } });
        // Memory of the host that no driver knows.
        let unknown = host.as_ptr().addr() as u64;
        refused!(search(&at(unknown, 2), &view), Error::BadMemory { what: "queries", defect: Unknown { .. } });
        refused!(search(&at(address, 1), &view), Error::WrongLength { what: "results", expected: 2, actual: 4 });
        let (ids, distances) = view.addresses();
        let misplaced = DeviceNeighbors::new(ids + 4, distances);
        refused!(search(&queries, &misplaced), Error::BadMemory { what: "ids", defect: Address { align: 8, .. } });
        let unknown = DeviceNeighbors::new(ids, unknown);
        refused!(search(&queries, &unknown), Error::BadMemory { what: "distances", defect: Unknown { .. } });
        search(&at(0, 0), &DeviceNeighbors::new(0, 0)).map_err(text)?;
        let mut range = |radius: f32, counts: u64| {
            index.range_search_device(&mut workspace, raw, &queries, radius, &view, &DeviceCounts::new(counts))
        };
        refused!(range(f32::NAN, address), Error::BadNumber { what: "radius", .. });
        refused!(range(1.0, address + 1), Error::BadMemory { what: "counts", defect: Address { align: 4, .. } });
        let mut search = |queries: &DeviceVectors<f32>, view: &DeviceNeighbors| {
            index.search_device(&mut workspace, raw, queries, view)
        };
        search(&queries, &view).map_err(text)?;
        stream.synchronize()?;
        let mut expected = on_cpu.search(&host[..dim], k).map_err(text)?;
        expected.ids.extend([NONE; 2]);
        expected.distances.extend([f32::NAN; 2]);
        results.verify(&expected)?;

        refused!(on_cpu.add_device(raw, &queries), Error::NotInDeviceMemory { .. });
        refused!(
            index.add_device_with_ids(raw, &queries, &[7]),
            Error::WrongLength { what: "ids", expected: 2, actual: 1 }
        );
        refused!(index.add_device_with_ids(raw, &queries, &[1, 1 << 40]), Error::DuplicateId { id: 1 });
        let len = index.len();
        refused!(index.add_device(raw, &queries), Error::NotFinite { row: 1, column: 4, .. });
        if index.len() != len
            || index.search(&host[..dim], k).map_err(text)? != on_cpu.search(&host[..dim], k).map_err(text)?
        {
            return Err("a refused addition changed the index".to_owned());
        }
        index.remove(&[3]).map_err(text)?;
        refused!(index.search_device(&mut workspace, raw, &queries, &view), Error::StaleWorkspace);
    }
    Ok(())
}
