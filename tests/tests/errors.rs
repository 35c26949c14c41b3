//! Every typed error that a caller of the library can meet, on every device that this machine has, with its numbers.

use warpann::select::{Best, select_k};
use warpann::{Device, Error, FlatIndex, Metric, NONE, NoDeviceReason};

/// The CPU and the emulator are everywhere; a GPU refuses the same arguments before it does anything.
const DEVICES: [Device; 2] = [Device::Cpu, Device::Emulator];

fn small(device: Device) -> FlatIndex<f32> {
    let mut index = FlatIndex::new(2, Metric::L2, device).unwrap();
    index.add(&[0.0, 0.0, 1.0, 0.0, 0.0, 2.0]).unwrap();
    index
}

/// What a failed call must not change.
fn assert_unchanged(index: &FlatIndex<f32>) {
    assert_eq!(index.len(), 3);
    assert_eq!(index.search(&[0.0, 2.0], 4).unwrap().ids, [2, 0, 1, NONE]);
    assert_eq!(index.reconstruct(1).unwrap(), [1.0, 0.0]);
}

#[test]
fn zero_dimension() {
    for device in DEVICES.into_iter().chain([Device::Auto, Device::Gpu(0), Device::Gpu(usize::MAX)]) {
        assert!(matches!(FlatIndex::<f32>::new(0, Metric::L2, device), Err(Error::ZeroDimension)), "{device}");
    }
}

#[test]
fn ragged_vectors() {
    for device in DEVICES {
        let mut index = small(device);
        assert!(matches!(index.add(&[1.0; 5]), Err(Error::RaggedVectors { len: 5, dim: 2 })));
        assert!(matches!(index.search(&[1.0; 3], 1), Err(Error::RaggedVectors { len: 3, dim: 2 })));
        assert_unchanged(&index);
    }
}

#[test]
fn what_is_not_finite_is_named_by_row_and_column_and_changes_nothing() {
    for device in DEVICES {
        let mut index = small(device);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in [0, 1, 2049, 3999] {
                let mut rows = vec![0.5; 4000];
                rows[at] = bad;
                for result in [index.add(&rows), index.search(&rows, 1).map(|_| ())] {
                    let Err(Error::NotFinite { row, column, value }) = result else { panic!("{device}: {result:?}") };
                    assert_eq!((row, column, value.to_bits()), (at / 2, at % 2, bad.to_bits()));
                }
            }
        }
        // The first of several.
        let rows = [1.0, 2.0, 3.0, f32::NAN, f32::INFINITY, 1.0];
        assert!(matches!(index.add(&rows), Err(Error::NotFinite { row: 1, column: 1, .. })));
        assert_unchanged(&index);
    }
    let mut halves = FlatIndex::<half::f16>::new(3, Metric::Cosine, Device::Cpu).unwrap();
    let rows = [half::f16::ONE, half::f16::ONE, half::f16::NEG_INFINITY];
    assert!(matches!(halves.add(&rows), Err(Error::NotFinite { row: 0, column: 2, .. })));
    assert!(halves.is_empty());
}

#[test]
fn zero_k() {
    for device in DEVICES {
        let index = small(device);
        assert!(matches!(index.search(&[1.0, 2.0], 0), Err(Error::ZeroK)));
        assert!(matches!(index.search(&[], 0), Err(Error::ZeroK)));
        assert!(matches!(select_k(device, &[1.0], 1, None, 0, Best::Smallest), Err(Error::ZeroK)));
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
            index.search_into(&query, 2, &mut [0; 1], &mut [0.0; 2]),
            Err(Error::WrongResultLength { expected: 2, actual: 1 })
        ));
        assert!(matches!(
            index.search_into(&query, 2, &mut [0; 2], &mut [0.0; 5]),
            Err(Error::WrongResultLength { expected: 2, actual: 5 })
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
            let result = select_k(device, &four, 2, None, k, Best::Largest);
            assert!(matches!(result, Err(Error::ResultTooLarge { queries: 4, k: asked }) if asked == k), "{result:?}");
        }
        assert!(matches!(
            index.search_into(&four, usize::MAX, &mut [], &mut []),
            Err(Error::ResultTooLarge { queries: 4, k: usize::MAX })
        ));
        assert_unchanged(&index);
    }
}

#[test]
fn keys_and_lengths_that_do_not_fit_each_other() {
    for device in DEVICES {
        let select = |columns, lengths| select_k(device, &[1.0; 6], columns, lengths, 1, Best::Smallest);
        assert!(matches!(select(4, None), Err(Error::RaggedVectors { len: 6, dim: 4 })));
        assert!(matches!(select(0, None), Err(Error::RaggedVectors { len: 6, dim: 0 })));
        assert!(matches!(select(3, Some(&[1])), Err(Error::WrongResultLength { expected: 2, actual: 1 })));
        assert!(matches!(select(3, Some(&[3, 4])), Err(Error::RowTooLong { row: 1, length: 4, limit: 3 })));
        let limit = i32::MAX as u64;
        let result = select(1 << 31, None);
        assert!(matches!(result, Err(Error::RowTooLong { length: 0x8000_0000, limit: at, .. }) if at == limit));
    }
}

#[test]
fn a_device_that_does_not_exist() {
    let open = |index| FlatIndex::<f32>::new(4, Metric::L2, Device::Gpu(index)).map(|_| ());
    let selected = |index| select_k(Device::Gpu(index), &[1.0], 1, None, 1, Best::Smallest).map(|_| ());
    match warpann::device_info::devices() {
        Ok(devices) => {
            let available = devices.len();
            for asked in [available, available + 5, usize::MAX] {
                for result in [open(asked), selected(asked)] {
                    assert!(
                        matches!(result, Err(Error::NoSuchDevice { asked: a, available: b }) if (a, b) == (asked, available)),
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
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn auto_works_everywhere() {
    let index = small(Device::Auto);
    assert_unchanged(&index);
    let selected = select_k(Device::Auto, &[2.0, 1.0], 2, None, 1, Best::Smallest).unwrap();
    assert_eq!((selected.keys[0], selected.positions[0]), (1.0, 1));
}

#[test]
fn errors_say_what_was_asked_and_what_there_is() {
    let text = |error: Error| error.to_string();
    assert_eq!(
        text(Error::NotFinite { row: 7, column: 3, value: f32::NAN }),
        "component NaN at row 7, column 3 is not finite"
    );
    let index = small(Device::Cpu);
    assert!(text(index.reconstruct(9).unwrap_err()).contains('9'));
    assert!(text(index.search(&[1.0; 3], 1).unwrap_err()).contains('3'));
}
