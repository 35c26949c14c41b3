//! The events of the feature `tracing` on the CUDA path, with the emulated driver: the chosen GPU, its modules, and uploads.

use cuda_driver_emulator as driver;
use tracing::Level;
use warpann::{Device, FlatIndex, Metric};
use warpann_tests::recorder::{Recorded, events_of, install};

/// One test, because the driver and the subscriber are those of the process.
#[test]
fn a_gpu_is_chosen_and_its_modules_are_loaded_once() {
    driver::install(vec![driver::Device::default()]).unwrap();
    install();
    let (index, events) = events_of(|| FlatIndex::<f32>::new(8, Metric::L2, Device::Auto));
    let mut index = index.unwrap();
    let fields = |event: &Recorded, names: [&str; 2]| names.map(|name| event.field(name).to_owned());
    let chosen: Vec<_> = events.iter().filter(|event| event.level == Level::INFO).collect();
    assert_eq!(chosen.len(), 1, "{events:?}");
    assert_eq!(fields(chosen[0], ["message", "device"]), ["device chosen", "gpu:0"]);

    let base: Vec<f32> = (0..800).map(|at| at as f32).collect();
    let (_, events) = events_of(|| index.add(&base).unwrap());
    let uploads: Vec<_> = events.iter().filter(|event| event.field("message") == "upload").collect();
    assert_eq!(uploads.len(), 1, "{events:?}");
    assert_eq!(fields(uploads[0], ["content", "bytes"]), ["base", "3200"]);
    assert!(uploads[0].field("device").starts_with("gpu:0 ("), "{uploads:?}");

    let modules = |events: &[Recorded]| -> Vec<String> {
        let loaded = events.iter().filter(|event| event.field("message") == "kernel module loaded");
        loaded
            .inspect(|module| assert_eq!(module.field("device"), "0"))
            .map(|module| module.field("module").to_owned())
            .collect()
    };
    let (_, events) = events_of(|| index.search(&base[..8], 3).unwrap());
    let loaded = modules(&events);
    let known = warpann::device::info::modules();
    assert!(
        !loaded.is_empty() && loaded.iter().all(|name| known.iter().any(|module| module.family == *name)),
        "{loaded:?}"
    );
    let (_, events) = events_of(|| index.search(&base[..8], 3).unwrap());
    assert_eq!(modules(&events), [""; 0], "a module is loaded once");
    let mut different = loaded.clone();
    different.sort_unstable();
    different.dedup();
    assert_eq!(different.len(), loaded.len(), "{loaded:?}");
}
