//! Requests that arrive at a rate, whether earlier ones were answered or not (open loop), and as many as are answered
//! (closed loop).
//!
//! A client that sends its next request when the last one was answered sends nothing while a service stalls, and so
//! does not see most of the stall. Here each request has a time of arrival before the run begins, at random distances
//! (a Poisson process). Its latency counts from this time, even if the generator could send it only later.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::Times;

/// The time of a run.
pub trait Clock {
    /// The time since the run began.
    fn now(&self) -> Duration;
    /// Returns at this time or a little later.
    fn wait_until(&self, at: Duration);
}

/// The machine's clock. Waits of less than a millisecond keep a core busy.
pub struct Machine(pub Instant);

impl Clock for Machine {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn wait_until(&self, at: Duration) {
        const WAKING: Duration = Duration::from_millis(1);
        loop {
            match at.saturating_sub(self.now()) {
                Duration::ZERO => return,
                left if left > WAKING => std::thread::sleep(left - WAKING),
                _ => std::hint::spin_loop(),
            }
        }
    }
}

/// A service that answers requests later.
pub trait Service {
    /// A request that was sent.
    type Sent;
    /// A failure that ends the run.
    type Error;

    /// Sends the next request; `None` if the service refuses it.
    ///
    /// # Errors
    /// A failure that ends the run.
    fn send(&mut self) -> Result<Option<Self::Sent>, Self::Error>;

    /// The time at which the request was answered, if it was: `Some(None)` if it was refused after all.
    ///
    /// # Errors
    /// A failure that ends the run.
    fn answered(&mut self, sent: &mut Self::Sent) -> Result<Option<Option<Duration>>, Self::Error>;
}

/// The requests of a run.
#[derive(Debug, Default)]
pub struct Answers {
    /// Milliseconds from the arrival to the answer of each request that was answered.
    pub milliseconds: Vec<f64>,
    /// Number of requests that were refused.
    pub refused: usize,
    /// Seconds from the start of the run to the last answer.
    pub seconds: f64,
}

impl Answers {
    /// Answered requests a second.
    pub fn rate(&self) -> f64 {
        if self.seconds > 0.0 { self.milliseconds.len() as f64 / self.seconds } else { 0.0 }
    }

    /// Joins the requests of generators that ran at the same time.
    pub fn join(parts: impl IntoIterator<Item = Answers>) -> Answers {
        parts.into_iter().fold(Answers::default(), |mut all, part| {
            all.milliseconds.extend(part.milliseconds);
            all.refused += part.refused;
            all.seconds = all.seconds.max(part.seconds);
            all
        })
    }

    /// The latencies, sorted. At least one request was answered.
    pub fn times(self) -> Times {
        Times::new(self.milliseconds)
    }
}

/// The requests under way, oldest first.
struct UnderWay<S: Service> {
    sent: VecDeque<(Duration, S::Sent)>,
    answers: Answers,
}

impl<S: Service> UnderWay<S> {
    fn new() -> Self {
        UnderWay { sent: VecDeque::new(), answers: Answers::default() }
    }

    fn send(&mut self, service: &mut S, arrival: Duration) -> Result<(), S::Error> {
        match service.send()? {
            Some(sent) => self.sent.push_back((arrival, sent)),
            None => self.answers.refused += 1,
        }
        Ok(())
    }

    /// Takes the oldest request off, if it was answered. Returns whether it was.
    fn take(&mut self, service: &mut S) -> Result<bool, S::Error> {
        let Some((arrival, sent)) = self.sent.front_mut() else { return Ok(false) };
        let arrival = *arrival;
        match service.answered(sent)? {
            None => return Ok(false),
            Some(None) => self.answers.refused += 1,
            Some(Some(at)) => {
                self.answers.milliseconds.push(at.saturating_sub(arrival).as_secs_f64() * 1e3);
                self.answers.seconds = self.answers.seconds.max(at.as_secs_f64());
            }
        }
        self.sent.pop_front();
        Ok(true)
    }

    /// Waits for all answers.
    fn finish(mut self, service: &mut S, clock: &impl Clock) -> Result<Answers, S::Error> {
        while !self.sent.is_empty() {
            if !self.take(service)? {
                clock.wait_until(clock.now() + Duration::from_micros(100));
            }
        }
        Ok(self.answers)
    }
}

/// Sends `rate` requests a second, on average, for `length`, and waits for all answers. `uniform` draws numbers from 0
/// to 1.
///
/// # Errors
/// The first failure of the service.
pub fn open_loop<S: Service>(
    service: &mut S,
    clock: &impl Clock,
    rate: f64,
    length: Duration,
    mut uniform: impl FnMut() -> f64,
) -> Result<Answers, S::Error> {
    let mut under_way = UnderWay::new();
    let mut arrival = Duration::ZERO;
    loop {
        // The distances of a Poisson process.
        let seconds = -(1.0 - uniform()).max(f64::MIN_POSITIVE).ln() / rate;
        arrival += Duration::from_secs_f64(seconds.min(length.as_secs_f64() + 1.0));
        if arrival > length {
            return under_way.finish(service, clock);
        }
        while clock.now() < arrival && under_way.take(service)? {}
        clock.wait_until(arrival);
        under_way.send(service, arrival)?;
    }
}

/// Keeps `depth` requests under way for `length`: a new one is sent when the oldest was answered.
///
/// # Errors
/// The first failure of the service.
pub fn closed_loop<S: Service>(
    service: &mut S,
    clock: &impl Clock,
    depth: usize,
    length: Duration,
) -> Result<Answers, S::Error> {
    let mut under_way = UnderWay::new();
    while clock.now() < length {
        if under_way.sent.len() < depth {
            let now = clock.now();
            under_way.send(service, now)?;
        } else if !under_way.take(service)? {
            std::hint::spin_loop();
        }
    }
    under_way.finish(service, clock)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::convert::Infallible;

    use super::*;

    /// A clock that a test sets.
    #[derive(Default)]
    struct Simulated(Cell<Duration>);

    impl Clock for Simulated {
        fn now(&self) -> Duration {
            self.0.get()
        }

        fn wait_until(&self, at: Duration) {
            self.0.set(self.0.get().max(at));
        }
    }

    const MILLISECOND: Duration = Duration::from_millis(1);

    /// A service that answers after `delay`, blocks its caller from `stall` on for its length, and refuses each request
    /// whose number is a multiple of `refuses`.
    struct Fake<'a> {
        clock: &'a Simulated,
        delay: Duration,
        stall: Option<(Duration, Duration)>,
        refuses: usize,
        count: usize,
    }

    impl Service for Fake<'_> {
        type Sent = Duration;
        type Error = Infallible;

        fn send(&mut self) -> Result<Option<Duration>, Infallible> {
            self.count += 1;
            if let Some((from, length)) = self.stall.filter(|(from, _)| self.clock.now() >= *from) {
                self.stall = None;
                self.clock.wait_until(from + length);
            }
            let refused = self.count.is_multiple_of(self.refuses);
            Ok((!refused).then(|| self.clock.now() + self.delay))
        }

        fn answered(&mut self, at: &mut Duration) -> Result<Option<Option<Duration>>, Infallible> {
            Ok((*at <= self.clock.now()).then_some(Some(*at)))
        }
    }

    fn uniform() -> impl FnMut() -> f64 {
        let mut random = test_random::Random::new(7);
        move || random.unit()
    }

    #[test]
    fn a_known_delay_is_measured() {
        let clock = Simulated::default();
        let mut fake = Fake { clock: &clock, delay: 3 * MILLISECOND, stall: None, refuses: 10, count: 0 };
        let answers = open_loop(&mut fake, &clock, 1_000.0, 20_000 * MILLISECOND, uniform()).unwrap();
        // Twenty thousand are expected; the standard deviation is the square root.
        assert!(fake.count.abs_diff(20_000) < 600, "{}", fake.count);
        assert_eq!((answers.refused, answers.milliseconds.len()), (fake.count / 10, fake.count - fake.count / 10));
        assert!(answers.milliseconds.iter().all(|time| (time - 3.0).abs() < 1e-9));
        assert!((answers.rate() - 900.0).abs() < 30.0);
    }

    /// All requests that arrive while the service stalls wait for its end, although the generator sends none meanwhile.
    #[test]
    fn a_stall_counts_for_all_requests_that_arrive_in_it() {
        let clock = Simulated::default();
        let stall = Some((500 * MILLISECOND, 100 * MILLISECOND));
        let mut fake = Fake { clock: &clock, delay: MILLISECOND, stall, refuses: usize::MAX, count: 0 };
        let answers = open_loop(&mut fake, &clock, 10_000.0, 1_000 * MILLISECOND, uniform()).unwrap();
        let late = answers.milliseconds.iter().filter(|&&time| time > 1.5).count();
        assert!(late.abs_diff(1_000) < 150, "{late}");
        let times = answers.times();
        assert!((times.percentile(1.0) - 101.0).abs() < 1.0 && (times.median() - 1.0).abs() < 0.1);
    }

    #[test]
    fn a_closed_loop_keeps_requests_under_way() {
        /// A service that is given time by its polls.
        struct Polled<'a>(&'a Simulated, usize, usize);
        impl Service for Polled<'_> {
            type Sent = Duration;
            type Error = &'static str;
            fn send(&mut self) -> Result<Option<Duration>, &'static str> {
                self.1 += 1;
                self.2 = self.2.max(self.1);
                Ok(Some(self.0.now() + 4 * MILLISECOND))
            }
            fn answered(&mut self, at: &mut Duration) -> Result<Option<Option<Duration>>, &'static str> {
                self.0.wait_until(self.0.now() + MILLISECOND / 10);
                if self.0.now() > 10_000 * MILLISECOND {
                    return Err("too late");
                }
                let done = *at <= self.0.now();
                self.1 -= usize::from(done);
                Ok(done.then_some(Some(*at)))
            }
        }
        let clock = Simulated::default();
        let mut service = Polled(&clock, 0, 0);
        let answers = closed_loop(&mut service, &clock, 8, 2_000 * MILLISECOND).unwrap();
        assert_eq!((service.1, service.2), (0, 8));
        assert!((answers.rate() - 1_700.0).abs() < 400.0, "{}", answers.rate());
        let failed = closed_loop(&mut service, &clock, 8, 20_000 * MILLISECOND);
        assert_eq!(failed.unwrap_err(), "too late");
    }
}
