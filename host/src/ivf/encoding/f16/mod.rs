//! f32 vectors stored as half-precision numbers.
//!
//! The code of a transformed vector x is f16(x_i), rounded to nearest, ties to even; the decoded vector has exactly these values. A
//! component that would become infinite is refused ([`Error::DoesNotFit`]); components below 2^-25 in size become zero.
//!
//! On a device the codes are also the operands: 2 bytes for each component (padded to 64 components) instead of 6 for [`Encoding::Flat`].
//! The price: no centre is subtracted, so the error bounds of squared L2 are wider for a set far from the origin, and more candidates are
//! re-ranked.
//!
//! [`Encoding::Flat`]: crate::ivf::Encoding::Flat

mod gpu;

use std::sync::Arc;

use half::f16;
use half::slice::HalfFloatSliceExt;
use rayon::prelude::*;

use self::gpu::F16Plan;
use super::{Codec, FileParts, Scheme, StoredPlan, Training, finite};
use crate::device::scratch::Layout;
use crate::ivf::Trained;
use crate::ivf::gpu::image::ImageShape;
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
            return Err(Error::EncodingOfElement { encoding: "f16", element, takes: ElementType::F32 });
        }
        Ok(())
    }

    fn code_bytes(&self, dim: usize, _: ElementType) -> usize {
        dim.saturating_mul(2)
    }

    fn train(&self, training: Training<'_, '_>) -> Result<Trained> {
        let (rows, dim) = (training.normalised()?, training.rows.dim());
        check_fit(&rows, dim)?;
        let centroids = training.cluster(&training.kmeans, &rows, dim)?.centroids;
        Ok(Trained { centroids, codec: Arc::new(F16Codec) })
    }

    fn contradiction(&self, _: u64, element: ElementType) -> Option<&'static str> {
        (element != ElementType::F32).then_some("f16 codes of vectors that are not f32")
    }

    fn defect(&self, codes: &[u8], _: usize, _: ElementType) -> Option<&'static str> {
        (!finite(codes, f16::is_finite)).then_some("a vector is not finite")
    }

    fn alignment(&self, _: ElementType) -> usize {
        align_of::<f16>()
    }

    fn codec(&self, _: FileParts<'_>) -> Result<Arc<dyn Codec>, &'static str> {
        Ok(Arc::new(F16Codec))
    }
}

/// Refuses rows with a component that exceeds f16; the error names the first.
fn check_fit(rows: &[f32], dim: usize) -> Result<()> {
    let fits = |x: &f32| f16::from_f32(*x).is_finite();
    let bad = rows.par_chunks(dim).position_first(|row| !row.iter().all(fits));
    let Some(row) = bad else { return Ok(()) };
    let column = rows[row * dim..][..dim].iter().position(|x| !fits(x)).unwrap_or_default();
    Err(Error::DoesNotFit { encoding: "f16", row, column, greatest: f16::MAX.to_f32() })
}

/// Converts between f32 vectors and f16 codes.
#[derive(Debug)]
struct F16Codec;

/// Number of components that one task converts.
const RUN: usize = 1 << 14;

impl Codec for F16Codec {
    fn encode(&self, rows: &[f32], residuals: Residuals<'_>) -> Result<Vec<u8>> {
        let dim = rows.len() / residuals.labels.len().max(1);
        check_fit(rows, dim.max(1))?;
        let mut codes: Vec<u8> = host_memory::zeroed(host_memory::count::<u8>(&[rows.len(), 2])?)?;
        let convert = |(to, from): (&mut [u8], &[f32])| {
            for (to, x) in to.as_chunks_mut().0.iter_mut().zip(from) {
                *to = f16::from_f32(*x).to_ne_bytes();
            }
        };
        codes.par_chunks_mut(2 * RUN).zip(rows.par_chunks(RUN)).for_each(convert);
        Ok(codes)
    }

    fn decode_into(&self, codes: &[u8], _: &[f32], to: &mut [f32]) {
        bytemuck::cast_slice::<u8, f16>(codes).convert_to_f32_slice(to);
    }

    fn reach(&self) -> f32 {
        0.0
    }

    fn plan(&self, layout: &mut Layout, shape: &ImageShape<'_>) -> Box<dyn StoredPlan + '_> {
        Box::new(F16Plan::new(layout, shape))
    }
}
