//! The distance of walks: an f32 sum in a fixed order. The library's `proximity::distance` has the definition, and its path on a CPU.
//!
//! [`TEAM`] lanes read a vector. Of each 32 components lane t has components 4t .. 4t + 4, so it has four of the 32 partial sums. It adds these by a
//! balanced tree, and three shuffles add those of the lanes. Rows are padded with zeros to a multiple of four components, and queries to a multiple of
//! 32. A zero term changes no sum.

use cuda_std::math::sqrt_f32;
use cuda_std::shared::SharedPtr;
use cuda_std::warp::{self, FULL_MASK, shuffle_xor};
use cuda_std::{global::F32x4, unroll};

use crate::product::element::Element;
use crate::product::metric::Metric;

/// Number of lanes that compute a distance.
pub const TEAM: u32 = 8;
/// Number of partial sums: queries are padded to a multiple of this number of components.
pub const SUMS: u32 = 32;

/// Number of loads of a row that a lane has in flight.
const AHEAD: usize = 4;

/// The keys of the distances between a query in shared memory and some rows, on all lanes of the team. All 32 lanes arrive.
///
/// # Safety
/// `query` has `stride` components, rounded up to [`SUMS`], and starts at a multiple of 16 bytes; no thread writes them. Each row has `stride`
/// components, a multiple of 4.
#[inline(always)]
pub unsafe fn keys<E: Element, const ROWS: usize>(
    metric: Metric,
    query: SharedPtr<f32>,
    rows: [*const E::Stored; ROWS],
    stride: u32,
    lane_in_team: u32,
) -> [u32; ROWS] {
    let of = Lanes { query, stride, lane_in_team };
    // SAFETY: as the caller promises.
    unsafe {
        match metric {
            Metric::L2 => of.sums::<E, ROWS>(rows, |x, y| (x - y) * (x - y)).map(ordered),
            Metric::InnerProduct => of.sums::<E, ROWS>(rows, |x, y| x * y).map(|sum| ordered(-sum)),
            Metric::Cosine => {
                // The second pass reads the rows from the cache.
                let mut values = of.sums::<E, ROWS>(rows, |x, y| x * y);
                let squares = of.sums::<E, ROWS>(rows, |_, y| y * y);
                unroll::<ROWS>(|r| {
                    values[r] = if squares[r] == 0.0 { 0.0 } else { -values[r] / sqrt_f32(squares[r]) };
                });
                values.map(ordered)
            }
        }
    }
}

/// What the lanes of a team have in common.
#[derive(Clone, Copy)]
struct Lanes {
    query: SharedPtr<f32>,
    stride: u32,
    lane_in_team: u32,
}

impl Lanes {
    /// The sum of the terms of each row, on all lanes of the team. All 32 lanes arrive.
    ///
    /// # Safety
    /// As [`keys`].
    #[inline(always)]
    unsafe fn sums<E: Element, const ROWS: usize>(
        self,
        rows: [*const E::Stored; ROWS],
        term: impl Fn(f32, f32) -> f32,
    ) -> [f32; ROWS] {
        let mut sums = [[0.0f32; 4]; ROWS];
        let (mut quad, quads) = (self.lane_in_team, self.stride / 4);
        while quad + (AHEAD as u32 - 1) * TEAM < quads {
            // All loads come before the first sum, so that they wait together.
            let mut y = [[[0.0f32; 4]; AHEAD]; ROWS];
            // SAFETY: the quads are in the row.
            unroll::<ROWS>(|r| unroll::<AHEAD>(|q| y[r][q] = unsafe { E::load4(rows[r], quad + q as u32 * TEAM) }));
            unroll::<AHEAD>(|q| {
                // SAFETY: the quad is in the query.
                let x = unsafe { self.query.add(4 * (quad + q as u32 * TEAM)).cast::<F32x4>().load() }.0;
                unroll::<ROWS>(|r| unroll::<4>(|e| sums[r][e] += term(x[e], y[r][q][e])));
            });
            quad += AHEAD as u32 * TEAM;
        }
        while quad < quads {
            // SAFETY: the quad is in the query and in the rows.
            let x = unsafe { self.query.add(4 * quad).cast::<F32x4>().load() }.0;
            unroll::<ROWS>(|r| {
                // SAFETY: as above.
                let y = unsafe { E::load4(rows[r], quad) };
                unroll::<4>(|e| sums[r][e] += term(x[e], y[e]));
            });
            quad += TEAM;
        }
        let mut trees = [0.0; ROWS];
        unroll::<ROWS>(|r| trees[r] = tree(sums[r]));
        trees
    }
}

/// The sum of the squares of a query in shared memory, in the order of the distance. All 32 lanes arrive, and each gets it.
///
/// # Safety
/// `query` has `stride` components, a multiple of 4, and starts at a multiple of 16 bytes; no thread writes them.
#[inline(always)]
pub unsafe fn square(query: SharedPtr<f32>, stride: u32) -> f32 {
    let mut sums = [0.0f32; 4];
    let mut quad = warp::lane_id() % TEAM;
    while quad < stride / 4 {
        // SAFETY: the quad is in the query.
        let x = unsafe { query.add(4 * quad).cast::<F32x4>().load() }.0;
        unroll::<4>(|e| sums[e] += x[e] * x[e]);
        quad += TEAM;
    }
    tree(sums)
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
