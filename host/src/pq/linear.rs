//! The two pieces of linear algebra that learning a rotation needs, f64, n × n row-major, sequential where sums are formed: the
//! same bits whatever the number of threads.

use rayon::prelude::*;

/// Steps after which [`polar`] gives up; 10 are usual, and more only for nearly singular matrices.
const STEPS: usize = 60;
/// Rows from which an elimination step is worth several threads.
const PARALLEL_ROWS: usize = 256;

/// The orthogonal factor U of a = U·H, H symmetric positive semidefinite: the orthogonal matrix that maximises tr(Uᵀa). `None`
/// where `a` is singular to working precision.
///
/// Newton's iteration for the matrix sign (Higham 1986): X ← (γ·X + X⁻ᵀ/γ) / 2, where γ² = ‖X⁻¹‖ / ‖X‖ (Frobenius) brings the
/// singular values near 1; from there on γ = 1 and each step doubles the correct digits. O(n³) a step. It needs no singular
/// vectors, and a Jacobi SVD in their place takes ten times as long at n = 128.
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
        // An unscaled step that changed this little leaves an error of its square.
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

/// The inverse by Gauss-Jordan elimination in place with partial pivoting; `None` where a pivot is 0 or not a number.
fn inverse(a: &[f64], n: usize) -> Option<Vec<f64>> {
    let mut a = a.to_vec();
    let mut swaps = Vec::with_capacity(n);
    let mut pivot_row = vec![0.0; n];
    for step in 0..n {
        let size = |row: &usize| a[row * n + step].abs();
        let pivot = (step..n).max_by(|p, q| size(p).total_cmp(&size(q)))?;
        if pivot != step {
            let (upper, lower) = a.split_at_mut(pivot * n);
            upper[step * n..][..n].swap_with_slice(&mut lower[..n]);
        }
        swaps.push(pivot);
        let row = &mut a[step * n..][..n];
        let factor = 1.0 / row[step];
        if !factor.is_finite() {
            return None;
        }
        row[step] = 1.0;
        row.iter_mut().for_each(|value| *value *= factor);
        pivot_row.copy_from_slice(row);
        let eliminate = |(number, row): (usize, &mut [f64])| {
            if number != step {
                let factor = std::mem::take(&mut row[step]);
                row.iter_mut().zip(&pivot_row).for_each(|(value, pivot)| *value -= factor * pivot);
            }
        };
        if n < PARALLEL_ROWS {
            a.chunks_exact_mut(n).enumerate().for_each(eliminate);
        } else {
            a.par_chunks_exact_mut(n).with_min_len(32).enumerate().for_each(eliminate);
        }
    }
    // Rows were swapped on the way in: columns are swapped back, last first.
    for (step, &pivot) in swaps.iter().enumerate().rev() {
        if pivot != step {
            a.chunks_exact_mut(n).for_each(|row| row.swap(step, pivot));
        }
    }
    Some(a)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kmeans::start::Random;

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
        for n in [1, 2, 3, 17, 64, 300] {
            let a = random(n, n as u64);
            let inverse = inverse(&a, n).unwrap();
            assert!(away_from_identity(&product(&a, &inverse, n), n) < 1e-9, "{n}");
        }
        // Needs a swap of rows, twice.
        let permutation = [0.0, 2.0, 0.0, 0.0, 0.0, 3.0, 4.0, 0.0, 0.0];
        let inverse_permutation = inverse(&permutation, 3).unwrap();
        assert!(away_from_identity(&product(&permutation, &inverse_permutation, 3), 3) < 1e-15);
        assert!(inverse(&[1.0, 2.0, 2.0, 4.0], 2).is_none());
        assert!(inverse(&[f64::NAN], 1).is_none());
    }

    #[test]
    fn polar_factors_are_orthogonal_and_leave_a_symmetric_positive_rest() {
        for n in [1, 2, 5, 32, 100] {
            // The second nearly singular: its last row is nearly its first.
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
                // Positive: no direction is turned around.
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
