//! The encodings of vectors in an inverted file; each encoding has a folder.
//!
//! | folder | encoding | bytes of a vector | coded value |
//! |---|---|---|---|
//! | [`flat`] | [`Encoding::Flat`] | dim · size of an element | the vector |
//! | [`pq`] | [`Encoding::Pq`] | ⌈sub_quantizers · bits / 8⌉ | the residual |
//! | [`f16`] | [`Encoding::F16`] | 2 · dim | the vector |
//! | [`scalar8`] | [`Encoding::Scalar8`] | dim | the residual or the vector |
//! | [`bits`] | [`Encoding::Bits`] | 8 + 4 · bits · ⌈dim / 32⌉ | the residual |
//!
//! # Interface
//! [`Encoding::scheme`] is the only place that maps an encoding to its code. A [`Scheme`] has everything that follows
//! from the settings alone: checks, sizes, training, and the words in a file. Training gives a [`Codec`], which
//! encodes, decodes, and plans the image on a device ([`StoredPlan`](super::gpu::stored_plan::StoredPlan)). Searches
//! read plain data ([`Stored`](super::gpu::stored::Stored)) and never read the encoding.
//!
//! A new encoding is a folder here with these three types. If devices read its codes in a new way, it also has a file
//! in `warpann_kernels::ivf::encoding`. Elsewhere it needs five lines: the two modules, the variant of [`Encoding`],
//! and the rows in [`Encoding::scheme`] and [`READERS`].
//!
//! # Meaning of codes
//! [`Encoding::Flat`] compares vectors as they are. All other encodings code vectors as f32. Under cosine they divide
//! vectors by the canonical norm (zero stays zero), so that training and codes know directions only. Canonical
//! distances are by the metric of the index, between the query, transformed in the same way, and the vector r that
//! [`Codec::decode`] returns; each encoding defines r to the bit. The length of r is not 1, and cosine divides by it.
//! It follows from list and code, so it is in no file: the CPU keeps it with the norms of a list, and a device as the
//! factor of a row (`warpann_kernels::ivf::code_bounds`). Re-ranking computes it from the decoded row, which it reads a
//! second time.

pub(super) mod bits;
mod codec;
pub(super) mod f16;
pub(super) mod flat;
mod list_coder;
pub(super) mod pq;
pub(super) mod scalar8;

use std::fmt;
use std::str::FromStr;

use self::bits::BitsScheme;
pub(crate) use self::codec::{Clamped, Codec, DeviceCoder, FileParts, Scheme, Trained, Training, finite, to_f32};
use self::flat::Flat;
use self::pq::PqScheme;
use crate::serialised::serialised_as_text;
use crate::{Error, Metric, Result, UnknownName};

/// The representation of each vector in an inverted file.
///
/// As text (configuration, reports):
///
/// | text | meaning |
/// |---|---|
/// | `flat`, `f16`, `sq8` | an encoding without parameters |
/// | `pq:16x6` | product quantization by 16 sub-quantizers of 6 bits |
/// | `opq:16x6` | the same with a rotation |
/// | `pq:16`, `opq:16` | 16 sub-quantizers of 8 bits, as `pq:16x8` and `opq:16x8` |
/// | `bits:4` | 4 bits for each component |
///
/// Numbers that no index can have are refused when an index is built, as in the enum.
///
/// ```
/// use warpann::ivf::Encoding;
///
/// assert_eq!("sq8".parse(), Ok(Encoding::Scalar8));
/// let pq = Encoding::Pq { sub_quantizers: 16, bits: 8, rotate: true };
/// assert_eq!("opq:16".parse(), Ok(pq));
/// assert_eq!(pq.to_string(), "opq:16x8");
/// assert!("pq".parse::<Encoding>().is_err());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Encoding {
    /// The vector as it was added: dim elements. The only encoding of vectors of bits ([`Metric::Hamming`]).
    #[default]
    Flat,
    /// A product-quantizer code of the residual, which is the vector minus its list's centroid: ⌈sub_quantizers · bits
    /// / 8⌉ bytes.
    Pq {
        /// Number of parts into which a vector is divided; a divisor of its dimension.
        sub_quantizers: usize,
        /// Bits of each part's code, 4 to 8: each part is one of 2^bits codewords.
        bits: u32,
        /// Whether training finds a rotation that reduces the quantization error (optimized product quantization).
        rotate: bool,
    },
    /// The vector as half-precision numbers (IEEE binary16) over a power of two: 2 · dim bytes, for f32 vectors. The
    /// power is 1 if training vectors have components of at least 1 in size; otherwise their greatest component becomes
    /// a number from 1 to 2. A component keeps 11 significant bits, or its error is at most 2⁻¹¹ of the greatest
    /// component of its vector. Vectors for which this is not possible are refused
    /// ([`Error::DoesNotFit`](crate::Error::DoesNotFit)): with a component above 65,504, divided by the power, or with
    /// none above 6.1 · 10⁻⁵, divided by the power. On a GPU the index keeps nothing else of a vector;
    /// [`Encoding::Flat`] keeps 6 · dim bytes there. Under cosine the vector is normalised first.
    F16,
    /// One byte for each component (scalar quantization): dim bytes. Training finds the least and the greatest value of
    /// each component, of vectors and of residuals, which are vectors minus their lists' centroids; codes divide this
    /// range into 255 equal steps, of what has the smaller steps. Components that are whole numbers within 255 of each
    /// other are kept exactly ([`IvfIndex::code_tables`](super::IvfIndex::code_tables) tells). Under cosine the vector
    /// is normalised first; the code of a vector of zeros then stands for a short vector of some direction, which may
    /// be anywhere among the results (so it is with [`Encoding::Pq`]).
    Scalar8,
    /// One to eight bits for each component of the residual, after a rotation that mixes all components, and one step
    /// for all components of the vector: 8 + 4 · bits · ⌈dim / 32⌉ bytes. Training finds the lists only: the rotation
    /// is random, by the seed of the index, and no value of other vectors is in a code. So vectors of any length are
    /// coded with the same relative error, but that is a share of their distance from the centroid: if vectors move
    /// away from the lists, recall falls, and `drift` tells, as nothing is clamped. The code keeps cos² of the squared
    /// length of a residual; √(1 − cos²) is about .60, .35, .19, .11, .06, .03, .02 and .01 for 1 to 8 bits. After
    /// RaBitQ (Gao and Long 2024). Vectors whose step would exceed 10³⁰ are refused
    /// ([`Error::Overflow`](crate::Error::Overflow)). Under cosine the vector is normalised first, and vectors of zeros
    /// are as with [`Encoding::Scalar8`].
    Bits {
        /// Bits of each component, 1 to 8.
        bits: u32,
    },
}

/// Returns the encoding for the parameter words of a file; `None` if the words are not those of this encoding.
type Reader = fn([u32; 3]) -> Option<Encoding>;

/// The readers of all encodings. The position of a reader is the number of its encoding in a file.
const READERS: &[Reader] = &[
    |words| (words == [0; 3]).then_some(Encoding::Flat),
    |words| {
        let PqScheme { sub_quantizers, bits, rotate } = PqScheme::read_words(words)?;
        Some(Encoding::Pq { sub_quantizers, bits, rotate })
    },
    |words| (words == [0; 3]).then_some(Encoding::F16),
    |words| (words == [0; 3]).then_some(Encoding::Scalar8),
    |words| BitsScheme::read_words(words).map(|BitsScheme { bits }| Encoding::Bits { bits }),
];

impl Encoding {
    /// The scheme of the encoding, with its parameters.
    pub(crate) fn scheme(self) -> Box<dyn Scheme> {
        match self {
            Encoding::Flat => Box::new(Flat),
            Encoding::Pq { sub_quantizers, bits, rotate } => Box::new(PqScheme { sub_quantizers, bits, rotate }),
            Encoding::F16 => Box::new(f16::F16Scheme),
            Encoding::Scalar8 => Box::new(scalar8::Scalar8Scheme),
            Encoding::Bits { bits } => Box::new(BitsScheme { bits }),
        }
    }

    /// The name on the command line and in reports, without parameters: `flat`, `pq`, ...
    pub fn name(self) -> &'static str {
        self.scheme().name()
    }

    /// Checks that the encoding can be of an index with this metric.
    ///
    /// # Errors
    /// [`Error::Mismatch`]: codes are of numbers, and bits are kept as they are.
    pub(crate) fn check_metric(self, metric: Metric) -> Result<()> {
        if !metric.compares_bits() || self == Encoding::Flat {
            return Ok(());
        }
        let (expected, actual) = (Encoding::Flat.name(), self.name());
        Err(Error::Mismatch { what: "encoding for metric hamming", expected, actual })
    }

    /// The encodings that have no parameters.
    pub fn plain() -> impl Iterator<Item = Encoding> {
        READERS.iter().filter_map(|read| read([0; 3]))
    }

    /// The number of the encoding in a file, and the words of its parameters.
    pub(crate) fn file_words(self) -> [u32; 4] {
        let words = self.scheme().words();
        let number = READERS.iter().position(|read| read(words) == Some(self)).unwrap_or_default();
        [number as u32, words[0], words[1], words[2]]
    }

    /// The encoding for the words of a file; `None` if this version has no such encoding.
    pub(crate) fn of_file_words([number, first, second, third]: [u32; 4]) -> Option<Encoding> {
        READERS.get(number as usize)?([first, second, third])
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Encoding::Pq { sub_quantizers, bits, rotate } => {
                write!(f, "{}:{sub_quantizers}x{bits}", if *rotate { "opq" } else { "pq" })
            }
            Encoding::Bits { bits } => write!(f, "bits:{bits}"),
            Encoding::Flat | Encoding::F16 | Encoding::Scalar8 => f.pad(self.name()),
        }
    }
}

impl FromStr for Encoding {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let with_numbers = |(name, size): (&str, &str)| {
            let rotate = match name {
                "pq" => false,
                "opq" => true,
                "bits" => return Some(Encoding::Bits { bits: size.parse().ok()? }),
                _ => return None,
            };
            let (sub_quantizers, bits) = size.split_once('x').unwrap_or((size, "8"));
            Some(Encoding::Pq { sub_quantizers: sub_quantizers.parse().ok()?, bits: bits.parse().ok()?, rotate })
        };
        let known = Self::plain()
            .find(|encoding| encoding.name() == text)
            .or_else(|| text.split_once(':').and_then(with_numbers));
        known.ok_or_else(|| {
            UnknownName::new(text, "an encoding", &["flat", "f16", "sq8", "pq:MxBITS", "opq:MxBITS", "bits:BITS"])
        })
    }
}

serialised_as_text!(Encoding);
