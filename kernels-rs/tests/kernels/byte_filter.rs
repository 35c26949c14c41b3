//! The filter of bytes, against sums of integers: every upper bound, and which pairs a threshold keeps. The numbers of
//! the rows are those that `PrepareBytes` writes, which is compared with the same sums.
//!
//! A pair with a score up to the threshold must be kept; one that exceeds it by more than twice the error may not.

use cuda_std::PtrMut;
use cuda_std::emulator::Buffer;
use test_random::Random;
use warpann_kernels::flat::byte_filter::{ByteFilter, most_row_bytes};
use warpann_kernels::flat::filter::{FilterOutput, FilterPass, tile_number};
use warpann_kernels::product::element::ExactKey;
use warpann_kernels::product::instruction::Instruction;
use warpann_kernels::product::metric::Metric;
use warpann_kernels::product::prepare_bytes::PrepareBytes;

const TILE: usize = 128;
const METRICS: [Metric; 3] = [Metric::L2, Metric::InnerProduct, Metric::Cosine];

/// Vectors of bytes, and what the library makes of them.
struct Set {
    key: ExactKey,
    metric: Metric,
    dim: usize,
    stride: usize,
    count: usize,
    rows: Vec<u8>,
    values: Vec<u32>,
    norms: Vec<f32>,
    set_norm: f32,
    squares: Vec<f64>,
}

impl Set {
    /// Random rows: of all bytes, or of the extremes only. Some are zero. Padding rows hold garbage.
    fn random(random: &mut Random, (key, metric): (ExactKey, Metric), dim: usize, count: usize) -> Set {
        let stride = dim.next_multiple_of(16);
        let padded = count.next_multiple_of(TILE);
        let extreme = random.below(3) == 0;
        let mut rows = vec![0x5a; padded * stride];
        for row in rows[..count * stride].chunks_mut(stride) {
            let zero = random.below(9) == 0;
            for (at, byte) in row.iter_mut().enumerate() {
                let any = random.below(256) as u8;
                let value = if extreme { random.pick(&[0, 127, 128, 255]) } else { any };
                *byte = if at < dim && !zero { value } else { 0 };
            }
        }
        let at = Buffer::from_slice(&rows);
        let (mut values, mut norms) = (Buffer::<u32>::new_poisoned(padded), Buffer::<f32>::new_poisoned(padded));
        let (mut set_norm, mut squares) = (Buffer::from_slice(&[0u32]), Buffer::<f64>::new_poisoned(count));
        let launch = PrepareBytes {
            rows: at.as_ptr(),
            count: count as u32,
            padded_count: padded as u32,
            stride: stride as u32,
            metric,
            tiles: None,
            tile_count: 0,
            values: values.as_mut_ptr(),
            of_lists: 0,
            norms: Some(norms.as_mut_ptr()),
            set_norm: set_norm.as_mut_ptr(),
            row_squares: Some(squares.as_mut_ptr()),
        };
        // SAFETY: the arrays have these shapes.
        unsafe { crate::launch(PrepareBytes::kernel(key), launch.config(), launch) };
        Set {
            key,
            metric,
            dim,
            stride,
            count,
            rows,
            values: values.to_vec(),
            norms: norms.to_vec(),
            set_norm: f32::from_bits(set_norm.to_vec()[0]),
            squares: squares.to_vec(),
        }
    }

    fn byte(&self, row: usize, at: usize) -> u8 {
        self.rows[row * self.stride + at]
    }

    fn product(&self, row: usize, other: &Set, of: usize) -> i64 {
        let terms = (0..self.dim).map(|at| {
            let (x, y) = (self.byte(row, at), other.byte(of, at));
            match self.key {
                ExactKey::U8 => i64::from(x) * i64::from(y),
                ExactKey::I8 => i64::from(x as i8) * i64::from(y as i8),
                ExactKey::Bits => (0..8).filter(|bit| x >> bit & 1 == 1 && y >> bit & 1 == 1).count() as i64,
            }
        });
        terms.sum()
    }

    /// Compares the numbers of the rows with their definitions.
    fn check(&self) {
        let mut greatest = 0.0f32;
        for row in 0..self.rows.len() / self.stride {
            let squares = if row < self.count { self.product(row, self, row) } else { 0 };
            let norm = (squares as f64).sqrt();
            let (value, bound) = match self.metric {
                _ if row >= self.count => (f32::INFINITY.to_bits(), 0.0),
                Metric::L2 => (squares as u32 / 2, norm),
                Metric::InnerProduct => (0, norm),
                Metric::Cosine if squares == 0 => (0, 0.0),
                Metric::Cosine => ((-1.0 / norm as f32).to_bits(), 1.0),
            };
            assert!(self.values[row].abs_diff(value) <= u32::from(matches!(self.metric, Metric::Cosine)), "row {row}");
            let found = self.norms[row];
            assert!(f64::from(found) >= bound && f64::from(found) <= bound * 1.00001 + 1e-30, "row {row}: {found}");
            greatest = greatest.max(found);
            if row < self.count {
                assert_eq!(self.squares[row], squares as f64);
            }
        }
        assert_eq!(self.set_norm, greatest);
    }

    /// The exact score of a query of this set and a row of the base, as f64.
    fn score(&self, query: usize, base: &Set, row: usize) -> f64 {
        let product = self.product(query, base, row) as f64;
        match self.metric {
            Metric::L2 => base.squares[row] - 2.0 * product,
            Metric::InnerProduct => -product,
            Metric::Cosine => {
                let squares = self.squares[query] * base.squares[row];
                if squares == 0.0 { 0.0 } else { -product / squares.sqrt() }
            }
        }
    }

    /// The largest error that the filter may allow for a query.
    fn error(&self, query: usize, base: &Set) -> f64 {
        let (x, y) = (f64::from(self.norms[query]), f64::from(base.set_norm));
        let unit = 1.1 / 1_048_576.0;
        // Squared L2 takes ‖y‖² without its last bit.
        1e-34 + if matches!(self.metric, Metric::L2) { unit * (x * x + y * y) + 1.0625 } else { unit * x * y }
    }

    /// Runs the filter of these queries over tiles of the base. Returns upper bounds, rows, and counts.
    fn run(
        &self,
        base: &Set,
        (instruction, output): (Instruction, FilterOutput),
        [tiles, tile_stride, tile_skip]: [u32; 3],
        thresholds: &[f32],
        out_stride: usize,
    ) -> (Vec<f32>, Vec<u32>, Vec<u32>) {
        let (queries, rows) = (Buffer::from_slice(&self.rows), Buffer::from_slice(&base.rows));
        let (query_values, base_values) = (Buffer::from_slice(&self.values), Buffer::from_slice(&base.values));
        let (query_norms, base_norm) = (Buffer::from_slice(&self.norms), Buffer::from_slice(&[base.set_norm]));
        let thresholds = Buffer::from_slice(thresholds);
        let mut out_values = Buffer::<f32>::new_poisoned(self.count * out_stride);
        let mut out_rows = Buffer::<u32>::new_poisoned(self.count * out_stride);
        let mut counts = Buffer::from_slice(&vec![0u32; self.count]);
        let dense = output == FilterOutput::Dense;
        let launch = ByteFilter {
            queries: queries.as_ptr(),
            base: rows.as_ptr(),
            stride: self.stride as u32,
            query_values: query_values.as_ptr(),
            query_norms: query_norms.as_ptr(),
            base_values: base_values.as_ptr(),
            base_norm: base_norm.as_ptr(),
            pass: FilterPass {
                query_count: self.count as u32,
                row_count: base.count as u32,
                metric: self.metric,
                tiles,
                tile_stride,
                tile_skip,
                thresholds: thresholds.as_ptr(),
                out_values: out_values.as_mut_ptr(),
                out_rows: if dense { PtrMut::empty() } else { out_rows.as_mut_ptr() },
                counts: if dense { PtrMut::empty() } else { counts.as_mut_ptr() },
                out_stride: out_stride as u32,
            },
        };
        // SAFETY: the arrays have these shapes, and rows are padded to whole tiles.
        unsafe {
            let kernel = ByteFilter::kernel((self.key, instruction, output, launch.residency()));
            crate::launch(kernel, launch.config(instruction, 1), launch);
        }
        (out_values.to_vec(), out_rows.to_vec(), counts.to_vec())
    }
}

/// Sets of queries and of a base, by the number of a case.
fn sets(random: &mut Random, case: usize, dims: &[usize], queries: usize, rows: usize) -> (Set, Set, Instruction) {
    let kind = ([ExactKey::U8, ExactKey::I8, ExactKey::Bits][case % 3], METRICS[case / 3 % 3]);
    let instruction = [Instruction::MmaSync, Instruction::Wgmma][case / 9 % 2];
    let dim = dims[case % dims.len()];
    let (x, y) = (Set::random(random, kind, dim, queries), Set::random(random, kind, dim, rows));
    x.check();
    y.check();
    (x, y, instruction)
}

/// The rows of the visited tiles.
fn visited(base: &Set, [tiles, stride, skip]: [u32; 3]) -> Vec<usize> {
    let tiles = (0..tiles).map(|visit| tile_number(visit, stride, skip) as usize);
    tiles.flat_map(|tile| tile * TILE..((tile + 1) * TILE).min(base.count)).collect()
}

const VISITS: [[u32; 3]; 4] = [[3, 1, 0], [2, 2, 0], [2, 0, 3], [1, 1, 0]];

#[test]
fn upper_bounds_of_all_pairs_are_stored() {
    let mut random = Random::new(91);
    for case in 0..18 {
        let (x, y, instruction) = sets(&mut random, case, &[5, 128, 300, 16, 144], 3 + 126 * (case % 2), 290);
        let visits = VISITS[case % 4];
        let out_stride = visits[0] as usize * TILE + 2;
        let (upper, _, _) = x.run(&y, (instruction, FilterOutput::Dense), visits, &[], out_stride);
        for query in 0..x.count {
            let tiles = (0..visits[0]).map(|visit| tile_number(visit, visits[1], visits[2]) as usize);
            for (column, row) in tiles.flat_map(|tile| tile * TILE..(tile + 1) * TILE).enumerate() {
                let upper = f64::from(upper[query * out_stride + column]);
                if row >= y.count {
                    assert_eq!(upper, f64::INFINITY);
                    continue;
                }
                let (score, error) = (x.score(query, &y, row), x.error(query, &y));
                assert!(upper >= score && upper <= score + 2.0 * error, "case {case}, {query}, {row}: {score} {upper}");
            }
        }
    }
}

#[test]
fn pairs_within_the_limits_are_appended() {
    let mut random = Random::new(92);
    let mut between = 0;
    for case in 0..36 {
        let (x, y, instruction) = sets(&mut random, case, &[128, 31, 300, 100, 16], [7, 130][case % 2], 290);
        let rows = visited(&y, VISITS[case % 4]);
        // A threshold of each query: a score, the number below it, +∞, or −∞.
        let thresholds: Vec<f32> = (0..x.count)
            .map(|query| {
                let score = x.score(query, &y, rows[(query * 7 + 3) % rows.len()]) as f32;
                match query % 5 {
                    0..3 => score,
                    3 => score.next_down(),
                    _ if query % 2 == 0 => f32::INFINITY,
                    _ => f32::NEG_INFINITY,
                }
            })
            .collect();
        let room = 300;
        let way = (instruction, FilterOutput::Append);
        let (upper, found, counts) = x.run(&y, way, VISITS[case % 4], &thresholds, room);
        for (query, &threshold) in thresholds.iter().enumerate() {
            let own = query * room..query * room + counts[query] as usize;
            let found: std::collections::BTreeMap<usize, f32> =
                found[own.clone()].iter().map(|&row| row as usize).zip(upper[own.clone()].iter().copied()).collect();
            assert_eq!(found.len(), own.len(), "case {case}: a row is there twice");
            for &row in &rows {
                let (score, error) = (x.score(query, &y, row), x.error(query, &y));
                let above = score - f64::from(threshold);
                match found.get(&row) {
                    Some(&upper) => {
                        assert!(above <= 2.0 * error, "case {case}, query {query}, row {row} exceeds by {above}");
                        let upper = f64::from(upper);
                        assert!(upper >= score && upper <= score + 2.0 * error, "case {case}: {upper} for {score}");
                    }
                    None => assert!(above > 0.0, "case {case}, query {query} lacks row {row}: {score} {threshold}"),
                }
            }
            between += usize::from(!found.is_empty() && found.len() < rows.len());
        }
    }
    assert!(between > 500, "{between} lists are neither empty nor full");
}

/// Vectors of the most components, all of them the greatest or the least of the type: no sum and no comparison leaves
/// 32 bits.
#[test]
fn the_longest_vectors_of_extremes_stay_in_range() {
    for (case, (key, byte)) in [(ExactKey::U8, 255u8), (ExactKey::I8, 0x80)].into_iter().enumerate() {
        let dim = most_row_bytes(key) as usize;
        for (metric, instruction) in
            METRICS.into_iter().zip([Instruction::MmaSync, Instruction::Wgmma, Instruction::MmaSync])
        {
            let mut random = Random::new(93);
            let (mut x, mut y) =
                (Set::random(&mut random, (key, metric), 16, 2), Set::random(&mut random, (key, metric), 16, 3));
            // Rows of one extreme, and a row of the other.
            let other = if key == ExactKey::I8 { 0x7f } else { 0 };
            for (set, last) in [(&mut x, 1), (&mut y, 2)] {
                (set.dim, set.stride) = (dim, dim.next_multiple_of(16));
                set.rows = vec![0; TILE * set.stride];
                for row in 0..set.count {
                    set.rows[row * set.stride..][..dim].fill(if row == last { other } else { byte });
                }
                let squares: Vec<i64> = (0..set.count).map(|row| set.product(row, set, row)).collect();
                set.squares = squares.iter().map(|&squares| squares as f64).collect();
                for (row, &squares) in squares.iter().enumerate() {
                    let norm = (squares as f64).sqrt();
                    let direction = f32::from(squares > 0);
                    (set.values[row], set.norms[row]) = match metric {
                        Metric::L2 => (u32::try_from(squares).unwrap() / 2, norm as f32 * 1.000001 + 1e-37),
                        Metric::InnerProduct => (0, norm as f32 * 1.000001 + 1e-37),
                        Metric::Cosine if squares == 0 => (0, 1e-37),
                        Metric::Cosine => ((-1.0 / norm as f32).to_bits(), direction),
                    };
                }
                set.set_norm = set.norms[..set.count].iter().fold(0.0, |a: f32, &b| a.max(b));
            }
            let thresholds: Vec<f32> = (0..2).map(|query| x.score(query, &y, 0) as f32).collect();
            let way = (instruction, FilterOutput::Append);
            let (_, found, counts) = x.run(&y, way, [1, 1, 0], &thresholds, 8);
            for (query, &threshold) in thresholds.iter().enumerate() {
                let found = &found[query * 8..][..counts[query] as usize];
                for row in 0..3 {
                    let above = x.score(query, &y, row) - f64::from(threshold);
                    let (is_there, error) = (found.contains(&(row as u32)), x.error(query, &y));
                    assert!(if is_there { above <= 2.0 * error } else { above > 0.0 }, "case {case}, {query}, {row}");
                }
            }
        }
    }
}
