//! One byte for each component of the residual.
//!
//! ```text
//! train:  least_i, greatest_i of x_i - c_i over the training vectors; step_i = f32((greatest_i - least_i) / 255), the division in f64
//! code_i  = the whole part of ((x_i - c_i) - least_i) / step_i + 1/2, at least 0 and at most 255; 0 where step_i is 0
//! r_i     = f32(c_i + f32(least_i + f32(code_i * step_i)))
//! ```
//!
//! x is the transformed vector and c the centroid of its list. All operations are in f32, each rounded to nearest, in
//! the order of the formulas; none is fused. So CPU, emulator and GPU have the same r.
//!
//! # Why residuals
//! Recall of the 10 nearest among all of 40,000 decoded vectors (64 components, 200 Gaussian clusters whose centres
//! have unit variance, 200 queries, one list for each cluster, CPU, 2026-11-23):
//!
//! | standard deviation within a cluster | codes of residuals | codes of vectors |
//! |---|---|---|
//! | 0.1 | 0.991 | 0.897 |
//! | 0.3 | 0.991 | 0.947 |
//! | 1.0 | 0.988 | 0.986 |

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
        Ok(Trained { centroids, codec: Arc::new(Scalar8Codec { tables: ranges(&residuals, dim) }) })
    }

    fn clamps(&self) -> bool {
        true
    }

    fn section_lengths(&self, dim: u64) -> Option<[u64; 2]> {
        Some([dim.checked_mul(2)?, 0])
    }

    fn codec(&self, file: FileParts<'_>) -> Result<Arc<dyn Codec>, &'static str> {
        let codec = Scalar8Codec { tables: file.codebooks.to_vec() };
        let (_, steps) = codec.parts();
        if steps.iter().any(|&step| step < 0.0) {
            return Err("a step is negative");
        }
        Ok(Arc::new(codec))
    }
}

/// The least value of each component, and then the step of each component: `dim` numbers of each. All numbers and all
/// decoded residuals are finite.
fn ranges(residuals: &[f32], dim: usize) -> Vec<f32> {
    let none = || (vec![f32::INFINITY; dim], vec![f32::NEG_INFINITY; dim]);
    let join = |mut all: (Vec<f32>, Vec<f32>), (least, greatest): (&[f32], &[f32])| {
        all.0.iter_mut().zip(least).for_each(|(all, x)| *all = all.min(*x));
        all.1.iter_mut().zip(greatest).for_each(|(all, x)| *all = all.max(*x));
        all
    };
    let (least, greatest) = residuals
        .par_chunks_exact(dim)
        .fold(none, |all, row| join(all, (row, row)))
        .reduce(none, |all, (least, greatest)| join(all, (&least, &greatest)));
    let step = |(&least, &greatest): (&f32, &f32)| {
        let mut step = ((f64::from(greatest) - f64::from(least)) / f64::from(STEPS)) as f32;
        // Near the end of the range of f32, rounding can make the greatest decoded value infinite.
        while !(least + STEPS * step).is_finite() {
            step = step.next_down();
        }
        step
    };
    let steps: Vec<f32> = least.iter().zip(&greatest).map(step).collect();
    // Zeros of either sign have the same value, and a fold may read them in any order. Adding 0.0 gives all zeros the
    // same bits.
    least.iter().map(|x| x + 0.0).chain(steps).collect()
}

/// The codec of codes that divide the range of each component.
#[derive(Debug)]
struct Scalar8Codec {
    /// Least values and steps, as [`ranges`] returns them.
    tables: Vec<f32>,
}

impl Scalar8Codec {
    /// The least value and the step of each component.
    fn parts(&self) -> (&[f32], &[f32]) {
        self.tables.split_at(self.tables.len() / 2)
    }
}

impl Codec for Scalar8Codec {
    fn encode(&self, rows: &[f32], residuals: Residuals<'_>) -> Result<Vec<u8>> {
        let (least, steps) = self.parts();
        let dim = least.len();
        let mut codes: Vec<u8> = host_memory::zeroed(rows.len())?;
        let rows = rows.par_chunks_exact(dim).zip(residuals.labels);
        codes.par_chunks_exact_mut(dim).zip(rows).with_min_len(RUN).for_each(|(codes, (row, &label))| {
            let centroid = &residuals.centroids[label as usize * dim..][..dim];
            let values = row.iter().zip(centroid).map(|(x, c)| x - c);
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
            let centroid = &residuals.centroids[label as usize * dim..][..dim];
            let values = row.iter().zip(centroid).map(|(x, c)| x - c);
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
            let parts = centroid.iter().zip(least).zip(steps);
            for ((to, &code), ((c, least), step)) in to.iter_mut().zip(codes).zip(parts) {
                *to = c + (least + f32::from(code) * step);
            }
        }
    }

    fn reach(&self) -> f32 {
        let (least, steps) = self.parts();
        // A decoded residual lies between the values of the codes 0 and 255.
        let of = |(least, step): (&f32, &f32)| least.abs().max((least + STEPS * step).abs());
        least.iter().zip(steps).map(of).fold(0.0, f32::max)
    }

    fn sections(&self) -> [&[f32]; 2] {
        [&self.tables, &[]]
    }

    fn plan(&self, layout: &mut Layout, shape: &ImageShape<'_>) -> Box<dyn StoredPlan + '_> {
        Box::new(Scalar8Plan::new(layout, shape, self.parts()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn codec(residuals: &[f32], dim: usize) -> Scalar8Codec {
        Scalar8Codec { tables: ranges(residuals, dim) }
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
