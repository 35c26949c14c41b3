//! Inverted files of FAISS, as `faiss.write_index` writes them and `faiss.read_index` reads them (1.15.1;
//! faiss/impl/index_write.cpp).
//!
//! [`crate::io::faiss`] has vectors, headers, IndexFlat and IndexBinaryFlat. Files of bits are those of
//! `faiss.write_index_binary` and `faiss.read_index_binary`.
//!
//! ```text
//! with a rotation: IxPT, header, i32 1, LTra, u8 0, vector of f32: the matrix, vector of f32: nothing,
//!                  2 · i32 dimension, u8 1
//! IwFl, IwPQ or IwSq, header, u64 lists, u64 probes
//! IndexFlat: the centroids
//! u8 0, vector of u64: nothing (no direct map)
//! IwPQ: u8 1 (residuals), u64 bytes of a code, u64 dimension, u64 sub-quantizers, u64 bits, vector of f32: the codebooks
//! IwSq: i32 type, i32 0, f32 0, u64 dimension, u64 bytes of a code, vector of f32: least values and ranges,
//!       u64 bytes of a code, u8 whether codes are of residuals
//!
//! bits: IBwF, header of bits, u64 lists, u64 probes, IndexBinaryFlat: the centroids, u8 0, vector of u64: nothing
//!
//! ilar, u64 lists, u64 bytes of a code
//! full, vector of u64: the length of each list; or sprs, vector of u64: number and length of lists that have vectors
//! for each list: codes, i64 ids
//! ```
//!
//! # What maps
//! | ours | FAISS's | |
//! |---|---|---|
//! | [`Encoding::Flat`] | IndexIVFFlat | other elements are widened to f32 |
//! | [`Encoding::Pq`] | IndexIVFPQ | the same codes and codebooks; a rotation is an IndexPreTransform around it |
//! | [`Encoding::Scalar8`] | IndexIVFScalarQuantizer, type 0 (QT_8bit), of residuals or of vectors | code c stands for least + c · step here and for v + (c + ½) / 255 · range there, so v = least − step / 2 and range = 255 · step, rounded to f32 |
//! | [`Encoding::F16`] with a scale of 1 | IndexIVFScalarQuantizer, type 4 (QT_fp16), of vectors | FAISS has no scale |
//!
//! An index of bits is an IndexBinaryIVF. Its centroids are of bits, and ours are shares of ones, so the centroids in a
//! file are those in which most vectors of a list agree, and FAISS may probe other lists than we do. The vectors stay
//! in their lists. A file's centroids are ours as they are.
//!
//! Under cosine whole vectors are divided by their norms, and the metric is the inner product, as in HNSW files. Codes
//! do not map: FAISS does not divide by the norms of decoded vectors. As inner products, codes of 12 bytes for 24
//! components found .75 of the ten nearest and here .86, and as squared L2, .857 (4 of 32 lists, 8,000 vectors in 60
//! clusters, 2026-11-29; of 8 bits for 4 components .24, .39 and .375). An index for squared L2 of vectors of norm 1
//! has the order of cosines, and does map.

use std::io::{self, BufWriter, Write};
use std::path::Path;

use super::checked;
use crate::error::FileDefect;
use crate::io::faiss::{
    BitsHead, FLAT_OF_BITS, Head, check_bytes_of_bits, check_greatest_id, check_ids, check_metric, length, number,
    vector, vector_of,
};
use crate::io::fields::{Fields, copied, room, values};
use crate::io::{Open, open, replace};
use crate::ivf::encoding::scalar8;
use crate::ivf::encoding::{Clamped, FileParts, finite, to_f32};
use crate::ivf::lists::Bytes;
use crate::ivf::{Encoding, Ivf, IvfIndex, IvfIndexBuilder, Lists, Trained};
use crate::parallel::{Loop, ParallelSlice};
use crate::vectors::{VectorSlice, bits_apart, bits_together};
use crate::{Element, ElementType, Error, Index, Metric, Result};

const PRE_TRANSFORM: &[u8; 4] = b"IxPT";
const ROTATION: &[u8; 4] = b"LTra";
/// A random rotation of FAISS, with the same fields.
const RANDOM_ROTATION: &[u8; 4] = b"rrot";
const BITS: &[u8; 4] = b"IBwF";
const FLAT: &[u8; 4] = b"IwFl";
const PQ: &[u8; 4] = b"IwPQ";
const SCALAR: &[u8; 4] = b"IwSq";
const LISTS: &[u8; 4] = b"ilar";
const FULL: &[u8; 4] = b"full";
const SPARSE: &[u8; 4] = b"sprs";
/// Types of FAISS's scalar quantizer.
const QT_8BIT: i32 = 0;
const QT_FP16: i32 = 4;

/// The shape of an inverted file of FAISS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct FaissInfo {
    /// Number of components of a vector; of bits, of bytes.
    pub dim: usize,
    /// [`Metric::L2`] or [`Metric::InnerProduct`]; [`Metric::Hamming`] for a file of bits, whose vectors are of u8.
    pub metric: Metric,
    /// Number of vectors.
    pub vectors: u64,
    /// Number of lists.
    pub lists: usize,
    /// Number of lists that a search probes (FAISS's nprobe).
    pub probes: usize,
    /// The encoding of an index of this library with the same codes.
    pub encoding: Encoding,
}

impl FaissInfo {
    /// Reads the part of a file before its lists; only [`IvfIndexBuilder::load_faiss`] checks the lists. O(lists ·
    /// dim). The caller promises what [`Open::Map`] requires while this function runs.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::BadFile`] if it is no inverted file of FAISS, is damaged, or is one that this library
    /// cannot have.
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let bytes = open(path, Open::Map)?;
        let start = Start::read(&mut Fields::new(bytes.as_deref().map_or(&[], |bytes| bytes)));
        start.map(|start| start.info).map_err(|defect| Error::BadFile { path: path.to_owned(), defect })
    }
}

impl<T: Element> IvfIndex<T> {
    /// Writes the index as an inverted file of FAISS (`faiss.read_index`). With the same number of probes FAISS
    /// searches the same lists and compares the same codes there; its distances are rounded to f32 while they are
    /// summed.
    ///
    /// | encoding | index of FAISS |
    /// |---|---|
    /// | [`Encoding::Flat`] | `IndexIVFFlat`; other elements are widened to f32 |
    /// | [`Encoding::Flat`] of bits ([`Metric::Hamming`]) | `IndexBinaryIVF` (`faiss.read_index_binary`) |
    /// | [`Encoding::Pq`] | `IndexIVFPQ`, with a rotation inside of an `IndexPreTransform` |
    /// | [`Encoding::Scalar8`] | `IndexIVFScalarQuantizer` (`QT_8bit`, of residuals or of vectors) |
    /// | [`Encoding::F16`] | `IndexIVFScalarQuantizer` (`QT_fp16`, of vectors), if halves are not scaled |
    /// | [`Encoding::Bits`] | none: refused |
    ///
    /// For [`Metric::Cosine`] the vectors are divided by their norms, and the metric of the file is the inner product:
    /// FAISS needs queries of norm 1. Codes under cosine are refused, because FAISS does not divide by the norms of
    /// decoded vectors. An index for [`Metric::L2`] of vectors of norm 1 has the order of cosines.
    ///
    /// Centroids of FAISS's bits are bits: those that most vectors of a list have. So FAISS may probe other lists than
    /// a search here, with about the same recall.
    ///
    /// O(bytes). A file that exists is replaced once the new one is complete.
    ///
    /// # Errors
    /// [`Error::NotTrained`]; [`Error::TooMany`] above 2²⁸ − 1 bytes of bits; [`Error::Mismatch`] for codes under
    /// cosine, and for an encoding that FAISS does not have; [`Error::OutOfRange`] for an id above 2⁶³ − 1, or halves
    /// with a scale, which vectors below 1 have; [`Error::Overflow`] if f32 does not hold the range of a component of
    /// what is coded; [`Error::Io`]; [`Error::OutOfHostMemory`].
    pub fn save_faiss(&self, path: impl AsRef<Path>) -> Result<()> {
        let trained =
            self.kind.trained().filter(|_| self.is_trained()).ok_or(Error::NotTrained { call: "save_faiss" })?;
        let Some(word) = class_of(self.encoding()) else {
            let (expected, actual) = ("flat, pq, f16 or sq8", self.encoding().name());
            return Err(Error::Mismatch { what: "encoding for FAISS", expected, actual });
        };
        if self.metric().divides_by_norms() && self.encoding() != Encoding::Flat {
            let (expected, actual) = ("l2 or ip", self.metric().name());
            return Err(Error::Mismatch { what: "metric of codes for FAISS", expected, actual });
        }
        let exponent = if self.encoding() == Encoding::F16 { u64::from(trained.codec.form()) } else { 0 };
        if exponent > 0 {
            return Err(Error::OutOfRange {
                what: "exponent of the scale of halves",
                value: exponent,
                least: 0,
                most: 0,
            });
        }
        if self.encoding() == Encoding::Scalar8
            && let Some(at) = ranges(trained.codec.sections()[0]).iter().position(|x| !x.is_finite())
        {
            return Err(Error::Overflow { derived: "range of a component", row: 0, column: at % self.dim() });
        }
        check_greatest_id(self.kind.lists.greatest_id())?;
        let of_bits = self.metric().compares_bits();
        if of_bits {
            check_bytes_of_bits(self.dim())?;
        }
        replace(path.as_ref(), |file| {
            let mut out = BufWriter::new(file);
            if of_bits {
                write_bits(self, trained, &mut out)?;
            } else {
                write(self, *word, trained, &mut out)?;
            }
            write_lists(self, &mut out)?;
            out.into_inner().map(drop).map_err(io::IntoInnerError::into_error)
        })
    }
}

impl IvfIndexBuilder<f32> {
    /// Opens the device and creates an index of the lists of a file that FAISS or [`IvfIndex::save_faiss`] wrote.
    /// [`FaissInfo::read`] tells the dimension and the number of lists.
    ///
    /// Lists, encoding and probes become those of the file. The metric is that of the builder. It must be that of the
    /// file, or cosine if the file's is the inner product. Vectors that are added later go to the nearest centroid by
    /// squared L2 if the metric is the inner product, where FAISS uses the inner product for that as well.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::BadFile`] if it is no inverted file of FAISS, is damaged, or has what no index of f32 of
    /// this library has: bits, another quantizer than `IndexFlat`, a direct map, lists in another file, codes by other
    /// quantizers, `QT_fp16` of residuals, another transform than one rotation of the same dimension, negative or equal
    /// ids, values that are not finite. [`Error::WrongDimension`]; [`Error::Mismatch`] for another metric; errors of
    /// opening the device.
    pub fn load_faiss(self, path: impl AsRef<Path>, how: Open) -> Result<IvfIndex<f32>> {
        self.load_parsed(path.as_ref(), how)
    }
}

impl IvfIndexBuilder<u8> {
    /// As for f32, of bits: an `IndexBinaryIVF` with an `IndexBinaryFlat` as quantizer, which FAISS
    /// (`faiss.write_index_binary`) or [`IvfIndex::save_faiss`] wrote. The metric becomes [`Metric::Hamming`].
    /// [`FaissInfo::read`] tells the bytes of a vector.
    ///
    /// # Errors
    /// As for f32.
    pub fn load_faiss(self, path: impl AsRef<Path>, how: Open) -> Result<IvfIndex<u8>> {
        self.metric(Metric::Hamming).load_parsed(path.as_ref(), how)
    }
}

impl<T: Element> IvfIndexBuilder<T> {
    fn load_parsed(self, path: &Path, how: Open) -> Result<IvfIndex<T>> {
        let bytes = open(path, how)?;
        let parsed = parse(bytes.as_deref().map_or(&[], |bytes| bytes));
        self.build_parsed(parsed.map_err(|defect| Error::BadFile { path: path.to_owned(), defect })?)
    }

    pub(super) fn build_parsed(mut self, parsed: Parsed) -> Result<IvfIndex<T>> {
        let Parsed { info, trained, lists } = parsed;
        if info.dim != self.settings.dim {
            return Err(Error::WrongDimension { expected: self.settings.dim, actual: info.dim });
        }
        check_metric(self.settings.metric, info.metric)?;
        (self.settings.lists, self.settings.encoding, self.settings.train_at) = (info.lists, info.encoding, None);
        self.restore(trained, lists, info.probes, Clamped::default()).map(Index::of)
    }
}

/// The word of the class of FAISS for indexes of an encoding.
fn class_of(encoding: Encoding) -> Option<&'static [u8; 4]> {
    match encoding {
        Encoding::Flat => Some(FLAT),
        Encoding::Pq { .. } => Some(PQ),
        Encoding::F16 | Encoding::Scalar8 => Some(SCALAR),
        Encoding::Bits { .. } => None,
    }
}

/// Writes a trained index without a scale of halves, whose ids are at most
/// [`faiss::MOST_ID`](crate::io::faiss::MOST_ID). `word` is that of its class.
fn write<T: Element>(index: &IvfIndex<T>, word: [u8; 4], trained: &Trained, out: &mut impl Write) -> io::Result<()> {
    let ivf: &Ivf<T> = &index.kind;
    let (dim, lists, encoding) = (index.dim(), &*ivf.lists, index.encoding());
    let [tables, rotation] = trained.codec.sections();
    let head = Head { word, dim, len: index.len(), metric: index.metric() };
    if !rotation.is_empty() {
        head.of(PRE_TRANSFORM).write(out)?;
        number(1i32, out)?;
        out.write_all(ROTATION)?;
        number(0u8, out)?;
        vector(rotation, out)?;
        length(0, out)?;
        number([dim as i32; 2], out)?;
        number(1u8, out)?;
    }
    head.write(out)?;
    length(lists.count(), out)?;
    length(index.probes(), out)?;
    Head { len: lists.count(), ..head }.write_flat(out)?;
    out.write_all(bytemuck::cast_slice(&trained.centroids))?;
    number(0u8, out)?;
    length(0, out)?;

    let code_bytes = encoding.scheme().code_bytes(dim, ElementType::F32);
    match encoding {
        Encoding::Flat | Encoding::Bits { .. } => {}
        Encoding::Pq { sub_quantizers, bits, .. } => {
            number(1u8, out)?;
            [code_bytes, dim, sub_quantizers, bits as usize].into_iter().try_for_each(|value| length(value, out))?;
            vector(tables, out)?;
        }
        Encoding::F16 | Encoding::Scalar8 => {
            let is_8bit = encoding == Encoding::Scalar8;
            number([if is_8bit { QT_8BIT } else { QT_FP16 }, 0], out)?;
            number(0f32, out)?;
            length(dim, out)?;
            length(code_bytes, out)?;
            vector(&ranges(tables), out)?;
            length(code_bytes, out)?;
            number(u8::from(is_8bit && trained.codec.form() == scalar8::RESIDUALS), out)?;
        }
    }

    Ok(())
}

/// Writes the lists, which follow the rest.
fn write_lists<T: Element>(index: &IvfIndex<T>, out: &mut impl Write) -> io::Result<()> {
    let (lists, encoding, dim) = (&*index.kind.lists, index.encoding(), index.dim());
    let widens = encoding == Encoding::Flat && !index.metric().compares_bits();
    let element = if widens { ElementType::F32 } else { T::TYPE };
    let code_bytes = encoding.scheme().code_bytes(dim, element);
    out.write_all(LISTS)?;
    length(lists.count(), out)?;
    length(code_bytes, out)?;
    out.write_all(FULL)?;
    length(lists.count(), out)?;
    (0..lists.count()).try_for_each(|list| length(lists.ids(list).len(), out))?;
    for list in 0..lists.count() {
        for run in lists.codes(list).runs() {
            if widens {
                let rows = VectorSlice::of_bytes(T::TYPE, dim, run);
                let wide = to_f32(rows, index.metric().divides_by_norms()).map_err(io::Error::other)?;
                out.write_all(bytemuck::cast_slice(&wide))?;
            } else {
                out.write_all(run)?;
            }
        }
        out.write_all(bytemuck::cast_slice(lists.ids(list)))?;
    }
    Ok(())
}

/// Writes a trained index of bits, except its lists.
fn write_bits<T: Element>(index: &IvfIndex<T>, trained: &Trained, out: &mut impl Write) -> io::Result<()> {
    let lists = index.kind.lists.count();
    let head = BitsHead { word: *BITS, dim: index.dim(), len: index.len() };
    head.write(out)?;
    length(lists, out)?;
    length(index.probes(), out)?;
    let most: Vec<f32> = trained.centroids.iter().map(|share| share.round()).collect();
    BitsHead { len: lists, ..head }.write_flat(&bits_together(&most), out)?;
    number(0u8, out)?;
    length(0, out)
}

/// FAISS's least values and ranges of the components for our least values and steps; nothing for nothing.
fn ranges(tables: &[f32]) -> Vec<f32> {
    let (least, steps) = tables.split_at(tables.len() / 2);
    let first = least.iter().zip(steps).map(|(&least, &step)| f64::from(least) - f64::from(step) / 2.0);
    first.chain(steps.iter().map(|&step| 255.0 * f64::from(step))).map(|value| value as f32).collect()
}

/// The inverse of [`ranges`].
fn tables(trained: &[f32]) -> Vec<f32> {
    let (first, ranges) = trained.split_at(trained.len() / 2);
    let steps = || ranges.iter().map(|&range| f64::from(range) / 255.0);
    let least = first.iter().zip(steps()).map(|(&first, step)| f64::from(first) + step / 2.0);
    least.chain(steps()).map(|value| value as f32).collect()
}

/// A file before its lists.
struct Start<'a> {
    info: FaissInfo,
    /// Components of f32, or bytes of bits.
    centroids: &'a [u8],
    codebooks: Vec<f32>,
    rotation: Vec<f32>,
    /// [`Codec::form`](crate::ivf::encoding::Codec::form).
    form: u32,
}

impl<'a> Start<'a> {
    fn read(fields: &mut Fields<'a>) -> Result<Self, FileDefect> {
        let word = fields.get()?;
        if &word == BITS {
            return Start::of_bits(BitsHead::after(word, fields)?, fields);
        }
        let first = Head::after(word, fields)?;
        let is_rotated = &first.word == PRE_TRANSFORM;
        let rotation = if is_rotated { read_rotation(fields, first.dim)? } else { Vec::new() };
        let head = if is_rotated { Head::read(fields)?.within(&first)? } else { first };
        if ![FLAT, PQ, SCALAR].contains(&&head.word) {
            return Err(FileDefect::BadHeader("no IndexIVFFlat, IndexIVFPQ or IndexIVFScalarQuantizer of FAISS"));
        }
        if is_rotated && &head.word != PQ {
            return Err(FileDefect::BadHeader("a transform of FAISS that is not for an IndexIVFPQ"));
        }
        let (lists, probes) = read_lists_and_probes(fields)?;
        let centroids = Head { len: lists, ..head }.read_flat(fields)?;
        check_no_map(fields)?;
        let (encoding, codebooks, form) = match &head.word {
            PQ => read_pq(fields, head.dim, is_rotated)?,
            SCALAR => read_scalar(fields, head.dim)?,
            _ => (Encoding::Flat, Vec::new(), 0),
        };
        let info = FaissInfo { dim: head.dim, metric: head.metric, vectors: head.len as u64, lists, probes, encoding };
        Ok(Start { info, centroids, codebooks, rotation, form })
    }

    /// Reads what follows the header of a file of bits.
    fn of_bits(head: BitsHead, fields: &mut Fields<'a>) -> Result<Self, FileDefect> {
        let (lists, probes) = read_lists_and_probes(fields)?;
        let inner = BitsHead::after(fields.get()?, fields)?.within(&BitsHead { len: lists, ..head })?;
        if &inner.word != FLAT_OF_BITS {
            return Err(FileDefect::BadHeader("centroids of FAISS that are no IndexBinaryFlat"));
        }
        let centroids = inner.rows(fields)?;
        check_no_map(fields)?;
        let (dim, vectors) = (head.dim, head.len as u64);
        let info = FaissInfo { dim, metric: Metric::Hamming, vectors, lists, probes, encoding: Encoding::Flat };
        Ok(Start { info, centroids, codebooks: Vec::new(), rotation: Vec::new(), form: 0 })
    }
}

/// Reads the numbers of lists and of probes.
fn read_lists_and_probes(fields: &mut Fields<'_>) -> Result<(usize, usize), FileDefect> {
    let (lists, probes) = (fields.size()?, fields.size()?);
    if lists == 0 || probes == 0 {
        return Err(FileDefect::Inconsistent("0 lists or 0 probes"));
    }
    Ok((lists, probes))
}

/// Reads the map from ids to places, and checks that there is none.
fn check_no_map(fields: &mut Fields<'_>) -> Result<(), FileDefect> {
    if fields.get::<u8>()? != 0 || fields.size()? != 0 {
        return Err(FileDefect::BadHeader("a direct map of FAISS"));
    }
    Ok(())
}

/// Reads the transforms, of which there is one, a rotation of `dim` components.
fn read_rotation(fields: &mut Fields<'_>, dim: usize) -> Result<Vec<f32>, FileDefect> {
    let no_rotation = || FileDefect::BadHeader("transforms of FAISS that are not one rotation");
    let (count, word) = (fields.get::<i32>()?, fields.get::<[u8; 4]>()?);
    if count != 1 || (&word != ROTATION && &word != RANDOM_ROTATION) {
        return Err(no_rotation());
    }
    let has_bias: u8 = fields.get()?;
    let entries = fields.size()?;
    let matrix = fields.values(entries, 4)?;
    let biases = fields.size()?;
    fields.values(biases, 4)?;
    let sizes: [i32; 2] = fields.get()?;
    fields.take(1)?;
    let is_square = sizes.map(i64::from) == [dim as i64; 2] && dim.checked_mul(dim) == Some(entries);
    if has_bias != 0 || !is_square {
        return Err(no_rotation());
    }
    finite_values(matrix, "the rotation is not finite")
}

/// Reads the codebooks of a product quantizer for vectors of `dim` components.
fn read_pq(fields: &mut Fields<'_>, dim: usize, rotate: bool) -> Result<(Encoding, Vec<f32>, u32), FileDefect> {
    let by_residual: u8 = fields.get()?;
    let code_bytes = fields.size()?;
    let (of, sub_quantizers, bits) = (fields.size()?, fields.size()?, fields.get::<u64>()?);
    if by_residual != 1 {
        return Err(FileDefect::BadHeader("codes of FAISS by product quantization that are not of residuals"));
    }
    let bits = u32::try_from(bits).unwrap_or(u32::MAX);
    let encoding = Encoding::Pq { sub_quantizers, bits, rotate };
    let scheme = encoding.scheme();
    if let Some(contradiction) = scheme.contradiction(dim as u64, ElementType::F32) {
        return Err(FileDefect::Inconsistent(contradiction));
    }
    check_code_bytes(encoding, dim, [code_bytes])?;
    // The contradiction would have named more bits than 8.
    let entries = dim.saturating_mul(1 << bits);
    if of != dim {
        return Err(FileDefect::Inconsistent("a quantizer for vectors of another dimension"));
    }
    let codebooks = vector_of(fields, entries, 4)?;
    Ok((encoding, finite_values(codebooks, "a codeword is not finite")?, 0))
}

/// Reads a scalar quantizer for vectors of `dim` components.
fn read_scalar(fields: &mut Fields<'_>, dim: usize) -> Result<(Encoding, Vec<f32>, u32), FileDefect> {
    let kind: i32 = fields.get()?;
    // How training found the ranges.
    fields.take(4 + 4)?;
    let (of, code_bytes) = (fields.size()?, fields.size()?);
    let count = fields.size()?;
    let trained = fields.values(count, 4)?;
    let code_bytes_again = fields.size()?;
    let by_residual: u8 = fields.get()?;
    let (encoding, ranges, form) = match (kind, by_residual) {
        (QT_8BIT, 1) => (Encoding::Scalar8, dim.saturating_mul(2), scalar8::RESIDUALS),
        (QT_8BIT, 0) => (Encoding::Scalar8, dim.saturating_mul(2), scalar8::VECTORS),
        (QT_FP16, 0) => (Encoding::F16, 0, 0),
        (QT_8BIT, _) => {
            return Err(FileDefect::BadHeader("QT_8bit of FAISS that is neither of residuals nor of vectors"));
        }
        (QT_FP16, _) => return Err(FileDefect::BadHeader("QT_fp16 of FAISS that is of residuals")),
        _ => return Err(FileDefect::BadHeader("a scalar quantizer of FAISS that is neither QT_8bit nor QT_fp16")),
    };
    check_code_bytes(encoding, dim, [code_bytes, code_bytes_again])?;
    if of != dim || count != ranges {
        return Err(FileDefect::Inconsistent("a quantizer for vectors of another dimension"));
    }
    let tables = tables(&copied::<f32>(trained)?);
    if !tables.iter().all(|x| x.is_finite()) {
        return Err(FileDefect::Inconsistent("a codeword is not finite"));
    }
    Ok((encoding, tables, form))
}

/// Checks each field that has the bytes of a code.
fn check_code_bytes<const N: usize>(encoding: Encoding, dim: usize, found: [usize; N]) -> Result<(), FileDefect> {
    if found != [encoding.scheme().code_bytes(dim, ElementType::F32); N] {
        return Err(FileDefect::Inconsistent("the bytes of a code differ from those of the quantizer"));
    }
    Ok(())
}

fn finite_values(bytes: &[u8], otherwise: &'static str) -> Result<Vec<f32>, FileDefect> {
    let values: Vec<f32> = copied(bytes)?;
    let right = finite(bytemuck::cast_slice(&values), f32::is_finite);
    right.then_some(values).ok_or(FileDefect::Inconsistent(otherwise))
}

/// The content of a file, checked.
pub(super) struct Parsed {
    pub(super) info: FaissInfo,
    trained: Trained,
    lists: Lists,
}

/// Reads and checks a file.
pub(super) fn parse(bytes: &[u8]) -> Result<Parsed, FileDefect> {
    let mut fields = Fields::new(bytes);
    let Start { info, centroids, codebooks, rotation, form } = Start::read(&mut fields)?;
    let of_bits = info.metric.compares_bits();
    let element = if of_bits { ElementType::U8 } else { ElementType::F32 };
    let code_bytes = info.encoding.scheme().code_bytes(info.dim, element);
    let lists = read_lists(&mut fields, &info, code_bytes)?;
    fields.finish()?;

    let parts =
        FileParts { dim: info.dim, element, metric: info.metric, codebooks: &codebooks, rotation: &rotation, form };
    let codec = info.encoding.scheme().codec(parts).map_err(FileDefect::Inconsistent)?;
    let too_large = || FileDefect::TooLarge { rows: info.vectors, dim: info.dim as u64 };
    let centroids = match of_bits {
        true => bits_apart(centroids).map_err(|_| too_large())?,
        false => finite_values(centroids, "a centroid is not finite")?,
    };
    let trained = Trained { dim: info.metric.components(info.dim), centroids, codec };
    let owned = |&(codes, ids): &ListBytes<'_>| {
        let (codes, ids) = Bytes::owned(codes).ok().zip(Bytes::owned(ids).ok())?;
        Some((info.encoding.scheme().defect(codes.get(), 0, info.dim, element), (codes, ids)))
    };
    let lists: Option<Vec<_>> = lists.par_iter().map(owned).collect().into_iter().collect();
    let (defects, lists): (Vec<_>, Vec<_>) = lists.ok_or_else(too_large)?.into_iter().unzip();
    if let Some(defect) = defects.into_iter().flatten().next() {
        return Err(FileDefect::Inconsistent(defect));
    }
    let (trained, lists) = checked(trained, code_bytes, lists)?;
    Ok(Parsed { info, trained, lists })
}

/// The codes and the ids of a list.
type ListBytes<'a> = (&'a [u8], &'a [u8]);

/// Reads the codes and the ids of each list; their lengths must add up to the number of vectors of the header.
fn read_lists<'a>(
    fields: &mut Fields<'a>,
    info: &FaissInfo,
    code_bytes: usize,
) -> Result<Vec<ListBytes<'a>>, FileDefect> {
    if &fields.get::<[u8; 4]>()? != LISTS {
        return Err(FileDefect::BadHeader("lists of FAISS that are not arrays in the file"));
    }
    if (fields.size()?, fields.size()?) != (info.lists, code_bytes) {
        return Err(FileDefect::Inconsistent("lists that differ from those of the header"));
    }
    // The file has centroids of so many lists, so there is memory for their lengths.
    let mut lengths: Vec<usize> = room(info.lists, 1)?;
    match &fields.get::<[u8; 4]>()? {
        FULL => lengths.extend(values::<u64>(vector_of(fields, info.lists, 8)?).map(saturated)),
        SPARSE => {
            lengths.resize(info.lists, 0);
            let count = fields.size()?;
            if !count.is_multiple_of(2) {
                return Err(FileDefect::Inconsistent("a number of a list without a length"));
            }
            let pairs = fields.values(count, 8)?;
            for [list, length] in values::<[u64; 2]>(pairs).map(|pair| pair.map(saturated)) {
                *lengths.get_mut(list).ok_or(FileDefect::Inconsistent("a list that does not exist"))? = length;
            }
        }
        _ => return Err(FileDefect::BadHeader("lengths of FAISS's lists in an unknown form")),
    }
    let mut lists = room(info.lists, 1)?;
    let mut vectors = 0u64;
    for length in lengths {
        let (codes, ids) = (fields.values(length, code_bytes)?, fields.values(length, 8)?);
        check_ids(values(ids))?;
        vectors += length as u64;
        lists.push((codes, ids));
    }
    if vectors != info.vectors {
        return Err(FileDefect::Inconsistent("the lists have another number of vectors than the header"));
    }
    Ok(lists)
}

fn saturated(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
