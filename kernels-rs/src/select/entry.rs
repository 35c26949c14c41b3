//! A selection entry: a key and its payload in one `u64` whose integer order is the order of results.
//!
//! The high word is the key as an order-preserving integer, the low word the payload (a position or a row number). One
//! integer comparison then orders by key, and equal keys by lower payload: selection has no ties, so every network,
//! every queue length and every device gives the same result. A 64-bit compare and two selects cost the same six
//! instructions per compare-exchange as a float compare that carries a payload along (2 SHFL, 2 ISETP, 2 SEL).
//!
//! Order of keys: −∞ < .. < −0 = +0 < .. < +∞ < NaN (of either sign) < [`EMPTY`].

use cuda_std::device_inline;

/// An empty slot. It comes after every entry, those with NaN keys included.
pub const EMPTY: u64 = u64::MAX;
/// The threshold that all entries pass.
pub const ALL: u64 = EMPTY - 1;

const SIGN: u32 = 0x8000_0000;

/// The key of `value`: u32 order equals the order in the module documentation. Never `u32::MAX`.
#[device_inline]
pub fn key_of(value: f32) -> u32 {
    // Adding +0 turns −0 into +0 and changes nothing else; the canonical NaN has the largest key of all floats.
    let bits = if value.is_nan() { f32::NAN.to_bits() & !SIGN } else { (value + 0.0).to_bits() };
    bits ^ (((bits as i32) >> 31) as u32 | SIGN)
}

/// The value of a key, with −0 as +0 and NaN as the canonical NaN. The value of `u32::MAX`, the key of [`EMPTY`], is a
/// NaN.
#[device_inline]
pub fn value_of(key: u32) -> f32 {
    f32::from_bits(if key & SIGN != 0 { key ^ SIGN } else { !key })
}

/// Joins a key and a payload.
#[device_inline]
pub fn pack(key: u32, payload: u32) -> u64 {
    (key as u64) << 32 | payload as u64
}

/// The key of an entry.
#[device_inline]
pub fn key(entry: u64) -> u32 {
    (entry >> 32) as u32
}

/// The payload of an entry; `u32::MAX` for [`EMPTY`].
#[device_inline]
pub fn payload(entry: u64) -> u32 {
    entry as u32
}
