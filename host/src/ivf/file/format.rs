//! The header of an index file, and the places of its sections.
//!
//! All numbers are little-endian. The header has [`HEADER`] bytes:
//!
//! | bytes | |
//! |---|---|
//! | 0..8 | [`MAGIC`] |
//! | 8..12 | [`VERSION`] |
//! | 12..16 | element type: 0 f32, 1 f16, 2 bf16, 3 u8, 4 i8 |
//! | 16..20 | metric: 0 squared L2, 1 inner product, 2 cosine |
//! | 20..24 | encoding: 0 flat, 1 product quantizer, 2 f16, 3 one byte for each component, 4 bits |
//! | 24..36 | parameters of the encoding; product quantizer: sub-quantizers, bits of each, whether there is a rotation (0 or 1); bits: bits of a component, then 1, the layout of the codes; others: zeros |
//! | 36..40 | the form of the codes; f16: the exponent e of the scale 2^e of all codes, at most 100; one byte for each component: 1 if codes are of vectors, 0 if of residuals; others: zeros |
//! | 40..72 | dimension, lists, vectors, default number of probes: u64 each |
//! | 72..216 | for each section (in the order of [`Section::ALL`]): offset, length in bytes, checksum: u64 each |
//! | 216..232 | product quantizer and one byte for each component: vectors, and components, that were added beyond the training: u64 each; others: zeros |
//! | 232..236 | kind of the index: 1 inverted file, 2 exact; 0 in files of earlier versions, which are one of both |
//! | 236..248 | zeros |
//! | 248..256 | XXH64 of bytes 0..248 |
//!
//! Sections follow each other. Each starts at a multiple of 64 bytes, with zeros between; the file ends with the last
//! section. Lengths of sections follow from the shape, so the table of sections is redundant, and a file with other
//! values is refused. So one index has one file: loading and saving it again gives the same bytes.
//!
//! Earlier programs wrote zeros for the kind, for the form of the codes and for the numbers of vectors beyond the
//! training, and refuse files with others. So an f16 index that they wrote has the scale 1, their bytes are of
//! residuals, and the numbers of their indexes count from now on.

use std::ops::Range;

use crate::error::FileDefect;
use crate::index::IndexKind;
use crate::index::kind::WORD;
use crate::io::checksum::xxh64;
use crate::io::{check_size, checked_header};
use crate::ivf::Encoding;
use crate::ivf::encoding::Clamped;
use crate::validate::MAX_ROWS;
use crate::{ElementType, Metric};

/// Number of bytes of the header.
pub const HEADER: usize = 256;
/// The first bytes of a file.
pub(super) use crate::index::kind::LISTS as MAGIC;
/// The version that this program writes and reads.
pub const VERSION: u32 = 1;
/// Sections start at multiples of this number of bytes: a cache line, and more than any element needs.
const ALIGNMENT: u64 = 64;

/// The path in errors about bytes that were not read from a file.
pub const IN_MEMORY: &str = "(an index in memory)";

/// The offset of the table of sections.
pub const TABLE: usize = 72;
const TABLE_END: usize = TABLE + 24 * Section::ALL.len();
const _: () = assert!(WORD == TABLE_END + 16);
/// The offset of the form of the codes.
const FORM: usize = 36;
/// The offset of the number of vectors with which an index trains itself, and that of the distance of training vectors.
const WAITS_FOR: usize = WORD + 4;
const SPREAD: usize = WORD + 8;
/// The offset of the bytes that are reserved.
const RESERVED: usize = WORD + 12;
/// The offset of the header's checksum.
pub const SUM: usize = HEADER - 8;

/// The parts of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Section {
    /// f32, lists × dimension, row-major.
    Centroids,
    /// u64, lists + 1 values: the first vector of each list in the order of the file, and the number of vectors.
    Starts,
    /// u64, one for each vector.
    Ids,
    /// The codes of the vectors, list after list.
    Codes,
    /// f32, the tables of the encoding. Product quantizer: sub-quantizers × 2^bits × dimension / sub-quantizers. One
    /// byte for each component: 2 × dimension (least values, steps). Bits: 4 × dimension (signs of the rotation). Empty
    /// for other encodings.
    Codebooks,
    /// f32, dimension × dimension; empty without a rotation by a matrix.
    Rotation,
}

impl Section {
    /// All sections, in the order of the file.
    pub const ALL: [Self; 6] = [Self::Centroids, Self::Starts, Self::Ids, Self::Codes, Self::Codebooks, Self::Rotation];

    /// The name of the section in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Centroids => "centroids",
            Self::Starts => "starts",
            Self::Ids => "ids",
            Self::Codes => "codes",
            Self::Codebooks => "codebooks",
            Self::Rotation => "rotation",
        }
    }
}

/// The content of a header, except the places of the sections.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shape {
    /// `None` in a file of an earlier version.
    pub kind: Option<IndexKind>,
    pub element: ElementType,
    pub metric: Metric,
    pub encoding: Encoding,
    pub dim: u64,
    pub lists: u64,
    pub vectors: u64,
    pub probes: u64,
    /// [`Codec::form`](crate::ivf::encoding::Codec::form).
    pub form: u32,
    /// Numbers of vectors and components that were added beyond the reach of the codes.
    pub clamped: Clamped,
    /// The number of vectors with which the index trains itself; 0 if it is trained. Until then the file has one list
    /// of whole vectors, and `lists` and `encoding` are those of the trained index.
    pub waits_for: u32,
    /// The mean squared distance of training vectors from the centroids of their lists; 0 if it is not known.
    pub spread: f32,
}

/// The place of every section, in the order of [`Section::ALL`].
pub type Places = [Range<u64>; Section::ALL.len()];

impl Shape {
    /// The encoding of the codes in the file.
    pub fn stored_encoding(&self) -> Encoding {
        if self.waits_for > 0 { Encoding::Flat } else { self.encoding }
    }

    /// Number of lists in the file.
    pub fn stored_lists(&self) -> u64 {
        if self.waits_for > 0 { 1 } else { self.lists }
    }

    /// Bytes of one vector's code; saturates at the largest usize.
    pub fn code_bytes(&self) -> u64 {
        let dim = usize::try_from(self.dim).unwrap_or(usize::MAX);
        self.stored_encoding().scheme().code_bytes(dim, self.element) as u64
    }

    /// Number of components of a centroid. That of the one list of another kind of index has a component for each
    /// element.
    pub fn components(&self) -> u64 {
        match self.kind {
            Some(IndexKind::Ivf) => self.metric.components(usize::try_from(self.dim).unwrap_or(usize::MAX)) as u64,
            _ => self.dim,
        }
    }

    /// The places of the sections; `None` if they exceed the largest memory.
    pub fn places(&self) -> Option<Places> {
        let (Self { dim, vectors, .. }, lists) = (*self, self.stored_lists());
        let product = |factors: &[u64]| factors.iter().try_fold(1u64, |product, &factor| product.checked_mul(factor));
        let [codebooks, rotation] = self.stored_encoding().scheme().section_lengths(dim)?;
        let lengths = [
            product(&[4, self.components(), lists])?,
            lists.checked_add(1)?.checked_mul(8)?,
            product(&[8, vectors])?,
            product(&[vectors, self.code_bytes()])?,
            product(&[4, codebooks])?,
            product(&[4, rotation])?,
        ];
        let mut end = HEADER as u64;
        let mut places = Places::default();
        for (place, length) in places.iter_mut().zip(lengths) {
            let start = end.checked_next_multiple_of(ALIGNMENT)?;
            end = start.checked_add(length).filter(|&end| end <= isize::MAX as u64)?;
            *place = start..end;
        }
        Some(places)
    }

    /// Refuses shapes that no saved index has.
    fn check(&self) -> Result<(), FileDefect> {
        let Self { dim, lists, vectors, probes, .. } = *self;
        if dim == 0 {
            return Err(FileDefect::BadDimension(0));
        }
        if vectors > MAX_ROWS || lists > MAX_ROWS {
            return Err(FileDefect::TooLarge { rows: vectors.max(lists), dim });
        }
        let fail = |what| Err(FileDefect::Inconsistent(what));
        let has_metrics = |metrics: &[Metric]| metrics.contains(&self.metric);
        if !has_metrics(Metric::of_element(self.element))
            || self.encoding.check_metric(self.metric).is_err()
            || self.kind.is_none() && self.metric.compares_bits()
        {
            return fail("a metric that vectors of this type in this kind of index do not have");
        }
        if lists == 0 {
            return fail("no lists");
        }
        if probes == 0 {
            return fail("0 probes");
        }
        if let Some(contradiction) = self.encoding.scheme().contradiction(dim, self.element) {
            return fail(contradiction);
        }
        let least = lists.max(self.encoding.scheme().least_training() as u64);
        if self.waits_for > 0 && (u64::from(self.waits_for) < least || vectors >= u64::from(self.waits_for)) {
            return fail("the number of vectors for training");
        }
        let is_distance = self.spread.is_finite() && self.spread.is_sign_positive();
        if !is_distance || self.waits_for > 0 && self.spread > 0.0 {
            return fail("the distance of training vectors");
        }
        Ok(())
    }
}

/// Encodes a header. `places` are those of the shape; the caller has checked that the sections fit in memory.
pub fn encode(shape: &Shape, places: &Places, checksums: &[u64; Section::ALL.len()]) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &MAGIC);
    let codes = [VERSION, place(&ElementType::ALL, shape.element), place(&Metric::ALL, shape.metric)];
    put(8, bytemuck::cast_slice(&codes));
    put(20, bytemuck::cast_slice(&shape.encoding.file_words()));
    put(WORD, &IndexKind::word(shape.kind));
    put(WAITS_FOR, &shape.waits_for.to_le_bytes());
    put(SPREAD, &shape.spread.to_le_bytes());
    put(FORM, &shape.form.to_le_bytes());
    put(40, bytemuck::cast_slice(&[shape.dim, shape.lists, shape.vectors, shape.probes]));
    put(TABLE_END, bytemuck::cast_slice(&[shape.clamped.vectors, shape.clamped.components]));
    for (index, (place, &sum)) in places.iter().zip(checksums).enumerate() {
        put(TABLE + 24 * index, bytemuck::cast_slice(&[place.start, place.end - place.start, sum]));
    }
    let sum = xxh64(&header[..SUM]);
    header[SUM..].copy_from_slice(&sum.to_le_bytes());
    header
}

/// The position of `value` in a table that contains it.
fn place<V: PartialEq>(table: &[V], value: V) -> u32 {
    table.iter().position(|known| *known == value).unwrap_or_default() as u32
}

/// Decodes the header in `bytes`, the first bytes of a file of `file_bytes` bytes: the shape, the places of the
/// sections, and their checksums. Checks that the size of the file agrees with the header.
pub fn decode(bytes: &[u8], file_bytes: u64) -> Result<(Shape, Places, [u64; Section::ALL.len()]), FileDefect> {
    let header: &[u8; HEADER] = checked_header(bytes, &MAGIC, VERSION, "not an index file")?;
    let word = |at: usize| bytemuck::pod_read_unaligned::<u32>(&header[at..at + 4]);
    let long = |at: usize| bytemuck::pod_read_unaligned::<u64>(&header[at..at + 8]);
    let unknown = |what| move || FileDefect::BadHeader(what);
    let encoding = Encoding::of_file_words([word(20), word(24), word(28), word(32)]);
    let shape = Shape {
        kind: IndexKind::of_word([0, 1, 2, 3].map(|at| header[WORD + at]))?,
        element: *ElementType::ALL.get(word(12) as usize).ok_or_else(unknown("unknown element type"))?,
        metric: *Metric::ALL.get(word(16) as usize).ok_or_else(unknown("unknown metric"))?,
        encoding: encoding.ok_or_else(unknown("unknown encoding"))?,
        dim: long(40),
        lists: long(48),
        vectors: long(56),
        probes: long(64),
        form: word(FORM),
        clamped: Clamped { vectors: long(TABLE_END), components: long(TABLE_END + 8) },
        waits_for: word(WAITS_FOR),
        spread: f32::from_bits(word(SPREAD)),
    };
    shape.check()?;
    let scheme = shape.stored_encoding().scheme();
    let is_unknown = shape.form > scheme.greatest_form() || shape.clamped.is_any() && !scheme.clamps();
    if is_unknown || header[RESERVED..SUM].iter().any(|&byte| byte != 0) {
        return Err(FileDefect::BadHeader("reserved bytes are not zero"));
    }
    let places = shape.places().ok_or(FileDefect::TooLarge { rows: shape.vectors, dim: shape.dim })?;
    let mut checksums = [0; Section::ALL.len()];
    for (index, (place, sum)) in places.iter().zip(&mut checksums).enumerate() {
        let at = TABLE + 24 * index;
        if (long(at), long(at + 8)) != (place.start, place.end - place.start) {
            return Err(FileDefect::Inconsistent("a section's place contradicts the shape"));
        }
        *sum = long(at + 16);
    }
    let expected = places[places.len() - 1].end;
    check_size(expected, file_bytes)?;
    Ok((shape, places, checksums))
}
