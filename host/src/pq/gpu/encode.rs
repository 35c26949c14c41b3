//! Product-quantizer codes on a device.

use warpann_kernels::pq::encode::{BLOCK_ROWS, Encode, FEWEST_CODEWORDS, GROUP, Staging, shared_bytes};

use crate::device::lanes::Lanes;
use crate::device::limits::Limits;
use crate::device::runtime::{Runtime, Stream};
use crate::device::scratch::Layout;
use crate::device::tiling::{Batches, bus_rows};
use crate::pq::ProductQuantizer;
use crate::{Result, host_memory};

/// Blocks a multiprocessor should have at least, before sub-quantizers are spread over blocks.
const BLOCKS_PER_MULTIPROCESSOR: u32 = 4;
/// The most blocks along y.
const MAX_GRID_Y: u32 = 65535;

/// How a batch is launched.
struct Plan {
    staging: Staging,
    /// Codewords in shared memory at once.
    piece: u32,
    /// Sub-quantizers of a block.
    run: u32,
}

impl Plan {
    fn new(limits: &Limits, quantizer: &ProductQuantizer, rows: u32) -> Plan {
        let (width, codewords) = (quantizer.width() as u64, quantizer.codewords() as u32);
        let bytes = |piece: u32| shared_bytes(width, u64::from(piece));
        // Small enough that several blocks share a multiprocessor, where a smaller piece can bring that about.
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
        Plan { staging, piece, run: run * GROUP }
    }
}

/// Rows on the device, and where their codes go there.
#[derive(Clone, Copy)]
pub(crate) struct OnDevice {
    /// Rows of f32, `stride` components from one to the next, as are centroids.
    pub rows: *const f32,
    /// See `rows`.
    pub stride: u32,
    /// How many.
    pub count: u32,
    /// The centroid that is subtracted from each row; null, as `centroids` is: nothing.
    pub labels: *const u32,
    /// See `labels`.
    pub centroids: *const f32,
    /// The transposed codebooks.
    pub codebooks: *const f32,
    /// The codes.
    pub codes: *mut u8,
}

/// Launches the encoding of rows, at least one.
///
/// # Safety
/// The pointers cover the shapes, and every label names a centroid.
pub(crate) unsafe fn enqueue(
    runtime: &Runtime,
    stream: &Stream,
    quantizer: &ProductQuantizer,
    what: OnDevice,
) -> Result<()> {
    let Plan { staging, piece, run } = Plan::new(&runtime.limits(), quantizer, what.count);
    let launch = Encode {
        rows: what.rows,
        row_count: what.count,
        labels: what.labels,
        centroids: what.centroids,
        codebooks: what.codebooks,
        stride: what.stride,
        sub_quantizers: quantizer.sub_quantizers() as u32,
        width: quantizer.width() as u32,
        bits: quantizer.bits(),
        piece,
        run,
        codes: what.codes,
    };
    // SAFETY: as the caller promises; the plan says whether shared memory holds what the kernel stages there.
    unsafe { runtime.launch(stream, Encode::kernel(staging), launch.config(staging), launch) }
}

/// See [`crate::open::encode_pq`].
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
    // What all batches read.
    let mut layout = Layout::default();
    let codebooks_at = layout.array::<f32>(quantizer.codebooks().len());
    let place = |count: usize| {
        let mut layout = Layout::default();
        let rows = layout.array::<f32>(count.saturating_mul(dim));
        let codes = layout.array::<u8>(count.saturating_mul(code_bytes));
        (rows, codes, layout.bytes())
    };
    let most = bus_rows(4 * dim);
    let batches = Batches::new(runtime, budget, layout.bytes(), (count, most), |count| place(count).2)?;
    let memory = runtime.allocate(layout.bytes())?;
    let pool = Lanes::new();
    pool.with(runtime, |lane| {
        let codebooks = runtime.address(&memory).wrapping_add(codebooks_at);
        // SAFETY: the layout reserved the array.
        unsafe { runtime.upload(&lane.stream, codebooks, bytemuck::cast_slice(quantizer.all_transposed()))? };
        runtime.synchronize(&lane.stream)
    })?;
    batches.run(runtime, &pool, codes.chunks_mut(batches.rows * code_bytes), |lane, first, codes| {
        let rows = batches.of(rows, dim, first);
        let (rows_at, codes_at, bytes) = place(batches.rows);
        let scratch = lane.scratch(runtime, bytes)?;
        let what = OnDevice {
            rows: scratch.wrapping_add(rows_at).cast(),
            stride: dim as u32,
            count: (rows.len() / dim) as u32,
            labels: std::ptr::null(),
            centroids: std::ptr::null(),
            codebooks: runtime.address(&memory).wrapping_add(codebooks_at).cast(),
            codes: scratch.wrapping_add(codes_at),
        };
        // SAFETY: the layouts reserved the arrays; a batch has at most as many rows as its place; the download waits for the kernel.
        unsafe {
            runtime.upload(&lane.stream, scratch.wrapping_add(rows_at), bytemuck::cast_slice(rows))?;
            enqueue(runtime, &lane.stream, quantizer, what)?;
            runtime.download(&lane.stream, codes, what.codes)
        }
    })?;
    Ok(codes)
}
