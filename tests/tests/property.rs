//! Random cases of every kind on every device; `warpann_tests::property` says how to run more of them, or one again.

use std::process::ExitCode;
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};
use warpann::Device;
use warpann_tests::property::{Asked, DRIVER, EMULATED, KINDS, deep, device_name, number, run, seeds};
use warpann_tests::suite::{missing, required};

fn main() -> ExitCode {
    match run_all() {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::FAILURE
        }
    }
}

fn run_all() -> Result<ExitCode, String> {
    let asked = Asked::from_environment()?;
    let devices = match std::env::var(DRIVER) {
        Ok(driver) if driver == EMULATED => vec![emulated_driver()?],
        Ok(driver) => return Err(format!("{DRIVER}={driver}: the only value is {EMULATED}")),
        Err(_) => vec![Device::Cpu, Device::Emulator, Device::Gpu(0)],
    };
    if let Some(seconds) = number("WARPANN_PROPERTY_SECONDS")? {
        return deeply(&devices, Duration::from_secs(seconds));
    }
    let arguments = Arguments::from_args();
    if asked.seed.is_none() && !arguments.list {
        let base = asked.base;
        eprintln!("seeds from {base} on; WARPANN_PROPERTY_BASE={base} draws the same cases at another revision");
    }
    let mut trials = Vec::new();
    for device in devices {
        let ignored = missing(device).is_some() && !required();
        let needs = if ignored { "needs a CUDA device" } else { "" };
        for kind in KINDS {
            let name = format!("{}::{}", kind.name, device_name(device));
            let test = move || run(kind, device, asked).map_err(Failed::from);
            trials.push(Trial::test(name, test).with_ignored_flag(ignored).with_kind(needs));
        }
    }
    Ok(libtest_mimic::run(&arguments, trials).exit_code())
}

/// Runs the properties that the arguments name for some time. Every argument is a part of a name.
fn deeply(devices: &[Device], time: Duration) -> Result<ExitCode, String> {
    let there: Vec<Device> = devices.iter().copied().filter(|&device| missing(device).is_none()).collect();
    let filters: Vec<String> = std::env::args().skip(1).collect();
    let base = number("WARPANN_PROPERTY_BASE")?.unwrap_or_else(seeds::fresh);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    eprintln!("{} s of cases on {there:?}, seeds from {base} on, {threads} threads", time.as_secs());
    let report = deep::run(KINDS, &there, &filters, base, time, threads);
    print!("{}", report.text);
    Ok(if report.failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A GPU of the driver emulator, of compute capability 8.0.
#[cfg(feature = "cuda")]
fn emulated_driver() -> Result<Device, String> {
    cuda_driver_emulator::install(vec![cuda_driver_emulator::Device::default()]).map_err(|error| error.to_string())?;
    warpann_tests::property::emulate_the_driver();
    Ok(Device::Gpu(0))
}

#[cfg(not(feature = "cuda"))]
fn emulated_driver() -> Result<Device, String> {
    Err("the driver emulator needs the feature cuda".to_owned())
}
