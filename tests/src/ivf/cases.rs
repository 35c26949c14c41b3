//! The table of cases. Every back end runs all cases; the emulator runs those of size [`Size::Small`].

use warpann::ivf::Encoding;

use warpann::Scan;
use warpann::{ElementType, Metric};

use crate::cases::{ALL_DATA, Size, VectorData};

/// The ids of a case's vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ids {
    /// Ids that count up: 0, 1, 2, ..
    Counted,
    /// Large distinct numbers, shuffled.
    Any,
}

/// A case of search in an inverted file.
#[derive(Debug, Clone, PartialEq)]
pub struct IvfCase {
    /// Number of components of a vector.
    pub dim: usize,
    /// Number of vectors in the index.
    pub n: usize,
    /// Number of lists.
    pub lists: usize,
    /// Number of queries.
    pub nq: usize,
    /// Number of neighbours of each query.
    pub k: usize,
    /// Number of lists to probe.
    pub probes: usize,
    /// The metric of the index.
    pub metric: Metric,
    /// The element type of vectors and queries.
    pub element: ElementType,
    /// The encoding of the index.
    pub encoding: Encoding,
    /// The kind of generated vectors.
    pub data: VectorData,
    /// The ids of the vectors.
    pub ids: Ids,
    /// The share of the vectors that the filter accepts, in percent; without a filter if `None`.
    pub allowed: Option<u32>,
    /// The order in which lists are read.
    pub scan: Scan,
    /// The seed of the generated vectors.
    pub seed: u64,
    /// The back ends that run the case.
    pub size: Size,
}

impl IvfCase {
    /// The name of the test, made of the case's fields.
    pub fn name(&self) -> String {
        let IvfCase { dim, n, lists, nq, k, probes, metric, element, data, .. } = self;
        let encoding = match self.encoding {
            Encoding::Flat | Encoding::F16 | Encoding::Scalar8 => self.encoding.name().to_owned(),
            Encoding::Bits { bits } => format!("bits{bits}"),
            Encoding::Pq { sub_quantizers, bits, rotate } => {
                format!("pq{sub_quantizers}x{bits}{}", if rotate { "_rotated" } else { "" })
            }
            other => unreachable!("no case has encoding {other}"),
        };
        let filter = self.allowed.map_or(String::new(), |percent| format!("_allowed{percent}"));
        let ids = if self.ids == Ids::Any { "_ids" } else { "" };
        let scan = match self.scan {
            Scan::Auto => "",
            Scan::ListMajor => "_by_list",
            Scan::QueryMajor => "_by_query",
            other => unreachable!("no case has scan {other}"),
        };
        format!(
            "ivf::{}::{}::{encoding}::{data:?}::d{dim}_n{n}_l{lists}_q{nq}_k{k}_p{probes}{filter}{ids}{scan}",
            metric.name(),
            element.name()
        )
    }
}

/// The sizes of a case: dimension, vectors, lists, queries, neighbours, probes.
#[derive(Debug, Clone, Copy)]
struct IvfShape {
    dim: usize,
    n: usize,
    lists: usize,
    nq: usize,
    k: usize,
    probes: usize,
}

const fn shape(dim: usize, n: usize, lists: usize, nq: usize, k: usize, probes: usize) -> IvfShape {
    IvfShape { dim, n, lists, nq, k, probes }
}

/// Odd sizes, empty indexes, one list, as many lists as vectors, all lists and more than all, k above the number of
/// candidates.
const SMALL_SHAPES: &[IvfShape] = &[
    shape(1, 1, 1, 1, 1, 1),
    shape(1, 0, 2, 2, 3, 1),
    shape(2, 5, 1, 0, 1, 1),
    shape(1, 200, 5, 3, 10, 2),
    shape(2, 40, 40, 2, 5, 7),
    shape(3, 130, 4, 3, 200, 4),
    shape(5, 129, 3, 5, 32, 9),
    shape(17, 257, 8, 9, 33, 3),
    shape(31, 90, 7, 2, 64, 1),
    shape(32, 300, 6, 20, 1, 6),
    shape(65, 150, 2, 3, 129, 1),
    shape(128, 260, 5, 2, 10, 4),
    shape(129, 70, 3, 1, 5, 2),
    shape(8, 700, 3, 60, 4, 2),
    shape(200, 40, 2, 1, 3, 1),
];

/// As [`SMALL_SHAPES`], for CPU and GPU: batches that share lists, single queries, more candidates than fit shared
/// memory.
const LARGE_SHAPES: &[IvfShape] = &[
    shape(96, 20_000, 64, 300, 10, 8),
    shape(128, 20_000, 100, 1, 100, 10),
    shape(128, 12_000, 16, 17, 1_000, 16),
    shape(33, 30_000, 300, 70, 100, 40),
    shape(960, 1_500, 10, 33, 10, 3),
    shape(4, 40_000, 7, 40, 2_500, 2),
    shape(64, 9_000, 1_000, 129, 31, 1_000),
];

/// Dimension, number of sub-quantizers, and bits of each case with codes.
const CODES: &[(usize, usize, u32)] =
    &[(1, 1, 4), (6, 3, 4), (12, 12, 5), (16, 4, 6), (21, 7, 7), (32, 1, 4), (35, 5, 8), (64, 16, 4), (128, 64, 4)];

/// All cases of search in inverted files.
pub fn ivf_cases() -> Vec<IvfCase> {
    let mut cases: Vec<IvfCase> = Vec::new();
    let mut add = |shape: IvfShape, metric: Metric, element: ElementType, encoding, data: VectorData, size: Size| {
        let number = cases.len();
        let IvfShape { dim, n, lists, nq, k, probes } = shape;
        cases.push(IvfCase {
            dim,
            n,
            lists,
            nq,
            k,
            probes,
            metric,
            element,
            encoding,
            data,
            ids: if number % 3 == 1 { Ids::Any } else { Ids::Counted },
            allowed: [None, None, Some(50), None, Some(3), None, Some(0)][number % 7],
            scan: [Scan::Auto, Scan::ListMajor, Scan::QueryMajor, Scan::Auto][number % 4],
            seed: 5_000 + number as u64,
            size,
        });
    };
    for metric in [Metric::L2, Metric::InnerProduct, Metric::Cosine] {
        for (shapes, size) in [(SMALL_SHAPES, Size::Small), (LARGE_SHAPES, Size::Large)] {
            for &shape in shapes {
                add(shape, metric, ElementType::F32, Encoding::Flat, VectorData::Gaussian, size);
            }
        }
        for &data in ALL_DATA {
            let (small, large) = (shape(19, 300, 9, 4, 20, 3), shape(100, 6_000, 30, 50, 50, 6));
            add(small, metric, ElementType::F32, Encoding::Flat, data, Size::Small);
            add(large, metric, ElementType::F32, Encoding::Flat, data, Size::Large);
        }
        for (number, element) in
            [ElementType::F16, ElementType::Bf16, ElementType::U8, ElementType::I8].into_iter().enumerate()
        {
            let coded = Encoding::Pq { sub_quantizers: 5, bits: 4, rotate: number % 2 == 1 };
            let of_large = Encoding::Pq { sub_quantizers: 26, bits: 6, rotate: false };
            for data in [VectorData::Gaussian, VectorData::Ties] {
                add(shape(13, 200, 6, 3, 20, 2), metric, element, Encoding::Flat, data, Size::Small);
                add(shape(20, 200, 6, 3, 20, 2), metric, element, coded, data, Size::Small);
                let large = shape(130, 8_000, 50, 90, 30, 9);
                add(large, metric, element, Encoding::Flat, data, Size::Large);
                add(large, metric, element, of_large, data, Size::Large);
            }
        }
        for (number, &(dim, sub_quantizers, bits)) in CODES.iter().enumerate() {
            let coded = Encoding::Pq { sub_quantizers, bits, rotate: number % 3 == 2 };
            for data in [VectorData::Gaussian, VectorData::Duplicates, VectorData::Zeros] {
                let (small, large) = (shape(dim, 150, 4, 3, 12, 2), shape(dim, 5_000, 40, 200, 40, 7));
                add(small, metric, ElementType::F32, coded, data, Size::Small);
                add(large, metric, ElementType::F32, coded, data, Size::Large);
            }
        }
        for coded in [Encoding::F16, Encoding::Scalar8] {
            // Dimensions from one component to more than fit in shared memory with 64 queries; multiples of four and
            // eight, and others. Halves refuse vectors far below the training. Of one component, some are.
            let of_any_size = coded != Encoding::F16 || metric == Metric::Cosine;
            for dim in [if of_any_size { 1 } else { 3 }, 6, 12, 35, 64, 129, 330] {
                for data in [VectorData::Gaussian, VectorData::Duplicates, VectorData::Zeros] {
                    let (small, large) = (shape(dim, 150, 4, 3, 12, 2), shape(dim, 5_000, 40, 200, 40, 7));
                    add(small, metric, ElementType::F32, coded, data, Size::Small);
                    add(large, metric, ElementType::F32, coded, data, Size::Large);
                }
            }
            let kinds = [VectorData::Ties, VectorData::AllEqual, VectorData::Line, VectorData::Tiny];
            for data in kinds.into_iter().filter(|&data| of_any_size || data != VectorData::Tiny) {
                add(shape(19, 300, 9, 4, 20, 3), metric, ElementType::F32, coded, data, Size::Small);
                add(shape(100, 6_000, 30, 50, 50, 6), metric, ElementType::F32, coded, data, Size::Large);
            }
            // Lists that many queries probe: tiles of 64 queries, and appended candidates.
            add(shape(24, 400, 3, 60, 4, 2), metric, ElementType::F32, coded, VectorData::Gaussian, Size::Small);
            add(shape(96, 8_000, 100, 600, 10, 67), metric, ElementType::F32, coded, VectorData::Gaussian, Size::Large);
        }
        for data in [VectorData::FarClusters, VectorData::Large, VectorData::Outlier] {
            add(shape(19, 300, 9, 4, 20, 3), metric, ElementType::F32, Encoding::Scalar8, data, Size::Small);
        }
        for element in [ElementType::F16, ElementType::Bf16, ElementType::U8, ElementType::I8] {
            let (small, large) = (shape(20, 200, 6, 3, 20, 2), shape(130, 8_000, 50, 90, 30, 9));
            add(small, metric, element, Encoding::Scalar8, VectorData::Gaussian, Size::Small);
            add(large, metric, element, Encoding::Scalar8, VectorData::Gaussian, Size::Large);
        }
        // Each number of bits, with dimensions below, at and beyond groups of 32 and chunks of 128, and with more than
        // fit in shared memory with 64 queries. The reference rotates vectors by plain loops, so large dimensions have
        // fewer.
        for (bits, dim) in (1..=8).zip([35, 1, 330, 64, 129, 12, 96, 6]) {
            let coded = Encoding::Bits { bits };
            let many = if dim > 64 { 1_200 } else { 5_000 };
            for data in [VectorData::Gaussian, VectorData::Duplicates, VectorData::Zeros] {
                let (small, large) = (shape(dim, 150, 4, 3, 12, 2), shape(dim, many, 20, 200, 40, 7));
                add(small, metric, ElementType::F32, coded, data, Size::Small);
                add(large, metric, ElementType::F32, coded, data, Size::Large);
            }
        }
        for (data, bits) in [VectorData::Tiny, VectorData::AllEqual, VectorData::FarClusters].into_iter().zip([1, 4, 8])
        {
            let coded = Encoding::Bits { bits };
            add(shape(19, 300, 9, 4, 20, 3), metric, ElementType::F32, coded, data, Size::Small);
            add(shape(50, 3_000, 30, 50, 50, 6), metric, ElementType::F32, coded, data, Size::Large);
        }
        // Lists that many queries probe.
        for (bits, data) in [2, 5, 8].into_iter().zip([VectorData::Gaussian, VectorData::Line, VectorData::Ties]) {
            let (small, large) = (shape(24, 400, 3, 60, 4, 2), shape(40, 4_000, 60, 600, 10, 41));
            add(small, metric, ElementType::F32, Encoding::Bits { bits }, data, Size::Small);
            add(large, metric, ElementType::F32, Encoding::Bits { bits }, data, Size::Large);
        }
        for element in [ElementType::F16, ElementType::U8] {
            let (small, large) = (shape(20, 200, 6, 3, 20, 2), shape(70, 2_000, 20, 90, 30, 9));
            add(small, metric, element, Encoding::Bits { bits: 4 }, VectorData::Gaussian, Size::Small);
            add(large, metric, element, Encoding::Bits { bits: 4 }, VectorData::Gaussian, Size::Large);
        }
        // For codes: nothing to find, one list, k above the number of vectors.
        let pq = Encoding::Pq { sub_quantizers: 2, bits: 4, rotate: false };
        for coded in [pq, Encoding::F16, Encoding::Scalar8, Encoding::Bits { bits: 3 }] {
            for shape in [shape(4, 0, 2, 2, 3, 1), shape(4, 50, 1, 3, 70, 1), shape(4, 60, 20, 3, 70, 99)] {
                add(shape, metric, ElementType::F32, coded, VectorData::Gaussian, Size::Small);
            }
        }
    }
    // Bits, eight in a byte: all shapes, and vectors whose bytes are not spread evenly.
    for (shapes, size) in [(SMALL_SHAPES, Size::Small), (LARGE_SHAPES, Size::Large)] {
        for &shape in shapes {
            add(shape, Metric::Hamming, ElementType::U8, Encoding::Flat, VectorData::Gaussian, size);
        }
    }
    for &data in ALL_DATA {
        let (small, large) = (shape(19, 300, 9, 4, 20, 3), shape(100, 6_000, 30, 50, 50, 6));
        add(small, Metric::Hamming, ElementType::U8, Encoding::Flat, data, Size::Small);
        add(large, Metric::Hamming, ElementType::U8, Encoding::Flat, data, Size::Large);
    }
    // Queries that do not fit in shared memory, and lists that many queries probe.
    for (shape, size) in [
        (shape(700, 60, 2, 20, 5, 2), Size::Small),
        (shape(24, 400, 3, 60, 4, 2), Size::Small),
        (shape(16, 8_000, 100, 600, 10, 67), Size::Large),
    ] {
        add(shape, Metric::Hamming, ElementType::U8, Encoding::Flat, VectorData::Gaussian, size);
    }
    cases
}
