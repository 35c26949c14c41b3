//! The two kernels that score every pair of a tile, compare the scores with the queries' thresholds, and pass the
//! survivors to a [`Sink`].
//!
//! Both read the base row-major, as the user gave it. Up to [`super::DIRECT_QUERIES`] queries take the direct kernel,
//! more the panel kernel.

use std::cell::Cell;

#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2, Avx512};
use crate::simd::{Isa, Portable, Simd, prefetch_line};

/// Number of f32 in a cache line.
const LINE: usize = 16;
/// Number of registers of queries in a full panel.
pub(crate) const PANEL_VECS: usize = 3;
/// Number of queries in the widest panel of the widest instruction set.
pub(crate) const MAX_PANEL: usize = PANEL_VECS * 16;

/// Base rows as f32, with the factors and summands that turn dot products into scores.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tile<'a> {
    /// Number of components of a row.
    pub(crate) dim: usize,
    /// The rows, row-major: a multiple of `dim` components.
    pub(crate) rows: &'a [f32],
    /// Id of the first row; the ids of the others follow.
    pub(crate) first_id: u32,
    /// Factor of each row; empty for 1.
    pub(crate) scale: &'a [f32],
    /// Summand of each row; empty for 0.
    pub(crate) offset: &'a [f32],
}

impl Tile<'_> {
    fn len(&self) -> usize {
        self.rows.len() / self.dim
    }

    #[inline(always)]
    fn scale(&self, row: usize) -> f32 {
        if self.scale.is_empty() { 1.0 } else { self.scale[row] }
    }

    #[inline(always)]
    fn offset(&self, row: usize) -> f32 {
        if self.offset.is_empty() { 0.0 } else { self.offset[row] }
    }
}

/// Receives the pairs that passed. It may lower the thresholds that the scan reads.
pub(crate) trait Sink {
    /// Receives base vector `id` with query `first_query` + l, for each bit l of `passed`; the score is `scores[l]`.
    /// Queries are numbered within the panel and may be padding lanes past the last query.
    fn take(&mut self, passed: u32, scores: &[f32; 16], first_query: usize, id: u32);
}

/// Scans `tile` against a panel of `vecs` (1..=3) registers of queries, component-major: `panel[i * width + q]` is
/// component i of query q, width = vecs · lanes. `thresholds` has `width` values.
///
/// O(rows · dim · width).
pub(crate) fn scan_panel(
    isa: Isa,
    vecs: usize,
    tile: &Tile<'_>,
    panel: &[f32],
    thresholds: &[Cell<f32>],
    sink: &mut dyn Sink,
) {
    let width = vecs * isa.lanes();
    assert!((1..=PANEL_VECS).contains(&vecs), "a panel has 1 to 3 registers");
    assert!(panel.len() >= tile.dim * width && thresholds.len() >= width, "a panel holds width x dim components");
    check(tile);
    // SAFETY: `isa` comes from `Isa::detect`, so the processor has the instructions; the lengths were checked above.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => avx512::panel(vecs, tile, panel, thresholds, sink),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2::panel(vecs, tile, panel, thresholds, sink),
            Isa::Portable => portable::panel(vecs, tile, panel, thresholds, sink),
        }
    }
}

/// Scans `tile` against a few queries, row-major. `thresholds` has one value for each query. O(rows · dim · queries).
pub(crate) fn scan_direct(isa: Isa, tile: &Tile<'_>, queries: &[f32], thresholds: &[Cell<f32>], sink: &mut dyn Sink) {
    assert!(thresholds.len() * tile.dim <= queries.len(), "a threshold a query");
    check(tile);
    // SAFETY: `isa` comes from `Isa::detect`, so the processor has the instructions; the lengths were checked above.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => avx512::direct(tile, queries, thresholds, sink),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2::direct(tile, queries, thresholds, sink),
            Isa::Portable => portable::direct(tile, queries, thresholds, sink),
        }
    }
}

fn check(tile: &Tile<'_>) {
    assert!(tile.rows.len().is_multiple_of(tile.dim), "whole rows");
    for factors in [tile.scale, tile.offset] {
        assert!(factors.is_empty() || factors.len() == tile.len(), "a factor a row");
    }
}

/// Compiles the generic kernels for one instruction set.
macro_rules! compile {
    ($module:ident, $simd:ty, $rows:expr, $(#[$feature:meta])*) => {
        mod $module {
            use super::*;

            /// # Safety
            /// The processor has the instruction set; the lengths pass the checks of [`scan_panel`].
            $(#[$feature])*
            pub(crate) unsafe fn panel(
                vecs: usize,
                tile: &Tile<'_>,
                panel: &[f32],
                thresholds: &[Cell<f32>],
                sink: &mut dyn Sink,
            ) {
                // SAFETY: the caller promises the instruction set and the lengths.
                unsafe {
                    match vecs {
                        1 => panel_kernel::<$simd, { $rows[0] }, 1>(tile, panel, thresholds, sink),
                        2 => panel_kernel::<$simd, { $rows[1] }, 2>(tile, panel, thresholds, sink),
                        _ => panel_kernel::<$simd, { $rows[2] }, 3>(tile, panel, thresholds, sink),
                    }
                }
            }

            /// # Safety
            /// The processor has the instruction set; the lengths pass the checks of [`scan_direct`].
            $(#[$feature])*
            pub(crate) unsafe fn direct(
                tile: &Tile<'_>,
                queries: &[f32],
                thresholds: &[Cell<f32>],
                sink: &mut dyn Sink,
            ) {
                // SAFETY: the caller promises the instruction set and the lengths.
                unsafe { direct_kernel::<$simd, 4>(tile, queries, thresholds, sink) }
            }
        }
    };
}

// The numbers of rows for 1, 2 and 3 registers of queries. There are rows x registers accumulators, and one more
// register each for the queries and the component; AVX-512 has 32 registers, the others 16.
#[cfg(target_arch = "x86_64")]
compile!(avx512, Avx512, [16, 12, 8], #[target_feature(enable = "avx512f")]);
#[cfg(target_arch = "x86_64")]
compile!(avx2, Avx2, [8, 6, 4], #[target_feature(enable = "avx2,fma")]);
compile!(portable, Portable, [8, 4, 4],);

/// Outer products. Lanes are queries; each component of each row is broadcast once, directly from the row-major base.
///
/// # Safety
/// The processor has `S`; the lengths pass the checks of [`scan_panel`].
#[inline(always)]
unsafe fn panel_kernel<S: Simd, const ROWS: usize, const VECS: usize>(
    tile: &Tile<'_>,
    panel: &[f32],
    thresholds: &[Cell<f32>],
    sink: &mut dyn Sink,
) {
    let (dim, len, width) = (tile.dim, tile.len(), VECS * S::LANES);
    // The processor's prefetcher does not recognise broadcasts from many rows at once: without this prefetch, 16
    // queries took three times as long as one. Short rows are prefetched one group ahead; a group of long rows would
    // fill the L1 cache.
    let ahead = if ROWS * dim <= 4096 { ROWS * dim } else { 8 * LINE };
    for first in (0..len).step_by(ROWS) {
        // SAFETY: row indices are clamped to the last row and components are below dim, so reads stay inside `rows`,
        // `panel` (dim · width) and `thresholds` (width). Cell<f32> has the layout of f32, and no other thread writes,
        // because Cell is not Sync.
        unsafe {
            // The last group may have fewer rows. It scores its last row again, and the surplus is dropped below.
            let rows: [*const f32; ROWS] =
                std::array::from_fn(|r| tile.rows.as_ptr().add((first + r).min(len - 1) * dim));
            let mut acc = [[S::splat(0.0); VECS]; ROWS];
            let mut queries = panel.as_ptr();
            for line in (0..dim).step_by(LINE) {
                for row in rows {
                    prefetch_line(row.wrapping_add(line + ahead));
                }
                for i in line..(line + LINE).min(dim) {
                    let query: [S::V; VECS] = std::array::from_fn(|v| S::load(queries.add(v * S::LANES)));
                    for (acc, row) in acc.iter_mut().zip(rows) {
                        let component = S::splat(row.add(i).read());
                        for (acc, query) in acc.iter_mut().zip(query) {
                            *acc = S::mul_add(component, query, *acc);
                        }
                    }
                    queries = queries.add(width);
                }
            }
            for (r, acc) in acc.into_iter().enumerate().take(len - first) {
                let (scale, offset) = (S::splat(tile.scale(first + r)), S::splat(tile.offset(first + r)));
                for (v, acc) in acc.into_iter().enumerate() {
                    let score = S::mul_add(acc, scale, offset);
                    let limit = S::load(thresholds.as_ptr().cast::<f32>().add(v * S::LANES));
                    let passed = S::not_greater(score, limit);
                    if passed != 0 {
                        let mut scores = [0.0; 16];
                        S::store(score, scores.as_mut_ptr());
                        sink.take(passed, &scores, v * S::LANES, tile.first_id + (first + r) as u32);
                    }
                }
            }
        }
    }
}

/// Inner products. Lanes are components; `ROWS` rows at a time are multiplied with one query.
///
/// # Safety
/// The processor has `S`; the lengths pass the checks of [`scan_direct`].
#[inline(always)]
unsafe fn direct_kernel<S: Simd, const ROWS: usize>(
    tile: &Tile<'_>,
    queries: &[f32],
    thresholds: &[Cell<f32>],
    sink: &mut dyn Sink,
) {
    let (dim, len) = (tile.dim, tile.len());
    let whole = dim - dim % S::LANES;
    for first in (0..len).step_by(ROWS) {
        // SAFETY: row indices are clamped to the last row and components are below dim (`load_first` reads only the
        // rest), so reads stay inside `rows` and `queries`.
        unsafe {
            let rows: [*const f32; ROWS] =
                std::array::from_fn(|r| tile.rows.as_ptr().add((first + r).min(len - 1) * dim));
            for (q, (query, threshold)) in queries.chunks_exact(dim).zip(thresholds).enumerate() {
                let query = query.as_ptr();
                let mut acc = [S::splat(0.0); ROWS];
                for i in (0..whole).step_by(S::LANES) {
                    let components = S::load(query.add(i));
                    for (acc, row) in acc.iter_mut().zip(rows) {
                        prefetch_line(row.wrapping_add(i + 2048));
                        *acc = S::mul_add(S::load(row.add(i)), components, *acc);
                    }
                }
                if whole < dim {
                    let components = S::load_first(query.add(whole), dim - whole);
                    for (acc, row) in acc.iter_mut().zip(rows) {
                        *acc = S::mul_add(S::load_first(row.add(whole), dim - whole), components, *acc);
                    }
                }
                for (r, acc) in acc.into_iter().enumerate().take(len - first) {
                    let score = S::sum(acc) * tile.scale(first + r) + tile.offset(first + r);
                    // NaN passes, as in `Simd::not_greater`.
                    if !matches!(score.partial_cmp(&threshold.get()), Some(std::cmp::Ordering::Greater)) {
                        sink.take(1, &[score; 16], q, tile.first_id + (first + r) as u32);
                    }
                }
            }
        }
    }
}
