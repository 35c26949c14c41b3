//! The limits of docs/LIMITS.md at their edge: at the limit a call succeeds; beyond it a call returns a typed error
//! with the numbers. If a call at the limit would need gigabytes, the test calls the function that checks the limit.

use half::f16;

#[cfg(feature = "shifted")]
use crate::ShiftedIndex;
use crate::generate::Generator;
use crate::ivf::{Encoding, IvfIndex, Refiner};
use crate::kmeans::KMeans;
use crate::knn_graph::KnnGraph;
use crate::pq::{ProductQuantizer, Rotation};
use crate::select::{Best, Rows, select_k};
#[cfg(feature = "shifted")]
use crate::shifted::MAX_DIM;
use crate::validate::{MAX_COMPONENTS, MAX_ROWS, check_dim, check_rows};
use crate::{Device, Error, FlatIndex, Metric, NONE, Neighbors, Result, SearchOptions};

const DEVICES: [Device; 2] = [Device::Cpu, Device::Emulator];

/// Asserts that `$result` is the error `$pattern`.
macro_rules! refused {
    ($result:expr, $pattern:pat $(if $guard:expr)?) => {
        let result = $result;
        assert!(matches!(&result, Err($pattern) $(if $guard)?), "{:?}", result.map(drop));
    };
}

#[test]
fn components_of_a_vector() {
    assert_eq!(MAX_COMPONENTS, 0x7fff_ffff);
    let beyond = MAX_COMPONENTS + 1;
    check_dim(MAX_COMPONENTS).unwrap();
    for dim in [beyond, usize::MAX] {
        for device in DEVICES {
            let built = FlatIndex::<f32>::new(dim, Metric::L2, device);
            refused!(built, Error::TooMany { what: "dimensions", asked, .. } if *asked == dim as u64);
            let built = IvfIndex::<f16>::builder(dim, 3).device(device).build();
            refused!(built, Error::TooMany { what: "dimensions", asked, limit: 0x7fff_ffff } if *asked == dim as u64);
            // Centroids have a component for each bit.
            let most = MAX_COMPONENTS / 8;
            let built = IvfIndex::<u8>::builder(most + 1, 3).metric(Metric::Hamming).device(device).build();
            refused!(built, Error::TooMany { what: "dimensions", asked: 0x8000_0000, limit: 0x7fff_ffff });
        }
        refused!(Generator::new(dim, 1, 1), Error::TooMany { what: "dimensions", .. });
        refused!(Refiner::new(Metric::L2, dim, &[0u8; 0]), Error::TooMany { what: "dimensions", .. });
        refused!(KMeans::new(1).train(&[0.0f32], dim), Error::TooMany { what: "dimensions", .. });
        refused!(ProductQuantizer::from_codebooks(dim, 1, 8, vec![]), Error::TooMany { what: "dimensions", .. });
        refused!(Rotation::from_matrix(dim, vec![]), Error::TooMany { what: "dimensions", .. });
    }
    // An empty index of the largest dimension can be searched and moved.
    for device in DEVICES {
        let mut index = FlatIndex::<f32>::new(MAX_COMPONENTS, Metric::L2, device).unwrap();
        index.move_to(device).unwrap();
        assert_eq!(index.search(&[], 3).unwrap().queries(), 0);
        refused!(index.add(&[1.0]), Error::Ragged { what: "components", len: 1, size: MAX_COMPONENTS });
        IvfIndex::<f32>::builder(MAX_COMPONENTS, usize::MAX).device(device).build().unwrap();
    }
}

#[test]
fn rows_of_an_index() {
    assert_eq!(MAX_ROWS, 0xffff_ffff);
    check_rows(MAX_ROWS, MAX_ROWS).unwrap();
    refused!(
        check_rows(MAX_ROWS + 1, MAX_ROWS),
        Error::TooMany { what: "rows", asked: 0x1_0000_0000, limit: MAX_ROWS }
    );
    refused!(check_rows(u64::MAX, MAX_ROWS / 2), Error::TooMany { what: "rows", asked: u64::MAX, limit: 0x7fff_ffff });
}

#[cfg(feature = "shifted")]
#[test]
fn components_of_shifted_sort_and_its_copies() {
    let build = |dim, shifts| ShiftedIndex::builder(dim).shifts(shifts).device(Device::Cpu).build();
    build(MAX_DIM, 65_535).unwrap();
    refused!(build(MAX_DIM + 1, 1), Error::TooMany { what: "dimensions for shifted sort", asked: 13, limit: 12 });
    refused!(build(1, 65_536), Error::TooMany { what: "shifts", asked: 65_536, limit: 65_535 });
    refused!(build(1, usize::MAX), Error::TooMany { what: "shifts", limit: 65_535, .. });
}

#[test]
fn results_of_a_search() {
    // The largest number of slots, one slot more, and a product that overflows 64 bits.
    let most = isize::MAX as usize / size_of::<u64>();
    refused!(Neighbors::none(Metric::L2, 1, most + 1), Error::ResultTooLarge { queries: 1, .. });
    refused!(Neighbors::none(Metric::L2, 2, usize::MAX / 2 + 1), Error::ResultTooLarge { queries: 2, .. });
    assert_eq!(Neighbors::none(Metric::L2, 0, usize::MAX).unwrap().queries(), 0);
    for device in DEVICES {
        let mut index = FlatIndex::<f32>::new(1, Metric::L2, device).unwrap();
        index.add(&[1.0, 2.0, 3.0]).unwrap();
        refused!(index.search(&[1.0], 0), Error::Zero { what: "k" });
        refused!(index.search(&[1.0], usize::MAX), Error::ResultTooLarge { queries: 1, k: usize::MAX });
        // More neighbours than vectors: the other slots are empty.
        let found = index.search(&[1.9], 5).unwrap();
        assert_eq!(found.ids, [1, 0, 2, NONE, NONE]);
        refused!(KnnGraph::new(usize::MAX).run(&index, &[1.0, 2.0, 3.0]), Error::ResultTooLarge { .. });
        refused!(select_k(device, &one_row(&[1.0]), usize::MAX, Best::Smallest), Error::ResultTooLarge { .. });
    }
}

fn one_row(keys: &[f32]) -> Rows<'_, f32> {
    Rows::contiguous(keys, keys.len()).unwrap()
}

fn trained(encoding: Encoding, device: Device) -> IvfIndex<f32> {
    let base: Vec<f32> = (0..64).map(|at| at as f32).collect();
    let mut index = IvfIndex::<f32>::builder(4, 3).encoding(encoding).iterations(1).device(device).build().unwrap();
    index.train(&base).unwrap();
    index
}

#[test]
fn probes_and_ids_of_inverted_files() -> Result<()> {
    for device in DEVICES {
        let mut index = trained(Encoding::Flat, device);
        refused!(index.search_with(&[1.0; 4], 1, &SearchOptions::new().probes(0)), Error::Zero { what: "probes" });
        refused!(index.set_probes(0), Error::Zero { what: "probes" });
        index.add_with_ids(&[1.0; 4], &[NONE - 1])?;
        refused!(index.add_with_ids(&[1.0; 4], &[NONE]), Error::ReservedId);
        refused!(index.add(&[1.0; 4]), Error::ReservedId);
        assert_eq!(index.search_with(&[1.0; 4], 2, &SearchOptions::new().probes(usize::MAX))?.ids, [NONE - 1, NONE]);
        index.set_probes(usize::MAX)?;
        assert_eq!(index.search_with(&[1.0; 4], 1, &Default::default())?.ids, [NONE - 1]);
    }
    Ok(())
}

#[test]
fn sub_quantizers_and_their_bits() {
    let build = |sub_quantizers, bits| {
        let encoding = Encoding::Pq { sub_quantizers, bits, rotate: false };
        IvfIndex::<f32>::builder(4, 3).encoding(encoding).device(Device::Cpu).build()
    };
    for bits in 4..=8 {
        build(1, bits).unwrap();
        build(4, bits).unwrap();
    }
    refused!(build(4, 3), Error::OutOfRange { what: "bits per sub-quantizer", value: 3, least: 4, most: 8 });
    refused!(build(4, 9), Error::OutOfRange { what: "bits per sub-quantizer", value: 9, least: 4, most: 8 });
    refused!(build(4, u32::MAX), Error::OutOfRange { what: "bits per sub-quantizer", .. });
    for parts in [0, 3, 5, 8, usize::MAX] {
        refused!(build(parts, 8), Error::NotDivisible { number: 4, by: "sub-quantizers", parts: p, .. } if *p == parts);
    }
}

#[test]
fn lists_and_clusters() {
    let base: Vec<f32> = (0..16).map(|at| at as f32).collect();
    for device in DEVICES {
        for clusters in [17, usize::MAX] {
            let trained = KMeans::new(clusters).device(device).train(&base, 1);
            refused!(trained, Error::TooFewTrainingVectors { have: 16, need } if *need == clusters);
            let mut index = IvfIndex::<f32>::builder(1, clusters).device(device).build().unwrap();
            refused!(index.train(&base), Error::TooFewTrainingVectors { have: 16, need } if *need == clusters);
        }
        KMeans::new(16).iterations(1).device(device).train(&base, 1).unwrap();
        refused!(KMeans::new(0).device(device).train(&base, 1), Error::Zero { what: "clusters" });
        refused!(IvfIndex::<f32>::builder(1, 0).device(device).build(), Error::Zero { what: "lists" });
    }
}

#[cfg(feature = "shifted")]
#[test]
fn neighbours_whose_fields_contradict_each_other() {
    use crate::shifted::quality;
    let good = Neighbors { k: 1, ids: vec![0; 3], distances: vec![0.0; 3] };
    quality(&good, &good).unwrap();
    let short = Neighbors { distances: vec![0.0; 2], ..good.clone() };
    refused!(quality(&short, &good), Error::WrongLength { what: "results", expected: 3, actual: 2 });
    refused!(quality(&good, &short), Error::WrongLength { what: "results", expected: 3, actual: 2 });
    let ragged = Neighbors { k: 2, ..good.clone() };
    refused!(quality(&ragged, &ragged), Error::WrongLength { what: "results", expected: 2, actual: 3 });
    let none = Neighbors { k: 0, ..good.clone() };
    refused!(quality(&none, &none), Error::Zero { what: "k" });
    let mut index = ShiftedIndex::builder(1).device(Device::Cpu).build().unwrap();
    index.add(&[1.0, 2.0, 3.0]).unwrap();
    refused!(index.quality(&short, None, 3, Device::Cpu), Error::WrongLength { what: "results", .. });
    refused!(index.quality(&none, None, 3, Device::Cpu), Error::Zero { what: "k" });
}

#[test]
fn rows_and_columns_of_files() {
    use std::path::Path;

    use crate::FileDefect;
    use crate::io::{Format, layout};
    let header = |format, rows, columns| layout(Path::new("file"), format, rows, columns, "<f4");
    let (vecs, bin) = (i32::MAX as usize, u32::MAX as usize);
    for format in [Format::Fvecs, Format::Bvecs, Format::Ivecs] {
        assert_eq!(header(format, usize::MAX, vecs).unwrap().1, [0xff, 0xff, 0xff, 0x7f]);
        refused!(header(format, 1, vecs + 1), Error::BadFile { defect: FileDefect::BadHeader(_), .. });
    }
    for format in [Format::Fbin, Format::U8bin, Format::I8bin, Format::Ibin] {
        assert_eq!(header(format, bin, bin).unwrap().0, [0xff; 8]);
        refused!(header(format, bin + 1, 1), Error::BadFile { defect: FileDefect::BadHeader(_), .. });
        refused!(header(format, 1, bin + 1), Error::BadFile { defect: FileDefect::BadHeader(_), .. });
    }
    header(Format::Npy, usize::MAX, usize::MAX).unwrap();
}
