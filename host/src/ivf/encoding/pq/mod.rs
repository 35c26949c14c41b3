//! Product-quantizer codes of residuals; the vectors may be rotated first.
//!
//! The code of a transformed vector x is the [`crate::pq`] code of x − c, where c is the centroid of its list (f32
//! subtraction, component by component). The decoded vector is r_i = f32(c_i + p_i), where p is the decoded residual.
//!
//! Only these codes can also be scanned by lookup tables, query by query, on the CPU and on devices.

mod gpu;

use std::borrow::Cow;
use std::sync::Arc;

use rayon::prelude::*;

use self::gpu::PqPlan;
use crate::device::queue::OnStream;
use crate::device::scratch::Layout;
use crate::ivf::encoding::codec::{Clamped, Codec, DeviceCoder, FileParts, Scheme, Trained, Training, to_f32};
use crate::ivf::encoding::list_coder::{Coder, OnDevice, RowEncoder};
use crate::ivf::gpu::stored_plan::{ImageShape, StoredPlan};
use crate::kmeans::gpu::assigner::Assigner;
use crate::pq::encode::Residuals;
use crate::pq::gpu::encode as on_device;
use crate::pq::turn::Turn;
use crate::pq::{CODE_BITS, PqTraining, ProductQuantizer, Rotation, codes};
use crate::random::gather;
use crate::validate::{check_derived, check_divisible, check_range};
use crate::vectors::VectorSlice;
use crate::{Device, ElementType, Metric, Result};

/// Number of training vectors for each codeword.
const POINTS_PER_CODEWORD: usize = 256;

/// The scheme of [`Encoding::Pq`](crate::ivf::Encoding::Pq), with its parameters.
#[derive(Debug)]
pub(crate) struct PqScheme {
    pub sub_quantizers: usize,
    pub bits: u32,
    pub rotate: bool,
}

impl PqScheme {
    pub(super) fn read_words([sub_quantizers, bits, rotate]: [u32; 3]) -> Option<PqScheme> {
        // Encodings without parameters have these words.
        if sub_quantizers == 0 && bits == 0 {
            return None;
        }
        let rotate = [false, true].into_iter().find(|&rotated| u32::from(rotated) == rotate)?;
        Some(PqScheme { sub_quantizers: sub_quantizers as usize, bits, rotate })
    }
}

impl Scheme for PqScheme {
    fn name(&self) -> &'static str {
        "pq"
    }

    fn check(&self, dim: usize, _: ElementType) -> Result<()> {
        check_divisible("dimension", dim, "sub-quantizers", self.sub_quantizers)?;
        check_range("bits per sub-quantizer", self.bits as usize, CODE_BITS)?;
        Ok(())
    }

    fn code_bytes(&self, _: usize, _: ElementType) -> usize {
        codes::code_bytes(self.sub_quantizers, self.bits)
    }

    fn least_training(&self) -> usize {
        1 << self.bits
    }

    fn most_training(&self) -> usize {
        self.least_training() * POINTS_PER_CODEWORD
    }

    fn train(&self, training: Training<'_, '_>) -> Result<Trained> {
        let Training { ref kmeans, metric, seed, device, watch, .. } = training;
        let dim = training.rows.dim();
        let settings = PqTraining::new(self.sub_quantizers).bits(self.bits).seed(seed).device(device);
        let settings = settings.lengthen(metric.lengthens_codewords());
        let rows = training.normalised()?;
        let rotation = self.rotate.then(|| Rotation::train_watched(&settings, &rows, dim, watch)).transpose()?;
        let rows = rotated(rotation.as_ref(), rows, device)?;
        let clustering = training.cluster(&kmeans.clone().labels(true), &rows, dim)?;
        let (centroids, labels) = (clustering.centroids, clustering.labels.unwrap_or_default());
        // Only the residuals from which the quantizer learns are computed.
        let learned = settings.sample(labels.len());
        let mut residuals = gather(&rows, dim, &learned)?;
        residuals.par_chunks_exact_mut(dim).zip(&learned).for_each(|(row, &at)| {
            let centroid = &centroids[labels[at] as usize * dim..][..dim];
            row.iter_mut().zip(centroid).for_each(|(x, c)| *x -= c);
        });
        check_derived(&residuals, dim, "residual").map_err(|error| error.with_row(|row| learned[row]))?;
        let quantizer = Arc::new(ProductQuantizer::train_watched(&settings, &residuals, dim, watch)?);
        Ok(Trained { dim, centroids, codec: Arc::new(PqCodec::new(quantizer, rotation)) })
    }

    fn words(&self) -> [u32; 3] {
        [self.sub_quantizers as u32, self.bits, u32::from(self.rotate)]
    }

    fn contradiction(&self, dim: u64, _: ElementType) -> Option<&'static str> {
        if check_range("bits per sub-quantizer", self.bits as usize, CODE_BITS).is_err() {
            return Some("bits of a sub-quantizer");
        }
        let divides = self.sub_quantizers != 0 && dim.is_multiple_of(self.sub_quantizers as u64);
        (!divides).then_some("sub-quantizers that do not divide the dimension")
    }

    fn clamps(&self) -> bool {
        true
    }

    fn section_lengths(&self, dim: u64) -> Option<[u64; 2]> {
        Some([dim.checked_mul(1 << self.bits)?, if self.rotate { dim.checked_mul(dim)? } else { 0 }])
    }

    fn defect(&self, codes: &[u8], from: usize, _: usize, _: ElementType) -> Option<&'static str> {
        let zero = unused_bits_are_zero(codes, from, self.sub_quantizers * self.bits as usize);
        (!zero).then_some("unused bits of a code are set")
    }

    fn codec(&self, file: FileParts<'_>) -> Result<Arc<dyn Codec>, &'static str> {
        let FileParts { dim, codebooks, rotation, .. } = file;
        let quantizer = ProductQuantizer::from_codebooks(dim, self.sub_quantizers, self.bits, codebooks.to_vec())
            .map_err(|_| "the codebooks contradict the shape")?;
        let rotation = self.rotate.then(|| Rotation::from_matrix(dim, rotation.to_vec()));
        let rotation = rotation.transpose().map_err(|_| "the rotation is not orthogonal")?;
        Ok(Arc::new(PqCodec::new(Arc::new(quantizer), rotation)))
    }
}

/// The codec of product-quantizer codes of residuals.
#[derive(Debug)]
pub(crate) struct PqCodec {
    pub quantizer: Arc<ProductQuantizer>,
    pub rotation: Option<Rotation>,
    /// The greatest square of the length of a decoded residual: Σ over sub-quantizers of the square of the longest
    /// codeword.
    farthest: f32,
}

impl PqCodec {
    fn new(quantizer: Arc<ProductQuantizer>, rotation: Option<Rotation>) -> PqCodec {
        let length = |word: &[f32]| word.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>();
        let books = quantizer.codebooks().chunks_exact(quantizer.width() * quantizer.codewords());
        let longest = |book: &[f32]| book.chunks_exact(quantizer.width()).map(length).fold(0.0, f64::max);
        // The factor covers the f32 roundings of `square_of_residual`.
        let farthest = (books.map(longest).sum::<f64>() * (1.0 + 1e-4)) as f32;
        PqCodec { quantizer, rotation, farthest }
    }
}

/// Number of sums of [`square_of_residual`], which are as many lanes.
const SUMS: usize = 16;

/// ‖x − c‖², in f32 and in any order. It is infinite or NaN if it exceeds f32.
fn square_of_residual(x: &[f32], c: &[f32]) -> f32 {
    let mut sums = [0.0f32; SUMS];
    for (x, c) in x.chunks(SUMS).zip(c.chunks(SUMS)) {
        for (sum, (x, c)) in sums.iter_mut().zip(x.iter().zip(c)) {
            *sum += (x - c) * (x - c);
        }
    }
    sums.iter().sum()
}

impl Codec for PqCodec {
    fn transform<'a>(&self, rows: VectorSlice<'a>, metric: Metric, device: Device) -> Result<Cow<'a, [f32]>> {
        rotated(self.rotation.as_ref(), to_f32(rows, metric.divides_by_norms())?, device)
    }

    fn device_coder(&self, assigner: Assigner) -> Result<DeviceCoder> {
        Ok(DeviceCoder::Codes(Box::new(Coder::new(assigner, Box::new(Arc::clone(&self.quantizer)))?)))
    }

    fn encode(&self, rows: &[f32], residuals: Residuals<'_>) -> Result<Vec<u8>> {
        self.quantizer.encode_residuals(rows, residuals)
    }

    fn clamped(&self, rows: &[f32], residuals: Residuals<'_>) -> Clamped {
        let dim = self.quantizer.dim();
        let rows = rows.par_chunks_exact(dim).zip(residuals.labels).with_min_len(64);
        let of_row = |(row, &label): (&[f32], &u32)| {
            let square = square_of_residual(row, &residuals.centroids[label as usize * dim..][..dim]);
            let is_reached = square <= self.farthest;
            Clamped::of_vector(if is_reached { 0 } else { dim })
        };
        rows.map(of_row).reduce(Clamped::default, std::ops::Add::add)
    }

    fn decode_into(&self, codes: &[u8], centroid: &[f32], to: &mut [f32]) {
        self.quantizer.decode_onto(codes, centroid, to);
    }

    fn restored(&self, vector: Vec<f32>) -> Result<Vec<f32>> {
        match &self.rotation {
            Some(rotation) => rotation.apply_transposed(&vector, Device::Cpu),
            None => Ok(vector),
        }
    }

    fn reach(&self) -> f32 {
        self.quantizer.codebooks().iter().fold(0.0, |greatest, value| greatest.max(value.abs()))
    }

    fn sections(&self) -> [&[f32]; 2] {
        [self.quantizer.codebooks(), self.rotation.as_ref().map_or(&[], Rotation::matrix)]
    }

    fn quantizer(&self) -> Option<&ProductQuantizer> {
        Some(&self.quantizer)
    }

    fn turn(&self) -> Option<Turn<'_>> {
        self.rotation.as_ref().map(Turn::Matrix)
    }

    fn plan(&self, layout: &mut Layout, shape: &ImageShape<'_>) -> Box<dyn StoredPlan + '_> {
        Box::new(PqPlan::new(layout, shape, &self.quantizer))
    }
}

/// Applies the rotation, if there is one, to `rows`.
fn rotated<'a>(rotation: Option<&Rotation>, rows: Cow<'a, [f32]>, device: Device) -> Result<Cow<'a, [f32]>> {
    match rotation {
        Some(rotation) => rotation.applied_to(rows, device),
        None => Ok(rows),
    }
}

/// Whether all bits after the last bit of each code are zero. Codes have `bits` bits; `bytes` are the bytes of codes
/// from byte `from` on.
fn unused_bits_are_zero(bytes: &[u8], from: usize, bits: usize) -> bool {
    let code_bytes = bits.div_ceil(8);
    let unused = match bits % 8 {
        0 => return true,
        used => u8::MAX << used,
    };
    let first = code_bytes - 1 - from % code_bytes;
    bytes.iter().skip(first).step_by(code_bytes).fold(0, |all, &byte| all | byte) & unused == 0
}
impl RowEncoder for Arc<ProductQuantizer> {
    /// The codebooks, component by component.
    fn tables(&self, _: usize) -> Cow<'_, [f32]> {
        self.all_transposed().into()
    }

    unsafe fn enqueue(&self, on: OnStream<'_>, rows: OnDevice) -> Result<()> {
        let OnDevice { rows, stride, count, labels, centroids, tables, codes, .. } = rows;
        let labels = Some(labels);
        let what = on_device::OnDevice { rows, stride, count, labels, centroids, codebooks: tables, codes };
        // SAFETY: as the caller promises.
        unsafe { on_device::enqueue(on.runtime, on.stream, self, what) }
    }
}
