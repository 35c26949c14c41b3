//! Counters, and their text for Prometheus.

use std::fmt::{Display, Write};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use warpann::BatcherStatistics;

/// How a request to `/search` ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Answered,
    BadRequest,
    /// Refused: too many requests waited.
    Full,
    /// Refused: the deadline passed before the search began.
    Expired,
    /// Refused: the server stops.
    Closed,
    Failed,
    /// The client left before its answer.
    Cancelled,
}

/// Labels of the outcomes, in the order of the enum.
const LABELS: [&str; 7] = [
    r#"result="answered",reason="""#,
    r#"result="bad_request",reason="""#,
    r#"result="refused",reason="full""#,
    r#"result="refused",reason="deadline""#,
    r#"result="refused",reason="closed""#,
    r#"result="failed",reason="""#,
    r#"result="cancelled",reason="""#,
];

/// Upper bounds of the histogram's buckets, in microseconds.
const BOUNDS: [u64; 14] =
    [250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000];

/// Numbers since the start of the server.
#[derive(Default)]
pub struct Metrics {
    outcomes: [AtomicU64; LABELS.len()],
    in_flight: AtomicI64,
    /// Answered searches by the first bound that they do not exceed; the last ones exceed all.
    buckets: [AtomicU64; BOUNDS.len() + 1],
    nanoseconds: AtomicU64,
    reloads: AtomicU64,
    failed_reloads: AtomicU64,
    /// Whether the file is another than the index that is searched, because it could not be loaded.
    stale: AtomicBool,
}

/// A search that has begun. It counts as cancelled if it is dropped before [`end`](Self::end).
pub struct Running<'a> {
    metrics: &'a Metrics,
    begin: Instant,
    outcome: Outcome,
}

impl Running<'_> {
    pub fn end(mut self, outcome: Outcome) {
        self.outcome = outcome;
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if self.outcome == Outcome::Answered {
            self.metrics.answered_in(self.begin.elapsed());
        }
        self.metrics.outcomes[self.outcome as usize].fetch_add(1, Relaxed);
        self.metrics.in_flight.fetch_sub(1, Relaxed);
    }
}

impl Metrics {
    pub fn begin(&self) -> Running<'_> {
        self.in_flight.fetch_add(1, Relaxed);
        Running { metrics: self, begin: Instant::now(), outcome: Outcome::Cancelled }
    }

    fn answered_in(&self, time: Duration) {
        let bucket = BOUNDS.partition_point(|&bound| Duration::from_micros(bound) < time);
        self.buckets[bucket].fetch_add(1, Relaxed);
        self.nanoseconds.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    /// Counts an attempt to load a file that has changed.
    pub fn reloaded(&self, succeeded: bool) {
        let counter = if succeeded { &self.reloads } else { &self.failed_reloads };
        counter.fetch_add(1, Relaxed);
        self.stale.store(!succeeded, Relaxed);
    }

    /// The text of all numbers, in the format of Prometheus.
    pub fn text(&self, batcher: &BatcherStatistics, version: u64, vectors: usize) -> String {
        let mut text = Text::default();
        text.head("warpann_search_requests_total", "counter", "Requests to /search that have ended.");
        for (labels, count) in LABELS.iter().zip(&self.outcomes) {
            text.line("warpann_search_requests_total", labels, count.load(Relaxed));
        }
        text.gauge("warpann_search_in_flight", "Requests to /search that have begun.", self.in_flight.load(Relaxed));

        text.head("warpann_search_duration_seconds", "histogram", "Time of an answered search, with its body.");
        let mut count = 0;
        for (bound, bucket) in BOUNDS.iter().zip(&self.buckets) {
            count += bucket.load(Relaxed);
            let label = format!("le=\"{}\"", *bound as f64 / 1e6);
            text.line("warpann_search_duration_seconds_bucket", &label, count);
        }
        count += self.buckets[BOUNDS.len()].load(Relaxed);
        text.line("warpann_search_duration_seconds_bucket", "le=\"+Inf\"", count);
        text.line("warpann_search_duration_seconds_sum", "", self.nanoseconds.load(Relaxed) as f64 / 1e9);
        text.line("warpann_search_duration_seconds_count", "", count);

        let of_batcher = [
            ("answered", batcher.answered, "Requests that the batcher answered."),
            ("failed", batcher.failed, "Requests whose search failed."),
            ("expired", batcher.expired, "Requests whose deadline passed while they waited."),
            ("cancelled", batcher.cancelled, "Requests that nobody waited for any more."),
            ("full", batcher.full, "Requests that were refused because too many waited."),
            ("searches", batcher.searches, "Searches of one request or more."),
        ];
        for (name, value, help) in of_batcher {
            text.counter(&format!("warpann_batcher_{name}_total"), help, value);
        }
        text.gauge("warpann_batcher_waiting", "Requests that wait now.", batcher.waiting);
        text.gauge("warpann_batcher_running", "Searches that run now.", batcher.running);
        text.gauge("warpann_batcher_limit", "Largest number of requests of the next search.", batcher.limit);

        text.gauge("warpann_index_version", "Version of the index: replacements that were published.", version);
        text.gauge("warpann_index_vectors", "Vectors in the index.", vectors);
        text.head("warpann_index_reloads_total", "counter", "Attempts to load a file that has changed.");
        text.line("warpann_index_reloads_total", "result=\"ok\"", self.reloads.load(Relaxed));
        text.line("warpann_index_reloads_total", "result=\"failed\"", self.failed_reloads.load(Relaxed));
        let stale = u8::from(self.stale.load(Relaxed));
        text.gauge("warpann_index_stale", "1 if the file could not be loaded and an earlier index is searched.", stale);
        text.0
    }
}

/// Lines in the format of Prometheus.
#[derive(Default)]
struct Text(String);

impl Text {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn line(&mut self, name: &str, labels: &str, value: impl Display) {
        let _ = match labels {
            "" => writeln!(self.0, "{name} {value}"),
            labels => writeln!(self.0, "{name}{{{labels}}} {value}"),
        };
    }

    fn counter(&mut self, name: &str, help: &str, value: impl Display) {
        self.head(name, "counter", help);
        self.line(name, "", value);
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.head(name, "gauge", help);
        self.line(name, "", value);
    }
}
