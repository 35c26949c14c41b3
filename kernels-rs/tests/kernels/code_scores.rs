//! Scores of codes of one byte and of bits ([`PrepareCodeQueries`], [`PairTerms`] and the list scans): each is within
//! its bound of the distance of the decoded vector, which is summed here in f64 by a plain loop.

use cuda_std::emulator::Buffer;
use cuda_std::global::U32x4;
use cuda_std::launch::LaunchConfig;
use test_random::Random;
use warpann_kernels::NO_ROW;
use warpann_kernels::ivf::code_bounds::MeasureCodes;
use warpann_kernels::ivf::code_queries::{PairTerms, PrepareCodeQueries};
use warpann_kernels::ivf::encoding::{OperandParts, StoredRows};
use warpann_kernels::ivf::encoding::{bits, scalar8};
use warpann_kernels::ivf::list_scan::{RowScan, ScanLists, Tile};
use warpann_kernels::product::instruction::Instruction;
use warpann_kernels::product::metric::Metric;

use crate::lists::METRICS;

/// Rows of lists start at multiples of this.
const PAD: u32 = 8;
/// Largest number of rows of an item.
const ITEM_ROWS: u32 = 512;

/// The sizes of queries, steps, least values and centroids.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Numbers {
    Ordinary,
    /// Some steps are zero, some components of queries are large.
    Uneven,
    /// Components of about this power of two.
    Scaled(i32),
    /// All queries are zero.
    ZeroQueries,
    /// All steps are zero.
    ZeroSteps,
}

/// The encoding of a case.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Of {
    /// A byte for each component of residuals, and a step for each component.
    Residuals,
    /// The same of vectors.
    Vectors,
    /// This number of bits for each component of residuals, and a step for each row.
    Bits(u32),
}

impl Of {
    /// Bits of a code with a step for each row.
    fn bits(self) -> Option<u32> {
        if let Of::Bits(bits) = self { Some(bits) } else { None }
    }
}

/// An index of codes, and queries with probes.
struct Case {
    of: Of,
    /// Bits of a code with a step for each row; `None`: a byte, and a step for each component.
    bits: Option<u32>,
    metric: Metric,
    numbers: Numbers,
    dim: usize,
    centre: Option<Vec<f32>>,
    /// Least values and steps, padded.
    tables: Vec<f32>,
    centroids: Vec<f32>,
    starts: Vec<u32>,
    lengths: Vec<u32>,
    /// The list of each row of the storage.
    row_lists: Vec<u32>,
    /// Codes, one a byte, `dim` bytes a row.
    codes: Vec<u8>,
    /// The step of each row; only with `bits`.
    row_steps: Vec<f32>,
    queries: Vec<f32>,
    probes: usize,
    probed_lists: Vec<u32>,
}

impl Case {
    fn random(
        random: &mut Random,
        of_codes: Of,
        metric: Metric,
        numbers: Numbers,
        (dim, queries): (usize, usize),
    ) -> Case {
        let (bits, stride) = (of_codes.bits(), dim.next_multiple_of(4));
        let unit = if let Numbers::Scaled(power) = numbers { 2f32.powi(power) } else { 1.0 };
        let padded = |values: Vec<f32>| {
            let mut rows = Vec::new();
            for row in values.chunks(dim) {
                rows.extend_from_slice(row);
                rows.resize(rows.len().next_multiple_of(stride), 0.0);
            }
            rows
        };
        // A warp has the terms of eight probes.
        let probes = if dim % 2 == 0 { 10 } else { 3 };
        let more: &[u32] = if probes > 3 { &[9, 1, 16, 0, 3, 22, 8] } else { &[] };
        // With 390, a warp has more strips of an item than stages.
        let long = if dim == 128 && bits.is_some() { 390 } else { 131 };
        let (lengths, mut starts, mut end) = ([&[37u32, 0, 5, long], more].concat(), Vec::new(), 0);
        for length in &lengths {
            starts.push(end);
            end += length.next_multiple_of(PAD);
        }
        // Scans copy whole tiles.
        let rows = end as usize + 128;
        let mut row_lists = vec![NO_ROW; rows];
        for (list, (start, length)) in (0..).zip(starts.iter().zip(&lengths)) {
            row_lists[*start as usize..][..*length as usize].fill(list);
        }
        let of = |random: &mut Random, count: usize, size: f32| -> Vec<f32> {
            (0..count).map(|_| random.signed_unit() * size * unit).collect()
        };
        let mut steps: Vec<f32> = of(random, dim, 0.03).iter().map(|step| step.abs()).collect();
        let row_steps = if bits.is_some() { of(random, rows, 0.03) } else { vec![0.0; rows] };
        let mut row_steps: Vec<f32> = row_steps.iter().map(|step| step.abs()).collect();
        let mut of_queries = of(random, queries * dim, 6.0);
        match numbers {
            Numbers::Uneven => {
                steps.iter_mut().step_by(3).for_each(|step| *step = 0.0);
                row_steps.iter_mut().step_by(3).for_each(|step| *step = 0.0);
                of_queries.iter_mut().step_by(7).for_each(|x| *x *= 1e4);
            }
            Numbers::ZeroQueries => of_queries.fill(0.0),
            Numbers::ZeroSteps => {
                steps.fill(0.0);
                row_steps.fill(0.0);
            }
            Numbers::Ordinary | Numbers::Scaled(_) => {}
        }
        if matches!(metric, Metric::Cosine) {
            for row in of_queries.chunks_exact_mut(dim) {
                let norm = row.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt();
                if norm > 0.0 {
                    row.iter_mut().for_each(|x| *x = (f64::from(*x) / norm) as f32);
                }
            }
        }
        let mut codes: Vec<u8> = (0..rows * dim).map(|_| random.bits() as u8).collect();
        // Rows of extremes.
        for (row, code) in [0, 255, 128].into_iter().enumerate() {
            codes[row * dim..][..dim].fill(code);
        }
        if let Some(bits) = bits {
            codes.iter_mut().for_each(|code| *code >>= 8 - bits);
        }
        let least = of(random, dim, 4.0);
        let stride_of = |value: f32| vec![value; stride];
        // Queries see one step of 1 for codes of bits, whose code 128 of a byte is the centroid.
        let tables = match bits {
            None => [padded(least), padded(steps)].concat(),
            Some(_) => [stride_of(-128.0), stride_of(1.0)].concat(),
        };
        let centre = matches!(metric, Metric::L2).then(|| padded(of(random, dim, 3.0)));
        let mut probed_lists = Vec::new();
        for query in 0..queries {
            let mut order: Vec<u32> = (0..lengths.len() as u32).collect();
            random.shuffle(&mut order);
            order[0] = if query % 5 == 4 { NO_ROW } else { order[0] };
            probed_lists.extend_from_slice(&order[..probes]);
        }
        Case {
            of: of_codes,
            bits,
            metric,
            numbers,
            dim,
            centre,
            tables,
            centroids: padded(of(random, lengths.len() * dim, 5.0)),
            starts,
            lengths,
            row_lists,
            codes,
            row_steps,
            queries: padded(of_queries),
            probes,
            probed_lists,
        }
    }

    fn stride(&self) -> usize {
        self.dim.next_multiple_of(4)
    }

    fn query_count(&self) -> usize {
        self.queries.len() / self.stride()
    }

    /// The decoded vector of a row, by the definition of the encoding.
    fn decoded(&self, row: usize) -> Vec<f32> {
        let (least, steps) = self.tables.split_at(self.stride());
        let centroid = &self.centroids[self.row_lists[row] as usize * self.stride()..];
        let code = |i: usize| f32::from(self.codes[row * self.dim + i]);
        let component = |i: usize| match self.bits {
            None if self.of == Of::Vectors => least[i] + code(i) * steps[i],
            None => centroid[i] + (least[i] + code(i) * steps[i]),
            Some(8) => centroid[i] + self.row_steps[row] * (code(i) - 128.0),
            Some(bits) => centroid[i] + self.row_steps[row] * (2.0 * code(i) + 1.0 - 2f32.powi(bits as i32)),
        };
        (0..self.dim).map(component).collect()
    }

    /// The scans of these codes.
    fn scan(&self) -> RowScan {
        if self.bits.is_some() { bits::SCAN } else { scalar8::SCAN }
    }

    /// Bytes of a plane of a query, and bytes of a row.
    fn bytes(&self) -> [usize; 2] {
        match self.bits {
            None => [self.dim.next_multiple_of(16); 2],
            Some(bits) => [self.dim.next_multiple_of(32), bits::row_bytes(self.dim, bits)],
        }
    }

    /// The rows as the kernels read them.
    fn rows(&self) -> Vec<u8> {
        let [_, row_bytes] = self.bytes();
        let mut rows = Vec::new();
        for (codes, step) in self.codes.chunks(self.dim).zip(&self.row_steps) {
            let Some(bits) = self.bits else {
                rows.extend(codes.iter().map(|&code| (i32::from(code) - 128) as i8 as u8));
                rows.resize(rows.len().next_multiple_of(row_bytes), 0);
                continue;
            };
            rows.extend_from_slice(&step.to_le_bytes());
            // The rest, which no kernel reads.
            rows.extend_from_slice(&f32::NAN.to_le_bytes());
            for group in codes.chunks(32) {
                // The bits of a code from the highest on, whose first one is 1 for negative levels, are cut into
                // fields.
                let mut left = bits;
                for width in [8, 4, 2, 1].into_iter().filter(|width| bits & width != 0) {
                    left -= width;
                    let mut words = vec![0u32; width as usize];
                    for (i, &code) in (0..).zip(group) {
                        let field = u32::from(code ^ 1 << (bits - 1)) >> left & ((1 << width) - 1);
                        let before = width * (i / 4);
                        words[(before / 8) as usize] |= field << (8 * (i % 4) + before % 8);
                    }
                    rows.extend(words.iter().flat_map(|word| word.to_le_bytes()));
                }
            }
        }
        rows
    }

    /// The distance of a query and a row, less is better, and the scale of its summands.
    fn distance(&self, query: usize, row: usize) -> (f64, f64) {
        let (mut product, mut of_x, mut of_r, mut square) = (0.0, 0.0, 0.0, 0.0);
        for (x, r) in self.queries[query * self.stride()..].iter().zip(self.decoded(row)) {
            let (x, r) = (f64::from(*x), f64::from(r));
            product += x * r;
            of_x += x * x;
            of_r += r * r;
            square += (x - r) * (x - r);
        }
        match self.metric {
            Metric::L2 => (square, of_x + of_r),
            Metric::InnerProduct => (-product, (of_x * of_r).sqrt()),
            Metric::Cosine if of_x * of_r == 0.0 => (0.0, 1.0),
            Metric::Cosine => (-product / (of_x * of_r).sqrt(), 1.0),
        }
    }
}

/// The data of queries and rows that the kernels compute before a scan.
struct Prepared {
    rows: Buffer<u8>,
    values: Buffer<f32>,
    planes: Buffer<u8>,
    factors: Vec<f32>,
    errors: Vec<f32>,
    shifts: Vec<f32>,
    /// Least values, steps, and zeros.
    tables: Buffer<f32>,
    centroids: Buffer<f32>,
    /// The terms of the queries, if codes are of vectors.
    terms: Option<Buffer<f32>>,
    centre: Option<Buffer<f32>>,
    queries: Buffer<f32>,
}

impl Prepared {
    fn stored(&self, case: &Case) -> StoredRows {
        let zeros = self.tables.as_ptr().skip(2 * case.stride());
        let (centroids, centroids_apart) = match case.of {
            Of::Vectors => (zeros, 0),
            Of::Residuals | Of::Bits(_) => (self.centroids.as_ptr(), case.stride() as u32),
        };
        StoredRows {
            rows: self.rows.as_ptr(),
            code_bytes: case.bytes()[1] as u32,
            bits: case.bits.unwrap_or(0),
            width: 0,
            dim: case.dim as u32,
            codebooks: self.tables.as_ptr(),
            centroids,
            centroids_apart,
        }
    }

    /// Measures the rows, and prepares the queries.
    fn of(case: &Case) -> Prepared {
        let ([plane_bytes, _], count, queries) = (case.bytes(), case.row_lists.len(), case.query_count());
        let mut prepared = Prepared {
            rows: Buffer::from_slice(&case.rows()),
            values: Buffer::new_poisoned(count),
            planes: Buffer::new_poisoned(2 * queries * plane_bytes),
            factors: Vec::new(),
            errors: Vec::new(),
            shifts: Vec::new(),
            tables: Buffer::from_slice(&[&case.tables[..], &vec![0.0; case.stride()]].concat()),
            terms: (case.of == Of::Vectors).then(|| Buffer::new_poisoned(queries)),
            centroids: Buffer::from_slice(&case.centroids),
            centre: case.centre.as_ref().map(|centre| Buffer::from_slice(centre)),
            queries: Buffer::from_slice(&case.queries),
        };
        let (row_lists, greatest) = (Buffer::from_slice(&case.row_lists), Buffer::from_slice(&[0u32]));
        let mut bounds = Buffer::from_slice(&[0u32; 6]);
        let cosines = matches!(case.metric, Metric::Cosine);
        let launch = MeasureCodes {
            stored: prepared.stored(case),
            row_lists: row_lists.as_ptr(),
            row_count: count as u32,
            centre: prepared.centre.as_ref().map(|centre| centre.as_ptr()),
            metric: case.metric,
            row_factors: cosines.into(),
            greatest: greatest.as_ptr(),
            parts: OperandParts::default(),
            values: prepared.values.as_mut_ptr(),
            bounds: bounds.as_mut_ptr().take(2),
            greatest_factor: bounds.as_mut_ptr().skip(4).take(1),
            code_norm: bounds.as_mut_ptr().skip(5),
        };
        let measuring = if case.bits.is_some() { bits::measuring() } else { scalar8::measuring() };
        // SAFETY: the buffers are as long as the fields say.
        unsafe { crate::launch(measuring, launch.config(), launch) };
        let floats = |len: usize| Buffer::<f32>::new_poisoned(len);
        let (mut factors, mut errors, mut shifts) = (floats(queries), floats(queries), floats(queries));
        let launch = PrepareCodeQueries {
            rows: prepared.queries.as_ptr(),
            count: queries as u32,
            stored: prepared.stored(case),
            plane_bytes: plane_bytes as u32,
            centre: prepared.centre.as_ref().map(|centre| centre.as_ptr()),
            metric: if cosines { Metric::InnerProduct } else { case.metric },
            cosines: cosines.into(),
            base_bounds: bounds.as_ptr().cast(),
            planes: prepared.planes.as_mut_ptr(),
            factors: factors.as_mut_ptr(),
            errors: errors.as_mut_ptr(),
            shifts: shifts.as_mut_ptr(),
            terms: prepared.terms.as_mut().map(|terms| terms.as_mut_ptr()),
        };
        // SAFETY: as above.
        unsafe { crate::launch(&PrepareCodeQueries::KERNEL, launch.config(), launch) };
        (prepared.factors, prepared.errors, prepared.shifts) = (factors.to_vec(), errors.to_vec(), shifts.to_vec());
        prepared
    }
}

/// Pairs in the order of lists, and items of at most `tile` of them.
struct Pairs {
    /// (query, probe, list), in the order of places.
    all: Vec<(usize, usize, u32)>,
    items: Vec<U32x4>,
    slots: Vec<u32>,
    first_pairs: Vec<u32>,
}

impl Pairs {
    fn of(case: &Case, tile: usize) -> Pairs {
        let mut pairs = Pairs {
            all: Vec::new(),
            items: Vec::new(),
            slots: vec![0; case.probed_lists.len()],
            first_pairs: Vec::new(),
        };
        for list in 0..case.lengths.len() as u32 {
            let first = pairs.all.len();
            pairs.first_pairs.push(first as u32);
            if case.lengths[list as usize] == 0 {
                continue;
            }
            for (at, _) in case.probed_lists.iter().enumerate().filter(|(_, probed)| **probed == list) {
                pairs.slots[at] = (pairs.all.len() - first) as u32;
                pairs.all.push((at / case.probes, at % case.probes, list));
            }
            for place in (first..pairs.all.len()).step_by(tile) {
                let count = (pairs.all.len() - place).min(tile) as u32;
                let rows = (0..case.lengths[list as usize]).step_by(ITEM_ROWS as usize);
                pairs.items.extend(rows.map(|row| U32x4([list, place as u32, count, row])));
            }
        }
        pairs
    }
}

/// The terms of the pairs, by a launch.
fn terms(case: &Case, prepared: &Prepared, pairs: &Pairs) -> Buffer<f32> {
    let probed = Buffer::from_slice(&case.probed_lists);
    let [lengths, slots, first_pairs] =
        [&case.lengths, &pairs.slots, &pairs.first_pairs].map(|values| Buffer::from_slice(values));
    let mut terms = Buffer::<f32>::new_poisoned(pairs.all.len());
    let launch = PairTerms {
        rows: prepared.queries.as_ptr(),
        stored: prepared.stored(case),
        centre: prepared.centre.as_ref().map(|centre| centre.as_ptr()),
        metric: if matches!(case.metric, Metric::L2) { Metric::L2 } else { Metric::InnerProduct },
        probed_lists: probed.as_ptr(),
        query_count: case.query_count() as u32,
        probes: case.probes as u32,
        first_probe: 0,
        end_probe: case.probes as u32,
        lengths: lengths.as_ptr(),
        slots: Some(slots.as_ptr()),
        first_pairs: first_pairs.as_ptr(),
        terms: terms.as_mut_ptr(),
    };
    // SAFETY: the buffers are as long as the fields say; each pair with vectors has a place.
    unsafe { crate::launch(&PairTerms::KERNEL, launch.config(), launch) };
    terms
}

/// Scans all pairs with the kernel of a tile, and checks every score; with strips of rows also the scores that rows
/// share. Returns the greatest share of a bound that an error takes, and the greatest bound in parts of the scale of
/// its distance.
fn check(case: &Case, by: (Instruction, Tile)) -> (f64, f64) {
    let [plane_bytes, code_bytes] = case.bytes().map(|bytes| bytes as u32);
    let strips = case.scan().strips.filter(|_| by.1 == Tile::Of16);
    if strips.and_then(|strips| strips.room(code_bytes, plane_bytes)).is_some() {
        check_scores(case, by, true);
    }
    check_scores(case, by, false)
}

/// Rows r, r + 8, r + 16 and r + 24 of 32 rows of a list have the least of their scores if scores are `shared`.
fn check_scores(case: &Case, (instruction, tile): (Instruction, Tile), shared: bool) -> (f64, f64) {
    let Case { of, metric, numbers, dim, .. } = case;
    let what = format!("{of:?}, {metric:?}, {numbers:?}, dim {dim}, {instruction:?} {tile:?}");
    let prepared = Prepared::of(case);
    let pairs = Pairs::of(case, case.scan().queries(tile) as usize);
    let of_pairs = prepared.terms.is_none().then(|| terms(case, &prepared, &pairs));
    let terms = of_pairs.as_ref().or(prepared.terms.as_ref()).expect("one of both");
    let appends = tile == Tile::Append;
    let capacity = case.row_lists.len() * case.probes;
    // Where each probe's scores start in the row of its query.
    let offset = |query: usize, probe: usize| -> u32 {
        let lists = &case.probed_lists[query * case.probes..][..probe];
        let scores = |length: &u32| if shared { length.div_ceil(4 * PAD) * PAD } else { length.next_multiple_of(PAD) };
        lists.iter().filter_map(|&list| case.lengths.get(list as usize)).map(scores).sum()
    };
    // A threshold that about half of the scores exceed.
    let threshold = |query: usize| {
        let all = pairs.all.iter().filter(|(of, _, _)| *of == query);
        let rows = all.flat_map(|&(_, _, list)| (0..case.lengths[list as usize]).map(move |i| (list, i)));
        let mut all: Vec<f64> =
            rows.map(|(list, i)| case.distance(query, (case.starts[list as usize] + i) as usize).0).collect();
        all.sort_by(f64::total_cmp);
        (all.get(all.len() / 2).copied().unwrap_or(0.0) - f64::from(prepared.shifts[query])) as f32
    };
    let grouped: Vec<U32x4> = pairs
        .all
        .iter()
        .map(|&(query, probe, _)| {
            let (factor, offset) = (prepared.factors[query].to_bits(), offset(query, probe));
            let start = query as u32 * capacity as u32 + offset;
            let record = if appends {
                [query as u32, offset, threshold(query).to_bits(), factor]
            } else {
                [query as u32, start, 0, factor]
            };
            U32x4(record)
        })
        .collect();
    let (items, grouped_at) = (Buffer::from_slice(&pairs.items), Buffer::from_slice(&grouped));
    let item_count = Buffer::from_slice(&[pairs.items.len() as u32]);
    let (starts, lengths) = (Buffer::from_slice(&case.starts), Buffer::from_slice(&case.lengths));
    let mut scores = Buffer::from_slice(&vec![f32::NAN; case.query_count() * capacity]);
    let mut places = Buffer::from_slice(&vec![NO_ROW; case.query_count() * capacity]);
    let mut counts = Buffer::from_slice(&vec![0u32; case.query_count()]);
    let launch = ScanLists {
        queries: prepared.planes.as_ptr().cast(),
        stride: case.bytes()[0] as u32 / 2,
        items: items.as_ptr(),
        item_count: Some(item_count.as_ptr()),
        item_rows: ITEM_ROWS,
        grouped: grouped_at.as_ptr(),
        terms: terms.as_ptr(),
        terms_of_queries: prepared.terms.is_some().into(),
        list_starts: starts.as_ptr(),
        lengths: lengths.as_ptr(),
        values: prepared.values.as_ptr(),
        row_factors: matches!(case.metric, Metric::Cosine).into(),
        shared_scores: shared.into(),
        scores: scores.as_mut_ptr(),
        places: places.as_mut_ptr(),
        counts: counts.as_mut_ptr(),
        capacity: capacity as u32,
        base: prepared.rows.as_ptr().cast(),
        stored: prepared.stored(case),
        ..ScanLists::default()
    };
    let (kernel, config): (_, LaunchConfig) =
        case.scan().kernel_and_config(&launch, (instruction, tile), pairs.items.len() as u64, 2);
    // SAFETY: the buffers are as long as the fields say, and the storage ends with a whole tile.
    unsafe { crate::launch(kernel, config, launch) };

    let (scores, places, counts) = (scores.to_vec(), places.to_vec(), counts.to_vec());
    let (mut share, mut width) = (0f64, 0f64);
    for &(query, probe, list) in &pairs.all {
        let (error, shift) = (f64::from(prepared.errors[query]), f64::from(prepared.shifts[query]));
        let (start, length) = (case.starts[list as usize], case.lengths[list as usize]);
        for i in (0..length).filter(|i| !shared || i % 32 < 8) {
            let all = (i..length).step_by(8).take(if shared { 4 } else { 1 });
            let distances = all.map(|i| case.distance(query, (start + i) as usize));
            let (distance, scale) = distances.min_by(|a, b| a.0.total_cmp(&b.0)).expect("at least one row");
            let at = query * capacity;
            let place = offset(query, probe) + if shared { i / 32 * 8 + i % 8 } else { i };
            let score = if appends {
                let found = &places[at..][..counts[query] as usize];
                let limit = f64::from(threshold(query));
                match found.iter().position(|&found| found == place) {
                    Some(found) => scores[at + found],
                    None => {
                        let may_be_left_out = error == f64::INFINITY || distance + error >= limit + shift;
                        assert!(may_be_left_out, "{what}: {distance} is left out");
                        continue;
                    }
                }
            } else {
                scores[at + place as usize]
            };
            if error < f64::INFINITY {
                let off = (f64::from(score) + shift - distance).abs();
                assert!(off <= error, "{what}: query {query}, row {i} of list {list}: {off:e} above {error:e}");
                share = share.max(off / error);
                width = width.max(error / scale);
            }
        }
    }
    (share, width)
}

const TILES: [(Instruction, Tile); 5] = [
    (Instruction::MmaSync, Tile::Of16),
    (Instruction::MmaSync, Tile::Of64),
    (Instruction::MmaSync, Tile::Append),
    (Instruction::Wgmma, Tile::Of64),
    (Instruction::Wgmma, Tile::Append),
];

#[test]
fn scores_are_within_bounds_that_are_narrow() {
    let [mut of_residuals, mut of_vectors, mut of_bits] = [46, 49, 48].map(Random::new);
    for (dim, queries) in [(1, 3), (3, 20), (20, 70), (128, 7), (133, 9), (400, 5)] {
        for metric in METRICS {
            let bits = 1 + of_bits.below(8) as u32;
            for (of, random) in
                [(Of::Residuals, &mut of_residuals), (Of::Vectors, &mut of_vectors), (Of::Bits(bits), &mut of_bits)]
            {
                let case = Case::random(random, of, metric, Numbers::Ordinary, (dim, queries));
                for tile in TILES {
                    let (share, width) = check(&case, tile);
                    assert!(share > 0.0 && width < 1e-3, "{of:?}, dim {dim}, {metric:?}: {share}, {width}");
                }
            }
        }
    }
}

#[test]
fn scores_of_unusual_numbers_are_within_their_bounds() {
    let mut random = Random::new(47);
    let scales = [-140, -100, -60, -20, 20, 55, 61, 66, 100].map(Numbers::Scaled);
    for numbers in [Numbers::Uneven, Numbers::ZeroQueries, Numbers::ZeroSteps].into_iter().chain(scales) {
        for metric in METRICS {
            for of in [Of::Residuals, Of::Vectors, Of::Bits(1), Of::Bits(5), Of::Bits(8)] {
                let case = Case::random(&mut random, of, metric, numbers, (21, 6));
                let (_, width) = check(&case, (Instruction::MmaSync, Tile::Of16));
                check(&case, (Instruction::MmaSync, Tile::Append));
                if let (Numbers::Scaled(-20..=55), Metric::L2) = (numbers, metric) {
                    assert!(width > 0.0 && width < 1e-3, "{of:?}, {numbers:?}: {width}");
                }
            }
        }
    }
}
