//! `warpann tune`: the smallest number of probes or the narrowest beam for a recall, kept in the index file.

use std::path::PathBuf;
use std::time::Instant;

use serde::Serialize;
use warpann::{Any, Error, Index, IndexInfo, IndexKind};

use crate::index::{APPROXIMATE, Details, Place, Stored, name_of, open};
use crate::progress::{spinning, staged};
use crate::report::{Failure, Out, Outcome, positive};
use crate::streams::{check_files, lock, parse_index};
use crate::vectors::{Access, exactly, with_element};

/// Arguments of `tune`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The index to tune, which `warpann build` made. Its number of probes or its beam is replaced. Runs that change
    /// one index wait for each other.
    #[arg(long, value_name = "INDEX", value_parser = parse_index)]
    index: PathBuf,
    /// Vectors like those of later searches: fvecs, bvecs, fbin, u8bin, i8bin or npy. A hundred or more are enough to
    /// estimate a recall of 0.95.
    #[arg(long, value_name = "FILE")]
    query: PathBuf,
    /// Neighbours of each query.
    #[arg(long, default_value_t = 10, value_parser = positive)]
    k: usize,
    /// The fraction of the true neighbours that searches shall find: above 0, at most 1. An exact search of the index
    /// finds the true neighbours; in an inverted file that keeps codes, a search of all lists.
    #[arg(long, value_name = "RECALL", value_parser = share)]
    target_recall: f64,
    /// Write the tuned index here and leave the old one. Default: replace the old one.
    #[arg(long, value_name = "INDEX", value_parser = parse_index)]
    out: Option<PathBuf>,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    access: Access,
}

/// The recall of a text: a number above 0 and at most 1.
pub fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if share > 0.0 && share <= 1.0 => Ok(share),
        _ => Err("must be above 0 and at most 1".into()),
    }
}

#[derive(Serialize)]
struct Report {
    device: String,
    index: String,
    queries: usize,
    k: usize,
    recall: f64,
    reached: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    probes: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    beam: Option<usize>,
    load_seconds: f64,
    tune_seconds: f64,
    save_seconds: f64,
    file: String,
}

/// Tunes, saves, prints the report.
pub fn run(args: &Args, out: &Out) -> Outcome {
    let target = args.out.as_ref().unwrap_or(&args.index);
    check_files(args.access.stdin, [&*args.query], [&**target])?;
    let start = Instant::now();
    IndexInfo::read(&args.index)?;
    let queries = spinning("reading", || args.access.vectors(&args.query))?;
    if queries.rows() == 0 {
        return Err(Failure::Message(format!("{}: no queries", args.query.display())));
    }
    let _lock = lock(target)?;
    let file = IndexInfo::read(&args.index)?;
    if file.kind() == IndexKind::Flat {
        return Err(Failure::OtherKind { option: "tune", known: APPROXIMATE, kind: name_of(&file) });
    }
    if queries.dim() != file.dim {
        return Err(Error::WrongDimension { expected: file.dim, actual: queries.dim() }.into());
    }
    let report = with_element!(file.element, T => {
        let queries = exactly::<T>(&queries, &args.query)?;
        let mut index = open::<Any<T>>(&args.index, args.place.device.clone(), args.place.memory_budget, &args.access)?;
        tune(args, &mut index, &queries, start)?
    });
    let Report { device, index, k, recall, reached, load_seconds, tune_seconds, save_seconds, file, .. } = &report;
    out.field("device", device)?;
    out.field("index", index)?;
    let setting = match (report.probes, report.beam) {
        (Some(probes), _) => format!("{probes} probes"),
        (None, beam) => format!("a beam of {}", beam.unwrap_or_default()),
    };
    out.field("target", format_args!("recall@{k} of {recall}: {setting} reaches {reached:.6}"))?;
    out.field("load", format_args!("{load_seconds:.3} s"))?;
    out.field("tune", format_args!("{tune_seconds:.3} s, {} queries", report.queries))?;
    out.field("save", format_args!("{save_seconds:.3} s, in {file}"))?;
    out.object(&report)
}

fn tune<K: Stored<Details = Details>>(
    args: &Args,
    index: &mut Index<K>,
    queries: &[K::Element],
    start: Instant,
) -> Outcome<Report> {
    let load_seconds = start.elapsed().as_secs_f64();
    let start = Instant::now();
    let tuned = spinning("searching for the setting", || index.tune(queries, args.k, args.target_recall));
    let (setting, reached) = tuned?;
    let tune_seconds = start.elapsed().as_secs_f64();
    let start = Instant::now();
    let file = args.out.as_ref().unwrap_or(&args.index);
    staged("saving the index", |watch| index.save_watched(file, watch))?;
    let (probes, beam) = match K::details(index) {
        Details::Flat(_) => (None, None),
        Details::Ivf(_) => (Some(setting), None),
        Details::Graph(_) => (None, Some(setting)),
    };
    Ok(Report {
        device: index.device(),
        index: K::description(index),
        queries: queries.len() / index.dim(),
        k: args.k,
        recall: args.target_recall,
        reached,
        probes,
        beam,
        load_seconds,
        tune_seconds,
        save_seconds: start.elapsed().as_secs_f64(),
        file: file.display().to_string(),
    })
}
