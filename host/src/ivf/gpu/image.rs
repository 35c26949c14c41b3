//! The image of an inverted file in device memory, made from the master copy on the host.
//!
//! Lists lie one after the other, each from a multiple of `pairs::PAD` rows on, so that the scores of a list start at a sector. Rows
//! between lists repeat the last vector of the list before (any vector of the index would do: their values are +∞, but their norms count),
//! and a tile's worth of them follows the last list, since tiles are copied whole.

use std::ops::Range;

use warpann_kernels::ivf::code_bounds::{GreatestCode, MarkPadding, MeasureCodes, ScaleCodes};
use warpann_kernels::ivf::list_scan::{self, TILE_ROWS};
use warpann_kernels::{NO_ROW, ivf::pairs, product::prepare};

use super::tables;
use super::tables::Terms;
use crate::device::queue::OnStream;
use crate::device::runtime::{Memory, Runtime, Stream};
use crate::device::scratch::Layout;
use crate::ivf::View;
use crate::ivf::codec::Codec;
use crate::product::gpu::{Prepared, Shape, Unprepared, greatest_of, prepare_rows, upload_rows};
use crate::threads::work_off;
use crate::{Element, ElementType, Error, Metric, Result, host_memory};

/// Bytes that are arranged on the host before they are uploaded.
const STAGING: usize = 64 << 20;

/// The vectors of the lists.
#[derive(Debug, Clone, Copy)]
pub(super) enum Stored {
    /// As they were added, `stride` components a row, and their f16 copies.
    Rows { rows: *mut u8, stride: u32, copies: *mut u16 },
    /// Product-quantizer codes of residuals.
    Codes(Codes),
}

/// Codes, and what they stand for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Codes {
    pub codes: *mut u8,
    pub code_bytes: u32,
    pub bits: u32,
    /// Components of a sub-vector.
    pub width: u32,
    /// [M][2^bits][width].
    pub codebooks: *mut f32,
    pub sub_quantizers: u32,
    /// What f16 operands are made of (`warpann_kernels::pq::codes::Operands`).
    pub offsets: *mut u16,
    pub halves: *mut u16,
    /// For scanning by lookup tables.
    pub tables: tables::Shape,
    pub terms: Terms,
    pub terms_at: *mut f32,
}

impl Codes {
    /// The index as the scan by lookup tables sees it.
    pub fn table_image(&self, image: &Image) -> tables::Image {
        tables::Image {
            centroids: image.centroids,
            codebooks: self.codebooks,
            codes: self.codes,
            list_starts: image.starts,
            list_lengths: image.lengths,
        }
    }

    /// Components of all codewords.
    pub fn components(&self) -> u32 {
        (self.sub_quantizers * self.width) << self.bits
    }
}

/// Addresses and sizes of an image.
#[derive(Debug, Clone, Copy)]
pub(super) struct Image {
    pub dim: u32,
    /// The metric that the index was made with.
    pub metric: Metric,
    /// Lists.
    pub lists: u32,
    /// Rows of the storage, padding included.
    pub rows: u32,
    /// Components from one row of an f16 copy to the next.
    pub copy_stride: u32,
    pub stored: Stored,
    /// What a scan adds to the product of each row.
    pub values: *mut f32,
    /// Rank of each row's id; `NO_ROW` for padding.
    pub ranks: *mut u32,
    /// First row of each list.
    pub starts: *mut u32,
    /// Vectors of each list.
    pub lengths: *mut u32,
    /// Centroids, `dim` padded to 4 components a row, with copies and values.
    pub centroids: *mut f32,
    pub centroid_copies: *mut u16,
    pub centroid_values: *mut f32,
    /// Subtracted from queries and vectors before they become f16 (squared L2), or null.
    pub centre: *mut f32,
    /// Greatest component of the vectors (of the centroids too, unless the metric is cosine), then of the centroids.
    pub greatest: *mut u32,
    /// Greatest norm and residual of the vectors, then of the centroids.
    pub bounds: *mut f32,
}

// SAFETY: addresses of device memory and numbers; the owner of the memory keeps it alive and unchanged.
unsafe impl Send for Image {}
// SAFETY: as above; an image is only read.
unsafe impl Sync for Image {}

impl Image {
    /// Components of a row of centroids, queries as f32 and reconstructions.
    pub fn stride(&self) -> u32 {
        self.dim.next_multiple_of(4)
    }

    /// What the kernels that compare with stored vectors call the metric.
    pub fn metric_code(&self) -> u32 {
        match (self.metric, &self.stored) {
            (Metric::L2, _) => prepare::METRIC_L2,
            (Metric::Cosine, Stored::Rows { .. }) => prepare::METRIC_COSINE,
            // Coded vectors were normalised before.
            (Metric::InnerProduct, _) | (Metric::Cosine, Stored::Codes(_)) => prepare::METRIC_INNER_PRODUCT,
        }
    }

    /// The same for comparisons with centroids.
    pub fn probe_metric_code(&self) -> u32 {
        if self.metric == Metric::L2 { prepare::METRIC_L2 } else { prepare::METRIC_INNER_PRODUCT }
    }
}

/// An image and the memory that it lies in.
pub(super) struct Resident {
    /// Which state of which index it shows.
    pub version: u64,
    pub image: Image,
    /// Bytes in device memory.
    pub bytes: u64,
    /// The sum of the i longest padded lists: what i probes have to score at most.
    pub longest: Vec<u64>,
    /// The longest list.
    pub longest_list: u32,
    _memory: Memory,
}

/// Where the lists lie in the storage.
struct Storage {
    starts: Vec<u32>,
    lengths: Vec<u32>,
    rows: u32,
}

impl Storage {
    fn new(lengths: Vec<u32>) -> Result<Storage> {
        let mut end = 0u64;
        let mut starts = Vec::with_capacity(lengths.len());
        for &length in &lengths {
            starts.push(end as u32);
            end += u64::from(length).next_multiple_of(u64::from(pairs::PAD));
            // The tile after the last list counts as well.
            let limit = u64::from(u32::MAX) - 2 * u64::from(TILE_ROWS);
            if end > limit {
                return Err(Error::TooManyRows { asked: end, limit });
            }
        }
        let rows = (end as u32 + TILE_ROWS).next_multiple_of(TILE_ROWS);
        Ok(Storage { starts, lengths, rows })
    }

    /// Rows of the storage that belong to `list`, padding included; the last list has the rest.
    fn padded(&self, list: usize) -> usize {
        let next = self.starts.get(list + 1).copied().unwrap_or(self.rows);
        (next - self.starts[list]) as usize
    }

    /// Cuts the rows of all lists, one list after the other, into batches of `most` rows, the last one smaller: lists and the places in
    /// them.
    fn batches(&self, most: usize) -> impl Iterator<Item = Vec<(usize, Range<usize>)>> {
        let (mut list, mut place) = (0, 0);
        std::iter::from_fn(move || {
            let (mut batch, mut rows) = (Vec::new(), 0);
            while list < self.lengths.len() && rows < most {
                let count = (self.padded(list) - place).min(most - rows);
                batch.push((list, place..place + count));
                (rows, place) = (rows + count, place + count);
                if place == self.padded(list) {
                    (list, place) = (list + 1, 0);
                }
            }
            (!batch.is_empty()).then_some(batch)
        })
    }

    /// Those of these places of a list that hold a vector; padding is behind them.
    fn filled(&self, list: usize, places: &Range<usize>) -> Range<usize> {
        let length = self.lengths[list] as usize;
        places.start.min(length)..places.end.min(length)
    }

    /// Uploads `bytes` bytes a row, some [`STAGING`] bytes at a time however long a list is: `write(list, places, rows)` fills the rows at
    /// these places of a list, without a pool.
    ///
    /// # Safety
    /// `to` has room for all rows.
    unsafe fn upload(
        &self,
        runtime: &Runtime,
        stream: &Stream,
        to: *mut u8,
        bytes: usize,
        write: impl Fn(usize, Range<usize>, &mut [u8]) + Sync,
    ) -> Result<()> {
        let most = (STAGING / bytes).clamp(1, self.rows as usize);
        let mut staging: Vec<u8> = host_memory::zeroed(host_memory::count::<u8>(&[most, bytes])?)?;
        for (number, batch) in self.batches(most).enumerate() {
            let mut parts = Vec::with_capacity(batch.len());
            let mut rest = &mut staging[..];
            for (list, places) in batch {
                let (part, others) = rest.split_at_mut(places.len() * bytes);
                parts.push((list, places, part));
                rest = others;
            }
            let filled = most * bytes - rest.len();
            work_off(parts.into_iter(), filled, |(list, places, part): (usize, Range<usize>, &mut [u8])| {
                write(list, places, part);
            });
            let at = to.wrapping_add(number * most * bytes);
            // SAFETY: lists follow each other in the storage without gaps, so these rows start behind those of the batches before.
            unsafe { runtime.upload(stream, at, &staging[..filled])? };
        }
        Ok(())
    }
}

/// Fills `to` with the rows of `from` from row `first` on, `width` bytes each in places of `stride` bytes, and repeats the last one to the
/// end. Nothing to repeat: zeros.
fn fill_rows(from: &[u8], first: usize, width: usize, stride: usize, to: &mut [u8]) {
    let Some(last) = from.len().checked_sub(width) else {
        to.fill(0);
        return;
    };
    for (at, place) in to.chunks_exact_mut(stride).enumerate() {
        let start = ((first + at) * width).min(last);
        place[..width].copy_from_slice(&from[start..start + width]);
        place[width..].fill(0);
    }
}

impl Resident {
    /// Uploads the index and prepares it for scanning, within `budget` bytes. The index has vectors, and their directory is made if their
    /// ids need one: from here on no pool is used.
    pub fn new<T: Element>(runtime: &Runtime, stream: &Stream, view: &View<'_, T>, budget: u64) -> Result<Resident> {
        let (dim, lists) = (view.dim, view.list_count());
        let lengths: Vec<u32> = (0..lists).map(|list| view.length(list) as u32).collect();
        let storage = Storage::new(lengths)?;
        let rows = storage.rows as usize;
        let stride = dim.next_multiple_of(4);
        let copy_stride = dim.next_multiple_of(list_scan::CHUNK as usize);
        let padded_lists = lists.next_multiple_of(TILE_ROWS as usize);

        let mut layout = Layout::default();
        let (mut stored_rows, mut copies, mut codes, mut codebooks, mut row_lists) = (0, 0, 0, 0, 0);
        let (mut offsets, mut halves) = (0, 0);
        let mut by_tables = None;
        match view.codec {
            Codec::Flat => {
                stored_rows = layout.array::<u8>(rows.saturating_mul(stride * T::TYPE.size()));
                copies = layout.array::<u16>(rows.saturating_mul(copy_stride));
            }
            Codec::Pq(pq) => {
                codes = layout.array::<u8>(rows.saturating_mul(view.code_bytes()));
                codebooks = layout.array::<f32>(pq.quantizer.codebooks().len());
                row_lists = layout.array::<u32>(rows);
                offsets = layout.array::<u16>(lists * stride);
                let (books, sub_quantizers) = (pq.quantizer.codebooks(), pq.quantizer.sub_quantizers());
                halves = layout.array::<u16>(books.len().next_multiple_of(8));
                let shape = tables::Shape {
                    dim: dim as u32,
                    sub_quantizers: sub_quantizers as u32,
                    bits: pq.quantizer.bits(),
                    lists: lists as u32,
                    stored_rows: storage.rows,
                    longest_list: storage.lengths.iter().copied().max().unwrap_or(0),
                    inner_product: view.metric != Metric::L2,
                    norms: tables::Norms::new(view.centroids, books, dim, sub_quantizers),
                };
                // The paper's first term, where it takes at most an eighth of the budget: the scan works without it.
                let terms = shape.choose_terms(budget / 8);
                by_tables = Some((shape, terms, layout.array::<f32>(shape.terms_len(terms))));
            }
        }
        let values = layout.array::<f32>(rows);
        let ranks = layout.array::<u32>(rows);
        let (starts, list_lengths) = (layout.array::<u32>(lists), layout.array::<u32>(lists));
        let centroids = layout.array::<f32>(lists * stride);
        let centroid_copies = layout.array::<u16>(padded_lists * copy_stride);
        let centroid_values = layout.array::<f32>(padded_lists);
        let centre = layout.array::<f32>(stride);
        let (greatest, bounds) = (layout.array::<u32>(2), layout.array::<u32>(4));
        let bytes = layout.bytes() as u64;
        if bytes > budget {
            return Err(Error::OutOfDeviceMemory { device: runtime.describe(), asked: bytes, available: budget });
        }
        let memory = runtime.allocate(layout.bytes())?;
        let start = runtime.address(&memory);
        let at = |offset: usize| start.wrapping_add(offset);
        let l2 = view.metric == Metric::L2;
        let image = Image {
            dim: dim as u32,
            metric: view.metric,
            lists: lists as u32,
            rows: storage.rows,
            copy_stride: copy_stride as u32,
            stored: match (view.codec, by_tables) {
                (Codec::Pq(pq), Some((tables, terms, terms_at))) => Stored::Codes(Codes {
                    codes: at(codes),
                    code_bytes: view.code_bytes() as u32,
                    bits: pq.quantizer.bits(),
                    width: (dim / pq.quantizer.sub_quantizers()) as u32,
                    codebooks: at(codebooks).cast(),
                    sub_quantizers: pq.quantizer.sub_quantizers() as u32,
                    offsets: at(offsets).cast(),
                    halves: at(halves).cast(),
                    tables,
                    terms,
                    terms_at: at(terms_at).cast(),
                }),
                _ => Stored::Rows { rows: at(stored_rows), stride: stride as u32, copies: at(copies).cast() },
            },
            values: at(values).cast(),
            ranks: at(ranks).cast(),
            starts: at(starts).cast(),
            lengths: at(list_lengths).cast(),
            centroids: at(centroids).cast(),
            centroid_copies: at(centroid_copies).cast(),
            centroid_values: at(centroid_values).cast(),
            centre: if l2 { at(centre).cast() } else { std::ptr::null_mut() },
            greatest: at(greatest).cast(),
            bounds: at(bounds).cast(),
        };
        // SAFETY: every part was reserved with the size that is written; the stream runs all in order.
        unsafe {
            runtime.upload(stream, image.starts.cast(), bytemuck::cast_slice(&storage.starts))?;
            runtime.upload(stream, image.lengths.cast(), bytemuck::cast_slice(&storage.lengths))?;
            upload_rows(
                runtime,
                stream,
                Shape { element: ElementType::F32, metric: view.metric, dim },
                image.centroids.cast(),
                view.centroids,
            )?;
            if l2 {
                let mut centre = middle::<T>(view);
                centre.resize(stride, 0.0);
                runtime.upload(stream, image.centre.cast(), bytemuck::cast_slice(&centre))?;
            }
            runtime.fill(stream, image.greatest.cast(), 0, 4 * 2)?;
            runtime.fill(stream, image.bounds.cast(), 0, 4 * 4)?;
            storage.upload(runtime, stream, image.ranks.cast(), 4, |list, places, to| {
                let filled = storage.filled(list, &places);
                let (own, padding) = to.split_at_mut(4 * filled.len());
                view.ranks_into(list, filled, bytemuck::cast_slice_mut(own));
                padding.fill(0xff);
            })?;
            match image.stored {
                Stored::Rows { rows: to, .. } => {
                    let (width, place) = (dim * T::TYPE.size(), stride * T::TYPE.size());
                    storage.upload(runtime, stream, to, place, |list, places, to| {
                        fill_rows(any_row(view, list), places.start, width, place, to);
                    })?;
                }
                Stored::Codes(codes) => {
                    let width = codes.code_bytes as usize;
                    storage.upload(runtime, stream, codes.codes, width, |list, places, to| {
                        fill_rows(view.codes(list), places.start, width, width, to);
                    })?;
                    if let Codec::Pq(pq) = view.codec {
                        runtime.upload(
                            stream,
                            codes.codebooks.cast(),
                            bytemuck::cast_slice(pq.quantizer.codebooks()),
                        )?;
                    }
                    storage.upload(runtime, stream, at(row_lists), 4, |list, places, to| {
                        let to: &mut [u32] = bytemuck::cast_slice_mut(to);
                        let (own, padding) = to.split_at_mut(storage.filled(list, &places).len());
                        own.fill(list as u32);
                        padding.fill(NO_ROW);
                    })?;
                }
            }
            image.prepare::<T>(runtime, stream, at(row_lists).cast())?;
        }
        runtime.synchronize(stream)?;
        let mut longest: Vec<u64> = storage.lengths.iter().map(|&length| u64::from(pairs::padded(length))).collect();
        longest.sort_unstable_by(|a, b| b.cmp(a));
        let longest_list = storage.lengths.iter().copied().max().unwrap_or(0);
        let mut sum = 0;
        for length in &mut longest {
            sum += *length;
            *length = sum;
        }
        Ok(Resident { version: view.version, image, bytes, longest, longest_list, _memory: memory })
    }
}

/// The rows of a list, or where it is empty those of the next list that is not, so that padding is always some vector of the index.
fn any_row<'a, T: Element>(view: &View<'a, T>, list: usize) -> &'a [u8] {
    let lists = view.list_count();
    (0..lists).map(|on| view.codes((list + on) % lists)).find(|codes| !codes.is_empty()).unwrap_or(&[])
}

/// The mean of the centroids, each counted as often as its list has vectors; whole numbers where the vectors are, so that f16 still holds
/// the differences exactly.
fn middle<T: Element>(view: &View<'_, T>) -> Vec<f32> {
    let mut sums = vec![0.0f64; view.dim];
    let mut total = 0.0;
    for (list, centroid) in view.centroids.chunks_exact(view.dim).enumerate() {
        let count = view.length(list) as f64;
        total += count;
        sums.iter_mut().zip(centroid).for_each(|(sum, &c)| *sum += count * f64::from(c));
    }
    let whole = matches!(T::TYPE, crate::ElementType::U8 | crate::ElementType::I8)
        || (0..view.list_count()).take(16).all(|list| {
            matches!(view.codec, Codec::Flat)
                && view.rows(list).iter().take(1024).all(|x: &T| x.to_f32().fract() == 0.0)
        });
    let mean = |sum: &f64| sum / total.max(1.0);
    let centre: Vec<f32> =
        sums.iter().map(mean).map(|mean| if whole { mean.round() } else { mean }).map(|mean| mean as f32).collect();
    // Sums of components near f32's limit may leave its range: no centre then.
    if centre.iter().all(|c| c.is_finite()) { centre } else { vec![0.0; view.dim] }
}

impl Image {
    /// Makes scales, copies, values and bounds. `row_lists` (list of each row) is there where codes are stored.
    ///
    /// # Safety
    /// Everything else of the image is uploaded; the words at `greatest` and `bounds` are zero.
    unsafe fn prepare<T: Element>(&self, runtime: &Runtime, stream: &Stream, row_lists: *const u32) -> Result<()> {
        let metric = self.metric_code();
        let cosine = metric == prepare::METRIC_COSINE;
        // Cosine scales vectors by their norms; its centroids need a scale of their own.
        let centroid_greatest = if cosine { self.greatest.wrapping_add(1) } else { self.greatest };
        // SAFETY: the image's arrays have the shapes that the kernels ask for.
        unsafe {
            let centroids = Unprepared {
                element: crate::ElementType::F32,
                rows: self.centroids.cast(),
                count: self.lists,
                padded: self.lists.next_multiple_of(TILE_ROWS),
                stride: self.stride(),
                centre: self.centre,
                metric: self.probe_metric_code(),
                greatest: centroid_greatest,
            };
            greatest_of(runtime, stream, centroids)?;
            match self.stored {
                Stored::Rows { rows, stride, copies } => {
                    let from = Unprepared {
                        element: T::TYPE,
                        rows,
                        count: self.rows,
                        padded: self.rows,
                        stride,
                        centre: self.centre,
                        metric,
                        greatest: self.greatest,
                    };
                    greatest_of(runtime, stream, from)?;
                    prepare_rows(runtime, stream, from, self.prepared(copies, self.values, 0))?;
                    let launch = MarkPadding { ranks: self.ranks, row_count: self.rows, values: self.values };
                    runtime.launch(stream, &MarkPadding::KERNEL, launch.config(), launch)?;
                }
                Stored::Codes(codes) => {
                    let launch = GreatestCode {
                        codes: codes.codes,
                        code_bytes: codes.code_bytes,
                        bits: codes.bits,
                        width: codes.width,
                        dim: self.dim,
                        codebooks: codes.codebooks,
                        centroids: self.centroids,
                        row_lists,
                        row_count: self.rows,
                        centre: self.centre,
                        greatest: self.greatest,
                    };
                    let config = launch.config(runtime.limits().multiprocessors);
                    runtime.launch(stream, &GreatestCode::KERNEL, config, launch)?;
                    let queue = OnStream { runtime, stream };
                    let by_tables = codes.table_image(self);
                    tables::enqueue_terms(&queue, &codes.tables, &by_tables, codes.terms, codes.terms_at)?;
                    let launch = ScaleCodes {
                        centroids: self.centroids,
                        centroid_count: self.lists * self.stride(),
                        stride: self.stride(),
                        centre: self.centre,
                        codebooks: codes.codebooks,
                        codeword_count: codes.components(),
                        greatest: self.greatest,
                        offsets: codes.offsets,
                        halves: codes.halves,
                    };
                    runtime.launch(stream, &ScaleCodes::KERNEL, launch.config(), launch)?;
                    let launch = MeasureCodes {
                        codes: codes.codes,
                        code_bytes: codes.code_bytes,
                        bits: codes.bits,
                        width: codes.width,
                        dim: self.dim,
                        codebooks: codes.codebooks,
                        centroids: self.centroids,
                        row_lists,
                        row_count: self.rows,
                        centre: self.centre,
                        metric,
                        greatest: self.greatest,
                        offsets: codes.offsets,
                        halves: codes.halves,
                        values: self.values,
                        bounds: self.bounds.cast(),
                    };
                    runtime.launch(stream, &MeasureCodes::KERNEL, launch.config(), launch)?;
                }
            }
            prepare_rows(runtime, stream, centroids, self.prepared(self.centroid_copies, self.centroid_values, 2))
        }
    }

    /// Where copies and values go, and the bounds to the words from `bounds` on.
    fn prepared(&self, copy: *mut u16, values: *mut f32, bounds: usize) -> Prepared {
        let null = std::ptr::null_mut();
        Prepared {
            copy,
            copy_stride: self.copy_stride,
            values,
            norms: null,
            residuals: null,
            tile_norms: std::ptr::null_mut(),
            tile_residuals: std::ptr::null_mut(),
            bounds: self.bounds.cast::<u32>().wrapping_add(bounds),
            squares: std::ptr::null_mut(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_cover_all_places_in_order_and_none_is_larger_than_asked() {
        for lengths in [vec![5], vec![0, 1000, 0, 3, 64, 65], vec![0, 0, 1], vec![300; 4]] {
            let storage = Storage::new(lengths.clone()).unwrap();
            let all: Vec<(usize, usize)> =
                (0..lengths.len()).flat_map(|list| (0..storage.padded(list)).map(move |place| (list, place))).collect();
            assert_eq!(all.len(), storage.rows as usize);
            for most in [1, 7, 64, 100, storage.rows as usize] {
                let batches: Vec<_> = storage.batches(most).collect();
                let rows =
                    |batch: &Vec<(usize, Range<usize>)>| batch.iter().map(|(_, places)| places.len()).sum::<usize>();
                assert!(batches[..batches.len() - 1].iter().all(|batch| rows(batch) == most), "{lengths:?}, {most}");
                assert!(batches.last().is_some_and(|batch| (1..=most).contains(&rows(batch))), "{lengths:?}, {most}");
                let parts = batches.iter().flatten();
                let covered = parts.clone().flat_map(|(list, places)| places.clone().map(move |place| (*list, place)));
                assert!(covered.eq(all.iter().copied()), "{lengths:?}, {most}");
                let mut filled = vec![0; lengths.len()];
                parts.for_each(|(list, places)| filled[*list] += storage.filled(*list, places).len() as u32);
                assert_eq!(filled, lengths, "{most}");
            }
        }
    }

    #[test]
    fn a_storage_has_as_many_rows_as_32_bits_count() {
        // Padding included, with room for the tile behind the last list.
        let limit = u32::MAX - 2 * TILE_ROWS;
        let most = limit - limit % pairs::PAD;
        let storage = Storage::new(vec![1, most - pairs::PAD, 0]).unwrap();
        assert_eq!(storage.starts, [0, pairs::PAD, most]);
        assert!(storage.rows >= most && storage.padded(1) == (most - pairs::PAD) as usize);
        for beyond in [vec![most + 1], vec![1, most - pairs::PAD + 1], vec![u32::MAX; 3]] {
            let refused = Storage::new(beyond);
            assert!(
                matches!(refused, Err(Error::TooManyRows { asked, limit: l }) if asked > l && l == u64::from(limit))
            );
        }
    }

    #[test]
    fn rows_are_filled_from_any_place_on_and_the_last_is_repeated() {
        let from = [1, 2, 3, 4, 5, 6];
        let filled = |first: usize, rows: usize| {
            let mut to = vec![9; 3 * rows];
            fill_rows(&from, first, 2, 3, &mut to);
            to
        };
        assert_eq!(filled(0, 4), [1, 2, 0, 3, 4, 0, 5, 6, 0, 5, 6, 0]);
        assert_eq!(filled(1, 3), filled(0, 4)[3..]);
        assert_eq!(filled(3, 1), [5, 6, 0]);
        let mut nothing = [9; 3];
        fill_rows(&[], 0, 2, 3, &mut nothing);
        assert_eq!(nothing, [0; 3]);
    }
}
