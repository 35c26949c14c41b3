//! The traits of an encoding: a scheme for its settings, and a codec for the vectors of a trained index.

use std::borrow::Cow;
use std::fmt::Debug;
use std::sync::Arc;

use rayon::prelude::*;

use crate::device::scratch::Layout;
use crate::generate::Rows;
use crate::ivf::gpu::stored_plan::{ImageShape, StoredPlan};
use crate::ivf::rest::Rest;
use crate::kmeans::gpu::assigner::Assigner;
use crate::kmeans::{Clustering, KMeans};
use crate::pq::ProductQuantizer;
use crate::pq::encode::Residuals;
use crate::pq::turn::Turn;
use crate::product::cpu::{canonical_square, convert};
use crate::simd::Isa;
use crate::vectors::{VectorSlice, with_components};
use crate::{Device, Element, ElementType, Metric, Result, Stage, Watch, host_memory};

/// The part of an encoding that follows from its settings alone.
pub(crate) trait Scheme {
    /// The name that [`Encoding::name`](super::Encoding::name) returns.
    fn name(&self) -> &'static str;

    /// Refuses settings that are invalid for vectors of `dim` components of this type.
    fn check(&self, dim: usize, element: ElementType) -> Result<()>;

    /// Bytes of one vector's code.
    fn code_bytes(&self, dim: usize, element: ElementType) -> usize;

    /// Smallest number of training vectors, for any number of lists.
    fn least_training(&self) -> usize {
        0
    }

    /// Largest number of training vectors that the encoding uses.
    fn most_training(&self) -> usize {
        0
    }

    /// Finds the centroids and the codec. Errors name rows of the training vectors.
    fn train(&self, training: Training<'_, '_>) -> Result<Trained>;

    /// The words of the parameters in a file.
    fn words(&self) -> [u32; 3] {
        [0; 3]
    }

    /// The reason why no index of this dimension and element type has these parameters, or `None`. For checks of file
    /// headers.
    fn contradiction(&self, dim: u64, element: ElementType) -> Option<&'static str> {
        let _ = (dim, element);
        None
    }

    /// The greatest [`Codec::form`].
    fn greatest_form(&self) -> u32 {
        0
    }

    /// Whether codes cannot come near to vectors far from the training, so that these are counted ([`Codec::clamped`]).
    fn clamps(&self) -> bool {
        false
    }

    /// Numbers of f32 in the sections of a file for codebooks and rotation; `None` if they exceed 64 bits.
    fn section_lengths(&self, dim: u64) -> Option<[u64; 2]> {
        let _ = dim;
        Some([0, 0])
    }

    /// The reason why `codes` of vectors of `dim` components cannot be what was saved, or `None`. `codes` start `from`
    /// bytes after the start of the first code, at a multiple of the [`alignment`](Self::alignment).
    fn defect(&self, codes: &[u8], from: usize, dim: usize, element: ElementType) -> Option<&'static str> {
        let _ = (codes, from, dim, element);
        None
    }

    /// Alignment of codes in bytes.
    fn alignment(&self, element: ElementType) -> usize {
        let _ = element;
        1
    }

    /// The codec for the sections of a file, whose values are finite; or the reason why there is none.
    fn codec(&self, file: FileParts<'_>) -> Result<Arc<dyn Codec>, &'static str>;
}

/// The parts of a file from which a codec is made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FileParts<'a> {
    /// Number of components of a vector.
    pub dim: usize,
    /// The type of added vectors.
    pub element: ElementType,
    /// The metric of the index.
    pub metric: Metric,
    /// The section for codebooks.
    pub codebooks: &'a [f32],
    /// The section for the rotation.
    pub rotation: &'a [f32],
    /// [`Codec::form`], at most [`Scheme::greatest_form`].
    pub form: u32,
}

/// Numbers of vectors, and of components of them, that were added to an index beyond the reach of its codes. Later
/// changes do not subtract from them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Clamped {
    pub vectors: u64,
    pub components: u64,
}

impl Clamped {
    /// The numbers of one vector with `components` components beyond the reach.
    pub fn of_vector(components: usize) -> Clamped {
        Clamped { vectors: u64::from(components > 0), components: components as u64 }
    }

    /// Whether there is anything.
    pub fn is_any(self) -> bool {
        self != Clamped::default()
    }
}

impl std::ops::Add for Clamped {
    type Output = Clamped;

    /// The sum, at most the greatest u64: a file may have any numbers.
    fn add(self, more: Clamped) -> Clamped {
        Clamped {
            vectors: self.vectors.saturating_add(more.vectors),
            components: self.components.saturating_add(more.components),
        }
    }
}

impl std::iter::Sum for Clamped {
    fn sum<I: Iterator<Item = Clamped>>(all: I) -> Clamped {
        all.fold(Clamped::default(), std::ops::Add::add)
    }
}

/// The inputs of an encoding's training.
pub(crate) struct Training<'a, 'w> {
    /// The k-means that finds the centroids.
    pub kmeans: KMeans,
    /// The training vectors, which are finite.
    pub rows: VectorSlice<'a>,
    /// The metric of the index.
    pub metric: Metric,
    /// The seed of the index.
    pub seed: u64,
    /// The device that computes matrix products.
    pub device: Device,
    /// Is called after each iteration.
    pub watch: &'a Watch<'w>,
}

impl Training<'_, '_> {
    /// The clusters of some vectors.
    pub fn cluster<T: Element>(&self, kmeans: &KMeans, rows: &[T], dim: usize) -> Result<Clustering> {
        let iterations = kmeans.wanted_iterations();
        kmeans.train_watched(rows, dim, None, &mut |done| {
            self.watch.flow(Stage::Training, done.iteration + 1, iterations)
        })
    }

    /// The training vectors as f32, normalised if the metric requires it, but not rotated.
    pub fn normalised(&self) -> Result<Cow<'_, [f32]>> {
        to_f32(self.rows, self.metric.divides_by_norms())
    }
}

/// The result of training.
#[derive(Debug, Clone)]
pub(crate) struct Trained {
    /// Number of components of a centroid, and of a transformed vector: a component for each bit of vectors of bits.
    pub(crate) dim: usize,
    /// Row-major, lists × dim; in rotated space if the codec rotates.
    pub(crate) centroids: Vec<f32>,
    pub(crate) codec: Arc<dyn Codec>,
}

/// Encodes and decodes the vectors of a trained index.
pub(crate) trait Codec: Debug + Send + Sync {
    /// Whether codes are the vectors as they were added, so that searches compare them without decoding.
    fn in_place(&self) -> bool {
        false
    }

    /// Transforms vectors for assignment, encoding and comparison. Vectors that are not finite stay so, or are refused.
    /// A rotation is applied on `device`. Rotated components exceed f32 only if components exceed 10³⁷ or so; such
    /// vectors are refused.
    fn transform<'a>(&self, rows: VectorSlice<'a>, metric: Metric, device: Device) -> Result<Cow<'a, [f32]>> {
        let _ = device;
        to_f32(rows, metric.divides_by_norms())
    }

    /// The work of a device that has the centroids: lists, and also codes if the encoding has kernels for them.
    fn device_coder(&self, assigner: Assigner) -> Result<DeviceCoder> {
        Ok(DeviceCoder::Lists(Box::new(assigner)))
    }

    /// Whether a coder of a device transforms the rows that it generates.
    fn codes_generated(&self) -> bool {
        self.turn().is_none()
    }

    /// The codes of transformed rows, one after the other. Not called if codes are [`in_place`](Self::in_place).
    fn encode(&self, rows: &[f32], residuals: Residuals<'_>) -> Result<Vec<u8>>;

    /// Counts what [`encode`](Self::encode) cannot reach of transformed rows, and so codes by what is nearest. O(rows ·
    /// dim).
    fn clamped(&self, rows: &[f32], residuals: Residuals<'_>) -> Clamped {
        let _ = (rows, residuals);
        Clamped::default()
    }

    /// The form of the codes that training chose, as a number: what decoding needs beside the sections.
    fn form(&self) -> u32 {
        0
    }

    /// The trained values by which codes are decoded ([`IvfIndex::code_tables`](crate::ivf::IvfIndex::code_tables)).
    fn tables(&self) -> &[f32] {
        self.sections()[0]
    }

    /// Decodes codes of one list to the vectors r in transformed space, row-major. `to` has whole rows.
    fn decode_into(&self, codes: &[u8], centroid: &[f32], to: &mut [f32]);

    /// As [`decode_into`](Self::decode_into), with the result in `scratch` unless codes are f32 themselves.
    fn decode<'a>(&self, codes: &'a [u8], centroid: &[f32], rows: usize, scratch: &'a mut Vec<f32>) -> &'a [f32] {
        scratch.resize(rows * centroid.len(), 0.0);
        self.decode_into(codes, centroid, scratch);
        scratch
    }

    /// Returns a decoded vector in the space of added vectors.
    fn restored(&self, vector: Vec<f32>) -> Result<Vec<f32>> {
        Ok(vector)
    }

    /// Upper bound of the size of the values that decoding adds to a component of the centroid. 0 if codes do not use
    /// the centroid. It may be infinite for a codec from a file.
    fn reach(&self) -> f32;

    /// The greatest error of some codes, whole ones of the codec ([`crate::ivf::proof`]). `None` if codes do not tell.
    fn rest(&self, codes: &[u8]) -> Option<Rest> {
        let _ = codes;
        None
    }

    /// Whether the components of codes are known to be whole numbers. Checks a sample of them at most.
    fn whole(&self, codes: &[u8]) -> bool {
        let _ = codes;
        false
    }

    /// The values of the sections for codebooks and rotation of a file.
    fn sections(&self) -> [&[f32]; 2] {
        [&[], &[]]
    }

    /// The product quantizer whose lookup tables score codes.
    fn quantizer(&self) -> Option<&ProductQuantizer> {
        None
    }

    /// The rotation that is applied to vectors and queries first.
    fn turn(&self) -> Option<Turn<'_>> {
        None
    }

    /// Plans the part of an image on a device that holds the codes.
    fn plan(&self, layout: &mut Layout, shape: &ImageShape<'_>) -> Box<dyn StoredPlan + '_>;
}

/// A coder of added vectors on a device. The variants differ in the results of the device.
pub(crate) enum DeviceCoder {
    /// The list of each vector; the CPU then encodes the residuals.
    Lists(Box<Assigner>),
    /// The list and the code of each vector, by kernels of the encoding.
    Codes(Box<dyn ListCoder>),
}

impl DeviceCoder {
    /// Bytes of device memory, with the scratch that calls have left.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            DeviceCoder::Lists(assigner) => assigner.bytes(),
            DeviceCoder::Codes(coder) => coder.bytes(),
        }
    }
}

/// Finds lists and codes of transformed vectors on a device.
pub(crate) trait ListCoder: Send + Sync {
    /// Writes the list and the code of each of `rows`: transformed ones, or those of a generator as they come. `labels`
    /// has one element for each row. The copy to the device checks the rows.
    ///
    /// # Errors
    /// [`Error::NotFinite`](crate::Error::NotFinite), with any place; [`Error::Overflow`](crate::Error::Overflow) for a
    /// row that no code can hold; errors of the device.
    fn code(&self, rows: Rows<'_>, labels: &mut [u32], codes: &mut [u8]) -> Result<()>;

    /// Bytes of device memory, with the scratch that calls have left.
    fn bytes(&self) -> usize;
}

/// Converts vectors to f32, and divides them by their canonical norm if `normalise` is set.
pub(crate) fn to_f32(rows: VectorSlice<'_>, normalise: bool) -> Result<Cow<'_, [f32]>> {
    with_components!(rows, components: T => components_to_f32::<T>(components, rows.dim(), normalise))
}

fn components_to_f32<T: Element>(rows: &[T], dim: usize, normalise: bool) -> Result<Cow<'_, [f32]>> {
    if T::TYPE == ElementType::F32 && !normalise {
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

/// Whether all values are finite. The loop has no early exit, so that it compiles to SIMD instructions.
pub(crate) fn finite<V: bytemuck::AnyBitPattern>(bytes: &[u8], is_finite: impl Fn(V) -> bool) -> bool {
    bytemuck::cast_slice(bytes).iter().fold(true, |all, &value| all & is_finite(value))
}
