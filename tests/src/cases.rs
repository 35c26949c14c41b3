//! The table of cases. Every back end runs all of them; the emulator those of size [`Size::Small`].

use warpann::select::Best;
use warpann::{ElementType, Metric};

/// Who runs a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// Every back end, the emulator included.
    Small,
    /// CPU and GPU.
    Large,
}

/// How vectors are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VectorData {
    /// Independent components.
    Gaussian,
    /// Components from four whole numbers: most distances occur many times.
    Ties,
    /// Every vector occurs about seven times; queries are among them.
    Duplicates,
    /// One vector n times.
    AllEqual,
    /// Four narrow clusters far from the origin.
    FarClusters,
    /// 10¹⁸ to 10³⁰: squares leave f32.
    Huge,
    /// 10⁻¹⁸ to 10⁻⁴³: squares vanish in f32, components are subnormal.
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
    /// Components of a vector.
    pub dim: usize,
    /// Vectors in the index.
    pub n: usize,
    /// Queries.
    pub nq: usize,
    /// Neighbours asked for.
    pub k: usize,
    /// The metric.
    pub metric: Metric,
    /// The element type.
    pub element: ElementType,
    /// How the vectors are made.
    pub data: VectorData,
    /// Seed of the vectors.
    pub seed: u64,
    /// Who runs it.
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
struct Shape {
    dim: usize,
    n: usize,
    nq: usize,
    k: usize,
}

const fn shape(dim: usize, n: usize, nq: usize, k: usize) -> Shape {
    Shape { dim, n, nq, k }
}

/// Sizes around every boundary of tiles, warps, vector loads, chunks and queues; for the emulator too.
const SMALL_SHAPES: &[Shape] = &[
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

/// As [`SMALL_SHAPES`], for CPU and GPU. A GPU filters candidates from 256 million component products on, and in two passes
/// from 131,072 vectors on; both sides of each are here.
const LARGE_SHAPES: &[Shape] = &[
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

const ALL_DATA: &[VectorData] = &[
    VectorData::Ties,
    VectorData::Duplicates,
    VectorData::AllEqual,
    VectorData::FarClusters,
    VectorData::Huge,
    VectorData::Tiny,
    VectorData::Zeros,
    VectorData::Outlier,
    VectorData::Line,
];

/// Shapes on which every kind of data runs, under every metric; the large one is large enough for a GPU to filter.
const DATA_SHAPES: &[(Shape, Size)] = &[
    (shape(16, 300, 3, 10), Size::Small),
    (shape(70, 150, 2, 33), Size::Small),
    (shape(192, 21_000, 65, 40), Size::Large),
];

/// Shapes on which every element type runs, under every metric; the large one is large enough for a GPU to filter.
const ELEMENT_SHAPES: &[(Shape, Size)] = &[
    (shape(13, 200, 3, 20), Size::Small),
    (shape(128, 140, 2, 5), Size::Small),
    (shape(260, 15_600, 65, 100), Size::Large),
];

/// Every case of exact search.
pub fn search_cases() -> Vec<SearchCase> {
    let mut cases = Vec::new();
    let mut add = |shape: Shape, metric: Metric, element: ElementType, data: VectorData, size: Size| {
        let seed = 1_000 + cases.len() as u64;
        let Shape { dim, n, nq, k } = shape;
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
            for element in [ElementType::F16, ElementType::Bf16, ElementType::U8, ElementType::I8] {
                for data in [VectorData::Gaussian, VectorData::Ties, VectorData::Zeros, VectorData::Outlier] {
                    add(shape, metric, element, data, size);
                }
            }
            // The range of bf16 is that of f32.
            for data in [VectorData::Huge, VectorData::Tiny] {
                add(shape, metric, ElementType::Bf16, data, size);
            }
        }
    }
    cases
}

/// How keys are made.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum KeyData {
    /// Normally distributed.
    Random,
    /// Sorted: the first k are the smallest.
    Ascending,
    /// Sorted the other way: every key beats all before it.
    Descending,
    /// One value.
    AllEqual,
    /// Zero and one.
    TwoValues,
    /// That share infinite, of either sign.
    Infinite {
        /// Share in percent.
        percent: f64,
    },
    /// A third NaN (of either sign), a third infinite.
    SomeNan,
    /// NaN of either sign.
    AllNan,
    /// −0 and +0.
    Zeros,
    /// Subnormal numbers of either sign.
    Subnormal,
    /// Any bits but NaN.
    Bits,
    /// One key far from the others.
    Outlier,
}

/// How long the rows of a [`SelectCase`] are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lengths {
    /// All have `columns` keys.
    Full,
    /// Any length from 0 to `columns`, both included.
    Ragged,
    /// At most five keys, in rows with room for `columns`.
    Short,
}

/// A case of k-selection.
#[derive(Debug, Clone, PartialEq)]
pub struct SelectCase {
    /// Rows of keys.
    pub rows: usize,
    /// Keys of a row, at most.
    pub columns: usize,
    /// Keys asked for.
    pub k: usize,
    /// Which keys win.
    pub best: Best,
    /// How the keys are made.
    pub data: KeyData,
    /// How long rows are.
    pub lengths: Lengths,
    /// Seed of the keys.
    pub seed: u64,
    /// Who runs it.
    pub size: Size,
}

impl SelectCase {
    /// Name of the test.
    pub fn name(&self) -> String {
        let SelectCase { rows, columns, k, best, data, lengths, .. } = self;
        let data = match data {
            KeyData::Infinite { percent } => format!("Infinite{percent}"),
            data => format!("{data:?}"),
        };
        format!("select::{best:?}::{data}::{lengths:?}::r{rows}_c{columns}_k{k}")
    }
}

/// k around every queue length of the kernels, and past the longest.
const SELECT_K: &[usize] = &[
    1, 2, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 255, 256, 257, 511, 512, 513, 1000, 1023, 1024, 1025, 2048, 2500,
];

/// Row lengths around one and several groups of keys a warp tests at once.
const SELECT_COLUMNS: &[usize] = &[0, 1, 31, 32, 33, 127, 128, 129, 1000];

const ALL_KEYS: &[KeyData] = &[
    KeyData::Random,
    KeyData::Ascending,
    KeyData::Descending,
    KeyData::AllEqual,
    KeyData::TwoValues,
    KeyData::Infinite { percent: 90.0 },
    KeyData::Infinite { percent: 99.9 },
    KeyData::SomeNan,
    KeyData::AllNan,
    KeyData::Zeros,
    KeyData::Subnormal,
    KeyData::Bits,
    KeyData::Outlier,
];

/// Every case of k-selection.
pub fn select_cases() -> Vec<SelectCase> {
    let mut cases = Vec::new();
    let mut add = |rows, columns, k, best, data, lengths, size| {
        let seed = 5_000 + cases.len() as u64;
        cases.push(SelectCase { rows, columns, k, best, data, lengths, seed, size });
    };
    for best in [Best::Smallest, Best::Largest] {
        for &k in SELECT_K {
            add(5, 700, k, best, KeyData::Random, Lengths::Full, Size::Small);
            add(3, 2600, k, best, KeyData::Bits, Lengths::Ragged, Size::Small);
            add(40, 20_000, k, best, KeyData::Random, Lengths::Full, Size::Large);
            add(3, 70_000, k, best, KeyData::TwoValues, Lengths::Ragged, Size::Large);
        }
        for &columns in SELECT_COLUMNS {
            for k in [1, 10, 33, 1025] {
                add(6, columns, k, best, KeyData::Random, Lengths::Full, Size::Small);
                add(9, columns, k, best, KeyData::SomeNan, Lengths::Ragged, Size::Small);
            }
        }
        for &data in ALL_KEYS {
            for k in [1, 10, 100] {
                // 4096 columns in few rows are cut into segments, also on the emulator.
                add(4, 500, k, best, data, Lengths::Full, Size::Small);
                add(2, 4096, k, best, data, Lengths::Full, Size::Small);
                // Segments without a key, and with fewer than k.
                add(3, 4096, k, best, data, Lengths::Short, Size::Small);
            }
            for k in [10, 200, 1024, 2500] {
                add(17, 20_000, k, best, data, Lengths::Full, Size::Large);
                add(17, 20_000, k, best, data, Lengths::Ragged, Size::Large);
            }
        }
        add(1, 1_000_000, 10, best, KeyData::Random, Lengths::Full, Size::Large);
        add(1, 1_000_000, 1000, best, KeyData::Descending, Lengths::Full, Size::Large);
        add(20_000, 50, 5, best, KeyData::TwoValues, Lengths::Ragged, Size::Large);
        add(2, 300_000, 2048, best, KeyData::Infinite { percent: 99.9 }, Lengths::Full, Size::Large);
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
            for metric in Metric::ALL {
                for element in ElementType::ALL {
                    assert!(cases.iter().any(|c| c.size == size && c.metric == metric && c.element == element));
                }
                for &data in ALL_DATA {
                    assert!(cases.iter().any(|c| c.size == size && c.metric == metric && c.data == data));
                }
            }
        }
    }
}
