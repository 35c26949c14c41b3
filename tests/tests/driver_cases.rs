//! A part of the case table on the CUDA path without a GPU: the library calls the driver, which is made of the emulator
//! (`cuda_driver_emulator`). Device 0 has compute capability 8.0 and device 1 has 9.0, so both kinds of tile products run.
//! `tests/emulator.rs` runs the whole small table on the emulator without the driver, so a share of it is enough here.

use std::collections::BTreeSet;
use std::process::ExitCode;

use cuda_driver_emulator as driver;
use libtest_mimic::{Arguments, Failed, Trial};
use warpann::Device;
use warpann::ivf::IvfIndex;
use warpann_kernels::ivf::rerank;
use warpann_tests::cases::{Size, search_cases, select_cases};
use warpann_tests::ivf::cases::ivf_cases;
use warpann_tests::runner::Outcome;
use warpann_tests::{ivf, runner};

/// The library's example, whose part for GPUs runs here.
#[path = "../../host/examples/select_on_stream.rs"]
mod select_on_stream;

/// One of this number of small cases runs; each device runs different ones.
const SHARE: [usize; 3] = [60, 60, 60];

fn main() -> ExitCode {
    let devices = [(8, 0), (9, 0)].map(|capability| driver::Device { capability, ..driver::Device::default() });
    if let Err(error) = driver::install(devices.to_vec()) {
        eprintln!("{error}");
        return ExitCode::FAILURE;
    }
    let trial = |name: String, test: Box<dyn FnOnce() -> Outcome + Send>| {
        Trial::test(name, move || test().and_then(|()| nothing_stopped()).map_err(Failed::from))
    };
    let mut trials = vec![trial("kernels::of_the_program_are_those_of_the_modules".to_owned(), Box::new(same_kernels))];
    trials
        .push(trial("shared_memory::as_much_as_a_launch_may_have_unasked".to_owned(), Box::new(unasked_shared_memory)));
    trials.push(trial("examples::select_on_stream".to_owned(), Box::new(example)));
    for gpu in 0..2 {
        let device = Device::Gpu(gpu);
        let named = |name: String| format!("gpu:{gpu}::{name}");
        let small = search_cases().into_iter().filter(|case| case.size == Size::Small);
        for case in small.skip(gpu).step_by(SHARE[0]) {
            trials.push(trial(named(case.name()), Box::new(move || runner::search(&case, device))));
        }
        let small = select_cases().into_iter().filter(|case| case.size == Size::Small);
        for case in small.skip(gpu).step_by(SHARE[1]) {
            trials.push(trial(named(case.name()), Box::new(move || runner::select(&case, device))));
        }
        let small = ivf_cases().into_iter().filter(|case| case.size == Size::Small);
        for (number, case) in small.skip(gpu).step_by(SHARE[2]).enumerate() {
            // The first on the device itself. The others would take most of the time of all of these tests.
            let trainer = if number == 0 { device } else { Device::Cpu };
            trials
                .push(trial(named(case.name()), Box::new(move || ivf::runner::run_trained_on(&case, trainer, device))));
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// Every kernel of the PTX modules is one that the driver can run, and the other way round.
fn same_kernels() -> Outcome {
    let of_modules: BTreeSet<String> =
        warpann::device::info::modules().into_iter().flat_map(|module| module.kernels).collect();
    let of_program: BTreeSet<String> =
        cuda_std::emulator::kernels().iter().map(|kernel| kernel.name().to_owned()).collect();
    if of_modules.is_empty() || of_modules != of_program {
        let differ: Vec<_> = of_modules.symmetric_difference(&of_program).collect();
        return Err(format!("{} in modules, {} in the program; {differ:?}", of_modules.len(), of_program.len()));
    }
    Ok(())
}

/// The example ends without an error on a machine without a GPU as well, so this looks for its launches too.
fn example() -> Outcome {
    let (result, calls) = driver::watch(select_on_stream::main);
    result.map_err(|error| error.to_string())?;
    if calls.iter().any(|call| call.name == "cuLaunchKernel") { Ok(()) } else { Err("no kernel ran".to_owned()) }
}

/// Re-ranks as many candidates as take just the dynamic shared memory that a launch may have unasked: the kernel's own word is beyond it.
/// (Searches that re-rank others do not see the defect: a GPU found it once in 4,000 cases.)
fn unasked_shared_memory() -> Outcome {
    const UNASKED: u32 = 48 << 10;
    // A search for k neighbours re-ranks k and an eighth.
    let just_as_much = |k: &u32| rerank::shared_bytes(k + k / 8) == UNASKED;
    let counts: Vec<usize> = (100..5_000).filter(just_as_much).map(|k| k as usize).collect();
    if counts.is_empty() {
        return Err("no number of candidates takes just as much".to_owned());
    }
    let text = |error: warpann::Error| error.to_string();
    let vectors: Vec<f32> = (0..2 * counts[0]).map(|at| at as f32).collect();
    let mut index = IvfIndex::<f32>::builder(1, 1).device(Device::Gpu(0)).build().map_err(text)?;
    index.train(&vectors).map_err(text)?;
    index.add(&vectors).map_err(text)?;
    for k in counts {
        let found = index.search(&[-1.0], k, 1).map_err(text)?;
        if !found.ids.iter().copied().eq(0..k as u64) {
            return Err(format!("{k} neighbours in wrong order"));
        }
    }
    Ok(())
}

fn nothing_stopped() -> Outcome {
    match driver::violations().first() {
        Some(violation) => Err(violation.clone()),
        None => Ok(()),
    }
}
