//! Queries as two planes of bytes, for the scans of codes that are signed bytes ([`crate::ivf::encoding::scalar8`]) or
//! become such ([`crate::ivf::encoding::bits`]), and the terms of pairs of a query and a list.
//!
//! # Problem
//! Minus the centre, a row of codes decodes to r = h + s·c, component by component. h depends on the list, the steps s
//! on the index, and only the signed bytes c = code − 128 on the row. Decoding rows to f16 operands costs the scan more
//! than the product. But ⟨v, r⟩ = ⟨v, h⟩ + Σ wᵢcᵢ with w = v·s, and c is bytes already. So w becomes bytes, once for
//! each query, and tensor cores multiply them with the codes, exactly.
//!
//! Codes of bits have s = 1, and a step σ of each row: r = h + σ·c. Below, the c of the bound is then σ·c.
//!
//! # Algorithm
//! ```text
//! v = x − centre (squared L2) or x (inner product, and cosine, whose queries are normalised before)
//! t = greatest |vᵢ·sᵢ| / 32512
//! nᵢ = vᵢ·sᵢ / t as a whole number, within ±32512;   nᵢ = 256·highᵢ + lowᵢ,  highᵢ in −127 .. 127, lowᵢ in −128 .. 127
//! eᵢ = vᵢ·sᵢ − t·nᵢ,  factor = −f·t      // f = 2 (squared L2) or 1
//! for each pair of a query and a list: term = −f·⟨v, h⟩
//! score = value of the row + (term + factor · (256·Σ highᵢcᵢ + Σ lowᵢcᵢ) · σ)  // cosine: times the row's factor
//! error = bound of |score + shift − distance| for every row
//! ```
//!
//! # The bound
//! Let δ be a decoded row minus centre, minus h + s·c in exact arithmetic: roundings, of which
//! [`crate::ivf::code_bounds`] measured the greatest norm (the residual). Then
//!
//! ```text
//! ⟨v, r⟩ = ⟨v, h⟩ + t·Σ nᵢcᵢ + Σ eᵢcᵢ + ⟨v, δ⟩
//! ```
//!
//! and the score has the first two summands. The other two are at most ‖e‖·‖c‖ and ‖v‖·‖δ‖ (Cauchy and Schwarz). ‖e‖
//! is measured here, in f64, and the greatest ‖c‖ with the rows. To these come roundings:
//!
//! - ⟨v, h⟩ is summed in f32, with at most stride/32 + 9 roundings in a row and one for each vᵢ: less than
//!   γ‖v‖‖h‖, γ = (stride/32 + 16)·2⁻²³. The factor of two in γ covers terms of second order up to 2²¹ components.
//! - The sums of bytes are exact up to [`MOST_COMPONENTS`]; otherwise the bound is infinite. With aᵢ = 256|highᵢ| +
//!   |lowᵢ|, both sums together are at most ‖a‖·‖c‖. Their conversions, and the operations that make a score of them,
//!   round seven times by 2⁻²⁴ of f·t·‖a‖·‖c‖ at most. 2⁻²⁰ of it covers this.
//! - ‖v‖², ‖r‖², the term, the score and the canonical distance: as in [`crate::product::bounds`], whose 2⁻²⁰(‖v‖² +
//!   ‖r‖²) has room for the two roundings more of ⟨v, h⟩. The norm of the rows is therefore at least ‖h‖.
//!
//! Cosine divides by ‖r‖: the norms and residuals of the rows are divided by it, and so is ‖c‖, row by row.
//!
//! *Range.* t is at least [`LEAST_SCALE`], so it is a normal number, and what it cannot represent is part of e. The
//! bound is infinite if a component of w is infinite, or a norm is 2⁶² or more ([`crate::product::bounds`],
//! *Overflow*): then no result gets a certificate by scores, and the query is compared exactly with all rows of its
//! lists. With smaller norms all scores are finite. The numbers that are added up are integers, up to the last two
//! operations, whose results are ⟨v, s·c⟩ and ⟨v, r⟩ up to the bound.
//!
//! # Two planes
//! With one plane of bytes (t = greatest / 127) a query needs far more candidates than are selected. SIFT of
//! photographs (200,000 × 128, 256 lists, 32 probes; CPU, 2026-11-29), where the squared distances of the 10th and
//! 100th neighbour are 75,000 and 97,000 in the mean:
//!
//! | planes | bound | greatest error | candidates needed beyond k, median and 99 of 100 queries: k = 10 | k = 100 |
//! |---|---|---|---|---|
//! | one | 3,370 | 714 | 6, 32 | 35, 93 |
//! | two | 13 | 3 | 1, 2 | 1, 2 |
//! | selected | | | 8 | 12 |
//!
//! Both planes of a query are rows of one tile, so the codes are read once. The product takes twice the operations of
//! f16 operands, at half the time for each.
//!
//! # Cost
//! For n queries and p probes: 6·n·d bytes for the planes, and 4·n·p·d bytes from cache for the terms. Codes of vectors
//! have one term for each query ([`StoredRows::centroids_apart`]), which costs nothing. Floor of the
//! scan on an H200 (4 TB/s, 1,900 TOPS of bytes): the codes of a list once for 64 queries, 4·d operations for each
//! score, and 4 bytes for each score, written and read. For 10,000 queries, 32 of 256 lists, 200,000 × 128: 2.5·10⁸
//! scores are 0.07 ms of operations, 0.5 GB of codes from L2 (0.1 ms), and 2 GB of scores (0.5 ms), against 1.0 GB (0.2
//! ms) of f16 copies. Prediction: as fast as whole vectors in f16, or up to a tenth faster. The terms of pairs take
//! 0.05 ms of it.
//!
//! Measured on an H200 (Nsight Compute, 2026-11-30), µs, 2,000 queries, 32 of 256 lists, 200,000 SIFT descriptors as
//! f32, k = 10: scan 102, re-ranking 14, the queries 5; of whole vectors scan 100, re-ranking 14. These codes are of
//! vectors. With codes of residuals the terms took 23, one warp for each pair; the re-ranking took 22 with three blocks
//! a multiprocessor. Eight pairs a warp: 10,000 queries × 32 probes × 128 components in 32 µs and not 102.

use cuda_std::launch::LaunchConfig;
use cuda_std::warp::{FULL_MASK, butterfly_sum};
use cuda_std::{Ptr, PtrMut, device_inline, global, kernel, math, thread, unroll, warp};

use crate::NO_ROW;
use crate::ivf::code_bounds::centre4;
use crate::ivf::encoding::scalar8::Scalar8;
use crate::ivf::encoding::{Decode, StoredRows};
use crate::product::bounds::{Bounds, QueryTerms, round_up};
use crate::product::element::{Element, F32};
use crate::product::metric::Metric;

/// Number of warps in a block of these kernels.
const WARPS_PER_BLOCK: u32 = 4;
/// The greatest number of two planes: 127 · 256.
const MOST: i32 = 127 << 8;
/// Largest number of components whose sums of bytes stay in 32 bits: 128 · 128 · 2^16 < 2^31.
pub const MOST_COMPONENTS: u32 = 1 << 16;
/// The least t (module documentation): 2^-120.
pub const LEAST_SCALE: f32 = f32::from_bits((127 - 120) << 23);

/// The factor f of the module documentation.
#[device_inline]
fn product_sign(metric: Metric) -> f32 {
    match metric {
        Metric::L2 => -2.0,
        Metric::InnerProduct | Metric::Cosine => -1.0,
    }
}

/// Writes planes, factor, error and shift of each query; see the module documentation.
///
/// # Safety
/// All pointers that are present cover the shapes of their fields.
#[kernel(max_threads = 128, prepare_code_queries = prepare)]
pub struct PrepareCodeQueries {
    /// `count` queries of `dim` components padded to a multiple of 4, with zeros.
    pub rows: Ptr<f32>,
    /// Number of queries.
    pub count: u32,
    /// The codes of the index.
    #[group]
    pub stored: StoredRows,
    /// Number of bytes of a plane: a multiple of 16, and at least `dim`.
    pub plane_bytes: u32,
    /// The components that are subtracted from each query, padded as the queries; absent: no centre.
    pub centre: Option<Ptr<f32>>,
    /// The metric of the scores: squared L2 or inner product.
    pub metric: Metric,
    /// 1 if distances from the rows are cosines, and the metric of the scores is inner product.
    pub cosines: u32,
    /// Six numbers: the greatest norm and residual of the rows, three others, and the greatest norm of bytes
    /// ([`crate::ivf::code_bounds::MeasureCodes`]).
    pub base_bounds: Ptr<f32>,
    /// The high plane and then the low plane of each query, zero padded.
    pub planes: PtrMut<u8>,
    /// The factor of each query.
    pub factors: PtrMut<f32>,
    /// The error bound of each query.
    pub errors: PtrMut<f32>,
    /// The shift of each query.
    pub shifts: PtrMut<f32>,
    /// The term of each query, if it is the same for all lists because codes are of vectors
    /// ([`StoredRows::centroids_apart`]); otherwise absent.
    pub terms: Option<PtrMut<f32>>,
}

impl PrepareCodeQueries {
    /// One warp for each query.
    pub fn config(&self) -> LaunchConfig {
        LaunchConfig::warps(self.count as u64, WARPS_PER_BLOCK)
    }
}

/// The nearest whole number within ±[`MOST`], as high and low byte.
#[device_inline]
fn planes_of(value: f64) -> (i32, i32) {
    let half = if value < 0.0 { -0.5 } else { 0.5 };
    // The cast takes the whole part, and 0 for NaN.
    let number = ((value + half) as i32).clamp(-MOST, MOST);
    let high = (number + 128) >> 8;
    (high, number - 256 * high)
}

/// # Safety
/// As [`PrepareCodeQueries`].
#[device_inline]
unsafe fn prepare(launch: PrepareCodeQueries) {
    let PrepareCodeQueries { rows, count, stored, plane_bytes, centre, metric, cosines, base_bounds, .. } = launch;
    let PrepareCodeQueries { planes, factors, errors, shifts, terms, .. } = launch;
    let query = thread::block_idx_x() * WARPS_PER_BLOCK + warp::warp_id();
    if query >= count {
        return;
    }
    let at = query as usize;
    let lane = warp::lane_id();
    let stride = stored.dim.next_multiple_of(4);
    let codes = Scalar8::of(&stored, stride);
    let x = rows.wrapping_add(at * stride as usize);
    // SAFETY: the caller promises the shapes; query < count, and quads stay below those of the array.
    unsafe {
        let mut greatest = 0.0f32;
        let mut quad = lane;
        while quad < stride / 4 {
            let (x, c, step) = (F32::load4(x, quad), centre4(centre, quad), codes.step4(quad));
            unroll::<4>(|e| greatest = math::max_f32(greatest, ((x[e] - c[e]) * step[e]).abs()));
            quad += 32;
        }
        // Floats that are not negative have the order of their bits.
        let greatest = f32::from_bits(warp::reduce_max(FULL_MASK, greatest.to_bits()));
        let in_range = greatest < f32::INFINITY;
        let t = if in_range { math::max_f32(greatest * (1.0 / MOST as f32), LEAST_SCALE) } else { 1.0 };
        let (up, t64) = (1.0 / t as f64, t as f64);

        let plane = plane_bytes as usize;
        let to = planes.wrapping_add(2 * at * plane);
        let (mut own, mut lost, mut size) = (0.0f64, 0.0f64, 0.0f64);
        let mut term = 0.0f32;
        let mut quad = lane;
        while quad < plane_bytes / 4 {
            let (mut high, mut low) = (0u32, 0u32);
            if quad < stride / 4 {
                let (x, c, step) = (F32::load4(x, quad), centre4(centre, quad), codes.step4(quad));
                unroll::<4>(|e| {
                    let v = x[e] as f64 - c[e] as f64;
                    let w = v * step[e] as f64;
                    let (h, l) = if in_range { planes_of(w * up) } else { (0, 0) };
                    let e64 = w - t64 * (256 * h + l) as f64;
                    high |= (h as u32 & 0xff) << (8 * e);
                    low |= (l as u32 & 0xff) << (8 * e);
                    own += v * v;
                    lost += e64 * e64;
                    let a = (256 * h.abs() + l.abs()) as f64;
                    size += a * a;
                });
                if terms.is_some() {
                    term = add_products(x, c, codes.offset4(0, quad, c), term);
                }
            }
            global::store(to.wrapping_add(4 * quad as usize).cast::<u32>(), high);
            global::store(to.wrapping_add(plane + 4 * quad as usize).cast::<u32>(), low);
            quad += 32;
        }
        let (own, lost, size) = (butterfly_sum(own), butterfly_sum(lost), butterfly_sum(size));
        let term = butterfly_sum(term);
        if lane == 0 {
            let sign = product_sign(metric);
            let (Bounds { norm, .. }, residual) = (Bounds::of_squares(own, 0.0), round_up(math::sqrt_f64(lost)));
            let bound = |i: usize| global::load_nc(base_bounds.wrapping_add(i));
            let (y, code_norm) = (Bounds { norm: bound(0), residual: bound(1) }, bound(5));
            let gamma = (stride / 32 + 16) as f32 * (1.0 / 8_388_608.0);
            let of_vectors = QueryTerms::with_gamma(metric, gamma, Bounds { norm, residual: 0.0 }).error(metric, y);
            let sizes = round_up(t64 * math::sqrt_f64(size));
            let of_products = -sign * (residual + QueryTerms::UNIT * sizes) * code_norm;
            // The distances of a zero query are 0, as its scores are.
            let of_length = if cosines == 0 || own == 0.0 { 0.0 } else { round_up((math::sqrt_f64(own) - 1.0).abs()) };
            let error = (of_vectors + of_products + of_length) * (1.0 + 4.0 * QueryTerms::UNIT);
            let is_proved = in_range && stride <= MOST_COMPONENTS && error < f32::INFINITY;
            global::store(errors.wrapping_add(at), if is_proved { error } else { f32::INFINITY });
            global::store(factors.wrapping_add(at), sign * t);
            global::store(shifts.wrapping_add(at), metric.value(own));
            if let Some(terms) = terms {
                global::store(terms.wrapping_add(at), sign * term);
            }
        }
    }
}

/// Number of probes of a query whose terms one warp computes: the components of the query, the centre and the tables
/// are loaded once for all of them, and the loads of their centroids wait together.
const PROBES_PER_WARP: usize = 8;

/// Adds the products of x − c and h to a sum.
#[device_inline]
fn add_products(x: [f32; 4], c: [f32; 4], h: [f32; 4], mut sum: f32) -> f32 {
    unroll::<4>(|e| sum = math::mul_add_f32(x[e] - c[e], h[e], sum));
    sum
}

/// Writes the term of each pair of a range of probes to the pair's place.
///
/// # Safety
/// All pointers that are present cover the shapes of their fields. The kernels of [`crate::ivf::pairs`] placed the
/// pairs.
#[kernel(max_threads = 128, pair_terms = terms)]
pub struct PairTerms {
    /// Queries of `dim` components padded to a multiple of 4, with zeros.
    pub rows: Ptr<f32>,
    /// The codes of the index.
    #[group]
    pub stored: StoredRows,
    /// As [`PrepareCodeQueries::centre`].
    pub centre: Option<Ptr<f32>>,
    /// The metric of the scores: squared L2 or inner product.
    pub metric: Metric,
    /// `probes` lists for each query, `NO_ROW` for none.
    pub probed_lists: Ptr<u32>,
    /// Number of queries.
    pub query_count: u32,
    /// Number of probes of a query.
    pub probes: u32,
    /// The first probe whose pairs are placed.
    pub first_probe: u32,
    /// The end of the probes whose pairs are placed.
    pub end_probe: u32,
    /// The number of vectors of each list.
    pub lengths: Ptr<u32>,
    /// The number of each pair within its list; absent: pairs are not grouped, and their places are their numbers.
    pub slots: Option<Ptr<u32>>,
    /// For each list, the number of pairs of all lists before it; empty if `slots` is absent.
    pub first_pairs: Ptr<u32>,
    /// The term of each place.
    pub terms: PtrMut<f32>,
}

impl PairTerms {
    /// One warp for each eight probes of a query.
    pub fn config(&self) -> LaunchConfig {
        LaunchConfig::warps(self.query_count as u64 * self.parts() as u64, WARPS_PER_BLOCK)
    }

    /// Number of warps that share a query.
    #[device_inline]
    fn parts(&self) -> u32 {
        (self.end_probe - self.first_probe).div_ceil(PROBES_PER_WARP as u32)
    }
}

/// # Safety
/// As [`PairTerms`].
#[device_inline]
unsafe fn terms(launch: PairTerms) {
    let parts = launch.parts();
    let PairTerms { rows, stored, centre, metric, probed_lists, query_count, probes, .. } = launch;
    let PairTerms { first_probe, end_probe, lengths, slots, first_pairs, terms, .. } = launch;
    let warp = thread::block_idx_x() * WARPS_PER_BLOCK + warp::warp_id();
    if parts == 0 || warp >= query_count * parts {
        return;
    }
    let (query, lane) = (warp / parts, warp::lane_id());
    let stride = stored.dim.next_multiple_of(4);
    let codes = Scalar8::of(&stored, stride);
    // SAFETY: query < query_count, probe < end_probe, and quads stay below the stride; a pair of a list with vectors
    // has a place. All lanes of a warp have the same query and the same eight probes.
    unsafe {
        // Each of the first lanes has the list of one probe, and the place of its term.
        let probe = first_probe + warp % parts * PROBES_PER_WARP as u32 + lane;
        let pair = query as usize * probes as usize + probe as usize;
        let mut own_list = NO_ROW;
        if lane < PROBES_PER_WARP as u32 && probe < end_probe {
            own_list = global::load_nc(probed_lists.wrapping_add(pair));
        }
        let mut place = NO_ROW;
        if own_list != NO_ROW {
            let slot = match slots {
                Some(slots) => global::load_nc(slots.wrapping_add(pair)),
                None => pair as u32,
            };
            let first = if slots.is_some() { global::load_nc(first_pairs.wrapping_add(own_list as usize)) } else { 0 };
            // The slot of an empty list is not written.
            let is_empty = global::load_nc(lengths.wrapping_add(own_list as usize)) == 0;
            place = if is_empty { NO_ROW } else { first.wrapping_add(slot) };
        }
        // A probe without a list repeats list 0, and its sum is dropped.
        let mut lists = [0u32; PROBES_PER_WARP];
        unroll::<PROBES_PER_WARP>(|p| {
            let list = warp::shuffle_idx(FULL_MASK, own_list, p as u32);
            lists[p] = if list == NO_ROW { 0 } else { list };
        });
        let x = rows.wrapping_add(query as usize * stride as usize);
        let mut sums = [0.0f32; PROBES_PER_WARP];
        let mut quad = lane;
        while quad < stride / 4 {
            let (x, c, middle) = (F32::load4(x, quad), centre4(centre, quad), codes.middle4(quad));
            unroll::<PROBES_PER_WARP>(|p| {
                sums[p] = add_products(x, c, codes.offset4_of(lists[p], quad, middle, c), sums[p]);
            });
            quad += 32;
        }
        let mut sum = 0.0;
        unroll::<PROBES_PER_WARP>(|p| {
            let of = butterfly_sum(sums[p]);
            sum = if lane == p as u32 { of } else { sum };
        });
        if place != NO_ROW {
            global::store(terms.wrapping_add(place as usize), product_sign(metric) * sum);
        }
    }
}
