//! Exact search as one step of a program that works on a GPU: the embeddings that another library computes never leave
//! the GPU. They come as DLPack tensors, the work is put on the library's CUDA stream, and the results go into tensors
//! of the library.
//!
//! ```sh
//! cargo run --release --example search_on_stream --features cuda
//! ```
//!
//! `Model` stands for the library. PyTorch gives such tensors by `torch.utils.dlpack.to_dlpack`. On a machine without a
//! GPU the example says so and ends.

use std::error::Error;

use warpann::cust::context::Context;
use warpann::cust::error::CudaError;
use warpann::cust::memory::{DeviceBuffer, DeviceCopy};
use warpann::cust::stream::{Stream, StreamFlags};
use warpann::cust::{self, CudaFlags};
use warpann::views::dlpack::{DLDataType, DLManagedTensorVersioned, ForeignTensor, export};
use warpann::views::{DeviceNeighbors, DeviceVectors};
use warpann::{Device, FlatIndex, Metric, SearchOptions};

const DIM: usize = 24;
const DOCUMENTS: usize = 2_000;
const QUESTIONS: usize = 5;
const K: usize = 3;

/// A library that computes embeddings on the GPU. The example knows nothing of its memory but the tensors.
struct Model {
    gpu: usize,
    stream: Stream,
}

impl Model {
    fn tensor<T: DeviceCopy + Send + 'static>(
        &self,
        values: &[T],
        columns: usize,
        element: DLDataType,
    ) -> Result<*mut DLManagedTensorVersioned, CudaError> {
        let buffer = DeviceBuffer::from_slice(values)?;
        let (address, rows) = (buffer.as_device_ptr().as_raw(), values.len() / columns);
        Ok(export(buffer, address, &[rows as i64, columns as i64], element, self.gpu))
    }

    /// The embeddings of some texts, one in each row.
    fn embeddings(&self, texts: &[f32]) -> Result<*mut DLManagedTensorVersioned, CudaError> {
        self.tensor(texts, DIM, DLDataType::F32)
    }
}

/// Stands for texts: points on a curve.
fn texts(count: usize, step: f32) -> Vec<f32> {
    (0..count)
        .flat_map(|i| (0..DIM).map(move |j| (i as f32 * step + j as f32).sin() + 0.1 * (j * i % 7) as f32))
        .collect()
}

/// Finds the nearest documents of some questions.
pub fn main() -> Result<(), Box<dyn Error>> {
    match cust::init(CudaFlags::empty()) {
        Ok(()) => {}
        Err(CudaError::NoDevice) => {
            println!("this machine has no CUDA device or no driver: nothing was searched");
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    }
    // The primary context of the first GPU. warpann works in the same context.
    let _context = Context::new(cust::device::Device::get_device(0)?)?;
    let model = Model { gpu: 0, stream: Stream::new(StreamFlags::DEFAULT, None)? };
    let stream = model.stream.as_inner();
    let (documents, questions) = (texts(DOCUMENTS, 0.01), texts(QUESTIONS, 1.7));

    let mut index = FlatIndex::<f32>::new(DIM, Metric::Cosine, Device::Gpu(model.gpu))?;
    // SAFETY: nobody else deletes the tensor, and it has what it says. `add_device` waits until the vectors are copied.
    unsafe {
        let tensor = ForeignTensor::new(model.embeddings(&documents)?)?;
        index.add_device(stream, &DeviceVectors::of_tensor(tensor.tensor(), DIM)?)?;
    }

    // All memory of the search, made once.
    let mut workspace = index.device_workspace(QUESTIONS, K, &SearchOptions::new())?;
    let (mut ids, mut distances) = (vec![0i64; QUESTIONS * K], vec![0f32; QUESTIONS * K]);
    // SAFETY: as above. Tensors, workspace and index live and do not change until the stream is done.
    unsafe {
        let asked = ForeignTensor::new(model.embeddings(&questions)?)?;
        let found_ids = ForeignTensor::new(model.tensor(&ids, K, DLDataType::INT64)?)?;
        let found_distances = ForeignTensor::new(model.tensor(&distances, K, DLDataType::F32)?)?;
        let queries = DeviceVectors::of_tensor(asked.tensor(), DIM)?;
        let results = DeviceNeighbors::of_tensors(found_ids.writable()?, found_distances.writable()?)?;
        // One step of the stream, which does not wait. A real program goes on with the results on the GPU.
        index.search_device(&mut workspace, stream, &queries, &results)?;
        model.stream.synchronize()?;
        read(found_ids.tensor().data.addr() as u64, &mut ids)?;
        read(found_distances.tensor().data.addr() as u64, &mut distances)?;
    }

    for question in 0..QUESTIONS {
        let slots = question * K..(question + 1) * K;
        println!("question {question}: documents {:?} at {:?}", &ids[slots.clone()], &distances[slots]);
    }
    // The CPU finds the same documents.
    let mut on_cpu = FlatIndex::<f32>::new(DIM, Metric::Cosine, Device::Cpu)?;
    on_cpu.add(&documents)?;
    let expected = on_cpu.search(&questions, K)?;
    assert!(ids.iter().zip(&expected.ids).all(|(&id, &expected)| id as u64 == expected), "{ids:?}, {:?}", expected.ids);
    assert_eq!(distances, expected.distances);
    println!("the CPU finds the same {} documents", ids.len());
    Ok(())
}

/// Copies device memory to the host.
///
/// # Safety
/// The address is that of as many values.
unsafe fn read<T: DeviceCopy>(address: u64, to: &mut [T]) -> Result<(), CudaError> {
    use warpann::cust::memory::{CopyDestination, DevicePointer, DeviceSlice};
    // SAFETY: as the caller promises.
    unsafe { DeviceSlice::from_raw_parts(DevicePointer::from_raw(address), to.len()) }.copy_to(to)
}
