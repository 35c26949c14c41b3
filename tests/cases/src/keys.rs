//! Keys for cases of k-selection: the same bits from the same seed on every machine.

use half::{bf16, f16};
use test_random::Random;
use warpann::select::{Best, Key};

/// The distribution of keys. For integers, the extremes replace infinities and NaN.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum KeyData {
    /// Keys with a normal distribution.
    Random,
    /// Keys ascend: the first k are the smallest.
    Ascending,
    /// Keys descend: every key is smaller than all before it.
    Descending,
    /// All keys are equal.
    AllEqual,
    /// Keys are zero or one.
    TwoValues,
    /// All keys have the same upper half of bits.
    EqualLeadingBits,
    /// A fraction of the keys is infinite, of either sign.
    Infinite {
        /// Share of such keys in percent.
        percent: f64,
    },
    /// A fraction of the keys is the worst key, which is also the content of an empty slot.
    Worst {
        /// Share of such keys in percent.
        percent: f64,
    },
    /// A third of the keys is NaN (of either sign), and a third is infinite.
    SomeNan,
    /// All keys are NaN of either sign.
    AllNan,
    /// Keys are −0 or +0.
    Zeros,
    /// Subnormal numbers of either sign.
    Subnormal,
    /// Any bits but NaN.
    Bits,
    /// One key far from the others.
    Outlier,
}

/// A key type of the tests, with conversions and constants that are independent of the library.
pub trait TestKey: Key {
    /// Bits of a mantissa; of integers the low bits that [`KeyData::Subnormal`] and the like play with.
    const LOW_BITS: u32;
    /// The bits of 1; of integers of a number with as many bits above the low ones.
    const ONE_BITS: u32;
    /// The bits of the one NaN in results.
    const NAN_BITS: u32;
    /// The bits of a key in an empty slot, when the smallest win and when the largest do.
    const EMPTY_BITS: [u32; 2];
    /// The key of these bits (the low ones).
    fn from_low_bits(bits: u32) -> Self;
    /// The bits of the key, in the low bits of the result.
    fn bits(self) -> u32;
    /// The value of the key as f64, which is exact.
    fn value(self) -> f64;
    /// The key that is nearest to `value`.
    fn rounded(value: f64) -> Self;
    /// A key whose order is that of small numbers like `value`.
    fn scaled(value: f64) -> Self;
    /// The key of a result that was selected by this value; without a value that of an empty slot.
    fn selected(best: Best, value: Option<&f64>) -> Self {
        match value {
            None => Self::from_low_bits(Self::EMPTY_BITS[usize::from(best == Best::Largest)]),
            Some(value) if value.is_nan() => Self::from_low_bits(Self::NAN_BITS),
            Some(value) => Self::rounded(value + 0.0),
        }
    }
    /// A NaN of either sign, quiet, with any payload; of integers an extreme.
    fn nan(random: &mut Random) -> Self;
}

macro_rules! float_key {
    ($($type:ident, $bits:ty, $mantissa:literal, $one:literal, $nan:literal, $empty:expr, $nearest:expr;)*) => {$(
        impl TestKey for $type {
            const LOW_BITS: u32 = $mantissa;
            const ONE_BITS: u32 = $one;
            const NAN_BITS: u32 = $nan;
            const EMPTY_BITS: [u32; 2] = $empty;
            fn from_low_bits(bits: u32) -> Self {
                Self::from_bits(bits as $bits)
            }
            fn bits(self) -> u32 {
                self.to_bits().into()
            }
            fn value(self) -> f64 {
                f64::from(self)
            }
            fn rounded(value: f64) -> Self {
                let nearest: fn(f64) -> Self = $nearest;
                nearest(value)
            }
            fn scaled(value: f64) -> Self {
                Self::rounded(value)
            }
            fn nan(random: &mut Random) -> Self {
                let sign = (random.below(2) as u32) << (<$bits>::BITS - 1);
                Self::from_low_bits(Self::NAN_BITS | sign | random.below(1 << ($mantissa - 1)) as u32)
            }
        }
    )*};
}

float_key! {
    f32, u32, 23, 0x3f80_0000, 0x7fc0_0000, [0x7f80_0000, 0xff80_0000], |value| value as f32;
    f16, u16, 10, 0x3c00, 0x7e00, [0x7c00, 0xfc00], f16::from_f64;
    bf16, u16, 7, 0x3f80, 0x7fc0, [0x7f80, 0xff80], bf16::from_f64;
}

macro_rules! integer_key {
    ($($type:ident, $offset:literal, $empty:expr;)*) => {$(
        impl TestKey for $type {
            const LOW_BITS: u32 = 20;
            const ONE_BITS: u32 = 0x1230_0000;
            // No integer's exact value is NaN.
            const NAN_BITS: u32 = 0;
            const EMPTY_BITS: [u32; 2] = $empty;
            fn from_low_bits(bits: u32) -> Self {
                bits as $type
            }
            fn bits(self) -> u32 {
                self as u32
            }
            fn value(self) -> f64 {
                f64::from(self)
            }
            fn rounded(value: f64) -> Self {
                value as $type
            }
            fn scaled(value: f64) -> Self {
                // Saturates.
                (value * 1000.0 + $offset) as $type
            }
            fn nan(random: &mut Random) -> Self {
                if random.below(2) == 0 { $type::MIN } else { $type::MAX }
            }
        }
    )*};
}

integer_key! {
    i32, 0.0, [0x7fff_ffff, 0x8000_0000];
    u32, 2147483648.0, [0xffff_ffff, 0];
}

/// Keys of the kind `data`: `count` of them, of which `columns` make a row; `best` of them will be selected.
pub fn keys<K: TestKey>(data: KeyData, best: Best, count: usize, columns: usize, seed: u64) -> Vec<K> {
    let mut random = Random::new(seed);
    let sign = |random: &mut Random| if random.below(2) == 0 { 1.0 } else { -1.0 };
    let sign_bit = 8 * size_of::<K>() - 1;
    let worst = K::selected(best, None);
    let mut key = |at: usize| -> K {
        let column = at % columns.max(1);
        match data {
            KeyData::Random => K::scaled(random.normal()),
            // Some have the same nearest key.
            KeyData::Ascending => K::scaled(column as f64 - 100.0),
            KeyData::Descending => K::scaled(100.0 - column as f64),
            KeyData::AllEqual => K::scaled(1.5),
            KeyData::TwoValues => K::scaled(random.below(2) as f64),
            KeyData::EqualLeadingBits => K::from_low_bits(K::ONE_BITS | random.below(1 << (K::LOW_BITS / 2)) as u32),
            KeyData::Infinite { percent } => {
                if random.unit() * 100.0 < percent {
                    K::scaled(f64::INFINITY * sign(&mut random))
                } else {
                    K::scaled(random.normal())
                }
            }
            KeyData::Worst { percent } => {
                if random.unit() * 100.0 < percent {
                    worst
                } else {
                    K::scaled(random.normal())
                }
            }
            KeyData::SomeNan => match random.below(3) {
                0 => K::nan(&mut random),
                1 => K::scaled(f64::INFINITY * sign(&mut random)),
                _ => K::scaled(random.normal()),
            },
            KeyData::AllNan => K::nan(&mut random),
            KeyData::Zeros => K::from_low_bits((random.below(2) as u32) << sign_bit),
            KeyData::Subnormal => {
                K::from_low_bits(random.below(1 << K::LOW_BITS) as u32 | (random.below(2) as u32) << sign_bit)
            }
            KeyData::Bits => loop {
                let key = K::from_low_bits(random.bits() as u32);
                if !key.value().is_nan() {
                    break key;
                }
            },
            KeyData::Outlier => {
                if column == columns / 2 {
                    K::scaled(-f64::from(f32::MAX))
                } else {
                    K::scaled(1.0 + random.unit())
                }
            }
        }
    };
    (0..count).map(&mut key).collect()
}
