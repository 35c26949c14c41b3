//! Sets of vectors on the device, and what kernels `prepare` make of them: f16 copies, norms and bounds.
//!
//! ```text
//! set: rows as stored | f16 copies | values | norms | residuals | the same of tiles | greatest component | bounds | Σx² | centre
//! ```
//!
//! Exact search, assignment and k-means lay out whole sets ([`SetLayout`]); inverted files, whose rows lie in lists, give the parts one
//! by one ([`Prepared`]).

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use cuda_std::{Ptr, PtrMut};
use warpann_kernels::flat::filter;
use warpann_kernels::product::bounds::QueryTerms;
use warpann_kernels::product::metric::Metric as KernelMetric;
use warpann_kernels::product::prepare::{Greatest, Prepare};

use crate::device::runtime::{Runtime, Stream};
use crate::device::scratch::{Layout, Reserved, Scratch};
use crate::select::Best;
use crate::vectors::{VectorSlice, with_components};
use crate::{Element, ElementType, Input, Metric, Result};

/// How vectors of one dimension lie on the device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct VectorShape {
    /// Element type.
    pub element: ElementType,
    /// The metric.
    pub metric: Metric,
    /// Components of a vector.
    pub dim: usize,
}

impl VectorShape {
    /// Components from one row to the next: padded with zeros to a multiple of 4.
    pub fn stride(self) -> usize {
        self.dim.next_multiple_of(4)
    }

    /// Components of an f16 copy: padded to whole chunks.
    pub fn copy_stride(self) -> usize {
        self.dim.next_multiple_of(filter::CHUNK as usize)
    }

    /// Whether half-precision products of such vectors prove anything.
    pub fn has_bound(self) -> bool {
        u32::try_from(self.copy_stride()).is_ok_and(|padded| QueryTerms::are_proved(self.metric.of_kernel(), padded))
    }

    /// Bytes of a row on the device.
    pub fn row_bytes(self) -> usize {
        self.stride() * self.element.size()
    }

    /// Which distances are the best.
    pub fn best(self) -> Best {
        if self.metric.larger_is_better() { Best::Largest } else { Best::Smallest }
    }
}

/// `count` rounded up to whole tiles.
fn padded(count: usize, tile: u32) -> usize {
    count.next_multiple_of(tile as usize)
}

/// Where the parts of a prepared set of vectors lie.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SetLayout {
    /// The rows as stored.
    rows: Reserved<u8>,
    /// f16 operands.
    pub copy: Reserved<u16>,
    /// Values, norms and residuals, one array after the other.
    pub numbers: Reserved<f32>,
    /// The operands' part of a score; whole tiles, as are norms and residuals.
    pub values: Reserved<f32>,
    /// Bounds of norms, and of what the operands lost.
    pub norms: Reserved<f32>,
    /// See `norms`.
    pub residuals: Reserved<f32>,
    /// What greatest values are found in; all of it starts as zeros.
    greatest_values: Reserved<u32>,
    /// The greatest of each tile of 128 vectors.
    pub tile_norms: Reserved<u32>,
    /// See `tile_norms`.
    pub tile_residuals: Reserved<u32>,
    /// The greatest |component|.
    pub greatest: Reserved<u32>,
    /// The greatest norm and residual of all.
    pub bounds: Reserved<u32>,
    squares: Option<Reserved<f64>>,
    centre: Reserved<f32>,
}

impl SetLayout {
    /// Reserves room for `rows` vectors.
    pub fn reserve(layout: &mut Layout, shape: VectorShape, rows: usize) -> SetLayout {
        let padded = padded(rows, filter::TILE_ROWS);
        let tiles = padded / filter::TILE_ROWS as usize;
        let stored = layout.array(rows.saturating_mul(shape.row_bytes()));
        let copy = layout.array(padded.saturating_mul(shape.copy_stride()));
        // One span: the kernel that assigns points to many centroids takes all three by one pointer.
        let numbers = layout.array(padded.saturating_mul(3));
        let [values, norms, residuals] = [0, 1, 2].map(|array| numbers.part(padded.saturating_mul(array), padded));
        // One span, so that one fill zeroes it.
        let greatest_values = layout.array::<u32>(2 * tiles + 3);
        let (tile_norms, rest) = greatest_values.split_at(tiles);
        let (tile_residuals, rest) = rest.split_at(tiles);
        let (greatest, bounds) = rest.split_at(1);
        let squares = shape.metric.divides_by_norms().then(|| layout.array(rows));
        let centre = layout.array(shape.stride());
        SetLayout {
            rows: stored,
            copy,
            numbers,
            values,
            norms,
            residuals,
            greatest_values,
            tile_norms,
            tile_residuals,
            greatest,
            bounds,
            squares,
            centre,
        }
    }
}

/// A set of vectors on the device: base rows or queries.
#[derive(Debug, Clone, Copy)]
pub(crate) struct VectorSet {
    scratch: Scratch,
    /// Where its parts lie.
    pub layout: SetLayout,
    /// Vectors in the set.
    pub count: u32,
}

impl VectorSet {
    /// The set of `count` vectors in `scratch`, where `layout` reserved it for at least as many.
    pub fn new(scratch: Scratch, layout: SetLayout, count: u32) -> VectorSet {
        VectorSet { scratch, layout, count }
    }

    /// Room for the rows as stored: for as many as were reserved.
    pub fn rows(&self) -> PtrMut<u8> {
        self.part(self.layout.rows)
    }

    /// The same of a set of f32.
    pub fn components(&self) -> PtrMut<f32> {
        self.scratch.values_of(self.layout.rows)
    }

    /// The rows as stored that the set has.
    pub fn stored(&self, shape: VectorShape) -> Ptr<u8> {
        self.rows().take(self.count as usize * shape.row_bytes()).into()
    }

    /// A part of the set.
    pub fn part<V>(&self, part: Reserved<V>) -> PtrMut<V> {
        self.scratch.at(part)
    }

    /// The centre that is subtracted from every vector (squared L2).
    pub fn centre(&self) -> PtrMut<f32> {
        self.part(self.layout.centre)
    }

    /// The greatest norm of each tile, once prepared.
    pub fn tile_norms(&self) -> Ptr<f32> {
        self.part(self.layout.tile_norms.cast::<f32>()).into()
    }

    /// The greatest residual of each tile, once prepared.
    pub fn tile_residuals(&self) -> Ptr<f32> {
        self.part(self.layout.tile_residuals.cast::<f32>()).into()
    }

    /// The greatest norm and residual of all, once prepared.
    pub fn bounds(&self) -> Ptr<f32> {
        self.part(self.layout.bounds.cast::<f32>()).into()
    }

    /// The canonical Σx² of each vector (cosine).
    pub fn squares(&self) -> Option<PtrMut<f64>> {
        self.layout.squares.map(|squares| self.part(squares))
    }
}

/// Rows on the device before [`prepare_rows`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unprepared {
    /// Element type.
    pub element: ElementType,
    /// The rows.
    pub rows: Ptr<u8>,
    /// How many.
    pub count: u32,
    /// How many with padding: those past `count` become zeros of value +∞.
    pub padded: u32,
    /// Components from one row to the next.
    pub stride: u32,
    /// What is subtracted from each row.
    pub centre: Option<Ptr<f32>>,
    /// The metric.
    pub metric: KernelMetric,
    /// Bits of the greatest component.
    pub greatest: PtrMut<u32>,
}

/// What [`prepare_rows`] makes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Prepared {
    /// f16 copies.
    pub copy: PtrMut<u16>,
    /// Components from one copy to the next.
    pub copy_stride: u32,
    /// ‖v‖² or 0.
    pub values: PtrMut<f32>,
    /// Bounds of norms.
    pub norms: Option<PtrMut<f32>>,
    /// Bounds of what the copies lost.
    pub residuals: PtrMut<f32>,
    /// The greatest norm of each tile.
    pub tile_norms: Option<PtrMut<u32>>,
    /// The greatest residual of each tile.
    pub tile_residuals: PtrMut<u32>,
    /// Greatest norm and residual of all.
    pub bounds: Option<PtrMut<u32>>,
    /// Canonical Σx².
    pub squares: Option<PtrMut<f64>>,
}

/// Uploads vectors, zero-padded to the device's stride.
///
/// # Safety
/// `to` has room for the rows at `shape`'s stride.
pub(crate) unsafe fn upload_rows<T: Element>(
    runtime: &Runtime,
    stream: &Stream,
    shape: VectorShape,
    to: PtrMut<u8>,
    rows: &[T],
) -> Result<()> {
    // SAFETY: the same contract.
    unsafe { upload_vectors(runtime, stream, shape, to, VectorSlice::of(rows, shape.dim)) }
}

/// The same of vectors whose element type is a value.
///
/// # Safety
/// As [`upload_rows`].
pub(crate) unsafe fn upload_vectors(
    runtime: &Runtime,
    stream: &Stream,
    shape: VectorShape,
    to: PtrMut<u8>,
    rows: VectorSlice<'_>,
) -> Result<()> {
    let write = |some: Range<usize>, to: &mut [u8]| write_padded(rows.part(some).bytes(), shape, to);
    // SAFETY: as the caller promises.
    unsafe { runtime.copy_rows_to_device(stream, to, rows.len(), shape.row_bytes(), &write) }
}

/// As [`upload_rows`] for queries that were not checked. This call finds out whether they are finite while it copies them, so that memory is
/// read once for both. What is uploaded in vain does no harm.
///
/// # Errors
/// Besides the device's, [`Error::NotFinite`](crate::Error::NotFinite) with row and column.
///
/// # Safety
/// As [`upload_rows`].
pub(crate) unsafe fn upload_queries(
    runtime: &Runtime,
    stream: &Stream,
    shape: VectorShape,
    to: PtrMut<u8>,
    queries: VectorSlice<'_>,
) -> Result<()> {
    let finite = AtomicBool::new(true);
    let write = |some: Range<usize>, to: &mut [u8]| {
        let queries = queries.part(some);
        if !with_components!(queries, rows: T => T::all_finite(rows)) {
            finite.store(false, Ordering::Relaxed);
        }
        write_padded(queries.bytes(), shape, to);
    };
    // SAFETY: as the caller promises.
    unsafe { runtime.copy_rows_to_device(stream, to, queries.len(), shape.row_bytes(), &write)? };
    // All threads that wrote it have been waited for.
    if finite.into_inner() { Ok(()) } else { queries.check_finite(Input::Queries) }
}

/// Copies rows to their places, and zeros behind each: zero has the bits 0 in every element type.
fn write_padded(rows: &[u8], shape: VectorShape, to: &mut [u8]) {
    if shape.stride() == shape.dim {
        return to.copy_from_slice(rows);
    }
    let row_bytes = shape.dim * shape.element.size();
    for (to, row) in to.chunks_exact_mut(shape.row_bytes()).zip(rows.chunks_exact(row_bytes)) {
        let (components, padding) = to.split_at_mut(row_bytes);
        components.copy_from_slice(row);
        padding.fill(0);
    }
}

/// Makes the f16 copies, norms and bounds of a set whose rows (and centre, if `centred`) are there.
///
/// # Safety
/// The set's memory is as `SetLayout` reserved it.
pub(crate) unsafe fn prepare_set(
    runtime: &Runtime,
    stream: &Stream,
    shape: VectorShape,
    set: VectorSet,
    centred: bool,
) -> Result<()> {
    let layout = set.layout;
    let from = Unprepared {
        element: shape.element,
        rows: set.stored(shape),
        count: set.count,
        padded: layout.values.len() as u32,
        stride: shape.stride() as u32,
        centre: if centred { set.centre().into() } else { None },
        metric: shape.metric.of_kernel(),
        greatest: set.part(layout.greatest),
    };
    let to = Prepared {
        copy: set.part(layout.copy),
        copy_stride: shape.copy_stride() as u32,
        values: set.part(layout.values),
        norms: Some(set.part(layout.norms)),
        residuals: set.part(layout.residuals),
        tile_norms: Some(set.part(layout.tile_norms)),
        tile_residuals: set.part(layout.tile_residuals),
        bounds: Some(set.part(layout.bounds)),
        squares: set.squares(),
    };
    // SAFETY: every part has the size that the kernels ask for; the fills come first in stream order.
    unsafe {
        runtime.fill(stream, set.part(layout.greatest_values), 0)?;
        greatest_of(runtime, stream, from)?;
        prepare_rows(runtime, stream, from, to)
    }
}

/// Finds the greatest component of rows.
///
/// # Safety
/// The pointers cover the shapes; the word at `from.greatest` is zero, or what rows of the same scale gave before.
pub(crate) unsafe fn greatest_of(runtime: &Runtime, stream: &Stream, from: Unprepared) -> Result<()> {
    let Unprepared { element, rows, count, stride, centre, greatest, .. } = from;
    let launch = Greatest { rows, count, stride, centre, out: greatest };
    let config = launch.config(runtime.limits().multiprocessors);
    // SAFETY: as the caller promises.
    unsafe { runtime.launch(stream, Greatest::kernel(element.key()), config, launch) }
}

/// Makes f16 copies, values, norms and bounds of rows whose greatest component is there.
///
/// # Safety
/// The pointers that are not null cover the shapes, as [`Prepare`] says.
pub(crate) unsafe fn prepare_rows(runtime: &Runtime, stream: &Stream, from: Unprepared, to: Prepared) -> Result<()> {
    let launch = Prepare {
        rows: from.rows,
        count: from.count,
        padded_count: from.padded,
        stride: from.stride,
        centre: from.centre,
        metric: from.metric,
        greatest: from.greatest.into(),
        copy: to.copy,
        copy_stride: to.copy_stride,
        values: to.values,
        norms: to.norms,
        residuals: to.residuals,
        tile_norms: to.tile_norms,
        tile_residuals: to.tile_residuals,
        set_bounds: to.bounds,
        row_squares: to.squares,
    };
    // SAFETY: as the caller promises.
    unsafe { runtime.launch(stream, Prepare::kernel(from.element.key()), launch.config(), launch) }
}
