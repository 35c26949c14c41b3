//! A random rotation that mixes all components, in O(dim · log dim).
//!
//! # Problem
//! Codes of a few bits need components with about the same spread ([`crate::ivf::Encoding::Bits`]). A random orthogonal
//! matrix gives that, whatever the vectors are, but it takes dim² products for each vector.
//!
//! # Definition
//! ```text
//! v = the vector, as f64
//! for each round r of 4:
//!     v_i = sign_r,i · v_i
//!     the first (r even) or last (r odd) 2^⌊log₂ dim⌋ components: butterflies of distance 1, 2, 4, ..
//!     a butterfly of components i and i + ⌊dim / 2⌋, for each i below ⌊dim / 2⌋
//! the result is v, rounded to f32
//! butterfly: (x, y) becomes ((x + y) · √½, (x − y) · √½), each operation rounded to f64
//! ```
//!
//! Each step is orthogonal, so no component is padded, whatever the dimension. The signs are random. Results have the
//! same bits on every device. Butterflies of all distances are a Hadamard transform; those of halves are Kac's walk:
//! the rotation of the RaBitQ library. Transforms of the first and the last components in one round, without signs
//! between them, nearly cancel if dim is 2^n + 1.
//!
//! Rounding changes lengths by less than 2⁻²³: by 2⁻²⁴ at the end, and before by 2⁻⁵² in each of 4·(log₂ dim + 1)
//! steps.
//!
//! # Cost
//! About 12 · dim · log₂ dim operations for a vector: 42,000 for 384 components, where a matrix takes 147,000 products.
//! `warpann_kernels::pq::mix` has the kernel.

use std::f64::consts::FRAC_1_SQRT_2;

use rayon::prelude::*;
pub(crate) use warpann_kernels::pq::mix::ROUNDS;

use crate::random::Random;
use crate::validate::{check_derived, check_vectors};
use crate::{Input, Result, host_memory};

/// Smallest number of vectors that one task rotates.
const RUN: usize = 32;

/// A rotation by signs, Hadamard transforms and turns.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Mixing {
    dim: usize,
    /// Rounds × dim, each 1 or −1.
    signs: Vec<f32>,
}

impl Mixing {
    /// The rotation of a seed.
    ///
    /// # Errors
    /// [`Error::OutOfHostMemory`](crate::Error::OutOfHostMemory).
    pub(crate) fn new(dim: usize, seed: u64) -> Result<Mixing> {
        let mut random = Random::new(seed);
        let mut signs = host_memory::zeroed(host_memory::count::<f32>(&[ROUNDS, dim])?)?;
        signs.iter_mut().for_each(|sign| *sign = if random.bits() >> 63 == 1 { -1.0 } else { 1.0 });
        Ok(Mixing { dim, signs })
    }

    /// The rotation with these [`signs`](Self::signs); `None` if they are none.
    pub(crate) fn from_signs(dim: usize, signs: &[f32]) -> Option<Mixing> {
        let are_signs = signs.len() / ROUNDS == dim && signs.len().is_multiple_of(ROUNDS);
        (are_signs && signs.iter().all(|sign| sign.abs() == 1.0)).then(|| Mixing { dim, signs: signs.to_vec() })
    }

    /// Number of components of a vector.
    pub(crate) fn dim(&self) -> usize {
        self.dim
    }

    /// The signs of the rounds, one after the other.
    pub(crate) fn signs(&self) -> &[f32] {
        &self.signs
    }

    /// Rotates vectors, row-major, in parallel.
    ///
    /// # Errors
    /// [`Error::NotFinite`](crate::Error::NotFinite); [`Error::Overflow`](crate::Error::Overflow) if f32 cannot hold a
    /// rotated vector; [`Error::OutOfHostMemory`](crate::Error::OutOfHostMemory).
    pub(crate) fn apply(&self, rows: &[f32]) -> Result<Vec<f32>> {
        let mut rotated: Vec<f32> = host_memory::zeroed(rows.len())?;
        rotated.par_chunks_exact_mut(self.dim).zip(rows.par_chunks_exact(self.dim)).with_min_len(RUN).for_each_init(
            || vec![0.0f64; self.dim],
            |v, (to, row)| {
                v.iter_mut().zip(row).for_each(|(v, &x)| *v = f64::from(x));
                self.signs.chunks_exact(self.dim).enumerate().for_each(|(round, signs)| {
                    turn_by(v, signs);
                    hadamard(part(v, round));
                    kac(v);
                });
                to.iter_mut().zip(v).for_each(|(to, v)| *to = *v as f32);
            },
        );
        // A value that was not finite before is the caller's, and named first.
        let overflow = check_derived(&rotated, self.dim, "rotated vector").err();
        match overflow.map(|overflow| check_vectors(rows, self.dim, Input::Vectors).err().unwrap_or(overflow)) {
            Some(error) => Err(error),
            None => Ok(rotated),
        }
    }

    /// The vector of which [`apply`](Self::apply) made a rotated one, but for rounding: the steps in reverse order,
    /// each of which is its own inverse.
    pub(crate) fn undo(&self, row: &[f32]) -> Vec<f32> {
        let mut v: Vec<f64> = row.iter().map(|&x| f64::from(x)).collect();
        for (round, signs) in self.signs.chunks_exact(self.dim).enumerate().rev() {
            kac(&mut v);
            hadamard(part(&mut v, round));
            turn_by(&mut v, signs);
        }
        v.into_iter().map(|x| x as f32).collect()
    }
}

fn turn_by(v: &mut [f64], signs: &[f32]) {
    v.iter_mut().zip(signs).for_each(|(v, &sign)| *v *= f64::from(sign));
}

/// The components that a round transforms.
fn part(v: &mut [f64], round: usize) -> &mut [f64] {
    let (dim, power) = (v.len(), 1 << v.len().ilog2());
    if round.is_multiple_of(2) { &mut v[..power] } else { &mut v[dim - power..] }
}

/// Butterflies of the components of two parts.
fn butterflies(first: &mut [f64], last: &mut [f64]) {
    for (x, y) in first.iter_mut().zip(last) {
        (*x, *y) = ((*x + *y) * FRAC_1_SQRT_2, (*x - *y) * FRAC_1_SQRT_2);
    }
}

fn kac(v: &mut [f64]) {
    let (first, last) = v.split_at_mut(v.len() / 2);
    butterflies(first, last);
}

/// The Hadamard transform of 2^n numbers.
fn hadamard(values: &mut [f64]) {
    let mut half = 1;
    while half < values.len() {
        for both in values.chunks_exact_mut(2 * half) {
            let (first, last) = both.split_at_mut(half);
            butterflies(first, last);
        }
        half *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    /// The columns of the matrix of a rotation.
    fn columns(mixing: &Mixing) -> Vec<f32> {
        let dim = mixing.dim();
        let units: Vec<f32> = (0..dim * dim).map(|at| if at / dim == at % dim { 1.0 } else { 0.0 }).collect();
        mixing.apply(&units).unwrap()
    }

    #[test]
    fn a_rotation_keeps_distances_and_mixes() {
        for dim in [1, 2, 3, 31, 64, 100, 129, 255, 257, 384, 1025] {
            let mixing = Mixing::new(dim, 9).unwrap();
            assert_eq!(Mixing::from_signs(dim, mixing.signs()), Some(mixing.clone()));
            let columns = columns(&mixing);
            for (i, x) in columns.chunks_exact(dim).enumerate() {
                for (j, y) in columns.chunks_exact(dim).enumerate().take(i + 1) {
                    let product: f64 = x.iter().zip(y).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum();
                    assert!((product - if i == j { 1.0 } else { 0.0 }).abs() < 2e-7, "{dim}: {i} and {j}: {product}");
                }
            }
            // Every component has a share of every other: a part of a unit vector is about 1/√dim.
            let greatest = columns.iter().fold(0.0f32, |greatest, x| greatest.max(x.abs()));
            assert!(dim < 31 || f64::from(greatest) * (dim as f64).sqrt() < 8.0, "{dim}: {greatest}");
        }
        assert_ne!(Mixing::new(64, 9).unwrap(), Mixing::new(64, 10).unwrap());
    }

    #[test]
    fn what_is_undone_is_what_was_there() {
        let mut random = Random::new(3);
        for dim in [1, 2, 7, 48, 129] {
            let mixing = Mixing::new(dim, 4).unwrap();
            let row: Vec<f32> = (0..dim).map(|_| random.unit() as f32 - 0.5).collect();
            let back = mixing.undo(&mixing.apply(&row).unwrap());
            assert!(row.iter().zip(&back).all(|(x, y)| (x - y).abs() < 3e-7), "{row:?} {back:?}");
        }
    }

    #[test]
    fn numbers_that_are_no_signs_and_vectors_that_do_not_fit_are_refused() {
        for signs in [&[1.0f32; 7][..], &[1.0; 9], &[1.0, 1.0, -1.0, 1.0, 1.0, 0.5, 1.0, 1.0], &[f32::NAN; 8], &[]] {
            assert_eq!(Mixing::from_signs(2, signs), None, "{signs:?}");
        }
        // The first component of the rotated vector is twice the greatest f32.
        let mixing = Mixing::new(64, 1).unwrap();
        let mut unit = [0.0; 64];
        unit[0] = 1.0;
        let large: Vec<f32> =
            mixing.undo(&unit).iter().map(|x| (f64::from(*x) * 2.0 * f64::from(f32::MAX)) as f32).collect();
        assert!(large.iter().all(|x| x.is_finite()));
        let error = mixing.apply(&[&unit[..], &large].concat()).unwrap_err();
        assert!(matches!(error, Error::Overflow { derived: "rotated vector", row: 1, column: 0 }), "{error}");
        let mut given = [large, unit.to_vec()].concat();
        given[70] = f32::NAN;
        let error = mixing.apply(&given).unwrap_err();
        assert!(matches!(error, Error::NotFinite { row: 1, column: 6, .. }), "{error}");
        assert_eq!(mixing.apply(&[]).unwrap(), [0.0f32; 0]);
    }
}
