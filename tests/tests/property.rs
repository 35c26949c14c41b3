//! Random cases of every kind on every device; `warpann_tests::property` says how to run more of them, or one again.

use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};
use warpann::Device;
use warpann_tests::property::{Asked, KINDS, device_name, run};
use warpann_tests::suite::{missing, required};

fn main() -> ExitCode {
    let asked = match Asked::from_environment() {
        Ok(asked) => asked,
        Err(failure) => {
            eprintln!("{failure}");
            return ExitCode::FAILURE;
        }
    };
    let mut trials = Vec::new();
    for device in [Device::Cpu, Device::Emulator, Device::Gpu(0)] {
        let ignored = missing(device).is_some() && !required();
        let needs = if ignored { "needs a CUDA device" } else { "" };
        for kind in KINDS {
            let name = format!("{}::{}", kind.name, device_name(device));
            let test = move || run(kind, device, asked).map_err(Failed::from);
            trials.push(Trial::test(name, test).with_ignored_flag(ignored).with_kind(needs));
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
