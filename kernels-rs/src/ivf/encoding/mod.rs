//! The meaning of the bytes of a stored vector on a device, with one file for each encoding.
//!
//! | module | encoding |
//! |---|---|
//! | `flat` | vectors as they were added, scanned by their f16 operands |
//! | `bytes` | vectors of bytes as they were added, which are also the operands |
//! | `pq` | product-quantizer codes of residuals |
//! | `f16` | f32 vectors stored as f16, which are also the operands |
//! | `scalar8` | one byte for each component of residuals or vectors; the codes are also the operands |
//! | `bits` | one to eight bits for each component of residuals, and a step of each row; unpacked to bytes |
//!
//! A file has up to three readers: `Rows` for the list scan ([`crate::ivf::list_scan`]), `Decode` for re-ranking
//! ([`crate::ivf::rerank`], [`crate::ivf::rescan`]), and `Operand4`, which measures the error of the operands
//! ([`crate::ivf::code_bounds`]). It also has the tables of its kernels. So a new encoding is a new file, and the code
//! of the kernels does not change.

use cuda_std::{Ptr, device_inline, group, math, unroll};

use crate::product::element::{F32, Row};

pub mod bits;
pub mod bytes;
pub mod f16;
pub mod flat;
pub mod pq;
pub mod scalar8;

/// The rows of the storage, for any encoding. Fields that an encoding does not need are empty or 0; [`flat`] needs the
/// rows only.
#[group]
#[derive(Default)]
pub struct StoredRows {
    /// Codes of `code_bytes` bytes, or vectors as they were added.
    pub rows: Ptr<u8>,
    /// Number of bytes of a code.
    pub code_bytes: u32,
    /// Number of bits of a sub-quantizer's code or of a code of [`mod@bits`], at most 8; the exponent of [`mod@f16`].
    pub bits: u32,
    /// Number of components of a sub-vector.
    pub width: u32,
    /// Number of components of a vector, without padding.
    pub dim: u32,
    /// Codewords \[dim / width\]\[2^bits\]\[width\] of product-quantizer codes, or `least` and `step` of [`scalar8`],
    /// which [`mod@bits`] has as well.
    pub codebooks: Ptr<f32>,
    /// Centroids of the lists; a row has `dim` components, zero padded to a multiple of 4.
    pub centroids: Ptr<f32>,
    /// Codes of [`scalar8`] and queries of [`crate::ivf::code_queries`] only: numbers from the centroid of one list to
    /// that of the next. 0 if codes are of vectors and not of residuals: `centroids` is then one row of zeros.
    pub centroids_apart: u32,
}

/// Stored vectors as re-ranking compares them with queries.
pub(crate) trait Decode: Copy {
    /// The content of queries.
    type Query: Row;

    /// The stored vectors of a launch. Vectors as they were added and centroids have `stride` components a row, with
    /// padding.
    fn of(rows: &StoredRows, stride: u32) -> Self;

    /// Units 4·`quad` .. of a row of the storage, which belongs to `list`, in the form that canonical distances to
    /// queries sum.
    ///
    /// # Safety
    /// Row and list exist, and quad is inside the row.
    unsafe fn quad(&self, row: u32, list: u32, quad: u32) -> <Self::Query as Row>::Quad;
}

/// The scaled parts of f16 operands ([`crate::ivf::code_bounds::ScaleCodes`]); empty if an encoding has none.
#[group]
#[derive(Default)]
pub struct OperandParts {
    /// The scaled centroids, laid out as the centroids.
    pub offsets: Ptr<u16>,
    /// The scaled codewords, laid out as the codebooks: `dim` · 2^`bits` numbers, padded to 16 bytes.
    pub halves: Ptr<u16>,
}

/// The data from which [`Operand4`] computes four components.
#[derive(Clone, Copy)]
pub(crate) struct OperandSource {
    /// The scaled parts of f16 operands.
    pub parts: OperandParts,
    /// The inverse of the scale of f16 operands.
    pub down: f64,
    /// Four components of the centre; zeros if there is no centre.
    pub centre: [f32; 4],
}

/// Four components of the vector for which the list scan computes exact products, up to the errors that
/// [`crate::product::bounds`] covers.
#[derive(Clone, Copy)]
pub(crate) struct Held {
    /// The components, minus the centre.
    pub values: [f64; 4],
    /// At least the size of each component, and of the part of it that is multiplied apart.
    pub sizes: [f64; 4],
    /// Codes that are the operands: the sum of the squares of the bytes, times the step of the row. Otherwise 0.
    pub code_squares: f64,
}

impl Held {
    /// Components that are f16, in two words, times `down`.
    #[device_inline]
    pub fn of_halves(words: [u32; 2], down: f64) -> Held {
        let mut values = [0.0; 4];
        unroll::<4>(|e| values[e] = math::f16_to_f32((words[e / 2] >> (16 * (e % 2))) as u16) as f64 * down);
        Held { values, sizes: values, code_squares: 0.0 }
    }
}

/// Vectors whose operands are computed from codes.
pub(crate) trait Operand4: Decode<Query = F32> {
    /// Whether the codes are the operands, so that the bound of their sizes is measured.
    const CODES: bool;

    /// The operands of components 4·`quad` .. of a row, with the same values as in the list scan.
    ///
    /// # Safety
    /// As [`Decode::quad`]; the source is that of the rows and of the quad.
    unsafe fn operand4(&self, from: OperandSource, row: u32, list: u32, quad: u32) -> Held;
}
