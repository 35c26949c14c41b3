//! f32 vectors stored as half-precision numbers.
//!
//! ```text
//! train:  2^e brings the greatest component of the training vectors into 1 .. 2; e is at least 0 and at most 100
//! code_i  = f16(x_i · 2^e), rounded to nearest, ties to even
//! r_i     = code_i / 2^e, exactly
//! ```
//!
//! x is the transformed vector. A component that would become infinite is refused, and so is a vector that is not zero
//! and whose components all become subnormal f16 or zero ([`Error::DoesNotFit`]).
//!
//! # The error
//! A code of at least 2⁻¹⁴ in size has 11 significant bits. The error of a smaller one is at most 2⁻²⁵, which is 2⁻¹¹
//! of the least code with 11 bits or less than that of a greater one. As the greatest code of a vector has 11 bits, the
//! error of a component is at most 2⁻¹¹ of it, or 2⁻¹¹ of the greatest. Without the scale, vectors of components below
//! 6 · 10⁻⁵ lost bits silently: recall of the ten nearest of 5,000 × 64 (Dirichlet) was 0.88 for components times 10⁻⁵,
//! and 0.00 for 10⁻⁷.
//!
//! With a scale for each list or component, vectors that come later could be too small as well. A scale for each vector
//! would never refuse, and need another factor of each product in the scan, which has none for these rows, and two
//! bytes.
//!
//! On a device the codes are also the operands: 2 bytes for each component (padded to 64 components) instead of 6 for
//! [`Encoding::Flat`]. The price: no centre is subtracted, so the error bounds of squared L2 are wider for a set far
//! from the origin, and more candidates are re-ranked.
//!
//! [`Encoding::Flat`]: crate::ivf::Encoding::Flat

mod gpu;

use std::sync::Arc;

use half::f16;
use half::slice::HalfFloatSliceExt;
use rayon::prelude::*;
use warpann_kernels::ivf::encoding::f16::GREATEST_EXPONENT;

use self::gpu::F16Plan;
use crate::device::scratch::Layout;
use crate::ivf::encoding::codec::{Codec, FileParts, Scheme, Trained, Training, finite};
use crate::ivf::gpu::stored_plan::{ImageShape, StoredPlan};
use crate::pq::encode::Residuals;
use crate::{ElementType, Error, Result, host_memory};

/// The scheme of [`Encoding::F16`](crate::ivf::Encoding::F16), which has no parameters.
#[derive(Debug)]
pub(crate) struct F16Scheme;

impl Scheme for F16Scheme {
    fn name(&self) -> &'static str {
        "f16"
    }

    fn check(&self, _: usize, element: ElementType) -> Result<()> {
        if element != ElementType::F32 {
            let (expected, actual) = (ElementType::F32.name(), element.name());
            return Err(Error::Mismatch { what: "element type for encoding f16", expected, actual });
        }
        Ok(())
    }

    fn code_bytes(&self, dim: usize, _: ElementType) -> usize {
        dim.saturating_mul(2)
    }

    fn train(&self, training: Training<'_, '_>) -> Result<Trained> {
        let (rows, dim) = (training.normalised()?, training.rows.dim());
        let codec = F16Codec::of_greatest(rows.par_iter().map(|x| x.abs()).reduce(|| 0.0, f32::max));
        codec.check_fit(&rows, dim, false)?;
        let centroids = training.cluster(&training.kmeans, &rows, dim)?.centroids;
        Ok(Trained { dim, centroids, codec: Arc::new(codec) })
    }

    fn greatest_form(&self) -> u32 {
        GREATEST_EXPONENT
    }

    fn contradiction(&self, _: u64, element: ElementType) -> Option<&'static str> {
        (element != ElementType::F32).then_some("f16 codes of vectors that are not f32")
    }

    fn defect(&self, codes: &[u8], _: usize, _: usize, _: ElementType) -> Option<&'static str> {
        (!finite(codes, f16::is_finite)).then_some("a vector is not finite")
    }

    fn alignment(&self, _: ElementType) -> usize {
        align_of::<f16>()
    }

    fn codec(&self, file: FileParts<'_>) -> Result<Arc<dyn Codec>, &'static str> {
        Ok(Arc::new(F16Codec::new(file.form)))
    }
}

/// Converts between f32 vectors and f16 codes.
#[derive(Debug)]
struct F16Codec {
    exponent: u32,
    /// 2^−exponent, by which halves are multiplied.
    unit: [f32; 1],
}

impl F16Codec {
    fn new(exponent: u32) -> F16Codec {
        F16Codec { exponent, unit: [0.5f32.powi(exponent as i32)] }
    }

    /// The codec for training vectors of which no component exceeds `greatest` in size.
    fn of_greatest(greatest: f32) -> F16Codec {
        // An exponent field of e means 2^(e − 127), and 0 a smaller number.
        let below_one = 127u32.saturating_sub(greatest.to_bits() >> 23);
        F16Codec::new(if greatest > 0.0 { below_one.min(GREATEST_EXPONENT) } else { 0 })
    }

    /// 2^exponent. No product with it is rounded.
    fn scale(&self) -> f32 {
        self.unit[0].recip()
    }

    /// Refuses rows with a component that exceeds f16, and with `also_small` rows that are not zero and have only
    /// subnormal codes; the error names the first.
    fn check_fit(&self, rows: &[f32], dim: usize, also_small: bool) -> Result<()> {
        let (scale, [unit]) = (self.scale(), self.unit);
        let fits = |x: &f32| f16::from_f32(*x * scale).is_finite();
        let greatest = |row: &[f32]| row.iter().fold(0.0f32, |greatest, x| greatest.max(x.abs()));
        let is_small = |greatest: f32| greatest > 0.0 && f16::from_f32(greatest * scale) < f16::MIN_POSITIVE;
        let is_bad = |row: &[f32]| !row.iter().all(fits) || also_small && is_small(greatest(row));
        let bad = rows.par_chunks(dim).position_first(is_bad);
        let Some(row) = bad else { return Ok(()) };
        let at = &rows[row * dim..][..dim];
        let size = greatest(at);
        let column = at.iter().position(|x| !fits(x)).or_else(|| at.iter().position(|x| x.abs() == size));
        let column = column.unwrap_or_default();
        let (least, greatest) = (f16::MIN_POSITIVE.to_f32() * unit, f16::MAX.to_f32() * unit);
        Err(Error::DoesNotFit { encoding: "f16", row, column, value: at[column], least, greatest })
    }
}

/// Number of components that one task converts.
const RUN: usize = 1 << 14;

impl Codec for F16Codec {
    fn encode(&self, rows: &[f32], residuals: Residuals<'_>) -> Result<Vec<u8>> {
        let dim = rows.len() / residuals.labels.len().max(1);
        self.check_fit(rows, dim.max(1), true)?;
        let scale = self.scale();
        let mut codes: Vec<u8> = host_memory::zeroed(host_memory::count::<u8>(&[rows.len(), 2])?)?;
        let convert = |(to, from): (&mut [u8], &[f32])| {
            for (to, x) in to.as_chunks_mut().0.iter_mut().zip(from) {
                *to = f16::from_f32(*x * scale).to_ne_bytes();
            }
        };
        codes.par_chunks_mut(2 * RUN).zip(rows.par_chunks(RUN)).for_each(convert);
        Ok(codes)
    }

    fn decode_into(&self, codes: &[u8], _: &[f32], to: &mut [f32]) {
        bytemuck::cast_slice::<u8, f16>(codes).convert_to_f32_slice(to);
        if self.exponent > 0 {
            to.iter_mut().for_each(|x| *x *= self.unit[0]);
        }
    }

    /// The exponent of the scale.
    fn form(&self) -> u32 {
        self.exponent
    }

    fn tables(&self) -> &[f32] {
        &self.unit
    }

    fn reach(&self) -> f32 {
        0.0
    }

    fn plan(&self, layout: &mut Layout, shape: &ImageShape<'_>) -> Box<dyn StoredPlan + '_> {
        Box::new(F16Plan::new(layout, shape, self.exponent))
    }
}
