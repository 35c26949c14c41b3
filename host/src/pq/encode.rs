//! The nearest codeword of each sub-vector, on the CPU.
//!
//! ```text
//! for each run of rows, for each sub-quantizer m:        // its codebook stays in the L1 cache for the run
//!     for each row: distances[c] = Σ_j (x_j − C[m][j][c])²   // codebooks transposed: lanes are codewords
//!                   code = the first smallest
//! ```
//!
//! Codewords are the lanes, so a single row fills the registers as well as many rows, and the same kernel makes the
//! tables of [`super::tables`]. The compiler vectorises the loops over fixed blocks of codewords, once for each
//! instruction set. It neither fuses nor reorders f32 operations, so every set gives the bits of the definition. A row
//! takes 3 · dim · 2^bits operations.

use super::codes;
use super::quantizer::ProductQuantizer;
use crate::parallel::{Loop, ParallelSlice};
use crate::simd::Isa;
use crate::{Result, host_memory};

/// Number of rows that are encoded together, sub-quantizer by sub-quantizer.
const RUN: usize = 64;
/// Codewords in a block of registers: four registers of AVX-512, which are independent chains of additions.
const BLOCK: usize = 64;
/// Smallest number of codewords, which divides every number of codewords.
const FEWEST: usize = 16;

/// Centroids to subtract from rows before they are encoded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Residuals<'a> {
    /// The list of each row; the list's centroid is subtracted.
    pub labels: &'a [u32],
    /// Centroids of all lists, row-major, f32.
    pub centroids: &'a [f32],
}

/// A term of the sum in a table entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Term {
    /// (x_j − c_j)²
    SquaredDifference,
    /// x_j · c_j
    Product,
    /// x_j · c_j, fused with the addition if the processor can: a third faster. Only for scores with an error bound.
    FusedProduct,
}

/// Encodes `rows` (whole rows of the quantizer's dimension): packed codes, row after row.
pub(crate) fn encode(
    isa: Isa,
    quantizer: &ProductQuantizer,
    rows: &[f32],
    residuals: Option<Residuals<'_>>,
) -> Result<Vec<u8>> {
    let (dim, code_bytes) = (quantizer.dim(), quantizer.code_bytes());
    let mut codes = host_memory::zeroed(host_memory::count::<u8>(&[rows.len() / dim, code_bytes])?)?;
    let runs = codes.par_chunks_mut(RUN * code_bytes).zip(rows.par_chunks(RUN * dim)).enumerate();
    runs.for_each_init(Scratch::default, |scratch, (run, (codes, rows))| match residuals {
        None => encode_run(isa, quantizer, rows, &mut scratch.numbers, codes),
        Some(Residuals { labels, centroids }) => {
            scratch.differences.clear();
            for (row, &label) in rows.chunks_exact(dim).zip(&labels[run * RUN..]) {
                let centroid = &centroids[label as usize * dim..][..dim];
                scratch.differences.extend(row.iter().zip(centroid).map(|(x, c)| x - c));
            }
            encode_run(isa, quantizer, &scratch.differences, &mut scratch.numbers, codes);
        }
    });
    Ok(codes)
}

/// Buffers that a thread reuses from run to run.
#[derive(Default)]
struct Scratch {
    numbers: Vec<u8>,
    differences: Vec<f32>,
}

fn encode_run(isa: Isa, quantizer: &ProductQuantizer, rows: &[f32], numbers: &mut Vec<u8>, codes: &mut [u8]) {
    let count = rows.len() / quantizer.dim();
    numbers.resize(count * quantizer.sub_quantizers(), 0);
    find(isa, quantizer, rows, numbers);
    let each = numbers.chunks_exact(quantizer.sub_quantizers());
    for (numbers, code) in each.zip(codes.chunks_exact_mut(quantizer.code_bytes())) {
        codes::pack(numbers, quantizer.bits(), code);
    }
}

/// Finds the number of the nearest codeword for each row and sub-quantizer (rows × M).
fn find(isa: Isa, quantizer: &ProductQuantizer, rows: &[f32], numbers: &mut [u8]) {
    match isa {
        // SAFETY: `isa` comes from `Isa::detect`, so the processor has the instructions.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { find_avx512(quantizer, rows, numbers) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { find_avx2(quantizer, rows, numbers) },
        Isa::Portable => find_any(quantizer, rows, numbers),
    }
}

/// Computes the entry of each codeword (`to`: 2^bits) of the sub-quantizer with the given transposed codebook.
pub(crate) fn entries(isa: Isa, term: Term, x: &[f32], transposed: &[f32], to: &mut [f32]) {
    match isa {
        // SAFETY: `isa` comes from `Isa::detect`, so the processor has the instructions.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { entries_avx512(term, x, transposed, to) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { entries_avx2(term, x, transposed, to) },
        Isa::Portable => entries_any::<false>(term, x, transposed, to),
    }
}

/// Compiles the two entry points for an instruction set.
macro_rules! compile {
    ($find:ident, $entries:ident, $feature:literal) => {
        /// # Safety
        /// The processor must have the instruction set.
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = $feature)]
        unsafe fn $find(quantizer: &ProductQuantizer, rows: &[f32], numbers: &mut [u8]) {
            find_any(quantizer, rows, numbers)
        }

        /// # Safety
        /// The processor must have the instruction set.
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = $feature)]
        unsafe fn $entries(term: Term, x: &[f32], transposed: &[f32], to: &mut [f32]) {
            entries_any::<true>(term, x, transposed, to)
        }
    };
}
compile!(find_avx512, entries_avx512, "avx512f");
compile!(find_avx2, entries_avx2, "avx2,fma");

#[inline(always)]
fn find_any(quantizer: &ProductQuantizer, rows: &[f32], numbers: &mut [u8]) {
    let (dim, parts, width) = (quantizer.dim(), quantizer.sub_quantizers(), quantizer.width());
    let mut distances = [0.0; 256];
    let distances = &mut distances[..quantizer.codewords()];
    for part in 0..parts {
        let transposed = quantizer.transposed(part);
        for (row, numbers) in rows.chunks_exact(dim).zip(numbers.chunks_exact_mut(parts)) {
            entries_any::<false>(Term::SquaredDifference, &row[part * width..][..width], transposed, distances);
            numbers[part] = first_smallest(distances);
        }
    }
}

/// `FUSES`: whether the processor has the fused instruction. Without it `mul_add` would be a call.
#[inline(always)]
fn entries_any<const FUSES: bool>(term: Term, x: &[f32], transposed: &[f32], to: &mut [f32]) {
    match term {
        Term::SquaredDifference => blocks(x, transposed, to, |sum, x, c| sum + (x - c) * (x - c)),
        Term::FusedProduct if FUSES => blocks(x, transposed, to, |sum, x, c| x.mul_add(c, sum)),
        Term::Product | Term::FusedProduct => blocks(x, transposed, to, |sum, x, c| sum + x * c),
    }
}

#[inline(always)]
fn blocks(x: &[f32], transposed: &[f32], to: &mut [f32], add: impl Fn(f32, f32, f32) -> f32) {
    let codewords = to.len();
    let mut blocks = to.chunks_exact_mut(BLOCK);
    for (block, to) in blocks.by_ref().enumerate() {
        sums::<BLOCK>(x, codewords, transposed, block * BLOCK, to, &add);
    }
    let done = codewords - codewords % BLOCK;
    for (block, to) in blocks.into_remainder().chunks_exact_mut(FEWEST).enumerate() {
        sums::<FEWEST>(x, codewords, transposed, done + block * FEWEST, to, &add);
    }
}

/// add(.. add(add(0, x_0, c_0), x_1, c_1) ..) for `LANES` codewords from `first` on, j ascending from 0.
#[inline(always)]
fn sums<const LANES: usize>(
    x: &[f32],
    codewords: usize,
    transposed: &[f32],
    first: usize,
    to: &mut [f32],
    add: &impl Fn(f32, f32, f32) -> f32,
) {
    let mut acc = [0.0; LANES];
    for (&x, codewords) in x.iter().zip(transposed.chunks_exact(codewords)) {
        let codewords = &codewords[first..first + LANES];
        for lane in 0..LANES {
            acc[lane] = add(acc[lane], x, codewords[lane]);
        }
    }
    to.copy_from_slice(&acc);
}

/// Place of the first smallest of distances ≥ +0, which have the order of their bits. Each lane keeps its first
/// smallest; among the lanes with the overall smallest, the lowest place is the first.
#[inline(always)]
fn first_smallest(distances: &[f32]) -> u8 {
    let (mut best, mut place) = ([u32::MAX; FEWEST], [0u32; FEWEST]);
    for (block, distances) in distances.as_chunks::<FEWEST>().0.iter().enumerate() {
        for lane in 0..FEWEST {
            let bits = distances[lane].to_bits();
            let less = bits < best[lane];
            best[lane] = if less { bits } else { best[lane] };
            place[lane] = if less { block as u32 } else { place[lane] };
        }
    }
    let smallest = best.iter().fold(u32::MAX, |a, &b| a.min(b));
    let mut first = u32::MAX;
    for lane in 0..FEWEST {
        let place = place[lane] * FEWEST as u32 + lane as u32;
        first = first.min(if best[lane] == smallest { place } else { u32::MAX });
    }
    first as u8
}
