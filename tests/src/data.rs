//! Deterministic data: the same bits from the same seed on every machine (no library functions whose rounding varies).

use half::{bf16, f16};
pub use test_random::Random;
use warpann::Element;
use warpann::select::{Best, Key};

use crate::cases::{KeyData, VectorData};

/// An element type of the tests, with conversions that are independent of the library.
pub trait Component: Element {
    /// The nearest finite value of this type.
    fn nearest(value: f64) -> Self;
    /// The value as f64, which is exact.
    fn exact(self) -> f64;
    /// A factor that makes numbers around 1 fill the type's range well, and an offset into its middle.
    const SPREAD: (f64, f64);
    /// Whether all values are whole.
    const WHOLE: bool;
}

impl Component for f32 {
    fn nearest(value: f64) -> Self {
        value.clamp(f64::from(f32::MIN), f64::from(f32::MAX)) as f32
    }
    fn exact(self) -> f64 {
        f64::from(self)
    }
    const SPREAD: (f64, f64) = (1.0, 0.0);
    const WHOLE: bool = false;
}

impl Component for f16 {
    fn nearest(value: f64) -> Self {
        f16::from_f64(value.clamp(-65504.0, 65504.0))
    }
    fn exact(self) -> f64 {
        self.to_f64()
    }
    const SPREAD: (f64, f64) = (1.0, 0.0);
    const WHOLE: bool = false;
}

impl Component for bf16 {
    fn nearest(value: f64) -> Self {
        bf16::from_f64(value.clamp(bf16::MIN.to_f64(), bf16::MAX.to_f64()))
    }
    fn exact(self) -> f64 {
        self.to_f64()
    }
    const SPREAD: (f64, f64) = (1.0, 0.0);
    const WHOLE: bool = false;
}

impl Component for u8 {
    fn nearest(value: f64) -> Self {
        value.clamp(0.0, 255.0).round_ties_even() as u8
    }
    fn exact(self) -> f64 {
        f64::from(self)
    }
    const SPREAD: (f64, f64) = (50.0, 128.0);
    const WHOLE: bool = true;
}

impl Component for i8 {
    fn nearest(value: f64) -> Self {
        value.clamp(-128.0, 127.0).round_ties_even() as i8
    }
    fn exact(self) -> f64 {
        f64::from(self)
    }
    const SPREAD: (f64, f64) = (50.0, 0.0);
    const WHOLE: bool = true;
}

/// `base` and `queries`, row-major, and the same as f64.
#[derive(Debug, Clone)]
pub struct Vectors<T> {
    /// `n` vectors.
    pub base: Vec<T>,
    /// `nq` vectors.
    pub queries: Vec<T>,
    /// `base`, exactly.
    pub exact_base: Vec<f64>,
    /// `queries`, exactly.
    pub exact_queries: Vec<f64>,
}

/// Vectors of the kind `data`.
pub fn vectors<T: Component>(data: VectorData, dim: usize, n: usize, nq: usize, seed: u64) -> Vectors<T> {
    let mut random = Random::new(seed);
    let (spread, middle) = T::SPREAD;
    let random = &mut random;
    let normals = |random: &mut Random, count: usize| -> Vec<f64> {
        (0..count * dim).map(|_| middle + spread * random.normal()).collect()
    };
    let integers = |random: &mut Random, count: usize| -> Vec<f64> {
        (0..count * dim).map(|_| random.below(4) as f64 - if middle == 0.0 { 2.0 } else { 0.0 }).collect()
    };
    let scaled = |values: Vec<f64>, factor: &mut dyn FnMut() -> f64| -> Vec<f64> {
        values
            .chunks(dim)
            .flat_map(|row| {
                let factor = factor();
                row.iter().map(move |value| value * factor)
            })
            .collect()
    };
    let (base, queries): (Vec<f64>, Vec<f64>) = match data {
        VectorData::Gaussian => (normals(random, n), normals(random, nq)),
        VectorData::Ties => (integers(random, n), integers(random, nq)),
        VectorData::Duplicates => {
            let originals = normals(random, n.div_ceil(7).max(1));
            let copies = originals.len() / dim;
            let pick = |random: &mut Random| originals[random.below(copies) * dim..][..dim].to_vec();
            ((0..n).flat_map(|_| pick(random)).collect(), (0..nq).flat_map(|_| pick(random)).collect())
        }
        VectorData::AllEqual => {
            let row = normals(random, 1);
            let other = normals(random, 1);
            let queries = (0..nq).flat_map(|q| if q % 2 == 0 { row.clone() } else { other.clone() });
            (row.repeat(n), queries.collect())
        }
        VectorData::FarClusters => {
            // Distances between neighbours are a hundred thousand times smaller than norms.
            let centres: Vec<f64> = (0..4 * dim).map(|_| middle + spread * (1000.0 + random.normal())).collect();
            let member = |random: &mut Random| -> Vec<f64> {
                let centre = &centres[random.below(4) * dim..][..dim];
                centre.iter().map(|value| value + spread * 0.01 * random.normal()).collect()
            };
            ((0..n).flat_map(|_| member(random)).collect(), (0..nq).flat_map(|_| member(random)).collect())
        }
        VectorData::Huge => {
            // 10^18 .. 10^30, another power for every row.
            let mut exponents = random.clone();
            let mut factor = || 10f64.powi(18 + exponents.below(13) as i32);
            let base = scaled(normals(random, n), &mut factor);
            (base, scaled(normals(random, nq), &mut factor))
        }
        VectorData::Large => {
            let norm = 2f64.powi(63 + random.below(12) as i32);
            let factor = norm / (dim as f64).sqrt();
            (scaled(normals(random, n), &mut || factor), scaled(normals(random, nq), &mut || factor))
        }
        VectorData::Tiny => {
            // Around the smallest normal f32 (10^−38) and below; squares vanish in f32.
            let mut exponents = random.clone();
            let mut factor = || 10f64.powi(-(18 + exponents.below(26) as i32));
            let base = scaled(normals(random, n), &mut factor);
            (base, scaled(normals(random, nq), &mut factor))
        }
        VectorData::Zeros => {
            let mut zero = random.clone();
            let mut factor = || if zero.below(2) == 0 { 0.0 } else { 1.0 };
            let base = scaled(normals(random, n), &mut factor);
            (base, scaled(normals(random, nq), &mut factor))
        }
        VectorData::Outlier => {
            let mut base = normals(random, n);
            if let Some(row) = base.chunks_mut(dim).nth(n / 3) {
                row.iter_mut().for_each(|value| *value *= 1e6);
            }
            (base, normals(random, nq))
        }
        VectorData::Line => {
            // Every base row on one line through the origin: similarities differ only by length.
            let direction = normals(random, 1);
            let base = (0..n).flat_map(|row| {
                let factor = (row * 7919 % n.max(1)) as f64 / 64.0;
                direction.iter().map(move |value| value * factor).collect::<Vec<_>>()
            });
            (base.collect(), normals(random, nq))
        }
    };
    let (base, queries): (Vec<T>, Vec<T>) =
        (base.into_iter().map(T::nearest).collect(), queries.into_iter().map(T::nearest).collect());
    let exact_base = base.iter().map(|value| value.exact()).collect();
    let exact_queries = queries.iter().map(|value| value.exact()).collect();
    Vectors { base, queries, exact_base, exact_queries }
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
    let worst = K::from_low_bits(K::EMPTY_BITS[usize::from(best == Best::Largest)]);
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
