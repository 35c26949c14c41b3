//! Floats as signed bytes, by which walks go: a quarter of the bytes of f32, and distances of integers.
//!
//! # Definition
//! Component x_j has the code `round((x_j − shift_j) · scale)`, clamped to −127 ..= 127, in f32 with ties to even. For cosine, x is first divided
//! by its norm (`distance.rs`, step 0). The distances of walks are those of the codes: squared L2 for L2 and cosine, because
//! ‖x − y‖² = 2 − 2 cos(x, y) for vectors of norm 1, and the inner product for the inner product, whose shifts are 0.
//!
//! The best of a walk's beam get canonical distances from the vectors themselves, so codes affect which vectors are found and never their
//! distances.
//!
//! # Choice
//! [`Codes::fit`] takes the mean of a sample as shift, and of some scales the one with the least mean squared error over the sample. A far
//! component is then clamped if that makes the others finer.
//!
//! An error e of mean square m in each component changes the distance d of two vectors, whose codes have independent errors, by about √(2m) in
//! one direction and d² by 2 d √(2m). If that is more than a twentieth of d², walks would confuse near vectors: then there are no codes, and walks
//! compare the vectors. d is the distance to the neighbour that the last edge could lead to, in the sample.
//!
//! 1,000,000 clustered vectors of 128 components, degree 32, have d ≈ 8 and √(2m) = 0.02.

use std::collections::HashMap;
use std::sync::Arc;

use warpann_kernels::proximity::encode::{MOST, ROUNDER};

use super::GraphIndex;
use super::distance::{WalkDistance, square};
use crate::parallel::{Loop, ParallelSlice};
use crate::product::cpu::convert;
use crate::shared::own_with_room;
use crate::vectors::{VectorSlice, with_components};
use crate::{Element, ElementType, Metric, NONE, Result, host_memory};

/// Number of vectors on which shifts and scale depend.
const SAMPLE: usize = 1024;
/// Scales that are tried, and the ratio of one to the next.
const SCALES: i32 = 24;
const RATIO: f64 = 1.1;
/// Smallest ratio of a distance between neighbours to the error of codes.
const FINE: f64 = 40.0;
/// Share of the neighbours that may be nearer.
const COARSE_SHARE: f64 = 0.05;

/// The numbers of the vectors, of `count`, on which the codes depend.
pub(super) fn sample(count: usize) -> impl Iterator<Item = usize> {
    let sample = SAMPLE.min(count);
    (0..sample).map(move |at| (at as u128 * count as u128 / sample as u128) as usize)
}

/// How vectors become codes.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Coder {
    metric: Metric,
    /// What is subtracted from each component.
    pub(super) shifts: Vec<f32>,
    /// Codes in a unit of a component; finite and above 0.
    pub(super) scale: f32,
}

/// The vectors of an index as codes.
#[derive(Debug, Clone)]
pub(super) struct Codes {
    pub(super) coder: Arc<Coder>,
    /// Shared with the codes of snapshots until one of them changes.
    rows: Arc<Vec<i8>>,
}

impl Coder {
    /// The coder with these numbers; `None` if no [`fit`](Codes::fit) gives them.
    pub(super) fn new(metric: Metric, shifts: Vec<f32>, scale: f32) -> Option<Self> {
        let right = scale > 0.0 && scale.is_finite() && shifts.iter().all(|shift| shift.is_finite());
        right.then_some(Self { metric, shifts, scale })
    }

    /// Writes the codes of these vectors, which have a component for each shift. O(vectors · dim).
    pub(super) fn encode(&self, vectors: VectorSlice<'_>, codes: &mut [i8]) {
        let dim = vectors.dim();
        with_components!(vectors, components: T => {
            let rows = components.par_chunks_exact(dim).zip(codes.par_chunks_exact_mut(dim));
            rows.for_each_init(Vec::new, |floats: &mut Vec<f32>, (row, codes)| {
                floats.resize(dim, 0.0);
                convert::<T>(row, floats);
                normalise(self.metric, floats);
                for ((code, &x), &shift) in codes.iter_mut().zip(floats.iter()).zip(&self.shifts) {
                    *code = code_of((x - shift) * self.scale);
                }
            });
        });
    }

    /// The codes of these vectors.
    ///
    /// # Errors
    /// [`Error::OutOfHostMemory`](crate::Error::OutOfHostMemory).
    pub(super) fn encoded(&self, vectors: VectorSlice<'_>) -> Result<Vec<i8>> {
        let mut codes = host_memory::zeroed(vectors.len() * vectors.dim())?;
        self.encode(vectors, &mut codes);
        Ok(codes)
    }

    /// The distances of walks among codes.
    pub(super) fn distance<'a>(&self, codes: &'a [i8]) -> WalkDistance<'a> {
        WalkDistance::new(self.metric_of_codes(), VectorSlice::of(codes, self.shifts.len()))
    }

    /// The metric by which walks compare codes.
    pub(super) fn metric_of_codes(&self) -> Metric {
        match self.metric {
            Metric::L2 | Metric::Cosine => Metric::L2,
            Metric::InnerProduct => Metric::InnerProduct,
        }
    }
}

/// The code of a component in units of codes.
#[inline(always)]
fn code_of(x: f32) -> i8 {
    (x.clamp(-MOST, MOST) + ROUNDER).to_bits() as i8
}

fn normalise(metric: Metric, vector: &mut [f32]) {
    if metric.divides_by_norms() {
        let square = square(vector);
        if square != 0.0 {
            let norm = square.sqrt();
            vector.iter_mut().for_each(|x| *x /= norm);
        }
    }
}

impl Codes {
    /// Codes of vectors; `None` if they are too coarse for them. `last` is the neighbour that the last edge of a vector of the [`sample`] could lead
    /// to: the `degree`-th nearest.
    ///
    /// # Errors
    /// [`Error::OutOfHostMemory`](crate::Error::OutOfHostMemory).
    pub(super) fn fit(
        metric: Metric,
        vectors: VectorSlice<'_>,
        last: impl Fn(usize) -> Option<u32>,
    ) -> Result<Option<Self>> {
        let dim = vectors.dim();
        let vector = |number: usize| {
            let mut floats = vec![0.0; dim];
            with_components!(vectors.part(number..number + 1), row: T => convert::<T>(row, &mut floats));
            normalise(metric, &mut floats);
            floats
        };
        let sample: Vec<(usize, Vec<f32>)> = sample(vectors.len()).map(|number| (number, vector(number))).collect();
        let shifts = match metric {
            Metric::InnerProduct => vec![0.0; dim],
            Metric::L2 | Metric::Cosine => {
                let mean = |j| sample.iter().map(|(_, row)| f64::from(row[j])).sum::<f64>() / sample.len() as f64;
                (0..dim).map(|j| mean(j) as f32).collect()
            }
        };
        let deviations = || sample.iter().flat_map(|(_, row)| row.iter().zip(&shifts).map(|(x, shift)| x - shift));
        let most = deviations().fold(0.0f32, |most, x| most.max(x.abs()));
        let error = |scale: f32| {
            let square = |x: f32| (f64::from(x) - f64::from(code_of(x * scale)) / f64::from(scale)).powi(2);
            deviations().map(square).sum::<f64>() / (sample.len() * dim) as f64
        };
        let scales = (0..SCALES).map(|power| (f64::from(MOST) / f64::from(most) * RATIO.powi(power)) as f32);
        let errors = scales.map(|scale| (error(scale), scale)).filter(|(error, _)| error.is_finite());
        let Some((error, scale)) = errors.min_by(|a, b| a.0.total_cmp(&b.0)) else { return Ok(None) };
        let Some(coder) = Coder::new(metric, shifts, scale) else { return Ok(None) };

        let distances = sample.iter().filter_map(|(number, row)| {
            let other = vector(last(*number)? as usize);
            let square = |(x, y): (&f32, &f32)| (f64::from(*x) - f64::from(*y)).powi(2);
            Some(row.iter().zip(&other).map(square).sum::<f64>().sqrt())
        });
        // Equal vectors have equal codes.
        let distances: Vec<f64> = distances.filter(|&distance| distance > 0.0).collect();
        let coarse = distances.iter().filter(|&&distance| distance < FINE * (2.0 * error).sqrt()).count();
        if coarse as f64 > COARSE_SHARE * distances.len() as f64 {
            return Ok(None);
        }
        Self::of(Arc::new(coder), vectors).map(Some)
    }

    /// The codes of all vectors of an index.
    ///
    /// # Errors
    /// [`Error::OutOfHostMemory`](crate::Error::OutOfHostMemory).
    pub(super) fn of(coder: Arc<Coder>, vectors: VectorSlice<'_>) -> Result<Self> {
        let rows = Arc::new(coder.encoded(vectors)?);
        Ok(Self { coder, rows })
    }

    /// Makes the codes those of `vectors`, of which the first `kept` were there before, except the listed ones.
    ///
    /// # Errors
    /// [`Error::OutOfHostMemory`](crate::Error::OutOfHostMemory).
    pub(super) fn update(
        &mut self,
        vectors: VectorSlice<'_>,
        kept: usize,
        changed: impl Iterator<Item = usize>,
    ) -> Result<()> {
        let (count, dim) = (vectors.len(), vectors.dim());
        let (room, kept) = ((count * dim).saturating_sub(self.rows.len()), kept.min(count));
        let rows = own_with_room(&mut self.rows, room)?;
        rows.resize(count * dim, 0);
        self.coder.encode(vectors.part(kept..count), &mut rows[kept * dim..]);
        for row in changed.filter(|&row| row < kept) {
            self.coder.encode(vectors.part(row..row + 1), &mut rows[row * dim..(row + 1) * dim]);
        }
        Ok(())
    }

    /// The distances of walks among the codes.
    pub(super) fn distance(&self) -> WalkDistance<'_> {
        self.coder.distance(&self.rows)
    }

    /// Bytes of host memory.
    pub(super) fn bytes(&self) -> u64 {
        (self.rows.capacity() + self.coder.shifts.capacity() * size_of::<f32>()) as u64
    }
}

impl<T: Element> GraphIndex<T> {
    /// Codes of `rows`, those of the flat index, if walks may go by codes and these are fine enough: see [`Codes::fit`].
    pub(super) fn fitted_codes(&self, rows: &[T]) -> Result<Option<Codes>> {
        if !self.builder.codes || matches!(T::TYPE, ElementType::U8 | ElementType::I8) {
            return Ok(None);
        }
        let neighbours = self.far_neighbours(rows)?;
        Codes::fit(self.metric(), VectorSlice::of(rows, self.dim()), |row| *neighbours.get(&row)?)
    }

    /// The `degree`-th nearest neighbour of each row on which the codes depend, or the last if there are fewer. An exact search
    /// finds it.
    fn far_neighbours(&self, rows: &[T]) -> Result<HashMap<usize, Option<u32>>> {
        let (ids, dim, degree) = (self.flat.row_ids(), self.dim(), self.degree());
        let mut queries: Vec<T> = Vec::new();
        sample(ids.rows()).for_each(|row| queries.extend_from_slice(&rows[row * dim..][..dim]));
        let found = self.flat.search(&queries, degree + 1)?;
        let last = |(row, (found, _)): (usize, (&[u64], &[f32]))| {
            let others = found.iter().filter(|&&id| id != NONE && id != ids.id(row)).take(degree);
            (row, others.last().and_then(|&id| ids.find(id)).map(|row| row as u32))
        };
        Ok(sample(ids.rows()).zip(found.rows()).map(last).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_rounded_and_clamped() {
        let coder = Coder::new(Metric::L2, vec![0.0, 10.0, 0.0], 2.0).unwrap();
        let rows = [0.25, 10.75, 80.0, -0.75, 9.5, -1e30, f32::MAX, -f32::MAX, 63.4];
        let codes = coder.encoded(VectorSlice::of(&rows, 3)).unwrap();
        // 0.5 and −1.5 are ties.
        assert_eq!(codes, [0, 2, 127, -2, -1, -127, 127, -127, 127]);
        let cosine = Coder::new(Metric::Cosine, vec![0.0; 2], 100.0).unwrap();
        assert_eq!(cosine.encoded(VectorSlice::of(&[3e5f32, 4e5, 0.0, 0.0], 2)).unwrap(), [60, 80, 0, 0]);
        for (shift, scale) in [(0.0, 0.0), (0.0, -1.0), (0.0, f32::INFINITY), (f32::NAN, 1.0), (f32::INFINITY, 1.0)] {
            assert_eq!(Coder::new(Metric::L2, vec![shift], scale), None);
        }
    }

    /// Codes of 400 vectors on a line, `step` apart, each with the next as neighbour, and one vector far away.
    fn fitted(step: f32, far: f32) -> Option<Codes> {
        let mut rows: Vec<f32> = (0..400).map(|at| at as f32 * step).collect();
        rows.push(far);
        Codes::fit(Metric::L2, VectorSlice::of(&rows, 1), |at| Some((at as u32 + 1).min(400))).unwrap()
    }

    #[test]
    fn vectors_that_codes_cannot_tell_apart_have_none() {
        // 400 places and 255 codes.
        assert!(fitted(1.0, 0.0).is_none());
        // All are equal but one.
        assert!(fitted(0.0, 5.0).is_some());
        let empty = Codes::fit(Metric::L2, VectorSlice::of::<f32>(&[], 3), |_| None);
        assert!(empty.unwrap().is_none());
    }
}
