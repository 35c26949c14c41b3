//! `warpann convert --index`: graph indexes as HNSW files of other programs, and these as graph indexes.

use std::path::Path;

use warpann::graph::hnsw::{HnswFormat, HnswInfo};
use warpann::io::Open;
use warpann::{Device, Element, ElementType, Error, GraphIndex, IndexInfo, IndexKind, Metric};

use crate::index::{GRAPHS, name_of, read_graph};
use crate::progress::spinning;
use crate::report::{Failure, Outcome};
use crate::vectors::with_element;

/// The option, in messages.
const OPTION: &str = "convert --index";
/// The name of the format of index files of this program.
const OURS: &str = "warpann";

/// A format of index files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IndexFormat {
    Warpann,
    Hnsw(HnswFormat),
}

/// The format of a name on the command line.
pub fn parse_format(text: &str) -> Result<IndexFormat, String> {
    if text == OURS {
        return Ok(IndexFormat::Warpann);
    }
    let names = HnswFormat::ALL.map(HnswFormat::name).join(", ");
    text.parse().map(IndexFormat::Hnsw).map_err(|_| format!("expected one of {OURS}, {names}"))
}

/// An index that was converted.
pub struct Converted {
    pub vectors: usize,
    pub dim: usize,
    /// Element types of the files.
    pub from: ElementType,
    pub to: ElementType,
}

/// Converts the index in the file `input` to a file `out` of another format. `metric` is that of an HNSW file; without
/// it, the file must have one.
pub fn convert(input: &Path, out: &Path, to: IndexFormat, metric: Option<Metric>) -> Outcome<Converted> {
    let info = match HnswInfo::read(input) {
        Ok(info) => info,
        Err(error) => return of_graph(input, out, to, metric, error),
    };
    let Some(metric) = metric.or(info.metric) else {
        let message =
            format!("{}: the file of {} does not have its metric; --metric names it", input.display(), info.format);
        return Err(Failure::Message(message));
    };
    let builder = GraphIndex::builder(info.dim).metric(metric).device(Device::Cpu);
    write(&spinning("reading", || builder.load_hnsw(input, Open::Auto))?, ElementType::F32, out, to)
}

/// As [`convert`], of a file that is no HNSW file, as `error` says.
fn of_graph(input: &Path, out: &Path, to: IndexFormat, metric: Option<Metric>, error: Error) -> Outcome<Converted> {
    if IndexKind::of_file(input)? != IndexKind::Graph {
        let Ok(info) = IndexInfo::read(input) else { return Err(error.into()) };
        return Err(Failure::OtherKind { option: OPTION, known: GRAPHS, kind: name_of(&info) });
    }
    let info = read_graph(input, OPTION)?;
    if metric.is_some() {
        let message = format!("{}: --metric is for files of other programs; this one has its metric", input.display());
        return Err(Failure::Message(message));
    }
    with_element!(info.element, T => {
        write(&spinning("reading", || GraphIndex::<T>::load(input, Device::Cpu, None))?, info.element, out, to)
    })
}

fn write<T: Element>(index: &GraphIndex<T>, from: ElementType, out: &Path, to: IndexFormat) -> Outcome<Converted> {
    let to = match to {
        IndexFormat::Warpann => spinning("writing", || index.save(out)).map(|()| from)?,
        IndexFormat::Hnsw(format) => spinning("writing", || index.save_hnsw(out, format)).map(|()| ElementType::F32)?,
    };
    Ok(Converted { vectors: index.len(), dim: index.dim(), from, to })
}
