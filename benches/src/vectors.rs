//! Generated vectors, and checks of neighbours.

use rayon::prelude::*;
use test_random::Random;
use warpann::{Element, Neighbors};

/// The random numbers of a seed, as the records' data are made of them: the sequence whose seed is the first number of
/// the sequence of `seed`.
pub fn random(seed: u64) -> Random {
    Random::new(Random::nth(seed, 0))
}

/// Two independent normal deviates (Box-Muller).
fn normals(random: &mut Random) -> [f32; 2] {
    // Above 0, for the logarithm.
    let radius = (-2.0 * (f64::from(random.unit_f32()) + 2f64.powi(-25)).ln()).sqrt();
    let (sin, cos) = (std::f64::consts::TAU * f64::from(random.unit_f32())).sin_cos();
    [(radius * cos) as f32, (radius * sin) as f32]
}

fn fill_normal(random: &mut Random, out: &mut [f32], scale: f32) {
    for pair in out.chunks_mut(2) {
        pair.iter_mut().zip(normals(random)).for_each(|(out, normal)| *out = scale * normal);
    }
}

/// Clustered vectors by the recipe of `peers/clustered.py` (other numbers, for the generator is another): 0.7 times one
/// of 2,000 normal centres, plus a normal point of 24 dimensions through one of 16 random bases (the same for all of a
/// cluster), plus normal noise of 0.1. Every row can be made by itself.
pub struct Clusters {
    dim: usize,
    centres: Vec<f32>,
    bases: Vec<f32>,
    /// Seed of row 0.
    start: u64,
}

impl Clusters {
    const COUNT: usize = 2000;
    const BASES: usize = 16;
    const INTRINSIC: usize = 24;

    /// Draws centres and bases. O(dim).
    pub fn new(dim: usize, seed: u64) -> Self {
        let mut random = random(seed);
        let mut centres = vec![0.0; Self::COUNT * dim];
        fill_normal(&mut random, &mut centres, 1.0);
        let mut bases = vec![0.0; Self::BASES * Self::INTRINSIC * dim];
        fill_normal(&mut random, &mut bases, (Self::INTRINSIC as f32).sqrt().recip());
        Self { dim, centres, bases, start: random.bits() }
    }

    /// Fills `out` with rows from number `first` on, row-major, the same on every run. O(out), rows in parallel.
    pub fn fill(&self, first: usize, out: &mut [f32]) {
        let Self { dim, centres, bases, start } = self;
        out.par_chunks_mut((*dim).max(1)).enumerate().for_each(|(row, out)| {
            let mut random = random(start.wrapping_add((first + row) as u64));
            let cluster = (random.bits() % Self::COUNT as u64) as usize;
            let mut inner = [0.0; Self::INTRINSIC];
            fill_normal(&mut random, &mut inner, 1.0);
            fill_normal(&mut random, out, 0.1);
            for (out, centre) in out.iter_mut().zip(&centres[cluster * dim..]) {
                *out += 0.7 * centre;
            }
            let basis = &bases[cluster % Self::BASES * Self::INTRINSIC * dim..];
            for (z, direction) in inner.iter().zip(basis.chunks(*dim)) {
                for (out, component) in out.iter_mut().zip(direction) {
                    *out += z * component;
                }
            }
        });
    }
}

/// The first `rows` rows of [`Clusters`].
pub fn clustered(rows: usize, dim: usize, seed: u64) -> Vec<f32> {
    let mut values = vec![0.0; rows * dim];
    Clusters::new(dim, seed).fill(0, &mut values);
    values
}

/// Distances that differ by less than this fraction of ‖x‖² + ‖y‖² count as equal, because f32 cannot distinguish them.
const TIE: f64 = 1.0 / (1u64 << 20) as f64;

/// A query and its squared distances to all of the base, in float64, by the plain sum.
#[derive(Debug)]
pub struct Truth {
    query: usize,
    distances: Vec<f64>,
    ascending: Vec<f64>,
    /// The smallest difference between distances that f32 resolves, for vectors as long as the longest of the base.
    tie: f64,
}

impl Truth {
    /// The exact distances of one query, and what follows from them. O(base), in parallel.
    pub fn of<T: Element>(base: &[T], queries: &[T], dim: usize, query: usize) -> Self {
        let probe = &queries[query * dim..(query + 1) * dim];
        let (distances, norms): (Vec<f64>, Vec<f64>) = base.par_chunks(dim).map(|row| squared(probe, row)).unzip();
        let tie = TIE * norms.into_iter().fold(0.0, f64::max);
        let mut ascending = distances.clone();
        ascending.par_sort_unstable_by(f64::total_cmp);
        Self { query, distances, ascending, tie }
    }

    /// The query's row number.
    pub fn query(&self) -> usize {
        self.query
    }

    /// Whether `ids` and `found` may be an approximate answer: no vector twice, the distances those of the vectors,
    /// within what f32 can tell, and ascending; places that hold no vector come last.
    pub fn admits(&self, ids: &[u64], found: &[f32]) -> bool {
        plausible(ids, found, |id, found| {
            let distance = usize::try_from(id).ok().and_then(|id| self.distances.get(id));
            distance.is_some_and(|distance| (found - distance).abs() <= self.tie)
        })
    }

    /// Whether `ids` and `found` are the exact answer: [admitted](Self::admits), as many vectors as there can be, and
    /// each place as far as the true one, within what f32 can tell.
    pub fn confirms(&self, ids: &[u64], found: &[f32]) -> bool {
        let filled = ids.len().min(self.distances.len());
        let mut places = ids[..filled].iter().zip(&self.ascending);
        self.admits(ids, found)
            && ids[..filled].last() != Some(&warpann::NONE)
            && places.all(|(&id, expected)| (self.distances[id as usize] - expected).abs() <= self.tie)
    }
}

/// How ids and distances are checked: [`Truth::admits`] or [`Truth::confirms`].
pub type Check = fn(&Truth, &[u64], &[f32]) -> bool;

/// Whether the results of each query of `truths` that was searched pass `check`.
pub fn all_right(truths: &[Truth], found: &Neighbors, check: Check) -> bool {
    truths.iter().filter(|truth| truth.query < found.queries()).all(|truth| {
        let (ids, distances) = found.row(truth.query);
        check(truth, ids, distances)
    })
}

/// Whether the results of each `step`-th of the first `count` queries are admitted, by [`admits`]. In parallel.
pub fn all_admitted(
    queries: &[f32],
    found: &Neighbors,
    (count, step): (usize, usize),
    stored: impl Fn(u64) -> Option<Vec<f32>> + Sync,
) -> bool {
    let dim = queries.len() / found.queries().max(1);
    (0..count.min(found.queries())).into_par_iter().step_by(step).all(|query| {
        let (ids, distances) = found.row(query);
        admits(&queries[query * dim..][..dim], &stored, ids, distances)
    })
}

/// Whether ids and distances are the same, distances to the bit.
pub fn same_bits(a: &Neighbors, b: &Neighbors) -> bool {
    a.ids == b.ids && a.distances.iter().zip(&b.distances).all(|(a, b)| a.to_bits() == b.to_bits())
}

/// As [`Truth::admits`], for vectors that `stored` gives by id.
pub fn admits(query: &[f32], stored: impl Fn(u64) -> Option<Vec<f32>>, ids: &[u64], found: &[f32]) -> bool {
    plausible(ids, found, |id, found| {
        stored(id).is_some_and(|row| {
            let (distance, norms) = squared(query, &row);
            (found - distance).abs() <= TIE * norms
        })
    })
}

/// No id twice, ascending distances, each `right`, and empty places last.
fn plausible(ids: &[u64], found: &[f32], right: impl Fn(u64, f64) -> bool) -> bool {
    let filled = ids.iter().position(|&id| id == warpann::NONE).unwrap_or(ids.len());
    let mut unique = ids[..filled].to_vec();
    unique.sort_unstable();
    unique.dedup();
    unique.len() == filled
        && found[..filled].is_sorted()
        && ids[filled..].iter().all(|&id| id == warpann::NONE)
        && ids[..filled].iter().zip(found).all(|(&id, &found)| right(id, f64::from(found)))
}

/// ‖a − b‖² and ‖a‖² + ‖b‖² in float64.
fn squared<T: Element>(a: &[T], b: &[T]) -> (f64, f64) {
    a.iter()
        .zip(b)
        .map(|(x, y)| (f64::from(x.to_f32()), f64::from(y.to_f32())))
        .fold((0.0, 0.0), |(d, n), (x, y)| (d + (x - y) * (x - y), n + x * x + y * y))
}

/// Fraction of the first min(k, `truth_k`) true neighbours that are among the same number of found ones, over the
/// queries with ground truth. `None` if none has. A vector as far as the last of them, within what f32 can tell, counts
/// as one of them; a nearer one that they lack does not, for then the ground truth is wrong.
pub fn recall<T: Element>(
    base: &[T],
    queries: &[T],
    dim: usize,
    found: &Neighbors,
    truth: &warpann::io::IdMatrix,
) -> Option<f64> {
    let count = found.queries().min(truth.rows);
    let depth = found.k.min(truth.k);
    if count == 0 || depth == 0 {
        return None;
    }
    let hits: usize = (0..count)
        .into_par_iter()
        .map(|query| {
            let probe = &queries[query * dim..(query + 1) * dim];
            let vector = |id: u64| &base[id as usize * dim..(id as usize + 1) * dim];
            let mut known: Vec<u64> = truth.row(query)[..depth].to_vec();
            let last = known[depth - 1];
            known.sort_unstable();
            let as_far = |id: u64| {
                let ((distance, norms), (limit, _)) = (squared(probe, vector(id)), squared(probe, vector(last)));
                (distance - limit).abs() <= TIE * norms
            };
            let ids = &found.ids[query * found.k..][..depth];
            let hit = |&&id: &&u64| {
                known.binary_search(&id).is_ok() || (id != warpann::NONE && last != warpann::NONE && as_far(id))
            };
            ids.iter().filter(hit).count()
        })
        .sum();
    Some(hits as f64 / (count * depth) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clustered_vectors_repeat_and_cluster() {
        let (rows, dim) = (3000, 12);
        let values = clustered(rows, dim, 1);
        assert_eq!(values, clustered(rows, dim, 1));
        assert_ne!(values, clustered(rows, dim, 2));
        assert_eq!(values[..dim * 10], clustered(10, dim, 1)[..]);
        let mut later = vec![0.0; dim * 7];
        Clusters::new(dim, 1).fill(20, &mut later);
        assert_eq!(values[dim * 20..dim * 27], later);
        // 0.7² of the centres, 1 of the inner points, 0.1² of noise.
        let variance = values.iter().map(|x| f64::from(x * x)).sum::<f64>() / values.len() as f64;
        assert!((1.2..1.8).contains(&variance), "{variance}");
    }

    #[test]
    fn truth_tells_right_from_wrong() {
        let base = [0.0, 0.0, 1.0, 0.0, 0.0, 2.0f32];
        let truth = Truth::of(&base, &[9.0, 9.0, 1.0, 1.0], 2, 1);
        assert!(truth.confirms(&[1, 0, 2], &[1.0, 2.0, 2.0]));
        assert!(truth.confirms(&[1, 2], &[1.0, 2.0]), "ties in any order");
        assert!(truth.admits(&[0, 2], &[2.0, 2.0]) && !truth.confirms(&[0, 2], &[2.0, 2.0]));
        assert!(truth.admits(&[1, warpann::NONE], &[1.0, 0.0]) && !truth.confirms(&[1, warpann::NONE], &[1.0, 0.0]));
        assert!(truth.confirms(&[1, 0, 2, warpann::NONE], &[1.0, 2.0, 2.0, f32::INFINITY]));
        assert!(!truth.confirms(&[0, 1], &[2.0, 1.0]));
        assert!(!truth.confirms(&[1, 2, 2], &[1.0, 2.0, 2.0]));
        assert!(!truth.admits(&[0, 1], &[2.0, 1.0]));
        let stored = |id: u64| base.chunks(2).nth(id as usize).map(<[f32]>::to_vec);
        assert!(admits(&[1.0, 1.0], stored, &[1, 2, warpann::NONE], &[1.0, 2.0, 9.0]));
        assert!(!admits(&[1.0, 1.0], stored, &[1, 2], &[1.0, 2.5]));
        assert!(!admits(&[1.0, 1.0], stored, &[1, 3], &[1.0, 2.0]));
        assert!(!truth.confirms(&[1, 0], &[1.0, 2.5]));
        assert!(!truth.confirms(&[1, 3], &[1.0, 2.0]));
        assert!(!truth.confirms(&[1, 0, 2, 1], &[1.0, 2.0, 2.0, 1.0]));
    }

    #[test]
    fn recall_counts_places_and_forgives_ties() {
        let base = [0.0, 0.0, 1.0, 0.0, 0.0, 2.0, 5.0, 5.0f32];
        let queries = [1.0, 1.0, 1.0, 1.0f32];
        let truth = |ids: &[u64], k: usize| warpann::io::IdMatrix { rows: ids.len() / k, k, ids: ids.to_vec() };
        let found = Neighbors { k: 2, ids: vec![1, 2, 1, 3], distances: vec![0.0; 4] };
        assert_eq!(recall(&base, &queries, 2, &found, &truth(&[1, 0], 2)), Some(1.0));
        assert_eq!(recall(&base, &queries, 2, &found, &truth(&[1, 0, 1, 0], 2)), Some(0.75));
        assert_eq!(recall(&base, &queries, 2, &found, &truth(&[1, 1], 1)), Some(1.0));
        assert_eq!(recall(&base, &queries, 2, &found, &truth(&[], 1)), None);
    }
}
