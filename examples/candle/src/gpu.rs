//! Embeddings on the GPU: the library takes the addresses of candle's tensors, works on candle's stream, and writes
//! results into tensors.

use candle_core::cuda_backend::CudaDType;
use candle_core::cuda_backend::cudarc::driver::DevicePtr;
use candle_core::{DType, Device, Storage, Tensor, bail};
use warpann::views::{DeviceNeighbors, DeviceVectors};
use warpann::{FlatIndex, Metric, SearchOptions};

use super::{DIM, Error, Found, K};

pub fn device() -> candle_core::Result<Device> {
    Device::new_cuda_with_stream(0)
}

/// The device address of a tensor whose rows lie one after the other.
fn address<T: CudaDType>(tensor: &Tensor) -> candle_core::Result<u64> {
    let (storage, layout) = tensor.storage_and_layout();
    let (Storage::Cuda(storage), Some((start, _))) = (&*storage, layout.contiguous_offsets()) else {
        bail!("the tensor does not lie on the GPU row after row")
    };
    let slice = storage.as_cuda_slice::<T>()?;
    // The library works on the stream on which candle makes the tensor, so nobody has to wait.
    let (address, _) = slice.device_ptr(slice.stream());
    Ok(address + (start * size_of::<T>()) as u64)
}

/// Searches for the [`K`] texts nearest to each question.
pub fn search(texts: &Tensor, questions: &Tensor) -> Result<Found, Box<dyn Error>> {
    let device = texts.device();
    let stream = device.as_cuda_device()?.cuda_stream();
    let rows = |tensor: &Tensor| -> candle_core::Result<DeviceVectors<f32>> {
        Ok(DeviceVectors::new(address::<f32>(tensor)?, tensor.dim(0)?))
    };
    let slots = (questions.dim(0)?, K);
    let (ids, similarities) = (Tensor::zeros(slots, DType::I64, device)?, Tensor::zeros(slots, DType::F32, device)?);

    let mut index = FlatIndex::<f32>::new(DIM, Metric::Cosine, warpann::Device::Gpu(0))?;
    // SAFETY: the tensor has DIM components in each row, and lives until `add_device`, which waits for its copy,
    // returns.
    unsafe { index.add_device(stream.cu_stream().cast(), &rows(texts)?)? };
    let mut workspace = index.device_workspace(slots.0, K, &SearchOptions::new())?;
    let results = DeviceNeighbors::new(address::<i64>(&ids)?, address::<f32>(&similarities)?);
    // SAFETY: as above, and the results have K slots for each question. Tensors, workspace and index live and do not
    // change until the stream is done: the copies below wait for it.
    unsafe { index.search_device(&mut workspace, stream.cu_stream().cast(), &rows(questions)?, &results)? };
    let ids = ids.flatten_all()?.to_vec1::<i64>()?.into_iter().map(|id| id as u64).collect();
    Ok(Found { ids, similarities: similarities.flatten_all()?.to_vec1()? })
}
