//! Floats as signed bytes, by which walks go: a quarter of the bytes of f32, and distances of integers.
//!
//! # Definition
//! Component x_j has the code `round((x_j − shift_j) · scale)`, clamped to −127 ..= 127, in f32 with ties to even. For
//! cosine, x is first divided by its norm (`distance.rs`, step 0). The distances of walks are those of the codes:
//! squared L2 for L2 and cosine, because ‖x − y‖² = 2 − 2 cos(x, y) for vectors of norm 1, and the inner product for
//! the inner product, whose shifts are 0.
//!
//! A query for the inner product has a scale of its own: its greatest component gets the code ±127,
//! `round(x_j / max · 127)`. The order of inner products does not depend on it.
//!
//! The best of a walk's beam get canonical distances from the vectors themselves, so codes affect which vectors are
//! found and never their distances.
//!
//! # Choice
//! [`Codes::fit`] takes the mean of a random sample as shift, and of some scales the one with the least mean squared
//! error over the sample. A far component is then clamped if that makes the others finer.
//!
//! An error e of mean square m in each component changes the distance d of two vectors, whose codes have independent
//! errors, by about √(2m) in one direction and d² by 2 d √(2m). If that is more than a twentieth of d², walks would
//! confuse near vectors: then there are no codes, and walks compare the vectors. d is the distance to the neighbour
//! that the last edge could lead to, in the sample; a twentieth of the sample may be nearer.
//!
//! 1,000,000 clustered vectors of 128 components, degree 32, have d ≈ 8 and √(2m) = 0.02.
//!
//! # Where codes do not suffice
//! A code says nothing about how far its component lies beyond the range. So everything that codes cannot tell is
//! noticed, and then vectors decide:
//!
//! | what | how it is noticed | what happens |
//! |---|---|---|
//! | a query or a row is *outside*: clamping changes it by more than the m at which codes are still fine | Σ of the squares of what is cut off, in units of codes, above [`Coder::limit`] | the query walks by vectors, the row's edges are chosen by vectors |
//! | many rows are outside: a rare class, a stream that moves | they are counted | a new graph: a scale for the whole range, or no codes. Later: codes are fitted again when an eighth of the rows is outside |
//! | an inner product with a row that is outside is too small | there is such a row | all queries walk by vectors until codes are fitted again |
//! | vectors changed, and lie closer together than the first ones | half of the rows are newer than the fit | codes are fitted again |
//! | vectors are nearer to each other than codes can tell | the beam's ends are as near to each other as two roundings | the query walks by vectors |
//! | some vectors tie for the k-th place | their distances by codes differ by less than six deviations | all of them are ranked by vectors |
//!
//! [`Tolerance`](warpann_kernels::graph::tolerance::Tolerance) has the model of the errors: those of two roundings,
//! uniform and independent, have a deviation of 1/√6 in one direction, and six of these are allowed for. That is no
//! proof, as a walk is none; a bound for certain would be √dim, and rank most of each beam.
//!
//! [`Distances`] has the distances of walks among codes and among vectors.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use warpann_kernels::graph::encode::{MOST, ROUNDER, excess};
use warpann_kernels::graph::tolerance::Tolerance;

use super::distance::{Query, WalkDistance, normalise};
use super::walk::key_of;
use crate::parallel::{Loop, ParallelSlice};
use crate::product::centre::Centre;
use crate::product::cpu::convert;
use crate::random::{Random, gather};
use crate::shared::own_with_room;
use crate::vectors::{VectorSlice, with_components};
use crate::{Metric, Result, host_memory};

/// Number of vectors on which shifts and scale depend.
const SAMPLE: usize = 1024;
/// Seed of the sample.
const SAMPLE_SEED: u64 = 0x5EED_C0DE;
/// Scales that are tried, and the ratio of one to the next.
const SCALES: i32 = 24;
const RATIO: f64 = 1.1;
/// Smallest ratio of a distance between neighbours to the error of codes.
const FINE: f64 = 40.0;
/// Share of the neighbours that may be nearer.
const COARSE_SHARE: f64 = 0.05;
/// Rows that may be outside when codes are fitted. Strays have edges by their clamped codes; more of them would be a
/// class of their own.
const STRAYS: u64 = 16;
/// Codes are fitted again when more than one in this number of rows is outside.
const ROWS_AN_OUTSIDE_ONE: u64 = 8;
/// Codes are fitted again when more than one in this number of rows is newer than the codes.
const ROWS_A_NEW_ONE: usize = 2;

/// How vectors become codes.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Coder {
    metric: Metric,
    /// Shift of each component, which is subtracted from the component.
    pub(super) shifts: Vec<f32>,
    /// Codes in a unit of a component; finite and above 0.
    pub(super) scale: f32,
    /// Greatest sum of the squares of [`excess`] of a vector that is not outside.
    pub(super) limit: u64,
}

/// The vectors of an index as codes.
#[derive(Debug, Clone)]
pub(super) struct Codes {
    pub(super) coder: Arc<Coder>,
    /// Shared with the codes of snapshots until one of them changes.
    rows: Arc<Vec<i8>>,
    of_rows: Encoded,
    /// Number of rows that were encoded after the fit.
    since: usize,
}

/// Statistics of encoded rows.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Encoded {
    /// Number of rows that are outside. A replaced row counts until all are encoded again.
    pub(super) outside: u64,
    /// Greatest sum of the squares of a row's codes.
    pub(super) greatest_square: u32,
}

impl Encoded {
    /// Adds the statistics of further rows.
    fn add(&mut self, more: Encoded) {
        self.outside += more.outside;
        self.greatest_square = self.greatest_square.max(more.greatest_square);
    }
}

/// The places of `SAMPLE` of `count` rows, ascending: a random one of each of as many equal parts. All if there are
/// fewer.
pub(super) fn sample(count: usize) -> Vec<usize> {
    if count <= SAMPLE {
        return (0..count).collect();
    }
    let mut random = Random::new(SAMPLE_SEED);
    let parts = (0..SAMPLE).map(|part| part * count / SAMPLE..(part + 1) * count / SAMPLE);
    parts.map(|part| part.start + random.below(part.len())).collect()
}

impl Coder {
    /// The coder with these numbers; `None` if no [`fit`](Codes::fit) gives them.
    pub(super) fn new(metric: Metric, shifts: Vec<f32>, scale: f32, limit: u64) -> Option<Self> {
        let right = scale > 0.0 && scale.is_finite() && shifts.iter().all(|shift| shift.is_finite());
        right.then_some(Self { metric, shifts, scale, limit })
    }

    /// Calls `with` for each of these vectors, which have a component for each shift, with its number, its components
    /// in units of codes, and the place of its codes. O(vectors · dim).
    fn encode(
        &self,
        vectors: VectorSlice<'_>,
        codes: &mut [i8],
        of_queries: bool,
        with: impl Fn(usize, &[f32], &[i8]) + Sync,
    ) {
        let dim = vectors.dim();
        let own_scale = of_queries && self.scale_of_queries() == 0.0;
        with_components!(vectors, components: T => {
            let rows = components.par_chunks_exact(dim).zip(codes.par_chunks_exact_mut(dim)).enumerate();
            rows.for_each_init(Vec::new, |floats: &mut Vec<f32>, (number, (row, codes))| {
                floats.resize(dim, 0.0);
                convert::<T>(row, floats);
                normalise(self.metric, floats);
                if own_scale {
                    let greatest = floats.iter().fold(0.0f32, |greatest, x| greatest.max(x.abs()));
                    floats.iter_mut().for_each(|x| *x = if greatest == 0.0 { 0.0 } else { *x / greatest * MOST });
                } else {
                    floats.iter_mut().zip(&self.shifts).for_each(|(x, &shift)| *x = (*x - shift) * self.scale);
                }
                codes.iter_mut().zip(floats.iter()).for_each(|(code, &x)| *code = code_of(x));
                with(number, floats, codes);
            });
        });
    }

    /// Writes the codes of these rows. O(rows · dim).
    fn encode_rows(&self, rows: VectorSlice<'_>, codes: &mut [i8]) -> Encoded {
        let (outside, greatest) = (AtomicU64::new(0), AtomicU64::new(0));
        self.encode(rows, codes, false, |_, scaled, codes| {
            if self.is_outside(scaled) {
                outside.fetch_add(1, Ordering::Relaxed);
            }
            // The tolerance of products depends on it; that of distances does not.
            if self.metric.favors_length() {
                let square = codes.iter().map(|&code| i64::from(code) * i64::from(code)).sum::<i64>();
                greatest.fetch_max(square as u64, Ordering::Relaxed);
            }
        });
        let greatest_square = u32::try_from(greatest.into_inner()).unwrap_or(u32::MAX);
        Encoded { outside: outside.into_inner(), greatest_square }
    }

    /// The codes of these queries, and of each whether it is outside.
    ///
    /// # Errors
    /// [`Error::OutOfHostMemory`](crate::Error::OutOfHostMemory).
    pub(super) fn encoded_queries(&self, queries: VectorSlice<'_>) -> Result<(Vec<i8>, Vec<bool>)> {
        let mut codes = host_memory::zeroed(queries.len() * queries.dim())?;
        let mut outside: Vec<AtomicU64> = host_memory::with_room(queries.len())?;
        outside.resize_with(queries.len(), AtomicU64::default);
        self.encode(queries, &mut codes, true, |query, scaled, _| {
            outside[query].store(self.is_outside(scaled).into(), Ordering::Relaxed);
        });
        Ok((codes, outside.into_iter().map(|outside| outside.into_inner() != 0).collect()))
    }

    /// Whether codes cannot stand for a vector with these components, in units of codes.
    fn is_outside(&self, scaled: &[f32]) -> bool {
        // Floats without a sign order as their bits. Hardly any vector has a component beyond the range.
        let greatest = scaled.iter().fold(0, |greatest: u32, x| greatest.max(x.to_bits() & (u32::MAX >> 1)));
        if f32::from_bits(greatest) < MOST + 1.0 {
            return false;
        }
        let square = |&x: &f32| u64::from(excess(x)) * u64::from(excess(x));
        scaled.iter().map(square).fold(0, u64::saturating_add) > self.limit
    }

    /// Whether codes cannot stand for a row. `scratch` is memory.
    pub(super) fn is_row_outside(&self, rows: VectorSlice<'_>, row: usize, scratch: &mut Vec<f32>) -> bool {
        scratch.resize(rows.dim(), 0.0);
        with_components!(rows.part(row..row + 1), row: T => convert::<T>(row, scratch));
        normalise(self.metric, scratch);
        scratch.iter_mut().zip(&self.shifts).for_each(|(x, &shift)| *x = (*x - shift) * self.scale);
        self.is_outside(scratch)
    }

    /// Codes of a query in a unit of a component; 0 if each query has a scale of its own.
    pub(super) fn scale_of_queries(&self) -> f32 {
        if self.metric.favors_length() { 0.0 } else { self.scale }
    }

    /// The metric by which walks compare codes.
    pub(super) fn metric_of_codes(&self) -> Metric {
        if self.metric.favors_length() { Metric::InnerProduct } else { Metric::L2 }
    }
}

/// The code of a component in units of codes.
#[inline(always)]
fn code_of(x: f32) -> i8 {
    (x.clamp(-MOST, MOST) + ROUNDER).to_bits() as i8
}

/// The sample of the vectors to which codes are fitted.
struct Fit {
    metric: Metric,
    rows: Vec<Vec<f32>>,
    shifts: Vec<f32>,
    /// Distances to neighbours above 0, ascending.
    distances: Vec<f64>,
}

impl Fit {
    fn new(metric: Metric, vectors: VectorSlice<'_>, sample: &[usize], last: impl Fn(usize) -> Option<u32>) -> Self {
        let dim = vectors.dim();
        let vector = |number: usize| {
            let mut floats = vec![0.0; dim];
            with_components!(vectors.part(number..number + 1), row: T => convert::<T>(row, &mut floats));
            normalise(metric, &mut floats);
            floats
        };
        let rows: Vec<Vec<f32>> = sample.iter().map(|&number| vector(number)).collect();
        let shifts = if metric.favors_length() {
            vec![0.0; dim]
        } else {
            let mut centre = Centre::default();
            rows.iter().for_each(|row| centre.add_row(row, 1.0));
            centre.mean().map(|mean| mean as f32).collect()
        };
        let distances = sample.iter().zip(&rows).filter_map(|(&number, row)| {
            let other = vector(last(number)? as usize);
            let square = |(x, y): (&f32, &f32)| (f64::from(*x) - f64::from(*y)).powi(2);
            Some(row.iter().zip(&other).map(square).sum::<f64>().sqrt())
        });
        // Equal vectors have equal codes.
        let mut distances: Vec<f64> = distances.filter(|&distance| distance > 0.0).collect();
        distances.sort_unstable_by(f64::total_cmp);
        Fit { metric, rows, shifts, distances }
    }

    fn deviations(&self) -> impl Iterator<Item = f32> {
        self.rows.iter().flat_map(|row| row.iter().zip(&self.shifts).map(|(x, shift)| x - shift))
    }

    /// The greatest deviation from the shifts in the sample.
    fn greatest(&self) -> f32 {
        self.deviations().fold(0.0f32, |most, x| most.max(x.abs()))
    }

    /// The coder with the best of some scales: the first one has room for deviations of `greatest`. `None` if its codes
    /// are too coarse.
    fn coder(&self, greatest: f32, scales: i32) -> Option<Coder> {
        let dim = self.shifts.len();
        let error = |scale: f32| {
            let square = |x: f32| (f64::from(x) - f64::from(code_of(x * scale)) / f64::from(scale)).powi(2);
            self.deviations().map(square).sum::<f64>() / (self.rows.len() * dim) as f64
        };
        let scale = |power: i32| (f64::from(MOST) / f64::from(greatest) * RATIO.powi(power)) as f32;
        let scales: Vec<f32> = (0..scales).map(scale).collect();
        let mut errors = vec![0.0; scales.len()];
        errors.par_iter_mut().zip(scales.par_iter()).for_each(|(to, &scale)| *to = error(scale));
        let errors = errors.into_iter().zip(scales).filter(|(error, _)| error.is_finite());
        let (error, scale) = errors.min_by(|a, b| a.0.total_cmp(&b.0))?;
        let coarse = (COARSE_SHARE * self.distances.len() as f64) as usize;
        // The mean squared error at which codes are still fine.
        let most = self.distances.get(coarse).map_or(f64::INFINITY, |distance| (distance / FINE).powi(2) / 2.0);
        if error > most {
            return None;
        }
        let limit = dim as f64 * most * f64::from(scale).powi(2);
        Coder::new(self.metric, self.shifts.clone(), scale, (limit as u64).max(1))
    }
}

impl Codes {
    /// Codes of vectors; `None` if they are too coarse for them. They depend on the vectors of `sample`; `last` is the
    /// neighbour that the last edge of one of these could lead to: the `degree`-th nearest. O(vectors · dim).
    ///
    /// # Errors
    /// [`Error::OutOfHostMemory`](crate::Error::OutOfHostMemory).
    pub(super) fn fit(
        metric: Metric,
        vectors: VectorSlice<'_>,
        sample: &[usize],
        last: impl Fn(usize) -> Option<u32>,
    ) -> Result<Option<Self>> {
        let fit = Fit::new(metric, vectors, sample, last);
        let Some(coder) = fit.coder(fit.greatest(), SCALES) else { return Ok(None) };
        let codes = Self::of(Arc::new(coder), vectors)?;
        let strays = if metric.favors_length() { 0 } else { STRAYS };
        if codes.of_rows.outside <= strays {
            return Ok(Some(codes));
        }
        // A class of which the sample has too few.
        let Some(coder) = fit.coder(greatest_deviation(metric, vectors, &fit.shifts), 1) else { return Ok(None) };
        Self::of(Arc::new(coder), vectors).map(Some)
    }

    /// The codes of all vectors of an index.
    ///
    /// # Errors
    /// [`Error::OutOfHostMemory`](crate::Error::OutOfHostMemory).
    pub(super) fn of(coder: Arc<Coder>, vectors: VectorSlice<'_>) -> Result<Self> {
        let mut rows = host_memory::zeroed(vectors.len() * vectors.dim())?;
        let of_rows = coder.encode_rows(vectors, &mut rows);
        Ok(Self { coder, rows: Arc::new(rows), of_rows, since: 0 })
    }

    /// Makes the codes those of `vectors`, of which the first `kept` were there before, except the listed ones. `new`
    /// is the number of vectors that are new.
    ///
    /// # Errors
    /// [`Error::OutOfHostMemory`](crate::Error::OutOfHostMemory).
    pub(super) fn update(
        &mut self,
        vectors: VectorSlice<'_>,
        kept: usize,
        changed: impl Iterator<Item = usize>,
        new: usize,
    ) -> Result<()> {
        let (count, dim) = (vectors.len(), vectors.dim());
        let (room, kept) = ((count * dim).saturating_sub(self.rows.len()), kept.min(count));
        let rows = own_with_room(&mut self.rows, room)?;
        rows.resize(count * dim, 0);
        if kept == 0 {
            self.of_rows = Encoded::default();
        }
        let new_codes = &mut rows[kept * dim..];
        self.of_rows.add(self.coder.encode_rows(vectors.part(kept..count), new_codes));
        let changed: Vec<usize> = changed.filter(|&row| row < kept).collect();
        let mut codes = host_memory::zeroed(changed.len() * dim)?;
        with_components!(vectors, components: T => {
            let listed = gather::<T>(components, dim, &changed)?;
            self.of_rows.add(self.coder.encode_rows(VectorSlice::of(&listed, dim), &mut codes));
        });
        for (&row, codes) in changed.iter().zip(codes.chunks_exact(dim)) {
            rows[row * dim..][..dim].copy_from_slice(codes);
        }
        self.since += new;
        Ok(())
    }

    /// The codes of all rows, one row after the other.
    pub(super) fn rows(&self) -> &[i8] {
        &self.rows
    }

    /// As [`rows`](Self::rows), for one who gives up these codes.
    pub(super) fn into_rows(self) -> Arc<Vec<i8>> {
        self.rows
    }

    /// Number of components of a row.
    pub(super) fn dim(&self) -> usize {
        self.coder.shifts.len()
    }

    /// The same codes in other memory.
    pub(super) fn with_rows(&self, rows: Vec<i8>) -> Self {
        Codes { coder: Arc::clone(&self.coder), rows: Arc::new(rows), of_rows: self.of_rows, since: self.since }
    }

    /// Whether others have the codes too.
    pub(super) fn are_shared(&self) -> bool {
        Arc::strong_count(&self.rows) > 1
    }

    /// Whether the vectors have changed so much that codes should be fitted again.
    pub(super) fn are_old(&self) -> bool {
        let rows = self.rows.len() / self.coder.shifts.len();
        self.of_rows.outside > STRAYS.max(rows as u64 / ROWS_AN_OUTSIDE_ONE) || self.since > rows / ROWS_A_NEW_ONE
    }

    /// Whether codes can stand for no query: an inner product with a row that is outside is greater than its code says.
    pub(super) fn for_no_query(&self) -> bool {
        self.coder.metric.favors_length() && self.of_rows.outside > 0
    }

    /// Statistics of the encoded rows.
    pub(super) fn of_rows(&self) -> Encoded {
        self.of_rows
    }

    /// How far codes may mislead the walk of a query.
    pub(super) fn tolerance(&self, query: &Query) -> Tolerance {
        let metric = self.coder.metric_of_codes().of_kernel();
        Tolerance::new(metric, query.square_of_codes(), self.of_rows.greatest_square)
    }

    /// Number of rows.
    pub(super) fn len(&self) -> usize {
        self.rows.len() / self.coder.shifts.len()
    }

    /// The distances of walks among the codes.
    pub(super) fn distance(&self) -> WalkDistance<'_> {
        WalkDistance::new(self.coder.metric_of_codes(), VectorSlice::of(&self.rows, self.coder.shifts.len()))
    }

    /// Bytes of host memory.
    pub(super) fn bytes(&self) -> u64 {
        (self.rows.capacity() + self.coder.shifts.capacity() * size_of::<f32>()) as u64
    }
}

/// The greatest deviation of a component of these vectors from its shift. O(vectors · dim).
fn greatest_deviation(metric: Metric, vectors: VectorSlice<'_>, shifts: &[f32]) -> f32 {
    let dim = vectors.dim();
    // Floats from 0 on order as their bits.
    let greatest = AtomicU64::new(0);
    with_components!(vectors, components: T => {
        components.par_chunks_exact(dim).for_each_init(Vec::new, |floats: &mut Vec<f32>, row| {
            floats.resize(dim, 0.0);
            convert::<T>(row, floats);
            normalise(metric, floats);
            let of_row = floats.iter().zip(shifts).fold(0.0f32, |most, (x, shift)| most.max((x - shift).abs()));
            greatest.fetch_max(of_row.to_bits().into(), Ordering::Relaxed);
        });
    });
    f32::from_bits(greatest.into_inner() as u32)
}

/// The distances of walks among rows.
#[derive(Clone, Copy)]
pub(super) struct Distances<'a> {
    /// Among codes, if there are any.
    pub(super) fast: WalkDistance<'a>,
    /// Among the vectors themselves, which decide where codes cannot.
    pub(super) exact: WalkDistance<'a>,
    pub(super) codes: Option<&'a Codes>,
}

impl Distances<'_> {
    /// Whether codes cannot order the beam of a walk of this width for a query, so that the walk must go by vectors.
    pub(super) fn cannot_order(&self, beam: &[u64], width: usize, query: &Query) -> bool {
        let (Some(codes), Some(first), Some(last)) = (self.codes, beam.first(), beam.last()) else { return false };
        beam.len() == width && codes.tolerance(query).ties(key_of(*first), key_of(*last))
    }

    /// Whether the nearest `count` nodes of a beam are equally near by what codes tell. Edges that are chosen among
    /// such nodes lead to these only.
    pub(super) fn cannot_tell(&self, beam: &[u64], count: usize, query: &Query) -> bool {
        let nearest = beam.first().zip(beam.get(count.saturating_sub(1)));
        self.codes
            .zip(nearest)
            .is_some_and(|(codes, (first, last))| codes.tolerance(query).within(key_of(*first), key_of(*last)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_rounded_and_clamped() {
        let coder = Coder::new(Metric::L2, vec![0.0, 10.0, 0.0], 2.0, 100).unwrap();
        let rows = [0.25, 10.75, 80.0, -0.75, 9.5, -1e30, f32::MAX, -f32::MAX, 63.4];
        let (codes, outside) = coder.encoded_queries(VectorSlice::of(&rows, 3)).unwrap();
        // 0.5 and −1.5 are ties.
        assert_eq!(codes, [0, 2, 127, -2, -1, -127, 127, -127, 127]);
        // 80 is 33 codes beyond the range, and 33² > 100.
        assert_eq!(outside, [true, true, true]);
        // 10² is not more than 100, and 10² + 1² is.
        let near = [68.5f32, 10.0, 0.0, 68.5, 10.0, -64.0, 63.4, 10.0, 0.0];
        assert_eq!(coder.encoded_queries(VectorSlice::of(&near, 3)).unwrap().1, [false, true, false]);
        let mut of_rows = [0; 9];
        assert_eq!(coder.encode_rows(VectorSlice::of(&rows, 3), &mut of_rows).outside, 3);
        assert_eq!(of_rows[..], codes);
        for size in [1.0, 1e22f32, 1e-30] {
            let cosine = Coder::new(Metric::Cosine, vec![0.0; 2], 100.0, 0).unwrap();
            let vectors = [3e5f32 * size, 4e5 * size, 0.0, 0.0];
            assert_eq!(cosine.encoded_queries(VectorSlice::of(&vectors, 2)).unwrap().0, [60, 80, 0, 0]);
        }
        for (shift, scale) in [(0.0, 0.0), (0.0, -1.0), (0.0, f32::INFINITY), (f32::NAN, 1.0), (f32::INFINITY, 1.0)] {
            assert_eq!(Coder::new(Metric::L2, vec![shift], scale, 0), None);
        }
    }

    /// Queries for the inner product have a scale of their own, rows have that of the coder.
    #[test]
    fn inner_products_do_not_depend_on_the_size_of_a_query() {
        let coder = Coder::new(Metric::InnerProduct, vec![0.0; 3], 2.0, 0).unwrap();
        for size in [1e-38f32, 1e-3, 1.0, 1e30] {
            let queries = [0.5 * size, -size, 0.1 * size];
            let (codes, outside) = coder.encoded_queries(VectorSlice::of(&queries, 3)).unwrap();
            assert_eq!((&codes[..], &outside[..]), (&[64, -127, 13][..], &[false][..]), "{size}");
        }
        assert_eq!(coder.encoded_queries(VectorSlice::of(&[0.0f32; 3], 3)).unwrap(), (vec![0; 3], vec![false]));
        let mut codes = [0; 6];
        let found = coder.encode_rows(VectorSlice::of(&[0.5f32, -1.0, 3.0, 0.0, 1.0, 100.0], 3), &mut codes);
        assert_eq!((codes, found.outside, found.greatest_square), ([1, -2, 6, 0, 2, 127], 1, 127 * 127 + 4));
    }

    #[test]
    fn samples_are_random_and_of_all_rows() {
        assert_eq!(sample(4), [0, 1, 2, 3]);
        assert_eq!(sample(SAMPLE + 1).len(), SAMPLE);
        let of_many = sample(10_240);
        assert!(of_many.len() == SAMPLE && of_many.is_sorted_by(|a, b| a < b));
        for period in [2, 7, 10] {
            let of_class = |class| of_many.iter().filter(|&row| row % period == class).count();
            assert!((0..period).all(|class| of_class(class) > SAMPLE / period / 2), "{period}");
        }
    }

    /// Codes of 400 vectors on a line, `step` apart, each with the next as neighbour, and one vector far away.
    fn fitted(step: f32, far: f32) -> Option<Codes> {
        let mut rows: Vec<f32> = (0..400).map(|at| at as f32 * step).collect();
        rows.push(far);
        let all: Vec<usize> = (0..401).collect();
        Codes::fit(Metric::L2, VectorSlice::of(&rows, 1), &all, |at| Some((at as u32 + 1).min(400))).unwrap()
    }

    #[test]
    fn vectors_that_codes_cannot_tell_apart_have_none() {
        // 400 places and 255 codes.
        assert!(fitted(1.0, 0.0).is_none());
        // All are equal but one.
        assert!(fitted(0.0, 5.0).is_some());
        let empty = Codes::fit(Metric::L2, VectorSlice::of::<f32>(&[], 3), &[], |_| None);
        assert!(empty.unwrap().is_none());
    }

    /// 2,000 vectors, 40 of which are far away and in no sample: the codes reach them, or there are none.
    #[test]
    fn a_class_outside_of_the_sample_is_not_clamped() {
        for (far, metric) in [(1.5, Metric::L2), (1.0, Metric::InnerProduct), (1e6, Metric::L2)] {
            let mut random = Random::new(3);
            let row = |at: usize| if at < 40 { far } else { 0.0 };
            let rows: Vec<f32> = (0..2000 * 4).map(|at| row(at / 4) + random.unit() as f32).collect();
            let sample: Vec<usize> = (40..1000).collect();
            let codes = Codes::fit(metric, VectorSlice::of(&rows, 4), &sample, |at| Some((at as u32 + 31) % 2000));
            match codes.unwrap() {
                Some(codes) => assert!(codes.of_rows.outside == 0 && !codes.for_no_query(), "{far} {metric}"),
                None => assert!(far == 1e6),
            }
        }
    }

    /// Codes are fitted again when an eighth of the rows is outside, or half of them is new.
    #[test]
    fn changes_make_codes_old() {
        let mut random = Random::new(4);
        let mut rows: Vec<f32> = (0..2000 * 8).map(|_| random.unit() as f32).collect();
        let sample: Vec<usize> = (0..1000).collect();
        let last = |at: usize| Some((at as u32 + 31) % 2000);
        let fresh = Codes::fit(Metric::L2, VectorSlice::of(&rows, 8), &sample, last).unwrap().unwrap();
        assert!(!fresh.are_old());
        for (more, far, old) in [(200, 5.0, false), (300, 5.0, true), (1900, 0.0, false), (2100, 0.0, true)] {
            rows.truncate(2000 * 8);
            rows.extend((0..more * 8).map(|_| far + random.unit() as f32));
            let mut codes = fresh.clone();
            codes.update(VectorSlice::of(&rows, 8), 2000, [].into_iter(), more).unwrap();
            assert_eq!(codes.are_old(), old, "{more} at {far}: {:?}", codes.of_rows);
        }
    }
}
