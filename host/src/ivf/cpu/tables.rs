//! Scores of product-quantizer codes by lookup tables, for lists that few queries of a group probe.
//!
//! Decoding a vector pays where several queries share it. For one query the scalar product with r = c + p (see [`crate::ivf::codec`])
//! comes apart into a term of the list, and one of each sub-quantizer that does not depend on the list (the decomposition of
//! Johnson, Douze and Jégou, section 5.2; its term 1 is the norm that the scan has anyway):
//!
//! ```text
//! ⟨x', r⟩ ≈ ⟨x', c⟩ + Σ_m T[m][code m],     T[m][w] = ⟨part m of x', codeword w of m⟩
//! ```
//!
//! T is computed once for a query, when it first meets such a list, in d · 2^bits operations; a vector then takes M look-ups. How far
//! the sum may be from what the scan of decoded vectors gives is added to the bound ([`QueryBound::error_by_tables`]); everything else is
//! as there. With M = 32 and one query a vector takes a third of the time that decoding and scanning it does.

use std::cell::Cell;
use std::sync::OnceLock;

use crate::cpu::bound::QueryBound;
use crate::cpu::exact::{self, Term};
use crate::cpu::scan::Sink;
use crate::cpu::simd::Isa;
use crate::pq::{ProductQuantizer, codes, encode};

/// Tables of the queries of a group, made when they are needed.
#[derive(Debug)]
pub(super) struct Tables {
    of_query: Vec<OnceLock<Vec<f32>>>,
}

impl Tables {
    /// None yet, of `queries` queries.
    pub(super) fn new(queries: usize) -> Tables {
        Tables { of_query: (0..queries).map(|_| OnceLock::new()).collect() }
    }

    /// Those of query `query`, whose x' is `factored`: M × 2^bits.
    pub(super) fn get(&self, query: usize, quantizer: &ProductQuantizer, factored: &[f32]) -> &[f32] {
        self.of_query[query].get_or_init(|| {
            let mut tables = vec![0.0; quantizer.sub_quantizers() * quantizer.codewords()];
            quantizer.entries_into(encode::Term::Product, factored, &mut tables);
            tables
        })
    }
}

/// A query's part in the scan of one list.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry<'a> {
    pub(super) tables: &'a [f32],
    /// ⟨x', c⟩.
    pub(super) base: f32,
}

/// ⟨x', c⟩ of a query given as f64 x with x' = factor · x, and a centroid.
pub(super) fn base(isa: Isa, wide: &[f64], factor: f64, centroid: &[f32]) -> f32 {
    (exact::sum(isa, Term::Product, wide, centroid) * factor) as f32
}

/// Codes as numbers: themselves, or unpacked into `numbers`.
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

/// Scores the rows of a tile, given as numbers, for one query: lane `lane` of the sink.
pub(super) fn scan(
    quantizer: &ProductQuantizer,
    numbers: &[u8],
    entry: Entry<'_>,
    (offset, first_id): (&[f32], u32),
    (threshold, lane): (&Cell<f32>, usize),
    sink: &mut dyn Sink,
) {
    let scan = match quantizer.bits() {
        4 => scan_words::<16>,
        5 => scan_words::<32>,
        6 => scan_words::<64>,
        7 => scan_words::<128>,
        _ => scan_words::<256>,
    };
    scan(quantizer.sub_quantizers(), numbers, entry, (offset, first_id), (threshold, lane), sink);
}

fn scan_words<const WORDS: usize>(
    parts: usize,
    numbers: &[u8],
    entry: Entry<'_>,
    (offset, first_id): (&[f32], u32),
    (threshold, lane): (&Cell<f32>, usize),
    sink: &mut dyn Sink,
) {
    let (tables, _) = entry.tables.as_chunks::<WORDS>();
    for (row, numbers) in numbers.chunks_exact(parts).enumerate() {
        // Masked, so that the compiler sees what it need not check.
        let entry_of = |table: &[f32; WORDS], number: u8| table[usize::from(number) & (WORDS - 1)];
        let mut sums = [entry.base, 0.0, 0.0, 0.0];
        let (numbers, rest) = numbers.as_chunks::<4>();
        let (fours, tables_left) = tables.as_chunks::<4>();
        for (numbers, tables) in numbers.iter().zip(fours) {
            for part in 0..4 {
                sums[part] += entry_of(&tables[part], numbers[part]);
            }
        }
        for (part, (&number, table)) in rest.iter().zip(tables_left).enumerate() {
            sums[part] += entry_of(table, number);
        }
        let sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
        let score = if offset.is_empty() { sum } else { sum + offset[row] };
        // NaN passes, as in the other scans.
        if !matches!(score.partial_cmp(&threshold.get()), Some(std::cmp::Ordering::Greater)) {
            sink.take(1, &[score; 16], lane, first_id + row as u32);
        }
    }
}

/// The largest number of f32 additions and multiplications that a product goes through on its way into a score.
pub(super) fn terms(quantizer: &ProductQuantizer) -> usize {
    quantizer.width() + quantizer.sub_quantizers() + 2
}

/// E of a block whose largest ‖r‖ is `largest`, in a list whose centroid has norm `centroid`.
pub(super) fn error(bound: &QueryBound, quantizer: &ProductQuantizer, largest: f32, centroid: f64) -> f64 {
    bound.error_by_tables(largest, centroid, terms(quantizer))
}
