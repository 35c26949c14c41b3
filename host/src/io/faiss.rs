//! Blocks of FAISS's files, of which the files of its indexes consist (faiss/impl/index_write.cpp, 1.15.1).
//!
//! All numbers are little-endian. An index begins with four letters that tell its class, and a header. A vector is a
//! u64, its length, and its values.
//!
//! ```text
//! header:    i32 dimension, i64 number of vectors, 2 · i64 2^20, u8 1 (trained), i32 metric: 0 inner product, 1 L2
//! IndexFlat: IxF2 or IxFI, header, vector of f32: the components
//!
//! header of bits:  i32 bits, i32 bytes of a row, i64 vectors, u8 1 (trained), i32 metric 1
//! IndexBinaryFlat: IBxF, header of bits, vector of u8: the rows
//! ```
//! `IxFl`, the IndexFlat of older versions, is read as well.

use std::io::{self, Write};

use bytemuck::NoUninit;

use super::fields::{Fields, dimension};
use crate::error::FileDefect;
use crate::{Error, Metric, Result};

/// Bytes of four letters and a header.
pub(crate) const HEAD: usize = 4 + 4 + 3 * 8 + 1 + 4;
/// The largest id of FAISS.
pub(crate) const MOST_ID: u64 = i64::MAX as u64;

/// Four letters and a header.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Head {
    pub word: [u8; 4],
    pub dim: usize,
    pub len: usize,
    /// [`Metric::L2`] or [`Metric::InnerProduct`].
    pub metric: Metric,
}

impl Head {
    pub(crate) fn read(fields: &mut Fields<'_>) -> Result<Self, FileDefect> {
        let word = fields.get()?;
        Head::after(word, fields)
    }

    /// Reads what follows the letters `word`.
    pub(crate) fn after(word: [u8; 4], fields: &mut Fields<'_>) -> Result<Self, FileDefect> {
        let dim = dimension(fields.get::<i32>()?.into())?;
        let len = fields.size()?;
        fields.take(16 + 1)?;
        let metric = match fields.get::<i32>()? {
            0 => Metric::InnerProduct,
            1 => Metric::L2,
            _ => return Err(FileDefect::BadHeader("a metric of FAISS that is neither L2 nor inner product")),
        };
        Ok(Head { word, dim, len, metric })
    }

    /// This header, if it has the shape of that of the index around it.
    pub(crate) fn within(self, outer: &Head) -> Result<Self, FileDefect> {
        if (self.dim, self.len, self.metric) != (outer.dim, outer.len, outer.metric) {
            return Err(FileDefect::Inconsistent("headers of an index and of the one inside differ"));
        }
        Ok(self)
    }

    /// This header with other letters.
    pub(crate) fn of(self, word: &[u8; 4]) -> Self {
        Head { word: *word, ..self }
    }

    pub(crate) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        out.write_all(&self.word)?;
        number(self.dim as i32, out)?;
        length(self.len, out)?;
        number([1u64 << 20; 2], out)?;
        number(1u8, out)?;
        let metric = match self.metric {
            // FAISS names the metric of bits so.
            Metric::L2 | Metric::Hamming => 1i32,
            Metric::InnerProduct | Metric::Cosine => 0,
        };
        number(metric, out)
    }

    /// The letters of an IndexFlat of this metric.
    fn flat_word(&self) -> &'static [u8; 4] {
        match self.metric {
            Metric::L2 | Metric::Hamming => b"IxF2",
            Metric::InnerProduct | Metric::Cosine => b"IxFI",
        }
    }

    /// Writes the beginning of an IndexFlat of this shape. Its components follow.
    pub(crate) fn write_flat(&self, out: &mut impl Write) -> io::Result<()> {
        self.of(self.flat_word()).write(out)?;
        length(self.len * self.dim, out)
    }

    /// Reads an IndexFlat of this shape: the bytes of its components.
    pub(crate) fn read_flat<'a>(&self, fields: &mut Fields<'a>) -> Result<&'a [u8], FileDefect> {
        let found = Head::read(fields)?.within(self)?;
        if &found.word != self.flat_word() && &found.word != b"IxFl" {
            return Err(FileDefect::BadHeader("vectors or centroids of FAISS that are no IndexFlat"));
        }
        vector_of(fields, self.len.saturating_mul(self.dim), 4)
    }
}

/// Largest number of bytes of a vector whose number of bits is an i32.
const MOST_BYTES: usize = (i32::MAX / 8) as usize;
/// FAISS's number of the metric of indexes of bits.
const METRIC_OF_BITS: i32 = 1;
/// The letters of an IndexBinaryFlat.
pub(crate) const FLAT_OF_BITS: &[u8; 4] = b"IBxF";

/// Four letters and a header of an index of bits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BitsHead {
    pub word: [u8; 4],
    /// Bytes of a vector.
    pub dim: usize,
    pub len: usize,
}

impl BitsHead {
    /// Reads what follows the letters `word`.
    pub(crate) fn after(word: [u8; 4], fields: &mut Fields<'_>) -> Result<Self, FileDefect> {
        let [bits, bytes] = [(); 2].map(|()| fields.get::<i32>());
        let dim = dimension(bytes?.into())?;
        if i64::from(bits?) != 8 * dim as i64 {
            return Err(FileDefect::Inconsistent("a number of bits that is not eight times the bytes of a vector"));
        }
        let len = fields.size()?;
        fields.take(1)?;
        if fields.get::<i32>()? != METRIC_OF_BITS {
            return Err(FileDefect::BadHeader("a metric of FAISS that is none of bits"));
        }
        Ok(BitsHead { word, dim, len })
    }

    /// This header, if it has the shape of that of the index around it.
    pub(crate) fn within(self, outer: &BitsHead) -> Result<Self, FileDefect> {
        if (self.dim, self.len) != (outer.dim, outer.len) {
            return Err(FileDefect::Inconsistent("headers of an index and of the one inside differ"));
        }
        Ok(self)
    }

    /// This header with other letters.
    pub(crate) fn of(self, word: &[u8; 4]) -> Self {
        BitsHead { word: *word, ..self }
    }

    pub(crate) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        out.write_all(&self.word)?;
        number([8 * self.dim as i32, self.dim as i32], out)?;
        length(self.len, out)?;
        number(1u8, out)?;
        number(METRIC_OF_BITS, out)
    }

    /// Writes an IndexBinaryFlat of this shape.
    pub(crate) fn write_flat(&self, rows: &[u8], out: &mut impl Write) -> io::Result<()> {
        self.of(FLAT_OF_BITS).write(out)?;
        vector(rows, out)
    }

    /// Reads the rows of an IndexBinaryFlat whose header this is.
    pub(crate) fn rows<'a>(&self, fields: &mut Fields<'a>) -> Result<&'a [u8], FileDefect> {
        vector_of(fields, self.len.saturating_mul(self.dim), 1)
    }
}

/// Checks that FAISS can have vectors of `dim` bytes of bits.
///
/// # Errors
/// [`Error::TooMany`].
pub(crate) fn check_bytes_of_bits(dim: usize) -> Result<()> {
    let (what, asked, limit) = ("bytes of a vector for FAISS", dim as u64, MOST_BYTES as u64);
    if dim > MOST_BYTES { Err(Error::TooMany { what, asked, limit }) } else { Ok(()) }
}

/// The metric of a file for an index of this metric.
pub(crate) fn stored_metric(metric: Metric) -> Metric {
    match metric {
        Metric::L2 | Metric::Hamming => metric,
        Metric::InnerProduct | Metric::Cosine => Metric::InnerProduct,
    }
}

/// Checks that the metric of a file fits an index of this metric: it is the same, or the inner product for cosine.
///
/// # Errors
/// [`Error::Mismatch`].
pub(crate) fn check_metric(metric: Metric, of_file: Metric) -> Result<()> {
    if of_file == stored_metric(metric) {
        return Ok(());
    }
    Err(Error::Mismatch { what: "metric of the file", expected: metric.name(), actual: of_file.name() })
}

/// Checks that FAISS can number vectors whose greatest id is this.
///
/// # Errors
/// [`Error::OutOfRange`].
pub(crate) fn check_greatest_id(greatest: Option<u64>) -> Result<()> {
    match greatest {
        Some(value) if value > MOST_ID => Err(Error::OutOfRange { what: "id", value, least: 0, most: MOST_ID }),
        _ => Ok(()),
    }
}

/// Checks ids of a file.
pub(crate) fn check_ids(mut ids: impl Iterator<Item = u64>) -> Result<(), FileDefect> {
    if ids.any(|id| id > MOST_ID) {
        return Err(FileDefect::Inconsistent("a negative id"));
    }
    Ok(())
}

/// Reads a vector of `len` values of so many bytes.
pub(crate) fn vector_of<'a>(fields: &mut Fields<'a>, len: usize, bytes: usize) -> Result<&'a [u8], FileDefect> {
    if fields.size()? != len {
        return Err(FileDefect::Inconsistent("a length that differs from that of the shape"));
    }
    fields.values(len, bytes)
}

pub(crate) fn number<V: NoUninit>(value: V, out: &mut impl Write) -> io::Result<()> {
    out.write_all(bytemuck::bytes_of(&value))
}

pub(crate) fn length(len: usize, out: &mut impl Write) -> io::Result<()> {
    number(len as u64, out)
}

pub(crate) fn vector<V: NoUninit>(values: &[V], out: &mut impl Write) -> io::Result<()> {
    length(values.len(), out)?;
    out.write_all(bytemuck::cast_slice(values))
}
