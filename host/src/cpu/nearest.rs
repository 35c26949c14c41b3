//! The nearest of a set of rows for each of very many queries: what k-means and the building of inverted files do.
//!
//! The search of [`super`] with k = 1 gives the same answer. This one leaves out all that k > 1 needs: with k = 1 a query keeps
//! eight scored rows at most, in one cache line or two, and nearly always one of them is left at the end.
//!
//! ```text
//! for each group of queries (at most 384), in parallel:
//!     for each tile of the rows (1 MiB):
//!         for each panel of the group:                                        the kernel of scan.rs
//!             rows x panel in f32; a score not above its query's limit is noted, and
//!             limit[q] = smallest score so far + 2 E(q)                       bound.rs
//!     for each query: who is noted within the limit? One: the winner. Several: canonical distances of those decide.
//!     More than eight at a time: canonical distances of all rows decide.
//! ```
//!
//! O(queries · rows · d) f32 operations. A query notes about ln(rows) rows on its way. Where E exceeds the differences of the
//! data (many equal rows) it takes one canonical distance a row: slow, and right.

use std::cell::Cell;

use rayon::prelude::*;

use super::bound::{QueryBound, ceil_f32, largest_norm};
use super::exact::{self, Term};
use super::scan::{self, MAX_PANEL, PANEL_VECS, Sink, Tile};
use super::simd::Isa;
use super::{Line, TILE_BYTES, canonical_square, convert};
use crate::{Element, Metric, Result, host_memory};

/// Queries that one task takes at most: eight full panels of the widest instruction set.
const GROUP: usize = 8 * MAX_PANEL;
/// Rows that a query notes before it thins them.
const NOTES: usize = 8;

/// Rows to be near to; all finite, at least one. [`Metric::L2`] or [`Metric::InnerProduct`].
#[derive(Debug)]
pub(crate) struct Nearest<'a> {
    isa: Isa,
    metric: Metric,
    dim: usize,
    rows: &'a [f32],
    /// f32(‖y‖²) for L2, else empty.
    offset: Vec<f32>,
    /// Upper bound of the rows' norms.
    largest: f32,
}

impl<'a> Nearest<'a> {
    /// Looks at the rows' norms. O(rows · dim).
    pub(crate) fn new(metric: Metric, rows: &'a [f32], dim: usize) -> Self {
        Self::with_isa(Isa::detect(), metric, rows, dim)
    }

    /// `isa` is one that the processor has.
    fn with_isa(isa: Isa, metric: Metric, rows: &'a [f32], dim: usize) -> Self {
        let squares: Vec<f64> = each_square(isa, rows, dim).collect();
        let offset = match metric {
            Metric::L2 => squares.iter().map(|&square| square as f32).collect(),
            Metric::InnerProduct | Metric::Cosine => Vec::new(),
        };
        let largest = largest_norm(metric, squares.into_iter());
        Self { isa, metric, dim, rows, offset, largest }
    }

    /// The nearest row of each query by (canonical distance, lower row). `squares`: the queries' [`squares`].
    pub(crate) fn assign<T: Element>(&self, queries: &[T], squares: &[f64], labels: &mut [u32]) {
        let fit = TILE_BYTES / size_of::<f32>() / self.dim;
        let share = labels.len().div_ceil(4 * rayon::current_num_threads());
        let group = share.min(fit).next_multiple_of(MAX_PANEL).clamp(MAX_PANEL, GROUP);
        queries
            .par_chunks(group * self.dim)
            .zip(squares.par_chunks(group))
            .zip(labels.par_chunks_mut(group))
            .for_each_init(
                || Scratch::new(group, self.dim),
                |scratch, ((queries, squares), labels)| self.assign_group(scratch, queries, squares, labels),
            );
    }

    /// The canonical distance of `query` from row `id`.
    pub(crate) fn distance<T: Element>(&self, query: &[T], id: u32) -> f32 {
        let wide: Vec<f64> = query.iter().map(|&x| f64::from(x.to_f32())).collect();
        self.canonical(&wide, id)
    }

    fn canonical(&self, query: &[f64], id: u32) -> f32 {
        let term = if self.metric == Metric::L2 { Term::SquaredDifference } else { Term::Product };
        let start = id as usize * self.dim;
        exact::sum(self.isa, term, query, &self.rows[start..start + self.dim]) as f32 + 0.0
    }

    fn assign_group<T: Element>(&self, scratch: &mut Scratch, queries: &[T], squares: &[f64], labels: &mut [u32]) {
        let (dim, lanes) = (self.dim, self.isa.lanes());
        let panel = PANEL_VECS * lanes;
        let Scratch { narrow, packed, wide, notes, thresholds } = scratch;
        let queries: &[f32] = if T::TYPE == crate::ElementType::F32 {
            bytemuck::cast_slice(queries)
        } else {
            narrow.resize(queries.len(), 0.0);
            convert(queries, narrow);
            narrow
        };
        notes.clear();
        notes.extend(squares.iter().map(|&s| Notes::new(QueryBound::new(self.metric, dim, s).error(self.largest))));
        // Padding lanes: nothing but NaN passes −∞, and the sink drops that.
        for (lane, threshold) in thresholds.iter().enumerate() {
            threshold.set(if lane < notes.len() { f32::INFINITY } else { f32::NEG_INFINITY });
        }
        let factor = if self.metric == Metric::L2 { -2.0 } else { -1.0 };
        let packed: &mut [f32] = bytemuck::cast_slice_mut(packed);
        let vecs = |first: usize| (notes.len() - first).div_ceil(lanes).min(PANEL_VECS);
        for (at, queries) in queries.chunks(panel * dim).enumerate() {
            let width = vecs(at * panel) * lanes;
            let packed = &mut packed[at * panel * dim..][..width * dim];
            for (lane, query) in queries.chunks_exact(dim).enumerate() {
                for (line, x) in packed.chunks_exact_mut(width).zip(query) {
                    line[lane] = factor * x;
                }
            }
        }
        let tile = (TILE_BYTES / size_of::<f32>() / dim).max(MAX_PANEL);
        let count = notes.len();
        for (at, rows) in self.rows.chunks(tile * dim).enumerate() {
            let first_id = at * tile;
            let last_id = first_id + rows.len() / dim;
            let offset = if self.offset.is_empty() { &[] } else { &self.offset[first_id..last_id] };
            let tile = Tile { dim, rows, first_id: first_id as u32, scale: &[], offset };
            for first in (0..count).step_by(panel) {
                let vecs = (count - first).div_ceil(lanes).min(PANEL_VECS);
                let lanes = first..(first + panel).min(count);
                let thresholds = &thresholds[first..first + panel];
                let mut sink = Panel { notes: &mut notes[lanes], thresholds };
                scan::scan_panel(self.isa, vecs, &tile, &packed[first * dim..], thresholds, &mut sink);
            }
        }
        for ((label, notes), query) in labels.iter_mut().zip(notes).zip(queries.chunks_exact(dim)) {
            *label = self.winner(notes, query, wide);
        }
    }

    /// Decides between the rows that a query has noted.
    fn winner(&self, notes: &mut Notes, query: &[f32], wide: &mut Vec<f64>) -> u32 {
        notes.thin();
        if let (&[(_, only)], false) = (notes.kept(), notes.crowded) {
            return only;
        }
        wide.clear();
        wide.extend(query.iter().map(|&x| f64::from(x)));
        let mut best = (self.metric.worst(), 0);
        let mut first = true;
        let mut judge = |id| {
            let distance = self.canonical(wide, id);
            // Ids ascend, so an equal one loses.
            if first || self.metric.order(distance, best.0).is_lt() {
                best = (distance, id);
            }
            first = false;
        };
        if notes.crowded {
            (0..(self.rows.len() / self.dim) as u32).for_each(&mut judge);
        } else {
            notes.kept().iter().for_each(|&(_, id)| judge(id));
        }
        best.1
    }
}

/// Σx² of each row by the canonical definition. O(rows · dim), in parallel.
pub(crate) fn canonical_squares<T: Element>(rows: &[T], dim: usize) -> Result<Vec<f64>> {
    host_memory::collected_in_parallel(each_square(Isa::detect(), rows, dim))
}

fn each_square<T: Element>(isa: Isa, rows: &[T], dim: usize) -> impl IndexedParallelIterator<Item = f64> {
    rows.par_chunks(dim).with_min_len(256).map(move |row| canonical_square(isa, row))
}

/// What one thread needs for a group of queries.
struct Scratch {
    /// The queries as f32, where they are of another type.
    narrow: Vec<f32>,
    /// The queries in panels, times −2 or −1.
    packed: Vec<Line>,
    /// One query as f64.
    wide: Vec<f64>,
    notes: Vec<Notes>,
    thresholds: Vec<Cell<f32>>,
}

impl Scratch {
    fn new(group: usize, dim: usize) -> Self {
        let lanes = group.next_multiple_of(MAX_PANEL);
        Self {
            narrow: Vec::new(),
            packed: vec![Line([0.0; 16]); (lanes * dim).div_ceil(16)],
            wide: Vec::new(),
            notes: Vec::with_capacity(group),
            thresholds: vec![Cell::new(f32::NEG_INFINITY); lanes],
        }
    }
}

/// The rows that may be a query's nearest, in ascending order.
#[derive(Debug, Clone)]
struct Notes {
    /// E of [`super::bound`].
    error: f64,
    /// Smallest score so far.
    best: f32,
    /// Scores above this cannot be the nearest's: the row of the best score is at most E worse than it looks, another at most E
    /// better.
    limit: f32,
    len: usize,
    /// Some row was dropped for want of room: all must be judged.
    crowded: bool,
    noted: [(f32, u32); NOTES],
}

impl Notes {
    fn new(error: f64) -> Self {
        let best = f32::INFINITY;
        Self { error, best, limit: best, len: 0, crowded: false, noted: [(0.0, 0); NOTES] }
    }

    /// Notes a row and returns the limit from here on.
    fn push(&mut self, score: f32, id: u32) -> f32 {
        if score < self.best {
            self.best = score;
            let limit = f64::from(score) + 2.0 * self.error;
            self.limit = if limit < f64::INFINITY { ceil_f32(limit) } else { f32::INFINITY };
        }
        if self.len == NOTES {
            self.thin();
        }
        match self.noted.get_mut(self.len) {
            Some(noted) => {
                *noted = (score, id);
                self.len += 1;
            }
            None => self.crowded = true,
        }
        self.limit
    }

    /// Drops whoever is past the limit. NaN (scored where the bound is infinite) stays.
    fn thin(&mut self) {
        let mut kept = 0;
        for at in 0..self.len {
            let noted = self.noted[at];
            self.noted[kept] = noted;
            kept += usize::from(!matches!(noted.0.partial_cmp(&self.limit), Some(std::cmp::Ordering::Greater)));
        }
        self.len = kept;
    }

    fn kept(&self) -> &[(f32, u32)] {
        &self.noted[..self.len]
    }
}

/// Takes what passes the scan of one panel.
struct Panel<'a> {
    notes: &'a mut [Notes],
    thresholds: &'a [Cell<f32>],
}

impl Sink for Panel<'_> {
    fn take(&mut self, mut passed: u32, scores: &[f32; 16], first_query: usize, id: u32) {
        while passed != 0 {
            let bit = passed.trailing_zeros() as usize;
            passed &= passed - 1;
            let lane = first_query + bit;
            let Some(notes) = self.notes.get_mut(lane) else { return };
            self.thresholds[lane].set(notes.push(scores[bit % 16], id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric;

    /// The definition, plainly.
    fn plain(metric: Metric, queries: &[f32], rows: &[f32], dim: usize) -> Vec<u32> {
        let nearest = |query: &[f32]| {
            let mut best = (f32::NAN, 0);
            for (id, row) in rows.chunks(dim).enumerate() {
                let distance = metric::canonical(metric, query, row);
                if id == 0 || metric.order(distance, best.0).is_lt() {
                    best = (distance, id as u32);
                }
            }
            best.1
        };
        queries.chunks(dim).map(nearest).collect()
    }

    #[test]
    fn rows_within_twice_the_error_of_the_best_are_kept() {
        let mut notes = Notes::new(1.0);
        for (id, score) in [20.0, 12.0, 10.0, 11.9, 12.0].into_iter().enumerate() {
            notes.push(score, id as u32);
        }
        assert!(notes.limit >= 12.0 && notes.limit < 12.001, "{notes:?}");
        notes.thin();
        assert_eq!(notes.kept(), [(12.0, 1), (10.0, 2), (11.9, 3), (12.0, 4)]);
        // More than there is room for.
        (5..11).for_each(|id| _ = notes.push(10.5, id));
        assert!(notes.crowded);
        // An infinite error drops nobody.
        let mut notes = Notes::new(f64::INFINITY);
        [3.0, f32::NAN, 5.0, f32::INFINITY].into_iter().for_each(|score| _ = notes.push(score, 0));
        notes.thin();
        assert_eq!((notes.kept().len(), notes.limit), (4, f32::INFINITY));
    }

    #[test]
    fn every_instruction_set_finds_the_nearest_of_the_definition() {
        let mut state = 7u64;
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
        };
        // Plain; whole numbers full of ties; far from the origin, where f32 sees no difference; past f32's squares; equal rows.
        let kinds: [fn(f32, usize) -> f32; 6] =
            [|x, _| x, |x, _| (x * 4.0).round(), |x, _| 1e4 + x, |x, _| x * 1e25, |x, _| x * 1e-25, |_, i| i as f32];
        for kind in kinds {
            for (dim, clusters, count) in [(1, 1, 5), (3, 7, 100), (17, 50, 49), (127, 300, 97), (129, 20, 500)] {
                let rows: Vec<f32> = (0..clusters * dim).map(|at| kind(next(), at % dim)).collect();
                let queries: Vec<f32> = (0..count * dim).map(|at| kind(next(), at % dim)).collect();
                for metric in [Metric::L2, Metric::InnerProduct] {
                    let expected = plain(metric, &queries, &rows, dim);
                    for isa in Isa::all() {
                        let nearest = Nearest::with_isa(isa, metric, &rows, dim);
                        let mut labels = vec![u32::MAX; count];
                        nearest.assign(&queries, &each_square(isa, &queries, dim).collect::<Vec<_>>(), &mut labels);
                        assert_eq!(labels, expected, "{isa:?}, {metric:?}, {clusters} rows of {dim}");
                    }
                }
            }
        }
    }
}
