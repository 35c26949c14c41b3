//! What the bytes of a code mean: the vector itself, or a product-quantizer code of its residual.
//!
//! # Product-quantizer codes
//! A vector becomes f32; under cosine it is divided by its canonical norm (zero stays zero), and from there on compared by inner
//! product; with a rotation it is rotated. Its code is the [`crate::pq`] code of x − c, where c is the centroid of its list
//! (f32 subtraction, component by component). What the code stands for is r_i = f32(c_i + p_i), p the decoded residual:
//! canonical distances are between the query, made alike, and r.

use std::borrow::Cow;

use crate::parallel::{Loop, ParallelSlice};
use crate::pq::{ProductQuantizer, Rotation};
use crate::product::cpu::{canonical_square, convert};
use crate::simd::Isa;
use crate::validate::check_derived;
use crate::{Device, Element, Metric, Result, host_memory};

/// See the module documentation.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Codec {
    /// The components as they were added.
    Flat,
    /// Codes of residuals.
    Pq(PqCodec),
}

/// Product-quantizer codes of residuals, of vectors that may be rotated first.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PqCodec {
    pub(crate) quantizer: ProductQuantizer,
    pub(crate) rotation: Option<Rotation>,
}

/// Vectors as f32, by rows of `dim`, normalised where `normalise` says so.
pub(crate) fn to_f32<T: Element>(rows: &[T], dim: usize, normalise: bool) -> Result<Cow<'_, [f32]>> {
    if T::TYPE == crate::ElementType::F32 && !normalise {
        return Ok(Cow::Borrowed(bytemuck::cast_slice(rows)));
    }
    let mut wide = host_memory::zeroed(rows.len())?;
    let isa = Isa::detect();
    wide.par_chunks_exact_mut(dim).with_min_len(64).zip(rows.par_chunks_exact(dim)).for_each(|(to, row)| {
        convert(row, to);
        if normalise {
            let square = canonical_square(isa, row);
            if square != 0.0 {
                let norm = square.sqrt();
                to.iter_mut().for_each(|x| *x = (f64::from(*x) / norm) as f32);
            }
        }
    });
    Ok(Cow::Owned(wide))
}

impl Codec {
    /// Vectors as they are assigned, encoded and compared: for [`Codec::Pq`] as the module says, else as f32. A rotation is applied
    /// on `device`; its result has other components than f32 can hold only where components exceed 10³⁷ or so, and is refused then.
    pub(crate) fn transform<'a, T: Element>(
        &self,
        rows: &'a [T],
        dim: usize,
        metric: Metric,
        device: Device,
    ) -> Result<Cow<'a, [f32]>> {
        let Codec::Pq(pq) = self else { return to_f32(rows, dim, false) };
        rotated(pq.rotation.as_ref(), to_f32(rows, dim, metric == Metric::Cosine)?, dim, device)
    }
}

/// `rows` through the rotation, where there is one.
pub(crate) fn rotated<'a>(
    rotation: Option<&Rotation>,
    rows: Cow<'a, [f32]>,
    dim: usize,
    device: Device,
) -> Result<Cow<'a, [f32]>> {
    let Some(rotation) = rotation else { return Ok(rows) };
    let rows = rotation.apply(&rows, device)?;
    check_derived(&rows, dim, "rotated vector")?;
    Ok(Cow::Owned(rows))
}

impl PqCodec {
    /// What the codes of one list stand for, in (rotated) space: r, row-major. `to` has whole rows.
    pub(crate) fn decode_into(&self, codes: &[u8], centroid: &[f32], to: &mut [f32]) {
        self.quantizer.decode_onto(codes, centroid, to);
    }
}
