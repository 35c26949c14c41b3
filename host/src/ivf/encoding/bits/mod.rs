//! One to eight bits for each component of the residual, after a rotation that mixes all components.
//!
//! ```text
//! x  = the transformed vector: normalised for cosine, then rotated (crate::pq::mixing)
//! y  = x − c, component by component in f32, for the centroid c of the list
//! code: a level of each component, and one step for the vector, so that step · levels is near y
//! r_i = f32(c_i + f32(step · level_i))
//! rest = ‖x − r‖ + ‖x‖ · 2^-16    for cosine ‖x / ‖x‖ − r / ‖r‖‖ + 2^-16; rounded up
//! ```
//!
//! The rest bounds the error of the code: the distance of any query from r differs from that from x by at most as much.
//! [`crate::ivf::proof`] says what follows, and what the second summand is for.
//!
//! [`warpann_kernels::ivf::encoding::bits`] defines levels and the bytes of a code.
//!
//! # Why it works
//! A random rotation makes the components of any vector nearly normal, with the same variance, so the same few levels
//! fit all of them, and nothing is learned but the lists (RaBitQ, Gao and Long 2024; its extension to more bits, Gao et
//! al. 2024, arXiv 2405.12497 and 2409.09913). Among all steps the code takes one whose levels have nearly the greatest
//! cosine to y, and step · levels is the projection of y onto the levels. So what the code leaves out, y − step ·
//! levels, is orthogonal to them, and has the length √(1 − cos²)·‖y‖. For normal components of the same variance √(1 −
//! cos²) is .603, .345, .194, .108, .059, .032, .018 and .009 for 1 to 8 bits, with the best step for all of them. With
//! a step of their own, vectors of 384 components have .598, .340, .188, .102, .054, .028, .014 and less (a test
//! compares).
//!
//! # Algorithm
//! ```text
//! m = greatest |y_i|;  w_i = |y_i| / m
//! for each of TRIALS grids g = (FIRST + trial / TRIALS) / 2^B (2^7 for eight bits):
//!     n_i   = w_i / (2·g) − 1/2 (eight bits: w_i / g) to the nearest whole number, within the levels
//!     level = 2·n_i + 1 (eight bits: n_i)
//!     dot = Σ w_i·level_i, square = Σ level_i²
//! the grid with the greatest dot² / square, the first of equals; step = m · dot / square
//! ```
//!
//! All in f32, with sums of [`LANES`] lanes, so that every device makes the same codes; the step in f64. A step below
//! [`LEAST_STEP`] becomes 0, with levels of zero bits: the code is then the centroid. The sums of the rest are f64, of
//! a lane for each component of a group.
//!
//! # Cost
//! O(dim · TRIALS) for a vector, and O(dim · log dim) for the rotation. A GPU codes vectors after it has found their
//! lists (`warpann_kernels::ivf::encode_bits`). A code has 8 + 4·B·⌈dim / 32⌉ bytes.

mod gpu;

use std::borrow::Cow;
use std::sync::Arc;

use rayon::prelude::*;
use warpann_kernels::ivf::encode_bits::{
    EncodeBits, GREATEST_STEP, LANES, LEAST_STEP, Levels, SLACK, TRIALS, code_of, rest_of,
};
use warpann_kernels::ivf::encoding::bits::{Field, GROUP, HEAD_BYTES, MOST_BITS, WIDTHS, levels, row_bytes, unit};
use warpann_kernels::pq::mix::Mix;

use self::gpu::BitsPlan;
use crate::device::queue::OnStream;
use crate::device::scratch::Layout;
use crate::ivf::encoding::codec::{Codec, DeviceCoder, FileParts, Scheme, Trained, Training, to_f32};
use crate::ivf::encoding::list_coder::{Coder, OnDevice, RowEncoder};
use crate::ivf::gpu::stored_plan::{ImageShape, StoredPlan};
use crate::ivf::rest::Rest;
use crate::kmeans::gpu::assigner::Assigner;
use crate::pq::encode::Residuals;
use crate::pq::mixing::{Mixing, ROUNDS};
use crate::pq::turn::Turn;
use crate::validate::check_range;
use crate::vectors::VectorSlice;
use crate::{Device, ElementType, Error, Metric, Result, host_memory};

/// Numbers of bits that a component may have.
const BITS: (usize, usize) = (1, MOST_BITS as usize);
/// Smallest number of rows that one task codes.
const RUN: usize = 16;
/// The layout of codes, in files. 0 had a word for each bit of the 32 codes of a group.
const LAYOUT: u32 = 1;

/// The scheme of [`Encoding::Bits`](crate::ivf::Encoding::Bits), with its parameter.
#[derive(Debug)]
pub(crate) struct BitsScheme {
    pub bits: u32,
}

impl BitsScheme {
    pub(super) fn read_words(words: [u32; 3]) -> Option<BitsScheme> {
        let [bits, LAYOUT, 0] = words else { return None };
        (bits != 0).then_some(BitsScheme { bits })
    }
}

impl Scheme for BitsScheme {
    fn name(&self) -> &'static str {
        "bits"
    }

    fn check(&self, _: usize, _: ElementType) -> Result<()> {
        check_range("bits per component", self.bits as usize, BITS)
    }

    fn code_bytes(&self, dim: usize, _: ElementType) -> usize {
        row_bytes(dim, self.bits)
    }

    fn train(&self, training: Training<'_, '_>) -> Result<Trained> {
        let dim = training.rows.dim();
        let rotation = Mixing::new(dim, training.seed)?;
        let rows = rotation.apply(&training.normalised()?)?;
        let centroids = training.cluster(&training.kmeans, &rows, dim)?.centroids;
        let codec = BitsCodec::new(self.bits, rotation, training.metric);
        Ok(Trained { dim, centroids, codec: Arc::new(codec) })
    }

    fn words(&self) -> [u32; 3] {
        [self.bits, LAYOUT, 0]
    }

    fn contradiction(&self, _: u64, _: ElementType) -> Option<&'static str> {
        check_range("bits per component", self.bits as usize, BITS).is_err().then_some("bits of a component")
    }

    fn section_lengths(&self, dim: u64) -> Option<[u64; 2]> {
        Some([dim.checked_mul(ROUNDS as u64)?, 0])
    }

    fn defect(&self, codes: &[u8], from: usize, dim: usize, _: ElementType) -> Option<&'static str> {
        // Codes are words, and so are their parts in a file: a chunk has whole words.
        let code_words = row_bytes(dim, self.bits) / WORD;
        let in_last = dim % GROUP as usize;
        let last_group = code_words - if in_last == 0 { 0 } else { self.bits as usize };
        let used = packed(self.bits, std::iter::repeat_n(-1, in_last));
        let (mut steps, mut rests, mut unused_bits) = (true, true, 0);
        for (at, word) in (from / WORD..).zip(codes.chunks_exact(WORD)) {
            let word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
            let at = at % code_words;
            if at == 0 {
                let step = f32::from_bits(word);
                steps &= word == 0 || (LEAST_STEP..=GREATEST_STEP).contains(&step);
            } else if at == 1 {
                // Not negative and not NaN.
                rests &= word <= f32::INFINITY.to_bits();
            } else if at >= last_group {
                unused_bits |= word & !used[at - last_group];
            }
        }
        if !steps {
            return Some("a step of a code is not in range");
        }
        if !rests {
            return Some("a rest of a code is not a length");
        }
        (unused_bits != 0).then_some("unused bits of a code are set")
    }

    fn alignment(&self, _: ElementType) -> usize {
        WORD
    }

    fn codec(&self, file: FileParts<'_>) -> Result<Arc<dyn Codec>, &'static str> {
        let rotation = Mixing::from_signs(file.dim, file.codebooks).ok_or("a sign of the rotation is not 1 or -1")?;
        Ok(Arc::new(BitsCodec::new(self.bits, rotation, file.metric)))
    }
}

/// Bytes of a word of a code.
const WORD: usize = size_of::<u32>();
/// Bytes of a code before its first group: step and rest.
const HEAD: usize = HEAD_BYTES as usize;

/// The words of a group, of the codes of its components.
fn packed(bits: u32, codes: impl Iterator<Item = i32>) -> [u32; MOST_BITS as usize] {
    let mut words = [0; MOST_BITS as usize];
    let fields = WIDTHS.map(|width| Field::of(bits, width));
    for (i, code) in (0..).zip(codes) {
        for field in fields.iter().filter(|field| field.exists()) {
            let own = field.of_code(bits, code as u32) << field.place_in_word(i / 4, i % 4);
            words[field.word(i / 4) as usize] |= own;
        }
    }
    words
}

/// Encodes and decodes by codes of `bits` bits.
#[derive(Debug, Clone)]
struct BitsCodec {
    bits: u32,
    rotation: Mixing,
    /// Whether the metric compares directions.
    directions: bool,
}

/// Σ w·level and Σ level² of the levels of a grid.
fn products(levels: Levels, w: &[f32], up: f32) -> [f32; 2] {
    let mut sums = [[0.0f32; LANES as usize]; 2];
    for w in w.chunks(LANES as usize) {
        for (lane, w) in w.iter().enumerate() {
            let level = levels.level(levels.number(w * up));
            sums[0][lane] += w * level;
            sums[1][lane] += level * level;
        }
    }
    sums.map(|lanes| lanes.iter().sum())
}

/// The step of the best grid for `w`, of which the greatest is 1, and 1 / grid.
fn best_grid(levels: Levels, w: &[f32]) -> (f64, f32) {
    let mut best = (0.0f32, 0.0f64, 1.0f32);
    for trial in 0..TRIALS {
        let up = levels.up(trial);
        let [dot, square] = products(levels, w, up);
        let found = dot * dot / square;
        if found > best.0 {
            best = (found, f64::from(dot) / f64::from(square), up);
        }
    }
    (best.1, best.2)
}

/// One of the two numbers at the start of a code.
fn word_of(code: &[u8], word: usize) -> f32 {
    f32::from_le_bytes(std::array::from_fn(|i| code[WORD * word + i]))
}

/// The length along y of what a code leaves out of y: `length` is the length of all of it, which is orthogonal to the
/// levels, whose squared length is `square`. So it is length² / ‖y‖, and ‖y‖² = length² + square.
fn along(length: f32, square: f64) -> f32 {
    let of_rest = f64::from(length).powi(2);
    let along = (of_rest / (of_rest + square).sqrt() * (1.0 + SLACK)) as f32;
    // An infinite length, or none.
    if along <= length { along } else { length }
}

/// The sum of a term of each component, in the order of the kernel: in a lane for each component of a group, and the
/// lanes by halves.
fn sum(x: &[f32], r: &[f32], term: impl Fn(f64, f64) -> f64) -> f64 {
    let mut lanes = [0.0f64; GROUP as usize];
    for (x, r) in x.chunks(GROUP as usize).zip(r.chunks(GROUP as usize)) {
        x.iter().zip(r).enumerate().for_each(|(i, (&x, &r))| lanes[i] += term(x.into(), r.into()));
    }
    let mut half = lanes.len() / 2;
    while half > 0 {
        (0..half).for_each(|lane| lanes[lane] += lanes[lane + half]);
        half /= 2;
    }
    lanes[0]
}

/// The rest of the code of `x` that stands for `r`.
fn rest(x: &[f32], r: &[f32], directions: bool) -> f32 {
    let (of_x, of_r) = (sum(x, r, |x, _| x * x).sqrt(), sum(x, r, |_, r| r * r).sqrt());
    let left = match directions && of_x > 0.0 && of_r > 0.0 {
        true => sum(x, r, |x, r| (x / of_x - r / of_r) * (x / of_x - r / of_r)),
        false => sum(x, r, |x, r| (x - r) * (x - r)),
    };
    rest_of(of_x, of_r, left.sqrt(), directions)
}

impl BitsCodec {
    fn new(bits: u32, rotation: Mixing, metric: Metric) -> BitsCodec {
        BitsCodec { bits, rotation, directions: metric.divides_by_norms() }
    }

    /// Writes the code of a residual, whose components are finite. Fails with the column of its greatest component if
    /// the step is too large. `to` is zero before; `w` is scratch.
    fn encode_row(&self, y: &[f32], w: &mut Vec<f32>, to: &mut [u8]) -> Result<(), usize> {
        let greatest = y.iter().fold(0.0f32, |greatest, y| greatest.max(y.abs()));
        if greatest == 0.0 {
            return Ok(());
        }
        w.clear();
        w.extend(y.iter().map(|y| y.abs() / greatest));
        let levels = Levels::of(self.bits);
        let (step, up) = best_grid(levels, w);
        let step = (f64::from(greatest) * step) as f32;
        if step > GREATEST_STEP {
            return Err(y.iter().position(|y| y.abs() == greatest).unwrap_or_default());
        }
        if step < LEAST_STEP {
            return Ok(());
        }
        let (head, groups) = to.split_at_mut(HEAD);
        head[..WORD].copy_from_slice(&step.to_le_bytes());
        let sizes = w.chunks(GROUP as usize).zip(y.chunks(GROUP as usize));
        for ((w, y), to) in sizes.zip(groups.chunks_exact_mut(self.bits as usize * WORD)) {
            let code = |(w, y): (&f32, &f32)| code_of(self.bits, levels.number(w * up) as i32, *y < 0.0);
            let words = packed(self.bits, w.iter().zip(y).map(code));
            for (to, word) in to.chunks_exact_mut(WORD).zip(words) {
                to.copy_from_slice(&word.to_le_bytes());
            }
        }
        Ok(())
    }
}

impl Codec for BitsCodec {
    fn transform<'a>(&self, rows: VectorSlice<'a>, metric: Metric, _: Device) -> Result<Cow<'a, [f32]>> {
        Ok(Cow::Owned(self.rotation.apply(&to_f32(rows, metric.divides_by_norms())?)?))
    }

    fn device_coder(&self, assigner: Assigner) -> Result<DeviceCoder> {
        let shared_bytes = assigner.runtime().limits().shared_bytes;
        let dim = self.rotation.dim() as u32;
        if !EncodeBits::fits(dim, shared_bytes) || dim > Mix::longest(shared_bytes) {
            return Ok(DeviceCoder::Lists(Box::new(assigner)));
        }
        Ok(DeviceCoder::Codes(Box::new(Coder::new(assigner, Box::new(self.clone()))?)))
    }

    fn codes_generated(&self) -> bool {
        true
    }

    fn encode(&self, rows: &[f32], residuals: Residuals<'_>) -> Result<Vec<u8>> {
        let dim = self.rotation.dim();
        let code_bytes = row_bytes(dim, self.bits);
        let count = rows.len() / dim;
        let mut codes: Vec<u8> = host_memory::zeroed(host_memory::count::<u8>(&[count, code_bytes])?)?;
        let rows = rows.par_chunks_exact(dim).zip(residuals.labels).enumerate();
        let refused = codes.par_chunks_exact_mut(code_bytes).zip(rows).with_min_len(RUN).map_init(
            || (vec![0.0f32; dim], Vec::new()),
            |(y, w), (to, (row, (x, &label)))| {
                let centroid = &residuals.centroids[label as usize * dim..][..dim];
                for (y, (x, c)) in y.iter_mut().zip(x.iter().zip(centroid)) {
                    *y = x - c;
                }
                let too_large = |column| Error::Overflow { derived: "residual", row, column };
                if let Some(column) = y.iter().position(|y| !y.is_finite()) {
                    return Err(too_large(column));
                }
                self.encode_row(y, w, to).map_err(too_large)?;
                self.decode_into(to, centroid, y);
                to[WORD..HEAD].copy_from_slice(&rest(x, y, self.directions).to_le_bytes());
                Ok(())
            },
        );
        // The error of the first row, on any number of threads.
        match refused.filter_map(Result::err).find_first(|_| true) {
            Some(error) => Err(error),
            None => Ok(codes),
        }
    }

    fn decode_into(&self, codes: &[u8], centroid: &[f32], to: &mut [f32]) {
        let dim = self.rotation.dim();
        for (to, code) in to.chunks_exact_mut(dim).zip(codes.chunks_exact(row_bytes(dim, self.bits))) {
            let (step, groups) = (word_of(code, 0) * unit(self.bits), &code[HEAD..]);
            let rows = to.chunks_mut(GROUP as usize).zip(centroid.chunks(GROUP as usize));
            for ((to, centroid), group) in rows.zip(groups.chunks_exact(self.bits as usize * WORD)) {
                let mut words = [0u32; MOST_BITS as usize];
                for (word, bytes) in words.iter_mut().zip(group.chunks_exact(WORD)) {
                    *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                }
                for (s, (to, centroid)) in (0..).zip(to.chunks_mut(4).zip(centroid.chunks(4))) {
                    let levels = levels(self.bits, s, |at| words[at as usize]).to_le_bytes();
                    for (to, (c, level)) in to.iter_mut().zip(centroid.iter().zip(levels)) {
                        *to = c + step * f32::from(level as i8);
                    }
                }
            }
        }
    }

    fn rest(&self, codes: &[u8]) -> Option<Rest> {
        let dim = self.rotation.dim();
        let (zeros, mut levels) = (vec![0.0; dim], vec![0.0; dim]);
        let of_code = |code: &[u8]| {
            self.decode_into(code, &zeros, &mut levels);
            let length = word_of(code, 1);
            Rest { length, along: along(length, levels.iter().map(|&x| f64::from(x).powi(2)).sum()) }
        };
        Some(codes.chunks_exact(row_bytes(dim, self.bits)).map(of_code).fold(Rest::default(), Rest::and))
    }

    fn restored(&self, vector: Vec<f32>) -> Result<Vec<f32>> {
        Ok(self.rotation.undo(&vector))
    }

    fn reach(&self) -> f32 {
        GREATEST_STEP * 255.0
    }

    fn sections(&self) -> [&[f32]; 2] {
        [self.rotation.signs(), &[]]
    }

    fn turn(&self) -> Option<Turn<'_>> {
        Some(Turn::Mixing(&self.rotation))
    }

    fn plan(&self, layout: &mut Layout, shape: &ImageShape<'_>) -> Box<dyn StoredPlan + '_> {
        Box::new(BitsPlan::new(layout, shape, self.bits))
    }
}

impl RowEncoder for BitsCodec {
    /// The signs of each round, padded.
    fn tables(&self, stride: usize) -> Cow<'_, [f32]> {
        let mut signs = vec![0.0; ROUNDS * stride];
        let rounds = self.rotation.signs().chunks_exact(self.rotation.dim());
        signs.chunks_exact_mut(stride).zip(rounds).for_each(|(to, round)| to[..round.len()].copy_from_slice(round));
        Cow::Owned(signs)
    }

    fn rotates(&self) -> bool {
        true
    }

    fn derived(&self) -> Option<&'static str> {
        Some("residual")
    }

    unsafe fn enqueue(&self, on: OnStream<'_>, rows: OnDevice) -> Result<()> {
        let OnDevice { rows, stride, count, labels, centroids, codes, refused, .. } = rows;
        let (dim, bits, directions) = (self.rotation.dim() as u32, self.bits, self.directions.into());
        let launch = EncodeBits { rows, count, stride, dim, labels, centroids, bits, directions, codes, refused };
        let config = launch.config(on.runtime.limits().shared_bytes);
        // SAFETY: as the caller promises; `device_coder` found that a vector fits.
        unsafe { on.runtime.launch(on.stream, &EncodeBits::KERNEL, config, launch) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    fn normal(random: &mut Random) -> f32 {
        ((0..12).map(|_| random.unit()).sum::<f64>() - 6.0) as f32
    }

    fn codec(dim: usize, bits: u32) -> BitsCodec {
        BitsCodec::new(bits, Mixing::new(dim, 1).unwrap(), Metric::L2)
    }

    /// The codes of rows around a centroid, and what they decode to.
    fn round_trip(codec: &BitsCodec, rows: &[f32], centroid: &[f32]) -> (Vec<u8>, Vec<f32>) {
        let labels = vec![0; rows.len() / centroid.len()];
        let codes = codec.encode(rows, Residuals { labels: &labels, centroids: centroid }).unwrap();
        let mut decoded = vec![f32::NAN; rows.len()];
        codec.decode_into(&codes, centroid, &mut decoded);
        (codes, decoded)
    }

    #[test]
    fn the_part_left_out_is_that_of_theory() {
        let mut random = Random::new(7);
        let dim = 384;
        let rows: Vec<f32> = (0..200 * dim).map(|_| normal(&mut random)).collect();
        let theory = [0.603, 0.345, 0.194, 0.108, 0.059, 0.032, 0.018, 0.009];
        for (bits, theory) in (1..).zip(theory) {
            let (_, decoded) = round_trip(&codec(dim, bits), &rows, &vec![0.0; dim]);
            let square = |values: &mut dyn Iterator<Item = f32>| values.map(|x| f64::from(x * x)).sum::<f64>();
            let left = square(&mut rows.iter().zip(&decoded).map(|(x, r)| x - r));
            let ratio = (left / square(&mut rows.iter().copied())).sqrt();
            // A finite vector has a greatest component, so fine grids do better than for all normal numbers.
            assert!((0.7..1.0).contains(&(ratio / theory)), "{bits} bits: {ratio} where {theory} is expected");
        }
    }

    #[test]
    fn the_part_left_out_is_orthogonal_to_the_levels() {
        let mut random = Random::new(8);
        for (dim, bits) in [(1, 1), (3, 2), (31, 3), (64, 4), (100, 7), (257, 8)] {
            let rows: Vec<f32> = (0..50 * dim).map(|_| normal(&mut random)).collect();
            let (_, decoded) = round_trip(&codec(dim, bits), &rows, &vec![0.0; dim]);
            for (x, r) in rows.chunks_exact(dim).zip(decoded.chunks_exact(dim)) {
                let product: f64 = x.iter().zip(r).map(|(x, r)| f64::from(x - r) * f64::from(*r)).sum();
                let size: f64 = r.iter().map(|r| f64::from(r * r)).sum();
                assert!(product.abs() <= 1e-5 * size, "{dim} components, {bits} bits: {product} of {size}");
            }
        }
    }

    /// The rest bounds the change of every distance, here of the vector from itself and from its opposite.
    #[test]
    fn rests_bound_what_codes_leave_out() {
        let mut random = Random::new(9);
        for (metric, dim, bits) in
            [(Metric::L2, 1, 1), (Metric::L2, 40, 3), (Metric::Cosine, 33, 2), (Metric::Cosine, 7, 8)]
        {
            let codec = BitsCodec::new(bits, Mixing::new(dim, 1).unwrap(), metric);
            let rows: Vec<f32> =
                (0..30 * dim).map(|_| normal(&mut random) * 2f32.powi(random.below(40) as i32 - 20)).collect();
            let (codes, decoded) = round_trip(&codec, &rows, &vec![0.25; dim]);
            for ((x, r), code) in rows.chunks(dim).zip(decoded.chunks(dim)).zip(codes.chunks(row_bytes(dim, bits))) {
                let size = |x: &[f32]| x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
                let (of_x, of_r) = if metric == Metric::L2 { (1.0, 1.0) } else { (size(x), size(r)) };
                let left = |(x, r): (&f32, &f32)| (f64::from(*x) / of_x - f64::from(*r) / of_r).powi(2);
                let left = x.iter().zip(r).map(left).sum::<f64>().sqrt();
                let slack = SLACK * if metric == Metric::L2 { size(x) } else { 1.0 };
                let rest = f64::from(codec.rest(code).unwrap().length);
                assert!(
                    (left + slack..=(left + slack) * 1.0001 + 1e-30).contains(&rest),
                    "{rest}, {left} are left out"
                );
            }
            let each = codes.chunks(row_bytes(dim, bits)).map(|code| codec.rest(code).unwrap());
            assert_eq!(codec.rest(&codes), each.reduce(Rest::and));
        }
    }

    /// Over rotations, the product of what a code leaves out, without its part along the residual, and the way from its
    /// vector to a query exceeds the bound of [`crate::ivf::proof`] as rarely as the theory says, whatever the vectors:
    /// normal ones, few large components, and queries along the residual and against it. Normal numbers would exceed it
    /// with a chance of .159, .023 and .0013.
    #[test]
    fn products_exceed_the_probable_bound_as_rarely_as_theory_says() {
        let mut random = Random::new(10);
        for (dim, bits, rotations) in [(24, 2, 60), (96, 1, 40), (96, 4, 40), (384, 3, 12)] {
            let mut exceeded = [0usize; 3];
            let mut pairs = 0;
            for seed in 0..rotations {
                let codec = BitsCodec::new(bits, Mixing::new(dim, seed).unwrap(), Metric::L2);
                let few = |random: &mut Random| if random.below(dim / 3) == 0 { 9.0 * normal(random) } else { 0.0 };
                let mut rows: Vec<f32> = (0..10 * dim).map(|_| normal(&mut random)).collect();
                rows.extend((0..10 * dim).map(|_| few(&mut random)));
                let mut queries: Vec<f32> = (0..10 * dim).map(|_| normal(&mut random)).collect();
                queries.extend((0..10 * dim).map(|_| few(&mut random)));
                queries.extend(rows.iter().map(|x| 2.0 * x));
                queries.extend(rows.iter().map(|x| x / 2.0));
                let (rows, queries) = (codec.rotation.apply(&rows).unwrap(), codec.rotation.apply(&queries).unwrap());
                let (_, decoded) = round_trip(&codec, &rows, &vec![0.0; dim]);
                let size = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
                let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
                for (x, r) in rows.chunks(dim).map(wide).zip(decoded.chunks(dim).map(wide)) {
                    let left: Vec<f64> = x.iter().zip(&r).map(|(x, r)| x - r).collect();
                    let length = size(&mut x.iter().copied());
                    for q in queries.chunks(dim).map(wide).filter(|_| length > 0.0) {
                        let way: Vec<f64> = q.iter().zip(&x).map(|(q, x)| q - x).collect();
                        let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
                        let along = [&way, &left].map(|of| product(of, &x) / length);
                        let across = [&way, &left].map(|of| size(&mut of.iter().copied()));
                        let across: f64 =
                            across.iter().zip(along).map(|(all, along)| all * all - along * along).product();
                        // Queries along the residual have no other part.
                        if across <= 1e-9 {
                            continue;
                        }
                        pairs += 1;
                        for (chance, exceeded) in exceeded.iter_mut().enumerate() {
                            let bound = (chance + 1) as f64 / (dim as f64 - 2.0).sqrt() * across.sqrt();
                            *exceeded += usize::from(product(&way, &left) - along[0] * along[1] > bound);
                        }
                    }
                }
            }
            for (chance, exceeded) in exceeded.into_iter().enumerate() {
                let (share, theory) = (exceeded as f64 / pairs as f64, (-0.5 * (chance as f64 + 1.0).powi(2)).exp());
                assert!(share <= theory, "{dim} components, {bits} bits, {chance}: {share} of {pairs}, not {theory}");
            }
            let first = exceeded[0] as f64 / pairs as f64;
            assert!((0.1..0.2).contains(&first), "{dim} components, {bits} bits: {first} of {pairs}");
        }
    }

    #[test]
    fn codes_of_zeros_under_cosine_prove_nothing() {
        let codec = BitsCodec::new(2, Mixing::new(3, 1).unwrap(), Metric::Cosine);
        let (codes, _) = round_trip(&codec, &[0.0; 3], &[0.5, 0.5, 0.5]);
        assert!(codec.rest(&codes).unwrap().length > 1.0);
    }

    #[test]
    fn codes_of_known_residuals() {
        // w is 1, 1/4, 1, 1/2. Of the levels 3, 1, 3, 1 the product is 27/4 and the square 20; of 3, 1, 3, 3, which
        // finer grids have, 31/4 and 28.
        let codec = codec(4, 2);
        let (codes, decoded) = round_trip(&codec, &[14.0, 11.0, 6.0, 12.0], &[10.0; 4]);
        let step = 1.35f32;
        assert_eq!(codes[..4], step.to_le_bytes());
        // Codes 1, 0, -2, 0 of components 0 to 3, of which each has a byte of the first word.
        assert_eq!(codes[8..12], [1, 0, 2, 0]);
        assert_eq!(codes[12..16], [0; 4]);
        assert_eq!(decoded, [10.0 + step * 3.0, 10.0 + step, 10.0 + step * -3.0, 10.0 + step]);
        assert_eq!(codes.len(), row_bytes(4, 2));
    }

    #[test]
    fn residuals_at_the_ends_of_f32() {
        let codec = codec(3, 5);
        let centroid = [0.5, -1.0, 0.0];
        // The code of the centroid has a rest only.
        let is_centroid = |(mut codes, decoded): (Vec<u8>, Vec<f32>), centroid: &[f32]| {
            codes[WORD..HEAD].fill(0);
            codes.iter().all(|byte| *byte == 0) && decoded == centroid
        };
        assert!(is_centroid(round_trip(&codec, &centroid, &centroid), &centroid));
        let tiny = [f32::from_bits(1), 0.0, f32::MIN_POSITIVE];
        assert!(is_centroid(round_trip(&codec, &tiny, &[0.0; 3]), &[0.0; 3]));
        for unit in [1e-30, 1e30] {
            let rows = [unit, -2.0 * unit, 0.25 * unit];
            let (codes, decoded) = round_trip(&codec, &rows, &[0.0; 3]);
            assert_eq!(BitsScheme { bits: 5 }.defect(&codes, 0, 3, ElementType::F32), None);
            for (x, r) in rows.iter().zip(decoded) {
                assert!((x - r).abs() <= 0.09 * unit, "{x} became {r}");
            }
        }
        for row in [[1.0, f32::MAX, 2.0], [1.0, f32::MIN, 2.0]] {
            let centroids = [0.0, -row[1], 0.0];
            let error = codec.encode(&row, Residuals { labels: &[0], centroids: &centroids }).unwrap_err();
            assert!(matches!(error, Error::Overflow { derived: "residual", row: 0, column: 1 }), "{error}");
            let error = codec.encode(&row, Residuals { labels: &[0], centroids: &[0.0; 3] }).unwrap_err();
            assert!(matches!(error, Error::Overflow { derived: "residual", row: 0, column: 1 }), "{error}");
        }
    }

    #[test]
    fn the_first_row_that_is_refused_is_named() {
        let codec = codec(2, 4);
        let mut rows = vec![1.0f32; 2 * 3000];
        for row in [40, 41, 900, 2999] {
            rows[2 * row + 1] = f32::MAX;
        }
        for _ in 0..20 {
            let error = codec.encode(&rows, Residuals { labels: &[0; 3000], centroids: &[0.0; 2] }).unwrap_err();
            assert!(matches!(error, Error::Overflow { derived: "residual", row: 40, column: 1 }), "{error}");
        }
    }

    #[test]
    fn damaged_codes_are_found() {
        let scheme = BitsScheme { bits: 3 };
        let dim = 37;
        let bytes = row_bytes(dim, 3);
        let rows: Vec<f32> = (0..4 * dim).map(|i| (i as f32).sin()).collect();
        let (codes, _) = round_trip(&codec(dim, 3), &rows, &vec![0.0; dim]);
        let defect = |codes: &[u8], from: usize| scheme.defect(codes, from, dim, ElementType::F32);
        assert_eq!(defect(&codes, 0), None);
        for from in (0..codes.len()).step_by(4) {
            assert_eq!(defect(&codes[from..], from), None, "from byte {from}");
        }
        let damaged = |at: usize, value: u8| {
            let mut codes = codes.clone();
            codes[at] = value;
            codes
        };
        // A negative step, NaN, and one above the greatest.
        for value in [0xbf, 0x7f, 0x74] {
            assert_eq!(defect(&damaged(2 * bytes + 3, value), 0), Some("a step of a code is not in range"));
        }
        // A negative rest, and NaN.
        for value in [0xbf, 0x7f] {
            let mut codes = damaged(2 * bytes + 7, value);
            codes[2 * bytes + 6] = 0xc0;
            assert_eq!(defect(&codes, 0), Some("a rest of a code is not a length"));
        }
        // The second group has components 32 to 36. Of the two words of the higher bits, and of the word of the lowest
        // bits, two pairs of byte 0 and one of the others are used.
        for (byte, value) in [(0, 0x10), (1, 4), (3, 0x80), (4, 1), (8, 4), (9, 2), (11, 0x80)] {
            let at = bytes - 12 + byte;
            assert_eq!(defect(&damaged(at, value), 0), Some("unused bits of a code are set"), "byte {byte}");
        }
    }
}
