//! The grid of sorting: random keys with their positions as payloads.
//!
//! On a GPU the pairs are on the device and times are by device events. The lower bound is the traffic of a radix sort of 8-bit digits: one
//! read of the keys to count, then one read and one write of the pairs for each digit. On the CPU the time is that of the library's call,
//! and the lower bound is one read and one write of the pairs.

use rayon::prelude::*;
use test_random::Random;
use warpann::Device;
use warpann::sort::{Key, sort_pairs};
use warpann_measure::{Times, timed};

use crate::machine::Machine;
use crate::record::{Measured, Record, print};
use crate::{Common, Outcome};

/// Arguments of `sort`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Pairs of each sort, as powers of two.
    #[arg(long, value_delimiter = ',', default_value = "20,23,26", value_parser = clap::value_parser!(u32).range(0..32))]
    log2: Vec<u32>,
}

/// Powers of the quick grid.
const QUICK: &[u32] = &[10, 14];

/// Measures the grid. Returns true if every result was right.
pub fn run(args: &Args) -> Outcome<bool> {
    let machine = Machine::open(args.common.device, args.common.quick)?;
    let mut record = Record::open(&args.common, &machine)?;
    for &power in if args.common.quick { QUICK } else { &args.log2 } {
        let len = 1usize << power;
        measure(args, &machine, &mut record, (0..len as u64).into_par_iter().map(noise).collect::<Vec<u64>>())?;
        let wide = |at: u64| u128::from(noise(2 * at)) << 64 | u128::from(noise(2 * at + 1));
        measure(args, &machine, &mut record, (0..len as u64).into_par_iter().map(wide).collect::<Vec<u128>>())?;
    }
    Ok(record.all_verified())
}

/// Random number `at`.
fn noise(at: u64) -> u64 {
    Random::nth(0, at)
}

fn measure<K: Key>(args: &Args, machine: &Machine, record: &mut Record, keys: Vec<K>) -> Outcome {
    let repeat = args.common.repeat.unwrap_or(9).max(1);
    let (times, sorted, payloads) = match machine.gpu {
        Some(index) => on_gpu(index, &keys, repeat)?,
        None => on_cpu(&keys, repeat)?,
    };
    let (key, len) = (size_of::<K>(), keys.len() as f64);
    let touches = if machine.gpu.is_some() { (key + key * 2 * (key + 4)) as f64 } else { (2 * (key + 4)) as f64 };
    let memory_floor_ms = machine.floor_ms(touches * len);
    let median = times.median();
    record.add(Measured {
        case: format!("sort {} u{}+u32", keys.len(), 8 * key),
        times,
        memory_floor_ms,
        verified: is_stable_sort(&keys, &sorted, &payloads),
        ..Measured::default()
    })?;
    let rate = |milliseconds: f64| len / milliseconds / 1e6;
    print(format_args!("  {:.3} Gkeys/s; floor {:.3} Gkeys/s\n", rate(median), rate(memory_floor_ms)))
}

/// Whether `sorted` ascends, each key is the one that its payload, a position, names, and equal keys have ascending positions. No
/// position can then occur twice, so none is missing.
fn is_stable_sort<K: Key>(keys: &[K], sorted: &[K], payloads: &[u32]) -> bool {
    let named = sorted.par_iter().zip(payloads).all(|(key, &from)| keys.get(from as usize) == Some(key));
    let pairs = sorted.par_windows(2).zip(payloads.par_windows(2));
    let ascending = pairs.all(|(keys, from)| (keys[0], from[0]) < (keys[1], from[1]));
    sorted.len() == keys.len() && payloads.len() == keys.len() && named && ascending
}

/// Measures with pairs and results on the device, by device events.
#[cfg(feature = "cuda")]
fn on_gpu<K: Key>(index: usize, keys: &[K], repeat: usize) -> Outcome<(Times, Vec<K>, Vec<u32>)> {
    let run = warpann::internals::SortBench::new(index, keys)?.sort(repeat)?;
    Ok((Times::new(run.milliseconds), run.keys, run.payloads))
}

/// Never called: without the back end there is no GPU.
#[cfg(not(feature = "cuda"))]
fn on_gpu<K: Key>(_: usize, keys: &[K], repeat: usize) -> Outcome<(Times, Vec<K>, Vec<u32>)> {
    on_cpu(keys, repeat)
}

/// Measures the wall time of the library's call.
fn on_cpu<K: Key>(keys: &[K], repeat: usize) -> Outcome<(Times, Vec<K>, Vec<u32>)> {
    let positions: Vec<u32> = (0..keys.len() as u32).collect();
    let (mut sorted, mut payloads) = (Vec::new(), Vec::new());
    let times = Times::collect(0, repeat, || {
        (sorted, payloads) = (keys.to_vec(), positions.clone());
        timed(|| sort_pairs(Device::Cpu, &mut sorted, &mut payloads)).map(|((), milliseconds)| milliseconds)
    })?;
    Ok((times, sorted, payloads))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_stable_sort_passes() {
        let keys = [5u64, 3, 5, 1];
        assert!(is_stable_sort(&keys, &[1, 3, 5, 5], &[3, 1, 0, 2]));
        assert!(!is_stable_sort(&keys, &[1, 3, 5, 5], &[3, 1, 2, 0]), "not stable");
        assert!(!is_stable_sort(&keys, &[3, 1, 5, 5], &[1, 3, 0, 2]), "not sorted");
        assert!(!is_stable_sort(&keys, &[1, 3, 5, 5], &[3, 1, 0, 0]), "one twice");
        assert!(!is_stable_sort(&keys, &[1, 3, 5], &[3, 1, 0]), "one missing");
        assert!(!is_stable_sort(&keys, &[1, 3, 5, 6], &[3, 1, 0, 2]), "another key");
    }
}
