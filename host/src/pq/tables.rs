//! Distance tables: the distance to a code as a sum of M look-ups.
//!
//! # Error
//! Let u = 2⁻²⁴, w = dim / M, γ(n) = n·u / (1 − n·u), and G the largest Σ|term| over a vector for any code. An f32
//! entry of w terms has an error of at most γ(w + 2) times its Σ|term|: a subtraction (twice, as it is squared), a
//! multiplication, w − 1 additions. Adding M entries in order adds γ(M − 1). So a distance by f32 tables is within
//! γ(w + M + 3) · G of the exact distance to the decoded vector, plus 2⁻¹⁴⁹ per term for underflow. f16 entries are
//! rounded once more, by 2⁻¹¹ of each (or half the spacing of subnormals, after scaling the largest to 2¹⁴..2¹⁵).
//! [`Tables::error_bound`] is this bound as a number.

use half::f16;

use super::codes;
use super::encode::{self, Term};
use super::quantizer::ProductQuantizer;
use crate::parallel::{Loop, ParallelSlice};
use crate::simd::Isa;
use crate::validate::{check_length, check_multiple};
use crate::{Element, Error, Result};

/// Half the spacing of f32 at 1.
const UNIT: f64 = 1.0 / (1u64 << 24) as f64;
/// Smallest number of vectors of a task.
const RUN: usize = 4096;

/// Table entries of one query: M × 2^bits, f32 or f16 ([`to_half`](Tables::to_half)). The methods
/// [`ProductQuantizer::distance_tables`], [`ProductQuantizer::product_tables`] and [`SymmetricTables::tables`] make
/// them.
#[derive(Debug, Clone, PartialEq)]
pub struct Tables<T: Element = f32> {
    sub_quantizers: usize,
    bits: u32,
    /// The stored entries; an entry is its stored value · scale, a power of two.
    values: Vec<T>,
    scale: f32,
    /// The largest Σ|term| of a vector with any code.
    greatest: f64,
    error_bound: f64,
}

impl Tables<f32> {
    /// `values` are M × 2^bits entries. `greatest` is G of the module documentation, up to rounding.
    pub(super) fn new(quantizer: &ProductQuantizer, values: Vec<f32>, greatest: f64) -> Self {
        let (sub_quantizers, width) = (quantizer.sub_quantizers(), quantizer.width());
        let rounding = (width + sub_quantizers + 3) as f64 * UNIT;
        // G itself may be too small by γ(w + 2); the division by 1 − γ covers this too.
        let gamma = rounding / (1.0 - 2.0 * rounding);
        let underflow = quantizer.dim() as f64 * f64::from(f32::from_bits(1));
        // Entries may be f32 while their sum is not.
        let bounded = rounding < 0.25 && greatest < f64::from(f32::MAX) / 2.0;
        let error_bound = if bounded { gamma * greatest + underflow } else { f64::INFINITY };
        Tables { sub_quantizers, bits: quantizer.bits(), values, scale: 1.0, greatest, error_bound }
    }

    /// The same tables in half the memory, for shared memory and caches; the CPU scans f32 tables faster. The largest
    /// entry is scaled to 2¹⁴..2¹⁵, so that none overflows. Each entry is then rounded to f16.
    pub fn to_half(&self) -> Tables<f16> {
        let greatest = self.values.iter().fold(0.0, |a: f32, b| a.max(b.abs()));
        // Exponent field e of the largest entry means 2^(e − 127); the scale's field is 127 + (e − 127) − 14.
        let scale = f32::from_bits(((greatest.to_bits() >> 23).saturating_sub(14).clamp(1, 253)) << 23);
        let values = self.values.iter().map(|value| f16::from_f32(value / scale)).collect();
        let entries = self.sub_quantizers as f64;
        // Entries: 2⁻¹¹ of each, or 2⁻²⁵ of the scale. Their sum in f32 has an error of γ(M) of the entries' sum, with
        // f16 rounding.
        let rounding =
            self.greatest * (1.0 / 2048.0 + 2.0 * entries * UNIT) + entries * f64::from(scale) / (1 << 25) as f64;
        let error_bound = self.error_bound + rounding * (1.0 + 1e-6);
        let &Tables { sub_quantizers, bits, greatest, .. } = self;
        Tables { sub_quantizers, bits, values, scale, greatest, error_bound }
    }
}

impl<T: Element> Tables<T> {
    /// The stored entries, M × 2^bits; an entry is its stored value times [`scale`](Self::scale).
    pub fn values(&self) -> &[T] {
        &self.values
    }

    /// The factor of the stored entries: a power of two, 1 for f32.
    pub fn scale(&self) -> f32 {
        self.scale
    }

    /// Largest difference between a distance by these tables and the exact distance (or inner product) between the
    /// query and the decoded vector. It is infinite if entries or their sums may exceed f32.
    pub fn error_bound(&self) -> f64 {
        self.error_bound
    }

    /// Writes the distance (or inner product) to each of `codes` to `out`: stored entries added up in f32 from 0,
    /// sub-quantizer 0 first, then multiplied by the scale. O(vectors · M), over all threads of rayon's pool.
    ///
    /// # Errors
    /// [`Error::Ragged`]; [`Error::WrongLength`] if `out` does not have one slot per vector.
    pub fn distances(&self, codes: &[u8], out: &mut [f32]) -> Result<()> {
        let code_bytes = codes::code_bytes(self.sub_quantizers, self.bits);
        let count = check_multiple("code bytes", codes.len(), code_bytes)?;
        check_length("results", count, out.len())?;
        out.par_chunks_mut(RUN).zip(codes.par_chunks(RUN * code_bytes)).for_each(|(out, codes)| {
            let mut numbers = vec![0; self.sub_quantizers];
            for (out, code) in out.iter_mut().zip(codes.chunks_exact(code_bytes)) {
                codes::unpack(code, self.bits, &mut numbers);
                let tables = self.values.chunks_exact(1 << self.bits);
                let sum = tables.zip(&numbers).fold(0.0, |sum, (table, &n)| sum + table[usize::from(n)].to_f32());
                *out = sum * self.scale;
            }
        });
        Ok(())
    }
}

/// Squared L2 distances between the codewords of each sub-quantizer, M × 2^bits × 2^bits: distances between codes,
/// without the vectors. [`ProductQuantizer::symmetric_tables`] makes them.
#[derive(Debug, Clone)]
pub struct SymmetricTables {
    quantizer: ProductQuantizer,
    values: Vec<f32>,
}

impl SymmetricTables {
    pub(super) fn new(quantizer: &ProductQuantizer) -> Self {
        let (isa, width, codewords) = (Isa::detect(), quantizer.width(), quantizer.codewords());
        let mut values = vec![0.0; quantizer.sub_quantizers() * codewords * codewords];
        let rows = values.par_chunks_exact_mut(codewords).zip(quantizer.codebooks().par_chunks_exact(width));
        rows.enumerate().for_each(|(row, (to, x))| {
            encode::entries(isa, Term::SquaredDifference, x, quantizer.transposed(row / codewords), to);
        });
        SymmetricTables { quantizer: quantizer.clone(), values }
    }

    /// The entries: the squared distance of codewords a and b of sub-quantizer m is at (m · 2^bits + a) · 2^bits + b.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// The tables of the vector that `code` represents, the same as [`ProductQuantizer::distance_tables`] of the
    /// decoded vector, by M copies. Their error bound holds for distances between two decoded vectors. O(M · 2^bits).
    ///
    /// # Errors
    /// [`Error::Ragged`] if `code` is not the code of one vector.
    pub fn tables(&self, code: &[u8]) -> Result<Tables> {
        let quantizer = &self.quantizer;
        let (codewords, code_bytes) = (quantizer.codewords(), quantizer.code_bytes());
        if code.len() != code_bytes {
            return Err(Error::Ragged { what: "code bytes", len: code.len(), size: code_bytes });
        }
        let mut numbers = vec![0; quantizer.sub_quantizers()];
        codes::unpack(code, quantizer.bits(), &mut numbers);
        let mut values = Vec::with_capacity(numbers.len() * codewords);
        for (part, &number) in numbers.iter().enumerate() {
            values.extend_from_slice(&self.values[(part * codewords + usize::from(number)) * codewords..][..codewords]);
        }
        let greatest = |entries: &[f32]| f64::from(entries.iter().fold(0.0f32, |a, &b| a.max(b)));
        let greatest = values.chunks_exact(codewords).map(greatest).sum();
        Ok(Tables::new(quantizer, values, greatest))
    }
}
