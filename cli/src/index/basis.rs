//! The options and the results of making an index of any kind.

use warpann::{Index, Kind, Metric, Placement};

use crate::report::parse_bytes;

/// How an index of any kind is made.
#[derive(Debug, Clone, clap::Args)]
pub struct Basis {
    /// l2 (squared Euclidean distance), ip (inner product) or cosine.
    #[arg(long, default_value = "l2")]
    pub metric: Metric,
    /// Seed of the index: the same seed and vectors give the same index.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// The device of an index and its memory budget.
#[derive(Debug, Clone, clap::Args)]
pub struct Place {
    /// auto, cpu, gpu, gpu:N, or emulator (checks the GPU's kernels on the CPU; very slow). Several: gpu:0,gpu:1 are
    /// replicas, which divide the queries; gpu:0+gpu:1 are shards, which divide the vectors; gpu:0+gpu:1,gpu:2+gpu:3
    /// are both.
    #[arg(long, default_value = "auto")]
    pub device: Placement,
    /// Memory that the index may use on its device (of several, on each), in bytes or with K, M, G, T.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub memory_budget: Option<u64>,
}

/// A new index, and the times of making it. Only some kinds are trained.
pub struct Built<K: Kind> {
    pub index: Index<K>,
    pub train_seconds: Option<f64>,
    pub add_seconds: f64,
}

/// The first of the options that are given.
pub fn first_given(options: &[(bool, &'static str)]) -> Option<&'static str> {
    options.iter().find_map(|&(given, option)| given.then_some(option))
}
