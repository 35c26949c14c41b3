//! A part of the case table on the CUDA path without a GPU: the library calls the driver, which is made of the emulator
//! (`cuda_driver_emulator`). Device 0 has compute capability 8.0 and memory pools, device 1 has 9.0 and none, so both
//! kinds of tile products and of allocations run.
//! `tests/emulator.rs` runs the whole small table on the emulator without the driver, so a share of it is enough here.

use std::collections::BTreeSet;
use std::process::ExitCode;

use cuda_driver_emulator as driver;
use libtest_mimic::{Arguments, Failed, Trial};
use warpann::ivf::{Encoding, IvfIndex};
use warpann::{Device, Element, FlatIndex, GraphIndex, Metric, SearchOptions, ShiftedIndex};
use warpann_kernels::ivf::rerank;
use warpann_tests::cases::{Size, search_cases, select_cases};
use warpann_tests::ivf::cases::ivf_cases;
use warpann_tests::runner::Outcome;
use warpann_tests::{device_data, ivf, runner};

/// The library's examples whose parts for GPUs run here.
#[path = "../../host/examples/search_on_stream.rs"]
mod search_on_stream;
#[path = "../../host/examples/select_on_stream.rs"]
mod select_on_stream;

/// The page with the memory of a vector.
const CHOOSING: &str = include_str!("../../docs/CHOOSING.md");

/// One of this number of small cases runs; each device runs different ones.
const SHARE: [usize; 3] = [60, 60, 60];

/// The device whose memory is measured. No other test uses it: tests run in parallel.
const MEASURED: usize = 2;

fn main() -> ExitCode {
    let devices = [((8, 0), true), ((9, 0), false), ((8, 0), true)].map(|(capability, memory_pools)| driver::Device {
        capability,
        memory_pools,
        ..driver::Device::default()
    });
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
    trials.push(trial("memory::of_a_vector_is_as_the_page_says".to_owned(), Box::new(memory_of_a_vector)));
    // One after the other, because one can be watched at a time.
    let examples = || example(select_on_stream::main).and_then(|()| example(search_on_stream::main));
    trials.push(trial("examples::on_a_stream".to_owned(), Box::new(examples)));
    for gpu in 0..2 {
        let device = Device::Gpu(gpu);
        let named = |name: String| format!("gpu:{gpu}::{name}");
        for &(name, scenario) in device_data::SMALL_ONES.iter().skip(gpu).step_by(2) {
            trials.push(trial(named(name.to_owned()), Box::new(move || scenario(device))));
        }
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

/// An example ends without an error on a machine without a GPU as well, so this looks for its launches too.
fn example(main: fn() -> Result<(), Box<dyn std::error::Error>>) -> Outcome {
    let (result, calls) = driver::watch(main);
    result.map_err(|error| error.to_string())?;
    if calls.iter().any(|call| call.name.starts_with("cuLaunchKernel")) {
        Ok(())
    } else {
        Err("no kernel ran".to_owned())
    }
}

/// Each row of the table of memory in docs/CHOOSING.md agrees with the allocations on a device, and with the statistics
/// of an inverted file.
fn memory_of_a_vector() -> Outcome {
    const DIM: usize = 128;
    let table = CHOOSING.split("<!-- memory -->").nth(1).and_then(|rest| rest.split("<!-- end of memory -->").next());
    let rows = table.ok_or("docs/CHOOSING.md has no table of memory")?.lines().filter(|line| line.starts_with("| "));
    let rows: Vec<Vec<&str>> = rows.skip(1).map(|line| line.split('|').map(str::trim).collect()).collect();
    let mut checked = 0;
    for cells in &rows {
        let &[_, name, _, _, host, device, _] = cells.as_slice() else { return Err(format!("{cells:?}")) };
        let coded = |encoding| inverted_file::<f32>(DIM, encoding);
        let (of_host, of_device) = match name {
            "exact" => (None, exact::<f32>(DIM)?),
            "exact, bytes" => (None, exact::<u8>(DIM)?),
            "IVF-Flat, bytes" => inverted_file::<i8>(DIM, Encoding::Flat)?,
            "graph of bytes, e = 32 edges" => graph::<u8>(DIM, 32)?,
            "IVF-Flat" => coded(Encoding::Flat)?,
            "IVF-F16" => coded(Encoding::F16)?,
            "IVF-SQ8" => coded(Encoding::Scalar8)?,
            "IVF-Bits, b = 4 bits" => coded(Encoding::Bits { bits: 4 })?,
            "IVF-PQ, 32 bytes" => coded(Encoding::Pq { sub_quantizers: 32, bits: 8, rotate: false })?,
            "graph, e = 32 edges" => graph::<f32>(DIM, 32)?,
            "shifted sort, d = 3" => (None, shifted(3)?),
            "shifted sort, d = 6" => (None, shifted(6)?),
            other => return Err(format!("nothing measures {other}")),
        };
        let (host, device): (f64, f64) = (number(host)?, number(device)?);
        // Less than one of the values of a vector, which has at least 4 bytes. The padding of lists and the scratch of
        // a search differ between the two indexes.
        if (of_device - device).abs() > (0.01 * device).clamp(0.1, 3.0) {
            return Err(format!("{name}: {of_device} bytes on the device, {device} in the table"));
        }
        if of_host.is_some_and(|measured| measured != host) {
            return Err(format!("{name}: {of_host:?} bytes in host memory, {host} in the table"));
        }
        checked += 1;
    }
    if checked == 12 { Ok(()) } else { Err(format!("{checked} rows were checked")) }
}

fn number(text: &str) -> Result<f64, String> {
    text.parse().map_err(|_| format!("'{text}' is not a number"))
}

/// `count` vectors of `dim` components.
fn vectors<T: Element>(count: usize, dim: usize) -> Vec<T> {
    let scale = if size_of::<T>() == 1 { 100.0 } else { 1.0 };
    (0..count * dim).map(|i| T::from_f32(((i * i) as f32 * 0.37).sin() * scale)).collect()
}

/// Numbers of vectors of the two indexes whose memory is compared, so that what does not grow with the vectors does not
/// count.
const COUNTS: [usize; 2] = [4096, 12_288];
/// Number of lists: many, because the scratch of a search grows with the longest list.
const LISTS: usize = 512;

/// Bytes that a vector takes on the device: by how much more the device's memory grows with the larger index. Both
/// indexes stay alive, so that the second one does not reuse memory of the first.
fn growth<I>(index: impl Fn(usize) -> Result<I, warpann::Error>) -> Result<(f64, [I; 2]), String> {
    let text = |error: warpann::Error| error.to_string();
    let used = || driver::usage(MEASURED).bytes;
    let start = used();
    let small = index(COUNTS[0]).map_err(text)?;
    let between = used();
    let large = index(COUNTS[1]).map_err(text)?;
    let bytes = (used() - between) as f64 - (between - start) as f64;
    Ok((bytes / (COUNTS[1] - COUNTS[0]) as f64, [small, large]))
}

fn exact<T: Element>(dim: usize) -> Result<f64, String> {
    let index = |count| {
        let mut index = FlatIndex::<T>::new(dim, Metric::L2, Device::Gpu(MEASURED))?;
        index.add(&vectors(count, dim)).map(|()| index)
    };
    Ok(growth(index)?.0)
}

fn shifted(dim: usize) -> Result<f64, String> {
    let index = |count| {
        let mut index = ShiftedIndex::builder(dim).device(Device::Gpu(MEASURED)).build()?;
        index.add(&vectors(count, dim)).map(|()| index)
    };
    Ok(growth(index)?.0)
}

/// Bytes in host memory, and on the device.
fn graph<T: Element>(dim: usize, degree: usize) -> Result<(Option<f64>, f64), String> {
    let index = |count| {
        let mut index = GraphIndex::<T>::builder(dim).device(Device::Cpu).degree(degree).exact_ratio(1).build()?;
        let rows = vectors(count, dim);
        index.add(&rows)?;
        index.move_to(Device::Gpu(MEASURED))?;
        // The first search copies the graph to the device.
        index.search_with(&rows[..dim], 1, &SearchOptions::new().beam(16)).map(|_| index)
    };
    let (of_device, [small, large]) = growth(index)?;
    let bytes = large.statistics().host_bytes - small.statistics().host_bytes;
    // Start nodes and pivots are few, and their number grows more slowly.
    Ok((Some((bytes as f64 / (COUNTS[1] - COUNTS[0]) as f64).round()), of_device))
}

/// Bytes in host memory, and on the device.
fn inverted_file<T: Element>(dim: usize, encoding: Encoding) -> Result<(Option<f64>, f64), String> {
    let index = |count| {
        let mut index =
            IvfIndex::<T>::builder(dim, LISTS).encoding(encoding).device(Device::Cpu).iterations(2).build()?;
        let rows = vectors(count, dim);
        index.train(&rows[..COUNTS[0] * dim])?;
        index.add(&rows)?;
        index.move_to(Device::Gpu(MEASURED))?;
        // The first search copies the index to the device.
        index.search_with(&rows[..dim], 1, &SearchOptions::new().probes(1)).map(|_| index)
    };
    let (of_device, [small, large]) = growth(index)?;
    let bytes = large.statistics().bytes - small.statistics().bytes;
    Ok((Some(bytes as f64 / (COUNTS[1] - COUNTS[0]) as f64), of_device))
}

/// Re-ranks as many candidates as take just the dynamic shared memory that a launch may have unasked: the kernel's own
/// word is beyond it. (Searches that re-rank others do not see the defect: a GPU found it once in 4,000 cases.)
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
        let found = index.search_with(&[-1.0], k, &SearchOptions::new().probes(1)).map_err(text)?;
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
