//! Polar factor and inverse for learning a rotation: f64, n × n, row-major. Sums are formed sequentially, so the bits
//! are the same for any number of threads.

use crate::parallel::{Loop, ParallelSlice};
use crate::simd::Isa;

/// Largest number of steps of [`polar`]; about 10 are usual, and more are needed only for nearly singular matrices.
const STEPS: usize = 60;
/// Smallest number of rows of a task in the elimination of one column.
const PARALLEL_ROWS: usize = 512;
/// Number of elimination steps that are done together.
const PANEL: usize = 64;
/// Number of rows of a task in the other columns.
const ROWS: usize = 16;
/// Columns of the pivot rows that stay in a cache while the rows of a task pass: 32 KiB.
const COLUMNS: usize = 64;
/// Entries of a row that stay in registers: eight registers of AVX-512.
const REGISTERS: usize = 64;

/// The orthogonal factor U of a = U·H, H symmetric positive semidefinite: the orthogonal matrix that maximises tr(Uᵀa).
/// `None` if `a` is singular to working precision.
///
/// Newton's iteration for the matrix sign (Higham 1986): X ← (γ·X + X⁻ᵀ/γ) / 2, where γ² = ‖X⁻¹‖ / ‖X‖ (Frobenius)
/// brings the singular values near 1. From there on γ = 1 and each step doubles the number of correct digits. A step is
/// O(n³). No singular vectors are needed. What lost: a Jacobi SVD takes ten times as long at n = 128.
pub(super) fn polar(a: &[f64], n: usize) -> Option<Vec<f64>> {
    let mut x = a.to_vec();
    let mut scaled = true;
    for _ in 0..STEPS {
        let inverse = inverse(&x, n)?;
        let gamma = if scaled { (norm(&inverse) / norm(&x)).sqrt() } else { 1.0 };
        let mut next = vec![0.0; n * n];
        for (row, next) in next.chunks_exact_mut(n).enumerate() {
            for (column, next) in next.iter_mut().enumerate() {
                *next = 0.5 * (gamma * x[row * n + column] + inverse[column * n + row] / gamma);
            }
        }
        let change = x.iter().zip(&next).map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt() / (n as f64).sqrt();
        x = next;
        if !change.is_finite() {
            return None;
        }
        // An unscaled step of change c leaves an error of about c².
        if !scaled && change < 1e-7 {
            return Some(x);
        }
        scaled &= change > 1e-2;
    }
    None
}

fn norm(a: &[f64]) -> f64 {
    a.iter().map(|value| value * value).sum::<f64>().sqrt()
}

/// The inverse by Gauss-Jordan elimination in place with partial pivoting; `None` if a pivot is 0 or NaN.
///
/// ```text
/// for each block of PANEL steps:
///     the block's columns of all rows:   the steps one by one, with pivoting; the multipliers are kept
///     the block's pivot rows:            the steps one by one, in the other columns
///     all other rows, other columns:     entry −= multiplier · pivot row, step by step, a tile of columns at a time
/// ```
/// Every entry passes the steps in ascending order, as without blocks, so blocks and threads change no bit. With blocks
/// a step reads and writes PANEL columns instead of the whole matrix, which for n = 2048 does not fit in a cache.
fn inverse(a: &[f64], n: usize) -> Option<Vec<f64>> {
    let mut a = a.to_vec();
    let mut swaps = Vec::with_capacity(n);
    for first in (0..n).step_by(PANEL) {
        let width = PANEL.min(n - first);
        // For each row and step: the multiplier; for the pivot row of the step, its factor.
        let mut multipliers = vec![0.0; n * width];
        for step in 0..width {
            swaps.push(eliminate_column(&mut a, n, first, step, width, &mut multipliers)?);
        }
        eliminate_rest(&mut a, n, first, width, &multipliers);
    }
    // Rows were swapped during elimination, so columns are swapped back, last first.
    a.par_chunks_exact_mut(n).with_min_len(32).for_each(|row| {
        for (step, &pivot) in swaps.iter().enumerate().rev() {
            row.swap(step, pivot);
        }
    });
    Some(a)
}

/// Does step `first` + `step` in the columns `first` to `first` + `width`. Swaps whole rows and returns the row that
/// became the pivot.
fn eliminate_column(
    a: &mut [f64],
    n: usize,
    first: usize,
    step: usize,
    width: usize,
    multipliers: &mut [f64],
) -> Option<usize> {
    let here = first + step;
    let size = |row: &usize| a[row * n + here].abs();
    let pivot = (here..n).max_by(|p, q| size(p).total_cmp(&size(q)))?;
    if pivot != here {
        let (upper, lower) = a.split_at_mut(pivot * n);
        upper[here * n..][..n].swap_with_slice(&mut lower[..n]);
        let (upper, lower) = multipliers.split_at_mut(pivot * width);
        upper[here * width..][..width].swap_with_slice(&mut lower[..width]);
    }
    let row = &mut a[here * n + first..][..width];
    let factor = 1.0 / row[step];
    if !factor.is_finite() {
        return None;
    }
    row[step] = 1.0;
    row.iter_mut().for_each(|value| *value *= factor);
    let mut pivot_row = [0.0; PANEL];
    pivot_row[..width].copy_from_slice(row);
    let rows = a.par_chunks_exact_mut(n).zip(multipliers.par_chunks_exact_mut(width)).enumerate();
    rows.with_min_len(PARALLEL_ROWS).for_each(|(number, (row, multipliers))| {
        if number == here {
            multipliers[step] = factor;
            return;
        }
        let row = &mut row[first..first + width];
        multipliers[step] = std::mem::take(&mut row[step]);
        row.iter_mut().zip(&pivot_row).for_each(|(value, pivot)| *value -= multipliers[step] * pivot);
    });
    Some(pivot)
}

/// Does the steps `first` to `first` + `width` in all other columns, with the multipliers of [`eliminate_column`].
fn eliminate_rest(a: &mut [f64], n: usize, first: usize, width: usize, multipliers: &[f64]) {
    // The pivot rows as they are at their steps.
    let mut pivots = vec![0.0; width * n];
    let block = &mut a[first * n..][..width * n];
    let (isa, outside) = (Isa::detect(), [0..first, first + width..n]);
    for (step, pivot) in pivots.chunks_exact_mut(n).enumerate() {
        let factor = multipliers[(first + step) * width + step];
        for columns in outside.clone() {
            let own = &mut block[step * n..][columns.clone()];
            own.iter_mut().for_each(|value| *value *= factor);
            pivot[columns].copy_from_slice(own);
        }
        for (number, row) in block.chunks_exact_mut(n).enumerate().filter(|(number, _)| *number != step) {
            let multiplier = multipliers[(first + number) * width + step];
            for columns in outside.clone() {
                subtract(isa, &mut row[columns.clone()], &[multiplier], &pivot[columns.start..], n);
            }
        }
    }
    let rows = a.par_chunks_mut(ROWS * n).zip(multipliers.par_chunks(ROWS * width)).enumerate();
    rows.for_each(|(number, (rows, multipliers))| {
        for columns in outside.clone() {
            for start in columns.clone().step_by(COLUMNS) {
                let tile = start..(start + COLUMNS).min(columns.end);
                for (at, (row, multipliers)) in
                    rows.chunks_exact_mut(n).zip(multipliers.chunks_exact(width)).enumerate()
                {
                    if !(first..first + width).contains(&(number * ROWS + at)) {
                        subtract(isa, &mut row[tile.clone()], multipliers, &pivots[tile.start..], n);
                    }
                }
            }
        }
    });
}

/// row −= multiplier · row of `pivots` (rows of `stride`), for one multiplier after the other.
fn subtract(isa: Isa, row: &mut [f64], multipliers: &[f64], pivots: &[f64], stride: usize) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `isa` comes from `Isa::detect`, so the processor has the instructions.
        Isa::Avx512 => unsafe { subtract_avx512(row, multipliers, pivots, stride) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `isa` comes from `Isa::detect`, so the processor has the instructions.
        Isa::Avx2 => unsafe { subtract_avx2(row, multipliers, pivots, stride) },
        Isa::Portable => subtract_portable(row, multipliers, pivots, stride),
    }
}

/// # Safety
/// The processor must have AVX-512F.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn subtract_avx512(row: &mut [f64], multipliers: &[f64], pivots: &[f64], stride: usize) {
    subtract_portable(row, multipliers, pivots, stride);
}

/// # Safety
/// The processor must have AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn subtract_avx2(row: &mut [f64], multipliers: &[f64], pivots: &[f64], stride: usize) {
    subtract_portable(row, multipliers, pivots, stride);
}

/// The loop that the compiler vectorises: entries stay in registers while the multipliers pass.
#[inline(always)]
fn subtract_portable(row: &mut [f64], multipliers: &[f64], pivots: &[f64], stride: usize) {
    let mut chunks = row.chunks_exact_mut(REGISTERS);
    let mut at = 0;
    for chunk in &mut chunks {
        let mut values = [0.0; REGISTERS];
        values.copy_from_slice(chunk);
        for (step, multiplier) in multipliers.iter().enumerate() {
            let pivot = &pivots[step * stride + at..][..REGISTERS];
            values.iter_mut().zip(pivot).for_each(|(value, pivot)| *value -= multiplier * pivot);
        }
        chunk.copy_from_slice(&values);
        at += REGISTERS;
    }
    for (at, value) in (at..).zip(chunks.into_remainder()) {
        let steps = multipliers.iter().enumerate();
        *value = steps.fold(*value, |value, (step, multiplier)| value - multiplier * pivots[step * stride + at]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    fn random(n: usize, seed: u64) -> Vec<f64> {
        let mut random = Random::new(seed);
        (0..n * n).map(|_| random.unit() - 0.5).collect()
    }

    fn product(a: &[f64], b: &[f64], n: usize) -> Vec<f64> {
        let entry = |i: usize| (0..n).map(|k| a[i / n * n + k] * b[k * n + i % n]).sum();
        (0..n * n).map(entry).collect()
    }

    fn transposed(a: &[f64], n: usize) -> Vec<f64> {
        (0..n * n).map(|i| a[i % n * n + i / n]).collect()
    }

    fn away_from_identity(a: &[f64], n: usize) -> f64 {
        let one = |i: usize| if i / n == i % n { 1.0 } else { 0.0 };
        a.iter().enumerate().fold(0.0, |most, (i, value)| f64::max(most, (value - one(i)).abs()))
    }

    #[test]
    fn inverses_invert() {
        for n in [1, 2, 3, 17, 31, 32, 33, 64, 65, 100, 300] {
            let a = random(n, n as u64);
            let inverse = inverse(&a, n).unwrap();
            assert!(away_from_identity(&product(&a, &inverse, n), n) < 1e-9, "{n}");
        }
        // This matrix needs two swaps of rows.
        let permutation = [0.0, 2.0, 0.0, 0.0, 0.0, 3.0, 4.0, 0.0, 0.0];
        let inverse_permutation = inverse(&permutation, 3).unwrap();
        assert!(away_from_identity(&product(&permutation, &inverse_permutation, 3), 3) < 1e-15);
        assert!(inverse(&[1.0, 2.0, 2.0, 4.0], 2).is_none());
        assert!(inverse(&[f64::NAN], 1).is_none());
    }

    /// Gauss-Jordan elimination step by step over the whole matrix.
    fn plain_inverse(a: &[f64], n: usize) -> Vec<f64> {
        let mut rows: Vec<Vec<f64>> = a.chunks(n).map(<[f64]>::to_vec).collect();
        let mut swaps = Vec::new();
        for step in 0..n {
            let mut pivot = step;
            for row in step..n {
                if rows[row][step].abs() >= rows[pivot][step].abs() {
                    pivot = row;
                }
            }
            rows.swap(step, pivot);
            swaps.push((step, pivot));
            let factor = 1.0 / rows[step][step];
            rows[step][step] = 1.0;
            rows[step].iter_mut().for_each(|value| *value *= factor);
            let pivot = rows[step].clone();
            for row in (0..n).filter(|&row| row != step) {
                let factor = std::mem::replace(&mut rows[row][step], 0.0);
                rows[row].iter_mut().zip(&pivot).for_each(|(value, pivot)| *value -= factor * pivot);
            }
        }
        for &(a, b) in swaps.iter().rev() {
            rows.iter_mut().for_each(|row| row.swap(a, b));
        }
        rows.concat()
    }

    #[test]
    fn blocks_and_threads_change_no_bit_of_an_inverse() {
        for n in [1, 2, 5, 63, 64, 65, 130, 200] {
            let a = random(n, 50 + n as u64);
            let expected: Vec<u64> = plain_inverse(&a, n).iter().map(|value| value.to_bits()).collect();
            for threads in [1, 3] {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                let found = pool.install(|| inverse(&a, n)).unwrap();
                assert_eq!(found.iter().map(|value| value.to_bits()).collect::<Vec<_>>(), expected, "{n}, {threads}");
            }
        }
        for isa in Isa::all() {
            let (row, multipliers, pivots) = (random(12, 1), random(3, 2), random(36, 3));
            let [mut expected, mut found] = [row.clone(), row];
            subtract_portable(&mut expected, &multipliers, &pivots, 144);
            subtract(isa, &mut found, &multipliers, &pivots, 144);
            assert_eq!(expected, found, "{isa:?}");
        }
    }

    #[test]
    fn polar_factors_are_orthogonal_and_leave_a_symmetric_positive_rest() {
        for n in [1, 2, 5, 32, 100] {
            // The second matrix is nearly singular: its last row is nearly its first.
            let mut near = random(n, 1000 + n as u64);
            for column in 0..n {
                near[(n - 1) * n + column] = near[column] + 1e-9 * near[(n - 1) * n + column];
            }
            for a in [random(n, 7 * n as u64), near] {
                let u = polar(&a, n).unwrap();
                assert!(away_from_identity(&product(&u, &transposed(&u, n), n), n) < 1e-12, "{n}");
                let rest = product(&transposed(&u, n), &a, n);
                let asymmetry =
                    rest.iter().zip(&transposed(&rest, n)).fold(0.0, |most, (a, b)| f64::max(most, (a - b).abs()));
                assert!(asymmetry < 1e-6 * n as f64, "{n}: {asymmetry}");
                // The rest is positive: it turns no direction around.
                for seed in 0..20 {
                    let x = &random(n, seed)[..n];
                    let form: f64 = (0..n * n).map(|i| x[i / n] * rest[i] * x[i % n]).sum();
                    assert!(form > -1e-6, "{n}: {form}");
                }
            }
        }
        assert!(polar(&[0.0; 9], 3).is_none());
    }
}
