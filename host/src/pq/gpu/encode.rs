//! Codes of product quantizers, computed on a device.

use cuda_std::{Ptr, PtrMut};
use warpann_kernels::pq::encode::{BLOCK_ROWS, Encode, FEWEST_CODEWORDS, GROUP, Staging, shared_bytes};

use crate::device::lanes::Lanes;
use crate::device::limits::Limits;
use crate::device::runtime::{Runtime, Stream};
use crate::device::scratch::Layout;
use crate::device::tiling::{Budget, Tiling, bus_rows};
use crate::pq::quantizer::ProductQuantizer;
use crate::{Result, host_memory};

/// Sub-quantizers are spread over blocks until a multiprocessor has this number of blocks.
const BLOCKS_PER_MULTIPROCESSOR: u32 = 4;
/// Largest number of blocks along y.
const MAX_GRID_Y: u32 = 65535;

/// The launch of a batch.
struct EncodePlan {
    staging: Staging,
    /// Number of codewords in shared memory at a time.
    piece: u32,
    /// Number of sub-quantizers of a block.
    run: u32,
}

impl EncodePlan {
    fn new(limits: &Limits, quantizer: &ProductQuantizer, rows: u32) -> EncodePlan {
        let (width, codewords) = (quantizer.width() as u64, quantizer.codewords() as u32);
        let bytes = |piece: u32| shared_bytes(width, u64::from(piece));
        // Halve the piece until several blocks share a multiprocessor, if possible.
        let share = u64::from(limits.shared_bytes / BLOCKS_PER_MULTIPROCESSOR);
        let mut piece = codewords;
        while piece > FEWEST_CODEWORDS && bytes(piece) > share {
            piece /= 2;
        }
        let (staging, piece) = if bytes(piece) <= u64::from(limits.shared_bytes) {
            (Staging::Shared, piece)
        } else {
            (Staging::Global, codewords)
        };
        let groups = (quantizer.sub_quantizers() as u32).div_ceil(GROUP);
        let wanted = (BLOCKS_PER_MULTIPROCESSOR * limits.multiprocessors).div_ceil(rows.div_ceil(BLOCK_ROWS).max(1));
        let run = groups.div_ceil(wanted.clamp(1, groups.min(MAX_GRID_Y)));
        EncodePlan { staging, piece, run: run * GROUP }
    }
}

/// Rows and codes in device memory.
#[derive(Clone, Copy)]
pub(crate) struct OnDevice {
    /// The rows, f32, `stride` components apart; centroids have the same stride.
    pub rows: Ptr<f32>,
    /// Number of components from one row to the next.
    pub stride: u32,
    /// Number of rows, at least one.
    pub count: u32,
    /// The number of the centroid that is subtracted from each row. Without labels nothing is subtracted, and
    /// `centroids` is empty.
    pub labels: Option<Ptr<u32>>,
    /// The centroids of all lists, `stride` components apart.
    pub centroids: Ptr<f32>,
    /// The codebooks, component by component: M × width × 2^bits.
    pub codebooks: Ptr<f32>,
    /// The codes, `code_bytes` for each row.
    pub codes: PtrMut<u8>,
}

/// Launches the encoding of at least one row.
///
/// # Safety
/// The arrays have the lengths that the shapes require, and every label names a centroid.
pub(crate) unsafe fn enqueue(
    runtime: &Runtime,
    stream: &Stream,
    quantizer: &ProductQuantizer,
    rows: OnDevice,
) -> Result<()> {
    let EncodePlan { staging, piece, run } = EncodePlan::new(runtime.limits(), quantizer, rows.count);
    let launch = Encode {
        rows: rows.rows,
        row_count: rows.count,
        labels: rows.labels,
        centroids: rows.centroids,
        codebooks: rows.codebooks,
        stride: rows.stride,
        sub_quantizers: quantizer.sub_quantizers() as u32,
        width: quantizer.width() as u32,
        bits: quantizer.bits(),
        piece,
        run,
        codes: rows.codes,
    };
    // SAFETY: as the caller promises; the plan stages in shared memory only what fits there.
    unsafe { runtime.launch(stream, Encode::kernel(staging), launch.config(staging), launch) }
}

/// Encodes checked `rows` within `budget` bytes of device memory; `None` means nine tenths of the free memory.
pub(crate) fn encode(
    runtime: &Runtime,
    quantizer: &ProductQuantizer,
    rows: &[f32],
    budget: Option<u64>,
) -> Result<Vec<u8>> {
    let (dim, code_bytes) = (quantizer.dim(), quantizer.code_bytes());
    let count = rows.len() / dim;
    let mut codes = host_memory::zeroed(host_memory::count::<u8>(&[count, code_bytes])?)?;
    if count == 0 {
        return Ok(codes);
    }
    // All tiles share the codebooks.
    let mut layout = Layout::default();
    let codebooks = layout.array::<f32>(quantizer.codebooks().len());
    let place = |count: usize| {
        let mut layout = Layout::default();
        let rows = layout.array::<f32>(count.saturating_mul(dim));
        let codes = layout.array::<u8>(count.saturating_mul(code_bytes));
        Ok(((rows, codes), layout))
    };
    let budget = Budget::new(runtime, runtime.budget(budget)?).with_shared(layout.bytes());
    let tiling = Tiling::overlapped(budget, (count, bus_rows(4 * dim)), place)?;
    let memory = runtime.allocate(layout.bytes())?;
    let codebooks = runtime.scratch(&memory).at(codebooks);
    let pool = Lanes::new();
    pool.with(runtime, |lane| {
        // SAFETY: the layout reserved the array.
        unsafe { runtime.copy_to_device(&lane.stream, codebooks, quantizer.all_transposed())? };
        runtime.synchronize(&lane.stream)
    })?;
    let ((rows_place, codes_place), tile_layout) = &tiling.plan;
    tiling.run(runtime, &pool, codes.chunks_mut(tiling.rows * code_bytes), |lane, tile, codes| {
        let rows = &rows[tile.start * dim..tile.end * dim];
        let scratch = lane.scratch(runtime, tile_layout.bytes())?;
        let device_rows = scratch.at(*rows_place).take(rows.len());
        let device_codes = scratch.at(*codes_place).take(codes.len());
        let on_device = OnDevice {
            rows: device_rows.into(),
            stride: dim as u32,
            count: tile.len() as u32,
            labels: None,
            centroids: Ptr::empty(),
            codebooks: codebooks.into(),
            codes: device_codes,
        };
        // SAFETY: the layouts reserved the arrays for the largest number of rows of a tile. The copy to the host waits
        // for the kernel.
        unsafe {
            runtime.copy_to_device(&lane.stream, device_rows, rows)?;
            enqueue(runtime, &lane.stream, quantizer, on_device)?;
            runtime.copy_to_host(&lane.stream, codes, device_codes)
        }
    })?;
    Ok(codes)
}
