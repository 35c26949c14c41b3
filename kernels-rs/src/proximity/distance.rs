//! The distance of walks: an f32 sum in a fixed order. The library's `proximity::distance` has the definition, and its path on a CPU.
//!
//! [`TEAM`] lanes read a vector. Of each 32 components lane t has components 4t .. 4t + 4, so it has four of the 32 partial sums. It adds these by a
//! balanced tree, and three shuffles add those of the lanes. Rows are padded with zeros to a multiple of four components, and queries to a multiple of
//! 32. A zero term changes no sum.

use cuda_std::math::sqrt_f32;
use cuda_std::shared::SharedPtr;
use cuda_std::warp::{FULL_MASK, shuffle_xor};
use cuda_std::{global::U32x4, unroll};

use crate::product::element::Element;
use crate::product::metric::Metric;

/// Number of lanes that compute a distance.
pub const TEAM: u32 = 8;
/// Number of partial sums: queries are padded to a multiple of this number of components.
pub const SUMS: u32 = 32;

/// The key of the distance between a query in shared memory and `row`, on all lanes of the team. All 32 lanes arrive; a lane whose `row` is `None`
/// gets a number without meaning.
///
/// # Safety
/// `query` has `stride` components, rounded up to [`SUMS`], and starts at a multiple of 16 bytes; no thread writes them. `row` has `stride` components,
/// a multiple of 4.
#[inline(always)]
pub unsafe fn key<E: Element>(
    metric: Metric,
    query: SharedPtr<f32>,
    row: Option<*const E::Stored>,
    stride: u32,
    lane_in_team: u32,
) -> u32 {
    let mut sums = [0.0f32; 4];
    let mut squares = [0.0f32; 4];
    if let Some(row) = row {
        let mut quad = lane_in_team;
        while quad < stride / 4 {
            // SAFETY: quad < stride / 4.
            let (x, y) = unsafe { (query.add(4 * quad).cast::<U32x4>().load(), E::load4(row, quad)) };
            let x = x.0.map(f32::from_bits);
            match metric {
                Metric::L2 => unroll::<4>(|e| sums[e] += (x[e] - y[e]) * (x[e] - y[e])),
                Metric::InnerProduct => unroll::<4>(|e| sums[e] += x[e] * y[e]),
                Metric::Cosine => unroll::<4>(|e| {
                    sums[e] += x[e] * y[e];
                    squares[e] += y[e] * y[e];
                }),
            }
            quad += TEAM;
        }
    }
    let sum = tree(sums);
    let value = match metric {
        Metric::L2 => sum,
        Metric::InnerProduct => -sum,
        Metric::Cosine => {
            let square = tree(squares);
            if square == 0.0 { 0.0 } else { -sum / sqrt_f32(square) }
        }
    };
    ordered(value)
}

/// The sum of the team's 32 partial sums. All 32 lanes arrive.
#[inline(always)]
fn tree(sums: [f32; 4]) -> f32 {
    let mut sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    sum += shuffle_xor(FULL_MASK, sum, 1);
    sum += shuffle_xor(FULL_MASK, sum, 2);
    sum + shuffle_xor(FULL_MASK, sum, 4)
}

/// The key of a value: u32 in the order of the values, NaN last.
#[inline(always)]
fn ordered(value: f32) -> u32 {
    let bits = (value + 0.0).to_bits();
    if value.is_nan() {
        u32::MAX
    } else if bits >> 31 == 1 {
        !bits
    } else {
        bits | 1 << 31
    }
}
