//! The common parts of the measurements of `bench`: times of repeated runs, and random vectors.

use serde::Serialize;
use test_random::Random;
use warpann_measure::timed;

use crate::progress::Step;
use crate::report::{Failure, Out, Outcome};

/// Times of repeated runs.
#[derive(Serialize)]
pub struct Times {
    /// Time of each run in seconds, ascending.
    seconds: Vec<f64>,
    pub median_seconds: f64,
}

impl Times {
    /// Runs `work` once without measuring and then `repeat` times.
    pub fn measure(repeat: usize, mut work: impl FnMut() -> warpann::Result<()>) -> Outcome<Self> {
        let step = Step::measured("measuring", repeat + 1, "runs");
        let mut run = 0;
        let times = warpann_measure::Times::collect(1, repeat, || {
            step.at(run);
            run += 1;
            timed(&mut work).map(|((), milliseconds)| milliseconds)
        })?;
        let seconds = times.milliseconds().iter().map(|time| time / 1e3).collect();
        Ok(Self { seconds, median_seconds: times.median() / 1e3 })
    }

    pub fn print(&self, name: &str, out: &Out) -> Outcome {
        let Self { seconds, median_seconds } = self;
        let (low, high, runs) = (seconds[0], seconds[seconds.len() - 1], seconds.len());
        out.field(name, format_args!("{median_seconds:.6} s, median of {runs} ({low:.6} to {high:.6})"))
    }
}

/// Random values between 0 and 1, the same for the same seed.
pub fn random(rows: usize, dim: usize, seed: u64) -> Outcome<Vec<f32>> {
    let too_large = || Failure::Message(format!("{rows} vectors of dimension {dim} do not fit in memory"));
    let len = rows.checked_mul(dim).ok_or_else(too_large)?;
    let mut values: Vec<f32> = Vec::new();
    values.try_reserve_exact(len).map_err(|_| too_large())?;
    let mut random = Random::new(seed);
    values.extend(std::iter::repeat_with(|| random.unit_f32()).take(len));
    Ok(values)
}
