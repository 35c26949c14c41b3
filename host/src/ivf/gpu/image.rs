//! The image of an inverted file in device memory, made from the master copy on the host.
//!
//! Lists are stored one after the other. Each starts at a multiple of `pairs::PAD` rows, so that the scores of a list start at a sector.
//! The padding rows between lists repeat the last vector of the list before. Any vector of the index is suitable: the values of these rows
//! are +∞, but the bounds include their norms. Padding rows of a whole tile follow the last list, because scans copy whole tiles.

use cuda_std::launch::Kernel;
use cuda_std::{Ptr, PtrMut};
use warpann_kernels::ivf::code_bounds::{GreatestCode, MeasureCodes};
use warpann_kernels::ivf::encoding::{OperandParts, StoredRows};
use warpann_kernels::ivf::list_scan::{self, RowScan, TILE_ROWS};
use warpann_kernels::ivf::rerank::{PerQuery, Rerank};
use warpann_kernels::ivf::rescan::{Rescan, Rescanned};
use warpann_kernels::product::element::ElementKey;
use warpann_kernels::product::metric::Metric as KernelMetric;
use warpann_kernels::{NO_ROW, ivf::pairs};

use super::storage::{Growth, Storage, fill_rows};
use super::tables;
use super::tables::Terms;
use crate::device::queue::OnStream;
use crate::device::runtime::{Memory, Runtime, Stream};
use crate::device::scratch::{Layout, Reserved, Scratch};
use crate::flat::gpu::copies::gather_rows;
use crate::ivf::View;
use crate::product::centre::Centre;
use crate::product::gpu::{Prepared, Unprepared, VectorShape, greatest_of, prepare_rows, upload_rows};
use crate::select::Best;
use crate::{ElementType, Error, Metric, Result, events, host_memory};

/// The codes of an image as searches read them, for any encoding. Fields that an encoding does not use are empty or 0.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stored {
    /// The way in which the list scan reads rows.
    pub scan: RowScan,
    /// The kernels with which re-ranking reads a row.
    pub rerank: RerankKernels,
    /// Codes, `row_bytes` bytes each.
    pub rows: Ptr<u8>,
    pub row_bytes: u32,
    /// f16 operands, [`Image::f16_stride`] components a row; for scans that do not decode.
    pub f16_rows: Ptr<u16>,
    /// As the fields of [`StoredRows`] with the same names.
    pub bits: u32,
    pub width: u32,
    pub codebooks: Ptr<f32>,
    /// The parts from which the scan makes f16 operands.
    pub parts: OperandParts,
    /// Whether rows are vectors as they were added, with the element type of queries.
    pub in_place: bool,
    /// Whether the list scan decodes operands. Then scanning each list twice costs more time than overlapping copies saves.
    pub decodes: bool,
    /// Whether decoding is so slow that with few queries a block re-ranks each query faster than a warp does. Then fewer vectors are compared
    /// without scores, too.
    pub costly: bool,
    /// The tables of the scan by lookup tables, if the encoding has this scan.
    pub tables: Option<TableIndex>,
    /// How rows are made ready for the list scan.
    pub measuring: Measuring,
}

/// How the scale, values and bounds of rows are found ([`Measured`]).
#[derive(Debug, Clone, Copy)]
pub(crate) enum Measuring {
    /// Rows are vectors of this element type, and get f16 operands beside them.
    Operands(ElementType),
    /// Rows are codes. If they are `scaled`, the scale follows from the greatest component of what they stand for, otherwise from the training.
    Codes { by: &'static Kernel<MeasureCodes>, scaled: bool },
}

impl Stored {
    /// Codes in `rows`; all other fields are empty or 0.
    pub fn new(scan: RowScan, rerank: RerankKernels, rows: Ptr<u8>) -> Stored {
        Stored {
            scan,
            rerank,
            rows,
            row_bytes: 0,
            f16_rows: Ptr::empty(),
            bits: 0,
            width: 0,
            codebooks: Ptr::empty(),
            parts: OperandParts::default(),
            in_place: false,
            decodes: false,
            costly: false,
            tables: None,
            measuring: Measuring::Operands(ElementType::F32),
        }
    }
}

/// The kernels that re-rank rows.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RerankKernels {
    /// Kernels for vectors of this element type, as they were added.
    Stored(ElementKey),
    /// Kernels of an encoding; queries are f32.
    Coded(fn(PerQuery) -> &'static Kernel<Rerank>, fn(Rescanned) -> &'static Kernel<Rescan>),
}

impl RerankKernels {
    /// The kernel that uses a warp or a block for each query.
    pub fn kernel(self, per_query: PerQuery) -> &'static Kernel<Rerank> {
        match self {
            RerankKernels::Stored(element) => Rerank::kernel((element, per_query)),
            RerankKernels::Coded(kernel, _) => kernel(per_query),
        }
    }

    /// The kernel that compares queries with all rows of their lists.
    pub fn rescanning(self, what: Rescanned) -> &'static Kernel<Rescan> {
        match self {
            RerankKernels::Stored(element) => Rescan::kernel((element, what)),
            RerankKernels::Coded(_, kernel) => kernel(what),
        }
    }
}

/// The inputs of the scan by lookup tables that depend on the index only.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TableIndex {
    pub shape: tables::Shape,
    /// The kind of the values in `terms`.
    pub kind: Terms,
    pub terms: Ptr<f32>,
}

/// The sizes of an index for which an encoding plans its part of the image.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ImageShape<'a> {
    pub view: &'a View<'a>,
    /// Number of rows of the storage, padding included.
    pub rows: u32,
    pub longest_list: u32,
    /// Largest number of bytes of the image.
    pub budget: u64,
}

/// The places of the codes in an image, and the copying to these places.
pub(crate) trait StoredPlan {
    /// The codes in the memory of the image.
    fn stored(&self, memory: Scratch) -> Stored;

    /// The parts of the image that change with the vectors.
    fn parts(&self, memory: Scratch) -> StoredParts;

    /// Lower bound of the greatest component of the vectors, from which the scale follows. With [`Self::fixed_scale`], its exact value.
    fn least_greatest(&self) -> f32 {
        0.0
    }

    /// Whether operands have no centre, and the scale that follows from [`Self::least_greatest`] alone.
    fn fixed_scale(&self) -> bool {
        false
    }

    /// Copies codes and the tables that belong to them to the device.
    ///
    /// # Safety
    /// `memory` is that of the image; the plan was made for the source's index.
    unsafe fn copy_to_device(&self, source: &Source<'_>, memory: Scratch) -> Result<()>;

    /// Makes the parts of operands, writes the value of each row, and raises the greatest component and the bounds.
    ///
    /// # Safety
    /// As [`Self::copy_to_device`], whose work precedes this in the stream; `to` is in the same memory.
    unsafe fn prepare(&self, on: OnStream<'_>, memory: Scratch, to: Measured<'_>) -> Result<()>;
}

/// The parts of the codes of an image that have a row for each vector.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StoredParts {
    /// Codes, [`Stored::row_bytes`] each.
    pub codes: PtrMut<u8>,
    /// f16 operands beside the codes, or empty.
    pub operands: PtrMut<u16>,
    /// Terms of rows or lists for the scan by lookup tables, or empty.
    pub terms: PtrMut<f32>,
}

impl StoredParts {
    /// The parts of an encoding whose scans need nothing beside the codes.
    pub fn of_codes(codes: PtrMut<u8>) -> StoredParts {
        StoredParts { codes, operands: PtrMut::empty(), terms: PtrMut::empty() }
    }
}

/// The vectors of an index as they were added, if the device has them already. Then the lists have no codes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Held {
    /// The vectors in the order of their ranks, padded as in an image.
    pub rows: Ptr<u8>,
    /// As [`Codec::whole`](crate::ivf::encoding::Codec::whole).
    pub whole: bool,
}

/// An index that is copied to a device.
pub(crate) struct Source<'a> {
    pub on: OnStream<'a>,
    view: &'a View<'a>,
    storage: &'a Storage,
    held: Option<Held>,
    /// The rank of each row of the storage, on the device.
    ranks: Ptr<u32>,
}

impl Source<'_> {
    /// Copies the codes of all rows, each to the start of `place` bytes. The remaining bytes become zero.
    ///
    /// # Safety
    /// `to` is memory of the device, with room for all rows of the storage.
    pub unsafe fn copy_codes(&self, to: PtrMut<u8>, place: usize) -> Result<()> {
        if let Some(held) = self.held {
            // Padding has no rank, and repeats the last vector of all.
            // SAFETY: as the caller promises; each rank is that of a held vector, `place` bytes each.
            return unsafe { gather_rows(self.on, held.rows, self.ranks, to, place) };
        }
        let (view, width) = (self.view, self.view.code_bytes());
        // SAFETY: as the caller promises.
        unsafe {
            self.storage.copy_to_device(self.on, to, place, |list, places, to| {
                fill_rows(any_row(view, list), places.start, width, place, to);
            })
        }
    }

    /// Copies the list of each row; padding rows get `NO_ROW`.
    ///
    /// # Safety
    /// As [`Self::copy_codes`].
    pub unsafe fn copy_row_lists(&self, to: PtrMut<u32>) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe {
            self.storage.copy_to_device(self.on, to.as_bytes(), 4, |list, places, to| {
                let to: &mut [u32] = bytemuck::cast_slice_mut(to);
                let (own, padding) = to.split_at_mut(self.storage.filled(list, &places).len());
                own.fill(list as u32);
                padding.fill(NO_ROW);
            })
        }
    }
}

/// Rows on the device that are made ready for the list scan: all rows of an image, or some that are on their way to it.
#[derive(Clone, Copy)]
pub(crate) struct Measured<'a> {
    /// The image, with centroids and tables.
    pub image: &'a Image,
    /// Codes, [`Stored::row_bytes`] each.
    pub codes: Ptr<u8>,
    pub row_count: u32,
    /// The list of each row, `NO_ROW` for padding; empty for [`Measuring::Operands`].
    pub row_lists: Ptr<u32>,
    /// The bits of the greatest component of all rows of the image: one word.
    pub greatest: PtrMut<u32>,
    /// f16 operands, [`Image::f16_stride`] components each; empty for [`Measuring::Codes`].
    pub operands: PtrMut<u16>,
    /// The value that a scan adds to the product of each row.
    pub values: PtrMut<f32>,
    /// The bits of the greatest norm and residual of all rows of the image: two words.
    pub bounds: PtrMut<u32>,
    /// The bits of the greatest factor of all rows of the image: one word.
    pub factor: PtrMut<u32>,
}

impl Measured<'_> {
    /// The rows as vectors of this element type, none of which is padding.
    fn unprepared(&self, element: ElementType) -> Unprepared {
        let image = self.image;
        Unprepared {
            element,
            rows: self.codes,
            count: self.row_count,
            padded: self.row_count,
            stride: image.stride(),
            centre: image.centre,
            metric: image.operand_metric(),
            tiles: None,
            greatest: self.greatest,
        }
    }

    /// These rows for launches that read them. A field of [`StoredRows`] that has a part for each row must be theirs, not the image's.
    fn stored_rows(&self) -> StoredRows {
        StoredRows { rows: self.codes, ..self.image.stored_rows() }
    }

    /// Raises the greatest component to that of the rows, if the scale follows from it.
    ///
    /// # Safety
    /// The arrays are as long as the fields say, and the tables from which codes are decoded are in the image.
    pub unsafe fn raise_greatest(&self, on: OnStream<'_>) -> Result<()> {
        let &Measured { image, row_count, row_lists, greatest, .. } = self;
        match image.stored.measuring {
            // SAFETY: as the caller promises.
            Measuring::Operands(element) => unsafe { greatest_of(on.runtime, on.stream, self.unprepared(element)) },
            Measuring::Codes { scaled: false, .. } => Ok(()),
            Measuring::Codes { scaled: true, .. } => {
                let launch =
                    GreatestCode { stored: self.stored_rows(), row_lists, row_count, centre: image.centre, greatest };
                let config = launch.config(on.runtime.limits().multiprocessors);
                // SAFETY: as the caller promises.
                unsafe { on.runtime.launch(on.stream, &GreatestCode::KERNEL, config, launch) }
            }
        }
    }

    /// Writes the operands and the value of each row, and raises the bounds.
    ///
    /// # Safety
    /// As [`Self::raise_greatest`], which precedes this in the stream for all rows of the image, as do the parts of operands.
    pub unsafe fn measure(&self, on: OnStream<'_>) -> Result<()> {
        let &Measured { image, row_count, row_lists, greatest, operands, values, bounds, factor, .. } = self;
        let stored = &image.stored;
        match stored.measuring {
            Measuring::Operands(element) => {
                let to = prepared(image, operands, values, bounds);
                // SAFETY: as the caller promises.
                unsafe { prepare_rows(on.runtime, on.stream, self.unprepared(element), to) }
            }
            Measuring::Codes { by, .. } => {
                let launch = MeasureCodes {
                    stored: self.stored_rows(),
                    row_lists,
                    row_count,
                    centre: image.centre,
                    metric: image.row_metric(),
                    row_factors: image.has_factors().into(),
                    greatest: greatest.into(),
                    parts: stored.parts,
                    values,
                    bounds,
                    greatest_factor: factor,
                };
                // SAFETY: as the caller promises.
                unsafe { on.runtime.launch(on.stream, by, launch.config(), launch) }
            }
        }
    }
}

/// Arrays and sizes of an image.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Image {
    pub dim: u32,
    /// The metric of the index.
    pub metric: Metric,
    /// Number of lists.
    pub lists: u32,
    /// Number of rows of the storage, padding included.
    pub rows: u32,
    /// Number of components from one row of f16 operands to the next.
    pub f16_stride: u32,
    pub stored: Stored,
    /// The value that a scan adds to the product of each row.
    pub values: Ptr<f32>,
    /// Rank of each row's id; `NO_ROW` for padding rows.
    pub ranks: Ptr<u32>,
    /// The first row of each list.
    pub starts: Ptr<u32>,
    /// Number of vectors of each list.
    pub lengths: Ptr<u32>,
    /// Centroids, with `dim` padded to a multiple of 4 components a row. Their f16 operands and values follow.
    pub centroids: Ptr<f32>,
    pub f16_centroids: Ptr<u16>,
    pub centroid_values: Ptr<f32>,
    /// The vector that is subtracted from queries and vectors before conversion to f16 (squared L2 only).
    pub centre: Option<Ptr<f32>>,
    /// Greatest component of the vectors, and also of the centroids unless the metric is cosine: one word.
    pub greatest: Ptr<u32>,
    /// Greatest component of the centroids: one word, the same as `greatest` unless the metric is cosine.
    pub centroid_greatest: Ptr<u32>,
    /// Greatest norm and residual of the vectors, then of the centroids; then the greatest factor of a vector.
    pub bounds: Ptr<f32>,
}

impl Image {
    /// Number of components of a row of centroids, of stored vectors and of queries.
    pub fn stride(&self) -> u32 {
        self.dim.next_multiple_of(4)
    }

    /// The rows of the storage for launches that read them.
    pub fn stored_rows(&self) -> StoredRows {
        let &Image { stored: Stored { rows, row_bytes, bits, width, codebooks, .. }, dim, centroids, .. } = self;
        StoredRows { rows, code_bytes: row_bytes, bits, width, dim, codebooks, centroids }
    }

    /// The metric for comparisons with stored vectors.
    pub fn row_metric(&self) -> KernelMetric {
        self.metric.of_kernel()
    }

    /// The metric of the operands of queries and stored vectors, and of their products.
    pub fn operand_metric(&self) -> KernelMetric {
        // If the metric divides by norms, queries for codes are normalised before, and rows are divided by their norms
        // after the product.
        let metric = if self.stored.in_place { self.metric } else { self.metric.of_normalised() };
        metric.of_kernel()
    }

    /// Whether distances are divided by norms of which the operands know nothing.
    pub fn divides_scores(&self) -> bool {
        self.metric.divides_by_norms() && !self.stored.in_place
    }

    /// Whether the values of rows are factors of their products (`warpann_kernels::ivf::code_bounds`).
    pub fn has_factors(&self) -> bool {
        self.divides_scores() && self.stored.decodes
    }

    /// The arrays of the index for the scan by lookup tables.
    pub fn table_image(&self) -> tables::Image {
        tables::Image {
            centroids: self.centroids,
            codebooks: self.stored.codebooks,
            codes: self.stored.rows,
            list_starts: self.starts,
            list_lengths: self.lengths,
            factors: self.has_factors().then(|| (self.values, self.bounds.skip(4))),
        }
    }

    /// The metric for comparisons with centroids.
    pub fn probe_metric(&self) -> KernelMetric {
        self.metric.probed_by().metric().of_kernel()
    }

    /// Which of the distances of [`Self::probe_metric`] are those of the nearest centroids.
    pub fn nearest_probes(&self) -> Best {
        let metric = self.metric.probed_by().metric();
        VectorShape { element: ElementType::F32, metric, dim: self.dim as usize }.best()
    }
}

/// An image and its memory.
pub(super) struct Resident {
    /// The version of the index that the image shows.
    pub version: u64,
    pub image: Image,
    /// Number of bytes in device memory.
    pub bytes: u64,
    /// Element i is the sum of the i + 1 longest padded lists: the largest number of rows that i + 1 probes score.
    pub longest: Vec<u64>,
    /// Number of vectors of the longest list.
    pub longest_list: u32,
    pub(super) storage: Storage,
    /// The place in each list of the whole index of the first vector that is here.
    pub(super) firsts: Vec<u32>,
    pub(super) parts: ImageParts,
    /// The bits of the greatest component, from which the scale follows.
    pub(super) greatest: u32,
    memory: Memory,
}

/// The parts of an image that change with the vectors.
#[derive(Clone, Copy)]
pub(super) struct ImageParts {
    pub stored: StoredParts,
    pub values: PtrMut<f32>,
    pub ranks: PtrMut<u32>,
    pub starts: PtrMut<u32>,
    pub lengths: PtrMut<u32>,
    /// As [`Measured::greatest`], [`Measured::bounds`] and [`Measured::factor`].
    pub greatest: PtrMut<u32>,
    pub bounds: PtrMut<u32>,
    pub factor: PtrMut<u32>,
}

/// The places of the parts of an image.
struct ImagePlan<'a> {
    dim: usize,
    metric: Metric,
    in_place: bool,
    stored: Box<dyn StoredPlan + 'a>,
    values: Reserved<f32>,
    ranks: Reserved<u32>,
    starts: Reserved<u32>,
    lengths: Reserved<u32>,
    centroids: Reserved<f32>,
    f16_centroids: Reserved<u16>,
    centroid_values: Reserved<f32>,
    centre: Reserved<f32>,
    /// Greatest component of the vectors, and then (cosine only) of the centroids.
    greatest: Reserved<u32>,
    /// Bits of the greatest norm and residual of the vectors, and then of the centroids; then of the greatest factor of
    /// a vector.
    bounds: Reserved<u32>,
    bytes: usize,
}

impl<'a> ImagePlan<'a> {
    fn new(view: &View<'a>, storage: &Storage, budget: u64) -> ImagePlan<'a> {
        let (dim, lists, rows) = (view.dim, view.list_count(), storage.rows as usize);
        let stride = dim.next_multiple_of(4);
        let f16_stride = dim.next_multiple_of(list_scan::CHUNK as usize);
        let padded_lists = lists.next_multiple_of(TILE_ROWS as usize);
        let mut layout = Layout::default();
        let shape = ImageShape { view, rows: storage.rows, longest_list: storage.longest(), budget };
        let stored = view.codec.plan(&mut layout, &shape);
        let plan = ImagePlan {
            dim,
            metric: view.metric,
            in_place: view.codec.in_place(),
            stored,
            values: layout.array(rows),
            ranks: layout.array(rows),
            starts: layout.array(lists),
            lengths: layout.array(lists),
            centroids: layout.array(lists * stride),
            f16_centroids: layout.array(padded_lists * f16_stride),
            centroid_values: layout.array(padded_lists),
            centre: layout.array(stride),
            greatest: layout.array(2),
            bounds: layout.array(5),
            bytes: 0,
        };
        ImagePlan { bytes: layout.bytes(), ..plan }
    }

    /// The words for the greatest components of the vectors and of the centroids.
    fn greatest(&self) -> (Reserved<u32>, Reserved<u32>) {
        let (of_vectors, of_centroids) = self.greatest.split_at(1);
        // Cosine scales vectors by their norms, so the centroids need a separate scale.
        (of_vectors, if self.metric.divides_by_norms() && self.in_place { of_centroids } else { of_vectors })
    }

    /// Whether a centre is subtracted from queries and vectors.
    fn is_centred(&self) -> bool {
        self.metric.ignores_translation() && !self.stored.fixed_scale()
    }

    /// The image in `memory`.
    fn image(&self, memory: Scratch) -> Image {
        let (greatest, centroid_greatest) = self.greatest();
        Image {
            dim: self.dim as u32,
            metric: self.metric,
            lists: self.lengths.len() as u32,
            rows: self.ranks.len() as u32,
            f16_stride: self.dim.next_multiple_of(list_scan::CHUNK as usize) as u32,
            stored: self.stored.stored(memory),
            values: memory.at(self.values).into(),
            ranks: memory.at(self.ranks).into(),
            starts: memory.at(self.starts).into(),
            lengths: memory.at(self.lengths).into(),
            centroids: memory.at(self.centroids).into(),
            f16_centroids: memory.at(self.f16_centroids).into(),
            centroid_values: memory.at(self.centroid_values).into(),
            centre: self.is_centred().then(|| memory.at(self.centre).into()),
            greatest: memory.at(greatest).into(),
            centroid_greatest: memory.at(centroid_greatest).into(),
            // Kernels raise the bits of non-negative floats; searches read them as floats.
            bounds: memory.at(self.bounds.cast::<f32>()).into(),
        }
    }

    /// The parts of the image in `memory` that change with the vectors.
    fn parts(&self, memory: Scratch) -> ImageParts {
        ImageParts {
            stored: self.stored.parts(memory),
            values: memory.at(self.values),
            ranks: memory.at(self.ranks),
            starts: memory.at(self.starts),
            lengths: memory.at(self.lengths),
            greatest: memory.at(self.greatest().0),
            bounds: memory.at(self.bounds.part(0, 2)),
            factor: memory.at(self.bounds.part(4, 1)),
        }
    }

    /// Copies the index to the device.
    ///
    /// # Safety
    /// `memory` has the plan's bytes, and the plan was made for this index and storage.
    unsafe fn copy_to_device(
        &self,
        on: OnStream<'_>,
        memory: Scratch,
        view: &View<'_>,
        storage: &Storage,
        held: Option<Held>,
    ) -> Result<()> {
        let OnStream { runtime, stream } = on;
        let shape = VectorShape { element: ElementType::F32, metric: view.metric, dim: self.dim };
        // SAFETY: every part was reserved with the size that is written; the stream runs the copies in order.
        unsafe {
            runtime.copy_to_device(stream, memory.at(self.starts), &storage.starts)?;
            runtime.copy_to_device(stream, memory.at(self.lengths), &storage.lengths)?;
            upload_rows(runtime, stream, shape, memory.at(self.centroids).as_bytes(), view.centroids)?;
            if self.is_centred() {
                let centre = middle(view, held, self.centre.len());
                runtime.copy_to_device(stream, memory.at(self.centre), &centre)?;
            }
            let greatest = [self.stored.least_greatest().to_bits(), 0];
            runtime.copy_to_device(stream, memory.at(self.greatest), &greatest)?;
            runtime.fill(stream, memory.at(self.bounds), 0)?;
            storage.copy_to_device(on, memory.at(self.ranks).as_bytes(), 4, |list, places, to| {
                let filled = storage.filled(list, &places);
                let (own, padding) = to.split_at_mut(4 * filled.len());
                view.ranks_into(list, filled, bytemuck::cast_slice_mut(own));
                padding.fill(0xff);
            })?;
            let ranks = memory.at(self.ranks).into();
            self.stored.copy_to_device(&Source { on, view, storage, held, ranks }, memory)
        }
    }

    /// Makes scales, f16 operands, values and bounds.
    ///
    /// # Safety
    /// As [`Self::copy_to_device`], whose work precedes this in the stream; `image` is in `memory`.
    unsafe fn prepare(&self, on: OnStream<'_>, memory: Scratch, image: &Image) -> Result<()> {
        let OnStream { runtime, stream } = on;
        let (greatest, centroid_greatest) = self.greatest();
        let (greatest, centroid_greatest) = (memory.at(greatest), memory.at(centroid_greatest));
        let bounds = memory.at(self.bounds);
        let (bounds, centroid_bounds, factor) = (bounds.take(2), bounds.skip(2).take(2), bounds.skip(4));
        let values = memory.at(self.values);
        let centroids = Unprepared {
            element: ElementType::F32,
            rows: image.centroids.as_bytes(),
            count: image.lists,
            padded: image.lists.next_multiple_of(TILE_ROWS),
            stride: image.stride(),
            centre: image.centre,
            metric: image.probe_metric(),
            tiles: None,
            greatest: centroid_greatest,
        };
        // SAFETY: the plan reserved every part with the size that the kernels require; the stream runs the launches in order.
        unsafe {
            if !self.stored.fixed_scale() {
                greatest_of(runtime, stream, centroids)?;
            }
            let all = Measured {
                image,
                codes: image.stored.rows,
                row_count: image.rows,
                row_lists: Ptr::empty(),
                greatest,
                operands: PtrMut::empty(),
                values,
                bounds,
                factor,
            };
            self.stored.prepare(on, memory, all)?;
            let (f16_centroids, values) = (memory.at(self.f16_centroids), memory.at(self.centroid_values));
            prepare_rows(runtime, stream, centroids, prepared(image, f16_centroids, values, centroid_bounds))
        }
    }
}

/// The places for f16 operands, values and bounds of rows.
pub(crate) fn prepared(image: &Image, copy: PtrMut<u16>, values: PtrMut<f32>, bounds: PtrMut<u32>) -> Prepared {
    Prepared {
        copy,
        copy_stride: image.f16_stride,
        values,
        norms: None,
        residuals: PtrMut::empty(),
        tile_norms: None,
        tile_residuals: PtrMut::empty(),
        bounds: Some(bounds),
        squares: None,
    }
}

impl Resident {
    /// Copies the index to the device and prepares it for scans, within `budget` bytes; without room for growth if that exceeds the budget.
    /// The index has vectors, and the caller has made their directory if the ids need one, because this function must not use the thread
    /// pool.
    pub fn new(runtime: &Runtime, stream: &Stream, view: &View<'_>, budget: u64, growth: Growth) -> Result<Resident> {
        let on = OnStream { runtime, stream };
        match Resident::with_growth(on, view, None, budget, growth) {
            Err(Error::OutOfDeviceMemory { .. } | Error::TooMany { what: "rows", .. }) if growth != Growth::None => {
                Resident::with_growth(on, view, None, budget, Growth::None)
            }
            made => made,
        }
    }

    /// As [`new`](Self::new), of vectors that the device has.
    pub fn of_held(on: OnStream<'_>, view: &View<'_>, held: Held, budget: u64) -> Result<Resident> {
        Resident::with_growth(on, view, Some(held), budget, Growth::None)
    }

    fn with_growth(
        on: OnStream<'_>,
        view: &View<'_>,
        held: Option<Held>,
        budget: u64,
        growth: Growth,
    ) -> Result<Resident> {
        let OnStream { runtime, stream } = on;
        let places = || (0..view.list_count()).map(|list| view.places(list));
        let storage = Storage::new(places().map(|places| places.len() as u32).collect(), growth)?;
        let firsts = places().map(|places| places.start as u32).collect();
        let plan = ImagePlan::new(view, &storage, budget);
        let bytes = plan.bytes as u64;
        if bytes > budget {
            return Err(Error::OutOfDeviceMemory { device: runtime.describe(), asked: bytes, available: budget });
        }
        let started = events::Started::now();
        let memory = runtime.allocate(plan.bytes)?;
        let scratch = runtime.scratch(&memory);
        let (image, parts) = (plan.image(scratch), plan.parts(scratch));
        let mut greatest = [0];
        // SAFETY: the memory was allocated for the plan, and the plan was made for the index.
        unsafe {
            plan.copy_to_device(on, scratch, view, &storage, held)?;
            plan.prepare(on, scratch, &image)?;
            runtime.copy_to_host(stream, &mut greatest, parts.greatest)?;
        }
        runtime.synchronize(stream)?;
        events::uploaded("image of an inverted file", || runtime.describe(), bytes, &started);
        let mut made = Resident {
            version: view.version(),
            image,
            bytes,
            longest: Vec::new(),
            longest_list: 0,
            storage,
            firsts,
            parts,
            greatest: greatest[0],
            memory,
        };
        made.note_lengths();
        Ok(made)
    }

    /// A copy within the memory of the device, which can then be brought to the version of `view`; `None` if it could not.
    pub fn copied(&self, runtime: &Runtime, stream: &Stream, view: &View<'_>, budget: u64) -> Result<Option<Resident>> {
        if view.changes_since(self.version).is_none() {
            return Ok(None);
        }
        // The places in an image follow from the training, the number of rows and the budget, which are the same.
        let plan = ImagePlan::new(view, &self.storage, budget);
        if plan.bytes as u64 != self.bytes {
            return Ok(None);
        }
        let (storage, firsts) = (self.storage.copied()?, host_memory::copied(&self.firsts)?);
        let memory = runtime.allocate(plan.bytes)?;
        let (to, from) = (runtime.scratch(&memory), runtime.scratch(&self.memory));
        let all = Layout::default().array::<u8>(plan.bytes);
        // SAFETY: both memories have the plan's bytes, and differ. Nothing changes an image that others have.
        unsafe { runtime.copy(stream, to.at(all), from.at(all))? };
        runtime.synchronize(stream)?;
        let mut copy = Resident {
            version: self.version,
            image: plan.image(to),
            bytes: self.bytes,
            longest: Vec::new(),
            longest_list: 0,
            storage,
            firsts,
            parts: plan.parts(to),
            greatest: self.greatest,
            memory,
        };
        copy.note_lengths();
        Ok(Some(copy))
    }

    /// Computes what follows from the lengths of the lists.
    pub(super) fn note_lengths(&mut self) {
        let padded = self.storage.lengths.iter().map(|&length| u64::from(pairs::padded(length)));
        self.longest.clear();
        self.longest.extend(padded);
        self.longest.sort_unstable_by(|a, b| b.cmp(a));
        let mut sum = 0;
        for length in &mut self.longest {
            sum += *length;
            *length = sum;
        }
        self.longest_list = self.storage.longest();
        if let Some(tables) = &mut self.image.stored.tables {
            tables.shape.longest_list = self.longest_list;
        }
    }
}

/// The rows of a list, or of the next list that is not empty, so that every padding row is a vector of the index.
fn any_row<'a>(view: &View<'a>, list: usize) -> &'a [u8] {
    let lists = view.list_count();
    (0..lists).map(|on| view.codes((list + on) % lists)).find(|codes| !codes.is_empty()).unwrap_or(&[])
}

/// The mean of the centroids, weighted by the lengths of their lists, with zeros up to `stride`. If the vectors are whole numbers, the mean
/// is rounded to whole numbers, so that f16 holds the differences exactly.
fn middle(view: &View<'_>, held: Option<Held>, stride: usize) -> Vec<f32> {
    let mut centre = Centre::default();
    for (list, centroid) in view.centroids.chunks_exact(view.dim).enumerate() {
        centre.add_row(centroid, view.length(list) as f64);
    }
    let sample = || (0..view.list_count()).take(16).all(|list| view.codec.whole(view.codes(list)));
    let whole =
        matches!(view.element, ElementType::U8 | ElementType::I8) || held.map_or_else(sample, |held| held.whole);
    centre.rounded(whole, stride)
}
