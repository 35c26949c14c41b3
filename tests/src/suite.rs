//! The list of tests of one device.

use std::process::{Command, ExitCode};

use libtest_mimic::{Arguments, Failed, Trial};
use warpann::{Device, Error, FlatIndex};

use crate::cases::{Size, search_cases, select_cases};
use crate::ivf::cases::ivf_cases;
use crate::runner::{self, Outcome};
use crate::{adversarial, ivf, kmeans, sanitize, scenarios, shifted, sort, walks};

/// Keeps GPUs to the portable kernels if it is 1. Any value keeps [`run_with_portable_kernels_too`] from running them
/// as well.
const PORTABLE: &str = "WARPANN_PORTABLE_KERNELS";

/// As [`run`], and on a device with special kernels (by clusters and warpgroups, from compute capability 9.0 on) every
/// test once more with the kernels of all other devices, as `portable_kernels::NAME`: by a second process, since a
/// process loads one or the other.
pub fn run_with_portable_kernels_too(device: Device) -> ExitCode {
    let own = run(device);
    let index = if let Device::Gpu(index) = device { Some(index) } else { None };
    let devices = warpann::device::info::devices().unwrap_or_default();
    let target = devices.iter().find(|info| Some(info.index) == index).and_then(|info| info.ptx_target.as_deref());
    // Such as `sm_80, sm_90, sm_90a`.
    let has_own_kernels = target.is_some_and(|target| target.contains(','));
    if !has_own_kernels || std::env::var_os(PORTABLE).is_some() {
        return own;
    }
    let again = std::env::current_exe()
        .and_then(|program| Command::new(program).args(std::env::args_os().skip(1)).env(PORTABLE, "1").status());
    match again {
        Ok(status) if status.success() => own,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("the tests with portable kernels cannot start: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The reason why the machine has no such device; none if it has one.
pub fn missing(device: Device) -> Option<Error> {
    match FlatIndex::<f32>::builder(1).device(device).build() {
        Ok(_) => None,
        // Only errors that mean that there is no device count; the tests show any other failure.
        Err(error @ Error::NoDevice { .. }) => Some(error),
        Err(_) => None,
    }
}

/// Whether a missing GPU is a failure.
pub fn required() -> bool {
    std::env::var_os("WARPANN_REQUIRE_GPU").is_some_and(|value| value == "1")
}

/// Lists and runs every test on `device`, with the command line of `cargo test`.
///
/// If the machine has no such device, the tests show as ignored; with `WARPANN_REQUIRE_GPU=1` they run, and fail.
pub fn run(device: Device) -> ExitCode {
    let portable = std::env::var_os(PORTABLE).is_some_and(|value| value == "1") && matches!(device, Device::Gpu(_));
    let prefix = if portable { "portable_kernels::" } else { "" };
    let missing = missing(device);
    let ignored = missing.is_some() && !required();
    let kind = if ignored { "needs a CUDA device" } else { "" };
    let runs = |size: Size| size == Size::Small || device != Device::Emulator;
    let trial = |name: String, test: Box<dyn FnOnce() -> Outcome + Send>| {
        Trial::test(format!("{prefix}{name}"), move || test().map_err(Failed::from))
            .with_ignored_flag(ignored)
            .with_kind(kind)
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
    let families = [
        scenarios::ALL,
        sanitize::ALL,
        adversarial::ALL,
        ivf::scenarios::ALL,
        kmeans::ALL,
        sort::ALL,
        shifted::ALL,
        // The CPU is their reference.
        if device == Device::Cpu { &[] } else { walks::ALL },
    ];
    for &(name, scenario) in families.into_iter().flatten() {
        trials.push(trial(name.to_owned(), Box::new(move || scenario(device))));
    }
    #[cfg(feature = "cuda")]
    if let Device::Gpu(_) = device {
        let families = [crate::on_device::ALL, crate::device_data::ALL, crate::cudarc_data::ALL];
        for &(name, scenario) in families.into_iter().flatten() {
            trials.push(trial(name.to_owned(), Box::new(move || scenario(device))));
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
