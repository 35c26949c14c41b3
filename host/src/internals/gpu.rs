//! Selections and k-means with data in GPU memory.

use std::time::Instant;

use cuda_std::PtrMut;
use cuda_std::global::U32x4;
use rayon::prelude::*;
use warpann_kernels::read_ceiling::ReadOnce;

use super::Bench;
use crate::device::limits::Limits;
use crate::device::open::open_gpu;
use crate::device::scratch::Layout;
use crate::kmeans::gpu::{KMeansDevice, Means, Run};
use crate::kmeans::scale::Scale;
use crate::kmeans::worker::{Totals, Worker};
use crate::metric::Assign;
pub use crate::select::gpu::dispatch::{HEADER as DISPATCH_HEADER, Method};
use crate::select::gpu::{Select, SelectPlan, select};
use crate::select::{Algorithm, Best, Rows, select_k};
use crate::validate::check_whole;
use crate::vectors::VectorSlice;
use crate::{Device, Error, Result};

/// Keys on a GPU, for repeated selections with time measurement. Before each run other data fills the L2 cache.
pub struct SelectionBench {
    bench: Bench,
    /// The keys on the device, `rows` · `columns`.
    device_keys: PtrMut<f32>,
    /// A word for the result of reading.
    word: PtrMut<u32>,
    keys: Vec<f32>,
    rows: usize,
    columns: usize,
}

impl SelectionBench {
    /// Copies `rows` rows to GPU `index`. `keys` has at least one whole row of `columns` keys, and is repeated until
    /// there are `rows` rows (0 means 1).
    ///
    /// # Errors
    /// [`Error::Ragged`] if `keys` is not a positive whole number of rows; the errors of opening the device;
    /// [`Error::OutOfDeviceMemory`].
    pub fn new(index: usize, keys: Vec<f32>, rows: usize, columns: usize) -> Result<SelectionBench> {
        if columns == 0 || keys.is_empty() || !keys.len().is_multiple_of(columns) {
            return Err(Error::Ragged { what: "keys", len: keys.len(), size: columns });
        }
        let rows = rows.max(1);
        let (bench, (device_keys, word)) =
            Bench::new(index, |layout, _| (layout.array::<f32>(rows * columns), layout.array::<u32>(1)))?;
        let (device_keys, word) = (bench.scratch().at(device_keys), bench.scratch().at(word));
        let block = rows.min(keys.len() / columns);
        for first in (0..rows).step_by(block) {
            let keys = &keys[..(rows - first).min(block) * columns];
            // SAFETY: the layout reserved rows · columns keys.
            unsafe { bench.device.copy_to_device(&bench.stream, device_keys.skip(first * columns), keys)? };
        }
        Ok(SelectionBench { bench, device_keys, word, keys, rows, columns })
    }

    /// A description of the device.
    pub fn device(&self) -> String {
        self.bench.device.describe()
    }

    /// The device's product name, as in the dispatch table.
    pub fn product(&self) -> String {
        self.bench.device.limits().device.to_string()
    }

    /// Times a kernel that reads all keys once and does nothing else, in milliseconds: a lower bound for the time of
    /// every selection.
    ///
    /// # Errors
    /// The errors of running on the device.
    pub fn read(&self, repeat: usize) -> Result<Vec<f64>> {
        // Only reading matters, so the kernel reads the keys as groups of four words. A rest of fewer than four words
        // is not read.
        let words = self.device_keys.cast::<U32x4>();
        let launch = ReadOnce { words: words.into(), quads: words.len() as u64, out: self.word };
        let Bench { device, stream, .. } = &self.bench;
        let config = launch.config(device.limits().multiprocessors);
        // SAFETY: the keys were copied to an aligned place; the layout reserved the word.
        let run = || unsafe { device.launch(stream, &ReadOnce::KERNEL, config, launch) };
        self.bench.times(repeat, || Ok(()), run)
    }

    /// Times the selection of the `k` smallest keys of every row, by the method that the library uses for `algorithm`,
    /// and compares the first and the last rows of the result with the CPU's.
    ///
    /// # Errors
    /// [`Error::Zero`]; [`Error::OutOfDeviceMemory`] if results and scratch do not fit; [`Error::WrongSelection`] if
    /// results differ.
    pub fn select(&self, k: usize, algorithm: Algorithm, repeat: usize) -> Result<Vec<f64>> {
        let (rows, columns) = (self.rows as u32, self.columns as u32);
        self.time(k, repeat, |layout, limits| {
            SelectPlan::new::<f32>(layout, rows, columns, k as u32, algorithm, limits)
        })
    }

    /// As [`Self::select`], by the method `method`.
    ///
    /// # Errors
    /// As [`Self::select`].
    pub fn select_by(&self, k: usize, method: Method, repeat: usize) -> Result<Vec<f64>> {
        let (rows, columns) = (self.rows as u32, self.columns as u32);
        let plan = |layout: &mut Layout, limits: &Limits| {
            Ok(SelectPlan::of_method(layout, rows, columns, k as u32, method, limits))
        };
        self.time(k, repeat, plan)
    }

    /// Times and checks the plan that `plan` makes for `k`.
    fn time(
        &self,
        k: usize,
        repeat: usize,
        plan: impl FnOnce(&mut Layout, &Limits) -> Result<SelectPlan>,
    ) -> Result<Vec<f64>> {
        if k == 0 {
            return Err(Error::Zero { what: "k" });
        }
        let (Bench { device, stream, .. }, rows, columns) = (&self.bench, self.rows, self.columns);
        let mut layout = Layout::default();
        let (out_keys, out_ids) = (layout.array::<f32>(rows * k), layout.array::<u32>(rows * k));
        let plan = plan(&mut layout, device.limits())?;
        let memory = device.allocate(layout.bytes())?;
        let scratch = device.scratch(&memory);
        let (out_keys, out_ids) = (scratch.at(out_keys), scratch.at(out_ids));
        let batch = Select::<f32> {
            keys: self.device_keys.into(),
            ids: None,
            row_stride: columns as u64,
            starts: None,
            lengths: None,
            columns: columns as u32,
            rows: rows as u32,
            k: k as u32,
            best: Best::Smallest,
            out_keys,
            out_ids,
        };
        // SAFETY: the layout reserved every array; the keys were copied.
        let run = || unsafe { select(device, stream, &batch, &plan, scratch) };
        let times = self.bench.times(repeat, || Ok(()), run)?;
        // The last rows lie after all repetitions.
        let block = self.keys.len() / columns;
        for row in (0..rows.min(4)).chain(rows.saturating_sub(4).max(4)..rows) {
            let like = row % block * columns;
            let keys = Rows::contiguous(&self.keys[like..like + columns], columns)?;
            let expected = select_k(Device::Cpu, &keys, k, Best::Smallest)?;
            let (mut out, mut ids) = (vec![0f32; k], vec![0u32; k]);
            // SAFETY: the selection wrote k results for each row.
            unsafe {
                device.copy_to_host(stream, &mut out, out_keys.skip(row * k))?;
                device.copy_to_host(stream, &mut ids, out_ids.skip(row * k))?;
            }
            // Bits: a NaN equals itself.
            if bytemuck::cast_slice::<_, u32>(&out) != bytemuck::cast_slice::<_, u32>(&expected.keys)
                || ids != expected.positions
            {
                return Err(Error::WrongSelection { row });
            }
        }
        Ok(times)
    }
}

/// The result of one run of k-means.
#[derive(Debug, Clone, PartialEq)]
pub struct KMeansRun {
    /// Wall-clock time of all iterations in milliseconds, from a drained device to a drained device.
    pub milliseconds: f64,
    /// Σ‖x − c‖² over all points, c the nearest of [`Self::centroids`].
    pub objective: f64,
    /// The centroids after the last iteration, row-major.
    pub centroids: Vec<f32>,
}

/// Points on a GPU, for repeated clustering with time measurement: Lloyd's iterations for squared L2, without the copy
/// to the device and the choice of the first centroids.
///
/// ```no_run
/// # fn main() -> Result<(), warpann::Error> {
/// use warpann::internals::KMeansBench;
///
/// let rows: Vec<f32> = (0..1_000_000 * 128u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32).collect();
/// let mut bench = KMeansBench::new(0, &rows, 128, 256)?;
/// bench.run(2)?; // loads the kernels
/// let run = bench.run(20)?;
/// println!("{:.2} ms, objective {:e}", run.milliseconds, run.objective);
/// # Ok(())
/// # }
/// ```
pub struct KMeansBench<'a> {
    worker: KMeansDevice<'a>,
    /// The first centroids of every run.
    starts: Vec<f32>,
    /// Σ‖x‖²: sum of the squared norms of the vectors.
    squares: f64,
}

impl<'a> KMeansBench<'a> {
    /// Copies the rows of `dim` components to GPU `index`. Every run starts with `clusters` of the rows, evenly spaced.
    ///
    /// # Errors
    /// [`Error::Zero`], [`Error::Ragged`]; [`Error::TooFewTrainingVectors`] if there are fewer
    /// rows than clusters; the errors of opening the device; [`Error::OutOfDeviceMemory`].
    pub fn new(index: usize, rows: &'a [f32], dim: usize, clusters: usize) -> Result<KMeansBench<'a>> {
        if dim == 0 {
            return Err(Error::Zero { what: "dimension" });
        }
        let points = check_whole(rows, dim)?;
        if points < clusters {
            return Err(Error::TooFewTrainingVectors { have: points, need: clusters });
        }
        let greatest = rows.par_iter().map(|x| x.abs()).reduce(|| 0.0, f32::max);
        let squares = rows.par_iter().map(|&x| f64::from(x) * f64::from(x)).sum();
        let starts = (0..clusters).flat_map(|cluster| {
            let point = (cluster as u128 * points as u128 / clusters as u128) as usize;
            &rows[point * dim..(point + 1) * dim]
        });
        let starts = starts.copied().collect();
        let run = Run { metric: Assign::L2, clusters, rows: VectorSlice::of(rows, dim), weights: None, budget: None };
        let means = Means { scale: Scale::new(points, f64::from(greatest), None), spherical: false };
        let worker = KMeansDevice::new(open_gpu(index)?, run, means)?;
        Ok(KMeansBench { worker, starts, squares })
    }

    /// Times `iterations` iterations, each an assignment of all points and new centroids.
    ///
    /// # Errors
    /// The errors of running on the device.
    pub fn run(&mut self, iterations: usize) -> Result<KMeansRun> {
        let mut totals = Totals::default();
        self.worker.set_centroids(&self.starts)?;
        self.worker.synchronize()?;
        let start = Instant::now();
        for _ in 0..iterations {
            self.worker.assign(&mut totals)?;
            self.worker.update()?;
        }
        self.worker.synchronize()?;
        let milliseconds = 1e3 * start.elapsed().as_secs_f64();
        self.worker.assign(&mut totals)?;
        let mut centroids = vec![0.0; self.starts.len()];
        self.worker.centroids(&mut centroids)?;
        let terms = totals.norms.iter().zip(&totals.weights).zip(&totals.products);
        let objective = terms.map(|((norm, &weight), product)| weight * norm - 2.0 * product).sum::<f64>();
        Ok(KMeansRun { milliseconds, objective: objective + self.squares, centroids })
    }
}
