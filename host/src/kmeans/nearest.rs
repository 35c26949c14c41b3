//! The nearest of a set of rows for each of very many queries, for k-means and for building inverted files.
//!
//! The exact search of [`crate::flat`] with k = 1 gives the same answer. This module leaves out everything that only
//! k > 1 needs: with k = 1 a query keeps at most eight scored rows, in one or two cache lines, and nearly always one of
//! them is left at the end.
//!
//! ```text
//! keep the first of equal rows; set aside rows far from the origin; subtract a common centre if that shrinks the norms
//! for each group of queries (at most 384), in parallel:
//!     for each tile of the rows (1 MiB):
//!         for each panel of the group:                                        product/cpu/panels.rs
//!             rows x panel in f32; note each score that is at most the query's limit
//!             limit[q] = smallest score so far + 2 E(q)                       bound.rs
//!     for each query: one row noted within the limit is the winner; of several, the canonical distances decide
//!     queries with more than eight notes at a time: scan again with the last limit; canonical distances of all rows within it decide
//!     far rows: none is nearer if their norms prove it; otherwise canonical distances decide
//! ```
//!
//! The cost is O(queries · rows · d) f32 operations. A query notes about ln(rows) rows in all.
//!
//! # Why the rows are examined first
//! E grows with the norms, and each row within 2 E of the best costs an f64 distance, which takes twenty times as long
//! as a score. In k-means, equal points make equal rows; a large constant component makes all points lie in one
//! direction; and one point with 1e16 in a component makes a centroid that spoils E for all rows. The three steps avoid
//! these costs and change no answer.
//!
//! *Centre* (L2). Scores are those of x' = fl(x − c) and y' = fl(y − c). Each component has a relative error of u, so
//! ‖x' − y'‖ differs from ‖x − y‖ by at most 1.01 u (‖x'‖ + ‖y'‖), and its square by 2.1 u (‖x'‖ + ‖y'‖)². E includes
//! this as 4 u (‖x'‖ + M')². The centre is subtracted if the mean of the rows has most of their squared norm.
//!
//! *Far rows* (L2). A row y has ‖x − y‖ ≥ ‖y‖ − ‖x‖. The best row's squared distance is at most its score + E + ‖x‖².
//! If (‖y‖ − ‖x‖)² is larger, the row y is farther.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::ops::Range;

use crate::metric::Assign;
use crate::parallel::{Loop, ParallelSlice};
use crate::product::centre::Centre;
use crate::product::cpu::bound::{self, QueryBound, ceil_f32, largest_norm};
use crate::product::cpu::exact;
use crate::product::cpu::exact::Term;
use crate::product::cpu::panels::{Panels, Survivors};
use crate::product::cpu::scan::{MAX_PANEL, Tile};
use crate::product::cpu::{TILE_BYTES, as_f32, canonical_square};
use crate::simd::Isa;
use crate::{Element, Result, host_memory};

/// Largest number of queries of a task: eight full panels of the widest instruction set.
const GROUP: usize = 8 * MAX_PANEL;
/// Number of rows that a query notes before it drops those above the limit.
const NOTES: usize = 8;

/// Smallest number of queries for which the search for equal rows, far rows and a centre pays: it costs as much as
/// about twenty queries.
const WORTH_LOOKING: usize = 256;
/// Norms of at least this many times the median are far.
const FAR: f64 = 64.0;
/// A centre is subtracted if it leaves less than 1 / `CENTRED` of the squared norms.
const CENTRED: f64 = 64.0;
/// 4 u for the rounding errors of centred vectors, with u = 2^-24.
const CENTRE_ERROR: f64 = 4.0 / (1u64 << 24) as f64;

/// The rows among which the nearest is found by [`Assign`]: at least one, all finite.
#[derive(Debug)]
pub(crate) struct Nearest<'a> {
    isa: Isa,
    metric: Assign,
    dim: usize,
    rows: &'a [f32],
    scanned: Scanned<'a>,
    /// Numbers of the rows that are not scanned because they are far from the origin; `far_norm` is a lower bound of
    /// their norms.
    far: Vec<u32>,
    far_norm: f64,
    /// Number of canonical distances computed.
    #[cfg(test)]
    judged: std::sync::atomic::AtomicU64,
}

/// The rows that all queries are scored with.
#[derive(Debug)]
struct Scanned<'a> {
    /// The rows minus the centre.
    rows: Cow<'a, [f32]>,
    /// The number of each scanned row; empty if all rows are scanned.
    ids: Vec<u32>,
    /// The centre, which is subtracted from rows and queries; empty if there is none.
    centre: Vec<f32>,
    /// f32(‖y‖²) of each row for L2; empty for the inner product.
    offset: Vec<f32>,
    /// Upper bound of the rows' norms.
    largest: f32,
}

impl<'a> Scanned<'a> {
    /// The rows with these numbers; `None` means all rows. `squares` belong to all rows. `look`: whether to try a
    /// centre.
    fn new(
        isa: Isa,
        metric: Assign,
        rows: &'a [f32],
        dim: usize,
        ids: Option<Vec<u32>>,
        squares: &[f64],
        look: bool,
    ) -> Self {
        let (mut rows, mut squares, ids) = match ids {
            None => (Cow::Borrowed(rows), Cow::Borrowed(squares), Vec::new()),
            Some(ids) => {
                let of = |&id: &u32| &rows[id as usize * dim..][..dim];
                let kept: Vec<f32> = ids.iter().flat_map(of).copied().collect();
                let squares = ids.iter().map(|&id| squares[id as usize]).collect();
                (Cow::Owned(kept), Cow::Owned(squares), ids)
            }
        };
        let centre = match metric {
            Assign::L2 if look => centre(&rows, dim, &squares),
            Assign::L2 | Assign::InnerProduct => Vec::new(),
        };
        if !centre.is_empty() {
            for row in rows.to_mut().chunks_exact_mut(dim) {
                row.iter_mut().zip(&centre).for_each(|(y, c)| *y -= c);
            }
            squares = Cow::Owned(each_square(isa, &rows, dim).collect());
        }
        let offset = match metric {
            Assign::L2 => squares.iter().map(|&square| square as f32).collect(),
            Assign::InnerProduct => Vec::new(),
        };
        let largest = largest_norm(metric.metric(), squares.iter().copied());
        Self { rows, ids, centre, offset, largest }
    }

    /// The number of the row at `place` among the scanned rows.
    fn id(&self, place: u32) -> u32 {
        self.ids.get(place as usize).copied().unwrap_or(place)
    }

    /// E of a query; `square` is Σx² of the query as it is scored.
    fn error(&self, metric: Assign, dim: usize, square: f64) -> f64 {
        let error = QueryBound::new(metric.metric(), dim, square).error(self.largest);
        if self.centre.is_empty() {
            return error;
        }
        let reach = square.sqrt() + f64::from(self.largest);
        error + CENTRE_ERROR * reach * reach
    }
}

/// The mean of the rows if it has most of their squared norm; empty otherwise.
fn centre(rows: &[f32], dim: usize, squares: &[f64]) -> Vec<f32> {
    let mut centre = Centre::default();
    rows.chunks_exact(dim).for_each(|row| centre.add_row(row, 1.0));
    let own = centre.mean().map(|c| c * c).sum::<f64>();
    let all = squares.iter().sum::<f64>() / squares.len() as f64;
    // Differences of rows near the limit of f32 may overflow.
    let pays = all > 0.0 && all < 1e70 && own > all * (1.0 - 1.0 / CENTRED);
    if pays { centre.mean().map(|c| c as f32).collect() } else { Vec::new() }
}

/// The first of each set of equal rows, ascending; `None` if no two rows are equal. O(rows · log(rows)), times dim for
/// rows of equal norm.
fn first_of_equals(rows: &[f32], dim: usize, squares: &[f64]) -> Option<Vec<u32>> {
    let row = |id: u32| &rows[id as usize * dim..][..dim];
    // −0 equals 0.
    let compare = |a: &u32, b: &u32| {
        let components = || row(*a).iter().zip(row(*b)).map(|(a, b)| (a + 0.0).total_cmp(&(b + 0.0)));
        let equal = |ordering: &Ordering| ordering.is_eq();
        squares[*a as usize]
            .total_cmp(&squares[*b as usize])
            .then_with(|| components().find(|ordering| !equal(ordering)).unwrap_or(Ordering::Equal))
    };
    let mut ids: Vec<u32> = (0..squares.len() as u32).collect();
    ids.sort_unstable_by(|a, b| compare(a, b).then(a.cmp(b)));
    ids.dedup_by(|b, a| compare(a, b).is_eq());
    ids.sort_unstable();
    (ids.len() < squares.len()).then_some(ids)
}

/// Moves the rows far from the origin out of `ids` (`None`: all rows) if they are at most a quarter, and returns them.
fn take_far(ids: &mut Option<Vec<u32>>, squares: &[f64]) -> Vec<u32> {
    let all = || (0..squares.len() as u32).collect::<Vec<_>>();
    let mut sorted: Vec<f64> = match ids {
        Some(ids) => ids.iter().map(|&id| squares[id as usize]).collect(),
        None => squares.to_vec(),
    };
    let middle = sorted.len() / 2;
    let limit = *sorted.select_nth_unstable_by(middle, f64::total_cmp).1 * FAR * FAR;
    let is_far = |id: &u32| squares[*id as usize] > limit;
    let count = sorted.iter().filter(|&&square| square > limit).count();
    if count == 0 || 4 * count > sorted.len() {
        return Vec::new();
    }
    let (far, near) = ids.take().unwrap_or_else(all).into_iter().partition(is_far);
    *ids = Some(near);
    far
}

impl<'a> Nearest<'a> {
    /// Examines the rows if the number of queries makes that pay. O(rows · (dim + log(rows))).
    pub(crate) fn new(metric: Assign, rows: &'a [f32], dim: usize, queries: usize) -> Self {
        Self::with_isa(Isa::detect(), metric, rows, dim, queries)
    }

    /// As [`new`](Self::new). The processor must have `isa`.
    fn with_isa(isa: Isa, metric: Assign, rows: &'a [f32], dim: usize, queries: usize) -> Self {
        let squares: Vec<f64> = each_square(isa, rows, dim).collect();
        let look = queries >= WORTH_LOOKING;
        let mut ids = if look { first_of_equals(rows, dim, &squares) } else { None };
        let far = match metric {
            Assign::L2 if look => take_far(&mut ids, &squares),
            Assign::L2 | Assign::InnerProduct => Vec::new(),
        };
        let far_norm = far.iter().map(|&id| squares[id as usize]).fold(f64::INFINITY, f64::min).sqrt();
        let scanned = Scanned::new(isa, metric, rows, dim, ids, &squares, look);
        Self {
            isa,
            metric,
            dim,
            rows,
            scanned,
            far,
            far_norm,
            #[cfg(test)]
            judged: std::sync::atomic::AtomicU64::new(0),
        }
    }

    /// The nearest row of each query by (canonical distance, lower row). `squares` are the queries'
    /// [`canonical_squares`].
    pub(crate) fn assign<T: Element>(&self, queries: &[T], squares: &[f64], labels: &mut [u32]) {
        let fit = TILE_BYTES / size_of::<f32>() / self.dim;
        let share = labels.len().div_ceil(4 * rayon::current_num_threads());
        let group = share.min(fit).next_multiple_of(MAX_PANEL).clamp(MAX_PANEL, GROUP);
        queries
            .par_chunks(group * self.dim)
            .zip(squares.par_chunks(group))
            .zip(labels.par_chunks_mut(group))
            .for_each_init(
                || Scratch::new(self.isa, self.dim),
                |scratch, ((queries, squares), labels)| self.assign_group(scratch, queries, squares, labels),
            );
    }

    /// The canonical distance of `query` from row `id`.
    pub(crate) fn distance<T: Element>(&self, query: &[T], id: u32) -> f32 {
        let wide: Vec<f64> = query.iter().map(|&x| f64::from(x.to_f32())).collect();
        self.canonical(&wide, id)
    }

    fn canonical(&self, query: &[f64], id: u32) -> f32 {
        #[cfg(test)]
        self.judged.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let term = match self.metric {
            Assign::L2 => Term::SquaredDifference,
            Assign::InnerProduct => Term::Product,
        };
        let start = id as usize * self.dim;
        exact::sum(self.isa, term, query, &self.rows[start..start + self.dim]) as f32 + 0.0
    }

    fn assign_group<T: Element>(&self, scratch: &mut Scratch, queries: &[T], squares: &[f64], labels: &mut [u32]) {
        let Scratch { narrow, centred, panels, wide, notes } = scratch;
        let queries = as_f32(queries, narrow);
        let centred = self.centred(queries, squares, centred);
        notes.clear();
        notes.extend(centred.squares.iter().map(|&s| Notes::new(self.scanned.error(self.metric, self.dim, s), s)));
        let (dim, factor) = (self.dim, bound::factor(self.metric.metric(), 1.0) as f32);
        let factored =
            |query: usize, some: Range<usize>| centred.queries[query * dim..][some].iter().map(move |x| factor * x);
        panels.pack(notes.len(), factored);
        self.tiles().for_each(|tile| panels.scan(&tile, &mut Noting(notes)));
        let mut crowded = Vec::new();
        for (at, (label, query)) in labels.iter_mut().zip(queries.chunks_exact(dim)).enumerate() {
            notes[at].thin();
            if notes[at].crowded {
                crowded.push(at);
            } else {
                *label = self.winner(&notes[at], query, squares[at], wide);
            }
        }
        if crowded.is_empty() {
            return;
        }
        // Scans again with the last limits of these queries, and judges every row within them.
        panels.pack(crowded.len(), |at, some| factored(crowded[at], some));
        let judged = crowded.iter().map(|&query| {
            widen(&queries[query * dim..][..dim], wide);
            (&notes[query], wide.clone(), None)
        });
        let mut judging = Judging { nearest: self, queries: judged.collect() };
        self.tiles().for_each(|tile| panels.scan(&tile, &mut judging));
        for (query, (notes, wide, mut best)) in crowded.into_iter().zip(judging.queries) {
            if self.far_may_win(notes, squares[query]) {
                self.far.iter().for_each(|&id| self.judge(&wide, id, &mut best));
            }
            labels[query] = best.map_or(0, |(_, id)| id);
        }
    }

    /// The queries minus the centre, with their Σx².
    fn centred<'q>(&self, queries: &'q [f32], squares: &'q [f64], to: &'q mut (Vec<f32>, Vec<f64>)) -> Centred<'q> {
        if self.scanned.centre.is_empty() {
            return Centred { queries, squares };
        }
        let (rows, sums) = to;
        rows.clear();
        sums.clear();
        for query in queries.chunks_exact(self.dim) {
            rows.extend(query.iter().zip(&self.scanned.centre).map(|(x, c)| x - c));
            sums.push(rows[rows.len() - self.dim..].iter().map(|&x| f64::from(x) * f64::from(x)).sum());
        }
        Centred { queries: rows, squares: sums }
    }

    /// The tiles of the scanned rows. An id of a tile is a place among the scanned rows.
    fn tiles(&self) -> impl Iterator<Item = Tile<'_>> {
        let Scanned { rows, offset, .. } = &self.scanned;
        let each = (TILE_BYTES / size_of::<f32>() / self.dim).max(MAX_PANEL);
        rows.chunks(each * self.dim).enumerate().map(move |(at, rows)| {
            let places = at * each..at * each + rows.len() / self.dim;
            let offset = if offset.is_empty() { &[][..] } else { &offset[places.clone()] };
            Tile { dim: self.dim, rows, first_id: places.start as u32, scale: &[], offset }
        })
    }

    /// The nearest among the rows that a query has noted and the far rows.
    fn winner(&self, notes: &Notes, query: &[f32], square: f64, wide: &mut Vec<f64>) -> u32 {
        let far = self.far_may_win(notes, square);
        if let (&[(_, only)], false) = (notes.kept(), far) {
            return self.scanned.id(only);
        }
        widen(query, wide);
        let mut best = None;
        notes.kept().iter().for_each(|&(_, place)| self.judge(wide, self.scanned.id(place), &mut best));
        if far {
            self.far.iter().for_each(|&id| self.judge(wide, id, &mut best));
        }
        best.map_or(0, |(_, id)| id)
    }

    /// Keeps the better of row `id` and the best row so far.
    fn judge(&self, query: &[f64], id: u32, best: &mut Best) {
        let distance = self.canonical(query, id);
        let better =
            |&mut (of, best): &mut (f32, u32)| self.metric.metric().order(distance, of).then(id.cmp(&best)).is_lt();
        if best.as_mut().is_none_or(better) {
            *best = Some((distance, id));
        }
    }

    /// False if the scanned row with the best score is proved nearer than every far row. `square` is Σx² of the query.
    fn far_may_win(&self, notes: &Notes, square: f64) -> bool {
        if self.far.is_empty() {
            return false;
        }
        let nearest = f64::from(notes.best) + notes.error + notes.square;
        let apart = self.far_norm - square.sqrt();
        // Wide margins cover the rounding errors here, and the ends of f32, where distances that are infinite or 0 are
        // equal.
        let farther = apart > 0.0
            && apart * apart > 1.0001 * nearest.max(0.0) + f64::from(f32::MIN_POSITIVE)
            && nearest < 0.9 * f64::from(f32::MAX);
        !farther
    }
}

/// Queries as they are scored, with Σx² of each.
struct Centred<'a> {
    queries: &'a [f32],
    squares: &'a [f64],
}

fn widen(query: &[f32], wide: &mut Vec<f64>) {
    wide.clear();
    wide.extend(query.iter().map(|&x| f64::from(x)));
}

/// Σx² of each row by the canonical definition. O(rows · dim), in parallel.
pub(crate) fn canonical_squares<T: Element>(rows: &[T], dim: usize) -> Result<Vec<f64>> {
    host_memory::collected_in_parallel(each_square(Isa::detect(), rows, dim))
}

fn each_square<T: Element>(isa: Isa, rows: &[T], dim: usize) -> impl Loop<Item = f64> {
    rows.par_chunks(dim).with_min_len(256).map(move |row| canonical_square(isa, row))
}

/// The buffers of one thread for a group of queries.
struct Scratch {
    /// The queries as f32, if they have another type.
    narrow: Vec<f32>,
    /// The queries minus the centre, and their Σx², if there is a centre.
    centred: (Vec<f32>, Vec<f64>),
    /// The queries times −2 or −1.
    panels: Panels,
    /// One query as f64.
    wide: Vec<f64>,
    notes: Vec<Notes>,
}

impl Scratch {
    fn new(isa: Isa, dim: usize) -> Self {
        let panels = Panels::new(isa, dim);
        Self { narrow: Vec::new(), centred: Default::default(), panels, wide: Vec::new(), notes: Vec::new() }
    }
}

/// The rows that may be nearest to a query, in ascending order of rows.
#[derive(Debug, Clone)]
struct Notes {
    /// E of [`crate::product::cpu::bound`].
    error: f64,
    /// Σx² of the query as it is scored.
    square: f64,
    /// Smallest score so far.
    best: f32,
    /// A row with a higher score cannot be nearest: the score of the best row is at most E too low, and that of another
    /// row at most E too high.
    limit: f32,
    len: usize,
    /// Whether a row was dropped for lack of room; the rows must then be scanned again.
    crowded: bool,
    noted: [(f32, u32); NOTES],
}

impl Notes {
    fn new(error: f64, square: f64) -> Self {
        let best = f32::INFINITY;
        Self { error, square, best, limit: best, len: 0, crowded: false, noted: [(0.0, 0); NOTES] }
    }

    /// Notes a row and returns the new limit.
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

    /// Drops the rows above the limit. A NaN score stays (it occurs if the bound is infinite).
    fn thin(&mut self) {
        let mut kept = 0;
        for at in 0..self.len {
            let noted = self.noted[at];
            self.noted[kept] = noted;
            kept += usize::from(!matches!(noted.0.partial_cmp(&self.limit), Some(Ordering::Greater)));
        }
        self.len = kept;
    }

    fn kept(&self) -> &[(f32, u32)] {
        &self.noted[..self.len]
    }
}

/// Notes every row that passes, for the query of the same number.
struct Noting<'a>(&'a mut [Notes]);

impl Survivors for Noting<'_> {
    #[inline]
    fn threshold(&self, query: usize) -> (f32, f64) {
        (self.0[query].limit, self.0[query].error)
    }

    #[inline]
    fn take(&mut self, query: usize, place: u32, score: f32, _: f64) -> Option<f32> {
        Some(self.0[query].push(score, place))
    }
}

/// The distance and the number of the best row so far.
type Best = Option<(f32, u32)>;

/// Judges every row within the limits of some queries.
struct Judging<'a> {
    nearest: &'a Nearest<'a>,
    queries: Vec<Judged<'a>>,
}

/// The notes of a query, its components as f64, and its best row so far.
type Judged<'a> = (&'a Notes, Vec<f64>, Best);

impl Survivors for Judging<'_> {
    fn threshold(&self, query: usize) -> (f32, f64) {
        let (notes, ..) = &self.queries[query];
        (notes.limit, notes.error)
    }

    fn take(&mut self, query: usize, place: u32, _: f32, _: f64) -> Option<f32> {
        let (_, wide, best) = &mut self.queries[query];
        self.nearest.judge(wide, self.nearest.scanned.id(place), best);
        None
    }
}

#[cfg(test)]
mod tests {
    use test_random::Random;

    use super::*;
    use crate::metric;

    /// The nearest row of each query, directly by the definition.
    fn plain(metric: Assign, queries: &[f32], rows: &[f32], dim: usize) -> Vec<u32> {
        let nearest = |query: &[f32]| {
            let mut best = (f32::NAN, 0);
            for (id, row) in rows.chunks(dim).enumerate() {
                let distance = metric::canonical(metric.metric(), query, row);
                if id == 0 || metric.metric().order(distance, best.0).is_lt() {
                    best = (distance, id as u32);
                }
            }
            best.1
        };
        queries.chunks(dim).map(nearest).collect()
    }

    #[test]
    fn rows_within_twice_the_error_of_the_best_are_kept() {
        let mut notes = Notes::new(1.0, 0.0);
        for (id, score) in [20.0, 12.0, 10.0, 11.9, 12.0].into_iter().enumerate() {
            notes.push(score, id as u32);
        }
        assert!(notes.limit >= 12.0 && notes.limit < 12.001, "{notes:?}");
        notes.thin();
        assert_eq!(notes.kept(), [(12.0, 1), (10.0, 2), (11.9, 3), (12.0, 4)]);
        // More rows than there is room for.
        (5..11).for_each(|id| _ = notes.push(10.5, id));
        assert!(notes.crowded);
        // An infinite error drops no row.
        let mut notes = Notes::new(f64::INFINITY, 0.0);
        [3.0, f32::NAN, 5.0, f32::INFINITY].into_iter().for_each(|score| _ = notes.push(score, 0));
        notes.thin();
        assert_eq!((notes.kept().len(), notes.limit), (4, f32::INFINITY));
    }

    #[test]
    fn every_instruction_set_finds_the_nearest_of_the_definition() {
        let mut random = Random::new(7);
        let mut next = || random.unit_f32() - 0.5;
        // Ordinary; whole numbers with many ties; far from the origin, where f32 sees no difference; squares above f32;
        // squares below f32; equal rows; one large constant component; some rows far; some rows near or beyond the
        // limit of f32.
        let kinds: [fn(f32, usize) -> f32; 9] = [
            |x, _| x,
            |x, _| (x * 4.0).round(),
            |x, _| 1e4 + x,
            |x, _| x * 1e25,
            |x, _| x * 1e-25,
            |_, i| i as f32,
            |x, i| if i == 0 { 1e16 } else { x },
            |x, i| if i == 0 && x > 0.45 { 1e16 } else { x },
            |x, i| if x > 0.49 && i < 2 { 1e25 } else { 1e18 * x },
        ];
        for kind in kinds {
            for (dim, clusters, count) in
                [(1, 1, 5), (3, 7, 100), (17, 50, 49), (127, 300, 97), (129, 20, 500), (33, 300, 4)]
            {
                let rows: Vec<f32> = (0..clusters * dim).map(|at| kind(next(), at % dim)).collect();
                let queries: Vec<f32> = (0..count * dim).map(|at| kind(next(), at % dim)).collect();
                for metric in [Assign::L2, Assign::InnerProduct] {
                    let expected = plain(metric, &queries, &rows, dim);
                    for (isa, expect) in Isa::all().into_iter().flat_map(|isa| [(isa, 1), (isa, WORTH_LOOKING)]) {
                        let nearest = Nearest::with_isa(isa, metric, &rows, dim, expect);
                        let mut labels = vec![u32::MAX; count];
                        nearest.assign(&queries, &each_square(isa, &queries, dim).collect(), &mut labels);
                        assert_eq!(labels, expected, "{isa:?}, {metric:?}, {clusters} rows of {dim}");
                    }
                }
            }
        }
    }

    /// Number of canonical distances computed for these queries.
    fn judged(metric: Assign, queries: &[f32], rows: &[f32], dim: usize) -> u64 {
        let nearest = Nearest::new(metric, rows, dim, WORTH_LOOKING);
        let mut labels = vec![u32::MAX; queries.len() / dim];
        nearest.assign(queries, &canonical_squares(queries, dim).unwrap(), &mut labels);
        assert_eq!(labels, plain(metric, queries, rows, dim));
        nearest.judged.into_inner()
    }

    #[test]
    fn rows_that_are_equal_or_far_or_in_one_direction_cost_no_canonical_distances() {
        let mut random = Random::new(9);
        let mut next = || random.unit_f32() - 0.5;
        let (dim, count, clusters) = (16, 300, 100);
        let mut values = |rows: usize| (0..rows * dim).map(|_| next()).collect::<Vec<f32>>();
        let (queries, rows) = (values(count), values(clusters));
        let usual = judged(Assign::L2, &queries, &rows, dim);
        assert!(usual < count as u64 / 4, "{usual}");
        let few =
            |judged: u64, case: &str| assert!(judged <= usual + count as u64 / 4, "{case}: {judged}, usually {usual}");
        for metric in [Assign::L2, Assign::InnerProduct] {
            // All rows equal, all zero, half of them equal.
            few(judged(metric, &vec![0.25; count * dim], &vec![0.25; clusters * dim], dim), "equal");
            few(judged(metric, &vec![0.0; count * dim], &vec![-0.0; clusters * dim], dim), "zero");
            let mut half = rows.clone();
            half[..clusters / 2 * dim].fill(0.25);
            few(judged(metric, &vec![0.25; count * dim], &half, dim), "half");
        }
        // A large constant component, up to rows that all lie far from the origin.
        let constant = |rows: &[f32], x: f32| {
            let mut rows = rows.to_vec();
            rows.iter_mut().step_by(dim).for_each(|to| *to = x);
            rows
        };
        for x in [1e3, 1e6, 1e16] {
            few(judged(Assign::L2, &constant(&queries, x), &constant(&rows, x), dim), "constant component");
        }
        // Some rows and one query are far.
        let (mut far_rows, mut far_queries) = (rows.clone(), queries.clone());
        (far_rows[7 * dim + 3], far_rows[50 * dim]) = (1e16, -3e38);
        far_queries[40 * dim + 3] = 1e16;
        let far = judged(Assign::L2, &far_queries, &far_rows, dim);
        few(far - clusters as u64, "far rows");
        // Many rows near each other: only these are judged.
        let mut tight = rows.clone();
        for row in 1..20 {
            (0..dim).for_each(|j| tight[row * dim + j] = tight[j] + 1e-7 * row as f32);
        }
        let near: Vec<f32> = (0..count).flat_map(|_| tight[..dim].to_vec()).collect();
        let tight = judged(Assign::L2, &near, &tight, dim);
        assert!(tight <= 20 * count as u64, "{tight}");
    }
}
