//! Product-quantizer codes on a device.

use cuda_std::launch::LaunchConfig;
use warpann_kernels::encode::{
    BLOCK_ROWS, ENCODE_DIRECT, ENCODE_STAGED, FEWEST_CODEWORDS, GROUP, THREADS, shared_bytes,
};

use super::batches::Batches;
use super::runtime::{Lanes, Layout, Limits, Runtime, grid};
use crate::Result;
use crate::pq::ProductQuantizer;
use crate::pq::encode::Residuals;

/// Blocks a multiprocessor should have at least, before sub-quantizers are spread over blocks.
const BLOCKS_PER_MULTIPROCESSOR: u32 = 4;
/// The most blocks along y.
const MAX_GRID_Y: u32 = 65535;

/// How a batch is launched.
struct Plan {
    staged: bool,
    /// Codewords in shared memory at once.
    piece: u32,
    shared_bytes: u32,
    /// Sub-quantizers of a block.
    run: u32,
    grid: [u32; 3],
}

impl Plan {
    fn new(limits: &Limits, quantizer: &ProductQuantizer, rows: usize) -> Result<Plan> {
        let (width, codewords) = (quantizer.width() as u64, quantizer.codewords() as u32);
        let bytes = |piece: u32| shared_bytes(width, u64::from(piece));
        // Small enough that several blocks share a multiprocessor, where a smaller piece can bring that about.
        let share = u64::from(limits.shared_bytes / BLOCKS_PER_MULTIPROCESSOR);
        let mut piece = codewords;
        while piece > FEWEST_CODEWORDS && bytes(piece) > share {
            piece /= 2;
        }
        let staged = bytes(piece) <= u64::from(limits.shared_bytes);
        let (piece, shared_bytes) = if staged { (piece, bytes(piece) as u32) } else { (codewords, 0) };
        let blocks = grid(ENCODE_STAGED.name(), (rows as u64).div_ceil(u64::from(BLOCK_ROWS)))?;
        let groups = (quantizer.sub_quantizers() as u32).div_ceil(GROUP);
        let wanted = (BLOCKS_PER_MULTIPROCESSOR * limits.multiprocessors).div_ceil(blocks.max(1));
        let run = groups.div_ceil(wanted.clamp(1, groups.min(MAX_GRID_Y)));
        Ok(Plan { staged, piece, shared_bytes, run: run * GROUP, grid: [blocks, groups.div_ceil(run), 1] })
    }
}

/// Where the arrays of a batch lie.
struct Batch {
    rows: usize,
    labels: usize,
    codes: usize,
    bytes: usize,
}

impl Batch {
    fn new(quantizer: &ProductQuantizer, count: usize, labels: bool) -> Batch {
        let mut layout = Layout::default();
        let rows = layout.array::<f32>(count.saturating_mul(quantizer.dim()));
        let labels = layout.array::<u32>(if labels { count } else { 0 });
        let codes = layout.array::<u8>(count.saturating_mul(quantizer.code_bytes()));
        Batch { rows, labels, codes, bytes: layout.bytes() }
    }
}

/// See [`super::encode_pq`].
pub(super) fn encode<R: Runtime>(
    runtime: &R,
    quantizer: &ProductQuantizer,
    rows: &[f32],
    residuals: Option<Residuals<'_>>,
    budget: Option<u64>,
) -> Result<Vec<u8>> {
    let (dim, code_bytes) = (quantizer.dim(), quantizer.code_bytes());
    let count = rows.len() / dim;
    let (labels, centroids) = residuals.map_or((&[][..], &[][..]), |all| (all.labels, all.centroids));
    if residuals.is_some() {
        let lists = centroids.len() / dim;
        assert!(labels.len() == count && labels.iter().all(|&list| (list as usize) < lists), "a list for each row");
    }
    let mut codes = vec![0; count * code_bytes];
    if count == 0 {
        return Ok(codes);
    }
    // What all batches read.
    let mut layout = Layout::default();
    let codebooks_at = layout.array::<f32>(quantizer.codebooks().len());
    let centroids_at = layout.array::<f32>(centroids.len());
    let place = |count: usize| Batch::new(quantizer, count, residuals.is_some());
    let batches = Batches::new(runtime, budget, layout.bytes(), (count, 4 * dim), |count| place(count).bytes)?;
    let memory = runtime.allocate(layout.bytes())?;
    let pool = Lanes::new();
    pool.with(runtime, |lane| {
        let shared = runtime.address(&memory);
        // SAFETY: the layout reserved both arrays.
        unsafe {
            let stream = &lane.stream;
            runtime.upload(
                stream,
                shared.wrapping_add(codebooks_at),
                bytemuck::cast_slice(quantizer.all_transposed()),
            )?;
            runtime.upload(stream, shared.wrapping_add(centroids_at), bytemuck::cast_slice(centroids))?;
        }
        runtime.synchronize(&lane.stream)
    })?;

    let limits = runtime.limits();
    batches.run(runtime, &pool, (rows, dim), (&mut codes, code_bytes), |lane, first, rows, codes| {
        let (count, place) = (rows.len() / dim, place(batches.rows));
        let plan = Plan::new(&limits, quantizer, count)?;
        let shared = runtime.address(&memory);
        let scratch = lane.scratch(runtime, place.bytes)?;
        let (rows_at, codes_at) = (scratch.wrapping_add(place.rows), scratch.wrapping_add(place.codes));
        let (mut labels_at, mut centroids) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the layouts reserved the arrays; a batch has at most as many rows as its place, labels name centroids as
        // asserted above, and the download waits for the kernel.
        unsafe {
            runtime.upload(&lane.stream, rows_at, bytemuck::cast_slice(rows))?;
            if residuals.is_some() {
                (labels_at, centroids) = (scratch.wrapping_add(place.labels), shared.wrapping_add(centroids_at));
                runtime.upload(&lane.stream, labels_at, bytemuck::cast_slice(&labels[first..first + count]))?;
            }
            let config = LaunchConfig { grid: plan.grid, block: [THREADS, 1, 1], shared_bytes: plan.shared_bytes };
            let kernel = if plan.staged { &ENCODE_STAGED } else { &ENCODE_DIRECT };
            let args = (
                rows_at.cast_const().cast(),
                count as u32,
                labels_at.cast_const().cast(),
                centroids.cast_const().cast(),
                shared.wrapping_add(codebooks_at).cast_const().cast(),
                quantizer.sub_quantizers() as u32,
                quantizer.width() as u32,
                quantizer.bits(),
                plan.piece,
                plan.run,
                codes_at,
            );
            runtime.launch(&lane.stream, kernel, config, args)?;
            runtime.download(&lane.stream, codes, codes_at)
        }
    })?;
    Ok(codes)
}
