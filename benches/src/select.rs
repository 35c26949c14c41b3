//! The grid of k-selection.

use rayon::prelude::*;
use warpann::Device;
use warpann::select::{Best, NO_POSITION, Rows, select_k};
use warpann_measure::Times;

use crate::Outcome;
use crate::keys::{Keys, smallest};
use crate::record::{Measured, Record};

/// Arguments of `select`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Measure only rows of random keys.
    #[arg(long)]
    random_only: bool,
}

/// A case: rows, columns and k.
type Shape = (usize, usize, usize);

/// From rows that fit in the L2 cache to one row that fills a tenth of the memory, and few long rows as sparse
/// attention has them; k across every size of queue, and past it.
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
    (1, 262_144, 2048),
    (256, 65_536, 2048),
    (1_024, 131_072, 2048),
    (2_048, 131_072, 1024),
    (100, 1_000_000, 100),
    (1, 100_000_000, 100),
];
const ADVERSARIAL_SHAPES: &[Shape] = &[(10_000, 10_000, 100), (10_000, 128_000, 100), (10_000, 10_000, 1000)];
const QUICK_SHAPES: &[Shape] = &[(20, 1_000, 10), (20, 1_000, 100), (3, 5_000, 2048)];
const QUICK_ADVERSARIAL_SHAPES: &[Shape] = &[(20, 1_000, 32)];

/// Number of different rows on a GPU; later rows repeat them.
#[cfg(feature = "cuda")]
const GPU_BLOCK: usize = 100;
/// Number of rows on the CPU, which has neither memory nor time for all.
const CPU_ROWS: usize = 100;

/// Measures all cases of the grid.
pub fn run(args: &Args, record: &mut Record) -> Outcome {
    let shapes = record.quick_or(QUICK_SHAPES, SHAPES);
    let adversarial = record.quick_or(QUICK_ADVERSARIAL_SHAPES, ADVERSARIAL_SHAPES);
    let kinds: &[Keys] = if args.random_only { &[] } else { &Keys::ADVERSARIAL };
    let random = shapes.iter().map(|&shape| (Keys::Random, shape));
    let others = adversarial.iter().flat_map(|&shape| kinds.iter().map(move |&kind| (kind, shape)));
    let repeat = record.repeat(9);
    for (kind, (rows, columns, k)) in random.chain(others) {
        let rows = if record.machine.gpu.is_some() { rows } else { rows.min(CPU_ROWS) };
        let case = format!("select {rows}x{columns} {kind}");
        let bytes = 4.0 * rows as f64 * columns as f64;
        let (times, right) = match record.machine.gpu {
            #[cfg(feature = "cuda")]
            Some(index) => on_gpu(index, kind, (rows, columns, k), repeat)?,
            _ => on_cpu(&kind.make(rows, columns), columns, k, repeat)?,
        };
        record.add(Measured::new(case.clone(), k, times, bytes, right))?;
        if record.machine.gpu.is_none() && kind == Keys::Random {
            let (times, right) = by_std(&kind.make(rows, columns), columns, k, repeat)?;
            let std = ("std partial sort", env!("CARGO_PKG_RUST_VERSION"));
            record.add(Measured::new(case, k, times, bytes, right).by(std))?;
        }
    }
    Ok(())
}

/// Measures the partial sort of the standard library on the same keys as the CPU path: ranks and positions,
/// `select_nth_unstable`, and a sort of the first k; rows in parallel.
fn by_std(keys: &[f32], columns: usize, k: usize, repeat: usize) -> Outcome<(Times, bool)> {
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
    let run = || Outcome::Ok(keys.par_chunks(columns).map(partial_sort).collect::<Vec<_>>());
    let (times, found) = Times::with_result(1, repeat, run)?;
    let expected = |row: &[f32]| -> Vec<(u32, u32)> {
        smallest(row, k).into_iter().map(|(key, position)| (key.to_bits(), position)).collect()
    };
    Ok((times, keys.chunks(columns).map(expected).eq(found)))
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

/// Measures the wall time of the library's call. All rows are compared with a sort.
fn on_cpu(keys: &[f32], columns: usize, k: usize, repeat: usize) -> Outcome<(Times, bool)> {
    let rows = Rows::contiguous(keys, columns)?;
    let (times, found) = Times::with_result(1, repeat, || select_k(Device::Cpu, &rows, k, Best::Smallest))?;
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
