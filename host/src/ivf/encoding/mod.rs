//! What an inverted file keeps of each vector: a folder for each encoding.
//!
//! | folder | encoding | bytes of a vector | of what |
//! |---|---|---|---|
//! | [`flat`] | [`Encoding::Flat`] | dim · size of an element | the vector |
//! | [`pq`] | [`Encoding::Pq`] | ⌈sub_quantizers · bits / 8⌉ | the residual |
//! | [`f16`] | [`Encoding::F16`] | 2 · dim | the vector |
//! | [`scalar8`] | [`Encoding::Scalar8`] | dim | the residual |
//!
//! # The seam
//! [`Encoding::scheme`] is the one place that leads from an encoding to its code. A [`Scheme`] has what follows from the settings alone: checks,
//! sizes, training, and what a file says. Training gives a [`Codec`], which encodes, decodes, and plans the image on a device
//! ([`StoredPlan`]). Searches read plain data ([`Stored`]) and never look at the encoding.
//!
//! A new encoding is a folder here with these three, and a file in `warpann_kernels::ivf::encoding` where devices read the codes in a new
//! way. Elsewhere it is five lines: the two modules, the variant of [`Encoding`], and its rows in [`Encoding::scheme`] and [`READERS`].
//!
//! # What codes stand for
//! Flat vectors are compared as they are. All other encodings code f32 vectors, which are normalised under cosine by their canonical norm (zero
//! stays zero) and from there on compared by inner product. Canonical distances are between the query, made alike, and the vector r that
//! [`Codec::decode`] gives; each encoding defines r to the bit.

pub(super) mod f16;
pub(super) mod flat;
pub(super) mod pq;
pub(super) mod scalar8;

use std::borrow::Cow;
use std::fmt::Debug;
use std::sync::Arc;

use rayon::prelude::*;

use self::flat::Flat;
use self::pq::PqScheme;
use super::Trained;
use super::gpu::image::{ImageShape, StoredPlan};
use crate::device::scratch::Layout;
use crate::generate::Rows;
use crate::kmeans::KMeans;
use crate::metric::Assign;
use crate::pq::encode::Residuals;
use crate::pq::{ProductQuantizer, Rotation};
use crate::product::cpu::{canonical_square, convert};
use crate::simd::Isa;
use crate::vectors::{VectorSlice, with_components};
use crate::{Device, Element, ElementType, Metric, Result, host_memory};

/// What an inverted file keeps of each vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Encoding {
    /// The vector as it was added: dim elements.
    #[default]
    Flat,
    /// A product-quantizer code of what the vector differs from its list's centroid by: ⌈sub_quantizers · bits / 8⌉ bytes.
    Pq {
        /// Parts that the vector is cut into; a divisor of its dimension.
        sub_quantizers: usize,
        /// Bits of each part's code, 4 to 8: each part is one of 2^bits codewords.
        bits: u32,
        /// Whether training looks for a rotation under which the parts are quantized better (optimized product quantization).
        rotate: bool,
    },
    /// The vector as half-precision numbers (IEEE binary16): 2 · dim bytes, for f32 vectors whose components are at most 65,504 in size. On a
    /// GPU these are all that an index keeps of a vector; [`Encoding::Flat`] keeps 6 · dim bytes there. Under cosine the vector is
    /// normalised first.
    F16,
    /// A byte for each component of what the vector differs from its list's centroid by (scalar quantization): dim bytes. Training finds the least
    /// and the greatest difference of each component; codes divide this range into 255 equal steps. Under cosine the vector is normalised first.
    Scalar8,
}

/// The encoding that a file with some words of parameters has; `None` where there is no such encoding.
type Reader = fn([u32; 3]) -> Option<Encoding>;

/// The readers of all encodings. The place of a reader is the number of its encoding in a file.
const READERS: &[Reader] = &[
    Flat::read_words,
    PqScheme::read_words,
    |words| (words == [0; 3]).then_some(Encoding::F16),
    |words| (words == [0; 3]).then_some(Encoding::Scalar8),
];

impl Encoding {
    /// What follows from the encoding.
    pub(crate) fn scheme(self) -> Box<dyn Scheme> {
        match self {
            Encoding::Flat => Box::new(Flat),
            Encoding::Pq { sub_quantizers, bits, rotate } => Box::new(PqScheme { sub_quantizers, bits, rotate }),
            Encoding::F16 => Box::new(f16::F16Scheme),
            Encoding::Scalar8 => Box::new(scalar8::Scalar8Scheme),
        }
    }

    /// The name in the program and in reports, without parameters: `flat`, `pq`, ...
    pub fn name(self) -> &'static str {
        self.scheme().name()
    }

    /// The encodings that have no parameters.
    pub fn plain() -> impl Iterator<Item = Encoding> {
        READERS.iter().filter_map(|read| read([0; 3]))
    }

    /// The number and the words of the encoding in a file.
    pub(crate) fn file_words(self) -> [u32; 4] {
        let words = self.scheme().words();
        let number = READERS.iter().position(|read| read(words) == Some(self)).unwrap_or_default();
        [number as u32, words[0], words[1], words[2]]
    }

    /// The encoding of a file; `None` where this version has no such encoding.
    pub(crate) fn of_file_words([number, first, second, third]: [u32; 4]) -> Option<Encoding> {
        READERS.get(number as usize)?([first, second, third])
    }
}

/// What follows from the settings of an encoding.
pub(crate) trait Scheme {
    /// [`Encoding::name`].
    fn name(&self) -> &'static str;

    /// Refuses settings that do not suit vectors of `dim` components of this type.
    fn check(&self, dim: usize, element: ElementType) -> Result<()>;

    /// Bytes of the code of a vector.
    fn code_bytes(&self, dim: usize, element: ElementType) -> usize;

    /// Training vectors that the encoding needs, whatever the number of lists.
    fn least_training(&self) -> usize {
        0
    }

    /// Training vectors that the encoding uses, of as many as there are.
    fn most_training(&self) -> usize {
        0
    }

    /// Finds the centroids and the codec. Errors name rows of the training vectors.
    fn train(&self, training: Training<'_>) -> Result<Trained>;

    /// The parameters in a file.
    fn words(&self) -> [u32; 3] {
        [0; 3]
    }

    /// Why no index of this dimension and element type has these parameters, if none has: for headers of files.
    fn contradiction(&self, dim: u64, element: ElementType) -> Option<&'static str> {
        let _ = (dim, element);
        None
    }

    /// The numbers of f32 in the sections for codebooks and rotation of a file; `None` where they are beyond 64 bits.
    fn section_lengths(&self, dim: u64) -> Option<[u64; 2]> {
        let _ = dim;
        Some([0, 0])
    }

    /// Why codes cannot be what was saved, if they cannot. `codes` start `from` bytes behind the first code.
    fn defect(&self, codes: &[u8], from: usize, element: ElementType) -> Option<&'static str> {
        let _ = (codes, from, element);
        None
    }

    /// Bytes to which codes are aligned.
    fn alignment(&self, element: ElementType) -> usize {
        let _ = element;
        1
    }

    /// The codec of a file from its sections, whose values are finite; or why there is none.
    fn codec(&self, file: FileParts<'_>) -> Result<Arc<dyn Codec>, &'static str>;
}

/// The parts of a file that a codec is made of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FileParts<'a> {
    /// Components of a vector.
    pub dim: usize,
    /// The type of added vectors.
    pub element: ElementType,
    /// The section for codebooks.
    pub codebooks: &'a [f32],
    /// The section for the rotation.
    pub rotation: &'a [f32],
}

/// What an encoding is trained with.
pub(crate) struct Training<'a> {
    /// The k-means that finds the centroids.
    pub kmeans: KMeans,
    /// Vectors, which are finite.
    pub rows: VectorSlice<'a>,
    /// The metric of the index.
    pub metric: Metric,
    /// The seed of the index.
    pub seed: u64,
    /// Where matrix products are computed.
    pub device: Device,
}

impl Training<'_> {
    /// The vectors as they are coded, without rotation.
    pub fn normalised(&self) -> Result<Cow<'_, [f32]>> {
        to_f32(self.rows, self.metric.divides_by_norms())
    }
}

/// What the codes of a trained index mean.
pub(crate) trait Codec: Debug + Send + Sync {
    /// Whether codes are vectors as they were added, which are compared where they lie.
    fn in_place(&self) -> bool {
        false
    }

    /// Vectors as they are assigned, encoded and compared. A rotation is applied on `device`; its result has other components than f32 can hold
    /// only where components exceed 10³⁷ or so, and is refused then.
    fn transform<'a>(&self, rows: VectorSlice<'a>, metric: Metric, device: Device) -> Result<Cow<'a, [f32]>> {
        let _ = device;
        to_f32(rows, metric.divides_by_norms())
    }

    /// What makes lists and codes on a device, if the encoding has kernels for that and the device runs kernels.
    fn list_coder<'a>(&'a self, on: CoderOn<'a>) -> Result<Option<Box<dyn ListCoder + 'a>>> {
        let _ = on;
        Ok(None)
    }

    /// The codes of transformed rows, one after the other. Not called where codes are [`in_place`](Self::in_place).
    fn encode(&self, rows: &[f32], residuals: Residuals<'_>) -> Result<Vec<u8>>;

    /// What the codes of one list stand for, in transformed space: r, row-major. `to` has whole rows.
    fn decode_into(&self, codes: &[u8], centroid: &[f32], to: &mut [f32]);

    /// As [`decode_into`](Self::decode_into), through `scratch` unless codes are f32 themselves.
    fn decode<'a>(&self, codes: &'a [u8], centroid: &[f32], rows: usize, scratch: &'a mut Vec<f32>) -> &'a [f32] {
        scratch.resize(rows * centroid.len(), 0.0);
        self.decode_into(codes, centroid, scratch);
        scratch
    }

    /// A decoded vector in the space of added vectors.
    fn restored(&self, vector: Vec<f32>) -> Result<Vec<f32>> {
        Ok(vector)
    }

    /// No component of a decoded vector exceeds that of its list's centroid by more: its size, in size. Infinite where that is not known.
    fn reach(&self) -> f32;

    /// Whether all components of some codes are whole numbers, as far as that is cheap to see.
    fn whole(&self, codes: &[u8]) -> bool {
        let _ = codes;
        false
    }

    /// What goes into the sections for codebooks and rotation of a file.
    fn sections(&self) -> [&[f32]; 2] {
        [&[], &[]]
    }

    /// The product quantizer whose lookup tables score codes.
    fn quantizer(&self) -> Option<&ProductQuantizer> {
        None
    }

    /// The rotation that vectors and queries go through first.
    fn rotation(&self) -> Option<&Rotation> {
        None
    }

    /// Plans the codes' part of an image on a device.
    fn plan(&self, layout: &mut Layout, shape: &ImageShape<'_>) -> Box<dyn StoredPlan + '_>;
}

/// Where a [`ListCoder`] works, and for which lists.
pub(crate) struct CoderOn<'a> {
    /// The device, which may be the CPU.
    pub device: Device,
    /// How vectors are assigned to lists.
    pub by: Assign,
    /// Row-major, at least one.
    pub centroids: &'a [f32],
    /// Bytes, or nine tenths of what is free.
    pub budget: Option<u64>,
}

/// Finds lists and codes of transformed vectors on a device.
pub(crate) trait ListCoder: Send + Sync {
    /// Writes list and code of each of `rows`: as many as `labels` has places.
    fn code(&self, rows: Rows<'_>, labels: &mut [u32], codes: &mut [u8]) -> Result<()>;
}

/// Vectors as f32, divided by their canonical norm where `normalise` says so.
fn to_f32(rows: VectorSlice<'_>, normalise: bool) -> Result<Cow<'_, [f32]>> {
    with_components!(rows, components: T => components_to_f32::<T>(components, rows.dim(), normalise))
}

fn components_to_f32<T: Element>(rows: &[T], dim: usize, normalise: bool) -> Result<Cow<'_, [f32]>> {
    if T::TYPE == ElementType::F32 && !normalise {
        return Ok(Cow::Borrowed(bytemuck::cast_slice(rows)));
    }
    let mut wide = host_memory::zeroed(rows.len())?;
    let isa = Isa::detect();
    wide.par_chunks_exact_mut(dim).with_min_len(64).zip(rows.par_chunks_exact(dim)).for_each(|(to, row)| {
        convert(row, to);
        if normalise {
            let square = canonical_square(isa, row);
            if square != 0.0 {
                let norm = square.sqrt();
                to.iter_mut().for_each(|x| *x = (f64::from(*x) / norm) as f32);
            }
        }
    });
    Ok(Cow::Owned(wide))
}

/// Whether all values are finite: no early end, so that it runs in SIMD registers.
pub(crate) fn finite<V: bytemuck::AnyBitPattern>(bytes: &[u8], is_finite: impl Fn(V) -> bool) -> bool {
    bytemuck::cast_slice(bytes).iter().fold(true, |all, &value| all & is_finite(value))
}
