//! The events of the feature `tracing`, without a driver: the choice of the device, paths, uploads, and a base that is
//! streamed.

use tracing::Level;
use warpann::ivf::{Encoding, IvfIndex};
use warpann::select::{Algorithm, Best, Rows, select_k_with};
use warpann::{Device, FlatIndex, Metric, NoDeviceReason, Scan, SearchOptions};
use warpann_tests::recorder::{Recorded, events_of, install, with_panics};

const DIM: usize = 16;

fn vectors(count: usize) -> Vec<f32> {
    (0..count * DIM).map(|at| (at as u32).wrapping_mul(2_654_435_761) as f32 / u32::MAX as f32).collect()
}

/// The events with this message.
fn named<'a>(events: &'a [Recorded], message: &str) -> Vec<&'a Recorded> {
    events.iter().filter(|event| event.field("message") == message).collect()
}

/// One test, because the subscriber is that of the process.
#[test]
fn events_tell_what_the_library_decides() {
    install();
    the_choice_of_the_device();
    exact_search();
    a_base_beyond_the_budget();
    inverted_files();
    vectors_beyond_the_training();
    lists_that_became_old();
    selection();
    a_subscriber_that_panics();
}

fn the_choice_of_the_device() {
    let choose = || FlatIndex::<f32>::new(DIM, Metric::L2, Device::Auto).map(|index| index.device());
    let (device, events) = events_of(choose);
    let device = device.unwrap();
    let fallback = named(&events, "fallback to the CPU");
    if !device.starts_with("cpu") {
        let chosen = named(&events, "device chosen");
        assert_eq!((chosen.len(), fallback.len(), chosen[0].field("device")), (1, 0, "gpu:0"));
        return;
    }
    assert_eq!((fallback.len(), fallback[0].field("device")), (1, "cpu"), "{events:?}");
    let (_, again) = events_of(choose);
    if cfg!(feature = "cuda") {
        assert_eq!((fallback[0].level, named(&again, "fallback to the CPU").len()), (Level::INFO, 1));
        assert!(!device.contains("feature"), "{device}");
    } else {
        // Once in a process.
        assert_eq!((fallback[0].level, named(&again, "fallback to the CPU").len()), (Level::WARN, 0));
        assert_eq!(fallback[0].field("reason"), NoDeviceReason::FeatureOff.to_string());
        assert!(device.ends_with("(the feature cuda is off)"), "{device}");
    }
    let (_, events) = events_of(|| FlatIndex::<f32>::new(DIM, Metric::L2, Device::Cpu).unwrap());
    assert_eq!(events, [], "nothing is chosen for a named device");
}

fn exact_search() {
    for (device, few, many) in [
        (Device::Cpu, "query by query", "panels of queries"),
        (Device::Emulator, "all canonical distances", "filter on tensor cores"),
    ] {
        let mut index = FlatIndex::<f32>::new(DIM, Metric::L2, device).unwrap();
        let (_, events) = events_of(|| index.add(&vectors(300)).unwrap());
        let uploads = named(&events, "upload");
        if device == Device::Cpu {
            assert_eq!(events, []);
        } else {
            assert_eq!((uploads.len(), uploads[0].field("content"), uploads[0].field("bytes")), (1, "base", "19200"));
            assert!(uploads[0].field("milliseconds").parse::<f64>().unwrap() > 0.0);
            assert!(uploads[0].field("device").starts_with("GPU emulator"));
        }
        // The CPU decides by the number of queries, a device by k as well: the filter needs four times as many rows.
        let k = if device == Device::Cpu { 3 } else { 200 };
        for (queries, k, expected) in [(1, k, few), (20, 3, many)] {
            let (_, events) = events_of(|| index.search(&vectors(queries), k).unwrap());
            let paths: Vec<_> =
                named(&events, "path chosen").into_iter().filter(|path| path.level == Level::DEBUG).collect();
            let fields = |path: &Recorded| ["operation", "path", "queries"].map(|name| path.field(name).to_owned());
            let expected = ["exact search".to_owned(), expected.to_owned(), queries.to_string()];
            assert_eq!(paths.into_iter().map(fields).collect::<Vec<_>>(), [expected], "{device}");
        }
    }
}

fn a_base_beyond_the_budget() {
    let budget = 256 << 10;
    let build = FlatIndex::<f32>::builder(DIM).device(Device::Emulator).memory_budget(budget).build();
    let mut index = build.unwrap();
    let (_, events) = events_of(|| index.add(&vectors(9_000)).unwrap());
    let streamed = named(&events, "base exceeds the memory budget and is streamed");
    assert_eq!((streamed.len(), streamed[0].field("budget")), (1, "262144"), "{events:?}");
    let (_, events) = events_of(|| index.search(&vectors(1), 1).unwrap());
    let pieces = named(&events, "upload");
    let bytes: usize = pieces.iter().map(|piece| piece.field("bytes").parse::<usize>().unwrap()).sum();
    assert!(pieces.len() > 1 && pieces.iter().all(|piece| piece.field("content") == "piece of the base"));
    assert_eq!(bytes, 9_000 * DIM * 4);
}

fn inverted_files() {
    for device in [Device::Cpu, Device::Emulator] {
        let mut index = IvfIndex::<f32>::builder(DIM, 4).device(device).iterations(2).build().unwrap();
        let (_, events) = events_of(|| index.train(&vectors(300)).unwrap());
        let points = named(&events, "upload").iter().any(|upload| upload.field("content") == "points of k-means");
        assert_eq!(points, device == Device::Emulator);
        index.add(&vectors(300)).unwrap();
        for (scan, expected) in [(Scan::ListMajor, "list by list"), (Scan::QueryMajor, "query by query")] {
            let options = SearchOptions::new().probes(2).scan(scan);
            let (_, events) = events_of(|| index.search_with(&vectors(5), 3, &options).unwrap());
            let paths: Vec<_> =
                named(&events, "path chosen").into_iter().filter(|path| path.level == Level::DEBUG).collect();
            assert_eq!((paths.len(), paths[0].field("operation")), (1, "inverted file"), "{device}: {events:?}");
            // Without codes, a device reads lists only.
            let expected = if device == Device::Cpu { expected } else { "list by list" };
            assert_eq!(paths[0].field("path"), expected);
            // The first search makes the image of the index.
            let images = named(&events, "upload");
            let expected = usize::from(device == Device::Emulator && scan == Scan::ListMajor);
            assert_eq!(images.len(), expected, "{events:?}");
            assert!(images.iter().all(|image| image.field("content") == "image of an inverted file"));
        }
    }
}

fn vectors_beyond_the_training() {
    let mut index =
        IvfIndex::<f32>::builder(DIM, 4).encoding(Encoding::Scalar8).device(Device::Cpu).iterations(2).build().unwrap();
    index.train(&vectors(300)).unwrap();
    let message = "vectors beyond the training";
    let (_, events) = events_of(|| index.add(&vectors(300)).unwrap());
    assert!(named(&events, message).is_empty(), "{events:?}");
    let mut some = vectors(300).repeat(10);
    some[7] = 9.0;
    let (_, events) = events_of(|| index.add(&some).unwrap());
    let fields =
        |event: &Recorded| ["encoding", "vectors", "clamped", "components"].map(|name| event.field(name).to_owned());
    let one = named(&events, message);
    assert_eq!((one.len(), one[0].level), (1, Level::DEBUG));
    let [encoding, vectors_beyond, clamped, components] = fields(one[0]);
    assert_eq!([encoding, vectors_beyond, components], ["sq8", "1", "48000"].map(str::to_owned));
    // The vector may be in another list than before, so that several of its residuals are beyond the range.
    assert!((1..=DIM).contains(&clamped.parse().unwrap()), "{clamped}");
    let far: Vec<f32> = vectors(300).iter().map(|x| x + 5.0).collect();
    let (_, events) = events_of(|| index.add(&far).unwrap());
    let all = named(&events, message);
    let expected = ["sq8", "300", "4800", "4800"].map(str::to_owned);
    assert_eq!((all.len(), all[0].level, fields(all[0])), (1, Level::WARN, expected));
}

/// Each training is followed by one event at most: for vectors that have moved, and for lists that are unequal.
fn lists_that_became_old() {
    let mut index = IvfIndex::<f32>::builder(DIM, 16).device(Device::Cpu).iterations(2).build().unwrap();
    index.train(&vectors(400)).unwrap();
    let told = |index: &mut IvfIndex, change: &dyn Fn(&mut IvfIndex)| {
        let ((), events) = events_of(|| change(index));
        let told = named(&events, "lists should be trained again");
        assert!(told.iter().all(|event| event.level == Level::WARN));
        let numbers = |event: &&Recorded| ["imbalance", "drift"].map(|name| event.field(name).parse::<f64>().unwrap());
        told.iter().map(numbers).collect::<Vec<_>>()
    };
    let far: Vec<f32> = vectors(400).iter().map(|x| x + 5.0).collect();
    assert_eq!(told(&mut index, &|index| index.add(&vectors(400)).unwrap()), [[0.0; 2]; 0]);
    // Too few changes to measure the index, which is then measured with those that follow.
    assert_eq!(told(&mut index, &|index| index.add(&far[..40 * DIM]).unwrap()), [[0.0; 2]; 0]);
    let mut before = index.snapshot();
    let moved = told(&mut index, &|index| index.add(&far[40 * DIM..]).unwrap());
    assert!(moved.len() == 1 && moved[0][1] > 1.5, "{moved:?}");
    assert_eq!(moved[0], [index.statistics().imbalance, index.drift().unwrap()]);
    assert_eq!(told(&mut index, &|index| index.add(&far).unwrap()), [[0.0; 2]; 0]);
    assert_eq!(told(&mut before, &|index| index.add(&far).unwrap()), [[0.0; 2]; 0], "a snapshot has the same training");
    assert_eq!(told(&mut index, &|index| index.retrain().unwrap()), [[0.0; 2]; 0]);
    assert_eq!(told(&mut index, &|index| index.remove(&[3, 4, 5]).unwrap()), [[0.0; 2]; 0]);
    let equal = far[..DIM].repeat(4_000);
    let unequal = told(&mut index, &|index| index.add(&equal).unwrap());
    assert!(unequal.len() == 1 && unequal[0][0] > 4.0 && unequal[0][1] < 1.5, "{unequal:?}");
    let ids: Vec<u64> = (100..1_300).collect();
    assert_eq!(told(&mut index, &|index| _ = index.upsert(&far.repeat(3), &ids).unwrap()), [[0.0; 2]; 0]);
}

fn selection() {
    let keys = vectors(40);
    let rows = Rows::contiguous(&keys, 320).unwrap();
    let (_, events) =
        events_of(|| select_k_with(Device::Emulator, &rows, 5, Best::Smallest, Algorithm::WarpSelect).unwrap());
    let paths = named(&events, "path chosen");
    assert_eq!(paths.len(), 1);
    let fields = ["operation", "path", "rows", "k"].map(|name| paths[0].field(name));
    assert_eq!((paths[0].level, fields), (Level::TRACE, ["selection", "warp", "2", "5"]));
}

/// The calls go on, and the indexes are those of calls without events.
fn a_subscriber_that_panics() {
    let rows = vectors(300);
    for device in [Device::Cpu, Device::Emulator] {
        let flat = || {
            let mut index = FlatIndex::<f32>::new(DIM, Metric::L2, device).unwrap();
            index.add(&rows).unwrap();
            index.upsert(&rows[..2 * DIM], &[7, 400]).unwrap();
            (index.to_bytes().unwrap(), index.search(&vectors(20), 3).unwrap())
        };
        let streamed = || {
            let builder = FlatIndex::<f32>::builder(DIM).device(device).memory_budget(256 << 10);
            let mut index = builder.build().unwrap();
            index.add(&vectors(9_000)).unwrap();
            index.search(&vectors(1), 3).unwrap()
        };
        let inverted = || {
            let mut index = IvfIndex::<f32>::builder(DIM, 4).device(device).iterations(2).build().unwrap();
            index.train(&rows).unwrap();
            index.add(&rows).unwrap();
            let before = index.search_with(&vectors(5), 3, &SearchOptions::new().probes(2)).unwrap();
            index.remove(&[3]).unwrap();
            (
                index.to_bytes().unwrap(),
                before,
                index.search_with(&vectors(5), 3, &SearchOptions::new().probes(2)).unwrap(),
            )
        };
        let ((found_flat, found_streamed, found_inverted), panics) = with_panics(|| (flat(), streamed(), inverted()));
        assert!(panics > 3, "{panics}");
        assert!(found_flat == flat() && found_inverted == inverted(), "{device}");
        assert_eq!(found_streamed, streamed());
    }
}
