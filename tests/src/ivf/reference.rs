//! The contents and results of an inverted file, computed from the definition. This module uses only the names of
//! metrics of warpann, and the results of training (centroids, codebooks, rotation), which the definition takes as
//! given.

use std::collections::HashMap;

use warpann::Metric;

use crate::reference::{NO_ID, badness, defined, defined_squares, defined_with, worst};

/// The representation of a vector in the index, and the tables that training found for it.
#[derive(Debug, Clone, PartialEq)]
pub enum Kept {
    /// The vector as it was added.
    Vector,
    /// The bits of a vector that was added as bytes.
    Bits,
    /// The vector as half-precision numbers, which are multiplied by this power of two.
    Half(f32),
    /// One byte for each component.
    Ranges {
        /// The least value of each component.
        least: Vec<f32>,
        /// The step of each component.
        steps: Vec<f32>,
        /// Whether the residual is coded, and not the vector.
        residuals: bool,
    },
    /// A level of this number of bits for each component of the residual, and a step for the vector.
    Levels(u32),
    /// Codes of the residual's parts. The fields are the codebooks (M × codewords × dim / M) and M.
    Codebooks(Vec<f32>, usize),
}

/// The results of training an index.
#[derive(Debug, Clone)]
pub struct Model {
    /// Number of components of a vector, for which centroids have one each: of bits, if those are kept.
    pub dim: usize,
    /// The metric of the index.
    pub metric: Metric,
    /// Row-major, lists × dim.
    pub centroids: Vec<f64>,
    /// The representation of a vector in the index.
    pub kept: Kept,
    /// The rotation; only for codes with one.
    pub rotation: Option<Rotation>,
}

fn first_best(values: impl Iterator<Item = f64>) -> usize {
    let mut best = (0, f64::INFINITY);
    for (at, value) in values.enumerate() {
        if value < best.1 {
            best = (at, value);
        }
    }
    best.0
}

impl Model {
    /// The metric by which vectors are compared with centroids.
    fn coarse(&self) -> Metric {
        if matches!(self.metric, Metric::L2 | Metric::Hamming) { Metric::L2 } else { Metric::InnerProduct }
    }

    /// Number of elements of a vector as it is added.
    pub fn elements(&self) -> usize {
        if self.kept == Kept::Bits { self.dim / 8 } else { self.dim }
    }

    /// Transforms a vector or query for assignment, coding and comparison.
    pub fn transform(&self, x: &[f64]) -> Vec<f64> {
        if self.kept == Kept::Bits {
            let bits = |byte: &f64| (0..8).map(|bit| (byte / 2f64.powi(bit)).floor() % 2.0).collect::<Vec<f64>>();
            return x.iter().flat_map(bits).collect();
        }
        let mut x = x.to_vec();
        if self.kept != Kept::Vector && self.metric == Metric::Cosine {
            let norm = defined_square(&x).sqrt();
            if norm != 0.0 {
                x.iter_mut().for_each(|x| *x = f64::from((*x / norm) as f32));
            }
        }
        match &self.rotation {
            Some(Rotation::Matrix(matrix)) => {
                matrix.chunks(self.dim).map(|row| f64::from(defined(Metric::InnerProduct, &x, row))).collect()
            }
            Some(Rotation::Signs(signs)) => mixed(x, signs),
            None => x,
        }
    }

    /// The list of a transformed vector: the nearest centroid by the defined distance, the first of equal ones.
    pub fn list(&self, x: &[f64]) -> usize {
        // Cosine assigns by the greatest inner product; the other metrics assign to the nearest centroid.
        let metric = if self.metric == Metric::Cosine { Metric::InnerProduct } else { Metric::L2 };
        first_best(self.centroids.chunks(self.dim).map(|c| badness(metric, f64::from(defined(metric, x, c)))))
    }

    /// The stored values of a transformed vector in its list.
    pub fn stored(&self, x: &[f64], list: usize) -> Vec<f64> {
        let dim = self.dim;
        let centroid = &self.centroids[list * dim..][..dim];
        let residual: Vec<f32> = x.iter().zip(centroid).map(|(x, c)| *x as f32 - *c as f32).collect();
        let (codebooks, parts) = match &self.kept {
            Kept::Vector | Kept::Bits => return x.to_vec(),
            Kept::Half(unit) => {
                let half = |x: &f64| half::f16::from_f64(x / f64::from(*unit)).to_f64() * f64::from(*unit);
                return x.iter().map(half).collect();
            }
            Kept::Ranges { least, steps, residuals } => {
                let of = |i: usize| {
                    let (coded, c) = if *residuals { (residual[i], centroid[i] as f32) } else { (x[i] as f32, 0.0) };
                    let place = if steps[i] == 0.0 { 0.0 } else { (coded - least[i]) / steps[i] + 0.5 };
                    let code = place.floor().clamp(0.0, 255.0);
                    f64::from(c + (least[i] + code * steps[i]))
                };
                return (0..dim).map(of).collect();
            }
            Kept::Levels(bits) => {
                let (step, levels) = step_and_levels(&residual, *bits);
                return (0..dim).map(|i| f64::from(centroid[i] as f32 + step * levels[i])).collect();
            }
            Kept::Codebooks(codebooks, parts) => (codebooks, parts),
        };
        let width = dim / parts;
        let mut stored = Vec::new();
        for (part, book) in codebooks.chunks(codebooks.len() / parts).enumerate() {
            let here = &residual[part * width..][..width];
            let distance = |word: &[f32]| {
                let mut sum = 0f32;
                for (x, c) in here.iter().zip(word) {
                    let difference = x - c;
                    sum += difference * difference;
                }
                f64::from(sum)
            };
            let word = first_best(book.chunks(width).map(distance));
            for (p, c) in book[word * width..][..width].iter().zip(&centroid[part * width..]) {
                stored.push(f64::from(*c as f32 + p));
            }
        }
        stored
    }

    /// Whether the index takes this vector: its components fit, and the greatest of them has all bits that its encoding
    /// promises.
    pub fn holds(&self, x: &[f64]) -> bool {
        let Kept::Half(unit) = self.kept else { return true };
        let half = |x: &f64| half::f16::from_f64(x.abs() / f64::from(unit));
        let x = self.transform(x);
        let greatest = x.iter().map(half).max_by(half::f16::total_cmp).unwrap_or_default();
        greatest.is_finite() && (greatest.is_normal() || x.iter().all(|x| *x == 0.0))
    }

    /// The vector that reading a stored vector back returns.
    pub fn read_back(&self, stored: &[f64]) -> Vec<f32> {
        if self.kept == Kept::Bits {
            let byte = |bits: &[f64]| bits.iter().rev().fold(0.0, |byte, bit| 2.0 * byte + bit) as f32;
            return stored.chunks(8).map(byte).collect();
        }
        let matrix = match &self.rotation {
            None => return stored.iter().map(|&x| x as f32).collect(),
            Some(Rotation::Signs(signs)) => return unmixed(stored.to_vec(), signs),
            Some(Rotation::Matrix(matrix)) => matrix,
        };
        let column = |j: usize| -> Vec<f64> { (0..self.dim).map(|i| matrix[i * self.dim + j]).collect() };
        (0..self.dim).map(|j| defined(Metric::InnerProduct, stored, &column(j))).collect()
    }

    /// The lists that a transformed query probes, nearest first.
    pub fn probes(&self, query: &[f64], probes: usize) -> Vec<usize> {
        let metric = self.coarse();
        let mut all: Vec<(f64, usize)> = self
            .centroids
            .chunks(self.dim)
            .map(|c| badness(metric, f64::from(defined(metric, query, c))))
            .zip(0..)
            .collect();
        all.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        all.into_iter().take(probes).map(|(_, list)| list).collect()
    }
}

/// A rotation, as an index has it.
#[derive(Debug, Clone)]
pub enum Rotation {
    /// The rows of an orthogonal matrix, one after the other.
    Matrix(Vec<f64>),
    /// Signs of four rounds.
    Signs(Vec<f64>),
}

const HALF: f64 = std::f64::consts::FRAC_1_SQRT_2;

/// The Hadamard transform of 2^n numbers: those of both halves, and then the sums and the differences of the halves.
fn hadamard(v: &[f64]) -> Vec<f64> {
    if v.len() == 1 {
        return v.to_vec();
    }
    let (a, b) = v.split_at(v.len() / 2);
    let (a, b) = (hadamard(a), hadamard(b));
    let sums = a.iter().zip(&b).map(|(a, b)| (a + b) * HALF);
    sums.chain(a.iter().zip(&b).map(|(a, b)| (a - b) * HALF)).collect()
}

/// The components that round `round` transforms, transformed, between the others.
fn partly(v: &[f64], round: usize) -> Vec<f64> {
    let power = (0..).map(|n| 1 << n).take_while(|&power| power <= v.len()).last().unwrap_or(1);
    let from = if round.is_multiple_of(2) { 0 } else { v.len() - power };
    [&v[..from], &hadamard(&v[from..from + power]), &v[from + power..]].concat()
}

/// Sums and differences of the components of the first half with those behind it.
fn folded(v: &[f64]) -> Vec<f64> {
    let half = v.len() / 2;
    let of = |i: usize| match i {
        i if i < half => (v[i] + v[i + half]) * HALF,
        i if i < 2 * half => (v[i - half] - v[i]) * HALF,
        i => v[i],
    };
    (0..v.len()).map(of).collect()
}

/// A vector after the rounds of these signs, with components of f32.
fn mixed(x: Vec<f64>, signs: &[f64]) -> Vec<f64> {
    let dim = x.len();
    let round = |v: Vec<f64>, round: usize| {
        let signed: Vec<f64> = v.iter().zip(&signs[round * dim..]).map(|(v, sign)| v * sign).collect();
        folded(&partly(&signed, round))
    };
    (0..4).fold(x, round).into_iter().map(|v| f64::from(v as f32)).collect()
}

/// The rounds in reverse order, each backwards.
fn unmixed(x: Vec<f64>, signs: &[f64]) -> Vec<f32> {
    let dim = x.len();
    let round = |v: Vec<f64>, round: usize| -> Vec<f64> {
        let transformed = partly(&folded(&v), round);
        transformed.iter().zip(&signs[round * dim..]).map(|(v, sign)| v * sign).collect()
    };
    (0..4).rev().fold(x, round).into_iter().map(|v| v as f32).collect()
}

/// The step of a residual and the level of each component, by the definition of codes of bits.
fn step_and_levels(residual: &[f32], bits: u32) -> (f32, Vec<f32>) {
    // The level of a code of zero bits, whose product with the step is +0.
    let none = (0.0, vec![if bits == 8 { 0.0 } else { 1.0 }; residual.len()]);
    let greatest = residual.iter().map(|x| x.abs()).fold(0.0, f32::max);
    if greatest == 0.0 {
        return none;
    }
    let w: Vec<f32> = residual.iter().map(|x| x.abs() / greatest).collect();
    let whole = bits == 8;
    let (most, finest) =
        if whole { (127.0, 128f32) } else { ((1u32 << (bits - 1)) as f32 - 1.0, (1u32 << bits) as f32) };
    let mut best = (0f32, 0f64, Vec::new());
    for trial in 0..16 {
        let up = 1.0 / (1.0 / finest * (0.4 + trial as f32 / 16.0));
        let level = |w: &f32| {
            let number = if whole { w * up } else { (w * up - 1.0) / 2.0 };
            let number = number.clamp(0.0, most).round_ties_even();
            if whole { number } else { 2.0 * number + 1.0 }
        };
        let levels: Vec<f32> = w.iter().map(level).collect();
        // Sixteen sums of every sixteenth component.
        let sum = |term: &dyn Fn(usize) -> f32| -> f32 {
            let lane = |lane: usize| (lane..w.len()).step_by(16).fold(0f32, |sum, i| sum + term(i));
            (0..16).map(lane).fold(0f32, |sum, lane| sum + lane)
        };
        let (dot, square) = (sum(&|i| w[i] * levels[i]), sum(&|i| levels[i] * levels[i]));
        let found = dot * dot / square;
        if found > best.0 {
            best = (found, f64::from(dot) / f64::from(square), levels);
        }
    }
    let step = (f64::from(greatest) * best.1) as f32;
    if step < 2f32.powi(-120) {
        return none;
    }
    (step, residual.iter().zip(best.2).map(|(x, level)| if *x < 0.0 { -level } else { level }).collect())
}

/// ⟨x, x⟩ by the definition, without rounding to f32.
fn defined_square(x: &[f64]) -> f64 {
    crate::reference::defined_sum(x, x, |a, b| a * b)
}

/// The vectors of an index, list by list.
#[derive(Debug, Clone)]
pub struct Contents {
    /// The results of training the index.
    pub model: Model,
    /// The members of each list.
    pub lists: Vec<Vec<Member>>,
}

/// A vector of an index.
#[derive(Debug, Clone)]
pub struct Member {
    /// The id of the vector.
    pub id: u64,
    /// The vector as the index keeps it, decoded.
    pub stored: Vec<f64>,
    /// [`defined_squares`] of the stored vector.
    squares: f64,
}

impl Contents {
    /// Makes the contents of an empty index.
    pub fn new(model: Model) -> Contents {
        let lists = model.centroids.len() / model.dim;
        Contents { model, lists: vec![Vec::new(); lists] }
    }

    /// Adds rows with the given ids.
    pub fn add(&mut self, rows: &[f64], ids: &[u64]) {
        for (row, &id) in rows.chunks(self.model.elements()).zip(ids) {
            let x = self.model.transform(row);
            let list = self.model.list(&x);
            let stored = self.model.stored(&x, list);
            let squares = defined_squares(self.model.metric, &stored);
            self.lists[list].push(Member { id, stored, squares });
        }
    }

    /// Removes the vectors with these ids.
    pub fn remove(&mut self, ids: &[u64]) {
        self.lists.iter_mut().for_each(|list| list.retain(|member| !ids.contains(&member.id)));
    }

    /// All ids in ascending order.
    pub fn ids(&self) -> Vec<u64> {
        let mut ids: Vec<u64> = self.lists.iter().flatten().map(|member| member.id).collect();
        ids.sort_unstable();
        ids
    }

    /// The stored vector of each id.
    pub fn by_id(&self) -> HashMap<u64, &[f64]> {
        self.lists.iter().flatten().map(|member| (member.id, member.stored.as_slice())).collect()
    }

    /// All vectors that a query may find, best first, equal distances by lower id.
    pub fn ranked(&self, query: &[f64], probes: usize, allowed: impl Fn(u64) -> bool) -> Vec<(u64, f32)> {
        let (query, metric) = (self.model.transform(query), self.model.metric);
        let query = (query.as_slice(), defined_squares(metric, &query));
        let mut found = Vec::new();
        for list in self.model.probes(query.0, probes) {
            for Member { id, stored, squares } in self.lists[list].iter().filter(|member| allowed(member.id)) {
                found.push((*id, defined_with(metric, query, (stored, *squares))));
            }
        }
        // Ids differ, so an unstable sort gives a unique order.
        found.sort_unstable_by(|a, b| {
            let (x, y) = (badness(metric, f64::from(a.1)), badness(metric, f64::from(b.1)));
            x.total_cmp(&y).then(a.0.cmp(&b.0))
        });
        found
    }

    /// The first `k` of [`Self::ranked`], followed by empty slots if there are fewer.
    pub fn nearest(&self, query: &[f64], k: usize, probes: usize, allowed: impl Fn(u64) -> bool) -> Vec<(u64, f32)> {
        let mut found = self.ranked(query, probes, allowed);
        found.resize(k, (NO_ID, worst(self.model.metric)));
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(metric: Metric) -> Model {
        // Two lists, at (0, 0) and (10, 0); for cosine at (1, 0) and (0, 1).
        let centroids = if metric == Metric::Cosine { vec![1.0, 0.0, 0.0, 1.0] } else { vec![0.0, 0.0, 10.0, 0.0] };
        Model { dim: 2, metric, centroids, kept: Kept::Vector, rotation: None }
    }

    #[test]
    fn lists_and_neighbours_found_by_hand() {
        let mut flat = Contents::new(model(Metric::L2));
        flat.add(&[1.0, 0.0, 9.0, 0.0, 5.0, 0.0, 2.0, 0.0], &[7, 3, 9, 1]);
        // (5, 0) is equally far from both centroids: it goes to the first list.
        assert_eq!(flat.lists.iter().map(Vec::len).collect::<Vec<_>>(), [3, 1]);
        assert_eq!(flat.nearest(&[1.5, 0.0], 3, 1, |_| true), [(1, 0.25), (7, 0.25), (9, 12.25)]);
        assert_eq!(flat.nearest(&[1.5, 0.0], 2, 2, |id| id != 1), [(7, 0.25), (9, 12.25)]);
        assert_eq!(flat.nearest(&[9.0, 0.0], 2, 1, |_| true), [(3, 0.0), (NO_ID, f32::INFINITY)]);
        assert_eq!(flat.ids(), [1, 3, 7, 9]);
        flat.remove(&[9, 3]);
        assert_eq!(flat.ids(), [1, 7]);
    }

    #[test]
    fn bits_found_by_hand() {
        // One byte a vector. The centroids are near no bits and near the four highest.
        let centroids = [vec![0.1; 8], vec![0.1, 0.0, 0.0, 0.2, 0.9, 1.0, 0.9, 0.8]].concat();
        let model = Model { dim: 8, metric: Metric::Hamming, centroids, kept: Kept::Bits, rotation: None };
        assert_eq!(model.transform(&[0b1010_0001.into()]), [1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0]);
        assert_eq!((model.elements(), model.read_back(&model.transform(&[161.0]))), (1, vec![161.0]));
        let mut contents = Contents::new(model);
        contents.add(&[0b1.into(), 0b1111_0001.into(), 0b111_0000.into()], &[7, 3, 9]);
        assert_eq!(contents.lists.iter().map(Vec::len).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(contents.nearest(&[0b1110_0000.into()], 2, 1, |_| true), [(3, 2.0), (9, 2.0)]);
        assert_eq!(contents.nearest(&[0.0], 3, 2, |_| true), [(7, 1.0), (9, 3.0), (3, 5.0)]);
    }

    #[test]
    fn codes_found_by_hand() {
        // One part of two components with codewords (0, 0) and (1, −1). The other centroid is at (10, 0).
        let mut coded = model(Metric::L2);
        coded.kept = Kept::Codebooks(vec![0.0, 0.0, 1.0, -1.0], 1);
        assert_eq!(coded.stored(&[10.9, -0.8], 1), [11.0, -1.0]);
        assert_eq!(coded.stored(&[10.4, -0.4], 1), [10.0, 0.0]);
        // A rotation by a quarter turn: (x, y) becomes (−y, x).
        coded.rotation = Some(Rotation::Matrix(vec![0.0, -1.0, 1.0, 0.0]));
        assert_eq!(coded.transform(&[3.0, 4.0]), [-4.0, 3.0]);
        assert_eq!(coded.read_back(&[-4.0, 3.0]), [3.0, 4.0]);
        // Each round has two butterflies, which leave nothing but the signs. The last is (+, −).
        coded.rotation = Some(Rotation::Signs(vec![1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, -1.0]));
        assert_eq!(coded.transform(&[3.0, 4.0]), [3.0, -4.0]);
        assert_eq!(coded.read_back(&[3.0, -4.0]), [3.0, 4.0]);
        let mut cosine = model(Metric::Cosine);
        assert_eq!(cosine.transform(&[3.0, 4.0]), [3.0, 4.0]);
        cosine.kept = Kept::Codebooks(vec![0.0, 0.0], 1);
        assert_eq!(cosine.transform(&[3.0, 4.0]), [f64::from(0.6f32), f64::from(0.8f32)]);
        assert_eq!(cosine.list(&[3.0, 4.0]), 1);
        // The list has the centroid (0, 1), which is what its codes stand for. Twice the length is the same direction.
        cosine.centroids[3] = 2.0;
        let mut contents = Contents::new(cosine);
        contents.add(&[3.0, 4.0], &[5]);
        assert_eq!(contents.nearest(&[0.0, 9.0], 1, 2, |_| true), [(5, 1.0)]);
        assert_eq!(contents.nearest(&[-3.0, -4.0], 1, 2, |_| true)[0].1, -0.8);
    }

    #[test]
    fn halves_and_bytes_found_by_hand() {
        let mut kept = model(Metric::L2);
        kept.kept = Kept::Half(1.0);
        // Between 2048 and 4096, half-precision numbers are even; ties go to multiples of four.
        assert_eq!(kept.stored(&[2049.0, -2051.0], 0), [2048.0, -2052.0]);
        // Eighths of them.
        kept.kept = Kept::Half(0.125);
        assert_eq!(kept.stored(&[2049.0 / 8.0, -2051.0 / 8.0], 0), [256.0, -2052.0 / 8.0]);
        assert!(kept.holds(&[8187.0, 0.0]) && !kept.holds(&[8190.0, 0.0]));
        assert!(kept.holds(&[2f64.powi(-17), 0.0]) && !kept.holds(&[2f64.powi(-18), 0.0]) && kept.holds(&[0.0, 0.0]));
        // Residuals of the list at (10, 0): the first component from -1 in steps of 0.5, the second always 3.
        let ranges = |residuals| Kept::Ranges { least: vec![-1.0, 3.0], steps: vec![0.5, 0.0], residuals };
        kept.kept = ranges(true);
        assert_eq!(kept.stored(&[9.6, 7.0], 1), [9.5, 3.0]);
        assert_eq!(kept.stored(&[0.0, 3.0], 1), [9.0, 3.0]);
        assert_eq!(kept.stored(&[900.0, 3.0], 1), [136.5, 3.0]);
        // The vectors themselves.
        kept.kept = ranges(false);
        assert_eq!(kept.stored(&[9.6, 7.0], 1), [9.5, 3.0]);
        assert_eq!(kept.stored(&[0.0, 3.0], 1), [0.0, 3.0]);
        assert_eq!(kept.stored(&[900.0, 3.0], 1), [126.5, 3.0]);
    }
}
