//! Canonical inner products of rows with the rows of a matrix: a rotation, by the kernel that re-ranks candidates.

use std::ptr::null;

use warpann_kernels::product::canonical::Canonical;

use crate::device::lanes::Lanes;
use crate::device::runtime::Runtime;
use crate::device::scratch::Layout;
use crate::device::tiling::{Batches, bus_rows};
use crate::element::ElementType;
use crate::product::gpu::{Shape, upload_rows};
use crate::{Metric, Result};

/// Warps a multiprocessor should have at least, before the products of a row are spread over warps.
const WARPS_PER_MULTIPROCESSOR: u64 = 64;

/// See [`crate::open::row_products`].
pub(crate) fn row_products(runtime: &Runtime, matrix: &[f32], rows: &[f32], dim: usize) -> Result<Vec<f32>> {
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
        let (rows_at, out_at, bytes) = place(batches.rows);
        let scratch = lane.scratch(runtime, bytes)?;
        let out_at = scratch.wrapping_add(out_at);
        // SAFETY: a batch has at most as many rows as its place; without a list the kernel visits rows 0 to `columns` of the
        // matrix, all of which are there; the download waits for it.
        unsafe {
            upload_rows(runtime, &lane.stream, shape, scratch.wrapping_add(rows_at), rows)?;
            let launch = Canonical {
                queries: scratch.wrapping_add(rows_at),
                base: runtime.address(&memory),
                stride: shape.stride() as u32,
                query_count: count as u32,
                squared_difference: 0,
                query_squares: null(),
                base_squares: null(),
                rows: null(),
                counts: null(),
                columns: columns as u32,
                slices: slices as u32,
                list_stride: columns as u64,
                distances: out_at.cast(),
            };
            runtime.launch(&lane.stream, Canonical::kernel(shape.element.key()), launch.config(), launch)?;
            runtime.download(&lane.stream, bytemuck::cast_slice_mut(out), out_at)
        }
    })?;
    Ok(out)
}
