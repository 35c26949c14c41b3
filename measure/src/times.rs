//! Times of repeated runs.

use std::time::Instant;

/// Times of repeated runs in milliseconds, ascending. Without a run, as of a wrong result, all numbers are NaN.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Times(Vec<f64>);

impl Times {
    /// Sorts times in milliseconds.
    pub fn new(mut milliseconds: Vec<f64>) -> Self {
        milliseconds.sort_by(f64::total_cmp);
        Self(milliseconds)
    }

    /// Runs `work` `warm` times without measuring, because the first runs load kernels and fill caches, and then
    /// `repeat` times, at least once, with the clock of the host.
    ///
    /// # Errors
    /// The first error of `work`.
    pub fn measure<E>(warm: usize, repeat: usize, mut work: impl FnMut() -> Result<(), E>) -> Result<Self, E> {
        Self::collect(warm, repeat, || timed(&mut work).map(|((), milliseconds)| milliseconds))
    }

    /// As [`Self::measure`], of work with a result, of which the last is returned. There is at least one run without
    /// measuring.
    ///
    /// # Errors
    /// The first error of `work`.
    pub fn with_result<T, E>(
        warm: usize,
        repeat: usize,
        mut work: impl FnMut() -> Result<T, E>,
    ) -> Result<(Self, T), E> {
        let mut last = work()?;
        let times = Self::collect(warm.saturating_sub(1), repeat, || {
            let (result, milliseconds) = timed(&mut work)?;
            last = result;
            Ok(milliseconds)
        })?;
        Ok((times, last))
    }

    /// As [`Self::measure`], of runs that return their own time in milliseconds.
    ///
    /// # Errors
    /// The first error of `run`.
    pub fn collect<E>(warm: usize, repeat: usize, mut run: impl FnMut() -> Result<f64, E>) -> Result<Self, E> {
        for _ in 0..warm {
            run()?;
        }
        (0..repeat.max(1)).map(|_| run()).collect::<Result<_, E>>().map(Self::new)
    }

    /// The times in milliseconds, ascending.
    pub fn milliseconds(&self) -> &[f64] {
        &self.0
    }

    /// The median in milliseconds (the lower of the middle two).
    pub fn median(&self) -> f64 {
        self.percentile(0.5)
    }

    /// The least time in milliseconds that is not below the share `share` (0 to 1) of the times.
    pub fn percentile(&self, share: f64) -> f64 {
        let place = (share * self.0.len() as f64).ceil() as usize;
        self.0.get(place.max(1) - 1).copied().unwrap_or(f64::NAN)
    }

    /// All times divided by `count`: those of one of `count` equal parts.
    pub fn divided(self, count: usize) -> Self {
        Self(self.0.into_iter().map(|time| time / count as f64).collect())
    }
}

/// The result of `work` and its time in milliseconds by the clock of the host.
///
/// # Errors
/// That of `work`.
pub fn timed<T, E>(work: impl FnOnce() -> Result<T, E>) -> Result<(T, f64), E> {
    let start = Instant::now();
    let result = work()?;
    Ok((result, 1e3 * start.elapsed().as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_counted_and_sorted() {
        let mut runs = 0;
        let times = Times::collect(2, 3, || {
            runs += 1;
            Ok::<_, ()>(10.0 - f64::from(runs))
        });
        assert_eq!((times.unwrap().milliseconds(), runs), (&[5.0, 6.0, 7.0][..], 5));
        assert_eq!(Times::measure(1, 0, || Ok::<_, ()>(())).unwrap().milliseconds().len(), 1);
        assert_eq!(Times::measure(0, 3, || Err("no")), Err("no"));
        let mut count = 0..;
        let (times, last) = Times::with_result(2, 3, || count.next().ok_or(())).unwrap();
        assert_eq!((times.milliseconds().len(), last), (3, 4));
        assert!(timed(|| Ok::<_, ()>(())).unwrap().1 >= 0.0);
    }

    #[test]
    fn percentiles_are_times_of_runs() {
        let times = |count: u32| Times::new((1..=count).rev().map(f64::from).collect());
        assert_eq!([1, 2, 3, 4, 5].map(|count| times(count).median()), [1.0, 1.0, 2.0, 2.0, 3.0]);
        assert_eq!(
            [0.0, 0.5, 0.95, 0.99, 1.0].map(|share| times(100).percentile(share)),
            [1.0, 50.0, 95.0, 99.0, 100.0]
        );
        assert_eq!(times(4).divided(2).milliseconds(), [0.5, 1.0, 1.5, 2.0]);
        assert!(Times::default().median().is_nan());
    }
}
