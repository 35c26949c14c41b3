//! `warpann convert --index`: graph indexes as HNSW files, inverted files and exact indexes of bits as files of FAISS,
//! and these as indexes.

use std::path::Path;

use warpann::flat::FaissBits;
use warpann::graph::hnsw::{HnswFormat, HnswInfo};
use warpann::io::Open;
use warpann::ivf::FaissInfo;
use warpann::{
    Any, AnyIndex, Device, Element, ElementType, Error, FileDefect, FlatIndex, GraphIndex, IndexInfo, IndexKind,
    IvfIndex, Metric,
};

use crate::index::{GRAPHS, kind_of, name_of};
use crate::progress::spinning;
use crate::report::{Failure, Outcome};
use crate::vectors::with_element;

/// The kinds that other programs have, in messages.
const CONVERTED: &str = "inverted files, graphs and exact indexes of bits";
/// The option, in messages.
const OPTION: &str = "convert --index";
/// The name of the format of index files of this program.
const OURS: &str = "warpann";

/// A format of index files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IndexFormat {
    Warpann,
    /// FAISS's format is also that of inverted files.
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

/// Converts the index in the file `input` to a file `out` of another format. `metric` is that of a file of another
/// program; without it, the file must have one.
pub fn convert(input: &Path, out: &Path, to: IndexFormat, metric: Option<Metric>) -> Outcome<Converted> {
    if let Ok(info) = IndexInfo::read(input) {
        if metric.is_some() {
            let message =
                format!("{}: --metric is for files of other programs; this one has its metric", input.display());
            return Err(Failure::Message(message));
        }
        return with_element!(info.element, T => of_ours::<T>(input, &info, out, to));
    }
    match HnswInfo::read(input) {
        Ok(info) => {
            let Some(metric) = metric.or(info.metric) else {
                let message = format!(
                    "{}: the file of {} does not have its metric; --metric names it",
                    input.display(),
                    info.format
                );
                return Err(Failure::Message(message));
            };
            let builder = GraphIndex::builder(info.dim).metric(metric).device(Device::Cpu);
            write_graph(&spinning("reading", || builder.load_hnsw(input, Open::Auto))?, ElementType::F32, out, to)
        }
        // No HNSW file at all.
        Err(Error::BadFile { defect: FileDefect::BadHeader(_), .. }) => {
            let info = match FaissInfo::read(input) {
                Ok(info) => info,
                Err(error @ Error::BadFile { defect: FileDefect::BadHeader(_), .. }) => {
                    let bits = FaissBits::read(input).map_err(|_| error)?;
                    return of_bits(input, bits, out, to, metric);
                }
                Err(error) => return Err(error.into()),
            };
            if info.metric.compares_bits() {
                check_bits(input, metric)?;
                let builder = IvfIndex::<u8>::builder(info.dim, info.lists).device(Device::Cpu);
                let index = spinning("reading", || builder.load_faiss(input, Open::Auto))?;
                return write_lists(&index, ElementType::U8, out, to);
            }
            let builder = IvfIndex::<f32>::builder(info.dim, info.lists).metric(metric.unwrap_or(info.metric));
            let builder = builder.device(Device::Cpu);
            write_lists(&spinning("reading", || builder.load_faiss(input, Open::Auto))?, ElementType::F32, out, to)
        }
        Err(error) => Err(error.into()),
    }
}

/// As [`convert`], of a file of this program.
fn of_ours<T: Element>(input: &Path, info: &IndexInfo, out: &Path, to: IndexFormat) -> Outcome<Converted> {
    let opened = || AnyIndex::<T>::load(input, Device::Cpu, None);
    match spinning("reading", opened)?.into_inside() {
        Any::Flat(index) if info.metric.compares_bits() => write_bits(&index, out, to),
        Any::Flat(_) => Err(Failure::OtherKind { option: OPTION, known: CONVERTED, kind: name_of(info) }),
        Any::Ivf(index) => write_lists(&index, info.element, out, to),
        Any::Graph(index) => write_graph(&index, info.element, out, to),
    }
}

/// Checks that a metric that was given, if any, is that of a file of bits.
fn check_bits(input: &Path, metric: Option<Metric>) -> Outcome<()> {
    match metric.filter(|metric| !metric.compares_bits()) {
        Some(other) => {
            let message = format!("{}: a file of bits, whose metric is hamming, not {other}", input.display());
            Err(Failure::Message(message))
        }
        None => Ok(()),
    }
}

/// As [`convert`], of a file of bits of FAISS that are in no lists.
fn of_bits(input: &Path, shape: FaissBits, out: &Path, to: IndexFormat, metric: Option<Metric>) -> Outcome<Converted> {
    check_bits(input, metric)?;
    let builder = FlatIndex::builder(shape.dim).device(Device::Cpu);
    write_bits(&spinning("reading", || builder.load_faiss(input, Open::Auto))?, out, to)
}

fn write_bits<T: Element>(index: &FlatIndex<T>, out: &Path, to: IndexFormat) -> Outcome<Converted> {
    match to {
        IndexFormat::Warpann => spinning("writing", || index.save(out))?,
        IndexFormat::Hnsw(HnswFormat::Faiss) => spinning("writing", || index.save_faiss(out))?,
        IndexFormat::Hnsw(_) => {
            let kind = IndexKind::Flat.name().to_owned();
            return Err(Failure::OtherKind { option: "convert --index hnswlib", known: GRAPHS, kind });
        }
    }
    Ok(Converted { vectors: index.len(), dim: index.dim(), from: T::TYPE, to: T::TYPE })
}

fn write_graph<T: Element>(
    index: &GraphIndex<T>,
    from: ElementType,
    out: &Path,
    to: IndexFormat,
) -> Outcome<Converted> {
    let to = match to {
        IndexFormat::Warpann => spinning("writing", || index.save(out)).map(|()| from)?,
        IndexFormat::Hnsw(format) => spinning("writing", || index.save_hnsw(out, format)).map(|()| ElementType::F32)?,
    };
    Ok(Converted { vectors: index.len(), dim: index.dim(), from, to })
}

fn write_lists<T: Element>(index: &IvfIndex<T>, from: ElementType, out: &Path, to: IndexFormat) -> Outcome<Converted> {
    let to = match to {
        IndexFormat::Warpann => spinning("writing", || index.save(out)).map(|()| from)?,
        IndexFormat::Hnsw(HnswFormat::Faiss) => {
            spinning("writing", || index.save_faiss(out))?;
            if index.metric().compares_bits() { from } else { ElementType::F32 }
        }
        IndexFormat::Hnsw(_) => {
            let kind = kind_of(index.encoding());
            return Err(Failure::OtherKind { option: "convert --index hnswlib", known: GRAPHS, kind });
        }
    };
    Ok(Converted { vectors: index.len(), dim: index.dim(), from, to })
}
