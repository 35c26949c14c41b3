//! Products on the CPU: scores in f32 with a bound of their error, and the canonical distance for what the bound cannot exclude.
//!
//! The algorithm is explained where it is whole: exact search (`flat::cpu`).
//!
//! | file | what |
//! |---|---|
//! | `scan` | scores of a panel of queries with a tile of rows |
//! | `bound` | how wrong a score may be |
//! | `candidates` | what passed the scan, and its canonical distances |
//! | `queries` | queries made ready for a scan |
//! | `exact` | canonical sums |

pub(crate) mod bound;
pub(crate) mod candidates;
pub(crate) mod exact;
pub(super) mod queries;
pub(crate) mod scan;

pub(crate) use self::queries::{Line, Queries, Scorer, as_f32, canonical_square, convert};

/// Rows that share one largest norm; tiles never cross its multiples.
pub(crate) const BLOCK: usize = 256;
/// f32 bytes of a tile: a share of the L2 cache (1 to 2 MiB on current server cores) that leaves room for a panel.
pub(crate) const TILE_BYTES: usize = 1 << 20;
/// Up to this many queries are scanned row by row rather than in panels.
pub(crate) const DIRECT_QUERIES: usize = 4;
/// Bytes of candidates held at once, unless the builder says otherwise.
pub(crate) const DEFAULT_BUDGET: u64 = 256 << 20;

/// Rows of a tile: a power of two that divides [`BLOCK`].
pub(crate) fn tile_rows(dim: usize) -> usize {
    let fit = (TILE_BYTES / size_of::<f32>() / dim).clamp(16, BLOCK);
    1 << fit.ilog2()
}
