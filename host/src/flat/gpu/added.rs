//! Rows that the caller has in device memory, added to resident rows.

use cuda_std::{Ptr, PtrMut};

use super::{BaseRows, CENTRE_SAMPLE, FlatDevice};
use crate::device::queue::OnStream;
use crate::device::runtime::Stream;
use crate::device::scratch::Layout;
use crate::enqueued::download::download;
use crate::enqueued::staging::{StagedRows, stage_rows};
use crate::vectors::VectorSlice;
use crate::{Error, Input, Result, host_memory};

impl FlatDevice {
    /// Appends `count` contiguous rows at `from`, in the order of `stream`, and waits for the stream. Returns `Ok(false)` if the rows do not fit
    /// the device; nothing has then changed.
    ///
    /// # Errors
    /// [`Error::NotFinite`] and the errors of the device; nothing has then changed.
    ///
    /// # Safety
    /// `from` has the rows, aligned to a component, when the stream arrives there.
    pub unsafe fn add_from_device(&mut self, stream: &Stream, from: Ptr<u8>, count: usize) -> Result<bool> {
        if count == 0 {
            return Ok(true);
        }
        if !self.make_room(count)? {
            return Ok(false);
        }
        let BaseRows::Device(resident) = &self.rows else { return Ok(false) };
        let (runtime, shape) = (&self.runtime, self.shape);
        let to = self.set(resident).rows().skip(self.count * shape.row_bytes());
        let mut refused = [u32::MAX];
        self.lanes.with(runtime, |lane| {
            let mut layout = Layout::default();
            let word = layout.array::<u32>(1);
            let word: PtrMut<u32> = lane.scratch(runtime, layout.bytes())?.at(word);
            let on = OnStream { runtime, stream };
            // SAFETY: there is room for the rows and one word, and the caller promises the rows. The copy of the word waits for the stream.
            unsafe {
                runtime.fill(stream, word, 0xff)?;
                stage_rows(on, shape, from, count as u32, to, StagedRows { refused: None, first_refused: Some(word) })?;
                runtime.copy_to_host(stream, &mut refused, word)
            }
        })?;
        if refused[0] != u32::MAX {
            let row = refused[0] as usize;
            let row_bytes = shape.dim * shape.element.size();
            // SAFETY: the row is one of the caller's.
            let bytes = unsafe { download(runtime, stream, from, row * row_bytes..(row + 1) * row_bytes)? };
            let vector = VectorSlice::of_bytes(shape.element, shape.dim, &bytemuck::cast_slice(&bytes)[..row_bytes]);
            vector.check_finite(Input::Base).map_err(|error| error.after_rows(row))?;
            // The caller has changed the row meanwhile.
            return Err(Error::NotFinite { input: Input::Base, row, column: 0, value: f32::NAN });
        }
        let first = self.count;
        self.changed(std::iter::once(first..first + count));
        self.count += count;
        if let Err(error) = self.sample_centre(first, count) {
            super::FlatBackend::truncate(self, first);
            return Err(error);
        }
        Ok(true)
    }

    /// Adds rows of the device to the estimate of the centre: at most [`CENTRE_SAMPLE`], at equal distances.
    fn sample_centre(&mut self, first: usize, count: usize) -> Result<()> {
        let BaseRows::Device(resident) = &self.rows else { return Ok(()) };
        if !self.centred() || self.centre.rows >= CENTRE_SAMPLE {
            return Ok(());
        }
        let shape = self.shape;
        let step = count.div_ceil(CENTRE_SAMPLE).max(1);
        let numbers: Vec<u32> = (first..first + count).step_by(step).map(|row| row as u32).collect();
        let mut padded = host_memory::zeroed::<u8>(numbers.len() * shape.row_bytes())?;
        self.lanes.with(&self.runtime, |lane| {
            let mut layout = Layout::default();
            let (list, rows) = (layout.array(numbers.len()), layout.array::<u8>(padded.len()));
            let scratch = lane.scratch(&self.runtime, layout.bytes())?;
            let (list, rows) = (scratch.at(list), scratch.at(rows));
            let on = OnStream { runtime: &self.runtime, stream: &lane.stream };
            // SAFETY: the scratch has room for the numbers and the rows, and the rows are resident.
            unsafe {
                self.gather(on, resident, &numbers, list, rows)?;
                self.runtime.copy_to_host(&lane.stream, &mut padded, rows)
            }
        })?;
        let row_bytes = shape.dim * shape.element.size();
        let mut sample = crate::vectors::VectorBuffer::new(shape.element);
        sample.reserve(numbers.len() * shape.dim)?;
        padded.chunks_exact(shape.row_bytes()).for_each(|row| sample.extend(&row[..row_bytes]));
        self.centre.add(sample.as_slice(shape.dim));
        Ok(())
    }
}
