//! Inverted files of small whole numbers, whose distances are exact in any order of the sums, for the tests of
//! re-ranking.

use test_random::Random;
use warpann_kernels::NO_ROW;
use warpann_kernels::product::element::RowKey;
use warpann_kernels::product::metric::Metric;

/// The three metrics: those of products, and cosine.
pub const METRICS: [Metric; 3] = [Metric::L2, Metric::InnerProduct, Metric::Cosine];

/// The distance of two vectors by its definition.
pub fn distance(metric: Metric, x: &[f32], y: &[f32]) -> f32 {
    let sum = |of: &dyn Fn(f64, f64) -> f64| x.iter().zip(y).map(|(&x, &y)| of(x.into(), y.into())).sum::<f64>();
    let product = sum(&|x, y| x * y);
    let squares = sum(&|x, _| x * x) * sum(&|_, y| y * y);
    let distance = match metric {
        Metric::L2 => sum(&|x, y| (x - y) * (x - y)),
        Metric::InnerProduct => product,
        Metric::Cosine if squares == 0.0 => 0.0,
        Metric::Cosine => product / squares.sqrt(),
    };
    distance as f32 + 0.0
}

/// A distance as a number of which less is better, and back.
pub fn badness(metric: Metric, distance: f32) -> f32 {
    if matches!(metric, Metric::L2) { distance } else { 0.0 - distance }
}

/// The distance of a slot without a neighbour.
pub fn worst(metric: Metric) -> f32 {
    if matches!(metric, Metric::L2) { f32::INFINITY } else { f32::NEG_INFINITY }
}

/// Rows of whole numbers as elements of the type; of bits, 0 and 1, eight in a byte.
pub fn stored(key: impl Into<RowKey>, values: &[f32]) -> Vec<u8> {
    // Whole numbers up to 8 have at most three significant bits.
    let half = |x: f32| match x.to_bits() {
        bits if bits << 1 == 0 => 0,
        bits => (((bits & 0x7fff_ffff) >> 13) - (112 << 10)) as u16 | (bits >> 16) as u16 & 0x8000,
    };
    match key.into() {
        RowKey::F32 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
        RowKey::F16 => values.iter().flat_map(|&x| half(x).to_le_bytes()).collect(),
        RowKey::Bf16 => values.iter().flat_map(|x| ((x.to_bits() >> 16) as u16).to_le_bytes()).collect(),
        RowKey::U8 => values.iter().map(|&x| x as u8).collect(),
        RowKey::I8 => values.iter().map(|&x| (x as i8).cast_unsigned()).collect(),
        RowKey::Bits => values.chunks(8).map(|eight| eight.iter().fold(0, |byte, &x| byte << 1 | x as u8)).collect(),
    }
}

/// Number of units that `values` numbers of a row take: components, or groups of eight bits.
pub fn units(key: RowKey, values: usize) -> u32 {
    (if key == RowKey::Bits { values / 8 } else { values }) as u32
}

/// Vectors in lists, queries with probes, and scores that approximate the distances.
pub struct Lists {
    /// The metric of the distances.
    pub metric: Metric,
    /// Components of a row with padding.
    pub stride: usize,
    /// Rows of the storage; between the lists are rows that belong to none.
    pub rows: Vec<f32>,
    pub starts: Vec<u32>,
    pub lengths: Vec<u32>,
    /// The rank of each row of the storage.
    pub ranks: Vec<u32>,
    pub queries: Vec<f32>,
    pub probes: usize,
    /// `probes` lists for each query.
    pub probed_lists: Vec<u32>,
    /// Whether rows r, r + 8, r + 16 and r + 24 of 32 rows of a list share a score, the least of theirs.
    pub shared: bool,
    /// The start of each probe's scores in the row of its query.
    pub offsets: Vec<u32>,
    /// The scores of all queries, and where the row of each begins.
    pub scores: Vec<f32>,
    pub row_starts: Vec<u64>,
    pub shifts: Vec<f32>,
    /// A bound of |score + shift − distance| for each query.
    pub errors: Vec<f32>,
    /// A bit for each rank.
    pub filter: Vec<u32>,
}

/// A vector that a query may find.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Found {
    pub badness: f32,
    pub rank: u32,
    /// Place of its score in the row of the query.
    pub place: u32,
}

impl Lists {
    /// `lists` lists of up to `most` vectors of `dim` components, `queries` queries of `probes` probes each. The
    /// vectors have few different
    /// distances.
    pub fn random(
        random: &mut Random,
        metric: Metric,
        dim: usize,
        lists: usize,
        most: usize,
        queries: usize,
        probes: usize,
    ) -> Lists {
        Self::of_numbers(4, random, metric, dim, (lists, most), (queries, probes))
    }

    /// As [`random`](Self::random), with components below this number: 2 for bits.
    pub fn of_numbers(
        below: usize,
        random: &mut Random,
        metric: Metric,
        dim: usize,
        (lists, most): (usize, usize),
        (queries, probes): (usize, usize),
    ) -> Lists {
        let stride = dim.next_multiple_of(4);
        let (mut starts, mut lengths, mut count) = (Vec::new(), Vec::new(), 0);
        for _ in 0..lists {
            count += random.below(3) as u32;
            starts.push(count);
            lengths.push(random.below(most + 1) as u32);
            count += lengths[lengths.len() - 1];
        }
        // Row 0 of list 0 is read for places without a vector.
        let count = count as usize + 3;
        let padded = |random: &mut Random, rows: usize| {
            let mut values = Vec::new();
            for _ in 0..rows {
                values.extend(random.whole(dim, below));
                values.resize(values.len().next_multiple_of(stride.max(1)), 0.0);
            }
            values
        };
        let (rows, query_rows) = (padded(random, count), padded(random, queries));
        let mut ranks: Vec<u32> = (0..count as u32).collect();
        random.shuffle(&mut ranks);
        let mut probed_lists = Vec::new();
        for _ in 0..queries {
            let mut order: Vec<u32> = (0..lists as u32).collect();
            random.shuffle(&mut order);
            for probe in 0..probes {
                probed_lists.push(order.get(probe).copied().filter(|_| !random.once_in(8)).unwrap_or(NO_ROW));
            }
        }
        let filter = (0..count.div_ceil(32)).map(|_| random.bits() as u32 | random.bits() as u32).collect();
        // Cosines lie closer together than the other distances of whole numbers.
        let unit = if matches!(metric, Metric::Cosine) { 0.05 } else { 0.75 };
        let shifts: Vec<f32> = (0..queries).map(|_| random.below(5) as f32 - 2.0).collect();
        let errors: Vec<f32> = (0..queries).map(|_| unit * (1 + random.below(3)) as f32).collect();
        let made = Lists {
            metric,
            stride,
            rows,
            starts,
            lengths,
            ranks,
            queries: query_rows,
            probes,
            probed_lists,
            shared: false,
            offsets: Vec::new(),
            scores: Vec::new(),
            row_starts: Vec::new(),
            shifts,
            errors,
            filter,
        };
        made.scored(random)
    }

    /// The same lists with rows that share scores.
    pub fn sharing(self, random: &mut Random) -> Lists {
        Lists { shared: true, ..self }.scored(random)
    }

    /// The same lists with other scores.
    fn scored(mut self, random: &mut Random) -> Lists {
        (self.offsets, self.row_starts) = (Vec::new(), Vec::new());
        let mut end = 0;
        for probed in self.probed_lists.chunks(self.probes) {
            self.row_starts.push(end);
            let mut offset = 0;
            for &list in probed {
                self.offsets.push(offset);
                let length = self.lengths.get(list as usize).copied().unwrap_or(0);
                // The rows of scores of a list are padded.
                offset += if self.shared { length.div_ceil(32) * 8 } else { length.next_multiple_of(4) };
            }
            end += u64::from(offset) + 2;
        }
        self.scores = vec![f32::NAN; end as usize];
        for query in 0..self.query_count() {
            for found in self.all(query, None) {
                let noise = random.signed_unit() * 0.9 * self.errors[query];
                let at = self.row_starts[query] as usize + found.place as usize;
                // The least of those before, if any.
                self.scores[at] = self.scores[at].min(found.badness - self.shifts[query] + noise);
            }
        }
        self
    }

    pub fn query_count(&self) -> usize {
        self.queries.len() / self.stride
    }

    pub fn query(&self, query: usize) -> &[f32] {
        &self.queries[query * self.stride..(query + 1) * self.stride]
    }

    pub fn row(&self, row: usize) -> &[f32] {
        &self.rows[row * self.stride..(row + 1) * self.stride]
    }

    /// All vectors in the probed lists of a query that pass the filter, best first.
    pub fn all(&self, query: usize, filter: Option<&[u32]>) -> Vec<Found> {
        let mut found = Vec::new();
        for pair in query * self.probes..(query + 1) * self.probes {
            let list = self.probed_lists[pair] as usize;
            for local in 0..self.lengths.get(list).copied().unwrap_or(0) {
                let row = (self.starts[list] + local) as usize;
                let rank = self.ranks[row];
                if filter.is_none_or(|filter| filter[rank as usize / 32] >> (rank % 32) & 1 == 1) {
                    let badness = badness(self.metric, distance(self.metric, self.query(query), self.row(row)));
                    let score = if self.shared { local / 32 * 8 + local % 8 } else { local };
                    found.push(Found { badness, rank, place: self.offsets[pair] + score });
                }
            }
        }
        found.sort_by(|a, b| a.badness.total_cmp(&b.badness).then(a.rank.cmp(&b.rank)));
        found
    }

    /// The keys and ranks of the first `k` of `found`, as a kernel writes them.
    pub fn results(&self, found: &[Found], k: usize) -> (Vec<f32>, Vec<u32>) {
        let slot = |slot: usize| match found.get(slot) {
            // The distance whose badness this is.
            Some(found) => (badness(self.metric, found.badness), found.rank),
            None => (worst(self.metric), NO_ROW),
        };
        (0..k).map(slot).unzip()
    }
}
