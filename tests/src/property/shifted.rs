//! Shifted sort against its definition: codes bit by bit, copies sorted by the standard library, windows, and the k
//! best in them.

use warpann::{Device, Metric, Neighbors, ShiftedIndex};

use super::vectors::{self, ALL_OF_F32, Form};
use super::work;
use crate::data::{Random, Vectors};
use crate::reference::{self, NO_ID};
use crate::runner::{Outcome, same, text};

/// A shifted index and searches in it.
#[derive(Debug)]
struct ShiftedCase {
    dim: usize,
    n: usize,
    nq: usize,
    k: usize,
    shifts: Option<usize>,
    neighborhood: Option<usize>,
    /// Vectors of the first of two additions.
    first: usize,
    form: Form,
}

/// The case of a seed.
///
/// # Errors
/// The case and the first difference, in words.
pub fn case(seed: u64, device: Device) -> Outcome {
    let random = &mut Random::new(seed);
    let dim = 1 + random.below(12);
    let emulated = device == Device::Emulator;
    let shifts = random.once_in(2).then(|| 1 + random.size(if emulated { 4 } else { 15 }));
    let copies = shifts.unwrap_or((dim + 1) | 1);
    // Sorting a point in one copy takes about as long as this many products.
    let sort = if emulated { 128 } else { 32 };
    let most = work(random, device);
    let n = random.size((most / copies / sort).max(4));
    let k = 1 + random.size((n + 2).min(60));
    let case = ShiftedCase {
        dim,
        n,
        nq: random.size(if emulated { 6 } else { 40 }),
        k,
        shifts,
        neighborhood: random.once_in(2).then(|| 1 + random.size(n + 2)),
        first: if random.once_in(2) { 0 } else { random.below(n + 1) },
        form: vectors::form(random, Some(ALL_OF_F32)),
    };
    check(&case, random, device).map_err(|failure| format!("{failure}\n{case:?}"))
}

fn check(case: &ShiftedCase, random: &mut Random, device: Device) -> Outcome {
    let &ShiftedCase { dim, n, nq, k, shifts, neighborhood, first, ref form } = case;
    let vectors: Vectors<f32> = vectors::vectors(form, dim, n, nq, random);
    let mut builder = ShiftedIndex::builder(dim).device(device);
    if let Some(shifts) = shifts {
        builder = builder.shifts(shifts);
    }
    if let Some(positions) = neighborhood {
        builder = builder.neighborhood(positions);
    }
    let mut index = builder.build().map_err(text)?;
    index.add(&vectors.base[..first * dim]).map_err(text)?;
    index.add(&vectors.base[first * dim..]).map_err(text)?;
    let copies = Copies::new(dim, shifts.unwrap_or((dim + 1) | 1), &vectors.exact_base);
    let published = (2 * k.min(n)).next_multiple_of(32).max(32);
    let width = neighborhood.unwrap_or(published).min(n);
    let expected = |queries: &[f64], own: bool| {
        let mut found = Neighbors { k, ids: Vec::new(), distances: Vec::new() };
        for (number, query) in queries.chunks(dim).enumerate() {
            for (id, distance) in copies.nearest(query, own.then_some(number), width, k) {
                found.ids.push(id);
                found.distances.push(distance);
            }
        }
        found
    };
    same("search", &expected(&vectors.exact_queries, false), &index.search(&vectors.queries, k).map_err(text)?)?;
    // As many queries as rows: a part of the cases is enough.
    if n <= 60 || device != Device::Emulator && n <= 300 {
        same("self-join", &expected(&vectors.exact_base, true), &index.self_join(k).map_err(text)?)?;
    }
    Ok(())
}

/// The copies, by the documentation of `warpann_kernels::shifted::morton` and `warpann_kernels::shifted::shifted_sort`.
struct Copies<'a> {
    dim: usize,
    base: &'a [f64],
    mins: Vec<f64>,
    scale: f64,
    bits: u32,
    /// S: the number of copies, or the next odd one.
    odd: u64,
    /// (code, row) in order, of each copy.
    sorted: Vec<Vec<(u128, usize)>>,
}

impl<'a> Copies<'a> {
    fn new(dim: usize, copies: usize, base: &'a [f64]) -> Self {
        let column = |j: usize| base.iter().skip(j).step_by(dim).copied();
        let mins: Vec<f64> = (0..dim).map(|j| column(j).fold(f64::INFINITY, f64::min)).collect();
        let extent = (0..dim).map(|j| column(j).fold(f64::NEG_INFINITY, f64::max) - mins[j]).fold(0.0, f64::max);
        // As many bits a coordinate as fit into 64, from four components on into 128; no more than f32 has.
        let bits = (if dim <= 3 { 64 } else { 128 } / dim as u32).min(24);
        let cells = f64::from(1u32 << (bits - 1));
        let scale = if extent > 0.0 { cells / extent } else { 0.0 };
        let mut this = Copies { dim, base, mins, scale, bits, odd: copies as u64 | 1, sorted: Vec::new() };
        for copy in 0..copies {
            let numbered = base.chunks(dim).enumerate().map(|(row, point)| (this.code(point, copy), row));
            let mut sorted: Vec<(u128, usize)> = numbered.collect();
            sorted.sort();
            this.sorted.push(sorted);
        }
        this
    }

    /// Bit b of coordinate j is bit b · dim + (dim − 1 − j).
    fn code(&self, point: &[f64], copy: usize) -> u128 {
        let half = 1u64 << (self.bits - 1);
        let offset = copy as u64 * half / self.odd;
        let mut code = 0;
        for (j, (x, min)) in point.iter().zip(&self.mins).enumerate() {
            let cell = ((x - min) * self.scale).floor().clamp(0.0, (half - 1) as f64) as u64 + offset;
            for b in 0..self.bits {
                code |= u128::from(cell >> b & 1) << (b as usize * self.dim + self.dim - 1 - j);
            }
        }
        code
    }

    /// The `k` best of the `width` points around the query in each copy, each once; of a row of the base without
    /// itself.
    fn nearest(&self, query: &[f64], own: Option<usize>, width: usize, k: usize) -> Vec<(u64, f32)> {
        let mut candidates: Vec<usize> = Vec::new();
        for (copy, sorted) in self.sorted.iter().enumerate() {
            let place = match own {
                Some(row) => sorted.iter().position(|&(_, other)| other == row).unwrap_or(0),
                None => {
                    let code = self.code(query, copy);
                    sorted.iter().filter(|&&(other, _)| other < code).count()
                }
            };
            let start = place.saturating_sub(width / 2).min(sorted.len() - width);
            candidates.extend(sorted[start..start + width].iter().map(|&(_, row)| row).filter(|&row| Some(row) != own));
        }
        candidates.sort_unstable();
        candidates.dedup();
        let distance = |row: usize| reference::defined(Metric::L2, query, &self.base[row * self.dim..][..self.dim]);
        let mut found: Vec<(u64, f32)> = candidates.into_iter().map(|row| (row as u64, distance(row))).collect();
        found.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)));
        found.resize(k, (NO_ID, f32::INFINITY));
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_found_by_hand() {
        let base = [5.0, 1.0, 3.0, 3.0, 0.0];
        let one = Copies::new(1, 1, &base);
        assert_eq!(one.sorted[0].iter().map(|&(_, row)| row).collect::<Vec<_>>(), [4, 1, 2, 3, 0]);
        // Below 3 there are two points: a window of two starts at the second.
        assert_eq!(one.nearest(&[3.0], None, 2, 3), [(2, 0.0), (1, 4.0), (NO_ID, f32::INFINITY)]);
        assert_eq!(one.nearest(&[3.0], Some(2), 5, 2), [(3, 0.0), (0, 4.0)]);
        // Two coordinates of 24 bits, the first one's above the second one's.
        let two = Copies::new(2, 3, &[0.0, 0.0, 1.0, 0.5]);
        assert_eq!(two.code(&[1.0, 0.0], 0) >> 42, 0b1010);
        assert_eq!(two.code(&[0.0, 0.0], 1), two.code(&[1.0 / 3.0, 1.0 / 3.0], 0));
    }
}
