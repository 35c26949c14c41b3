//! The part of reports for exact indexes.

use std::path::Path;

use serde::Serialize;
use warpann::flat::Flat;
use warpann::io::Open;
use warpann::{Element, FlatIndex};

use super::stored::{Stored, first_unequal};
use crate::report::{Out, Outcome, bytes};

/// The name of the kind of exact indexes.
const FLAT: &str = "flat";

impl<T: Element> Stored for Flat<T> {
    type Details = Rows;

    fn kind(_: &FlatIndex<T>) -> String {
        FLAT.into()
    }

    fn first_other(index: &FlatIndex<T>, base: &[T], _: &Path, _: Open) -> warpann::Result<Option<usize>> {
        first_unequal(base, index.dim(), |id| index.reconstruct(id))
    }

    fn description(_: &FlatIndex<T>) -> String {
        FLAT.into()
    }

    fn details(index: &FlatIndex<T>) -> Rows {
        let statistics = index.statistics();
        Rows { bytes: statistics.host_bytes + statistics.device_bytes }
    }
}

/// The part of a report for exact indexes only.
#[derive(Debug, Clone, Serialize)]
pub struct Rows {
    bytes: u64,
}

impl Rows {
    pub fn print(&self, out: &Out) -> Outcome {
        out.field("memory", bytes(self.bytes))
    }
}
