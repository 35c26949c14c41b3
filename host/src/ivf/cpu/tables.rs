//! Scores of product-quantizer codes by lookup tables, for lists that few queries of a group probe.
//!
//! Decoding a vector pays if several queries share it. For one query, the scalar product with r = c + p (see
//! [`crate::ivf::encoding`]) is a sum of a term of the list and one term of each sub-quantizer that does not depend on
//! the list (the decomposition of Johnson, Douze and Jégou, section 5.2; its term 1 is the norm that the scan has
//! anyway):
//!
//! ```text
//! ⟨x', r⟩ ≈ ⟨x', c⟩ + Σ_m T[m][code m],     T[m][w] = ⟨part m of x', codeword w of m⟩
//! ```
//!
//! T is computed once for a query, in d · 2^bits multiply-adds, for all lists of the query that are scored by tables: a
//! worker scans them one after the other. Then a vector takes M look-ups; for cosine, the sum is multiplied by the
//! vector's scale 1/‖r‖. The bound includes the difference between this sum and the score of the decoded vector
//! ([`QueryBound::error_by_tables`]); everything else is as for decoded vectors. With M = 32 and one query, a vector
//! takes a third of the time of decoding and scanning it; from about 192 / M queries on, decoding is cheaper ([`few`]).

use crate::pq::{ProductQuantizer, codes, encode};
use crate::product::cpu::bound::QueryBound;
use crate::product::cpu::exact;
use crate::product::cpu::exact::Term;
use crate::simd::Isa;

/// Number of look-ups that cost as much as decoding a vector and scoring it in a panel.
const LOOK_UPS: usize = 192;

/// Largest number of queries of a group with which a list that they probe is scored by tables.
pub(super) fn few(quantizer: &ProductQuantizer) -> usize {
    (LOOK_UPS / quantizer.sub_quantizers()).clamp(4, 12)
}

/// The tables of a worker's current query: M × 2^bits entries, computed once for all lists that the worker scans for
/// the query. (Tables for all queries of a group were written to memory, read back, and returned to the system after
/// each search.)
#[derive(Debug, Default)]
pub(super) struct Tables {
    query: Option<u32>,
    entries: Vec<f32>,
}

impl Tables {
    /// The tables of query `query`, whose x' is `factored`.
    pub(super) fn get(&mut self, query: u32, quantizer: &ProductQuantizer, factored: &[f32]) -> &[f32] {
        if self.query != Some(query) {
            self.entries.resize(quantizer.sub_quantizers() * quantizer.codewords(), 0.0);
            quantizer.entries_into(encode::Term::FusedProduct, factored, &mut self.entries);
            self.query = Some(query);
        }
        &self.entries
    }
}

/// ⟨x', c⟩ of a centroid and a query, which is given as f64 x with x' = factor · x.
pub(super) fn base(isa: Isa, wide: &[f64], factor: f64, centroid: &[f32]) -> f32 {
    (exact::sum(isa, Term::Product, wide, centroid) * factor) as f32
}

/// Codes as one byte for each sub-quantizer: the codes themselves, or unpacked into `numbers`.
pub(super) fn unpacked<'a>(quantizer: &ProductQuantizer, packed: &'a [u8], numbers: &'a mut Vec<u8>) -> &'a [u8] {
    if quantizer.bits() == 8 {
        return packed;
    }
    let parts = quantizer.sub_quantizers();
    let rows = packed.len() / quantizer.code_bytes();
    numbers.resize(rows * parts, 0);
    for (code, numbers) in packed.chunks_exact(quantizer.code_bytes()).zip(numbers.chunks_exact_mut(parts)) {
        codes::unpack(code, quantizer.bits(), numbers);
    }
    numbers
}

/// Scores vectors, given as one byte for each sub-quantizer, for the query of `tables` with ⟨x', c⟩ = `base`. Adds
/// `offset`, one summand for each vector, unless it is empty. O(vectors · M).
pub(super) fn score(
    quantizer: &ProductQuantizer,
    numbers: &[u8],
    (tables, base): (&[f32], f32),
    offset: &[f32],
    scores: &mut [f32],
) {
    let score = match quantizer.bits() {
        4 => score_words::<16>,
        5 => score_words::<32>,
        6 => score_words::<64>,
        7 => score_words::<128>,
        _ => score_words::<256>,
    };
    score(quantizer.sub_quantizers(), numbers, (tables, base), offset, scores);
}

fn score_words<const WORDS: usize>(
    parts: usize,
    numbers: &[u8],
    (tables, base): (&[f32], f32),
    offset: &[f32],
    scores: &mut [f32],
) {
    let (tables, _) = tables.as_chunks::<WORDS>();
    let (fours, tables_left) = tables.as_chunks::<4>();
    for (row, (score, numbers)) in scores.iter_mut().zip(numbers.chunks_exact(parts)).enumerate() {
        // The mask lets the compiler omit the bounds check.
        let entry_of = |table: &[f32; WORDS], number: u8| table[usize::from(number) & (WORDS - 1)];
        let mut sums = [base, 0.0, 0.0, 0.0];
        let (numbers, rest) = numbers.as_chunks::<4>();
        for (numbers, tables) in numbers.iter().zip(fours) {
            for part in 0..4 {
                sums[part] += entry_of(&tables[part], numbers[part]);
            }
        }
        for (part, (&number, table)) in rest.iter().zip(tables_left).enumerate() {
            sums[part] += entry_of(table, number);
        }
        *score = (sums[0] + sums[1]) + (sums[2] + sums[3]) + offset.get(row).copied().unwrap_or(0.0);
    }
}

/// Largest number of f32 additions and multiplications between a product and the score that contains it.
pub(super) fn terms(quantizer: &ProductQuantizer) -> usize {
    quantizer.width() + quantizer.sub_quantizers() + 2
}

/// The error bound E of a block whose largest ‖r‖ and whose greatest scale are `(largest, steepest)`, in a list whose
/// centroid has norm `centroid`.
pub(super) fn error(bound: &QueryBound, quantizer: &ProductQuantizer, block: (f32, f32), centroid: f64) -> f64 {
    bound.error_by_tables(block, centroid, terms(quantizer))
}
