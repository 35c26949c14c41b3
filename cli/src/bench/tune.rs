//! `warpann bench select --tune`: times every method of k-selection for a grid of shapes and stores the fastest for
//! each shape, in the table by which the library chooses (`host/src/select/gpu/dispatch.csv`).

use std::path::Path;

use serde::Serialize;
use warpann::internals::{DISPATCH_HEADER, Method, SelectionBench};
use warpann_measure::Times;

use super::times::random;
use crate::progress::Step;
use crate::report::{Failure, Out, Outcome};

const ROWS: [usize; 5] = [1, 16, 128, 1_000, 10_000];
const COLUMNS: [usize; 10] = [256, 1_000, 2_000, 4_000, 8_000, 16_000, 64_000, 128_000, 1_000_000, 16_000_000];
const K: [usize; 7] = [1, 10, 32, 100, 256, 1_000, 2_048];
/// Number of keys of the largest batch; larger shapes are not measured.
const MOST_KEYS: usize = 1_280_000_000;
/// Number of different rows; later rows repeat them.
const BLOCK: usize = 100;

#[derive(Serialize)]
struct Report {
    device: String,
    shapes: Vec<Tuned>,
}

/// The times of one shape.
#[derive(Serialize)]
struct Tuned {
    rows: usize,
    columns: usize,
    k: usize,
    method: String,
    method_without_warp: String,
    /// Time of a kernel that reads the keys once and does nothing else.
    read_milliseconds: f32,
    /// Median time of each method.
    milliseconds: Vec<(String, f32)>,
}

/// Times all shapes on GPU `index` and prints the table. If `table` is given, replaces the lines of the device there.
pub fn tune(index: usize, repeat: usize, table: Option<&Path>, out: &Out) -> Outcome {
    // The measurements take long, so the table is read first.
    let known = table.map(known).transpose()?;
    let (mut lines, mut tuned) = (Vec::new(), Vec::new());
    let mut product = String::new();
    out.line(format_args!("{DISPATCH_HEADER},ms,ms_without_warp,ms_read"))?;
    let shapes = || {
        let columns = |rows| move |columns: &usize| rows * columns <= MOST_KEYS;
        ROWS.into_iter()
            .flat_map(move |rows| COLUMNS.into_iter().filter(columns(rows)).map(move |columns| (rows, columns)))
    };
    let step = Step::measured("measuring", shapes().count(), "shapes of keys");
    for (rows, columns) in shapes() {
        let bench = SelectionBench::new(index, random(rows.min(BLOCK), columns, 1)?, rows, columns)?;
        product = bench.product();
        let read = Times::new(bench.read(repeat)?).median() as f32;
        for k in K.into_iter().filter(|&k| k <= columns) {
            let mut times = Vec::new();
            for method in Method::ALL.into_iter().filter(|method| method.serves(k as u32)) {
                times.push((method, Times::new(bench.select_by(k, method, repeat)?).median() as f32));
            }
            let fastest = |warp: bool| {
                let allowed = times.iter().filter(|(method, _)| warp || *method != Method::Warp);
                allowed.min_by(|a, b| a.1.total_cmp(&b.1)).copied().unwrap_or(times[0])
            };
            let (best, without) = (fastest(true), fastest(false));
            let line = format!("{product},{rows},{columns},{k},{},{}", best.0, without.0);
            step.aside(|| out.line(format_args!("{line},{:.4},{:.4},{read:.4}", best.1, without.1)))?;
            tuned.push(Tuned {
                rows,
                columns,
                k,
                method: best.0.to_string(),
                method_without_warp: without.0.to_string(),
                read_milliseconds: read,
                milliseconds: times.iter().map(|(method, time)| (method.to_string(), *time)).collect(),
            });
            lines.push(line);
        }
        step.advance(1);
    }
    drop(step);
    if let (Some(path), Some(known)) = (table, known) {
        write(path, &known, &product, &lines)?;
    }
    out.object(&Report { device: product, shapes: tuned })
}

/// Reads a table, or an empty text if the file does not exist.
fn known(path: &Path) -> Outcome<String> {
    let failed = |error: std::io::Error| Failure::Message(format!("{}: {error}", path.display()));
    let known = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(failed(error)),
    };
    if !known.is_empty() && known.lines().next() != Some(DISPATCH_HEADER) {
        return Err(Failure::Message(format!("{}: not a dispatch table: expected {DISPATCH_HEADER}", path.display())));
    }
    Ok(known)
}

/// Writes a table with `lines` for the device `product`, and the lines of `known` for other devices.
fn write(path: &Path, known: &str, product: &str, lines: &[String]) -> Outcome {
    let others = known.lines().skip(1).filter(|line| line.split(',').next() != Some(product));
    let mut text = String::from(DISPATCH_HEADER);
    for line in others.chain(lines.iter().map(String::as_str)) {
        text.push('\n');
        text.push_str(line);
    }
    text.push('\n');
    Ok(warpann::io::write_file(path, text.as_bytes())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The object of a machine with a GPU.
    #[test]
    fn the_report_follows_the_schema() {
        let shape = Tuned {
            rows: 1,
            columns: 16_000,
            k: 10,
            method: "warp".into(),
            method_without_warp: "threshold".into(),
            read_milliseconds: 0.5,
            milliseconds: vec![("warp".into(), 0.75), ("threshold".into(), 1.0)],
        };
        let report = Report { device: "a GPU".into(), shapes: vec![shape] };
        let text = Out::new(true, Some("bench select".into())).pretty(&report).unwrap();
        crate::schema::check(&serde_json::from_str(&text).unwrap());
    }
}
