//! The canonical distance of a query to listed base rows, one warp a list.
//!
//! # Problem
//! Whatever a fast path looked at, results carry one distance, equal to the bit on every back end. Its definition
//! (f64 sums over 128 interleaved accumulators, joined pairwise and by a butterfly, rounded to f32 at the end) stands
//! in the host crate's `metric` module; this is its evaluation by 32 lanes:
//!
//! ```text
//! lane l owns components i with (i / 4) mod 32 = l, in four accumulators    // one vector load a step
//! for each step of 128 components: acc[e] += term(x[i+e], y[i+e])
//! s = (acc[0] + acc[1]) + (acc[2] + acc[3])
//! butterfly: s += s of lane ^ m, m = 16, 8, 4, 2, 1
//! ```
//!
//! Rows are padded with zeros to a multiple of four components; a zero term changes no sum.
//!
//! # Use
//! With a list of row numbers this re-ranks what a filter let through; without one it covers rows 0, 1, 2, .., which is
//! exact search without a filter: for small bases, and for the rare query whose candidates overflow their list.
//!
//! # Cost
//! A pair costs about 3·d/32 f64 and d/32 conversion instructions a lane and 15 for the butterfly. Conversions to f64
//! run at a quarter of the f64 rate, so the query's are shared by `BATCH` rows, whose loads overlap as well.

use cuda_std::warp::butterfly_sum;
use cuda_std::{global, kernel, thread, unroll, warp};

use crate::element::{self, Element};

/// Warps in a block of these kernels.
pub const WARPS_PER_BLOCK: u32 = 4;
/// Base rows a warp has in flight.
pub const BATCH: usize = 4;

/// Steps 1 to 4 of the definition for `BATCH` rows at once; every lane returns all sums. `x(quad)` gives four components of the
/// query, `y(b, quad)` of row b, for quad < `quads`. All 32 lanes arrive.
#[inline(always)]
pub fn sums<const SQUARED_DIFFERENCE: bool>(
    x: impl Fn(u32) -> [f32; 4],
    y: impl Fn(usize, u32) -> [f32; 4],
    quads: u32,
    lane: u32,
) -> [f64; BATCH] {
    let mut acc = [[0.0f64; 4]; BATCH];
    let mut base = 0;
    while base < quads {
        let quad = base + lane;
        if quad < quads {
            let mut of_rows = [[0.0; 4]; BATCH];
            unroll::<BATCH>(|b| of_rows[b] = y(b, quad));
            let x = x(quad);
            unroll::<4>(|e| {
                let x = x[e] as f64;
                unroll::<BATCH>(|b| {
                    let y = of_rows[b][e] as f64;
                    acc[b][e] += if SQUARED_DIFFERENCE { (x - y) * (x - y) } else { x * y };
                });
            });
        }
        base += 32;
    }
    let mut sums = [0.0; BATCH];
    unroll::<BATCH>(|b| sums[b] = butterfly_sum((acc[b][0] + acc[b][1]) + (acc[b][2] + acc[b][3])));
    sums
}

/// Σ y² of `BATCH` rows in the canonical order, as [`sums`]. All 32 lanes arrive.
#[inline(always)]
pub fn row_squares(y: impl Fn(usize, u32) -> [f32; 4], quads: u32, lane: u32) -> [f64; BATCH] {
    let mut acc = [[0.0f64; 4]; BATCH];
    let mut base = 0;
    while base < quads {
        let quad = base + lane;
        if quad < quads {
            unroll::<BATCH>(|b| {
                let y = y(b, quad);
                unroll::<4>(|e| acc[b][e] += y[e] as f64 * y[e] as f64);
            });
        }
        base += 32;
    }
    let mut sums = [0.0; BATCH];
    unroll::<BATCH>(|b| sums[b] = butterfly_sum((acc[b][0] + acc[b][1]) + (acc[b][2] + acc[b][3])));
    sums
}

/// Σ x² of one row in the canonical order, on every lane. All 32 lanes arrive.
///
/// # Safety
/// `x` has `quads` readable groups of four components.
#[inline(always)]
pub unsafe fn squares<E: Element>(x: *const E::Stored, quads: u32, lane: u32) -> f64 {
    let mut acc = [0.0f64; 4];
    let mut base = 0;
    while base < quads {
        let quad = base + lane;
        if quad < quads {
            // SAFETY: quad < quads.
            let x = unsafe { E::load4(x, quad) };
            unroll::<4>(|e| acc[e] += x[e] as f64 * x[e] as f64);
        }
        base += 32;
    }
    butterfly_sum((acc[0] + acc[1]) + (acc[2] + acc[3]))
}

/// Body of the `canonical_*` kernels; parameters at [`canonical_f32`].
///
/// # Safety
/// As [`canonical_f32`].
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "kernel parameters are passed separately so that loads stay ld.global")]
unsafe fn lists<E: Element, const SQUARED_DIFFERENCE: bool>(
    queries: *const E::Stored,
    base: *const E::Stored,
    stride: u32,
    query_count: u32,
    query_squares: *const f64,
    base_squares: *const f64,
    rows: *const u32,
    counts: *const u32,
    columns: u32,
    slices: u32,
    list_stride: u64,
    distances: *mut f32,
) {
    let warp = thread::block_idx_x() * WARPS_PER_BLOCK + warp::warp_id();
    let (query, slice) = (warp / slices.max(1), warp % slices.max(1));
    if query >= query_count {
        return;
    }
    let lane = warp::lane_id();
    let quads = stride / 4;
    // SAFETY: the caller promises the shapes; places stay below the list's length and listed rows exist.
    unsafe {
        let length =
            if counts.is_null() { columns } else { global::load_nc(counts.wrapping_add(query as usize)).min(columns) };
        let list = query as u64 * list_stride;
        let x = queries.wrapping_add(query as usize * stride as usize);
        let mut place = slice * BATCH as u32;
        while place < length {
            // Past the end of the list the last row is evaluated again and not stored.
            let mut row = [0u32; BATCH];
            let mut pointers = [base; BATCH];
            unroll::<BATCH>(|b| {
                let at = (place + b as u32).min(length - 1);
                row[b] =
                    if rows.is_null() { at } else { global::load_nc(rows.wrapping_add((list + at as u64) as usize)) };
                pointers[b] = base.wrapping_add(row[b] as usize * stride as usize);
            });
            let sums = sums::<SQUARED_DIFFERENCE>(
                |quad| E::load4(x, quad),
                |b, quad| E::load4(pointers[b], quad),
                quads,
                lane,
            );
            unroll::<BATCH>(|b| {
                if lane == b as u32 && place + (b as u32) < length {
                    let mut sum = sums[b];
                    if !query_squares.is_null() {
                        let squares = global::load_nc(query_squares.wrapping_add(query as usize))
                            * global::load_nc(base_squares.wrapping_add(row[b] as usize));
                        sum = if squares == 0.0 { 0.0 } else { sum / cuda_std::math::sqrt_f64(squares) };
                    }
                    global::store(
                        distances.wrapping_add((list + (place + b as u32) as u64) as usize),
                        sum as f32 + 0.0,
                    );
                }
            });
            place += slices * BATCH as u32;
        }
    }
}

/// Calls `$then!` with the table of element types: `(type, stored type, suffixed kernels and handles)`.
#[macro_export]
macro_rules! element_instances {
    ($then:ident) => {
        $then! {
            (F32, f32, canonical_f32, CANONICAL_F32, greatest_f32, GREATEST_F32, prepare_f32, PREPARE_F32)
            (F16, u16, canonical_f16, CANONICAL_F16, greatest_f16, GREATEST_F16, prepare_f16, PREPARE_F16)
            (Bf16, u16, canonical_bf16, CANONICAL_BF16, greatest_bf16, GREATEST_BF16, prepare_bf16, PREPARE_BF16)
            (U8, u8, canonical_u8, CANONICAL_U8, greatest_u8, GREATEST_U8, prepare_u8, PREPARE_U8)
            (I8, i8, canonical_i8, CANONICAL_I8, greatest_i8, GREATEST_I8, prepare_i8, PREPARE_I8)
        }
    };
}

macro_rules! define_kernels {
    ($(($element:ident, $stored:ty, $name:ident, $handle:ident, $g:ident, $gh:ident, $p:ident, $ph:ident))*) => {$(
        /// Canonical distances of each query to the rows of its list, written beside the list.
        ///
        /// `queries` and `base` are row-major with `stride` components a row (a multiple of 4, zero padded). Query q's
        /// list has `counts[q]` places (`columns` where `counts` is null, and never more) from q · `list_stride` in
        /// `rows` and `distances`; where `rows` is null, place p is row p. `squared_difference` ≠ 0 gives squared L2,
        /// else inner products, divided by √(query_squares\[q\] · base_squares\[row\]) where those are not null (cosine).
        /// `slices` warps share a list.
        ///
        /// Grid: ceil(query_count · slices / 4) blocks of 128 threads.
        ///
        /// # Safety
        /// All pointers that are not null cover the shapes above, and every listed row exists.
        #[kernel(max_threads = 128)]
        pub unsafe fn $name(
            queries: *const $stored, base: *const $stored, stride: u32, query_count: u32, squared_difference: u32,
            query_squares: *const f64, base_squares: *const f64, rows: *const u32, counts: *const u32, columns: u32,
            slices: u32, list_stride: u64, distances: *mut f32,
        ) {
            // SAFETY: the same contract.
            unsafe {
                if squared_difference != 0 {
                    lists::<element::$element, true>(
                        queries, base, stride, query_count, query_squares, base_squares, rows, counts, columns, slices,
                        list_stride, distances,
                    )
                } else {
                    lists::<element::$element, false>(
                        queries, base, stride, query_count, query_squares, base_squares, rows, counts, columns, slices,
                        list_stride, distances,
                    )
                }
            }
        }
    )*};
}
element_instances!(define_kernels);
