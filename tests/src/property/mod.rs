//! Random cases of every public operation, against references that share no code with warpann.
//!
//! A case follows from one number, its seed, and from the device. It draws a shape, options and data (see [`vectors`]),
//! calls the library as a user would, and compares what comes back with the definition: to the bit where the
//! documentation promises bits, else with what is promised.
//!
//! `cargo test -p warpann-tests --test property` runs a share of each kind on the CPU and the emulator: cases whose
//! seeds follow from the revision ([`seeds`]), and those that once failed ([`Kind::kept`]). More of them, or one again:
//!
//! ```text
//! WARPANN_PROPERTY_CASES=10000 WARPANN_PROPERTY_SEED=77 cargo test -p warpann-tests --test property flat::cpu
//! ```
//!
//! `cargo xtask deep` runs all kinds with fresh seeds for some minutes ([`deep`]).
//!
//! | variable | meaning |
//! |---|---|
//! | `WARPANN_PROPERTY_CASES` | cases of each kind; unless set the share of the kind, or one if a seed is given |
//! | `WARPANN_PROPERTY_BASE` | seed of the first case, beside the seeds that once failed; unless set it follows from the revision |
//! | `WARPANN_PROPERTY_SEED` | seed of the first case, without the seeds that once failed; the next cases have the next numbers |
//! | `WARPANN_PROPERTY_WORK` | products of components in the largest case ([`most_work`]); a seed means another case with another value |
//! | `WARPANN_PROPERTY_DRIVER` | with the value `emulated` the cases run on the driver emulator, as a GPU, instead of the other devices |
//! | `WARPANN_PROPERTY_SECONDS` | time of a deep run; only `cargo xtask deep` sets it |

pub mod changes;
pub mod deep;
pub mod filters;
pub mod flat;
pub mod graph;
pub mod ivf;
pub mod kmeans;
pub mod pq;
pub mod proof;
pub mod recall;
pub mod select;
pub mod serving;
pub mod shifted;
pub mod sort;
pub mod versions;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

pub use test_cases::vectors;
pub use test_random::seeds::{self, number};
use warpann::Device;

use crate::data::Random;
use crate::runner::Outcome;

/// A kind of case.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    /// Name of the module of the kind.
    pub name: &'static str,
    /// Runs the case of a seed on a device. The error tells the case and the first difference in words.
    pub case: fn(u64, Device) -> Outcome,
    /// Cases that every test run has: on the CPU, and on every other device.
    pub share: (u64, u64),
    /// Seeds whose cases once failed. They run beside the drawn ones. Whoever changes how a kind draws its cases looks
    /// for seeds that find the same defects, because an old seed then means another case.
    pub kept: &'static [u64],
}

/// All kinds of properties.
pub const KINDS: &[Kind] = &[
    Kind { name: "flat", case: flat::case, share: (1500, 150), kept: &[225, 238, 677] },
    Kind { name: "filters", case: filters::case, share: (600, 60), kept: &[] },
    Kind { name: "ivf", case: ivf::case, share: (1000, 100), kept: &[434, 520] },
    Kind {
        name: "changes",
        case: changes::case,
        share: (50, 3),
        kept: &[224, 338, 446, 572, 911, 266_437_314_292_058],
    },
    Kind { name: "corners", case: changes::corners, share: (35, 3), kept: &[2000, 2019, 2028, 2100] },
    Kind { name: "versions", case: versions::case, share: (6, 3), kept: &[] },
    Kind { name: "serving", case: serving::case, share: (30, 3), kept: &[] },
    Kind { name: "select", case: select::case, share: (2000, 200), kept: &[] },
    Kind { name: "sort", case: sort::case, share: (2000, 100), kept: &[] },
    Kind {
        name: "kmeans",
        case: kmeans::case,
        share: (1000, 100),
        kept: &[
            266_437_314_302_676,
            266_437_314_319_311,
            266_437_314_328_028,
            266_437_314_329_619,
            266_437_314_332_578,
            266_437_314_333_159,
            266_437_314_352_676,
            266_437_314_355_843,
            266_437_314_357_824,
            266_437_314_358_635,
            266_437_314_397_323,
            266_437_314_411_914,
            266_437_314_429_230,
            // On a GPU only: half a million points in one cluster.
            166_239_369_656_817,
            166_239_369_670_805,
            43_679_429_326_088,
            43_679_429_357_942,
        ],
    },
    Kind { name: "pq", case: pq::case, share: (1000, 100), kept: &[] },
    Kind { name: "graph", case: graph::case, share: (1500, 100), kept: &[] },
    Kind {
        name: "graph_recall",
        case: recall::graph::case,
        share: (20, 2),
        kept: &[
            1002,
            1006,
            1012,
            1034,
            2136,
            266_437_314_292_860,
            94_493_040_887_168,
            200_284_317_030_680,
            172_886_208_590_892,
        ],
    },
    Kind { name: "ivf_recall", case: recall::ivf::case, share: (30, 3), kept: &[1010, 1015, 1021, 1023] },
    Kind { name: "ivf_proof", case: proof::case, share: (1000, 60), kept: &[] },
    Kind { name: "shifted", case: shifted::case, share: (1000, 100), kept: &[] },
];

/// Which cases of a kind are run.
#[derive(Debug, Clone, Copy, Default)]
pub struct Asked {
    /// Number of cases.
    pub cases: Option<u64>,
    /// The seed of the first of the drawn cases.
    pub base: u64,
    /// The seed of the first case. With it only the cases from this one on are run.
    pub seed: Option<u64>,
}

impl Asked {
    /// Reads the environment variables, and the revision.
    ///
    /// # Errors
    /// A variable that is no number.
    pub fn from_environment() -> Result<Asked, String> {
        let (cases, seed) = (number("WARPANN_PROPERTY_CASES")?, number("WARPANN_PROPERTY_SEED")?);
        Ok(Asked { cases, base: seeds::base()?, seed })
    }

    /// The seeds of a kind's cases on `device`.
    fn seeds(&self, kind: &Kind, device: Device) -> Vec<u64> {
        let share = if device == Device::Cpu { kind.share.0 } else { kind.share.1 };
        let (kept, first, cases) = match self.seed {
            Some(seed) => (&[][..], seed, self.cases.unwrap_or(1)),
            None => (kind.kept, self.base, self.cases.unwrap_or(share)),
        };
        kept.iter().copied().chain((0..cases).map(|case| first.wrapping_add(case))).collect()
    }
}

/// Largest number of products of components of a case on `device`. A naive float64 reference computes them in well
/// under a second, and the emulator in about one second.
pub fn most_work(device: Device) -> usize {
    match (number("WARPANN_PROPERTY_WORK"), device) {
        (Ok(Some(work)), _) => work as usize,
        (_, Device::Emulator) => 1 << 16,
        (_, Device::Gpu(_)) if driver_is_emulated() => 1 << 16,
        (_, Device::Cpu) => 1 << 20,
        // A real device filters only from about 50 million products on.
        (_, Device::Gpu(_) | Device::Auto) => 1 << 26,
        (_, other) => unreachable!("no test runs on {other}"),
    }
}

/// Largest amount of work of one case. It is mostly small, so that many cases run.
fn work(random: &mut Random, device: Device) -> usize {
    let most = most_work(device);
    if random.once_in(16) { most } else { most.min(1 << 16) }
}

/// Runs the case of a seed. A panic of the case is a failure.
fn run_case(kind: &Kind, seed: u64, device: Device) -> Outcome {
    let outcome = catch_unwind(AssertUnwindSafe(|| (kind.case)(seed, device)));
    outcome.unwrap_or_else(|panic| Err(format!("panic: {}", message(panic.as_ref()))))
}

/// Runs the cases of `kind` that `asked` names on `device`, all of them whatever they find. Prints each failure when it
/// is found.
///
/// # Errors
/// How many cases failed, their seeds, and the first of them in words.
pub fn run(kind: &Kind, device: Device, asked: Asked) -> Outcome {
    let seeds = asked.seeds(kind, device);
    let mut failures: Vec<(u64, String)> = Vec::new();
    for &seed in &seeds {
        if let Err(failure) = run_case(kind, seed, device) {
            eprintln!("{}, seed {seed}, {device}: {failure}", kind.name);
            failures.push((seed, failure));
        }
    }
    let Some((first, failure)) = failures.first() else { return Ok(()) };
    let numbers: Vec<u64> = failures.iter().map(|&(seed, _)| seed).collect();
    Err(format!(
        "{} of {} cases failed, seeds {numbers:?}\nseed {first}: {failure}\nagain: {}",
        failures.len(),
        seeds.len(),
        again(kind, device, *first)
    ))
}

/// The command that runs one case again, in a build of the same profile.
fn again(kind: &Kind, device: Device, seed: u64) -> String {
    let driver = if matches!(device, Device::Gpu(_)) && driver_is_emulated() {
        format!("{DRIVER}={EMULATED} ")
    } else {
        String::new()
    };
    let release = if cfg!(debug_assertions) { "" } else { " --release" };
    let (kind, device) = (kind.name, device_name(device));
    format!(
        "{driver}WARPANN_PROPERTY_SEED={seed} cargo test{release} -p warpann-tests --test property {kind}::{device}"
    )
}

/// The variable that names the driver, and its value for the driver emulator.
pub const DRIVER: &str = "WARPANN_PROPERTY_DRIVER";
/// See [`DRIVER`].
pub const EMULATED: &str = "emulated";

static DRIVER_IS_EMULATED: AtomicBool = AtomicBool::new(false);

/// Notes that the program has installed the driver emulator, so that its GPU gets small cases and another name.
pub fn emulate_the_driver() {
    DRIVER_IS_EMULATED.store(true, Ordering::Relaxed);
}

fn driver_is_emulated() -> bool {
    DRIVER_IS_EMULATED.load(Ordering::Relaxed)
}

/// A device in the name of a test.
pub fn device_name(device: Device) -> &'static str {
    match device {
        Device::Cpu => "cpu",
        Device::Emulator => "emulator",
        Device::Gpu(_) if driver_is_emulated() => "driver",
        Device::Gpu(_) | Device::Auto => "gpu",
        other => unreachable!("no test runs on {other}"),
    }
}

/// The message of a panic.
fn message(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a message")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn odd(seed: u64, _: Device) -> Outcome {
        match seed % 4 {
            1 => Err("odd".to_owned()),
            3 => panic!("very odd"),
            _ => Ok(()),
        }
    }

    const ODD: Kind = Kind { name: "odd", case: odd, share: (3, 1), kept: &[2, 40, 43] };

    #[test]
    fn the_share_and_what_was_kept_are_run_unless_a_seed_is_given() {
        let seeds = |cases, base, seed, device| Asked { cases, base, seed }.seeds(&ODD, device);
        assert_eq!(seeds(None, 100, None, Device::Cpu), [2, 40, 43, 100, 101, 102]);
        assert_eq!(seeds(None, 0, None, Device::Emulator), [2, 40, 43, 0]);
        assert_eq!(seeds(Some(2), 7, None, Device::Gpu(0)), [2, 40, 43, 7, 8]);
        assert_eq!(seeds(None, 7, Some(9), Device::Cpu), [9]);
        assert_eq!(seeds(Some(2), 7, Some(u64::MAX), Device::Cpu), [u64::MAX, 0]);
    }

    #[test]
    fn failures_and_panics_are_told_with_their_seeds() {
        let failed = run(&ODD, Device::Cpu, Asked { cases: Some(4), base: 0, seed: None }).unwrap_err();
        assert!(failed.starts_with("3 of 7 cases failed, seeds [43, 1, 3]\nseed 43: panic: very odd\n"), "{failed}");
        let again = "WARPANN_PROPERTY_SEED=43 cargo test -p warpann-tests --test property odd::cpu";
        assert!(failed.replace(" --release", "").ends_with(again), "{failed}");
        assert_eq!(run(&ODD, Device::Cpu, Asked { cases: None, base: 0, seed: Some(2) }), Ok(()));
    }
}
