//! The events of the feature `tracing` on the CUDA path, with the emulated driver: the chosen GPU, its modules,
//! uploads, and graphs that are missing.

use cuda_driver_emulator::{self as driver, Fault, Lasts};
use tracing::Level;
use warpann::{Device, Error, FlatIndex, GraphIndex, Metric};
use warpann_tests::recorder::{Recorded, events_of, install};

/// One test, because the driver and the subscriber are those of the process.
#[test]
fn events_tell_what_happens_on_a_gpu() {
    driver::install(vec![driver::Device::default()]).unwrap();
    install();
    a_gpu_is_chosen_and_its_modules_are_loaded_once();
    graphs_are_made_or_reported();
}

fn a_gpu_is_chosen_and_its_modules_are_loaded_once() {
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

/// About 60 calls of additions fail in turn, each once. Then the addition fails, or the index has a graph, or an event
/// says that it has none.
fn graphs_are_made_or_reported() {
    let base: Vec<f32> = (0..72 * 4).map(|at| (at * at % 1009) as f32).collect();
    let added = || {
        let builder = GraphIndex::<f32>::builder(4).exact_ratio(0).degree(4).device(Device::Gpu(0));
        let mut index = builder.build()?;
        index.add(&base[..64 * 4])?;
        index.add(&base[64 * 4..])?;
        Ok::<_, Error>(index)
    };
    // Loads the modules.
    added().unwrap();
    let (_, calls) = driver::watch(added);
    let (mut missing, mut made) = (0, 0);
    for after in (0..calls.len()).step_by(calls.len() / 60 + 1) {
        driver::fail(Fault { after: after as u64, code: 701, lasts: Lasts::Once });
        let (added, events) = events_of(added);
        driver::heal();
        let reports: Vec<_> =
            events.iter().filter(|event| event.field("message").starts_with("no graph could be made")).collect();
        let Ok(index) = added else { continue };
        assert_eq!(index.len(), 72);
        if let [report] = reports[..] {
            assert_eq!(report.level, Level::WARN);
            assert!(report.field("device").starts_with("gpu:0"), "{report:?}");
            assert!(report.field("reason").contains("701"), "{report:?}");
            missing += 1;
        } else {
            assert!(reports.is_empty() && index.statistics().edges > 0, "{after}: {:?}, {events:?}", calls[after]);
            made += 1;
        }
    }
    assert!(missing > 0 && made > 0, "{missing} graphs are missing, {made} are there, of {} calls", calls.len());
}
