//! The grid of k-selection.

use rayon::prelude::*;
use warpann::Device;
use warpann::select::{Best, NO_POSITION, Rows, select_k};
use warpann_measure::Times;

use crate::keys::{Keys, smallest};
use crate::machine::Machine;
use crate::record::{Measured, Record};
use crate::{Common, Outcome};

/// Arguments of `select`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Measure only rows of random keys.
    #[arg(long)]
    random_only: bool,
}

/// A case: rows, columns and k.
type Shape = (usize, usize, usize);

/// From rows that fit in the L2 cache to one row that fills a tenth of the memory; k across every size of queue, and past it.
const SHAPES: &[Shape] = &[
    (10_000, 1_000, 10),
    (10_000, 1_000, 100),
    (10_000, 10_000, 10),
    (10_000, 10_000, 100),
    (10_000, 10_000, 1000),
    (10_000, 128_000, 1),
    (10_000, 128_000, 10),
    (10_000, 128_000, 32),
    (10_000, 128_000, 100),
    (10_000, 128_000, 256),
    (10_000, 128_000, 1000),
    (10_000, 128_000, 2048),
    (100, 1_000_000, 100),
    (1, 100_000_000, 100),
];
const ADVERSARIAL_SHAPES: &[Shape] = &[(10_000, 10_000, 100), (10_000, 128_000, 100), (10_000, 10_000, 1000)];
const QUICK_SHAPES: &[Shape] = &[(20, 1_000, 10), (20, 1_000, 100), (3, 5_000, 2048)];
const QUICK_ADVERSARIAL_SHAPES: &[Shape] = &[(20, 1_000, 32)];

/// Number of different rows on a GPU; later rows repeat them.
const GPU_BLOCK: usize = 100;
/// Number of rows on the CPU, which has neither memory nor time for all.
const CPU_ROWS: usize = 100;

/// Measures the grid. Returns true if every result was right.
pub fn run(args: &Args) -> Outcome<bool> {
    let Args { common, random_only } = args;
    let machine = Machine::open(common.device, common.quick)?;
    let mut record = Record::open(common, &machine)?;
    let (shapes, adversarial) =
        if common.quick { (QUICK_SHAPES, QUICK_ADVERSARIAL_SHAPES) } else { (SHAPES, ADVERSARIAL_SHAPES) };
    let kinds: &[Keys] = if *random_only { &[] } else { &Keys::ADVERSARIAL };
    let random = shapes.iter().map(|&shape| (Keys::Random, shape));
    let others = adversarial.iter().flat_map(|&shape| kinds.iter().map(move |&kind| (kind, shape)));
    for (kind, shape) in random.chain(others) {
        let repeat = common.repeat.unwrap_or(9);
        let measured = measure(&machine, kind, shape, repeat)?;
        let case = measured.case.clone();
        record.add(measured)?;
        if machine.gpu.is_none() && kind == Keys::Random {
            record.add(by_std(&machine, case, shape, repeat)?)?;
        }
    }
    Ok(record.all_verified())
}

fn measure(machine: &Machine, kind: Keys, (rows, columns, k): Shape, repeat: usize) -> Outcome<Measured> {
    let rows = if machine.gpu.is_some() { rows } else { rows.min(CPU_ROWS) };
    let (times, verified) = match machine.gpu {
        Some(index) => on_gpu(index, kind, (rows, columns, k), repeat)?,
        None => on_cpu(&kind.make(rows, columns), columns, k, repeat)?,
    };
    Ok(Measured {
        case: format!("select {rows}x{columns} {kind}"),
        k,
        times,
        memory_floor_ms: machine.floor_ms(4.0 * rows as f64 * columns as f64),
        verified,
        ..Measured::default()
    })
}

/// Measures the partial sort of the standard library on the same keys as the CPU path: ranks and positions, `select_nth_unstable`, and a
/// sort of the first k; rows in parallel.
fn by_std(machine: &Machine, case: String, (rows, columns, k): Shape, repeat: usize) -> Outcome<Measured> {
    let rows = rows.min(CPU_ROWS);
    let keys = Keys::Random.make(rows, columns);
    // Random keys are numbers from 0 up: their bits are in their order.
    let partial_sort = |row: &[f32]| {
        let mut entries: Vec<(u32, u32)> = row.iter().map(|key| key.to_bits()).zip(0..).collect();
        if k < entries.len() {
            entries.select_nth_unstable(k);
            entries.truncate(k);
        }
        entries.sort_unstable();
        entries
    };
    let run = || keys.par_chunks(columns).map(partial_sort).collect::<Vec<_>>();
    let mut found = Vec::new();
    let times = Times::measure(1, repeat, || {
        found = run();
        Outcome::Ok(())
    })?;
    let expected = |row: &[f32]| -> Vec<(u32, u32)> {
        smallest(row, k).into_iter().map(|(key, position)| (key.to_bits(), position)).collect()
    };
    Ok(Measured {
        peer: Some(("std partial sort", env!("CARGO_PKG_RUST_VERSION"))),
        case,
        k,
        times,
        memory_floor_ms: machine.floor_ms(4.0 * rows as f64 * columns as f64),
        verified: keys.chunks(columns).map(expected).eq(found),
        ..Measured::default()
    })
}

/// Measures with keys and results on the device, by device events. The library compares rows with the CPU's results.
#[cfg(feature = "cuda")]
fn on_gpu(index: usize, kind: Keys, (rows, columns, k): Shape, repeat: usize) -> Outcome<(Times, bool)> {
    let keys = kind.make(rows.min(GPU_BLOCK), columns);
    let bench = warpann::internals::SelectionBench::new(index, keys, rows, columns)?;
    match bench.select(k, warpann::select::Algorithm::Auto, repeat) {
        Ok(times) => Ok((Times::new(times), true)),
        Err(warpann::Error::WrongSelection { .. }) => Ok((Times::default(), false)),
        Err(error) => Err(error.into()),
    }
}

/// Never called: without the back end there is no GPU.
#[cfg(not(feature = "cuda"))]
fn on_gpu(_: usize, kind: Keys, (rows, columns, k): Shape, repeat: usize) -> Outcome<(Times, bool)> {
    on_cpu(&kind.make(rows.min(GPU_BLOCK), columns), columns, k, repeat)
}

/// Measures the wall time of the library's call. All rows are compared with a sort.
fn on_cpu(keys: &[f32], columns: usize, k: usize, repeat: usize) -> Outcome<(Times, bool)> {
    let rows = Rows::contiguous(keys, columns)?;
    let mut found = select_k(Device::Cpu, &rows, k, Best::Smallest)?;
    let times = Times::measure(0, repeat, || {
        found = select_k(Device::Cpu, &rows, k, Best::Smallest)?;
        Outcome::Ok(())
    })?;
    let slots = found.keys.chunks(k).zip(found.positions.chunks(k));
    let right = keys.chunks(columns).zip(slots).all(|(row, (keys, positions))| {
        let mut expected = smallest(row, k);
        expected.resize(k, (f32::INFINITY, NO_POSITION));
        // NaN does not equal itself, so bits are compared.
        let bits = |key: f32| key.to_bits();
        let found = keys.iter().map(|&key| bits(key)).zip(positions.iter().copied());
        found.eq(expected.into_iter().map(|(key, position)| (bits(key), position)))
    });
    Ok((times, right))
}
