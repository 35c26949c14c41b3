//! The distance of walks: for bytes an exact integer, for floats an f32 sum in a fixed order. The library's
//! `graph::distance` has the definition, and its path on a CPU.
//!
//! [`TEAM`] lanes read a vector. Of bytes a lane reads 16 at a time, and four are multiplied by one instruction: ‖x −
//! y‖² = x·x + y·y − 2 x·y. Of bits it reads 128 at a time, and counts those in which 32 differ by two instructions.
//!
//! Of each 32 components lane t has components 4t .. 4t + 4, so it has four of the 32 partial sums. It adds these by a
//! balanced tree, and three shuffles add those of the lanes. Rows are padded with zeros to a multiple of four
//! components, and queries to a multiple of
//! 32. A zero term changes no sum.

use cuda_std::global::{self, F32x4, U32x4};
use cuda_std::math::{dot4_i8, dot4_u8, sqrt_f32};
use cuda_std::shared::SharedPtr;
use cuda_std::warp::{self, FULL_MASK, Shuffle, shuffle_xor};
use cuda_std::{device_inline, thread, unroll};

use crate::product::element::{self, Element, Row, RowKey};
use crate::product::metric::Metric;

/// Number of lanes that compute a distance.
pub const TEAM: u32 = 8;
/// Number of partial sums of floats: queries are padded to a multiple of this number of words.
pub const SUMS: u32 = 32;

/// Number of words that a query takes in shared memory.
pub const fn words(content: RowKey, stride: u32) -> u32 {
    match content {
        RowKey::F32 | RowKey::F16 | RowKey::Bf16 => stride.next_multiple_of(SUMS),
        RowKey::U8 | RowKey::I8 | RowKey::Bits => stride.next_multiple_of(16) / 4,
    }
}

/// The factors by which short and long vectors are multiplied before their norms are computed.
const SCALES: [f32; 2] = [f32::from_bits((127 + 100) << 23), f32::from_bits((127 - 80) << 23)];

/// The power of two by which a vector is multiplied before its norm is computed, if the sum of its squares is `square`:
/// so that no sum overflows, and no square of a short vector is lost. 1 for usual vectors, whose bits it does not
/// change.
#[device_inline]
pub fn scale_for_norm(square: f32) -> f32 {
    match square {
        _ if square < f32::from_bits((127 - 80) << 23) => SCALES[0],
        _ if square > f32::from_bits((127 + 120) << 23) => SCALES[1],
        _ => 1.0,
    }
}

/// Number of loads of a row that a lane has in flight.
const AHEAD: usize = 4;

/// Vectors that walks compare. `ROWS` vectors are read at a time by each team. A unit of a row is a component, or eight
/// bits.
pub trait Compared: Row {
    /// Stores a query in shared memory, as [`key`](Self::key) takes it, but not divided by its norm: each component as
    /// f32, with zeros up to a multiple of [`SUMS`], or the bytes. The `threads` of the block share the work. A thread
    /// that reads other threads' words needs a barrier before.
    ///
    /// # Safety
    /// `query` has `stride` components and is aligned to four components; `to` has room for `stride` words, up to a
    /// multiple of [`SUMS`].
    unsafe fn store(query: *const Self::Stored, stride: u32, to: SharedPtr<u32>, threads: u32);

    /// The name of the content.
    const KEY: RowKey;

    /// The part of the keys of a query that does not depend on rows. All 32 lanes arrive.
    ///
    /// # Safety
    /// As [`key`](Self::key).
    unsafe fn own(query: SharedPtr<u32>, stride: u32, lane_in_team: u32) -> u32;

    /// The key of the distance between a query in shared memory and one of some rows: the row of [`row_of`] for the
    /// lane. All 32 lanes arrive. `own` is the query's [`own`](Self::own).
    ///
    /// # Safety
    /// `query` has `stride` components, as [`store`](Self::store) stores them, and starts at a multiple of 16 bytes; no
    /// thread writes them. For cosine, [`normalise`](Self::normalise) has followed. Each row has `stride` components, a
    /// multiple of 4, or of 16 if they are bytes.
    unsafe fn key<const ROWS: usize>(
        metric: Metric,
        query_and_own: (SharedPtr<u32>, u32),
        rows: [*const Self::Stored; ROWS],
        stride: u32,
        lane_in_team: u32,
    ) -> u32;

    /// Divides a query in shared memory by its norm, unless that is 0 or the type needs no division. All threads of the
    /// block arrive, after a barrier. A thread that reads other threads' words needs a barrier before.
    ///
    /// # Safety
    /// As [`key`](Self::key).
    unsafe fn normalise(query: SharedPtr<u32>, stride: u32, threads: u32);
}

macro_rules! floats {
    ($($element:ident)*) => {$(
        impl Compared for element::$element {
            const KEY: RowKey = RowKey::$element;

            #[device_inline]
            unsafe fn store(query: *const Self::Stored, stride: u32, to: SharedPtr<u32>, threads: u32) {
                let mut quad = thread::thread_idx_x();
                while quad < stride.next_multiple_of(SUMS) / 4 {
                    // SAFETY: quads below stride / 4 are in the query, and there is room for all.
                    unsafe {
                        let x = if quad < stride / 4 { Self::load4(query, quad) } else { [0.0; 4] };
                        to.add(4 * quad).cast::<F32x4>().store(F32x4(x));
                    }
                    quad += threads;
                }
            }

            #[device_inline]
            unsafe fn own(_: SharedPtr<u32>, _: u32, _: u32) -> u32 {
                0
            }

            #[device_inline]
            unsafe fn key<const ROWS: usize>(
                metric: Metric,
                (query, _): (SharedPtr<u32>, u32),
                rows: [*const Self::Stored; ROWS],
                stride: u32,
                lane_in_team: u32,
            ) -> u32 {
                // SAFETY: as the caller promises.
                unsafe { float_key::<Self, ROWS>(metric, query.cast(), rows, stride, lane_in_team) }
            }

            #[device_inline]
            unsafe fn normalise(query: SharedPtr<u32>, stride: u32, threads: u32) {
                // SAFETY: as the caller promises.
                unsafe { divide_by_norm(query.cast(), stride, threads) }
            }
        }
    )*};
}
floats!(F32 F16 Bf16);

macro_rules! bytes {
    ($($element:ident: $sum:ty, $dot:path, |$product:ident| $descending:expr;)*) => {$(
        impl Compared for element::$element {
            const KEY: RowKey = RowKey::$element;

            #[device_inline]
            unsafe fn store(query: *const Self::Stored, stride: u32, to: SharedPtr<u32>, threads: u32) {
                // SAFETY: as the caller promises.
                unsafe { store_bytes(query.cast(), stride, to, threads) }
            }

            #[device_inline]
            unsafe fn own(query: SharedPtr<u32>, stride: u32, lane_in_team: u32) -> u32 {
                let mut sum = 0;
                let mut quad = lane_in_team;
                while quad < stride / 16 {
                    // SAFETY: the quad is in the query.
                    let x = unsafe { query.add(4 * quad).cast::<U32x4>().load() }.0;
                    unroll::<4>(|e| sum = $dot(x[e], x[e], sum as $sum) as u32);
                    quad += TEAM;
                }
                of_row([sum], lane_in_team, u32::wrapping_add)
            }

            #[device_inline]
            unsafe fn key<const ROWS: usize>(
                metric: Metric,
                (query, own): (SharedPtr<u32>, u32),
                rows: [*const Self::Stored; ROWS],
                stride: u32,
                lane_in_team: u32,
            ) -> u32 {
                let (mut xy, mut yy) = ([0u32; ROWS], [0u32; ROWS]);
                let add = |x: u32, y: [u32; ROWS]| {
                    unroll::<ROWS>(|r| {
                        xy[r] = $dot(x, y[r], xy[r] as $sum) as u32;
                        yy[r] = $dot(y[r], y[r], yy[r] as $sum) as u32;
                    });
                };
                // SAFETY: as the caller promises.
                unsafe { each_word(query, rows.map(|row| row.cast()), stride, lane_in_team, add) };
                let team_sum = |sums| of_row::<u32, ROWS>(sums, lane_in_team, u32::wrapping_add);
                match metric {
                    Metric::L2 => {
                        unroll::<ROWS>(|r| xy[r] = yy[r].wrapping_sub(xy[r].wrapping_mul(2)));
                        team_sum(xy).wrapping_add(own)
                    }
                    Metric::InnerProduct => {
                        let $product = team_sum(xy);
                        $descending
                    }
                    Metric::Cosine => {
                        let (product, square) = (team_sum(xy) as $sum as f32, team_sum(yy) as f32);
                        let norms = sqrt_f32(own as f32) * sqrt_f32(square);
                        ordered(if norms == 0.0 { 0.0 } else { -product / norms })
                    }
                }
            }

            #[device_inline]
            unsafe fn normalise(_: SharedPtr<u32>, _: u32, _: u32) {}
        }
    )*};
}
bytes! {
    U8: u32, dot4_u8, |product| !product;
    // Signed products order as unsigned numbers with the sign bit inverted.
    I8: i32, dot4_i8, |product| !(product ^ 1 << 31);
}

impl Compared for element::Bits {
    const KEY: RowKey = RowKey::Bits;

    #[device_inline]
    unsafe fn store(query: *const u8, stride: u32, to: SharedPtr<u32>, threads: u32) {
        // SAFETY: as the caller promises.
        unsafe { store_bytes(query, stride, to, threads) }
    }

    #[device_inline]
    unsafe fn own(_: SharedPtr<u32>, _: u32, _: u32) -> u32 {
        0
    }

    /// The number of bits in which query and row differ: of bits, all metrics but squared L2 are refused by the host.
    #[device_inline]
    unsafe fn key<const ROWS: usize>(
        _: Metric,
        (query, _): (SharedPtr<u32>, u32),
        rows: [*const u8; ROWS],
        stride: u32,
        lane_in_team: u32,
    ) -> u32 {
        let mut sums = [0u32; ROWS];
        let add = |x: u32, y: [u32; ROWS]| unroll::<ROWS>(|r| sums[r] += (x ^ y[r]).count_ones());
        // SAFETY: as the caller promises.
        unsafe { each_word(query, rows, stride, lane_in_team, add) };
        of_row(sums, lane_in_team, u32::wrapping_add)
    }

    #[device_inline]
    unsafe fn normalise(_: SharedPtr<u32>, _: u32, _: u32) {}
}

/// Copies a query of bytes to shared memory. The `threads` of the block share the work.
///
/// # Safety
/// As [`Compared::store`].
#[device_inline]
unsafe fn store_bytes(query: *const u8, stride: u32, to: SharedPtr<u32>, threads: u32) {
    let mut word = thread::thread_idx_x();
    while word < stride / 4 {
        // SAFETY: the word is in the query, and there is room for it.
        unsafe { to.add(word).store(global::load_nc(query.cast::<u32>().wrapping_add(word as usize))) };
        word += threads;
    }
}

/// Calls `add` with each word of the query that a lane has, and the words of the rows in its place, or with zeros.
/// Sums of integers are exact, so the order does not matter. All 32 lanes arrive.
///
/// # Safety
/// As [`Compared::key`].
#[device_inline]
unsafe fn each_word<const ROWS: usize>(
    query: SharedPtr<u32>,
    rows: [*const u8; ROWS],
    stride: u32,
    lane_in_team: u32,
    mut add: impl FnMut(u32, [u32; ROWS]),
) {
    let quads = stride / 16;
    let mut quad_of = |quad: u32| {
        let (mut x, mut y) = ([0; 4], [[0; 4]; ROWS]);
        if quad < quads {
            // SAFETY: the quad is in the query and in the rows.
            unsafe {
                unroll::<ROWS>(|r| {
                    y[r] = global::load_nc(rows[r].cast::<U32x4>().wrapping_add(quad as usize)).0;
                });
                x = query.add(4 * quad).cast::<U32x4>().load().0;
            }
        }
        // Nothing else keeps the compiler from unrolling the loop, whose loads then need more registers than there
        // are.
        warp::sync_warp(FULL_MASK);
        unroll::<4>(|e| {
            let mut of_rows = [0; ROWS];
            unroll::<ROWS>(|r| of_rows[r] = y[r][e]);
            add(x[e], of_rows);
        });
    };
    // Vectors of up to 128 bytes need no loop.
    quad_of(lane_in_team);
    let mut quad = TEAM;
    while quad < quads {
        quad_of(quad + lane_in_team);
        quad += TEAM;
    }
}

/// The row of which a lane of a team gets the sum or the key: of two rows by the lowest bit of the lane, of four by its
/// two lowest bits.
#[device_inline]
pub fn row_of<const ROWS: usize>(lane_in_team: u32) -> u32 {
    match ROWS {
        1 => 0,
        2 => lane_in_team & 1,
        _ => (lane_in_team & 1) << 1 | (lane_in_team >> 1 & 1),
    }
}

/// Whether no lane below this one in its team gets the same row.
#[device_inline]
pub fn is_first_of_row<const ROWS: usize>(lane_in_team: u32) -> bool {
    lane_in_team < ROWS as u32
}

/// The sum of a row over the lanes of the team: on each lane that of its row ([`row_of`]). The sum is a balanced tree
/// of neighbours: lanes 0 and 1, then pairs, then fours. All 32 lanes arrive.
///
/// While a lane has two rows or more, it gives half of them to its neighbour and takes the neighbour's part of the
/// others, so four rows take four shuffles instead of twelve.
#[device_inline]
fn of_row<V: Shuffle + Copy, const ROWS: usize>(sums: [V; ROWS], lane_in_team: u32, add: impl Fn(V, V) -> V) -> V {
    const { assert!(ROWS == 1 || ROWS == 2 || ROWS == 4, "rows are halved") };
    let exchange = |mine: V, other: V, mask: u32| add(mine, shuffle_xor(FULL_MASK, other, mask));
    let of_bit = |bit: u32, low: V, high: V| if lane_in_team & bit == 0 { (low, high) } else { (high, low) };
    if ROWS == 1 {
        let sum = exchange(sums[0], sums[0], 1);
        let sum = exchange(sum, sum, 2);
        return exchange(sum, sum, 4);
    }
    let (mine, other) = of_bit(1, sums[0], sums[ROWS / 2]);
    let first = exchange(mine, other, 1);
    if ROWS == 2 {
        let sum = exchange(first, first, 2);
        return exchange(sum, sum, 4);
    }
    let (mine, other) = of_bit(1, sums[ROWS / 4], sums[ROWS / 2 + ROWS / 4]);
    let second = exchange(mine, other, 1);
    let (mine, other) = of_bit(2, first, second);
    let sum = exchange(mine, other, 2);
    exchange(sum, sum, 4)
}

/// # Safety
/// As [`Compared::key`].
#[device_inline]
unsafe fn float_key<E: Element, const ROWS: usize>(
    metric: Metric,
    query: SharedPtr<f32>,
    rows: [*const E::Stored; ROWS],
    stride: u32,
    lane_in_team: u32,
) -> u32 {
    let of = Lanes { query, stride, lane_in_team };
    // SAFETY: as the caller promises.
    unsafe {
        match metric {
            Metric::L2 => ordered(of.sum::<E, ROWS>(rows, |x, y| (x - y) * (x - y))),
            Metric::InnerProduct => ordered(-of.sum::<E, ROWS>(rows, |x, y| x * y)),
            Metric::Cosine => {
                // The second pass reads the rows from the cache.
                let both = |scale: f32| {
                    let value = of.sum::<E, ROWS>(rows, |x, y| x * (y * scale));
                    (value, of.sum::<E, ROWS>(rows, |_, y| (y * scale) * (y * scale)))
                };
                let (mut value, mut square) = both(1.0);
                let wanted = scale_for_norm(square);
                let mut at = 0;
                while at < SCALES.len() && warp::any(FULL_MASK, wanted != 1.0) {
                    let scaled = both(SCALES[at]);
                    (value, square) = if wanted == SCALES[at] { scaled } else { (value, square) };
                    at += 1;
                }
                ordered(if square == 0.0 { 0.0 } else { -value / sqrt_f32(square) })
            }
        }
    }
}

/// The query that a team compares, and the place of a lane in the team.
#[derive(Clone, Copy)]
struct Lanes {
    query: SharedPtr<f32>,
    stride: u32,
    lane_in_team: u32,
}

impl Lanes {
    /// The sum of the terms of the lane's row ([`row_of`]). All 32 lanes arrive.
    ///
    /// # Safety
    /// As [`Compared::key`].
    #[device_inline]
    unsafe fn sum<E: Element, const ROWS: usize>(
        self,
        rows: [*const E::Stored; ROWS],
        term: impl Fn(f32, f32) -> f32,
    ) -> f32 {
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
        let mut of_lane = [0.0; ROWS];
        unroll::<ROWS>(|r| of_lane[r] = of_four(sums[r]));
        of_row(of_lane, self.lane_in_team, |a, b| a + b)
    }
}

/// Divides a query in shared memory by its norm, unless that is 0. All `threads` of the block arrive, after a barrier.
///
/// # Safety
/// `query` has `stride` components, a multiple of 4, and starts at a multiple of 16 bytes; no other thread writes them.
#[device_inline]
unsafe fn divide_by_norm(query: SharedPtr<f32>, stride: u32, threads: u32) {
    let square = |scale: f32| {
        let mut sums = [0.0f32; 4];
        let mut quad = warp::lane_id() % TEAM;
        while quad < stride / 4 {
            // SAFETY: the quad is in the query.
            let x = unsafe { query.add(4 * quad).cast::<F32x4>().load() }.0;
            unroll::<4>(|e| sums[e] += (x[e] * scale) * (x[e] * scale));
            quad += TEAM;
        }
        of_row([of_four(sums)], warp::lane_id() % TEAM, |a, b| a + b)
    };
    let usual = square(1.0);
    let scale = scale_for_norm(usual);
    // All lanes get the same sums.
    let square = if scale == 1.0 { usual } else { square(scale) };
    let norm = sqrt_f32(square);
    thread::sync_threads();
    let mut at = thread::thread_idx_x();
    while at < stride && norm != 0.0 {
        // SAFETY: the component is in the query, and all threads have read it.
        unsafe {
            let x = query.add(at);
            x.store(x.load() * scale / norm);
        }
        at += threads;
    }
}

/// The sum of a lane's four partial sums.
#[device_inline]
fn of_four(sums: [f32; 4]) -> f32 {
    (sums[0] + sums[1]) + (sums[2] + sums[3])
}

/// The key of a value: u32 in the order of the values, NaN last.
#[device_inline]
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
