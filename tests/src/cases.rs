//! The table of cases. Every back end runs all of them; the emulator those of size [`Size::Small`].

pub use test_cases::keys::KeyData;
pub use test_cases::selection::{Layout, Lengths, SelectCase, Size};
use warpann::select::{Algorithm, Best, KeyType};
use warpann::{ElementType, Metric};

/// The distribution of vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VectorData {
    /// Components are independent and normally distributed.
    Gaussian,
    /// Components from four whole numbers: most distances occur many times.
    Ties,
    /// Every vector occurs about seven times; queries are among them.
    Duplicates,
    /// One vector n times.
    AllEqual,
    /// Four narrow clusters far from the origin.
    FarClusters,
    /// Components of 10¹⁸ to 10³⁰: squares overflow f32.
    Huge,
    /// Norms of 2⁶³ to 2⁷⁵, one power of two for each case: squares overflow f32, but errors of half-precision products
    /// do not.
    Large,
    /// Components of 10⁻¹⁸ to 10⁻⁴³: squares underflow f32, components are subnormal.
    Tiny,
    /// Half of the vectors are zero.
    Zeros,
    /// One vector a million times longer than the others.
    Outlier,
    /// All vectors are multiples of one.
    Line,
}

/// A case of exact search.
#[derive(Debug, Clone, PartialEq)]
pub struct SearchCase {
    /// Dimension of the vectors.
    pub dim: usize,
    /// Number of vectors in the index.
    pub n: usize,
    /// Number of queries.
    pub nq: usize,
    /// Number of neighbours per query.
    pub k: usize,
    /// Metric of the search.
    pub metric: Metric,
    /// Element type of the vectors.
    pub element: ElementType,
    /// Distribution of the vectors.
    pub data: VectorData,
    /// Seed of the vectors.
    pub seed: u64,
    /// The back ends that run the case.
    pub size: Size,
}

impl SearchCase {
    /// Name of the test.
    pub fn name(&self) -> String {
        let SearchCase { dim, n, nq, k, metric, element, data, .. } = self;
        format!("search::{}::{}::{data:?}::d{dim}_n{n}_q{nq}_k{k}", metric.name(), element.name())
    }
}

/// Dimension, vectors, queries, neighbours.
#[derive(Debug, Clone, Copy)]
struct SearchShape {
    dim: usize,
    n: usize,
    nq: usize,
    k: usize,
}

const fn shape(dim: usize, n: usize, nq: usize, k: usize) -> SearchShape {
    SearchShape { dim, n, nq, k }
}

/// Sizes around every boundary of tiles, warps, vector loads, chunks and queues; for the emulator too.
const SMALL_SHAPES: &[SearchShape] = &[
    shape(1, 1, 1, 1),
    shape(1, 0, 2, 3),
    shape(2, 2, 0, 1),
    shape(1, 300, 3, 10),
    shape(2, 31, 2, 31),
    shape(3, 127, 3, 128),
    shape(4, 128, 2, 2),
    shape(5, 129, 5, 32),
    shape(31, 130, 2, 33),
    shape(32, 64, 9, 1),
    shape(33, 257, 3, 10),
    shape(63, 100, 2, 100),
    shape(64, 200, 3, 50),
    shape(65, 129, 2, 129),
    shape(100, 131, 3, 3),
    shape(127, 33, 2, 99),
    shape(128, 384, 2, 10),
    shape(129, 65, 1, 65),
    shape(191, 40, 2, 2),
    shape(192, 129, 1, 5),
    shape(193, 128, 2, 7),
    shape(257, 50, 1, 55),
    shape(960, 40, 1, 4),
    shape(2047, 17, 1, 3),
    shape(2048, 130, 1, 2),
    shape(8, 1000, 129, 1),
    shape(8, 1100, 1, 1025),
    shape(6, 1500, 2, 32),
    shape(7, 40, 2, 120),
    // The emulator's small sample makes these filter in two passes: resident queries; streamed ones in two tiles.
    shape(16, 2_600, 3, 5),
    shape(200, 2_300, 130, 1),
];

/// As [`SMALL_SHAPES`], for CPU and GPU. A GPU filters candidates from 256 million component products on, and in two
/// passes from 131,072 vectors on; both sides of each are here.
const LARGE_SHAPES: &[SearchShape] = &[
    shape(1, 100_000, 3, 100),
    shape(3, 12_800, 129, 31),
    shape(17, 3_000, 129, 1024),
    shape(64, 5_000, 65, 1025),
    shape(100, 1_000, 129, 3_000),
    shape(96, 40_000, 17, 10),
    shape(128, 20_000, 129, 1),
    shape(128, 140_000, 17, 10),
    shape(130, 140_000, 16, 500),
    shape(128, 10_001, 33, 2_500),
    shape(960, 2_000, 33, 100),
    shape(2048, 1_000, 17, 129),
    shape(12, 3_000, 2_100, 7),
];

/// Every kind of data but the plain one.
pub(crate) const ALL_DATA: &[VectorData] = &[
    VectorData::Ties,
    VectorData::Duplicates,
    VectorData::AllEqual,
    VectorData::FarClusters,
    VectorData::Huge,
    VectorData::Large,
    VectorData::Tiny,
    VectorData::Zeros,
    VectorData::Outlier,
    VectorData::Line,
];

/// Shapes on which every kind of data runs, under every metric; the large one is large enough for a GPU to filter.
const DATA_SHAPES: &[(SearchShape, Size)] = &[
    (shape(16, 300, 3, 10), Size::Small),
    (shape(70, 150, 2, 33), Size::Small),
    (shape(192, 21_000, 65, 40), Size::Large),
];

/// Shapes on which every element type runs, under every metric; the large one is large enough for a GPU to filter.
const ELEMENT_SHAPES: &[(SearchShape, Size)] = &[
    (shape(13, 200, 3, 20), Size::Small),
    (shape(128, 140, 2, 5), Size::Small),
    (shape(260, 15_600, 65, 100), Size::Large),
];

/// Every case of exact search.
pub fn search_cases() -> Vec<SearchCase> {
    let mut cases = Vec::new();
    let mut add = |shape: SearchShape, metric: Metric, element: ElementType, data: VectorData, size: Size| {
        let seed = 1_000 + cases.len() as u64;
        let SearchShape { dim, n, nq, k } = shape;
        cases.push(SearchCase { dim, n, nq, k, metric, element, data, seed, size });
    };
    for metric in [Metric::L2, Metric::InnerProduct, Metric::Cosine] {
        for (shapes, size) in [(SMALL_SHAPES, Size::Small), (LARGE_SHAPES, Size::Large)] {
            for &shape in shapes {
                add(shape, metric, ElementType::F32, VectorData::Gaussian, size);
            }
        }
        for &(shape, size) in DATA_SHAPES {
            for &data in ALL_DATA {
                add(shape, metric, ElementType::F32, data, size);
            }
        }
        for &(shape, size) in ELEMENT_SHAPES {
            for (number, element) in
                [ElementType::F16, ElementType::Bf16, ElementType::U8, ElementType::I8].into_iter().enumerate()
            {
                let kinds = [VectorData::Gaussian, VectorData::Ties, VectorData::Zeros, VectorData::Outlier];
                for (kind, data) in kinds.into_iter().enumerate() {
                    // The reference takes seconds for a large case, so every other kind runs, and the others run with
                    // the next metric.
                    if size == Size::Small || (number + kind + metric as usize).is_multiple_of(2) {
                        add(shape, metric, element, data, size);
                    }
                }
            }
            // The range of bf16 is that of f32.
            for data in [VectorData::Huge, VectorData::Large, VectorData::Tiny] {
                add(shape, metric, ElementType::Bf16, data, size);
            }
        }
    }
    for &(shape, size) in ELEMENT_SHAPES {
        for data in [VectorData::Gaussian, VectorData::Ties, VectorData::Zeros, VectorData::Outlier] {
            add(shape, Metric::Hamming, ElementType::U8, data, size);
        }
    }
    cases
}

/// k around every queue length of the kernels, and past the longest.
const SELECT_K: &[usize] = &[
    1, 2, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 255, 256, 257, 511, 512, 513, 1000, 1023, 1024, 1025, 2048, 2500,
    4096, 65_536,
];

/// As [`SELECT_K`], for every type of key and every algorithm.
const FEW_K: &[usize] = &[1, 2, 31, 32, 33, 100, 127, 128, 129, 1023, 1024, 1025, 2048, 4096, 65_536];

/// Lengths of long rows, around what kernels cut them into.
const LONG_COLUMNS: &[usize] = &[4095, 4096, 4097, 8191, 8192, 8193];

const ALL_KEYS: &[KeyData] = &[
    KeyData::Random,
    KeyData::Ascending,
    KeyData::Descending,
    KeyData::AllEqual,
    KeyData::TwoValues,
    KeyData::EqualLeadingBits,
    KeyData::Infinite { percent: 90.0 },
    KeyData::Infinite { percent: 99.9 },
    KeyData::Worst { percent: 99.9 },
    KeyData::SomeNan,
    KeyData::AllNan,
    KeyData::Zeros,
    KeyData::Subnormal,
    KeyData::Bits,
    KeyData::Outlier,
];

const ALL_LAYOUTS: &[Layout] =
    &[Layout::Contiguous, Layout::Apart(1), Layout::Apart(37), Layout::Overlapping(7), Layout::Ragged];

const fn plain(rows: usize, columns: usize, k: usize) -> SelectCase {
    SelectCase { rows, columns, k, ..SelectCase::PLAIN }
}

const fn large(rows: usize, columns: usize, k: usize) -> SelectCase {
    SelectCase { size: Size::Large, ..plain(rows, columns, k) }
}

/// Cases of each type of key.
fn cases_of_key_types(mut add: impl FnMut(SelectCase)) {
    for key in KeyType::ALL {
        for &k in FEW_K {
            add(SelectCase { key, data: KeyData::Bits, ..plain(2, 600, k) });
            add(SelectCase { key, ..large(30, 9_999, k) });
        }
        for &data in ALL_KEYS {
            // Of f32 there are more above.
            let size = if key == KeyType::F32 { Size::Large } else { Size::Small };
            add(SelectCase { key, data, size, ..plain(2, 1300, 40) });
            for k in [1, 100, 2048, 65_536] {
                add(SelectCase { key, data, ..large(2, 100_001, k) });
            }
        }
        for &layout in ALL_LAYOUTS {
            add(SelectCase { key, layout, ..plain(0, 10, 3) });
            add(SelectCase { key, layout, ..plain(7, 333, 20) });
            add(SelectCase { key, layout, lengths: Lengths::Any, data: KeyData::TwoValues, ..plain(7, 97, 33) });
            add(SelectCase { key, layout, ..large(50, 7_777, 100) });
            add(SelectCase { key, layout, lengths: Lengths::Any, data: KeyData::SomeNan, ..large(33, 50_001, 1025) });
        }
    }
}

/// Every case of k-selection.
pub fn select_cases() -> Vec<SelectCase> {
    let mut cases = Vec::new();
    for best in [Best::Smallest, Best::Largest] {
        let mut add = |case: SelectCase| {
            let seed = 5_000 + cases.len() as u64;
            cases.push(SelectCase { best, seed, ..case });
        };
        for &k in SELECT_K {
            add(plain(5, 700, k));
            add(SelectCase { data: KeyData::Bits, lengths: Lengths::Any, ..plain(3, 2600, k) });
            add(large(40, 20_000, k));
            add(SelectCase { data: KeyData::TwoValues, lengths: Lengths::Any, ..large(3, 70_000, k) });
        }
        // Row lengths around one and several groups of keys that a warp tests at once.
        for columns in (0..=16).flat_map(|group: usize| (32 * group).saturating_sub(1)..=32 * group + 1) {
            let near = columns.abs_diff(32) <= 1 || columns.abs_diff(128) <= 1 || columns <= 1;
            for k in [1, 10, 33, 1025] {
                let size = if near || k == 10 { Size::Small } else { Size::Large };
                add(SelectCase { size, ..plain(6, columns, k) });
                let size = if near { Size::Small } else { Size::Large };
                add(SelectCase { size, data: KeyData::SomeNan, lengths: Lengths::Any, ..plain(9, columns, k) });
            }
        }
        for &columns in LONG_COLUMNS {
            for k in [10, 1025] {
                add(plain(1, columns, k));
                add(SelectCase { layout: Layout::Ragged, ..large(30, columns, k) });
            }
        }
        for &data in ALL_KEYS {
            for k in [1, 10, 100] {
                // 4096 columns in few rows are cut into segments, also on the emulator.
                add(SelectCase { data, ..plain(4, 500, k) });
                add(SelectCase { data, ..plain(2, 4096, k) });
                // Segments without a key, and with fewer than k.
                add(SelectCase { data, lengths: Lengths::Short, ..plain(3, 4096, k) });
            }
            for k in [10, 200, 1024, 2500] {
                add(SelectCase { data, ..large(17, 20_000, k) });
                add(SelectCase { data, lengths: Lengths::Any, ..large(17, 20_000, k) });
            }
        }
        cases_of_key_types(&mut add);
        for algorithm in [Algorithm::WarpSelect, Algorithm::ThresholdSelect] {
            for &k in FEW_K {
                add(SelectCase { algorithm, ..plain(2, 500, k) });
                add(SelectCase { algorithm, ..large(20, 30_000, k) });
            }
            for &data in ALL_KEYS {
                add(SelectCase { algorithm, data, ..plain(2, 2500, 33) });
                add(SelectCase { algorithm, data, ..large(20, 30_001, 100) });
            }
            for &layout in ALL_LAYOUTS {
                add(SelectCase { algorithm, layout, lengths: Lengths::Any, ..plain(5, 401, 16) });
            }
        }
        for key in [KeyType::F16, KeyType::Bf16, KeyType::I32, KeyType::U32] {
            let algorithm = Algorithm::ThresholdSelect;
            add(SelectCase { algorithm, key, ..plain(2, 2500, 33) });
            add(SelectCase { algorithm, key, data: KeyData::Bits, layout: Layout::Ragged, ..large(20, 30_000, 100) });
        }
        // Past what one pass of any kernel holds.
        for key in [KeyType::F32, KeyType::F16, KeyType::I32] {
            for k in [2048, 4096, 8192] {
                add(SelectCase { key, ..plain(1, 8_999, k) });
            }
        }
        add(plain(1, 70_000, 65_536));
        add(large(1, 1_000_000, 10));
        add(SelectCase { data: KeyData::Descending, ..large(1, 1_000_000, 1000) });
        add(SelectCase { key: KeyType::F16, ..large(1, 1_000_003, 100) });
        add(SelectCase { data: KeyData::Bits, ..large(1, 3_000_000, 65_536) });
        add(SelectCase { data: KeyData::TwoValues, lengths: Lengths::Any, ..large(20_000, 50, 5) });
        add(SelectCase { data: KeyData::Infinite { percent: 99.9 }, ..large(2, 300_000, 2048) });
    }
    cases
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_and_seeds_are_unique() {
        let search = search_cases();
        let select = select_cases();
        let names = search.iter().map(SearchCase::name).chain(select.iter().map(SelectCase::name));
        let mut seen = HashSet::new();
        names.for_each(|name| assert!(seen.insert(name.clone()), "{name} occurs twice"));
        let seeds: HashSet<u64> =
            search.iter().map(|case| case.seed).chain(select.iter().map(|case| case.seed)).collect();
        assert_eq!(seeds.len(), search.len() + select.len());
    }

    #[test]
    fn every_size_holds_every_metric_element_and_kind_of_data() {
        let cases = search_cases();
        for size in [Size::Small, Size::Large] {
            for metric in Metric::OF_NUMBERS {
                for element in ElementType::ALL {
                    assert!(cases.iter().any(|c| c.size == size && c.metric == metric && c.element == element));
                }
                for &data in ALL_DATA {
                    assert!(cases.iter().any(|c| c.size == size && c.metric == metric && c.data == data));
                }
            }
            assert!(cases.iter().any(|c| c.size == size && c.metric == Metric::Hamming));
        }
    }

    #[test]
    fn every_type_of_key_meets_every_kind_of_data_layout_and_k() {
        let cases = select_cases();
        for size in [Size::Small, Size::Large] {
            for best in [Best::Smallest, Best::Largest] {
                let there = |wanted: &dyn Fn(&SelectCase) -> bool| {
                    cases.iter().any(|case| case.size == size && case.best == best && wanted(case))
                };
                for key in KeyType::ALL {
                    assert!(ALL_KEYS.iter().all(|&data| there(&|c| c.key == key && c.data == data)), "{key}");
                    assert!(ALL_LAYOUTS.iter().all(|&layout| there(&|c| c.key == key && c.layout == layout)), "{key}");
                    assert!(FEW_K.iter().all(|&k| there(&|c| c.key == key && c.k == k)), "{key}");
                    assert!(there(&|c| c.key == key && c.algorithm == Algorithm::ThresholdSelect), "{key}");
                }
                assert!(
                    ALL_KEYS.iter().all(|&data| there(&|c| c.algorithm == Algorithm::WarpSelect && c.data == data))
                );
            }
        }
    }
}
