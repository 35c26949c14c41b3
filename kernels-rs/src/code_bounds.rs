//! What the scan of codes needs to know of them: scale, values, and the error of their f16 operands.
//!
//! [`crate::prepare`] for vectors that exist as codes only. No copy is written: the scan decodes by the same recipe
//! ([`crate::codes::Operands`]), and what that recipe loses is measured here, row by row, once an index.

use cuda_std::global::F32x4;
use cuda_std::warp::{FULL_MASK, butterfly_sum};
use cuda_std::{atomic, global, kernel, math, thread, unroll, warp};

use crate::NO_ROW;
use crate::codes::{Codes, Operands};
use crate::filter::Bounds;
use crate::prepare::{METRIC_L2, raise, scale_of};

/// Warps in a block of these kernels.
pub const WARPS_PER_BLOCK: u32 = 4;

/// Four components of the centre, zeros where there is none.
///
/// # Safety
/// The centre is null or has the quad.
#[inline(always)]
unsafe fn centre4(centre: *const f32, quad: u32) -> [f32; 4] {
    if centre.is_null() {
        [0.0; 4]
    } else {
        // SAFETY: as the caller promises.
        unsafe { global::load_nc(centre.wrapping_add(4 * quad as usize).cast::<F32x4>()).0 }
    }
}

/// Raises `greatest` to the bits of twice the greatest |component − centre| of the decoded rows ([`Operands`] has room for no more). `row_lists[row]` is the list of each of
/// `row_count` rows of the storage, `NO_ROW` for padding.
///
/// Grid: any, blocks of 128.
///
/// # Safety
/// The pointers cover these shapes and those of [`Codes`]; `shape` is code bytes · 2^4 + bits; `centre` is null or has `dim` components
/// padded to a multiple of 4.
#[kernel(max_threads = 128, min_blocks = 8)]
pub unsafe fn greatest_code(
    codes: *const u8,
    shape: u32,
    width: u32,
    dim: u32,
    codebooks: *const f32,
    centroids: *const f32,
    row_lists: *const u32,
    row_count: u32,
    centre: *const f32,
    greatest: *mut u32,
) {
    let stride = dim.next_multiple_of(4);
    let codes = Codes { codes, code_bytes: shape >> 4, bits: shape & 15, width, dim, codebooks, centroids, stride };
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
                let (r, c) = (codes.load4(row, list, quad), centre4(centre, quad));
                unroll::<4>(|e| most = math::max_f32(most, (r[e] - c[e]).abs()));
                quad += 32;
            }
        }
        row += warps;
    }
    // Floats that are not negative order like their bits.
    let most = warp::reduce_max(FULL_MASK, (2.0 * most).to_bits());
    if lane == 0 {
        // SAFETY: one word.
        unsafe { atomic::max_u32(greatest, most) };
    }
}

/// Writes the parts that operands are made of ([`Operands`]): `offsets` of `centroid_count` components of the centroids, `dim` padded to a
/// multiple of 4 a row, and `halves` of `codeword_count` components of the codebooks.
///
/// Grid: ceil(the larger count / 128) blocks of 128.
///
/// # Safety
/// The arrays have as many components; `centre` is null or has a row's; `greatest` is complete.
#[kernel(max_threads = 128)]
pub unsafe fn scale_codes(
    centroids: *const f32,
    centroid_count: u32,
    stride: u32,
    centre: *const f32,
    codebooks: *const f32,
    codeword_count: u32,
    greatest: *const u32,
    offsets: *mut u16,
    halves: *mut u16,
) {
    let at = thread::block_idx_x() * 128 + thread::thread_idx_x();
    // SAFETY: places below the counts.
    unsafe {
        let scale = scale_of(METRIC_L2, f32::from_bits(global::load_nc(greatest)));
        if at < centroid_count {
            let column = (at % stride.max(1)) as usize;
            let c = if centre.is_null() { 0.0 } else { global::load_nc(centre.wrapping_add(column)) };
            let value = (global::load_nc(centroids.wrapping_add(at as usize)) - c) * scale;
            global::store(offsets.wrapping_add(at as usize), math::f32_to_f16(value));
        }
        if at < codeword_count {
            let half = math::f32_to_f16(global::load_nc(codebooks.wrapping_add(at as usize)) * scale);
            global::store(halves.wrapping_add(at as usize), half);
        }
    }
}

/// Writes `values[row]` (‖r − centre‖² for squared L2, else 0; +∞ for padding) and raises the two words at `bounds` to the greatest norm
/// of a decoded row or its operand, and to the greatest norm of what an operand lost (float bits, zeroed before).
///
/// Grid: ceil(row_count / 4) blocks of 128, a warp a row.
///
/// # Safety
/// As [`greatest_code`], whose `greatest` is complete; `offsets` and `halves` are what `scale_codes` wrote.
#[kernel(max_threads = 128, min_blocks = 6)]
pub unsafe fn measure_codes(
    codes: *const u8,
    shape: u32,
    width: u32,
    dim: u32,
    codebooks: *const f32,
    centroids: *const f32,
    row_lists: *const u32,
    row_count: u32,
    centre: *const f32,
    metric: u32,
    greatest: *const u32,
    offsets: *const u16,
    halves: *const u16,
    values: *mut f32,
    bounds: *mut u32,
) {
    let row = thread::block_idx_x() * WARPS_PER_BLOCK + warp::warp_id();
    if row >= row_count {
        return;
    }
    let stride = dim.next_multiple_of(4);
    let codes = Codes { codes, code_bytes: shape >> 4, bits: shape & 15, width, dim, codebooks, centroids, stride };
    let operands = Operands { codes, offsets, halves };
    let lane = warp::lane_id();
    // SAFETY: row < row_count, and quads stay below the stride.
    unsafe {
        let list = global::load_nc(row_lists.wrapping_add(row as usize));
        let scale = scale_of(METRIC_L2, f32::from_bits(global::load_nc(greatest)));
        let down = 1.0 / scale as f64;
        let (mut own, mut of_operand, mut lost) = (0.0f64, 0.0f64, 0.0f64);
        let mut quad = if list == NO_ROW { stride } else { lane };
        while quad < stride / 4 {
            let (r, c) = (codes.load4(row, list, quad), centre4(centre, quad));
            let half = |at: u32| global::load_nc(halves.wrapping_add(at as usize));
            let held = operands.quad(row, quad, operands.offset4(list, quad), half);
            unroll::<4>(|e| {
                let v = r[e] as f64 - c[e] as f64;
                let held = math::f16_to_f32((held[e / 2] >> (16 * (e % 2))) as u16) as f64 * down;
                own += v * v;
                of_operand += held * held;
                lost += (v - held) * (v - held);
            });
            quad += 32;
        }
        let own = butterfly_sum(own);
        let of_operand = butterfly_sum(of_operand);
        let lost = butterfly_sum(lost);
        if lane == 0 {
            let value = if list == NO_ROW {
                f32::INFINITY
            } else if metric == METRIC_L2 {
                own as f32
            } else {
                0.0
            };
            global::store(values.wrapping_add(row as usize), value);
            // A decoded component beyond f32 is infinite, and so are the bounds then.
            let Bounds { norm, residual } = Bounds::of_squares(own.max(of_operand), lost);
            raise(bounds, norm);
            raise(bounds.wrapping_add(1), residual);
        }
    }
}

/// Makes the value of padding +∞: rows whose rank is `NO_ROW`.
///
/// Grid: ceil(row_count / 128) blocks of 128.
///
/// # Safety
/// Both arrays have `row_count` entries.
#[kernel(max_threads = 128)]
pub unsafe fn mark_padding(ranks: *const u32, row_count: u32, values: *mut f32) {
    let row = thread::block_idx_x() * 128 + thread::thread_idx_x();
    if row < row_count {
        // SAFETY: row < row_count.
        unsafe {
            if global::load_nc(ranks.wrapping_add(row as usize)) == NO_ROW {
                global::store(values.wrapping_add(row as usize), f32::INFINITY);
            }
        }
    }
}

/// Counts, of each list, the rows whose rank has its bit set in `filter`.
///
/// Grid: `list_count` blocks of 128.
///
/// # Safety
/// The arrays cover the lists and their rows; the filter has a bit for every rank.
#[kernel(max_threads = 128)]
pub unsafe fn count_live(
    list_starts: *const u32,
    lengths: *const u32,
    ranks: *const u32,
    filter: *const u32,
    live: *mut u32,
) {
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
            at += 128;
        }
        // `live` is zeroed before.
        let of_warp = warp::reduce_add(FULL_MASK, passed);
        if warp::lane_id() == 0 {
            atomic::add_u32(live.wrapping_add(list), of_warp);
        }
    }
}
