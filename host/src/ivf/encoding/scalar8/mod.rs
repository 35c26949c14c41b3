//! One byte for each component of the residual, or of the vector.
//!
//! ```text
//! train:  least_i, greatest_i of x_i - c_i over the training vectors; step_i = f32((greatest_i - least_i) / 255), the division in f64
//! code_i  = the whole part of ((x_i - c_i) - least_i) / step_i + 1/2, at least 0 and at most 255; 0 where step_i is 0
//! r_i     = f32(c_i + f32(least_i + f32(code_i * step_i)))
//! ```
//!
//! x is the transformed vector, and c the centroid of its list or zero. All operations are in f32, each rounded to
//! nearest, in the order of the formulas; none is fused. So CPU, emulator and GPU have the same r.
//!
//! # Residuals or vectors
//! Recall of the 10 nearest among all of 40,000 decoded vectors (64 components, 200 Gaussian clusters whose centres
//! have unit variance, 200 queries, one list for each cluster, CPU, 2026-11-23):
//!
//! | standard deviation within a cluster | codes of residuals | codes of vectors |
//! |---|---|---|
//! | 0.1 | 0.991 | 0.897 |
//! | 0.3 | 0.991 | 0.947 |
//! | 1.0 | 0.988 | 0.986 |
//!
//! So residuals are better where lists are small beside the whole set. Elsewhere vectors are: a centroid shifts each
//! list, so the range of all residuals can be the wider one. Training takes what has the smaller sum of step²/12, the
//! mean squared error of codes whose vectors are evenly spread over a step.
//!
//! Where all training values of a component are whole numbers within 255 of each other, the step is 1, and codes of
//! vectors lose nothing: vectors of bytes, SIFT descriptors and pixels stored as f32 are found as if they were whole.
//! With codes of vectors a scan has one term for each query instead of one for each pair of a query and a list
//! ([`warpann_kernels::ivf::code_queries`]).

mod gpu;

use std::sync::Arc;

use rayon::prelude::*;

use self::gpu::Scalar8Plan;
use crate::device::scratch::Layout;
use crate::ivf::encoding::codec::{Clamped, Codec, FileParts, Scheme, Trained, Training};
use crate::ivf::gpu::stored_plan::{ImageShape, StoredPlan};
use crate::pq::encode::Residuals;
use crate::validate::check_derived;
use crate::{ElementType, Result, host_memory};

/// Number of steps between the least and the greatest value of a component.
const STEPS: f32 = 255.0;
/// Smallest number of rows that one task codes.
const RUN: usize = 64;
/// Whole numbers up to this are exact in f32, and so are sums with codes.
const EXACT: f32 = 8_388_608.0;

/// [`Codec::form`] of codes of residuals.
pub(in crate::ivf) const RESIDUALS: u32 = 0;
/// [`Codec::form`] of codes of vectors.
pub(in crate::ivf) const VECTORS: u32 = 1;

/// The scheme of [`Encoding::Scalar8`](crate::ivf::Encoding::Scalar8), which has no parameters.
#[derive(Debug)]
pub(crate) struct Scalar8Scheme;

impl Scheme for Scalar8Scheme {
    fn name(&self) -> &'static str {
        "sq8"
    }

    fn check(&self, _: usize, _: ElementType) -> Result<()> {
        Ok(())
    }

    fn code_bytes(&self, dim: usize, _: ElementType) -> usize {
        dim
    }

    fn train(&self, training: Training<'_, '_>) -> Result<Trained> {
        let dim = training.rows.dim();
        let rows = training.normalised()?;
        let clustering = training.cluster(&training.kmeans.clone().labels(true), &rows, dim)?;
        let (centroids, labels) = (clustering.centroids, clustering.labels.unwrap_or_default());
        let mut residuals = host_memory::copied(&rows)?;
        residuals.par_chunks_exact_mut(dim).zip(&labels).for_each(|(row, &label)| {
            row.iter_mut().zip(&centroids[label as usize * dim..]).for_each(|(x, c)| *x -= c);
        });
        check_derived(&residuals, dim, "residual")?;
        let (of_residuals, of_vectors) = (Ranges::of(&residuals, dim, RESIDUALS), Ranges::of(&rows, dim, VECTORS));
        let codec = if of_vectors.error <= of_residuals.error {
            Scalar8Codec::new(&of_vectors.tables, VECTORS)
        } else {
            Scalar8Codec::new(&of_residuals.tables, RESIDUALS)
        };
        Ok(Trained { dim, centroids, codec: Arc::new(codec) })
    }

    fn greatest_form(&self) -> u32 {
        VECTORS
    }

    fn clamps(&self) -> bool {
        true
    }

    fn section_lengths(&self, dim: u64) -> Option<[u64; 2]> {
        Some([dim.checked_mul(2)?, 0])
    }

    fn codec(&self, file: FileParts<'_>) -> Result<Arc<dyn Codec>, &'static str> {
        let codec = Scalar8Codec::new(file.codebooks, file.form);
        let (_, steps) = codec.parts();
        if steps.iter().any(|&step| step < 0.0) {
            return Err("a step is negative");
        }
        Ok(Arc::new(codec))
    }
}

/// The ranges of components, in steps.
struct Ranges {
    /// The least value of each component, and then the step of each component: `dim` numbers of each. All numbers and
    /// all values that codes stand for are finite.
    tables: Vec<f32>,
    /// Twelve times the mean squared error of a vector, if values are evenly spread over a step.
    error: f64,
}

/// The values of a component over some rows.
#[derive(Clone, Copy)]
struct Seen {
    least: f32,
    greatest: f32,
    /// Whether all of them are whole numbers.
    whole: bool,
}

impl Seen {
    const NOTHING: Seen = Seen { least: f32::INFINITY, greatest: f32::NEG_INFINITY, whole: true };

    fn of(x: f32) -> Seen {
        Seen { least: x, greatest: x, whole: x.fract() == 0.0 }
    }

    fn and(self, other: Seen) -> Seen {
        let (least, greatest) = (self.least.min(other.least), self.greatest.max(other.greatest));
        Seen { least, greatest, whole: self.whole && other.whole }
    }

    /// Whether a step of 1 loses nothing.
    fn is_exact(self) -> bool {
        let fits = self.least.abs().max(self.greatest.abs()) <= EXACT && self.greatest - self.least <= STEPS;
        self.whole && fits && self.greatest > self.least
    }

    fn step(self) -> f32 {
        if self.is_exact() {
            return 1.0;
        }
        let mut step = ((f64::from(self.greatest) - f64::from(self.least)) / f64::from(STEPS)) as f32;
        // Near the end of the range of f32, rounding can make the greatest decoded value infinite.
        while !(self.least + STEPS * step).is_finite() {
            step = step.next_down();
        }
        step
    }
}

impl Ranges {
    /// The ranges of finite rows, which are residuals or vectors. Residuals are whole numbers by chance only.
    fn of(rows: &[f32], dim: usize, form: u32) -> Ranges {
        let none = || vec![Seen::NOTHING; dim];
        let join = |mut all: Vec<Seen>, more: &mut dyn Iterator<Item = Seen>| {
            all.iter_mut().zip(more).for_each(|(all, more)| *all = all.and(more));
            all
        };
        let mut seen = rows
            .par_chunks_exact(dim)
            .fold(none, |all, row| join(all, &mut row.iter().copied().map(Seen::of)))
            .reduce(none, |all, more| join(all, &mut more.into_iter()));
        seen.iter_mut().for_each(|seen| seen.whole &= form == VECTORS);
        let error = |seen: &Seen| if seen.is_exact() { 0.0 } else { f64::from(seen.step()).powi(2) };
        // Zeros of either sign have the same value, and a fold may read them in any order. Adding 0.0 gives all zeros
        // the same bits.
        let tables = seen.iter().map(|seen| seen.least + 0.0).chain(seen.iter().map(|seen| seen.step())).collect();
        Ranges { tables, error: seen.iter().map(error).sum() }
    }
}

/// The codec of codes that divide the range of each component.
#[derive(Debug)]
struct Scalar8Codec {
    /// Least values and steps as in [`Ranges::tables`], and then the share of the centroid in a vector: 1 or 0.
    tables: Vec<f32>,
    /// The zeros that stand in the place of a centroid, if codes are of vectors.
    zeros: Vec<f32>,
}

impl Scalar8Codec {
    fn new(ranges: &[f32], form: u32) -> Scalar8Codec {
        let of_vectors = form == VECTORS;
        let share = if of_vectors { 0.0 } else { 1.0 };
        let zeros = vec![0.0; if of_vectors { ranges.len() / 2 } else { 0 }];
        Scalar8Codec { tables: ranges.iter().copied().chain([share]).collect(), zeros }
    }

    /// The least value and the step of each component.
    fn parts(&self) -> (&[f32], &[f32]) {
        self.sections()[0].split_at(self.tables.len() / 2)
    }

    /// The vector to which codes of a list add: its centroid, or zeros.
    fn origin<'a>(&'a self, centroid: &'a [f32]) -> &'a [f32] {
        if self.zeros.is_empty() { centroid } else { &self.zeros }
    }
}

impl Codec for Scalar8Codec {
    fn encode(&self, rows: &[f32], residuals: Residuals<'_>) -> Result<Vec<u8>> {
        let (least, steps) = self.parts();
        let dim = least.len();
        let mut codes: Vec<u8> = host_memory::zeroed(rows.len())?;
        let rows = rows.par_chunks_exact(dim).zip(residuals.labels);
        codes.par_chunks_exact_mut(dim).zip(rows).with_min_len(RUN).for_each(|(codes, (row, &label))| {
            let origin = self.origin(&residuals.centroids[label as usize * dim..][..dim]);
            let values = row.iter().zip(origin).map(|(x, c)| x - c);
            for ((code, value), (least, step)) in codes.iter_mut().zip(values).zip(least.iter().zip(steps)) {
                // A cast saturates at 0 and 255, and converts NaN to 0.
                *code = if *step == 0.0 { 0 } else { ((value - least) / step + 0.5) as u8 };
            }
        });
        Ok(codes)
    }

    fn clamped(&self, rows: &[f32], residuals: Residuals<'_>) -> Clamped {
        let (least, steps) = self.parts();
        let dim = least.len();
        // Codes reach half a step farther than the training vectors.
        let low: Vec<f32> = least.iter().zip(steps).map(|(least, step)| least - 0.5 * step).collect();
        let high: Vec<f32> = least.iter().zip(steps).map(|(least, step)| least + (STEPS + 0.5) * step).collect();
        let rows = rows.par_chunks_exact(dim).zip(residuals.labels).with_min_len(RUN);
        let of_row = |(row, &label): (&[f32], &u32)| {
            let origin = self.origin(&residuals.centroids[label as usize * dim..][..dim]);
            let values = row.iter().zip(origin).map(|(x, c)| x - c);
            let outside =
                values.zip(low.iter().zip(&high)).map(|(value, (low, high))| (value < *low) | (value > *high));
            Clamped::of_vector(outside.map(usize::from).sum())
        };
        rows.map(of_row).reduce(Clamped::default, std::ops::Add::add)
    }

    fn decode_into(&self, codes: &[u8], centroid: &[f32], to: &mut [f32]) {
        let (least, steps) = self.parts();
        let dim = least.len();
        for (to, codes) in to.chunks_exact_mut(dim).zip(codes.chunks_exact(dim)) {
            let parts = self.origin(centroid).iter().zip(least).zip(steps);
            for ((to, &code), ((c, least), step)) in to.iter_mut().zip(codes).zip(parts) {
                *to = c + (least + f32::from(code) * step);
            }
        }
    }

    fn reach(&self) -> f32 {
        let (least, steps) = self.parts();
        // What is decoded lies between the values of the codes 0 and 255.
        let of = |(least, step): (&f32, &f32)| least.abs().max((least + STEPS * step).abs());
        least.iter().zip(steps).map(of).fold(0.0, f32::max)
    }

    fn form(&self) -> u32 {
        if self.zeros.is_empty() { RESIDUALS } else { VECTORS }
    }

    fn tables(&self) -> &[f32] {
        &self.tables
    }

    fn sections(&self) -> [&[f32]; 2] {
        [&self.tables[..self.tables.len() - 1], &[]]
    }

    fn plan(&self, layout: &mut Layout, shape: &ImageShape<'_>) -> Box<dyn StoredPlan + '_> {
        Box::new(Scalar8Plan::new(layout, shape, self.parts(), self.form() == VECTORS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Device, IvfIndex};

    fn codec(residuals: &[f32], dim: usize) -> Scalar8Codec {
        Scalar8Codec::new(&Ranges::of(residuals, dim, RESIDUALS).tables, RESIDUALS)
    }

    #[test]
    fn codes_of_known_ranges() {
        // Component 0 from -1 to 50, step 0.2; component 1 constant.
        let codec = codec(&[-1.0, 3.0, 50.0, 3.0, 7.0, 3.0], 2);
        assert_eq!(codec.parts(), (&[-1.0, 3.0][..], &[0.2, 0.0][..]));
        let rows = [9.0, 13.0, 60.0, 0.0, -90.0, 13.0, 9e9, 13.0, 9.31, 13.0];
        let centroids = [10.0, 10.0];
        let codes = codec.encode(&rows, Residuals { labels: &[0; 5], centroids: &centroids }).unwrap();
        assert_eq!(codes, [0, 0, 255, 0, 0, 0, 255, 0, 2, 0]);
        let mut decoded = [0.0; 10];
        codec.decode_into(&codes, &centroids, &mut decoded);
        assert_eq!(decoded, [9.0, 13.0, 60.0, 13.0, 9.0, 13.0, 60.0, 13.0, 9.4, 13.0]);
        assert_eq!(codec.reach(), 50.0);
        // 0 and -90 in the second and third vector, and 9e9 in the fourth.
        let clamped = codec.clamped(&rows, Residuals { labels: &[0; 5], centroids: &centroids });
        assert_eq!(clamped, Clamped { vectors: 3, components: 3 });
    }

    #[test]
    fn whole_numbers_are_coded_without_loss() {
        let vectors = [-3.0, 0.5, 100.0, 1000.0, 252.0, 8.0, 7.0, 0.0];
        let ranges = Ranges::of(&vectors, 2, VECTORS);
        // Component 0 has whole numbers within 255; component 1 has not.
        let step = 1000.0 / 255.0;
        assert_eq!((&ranges.tables[..], ranges.error), (&[-3.0, 0.0, 1.0, step][..], f64::from(step).powi(2)));
        let codec = Scalar8Codec::new(&ranges.tables, VECTORS);
        assert_eq!((codec.form(), codec.tables()), (VECTORS, &[-3.0, 0.0, 1.0, step, 0.0][..]));
        let centroids = [7e5, -7e5];
        let codes = codec.encode(&vectors, Residuals { labels: &[0; 4], centroids: &centroids }).unwrap();
        assert_eq!(codes, [0, 0, 103, 255, 255, 2, 10, 0]);
        let mut decoded = [0.0; 8];
        codec.decode_into(&codes, &centroids, &mut decoded);
        assert_eq!(decoded.chunks(2).map(|row| row[0]).collect::<Vec<_>>(), [-3.0, 100.0, 252.0, 7.0]);
        assert_eq!(codec.clamped(&[254.0, 0.0], Residuals { labels: &[0], centroids: &centroids }).components, 1);
        // Not exact: one value is too far, or no f32 is next to its neighbours.
        for far in [[0.0, 256.0], [1e9, 1e9 + 128.0]] {
            assert!(Ranges::of(&far, 1, VECTORS).error > 0.0);
        }
    }

    /// Training codes residuals of small clusters far apart, and vectors where centroids only widen the range.
    #[test]
    fn training_takes_what_has_the_smaller_steps() {
        let form = |base: &[f32]| {
            let builder = IvfIndex::<f32>::builder(2, 2).encoding(crate::ivf::Encoding::Scalar8).device(Device::Cpu);
            let mut index = builder.build().unwrap();
            index.train(base).unwrap();
            index.code_tables()[4]
        };
        let clusters: Vec<f32> = (0..400u32).map(|i| (i / 2 % 2 * 1000) as f32 + (i * 7 % 31) as f32 / 31.0).collect();
        assert_eq!(form(&clusters), 1.0);
        let whole: Vec<f32> = (0..400u32).map(|i| (i * 89 % 256) as f32).collect();
        assert_eq!(form(&whole), 0.0);
    }

    #[test]
    fn ranges_at_the_end_of_f32_decode_to_finite_numbers() {
        for (least, greatest) in [(-f32::MAX, f32::MAX), (0.0, f32::MAX), (f32::MAX, f32::MAX), (-f32::MAX, 0.0)] {
            let codec = codec(&[least, greatest], 1);
            let mut decoded = [0.0; 2];
            codec.decode_into(&[0, 255], &[0.0], &mut decoded);
            assert!(decoded.iter().all(|x| x.is_finite()) && codec.reach().is_finite(), "{least:e}, {greatest:e}");
            assert_eq!(decoded[0], least);
        }
        // A subnormal range may have a step of zero.
        let tiny = codec(&[0.0, f32::from_bits(1)], 1);
        assert_eq!(tiny.parts().1, [0.0]);
    }
}
