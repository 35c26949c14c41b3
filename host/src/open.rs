//! Opens devices for each kind of index.

use std::ops::Range;

#[cfg(feature = "cuda")]
use crate::device::cuda;
use crate::device::emulated;
use crate::flat::FlatBackend;
use crate::generate::Generator;
use crate::ivf::gpu::coder::{Coder, ListCoder};
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
        Device::Emulator => {
            Ok(Box::new(crate::flat::gpu::FlatDevice::<T, _>::new(emulated::Emulator, dim, metric, budget)?))
        }
        Device::Gpu(index) => open_cuda(index, dim, metric, budget),
        Device::Auto | Device::Cpu => open_cuda(0, dim, metric, budget),
    }
}

/// Opens `device` for inverted files.
pub(crate) fn open_ivf<T: Element>(device: Device, budget: Option<u64>) -> Result<Box<dyn crate::ivf::IvfBackend<T>>> {
    match device {
        Device::Emulator => Ok(Box::new(crate::ivf::gpu::IvfDevice::<T, _>::new(emulated::Emulator, device, budget)?)),
        #[cfg(feature = "cuda")]
        Device::Gpu(index) => {
            Ok(Box::new(crate::ivf::gpu::IvfDevice::<T, _>::new(cuda::open(index)?, device, budget)?))
        }
        #[cfg(feature = "cuda")]
        Device::Auto | Device::Cpu => {
            Ok(Box::new(crate::ivf::gpu::IvfDevice::<T, _>::new(cuda::open(0)?, device, budget)?))
        }
        #[cfg(not(feature = "cuda"))]
        _ => Err(crate::Error::NoDevice { reason: crate::NoDeviceReason::FeatureOff }),
    }
}

/// Opens `device` for shifted sort.
pub(crate) fn open_shifted(device: Device, budget: Option<u64>) -> Result<Box<dyn crate::shifted::ShiftedBackend>> {
    match device {
        Device::Emulator => Ok(Box::new(crate::shifted::gpu::ShiftedDevice::new(emulated::Emulator, budget))),
        #[cfg(feature = "cuda")]
        Device::Gpu(index) => Ok(Box::new(crate::shifted::gpu::ShiftedDevice::new(cuda::open(index)?, budget))),
        #[cfg(feature = "cuda")]
        Device::Auto | Device::Cpu => Ok(Box::new(crate::shifted::gpu::ShiftedDevice::new(cuda::open(0)?, budget))),
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
    Ok(Box::new(crate::flat::gpu::FlatDevice::<T, _>::new(cuda::open(index)?, dim, metric, budget)?))
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
        Device::Emulator => {
            crate::select::gpu::rows::select_from_host(&emulated::Emulator, rows, best, algorithm, selection)
        }
        #[cfg(feature = "cuda")]
        Device::Gpu(index) => {
            crate::select::gpu::rows::select_from_host(&cuda::open(index)?, rows, best, algorithm, selection)
        }
        #[cfg(feature = "cuda")]
        Device::Auto | Device::Cpu => {
            crate::select::gpu::rows::select_from_host(&cuda::open(0)?, rows, best, algorithm, selection)
        }
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
        Device::Emulator => crate::pq::gpu::encode::encode(&emulated::Emulator, quantizer, rows, budget),
        #[cfg(feature = "cuda")]
        Device::Gpu(index) => crate::pq::gpu::encode::encode(&cuda::open(index)?, quantizer, rows, budget),
        #[cfg(feature = "cuda")]
        Device::Auto | Device::Cpu => crate::pq::gpu::encode::encode(&cuda::open(0)?, quantizer, rows, budget),
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
        Device::Emulator => crate::generate::gpu::nearest(&emulated::Emulator, generator, rows, queries, k, found),
        #[cfg(feature = "cuda")]
        Device::Gpu(index) => crate::generate::gpu::nearest(&cuda::open(index)?, generator, rows, queries, k, found),
        #[cfg(feature = "cuda")]
        Device::Auto | Device::Cpu => {
            crate::generate::gpu::nearest(&cuda::open(0)?, generator, rows, queries, k, found)
        }
        #[cfg(not(feature = "cuda"))]
        _ => Err(crate::Error::NoDevice { reason: crate::NoDeviceReason::FeatureOff }),
    }
}

/// Opens `device` (as [`open_flat`]) for a k-means run over `rows` (row-major, `dim` components each, at least one) and as
/// many `weights`, if any. Points live in device memory while they fit `budget` bytes (default: nine tenths of what is
/// free), and are streamed from `rows` otherwise.
pub(crate) fn open_kmeans<'a, T: Element>(
    device: Device,
    run: crate::kmeans::gpu::Run<'a, T>,
    means: crate::kmeans::gpu::Means,
) -> Result<Box<dyn PartWorker + 'a>> {
    match device {
        Device::Emulator => Ok(Box::new(crate::kmeans::gpu::KMeansDevice::new(emulated::Emulator, run, means)?)),
        #[cfg(feature = "cuda")]
        Device::Gpu(index) => Ok(Box::new(crate::kmeans::gpu::KMeansDevice::new(cuda::open(index)?, run, means)?)),
        #[cfg(feature = "cuda")]
        Device::Auto | Device::Cpu => Ok(Box::new(crate::kmeans::gpu::KMeansDevice::new(cuda::open(0)?, run, means)?)),
        #[cfg(not(feature = "cuda"))]
        _ => Err(crate::Error::NoDevice { reason: crate::NoDeviceReason::FeatureOff }),
    }
}

/// The points of `run` in parts on several devices that reach each other's memory: GPUs, or emulators. `None` where they do not.
pub(crate) fn open_kmeans_parts<'a, T: Element>(
    devices: &[Device],
    run: crate::kmeans::gpu::Run<'a, T>,
    means: crate::kmeans::gpu::Means,
) -> Result<Option<Box<dyn Worker + 'a>>> {
    if devices.iter().all(|&device| device == Device::Emulator) {
        let emulators = vec![emulated::Emulator; devices.len()];
        return Ok(Some(Box::new(crate::kmeans::gpu::parts::KMeansParts::open(&emulators, run, means)?)));
    }
    #[cfg(feature = "cuda")]
    {
        let gpu = |device: &Device| if let Device::Gpu(index) = *device { Some(cuda::open(index)) } else { None };
        if let Some(gpus) = devices.iter().map(gpu).collect::<Option<Vec<_>>>() {
            let gpus = gpus.into_iter().collect::<Result<Vec<_>>>()?;
            return Ok(Some(Box::new(crate::kmeans::gpu::parts::KMeansParts::open(&gpus, run, means)?)));
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
    let run =
        crate::kmeans::gpu::Run { metric, clusters: centroids.len() / dim.max(1), rows, weights: None, dim, budget };
    match device {
        Device::Emulator => crate::kmeans::gpu::labels(emulated::Emulator, run, centroids),
        #[cfg(feature = "cuda")]
        Device::Gpu(index) => crate::kmeans::gpu::labels(cuda::open(index)?, run, centroids),
        #[cfg(feature = "cuda")]
        Device::Auto | Device::Cpu => crate::kmeans::gpu::labels(cuda::open(0)?, run, centroids),
        #[cfg(not(feature = "cuda"))]
        _ => Err(crate::Error::NoDevice { reason: crate::NoDeviceReason::FeatureOff }),
    }
}

/// Canonical inner products of each of `rows` (checked) with each row of `matrix`, rows of `dim` components both, by a GPU or the
/// emulator: rows × matrix rows.
pub(crate) fn row_products(device: Device, matrix: &[f32], rows: &[f32], dim: usize) -> Result<Vec<f32>> {
    match device {
        Device::Emulator => crate::pq::gpu::rotate::row_products(&emulated::Emulator, matrix, rows, dim),
        #[cfg(feature = "cuda")]
        Device::Gpu(index) => crate::pq::gpu::rotate::row_products(&cuda::open(index)?, matrix, rows, dim),
        #[cfg(feature = "cuda")]
        Device::Auto | Device::Cpu => crate::pq::gpu::rotate::row_products(&cuda::open(0)?, matrix, rows, dim),
        #[cfg(not(feature = "cuda"))]
        _ => Err(crate::Error::NoDevice { reason: crate::NoDeviceReason::FeatureOff }),
    }
}

/// [`crate::sort::sort_pairs_by_bits`] on a GPU or the emulator, of what was checked.
pub(crate) fn sort_pairs<K: crate::sort::gpu::DeviceKey>(
    device: Device,
    keys: &mut [K],
    payloads: &mut [u32],
    bits: std::ops::Range<u32>,
) -> Result<()> {
    match device {
        Device::Emulator => crate::sort::gpu::sort_from_host(&emulated::Emulator, keys, payloads, bits),
        #[cfg(feature = "cuda")]
        Device::Gpu(index) => crate::sort::gpu::sort_from_host(&cuda::open(index)?, keys, payloads, bits),
        #[cfg(feature = "cuda")]
        Device::Auto | Device::Cpu => crate::sort::gpu::sort_from_host(&cuda::open(0)?, keys, payloads, bits),
        #[cfg(not(feature = "cuda"))]
        _ => Err(crate::Error::NoDevice { reason: crate::NoDeviceReason::FeatureOff }),
    }
}
