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

    fn measure(
        device: &CudaDevice,
        stream: &<CudaDevice as Runtime>::Stream,
        repeat: usize,
        mut work: impl FnMut() -> Result<()>,
    ) -> Result<DeviceTimes> {
        let event = || Event::new(EventFlags::DEFAULT).map_err(device.failed("cuEventCreate"));
        let (start, end) = (event()?, event()?);
        work()?;
        work()?;
        let mut times = Vec::new();
        for _ in 0..repeat.max(1) {
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

/// Times the selection of the `k` smallest of `rows` × `columns` random keys that lie on GPU `index`, and checks rows of the
/// result against the CPU's. Keys repeat after 100 rows.
///
/// # Errors
/// As opening the device; [`Error::OutOfDeviceMemory`] if keys and results do not fit; [`Error::WrongSelection`] if the results differ.
pub fn selection(index: usize, rows: usize, columns: usize, k: usize, repeat: usize) -> Result<SelectionTimes> {
    let device = cuda::open(index)?;
    let block = rows.min(100);
    let mut state = 1u64;
    let keys: Vec<f32> = std::iter::repeat_with(|| {
        // xorshift64
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u32 << 24) as f32
    })
    .take(block * columns)
    .collect();

    let mut layout = Layout::default();
    let all_keys = layout.array::<f32>(rows * columns);
    let copied = layout.array::<f32>(rows * columns);
    let out_keys = layout.array::<f32>(rows * k);
    let out_ids = layout.array::<u32>(rows * k);
    let cut = Cut::choose(rows as u32, columns as u32, k as u32, device.multiprocessors());
    let scratch = cut.reserve(&mut layout, rows as u32, k as u32);
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
        let select = DeviceTimes::measure(&device, &stream, repeat, run)?;
        let run = || device.copy(&stream, part(copied), part(all_keys), bytes);
        (select, DeviceTimes::measure(&device, &stream, repeat, run)?)
    };
    let checked = block.min(8);
    let expected = select_k(Device::Cpu, &keys[..checked * columns], columns, None, k, Best::Smallest)?;
    // The last rows repeat some of the block's rows.
    for (row, like) in (0..checked).map(|row| (row, row)).chain((rows - 1..rows).map(|row| (row, row % block))) {
        if like >= checked {
            continue;
        }
        let (mut keys, mut ids) = (vec![0f32; k], vec![0u32; k]);
        // SAFETY: the selection wrote k results for each row.
        unsafe {
            device.download(&stream, bytemuck::cast_slice_mut(&mut keys), part(out_keys + 4 * row * k))?;
            device.download(&stream, bytemuck::cast_slice_mut(&mut ids), part(out_ids + 4 * row * k))?;
        }
        let slots = like * k..(like + 1) * k;
        if keys != expected.keys[slots.clone()] || ids != expected.positions[slots] {
            return Err(Error::WrongSelection { row });
        }
    }
    Ok(SelectionTimes { device: device.describe(), select, copy })
}
