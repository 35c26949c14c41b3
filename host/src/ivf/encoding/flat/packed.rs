//! Vectors of bits, eight in a byte, as they were added.
//!
//! Lists belong to centroids with a component for each bit: means of bits, which are numbers from 0 to 1. So
//! assignment, probes and drift are those of vectors of 8 · dim components, and squared L2 of two vectors of bits is
//! their Hamming distance. (Centroids of bits, by majority, would need an eighth of the products of the probes, but a
//! vector in the middle between two of them falls to either by chance.) The lists hold the bytes, and scans count bits.
//!
//! # Cost
//! Training takes the bits of its whole sample apart, a byte each, and assignment those of 64 MiB of components at a
//! time. Centroids take 32 bytes for each byte of a vector.

use std::borrow::Cow;
use std::sync::Arc;

use super::gpu::FlatPlan;
use crate::device::scratch::Layout;
use crate::ivf::encoding::codec::{Codec, Trained, Training};
use crate::ivf::gpu::stored_plan::{ImageShape, StoredPlan};
use crate::ivf::rest::Rest;
use crate::pq::encode::Residuals;
use crate::product::gpu::VectorShape;
use crate::vectors::{VectorSlice, bits_apart, bits_apart_into, bits_together};
use crate::{Device, ElementType, Metric, Result};

/// Finds centroids of vectors of bits.
pub(super) fn train(training: &Training<'_, '_>) -> Result<Trained> {
    let dim = training.metric.components(training.rows.dim());
    let clustering = training.cluster::<u8>(&training.kmeans, &bits_apart(training.rows.bytes())?, dim)?;
    Ok(Trained { dim, centroids: clustering.centroids, codec: Arc::new(PackedCodec) })
}

/// The codec of vectors of bits that are stored as they were added.
#[derive(Debug)]
pub(super) struct PackedCodec;

impl Codec for PackedCodec {
    fn in_place(&self) -> bool {
        true
    }

    fn transform<'a>(&self, rows: VectorSlice<'a>, _: Metric, _: Device) -> Result<Cow<'a, [f32]>> {
        Ok(Cow::Owned(bits_apart(rows.bytes())?))
    }

    fn encode(&self, rows: &[f32], _: Residuals<'_>) -> Result<Vec<u8>> {
        Ok(bits_together(rows))
    }

    fn decode_into(&self, codes: &[u8], _: &[f32], to: &mut [f32]) {
        bits_apart_into(codes, to);
    }

    fn restored(&self, vector: Vec<f32>) -> Result<Vec<f32>> {
        Ok(bits_together(&vector).into_iter().map(f32::from).collect())
    }

    fn rest(&self, _: &[u8]) -> Option<Rest> {
        Some(Rest::default())
    }

    fn reach(&self) -> f32 {
        0.0
    }

    fn whole(&self, _: &[u8]) -> bool {
        true
    }

    fn plan(&self, layout: &mut Layout, image: &ImageShape<'_>) -> Box<dyn StoredPlan + '_> {
        let shape = VectorShape::of_rows(ElementType::U8, image.metric, image.dim / 8);
        Box::new(FlatPlan::new(layout, image, shape))
    }
}
