//! `warpann bench select`: k-selection.

use std::path::PathBuf;

use serde::Serialize;
use warpann::Device;
#[cfg(feature = "cuda")]
use warpann::internals::Method;
use warpann::select::{Algorithm, Best, Rows, select_k_with};
use warpann_measure::cost_model::WarpSelectShape;

use super::times::{Times, random};
#[cfg(feature = "cuda")]
use crate::progress::Step;
use crate::progress::spinning;
use crate::report::{Failure, Out, Outcome, positive};
use crate::streams::{Stdin, check_files};

/// The options that choose one selection, which `--tune` does not take.
#[cfg(feature = "cuda")]
const TUNED: [&str; 5] = ["k", "rows", "cols", "algorithm", "method"];
#[cfg(not(feature = "cuda"))]
const TUNED: [&str; 4] = ["k", "rows", "cols", "algorithm"];

/// Arguments of `bench select`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Values to select from each row.
    #[arg(long, default_value_t = 100, value_parser = positive)]
    pub k: usize,
    /// Number of rows. The keys take 4 bytes · rows · cols: 512 MB by default, on the CPU in host memory and on a GPU
    /// in its memory. The published figures are of 10000 rows, which take 5.1 GB.
    #[arg(long, default_value_t = 1_000, value_parser = positive)]
    pub rows: usize,
    /// Values in a row.
    #[arg(long, default_value_t = 128_000, value_parser = positive)]
    pub cols: usize,
    /// auto, cpu, gpu, gpu:N or emulator.
    #[arg(long, default_value = "auto")]
    pub device: Device,
    /// Algorithm of a GPU: auto, warp-select or threshold-select. The CPU has one algorithm and ignores this option.
    #[arg(long, default_value_t)]
    pub algorithm: Algorithm,
    /// Method of a GPU instead of the one that the library chooses: warp, block-N, grid, cluster-N or short-N, as in
    /// the table of --tune. A method that the device or the shape does not allow is replaced as the library replaces
    /// it.
    #[cfg(feature = "cuda")]
    #[arg(long, value_name = "METHOD", conflicts_with = "algorithm")]
    pub method: Option<Method>,
    /// Number of timed runs, after one run that is not timed; the result is the median.
    #[arg(long, default_value_t = 9, value_parser = positive)]
    pub repeat: usize,
    /// Time every method of selection on a GPU over a grid of shapes, and print which is fastest for each.
    #[arg(long, conflicts_with_all = TUNED)]
    pub tune: bool,
    /// With --tune: write the choices to this table, in place of its lines for this device.
    #[arg(long, value_name = "CSV", requires = "tune")]
    pub out: Option<PathBuf>,
}

#[derive(Serialize)]
struct Select {
    device: String,
    algorithm: &'static str,
    rows: usize,
    cols: usize,
    k: usize,
    #[serde(flatten)]
    times: Times,
    /// Bytes that must be read or written at least once: keys, results.
    bytes: f64,
    bytes_per_second: f64,
    /// None for k = 1 and above 1024, for which no kernel with queues selects in one pass.
    warp_select: Option<WarpSelectModel>,
}

/// The prediction of the cost model for WarpSelect, the algorithm of the paper, and one row of random keys.
#[derive(Serialize)]
struct WarpSelectModel {
    kernel: String,
    thread_queue: u32,
    /// Steps of 32 keys, N1 of the paper.
    steps: f64,
    /// Steps in which a lane inserts a key, N2.
    insertions: f64,
    /// Sorts and merges of the queues, N3.
    merges: f64,
    /// N1·C1 + N2·C2 + N3·C3: comparisons or moves of a register, all 32 lanes at once.
    cost: f64,
}

impl WarpSelectModel {
    /// The prediction for the kernel that selects `k` in one pass with queues; none if there is no such kernel.
    fn of(k: usize, columns: usize) -> Option<Self> {
        let shape = WarpSelectShape::of_kernel(k)?;
        let counts = shape.kernel_counts(columns as u64);
        Some(Self {
            kernel: format!("warp_select_k{}", shape.warp_queue()),
            thread_queue: shape.thread_queue(),
            steps: counts.steps,
            insertions: counts.insertions,
            merges: counts.merges,
            cost: counts.cost(&shape.kernel_costs()),
        })
    }

    fn print(model: Option<&Self>, out: &Out) -> Outcome {
        let Some(Self { kernel, thread_queue, steps, insertions, merges, .. }) = model else { return Ok(()) };
        out.field(
            "cost model",
            format_args!(
                "{kernel}, thread queues of {thread_queue}, expects {insertions:.1} insertions and {merges:.1} merges in \
                 the {steps:.0} steps of a row that one warp reads"
            ),
        )
    }
}

/// Times `select_k` on keys in host memory: on a GPU the copies to and from it are part of the time.
pub fn run(args: &Args, out: &Out) -> Outcome {
    let &Args { k, rows, cols, device, algorithm, repeat, tune, .. } = args;
    check_files(Stdin::default(), [], args.out.as_deref())?;
    #[cfg(feature = "cuda")]
    if let Some(index) = warpann_measure::gpu_of(device)? {
        if tune {
            return super::tune::tune(index, repeat, args.out.as_deref(), out);
        }
        return select_resident(args, index, out);
    }
    #[cfg(feature = "cuda")]
    if args.method.is_some() {
        return Err(Failure::Message("--method chooses a method of a GPU, but the device is not a GPU".to_owned()));
    }
    if tune {
        return Err(Failure::Message("--tune measures the methods of a GPU, but the device is not a GPU".to_owned()));
    }
    let keys = spinning("making keys", || random(rows, cols, 1))?;
    let matrix = Rows::contiguous(&keys, cols)?;
    let times = Times::measure(repeat, || select_k_with(device, &matrix, k, Best::Smallest, algorithm).map(drop))?;
    let bytes = 4.0 * rows as f64 * cols as f64 + 8.0 * rows as f64 * k as f64;
    let select = Select {
        device: device.to_string(),
        algorithm: algorithm.name(),
        rows,
        cols,
        k,
        bytes,
        bytes_per_second: bytes / times.median_seconds,
        times,
        warp_select: WarpSelectModel::of(k, cols),
    };
    out.field("device", &select.device)?;
    out.field("keys", format_args!("{rows} rows of {cols}, f32, in host memory; k = {k} smallest"))?;
    out.field("algorithm", algorithm)?;
    select.times.print("select", out)?;
    let (count, rate) = (bytes / 1e9, select.bytes_per_second / 1e9);
    out.field("memory", format_args!("{count:.4} GB to read or write at least once, {rate:.2} GB/s"))?;
    WarpSelectModel::print(select.warp_select.as_ref(), out)?;
    out.object(&select)
}

#[cfg(feature = "cuda")]
#[derive(Serialize)]
struct SelectResident {
    device: String,
    /// The algorithm, or the method if one was chosen.
    algorithm: String,
    rows: usize,
    cols: usize,
    k: usize,
    /// Times of the selection by device events in milliseconds, ascending.
    milliseconds: Vec<f32>,
    median_milliseconds: f32,
    /// Bytes that must be read: the keys, once.
    bytes: f64,
    bytes_per_second: f64,
    /// Bytes per second of a kernel that only reads the keys, in this run.
    read_bytes_per_second: f64,
    /// Time of one read of the keys at that rate.
    floor_milliseconds: f64,
    /// None for k = 1 and above 1024, for which no kernel with queues selects in one pass.
    warp_select: Option<WarpSelectModel>,
}

/// Times the selection by device events, keys and results on the GPU.
#[cfg(feature = "cuda")]
fn select_resident(args: &Args, index: usize, out: &Out) -> Outcome {
    let &Args { k, rows, cols, algorithm, method, repeat, .. } = args;
    // A hundred different rows suffice, and are made faster than all rows.
    let bench = spinning("making keys", || -> Outcome<_> {
        Ok(warpann::internals::SelectionBench::new(index, random(rows.min(100), cols, 1)?, rows, cols)?)
    })?;
    let step = Step::measured("measuring", 2 * repeat, "runs");
    let times = match method {
        None => bench.select(k, algorithm, repeat)?,
        Some(method) => bench.select_by(k, method, repeat)?,
    };
    let measured = warpann_measure::Times::new(times);
    step.at(repeat);
    let read = warpann_measure::Times::new(bench.read(repeat)?);
    drop(step);
    let milliseconds: Vec<f32> = measured.milliseconds().iter().map(|&time| time as f32).collect();
    let median = measured.median() as f32;
    let bytes = 4.0 * rows as f64 * cols as f64;
    let read = bytes / (read.median() / 1e3);
    let select = SelectResident {
        device: bench.device(),
        algorithm: method.map_or_else(|| algorithm.name().to_owned(), |method| method.to_string()),
        rows,
        cols,
        k,
        milliseconds,
        median_milliseconds: median,
        bytes,
        bytes_per_second: bytes / (f64::from(median) / 1e3),
        read_bytes_per_second: read,
        floor_milliseconds: 1e3 * bytes / read,
        warp_select: WarpSelectModel::of(k, cols),
    };
    out.field("device", &select.device)?;
    out.field("keys", format_args!("{rows} rows of {cols}, f32, on the device; k = {k} smallest"))?;
    out.field("algorithm", &select.algorithm)?;
    let (low, high) = (select.milliseconds[0], select.milliseconds[select.milliseconds.len() - 1]);
    out.field("select", format_args!("{median:.4} ms, median of {repeat} ({low:.4} to {high:.4}), by device events"))?;
    let (rate, ceiling) = (select.bytes_per_second / 1e9, read / 1e9);
    out.field("memory", format_args!("{rate:.0} GB/s of keys; reading alone moves {ceiling:.0} GB/s"))?;
    out.field("floor", format_args!("{:.4} ms to read the keys once at that rate", select.floor_milliseconds))?;
    WarpSelectModel::print(select.warp_select.as_ref(), out)?;
    out.object(&select)
}

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use super::*;

    /// The object of a machine with a GPU.
    #[test]
    fn the_report_of_a_gpu_follows_the_schema() {
        let report = SelectResident {
            device: "gpu:0".into(),
            algorithm: "auto".into(),
            rows: 2,
            cols: 1000,
            k: 10,
            milliseconds: vec![0.5, 0.75],
            median_milliseconds: 0.5,
            bytes: 8000.0,
            bytes_per_second: 1.6e7,
            read_bytes_per_second: 3.2e7,
            floor_milliseconds: 0.25,
            warp_select: WarpSelectModel::of(10, 1000),
        };
        let text = Out::new(true, Some("bench select".into())).pretty(&report).unwrap();
        crate::schema::check(&serde_json::from_str(&text).unwrap());
    }
}
