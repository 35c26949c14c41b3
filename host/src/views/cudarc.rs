//! Buffers of the crate cudarc as views, for work on a stream of cudarc.
//!
//! cudarc lends the address of a buffer for the work of one stream. The stream first waits for what other streams do
//! with the buffer, and a guard records the end of the work, so that later uses of the buffer wait for it. [`OnStream`]
//! borrows buffers in this way for one stream, and [`Borrowed`] is a view that holds the guards:
//!
//! ```no_run
//! use warpann::cudarc::driver::CudaContext;
//! use warpann::views::cudarc::OnStream;
//! use warpann::{Device, FlatIndex, Metric, SearchOptions};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // The primary context, in which warpann works as well.
//! let context = CudaContext::new(0)?;
//! let (writer, searcher) = (context.new_stream()?, context.new_stream()?);
//! let base = writer.clone_htod(&[0.0f32, 0.0, 3.0, 4.0, 1.0, 1.0])?;
//! let queries = writer.clone_htod(&[0.9f32, 1.2])?;
//! let (mut ids, mut distances) = (writer.alloc_zeros::<u64>(2)?, writer.alloc_zeros::<f32>(2)?);
//!
//! let on = OnStream::new(&searcher)?;
//! let mut index = FlatIndex::<f32>::new(2, Metric::L2, Device::Gpu(0))?;
//! let vectors = on.vectors(&base, 2)?;
//! // SAFETY: the buffer holds the vectors, and is borrowed until the call, which waits for the stream, has returned.
//! unsafe { index.add_device(on.raw(), &vectors)? };
//! drop(vectors);
//! let mut workspace = index.device_workspace(1, 2, &SearchOptions::new())?;
//!
//! let (borrowed, results) = (on.vectors(&queries, 2)?, on.neighbors(&mut ids, &mut distances)?);
//! // SAFETY: index and workspace live and do not change until the stream is done. cudarc keeps other work from the buffers.
//! unsafe { index.search_device(&mut workspace, on.raw(), &borrowed, &results)? };
//! drop((borrowed, results));
//!
//! // The other stream waits for the search on the GPU.
//! assert_eq!(writer.clone_dtoh(&ids)?, [2, 0]);
//! # Ok(())
//! # }
//! ```
//!
//! # Order
//! Make the views, pass them to one call together with [`OnStream::raw`], and then drop them. While a view lives, the
//! compiler does not let you change, read or drop its buffer. Afterwards every use of the buffer through cudarc, also
//! its release, comes after the work of the call on the GPU, and no thread waits. Workspace and index are not cudarc's:
//! keep them, unchanged, until the stream is done.
//!
//! Do not copy a [`DeviceVectors`] out of a [`Borrowed`] to use it later, and do not use it on another stream: nothing
//! then orders the work. cudarc orders streams only while its context manages them
//! (`CudaContext::is_managing_stream_synchronization`): it does from the first `CudaContext::new_stream` on, unless
//! `disable_event_tracking` was called. If it does not, the order of several streams is up to you.
//!
//! # CUDA graphs
//! The stream must not wait for earlier work while it is captured. So make the views before `begin_capture`, and drop
//! them after `end_capture`. They order the work of the capture only. Make views of the same buffers around each launch
//! of the graph too, so that other streams wait for the launch.
//!
//! # Selection
//! [`select::device`](crate::select::device) takes pointers. Use cudarc's `device_ptr` and `device_ptr_mut` with the
//! same stream, and drop their guards after the call.

use std::ops::Deref;

use ::cudarc::driver::{CudaContext, CudaStream, DevicePtr, DevicePtrMut, SyncOnDrop};
use cust::sys::CUstream;

use super::{DeviceCounts, DeviceNeighbors, DeviceVectors, check_gpu, slots_of, whole_vectors};
use crate::{Element, Error, MemoryDefect, Result};

/// A stream of cudarc on which an index works, and for which buffers are borrowed.
#[derive(Debug, Clone, Copy)]
pub struct OnStream<'s> {
    stream: &'s CudaStream,
}

/// A view whose buffers are borrowed for one stream. It derefs to the view. Drop it after the call that uses it: this
/// records the end of the work on the stream.
#[must_use = "the buffers are free for other work when this is dropped"]
#[derive(Debug)]
pub struct Borrowed<'b, V> {
    view: V,
    /// Guards of one buffer or of two. Dropping them records the events.
    _guards: [Option<SyncOnDrop<'b>>; 2],
}

impl<V> Deref for Borrowed<'_, V> {
    type Target = V;

    fn deref(&self) -> &V {
        &self.view
    }
}

impl<'s> OnStream<'s> {
    /// Work on `stream`.
    ///
    /// # Errors
    /// [`Error::BadMemory`] if the stream does not belong to the primary context of its GPU, which is that of
    /// `CudaContext::new`.
    pub fn new(stream: &'s CudaStream) -> Result<Self> {
        gpu_of("stream", stream.context())?;
        Ok(OnStream { stream })
    }

    /// The stream as a value of the driver, for methods such as [`search_device`](crate::FlatIndex::search_device). It
    /// must not outlive the stream.
    pub fn raw(&self) -> CUstream {
        self.stream.cu_stream().cast()
    }

    /// Borrows the vectors of `dim` components in a `CudaSlice`, `CudaView` or `CudaViewMut`, for reading.
    ///
    /// # Errors
    /// [`Error::Zero`]; [`Error::Ragged`] if the buffer is not a whole number of vectors;
    /// [`Error::BadMemory`] if it does not belong to the context of the stream; [`Error::Driver`] if the stream cannot
    /// wait for earlier work, or if cudarc kept an error of an earlier call (`CudaContext::check_err`).
    pub fn vectors<'b, T: Element>(
        &self,
        buffer: &'b impl DevicePtr<T>,
        dim: usize,
    ) -> Result<Borrowed<'b, DeviceVectors<T>>>
    where
        's: 'b,
    {
        let len = whole_vectors(buffer.len(), dim)?;
        let gpu = self.check("vectors", buffer.stream())?;
        let (address, guard) = buffer.device_ptr(self.stream);
        self.check_waits()?;
        let view = DeviceVectors { gpu: Some(gpu), ..DeviceVectors::new(address, len) };
        Ok(Borrowed { view, _guards: [Some(guard), None] })
    }

    /// Borrows memory for ids and distances in two `CudaSlice`s or `CudaViewMut`s, for writing.
    ///
    /// # Errors
    /// [`Error::WrongLength`] if the buffers differ in length; and the last three of [`vectors`](Self::vectors).
    pub fn neighbors<'b>(
        &self,
        ids: &'b mut impl DevicePtrMut<u64>,
        distances: &'b mut impl DevicePtrMut<f32>,
    ) -> Result<Borrowed<'b, DeviceNeighbors>>
    where
        's: 'b,
    {
        let slots = slots_of(ids.len(), distances.len())?;
        let gpu = self.check("ids", ids.stream())?;
        self.check("distances", distances.stream())?;
        let (ids, of_ids) = ids.device_ptr_mut(self.stream);
        let (distances, of_distances) = distances.device_ptr_mut(self.stream);
        self.check_waits()?;
        let view = DeviceNeighbors { slots: Some(slots), gpu: Some(gpu), ..DeviceNeighbors::new(ids, distances) };
        Ok(Borrowed { view, _guards: [Some(of_ids), Some(of_distances)] })
    }

    /// Borrows memory for numbers of vectors in a `CudaSlice` or `CudaViewMut`, for writing.
    ///
    /// # Errors
    /// The last three of [`vectors`](Self::vectors).
    pub fn counts<'b>(&self, counts: &'b mut impl DevicePtrMut<u32>) -> Result<Borrowed<'b, DeviceCounts>>
    where
        's: 'b,
    {
        let len = Some(counts.len());
        let gpu = Some(self.check("counts", counts.stream())?);
        let (address, guard) = counts.device_ptr_mut(self.stream);
        self.check_waits()?;
        Ok(Borrowed { view: DeviceCounts { address, len, gpu }, _guards: [Some(guard), None] })
    }

    /// Checks that a buffer of the stream `owner` belongs to the context of this stream: an event of another one cannot
    /// be recorded on it. Returns the number of the GPU.
    fn check(&self, what: &'static str, owner: &CudaStream) -> Result<usize> {
        let gpu = gpu_of(what, owner.context())?;
        check_gpu(what, Some(gpu), self.stream.context().ordinal())?;
        Ok(gpu)
    }

    /// Returns the error that cudarc kept when the stream was to wait for an event.
    fn check_waits(&self) -> Result<()> {
        let context = self.stream.context();
        context.check_err().map_err(|error| Error::Driver {
            call: "cuStreamWaitEvent",
            device: context.ordinal(),
            code: error.0 as i32,
        })
    }
}

/// The GPU of a primary context.
fn gpu_of(what: &'static str, context: &CudaContext) -> Result<usize> {
    let gpu = context.ordinal();
    let refused = Error::BadMemory { what, defect: MemoryDefect::OtherContext { gpu } };
    if context.is_primary() { Ok(gpu) } else { Err(refused) }
}

#[cfg(test)]
mod tests {
    use ::cudarc::driver::{CudaSlice, CudaView, CudaViewMut};
    use half::{bf16, f16};

    use super::*;

    type Vectors<T, B> = fn(&OnStream<'static>, &'static B, usize) -> Result<Borrowed<'static, DeviceVectors<T>>>;

    /// Buffers need a driver, the types of calls do not: every element of an index, in every kind of buffer.
    #[test]
    fn buffers_of_all_elements_are_vectors() {
        let _: Vectors<f32, CudaSlice<f32>> = OnStream::vectors;
        let _: Vectors<f16, CudaView<'static, f16>> = OnStream::vectors;
        let _: Vectors<bf16, CudaViewMut<'static, bf16>> = OnStream::vectors;
        let _: Vectors<u8, CudaSlice<u8>> = OnStream::vectors;
        let _: Vectors<i8, CudaView<'static, i8>> = OnStream::vectors;
    }

    #[test]
    fn a_borrowed_view_is_passed_as_a_view() {
        fn place<T: Element>(vectors: &DeviceVectors<T>) -> (u64, usize) {
            (vectors.address(), vectors.len())
        }
        let borrowed = Borrowed { view: DeviceVectors::<u8>::new(4096, 5), _guards: [None, None] };
        assert_eq!(place(&borrowed), (4096, 5));
    }
}
