//! The canonical distance of a query to listed base rows, with one warp for each list.
//!
//! # Problem
//! With any fast path, results have one distance, equal to the bit on every back end. The host crate's `metric` module
//! has its definition (f64 sums over 128 interleaved accumulators, joined pairwise and by a butterfly, rounded to f32
//! at the end). This is its evaluation by 32 lanes:
//!
//! ```text
//! lane l owns components i with (i / 4) mod 32 = l, in four accumulators    // one vector load for each step
//! for each step of 128 components: acc[e] += term(x[i+e], y[i+e])
//! s = (acc[0] + acc[1]) + (acc[2] + acc[3])
//! butterfly: s += s of lane ^ m, m = 16, 8, 4, 2, 1
//! ```
//!
//! Rows are padded with zeros to a multiple of four components; a zero term changes no sum.
//!
//! [`crate::product::quad`] has the sums; those of bytes are sums of integers.
//!
//! # Use
//! With a list of row numbers this re-ranks the candidates of a filter. Without a list it covers rows 0, 1, 2, ..:
//! exact search without a filter, for small bases, and for the rare query whose candidates overflow their list.
//!
//! # Bytes
//! The terms of bytes are whole numbers, which any lane may sum. So a row of 128 bytes takes eight lanes with 16 bytes
//! each, and a warp has four rows in a load and 16 in flight. With four bytes a lane and a warp a row, one query and
//! 1,000,000 rows of 128 took 85 µs on an H200; now it is 38, and the read takes 32. Rows that are not aligned to 16
//! bytes, or whose sums may leave 32 bits, are summed as all others.
//!
//! # Cost
//! Each lane executes about 3·d/32 f64 and d/32 conversion instructions for a pair and 15 for the butterfly.
//! Conversions to f64 run at a quarter of the f64 rate, so `BATCH` rows share those of the query; their loads overlap
//! as well.

use cuda_std::launch::LaunchConfig;
use cuda_std::warp::FULL_MASK;
use cuda_std::{Ptr, PtrMut, device_inline, global, kernel, thread, unroll, warp};

use crate::product::element::{self, Row, RowKey};
use crate::product::metric::{Metric, Term, with_term};
pub use crate::product::quad::{BATCH, Quad};
use crate::product::quad::{BYTE_QUADS, ByteQuad};

/// Number of warps in a block of these kernels.
pub const WARPS_PER_BLOCK: u32 = 4;

/// The sums of a metric for `BATCH` rows, before the division for cosine: [`Quad::sums`] with the terms of the metric.
#[device_inline]
pub fn sums_by<Q: Quad>(
    metric: Metric,
    x: impl Fn(u32) -> Q,
    y: impl Fn(usize, u32) -> Q,
    quads: u32,
    lane: u32,
) -> [f64; BATCH] {
    with_term!(metric, T => Q::sums::<T>(x, y, quads, lane))
}

/// An inner product divided by the norms of both vectors; `squares` is the product of the squared norms. 0 if either
/// norm is 0.
#[device_inline]
pub fn over_norms(product: f64, squares: f64) -> f64 {
    if squares == 0.0 { 0.0 } else { product / cuda_std::math::sqrt_f64(squares) }
}

/// Σ x² of one row in the canonical order, on every lane. All 32 lanes arrive.
///
/// # Safety
/// `x` has `quads` readable groups of four components.
#[device_inline]
pub unsafe fn squares<E: Row>(x: *const E::Stored, quads: u32, lane: u32) -> f64 {
    // SAFETY: `Quad::squares` asks for quad < quads only.
    let quad = |_, quad| unsafe { E::quad(x, quad) };
    let [squares] = E::Quad::squares(quad, quads, lane);
    squares
}

/// Writes the canonical distance of each query to each row of its list, at the row's place in the list.
///
/// # Safety
/// The arrays are as long as the fields say, and every listed row exists.
#[kernel(
    key = RowKey,
    max_threads = 128,
    RowKey::F32 => canonical_f32 = canonical::<element::F32>,
    RowKey::F16 => canonical_f16 = canonical::<element::F16>,
    RowKey::Bf16 => canonical_bf16 = canonical::<element::Bf16>,
    RowKey::U8 => canonical_u8 = canonical_bytes::<element::U8>,
    RowKey::I8 => canonical_i8 = canonical_bytes::<element::I8>,
    RowKey::Bits => canonical_bits = canonical_bytes::<element::Bits>,
)]
pub struct Canonical {
    /// `query_count` rows of `stride` components, of the type of the key.
    pub queries: Ptr<u8>,
    /// The rows of the base, of `stride` components and of the type of the key.
    pub base: Ptr<u8>,
    /// Distance from one row to the next in components: a multiple of 4, zero padded.
    pub stride: u32,
    /// Number of queries.
    pub query_count: u32,
    /// The metric of the distances.
    pub metric: Metric,
    /// Σx² of each query, if distances are divided by norms; otherwise absent.
    pub query_squares: Option<Ptr<f64>>,
    /// Σx² of each row of the base; empty if `query_squares` is absent.
    pub base_squares: Ptr<f64>,
    /// The lists of `query_count` queries: that of query q starts at q · `list_stride` and has `columns` places.
    /// Absent: place p is row p.
    pub rows: Option<Ptr<u32>>,
    /// The length of each list, of which at most `columns` count; absent if all have `columns`.
    pub counts: Option<Ptr<u32>>,
    /// Largest length of a list.
    pub columns: u32,
    /// Number of warps that share a list.
    pub slices: u32,
    /// Distance from one list to the next, in places.
    pub list_stride: u64,
    /// The distances, laid out as the lists.
    pub distances: PtrMut<f32>,
}

impl Canonical {
    /// `slices` warps for each query.
    pub fn config(&self) -> LaunchConfig {
        LaunchConfig::warps(self.query_count as u64 * self.slices as u64, WARPS_PER_BLOCK)
    }
}

/// # Safety
/// As [`Canonical`].
#[device_inline]
unsafe fn canonical<E: Row>(launch: Canonical) {
    // SAFETY: the contract is the same.
    unsafe { with_term!(launch.metric, T => lists::<E, T>(launch)) }
}

/// # Safety
/// As [`Canonical`].
#[device_inline]
unsafe fn canonical_bytes<E: Row<Quad: ByteQuad>>(launch: Canonical) {
    let Canonical { queries, base, stride, metric, .. } = launch;
    let aligned = stride.is_multiple_of(PART) && (*queries as usize | *base as usize).is_multiple_of(PART as usize);
    // SAFETY: the contract is the same; rows are aligned, and short enough, where that is needed.
    unsafe {
        if aligned && stride <= 4 * BYTE_QUADS {
            with_term!(metric, T => byte_lists::<E, T>(launch))
        } else {
            with_term!(metric, T => lists::<E, T>(launch))
        }
    }
}

/// The list of a warp: its query, the part of the list that it starts with, and the length of the list.
struct WarpList {
    query: u32,
    slice: u32,
    length: u32,
}

impl Canonical {
    /// The list of this warp, if there is one for it.
    ///
    /// # Safety
    /// As [`Canonical`].
    #[device_inline]
    unsafe fn list(&self) -> Option<WarpList> {
        let slices = self.slices.max(1);
        let warp = thread::block_idx_x() * WARPS_PER_BLOCK + warp::warp_id();
        let (query, slice) = (warp / slices, warp % slices);
        if query >= self.query_count {
            return None;
        }
        let length = match self.counts {
            // SAFETY: the query exists.
            Some(counts) => unsafe { global::load_nc(counts.wrapping_add(query as usize)) }.min(self.columns),
            None => self.columns,
        };
        Some(WarpList { query, slice, length })
    }

    /// The row at place `at` of the list of `query`.
    ///
    /// # Safety
    /// As [`Canonical`]; the place is below the length of the list.
    #[device_inline]
    unsafe fn row(&self, query: u32, at: u32) -> u32 {
        let first = query as u64 * self.list_stride;
        match self.rows {
            // SAFETY: the list has the place.
            Some(rows) => unsafe { global::load_nc(rows.wrapping_add((first + at as u64) as usize)) },
            None => at,
        }
    }

    /// Stores the distance at place `at` of the list of `query`, of its sum and its row.
    ///
    /// # Safety
    /// As [`Self::row`]; the row is that of the place.
    #[device_inline]
    unsafe fn store(&self, query: u32, at: u32, row: u32, sum: f64) {
        let mut sum = sum;
        // SAFETY: the query, its row and the place exist.
        unsafe {
            if let Some(query_squares) = self.query_squares {
                let squares = global::load_nc(query_squares.wrapping_add(query as usize))
                    * global::load_nc(self.base_squares.wrapping_add(row as usize));
                sum = over_norms(sum, squares);
            }
            let first = query as u64 * self.list_stride;
            global::store(self.distances.wrapping_add((first + at as u64) as usize), sum as f32 + 0.0);
        }
    }
}

/// # Safety
/// As [`Canonical`].
#[device_inline]
unsafe fn lists<E: Row, T: Term>(launch: Canonical) {
    let Canonical { stride, slices, .. } = launch;
    let (queries, base) = (launch.queries.cast::<E::Stored>(), launch.base.cast::<E::Stored>());
    let lane = warp::lane_id();
    let quads = stride / 4;
    // SAFETY: the caller promises the shapes; places stay below the list's length and listed rows exist.
    unsafe {
        let Some(WarpList { query, slice, length }) = launch.list() else { return };
        let x = queries.wrapping_add(query as usize * stride as usize);
        let mut place = slice * BATCH as u32;
        while place < length {
            // After the end of the list the last row is evaluated again and not stored.
            let mut row = [0u32; BATCH];
            let mut pointers = [*base; BATCH];
            unroll::<BATCH>(|b| {
                row[b] = launch.row(query, (place + b as u32).min(length - 1));
                pointers[b] = base.wrapping_add(row[b] as usize * stride as usize);
            });
            let sums = E::Quad::sums::<T>(|quad| E::quad(x, quad), |b, quad| E::quad(pointers[b], quad), quads, lane);
            unroll::<BATCH>(|b| {
                if lane == b as u32 && place + (b as u32) < length {
                    launch.store(query, place + b as u32, row[b], sums[b]);
                }
            });
            place += slices * BATCH as u32;
        }
    }
}

/// Number of bytes of a row that a lane loads at once.
const PART: u32 = 16;

/// The 16 bytes of part `part` of a row, as words.
///
/// # Safety
/// The row has the part, and is aligned to 16 bytes.
#[device_inline]
unsafe fn part_of(row: *const u8, part: u32) -> [u32; 4] {
    // SAFETY: as the caller promises.
    unsafe { global::load_nc(row.wrapping_add((part * PART) as usize).cast::<global::U32x4>()).0 }
}

/// [`lists`] for rows that are aligned to 16 bytes, with sums below 2³¹. As many lanes as a row has parts, or more,
/// have a row.
///
/// # Safety
/// As [`Canonical`]; rows are aligned to [`PART`], and have at most 4 · [`BYTE_QUADS`] components.
#[device_inline]
unsafe fn byte_lists<E: Row<Quad: ByteQuad>, T: Term>(launch: Canonical) {
    let Canonical { queries, base, stride, slices, .. } = launch;
    let parts = stride / PART;
    let lanes = parts.clamp(1, 32).next_power_of_two();
    let (rows_at_once, group, own) = (32 / lanes, warp::lane_id() / lanes, warp::lane_id() % lanes);
    // SAFETY: the caller promises the shapes; places stay below the list's length and listed rows exist.
    unsafe {
        let Some(WarpList { query, slice, length }) = launch.list() else { return };
        let x = queries.wrapping_add(query as usize * stride as usize);
        let mut first = slice * rows_at_once * BATCH as u32;
        while first < length {
            // After the end of the list the last row is evaluated again and not stored.
            let place = |b: usize| first + b as u32 * rows_at_once + group;
            let mut row = [0u32; BATCH];
            unroll::<BATCH>(|b| row[b] = launch.row(query, place(b).min(length - 1)));
            let mut sums = [0i32; BATCH];
            let mut part = own;
            while part < parts {
                let mut y = [[0u32; 4]; BATCH];
                unroll::<BATCH>(|b| y[b] = part_of(base.wrapping_add(row[b] as usize * stride as usize), part));
                let x = part_of(x, part);
                let mut of_query = 0;
                unroll::<4>(|w| of_query = E::Quad::dot4(x[w], x[w], of_query));
                unroll::<BATCH>(|b| {
                    let (mut squares, mut products) = (of_query, 0);
                    unroll::<4>(|w| {
                        squares = E::Quad::dot4(y[b][w], y[b][w], squares);
                        products = E::Quad::dot4(x[w], y[b][w], products);
                    });
                    sums[b] = sums[b].wrapping_add(T::of_sums(squares, products));
                });
                part += lanes;
            }
            let mut distance = lanes / 2;
            while distance > 0 {
                unroll::<BATCH>(|b| {
                    sums[b] = sums[b].wrapping_add(warp::shuffle_xor(FULL_MASK, sums[b], distance));
                });
                distance /= 2;
            }
            unroll::<BATCH>(|b| {
                if own == b as u32 % lanes && place(b) < length {
                    launch.store(query, place(b), row[b], sums[b] as f64);
                }
            });
            first += slices * rows_at_once * BATCH as u32;
        }
    }
}
