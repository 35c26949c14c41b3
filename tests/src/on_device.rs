//! k-selection from device memory to device memory on streams of the test's own, through cust: what a program does that
//! has its keys on the GPU already. For GPUs only; the same plans run on the emulator in warpann's unit tests.

use std::ffi::c_char;
use std::ptr;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use half::{bf16, f16};
use warpann::Device;
use warpann::cust::context::Context;
use warpann::cust::error::CudaError;
use warpann::cust::memory::bytemuck::Pod;
use warpann::cust::memory::{CopyDestination, DeviceBuffer, DeviceCopy};
use warpann::cust::stream::{Stream, StreamFlags};
use warpann::cust::sys;
use warpann::select::device::{CUstream, DeviceResults, DeviceRows, DeviceSelect};
use warpann::select::{Algorithm, Best, KeyType};

use crate::cases::KeyData;
use crate::data::{self, Random, TestKey};
use crate::reference::{self, NO_POSITION};
use crate::runner::{Outcome, text};
use crate::scenarios::Scenario;

/// Every scenario, for [`Device::Gpu`].
pub const ALL: &[Scenario] = &[
    ("on_device::two_streams_f32", two_streams::<f32>),
    ("on_device::two_streams_f16", two_streams::<f16>),
    ("on_device::two_streams_bf16", two_streams::<bf16>),
    ("on_device::two_streams_i32", two_streams::<i32>),
    ("on_device::two_streams_u32", two_streams::<u32>),
    ("on_device::threads_share_a_plan", threads_share_a_plan),
    ("on_device::captured_into_a_graph", captured_into_a_graph),
    ("on_device::the_callers_context_stays", the_callers_context_stays),
];

pub(crate) fn driver(error: CudaError) -> String {
    format!("driver: {error:?}")
}

pub(crate) fn check(call: &str, code: sys::CUresult) -> Outcome {
    if code == sys::CUresult::CUDA_SUCCESS { Ok(()) } else { Err(format!("{call}: {code:?}")) }
}

fn index(device: Device) -> Result<usize, String> {
    match device {
        Device::Gpu(index) => Ok(index),
        other => Err(format!("{other} is no GPU")),
    }
}

/// The primary context of the GPU, current in this thread.
pub(crate) fn enter(device: Device) -> Result<Context, String> {
    warpann::cust::init(warpann::cust::CudaFlags::empty()).map_err(driver)?;
    let gpu = warpann::cust::device::Device::get_device(index(device)? as u32).map_err(driver)?;
    Context::new(gpu).map_err(driver)
}

/// The shape of a batch of rows, and of the selection from each row.
#[derive(Debug, Clone, Copy)]
struct BatchShape {
    rows: u32,
    columns: u32,
    k: u32,
    best: Best,
    ragged: bool,
}

/// Many rows, few long ones, k beyond shared memory, k beyond the row, no keys at all.
const SHAPES: [(u32, u32, u32); 5] =
    [(1500, 1000, 10), (3, 200_000, 100), (2, 150_000, 20_000), (40, 100, 230), (3, 0, 5)];

/// A batch on the device with room for its results, and what they must be.
struct Batch<K: TestKey> {
    shape: BatchShape,
    host: Vec<K>,
    starts: Vec<u64>,
    lengths: Vec<u32>,
    keys: DeviceBuffer<u8>,
    device_starts: DeviceBuffer<u64>,
    device_lengths: DeviceBuffer<u32>,
    found_keys: DeviceBuffer<u8>,
    found_positions: DeviceBuffer<u32>,
    payloads: DeviceBuffer<u64>,
    found_payloads: DeviceBuffer<u64>,
    small_payloads: DeviceBuffer<u32>,
    found_small: DeviceBuffer<u32>,
}

/// Waits for uploads and fills, which run on the default stream. (Not for the context: that is forbidden while another
/// test captures.)
pub(crate) fn uploaded() -> Outcome {
    // SAFETY: null is the default stream of the current context.
    check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(ptr::null_mut()) })
}

fn bytes<K: TestKey>(keys: &[K]) -> Vec<u8> {
    keys.iter().flat_map(|key| key.bits().to_le_bytes().into_iter().take(size_of::<K>())).collect()
}

/// Memory that holds `byte` until something is written; one value more than asked, since the driver allocates nothing
/// of size 0.
fn filled<T: DeviceCopy + Pod>(len: usize, byte: u8) -> Result<DeviceBuffer<T>, String> {
    // SAFETY: the fill that follows initialises it, and any bits are values of the integers it is used for.
    let mut buffer = unsafe { DeviceBuffer::uninitialized(len + 1) }.map_err(driver)?;
    buffer.set_8(byte).map_err(driver)?;
    Ok(buffer)
}

impl<K: TestKey> Batch<K> {
    fn new(shape: BatchShape, seed: u64) -> Result<Self, String> {
        let BatchShape { rows, columns, k, best, ragged } = shape;
        let mut random = Random::new(seed);
        let gap = u64::from(!ragged) * 3;
        let mut starts = vec![u64::from(ragged) * 5];
        for row in 0..rows as usize {
            let length = if ragged && row > 0 { random.below(columns as usize + 1) as u64 } else { columns.into() };
            starts.push(starts[row] + length + gap);
        }
        let lengths = starts.windows(2).map(|pair| random.below((pair[1] - pair[0] - gap) as usize + 1) as u32);
        let lengths: Vec<u32> = lengths.collect();
        let end = starts[rows as usize] as usize;
        let host = data::keys::<K>(KeyData::SomeNan, best, end, columns as usize, seed);
        let slots = (rows * k) as usize;
        let ids: Vec<u64> = (0..end as u64).map(|at| at << 32 | 9).collect();
        let small_ids: Vec<u32> = (0..end as u32).map(|at| at ^ 0x5a5a_5a5a).collect();
        let batch = Batch {
            shape,
            keys: DeviceBuffer::from_slice(&bytes(&host)).map_err(driver)?,
            device_starts: DeviceBuffer::from_slice(&starts).map_err(driver)?,
            device_lengths: DeviceBuffer::from_slice(&lengths).map_err(driver)?,
            found_keys: filled(slots * size_of::<K>(), 0x11)?,
            found_positions: filled(slots, 0x11)?,
            payloads: DeviceBuffer::from_slice(&ids).map_err(driver)?,
            found_payloads: filled(slots, 0x11)?,
            small_payloads: DeviceBuffer::from_slice(&small_ids).map_err(driver)?,
            found_small: filled(slots, 0x11)?,
            host,
            starts,
            lengths,
        };
        uploaded().map(|()| batch)
    }

    fn rows(&self) -> DeviceRows<K> {
        let BatchShape { rows, columns, ragged, .. } = self.shape;
        let keys = self.keys.as_device_ptr().as_ptr().cast();
        let batch = if ragged {
            DeviceRows::ragged(keys, self.device_starts.as_device_ptr().as_ptr(), rows, columns)
        } else {
            DeviceRows::strided(keys, rows, columns, u64::from(columns) + 3)
        };
        batch.with_lengths(self.device_lengths.as_device_ptr().as_ptr())
    }

    /// Selection and look-up of both payloads, on a stream.
    fn enqueue(&self, select: &DeviceSelect<K>, stream: CUstream, workspace: &DeviceBuffer<u8>) -> Outcome {
        let positions = self.found_positions.as_device_ptr().as_mut_ptr();
        let results = DeviceResults { keys: self.found_keys.as_device_ptr().as_mut_ptr().cast(), positions };
        // SAFETY: the buffers have the shapes of the batch, and the test waits for the stream before it drops them.
        unsafe {
            select.run(stream, &self.rows(), &results, workspace.as_device_ptr().as_mut_ptr()).map_err(text)?;
            let (payloads, found) = (self.payloads.as_device_ptr().as_ptr(), self.found_payloads.as_device_ptr());
            select.gather_payloads(stream, &self.rows(), positions, payloads, found.as_mut_ptr()).map_err(text)?;
            let (payloads, found) = (self.small_payloads.as_device_ptr().as_ptr(), self.found_small.as_device_ptr());
            select.gather_payloads(stream, &self.rows(), positions, payloads, found.as_mut_ptr()).map_err(text)
        }
    }

    /// Compares what is on the device with the reference, to the bit; the stream is done.
    fn verify(&self) -> Outcome {
        let BatchShape { rows, k, best, .. } = self.shape;
        let (k, width) = (k as usize, size_of::<K>());
        let positions = self.found_positions.as_host_vec().map_err(driver)?;
        let keys = self.found_keys.as_host_vec().map_err(driver)?;
        let payloads = self.found_payloads.as_host_vec().map_err(driver)?;
        let small = self.found_small.as_host_vec().map_err(driver)?;
        let past = (positions[rows as usize * k], keys[rows as usize * k * width]);
        if past != (0x1111_1111, 0x11) {
            return Err(format!("{:?}: wrote past the results: {past:x?}", self.shape));
        }
        for row in 0..rows as usize {
            let start = self.starts[row] as usize;
            let row_keys = &self.host[start..start + self.lengths[row] as usize];
            let values: Vec<f64> = row_keys.iter().map(|key| key.value()).collect();
            for (place, position) in reference::select(best, &values, k).into_iter().enumerate() {
                let slot = row * k + place;
                let mut bits = [0; 4];
                bits[..width].copy_from_slice(&keys[slot * width..(slot + 1) * width]);
                let found = (positions[slot], u32::from_le_bytes(bits), payloads[slot], small[slot]);
                let (at, bits) =
                    (start as u64 + u64::from(position), K::selected(best, values.get(position as usize)).bits());
                let expected = match position {
                    NO_POSITION => (position, bits, u64::MAX, u32::MAX),
                    _ => (position, bits, at << 32 | 9, at as u32 ^ 0x5a5a_5a5a),
                };
                if found != expected {
                    return Err(format!(
                        "{:?}, row {row} of {} keys, place {place}: position, key, payloads {found:x?}; expected \
                         {expected:x?}",
                        self.shape,
                        values.len()
                    ));
                }
            }
        }
        Ok(())
    }
}

fn plan<K: TestKey>(device: Device, shape: BatchShape, algorithm: Algorithm) -> Result<DeviceSelect<K>, String> {
    let BatchShape { rows, columns, k, best, .. } = shape;
    DeviceSelect::new(index(device)?, rows, columns, k, best, algorithm).map_err(text)
}

/// One plan on two streams at once, two batches one after the other on each with the stream's one workspace.
fn two_streams<K: TestKey>(device: Device) -> Outcome {
    let _context = enter(device)?;
    let stream = || Stream::new(StreamFlags::DEFAULT, None).map_err(driver);
    let streams = [stream()?, stream()?];
    for (number, (rows, columns, k)) in SHAPES.into_iter().enumerate() {
        for algorithm in Algorithm::ALL {
            if algorithm == Algorithm::WarpSelect && K::TYPE != KeyType::F32 {
                continue;
            }
            let best = if number % 2 == 0 { Best::Smallest } else { Best::Largest };
            let shape = BatchShape { rows, columns, k, best, ragged: number % 2 == 1 };
            let select = plan::<K>(device, shape, algorithm)?;
            let workspaces = [filled(select.workspace_bytes(), 0xff)?, filled(select.workspace_bytes(), 0xff)?];
            let smaller = BatchShape { rows: rows.div_ceil(2), ragged: !shape.ragged, ..shape };
            let mut batches = Vec::new();
            for (turn, shape) in [shape, shape, smaller, smaller].into_iter().enumerate() {
                batches.push(Batch::<K>::new(shape, 900 + 10 * number as u64 + turn as u64)?);
            }
            for (turn, batch) in batches.iter().enumerate() {
                batch.enqueue(&select, streams[turn % 2].as_inner(), &workspaces[turn % 2])?;
            }
            streams.iter().try_for_each(|stream| stream.synchronize()).map_err(driver)?;
            batches.iter().try_for_each(|batch| batch.verify().map_err(|failure| format!("{algorithm}: {failure}")))?;
        }
    }
    Ok(())
}

/// Threads with separate streams; one of them uses the default stream.
fn threads_share_a_plan(device: Device) -> Outcome {
    let shape = BatchShape { rows: 200, columns: 5000, k: 40, best: Best::Smallest, ragged: false };
    let select = plan::<f32>(device, shape, Algorithm::Auto)?;
    let work = |thread: u64| -> Outcome {
        let _context = enter(device)?;
        let own = Stream::new(StreamFlags::DEFAULT, None).map_err(driver)?;
        let stream = if thread == 0 { ptr::null_mut() } else { own.as_inner() };
        let workspace = filled(select.workspace_bytes(), 0xff)?;
        for round in 0..5 {
            let batch = Batch::new(BatchShape { ragged: round % 2 == 1, ..shape }, 700 + 10 * thread + round)?;
            batch.enqueue(&select, stream, &workspace)?;
            // SAFETY: the stream is this thread's, or the default one.
            check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(stream) })?;
            batch.verify().map_err(|failure| format!("thread {thread}, round {round}: {failure}"))?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|thread| scope.spawn(move || work(thread))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| Err("a thread panicked".to_owned())))
    })
}

/// A stream that does not wait for the default one, which other tests use meanwhile: their work there would end a
/// capture. cust makes no such stream, whatever flags it is given.
pub(crate) struct OwnStream(CUstream);

impl OwnStream {
    pub(crate) fn new() -> Result<OwnStream, String> {
        let (mut stream, flags) = (ptr::null_mut(), sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32);
        // SAFETY: the driver writes the handle.
        let made = unsafe { sys::cuStreamCreateWithPriority(&mut stream, flags, 0) };
        check("cuStreamCreateWithPriority", made).map(|()| OwnStream(stream))
    }

    pub(crate) fn as_inner(&self) -> CUstream {
        self.0
    }

    /// Waits for the work of the stream.
    pub(crate) fn synchronize(&self) -> Outcome {
        // SAFETY: the stream is this test's.
        check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(self.0) })
    }
}

impl Drop for OwnStream {
    fn drop(&mut self) {
        // SAFETY: the stream is this test's. The driver destroys it when its work is done. An error says what failed
        // before, which the test reports.
        let _ = unsafe { sys::cuStreamDestroy_v2(self.0) };
    }
}

/// An event of the test's own, without a time.
pub(crate) struct OwnEvent(sys::CUevent);

impl OwnEvent {
    pub(crate) fn new() -> Result<OwnEvent, String> {
        let (mut event, flags) = (ptr::null_mut(), sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING as u32);
        // SAFETY: the driver writes the handle.
        check("cuEventCreate", unsafe { sys::cuEventCreate(&mut event, flags) }).map(|()| OwnEvent(event))
    }

    /// Makes the next work of `second` wait for the work of `first` so far.
    ///
    /// # Safety
    /// Both streams live.
    pub(crate) unsafe fn order(&self, first: CUstream, second: CUstream) -> Outcome {
        // SAFETY: as the caller promises.
        unsafe {
            check("cuEventRecord", sys::cuEventRecord(self.0, first))?;
            check("cuStreamWaitEvent", sys::cuStreamWaitEvent(second, self.0, 0))
        }
    }
}

impl Drop for OwnEvent {
    fn drop(&mut self) {
        // SAFETY: the event is this test's. The driver destroys it when no work waits for it.
        let _ = unsafe { sys::cuEventDestroy_v2(self.0) };
    }
}

/// Whether a test captures a stream, or waits for a whole context. Such a wait ends the captures of all threads.
static CAPTURES: RwLock<()> = RwLock::new(());

/// While this lives, no test waits for a whole context.
pub(crate) fn capturing() -> RwLockReadGuard<'static, ()> {
    CAPTURES.read().unwrap_or_else(PoisonError::into_inner)
}

/// While this lives, no test captures a stream.
pub(crate) fn not_capturing() -> RwLockWriteGuard<'static, ()> {
    CAPTURES.write().unwrap_or_else(PoisonError::into_inner)
}

/// Work that was captured, and can be launched again and again.
pub(crate) struct Graph {
    graph: sys::CUgraph,
    program: sys::CUgraphExec,
}

impl Graph {
    /// Captures what `work` enqueues on the stream.
    ///
    /// # Safety
    /// The stream is the caller's alone.
    pub(crate) unsafe fn captured(stream: CUstream, work: impl FnOnce() -> Outcome) -> Result<Graph, String> {
        let (mut graph, mut program) = (ptr::null_mut(), ptr::null_mut());
        let _capturing = capturing();
        // SAFETY: the stream is the caller's alone; the driver writes the handles.
        unsafe {
            let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
            check("cuStreamBeginCapture", sys::cuStreamBeginCapture_v2(stream, mode))?;
            let captured = work();
            let ended = check("cuStreamEndCapture", sys::cuStreamEndCapture(stream, &mut graph));
            captured.and(ended)?;
            let none: *mut c_char = ptr::null_mut();
            let made = sys::cuGraphInstantiate_v2(&mut program, graph, ptr::null_mut(), none, 0);
            check("cuGraphInstantiate", made)?;
        }
        Ok(Graph { graph, program })
    }

    /// Launches the work, and waits for the stream.
    ///
    /// # Safety
    /// All memory that the work uses is alive, and no other work uses it.
    pub(crate) unsafe fn run(&self, stream: CUstream) -> Outcome {
        // SAFETY: as the caller promises.
        unsafe {
            check("cuGraphLaunch", sys::cuGraphLaunch(self.program, stream))?;
            check("cuStreamSynchronize", sys::cuStreamSynchronize(stream))
        }
    }

    /// Destroys the graph, no launch of which is under way.
    pub(crate) fn destroy(self) -> Outcome {
        // SAFETY: `run` waits for each launch, so both are idle, and nothing else has the handles.
        unsafe {
            check("cuGraphExecDestroy", sys::cuGraphExecDestroy(self.program))?;
            check("cuGraphDestroy", sys::cuGraphDestroy(self.graph))
        }
    }
}

/// While a stream is captured, the driver refuses whatever allocates or waits in the capturing thread: a run that can
/// be captured only enqueues. The graph then selects from whatever the buffers hold.
fn captured_into_a_graph(device: Device) -> Outcome {
    let _context = enter(device)?;
    let own = OwnStream::new()?;
    let stream = own.as_inner();
    for (number, (rows, columns, k)) in SHAPES.into_iter().enumerate() {
        let shape = BatchShape { rows, columns, k, best: Best::Smallest, ragged: number % 2 == 0 };
        let select = plan::<f32>(device, shape, Algorithm::Auto)?;
        let workspace = filled(select.workspace_bytes(), 0xff)?;
        let mut batch = Batch::<f32>::new(shape, 400 + number as u64)?;
        // SAFETY: the stream is this test's.
        let graph = unsafe { Graph::captured(stream, || batch.enqueue(&select, stream, &workspace))? };
        for round in 0..2 {
            if round > 0 {
                batch.host.reverse();
                batch.keys.copy_from(&bytes(&batch.host)).map_err(driver)?;
                uploaded()?;
            }
            // SAFETY: the graph's buffers live; the stream is this test's.
            unsafe { graph.run(stream)? };
            batch.verify().map_err(|failure| format!("launch {round} of the graph: {failure}"))?;
        }
        graph.destroy()?;
    }
    Ok(())
}

/// A thread without a context still has none after each call; one with a context keeps it.
fn the_callers_context_stays(device: Device) -> Outcome {
    let current = || -> Result<sys::CUcontext, String> {
        let mut context = ptr::null_mut();
        // SAFETY: the driver writes the handle.
        check("cuCtxGetCurrent", unsafe { sys::cuCtxGetCurrent(&mut context) }).map(|()| context)
    };
    let context = enter(device)?;
    let shape = BatchShape { rows: 9, columns: 300, k: 4, best: Best::Largest, ragged: true };
    let batch = Batch::<i32>::new(shape, 300)?;
    for own in [context.as_raw(), ptr::null_mut()] {
        // SAFETY: a context that is kept, or none.
        check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(own) })?;
        let select = plan::<i32>(device, shape, Algorithm::Auto)?;
        let after_plan = current()?;
        // SAFETY: as above: the workspace needs the context.
        check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(context.as_raw()) })?;
        let workspace = filled(select.workspace_bytes(), 0xff)?;
        let stream = Stream::new(StreamFlags::DEFAULT, None).map_err(driver)?;
        // SAFETY: as above.
        check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(own) })?;
        batch.enqueue(&select, stream.as_inner(), &workspace)?;
        let after_run = current()?;
        if (after_plan, after_run) != (own, own) {
            return Err(format!("current context {own:?}; after planning {after_plan:?}, after a run {after_run:?}"));
        }
        // SAFETY: as above.
        check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(context.as_raw()) })?;
        stream.synchronize().map_err(driver)?;
        batch.verify()?;
    }
    Ok(())
}
