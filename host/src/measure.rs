//! Device times of parts of the library, with data resident on the GPU: what `warpann bench` prints.

use cust::event::{Event, EventFlags};

use crate::gpu::cuda::{self, CudaDevice};
use crate::gpu::runtime::{Layout, Runtime};
use crate::gpu::select::{Cut, Select, select};
use crate::select::{Best, select_k};
use crate::{Device, Error, Result};

/// Times of repeated runs by device events, in milliseconds, ascending.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceTimes(Vec<f32>);

impl DeviceTimes {
    /// The median (the lower of the middle two).
    pub fn median(&self) -> f32 {
        self.0[(self.0.len() - 1) / 2]
    }

    /// All times, ascending.
    pub fn milliseconds(&self) -> &[f32] {
        &self.0
    }

    /// Two runs without a watch, then `repeat`, each after `flush`, whose work keeps the stream busy while the watched
    /// launches queue up: what is measured is the device, not the host's launching.
    fn measure(
        device: &CudaDevice,
        stream: &<CudaDevice as Runtime>::Stream,
        repeat: usize,
        mut flush: impl FnMut() -> Result<()>,
        mut work: impl FnMut() -> Result<()>,
    ) -> Result<DeviceTimes> {
        let event = || Event::new(EventFlags::DEFAULT).map_err(device.failed("cuEventCreate"));
        let (start, end) = (event()?, event()?);
        work()?;
        work()?;
        let mut times = Vec::new();
        for _ in 0..repeat.max(1) {
            flush()?;
            start.record(stream).map_err(device.failed("cuEventRecord"))?;
            work()?;
            end.record(stream).map_err(device.failed("cuEventRecord"))?;
            end.synchronize().map_err(device.failed("cuEventSynchronize"))?;
            times.push(end.elapsed_time_f32(&start).map_err(device.failed("cuEventElapsedTime"))?);
        }
        times.sort_by(f32::total_cmp);
        Ok(DeviceTimes(times))
    }
}

/// What [`selection`] measured.
#[derive(Debug, Clone, PartialEq)]
pub struct SelectionTimes {
    /// The device in words.
    pub device: String,
    /// k-selection of all rows.
    pub select: DeviceTimes,
    /// A device-to-device copy of the keys: reads and writes each once.
    pub copy: DeviceTimes,
}

/// More than the L2 cache of any GPU: copying as much leaves nothing in it of what was there.
const FLUSH_BYTES: usize = 256 << 20;

/// Times of a device-to-device copy of `bytes` on GPU `index`, which reads and writes each once: a ceiling of the memory.
///
/// # Errors
/// As opening the device; [`Error::OutOfDeviceMemory`] if twice `bytes` do not fit.
pub fn copy(index: usize, bytes: usize, repeat: usize) -> Result<DeviceTimes> {
    let device = cuda::open(index)?;
    let mut layout = Layout::default();
    let (from, to) = (layout.array::<u8>(bytes), layout.array::<u8>(bytes));
    let memory = device.allocate(layout.bytes())?;
    let part = |offset: usize| device.address(&memory).wrapping_add(offset);
    let stream = device.stream()?;
    // SAFETY: the layout reserved `bytes` for each part.
    let run = || unsafe { device.copy(&stream, part(to), part(from), bytes) };
    DeviceTimes::measure(&device, &stream, repeat, || Ok(()), run)
}

/// Times the selection of the `k` smallest of `rows` × `columns` random keys that lie on GPU `index`: [`selection_of`] on
/// keys that repeat after 100 rows.
///
/// # Errors
/// As [`selection_of`].
pub fn selection(index: usize, rows: usize, columns: usize, k: usize, repeat: usize) -> Result<SelectionTimes> {
    let mut state = 1u64;
    let keys: Vec<f32> = std::iter::repeat_with(|| {
        // xorshift64
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u32 << 24) as f32
    })
    .take(rows.clamp(1, 100) * columns)
    .collect();
    selection_of(index, &keys, rows, columns, k, repeat)
}

/// Times the selection of the `k` smallest of each of `rows` rows that lie on GPU `index`, and checks the first rows and
/// the last of the result against the CPU's. `keys` holds whole rows of `columns` keys, at least one, and is repeated until
/// there are `rows` of them (0 is taken as 1). Before each run something else fills the L2 cache.
///
/// # Errors
/// [`Error::RaggedVectors`] if `keys` is not whole rows or has none; [`Error::ZeroK`]; as opening the device;
/// [`Error::OutOfDeviceMemory`] if keys (twice) and results do not fit; [`Error::WrongSelection`] if the results differ.
pub fn selection_of(
    index: usize,
    keys: &[f32],
    rows: usize,
    columns: usize,
    k: usize,
    repeat: usize,
) -> Result<SelectionTimes> {
    if columns == 0 || keys.is_empty() || !keys.len().is_multiple_of(columns) {
        return Err(Error::RaggedVectors { len: keys.len(), dim: columns });
    }
    if k == 0 {
        return Err(Error::ZeroK);
    }
    let rows = rows.max(1);
    let device = cuda::open(index)?;
    let block = rows.min(keys.len() / columns);
    let mut layout = Layout::default();
    let all_keys = layout.array::<f32>(rows * columns);
    let copied = layout.array::<f32>(rows * columns);
    let out_keys = layout.array::<f32>(rows * k);
    let out_ids = layout.array::<u32>(rows * k);
    let cut = Cut::choose(rows as u32, columns as u32, k as u32, device.multiprocessors());
    let scratch = cut.reserve(&mut layout, rows as u32, k as u32);
    let (flushed, flushing) = (layout.array::<u8>(FLUSH_BYTES), layout.array::<u8>(FLUSH_BYTES));
    let memory = device.allocate(layout.bytes())?;
    let part = |offset: usize| device.address(&memory).wrapping_add(offset);
    let stream = device.stream()?;
    let bytes = rows * columns * size_of::<f32>();
    let what = Select {
        keys: part(all_keys).cast(),
        ids: std::ptr::null(),
        row_stride: columns as u64,
        lengths: std::ptr::null(),
        columns: columns as u32,
        rows: rows as u32,
        k: k as u32,
        best: Best::Smallest,
        out_keys: part(out_keys).cast(),
        out_ids: part(out_ids).cast(),
    };
    // SAFETY: the layout reserved every part; the stream runs the uploads first.
    let (select, copy) = unsafe {
        for first in (0..rows).step_by(block) {
            let keys = &keys[..(rows - first).min(block) * columns];
            device.upload(&stream, part(all_keys).wrapping_add(4 * first * columns), bytemuck::cast_slice(keys))?;
        }
        let run = || select(&device, &stream, &what, &cut, part(0), &scratch);
        let flush = || device.copy(&stream, part(flushed), part(flushing), FLUSH_BYTES);
        let select = DeviceTimes::measure(&device, &stream, repeat, flush, run)?;
        let run = || device.copy(&stream, part(copied), part(all_keys), bytes);
        (select, DeviceTimes::measure(&device, &stream, repeat, flush, run)?)
    };
    // The last rows lie after all repetitions.
    for row in (0..rows.min(4)).chain(rows.saturating_sub(4).max(4)..rows) {
        let like = row % block * columns;
        let expected = select_k(Device::Cpu, &keys[like..like + columns], columns, None, k, Best::Smallest)?;
        let (mut out, mut ids) = (vec![0f32; k], vec![0u32; k]);
        // SAFETY: the selection wrote k results for each row.
        unsafe {
            device.download(&stream, bytemuck::cast_slice_mut(&mut out), part(out_keys + 4 * row * k))?;
            device.download(&stream, bytemuck::cast_slice_mut(&mut ids), part(out_ids + 4 * row * k))?;
        }
        if out != expected.keys || ids != expected.positions {
            return Err(Error::WrongSelection { row });
        }
    }
    Ok(SelectionTimes { device: device.describe(), select, copy })
}
