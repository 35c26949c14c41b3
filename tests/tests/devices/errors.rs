//! Every typed error that a caller of the library can meet, on every device that this machine has, with its numbers.

use half::f16;
use warpann::ivf::{Encoding, IvfIndex};
#[cfg(feature = "cuda")]
use warpann::select::device::DeviceSelect;
use warpann::select::{Algorithm, Best, NO_POSITION, Rows, Selection, select_k, select_k_with};
use warpann::{Device, Error, FlatIndex, Input, Metric, NONE, NoDeviceReason, Placement, SearchOptions};

/// The CPU and the emulator are everywhere; a GPU refuses the same arguments before it does anything.
const DEVICES: [Device; 2] = [Device::Cpu, Device::Emulator];

fn small(device: Device) -> FlatIndex<f32> {
    let mut index = FlatIndex::new(2, Metric::L2, device).unwrap();
    index.add(&[0.0, 0.0, 1.0, 0.0, 0.0, 2.0]).unwrap();
    index
}

/// The facts of [`Error::BadRow`]: what, row, value, least and most.
fn bad_row<T>(result: Result<T, Error>) -> (&'static str, usize, u64, u64, u64) {
    match result.map(drop) {
        Err(Error::BadRow { what, row, value, least, most }) => (what, row, value, least, most),
        other => panic!("{other:?}"),
    }
}

fn one_row(keys: &[f32]) -> Rows<'_, f32> {
    Rows::contiguous(keys, keys.len()).unwrap()
}

/// The state that a failed call must not change.
fn assert_unchanged(index: &FlatIndex<f32>) {
    assert_eq!(index.len(), 3);
    assert_eq!(index.search(&[0.0, 2.0], 4).unwrap().ids, [2, 0, 1, NONE]);
    assert_eq!(index.reconstruct(1).unwrap(), [1.0, 0.0]);
}

#[test]
fn zero_dimension() {
    for device in DEVICES.into_iter().chain([Device::Auto, Device::Gpu(0), Device::Gpu(usize::MAX)]) {
        assert!(
            matches!(FlatIndex::<f32>::new(0, Metric::L2, device), Err(Error::Zero { what: "dimension" })),
            "{device}"
        );
    }
}

#[test]
fn ragged_vectors() {
    for device in DEVICES {
        let mut index = small(device);
        assert!(matches!(index.add(&[1.0; 5]), Err(Error::Ragged { what: "components", len: 5, size: 2 })));
        assert!(matches!(index.search(&[1.0; 3], 1), Err(Error::Ragged { what: "components", len: 3, size: 2 })));
        assert_unchanged(&index);
    }
}

#[test]
fn what_is_not_finite_is_named_by_row_and_column_and_changes_nothing() {
    for device in DEVICES {
        let mut index = small(device);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            // Searched in two halves, which read other rows.
            for at in [0, 1, 2049, 3999, 4402] {
                let mut rows = vec![0.5; 4403 + 1];
                rows[at] = bad;
                for result in [index.add(&rows), index.search(&rows, 1).map(|_| ())] {
                    let Err(Error::NotFinite { row, column, value, .. }) = result else {
                        panic!("{device}: {result:?}")
                    };
                    assert_eq!((row, column, value.to_bits()), (at / 2, at % 2, bad.to_bits()));
                }
            }
        }
        // The error names the first of several.
        let rows = [1.0, 2.0, 3.0, f32::NAN, f32::INFINITY, 1.0];
        assert!(matches!(index.add(&rows), Err(Error::NotFinite { row: 1, column: 1, .. })));
        assert_unchanged(&index);
    }
    // Several devices have a part of the queries each.
    let replicas = Placement::new(vec![Device::Emulator, Device::Cpu, Device::Cpu, Device::Emulator], 2).unwrap();
    let mut index = FlatIndex::<f32>::new(2, Metric::L2, replicas).unwrap();
    assert!(
        matches!(index.search(&[1.0, f32::NAN], 1), Err(Error::NotFinite { row: 0, column: 1, .. })),
        "an empty index"
    );
    index.add(&[0.0, 0.0, 1.0, 0.0, 0.0, 2.0]).unwrap();
    let mut rows = vec![0.5; 4000];
    for at in [3999, 3001, 7] {
        rows[at] = f32::NAN;
        let Err(Error::NotFinite { row, column, .. }) = index.search(&rows, 2) else { panic!("{at} was searched") };
        assert_eq!((row, column), (at / 2, at % 2), "the first of several");
    }
    assert_unchanged(&index);
    let mut halves = FlatIndex::<half::f16>::new(3, Metric::Cosine, Device::Cpu).unwrap();
    let rows = [half::f16::ONE, half::f16::ONE, half::f16::NEG_INFINITY];
    assert!(matches!(halves.add(&rows), Err(Error::NotFinite { row: 0, column: 2, .. })));
    assert!(halves.is_empty());
}

#[test]
fn zero_k() {
    for device in DEVICES {
        let index = small(device);
        assert!(matches!(index.search(&[1.0, 2.0], 0), Err(Error::Zero { what: "k" })));
        assert!(matches!(index.search(&[], 0), Err(Error::Zero { what: "k" })));
        assert!(matches!(select_k(device, &one_row(&[1.0]), 0, Best::Smallest), Err(Error::Zero { what: "k" })));
        assert_unchanged(&index);
    }
}

#[test]
fn unknown_id() {
    for device in DEVICES {
        let index = small(device);
        for id in [3, 1 << 32, NONE] {
            let result = index.reconstruct(id);
            assert!(matches!(result, Err(Error::UnknownId { id: asked, len: 3 }) if asked == id), "{result:?}");
        }
        assert!(matches!(
            FlatIndex::<f32>::new(2, Metric::L2, device).unwrap().reconstruct(0),
            Err(Error::UnknownId { id: 0, len: 0 })
        ));
    }
}

#[test]
fn result_slices_of_the_wrong_length() {
    for device in DEVICES {
        let index = small(device);
        let query = [1.0, 2.0];
        assert!(matches!(
            index.search_into(&query, 2, &SearchOptions::new(), &mut [0; 1], &mut [0.0; 2]),
            Err(Error::WrongLength { what: "results", expected: 2, actual: 1 })
        ));
        assert!(matches!(
            index.search_into(&query, 2, &SearchOptions::new(), &mut [0; 2], &mut [0.0; 5]),
            Err(Error::WrongLength { what: "results", expected: 2, actual: 5 })
        ));
    }
}

#[test]
fn results_that_fit_no_memory() {
    for device in DEVICES {
        let index = small(device);
        let four = [0.0; 8];
        for k in [usize::MAX, usize::MAX / 4 + 1, 1 << 60] {
            let result = index.search(&four, k);
            assert!(matches!(result, Err(Error::ResultTooLarge { queries: 4, k: asked }) if asked == k), "{result:?}");
            let result = select_k(device, &Rows::contiguous(&four, 2).unwrap(), k, Best::Largest);
            assert!(matches!(result, Err(Error::ResultTooLarge { queries: 4, k: asked }) if asked == k), "{result:?}");
        }
        assert!(matches!(
            index.search_into(&four, usize::MAX, &SearchOptions::new(), &mut [], &mut []),
            Err(Error::ResultTooLarge { queries: 4, k: usize::MAX })
        ));
        assert_unchanged(&index);
    }
}

#[test]
fn rows_that_do_not_fit_their_keys() {
    let keys = [1.0f32; 6];
    let contiguous = |columns| Rows::contiguous(&keys, columns).map(|_| ());
    assert!(matches!(contiguous(4), Err(Error::Ragged { what: "keys", len: 6, size: 4 })));
    assert!(matches!(contiguous(0), Err(Error::Ragged { what: "keys", len: 6, size: 0 })));
    for columns in [1 << 31, usize::MAX] {
        let limit = i32::MAX as u64;
        for result in [contiguous(columns), Rows::strided(&keys, 2, columns, 1).map(|_| ())] {
            assert_eq!(bad_row(result), ("length", 0, columns as u64, 0, limit));
        }
    }

    // The last row ends just where the keys do.
    assert_eq!(Rows::strided(&keys, 3, 2, 2).unwrap().row(2).len(), 2);
    assert_eq!(Rows::strided(&keys, 5, 2, 1).unwrap().row(4).len(), 2);
    for (rows, columns, stride, end) in [
        (3, 3, 2, 7),
        (4, 2, 2, 8),
        (1, 7, 0, 7),
        (2, 1, 6, 7),
        (2, 1, usize::MAX, u64::MAX),
        (usize::MAX, 1, 1, u64::MAX),
        (3, 2, 1 << 63, u64::MAX),
    ] {
        let result = Rows::strided(&keys, rows, columns, stride).map(|_| ());
        assert_eq!(bad_row(result), ("end", rows - 1, end, 0, 6));
    }

    let ragged = |starts: &[u64]| Rows::ragged(&keys, starts).map(|rows| (rows.len(), rows.columns()));
    assert_eq!(ragged(&[]).unwrap(), (0, 0));
    assert_eq!(ragged(&[6]).unwrap(), (0, 0));
    assert_eq!(ragged(&[1, 1, 6]).unwrap(), (2, 5));
    assert_eq!(bad_row(ragged(&[0, 3, 2, 6])), ("end", 1, 2, 3, u64::MAX));
    assert_eq!(bad_row(ragged(&[0, 7])), ("end", 0, 7, 0, 6));
    assert_eq!(bad_row(ragged(&[7])), ("end", 0, 7, 0, 6));
    assert_eq!(bad_row(ragged(&[0, 2, 2 + (1 << 31)])), ("length", 1, 0x8000_0000, 0, 0x7fff_ffff));
    assert_eq!(bad_row(ragged(&[u64::MAX, 0])), ("end", 0, 0, u64::MAX, u64::MAX));
}

#[test]
fn lengths_that_do_not_fit_their_rows() {
    let keys = [1.0f32; 6];
    let matrix = Rows::contiguous(&keys, 3).unwrap();
    let ragged = Rows::ragged(&keys, &[0, 1, 6]).unwrap();
    assert!(matches!(matrix.with_lengths(&[1]), Err(Error::WrongLength { what: "lengths", expected: 2, actual: 1 })));
    assert!(matches!(
        ragged.with_lengths(&[1; 3]),
        Err(Error::WrongLength { what: "lengths", expected: 2, actual: 3 })
    ));
    assert_eq!(bad_row(matrix.with_lengths(&[3, 4])), ("length", 1, 4, 0, 3));
    assert_eq!(bad_row(ragged.with_lengths(&[2, 4])), ("length", 0, 2, 0, 1));
    // Later lengths take the place of earlier ones.
    let again = ragged.with_lengths(&[0, 2]).unwrap().with_lengths(&[1, 5]).unwrap();
    assert_eq!((again.columns(), again.row(1).len(), again.row(2).len()), (5, 5, 0));
}

/// `usize::MAX` rows without keys: no arithmetic overflows before the error is returned.
#[test]
fn rows_without_number() {
    for device in DEVICES {
        let rows = Rows::<f32>::strided(&[], usize::MAX, 0, usize::MAX).unwrap();
        assert_eq!((rows.len(), rows.row(usize::MAX - 1).len()), (usize::MAX, 0));
        for k in [1, 2, usize::MAX] {
            let result = select_k(device, &rows, k, Best::Smallest);
            assert!(matches!(result, Err(Error::ResultTooLarge { queries: usize::MAX, .. })), "{result:?}");
        }
        let same = Rows::strided(&[1.0f32], usize::MAX / 2, 1, 0).unwrap();
        assert!(matches!(select_k(device, &same, 3, Best::Largest), Err(Error::ResultTooLarge { k: 3, .. })));
        let none = select_k(device, &Rows::strided(&[0u32; 0], 2, 0, 9).unwrap(), 2, Best::Largest).unwrap();
        assert_eq!((none.keys, none.positions), (vec![0; 4], vec![NO_POSITION; 4]));
    }
}

#[test]
fn payloads_that_do_not_fit_their_keys() {
    let rows = one_row(&[3.0, 1.0, 2.0]);
    let found = select_k(Device::Cpu, &rows, 2, Best::Smallest).unwrap();
    assert_eq!(found.payloads(&rows, &[7u32, 8, 9]).unwrap(), [8, 9]);
    assert!(matches!(
        found.payloads(&rows, &[7u64; 2]),
        Err(Error::WrongLength { what: "payloads", expected: 3, actual: 2 })
    ));
    let other = Rows::contiguous(&[3.0f32, 1.0, 2.0], 1).unwrap();
    assert!(matches!(
        found.payloads(&other, &[7u32; 3]),
        Err(Error::WrongLength { what: "results", expected: 6, actual: 2 })
    ));
    let outside = Selection { k: 2, keys: vec![0.0; 2], positions: vec![NO_POSITION, 3] };
    assert_eq!(bad_row(outside.payloads(&rows, &[7u32; 3])), ("selected position", 0, 3, 0, 2));
    assert_eq!(Selection::default().payloads(&rows, &[7u32; 3]).unwrap(), []);
}

#[test]
fn algorithms_that_do_not_select_such_keys() {
    let halves = [f16::ONE; 3];
    let rows = Rows::contiguous(&halves, 3).unwrap();
    let by_warp = |device| select_k_with(device, &rows, 1, Best::Smallest, Algorithm::WarpSelect);
    assert!(matches!(
        by_warp(Device::Emulator),
        Err(Error::Mismatch { what: "key type for warp-select", expected: "f32", actual: "f16" })
    ));
    // The CPU has one algorithm.
    assert_eq!(by_warp(Device::Cpu).unwrap().positions, [0]);
}

/// Errors of a plan are reported before the device is opened.
#[cfg(feature = "cuda")]
#[test]
fn plans_for_device_memory() {
    let plan = |columns, k, algorithm| {
        DeviceSelect::<f16>::new(usize::MAX, 3, columns, k, Best::Smallest, algorithm).map(|_| ()).unwrap_err()
    };
    assert!(matches!(plan(10, 0, Algorithm::Auto), Error::Zero { what: "k" }));
    let error = plan(1 << 31, 1, Algorithm::Auto);
    assert_eq!(bad_row(Err::<(), _>(error)), ("length", 0, 0x8000_0000, 0, 0x7fff_ffff));
    let error = plan(10, 1 << 31, Algorithm::Auto);
    assert!(
        matches!(
            error,
            Error::LaunchLimit { kernel: "threshold_select_f16", what: "k", asked: 0x8000_0000, limit: 0x7fff_ffff }
        ),
        "{error}"
    );
    let error = plan(10, 1, Algorithm::WarpSelect);
    assert!(
        matches!(error, Error::Mismatch { what: "key type for warp-select", expected: "f32", actual: "f16" }),
        "{error}"
    );
    let error = plan(10, 1, Algorithm::Auto);
    assert!(matches!(error, Error::NoDevice { .. }), "{error}");
    assert_eq!(
        Error::TooMany { what: "rows for this plan", asked: 7, limit: 5 }.to_string(),
        "7 rows for this plan; the limit is 5"
    );
}

#[test]
fn a_device_that_does_not_exist() {
    let open = |index| FlatIndex::<f32>::new(4, Metric::L2, Device::Gpu(index)).map(|_| ());
    let selected = |index| select_k(Device::Gpu(index), &one_row(&[1.0]), 1, Best::Smallest).map(|_| ());
    match warpann::device::info::devices() {
        Ok(devices) => {
            let available = devices.len();
            for asked in [available, available + 5, usize::MAX] {
                for result in [open(asked), selected(asked)] {
                    assert!(
                        matches!(
                            result,
                            Err(Error::NoDevice { reason: NoDeviceReason::NoSuchDevice { asked: a, available: b } })
                                if (a, b) == (asked, available)
                        ),
                        "{result:?}"
                    );
                }
            }
        }
        Err(Error::NoDevice { reason }) => {
            for asked in [0, 1, usize::MAX] {
                for result in [open(asked), selected(asked)] {
                    assert!(matches!(result, Err(Error::NoDevice { reason: r }) if r == reason), "{result:?}");
                }
            }
            let expected: &[NoDeviceReason] = if cfg!(feature = "cuda") {
                &[NoDeviceReason::NoDriver, NoDeviceReason::NoneReported(100)]
            } else {
                &[NoDeviceReason::FeatureOff]
            };
            let stub = matches!(reason, NoDeviceReason::NoneReported(_)) && cfg!(feature = "cuda");
            assert!(stub || expected.contains(&reason), "{reason:?}");
            let names_feature = reason.to_string().contains("feature 'cuda'");
            assert_eq!(names_feature, reason == NoDeviceReason::FeatureOff, "{reason}");
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn auto_works_everywhere() {
    let index = small(Device::Auto);
    assert_unchanged(&index);
    let selected = select_k(Device::Auto, &one_row(&[2.0, 1.0]), 1, Best::Smallest).unwrap();
    assert_eq!((selected.keys[0], selected.positions[0]), (1.0, 1));
}

#[test]
fn errors_say_what_was_asked_and_what_there_is() {
    let text = |error: Error| error.to_string();
    assert_eq!(
        text(Error::NotFinite { input: Input::Queries, row: 7, column: 3, value: f32::NAN }),
        "component NaN at row 7, column 3 of the queries is not finite"
    );
    assert_eq!(
        text(Error::Mismatch { what: "key type for warp-select", expected: "f32", actual: "bf16" }),
        "key type for warp-select: bf16; f32 is needed"
    );
    let index = small(Device::Cpu);
    assert!(text(index.reconstruct(9).unwrap_err()).contains('9'));
    assert!(text(index.search(&[1.0; 3], 1).unwrap_err()).contains('3'));
}

#[test]
fn a_vector_too_small_for_the_scale_of_its_index_is_named_and_changes_nothing() {
    let rows: Vec<f32> = (0..3 * 40).map(|at| 1e-4 * (at as f32 * 0.7).sin()).collect();
    for device in DEVICES {
        let mut index =
            IvfIndex::<f32>::builder(3, 4).encoding(Encoding::F16).iterations(1).device(device).build().unwrap();
        index.train(&rows).unwrap();
        // The greatest component is nearly 1e-4, so the scale is 2^14.
        let edge = 2f32.powi(-28);
        let mut small = rows.clone();
        (small[..3]).fill(0.0);
        small[3..6].copy_from_slice(&[1e-20, -edge, 0.0]);
        index.add(&small).unwrap();
        assert_eq!(index.reconstruct(0).unwrap(), [0.0; 3]);
        assert_eq!(index.reconstruct(1).unwrap(), [0.0, -edge, 0.0]);
        let below = 0.999 * edge;
        small[3 * 9..3 * 10].copy_from_slice(&[0.0, -below, 1e-20]);
        let result = index.add(&small);
        let Err(Error::DoesNotFit { encoding: "f16", row: 9, column: 1, value, least, .. }) = result else {
            panic!("{result:?}")
        };
        assert_eq!((value, least, index.len()), (-below, edge, 40));
    }
}

#[test]
fn a_component_that_f16_does_not_hold_is_named_by_row_and_column_and_changes_nothing() {
    let rows: Vec<f32> = (0..3 * 40).map(|at| (at as f32 * 0.7).sin()).collect();
    for device in DEVICES.into_iter().map(Placement::from).chain(["cpu+cpu,cpu+cpu".parse().unwrap()]) {
        let builder = IvfIndex::<f32>::builder(3, 4).encoding(Encoding::F16).iterations(1).device(device);
        let mut index = builder.clone().build().unwrap();
        let mut bad = rows.clone();
        // The least number that rounds to infinity, and what rounds to the greatest.
        bad[3 * 7 + 1] = 65_519.996;
        index.train(&bad).unwrap();
        (bad[3 * 31 + 2], bad[3 * 38]) = (-65_520.0, f32::MAX);
        let refused = |result: Result<(), Error>| {
            let Err(Error::DoesNotFit { encoding: "f16", row, column, greatest: 65_504.0, .. }) = result else {
                panic!("{result:?}")
            };
            (row, column)
        };
        assert_eq!(refused(builder.clone().build().unwrap().train(&bad)), (31, 2));
        index.add(&rows).unwrap();
        assert_eq!(refused(index.add(&bad)), (31, 2));
        assert_eq!(
            (index.len(), index.search_with(&rows[..3], 1, &SearchOptions::new().probes(4)).unwrap().ids),
            (40, vec![0])
        );
        let batches = index.add_batches([&rows[..], &bad]);
        assert_eq!(refused(batches), (40 + 31, 2));
        assert_eq!(index.len(), 80);
        // Queries may be larger, and normalised vectors always fit.
        index.search_with(&bad, 1, &SearchOptions::new().probes(4)).unwrap();
        let mut cosine = builder.metric(Metric::Cosine).build().unwrap();
        cosine.train(&bad).unwrap();
        cosine.add(&bad).unwrap();
    }
}

#[test]
fn encodings_for_other_element_types() {
    let refused = IvfIndex::<u8>::builder(2, 1).encoding(Encoding::F16).device(Device::Cpu).build();
    assert!(matches!(
        refused,
        Err(Error::Mismatch { what: "element type for encoding f16", expected: "f32", actual: "u8" })
    ));
    assert!(IvfIndex::<f16>::builder(2, 1).encoding(Encoding::F16).device(Device::Cpu).build().is_err());
    for bits in [0, 9] {
        let built = IvfIndex::<f32>::builder(2, 1).encoding(Encoding::Bits { bits }).device(Device::Cpu).build();
        assert!(matches!(built, Err(Error::OutOfRange { what: "bits per component", .. })), "{bits}");
    }
    assert!(IvfIndex::<u8>::builder(2, 1).encoding(Encoding::Scalar8).device(Device::Cpu).build().is_ok());
}
