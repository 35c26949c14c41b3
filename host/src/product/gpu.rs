//! Sets of vectors on the device, and the operands that the kernels of `prepare` compute from them: f16 copies, norms
//! and bounds. Vectors of bytes of flat indexes have no copies and no residuals, because products multiply the rows as
//! stored ([`Operands`]).
//!
//! ```text
//! set: rows as stored | f16 copies | values | norms | residuals | the same of tiles | greatest component | bounds | Σx² | centre
//! ```
//!
//! Exact search, assignment and k-means lay out whole sets ([`SetLayout`]). The rows of inverted files lie in lists, so
//! inverted files pass the parts one by one ([`Prepared`]).

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use cuda_std::{Ptr, PtrMut};
use warpann_kernels::flat::byte_filter::most_row_bytes;
use warpann_kernels::flat::filter;
use warpann_kernels::product::bounds::QueryTerms;
use warpann_kernels::product::element::{ByteKey, ExactKey, RowKey};
use warpann_kernels::product::metric::Metric as KernelMetric;
use warpann_kernels::product::prepare::{Greatest, Prepare};
use warpann_kernels::product::prepare_bytes::PrepareBytes;

use crate::device::runtime::{Runtime, Stream};
use crate::device::scratch::{Layout, Reserved, Scratch};
use crate::select::Best;
use crate::vectors::{VectorSlice, with_components};
use crate::{Element, ElementType, Input, Metric, Result};

/// The operands of products on tensor cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operands {
    /// f16 copies of the rows: their products have an error.
    Halves,
    /// The rows as stored, which are bytes: their products are exact.
    Bytes(ByteKey),
}

/// Type, metric and dimension of vectors on the device; they determine strides and sizes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct VectorShape {
    /// Element type of the stored rows.
    pub element: ElementType,
    /// Metric of the distances, which determines values, centre and norms.
    pub metric: Metric,
    /// Number of components of a vector, without padding.
    pub dim: usize,
    /// The operands of the vectors' products.
    pub operands: Operands,
    /// Whether rows take multiples of 16 bytes, which copies of their parts to shared memory need, and not of 4
    /// components.
    aligned: bool,
    /// Whether each byte of a row holds eight bits, which are its components.
    bits: bool,
}

impl VectorShape {
    /// Vectors whose products multiply f16 copies.
    pub fn new(element: ElementType, metric: Metric, dim: usize) -> VectorShape {
        VectorShape { element, metric, dim, operands: Operands::Halves, aligned: false, bits: false }
    }

    /// Vectors that are compared with others of the same type. Rows of bytes take multiples of 16 bytes, and are
    /// multiplied as they are, up to the dimension at which sums stay in 32 bits. Under Hamming, bytes hold bits, whose
    /// squared L2 is the distance.
    pub fn of_rows(element: ElementType, metric: Metric, dim: usize) -> VectorShape {
        if metric.compares_bits() {
            let operands = Operands::Bytes(ByteKey::U8);
            return VectorShape { element, metric: Metric::L2, dim, operands, aligned: true, bits: true };
        }
        let key = match element {
            ElementType::U8 => Some(ByteKey::U8),
            ElementType::I8 => Some(ByteKey::I8),
            ElementType::F32 | ElementType::F16 | ElementType::Bf16 => None,
        };
        let operands = match key {
            Some(key) if dim <= most_row_bytes(key.into()) as usize => Operands::Bytes(key),
            _ => Operands::Halves,
        };
        VectorShape { operands, aligned: key.is_some(), ..VectorShape::new(element, metric, dim) }
    }

    /// The content of the rows, as kernels of canonical distances name it.
    pub fn row_key(self) -> RowKey {
        if self.bits { RowKey::Bits } else { self.element.key().into() }
    }

    /// The content of rows of bytes of this type, as kernels of exact products name it.
    pub fn exact_key(self, key: ByteKey) -> ExactKey {
        if self.bits { ExactKey::Bits } else { key.into() }
    }

    /// These rows, whose products multiply f16 copies.
    pub fn with_copies(self) -> VectorShape {
        VectorShape { operands: Operands::Halves, ..self }
    }

    /// Distance from one row to the next in components: the dimension, padded with zeros.
    pub fn stride(self) -> usize {
        self.dim.next_multiple_of(if self.aligned { 16 / self.element.size() } else { 4 })
    }

    /// Whether a centre is subtracted from vectors before they are multiplied.
    pub fn is_centred(self) -> bool {
        match self.operands {
            Operands::Halves => self.metric.ignores_translation(),
            Operands::Bytes(_) => false,
        }
    }

    /// The part of scores that depends on one vector only, of the bits of its value in a prepared set.
    pub fn value_of(self, bits: u32) -> f32 {
        match self.operands {
            Operands::Halves => f32::from_bits(bits),
            Operands::Bytes(_) => match self.metric {
                Metric::L2 => bits as f32,
                Metric::InnerProduct | Metric::Cosine | Metric::Hamming => 0.0,
            },
        }
    }

    /// The error of products relative to the norms of their operands ([`QueryTerms::gamma`]).
    pub fn gamma(self) -> f32 {
        match self.operands {
            Operands::Halves => QueryTerms::gamma(self.copy_stride() as u32),
            Operands::Bytes(_) => 0.0,
        }
    }

    /// Distance from one f16 copy to the next in components: the dimension, padded to whole chunks.
    pub fn copy_stride(self) -> usize {
        self.dim.next_multiple_of(filter::CHUNK as usize)
    }

    /// Whether scores from products have a proved error bound at this dimension.
    pub fn has_bound(self) -> bool {
        let is_proved = |padded| QueryTerms::are_proved(self.metric.of_kernel(), padded);
        match self.operands {
            Operands::Halves => u32::try_from(self.copy_stride()).is_ok_and(is_proved),
            Operands::Bytes(key) => self.dim <= most_row_bytes(self.exact_key(key)) as usize,
        }
    }

    /// Size of a row on the device in bytes, padding included.
    pub fn row_bytes(self) -> usize {
        self.stride() * self.element.size()
    }

    /// Whether the smallest or the largest distances are the best.
    pub fn best(self) -> Best {
        if self.metric.larger_is_better() { Best::Largest } else { Best::Smallest }
    }
}

/// Rounds `count` up to whole tiles.
fn padded(count: usize, tile: u32) -> usize {
    count.next_multiple_of(tile as usize)
}

/// The places of the parts of a prepared set of vectors.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SetLayout {
    /// The rows as stored. Where they are the operands of products, padded to whole tiles; padding rows may hold
    /// anything.
    rows: Reserved<u8>,
    /// f16 operands: one copy of each row, padded to whole tiles. Empty where products multiply the rows.
    pub copy: Reserved<u16>,
    /// The arrays `values`, `norms` and `residuals`, one after the other.
    pub numbers: Reserved<f32>,
    /// The part of a score that depends on one vector only: ‖v‖² (squared L2) or 0. Padded to whole tiles, as are norms
    /// and residuals. Where products multiply the rows, these are the bits that
    /// [`prepare_bytes`](warpann_kernels::product::prepare_bytes) describes.
    pub values: Reserved<f32>,
    /// An upper bound of the norm of each vector and of its copy.
    pub norms: Reserved<f32>,
    /// An upper bound of the norm of each copy's rounding error. Empty without copies.
    pub residuals: Reserved<f32>,
    /// The span of the four arrays below. It starts as zeros, because kernels raise its words to maxima.
    greatest_values: Reserved<u32>,
    /// Bits of the greatest norm of each tile of 128 vectors.
    pub tile_norms: Reserved<u32>,
    /// Bits of the greatest residual of each tile of 128 vectors; zeros without copies.
    pub tile_residuals: Reserved<u32>,
    /// Bits of the greatest |component| of the set; zero without copies.
    pub greatest: Reserved<u32>,
    /// Bits of the greatest norm and of the greatest residual of the set; without copies the second is zero.
    pub bounds: Reserved<u32>,
    squares: Option<Reserved<f64>>,
    centre: Reserved<f32>,
}

impl SetLayout {
    /// Reserves room for `rows` vectors.
    pub fn reserve(layout: &mut Layout, shape: VectorShape, rows: usize) -> SetLayout {
        let padded = padded(rows, filter::TILE_ROWS);
        let tiles = padded / filter::TILE_ROWS as usize;
        let (stored, copies) = match shape.operands {
            Operands::Halves => (rows, padded),
            Operands::Bytes(_) => (padded, 0),
        };
        let stored = layout.array(stored.saturating_mul(shape.row_bytes()));
        let copy = layout.array(copies.saturating_mul(shape.copy_stride()));
        // One span, because the kernel that assigns points to many centroids takes all three arrays by one pointer.
        let numbers = layout.array(padded.saturating_mul(2).saturating_add(copies));
        let [values, norms] = [0, 1].map(|array| numbers.part(padded.saturating_mul(array), padded));
        let residuals = numbers.part(padded.saturating_mul(2), copies);
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
    /// Places of the parts in the scratch memory.
    pub layout: SetLayout,
    /// Number of vectors in the set, at most the number that `layout` reserved.
    pub count: u32,
}

impl VectorSet {
    /// The set of `count` vectors in `scratch`. `layout` must have reserved room for at least `count` vectors.
    pub fn new(scratch: Scratch, layout: SetLayout, count: u32) -> VectorSet {
        VectorSet { scratch, layout, count }
    }

    /// Memory for the stored rows: all that the layout reserved.
    pub fn rows(&self) -> PtrMut<u8> {
        self.part(self.layout.rows)
    }

    /// The memory of [`rows`](Self::rows), as components of a set of f32.
    pub fn components(&self) -> PtrMut<f32> {
        self.scratch.values_of(self.layout.rows)
    }

    /// The `count` stored rows of the set.
    pub fn stored(&self, shape: VectorShape) -> Ptr<u8> {
        self.rows().take(self.count as usize * shape.row_bytes()).into()
    }

    /// The memory of one part of the set.
    pub fn part<V>(&self, part: Reserved<V>) -> PtrMut<V> {
        self.scratch.at(part)
    }

    /// The centre that is subtracted from every vector (squared L2).
    pub fn centre(&self) -> PtrMut<f32> {
        self.part(self.layout.centre)
    }

    /// The greatest norm of each tile, valid after [`prepare_set`].
    pub fn tile_norms(&self) -> Ptr<f32> {
        self.part(self.layout.tile_norms.cast::<f32>()).into()
    }

    /// The greatest residual of each tile, valid after [`prepare_set`].
    pub fn tile_residuals(&self) -> Ptr<f32> {
        self.part(self.layout.tile_residuals.cast::<f32>()).into()
    }

    /// The greatest norm and the greatest residual of the set, valid after [`prepare_set`].
    pub fn bounds(&self) -> Ptr<f32> {
        self.part(self.layout.bounds.cast::<f32>()).into()
    }

    /// The canonical Σx² of each vector; `None` for metrics other than cosine.
    pub fn squares(&self) -> Option<PtrMut<f64>> {
        self.layout.squares.map(|squares| self.part(squares))
    }
}

/// Rows on the device: the input of [`prepare_rows`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unprepared {
    /// Element type of the rows.
    pub element: ElementType,
    /// The stored rows: `count` rows of `stride` components.
    pub rows: Ptr<u8>,
    /// Number of rows.
    pub count: u32,
    /// Number of rows with padding. Rows from `count` on become zeros with value +∞.
    pub padded: u32,
    /// Distance from one row to the next in components: a multiple of 4.
    pub stride: u32,
    /// The centre that is subtracted from each row: `stride` components.
    pub centre: Option<Ptr<f32>>,
    /// Metric that determines values, norms and the scale.
    pub metric: KernelMetric,
    /// The tiles of 128 rows that are prepared; `None`: all rows.
    pub tiles: Option<Ptr<u32>>,
    /// Bits of the greatest |component|, as [`greatest_of`] finds it.
    pub greatest: PtrMut<u32>,
}

impl Unprepared {
    /// Number of listed tiles; 0 without a list.
    fn tile_count(&self) -> u32 {
        self.tiles.map_or(0, |tiles| tiles.len() as u32)
    }
}

/// The output arrays of [`prepare_rows`]; it does not write those that are `None`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Prepared {
    /// f16 copies of the padded rows.
    pub copy: PtrMut<u16>,
    /// Distance from one copy to the next in components: a multiple of 4, at least the stride of the rows.
    pub copy_stride: u32,
    /// ‖v‖² (squared L2) or 0 of each padded row.
    pub values: PtrMut<f32>,
    /// An upper bound of the norm of each padded row; `residuals` are written only with `norms`.
    pub norms: Option<PtrMut<f32>>,
    /// An upper bound of the norm of each copy's rounding error.
    pub residuals: PtrMut<f32>,
    /// Bits of the greatest norm of each tile; `tile_residuals` are written only with `tile_norms`.
    pub tile_norms: Option<PtrMut<u32>>,
    /// Bits of the greatest residual of each tile.
    pub tile_residuals: PtrMut<u32>,
    /// Bits of the greatest norm and of the greatest residual of all rows.
    pub bounds: Option<PtrMut<u32>>,
    /// The canonical Σx² of each row, without padding.
    pub squares: Option<PtrMut<f64>>,
}

/// Uploads vectors, padded with zeros to the stride of `shape`.
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

/// As [`upload_rows`], for vectors whose element type is known at run time only.
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
    // SAFETY: the caller promises that `to` has room for the rows.
    unsafe { runtime.copy_rows_to_device(stream, to, rows.len(), shape.row_bytes(), &write) }
}

/// As [`upload_vectors`], for those of `rows` whose numbers are listed, in the order of the list.
///
/// # Safety
/// As [`upload_rows`].
pub(crate) unsafe fn upload_listed(
    runtime: &Runtime,
    stream: &Stream,
    shape: VectorShape,
    to: PtrMut<u8>,
    rows: VectorSlice<'_>,
    numbers: &[u32],
) -> Result<()> {
    let write = |some: Range<usize>, to: &mut [u8]| {
        for (to, &number) in to.chunks_exact_mut(shape.row_bytes()).zip(&numbers[some]) {
            let number = number as usize;
            write_padded(rows.part(number..number + 1).bytes(), shape, to);
        }
    };
    // SAFETY: the caller promises that `to` has room for the rows.
    unsafe { runtime.copy_rows_to_device(stream, to, numbers.len(), shape.row_bytes(), &write) }
}

/// As [`upload_vectors`]. Returns whether `accepts` holds for all parts of the rows, which it sees while they are
/// copied, so memory is read once for both. The rows are on the device in either case.
///
/// # Safety
/// As [`upload_rows`].
pub(crate) unsafe fn upload_accepted(
    runtime: &Runtime,
    stream: &Stream,
    shape: VectorShape,
    to: PtrMut<u8>,
    rows: VectorSlice<'_>,
    accepts: impl Fn(VectorSlice<'_>) -> bool + Sync,
) -> Result<bool> {
    let accepted = AtomicBool::new(true);
    let write = |some: Range<usize>, to: &mut [u8]| {
        let some = rows.part(some);
        if !accepts(some) {
            accepted.store(false, Ordering::Relaxed);
        }
        write_padded(some.bytes(), shape, to);
    };
    // SAFETY: the caller promises that `to` has room for the rows.
    unsafe { runtime.copy_rows_to_device(stream, to, rows.len(), shape.row_bytes(), &write)? };
    // The copy has waited for all threads that called `write`.
    Ok(accepted.into_inner())
}

/// As [`upload_vectors`], for vectors that were not checked; `input` is what the caller calls them. The call checks
/// that they are finite while it copies them. Vectors that fail the check may be on the device after the error.
///
/// # Errors
/// The errors of the device, and [`Error::NotFinite`](crate::Error::NotFinite) with row and column.
///
/// # Safety
/// As [`upload_rows`].
pub(crate) unsafe fn upload_checked(
    runtime: &Runtime,
    stream: &Stream,
    shape: VectorShape,
    to: PtrMut<u8>,
    rows: VectorSlice<'_>,
    input: Input,
) -> Result<()> {
    let finite = |some: VectorSlice<'_>| with_components!(some, components: T => T::all_finite(components));
    // SAFETY: as the caller promises.
    let accepted = unsafe { upload_accepted(runtime, stream, shape, to, rows, finite)? };
    if accepted { Ok(()) } else { rows.check_finite(input) }
}

/// Copies rows and fills the padding behind each row with zero bytes, which are the number 0 in every element type.
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

/// Computes the f16 copies, if there are any, and the norms and bounds of a set whose rows (and centre, if `centred`)
/// are on the device.
///
/// # Safety
/// `SetLayout::reserve` laid out the memory of the set with this `shape`.
pub(crate) unsafe fn prepare_set(
    runtime: &Runtime,
    stream: &Stream,
    shape: VectorShape,
    set: VectorSet,
    centred: bool,
) -> Result<()> {
    // SAFETY: every part has the size that the kernels require; the fill comes first in stream order.
    unsafe {
        runtime.fill(stream, set.part(set.layout.greatest_values), 0)?;
        prepare_parts(runtime, stream, shape, set, centred, None)
    }
}

/// As [`prepare_set`] for the listed tiles of a set that has been prepared and in which only rows of these tiles have
/// changed since, and waits for it. The set keeps its centre. Returns false if these rows have a greater component than
/// `greatest`, that of the set. Then the whole set must be prepared.
///
/// # Safety
/// As [`prepare_set`]; `tiles` are different tiles of the set, on the device.
pub(crate) unsafe fn prepare_tiles(
    runtime: &Runtime,
    stream: &Stream,
    shape: VectorShape,
    set: VectorSet,
    centred: bool,
    tiles: Ptr<u32>,
    greatest: u32,
) -> Result<bool> {
    // The tiles are prepared before the host has seen the greatest component, so that it waits once. A greater one is
    // rare. SAFETY: every part has the size that the kernels require. Words of greatest values are only raised.
    unsafe {
        prepare_parts(runtime, stream, shape, set, centred, Some(tiles))?;
        Ok(greatest_in(runtime, stream, set)? == greatest)
    }
}

/// Prepares the rows of a set, or of the listed tiles.
///
/// # Safety
/// As [`prepare_set`]; the words of greatest values are zeros, or those of an earlier preparation.
unsafe fn prepare_parts(
    runtime: &Runtime,
    stream: &Stream,
    shape: VectorShape,
    set: VectorSet,
    centred: bool,
    tiles: Option<Ptr<u32>>,
) -> Result<()> {
    // SAFETY: every part has the size that the kernels require, as the caller promises.
    unsafe {
        match shape.operands {
            Operands::Halves => {
                let (from, to) = of_set(shape, set, centred, tiles);
                greatest_of(runtime, stream, from)?;
                prepare_rows(runtime, stream, from, to)
            }
            Operands::Bytes(key) => {
                let launch = PrepareBytes {
                    rows: set.stored(shape),
                    count: set.count,
                    padded_count: set.layout.values.len() as u32,
                    stride: shape.stride() as u32,
                    metric: shape.metric.of_kernel(),
                    tiles,
                    tile_count: tiles.map_or(0, |tiles| tiles.len() as u32),
                    values: set.part(set.layout.values.cast()),
                    of_lists: 0,
                    norms: Some(set.part(set.layout.norms)),
                    set_norm: set.part(set.layout.bounds).take(1),
                    row_squares: set.squares(),
                };
                runtime.launch(stream, PrepareBytes::kernel(shape.exact_key(key)), launch.config(), launch)
            }
        }
    }
}

/// Bits of the greatest |component| of a set, after the work in the stream, for which the call waits.
///
/// # Safety
/// As [`prepare_set`], which has prepared the set.
pub(crate) unsafe fn greatest_in(runtime: &Runtime, stream: &Stream, set: VectorSet) -> Result<u32> {
    let mut greatest = [0];
    // SAFETY: as the caller promises.
    unsafe { runtime.copy_to_host(stream, &mut greatest, set.part(set.layout.greatest))? };
    Ok(greatest[0])
}

/// The rows of a set, or of the listed tiles, as input and output of the preparation.
fn of_set(shape: VectorShape, set: VectorSet, centred: bool, tiles: Option<Ptr<u32>>) -> (Unprepared, Prepared) {
    let layout = set.layout;
    let from = Unprepared {
        element: shape.element,
        rows: set.stored(shape),
        count: set.count,
        padded: layout.values.len() as u32,
        stride: shape.stride() as u32,
        centre: if centred { set.centre().into() } else { None },
        metric: shape.metric.of_kernel(),
        tiles,
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
    (from, to)
}

/// Finds the greatest |component| of rows, after subtraction of the centre.
///
/// # Safety
/// The pointers cover the shapes. The word at `from.greatest` is zero, or the result for other rows that share the
/// scale.
pub(crate) unsafe fn greatest_of(runtime: &Runtime, stream: &Stream, from: Unprepared) -> Result<()> {
    let tile_count = from.tile_count();
    let Unprepared { element, rows, count, stride, centre, tiles, greatest, .. } = from;
    let launch = Greatest { rows, count, stride, centre, tiles, tile_count, out: greatest };
    let config = launch.config(runtime.limits().multiprocessors);
    // SAFETY: the caller promises that the pointers cover the shapes.
    unsafe { runtime.launch(stream, Greatest::kernel(element.key()), config, launch) }
}

/// Computes f16 copies, values, norms and bounds of rows, after [`greatest_of`] has found their greatest component.
///
/// # Safety
/// The pointers that are present cover the shapes, as [`Prepare`] says.
pub(crate) unsafe fn prepare_rows(runtime: &Runtime, stream: &Stream, from: Unprepared, to: Prepared) -> Result<()> {
    let launch = Prepare {
        rows: from.rows,
        count: from.count,
        padded_count: from.padded,
        stride: from.stride,
        centre: from.centre,
        metric: from.metric,
        tiles: from.tiles,
        tile_count: from.tile_count(),
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
    // SAFETY: the caller promises that the pointers cover the shapes.
    unsafe { runtime.launch(stream, Prepare::kernel(from.element.key()), launch.config(), launch) }
}
