//! Rotation on a device: canonical inner products of rows with the rows of a matrix, by the kernel that re-ranks
//! candidates.

use cuda_std::Ptr;
use warpann_kernels::product::canonical::Canonical;

use crate::device::lanes::Lanes;
use crate::device::runtime::Runtime;
use crate::device::scratch::Layout;
use crate::device::tiling::{Budget, Tiling, bus_rows};
use crate::element::ElementType;
use crate::product::gpu::{VectorShape, upload_rows};
use crate::{Metric, Result};

/// Number of warps per multiprocessor below which the products of a row are divided among warps.
const WARPS_PER_MULTIPROCESSOR: u64 = 64;

/// Canonical inner products of each of the checked `rows` with each row of `matrix`: rows × matrix rows. All rows have
/// `dim` components.
pub(crate) fn row_products(runtime: &Runtime, matrix: &[f32], rows: &[f32], dim: usize) -> Result<Vec<f32>> {
    let shape = VectorShape::new(ElementType::F32, Metric::InnerProduct, dim);
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
        Ok(((rows, out), layout))
    };
    let mut layout = Layout::default();
    let device_matrix = layout.array::<f32>(columns.saturating_mul(shape.stride()));
    let matrix_bytes = layout.bytes();
    let budget = Budget::new(runtime, runtime.budget(None)?).with_shared(matrix_bytes);
    let tiling = Tiling::overlapped(budget, (count, bus_rows(shape.row_bytes())), place)?;
    let memory = runtime.allocate(matrix_bytes)?;
    let device_matrix = runtime.scratch(&memory).at(device_matrix);
    let pool = Lanes::new();
    pool.with(runtime, |lane| {
        // SAFETY: the matrix has `columns` rows, and the layout has room for them.
        unsafe { upload_rows(runtime, &lane.stream, shape, device_matrix.as_bytes(), matrix)? };
        runtime.synchronize(&lane.stream)
    })?;
    let multiprocessors = u64::from(runtime.limits().multiprocessors);
    let ((rows_place, products_place), tile_layout) = &tiling.plan;
    tiling.run(runtime, &pool, out.chunks_mut(tiling.rows * columns), |lane, tile, out| {
        let count = tile.len();
        let rows = &rows[tile.start * dim..tile.end * dim];
        let slices = (WARPS_PER_MULTIPROCESSOR * multiprocessors).div_ceil(count as u64).clamp(1, columns as u64);
        let scratch = lane.scratch(runtime, tile_layout.bytes())?;
        let device_rows = scratch.at(*rows_place).take(count * shape.stride());
        let products = scratch.at(*products_place).take(count * columns);
        // SAFETY: a tile has at most the number of rows that its place has room for. Without lists the kernel visits
        // rows 0 to `columns` of the matrix, all of which exist. The copy to the host waits for the kernel.
        unsafe {
            upload_rows(runtime, &lane.stream, shape, device_rows.as_bytes(), rows)?;
            let launch = Canonical {
                queries: device_rows.as_bytes().into(),
                base: device_matrix.as_bytes().into(),
                stride: shape.stride() as u32,
                query_count: count as u32,
                metric: shape.metric.of_kernel(),
                query_squares: None,
                base_squares: Ptr::empty(),
                rows: None,
                counts: None,
                columns: columns as u32,
                slices: slices as u32,
                list_stride: columns as u64,
                distances: products,
            };
            runtime.launch(&lane.stream, Canonical::kernel(shape.row_key()), launch.config(), launch)?;
            runtime.copy_to_host(&lane.stream, out, products)
        }
    })?;
    Ok(out)
}
