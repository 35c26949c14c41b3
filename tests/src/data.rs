//! Deterministic vectors of every kind that the table names: the same bits from the same seed on every machine (no
//! library functions whose rounding varies).

pub use test_cases::keys::{TestKey, keys};
pub use test_cases::vectors::{Component, Vectors};
pub use test_random::Random;

use crate::cases::VectorData;

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
    Vectors::of(base, queries)
}
