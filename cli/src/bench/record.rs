//! The records of the repository's benchmarks (csv, a row for each case and implementation) as points of a chart.

use std::path::Path;

use serde::Deserialize;

use super::point::{Effort, Measured, Point};
use crate::report::{Failure, Outcome};

/// The cells of a row that a chart reads. Cells are empty where a case has no such quantity.
#[derive(Deserialize)]
struct Row {
    implementation: String,
    device: String,
    case: String,
    #[serde(deserialize_with = "csv::invalid_option")]
    k: Option<usize>,
    #[serde(deserialize_with = "csv::invalid_option")]
    ms_median: Option<f64>,
    #[serde(deserialize_with = "csv::invalid_option")]
    recall: Option<f64>,
}

impl Row {
    /// The name of the series and the point, if the row measures the recall of walks in a graph: its case is
    /// `graph NxDIM TYPE degree=D nq=Q beam=B`, `hnsw NxDIM TYPE links=M nq=Q ef=B` or
    /// `device data graph beam=B NxDIM TYPE nq=Q device to device`.
    fn point(&self) -> Option<(String, Point)> {
        let on_device = self.case.starts_with("device data graph ") && self.case.ends_with(" device to device");
        if !on_device && !["graph ", "hnsw "].iter().any(|kind| self.case.starts_with(kind)) {
            return None;
        }
        let words = || self.case.split(' ');
        let number = |name: &str| words().find_map(|word| word.strip_prefix(name))?.parse::<usize>().ok();
        let (batch, beam) = (number("nq=")?, number("beam=").or_else(|| number("ef="))?);
        let (ms, recall) = (self.ms_median.filter(|&ms| ms > 0.0)?, self.recall.filter(|recall| recall.is_finite())?);
        let point = Point {
            k: self.k?,
            effort: Effort::Beam(beam),
            batch,
            recall,
            queries_per_second: 1e3 * batch as f64 / ms,
            latency_p50_ms: ms,
        };
        // The words that the rows of a series share.
        let shared = words().filter(|word| !["nq=", "beam=", "ef="].iter().any(|name| word.starts_with(name)));
        let name = format!("{}, {}", self.implementation, shared.collect::<Vec<_>>().join(" "));
        Some((name, point))
    }
}

/// Reads the series of a record, in the order in which they begin.
///
/// # Errors
/// If the file is no record, or has no row that measures the recall of walks.
pub fn read(path: &Path) -> Outcome<Vec<Measured>> {
    let failed = |reason: String| Failure::Message(format!("{}: {reason}", path.display()));
    let file = std::fs::File::open(path).map_err(|source| warpann::Error::Io { path: path.to_owned(), source })?;
    let mut all: Vec<Measured> = Vec::new();
    for row in csv::Reader::from_reader(file).deserialize() {
        let row: Row = row.map_err(|error| failed(format!("not a record of the benchmarks: {error}")))?;
        let Some((index, point)) = row.point() else { continue };
        match all.iter_mut().find(|measured| measured.index == index && measured.device == row.device) {
            Some(measured) => measured.points.push(point),
            None => all.push(Measured { index, device: row.device, points: vec![point] }),
        }
    }
    if all.is_empty() {
        let case = "graph NxDIM TYPE degree=D nq=Q beam=B";
        return Err(failed(format!("the record has no row with a recall and a case such as '{case}'")));
    }
    Ok(all)
}
