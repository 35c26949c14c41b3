//! Four neighbouring components, and how a warp sums the terms of rows of them in the order of canonical distances
//! ([`crate::product::canonical`]).
//!
//! Terms of bytes are whole numbers, whose sums are exact in any order. They are added in 32-bit integers, four in an
//! instruction, and reduced by one instruction of the warp.

use cuda_std::math::{dot4_i8, dot4_u8};
use cuda_std::warp::{FULL_MASK, butterfly_sum};
use cuda_std::{device_inline, unroll, warp};

use crate::product::metric::Term;

/// Number of base rows that a warp has in flight.
pub const BATCH: usize = 4;

/// Four neighbouring components, and how a warp sums the terms of rows of them. All 32 lanes of a warp arrive at each
/// of these functions, and every lane returns all sums. `x(quad)` gives four components of the query and `y(b, quad)`
/// those of row b, for quad < `quads`.
pub trait Quad: Copy {
    /// Steps 1 to 4 of the definition for `BATCH` rows at once.
    fn sums<T: Term>(x: impl Fn(u32) -> Self, y: impl Fn(usize, u32) -> Self, quads: u32, lane: u32) -> [f64; BATCH];

    /// Σ y² of `ROWS` rows in the canonical order.
    fn squares<const ROWS: usize>(y: impl Fn(usize, u32) -> Self, quads: u32, lane: u32) -> [f64; ROWS];
}

impl Quad for [f32; 4] {
    #[device_inline]
    fn sums<T: Term>(
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
                        acc[b][e] += T::of(x, y);
                    });
                });
            }
            base += 32;
        }
        let mut sums = [0.0; BATCH];
        unroll::<BATCH>(|b| sums[b] = butterfly_sum((acc[b][0] + acc[b][1]) + (acc[b][2] + acc[b][3])));
        sums
    }

    #[device_inline]
    fn squares<const ROWS: usize>(y: impl Fn(usize, u32) -> [f32; 4], quads: u32, lane: u32) -> [f64; ROWS] {
        let mut acc = [[0.0f64; 4]; ROWS];
        let mut base = 0;
        while base < quads {
            let quad = base + lane;
            if quad < quads {
                unroll::<ROWS>(|b| {
                    let y = y(b, quad);
                    unroll::<4>(|e| acc[b][e] += y[e] as f64 * y[e] as f64);
                });
            }
            base += 32;
        }
        let mut sums = [0.0; ROWS];
        unroll::<ROWS>(|b| sums[b] = butterfly_sum((acc[b][0] + acc[b][1]) + (acc[b][2] + acc[b][3])));
        sums
    }
}

/// Four components of one byte each, or 32 of one bit.
pub trait ByteQuad: Quad {
    /// `sum` plus the sum of the products of the components, modulo 2³².
    fn dot4(x: u32, y: u32, sum: i32) -> i32;
}

/// Number of groups of four bytes whose sums of terms stay below 2³¹: 255² · 4 · 8,192 does.
pub(crate) const BYTE_QUADS: u32 = 8192;

/// The exact sums of terms of `ROWS` rows of bytes; `add` adds the terms of a group of components to the sums. The
/// sums of whole numbers below 2⁵³ are the same in any order, so these are the canonical ones.
#[device_inline]
fn byte_sums<const ROWS: usize>(add: impl Fn(&mut [i32; ROWS], u32), quads: u32, lane: u32) -> [f64; ROWS] {
    let mut sums = [0.0f64; ROWS];
    let mut first = 0;
    while first < quads {
        let end = (first + BYTE_QUADS).min(quads);
        let mut acc = [0i32; ROWS];
        let mut quad = first + lane;
        while quad < end {
            add(&mut acc, quad);
            quad += 32;
        }
        unroll::<ROWS>(|b| sums[b] += warp::reduce_add(FULL_MASK, acc[b]) as f64);
        first = end;
    }
    sums
}

macro_rules! byte_quad {
    ($(#[$doc:meta])* $name:ident, $dot:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub struct $name(pub u32);

        impl ByteQuad for $name {
            #[device_inline]
            fn dot4(x: u32, y: u32, sum: i32) -> i32 {
                let dot = $dot;
                dot(x, y, sum)
            }
        }

        impl Quad for $name {
            #[device_inline]
            fn sums<T: Term>(
                x: impl Fn(u32) -> Self,
                y: impl Fn(usize, u32) -> Self,
                quads: u32,
                lane: u32,
            ) -> [f64; BATCH] {
                let dot = <Self as ByteQuad>::dot4;
                let add = |sums: &mut [i32; BATCH], quad: u32| {
                    let x = x(quad).0;
                    let own = dot(x, x, 0);
                    unroll::<BATCH>(|b| {
                        let y = y(b, quad).0;
                        sums[b] = sums[b].wrapping_add(T::of_sums(dot(y, y, own), dot(x, y, 0)));
                    });
                };
                byte_sums(add, quads, lane)
            }

            #[device_inline]
            fn squares<const ROWS: usize>(y: impl Fn(usize, u32) -> Self, quads: u32, lane: u32) -> [f64; ROWS] {
                let dot = <Self as ByteQuad>::dot4;
                let add = |sums: &mut [i32; ROWS], quad: u32| {
                    unroll::<ROWS>(|b| {
                        let y = y(b, quad).0;
                        sums[b] = dot(y, y, sums[b]);
                    });
                };
                byte_sums(add, quads, lane)
            }
        }
    };
}

byte_quad! {
    /// Four neighbouring components of type u8, in one word.
    U8x4, |x: u32, y: u32, sum: i32| dot4_u8(x, y, sum as u32) as i32
}
byte_quad! {
    /// Four neighbouring components of type i8, in one word.
    I8x4, dot4_i8
}
byte_quad! {
    /// 32 neighbouring components of one bit, in one word. A product is 1 where both have a 1.
    BitsX32, |x: u32, y: u32, sum: i32| (x & y).count_ones() as i32 + sum
}
