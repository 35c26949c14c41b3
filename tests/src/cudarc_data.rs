//! Searches in buffers of cudarc, on two of its streams: one writes and reads the buffers, the other one searches. Only
//! the events of cudarc order them, so a view that recorded too early or not at all would show as a wrong result on a
//! GPU. The emulated driver works in order in any case; `tests/driver_cudarc.rs` looks at the calls that it gets.

use std::sync::Arc;

use warpann::MemoryDefect::OtherContext;
use warpann::cudarc::driver::{CudaContext, CudaSlice, CudaStream, DeviceRepr, DriverError, ValidAsZeroBits, sys};
use warpann::views::cudarc::OnStream;
use warpann::{Device, Element, Error, FlatIndex, Metric, Neighbors, SearchOptions};

use crate::device_data::{refused, vectors};
use crate::on_device::{capturing, not_capturing};
use crate::runner::{Outcome, same, text};
use crate::scenarios::Scenario;

/// Every scenario, for [`Device::Gpu`].
pub const ALL: &[Scenario] = &[
    ("cudarc_data::two_streams_f32", |device| two_streams::<f32>(device, Metric::L2, &LARGE)),
    ("cudarc_data::two_streams_u8", |device| two_streams::<u8>(device, Metric::Cosine, &LARGE)),
    ("cudarc_data::captured_into_a_graph", |device| captured_into_a_graph(device, &LARGE)),
    ("cudarc_data::refusals", refusals),
];

/// The scenarios that the emulated driver runs in little time.
pub const SMALL_ONES: &[Scenario] = &[
    ("cudarc_data::two_streams_f32", |device| two_streams::<f32>(device, Metric::L2, &SMALL)),
    ("cudarc_data::two_streams_u8", |device| two_streams::<u8>(device, Metric::Cosine, &SMALL)),
    ("cudarc_data::captured_into_a_graph", |device| captured_into_a_graph(device, &SMALL)),
    ("cudarc_data::refusals", refusals),
];

/// Numbers of vectors of a case.
struct Shape {
    rows: usize,
    queries: usize,
}

/// A search takes longer than the copy of its queries.
const LARGE: Shape = Shape { rows: 20_000, queries: 300 };
const SMALL: Shape = Shape { rows: 300, queries: 3 };
const DIM: usize = 17;
const K: usize = 12;
const ROUNDS: u64 = 4;

fn driver(error: DriverError) -> String {
    format!("cudarc: {error:?}")
}

/// An index on the GPU and its equal on the CPU, and the buffers of a search, which the stream `writer` fills and
/// reads.
struct Search<T: Element> {
    writer: Arc<CudaStream>,
    searcher: Arc<CudaStream>,
    on_gpu: FlatIndex<T>,
    on_cpu: FlatIndex<T>,
    queries: CudaSlice<T>,
    ids: CudaSlice<u64>,
    distances: CudaSlice<f32>,
}

impl<T: Element + DeviceRepr + ValidAsZeroBits> Search<T> {
    fn new(device: Device, metric: Metric, &Shape { rows, queries }: &Shape) -> Result<Self, String> {
        let Device::Gpu(gpu) = device else { return Err(format!("{device} is no GPU")) };
        let context = CudaContext::new(gpu).map_err(driver)?;
        let (writer, searcher) = {
            // cudarc waits for the context before it makes the first stream.
            let _not_capturing = not_capturing();
            (context.new_stream().map_err(driver)?, context.new_stream().map_err(driver)?)
        };
        let new = |device| FlatIndex::<T>::new(DIM, metric, device).map_err(text);
        let (mut on_gpu, mut on_cpu) = (new(device)?, new(Device::Cpu)?);
        let host = vectors::<T>(rows, DIM, 1);
        on_cpu.add(&host).map_err(text)?;
        let base = writer.clone_htod(&host).map_err(driver)?;
        let on = OnStream::new(&searcher).map_err(text)?;
        let vectors = on.vectors(&base, DIM).map_err(text)?;
        // SAFETY: the buffer holds the vectors, and is borrowed until the call returns.
        unsafe { on_gpu.add_device(on.raw(), &vectors).map_err(text)? };
        drop(vectors);
        Ok(Search {
            on_gpu,
            on_cpu,
            queries: writer.alloc_zeros(queries * DIM).map_err(driver)?,
            ids: writer.alloc_zeros(queries * K).map_err(driver)?,
            distances: writer.alloc_zeros(queries * K).map_err(driver)?,
            writer,
            searcher,
        })
    }

    /// Writes queries, in the order of the writer.
    fn write(&mut self, queries: &[T]) -> Outcome {
        self.writer.memcpy_htod(queries, &mut self.queries).map_err(driver)
    }

    /// Compares the results, in the order of the writer, with those of the CPU, to the bit.
    fn verify(&self, expected: &Neighbors) -> Outcome {
        let ids = self.writer.clone_dtoh(&self.ids).map_err(driver)?;
        let distances = self.writer.clone_dtoh(&self.distances).map_err(driver)?;
        same("in device memory", expected, &Neighbors { k: K, ids, distances })
    }
}

/// New queries are written, searched, and overwritten at once, in every round.
fn two_streams<T: Element + DeviceRepr + ValidAsZeroBits>(device: Device, metric: Metric, shape: &Shape) -> Outcome {
    let count = shape.queries;
    let mut search = Search::<T>::new(device, metric, shape)?;
    let mut workspace = search.on_gpu.device_workspace(count, K, &SearchOptions::new()).map_err(text)?;
    let mut counts = search.writer.alloc_zeros::<u32>(count).map_err(driver)?;
    for round in 0..ROUNDS {
        let host = vectors::<T>(count, DIM, 10 + round);
        let expected = search.on_cpu.search(&host, K).map_err(text)?;
        let radius = expected.distances[K / 2];
        search.write(&host)?;
        {
            let on = OnStream::new(&search.searcher).map_err(text)?;
            let queries = on.vectors(&search.queries, DIM).map_err(text)?;
            let results = on.neighbors(&mut search.ids, &mut search.distances).map_err(text)?;
            let counts = on.counts(&mut counts).map_err(text)?;
            let (index, raw) = (&search.on_gpu, on.raw());
            // SAFETY: index and workspace live and do not change until the stream is done, for which the reading of the
            // results waits.
            unsafe {
                index
                    .range_search_device(&mut workspace, raw, &queries, radius, &results, &counts)
                    .and_then(|()| index.search_device(&mut workspace, raw, &queries, &results))
                    .map_err(text)?;
            }
        }
        search.write(&vectors::<T>(count, DIM, 20 + round))?;
        search.verify(&expected).map_err(|failure| format!("round {round}: {failure}"))?;
        let within = search.on_cpu.range_search(&host, radius, &SearchOptions::new()).map_err(text)?;
        let found = search.writer.clone_dtoh(&counts).map_err(driver)?;
        if let Some(query) = (0..count).find(|&query| found[query] as usize != within.row(query).0.len()) {
            return Err(format!("round {round}: query {query} has {} vectors within {radius}", found[query]));
        }
    }
    Ok(())
}

/// Views that are made before the capture and dropped after it leave the capture valid, and views around a launch order
/// the launch.
fn captured_into_a_graph(device: Device, shape: &Shape) -> Outcome {
    let count = shape.queries;
    let mut search = Search::<f32>::new(device, Metric::L2, shape)?;
    let mut workspace = search.on_gpu.device_workspace(count, K, &SearchOptions::new()).map_err(text)?;
    let on = OnStream::new(&search.searcher).map_err(text)?;
    let graph = {
        let queries = on.vectors(&search.queries, DIM).map_err(text)?;
        let results = on.neighbors(&mut search.ids, &mut search.distances).map_err(text)?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        let _capturing = capturing();
        search.searcher.begin_capture(mode).map_err(driver)?;
        // SAFETY: index, workspace and buffers live and do not change until the last launch is done, for which the
        // reading of the results waits.
        let captured = unsafe { search.on_gpu.search_device(&mut workspace, on.raw(), &queries, &results) };
        let graph = search.searcher.end_capture(sys::CUgraphInstantiate_flags(0)).map_err(driver)?;
        captured.map_err(text)?;
        graph.ok_or("nothing was captured")?
    };
    for round in 0..ROUNDS {
        let host = vectors::<f32>(count, DIM, 30 + round);
        search.writer.memcpy_htod(&host, &mut search.queries).map_err(driver)?;
        {
            let _queries = on.vectors(&search.queries, DIM).map_err(text)?;
            let _results = on.neighbors(&mut search.ids, &mut search.distances).map_err(text)?;
            graph.launch().map_err(driver)?;
        }
        search.writer.memcpy_htod(&vectors::<f32>(count, DIM, 40 + round), &mut search.queries).map_err(driver)?;
        let expected = search.on_cpu.search(&host, K).map_err(text)?;
        search.verify(&expected).map_err(|failure| format!("launch {round}: {failure}"))?;
    }
    Ok(())
}

/// Wrong lengths and contexts are typed errors.
fn refusals(device: Device) -> Outcome {
    const SLOTS: usize = SMALL.queries * K;
    let mut search = Search::<f32>::new(device, Metric::L2, &SMALL)?;
    let on = OnStream::new(&search.searcher).map_err(text)?;
    refused!(on.vectors(&search.queries, 0), Error::Zero { what: "dimension" });
    refused!(on.vectors(&search.queries, DIM + 1), Error::Ragged { what: "components", .. });
    let part = search.queries.slice(DIM..3 * DIM);
    let view = on.vectors(&part, DIM).map_err(text)?;
    let whole = on.vectors(&search.queries, DIM).map_err(text)?;
    let expected = (2, whole.address() + 4 * DIM as u64, whole.gpu());
    if (view.len(), view.address(), view.gpu()) != expected {
        return Err(format!("{:?} of {:?}", *view, *whole));
    }
    let mut shorter = search.distances.slice_mut(..K);
    refused!(
        on.neighbors(&mut search.ids, &mut shorter),
        Error::WrongLength { what: "results", expected: SLOTS, actual: K }
    );

    let primary = search.searcher.context();
    // cudarc takes every context that it did not retain itself for one that is not primary, and would destroy it.
    // SAFETY: the context lives as long as `primary`. It is not destroyed, because one reference is never dropped.
    let other = unsafe { CudaContext::from_raw_context(primary.ordinal(), primary.cu_device(), primary.cu_ctx()) };
    let other = other.map_err(driver)?;
    std::mem::forget(other.clone());
    refused!(OnStream::new(&other.default_stream()), Error::BadMemory { what: "stream", defect: OtherContext { .. } });
    let elsewhere = other.default_stream().alloc_zeros::<f32>(DIM).map_err(driver)?;
    refused!(on.vectors(&elsewhere, DIM), Error::BadMemory { what: "vectors", defect: OtherContext { .. } });
    Ok(())
}
