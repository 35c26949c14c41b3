//! The part of an image that an encoding plans, copies to the device and prepares.

use cuda_std::{Ptr, PtrMut};
use warpann_kernels::NO_ROW;
use warpann_kernels::ivf::code_bounds::{GreatestCode, MeasureCodes};
use warpann_kernels::ivf::encoding::StoredRows;
use warpann_kernels::product::prepare_bytes::PrepareBytes;

use super::storage::{Storage, fill_rows};
use super::stored::{Image, Measuring, Stored};
use crate::device::queue::OnStream;
use crate::device::scratch::Scratch;
use crate::flat::gpu::copies::gather_rows;
use crate::ivf::lists::CodeRows;
use crate::product::gpu::{Prepared, Unprepared, greatest_of, prepare_rows};
use crate::{ElementType, Metric, Result};

/// The sizes of an index for which an encoding plans its part of the image.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ImageShape<'a> {
    /// Number of components of a centroid.
    pub dim: usize,
    /// Number of lists.
    pub lists: usize,
    /// The metric of the index.
    pub metric: Metric,
    /// Row-major, lists × dim; in rotated space if the codec rotates.
    pub centroids: &'a [f32],
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

    /// Lower bound of the greatest component of the vectors, from which the scale follows. With [`Self::fixed_scale`],
    /// its exact value.
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
    /// The codes of a list, or of the next list that is not empty, so that every padding row is a vector of the index.
    pub(super) codes: &'a (dyn Fn(usize) -> CodeRows<'a> + Sync),
    pub(super) storage: &'a Storage,
    pub(super) held: Option<Held>,
    /// The rank of each row of the storage, on the device.
    pub(super) ranks: Ptr<u32>,
}

impl Source<'_> {
    /// Copies the codes of all rows, each to the start of `place` bytes, with the bits of `flips` flipped in every
    /// byte. The remaining bytes become zero. The vectors of [`Held`] are copied as they are.
    ///
    /// # Safety
    /// `to` is memory of the device, with room for all rows of the storage.
    pub unsafe fn copy_codes(&self, to: PtrMut<u8>, place: usize, flips: u8) -> Result<()> {
        if let Some(held) = self.held {
            // Padding has no rank, and repeats the last vector of all.
            // SAFETY: as the caller promises; each rank is that of a held vector, `place` bytes each.
            return unsafe { gather_rows(self.on, held.rows, self.ranks, to, place) };
        }
        let codes = self.codes;
        // SAFETY: as the caller promises.
        unsafe {
            self.storage.copy_to_device(self.on, to, place, |list, places, to| {
                fill_rows(codes(list), places.start, place, flips, to);
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
    /// The list of each row, `NO_ROW` for padding; empty for [`Measuring::Operands`] and [`Measuring::Bytes`].
    pub row_lists: Ptr<u32>,
    /// The bits of the greatest component of all rows of the image: one word.
    pub greatest: PtrMut<u32>,
    /// f16 operands, [`Image::f16_stride`] components each; empty for [`Measuring::Codes`] and [`Measuring::Bytes`].
    pub operands: PtrMut<u16>,
    /// The value that a scan adds to the product of each row.
    pub values: PtrMut<f32>,
    /// The bits of the greatest norm and residual of all rows of the image: two words.
    pub bounds: PtrMut<u32>,
    /// The bits of the greatest factor of all rows of the image, and of the greatest norm of their codes: two words.
    pub code_bounds: PtrMut<u32>,
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

    /// These rows for launches that read them. A field of [`StoredRows`] that has a part for each row must be theirs,
    /// not the image's.
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
            Measuring::Bytes(_) => Ok(()),
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
    /// As [`Self::raise_greatest`], which precedes this in the stream for all rows of the image, as do the parts of
    /// operands.
    pub unsafe fn measure(&self, on: OnStream<'_>) -> Result<()> {
        let &Measured { image, row_count, row_lists, greatest, operands, values, bounds, code_bounds, .. } = self;
        let stored = &image.stored;
        match stored.measuring {
            Measuring::Operands(element) => {
                let to = prepared(image, operands, values, bounds);
                // SAFETY: as the caller promises.
                unsafe { prepare_rows(on.runtime, on.stream, self.unprepared(element), to) }
            }
            Measuring::Bytes(key) => {
                let launch = PrepareBytes {
                    rows: self.codes,
                    count: row_count,
                    padded_count: row_count,
                    stride: image.row_stride(),
                    metric: image.row_metric(),
                    tiles: None,
                    tile_count: 0,
                    values: values.cast(),
                    of_lists: 1,
                    norms: None,
                    set_norm: bounds.take(1),
                    row_squares: None,
                };
                // SAFETY: as the caller promises.
                unsafe { on.runtime.launch(on.stream, PrepareBytes::kernel(key), launch.config(), launch) }
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
                    greatest_factor: code_bounds.take(1),
                    code_norm: code_bounds.skip(1),
                };
                // SAFETY: as the caller promises.
                unsafe { on.runtime.launch(on.stream, by, launch.config(), launch) }
            }
        }
    }
}

/// The places for f16 operands, values and bounds of rows.
pub(super) fn prepared(image: &Image, copy: PtrMut<u16>, values: PtrMut<f32>, bounds: PtrMut<u32>) -> Prepared {
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
