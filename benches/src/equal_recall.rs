//! Comparison of approximate search with other libraries at equal recall.
//!
//! Libraries train differently, so the same number of probes gives different recalls. For each figure of another
//! library, recall r at q queries per second, the sweep of warpann is interpolated at r: log q is linear in recall
//! between adjacent steps. Only steps count that no other step exceeds in both. The faster library at the same recall
//! wins.
//!
//! ```text
//! recall of a batch of few queries = recall of the large batch with as many probes: few queries cannot measure it
//! below the sweep's lowest recall: its fastest step, which is better and no slower; the ratio is a lower bound
//! above its highest: no figure
//! ```
//!
//! Builds are compared by time alone. k-means is compared by time if the objective is at most one part in 500 worse.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::Outcome;
use crate::record::{Row, print, read};

/// Arguments of `equal-recall`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Record files to read.
    #[arg(required = true)]
    records: Vec<PathBuf>,
    /// Figures of peers and goals from elsewhere, as a record: `peers/anchors.csv`. Marked with a star.
    #[arg(long, value_name = "CSV")]
    anchors: Option<PathBuf>,
}

/// The largest relative excess of an objective over that of another library.
const SAME_OBJECTIVE: f64 = 1.002;

/// Reads records, compares, prints.
pub fn run(args: &Args) -> Outcome {
    let mut rows = Vec::new();
    for path in &args.records {
        rows.extend(read(path)?);
    }
    if let Some(path) = &args.anchors {
        rows.extend(read(path)?.into_iter().map(|row| Row { implementation: row.implementation + "*", ..row }));
    }
    print(format_args!("{}", compared(&rows)))
}

/// The required ratio of warpann's speed to that of another implementation.
fn demand(implementation: &str, case: &str, k: usize) -> &'static str {
    match (implementation.trim_end_matches('*'), case.starts_with("build ")) {
        // A second for flat lists, two for codes of 32 bytes.
        ("goal", true) => "must",
        ("goal", false) | (_, true) => "aim",
        // For 100-NN and k-means, warpann must be faster than FlashLib.
        ("flashlib", false) if k == 10 => "aim",
        _ => "must",
    }
}

/// The name of a case without the parts that a sweep varies.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Search {
    device: String,
    index: String,
    queries: usize,
    k: usize,
}

/// The search in the name of a case, and the number of probes if the name has one.
fn parse(row: &Row) -> Option<(Search, Option<usize>)> {
    let (mut index, mut queries, mut probes) = (Vec::new(), None, None);
    for word in row.case.split(' ') {
        if let Some(number) = word.strip_prefix("nq=") {
            queries = Some(number.parse().ok()?);
        } else if let Some(number) = word.strip_prefix("probes=") {
            probes = Some(number.parse().ok()?);
        } else {
            index.push(word);
        }
    }
    let inverted = row.case.starts_with("ivf-") && row.k > 0;
    let search = Search { device: row.device.clone(), index: index.join(" "), queries: queries?, k: row.k };
    inverted.then_some((search, probes))
}

/// One measured step: recall and queries per second.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Step {
    recall: f64,
    rate: f64,
}

/// The steps that no other step exceeds in both, by ascending recall and so by descending rate.
fn front(steps: impl IntoIterator<Item = Step>) -> Vec<Step> {
    let mut steps: Vec<Step> = steps.into_iter().collect();
    steps.sort_by(|a, b| b.recall.total_cmp(&a.recall).then(b.rate.total_cmp(&a.rate)));
    let mut front: Vec<Step> = Vec::new();
    for step in steps {
        if front.last().is_none_or(|last| step.rate > last.rate) {
            front.push(step);
        }
    }
    front.reverse();
    front
}

/// Queries per second of a front at a recall, and whether that is a lower bound; `None` above its last step.
fn rate_at(front: &[Step], recall: f64) -> Option<(f64, bool)> {
    let after = front.iter().position(|step| step.recall >= recall)?;
    let high = front[after];
    let Some(low) = after.checked_sub(1).map(|before| front[before]) else {
        return Some((high.rate, high.recall > recall));
    };
    let share = (recall - low.recall) / (high.recall - low.recall);
    Some(((low.rate.ln() + share * (high.rate.ln() - low.rate.ln())).exp(), false))
}

/// The latest row of each case of each implementation.
fn latest(rows: &[Row]) -> Vec<&Row> {
    let mut order = BTreeMap::new();
    for (at, row) in rows.iter().enumerate() {
        // Goals for one case differ in recall.
        let goal = if row.case.contains("probes=") { None } else { row.recall.map(f64::to_bits) };
        order.insert((&row.device, &row.implementation, &row.case, row.k, goal), at);
    }
    let mut places: Vec<usize> = order.into_values().collect();
    places.sort_unstable();
    places.into_iter().map(|at| &rows[at]).collect()
}

/// Recall of a row, or of the same search of the most queries.
fn recall_of(row: &Row, rows: &[&Row]) -> Option<f64> {
    let (search, probes) = parse(row)?;
    // Rows without probes are goals, and contain their recall.
    if probes.is_none() {
        return row.recall;
    }
    let of_same = |other: &&&Row| other.implementation == row.implementation && other.recall.is_some();
    let alike = rows.iter().filter(of_same).filter_map(|other| {
        let (like, as_many) = parse(other)?;
        let same =
            like.index == search.index && like.k == search.k && like.device == search.device && as_many == probes;
        same.then_some((like.queries, other.recall))
    });
    alike.max_by_key(|&(queries, _)| queries)?.1
}

fn compared(rows: &[Row]) -> String {
    let rows = latest(rows);
    let mut lines = Lines::default();
    searches(&rows, &mut lines);
    whole_runs(&rows, &mut lines);
    lines.finish()
}

fn searches(rows: &[&Row], lines: &mut Lines) {
    let step = |row: &Row| {
        let (search, _) = parse(row)?;
        let recall = recall_of(row, rows)?;
        let rate = 1e3 * search.queries as f64 / row.ms_median?;
        Some((search, Step { recall, rate }))
    };
    let mut ours: BTreeMap<Search, Vec<Step>> = BTreeMap::new();
    for (search, step) in rows.iter().filter(|row| row.implementation == "warpann").filter_map(|row| step(row)) {
        ours.entry(search).or_default().push(step);
    }
    let fronts: BTreeMap<Search, Vec<Step>> = ours.into_iter().map(|(search, steps)| (search, front(steps))).collect();
    for row in rows.iter().filter(|row| row.implementation != "warpann") {
        // A goal for few queries is at the recall of FAISS with as many probes.
        let Some((search, probes)) = parse(row) else { continue };
        let theirs = step(row).or_else(|| {
            let stand_in = Row { implementation: row.implementation.replace("goal", "faiss"), ..(*row).clone() };
            let recall = recall_of(&stand_in, rows)?;
            Some((search.clone(), Step { recall, rate: 1e3 * search.queries as f64 / row.ms_median? }))
        });
        let (Some(front), Some((_, theirs))) = (fronts.get(&search), theirs) else { continue };
        let of = probes.map_or_else(String::new, |probes| format!(" probes={probes}"));
        let case = format!("{} nq={}{of}", search.index, search.queries);
        let ours = rate_at(front, theirs.recall);
        lines.add(Line {
            device: &row.device,
            case,
            k: row.k,
            implementation: &row.implementation,
            at: format!("{:.4}", theirs.recall),
            theirs: per_second(theirs.rate),
            ours: ours.map_or_else(|| "does not reach it".into(), |(rate, _)| per_second(rate)),
            ratio: ours.map(|(rate, _)| rate / theirs.rate),
            lower_bound: ours.is_some_and(|(_, bound)| bound),
        });
    }
}

/// Builds and k-means: one time each.
fn whole_runs(rows: &[&Row], lines: &mut Lines) {
    let whole = |row: &&&Row| row.case.starts_with("build ") || row.case.starts_with("kmeans ");
    for row in rows.iter().filter(whole).filter(|row| row.implementation != "warpann") {
        let same =
            |ours: &&&Row| ours.implementation == "warpann" && ours.case == row.case && ours.device == row.device;
        let Some(ours) = rows.iter().find(same) else { continue };
        let (Some(our_ms), Some(their_ms)) = (ours.ms_median, row.ms_median) else { continue };
        let worse = match (ours.objective, row.objective) {
            (Some(ours), Some(theirs)) => ours > SAME_OBJECTIVE * theirs,
            _ => false,
        };
        let objective =
            |row: &Row| row.objective.map_or_else(String::new, |objective| format!(" @{:.2} M", objective / 1e6));
        lines.add(Line {
            device: &row.device,
            case: row.case.clone(),
            k: 0,
            implementation: &row.implementation,
            at: if worse { "worse objective".into() } else { String::new() },
            theirs: format!("{their_ms:.1} ms{}", objective(row)),
            ours: format!("{our_ms:.1} ms{}", objective(ours)),
            ratio: (!worse).then_some(their_ms / our_ms),
            lower_bound: false,
        });
    }
}

fn per_second(rate: f64) -> String {
    if rate >= 1e6 { format!("{:.3} M/s", rate / 1e6) } else { format!("{:.2} k/s", rate / 1e3) }
}

/// The comparison of one recall on one set.
struct Line<'a> {
    device: &'a str,
    case: String,
    k: usize,
    implementation: &'a str,
    at: String,
    theirs: String,
    ours: String,
    /// The speed of warpann divided by that of the other library; `None` if warpann has no such case.
    ratio: Option<f64>,
    lower_bound: bool,
}

/// The lines of the comparison table.
#[derive(Default)]
struct Lines {
    text: String,
    device: String,
    /// Met and asked, by what is asked.
    counts: BTreeMap<&'static str, (usize, usize)>,
}

impl Lines {
    fn add(&mut self, line: Line<'_>) {
        if self.device != line.device {
            self.device = line.device.into();
            self.text +=
                &format!("{}: at equal recall; * from other runs; ratio above 1: warpann is faster\n", line.device);
            self.text += &format!(
                "{:<58} {:>4} {:<10} {:>15} {:>22} {:>22} {:>8} {}\n",
                "case", "k", "peer", "recall", "peer's", "warpann's", "ratio", "verdict"
            );
        }
        let demand = demand(line.implementation, &line.case, line.k);
        let met = line.ratio.is_some_and(|ratio| ratio >= 1.0);
        let (done, asked) = self.counts.entry(demand).or_default();
        (*done, *asked) = (*done + usize::from(met), *asked + 1);
        let ratio = line.ratio.map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}"));
        let ratio = if line.lower_bound { format!(">{ratio}") } else { ratio };
        self.text += &format!(
            "{:<58} {:>4} {:<10} {:>15} {:>22} {:>22} {:>8} {demand} {}\n",
            line.case,
            line.k,
            line.implementation,
            line.at,
            line.theirs,
            line.ours,
            ratio,
            if met { "pass" } else { "FAIL" }
        );
    }

    fn finish(mut self) -> String {
        if self.counts.is_empty() {
            self.text += "nothing to compare: no case that warpann and a peer both ran on one device\n";
        }
        for (demand, (met, asked)) in self.counts {
            self.text += &format!("{demand}: {met} of {asked} met\n");
        }
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(implementation: &str, case: &str, k: usize, ms: f64, recall: Option<f64>) -> Row {
        Row {
            date: "2000-01-01".into(),
            implementation: implementation.into(),
            device: "device".into(),
            case: case.into(),
            k,
            ms_median: Some(ms),
            recall,
            ..Row::default()
        }
    }

    #[test]
    fn a_front_leaves_out_what_is_beaten_and_interpolates_the_rest() {
        let step = |recall, rate| Step { recall, rate };
        let steps = front([step(0.9, 100.0), step(0.5, 10_000.0), step(0.7, 50.0), step(0.5, 9_000.0)]);
        assert_eq!(steps, [step(0.5, 10_000.0), step(0.9, 100.0)]);
        let (rate, bound) = rate_at(&steps, 0.7).unwrap();
        assert!((rate - 1_000.0).abs() < 1e-6 && !bound, "the geometric mean half way: {rate}");
        let (rate, bound) = rate_at(&steps, 0.9).unwrap();
        assert!((rate - 100.0).abs() < 1e-9 && !bound, "{rate}");
        assert_eq!(rate_at(&steps, 0.5), Some((10_000.0, false)));
        assert_eq!(rate_at(&steps, 0.2), Some((10_000.0, true)));
        assert_eq!(rate_at(&steps, 0.91), None);
        assert_eq!(rate_at(&[], 0.5), None);
    }

    #[test]
    fn peers_are_compared_at_their_recall() {
        let index = "ivf-flat 100x8 f32 lists=4";
        let large = |probes: usize| format!("{index} nq=1000 probes={probes}");
        let rows = [
            row("warpann", &large(1), 100, 1.0, Some(0.5)),
            row("warpann", &large(2), 100, 100.0, Some(0.9)),
            // A later figure takes the place of an earlier one.
            row("faiss", &large(2), 100, 0.01, Some(0.7)),
            row("faiss", &large(2), 100, 20.0, Some(0.7)),
            row("flashlib", &large(1), 100, 5.0, Some(0.7)),
            row("cuvs", &large(4), 100, 5.0, Some(0.95)),
            row("goal*", &format!("{index} nq=1000"), 100, 0.5, Some(0.3)),
            row("goal*", &format!("{index} nq=1000"), 100, 200.0, Some(0.9)),
        ];
        let text = compared(&rows);
        let line = |name: &str| text.lines().find(|line| line.contains(name)).unwrap();
        assert!(line("faiss").contains(" 2.00 must pass"), "{text}");
        assert!(line("flashlib").contains(" 0.50 must FAIL"), "{text}");
        assert!(line("cuvs").contains("does not reach it") && line("cuvs").contains("must FAIL"), "{text}");
        assert!(line("goal*").contains(">0.50 aim FAIL") && text.contains(" 2.00 aim pass"), "{text}");
        assert!(text.ends_with("aim: 1 of 2 met\nmust: 1 of 3 met\n"), "{text}");
    }

    #[test]
    fn few_queries_take_the_recall_of_many() {
        let case = |queries: usize, probes: usize| format!("ivf-pq8 100x8 f32 lists=4 nq={queries} probes={probes}");
        let rows = [
            row("warpann", &case(1000, 1), 10, 1.0, Some(0.5)),
            row("warpann", &case(1000, 2), 10, 1.0, Some(0.9)),
            row("warpann", &case(1, 1), 10, 1.0, Some(0.0)),
            row("warpann", &case(1, 2), 10, 4.0, Some(1.0)),
            row("faiss*", &case(1000, 1), 10, 1.0, Some(0.7)),
            row("faiss*", &case(1, 1), 10, 4.0, None),
            row("goal*", &case(1, 1), 10, 1.0, None),
        ];
        let text = compared(&rows);
        let line = |name: &str| text.lines().find(|line| line.contains("nq=1 ") && line.contains(name)).unwrap();
        assert!(line("faiss*").contains("0.7000") && line("faiss*").contains(" 2.00 must pass"), "{text}");
        assert!(line("goal*").contains(" 0.50 aim FAIL"), "{text}");
    }

    #[test]
    fn k_means_is_compared_at_the_same_objective() {
        let with = |implementation: &str, ms: f64, objective: f64| Row {
            objective: Some(objective),
            ..row(implementation, "kmeans 100x8 f32 centroids=4 iterations=20", 0, ms, None)
        };
        let text = compared(&[with("warpann", 10.0, 100.1), with("flashlib", 15.0, 100.0), with("faiss", 15.0, 90.0)]);
        assert!(text.lines().any(|line| line.contains("flashlib") && line.contains(" 1.50 must pass")), "{text}");
        assert!(text.lines().any(|line| line.contains("faiss") && line.contains("worse objective")), "{text}");
        assert!(text.contains("must: 1 of 2 met"), "{text}");
        assert!(compared(&[with("faiss", 1.0, 1.0)]).contains("nothing to compare"));
    }
}
