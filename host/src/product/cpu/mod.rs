//! Products on the CPU: scores in f32 with a bound of their error, and canonical distances of the rows that the bound
//! cannot exclude.
//!
//! The header of exact search (`flat::cpu`) explains the whole algorithm.
//!
//! | file | content |
//! |---|---|
//! | `scan` | scores of a panel of queries with a tile of rows |
//! | `bound` | error bounds of scores |
//! | `panels` | queries packed in panels, and the scan of a tile with all of them |
//! | `candidates` | rows that passed the scan, and their canonical distances |
//! | `collect` | what a search keeps of these rows: the k best, or all within a radius |
//! | `queries` | queries, converted for a scan |
//! | `exact` | canonical sums |
//! | `bits` | numbers of bits that differ |

pub(crate) mod bits;
pub(crate) mod bound;
pub(crate) mod candidates;
pub(crate) mod collect;
pub(crate) mod exact;
pub(crate) mod panels;
pub(super) mod queries;
pub(crate) mod scan;

pub(crate) use self::queries::{Line, Queries, Scorer, as_f32, canonical_square, convert};

/// Number of rows that share one largest norm. No tile crosses a multiple of this number.
pub(crate) const BLOCK: usize = 256;
/// Size of a tile of f32 in bytes: a share of the L2 cache (1 to 2 MiB on current server cores) that leaves room for a
/// panel.
pub(crate) const TILE_BYTES: usize = 1 << 20;
/// Up to this many queries are scanned row by row rather than in panels.
pub(crate) const DIRECT_QUERIES: usize = 4;
/// Default limit of the memory for candidates in bytes; the builder of an index can change it.
pub(crate) const DEFAULT_BUDGET: u64 = 256 << 20;

/// Number of rows of a tile: a power of two that divides [`BLOCK`].
pub(crate) fn tile_rows(dim: usize) -> usize {
    let fit = (TILE_BYTES / size_of::<f32>() / dim).clamp(16, BLOCK);
    1 << fit.ilog2()
}
