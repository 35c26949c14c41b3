//! Product quantization: stores a vector as a few bytes and computes distances from tables.
//!
//! # Problem
//! A billion vectors do not fit in memory. Cut each vector into M sub-vectors, and replace each sub-vector by the number of the nearest of
//! 2^bits codewords, learned for its position. Then M · bits bits represent dim floats, and the distance from a query to a coded vector is
//! a sum of M table entries (Jégou, Douze, Schmid 2011; section 5.2 of "Billion-scale similarity search with GPUs").
//!
//! # Definition
//! The codebooks are f32, M × 2^bits × dim / M. All arithmetic is f32; every operation is rounded and none is fused:
//!
//! - Code m of x is the first codeword c with the smallest Σ_j (x_j − c_j)², where j ascends from 0 over the sub-vector.
//! - The M codes are packed from the lowest bit of the first byte, sub-quantizer 0 first, in ⌈M · bits / 8⌉ bytes. The unused high bits of
//!   the last byte are 0.
//! - Decoding gives the components of the codewords.
//!
//! Codes have the same bits on every device.
//!
//! # Training
//! The codewords of a sub-quantizer are the centroids of k-means over the sub-vectors at its position. k-means starts from k-means++ for
//! sub-vectors of up to four components, otherwise from random points. [`Rotation`] learns an orthogonal pre-transform (OPQ) that
//! distributes the information shared by sub-vectors over the sub-quantizers.
//!
//! *Longer codewords* ([`PqTraining::lengthen`]). A mean is shorter than its points: Σ‖x‖² = Σ‖p‖² + Σ‖x − p‖². So squared distances to
//! decoded vectors are too small, and vectors with a large error rank among the nearest. Multiplying the codewords by
//! ½ + ½ √(Σ‖x‖² / Σ‖p‖²), one factor for each sub-quantizer and at most 1.25, increases the error slightly and improves the ranking of
//! short codes. Recall of 10 and of 100 neighbours, all lists searched, means of two seeds, in a PyTorch model of this module (2026-11-22,
//! 128 dimensions, 65,536 training vectors, random starts):
//!
//! | bytes | 1,000,000 clustered: means | longer | 200,000 SIFT: means | longer |
//! |---|---|---|---|---|
//! | 8 | .442 .536 | .451 .547 | .472 .567 | .469 .570 |
//! | 16 | .631 .670 | .647 .691 | .646 .718 | .649 .721 |
//! | 32 | .825 .847 | .826 .848 | .784 .835 | .784 .836 |
//! | 64 | .944 .956 | .944 .956 | .892 .922 | .892 .923 |
//!
//! The full factor √(Σ‖x‖² / Σ‖p‖²) is better still for the clustered vectors (.656 .704 with 16 bytes) and worse for SIFT (.463 .566 with
//! 8). A factor for each codeword is no better than one for all. Training with a sixteenth of the vectors also gives longer codewords:
//! .637 .678 for the clustered vectors with 16 bytes, but .633 .703 for SIFT.
//!
//! # Cost
//! Encoding a vector takes 3 · dim · 2^bits operations, decoding copies dim components, and a table distance takes M look-ups.

pub(crate) mod codes;
pub(crate) mod encode;
pub(crate) mod gpu;
mod linear;
mod rotation;
mod tables;
#[cfg(test)]
mod tests;
mod train;

pub use self::rotation::Rotation;
pub use self::tables::{SymmetricTables, Tables};
pub use self::train::PqTraining;

use self::encode::{Residuals, Term};
use crate::device::open::open;
use crate::parallel::{Loop, ParallelSlice};
use crate::serialised::deserialised;
use crate::simd::Isa;
use crate::validate::{check_dim, check_divisible, check_length, check_multiple, check_range, check_vectors};
use crate::{Device, Error, Input, Result, Watch, host_memory};

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
fn check_shape(dim: usize, sub_quantizers: usize, bits: u32) -> Result<usize> {
    check_dim(dim)?;
    check_divisible("dimension", dim, "sub-quantizers", sub_quantizers)?;
    check_range("bits per sub-quantizer", bits as usize, CODE_BITS)?;
    Ok(dim.saturating_mul(1 << bits))
}

impl ProductQuantizer {
    /// Learns codebooks from `rows` (row-major, `dim` components each). The same settings and rows give the same
    /// codebooks on every device. O(iterations · min(rows, points per centroid · 2^bits) · dim · 2^bits).
    ///
    /// # Errors
    /// [`Error::Zero`], [`Error::NotDivisible`], [`Error::OutOfRange`], [`Error::Ragged`],
    /// [`Error::NotFinite`], [`Error::TooFewTrainingVectors`] for fewer rows than 2^bits; and the errors of the device.
    pub fn train(settings: &PqTraining, rows: &[f32], dim: usize) -> Result<ProductQuantizer> {
        Self::train_watched(settings, rows, dim, &Watch::none())
    }

    /// As [`train`](Self::train), with a [`Watch`].
    ///
    /// # Errors
    /// As [`train`](Self::train); [`Error::Cancelled`].
    pub fn train_watched(
        settings: &PqTraining,
        rows: &[f32],
        dim: usize,
        watch: &Watch<'_>,
    ) -> Result<ProductQuantizer> {
        check_shape(dim, settings.sub_quantizers, settings.bits)?;
        let have = check_vectors(rows, dim, Input::Training)?;
        let need = 1 << settings.bits;
        if have < need {
            return Err(Error::TooFewTrainingVectors { have, need });
        }
        let codebooks = train::codebooks(settings, rows, dim, watch)?;
        Self::from_codebooks(dim, settings.sub_quantizers, settings.bits, codebooks)
    }

    /// Makes a quantizer from given codebooks: M × 2^bits × dim / M, row-major.
    ///
    /// # Errors
    /// [`Error::Zero`], [`Error::NotDivisible`], [`Error::OutOfRange`], [`Error::WrongLength`], and
    /// [`Error::NotFinite`], whose row is the number of the codeword, counted over all sub-quantizers.
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

    /// Encodes `rows` (row-major, `dim` components each) as [`code_bytes`](Self::code_bytes) bytes per row. The result
    /// has the same bits on every device. O(rows · dim · 2^bits).
    ///
    /// # Errors
    /// [`Error::Ragged`], [`Error::NotFinite`]; and the errors of opening the device and running on it.
    pub fn encode(&self, rows: &[f32], device: Device) -> Result<Vec<u8>> {
        check_vectors(rows, self.dim, Input::Vectors)?;
        self.encode_checked(rows, device, None)
    }

    /// As [`encode`](Self::encode), for checked rows and with at most `budget` bytes of device memory.
    pub(crate) fn encode_checked(&self, rows: &[f32], device: Device, budget: Option<u64>) -> Result<Vec<u8>> {
        match open(device)?.1 {
            Some(runtime) => gpu::encode::encode(&runtime, self, rows, budget),
            None => encode::encode(Isa::detect(), self, rows, None),
        }
    }

    /// Encodes the differences between checked rows and the centroids of their lists, on the CPU.
    pub(crate) fn encode_residuals(&self, rows: &[f32], residuals: Residuals<'_>) -> Result<Vec<u8>> {
        encode::encode(Isa::detect(), self, rows, Some(residuals))
    }

    /// Decodes `codes` to vectors, row-major. Bits past the last code of a vector are ignored. O(rows · dim).
    ///
    /// # Errors
    /// [`Error::Ragged`] if `codes` is not a whole number of codes; [`Error::OutOfHostMemory`].
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

    /// Decodes two sub-vectors at a time, so that two sub-vectors of two components fill a register. The codebook has a length known at
    /// compile time, so a byte is never out of range. Together this is 1.8 times as fast as one sub-vector at a time for a width of 2.
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

    /// Squared L2 distances from the sub-vectors of `query` to all codewords: M × 2^bits entries, from which
    /// [`Tables::distances`] adds up the distance to any code. O(dim · 2^bits).
    ///
    /// # Errors
    /// [`Error::WrongDimension`], [`Error::NotFinite`].
    pub fn distance_tables(&self, query: &[f32]) -> Result<Tables> {
        self.tables(Term::SquaredDifference, query)
    }

    /// As [`distance_tables`](Self::distance_tables), with inner products instead of distances.
    ///
    /// # Errors
    /// As [`distance_tables`](Self::distance_tables).
    pub fn product_tables(&self, query: &[f32]) -> Result<Tables> {
        self.tables(Term::Product, query)
    }

    fn tables(&self, term: Term, query: &[f32]) -> Result<Tables> {
        if query.len() != self.dim {
            return Err(Error::WrongDimension { expected: self.dim, actual: query.len() });
        }
        check_vectors(query, self.dim, Input::Queries)?;
        let mut values = vec![0.0; self.sub_quantizers * self.codewords()];
        self.entries_into(term, query, &mut values);
        let greatest = self.greatest_sum(term, query, &values);
        Ok(Tables::new(self, values, greatest))
    }

    /// Writes the entries of the tables of `query` (M × 2^bits) to `to`. An entry is Σ_j term(x_j, c_j) in f32, where j ascends from 0. The
    /// entries of [`Term::FusedProduct`] may differ in their bits between processors.
    pub(crate) fn entries_into(&self, term: Term, query: &[f32], to: &mut [f32]) {
        let isa = Isa::detect();
        let parts = query.chunks_exact(self.width()).zip(to.chunks_exact_mut(self.codewords()));
        for (part, (x, to)) in parts.enumerate() {
            encode::entries(isa, term, x, self.transposed(part), to);
        }
    }

    /// An upper bound, up to rounding, of Σ|term| over a vector's components for any code.
    fn greatest_sum(&self, term: Term, query: &[f32], entries: &[f32]) -> f64 {
        let greatest = |values: &[f32]| values.iter().fold(0.0, |a: f32, b| a.max(b.abs()));
        match term {
            // Terms are not negative, so an entry is its Σ|term|.
            Term::SquaredDifference => {
                entries.chunks_exact(self.codewords()).map(|entries| f64::from(greatest(entries))).sum()
            }
            Term::Product | Term::FusedProduct => {
                let components = query.iter().zip(self.transposed.chunks_exact(self.codewords()));
                components.map(|(x, values)| f64::from(x.abs()) * f64::from(greatest(values))).sum()
            }
        }
    }

    /// Squared L2 distances between the codewords of each sub-quantizer, M × 2^bits × 2^bits entries: tables for
    /// distances between codes. O(dim · 4^bits).
    pub fn symmetric_tables(&self) -> SymmetricTables {
        SymmetricTables::new(self)
    }
}
