//! `warpann chart`, and the curves of `bench ivf` and `bench graph`: recall against speed or latency.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::sweep::Effort;
use super::{check_outputs, named, record};
use crate::chart::{Chart, Series};
use crate::report::{Failure, Out, Outcome, SCHEMA, positive};
use crate::streams::Stdin;

/// Extensions of the files of a chart.
pub const EXTENSIONS: [&str; 2] = ["svg", "png"];

/// Arguments of `chart`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Reports of `bench ivf` and `bench graph`: what --out writes as NAME.json, or --json prints. A file FILE.csv is a record of the
    /// repository's benchmarks, whose searches of graphs are drawn, a series for each implementation and data.
    #[arg(required = true, value_name = "REPORT")]
    reports: Vec<PathBuf>,
    /// Write the chart as NAME.svg and NAME.png.
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
    fn y(&self, axis: Axis) -> f64 {
        match axis {
            Axis::Speed => self.queries_per_second,
            Axis::Latency => self.latency_p50_ms,
        }
    }

    /// Whether this point is at least as good as `other` in recall and on the axis, and better in one of them.
    fn beats(&self, other: &Self, axis: Axis) -> bool {
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

/// The points of one index with one k and one size of batch, by recall.
pub struct Curve {
    name: String,
    /// Number of the index, and of this curve among the curves of the index.
    subject: usize,
    variant: usize,
    k: usize,
    batch: usize,
    points: Vec<Point>,
}

/// The chart of some indexes, and its curves.
pub struct Picture {
    pub chart: Chart,
    curves: Vec<Curve>,
}

impl Picture {
    /// Arranges points as curves. The names of the curves say what distinguishes them, and the title says the rest.
    pub fn of(all: &[Measured], axis: Axis) -> Self {
        let points = || all.iter().flat_map(|measured| &measured.points);
        let several =
            |of: fn(&Point) -> usize| points().any(|point| points().next().is_some_and(|first| of(first) != of(point)));
        let (several_k, several_batches) = (several(|point| point.k), several(|point| point.batch));
        let several_devices = all.iter().any(|measured| measured.device != all[0].device);
        let mut curves: Vec<Curve> = Vec::new();
        for (subject, measured) in all.iter().enumerate() {
            let first = curves.len();
            for point in &measured.points {
                let mut names = Vec::new();
                if all.len() > 1 {
                    names.push(measured.index.clone());
                }
                if several_devices {
                    names.push(measured.device.clone());
                }
                if several_k {
                    names.push(format!("k = {}", point.k));
                }
                if several_batches || names.is_empty() {
                    names.push(format!("batch {}", point.batch));
                }
                let curve = curves[first..].iter_mut().find(|curve| (curve.k, curve.batch) == (point.k, point.batch));
                match curve {
                    Some(curve) => curve.points.push(point.clone()),
                    None => curves.push(Curve {
                        name: names.join(", "),
                        subject,
                        variant: curves.len() - first,
                        k: point.k,
                        batch: point.batch,
                        points: vec![point.clone()],
                    }),
                }
            }
        }
        for curve in &mut curves {
            curve.points.sort_by(|a, b| a.recall.total_cmp(&b.recall).then(a.effort.cmp(&b.effort)));
        }
        let k = points().next().map_or(0, |point| point.k);
        let batch = points().next().map_or(0, |point| point.batch);
        let quantity = match axis {
            Axis::Speed => "queries per second",
            Axis::Latency => "milliseconds per call, median",
        };
        let device = all.first().map_or("", |measured| &measured.device);
        let what = match axis {
            Axis::Speed => "speed",
            Axis::Latency => "latency",
        };
        // The curves of a single index have different colours.
        let looks = |curve: &Curve| if all.len() == 1 { (curve.variant, 0) } else { (curve.subject, curve.variant) };
        let series = curves.iter().map(|curve| {
            let (subject, variant) = looks(curve);
            Series { name: curve.name.clone(), subject, variant, points: places(&curve.points, axis) }
        });
        let chart = Chart {
            title: match all {
                [one] => format!("{}; {device}", one.index),
                _ if several_devices => format!("Recall and {what} of indexes"),
                _ => format!("Recall and {what} of indexes; {device}"),
            },
            x_label: if several_k { "recall@k".into() } else { format!("recall@{k}") },
            y_label: if several_batches { quantity.into() } else { format!("{quantity}, batch {batch}") },
            series: series.collect(),
            best: best_lines(&curves, axis).iter().map(|line| places(line, axis)).collect(),
        };
        Self { chart, curves }
    }

    /// Writes NAME.svg and NAME.png.
    pub fn write(&self, name: &Path) -> Outcome {
        let [svg, png] = EXTENSIONS.map(|extension| named(name, extension));
        self.chart.write(&svg, &png)
    }
}

fn places(points: &[Point], axis: Axis) -> Vec<(f64, f64)> {
    points.iter().map(|point| (point.recall, point.y(axis))).collect()
}

/// For each k and size of batch that several curves have: the points that no other point beats, by recall. These are the Pareto line.
fn best_lines(curves: &[Curve], axis: Axis) -> Vec<Vec<Point>> {
    let mut groups: Vec<(usize, usize)> = curves.iter().map(|curve| (curve.k, curve.batch)).collect();
    groups.sort_unstable();
    let shared = groups.chunk_by(|a, b| a == b).filter(|group| group.len() > 1).map(|group| group[0]);
    let line = |group| {
        let of_group = curves.iter().filter(|curve| (curve.k, curve.batch) == group);
        let all: Vec<&Point> = of_group.flat_map(|curve| &curve.points).collect();
        let unbeaten = all.iter().filter(|point| !all.iter().any(|other| other.beats(point, axis)));
        let mut line: Vec<Point> = unbeaten.map(|point| (*point).clone()).collect();
        line.sort_by(|a, b| a.recall.total_cmp(&b.recall));
        line
    };
    shared.map(line).collect()
}

/// The commands whose reports are drawn.
const COMMANDS: [&str; 2] = ["bench ivf", "bench graph"];

/// What this command reads of a report. Older reports have neither `schema` nor `command`.
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
    /// Whether no point of another curve with the same k and batch beats this point, nor another point of its curve.
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
    check_outputs(Stdin::default(), inputs, Some(&args.out), EXTENSIONS, None)?;
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
    picture.write(&args.out)?;

    let files: Vec<String> =
        EXTENSIONS.iter().map(|extension| named(&args.out, extension).display().to_string()).collect();
    out.field("chart", files.join(", "))?;
    out.field("curves", picture.curves.len())?;
    let mut names = all.iter().flat_map(|measured| &measured.points).map(|point| point.effort.name());
    let first = names.next().unwrap_or_default();
    let effort = if names.all(|name| name == first) { first } else { "effort" };
    let heads = ["k", effort, "batch", "recall@k", "queries/s", "p50 ms"];
    let [k, effort, batch, recall, speed, p50] = heads;
    out.line(format_args!("{k:>5} {effort:>7} {batch:>7} {recall:>9} {speed:>11} {p50:>9}  best of all"))?;
    let mut curves = Vec::new();
    for curve in &picture.curves {
        let rivals = || picture.curves.iter().filter(|rival| (rival.k, rival.batch) == (curve.k, curve.batch));
        let best = |point: &Point| !rivals().flat_map(|rival| &rival.points).any(|other| other.beats(point, args.axis));
        let points = curve.points.iter().map(|point| PointReport { point, best: best(point) });
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

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(index: &str, points: &[(usize, f64, f64, f64)]) -> Measured {
        let point = |&(batch, recall, queries_per_second, latency_p50_ms): &(usize, f64, f64, f64)| Point {
            k: 10,
            effort: Effort::Probes(1),
            batch,
            recall,
            queries_per_second,
            latency_p50_ms,
        };
        Measured { index: index.into(), device: "cpu".into(), points: points.iter().map(point).collect() }
    }

    #[test]
    fn the_best_points_are_those_that_no_point_beats() {
        let a = measured("a", &[(1, 0.5, 100.0, 1.0), (1, 0.7, 50.0, 4.0), (1, 0.9, 10.0, 9.0)]);
        // The first is slower than a point of a with the same recall, the second beats one, the third is equal to one.
        let b = measured("b", &[(1, 0.5, 90.0, 2.0), (1, 0.8, 60.0, 3.0), (1, 0.9, 10.0, 9.0), (7, 0.1, 1.0, 99.0)]);
        let picture = Picture::of(&[a, b], Axis::Speed);
        assert_eq!(picture.chart.best, [vec![(0.5, 100.0), (0.8, 60.0), (0.9, 10.0), (0.9, 10.0)]]);
        let names: Vec<_> = picture.chart.series.iter().map(|series| series.name.as_str()).collect();
        assert_eq!(names, ["a, batch 1", "b, batch 1", "b, batch 7"]);
        let a = measured("a", &[(1, 0.5, 100.0, 1.0), (1, 0.7, 50.0, 4.0)]);
        let b = measured("b", &[(1, 0.6, 10.0, 0.5)]);
        let picture = Picture::of(&[a, b], Axis::Latency);
        assert_eq!(picture.chart.best, [vec![(0.6, 0.5), (0.7, 4.0)]]);
        assert_eq!(picture.chart.y_label, "milliseconds per call, median, batch 1");
    }

    #[test]
    fn one_index_has_no_line_of_the_best() {
        let picture = Picture::of(&[measured("a", &[(1, 0.5, 100.0, 1.0), (1, 0.7, 50.0, 4.0)])], Axis::Speed);
        assert!(picture.chart.best.is_empty());
        assert_eq!((picture.chart.title.as_str(), picture.chart.series.len()), ("a; cpu", 1));
    }
}
