//! The two kernels that score every pair of a tile, compare with the queries' thresholds, and hand over the survivors.
//!
//! Both leave the base row-major as the user gave it; see the header of [`super`] for when each is used.

use std::cell::Cell;

#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2, Avx512};
use crate::simd::{Isa, Portable, Simd, prefetch_line};

/// f32 in a cache line.
const LINE: usize = 16;
/// Registers of queries in a full panel.
pub(crate) const PANEL_VECS: usize = 3;
/// Queries in the widest panel of the widest instruction set.
pub(crate) const MAX_PANEL: usize = PANEL_VECS * 16;

/// Base rows as f32 with what turns a dot product into a score.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tile<'a> {
    /// Components of a row.
    pub(crate) dim: usize,
    /// Whole rows.
    pub(crate) rows: &'a [f32],
    /// Id of the first row.
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

/// Takes the pairs that passed. It may lower the thresholds that the scan reads.
pub(crate) trait Sink {
    /// Base vector `id` with query `first_query` + l, for each bit l of `passed`, scored `scores[l]`. Queries count within
    /// the panel and may be padding lanes past the last one.
    fn take(&mut self, passed: u32, scores: &[f32; 16], first_query: usize, id: u32);
}

/// Scans `tile` against a panel: `vecs` (1..=3) registers of queries, component-major
/// (`panel[i * width + q]` is component i of query q, width = vecs · lanes). `thresholds`: `width` of them.
///
/// Checks lengths once a call; O(rows · dim · width).
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

/// Scans `tile` against a few queries, row-major; `thresholds`: one a query. O(rows · dim · queries).
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
            /// The processor has the instruction set; lengths as [`scan_panel`] checks them.
            $(#[$feature])*
            pub(crate) unsafe fn panel(
                vecs: usize,
                tile: &Tile<'_>,
                panel: &[f32],
                thresholds: &[Cell<f32>],
                sink: &mut dyn Sink,
            ) {
                // SAFETY: passed on from the caller.
                unsafe {
                    match vecs {
                        1 => panel_kernel::<$simd, { $rows[0] }, 1>(tile, panel, thresholds, sink),
                        2 => panel_kernel::<$simd, { $rows[1] }, 2>(tile, panel, thresholds, sink),
                        _ => panel_kernel::<$simd, { $rows[2] }, 3>(tile, panel, thresholds, sink),
                    }
                }
            }

            /// # Safety
            /// The processor has the instruction set; lengths as [`scan_direct`] checks them.
            $(#[$feature])*
            pub(crate) unsafe fn direct(
                tile: &Tile<'_>,
                queries: &[f32],
                thresholds: &[Cell<f32>],
                sink: &mut dyn Sink,
            ) {
                // SAFETY: passed on from the caller.
                unsafe { direct_kernel::<$simd, 4>(tile, queries, thresholds, sink) }
            }
        }
    };
}

// Rows by registers of queries: rows x registers accumulators, and a register each for the queries and the component, of
// 32 registers (AVX-512) or 16.
#[cfg(target_arch = "x86_64")]
compile!(avx512, Avx512, [16, 12, 8], #[target_feature(enable = "avx512f")]);
#[cfg(target_arch = "x86_64")]
compile!(avx2, Avx2, [8, 6, 4], #[target_feature(enable = "avx2,fma")]);
compile!(portable, Portable, [8, 4, 4],);

/// Outer products: lanes are queries; each component of each row is broadcast once, straight from the row-major base.
///
/// # Safety
/// The processor has `S`; lengths as [`scan_panel`] checks them.
#[inline(always)]
unsafe fn panel_kernel<S: Simd, const ROWS: usize, const VECS: usize>(
    tile: &Tile<'_>,
    panel: &[f32],
    thresholds: &[Cell<f32>],
    sink: &mut dyn Sink,
) {
    let (dim, len, width) = (tile.dim, tile.len(), VECS * S::LANES);
    // Broadcasts from many rows at once escape the processor's prefetcher: without a hand, 16 queries took three times as
    // long as one. Short rows are fetched a group ahead; of long ones that would fill the L1 cache.
    let ahead = if ROWS * dim <= 4096 { ROWS * dim } else { 8 * LINE };
    for first in (0..len).step_by(ROWS) {
        // SAFETY: row indices are clamped to the last row, components run below dim, so reads stay inside `rows`, `panel`
        // (dim · width) and `thresholds` (width; Cell<f32> has the layout of f32 and nobody else writes meanwhile).
        unsafe {
            // A ragged end scores its last row again; the surplus is dropped below.
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

/// Inner products: lanes run along the components; `ROWS` rows at a time against one query.
///
/// # Safety
/// The processor has `S`; lengths as [`scan_direct`] checks them.
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
        // SAFETY: row indices are clamped to the last row; components run below dim (`load_first` reads only the rest), so
        // reads stay inside `rows` and `queries`.
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
