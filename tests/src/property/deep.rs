//! A deep run: every property on every device, with fresh seeds, until a time is over.
//!
//! Each thread takes the property that has had the least time so far, so that properties with long cases and those with
//! short ones have the same time. A failure is printed at once and ends nothing. The report at the end has a line for
//! each property and the commands that repeat the failures.

use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use warpann::Device;

use super::{Kind, again, device_name, run_case};

/// Failures of a property that are printed, and that the report repeats; further ones are only counted.
const SHOWN: usize = 8;

/// Time after which a case that still runs is printed with its seed: a case that never ends leaves no other trace.
const LONG: Duration = Duration::from_secs(60);

/// A kind of case on a device, and its part of the run.
#[derive(Debug)]
struct Property {
    kind: &'static Kind,
    device: Device,
    /// Cases that were started.
    cases: u64,
    /// Time of the cases that ended, and of those that run an estimate: the mean of the ended ones.
    time: Duration,
    failures: u64,
    /// Seeds of the first failures.
    shown: Vec<u64>,
}

impl Property {
    fn name(&self) -> String {
        format!("{}::{}", self.kind.name, device_name(self.device))
    }
}

/// An instant that is farther away may not exist.
const LONGEST: Duration = Duration::from_secs(365 * 86_400);

/// The state that the threads share.
struct Run {
    properties: Vec<Property>,
    /// The seed of the first case of each property. The next cases have the next numbers.
    base: u64,
    /// The cases that run: the property, the seed, the start, and whether the case was printed.
    running: Vec<Option<(usize, u64, Instant, bool)>>,
}

/// The properties whose names contain `filter`, and how each did.
#[derive(Debug)]
pub struct Report {
    /// The text to print at the end.
    pub text: String,
    /// Number of cases that failed.
    pub failures: u64,
}

/// Runs cases of the properties of `kinds` on `devices` whose names contain one of `filters` (all if there is none) for
/// `time`, with the seeds from `base` on for each, in `threads` threads. A case that runs when the time is over runs to
/// its end.
pub fn run(
    kinds: &'static [Kind],
    devices: &[Device],
    filters: &[String],
    base: u64,
    time: Duration,
    threads: usize,
) -> Report {
    let run = start(kinds, devices, filters, base, threads.max(1));
    let threads = if lock(&run).properties.is_empty() { 0 } else { threads.max(1) };
    let end = Instant::now() + time.min(LONGEST);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let run = &run;
            scope.spawn(move || while Instant::now() < end && one(run, thread) {});
        }
        while threads > 0 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(100).min(end.saturating_duration_since(Instant::now())));
            tell_long_cases(&mut lock(&run));
        }
    });
    report(&lock(&run).properties)
}

/// The state before the first case.
fn start(kinds: &'static [Kind], devices: &[Device], filters: &[String], base: u64, threads: usize) -> Mutex<Run> {
    let all = devices.iter().flat_map(|&device| kinds.iter().map(move |kind| (kind, device)));
    let properties = all.map(|(kind, device)| Property {
        kind,
        device,
        cases: 0,
        time: Duration::ZERO,
        failures: 0,
        shown: Vec::new(),
    });
    let chosen = |property: &Property| {
        let name = property.name();
        filters.is_empty() || filters.iter().any(|filter| name.contains(filter.as_str()))
    };
    let properties = properties.filter(chosen).collect();
    Mutex::new(Run { properties, base, running: vec![None; threads] })
}

fn lock(run: &Mutex<Run>) -> MutexGuard<'_, Run> {
    run.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The property that has had the least time.
fn next(properties: &[Property]) -> Option<usize> {
    (0..properties.len()).min_by_key(|&at| properties[at].time)
}

/// Runs one case of the property that has had the least time. Returns false if there is no property.
fn one(run: &Mutex<Run>, thread: usize) -> bool {
    let mut shared = lock(run);
    let Some(at) = next(&shared.properties) else { return false };
    let base = shared.base;
    let property = &mut shared.properties[at];
    let seed = base.wrapping_add(property.cases);
    let (kind, device) = (property.kind, property.device);
    let ended = property.cases.max(1) as u32;
    // Without the estimate all threads would take the same property. It is at least a millisecond, as nothing is known
    // of the first case.
    let estimate = (property.time / ended).max(Duration::from_millis(1));
    property.cases += 1;
    property.time += estimate;
    let start = Instant::now();
    shared.running[thread] = Some((at, seed, start, false));
    drop(shared);

    let outcome = run_case(kind, seed, device);

    let mut shared = lock(run);
    shared.running[thread] = None;
    let property = &mut shared.properties[at];
    property.time = (property.time + start.elapsed()).saturating_sub(estimate);
    if let Err(failure) = outcome {
        property.failures += 1;
        if property.shown.len() < SHOWN {
            property.shown.push(seed);
            let name = property.name();
            drop(shared);
            eprintln!("{name}, seed {seed}: {failure}\nagain: {}\n", again(kind, device, seed));
        }
    }
    true
}

fn tell_long_cases(run: &mut Run) {
    for (at, seed, start, told) in run.running.iter_mut().flatten() {
        if !*told && start.elapsed() > LONG {
            *told = true;
            eprintln!("{}, seed {seed}: still runs after {} s", run.properties[*at].name(), LONG.as_secs());
        }
    }
}

fn report(properties: &[Property]) -> Report {
    let mut text = String::new();
    let mut commands = String::new();
    for property in properties {
        let (name, seconds) = (property.name(), property.time.as_secs_f64());
        let _ =
            writeln!(text, "{name:24} {:>9} cases {seconds:>8.1} s  {:>4} failed", property.cases, property.failures);
        for &seed in &property.shown {
            let _ = writeln!(commands, "again: {}", again(property.kind, property.device, seed));
        }
        if property.failures > property.shown.len() as u64 {
            let more = property.failures - property.shown.len() as u64;
            let _ = writeln!(commands, "and {more} more failures of {name}");
        }
    }
    let cases: u64 = properties.iter().map(|property| property.cases).sum();
    let failures = properties.iter().map(|property| property.failures).sum();
    let _ = write!(text, "{cases} cases of {} properties, {failures} failed\n{commands}", properties.len());
    Report { text, failures }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runner::Outcome;

    fn right(_: u64, _: Device) -> Outcome {
        Ok(())
    }

    fn wrong(seed: u64, device: Device) -> Outcome {
        if seed.is_multiple_of(2) || device == Device::Emulator { Ok(()) } else { Err("odd".to_owned()) }
    }

    const KINDS: &[Kind] = &[
        Kind { name: "right", case: right, share: (1, 1), kept: &[] },
        Kind { name: "wrong", case: wrong, share: (1, 1), kept: &[] },
    ];
    const DEVICES: &[Device] = &[Device::Cpu, Device::Emulator];

    /// `cases` cases of the properties that a filter chooses.
    fn of(filter: &str, cases: usize) -> Mutex<Run> {
        let run = start(KINDS, DEVICES, &[filter.to_owned()], 100, 1);
        assert!((0..cases).all(|_| one(&run, 0)));
        run
    }

    #[test]
    fn every_property_has_a_case_before_one_has_two_and_then_the_time_decides() {
        let run = of("", 4);
        let properties = &mut lock(&run).properties;
        let names: Vec<String> = properties.iter().map(Property::name).collect();
        assert_eq!(names, ["right::cpu", "wrong::cpu", "right::emulator", "wrong::emulator"]);
        assert!(properties.iter().all(|property| property.cases == 1), "{properties:?}");
        for (property, seconds) in properties.iter_mut().zip([5, 3, 2, 4]) {
            property.time = Duration::from_secs(seconds);
        }
        assert_eq!(next(properties), Some(2));
    }

    #[test]
    fn failures_are_counted_and_some_are_told_with_their_commands() {
        let run = of("wrong::cpu", 30);
        let report = report(&lock(&run).properties);
        assert_eq!(report.failures, 15, "{}", report.text);
        let again: Vec<&str> = report.text.lines().filter(|line| line.starts_with("again: ")).collect();
        assert!(again.len() == SHOWN && again.iter().all(|line| line.ends_with("wrong::cpu")), "{}", report.text);
        assert!(again[0].contains("WARPANN_PROPERTY_SEED=101 "), "{}", report.text);
        assert!(report.text.contains("and 7 more failures of wrong::cpu\n"), "{}", report.text);
    }

    #[test]
    fn a_run_without_properties_ends_at_once_and_one_with_them_has_cases() {
        let of = |filter: &str, time| run(KINDS, DEVICES, &[filter.to_owned()], 0, time, 2);
        let report = of("none", Duration::MAX / 4);
        assert_eq!((report.failures, report.text.as_str()), (0, "0 cases of 0 properties, 0 failed\n"));
        let report = of("right", Duration::from_millis(1));
        assert!(report.failures == 0 && report.text.contains("of 2 properties, 0 failed"), "{}", report.text);
    }
}
