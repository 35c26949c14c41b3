//! The elements of matrices of bytes, with their products by plain arithmetic.

use proptest::prelude::*;

/// The elements that bytes hold.
#[derive(Debug, Clone, Copy)]
pub enum Elements {
    Signed,
    Unsigned,
    /// Eight in each byte.
    Bits,
}

impl Elements {
    /// The sum of the products of the elements of two bytes.
    pub fn product(self, a: u8, b: u8) -> i64 {
        match self {
            Elements::Signed => i64::from(a as i8) * i64::from(b as i8),
            Elements::Unsigned => i64::from(a) * i64::from(b),
            Elements::Bits => (0..8).map(|bit| i64::from(a >> bit & b >> bit & 1)).sum(),
        }
    }
}

pub fn elements() -> impl Strategy<Value = Elements> {
    prop_oneof![Just(Elements::Signed), Just(Elements::Unsigned), Just(Elements::Bits)]
}
