//! Deterministic data: the same bits from the same seed on every machine (no library functions with rounding of their own).

use half::{bf16, f16};
use warpann::Element;

use crate::cases::{KeyData, VectorData};

/// splitmix64.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Numbers that follow from `seed`.
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// In 0..`below`, which is not 0.
    pub fn below(&mut self, below: usize) -> usize {
        ((u128::from(self.bits()) * below as u128) >> 64) as usize
    }

    /// In 0..1.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Mean 0, variance 1, near the normal distribution: twelve uniform numbers, added (no logarithm, whose bits vary).
    pub fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.unit()).sum::<f64>() - 6.0
    }
}

/// An element type as the tests see it, by conversions of their own.
pub trait Component: Element {
    /// The nearest finite value of this type.
    fn nearest(value: f64) -> Self;
    /// The value, exactly.
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

/// Keys of the kind `data`: `count` of them, of which `columns` make a row.
pub fn keys(data: KeyData, count: usize, columns: usize, seed: u64) -> Vec<f32> {
    let mut random = Random::new(seed);
    let sign = |random: &mut Random| if random.below(2) == 0 { 1.0 } else { -1.0 };
    let mut key = |at: usize| -> f32 {
        let column = at % columns.max(1);
        match data {
            KeyData::Random => random.normal() as f32,
            KeyData::Ascending => column as f32 - 100.0,
            KeyData::Descending => 100.0 - column as f32,
            KeyData::AllEqual => 1.5,
            KeyData::TwoValues => random.below(2) as f32,
            KeyData::Infinite { percent } => {
                if random.unit() * 100.0 < percent {
                    f32::INFINITY * sign(&mut random)
                } else {
                    random.normal() as f32
                }
            }
            KeyData::SomeNan => match random.below(3) {
                // Both signs, quiet, with different payloads.
                0 => f32::from_bits(0x7FC0_0000 | random.below(1 << 22) as u32 | (random.below(2) as u32) << 31),
                1 => f32::INFINITY * sign(&mut random),
                _ => random.normal() as f32,
            },
            KeyData::AllNan => f32::from_bits(0x7FC0_0000 | (random.below(2) as u32) << 31),
            KeyData::Zeros => 0.0 * sign(&mut random),
            KeyData::Subnormal => f32::from_bits(random.below(1 << 23) as u32 | (random.below(2) as u32) << 31),
            KeyData::Bits => loop {
                let key = f32::from_bits(random.bits() as u32);
                if !key.is_nan() {
                    break key;
                }
            },
            KeyData::Outlier => {
                if column == columns / 2 {
                    -f32::MAX
                } else {
                    1.0 + random.unit() as f32
                }
            }
        }
    };
    (0..count).map(&mut key).collect()
}
