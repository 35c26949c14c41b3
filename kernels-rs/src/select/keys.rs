//! The key types of k-selection, as ordered 32-bit integers.
//!
//! Every selection kernel except WarpSelect converts keys to `u32` words whose integer order is the order of results.
//! So one comparison works for all types, and (word, position) is an entry of [`crate::select::entry`]. A key has two
//! words:
//!
//! 1. [`Key::raw_order`], three instructions: correct for all numbers, except that −0 comes before +0, and NaN before
//!    −∞ or after +∞. It suffices for skipping numbers above a bound: −0 is never skipped if +0 is not.
//! 2. [`Key::order`]: −0 equal to +0, every NaN after +∞.
//!
//! 16-bit floats are read as the upper half of a word. Sign and exponent are then at the top as in an f32, so one
//! formula works for all floats.

use cuda_std::device_inline;
use cuda_std::global::{U32x2, U32x4};

const SIGN: u32 = 0x8000_0000;

/// A key type of the selection kernels.
pub trait Key: Copy {
    /// The type of a key in memory.
    type Stored: Copy;
    /// Four consecutive keys, moved by one access.
    type Quad: Copy;
    /// A mask whose exclusive or with the bits reverses the order: the sign of a float, all bits of an integer.
    const FLIP: u32;
    /// The order of the worst number: +∞, or the largest integer.
    const WORST: u32;
    /// The order of the best number: −∞, or the smallest integer. Raw orders outside `BEST..=WORST` are NaN.
    const BEST: u32;
    /// The order of NaN; [`Self::WORST`] for integers.
    const NAN: u32;

    /// The bits of a stored key, in the upper half if it has 16.
    fn bits(stored: Self::Stored) -> u32;
    /// The bits of four stored keys.
    fn quad_bits(quad: Self::Quad) -> [u32; 4];
    /// The bits of four of the keys that are stored in 16 bytes: quad 0, or 1 if there are eight keys.
    fn unit_bits(unit: U32x4, quad: usize) -> [u32; 4];
    /// The stored key with these bits.
    fn stored(bits: u32) -> Self::Stored;
    /// The raw order of bits, correct for all numbers except −0.
    fn raw_order(bits: u32) -> u32;
    /// The bits of an ordered word.
    fn unorder(order: u32) -> u32;
    /// The order of a key, computed from its raw order.
    fn order(raw: u32) -> u32;
    /// As [`Self::order`], of a key that is no NaN.
    fn order_of_number(raw: u32) -> u32;
    /// Whether a key is at or before another one, that is no NaN, in the order of results, of the bits of both. NaN is
    /// not. Of a float one instruction or two.
    fn at_or_before(bits: u32, other: u32) -> bool;
    /// The bits of the last number whose order is at most this one, which is at least [`Self::BEST`].
    fn bits_up_to(order: u32) -> u32;
}

/// A key type as a value, which selects one of several kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyType {
    /// [`F32Key`].
    F32,
    /// [`F16Key`].
    F16,
    /// [`Bf16Key`].
    Bf16,
    /// [`I32Key`].
    I32,
    /// [`U32Key`].
    U32,
}

impl KeyType {
    /// Bytes of a key in memory.
    pub const fn bytes(self) -> u32 {
        match self {
            KeyType::F32 | KeyType::I32 | KeyType::U32 => 4,
            KeyType::F16 | KeyType::Bf16 => 2,
        }
    }
}

/// IEEE binary32.
#[derive(Clone, Copy)]
pub struct F32Key;
/// IEEE binary16, as bits.
#[derive(Clone, Copy)]
pub struct F16Key;
/// bfloat16, as bits.
#[derive(Clone, Copy)]
pub struct Bf16Key;
/// Keys that are signed integers of 32 bits.
#[derive(Clone, Copy)]
pub struct I32Key;
/// Keys that are unsigned integers of 32 bits.
#[derive(Clone, Copy)]
pub struct U32Key;

macro_rules! word {
    () => {
        type Stored = u32;
        type Quad = U32x4;
        #[device_inline]
        fn bits(stored: u32) -> u32 {
            stored
        }
        #[device_inline]
        fn quad_bits(quad: U32x4) -> [u32; 4] {
            quad.0
        }
        #[device_inline]
        fn unit_bits(unit: U32x4, _: usize) -> [u32; 4] {
            unit.0
        }
        #[device_inline]
        fn stored(bits: u32) -> u32 {
            bits
        }
    };
}

macro_rules! half_word {
    () => {
        type Stored = u16;
        type Quad = U32x2;
        #[device_inline]
        fn bits(stored: u16) -> u32 {
            (stored as u32) << 16
        }
        #[device_inline]
        fn quad_bits(quad: U32x2) -> [u32; 4] {
            let [a, b] = quad.0;
            [a << 16, a & 0xffff_0000, b << 16, b & 0xffff_0000]
        }
        #[device_inline]
        fn unit_bits(unit: U32x4, quad: usize) -> [u32; 4] {
            let [a, b, c, d] = unit.0;
            Self::quad_bits(U32x2(if quad == 0 { [a, b] } else { [c, d] }))
        }
        #[device_inline]
        fn stored(bits: u32) -> u16 {
            (bits >> 16) as u16
        }
    };
}

macro_rules! float_key {
    ($name:ident, $infinity:literal, $nan:literal, $storage:ident, |$float:ident| $number:expr) => {
        impl Key for $name {
            const FLIP: u32 = SIGN;
            const WORST: u32 = $infinity ^ SIGN;
            const BEST: u32 = !($infinity | SIGN);
            const NAN: u32 = $nan ^ SIGN;
            $storage!();
            #[device_inline]
            fn raw_order(bits: u32) -> u32 {
                bits ^ (((bits as i32) >> 31) as u32 | SIGN)
            }
            #[device_inline]
            fn unorder(order: u32) -> u32 {
                if order & SIGN != 0 { order ^ SIGN } else { !order }
            }
            #[device_inline]
            fn order(raw: u32) -> u32 {
                let number = Self::order_of_number(raw);
                if (Self::BEST..=Self::WORST).contains(&raw) { number } else { Self::NAN }
            }
            #[device_inline]
            fn order_of_number(raw: u32) -> u32 {
                if raw == SIGN - 1 { SIGN } else { raw }
            }
            #[device_inline]
            fn at_or_before(bits: u32, other: u32) -> bool {
                let $float = f32::from_bits(bits);
                $number && $float <= f32::from_bits(other)
            }
            #[device_inline]
            fn bits_up_to(order: u32) -> u32 {
                // −0 has the raw order before that of +0 and the same order, so no key has the order between.
                Self::unorder(if order == SIGN - 1 { SIGN - 2 } else { order })
            }
        }
    };
}
float_key!(F32Key, 0x7f80_0000, 0x7fc0_0000, word, |float| true);
// As the upper half of an f32, NaN of 16 bits is a number beyond both infinities. Beyond +∞ it comes after all others.
float_key!(F16Key, 0x7c00_0000, 0x7e00_0000, half_word, |float| float >= f32::from_bits(0xfc00_0000));
float_key!(Bf16Key, 0x7f80_0000, 0x7fc0_0000, half_word, |float| true);

macro_rules! integer_key {
    ($name:ident, $sign:expr) => {
        impl Key for $name {
            const FLIP: u32 = u32::MAX;
            const WORST: u32 = u32::MAX;
            const BEST: u32 = 0;
            const NAN: u32 = u32::MAX;
            word!();
            #[device_inline]
            fn raw_order(bits: u32) -> u32 {
                bits ^ $sign
            }
            #[device_inline]
            fn unorder(order: u32) -> u32 {
                order ^ $sign
            }
            #[device_inline]
            fn order(raw: u32) -> u32 {
                raw
            }
            #[device_inline]
            fn order_of_number(raw: u32) -> u32 {
                raw
            }
            #[device_inline]
            fn at_or_before(bits: u32, other: u32) -> bool {
                Self::raw_order(bits) <= Self::raw_order(other)
            }
            #[device_inline]
            fn bits_up_to(order: u32) -> u32 {
                Self::unorder(order)
            }
        }
    };
}
integer_key!(I32Key, SIGN);
integer_key!(U32Key, 0);
