//! `warpann bench`: times of parts of the library, with the work that no implementation can avoid beside them.

use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Serialize;
use warpann::select::cost_model::Shape;
use warpann::select::{Algorithm, Best, Rows, select_k_with};
use warpann::{Device, FlatIndex, Metric};

use crate::report::{Failure, Out, Outcome};
use crate::search::parse_metric;

/// Arguments of `bench`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    part: Part,
}

#[derive(Debug, clap::Subcommand)]
enum Part {
    /// k-selection: the k smallest of every row of a matrix.
    Select(SelectArgs),
    /// Exact search among random vectors, or those of a file.
    Exact(ExactArgs),
    /// What the first search of a process pays for opening the device and loading kernels.
    StartUp(StartUpArgs),
}

/// Arguments of `bench start-up`.
#[derive(Debug, clap::Args)]
pub struct StartUpArgs {
    /// auto, cpu, gpu, gpu:N or emulator.
    #[arg(long, default_value = "auto")]
    pub device: Device,
}

/// Arguments of `bench select`.
#[derive(Debug, clap::Args)]
pub struct SelectArgs {
    /// Values to select from each row.
    #[arg(long, default_value_t = 100, value_parser = positive)]
    pub k: usize,
    /// Rows.
    #[arg(long, default_value_t = 10_000, value_parser = positive)]
    pub rows: usize,
    /// Values in a row.
    #[arg(long, default_value_t = 128_000, value_parser = positive)]
    pub cols: usize,
    /// auto, cpu, gpu, gpu:N or emulator.
    #[arg(long, default_value = "auto")]
    pub device: Device,
    /// How a GPU selects: auto, warp-select or threshold-select. The CPU has one algorithm and takes no notice.
    #[arg(long, default_value_t)]
    pub algorithm: Algorithm,
    /// Timed runs after one that is not; the median counts.
    #[arg(long, default_value_t = 9, value_parser = positive)]
    pub repeat: usize,
    /// Time every method of selection on a GPU over a grid of shapes, and print which is fastest for each.
    #[arg(long, conflicts_with_all = ["k", "rows", "cols", "algorithm"])]
    pub tune: bool,
    /// With --tune: the table to write the choices to, in place of those that it has for this device.
    #[arg(long, value_name = "CSV", requires = "tune")]
    pub out: Option<PathBuf>,
}

/// Arguments of `bench exact`.
#[derive(Debug, clap::Args)]
pub struct ExactArgs {
    /// Base vectors from a file, as f32; random ones unless given.
    #[arg(long, requires = "query", conflicts_with_all = ["n", "dim"])]
    pub base: Option<PathBuf>,
    /// Queries from a file: the first of them, as many as --queries says.
    #[arg(long, requires = "base")]
    pub query: Option<PathBuf>,
    /// Neighbours of each query.
    #[arg(long, default_value_t = 10, value_parser = positive)]
    pub k: usize,
    /// Base vectors.
    #[arg(long, default_value_t = 100_000, value_parser = positive)]
    pub n: usize,
    /// Components of a vector.
    #[arg(long, default_value_t = 128, value_parser = positive)]
    pub dim: usize,
    /// Queries in one call.
    #[arg(long, default_value_t = 1_000, value_parser = positive)]
    pub queries: usize,
    /// l2, ip or cosine.
    #[arg(long, default_value = "l2", value_parser = parse_metric)]
    pub metric: Metric,
    /// auto, cpu, gpu, gpu:N or emulator.
    #[arg(long, default_value = "auto")]
    pub device: Device,
    /// Timed runs after one that is not; the median counts.
    #[arg(long, default_value_t = 5, value_parser = positive)]
    pub repeat: usize,
}

fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".into()),
        Ok(number) => Ok(number),
        Err(error) => Err(format!("{error}")),
    }
}

/// Measures and prints.
pub fn run(args: &Args, out: &Out) -> Outcome {
    match &args.part {
        Part::Select(args) => select(args, out),
        Part::Exact(args) => exact(args, out),
        Part::StartUp(args) => start_up(args, out),
    }
}

/// Times the first search of a process against the second: opening the device, and the driver's compilation of the kernels
/// that this search needs. The driver keeps what it compiled in a cache; CUDA_CACHE_DISABLE=1 shows the first time of all.
fn start_up(args: &StartUpArgs, out: &Out) -> Outcome {
    #[derive(Serialize)]
    struct StartUp {
        device: String,
        open_seconds: f64,
        first_search_seconds: f64,
        second_search_seconds: f64,
        start_up_seconds: f64,
    }
    let (base, queries) = (random(100_000, 128, 1)?, random(1_000, 128, 2)?);
    let start = Instant::now();
    let mut index = FlatIndex::<f32>::new(128, Metric::L2, args.device)?;
    let open_seconds = start.elapsed().as_secs_f64();
    index.add(&base)?;
    let search = || -> Outcome<f64> {
        let start = Instant::now();
        index.search(&queries, 10)?;
        Ok(start.elapsed().as_secs_f64())
    };
    let (first_search_seconds, second_search_seconds) = (search()?, search()?);
    let start_up_seconds = open_seconds + first_search_seconds - second_search_seconds;
    let report =
        StartUp { device: index.device(), open_seconds, first_search_seconds, second_search_seconds, start_up_seconds };
    out.field("device", &report.device)?;
    out.field("open", format_args!("{open_seconds:.3} s"))?;
    out.field(
        "search",
        format_args!("{first_search_seconds:.3} s the first time, {second_search_seconds:.6} s the second"),
    )?;
    out.field("start-up", format_args!("{start_up_seconds:.3} s"))?;
    out.object(&report)
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
    /// Bytes that must be read and written at least once: keys, results.
    bytes: f64,
    bytes_per_second: f64,
    /// None for k = 1 and above 1024, which no kernel with queues serves in one pass.
    warp_select: Option<WarpSelectModel>,
}

/// What the cost model expects of WarpSelect, the algorithm of the paper, for one row of random keys.
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
    /// For the kernel that serves `k`, if one does in a single pass and with queues.
    fn of(k: usize, columns: usize) -> Option<Self> {
        let shape = Shape::of_kernel(k)?;
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
fn select(args: &SelectArgs, out: &Out) -> Outcome {
    let &SelectArgs { k, rows, cols, device, algorithm, repeat, tune, .. } = args;
    #[cfg(feature = "cuda")]
    if let Some(index) = resident_gpu(device)? {
        if tune {
            return crate::tune::tune(index, repeat, args.out.as_deref(), out);
        }
        return select_resident(args, index, out);
    }
    if tune {
        return Err(Failure::Message("--tune measures the methods of a GPU, and this device is none".to_owned()));
    }
    let keys = random(rows, cols, 1)?;
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
    out.field("memory", format_args!("{count:.4} GB to touch at least once, {rate:.2} GB/s"))?;
    WarpSelectModel::print(select.warp_select.as_ref(), out)?;
    out.object(&select)
}

/// The GPU that `device` means, if it means one.
#[cfg(feature = "cuda")]
fn resident_gpu(device: Device) -> Outcome<Option<usize>> {
    match device {
        Device::Gpu(index) => Ok(Some(index)),
        Device::Auto => match warpann::device_info::devices() {
            Ok(_) => Ok(Some(0)),
            Err(warpann::Error::NoDevice { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        },
        Device::Cpu | Device::Emulator => Ok(None),
    }
}

#[cfg(feature = "cuda")]
#[derive(Serialize)]
struct SelectResident {
    device: String,
    algorithm: &'static str,
    rows: usize,
    cols: usize,
    k: usize,
    /// Device times of the selection, ascending.
    milliseconds: Vec<f32>,
    median_milliseconds: f32,
    /// Bytes that must be read: the keys, once.
    bytes: f64,
    bytes_per_second: f64,
    /// Bytes per second of a kernel that only reads the keys, in this run.
    read_bytes_per_second: f64,
    /// Time of one read of the keys at that rate.
    floor_milliseconds: f64,
    /// None for k = 1 and above 1024, which no kernel with queues serves in one pass.
    warp_select: Option<WarpSelectModel>,
}

/// Times the selection by device events, keys and results on the GPU.
#[cfg(feature = "cuda")]
fn select_resident(args: &SelectArgs, index: usize, out: &Out) -> Outcome {
    let &SelectArgs { k, rows, cols, algorithm, repeat, .. } = args;
    // A hundred rows that differ are as good as all, and sooner made.
    let bench = warpann::measure::SelectionBench::new(index, random(rows.min(100), cols, 1)?, rows, cols)?;
    let (measured, read) = (bench.select(k, algorithm, repeat)?, bench.read(repeat)?);
    let median = measured.median();
    let bytes = 4.0 * rows as f64 * cols as f64;
    let read = bytes / (f64::from(read.median()) / 1e3);
    let select = SelectResident {
        device: bench.device(),
        algorithm: algorithm.name(),
        rows,
        cols,
        k,
        milliseconds: measured.milliseconds().to_vec(),
        median_milliseconds: median,
        bytes,
        bytes_per_second: bytes / (f64::from(median) / 1e3),
        read_bytes_per_second: read,
        floor_milliseconds: 1e3 * bytes / read,
        warp_select: WarpSelectModel::of(k, cols),
    };
    out.field("device", &select.device)?;
    out.field("keys", format_args!("{rows} rows of {cols}, f32, on the device; k = {k} smallest"))?;
    out.field("algorithm", algorithm)?;
    let (low, high) = (select.milliseconds[0], select.milliseconds[select.milliseconds.len() - 1]);
    out.field("select", format_args!("{median:.4} ms, median of {repeat} ({low:.4} to {high:.4}), by device events"))?;
    let (rate, ceiling) = (select.bytes_per_second / 1e9, read / 1e9);
    out.field("memory", format_args!("{rate:.0} GB/s of keys; reading alone moves {ceiling:.0} GB/s"))?;
    out.field("floor", format_args!("{:.4} ms to read the keys once at that rate", select.floor_milliseconds))?;
    WarpSelectModel::print(select.warp_select.as_ref(), out)?;
    out.object(&select)
}

/// Times of repeated runs.
#[derive(Serialize)]
struct Times {
    /// Of each run, in ascending order.
    seconds: Vec<f64>,
    median_seconds: f64,
}

impl Times {
    /// Runs `work` once without a watch, for it loads kernels and fills caches, and then `repeat` times, at least once.
    fn measure(repeat: usize, mut work: impl FnMut() -> warpann::Result<()>) -> Outcome<Self> {
        work()?;
        let mut seconds = Vec::new();
        for _ in 0..repeat.max(1) {
            let start = Instant::now();
            work()?;
            seconds.push(start.elapsed().as_secs_f64());
        }
        seconds.sort_by(f64::total_cmp);
        // The lower of the middle two if there are two.
        let median_seconds = seconds[(seconds.len() - 1) / 2];
        Ok(Self { seconds, median_seconds })
    }

    fn print(&self, name: &str, out: &Out) -> Outcome {
        let Self { seconds, median_seconds } = self;
        let (low, high, runs) = (seconds[0], seconds[seconds.len() - 1], seconds.len());
        out.field(name, format_args!("{median_seconds:.6} s, median of {runs} ({low:.6} to {high:.6})"))
    }
}

#[derive(Serialize)]
struct Exact {
    device: String,
    metric: &'static str,
    n: usize,
    dim: usize,
    queries: usize,
    k: usize,
    build_seconds: f64,
    #[serde(flatten)]
    times: Times,
    queries_per_second: f64,
    /// Multiplications and additions of all inner products: 2 · n · queries · dim.
    operations: f64,
    operations_per_second: f64,
    /// Bytes that must be read and written at least once: vectors, queries, results.
    bytes: f64,
    bytes_per_second: f64,
}

fn exact(args: &ExactArgs, out: &Out) -> Outcome {
    let &ExactArgs { k, metric, device, repeat, .. } = args;
    let (base, probes, dim) = match (&args.base, &args.query) {
        (Some(base), Some(query)) => {
            let ((base, dim), (mut probes, query_dim)) = (from_file(base)?, from_file(query)?);
            if query_dim != dim {
                return Err(warpann::Error::WrongDimension { expected: dim, actual: query_dim }.into());
            }
            probes.truncate(args.queries.saturating_mul(dim));
            (base, probes, dim)
        }
        _ => (random(args.n, args.dim, 1)?, random(args.queries, args.dim, 2)?, args.dim),
    };
    let (n, queries) = (base.len() / dim, probes.len() / dim);
    let mut index = FlatIndex::<f32>::new(dim, metric, device)?;
    let start = Instant::now();
    index.add(&base)?;
    let build_seconds = start.elapsed().as_secs_f64();
    let times = Times::measure(repeat, || index.search(&probes, k).map(drop))?;
    let operations = 2.0 * n as f64 * queries as f64 * dim as f64;
    let bytes = 4.0 * (n + queries) as f64 * dim as f64 + 12.0 * queries as f64 * k as f64;
    let exact = Exact {
        device: index.device(),
        metric: metric.name(),
        n,
        dim,
        queries,
        k,
        build_seconds,
        queries_per_second: queries as f64 / times.median_seconds,
        operations,
        operations_per_second: operations / times.median_seconds,
        bytes,
        bytes_per_second: bytes / times.median_seconds,
        times,
    };
    out.field("device", &exact.device)?;
    out.field("base", format_args!("{n} vectors, dimension {dim}, f32, metric {}", exact.metric))?;
    out.field("queries", format_args!("{queries}, k = {k}"))?;
    out.field("build", format_args!("{build_seconds:.4} s"))?;
    exact.times.print("search", out)?;
    out.field("", format_args!("{:.0} queries/s", exact.queries_per_second))?;
    let (count, rate) = (exact.operations / 1e9, exact.operations_per_second / 1e9);
    out.field("arithmetic", format_args!("{count:.4} GFLOP in the inner products, {rate:.2} GFLOP/s"))?;
    let (count, rate) = (exact.bytes / 1e9, exact.bytes_per_second / 1e9);
    out.field("memory", format_args!("{count:.4} GB to touch at least once, {rate:.2} GB/s"))?;
    out.object(&exact)
}

/// The vectors of a file as f32, and their dimension.
fn from_file(path: &Path) -> Outcome<(Vec<f32>, usize)> {
    let vectors = warpann::io::read_vectors(path)?;
    let values = vectors.to_f32().map_err(|defect| warpann::Error::BadFile { path: path.to_owned(), defect })?;
    Ok((values.as_slice::<f32>().unwrap_or_default().to_vec(), vectors.dim()))
}

/// Evenly distributed components from 0 up to 1.
/// Random values between 0 and 1, the same for the same seed.
pub fn random(rows: usize, dim: usize, seed: u64) -> Outcome<Vec<f32>> {
    let too_large = || Failure::Message(format!("{rows} vectors of dimension {dim} do not fit in memory"));
    let len = rows.checked_mul(dim).ok_or_else(too_large)?;
    let mut values: Vec<f32> = Vec::new();
    values.try_reserve_exact(len).map_err(|_| too_large())?;
    let mut state = seed;
    values.extend(
        std::iter::repeat_with(|| {
            // splitmix64
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((z ^ (z >> 31)) >> 40) as f32 / (1u32 << 24) as f32
        })
        .take(len),
    );
    Ok(values)
}
