//! The types of keys: the order of each, and the selection from its rows on any device.

use half::{bf16, f16};

use super::key::{Key, KeyType};
use super::layout::{Rows, Selection};
use super::options::{Algorithm, Best};
use super::{cpu, gpu};
use crate::device::open::open;
use crate::{Device, Result};

macro_rules! select_rows {
    () => {
        fn select_rows(
            device: Device,
            rows: &Rows<'_, Self>,
            best: Best,
            algorithm: Algorithm,
            selection: &mut Selection<Self>,
        ) -> Result<()> {
            select_on(device, rows, best, algorithm, selection)
        }
    };
}

/// A mask of all ones if the order is reversed, else 0.
macro_rules! turn {
    ($best:expr, $bits:ty) => {
        match $best {
            Best::Smallest => 0,
            Best::Largest => <$bits>::MAX,
        }
    };
}

// Integer arithmetic in the width of the key, without a branch, so that a loop over keys becomes vector instructions.
macro_rules! float_key {
    ($($type:ident, $name:ident, $bits:ty, $signed:ty, $infinity:literal, $nan:literal;)*) => {$(
        impl Key for $type {
            const TYPE: KeyType = KeyType::$name;
            fn worst(best: Best) -> Self {
                match best {
                    Best::Smallest => <$type>::INFINITY,
                    Best::Largest => <$type>::NEG_INFINITY,
                }
            }
            #[inline(always)]
            fn rank(self, best: Best) -> u32 {
                const SIGN: $bits = 1 << (<$bits>::BITS - 1);
                let bits = self.to_bits();
                let plain = if bits == SIGN { 0 } else { bits };
                // Flips all bits of a negative number, and the sign of a positive one.
                let ordered = plain ^ ((plain as $signed >> (<$bits>::BITS - 1)) as $bits | SIGN);
                // No number has the rank of NaN: the infinities have the ranks before it.
                let rank = if bits & !SIGN > $infinity { <$bits>::MAX } else { ordered ^ turn!(best, $bits) };
                rank as u32
            }
            #[inline]
            fn canonical(self) -> Self {
                const SIGN: $bits = 1 << (<$bits>::BITS - 1);
                let bits = self.to_bits();
                if bits & !SIGN > $infinity {
                    <$type>::from_bits($nan)
                } else if bits == SIGN {
                    <$type>::from_bits(0)
                } else {
                    self
                }
            }
            select_rows!();
        }
    )*};
}

float_key! {
    f32, F32, u32, i32, 0x7f80_0000, 0x7fc0_0000;
    f16, F16, u16, i16, 0x7c00, 0x7e00;
    bf16, Bf16, u16, i16, 0x7f80, 0x7fc0;
}

macro_rules! integer_key {
    ($($type:ident, $name:ident, $flip:literal;)*) => {$(
        impl Key for $type {
            const TYPE: KeyType = KeyType::$name;
            fn worst(best: Best) -> Self {
                match best {
                    Best::Smallest => <$type>::MAX,
                    Best::Largest => <$type>::MIN,
                }
            }
            #[inline(always)]
            fn rank(self, best: Best) -> u32 {
                self as u32 ^ $flip ^ turn!(best, u32)
            }
            #[inline]
            fn canonical(self) -> Self {
                self
            }
            select_rows!();
        }
    )*};
}

integer_key! {
    i32, I32, 0x8000_0000;
    u32, U32, 0;
}

/// Fills the slots of a selection. [`select_k_with`](super::select_k_with) calls it through [`Key::select_rows`], so
/// that it is compiled with this crate and not in every program.
fn select_on<K: Key>(
    device: Device,
    rows: &Rows<'_, K>,
    best: Best,
    algorithm: Algorithm,
    selection: &mut Selection<K>,
) -> Result<()> {
    match open(device)?.1 {
        Some(runtime) => gpu::rows::select_from_host(&runtime, rows, best, algorithm, selection),
        None => {
            cpu::select(rows, best, selection);
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every bit pattern of the 16-bit types, and their neighbours in f32, against the order of f32 itself.
    #[test]
    fn ranks_order_floats_as_their_values() {
        fn check<K: Key>(keys: &[K], value: impl Fn(K) -> f32) {
            for best in [Best::Smallest, Best::Largest] {
                let mut sorted = keys.to_vec();
                sorted.sort_by_key(|&key| key.rank(best));
                for pair in sorted.windows(2) {
                    let (a, b) = (value(pair[0]), value(pair[1]));
                    let (low, high) = if best == Best::Smallest { (a, b) } else { (b, a) };
                    let same = pair[0].rank(best) == pair[1].rank(best);
                    assert!(b.is_nan() || (low < high && !same) || (low == high && same), "{best:?}: {a}, {b}");
                    assert!(!a.is_nan() || (b.is_nan() && same), "{best:?}: {a}, {b}");
                }
            }
        }
        check(&(0..=u16::MAX).map(f16::from_bits).collect::<Vec<_>>(), f16::to_f32);
        check(&(0..=u16::MAX).map(bf16::from_bits).collect::<Vec<_>>(), bf16::to_f32);
        let singles = (0..=u16::MAX).flat_map(|high| [0, 1, 0x8000, 0xffff].map(|low| u32::from(high) << 16 | low));
        check(&singles.map(f32::from_bits).collect::<Vec<_>>(), |key| key);
    }

    #[test]
    fn ranks_order_integers() {
        let signed = [i32::MIN, -2, -1, 0, 1, i32::MAX];
        assert!(signed.map(|key| key.rank(Best::Smallest)).is_sorted());
        assert!(signed.map(|key| !key.rank(Best::Largest)).is_sorted());
        let unsigned = [0, 1, 1 << 31, u32::MAX];
        assert!(unsigned.map(|key| key.rank(Best::Smallest)).is_sorted());
        assert!(unsigned.map(|key| !key.rank(Best::Largest)).is_sorted());
    }

    #[test]
    fn canonical_keys() {
        assert_eq!((-0.0f32).canonical().to_bits(), 0);
        assert_eq!(f32::from_bits(0xffff_ffff).canonical().to_bits(), 0x7fc0_0000);
        assert_eq!(f16::from_bits(0xfc01).canonical().to_bits(), 0x7e00);
        assert_eq!(bf16::from_bits(0x7f81).canonical().to_bits(), 0x7fc0);
        for kept in [f32::NEG_INFINITY, -1.0, 1e-45, f32::MAX] {
            assert_eq!(kept.canonical(), kept);
        }
        assert_eq!(i32::MIN.canonical(), i32::MIN);
        for (name, key_type) in ["f32", "f16", "bf16", "i32", "u32"].into_iter().zip(KeyType::ALL) {
            assert_eq!(key_type.to_string(), name);
        }
    }
}
