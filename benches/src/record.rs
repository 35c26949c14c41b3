//! Rows of a record. They are appended to a CSV file one by one, so that an interrupted run leaves its measurements,
//! and printed as a table.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use warpann::Device;
use warpann_measure::{Times, Work};

use crate::machine::Machine;
use crate::{Common, Failure, Outcome};

/// One measured case. `record/README.md` explains the columns.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Day of the run, YYYY-MM-DD.
    pub date: String,
    /// Name of the library that was measured.
    pub implementation: String,
    /// Version of that library.
    pub version: String,
    /// Revision of the library's source, if it is known.
    pub revision: String,
    /// Name of the device.
    pub device: String,
    /// Version of the device's driver.
    pub driver: String,
    /// Name of the case: the operation and its sizes.
    pub case: String,
    /// Results a row or query.
    pub k: usize,
    /// Milliseconds: the median of the runs (the lower of the middle two).
    pub ms_median: Option<f64>,
    /// Time of the fastest run, in milliseconds.
    pub ms_min: Option<f64>,
    /// Time of the slowest run, in milliseconds.
    pub ms_max: Option<f64>,
    /// The lower bound of the time from memory: the input is read once, at this run's rate.
    pub memory_floor_ms: Option<f64>,
    /// The lower bound of the time from arithmetic: all inner products at the given rate.
    pub matrix_floor_ms: Option<f64>,
    /// The larger of the two lower bounds.
    pub floor_ms: Option<f64>,
    /// The median divided by the floor.
    pub ratio: Option<f64>,
    /// Fraction of the true neighbours found, if ground truth was given.
    pub recall: Option<f64>,
    /// `yes` if the results were checked and right, `no` if wrong.
    pub verified: String,
    /// For k-means: the sum of the squared distances of all points to their nearest centroids.
    pub objective: Option<f64>,
    /// For a build: bytes of the index in memory. Older records lack the column.
    #[serde(default)]
    pub bytes: Option<u64>,
}

/// The measurement of one case.
#[derive(Debug)]
pub struct Measured {
    /// Name and version of the library, if it is not warpann.
    pub peer: Option<Library>,
    /// The operation and its data, in words.
    pub case: String,
    /// Results a row or query.
    pub k: usize,
    /// Time of each run; none if the result is wrong, because such a run has no time.
    pub times: Times,
    /// The work that every implementation must do, from which the floors follow.
    pub work: Work,
    /// Fraction of the true neighbours found, if ground truth was given.
    pub recall: Option<f64>,
    /// Whether the results are right.
    pub verified: bool,
    /// For k-means: the sum of the squared distances to the nearest centroids.
    pub objective: Option<f64>,
    /// For a build: bytes of the index in memory.
    pub bytes: Option<u64>,
}

/// A library and its version, as records name it.
pub type Library = (&'static str, &'static str);

impl Measured {
    /// Times of warpann; whether the results are right, `verified` says. `work` is a number of bytes where arithmetic
    /// is not counted.
    pub fn new(case: String, k: usize, times: Times, work: impl Into<Work>, verified: bool) -> Self {
        let (peer, recall, objective, bytes) = (None, None, None, None);
        Self { peer, case, k, times, work: work.into(), recall, verified, objective, bytes }
    }

    /// A stage that ran once, for `milliseconds`, and has no result that could be wrong. It reads or makes `bytes`
    /// bytes.
    pub fn stage(case: String, milliseconds: f64, bytes: f64) -> Self {
        Self::new(case, 0, Times::new(vec![milliseconds]), bytes, true)
    }

    /// With the fraction of the true neighbours that were found.
    pub fn recall(self, recall: impl Into<Option<f64>>) -> Self {
        Self { recall: recall.into(), ..self }
    }

    /// The same of another library, or of warpann if there is none.
    pub fn by(self, peer: impl Into<Option<Library>>) -> Self {
        Self { peer: peer.into(), ..self }
    }
}

/// A record that is being written, and the device of its measurements.
pub struct Record {
    /// The device under measurement.
    pub machine: Machine,
    /// Rate of matrix products in TFLOP/s, if it is known: gives the floor that arithmetic sets.
    pub tflops: Option<f64>,
    common: Common,
    file: Option<(PathBuf, csv::Writer<File>)>,
    all_verified: bool,
}

impl Record {
    /// Opens the device and the record that `common` names, and prints the head of the table.
    pub fn open(common: &Common, device: Device) -> Outcome<Self> {
        let machine = Machine::open(device, common.quick)?;
        let file = common.out.as_deref().map(open_to_append).transpose()?;
        let driver = if machine.driver.is_empty() { String::new() } else { format!(", driver {}", machine.driver) };
        print(format_args!("{}{driver}; memory moves {:.0} GB/s\n", machine.name, machine.bytes_per_second / 1e9))?;
        print(format_args!("{}\n", head()))?;
        Ok(Self { machine, tflops: None, common: common.clone(), file, all_verified: true })
    }

    /// The device for the library.
    pub fn device(&self) -> Device {
        self.machine.device()
    }

    /// The first in a quick run, the second otherwise.
    pub fn quick_or<T>(&self, quick: T, full: T) -> T {
        if self.common.quick { quick } else { full }
    }

    /// Number of timed runs; `usual` unless the command line has another.
    pub fn repeat(&self, usual: usize) -> usize {
        self.common.repeat.unwrap_or(usual).max(1)
    }

    /// Writes and prints a row.
    pub fn add(&mut self, measured: Measured) -> Outcome {
        let Measured { peer, case, k, times, work, recall, verified, objective, bytes } = measured;
        self.all_verified &= verified;
        let (implementation, version) = peer.unwrap_or(("warpann", env!("CARGO_PKG_VERSION")));
        let memory_floor_ms = self.machine.floor_ms(work.bytes);
        let of_rate = |rate: f64| 1e3 * work.operations / (rate * 1e12);
        let matrix_floor_ms = self.tflops.filter(|_| work.operations > 0.0).map(of_rate);
        let floor = memory_floor_ms.max(matrix_floor_ms.unwrap_or(0.0));
        let runs = times.milliseconds();
        let median = (!runs.is_empty()).then(|| times.median());
        let row = Row {
            date: self.common.date.clone(),
            implementation: implementation.into(),
            version: version.into(),
            revision: self.common.revision.clone(),
            device: self.machine.name.clone(),
            driver: self.machine.driver.clone(),
            case,
            k,
            ms_median: median.map(rounded),
            ms_min: runs.first().copied().map(rounded),
            ms_max: runs.last().copied().map(rounded),
            memory_floor_ms: Some(rounded(memory_floor_ms)),
            matrix_floor_ms: matrix_floor_ms.map(rounded),
            floor_ms: Some(rounded(floor)),
            ratio: median.map(|median| rounded(median / floor)),
            recall,
            verified: if verified { "yes" } else { "no" }.into(),
            objective: objective.map(rounded),
            bytes,
        };
        let by = peer.map_or(String::new(), |(name, _)| format!("  by {name}"));
        print(format_args!("{}{by}\n", line(&row)))?;
        if let Some((path, writer)) = &mut self.file {
            let failed = |error| Failure::Record { path: path.clone(), error };
            writer.serialize(&row).map_err(failed)?;
            writer.flush().map_err(|error| failed(error.into()))?;
        }
        Ok(())
    }

    /// Whether every result was right.
    pub fn all_verified(&self) -> bool {
        self.all_verified
    }
}

/// A number with about six significant digits; digits below a nanosecond or a millionth are noise.
fn rounded(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

/// The columns, as they stand in the first line of a record.
fn columns() -> String {
    let mut writer = csv::Writer::from_writer(Vec::new());
    // Writing to memory does not fail; if it did, no record would match and the caller would say so.
    let text = writer.serialize(Row::default()).ok().and_then(|()| writer.into_inner().ok()).unwrap_or_default();
    String::from_utf8_lossy(&text).lines().next().unwrap_or_default().to_owned()
}

fn open_to_append(path: &Path) -> Outcome<(PathBuf, csv::Writer<File>)> {
    let failed = |error| Failure::File { path: path.to_owned(), error };
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(failed)?;
    }
    let old = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(failed(error)),
    };
    let (first, columns) = (old.lines().next(), columns());
    if let Some(found) = first.filter(|&first| first != columns) {
        // One from before the last columns: its rows have them empty.
        let Some(missing) = columns.strip_prefix(found).filter(|missing| missing.starts_with(',')) else {
            return Err(Failure::ForeignRecord { path: path.to_owned(), found: found.to_owned() });
        };
        let empty = ",".repeat(missing.matches(',').count());
        let rows = old.lines().skip(1).map(|row| format!("{row}{}\n", if row.starts_with('#') { "" } else { &empty }));
        std::fs::write(path, format!("{columns}\n{}", rows.collect::<String>())).map_err(failed)?;
    }
    let file = OpenOptions::new().create(true).append(true).open(path).map_err(failed)?;
    let writer = csv::WriterBuilder::new().has_headers(first.is_none()).from_writer(file);
    Ok((path.to_owned(), writer))
}

/// Reads a record; lines that start with `#` are remarks.
pub fn read(path: &Path) -> Outcome<Vec<Row>> {
    let failed = |error| Failure::Record { path: path.to_owned(), error };
    let mut reader = csv::ReaderBuilder::new().comment(Some(b'#')).from_path(path).map_err(failed)?;
    reader.deserialize().collect::<Result<_, _>>().map_err(failed)
}

/// Writes to standard output.
pub fn print(text: std::fmt::Arguments<'_>) -> Outcome {
    let mut stdout = std::io::stdout().lock();
    stdout.write_fmt(text).and_then(|()| stdout.flush()).map_err(Failure::Output)
}

fn head() -> String {
    format!(
        "{:<58} {:>5} {:>11} {:>11} {:>11} {:>10} {:>7} {:>8} {}",
        "case", "k", "ms median", "min", "max", "floor ms", "ratio", "recall", "verified"
    )
}

fn line(row: &Row) -> String {
    let number =
        |value: Option<f64>, digits: usize| value.map_or_else(String::new, |value| format!("{value:.digits$}"));
    format!(
        "{:<58} {:>5} {:>11} {:>11} {:>11} {:>10} {:>7} {:>8} {}",
        row.case,
        row.k,
        number(row.ms_median, 4),
        number(row.ms_min, 4),
        number(row.ms_max, 4),
        number(row.floor_ms, 4),
        number(row.ratio, 2),
        number(row.recall, 5),
        row.verified
    )
}

/// Prints records side by side: one line for each device, case and k, in the order of first appearance. It has for each
/// implementation the latest median in the records, and its ratio to that of warpann.
pub fn table(records: &[PathBuf]) -> Outcome {
    let mut rows = Vec::new();
    for path in records {
        rows.extend(read(path)?);
    }
    print(format_args!("{}", joined(&rows)))
}

fn joined(rows: &[Row]) -> String {
    let mut implementations: Vec<&str> = Vec::new();
    let mut order = Vec::new();
    let mut cells = BTreeMap::new();
    for row in rows {
        if !implementations.contains(&row.implementation.as_str()) {
            implementations.push(&row.implementation);
        }
        let key = (row.device.as_str(), row.case.as_str(), row.k);
        if !order.contains(&key) {
            order.push(key);
        }
        cells.insert((key, row.implementation.as_str()), row);
    }
    // warpann comes first, because the others are multiples of its time.
    implementations.sort_by_key(|&name| (name != "warpann", name));
    let mut text = String::new();
    let mut device = "";
    for key in order {
        if device != key.0 {
            device = key.0;
            text += &format!("{device}: median ms (times warpann's), recall where measured, ! if wrong\n");
            text += &format!("{:<58} {:>5} {:>9}", "case", "k", "floor");
            for name in &implementations {
                text += &format!("  {name:>28}");
            }
            text += "\n";
        }
        let ours = cells.get(&(key, "warpann")).copied();
        let floor = ours.and_then(|row| row.floor_ms).map_or_else(String::new, |floor| format!("{floor:.4}"));
        text += &format!("{:<58} {:>5} {floor:>9}", key.1, key.2);
        for name in &implementations {
            let cell = cells.get(&(key, *name)).map_or_else(String::new, |row| cell(row, ours));
            text += &format!("  {cell:>28}");
        }
        text += "\n";
    }
    text
}

fn cell(row: &Row, ours: Option<&Row>) -> String {
    let mut text = row.ms_median.map_or_else(|| "-".to_owned(), |median| format!("{median:.4}"));
    if row.implementation != "warpann"
        && let (Some(theirs), Some(ours)) = (row.ms_median, ours.and_then(|row| row.ms_median))
    {
        text += &format!(" ({:.2}x)", theirs / ours);
    }
    if let Some(recall) = row.recall {
        text += &format!(" {recall:.5}");
    }
    if row.verified == "no" {
        text += " !";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(implementation: &str, case: &str, median: f64) -> Row {
        Row {
            date: "2000-01-01".into(),
            implementation: implementation.into(),
            version: "1".into(),
            device: "a GPU, with a comma".into(),
            driver: "1.2".into(),
            case: case.into(),
            k: 10,
            ms_median: Some(median),
            ms_min: Some(median),
            memory_floor_ms: Some(0.25),
            floor_ms: Some(0.25),
            recall: Some(1.0),
            verified: "yes".into(),
            bytes: Some(17),
            ..Row::default()
        }
    }

    #[test]
    fn rows_survive_the_file_and_appending() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("some/where/record.csv");
        let rows = [row("warpann", "exact", 2.0), row("peer", "exact", 3.0)];
        for row in &rows {
            let (_, mut writer) = open_to_append(&path).unwrap();
            writer.serialize(row).unwrap();
        }
        assert_eq!(read(&path).unwrap(), rows);
        // A record from before the last column.
        let old: String = std::fs::read_to_string(&path)
            .unwrap()
            .lines()
            .fold(String::new(), |text, line| text + line.rsplit_once(',').unwrap().0 + "\n");
        std::fs::write(&path, old + "# a remark\n").unwrap();
        let without = rows.clone().map(|row| Row { bytes: None, ..row });
        assert_eq!(read(&path).unwrap(), without);
        open_to_append(&path).unwrap().1.serialize(&rows[0]).unwrap();
        assert_eq!(read(&path).unwrap(), [&without[..], &rows[..1]].concat());
        std::fs::write(&path, "other,columns\n1,2\n").unwrap();
        assert!(matches!(open_to_append(&path), Err(Failure::ForeignRecord { .. })));
        assert!(matches!(read(&path), Err(Failure::Record { .. })));
    }

    #[test]
    fn the_table_takes_the_latest_and_sets_peers_in_proportion() {
        let text = joined(&[row("peer", "exact", 3.0), row("warpann", "exact", 9.0), row("warpann", "exact", 2.0)]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[1].find("warpann").unwrap() < lines[1].find("peer").unwrap());
        assert!(lines[2].contains("2.0000 1.00000") && lines[2].contains("3.0000 (1.50x) 1.00000"), "{text}");
    }
}
