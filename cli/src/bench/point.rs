//! Points of a chart: recall, speed and latency of searches with one effort.

use serde::{Deserialize, Serialize};

/// The setting of a search that trades speed for recall.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Effort {
    /// Lists of an inverted file that the search reads.
    Probes(usize),
    /// Vectors that a walk in a graph keeps.
    Beam(usize),
}

impl Effort {
    /// The name of its column.
    pub fn name(self) -> &'static str {
        match self {
            Self::Probes(_) => "probes",
            Self::Beam(_) => "beam",
        }
    }

    pub fn count(self) -> usize {
        match self {
            Self::Probes(count) | Self::Beam(count) => count,
        }
    }
}

/// The quantity of a chart's vertical axis.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Axis {
    /// Queries per second
    #[default]
    Speed,
    /// Median time of a call in milliseconds
    Latency,
}

/// One row of a report: recall, speed and latency of one k, effort and size of batch.
#[derive(Debug, Clone, Deserialize, Serialize)]
pub struct Point {
    pub k: usize,
    #[serde(flatten)]
    pub effort: Effort,
    pub batch: usize,
    pub recall: f64,
    pub queries_per_second: f64,
    pub latency_p50_ms: f64,
}

impl Point {
    pub fn y(&self, axis: Axis) -> f64 {
        match axis {
            Axis::Speed => self.queries_per_second,
            Axis::Latency => self.latency_p50_ms,
        }
    }

    /// Whether this point is at least as good as `other` in recall and on the axis, and better in one of them.
    pub fn beats(&self, other: &Self, axis: Axis) -> bool {
        let gain = match axis {
            Axis::Speed => self.queries_per_second - other.queries_per_second,
            Axis::Latency => other.latency_p50_ms - self.latency_p50_ms,
        };
        let recall = self.recall - other.recall;
        gain >= 0.0 && recall >= 0.0 && (gain > 0.0 || recall > 0.0)
    }
}

/// The points of one index.
pub struct Measured {
    pub index: String,
    pub device: String,
    pub points: Vec<Point>,
}
