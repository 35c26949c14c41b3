//! Vectors as they were added. A search compares them without decoding; a device stores the elements and their f16
//! operands. Vectors of bits are in [`packed`].

mod gpu;
mod packed;

use std::borrow::Cow;
use std::sync::Arc;

use half::{bf16, f16};

use self::gpu::FlatPlan;
use self::packed::PackedCodec;
use crate::device::scratch::Layout;
use crate::ivf::encoding::codec::{Codec, FileParts, Scheme, Trained, Training, finite, to_f32};
use crate::ivf::gpu::stored_plan::{ImageShape, StoredPlan};
use crate::ivf::rest::Rest;
use crate::pq::encode::Residuals;
use crate::product::cpu::{as_f32, convert};
use crate::product::gpu::VectorShape;
use crate::vectors::{VectorSlice, with_components};
use crate::{Device, ElementType, Metric, Result};

/// The scheme of [`Encoding::Flat`](crate::ivf::Encoding::Flat), which has no parameters.
#[derive(Debug)]
pub(crate) struct Flat;

impl Scheme for Flat {
    fn name(&self) -> &'static str {
        "flat"
    }

    fn check(&self, _: usize, _: ElementType) -> Result<()> {
        Ok(())
    }

    fn code_bytes(&self, dim: usize, element: ElementType) -> usize {
        dim.saturating_mul(element.size())
    }

    fn train(&self, training: Training<'_, '_>) -> Result<Trained> {
        if training.metric.compares_bits() {
            return packed::train(&training);
        }
        let dim = training.rows.dim();
        // Spherical k-means weights vectors by their lengths, so all get length 1.
        let clustering = if training.metric.assigned_by().is_spherical() {
            training.cluster(&training.kmeans, &training.normalised()?, dim)?
        } else {
            with_components!(training.rows, rows: T => training.cluster::<T>(&training.kmeans, rows, dim)?)
        };
        let codec = FlatCodec { element: training.rows.element() };
        Ok(Trained { dim, centroids: clustering.centroids, codec: Arc::new(codec) })
    }

    fn defect(&self, codes: &[u8], _: usize, _: usize, element: ElementType) -> Option<&'static str> {
        let right = match element {
            ElementType::F32 => finite(codes, f32::is_finite),
            ElementType::F16 => finite(codes, f16::is_finite),
            ElementType::Bf16 => finite(codes, bf16::is_finite),
            ElementType::U8 | ElementType::I8 => true,
        };
        (!right).then_some("a vector is not finite")
    }

    fn alignment(&self, element: ElementType) -> usize {
        element.size()
    }

    fn codec(&self, file: FileParts<'_>) -> Result<Arc<dyn Codec>, &'static str> {
        if file.metric.compares_bits() {
            return Ok(Arc::new(PackedCodec));
        }
        Ok(Arc::new(FlatCodec { element: file.element }))
    }
}

/// The codec of vectors that are stored as they were added.
#[derive(Debug)]
struct FlatCodec {
    element: ElementType,
}

impl FlatCodec {
    fn vectors<'a>(&self, codes: &'a [u8]) -> VectorSlice<'a> {
        VectorSlice::of_bytes(self.element, 1, codes)
    }
}

impl Codec for FlatCodec {
    fn in_place(&self) -> bool {
        true
    }

    fn transform<'a>(&self, rows: VectorSlice<'a>, _: Metric, _: Device) -> Result<Cow<'a, [f32]>> {
        to_f32(rows, false)
    }

    fn encode(&self, rows: &[f32], _: Residuals<'_>) -> Result<Vec<u8>> {
        Ok(bytemuck::cast_slice(rows).to_vec())
    }

    fn decode_into(&self, codes: &[u8], _: &[f32], to: &mut [f32]) {
        with_components!(self.vectors(codes), rows: T => convert::<T>(rows, to));
    }

    fn decode<'a>(&self, codes: &'a [u8], _: &[f32], _: usize, scratch: &'a mut Vec<f32>) -> &'a [f32] {
        with_components!(self.vectors(codes), rows: T => as_f32::<T>(rows, scratch))
    }

    fn rest(&self, _: &[u8]) -> Option<Rest> {
        Some(Rest::default())
    }

    fn reach(&self) -> f32 {
        0.0
    }

    fn whole(&self, codes: &[u8]) -> bool {
        use crate::Element;
        with_components!(self.vectors(codes), rows: T => rows.iter().take(1024).all(|x: &T| x.to_f32().fract() == 0.0))
    }

    fn plan(&self, layout: &mut Layout, shape: &ImageShape<'_>) -> Box<dyn StoredPlan + '_> {
        Box::new(FlatPlan::new(layout, shape, VectorShape::of_rows(self.element, shape.metric, shape.dim)))
    }
}
