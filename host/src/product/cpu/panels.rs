//! Panels of queries: how queries are packed for the kernels of [`super::scan`], and the scan of a tile of rows with
//! all of them.
//!
//! Exact search, inverted files and k-means scan in the same way. They differ in what they keep of the pairs that pass:
//! a [`Survivors`] each.

use std::cell::Cell;
use std::ops::Range;

use super::scan::{self, MAX_PANEL, PANEL_VECS, Sink, Tile};
use super::{DIRECT_QUERIES, Line};
use crate::simd::Isa;

/// Number of components of each query that are packed at a time, so that the written values stay in the L1 cache.
const PACKED_TOGETHER: usize = 64;

/// Receives the pairs of a query and a row that the scan cannot exclude. A query's number is its place among the packed
/// queries.
pub(crate) trait Survivors {
    /// The threshold of a query for the rows of the next tile, and the error bound of their scores. Scores at or below
    /// the threshold, and NaN, pass.
    fn threshold(&self, query: usize) -> (f32, f64);

    /// Whether any query may have row `id` as a result.
    fn accepts(&self, _id: u32) -> bool {
        true
    }

    /// Takes row `id`, whose score with this error bound passed. Returns the threshold for the rest of the tile if it
    /// may be lower now.
    fn take(&mut self, query: usize, id: u32, score: f32, error: f64) -> Option<f32>;
}

/// Queries, packed as the scan multiplies them: x' of [`super::bound`].
#[derive(Debug)]
pub(crate) struct Panels {
    isa: Isa,
    dim: usize,
    values: Vec<Line>,
    panels: Vec<Panel>,
}

/// The queries of one call of a kernel.
#[derive(Debug, Clone, Copy)]
struct Panel {
    first: usize,
    queries: usize,
    /// Number of registers of the panel kernel, whose values are component-major; 0 for the direct kernel, whose values
    /// are row-major.
    vecs: usize,
    /// The first f32 of the panel in the packed values.
    start: usize,
}

impl Panels {
    /// No queries. The processor must have `isa`.
    pub(crate) fn new(isa: Isa, dim: usize) -> Panels {
        Panels { isa, dim, values: Vec::new(), panels: Vec::new() }
    }

    /// Replaces the packed queries by `count` others. `components` returns a range of the components of a query's x'.
    /// O(count · dim).
    pub(crate) fn pack<I: Iterator<Item = f32>>(
        &mut self,
        count: usize,
        components: impl Fn(usize, Range<usize>) -> I,
    ) {
        let (dim, lanes) = (self.dim, self.isa.lanes());
        self.panels.clear();
        let mut total = 0;
        if count <= DIRECT_QUERIES {
            self.panels.push(Panel { first: 0, queries: count, vecs: 0, start: 0 });
            total = count * dim;
        } else {
            // Registers are divided evenly: 4 become 2 + 2, not 3 + 1.
            let vecs = count.div_ceil(lanes);
            let parts = vecs.div_ceil(PANEL_VECS);
            let mut first = 0;
            for part in 0..parts {
                let vecs = vecs / parts + usize::from(part < vecs % parts);
                self.panels.push(Panel { first, queries: (count - first).min(vecs * lanes), vecs, start: total });
                first += vecs * lanes;
                total += (vecs * lanes * dim).next_multiple_of(16);
            }
        }
        // Lanes past the last query keep their old values: finite numbers, whose scores pass no threshold.
        self.values.resize(total.div_ceil(16).max(self.values.len()), Line([0.0; 16]));
        let values: &mut [f32] = bytemuck::cast_slice_mut(&mut self.values);
        for &Panel { first, queries, vecs, start } in &self.panels {
            if vecs == 0 {
                let rows = values.chunks_exact_mut(dim).take(queries).enumerate();
                rows.for_each(|(query, row)| row.iter_mut().zip(components(query, 0..dim)).for_each(|(to, x)| *to = x));
                continue;
            }
            let width = vecs * lanes;
            let parts = values[start..start + width * dim].chunks_mut(PACKED_TOGETHER * width);
            for (part, to) in parts.enumerate() {
                let some = part * PACKED_TOGETHER..dim.min((part + 1) * PACKED_TOGETHER);
                for lane in 0..queries {
                    let component = to.chunks_exact_mut(width).zip(components(first + lane, some.clone()));
                    component.for_each(|(component, x)| component[lane] = x);
                }
            }
        }
    }

    /// Scans `tile` for all packed queries. O(rows · dim · queries).
    pub(crate) fn scan(&self, tile: &Tile<'_>, survivors: &mut impl Survivors) {
        let values: &[f32] = bytemuck::cast_slice(&self.values);
        for panel in &self.panels {
            // In padding lanes only NaN passes −∞, and the sink drops it.
            let thresholds = [const { Cell::new(f32::NEG_INFINITY) }; MAX_PANEL];
            let mut errors = [0.0; MAX_PANEL];
            for (lane, query) in (panel.first..panel.first + panel.queries).enumerate() {
                let (threshold, error) = survivors.threshold(query);
                thresholds[lane].set(threshold);
                errors[lane] = error;
            }
            let Panel { first, queries, .. } = *panel;
            let mut passed =
                Passed { first, queries, thresholds: &thresholds, errors: &errors, survivors: &mut *survivors };
            let values = &values[panel.start..];
            match panel.vecs {
                0 => scan::scan_direct(self.isa, tile, values, &thresholds[..queries], &mut passed),
                vecs => scan::scan_panel(self.isa, vecs, tile, values, &thresholds, &mut passed),
            }
        }
    }
}

/// The pairs that pass the scan of one panel.
struct Passed<'a, S> {
    /// The first query of the panel, and the number of its queries.
    first: usize,
    queries: usize,
    thresholds: &'a [Cell<f32>; MAX_PANEL],
    errors: &'a [f64; MAX_PANEL],
    survivors: &'a mut S,
}

impl<S: Survivors> Sink for Passed<'_, S> {
    fn take(&mut self, mut passed: u32, scores: &[f32; 16], first_query: usize, id: u32) {
        if !self.survivors.accepts(id) {
            return;
        }
        while passed != 0 {
            let bit = passed.trailing_zeros() as usize;
            passed &= passed - 1;
            let lane = first_query + bit;
            if lane >= self.queries {
                return;
            }
            let error = self.errors[lane];
            if let Some(threshold) = self.survivors.take(self.first + lane, id, scores[bit % 16], error) {
                self.thresholds[lane].set(threshold);
            }
        }
    }
}
