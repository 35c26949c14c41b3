//! Scale, values and error bounds of the operands of codes.
//!
//! This is [`crate::product::prepare`] for vectors that are stored as codes only. It writes no copy: the scan decodes
//! by the same formula (`crate::ivf::encoding::Operand4`). The error of that formula is measured here, row by row, once
//! for an index.
//!
//! Codes of bytes and of bits are their own operands ([`crate::ivf::code_queries`]): they need no scale, and the
//! formula is the vector that their products stand for.
//!
//! # Cosine
//! A code of a normalised vector stands for a vector r whose length is not 1, and the distance is ⟨x, r⟩ / (‖x‖ ‖r‖).
//! So the vector of the bounds is u = r / ‖r‖, and there are two kinds of operands û:
//! - With a factor w = f32(1/‖r‖) of each row, the scan computes −⟨x̂, r̂⟩ · w, so û = w · r̂. ‖u − û‖ is at most
//!   ‖r − r̂‖ / ‖r‖ + 2⁻²⁴ ‖r̂‖ / ‖r‖. The second part, and the rounding of the product with w, are roundings of the
//!   score, for which [`crate::product::bounds`] has room.
//! - Without it, û = r̂, and ‖u − û‖ ≤ |‖r‖ − 1| + ‖r − r̂‖. f16 rows are so: their length differs from 1 by less than
//!   2⁻¹¹.
//!
//! The factor 1/‖x‖ of a query x, which was normalised before, is 1 but for its rounding and that of a rotation;
//! [`crate::ivf::queries`] measures the difference. If r is zero, its factor is 0: all scores are 0, as the distances
//! are. If ‖r‖ is not between 2⁻¹⁰⁰ and 2¹⁰⁰, the bounds are infinite. A factor takes the 4
//! bytes that a row has for its value anyway.

use cuda_std::global::F32x4;
use cuda_std::launch::LaunchConfig;
use cuda_std::warp::{FULL_MASK, butterfly_sum};
use cuda_std::{Ptr, PtrMut, atomic, device_inline, global, kernel, math, thread, unroll, warp};

use crate::NO_ROW;
use crate::ivf::encoding::{Decode, Operand4, OperandParts, OperandSource, StoredRows};
use crate::pq::codes::Codes;
use crate::product::bounds::Bounds;
use crate::product::element::F32;
use crate::product::metric::{Metric, scale_of};
use crate::product::prepare::raise;

/// The lengths of decoded vectors, except 0, for which the scores of cosine have finite bounds: 2⁻¹⁰⁰ and 2¹⁰⁰.
const LEAST_LENGTH: f64 = 1.0 / GREATEST_LENGTH;
const GREATEST_LENGTH: f64 = (1u128 << 100) as f64;

/// Number of warps in a block of these kernels.
pub const WARPS_PER_BLOCK: u32 = 4;
const THREADS: u32 = 32 * WARPS_PER_BLOCK;

/// Four components of the centre; zeros if there is no centre.
///
/// # Safety
/// A centre has the quad.
#[device_inline]
pub(crate) unsafe fn centre4(centre: Option<Ptr<f32>>, quad: u32) -> [f32; 4] {
    match centre {
        // SAFETY: as the caller promises.
        Some(centre) => unsafe { global::load_nc(centre.wrapping_add(4 * quad as usize).cast::<F32x4>()).0 },
        None => [0.0; 4],
    }
}

/// Raises `greatest` to twice the greatest |component − centre| of the decoded rows. The factor of two leaves room for
/// the f16 parts of [`crate::pq::codes::Operands`].
///
/// # Safety
/// The arrays are as long as the fields say, and every code has a codeword.
#[kernel(max_threads = 128, min_blocks = 8, greatest_code = greatest_component::<Codes>)]
pub struct GreatestCode {
    /// `row_count` rows of codes.
    #[group]
    pub stored: StoredRows,
    /// The list of each row; `NO_ROW` for padding.
    pub row_lists: Ptr<u32>,
    /// Number of rows of the storage.
    pub row_count: u32,
    /// The centre, `stored.dim` components padded to a multiple of 4; absent: no centre.
    pub centre: Option<Ptr<f32>>,
    /// Bits of a float that is not negative: one word.
    pub greatest: PtrMut<u32>,
}

impl GreatestCode {
    /// Each warp has every n-th row, for the n warps that `multiprocessors` run at once.
    pub fn config(&self, multiprocessors: u32) -> LaunchConfig {
        LaunchConfig::warps((self.row_count as u64).min(multiprocessors as u64 * 64), WARPS_PER_BLOCK)
    }
}

/// # Safety
/// As [`GreatestCode`].
#[device_inline]
unsafe fn greatest_component<D: Decode<Query = F32>>(launch: GreatestCode) {
    let GreatestCode { stored, row_lists, row_count, centre, greatest } = launch;
    let stride = stored.dim.next_multiple_of(4);
    let codes = D::of(&stored, stride);
    let lane = warp::lane_id();
    let warps = thread::grid_dim_x() * WARPS_PER_BLOCK;
    let mut row = thread::block_idx_x() * WARPS_PER_BLOCK + warp::warp_id();
    let mut most = 0.0f32;
    while row < row_count {
        // SAFETY: row < row_count, and quads stay below the stride.
        unsafe {
            let list = global::load_nc(row_lists.wrapping_add(row as usize));
            let mut quad = if list == NO_ROW { stride } else { lane };
            while quad < stride / 4 {
                let (r, c) = (codes.quad(row, list, quad), centre4(centre, quad));
                unroll::<4>(|e| most = math::max_f32(most, (r[e] - c[e]).abs()));
                quad += 32;
            }
        }
        row += warps;
    }
    // Floats that are not negative have the order of their bits.
    let most = warp::reduce_max(FULL_MASK, (2.0 * most).to_bits());
    if lane == 0 {
        // SAFETY: `greatest` is one word.
        unsafe { atomic::max_u32(*greatest, most) };
    }
}

/// Writes the scaled f16 parts of the operands ([`crate::pq::codes::Operands`]).
///
/// # Safety
/// The arrays are as long as the fields say, and `greatest` is complete.
#[kernel(max_threads = 128, scale_codes = scale)]
pub struct ScaleCodes {
    /// Centroids of the lists, `stride` components in a row: `centroid_count` components in all.
    pub centroids: Ptr<f32>,
    /// Number of components of all centroids.
    pub centroid_count: u32,
    /// Distance from one centroid to the next in components.
    pub stride: u32,
    /// `stride` components that are subtracted from each centroid; absent: no centre.
    pub centre: Option<Ptr<f32>>,
    /// Codewords: `codeword_count` components in all.
    pub codebooks: Ptr<f32>,
    /// Number of components of all codewords.
    pub codeword_count: u32,
    /// The word that [`GreatestCode`] wrote.
    pub greatest: Ptr<u32>,
    /// The scaled centroids as f16, laid out as `centroids`.
    pub offsets: PtrMut<u16>,
    /// The scaled codewords as f16, laid out as `codebooks`.
    pub halves: PtrMut<u16>,
}

impl ScaleCodes {
    /// One thread for each component.
    pub fn config(&self) -> LaunchConfig {
        LaunchConfig::linear(self.centroid_count.max(self.codeword_count).div_ceil(THREADS) as u64, THREADS)
    }
}

/// # Safety
/// As [`ScaleCodes`].
#[device_inline]
unsafe fn scale(launch: ScaleCodes) {
    let ScaleCodes { centroids, centroid_count, stride, centre, codebooks, codeword_count, .. } = launch;
    let ScaleCodes { greatest, offsets, halves, .. } = launch;
    let at = thread::block_idx_x() * THREADS + thread::thread_idx_x();
    // SAFETY: places below the counts.
    unsafe {
        let scale = scale_of(Metric::L2, f32::from_bits(global::load_nc(*greatest)));
        if at < centroid_count {
            let column = (at % stride.max(1)) as usize;
            let c = match centre {
                Some(centre) => global::load_nc(centre.wrapping_add(column)),
                None => 0.0,
            };
            let value = (global::load_nc(centroids.wrapping_add(at as usize)) - c) * scale;
            global::store(offsets.wrapping_add(at as usize), math::f32_to_f16(value));
        }
        if at < codeword_count {
            let half = math::f32_to_f16(global::load_nc(codebooks.wrapping_add(at as usize)) * scale);
            global::store(halves.wrapping_add(at as usize), half);
        }
    }
}

/// Writes the value of each decoded row, and raises `bounds` to the bounds of each row.
///
/// # Safety
/// The arrays are as long as the fields say, and every code has a codeword; `greatest` is complete.
#[kernel(max_threads = 128, min_blocks = 6, elsewhere = measure_kernels)]
pub struct MeasureCodes {
    /// `row_count` rows of codes.
    #[group]
    pub stored: StoredRows,
    /// The list of each row; `NO_ROW` for padding.
    pub row_lists: Ptr<u32>,
    /// Number of rows of the storage.
    pub row_count: u32,
    /// The centre, `stored.dim` components padded to a multiple of 4; absent: no centre.
    pub centre: Option<Ptr<f32>>,
    /// The metric of the values.
    pub metric: Metric,
    /// Cosine only: 1 if the values are factors of the rows (module documentation).
    pub row_factors: u32,
    /// The word that [`GreatestCode`] wrote.
    pub greatest: Ptr<u32>,
    /// The arrays that [`ScaleCodes`] wrote.
    #[group]
    pub parts: OperandParts,
    /// ‖r − centre‖² (squared L2), the factor, or 0 of each row r; +∞ for padding.
    pub values: PtrMut<f32>,
    /// Two words, which the launch raises: the bits of the greatest norm of a decoded row or its operand, and those of
    /// the greatest residual, the norm of a decoded row minus its operand; for cosine both as in the module
    /// documentation.
    pub bounds: PtrMut<u32>,
    /// A word, which the launch raises to the bits of the greatest factor, +∞ if a row has no finite bounds.
    pub greatest_factor: PtrMut<u32>,
    /// Codes that are the operands only: a word, which the launch raises to the bits of the greatest norm of a row's
    /// bytes, times the row's step if it has one, and times its factor for cosine.
    pub code_norm: PtrMut<u32>,
}

impl MeasureCodes {
    /// One warp for each row.
    pub fn config(&self) -> LaunchConfig {
        LaunchConfig::warps(self.row_count as u64, WARPS_PER_BLOCK)
    }
}

/// # Safety
/// As [`MeasureCodes`].
#[device_inline]
pub(crate) unsafe fn measure<D: Operand4>(launch: MeasureCodes) {
    let MeasureCodes { stored, row_lists, row_count, centre, metric, row_factors, .. } = launch;
    let MeasureCodes { greatest, parts, values, bounds, .. } = launch;
    let row = thread::block_idx_x() * WARPS_PER_BLOCK + warp::warp_id();
    if row >= row_count {
        return;
    }
    let stride = stored.dim.next_multiple_of(4);
    let codes = D::of(&stored, stride);
    let lane = warp::lane_id();
    // SAFETY: row < row_count, and quads stay below the stride.
    unsafe {
        let list = global::load_nc(row_lists.wrapping_add(row as usize));
        let scale = scale_of(Metric::L2, f32::from_bits(global::load_nc(*greatest)));
        let down = 1.0 / scale as f64;
        let (mut own, mut of_operand, mut lost, mut of_codes) = (0.0f64, 0.0f64, 0.0f64, 0.0f64);
        let mut quad = if list == NO_ROW { stride } else { lane };
        while quad < stride / 4 {
            let (r, c) = (codes.quad(row, list, quad), centre4(centre, quad));
            let held = codes.operand4(OperandSource { parts, down, centre: c }, row, list, quad);
            unroll::<4>(|e| {
                let v = r[e] as f64 - c[e] as f64;
                own += v * v;
                of_operand += held.sizes[e] * held.sizes[e];
                lost += (v - held.values[e]) * (v - held.values[e]);
            });
            of_codes += held.code_squares;
            quad += 32;
        }
        let own = butterfly_sum(own);
        let of_operand = butterfly_sum(of_operand);
        let lost = butterfly_sum(lost);
        let of_codes = if D::CODES { butterfly_sum(of_codes) } else { 0.0 };
        if lane == 0 {
            // A decoded component beyond the range of f32 is infinite, and so are the bounds.
            let (mut value, mut measured) = (metric.value(own), Bounds::of_squares(own.max(of_operand), lost));
            if metric.divides_by_norms() {
                let length = math::sqrt_f64(own);
                let is_measured = length == 0.0 || (LEAST_LENGTH..=GREATEST_LENGTH).contains(&length);
                if !is_measured {
                    measured = Bounds { norm: f32::INFINITY, residual: f32::INFINITY };
                } else if row_factors != 0 {
                    value = if length == 0.0 { 0.0 } else { (1.0 / length) as f32 };
                    let of = if length == 0.0 { [0.0; 2] } else { [own.max(of_operand) / own, lost / own] };
                    measured = Bounds::of_squares(of[0], of[1]);
                } else if length != 0.0 {
                    let residual = math::sqrt_f64(lost) + (length - 1.0).abs();
                    measured = Bounds::of_squares(own.max(of_operand).max(1.0), residual * residual);
                }
                raise(*launch.greatest_factor, if is_measured { value } else { f32::INFINITY });
            }
            if D::CODES {
                let factor = if metric.divides_by_norms() { value as f64 } else { 1.0 };
                raise(*launch.code_norm, Bounds::of_squares(of_codes * factor * factor, 0.0).norm);
            }
            let value = if list == NO_ROW { f32::INFINITY } else { value };
            global::store(values.wrapping_add(row as usize), value);
            let Bounds { norm, residual } = measured;
            raise(*bounds, norm);
            raise(bounds.wrapping_add(1), residual);
        }
    }
}

/// Sets the value of padding rows to +∞.
///
/// # Safety
/// Both arrays have `row_count` entries.
#[kernel(max_threads = 128, mark_padding = mark)]
pub struct MarkPadding {
    /// The rank of each row; `NO_ROW` for padding.
    pub ranks: Ptr<u32>,
    /// Number of rows, with padding.
    pub row_count: u32,
    /// The value of each row; only those of padding change.
    pub values: PtrMut<f32>,
}

impl MarkPadding {
    /// One thread for each row.
    pub fn config(&self) -> LaunchConfig {
        LaunchConfig::linear(self.row_count.div_ceil(THREADS) as u64, THREADS)
    }
}

/// # Safety
/// As [`MarkPadding`].
#[device_inline]
unsafe fn mark(MarkPadding { ranks, row_count, values }: MarkPadding) {
    let row = thread::block_idx_x() * THREADS + thread::thread_idx_x();
    if row < row_count {
        // SAFETY: row < row_count.
        unsafe {
            if global::load_nc(ranks.wrapping_add(row as usize)) == NO_ROW {
                global::store(values.wrapping_add(row as usize), f32::INFINITY);
            }
        }
    }
}

/// Counts the rows of each list that pass a filter.
///
/// # Safety
/// The arrays cover the lists and their rows; the filter has a bit for every rank.
#[kernel(max_threads = 128, count_live = count)]
pub struct CountLive {
    /// The first row of each list.
    pub list_starts: Ptr<u32>,
    /// The number of rows of each list.
    pub lengths: Ptr<u32>,
    /// The rank of each row.
    pub ranks: Ptr<u32>,
    /// A bit for each rank, 1 for rows that pass.
    pub filter: Ptr<u32>,
    /// The number of rows of each list that pass; must be 0 before the launch.
    pub live: PtrMut<u32>,
}

impl CountLive {
    /// One block for each of `lists` lists.
    pub fn config(&self, lists: u32) -> LaunchConfig {
        LaunchConfig::linear(lists as u64, THREADS)
    }
}

/// # Safety
/// As [`CountLive`].
#[device_inline]
unsafe fn count(CountLive { list_starts, lengths, ranks, filter, live }: CountLive) {
    let list = thread::block_idx_x() as usize;
    // SAFETY: list < list_count, rows below the list's length.
    unsafe {
        let start = global::load_nc(list_starts.wrapping_add(list)) as usize;
        let length = global::load_nc(lengths.wrapping_add(list));
        let mut passed = 0u32;
        let mut at = thread::thread_idx_x();
        while at < length {
            let rank = global::load_nc(ranks.wrapping_add(start + at as usize));
            passed += global::load_nc(filter.wrapping_add((rank / 32) as usize)) >> (rank % 32) & 1;
            at += THREADS;
        }
        // `live` is 0 before the launch.
        let of_warp = warp::reduce_add(FULL_MASK, passed);
        if warp::lane_id() == 0 {
            atomic::add_u32(live.wrapping_add(list), of_warp);
        }
    }
}
