//! Charts of recall against speed or latency, of one index or of several.

use std::path::Path;

use super::outputs::named;
use super::point::{Axis, Measured, Point};
use crate::chart::{Chart, Mark, Series};
use crate::report::Outcome;

/// Extensions of the files of a chart.
pub const EXTENSIONS: [&str; 2] = ["svg", "png"];

/// The points of one index with one k and one size of batch, by recall.
pub struct Curve {
    pub name: String,
    /// Number of the index, and of this curve among the curves of the index.
    subject: usize,
    variant: usize,
    pub k: usize,
    pub batch: usize,
    pub points: Vec<Point>,
}

/// The chart of some indexes, and its curves.
pub struct Picture {
    pub chart: Chart,
    pub curves: Vec<Curve>,
    axis: Axis,
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
            let mark = |point: &Point| Mark {
                place: (point.recall, point.y(axis)),
                text: hover_text(&all[curve.subject], point),
            };
            Series { name: curve.name.clone(), subject, variant, marks: curve.points.iter().map(mark).collect() }
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
        Self { chart, curves, axis }
    }

    /// The name of the efforts of all points: `probes`, `beam`, or `effort` if there are both.
    pub fn efforts(&self) -> &'static str {
        let mut names = self.curves.iter().flat_map(|curve| &curve.points).map(|point| point.effort.name());
        let first = names.next().unwrap_or_default();
        if names.all(|name| name == first) { first } else { "effort" }
    }

    /// Whether no point of another curve with the same k and batch beats this point, nor another point of its curve.
    pub fn is_best(&self, curve: &Curve, point: &Point) -> bool {
        let rivals = self.curves.iter().filter(|rival| (rival.k, rival.batch) == (curve.k, curve.batch));
        !rivals.flat_map(|rival| &rival.points).any(|other| other.beats(point, self.axis))
    }

    /// Writes NAME.svg and NAME.png.
    pub fn write(&self, name: &Path) -> Outcome {
        let [svg, png] = EXTENSIONS.map(|extension| named(name, extension));
        self.chart.write(&svg, &png)
    }
}

fn hover_text(Measured { index, device, .. }: &Measured, point: &Point) -> String {
    let Point { k, effort, batch, recall, queries_per_second, latency_p50_ms } = point;
    format!(
        "{index}\n{device}\n{} {}, k = {k}, batch {batch}\nrecall {recall:.6}\n{queries_per_second:.0} queries/s\np50 {latency_p50_ms:.3} ms",
        effort.name(),
        effort.count()
    )
}

fn places(points: &[Point], axis: Axis) -> Vec<(f64, f64)> {
    points.iter().map(|point| (point.recall, point.y(axis))).collect()
}

/// For each k and size of batch that several curves have: the points that no other point beats, by recall. These are
/// the Pareto line.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::point::Effort;

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
