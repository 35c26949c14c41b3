//! The filter of exact search: every upper bound, and exactly the pairs that a threshold keeps. Vectors are small whole
//! numbers, which f16
//! holds; the residuals are made up, so that the error bounds are large and differ between tiles.
//!
//! No result tells if `AppendWithin` starts with a bit of `hits` that is set: it then examines a group of pairs once
//! more, each by itself.

use cuda_std::emulator::Buffer;
use test_random::Random;
use warpann_kernels::flat::filter::{Filter, FilterOutput, FilterPass, tile_number};
use warpann_kernels::product::bounds::{Bounds, QueryTerms};
use warpann_kernels::product::element::ElementKey;
use warpann_kernels::product::instruction::Instruction;
use warpann_kernels::product::metric::{Metric, scale_of};

use crate::lists::stored;

const TILE: usize = 128;

/// Queries and base rows, and what the filter is told of them.
struct Data {
    metric: Metric,
    stride: usize,
    queries: Vec<f32>,
    base: Vec<f32>,
    query_bounds: Vec<Bounds>,
    tile_bounds: Vec<Bounds>,
}

impl Data {
    fn random(random: &mut Random, metric: Metric, stride: usize, queries: usize, rows: usize) -> Data {
        let rows_of = |random: &mut Random, count: usize| -> Vec<f32> {
            (0..count * stride).map(|_| random.below(4) as f32 * random.pick(&[1.0, -1.0, 0.0])).collect()
        };
        let (query_rows, base) = (rows_of(random, queries), rows_of(random, rows));
        let bounds = |random: &mut Random, rows: &[f32]| {
            let squares = |row: &[f32]| row.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>();
            let greatest = rows.chunks(stride).map(squares).fold(0.0, f64::max);
            Bounds::of_squares(greatest, (0.01 + 0.2 * random.unit()).powi(2))
        };
        let query_bounds = query_rows.chunks(stride).map(|row| bounds(random, row)).collect();
        let tile_bounds = base.chunks(stride * TILE).map(|tile| bounds(random, tile)).collect();
        Data { metric, stride, queries: query_rows, base, query_bounds, tile_bounds }
    }

    fn query_count(&self) -> usize {
        self.queries.len() / self.stride
    }

    fn row_count(&self) -> usize {
        self.base.len() / self.stride
    }

    /// The score of a query and a row, exact, and the bound of its error.
    fn score(&self, query: usize, row: usize) -> (f32, f32) {
        let (x, y) = (&self.queries[query * self.stride..], &self.base[row * self.stride..]);
        let product: f32 = x.iter().zip(y).take(self.stride).map(|(x, y)| x * y).sum();
        let score = match self.metric {
            Metric::L2 => y[..self.stride].iter().map(|y| y * y).sum::<f32>() - 2.0 * product,
            Metric::InnerProduct | Metric::Cosine => -product,
        };
        let terms = QueryTerms::new(self.metric, self.stride as u32, self.query_bounds[query]);
        (score, terms.error(self.metric, self.tile_bounds[row / TILE]))
    }

    /// The f16 copies of rows, padded to whole tiles.
    fn copies(&self, rows: &[f32]) -> (Vec<u16>, f32) {
        let greatest = rows.iter().fold(0.0, |greatest: f32, x| greatest.max(x.abs()));
        let scale = scale_of(self.metric, greatest);
        let mut scaled: Vec<f32> = rows.iter().map(|x| x * scale).collect();
        scaled.resize(rows.len().next_multiple_of(TILE * self.stride), 0.0);
        let bytes = stored(ElementKey::F16, &scaled);
        (bytes.chunks(2).map(|two| u16::from_le_bytes([two[0], two[1]])).collect(), greatest)
    }

    /// Runs the filter over the visited tiles. Returns upper bounds, rows, and counts, which start at `first`.
    fn run(
        &self,
        (instruction, output): (Instruction, FilterOutput),
        [tiles, tile_stride, tile_skip]: [u32; 3],
        thresholds: &[f32],
        first: u32,
        out_stride: usize,
    ) -> (Vec<f32>, Vec<u32>, Vec<u32>) {
        let (queries, rows) = (self.query_count(), self.row_count());
        let ((query_copies, x_greatest), (base_copies, y_greatest)) =
            (self.copies(&self.queries), self.copies(&self.base));
        let value = |row: &[f32]| if matches!(self.metric, Metric::L2) { row.iter().map(|y| y * y).sum() } else { 0.0 };
        let mut values: Vec<f32> = self.base.chunks(self.stride).map(value).collect();
        values.resize(rows.next_multiple_of(TILE), f32::INFINITY);
        let bounds = |of: &[Bounds]| -> (Buffer<f32>, Buffer<f32>) {
            let part = |part: fn(&Bounds) -> f32| Buffer::from_slice(&of.iter().map(part).collect::<Vec<f32>>());
            (part(|bounds| bounds.norm), part(|bounds| bounds.residual))
        };
        let (query_bounds, tile_bounds) = (bounds(&self.query_bounds), bounds(&self.tile_bounds));
        let (query_copies, base_copies) = (Buffer::from_slice(&query_copies), Buffer::from_slice(&base_copies));
        let greatest = [Buffer::from_slice(&[x_greatest.to_bits()]), Buffer::from_slice(&[y_greatest.to_bits()])];
        let (values, thresholds_at) = (Buffer::from_slice(&values), Buffer::from_slice(thresholds));
        let mut out_values = Buffer::<f32>::new_poisoned(queries * out_stride);
        let mut out_rows = Buffer::<u32>::new_poisoned(queries * out_stride);
        let mut counts = Buffer::from_slice(&vec![first; queries]);
        let launch = Filter {
            queries: query_copies.as_ptr(),
            base: base_copies.as_ptr(),
            stride: self.stride as u32,
            query_greatest: greatest[0].as_ptr(),
            base_greatest: greatest[1].as_ptr(),
            query_norms: query_bounds.0.as_ptr(),
            query_residuals: query_bounds.1.as_ptr(),
            base_values: values.as_ptr(),
            tile_norms: tile_bounds.0.as_ptr(),
            tile_residuals: tile_bounds.1.as_ptr(),
            pass: FilterPass {
                query_count: queries as u32,
                row_count: rows as u32,
                metric: self.metric,
                tiles,
                tile_stride,
                tile_skip,
                thresholds: thresholds_at.as_ptr(),
                out_values: out_values.as_mut_ptr(),
                out_rows: out_rows.as_mut_ptr(),
                counts: counts.as_mut_ptr(),
                out_stride: out_stride as u32,
            },
        };
        // SAFETY: the arrays have these shapes, and copies are padded to whole tiles.
        unsafe {
            let kernel = Filter::kernel((instruction, output, launch.residency()));
            crate::launch(kernel, launch.config(instruction, 1), launch);
        }
        (out_values.to_vec(), out_rows.to_vec(), counts.to_vec())
    }

    /// Runs the filter over the visited tiles, and compares its output.
    fn check(&self, instruction: Instruction, output: FilterOutput, visits: [u32; 3], room: usize) {
        let (queries, rows) = (self.query_count(), self.row_count());
        let [tiles, tile_stride, tile_skip] = visits;
        let visited: Vec<usize> = (0..tiles).map(|visit| tile_number(visit, tile_stride, tile_skip) as usize).collect();
        let thresholds = self.thresholds(&visited);
        let dense = output == FilterOutput::Dense;
        let out_stride = if dense { tiles as usize * TILE + 2 } else { room };
        let (out_values, out_rows, counts) = self.run((instruction, output), visits, &thresholds, 1, out_stride);
        let what =
            format!("{:?}, {instruction:?}, {queries} × {rows} × {}, tiles {visited:?}", self.metric, self.stride);
        for query in 0..queries {
            let own = query * out_stride..(query + 1) * out_stride;
            if dense {
                self.check_dense(query, &visited, &out_values[own], &what);
            } else {
                let found = (&out_rows[own.clone()], &out_values[own]);
                self.check_kept(query, (&visited, thresholds[query]), counts[query], found, &what);
            }
        }
    }

    /// The rows of a tile.
    fn rows_of(&self, tile: usize) -> std::ops::Range<usize> {
        tile * TILE..((tile + 1) * TILE).min(self.row_count())
    }

    /// A threshold of each query: between the lower bounds of its rows, closer to a bound than to its score.
    fn thresholds(&self, visited: &[usize]) -> Vec<f32> {
        let of_query = |query: usize| {
            let rows = visited.iter().flat_map(|&tile| self.rows_of(tile));
            let mut lower: Vec<f32> =
                rows.map(|row| self.score(query, row)).map(|(score, error)| score - error).collect();
            lower.sort_by(f32::total_cmp);
            let at = (query * 7 + 3) % lower.len();
            let next = lower[at..].iter().find(|&&other| other > lower[at] + 0.05).unwrap_or(&f32::INFINITY);
            if query % 5 == 4 { f32::NEG_INFINITY } else { lower[at] + 0.5 * (next - lower[at]).min(1.0) }
        };
        (0..self.query_count()).map(of_query).collect()
    }

    /// Whether an upper bound is that of a pair.
    fn agrees(&self, upper: f32, query: usize, row: usize) -> bool {
        let (score, error) = self.score(query, row);
        (upper - score - error).abs() <= 1e-5 * (score.abs() + error)
    }

    /// Compares the upper bounds of all rows of the visited tiles.
    fn check_dense(&self, query: usize, visited: &[usize], values: &[f32], what: &str) {
        for (values, &tile) in values.chunks(TILE).zip(visited) {
            let rows = self.rows_of(tile);
            let (values, padding) = values.split_at(rows.len());
            for (&upper, row) in values.iter().zip(rows) {
                assert!(self.agrees(upper, query, row), "{upper} of query {query}, row {row}, {what}");
            }
            assert!(padding.iter().all(|&upper| upper == f32::INFINITY), "{what}");
        }
    }

    /// Compares the rows that the threshold keeps, behind the one place that was taken before, as far as there was
    /// room.
    fn check_kept(
        &self,
        query: usize,
        (visited, threshold): (&[usize], f32),
        count: u32,
        (rows, values): (&[u32], &[f32]),
        what: &str,
    ) {
        let mut kept: Vec<u32> = visited.iter().flat_map(|&tile| self.rows_of(tile)).map(|row| row as u32).collect();
        kept.retain(|&row| {
            let (score, error) = self.score(query, row as usize);
            score - error <= threshold
        });
        assert_eq!(count as usize, 1 + kept.len(), "query {query}, threshold {threshold}, {what}");
        let found = &rows[1..rows.len().min(1 + kept.len())];
        for (&row, &upper) in found.iter().zip(&values[1..]) {
            let agrees = kept.contains(&row) && self.agrees(upper, query, row as usize);
            assert!(agrees, "{upper}, query {query}, row {row}, {what}");
        }
        let distinct: std::collections::BTreeSet<&u32> = found.iter().collect();
        assert_eq!(distinct.len(), found.len(), "query {query}, {what}");
    }
}

/// All tiles; every second tile; all but every third; one tile.
const VISITS: [[u32; 3]; 4] = [[5, 1, 0], [3, 2, 0], [3, 0, 3], [1, 1, 0]];

#[test]
fn upper_bounds_of_all_pairs_are_stored() {
    let mut random = Random::new(81);
    for (turn, metric) in Metric::UNNORMALISED.into_iter().cycle().take(4).enumerate() {
        // Copies that stay in shared memory, and longer ones.
        let stride = [64, 192][turn / 2];
        let data = Data::random(&mut random, metric, stride, 5 + 126 * (turn % 2), 590);
        for instruction in [Instruction::MmaSync, Instruction::Wgmma] {
            data.check(instruction, FilterOutput::Dense, VISITS[turn], 0);
        }
    }
}

#[test]
fn pairs_within_the_limits_are_appended() {
    let mut random = Random::new(82);
    for (turn, metric) in Metric::UNNORMALISED.into_iter().cycle().take(4).enumerate() {
        let stride = [128, 192][turn / 2];
        let data = Data::random(&mut random, metric, stride, [7, 130][turn % 2], 590);
        for instruction in [Instruction::MmaSync, Instruction::Wgmma] {
            // Room for all, and for a few.
            data.check(instruction, FilterOutput::Append, VISITS[turn], [700, 9][turn % 2]);
        }
    }
}

/// Rows and queries behind the end pass an infinite threshold, and are not appended; an infinite bound keeps every row.
#[test]
fn infinite_limits_and_bounds_keep_all_rows_and_no_padding() {
    let mut random = Random::new(83);
    let mut data = Data::random(&mut random, Metric::L2, 64, 3, 140);
    data.query_bounds[1] = Bounds { norm: f32::INFINITY, residual: f32::INFINITY };
    for bounds in &mut data.tile_bounds[1..] {
        bounds.residual = f32::INFINITY;
    }
    let (all, way) = (140, (Instruction::MmaSync, FilterOutput::Append));
    let (_, rows, counts) = data.run(way, [2, 1, 0], &[f32::INFINITY, -1e6, -1e6], 0, all);
    // Of query 2, the rows of the tile whose residual is infinite.
    assert_eq!(counts, [140, 140, 12]);
    let mut rows = rows[..all].to_vec();
    rows.sort();
    assert_eq!(rows, (0..all as u32).collect::<Vec<u32>>());
}

#[test]
fn tiles_are_visited_by_stride_or_by_skipping() {
    let visited = |stride, skip| (0..5).map(|visit| tile_number(visit, stride, skip)).collect::<Vec<u32>>();
    assert_eq!(visited(1, 0), [0, 1, 2, 3, 4]);
    assert_eq!(visited(3, 0), [0, 3, 6, 9, 12]);
    assert_eq!(visited(0, 2), [1, 3, 5, 7, 9]);
    assert_eq!(visited(0, 4), [1, 2, 3, 5, 6]);
}

/// The grid has a share for each part of the tiles, and never more shares than tiles.
#[test]
fn shares_fill_whole_waves() {
    let buffer = Buffer::<u32>::new(0);
    let grid = |queries: u32, tiles: u32, multiprocessors: u32| {
        let empty = buffer.as_ptr();
        let launch = Filter {
            queries: empty.cast(),
            base: empty.cast(),
            stride: 64,
            query_greatest: empty,
            base_greatest: empty,
            query_norms: empty.cast(),
            query_residuals: empty.cast(),
            base_values: empty.cast(),
            tile_norms: empty.cast(),
            tile_residuals: empty.cast(),
            pass: FilterPass {
                query_count: queries,
                row_count: tiles * 128,
                metric: Metric::L2,
                tiles,
                tile_stride: 1,
                tile_skip: 0,
                thresholds: empty.cast(),
                out_values: cuda_std::PtrMut::empty(),
                out_rows: cuda_std::PtrMut::empty(),
                counts: cuda_std::PtrMut::empty(),
                out_stride: 0,
            },
        };
        let [x, y, _] = launch.config(Instruction::MmaSync, multiprocessors).grid;
        (x, y)
    };
    // One wave of 264 blocks; the least shares if several take as long; the tiles end before the wave.
    assert_eq!(grid(128, 10_000, 132), (1, 264));
    assert_eq!(grid(129, 10_000, 132), (2, 132));
    assert_eq!(grid(128 * 264, 500, 132), (264, 1));
    assert_eq!(grid(128 * 176, 500, 132), (176, 3));
    assert_eq!(grid(1, 7, 132), (1, 7));
    assert_eq!(grid(1, 0, 132), (1, 1));
}
