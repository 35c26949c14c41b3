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

use warpann_kernels::flat::filter;
use warpann_kernels::product::prepare::{Greatest, Prepare};
use warpann_kernels::product::{bounds, prepare};

use super::runtime::{Layout, Runtime};
use crate::flat::check_vectors;
use crate::select::Best;
use crate::{Element, ElementType, Input, Metric, Result};

/// How vectors of one dimension lie on the device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// Element type.
    pub element: ElementType,
    /// The metric.
    pub metric: Metric,
    /// Components of a vector.
    pub dim: usize,
}

impl Shape {
    /// Components from one row to the next: padded with zeros to a multiple of 4.
    pub fn stride(self) -> usize {
        self.dim.next_multiple_of(4)
    }

    /// Components of an f16 copy: padded to whole chunks.
    pub fn copy_stride(self) -> usize {
        self.dim.next_multiple_of(filter::CHUNK as usize)
    }

    /// Whether half-precision products of such vectors prove anything: the bound of their error has a largest dimension.
    pub fn has_bound(self) -> bool {
        self.copy_stride() <= bounds::MOST_COMPONENTS as usize
    }

    /// Bytes of a row on the device.
    pub fn row_bytes(self) -> usize {
        self.stride() * self.element.size()
    }

    /// The metric as the kernels take it.
    pub fn metric_code(self) -> u32 {
        match self.metric {
            Metric::L2 => prepare::METRIC_L2,
            Metric::InnerProduct => prepare::METRIC_INNER_PRODUCT,
            Metric::Cosine => prepare::METRIC_COSINE,
        }
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

/// Where the parts of a prepared set of vectors lie, relative to its start. Rows come first.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SetLayout {
    /// f16 copies.
    pub copy: usize,
    /// Their part of a score; whole tiles, as are norms and residuals, which follow without a gap.
    pub values: usize,
    /// Bounds of norms, and of what the copies lost.
    pub norms: usize,
    /// See `norms`.
    pub residuals: usize,
    /// The greatest of each tile of 128 vectors.
    pub tile_norms: usize,
    /// See `tile_norms`.
    pub tile_residuals: usize,
    /// The greatest |component|.
    pub greatest: usize,
    /// The greatest norm and residual of all.
    pub bounds: usize,
    squares: usize,
    centre: usize,
    padded: usize,
}

impl SetLayout {
    /// Reserves room for `rows` vectors.
    pub fn reserve(layout: &mut Layout, shape: Shape, rows: usize) -> (usize, SetLayout) {
        let padded = padded(rows, filter::TILE_ROWS);
        let tiles = padded / filter::TILE_ROWS as usize;
        let start = layout.array::<u8>(rows.saturating_mul(shape.row_bytes()));
        let set = SetLayout {
            copy: layout.array::<u16>(padded.saturating_mul(shape.copy_stride())) - start,
            values: layout.array::<f32>(padded) - start,
            norms: layout.array::<f32>(padded) - start,
            residuals: layout.array::<f32>(padded) - start,
            tile_norms: layout.array::<u32>(tiles) - start,
            tile_residuals: layout.array::<u32>(tiles) - start,
            greatest: layout.array::<u32>(1) - start,
            bounds: layout.array::<u32>(2) - start,
            squares: layout.array::<f64>(if shape.metric == Metric::Cosine { rows } else { 0 }) - start,
            centre: layout.array::<f32>(shape.stride()) - start,
            padded,
        };
        (start, set)
    }
}

/// A set of vectors on the device: base rows or queries.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Set {
    start: *mut u8,
    /// Where its parts lie.
    pub layout: SetLayout,
    /// Vectors in the set.
    pub count: u32,
}

impl Set {
    /// The set that lies at `start`.
    pub fn new(start: *mut u8, layout: SetLayout, count: u32) -> Set {
        Set { start, layout, count }
    }

    /// The rows as stored.
    pub fn rows(&self) -> *mut u8 {
        self.start
    }

    /// The part of the set at `offset`, as its layout has it.
    pub fn part<V>(&self, offset: usize) -> *mut V {
        self.start.wrapping_add(offset).cast()
    }

    /// Where the centre goes that is subtracted from every vector (squared L2).
    pub fn centre(&self) -> *mut f32 {
        self.part(self.layout.centre)
    }

    /// Where the canonical Σx² of each vector goes (cosine; else null).
    pub fn squares(&self, shape: Shape) -> *mut f64 {
        if shape.metric == Metric::Cosine { self.part(self.layout.squares) } else { std::ptr::null_mut() }
    }
}

/// Rows on the device before [`prepare_rows`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unprepared {
    /// Element type.
    pub element: ElementType,
    /// The rows.
    pub rows: *const u8,
    /// How many.
    pub count: u32,
    /// How many with padding: those past `count` become zeros of value +∞.
    pub padded: u32,
    /// Components from one row to the next.
    pub stride: u32,
    /// What is subtracted from each row, or null.
    pub centre: *const f32,
    /// The kernels' number of the metric.
    pub metric: u32,
    /// Bits of the greatest component.
    pub greatest: *mut u32,
}

/// What [`prepare_rows`] makes; all but copy and values may be null.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Prepared {
    /// f16 copies.
    pub copy: *mut u16,
    /// Components from one copy to the next.
    pub copy_stride: u32,
    /// ‖v‖² or 0.
    pub values: *mut f32,
    /// Bounds of norms.
    pub norms: *mut f32,
    /// Bounds of what the copies lost.
    pub residuals: *mut f32,
    /// The greatest norm of each tile.
    pub tile_norms: *mut u32,
    /// The greatest residual of each tile.
    pub tile_residuals: *mut u32,
    /// Greatest norm and residual of all.
    pub bounds: *mut u32,
    /// Canonical Σx².
    pub squares: *mut f64,
}

/// Uploads vectors, zero-padded to the device's stride.
///
/// # Safety
/// `to` has room for the rows at `shape`'s stride.
pub(crate) unsafe fn upload_rows<T: Element, R: Runtime>(
    runtime: &R,
    stream: &R::Stream,
    shape: Shape,
    to: *mut u8,
    rows: &[T],
) -> Result<()> {
    let put =
        |some: Range<usize>, to: &mut [u8]| put_padded(&rows[some.start * shape.dim..some.end * shape.dim], shape, to);
    // SAFETY: as the caller promises.
    unsafe { runtime.send(stream, to, rows.len() / shape.dim, shape.row_bytes(), &put) }
}

/// As [`upload_rows`] for queries that nobody has looked at: whether they are finite is found while they are copied, because memory is read
/// once for both then. What is uploaded in vain does no harm.
///
/// # Errors
/// Besides the device's, [`Error::NotFinite`](crate::Error::NotFinite) with row and column.
///
/// # Safety
/// As [`upload_rows`].
pub(crate) unsafe fn upload_queries<T: Element, R: Runtime>(
    runtime: &R,
    stream: &R::Stream,
    shape: Shape,
    to: *mut u8,
    queries: &[T],
) -> Result<()> {
    let finite = AtomicBool::new(true);
    let put = |some: Range<usize>, to: &mut [u8]| {
        let queries = &queries[some.start * shape.dim..some.end * shape.dim];
        if !T::all_finite(queries) {
            finite.store(false, Ordering::Relaxed);
        }
        put_padded(queries, shape, to);
    };
    // SAFETY: as the caller promises.
    unsafe { runtime.send(stream, to, queries.len() / shape.dim, shape.row_bytes(), &put)? };
    // All threads that wrote it have been waited for.
    if finite.into_inner() { Ok(()) } else { check_vectors(queries, shape.dim, Input::Queries).map(|_| ()) }
}

/// Copies rows to their places, and zeros behind each.
fn put_padded<T: Element>(rows: &[T], shape: Shape, to: &mut [u8]) {
    let to = bytemuck::cast_slice_mut::<u8, T>(to);
    if shape.stride() == shape.dim {
        return to.copy_from_slice(rows);
    }
    for (to, row) in to.chunks_exact_mut(shape.stride()).zip(rows.chunks_exact(shape.dim)) {
        let (components, padding) = to.split_at_mut(shape.dim);
        components.copy_from_slice(row);
        padding.fill(T::default());
    }
}

/// Makes the f16 copies, norms and bounds of a set whose rows (and centre, if `centred`) are there.
///
/// # Safety
/// The set's memory is as `SetLayout` reserved it.
pub(crate) unsafe fn prepare_set<R: Runtime>(
    runtime: &R,
    stream: &R::Stream,
    shape: Shape,
    set: Set,
    centred: bool,
) -> Result<()> {
    let layout = set.layout;
    let from = Unprepared {
        element: shape.element,
        rows: set.rows(),
        count: set.count,
        padded: layout.padded as u32,
        stride: shape.stride() as u32,
        centre: if centred { set.centre() } else { std::ptr::null() },
        metric: shape.metric_code(),
        greatest: set.part(layout.greatest),
    };
    let to = Prepared {
        copy: set.part(layout.copy),
        copy_stride: shape.copy_stride() as u32,
        values: set.part(layout.values),
        norms: set.part(layout.norms),
        residuals: set.part(layout.residuals),
        tile_norms: set.part(layout.tile_norms),
        tile_residuals: set.part(layout.tile_residuals),
        bounds: set.part(layout.bounds),
        squares: set.squares(shape),
    };
    // SAFETY: every part has the size that the kernels ask for; the fills come first in stream order.
    unsafe {
        // Tile norms and residuals, greatest and bounds lie side by side: one fill.
        let zeroed = layout.bounds + 2 * size_of::<u32>() - layout.tile_norms;
        runtime.fill(stream, set.part(layout.tile_norms), 0, zeroed)?;
        greatest_of(runtime, stream, from)?;
        prepare_rows(runtime, stream, from, to)
    }
}

/// Finds the greatest component of rows.
///
/// # Safety
/// The pointers cover the shapes; the word at `from.greatest` is zero, or what rows of the same scale gave before.
pub(crate) unsafe fn greatest_of<R: Runtime>(runtime: &R, stream: &R::Stream, from: Unprepared) -> Result<()> {
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
pub(crate) unsafe fn prepare_rows<R: Runtime>(
    runtime: &R,
    stream: &R::Stream,
    from: Unprepared,
    to: Prepared,
) -> Result<()> {
    let launch = Prepare {
        rows: from.rows,
        count: from.count,
        padded_count: from.padded,
        stride: from.stride,
        centre: from.centre,
        metric: from.metric,
        greatest: from.greatest,
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
