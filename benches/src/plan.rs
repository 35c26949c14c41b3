//! Estimates of memory, time and price for more vectors than were measured, from the figures of a record.
//!
//! From one measured inverted file of product codes (n₀ vectors of d components, codes of M bytes, L₀ lists, P probes)
//! follow the figures for n vectors of the same kind, with L = L₀ · √(n / n₀) lists, to the next power of two, so that
//! lists stay in proportion:
//! | quantity | formula | reason |
//! |---|---|---|
//! | index | n · (M + 8) + 6 · L · d bytes | codes and ids; centroids in f32, and in f16 for the scan |
//! | GPUs | G = ⌈n · (M + 8) / (share · memory − 6 · L · d)⌉ | each shard has all centroids |
//! | training | t₀ · (L / L₀)², on one GPU | sample and centroids both grow as L |
//! | adding | t₀ · (n / n₀) · (L + 256) / (L₀ + 256) / G | a vector is compared with L centroids and 256 codewords |
//! | a query | t₀ · max(L / L₀, (n / L) / (n₀ / L₀)) at most, 1/G of it at least | it is compared with L centroids and P · n / L codes; shards divide only the second |
//!
//! Queries come in batches as large as measured. Recall is not predicted: it falls as n grows, at equal P and M.

use std::fmt::Write as _;
use std::path::PathBuf;

use crate::record::{Row, print, read};
use crate::set::positive;
use crate::{Failure, Outcome};

/// Arguments of `plan`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The record with the figures.
    record: PathBuf,
    /// The inverted file measured there: a case without nq and probes, such as "ivf-pq32 10000000x128 f32 lists=16384",
    /// or of part `billion` "pq16 1000000000x96 lists=65536".
    #[arg(long)]
    case: String,
    /// Number of probed lists.
    #[arg(long, default_value_t = 16)]
    probes: usize,
    /// Number of neighbours per query.
    #[arg(long, default_value_t = 10)]
    k: usize,
    /// Memory of a GPU in GB (10⁹ bytes).
    #[arg(long, default_value_t = 141.0, value_parser = positive)]
    memory: f64,
    /// Fraction of that memory that the index may use; the rest is for searches.
    #[arg(long, default_value_t = 0.9, value_parser = positive)]
    share: f64,
    /// Price of a GPU for an hour, in any currency.
    #[arg(long, default_value_t = 3.0, value_parser = positive)]
    price: f64,
    /// Numbers of vectors to plan for.
    #[arg(long, value_delimiter = ',', default_value = "1e9,1e10,1e11", value_parser = positive)]
    vectors: Vec<f64>,
    /// Write the table into this page, between the lines that mark its place, instead of printing it.
    #[arg(long, value_name = "PAGE")]
    update: Option<PathBuf>,
}

/// The line above the table in a page.
const BEGIN: &str = "<!-- plan -->";
/// The line below the table in a page.
const END: &str = "<!-- end of plan -->";
/// Number of codewords with which a part of a vector is compared. Their cost is that of this number of centroids.
const CODEWORDS: f64 = 256.0;
/// Size of an id in bytes.
const ID_BYTES: f64 = 8.0;
/// Bytes of a component of a centroid: f32, and f16.
const CENTROID_BYTES: f64 = 6.0;

/// Computes and prints, or puts into the page.
pub fn run(args: &Args) -> Outcome {
    let rows = read(&args.record)?;
    let missing = |missing| Failure::NoFigures { path: args.record.clone(), case: args.case.clone(), missing };
    let measured = Measured::of(&rows, &args.case, args.probes, args.k).map_err(missing)?;
    let table = table(args, &measured);
    let Some(page) = &args.update else { return print(format_args!("{table}")) };
    let failed = |error| Failure::File { path: page.clone(), error };
    let text = std::fs::read_to_string(page).map_err(failed)?;
    let find = |marker| text.find(marker).ok_or(Failure::NoMarker { path: page.clone(), marker });
    let (begin, end) = (find(BEGIN)? + BEGIN.len(), find(END)?);
    if begin > end {
        return Err(Failure::NoMarker { path: page.clone(), marker: BEGIN });
    }
    std::fs::write(page, format!("{}\n\n{table}\n{}", &text[..begin], &text[end..])).map_err(failed)
}

/// The figures of an inverted file of codes in a record.
#[derive(Debug, PartialEq)]
struct Measured {
    date: String,
    revision: String,
    device: String,
    vectors: f64,
    dim: f64,
    code_bytes: f64,
    lists: f64,
    queries: f64,
    recall: Option<f64>,
    train_ms: f64,
    add_ms: f64,
    search_ms: f64,
}

impl Measured {
    /// The latest figures of warpann; what is missing if there are none.
    fn of(rows: &[Row], case: &str, probes: usize, k: usize) -> Result<Self, &'static str> {
        let latest = |wanted: &dyn Fn(&Row) -> bool| {
            let mut rows = rows.iter().rev().filter(|row| row.implementation == "warpann");
            rows.find_map(|row| Some((row, row.ms_median?)).filter(|(row, _)| wanted(row)))
        };
        let part = |name: &str| {
            let wanted = format!("{name} {case}");
            latest(&|row: &Row| row.case == wanted)
        };
        let (_, train_ms) = part("train").ok_or("no training")?;
        let (_, add_ms) = part("add").ok_or("no adding")?;
        // Of several batches the largest, which is recorded first.
        let queries = |row: &Row| -> Option<f64> {
            let batch =
                row.case.strip_prefix(case)?.strip_prefix(" nq=")?.strip_suffix(&format!(" probes={probes}"))?;
            batch.parse().ok().filter(|_| row.k == k)
        };
        let most = rows.iter().filter_map(queries).fold(0.0, f64::max);
        let (row, search_ms) =
            latest(&|row: &Row| queries(row) == Some(most)).ok_or("no search with so many probes and results")?;
        let word = |prefix: &str| case.split(' ').find_map(|word| word.strip_prefix(prefix));
        let number = |text: Option<&str>| text.and_then(|text| text.parse().ok()).filter(|&number: &f64| number > 0.0);
        let shape = case.split(' ').nth(1).and_then(|shape| shape.split_once('x'));
        Ok(Self {
            date: row.date.clone(),
            revision: row.revision.clone(),
            device: row.device.clone(),
            vectors: number(shape.map(|shape| shape.0)).ok_or("no number of vectors")?,
            dim: number(shape.map(|shape| shape.1)).ok_or("no dimension")?,
            code_bytes: number(word("ivf-pq").or_else(|| word("pq"))).ok_or("no product codes")?,
            lists: number(word("lists=")).ok_or("no number of lists")?,
            queries: most,
            recall: row.recall,
            train_ms,
            add_ms,
            search_ms,
        })
    }
}

/// The figures for a number of vectors.
#[derive(Debug)]
struct Figures {
    vectors: f64,
    lists: f64,
    /// Bytes of the vectors as f32, and of one copy of the index.
    raw: f64,
    index: f64,
    /// `None` if the centroids alone fill a GPU.
    gpus: Option<f64>,
    train_hours: f64,
    add_hours: f64,
    /// Microseconds, at most and at least.
    query: (f64, f64),
}

impl Figures {
    fn of(args: &Args, measured: &Measured, vectors: f64) -> Self {
        let Measured { dim, code_bytes, lists: lists_0, vectors: vectors_0, .. } = *measured;
        let growth = vectors / vectors_0;
        let lists = (lists_0 * growth.sqrt()).log2().ceil().exp2();
        let (stored, centroids) = (vectors * (code_bytes + ID_BYTES), CENTROID_BYTES * lists * dim);
        let room = args.share * args.memory * 1e9 - centroids;
        let gpus = (room > 0.0).then(|| (stored / room).ceil());
        let shards = gpus.unwrap_or(1.0);
        let hours = |milliseconds: f64| milliseconds / 3.6e6;
        let longer = (lists / lists_0).max(growth * lists_0 / lists);
        let query = 1e3 * measured.search_ms / measured.queries * longer;
        Self {
            vectors,
            lists,
            raw: 4.0 * vectors * dim,
            index: stored + centroids,
            gpus,
            train_hours: hours(measured.train_ms * (lists / lists_0).powi(2)),
            add_hours: hours(measured.add_ms * growth * (lists + CODEWORDS) / (lists_0 + CODEWORDS)) / shards,
            query: (query, query / shards),
        }
    }
}

fn table(args: &Args, measured: &Measured) -> String {
    let Measured { date, revision, device, queries, recall, search_ms, train_ms, add_ms, .. } = measured;
    let figures: Vec<Figures> = args.vectors.iter().map(|&vectors| Figures::of(args, measured, vectors)).collect();
    let record = args.record.file_name().unwrap_or_default().to_string_lossy();
    // Part `billion` records R@k.
    let name = if args.case.starts_with("ivf-") { "recall" } else { "R" };
    let recall = recall.map_or_else(String::new, |recall| format!(", {name}@{} {recall:.3}", args.k));
    let mut text = format!(
        "From {record}, {device}, {date}, revision {revision}: `{}`: training {:.2} s, adding {:.2} s, {queries} queries with \
         {} probes and k = {} in {search_ms:.2} ms{recall}. GPUs of {} GB, {:.0} % of it for the index; {} a GPU-hour.\n\n",
        args.case,
        train_ms / 1e3,
        add_ms / 1e3,
        args.probes,
        args.k,
        args.memory,
        100.0 * args.share,
        args.price
    );
    let mut line = |name: &str, cell: &dyn Fn(&Figures) -> String| {
        let cells: Vec<String> = figures.iter().map(cell).collect();
        // Writing to a string does not fail.
        let _ = writeln!(text, "| {name} | {} |", cells.join(" | "));
    };
    let price = |hours: f64| format!("{:.2}", hours * args.price);
    line("vectors", &|f| format!("{:e}", f.vectors));
    line("---", &|_| "---:".into());
    line("as f32", &|f| bytes(f.raw));
    line("lists", &|f| f.lists.to_string());
    line("index", &|f| bytes(f.index));
    line("GPUs that hold it", &|f| f.gpus.map_or_else(|| "centroids fill a GPU".into(), |gpus| gpus.to_string()));
    line("training, one GPU", &|f| duration(f.train_hours));
    line("adding, those GPUs", &|f| duration(f.add_hours));
    line("price of both", &|f| price(f.train_hours + f.add_hours * f.gpus.unwrap_or(1.0)));
    line("a query, µs", &|f| format!("{:.2} to {:.2}", f.query.1, f.query.0));
    line("price of 10⁹ queries", &|f| {
        let of = |microseconds: f64| price(microseconds * 1e3 / 3600.0 * f.gpus.unwrap_or(1.0));
        format!("{} to {}", of(f.query.1), of(f.query.0))
    });
    line("price of 30 days", &|f| price(720.0 * f.gpus.unwrap_or(1.0)));
    text
}

/// A number of bytes as text, in the largest decimal unit in which it is at least 1.
fn bytes(count: f64) -> String {
    let units = [(1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB")];
    let (size, unit) = units.into_iter().find(|&(size, _)| count >= size).unwrap_or((1.0, "bytes"));
    format!("{:.1} {unit}", count / size)
}

fn duration(hours: f64) -> String {
    match hours * 3600.0 {
        seconds if seconds < 120.0 => format!("{seconds:.1} s"),
        seconds if seconds < 7200.0 => format!("{:.1} min", seconds / 60.0),
        _ => format!("{hours:.1} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_follow_the_formulae() {
        let args = Args {
            record: "record.csv".into(),
            case: String::new(),
            probes: 4,
            k: 10,
            memory: 100.0,
            share: 0.5,
            price: 2.0,
            vectors: vec![],
            update: None,
        };
        let measured = Measured {
            date: String::new(),
            revision: String::new(),
            device: String::new(),
            vectors: 1e6,
            dim: 100.0,
            code_bytes: 12.0,
            lists: 1024.0,
            queries: 1000.0,
            recall: None,
            train_ms: 3600.0,
            add_ms: 36.0,
            search_ms: 2.0,
        };
        // Sixteen times the vectors, four times the lists.
        let figures = Figures::of(&args, &measured, 16e6);
        assert_eq!((figures.lists, figures.raw, figures.gpus), (4096.0, 6.4e9, Some(1.0)));
        assert_eq!(figures.index, 16e6 * 20.0 + 6.0 * 4096.0 * 100.0);
        assert!((figures.train_hours - 0.016).abs() < 1e-12);
        assert!((figures.add_hours - 1e-5 * 16.0 * 4352.0 / 1280.0).abs() < 1e-12);
        assert!((figures.query.0 - 8.0).abs() < 1e-9 && figures.query.0 == figures.query.1);
        // 320 GB of codes and ids in shares of 50 GB, of which the centroids of 131,072 lists take some.
        let figures = Figures::of(&args, &measured, 16e9);
        assert_eq!((figures.lists, figures.gpus), (131_072.0, Some(7.0)));
        assert!((figures.query.0 / figures.query.1 - 7.0).abs() < 1e-9);
        let crowded = Args { memory: 1e-3, ..args };
        assert_eq!(Figures::of(&crowded, &measured, 16e9).gpus, None);
    }
}
