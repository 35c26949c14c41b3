//! Rotation on a device: canonical inner products of vectors with the rows of a matrix.

use cuda_std::{Ptr, PtrMut};
use warpann_kernels::pq::rotate::Rotate;

use crate::device::lanes::Lanes;
use crate::device::queue::OnStream;
use crate::device::runtime::Runtime;
use crate::device::scratch::Layout;
use crate::device::tiling::{Budget, Tiling, bus_rows};
use crate::element::ElementType;
use crate::product::gpu::{VectorShape, upload_rows};
use crate::{Metric, Result};

/// Enqueues the rotation of vectors on a device. All are f32 of the shape `shape`; `matrix` has a number of rows, and
/// `to` a distance from one result to the next, at least as many components, which ends with zeros.
///
/// # Safety
/// The arrays are as long as their numbers say, and written before in the stream.
pub(crate) unsafe fn rotate(
    OnStream { runtime, stream }: OnStream<'_>,
    shape: VectorShape,
    (vectors, count): (Ptr<f32>, u32),
    (matrix, rows): (Ptr<f32>, u32),
    (to, to_stride): (PtrMut<f32>, u32),
) -> Result<()> {
    let slices = Rotate::slices(count, rows, runtime.limits().multiprocessors);
    let launch = Rotate { vectors, count, stride: shape.stride() as u32, matrix, rows, slices, to, to_stride };
    // SAFETY: as the caller promises.
    unsafe { runtime.launch(stream, &Rotate::KERNEL, launch.config(), launch) }
}

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
    let ((rows_place, products_place), tile_layout) = &tiling.plan;
    tiling.run(runtime, &pool, out.chunks_mut(tiling.rows * columns), |lane, tile, out| {
        let count = tile.len();
        let rows = &rows[tile.start * dim..tile.end * dim];
        let scratch = lane.scratch(runtime, tile_layout.bytes())?;
        let device_rows = scratch.at(*rows_place).take(count * shape.stride());
        let products = scratch.at(*products_place).take(count * columns);
        // SAFETY: a tile has at most the number of rows that its place has room for. The copy to the host waits for the
        // kernel.
        unsafe {
            upload_rows(runtime, &lane.stream, shape, device_rows.as_bytes(), rows)?;
            let (vectors, on) = ((device_rows.into(), count as u32), OnStream { runtime, stream: &lane.stream });
            rotate(on, shape, vectors, (device_matrix.into(), columns as u32), (products, columns as u32))?;
            runtime.copy_to_host(&lane.stream, out, products)
        }
    })?;
    Ok(out)
}
