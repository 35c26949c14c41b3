//! Tests of scores and error bounds on the emulator, against f64 arithmetic on codes that are read bit by bit.

use super::*;
use crate::device::limits::Products;
use crate::device::queue::OnStream;
use crate::device::runtime::{Memory, Runtime};
use bytemuck::NoUninit;
use test_random::Random;
use warpann_kernels::NO_ROW;

/// The content of memory that no kernel has written.
const UNTOUCHED: u32 = 0xa5a5_a5a5;

/// `len` numbers between `centre` − `size` and `centre` + `size`.
fn components(random: &mut Random, len: usize, size: f32, centre: f32) -> Vec<f32> {
    (0..len).map(|_| centre + size * random.signed_unit()).collect()
}

/// An index and a batch on the host.
struct Case {
    shape: Shape,
    centroids: Vec<f32>,
    codebooks: Vec<f32>,
    codes: Vec<u8>,
    list_starts: Vec<u32>,
    list_lengths: Vec<u32>,
    queries: Vec<f32>,
    probes: u32,
    probed_lists: Vec<u32>,
    pair_offsets: Vec<u32>,
    row_starts: Vec<u64>,
}

/// The parameters from which a case is made.
#[derive(Clone, Copy)]
struct Make<'a> {
    dim: u32,
    sub_quantizers: u32,
    bits: u32,
    inner_product: bool,
    list_lengths: &'a [u32],
    queries: u32,
    probes: u32,
    /// Largest size of components, and the value that is added to those of queries and centroids.
    size: f32,
    centre: f32,
}

const SMALL: Make<'static> = Make {
    dim: 8,
    sub_quantizers: 4,
    bits: 8,
    inner_product: false,
    list_lengths: &[13, 0, 70, 8, 1],
    queries: 3,
    probes: 4,
    size: 1.0,
    centre: 0.0,
};

impl Make<'_> {
    fn case(self) -> Case {
        let mut random = Random::new(u64::from(self.dim * 4096 + self.sub_quantizers * 16 + self.bits) | 1 << 40);
        let (dim, lists) = (self.dim as usize, self.list_lengths.len());
        let centroids = components(&mut random, lists * dim, self.size, self.centre);
        let codebooks = components(&mut random, dim << self.bits, self.size / 2.0, 0.0);
        let norms = Norms::new(&centroids, &codebooks, dim, self.sub_quantizers as usize);
        let mut list_starts = Vec::new();
        let mut stored_rows = 0;
        for &length in self.list_lengths {
            list_starts.push(stored_rows);
            stored_rows += length.next_multiple_of(8);
        }
        let shape = Shape {
            dim: self.dim,
            sub_quantizers: self.sub_quantizers,
            bits: self.bits,
            lists: lists as u32,
            stored_rows,
            longest_list: self.list_lengths.iter().copied().max().unwrap_or(0),
            inner_product: self.inner_product,
            norms,
        };
        // Codes of padding rows are random as well, so a kernel that reads them writes wrong scores.
        let mut codes: Vec<u8> = (0..stored_rows * shape.code_bytes()).map(|_| random.bits() as u8).collect();
        let used = (self.sub_quantizers * self.bits) % 8;
        if used > 0 {
            codes.chunks_mut(shape.code_bytes() as usize).for_each(|code| *code.last_mut().unwrap() &= (1 << used) - 1);
        }
        let queries = components(&mut random, self.queries as usize * dim, self.size, self.centre);
        let (mut probed_lists, mut pair_offsets, mut row_starts) = (Vec::new(), Vec::new(), vec![3u64]);
        for _ in 0..self.queries {
            // Scores of pairs follow each other with gaps, in another order than the pairs.
            let first = probed_lists.len();
            let begin = random.below(lists.max(1));
            for pair in 0..self.probes as usize {
                let list = (begin + pair) % lists.max(1);
                let none = random.below(5) == 0 || pair >= lists;
                probed_lists.push(if none { NO_ROW } else { list as u32 });
            }
            let mut offsets = vec![0; self.probes as usize];
            let mut end = 5;
            for pair in (0..self.probes as usize).rev() {
                offsets[pair] = end;
                let length = self.list_lengths.get(probed_lists[first + pair] as usize).copied().unwrap_or(0);
                end += length.next_multiple_of(8) + 1;
            }
            pair_offsets.extend(offsets);
            row_starts.push(row_starts[row_starts.len() - 1] + u64::from(end));
        }
        let list_lengths = self.list_lengths.to_vec();
        Case {
            shape,
            centroids,
            codebooks,
            codes,
            list_starts,
            list_lengths,
            queries,
            probes: self.probes,
            probed_lists,
            pair_offsets,
            row_starts,
        }
    }
}

/// The arrays that the kernels wrote.
struct Outcome {
    scores: Vec<f32>,
    errors: Vec<f32>,
    plan: TablePlan,
}

fn limits(shared_bytes: u32) -> Limits {
    Limits {
        device: "test".into(),
        multiprocessors: 2,
        shared_bytes,
        emulated: true,
        products: Products::Warps,
        largest_cluster: 0,
    }
}

const PLENTY: u32 = 227 << 10;

/// Allocates memory with these values; returns it with the place of the values.
fn load<V: NoUninit>(queue: OnStream<'_>, values: &[V]) -> Result<(Memory, PtrMut<V>)> {
    let mut layout = Layout::default();
    let array = layout.array::<V>(values.len());
    let memory = queue.runtime.allocate(layout.bytes())?;
    let to = queue.runtime.scratch(&memory).at(array);
    // SAFETY: the allocation has room for the values.
    unsafe { queue.runtime.copy_to_device(queue.stream, to, values)? };
    Ok((memory, to))
}

impl Case {
    fn queries(&self) -> u32 {
        (self.row_starts.len() - 1) as u32
    }

    fn plan(&self, layout: &mut Layout, terms: Terms, precision: Precision, limits: &Limits) -> Result<TablePlan> {
        TablePlan::new(layout, &self.shape, terms, precision, self.queries(), self.probes, limits)
    }

    /// Rows padded with zeros to the stride.
    fn padded(&self, rows: &[f32]) -> Vec<f32> {
        let (dim, stride) = (self.shape.dim as usize, self.shape.stride() as usize);
        rows.chunks(dim).flat_map(|row| row.iter().copied().chain(std::iter::repeat_n(0.0, stride - dim))).collect()
    }

    fn run(&self, terms: Terms, precision: Precision, shared_bytes: u32, alter: impl Fn(&mut TablePlan)) -> Outcome {
        self.run_on(&Runtime::EMULATOR, terms, precision, &limits(shared_bytes), alter).unwrap()
    }

    fn run_on(
        &self,
        runtime: &Runtime,
        terms: Terms,
        precision: Precision,
        limits: &Limits,
        alter: impl Fn(&mut TablePlan),
    ) -> Result<Outcome> {
        let stream = runtime.stream()?;
        let queue = OnStream { runtime, stream: &stream };
        let mut layout = Layout::default();
        let mut plan = self.plan(&mut layout, terms, precision, limits)?;
        alter(&mut plan);
        let (_centroids, centroids) = load(queue, &self.padded(&self.centroids))?;
        let (_codebooks, codebooks) = load(queue, &self.codebooks)?;
        let (_codes, codes) = load(queue, &self.codes)?;
        let (_list_starts, list_starts) = load(queue, &self.list_starts)?;
        let (_list_lengths, list_lengths) = load(queue, &self.list_lengths)?;
        let (_queries, queries) = load(queue, &self.padded(&self.queries))?;
        let (_probed_lists, probed_lists) = load(queue, &self.probed_lists)?;
        let (_pair_offsets, pair_offsets) = load(queue, &self.pair_offsets)?;
        let (_row_starts, row_starts) = load(queue, &self.row_starts)?;
        let mut kept = Layout::default();
        let kept_at = kept.array::<f32>(self.shape.terms_len(terms));
        let kept = runtime.allocate(kept.bytes())?;
        let scratch = runtime.allocate(layout.bytes())?;
        let len = self.row_starts[self.row_starts.len() - 1] as usize;
        let untouched = f32::from_bits(UNTOUCHED);
        let (_scores, scores) = load(queue, &vec![untouched; len])?;
        let (_errors, errors) = load(queue, &vec![untouched; self.queries() as usize])?;
        let image = Image {
            centroids: centroids.into(),
            codebooks: codebooks.into(),
            codes: codes.into(),
            list_starts: list_starts.into(),
            list_lengths: list_lengths.into(),
            factors: None,
        };
        let what = TableScan {
            queries: queries.into(),
            query_count: self.queries(),
            probes: self.probes,
            probed_lists: probed_lists.into(),
            pair_offsets: pair_offsets.into(),
            row_starts: row_starts.into(),
            scores,
            errors,
        };
        let mut outcome =
            Outcome { scores: vec![0.0; len], errors: vec![0.0; self.queries() as usize], plan: plan.clone() };
        let kept_at = runtime.scratch(&kept).at(kept_at);
        // SAFETY: every array was made for the case's shapes, the scratch for the plan; all live until the copies to
        // the host are complete.
        unsafe {
            enqueue_terms(&queue, &self.shape, &image, terms, kept_at)?;
            enqueue(&queue, &what, &image, kept_at.into(), &plan, runtime.scratch(&scratch))?;
            runtime.copy_to_host(&stream, &mut outcome.scores, scores)?;
            runtime.copy_to_host(&stream, &mut outcome.errors, errors)?;
        }
        Ok(outcome)
    }

    /// The parts c and p of a stored row, whose sum is the row.
    fn row(&self, list: usize, row: u32) -> (&[f32], Vec<f32>) {
        let (dim, bits) = (self.shape.dim as usize, self.shape.bits as usize);
        let sub_dim = dim / self.shape.sub_quantizers as usize;
        let code_bytes = self.shape.code_bytes() as usize;
        let code = &self.codes[(self.list_starts[list] + row) as usize * code_bytes..][..code_bytes];
        let bit = |at: usize| usize::from(code[at / 8]) >> (at % 8) & 1;
        let mut p = Vec::new();
        for m in 0..self.shape.sub_quantizers as usize {
            let number: usize = (0..bits).map(|b| bit(m * bits + b) << b).sum();
            p.extend_from_slice(&self.codebooks[((m << bits) + number) * sub_dim..][..sub_dim]);
        }
        (&self.centroids[list * dim..][..dim], p)
    }

    /// The real value, computed in f64.
    fn real(&self, query: &[f32], reconstruction: impl Iterator<Item = f64>) -> f64 {
        let pairs = query.iter().map(|&x| f64::from(x)).zip(reconstruction);
        if self.shape.inner_product {
            -pairs.map(|(x, y)| x * y).sum::<f64>()
        } else {
            pairs.map(|(x, y)| (x - y) * (x - y)).sum()
        }
    }

    /// Checks every score against the bound, and that nothing else was written. Returns the greatest error, the
    /// greatest bound and the greatest score.
    fn check(&self, outcome: &Outcome, at: &str) -> [f64; 3] {
        let dim = self.shape.dim as usize;
        let mut written = vec![false; outcome.scores.len()];
        let mut greatest = [0.0f64; 3];
        for (q, query) in self.queries.chunks(dim).enumerate() {
            let error = f64::from(outcome.errors[q]);
            assert!(error >= 0.0, "{at}: bound {error}");
            greatest[1] = greatest[1].max(error);
            for pair in 0..self.probes as usize {
                let pair = q * self.probes as usize + pair;
                let list = self.probed_lists[pair];
                if list == NO_ROW {
                    continue;
                }
                let length = self.list_lengths[list as usize];
                for row in 0..length.next_multiple_of(8) {
                    let place = (self.row_starts[q] + u64::from(self.pair_offsets[pair] + row)) as usize;
                    written[place] = true;
                    let score = outcome.scores[place];
                    if row >= length {
                        assert_eq!(score, f32::INFINITY, "{at}: padding");
                        continue;
                    }
                    let (c, p) = self.row(list as usize, row);
                    let exact = self.real(query, c.iter().zip(&p).map(|(&c, &p)| f64::from(c) + f64::from(p)));
                    let canonical = self.real(query, c.iter().zip(&p).map(|(&c, &p)| f64::from(c + p))) as f32;
                    for real in [exact, f64::from(canonical)] {
                        let off = (f64::from(score) - real).abs();
                        assert!(off <= error || error == f64::INFINITY, "{at}: {score} for {real} ± {error}");
                    }
                    greatest[0] = greatest[0].max((f64::from(score) - exact).abs());
                    greatest[2] = greatest[2].max(exact.abs());
                }
            }
        }
        for (place, score) in outcome.scores.iter().enumerate().filter(|&(place, _)| !written[place]) {
            assert_eq!(score.to_bits(), UNTOUCHED, "{at}: score {place} belongs to no pair");
        }
        greatest
    }
}

const ALL_TERMS: [Terms; 3] = [Terms::Rows, Terms::Lists, Terms::None];

/// The kinds of terms that the metric can use.
fn terms_of(inner_product: bool) -> &'static [Terms] {
    if inner_product { &[Terms::None] } else { &ALL_TERMS }
}

#[test]
fn scores_keep_their_bound_for_every_code_and_table() {
    for (sub_quantizers, sub_dim) in [(1, 5), (2, 3), (3, 3), (4, 2), (8, 1), (16, 2), (32, 1)] {
        for bits in 4..=8 {
            for inner_product in [false, true] {
                let dim = sub_quantizers * sub_dim;
                let case = Make { dim, sub_quantizers, bits, inner_product, ..SMALL }.case();
                for &terms in terms_of(inner_product) {
                    let at = format!("M = {sub_quantizers}, {bits} bits, inner product {inner_product}, {terms:?}");
                    let [off, bound, score] = case.check(&case.run(terms, Precision::F32, PLENTY, |_| ()), &at);
                    assert!(bound < 1e-3 * score, "{at}: bound {bound} of scores up to {score}");
                    assert!(off > bound * 1e-4, "{at}: off by {off}, bound {bound}");
                    let outcome = case.run(terms, Precision::F16, PLENTY, |_| ());
                    assert!(outcome.plan.is_half());
                    let [half_off, half_bound, _] = case.check(&outcome, &at);
                    assert!(half_bound < 0.05 * score, "{at}: bound {half_bound} of scores up to {score}");
                    // The f16 part of the bound is necessary, and not much too large.
                    assert!(half_off > bound, "{at}: f16 tables off by {half_off}, f32 bound {bound}");
                    assert!(half_off > half_bound * 1e-3, "{at}: off by {half_off}, bound {half_bound}");
                }
            }
        }
    }
}

/// Code widths for each loader of bytes, and dimensions that are not near a multiple of 32.
#[test]
fn codes_of_every_length() {
    for sub_quantizers in [5, 12, 20, 24, 48, 67] {
        for bits in [5, 8] {
            let dim = 3 * sub_quantizers;
            let case =
                Make { dim, sub_quantizers, bits, list_lengths: &[33, 5], queries: 2, probes: 2, ..SMALL }.case();
            let at = format!("M = {sub_quantizers}, {bits} bits");
            case.check(&case.run(Terms::Rows, Precision::Auto, PLENTY, |_| ()), &at);
        }
    }
}

#[test]
fn components_of_any_size() {
    for (size, centre) in [(1.0, 1000.0), (1e-12, 0.0), (1e-30, 0.0), (1e12, 0.0), (1e19, 0.0), (3e38, 0.0), (0.0, 0.0)]
    {
        for inner_product in [false, true] {
            let case = Make { size, centre, inner_product, queries: 2, list_lengths: &[20, 9], ..SMALL }.case();
            for &terms in terms_of(inner_product) {
                for precision in [Precision::F32, Precision::F16] {
                    let at = format!("{centre} ± {size}, inner product {inner_product}, {terms:?}, {precision:?}");
                    let [_, bound, _] = case.check(&case.run(terms, precision, PLENTY, |_| ()), &at);
                    assert_eq!(bound == f64::INFINITY, size > 1e18, "{at}: bound {bound}");
                }
            }
        }
    }
}

/// Scores do not depend on the chunks of tables, the shape of blocks, or the tiles of queries.
#[test]
fn launches_of_every_shape_give_the_same_scores() {
    for bits in [8, 6] {
        let make = Make { dim: 40, sub_quantizers: 40, bits, list_lengths: &[300, 17, 0, 130], queries: 5, ..SMALL };
        for inner_product in [false, true] {
            let case = Make { inner_product, ..make }.case();
            for &terms in terms_of(inner_product) {
                let at = format!("{bits} bits, inner product {inner_product}, {terms:?}");
                let whole = case.run(terms, Precision::F32, PLENTY, |_| ());
                case.check(&whole, &at);
                assert_eq!(whole.plan.chunk, 40, "{at}");
                let same = |other: Outcome, what: &str| {
                    let bits = |scores: &[f32]| scores.iter().map(|score| score.to_bits()).collect::<Vec<_>>();
                    assert_eq!(bits(&other.scores), bits(&whole.scores), "{at}: {what}");
                    assert_eq!(other.errors, whole.errors, "{at}: {what}");
                };
                for sub_tables in [1, 3, 5, 17, 33] {
                    let shared_bytes = table_scan::shared_bytes(sub_tables << bits, 4);
                    let cut = case.run(terms, Precision::F32, shared_bytes, |_| ());
                    assert!(cut.plan.chunk <= sub_tables && cut.plan.chunk > 0, "{at}: {:?}", cut.plan);
                    same(cut, "chunks");
                }
                same(case.run(terms, Precision::F32, PLENTY, |plan| plan.query_tile = 2), "tiles of queries");
                same(case.run(terms, Precision::F32, PLENTY, |plan| plan.threads = 1024), "threads");
                for segments in [1, 3, 9] {
                    same(case.run(terms, Precision::F32, PLENTY, |plan| plan.segments = segments), "segments");
                }
                if terms == Terms::Rows || inner_product {
                    for pairs in [1, 3, 4, 64] {
                        same(case.run(terms, Precision::F32, PLENTY, |plan| plan.block_pairs = pairs), "pairs a block");
                    }
                }
            }
        }
    }
}

/// A regression test: tables that exceed shared memory even in f16.
#[test]
fn thousands_of_sub_quantizers() {
    let make = Make { dim: 2048, sub_quantizers: 2048, list_lengths: &[9, 2], queries: 1, probes: 2, ..SMALL };
    for inner_product in [false, true] {
        let case = Make { inner_product, ..make }.case();
        for &terms in terms_of(inner_product) {
            for (precision, chunk) in [(Precision::Auto, 32), (Precision::F16, 80)] {
                let outcome = case.run(terms, precision, 48 << 10, |_| ());
                assert_eq!(outcome.plan.chunk, chunk);
                let [_, bound, score] = case.check(&outcome, &format!("{terms:?}, {precision:?}"));
                // Two thousand additions, with inner products that cancel: the bound grows with the sizes of the terms.
                assert!(bound < if outcome.plan.is_half() { 0.1 } else { 0.01 } * score, "{bound} of {score}");
            }
        }
    }
}

#[test]
fn tables_are_cut_by_size() {
    let shape = |sub_quantizers, bits| Make { dim: sub_quantizers, sub_quantizers, bits, ..SMALL }.case().shape;
    let choose = |shape: &Shape, precision, shared_bytes| {
        choose_kernel(shape, precision, &limits(shared_bytes))
            .map(|(key, chunk)| (ScanTables::kernel(key).name(), chunk))
            .unwrap()
    };
    let auto = |sub_quantizers, bits, shared_bytes| choose(&shape(sub_quantizers, bits), Precision::Auto, shared_bytes);
    assert_eq!(auto(32, 8, PLENTY), ("table_scan_bytes16_f32", 32));
    assert_eq!(auto(24, 8, PLENTY), ("table_scan_bytes8_f32", 24));
    assert_eq!(auto(20, 8, PLENTY), ("table_scan_bytes4_f32", 20));
    assert_eq!(auto(9, 8, PLENTY), ("table_scan_packed_f32", 9));
    assert_eq!(auto(64, 4, PLENTY), ("table_scan_packed_f32", 64));
    // With 8 bits, up to 226 sub-quantizers fit in f32, up to 452 in f16.
    assert_eq!(auto(224, 8, PLENTY), ("table_scan_bytes16_f32", 224));
    assert_eq!(auto(240, 8, PLENTY), ("table_scan_bytes16_f16", 240));
    assert_eq!(auto(480, 8, PLENTY), ("table_scan_bytes16_f32", 224));
    assert_eq!(auto(64, 8, 48 << 10), ("table_scan_bytes16_f16", 64));
    assert_eq!(auto(454, 7, PLENTY), ("table_scan_packed_f16", 454));
    assert_eq!(auto(1000, 7, PLENTY), ("table_scan_packed_f32", 448));
    // Too little shared memory for sixteen, eight or four tables at the same time.
    let tight = |sub_tables: u32| auto(64, 8, table_scan::shared_bytes(sub_tables << 8, 4));
    assert_eq!(tight(15), ("table_scan_bytes8_f32", 8));
    assert_eq!(tight(7), ("table_scan_bytes4_f32", 4));
    assert_eq!(tight(3), ("table_scan_packed_f32", 3));
    assert_eq!(tight(1), ("table_scan_packed_f32", 1));
    let error =
        choose_kernel(&shape(64, 8), Precision::F32, &limits(table_scan::shared_bytes(256, 4) - 1)).unwrap_err();
    assert!(matches!(error, Error::LaunchLimit { asked: 2048, limit: 2047, .. }), "{error}");
}

#[test]
fn few_queries_are_spread_and_many_are_not() {
    let shape = Shape { longest_list: 5000, ..Make { dim: 16, sub_quantizers: 16, ..SMALL }.case().shape };
    let h200 = Limits {
        emulated: false,
        shared_bytes: PLENTY,
        device: "NVIDIA H200".into(),
        multiprocessors: 132,
        products: Products::Groups,
        largest_cluster: 16,
    };
    let plan = |queries, probes| {
        TablePlan::new(&mut Layout::default(), &shape, Terms::Rows, Precision::Auto, queries, probes, &h200).unwrap()
    };
    let one = plan(1, 8);
    assert_eq!((one.block_pairs, one.query_tile), (1, 1));
    assert!(one.segments >= 16, "{one:?}");
    let many = plan(100_000, 32);
    assert_eq!((many.block_pairs, many.segments), (32, 1));
    // The tables of a query take 16 KiB.
    assert!(many.query_tile <= 16_384 && many.query_tile > 14_000, "{many:?}");
    let most = plan(u32::MAX, 2000);
    assert_eq!(most.block_pairs, MAX_PAIRS);
    let by_pairs = TablePlan::new(&mut Layout::default(), &shape, Terms::None, Precision::Auto, 1_000_000, 4096, &h200);
    assert!(u64::from(by_pairs.unwrap().query_tile) * 4096 <= i32::MAX as u64);
}

#[test]
fn nothing_to_scan() {
    for make in [
        Make { queries: 0, ..SMALL },
        Make { probes: 0, ..SMALL },
        Make { list_lengths: &[], ..SMALL },
        Make { list_lengths: &[0, 0, 0], ..SMALL },
    ] {
        let case = make.case();
        for terms in ALL_TERMS {
            case.check(&case.run(terms, Precision::Auto, PLENTY, |_| ()), "nothing");
        }
    }
}

#[test]
fn terms_are_chosen_by_their_bytes() {
    let shape = Shape { lists: 10, stored_rows: 1000, ..Make { sub_quantizers: 4, bits: 4, ..SMALL }.case().shape };
    assert_eq!([shape.terms_len(Terms::Rows), shape.terms_len(Terms::Lists)], [1000, 640]);
    assert_eq!(shape.choose_terms(4000), Terms::Rows);
    assert_eq!(shape.choose_terms(3999), Terms::Lists);
    assert_eq!(shape.choose_terms(2559), Terms::None);
    assert_eq!(Shape { inner_product: true, ..shape }.choose_terms(u64::MAX), Terms::None);
}

#[test]
fn norms_bound_every_code() {
    let case = Make { dim: 6, sub_quantizers: 3, bits: 4, ..SMALL }.case();
    let norm = |row: &[f32]| row.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    let most = |rows: &[f32], width: usize| rows.chunks(width).map(norm).fold(0.0, f64::max);
    let Norms { centroid, codeword, sub_codeword } = case.shape.norms;
    let books: Vec<f64> = case.codebooks.chunks(16 * 2).map(|book| most(book, 2)).collect();
    let whole = (books[0].powi(2) + books[1].powi(2) + books[2].powi(2)).sqrt();
    let greatest = books.iter().copied().fold(0.0, f64::max);
    for (bound, real) in [(centroid, most(&case.centroids, 6)), (codeword, whole), (sub_codeword, greatest)] {
        assert!(bound >= real && bound < real * 1.00001, "{bound} for {real}");
    }
}
