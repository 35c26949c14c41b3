//! Canonical inner products of rows with the rows of a matrix: a rotation, by the kernel that re-ranks candidates.

use cuda_std::launch::LaunchConfig;
use warpann_kernels::canonical::{CANONICAL_F32, WARPS_PER_BLOCK};

use super::batches::{Batches, bus_rows};
use super::runtime::{Lanes, Layout, Runtime, grid};
use super::sets::{Shape, upload_rows};
use crate::element::ElementType;
use crate::{Metric, Result};

/// Warps a multiprocessor should have at least, before the products of a row are spread over warps.
const WARPS_PER_MULTIPROCESSOR: u64 = 64;

/// See [`super::row_products`].
pub(super) fn row_products<R: Runtime>(runtime: &R, matrix: &[f32], rows: &[f32], dim: usize) -> Result<Vec<f32>> {
    let shape = Shape { element: ElementType::F32, metric: Metric::InnerProduct, dim };
    let columns = matrix.len() / dim;
    let count = rows.len() / dim;
    let mut out = vec![0.0; count * columns];
    if count == 0 {
        return Ok(out);
    }
    let place = |count: usize| {
        let mut layout = Layout::default();
        let rows = layout.array::<f32>(count.saturating_mul(shape.stride()));
        let out = layout.array::<f32>(count.saturating_mul(columns));
        (rows, out, layout.bytes())
    };
    let (_, _, matrix_bytes) = place(columns);
    let batches =
        Batches::new(runtime, None, matrix_bytes, (count, bus_rows(shape.row_bytes())), |count| place(count).2)?;
    let memory = runtime.allocate(matrix_bytes)?;
    let pool = Lanes::new();
    pool.with(runtime, |lane| {
        // SAFETY: the matrix has `columns` rows, for which there is room.
        unsafe { upload_rows(runtime, &lane.stream, shape, runtime.address(&memory), matrix)? };
        runtime.synchronize(&lane.stream)
    })?;
    let multiprocessors = u64::from(runtime.limits().multiprocessors);
    batches.run(runtime, &pool, out.chunks_mut(batches.rows * columns), |lane, first, out| {
        let rows = batches.of(rows, dim, first);
        let count = (rows.len() / dim) as u64;
        let slices = (WARPS_PER_MULTIPROCESSOR * multiprocessors).div_ceil(count).clamp(1, columns as u64);
        let blocks = grid(CANONICAL_F32.name(), (count * slices).div_ceil(u64::from(WARPS_PER_BLOCK)))?;
        let config = LaunchConfig { grid: [blocks, 1, 1], block: [32 * WARPS_PER_BLOCK, 1, 1], shared_bytes: 0 };
        let (rows_at, out_at, bytes) = place(batches.rows);
        let scratch = lane.scratch(runtime, bytes)?;
        let out_at = scratch.wrapping_add(out_at);
        let none: *const u32 = std::ptr::null();
        // SAFETY: a batch has at most as many rows as its place; without a list the kernel visits rows 0 to `columns` of the
        // matrix, all of which are there; the download waits for it.
        unsafe {
            upload_rows(runtime, &lane.stream, shape, scratch.wrapping_add(rows_at), rows)?;
            let args = (
                scratch.wrapping_add(rows_at).cast_const().cast(),
                runtime.address(&memory).cast_const().cast(),
                shape.stride() as u32,
                count as u32,
                0,
                none.cast(),
                none.cast(),
                none.cast(),
                none,
                columns as u32,
                slices as u32,
                columns as u64,
                out_at.cast(),
            );
            runtime.launch(&lane.stream, &CANONICAL_F32, config, args)?;
            runtime.download(&lane.stream, bytemuck::cast_slice_mut(out), out_at)
        }
    })?;
    Ok(out)
}
