//! The GPU back end and its emulator: one host code, generic over what a device offers.
//!
//! | file | what |
//! |---|---|
//! | `runtime` | memory, streams, copies, launches: what a device offers; scratch lanes |
//! | `cuda` | the CUDA driver as a device (feature `cuda`) |
//! | `driver` | the driver's functions, declared (feature `cuda`) |
//! | `emulated` | the checking emulator of `cuda_std` |
//! | `select` | k-selection: plans and launches |
//! | `select_rows` | k-selection from rows in host memory |
//! | `dispatch` | k-selection: which method for which shape |
//! | `sets` | sets of vectors on the device: how they lie, f16 copies, bounds |
//! | `results` | results on their way into the caller's slots |
//! | `exact` | exact search of one block of rows on the device |
//! | `batches` | rows up and results down, in batches |
//! | `encode` | product-quantizer codes |
//! | `coder` | lists and codes of the vectors of an inverted file |
//! | `generate` | generated vectors: making them, exact search of them |
//! | `rotate` | products of rows with a matrix |
//! | `flat` | the flat index: where rows live, tiling over queries and blocks, two lanes at once |
//! | `ivf` | inverted files: the image of the lists, searches of it |
//! | `assign` | the nearest centroid of each point of one batch on the device |
//! | `cluster_sums` | sums over the points of each cluster, totals, new centroids |
//! | `kmeans` | k-means: where points live, and the order of an iteration |
//! | `kmeans_parts` | the same over several devices, whose sums meet on them |
//! | `hostile` | tests: rows made to defeat k-selection |
//! | `magnitudes` | tests: vectors of every magnitude that f32 holds |
//! | `sort` | stable radix sort of pairs: plans and launches |
//! | `tables` | scores of product-quantized lists by lookup tables: plans and launches |
//! | `shifted` | shifted sort: sorted copies, searches of them |
//! | `sampling` | tests: how often a sample misleads |

mod assign;
mod batches;
mod cluster_sums;
pub(crate) mod coder;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
pub(crate) mod dispatch;
#[cfg(feature = "cuda")]
pub(crate) mod driver;
pub(crate) mod emulated;
mod encode;
mod exact;
mod flat;
mod generate;
#[cfg(test)]
mod hostile;
mod ivf;
pub(crate) mod kmeans;
mod kmeans_parts;
#[cfg(test)]
mod magnitudes;
mod results;
mod rotate;
pub(crate) mod runtime;
#[cfg(test)]
mod sampling;
pub(crate) mod select;
mod select_rows;
mod sets;
mod shifted;
pub(crate) mod sort;
mod tables;

use std::ops::Range;

use self::coder::{Coder, ListCoder};
use crate::flat::FlatBackend;
use crate::generate::Generator;
use crate::kmeans::worker::{Assign, PartWorker, Worker};
use crate::pq::ProductQuantizer;
use crate::select::{Algorithm, Best, Key, Rows, Selection};
use crate::{Device, Element, Metric, Neighbors, Result};

/// Opens `device` (a GPU, the emulator, or for `Auto` the first GPU) and makes an empty flat index on it.
pub(crate) fn open_flat<T: Element>(
    device: Device,
    dim: usize,
    metric: Metric,
    budget: Option<u64>,
) -> Result<Box<dyn FlatBackend<T>>> {
    match device {
        Device::Emulator => Ok(Box::new(flat::FlatDevice::<T, _>::new(emulated::Emulator, dim, metric, budget)?)),
        Device::Gpu(index) => open_cuda(index, dim, metric, budget),
        Device::Auto | Device::Cpu => open_cuda(0, dim, metric, budget),
    }
}

/// Opens `device` for inverted files.
pub(crate) fn open_ivf<T: Element>(device: Device, budget: Option<u64>) -> Result<Box<dyn crate::ivf::IvfBackend<T>>> {
    match device {
        Device::Emulator => Ok(Box::new(ivf::IvfDevice::<T, _>::new(emulated::Emulator, device, budget)?)),
        #[cfg(feature = "cuda")]
        Device::Gpu(index) => Ok(Box::new(ivf::IvfDevice::<T, _>::new(cuda::open(index)?, device, budget)?)),
        #[cfg(feature = "cuda")]
        Device::Auto | Device::Cpu => Ok(Box::new(ivf::IvfDevice::<T, _>::new(cuda::open(0)?, device, budget)?)),
        #[cfg(not(feature = "cuda"))]
        _ => Err(crate::Error::NoDevice { reason: crate::NoDeviceReason::FeatureOff }),
    }
}

/// Opens `device` for shifted sort.
pub(crate) fn open_shifted(device: Device, budget: Option<u64>) -> Result<Box<dyn crate::shifted::ShiftedBackend>> {
    match device {
        Device::Emulator => Ok(Box::new(shifted::ShiftedDevice::new(emulated::Emulator, budget))),
        #[cfg(feature = "cuda")]
        Device::Gpu(index) => Ok(Box::new(shifted::ShiftedDevice::new(cuda::open(index)?, budget))),
        #[cfg(feature = "cuda")]
        Device::Auto | Device::Cpu => Ok(Box::new(shifted::ShiftedDevice::new(cuda::open(0)?, budget))),
        #[cfg(not(feature = "cuda"))]
        _ => Err(crate::Error::NoDevice { reason: crate::NoDeviceReason::FeatureOff }),
    }
}

#[cfg(feature = "cuda")]
fn open_cuda<T: Element>(
    index: usize,
    dim: usize,
    metric: Metric,
    budget: Option<u64>,
) -> Result<Box<dyn FlatBackend<T>>> {
    Ok(Box::new(flat::FlatDevice::<T, _>::new(cuda::open(index)?, dim, metric, budget)?))
}

#[cfg(not(feature = "cuda"))]
fn open_cuda<T: Element>(_: usize, _: usize, _: Metric, _: Option<u64>) -> Result<Box<dyn FlatBackend<T>>> {
    Err(crate::Error::NoDevice { reason: crate::NoDeviceReason::FeatureOff })
}

/// [`crate::select::select_k_with`] on a GPU or the emulator.
pub(crate) fn select_k<K: Key>(
    device: Device,
    rows: &Rows<'_, K>,
    best: Best,
    algorithm: Algorithm,
    selection: &mut Selection<K>,
) -> Result<()> {
    match device {
        Device::Emulator => select_rows::select_from_host(&emulated::Emulator, rows, best, algorithm, selection),
        #[cfg(feature = "cuda")]
        Device::Gpu(index) => select_rows::select_from_host(&cuda::open(index)?, rows, best, algorithm, selection),
        #[cfg(feature = "cuda")]
        Device::Auto | Device::Cpu => select_rows::select_from_host(&cuda::open(0)?, rows, best, algorithm, selection),
        #[cfg(not(feature = "cuda"))]
        _ => Err(crate::Error::NoDevice { reason: crate::NoDeviceReason::FeatureOff }),
    }
}

/// Codes of `rows` (checked) by a GPU or the emulator, within `budget` bytes of its memory (or nine tenths of what is free).
pub(crate) fn encode_pq(
    device: Device,
    quantizer: &ProductQuantizer,
    rows: &[f32],
    budget: Option<u64>,
) -> Result<Vec<u8>> {
    match device {
        Device::Emulator => encode::encode(&emulated::Emulator, quantizer, rows, budget),
        #[cfg(feature = "cuda")]
        Device::Gpu(index) => encode::encode(&cuda::open(index)?, quantizer, rows, budget),
        #[cfg(feature = "cuda")]
        Device::Auto | Device::Cpu => encode::encode(&cuda::open(0)?, quantizer, rows, budget),
        #[cfg(not(feature = "cuda"))]
        _ => Err(crate::Error::NoDevice { reason: crate::NoDeviceReason::FeatureOff }),
    }
}

/// Opens `device` (as [`open_flat`]) to find lists and codes of vectors for these centroids (row-major, at least one), within `budget`
/// bytes of its memory (or nine tenths of what is free).
pub(crate) fn open_coder<'a>(
    device: Device,
    by: Assign,
    centroids: &[f32],
    quantizer: &'a ProductQuantizer,
    budget: Option<u64>,
) -> Result<Box<dyn ListCoder + 'a>> {
    match device {
        Device::Emulator => Ok(Box::new(Coder::new(emulated::Emulator, by, centroids, quantizer, budget)?)),
        #[cfg(feature = "cuda")]
        Device::Gpu(index) => Ok(Box::new(Coder::new(cuda::open(index)?, by, centroids, quantizer, budget)?)),
        #[cfg(feature = "cuda")]
        Device::Auto | Device::Cpu => Ok(Box::new(Coder::new(cuda::open(0)?, by, centroids, quantizer, budget)?)),
        #[cfg(not(feature = "cuda"))]
        _ => Err(crate::Error::NoDevice { reason: crate::NoDeviceReason::FeatureOff }),
    }
}

/// The k nearest of the rows `rows` (at least one) of `generator` for each query (checked, at least one), by a GPU or the emulator.
/// `found` is empty, for as many queries and k.
pub(crate) fn nearest_generated(
    device: Device,
    generator: &Generator,
    rows: Range<u64>,
    queries: &[f32],
    k: usize,
    found: &mut Neighbors,
) -> Result<()> {
    match device {
        Device::Emulator => generate::nearest(&emulated::Emulator, generator, rows, queries, k, found),
        #[cfg(feature = "cuda")]
        Device::Gpu(index) => generate::nearest(&cuda::open(index)?, generator, rows, queries, k, found),
        #[cfg(feature = "cuda")]
        Device::Auto | Device::Cpu => generate::nearest(&cuda::open(0)?, generator, rows, queries, k, found),
        #[cfg(not(feature = "cuda"))]
        _ => Err(crate::Error::NoDevice { reason: crate::NoDeviceReason::FeatureOff }),
    }
}

/// Opens `device` (as [`open_flat`]) for a k-means run over `rows` (row-major, `dim` components each, at least one) and as
/// many `weights`, if any. Points live in device memory while they fit `budget` bytes (default: nine tenths of what is
/// free), and are streamed from `rows` otherwise.
pub(crate) fn open_kmeans<'a, T: Element>(
    device: Device,
    run: kmeans::Run<'a, T>,
    means: kmeans::Means,
) -> Result<Box<dyn PartWorker + 'a>> {
    match device {
        Device::Emulator => Ok(Box::new(kmeans::KMeansDevice::new(emulated::Emulator, run, means)?)),
        #[cfg(feature = "cuda")]
        Device::Gpu(index) => Ok(Box::new(kmeans::KMeansDevice::new(cuda::open(index)?, run, means)?)),
        #[cfg(feature = "cuda")]
        Device::Auto | Device::Cpu => Ok(Box::new(kmeans::KMeansDevice::new(cuda::open(0)?, run, means)?)),
        #[cfg(not(feature = "cuda"))]
        _ => Err(crate::Error::NoDevice { reason: crate::NoDeviceReason::FeatureOff }),
    }
}

/// The points of `run` in parts on several devices that reach each other's memory: GPUs, or emulators. `None` where they do not.
pub(crate) fn open_kmeans_parts<'a, T: Element>(
    devices: &[Device],
    run: kmeans::Run<'a, T>,
    means: kmeans::Means,
) -> Result<Option<Box<dyn Worker + 'a>>> {
    if devices.iter().all(|&device| device == Device::Emulator) {
        let emulators = vec![emulated::Emulator; devices.len()];
        return Ok(Some(Box::new(kmeans_parts::KMeansParts::open(&emulators, run, means)?)));
    }
    #[cfg(feature = "cuda")]
    {
        let gpu = |device: &Device| if let Device::Gpu(index) = *device { Some(cuda::open(index)) } else { None };
        if let Some(gpus) = devices.iter().map(gpu).collect::<Option<Vec<_>>>() {
            let gpus = gpus.into_iter().collect::<Result<Vec<_>>>()?;
            return Ok(Some(Box::new(kmeans_parts::KMeansParts::open(&gpus, run, means)?)));
        }
    }
    Ok(None)
}

/// The nearest of `centroids` (row-major, `dim` components each, at least one) for every row: step 1 of
/// [`crate::kmeans::worker`]'s definition. Memory as [`open_kmeans`].
pub(crate) fn assign_rows<T: Element>(
    device: Device,
    metric: Assign,
    rows: &[T],
    dim: usize,
    centroids: &[f32],
    budget: Option<u64>,
) -> Result<Vec<u32>> {
    let run = kmeans::Run { metric, clusters: centroids.len() / dim.max(1), rows, weights: None, dim, budget };
    match device {
        Device::Emulator => kmeans::labels(emulated::Emulator, run, centroids),
        #[cfg(feature = "cuda")]
        Device::Gpu(index) => kmeans::labels(cuda::open(index)?, run, centroids),
        #[cfg(feature = "cuda")]
        Device::Auto | Device::Cpu => kmeans::labels(cuda::open(0)?, run, centroids),
        #[cfg(not(feature = "cuda"))]
        _ => Err(crate::Error::NoDevice { reason: crate::NoDeviceReason::FeatureOff }),
    }
}

/// Canonical inner products of each of `rows` (checked) with each row of `matrix`, rows of `dim` components both, by a GPU or the
/// emulator: rows × matrix rows.
pub(crate) fn row_products(device: Device, matrix: &[f32], rows: &[f32], dim: usize) -> Result<Vec<f32>> {
    match device {
        Device::Emulator => rotate::row_products(&emulated::Emulator, matrix, rows, dim),
        #[cfg(feature = "cuda")]
        Device::Gpu(index) => rotate::row_products(&cuda::open(index)?, matrix, rows, dim),
        #[cfg(feature = "cuda")]
        Device::Auto | Device::Cpu => rotate::row_products(&cuda::open(0)?, matrix, rows, dim),
        #[cfg(not(feature = "cuda"))]
        _ => Err(crate::Error::NoDevice { reason: crate::NoDeviceReason::FeatureOff }),
    }
}

/// [`crate::sort::sort_pairs_by_bits`] on a GPU or the emulator, of what was checked.
pub(crate) fn sort_pairs<K: sort::DeviceKey>(
    device: Device,
    keys: &mut [K],
    payloads: &mut [u32],
    bits: std::ops::Range<u32>,
) -> Result<()> {
    match device {
        Device::Emulator => sort::sort_from_host(&emulated::Emulator, keys, payloads, bits),
        #[cfg(feature = "cuda")]
        Device::Gpu(index) => sort::sort_from_host(&cuda::open(index)?, keys, payloads, bits),
        #[cfg(feature = "cuda")]
        Device::Auto | Device::Cpu => sort::sort_from_host(&cuda::open(0)?, keys, payloads, bits),
        #[cfg(not(feature = "cuda"))]
        _ => Err(crate::Error::NoDevice { reason: crate::NoDeviceReason::FeatureOff }),
    }
}
