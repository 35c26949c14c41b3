//! `warpann chart`: draws reports of `bench ivf` and `bench graph`, recall against speed or latency.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::outputs::{check_outputs, named};
use super::page::page;
use super::picture::{EXTENSIONS, Picture};
use super::point::{Axis, Measured, Point};
use super::record;
use crate::report::{Failure, Out, Outcome, SCHEMA, positive};
use crate::streams::{Stdin, check_files};

/// Arguments of `chart`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Reports of `bench ivf` and `bench graph`: what --out writes as NAME.json, or --json prints. A file FILE.csv is a
    /// record of the repository's benchmarks, whose searches of graphs are drawn, a series for each implementation and
    /// data.
    #[arg(required = true, value_name = "REPORT")]
    reports: Vec<PathBuf>,
    /// Write the chart as NAME.svg and NAME.png. If NAME ends with .html, write one page of this name instead: the
    /// chart, and a table of all points that a click sorts.
    #[arg(long, value_name = "NAME")]
    out: PathBuf,
    /// The quantity of the vertical axis.
    #[arg(long, value_enum, default_value_t)]
    axis: Axis,
    /// Draw only the rows of these numbers of neighbours, separated by commas. Default: all.
    #[arg(long, value_delimiter = ',', value_parser = positive)]
    k: Vec<usize>,
    /// Draw only the rows of these numbers of queries in a call, separated by commas. Default: all.
    #[arg(long, value_delimiter = ',', value_parser = positive)]
    batch: Vec<usize>,
}

/// The commands whose reports are drawn.
const COMMANDS: [&str; 2] = ["bench ivf", "bench graph"];

/// The fields of a report that this command reads. Older reports have neither `schema` nor `command`.
#[derive(Deserialize)]
struct ReportFile {
    schema: Option<u32>,
    command: Option<String>,
    index: String,
    device: String,
    rows: Vec<Point>,
}

/// Reads the report of a measurement, or the series of a record.
fn read(path: &Path) -> Outcome<Vec<Measured>> {
    if path.extension().is_some_and(|extension| extension == "csv") {
        return record::read(path);
    }
    let known = COMMANDS.join(" or ");
    let failed = |reason: String| Failure::Message(format!("{}: {reason}", path.display()));
    let text = std::fs::read(path).map_err(|source| warpann::Error::Io { path: path.to_owned(), source })?;
    let report: ReportFile =
        serde_json::from_slice(&text).map_err(|error| failed(format!("not a report of {known}: {error}")))?;
    if let Some(command) = report.command.filter(|command| !COMMANDS.contains(&command.as_str())) {
        return Err(failed(format!("a report of {command}, not of {known}")));
    }
    if let Some(schema) = report.schema.filter(|&schema| schema != SCHEMA) {
        return Err(failed(format!("schema {schema} of reports; this program reads {SCHEMA}")));
    }
    Ok(vec![Measured { index: report.index, device: report.device, points: report.rows }])
}

/// A curve of the chart, as JSON.
#[derive(Serialize)]
struct CurveReport<'a> {
    name: &'a str,
    points: Vec<PointReport<'a>>,
}

#[derive(Serialize)]
struct PointReport<'a> {
    #[serde(flatten)]
    point: &'a Point,
    best: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    files: Vec<String>,
    curves: Vec<CurveReport<'a>>,
}

/// Draws the chart and prints the best points.
pub fn run(args: &Args, out: &Out) -> Outcome {
    let inputs = args.reports.iter().map(PathBuf::as_path);
    let as_page = args.out.extension().is_some_and(|extension| extension == "html");
    if as_page {
        check_files(Stdin::default(), inputs, [&*args.out])?;
    } else {
        check_outputs(Stdin::default(), inputs, Some(&args.out), EXTENSIONS, None)?;
    }
    let (mut all, mut paths) = (Vec::new(), Vec::new());
    for path in &args.reports {
        for mut measured in read(path)? {
            let wanted = |list: &[usize], value: usize| list.is_empty() || list.contains(&value);
            measured.points.retain(|point| wanted(&args.k, point.k) && wanted(&args.batch, point.batch));
            if !measured.points.is_empty() {
                all.push(measured);
                paths.push(path);
            }
        }
    }
    // Indexes of one description are distinguished by their files.
    let alike =
        |at: usize| all.iter().enumerate().any(|(other, measured)| other != at && measured.index == all[at].index);
    let alike: Vec<bool> = (0..all.len()).map(alike).collect();
    for ((measured, path), _) in all.iter_mut().zip(paths).zip(alike).filter(|(_, alike)| *alike) {
        measured.index = format!("{}: {}", path.display(), measured.index);
    }
    if all.is_empty() {
        return Err(Failure::Message("the reports have no row with this k and batch".to_owned()));
    }
    let picture = Picture::of(&all, args.axis);
    let files: Vec<String> = if as_page {
        warpann::io::write_file(&args.out, page(&picture).as_bytes())?;
        vec![args.out.display().to_string()]
    } else {
        picture.write(&args.out)?;
        EXTENSIONS.iter().map(|extension| named(&args.out, extension).display().to_string()).collect()
    };
    out.field("chart", files.join(", "))?;
    out.field("curves", picture.curves.len())?;
    let heads = ["k", picture.efforts(), "batch", "recall@k", "queries/s", "p50 ms"];
    let [k, effort, batch, recall, speed, p50] = heads;
    out.line(format_args!("{k:>5} {effort:>7} {batch:>7} {recall:>9} {speed:>11} {p50:>9}  best of all"))?;
    let mut curves = Vec::new();
    for curve in &picture.curves {
        let points = curve.points.iter().map(|point| PointReport { point, best: picture.is_best(curve, point) });
        curves.push(CurveReport { name: &curve.name, points: points.collect() });
    }
    let mut best: Vec<(&str, &Point)> = curves
        .iter()
        .flat_map(|curve| curve.points.iter().filter(|point| point.best).map(|point| (curve.name, point.point)))
        .collect();
    best.sort_by(|(_, a), (_, b)| (a.k, a.batch).cmp(&(b.k, b.batch)).then(a.recall.total_cmp(&b.recall)));
    for (name, Point { k, effort, batch, recall, queries_per_second, latency_p50_ms }) in best {
        out.line(format_args!(
            "{k:>5} {:>7} {batch:>7} {recall:>9.6} {queries_per_second:>11.0} {latency_p50_ms:>9.3}  {name}",
            effort.count()
        ))?;
    }
    out.object(&Report { files, curves })
}
