//! The grid of sorting: random keys with their positions as payloads.
//!
//! On a GPU the pairs are on the device and times are by device events. The lower bound is the traffic of a radix sort
//! of 8-bit digits: one read of the keys to count, then one read and one write of the pairs for each digit. On the CPU
//! the time is that of the library's call, and the lower bound is one read and one write of the pairs.

use rayon::prelude::*;
use test_random::Random;
use warpann::Device;
use warpann::sort::{Key, sort_pairs};
use warpann_measure::{Times, timed};

use crate::Outcome;
use crate::record::{Measured, Record, print};

/// Arguments of `sort`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Pairs of each sort, as powers of two.
    #[arg(long, value_delimiter = ',', default_value = "20,23,26", value_parser = clap::value_parser!(u32).range(0..32))]
    log2: Vec<u32>,
}

/// Powers of the quick grid.
const QUICK: &[u32] = &[10, 14];

/// Measures all cases of the grid.
pub fn run(args: &Args, record: &mut Record) -> Outcome {
    for &power in record.quick_or(QUICK, &args.log2) {
        let len = 1u64 << power;
        measure(record, (0..len).into_par_iter().map(noise).collect::<Vec<u64>>())?;
        let wide = |at: u64| u128::from(noise(2 * at)) << 64 | u128::from(noise(2 * at + 1));
        measure(record, (0..len).into_par_iter().map(wide).collect::<Vec<u128>>())?;
    }
    Ok(())
}

/// Random number `at`.
fn noise(at: u64) -> u64 {
    Random::nth(0, at)
}

fn measure<K: Key>(record: &mut Record, keys: Vec<K>) -> Outcome {
    let repeat = record.repeat(9);
    let (times, sorted, payloads) = match record.machine.gpu {
        #[cfg(feature = "cuda")]
        Some(index) => on_gpu(index, &keys, repeat)?,
        _ => on_cpu(&keys, repeat)?,
    };
    let (key, len) = (size_of::<K>(), keys.len() as f64);
    let touches = if record.machine.gpu.is_some() { key + key * 2 * (key + 4) } else { 2 * (key + 4) };
    let (bytes, median) = (touches as f64 * len, times.median());
    let case = format!("sort {} u{}+u32", keys.len(), 8 * key);
    record.add(Measured::new(case, 0, times, bytes, is_stable_sort(&keys, &sorted, &payloads)))?;
    let rate = |milliseconds: f64| len / milliseconds / 1e6;
    print(format_args!("  {:.3} Gkeys/s; floor {:.3} Gkeys/s\n", rate(median), rate(record.machine.floor_ms(bytes))))
}

/// Whether `sorted` ascends, each key is the one that its payload, a position, names, and equal keys have ascending
/// positions. No position can then occur twice, so none is missing.
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
