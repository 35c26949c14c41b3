//! The list of tests of one device.

use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};
use warpann::{Device, Error, FlatIndex};

use crate::cases::{Size, search_cases, select_cases};
use crate::ivf::cases::ivf_cases;
use crate::runner::{self, Outcome};
use crate::{hostile, ivf, kmeans, scenarios, shifted, sort};

/// Why the machine has no such device; none if it has one.
pub fn missing(device: Device) -> Option<Error> {
    match FlatIndex::<f32>::builder(1).device(device).build() {
        Ok(_) => None,
        // Only what says that there is no device counts; any other failure is for the tests to show.
        Err(error @ (Error::NoDevice { .. } | Error::NoSuchDevice { .. } | Error::DeviceTooOld { .. })) => Some(error),
        Err(_) => None,
    }
}

/// Whether a missing GPU is a failure.
pub fn required() -> bool {
    std::env::var_os("WARPANN_REQUIRE_GPU").is_some_and(|value| value == "1")
}

/// Lists and runs every test on `device`, with the command line of `cargo test`.
///
/// Where the machine has no such device the tests show as ignored; with `WARPANN_REQUIRE_GPU=1` they run, and fail.
pub fn run(device: Device) -> ExitCode {
    let missing = missing(device);
    let ignored = missing.is_some() && !required();
    let kind = if ignored { "needs a CUDA device" } else { "" };
    let runs = |size: Size| size == Size::Small || device != Device::Emulator;
    let trial = |name: String, test: Box<dyn FnOnce() -> Outcome + Send>| {
        Trial::test(name, move || test().map_err(Failed::from)).with_ignored_flag(ignored).with_kind(kind)
    };
    let mut trials = vec![trial(
        "device::is_there".to_owned(),
        Box::new(move || match missing {
            Some(error) => Err(error.to_string()),
            None => Ok(()),
        }),
    )];
    for case in search_cases().into_iter().filter(|case| runs(case.size)) {
        trials.push(trial(case.name(), Box::new(move || runner::search(&case, device))));
    }
    for case in select_cases().into_iter().filter(|case| runs(case.size)) {
        trials.push(trial(case.name(), Box::new(move || runner::select(&case, device))));
    }
    for case in ivf_cases().into_iter().filter(|case| runs(case.size)) {
        trials.push(trial(case.name(), Box::new(move || ivf::runner::run(&case, device))));
    }
    let families = [scenarios::ALL, hostile::ALL, ivf::scenarios::ALL, kmeans::ALL, sort::ALL, shifted::ALL];
    for &(name, scenario) in families.into_iter().flatten() {
        trials.push(trial(name.to_owned(), Box::new(move || scenario(device))));
    }
    #[cfg(feature = "cuda")]
    if let Device::Gpu(_) = device {
        for &(name, scenario) in crate::on_device::ALL {
            trials.push(trial(name.to_owned(), Box::new(move || scenario(device))));
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
