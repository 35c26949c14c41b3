//! The codebooks of a product quantizer, and the vectors that codes decode to.

use super::codes;
use crate::parallel::{Loop, ParallelSlice};
use crate::serialised::deserialised;
use crate::validate::{check_dim, check_divisible, check_length, check_multiple, check_range, check_vectors};
use crate::{Input, Result, host_memory};

/// Smallest number of rows that one thread decodes.
const DECODE_RUN: usize = 1024;

/// Codebooks of a product quantizer: encodes and decodes vectors and makes distance tables.
///
/// ```
/// use warpann::Device;
/// use warpann::pq::{PqTraining, ProductQuantizer};
///
/// // 500 vectors of dimension 8 on a curve.
/// let rows: Vec<f32> = (0..500).flat_map(|i| (0..8).map(move |j| (i as f32 * 0.02 + j as f32).sin())).collect();
///
/// // Two sub-quantizers of 6 bits: 12 bits a vector, in 2 bytes instead of 32.
/// let settings = PqTraining::new(2).bits(6).device(Device::Cpu);
/// let quantizer = ProductQuantizer::train(&settings, &rows, 8)?;
/// let codes = quantizer.encode(&rows, Device::Cpu)?;
/// assert_eq!(codes.len(), 500 * 2);
///
/// // Decoded vectors are close to the encoded vectors.
/// let decoded = quantizer.decode(&codes)?;
/// assert!(rows.iter().zip(&decoded).all(|(x, y)| (x - y).abs() < 0.3));
///
/// // Distances from the first vector to all, by tables: the nearest is the vector or one with the same code.
/// let tables = quantizer.distance_tables(&rows[..8])?;
/// let mut distances = vec![0.0; 500];
/// tables.distances(&codes, &mut distances)?;
/// assert!(distances.iter().all(|&distance| distance >= distances[0]));
/// # Ok::<(), warpann::Error>(())
/// ```
#[derive(Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct ProductQuantizer {
    dim: usize,
    sub_quantizers: usize,
    bits: u32,
    /// The codewords: M × 2^bits × width.
    codebooks: Vec<f32>,
    /// The same, component by component: M × width × 2^bits.
    #[cfg_attr(feature = "serde", serde(skip))]
    transposed: Vec<f32>,
}

deserialised!(ProductQuantizer {
    dim: usize,
    sub_quantizers: usize,
    bits: u32,
    codebooks: Vec<f32>,
} => |dim, sub_quantizers, bits, codebooks| {
    ProductQuantizer::from_codebooks(dim, sub_quantizers, bits, codebooks).map_err(|error| error.to_string())
});

impl std::fmt::Debug for ProductQuantizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProductQuantizer")
            .field("dim", &self.dim)
            .field("sub_quantizers", &self.sub_quantizers)
            .field("bits", &self.bits)
            .finish()
    }
}

/// Fewest and most bits of the code of a sub-quantizer.
pub(crate) const CODE_BITS: (usize, usize) = (4, 8);

/// Checks the shape of a quantizer and returns the number of components of its codebooks.
pub(super) fn check_shape(dim: usize, sub_quantizers: usize, bits: u32) -> Result<usize> {
    check_dim(dim)?;
    check_divisible("dimension", dim, "sub-quantizers", sub_quantizers)?;
    check_range("bits per sub-quantizer", bits as usize, CODE_BITS)?;
    Ok(dim.saturating_mul(1 << bits))
}

impl ProductQuantizer {
    /// Makes a quantizer from given codebooks: M × 2^bits × dim / M, row-major.
    ///
    /// # Errors
    /// [`Error::Zero`](crate::Error::Zero), [`Error::NotDivisible`](crate::Error::NotDivisible),
    /// [`Error::OutOfRange`](crate::Error::OutOfRange), [`Error::WrongLength`](crate::Error::WrongLength), and
    /// [`Error::NotFinite`](crate::Error::NotFinite), whose row is the number of the codeword, counted over all
    /// sub-quantizers.
    pub fn from_codebooks(dim: usize, sub_quantizers: usize, bits: u32, codebooks: Vec<f32>) -> Result<Self> {
        let expected = check_shape(dim, sub_quantizers, bits)?;
        check_length("components of codebooks", expected, codebooks.len())?;
        let (width, codewords) = (dim / sub_quantizers, 1 << bits);
        check_vectors(&codebooks, width, Input::Codebooks)?;
        let mut transposed = vec![0.0; codebooks.len()];
        let books = transposed.chunks_exact_mut(width * codewords).zip(codebooks.chunks_exact(width * codewords));
        for (to, from) in books {
            for (codeword, components) in from.chunks_exact(width).enumerate() {
                for (component, &value) in components.iter().enumerate() {
                    to[component * codewords + codeword] = value;
                }
            }
        }
        Ok(ProductQuantizer { dim, sub_quantizers, bits, codebooks, transposed })
    }

    /// Number of components of a vector.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// M, the number of sub-vectors of a vector.
    pub fn sub_quantizers(&self) -> usize {
        self.sub_quantizers
    }

    /// Number of bits of the code of a sub-vector: 4 to 8.
    pub fn bits(&self) -> u32 {
        self.bits
    }

    /// Number of components of a sub-vector: dim / M.
    pub fn width(&self) -> usize {
        self.dim / self.sub_quantizers
    }

    /// Number of codewords of a sub-quantizer: 2^bits.
    pub fn codewords(&self) -> usize {
        1 << self.bits
    }

    /// Number of bytes of the code of a vector: ⌈M · bits / 8⌉.
    pub fn code_bytes(&self) -> usize {
        codes::code_bytes(self.sub_quantizers, self.bits)
    }

    /// The codebooks: M × 2^bits × dim / M, row-major.
    pub fn codebooks(&self) -> &[f32] {
        &self.codebooks
    }

    /// The codebooks of all sub-quantizers, component by component: M × dim / M × 2^bits.
    pub(crate) fn all_transposed(&self) -> &[f32] {
        &self.transposed
    }

    /// The codebook of one sub-quantizer, component by component: dim / M × 2^bits.
    pub(crate) fn transposed(&self, sub_quantizer: usize) -> &[f32] {
        let len = self.width() * self.codewords();
        &self.transposed[sub_quantizer * len..][..len]
    }

    /// Decodes `codes` to vectors, row-major. Bits past the last code of a vector are ignored. O(rows · dim).
    ///
    /// # Errors
    /// [`Error::Ragged`](crate::Error::Ragged) if `codes` is not a whole number of codes;
    /// [`Error::OutOfHostMemory`](crate::Error::OutOfHostMemory).
    pub fn decode(&self, codes: &[u8]) -> Result<Vec<f32>> {
        let count = self.check_codes(codes)?;
        let mut rows = host_memory::zeroed(host_memory::count::<f32>(&[count, self.dim])?)?;
        let runs = rows.par_chunks_mut(DECODE_RUN * self.dim).zip(codes.par_chunks(DECODE_RUN * self.code_bytes()));
        runs.for_each(|(rows, codes)| self.decode_into(codes, rows));
        Ok(rows)
    }

    /// Checks that `codes` is a whole number of codes and returns that number.
    pub(crate) fn check_codes(&self, codes: &[u8]) -> Result<usize> {
        check_multiple("code bytes", codes.len(), self.code_bytes())
    }

    /// As [`decode`](Self::decode), on the calling thread. `out` has `dim` components for each code.
    pub(crate) fn decode_into(&self, codes: &[u8], out: &mut [f32]) {
        // A copy of a length known at compile time is a load and a store, not a call.
        match self.width() {
            1 => self.decode_width::<1>(codes, out),
            2 => self.decode_width::<2>(codes, out),
            4 => self.decode_width::<4>(codes, out),
            8 => self.decode_width::<8>(codes, out),
            16 => self.decode_width::<16>(codes, out),
            width => self.decode_each(codes, out, |numbers, row| {
                let books = self.codebooks.chunks_exact(width * self.codewords());
                for ((to, book), &number) in row.chunks_exact_mut(width).zip(books).zip(numbers) {
                    to.copy_from_slice(&book[usize::from(number) * width..][..width]);
                }
            }),
        }
    }

    fn decode_width<const WIDTH: usize>(&self, codes: &[u8], out: &mut [f32]) {
        let (codewords, _) = self.codebooks.as_chunks::<WIDTH>();
        self.decode_each(codes, out, |numbers, row| {
            let books = codewords.chunks_exact(self.codewords());
            for ((to, book), &number) in row.as_chunks_mut::<WIDTH>().0.iter_mut().zip(books).zip(numbers) {
                *to = book[usize::from(number)];
            }
        });
    }

    /// As [`decode_into`](Self::decode_into), then adds `base` (one vector) to each decoded vector: f32(base_i + p_i).
    pub(crate) fn decode_onto(&self, codes: &[u8], base: &[f32], out: &mut [f32]) {
        match (self.width(), self.bits, self.sub_quantizers % 2) {
            (2, 8, 0) => self.decode_pairs_onto::<2>(codes, base, out),
            (4, 8, 0) => self.decode_pairs_onto::<4>(codes, base, out),
            (8, 8, 0) => self.decode_pairs_onto::<8>(codes, base, out),
            _ => {
                self.decode_into(codes, out);
                for row in out.chunks_exact_mut(self.dim) {
                    row.iter_mut().zip(base).for_each(|(to, base)| *to += base);
                }
            }
        }
    }

    /// Decodes two sub-vectors at a time, so that two sub-vectors of two components fill a register. The codebook has a
    /// length known at compile time, so a byte is never out of range. Together this is 1.8 times as fast as one
    /// sub-vector at a time for a width of 2.
    fn decode_pairs_onto<const WIDTH: usize>(&self, codes: &[u8], base: &[f32], out: &mut [f32]) {
        let books = self.codebooks.as_chunks::<WIDTH>().0.as_chunks::<256>().0.as_chunks::<2>().0;
        let bases = base.as_chunks::<WIDTH>().0.as_chunks::<2>().0;
        for (code, row) in codes.chunks_exact(self.code_bytes()).zip(out.chunks_exact_mut(self.dim)) {
            let places = row.as_chunks_mut::<WIDTH>().0.as_chunks_mut::<2>().0.iter_mut().zip(bases);
            for (((to, base), books), numbers) in places.zip(books).zip(code.as_chunks::<2>().0) {
                let words = [books[0][usize::from(numbers[0])], books[1][usize::from(numbers[1])]];
                for part in 0..2 {
                    for i in 0..WIDTH {
                        to[part][i] = base[part][i] + words[part][i];
                    }
                }
            }
        }
    }

    /// Calls `decode(numbers, row)` for each vector.
    #[inline(always)]
    fn decode_each(&self, codes: &[u8], out: &mut [f32], decode: impl Fn(&[u8], &mut [f32])) {
        let rows = codes.chunks_exact(self.code_bytes()).zip(out.chunks_exact_mut(self.dim));
        if self.bits == 8 {
            return rows.for_each(|(code, row)| decode(code, row));
        }
        let mut numbers = vec![0; self.sub_quantizers];
        for (code, row) in rows {
            codes::unpack(code, self.bits, &mut numbers);
            decode(&numbers, row);
        }
    }
}
